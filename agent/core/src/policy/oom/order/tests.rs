//! Against a model of the kernel's choice.

use proptest::prelude::*;

use super::*;
use crate::policy::eviction::rank::Nanos;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const PAGE: NonZeroU64 = NonZeroU64::new(4096).unwrap();

fn node(ram_bytes: u64) -> OomNode {
    OomNode::new(ram_bytes, 0, PAGE)
}

fn container(name: &str, usage_bytes: u64, request_bytes: u64, kubelet_adj: i32) -> OomContainer {
    OomContainer {
        name: name.to_owned(),
        usage_bytes,
        largest_process_bytes: 0,
        request_bytes,
        sidecar: false,
        kubelet_adj,
        current_adj: None,
    }
}

fn pod(uid: &str, priority: i32, containers: Vec<OomContainer>) -> OomPod {
    let sum = |of: fn(&OomContainer) -> u64| containers.iter().map(of).sum();
    let request = Nanos::from_units(sum(|container| container.request_bytes));
    OomPod {
        row: RankRow {
            uid: PodUid::from(uid),
            exempt: false,
            unnamed: 0,
            stats_known: true,
            priority,
            overused: 0,
            over_share: 0,
            usage: sum(|container| container.usage_bytes),
            allowance: request,
            request,
        },
        exempt: false,
        containers,
    }
}

/// `1000 - 1000 * request / capacity` of the kubelet, within its bounds.
fn burstable(uid: &str, usage_bytes: u64, request_bytes: u64, node: OomNode) -> OomPod {
    let capacity = i128::from(node.total_pages * PAGE.get());
    let adj = 1000 - 1000 * i128::from(request_bytes) / capacity;
    let adj = i32::try_from(adj).unwrap().clamp(3, 999);
    pod(
        uid,
        0,
        vec![container("c", usage_bytes, request_bytes, adj)],
    )
}

/// A process of the model: whose it is, and its pages.
type Process = (usize, u64);

/// Whom the kernel takes: the place of the process with the most badness. Of equals the last one, which is the worst
/// for us.
fn victim(
    plan: &OomPlan,
    processes: &[Process],
    score: impl Fn(&PlannedContainer) -> i32,
) -> usize {
    let chosen = processes
        .iter()
        .filter(|(place, _)| score(&plan.containers[*place]) != -1000)
        .max_by_key(|(place, pages)| {
            let badness = plan
                .node
                .badness_pages(score(&plan.containers[*place]), *pages);
            (badness, *place)
        });
    chosen.unwrap().0
}

fn whole(plan: &OomPlan) -> Vec<Process> {
    let pages = |place: &PlannedContainer| place.usage_bytes.div_ceil(PAGE.get());
    plan.containers.iter().map(pages).enumerate().collect()
}

fn of<'plan>(plan: &'plan OomPlan, uid: &str) -> &'plan PlannedContainer {
    let place = plan
        .containers
        .iter()
        .find(|place| place.uid.as_str() == uid);
    place.unwrap()
}

/// kubernetes#133839: 62 and 66 GiB requested of 128, 28 and 100 GiB used, the latter by ten processes.
#[test]
fn many_processes_do_not_hide_a_pod_above_its_request() {
    let node = node(128 * GIB);
    let pods = [
        burstable("a-within", 28 * GIB, 62 * GIB, node),
        burstable("b-above", 100 * GIB, 66 * GIB, node),
    ];
    assert_eq!(
        pods.clone().map(|pod| pod.containers[0].kubelet_adj),
        [516, 485]
    );
    let plan = oom_plan(node, &pods);
    assert_eq!(plan.containers[0].uid.as_str(), "b-above");
    assert!(plan.containers[0].certain);
    let mut processes: Vec<Process> = vec![(1, 28 * GIB / PAGE)];
    processes.extend([(0, 10 * GIB / PAGE); 10]);
    assert_eq!(
        victim(&plan, &processes, |place| place.kubelet_adj),
        1,
        "the complaint is not reproduced"
    );
    assert_eq!(victim(&plan, &processes, |place| place.adj), 0);
}

/// kubernetes#142230: on 4 TiB requests of 50 MiB, 500 MiB and 64 GiB give 999, 999 and 985.
#[test]
fn a_node_of_tebibytes_tells_small_pods_apart() {
    let node = node(4096 * GIB);
    let small_over = burstable("small-over", 300 * MIB, 50 * MIB, node);
    let middle = burstable("middle-within", 450 * MIB, 500 * MIB, node);
    let large = burstable("large-within", 60 * GIB, 64 * GIB, node);
    let pods = [large, middle, small_over];
    assert_eq!(
        pods.clone().map(|pod| pod.containers[0].kubelet_adj),
        [985, 999, 999]
    );
    let plan = oom_plan(node, &pods);
    let order: Vec<_> = plan
        .containers
        .iter()
        .map(|place| place.uid.as_str())
        .collect();
    assert_eq!(order, ["small-over", "middle-within", "large-within"]);
    assert_eq!(plan.certain(), 3);
    assert_eq!(victim(&plan, &whole(&plan), |place| place.adj), 0);
    // By the kubelet's scores it is the large one, which is within its request.
    let kubelet = victim(&plan, &whole(&plan), |place| place.kubelet_adj);
    assert_eq!(plan.containers[kubelet].uid.as_str(), "large-within");
    let scores: Vec<i32> = plan.containers.iter().map(|place| place.adj).collect();
    assert_eq!(scores, [1000, 999, 982]);
}

#[test]
fn nine_hundred_small_pods_on_four_tebibytes_are_all_certain() {
    let node = node(4096 * GIB);
    let pods: Vec<OomPod> = (0..900)
        .map(|index| burstable(&format!("p{index:03}"), 300 * MIB + index, 50 * MIB, node))
        .collect();
    assert_eq!(oom_plan(node, &pods).certain(), 900);
}

#[test]
fn within_a_pod_the_one_above_its_request_goes_first_and_an_innocent_sidecar_last() {
    let node = node(16 * GIB);
    let mut sidecar = container("proxy", 60 * MIB, 64 * MIB, 900);
    sidecar.sidecar = true;
    let main = container("main", 2 * GIB, 3 * GIB, 900);
    let leaky = container("leaky", 5 * GIB, GIB, 900);
    let plan = oom_plan(node, &[pod("p", 0, vec![sidecar.clone(), main, leaky])]);
    let order = |plan: &OomPlan| -> Vec<String> {
        plan.containers
            .iter()
            .map(|place| place.container.clone())
            .collect()
    };
    assert_eq!(order(&plan), ["leaky", "main", "proxy"]);
    assert_eq!(plan.certain(), 3);
    // A sidecar that leaks is not innocent.
    sidecar.usage_bytes = 4 * GIB;
    let main = container("main", 2 * GIB, 3 * GIB, 900);
    let plan = oom_plan(node, &[pod("p", 0, vec![main, sidecar])]);
    assert_eq!(order(&plan), ["proxy", "main"]);
}

#[test]
fn exempt_pods_come_after_all_others_and_guaranteed_ones_last() {
    let node = node(16 * GIB);
    let mut exempt = burstable("exempt", 6 * GIB, 16 * MIB, node);
    exempt.exempt = true;
    let guaranteed = pod(
        "guaranteed",
        -5,
        vec![container("c", 2 * GIB, 2 * GIB, -997)],
    );
    let best_effort = pod("best-effort", 100, vec![container("c", MIB, 0, 1000)]);
    let mut critical = pod(
        "critical",
        2_000_001_000,
        vec![container("c", GIB, 0, -997)],
    );
    critical.exempt = true;
    let plan = oom_plan(node, &[guaranteed, critical, exempt, best_effort]);
    let found: Vec<_> = plan
        .containers
        .iter()
        .map(|place| (place.uid.as_str(), place.tier, place.adj))
        .collect();
    assert_eq!(
        found,
        [
            ("best-effort", Tier::Ranked, 1000),
            // Its 6 GiB do not come before the 1 MiB of the container that may be killed.
            ("exempt", Tier::Exempt, 2),
            ("critical", Tier::Protected, -997),
            ("guaranteed", Tier::Protected, -997),
        ]
    );
    assert_eq!(victim(&plan, &whole(&plan), |place| place.adj), 0);
    // Above its request (its limits were lowered while it runs), it is like any other.
    let shrunk = pod("shrunk", 0, vec![container("c", 2 * GIB, GIB, -997)]);
    assert_eq!(oom_plan(node, &[shrunk]).containers[0].adj, 1000);
}

#[test]
fn a_small_change_rewrites_nothing_and_a_large_one_only_what_it_must() {
    let node = node(64 * GIB);
    let usages = [9 * GIB, 4 * GIB, 2 * GIB, GIB, 100 * MIB];
    let pods = |usages: [u64; 5], scores: &[Option<i32>]| -> Vec<OomPod> {
        let names = ["a", "b", "c", "d", "e"].iter().zip(usages).zip(scores);
        names
            .map(|((uid, usage), score)| {
                let mut pod = burstable(uid, usage, 10 * MIB, node);
                pod.containers[0].current_adj = *score;
                pod
            })
            .collect()
    };
    let first = oom_plan(node, &pods(usages, &[None; 5]));
    assert_eq!(first.changes().count(), 5);
    let scores: Vec<Option<i32>> = first
        .containers
        .iter()
        .map(|place| Some(place.adj))
        .collect();
    let grown = usages.map(|usage| usage + usage / 10);
    assert_eq!(oom_plan(node, &pods(grown, &scores)).changes().count(), 0);
    // The third grows within its place: it and those behind it get out of the way.
    let leap = [9 * GIB, 4 * GIB, 3900 * MIB, GIB, 100 * MIB];
    let plan = oom_plan(node, &pods(leap, &scores));
    assert_eq!(of(&plan, "a").current_adj, Some(of(&plan, "a").adj));
    assert_eq!(of(&plan, "b").current_adj, Some(of(&plan, "b").adj));
    assert_ne!(of(&plan, "c").current_adj, Some(of(&plan, "c").adj));
    assert_eq!(plan.certain(), 5);
    // The first has ended: the order is still right, and the next is within the drift.
    let rest = &pods(usages, &scores)[1..];
    let plan = oom_plan(node, rest);
    let written: Vec<_> = plan.changes().map(|place| place.uid.as_str()).collect();
    assert_eq!(
        written,
        ["b", "c", "d", "e"],
        "71 steps below a fresh score"
    );
}

#[test]
fn a_node_too_small_for_steps_and_an_absurd_one_are_no_reason_to_panic() {
    for node in [
        node(0),
        node(999 * 4096),
        OomNode::new(u64::MAX, u64::MAX, NonZeroU64::MIN),
    ] {
        let huge = container("c", u64::MAX, u64::MAX, 3);
        let plan = oom_plan(node, &[pod("p", 0, vec![huge])]);
        assert_eq!(plan.containers[0].adj, 1000);
    }
    assert!(oom_plan(node(GIB), &[]).containers.is_empty());
}

prop_compose! {
    fn any_container()(
        usage in prop_oneof![0u64..64 * MIB, 0u64..32 * GIB],
        known in 0u64..=4,
        request in prop_oneof![Just(0u64), 0u64..32 * GIB],
        sidecar: bool,
        kubelet_adj in prop_oneof![Just(-997), 3i32..=1000],
        current_adj in prop::option::of(-1000i32..=1000),
    ) -> OomContainer {
        OomContainer {
            name: String::new(),
            usage_bytes: usage,
            largest_process_bytes: usage / 4 * known,
            request_bytes: request,
            sidecar,
            kubelet_adj,
            current_adj,
        }
    }
}

prop_compose! {
    fn any_pods()(
        pods in prop::collection::vec(
            (prop::collection::vec(any_container(), 1..4), -2i32..3, prop::bool::weighted(0.1), prop::bool::weighted(0.9)),
            1..30,
        ),
    ) -> Vec<OomPod> {
        let pods = pods.into_iter().enumerate();
        pods.map(|(index, (mut containers, priority, exempt, stats_known))| {
            for (index, container) in containers.iter_mut().enumerate() {
                container.name = format!("c{index}");
            }
            let mut pod = pod(&format!("p{index:02}"), priority, containers);
            pod.exempt = exempt;
            pod.row.stats_known = stats_known;
            pod
        }).collect()
    }
}

fn any_node() -> impl Strategy<Value = OomNode> {
    prop_oneof![Just(1u64), Just(16), Just(128), Just(4096)].prop_map(|gib| node(gib * GIB))
}

/// Splits each place's pages into processes; the first has at least what is known to be in one.
fn split(plan: &OomPlan, cuts: &[u64]) -> Vec<Process> {
    let mut processes = Vec::new();
    for (index, (place, pages)) in plan.containers.iter().zip(whole(plan)).enumerate() {
        let at_least = place.badness_min_pages - plan.node.badness_pages(place.adj, 0);
        let at_least = u64::try_from(at_least).unwrap();
        let cut = cuts[index % cuts.len()];
        let first = at_least + (pages.1 - at_least) / cut;
        processes.push((index, first));
        let rest = pages.1 - first;
        processes.extend([(index, rest / cut), (index, rest - rest / cut)]);
    }
    processes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The guarantee of the module's head, for each certain place, with memory spread in any way.
    #[test]
    fn the_kernel_takes_no_later_place_while_a_certain_one_is_there(
        node in any_node(), pods in any_pods(), cuts in prop::collection::vec(1u64..50, 1..20),
    ) {
        let plan = oom_plan(node, &pods);
        let mut processes = split(&plan, &cuts);
        for index in 0..plan.containers.len() {
            if plan.containers[index].certain {
                prop_assert_eq!(victim(&plan, &processes, |place| place.adj), index);
            }
            processes.retain(|(place, _)| *place != index);
        }
    }

    /// What is certain by the closed form of the module's head, is.
    #[test]
    fn places_that_fit_into_the_range_are_certain(node in any_node(), mut pods in any_pods()) {
        for container in pods.iter_mut().flat_map(|pod| &mut pod.containers) {
            container.current_adj = None;
        }
        let plan = oom_plan(node, &pods);
        let steps = |place: &PlannedContainer| {
            let pages = place.usage_bytes.div_ceil(PAGE.get());
            (pages + pages / 8) / node.step_pages + 1
        };
        let ranked = plan.containers.iter().filter(|place| place.tier == Tier::Ranked).count();
        let mut left = 997u64;
        for index in 0..ranked {
            let spent = if index == 0 { 0 } else { steps(&plan.containers[index]) };
            let Some(now) = left.checked_sub(spent) else { break };
            left = now;
            let later = plan.containers[index + 1..].iter().map(steps).max().unwrap_or(0);
            if later <= left {
                prop_assert!(plan.containers[index].certain, "place {} of {:?}", index, plan);
            }
        }
    }

    #[test]
    fn the_sequence_is_the_ranking_and_scores_fall_along_it_within_their_bounds(
        node in any_node(), pods in any_pods(),
    ) {
        let plan = oom_plan(node, &pods);
        let places = &plan.containers;
        prop_assert_eq!(places.len(), pods.iter().map(|pod| pod.containers.len()).sum::<usize>());
        for pair in places.windows(2) {
            prop_assert!((pair[0].tier, pair[0].pod_rank) <= (pair[1].tier, pair[1].pod_rank));
            prop_assert!(pair[0].adj >= pair[1].adj);
        }
        for place in places {
            let bounds = match place.tier {
                Tier::Ranked => RANKED_MIN..=RANKED_MAX,
                Tier::Exempt => EXEMPT_MIN..=EXEMPT_MAX,
                Tier::Protected => GUARANTEED_ADJ..=GUARANTEED_ADJ,
            };
            prop_assert!(bounds.contains(&place.adj), "{:?}", place);
        }
    }

    #[test]
    fn nothing_is_rewritten_when_nothing_has_changed(node in any_node(), pods in any_pods()) {
        let first = oom_plan(node, &pods);
        let mut again = pods.clone();
        for pod in &mut again {
            for container in &mut pod.containers {
                container.current_adj = first.container(&pod.row.uid, &container.name).map(|container| container.adj);
            }
        }
        prop_assert_eq!(oom_plan(node, &again).changes().count(), 0);
    }

    #[test]
    fn the_input_order_does_not_matter(
        node in any_node(),
        (pods, shuffled) in any_pods().prop_flat_map(|pods| (Just(pods.clone()), Just(pods).prop_shuffle())),
    ) {
        prop_assert_eq!(oom_plan(node, &pods), oom_plan(node, &shuffled));
    }
}
