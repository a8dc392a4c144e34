//! Pods as the kubelet's tree of cgroups has them, whether or not the API server has named them.

use std::sync::Arc;

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::model::units::PodUid;

use super::{NAMES_WITHIN_NS, PODS_MAX};
use crate::daemon::{Agent, now_ns};

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
            let is_static = pod.uid.is_static();
            if !has_names && !is_static {
                continue;
            }
            let unnamed = Pod::unnamed(pod.uid, pod.class, is_static);
            self.apply(Arc::new(unnamed), "");
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
    }

    /// A pod is in no list any more.
    pub(super) fn forget_pod(&mut self, uid: &PodUid) {
        self.remove_pod(uid);
        self.keep_hold(uid);
    }
}
