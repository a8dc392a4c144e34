//! The agent's pod is in no decision, whatever its manifest says.

use std::sync::Arc;

use plimsoll_core::engine::EngineConfig;
use plimsoll_core::kube::pod::Exemption;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::{Decision, NoVictimReason};
use plimsoll_core::model::event::{EventKind, LastLineKill, LastLineReason, Sample};
use plimsoll_core::model::options::{
    Breaker, EvictionOptions, Foresight, LastLine, Remedies, Victims,
};
use plimsoll_core::model::reading::{
    FileSystemReading, PodProcesses, PodStorage, ProcessReading, StorageReading, Used,
    VolumeStorage,
};
use plimsoll_core::model::signal::Signal;
use plimsoll_core::policy::oom::last_line;
use proptest::prelude::*;
use serde_json::json;

use crate::node::{MI, Memory, Node, S, hard};

/// The first is the agent's.
const NAMES: [&str; 3] = ["agent", "a", "b"];

/// A BestEffort pod of the lowest priority with a limit on its volume, that asks for a signal when memory is short.
fn applied(name: &str) -> EventKind {
    let pod = json!({
        "metadata": {"name": name, "uid": name, "annotations": {"plimsoll.dev/memory-pressure-signal": "SIGUSR1"}},
        "spec": {
            "priority": if name == "agent" { -10 } else { 0 },
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c"}],
            "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "10Mi"}}],
        },
    });
    EventKind::PodApplied {
        pod: Arc::new(serde_json::from_value(pod).unwrap()),
    }
}

fn node_with(targeted: bool, remedies: bool, foresight: bool) -> Node {
    let budgets = Remedies {
        reclaim_budget_ns: S / 10,
        throttle_budget_ns: S / 5,
        notify_budget_ns: S / 5,
    };
    let mut node = Node::with(EngineConfig {
        thresholds: vec![
            hard(Signal::MemoryAvailable, 300 * MI),
            hard(Signal::NodefsAvailable, 100 * MI),
            hard(Signal::PidAvailable, 100),
        ],
        options: EvictionOptions {
            victims: if targeted {
                Victims::Targeted
            } else {
                Victims::One
            },
            remedies: remedies.then_some(budgets),
            foresight: foresight.then_some(Foresight { horizon_ns: S }),
            last_line: Some(LastLine::default()),
            breaker: Some(Breaker::default()),
            ..EvictionOptions::kubelet()
        },
        exempt_uids: [PodUid::from("agent")].into(),
        ..EngineConfig::default()
    });
    for name in NAMES {
        node.step(applied(name));
        let uid = name.into();
        node.step(EventKind::PodRunning { uid });
    }
    node
}

#[derive(Clone, Debug)]
enum Happens {
    Look {
        after_ns: u64,
        used: [u64; 3],
        disk: Option<u64>,
        processes: Option<u64>,
    },
    Runs(usize),
    Empties(usize),
    IsApplied(usize),
    IsRemoved(usize),
    IsKilled(usize),
}

fn happens() -> impl Strategy<Value = Happens> {
    let pod = || 0..NAMES.len();
    let look = (
        1..3 * S,
        [0..600u64, 0..200u64, 0..200u64],
        prop::option::weighted(0.3, 0..200u64),
        prop::option::weighted(0.3, 800..1000u64),
    );
    prop_oneof![
        8 => look.prop_map(|(after_ns, used, disk, processes)| Happens::Look { after_ns, used, disk, processes }),
        1 => pod().prop_map(Happens::Runs),
        1 => pod().prop_map(Happens::Empties),
        1 => pod().prop_map(Happens::IsApplied),
        1 => pod().prop_map(Happens::IsRemoved),
        1 => pod().prop_map(Happens::IsKilled),
    ]
}

fn storage(at_ns: u64, available_mi: u64) -> StorageReading {
    let mut pods: Vec<PodStorage> = NAMES
        .iter()
        .map(|name| PodStorage {
            uid: PodUid::from(*name),
            containers: Vec::new(),
            volumes: vec![VolumeStorage {
                name: "scratch".into(),
                used: Used {
                    bytes: Some(20 * MI),
                    inodes: None,
                },
            }],
            files: Used::default(),
            is_cut: false,
        })
        .collect();
    pods.sort_by(|a, b| a.uid.cmp(&b.uid));
    StorageReading {
        nodefs: Some(FileSystemReading {
            at_ns,
            available_bytes: available_mi * MI,
            capacity_bytes: 1000 * MI,
            inodes_free: None,
            inodes: None,
        }),
        imagefs: None,
        containerfs: None,
        pods,
    }
}

fn take(node: &mut Node, happens: &Happens) -> Vec<Decision> {
    let uid = |pod: &usize| PodUid::from(NAMES[*pod]);
    match happens {
        Happens::Look {
            after_ns,
            used,
            disk,
            processes,
        } => {
            let memory: Vec<Memory<'_>> = NAMES
                .iter()
                .zip(used)
                .map(|(name, used)| (*name, *used, 0, 0))
                .collect();
            let at_ns = node.now_ns + after_ns;
            let mut counts: Vec<PodProcesses> = NAMES
                .iter()
                .zip(used)
                .map(|(name, used)| PodProcesses {
                    uid: PodUid::from(*name),
                    processes: *used,
                })
                .collect();
            counts.sort_by(|a, b| a.uid.cmp(&b.uid));
            let more = Sample {
                storage: disk.map(|available| Arc::new(storage(at_ns, available))),
                processes: processes.map(|running| {
                    Arc::new(ProcessReading {
                        at_ns,
                        max: 1000,
                        running,
                        pods: counts,
                    })
                }),
                ..Sample::default()
            };
            node.sample_after(*after_ns, &memory, more)
        }
        Happens::Runs(pod) => node.step(EventKind::PodRunning { uid: uid(pod) }),
        Happens::Empties(pod) => node.step(EventKind::PodEmpty { uid: uid(pod) }),
        Happens::IsApplied(pod) => node.step(applied(NAMES[*pod])),
        Happens::IsRemoved(pod) => node.step(EventKind::PodRemoved { uid: uid(pod) }),
        Happens::IsKilled(pod) => {
            let kill = LastLineKill {
                killed_ns: node.now_ns,
                why: LastLineReason::Critical,
                tgid: 1,
                kills: 1,
                available_bytes: None,
                wanted_bytes: None,
                crossed_ns: None,
            };
            let uid = uid(pod);
            node.step(EventKind::LastLineKill { uid, kill })
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Not evicted, ended, killed, reclaimed from, held, notified; nor in the order that is left in the kernel. That it
    /// is not held back for CPU time either: `cpu.rs`.
    #[test]
    fn the_agents_pod_is_in_no_decision(
        targeted: bool,
        remedies: bool,
        foresight: bool,
        history in prop::collection::vec(happens(), 1..60),
    ) {
        let mut node = node_with(targeted, remedies, foresight);
        for happens in &history {
            for decision in take(&mut node, happens) {
                prop_assert_ne!(decision.telling().pod.map(PodUid::as_str), Some("agent"), "{:?}", decision);
            }
            let engine = &node.engine;
            let plan = last_line::plan(engine.config(), engine.state());
            for condemned in plan.map(|plan| plan.order).unwrap_or_default() {
                prop_assert_ne!(condemned.uid().as_str(), "agent");
            }
            if let Some(pod) = engine.state().pods.get(&PodUid::from("agent")) {
                // The order of OOM kills takes it from here.
                prop_assert!(pod.row.exempt);
                prop_assert_eq!(pod.exemption(), Some(Exemption::Agent));
            }
        }
    }
}

#[test]
fn a_node_with_nothing_else_says_so() {
    let mut node = node_with(false, false, false);
    for name in ["a", "b"] {
        node.empty(name);
    }
    let decisions = node.sample(&[("agent", 800, 0, 0)], Sample::default());
    assert!(
        decisions.iter().any(|decision| matches!(
            decision,
            Decision::NoVictim {
                why: NoVictimReason::AllExempt,
                ..
            }
        )),
        "{decisions:?}"
    );
}

/// Without a manifest it runs on, and is forgotten when it has ended.
#[test]
fn it_is_not_ended_when_its_manifest_is_removed() {
    let mut node = node_with(false, false, false);
    let uid = PodUid::from("agent");
    let decisions = node.step(EventKind::PodRemoved { uid: uid.clone() });
    assert!(
        !decisions
            .iter()
            .any(|decision| matches!(decision, Decision::End { .. })),
        "{decisions:?}"
    );
    assert!(node.engine.state().pods.contains_key(&uid));
    node.empty("agent");
    assert!(!node.engine.state().pods.contains_key(&uid));
}
