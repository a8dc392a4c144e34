//! The kubelet's checksum: FNV-1a of an object as go-spew prints it (`Sprintf("%#v")`, keys sorted, no pointer
//! addresses).
//!
//! That text: a pointer to a struct is `(*package.Type){Field:(type)value …}`; a map `(type)map[key:value …]`; below a
//! map or a slice the type of the value is left out, of its fields it is not, and a pointer there is `<*>`.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use super::{Block, CpuFile, KubeletStateError, MemoryFile, Node};
use plimsoll_core::placement::cpu_set::CpuSet;

/// FNV-1a, 32 bits, of a string that is hashed as such.
pub(super) fn text(text: &str) -> u64 {
    fnv(&format!("(string){text}"))
}

fn fnv(text: &str) -> u64 {
    const OFFSET: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    let hash = text.bytes().fold(OFFSET, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(PRIME)
    });
    u64::from(hash)
}

/// Compares with what it may be; 0 is no checksum. Returns whether there was one.
pub(super) fn verify(stated: u64, candidates: &[u64]) -> Result<bool, KubeletStateError> {
    if stated == 0 {
        return Ok(false);
    }
    verify_always(stated, candidates).map(|()| true)
}

/// As [`verify`], where 0 is a checksum like any other.
pub(super) fn verify_always(stated: u64, candidates: &[u64]) -> Result<(), KubeletStateError> {
    if candidates.contains(&stated) {
        return Ok(());
    }
    let actual = candidates.first().copied().unwrap_or(0);
    Err(KubeletStateError::Checksum { stated, actual })
}

fn map<K: Display, V>(entries: &BTreeMap<K, V>, value: impl Fn(&V) -> String) -> String {
    list(
        "map[",
        entries
            .iter()
            .map(|(key, entry)| format!("{key}:{}", value(entry))),
    )
}

fn list(open: &str, items: impl Iterator<Item = String>) -> String {
    format!("{open}{}]", items.collect::<Vec<_>>().join(" "))
}

/// With and without the field for pods as a whole: only later kubelets have it, and they leave it out of the file when
/// it is empty.
fn with_pods(pods: Option<String>, empty: &str) -> Vec<String> {
    match pods {
        Some(pods) => vec![pods],
        None => vec![String::new(), empty.to_owned()],
    }
}

/// What the checksum of `cpu_manager_state` may be.
pub(super) fn cpu(file: &CpuFile) -> Vec<u64> {
    let entries = map(&file.entries, |containers| map(containers, Clone::clone));
    let pods = file.pod_entries.as_ref().map(|pods| {
        let pods = map(pods, |of_pod| {
            // cpuset.CPUSet is a map of empty structs; of one that cannot be read there is no checksum either.
            let cpus = CpuSet::parse(&of_pod.cpu_set).unwrap_or_default();
            let elems = list("map[", cpus.iter().map(|cpu| format!("{cpu}:{{}}")));
            format!("{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}}){elems}}}}}")
        });
        format!("PodEntries:(state.PodCPUAssignments){pods} ")
    });
    let pods = with_pods(pods, "PodEntries:(state.PodCPUAssignments)map[] ");
    let mut sums = Vec::new();
    for name in ["", "V2", "V3"] {
        for pods in &pods {
            sums.push(fnv(&format!(
                "(*state.CPUManagerCheckpoint{name}){{PolicyName:(string){} DefaultCPUSet:(string){} \
                 Entries:(map[string]map[string]string){entries} {pods}Checksum:(checksum.Checksum)0}}",
                file.policy_name, file.default_cpu_set
            )));
        }
    }
    sums
}

/// What the checksum of `memory_manager_state` may be.
pub(super) fn memory(file: &MemoryFile) -> Vec<u64> {
    let entries = map(&file.entries, |containers| {
        map(containers, |list| blocks(list))
    });
    let machine = map(&file.machine_state, node);
    let pods = file.pod_entries.as_ref().map(|pods| {
        let pods = map(pods, |of_pod| {
            format!(
                "{{MemoryBlocks:([]state.Block){}}}",
                blocks(&of_pod.memory_blocks)
            )
        });
        format!("PodEntries:(state.PodMemoryAssignments){pods} ")
    });
    let mut sums = Vec::new();
    for pods in with_pods(pods, "PodEntries:(state.PodMemoryAssignments)map[] ") {
        for name in ["", "V1", "V2"] {
            sums.push(fnv(&format!(
                "(*state.MemoryManagerCheckpoint{name}){{PolicyName:(string){} MachineState:(state.NUMANodeMap){machine} \
                 Entries:(state.ContainerMemoryAssignments){entries} {pods}Checksum:(checksum.Checksum)0}}",
                file.policy_name
            )));
        }
    }
    sums
}

fn numbers(numbers: &[u64]) -> String {
    list("[", numbers.iter().map(ToString::to_string))
}

fn blocks(blocks: &[Block]) -> String {
    let block = |block: &Block| {
        format!(
            "{{NUMAAffinity:([]int){} Type:(v1.ResourceName){} Size:(uint64){}}}",
            numbers(&block.numa_affinity),
            block.resource,
            block.size
        )
    };
    list("[", blocks.iter().map(block))
}

fn node(node: &Node) -> String {
    let tables = map(&node.memory_map, |table| {
        let mut text = String::from("<*>{");
        for (field, bytes) in [
            ("TotalMemSize", table.total),
            ("SystemReserved", table.system_reserved),
            ("Allocatable", table.allocatable),
            ("Reserved", table.reserved),
            ("Free", table.free),
        ] {
            let separator = if field == "TotalMemSize" { "" } else { " " };
            // Writing to a string cannot fail.
            write!(text, "{separator}{field}:(uint64){bytes}").ok();
        }
        text + "}"
    });
    format!(
        "<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:([]int){}}}",
        node.number_of_assignments,
        numbers(&node.cells)
    )
}
