//! What is said of an eviction and of the node: to `plimsoll-cluster`, which tells the API server.

use plimsoll_core::explain::{ContainerUse, RunnerUp, StatusMessage};
use plimsoll_core::kube::pod::{Container, Pod};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::{Decision, KillReason, Reason};
use plimsoll_core::model::event::Event;
use plimsoll_core::model::signal::{NodeCondition, Signal};
use plimsoll_core::policy::eviction::thresholds::withheld_bytes;
use plimsoll_core::protocol::cluster_link::{
    EvictionIntent, NodeConditionReport, PlimsollCondition,
};

use super::{ACKNOWLEDGE_NS, Evicted, WITHHELD_EVERY_NS};
use crate::daemon::Agent;
use crate::host::clock::wall;

/// What the node's condition says of what is lost: the first loss, and where the others stand. A condition has one line
/// in `kubectl describe`.
pub(super) fn losses_in_short(lost: &[String]) -> Option<String> {
    let (first, others) = lost.split_first()?;
    Some(match others.len() {
        0 => first.clone(),
        more => format!("{first} (and {more} more: kubectl plimsoll check NODE)"),
    })
}

/// The one container that can run in a pod: its regular one, while no init container and no sidecar runs beside or
/// before it.
pub(super) fn only_container(pod: &Pod) -> Option<&Container> {
    let [container] = &pod.spec.containers[..] else {
        return None;
    };
    let rests = |init: &Container| {
        let mut statuses = pod.status.containers();
        let status = statuses.find(|status| status.name == init.name);
        status.is_some_and(|status| status.state.running.is_none())
    };
    pod.spec
        .init_containers
        .iter()
        .all(rests)
        .then_some(container)
}

/// For times that people read. Not for the hot path.
fn unix_ms() -> u64 {
    u64::try_from(wall().as_millis()).unwrap_or(u64::MAX)
}

impl Agent {
    /// What follows for the report of a decision that has been carried out.
    pub(in crate::daemon) fn report_decision(&mut self, event: &Event, decision: &Decision) {
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
            // Nothing of these is in the API, or its pod's end is.
            Decision::Arm { .. }
            | Decision::SampleBy { .. }
            | Decision::End { .. }
            | Decision::ReleaseMemory { .. }
            | Decision::Finished { .. }
            | Decision::FreeDisk { .. }
            | Decision::ReadStorageEvery { .. }
            | Decision::Reclaim { .. }
            | Decision::StopReclaim { .. }
            | Decision::SetHigh { .. }
            | Decision::ClearHigh { .. }
            | Decision::Notify { .. }
            | Decision::RemedyEnded { .. }
            | Decision::Place { .. }
            | Decision::PlacementRefused { .. }
            | Decision::PlacementLost { .. }
            | Decision::PlacementFailed { .. }
            | Decision::SetCpu { .. }
            | Decision::RestoreCpu { .. }
            | Decision::NoVictim { .. }
            | Decision::EvictionsHeld { .. } => {}
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
            self.warn_of_pod(
                &uid,
                "its eviction will not be reported individually: too many reports are queued",
            );
        }
    }

    /// Working sets of a pod's containers. Of a single one it is the pod's; of several what each was charged at the
    /// decision.
    fn container_uses(&self, uid: &PodUid, reason: &Reason) -> Vec<(String, u64)> {
        let Reason::Threshold(reason) = reason else {
            return Vec::new();
        };
        let pod = self.pods.pod(uid);
        if let Some(container) = pod.and_then(|pod| only_container(pod)) {
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

    /// What of the node's memory pods cannot have under pressure, where that has changed.
    pub(super) fn report_withheld(&mut self, at_ns: u64) {
        let bytes = withheld_bytes(self.engine.config(), self.engine.state());
        let Some(work) = &mut self.kubelet else {
            return;
        };
        let (said_bytes, said_ns) = work.withheld;
        let is_due = bytes == 0 || at_ns >= said_ns.saturating_add(WITHHELD_EVERY_NS);
        if bytes == said_bytes || !is_due {
            return;
        }
        // What finds no room is said with the next turn.
        if work.link.as_ref().is_none_or(|link| link.withheld(bytes)) {
            work.withheld = (bytes, at_ns);
        }
    }

    /// The loop begins: what is known of the node is said.
    pub(in crate::daemon) fn begin_kubelet(&mut self) {
        if self.kubelet.is_none() {
            return;
        }
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
        self.say_losses();
    }

    /// Why nothing is placed although the configuration asks for it; `None`: it is.
    pub(in crate::daemon) fn say_no_placement(&mut self, why: Option<String>) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        if work.not_placing != why {
            work.not_placing = why;
            self.say_losses();
        }
    }

    pub(super) fn say_losses(&mut self) {
        let Some(work) = &mut self.kubelet else {
            return;
        };
        let known = work.unseen.loss.iter().chain(&work.not_placing);
        let lost: Vec<String> = known.chain(&work.lost).cloned().collect();
        let (reason, message) = match losses_in_short(&lost) {
            Some(lost) => ("MechanismsLost", lost),
            None => ("NothingLost", "every mechanism is there".to_owned()),
        };
        let is_degraded = !lost.is_empty();
        let mut known = work.conditions.iter_mut();
        let known = known.find(|one| one.condition == PlimsollCondition::Degraded);
        if let Some(known) = known.filter(|one| one.status == is_degraded && one.message != message)
        {
            // As it was, for another reason.
            known.message = message;
            if let Some(link) = &work.link {
                link.conditions(work.conditions.clone());
            }
            return;
        }
        self.set_condition(PlimsollCondition::Degraded, is_degraded, reason, &message);
    }
}
