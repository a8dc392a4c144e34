//! What both policies look at.

use std::collections::BTreeMap;

use crate::kube::pod_uid::PodUid;
use crate::model::state::PodState;
use crate::placement::node::NodePlacement;

/// What both policies look at beside [`CpuState`].
pub(crate) struct CpuContext<'a> {
    /// All pods.
    pub(crate) pods: &'a BTreeMap<PodUid, PodState>,
    pub(super) placement: Option<&'a NodePlacement>,
    /// When the reading was taken, nanoseconds.
    pub(crate) now_ns: u64,
}

impl CpuContext<'_> {
    /// Whether a pod has exclusive CPUs: then no quota applies to it, and pods of the shared pool do not delay it.
    pub(crate) fn has_exclusive_cpus(&self, uid: &PodUid) -> bool {
        self.placement
            .is_some_and(|placement| placement.has_exclusive_cpus(uid))
    }
}
