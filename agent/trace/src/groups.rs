//! Which cgroup a sample or record is of, and what people call it.
//!
//! Problem: the kernel tells ids, which on cgroup v1 are others for memory than for CPU time. Approach: one path
//! ([`plimsoll::host::cgroup_paths`]) is one [`Group`], whichever hierarchy it was seen in. Pods are recognised by the
//! kubepods tree ([`plimsoll::pods::cgroup`]).

use std::collections::HashMap;
use std::path::Path;

use plimsoll_core::kube::pod_uid::PodUid;

use plimsoll::host::HostRoot;
use plimsoll::host::cgroup::{CgroupError, CgroupMounts, CgroupPath};
use plimsoll::host::cgroup_paths::{CgroupPaths, Ids};

/// Cgroups of which something is kept.
const GROUPS_MAX: usize = 65_536;

/// Those beyond are one.
const OTHERS: &str = "other cgroups";

/// What the whole node's records are about.
const NODE: &str = "node";

/// An index of [`Groups`].
pub(super) type GroupIndex = u32;

/// A cgroup, or the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Path from the root of its hierarchy, or [`NODE`].
    pub(super) path: String,
    /// `namespace/name` of its pod, or the pod's UID where nobody knows its name.
    pub(super) pod: Option<String>,
    /// What is below the pod's cgroup: the container.
    pub(super) container: Option<String>,
}

impl Group {
    /// One line for people.
    pub(super) fn label(&self) -> String {
        match (&self.pod, &self.container) {
            (Some(pod), Some(container)) => format!("{pod}/{container}"),
            (Some(pod), None) => pod.clone(),
            _ => self.path.clone(),
        }
    }
}

/// Every cgroup that something was seen of.
#[derive(Debug)]
pub(super) struct Groups {
    /// Where the kubepods tree is.
    kubepods: String,
    pods: HashMap<PodUid, String>,
    paths: CgroupPaths,
    /// By whose ids they are: of memory, of CPU time.
    of_memory: HashMap<u64, GroupIndex>,
    of_cpu: HashMap<u64, GroupIndex>,
    groups: Vec<Group>,
    by_path: HashMap<String, GroupIndex>,
    /// Paths of the selected cgroups; empty: everything.
    selected: Vec<String>,
}

impl Groups {
    /// Reads which cgroups there are. `pods`: `namespace/name` by UID.
    pub(super) fn read(
        host: &HostRoot,
        mounts: &CgroupMounts,
        kubepods: &CgroupPath,
        pods: HashMap<PodUid, String>,
        selected: &[CgroupPath],
    ) -> Result<Self, CgroupError> {
        Ok(Self {
            kubepods: kubepods.to_string(),
            pods,
            paths: CgroupPaths::read(host, mounts)?,
            of_memory: HashMap::new(),
            of_cpu: HashMap::new(),
            groups: Vec::new(),
            by_path: HashMap::new(),
            selected: selected.iter().map(ToString::to_string).collect(),
        })
    }

    /// A cgroup that was made just now.
    pub(super) fn made(&mut self, hierarchy_number: u32, id: u64, path: &[u8]) {
        if self.paths.made(hierarchy_number, id, path) {
            // Ids are not used again, but what was unknown under this one is not any more.
            for ids in [Ids::Memory, Ids::Cpu] {
                if self.paths.number(ids) == hierarchy_number {
                    self.known(ids).remove(&id);
                }
            }
        }
    }

    fn known(&mut self, ids: Ids) -> &mut HashMap<u64, GroupIndex> {
        match ids {
            Ids::Cpu => &mut self.of_cpu,
            _ => &mut self.of_memory,
        }
    }

    /// The group of an id; one that nobody knows is named by it.
    pub(super) fn of(&mut self, ids: Ids, id: u64) -> GroupIndex {
        let known = self.known(ids);
        if let Some(index) = known.get(&id) {
            return *index;
        }
        let is_full = known.len() >= GROUPS_MAX;
        let path = self.paths.of(ids, id).map(str::to_owned);
        let index = self.named(path.unwrap_or_else(|| format!("cgroup {id}")));
        if !is_full {
            self.known(ids).insert(id, index);
        }
        index
    }

    /// The node itself.
    pub(super) fn node(&mut self) -> GroupIndex {
        self.named(NODE.to_owned())
    }

    fn named(&mut self, path: String) -> GroupIndex {
        if let Some(index) = self.by_path.get(&path) {
            return *index;
        }
        let path = if self.groups.len() < GROUPS_MAX {
            path
        } else if let Some(index) = self.by_path.get(OTHERS) {
            return *index;
        } else {
            OTHERS.to_owned()
        };
        let index = GroupIndex::try_from(self.groups.len()).unwrap_or(GroupIndex::MAX);
        let (pod, container) = self.pod_of(&path);
        self.groups.push(Group {
            path: path.clone(),
            pod,
            container,
        });
        self.by_path.insert(path, index);
        index
    }

    /// All, by their index.
    pub(super) fn all(&self) -> &[Group] {
        &self.groups
    }

    /// Whether what concerns this group is to be kept.
    pub(super) fn is_selected(&self, index: GroupIndex) -> bool {
        let Some(group) = self.groups.get(index as usize) else {
            return false;
        };
        self.selected.is_empty()
            || group.path == NODE
            || self
                .selected
                .iter()
                .any(|selected| Path::new(&group.path).starts_with(selected))
    }

    fn pod_of(&self, path: &str) -> (Option<String>, Option<String>) {
        let below = path
            .strip_prefix(&self.kubepods)
            .and_then(|rest| rest.strip_prefix('/'));
        let Some(below) = below else {
            return (None, None);
        };
        let below = ["burstable/", "besteffort/"]
            .into_iter()
            .find_map(|tier| below.strip_prefix(tier))
            .unwrap_or(below);
        let (pod, container) = below
            .split_once('/')
            .map_or((below, None), |(pod, container)| (pod, Some(container)));
        let Some(uid) = pod.strip_prefix("pod").filter(|uid| !uid.is_empty()) else {
            return (None, None);
        };
        let name = self.pods.get(&PodUid::from(uid));
        let name = name.map_or_else(|| format!("pod {uid}"), Clone::clone);
        (Some(name), container.map(str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(paths: &[(u64, &str)], selected: &[&str]) -> Groups {
        let of_memory = paths.iter().map(|(id, path)| (4, *id, *path));
        let all: Vec<_> = of_memory
            .chain([(2, 9, "/kubepods/burstable/podu1/app")])
            .collect();
        Groups {
            kubepods: "/kubepods".to_owned(),
            pods: HashMap::from([(PodUid::from("u1"), "default/web".to_owned())]),
            paths: CgroupPaths::known(4, 2, &all),
            of_memory: HashMap::new(),
            of_cpu: HashMap::new(),
            groups: Vec::new(),
            by_path: HashMap::new(),
            selected: selected.iter().map(|path| (*path).to_owned()).collect(),
        }
    }

    #[test]
    fn one_path_is_one_group_in_both_hierarchies() {
        let mut groups = groups(&[(7, "/kubepods/burstable/podu1/app"), (9, "/other")], &[]);
        let of_memory = groups.of(Ids::Memory, 7);
        assert_eq!(groups.of(Ids::Cpu, 9), of_memory);
        assert_ne!(groups.of(Ids::Memory, 9), of_memory);
        assert_eq!(groups.all()[of_memory as usize].label(), "default/web/app");
    }

    #[test]
    fn pods_are_recognised_in_every_tier_and_nothing_else_is_a_pod() {
        let mut groups = groups(
            &[
                (1, "/kubepods/podu2"),
                (2, "/kubepods/besteffort/podu1"),
                (3, "/kubepods/burstable"),
                (4, "/system/podu1"),
            ],
            &[],
        );
        let labels: Vec<_> = (1..=5)
            .map(|id| {
                let index = groups.of(Ids::Memory, id);
                groups.all()[index as usize].label()
            })
            .collect();
        assert_eq!(
            labels,
            [
                "pod u2",
                "default/web",
                "/kubepods/burstable",
                "/system/podu1",
                "cgroup 5"
            ]
        );
    }

    #[test]
    fn later_cgroups_get_their_name_in_their_hierarchy_only() {
        let mut groups = groups(&[], &[]);
        let unknown = groups.of(Ids::Memory, 5);
        groups.made(2, 5, b"/cpu-only");
        assert_eq!(groups.of(Ids::Memory, 5), unknown);
        groups.made(4, 5, b"/new");
        let known = groups.of(Ids::Memory, 5);
        assert_eq!(groups.all()[known as usize].path, "/new");
    }

    #[test]
    fn a_selection_is_a_cgroup_and_what_is_below_it() {
        let mut groups = groups(&[(1, "/a"), (2, "/a/b"), (3, "/ab")], &["/a"]);
        let selected: Vec<_> = (1..=3)
            .map(|id| {
                let index = groups.of(Ids::Memory, id);
                groups.is_selected(index)
            })
            .collect();
        assert_eq!(selected, [true, true, false]);
        let node = groups.node();
        assert!(groups.is_selected(node));
    }
}
