//! Out of memory, foreseen.
//!
//! Problem: the kernel's OOM killer runs while `memory.available` still shows 140 MB, above the kubelet's default
//! threshold: its measure knows neither the zone watermarks nor kernel memory. A higher threshold would waste memory on
//! every node where nothing grows. Approach: watch how fast what the kernel can hand out goes down. If it goes on like
//! this and is gone within the *horizon*, the first of the memory ranking goes now, whatever the thresholds say.
//!
//! - *left*: `kernelMemory.available` (MemAvailable + SwapFree). Page cache that can go counts as left, so there is no
//!   eviction while reclaim would do.
//! - *unused*: free memory, page cache and free swap. What goes from it is *lost*; page cache that grows is not, though
//!   MemAvailable counts the first of it by half. Only what goes below the lowest point of the last horizon counts: a
//!   load that swings comes back there again and again. Left must go down too, by a quarter of it at least (slab that
//!   can go also takes free memory), or be gone already: then kswapd lives on the last page cache.
//! - *rate*: the median of what was lost in each of the five newest intervals. Four of them must show a
//!   loss: memory that is taken at once, or by an ordinary ramp that has ended, is no trend.
//! - The kernel must agree: it woke kswapd, or a task reclaimed or stalled, within the last second; or so little is
//!   really free ([`FREE_SHARE`]) that it is about to.
//!
//! Hysteresis: while a victim is being ended no other pod is chosen, and when it has ended the intervals begin anew.
//! Losses below [`RATE_MIN`] are left to thresholds.

use crate::model::config::EngineConfig;
use crate::model::event::{Cause, NodeMemory, Sample};
use crate::model::outlook::{Figures, INTERVALS, Interval};
pub use crate::model::outlook::{Foreseen, Outlook};
use crate::model::signal::{Observation, Resource, Signal};
use crate::model::state::NodeState;
use crate::model::threshold::{Amount, Operator, Passes, Threshold};
use crate::policy::eviction::view::View;

/// So many of them must show a loss.
const LOSING_MIN: usize = 4;
/// The shortest interval is this part of the horizon.
const INTERVALS_PER_HORIZON: u64 = 20;
/// The kernel counts free pages per CPU and adds them up in batches: less than this says nothing, and is kept as a
/// margin.
const NOISE_BYTES: u64 = 1 << 20;
/// Less than this per second is not foreseen: it is a matter of minutes.
pub const RATE_MIN: u64 = 1 << 20;
/// The kernel reclaims, or is about to, when at most this part of all memory is free. Its own default is less on every
/// machine: the low watermark's base is bounded by 5 % (`set_recommended_min_free_kbytes`), the high one is half as
/// much again.
pub const FREE_SHARE: u64 = 12;
/// For so long a sign of shortage counts.
const SHORT_FOR_NS: u64 = 1_000_000_000;
/// The kernel reports when this part of what is left has been charged.
const STEPS: u64 = 64;

impl Interval {
    fn per_second(self) -> i64 {
        let rate = i128::from(self.lost_bytes) * 1_000_000_000 / i128::from(self.elapsed_ns).max(1);
        i64::try_from(rate).unwrap_or(i64::MAX)
    }
}

/// A shortage that is foreseen, with the figures behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shortage {
    pub(crate) foreseen: Foreseen,
    pub(crate) left_bytes: u64,
    /// What is lost within the horizon.
    pub(crate) line_bytes: u64,
    capacity_bytes: u64,
    at_ns: u64,
}

impl Shortage {
    /// As a threshold that is met: at this rate, so much should be left. To be resolved, twice of it must be there.
    pub(crate) fn threshold(&self) -> (Threshold, Observation) {
        let line = Amount::Absolute(self.line_bytes);
        let threshold = Threshold {
            signal: Signal::KernelMemoryAvailable,
            operator: Operator::LessThan,
            value: line,
            grace_ns: 0,
            min_reclaim: Some(line),
            passes: Passes::All,
        };
        let observation = Observation {
            value: self.left_bytes,
            capacity: self.capacity_bytes,
            at_ns: Some(self.at_ns),
        };
        (threshold, observation)
    }

    /// A victim that is leaving has no grace below this.
    pub(crate) fn half_bytes(&self) -> u64 {
        self.line_bytes / 2
    }
}

impl Figures {
    fn of(node: &NodeMemory, swap_bytes: u64, at_ns: u64) -> Self {
        let cache = node.page_cache().all_bytes();
        Self {
            at_ns,
            left_bytes: node.left_bytes().saturating_add(swap_bytes),
            unused_bytes: node
                .free_bytes
                .saturating_add(cache)
                .saturating_add(swap_bytes),
            free_bytes: node.free_bytes,
            capacity_bytes: node.capacity_bytes,
        }
    }
}

impl Outlook {
    /// These and the values of a sample, with `swap_bytes` of usable free swap.
    fn with(
        mut self,
        sample: &Sample,
        swap_bytes: u64,
        now_ns: u64,
        horizon_ns: u64,
        leaving: bool,
    ) -> Self {
        if matches!(
            sample.cause,
            Cause::KswapdWake { .. } | Cause::DirectReclaim { .. } | Cause::PressureStall
        ) {
            self.short_ns = Some(now_ns);
        }
        if sample.node.capacity_bytes == 0 {
            return self;
        }
        let now = Figures::of(&sample.node, swap_bytes, now_ns);
        if self.leaving && !leaving {
            self.since = None;
            self.lows = [None; 2];
            self.intervals = [Interval::default(); INTERVALS];
        }
        self.leaving = leaving;
        self.now = Some(now);
        if now_ns.saturating_sub(self.lows_since_ns) >= horizon_ns {
            self.lows = [None, self.lows[0]];
            self.lows_since_ns = now_ns;
        }
        let low = self.lows[0].get_or_insert(now.unused_bytes);
        *low = now.unused_bytes.min(*low);
        let low_bytes = self.lows.into_iter().flatten().min();
        let Some(since) = self.since else {
            self.since = Some(now);
            self.low_bytes = low_bytes.unwrap_or(now.unused_bytes);
            return self;
        };
        let elapsed_ns = now_ns.saturating_sub(since.at_ns);
        let lost_bytes = difference(self.low_bytes, now.unused_bytes);
        let tells = lost_bytes.unsigned_abs() >= NOISE_BYTES || elapsed_ns >= horizon_ns;
        if elapsed_ns >= interval_ns(horizon_ns) && tells {
            self.intervals.rotate_left(1);
            self.intervals[INTERVALS - 1] = Interval {
                elapsed_ns,
                lost_bytes,
                left_lost_bytes: difference(since.left_bytes, now.left_bytes),
            };
            self.since = Some(now);
            self.low_bytes = low_bytes.unwrap_or(now.unused_bytes);
        }
        self
    }

    /// How fast memory shrinks, bytes per second; 0 without a trend.
    fn rate(&self) -> u64 {
        let mut rates = self.intervals.map(Interval::per_second);
        rates.sort_unstable();
        if rates[INTERVALS - LOSING_MIN] <= 0 {
            return 0;
        }
        rates[INTERVALS / 2].max(0).unsigned_abs()
    }

    /// Whether the memory that the kernel can hand out shrinks together with unused memory.
    fn is_going(&self) -> bool {
        let sum = |of: fn(&Interval) -> i64| -> i128 {
            self.intervals
                .iter()
                .map(|interval| i128::from(of(interval)))
                .sum()
        };
        let lost = sum(|interval| interval.lost_bytes);
        self.now.is_some_and(|now| now.left_bytes <= NOISE_BYTES)
            || sum(|interval| interval.left_lost_bytes) * 4 >= lost
    }

    fn shortage(&self, horizon_ns: u64, now_ns: u64) -> Option<Shortage> {
        let now = self.now.filter(|now| now.at_ns == now_ns)?;
        let rate = self.rate();
        if rate < RATE_MIN {
            return None;
        }
        let line = u128::from(rate) * u128::from(horizon_ns) / 1_000_000_000;
        let line_bytes = u64::try_from(line)
            .unwrap_or(u64::MAX)
            .saturating_add(NOISE_BYTES);
        let short_for_ns = self.short_ns.map(|at_ns| now_ns.saturating_sub(at_ns));
        let short = short_for_ns.is_some_and(|ago_ns| ago_ns <= SHORT_FOR_NS)
            || now.free_bytes <= line_bytes.max(now.capacity_bytes / FREE_SHARE);
        (now.left_bytes <= line_bytes && short && self.is_going()).then_some(Shortage {
            foreseen: Foreseen {
                rate_bytes_per_s: rate,
                horizon_ns,
            },
            left_bytes: now.left_bytes,
            line_bytes,
            capacity_bytes: now.capacity_bytes,
            at_ns: now.at_ns,
        })
    }
}

/// `a - b`, as far as it can be said.
fn difference(a: u64, b: u64) -> i64 {
    let bytes = i128::from(a) - i128::from(b);
    i64::try_from(bytes).unwrap_or(if bytes < 0 { i64::MIN } else { i64::MAX })
}

fn interval_ns(horizon_ns: u64) -> u64 {
    (horizon_ns / INTERVALS_PER_HORIZON).max(1_000_000)
}

/// Records the values of a sample, with `swap_bytes` of usable free swap.
pub(crate) fn observe(
    config: &EngineConfig,
    state: &mut NodeState,
    sample: &Sample,
    swap_bytes: u64,
) {
    if let Some(foresight) = config.options.foresight {
        let leaving = View::now(config, state).eviction_under_way(Resource::Memory);
        let now_ns = state.now_ns;
        let known = state.outlook;
        state.outlook = known.with(sample, swap_bytes, now_ns, foresight.horizon_ns, leaving);
    }
}

/// What the newest sample lets foresee.
pub(crate) fn shortage(config: &EngineConfig, state: &NodeState) -> Option<Shortage> {
    let horizon_ns = config.options.foresight?.horizon_ns;
    state.outlook.shortage(horizon_ns, state.now_ns)
}

/// The end of memory that is foreseen with the sample ahead, if there is one; `swap_bytes`: what free swap is worth
/// then.
pub(crate) fn foreseen(view: &View<'_>, swap_bytes: u64) -> Option<Shortage> {
    match view.sample() {
        Some(sample) => would_foresee(view, sample, swap_bytes),
        None => shortage(view.config, view.state),
    }
}

/// What `sample` would let foresee, without taking note of anything.
fn would_foresee(view: &View<'_>, sample: &Sample, swap_bytes: u64) -> Option<Shortage> {
    let horizon_ns = view.config.options.foresight?.horizon_ns;
    let leaving = view.eviction_under_way(Resource::Memory);
    let known = view.state.outlook;
    let outlook = known.with(sample, swap_bytes, view.now_ns, horizon_ns, leaving);
    outlook.shortage(horizon_ns, view.now_ns)
}

/// The amount charged after which the kernel reports, bytes.
pub(crate) fn step_bytes(config: &EngineConfig, state: &NodeState) -> Option<u64> {
    config.options.foresight?;
    Some(state.outlook.now?.left_bytes / STEPS)
}

/// How long the next sample may wait if memory goes down at `rate` per second at most, nanoseconds: as long as it
/// cannot be over within the horizon and the time that it takes to see a trend.
pub(crate) fn wait_ns(config: &EngineConfig, state: &NodeState, rate: u64) -> Option<u64> {
    let horizon_ns = config.options.foresight?.horizon_ns;
    let interval_ns = interval_ns(horizon_ns);
    let left_bytes = state.outlook.now?.left_bytes;
    let gone_ns = u128::from(left_bytes) * 1_000_000_000 / u128::from(rate.max(1));
    let gone_ns = u64::try_from(gone_ns).unwrap_or(u64::MAX);
    let watched_ns = horizon_ns.saturating_add(interval_ns.saturating_mul(INTERVALS as u64));
    Some((gone_ns.saturating_sub(watched_ns) / 2).max(interval_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: u64 = 1 << 20;
    const MS: u64 = 1_000_000;
    const HORIZON_NS: u64 = 500 * MS;

    fn sample(cause: Cause, left_mi: u64, free_mi: u64, cache_mi: u64) -> Sample {
        Sample {
            cause,
            node: NodeMemory {
                capacity_bytes: 12_000 * MI,
                free_bytes: free_mi * MI,
                active_file_bytes: cache_mi * MI,
                kernel_available_bytes: left_mi * MI,
                ..NodeMemory::default()
            },
            ..Sample::default()
        }
    }

    /// The outlook after samples every 25 ms, each with `left`, `free` and `cache` in Mi.
    fn seen(samples: impl IntoIterator<Item = (u64, u64, u64)>) -> (Outlook, u64) {
        let mut now_ns = 0;
        let mut outlook = Outlook::default();
        for (left, free, cache) in samples {
            now_ns += 25 * MS;
            let sample = sample(Cause::Timer, left, free, cache);
            outlook = outlook.with(&sample, 0, now_ns, HORIZON_NS, false);
        }
        (outlook, now_ns)
    }

    #[test]
    fn four_of_five_intervals_make_a_trend() {
        // 20 Mi in 25 ms are 800 Mi/s: 400 Mi within the horizon, and 1 Mi of margin.
        let ramp = |steps: u64| (0..=steps).map(|at| (420 - 20 * at, 420 - 20 * at, 0));
        let (outlook, now_ns) = seen(ramp(3));
        assert_eq!(outlook.shortage(HORIZON_NS, now_ns), None);
        let (outlook, now_ns) = seen(ramp(4));
        let shortage = outlook.shortage(HORIZON_NS, now_ns).unwrap();
        assert_eq!(shortage.foreseen.rate_bytes_per_s, 800 * MI);
        assert_eq!(
            (
                shortage.left_bytes,
                shortage.line_bytes,
                shortage.half_bytes()
            ),
            (340 * MI, 401 * MI, 401 * MI / 2)
        );
        assert_eq!(outlook.shortage(HORIZON_NS, now_ns + 1), None);
    }

    #[test]
    fn memory_taken_at_once_is_no_trend() {
        let (outlook, now_ns) = seen([(900, 900, 0), (100, 100, 0), (100, 100, 0)]);
        assert_eq!(outlook.shortage(HORIZON_NS, now_ns), None);
    }

    #[test]
    fn page_cache_is_no_loss() {
        // MemAvailable counts the first page cache by half.
        let (outlook, _) = seen((0..10).map(|at| (400 - 10 * at, 400 - 20 * at, 20 * at)));
        assert_eq!(outlook.rate(), 0);
    }

    #[test]
    fn the_kernel_must_be_short_of_free_memory() {
        // Large watermarks: MemAvailable is nearly 0 with 2000 of 12000 Mi free. 4 Mi/s.
        let slow = (0..=4).map(|at| (4, 2000, 0, at));
        let mut outlook = Outlook::default();
        let mut now_ns = 0;
        for (left, free, cache, at) in slow {
            now_ns = at * 500 * MS;
            let sample = sample(Cause::Timer, left * 3 - 2 * at, free - 2 * at, cache);
            outlook = outlook.with(&sample, 0, now_ns, HORIZON_NS, false);
        }
        assert_eq!(outlook.rate(), 4 * MI);
        let left_too_much = outlook.shortage(HORIZON_NS, now_ns);
        assert_eq!(left_too_much, None);
        now_ns += 500 * MS;
        let last = |cause| sample(cause, 2, 1990, 0);
        let quiet = outlook.with(&last(Cause::Timer), 0, now_ns, HORIZON_NS, false);
        assert_eq!(quiet.shortage(HORIZON_NS, now_ns), None);
        let cause = Cause::KswapdWake { crossed_ns: 0 };
        let woken = outlook.with(&last(cause), 0, now_ns, HORIZON_NS, false);
        assert!(woken.shortage(HORIZON_NS, now_ns).is_some());
    }

    #[test]
    fn what_a_victim_gives_back_begins_a_new_story() {
        let (outlook, now_ns) = seen((0..=5).map(|at| (400 - 20 * at, 400 - 20 * at, 0)));
        let next = |outlook: Outlook, leaving| {
            outlook.with(
                &sample(Cause::Timer, 280, 280, 0),
                0,
                now_ns + 1,
                HORIZON_NS,
                leaving,
            )
        };
        let leaving = next(outlook, true);
        assert!(leaving.shortage(HORIZON_NS, now_ns + 1).is_some());
        assert_eq!(next(leaving, false).rate(), 0);
    }
}
