//! A pod that survives SIGKILL costs the node one eviction, and the others no more time than they have.

use plimsoll_core::model::decision::{Decision, EvictionEnding};
use plimsoll_core::model::event::{EventKind, Sample};
use plimsoll_core::model::options::EvictionOptions;
use plimsoll_core::model::signal::Signal;
use plimsoll_core::policy::eviction::leaving::{
    OVERDUE_AFTER_KILL_NS, STUCK_AFTER_KILL_NS, STUCK_FOR_NS,
};
use serde_json::json;

use crate::node::{MI, Node, S, hard, names};

const MS: u64 = 1_000_000;

fn node() -> Node {
    let threshold = hard(Signal::MemoryAvailable, 200 * MI);
    let mut node = Node::new(vec![threshold], EvictionOptions::kubelet());
    for name in ["hog", "second"] {
        node.pod(name, json!({}), json!({}));
    }
    node
}

/// Samples every 50 ms for a while; others take so much in each. The cgroup of a pod that is stuck is looked at again
/// each second, as the agent does. Returns the evictions and their times.
fn run(node: &mut Node, for_ns: u64, taken_bytes: u64, log: &mut Vec<(u64, Decision)>) {
    let end_ns = node.now_ns + for_ns;
    let mut second = node.engine.state().pods[&"second".into()].running;
    let mut taken = 0;
    while node.now_ns < end_ns {
        taken += taken_bytes;
        node.other_mi += taken / MI;
        taken %= MI;
        let all = [("hog", 500, 0, 0), ("second", 150, 0, 0)];
        let pods = if second { &all[..] } else { &all[..1] };
        let mut decisions = node.sample_after(50 * MS, pods, Sample::default());
        if names(&decisions).contains(&"second") {
            second = false;
            decisions.extend(node.empty("second"));
        }
        if node.now_ns.is_multiple_of(S) {
            let uid = "hog".into();
            decisions.extend(node.step(EventKind::PodRunning { uid }));
        }
        let now_ns = node.now_ns;
        log.extend(decisions.into_iter().map(|decision| (now_ns, decision)));
    }
}

fn times(log: &[(u64, Decision)], which: impl Fn(&Decision) -> bool) -> Vec<u64> {
    let found = log.iter().filter(|(_, decision)| which(decision));
    found.map(|(at_ns, _)| *at_ns).collect()
}

fn evicted(name: &'static str) -> impl Fn(&Decision) -> bool {
    move |decision| matches!(decision, Decision::Evict { uid, .. } if uid.as_str() == name)
}

fn killed(decision: &Decision) -> bool {
    matches!(decision, Decision::Kill { uid, .. } if uid.as_str() == "hog")
}

#[test]
fn a_pod_that_does_not_go_is_evicted_once_and_the_next_at_once_where_memory_falls() {
    let mut node = node();
    node.other_mi = 160;
    let mut log = Vec::new();
    // 1 Mi per second.
    run(&mut node, 300 * S, MI / 20, &mut log);
    assert_eq!(times(&log, evicted("hog")).len(), 1);
    let [killed_ns] = times(&log, killed)[..] else {
        panic!("{log:?}");
    };
    let [second_ns] = times(&log, evicted("second"))[..] else {
        panic!("{log:?}");
    };
    // A sixteenth of what was available has gone by then.
    let waited_ns = second_ns - killed_ns;
    assert!(
        (OVERDUE_AFTER_KILL_NS..STUCK_AFTER_KILL_NS / 2).contains(&waited_ns),
        "{waited_ns}"
    );
    let stuck = |decision: &Decision| {
        matches!(
            decision,
            Decision::Finished {
                ending: EvictionEnding::Stuck,
                ..
            }
        )
    };
    assert_eq!(times(&log, stuck), [killed_ns + STUCK_AFTER_KILL_NS]);
}

#[test]
fn it_is_waited_for_where_memory_does_not_fall() {
    let mut node = node();
    node.other_mi = 160;
    let mut log = Vec::new();
    run(&mut node, 60 * S, 0, &mut log);
    let [killed_ns] = times(&log, killed)[..] else {
        panic!("{log:?}");
    };
    assert_eq!(
        times(&log, evicted("second")),
        [killed_ns + STUCK_AFTER_KILL_NS]
    );
}

/// What is started in it anew is a pod like any other.
#[test]
fn one_that_was_empty_in_between_may_be_chosen_again() {
    let mut node = node();
    node.other_mi = 160;
    let mut log = Vec::new();
    run(&mut node, 40 * S, 0, &mut log);
    assert!(node.engine.state().pods[&"hog".into()].stuck);
    node.empty("hog");
    let uid = "hog".into();
    node.step(EventKind::PodRunning { uid });
    node.other_mi = 310;
    log.clear();
    run(&mut node, S, 0, &mut log);
    assert_eq!(times(&log, evicted("hog")).len(), 1);
    let again = log.iter().find(|(_, decision)| evicted("hog")(decision));
    let text = again.unwrap().1.to_string();
    assert!(
        text.ends_with("; evicted once before and started again"),
        "{text}"
    );
}

/// That moment can be missed.
#[test]
fn it_is_not_immune_for_ever() {
    let mut node = node();
    node.other_mi = 160;
    let mut log = Vec::new();
    run(&mut node, 60 * S, 0, &mut log);
    node.other_mi = 310;
    log.clear();
    run(&mut node, STUCK_FOR_NS, 0, &mut log);
    assert_eq!(times(&log, evicted("hog")).len(), 1);
}
