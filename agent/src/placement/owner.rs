//! Somebody else who manages cpusets: then we do not.
//!
//! **Problem.** Two that write the same cpusets undo each other's placements every few seconds, and both believe in theirs.
//! **Approach.** The kubelet is known by its state files: a policy other than `none` in one of them, and a kubelet that runs. Anybody else is known
//! by what happens: a set that we wrote has another value each time we look.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::kubelet_state::{
    CPU_MANAGER_STATE, CPU_POLICY_STATIC, MEMORY_MANAGER_STATE, MEMORY_POLICY_STATIC,
};
use crate::host::HostRoot;
use crate::host::cgroup::CgroupPath;

/// Looks in a row at which a set had another value than we wrote, before it is somebody else's.
pub const REWRITES_MAX: u32 = 3;
/// Processes that are looked at: as many as there can be (`PID_MAX_LIMIT`).
const PROCESSES_MAX: usize = 4 << 20;

/// Who else manages cpusets, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OtherOwner {
    /// The kubelet.
    #[error(
        "the kubelet (pid {pid}) manages cpusets itself: {file} has policy {policy:?}; nothing is placed here. Set its {field}: {none} \
         and restart it (its assignments can be taken over), or set ours to none", file = file.display(), none = none(field)
    )]
    Kubelet {
        /// Its process.
        pid: u32,
        /// Its state file.
        file: PathBuf,
        /// What it says.
        policy: String,
        /// The field of its configuration.
        field: &'static str,
    },
    /// Somebody unknown.
    #[error(
        "{cgroup}: cpuset.cpus was changed from {ours:?} to {theirs:?} behind our back, {times} times in a row; nothing is placed any more. \
         Find who does it (systemd AllowedCPUs=, a container runtime, a tuning daemon; auditctl -w FILE -p w), stop it and start plimsoll again"
    )]
    Rewriter {
        /// The container's cgroup.
        cgroup: CgroupPath,
        /// What we wrote.
        ours: String,
        /// What was there instead.
        theirs: String,
        /// How often.
        times: u32,
    },
}

fn none(field: &str) -> &'static str {
    if field == "memoryManagerPolicy" {
        "None"
    } else {
        "none"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    policy_name: String,
}

/// The kubelet, if it runs and has a policy that writes cpusets.
///
/// A file without a kubelet is what a former one has left: it can be taken over.
#[must_use]
pub fn kubelet(host: &HostRoot, kubelet_dir: &Path) -> Option<OtherOwner> {
    let files = [
        (CPU_MANAGER_STATE, CPU_POLICY_STATIC, "cpuManagerPolicy"),
        (
            MEMORY_MANAGER_STATE,
            MEMORY_POLICY_STATIC,
            "memoryManagerPolicy",
        ),
    ];
    files.into_iter().find_map(|(name, policy, field)| {
        let file = host.path(kubelet_dir).join(name);
        let text = std::fs::read(&file).ok()?;
        let found: Policy = serde_json::from_slice(&text).ok()?;
        let pid = (found.policy_name == policy).then(|| running_kubelet(host))??;
        Some(OtherOwner::Kubelet {
            pid,
            file,
            policy: found.policy_name,
            field,
        })
    })
}

fn running_kubelet(host: &HostRoot) -> Option<u32> {
    let entries = std::fs::read_dir(host.procfs("")).ok()?;
    let pids = entries
        .take(PROCESSES_MAX)
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let is_kubelet = |pid: &u32| {
        let comm = std::fs::read(host.procfs(format!("{pid}/comm")));
        comm.is_ok_and(|comm| comm.trim_ascii_end() == b"kubelet")
    };
    pids.filter(is_kubelet).min()
}
