//! Pods as the kubelet's tree of cgroups has them, whether or not the API server has named them.

use std::sync::Arc;

use plimsoll_core::kube::pod::{Pod, SYSTEM_CRITICAL_PRIORITY};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::policy::oom::score::GUARANTEED_ADJ;

use super::{NAMES_WITHIN_NS, PODS_MAX};
use crate::daemon::{Agent, now_ns};
use crate::pods::names::PodCgroup;

impl Agent {
    /// Whether the API server has named the pods that are there, or has had its time.
    pub(super) fn has_names(&self) -> bool {
        now_ns() >= self.listed_by_ns(NAMES_WITHIN_NS)
    }

    /// Takes in the pods that have come to the kubelet's tree, and forgets those of no name that have gone.
    pub(in crate::daemon) fn follow_kubelet_tree(&mut self) {
        if self.kubelet.is_none() {
            return;
        }
        let has_names = self.has_names();
        let found = match self.pods.in_kubelet_tree() {
            Ok(found) => found,
            Err(error) => return self.warn(format!("the kubelet's pods: {error}")),
        };
        let is_gone = |pod: &&Arc<Pod>| {
            let uid = pod.uid();
            pod.is_unnamed() && found.binary_search_by(|one| one.uid.cmp(&uid)).is_err()
        };
        let gone: Vec<PodUid> = self
            .pods
            .iter()
            .filter(is_gone)
            .map(|pod| pod.uid())
            .collect();
        for uid in gone {
            self.forget_pod(&uid);
        }
        let mut refused = 0;
        for pod in found {
            if self.pods.contains(&pod.uid) {
                continue;
            }
            if self.pods.len() >= PODS_MAX {
                refused += 1;
                continue;
            }
            if !has_names && !pod.uid.is_static() {
                continue;
            }
            self.apply_unnamed(pod);
        }
        if refused > 0
            && self
                .kubelet
                .as_mut()
                .is_some_and(|work| !std::mem::replace(&mut work.is_tree_said, true))
        {
            self.warn(format!(
                "{refused} pods are not watched: the limit is {PODS_MAX} pods (reported once)"
            ));
        }
        self.make_room();
        self.tally.pods_watched |= has_names;
    }

    /// A pod that the API server has not named: critical where it said so before this agent started, or where the
    /// kubelet has treated it so.
    fn apply_unnamed(&mut self, cgroup: PodCgroup) {
        let PodCgroup { uid, class, .. } = cgroup;
        let unnamed = Pod::unnamed(uid.clone(), class);
        let mut critical = unnamed.clone();
        critical.spec.priority = Some(SYSTEM_CRITICAL_PRIORITY);
        let work = self.kubelet.as_ref();
        if work.is_some_and(|work| work.critical.contains(&uid)) {
            return self.apply(Arc::new(critical), "");
        }
        self.apply(Arc::new(unnamed), "");
        // The kubelet gives it to Guaranteed pods, and to those of the class system-node-critical
        // (`GetContainerOOMScoreAdjust`). A process needs CAP_SYS_RESOURCE to lower its own.
        let is_node_critical =
            class != QosClass::Guaranteed && self.pods.has_oom_score_adj(&uid, GUARANTEED_ADJ);
        if is_node_critical {
            self.apply(Arc::new(critical), "");
        }
    }

    /// A pod is in no list any more.
    pub(super) fn forget_pod(&mut self, uid: &PodUid) {
        self.remove_pod(uid);
        self.keep_hold(uid);
    }
}
