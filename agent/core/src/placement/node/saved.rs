//! Going on from what was saved: what may be kept is kept, and what cannot be is noted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{NodePlacement, PlacementError, PlacementSettings, Round};
use crate::kube::pod_uid::PodUid;
use crate::placement::assignments::Assignments;
use crate::placement::cpu_set::CpuSet;
use crate::placement::cpu_static::{CpuAssignments, CpuState, StaticCpuPolicy};
use crate::placement::device::GivenDevices;
use crate::placement::machine::Machine;
use crate::placement::memory::{self, RestoreError, StaticMemory};

/// Something that could not be kept as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// The pod.
    pub pod: PodUid,
    /// Its container.
    pub container: String,
    /// What it had, and why it no longer has it.
    pub why: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pod {}, container {}: {}",
            self.pod, self.container, self.why
        )
    }
}

/// What it takes to make the same placement again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Saved {
    settings: PlacementSettings,
    machine: Machine,
    assignments: Assignments,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    unserved: BTreeMap<PodUid, String>,
    #[serde(default)]
    round: Round,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    given: Option<Arc<GivenDevices>>,
}

/// Under a policy that places no CPUs.
pub(super) fn drop_cpus(saved: &Assignments, notes: &mut Vec<Note>) {
    for (pod, container, cpus) in exclusive_cpus(saved) {
        notes.push(Note {
            pod: pod.clone(),
            container: container.clone(),
            why: format!("it had CPUs {cpus}, and cpuManagerPolicy is none now: it shares all"),
        });
    }
}

/// The books with everything that may be kept.
pub(super) fn keep_cpus(
    policy: &StaticCpuPolicy,
    saved: &Assignments,
    notes: &mut Vec<Note>,
) -> CpuState {
    let mut assignments = CpuAssignments::new();
    let mut taken = CpuSet::EMPTY;
    let can_be_given = policy.managed() - policy.reserved();
    for (pod, container, cpus) in exclusive_cpus(saved) {
        let of_pod = assignments.get(pod);
        let of_this_pod = of_pod.into_iter().flat_map(BTreeMap::values);
        let of_this_pod = of_this_pod.fold(CpuSet::EMPTY, |all, cpus| all | *cpus);
        let refused = cpus - can_be_given;
        let others = cpus & (taken - of_this_pod);
        let why = if cpus.is_empty() {
            "it is said to have CPUs of its own and has none".to_owned()
        } else if !refused.is_empty() {
            format!(
                "it had CPUs {cpus}, of which {refused} are offline, outside of the cpuset of all pods or reserved now: it is placed anew"
            )
        } else if !others.is_empty() {
            format!("it had CPUs {cpus}, of which another pod has {others}: it is placed anew")
        } else if (policy.managed() - taken - cpus).is_empty() {
            format!("it had CPUs {cpus}, and no other container would have any: it is placed anew")
        } else {
            taken |= cpus;
            let of_pod = assignments.entry(pod.clone()).or_default();
            of_pod.insert(container.clone(), cpus);
            continue;
        };
        notes.push(Note {
            pod: pod.clone(),
            container: container.clone(),
            why,
        });
    }
    CpuState {
        shared: policy.managed() - taken,
        assignments,
    }
}

fn exclusive_cpus(saved: &Assignments) -> impl Iterator<Item = (&PodUid, &String, CpuSet)> {
    saved.containers.iter().flat_map(|(pod, containers)| {
        let with_cpus = containers.iter();
        with_cpus
            .filter_map(move |(container, assignment)| Some((pod, container, assignment.cpus?)))
    })
}

/// The books with every block that fits.
pub(super) fn keep_memory(
    empty: StaticMemory,
    saved: &Assignments,
    notes: &mut Vec<Note>,
) -> StaticMemory {
    let mut kept = memory::Assignments::new();
    for (pod, containers) in &saved.containers {
        for (container, assignment) in containers {
            if !assignment.memory.is_empty() {
                let of_pod = kept.entry(pod.clone()).or_default();
                of_pod.insert(container.clone(), assignment.memory.clone());
            }
        }
    }
    // Each round leaves out the one that does not fit.
    loop {
        let error = match empty.restored(&kept) {
            Ok(memory) => return memory,
            Err(error) => error,
        };
        let (RestoreError::UnknownNodes { pod, container, .. }
        | RestoreError::TooLittle { pod, container, .. }) = &error;
        notes.push(Note {
            pod: pod.clone(),
            container: container.clone(),
            why: error.to_string(),
        });
        let Some(of_pod) = kept.get_mut(pod) else {
            return empty;
        };
        of_pod.remove(container);
        if of_pod.is_empty() {
            kept.remove(pod);
        }
    }
}

impl From<NodePlacement> for Saved {
    fn from(placement: NodePlacement) -> Self {
        Self {
            assignments: placement.assignments(),
            unserved: placement.unserved,
            round: placement.round,
            given: placement.given,
            settings: placement.settings,
            machine: placement.machine,
        }
    }
}

impl TryFrom<Saved> for NodePlacement {
    type Error = PlacementError;

    fn try_from(saved: Saved) -> Result<Self, PlacementError> {
        let (mut placement, _) = Self::start(saved.settings, saved.machine, &saved.assignments)?;
        placement.refused = saved.assignments.refused;
        placement.unserved = saved.unserved;
        placement.round = saved.round;
        placement.given = saved.given;
        Ok(placement)
    }
}

/// What a restart would make of them.
impl PartialEq for NodePlacement {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
            && self.machine == other.machine
            && self.assignments() == other.assignments()
    }
}
