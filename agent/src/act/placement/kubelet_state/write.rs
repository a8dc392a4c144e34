//! What a kubelet would have assigned: for giving a node back to its static managers, with all containers where they
//! are.
//!
//! **Problem.** A kubelet that begins with a static policy and no state file gives running containers CPUs anew, and
//! moves them. **Approach.** Its own two files are written from what is in force, in the formats that every kubelet
//! from 1.21 on reads (CPU v2, memory v1), with the checksum of those before 1.36: later ones try that name of the type
//! too. A kubelet refuses them if its reservation, options or machine differ from those of the agent (`validateState`
//! of both managers), which is then what it says.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::memory::{Block as MemoryBlock, NodeMemory};
use plimsoll_core::placement::numa_mask::NumaMask;

use super::{
    Block, CPU_MANAGER_STATE, CPU_POLICY_STATIC, CpuFile, FROM_KUBELET, MEMORY_MANAGER_STATE,
    MEMORY_POLICY_STATIC, MemoryFile, Node, Table, checksum,
};
use crate::host::state_dir;

/// What both files begin with in the agent's state directory.
pub const FOR_KUBELET: &str = "for-kubelet.";

/// Writes both files into the agent's state directory; where memory is not placed only the first.
///
/// # Errors
/// The system's.
pub fn keep(
    state_dir: &Path,
    assignments: &Assignments,
    nodes: &BTreeMap<u32, NodeMemory>,
) -> io::Result<()> {
    let path = |name: &str| state_dir.join(format!("{FOR_KUBELET}{name}"));
    let cpus = cpu_manager_state(assignments)?;
    state_dir::replace(&path(CPU_MANAGER_STATE), cpus.as_bytes())?;
    let memory = path(MEMORY_MANAGER_STATE);
    match nodes.is_empty() {
        true => remove(&memory),
        false => state_dir::replace(
            &memory,
            memory_manager_state(assignments, nodes)?.as_bytes(),
        ),
    }
}

/// Nothing is placed any more. What a kubelet has left is not taken over a second time either.
///
/// # Errors
/// The system's.
pub fn forget(state_dir: &Path) -> io::Result<()> {
    forget_ours(state_dir)?;
    forget_files(state_dir, FROM_KUBELET)
}

/// Nothing is placed, and a kubelet is not to start with what was placed once.
///
/// # Errors
/// The system's.
pub fn forget_ours(state_dir: &Path) -> io::Result<()> {
    forget_files(state_dir, FOR_KUBELET)
}

fn forget_files(state_dir: &Path, whose: &str) -> io::Result<()> {
    for file in [CPU_MANAGER_STATE, MEMORY_MANAGER_STATE] {
        remove(&state_dir.join(format!("{whose}{file}")))?;
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The text of `cpu_manager_state`.
///
/// # Errors
/// None that can be: it is an object of texts and numbers.
pub fn cpu_manager_state(assignments: &Assignments) -> serde_json::Result<String> {
    let mut entries: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (pod, containers) in &assignments.containers {
        for (name, assignment) in containers {
            let Some(cpus) = assignment.cpus else {
                continue;
            };
            let of_pod = entries.entry(pod.as_str().to_owned()).or_default();
            of_pod.insert(name.clone(), cpus.to_string());
        }
    }
    let mut file = CpuFile {
        policy_name: CPU_POLICY_STATIC.to_owned(),
        default_cpu_set: assignments.shared_pool.to_string(),
        entries,
        pod_entries: None,
        checksum: 0,
        data: None,
        data_checksum: None,
    };
    // The first is of the oldest name.
    file.checksum = checksum::cpu(&file).first().copied().unwrap_or(0);
    serde_json::to_string(&file)
}

/// The text of `memory_manager_state`, with the books of each NUMA node.
///
/// # Errors
/// As [`cpu_manager_state`].
pub fn memory_manager_state(
    assignments: &Assignments,
    nodes: &BTreeMap<u32, NodeMemory>,
) -> serde_json::Result<String> {
    let block = |block: &MemoryBlock| Block {
        numa_affinity: numbers(block.nodes),
        resource: block.resource.clone(),
        size: block.bytes,
    };
    let mut entries: BTreeMap<String, BTreeMap<String, Vec<Block>>> = BTreeMap::new();
    for (pod, containers) in &assignments.containers {
        for (name, assignment) in containers {
            if assignment.memory.is_empty() {
                continue;
            }
            let of_pod = entries.entry(pod.as_str().to_owned()).or_default();
            of_pod.insert(name.clone(), assignment.memory.iter().map(block).collect());
        }
    }
    let mut file = MemoryFile {
        policy_name: MEMORY_POLICY_STATIC.to_owned(),
        machine_state: nodes.iter().map(|(id, books)| (*id, node(books))).collect(),
        entries,
        pod_entries: None,
        checksum: 0,
        data: None,
        data_checksum: None,
    };
    file.checksum = checksum::memory(&file).first().copied().unwrap_or(0);
    serde_json::to_string(&file)
}

fn numbers(nodes: NumaMask) -> Vec<u64> {
    nodes.iter().map(u64::from).collect()
}

fn node(books: &NodeMemory) -> Node {
    let table = |table: &plimsoll_core::placement::memory::MemoryTable| Table {
        total: table.total,
        system_reserved: table.system_reserved,
        allocatable: table.allocatable,
        reserved: table.reserved,
        free: table.free,
    };
    let tables = books.memory.iter();
    Node {
        number_of_assignments: i64::try_from(books.assignments).unwrap_or(i64::MAX),
        memory_map: tables
            .map(|(kind, of_kind)| (kind.clone(), table(of_kind)))
            .collect(),
        cells: numbers(books.cells),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::placement::cpu_set::CpuSet;

    use super::super::{CpuManagerState, MemoryManagerState, assignments};
    use super::*;

    /// What the managers of a kubelet 1.36 have written, but for the name of the type in the checksum.
    #[test]
    fn what_a_kubelet_has_written_is_written_the_same() {
        let without_sum = |text: &str| text.rsplit_once(r#""checksum":"#).unwrap().0.to_owned();
        let cpu_text = include_str!("fixtures/cpu_manager_state");
        let memory_text = include_str!("fixtures/memory_manager_state");
        let cpu = CpuManagerState::parse(cpu_text).unwrap();
        let memory = MemoryManagerState::parse(memory_text).unwrap();
        let taken = assignments(&cpu, Some(&memory));
        let written = cpu_manager_state(&taken).unwrap();
        assert_eq!(without_sum(&written), without_sum(cpu_text));
        assert_eq!(CpuManagerState::parse(&written).unwrap(), cpu);
        let nodes = memory.machine.iter().map(|(id, node)| {
            let tables = node.tables.iter().map(|(kind, table)| {
                let table = plimsoll_core::placement::memory::MemoryTable {
                    total: table.total_bytes,
                    system_reserved: table.system_reserved_bytes,
                    allocatable: table.allocatable_bytes,
                    reserved: table.reserved_bytes,
                    free: table.free_bytes,
                };
                (kind.clone(), table)
            });
            let books = NodeMemory {
                assignments: u64::try_from(node.assignments).unwrap(),
                cells: node.cells,
                memory: tables.collect(),
            };
            (*id, books)
        });
        let written = memory_manager_state(&taken, &nodes.collect()).unwrap();
        assert_eq!(without_sum(&written), without_sum(memory_text));
        let read = MemoryManagerState::parse(&written).unwrap();
        assert!(read.verified);
        assert_eq!(read.entries, memory.entries);
    }

    /// The sum is the one in the kubelet's own tests until 1.35 (state_checkpoint_test.go).
    #[test]
    fn the_checksum_is_the_one_that_every_kubelet_tries() {
        let one = |list: &str| plimsoll_core::placement::assignments::Assignment {
            cpus: Some(CpuSet::parse(list).unwrap()),
            ..Default::default()
        };
        let containers = [("container1", one("4-6")), ("container2", one("1-3"))];
        let containers = containers
            .map(|(name, held)| (name.to_owned(), held))
            .into();
        let assignments = Assignments {
            shared_pool: CpuSet::parse("7-9").unwrap(),
            containers: BTreeMap::from([("pod".into(), containers)]),
            refused: BTreeMap::new(),
        };
        assert_eq!(
            cpu_manager_state(&assignments).unwrap(),
            r#"{"policyName":"static","defaultCpuSet":"7-9","entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":964019483}"#
        );
    }
}
