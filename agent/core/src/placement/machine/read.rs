//! `machine.json`, read: strictly, so that a slip of the pen is not another machine.
//!
//! Two shapes are taken. Our own (docs/reference/machine.md) has a `version`. The other is that of the kubelet's golden
//! vectors: `{id, desc, num_cpus, …, cpus: [[cpu, core, socket, numa, uncore], …]}`, in which cores are numbered as the
//! kubelet does it, uncore caches are given, and nothing is known about memory.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer, Error};

use super::tree::{Field, Object, Value};
use super::{Core, HugePages, Machine, MachineError, NumaNode, Parts, VERSION};
use crate::kube::quantity::Quantity;
use crate::placement::cpu_set::{CPUS_MAX, CpuSet, CpuSetError};
use crate::placement::topology::TopologyCounts;

/// Quantities are parsed as text; longer ones are no amount of memory.
const QUANTITY_CHARS_MAX: usize = 32;

/// A file that may describe a machine, of either shape: read, and not yet understood. It keeps errors of the file's
/// format apart from [`MachineError`], which names fields.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineFile(Value);

impl MachineFile {
    /// The machine.
    ///
    /// # Errors
    ///
    /// Names the first field, CPU or node that cannot be.
    pub fn machine(&self) -> Result<Machine, MachineError> {
        machine(&Field::root(&self.0))
    }
}

impl<'de> Deserialize<'de> for MachineFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self)
    }
}

/// As [`MachineFile`], with [`MachineError`] as text.
impl<'de> Deserialize<'de> for Machine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let file = MachineFile::deserialize(deserializer)?;
        file.machine().map_err(D::Error::custom)
    }
}

fn machine(file: &Field<'_>) -> Result<Machine, MachineError> {
    if !file.has("version") && file.has("num_cpus") {
        return kubelet_rows(file);
    }
    let known = [
        "version", "name", "offline", "isolated", "cores", "nodes", "counts",
    ];
    let file = file.object(&known)?;
    let version = file.require("version")?.u64()?;
    if version != u64::from(VERSION) {
        return Err(MachineError::Version { found: version });
    }
    let mut parts = Parts {
        name: text(&file, "name")?,
        offline: cpus(&file, "offline")?,
        isolated: cpus(&file, "isolated")?,
        counts: file.get("counts").map(|field| counts(&field)).transpose()?,
        ..Parts::default()
    };
    for row in file.require("cores")?.list()? {
        read_cores(&row, &mut parts.cores)?;
    }
    for row in file.require("nodes")?.list()? {
        parts.nodes.push(node(&row)?);
    }
    Machine::new(parts)
}

fn text(object: &Object<'_>, name: &str) -> Result<Option<String>, MachineError> {
    let field = object.get(name);
    field
        .map(|field| field.text().map(str::to_owned))
        .transpose()
}

fn cpus(object: &Object<'_>, name: &str) -> Result<CpuSet, MachineError> {
    object
        .get(name)
        .map_or(Ok(CpuSet::EMPTY), |field| field.cpus())
}

/// One row: the n-th CPUs of its lists are the n-th core.
fn read_cores(row: &Field<'_>, cores: &mut Vec<Core>) -> Result<(), MachineError> {
    let known = [
        "threads", "socket", "die", "cluster", "node", "l3", "uncore",
    ];
    let row = row.object(&known)?;
    let field = row.require("threads")?;
    let lists = field.list()?;
    let place = Core {
        cpus: CpuSet::EMPTY,
        socket: row.get_u32("socket")?,
        die: row.get_u32("die")?,
        cluster: row.get_u32("cluster")?,
        node: row.get_u32("node")?,
        l3: row.get_u32("l3")?,
        uncore: row.get_u32("uncore")?,
    };
    let first = lists.first().map(Field::cpus).transpose()?;
    let first = first.filter(|cpus| !cpus.is_empty());
    let first = first
        .ok_or_else(|| field.expected("a list of lists of CPUs such as [\"0-3\", \"4-7\"]"))?;
    let row = cores.len()..cores.len() + first.len() as usize;
    cores.resize(row.end, place);
    for list in &lists {
        let cpus = list.cpus()?;
        if cpus.len() != first.len() {
            return Err(MachineError::UnevenThreads {
                field: list.path.clone(),
                found: cpus.len(),
                wanted: first.len(),
            });
        }
        for (core, cpu) in cores[row.clone()].iter_mut().zip(cpus.iter()) {
            if core.cpus.contains(cpu) {
                return Err(MachineError::CpuTwice { cpu });
            }
            core.cpus.insert(cpu);
        }
    }
    Ok(())
}

fn node(row: &Field<'_>) -> Result<NumaNode, MachineError> {
    let row = row.object(&["id", "memory", "hugepages", "distances"])?;
    let mut node = NumaNode {
        id: row.require_u32("id")?,
        memory_bytes: row.get("memory").map(|field| bytes(&field)).transpose()?,
        ..NumaNode::default()
    };
    let hugepages = row.get("hugepages").map(|field| field.list()).transpose()?;
    for pages in hugepages.unwrap_or_default() {
        let pages = pages.object(&["pageSize", "pages"])?;
        node.hugepages.push(HugePages {
            page_bytes: bytes(&pages.require("pageSize")?)?,
            pages: pages.require("pages")?.u64()?,
        });
    }
    if let Some(distances) = row.get("distances") {
        let row: Result<_, _> = distances.list()?.iter().map(Field::u32).collect();
        node.distances = Some(row?);
    }
    Ok(node)
}

/// A whole number of bytes, or a quantity as `64Gi`.
fn bytes(field: &Field<'_>) -> Result<u64, MachineError> {
    if let Ok(bytes) = field.u64() {
        return Ok(bytes);
    }
    let expected = || field.expected("whole bytes, or a quantity such as 64Gi");
    let text = field.text().map_err(|_| expected())?;
    let quantity = Some(text).filter(|text| text.len() <= QUANTITY_CHARS_MAX);
    let bytes = quantity
        .and_then(|text| Quantity::parse(text).ok())
        .and_then(|quantity| quantity.as_i64());
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    bytes.ok_or_else(expected)
}

fn counts(field: &Field<'_>) -> Result<TopologyCounts, MachineError> {
    let names = ["cpus", "cores", "sockets", "numaNodes", "uncoreCaches"];
    let counts = field.object(&names)?;
    counts_named(&counts, names)
}

fn counts_named(object: &Object<'_>, names: [&str; 5]) -> Result<TopologyCounts, MachineError> {
    let [cpus, cores, sockets, numa_nodes, uncore_caches] =
        names.map(|name| object.require_u32(name));
    Ok(TopologyCounts {
        cpus: cpus?,
        cores: cores?,
        sockets: sockets?,
        numa_nodes: numa_nodes?,
        uncore_caches: uncore_caches?,
    })
}

/// The shape of the golden vectors.
fn kubelet_rows(file: &Field<'_>) -> Result<Machine, MachineError> {
    let counted = [
        "num_cpus",
        "num_cores",
        "num_sockets",
        "num_numa_nodes",
        "num_uncore_caches",
    ];
    let [cpus, cores, sockets, numa_nodes, uncore_caches] = counted;
    let known = [
        "id",
        "desc",
        cpus,
        cores,
        sockets,
        numa_nodes,
        uncore_caches,
        "cpus",
    ];
    let file = file.object(&known)?;
    let names = [text(&file, "id")?, text(&file, "desc")?];
    let names: Vec<String> = names.into_iter().flatten().collect();
    let mut cores = BTreeMap::<u32, Core>::new();
    for row in file.require("cpus")?.list()? {
        let numbers = row.list()?;
        let [cpu, core, socket, node, uncore] = &numbers[..] else {
            return Err(row.expected("five numbers: CPU, core, socket, NUMA node, uncore cache"));
        };
        let field = cpu.path.clone();
        let (cpu, core) = (cpu.u32()?, core.u32()?);
        if cpu >= CPUS_MAX {
            let error = CpuSetError::TooHigh { cpu };
            return Err(MachineError::Cpus { field, error });
        }
        let place = Core {
            socket: Some(socket.u32()?),
            node: Some(node.u32()?),
            uncore: Some(uncore.u32()?),
            ..Core::default()
        };
        let known = cores.entry(core).or_insert(place);
        for (what, here, there) in [
            ("socket", place.socket, known.socket),
            ("NUMA node", place.node, known.node),
            ("uncore cache", place.uncore, known.uncore),
        ] {
            if here != there {
                return Err(MachineError::SplitCore { cpu, core, what });
            }
        }
        if known.cpus.contains(cpu) {
            return Err(MachineError::CpuTwice { cpu });
        }
        known.cpus.insert(cpu);
    }
    for (core, known) in &cores {
        if let Some(lowest) = known.cpus.first().filter(|lowest| lowest != core) {
            return Err(MachineError::CoreNumber {
                core: *core,
                lowest,
            });
        }
    }
    let nodes: std::collections::BTreeSet<u32> =
        cores.values().filter_map(|core| core.node).collect();
    Machine::new(Parts {
        name: (!names.is_empty()).then(|| names.join(": ")),
        cores: cores.into_values().collect(),
        nodes: nodes
            .into_iter()
            .map(|id| NumaNode {
                id,
                ..NumaNode::default()
            })
            .collect(),
        counts: Some(counts_named(&file, counted)?),
        ..Parts::default()
    })
}
