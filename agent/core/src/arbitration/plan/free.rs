//! What is free on each node, and how much of the cluster that is.
//!
//! The exact amounts can be below 0, where pods request more than there is. A search for room goes over all nodes and
//! asks for amounts only: these stand apart, in as little memory as can be, and are counted anew when a node changes.

use crate::arbitration::amounts::Table;

/// By node.
pub(super) struct Free {
    exact: Table<i128>,
    /// The same, at least 0.
    room: Table<u64>,
    /// How much of the cluster that is, in 2⁻³², rounded down.
    parts: Table<u64>,
}

impl Free {
    /// From the exact amounts.
    pub(super) fn new(exact: Table<i128>, nodes: usize, parts: &[Parts]) -> Self {
        let none = Table::new(nodes, parts.len(), 0);
        let mut free = Self {
            exact,
            room: none.clone(),
            parts: none,
        };
        (0..nodes).for_each(|node| free.count(node, parts));
        free
    }

    /// Pods that request so much come or go.
    pub(super) fn change(
        &mut self,
        node: usize,
        change: fn(&mut [i128], &[u64]),
        requests: &[u64],
        parts: &[Parts],
    ) {
        change(self.exact.row_mut(node), requests);
        self.count(node, parts);
    }

    fn count(&mut self, node: usize, parts: &[Parts]) {
        let exact = self.exact.row(node).iter();
        let counted = self.room.row_mut(node).iter_mut();
        let counted = counted.zip(self.parts.row_mut(node));
        for ((exact, parts), (room, part)) in exact.zip(parts).zip(counted) {
            *room = u64::try_from((*exact).max(0)).unwrap_or(u64::MAX);
            *part = parts.part(*room);
        }
    }

    /// What is free, below 0 where more is requested than there is.
    pub(super) fn exact(&self, node: usize) -> &[i128] {
        self.exact.row(node)
    }

    /// What is free, at least 0.
    pub(super) fn room(&self, node: usize) -> &[u64] {
        self.room.row(node)
    }

    /// How much of the cluster is free.
    pub(super) fn parts(&self, node: usize) -> &[u64] {
        self.parts.row(node)
    }
}

/// The capacity of a resource, to tell what part of it an amount is, in 2⁻³². By a multiplication: a plan asks for
/// millions of them.
pub(super) struct Parts {
    capacity: u64,
    /// 2 to the power of `shift + 32`, divided by the capacity: all 64 bits of it count.
    reciprocal: u64,
    shift: u32,
}

impl Parts {
    pub(super) fn of(capacity: Option<u64>) -> Self {
        let capacity = capacity.unwrap_or(0);
        let bits = u64::BITS - capacity.leading_zeros();
        let reciprocal = (1_u128 << (63 + bits)).checked_div(capacity.into());
        Self {
            capacity,
            // Of a power of two it is 2⁶⁴: one less is as good.
            reciprocal: u64::try_from(reciprocal.unwrap_or(0)).unwrap_or(u64::MAX),
            shift: 31 + bits,
        }
    }

    /// Rounded down; of more than there is the whole: no ready node has more.
    pub(super) fn part(&self, amount: u64) -> u64 {
        let amount = u128::from(amount.min(self.capacity));
        // The reciprocal is too small by less than one in 2⁶³, and the amount is below 2⁶⁰: the product can be short of
        // one.
        let low = (amount * u128::from(self.reciprocal)) >> self.shift;
        let is_short = (low + 1) * u128::from(self.capacity) <= amount << 32 && self.capacity > 0;
        u64::try_from(low + u128::from(is_short)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::part_of;
    use super::*;

    #[test]
    fn a_part_is_what_a_division_says() {
        let amounts = [
            0,
            1,
            2,
            3,
            999,
            1000,
            4095,
            1 << 31,
            (1 << 36) + 7,
            (1 << 48) - 1,
            1 << 59,
            (1 << 60) - 1,
        ];
        for capacity in amounts {
            let parts = Parts::of(Some(capacity));
            let scattered =
                (1..200_u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (at % 60));
            for amount in amounts.into_iter().chain(scattered) {
                let amount = amount.min(capacity);
                let exact = part_of(i128::from(amount), Some(capacity), 32);
                assert_eq!(
                    i128::from(parts.part(amount)),
                    exact,
                    "{amount} of {capacity}"
                );
            }
        }
        assert_eq!(Parts::of(None).part(5), 0);
    }
}
