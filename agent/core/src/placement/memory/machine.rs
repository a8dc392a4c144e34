//! What each NUMA node has, and the books on it.
//!
//! Source: `getDefaultMachineState` and `updateMachineState` of pkg/kubelet/cm/memorymanager/policy_static.go, 1.36.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::demand::MemoryDemand;
use crate::kube::quantity::{Format, Quantity};
use crate::kube::resources::{HUGE_PAGES_PREFIX, MEMORY};
pub use crate::placement::machine::HugePages;
use crate::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};

/// The memory of one NUMA node, as the machine reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaMemory {
    /// The node's number.
    pub id: u32,
    /// Bytes in all, huge pages included (`MemTotal` of `/sys/devices/system/node/node*/meminfo`).
    pub bytes: u64,
    /// The node's pools of huge pages, one per page size.
    pub huge_pages: Vec<HugePages>,
}

impl HugePages {
    /// The resource's name, such as `hugepages-2Mi`.
    #[must_use]
    pub fn resource(&self) -> String {
        format!("{HUGE_PAGES_PREFIX}{}", in_units(self.page_bytes))
    }
}

/// Bytes as people write them, without rounding: `2Mi`, or the plain number.
pub(super) fn in_units(bytes: u64) -> String {
    i64::try_from(bytes).map_or_else(
        |_| bytes.to_string(),
        |bytes| Quantity::from_value(bytes, Format::BinarySI).canonical(),
    )
}

/// `reservedMemory` of the kubelet's configuration: bytes that pods do not get, by node and resource.
pub type ReservedMemory = BTreeMap<u32, BTreeMap<String, u64>>;

/// One resource of one node, in bytes. `reserved + free` is always `allocatable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryTable {
    /// What the node has; for `memory` huge pages are included.
    pub total: u64,
    /// What is kept for the system.
    pub system_reserved: u64,
    /// What containers may have: the total without what is kept, and for `memory` without huge pages.
    pub allocatable: u64,
    /// What containers have been promised.
    pub reserved: u64,
    /// What is left.
    pub free: u64,
}

/// The books of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMemory {
    /// How many blocks have this node in their set: one per container and resource, those of zero bytes too.
    pub assignments: u64,
    /// The set of the last block that came here; the node alone if there is none. Two nodes or more are a *group*.
    pub cells: NumaMask,
    /// Its resources by name.
    pub memory: BTreeMap<String, MemoryTable>,
}

impl NodeMemory {
    pub(super) fn free(&self, resource: &str) -> u64 {
        self.memory.get(resource).map_or(0, |table| table.free)
    }

    fn clear(&mut self, id: u32) {
        self.assignments = 0;
        self.cells = NumaMask::of(id);
        for table in self.memory.values_mut() {
            table.reserved = 0;
            table.free = table.allocatable;
        }
    }

    pub(super) fn allocatable(&self, resource: &str) -> u64 {
        self.memory
            .get(resource)
            .map_or(0, |table| table.allocatable)
    }
}

/// Why no memory can be handed out on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MachineError {
    /// The kubelet refuses this too (`NewPolicyStatic`): the system itself needs memory.
    #[error(
        "reservedMemory: no NUMA node has any memory reserved for the system: reserve at least as much as kubeReserved, \
         systemReserved and evictionHard add up to"
    )]
    NothingReserved,
    /// More is reserved than the node has beside its huge pages.
    ///
    /// The kubelet subtracts without looking, and the node then seems to have 16 EiB.
    #[error(
        "reservedMemory: NUMA node {node}: {reserved} of {resource} are reserved, but the node has {total}{beside}: reserve {most} \
         or less there{or_fewer}",
        reserved = in_units(*.reserved), total = in_units(*.total),
        beside = if *.huge_pages == 0 { String::new() } else { format!(", of which huge pages take {}", in_units(*.huge_pages)) },
        most = in_units(.total.saturating_sub(*.huge_pages)),
        or_fewer = if *.huge_pages == 0 { "" } else { ", or set aside fewer huge pages" },
    )]
    OverReserved {
        /// The node.
        node: u32,
        /// Its resource.
        resource: String,
        /// Bytes of it that the node has.
        total: u64,
        /// Bytes of these that are huge pages.
        huge_pages: u64,
        /// Bytes that are to be reserved.
        reserved: u64,
    },
    /// A number that a set of nodes has no room for.
    #[error("NUMA node {node} is beyond {max}, the highest that is supported", max = NUMA_NODES_MAX - 1)]
    NodeTooHigh {
        /// The node.
        node: u32,
    },
    /// The same node twice.
    #[error("NUMA node {node} is listed twice: list each node once")]
    NodeTwice {
        /// The node.
        node: u32,
    },
}

/// The books of all nodes, by the nodes' numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Books(pub(super) BTreeMap<u32, NodeMemory>);

impl Books {
    /// Books with nothing promised. What is reserved on nodes that the machine has not counts for nothing, as in the
    /// kubelet.
    pub(super) fn new(
        machine: &[NumaMemory],
        reserved: &ReservedMemory,
    ) -> Result<Self, MachineError> {
        let memory = |node: &BTreeMap<String, u64>| node.get(MEMORY).copied();
        if reserved.values().filter_map(memory).all(|bytes| bytes == 0) {
            return Err(MachineError::NothingReserved);
        }
        let mut nodes = BTreeMap::new();
        for NumaMemory {
            id,
            bytes,
            huge_pages,
        } in machine
        {
            if *id >= NUMA_NODES_MAX {
                return Err(MachineError::NodeTooHigh { node: *id });
            }
            let kept = |resource: &str| {
                let reservation = reserved
                    .get(id)
                    .and_then(|reservation| reservation.get(resource));
                reservation.copied().unwrap_or(0)
            };
            let mut totals: BTreeMap<String, u64> = BTreeMap::new();
            let mut in_huge_pages = 0u64;
            for pool in huge_pages {
                // A product or sum that is cut off here is larger than any node and so refused below.
                let pool_bytes = pool.pages.saturating_mul(pool.page_bytes);
                let total = totals.entry(pool.resource()).or_default();
                *total = total.saturating_add(pool_bytes);
                in_huge_pages = in_huge_pages.saturating_add(pool_bytes);
            }
            totals.insert(MEMORY.to_owned(), *bytes);
            let mut node = NodeMemory {
                assignments: 0,
                cells: NumaMask::of(*id),
                memory: BTreeMap::new(),
            };
            for (resource, total) in totals {
                let system_reserved = kept(&resource);
                let taken = if resource == MEMORY { in_huge_pages } else { 0 };
                let allocatable = total
                    .checked_sub(taken)
                    .and_then(|left| left.checked_sub(system_reserved));
                let Some(allocatable) = allocatable else {
                    return Err(MachineError::OverReserved {
                        node: *id,
                        resource,
                        total,
                        huge_pages: taken,
                        reserved: system_reserved,
                    });
                };
                let table = MemoryTable {
                    total,
                    system_reserved,
                    allocatable,
                    reserved: 0,
                    free: allocatable,
                };
                node.memory.insert(resource, table);
            }
            if nodes.insert(*id, node).is_some() {
                return Err(MachineError::NodeTwice { node: *id });
            }
        }
        Ok(Self(nodes))
    }

    /// All nodes.
    pub(super) fn mask(&self) -> NumaMask {
        self.0.keys().copied().collect()
    }

    /// Strikes out everything.
    pub(super) fn clear(&mut self) {
        for (id, node) in &mut self.0 {
            node.clear(*id);
        }
    }

    /// Whether the nodes have all of it free together.
    pub(super) fn has_free(&self, nodes: NumaMask, demand: &MemoryDemand) -> bool {
        demand.iter().all(|(resource, bytes)| {
            let nodes = nodes.iter().filter_map(|id| self.0.get(&id));
            nodes.fold(0u64, |sum, node| sum.saturating_add(node.free(resource))) >= *bytes
        })
    }

    /// Whether one of the nodes serves another set than this (`isAffinityViolatingNUMAAllocations`).
    pub(super) fn is_shared_by_others(&self, nodes: NumaMask) -> bool {
        let mut tables = nodes.iter().filter_map(|id| self.0.get(&id));
        tables.any(|node| node.assignments > 0 && node.cells != nodes)
    }

    /// Enters a block on all its nodes and takes its bytes, lowest node first. Returns what could not be taken.
    ///
    /// Nodes must exist: callers check it once for a whole set.
    pub(super) fn take(&mut self, nodes: NumaMask, resource: &str, mut bytes: u64) -> u64 {
        for id in nodes.iter() {
            let Some(node) = self.0.get_mut(&id) else {
                continue;
            };
            node.assignments += 1;
            node.cells = nodes;
            if let Some(table) = node.memory.get_mut(resource) {
                let part = bytes.min(table.free);
                table.free -= part;
                table.reserved += part;
                bytes -= part;
            }
        }
        bytes
    }

    /// Strikes out a block that [`Self::take`] entered, and gives back its bytes, lowest node first.
    ///
    /// The bytes need not be given back where they were taken: two blocks of one group know only their sum. Where a
    /// block of a single node shares that node with a group, the sum can be given back to the wrong one of both, and in
    /// the kubelet bytes then stay reserved for ever on a node without containers. Here a node without containers is
    /// free.
    pub(super) fn give_back(&mut self, nodes: NumaMask, resource: &str, mut bytes: u64) {
        for id in nodes.iter() {
            let Some(node) = self.0.get_mut(&id) else {
                continue;
            };
            // Each block was counted once on each of its nodes.
            node.assignments -= 1;
            if let Some(table) = node.memory.get_mut(resource) {
                let part = bytes.min(table.reserved);
                table.reserved -= part;
                table.free += part;
                bytes -= part;
            }
            if node.assignments == 0 {
                node.clear(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GI: u64 = 1 << 30;

    fn node(id: u32, bytes: u64, pages_2mi: u64) -> NumaMemory {
        let pool = HugePages {
            page_bytes: 2 << 20,
            pages: pages_2mi,
        };
        NumaMemory {
            id,
            bytes,
            huge_pages: vec![pool],
        }
    }

    fn reserved(entries: &[(u32, &str, u64)]) -> ReservedMemory {
        let mut reserved = ReservedMemory::new();
        for (node, resource, bytes) in entries {
            reserved
                .entry(*node)
                .or_default()
                .insert((*resource).to_owned(), *bytes);
        }
        reserved
    }

    #[test]
    fn huge_pages_and_what_is_reserved_are_not_ordinary_memory() {
        let books = Books::new(
            &[node(0, 8 * GI, 512)],
            &reserved(&[(0, MEMORY, GI), (0, "hugepages-2Mi", 4 << 20)]),
        )
        .unwrap();
        let table = |resource: &str| books.0[&0].memory[resource];
        assert_eq!(table(MEMORY).allocatable, 6 * GI);
        assert_eq!(table("hugepages-2Mi").allocatable, GI - (4 << 20));
        assert_eq!(table(MEMORY).free, table(MEMORY).allocatable);
    }

    #[test]
    fn machines_that_cannot_be_are_refused_by_name() {
        type Case<'a> = (&'a [NumaMemory], &'a [(u32, &'a str, u64)], &'a str);
        let twice = [node(3, GI, 0), node(3, GI, 0)];
        let cases: [Case; 5] = [
            (
                &[node(0, GI, 0)],
                &[(0, "hugepages-2Mi", 1)],
                "reservedMemory: no NUMA node has any memory reserved for the system",
            ),
            (
                &[node(0, 4 * GI, 0), node(1, 4 * GI, 1536)],
                &[(0, MEMORY, GI), (1, MEMORY, 2 * GI)],
                "reservedMemory: NUMA node 1: 2Gi of memory are reserved, but the node has 4Gi, of which huge pages take 3Gi: \
                 reserve 1Gi or less there, or set aside fewer huge pages",
            ),
            (
                &[node(0, 4 * GI, 1)],
                &[(0, MEMORY, GI), (0, "hugepages-2Mi", 4 << 20)],
                "reservedMemory: NUMA node 0: 4Mi of hugepages-2Mi are reserved, but the node has 2Mi: reserve 2Mi or less there",
            ),
            (
                &[node(64, GI, 0)],
                &[(0, MEMORY, 1)],
                "NUMA node 64 is beyond 63",
            ),
            (&twice, &[(0, MEMORY, 1)], "NUMA node 3 is listed twice"),
        ];
        for (machine, kept, expected) in cases {
            let error = Books::new(machine, &reserved(kept))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_node_without_assignments_is_free() {
        let machine = [node(0, 9 * GI, 0), node(1, 9 * GI, 0)];
        let kept = reserved(&[(0, MEMORY, GI), (1, MEMORY, GI)]);
        let mut books = Books::new(&machine, &kept).unwrap();
        let (group, single) = (NumaMask(0b11), NumaMask(0b01));
        books.take(group, MEMORY, 10 * GI);
        books.take(group, MEMORY, 4 * GI);
        books.give_back(group, MEMORY, 4 * GI);
        books.take(single, MEMORY, 4 * GI);
        // Of these ten, eight come from node 0, where the single one holds four.
        books.give_back(group, MEMORY, 10 * GI);
        books.give_back(single, MEMORY, 4 * GI);
        assert_eq!(books, Books::new(&machine, &kept).unwrap());
    }
}
