//! When to look again.
//!
//! Problem: polling at a fixed interval is late under load and wasteful when idle. An exact threshold on usage is not
//! enough either: while the kernel replaces page cache by anonymous memory, usage stays level and availability falls.
//!
//! Approach: *charges*, not usage. Every page that a pod takes is charged once, so what pods take between two samples
//! is at most what was charged. After each sample the engine takes the headroom (the least that must go before a
//! threshold can be met) and has the kernel report when that much has been charged ([`arm`]). The report can be early
//! (freed or reclaimable memory is charged too), and then the next arming is closer. Near a threshold a smallest step
//! bounds how often; it doubles while reports come quickly without a crossing, and by at most that step a report can be
//! late.
//!
//! What is not charged (tasks in the root cgroup, some kernel memory) is covered by a timer ([`schedule`]) that halves
//! the headroom at an assumed rate: slow where charges are counted, the fastest rate seen or assumed where they are
//! not.

use crate::model::config::EngineConfig;
use crate::model::decision::Decision;
use crate::model::event::{Cause, Sample};
use crate::model::signal::{Resource, Signal};
use crate::model::state::{NodeReading, NodeState};
use crate::model::threshold::Operator;
use crate::policy::eviction::{breaker, foresight, leaving, remedies, thresholds};

/// Smallest step between two reports: the kernel charges memory cgroups in batches of 64 pages per CPU, so less is
/// noise.
pub const STEP_MIN_BYTES: u64 = 64 * 4096;
/// Largest smallest step: at 10 GB/s of page cache traffic 600 reports a second.
pub const STEP_MAX_BYTES: u64 = 16 << 20;
/// Reports that follow each other faster than this, without a crossing, double the step.
const STEP_DOUBLES_BELOW_NS: u64 = 10_000_000;
/// Never wait longer for a sample: the kubelet's `evictionMonitoringPeriod`.
pub const INTERVAL_MAX_NS: u64 = 10_000_000_000;
/// Never sample more often on a timer.
pub const INTERVAL_MIN_NS: u64 = 5_000_000;
/// The same where charges are counted: the kernel reports what matters, the timer is only for what it does not count.
pub const INTERVAL_COUNTED_MIN_NS: u64 = 100_000_000;
/// While a threshold is met, never wait longer for a sample.
pub const INTERVAL_MET_NS: u64 = 1_000_000_000;
/// Assumed loss of availability that is not charged to any memory cgroup, bytes per second.
const UNCHARGED_RATE: u64 = 64 << 20;
/// Assumed loss of availability where charges are not counted, unless a faster one has been seen, bytes per second.
const ASSUMED_RATE: u64 = 1 << 30;

/// Assumed rate at which processes are made, per second.
const FORK_RATE: u64 = 20_000;
/// Never count processes more often.
pub const PROCESSES_INTERVAL_MIN_NS: u64 = 50_000_000;
/// Assumed rate at which a file system fills, bytes per second.
const WRITE_RATE: u64 = 1 << 30;
/// Assumed rate at which files are made, per second.
const CREATE_RATE: u64 = 50_000;
/// Never read file systems more often.
pub const STORAGE_INTERVAL_MIN_NS: u64 = 100_000_000;

/// Takes note of the headroom and has the kernel report when it may be used up.
pub(crate) fn arm(
    config: &EngineConfig,
    state: &mut NodeState,
    sample: &Sample,
    decisions: &mut Vec<Decision>,
) {
    let now_ns = state.now_ns;
    let victim_in_grace = state.leaving().any(|pod| {
        pod.leaving.is_some_and(|leaving| {
            leaving.evicted_for == Some(Resource::Memory) && leaving.killed_at_ns.is_none()
        })
    });
    // A pod that its kubelet ends is waited for no more when so much less is available.
    let awaited_bytes = state
        .leaving()
        .filter_map(|pod| pod.leaving)
        .filter_map(|leaving| leaving::left_to_wait_bytes(&leaving, &state.observations, now_ns));
    let awaited_bytes = awaited_bytes.min();
    let mut headroom_bytes: Option<u64> = None;
    let mut all_resolved = true;
    let charged = config.thresholds.iter().filter(|threshold| {
        threshold.operator == Operator::LessThan
            && threshold.signal.row().resource == Resource::Memory
    });
    for threshold in charged {
        let Some(observation) = state.observations.get(threshold.signal) else {
            continue;
        };
        let mut left = observation
            .value
            .checked_sub(threshold.amount(observation.capacity));
        if left.is_none() {
            all_resolved = false;
            // Met: what matters now is when the victim's grace, the time for other means, or that of the breaker is
            // over.
            if (victim_in_grace || state.remedies.episode.is_some()) && threshold.is_hard() {
                left = observation
                    .value
                    .checked_sub(thresholds::half(threshold, observation));
            } else if let (Some(bytes), true) = (awaited_bytes, threshold.is_hard()) {
                left = Some(bytes);
            } else if state.retained.is_some() && threshold.is_hard() {
                left = breaker::above_critical_bytes(threshold, &state.observations);
            }
        }
        if let Some(left) = left {
            headroom_bytes = Some(headroom_bytes.map_or(left, |least| least.min(left)));
        }
    }
    observe_growth(state, sample, headroom_bytes);
    let step_bytes = foresight::step_bytes(config, state);
    let report_in_bytes = [headroom_bytes, step_bytes].into_iter().flatten().min();
    let (Some(charged_bytes), Some(headroom_bytes)) = (sample.charged_bytes, report_in_bytes)
    else {
        return;
    };
    let arming = &mut state.arming;
    if matches!(sample.cause, Cause::ChargeThreshold { .. }) {
        let quick = now_ns.saturating_sub(arming.reported_ns) < STEP_DOUBLES_BELOW_NS;
        arming.step_bytes = if quick && all_resolved {
            arming.step_bytes.saturating_mul(2)
        } else {
            STEP_MIN_BYTES
        };
        arming.reported_ns = now_ns;
    }
    arming.step_bytes = arming.step_bytes.clamp(STEP_MIN_BYTES, STEP_MAX_BYTES);
    // Available below, not at, the threshold: hence one byte more.
    let left_bytes = headroom_bytes.saturating_add(1).max(arming.step_bytes);
    arming.at_charged_bytes = charged_bytes.saturating_add(left_bytes);
    decisions.push(Decision::Arm {
        at_charged_bytes: arming.at_charged_bytes,
    });
}

fn observe_growth(state: &mut NodeState, sample: &Sample, headroom_bytes: Option<u64>) {
    let now_ns = state.now_ns;
    let available = state.observations.get(Signal::MemoryAvailable);
    let available_bytes = available.map_or(0, |observation| observation.value);
    if let Some(last) = &state.node {
        let elapsed_ns = now_ns.saturating_sub(last.at_ns);
        let lost_bytes = last.available_bytes.saturating_sub(available_bytes);
        // Over less than a millisecond the batches in which memory is charged say more than the rate does.
        if elapsed_ns >= 1_000_000 {
            let rate = u128::from(lost_bytes) * 1_000_000_000 / u128::from(elapsed_ns);
            let remembered = state.growth_bytes_per_s - state.growth_bytes_per_s / 8;
            state.growth_bytes_per_s = remembered.max(u64::try_from(rate).unwrap_or(u64::MAX));
        }
    }
    state.node = Some(NodeReading {
        at_ns: now_ns,
        available_bytes,
        memory: sample.node,
        charges_counted: sample.charged_bytes.is_some(),
        headroom_bytes,
    });
}

/// Asks for the next sample where that is sooner or later than asked for before.
pub(crate) fn schedule(
    config: &EngineConfig,
    state: &mut NodeState,
    decisions: &mut Vec<Decision>,
) {
    storage_interval(config, state, decisions);
    let now_ns = state.now_ns;
    let Some(node) = &state.node else { return };
    let (rate, least_ns) = if node.charges_counted {
        (UNCHARGED_RATE, INTERVAL_COUNTED_MIN_NS)
    } else {
        (
            state.growth_bytes_per_s.saturating_mul(2).max(ASSUMED_RATE),
            INTERVAL_MIN_NS,
        )
    };
    let interval_ns = match node.headroom_bytes {
        Some(headroom_bytes) => half_of(headroom_bytes, rate).clamp(least_ns, INTERVAL_MAX_NS),
        // All thresholds are met and no victim is left: take a sample now and then.
        None => 1_000_000_000,
    };
    let watch_ns = foresight::wait_ns(config, state, rate).map(|wait_ns| wait_ns.max(least_ns));
    let interval_ns = watch_ns.map_or(interval_ns, |watch_ns| watch_ns.min(interval_ns));
    let mut at_ns = node.at_ns.saturating_add(interval_ns);
    if let Some(left) = headroom(config, state, |resource| resource == Resource::Processes) {
        let interval_ns = half_of(left, FORK_RATE).max(PROCESSES_INTERVAL_MIN_NS);
        at_ns = at_ns.min(node.at_ns.saturating_add(interval_ns));
    }
    for (threshold, known) in config.thresholds.iter().zip(&state.thresholds) {
        let Some(since_ns) = known.first_observed_ns else {
            continue;
        };
        // Nothing reports when it is no longer met, or met again after that: a load that comes and goes must not look
        // like one that has stayed.
        at_ns = at_ns.min(node.at_ns.saturating_add(INTERVAL_MET_NS));
        if !known.met {
            at_ns = at_ns.min(since_ns.saturating_add(threshold.grace_ns));
        }
    }
    for condition in &state.conditions {
        if let (true, Some(last_ns)) = (condition.status, condition.last_observed_ns) {
            let over_ns = last_ns.saturating_add(config.pressure_transition_period_ns);
            if over_ns > now_ns {
                at_ns = at_ns.min(over_ns);
            }
        }
    }
    for pod in state.leaving() {
        if let Some(leaving) = &pod.leaving {
            at_ns = at_ns.min(leaving::next_ns(leaving, now_ns));
        }
    }
    if let Some(next_ns) = remedies::next_ns(state) {
        at_ns = at_ns.min(next_ns);
    }
    // Never in the past, and never so soon that time does not move.
    let at_ns = at_ns.max(now_ns.saturating_add(1));
    if state.sample_by_ns != Some(at_ns) {
        state.sample_by_ns = Some(at_ns);
        decisions.push(Decision::SampleBy { at_ns });
    }
}

/// How soon file systems are to be read again: said when it has changed by half or doubled.
fn storage_interval(config: &EngineConfig, state: &mut NodeState, decisions: &mut Vec<Decision>) {
    let bytes = headroom(config, state, |resource| {
        matches!(resource, Resource::DiskBytes(_))
    });
    let inodes = headroom(config, state, |resource| {
        matches!(resource, Resource::DiskInodes(_))
    });
    let soonest_ns = [(bytes, WRITE_RATE), (inodes, CREATE_RATE)]
        .into_iter()
        .filter_map(|(left, rate)| Some(half_of(left?, rate)))
        .min();
    let Some(soonest_ns) = soonest_ns else { return };
    let interval_ns = soonest_ns.clamp(STORAGE_INTERVAL_MIN_NS, INTERVAL_MAX_NS);
    let known_ns = state.storage_interval_ns;
    let differs = interval_ns <= known_ns / 2 || interval_ns / 2 >= known_ns;
    let is_bound = interval_ns == STORAGE_INTERVAL_MIN_NS || interval_ns == INTERVAL_MAX_NS;
    if differs || (is_bound && interval_ns != known_ns) {
        state.storage_interval_ns = interval_ns;
        decisions.push(Decision::ReadStorageEvery { interval_ns });
    }
}

/// What is left of the resources that `of` names until the first of their thresholds is met; 0 if one is, `None`
/// without any.
fn headroom(config: &EngineConfig, state: &NodeState, of: fn(Resource) -> bool) -> Option<u64> {
    let thresholds = config.thresholds.iter().filter(|threshold| {
        threshold.operator == Operator::LessThan && of(threshold.signal.row().resource)
    });
    thresholds
        .filter_map(|threshold| {
            let observation = state.observations.get(threshold.signal)?;
            Some(
                observation
                    .value
                    .saturating_sub(threshold.amount(observation.capacity)),
            )
        })
        .min()
}

/// The time in which half of `left` is used up at `rate` per second, nanoseconds.
fn half_of(left: u64, rate: u64) -> u64 {
    let half_ns = u128::from(left) * 500_000_000 / u128::from(rate);
    u64::try_from(half_ns).unwrap_or(u64::MAX)
}
