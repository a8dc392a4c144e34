//! Only the pods that may be evicted are read: the decisions are those of a sample of all pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_core::engine::Engine;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::{Decision, Reason};
use plimsoll_core::model::event::{
    Cause, CgroupMemory, EventKind, NodeMemory, Overused, PodMemory, PodsRead, Sample,
};
use plimsoll_core::model::options::{Availability, Breaker, EvictionOptions, OveruseRanking};
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::Threshold;
use plimsoll_core::policy::eviction::freshness::Stale;
use plimsoll_core::policy::eviction::usage_bounds::STAT_AGE_MAX_MS;
use plimsoll_core::protocol::cluster_link::OverusedNamespace;
use proptest::prelude::*;
use serde_json::json;

use crate::node::{MI, Node, S, hard, names};

const MS: u64 = 1_000_000;
const CAPACITY: u64 = 4000;
/// As `Sampler` has it.
const LEADERS_MAX: usize = 4;

/// Pods that lose their cgroup have ended, and those that get one run.
fn ends_and_begins(machine: &Machine, pods: &[Option<Usage>]) -> Vec<EventKind> {
    let changes = machine.pods.iter().zip(pods);
    let changes = changes.filter_map(|((name, was), now)| {
        let uid = PodUid::from(name.as_str());
        match (was, now) {
            (Some(_), None) => Some(EventKind::PodEmpty { uid }),
            (None, Some(_)) => Some(EventKind::PodRunning { uid }),
            _ => None,
        }
    });
    changes.collect()
}

/// What a pod uses, Mi: anonymous memory, inactive and active page cache.
type Usage = (u64, u64, u64);

fn memory(name: &str, (anon, inactive, active): Usage) -> PodMemory {
    let usage_bytes = (anon + inactive + active) * MI;
    PodMemory {
        uid: PodUid::from(name),
        usage_bytes,
        inactive_file_bytes: inactive * MI,
        usage_at_stat_bytes: usage_bytes,
        active_file_bytes: active * MI,
        lazily_freed_bytes: 0,
        // Always the same of a pod.
        uncharged_bytes: name.len() as u64 % 2 * 24 * MI,
        huge_page_bytes: 0,
        stat_age_ms: 0,
    }
}

/// A machine: what pods use, and what was charged so far.
#[derive(Clone)]
struct Machine {
    pods: Vec<(String, Option<Usage>)>,
    /// Taken by no pod.
    other: u64,
    charged: u64,
    has_kubepods: bool,
    has_charges: bool,
}

impl Machine {
    /// Pods come to use this; `more` is charged besides, and uncharged.
    fn becomes(&mut self, pods: &[Option<Usage>], other: u64, more: u64) {
        let total = |usage: Option<Usage>| {
            usage.map_or(0, |(anon, inactive, active)| anon + inactive + active)
        };
        for ((_, known), now) in self.pods.iter_mut().zip(pods) {
            self.charged += total(*now).saturating_sub(total(*known));
            *known = *now;
        }
        self.charged += other.saturating_sub(self.other) + more;
        self.other = other;
    }

    fn sample(&self, cause: Cause) -> Sample {
        let all = self.pods.iter().filter_map(|(_, usage)| *usage);
        let sum = |of: fn(Usage) -> u64| all.clone().map(of).sum::<u64>() * MI;
        let (anon, inactive, active) = (sum(|it| it.0), sum(|it| it.1), sum(|it| it.2));
        let used = anon + inactive + active;
        let free = (CAPACITY * MI).saturating_sub(used + self.other * MI);
        Sample {
            cause,
            node: NodeMemory {
                capacity_bytes: CAPACITY * MI,
                anon_bytes: anon + self.other * MI,
                file_bytes: inactive + active,
                inactive_file_bytes: inactive,
                active_file_bytes: active,
                free_bytes: free,
                kernel_available_bytes: free + (inactive + active) / 2,
                ..NodeMemory::default()
            },
            kubepods: self.has_kubepods.then_some(CgroupMemory {
                usage_bytes: used,
                inactive_file_bytes: inactive,
                usage_at_stat_bytes: used,
                active_file_bytes: active,
                lazily_freed_bytes: 0,
                limit_bytes: Some(CAPACITY * MI - 200 * MI),
                swap_bytes: 0,
            }),
            charged_bytes: self.has_charges.then_some(self.charged * MI),
            pods: self
                .pods
                .iter()
                .filter_map(|(name, usage)| Some(memory(name, (*usage)?)))
                .collect(),
            ..Sample::default()
        }
    }
}

/// The sample that an agent makes of the full one, and how many pods it reads. `old`: what it knows of page cache from
/// before, for each pod.
fn followed(
    engine: &mut Engine,
    full: &Sample,
    at_ns: u64,
    old: &dyn Fn(&PodMemory) -> PodMemory,
) -> (Sample, usize) {
    let mut sample = Sample {
        pods: Vec::new(),
        pods_read: PodsRead::None,
        ..full.clone()
    };
    // Where no threshold is on it, the kubepods cgroup is read with the second leader.
    let is_of_kubepods =
        |threshold: &Threshold| threshold.signal == Signal::AllocatableMemoryAvailable;
    let thresholds = &engine.config().thresholds;
    if !thresholds.iter().any(is_of_kubepods) && (at_ns / MS).is_multiple_of(2) {
        sample.kubepods = None;
    }
    let all = || full.pods.iter().map(old).collect::<Vec<_>>();
    match engine.wanted(&sample, at_ns) {
        PodsRead::None => return (sample, 0),
        PodsRead::Leaders => sample.pods_read = PodsRead::Leaders,
        PodsRead::All => {
            sample.pods_read = PodsRead::All;
            sample.pods = all();
            sample.kubepods = full.kubepods;
        }
    }
    for _ in 0..3 * full.pods.len() + 3 {
        let Some(stale) = engine.stale(&sample, at_ns) else {
            let read = sample.pods.len();
            return (sample, read);
        };
        match stale {
            Stale::Unread(uid) => {
                assert!(
                    sample.pods_read == PodsRead::Leaders
                        && sample.pods.iter().all(|memory| memory.uid != uid)
                );
                match full.pods.iter().find(|memory| memory.uid == uid) {
                    Some(memory) if sample.pods.len() < LEADERS_MAX => {
                        sample.pods.push(old(memory));
                        if sample.pods.len() > 1 {
                            sample.kubepods = full.kubepods;
                        }
                    }
                    _ => {
                        (sample.pods_read, sample.pods) = (PodsRead::All, all());
                        sample.kubepods = full.kubepods;
                    }
                }
            }
            Stale::Pod(index) => {
                let uid = sample.pods[index].uid.clone();
                let real = full.pods.iter().find(|memory| memory.uid == uid).unwrap();
                assert_ne!(sample.pods[index], *real, "asked for a new figure");
                sample.pods[index] = real.clone();
            }
            Stale::Kubepods | Stale::NumaPods(_) => panic!("{stale:?}"),
        }
    }
    panic!("it asks for ever");
}

/// But for the pod that would be next: that goes by what is known.
fn without_next(decisions: Vec<Decision>) -> Vec<Decision> {
    let mut decisions = decisions;
    for decision in &mut decisions {
        if let Decision::Evict {
            reason: Reason::Threshold(reason),
            ..
        } = decision
        {
            reason.ahead_by = None;
        }
    }
    decisions
}

fn options(availability: Availability) -> EvictionOptions {
    EvictionOptions {
        availability,
        breaker: Some(Breaker { interval_ns: S }),
        ..EvictionOptions::kubelet()
    }
}

fn threshold(signal: Signal, grace_ns: u64) -> Threshold {
    Threshold {
        grace_ns,
        ..hard(signal, 500 * MI)
    }
}

/// Priority and request, Mi, of each pod; those above 2 are critical.
fn pods() -> impl Strategy<Value = Vec<(i32, u64)>> {
    let request = prop_oneof![Just(0), 0..400u64];
    prop::collection::vec((0..4i32, request), 12)
}

#[derive(Clone, Debug)]
struct Look {
    after_ns: u64,
    cause: Cause,
    pods: Vec<Option<Usage>>,
    other: u64,
    more: u64,
    /// Whether all pods are read after it.
    then_all: bool,
    empties: bool,
    refused: bool,
}

fn look() -> impl Strategy<Value = Look> {
    let amount = prop_oneof![4 => 0..40u64, 2 => 0..200u64, 1 => 500..1500u64];
    let usage = (amount, prop_oneof![2 => Just(0), 1 => 0..150u64], 0..20u64);
    let cause = prop_oneof![
        4 => Just(Cause::ChargeThreshold { crossed_ns: 0 }),
        1 => Just(Cause::DirectReclaim { crossed_ns: 0 }),
    ];
    (
        prop_oneof![1..20 * MS, 1..400 * MS, S..3 * S],
        cause,
        prop::collection::vec(prop::option::weighted(0.97, usage), 12),
        prop_oneof![0..1500u64, 1500..3500u64],
        prop_oneof![Just(0), 0..300u64],
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |(after_ns, cause, pods, other, more, then_all, empties, refused)| Look {
                after_ns,
                cause,
                pods,
                other,
                more,
                then_all,
                empties,
                refused,
            },
        )
}

fn scene(
    thresholds: Vec<Threshold>,
    availability: Availability,
    pods: &[(i32, u64)],
) -> (Node, Machine) {
    let mut node = Node::new(thresholds, options(availability));
    let names: Vec<String> = (0..pods.len()).map(|at| format!("p{at:04}")).collect();
    for (name, (priority, request)) in names.iter().zip(pods) {
        let priority = if *priority > 2 {
            2_000_000_000
        } else {
            *priority
        };
        node.pod(
            name,
            json!({"memory": format!("{request}Mi")}),
            json!({"priority": priority}),
        );
    }
    let machine = Machine {
        pods: names.into_iter().map(|name| (name, None)).collect(),
        other: 0,
        charged: 0,
        has_kubepods: true,
        has_charges: true,
    };
    (node, machine)
}

fn thresholds() -> impl Strategy<Value = Vec<Threshold>> {
    let signal = prop_oneof![
        Just(Signal::MemoryAvailable),
        Just(Signal::AllocatableMemoryAvailable),
        Just(Signal::KernelMemoryAvailable)
    ];
    let threshold = (signal, prop_oneof![3 => Just(0), 1 => 1..S]);
    prop::collection::vec(
        threshold.prop_map(|(signal, grace_ns)| threshold_of(signal, grace_ns)),
        1..3,
    )
}

fn threshold_of(signal: Signal, grace_ns: u64) -> Threshold {
    threshold(signal, grace_ns)
}

/// An option, when the list is void, and by how much each of three namespaces is over.
type Overuse = (OveruseRanking, u64, [u16; 3]);

fn overuse() -> impl Strategy<Value = Overuse> {
    let ranking = prop_oneof![
        Just(OveruseRanking::Ignore),
        Just(OveruseRanking::AmongEquals),
        Just(OveruseRanking::BeforePriority)
    ];
    (ranking, S..10 * S, [0..20u16, 0..20, 0..20])
}

/// Spreads the pods over three namespaces, which use too much.
fn overused(node: &mut Node, (ranking, until_ns, excesses): Overuse) {
    let mut config = node.engine.config().clone();
    config.options.overuse_ranking = ranking;
    node.engine = Engine::resume(config, node.engine.state().clone());
    let pods: Vec<Pod> = node
        .engine
        .state()
        .pods
        .values()
        .map(|it| (*it.pod).clone())
        .collect();
    for (at, mut pod) in pods.into_iter().enumerate() {
        pod.metadata.namespace = Some(format!("n{}", at % 3));
        node.step(EventKind::PodApplied { pod: Arc::new(pod) });
    }
    let namespaces = excesses
        .iter()
        .enumerate()
        .map(|(at, excess)| OverusedNamespace {
            namespace: format!("n{at}"),
            excess: *excess,
        });
    let list = Overused {
        until_ns,
        namespaces: namespaces.collect(),
    };
    node.step(EventKind::Overused(Arc::new(list)));
}

fn gone(decisions: &[Decision]) -> BTreeSet<String> {
    names(decisions).into_iter().map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A history in which only leaders are read takes the decisions of one in which all pods are.
    #[test]
    fn reading_the_leaders_decides_as_reading_all(
        thresholds in thresholds(),
        reclaimable: bool,
        pods in pods(),
        history in prop::collection::vec(look(), 1..25),
        has_kubepods in prop::bool::weighted(0.8),
        has_charges in prop::bool::weighted(0.8),
        overuse in overuse(),
    ) {
        let availability = if reclaimable { Availability::Reclaimable } else { Availability::Kubelet };
        let (mut always, mut machine) = scene(thresholds, availability, &pods);
        (machine.has_kubepods, machine.has_charges) = (has_kubepods, has_charges);
        overused(&mut always, overuse);
        let mut lazy = always.clone();
        for look in history {
            always.now_ns += look.after_ns;
            lazy.now_ns = always.now_ns;
            for kind in ends_and_begins(&machine, &look.pods) {
                prop_assert_eq!(lazy.step(kind.clone()), always.step(kind));
            }
            machine.becomes(&look.pods, look.other, look.more);
            let full = machine.sample(look.cause);
            let (seen, _) = followed(&mut lazy.engine, &full, lazy.now_ns, &Clone::clone);
            let expected = without_next(always.step(EventKind::Sample(full)));
            prop_assert_eq!(without_next(lazy.step(EventKind::Sample(seen))), expected);
            let leaving = always.engine.state().pods.iter().find(|(_, pod)| pod.leaving.is_some());
            let leaving = leaving.map(|(uid, _)| uid.clone());
            if let Some(uid) = leaving.filter(|_| look.empties || look.refused) {
                let kind = if look.refused {
                    EventKind::EvictionRefused { uid }
                } else {
                    EventKind::PodEmpty { uid }
                };
                prop_assert_eq!(lazy.step(kind.clone()), always.step(kind));
            }
            if look.then_all {
                let full = machine.sample(Cause::Timer);
                let expected = without_next(always.step(EventKind::Sample(full.clone())));
                prop_assert_eq!(without_next(lazy.step(EventKind::Sample(full))), expected);
            }
        }
    }

    /// With page cache that is known from long ago the victims are those of new figures.
    #[test]
    fn leaders_with_old_page_cache_are_read_anew_where_it_counts(
        pods in pods(),
        reclaimable: bool,
        history in prop::collection::vec((look(), prop::collection::vec((0..150u64, 0..50u64), 12)), 1..12),
    ) {
        let availability = if reclaimable { Availability::Reclaimable } else { Availability::Kubelet };
        let (mut node, mut machine) = scene(vec![threshold(Signal::MemoryAvailable, 0)], availability, &pods);
        for (look, old) in history {
            node.now_ns += look.after_ns;
            for kind in ends_and_begins(&machine, &look.pods) {
                node.step(kind);
            }
            machine.becomes(&look.pods, look.other, look.more);
            let full = machine.sample(look.cause);
            let known = |memory: &PodMemory| {
                let at: usize = memory.uid.as_str()[1..].parse().unwrap();
                PodMemory {
                    inactive_file_bytes: old[at].0 * MI,
                    active_file_bytes: old[at].1 * MI,
                    stat_age_ms: STAT_AGE_MAX_MS + 1,
                    ..memory.clone()
                }
            };
            let at_ns = node.now_ns;
            let (seen, _) = followed(&mut node.engine, &full, at_ns, &known);
            let expected = gone(&node.clone().step(EventKind::Sample(full)));
            prop_assert_eq!(gone(&node.step(EventKind::Sample(seen))), expected);
        }
    }
}

fn urgent(
    node: &mut Node,
    machine: &Machine,
    old: &dyn Fn(&PodMemory) -> PodMemory,
) -> (BTreeSet<String>, usize) {
    node.now_ns += 10 * MS;
    let full = machine.sample(Cause::ChargeThreshold { crossed_ns: 0 });
    let at_ns = node.now_ns;
    let (seen, read) = followed(&mut node.engine, &full, at_ns, old);
    (gone(&node.step(EventKind::Sample(seen))), read)
}

fn crowd(known: u64) -> (Node, Machine) {
    let (mut node, mut machine) = scene(
        vec![threshold(Signal::MemoryAvailable, 0)],
        Availability::Kubelet,
        &[(0, 5); 100],
    );
    let mut pods = [Some((10, 0, 0)); 100];
    pods[42] = Some((known / 2, 0, 0));
    machine.becomes(&pods, 0, 0);
    let full = machine.sample(Cause::Timer);
    node.step(EventKind::Sample(full));
    pods[42] = Some((known, 0, 0));
    machine.becomes(&pods, 2400, 0);
    (node, machine)
}

fn only(name: &str) -> BTreeSet<String> {
    BTreeSet::from([name.to_owned()])
}

#[test]
fn of_a_hundred_pods_few_are_read() {
    // More than all others together. So much was charged since that this does not tell; the kubepods cgroup, which is
    // read with the second, does.
    let (mut node, machine) = crowd(1200);
    let (gone, read) = urgent(&mut node, &machine, &Clone::clone);
    assert_eq!(gone, only("p0042"));
    assert_eq!(read, 2);
    // Where less was charged than it is ahead by, that does.
    let (mut node, mut machine) = scene(
        vec![threshold(Signal::MemoryAvailable, 0)],
        Availability::Kubelet,
        &[(0, 5); 100],
    );
    let mut pods = [Some((10, 0, 0)); 100];
    pods[42] = Some((1200, 0, 0));
    machine.becomes(&pods, 1200, 0);
    node.step(EventKind::Sample(machine.sample(Cause::Timer)));
    pods[42] = Some((1400, 0, 0));
    machine.becomes(&pods, 1200, 0);
    let (gone, read) = urgent(&mut node, &machine, &Clone::clone);
    assert_eq!(gone, only("p0042"));
    assert_eq!(read, 1);
    // Its page cache need not be: the node has none.
    let (mut node, machine) = crowd(1200);
    let old = |memory: &PodMemory| PodMemory {
        inactive_file_bytes: 900 * MI,
        stat_age_ms: STAT_AGE_MAX_MS + 1,
        ..memory.clone()
    };
    assert_eq!(urgent(&mut node, &machine, &old).0, only("p0042"));
}

#[test]
fn a_leader_is_found_by_what_was_charged_where_there_is_no_sum() {
    let (mut node, mut machine) = crowd(1200);
    machine.has_kubepods = false;
    let full = machine.sample(Cause::Timer);
    node.step(EventKind::Sample(full));
    // The first is gone, and another one grew to more than was charged since for each of the others.
    let uid = PodUid::from("p0042");
    node.step(EventKind::PodEmpty { uid });
    let mut pods = [Some((10, 0, 0)); 100];
    (pods[42], pods[7]) = (None, Some((60, 0, 0)));
    machine.becomes(&pods, 3600, 0);
    let full = machine.sample(Cause::Timer);
    node.now_ns += 2 * S;
    node.step(EventKind::Sample(full.clone()));
    let expected = node.clone().step(EventKind::Sample(full));
    let (gone_now, _) = urgent(&mut node, &machine, &Clone::clone);
    assert_eq!(gone_now, gone(&expected));
}

#[test]
fn a_false_alarm_reads_no_pod_however_old_their_figures_are() {
    let (mut node, mut machine) = crowd(10);
    machine.becomes(&[Some((10, 0, 0)); 100], 500, 0);
    node.now_ns += 10 * S;
    assert!(node.engine.has_old_pods(node.now_ns));
    assert_eq!(
        urgent(&mut node, &machine, &Clone::clone),
        (BTreeSet::new(), 0)
    );
}

#[test]
fn a_journal_keeps_that_only_leaders_were_read() {
    let sample = Sample {
        pods_read: PodsRead::Leaders,
        ..Sample::default()
    };
    let text = serde_json::to_string(&sample).unwrap();
    assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), sample);
    assert!(
        !serde_json::to_string(&Sample::default())
            .unwrap()
            .contains("pods_read")
    );
}
