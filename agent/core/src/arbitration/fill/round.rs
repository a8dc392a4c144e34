//! From fractions of units to whole units (`docs/reference/arbitrator.md`, "Who deserves how much").

use std::cmp::Reverse;

use super::{Filling, Fixed};
use crate::arbitration::amounts::Table;

/// A unit is counted in so many parts, as a power of two: finer than that nothing is told apart.
const PART_BITS: u32 = 16;

/// The parts of a unit.
pub(in crate::arbitration) const UNIT: u128 = 1 << PART_BITS;

/// What each claimant gets, in whole units.
pub(super) fn whole_units(filling: &Filling<'_>) -> Table<u64> {
    let resources = filling.given.len();
    let claimants = filling.claimants.len();
    let mut had = vec![0; resources];
    let mut amounts = Table::new(claimants, resources, 0);
    let mut in_part: Vec<Vec<Claim>> = vec![Vec::with_capacity(claimants); resources];
    for claimant in 0..claimants {
        filling.held_at_end(claimant, &mut had);
        let rows = had.iter().zip(&mut in_part).zip(amounts.row_mut(claimant));
        for (resource, ((had, in_part), amount)) in rows.enumerate() {
            let parts = in_parts(*had);
            *amount = units(parts >> PART_BITS);
            // Less than a unit.
            let part = u16::try_from(parts % UNIT).unwrap_or(0);
            if part > 0 {
                let uses_it = filling.claimants[claimant].used[resource] > *amount;
                in_part.push((Reverse((part, uses_it)), claimant));
            }
        }
    }
    for (resource, in_part) in in_part.into_iter().enumerate() {
        match filling.given[resource] {
            None => in_part.iter().for_each(|(_, claimant)| {
                let amount = &mut amounts.row_mut(*claimant)[resource];
                *amount = amount.saturating_add(1);
            }),
            Some(given) => share_out(filling, resource, in_part, &mut amounts, given),
        }
    }
    amounts
}

/// The part of a unit that a claimant has, whether it uses the unit already, and its name's place: the least has the
/// best claim to a whole unit.
type Claim = (Reverse<(u16, bool)>, usize);

/// One resource: the units left over go one each to those that have a part of one. The greatest part is first, of equal
/// ones that of a claimant that uses the unit already, then the lesser name. Only of a resource that is used up more
/// than one round can be left.
fn share_out(
    filling: &Filling<'_>,
    resource: usize,
    mut claims: Vec<Claim>,
    amounts: &mut Table<u64>,
    given: u64,
) {
    let sum = amounts.column(resource).fold(0, u64::saturating_add);
    let mut left = usize::try_from(given.saturating_sub(sum)).unwrap_or(usize::MAX);
    while left > 0 && !claims.is_empty() {
        // Who are the first matters, not their order: each gets one unit.
        if left < claims.len() {
            claims.select_nth_unstable(left);
            claims.truncate(left);
        }
        for (_, claimant) in &claims {
            amounts.row_mut(*claimant)[resource] += 1;
        }
        left -= claims.len();
        if !filling.used_up[resource] {
            break;
        }
        claims.retain(|(_, claimant)| {
            let asks = &filling.claimants[*claimant];
            let cap = asks.caps.get(resource).copied().flatten();
            let most = asks.demand.total[resource].min(cap.unwrap_or(u64::MAX));
            amounts.row(*claimant)[resource] < most
        });
    }
}

/// To the nearest part of a unit.
pub(in crate::arbitration) fn in_parts(had: Fixed) -> u128 {
    let half_a_part = 1 << (63 - PART_BITS);
    had.saturating_add(half_a_part) >> (64 - PART_BITS)
}

fn units(amount: u128) -> u64 {
    u64::try_from(amount).unwrap_or(u64::MAX)
}
