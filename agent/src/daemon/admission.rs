//! Admission in the loop: which pods were refused, what quotas have in use, and which removed pods have left.
//!
//! The decision is made where manifests are read ([`crate::input::manifests::admission`]). The loop shows it, and tells
//! that thread when a removed pod has left, so that another can have its room.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_core::kube::admission::standing::{QuotaUse, RefusedPod};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;

use super::Agent;
use super::wake::Sources;
use crate::host::cgroup::{CgroupMounts, CgroupPath};
use crate::input::manifests::LeftPods;
use crate::pods;

/// Refused pods that one decision names.
const SAID_MAX: usize = 16;

/// What the loop knows of admission.
#[derive(Debug, Default)]
pub(super) struct AdmissionWork {
    left_pods: Option<LeftPods>,
    /// Removed pods of which the thread does not know yet that they have left.
    leaving: Vec<PodUid>,
    pub(super) refused: Arc<[RefusedPod]>,
    pub(super) quotas: Arc<[QuotaUse]>,
}

impl Agent {
    pub(super) fn begin_admission(&mut self, sources: &mut Sources) {
        self.admission.left_pods = sources.take_left_pods();
    }

    /// What was decided. A pod that is refused is said once, however its message goes on to change: that has the
    /// quota's use.
    pub(super) fn admission_decided(&mut self, refused: Vec<RefusedPod>, quotas: Vec<QuotaUse>) {
        let said: BTreeSet<&PodUid> = self.admission.refused.iter().map(|pod| &pod.uid).collect();
        let is_new = |pod: &&RefusedPod| !said.contains(&pod.uid);
        let new: Vec<&RefusedPod> = refused.iter().filter(is_new).collect();
        self.tally.admissions[1] += new.len() as u64;
        let mut lines: Vec<String> = new
            .iter()
            .take(SAID_MAX)
            .map(|pod| format!("{}: {}", pod.place, pod.message))
            .collect();
        if new.len() > SAID_MAX {
            let more = new.len() - SAID_MAX;
            lines.push(format!(
                "{more} more pods are refused: `plimsoll top --once` lists them"
            ));
        }
        for line in lines {
            self.warn(line);
        }
        self.admission.refused = refused.into();
        self.admission.quotas = quotas.into();
    }

    /// The thread is to know when this pod has left.
    pub(super) fn follow_departure(&mut self, uid: PodUid) {
        if !self.admission.leaving.contains(&uid) {
            self.admission.leaving.push(uid);
        }
    }

    /// Which pods have left since the last time. One that is wanted again does not leave.
    pub(super) fn report_departures(&mut self) {
        let Some(left_pods) = &self.admission.left_pods else {
            return;
        };
        let pods = &self.pods;
        self.admission
            .leaving
            .retain(|uid| match pods.contains(uid) {
                true => pods.is_removed(uid),
                false => !left_pods.send(uid),
            });
    }
}

/// Whether a pod that follows its manifest has processes. One whose cgroup cannot be read counts as running: nothing
/// that runs is to be refused.
pub(super) fn is_running(mounts: &CgroupMounts, cgroup_root: &CgroupPath, pod: &Pod) -> bool {
    let path = pods::cgroup::pod_path(cgroup_root, pod);
    path.is_ok_and(|path| pods::cgroup::is_populated(mounts, &path).unwrap_or(true))
}
