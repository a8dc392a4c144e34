//! The engine as its caller sees it: events in, decisions out, on small nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::{
    Decision, EvictionEnding, KillReason, NoVictimReason, Reason,
};
use plimsoll_core::model::event::{Action, Cause, Event, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::model::signal::{NodeCondition, Signal};
use plimsoll_core::model::threshold::{Amount, Threshold};
use plimsoll_core::policy::eviction::freshness::Stale;
use plimsoll_core::policy::eviction::leaving::{
    LINGER_AFTER_EMPTY_NS, OVERDUE_AFTER_KILL_NS, RELEASE_AFTER_KILL_NS, STUCK_AFTER_KILL_NS,
};
use plimsoll_core::policy::eviction::sampling::{INTERVAL_MAX_NS, STEP_MAX_BYTES, STEP_MIN_BYTES};
use proptest::prelude::*;
use serde_json::json;

use crate::node::{self, MI, S};

const MS: u64 = 1_000_000;

fn hard(signal: Signal, mi: u64) -> Threshold {
    node::hard(signal, mi * MI)
}

fn soft(mi: u64, grace_s: u64) -> Threshold {
    Threshold {
        grace_ns: grace_s * S,
        ..hard(Signal::MemoryAvailable, mi)
    }
}

/// A node of 1000 Mi and the engine that looks after it.
struct Node {
    engine: Engine,
    now_ns: u64,
    charged_bytes: Option<u64>,
    pods: Vec<(&'static str, u64)>,
}

impl Node {
    fn new(thresholds: Vec<Threshold>) -> Self {
        let config = EngineConfig {
            thresholds,
            pressure_transition_period_ns: 30 * S,
            max_pod_grace_period_s: 5,
            ..EngineConfig::default()
        };
        Self {
            engine: Engine::new(config),
            now_ns: S,
            charged_bytes: Some(0),
            pods: Vec::new(),
        }
    }

    fn step(&mut self, kind: EventKind) -> Vec<Decision> {
        let mut decisions = Vec::new();
        self.engine.step(
            &Event {
                at_ns: self.now_ns,
                kind,
            },
            &mut decisions,
        );
        decisions
    }

    fn pod(&mut self, name: &'static str, request_mi: u64, more: serde_json::Value) {
        let mut pod = json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": format!("{request_mi}Mi")}}}]},
        });
        for (key, value) in more.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.step(EventKind::PodApplied { pod: Arc::new(pod) });
        self.step(EventKind::PodRunning {
            uid: PodUid::from(name),
        });
        self.pods.push((name, 0));
    }

    fn uses(&mut self, name: &str, mi: u64) {
        self.pods
            .iter_mut()
            .find(|(pod, _)| *pod == name)
            .unwrap()
            .1 = mi;
    }

    fn empty(&mut self, name: &'static str) -> Vec<Decision> {
        self.step(EventKind::PodEmpty {
            uid: PodUid::from(name),
        })
    }

    /// A sample `after_ns` later; the node is used as much as its pods use.
    fn sample(&mut self, after_ns: u64) -> Vec<Decision> {
        self.sample_for(after_ns, Cause::Timer)
    }

    fn sample_for(&mut self, after_ns: u64, cause: Cause) -> Vec<Decision> {
        self.now_ns += after_ns;
        let used: u64 = self.pods.iter().map(|(_, mi)| mi * MI).sum();
        let node = NodeMemory {
            capacity_bytes: 1000 * MI,
            anon_bytes: used,
            free_bytes: 1000 * MI - used,
            kernel_available_bytes: (950 * MI).saturating_sub(used),
            ..NodeMemory::default()
        };
        let pods = self
            .pods
            .iter()
            .map(|(name, mi)| PodMemory {
                uid: PodUid::from(*name),
                usage_bytes: mi * MI,
                inactive_file_bytes: 0,
                usage_at_stat_bytes: mi * MI,
                active_file_bytes: 0,
                lazily_freed_bytes: 0,
                uncharged_bytes: 0,
                huge_page_bytes: 0,
                stat_age_ms: 0,
            })
            .collect();
        self.step(EventKind::Sample(Sample {
            cause,
            node,
            kubepods: None,
            charged_bytes: self.charged_bytes,
            pods,
            ..Sample::default()
        }))
    }
}

fn evicted(decisions: &[Decision]) -> Vec<&str> {
    decisions
        .iter()
        .filter_map(|decision| {
            if let Decision::Evict { uid, .. } = decision {
                Some(uid.as_str())
            } else {
                None
            }
        })
        .collect()
}

fn killed(decisions: &[Decision]) -> Vec<(&str, KillReason)> {
    decisions
        .iter()
        .filter_map(|decision| {
            if let Decision::Kill { uid, why } = decision {
                Some((uid.as_str(), *why))
            } else {
                None
            }
        })
        .collect()
}

fn endings(decisions: &[Decision]) -> Vec<(&str, EvictionEnding)> {
    decisions
        .iter()
        .filter_map(|decision| {
            if let Decision::Finished { uid, ending, .. } = decision {
                Some((uid.as_str(), *ending))
            } else {
                None
            }
        })
        .collect()
}

/// A node just below its hard threshold of 100 Mi, with the hog on its way out.
fn with_hog_leaving() -> Node {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)]);
    node.pod("web", 400, json!({}));
    node.pod("hog", 50, json!({}));
    node.uses("web", 400);
    node.uses("hog", 400);
    assert_eq!(evicted(&node.sample(S)), Vec::<&str>::new());
    node.uses("hog", 501);
    assert_eq!(evicted(&node.sample(S)), ["hog"]);
    node
}

#[test]
fn the_pod_over_its_request_goes_and_its_reason_has_every_figure() {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)]);
    node.pod("web", 400, json!({}));
    node.pod("hog", 50, json!({}));
    node.uses("web", 400);
    node.uses("hog", 501);
    let decisions = node.sample(S);
    let Some(Decision::Evict {
        uid,
        grace_s,
        reason: Reason::Threshold(reason),
    }) = decisions
        .iter()
        .find(|decision| matches!(decision, Decision::Evict { .. }))
    else {
        panic!("{decisions:?}");
    };
    assert_eq!((uid.as_str(), *grace_s), ("hog", 1));
    assert_eq!((reason.observed, reason.threshold), (99 * MI, 100 * MI));
    assert_eq!((reason.usage, reason.request), (501 * MI, 50 * MI));
    assert_eq!((reason.rank, reason.ranked, reason.exempt), (1, 2, 0));
    let text = reason.to_string();
    assert_eq!(
        text,
        "memory.available 99Mi < 100Mi; it uses 501Mi, 451Mi over its request of 50Mi, priority 0, rank 1 of 2, \
         ahead of the next by exceeding its request"
    );
}

#[test]
fn exactly_at_the_threshold_no_pod_is_evicted() {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)]);
    node.pod("hog", 50, json!({}));
    node.uses("hog", 900);
    assert_eq!(evicted(&node.sample(S)), Vec::<&str>::new());
}

#[test]
fn no_second_victim_while_the_first_is_being_freed() {
    let mut node = with_hog_leaving();
    // Gone as a process, its memory only in part.
    node.empty("hog");
    node.uses("hog", 480);
    node.uses("web", 470);
    assert_eq!(evicted(&node.sample(5 * MS)), Vec::<&str>::new());
    node.uses("hog", 20);
    let decisions = node.sample(5 * MS);
    assert_eq!(endings(&decisions), [("hog", EvictionEnding::Freed)]);
    assert_eq!(evicted(&decisions), Vec::<&str>::new());
    // Only now, and only if it is still needed.
    node.uses("web", 950);
    assert_eq!(evicted(&node.sample(S)), ["web"]);
}

#[test]
fn memory_that_lingers_in_an_empty_cgroup_holds_up_only_for_a_while() {
    let mut node = with_hog_leaving();
    node.empty("hog");
    node.uses("hog", 300);
    assert_eq!(endings(&node.sample(LINGER_AFTER_EMPTY_NS - MS)), []);
    assert_eq!(
        endings(&node.sample(MS)),
        [("hog", EvictionEnding::Lingering)]
    );
}

#[test]
fn a_pod_lingers_only_by_a_figure_that_was_read_after_the_wait() {
    let mut node = with_hog_leaving();
    node.empty("hog");
    // The agent was late, and what it attends to first is not a sample: its newest figure is from before the pod was
    // empty.
    node.now_ns += LINGER_AFTER_EMPTY_NS;
    let web = PodUid::from("web");
    let decisions = node.step(EventKind::PodRunning { uid: web });
    assert_eq!(endings(&decisions), []);
    node.uses("hog", 0);
    assert_eq!(endings(&node.sample(MS)), [("hog", EvictionEnding::Freed)]);
}

#[test]
fn grace_then_kill_then_help_then_stuck() {
    let mut node = with_hog_leaving();
    assert_eq!(killed(&node.sample(999 * MS)), []);
    assert_eq!(killed(&node.sample(MS)), [("hog", KillReason::GraceOver)]);
    let decisions = node.sample(RELEASE_AFTER_KILL_NS);
    assert!(
        decisions.contains(&Decision::ReleaseMemory { uid: "hog".into() }),
        "{decisions:?}"
    );
    assert!(
        !node
            .sample(MS)
            .iter()
            .any(|decision| matches!(decision, Decision::ReleaseMemory { .. }))
    );
    let decisions = node.sample(STUCK_AFTER_KILL_NS);
    assert_eq!(endings(&decisions), [("hog", EvictionEnding::Stuck)]);
    // It cannot be freed: another has to go.
    assert_eq!(evicted(&decisions), ["web"]);
}

#[test]
fn grace_is_over_when_half_of_the_threshold_is_gone() {
    let mut node = with_hog_leaving();
    node.uses("hog", 550);
    assert_eq!(killed(&node.sample(5 * MS)), []);
    node.uses("hog", 551);
    let decisions = node.sample(5 * MS);
    assert!(
        matches!(
            killed(&decisions)[..],
            [("hog", KillReason::HeadroomHalved { .. })]
        ),
        "{decisions:?}"
    );
    assert_eq!(killed(&node.sample(5 * MS)), [], "once is enough");
}

/// As journals of earlier versions have it.
#[test]
fn a_failure_reads_as_it_was_written() {
    let text = r#"{"at_ns":1,"event":"outcome","uid":"hog","action":"kill","error":"EIO"}"#;
    let event: Event = serde_json::from_str(text).unwrap();
    let EventKind::Outcome { action, error, .. } = &event.kind else {
        panic!("{event:?}")
    };
    assert_eq!((*action, error.as_str()), (Action::Kill, "EIO"));
    assert_eq!(serde_json::to_string(&event).unwrap(), text);
}

#[test]
fn what_is_left_when_the_first_processes_have_ended_is_killed_at_once() {
    let mut node = with_hog_leaving();
    let ended = || EventKind::FirstProcessesEnded { uid: "hog".into() };
    assert_eq!(
        killed(&node.step(ended())),
        [("hog", KillReason::FirstProcessesEnded)]
    );
    assert_eq!(killed(&node.step(ended())), []);
    assert_eq!(killed(&node.sample(2 * S)), []);
    // When that failed: not at once, which would fail again, but soon.
    let failed = EventKind::Outcome {
        uid: "hog".into(),
        action: Action::Kill,
        error: "EIO".into(),
    };
    assert_eq!(killed(&node.step(failed)), []);
    assert_eq!(killed(&node.sample(99 * MS)), []);
    assert_eq!(killed(&node.sample(MS)), [("hog", KillReason::GraceOver)]);
    // A pod that is not leaving is nobody's.
    let web = EventKind::FirstProcessesEnded { uid: "web".into() };
    assert_eq!(killed(&node.step(web)), []);
}

#[test]
fn a_pod_that_cannot_be_evicted_is_killed() {
    let mut node = with_hog_leaving();
    let failed = |action| EventKind::Outcome {
        uid: "hog".into(),
        action,
        error: "EIO".into(),
    };
    assert_eq!(
        killed(&node.step(failed(Action::Terminate))),
        [("hog", KillReason::TerminateFailed)]
    );
    // When that failed too: not at once, which would fail again, but soon.
    assert_eq!(killed(&node.step(failed(Action::Kill))), []);
    assert_eq!(killed(&node.sample(99 * MS)), []);
    assert_eq!(killed(&node.sample(MS)), [("hog", KillReason::GraceOver)]);
    // And not for ever.
    let mut decisions = Vec::new();
    for _ in 0..=STUCK_AFTER_KILL_NS / S {
        node.step(failed(Action::Kill));
        decisions.extend(node.sample(S));
    }
    assert_eq!(endings(&decisions), [("hog", EvictionEnding::Stuck)]);
}

#[test]
fn soft_threshold_waits_for_its_grace_period_and_gives_the_smaller_grace() {
    let mut node = Node::new(vec![soft(300, 10)]);
    node.pod("hog", 50, json!({"terminationGracePeriodSeconds": 3}));
    node.uses("hog", 701);
    assert_eq!(evicted(&node.sample(S)), Vec::<&str>::new());
    let decisions = node.sample(9 * S + 500 * MS);
    assert_eq!(evicted(&decisions), Vec::<&str>::new());
    assert!(
        decisions.contains(&Decision::SampleBy { at_ns: 12 * S }),
        "looks again when the grace is over: {decisions:?}"
    );
    let decisions = node.sample(500 * MS);
    assert!(
        matches!(&decisions[..], [Decision::Evict { grace_s: 3, reason: Reason::Threshold(reason), .. }, ..] if reason.soft),
        "{decisions:?}"
    );
}

#[test]
fn a_break_restarts_the_grace_period() {
    let mut node = Node::new(vec![soft(300, 10)]);
    node.pod("hog", 50, json!({}));
    node.uses("hog", 701);
    node.sample(S);
    node.uses("hog", 700);
    node.sample(9 * S);
    node.uses("hog", 701);
    node.sample(S);
    assert_eq!(evicted(&node.sample(9 * S)), Vec::<&str>::new());
    assert_eq!(evicted(&node.sample(S)), ["hog"]);
}

#[test]
fn hard_comes_before_soft() {
    let mut node = Node::new(vec![
        soft(300, 0),
        Threshold {
            grace_ns: 1,
            ..soft(300, 0)
        },
        hard(Signal::KernelMemoryAvailable, 60),
    ]);
    node.pod("hog", 50, json!({}));
    node.uses("hog", 900);
    node.sample(S);
    let decisions = node.sample(S);
    assert_eq!(evicted(&decisions).len(), 0, "one at a time");
    let mut node = Node::new(vec![
        Threshold {
            grace_ns: 1,
            ..soft(300, 0)
        },
        hard(Signal::KernelMemoryAvailable, 60),
    ]);
    node.pod("hog", 50, json!({}));
    node.uses("hog", 700);
    node.sample(S);
    node.uses("hog", 900);
    let decisions = node.sample(1);
    let reason = decisions.iter().find_map(|decision| match decision {
        Decision::Evict {
            reason: Reason::Threshold(reason),
            ..
        } => Some(reason),
        _ => None,
    });
    assert_eq!(reason.unwrap().signal, Signal::KernelMemoryAvailable);
}

#[test]
fn minimum_reclaim_counts_only_after_the_threshold_was_met() {
    let threshold = Threshold {
        min_reclaim: Some(Amount::Absolute(200 * MI)),
        ..hard(Signal::MemoryAvailable, 100)
    };
    let mut node = Node::new(vec![threshold]);
    node.pod("a", 0, json!({}));
    node.pod("b", 0, json!({}));
    node.uses("a", 440);
    node.uses("b", 360);
    assert_eq!(
        evicted(&node.sample(S)),
        Vec::<&str>::new(),
        "200 Mi are available, and nothing was met before"
    );
    node.uses("a", 541);
    assert_eq!(evicted(&node.sample(S)), ["a"]);
    node.empty("a");
    node.uses("a", 0);
    node.uses("b", 750);
    // 250 Mi available: above the threshold, below threshold + minimum reclaim.
    assert_eq!(evicted(&node.sample(S)), ["b"]);
}

#[test]
fn exempt_pods_are_skipped_and_that_is_said() {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)]);
    node.pod("critical", 0, json!({"priority": 2_000_000_000}));
    node.pod("web", 400, json!({}));
    node.uses("critical", 600);
    node.uses("web", 350);
    let decisions = node.sample(S);
    assert_eq!(evicted(&decisions), ["web"]);
    node.empty("web");
    node.uses("web", 0);
    node.uses("critical", 950);
    let decisions = node.sample(S);
    let no_victim = |why| move |decision: &&Decision| matches!(decision, Decision::NoVictim { why: found, .. } if *found == why);
    assert_eq!(
        decisions
            .iter()
            .filter(no_victim(NoVictimReason::AllExempt))
            .count(),
        1,
        "{decisions:?}"
    );
    assert_eq!(
        node.sample(S)
            .iter()
            .filter(no_victim(NoVictimReason::AllExempt))
            .count(),
        0,
        "said once"
    );
}

#[test]
fn pods_without_processes_are_no_candidates() {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)]);
    node.pod("ended", 0, json!({}));
    node.uses("ended", 950);
    node.empty("ended");
    let decisions = node.sample(S);
    assert!(decisions.iter().any(|decision| matches!(
        decision,
        Decision::NoVictim {
            why: NoVictimReason::NoPods,
            ..
        }
    )));
}

#[test]
fn the_condition_stays_for_its_transition_period() {
    let mut node = with_hog_leaving();
    node.empty("hog");
    node.uses("hog", 0);
    let condition = |decisions: &[Decision]| {
        decisions.iter().find_map(|decision| match decision {
            Decision::Condition { status, .. } => Some(*status),
            _ => None,
        })
    };
    assert!(
        node.engine
            .state()
            .condition(NodeCondition::MemoryPressure)
            .status
    );
    assert_eq!(condition(&node.sample(S)), None);
    assert_eq!(condition(&node.sample(29 * S - 1)), None);
    assert_eq!(condition(&node.sample(1)), Some(false));
}

#[test]
fn a_removed_manifest_ends_the_pod_and_an_eviction_shortens_that() {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)]);
    node.pod("a", 0, json!({"terminationGracePeriodSeconds": 20}));
    node.uses("a", 100);
    node.sample(S);
    let decisions = node.step(EventKind::PodRemoved { uid: "a".into() });
    assert!(
        decisions.contains(&Decision::End {
            uid: "a".into(),
            grace_ms: 20_000
        }),
        "{decisions:?}"
    );
    node.uses("a", 920);
    assert_eq!(evicted(&node.sample(S)), ["a"]);
    assert_eq!(killed(&node.sample(S)), [("a", KillReason::GraceOver)]);
    node.empty("a");
    node.uses("a", 0);
    assert_eq!(endings(&node.sample(MS)), [("a", EvictionEnding::Freed)]);
    assert!(node.engine.state().pods.is_empty(), "forgotten");
}

#[test]
fn the_kernel_is_armed_at_the_headroom() {
    let mut node = Node::new(vec![
        hard(Signal::MemoryAvailable, 100),
        hard(Signal::KernelMemoryAvailable, 100),
    ]);
    node.pod("a", 0, json!({}));
    node.uses("a", 300);
    node.charged_bytes = Some(5000 * MI);
    // 600 Mi of memory.available are left to go, and 550 of kernelMemory.available.
    let armed = |decisions: &[Decision]| {
        decisions.iter().find_map(|decision| match decision {
            Decision::Arm { at_charged_bytes } => Some(*at_charged_bytes - 5000 * MI),
            _ => None,
        })
    };
    assert_eq!(armed(&node.sample(S)), Some(550 * MI + 1));
    node.uses("a", 850);
    assert_eq!(
        armed(&node.sample(S)),
        Some(STEP_MIN_BYTES),
        "never closer than the kernel's own batches"
    );
}

#[test]
fn reports_without_a_crossing_come_ever_less_often() {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)]);
    node.pod("a", 0, json!({}));
    node.uses("a", 900);
    node.sample(S);
    for _ in 0..10 {
        node.sample_for(
            MS,
            Cause::ChargeThreshold {
                crossed_ns: node.now_ns,
            },
        );
    }
    assert_eq!(node.engine.state().arming.step_bytes, STEP_MAX_BYTES);
    node.sample_for(
        S,
        Cause::ChargeThreshold {
            crossed_ns: node.now_ns,
        },
    );
    assert_eq!(node.engine.state().arming.step_bytes, STEP_MIN_BYTES);
}

#[test]
fn the_timer_follows_headroom_and_growth() {
    let by = |node: &Node| node.engine.state().sample_by_ns.unwrap() - node.now_ns;
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)]);
    node.pod("a", 0, json!({}));
    node.sample(S);
    let counted = by(&node);
    node.charged_bytes = None;
    node.sample(S);
    let uncounted = by(&node);
    assert!(
        uncounted < counted && counted <= INTERVAL_MAX_NS,
        "{uncounted} {counted}"
    );
    // 900 Mi at 1 GiB/s assumed: 0.44 s is half of the time left.
    assert_eq!(uncounted / MS, 439);
    // Faster growth seen: 300 Mi in 10 ms.
    node.uses("a", 300);
    node.sample(10 * MS);
    assert_eq!(
        by(&node),
        5 * MS,
        "{}",
        node.engine.state().growth_bytes_per_s
    );
}

/// What is too old in an urgent sample of a node with two pods. Each pod: name, request, usage at its last full
/// reading, inactive file pages then, usage now, all Mi.
fn stale(pods: [(&'static str, u64, u64, u64, u64); 2]) -> Option<&'static str> {
    let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100)]);
    let mut sample = Sample {
        cause: Cause::ChargeThreshold { crossed_ns: S },
        ..Sample::default()
    };
    for (name, request_mi, then_mi, inactive_mi, now_mi) in pods {
        node.pod(name, request_mi, json!({}));
        sample.node.anon_bytes += now_mi * MI;
        sample.pods.push(PodMemory {
            uid: name.into(),
            usage_bytes: now_mi * MI,
            inactive_file_bytes: inactive_mi * MI,
            usage_at_stat_bytes: then_mi * MI,
            active_file_bytes: 0,
            lazily_freed_bytes: 0,
            uncharged_bytes: 0,
            huge_page_bytes: 0,
            stat_age_ms: 0,
        });
    }
    sample.node.capacity_bytes = 1000 * MI;
    // As much as may be a pod's.
    (sample.node.file_bytes, sample.node.inactive_file_bytes) = (700 * MI, 700 * MI);
    match node.engine.stale(&sample, 2 * S) {
        Some(Stale::Pod(index)) => Some(pods[index].0),
        Some(Stale::Kubepods) => Some("kubepods"),
        Some(Stale::NumaPods(_)) => Some("NUMA"),
        Some(Stale::Unread(_)) => Some("unread"),
        None => None,
    }
}

#[test]
fn only_a_figure_that_could_change_the_victim_is_read_anew() {
    // Above the threshold: nothing hangs on it.
    assert_eq!(stale([("a", 0, 100, 0, 300), ("b", 0, 100, 0, 300)]), None);
    // It grew, and was ahead before it did.
    assert_eq!(stale([("a", 0, 500, 0, 850), ("b", 0, 100, 0, 100)]), None);
    // It is ahead only by what it grew, which may be files.
    assert_eq!(
        stale([("a", 0, 100, 0, 750), ("b", 0, 200, 0, 200)]),
        Some("a")
    );
    // The same, within its request then: what it grew decides whether it exceeds it.
    assert_eq!(
        stale([("a", 200, 100, 0, 750), ("b", 0, 200, 0, 200)]),
        Some("a")
    );
    // It has hardly moved.
    assert_eq!(stale([("a", 0, 750, 0, 753), ("b", 0, 200, 0, 200)]), None);
}

#[test]
fn state_survives_a_round_trip_through_json() {
    let node = with_hog_leaving();
    let text = serde_json::to_string(node.engine.state()).unwrap();
    assert_eq!(
        &serde_json::from_str::<plimsoll_core::model::state::NodeState>(&text).unwrap(),
        node.engine.state()
    );
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Debug, Clone)]
enum Step {
    Uses(usize, u64),
    Empty(usize),
    Running(usize),
    Removed(usize),
    Sample(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let pod = 0..NAMES.len();
    prop_oneof![
        4 => (pod.clone(), 0u64..240).prop_map(|(pod, mi)| Step::Uses(pod, mi)),
        1 => pod.clone().prop_map(Step::Empty),
        1 => pod.clone().prop_map(Step::Running),
        1 => pod.prop_map(Step::Removed),
        6 => prop_oneof![0..5 * MS, 0..3 * S, 0..40 * S].prop_map(Step::Sample),
    ]
}

/// Runs a history and returns every decision with the time at which it was taken.
fn history(steps: &[Step], thresholds: &[Threshold]) -> (Node, Vec<(u64, Decision)>) {
    let mut node = Node::new(thresholds.to_vec());
    for (index, name) in NAMES.into_iter().enumerate() {
        let priority = if index == 3 { 2_000_000_000 } else { 0 };
        node.pod(name, 20 * index as u64, json!({"priority": priority}));
    }
    let mut all = Vec::new();
    for step in steps {
        let decisions = match step {
            Step::Uses(pod, mi) => {
                node.uses(NAMES[*pod], *mi);
                Vec::new()
            }
            Step::Empty(pod) => node.empty(NAMES[*pod]),
            Step::Running(pod) => node.step(EventKind::PodRunning {
                uid: NAMES[*pod].into(),
            }),
            Step::Removed(pod) => node.step(EventKind::PodRemoved {
                uid: NAMES[*pod].into(),
            }),
            Step::Sample(after_ns) => node.sample(*after_ns),
        };
        all.extend(
            decisions
                .into_iter()
                .map(|decision| (node.now_ns, decision)),
        );
    }
    (node, all)
}

proptest! {
    #[test]
    fn whatever_happens(steps in prop::collection::vec(any_step(), 0..60), mi in 1u64..900, grace_s in 0u64..4, min_mi in 0u64..300) {
        let thresholds = [
            hard(Signal::KernelMemoryAvailable, mi / 2),
            Threshold { min_reclaim: Some(Amount::Absolute(min_mi * MI)), ..soft(mi, grace_s) },
        ];
        let (_, decisions) = history(&steps, &thresholds);
        // Twice the same, byte for byte.
        let again = history(&steps, &thresholds).1;
        prop_assert_eq!(serde_json::to_string(&decisions).unwrap(), serde_json::to_string(&again).unwrap());
        let mut under_way = BTreeSet::new();
        let mut killed_ns = BTreeMap::new();
        for (at_ns, decision) in &decisions {
            match decision {
                Decision::Evict { uid, .. } => {
                    prop_assert_ne!(uid.as_str(), "d", "an exempt pod");
                    let is_overdue = |uid| {
                        killed_ns.get(uid).is_some_and(|killed_ns| *at_ns >= killed_ns + OVERDUE_AFTER_KILL_NS)
                    };
                    prop_assert!(under_way.iter().all(|uid| is_overdue(*uid)), "a second victim");
                    prop_assert!(under_way.insert(uid), "evicted twice");
                }
                Decision::Kill { uid, .. } => {
                    killed_ns.entry(uid).or_insert(*at_ns);
                }
                Decision::Finished { uid, .. } => {
                    under_way.remove(uid);
                    killed_ns.remove(uid);
                }
                Decision::SampleBy { at_ns: by_ns } => {
                    prop_assert!(by_ns > at_ns && *by_ns <= at_ns + INTERVAL_MAX_NS, "{} {}", at_ns, by_ns);
                }
                _ => {}
            }
        }
    }
}
