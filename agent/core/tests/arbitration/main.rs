//! The properties that make it end (`docs/reference/arbitrator.md`, "Why it ends"), on random Consumers and clusters,
//! and the slow plain reading as an oracle.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that fails names the line"
)]

mod exact;
mod generate;
mod literal;
mod many_victims;
mod plain;
mod rehearsed;
mod rules;

use generate::{Bounded, Case, FLAT, PLAIN, TREE, cases, clusters};
use plimsoll_core::arbitration::amounts::Amounts;
use plimsoll_core::arbitration::demand::{Counting, Demand};
use plimsoll_core::arbitration::fill::ONE;
use plimsoll_core::arbitration::groups::{Ask, Consumer, Deserved, deserve};
use proptest::prelude::*;

fn deserved(case: &Case) -> Deserved {
    deserve(&case.consumers, &case.asks, &case.capacity)
}

fn is_group(case: &Case, at: usize) -> bool {
    case.consumers
        .iter()
        .any(|consumer| consumer.parent == Some(at))
}

fn leaves(case: &Case) -> Vec<usize> {
    (0..case.consumers.len())
        .filter(|at| !is_group(case, *at))
        .collect()
}

/// What of a resource no leaf deserves.
fn left(case: &Case, deserved: &Deserved, r: usize) -> Option<i128> {
    let sum: i128 = leaves(case)
        .iter()
        .map(|leaf| i128::from(deserved.amounts[*leaf][r]))
        .sum();
    case.capacity[r].map(|capacity| i128::from(capacity) - sum)
}

fn hard_above(case: &Case, at: usize, r: usize) -> bool {
    case.consumers[at]
        .parent
        .is_some_and(|group| case.consumers[group].hard[r].is_some() || hard_above(case, group, r))
}

/// Whether nothing that is reserved passes what there is, and unlimited namespaces take nothing.
fn has_no_shortage(case: &Case, deserved: &Deserved) -> bool {
    let unlimited_ask = case
        .consumers
        .iter()
        .zip(&case.asks)
        .any(|(consumer, ask)| consumer.unlimited && !ask.demand.is_nothing());
    deserved.shortages.iter().all(Option::is_none) && !unlimited_ask
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_same_as_the_plain_reading(case in cases(TREE)) {
        prop_assert_eq!(deserved(&case).amounts, plain::deserve(&case.consumers, &case.asks, &case.capacity));
    }

    #[test]
    fn the_same_as_the_plain_reading_without_groups(case in cases(FLAT)) {
        prop_assert_eq!(deserved(&case).amounts, plain::deserve(&case.consumers, &case.asks, &case.capacity));
    }

    #[test]
    fn never_more_than_there_is_than_hard_or_than_asked_for(case in cases(TREE)) {
        let deserved = deserved(&case);
        for r in 0..case.capacity.len() {
            prop_assert!(left(&case, &deserved, r).is_none_or(|left| left >= 0));
            for (at, consumer) in case.consumers.iter().enumerate() {
                let amount = deserved.amounts[at][r];
                prop_assert!(consumer.hard[r].is_none_or(|hard| amount <= hard) || consumer.unlimited, "{at} passes hard of {r}");
                prop_assert!(is_group(&case, at) || amount <= case.asks[at].demand.total[r], "{at} has more of {r} than asked for");
            }
        }
    }

    #[test]
    fn what_is_reserved_is_had(case in cases(TREE)) {
        let deserved = deserved(&case);
        if has_no_shortage(&case, &deserved) {
            for leaf in leaves(&case) {
                let floor = exact::floor(&case.consumers[leaf], &case.asks[leaf]);
                let kept = deserved.amounts[leaf].iter().zip(&floor).all(|(amount, floor)| amount >= floor);
                prop_assert!(kept, "{leaf} has {:?} of {floor:?}", deserved.amounts[leaf]);
            }
        }
    }

    #[test]
    fn a_shortage_is_shared_in_proportion_and_reported(case in cases(Bounded { unlimited: false, ..FLAT })) {
        let deserved = deserved(&case);
        let floors: Vec<Amounts> = case.consumers.iter().zip(&case.asks).map(|(consumer, ask)| exact::floor(consumer, ask)).collect();
        let reported = deserved.shortages.last().unwrap();
        for (r, capacity) in case.capacity.iter().enumerate() {
            let sum: u128 = floors.iter().map(|floor| u128::from(floor[r])).sum();
            let short = capacity.map_or(0, |capacity| sum.saturating_sub(capacity.into()));
            prop_assert_eq!(reported.as_ref().map_or(0, |all| u128::from(all[r])), short);
            for (amounts, floor) in deserved.amounts.iter().zip(&floors).filter(|_| short > 0) {
                let exact = u128::from(floor[r]) * u128::from(capacity.unwrap());
                let had = u128::from(amounts[r]) * sum;
                prop_assert!(had + sum > exact && had < exact + sum, "{} of {} is not in proportion", amounts[r], floor[r]);
            }
        }
    }

    #[test]
    fn nothing_is_idle_that_is_asked_for(case in cases(TREE)) {
        let deserved = deserved(&case);
        // A level is 2^-64 of what there is, times a weight of up to 2^20 inside groups: what one level more would pass
        // is less than a unit below 2^44.
        let is_used_up = |r| left(&case, &deserved, r).is_some_and(|left| left <= i128::from(case.capacity[r].unwrap_or(0) >> 44));
        for leaf in leaves(&case) {
            let demand = &case.asks[leaf].demand;
            let is_whole = deserved.amounts[leaf] == demand.total;
            for (class, end) in demand.classes.iter().zip(&deserved.ends[leaf]) {
                let mut reasons = class.needs.iter().filter(|r| is_used_up(*r) || hard_above(&case, leaf, *r));
                let is_held_up = !is_whole && end.fraction < ONE && reasons.next().is_none();
                prop_assert!(!is_held_up, "{leaf} is held up: {class:?} {end:?} {:?}", deserved.amounts);
            }
        }
    }

    #[test]
    // A whole amount that a level passes by 2^-64 is rounded up: that is one unit.
    fn the_same_as_exact_fractions_to_a_unit(case in cases(Bounded { unlimited: false, ..FLAT })) {
        let deserved = deserved(&case);
        if case.capacity.iter().flatten().all(|capacity| *capacity < 1 << 45) && has_no_shortage(&case, &deserved) {
            let exact = exact::fill(&case.consumers, &case.asks, &case.capacity);
            for (amounts, exact) in deserved.amounts.iter().zip(&exact) {
                for ((amount, exact), capacity) in amounts.iter().zip(exact).zip(&case.capacity) {
                    // A level is 2^-64 of what there is, times a weight: a few of them, and the unit that is rounded.
                    let heaviest = case.consumers.iter().map(|consumer| consumer.weight).max().unwrap_or(1);
                    let levels = u128::from(capacity.unwrap_or(0)) * u128::from(heaviest);
                    prop_assert!(exact.is_within(*amount, 62, (1 << 62) + levels), "{amount} is not {exact:?}");
                }
            }
        }
    }
}

/// The theorems of the papers hold for one class each, without bounds, to one unit.
mod without_bounds {
    use super::*;

    /// The resource of which the amounts are the greatest share, and how much there is of it.
    fn dominant(case: &Case, amounts: &[u64]) -> Option<(usize, u64)> {
        let counted = case
            .capacity
            .iter()
            .enumerate()
            .filter_map(|(r, capacity)| Some((r, capacity.filter(|capacity| *capacity > 0)?)));
        let share =
            |(r, capacity): (usize, u64)| (u128::from(amounts[r]) << 64) / u128::from(capacity);
        counted.max_by_key(|of| share(*of))
    }

    /// How many 2⁻³²ths of all its pods a namespace could run with the given amounts.
    fn runs(ask: &Ask, amounts: impl Fn(usize) -> u64) -> u128 {
        let total = ask
            .demand
            .total
            .iter()
            .enumerate()
            .filter(|(_, total)| **total > 0);
        total
            .map(|(r, total)| (u128::from(amounts(r)) << 32) / u128::from(*total))
            .min()
            .unwrap_or(1 << 32)
            .min(1 << 32)
    }

    fn has_all(case: &Case, deserved: &Deserved, at: usize) -> bool {
        deserved.amounts[at] == case.asks[at].demand.total
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn each_has_its_part_of_its_dominant_resource(case in cases(PLAIN)) {
            let deserved = deserved(&case);
            let all: u64 = case.consumers.iter().map(|consumer| consumer.weight).sum();
            for (at, consumer) in case.consumers.iter().enumerate() {
                let needs_none = case.asks[at].demand.classes.iter().all(|class| class.needs.iter().any(|r| case.capacity[r] == Some(0)));
                let part = dominant(&case, &case.asks[at].demand.total).is_none_or(|(r, capacity)| {
                    (u128::from(deserved.amounts[at][r]) + 1) * u128::from(all) >= u128::from(capacity) * u128::from(consumer.weight)
                });
                prop_assert!(part || needs_none || has_all(&case, &deserved, at), "{at} of {:?}", deserved.amounts);
            }
        }

        #[test]
        fn no_other_part_would_be_better(case in cases(PLAIN)) {
            let deserved = deserved(&case);
            for (at, ask) in case.asks.iter().enumerate() {
                let runs_now = runs(ask, |r| deserved.amounts[at][r] + 1);
                for (other, consumer) in case.consumers.iter().enumerate() {
                    let scaled = |r: usize| {
                        let amount = u128::from(deserved.amounts[other][r].saturating_sub(1));
                        u64::try_from(amount * u128::from(case.consumers[at].weight) / u128::from(consumer.weight)).unwrap_or(u64::MAX)
                    };
                    prop_assert!(runs(ask, scaled) <= runs_now, "{at} would rather have {other}'s");
                }
            }
        }

        #[test]
        fn asking_for_other_amounts_gains_nothing(case in cases(PLAIN), at in any::<usize>(), factors in [1..8_u64, 1..8, 1..8]) {
            let at = at % case.consumers.len();
            let honest = runs(&case.asks[at], |r| deserved(&case).amounts[at][r] + 1);
            let mut lie = case.clone();
            let mut demand = Demand::nothing(case.capacity.len());
            for class in &case.asks[at].demand.classes {
                let mut class = class.clone();
                for (r, amount) in class.amounts.iter_mut().enumerate() {
                    *amount = (*amount * factors[r] / 4).min(case.capacity[r].unwrap_or(u64::MAX));
                }
                class.needs = plimsoll_core::arbitration::amounts::ResourceSet::needed(&class.amounts);
                demand.total = class.amounts.clone();
                demand.classes.push(class);
            }
            demand.classes.retain(|class| !class.needs.is_empty());
            lie.asks[at].demand = demand;
            let amounts = &deserved(&lie).amounts[at];
            prop_assert!(runs(&case.asks[at], |r| amounts[r].saturating_sub(1)) <= honest);
        }

        /// Not where some need a resource and others do not: then who leaves can let those run who use up what others
        /// need.
        #[test]
        fn who_leaves_harms_no_other_if_all_need_all(case in cases(Bounded { need_all: true, ..PLAIN }), at in any::<usize>()) {
            let at = at % case.consumers.len();
            let before = deserved(&case);
            let mut without = case.clone();
            without.asks[at].demand = Demand::nothing(case.capacity.len());
            let after = deserved(&without);
            for other in (0..case.consumers.len()).filter(|other| *other != at) {
                let ask = &case.asks[other];
                let fewer = runs(ask, |r| after.amounts[other][r] + 1) < runs(ask, |r| before.amounts[other][r].saturating_sub(1));
                prop_assert!(!fewer, "{other} loses");
            }
        }
    }

    fn consumer(parent: Option<usize>) -> Consumer {
        Consumer {
            parent,
            weight: 1,
            hard: [None, None].into(),
            reserved: [0, 0].into(),
            unlimited: false,
        }
    }

    fn ask(requests: [u64; 2], count: u64, capacity: &[Option<u64>]) -> Ask {
        let mut counting = Counting::new(&[None, None], capacity);
        counting.add(&requests, count);
        let (demand, passed_over) = counting.finish();
        Ask {
            demand,
            used: [0, 0].into(),
            passed_over,
        }
    }

    /// A group's `hard` bounds what no node has, and is no measure of shares.
    #[test]
    fn shares_are_of_what_nodes_have() {
        let capacity = [Some(100_000), None];
        let mut consumers = vec![consumer(Some(2)), consumer(Some(2)), consumer(None)];
        consumers[2].hard[1] = Some(10_000);
        let ask = |requests| ask(requests, 10, &capacity);
        let asks = [ask([1000, 1000]), ask([1000, 10_000]), ask([0, 0])];
        let amounts = deserve(&consumers, &asks, &capacity).amounts;
        assert_eq!(amounts[..2], [[910, 909].into(), [910, 9091].into()]);
    }

    /// Who asks for nothing is not among those by whose weights a group's is divided.
    #[test]
    fn the_weight_of_who_asks_for_nothing_is_divided_by_that_of_others() {
        let capacity = [Some(10_000), Some(110)];
        // A group in a group in a group, and in each a namespace that asks.
        let mut consumers = vec![consumer(None)];
        let mut asks = vec![ask([1000, 1], 1, &capacity)];
        for group in 0..3_usize {
            let parent = group.checked_sub(1).map(|before| 2 * before + 1);
            let mut heavy = consumer(parent);
            (heavy.weight, heavy.hard[0]) = (1_000_000, Some(0));
            consumers.extend([heavy, consumer(Some(2 * group + 1))]);
            asks.extend([ask([0, 0], 0, &capacity), ask([1000, 1], 1, &capacity)]);
        }
        let amounts = deserve(&consumers, &asks, &capacity).amounts;
        assert_eq!(amounts[0], [1000, 1].into());
        assert!(amounts[1..].iter().all(|amounts| amounts[0] == 0));
    }

    /// What a group asks for of a resource that no node has is bounded by nothing but its members.
    #[test]
    fn the_greatest_amounts_of_what_no_node_has_do_not_overflow() {
        const MOST: u64 = (1 << 60) - 1;
        let capacity = [Some(1000), None];
        let mut consumers = vec![consumer(None)];
        let mut asks = vec![ask([0, 0], 0, &capacity)];
        for at in 0..17 {
            consumers.push(consumer(Some(0)));
            asks.push(ask([u64::from(at >= 8), MOST], 1, &capacity));
        }
        let amounts = deserve(&consumers, &asks, &capacity).amounts;
        assert!(amounts[1..].iter().all(|amounts| amounts[1] == MOST));
        assert!(amounts[9..].iter().all(|amounts| amounts[0] == 1));
    }

    /// More nodes can cost somebody a share (NSDI 2011, table 2): so it is not promised.
    #[test]
    fn more_nodes_can_cost_a_share() {
        let consumers = [consumer(None), consumer(None)];
        let asks = |capacity: [u64; 2]| -> Vec<Amounts> {
            let bounds = capacity.map(Some);
            let ask = |requests| ask(requests, 10_000, &bounds);
            deserve(&consumers, &[ask([10, 20]), ask([20, 10])], &bounds).amounts
        };
        let few = asks([6000, 6000]);
        let more = asks([12000, 6000]);
        assert!(more[0][1] < few[0][1], "{few:?} {more:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_plan_keeps_every_rule_and_evicts_the_fewest(cluster in clusters()) {
        rules::check(&cluster)?;
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(cluster in clusters(), seed in any::<u64>()) {
        rules::check_order(&cluster, seed)?;
    }

    #[test]
    fn cycles_come_to_rest(cluster in clusters()) {
        rules::check_rest(cluster)?;
    }
}
