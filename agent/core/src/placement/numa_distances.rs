//! How far the NUMA nodes are from each other.

use std::fmt;

use crate::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};

const ROW: usize = NUMA_NODES_MAX as usize;

/// How far each NUMA node is from each other and from itself, as the firmware says (`SLIT`; 10 is the node itself).
#[derive(Clone, PartialEq, Eq)]
pub struct NumaDistances {
    nodes: NumaMask,
    /// Row by row; 0 where a node is not there.
    table: Vec<u32>,
}

/// Why distances cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DistancesError {
    /// The distance is unknown.
    #[error(
        "the distance from NUMA node {from} to NUMA node {to} is not known; \
         do without prefer-closest-numa-nodes, or give each node a distance to every node"
    )]
    Missing {
        /// Whose row.
        from: u32,
        /// Which place of it.
        to: u32,
    },
}

impl NumaDistances {
    /// From what `distance` knows of the way from one node to another.
    ///
    /// # Errors
    ///
    /// Names a pair of nodes of which the distance is missing.
    pub fn new(
        nodes: NumaMask,
        distance: impl Fn(u32, u32) -> Option<u32>,
    ) -> Result<Self, DistancesError> {
        let mut table = vec![0; ROW * ROW];
        for from in nodes.iter() {
            for to in nodes.iter() {
                let distance = distance(from, to);
                table[from as usize * ROW + to as usize] =
                    distance.ok_or(DistancesError::Missing { from, to })?;
            }
        }
        Ok(Self { nodes, table })
    }

    /// From one node to another; 0 if either is not known.
    #[must_use]
    pub fn between(&self, from: u32, to: u32) -> u32 {
        if from < NUMA_NODES_MAX && to < NUMA_NODES_MAX {
            self.table[from as usize * ROW + to as usize]
        } else {
            0
        }
    }

    /// Over all ordered pairs of the mask's nodes, each node with itself too.
    ///
    /// The kubelet compares averages as floats (`CalculateAverageFor` in numa_info.go). It does so for masks of as many
    /// nodes only, and the sum of at most 64² numbers of 32 bits is below 2⁴⁴: different sums over at most 64² pairs
    /// stay different as floats of 53 bits, so that comparing sums is the same.
    #[must_use]
    pub fn sum(&self, mask: NumaMask) -> u64 {
        let row = |from: u32| -> u64 {
            mask.iter()
                .map(|to| u64::from(self.between(from, to)))
                .sum()
        };
        mask.iter().map(row).sum()
    }
}

impl fmt::Debug for NumaDistances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row =
            |from| -> Vec<u32> { self.nodes.iter().map(|to| self.between(from, to)).collect() };
        f.debug_map()
            .entries(self.nodes.iter().map(|from| (from, row(from))))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_distance_is_named() {
        let distance = |from, to| (from == to).then_some(10);
        let refused = NumaDistances::new(NumaMask(0b101), distance).unwrap_err();
        assert_eq!(refused, DistancesError::Missing { from: 0, to: 2 });
    }
}
