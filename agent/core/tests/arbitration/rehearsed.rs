//! Random clusters over a day of virtual time: no going round, nothing reserved broken by an eviction, no budget
//! broken, and entitled pods do not wait for ever.

use plimsoll_core::arbitration::amounts::Resources;
use plimsoll_core::arbitration::cluster::{Cluster, Node, NodeState, Options, Pod};
use plimsoll_core::arbitration::groups::Consumer;
use plimsoll_core::arbitration::rehearsal::figures::Outcome;
use plimsoll_core::arbitration::rehearsal::load::{DAY_S, Numbers, Spread, Stream, arrivals};
use plimsoll_core::arbitration::rehearsal::{Policy, Rehearsal, Terms};

const TERMS: Terms = Terms {
    seconds: DAY_S,
    turn: 60,
};

/// A cluster of up to six nodes and seven namespaces, some in groups, with reservations, bounds and budgets; and a load
/// that is from half to twice of it.
fn cluster(seed: u64) -> (Cluster, Vec<Stream>) {
    let mut numbers = Numbers::new(seed);
    let resources = Resources::new(["cpu", "memory", "pods"].map(str::to_owned)).unwrap();
    let nodes = 1 + numbers.below(6);
    let size = [
        4000 + 1000 * numbers.below(13),
        8 + numbers.below(57),
        6 + numbers.below(30),
    ];
    let groups = numbers.below(3);
    let namespaces = 2 + numbers.below(6);
    let consumers = (0..groups + namespaces).map(|at| {
        let is_member = at >= groups && groups > 0 && numbers.below(3) > 0;
        let one_in = |numbers: &mut Numbers, of: u64| numbers.below(of) == 0;
        let reserved = if at >= groups && one_in(&mut numbers, 2) {
            size[0] * nodes / namespaces / 2
        } else {
            0
        };
        let hard = one_in(&mut numbers, 5).then(|| reserved.max(size[0] * nodes / 2));
        Consumer {
            parent: is_member.then(|| usize::try_from(numbers.below(groups)).unwrap()),
            weight: 1 + numbers.below(4),
            hard: [hard, None, None].into(),
            reserved: [reserved, 0, 0].into(),
            unlimited: false,
        }
    });
    let consumers: Vec<Consumer> = consumers.collect();
    let mut streams = Vec::new();
    let mut budgets = Vec::new();
    for namespace in groups..groups + namespaces {
        for _ in 0..1 + numbers.below(2) {
            let requests = [500 * (1 + numbers.below(6)), 1 + numbers.below(12), 1];
            let runs = 300 + numbers.below(4 * 3600);
            // So that the stream on average runs on from half to twice its part of the CPU.
            let part = (size[0] * nodes / namespaces).max(1);
            let every = requests[0] * runs / part * 4 / (2 + numbers.below(7));
            let at_once = 1 + numbers.below(4);
            let in_budget = numbers.below(4) == 0;
            if in_budget {
                budgets.push(numbers.below(3));
            }
            let from = numbers.below(18) * 3600;
            streams.push(Stream {
                pod: Pod {
                    uid: String::new(),
                    namespace: usize::try_from(namespace).unwrap(),
                    node: None,
                    requests: requests.into(),
                    priority: i64::try_from(numbers.below(2) * numbers.below(3)).unwrap(),
                    age: 0,
                    waiting: 0,
                    leaving: false,
                    daemon: false,
                    nodes: None,
                    budgets: in_budget.then(|| budgets.len() - 1).into_iter().collect(),
                },
                every: (every * at_once).max(120),
                at_once,
                runs,
                spread: Spread::Random,
                between: (from, from + 6 * 3600),
            });
        }
    }
    let cluster = Cluster {
        nodes: (0..nodes)
            .map(|at| Node {
                name: format!("n{at}"),
                allocatable: size.map(Some).into(),
                withheld: resources.none(),
                state: NodeState::Ready,
            })
            .collect(),
        names: (0..consumers.len()).map(|at| format!("c{at}")).collect(),
        consumers,
        pods: Vec::new(),
        budgets,
        options: Options::default(),
        resources,
    };
    (cluster, streams)
}

/// What all clusters together came to.
#[derive(Debug, Default)]
struct Sums {
    clusters: u64,
    pods: u64,
    evictions: u64,
    repeats: u64,
    evicted_pods_s: u64,
    /// Waits of entitled pods.
    waits_s: Vec<u64>,
}

fn check(seed: u64, sums: &mut Sums) {
    let (cluster, streams) = cluster(seed);
    let (arrivals, _) = arrivals(&streams, seed, TERMS.seconds, 2000);
    let outcome = Rehearsal::new(&cluster, &streams, &arrivals, Policy::Shares, TERMS).run();
    let of_all = |of: fn(&plimsoll_core::arbitration::rehearsal::figures::Figures) -> u64| {
        outcome.figures.iter().map(of).sum::<u64>()
    };
    assert_eq!(
        outcome.loops, 0,
        "seed {seed}: a pod is evicted twice for the same"
    );
    assert_eq!(
        of_all(|figures| figures.below_reserved),
        0,
        "seed {seed}: below reserved"
    );
    assert_eq!(
        of_all(|figures| figures.beyond_budget),
        0,
        "seed {seed}: beyond a budget"
    );
    check_room(seed, &cluster, &outcome);
    sums.clusters += 1;
    sums.pods += of_all(|figures| figures.came);
    sums.evictions += of_all(|figures| figures.evicted);
    sums.repeats += outcome.repeats;
    sums.evicted_pods_s += of_all(|figures| figures.lost_s);
    for figures in &outcome.figures {
        sums.waits_s.extend(&figures.entitled_waits_s);
    }
}

/// No more was used than there was.
fn check_room(seed: u64, cluster: &Cluster, outcome: &Outcome) {
    for resource in 0..cluster.resources.len() {
        let leaves = cluster.consumers.iter().zip(&outcome.figures);
        let used: u128 = leaves
            .filter(|(consumer, _)| consumer.parent.is_none())
            .map(|(_, figures)| figures.used[resource])
            .sum();
        let most = u128::from(outcome.capacity[resource]) * u128::from(TERMS.seconds);
        assert!(used <= most, "seed {seed}: {used} of {most}");
    }
}

fn run(seeds: std::ops::Range<u64>) -> Sums {
    let mut sums = Sums::default();
    seeds.for_each(|seed| check(seed, &mut sums));
    sums.waits_s.sort_unstable();
    sums
}

#[test]
fn a_day_keeps_every_promise() {
    let sums = run(0..15);
    assert!(
        sums.evictions > 50,
        "{} evictions show little",
        sums.evictions
    );
}

/// `REHEARSALS=10000 cargo test --release -p plimsoll-core --test arbitration rehearsed -- --ignored --nocapture`;
/// `REHEARSALS_FROM` is the first seed.
#[test]
#[ignore = "minutes"]
fn many_days_keep_every_promise() {
    let number = |name: &str, or| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let from = number("REHEARSALS_FROM", 0);
    let sums = run(from..from + number("REHEARSALS", 1000));
    let at = |hundredths: usize| sums.waits_s[(sums.waits_s.len() - 1) * hundredths / 100];
    println!(
        "{} clusters, {} pods, {} evictions that cost {} h of work, {} of them for the same pod again after other pods had come or ended; entitled pods: {}, waits 50 % {} s, 95 % {} s, 99 % {} s, longest {} s",
        sums.clusters,
        sums.pods,
        sums.evictions,
        sums.evicted_pods_s / 3600,
        sums.repeats,
        sums.waits_s.len(),
        at(50),
        at(95),
        at(99),
        at(100)
    );
}
