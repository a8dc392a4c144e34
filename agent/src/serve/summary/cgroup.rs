//! One cgroup's figures, from files that are opened, read and closed.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::clock::Clock;
use super::rate::Rates;
use super::shape::{CpuStats, IoStats, MemoryStats, PsiStats, SwapStats};
use crate::host::cgroup::{CGROUP_DEPTH_MAX, UNLIMITED_BYTES};
use crate::host::cgroup::{CgroupMounts, CgroupPath, Controller, CpuTimeFile, Hierarchy, Version};
use crate::host::file::{parse_u64, read_text};
use crate::host::pressure::read_stalls;
use crate::pods::cgroup::children;

#[derive(Debug, Clone, Copy)]
pub(super) struct CgroupReader<'a> {
    pub(super) mounts: &'a CgroupMounts,
    pub(super) rates: &'a Rates,
    pub(super) clock: &'a Clock,
}

impl CgroupReader<'_> {
    /// Its directory in the hierarchy that accounts memory.
    pub(super) fn memory_dir(&self, cgroup: &CgroupPath) -> Option<PathBuf> {
        Some(self.of(Controller::Memory)?.dir(cgroup))
    }

    fn of(&self, controller: Controller) -> Option<&Hierarchy> {
        self.mounts.hierarchy_of(controller).ok()
    }

    /// CPU time.
    pub(super) fn cpu(&self, cgroup: &CgroupPath) -> Option<CpuStats> {
        let hierarchy = self.mounts.hierarchy_of_cpu_time().ok()?;
        let dir = hierarchy.dir(cgroup);
        let usage_ns = CpuTimeFile::open(self.mounts, cgroup)
            .ok()?
            .read_ns()
            .ok()?;
        Some(CpuStats {
            time: self.clock.time(),
            usage_nano_cores: self.rates.nano_cores(&dir, Instant::now(), usage_ns),
            usage_core_nano_seconds: Some(usage_ns),
            psi: psi(hierarchy, &dir, "cpu.pressure"),
        })
    }

    /// Memory, as cAdvisor reads it.
    pub(super) fn memory(&self, cgroup: &CgroupPath) -> Option<MemoryStats> {
        let hierarchy = self.of(Controller::Memory)?;
        let dir = hierarchy.dir(cgroup);
        let (usage, limit, keys) = match hierarchy.version {
            Version::V1 => (
                "memory.usage_in_bytes",
                "memory.limit_in_bytes",
                [
                    "total_inactive_file",
                    "total_rss",
                    "total_pgfault",
                    "total_pgmajfault",
                ],
            ),
            Version::V2 => (
                "memory.current",
                "memory.max",
                ["inactive_file", "anon", "pgfault", "pgmajfault"],
            ),
        };
        let usage_bytes = number(&dir, usage)?;
        let [inactive_file, rss_bytes, page_faults, major_page_faults] =
            keyed(&dir, "memory.stat", keys);
        let working_set_bytes = inactive_file.map(|file| usage_bytes.saturating_sub(file));
        let limit = number(&dir, limit).filter(|limit| *limit < UNLIMITED_BYTES);
        Some(MemoryStats {
            time: self.clock.time(),
            available_bytes: limit
                .zip(working_set_bytes)
                .map(|(limit, used)| limit.saturating_sub(used)),
            usage_bytes: Some(usage_bytes),
            working_set_bytes,
            rss_bytes,
            page_faults,
            major_page_faults,
            psi: psi(hierarchy, &dir, "memory.pressure"),
        })
    }

    /// Minor and major ones together, and the latter.
    pub(super) fn page_faults(&self, cgroup: &CgroupPath) -> [Option<u64>; 2] {
        let Some(hierarchy) = self.of(Controller::Memory) else {
            return [None; 2];
        };
        let keys = match hierarchy.version {
            Version::V1 => ["total_pgfault", "total_pgmajfault"],
            Version::V2 => ["pgfault", "pgmajfault"],
        };
        keyed(&hierarchy.dir(cgroup), "memory.stat", keys)
    }

    /// Swap; `None` where it is not counted.
    pub(super) fn swap(&self, cgroup: &CgroupPath) -> Option<SwapStats> {
        let hierarchy = self.of(Controller::Memory)?;
        let dir = hierarchy.dir(cgroup);
        let (used, limit) = match hierarchy.version {
            // v1 limits memory and swap together: what is left for swap depends on the memory.
            Version::V1 => (keyed(&dir, "memory.stat", ["total_swap"])[0]?, None),
            Version::V2 => (
                number(&dir, "memory.swap.current")?,
                number(&dir, "memory.swap.max").filter(|limit| *limit < UNLIMITED_BYTES),
            ),
        };
        Some(SwapStats {
            time: self.clock.time(),
            swap_available_bytes: limit.map(|limit| limit.saturating_sub(used)),
            swap_usage_bytes: Some(used),
        })
    }

    /// Waits for disks.
    pub(super) fn io(&self, cgroup: &CgroupPath) -> Option<IoStats> {
        let hierarchy = self.of(Controller::Io).or(self.mounts.unified())?;
        let psi = psi(hierarchy, &hierarchy.dir(cgroup), "io.pressure")?;
        Some(IoStats {
            time: self.clock.time(),
            psi: Some(psi),
        })
    }

    /// Processes in the cgroup and below it (`cgroup.procs`, as cAdvisor counts them).
    pub(super) fn processes(&self, dir: &Path) -> Option<Processes> {
        processes(dir)
    }
}

/// The processes of a cgroup.
#[derive(Debug, Clone, Copy)]
pub(super) struct Processes {
    /// `None`: they are in more cgroups than are read.
    pub(super) count: Option<u64>,
    /// The first that is found, from above.
    pub(super) first: Option<u32>,
}

/// Cgroups of one pod that are read for one answer. A pod that may make cgroups makes as many as it likes, and the
/// thread answers probes as well.
const CGROUPS_READ_MAX: usize = 256;

fn processes(dir: &Path) -> Option<Processes> {
    let mut found = Processes {
        count: Some(0),
        first: None,
    };
    let mut left = CGROUPS_READ_MAX;
    found.add_below(dir, CGROUP_DEPTH_MAX, &mut left)?;
    Some(found)
}

impl Processes {
    /// `left`: how many cgroups may still be read. With none left the count is unknown. `None`: this cgroup cannot be
    /// read.
    fn add_below(&mut self, dir: &Path, depth_left: usize, left: &mut usize) -> Option<()> {
        let Some(rest) = left.checked_sub(1) else {
            self.count = None;
            return None;
        };
        *left = rest;
        let text = read_text(dir.join("cgroup.procs")).ok()?;
        let count = text.lines().count() as u64;
        self.count = self.count.map(|counted| counted.saturating_add(count));
        let pids = || text.lines().find_map(|pid| pid.parse().ok());
        self.first = self.first.or_else(pids);
        if depth_left > 0 {
            for name in children(dir).unwrap_or_default() {
                self.add_below(&dir.join(name), depth_left - 1, left);
                if self.count.is_none() {
                    break;
                }
            }
        }
        Some(())
    }
}

fn psi(hierarchy: &Hierarchy, dir: &Path, file: &str) -> Option<PsiStats> {
    // v1 has none.
    let is_v2 = hierarchy.version == Version::V2;
    let stalls = is_v2.then(|| read_stalls(dir.join(file)).ok())??;
    Some(stalls.into())
}

/// A file with one number; `None` also for `max`.
fn number(dir: &Path, file: &str) -> Option<u64> {
    parse_u64(read_text(dir.join(file)).ok()?.trim().as_bytes())
}

/// Lines `KEY NUMBER`.
fn keyed<const N: usize>(dir: &Path, file: &str, keys: [&str; N]) -> [Option<u64>; N] {
    let text = read_text(dir.join(file)).unwrap_or_default();
    let mut values = [None; N];
    for line in text.lines() {
        if let Some((key, value)) = line.split_once(' ')
            && let Some(at) = keys.iter().position(|it| *it == key)
        {
            values[at] = parse_u64(value.trim().as_bytes());
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_in_more_cgroups_than_are_read_are_not_counted() {
        let pod = tempfile::tempdir().unwrap();
        let make = |name: &str, pids: &str| {
            let dir = pod.path().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cgroup.procs"), pids).unwrap();
        };
        make("", "");
        make("a", "7\n8\n");
        make("a/b", "9\n");
        let found = processes(pod.path()).unwrap();
        assert_eq!((found.count, found.first), (Some(3), Some(7)));
        for at in 0..CGROUPS_READ_MAX {
            make(&format!("many/{at}"), "10\n");
        }
        make("many", "");
        assert_eq!(processes(pod.path()).unwrap().count, None);
        assert!(processes(&pod.path().join("none")).is_none());
    }
}
