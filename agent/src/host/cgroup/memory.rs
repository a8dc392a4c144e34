//! What a cgroup uses of memory, and its limit: files of v1 and v2 that are opened once.

use plimsoll_core::model::page_cache::lazily_freed_bytes;

use super::{CgroupError, CgroupMounts, CgroupPath, Controller, Version};
use crate::host::file::{ControlFile, FileError};

/// What of a cgroup's usage may not count as used: its pages on the kernel's lists of file pages, in which tmpfs and
/// shared memory are not, and its huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageCache {
    /// What the kernel drops first; the working set is the usage less this.
    pub inactive_file_bytes: u64,
    /// What was used more than once lately. It can be dropped too.
    pub active_file_bytes: u64,
    /// What of these two is no page cache, but memory after `madvise(MADV_FREE)`.
    pub lazily_freed_bytes: u64,
    /// Huge pages (hugetlbfs), where the usage has them: on cgroup v2 that is mounted with `memory_hugetlb_accounting`,
    /// as newer versions of systemd do. Linux has the line from 6.13 on; before, it is 0.
    pub huge_page_bytes: u64,
}

/// A cgroup's usage and statistics files, opened once.
#[derive(Debug)]
pub struct PodMemoryFiles {
    usage: ControlFile,
    stat: ControlFile,
    cache_keys: [&'static str; 5],
}

impl PodMemoryFiles {
    /// Opens the memory files of a cgroup in the hierarchy that has the memory controller.
    ///
    /// # Errors
    /// [`CgroupError::NoController`] without a memory controller; [`FileError::Vanished`] when the cgroup does not
    /// exist.
    pub fn open(mounts: &CgroupMounts, path: &CgroupPath) -> Result<Self, CgroupError> {
        let hierarchy = mounts.hierarchy_of(Controller::Memory)?;
        let dir = hierarchy.dir(path);
        // v1's total_ lines are the hierarchical ones, which is what v2 always shows.
        let (usage, cache_keys) = match hierarchy.version {
            Version::V1 => (
                "memory.usage_in_bytes",
                [
                    "total_inactive_file",
                    "total_active_file",
                    "total_cache",
                    "total_shmem",
                    // v1 does not count them.
                    "total_hugetlb",
                ],
            ),
            Version::V2 => (
                "memory.current",
                ["inactive_file", "active_file", "file", "shmem", "hugetlb"],
            ),
        };
        let usage = ControlFile::open(dir.join(usage))?;
        let stat = ControlFile::open(dir.join("memory.stat"))?;
        Ok(Self {
            usage,
            stat,
            cache_keys,
        })
    }

    /// The page cache and huge pages. `memory.stat` is some fifty times as dear as the usage: the kernel flushes
    /// statistics for it.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the cgroup is gone.
    pub fn read_cache(&self) -> Result<PageCache, FileError> {
        let [inactive_file, active_file, file, shmem, hugetlb] =
            self.stat.read_keyed(&self.cache_keys)?;
        let (Some(inactive_file_bytes), Some(active_file_bytes)) = (inactive_file, active_file)
        else {
            let expected = "a line inactive_file and a line active_file";
            return Err(self.stat.malformed(0, expected));
        };
        Ok(PageCache {
            inactive_file_bytes,
            active_file_bytes,
            lazily_freed_bytes: lazily_freed_bytes(
                inactive_file_bytes.saturating_add(active_file_bytes),
                file,
                shmem,
            ),
            huge_page_bytes: hugetlb.unwrap_or(0),
        })
    }

    /// Only the usage, which is one system call.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the cgroup is gone.
    pub fn read_usage_bytes(&self) -> Result<u64, FileError> {
        self.usage.read_u64()
    }
}

/// A limit beyond this is none (`isMemoryUnlimited` of the kubelet): v1 rounds the largest number down to whole pages.
pub const UNLIMITED_BYTES: u64 = 1 << 62;

/// The file with a cgroup's memory limit, opened once.
#[derive(Debug)]
pub struct MemoryLimitFile(ControlFile);

impl MemoryLimitFile {
    /// Opens it in the hierarchy that has the memory controller.
    ///
    /// # Errors
    /// [`CgroupError::NoController`] without a memory controller; [`FileError::Vanished`] when the cgroup does not
    /// exist.
    pub fn open(mounts: &CgroupMounts, path: &CgroupPath) -> Result<Self, CgroupError> {
        let hierarchy = mounts.hierarchy_of(Controller::Memory)?;
        let name = match hierarchy.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        Ok(Self(ControlFile::open(hierarchy.dir(path).join(name))?))
    }

    /// The limit, bytes; `None`: there is none. Allocates nothing.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the cgroup is gone.
    pub fn read_bytes(&self) -> Result<Option<u64>, FileError> {
        let limit = self.0.read_u64()?;
        Ok((limit < UNLIMITED_BYTES).then_some(limit))
    }
}
