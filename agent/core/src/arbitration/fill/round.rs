//! From fractions of units to whole units (ARBITRATOR.md, section 3.3, "whole units").

use std::cmp::Reverse;

use super::{Filling, Fixed};
use crate::arbitration::amounts::{Amounts, Table};

/// A unit is counted in so many parts, as a power of two: finer than that nothing is told apart.
const PART_BITS: u32 = 16;

/// The parts of a unit.
pub(in crate::arbitration) const UNIT: u128 = 1 << PART_BITS;

/// What each claimant gets, in whole units.
pub(super) fn whole_units(filling: &Filling<'_>) -> Vec<Amounts> {
    let resources = filling.given.len();
    let claimants = filling.claimants.len();
    let mut parts = Table::new(claimants, resources, 0);
    for claimant in 0..claimants {
        let row = parts.row_mut(claimant);
        filling.held_at_end(claimant, row);
        for had in row {
            *had = in_parts(*had);
        }
    }
    let none: Amounts = vec![0; resources].into();
    let mut amounts = vec![none; claimants];
    for (resource, given) in filling.given.iter().enumerate() {
        let column: Vec<u128> = (0..claimants)
            .map(|claimant| parts.row(claimant)[resource])
            .collect();
        let column = match *given {
            None => column
                .iter()
                .map(|parts| units(parts.div_ceil(UNIT)))
                .collect(),
            Some(given) => shared_out(filling, resource, &column, given),
        };
        for (amounts, amount) in amounts.iter_mut().zip(column) {
            amounts[resource] = amount;
        }
    }
    amounts
}

/// One resource: the units that all have whole, then one each of those left over to those that have a part of one. The greatest part is first, of equal ones
/// that of a claimant that uses the unit already, then the lesser name. Only of a resource that is used up more than one round can be left.
fn shared_out(filling: &Filling<'_>, resource: usize, parts: &[u128], given: u64) -> Vec<u64> {
    let mut column: Vec<u64> = parts.iter().map(|parts| units(parts / UNIT)).collect();
    let sum = column
        .iter()
        .fold(0, |sum: u64, units| sum.saturating_add(*units));
    let mut left = given.saturating_sub(sum);
    let in_part = (0..column.len()).filter(|at| !parts[*at].is_multiple_of(UNIT));
    let mut order: Vec<_> = in_part
        .map(|at| {
            let uses_it = filling.claimants[at].used[resource] > column[at];
            (Reverse(parts[at] % UNIT), Reverse(uses_it), at)
        })
        .collect();
    order.sort_unstable();
    while left > 0 && !order.is_empty() {
        for (_, _, at) in &order {
            if left > 0 {
                column[*at] += 1;
                left -= 1;
            }
        }
        order.retain(|(_, _, at)| column[*at] < filling.claimants[*at].demand.total[resource]);
        if !filling.used_up[resource] {
            break;
        }
    }
    column
}

/// To the nearest part of a unit.
pub(in crate::arbitration) fn in_parts(had: Fixed) -> u128 {
    let half_a_part = 1 << (63 - PART_BITS);
    (had + half_a_part) >> (64 - PART_BITS)
}

fn units(amount: u128) -> u64 {
    u64::try_from(amount).unwrap_or(u64::MAX)
}
