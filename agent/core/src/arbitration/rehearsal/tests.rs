use super::load::Spread;
use super::*;
use crate::arbitration::amounts::Resources;
use crate::arbitration::cluster::{Node, Options};
use crate::arbitration::groups::Consumer;

fn pod(namespace: usize, cpu: u64, priority: i64) -> Pod {
    Pod {
        namespace,
        requests: [cpu].into(),
        priority,
        ..Pod::default()
    }
}

/// One node with 10 CPU and two namespaces, the second with 4 reserved.
fn cluster() -> Cluster {
    let consumer = |reserved: u64| Consumer {
        parent: None,
        weight: 1,
        hard: [None].into(),
        reserved: [reserved].into(),
        unlimited: false,
    };
    Cluster {
        resources: Resources::new(["cpu".to_owned()]).unwrap_or_default(),
        nodes: vec![Node {
            name: "n".to_owned(),
            allocatable: [Some(10)].into(),
            withheld: [0].into(),
            state: NodeState::Ready,
        }],
        consumers: vec![consumer(0), consumer(4)],
        names: vec!["a".to_owned(), "b".to_owned()],
        pods: Vec::new(),
        budgets: Vec::new(),
        options: Options::default(),
    }
}

fn stream(pod: Pod, at_once: u64, from_s: u64, runs: u64) -> Stream {
    Stream {
        pod,
        every: load::DAY_S,
        at_once,
        runs,
        spread: Spread::Even,
        between: (from_s, load::DAY_S),
    }
}

/// 20 pods of the first namespace come a minute after the start, two of the second an hour later.
fn streams() -> Vec<Stream> {
    let mut streams = vec![
        stream(pod(0, 1, 0), 20, 0, 7200),
        stream(pod(1, 2, 0), 2, 0, 3600),
    ];
    (streams[0].every, streams[1].every) = (60, 3600);
    streams
}

fn arrivals(streams: &[Stream]) -> Vec<Arrival> {
    let (mut all, _) = load::arrivals(streams, 0, 2 * 3600, 10_000);
    all.retain(|arrival| arrival.at == if arrival.stream == 0 { 60 } else { 3600 });
    all
}

fn outcome(policy: Policy, cluster: &Cluster, streams: &[Stream]) -> Outcome {
    let arrivals = arrivals(streams);
    let terms = Terms {
        seconds: 6 * 3600,
        turn: 30,
    };
    Rehearsal::new(cluster, streams, &arrivals, policy, terms).run()
}

#[test]
fn what_is_lent_comes_back() {
    let outcome = outcome(Policy::Shares, &cluster(), &streams());
    let [a, b] = &outcome.figures[..] else {
        panic!("two namespaces")
    };
    assert_eq!((a.came, a.started, a.evicted), (20, 20, 4), "{a:?}");
    assert_eq!((b.came, b.started, b.evicted), (2, 2, 0), "{b:?}");
    // The grace period, in turns.
    assert_eq!(b.waits_s, [30, 30]);
    assert_eq!(a.lost_s, 4 * (3630 - 60));
    assert_eq!((outcome.loops, a.below_reserved, b.short_s), (0, 0, 30));
    // 20 pods of 2 h and two of 2 CPU for 1 h, and what was lost; the last four are not over by 30 s.
    assert_eq!(a.used[0], 20 * 7200 + 4 * 3570 - 4 * 30);
    assert_eq!(b.used[0], 2 * 2 * 3600);
}

#[test]
fn a_quota_is_never_lent() {
    let outcome = outcome(Policy::Quotas, &cluster(), &streams());
    let [a, b] = &outcome.figures[..] else {
        panic!("two namespaces")
    };
    assert_eq!((a.evicted, b.evicted), (0, 0));
    assert_eq!(b.waits_s, [0, 0]);
    // Five at a time: 0 h, 2 h, 4 h, and five that never start.
    assert_eq!(a.started, 15);
    assert_eq!(Figures::percentile(&a.waits_s, 25), 0);
    assert_eq!(Figures::percentile(&a.waits_s, 50), 7200);
    assert_eq!(a.waits_s[19], 6 * 3600 - 60);
}

#[test]
fn a_priority_breaks_what_is_promised() {
    let mut cluster = cluster();
    cluster.consumers[0].reserved = [10].into();
    cluster.budgets = vec![0];
    let mut streams = streams();
    streams[0].pod.budgets = vec![0];
    streams[1].pod.priority = 1;
    let priorities = outcome(Policy::Priorities, &cluster, &streams);
    let a = &priorities.figures[0];
    assert_eq!((a.evicted, a.below_reserved, a.beyond_budget), (4, 4, 4));
    assert_eq!(priorities.figures[1].waits_s, [0, 0]);
    let shares = outcome(Policy::Shares, &cluster, &streams);
    assert_eq!(shares.figures[0].evicted, 0);
}

#[test]
fn of_equal_priority_the_first_keeps_its_place() {
    let outcome = outcome(Policy::Priorities, &cluster(), &streams());
    assert_eq!(outcome.figures[0].evicted, 0);
    // The ten that run and the ten that came before them go first, each 2 h.
    assert_eq!(outcome.figures[1].waits_s, [60 + 2 * 7200 - 3600; 2]);
    assert!(outcome.figures[1].short_s > 3600);
}
