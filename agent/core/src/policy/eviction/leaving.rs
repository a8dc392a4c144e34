//! Pods on their way out: SIGTERM, grace period, kill, and the wait for their memory. What begins and ends that:
//! [`steps`].
//!
//! Problem: a second pod must never be chosen while the first one's memory is still being freed (earlyoom#61, the
//! kubelet's fixed 30 s wait), yet a process that cannot die must not hold up the node for ever. Approach: a pod has
//! left when its cgroup is empty *and* 95 % of what it used has come back, as read from its own cgroup; every wait has
//! a bound.
//!
//! A pod that was killed and does not go for [`OVERDUE_AFTER_KILL_NS`] is *overdue*: if since the kill ever less memory
//! is available, the next one is chosen. After [`STUCK_AFTER_KILL_NS`] it is *stuck*, and not chosen again before it
//! was empty: what runs then is new. As that moment can be missed where something starts its containers again at once,
//! it counts as new after [`STUCK_FOR_NS`] too.
//!
//! A pod that its kubelet ends has the grace period that its owner chose, be it a year. So it is not waited for as a
//! victim is: for a short time after a threshold is met, what it has may come back ([`may_come_back`]); then it is
//! ranked as any other.

pub(crate) mod steps;

use crate::model::decision::{EvictionEnding, KillReason};
use crate::model::signal::{Observations, Resource, Signal};
use crate::model::state::{Leaving, NodeState, PodState};

/// A killed process frees its memory by itself as soon as it runs. After this time it evidently does not: it is
/// throttled, frozen or behind others.
pub const RELEASE_AFTER_KILL_NS: u64 = 20_000_000;
/// How long after a kill a pod may take to go (`podCleanupTimeout` of the kubelet's eviction manager).
pub const STUCK_AFTER_KILL_NS: u64 = 30_000_000_000;
/// How long memory that ever shrinks waits for it.
pub const OVERDUE_AFTER_KILL_NS: u64 = 2_000_000_000;
/// How long a pod that is stuck is not chosen again if it is not seen without a process, and one in which nothing runs
/// if it stays after its eviction, nanoseconds.
pub const STUCK_FOR_NS: u64 = 600_000_000_000;
/// Memory has shrunk when one part in so many of what was available is gone: less is what comes and goes on any node.
const FALL_PART: u64 = 16;
/// How long a threshold that is met waits for pods that their kubelet ends, nanoseconds.
pub const KUBELET_ENDS_NS: u64 = 2_000_000_000;
/// The same for disks, on which a pod has space until its directories are removed (`podCleanupTimeout` again).
pub const KUBELET_CLEANS_UP_NS: u64 = 30_000_000_000;
/// How often a pod that its kubelet ends is looked at for [`KUBELET_ENDS_NS`].
const KUBELET_LOOK_NS: u64 = 50_000_000;
/// How long an empty cgroup may take to give its memory back: what is left then is shared or cached, and another pod's
/// kill may be what frees it.
pub const LINGER_AFTER_EMPTY_NS: u64 = 1_000_000_000;

/// What a moment makes of a pod on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum After {
    /// It still leaves.
    Leaving(Leaving),
    /// It has ended.
    Ended(EvictionEnding),
}

/// The outcome for a pod that is being ended and uses this much now; `None`: its cgroup was removed.
/// [`steps`] does the same, and says it.
pub(crate) fn after(
    mut leaving: Leaving,
    running: bool,
    usage_bytes: Option<u64>,
    now_ns: u64,
) -> After {
    if kill_now(&leaving, false, now_ns).is_some() {
        killed(&mut leaving, running, now_ns, None);
    }
    // The figure is of this moment.
    match ending(&leaving, running, usage_bytes, now_ns, now_ns) {
        Some(ending) => After::Ended(ending),
        None => After::Leaving(leaving),
    }
}

/// The state of a pod whose ending begins now.
pub(crate) fn begun(
    pod: &PodState,
    evicted_for: Option<Resource>,
    now_ns: u64,
    grace_ms: u64,
) -> Leaving {
    let kill_at_ns = now_ns.saturating_add(grace_ms.saturating_mul(1_000_000));
    Leaving {
        evicted_for,
        ended_by_kubelet: false,
        since_ns: now_ns,
        kill_at_ns,
        killed_at_ns: None,
        kill_tried_ns: None,
        released: false,
        empty_at_ns: None,
        terminate_failed: false,
        usage_before_bytes: pod.memory.map_or(0, |memory| memory.usage_bytes),
        used_before_bytes: pod.row.usage,
        available_at_kill_bytes: None,
    }
}

/// Takes note that it is killed now, when so much memory is available. Of a pod in which nothing runs only what it has
/// left is waited for from now on.
pub(crate) fn killed(
    leaving: &mut Leaving,
    running: bool,
    now_ns: u64,
    available_bytes: Option<u64>,
) {
    leaving.killed_at_ns = Some(now_ns);
    if !running {
        leaving.empty_at_ns.get_or_insert(now_ns);
    }
    if leaving.kill_tried_ns.is_none() {
        leaving.kill_tried_ns = Some(now_ns);
        leaving.available_at_kill_bytes = available_bytes;
    }
}

/// What the node has available: what the kernel can hand out, where that is known.
pub(crate) fn available_bytes(observations: &Observations) -> Option<u64> {
    let kernel = observations.get(Signal::KernelMemoryAvailable);
    let available = kernel.or_else(|| observations.get(Signal::MemoryAvailable));
    available.map(|observation| observation.value)
}

/// Whether it was killed a while ago and still has processes.
pub(crate) fn is_overdue(leaving: &Leaving, now_ns: u64) -> bool {
    let tried_ns = leaving
        .kill_tried_ns
        .filter(|_| leaving.empty_at_ns.is_none());
    tried_ns.is_some_and(|tried_ns| now_ns >= tried_ns.saturating_add(OVERDUE_AFTER_KILL_NS))
}

/// Whether it is waited for now: a victim, one whose kubelet may be about to end it, or one that has ended and has
/// memory still.
#[must_use]
pub fn is_awaited(leaving: &Leaving, now_ns: u64) -> bool {
    !leaving.ended_by_kubelet
        || leaving.empty_at_ns.is_some()
        || now_ns.saturating_sub(leaving.since_ns) < KUBELET_CLEANS_UP_NS
}

/// Whether what a pod has that its kubelet ends may come back before another one has to go for a threshold that has
/// been met for `met_ns`.
pub(crate) fn may_come_back(
    leaving: &Leaving,
    resource: Resource,
    met_ns: u64,
    observations: &Observations,
    now_ns: u64,
) -> bool {
    let patience_ns = match resource {
        Resource::DiskBytes(_) | Resource::DiskInodes(_) => KUBELET_CLEANS_UP_NS,
        Resource::Memory | Resource::Processes | Resource::Io | Resource::Cpu => KUBELET_ENDS_NS,
    };
    let has_fallen = resource == Resource::Memory && has_memory_fallen(leaving, observations);
    let ends_ns = now_ns.saturating_sub(leaving.since_ns);
    leaving.ended_by_kubelet && ends_ns.max(met_ns) < patience_ns && !has_fallen
}

/// How much less memory may be available, bytes, before a pod that its kubelet ends is waited for no more; `None`: it
/// is not waited for.
pub(crate) fn left_to_wait_bytes(
    leaving: &Leaving,
    observations: &Observations,
    now_ns: u64,
) -> Option<u64> {
    let is_waited_for = may_come_back(leaving, Resource::Memory, 0, observations, now_ns);
    let (then, now) = leaving
        .available_at_kill_bytes
        .filter(|_| is_waited_for)
        .zip(available_bytes(observations))?;
    Some(
        now.saturating_sub(then - then / FALL_PART)
            .saturating_add(1),
    )
}

/// Whether less memory is available now than when it was killed, or its kubelet began to end it.
pub(crate) fn has_memory_fallen(leaving: &Leaving, observations: &Observations) -> bool {
    let now_bytes = available_bytes(observations);
    let both = leaving.available_at_kill_bytes.zip(now_bytes);
    both.is_some_and(|(then, now)| now < then - then / FALL_PART)
}

/// Whether what runs in it has survived SIGKILL, as far as is known.
pub(crate) fn is_stuck(pod: &PodState, now_ns: u64) -> bool {
    // One without a manifest is not looked at any more.
    pod.stuck && (pod.removed || now_ns.saturating_sub(pod.stuck_since_ns) < STUCK_FOR_NS)
}

/// Whether it was evicted, and still may end: nothing was started in it since. After [`STUCK_FOR_NS`] the eviction
/// counts as lost.
pub(crate) fn is_evicted(pod: &PodState, now_ns: u64) -> bool {
    let evicted_at_ns = pod.evicted_at_ns;
    evicted_at_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < STUCK_FOR_NS)
}

/// Whether a grace period that the agent keeps still runs: it has not tried to kill the pod.
#[must_use]
pub fn has_grace(leaving: &Leaving) -> bool {
    leaving.kill_tried_ns.is_none() && !leaving.ended_by_kubelet
}

/// Why a pod is killed now, if it is. `first_processes_ended`: that is what has just been reported of it.
pub(super) fn kill_now(
    leaving: &Leaving,
    first_processes_ended: bool,
    now_ns: u64,
) -> Option<KillReason> {
    let is_over = leaving.killed_at_ns.is_some() || leaving.empty_at_ns.is_some();
    if is_over || leaving.ended_by_kubelet {
        return None;
    }
    if leaving.terminate_failed {
        return Some(KillReason::TerminateFailed);
    }
    if first_processes_ended {
        return Some(KillReason::FirstProcessesEnded);
    }
    (now_ns >= leaving.kill_at_ns).then_some(KillReason::GraceOver)
}

pub(super) fn release_now(leaving: &Leaving, now_ns: u64) -> bool {
    let overdue = leaving
        .killed_at_ns
        .is_some_and(|at_ns| now_ns >= at_ns.saturating_add(RELEASE_AFTER_KILL_NS));
    overdue && leaving.empty_at_ns.is_none() && !leaving.released
}

pub(super) fn ending(
    leaving: &Leaving,
    running: bool,
    usage_bytes: Option<u64>,
    read_ns: u64,
    now_ns: u64,
) -> Option<EvictionEnding> {
    // 95 % back: usage at most a twentieth of what it was. No reading: the cgroup was removed.
    let before_bytes = leaving.usage_before_bytes;
    let back = usage_bytes.is_none_or(|usage| usage.saturating_mul(20) <= before_bytes);
    // Where nothing ran, the kubelet may take away what was left within the grace period.
    let has_ended = leaving.empty_at_ns.is_some() || !running && before_bytes > 0;
    if back && has_ended {
        return Some(EvictionEnding::Freed);
    }
    if let Some(empty_at_ns) = leaving.empty_at_ns {
        // Only a figure from after the wait shows that memory is still held: any event comes here, and the newest
        // figure may be from before the cgroup was empty.
        // Of what nothing ran in, the kubelet has to take the volumes away.
        let linger_ns = match leaving.killed_at_ns == leaving.empty_at_ns {
            true => KUBELET_ENDS_NS,
            false => LINGER_AFTER_EMPTY_NS,
        };
        return (read_ns >= empty_at_ns.saturating_add(linger_ns))
            .then_some(EvictionEnding::Lingering);
    }
    let tried_ns = leaving.kill_tried_ns?;
    (now_ns >= tried_ns.saturating_add(STUCK_AFTER_KILL_NS)).then_some(EvictionEnding::Stuck)
}

/// When something is to be done about this pod, if nothing happens before.
pub(crate) fn next_ns(leaving: &Leaving, now_ns: u64) -> u64 {
    let since_ns = now_ns.saturating_sub(leaving.since_ns);
    if leaving.ended_by_kubelet && leaving.empty_at_ns.is_none() {
        return match since_ns {
            0..KUBELET_ENDS_NS => now_ns.saturating_add(KUBELET_LOOK_NS),
            KUBELET_ENDS_NS..KUBELET_CLEANS_UP_NS => {
                leaving.since_ns.saturating_add(KUBELET_CLEANS_UP_NS)
            }
            // Its end shows as that of any pod.
            KUBELET_CLEANS_UP_NS.. => u64::MAX,
        };
    }
    // Memory comes back within milliseconds of a kill, or not at all for a long time.
    let step_ns = if since_ns < 2_000_000_000 {
        5_000_000
    } else {
        50_000_000
    };
    let look_ns = now_ns.saturating_add(step_ns);
    if leaving.killed_at_ns.is_none()
        && leaving.empty_at_ns.is_none()
        && leaving.kill_at_ns > now_ns
    {
        look_ns.min(leaving.kill_at_ns)
    } else {
        look_ns
    }
}

/// Whether its eviction stands in the way of another one for `resource`.
pub(crate) fn is_under_way(leaving: &Leaving, resource: Resource) -> bool {
    match leaving.evicted_for {
        Some(cause) => {
            resource != Resource::Memory
                || cause == Resource::Memory
                || leaving.killed_at_ns.is_some()
        }
        None => false,
    }
}

/// When the newest victim was still there, or may have been, nanoseconds, as seen at `now_ns`.
pub(crate) fn victim_seen_ns(state: &NodeState, now_ns: u64) -> u64 {
    let is_victim = |pod: &PodState| {
        pod.leaving
            .is_some_and(|leaving| leaving.evicted_for.is_some())
    };
    let seen_ns = state.victim_seen_ns.unwrap_or(now_ns);
    if state.leaving().any(is_victim) {
        now_ns
    } else {
        seen_ns
    }
}
