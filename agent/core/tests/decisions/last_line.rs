//! Whom the last line in the kernel may kill, and what follows when it has.

use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::budget::DisruptionBudget;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::model::decision::{Decision, KillReason};
use plimsoll_core::model::event::{
    Event, EventKind, LastLineKill, LastLineReason, NodeMemory, PodMemory, Sample,
};
use plimsoll_core::model::options::{EvictionOptions, LastLine};
use plimsoll_core::model::signal::{Resource, Signal};
use plimsoll_core::model::threshold::Threshold;
use plimsoll_core::policy::oom::last_line::{CONDEMNED_MAX, LastLinePlan, plan};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::node::{self, MI, S};

fn hard(signal: Signal, mi: u64) -> Threshold {
    node::hard(signal, mi * MI)
}

fn options() -> EvictionOptions {
    EvictionOptions {
        last_line: Some(LastLine {
            acknowledge_within_ns: 200_000_000,
            expires_after_ns: 30 * S,
        }),
        ..EvictionOptions::kubelet()
    }
}

struct Node {
    engine: Engine,
    now_ns: u64,
}

impl Node {
    fn new(thresholds: Vec<Threshold>, options: EvictionOptions) -> Self {
        let config = EngineConfig {
            thresholds,
            options,
            ..EngineConfig::default()
        };
        Self {
            engine: Engine::new(config),
            now_ns: 1000 * S,
        }
    }

    fn step(&mut self, kind: EventKind) -> Vec<Decision> {
        let at_ns = self.now_ns;
        let mut decisions = Vec::new();
        self.engine.step(&Event { at_ns, kind }, &mut decisions);
        decisions
    }

    /// A running pod. A static one is exempt.
    fn pod(&mut self, name: &str, priority: i32, is_static: bool) {
        let source = if is_static { "file" } else { "api" };
        let pod: Value = json!({
            "metadata": {
                "name": name, "uid": name, "labels": {"app": name},
                "annotations": {"kubernetes.io/config.source": source},
            },
            "spec": {"priority": priority, "containers": [{"name": "c"}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let uid = pod.uid();
        self.step(EventKind::PodApplied { pod: Arc::new(pod) });
        self.step(EventKind::PodRunning { uid });
    }

    /// A sample a second later, of a node with 1000 Mi available.
    fn sample(&mut self, pods: &[(&str, u64)]) -> Vec<Decision> {
        self.now_ns += S;
        let memory = |&(name, mi): &(&str, u64)| PodMemory {
            uid: PodUid::from(name),
            usage_bytes: mi * MI,
            inactive_file_bytes: 0,
            usage_at_stat_bytes: mi * MI,
            active_file_bytes: 0,
            lazily_freed_bytes: 0,
            uncharged_bytes: 0,
            huge_page_bytes: 0,
            stat_age_ms: 0,
        };
        self.step(EventKind::Sample(Sample {
            node: NodeMemory {
                capacity_bytes: 4000 * MI,
                anon_bytes: 3000 * MI,
                free_bytes: 1000 * MI,
                kernel_available_bytes: 1000 * MI,
                ..NodeMemory::default()
            },
            pods: pods.iter().map(memory).collect(),
            ..Sample::default()
        }))
    }

    fn plan(&self) -> Option<LastLinePlan> {
        plan(self.engine.config(), self.engine.state())
    }

    fn order(&self) -> Vec<String> {
        let plan = self.plan().unwrap();
        plan.order
            .iter()
            .map(|condemned| condemned.uid().to_string())
            .collect()
    }

    fn killed(&mut self, name: &str, ago_ns: u64) -> Vec<Decision> {
        let kill = LastLineKill {
            killed_ns: self.now_ns - ago_ns,
            why: LastLineReason::Unacknowledged,
            tgid: 7,
            kills: 1,
            available_bytes: Some(50 * MI),
            wanted_bytes: Some(100 * MI),
            crossed_ns: Some(self.now_ns - ago_ns - S),
        };
        let uid = PodUid::from(name);
        self.step(EventKind::LastLineKill { uid, kill })
    }
}

#[test]
fn off_unless_asked_for_and_not_without_a_line() {
    let threshold = hard(Signal::MemoryAvailable, 100);
    let mut off = Node::new(vec![threshold], EvictionOptions::kubelet());
    off.pod("a", 0, false);
    off.sample(&[("a", 100)]);
    assert_eq!(off.plan(), None);
    let mut nothing = Node::new(vec![hard(Signal::NodefsAvailable, 100)], options());
    nothing.pod("a", 0, false);
    nothing.sample(&[("a", 100)]);
    assert_eq!(nothing.plan(), None);
    let mut on = Node::new(vec![threshold], options());
    on.pod("a", 0, false);
    assert_eq!(on.plan(), None, "nothing is known yet");
    on.sample(&[("a", 100)]);
    assert_eq!(on.order(), ["a"]);
}

#[test]
fn the_line_is_the_largest_hard_threshold_and_the_critical_amount_a_quarter() {
    let soft = Threshold {
        grace_ns: S,
        ..hard(Signal::MemoryAvailable, 900)
    };
    let thresholds = vec![
        soft,
        hard(Signal::MemoryAvailable, 100),
        hard(Signal::KernelMemoryAvailable, 64),
        hard(Signal::AllocatableMemoryAvailable, 500),
    ];
    let mut node = Node::new(thresholds, options());
    node.sample(&[]);
    let plan = node.plan().unwrap();
    assert_eq!(
        (plan.line_bytes, plan.critical_bytes),
        (100 * MI, 25 * MI),
        "{plan:?}"
    );
}

#[test]
fn the_order_is_that_of_eviction_without_the_exempt() {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)], options());
    node.pod("static", 0, true);
    node.pod("system", 2_000_000_000, false);
    node.pod("precious", 5, false);
    node.pod("small", 0, false);
    node.pod("large", 0, false);
    node.pod("over", 0, false);
    let pods = [
        ("static", 900),
        ("system", 900),
        ("precious", 900),
        ("small", 10),
        ("large", 500),
    ];
    node.sample(&pods);
    // `over` has no statistics: it goes first, as everywhere.
    assert_eq!(node.order(), ["over", "large", "small", "precious"]);
    node.step(EventKind::PodEmpty {
        uid: PodUid::from("large"),
    });
    assert_eq!(node.order(), ["over", "small", "precious"]);
    // A pod that is being ended comes first.
    node.step(EventKind::PodRemoved {
        uid: PodUid::from("precious"),
    });
    assert_eq!(node.order(), ["precious", "over", "small"]);
    node.step(EventKind::PodRemoved {
        uid: PodUid::from("static"),
    });
    assert_eq!(node.order(), ["precious", "over", "small"]);
}

/// Whoever makes pods could delete as many as there are places.
#[test]
fn pods_that_the_kubelet_ends_have_no_place_before_others() {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)], options());
    let idle: Vec<String> = (0..=CONDEMNED_MAX)
        .map(|at| format!("idle{at:02}"))
        .collect();
    for name in idle.iter().map(String::as_str).chain(["hog"]) {
        node.pod(name, 0, false);
    }
    for name in &idle {
        let uid = PodUid::from(name.as_str());
        node.step(EventKind::PodEndedByKubelet { uid });
    }
    let mut pods: Vec<(&str, u64)> = idle.iter().map(|name| (name.as_str(), 1)).collect();
    pods.push(("hog", 900));
    node.sample(&pods);
    assert_eq!(node.order()[0], "hog");
}

/// It may be critical.
#[test]
fn a_pod_of_which_only_the_cgroup_is_known_comes_after_all_others() {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)], options());
    for name in ["a", "b"] {
        node.pod(name, 0, false);
    }
    let pod = Arc::new(Pod::unnamed("unnamed".into(), QosClass::BestEffort));
    node.step(EventKind::PodApplied { pod });
    let uid = PodUid::from("unnamed");
    node.step(EventKind::PodRunning { uid });
    node.sample(&[("a", 100), ("b", 200), ("unnamed", 900)]);
    assert_eq!(node.order(), ["b", "a", "unnamed"]);
    let plan = node.plan().unwrap();
    let tiers: Vec<u8> = plan.order.iter().map(|condemned| condemned.tier).collect();
    assert!(tiers[1] < tiers[2], "{tiers:?}");
}

#[test]
fn a_pod_whose_budget_is_used_up_comes_last() {
    let options = EvictionOptions {
        disruption_budgets: true,
        ..options()
    };
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)], options);
    node.pod("guarded", 0, false);
    node.pod("other", 0, false);
    let pods = [("guarded", 500), ("other", 10)];
    node.sample(&pods);
    assert_eq!(node.order(), ["guarded", "other"]);
    let budget: DisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}},
    }))
    .unwrap();
    node.step(EventKind::BudgetApplied {
        budget: Arc::new(budget),
    });
    assert_eq!(node.order(), ["other", "guarded"]);
}

#[test]
fn a_kill_begun_by_the_kernel_is_completed_before_another_pod_is_chosen() {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 1500)], options());
    node.pod("hog", 0, false);
    node.pod("other", 0, false);
    let decisions = node.killed("hog", S);
    let why = KillReason::LastLine {
        reason: LastLineReason::Unacknowledged,
    };
    let uid = PodUid::from("hog");
    assert!(
        decisions.contains(&Decision::Kill {
            uid: uid.clone(),
            why
        }),
        "{decisions:?}"
    );
    // The threshold is met, and its memory is still on its way back.
    let decisions = node.sample(&[("hog", 400), ("other", 400)]);
    let evicts = |decision: &Decision| matches!(decision, Decision::Evict { .. });
    assert!(!decisions.iter().any(evicts), "{decisions:?}");
    // A second process of it: no second kill.
    let decisions = node.killed("hog", S);
    let kills = |decision: &Decision| matches!(decision, Decision::Kill { .. });
    assert!(!decisions.iter().any(kills), "{decisions:?}");
    node.step(EventKind::PodEmpty { uid });
    let decisions = node.sample(&[("hog", 1), ("other", 400)]);
    let finished = |decision: &Decision| matches!(decision, Decision::Finished { .. });
    assert!(decisions.iter().any(finished), "{decisions:?}");
    assert!(node.engine.state().pods.values().all(|pod| {
        pod.leaving
            .is_none_or(|leaving| leaving.evicted_for == Some(Resource::Memory))
    }));
}

#[test]
fn what_it_did_long_ago_is_past() {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)], options());
    node.pod("hog", 0, false);
    let decisions = node.killed("hog", 30 * S);
    assert!(
        !decisions
            .iter()
            .any(|decision| matches!(decision, Decision::Kill { .. })),
        "{decisions:?}"
    );
    assert_eq!(node.engine.state().pods[&PodUid::from("hog")].leaving, None);
}

proptest! {
    /// For any pods in any state: an exempt pod is never condemned, and every other pod at most once.
    #[test]
    fn the_exempt_are_never_condemned(
        pods in prop::collection::vec(
            (prop_oneof![Just(0), Just(100), Just(2_000_000_000)], any::<bool>(), prop::option::of(0u64..500), 0u8..5),
            0..40,
        ),
        budgets in any::<bool>(),
    ) {
        let options = EvictionOptions { disruption_budgets: budgets, ..options() };
        let mut node = Node::new(vec![hard(Signal::KernelMemoryAvailable, 64)], options);
        let names: Vec<String> = (0..pods.len()).map(|index| format!("p{index}")).collect();
        for (name, &(priority, is_static, ..)) in names.iter().zip(&pods) {
            node.pod(name, priority, is_static);
        }
        let used: Vec<(&str, u64)> = names.iter().zip(&pods)
            .filter_map(|(name, (.., mi, _))| Some((name.as_str(), (*mi)?)))
            .collect();
        node.sample(&used);
        for (name, &(.., what)) in names.iter().zip(&pods) {
            let uid = PodUid::from(name.as_str());
            match what {
                0 => drop(node.step(EventKind::PodRemoved { uid })),
                1 => drop(node.step(EventKind::PodEmpty { uid })),
                2 => drop(node.killed(name, S)),
                _ => {}
            }
        }
        let order = node.order();
        prop_assert!(order.len() <= CONDEMNED_MAX);
        for (at, name) in order.iter().enumerate() {
            let index = names.iter().position(|listed| listed == name).unwrap();
            let (priority, is_static, ..) = pods[index];
            prop_assert!(priority < 2_000_000_000 && !is_static, "{} is exempt", name);
            prop_assert!(!order[..at].contains(name));
        }
    }
}
