//! Objects for admission: LimitRanges, quotas, priority classes, and what these decide about.
//!
//! **Which kinds.** Those of [`kinds`] are read; of those that are only counted nothing but the metadata matters. A
//! kind without namespace, or one that is not in the table, is named as left out: a custom resource's plural is not in
//! its document. **What is checked here**: field names, kinds of values and quantities, each with its line. What the
//! API server would refuse is refused by [`plimsoll_core::kube::admission`], in its own sentence; [`Source::line_of`]
//! finds the line of a field that it names.

mod kinds;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::kube::admission::object::{
    DeviceClass, LimitRange, Object, PriorityClass, ResourceQuota,
};
use plimsoll_core::kube::admission::object_meta::ObjectMeta;
use plimsoll_core::kube::admission::pod_object::PodObject;
use plimsoll_core::kube::pod::DEFAULT_NAMESPACE;
use plimsoll_core::kube::quantity::Quantity;
use serde::de::DeserializeOwned;

use super::files::{STDIN, manifests_in, read_or_stdin};
use super::schema::{self, Field, Finding, Kind, METADATA, join};
use super::{Bounds, ManifestError, read_text};
use crate::host::shown::Show as _;
use crate::input::yaml::{Node, Value, documents};
use kinds::{Form, KINDS, OWNERS, fields_of};

/// Whether a controller makes pods for objects of this kind.
pub(super) fn is_owner(kind: &str) -> bool {
    OWNERS.contains(&kind)
}

/// Where an object stands.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Its file.
    pub(crate) file: Arc<Path>,
    /// Its kind.
    pub(crate) kind: String,
    /// Its fields.
    node: Node,
}

impl Source {
    /// A document of that kind.
    pub(super) fn new(file: &Arc<Path>, kind: &str, node: Node) -> Self {
        Self {
            file: Arc::clone(file),
            kind: kind.to_owned(),
            node,
        }
    }

    /// The line at which its document starts.
    pub(crate) fn line(&self) -> u64 {
        self.node.line
    }

    /// The line of a field in the API's notation (`spec.limits[0].min[cpu]`), or of the nearest one above it that is
    /// there.
    pub(crate) fn line_of(&self, field: &str) -> u64 {
        let mut node = &self.node;
        let mut line = node.line;
        let mut rest = field;
        while !rest.is_empty() {
            let next = if let Some(inside) = rest.strip_prefix('[') {
                let Some((name, after)) = inside.split_once(']') else {
                    break;
                };
                rest = after;
                // A key of a map, else an index: the API writes both alike.
                let by_name = node.fields().iter().find(|(key, _)| key.name == name);
                by_name.map(|(key, value)| (key.line, value)).or_else(|| {
                    let item = node.items().get(name.parse::<usize>().ok()?)?;
                    Some((item.line, item))
                })
            } else {
                let trimmed = rest.strip_prefix('.').unwrap_or(rest);
                let end = trimmed.find(['.', '[']).unwrap_or(trimmed.len());
                let (name, after) = trimmed.split_at(end);
                rest = after;
                let found = node.fields().iter().find(|(key, _)| key.name == name);
                found.map(|(key, value)| (key.line, value))
            };
            let Some((at, inner)) = next else { break };
            (line, node) = (at, inner);
        }
        line
    }

    /// The document.
    pub(crate) fn json(&self) -> serde_json::Value {
        self.node.to_json()
    }
}

/// An object that decides about others, or that is decided about.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    /// A LimitRange.
    LimitRange(Box<LimitRange>),
    /// A quota.
    Quota(Box<ResourceQuota>),
    /// A priority class.
    PriorityClass(Box<PriorityClass>),
    /// A device class.
    DeviceClass(Box<DeviceClass>),
    /// An object of that resource, whether it is in a cluster already, and whether its pods are not looked at.
    Object {
        resource: &'static str,
        object: Object,
        is_owner: bool,
    },
    /// A document that says nothing here, for that reason.
    LeftOut(String),
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// In the order of files and documents.
    pub(crate) items: Vec<(Source, Item)>,
    /// What is wrong.
    pub(crate) errors: Vec<ManifestError>,
}

/// Reads all of `paths`, in which [`STDIN`] stands for `stdin`. An object without namespace is in `namespace`.
pub(crate) fn read(paths: &[PathBuf], namespace: Option<&str>, mut stdin: impl Read) -> Objects {
    let mut objects = Objects::default();
    let namespace = namespace.unwrap_or(DEFAULT_NAMESPACE);
    for path in paths {
        if path.as_os_str() == STDIN || !path.is_dir() {
            let (file, text) = read_or_stdin(path, &mut stdin, Bounds::OFFLINE.bytes);
            objects.take(&file, text, namespace);
            continue;
        }
        match manifests_in(&Arc::from(path.as_path())) {
            Ok(files) => {
                for file in files {
                    let text = read_text(&file, Bounds::OFFLINE.bytes);
                    objects.take(&file, text, namespace);
                }
            }
            Err(error) => objects.errors.push(error),
        }
    }
    objects
}

impl Objects {
    fn take(&mut self, file: &Arc<Path>, text: Result<String, ManifestError>, namespace: &str) {
        let text = match text {
            Ok(text) => text,
            Err(error) => return self.errors.push(error),
        };
        match documents(&text, Bounds::OFFLINE.limits()) {
            Ok(documents) => {
                for document in documents {
                    self.document(file, document, "", namespace);
                }
            }
            Err(error) => self.errors.push(ManifestError::syntax(file, error)),
        }
    }

    /// Lists may hold lists, as deep as the parser reads.
    fn document(&mut self, file: &Arc<Path>, document: Node, path: &str, namespace: &str) {
        let kind = document
            .get("kind")
            .and_then(Node::text)
            .unwrap_or_default()
            .to_owned();
        if kind.ends_with("List") && document.get("items").is_some() {
            let items = match document.value {
                Value::Map(fields) => fields.into_iter().find(|(key, _)| key.name == "items"),
                _ => None,
            };
            if let Some((
                _,
                Node {
                    value: Value::List(items),
                    ..
                },
            )) = items
            {
                for (at, item) in items.into_iter().enumerate() {
                    let item = with_kind_of_list(item, &kind);
                    self.document(file, item, &join(path, &format!("items[{at}]")), namespace);
                }
            }
            return;
        }
        match item(&document, &kind, path, namespace) {
            Ok(item) => {
                let source = Source {
                    file: Arc::clone(file),
                    kind,
                    node: document,
                };
                self.items.push((source, item));
            }
            Err(findings) => {
                let named = |what| match name_in_list(&document, &kind, path) {
                    Some(name) => format!("{name}: {what}"),
                    None => what,
                };
                self.errors
                    .extend(findings.into_iter().map(|finding| ManifestError::Field {
                        file: Arc::clone(file),
                        line: finding.line,
                        field: finding.field,
                        what: named(finding.what),
                    }))
            }
        }
    }
}

/// How an error names one of a list's objects, whose place in the list says little; `None` where it has no name, or is
/// in no list.
fn name_in_list(document: &Node, kind: &str, path: &str) -> Option<String> {
    let metadata = document.get("metadata").filter(|_| !path.is_empty())?;
    let name = metadata.get("name").and_then(Node::text)?.shown();
    Some(match metadata.get("namespace").and_then(Node::text) {
        Some(namespace) => format!("{} {}/{name}", kind.shown(), namespace.shown()),
        None => format!("{} {name}", kind.shown()),
    })
}

/// Items of a typed list such as PodList may leave out what the list says.
fn with_kind_of_list(mut item: Node, list: &str) -> Node {
    let kind = list.strip_suffix("List").filter(|kind| !kind.is_empty());
    let is_bare = item.get("kind").is_none();
    if let (Some(kind), true, Value::Map(fields)) = (kind, is_bare, &mut item.value) {
        let version = KINDS
            .iter()
            .find(|(name, ..)| *name == kind)
            .and_then(|(_, versions, ..)| versions.first());
        for (name, value) in [("kind", Some(&kind)), ("apiVersion", version)] {
            let missing = !fields.iter().any(|(key, _)| key.name == name);
            if let (Some(value), true) = (value, missing) {
                let line = item.line;
                let key = crate::input::yaml::Key {
                    line,
                    name: name.to_owned(),
                };
                let value = Value::Text((*value).to_owned());
                fields.push((key, Node { line, value }));
            }
        }
    }
    item
}

/// What a document is.
pub(super) fn item(
    document: &Node,
    kind: &str,
    path: &str,
    namespace: &str,
) -> Result<Item, Vec<Finding>> {
    let finding = |node: &Node, field: &str, what: String| {
        vec![Finding {
            line: node.line,
            field: join(path, field),
            what,
        }]
    };
    if !matches!(document.value, Value::Map(_)) {
        let what = format!("expected an object, found {}", document.kind());
        return Err(finding(document, "", what));
    }
    if kind.is_empty() {
        return Err(finding(
            document,
            "kind",
            "missing; every object has a kind".to_owned(),
        ));
    }
    let version = document.get("apiVersion");
    let Some(version) = version.and_then(Node::text) else {
        let what = "missing; every object has a version, such as v1".to_owned();
        return Err(finding(version.unwrap_or(document), "apiVersion", what));
    };
    let Some((_, versions, resource, read)) = KINDS.iter().find(|(name, ..)| *name == kind) else {
        let what = format!(
            "kind {kind} of {version} is not known here: its plural name, under which a quota would count it, is not in the document"
        );
        return Ok(Item::LeftOut(what));
    };
    if !versions.contains(&version) {
        let what = format!(
            "{version:?} is not a version of {kind} that is read here; write {}",
            versions.join(" or ")
        );
        return Err(finding(
            document.get("apiVersion").unwrap_or(document),
            "apiVersion",
            what,
        ));
    }
    if let Form::LeftOut(why) = read {
        return Ok(Item::LeftOut(format!("{kind}: {why}")));
    }
    let mut findings = Vec::new();
    match fields_of(*read) {
        Some(fields) => {
            schema::check(document, fields, path, &mut findings);
            quantities(document, fields, path, &mut findings);
        }
        None => {
            if let Some(metadata) = document.get("metadata") {
                schema::check(metadata, METADATA, &join(path, "metadata"), &mut findings);
            }
        }
    }
    if !findings.is_empty() {
        findings.sort_by_key(|finding| finding.line);
        return Err(findings);
    }
    of_kind(document, *read, resource, namespace, is_owner(kind))
        .map_err(|what| finding(document, "", what))
}

fn of_kind(
    document: &Node,
    read: Form,
    resource: &'static str,
    namespace: &str,
    is_owner: bool,
) -> Result<Item, String> {
    let json = document.to_json();
    let object = |mut object: Object| {
        let given = &mut object.meta_mut().namespace;
        if given.is_empty() {
            namespace.clone_into(given);
        }
        Item::Object {
            resource,
            object,
            is_owner,
        }
    };
    let in_namespace = |meta: &mut ObjectMeta| {
        if meta.namespace.is_empty() {
            namespace.clone_into(&mut meta.namespace);
        }
    };
    Ok(match read {
        Form::Pod => object(Object::Pod(Box::new(PodObject::new(
            parsed(&json)?,
            parsed(&json)?,
        )))),
        Form::Claim => object(Object::Claim(parsed(&json)?)),
        Form::Service => object(Object::Service(parsed(&json)?)),
        Form::ResourceClaim => object(Object::ResourceClaim(parsed(&json)?)),
        Form::LimitRange => {
            let mut range: Box<LimitRange> = parsed(&json)?;
            in_namespace(&mut range.metadata);
            Item::LimitRange(range)
        }
        Form::Quota => {
            let mut quota: Box<ResourceQuota> = parsed(&json)?;
            in_namespace(&mut quota.metadata);
            Item::Quota(quota)
        }
        Form::PriorityClass => Item::PriorityClass(parsed(&json)?),
        Form::DeviceClass => Item::DeviceClass(parsed(&json)?),
        Form::Counted | Form::LeftOut(_) => {
            let meta = json.get("metadata").cloned().unwrap_or_default();
            object(Object::Other(Box::new(
                parsed::<Option<ObjectMeta>>(&meta)?.unwrap_or_default(),
            )))
        }
    })
}

fn parsed<T: DeserializeOwned>(json: &serde_json::Value) -> Result<T, String> {
    T::deserialize(json).map_err(|error| error.to_string())
}

/// Checks that every quantity is one. Its sign and name are the API server's business.
fn quantities(node: &Node, fields: &[Field], path: &str, findings: &mut Vec<Finding>) {
    for (key, value) in node.fields() {
        let path = join(path, &key.name);
        let Some((_, kind)) = fields.iter().find(|(name, _)| *name == key.name) else {
            continue;
        };
        match kind {
            Kind::Object(fields) => quantities(value, fields, &path, findings),
            Kind::ListOf(fields) => {
                for (at, item) in value.items().iter().enumerate() {
                    quantities(item, fields, &format!("{path}[{at}]"), findings);
                }
            }
            Kind::Quantities => {
                for (key, value) in value.fields() {
                    let what = match &value.value {
                        Value::Null => continue,
                        Value::Text(text) => Quantity::parse(text.trim())
                            .err()
                            .map(|error| error.to_string()),
                        Value::Number(number) => Quantity::parse(&number.to_string())
                            .err()
                            .map(|error| error.to_string()),
                        _ => Some(format!(
                            "expected a quantity such as 500m or 1Gi, found {}",
                            value.kind()
                        )),
                    };
                    findings.extend(what.map(|what| Finding {
                        line: value.line,
                        field: format!("{path}[{}]", key.name),
                        what,
                    }));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Objects {
        read(&[STDIN.into()], Some("team"), text.as_bytes())
    }

    #[test]
    fn a_list_of_kubectl_and_what_is_left_out() {
        let objects = read_text(
            "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c}]}}\n\
             - {apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: other}, spec: {replicas: 2}}\n\
             - {apiVersion: v1, kind: Namespace, metadata: {name: team}}\n- {apiVersion: example.com/v1, kind: Widget, metadata: {name: w}}\n",
        );
        assert!(objects.errors.is_empty(), "{:?}", objects.errors);
        let shown: Vec<String> = objects
            .items
            .iter()
            .map(|(source, item)| match item {
                Item::Object {
                    resource,
                    object,
                    is_owner,
                } => {
                    format!(
                        "{}:{resource} {}/{} {is_owner}",
                        source.line(),
                        object.meta().namespace,
                        object.meta().name
                    )
                }
                Item::LeftOut(why) => format!("{}:{}", source.line(), &why[..9]),
                _ => unreachable!(),
            })
            .collect();
        assert_eq!(
            shown,
            [
                "4:pods team/a false",
                "5:deployments.apps other/d true",
                "6:Namespace",
                "7:kind Widg"
            ]
        );
    }

    #[test]
    fn a_typed_list_may_leave_out_the_kinds() {
        let objects = read_text(
            "{apiVersion: v1, kind: PodList, items: [{metadata: {name: a}, spec: {containers: [{name: c}]}}]}",
        );
        assert!(objects.errors.is_empty(), "{:?}", objects.errors);
        assert!(matches!(
            objects.items[0].1,
            Item::Object {
                resource: "pods",
                ..
            }
        ));
    }

    #[test]
    fn each_error_names_file_line_and_field() {
        for (text, wanted) in [
            ("a: [1\n", "standard input:"),
            ("kind: Pod\n", "standard input:1: apiVersion: missing"),
            ("apiVersion: v1\n", "standard input:1: kind: missing"),
            (
                "apiVersion: v2\nkind: LimitRange\n",
                "standard input:1: apiVersion: \"v2\" is not a version of LimitRange",
            ),
            (
                "apiVersion: v1\nkind: LimitRange\nspec:\n  limits:\n  - type: Container\n    max: {cpu: lots}\n",
                "standard input:6: spec.limits[0].max[cpu]: quantity \"lots\"",
            ),
            (
                "apiVersion: v1\nkind: ResourceQuota\nspec:\n  hart: {cpu: 1}\n",
                "standard input:4: spec.hart: unknown field; did you mean hard?",
            ),
            (
                "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, resources: {limits: {memory: [1]}}}]}\n",
                "standard input:3: spec.containers[0].resources.limits[memory]: expected a quantity",
            ),
        ] {
            let errors = read_text(text).errors;
            let first = errors.first().map(ToString::to_string).unwrap_or_default();
            assert!(first.starts_with(wanted), "{text:?}: {errors:?}");
        }
    }

    #[test]
    fn fields_of_the_api_have_lines() {
        let objects = read_text(
            "apiVersion: v1\nkind: LimitRange\nmetadata: {name: l}\nspec:\n  limits:\n  - type: Container\n    min:\n      cpu: 3\n    max: {cpu: 2}\n",
        );
        let source = &objects.items[0].0;
        for (field, line) in [
            ("spec.limits[0].min[cpu]", 8),
            ("spec.limits[0].default[cpu]", 6),
            ("metadata.name", 3),
            ("nothing", 1),
        ] {
            assert_eq!(source.line_of(field), line, "{field}");
        }
    }
}
