//! What the API server has, and says of evictions, as `plimsoll-cluster` passes it on.

use anyhow::Result;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::EventKind;
use plimsoll_core::protocol::cluster_link::Settled;

use crate::daemon::{Agent, now_ns};
use crate::source::cluster::{ClusterChange, ClusterEvent};

impl Agent {
    /// `plimsoll-cluster` has said something. Not urgent: between any two pods of a change urgent work comes first.
    ///
    /// # Errors
    /// When the node's memory cannot be read.
    pub(in crate::daemon) fn cluster_event(&mut self, event: ClusterEvent) -> Result<()> {
        let at_ns = now_ns();
        let Some(work) = &mut self.kubelet else {
            return Ok(());
        };
        match event {
            ClusterEvent::Connected { node } => {
                tracing::info!(node, "plimsoll-cluster is connected")
            }
            ClusterEvent::Lost { why } => {
                // Until now it answered: holds end so long after this, not after it began to.
                if std::mem::replace(&mut work.is_api_reachable, false) {
                    work.api_answered_ns = at_ns;
                }
                self.warn(format!(
                    "plimsoll-cluster is gone: {why}; decisions go on with the pods that are known, and evictions are reported when it is back"
                ));
            }
            ClusterEvent::Change(change) => self.cluster_change(change)?,
            ClusterEvent::Api { is_reachable } => {
                let was_reachable = std::mem::replace(&mut work.is_api_reachable, is_reachable);
                // That it does not answer is no answer: `plimsoll-cluster` begins with it, however often it is started.
                if is_reachable || was_reachable {
                    work.api_answered_ns = at_ns;
                }
            }
            ClusterEvent::Node { kubelet_version } => {
                tracing::info!(kubelet_version, "the kubelet of this node");
            }
            ClusterEvent::Overused(list) => self.handle_event(EventKind::Overused(list)),
            ClusterEvent::Reported { uid } => self.acknowledged(&uid),
            ClusterEvent::Refused { uid } => {
                tracing::info!(%uid, "a disruption budget refuses an eviction");
                // Heard, and not to be begun by a SIGTERM of ours: it is reported all the same when its grace period is
                // over.
                self.acknowledged(&uid);
                let evicted = self
                    .kubelet
                    .as_ref()
                    .and_then(|work| work.evicted.get(&uid));
                if evicted.is_some_and(|evicted| !evicted.is_begun()) {
                    self.handle_event(EventKind::EvictionRefused { uid });
                    self.hurry = true;
                }
            }
            ClusterEvent::Settled { uid, how } => {
                self.acknowledged(&uid);
                match how {
                    Settled::Gone | Settled::GivenUp => self.lift(&uid),
                    // The hold goes with the cgroup.
                    Settled::Shown | Settled::EndedOtherwise => {}
                }
            }
            ClusterEvent::Warning(text) => self.warn(text),
        }
        Ok(())
    }

    /// Once: `plimsoll-cluster` watches disruption budgets, and the engine does not go by them.
    fn warn_of_unused_budgets(&mut self) {
        if self.engine.config().options.disruption_budgets {
            return;
        }
        let work = self.kubelet.as_mut();
        if work.is_some_and(|work| !std::mem::replace(&mut work.is_unused_budgets_said, true)) {
            self.warn("plimsoll-cluster watches disruption budgets, and this agent does not go by them: give it --respect-disruption-budgets as well (components/budgets gives it to both), or set plimsoll.respectDisruptionBudgets: true in its configuration".to_owned());
        }
    }

    /// The kubelet ends the pod: no SIGTERM of ours.
    fn acknowledged(&mut self, uid: &PodUid) {
        let work = self.kubelet.as_mut();
        if let Some(evicted) = work.and_then(|work| work.evicted.get_mut(uid)) {
            evicted.acknowledge_by_ns = None;
        }
    }

    fn cluster_change(&mut self, change: ClusterChange) -> Result<()> {
        let ClusterChange {
            pods,
            gone,
            budgets,
            budgets_gone,
            is_list,
        } = change;
        for uid in gone {
            // Its kubelet has no reason any more to start it.
            self.lift(&uid);
            self.forget_pod(&uid);
            self.interrupt_if_listed()?;
        }
        // Those that go on are placed before what is left of others is known to end.
        let mut pods = pods;
        pods.sort_by_key(|one| one.is_leaving);
        for one in pods {
            let uid = one.pod.uid();
            let is_known = self.pods.pod(&uid).is_some_and(|known| *known == one.pod);
            if !is_known || self.pods.is_removed(&uid) {
                self.rescan_pod(&uid);
                self.apply(one.pod, "");
            }
            if one.is_leaving {
                self.acknowledged(&uid);
                self.handle_event(EventKind::PodEndedByKubelet { uid });
            }
            self.interrupt_if_listed()?;
        }
        if !budgets.is_empty() {
            self.warn_of_unused_budgets();
        }
        for budget in budgets {
            self.handle_event(EventKind::BudgetApplied { budget });
        }
        for budget in budgets_gone {
            self.handle_event(EventKind::BudgetRemoved { budget });
        }
        if is_list {
            if let Some(work) = &mut self.kubelet {
                work.is_api_reachable = true;
                work.api_answered_ns = now_ns();
            }
            (self.tally.pods_listed, self.tally.pods_watched) = (true, true);
            self.pods_are_listed();
            self.report_limits_at_once();
        }
        self.containers_came();
        // A container that has a name by now runs in the shared pool until the thread has it.
        self.place_by_new_names();
        self.ask_for_devices();
        self.make_room();
        self.hurry = true;
        Ok(())
    }
}
