//! Which pods and cgroups a session is about, by name.
//!
//! A cgroup's directory names a pod by its UID. Names come from the manifests that are given, else from a running
//! agent; without either a pod can be selected by its UID and is shown by it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_core::kube::pod_uid::PodUid;

use super::TraceError;
use plimsoll::commands::trace::TraceArgs;
use plimsoll::host::cgroup::{CgroupMounts, CgroupPath, Controller, Hierarchy};
use plimsoll::input::manifests::gather;
use plimsoll::pods;
use plimsoll::serve::control::client::ask;
use plimsoll::serve::control::{Answer, Request};

/// Names that an error suggests.
const NEAR_MAX: usize = 5;
/// Selected names that are written out.
const NAMED_MAX: usize = 8;
/// How alike a name must be to be suggested, of 1.
const NEAR: f64 = 0.7;

/// What a session is about.
#[derive(Debug)]
pub(super) struct Selection {
    /// The selected cgroups; none: the whole node.
    pub(super) paths: Vec<CgroupPath>,
    /// Their ids in the hierarchy that accounts memory; `None`: the whole node.
    pub(super) ids: Option<Vec<u64>>,
    /// The same for people.
    pub(super) words: String,
    /// `namespace/name` of the node's pods.
    pub(super) pods: HashMap<PodUid, String>,
    /// Why pods are shown by UID, where they are.
    pub(super) nameless: Option<String>,
}

/// Finds what was asked for.
pub(super) fn select(args: &TraceArgs, mounts: &CgroupMounts) -> Result<Selection, TraceError> {
    let root = args.cgroup_root.path()?;
    let (pods, nameless) = names(args)?;
    let memory = mounts.hierarchy_of(Controller::Memory)?;
    let mut selected: BTreeMap<CgroupPath, String> = BTreeMap::new();
    for wanted in &args.pod {
        let (uid, name) = find_pod(wanted, &pods, mounts, &root, nameless.as_deref())?;
        let path =
            pods::cgroup::find(mounts, &root, &uid).ok_or_else(|| TraceError::NoPodCgroup {
                pod: name.clone(),
                below: pods::cgroup::kubepods_path(&root)
                    .map(|path| path.to_string())
                    .unwrap_or_default(),
            })?;
        selected.insert(path, name);
    }
    for wanted in &args.cgroup {
        let path = relative(wanted, mounts)?;
        selected.insert(path.clone(), path.to_string());
    }
    let mut ids = Vec::new();
    for path in selected.keys() {
        let id = memory
            .cgroup_id(path)
            .map_err(|_| TraceError::UnknownCgroup {
                path: path.to_string(),
                mount: memory.mount.clone(),
                near: suggestion(near_cgroups(memory, path)),
            })?;
        ids.push(id);
    }
    Ok(Selection {
        words: in_words(&selected),
        ids: (!ids.is_empty()).then_some(ids),
        paths: selected.into_keys().collect(),
        pods: pods.into_iter().collect(),
        nameless,
    })
}

fn in_words(selected: &BTreeMap<CgroupPath, String>) -> String {
    if selected.is_empty() {
        return "the whole node".to_owned();
    }
    let named: Vec<&str> = selected
        .values()
        .take(NAMED_MAX)
        .map(String::as_str)
        .collect();
    let more = selected.len() - named.len();
    if more == 0 {
        named.join(", ")
    } else {
        format!("{} and {more} more", named.join(", "))
    }
}

/// `namespace/name` by UID, and why there are none.
fn names(args: &TraceArgs) -> Result<(BTreeMap<PodUid, String>, Option<String>), TraceError> {
    if !args.files.is_empty() {
        let (manifests, errors) = gather(&args.files, io::stdin());
        if !errors.is_empty() {
            let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
            return Err(TraceError::Manifests(lines.join("\n")));
        }
        let pods = manifests.into_iter().map(|manifest| {
            let name = format!(
                "{}/{}",
                manifest.pod.namespace(),
                manifest.pod.metadata.name
            );
            (manifest.pod.uid(), name)
        });
        return Ok((pods.collect(), None));
    }
    let socket = args.agent.socket();
    match ask(&socket, &Request::ExplainOom { pod: None }) {
        Ok(Answer::Oom(answer)) => {
            let pods = answer
                .containers
                .into_iter()
                .map(|container| (container.uid, container.pod));
            Ok((pods.collect(), None))
        }
        // An agent gives the answer that was asked for.
        Ok(_) => Ok((BTreeMap::new(), None)),
        Err(error) => Ok((BTreeMap::new(), Some(error.to_string()))),
    }
}

/// A pod by `namespace/name`, by a name that only one has, or by its UID.
fn find_pod(
    wanted: &str,
    pods: &BTreeMap<PodUid, String>,
    mounts: &CgroupMounts,
    root: &CgroupPath,
    nameless: Option<&str>,
) -> Result<(PodUid, String), TraceError> {
    let uid = PodUid::from(wanted);
    if !wanted.contains('/') && pods::cgroup::find(mounts, root, &uid).is_some() {
        let name = pods.get(&uid).cloned();
        return Ok((uid, name.unwrap_or_else(|| format!("pod {wanted}"))));
    }
    let is_meant = |name: &str| {
        name == wanted
            || name
                .split_once('/')
                .is_some_and(|(_, short)| short == wanted)
    };
    let mut found = pods.iter().filter(|(_, name)| is_meant(name));
    match (found.next(), found.next()) {
        (Some((uid, name)), None) => Ok((uid.clone(), name.clone())),
        (Some((_, one)), Some((_, other))) => Err(TraceError::AmbiguousPod {
            pod: wanted.to_owned(),
            one: one.clone(),
            other: other.clone(),
        }),
        (None, _) => Err(match nameless {
            Some(why) => TraceError::NoNames {
                pod: wanted.to_owned(),
                why: why.to_owned(),
            },
            None => TraceError::UnknownPod {
                pod: wanted.to_owned(),
                near: suggestion(near(wanted, pods.values().map(String::as_str))),
            },
        }),
    }
}

/// A path from the root of the hierarchies; one below a mount point is taken as what it is there.
fn relative(wanted: &Path, mounts: &CgroupMounts) -> Result<CgroupPath, TraceError> {
    let below = mounts
        .hierarchies()
        .iter()
        .filter_map(|hierarchy| wanted.strip_prefix(&hierarchy.mount).ok())
        // v1's own mount points are below that of all.
        .min_by_key(|path| path.components().count());
    let path = below.unwrap_or(wanted);
    Ok(CgroupPath::new(&path.to_string_lossy())?)
}

/// Cgroups whose name is like that of the first that is missing on the way.
fn near_cgroups(hierarchy: &Hierarchy, path: &CgroupPath) -> Vec<String> {
    let Some(missing) = path.lineage().into_iter().find(|path| !hierarchy.has(path)) else {
        return Vec::new();
    };
    let parent = missing.as_path().parent().unwrap_or(Path::new(""));
    let Ok(entries) = std::fs::read_dir(hierarchy.mount.join(parent)) else {
        return Vec::new();
    };
    let names: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| Path::new("/").join(parent).join(entry.file_name()))
        .collect();
    near(
        &missing.to_string(),
        names.iter().filter_map(|name| name.to_str()),
    )
}

/// The names that are most like `wanted`, best first: by their last part, and among those by the rest.
fn near<'names>(wanted: &str, names: impl Iterator<Item = &'names str>) -> Vec<String> {
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let mut likely: Vec<(f64, &str)> = names
        .map(|name| (strsim::jaro_winkler(&last(wanted), &last(name)), name))
        .filter(|(likeness, _)| *likeness >= NEAR)
        .map(|(likeness, name)| (likeness + strsim::jaro_winkler(wanted, name), name))
        .collect();
    likely.sort_by(|(left, a), (right, b)| right.total_cmp(left).then_with(|| a.cmp(b)));
    likely
        .into_iter()
        .take(NEAR_MAX)
        .map(|(_, name)| name.to_owned())
        .collect()
}

fn suggestion(near: Vec<String>) -> String {
    if near.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", near.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_like_it_are_suggested_best_first() {
        let names = [
            "default/web",
            "default/wed",
            "kube-system/web",
            "x/database",
        ];
        assert_eq!(
            near("default/wep", names.into_iter()),
            ["default/web", "default/wed", "kube-system/web"]
        );
        assert!(near("zzz", names.into_iter()).is_empty());
        assert_eq!(suggestion(Vec::new()), "");
        assert_eq!(
            suggestion(vec!["a".into(), "b".into()]),
            "; did you mean a, b?"
        );
    }
}
