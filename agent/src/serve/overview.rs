//! The node at a glance: what presses on it, what each pod has of it, who would be evicted next, and what was said
//! last.
//!
//! **Problem.** `plimsoll top` needs a little of everything: of what the engine decides by, of what limits cost pods,
//! and of figures that no decision uses (CPU time, pressure stalls of each pod). **Approach.** One value, made on the
//! control socket's thread from a [`Snapshot`] of the loop and from cgroup files that are read for it
//! ([`crate::serve::summary`]); or from a journal's state alone, where what only a running node shows is absent. The
//! ranking is that of [`plimsoll_core::explain`], so that who is shown as next is who would go.

use std::collections::BTreeMap;

use plimsoll_core::explain::{
    EvictionExplanation, EvictionStatus, ExplainError, ExplainedCondition, ExplainedSignal,
    PodPlacement, SignalChoice, placement,
};
use plimsoll_core::kube::admission::standing::{QuotaUse, RefusedPod};
use plimsoll_core::kube::cgroup_config::{NodeCapacity, QosSettings, pod_config};
use plimsoll_core::kube::pod::{Exemption, Pod};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::kube::resources::{CPU, MEMORY, Scope, eviction_request, pod_limits};
use plimsoll_core::model::rank_row::Comparator;
use plimsoll_core::model::signal::{Signal, Unit};
use plimsoll_core::model::state::{NodeState, PodState};
use plimsoll_core::placement::cpu_set::CpuSet;
use serde::{Deserialize, Serialize};

use crate::record::limit_counts::LimitTotals;
use crate::record::lines::RecentLine;
use crate::record::snapshot::Snapshot;
use crate::serve::summary::{CpuStats, MemoryStats, NodeStats, PodUse, PsiStats};

/// All of it. Times are CLOCK_MONOTONIC, nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// The version that has made it.
    pub plimsoll: String,
    /// The agent's process; `None`: it is from a journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The newest event that the engine has seen.
    pub now_ns: u64,
    /// The longest turn of the agent's loop so far, in which it could react to nothing else, nanoseconds; `None`: from
    /// a journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_turn_ns: Option<u64>,
    /// The node.
    pub node: NodeOverview,
    /// Every signal that has a threshold or has been observed.
    pub signals: Vec<ExplainedSignal>,
    /// The node's conditions.
    pub conditions: Vec<ExplainedCondition>,
    /// The signal that pods are ranked for.
    pub signal: Signal,
    /// Why that one.
    pub signal_because: SignalChoice,
    /// What usage is counted in for it.
    pub usage_unit: Unit,
    /// Who would have to go if the signal asked for it now: `namespace/name`.
    pub victims: Vec<String>,
    /// The pods, by their identity.
    pub pods: Vec<PodOverview>,
    /// Pods that have a manifest and may not run, in the order in which they are asked about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedPod>,
    /// What is in use of the quotas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<QuotaUse>,
    /// What was said last, the oldest first.
    pub recent_lines: Vec<RecentLine>,
}

/// Shares of the last ten seconds in which tasks waited (PSI, `some`), per cent. `None`: not measured here.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Pressure {
    /// For a CPU.
    pub cpu: Option<f64>,
    /// For memory.
    pub memory: Option<f64>,
    /// For a disk.
    pub io: Option<f64>,
}

impl Pressure {
    fn new(cpu: Option<PsiStats>, memory: Option<PsiStats>, io: Option<PsiStats>) -> Self {
        let share = |stats: Option<PsiStats>| stats.map(|it| it.some.avg10);
        Self {
            cpu: share(cpu),
            memory: share(memory),
            io: share(io),
        }
    }
}

/// The node. `None`: not known.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeOverview {
    /// Its name.
    pub name: Option<String>,
    /// All of its memory, bytes.
    pub memory_capacity_bytes: Option<u64>,
    /// `memory.available` at the newest sample, bytes.
    pub memory_available_bytes: Option<u64>,
    /// All of its swap, bytes.
    pub swap_capacity_bytes: Option<u64>,
    /// What of it is used, bytes.
    pub swap_used_bytes: Option<u64>,
    /// CPUs in use, thousandths.
    pub cpu_used_milli: Option<u64>,
    /// How its tasks wait.
    pub pressure: Pressure,
}

/// One pod.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodOverview {
    /// `namespace/name`.
    pub pod: String,
    /// Its identity.
    pub uid: PodUid,
    /// Its class.
    pub qos_class: QosClass,
    /// Its priority.
    pub priority: i32,
    /// What becomes of it.
    pub status: PodStatus,
    /// Its memory.
    pub memory: MemoryOverview,
    /// Its CPUs.
    pub cpu: CpuOverview,
    /// How its tasks wait.
    pub pressure: Pressure,
    /// What its limits have cost it; `None`: nothing has been read yet, or from a journal that does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitTotals>,
    /// Its rank among those that could be evicted; `None`: it is not ranked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranked: Option<RankOverview>,
}

/// What becomes of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodStatus {
    /// It has processes.
    Running,
    /// It has none.
    NotRunning,
    /// It is evicted, and on its way out.
    Evicted,
    /// Its manifest is gone, and it is on its way out.
    Ending,
    /// It was killed and is still there.
    Stuck,
}

/// Memory of a pod, bytes. `None`: not known, or for the limit: it has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryOverview {
    /// All that is charged.
    pub usage_bytes: Option<u64>,
    /// Less inactive page cache.
    pub working_set_bytes: Option<u64>,
    /// What it requests; 0 for nothing.
    pub request_bytes: u64,
    /// What it is limited to.
    pub limit_bytes: Option<u64>,
    /// What of it is in swap.
    pub swap_bytes: Option<u64>,
}

/// CPUs of a pod, thousandths. `None`: not known, or for the limit: it has none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuOverview {
    /// In use, over the last seconds.
    pub used_milli: Option<u64>,
    /// What it requests; 0 for nothing.
    pub request_milli: u64,
    /// What it is limited to.
    pub limit_milli: Option<u64>,
    /// The CPUs that it alone has; empty for none.
    pub exclusive: CpuSet,
}

/// A rank in the ranking. Amounts are in [`Overview::usage_unit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankOverview {
    /// From 1; exempt pods are counted too.
    pub rank: usize,
    /// Whether it is the next to go.
    pub standing: EvictionStatus,
    /// Why evictions skip it, if they do.
    pub exempt: Option<Exemption>,
    /// What it uses of the signal's resource.
    pub usage: Option<u64>,
    /// What is subtracted from that.
    pub request: u64,
    /// Usage minus request.
    pub usage_over_request: Option<i64>,
    /// What puts it ahead of the next pod.
    pub ahead_of_next_by: Option<Comparator>,
}

/// What is read of a running node beside what its loop knows.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The agent's process.
    pub pid: Option<u32>,
    /// The node.
    pub node: Option<NodeStats>,
    /// The pods that have a cgroup.
    pub pods: BTreeMap<PodUid, PodUse>,
}

impl Overview {
    /// Of what a loop knows, or knew.
    ///
    /// # Errors
    /// None: neither signal nor pod is asked for by name.
    pub fn new(snapshot: &Snapshot, figures: &Figures) -> Result<Self, ExplainError> {
        let state = &snapshot.state;
        let explained = EvictionExplanation::new(&snapshot.config, state, None, None)?;
        let mut ranked_pods: BTreeMap<PodUid, RankOverview> = explained
            .ranking
            .pods
            .into_iter()
            .map(|ranked| {
                let seen = RankOverview {
                    rank: ranked.rank,
                    standing: ranked.standing,
                    exempt: ranked.exempt,
                    usage: ranked.usage,
                    request: ranked.request,
                    usage_over_request: ranked.usage_over_request,
                    ahead_of_next_by: ranked.ahead_of_next_by,
                };
                (ranked.uid, seen)
            })
            .collect();
        let held = held_cpus(state);
        let pods = state.pods.iter().map(|(uid, pod)| {
            let read = figures.pods.get(uid);
            let (memory_limit_bytes, cpu_limit_milli) = limits(&pod.pod);
            PodOverview {
                pod: pod.name.clone(),
                uid: uid.clone(),
                qos_class: pod.pod.qos_class(),
                priority: pod.row.priority,
                status: status(pod),
                memory: memory(pod, memory_limit_bytes, read),
                cpu: CpuOverview {
                    used_milli: used_milli(state, uid, read),
                    request_milli: positive(eviction_request(&pod.pod, CPU).milli_value()),
                    limit_milli: cpu_limit_milli,
                    exclusive: held.get(pod.name.as_str()).cloned().unwrap_or_default(),
                },
                pressure: read.map_or_else(Pressure::default, |read| {
                    Pressure::new(
                        read.cpu.as_ref().and_then(|it| it.psi),
                        read.memory.as_ref().and_then(|it| it.psi),
                        read.io.as_ref().and_then(|it| it.psi),
                    )
                }),
                limits: snapshot.limits.get(uid).copied(),
                ranked: ranked_pods.remove(uid),
            }
        });
        Ok(Self {
            plimsoll: env!("CARGO_PKG_VERSION").to_owned(),
            pid: figures.pid,
            now_ns: state.now_ns,
            longest_turn_ns: Some(snapshot.tally.turns.max_ns).filter(|ns| *ns > 0),
            node: node(state, figures.node.as_ref()),
            pods: pods.collect(),
            refused: snapshot.refused.to_vec(),
            quotas: snapshot.quotas.to_vec(),
            signals: explained.signals,
            conditions: explained.conditions,
            signal: explained.signal,
            signal_because: explained.signal_because,
            usage_unit: explained.usage_unit,
            victims: explained.victims,
            recent_lines: snapshot
                .recent_lines
                .iter()
                .map(|it| (**it).clone())
                .collect(),
        })
    }
}

fn positive(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Memory (bytes) and CPUs (thousandths) that the pod's cgroup is limited to.
fn limits(pod: &Pod) -> (Option<u64>, Option<u64>) {
    // Neither hangs on what the node has.
    let explained = pod_config(pod, &QosSettings::default(), &NodeCapacity::default());
    let cpu = explained
        .cpu_quota_us
        .filter(|quota| *quota > 0)
        .and_then(|_| {
            let limit = pod_limits(pod, Scope::ALL).remove(CPU)?;
            Some(positive(limit.milli_value()))
        });
    (explained.memory_max_bytes.map(positive), cpu)
}

fn status(pod: &PodState) -> PodStatus {
    match pod.leaving {
        _ if pod.stuck => PodStatus::Stuck,
        Some(leaving) if leaving.evicted_for.is_some() => PodStatus::Evicted,
        Some(_) => PodStatus::Ending,
        None if pod.running => PodStatus::Running,
        None => PodStatus::NotRunning,
    }
}

fn memory(pod: &PodState, limit_bytes: Option<u64>, read: Option<&PodUse>) -> MemoryOverview {
    let known = pod.memory;
    let fresh = |of: fn(&MemoryStats) -> Option<u64>| of(read?.memory.as_ref()?);
    MemoryOverview {
        usage_bytes: fresh(|it| it.usage_bytes).or(known.map(|it| it.usage_bytes)),
        working_set_bytes: fresh(|it| it.working_set_bytes)
            .or(known.map(|it| it.working_set_bytes)),
        request_bytes: positive(eviction_request(&pod.pod, MEMORY).value()),
        limit_bytes,
        swap_bytes: read.and_then(|read| read.swap.as_ref()?.swap_usage_bytes),
    }
}

fn milli(stats: Option<&CpuStats>) -> Option<u64> {
    Some(stats?.usage_nano_cores? / 1_000_000)
}

fn used_milli(state: &NodeState, uid: &PodUid, read: Option<&PodUse>) -> Option<u64> {
    let known = || {
        let of_bandwidth = state.cpu.pods.get(uid).map(|it| it.used_milli);
        of_bandwidth.or_else(|| {
            let loads = state.loads.as_ref()?;
            loads.pods.iter().find(|pod| pod.uid == *uid)?.cpu_milli
        })
    };
    milli(read.and_then(|read| read.cpu.as_ref())).or_else(known)
}

/// The CPUs of containers that share them with no other, by pod.
fn held_cpus(state: &NodeState) -> BTreeMap<String, CpuSet> {
    let placed = state
        .placement
        .as_ref()
        .map(|it| placement(it, state.pods.values().map(|pod| &*pod.pod)));
    let of = |pod: PodPlacement| {
        let mut held = CpuSet::default();
        for container in pod.containers.iter().filter(|it| it.exclusive) {
            for cpu in container.cpus.iter().flat_map(CpuSet::iter) {
                held.insert(cpu);
            }
        }
        (pod.pod, held)
    };
    placed.map_or_else(BTreeMap::new, |it| it.pods.into_iter().map(of).collect())
}

fn node(state: &NodeState, read: Option<&NodeStats>) -> NodeOverview {
    let reading = state.node.as_ref();
    let pressure = read.map_or_else(Pressure::default, |read| {
        Pressure::new(
            read.cpu.as_ref().and_then(|it| it.psi),
            read.memory.as_ref().and_then(|it| it.psi),
            read.io.as_ref().and_then(|it| it.psi),
        )
    });
    NodeOverview {
        name: read.map(|read| read.node_name.clone()),
        memory_capacity_bytes: reading.map(|it| it.memory.capacity_bytes),
        memory_available_bytes: reading.map(|it| it.available_bytes),
        swap_capacity_bytes: reading.map(|it| it.memory.swap_total_bytes),
        swap_used_bytes: reading.map(|it| {
            let memory = &it.memory;
            memory
                .swap_total_bytes
                .saturating_sub(memory.swap_free_bytes)
        }),
        cpu_used_milli: milli(read.and_then(|read| read.cpu.as_ref())),
        pressure,
    }
}
