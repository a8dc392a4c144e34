//! Which CPUs pods can run on, and what placement follows of a machine that changes.
//!
//! **Problem.** A CPU that is online may be outside of the set of all pods: a kubelet writes that of `kubepods` at its
//! start, with the CPUs that there are; systemd narrows it (`AllowedCPUs=`); cgroup v1 takes out for good what goes
//! offline. A container that is given such a CPU runs wherever the cgroup above may (v2), beside others on their
//! exclusive CPUs, or is refused it (v1). **Approach.** What counts are the CPUs that are online and in the effective
//! set of the cgroup that all pods are in. All of it is in three small files, so that it can be looked at every second.

use plimsoll_core::placement::cpu_set::CpuSet;

use super::paths::NodePaths;
use super::{PlacementError, online_cpus};
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupMounts, CgroupPath};
use crate::host::cpuset::{Cpuset, CpusetError};
use crate::host::file::read_text;
use crate::host::shown::Show as _;

/// NUMA nodes that have memory; not there on a kernel without NUMA.
const NODES_WITH_MEMORY: &str = "devices/system/node/has_memory";

/// What pods can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usable {
    /// CPUs that are online and in the set of all pods.
    pub cpus: CpuSet,
    /// CPUs that are online and outside of it.
    pub outside: CpuSet,
    /// NUMA nodes that have memory, by number; none on a kernel without NUMA.
    pub nodes: CpuSet,
}

impl Usable {
    /// What they can use now.
    ///
    /// # Errors
    /// [`PlacementError`] when a file that is there cannot be read.
    pub fn read(paths: &NodePaths) -> Result<Self, PlacementError> {
        let (cpus, outside) = usable_cpus(&paths.host, &paths.mounts, paths.of_all_pods())?;
        let nodes = paths.host.sysfs(NODES_WITH_MEMORY);
        let nodes = match read_text(&nodes) {
            Err(error) if error.is_vanished() => CpuSet::EMPTY,
            text => CpuSet::parse(&text?).map_err(|source| PlacementError::List {
                path: nodes.shown().to_string(),
                source,
            })?,
        };
        Ok(Self {
            cpus,
            outside,
            nodes,
        })
    }

    /// All CPUs that are online.
    pub fn online(&self) -> CpuSet {
        self.cpus | self.outside
    }
}

/// CPUs that are online: those in the set of this cgroup, in which all pods are, and those outside of it. A set in
/// which nothing is online keeps nothing out.
///
/// # Errors
/// [`PlacementError`] when a file that is there cannot be read.
pub fn usable_cpus(
    host: &HostRoot,
    mounts: &CgroupMounts,
    of_all_pods: &CgroupPath,
) -> Result<(CpuSet, CpuSet), PlacementError> {
    let online = online_cpus(host)?;
    let usable = match effective(mounts, of_all_pods)? {
        Some(cpus) if !cpus.is_disjoint(&online) => cpus & online,
        _ => online,
    };
    Ok((usable, online - usable))
}

/// Where the kernel runs what is in a cgroup, by its own set or that of the nearest above it that has one: it may not
/// be there yet, may not have the controller (v2), or nothing may be written yet (v1).
fn effective(mounts: &CgroupMounts, cgroup: &CgroupPath) -> Result<Option<CpuSet>, PlacementError> {
    let root = CgroupPath::default();
    for path in cgroup.lineage().iter().rev().chain([&root]) {
        // Without a hierarchy that has the controller nothing is placed.
        let Ok(cpuset) = Cpuset::at(mounts, path) else {
            return Ok(None);
        };
        match cpuset.effective_cpus() {
            Ok(cpus) if !cpus.is_empty() => return Ok(Some(cpus)),
            Ok(_) | Err(CpusetError::NotEnabled { .. }) => {}
            Err(error) if error.is_vanished() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cgroup::tests::fake_v2;

    #[test]
    fn what_is_online_and_outside_of_the_set_of_all_pods_is_not_usable() {
        let (_dir, host) = fake_v2();
        let put = |path: std::path::PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let online = |list: &str| put(host.sysfs("devices/system/cpu/online"), list);
        let has = |cgroup: &str, list: &str| {
            let dir = host.path("/sys/fs/cgroup").join(cgroup);
            put(dir.join("cpuset.cpus.effective"), list);
        };
        let pods = CgroupPath::new("node.slice/kubepods.slice").unwrap();
        let usable = || {
            let mounts = host.cgroup_mounts().unwrap();
            let (usable, outside) = usable_cpus(&host, &mounts, &pods).unwrap();
            (usable.to_string(), outside.to_string())
        };
        let are = |usable: &str, outside: &str| (usable.to_owned(), outside.to_owned());
        online("0-5");
        assert_eq!(usable(), are("0-5", ""), "there is no cgroup yet");
        has("", "0-5\n");
        has("node.slice", "0-4\n");
        std::fs::create_dir_all(host.path("/sys/fs/cgroup").join(pods.as_path())).unwrap();
        assert_eq!(usable(), are("0-4", "5"), "as the cgroup above");
        has("node.slice/kubepods.slice", "\n");
        assert_eq!(usable(), are("0-4", "5"), "nothing is written yet");
        has("node.slice/kubepods.slice", "0-3\n");
        assert_eq!(usable(), are("0-3", "4-5"));
        online("0-2,5");
        assert_eq!(usable(), are("0-2", "5"));
        online("5");
        assert_eq!(usable(), are("5", ""), "better than nowhere");
    }
}
