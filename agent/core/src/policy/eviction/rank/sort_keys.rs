//! Sorting rows by one number each.
//!
//! Problem: a comparison of two rows goes through up to eight comparators and 128-bit sums, and sorting moves rows of
//! 80 bytes; both add up to most of a decision. Approach: each row gets a key of 128 bits that is smaller the earlier
//! it is evicted, its comparators from the highest bit down. Keys are sorted with the rows' places, and then each row
//! is moved once.
//!
//! Why the order is the comparators' own: a key never contradicts them. Flags and priorities fit as they are; of the
//! amount the key has what fits (±2⁶⁵ nanos, 34 GiB), cut off monotonically. Rows with equal keys are compared by the
//! comparators themselves.

use std::cmp::Ordering;

use crate::model::rank_row::{Comparator, Nanos, RankRow};

/// Bits of a key that an amount gets: what flags, priority, overuse and share leave.
const AMOUNT_BITS: u32 = 66;
/// The greatest excess of a namespace that fits.
const OVERUSED_MOST: u16 = (1 << 10) - 1;

/// Where a row is, and its key.
#[derive(Debug, Clone, Copy)]
pub struct SortKey {
    key: u128,
    at: usize,
}

fn key(order: &[Comparator], row: &RankRow) -> u128 {
    order.iter().fold(0, |key, step| match step {
        // 0 to 3.
        Comparator::Unnamed => key << 2 | u128::from(row.unnamed & 3),
        Comparator::MissingStats => key << 1 | u128::from(row.stats_known),
        Comparator::ExceedsRequest => key << 1 | u128::from(!row.exceeds_request()),
        // Moved up by 2^31: the order of i32 as that of u32.
        Comparator::Priority => {
            key << 32 | u128::from(row.priority.cast_unsigned() ^ i32::MIN.cast_unsigned())
        }
        Comparator::Overused => {
            key << 10 | u128::from(OVERUSED_MOST - row.overused.min(OVERUSED_MOST))
        }
        Comparator::OverShare => key << 16 | u128::from(u16::MAX - row.over_share),
        Comparator::UsageOverRequest => key << AMOUNT_BITS | amount(row),
        Comparator::Uid => key,
    })
}

/// The more above its request, the smaller; one value for all rows without statistics.
fn amount(row: &RankRow) -> u128 {
    const LEAST: i128 = -(1 << (AMOUNT_BITS - 1));
    const MOST: i128 = (1 << (AMOUNT_BITS - 1)) - 1;
    if !row.stats_known {
        return 0;
    }
    let Nanos(excess) = row.excess();
    (MOST - excess.clamp(LEAST, MOST)).unsigned_abs()
}

/// Sorts `rows` by the comparators of `order`, which `compare` applies one after the other; the first to be evicted
/// comes to index 0. Allocates only if `sort_keys` has no room for all.
pub(super) fn sort(
    order: &[Comparator],
    compare: impl Fn(&RankRow, &RankRow) -> Ordering,
    rows: &mut [RankRow],
    sort_keys: &mut Vec<SortKey>,
) {
    sort_keys.clear();
    sort_keys.extend(rows.iter().enumerate().map(|(at, row)| SortKey {
        key: key(order, row),
        at,
    }));
    sort_keys.sort_unstable_by(|a, b| {
        a.key
            .cmp(&b.key)
            .then_with(|| compare(&rows[a.at], &rows[b.at]))
    });
    // Place i takes the row that is at sort_keys[i].at: one cycle after the other.
    for start in 0..sort_keys.len() {
        let mut to = start;
        loop {
            let from = std::mem::replace(&mut sort_keys[to].at, to);
            if from == start {
                break;
            }
            rows.swap(to, from);
            to = from;
        }
    }
}
