//! What survives a restart, and whether it can be trusted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{StaticCpuPolicy, StaticCpus};
use crate::kube::pod_uid::PodUid;
use crate::placement::cpu_set::CpuSet;

/// Exclusive CPUs by pod and container. Containers that share are not in it.
pub type CpuAssignments = BTreeMap<PodUid, BTreeMap<String, CpuSet>>;

/// The books: what `cpu_manager_state` of the kubelet holds as `defaultCpuSet` and `entries`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuState {
    /// The shared pool. Empty, with no assignments: nothing is known yet.
    pub shared: CpuSet,
    /// The CPUs of each container.
    pub assignments: CpuAssignments,
}

/// Why saved books cannot be used (`validateState`, 1.36).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuStateError {
    /// Assignments, and no shared pool.
    #[error(
        "there are exclusive CPUs, but no shared pool: the state is damaged; set it aside and place the pods anew"
    )]
    SharedPoolEmpty,
    /// Reserved CPUs were given away: the reservation has grown since.
    #[error(
        "reserved CPUs {missing} are not in the shared pool ({shared}): more is reserved than when the state was written; place the \
         pods anew, or reserve what was reserved"
    )]
    ReservedMissing {
        /// Those CPUs.
        missing: Box<CpuSet>,
        /// The shared pool.
        shared: Box<CpuSet>,
    },
    /// Strictly reserved CPUs are shared.
    #[error(
        "strictly reserved CPUs {present} are in the shared pool ({shared}): strict-cpu-reservation or the reserved CPUs have changed \
         since the state was written; place the pods anew, or go back"
    )]
    ReservedPresent {
        /// Those CPUs.
        present: Box<CpuSet>,
        /// The shared pool.
        shared: Box<CpuSet>,
    },
    /// Exclusive CPUs are shared.
    #[error(
        "pod {pod}, container {container}: its CPUs {cpus} are in the shared pool too: the state is damaged; set it aside and place the \
         pods anew"
    )]
    Shared {
        /// The pod.
        pod: PodUid,
        /// Its container.
        container: String,
        /// The CPUs that are both.
        cpus: Box<CpuSet>,
    },
    /// Two pods have the same CPU. The kubelet does not look at this.
    #[error(
        "pods {first} and {second} both have CPUs {cpus}: the state is damaged; set it aside and place the pods anew"
    )]
    AssignedTwice {
        /// One pod.
        first: PodUid,
        /// The other.
        second: PodUid,
        /// The CPUs of both.
        cpus: Box<CpuSet>,
    },
    /// The machine has changed, or the state is of another.
    #[error(
        "the state is about CPUs {known}, and the machine has {online}: CPUs {differing} were added or taken away since; place the pods anew",
        differing = (**.known - **.online) | (**.online - **.known)
    )]
    CpusMismatch {
        /// Shared and exclusive CPUs of the state.
        known: Box<CpuSet>,
        /// Those that the policy manages.
        online: Box<CpuSet>,
    },
}

impl StaticCpuPolicy {
    /// Goes on where the books end; with empty ones everything is shared.
    ///
    /// # Errors
    ///
    /// If the books contradict themselves, the policy or the machine.
    pub fn start(&self, saved: CpuState) -> Result<StaticCpus, CpuStateError> {
        let managed = self.managed();
        let state = if saved.shared.is_empty() && saved.assignments.is_empty() {
            CpuState {
                shared: managed,
                ..saved
            }
        } else {
            self.validate(&saved, managed)?;
            saved
        };
        Ok(StaticCpus {
            policy: self.clone(),
            state,
            reusable: None,
        })
    }

    fn validate(&self, saved: &CpuState, managed: CpuSet) -> Result<(), CpuStateError> {
        let shared = saved.shared;
        if shared.is_empty() {
            return Err(CpuStateError::SharedPoolEmpty);
        }
        let reserved = self.reserved();
        if self.options().strict_reservation && !reserved.is_disjoint(&shared) {
            return Err(CpuStateError::ReservedPresent {
                present: Box::new(reserved & shared),
                shared: Box::new(shared),
            });
        }
        if !self.options().strict_reservation && !reserved.is_subset(&shared) {
            return Err(CpuStateError::ReservedMissing {
                missing: Box::new(reserved - shared),
                shared: Box::new(shared),
            });
        }
        let mut known = shared;
        let mut owners: Vec<(&PodUid, CpuSet)> = Vec::with_capacity(saved.assignments.len());
        for (pod, containers) in &saved.assignments {
            let mut of_pod = CpuSet::EMPTY;
            for (container, cpus) in containers {
                if !cpus.is_disjoint(&shared) {
                    return Err(CpuStateError::Shared {
                        pod: pod.clone(),
                        container: container.clone(),
                        cpus: Box::new(*cpus & shared),
                    });
                }
                of_pod |= *cpus;
            }
            if let Some((first, cpus)) = owners.iter().find(|(_, cpus)| !cpus.is_disjoint(&of_pod))
            {
                return Err(CpuStateError::AssignedTwice {
                    first: (*first).clone(),
                    second: pod.clone(),
                    cpus: Box::new(*cpus & of_pod),
                });
            }
            owners.push((pod, of_pod));
            known |= of_pod;
        }
        if known != managed {
            return Err(CpuStateError::CpusMismatch {
                known: Box::new(known),
                online: Box::new(managed),
            });
        }
        Ok(())
    }
}
