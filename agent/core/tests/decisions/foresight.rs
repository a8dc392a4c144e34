//! Out of memory, foreseen, on a model of a machine: the engine sees it only when it asked to look or when the kernel
//! reports.

use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::{Decision, KillReason, Reason};
use plimsoll_core::model::event::{Cause, Event, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::model::options::{EvictionOptions, Foresight};
use plimsoll_core::model::signal::{NodeCondition, Signal};
use plimsoll_core::model::threshold::{Amount, Operator, Passes, Threshold};
use proptest::prelude::*;
use serde_json::json;

use crate::node::MI;

const GI: u64 = 1 << 30;
const MS: u64 = 1_000_000;
const HORIZON_NS: u64 = 500 * MS;
/// From the decision until the memory is back.
const KILL_MS: u64 = 50;

/// Memory of a machine with one zone, as mm/page_alloc.c and mm/show_mem.c treat it, without swap.
#[derive(Clone, Debug)]
struct Machine {
    capacity: u64,
    /// Pages that cannot be reclaimed: the kernel, and pods that stand still.
    fixed: u64,
    hog: u64,
    cache: u64,
    /// The min watermark.
    min: u64,
}

impl Machine {
    fn free(&self) -> u64 {
        self.capacity
            .saturating_sub(self.fixed + self.hog + self.cache)
    }

    fn low(&self) -> u64 {
        self.min + self.min / 4
    }

    fn high(&self) -> u64 {
        self.min + self.min / 2
    }

    /// MemAvailable (si_mem_available).
    fn available(&self) -> u64 {
        let cache = self.cache - (self.cache / 2).min(self.low());
        (self.free() + cache).saturating_sub(self.high())
    }

    /// Gives back page cache where it must. Returns why the kernel would report, and whether it would kill.
    fn reclaim(&mut self) -> (Option<Cause>, bool) {
        let free = self.free();
        let crossed_ns = 0;
        let cause = if free < self.min {
            Some(Cause::DirectReclaim { crossed_ns })
        } else {
            (free < self.low()).then_some(Cause::KswapdWake { crossed_ns })
        };
        if cause.is_some() {
            self.cache -= self.cache.min(self.high().saturating_sub(free));
        }
        (cause, self.free() < self.min)
    }
}

/// How the engine learns of what happens.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Sight {
    /// Charges are counted and watermarks reported.
    Kernel,
    /// Only the timer.
    Timer,
}

struct World {
    engine: Engine,
    machine: Machine,
    sight: Sight,
    now_ns: u64,
    charged: u64,
    armed: u64,
    sample_by_ns: u64,
    samples: u64,
}

/// What came of a run.
#[derive(Debug, Default)]
struct Outcome {
    /// What the kernel could still hand out when it was decided, and the decision.
    evicted: Option<(u64, Decision)>,
    out_of_memory: bool,
    decisions: Vec<Decision>,
}

impl World {
    fn new(machine: Machine, sight: Sight, thresholds: Vec<Threshold>) -> Self {
        let config = EngineConfig {
            thresholds,
            options: EvictionOptions {
                foresight: Some(Foresight {
                    horizon_ns: HORIZON_NS,
                }),
                ..EvictionOptions::kubelet()
            },
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(config);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "hog", "uid": "hog"}, "spec": {"containers": [{"name": "c"}]},
        }))
        .unwrap();
        let uid = pod.uid();
        for kind in [
            EventKind::PodApplied { pod: Arc::new(pod) },
            EventKind::PodRunning { uid },
        ] {
            engine.step(&Event { at_ns: 0, kind }, &mut Vec::new());
        }
        Self {
            engine,
            machine,
            sight,
            now_ns: 1,
            charged: 0,
            armed: u64::MAX,
            sample_by_ns: 0,
            samples: 0,
        }
    }

    fn sample(&mut self, cause: Cause) -> Vec<Decision> {
        let machine = &self.machine;
        let sample = Sample {
            cause,
            node: NodeMemory {
                capacity_bytes: machine.capacity,
                anon_bytes: machine.fixed + machine.hog,
                file_bytes: machine.cache,
                active_file_bytes: machine.cache / 4,
                inactive_file_bytes: machine.cache - machine.cache / 4,
                free_bytes: machine.free(),
                kernel_available_bytes: machine.available(),
                ..NodeMemory::default()
            },
            charged_bytes: (self.sight == Sight::Kernel).then_some(self.charged),
            pods: vec![PodMemory {
                uid: PodUid::from("hog"),
                usage_bytes: machine.hog,
                inactive_file_bytes: 0,
                usage_at_stat_bytes: machine.hog,
                active_file_bytes: 0,
                lazily_freed_bytes: 0,
                uncharged_bytes: 0,
                huge_page_bytes: 0,
                stat_age_ms: 0,
            }],
            ..Sample::default()
        };
        let event = Event {
            at_ns: self.now_ns,
            kind: EventKind::Sample(sample),
        };
        let mut decisions = Vec::new();
        self.engine.step(&event, &mut decisions);
        self.samples += 1;
        for decision in &decisions {
            match decision {
                Decision::Arm { at_charged_bytes } => self.armed = *at_charged_bytes,
                Decision::SampleBy { at_ns } => self.sample_by_ns = *at_ns,
                _ => {}
            }
        }
        decisions
    }

    /// Lets time pass, a millisecond at a time, while `grow` says what the hog and the page cache take.
    fn run(&mut self, ms: u64, mut grow: impl FnMut(&Machine) -> (u64, u64)) -> Outcome {
        let mut outcome = Outcome::default();
        for _ in 0..ms {
            self.now_ns += MS;
            let (hog, cache) = grow(&self.machine);
            self.machine.hog += hog;
            self.charged += hog + cache;
            self.machine.cache += cache.min(self.machine.free());
            let (reported, out_of_memory) = self.machine.reclaim();
            outcome.out_of_memory |= out_of_memory;
            let crossed_ns = self.now_ns;
            let cause = match self.sight {
                Sight::Kernel if self.charged >= self.armed => {
                    Some(Cause::ChargeThreshold { crossed_ns })
                }
                Sight::Kernel => reported,
                Sight::Timer => None,
            };
            let due = (self.now_ns >= self.sample_by_ns).then_some(Cause::Timer);
            let Some(cause) = cause.or(due) else { continue };
            let left = self.machine.available();
            let decisions = self.sample(cause);
            let evict = decisions
                .iter()
                .find(|decision| matches!(decision, Decision::Evict { .. }));
            if let (Some(evict), None) = (evict, &outcome.evicted) {
                outcome.evicted = Some((left, evict.clone()));
            }
            outcome.decisions.extend(decisions);
            if outcome.out_of_memory || outcome.evicted.is_some() {
                break;
            }
        }
        outcome
    }
}

fn any_sight() -> impl Strategy<Value = Sight> {
    prop_oneof![Just(Sight::Kernel), Just(Sight::Timer)]
}

/// A machine on which so much is left, with page cache and without, and with watermarks as they are by default, or
/// larger.
fn machine(capacity_gi: u64, left: u64, cache_share: u64, min_share: u64) -> Machine {
    let capacity = capacity_gi * GI;
    let min = capacity / min_share;
    let mut machine = Machine {
        capacity,
        fixed: 0,
        hog: 16 * MI,
        cache: left / 100 * cache_share,
        min,
    };
    machine.fixed = capacity - machine.hog - machine.cache - machine.high();
    let missing = left.saturating_sub(machine.available());
    machine.fixed -= missing.min(machine.fixed);
    machine
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// 2 MB/s to 1 GB/s: the hog is evicted before the kernel has to kill, early enough for its memory to be back, and
    /// not long before.
    #[test]
    fn a_ramp_ends_before_the_kernel_kills(
        sight in any_sight(),
        exponent in 0u32..=9,
        fraction in 0u64..100,
        capacity_gi in 1u64..=64,
        cache_share in 0u64..100,
        min_share in 40u64..2000,
    ) {
        let rate = ((2u64 << exponent) * 1_000_000 * (100 + fraction) / 100).min(1_000_000_000);
        let left = rate / 4 * 5 + 16 * MI;
        prop_assume!(left < capacity_gi * GI / 4 * 3);
        let mut world = World::new(machine(capacity_gi, left, cache_share, min_share), sight, Vec::new());
        let per_ms = rate / 1000;
        let outcome = world.run(20_000, |_| (per_ms, 0));
        prop_assert!(!outcome.out_of_memory, "the kernel killed");
        let (left, decision) = outcome.evicted.expect("nobody was evicted in 20 s");
        let Decision::Evict { reason: Reason::Threshold(reason), .. } = &decision else {
            panic!("{decision}");
        };
        let foreseen = reason.foreseen.expect("not foreseen");
        prop_assert_eq!(reason.signal, Signal::KernelMemoryAvailable);
        prop_assert!(foreseen.rate_bytes_per_s.abs_diff(rate) <= rate / 4, "{foreseen:?} of {rate}");
        prop_assert!(left <= rate / 8 * 5 + 2 * MI, "{left} were left at {rate}/s");
        // It goes on as before while it is killed.
        for _ in 0..KILL_MS {
            world.machine.hog += per_ms;
            prop_assert!(!world.machine.reclaim().1, "the kernel killed first, {left} were left at {rate}/s");
        }
    }

    /// Files are read at any speed: no pod is evicted.
    #[test]
    fn page_cache_is_never_a_reason(
        sight in any_sight(),
        rate_mb in 1u64..4000,
        capacity_gi in 1u64..=64,
        left_mi in 8u64..512,
        cache_share in 0u64..100,
        min_share in 40u64..2000,
    ) {
        let machine = machine(capacity_gi, left_mi * MI, cache_share, min_share);
        let mut world = World::new(machine, sight, Vec::new());
        let outcome = world.run(4000, |_| (0, rate_mb * 1000));
        prop_assert!(outcome.evicted.is_none(), "{:?}", outcome.evicted);
    }

    /// A pod takes what it needs and stands still: no pod is evicted as long as more is left than the horizon takes.
    #[test]
    fn a_ramp_that_ends_is_let_end(
        sight in any_sight(),
        rate_mb in 2u64..1000,
        capacity_gi in 4u64..=64,
        cache_share in 0u64..100,
    ) {
        let rate = rate_mb * 1_000_000;
        let end = rate / 2 + rate / 8 + 8 * MI;
        let machine = machine(capacity_gi, end + rate, cache_share, 400);
        prop_assume!(end + rate < capacity_gi * GI / 4 * 3);
        let mut world = World::new(machine, sight, Vec::new());
        let outcome = world.run(4000, |machine| {
            let room = machine.available().saturating_sub(end);
            ((rate / 1000).min(room), 0)
        });
        prop_assert!(outcome.evicted.is_none(), "{:?}", outcome.evicted);
    }

    /// Pods take and give back, quicker than any trend: no pod is evicted. (A timer alone can be in step with such a
    /// load.)
    #[test]
    fn a_flapping_load_is_no_trend(period_ms in 4u64..60, mb_per_ms in 1u64..4, capacity_gi in 2u64..=16) {
        let machine = machine(capacity_gi, period_ms * mb_per_ms * 1_000_000 + 16 * MI, 10, 400);
        let mut world = World::new(machine, Sight::Kernel, Vec::new());
        for at in 0..200 {
            let outcome = world.run(period_ms / 2, |_| (mb_per_ms * 1_000_000, 0));
            prop_assert!(outcome.evicted.is_none(), "{:?} in period {at}", outcome.evicted);
            world.machine.hog -= period_ms / 2 * mb_per_ms * 1_000_000;
        }
    }
}

#[test]
fn an_idle_node_is_left_alone() {
    for sight in [Sight::Kernel, Sight::Timer] {
        let mut world = World::new(machine(4, 2 * GI, 50, 400), sight, Vec::new());
        world.run(60_000, |_| (0, 0));
        // Once every 500 ms at most.
        assert!(world.samples <= 120, "{sight:?}: {}", world.samples);
    }
}

#[test]
fn the_reason_and_the_condition_say_it_and_half_the_way_ends_grace() {
    let threshold = Threshold {
        signal: Signal::MemoryAvailable,
        operator: Operator::LessThan,
        value: Amount::Absolute(MI),
        grace_ns: 0,
        min_reclaim: None,
        passes: Passes::All,
    };
    let mut world = World::new(machine(4, GI, 0, 400), Sight::Kernel, vec![threshold]);
    let outcome = world.run(20_000, |_| (256 * MI / 1000, 0));
    let text = outcome.evicted.unwrap().1.to_string();
    assert!(
        text.contains("out of memory foreseen: falling by 25") && text.contains("horizon 500 ms"),
        "{text}"
    );
    assert!(outcome.decisions.contains(&Decision::Condition {
        condition: NodeCondition::MemoryPressure,
        status: true,
    }));
    let outcome = world.run(400, |_| (256 * MI / 1000, 0));
    let killed = outcome
        .decisions
        .iter()
        .find_map(|decision| match decision {
            Decision::Kill { why, .. } => Some(*why),
            _ => None,
        });
    assert!(
        matches!(killed, Some(KillReason::HeadroomHalved { signal: Signal::KernelMemoryAvailable, observed, .. }) if observed > 32 * MI),
        "{killed:?}"
    );
    assert!(!outcome.out_of_memory);
}
