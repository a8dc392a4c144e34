//! No pod is evicted because of an old figure: when the agent has read what the engine asked for, the victims are those
//! that new figures choose.

use std::collections::BTreeSet;

use plimsoll_core::engine::Engine;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{Cause, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::model::options::{Breaker, EvictionOptions, Victims};
use plimsoll_core::model::signal::Signal;
use plimsoll_core::policy::eviction::freshness::Stale;
use plimsoll_core::policy::eviction::usage_bounds::{STALE_BYTES, STAT_AGE_MAX_MS};
use proptest::prelude::*;
use serde_json::json;

use crate::node::{MI, Node, S, hard, names};

/// `memory.available` of the one hard threshold, Mi.
const THRESHOLD: u64 = 500;

/// A pod at its last full reading and now, Mi: in use and inactive page cache. Both move in one direction, if the
/// reading is recent.
#[derive(Clone, Copy, Debug)]
struct Figures {
    age_ms: u32,
    then: (u64, u64),
    now: (u64, u64),
}

const fn fresh(used: u64) -> Figures {
    Figures {
        age_ms: 0,
        then: (used, 0),
        now: (used, 0),
    }
}

/// Uses `used`, and has read so many files since the last full reading.
const fn read(used: u64, files: u64) -> Figures {
    Figures {
        age_ms: 0,
        then: (used, 0),
        now: (used, files),
    }
}

/// As an urgent sample has it, and as it is.
fn memory(name: &str, figures: &Figures) -> [PodMemory; 2] {
    let real = PodMemory {
        uid: PodUid::from(name),
        usage_bytes: (figures.now.0 + figures.now.1) * MI,
        inactive_file_bytes: figures.now.1 * MI,
        usage_at_stat_bytes: (figures.now.0 + figures.now.1) * MI,
        active_file_bytes: 0,
        lazily_freed_bytes: 0,
        uncharged_bytes: 0,
        huge_page_bytes: 0,
        stat_age_ms: 0,
    };
    let then_bytes = (figures.then.0 + figures.then.1) * MI;
    let old = PodMemory {
        inactive_file_bytes: figures.then.1 * MI,
        usage_at_stat_bytes: then_bytes,
        stat_age_ms: figures.age_ms,
        ..real.clone()
    };
    // What has hardly moved counts as it is.
    let is_old =
        figures.age_ms > STAT_AGE_MAX_MS || real.usage_bytes.abs_diff(then_bytes) >= STALE_BYTES;
    [if is_old { old } else { real.clone() }, real]
}

fn node_with(victims: Victims, disruption_budgets: bool) -> Node {
    let options = EvictionOptions {
        victims,
        disruption_budgets,
        breaker: Some(Breaker {
            interval_ns: S + S / 2,
        }),
        ..EvictionOptions::kubelet()
    };
    Node::new(vec![hard(Signal::MemoryAvailable, THRESHOLD * MI)], options)
}

fn pod(node: &mut Node, name: &str, request_mi: u64, priority: i32) {
    node.pod(
        name,
        json!({"memory": format!("{request_mi}Mi")}),
        json!({"priority": priority}),
    );
}

/// An urgent sample in which `need_mi` are missing. `real`: what pods have now, of which the node has the page cache.
fn urgent(node: &mut Node, need_mi: u64, pods: Vec<PodMemory>, real: &[PodMemory]) -> Sample {
    node.now_ns += S;
    let cache_bytes = real.iter().map(|memory| memory.inactive_file_bytes).sum();
    Sample {
        cause: Cause::ChargeThreshold { crossed_ns: 0 },
        node: NodeMemory {
            capacity_bytes: 1000 * MI,
            anon_bytes: (1000 - THRESHOLD + need_mi) * MI,
            file_bytes: cache_bytes,
            inactive_file_bytes: cache_bytes,
            ..NodeMemory::default()
        },
        pods,
        ..Sample::default()
    }
}

/// What the engine asks for step by step, and the victims.
fn follow(node: &mut Node, need_mi: u64, pods: &[(&str, Figures)]) -> (Vec<String>, Vec<String>) {
    let both: Vec<[PodMemory; 2]> = pods
        .iter()
        .map(|(name, figures)| memory(name, figures))
        .collect();
    let real: Vec<PodMemory> = both.iter().map(|[_, real]| real.clone()).collect();
    let old = both.iter().map(|[old, _]| old.clone()).collect();
    let mut sample = urgent(node, need_mi, old, &real);
    let asked = freshen(&mut node.engine, &mut sample, node.now_ns, &both);
    let gone = gone(&node.step(EventKind::Sample(sample)));
    (asked, gone.into_iter().collect())
}

fn freshen(
    engine: &mut Engine,
    sample: &mut Sample,
    at_ns: u64,
    both: &[[PodMemory; 2]],
) -> Vec<String> {
    let mut asked = Vec::new();
    while let Some(stale) = engine.stale(sample, at_ns) {
        let Stale::Pod(index) = stale else {
            panic!("{stale:?}");
        };
        assert_ne!(sample.pods[index], both[index][1], "asked for a new figure");
        sample.pods[index] = both[index][1].clone();
        asked.push(sample.pods[index].uid.to_string());
    }
    asked
}

fn gone(decisions: &[Decision]) -> BTreeSet<String> {
    names(decisions).into_iter().map(str::to_owned).collect()
}

fn words(asked: &[&str], gone: &[&str]) -> (Vec<String>, Vec<String>) {
    let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    (all(asked), all(gone))
}

#[test]
fn the_pod_that_a_budget_makes_the_victim_is_read_anew() {
    let mut node = node_with(Victims::One, true);
    node.budget("web", &json!({"minAvailable": "100%"}));
    let pods = [
        ("web-1", fresh(300)),
        ("job-1", read(50, 150)),
        ("log-1", fresh(100)),
    ];
    for (name, _) in pods {
        pod(&mut node, name, 0, 0);
    }
    assert_eq!(follow(&mut node, 60, &pods), words(&["job-1"], &["log-1"]));
}

#[test]
fn each_of_several_victims_is_read_anew() {
    let mut node = node_with(Victims::Targeted, false);
    let pods = [("a", fresh(200)), ("b", read(20, 170)), ("c", fresh(180))];
    for (name, _) in pods {
        pod(&mut node, name, 0, 0);
    }
    assert_eq!(follow(&mut node, 350, &pods), words(&["b"], &["a", "c"]));
}

#[test]
fn the_next_victim_is_read_anew_when_the_last_is_gone_in_the_same_sample() {
    let mut node = node_with(Victims::One, false);
    for name in ["a", "b", "c"] {
        pod(&mut node, name, 0, 0);
    }
    let pods = [("a", fresh(300)), ("b", fresh(50)), ("c", fresh(100))];
    assert_eq!(follow(&mut node, 60, &pods), words(&[], &["a"]));
    let uid = PodUid::from("a");
    node.step(EventKind::PodEmpty { uid });
    let pods = [("a", fresh(0)), ("b", read(50, 150)), ("c", fresh(100))];
    assert_eq!(follow(&mut node, 60, &pods), words(&["b"], &["c"]));
}

#[test]
fn a_pod_that_may_use_more_than_it_seems_is_read_anew() {
    // The kernel took back page cache of `a`, and its old figure takes that off what it uses.
    let cache_gone = Figures {
        age_ms: 0,
        then: (200, 100),
        now: (200, 20),
    };
    let mut node = node_with(Victims::One, false);
    for name in ["a", "b"] {
        pod(&mut node, name, 0, 0);
    }
    let pods = [("a", cache_gone), ("b", fresh(150))];
    assert_eq!(follow(&mut node, 60, &pods), words(&[], &["a"]));
    // So much page cache may be its own, or that of another pod.
    let mut node = node_with(Victims::One, false);
    for (name, request) in [("a", 0), ("b", 0), ("c", 200)] {
        pod(&mut node, name, request, 0);
    }
    let pods = [("a", cache_gone), ("b", fresh(150)), ("c", read(1, 100))];
    assert_eq!(follow(&mut node, 60, &pods), words(&["a"], &["a"]));
}

/// A container at its memory limit: its usage stands still, and what was page cache is anonymous memory by now.
#[test]
fn page_cache_that_became_anonymous_memory_counts() {
    let mut node = node_with(Victims::One, false);
    for name in ["hog", "innocent"] {
        pod(&mut node, name, 100, 0);
    }
    let mut hog = Figures {
        age_ms: 20_000,
        then: (105, 700),
        now: (805, 0),
    };
    // The node has no page cache any more: no need to ask whose it was.
    let pods = [("hog", hog), ("innocent", fresh(176))];
    assert_eq!(follow(&mut node, 60, &pods), words(&[], &["hog"]));
    // And one that only seems to be ahead: its anonymous memory was freed, and it has read files.
    let mut node = node_with(Victims::One, false);
    for name in ["hog", "innocent"] {
        pod(&mut node, name, 100, 0);
    }
    (hog.then, hog.now) = ((805, 0), (105, 700));
    let pods = [("hog", hog), ("innocent", fresh(176))];
    assert_eq!(follow(&mut node, 60, &pods), words(&["hog"], &["innocent"]));
}

/// Those that cannot pass the first with all that they have are not read, however old their figures are.
#[test]
fn an_old_figure_that_changes_nothing_is_not_read() {
    let mut node = node_with(Victims::One, false);
    let old = |used, cache| Figures {
        age_ms: 60_000,
        then: (used, cache),
        now: (used, cache),
    };
    for (name, request) in [("a", 0), ("b", 0), ("c", 300)] {
        pod(&mut node, name, request, 0);
    }
    let pods = [("a", fresh(200)), ("b", old(50, 100)), ("c", old(10, 280))];
    assert_eq!(follow(&mut node, 60, &pods), words(&[], &["a"]));
}

#[test]
fn a_pod_without_statistics_goes_before_any_old_figure() {
    let mut node = node_with(Victims::One, false);
    for name in ["a", "b", "c"] {
        pod(&mut node, name, 0, 0);
    }
    let pods = [("a", read(100, 200)), ("c", fresh(150))];
    assert_eq!(follow(&mut node, 60, &pods), words(&[], &["b"]));
}

const APPS: [&str; 8] = ["a-1", "a-2", "a-3", "b-1", "b-2", "c-1", "c-2", "d-1"];

fn figures() -> impl Strategy<Value = Figures> {
    let moved = prop_oneof![2 => Just(0), 3 => 0..120u64];
    let recent = (0..200u64, 0..100u64, moved.clone(), moved, any::<bool>()).prop_map(
        |(used, cache, used_by, cache_by, grows)| Figures {
            age_ms: STAT_AGE_MAX_MS,
            then: (used, cache),
            now: if grows {
                (used + used_by, cache + cache_by)
            } else {
                (used.saturating_sub(used_by), cache.saturating_sub(cache_by))
            },
        },
    );
    // Usage may stand still while page cache becomes anonymous memory, or the reverse; or anything may happen.
    let share = (0..300u64).prop_flat_map(|usage| (0..=usage, 0..=usage, Just(usage)));
    let still = share.prop_map(|(then, now, usage)| Figures {
        age_ms: STAT_AGE_MAX_MS + 1,
        then: (then, usage - then),
        now: (now, usage - now),
    });
    let amounts = || (0..200u64, 0..100u64);
    let old = (amounts(), amounts()).prop_map(|(then, now)| Figures {
        age_ms: STAT_AGE_MAX_MS + 1,
        then,
        now,
    });
    prop_oneof![2 => recent, 2 => still, 1 => old]
}

/// What a pod is: its figures (`None`: it cannot be read), and whether it empties after the sample.
/// When, and each pod's figures with whether they are read anew.
type Taken = (u64, Vec<(Option<Figures>, bool)>);

fn samples() -> impl Strategy<Value = Vec<Taken>> {
    let pod = (prop::option::weighted(0.95, figures()), any::<bool>());
    let look = (0..500u64, prop::collection::vec(pod, APPS.len()));
    prop::collection::vec(look, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// From any state, with any options: when the agent has followed the question, the victims are those of figures
    /// that are all new.
    #[test]
    fn the_victims_are_those_of_new_figures(
        targeted: bool,
        budgets in prop::option::of([0..3u32, 0..3u32, 0..3u32]),
        pods in prop::collection::vec((0..150u64, 0..3i32), APPS.len()),
        samples in samples(),
        reversed: bool,
    ) {
        let victims = if targeted { Victims::Targeted } else { Victims::One };
        let mut node = node_with(victims, budgets.is_some());
        for (app, allowed) in ["a", "b", "c"].into_iter().zip(budgets.into_iter().flatten()) {
            node.budget(app, &json!({"maxUnavailable": allowed}));
        }
        for (name, (request, priority)) in APPS.iter().zip(pods) {
            pod(&mut node, name, request, priority);
        }
        for (need, pods) in samples {
            let mut both: Vec<[PodMemory; 2]> = APPS
                .iter()
                .zip(&pods)
                .filter_map(|(name, (figures, _))| Some(memory(name, figures.as_ref()?)))
                .collect();
            if reversed {
                both.reverse();
            }
            let reals: Vec<PodMemory> = both.iter().map(|[_, real]| real.clone()).collect();
            let real = urgent(&mut node, need, reals.clone(), &reals);
            let mut sample = Sample {
                pods: both.iter().map(|[old, _]| old.clone()).collect(),
                ..real.clone()
            };
            let at_ns = node.now_ns;
            freshen(&mut node.engine, &mut sample, at_ns, &both);
            let mut knows_all = node.clone();
            let expected = gone(&knows_all.step(EventKind::Sample(real)));
            prop_assert_eq!(gone(&node.step(EventKind::Sample(sample))), expected);
            for (name, (_, empties)) in APPS.iter().zip(&pods) {
                let uid = PodUid::from(*name);
                if *empties && node.engine.state().pods[&uid].leaving.is_some() {
                    node.step(EventKind::PodEmpty { uid });
                }
            }
        }
    }
}
