//! One pod whose memory outlives it does not cost the node all others.

use std::collections::BTreeMap;

use plimsoll_core::model::decision::{Decision, EvictionEnding};
use plimsoll_core::model::event::Sample;
use plimsoll_core::model::options::{Breaker, EvictionOptions, Victims};
use plimsoll_core::model::signal::Signal;
use serde_json::json;

use crate::node::{MI, Memory, Node, S, hard, names};

const MS: u64 = 1_000_000;
const INTERVAL_NS: u64 = 10 * S;

fn options(breaker: bool) -> EvictionOptions {
    EvictionOptions {
        breaker: breaker.then_some(Breaker {
            interval_ns: INTERVAL_NS,
        }),
        ..EvictionOptions::kubelet()
    }
}

/// Pods that leave when they are evicted, and what of each stays.
struct Run {
    node: Node,
    /// What each uses, and what of it stays when it has ended; Mi.
    pods: BTreeMap<&'static str, (u64, u64)>,
    /// Those that have just lost their last process.
    ended: Vec<&'static str>,
    victims: Vec<(u64, String)>,
    log: Vec<(u64, Decision)>,
}

impl Run {
    fn new(threshold_mi: u64, options: EvictionOptions, pods: &[(&'static str, u64, u64)]) -> Self {
        let threshold = hard(Signal::MemoryAvailable, threshold_mi * MI);
        let mut node = Node::new(vec![threshold], options);
        node.capacity_mi = 9216;
        for (name, ..) in pods {
            node.pod(name, json!({}), json!({}));
        }
        let pods = pods
            .iter()
            .map(|(name, used, stays)| (*name, (*used, *stays)));
        Self {
            node,
            pods: pods.collect(),
            ended: Vec::new(),
            victims: Vec::new(),
            log: Vec::new(),
        }
    }

    /// Samples every 10 ms. A victim ends within that, and its cgroup is removed when the engine has finished with it.
    fn go_on(&mut self, for_ns: u64) {
        let end_ns = self.node.now_ns + for_ns;
        while self.node.now_ns < end_ns {
            let memory: Vec<Memory<'_>> = self
                .pods
                .iter()
                .map(|(name, (used, _))| (*name, *used, 0, 0))
                .collect();
            let mut decisions = self.node.sample_after(10 * MS, &memory, Sample::default());
            for name in names(&decisions) {
                self.victims.push((self.node.now_ns, name.to_owned()));
                let (name, (used, stays)) =
                    self.pods.iter_mut().find(|(pod, _)| **pod == name).unwrap();
                *used = *stays;
                self.ended.push(name);
            }
            for name in std::mem::take(&mut self.ended) {
                decisions.extend(self.node.empty(name));
            }
            for decision in &decisions {
                if let Decision::Finished { uid, .. } = decision {
                    let (used, _) = self.pods.remove(uid.as_str()).unwrap();
                    self.node.other_mi += used;
                }
            }
            let now_ns = self.node.now_ns;
            self.log
                .extend(decisions.into_iter().map(|it| (now_ns, it)));
        }
    }

    fn victims(&self) -> Vec<&str> {
        self.victims.iter().map(|(_, name)| name.as_str()).collect()
    }

    fn held(&self) -> usize {
        let held =
            |(_, decision): &&(u64, Decision)| matches!(decision, Decision::EvictionsHeld { .. });
        self.log.iter().filter(held).count()
    }

    fn endings(&self) -> Vec<EvictionEnding> {
        let endings = self.log.iter().filter_map(|(_, decision)| match decision {
            Decision::Finished { ending, .. } => Some(*ending),
            _ => None,
        });
        endings.collect()
    }
}

/// A hog of 8 GiB of which nothing comes back, and five small pods.
const NODE: [(&str, u64, u64); 6] = [
    ("hog", 8192, 8192),
    ("a", 150, 0),
    ("b", 150, 0),
    ("c", 150, 0),
    ("d", 150, 0),
    ("e", 150, 0),
];

#[test]
fn without_the_breaker_all_pods_go() {
    let mut run = Run::new(1100, options(false), &NODE);
    run.go_on(10 * S);
    assert_eq!(run.victims(), ["hog", "a", "b", "c", "d", "e"]);
}

#[test]
fn one_pod_at_most_follows_where_memory_is_critically_short() {
    let mut run = Run::new(1100, options(true), &NODE);
    // 274 Mi are left, and half of the threshold is 550.
    run.go_on(10 * S);
    assert_eq!(run.victims(), ["hog", "a"]);
    assert_eq!(
        run.endings(),
        [EvictionEnding::Lingering, EvictionEnding::Freed]
    );
    assert_eq!(run.held(), 1, "{:?}", run.log);
    // And then one per interval.
    run.go_on(30 * S);
    assert_eq!(run.victims(), ["hog", "a", "b", "c", "d"]);
    let times = run.victims.windows(2).skip(1);
    for pair in times {
        assert!(pair[1].0 - pair[0].0 >= INTERVAL_NS, "{:?}", run.victims);
    }
    assert_eq!(run.held(), 1, "said once");
}

#[test]
fn no_pod_follows_for_an_interval_where_it_is_not() {
    let mut run = Run::new(
        500,
        options(true),
        &[NODE[0], ("a", 150, 0), ("b", 600, 600)],
    );
    run.node.capacity_mi += 80;
    run.node.other_mi = 0;
    // 354 Mi are left, and half of the threshold is 250.
    run.go_on(10 * S);
    assert_eq!(run.victims(), ["hog"]);
    let (_, held) = run
        .log
        .iter()
        .find(|(_, decision)| matches!(decision, Decision::EvictionsHeld { .. }))
        .unwrap();
    let text = held.to_string();
    assert!(
        text.starts_with("memory.available 354Mi < 500Mi, but evictions are held until 12.")
            && text.contains("8Gi of hog stay"),
        "{text}"
    );
    // The memory of the next one stays as well.
    run.go_on(3 * S);
    assert_eq!(run.victims(), ["hog", "b"]);
    run.go_on(8 * S);
    assert_eq!(run.victims(), ["hog", "b"]);
    run.go_on(2 * S);
    assert_eq!(run.victims(), ["hog", "b", "a"]);
}

/// What is missing beyond the retained memory is asked of others as ever: and no more than that.
#[test]
fn a_leak_beside_it_is_answered_at_once() {
    let targeted = EvictionOptions {
        victims: Victims::Targeted,
        ..options(true)
    };
    let pods = [
        ("hog", 300, 300),
        ("a", 120, 0),
        ("b", 110, 0),
        ("c", 100, 0),
    ];
    let mut run = Run::new(1100, targeted, &pods);
    run.node.other_mi = 9216 - 1000 - 630;
    run.go_on(2 * S);
    // 100 Mi are missing, and the hog has 300.
    assert_eq!(run.victims(), ["hog"]);
    // Now 460 are missing, 160 more than the hog's memory.
    run.node.other_mi += 360;
    run.go_on(200 * MS);
    assert_eq!(run.victims(), ["hog", "a", "b"]);
}

#[test]
fn it_is_forgotten_when_memory_suffices() {
    let mut run = Run::new(1100, options(true), &NODE);
    run.go_on(2 * S);
    assert_eq!(run.victims(), ["hog", "a"]);
    assert!(run.node.engine.state().retained.is_some());
    // The volume has been unmounted.
    run.node.other_mi = 0;
    run.go_on(S);
    assert_eq!(run.node.engine.state().retained, None);
    // The next shortage is another one.
    run.node.other_mi = 8192;
    run.go_on(S);
    assert_eq!(run.victims().len(), 6);
}

/// Page cache stays with the cgroup when its processes end. It did not count before either.
#[test]
fn page_cache_that_stays_is_no_failure() {
    let threshold = hard(Signal::MemoryAvailable, 500 * MI);
    let mut node = Node::new(vec![threshold], options(true));
    for name in ["a", "b"] {
        node.pod(name, json!({}), json!({}));
    }
    node.other_mi = 200;
    let used = |a| [("a", a, 300, 0), ("b", 90, 0, 0)];
    assert_eq!(names(&node.sample(&used(600), Sample::default())), ["a"]);
    node.empty("a");
    // Of 300 in use 290 come back, of 600 less than a half.
    let decisions = node.sample_after(2 * S, &used(310), Sample::default());
    assert!(
        decisions.iter().any(|decision| matches!(
            decision,
            Decision::Finished {
                ending: EvictionEnding::Lingering,
                ..
            }
        )),
        "{decisions:?}"
    );
    assert_eq!(node.engine.state().retained, None);
}
