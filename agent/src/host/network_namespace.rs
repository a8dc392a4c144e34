//! Which network namespace a process is in.

use std::fmt::Display;
use std::fs::metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::HostRoot;

/// What tells one network namespace from another.
///
/// The files below `/proc/PID/net` are those of the process's namespace, and each namespace's have inodes of their own.
/// `/proc/PID/ns/net` would need CAP_SYS_PTRACE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetworkNamespace {
    device: u64,
    inode: u64,
}

impl NetworkNamespace {
    /// That of a process (`PID`) or a thread (`PID/task/TID`); `None` if it is gone. Of a process whose first thread
    /// has ended only the others are in one.
    pub fn of(host: &HostRoot, task: impl Display) -> Option<Self> {
        Self::of_file(&host.procfs(format!("{task}/net/dev")))
    }

    /// That of the machine's first process.
    pub fn of_node(host: &HostRoot) -> Option<Self> {
        Self::of(host, 1)
    }

    fn of_file(path: &Path) -> Option<Self> {
        let file = metadata(path).ok()?;
        Some(Self {
            device: file.dev(),
            inode: file.ino(),
        })
    }
}
