//! Which pods are throttled by a CPU limit or held back for others, how much extra CPU time they are given, and why no
//! more.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::pod::{NoSuchPod, find};
use crate::kube::pod_uid::PodUid;
use crate::kube::qos::QosClass;
use crate::model::bandwidth::{CpuWhy, WaitSource, Waiter};
use crate::model::config::EngineConfig;
use crate::model::decision::In;
use crate::model::options::CpuOptions;
use crate::model::signal::Unit;
use crate::model::state::{NodeState, PodState};
use crate::policy::cpu::burst::{PATIENCE_NS, SETTLE_NS};
use crate::policy::cpu::suppress::{self, Suppression};
use crate::policy::cpu::{CgroupState, PodCpuState, comes_first};

/// CPU time of a node's pods. Shares are in hundredths of a per cent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThrottlingExplanation {
    /// What is on.
    pub options: CpuOptions,
    /// The node at the newest reading; `None`: nothing has been read, because no option is on or the agent has just
    /// started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeCpuView>,
    /// The pods that come first and waited longest, at most two.
    pub waiters: Vec<Waiter>,
    /// Why no pod on this node is given more now, if one reason holds for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<CpuWhy>,
    /// The pods that are held back, and how much of the budget is left.
    pub suppression: Suppression,
    /// Cgroups of pods with processes: the pods' own and their containers'.
    pub cgroups: Vec<CgroupCpuView>,
    /// The pod that was asked about; then only its cgroups are above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

/// The CPUs that pods share.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCpuView {
    /// When it was read: CLOCK_MONOTONIC, nanoseconds.
    pub read_ns: u64,
    /// Over how long the figures were counted, nanoseconds.
    pub interval_ns: u64,
    /// How many.
    pub cpus: u32,
    /// How busy they were.
    pub busy: u32,
    /// How waiting is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<WaitSource>,
}

/// One cgroup.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupCpuView {
    /// `namespace/name`.
    pub pod: String,
    /// The pod's identity.
    pub uid: PodUid,
    /// The pod's class.
    pub qos_class: QosClass,
    /// The container; empty for the pod's own cgroup.
    pub container: Arc<str>,
    /// The limit's quota, microseconds; `None` for no limit.
    #[serde(rename = "ownQuotaUs", skip_serializing_if = "Option::is_none")]
    pub configured_quota_us: Option<u64>,
    /// The quota in effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_us: Option<u64>,
    /// In each of this long, microseconds.
    pub period_us: u64,
    /// The burst in effect, microseconds; `None`: the kernel does not support it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_us: Option<u64>,
    /// Periods since the reading before.
    pub periods: u64,
    /// Those in which it was throttled.
    pub throttled: u64,
    /// CPU time used meanwhile, microseconds.
    pub used_us: u64,
    /// How much of the time the pod waited, if that is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<u32>,
    /// Whether the CPU time that the pod waits for was promised to it by its request.
    pub comes_first: bool,
    /// What it has saved under its limit, microseconds of CPU time.
    pub allowance_us: u64,
    /// Why it has what it has, or would be given more, or is not.
    pub verdict: String,
}

impl ThrottlingExplanation {
    /// Explains all pods, or one.
    ///
    /// # Errors
    /// [`NoSuchPod`].
    pub fn new(
        config: &EngineConfig,
        state: &NodeState,
        pod: Option<&str>,
    ) -> Result<Self, NoSuchPod> {
        let asked = pod.map(|name| find(state, name)).transpose()?;
        let cpu = &state.cpu;
        let guard = config.cpu.burst.and_then(|burst| {
            let limit = burst.node_use_percent * 100;
            let busy = (cpu.busy > limit).then_some(CpuWhy::NodeBusy {
                used: cpu.busy,
                limit,
            });
            let limit = burst.wait_percent * 100;
            // With two waiting pods, every pod has at least one that is not itself.
            let second = cpu.waiters.get(1).filter(|waiter| waiter.waited > limit);
            busy.or_else(|| {
                second.map(|waiter| CpuWhy::OthersWait {
                    waiter: waiter.clone(),
                    limit,
                })
            })
        });
        let shown = |pod: &PodState| asked.is_none_or(|asked| asked.pod.uid() == pod.pod.uid());
        let mut cgroups = Vec::new();
        for (uid, pod_cpu) in &cpu.pods {
            let Some(pod) = state.pods.get(uid).filter(|pod| shown(pod)) else {
                continue;
            };
            let is_exclusive = state
                .placement
                .as_ref()
                .is_some_and(|placement| placement.has_exclusive_cpus(uid));
            for (container, cgroup) in &pod_cpu.cgroups {
                let reading = &cgroup.reading;
                cgroups.push(CgroupCpuView {
                    pod: pod.name.clone(),
                    uid: uid.clone(),
                    qos_class: pod.pod.qos_class(),
                    container: Arc::clone(container),
                    configured_quota_us: reading.configured_quota_us,
                    quota_us: reading.quota_us,
                    period_us: reading.period_us,
                    burst_us: reading.burst_us,
                    periods: cgroup.periods,
                    throttled: cgroup.throttled,
                    used_us: cgroup.used_us,
                    waited: pod_cpu.waited,
                    comes_first: comes_first(pod, pod_cpu, is_exclusive),
                    allowance_us: cgroup.grant.allowance_us,
                    verdict: match reading.configured_quota_us {
                        _ if is_exclusive => "it has CPUs of its own: no quota binds it".to_owned(),
                        Some(_) => limited(config, state, uid, cgroup),
                        None if container.is_empty() => unlimited(config, state, pod, pod_cpu),
                        None => "no limit of its own".to_owned(),
                    },
                });
            }
        }
        Ok(Self {
            options: config.cpu,
            node: cpu.read_ns.map(|read_ns| NodeCpuView {
                read_ns,
                interval_ns: cpu.interval_ns,
                cpus: cpu.shared.cpus,
                busy: cpu.busy,
                source: cpu.source,
            }),
            waiters: cpu.waiters.clone(),
            guard,
            suppression: cpu.suppression.clone(),
            cgroups,
            pod: asked.map(|pod| pod.name.clone()),
        })
    }
}

/// What becomes of a cgroup with a limit.
fn limited(config: &EngineConfig, state: &NodeState, uid: &PodUid, cgroup: &CgroupState) -> String {
    let Some(burst) = config.cpu.burst else {
        return match cgroup.throttled {
            0 => "cpuBurst is off".to_owned(),
            _ => "throttled, and cpuBurst is off: nothing is given".to_owned(),
        };
    };
    let cpu = &state.cpu;
    let grant = &cgroup.grant;
    let now_ns = cpu.read_ns.unwrap_or(0);
    let why = grant
        .why
        .as_ref()
        .map_or(String::new(), |why| format!(": {why}"));
    if grant.is_any() {
        let patience = grant.patience_ns.max(PATIENCE_NS.0) / 1_000_000_000;
        return format!(
            "given more{why}; a step is taken back after {patience} s in which it needs none"
        );
    }
    if cgroup.throttled == 0 {
        return match &grant.why {
            None => "not throttled: nothing to do".to_owned(),
            Some(_) => format!("not throttled; last{why}"),
        };
    }
    let limit = burst.wait_percent * 100;
    let busy_limit = burst.node_use_percent * 100;
    let waiter = cpu
        .waiters
        .iter()
        .find(|waiter| waiter.uid != *uid && waiter.waited > limit);
    if cpu.busy > busy_limit || waiter.is_some() {
        return format!("throttled, and nothing is given{why}");
    }
    if grant.not_before_ns > now_ns {
        let wait_ns = (grant.not_before_ns - now_ns).max(SETTLE_NS / 2);
        return format!(
            "throttled; looked at again in {} s{why}",
            wait_ns.div_ceil(1_000_000_000)
        );
    }
    format!("throttled{why}")
}

/// What becomes of a pod without a limit.
fn unlimited(
    config: &EngineConfig,
    state: &NodeState,
    pod: &PodState,
    pod_cpu: &PodCpuState,
) -> String {
    let Some(options) = config.cpu.suppress else {
        return "no limit; cpuSuppress is off".to_owned();
    };
    let suppression = &state.cpu.suppression;
    if pod.pod.qos_class() != QosClass::BestEffort {
        return "no limit; it has a request, so it is not held back".to_owned();
    }
    if pod.row.exempt {
        return "static, mirror or critical: never held back".to_owned();
    }
    if !suppress::may_be_held(pod, pod_cpu) {
        return "not held back: it says that it comes first, or is to leave".to_owned();
    }
    let why = suppression
        .why
        .as_ref()
        .map_or(String::new(), |why| format!(": {why}"));
    if suppression.held.contains_key(&pod.pod.uid()) {
        return format!("held back{why}");
    }
    if pod_cpu.used_milli <= options.floor_milli {
        return format!(
            "not held back: it uses {}, not more than {}",
            In(Unit::MilliCpus, pod_cpu.used_milli),
            In(Unit::MilliCpus, options.floor_milli)
        );
    }
    let limit = options.wait_percent * 100;
    match state
        .cpu
        .waiters
        .first()
        .filter(|waiter| waiter.waited > limit)
    {
        None => format!("not held back: no pod within its CPU request is waiting{why}"),
        Some(waiter) if suppression.is_spent => {
            format!("not held back although {waiter}: half of the budget is not back yet")
        }
        Some(waiter) => format!("would be held back at the next look if {waiter} still"),
    }
}
