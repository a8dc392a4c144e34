//! What this agent has placed itself, beside a kubelet that places nothing.
//!
//! **Problem.** Such a kubelet says that it has given nothing away, and that it may give nothing: by its word every CPU
//! and all memory are available, the reserved ones and those of other containers too. **Approach.** What the agent's
//! books say is put in the place of what the kubelet would say ([`AgentPlacement::over`]), and counted by the same
//! rules. Devices stay the kubelet's. A kubelet with a static policy places, and the agent does not: then its word
//! counts alone.

use serde::{Deserialize, Serialize};

use super::{Managed, Survey, SurveyError, survey_of};
use crate::kube::node_resource_topology::Alignment;
use crate::kube::pod_uid::PodUid;
use crate::placement::assignments::Assignment;
use crate::placement::cpu_set::CpuSet;
use crate::placement::machine::Machine;
use crate::placement::node::{CpuManagerPolicy, NodePlacement};
use crate::protocol::pod_resources::{Given, Memory, NodeResources};

/// What the agent may give to containers, and what it has given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentPlacement {
    /// How it aligns pods; `None`: it aligns none.
    alignment: Option<Alignment>,
    /// CPUs; `None`: it gives none.
    cpus: Option<OwnCpus>,
    /// Memory of each node that containers may have; `None`: it gives none.
    memory: Option<Vec<Memory>>,
    /// What containers have, `namespace/pod/container`; of a pod that the API has not named yet, `UID/container`.
    given: Vec<Given>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OwnCpus {
    /// All that are not reserved.
    allocatable: CpuSet,
    /// How many of those in the shared pool may be given until it has as few as it may have.
    spare: u64,
}

impl AgentPlacement {
    /// Of these books. `name`: of a pod, `namespace/name`, where the API has named it.
    #[must_use]
    pub fn of(placement: &NodePlacement, name: impl Fn(&PodUid) -> Option<String>) -> Self {
        let settings = placement.settings();
        let gives_cpus = settings.cpu_manager_policy == CpuManagerPolicy::Static;
        let cpus = gives_cpus.then(|| OwnCpus {
            allocatable: placement.machine().online() - placement.reserved_cpus(),
            spare: placement.spare_cpus().into(),
        });
        let memory = placement.memory().map(|memory| {
            let nodes = memory.nodes().iter().flat_map(|(node, books)| {
                let kinds = books.memory.iter();
                kinds.map(|(kind, table)| Memory {
                    kind: kind.clone(),
                    bytes: table.allocatable,
                    numa_nodes: vec![(*node).into()],
                })
            });
            nodes.collect()
        });
        let assignments = placement.assignments();
        let given = assignments.containers.iter().flat_map(|(uid, containers)| {
            let pod = name(uid).unwrap_or_else(|| uid.to_string());
            let containers = containers.iter();
            containers.map(move |(name, assignment)| given(format!("{pod}/{name}"), assignment))
        });
        let policy = settings.topology_manager_policy.clone();
        Self {
            alignment: (policy != "none").then(|| Alignment {
                policy,
                scope: settings.topology_manager_scope.clone(),
            }),
            cpus,
            memory,
            given: given.collect(),
        }
    }

    /// As [`survey`](super::survey), with what the agent has placed where the kubelet places nothing.
    ///
    /// # Errors
    /// [`SurveyError`].
    pub fn survey(
        &self,
        machine: &Machine,
        resources: &NodeResources,
        alignment: Option<Alignment>,
    ) -> Result<Survey, SurveyError> {
        let Some(together) = self.over(resources) else {
            return super::survey(machine, resources, alignment);
        };
        // A kubelet may align devices where the agent aligns nothing.
        let alignment = self.alignment.clone().or(alignment);
        let managed = Managed {
            cpus: self.cpus.as_ref().map(|cpus| cpus.spare),
            memory: self.memory.is_some(),
        };
        survey_of(machine, &together, alignment, managed)
    }

    /// `None` where the kubelet places, or it is not known what it may give.
    fn over(&self, resources: &NodeResources) -> Option<NodeResources> {
        let kubelets = resources.allocatable.as_ref()?;
        if !kubelets.cpus.is_empty() || !kubelets.memory.is_empty() {
            return None;
        }
        let cpus = self.cpus.as_ref();
        let cpus = cpus.map_or(CpuSet::EMPTY, |cpus| cpus.allocatable);
        let allocatable = Given {
            container: String::new(),
            cpus: numbers(cpus),
            memory: self.memory.clone().unwrap_or_default(),
            devices: kubelets.devices.clone(),
        };
        let devices = resources.given.iter().map(|given| Given {
            container: given.container.clone(),
            devices: given.devices.clone(),
            ..Given::default()
        });
        Some(NodeResources {
            allocatable: Some(allocatable),
            given: self.given.iter().cloned().chain(devices).collect(),
            pods: resources.pods.clone(),
        })
    }
}

fn given(container: String, assignment: &Assignment) -> Given {
    let memory = assignment.memory.iter().map(|block| Memory {
        kind: block.resource.clone(),
        bytes: block.bytes,
        numa_nodes: block.nodes.iter().map(i64::from).collect(),
    });
    Given {
        container,
        cpus: numbers(assignment.cpus.unwrap_or(CpuSet::EMPTY)),
        memory: memory.collect(),
        devices: Vec::new(),
    }
}

fn numbers(cpus: CpuSet) -> Vec<i64> {
    cpus.iter().map(i64::from).collect()
}
