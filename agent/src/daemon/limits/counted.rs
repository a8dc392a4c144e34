//! Which cgroups the BPF programs count for: each pod's and some of its containers', so that no pod takes another's
//! room in their maps.
//!
//! What happens in any other cgroup of a pod is in the counts of the container that it is in, or of the pod.

use plimsoll_abi::COUNTED_MAX;

use super::Limits;
use crate::kernel::Counted;

/// Containers of one pod that are counted by themselves. Those beyond are in the pod's own counts, where nothing is
/// lost but whether the pod's CPU limit or the container's has throttled it.
const CONTAINERS_MAX: usize = 16;

impl Limits {
    /// As of the last [`Limits::end_following`]. If there are too many, every pod's own cgroup comes before any
    /// container, and what came first stays: a pod that makes new cgroups does not push others out.
    pub fn counted(&self) -> Counted {
        let mut ranked = Vec::new();
        for pod in self.pods.values() {
            let those = |is_wanted: fn(&super::Watched) -> bool| {
                let cgroups = pod.cgroups.iter();
                cgroups.filter(move |(_, watched)| is_wanted(watched) && !watched.is_gone)
            };
            let of_pod = those(|watched| watched.is_pod_cgroup);
            let containers = those(|watched| watched.is_container).take(CONTAINERS_MAX);
            let both = of_pod.chain(containers).enumerate();
            ranked.extend(both.map(|(rank, (id, watched))| (rank, *id, watched.cpu_id)));
        }
        // Ids only grow.
        ranked.sort_unstable();
        ranked.truncate(COUNTED_MAX as usize);
        Counted {
            memory: ranked.iter().map(|(_, id, _)| *id).collect(),
            cpu: ranked.iter().filter_map(|(.., cpu_id)| *cpu_id).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::PathBuf;

    use super::super::tests::{KERNEL, Node, v1, v2};
    use super::*;

    fn ids<'a>(
        node: &Node,
        hierarchy: &str,
        cgroups: impl IntoIterator<Item = &'a str>,
    ) -> BTreeSet<u64> {
        let id = |cgroup| node.dir(hierarchy, cgroup).metadata().unwrap().ino();
        cgroups.into_iter().map(id).collect()
    }

    #[test]
    fn pods_and_their_containers_are_counted_and_nothing_below() {
        let mut node = v1(KERNEL);
        node.apply("a");
        for cgroup in ["poda", "poda/c", "poda/c/nested", "poda/c/nested/more"] {
            node.memory_v1(cgroup, 0, 0);
            node.cpu("cpu", cgroup, "");
        }
        node.turn();
        let counted = Counted {
            memory: ids(&node, "memory", ["poda", "poda/c"]),
            cpu: ids(&node, "cpu", ["poda", "poda/c"]),
        };
        assert_eq!(node.limits.counted(), counted);
    }

    #[test]
    fn a_pod_with_many_cgroups_has_its_share_of_places() {
        let mut node = v2(KERNEL);
        for (uid, containers) in [("a", 2 * CONTAINERS_MAX), ("b", 2)] {
            node.apply(uid);
            node.memory_v2(&format!("pod{uid}"), 0, 0, 0, 0);
            for index in 0..containers {
                node.memory_v2(&format!("pod{uid}/c{index}"), 0, 0, 0, 0);
            }
        }
        // Ids of cgroups only grow, the inode numbers of the directories that stand for them here do not: the one with
        // the highest is the one made last.
        let id = |path: &PathBuf| path.metadata().unwrap().ino();
        let containers =
            (0..2 * CONTAINERS_MAX).map(|index| node.dir("", &format!("poda/c{index}")));
        let last = containers.max_by_key(id).unwrap();
        let aside = node.dir("", "aside");
        fs::rename(&last, &aside).unwrap();
        node.turn();
        let before = node.limits.counted();
        assert_eq!(before.memory.len(), 1 + CONTAINERS_MAX + 1 + 2);
        let others = ids(&node, "", ["poda", "podb", "podb/c0", "podb/c1"]);
        assert!(before.memory.is_superset(&others));
        fs::rename(&aside, &last).unwrap();
        node.turn();
        assert_eq!(node.limits.counted().memory, before.memory);
    }

    #[test]
    fn every_pod_has_a_place_before_any_container_of_another() {
        let mut node = v2(KERNEL);
        let pods: Vec<String> = (0..300).map(|index| format!("p{index}")).collect();
        for uid in &pods {
            node.apply(uid);
            for cgroup in ["", "/a", "/b", "/c"] {
                node.memory_v2(&format!("pod{uid}{cgroup}"), 0, 0, 0, 0);
            }
        }
        node.turn();
        let counted = node.limits.counted();
        assert_eq!(counted.memory.len(), COUNTED_MAX as usize);
        let names: Vec<String> = pods.iter().map(|uid| format!("pod{uid}")).collect();
        let of_pods = ids(&node, "", names.iter().map(String::as_str));
        assert!(counted.memory.is_superset(&of_pods));
    }
}
