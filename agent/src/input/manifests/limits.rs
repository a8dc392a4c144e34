//! Documents that decide about pods: LimitRange, ResourceQuota and PriorityClass; and Namespace, which decides nothing
//! here.
//!
//! Field names, kinds of values and quantities are checked here, each with its line ([`objects`]); the rest is the API
//! server's validation, which [`super::admission`] asks for. A document with an error is kept without its object, so
//! that the pods of its namespace do not start as if it were not there.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use plimsoll_core::kube::admission::request::Refusal;
use plimsoll_core::kube::pod::DEFAULT_NAMESPACE;

use super::ManifestError;
use super::metadata::check_metadata;
use super::objects::{self, Item, Source};
use super::schema::{Finding, join};
use crate::host::shown::Show as _;
use crate::input::yaml::Node;

/// What a document decides about; also their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LimitKind {
    PriorityClass,
    LimitRange,
    ResourceQuota,
}

/// Kinds that are read here.
const KINDS: [(&str, Option<LimitKind>); 4] = [
    ("Namespace", None),
    ("PriorityClass", Some(LimitKind::PriorityClass)),
    ("LimitRange", Some(LimitKind::LimitRange)),
    ("ResourceQuota", Some(LimitKind::ResourceQuota)),
];

/// Which object it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LimitKey {
    pub(super) kind: LimitKind,
    /// Empty for a kind without one.
    pub(super) namespace: String,
    pub(super) name: String,
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            namespace,
            name,
        } = self;
        match kind {
            LimitKind::PriorityClass => write!(f, "PriorityClass {name}"),
            LimitKind::LimitRange => write!(f, "LimitRange {namespace}/{name}"),
            LimitKind::ResourceQuota => write!(f, "ResourceQuota {namespace}/{name}"),
        }
    }
}

/// An object that decides about pods, and where its document stands.
#[derive(Debug, Clone)]
pub(super) struct ManifestLimit {
    pub(super) key: LimitKey,
    pub(super) file: Arc<Path>,
    /// The line at which the document starts.
    pub(super) line: u64,
    /// Where it stands in a list, such as `items[2]`.
    path: String,
    /// `None`: the document has errors.
    pub(super) object: Option<Arc<(Source, Item)>>,
}

/// Whether documents of this kind are read here.
pub(super) fn is_kind(kind: &str) -> bool {
    KINDS.iter().any(|(name, _)| *name == kind)
}

/// Reads a document of one of the kinds, and what is wrong with it.
pub(super) fn limit_of(
    file: &Arc<Path>,
    document: &Node,
    kind: &str,
    path: &str,
) -> (Option<ManifestLimit>, Vec<Finding>) {
    let item = objects::item(document, kind, path, DEFAULT_NAMESPACE);
    let known = KINDS.iter().find(|(name, _)| *name == kind);
    let Some(decides) = known.and_then(|(_, kind)| *kind) else {
        let mut findings = item.err().unwrap_or_default();
        check_metadata(document, path, &mut findings);
        return (None, findings);
    };
    let text = |name: &str| {
        let metadata = document.get("metadata")?;
        metadata.get(name)?.text().filter(|text| !text.is_empty())
    };
    let (item, mut findings) = match item {
        Ok(item) => (Some(item), Vec::new()),
        Err(findings) => (None, findings),
    };
    if text("name").is_none() && findings.is_empty() {
        check_metadata(document, path, &mut findings);
    }
    let object = item.filter(|_| findings.is_empty());
    let namespace = match decides {
        LimitKind::PriorityClass => "",
        _ => text("namespace").unwrap_or(DEFAULT_NAMESPACE),
    };
    let limit = ManifestLimit {
        key: LimitKey {
            kind: decides,
            namespace: namespace.to_owned(),
            name: text("name").unwrap_or_default().to_owned(),
        },
        file: Arc::clone(file),
        line: document.line,
        path: path.to_owned(),
        object: object.map(|item| Arc::new((Source::new(file, kind, document.clone()), item))),
    };
    (Some(limit), findings)
}

/// Where a file has errors, its objects of before stay: those that it does not have any more, and those that have
/// errors now.
pub(super) fn keep_known(limits: &mut Vec<ManifestLimit>, known: Vec<ManifestLimit>) {
    let is_good =
        |limit: &ManifestLimit, key: &LimitKey| limit.object.is_some() && limit.key == *key;
    for old in known.into_iter().filter(|old| old.object.is_some()) {
        if !limits.iter().any(|new| is_good(new, &old.key)) {
            limits.retain(|new| new.key != old.key);
            limits.push(old);
        }
    }
}

impl ManifestLimit {
    /// `FILE:LINE`.
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.file.shown(), self.line)
    }

    /// An error in a field of it.
    pub(super) fn error(&self, field: &str, what: String) -> ManifestError {
        let line = self
            .object
            .as_ref()
            .map_or(self.line, |object| object.0.line_of(field));
        ManifestError::Field {
            file: Arc::clone(&self.file),
            line,
            field: join(&self.path, field),
            what,
        }
    }

    /// Why the API server would not take it, field by field.
    pub(super) fn refused(&self, refusal: &Refusal) -> Vec<ManifestError> {
        if refusal.errors.is_empty() {
            let field = match self.key.kind {
                LimitKind::PriorityClass if refusal.reason == "Forbidden" => "globalDefault",
                _ => "metadata.name",
            };
            return vec![self.error(field, refusal.message.clone())];
        }
        let errors = refusal.errors.iter();
        errors
            .map(|error| self.error(&error.field, error.body.clone()))
            .collect()
    }
}
