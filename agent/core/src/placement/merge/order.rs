//! Which of two merged masks is the better one.

use crate::placement::numa_distances::NumaDistances;
use crate::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};

/// The order of masks, best first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order<'a> {
    /// So many nodes would be best; then fewer, the nearest number first; then more, likewise.
    pub(crate) target: u32,
    /// Of as many nodes, those that are closest together, if that is asked for.
    pub(crate) distances: Option<&'a NumaDistances>,
}

impl Order<'_> {
    /// The place of a number of nodes.
    pub(crate) fn by_size(self, nodes: u32) -> u32 {
        if nodes <= self.target {
            self.target - nodes
        } else {
            NUMA_NODES_MAX + nodes
        }
    }

    /// Smaller is better, and no two masks are equal.
    pub(crate) fn key(self, mask: NumaMask) -> (u32, u64, NumaMask) {
        let sum = self.distances.map_or(0, |distances| distances.sum(mask));
        (self.by_size(mask.len()), sum, mask)
    }

    /// The best of some masks.
    pub(crate) fn best(self, masks: impl Iterator<Item = NumaMask>) -> Option<NumaMask> {
        let mut best: Option<(u32, u64, NumaMask)> = None;
        for mask in masks {
            // Distances are looked up only for masks of a size that can win.
            if best.is_none_or(|best| self.by_size(mask.len()) <= best.0) {
                let key = self.key(mask);
                if best.is_none_or(|best| key < best) {
                    best = Some(key);
                }
            }
        }
        best.map(|(.., mask)| mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distances(rows: &[&[u32]]) -> NumaDistances {
        let nodes = (0..u32::try_from(rows.len()).unwrap()).collect();
        let distance = |from, to| Some(rows[from as usize][to as usize]);
        NumaDistances::new(nodes, distance).unwrap()
    }

    #[test]
    fn sizes_come_down_from_the_target_and_then_go_up() {
        let order = Order {
            target: 3,
            distances: None,
        };
        let mut sizes = [1, 2, 3, 4, 5, 6];
        sizes.sort_by_key(|size| order.by_size(*size));
        assert_eq!(sizes, [3, 2, 1, 4, 5, 6]);
    }

    #[test]
    fn of_as_many_nodes_the_closest_win_and_then_the_lowest() {
        let distances = distances(&[&[10, 21, 11], &[21, 10, 21], &[11, 21, 10]]);
        let masks = || [0b011, 0b110, 0b101].map(NumaMask).into_iter();
        let best = |distances| {
            Order {
                target: 2,
                distances,
            }
            .best(masks())
        };
        assert_eq!(best(Some(&distances)), Some(NumaMask(0b101)));
        assert_eq!(best(None), Some(NumaMask(0b011)));
    }
}
