//! The merge against the kubelet's own way: every choice, folded with its `compare`.

use proptest::prelude::*;

use super::lattice::Lattice;
use super::*;
use crate::placement::hints::{Need, Preference, Supply};

/// `HintMerger.compare` and its helpers, case by case.
struct Fold<'a> {
    numa: &'a NumaInfo,
    target: u32,
    best: Option<TopologyHint>,
}

impl Fold<'_> {
    fn fitter(&self, current: NumaMask, candidate: NumaMask) -> NumaMask {
        if let Some(distances) = &self.numa.distances
            && current.len() == candidate.len()
        {
            let average = |mask: NumaMask| {
                let pairs = f64::from(mask.len() * mask.len());
                distances.sum(mask) as f64 / pairs
            };
            let (a, b) = (average(current), average(candidate));
            if a != b {
                return if a < b { current } else { candidate };
            }
            return current.min(candidate);
        }
        // Narrower: fewer nodes, or of as many the smaller number (`bitmask.IsNarrowerThan`, 1.36).
        if (candidate.len(), candidate) < (current.len(), current) {
            candidate
        } else {
            current
        }
    }

    fn compare(&self, current: TopologyHint, candidate: TopologyHint) -> TopologyHint {
        let (now, new) = (current.mask.unwrap(), candidate.mask.unwrap());
        let fitter = || {
            if self.fitter(now, new) == now {
                current
            } else {
                candidate
            }
        };
        match (current.preferred, candidate.preferred) {
            (false, true) => candidate,
            (true, false) => current,
            (true, true) => fitter(),
            (false, false) => {
                let (current_len, len, target) = (now.len(), new.len(), self.target);
                if current_len > target {
                    fitter()
                } else if current_len == target {
                    if len == target { fitter() } else { current }
                } else if len > target {
                    current
                } else if len == target || len > current_len {
                    candidate
                } else if len < current_len {
                    current
                } else {
                    fitter()
                }
            }
        }
    }

    fn all(&mut self, lists: &[Vec<TopologyHint>], choice: &mut Vec<TopologyHint>) {
        if let Some((first, rest)) = lists.split_first() {
            for hint in first {
                choice.push(*hint);
                self.all(rest, choice);
                choice.pop();
            }
            return;
        }
        let masks: Vec<NumaMask> = choice.iter().filter_map(|hint| hint.mask).collect();
        let merged = TopologyHint {
            mask: Some(masks.iter().fold(self.numa.nodes, |all, mask| all & *mask)),
            preferred: choice.iter().all(|hint| hint.preferred)
                && masks.windows(2).all(|pair| pair[0] == pair[1]),
        };
        if merged.mask != Some(NumaMask::EMPTY) {
            self.best = Some(self.best.map_or(merged, |best| self.compare(best, merged)));
        }
    }
}

fn product(policy: TopologyPolicy, numa: &NumaInfo, providers: &[ProviderHints]) -> TopologyHint {
    let mut lists = Vec::new();
    for provider in providers {
        if provider.is_empty() {
            lists.push(ANY.to_vec());
        }
        for hints in provider.values() {
            let list = hints
                .as_ref()
                .map_or(ANY.to_vec(), |hints| hints.list().unwrap());
            lists.push(if list.is_empty() {
                IMPOSSIBLE.to_vec()
            } else {
                list
            });
        }
    }
    let single = policy == TopologyPolicy::SingleNumaNode;
    let mut numa = numa.clone();
    if single {
        numa.distances = None;
        for list in &mut lists {
            list.retain(|hint| hint.preferred && hint.mask.is_none_or(|mask| mask.len() == 1));
        }
    }
    let narrowest = |list: &Vec<TopologyHint>| {
        list.iter()
            .filter_map(|hint| hint.mask)
            .map(NumaMask::len)
            .min()
    };
    let mut fold = Fold {
        numa: &numa,
        target: lists.iter().filter_map(narrowest).max().unwrap_or(0),
        best: None,
    };
    fold.all(&lists, &mut Vec::new());
    let mut hint = fold.best.unwrap_or(TopologyHint {
        mask: Some(numa.nodes),
        preferred: false,
    });
    if single && hint.mask == Some(numa.nodes) {
        hint.mask = None;
    }
    hint
}

fn masks(nodes: NumaMask) -> impl Strategy<Value = NumaMask> {
    // Weighted towards few nodes, as providers' hints are; sometimes none.
    prop_oneof![
        any::<u64>().prop_map(move |bits| NumaMask(bits) & nodes),
        proptest::sample::select(nodes.iter().collect::<Vec<_>>()).prop_map(NumaMask::of),
    ]
}

fn list(nodes: NumaMask, longest: usize) -> impl Strategy<Value = HintSet> {
    let hint = (
        proptest::option::weighted(0.95, masks(nodes)),
        any::<bool>(),
    );
    let hint = hint.prop_map(|(mask, preferred)| TopologyHint { mask, preferred });
    proptest::collection::vec(hint, 0..longest).prop_map(HintSet::List)
}

fn need(nodes: NumaMask) -> impl Strategy<Value = Need> {
    let places: Vec<u32> = nodes.iter().collect();
    let of_nodes = proptest::collection::vec(prop_oneof![Just(0), Just(4), 0..6_u64], places.len());
    let shared = proptest::collection::vec((masks(nodes), 1..3_u64), 0..2);
    (of_nodes, shared, 0..14_u64).prop_map(move |(of_nodes, shared, demand)| {
        let mut need = Need::per_node(demand, places.iter().copied().zip(of_nodes));
        need.supplies.extend(
            shared
                .into_iter()
                .map(|(nodes, amount)| Supply { nodes, amount }),
        );
        need
    })
}

fn rule(nodes: NumaMask) -> impl Strategy<Value = HintSet> {
    let whole = prop_oneof![3 => Just(nodes), 1 => masks(nodes)];
    let grouped = (
        masks(nodes),
        masks(nodes),
        proptest::collection::vec(masks(nodes), 0..3),
    );
    let shape = prop_oneof![
        2 => whole.prop_map(|nodes| (nodes, nodes, Vec::new())),
        1 => grouped,
    ];
    let half = NumaMask(nodes.0 & 0x3333_3333_3333_3333);
    let preference =
        (1..4_u32, 1..3_u32, any::<bool>()).prop_map(move |(size, sockets, by_socket)| {
            if by_socket {
                Preference::NodesOrSockets {
                    nodes: size,
                    sockets,
                    nodes_of_sockets: vec![half, nodes - half],
                }
            } else {
                Preference::Nodes(size)
            }
        });
    let needs = proptest::collection::vec(need(nodes), 0..3);
    (shape, needs, preference).prop_map(|((alone, together, also), needs, preference)| {
        HintSet::Rule(HintRule {
            alone,
            together,
            needs,
            also: also.into_iter().filter(|mask| !mask.is_empty()).collect(),
            preference,
        })
    })
}

fn providers(
    sets: impl Strategy<Value = HintSet>,
    most: usize,
) -> impl Strategy<Value = Vec<ProviderHints>> {
    let sets = proptest::collection::vec(proptest::option::weighted(0.9, sets), 0..=most);
    (sets, 0..4_usize).prop_map(|(sets, apart)| {
        // Those after `apart` share a provider; one provider in four says nothing.
        let mut providers: Vec<ProviderHints> = vec![ProviderHints::new(); usize::from(apart == 3)];
        for (at, set) in sets.into_iter().enumerate() {
            if at <= apart || providers.is_empty() {
                providers.push(ProviderHints::new());
            }
            let last = providers.len() - 1;
            providers[last].insert(format!("resource-{at}"), set);
        }
        providers
    })
}

fn numa(nodes: NumaMask) -> impl Strategy<Value = NumaInfo> {
    let table = proptest::collection::vec(10..13_u32, 64 * 64);
    proptest::option::of(table).prop_map(move |table| NumaInfo {
        nodes,
        distances: table.map(|table| {
            let distance = |from, to| Some(table[(from * 64 + to) as usize]);
            NumaDistances::new(nodes, distance).unwrap()
        }),
    })
}

fn policy() -> impl Strategy<Value = TopologyPolicy> {
    use TopologyPolicy::{BestEffort, Restricted, SingleNumaNode};
    proptest::sample::select(vec![BestEffort, Restricted, SingleNumaNode])
}

/// Nodes with or without gaps.
fn nodes(most: u32) -> impl Strategy<Value = NumaMask> {
    (1..=most, any::<bool>()).prop_map(|(count, gaps)| {
        (0..count)
            .map(|node| if gaps { 3 * node } else { node })
            .collect()
    })
}

/// As lists where there are rules.
fn listed(providers: &[ProviderHints]) -> Vec<ProviderHints> {
    let list = |hints: &Option<HintSet>| {
        hints
            .as_ref()
            .map(|hints| HintSet::List(hints.list().unwrap()))
    };
    let provider = |hints: &ProviderHints| {
        hints
            .iter()
            .map(|(name, hints)| (name.clone(), list(hints)))
            .collect()
    };
    providers.iter().map(provider).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn lists_merge_as_in_the_product(
        (numa, providers, policy) in nodes(6).prop_flat_map(|nodes| {
            // Some hints name nodes that the machine does not have.
            (numa(nodes), providers(list(nodes | NumaMask::of(20), 12), 3), policy())
        })
    ) {
        let merged = merge(policy, &numa, &providers);
        prop_assert_eq!(merged.hint, product(policy, &numa, &providers));
        prop_assert!(merged.is_exact);
    }

    #[test]
    fn rules_merge_as_in_the_product(
        (numa, providers, policy) in nodes(6).prop_flat_map(|nodes| {
            (numa(nodes), providers(rule(nodes), 2), policy())
        })
    ) {
        let merged = merge(policy, &numa, &providers);
        prop_assert_eq!(merged.hint, product(policy, &numa, &providers));
        prop_assert!(merged.is_exact);
    }

    #[test]
    fn rules_merge_as_their_lists(
        (numa, providers, policy) in nodes(8).prop_flat_map(|nodes| {
            (numa(nodes), providers(prop_oneof![3 => rule(nodes).boxed(), 1 => list(nodes, 40).boxed()], 4), policy())
        })
    ) {
        prop_assert_eq!(merge(policy, &numa, &providers), merge(policy, &numa, &listed(&providers)));
    }

    /// The searches for machines that are too large for a lattice, on machines that are not; some are cut short.
    #[test]
    fn searches_find_what_the_lattice_has(
        (numa, providers, policy) in nodes(9).prop_flat_map(|nodes| {
            (numa(nodes), providers(prop_oneof![3 => rule(nodes).boxed(), 1 => list(nodes, 6).boxed()], 4), policy())
        }),
        steps in prop_oneof![3 => Just(STEPS_MAX), 1 => 0..200_u32],
    ) {
        let bounds = Bounds { lattice_nodes: 0, steps: Steps::new(steps) };
        let searched = merge_within(policy, &numa, &providers, bounds);
        let best = merge(policy, &numa, &providers);
        if searched.is_exact {
            prop_assert_eq!(searched, best);
        } else {
            prop_assert!(is_valid(searched.hint, &numa, &providers), "{:?}", searched.hint);
            prop_assert!(best.hint.preferred >= searched.hint.preferred);
        }
    }
}

/// Whether some choice of hints gives this one.
fn is_valid(hint: TopologyHint, numa: &NumaInfo, providers: &[ProviderHints]) -> bool {
    let resources = Choices::of(providers);
    let mask = hint.mask.unwrap();
    if hint.preferred {
        return resources
            .iter()
            .all(|choices| choices.prefer_any() || choices.prefers(mask));
    }
    let lattice = Lattice::new(numa.nodes, LATTICE_NODES_MAX).unwrap();
    let sets = resources.iter().map(|choices| match choices {
        Choices::List(hints) => lattice.of_list(hints),
        Choices::Rule(rule) => lattice.cut_down(rule),
    });
    let all = sets.reduce(Lattice::intersections).unwrap();
    // All nodes are what there is where no choice has a mask.
    mask == numa.nodes || lattice.masks(&all).any(|valid| valid == mask)
}

/// CPUs, memory and devices of a machine of 64 nodes that is partly used, with the sizes that are preferred.
fn partly_used(demands: [u64; 3], preferred: [u32; 3]) -> Vec<ProviderHints> {
    let has: [fn(u32) -> u64; 3] = [
        |node| u64::from(node * 7 % 17),
        |node| u64::from(node * 5 % 13) << 30,
        |node| u64::from(node % 3),
    ];
    let rule = |at: usize| {
        let need = Need::per_node(demands[at], (0..64).map(|node| (node, has[at](node))));
        HintRule::new(
            NumaMask(u64::MAX),
            vec![need],
            Preference::Nodes(preferred[at]),
        )
    };
    let hints = |at| [(format!("resource-{at}"), Some(HintSet::Rule(rule(at))))].into();
    (0..3).map(hints).collect()
}

#[test]
fn sixty_four_nodes_are_merged_exactly() {
    let numa = NumaInfo {
        nodes: NumaMask(u64::MAX),
        distances: None,
    };
    let merged = |demands, preferred| {
        merge(
            TopologyPolicy::Restricted,
            &numa,
            &partly_used(demands, preferred),
        )
    };
    // Nodes 2, 4, 5 and 7 have 14+11+1+15 CPUs, 10+7+12+9 GiB and 2+1+2+1 devices; no lower four have enough of all.
    let agreed = merged([40, 30 << 30, 6], [4, 4, 4]);
    assert_eq!(agreed.hint.mask.unwrap().to_string(), "2,4-5,7");
    assert!(agreed.admitted && agreed.is_exact);
    // They prefer different sizes: the three nodes that CPUs, memory and devices take at the least, as low as can be.
    let apart = merged([40, 30 << 30, 6], [4, 3, 4]);
    assert_eq!(apart.hint.mask.unwrap().to_string(), "0-2");
    assert!(!apart.admitted && apart.is_exact);
}
