//! Pods without a CPU request are held back while pods with one wait for their CPU time.
//!
//! **Problem.** Weights share out CPU time, not latency: a pod that gets its share still waits for a slice of a
//! BestEffort pod to end, on the CPU, its cache and its sibling thread. **Approach.** While a pod that comes first
//! ([`cpu`](crate::policy::cpu)) waits longer than configured, in two readings in a row, each BestEffort pod that uses
//! more than the *floor* gets a quota of [`LOWER_PERCENT`] of what it uses, and at each further reading as much less
//! again, down to the floor. When no pod has waited for [`CALM_NS`], quotas grow again by half at each reading, until
//! they no longer limit the pods and are removed.
//!
//! **Never for ever.** Time in which any pod is held back counts against the *budget*, which recovers at the same rate
//! while no pod is held: when it is used up, all pods are released until half of it has recovered. If all are at the
//! floor and it has not helped for [`GIVE_UP_NS`], the waiting pod does not wait for them, and they are released for
//! [`NO_EFFECT_NS`]. A pod that is evicted or ended is released at once.
//!
//! **Pod by pod**, not by one quota for `kubepods/besteffort`: in a cluster made with kubeadm that cgroup has
//! kube-proxy, which is critical for the node and requests nothing. Static, mirror and critical pods are never held,
//! nor are pods that use less than the floor. `cpu.idle` is not used: while it is set the kernel refuses every write of
//! `cpu.weight` (`sched_group_set_shares`), which a kubelet does each minute.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::context::CpuContext;
use crate::kube::pod_uid::PodUid;
use crate::kube::qos::QosClass;
use crate::model::bandwidth::{CpuKnob, CpuWhy};
pub use crate::model::cpu_state::Suppression;
use crate::model::cpu_state::{CpuState, PodCpuState};
use crate::model::decision::Decision;
use crate::model::options::CpuSuppress;
use crate::model::state::PodState;

/// What a step leaves of a quota, per cent.
pub const LOWER_PERCENT: u64 = 70;
/// What a step of letting go makes of a quota, per cent.
pub const RAISE_PERCENT: u64 = 150;
/// A pod must have waited in this many consecutive readings.
pub const CONSECUTIVE_READINGS: u32 = 2;
/// How long no pod must have waited before quotas grow, nanoseconds.
pub const CALM_NS: u64 = 3_000_000_000;
/// How long it is tried at the floor, nanoseconds.
pub const GIVE_UP_NS: u64 = 10_000_000_000;
/// How long it is not tried again after it did not help, nanoseconds.
pub const NO_EFFECT_NS: u64 = 120_000_000_000;
/// How long it is not tried again after a write failed, nanoseconds.
pub const FAILED_NS: u64 = 10_000_000_000;
/// The smallest quota that the kernel takes, microseconds (`min_cfs_quota_period`).
const QUOTA_MIN_US: u64 = 1000;

impl Suppression {
    fn let_all_go(&mut self, why: CpuWhy) {
        self.held.clear();
        (self.since_ns, self.calm_since_ns, self.at_floor_since_ns) = (None, None, None);
        self.consecutive_waits = 0;
        self.why = Some(why);
    }
}

/// Whether a pod may be held back.
pub(crate) fn may_be_held(pod: &PodState, pod_cpu: &PodCpuState) -> bool {
    pod.running
        && !pod.removed
        && pod.leaving.is_none()
        && !pod.row.exempt
        && pod.pod.qos_class() == QosClass::BestEffort
        && pod.pod.latency_critical() != Ok(Some(true))
        && pod_cpu
            .cgroups
            .get("")
            .is_some_and(|cgroup| cgroup.reading.configured_quota_us.is_none())
}

/// Holds pods back and releases them.
pub(crate) fn decide(
    options: &CpuSuppress,
    context: &CpuContext<'_>,
    cpu: &mut CpuState,
    decisions: &mut Vec<Decision>,
) {
    let CpuState {
        pods,
        waiters,
        suppression,
        interval_ns,
        shared,
        ..
    } = cpu;
    let now_ns = context.now_ns;
    let may_be_held = |uid: &PodUid, pod_cpu: &PodCpuState| {
        context
            .pods
            .get(uid)
            .is_some_and(|pod| may_be_held(pod, pod_cpu))
    };
    suppression.held.retain(|uid, _| {
        pods.get(uid)
            .is_some_and(|pod_cpu| may_be_held(uid, pod_cpu))
    });
    if suppression.held.is_empty() {
        suppression.spent_ns = suppression.spent_ns.saturating_sub(*interval_ns);
        suppression.is_spent &= suppression.spent_ns > options.budget_ns / 2;
        (suppression.since_ns, suppression.at_floor_since_ns) = (None, None);
    } else {
        suppression.spent_ns = suppression.spent_ns.saturating_add(*interval_ns);
    }
    let limit = options.wait_percent * 100;
    let waiter = waiters.iter().find(|waiter| waiter.waited > limit);
    let is_calm = waiters.iter().all(|waiter| waiter.waited <= limit / 2);
    suppression.consecutive_waits = match waiter {
        Some(_) => suppression.consecutive_waits.saturating_add(1),
        None => 0,
    };
    match is_calm {
        true => {
            suppression.calm_since_ns.get_or_insert(now_ns);
        }
        false => suppression.calm_since_ns = None,
    }
    let tried_ns = suppression
        .at_floor_since_ns
        .map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
    let calm_ns = suppression
        .calm_since_ns
        .map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
    if !suppression.held.is_empty() && suppression.spent_ns >= options.budget_ns {
        suppression.is_spent = true;
        suppression.let_all_go(CpuWhy::BudgetOver {
            budget_ns: options.budget_ns,
        });
    } else if waiter.is_some() && tried_ns >= GIVE_UP_NS {
        suppression.not_before_ns = now_ns.saturating_add(NO_EFFECT_NS);
        suppression.let_all_go(CpuWhy::NoEffect { tried_ns });
    } else if let Some(waiter) = waiter {
        let is_time = suppression.consecutive_waits >= CONSECUTIVE_READINGS
            && now_ns >= suppression.not_before_ns;
        if is_time && !suppression.is_spent {
            let why = CpuWhy::OthersWait {
                waiter: waiter.clone(),
                limit,
            };
            lower(options, suppression, pods, may_be_held, now_ns, why);
        }
    } else if is_calm && calm_ns >= CALM_NS && !suppression.held.is_empty() {
        raise(suppression, pods, shared.cpus);
        suppression.why = Some(CpuWhy::Calm { for_ns: calm_ns });
    }
    let why = suppression.why.clone().unwrap_or(CpuWhy::Untouchable);
    for (uid, pod_cpu) in pods.iter() {
        write(
            uid,
            pod_cpu,
            suppression.held.get(uid).copied(),
            &why,
            decisions,
        );
    }
}

fn lower(
    options: &CpuSuppress,
    suppression: &mut Suppression,
    pods: &BTreeMap<PodUid, PodCpuState>,
    may_be_held: impl Fn(&PodUid, &PodCpuState) -> bool,
    now_ns: u64,
    why: CpuWhy,
) {
    let mut at_floor = true;
    for (uid, pod_cpu) in pods {
        let Some(cgroup) = pod_cpu
            .cgroups
            .get("")
            .filter(|_| may_be_held(uid, pod_cpu))
        else {
            continue;
        };
        let of_cpu = |milli: u64| milli.saturating_mul(cgroup.reading.period_us) / 1000;
        let floor_us = of_cpu(options.floor_milli).max(QUOTA_MIN_US);
        let before_us = match suppression.held.get(uid) {
            Some(held_us) => *held_us,
            None if pod_cpu.used_milli > options.floor_milli => of_cpu(pod_cpu.used_milli),
            None => continue,
        };
        let quota_us = (before_us.saturating_mul(LOWER_PERCENT) / 100).max(floor_us);
        at_floor &= quota_us == floor_us;
        suppression.held.insert(uid.clone(), quota_us);
    }
    if suppression.held.is_empty() {
        return;
    }
    suppression.since_ns.get_or_insert(now_ns);
    suppression.why = Some(why);
    match at_floor {
        true => {
            suppression.at_floor_since_ns.get_or_insert(now_ns);
        }
        false => suppression.at_floor_since_ns = None,
    }
}

/// A quota that is twice what the pod uses, or as much as all CPUs, has no effect.
fn raise(suppression: &mut Suppression, pods: &BTreeMap<PodUid, PodCpuState>, cpus: u32) {
    suppression.at_floor_since_ns = None;
    suppression.held.retain(|uid, quota_us| {
        let Some((pod_cpu, cgroup)) = pods
            .get(uid)
            .and_then(|pod_cpu| Some((pod_cpu, pod_cpu.cgroups.get("")?)))
        else {
            return false;
        };
        let period_us = cgroup.reading.period_us;
        *quota_us = quota_us.saturating_mul(RAISE_PERCENT) / 100;
        let used_us = pod_cpu.used_milli.saturating_mul(period_us) / 1000;
        let all_us = u64::from(cpus).saturating_mul(period_us);
        *quota_us < used_us.saturating_mul(2) && *quota_us < all_us
    });
}

/// Adds the decision to write, or restore, the quota of one pod without a limit.
fn write(
    uid: &PodUid,
    pod_cpu: &PodCpuState,
    held_us: Option<u64>,
    why: &CpuWhy,
    decisions: &mut Vec<Decision>,
) {
    let Some(cgroup) = pod_cpu.cgroups.get("") else {
        return;
    };
    let reading = &cgroup.reading;
    if reading.configured_quota_us.is_some() || reading.quota_us == held_us {
        return;
    }
    let (uid, container) = (uid.clone(), Arc::from(""));
    let (knob, why) = (CpuKnob::Quota, why.clone());
    decisions.push(match held_us {
        Some(us) => Decision::SetCpu {
            uid,
            container,
            knob,
            us,
            configured_us: None,
            why,
        },
        None => Decision::RestoreCpu {
            uid,
            container,
            knob,
            why,
        },
    });
}

/// Restores the quota of pods that this step evicts or ends.
pub(crate) fn let_go(cpu: &mut CpuState, first: usize, decisions: &mut Vec<Decision>) {
    if cpu.suppression.held.is_empty() {
        return;
    }
    let leaving = decisions.iter().skip(first).filter_map(|decision| {
        let (Decision::Evict { uid, .. } | Decision::End { uid, .. }) = decision else {
            return None;
        };
        cpu.suppression.held.remove(uid).map(|_| uid.clone())
    });
    let leaving: Vec<PodUid> = leaving.collect();
    decisions.extend(leaving.into_iter().map(|uid| Decision::RestoreCpu {
        uid,
        container: Arc::from(""),
        knob: CpuKnob::Quota,
        why: CpuWhy::Leaves,
    }));
}

/// A write failed: the pod keeps its quota, and no pod is held back for a while.
pub(crate) fn not_written(cpu: &mut CpuState, uid: &PodUid, now_ns: u64) {
    if cpu.suppression.held.remove(uid).is_some() {
        cpu.suppression.not_before_ns = now_ns.saturating_add(FAILED_NS);
        cpu.suppression.why = Some(CpuWhy::NotWritten);
    }
}
