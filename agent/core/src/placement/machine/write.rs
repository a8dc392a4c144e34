//! `machine.json`, written: cores that are alike are one row, so that 256 CPUs are 16 lines and not 256.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::{Core, HugePages, Machine, NumaNode, VERSION};
use crate::placement::cpu_set::CpuSet;
use crate::placement::topology::TopologyCounts;

#[derive(Serialize)]
struct File<'a> {
    version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "CpuSet::is_empty")]
    offline: CpuSet,
    #[serde(skip_serializing_if = "CpuSet::is_empty")]
    isolated: CpuSet,
    cores: Vec<CoreRow>,
    nodes: Vec<NodeRow<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<CountsRow>,
}

/// Cores that are in the same place and have as many threads.
#[derive(Serialize)]
struct CoreRow {
    /// First threads of all its cores, second threads, …
    threads: Vec<CpuSet>,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    die: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    l3: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uncore: Option<u32>,
}

#[derive(Serialize)]
struct NodeRow<'a> {
    id: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hugepages: Vec<HugePagesRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    distances: Option<&'a [u32]>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HugePagesRow {
    page_size: String,
    pages: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CountsRow {
    cpus: u32,
    cores: u32,
    sockets: u32,
    numa_nodes: u32,
    uncore_caches: u32,
}

/// As `machine.json`, which [`Machine`] is also read from.
impl Serialize for Machine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        File {
            version: VERSION,
            name: self.name(),
            offline: self.offline(),
            isolated: self.isolated(),
            cores: core_rows(self.cores()),
            nodes: self.nodes().iter().map(NodeRow::from).collect(),
            counts: self.parts.counts.map(CountsRow::from),
        }
        .serialize(serializer)
    }
}

/// Rows for cores that are ordered by their lowest CPU. The n-th CPUs of a row's lists are the n-th core, so a core
/// that would cross another one begins a new row.
fn core_rows(cores: &[Core]) -> Vec<CoreRow> {
    let mut rows = Vec::<CoreRow>::new();
    // Of each row the CPUs of its last core, and of each place the row that can still take a core.
    let mut last = Vec::<Vec<u32>>::new();
    let mut open = BTreeMap::<_, usize>::new();
    for core in cores {
        let cpus: Vec<u32> = core.cpus.iter().collect();
        let Core {
            cpus: _,
            socket,
            die,
            cluster,
            node,
            l3,
            uncore,
        } = *core;
        let place = (socket, die, cluster, node, l3, uncore, cpus.len());
        let ascends = |row: &usize| last[*row].iter().zip(&cpus).all(|(last, cpu)| last < cpu);
        let row = open.get(&place).copied().filter(ascends);
        let row = row.unwrap_or(rows.len());
        if row == rows.len() {
            rows.push(CoreRow {
                threads: vec![CpuSet::EMPTY; cpus.len()],
                socket,
                die,
                cluster,
                node,
                l3,
                uncore,
            });
            last.push(Vec::new());
            open.insert(place, row);
        }
        for (list, cpu) in rows[row].threads.iter_mut().zip(&cpus) {
            list.insert(*cpu);
        }
        last[row] = cpus;
    }
    rows
}

impl<'a> From<&'a NumaNode> for NodeRow<'a> {
    fn from(node: &'a NumaNode) -> Self {
        Self {
            id: node.id,
            memory: node.memory_bytes,
            hugepages: node.hugepages.iter().map(HugePagesRow::from).collect(),
            distances: node.distances.as_deref(),
        }
    }
}

impl From<&HugePages> for HugePagesRow {
    fn from(huge_pages: &HugePages) -> Self {
        Self {
            page_size: page_size(huge_pages.page_bytes),
            pages: huge_pages.pages,
        }
    }
}

impl From<TopologyCounts> for CountsRow {
    fn from(counts: TopologyCounts) -> Self {
        Self {
            cpus: counts.cpus,
            cores: counts.cores,
            sockets: counts.sockets,
            numa_nodes: counts.numa_nodes,
            uncore_caches: counts.uncore_caches,
        }
    }
}

/// A page size as in Kubernetes' resource names (`hugepages-2Mi`): the largest binary unit that leaves a whole number.
#[must_use]
pub fn page_size(bytes: u64) -> String {
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let mut fitting = units
        .iter()
        .filter(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    match fitting.next() {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}
