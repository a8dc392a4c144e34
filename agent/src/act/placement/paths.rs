//! Where on a node placement works: the host, its cgroups, and the directories of the agent and of a kubelet.

use std::path::PathBuf;

use super::other_managers::{self, OtherOwner};
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupMounts, CgroupPath};
use crate::pods::names::KubeletTree;

/// Where containers are placed.
#[derive(Debug, Clone)]
pub struct NodePaths {
    /// The host.
    pub host: HostRoot,
    /// Its cgroups.
    pub mounts: CgroupMounts,
    /// Below which `kubepods` is.
    pub cgroup_root: CgroupPath,
    /// Where a kubelet that runs has its pods. `None`: no kubelet runs them.
    pub kubelet: Option<KubeletTree>,
    /// Where the checkpoint and the ledgers are.
    pub state_dir: PathBuf,
    /// Where a kubelet would have its state files.
    pub kubelet_dir: PathBuf,
}

impl NodePaths {
    /// The cgroup that all pods are in, and whose set is not ours.
    pub(super) fn of_all_pods(&self) -> &CgroupPath {
        match &self.kubelet {
            Some(tree) => tree.kubepods(),
            None => &self.cgroup_root,
        }
    }

    /// Somebody else who manages cpusets here.
    pub(super) fn other_owner(&self) -> Option<OtherOwner> {
        match self.kubelet {
            Some(_) => other_managers::beside(&self.host, &self.kubelet_dir),
            None => other_managers::kubelet(&self.host, &self.kubelet_dir),
        }
    }
}
