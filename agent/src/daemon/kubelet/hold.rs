//! Pods that are held, from the kill until they may run again.

use plimsoll_core::kube::pod_uid::PodUid;

use super::{ACKNOWLEDGE_NS, Evicted, HELD_AT_ONCE, HOLD_MAX_NS, LIFT_AGAIN_NS};

use crate::act::holds::{Holds, Lifted, Recorded};
use crate::daemon::{Agent, now_ns};

/// The pause between kills of one pod: a container that runs after it may have been started meanwhile.
const KILL_AGAIN_NS: u64 = 250_000_000;
/// The same pause for a pod whose processes have survived a kill.
const STUCK_AGAIN_NS: u64 = 30_000_000_000;

impl Agent {
    /// Lets nothing new start in a pod that is being ended. Allocates only when that fails.
    pub(in crate::daemon) fn hold(&mut self, uid: &PodUid) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        match self.pods.hold(uid) {
            Ok(true) if work.newly_held.len() < HELD_AT_ONCE => work.newly_held.push(uid.clone()),
            Ok(_) => {}
            Err(error) => {
                self.unsettled
                    .could_not_read(Some(uid), format_args!("it is not held: {error}"));
            }
        }
    }

    /// What is due: reports that nobody acknowledged, holds whose time is over, pods that were started again.
    pub(in crate::daemon) fn follow_up_kubelet(&mut self) {
        let at_ns = now_ns();
        let Some(work) = &mut self.kubelet else {
            return;
        };
        while let Some(uid) = work.newly_held.pop() {
            if let Some(holds) = &mut work.holds {
                holds.keep(&uid);
            }
            work.evicted.entry(uid).or_default().held_ns = Some(at_ns);
        }
        self.note_lifted();
        let Some(work) = &mut self.kubelet else {
            return;
        };
        let is_due = work.at_ns().is_some_and(|due_ns| due_ns <= at_ns);
        if is_due {
            self.end_unacknowledged(at_ns);
            self.give_up_holds(at_ns);
            self.lift_again(at_ns);
        }
        self.kill_again(at_ns);
        self.report_withheld(at_ns);
    }

    /// The API server has not taken the report of a soft eviction: nothing new in the pod, and SIGTERM.
    pub(super) fn end_unacknowledged(&mut self, at_ns: u64) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        let mut due = Vec::new();
        for (uid, pod) in &mut work.evicted {
            if pod
                .acknowledge_by_ns
                .take_if(|by_ns| *by_ns <= at_ns)
                .is_some()
            {
                due.push(uid.clone());
            }
        }
        for uid in due {
            self.hold(&uid);
            self.terminate(&uid);
            if let Some(work) = &mut self.kubelet
                && let Some(evicted) = work.evicted.get_mut(&uid)
            {
                evicted.is_terminated = true;
            }
            self.warn_of_pod(
                &uid,
                format_args!(
                    "its eviction was not acknowledged within {} s: it got SIGTERM from plimsoll, without hooks",
                    ACKNOWLEDGE_NS / 1_000_000_000
                ),
            );
        }
    }

    pub(super) fn give_up_holds(&mut self, at_ns: u64) {
        let Some(work) = self.kubelet.as_ref().filter(|work| !work.is_api_reachable) else {
            return;
        };
        let is_over = |pod: &Evicted| {
            let since_ns = pod.held_ns.map(|at_ns| at_ns.max(work.api_answered_ns));
            since_ns.is_some_and(|since_ns| since_ns.saturating_add(HOLD_MAX_NS) <= at_ns)
        };
        let over = work.evicted.iter().filter(|(_, pod)| is_over(pod));
        let over: Vec<PodUid> = over.map(|(uid, _)| uid.clone()).collect();
        for uid in over {
            // First: an agent that starts must not kill it for this eviction.
            if let Some(link) = self.kubelet.as_ref().and_then(|work| work.link.as_ref()) {
                link.let_go(uid.clone());
            }
            self.lift(&uid);
            self.warn_of_pod(
                &uid,
                format_args!(
                    "its hold is lifted, because the API server has not answered for {} min after the eviction",
                    HOLD_MAX_NS / 60_000_000_000
                ),
            );
        }
    }

    /// What was evicted and killed, and runs: v1 has no hold, and a container may have been about to start. Its cgroup
    /// was not known to the kill then, and others of the pod may still be ending.
    fn kill_again(&mut self, at_ns: u64) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        let pods = &self.engine.state().pods;
        let mut again = Vec::new();
        for (uid, evicted) in &mut work.evicted {
            let Some(pod) = pods.get(uid).filter(|pod| pod.running) else {
                continue;
            };
            let is_past = |since_ns: u64, pause_ns: u64| at_ns >= since_ns.saturating_add(pause_ns);
            let kept = pod.leaving.filter(|leaving| !leaving.ended_by_kubelet);
            // It is about to be killed, or to end.
            let is_being_ended = kept.is_some_and(|leaving| {
                let tried_ns = leaving.kill_tried_ns;
                !tried_ns.is_some_and(|at_ns| is_past(at_ns, KILL_AGAIN_NS))
            });
            let pause_ns = if pod.stuck {
                STUCK_AGAIN_NS
            } else {
                KILL_AGAIN_NS
            };
            let was_killed_now = evicted
                .killed_again_ns
                .is_some_and(|again_ns| !is_past(again_ns, pause_ns));
            // Of a pod that is held and whose sandbox is not known it may be the sandbox alone.
            let is_container = evicted.held_ns.is_none() || self.pods.knows_sandbox(uid);
            if evicted.is_killed && is_container && !is_being_ended && !was_killed_now {
                evicted.killed_again_ns = Some(at_ns);
                // A process that is still ending was not started again.
                let is_said =
                    kept.is_some() || pod.stuck || std::mem::replace(&mut evicted.is_said, true);
                again.push((uid.clone(), is_said));
            }
        }
        for (uid, is_said) in again {
            self.pods.kill_first_processes(&uid);
            self.hold(&uid);
            if let Err(error) = self.pods.kill(&uid) {
                self.warn_of_pod(&uid, error);
            }
            if !is_said {
                self.warn_of_pod(
                    &uid,
                    "a container of it was started again after its eviction, and killed (reported once)",
                );
            }
            self.rescans.note(&uid);
        }
    }

    /// Lets a pod go that was evicted: it may run again, as soon as a thread has seen to that.
    pub(in crate::daemon) fn lift(&mut self, uid: &PodUid) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        work.evicted.remove(uid);
        if let Some(holds) = &mut work.holds {
            if !self.pods.are_holds_written() {
                // It would be written after its line in the ledger has gone.
                holds.lift_later(uid);
            } else if holds.lift(uid) {
                // Without its line in the ledger it must not be held. A look after that writes one.
                self.pods.arm_hold(uid, false).ok();
            }
            if !holds.to_lift().is_empty() {
                let again_ns = now_ns().saturating_add(LIFT_AGAIN_NS);
                work.lift_again_ns.get_or_insert(again_ns);
            }
        }
        self.rescans.note(uid);
    }

    /// What has come of the lifts so far.
    pub(in crate::daemon) fn note_lifted(&mut self) {
        loop {
            let holds = self.kubelet.as_mut().and_then(|work| work.holds.as_mut());
            let Some(Lifted { uid, was_held }) = holds.and_then(Holds::lifted) else {
                return;
            };
            if let Err(Some(why)) = was_held {
                self.warn_of_pod(
                    &uid,
                    format_args!(
                        "it is still held: {why}; it is tried again every second, and `plimsoll uninstall` lifts holds"
                    ),
                );
            }
            // It can be held again once it has a line.
            self.rescans.note(&uid);
            self.rescans.ask();
        }
    }

    pub(in crate::daemon) fn lift_again(&mut self, at_ns: u64) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        if work
            .lift_again_ns
            .take_if(|by_ns| *by_ns <= at_ns)
            .is_none()
        {
            return;
        }
        let Some(holds) = &work.holds else { return };
        if !holds.to_lift().is_empty() {
            work.lift_again_ns = Some(now_ns().saturating_add(LIFT_AGAIN_NS));
        }
        // Not those that the thread has: one may have been evicted again since.
        for uid in holds.not_lifting() {
            self.lift(&uid);
        }
    }

    /// A pod has been looked at: from now on it can be held; or its cgroup has gone.
    pub(in crate::daemon) fn keep_hold(&mut self, uid: &PodUid) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        if self.pods.cgroup(uid).is_none() {
            if let Some(holds) = &mut work.holds {
                holds.forget(uid);
            }
            if work.evicted.remove(uid).is_some()
                && let Some(link) = &work.link
            {
                link.cgroup_gone(uid.clone());
            }
            return;
        }
        let (Some(holds), Some((file, id))) = (&mut work.holds, self.pods.hold_file(uid)) else {
            return;
        };
        let armed = match holds.record(uid, file, id) {
            Ok(Recorded::New | Recorded::Known) => {
                let armed = self.pods.arm_hold(uid, true);
                armed.map_err(|error| error.to_string())
            }
            Ok(Recorded::Later) => {
                self.rescans.note(uid);
                return;
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = armed
            && !std::mem::replace(&mut work.is_unheld_said, true)
        {
            self.warn_of_pod(
                uid,
                format_args!(
                    "it cannot be held after an eviction, so its kubelet may restart it: {error} (reported once)"
                ),
            );
        }
    }
}
