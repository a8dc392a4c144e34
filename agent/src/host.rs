//! The host: every file of `/proc`, `/sys` and the cgroup mounts that Plimsoll reads or writes, and the few system
//! calls beside them.
//!
//! **Problem.** A node agent reads the same dozen kernel files thousands of times, must not allocate while memory is
//! gone, and has to be tested on machines that have other mounts than the one at hand. **Approach.** Everything starts
//! at a [`HostRoot`], which is `/` in production and a temporary directory in tests; there is no global. Files that
//! matter on the way from a record to a kill are opened once ([`ControlFile`]) and read by `pread` into a buffer on the
//! stack. Everything that is changed goes through the ledger in [`ledger`], so it can be changed back. **Terms.**
//! *hierarchy*: one mounted cgroup tree (the v2 tree, or one v1 tree per group of controllers). *setting*: a kernel
//! file whose value Plimsoll changed. *first process*: of a container, the one that a container runtime would send
//! SIGTERM to.
#![deny(unsafe_code)]

pub mod capabilities;
pub mod output;
pub mod panics;

pub mod agent_caches;
pub mod cgroup;
pub mod cgroup_paths;
pub mod child_program;
pub mod clock;
pub mod cpuset;
pub mod exit_status;
pub mod file;
pub mod flock;
pub(crate) mod fnv;
pub mod handover;
pub mod irq;
pub mod ledger;
pub mod meminfo;
#[cfg(test)]
pub(crate) mod mounted;
pub mod network_namespace;
pub mod numa;
pub mod pressure;
pub mod process_users;
pub mod processes;
pub mod program;
pub mod protect;
pub mod runtime_program;
pub mod sd_notify;
pub mod socket_queues;
pub mod state_dir;
pub mod state_lock;
pub mod stop;
pub mod swap;
#[expect(unsafe_code, reason = "the system calls that rustix does not wrap")]
pub mod syscall;
pub mod topology;
pub mod unwind_tables;
pub mod vmstat;
pub mod wake_fd;
pub mod worker;
pub mod zoneinfo;

use std::path::{Path, PathBuf};

pub use cgroup::{
    CgroupError, CgroupMounts, CgroupPath, Controller, Hierarchy, Layout, PodMemoryFiles, Version,
};
pub use file::{ControlFile, FileError};
pub use ledger::Ledger;
pub use meminfo::{MeminfoFile, NodeMemory};
// Paths, names and texts of others; every program of a node prints them so.
pub use plimsoll_core::shown;

/// Where the host's file system starts: `/`, or a directory that looks like one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoot(PathBuf);

impl HostRoot {
    /// A host whose `/` is the directory `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// The machine that we run on.
    pub fn live() -> Self {
        Self::new("/")
    }

    /// The place of the absolute host path `path` below this root.
    ///
    /// `path` may be written with or without its leading `/`.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A file of procfs, for example `procfs("meminfo")`.
    pub fn procfs(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join("proc").join(path)
    }

    /// A file of sysfs, for example `sysfs("devices/system/node")`.
    pub fn sysfs(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join("sys").join(path)
    }

    /// Which cgroup hierarchies are mounted, and which controllers live where.
    ///
    /// # Errors
    /// When `/proc/self/mounts` cannot be read or no cgroup file system is mounted.
    pub fn cgroup_mounts(&self) -> Result<CgroupMounts, CgroupError> {
        CgroupMounts::discover(self)
    }
}

impl Default for HostRoot {
    fn default() -> Self {
        Self::live()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_start_at_the_root() {
        let host = HostRoot::new("/tmp/h");
        assert_eq!(
            host.path("/sys/fs/cgroup"),
            Path::new("/tmp/h/sys/fs/cgroup")
        );
        assert_eq!(host.path("run"), Path::new("/tmp/h/run"));
        assert_eq!(host.procfs("meminfo"), Path::new("/tmp/h/proc/meminfo"));
        assert_eq!(HostRoot::live().sysfs("devices"), Path::new("/sys/devices"));
    }
}
