//! Memory of the NUMA node that has the least.
//!
//! Problem: a node with plenty of memory in all can be out of it on one NUMA node; what is bound there stalls or is
//! killed, and no signal of the kubelet shows it. Approach: `memory.available` by the same formula for each NUMA node,
//! without what is reserved for huge pages; the signal shows the one with the smallest share left. Where the kernel
//! moves memory to a slower node when one is full (`numa/demotion_enabled`), a full node is no sign of need.

use crate::model::reading::NumaMemory;
use crate::model::signal::row::{
    NodeCondition, Observation, Operator, Readings, Resource, Seen, Signal, SignalRow, Unit,
};

/// `numaMemory.available`.
pub(super) const AVAILABLE: SignalRow = SignalRow {
    signal: Signal::NumaMemoryAvailable,
    name: "numaMemory.available",
    unit: Unit::Bytes,
    operator: Operator::LessThan,
    condition: Some(NodeCondition::MemoryPressure),
    resource: Resource::Memory,
    kubelet: false,
    meaning: "memory.available of the NUMA node that has the smallest share left",
    observe: available,
};

impl NumaMemory {
    /// Capacity minus working set: the formula of `memory.available`, on one NUMA node.
    pub fn available_bytes(&self) -> u64 {
        let inactive_bytes = self
            .inactive_file_bytes
            .saturating_sub(self.lazily_freed_bytes);
        let working_set = self
            .anon_bytes
            .saturating_add(self.file_bytes)
            .saturating_sub(inactive_bytes);
        self.capacity_bytes.saturating_sub(working_set)
    }
}

/// The NUMA node with the smallest share left; of several the one with the lowest number. Nodes without memory do not
/// count.
pub fn most_pressed(nodes: &[NumaMemory]) -> Option<&NumaMemory> {
    nodes
        .iter()
        .filter(|node| node.capacity_bytes > 0)
        .min_by(|a, b| {
            // a.available / a.capacity < b.available / b.capacity, without a fraction.
            let left = u128::from(a.available_bytes()) * u128::from(b.capacity_bytes);
            let right = u128::from(b.available_bytes()) * u128::from(a.capacity_bytes);
            left.cmp(&right).then(a.node.cmp(&b.node))
        })
}

fn available(readings: &Readings<'_>) -> Seen {
    if readings.sample.numa.is_empty() {
        return Seen::NotRead;
    }
    let seen = most_pressed(&readings.sample.numa).map(|node| Observation {
        value: node.available_bytes(),
        capacity: node.capacity_bytes,
        at_ns: Some(readings.at_ns),
    });
    seen.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_share_is_shown() {
        let node = |node, capacity_bytes, anon_bytes| NumaMemory {
            node,
            capacity_bytes,
            anon_bytes,
            ..NumaMemory::default()
        };
        let nodes = [
            node(0, 1000, 500),
            node(1, 0, 0),
            node(2, 100, 60),
            node(3, 100, 60),
        ];
        assert_eq!(most_pressed(&nodes).map(|node| node.node), Some(2));
        assert_eq!(most_pressed(&nodes[1..2]), None);
    }
}
