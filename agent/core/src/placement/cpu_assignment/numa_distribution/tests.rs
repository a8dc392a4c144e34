use proptest::prelude::*;

use super::*;

/// What is given per node, `None` where not chosen.
type Given = Vec<Option<u32>>;

/// The standard deviation as the kubelet computes it.
fn balance(left: &[u32]) -> f64 {
    let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
    let count = left.len() as f64;
    let mean = rounded(left.iter().map(|left| f64::from(*left)).sum::<f64>() / count);
    let squares = left.iter().map(|left| (f64::from(*left) - mean).powi(2));
    rounded((squares.sum::<f64>() / count).sqrt())
}

/// Subsets of `size` of `0..count`, lexicographically.
fn subsets(count: usize, size: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = (0..1_u32 << count)
        .map(|bits| (0..count).filter(|at| bits >> at & 1 == 1).collect())
        .filter(|subset: &Vec<usize>| subset.len() == size)
        .collect();
    all.sort();
    all
}

/// The kubelet's enumeration, with its best combination remembered as it was found.
fn enumerated(
    free: &[u32],
    groups: u32,
    group: u32,
    nodes: RangeInclusive<usize>,
) -> Option<Given> {
    for chosen in nodes {
        let mut best: Option<(f64, Given)> = None;
        let even = groups / chosen as u32;
        let rest = groups % chosen as u32;
        for combination in subsets(free.len(), chosen) {
            let whole = |at: &usize| free[*at] / group;
            if combination.iter().map(whole).sum::<u32>() < groups
                || combination.iter().any(|at| whole(at) < even)
            {
                continue;
            }
            let spare: Vec<usize> = combination
                .iter()
                .copied()
                .filter(|at| whole(at) > even)
                .collect();
            let mut best_here: Option<(f64, Given)> = None;
            let sizes: Vec<usize> = if rest == 0 {
                vec![0]
            } else {
                (1..=spare.len()).rev().collect()
            };
            for set in sizes
                .into_iter()
                .flat_map(|size| subsets(spare.len(), size))
            {
                let room: Vec<u32> = set.iter().map(|at| whole(&spare[*at]) - even).collect();
                if room.iter().sum::<u32>() < rest {
                    continue;
                }
                let mut given: Given = vec![None; free.len()];
                combination.iter().for_each(|at| given[*at] = Some(0));
                for (at, extra) in set.iter().zip(hand_out(&room, rest)) {
                    given[spare[*at]] = Some(extra);
                }
                let left: Vec<u32> = free
                    .iter()
                    .zip(&given)
                    .map(|(free, given)| free - given.map_or(0, |extra| (even + extra) * group))
                    .collect();
                let balance = balance(&left);
                if best_here.as_ref().is_none_or(|(best, _)| balance < *best) {
                    best_here = Some((balance, given));
                }
            }
            if let Some(here) = best_here
                && best.as_ref().is_none_or(|(best, _)| here.0 < *best)
            {
                best = Some(here);
            }
        }
        if let Some((_, given)) = best {
            return Some(given);
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_choice_is_that_of_the_enumeration(
        free in proptest::collection::vec(prop_oneof![0..4_u32, 0..40_u32, Just(16)], 1..8),
        group in 1..4_u32,
        share in 1..100_u32,
        fewest in 1..3_usize,
    ) {
        let whole: u32 = free.iter().map(|free| free / group).sum();
        let groups = (whole * share / 100).max(1);
        let found = NumaDistribution::find(&free, groups, group, fewest..=free.len());
        let expected = enumerated(&free, groups, group, fewest..=free.len());
        prop_assert_eq!(found.map(|found| found.extra), expected);
    }
}

#[test]
fn one_node_with_far_more_gives_several_groups_of_the_remainder() {
    // 11 groups over three nodes: 3 each, and both that remain from the node with most.
    let found = NumaDistribution::find(&[4, 4, 30], 11, 1, 3..=3).unwrap();
    assert_eq!(
        (found.even, found.extra),
        (3, vec![Some(0), Some(0), Some(2)])
    );
}

#[test]
fn nodes_that_run_out_of_whole_groups_are_no_endless_loop() {
    // Enough CPUs, but 3 + 3 hold only two groups of two.
    assert_eq!(NumaDistribution::find(&[3, 3], 3, 2, 1..=2), None);
}

#[test]
fn sixty_four_unlike_nodes_are_no_matter_of_combinations() {
    let free: Vec<u32> = (0..64).map(|node| 16 - node % 5).collect();
    let groups = 64 * 12 + 37;
    let found = NumaDistribution::find(&free, groups, 1, 1..=64).unwrap();
    let given: u32 = found
        .extra
        .iter()
        .flatten()
        .map(|extra| found.even + extra)
        .sum();
    assert_eq!(given, groups);
    for (free, extra) in free.iter().zip(&found.extra) {
        assert!(extra.is_none_or(|extra| found.even + extra <= *free));
    }
}
