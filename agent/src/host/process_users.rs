//! The users of a process.

use super::HostRoot;
use super::file::read_whole;

/// Users of a process, from its `status`. The owner of its directory in `/proc` says less: that is root for a process
/// that allows no core dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUsers {
    /// Who started it: a setuid bit changes only the other one.
    pub real: u32,
    /// By whose rights it acts.
    pub effective: u32,
}

impl ProcessUsers {
    /// Of this process; `None` if it is gone or not shown. A name in the first line is escaped.
    pub fn of(host: &HostRoot, pid: u32) -> Option<Self> {
        let status = read_whole(host.procfs(format!("{pid}/status"))).ok()?;
        let mut lines = status.split(|byte| *byte == b'\n');
        let uids = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
        let mut uids = std::str::from_utf8(uids).ok()?.split_ascii_whitespace();
        let mut next = || uids.next()?.parse().ok();
        Some(Self {
            real: next()?,
            effective: next()?,
        })
    }
}
