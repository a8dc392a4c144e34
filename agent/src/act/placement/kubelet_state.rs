//! What the kubelet has assigned: its `cpu_manager_state` and `memory_manager_state`, for taking over a node.
//!
//! Problem: the files are the kubelet's own checkpoints, in three formats each, and one that was cut off or edited must
//! not be taken for a placement. Approach: all formats are read strictly into one value each, and the checksum is
//! verified as the kubelet does it.
//!
//! Formats that kubelets from 1.30 on write (pkg/kubelet/cm/{cpumanager,memorymanager}/state/checkpoint.go, up to 1.36
//! and what follows it):
//! - CPU v2, memory v1: by pod and container.
//! - CPU v3, memory v2: with what is assigned to pods as a whole (`PodLevelResourceManagers`).
//! - CPU v4, memory v3: the same as a text in `data`, with a checksum of that text; the rest repeats it for older
//!   kubelets and is not read.
//!
//! CPU v1, which kubelets before 1.18 wrote, is an error: it names containers by the id that the runtime gave them.
//!
//! Checksum: FNV-1a, 32 bits, of the object as go-spew prints it with `%#v` and sorted keys (k8s.io/utils/dump
//! `ForHash`), the checksum itself being 0. The object's type is part of that text, and was renamed between releases,
//! so that every name is tried. A checksum of 0 is none.

mod checksum;
mod write;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::assignments::{Assignment, Assignments};
use plimsoll_core::placement::cpu_set::{CpuSet, CpuSetError};
use plimsoll_core::placement::memory::Block as MemoryBlock;
use plimsoll_core::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};

pub use write::{FOR_KUBELET, cpu_manager_state, forget, forget_ours, keep, memory_manager_state};

/// What the files of a kubelet begin with that has had static policies and has them no more, where somebody has put
/// them into the agent's state directory.
pub const FROM_KUBELET: &str = "from-kubelet.";
/// The CPU manager's file in the kubelet's directory.
pub const CPU_MANAGER_STATE: &str = "cpu_manager_state";
/// The memory manager's.
pub const MEMORY_MANAGER_STATE: &str = "memory_manager_state";
/// The CPU manager's policy that assigns.
pub const CPU_POLICY_STATIC: &str = "static";
/// The memory manager's policy that assigns.
pub const MEMORY_POLICY_STATIC: &str = "Static";

/// Why a state file is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KubeletStateError {
    /// It is no JSON, or not of these fields.
    #[error("not a state file of the kubelet: {0}")]
    Malformed(String),
    /// Its checksum does not fit.
    #[error(
        "its checksum is {stated} and should be {actual}: the file is damaged, was edited, or has a format that is not supported; drain the node with its kubelet, or remove the file"
    )]
    Checksum {
        /// What it says.
        stated: u64,
        /// What it is, by the newest name of the type.
        actual: u64,
    },
    /// A text that is no set of CPUs.
    #[error("{field}: {source}")]
    Cpus {
        /// Where.
        field: String,
        /// What is wrong.
        #[source]
        source: CpuSetError,
    },
    /// A NUMA node that there cannot be.
    #[error("{field}: NUMA node {node} is beyond {max}, the highest that is supported", max = NUMA_NODES_MAX - 1)]
    Node {
        /// Where.
        field: String,
        /// Its number.
        node: u64,
    },
    /// CPU manager format v1.
    #[error(
        "it has format v1, of kubelets before 1.18, which is not supported: drain the node with its kubelet, or remove the file"
    )]
    FormatV1,
}

/// CPUs by pod and container.
pub type CpuEntries = BTreeMap<PodUid, BTreeMap<String, CpuSet>>;

/// What the CPU manager has assigned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuManagerState {
    /// `none` or `static`.
    pub policy: String,
    /// The shared pool.
    pub default_cpus: CpuSet,
    /// Exclusive CPUs.
    pub entries: CpuEntries,
    /// Exclusive CPUs of pods as a whole.
    pub pods: BTreeMap<PodUid, CpuSet>,
    /// Whether there was a checksum, which then was right.
    pub verified: bool,
}

/// Memory of one kind on a NUMA node, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryTable {
    /// What there is.
    pub total_bytes: u64,
    /// What is kept for the system.
    pub system_reserved_bytes: u64,
    /// What may be assigned.
    pub allocatable_bytes: u64,
    /// What is assigned.
    pub reserved_bytes: u64,
    /// What is left.
    pub free_bytes: u64,
}

/// A NUMA node as the memory manager sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryNode {
    /// How many assignments there are, one for each kind of memory.
    pub assignments: i64,
    /// By kind of memory.
    pub tables: BTreeMap<String, MemoryTable>,
    /// The nodes that are used together with this one, itself included.
    pub cells: NumaMask,
}

/// Blocks by pod and container.
pub type MemoryEntries = BTreeMap<PodUid, BTreeMap<String, Vec<MemoryBlock>>>;

/// What the memory manager has assigned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryManagerState {
    /// `None`, `Static` or `BestEffort`.
    pub policy: String,
    /// By NUMA node.
    pub machine: BTreeMap<u32, MemoryNode>,
    /// What containers have.
    pub entries: MemoryEntries,
    /// What pods have as a whole.
    pub pods: BTreeMap<PodUid, Vec<MemoryBlock>>,
    /// Whether there was a checksum, which then was right.
    pub verified: bool,
}

impl CpuManagerState {
    /// Reads `cpu_manager_state`.
    ///
    /// # Errors
    /// [`KubeletStateError`].
    pub fn parse(text: &str) -> Result<Self, KubeletStateError> {
        let file: CpuFile =
            parse(text).map_err(|error| match serde_json::from_str::<CpuFileV1>(text) {
                Ok(file) if !file.entries.is_empty() => KubeletStateError::FormatV1,
                _ => error,
            })?;
        let verified = match (&file.data, file.data_checksum) {
            (None, None | Some(0)) => checksum::verify(file.checksum, &checksum::cpu(&file))?,
            (data, stated) => {
                let data = data.as_deref().unwrap_or_default();
                let stated = stated.unwrap_or(0);
                checksum::verify_always(stated, &[checksum::text(data)])?;
                // The same fields once more; the outer ones are for older kubelets.
                let inner: CpuData = parse(data)?;
                return Self::of(&inner, true);
            }
        };
        let CpuFile {
            policy_name,
            default_cpu_set,
            entries,
            pod_entries,
            ..
        } = file;
        let data = CpuData {
            policy_name,
            default_cpu_set,
            entries,
            pod_entries,
        };
        Self::of(&data, verified)
    }

    fn of(data: &CpuData, verified: bool) -> Result<Self, KubeletStateError> {
        let cpus = |field: String, list: &str| {
            CpuSet::parse(list).map_err(|source| KubeletStateError::Cpus { field, source })
        };
        let mut entries = CpuEntries::new();
        for (pod, containers) in &data.entries {
            for (container, list) in containers {
                let cpus_of_container = cpus(format!("entries.{pod}.{container}"), list)?;
                let of_pod = entries.entry(PodUid::from(pod.as_str())).or_default();
                of_pod.insert(container.clone(), cpus_of_container);
            }
        }
        let pods = data.pod_entries.iter().flatten();
        let pods = pods.map(|(pod, of_pod)| {
            let of_pod = cpus(format!("podEntries.{pod}.cpuSet"), &of_pod.cpu_set)?;
            Ok((PodUid::from(pod.as_str()), of_pod))
        });
        Ok(Self {
            policy: data.policy_name.clone(),
            default_cpus: cpus("defaultCpuSet".into(), &data.default_cpu_set)?,
            entries,
            pods: pods.collect::<Result<_, _>>()?,
            verified,
        })
    }
}

impl MemoryManagerState {
    /// Reads `memory_manager_state`.
    ///
    /// # Errors
    /// [`KubeletStateError`].
    pub fn parse(text: &str) -> Result<Self, KubeletStateError> {
        let file: MemoryFile = parse(text)?;
        if file.data.is_none() && file.data_checksum.unwrap_or(0) == 0 {
            let verified = checksum::verify(file.checksum, &checksum::memory(&file))?;
            return Self::of(&file.inner(), verified);
        }
        let data = file.data.as_deref().unwrap_or_default();
        checksum::verify_always(file.data_checksum.unwrap_or(0), &[checksum::text(data)])?;
        Self::of(&parse(data)?, true)
    }

    fn of(data: &MemoryData, verified: bool) -> Result<Self, KubeletStateError> {
        let block = |field: &str, block: &Block| {
            Ok(MemoryBlock {
                nodes: mask(field, &block.numa_affinity)?,
                resource: block.resource.clone(),
                bytes: block.size,
            })
        };
        let mut machine = BTreeMap::new();
        for (number, node) in &data.machine_state {
            let field = format!("machineState.{number}.cells");
            let table = |table: &Table| MemoryTable {
                total_bytes: table.total,
                system_reserved_bytes: table.system_reserved,
                allocatable_bytes: table.allocatable,
                reserved_bytes: table.reserved,
                free_bytes: table.free,
            };
            let tables = node.memory_map.iter();
            let node = MemoryNode {
                assignments: node.number_of_assignments,
                tables: tables
                    .map(|(kind, of_kind)| (kind.clone(), table(of_kind)))
                    .collect(),
                cells: mask(&field, &node.cells)?,
            };
            machine.insert(*number, node);
        }
        let mut entries = MemoryEntries::new();
        for (pod, containers) in &data.entries {
            for (container, blocks) in containers {
                let field = format!("entries.{pod}.{container}");
                let blocks = blocks.iter().map(|entry| block(&field, entry));
                let of_pod = entries.entry(PodUid::from(pod.as_str())).or_default();
                of_pod.insert(container.clone(), blocks.collect::<Result<_, _>>()?);
            }
        }
        let pods = data.pod_entries.iter().flatten().map(|(pod, of_pod)| {
            let field = format!("podEntries.{pod}");
            let blocks = of_pod
                .memory_blocks
                .iter()
                .map(|entry| block(&field, entry));
            Ok((
                PodUid::from(pod.as_str()),
                blocks.collect::<Result<_, KubeletStateError>>()?,
            ))
        });
        Ok(Self {
            policy: data.policy_name.clone(),
            machine,
            entries,
            pods: pods.collect::<Result<_, _>>()?,
            verified,
        })
    }
}

/// What the two managers have assigned, as one value: where a node is to go on when it is taken over.
///
/// What a pod has as a whole is no container's, and is left out of the shared pool by the kubelet already. A policy
/// that assigns nothing has no entries. Devices are in neither file.
#[must_use]
pub fn assignments(cpu: &CpuManagerState, memory: Option<&MemoryManagerState>) -> Assignments {
    let mut containers: BTreeMap<PodUid, BTreeMap<String, Assignment>> = BTreeMap::new();
    for (pod, of_containers) in &cpu.entries {
        for (container, cpus) in of_containers.iter().filter(|(_, cpus)| !cpus.is_empty()) {
            let of_pod = containers.entry(pod.clone()).or_default();
            of_pod.entry(container.clone()).or_default().cpus = Some(*cpus);
        }
    }
    let entries = memory.map(|memory| &memory.entries);
    for (pod, of_containers) in entries.into_iter().flatten() {
        for (container, blocks) in of_containers {
            if !blocks.is_empty() {
                let of_pod = containers.entry(pod.clone()).or_default();
                of_pod
                    .entry(container.clone())
                    .or_default()
                    .memory
                    .clone_from(blocks);
            }
        }
    }
    Assignments {
        shared_pool: cpu.default_cpus,
        containers,
        refused: BTreeMap::new(),
    }
}

fn parse<'text, T: Deserialize<'text>>(text: &'text str) -> Result<T, KubeletStateError> {
    serde_json::from_str(text).map_err(|error| KubeletStateError::Malformed(error.to_string()))
}

fn mask(field: &str, nodes: &[u64]) -> Result<NumaMask, KubeletStateError> {
    let mut mask = NumaMask::EMPTY;
    for node in nodes {
        let number = u32::try_from(*node).ok();
        let number = number.filter(|number| *number < NUMA_NODES_MAX);
        let number = number.ok_or_else(|| KubeletStateError::Node {
            field: field.to_owned(),
            node: *node,
        })?;
        mask = mask | NumaMask::of(number);
    }
    Ok(mask)
}

/// What tells CPU manager format v1 from the later ones: the CPUs follow the runtime's id of a container, with no pod
/// between.
#[derive(Debug, Deserialize)]
struct CpuFileV1 {
    entries: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodCpus {
    cpu_set: String,
}

/// The fields of all supported formats. One that is not known is of a later kubelet, and is ignored as the kubelet
/// does.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct CpuFile {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_entries: Option<BTreeMap<String, PodCpus>>,
    checksum: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_checksum: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CpuData {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    pod_entries: Option<BTreeMap<String, PodCpus>>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Block {
    numa_affinity: Vec<u64>,
    #[serde(rename = "type")]
    resource: String,
    size: u64,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Table {
    total: u64,
    system_reserved: u64,
    allocatable: u64,
    reserved: u64,
    free: u64,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    number_of_assignments: i64,
    memory_map: BTreeMap<String, Table>,
    cells: Vec<u64>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodBlocks {
    memory_blocks: Vec<Block>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct MemoryFile {
    policy_name: String,
    machine_state: BTreeMap<u32, Node>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, Vec<Block>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_entries: Option<BTreeMap<String, PodBlocks>>,
    checksum: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_checksum: Option<u64>,
}

impl MemoryFile {
    fn inner(&self) -> MemoryData {
        MemoryData {
            policy_name: self.policy_name.clone(),
            machine_state: self.machine_state.clone(),
            entries: self.entries.clone(),
            pod_entries: self.pod_entries.clone(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryData {
    policy_name: String,
    #[serde(default)]
    machine_state: BTreeMap<u32, Node>,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, Vec<Block>>>,
    pod_entries: Option<BTreeMap<String, PodBlocks>>,
}

#[cfg(test)]
mod tests;
