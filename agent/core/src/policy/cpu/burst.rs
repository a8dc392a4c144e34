//! A container that is throttled while the node has idle CPU time may exceed its limit for a while, paid from CPU time
//! it left unused.
//!
//! **Problem.** A limit is enforced period by period (100 ms). A service that answers a request with four threads has
//! used up a limit of two CPUs in half a period and stands still for the rest, though it uses less than its limit over
//! any second, and though CPUs are idle (kubernetes#67577, kubernetes#51135). Raising the quota of every throttled
//! container would also serve those that compute without end, at the cost of their neighbours.
//!
//! **Approach.** Two steps, each an option, for a cgroup that was throttled since the reading before:
//! 1. *Burst*: `cpu.max.burst`, a part of the quota, never above it (the kernel's rule, `tg_set_cfs_bandwidth`). The
//!    kernel then lets it use in one period what it left of earlier ones. Its mean stays below the limit.
//! 2. *Quota*: if it is throttled all the same, the quota is raised by [`STEP_PERCENT`] of the limit at a time, up to
//!    the configured factor.
//!
//! Bounds, in this order:
//! - The *guard*: nothing is given, and one step is taken back at each reading, while the shared CPUs are busier than
//!   configured or another pod that comes first ([`cpu`](crate::policy::cpu)) waits longer than configured.
//! - The *allowance*: CPU time that the cgroup left of its limit, never more than configured, and what it uses above
//!   the limit goes off it. A quota is raised only while the allowance covers all that the raised quota can use until
//!   the reading after the next; else it is the limit again at once. So over any time a cgroup uses no more than its
//!   limit plus one allowance. It begins at 0: nothing is given that was not saved.
//! - A pod with exclusive CPUs has no quota and is left alone.
//!
//! One step is taken back when the cgroup was neither throttled nor above its quota for its *patience*. If it is
//! throttled again soon after, that was wrong: it gets the step again, and its patience doubles, so that a steady load
//! settles at what it needs instead of being tried again and again.
//!
//! The cgroup of the pod has a quota, too: it gets what it needs itself, or the sum of what its containers are given,
//! whichever is more; parents first where a quota grows, children first where it shrinks, for cgroup v1 refuses a child
//! that may use more than its parent (`tg_cfs_schedulable_down`).

use std::sync::Arc;

use super::context::CpuContext;
use crate::kube::pod_uid::PodUid;
use crate::model::bandwidth::{CpuKnob, CpuWhy};
use crate::model::cpu_state::{CgroupState, CpuState, PodCpuState};
pub use crate::model::cpu_state::{Grant, PATIENCE_NS};
use crate::model::decision::Decision;
use crate::model::options::CpuBurst;

/// A step of a quota, per cent of the limit.
pub const STEP_PERCENT: u32 = 25;
/// How long a step is given to work before the next, nanoseconds.
pub const SETTLE_NS: u64 = 2_000_000_000;
/// How long nothing is given after the guard took something back or a write failed, nanoseconds.
pub const COOL_DOWN_NS: u64 = 10_000_000_000;
/// A cgroup that is throttled again within this time after a step was taken back had needed it, nanoseconds.
pub const PROOF_NS: u64 = 30_000_000_000;
/// The allowance must cover the raised quota for this many intervals between readings: the next may be late.
const COVERED_INTERVALS: u64 = 2;
/// Before a quota is first raised it must cover it for this many times as long, or it would fall back at once.
const START_FACTOR: u64 = 4;

impl Grant {
    /// Whether it has more than its limit.
    pub fn is_any(&self) -> bool {
        self.burst || self.quota_percent > 100
    }

    /// Takes everything back, and gives nothing for a while.
    pub(crate) fn give_up(&mut self, why: CpuWhy, now_ns: u64) {
        (self.burst, self.quota_percent, self.taken_back) = (false, 100, None);
        self.not_before_ns = now_ns.saturating_add(COOL_DOWN_NS);
        self.why = Some(why);
    }

    /// Takes one step back.
    fn back(&mut self) {
        if self.quota_percent > 100 {
            self.quota_percent = self.quota_percent.saturating_sub(STEP_PERCENT).max(100);
        } else {
            self.burst = false;
        }
    }
}

/// So much CPU time for this time at a quota, microseconds.
fn quota_over(quota_us: u64, period_us: u64, time_ns: u64) -> u64 {
    let us = u128::from(quota_us) * u128::from(time_ns / 1000) / u128::from(period_us.max(1));
    u64::try_from(us).unwrap_or(u64::MAX)
}

/// A part of a quota.
fn part(quota_us: u64, percent: u32) -> u64 {
    u64::try_from(u128::from(quota_us) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// What the allowance must hold for a quota: all that it can use above the limit until the reading after the next.
fn needed_us(configured_us: u64, period_us: u64, percent: u32, interval_ns: u64) -> u64 {
    let above_us = part(configured_us, percent.saturating_sub(100));
    quota_over(
        above_us,
        period_us,
        interval_ns.saturating_mul(COVERED_INTERVALS),
    )
}

/// Gives and takes back.
pub(crate) fn decide(
    options: &CpuBurst,
    context: &CpuContext<'_>,
    cpu: &mut CpuState,
    decisions: &mut Vec<Decision>,
) {
    let CpuState {
        pods,
        waiters,
        busy,
        interval_ns,
        ..
    } = cpu;
    let look = Look {
        options,
        now_ns: context.now_ns,
        interval_ns: *interval_ns,
    };
    let busy_limit = options.node_use_percent * 100;
    let node_busy = (*busy > busy_limit).then_some(CpuWhy::NodeBusy {
        used: *busy,
        limit: busy_limit,
    });
    let limit = options.wait_percent * 100;
    for (uid, pod_cpu) in pods.iter_mut() {
        let Some(pod) = context.pods.get(uid) else {
            continue;
        };
        if pod.leaving.is_some() {
            continue;
        }
        let waiter = waiters
            .iter()
            .find(|waiter| waiter.uid != *uid && waiter.waited > limit);
        let guard = node_busy.clone().or_else(|| {
            waiter.map(|waiter| CpuWhy::OthersWait {
                waiter: waiter.clone(),
                limit,
            })
        });
        let is_exclusive = context.has_exclusive_cpus(uid);
        for cgroup in pod_cpu.cgroups.values_mut() {
            if is_exclusive || cgroup.reading.configured_quota_us.is_none() {
                if cgroup.grant.is_any() {
                    cgroup.grant.give_up(CpuWhy::Untouchable, context.now_ns);
                }
            } else {
                look.at(cgroup, guard.as_ref());
            }
        }
        write(options, uid, pod_cpu, decisions);
    }
}

/// One pass over all cgroups.
struct Look<'a> {
    options: &'a CpuBurst,
    now_ns: u64,
    interval_ns: u64,
}

impl Look<'_> {
    fn at(&self, cgroup: &mut CgroupState, guard: Option<&CpuWhy>) {
        let Some(configured_us) = cgroup.reading.configured_quota_us else {
            return;
        };
        let (options, now_ns) = (self.options, self.now_ns);
        let period_us = cgroup.reading.period_us;
        let grant = &mut cgroup.grant;
        let earned_us = quota_over(configured_us, period_us, cgroup.counted_ns);
        grant.allowance_us = grant
            .allowance_us
            .saturating_add(earned_us)
            .saturating_sub(cgroup.used_us)
            .min(quota_over(configured_us, period_us, options.allowance_ns));
        if cgroup.throttled > 0 || cgroup.bursts > 0 {
            grant.quiet_since_ns = None;
        } else {
            grant.quiet_since_ns.get_or_insert(now_ns);
        }
        if let Some(why) = guard {
            if grant.is_any() || cgroup.throttled > 0 {
                grant.why = Some(why.clone());
            }
            if grant.is_any() {
                grant.back();
                grant.taken_back = None;
                grant.not_before_ns = now_ns.saturating_add(COOL_DOWN_NS);
            }
            return;
        }
        let needs = |percent| needed_us(configured_us, period_us, percent, self.interval_ns);
        let spent = |grant: &Grant, percent| CpuWhy::AllowanceSpent {
            left_us: grant.allowance_us,
            needed_us: needs(percent),
        };
        if grant.quota_percent > 100 && grant.allowance_us < needs(grant.quota_percent) {
            grant.why = Some(spent(grant, grant.quota_percent));
            (grant.quota_percent, grant.taken_back) = (100, None);
            grant.not_before_ns = now_ns.saturating_add(SETTLE_NS);
            return;
        }
        if cgroup.throttled == 0 {
            self.quiet(grant);
            return;
        }
        let throttled = CpuWhy::Throttled {
            throttled: cgroup.throttled,
            periods: cgroup.periods,
        };
        if let Some((at_ns, burst, percent)) = grant.taken_back.take()
            && now_ns.saturating_sub(at_ns) <= PROOF_NS
            && grant.allowance_us >= needs(percent)
        {
            (grant.burst, grant.quota_percent) = (burst, percent);
            grant.patience_ns = grant.patience_ns.saturating_mul(2).min(PATIENCE_NS.1);
            grant.not_before_ns = now_ns.saturating_add(SETTLE_NS);
            grant.why = Some(throttled);
            return;
        }
        if now_ns < grant.not_before_ns {
            return;
        }
        if !grant.burst && options.burst_percent > 0 && cgroup.reading.burst_us.is_some() {
            grant.burst = true;
        } else {
            let most = options.quota_percent.max(100);
            let percent = grant.quota_percent.saturating_add(STEP_PERCENT).min(most);
            if percent == grant.quota_percent {
                return;
            }
            let factor = match grant.quota_percent {
                100 => START_FACTOR,
                _ => 1,
            };
            if grant.allowance_us < needs(percent).saturating_mul(factor) {
                grant.why = Some(spent(grant, percent));
                return;
            }
            grant.quota_percent = percent;
        }
        grant.why = Some(throttled);
        grant.not_before_ns = now_ns.saturating_add(SETTLE_NS);
    }

    /// It was not throttled.
    fn quiet(&self, grant: &mut Grant) {
        let now_ns = self.now_ns;
        if let Some((at_ns, ..)) = grant.taken_back
            && now_ns.saturating_sub(at_ns) > PROOF_NS
        {
            grant.taken_back = None;
            grant.patience_ns = (grant.patience_ns / 2).max(PATIENCE_NS.0);
        }
        let quiet_ns = grant
            .quiet_since_ns
            .map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        if grant.is_any() && quiet_ns >= grant.patience_ns {
            grant.taken_back = Some((now_ns, grant.burst, grant.quota_percent));
            grant.back();
            // The next step is earned anew.
            grant.quiet_since_ns = Some(now_ns);
            grant.why = Some(CpuWhy::Quiet { for_ns: quiet_ns });
        }
    }
}

/// What a cgroup shall have.
#[derive(Clone, Copy)]
struct Target {
    quota_us: u64,
    burst_us: u64,
}

fn target_of(options: &CpuBurst, cgroup: &CgroupState, configured_us: u64) -> Target {
    let configured_burst_us = cgroup.reading.configured_burst_us.unwrap_or(0);
    let burst_us = part(configured_us, options.burst_percent.min(100));
    Target {
        quota_us: part(configured_us, cgroup.grant.quota_percent),
        burst_us: match cgroup.grant.burst {
            true => burst_us.max(configured_burst_us),
            false => configured_burst_us,
        },
    }
}

/// What the cgroup of the pod itself is to have: what its containers are given beyond their limits has to fit into it.
fn target_of_pod(options: &CpuBurst, pod_cpu: &PodCpuState) -> Option<Target> {
    let (mut above_us, mut burst_us) = (0_u64, 0_u64);
    let containers = pod_cpu.cgroups.iter().filter(|(name, _)| !name.is_empty());
    for (_, cgroup) in containers {
        if let Some(configured_us) = cgroup.reading.configured_quota_us {
            let target = target_of(options, cgroup, configured_us);
            above_us = above_us.saturating_add(target.quota_us.saturating_sub(configured_us));
            if cgroup.grant.burst {
                burst_us = burst_us.saturating_add(target.burst_us);
            }
        }
    }
    let cgroup = pod_cpu.cgroups.get("")?;
    let configured_us = cgroup.reading.configured_quota_us?;
    let mut target = target_of(options, cgroup, configured_us);
    let for_containers_us = configured_us
        .saturating_add(above_us)
        .min(part(configured_us, options.quota_percent.max(100)));
    target.quota_us = target.quota_us.max(for_containers_us);
    target.burst_us = target.burst_us.max(burst_us.min(configured_us));
    Some(target)
}

/// Adds the decisions that bring the cgroups of a pod to their targets: a pod's cgroup grows before its containers, and
/// shrinks after them.
fn write(options: &CpuBurst, uid: &PodUid, pod_cpu: &PodCpuState, decisions: &mut Vec<Decision>) {
    let of_pod = target_of_pod(options, pod_cpu);
    let target = |name: &str, cgroup: &CgroupState| -> Option<Target> {
        if name.is_empty() {
            return of_pod;
        }
        let mut target = target_of(options, cgroup, cgroup.reading.configured_quota_us?);
        if let Some(of_pod) = of_pod {
            target.quota_us = target.quota_us.min(of_pod.quota_us);
        }
        Some(target)
    };
    let mut change = |(name, cgroup): (&Arc<str>, &CgroupState), grows: bool| {
        if let Some(target) = target(name, cgroup) {
            change_knobs(uid, (name, cgroup), target, grows, decisions);
        }
    };
    pod_cpu.cgroups.iter().for_each(|it| change(it, true));
    pod_cpu
        .cgroups
        .iter()
        .rev()
        .for_each(|it| change(it, false));
}

/// Adds the decisions for those settings of a cgroup that are to grow, or that are not.
fn change_knobs(
    uid: &PodUid,
    (name, cgroup): (&Arc<str>, &CgroupState),
    target: Target,
    grows: bool,
    decisions: &mut Vec<Decision>,
) {
    let reading = &cgroup.reading;
    let knobs = [
        (
            CpuKnob::Quota,
            reading.quota_us,
            reading.configured_quota_us,
            target.quota_us,
        ),
        (
            CpuKnob::Burst,
            reading.burst_us,
            reading.configured_burst_us,
            target.burst_us,
        ),
    ];
    for (knob, now_us, configured_us, us) in knobs {
        // Skip files that the kernel does not have and values that are already right.
        let Some(now_us) = now_us.filter(|now_us| *now_us != us) else {
            continue;
        };
        if (us > now_us) != grows {
            continue;
        }
        let is_restored = configured_us == Some(us);
        let why = match &cgroup.grant.why {
            Some(why) if cgroup.grant.is_any() || !name.is_empty() || is_restored => why.clone(),
            _ => CpuWhy::FollowsContainers,
        };
        let (uid, container) = (uid.clone(), Arc::clone(name));
        decisions.push(if is_restored {
            Decision::RestoreCpu {
                uid,
                container,
                knob,
                why,
            }
        } else {
            Decision::SetCpu {
                uid,
                container,
                knob,
                us,
                configured_us,
                why,
            }
        });
    }
}
