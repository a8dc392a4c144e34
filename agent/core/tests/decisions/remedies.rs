//! Remedies before an eviction, from outside: what is tried in which order, that it ends, and that a pod that must not
//! wait for it does not.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{
    Cause, Event, EventKind, NodeMemory, PodMemory, RemedyReport, Sample,
};
use plimsoll_core::model::options::{EvictionOptions, Remedies};
use plimsoll_core::model::remedy::{Episode, Remedy};
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::{Amount, Operator, Passes, Threshold};
use plimsoll_core::policy::eviction::remedies::{
    CLEAR_RETRY_NS, COOL_DOWN_NS, LOOK_EVERY_NS, THROTTLE_COOL_DOWN_NS, THROTTLE_MAX_NS,
};
use proptest::prelude::*;
use serde_json::json;

const MI: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
const CAPACITY: u64 = 2000;

const ALL: Remedies = Remedies {
    reclaim_budget_ns: 400 * MS,
    throttle_budget_ns: 2000 * MS,
    notify_budget_ns: 1000 * MS,
};
const BUDGETS_NS: u64 = 3400 * MS;

fn threshold(mi: u64, grace_ns: u64) -> Threshold {
    Threshold {
        signal: Signal::MemoryAvailable,
        operator: Operator::LessThan,
        value: Amount::Absolute(mi * MI),
        grace_ns,
        min_reclaim: None,
        passes: Passes::All,
    }
}

/// Grace of a nanosecond: soft, and met at the next sample.
fn soft(mi: u64) -> Threshold {
    threshold(mi, 1)
}

#[derive(Clone, Copy, Default)]
struct Usage {
    anon: u64,
    active: u64,
    inactive: u64,
    /// Huge pages that count in the usage, of the machine's pool.
    huge: u64,
}

/// A node of 2000 Mi without swap. All sizes in Mi.
#[derive(Clone)]
struct Node {
    engine: Engine,
    now_ns: u64,
    pods: BTreeMap<&'static str, Usage>,
    swap_free: u64,
}

impl Node {
    fn new(remedies: Option<Remedies>, thresholds: Vec<Threshold>) -> Self {
        let config = EngineConfig {
            thresholds,
            options: EvictionOptions {
                remedies,
                ..EvictionOptions::kubelet()
            },
            ..EngineConfig::default()
        };
        Self {
            engine: Engine::new(config),
            now_ns: S,
            pods: BTreeMap::new(),
            swap_free: 0,
        }
    }

    fn step(&mut self, kind: EventKind) -> Vec<Decision> {
        let mut decisions = Vec::new();
        let event = Event {
            at_ns: self.now_ns,
            kind,
        };
        self.engine.step(&event, &mut decisions);
        decisions
    }

    fn pod(&mut self, name: &'static str, usage: Usage, more: &serde_json::Value) {
        self.apply(name, more);
        self.step(EventKind::PodRunning { uid: name.into() });
        self.pods.insert(name, usage);
    }

    fn apply(&mut self, name: &'static str, more: &serde_json::Value) -> Vec<Decision> {
        let mut pod = json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"containers": [{"name": "c"}]},
        });
        for (key, value) in more.as_object().unwrap() {
            let part = if key == "annotations" {
                "metadata"
            } else {
                "spec"
            };
            pod[part][key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.step(EventKind::PodApplied { pod: Arc::new(pod) })
    }

    fn usage(&mut self, name: &str) -> &mut Usage {
        self.pods.get_mut(name).unwrap()
    }

    fn sample(&mut self, after_ns: u64) -> Vec<Decision> {
        self.now_ns += after_ns;
        let sum = |of: fn(&Usage) -> u64| self.pods.values().map(of).sum::<u64>() * MI;
        let (anon, active, inactive) = (
            sum(|pod| pod.anon),
            sum(|pod| pod.active),
            sum(|pod| pod.inactive),
        );
        let free = (CAPACITY * MI).saturating_sub(anon + active + inactive);
        let node = NodeMemory {
            capacity_bytes: CAPACITY * MI,
            anon_bytes: anon,
            file_bytes: active + inactive,
            inactive_file_bytes: inactive,
            active_file_bytes: active,
            free_bytes: free,
            kernel_available_bytes: (free + active + inactive).saturating_sub(40 * MI),
            swap_total_bytes: self.swap_free * MI,
            swap_free_bytes: self.swap_free * MI,
            ..NodeMemory::default()
        };
        let pods = self.pods.iter().map(|(name, pod)| {
            let usage_bytes = (pod.anon + pod.active + pod.inactive + pod.huge) * MI;
            PodMemory {
                uid: PodUid::from(*name),
                usage_bytes,
                inactive_file_bytes: pod.inactive * MI,
                active_file_bytes: pod.active * MI,
                lazily_freed_bytes: 0,
                huge_page_bytes: pod.huge * MI,
                usage_at_stat_bytes: usage_bytes,
                uncharged_bytes: 0,
                stat_age_ms: 0,
            }
        });
        let sample = Sample {
            cause: Cause::Timer,
            node,
            charged_bytes: Some(0),
            pods: pods.collect(),
            ..Sample::default()
        };
        self.step(EventKind::Sample(sample))
    }

    fn report(&mut self, uid: &str, remedy: Remedy, report: RemedyReport) -> Vec<Decision> {
        let uid = uid.into();
        self.step(EventKind::RemedyReported {
            uid,
            remedy,
            report,
        })
    }

    /// Samples when the engine asks for it until a pod is evicted; returns the decisions with their times.
    fn run(&mut self, at_most_ns: u64) -> Vec<(u64, Decision)> {
        let mut log = Vec::new();
        let end_ns = self.now_ns + at_most_ns;
        while self.now_ns < end_ns {
            let by_ns = self.engine.state().sample_by_ns.unwrap();
            let decisions = self.sample(by_ns.saturating_sub(self.now_ns).max(1));
            log.extend(
                decisions
                    .into_iter()
                    .map(|decision| (self.now_ns, decision)),
            );
            if log
                .iter()
                .any(|(_, decision)| matches!(decision, Decision::Evict { .. }))
            {
                break;
            }
        }
        log
    }
}

/// The decisions as short lines, without arming and sampling.
fn actions(decisions: &[Decision]) -> Vec<String> {
    let words = |decision: &Decision| match decision {
        Decision::Reclaim { uid, bytes, .. } => Some(format!("reclaim {} {uid}", bytes / MI)),
        Decision::StopReclaim { uid } => Some(format!("stop {uid}")),
        Decision::SetHigh { uid, .. } => Some(format!("hold {uid}")),
        Decision::ClearHigh { uid } => Some(format!("clear {uid}")),
        Decision::Notify { uid, signal, .. } => Some(format!("{signal} {uid}")),
        Decision::RemedyEnded {
            uid, remedy, end, ..
        } => Some(format!("{} {uid} {end:?}", remedy.name())),
        Decision::Evict { uid, .. } => Some(format!("evict {uid}")),
        Decision::End { uid, .. } => Some(format!("end {uid}")),
        _ => None,
    };
    decisions.iter().filter_map(words).collect()
}

fn actions_of(log: &[(u64, Decision)]) -> Vec<String> {
    let decisions: Vec<Decision> = log.iter().map(|(_, decision)| decision.clone()).collect();
    actions(&decisions)
}

const NOTHING: [&str; 0] = [];

fn anon(mi: u64) -> Usage {
    Usage {
        anon: mi,
        ..Usage::default()
    }
}

fn wants_usr1() -> serde_json::Value {
    json!({"annotations": {"plimsoll.dev/memory-pressure-signal": "SIGUSR1"}})
}

/// A soft threshold of 500 Mi, just met: `hog` is to go.
fn short(remedies: Option<Remedies>, usage: Usage, more: &serde_json::Value) -> Node {
    let mut node = Node::new(remedies, vec![soft(500)]);
    node.pod("web", anon(600), &json!({"priority": 10}));
    node.pod("hog", usage, more);
    let used = usage;
    *node.usage("hog") = anon(0);
    node.sample(S);
    // Slow enough for every budget.
    *node.usage("hog") = used;
    let first = node.sample(200 * S);
    assert_eq!(actions(&first), NOTHING, "its grace is not over");
    node
}

#[test]
fn a_short_burst_is_no_reason_to_give_up_and_a_long_one_is() {
    let usage = Usage {
        anon: 400,
        active: 560,
        inactive: 30,
        ..Usage::default()
    };
    let after = |bursts: u64| {
        let mut node = short(Some(ALL), usage, &json!({}));
        for _ in 0..bursts {
            // 1 GiB/s. All that is left would be gone in half a second, and half of the budgets are longer.
            node.usage("hog").anon += 10;
            node.sample(10 * MS);
        }
        let remedy = |episode: &Episode| episode.remedy;
        node.engine.state().remedies.episode.as_ref().map(remedy)
    };
    assert_eq!(after(2), Some(Remedy::Reclaim));
    assert_eq!(after(12), None);
}

#[test]
fn page_cache_goes_instead_of_a_pod() {
    let usage = Usage {
        anon: 400,
        active: 560,
        inactive: 30,
        ..Usage::default()
    };
    let mut node = short(Some(ALL), usage, &json!({}));
    // 2000 - 600 - 960 = 440 are available: 60 are missing, and inactive memory is reclaimed first.
    assert_eq!(actions(&node.sample(5 * MS)), ["reclaim 90 hog"]);
    // Nobody reclaims huge pages.
    let with_huge_pages = Usage { huge: 700, ..usage };
    let mut other = short(Some(ALL), with_huge_pages, &json!({}));
    assert_eq!(actions(&other.sample(5 * MS)), ["reclaim 90 hog"]);
    node.usage("hog").inactive = 0;
    assert_eq!(actions(&node.sample(5 * MS)), NOTHING);
    node.usage("hog").active = 500;
    assert_eq!(
        actions(&node.sample(5 * MS)),
        ["stop hog", "reclaim hog Resolved"]
    );
    assert_eq!(node.engine.state().remedies.episode, None);
    // Soon back: this cache is in use. With nothing else to try, the pod is evicted.
    node.usage("hog").active = 560;
    node.sample(10 * S);
    let log = node.run(BUDGETS_NS);
    let words = actions_of(&log);
    assert_eq!(words.first().map(String::as_str), Some("hold hog"));
    assert_eq!(words.last().map(String::as_str), Some("evict hog"));
    const { assert!(COOL_DOWN_NS > 10 * S + BUDGETS_NS) };
}

#[test]
fn page_cache_that_comes_into_use_is_no_ramp() {
    let usage = Usage {
        anon: 400,
        active: 560,
        inactive: 200,
        ..Usage::default()
    };
    let mut node = short(Some(ALL), usage, &json!({}));
    assert_eq!(actions(&node.sample(5 * MS)), ["reclaim 260 hog"]);
    // 10 GiB/s by the kubelet's measure, and the kernel has lost nothing.
    *node.usage("hog") = Usage {
        anon: 400,
        active: 660,
        inactive: 100,
        ..Usage::default()
    };
    assert_eq!(actions(&node.sample(10 * MS)), NOTHING);
}

#[test]
fn every_remedy_in_its_order_and_then_the_eviction() {
    let usage = Usage {
        anon: 860,
        active: 100,
        inactive: 0,
        ..Usage::default()
    };
    let mut node = short(Some(ALL), usage, &wants_usr1());
    let log = node.run(2 * BUDGETS_NS);
    assert_eq!(
        actions_of(&log),
        [
            "reclaim 60 hog",
            "stop hog",
            "reclaim hog NoProgress",
            "hold hog",
            "clear hog",
            "throttle hog NoProgress",
            "SIGUSR1 hog",
            "notify hog NoProgress",
            "evict hog",
        ]
    );
    // Without progress a quarter of each budget, and the pace of the samples.
    let took_ns = log.last().unwrap().0 - log.first().unwrap().0;
    assert!(
        (BUDGETS_NS / 4..=BUDGETS_NS / 4 + 4 * LOOK_EVERY_NS).contains(&took_ns),
        "{took_ns}"
    );
}

#[test]
fn with_progress_a_remedy_has_its_whole_budget_and_no_more() {
    let remedies = Remedies {
        reclaim_budget_ns: 0,
        notify_budget_ns: 0,
        ..ALL
    };
    let mut node = short(Some(remedies), anon(1200), &json!({}));
    assert_eq!(actions(&node.sample(5 * MS)), ["hold hog"]);
    let since_ns = node.now_ns;
    let mut words = Vec::new();
    while words.is_empty() {
        node.usage("hog").anon -= 1;
        words = actions(&node.sample(10 * MS));
    }
    assert_eq!(words, ["clear hog", "throttle hog BudgetOver", "evict hog"]);
    assert_eq!(node.now_ns - since_ns, ALL.throttle_budget_ns);
}

#[test]
fn reclaim_goes_on_with_the_next_pod_that_has_cache() {
    let mut node = Node::new(Some(ALL), vec![soft(500)]);
    let with_cache = |active| Usage {
        anon: 450,
        active,
        inactive: 0,
        ..Usage::default()
    };
    for (name, active, more) in [
        ("a-critical", 40, json!({"priority": 2_000_000_000})),
        ("b", 20, json!({})),
        ("c", 0, json!({})),
        ("d", 130, json!({"priority": 1})),
    ] {
        node.pod(name, with_cache(active), &more);
    }
    node.pods.get_mut("a-critical").unwrap().anon = 40;
    node.sample(S);
    assert_eq!(actions(&node.sample(MS)), ["reclaim 20 b"]);
    node.usage("b").active = 0;
    let done = RemedyReport::Reclaimed { bytes: 20 * MI };
    assert_eq!(actions(&node.report("b", Remedy::Reclaim, done)), NOTHING);
    // At once, not at the next look.
    assert_eq!(node.engine.state().sample_by_ns, Some(node.now_ns + 1));
    assert_eq!(
        actions(&node.sample(1)),
        ["reclaim b Exhausted", "reclaim 60 d"]
    );
}

#[test]
fn swap_makes_anonymous_memory_reclaimable() {
    for (swap_free, first) in [(0, "hold hog"), (200, "reclaim 60 hog")] {
        let mut node = short(Some(ALL), anon(960), &json!({}));
        node.swap_free = swap_free;
        node.sample(0);
        assert_eq!(actions(&node.sample(MS))[..1], [first], "{swap_free}");
    }
}

#[test]
fn what_this_kernel_does_not_have_is_left_out_and_said_once() {
    let usage = Usage {
        anon: 860,
        active: 100,
        inactive: 0,
        ..Usage::default()
    };
    let mut node = short(Some(ALL), usage, &json!({}));
    assert_eq!(actions(&node.sample(MS)), ["reclaim 60 hog"]);
    node.report("hog", Remedy::Reclaim, RemedyReport::Unsupported);
    assert_eq!(
        actions(&node.sample(1)),
        ["reclaim hog Unsupported", "hold hog"]
    );
    node.report("hog", Remedy::Throttle, RemedyReport::Unsupported);
    assert_eq!(
        actions(&node.sample(1)),
        ["clear hog", "throttle hog Unsupported", "evict hog"]
    );
    // The next shortage finds nothing to try.
    node.step(EventKind::PodEmpty { uid: "hog".into() });
    node.pods.remove("hog");
    node.sample(S);
    node.now_ns += 2 * THROTTLE_COOL_DOWN_NS;
    node.usage("web").anon = 1501;
    node.sample(S);
    assert_eq!(actions(&node.sample(20 * S)), ["evict web"]);
}

#[test]
fn a_pod_that_leaves_is_released_before_its_eviction() {
    let remedies = Remedies {
        reclaim_budget_ns: 0,
        ..ALL
    };
    let mut node = short(Some(remedies), anon(960), &json!({}));
    assert_eq!(actions(&node.sample(MS)), ["hold hog"]);
    let words = actions(&node.step(EventKind::PodRemoved { uid: "hog".into() }));
    assert_eq!(words, ["clear hog", "throttle hog PodLeaves", "end hog"]);

    let mut node = short(Some(remedies), anon(960), &json!({}));
    assert_eq!(actions(&node.sample(MS)), ["hold hog"]);
    let words = actions(&node.apply("hog", &json!({"priority": 2_000_000_000})));
    assert_eq!(words, ["clear hog", "throttle hog PodLeaves"]);

    let mut node = short(Some(remedies), anon(960), &json!({}));
    assert_eq!(actions(&node.sample(MS)), ["hold hog"]);
    let words = actions(&node.step(EventKind::PodEmpty { uid: "hog".into() }));
    assert_eq!(words, ["clear hog", "throttle hog PodLeaves"]);
}

#[test]
fn a_high_that_could_not_be_put_back_is_put_back_again() {
    let remedies = Remedies {
        reclaim_budget_ns: 0,
        notify_budget_ns: 0,
        ..ALL
    };
    let mut node = short(Some(remedies), anon(960), &json!({}));
    node.sample(MS);
    node.usage("hog").anon = 800;
    let words = actions(&node.sample(MS));
    assert_eq!(words, ["clear hog", "throttle hog Resolved"]);
    for _ in 0..3 {
        let error = "EIO".to_owned();
        node.report("hog", Remedy::Throttle, RemedyReport::NotCleared { error });
        let again_ns = node.now_ns + CLEAR_RETRY_NS;
        assert_eq!(node.engine.state().sample_by_ns, Some(again_ns));
        assert_eq!(actions(&node.sample(CLEAR_RETRY_NS)), ["clear hog"]);
    }
    assert_eq!(actions(&node.sample(S)), NOTHING);
}

#[test]
fn a_throttled_pod_is_not_throttled_again_for_a_while() {
    let remedies = Remedies {
        reclaim_budget_ns: 0,
        notify_budget_ns: 0,
        throttle_budget_ns: 3600 * S,
    };
    let mut node = short(Some(remedies), anon(960), &json!({}));
    node.sample(MS);
    let until_ns = node.now_ns + THROTTLE_MAX_NS;
    assert_eq!(
        node.engine
            .state()
            .remedies
            .episode
            .as_ref()
            .unwrap()
            .until_ns,
        until_ns
    );
    node.usage("hog").anon = 800;
    assert_eq!(
        actions(&node.sample(MS)),
        ["clear hog", "throttle hog Resolved"]
    );
    node.usage("hog").anon = 960;
    node.sample(10 * S);
    assert_eq!(actions(&node.sample(MS)), ["evict hog"]);
}

#[test]
fn a_hard_threshold_tries_something_only_when_it_was_seen_to_have_time() {
    let cache = Usage {
        anon: 820,
        active: 80,
        inactive: 0,
        ..Usage::default()
    };
    let with = |last_look_ns: u64, before_mi: u64| {
        let mut node = Node::new(Some(ALL), vec![threshold(500, 0)]);
        node.pod("web", anon(600), &json!({"priority": 10}));
        node.pod("hog", cache, &json!({}));
        node.usage("hog").anon = before_mi;
        node.sample(S);
        node.usage("hog").anon = 821;
        actions(&node.sample(last_look_ns))
    };
    // One Mi in 200 ms: slow, and seen.
    assert_eq!(with(200 * MS, 820), ["reclaim 1 hog"]);
    // The same after a long calm: when the load began is unknown.
    assert_eq!(with(300 * MS, 820), ["evict hog"]);
    // 500 Mi in 200 ms: what the kernel has left runs out within the budget.
    assert_eq!(with(200 * MS, 321), ["evict hog"]);
    // The very first sample.
    let mut node = Node::new(Some(ALL), vec![threshold(500, 0)]);
    node.pod("hog", anon(1501), &json!({}));
    assert_eq!(actions(&node.sample(S)), ["evict hog"]);
}

#[test]
fn a_ramp_that_begins_during_a_remedy_ends_it() {
    let cache = Usage {
        anon: 820,
        active: 80,
        inactive: 0,
        ..Usage::default()
    };
    let mut node = Node::new(Some(ALL), vec![threshold(500, 0)]);
    node.pod("web", anon(600), &json!({"priority": 10}));
    node.pod("hog", cache, &json!({}));
    node.sample(S);
    node.usage("hog").anon = 821;
    assert_eq!(actions(&node.sample(200 * MS)), ["reclaim 1 hog"]);
    let by_ns = node.engine.state().sample_by_ns.unwrap();
    assert_eq!(by_ns, node.now_ns + LOOK_EVERY_NS);
    node.usage("hog").anon = 861;
    let words = actions(&node.sample(LOOK_EVERY_NS));
    assert_eq!(words, ["stop hog", "reclaim hog NoTime", "evict hog"]);

    // Half of the threshold used up is enough, however slowly.
    let mut node = Node::new(Some(ALL), vec![threshold(500, 0), soft(700)]);
    node.pod("hog", anon(1200), &json!({}));
    node.sample(S);
    node.usage("hog").anon = 1310;
    node.sample(10 * S);
    assert_eq!(actions(&node.sample(MS)), ["hold hog"]);
    node.usage("hog").anon = 1751;
    let words = actions(&node.sample(S));
    assert_eq!(words, ["clear hog", "throttle hog NoTime", "evict hog"]);
}

#[test]
fn a_report_is_an_event_that_a_journal_keeps() {
    for report in [
        RemedyReport::Reclaimed { bytes: u64::MAX },
        RemedyReport::Unsupported,
        RemedyReport::Failed {
            error: "EIO".into(),
        },
    ] {
        let event = Event {
            at_ns: 1,
            kind: EventKind::RemedyReported {
                uid: "hog".into(),
                remedy: Remedy::Throttle,
                report,
            },
        };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}

const NAMES: [&str; 4] = ["a", "b", "c", "critical"];

/// What may happen between two looks.
#[derive(Clone, Debug)]
enum Happens {
    Uses(usize, u64, u64, u64),
    Empties(usize),
    Runs(usize),
    IsApplied(usize, bool),
    IsRemoved(usize),
    Reports(usize, Remedy, RemedyReport),
    Sample,
}

fn happens() -> impl Strategy<Value = Happens> {
    let remedy = prop::sample::select(Remedy::ALL.to_vec());
    let report = prop_oneof![
        (0..500 * MI).prop_map(|bytes| RemedyReport::Reclaimed { bytes }),
        Just(RemedyReport::Failed {
            error: "EIO".into()
        }),
        Just(RemedyReport::NotCleared {
            error: "EIO".into()
        }),
        Just(RemedyReport::Unsupported),
    ];
    prop_oneof![
        6 => (0..4usize, 0..700u64, 0..200u64, 0..100u64).prop_map(|(pod, a, b, c)| Happens::Uses(pod, a, b, c)),
        1 => (0..4usize).prop_map(Happens::Empties),
        2 => (0..4usize).prop_map(Happens::Runs),
        1 => (0..4usize, any::<bool>()).prop_map(|(pod, wants)| Happens::IsApplied(pod, wants)),
        1 => (0..4usize).prop_map(Happens::IsRemoved),
        1 => (0..4usize, remedy, report).prop_map(|(pod, remedy, report)| Happens::Reports(pod, remedy, report)),
        12 => Just(Happens::Sample),
    ]
}

fn spec_of(pod: usize, wants_signal: bool) -> serde_json::Value {
    let mut more = if wants_signal {
        wants_usr1()
    } else {
        json!({})
    };
    if NAMES[pod] == "critical" {
        more["priority"] = json!(2_000_000_000);
    }
    more
}

/// Holds what must hold of each stream of decisions.
#[derive(Default)]
struct Watch {
    held: Option<(PodUid, u64)>,
    at_work: Option<(PodUid, Remedy)>,
    /// The remedies of this episode, and when it began.
    remedies: Vec<Remedy>,
    since_ns: Option<u64>,
    /// When the next sample is due.
    sample_by_ns: u64,
}

impl Watch {
    fn see(&mut self, node: &Node, decisions: &[Decision]) {
        let now_ns = node.now_ns;
        for decision in decisions {
            match decision {
                Decision::Reclaim { uid, until_ns, .. }
                | Decision::SetHigh { uid, until_ns, .. }
                | Decision::Notify { uid, until_ns, .. } => {
                    let (remedy, budget_ns) = match decision {
                        Decision::Reclaim { .. } => (Remedy::Reclaim, ALL.reclaim_budget_ns),
                        Decision::SetHigh { .. } => (Remedy::Throttle, ALL.throttle_budget_ns),
                        _ => (Remedy::Notify, ALL.notify_budget_ns),
                    };
                    assert_ne!(uid.as_str(), "critical", "an exempt pod is left alone");
                    assert!(*until_ns > now_ns && *until_ns <= now_ns + budget_ns);
                    assert_eq!(self.at_work, None, "one at a time");
                    assert!(self.remedies.last() <= Some(&remedy), "{:?}", self.remedies);
                    assert!(remedy == Remedy::Reclaim || !self.remedies.contains(&remedy));
                    self.remedies.push(remedy);
                    self.since_ns.get_or_insert(now_ns);
                    self.at_work = Some((uid.clone(), remedy));
                    if remedy == Remedy::Throttle {
                        assert_eq!(self.held, None, "two pods are held");
                        self.held = Some((uid.clone(), *until_ns));
                    }
                }
                Decision::ClearHigh { uid }
                    if self.held.as_ref().is_some_and(|(held, _)| held == uid) =>
                {
                    self.held = None;
                }
                Decision::RemedyEnded { uid, remedy, .. } => {
                    assert_eq!(self.at_work.take(), Some((uid.clone(), *remedy)));
                }
                Decision::Evict { uid, .. } => {
                    assert_eq!(self.at_work, None, "{uid} goes with a remedy under way");
                    assert_eq!(self.held, None, "{uid} goes and somebody is held");
                    let since_ns = self.since_ns.unwrap_or(now_ns);
                    assert!(now_ns - since_ns <= BUDGETS_NS, "{uid} was waited for");
                }
                Decision::End { uid, .. } | Decision::Kill { uid, .. } => {
                    let held = self.held.as_ref().map(|(held, _)| held);
                    assert_ne!(held, Some(uid), "it leaves and is held");
                }
                Decision::SampleBy { at_ns } => self.sample_by_ns = *at_ns,
                _ => {}
            }
        }
        if node.engine.state().remedies.episode.is_none() {
            assert_eq!(self.at_work, None, "forgotten");
            self.remedies.clear();
            self.since_ns = None;
        }
        if let Some((uid, until_ns)) = &self.held {
            assert!(now_ns < *until_ns, "{uid} is held beyond its time");
            assert!(
                self.sample_by_ns <= *until_ns,
                "{uid} is held and nobody looks"
            );
        }
    }
}

fn do_it(node: &mut Node, what: &Happens, after_ns: u64) -> Vec<Decision> {
    if !matches!(what, Happens::Sample) {
        node.now_ns += after_ns;
    }
    let uid = |pod: &usize| PodUid::from(NAMES[*pod]);
    match what {
        Happens::Uses(pod, anon, active, inactive) => {
            *node.usage(NAMES[*pod]) = Usage {
                anon: *anon,
                active: *active,
                inactive: *inactive,
                ..Usage::default()
            };
            Vec::new()
        }
        Happens::Empties(pod) => node.step(EventKind::PodEmpty { uid: uid(pod) }),
        Happens::Runs(pod) => node.step(EventKind::PodRunning { uid: uid(pod) }),
        Happens::IsApplied(pod, wants) => node.apply(NAMES[*pod], &spec_of(*pod, *wants)),
        Happens::IsRemoved(pod) => node.step(EventKind::PodRemoved { uid: uid(pod) }),
        Happens::Reports(pod, remedy, report) => node.report(NAMES[*pod], *remedy, report.clone()),
        Happens::Sample => node.sample(after_ns),
    }
}

fn busy(remedies: Option<Remedies>, hard_mi: u64, soft_mi: u64) -> Node {
    let mut node = Node::new(remedies, vec![threshold(hard_mi, 0), soft(soft_mi)]);
    for (pod, name) in NAMES.iter().enumerate() {
        node.pod(name, anon(100), &spec_of(pod, pod == 0));
    }
    node
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever happens: one pod at a time, in order, within budgets, never an exempt one, and every held pod is
    /// released.
    #[test]
    fn remedies_end(
        events in prop::collection::vec((happens(), 0..400 * MS), 1..120),
        hard_mi in 1u64..300,
        soft_mi in 300u64..900,
    ) {
        let mut node = busy(Some(ALL), hard_mi, soft_mi);
        let mut watch = Watch::default();
        for (what, after_ns) in &events {
            // The agent samples in time, if only by its timer; events come in between.
            let mut wait_ns = *after_ns;
            while let Some(by_ns) = node.engine.state().sample_by_ns {
                let until_ns = by_ns.saturating_sub(node.now_ns).max(1);
                if wait_ns < until_ns {
                    break;
                }
                wait_ns -= until_ns;
                let decisions = node.sample(until_ns);
                watch.see(&node, &decisions);
            }
            let decisions = do_it(&mut node, what, wait_ns);
            watch.see(&node, &decisions);
        }
        // Nothing happens any more: whatever is under way ends.
        let sample = |node: &mut Node, watch: &mut Watch| {
            let by_ns = node.engine.state().sample_by_ns.unwrap_or(node.now_ns);
            let decisions = node.sample(by_ns.saturating_sub(node.now_ns).max(1));
            watch.see(node, &decisions);
        };
        sample(&mut node, &mut watch);
        let end_ns = node.now_ns + BUDGETS_NS;
        while watch.at_work.is_some() {
            prop_assert!(node.now_ns <= end_ns, "{:?}", watch.at_work);
            sample(&mut node, &mut watch);
        }
        prop_assert_eq!(watch.held, None);
    }

    /// A ramp that would use up what the kernel has before the first budget: the same decisions as without remedies, up
    /// to the eviction and with it.
    #[test]
    fn a_fast_ramp_is_answered_as_without_remedies(
        hard_mi in 50u64..400,
        steps in prop::collection::vec((1u64..50, 1u64..2000), 1..60),
        calm_ms in 1u64..20_000,
    ) {
        let mut nodes = [None, Some(ALL)].map(|remedies| {
            Node::new(remedies, vec![threshold(hard_mi, 0)])
        });
        let mut logs = [Vec::new(), Vec::new()];
        for (node, log) in nodes.iter_mut().zip(&mut logs) {
            node.pod("web", Usage { anon: 300, active: 100, inactive: 50, ..Usage::default() }, &json!({"priority": 10}));
            node.pod("hog", anon(100), &wants_usr1());
            log.extend(node.sample(calm_ms * MS));
            for (after_ms, more) in &steps {
                // At least 6 GiB/s: 2000 Mi last less than the shortest remedy.
                node.usage("hog").anon += after_ms * 6 + more;
                log.extend(node.sample(after_ms * MS));
                if log.iter().any(|decision| matches!(decision, Decision::Evict { .. })) {
                    break;
                }
            }
        }
        let [without, with] = logs;
        prop_assert_eq!(
            serde_json::to_string(&without).unwrap(),
            serde_json::to_string(&with).unwrap()
        );
    }

    /// The same events give the same decisions, also from a state that was saved in the middle.
    #[test]
    fn it_replays(
        events in prop::collection::vec((happens(), 0..100 * MS), 1..60),
        cut in 0usize..60,
    ) {
        let mut first = busy(Some(ALL), 100, 700);
        let mut second = first.clone();
        for (at, (what, after_ns)) in events.iter().enumerate() {
            if at == cut {
                let text = serde_json::to_string(second.engine.state()).unwrap();
                let state = serde_json::from_str(&text).unwrap();
                second.engine = Engine::resume(second.engine.config().clone(), state);
            }
            let decisions = do_it(&mut first, what, *after_ns);
            prop_assert_eq!(decisions, do_it(&mut second, what, *after_ns));
        }
    }
}
