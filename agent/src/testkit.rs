//! An engine that has seen pods, for tests: included by `#[path]`, here and in the library.

use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{Event, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::{Amount, Operator, Passes, Threshold};

pub(crate) const MIB: u64 = 1 << 20;
/// A specification that says nothing.
pub(crate) const PLAIN: &str = r#""containers":[{"name":"app"}]"#;

/// With one threshold: `memory.available<100Mi`.
pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        thresholds: vec![Threshold {
            signal: Signal::MemoryAvailable,
            operator: Operator::LessThan,
            value: Amount::Absolute(100 * MIB),
            grace_ns: 0,
            min_reclaim: None,
            passes: Passes::All,
        }],
        ..EngineConfig::default()
    }
}

/// A pod of this name, as JSON has it between quotes, and this specification, as JSON has it between braces.
pub(crate) fn pod(name: &str, spec: &str) -> Arc<Pod> {
    let json = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{{spec}}}}}"#);
    Arc::new(serde_json::from_str(&json).unwrap())
}

/// How pods come and run, each with the MiB that it uses; and then a sample at each of these times, of a node of 1 GiB
/// with so many MiB in use.
pub(crate) fn events(
    pods: impl IntoIterator<Item = (Arc<Pod>, u64)>,
    samples: &[(u64, u64)],
) -> Vec<Event> {
    let mut events = Vec::new();
    let mut memory = Vec::new();
    for (pod, used_mib) in pods {
        let uid = pod.uid();
        for kind in [
            EventKind::PodApplied { pod },
            EventKind::PodRunning { uid: uid.clone() },
        ] {
            events.push(Event { at_ns: 1, kind });
        }
        memory.push(PodMemory {
            uid,
            usage_bytes: used_mib * MIB,
            inactive_file_bytes: 0,
            active_file_bytes: 0,
            lazily_freed_bytes: 0,
            huge_page_bytes: 0,
            usage_at_stat_bytes: used_mib * MIB,
            uncharged_bytes: 0,
            stat_age_ms: 0,
        });
    }
    for &(at_ns, used_mib) in samples {
        let sample = Sample {
            node: NodeMemory {
                capacity_bytes: 1024 * MIB,
                anon_bytes: used_mib * MIB,
                ..NodeMemory::default()
            },
            pods: memory.clone(),
            ..Sample::default()
        };
        let kind = EventKind::Sample(sample);
        events.push(Event { at_ns, kind });
    }
    events
}

/// An engine that has seen these; each step is passed to `taken`.
pub(crate) fn engine(
    config: EngineConfig,
    events: &[Event],
    mut taken: impl FnMut(&Event, &[Decision]),
) -> Engine {
    let mut engine = Engine::new(config);
    for event in events {
        let mut decisions = Vec::new();
        engine.step(event, &mut decisions);
        taken(event, &decisions);
    }
    engine
}
