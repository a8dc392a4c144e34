//! Everything that the engine remembers between two events. One value: it can be saved, compared and drawn.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kube::budget::DisruptionBudget;
use crate::kube::cgroup_config::swap_request_bytes;
use crate::kube::pod::{Exemption, Pod, PressureSignal};
use crate::kube::pod_uid::PodUid;
use crate::model::config::EngineConfig;
use crate::model::cpu_state::CpuState;
use crate::model::event::{Action, Event, EventKind, NodeMemory, Overused, PodsRead, Sample};
use crate::model::outlook::Outlook;
use crate::model::rank_row::RankRow;
use crate::model::reading::{NumaPods, PodLoads, ProcessReading, StorageReading};
use crate::model::remedy::{Remedy, RemedyState};
use crate::model::signal::{NodeCondition, Observations, Resource, Signal};
use crate::model::unread::PodReading;
use crate::placement::node::NodePlacement;

/// `terminationGracePeriodSeconds` of a pod that sets none (`DefaultTerminationGracePeriodSeconds` of the Kubernetes
/// API).
const DEFAULT_TERMINATION_GRACE_PERIOD_S: u64 = 30;

/// A kill that failed is tried again after this time.
const KILL_RETRY_NS: u64 = 100_000_000;

/// What is known of the node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct NodeState {
    /// The time of the newest event: CLOCK_MONOTONIC, nanoseconds. Never goes back.
    pub now_ns: u64,
    /// The pods, by identity.
    pub pods: BTreeMap<PodUid, PodState>,
    /// Disruption budgets, by `namespace/name`.
    #[serde(default)]
    pub budgets: BTreeMap<Arc<str>, Arc<DisruptionBudget>>,
    /// What the arbitrator of the cluster said last; `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overused: Option<Arc<Overused>>,
    /// Whether thresholds have been judged before ([`Passes`](crate::model::threshold::Passes)).
    pub passed: bool,
    /// One entry per threshold of the configuration.
    pub thresholds: Vec<ThresholdState>,
    /// The node conditions, in the order of [`NodeCondition::ALL`].
    pub conditions: [ConditionState; NodeCondition::ALL.len()],
    /// What each signal showed last.
    pub observations: Observations,
    /// The newest reading of the node.
    pub node: Option<NodeReading>,
    /// The newest reading of file systems and of what pods have on them.
    pub storage: Option<Arc<StorageReading>>,
    /// Whether it came with the newest sample.
    pub storage_is_new: bool,
    /// The newest count of processes.
    pub processes: Option<Arc<ProcessReading>>,
    /// What pods have on the NUMA node that was pressed last.
    #[serde(default)]
    pub numa_pods: Option<Arc<NumaPods>>,
    /// What pods take of the CPUs and disks.
    #[serde(default)]
    pub loads: Option<Arc<PodLoads>>,
    /// When an evicted pod was last still there, nanoseconds; the time of the first event until there is one.
    #[serde(default)]
    pub victim_seen_ns: Option<u64>,
    /// Freeing disk space without ending a pod.
    pub disk_freeing: Option<DiskFreeing>,
    /// The interval at which file systems are read, nanoseconds; 0: not said yet.
    pub storage_interval_ns: u64,
    /// How memory shrinks, if foresight is on.
    #[serde(default)]
    pub outlook: Outlook,
    /// The fastest loss of `memory.available` seen lately, bytes per second.
    pub growth_bytes_per_s: u64,
    /// Arming of the kernel's charge threshold.
    pub arming: Arming,
    /// When the next sample was asked for, nanoseconds.
    pub sample_by_ns: Option<u64>,
    /// What is tried before a pod is evicted for memory.
    #[serde(default)]
    pub remedies: RemedyState,
    /// Which containers hold which CPUs and memory; `None` without placement.
    #[serde(default)]
    pub placement: Option<NodePlacement>,
    /// Pods that have given up what they were placed on, as urgent events have shown. It is given back with the next
    /// event that is not urgent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub giving_back: Vec<PodUid>,
    /// What pods have of the CPUs, and what was changed for it; empty if neither option is on.
    #[serde(default)]
    pub cpu: CpuState,
    /// The signal whose threshold found no pod to evict; reported once and not at every sample.
    pub no_victim: Option<Signal>,
    /// Memory that outlived evicted pods, while a threshold on memory is met (option
    /// [`Breaker`](crate::model::options::Breaker)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained: Option<Retained>,
    /// Which pods are on their way out, so that they need not all be looked at again and again. Not saved.
    #[serde(skip)]
    pub(crate) leaving_uids: LeavingUids,
}

/// With more pods on their way out at one time all pods are looked at.
const LEAVERS_MAX: usize = 8;

/// The pods that may be on their way out, by their UIDs, ascending and without a gap: what follows from the rest of a
/// state. States are equal with and without it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeavingUids {
    /// Whether `uids` are all of them.
    pub(crate) is_known: bool,
    uids: [Option<PodUid>; LEAVERS_MAX],
}

impl PartialEq for LeavingUids {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl LeavingUids {
    /// In the order of their UIDs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PodUid> {
        self.uids.iter().flatten()
    }

    /// One more. Allocates nothing.
    fn add(&mut self, uid: &PodUid) {
        if !self.is_known || self.iter().any(|known| known == uid) {
            return;
        }
        let known = self.iter().count();
        if known == LEAVERS_MAX {
            self.is_known = false;
            return;
        }
        let at = self.iter().take_while(|known| *known < uid).count();
        self.uids[at..=known].rotate_right(1);
        self.uids[at] = Some(uid.clone());
    }

    /// Forgets all others.
    fn keep(&mut self, is_kept: impl Fn(&PodUid) -> bool) {
        let mut kept = 0;
        for at in 0..LEAVERS_MAX {
            if let Some(uid) = self.uids[at].take_if(|uid| is_kept(uid)) {
                self.uids[kept] = Some(uid);
                kept += 1;
            }
        }
        self.uids[kept..].fill(None);
    }
}

/// What is known of one pod.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PodState {
    /// `namespace/name`, for people.
    pub name: String,
    /// Its specification.
    pub pod: Arc<Pod>,
    /// Its row in the memory ranking, kept ready: only usage changes from sample to sample
    /// ([`PodMemory::used_bytes`](crate::model::event::PodMemory::used_bytes)).
    pub row: RankRow,
    /// What gives its containers a share of the swap under `LimitedSwap`: what they request of memory, bytes
    /// ([`swap_request_bytes`]).
    #[serde(default)]
    pub swap_request_bytes: u64,
    /// `spec.terminationGracePeriodSeconds`.
    pub termination_grace_period_s: u64,
    /// Whether its cgroup has processes.
    pub running: bool,
    /// Whether its manifest was removed.
    pub removed: bool,
    /// Whether the API shows its end, or its deletion: once its processes have ended, it does not run again.
    #[serde(default)]
    pub ending: bool,
    /// When it was first known that its kubelet has admitted it, nanoseconds.
    #[serde(default)]
    pub admitted_at_ns: Option<u64>,
    /// The newest reading; `None` until its cgroup has been read, and when it vanished.
    pub memory: Option<PodReading>,
    /// Set while it is on its way out.
    pub leaving: Option<Leaving>,
    /// Its processes did not exit, even after SIGKILL. It is not chosen again before it was empty, or
    /// [`STUCK_FOR_NS`](crate::policy::eviction::leaving::STUCK_FOR_NS) later.
    pub stuck: bool,
    /// Since when, nanoseconds.
    #[serde(default)]
    pub stuck_since_ns: u64,
    /// How often it was evicted.
    #[serde(default)]
    pub evictions: u32,
    /// When its last eviction was over, nanoseconds. `None`: there was none, or something was started in it since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evicted_at_ns: Option<u64>,
    /// What [`Retained`] has of it, bytes.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub retained_bytes: u64,
    /// Until when other pods are evicted in its place at a soft threshold, because a disruption budget refused its
    /// eviction, nanoseconds.
    #[serde(default)]
    pub refused_until_ns: Option<u64>,
    /// The signal that its processes asked for when memory is short.
    #[serde(default)]
    pub pressure_signal: Option<PressureSignal>,
    /// When each remedy before an eviction, in the order of [`Remedy::ALL`], was last over for it, nanoseconds.
    #[serde(default)]
    pub remedied_ns: [Option<u64>; Remedy::ALL.len()],
}

impl PodState {
    /// Its kubelet may refuse a pod. Of one that it has admitted it says something of each container, which no owner
    /// can, and the sandbox is made.
    pub fn is_admitted(&self) -> bool {
        self.running || self.pod.status.containers().next().is_some()
    }

    /// Whether its kubelet has it although nothing runs in it: its image is not there, or it crashes. As long as the
    /// kubelet says that a container runs, it has not seen its end: the pod may be over, or run elsewhere (gVisor).
    pub(crate) fn is_waiting(&self, config: &EngineConfig) -> bool {
        let is_over = self.ending || self.removed;
        let mut statuses = self.pod.status.containers();
        config.beside_kubelet
            && !self.running
            && !is_over
            && self.is_admitted()
            && statuses.all(|status| status.state.running.is_none())
    }

    /// Why evictions skip it, if they do.
    pub fn exemption(&self) -> Option<Exemption> {
        let by_manifest = self.pod.exemption();
        by_manifest.or(self.row.exempt.then_some(Exemption::Agent))
    }
}

/// A pod on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Leaving {
    /// What it was evicted for, so that others are not for a while. `None`: it is only removed.
    pub evicted_for: Option<Resource>,
    /// Its kubelet ends it, for a reason of its own or because the pod is deleted. The agent does not, unless it evicts
    /// the pod.
    #[serde(default)]
    pub ended_by_kubelet: bool,
    /// When it began to leave, nanoseconds.
    pub since_ns: u64,
    /// When its grace period is over, nanoseconds.
    pub kill_at_ns: u64,
    /// When it was killed, nanoseconds. `None` again after a kill that failed.
    pub killed_at_ns: Option<u64>,
    /// When a kill was first tried, nanoseconds.
    pub kill_tried_ns: Option<u64>,
    /// Its memory is being freed for it.
    pub released: bool,
    /// When its last process ended, nanoseconds; when it was killed, if it had none before.
    pub empty_at_ns: Option<u64>,
    /// SIGTERM could not be sent.
    pub terminate_failed: bool,
    /// `memory.current` when it began to leave.
    pub usage_before_bytes: u64,
    /// What it used then in the sense in which memory is available
    /// ([`PodMemory::used_bytes`](crate::model::event::PodMemory::used_bytes)).
    #[serde(default)]
    pub used_before_bytes: u64,
    /// What the node had available when a kill was first tried, bytes. `None`: not tried, or not known.
    #[serde(default)]
    pub available_at_kill_bytes: Option<u64>,
}

/// Memory that outlived evicted pods.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Retained {
    /// The newest of these pods.
    pub uid: PodUid,
    /// How much it is, and what follows.
    pub hold: Hold,
    /// Whether it was reported that evictions are held.
    pub reported: bool,
}

/// How evictions for memory are held while memory is retained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Hold {
    /// What stayed charged to these pods when they had ended, bytes.
    pub bytes: u64,
    /// No pod is evicted for it before, nanoseconds.
    pub until_ns: u64,
    /// The same while the node is critically short, nanoseconds.
    pub critical_until_ns: u64,
}

/// What is known of one threshold. Names as in pkg/kubelet/eviction/eviction_manager.go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ThresholdState {
    /// Since when it has been met without a break (`thresholdsFirstObservedAt`), nanoseconds.
    pub first_observed_ns: Option<u64>,
    /// Whether it has been met for its grace period (`thresholdsMet`). Then its minimum reclaim counts too.
    pub met: bool,
    /// Whether its signal has been read anew since the sample before: only then it evicts (`thresholdsUpdatedStats`).
    pub updated: bool,
}

/// A node condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ConditionState {
    /// Its status.
    pub status: bool,
    /// When one of its thresholds was last met (`nodeConditionsLastObservedAt`), nanoseconds.
    pub last_observed_ns: Option<u64>,
}

/// Freeing disk space without ending a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskFreeing {
    /// The threshold that asked for it: its place in the configuration.
    pub threshold: usize,
    /// Since when, nanoseconds.
    pub since_ns: u64,
    /// Whether it has been done, and only the next reading is awaited.
    pub done: bool,
}

/// A reading of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeReading {
    /// When.
    pub at_ns: u64,
    /// `memory.available` then, bytes.
    pub available_bytes: u64,
    /// The figures it came from.
    pub memory: NodeMemory,
    /// Whether the kernel counts charges, so that nothing can grow unseen between two samples.
    pub charges_counted: bool,
    /// The least that must still go before a threshold that is not met can be, bytes. `None`: all are met.
    pub headroom_bytes: Option<u64>,
}

/// Arming of the kernel's charge threshold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Arming {
    /// The value of `charged_bytes` that it reports.
    pub at_charged_bytes: u64,
    /// The smallest step between two reports, bytes: grows while reports come in quick succession without a crossing.
    pub step_bytes: u64,
    /// When the newest report came, nanoseconds.
    pub reported_ns: u64,
}

/// The pods on their way out, in the order of their UIDs.
pub(crate) fn leaving_of<'pods>(
    pods: &'pods mut BTreeMap<PodUid, PodState>,
    leaving_uids: &LeavingUids,
) -> impl Iterator<Item = (&'pods PodUid, &'pods mut PodState)> + use<'pods> {
    let first = leaving_uids.iter().next();
    let last = leaving_uids.iter().last();
    let range = match (leaving_uids.is_known, first.zip(last)) {
        (false, _) => Some(pods.range_mut::<PodUid, _>(..)),
        (true, Some((first, last))) => Some(pods.range_mut(first..=last)),
        (true, None) => None,
    };
    let pods = range.into_iter().flatten();
    pods.filter(|(_, pod)| pod.leaving.is_some())
}

impl NodeState {
    /// An empty state, for a configuration with this many thresholds.
    pub fn new(thresholds: usize) -> Self {
        Self {
            thresholds: vec![ThresholdState::default(); thresholds],
            ..Self::default()
        }
    }

    /// The state of a condition.
    pub fn condition(&self, condition: NodeCondition) -> ConditionState {
        self.conditions[condition as usize]
    }

    /// The pods on their way out, in the order of their UIDs.
    pub fn leaving(&self) -> impl Iterator<Item = &PodState> {
        let is_leaving = |pod: &&PodState| pod.leaving.is_some();
        debug_assert!(
            !self.leaving_uids.is_known
                || self.pods.values().filter(is_leaving).count()
                    == self.known_leavers().filter(is_leaving).count(),
            "whatever lets a pod leave takes note of it"
        );
        let known = self.leaving_uids.is_known.then(|| self.known_leavers());
        let all = (!self.leaving_uids.is_known).then(|| self.pods.values());
        let known = known.into_iter().flatten();
        known.chain(all.into_iter().flatten()).filter(is_leaving)
    }

    fn known_leavers(&self) -> impl Iterator<Item = &PodState> {
        self.leaving_uids
            .iter()
            .filter_map(|uid| self.pods.get(uid))
    }

    /// The pods on their way out, in the order of their UIDs.
    pub(crate) fn leaving_mut(&mut self) -> impl Iterator<Item = (&PodUid, &mut PodState)> {
        leaving_of(&mut self.pods, &self.leaving_uids)
    }

    /// A pod is on its way out from now on.
    pub(crate) fn leaves(&mut self, uid: &PodUid) {
        self.leaving_uids.add(uid);
    }

    /// Finds out which pods are on their way out, where that is not known, and forgets those that have left.
    pub(crate) fn look_for_leaving(&mut self) {
        let Self {
            pods, leaving_uids, ..
        } = self;
        if leaving_uids.is_known {
            let is_leaving = |uid: &PodUid| pods.get(uid).is_some_and(|pod| pod.leaving.is_some());
            leaving_uids.keep(is_leaving);
            return;
        }
        *leaving_uids = LeavingUids {
            is_known: true,
            ..LeavingUids::default()
        };
        for (uid, _) in pods.iter().filter(|(_, pod)| pod.leaving.is_some()) {
            leaving_uids.add(uid);
        }
    }

    /// Takes in what an event says. Decides nothing.
    pub(crate) fn observe(&mut self, event: &Event, config: &EngineConfig) {
        self.now_ns = self.now_ns.max(event.at_ns);
        match &event.kind {
            EventKind::PodApplied { pod } => {
                self.apply(pod, config);
                self.note_admission(&pod.uid());
            }
            EventKind::PodRemoved { uid } => {
                if let Some(pod) = self.pods.get_mut(uid) {
                    pod.removed = true;
                }
            }
            EventKind::BudgetApplied { budget } => {
                self.budgets.insert(budget.key(), Arc::clone(budget));
            }
            EventKind::BudgetRemoved { budget } => {
                self.budgets.remove(budget);
            }
            EventKind::Overused(overused) => self.overused = Some(Arc::clone(overused)),
            EventKind::PodRunning { uid } => {
                if let Some(pod) = self.pods.get_mut(uid) {
                    // One that was not empty in between has not been started anew: its cgroup was only looked at again.
                    pod.stuck &= pod.running;
                    pod.evicted_at_ns.take_if(|_| !pod.running);
                    pod.running = true;
                    if let Some(leaving) = &mut pod.leaving {
                        leaving.empty_at_ns = None;
                    }
                }
                self.note_admission(uid);
            }
            EventKind::PodEmpty { uid } => {
                let now_ns = self.now_ns;
                if let Some(pod) = self.pods.get_mut(uid) {
                    let was_running = std::mem::replace(&mut pod.running, false);
                    if let Some(leaving) = pod.leaving.as_mut().filter(|_| was_running) {
                        leaving.empty_at_ns.get_or_insert(now_ns);
                    }
                }
            }
            EventKind::PodEndedByKubelet { uid } => {
                if let Some(pod) = self.pods.get_mut(uid) {
                    pod.ending = true;
                }
            }
            EventKind::Sample(sample) => self.sample(sample, config),
            EventKind::DiskFreed { .. } => {
                if let Some(freeing) = &mut self.disk_freeing {
                    freeing.done = true;
                }
            }
            // Only what is being tried is concerned, see `policy::eviction::remedies`, or what is placed, see
            // `policy::placement`.
            EventKind::RemedyReported { .. }
            // What it means for the pod is in `policy::eviction::leaving::steps`.
            | EventKind::LastLineKill { .. }
            | EventKind::EvictionRefused { .. }
            | EventKind::FirstProcessesEnded { .. }
            | EventKind::PlacementStarted(_)
            | EventKind::PlacementDue
            | EventKind::PodsListed
            | EventKind::RoomSought
            | EventKind::DevicesGiven { .. }
            | EventKind::ContainerEnded { .. }
            // See `policy::cpu`.
            | EventKind::CpuReading(_)
            | EventKind::CpuNotWritten { .. } => {}
            EventKind::Outcome { uid, action, .. } => self.failed(uid, *action),
        }
    }

    fn apply(&mut self, pod: &Arc<Pod>, config: &EngineConfig) {
        let known = self.pods.remove(&pod.uid());
        let usage_bytes = known
            .as_ref()
            .and_then(|old| old.row.stats_known.then_some(old.row.usage));
        let mut row = RankRow::memory(pod, usage_bytes);
        row.exempt |= config.exempt_uids.contains(&row.uid);
        let known = known.as_ref();
        self.pods.insert(
            pod.uid(),
            PodState {
                name: pod.full_name(),
                pod: Arc::clone(pod),
                row,
                swap_request_bytes: swap_request_bytes(pod),
                termination_grace_period_s: pod
                    .spec
                    .termination_grace_period_seconds
                    .map_or(DEFAULT_TERMINATION_GRACE_PERIOD_S, |s| {
                        s.max(0).unsigned_abs()
                    }),
                running: known.is_some_and(|old| old.running),
                removed: false,
                ending: known.is_some_and(|old| old.ending),
                admitted_at_ns: known.and_then(|old| old.admitted_at_ns),
                memory: known.and_then(|old| old.memory),
                leaving: known.and_then(|old| old.leaving),
                stuck: known.is_some_and(|old| old.stuck),
                stuck_since_ns: known.map_or(0, |old| old.stuck_since_ns),
                evictions: known.map_or(0, |old| old.evictions),
                evicted_at_ns: known.and_then(|old| old.evicted_at_ns),
                retained_bytes: known.map_or(0, |old| old.retained_bytes),
                refused_until_ns: known.and_then(|old| old.refused_until_ns),
                // An unknown signal name is reported where manifests are read.
                pressure_signal: pod.pressure_signal().unwrap_or_default(),
                remedied_ns: known.map_or([None; Remedy::ALL.len()], |old| old.remedied_ns),
            },
        );
    }

    fn note_admission(&mut self, uid: &PodUid) {
        let now_ns = self.now_ns;
        if let Some(pod) = self.pods.get_mut(uid)
            && pod.is_admitted()
        {
            pod.admitted_at_ns.get_or_insert(now_ns);
        }
    }

    fn sample(&mut self, sample: &Sample, config: &EngineConfig) {
        let availability = config.options.availability;
        let now_ns = self.now_ns;
        self.storage_is_new = sample.storage.is_some();
        if let Some(storage) = &sample.storage {
            self.storage = Some(Arc::clone(storage));
        }
        if let Some(processes) = &sample.processes {
            self.processes = Some(Arc::clone(processes));
        }
        if let Some(pods) = &sample.numa_pods {
            self.numa_pods = Some(Arc::clone(pods));
        }
        if let Some(loads) = &sample.loads {
            self.loads = Some(Arc::clone(loads));
        }
        if sample.pods_read == PodsRead::None {
            return;
        }
        for memory in &sample.pods {
            if let Some(pod) = self.pods.get_mut(&memory.uid) {
                let listed_bytes = memory
                    .inactive_file_bytes
                    .saturating_add(memory.active_file_bytes);
                let memory = memory.limited(&sample.node);
                pod.memory = Some(PodReading {
                    listed_file_bytes: listed_bytes,
                    at_ns: now_ns,
                    usage_bytes: memory.usage_bytes,
                    working_set_bytes: memory.working_set_bytes(),
                    uncharged_bytes: memory.uncharged_bytes,
                    huge_page_bytes: memory.huge_page_bytes,
                    active_file_bytes: memory.active_file_bytes,
                    charged_bytes: sample.charged_bytes,
                });
                pod.row.stats_known = true;
                pod.row.usage = memory.used_bytes(availability);
            }
        }
        if sample.pods_read == PodsRead::Leaders {
            // What that says of the others is in `Lineup::take_in`.
            return;
        }
        for pod in self.pods.values_mut() {
            // Not in this sample: its cgroup was removed.
            if pod.memory.is_some_and(|memory| memory.at_ns != now_ns) {
                pod.memory = None;
                pod.row.stats_known = false;
                pod.row.usage = 0;
            }
        }
    }

    fn failed(&mut self, uid: &PodUid, action: Action) {
        let now_ns = self.now_ns;
        let Some(leaving) = self.pods.get_mut(uid).and_then(|pod| pod.leaving.as_mut()) else {
            return;
        };
        match action {
            Action::Terminate => leaving.terminate_failed = true,
            Action::Kill => {
                leaving.killed_at_ns = None;
                leaving.terminate_failed = false;
                leaving.kill_at_ns = now_ns.saturating_add(KILL_RETRY_NS);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leavers_are_in_order_until_there_are_too_many() {
        let mut leaving_uids = LeavingUids {
            is_known: true,
            ..LeavingUids::default()
        };
        let names = |leaving_uids: &LeavingUids| {
            leaving_uids
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        for name in ["c", "a", "b", "a"] {
            leaving_uids.add(&name.into());
        }
        assert_eq!(names(&leaving_uids), ["a", "b", "c"]);
        leaving_uids.keep(|uid| uid.as_str() != "b");
        assert_eq!(names(&leaving_uids), ["a", "c"]);
        for name in ["h", "g", "f", "e", "d", "b"] {
            leaving_uids.add(&name.into());
            assert!(leaving_uids.is_known);
        }
        assert_eq!(
            names(&leaving_uids),
            ["a", "b", "c", "d", "e", "f", "g", "h"]
        );
        leaving_uids.add(&"i".into());
        assert!(!leaving_uids.is_known, "then all pods are looked at");
        leaving_uids.keep(|_| false);
        assert!(names(&leaving_uids).is_empty());
    }
}
