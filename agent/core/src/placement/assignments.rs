//! Assignments: the exclusive CPUs and the NUMA nodes of each container, and the shared pool.
//!
//! One value for every reader: the engine decides it, the agent keeps it in a checkpoint across restarts and writes it
//! to cgroups, `plimsoll exec` reads it before it starts a container, `plimsoll topology` draws it. It is the
//! counterpart of the kubelet's `cpu_manager_state` and `memory_manager_state`
//! (pkg/kubelet/cm/{cpumanager,memorymanager}/state, 1.36).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kube::pod_uid::PodUid;
use crate::placement::cpu_set::CpuSet;
use crate::placement::cpuset_order::Cpus;
use crate::placement::device::Held;
use crate::placement::memory::Blocks;
use crate::placement::numa_mask::NumaMask;

/// What one container holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Assignment {
    /// CPUs that are its own. `None`: it runs in the shared pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// What its memory and huge pages are, and on which NUMA nodes. Empty: any.
    #[serde(default, skip_serializing_if = "Blocks::is_empty")]
    pub memory: Blocks,
    /// Its devices.
    #[serde(default, skip_serializing_if = "Held::is_empty")]
    pub devices: Held,
}

/// What all containers hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Assignments {
    /// The CPUs of containers without exclusive CPUs. Never empty.
    pub shared_pool: CpuSet,
    /// By pod and container. A container that is not here runs in the shared pool, with memory from any node.
    pub containers: BTreeMap<PodUid, BTreeMap<String, Assignment>>,
    /// Pods that could not be placed, and why: they must not be started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<PodUid, String>,
}

impl Assignments {
    /// What a container holds, if it holds anything.
    #[must_use]
    pub fn get(&self, pod: &PodUid, container: &str) -> Option<&Assignment> {
        self.containers.get(pod)?.get(container)
    }

    /// Where a container is to run.
    #[must_use]
    pub fn cpus(&self, pod: &PodUid, container: &str) -> Cpus {
        let exclusive = self
            .get(pod, container)
            .and_then(|assignment| assignment.cpus);
        Cpus {
            cpus: exclusive.unwrap_or(self.shared_pool),
            exclusive: exclusive.is_some(),
        }
    }

    /// Where its memory is to come from; `None` for any node.
    #[must_use]
    pub fn nodes(&self, pod: &PodUid, container: &str) -> Option<NumaMask> {
        let blocks = self.get(pod, container)?.memory.iter();
        blocks
            .map(|block| block.nodes)
            .reduce(|all, nodes| all | nodes)
    }

    /// All exclusive CPUs.
    #[must_use]
    pub fn exclusive(&self) -> CpuSet {
        let containers = self.containers.values().flat_map(BTreeMap::values);
        let exclusive = containers.filter_map(|assignment| assignment.cpus);
        exclusive.fold(CpuSet::EMPTY, |all, cpus| all | cpus)
    }
}

/// In a line.
impl fmt::Display for Assignments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shared pool {}", self.shared_pool)?;
        for (pod, containers) in &self.containers {
            for (container, assignment) in containers {
                let nodes = self.nodes(pod, container);
                match (assignment.cpus, nodes) {
                    (None, None) => continue,
                    (Some(cpus), None) => write!(f, "; {pod}/{container} CPUs {cpus}")?,
                    (None, Some(nodes)) => {
                        write!(f, "; {pod}/{container} memory of NUMA nodes {nodes}")?
                    }
                    (Some(cpus), Some(nodes)) => {
                        write!(
                            f,
                            "; {pod}/{container} CPUs {cpus}, memory of NUMA nodes {nodes}"
                        )?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::memory::Block;

    #[test]
    fn a_checkpoint_reads_as_it_was_written() {
        let assignment = Assignment {
            cpus: Some(CpuSet::parse("2-3").unwrap()),
            memory: vec![Block {
                nodes: NumaMask::of(1),
                resource: "memory".into(),
                bytes: 1 << 30,
            }],
            devices: BTreeMap::from([("vendor.example/nic".into(), ["nic0".into()].into())]),
        };
        let assignments = Assignments {
            shared_pool: CpuSet::parse("0-1,4-7").unwrap(),
            containers: BTreeMap::from([(
                "web".into(),
                BTreeMap::from([("main".into(), assignment)]),
            )]),
            refused: BTreeMap::new(),
        };
        let text = serde_json::to_string(&assignments).unwrap();
        assert_eq!(
            text,
            r#"{"sharedPool":"0-1,4-7","containers":{"web":{"main":{"cpus":"2-3","memory":[{"nodes":"1","resource":"memory","bytes":1073741824}],"devices":{"vendor.example/nic":["nic0"]}}}}}"#
        );
        assert_eq!(
            serde_json::from_str::<Assignments>(&text).unwrap(),
            assignments
        );
        let (web, other) = ("web".into(), "other".into());
        assert!(assignments.cpus(&web, "main").exclusive);
        assert_eq!(
            assignments.cpus(&other, "main").cpus,
            assignments.shared_pool
        );
        assert_eq!(assignments.exclusive().to_string(), "2-3");
    }
}
