//! What an API server would answer if the objects of files were created, as by `kubectl create --dry-run=server`:
//! nothing is kept.
//!
//! What decides about others goes first, then what exists, then what is asked for. The plugins are in
//! [`plimsoll_core::kube::admission`].

use std::io;
use std::path::PathBuf;

use clap::ValueEnum;
use plimsoll_core::kube::admission::Admission;
use plimsoll_core::kube::admission::chain::{Admitted, World};
use plimsoll_core::kube::admission::object::Object;
use plimsoll_core::kube::admission::object_meta::ObjectMeta;
use plimsoll_core::kube::admission::request::Refusal;
use plimsoll_core::kube::admission::resource_quota::cluster::{Cluster, DeviceClasses};
use plimsoll_core::kube::admission::resource_quota::configuration::Configuration;
use plimsoll_core::kube::time::Time;

use super::files::stdin_once;
use super::objects::{self, Item, Source};
use crate::host::clock::wall;
use crate::input::error::InputError;

/// The API server's known defects (decision 0036).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Defects {
    /// With the known defects of API servers
    #[default]
    Upstream,
    /// Without them
    Corrected,
}

impl From<Defects> for Admission {
    fn from(defects: Defects) -> Self {
        match defects {
            Defects::Upstream => Self::Upstream,
            Defects::Corrected => Self::Corrected,
        }
    }
}

/// What was made of a document.
#[derive(Debug)]
pub(crate) enum Verdict {
    Admitted(Box<Admitted>),
    InForce,
    Existing,
    Refused(Box<Refusal>),
    LeftOut(String),
}

/// A document and what was made of it.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) source: Source,
    /// Empty for kinds without one.
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    /// A controller makes its pods later.
    pub(crate) is_owner: bool,
}

/// All documents, and the namespaces afterwards.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    pub(crate) world: World,
}

/// The time by the host's clock.
fn now() -> Time {
    let since = wall();
    Time {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: since.subsec_nanos(),
    }
}

/// Reads the files and asks about each object.
///
/// # Errors
/// [`InputError`]: what is wrong in the files; then nothing is asked.
pub(crate) fn ask(
    files: &[PathBuf],
    namespace: Option<&str>,
    defects: Defects,
    stdin: impl io::Read,
) -> Result<Answer, InputError> {
    stdin_once(files)?;
    let read = objects::read(files, namespace, stdin);
    if !read.errors.is_empty() {
        return Err(InputError::invalid("nothing is admitted", &read.errors));
    }
    let mut world = World::new(
        defects.into(),
        Configuration::default(),
        cluster(&read.items),
    );
    let mut verdicts: Vec<Option<Verdict>> = read.items.iter().map(|_| None).collect();
    let in_force = |result: Result<(), Refusal>| match result {
        Ok(()) => Verdict::InForce,
        Err(refusal) => Verdict::Refused(Box::new(refusal)),
    };
    for ((_, item), verdict) in read.items.iter().zip(&mut verdicts) {
        *verdict = match item {
            Item::PriorityClass(class) => Some(in_force(world.add_class((**class).clone()))),
            Item::LimitRange(range) => Some(in_force(world.add_range((**range).clone()))),
            Item::Quota(quota) => Some(in_force(world.add_quota((**quota).clone()))),
            Item::DeviceClass(_) => Some(Verdict::InForce),
            Item::LeftOut(why) => Some(Verdict::LeftOut(why.clone())),
            Item::Object {
                resource, object, ..
            } if exists(object.meta()) => {
                Some(match world.add_existing(resource, object.clone()) {
                    Ok(()) => Verdict::Existing,
                    Err(refusal) => Verdict::Refused(Box::new(refusal)),
                })
            }
            Item::Object { .. } => None,
        };
    }
    world.count();
    let mut rows = Vec::with_capacity(read.items.len());
    for ((source, item), verdict) in read.items.into_iter().zip(verdicts) {
        let (meta, is_owner) = match &item {
            Item::PriorityClass(class) => (class.metadata.clone(), false),
            Item::LimitRange(range) => (range.metadata.clone(), false),
            Item::Quota(quota) => (quota.metadata.clone(), false),
            Item::DeviceClass(class) => (class.metadata.clone(), false),
            Item::Object {
                object, is_owner, ..
            } => (object.meta().clone(), *is_owner),
            Item::LeftOut(_) => (ObjectMeta::default(), false),
        };
        let verdict = verdict.unwrap_or_else(|| match item {
            Item::Object {
                resource, object, ..
            } => match world.admit(resource, object) {
                Ok(admitted) => Verdict::Admitted(Box::new(admitted)),
                Err(refusal) => Verdict::Refused(Box::new(refusal)),
            },
            _ => Verdict::InForce,
        });
        rows.push(Row {
            source,
            namespace: meta.namespace,
            name: if meta.name.is_empty() {
                meta.generate_name
            } else {
                meta.name
            },
            verdict,
            is_owner,
        });
    }
    Ok(Answer { rows, world })
}

/// What the API server has, it has given a version.
fn exists(meta: &ObjectMeta) -> bool {
    !meta.resource_version.is_empty()
}

fn cluster(items: &[(Source, Item)]) -> Cluster {
    let mut cluster = Cluster {
        now: now(),
        ..Cluster::default()
    };
    let mut classes = Vec::new();
    for (_, item) in items {
        match item {
            Item::DeviceClass(class) => classes.push((**class).clone()),
            Item::Object { object, .. } if exists(object.meta()) => match object {
                Object::Pod(pod) => cluster.pods.push((**pod).clone()),
                Object::ResourceClaim(claim) => cluster.resource_claims.push((**claim).clone()),
                _ => {}
            },
            _ => {}
        }
    }
    cluster.device_classes = DeviceClasses::new(&classes);
    cluster
}
