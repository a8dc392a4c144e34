//! The node first, pods only if a decision may depend on them: with and without the pods the engine decides the same.

use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{
    Action, Cause, CgroupMemory, Event, EventKind, NodeMemory, PodMemory, PodsRead, Sample,
};
use plimsoll_core::model::options::{
    Availability, EvictionOptions, Foresight, LastLine, Remedies, Victims,
};
use plimsoll_core::model::reading::{
    FileSystemReading, PressureReading, ProcessReading, StallReading, StallShares, StorageReading,
};
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::{Amount, Passes, Threshold};
use plimsoll_core::policy::eviction::freshness::PODS_AGE_MAX_NS;
use plimsoll_core::policy::oom::last_line;
use proptest::prelude::*;
use serde_json::json;

use crate::node::{MI, S};

const MS: u64 = 1_000_000;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn threshold(signal: Signal, value: u64, grace_ns: u64) -> Threshold {
    Threshold {
        signal,
        operator: signal.row().operator,
        value: Amount::Absolute(value),
        grace_ns,
        min_reclaim: None,
        passes: Passes::All,
    }
}

/// What a pod uses, Mi: anonymous memory, inactive and active page cache.
type Usage = (u64, u64, u64);

/// A node of 1000 Mi at an instant.
#[derive(Clone, Debug)]
struct Look {
    after_ns: u64,
    cause: Cause,
    pods: [Option<Usage>; 4],
    /// Taken by others, Mi.
    other: u64,
    stall: Option<u16>,
    disk: Option<u64>,
    processes: Option<u64>,
    charged: bool,
}

#[derive(Clone, Debug)]
enum Happens {
    Look(Look),
    Runs(usize),
    Empties(usize),
    IsApplied(usize),
    IsRemoved(usize),
    IsEndedByKubelet(usize),
    TermFails(usize),
}

fn cause() -> impl Strategy<Value = Cause> {
    prop_oneof![
        3 => Just(Cause::Timer),
        4 => Just(Cause::ChargeThreshold { crossed_ns: 0 }),
        1 => Just(Cause::KswapdWake { crossed_ns: 0 }),
        1 => Just(Cause::PressureStall),
        1 => Just(Cause::Storage),
    ]
}

fn look() -> impl Strategy<Value = Look> {
    let usage = prop::option::weighted(0.9, (0..160u64, 0..60u64, 0..60u64));
    let after = prop_oneof![3 => 1..30 * MS, 2 => 1..400 * MS, 1 => S..20 * S];
    (
        after,
        cause(),
        [usage.clone(), usage.clone(), usage.clone(), usage],
        0..250u64,
        prop::option::weighted(0.1, 0..10_000u16),
        prop::option::weighted(0.1, 0..200u64),
        prop::option::weighted(0.1, 0..1000u64),
        any::<bool>(),
    )
        .prop_map(
            |(after_ns, cause, pods, other, stall, disk, processes, charged)| Look {
                after_ns,
                cause,
                pods,
                other,
                stall,
                disk,
                processes,
                charged,
            },
        )
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        30 => look().prop_map(Happens::Look),
        2 => (0..4usize).prop_map(Happens::Runs),
        1 => (0..4usize).prop_map(Happens::Empties),
        1 => (0..4usize).prop_map(Happens::IsApplied),
        1 => (0..4usize).prop_map(Happens::IsRemoved),
        1 => (0..4usize).prop_map(Happens::IsEndedByKubelet),
        1 => (0..4usize).prop_map(Happens::TermFails),
    ]
}

prop_compose! {
    fn configs()(
        thresholds in prop::collection::vec((0..6usize, 1..400u64, prop_oneof![Just(0), 1..3 * S]), 0..4),
        targeted: bool,
        reclaimable: bool,
        foresight: bool,
        remedies: bool,
        disruption_budgets: bool,
    ) -> EngineConfig {
        let thresholds = thresholds.into_iter().map(|(signal, value, grace_ns)| match signal {
            0 => threshold(Signal::MemoryAvailable, value * MI, grace_ns),
            1 => threshold(Signal::AllocatableMemoryAvailable, value * MI, grace_ns),
            2 => threshold(Signal::KernelMemoryAvailable, value * MI, grace_ns),
            3 => threshold(Signal::NodefsAvailable, value / 4 * MI + 1, grace_ns),
            4 => threshold(Signal::PidAvailable, value, grace_ns),
            _ => threshold(Signal::MemorySome10, value * 20, grace_ns),
        });
        EngineConfig {
            thresholds: thresholds.collect(),
            pressure_transition_period_ns: 3 * S,
            options: EvictionOptions {
                victims: if targeted { Victims::Targeted } else { Victims::One },
                availability: if reclaimable { Availability::Reclaimable } else { Availability::Kubelet },
                foresight: foresight.then_some(Foresight { horizon_ns: 500 * MS }),
                remedies: remedies.then_some(Remedies {
                    reclaim_budget_ns: 100 * MS,
                    throttle_budget_ns: 200 * MS,
                    notify_budget_ns: 0,
                }),
                disruption_budgets,
                last_line: Some(LastLine::default()),
                ..EvictionOptions::kubelet()
            },
            ..EngineConfig::default()
        }
    }
}

fn full(look: &Look, at_ns: u64, charged_bytes: u64) -> Sample {
    let all = look.pods.iter().flatten();
    let sum = |of: fn(&Usage) -> u64| all.clone().map(of).sum::<u64>() * MI;
    let (anon, inactive, active) = (
        sum(|usage| usage.0),
        sum(|usage| usage.1),
        sum(|usage| usage.2),
    );
    let cache = inactive + active;
    let free = (1000 * MI).saturating_sub(anon + cache + look.other * MI);
    Sample {
        cause: look.cause,
        node: NodeMemory {
            capacity_bytes: 1000 * MI,
            anon_bytes: anon + look.other * MI,
            file_bytes: cache,
            inactive_file_bytes: inactive,
            active_file_bytes: active,
            free_bytes: free,
            kernel_available_bytes: free + cache / 2,
            ..NodeMemory::default()
        },
        kubepods: Some(CgroupMemory {
            usage_bytes: anon + cache,
            inactive_file_bytes: inactive,
            usage_at_stat_bytes: anon + cache,
            active_file_bytes: active,
            lazily_freed_bytes: 0,
            limit_bytes: Some(800 * MI),
            swap_bytes: 0,
        }),
        charged_bytes: look.charged.then_some(charged_bytes),
        pods: NAMES
            .iter()
            .zip(&look.pods)
            .filter_map(|(name, usage)| {
                let (anon, inactive, active) = (*usage)?;
                Some(PodMemory {
                    uid: PodUid::from(*name),
                    usage_bytes: (anon + inactive + active) * MI,
                    inactive_file_bytes: inactive * MI,
                    usage_at_stat_bytes: (anon + inactive + active) * MI,
                    active_file_bytes: active * MI,
                    lazily_freed_bytes: 0,
                    uncharged_bytes: 0,
                    huge_page_bytes: 0,
                    stat_age_ms: 0,
                })
            })
            .collect(),
        storage: look.disk.map(|available| {
            Arc::new(StorageReading {
                nodefs: Some(FileSystemReading {
                    at_ns,
                    available_bytes: available * MI,
                    capacity_bytes: 1000 * MI,
                    inodes_free: None,
                    inodes: None,
                }),
                imagefs: None,
                containerfs: None,
                pods: Vec::new(),
            })
        }),
        processes: look.processes.map(|running| {
            Arc::new(ProcessReading {
                at_ns,
                max: 1000,
                running,
                pods: Vec::new(),
            })
        }),
        pressure: look.stall.map(|avg10| PressureReading {
            at_ns,
            memory: Some(StallReading {
                some: StallShares {
                    avg10,
                    ..StallShares::default()
                },
                ..StallReading::default()
            }),
            ..PressureReading::default()
        }),
        ..Sample::default()
    }
}

fn pod(name: &str) -> EventKind {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "uid": name},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "50Mi"}}}]},
    }))
    .unwrap();
    EventKind::PodApplied { pod: Arc::new(pod) }
}

fn step(engine: &mut Engine, at_ns: u64, kind: EventKind) -> Vec<Decision> {
    let mut decisions = Vec::new();
    engine.step(&Event { at_ns, kind }, &mut decisions);
    decisions
}

fn started(config: EngineConfig) -> Engine {
    let mut engine = Engine::new(config);
    for name in NAMES {
        step(&mut engine, S, pod(name));
        let uid = PodUid::from(name);
        step(&mut engine, S, EventKind::PodRunning { uid });
    }
    engine
}

/// The sample without its pods.
fn node_only(sample: &Sample) -> Sample {
    Sample {
        pods: Vec::new(),
        pods_read: PodsRead::None,
        ..sample.clone()
    }
}

/// What an event other than a sample is.
fn other(happens: &Happens) -> EventKind {
    let uid = |pod: &usize| PodUid::from(NAMES[*pod]);
    match happens {
        Happens::Look(_) => unreachable!("a sample"),
        Happens::Runs(pod) => EventKind::PodRunning { uid: uid(pod) },
        Happens::Empties(pod) => EventKind::PodEmpty { uid: uid(pod) },
        Happens::IsApplied(at) => pod(NAMES[*at]),
        Happens::IsRemoved(pod) => EventKind::PodRemoved { uid: uid(pod) },
        Happens::IsEndedByKubelet(pod) => EventKind::PodEndedByKubelet { uid: uid(pod) },
        Happens::TermFails(pod) => EventKind::Outcome {
            uid: uid(pod),
            action: Action::Terminate,
            error: "EPERM".into(),
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Step by step, from any state: where no pods are needed the decisions are those of the full sample, and so is
    /// what the kernel is left with of the last line's amounts. And a history in which pods are read only where they
    /// are needed takes the decisions of one in which they are always read; but the usage of a pod that was *removed*,
    /// or that its kubelet ends, may be slightly older when its end began.
    #[test]
    fn decisions_do_not_depend_on_pods_that_are_not_needed(
        config in configs(),
        history in prop::collection::vec(happens(), 1..60),
    ) {
        let mut always = started(config.clone());
        let mut lazy = started(config);
        let (mut now_ns, mut charged, mut has_older) = (S, 0, false);
        for happens in &history {
            let Happens::Look(look) = happens else {
                let kind = other(happens);
                has_older |= matches!(kind, EventKind::PodRemoved { .. } | EventKind::PodEndedByKubelet { .. });
                let decided = step(&mut lazy, now_ns, kind.clone());
                let expected = step(&mut always, now_ns, kind);
                prop_assert!(has_older || decided == expected, "{happens:?}: {decided:?}, {expected:?}");
                continue;
            };
            now_ns += look.after_ns;
            charged += look.other * MI;
            let full = full(look, now_ns, charged);
            let node_only = node_only(&full);
            let needed = lazy.needs_pods(&node_only, now_ns);
            if !needed {
                let mut with_pods = lazy.clone();
                let expected = step(&mut with_pods, now_ns, EventKind::Sample(full.clone()));
                let mut without = lazy.clone();
                let decided = step(&mut without, now_ns, EventKind::Sample(node_only.clone()));
                prop_assert_eq!(decided, expected);
                let amounts = |engine: &Engine| {
                    last_line::plan(engine.config(), engine.state())
                        .map(|plan| (plan.line_bytes, plan.critical_bytes, plan.order.len()))
                };
                prop_assert_eq!(amounts(&without), amounts(&with_pods));
            }
            let expected = step(&mut always, now_ns, EventKind::Sample(full.clone()));
            let seen = if needed { full } else { node_only };
            let decided = step(&mut lazy, now_ns, EventKind::Sample(seen));
            prop_assert!(has_older || decided == expected, "{decided:?}, {expected:?}");
        }
    }
}

fn quiet(other: u64) -> Look {
    Look {
        after_ns: 0,
        cause: Cause::ChargeThreshold { crossed_ns: 0 },
        pods: [Some((100, 0, 0)); 4],
        other,
        stall: None,
        disk: None,
        processes: None,
        charged: true,
    }
}

#[test]
fn pods_are_read_for_a_threshold_a_pod_that_leaves_and_when_their_figures_are_old() {
    let config = EngineConfig {
        thresholds: vec![threshold(Signal::MemoryAvailable, 100 * MI, 0)],
        ..EngineConfig::default()
    };
    let mut engine = started(config);
    let ask = |engine: &Engine, at_ns: u64, other: u64| {
        engine.needs_pods(&node_only(&full(&quiet(other), at_ns, 0)), at_ns)
    };
    assert!(ask(&engine, 2 * S, 0), "never read");
    step(
        &mut engine,
        2 * S,
        EventKind::Sample(full(&quiet(0), 2 * S, 0)),
    );
    let soon_ns = 2 * S + PODS_AGE_MAX_NS - 1;
    assert!(!ask(&engine, soon_ns, 0));
    assert!(ask(&engine, soon_ns + 1, 0), "old");
    assert!(!ask(&engine, soon_ns, 500), "exactly at the threshold");
    assert!(ask(&engine, soon_ns, 501), "below the threshold");
    // What was known of pods stands.
    let seen = node_only(&full(&quiet(500), soon_ns, 0));
    step(&mut engine, soon_ns, EventKind::Sample(seen));
    let known = engine.state().pods[&PodUid::from("a")].memory.unwrap();
    assert_eq!((known.at_ns, known.usage_bytes), (2 * S, 100 * MI));
    assert!(!ask(&engine, soon_ns, 0));
    let uid = PodUid::from("a");
    step(&mut engine, soon_ns, EventKind::PodRemoved { uid });
    assert!(ask(&engine, soon_ns, 0), "one leaves");
}

#[test]
fn a_journal_keeps_which_samples_had_no_pods() {
    let full = full(&quiet(0), S, 0);
    let text = |sample: &Sample| serde_json::to_string(sample).unwrap();
    assert!(!text(&full).contains("pods_read"));
    let short = node_only(&full);
    assert_eq!(
        serde_json::from_str::<Sample>(&text(&short)).unwrap(),
        short
    );
}
