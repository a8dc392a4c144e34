//! Pods that run, and not in their cgroups: the agent would be well, and could end none of them.
//!
//! So it is where the kubelet names cgroups by another driver than the container runtime makes them (a kubelet with
//! `cgroupDriver: systemd` beside containerd 1 with `SystemdCgroup = false`), and where a sandbox runs all containers.

use plimsoll_core::model::state::PodState;

use crate::daemon::Agent;

/// The API may be ahead of a container that starts, and behind one that has ended.
const UNSEEN_FOR_NS: u64 = 60_000_000_000;

/// Whether it is so, and since when.
#[derive(Debug, Default)]
pub(super) struct UnseenPods {
    since_ns: Option<u64>,
    /// What to say of it.
    pub(super) loss: Option<String>,
}

impl UnseenPods {
    /// `running`: pods of which the API says that a container runs; `seen`: those of them that have a process. Returns
    /// whether there is something else to say than before.
    fn observe(&mut self, running: usize, seen: usize, now_ns: u64) -> bool {
        let had = self.loss.is_some();
        if running == 0 || seen > 0 {
            *self = Self::default();
            return had;
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if had || now_ns.saturating_sub(since_ns) < UNSEEN_FOR_NS {
            return false;
        }
        self.loss = Some(format!(
            "{running} pods run, and none has a process in its cgroup, so none can be evicted: give kubelet and container runtime the same cgroup driver (SystemdCgroup of containerd), or leave out nodes of sandboxed pods"
        ));
        true
    }
}

impl Agent {
    /// Looks for them among the pods as they are known.
    pub(in crate::daemon) fn look_for_unseen_pods(&mut self, now_ns: u64) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        let runs = |pod: &&PodState| {
            let mut statuses = pod.pod.status.containers();
            let has_begun = statuses.any(|status| status.state.running.is_some());
            has_begun && !pod.ending && !pod.removed && pod.leaving.is_none()
        };
        let running = self.engine.state().pods.values().filter(runs);
        let (running, seen) = running.fold((0, 0), |(running, seen), pod| {
            (running + 1, seen + usize::from(pod.running))
        });
        if !work.unseen.observe(running, seen, now_ns) {
            return;
        }
        if let Some(loss) = work.unseen.loss.clone() {
            self.warn(loss);
        }
        self.say_losses();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_after_a_minute_in_which_no_pod_has_a_process() {
        let mut unseen = UnseenPods::default();
        let s = 1_000_000_000;
        assert!(!unseen.observe(0, 0, 0));
        assert!(!unseen.observe(3, 0, s));
        assert!(!unseen.observe(3, 0, 60 * s));
        assert!(unseen.observe(3, 0, 61 * s));
        assert!(unseen.loss.as_ref().unwrap().starts_with("3 pods"));
        assert!(!unseen.observe(2, 0, 62 * s), "said");
        assert!(unseen.observe(2, 1, 63 * s));
        assert_eq!(unseen.loss, None);
        // One that has been seen meanwhile begins it anew.
        assert!(!unseen.observe(2, 0, 64 * s));
        assert!(!unseen.observe(2, 1, 100 * s));
        assert!(!unseen.observe(2, 0, 125 * s));
    }
}
