//! What is for sure, when there is less than that (`docs/reference/arbitrator.md`, "Who deserves how much").

use super::Claimant;
use crate::arbitration::amounts::{Amounts, Table};

/// The floors of all claimants as they can be kept, and by how much they together pass what there is.
pub(super) fn floors(claimants: &[Claimant<'_>], given: &[Option<u64>]) -> (Table<u64>, Amounts) {
    let mut floors = Table::new(claimants.len(), given.len(), 0);
    for (at, claimant) in claimants.iter().enumerate() {
        floors.row_mut(at).copy_from_slice(claimant.floor);
    }
    let mut shortage: Amounts = vec![0; given.len()].into();
    for (resource, given) in given.iter().enumerate() {
        let Some(given) = *given else { continue };
        let sum = claimants.iter().fold(0, |sum: u64, claimant| {
            sum.saturating_add(claimant.floor[resource])
        });
        if sum <= given {
            continue;
        }
        shortage[resource] = sum - given;
        let mut column: Vec<u64> = claimants
            .iter()
            .map(|claimant| claimant.floor[resource])
            .collect();
        scale_down(&mut column, given);
        for (at, floor) in column.into_iter().enumerate() {
            floors.row_mut(at)[resource] = floor;
        }
    }
    (floors, shortage)
}

/// Lowers all amounts in proportion, so that their sum is what is given, if it is more: rounded down, then the units
/// left go one each to the greatest remainders, of equal ones to the first.
pub(in crate::arbitration) fn scale_down(amounts: &mut [u64], given: u64) {
    let sum: u128 = amounts.iter().copied().map(u128::from).sum();
    if sum <= u128::from(given) {
        return;
    }
    let mut left = given;
    let mut remainders = Vec::with_capacity(amounts.len());
    for (at, amount) in amounts.iter_mut().enumerate() {
        let exact = u128::from(*amount) * u128::from(given);
        // Not above what it was, as the sum is greater than what is given.
        *amount = u64::try_from(exact / sum).unwrap_or(*amount);
        left -= *amount;
        remainders.push((std::cmp::Reverse(exact % sum), at));
    }
    remainders.sort_unstable();
    for (_, at) in remainders
        .into_iter()
        .zip(0..left)
        .map(|(remainder, _)| remainder)
    {
        amounts[at] += 1;
    }
}
