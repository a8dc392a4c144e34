//! Beside a kubelet: pods come from its cgroups and from the API server, evictions are held and reported, and nothing that the kubelet has made is
//! changed.
//!
//! **Problem.** The kubelet starts again what dies, and only the API server's word ends a pod. That word may be late, and the agent may be replaced
//! meanwhile. **Approach.** A pod is known from its cgroup, whether or not the API server has named it ([`Agent::follow_kubelet_tree`]). A kill
//! comes after a hold ([`crate::act::holds`]), and before its report, which is on the disk until it is settled ([`crate::source::cluster`]). At a
//! soft threshold the report comes first: the kubelet runs hooks and sends SIGTERM. If none of that is seen in [`ACKNOWLEDGE_NS`], the agent does.
//!
//! **Terms.** *evicted*: from the decision until the pod's cgroup has gone, its UID has left the API, or the hold was given up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Result;
use plimsoll_core::explain::{ContainerUse, RunnerUp, StatusMessage};
use plimsoll_core::kube::cluster_link::{
    EvictionIntent, NodeConditionReport, PlimsollCondition, Settled,
};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::model::decision::{Decision, KillReason, Reason};
use plimsoll_core::model::event::{Event, EventKind};
use plimsoll_core::model::signal::{NodeCondition, Signal};
use plimsoll_core::model::units::PodUid;

use super::{Agent, now_ns};
use crate::act::holds::Holds;
use crate::host::clock::wall;
use crate::pods::names;
use crate::source::cluster::{ClusterChange, ClusterEvent, ClusterLink};

/// In this time the API server has to take the report of an eviction for a soft threshold; then the agent ends the pod itself.
const ACKNOWLEDGE_NS: u64 = 2_000_000_000;
/// How long a pod is held without a word from the API server.
const HOLD_MAX_NS: u64 = 600_000_000_000;
/// After the start the API server has so long to name the pods that are there. Until then the engine knows no pod of which only the cgroup is known: it
/// may be critical, and no pod is to go because its agent was started anew (k/k#70618).
const NAMES_WITHIN_NS: u64 = 10_000_000_000;
/// Pods that one sample can have killed.
const HELD_AT_ONCE: usize = 64;
/// Pods that are known at one time: those of the API, and as many that it has not named.
const PODS_MAX: usize = 2048;

/// An evicted pod.
#[derive(Debug, Default)]
struct Evicted {
    /// Since when it is held, nanoseconds.
    held_ns: Option<u64>,
    /// Until when its report is to be acknowledged, nanoseconds.
    acknowledge_by_ns: Option<u64>,
    /// It was killed; what runs in it now was started again.
    is_killed: bool,
    /// That it was started again has been said.
    is_said: bool,
    /// It got SIGTERM from plimsoll, because nothing had acknowledged its report.
    is_terminated: bool,
}

impl Evicted {
    /// Whether something was done to the pod already, so that it cannot just stay.
    fn is_begun(&self) -> bool {
        self.is_terminated || self.is_killed || self.held_ns.is_some()
    }
}

/// What it takes beside a kubelet.
#[derive(Debug)]
pub struct KubeletWork {
    link: Option<ClusterLink>,
    holds: Option<Holds>,
    evicted: BTreeMap<PodUid, Evicted>,
    /// Held on the way to a kill, and not noted yet.
    newly_held: Vec<PodUid>,
    /// When the API server was last known to answer, nanoseconds.
    api_answered_ns: u64,
    is_api_reachable: bool,
    /// What the node lacks.
    lost: Vec<String>,
    conditions: Vec<NodeConditionReport>,
    is_unheld_said: bool,
    is_tree_said: bool,
}

impl KubeletWork {
    /// Reports through `link`; `held`: pods that an agent before has left held, and those whose eviction is not settled.
    pub fn new(
        link: Option<ClusterLink>,
        holds: Option<Holds>,
        held: Vec<PodUid>,
        unsettled: BTreeSet<PodUid>,
        lost: Vec<String>,
    ) -> Self {
        let at_ns = now_ns();
        let mut evicted: BTreeMap<PodUid, Evicted> = BTreeMap::new();
        for uid in unsettled {
            evicted.entry(uid).or_default();
        }
        for uid in held {
            let pod = evicted.entry(uid).or_default();
            (pod.held_ns, pod.is_killed) = (Some(at_ns), true);
        }
        Self {
            link,
            holds,
            evicted,
            newly_held: Vec::with_capacity(HELD_AT_ONCE),
            api_answered_ns: at_ns,
            is_api_reachable: false,
            lost,
            conditions: Vec::new(),
            is_unheld_said: false,
            is_tree_said: false,
        }
    }

    /// When something is to be done of which nothing else reminds the loop.
    pub(super) fn at_ns(&self) -> Option<u64> {
        let hold_ends = |pod: &Evicted| {
            let since_ns = pod.held_ns?.max(self.api_answered_ns);
            (!self.is_api_reachable).then(|| since_ns.saturating_add(HOLD_MAX_NS))
        };
        let at = |pod: &Evicted| {
            pod.acknowledge_by_ns
                .into_iter()
                .chain(hold_ends(pod))
                .min()
        };
        self.evicted.values().filter_map(at).min()
    }

    /// Evictions that wait to be settled, those that are never reported, frames and clients that were refused.
    pub(super) fn counts(&self) -> Option<[u64; 4]> {
        self.link.as_ref().map(|link| link.counts().read())
    }
}

/// What the node's condition says of what is lost: the first loss, and where the others stand. A condition has one line in `kubectl describe`.
fn losses_in_short(lost: &[String]) -> Option<String> {
    let (first, others) = lost.split_first()?;
    Some(match others.len() {
        0 => first.clone(),
        more => format!("{first} (and {more} more: kubectl plimsoll check NODE)"),
    })
}

/// For times that people read. Not for the hot path.
fn unix_ms() -> u64 {
    u64::try_from(wall().as_millis()).unwrap_or(u64::MAX)
}

impl Agent {
    /// Lets it run beside a kubelet.
    #[must_use]
    pub fn with_kubelet(mut self, kubelet: Option<KubeletWork>) -> Self {
        self.kubelet = kubelet;
        self
    }

    /// Lets nothing new start in a pod that is about to be killed. Allocates only when that fails.
    pub(super) fn hold(&mut self, uid: &PodUid) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        match self.pods.hold(uid) {
            Ok(true) if work.newly_held.len() < HELD_AT_ONCE => work.newly_held.push(uid.clone()),
            Ok(_) => {}
            Err(error) => {
                self.sample_failure
                    .get_or_insert_with(|| format!("pod {uid}: it is not held: {error}"));
            }
        }
    }

    /// What follows for the report of a decision that has been carried out.
    pub(super) fn report_decision(&mut self, event: &Event, decision: &Decision) {
        if self.kubelet.is_none() {
            return;
        }
        match decision {
            Decision::Evict {
                uid,
                grace_s,
                reason,
            } => self.report_eviction(uid, *grace_s, reason, event.at_ns),
            Decision::Withdraw { uid } => self.withdraw(uid),
            Decision::Kill { uid, why } => self.report_kill(uid, *why),
            Decision::Condition { condition, status } => {
                let condition = match condition {
                    NodeCondition::MemoryPressure => PlimsollCondition::MemoryPressure,
                    NodeCondition::Stalled => PlimsollCondition::Stalled,
                    // The kubelet's own thresholds speak of these.
                    NodeCondition::DiskPressure | NodeCondition::PidPressure => return,
                };
                let reason = match *status {
                    true => "ThresholdMet",
                    false => "ThresholdsNotMet",
                };
                self.set_condition(condition, *status, reason, decision);
            }
            _ => {}
        }
    }

    fn report_eviction(&mut self, uid: &PodUid, grace_s: i64, reason: &Reason, at_ns: u64) {
        let (config, state) = (self.engine.config(), self.engine.state());
        let next = reason
            .signal()
            .and_then(|signal| RunnerUp::of(config, state, signal, uid));
        let Some(pod) = self.pods.pod(uid).cloned() else {
            return;
        };
        let used = self.container_uses(uid, reason);
        let used: Vec<ContainerUse<'_>> = used
            .iter()
            .map(|(name, usage_bytes)| ContainerUse {
                name,
                usage_bytes: *usage_bytes,
            })
            .collect();
        let text = StatusMessage::new(&pod, reason, &used, next.as_ref());
        let (rank, ranked) = match reason {
            Reason::Threshold(reason) => (reason.rank, reason.ranked),
            Reason::LocalStorage(_) => (1, 1),
        };
        let signal = reason.name();
        let is_soft = grace_s > 0;
        let evicted = Evicted {
            acknowledge_by_ns: is_soft.then(|| at_ns.saturating_add(ACKNOWLEDGE_NS)),
            ..Evicted::default()
        };
        self.send_intent(&pod, evicted, signal, text, (rank, ranked), grace_s);
    }

    /// Another pod goes: the report of this one's eviction has not been taken, and is not wanted any more.
    fn withdraw(&mut self, uid: &PodUid) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        work.evicted.remove(uid);
        if let Some(link) = &work.link {
            link.withdrawn(uid.clone());
        }
    }

    /// A pod that the last line in the kernel has taken was not chosen by the engine: its report begins with the kill.
    fn report_kill(&mut self, uid: &PodUid, why: KillReason) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        if let Some(evicted) = work.evicted.get_mut(uid) {
            evicted.is_killed = true;
            return;
        }
        let Some(pod) = self.pods.pod(uid).cloned() else {
            return;
        };
        let text = StatusMessage {
            message: format!("The node was low on resource: memory. Killed now: {why}."),
            starved_resource: "memory".to_owned(),
            ..StatusMessage::default()
        };
        let ranked = u32::try_from(self.pods.len()).unwrap_or(u32::MAX);
        let signal = Signal::KernelMemoryAvailable.row().name;
        let evicted = Evicted {
            is_killed: true,
            ..Evicted::default()
        };
        self.send_intent(&pod, evicted, signal, text, (1, ranked), 0);
    }

    fn send_intent(
        &mut self,
        pod: &Pod,
        evicted: Evicted,
        signal: &str,
        text: StatusMessage,
        (rank, ranked): (u32, u32),
        grace_s: i64,
    ) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        let uid = pod.uid();
        let intent = EvictionIntent {
            uid: uid.clone(),
            namespace: pod.namespace().to_owned(),
            name: pod.metadata.name.clone(),
            decided_unix_ms: unix_ms(),
            signal: signal.to_owned(),
            message: text.message,
            rank,
            ranked,
            journal: None,
            grace_s: u32::try_from(grace_s.max(0)).unwrap_or(u32::MAX),
            is_held: work.newly_held.contains(&uid),
            starved_resource: text.starved_resource,
            offending_containers: text.offending_containers,
            offending_containers_usage: text.offending_containers_usage,
        };
        work.evicted.insert(uid.clone(), evicted);
        let is_sent = work.link.as_ref().is_none_or(|link| link.evicted(intent));
        if !is_sent {
            self.warn(format!(
                "pod {uid}: its eviction will not be reported one by one: too many wait"
            ));
        }
    }

    /// Working sets of a pod's containers. Of a single one it is the pod's; of several what each was charged when the pod was held.
    fn container_uses(&self, uid: &PodUid, reason: &Reason) -> Vec<(String, u64)> {
        let Reason::Threshold(reason) = reason else {
            return Vec::new();
        };
        let containers = self.pods.pod(uid).map(|pod| &pod.spec.containers);
        if let Some([container]) = containers.map(|containers| &containers[..]) {
            return vec![(container.name.clone(), reason.usage)];
        }
        let used = self.pods.container_usages(uid).into_iter();
        used.map(|(name, bytes)| (name.to_owned(), bytes.min(reason.usage)))
            .collect()
    }

    /// Sets a condition of this node; [`Agent::follow_up_kubelet`] sends what has changed.
    fn set_condition(
        &mut self,
        condition: PlimsollCondition,
        status: bool,
        reason: &str,
        message: &dyn std::fmt::Display,
    ) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        let known = work
            .conditions
            .iter()
            .position(|one| one.condition == condition);
        if known.is_some_and(|at| work.conditions[at].status == status) {
            return;
        }
        let report = NodeConditionReport {
            condition,
            status,
            reason: reason.to_owned(),
            message: message.to_string(),
            since_unix_ms: unix_ms(),
        };
        match known {
            Some(at) => work.conditions[at] = report,
            None => work.conditions.push(report),
        }
        if let Some(link) = &work.link {
            link.conditions(work.conditions.clone());
        }
    }

    /// The loop begins: what is known of the node is said.
    pub(super) fn begin_kubelet(&mut self) {
        let Some(work) = &self.kubelet else { return };
        let (reason, message) = match losses_in_short(&work.lost) {
            Some(lost) => ("MechanismsLost", lost),
            None => ("NothingLost", "every mechanism is there".to_owned()),
        };
        let is_degraded = !work.lost.is_empty();
        let calm = [
            (
                PlimsollCondition::MemoryPressure,
                "no memory threshold is met",
            ),
            (
                PlimsollCondition::Stalled,
                "no threshold on waits for disk or CPU is met",
            ),
        ];
        for (condition, message) in calm {
            self.set_condition(condition, false, "ThresholdsNotMet", &message);
        }
        self.set_condition(PlimsollCondition::Degraded, is_degraded, reason, &message);
    }

    /// What is due: reports that nobody acknowledged, holds whose time is over, pods that were started again.
    pub(super) fn follow_up_kubelet(&mut self) {
        let at_ns = now_ns();
        let Some(work) = &mut self.kubelet else {
            return;
        };
        while let Some(uid) = work.newly_held.pop() {
            work.evicted.entry(uid).or_default().held_ns = Some(at_ns);
        }
        let is_due = work.at_ns().is_some_and(|due_ns| due_ns <= at_ns);
        if is_due {
            self.end_unacknowledged(at_ns);
            self.give_up_holds(at_ns);
        }
        self.kill_again();
    }

    /// The API server has not taken the report of a soft eviction: SIGTERM, and nothing new in the pod.
    fn end_unacknowledged(&mut self, at_ns: u64) {
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
            let name = self.pods.name(&uid);
            self.warn(format!(
                "pod {name}: its eviction was not acknowledged within {} s: it got SIGTERM from plimsoll, without hooks",
                ACKNOWLEDGE_NS / 1_000_000_000
            ));
        }
    }

    fn give_up_holds(&mut self, at_ns: u64) {
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
            let name = self.pods.name(&uid);
            self.lift(&uid);
            self.warn(format!(
                "pod {name}: it may start again: the API server has been silent for {} min after its eviction",
                HOLD_MAX_NS / 60_000_000_000
            ));
        }
    }

    /// What was evicted and killed, and runs: v1 has no hold, and a container may have been about to start.
    fn kill_again(&mut self) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        let pods = &self.engine.state().pods;
        let mut again = Vec::new();
        for (uid, evicted) in &mut work.evicted {
            let pod = pods
                .get(uid)
                .filter(|pod| pod.running && pod.leaving.is_none());
            // Of a pod that is held and whose sandbox is not known it may be the sandbox alone.
            let is_container = evicted.held_ns.is_none() || self.pods.knows_sandbox(uid);
            if evicted.is_killed && is_container && pod.is_some_and(|pod| !pod.stuck) {
                again.push((uid.clone(), std::mem::replace(&mut evicted.is_said, true)));
            }
        }
        for (uid, is_said) in again {
            self.hold(&uid);
            if let Err(error) = self.pods.kill(&uid) {
                self.warn(format!("pod {uid}: {error}"));
            }
            if !is_said {
                let name = self.pods.name(&uid);
                self.warn(format!(
                    "pod {name}: a container of it was started again after its eviction, and killed (reported once)"
                ));
            }
            self.rescans.note(&uid);
        }
    }

    /// Lets a pod go that was evicted: it may run again.
    fn lift(&mut self, uid: &PodUid) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        work.evicted.remove(uid);
        let lifted = work.holds.as_mut().map(|holds| holds.lift(uid));
        // Without its line in the ledger it must not be held. The next look writes one.
        self.pods.arm_hold(uid, false).ok();
        if let Some(Err(error)) = lifted {
            self.warn(format!(
                "pod {uid}: it is still held: {error}; `plimsoll uninstall` lifts holds"
            ));
        }
        self.rescans.note(uid);
    }

    /// A pod has been looked at: from now on it can be held; or its cgroup has gone.
    pub(super) fn keep_hold(&mut self, uid: &PodUid) {
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
        let armed = holds
            .record(uid, file, id)
            .map_err(|error| error.to_string());
        let armed = armed.and_then(|_| {
            let armed = self.pods.arm_hold(uid, true);
            armed.map_err(|error| error.to_string())
        });
        if let Err(error) = armed
            && !std::mem::replace(&mut work.is_unheld_said, true)
        {
            self.warn(format!(
                "pod {uid}: it would not be held after an eviction, so that its kubelet starts it again: {error} (reported once)"
            ));
        }
    }

    /// Whether the API server has named the pods that are there, or has had its time.
    fn has_names(&self) -> bool {
        now_ns() >= self.listed_by_ns(NAMES_WITHIN_NS)
    }

    /// Takes in the pods that have come to the kubelet's tree, and forgets those of no name that have gone.
    pub(super) fn follow_kubelet_tree(&mut self) {
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
            let is_static = names::is_static(&pod.uid);
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
                "{refused} pods are not watched: more than {PODS_MAX} are known (reported once)"
            ));
        }
        self.make_room();
    }

    /// A pod is in no list any more.
    fn forget_pod(&mut self, uid: &PodUid) {
        self.remove_pod(uid);
        self.keep_hold(uid);
    }

    /// `plimsoll-cluster` has said something. Not urgent; between any two pods urgent work comes first.
    ///
    /// # Errors
    /// When the node's memory cannot be read.
    pub(super) fn cluster_event(&mut self, event: ClusterEvent) -> Result<()> {
        let at_ns = now_ns();
        let Some(work) = &mut self.kubelet else {
            return Ok(());
        };
        match event {
            ClusterEvent::Connected { node } => {
                tracing::info!(node, "plimsoll-cluster is connected")
            }
            ClusterEvent::Lost { why } => {
                work.is_api_reachable = false;
                self.warn(format!(
                    "plimsoll-cluster is gone: {why}; decisions go on with the pods that are known, and evictions are reported when it is back"
                ));
            }
            ClusterEvent::Change(change) => self.cluster_change(change)?,
            ClusterEvent::Api { is_reachable } => {
                work.is_api_reachable = is_reachable;
                work.api_answered_ns = at_ns;
            }
            ClusterEvent::Node { kubelet_version } => {
                tracing::info!(kubelet_version, "the kubelet of this node");
            }
            ClusterEvent::Reported { uid } => self.acknowledged(&uid),
            ClusterEvent::Refused { uid } => {
                tracing::info!(%uid, "a disruption budget refuses an eviction");
                // Heard, and not to be begun by a SIGTERM of ours: it is reported all the same when its grace period is over.
                self.acknowledged(&uid);
                let evicted = self
                    .kubelet
                    .as_ref()
                    .and_then(|work| work.evicted.get(&uid));
                if evicted.is_some_and(|evicted| !evicted.is_begun()) {
                    self.take_in(EventKind::EvictionRefused { uid });
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
            self.interrupt()?;
        }
        for one in pods {
            let uid = one.pod.uid();
            let is_known = self.pods.pod(&uid).is_some_and(|known| *known == one.pod);
            if !is_known || self.pods.is_removed(&uid) {
                self.rescan_pod(&uid);
                self.apply(one.pod, "");
            }
            if one.is_leaving {
                self.acknowledged(&uid);
                self.take_in(EventKind::PodEnding { uid });
            }
            self.interrupt()?;
        }
        for budget in budgets {
            self.take_in(EventKind::BudgetApplied { budget });
        }
        for budget in budgets_gone {
            self.take_in(EventKind::BudgetRemoved { budget });
        }
        if is_list {
            if let Some(work) = &mut self.kubelet {
                work.is_api_reachable = true;
                work.api_answered_ns = now_ns();
            }
            self.tally.pods_listed = true;
            self.pods_are_listed();
            self.report_limits();
        }
        self.containers_came();
        self.make_room();
        self.hurry = true;
        Ok(())
    }

    /// Holds stay: an eviction is not over because the agent is replaced.
    pub(super) fn end_kubelet(&mut self) {
        if let Some(work) = &mut self.kubelet {
            work.link = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::daemon::tests::{Cgroup, Node, VICTIM, pod_dir};
    use crate::pods::kill::HOLD_FILE;
    use crate::source::cluster::ClusterPod;

    /// A node, a pod of it, and the file that holds the pod.
    fn held() -> (Node, PodUid, std::path::PathBuf) {
        let mut node = Node::with(Cgroup::V2, true);
        node.timer();
        node.rest();
        let file = pod_dir(&node.host, Cgroup::V2, VICTIM).join(HOLD_FILE);
        let uid = PodUid::new(format!("uid-{VICTIM}"));
        node.agent.hold(&uid);
        node.agent.follow_up_kubelet();
        // A plain file keeps what is longer.
        fs::write(&file, "0").unwrap();
        (node, uid, file)
    }

    fn work(node: &mut Node) -> &mut KubeletWork {
        node.agent.kubelet.as_mut().unwrap()
    }

    #[test]
    fn a_hold_ends_when_the_api_server_stays_silent() {
        let (mut node, uid, file) = held();
        let due_ns = work(&mut node).at_ns().unwrap();
        let event = ClusterEvent::Api { is_reachable: true };
        node.agent.cluster_event(event).unwrap();
        node.agent.give_up_holds(due_ns);
        assert_eq!(work(&mut node).at_ns(), None, "it answers");
        let event = ClusterEvent::Api {
            is_reachable: false,
        };
        node.agent.cluster_event(event).unwrap();
        let due_ns = work(&mut node).at_ns().unwrap();
        node.agent.give_up_holds(due_ns - 1);
        assert_eq!(fs::read_to_string(&file).unwrap(), "0");
        node.agent.give_up_holds(due_ns);
        assert_eq!(fs::read_to_string(&file).unwrap(), "max");
        assert!(work(&mut node).evicted.is_empty());
        // It can be held again.
        node.rest();
        node.agent.hold(&uid);
        assert!(fs::read_to_string(&file).unwrap().starts_with('0'));
    }

    #[test]
    fn a_hold_ends_with_the_pod_in_the_api_and_when_its_report_is_given_up() {
        let gone = |uid: &PodUid| {
            ClusterEvent::Change(ClusterChange {
                gone: vec![uid.clone()],
                ..ClusterChange::default()
            })
        };
        let settled = |how| {
            move |uid: &PodUid| ClusterEvent::Settled {
                uid: uid.clone(),
                how,
            }
        };
        type Say<'a> = &'a dyn Fn(&PodUid) -> ClusterEvent;
        let cases: [(Say<'_>, &str); 4] = [
            (&gone, "max"),
            (&settled(Settled::Gone), "max"),
            (&settled(Settled::GivenUp), "max"),
            (&settled(Settled::Shown), "0"),
        ];
        for (event, expected) in cases {
            let (mut node, uid, file) = held();
            node.agent.cluster_event(event(&uid)).unwrap();
            assert_eq!(
                fs::read_to_string(&file).unwrap(),
                expected,
                "{:?}",
                event(&uid)
            );
        }
    }

    /// A SIGTERM after two seconds would be an eviction that the budget has just refused.
    #[test]
    fn a_refused_eviction_is_not_begun_for_want_of_an_answer() {
        let (mut node, uid, _) = held();
        let by_ns = now_ns() + ACKNOWLEDGE_NS;
        let evicted = work(&mut node).evicted.entry(uid.clone()).or_default();
        evicted.acknowledge_by_ns = Some(by_ns);
        let refused = ClusterEvent::Refused { uid: uid.clone() };
        node.agent.hurry = false;
        node.agent.cluster_event(refused.clone()).unwrap();
        assert_eq!(work(&mut node).evicted[&uid].acknowledge_by_ns, None);
        assert!(!node.agent.hurry, "it is held: too late to take back");
        work(&mut node)
            .evicted
            .insert(uid.clone(), Evicted::default());
        node.agent.cluster_event(refused).unwrap();
        assert!(node.agent.hurry, "another pod may have to go");
    }

    #[test]
    fn after_a_sigterm_of_ours_a_refusal_comes_too_late() {
        let mut node = Node::with(Cgroup::V2, true);
        node.timer();
        node.rest();
        let uid = PodUid::new(format!("uid-{VICTIM}"));
        let by_ns = now_ns();
        let evicted = Evicted {
            acknowledge_by_ns: Some(by_ns),
            ..Evicted::default()
        };
        assert!(!evicted.is_begun());
        work(&mut node).evicted.insert(uid.clone(), evicted);
        node.agent.end_unacknowledged(by_ns);
        assert!(work(&mut node).evicted[&uid].is_begun());
    }

    #[test]
    fn a_withdrawn_eviction_is_forgotten() {
        let (mut node, uid, _) = held();
        let decision = Decision::Withdraw { uid: uid.clone() };
        let event = Event {
            at_ns: now_ns(),
            kind: EventKind::EvictionRefused { uid: uid.clone() },
        };
        node.agent.report_decision(&event, &decision);
        assert!(!work(&mut node).evicted.contains_key(&uid));
    }

    #[test]
    fn conditions_of_the_engine_are_reported_and_the_kubelets_are_not() {
        let mut node = Node::with(Cgroup::V2, true);
        node.agent.begin_kubelet();
        let event = Event {
            at_ns: now_ns(),
            kind: EventKind::PodsListed,
        };
        for condition in NodeCondition::ALL {
            let status = true;
            let decision = Decision::Condition { condition, status };
            node.agent.report_decision(&event, &decision);
        }
        let shown = work(&mut node).conditions.iter();
        let shown: Vec<_> = shown.map(|one| (one.condition, one.status)).collect();
        let expected = [
            (PlimsollCondition::MemoryPressure, true),
            (PlimsollCondition::Stalled, true),
            (PlimsollCondition::Degraded, false),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_condition_names_the_first_loss_and_counts_the_others() {
        let lost = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        assert_eq!(losses_in_short(&[]), None);
        assert_eq!(losses_in_short(&lost[..1]).as_deref(), Some("a"));
        let others = " more: kubectl plimsoll check NODE)";
        assert_eq!(
            losses_in_short(&lost[..2]),
            Some(format!("a (and 1{others}"))
        );
        assert_eq!(losses_in_short(&lost), Some(format!("a (and 2{others}")));
    }

    #[test]
    fn a_pod_without_a_name_is_not_known_before_names_had_their_time() {
        let mut node = Node::with(Cgroup::V2, true);
        node.agent.tally.pods_listed = false;
        node.agent.started_ns = now_ns();
        assert!(!node.agent.has_names());
        node.agent.started_ns -= NAMES_WITHIN_NS;
        assert!(node.agent.has_names(), "the API server is silent");
        node.agent.started_ns = now_ns();
        node.agent.tally.pods_listed = true;
        assert!(node.agent.has_names());
    }

    #[test]
    fn what_the_kubelet_ends_is_waited_for_and_a_soft_eviction_once() {
        let mut node = Node::with(Cgroup::V2, true);
        node.timer();
        node.rest();
        let uid = PodUid::new(format!("uid-{VICTIM}"));
        let soft = Evicted {
            acknowledge_by_ns: Some(7),
            ..Evicted::default()
        };
        work(&mut node).evicted.insert(uid.clone(), soft);
        assert_eq!(work(&mut node).at_ns(), Some(7));
        let pod = node.agent.pods.pod(&uid).unwrap().clone();
        let change = ClusterChange {
            pods: vec![ClusterPod {
                pod,
                is_leaving: true,
            }],
            ..ClusterChange::default()
        };
        node.agent
            .cluster_event(ClusterEvent::Change(change))
            .unwrap();
        assert!(node.agent.engine.state().pods[&uid].leaving.is_some());
        assert_eq!(work(&mut node).at_ns(), None, "acknowledged: no SIGTERM");
    }
}
