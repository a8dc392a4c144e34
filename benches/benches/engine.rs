//! How long one step of the engine takes on a node of 250 pods: a sample that changes nothing, and one after which a
//! pod has to go.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{Cause, Event, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::model::file_system::ImageFsLayout;
use plimsoll_core::model::options::{EvictionOptions, Foresight, Victims};
use plimsoll_core::model::threshold::{ThresholdSettings, for_layout};
use serde_json::json;

const PODS: u64 = 250;
const GI: u64 = 1 << 30;
const S: u64 = 1_000_000_000;

/// The thresholds that most nodes have, and the options that cost most.
fn engine() -> Engine {
    let hard = [
        ("memory.available", "1Gi"),
        ("kernelMemory.available", "64Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
        ("pid.available", "10%"),
    ];
    let settings = ThresholdSettings {
        hard: hard
            .map(|(signal, value)| (signal.into(), value.into()))
            .into(),
        soft: [("memory.available".into(), "2Gi".into())].into(),
        soft_grace_period: [("memory.available".into(), "30s".into())].into(),
        enforce_pods: true,
        ..ThresholdSettings::default()
    };
    let config = EngineConfig {
        // Written above, and right.
        thresholds: for_layout(&settings, ImageFsLayout::Shared).unwrap_or_default(),
        options: EvictionOptions {
            victims: Victims::Targeted,
            foresight: Some(Foresight { horizon_ns: S / 2 }),
            ..EvictionOptions::kubelet()
        },
        ..EngineConfig::default()
    };
    assert!(config.thresholds.len() >= 8, "the settings above are right");
    let mut engine = Engine::new(config);
    let mut decisions = Vec::new();
    for at in 0..PODS {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": format!("pod-{at}"), "uid": uid(at)},
            "spec": {"priority": at % 3, "containers": [
                {"name": "c", "resources": {"requests": {"memory": format!("{}Mi", 16 + at % 64)}}},
            ]},
        }))
        .unwrap_or_default();
        let kinds = [
            EventKind::PodApplied { pod: Arc::new(pod) },
            EventKind::PodRunning { uid: uid(at) },
        ];
        for kind in kinds {
            engine.step(&Event { at_ns: S, kind }, &mut decisions);
        }
    }
    engine.step(&sample(2 * S, 8 * GI), &mut decisions);
    engine
}

fn uid(at: u64) -> PodUid {
    PodUid::new(format!("{at:08x}-0000-4000-8000-000000000000"))
}

fn sample(at_ns: u64, available_bytes: u64) -> Event {
    let pods = (0..PODS).map(|at| PodMemory {
        uid: uid(at),
        usage_bytes: (24 + at * 7 % 64) << 20,
        inactive_file_bytes: 1 << 20,
        active_file_bytes: 1 << 20,
        lazily_freed_bytes: 0,
        huge_page_bytes: 0,
        usage_at_stat_bytes: (24 + at * 7 % 64) << 20,
        uncharged_bytes: 0,
        stat_age_ms: 0,
    });
    let capacity_bytes = 32 * GI;
    let node = NodeMemory {
        capacity_bytes,
        anon_bytes: capacity_bytes - available_bytes,
        free_bytes: available_bytes,
        kernel_available_bytes: available_bytes,
        ..NodeMemory::default()
    };
    Event {
        at_ns,
        kind: EventKind::Sample(Sample {
            cause: Cause::ChargeThreshold { crossed_ns: at_ns },
            node,
            charged_bytes: Some(at_ns),
            pods: pods.collect(),
            ..Sample::default()
        }),
    }
}

fn step(criterion: &mut Criterion) {
    let engine = engine();
    let mut group = criterion.benchmark_group("engine_step_250_pods");
    for (name, available_bytes, evicts) in [("quiet", 8 * GI, false), ("evict", GI / 2, true)] {
        let event = sample(3 * S, available_bytes);
        let mut decisions = Vec::new();
        engine.clone().step(&event, &mut decisions);
        let has_victim = decisions
            .iter()
            .any(|decision| matches!(decision, Decision::Evict { .. }));
        assert_eq!(has_victim, evicts, "{name} is what it says");
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || (engine.clone(), Vec::with_capacity(256)),
                |(engine, decisions)| engine.step(black_box(&event), decisions),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, step);
criterion_main!(benches);
