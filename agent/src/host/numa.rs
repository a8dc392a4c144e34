//! Memory per NUMA node: of the machine, and of one pod.
//!
//! **Problem.** One NUMA node can be full while the machine has plenty, and a task bound to it is then killed all the
//! same (`CONSTRAINT_MEMORY_POLICY`). Nodes come and go: memory is hot-plugged, and a node may have CPUs only.
//! **Approach.** The kernel lists the nodes that have memory in `/sys/devices/system/node/has_memory`. That list is
//! read each time, and when it has changed the nodes' own files are opened anew; otherwise a reading is one `pread` per
//! node, and one per size of its huge pages. Memory that is reserved for those is not the node's to give: it is left
//! out of what it has. Sources: drivers/base/node.c `node_read_meminfo`; mm/memcontrol.c `memory_numa_stat_show`,
//! mm/memcontrol-v1.c `memcg_numa_stat_show`.

use std::sync::Arc;

use plimsoll_core::model::page_cache::{lazily_freed_bytes, node_lazily_freed_bytes};
use plimsoll_core::model::reading::NumaMemory;

use super::HostRoot;
use super::cgroup::{CgroupError, CgroupMounts, CgroupPath, Controller, Version};
use super::file::{ControlFile, FileError, parse_u64, read_text};
use super::meminfo::parse_lines;

/// NUMA nodes that are looked at (the kernel's own limit is 1024, `CONFIG_NODES_SHIFT` 10).
pub const NUMA_NODES_MAX: usize = 1024;

const NODE_DIR: &str = "devices/system/node";
/// Huge page sizes of a machine: more than any has.
const PAGE_SIZES_MAX: usize = 16;
const NODE_LIST_BYTES_MAX: usize = 1024;
const MEMINFO_BYTES_MAX: usize = 4096;
/// 30 lines on 7.2, each with up to 25 bytes per node: enough for 80 nodes.
const NUMA_STAT_BYTES_MAX: usize = 64 * 1024;
const LINES: [&str; 8] = [
    "MemTotal",
    "MemFree",
    "AnonPages",
    "FilePages",
    "Inactive(file)",
    "Active(file)",
    "Shmem",
    "SwapCached",
];
/// Is not there before 5.12, or without swap: then 0.
const LINE_OPTIONAL: &str = "SwapCached";

/// The list of nodes and each node's meminfo, open.
#[derive(Debug)]
pub struct NumaFiles {
    host: HostRoot,
    list: ControlFile,
    /// The list's text when `nodes` were opened.
    listed: Vec<u8>,
    /// By ascending number.
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    number: u32,
    /// `Node 0 `, as each line of its file begins.
    prefix: String,
    meminfo: ControlFile,
    pools: Vec<Pool>,
}

/// The huge pages of one size on a node.
#[derive(Debug)]
struct Pool {
    page_bytes: u64,
    /// How many there are, in use or not.
    pages: ControlFile,
}

/// Whether all memory is on one node now; `false` where that cannot be known.
pub fn has_one_node(host: &HostRoot) -> bool {
    match read_text(host.sysfs(NODE_DIR).join("has_memory")) {
        Ok(text) => parse_list(text.trim().as_bytes()).is_some_and(|nodes| nodes.len() == 1),
        // A kernel without NUMA.
        Err(error) => error.is_vanished(),
    }
}

impl NumaFiles {
    /// Opens the files of all nodes that have memory now.
    ///
    /// # Errors
    /// [`FileError::Vanished`] on a kernel without NUMA: there is one node, and its memory is the machine's.
    pub fn open(host: &HostRoot) -> Result<Self, FileError> {
        let list = ControlFile::open(host.sysfs(NODE_DIR).join("has_memory"))?;
        let mut files = Self {
            host: host.clone(),
            list,
            listed: Vec::new(),
            nodes: Vec::new(),
        };
        files.follow_list()?;
        Ok(files)
    }

    /// How many nodes have memory, as of the last reading.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no node has memory, which cannot be on a machine that runs.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Reads every node into `into`, by ascending number. Allocates nothing if `into` has room and no node came or
    /// went.
    ///
    /// A node that is being removed at this moment, or has no memory left, is missing.
    ///
    /// # Errors
    /// When the list or a node's file cannot be read; `into` then has the nodes before it.
    pub fn read(&mut self, into: &mut Vec<NumaMemory>) -> Result<(), FileError> {
        into.clear();
        self.follow_list()?;
        for node in &self.nodes {
            match node.read() {
                Ok(memory) if memory.capacity_bytes > 0 => into.push(memory),
                Ok(_) => {}
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Opens the nodes anew if the list has changed.
    fn follow_list(&mut self) -> Result<(), FileError> {
        let mut buffer = [0; NODE_LIST_BYTES_MAX];
        let listed = self.list.read_into(&mut buffer)?;
        if listed == self.listed {
            return Ok(());
        }
        self.nodes.clear();
        let numbers = parse_list(listed.trim_ascii())
            .ok_or_else(|| self.list.malformed(1, "a list of node numbers, as 0-1,4"))?;
        for number in numbers {
            let path = self
                .host
                .sysfs(NODE_DIR)
                .join(format!("node{number}/meminfo"));
            match ControlFile::open(path) {
                Ok(meminfo) => self.nodes.push(Node {
                    number,
                    prefix: format!("Node {number} "),
                    meminfo,
                    pools: pools(&self.host, number),
                }),
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        self.listed.clear();
        self.listed.extend_from_slice(listed);
        Ok(())
    }
}

impl Node {
    fn read(&self) -> Result<NumaMemory, FileError> {
        let mut buffer = [0; MEMINFO_BYTES_MAX];
        let text = self.meminfo.read_into(&mut buffer)?;
        let values = parse_lines(text, self.prefix.as_bytes(), &LINES)
            .map_err(|(line, expected)| self.meminfo.malformed(line, expected))?;
        for (value, name) in values.iter().zip(LINES) {
            if value.is_none() && name != LINE_OPTIONAL {
                return Err(self.meminfo.malformed(0, name));
            }
        }
        let [
            capacity,
            free,
            anon,
            file,
            inactive_file,
            active_file,
            shmem,
            swap_cached,
        ] = values.map(Option::unwrap_or_default);
        Ok(NumaMemory {
            node: self.number,
            capacity_bytes: capacity.saturating_sub(self.huge_page_bytes()?),
            free_bytes: free,
            anon_bytes: anon,
            file_bytes: file,
            inactive_file_bytes: inactive_file,
            lazily_freed_bytes: node_lazily_freed_bytes(
                inactive_file.saturating_add(active_file),
                file.saturating_sub(swap_cached),
                shmem,
            ),
        })
    }
}

impl Node {
    /// What is reserved for huge pages: in all memory of the node, and in nothing that is used of it.
    fn huge_page_bytes(&self) -> Result<u64, FileError> {
        let mut bytes: u64 = 0;
        for pool in &self.pools {
            let pages = pool.pages.read_u64()?;
            bytes = bytes.saturating_add(pages.saturating_mul(pool.page_bytes));
        }
        Ok(bytes)
    }
}

/// A node's pools of huge pages; none where the kernel has no huge pages.
fn pools(host: &HostRoot, node: u32) -> Vec<Pool> {
    let dir = host.sysfs(NODE_DIR).join(format!("node{node}/hugepages"));
    let entries = std::fs::read_dir(&dir).into_iter().flatten();
    let pool = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.ok()?.file_name();
        let size = name.to_str()?.strip_prefix("hugepages-")?;
        let size_kb: u64 = size.strip_suffix("kB")?.parse().ok()?;
        Some(Pool {
            page_bytes: size_kb.checked_mul(1024)?,
            pages: ControlFile::open(dir.join(&name).join("nr_hugepages")).ok()?,
        })
    };
    entries.take(PAGE_SIZES_MAX).filter_map(pool).collect()
}

/// `0-1,4` as numbers; at most [`NUMA_NODES_MAX`]. An empty list is a list of none.
pub(crate) fn parse_list(text: &[u8]) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    if text.is_empty() {
        return Some(numbers);
    }
    for range in text.split(|byte| *byte == b',') {
        let mut ends = range.splitn(2, |byte| *byte == b'-');
        let number = |digits| u32::try_from(parse_u64(digits)?).ok();
        let first = number(ends.next()?)?;
        let last = ends.next().map_or(Some(first), number)?;
        let room = NUMA_NODES_MAX - numbers.len();
        numbers.extend((first..=last).take(room));
    }
    Some(numbers)
}

/// What a pod has on one NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodNumaMemory {
    /// Anonymous memory.
    pub anon_bytes: u64,
    /// Page cache.
    pub file_bytes: u64,
    /// Page cache that the kernel drops first; 0 on v1, which does not say.
    pub inactive_file_bytes: u64,
    /// What is on the lists of page cache and is none, but memory after `madvise(MADV_FREE)`; 0 on v1.
    pub lazily_freed_bytes: u64,
    /// Kernel stacks, page tables and slab; 0 on v1, which does not say.
    pub kernel_bytes: u64,
}

impl PodNumaMemory {
    /// What would come back on this node if the pod were gone, and not before: the working set, as for the node as a
    /// whole.
    pub fn working_set_bytes(&self) -> u64 {
        let inactive_bytes = self
            .inactive_file_bytes
            .saturating_sub(self.lazily_freed_bytes);
        (self.anon_bytes + self.file_bytes + self.kernel_bytes).saturating_sub(inactive_bytes)
    }
}

/// A pod's `memory.numa_stat`, opened once. Its figures include the cgroups below.
#[derive(Debug)]
pub struct PodNumaFile {
    stat: ControlFile,
    version: Version,
}

/// Keys of v2, in bytes, and which figure each belongs to.
const KEYS_V2: [&str; 9] = [
    "anon",
    "file",
    "inactive_file",
    "active_file",
    "shmem",
    "kernel_stack",
    "pagetables",
    "slab_reclaimable",
    "slab_unreclaimable",
];
/// Keys of v1, in pages.
const KEYS_V1: [&str; 2] = ["hierarchical_anon", "hierarchical_file"];

impl PodNumaFile {
    /// Opens the file in the hierarchy that accounts memory.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the cgroup is gone, or the kernel has no such file (v2 before 5.10, or without
    /// NUMA).
    pub fn open(mounts: &CgroupMounts, pod: &CgroupPath) -> Result<Self, CgroupError> {
        let memory = mounts.hierarchy_of(Controller::Memory)?;
        Ok(Self {
            stat: ControlFile::open(memory.dir(pod).join("memory.numa_stat"))?,
            version: memory.version,
        })
    }

    /// What the pod has on the NUMA node `node`; nothing where the file does not list the node. Allocates nothing.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the cgroup is gone.
    pub fn read(&self, node: u32) -> Result<PodNumaMemory, FileError> {
        let mut buffer = [0; NUMA_STAT_BYTES_MAX];
        let text = self.stat.read_into(&mut buffer)?;
        let malformed = |line| self.stat.malformed(line, "KEY N0=NUMBER N1=NUMBER …");
        match self.version {
            Version::V2 => {
                let [anon, file, inactive_file, active_file, shmem, kernel @ ..] =
                    parse_stat(text, node, &KEYS_V2).map_err(malformed)?;
                Ok(PodNumaMemory {
                    anon_bytes: anon,
                    file_bytes: file,
                    inactive_file_bytes: inactive_file,
                    lazily_freed_bytes: lazily_freed_bytes(
                        inactive_file.saturating_add(active_file),
                        Some(file),
                        Some(shmem),
                    ),
                    kernel_bytes: kernel.iter().sum(),
                })
            }
            Version::V1 => {
                let pages = parse_stat(text, node, &KEYS_V1).map_err(malformed)?;
                let page_bytes = rustix::param::page_size() as u64;
                let [anon_bytes, file_bytes] = pages.map(|pages| pages.saturating_mul(page_bytes));
                Ok(PodNumaMemory {
                    anon_bytes,
                    file_bytes,
                    ..PodNumaMemory::default()
                })
            }
        }
    }

    /// The file's path.
    pub fn path(&self) -> &Arc<std::path::Path> {
        self.stat.path()
    }
}

/// The figures of one node: v2 has lines `KEY N0=1 N1=2`, v1 `KEY=3 N0=1 N1=2`. The error is the line, from 1.
fn parse_stat<const N: usize>(text: &[u8], node: u32, keys: &[&str; N]) -> Result<[u64; N], u32> {
    let mut values = [0; N];
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1_u32..) {
        let mut words = line.split(|byte| *byte == b' ');
        let name = words
            .next()
            .and_then(|word| word.split(|byte| *byte == b'=').next());
        let Some(index) = keys.iter().position(|key| Some(key.as_bytes()) == name) else {
            continue;
        };
        for word in words {
            let mut sides = word
                .strip_prefix(b"N")
                .ok_or(number)?
                .splitn(2, |byte| *byte == b'=');
            let (of, value) = (sides.next(), sides.next());
            if of.and_then(parse_u64).ok_or(number)? == u64::from(node) {
                values[index] = value.and_then(parse_u64).ok_or(number)?;
            }
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests;
