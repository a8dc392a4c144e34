//! The machine that we run on, from sysfs.
//!
//! **Problem.** What sysfs says of CPUs differs from kernel to kernel and from firmware to firmware: no die before 5.2,
//! no cache ids on most ARM machines, -1 for a package that nobody knows, and nothing at all about a CPU that is
//! offline. **Approach.** Everything is read once, when somebody asks; CPUs that are in the same core or behind the
//! same cache are read once for all of them. What is missing is unknown, and not guessed: [`Machine`] has a way to say
//! so. CPUs that come and go meanwhile make us read again, a few times at most. Sources:
//! Documentation/admin-guide/cputopology.rst; Documentation/ABI/testing/sysfs-devices-system-cpu and
//! Documentation/ABI/stable/sysfs-devices-node; drivers/base/{topology,cacheinfo,node}.c.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_core::placement::cpu_set::{CpuSet, CpuSetError};
use plimsoll_core::placement::machine::{Core, HugePages, Machine, MachineError, NumaNode, Parts};

use super::HostRoot;
use super::file::{FileError, parse_u64, read_text};
use super::meminfo::parse_lines;
use super::numa::parse_list;

use crate::host::shown::Show as _;

const CPU_DIR: &str = "devices/system/cpu";
const NODE_DIR: &str = "devices/system/node";
const HUGEPAGES_DIR: &str = "kernel/mm/hugepages";

/// Times that the machine is read at most while CPUs come and go.
const READS_MAX: usize = 4;
/// Caches of one CPU that are looked at; machines have four or five.
const CACHES_MAX: u32 = 16;
/// What x86 kernels say as the cluster of a CPU whose L2 nobody knows (`BAD_APICID`).
const NO_CLUSTER: u32 = 0xFFFF;
/// The distance of a node to itself (`LOCAL_DISTANCE`).
const LOCAL_DISTANCE: u32 = 10;

/// Why the machine cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum TopologyReadError {
    /// A file that every machine has.
    #[error("{path}: is not there; sysfs and procfs of the host must be mounted at /sys and /proc", path = path.shown())]
    Missing {
        /// Which file.
        path: PathBuf,
    },
    /// A file that is there cannot be read.
    #[error(transparent)]
    Unreadable(FileError),
    /// No list of CPUs.
    #[error("{path}: {error}", path = path.shown())]
    Cpus {
        /// Which file.
        path: PathBuf,
        /// What is wrong with the list.
        error: CpuSetError,
    },
    /// Not what this file has on any kernel that we know.
    #[error("{path}: expected {expected}, found {found:?}; please report it with the kernel's version", path = path.shown())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What should have been there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// The files contradict each other, or the machine is larger than supported.
    #[error("{path}: {error}", path = path.shown())]
    Machine {
        /// The directory of the files.
        path: PathBuf,
        /// What cannot be.
        error: MachineError,
    },
    /// CPUs came and went each time.
    #[error("{path}: CPUs went on- or offline each of {READS_MAX} times while they were read; try again when that is over", path = path.shown())]
    Unsteady {
        /// The list that changed.
        path: PathBuf,
    },
}

impl From<FileError> for TopologyReadError {
    fn from(error: FileError) -> Self {
        if error.is_vanished() {
            let path = error.path().to_owned();
            Self::Missing { path }
        } else {
            Self::Unreadable(error)
        }
    }
}

/// Reads the machine.
///
/// # Errors
/// [`TopologyReadError`] names the file.
pub fn read_machine(host: &HostRoot) -> Result<Machine, TopologyReadError> {
    let cpus = CpuDir(host.sysfs(CPU_DIR));
    for _ in 0..READS_MAX {
        let online = cpus.list("online")?;
        let parts = read_parts(host, &cpus, online);
        if cpus.list("online")? != online {
            continue;
        }
        return Machine::new(parts?).map_err(|error| TopologyReadError::Machine {
            path: cpus.0,
            error,
        });
    }
    Err(TopologyReadError::Unsteady {
        path: cpus.0.join("online"),
    })
}

fn read_parts(host: &HostRoot, dir: &CpuDir, online: CpuSet) -> Result<Parts, TopologyReadError> {
    let offline = dir.list("present")? - online;
    let (nodes, mut node_of) = match read_nodes(&host.sysfs(NODE_DIR), online)? {
        Some(known) => known,
        None => the_only_node(host, online | offline)?,
    };
    for cpu in offline.iter() {
        if let (Some(node), false) = (dir.node(cpu)?, node_of.contains_key(&cpu)) {
            node_of.insert(cpu, node);
        }
    }
    let mut cores = read_cores(dir, online, &node_of)?;
    set_l3(dir, online, &mut cores)?;
    let known = cores
        .iter()
        .fold(CpuSet::EMPTY, |all, core| all | core.cpus);
    // Of a CPU that is offline the kernel tells the node and no more.
    let unknown = offline - known;
    let nowhere = unknown.iter().filter_map(|cpu| {
        let node = Some(*node_of.get(&cpu)?);
        Some(Core {
            cpus: CpuSet::of(cpu),
            node,
            ..Core::default()
        })
    });
    cores.extend(nowhere);
    Ok(Parts {
        name: None,
        cores,
        offline,
        isolated: dir.list_if_there("isolated")?.unwrap_or_default(),
        nodes,
        counts: None,
    })
}

/// `/sys/devices/system/cpu`.
struct CpuDir(PathBuf);

impl CpuDir {
    fn list(&self, name: &str) -> Result<CpuSet, TopologyReadError> {
        let path = self.0.join(name);
        parse_cpus(&path, &read_text(&path)?)
    }

    fn list_if_there(&self, name: &str) -> Result<Option<CpuSet>, TopologyReadError> {
        let path = self.0.join(name);
        let text = text_if_there(&path)?;
        text.map(|text| parse_cpus(&path, &text)).transpose()
    }

    /// A number below `cpuN`; `None` if the file is not there or says -1.
    fn number(&self, cpu: u32, name: &str) -> Result<Option<u32>, TopologyReadError> {
        let path = self.0.join(format!("cpu{cpu}/{name}"));
        let Some(text) = text_if_there(&path)? else {
            return Ok(None);
        };
        match text.trim() {
            "-1" => Ok(None),
            text => number(&path, text).map(Some),
        }
    }

    /// The CPUs of the core. The file has had two names since 5.2, of which the old one may go.
    fn siblings(&self, cpu: u32) -> Result<CpuSet, TopologyReadError> {
        let cpus = match self.list_if_there(&format!("cpu{cpu}/topology/core_cpus_list"))? {
            Some(cpus) => cpus,
            None => self.list(&format!("cpu{cpu}/topology/thread_siblings_list"))?,
        };
        Ok(cpus | CpuSet::of(cpu))
    }

    /// The node of a CPU that is offline, which `cpulist` leaves out: the link `nodeN` in its directory.
    fn node(&self, cpu: u32) -> Result<Option<u32>, TopologyReadError> {
        let path = self.0.join(format!("cpu{cpu}"));
        let links = names(&path)?;
        let mut nodes = links.iter().filter_map(|name| name.strip_prefix("node"));
        Ok(nodes.find_map(|digits| digits.parse().ok()))
    }

    /// The first cache behind the second level: its id, if the kernel gives it one, and who shares it.
    fn l3(&self, cpu: u32) -> Result<Option<(Option<u32>, CpuSet)>, TopologyReadError> {
        for index in 0..CACHES_MAX {
            let cache = format!("cache/index{index}");
            match self.number(cpu, &format!("{cache}/level"))? {
                None => break,
                Some(..3) => {}
                Some(_) => {
                    let id = self.number(cpu, &format!("{cache}/id"))?;
                    let shared = self.list(&format!("cpu{cpu}/{cache}/shared_cpu_list"))?;
                    return Ok(Some((id, shared | CpuSet::of(cpu))));
                }
            }
        }
        Ok(None)
    }
}

/// Cores of the CPUs that are online. Threads on different nodes are different cores, as for the kubelet, which goes
/// node by node.
fn read_cores(
    dir: &CpuDir,
    online: CpuSet,
    node_of: &BTreeMap<u32, u32>,
) -> Result<Vec<Core>, TopologyReadError> {
    let mut cores = Vec::<Core>::new();
    let mut sockets_unknown = Vec::new();
    let mut left = online;
    while let Some(cpu) = left.first() {
        let siblings = dir.siblings(cpu)?;
        let socket = dir.number(cpu, "topology/physical_package_id")?;
        let place = Core {
            cpus: CpuSet::EMPTY,
            socket,
            die: dir.number(cpu, "topology/die_id")?,
            cluster: dir
                .number(cpu, "topology/cluster_id")?
                .filter(|cluster| *cluster != NO_CLUSTER),
            ..Core::default()
        };
        let mut by_node = BTreeMap::<Option<u32>, CpuSet>::new();
        for sibling in siblings.iter() {
            let node = node_of.get(&sibling).copied();
            by_node.entry(node).or_default().insert(sibling);
        }
        for (node, cpus) in by_node {
            if socket.is_none() {
                sockets_unknown.push(cores.len());
            }
            cores.push(Core {
                cpus,
                node,
                ..place
            });
        }
        left -= siblings;
    }
    // CPUs of which no package is known are in one of their own: on most such machines it is the only one.
    let highest = cores.iter().filter_map(|core| core.socket).max();
    let next = highest.map_or(0, |socket| socket.saturating_add(1));
    for core in sockets_unknown {
        cores[core].socket = Some(next);
    }
    forget_clusters_of_one(&mut cores);
    Ok(cores)
}

/// Most servers have a second-level cache per core, and so a "cluster" per core, which says nothing.
fn forget_clusters_of_one(cores: &mut [Core]) {
    let mut sizes = BTreeMap::<_, u32>::new();
    for core in cores.iter() {
        *sizes.entry((core.socket, core.cluster)).or_default() += 1;
    }
    for core in cores {
        if sizes.get(&(core.socket, core.cluster)) == Some(&1) {
            core.cluster = None;
        }
    }
}

/// Numbers the caches: by the kernel's ids if all have one and no two the same, else in the order of their CPUs.
fn set_l3(dir: &CpuDir, online: CpuSet, cores: &mut [Core]) -> Result<(), TopologyReadError> {
    let mut caches = Vec::<(Option<u32>, CpuSet)>::new();
    let mut left = online;
    while let Some(cpu) = left.first() {
        left.remove(cpu);
        if let Some((id, shared)) = dir.l3(cpu)? {
            left -= shared;
            caches.push((id, shared));
        }
    }
    let mut ids: Vec<u32> = caches.iter().filter_map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() != caches.len() {
        for ((id, _), position) in caches.iter_mut().zip(0..) {
            *id = Some(position);
        }
    }
    let mut l3_of = BTreeMap::<u32, u32>::new();
    for (id, shared) in &caches {
        let id = id.unwrap_or_default();
        l3_of.extend(shared.iter().map(|cpu| (cpu, id)));
    }
    for core in cores {
        let threads = core.cpus & online;
        core.l3 = threads.iter().find_map(|cpu| l3_of.get(&cpu).copied());
    }
    Ok(())
}

/// Nodes, and the node of each online CPU.
type Nodes = (Vec<NumaNode>, BTreeMap<u32, u32>);

/// `None` on a kernel without NUMA.
fn read_nodes(dir: &Path, online: CpuSet) -> Result<Option<Nodes>, TopologyReadError> {
    let path = dir.join("online");
    let Some(text) = text_if_there(&path)? else {
        return Ok(None);
    };
    let malformed = |path: &Path, expected, found: &str| TopologyReadError::Malformed {
        path: path.to_owned(),
        expected,
        found: found.trim().to_owned(),
    };
    let mut nodes = Vec::new();
    let mut node_of = BTreeMap::new();
    let ids = parse_list(text.trim().as_bytes());
    for id in ids.ok_or_else(|| malformed(&path, "a list of nodes such as 0-1,4", &text))? {
        let dir = dir.join(format!("node{id}"));
        let path = dir.join("cpulist");
        for cpu in (parse_cpus(&path, &read_text(&path)?)? & online).iter() {
            // With emulated nodes (numa=fake) a CPU is on several; the kernel takes the first for its own.
            node_of.entry(cpu).or_insert(id);
        }
        let path = dir.join("meminfo");
        let memory_bytes = match text_if_there(&path)? {
            None => None,
            Some(text) => {
                let prefix = format!("Node {id} ");
                let total = parse_lines(text.as_bytes(), prefix.as_bytes(), &["MemTotal"]);
                let [total] = total.unwrap_or_default();
                let expected = "a line `Node N MemTotal: NUMBER kB`";
                Some(total.ok_or_else(|| malformed(&path, expected, &text))?)
            }
        };
        let path = dir.join("distance");
        let distances = match text_if_there(&path)? {
            None => None,
            Some(text) => {
                let row = text.split_whitespace().map(|word| number(&path, word));
                Some(row.collect::<Result<Vec<u32>, _>>()?)
            }
        };
        nodes.push(NumaNode {
            id,
            memory_bytes,
            hugepages: read_hugepages(&dir.join("hugepages"))?,
            distances,
        });
    }
    Ok(Some((nodes, node_of)))
}

/// A kernel without NUMA has node 0: `cpuset.mems` takes no other.
fn the_only_node(host: &HostRoot, cpus: CpuSet) -> Result<Nodes, TopologyReadError> {
    let path = host.procfs("meminfo");
    let text = read_text(&path)?;
    let [total] = parse_lines(text.as_bytes(), b"", &["MemTotal"]).unwrap_or_default();
    let node = NumaNode {
        id: 0,
        memory_bytes: Some(total.ok_or_else(|| TopologyReadError::Malformed {
            path,
            expected: "a line `MemTotal: NUMBER kB`",
            found: text.lines().next().unwrap_or_default().to_owned(),
        })?),
        hugepages: read_hugepages(&host.sysfs(HUGEPAGES_DIR))?,
        distances: Some(vec![LOCAL_DISTANCE]),
    };
    Ok((vec![node], cpus.iter().map(|cpu| (cpu, 0)).collect()))
}

/// All sizes that the kernel offers, also those without pages; none where it has no huge pages.
fn read_hugepages(dir: &Path) -> Result<Vec<HugePages>, TopologyReadError> {
    let mut sizes = Vec::new();
    for name in names(dir)? {
        let digits = name
            .strip_prefix("hugepages-")
            .and_then(|size| size.strip_suffix("kB"));
        let Some(kib) = digits.and_then(|digits| parse_u64(digits.as_bytes())) else {
            continue;
        };
        let path = dir.join(&name).join("nr_hugepages");
        let text = read_text(&path)?;
        let pages = parse_u64(text.trim().as_bytes());
        sizes.push(HugePages {
            page_bytes: kib.saturating_mul(1024),
            pages: pages.ok_or_else(|| TopologyReadError::Malformed {
                path,
                expected: "a number of pages",
                found: text.trim().to_owned(),
            })?,
        });
    }
    Ok(sizes)
}

/// What is in a directory; nothing if it is not there.
fn names(dir: &Path) -> Result<Vec<String>, TopologyReadError> {
    let unreadable = |error: std::io::Error| FileError::Unreadable {
        path: dir.into(),
        source: super::file::errno_of(&error),
    };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error).into()),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        names.extend(name.into_string());
    }
    names.sort_unstable();
    Ok(names)
}

fn text_if_there(path: &Path) -> Result<Option<String>, FileError> {
    match read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_vanished() => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse_cpus(path: &Path, text: &str) -> Result<CpuSet, TopologyReadError> {
    CpuSet::parse(text).map_err(|error| TopologyReadError::Cpus {
        path: path.to_owned(),
        error,
    })
}

fn number(path: &Path, text: &str) -> Result<u32, TopologyReadError> {
    let number = parse_u64(text.as_bytes()).and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| TopologyReadError::Malformed {
        path: path.to_owned(),
        expected: "a whole number",
        found: text.to_owned(),
    })
}

#[cfg(test)]
mod tests;
