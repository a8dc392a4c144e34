//! The containers that there are, each in a cgroup with a cpuset.
//!
//! **Problem.** A container that was started before a placement was in force has no cpuset of its own: on v2 the
//! controller is not enabled for it, on v1 its processes are in the cgroup of the whole machine. **Approach.** Before
//! anything is assigned, the controller is enabled above it (v2), or its cgroup is made in the cpuset hierarchy, with
//! all CPUs, and its processes are moved in (v1). What is made is in the ledger of pods.

use std::collections::BTreeSet;
use std::path::Path;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::cpu_set::CpuSet;
use rustix::io::Errno;

use super::PlacementError;
use crate::host::cgroup::CGROUP_DEPTH_MAX;
use crate::host::cgroup::{CgroupError, CgroupMounts, CgroupPath, Controller, Hierarchy, Version};
use crate::host::cpuset::{Cpuset, CpusetError, fill_from_above, widen};
use crate::host::file::{FileError, read_text, write_text};
use crate::host::ledger::Ledger;
use crate::pods;
use crate::pods::names::{CRUN_CONTAINER, container_id};

/// How often processes that were started while others were moved are looked for.
const PASSES_MAX: u32 = 100;
/// Cgroups of a container that are read for that, in all passes: it makes as many as it likes, and all others wait
/// meanwhile.
const CGROUPS_READ_MAX: usize = 8192;

/// A container's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container {
    pub(super) pod: PodUid,
    /// Its name, as its directory is called.
    pub(super) name: String,
    pub(super) pod_path: CgroupPath,
    pub(super) path: CgroupPath,
    /// Tells it from a later one of the same name.
    pub(super) id: u64,
    pub(super) cpuset: Cpuset,
}

impl Container {
    /// The runtime's id of it, where its directory is called by one.
    pub(super) fn runtime_id(&self) -> Option<&str> {
        container_id(self.path.as_path().file_name()?.to_str()?)
    }

    /// Where crun has the processes of a container whose cgroup is a scope of systemd's (v2), if that has a cpuset of
    /// its own.
    pub(super) fn nested(&self) -> Option<Cpuset> {
        let directory = self.path.as_path().file_name()?.to_str()?;
        let is_scope = directory.ends_with(".scope");
        is_scope.then(|| self.cpuset.below(CRUN_CONTAINER))?
    }

    /// The CPUs that its processes run on.
    pub(super) fn effective_cpus(&self) -> Result<CpuSet, CpusetError> {
        let nested = self.nested();
        nested.as_ref().unwrap_or(&self.cpuset).effective_cpus()
    }
}

/// All containers of all pods that have a cgroup.
pub(super) fn list(
    mounts: &CgroupMounts,
    cgroup_root: &CgroupPath,
) -> Result<Vec<Container>, CgroupError> {
    let mut found = Vec::new();
    for (pod, pod_path) in pods::cgroup::list(mounts, cgroup_root)? {
        let containers = match pods::cgroup::containers(mounts, &pod_path) {
            Ok(containers) => containers,
            Err(error) if error.is_vanished() => continue,
            Err(error) => return Err(error),
        };
        for container in containers {
            let Ok(cpuset) = Cpuset::at(mounts, &container.path) else {
                let controller = Controller::Cpuset;
                return Err(CgroupError::NoController { controller });
            };
            found.push(Container {
                pod: pod.clone(),
                name: container.name,
                pod_path: pod_path.clone(),
                path: container.path,
                id: container.id,
                cpuset,
            });
        }
    }
    Ok(found)
}

/// Sees to it that the container has a cpuset and its processes are in it.
pub(super) fn adopt(
    mounts: &CgroupMounts,
    container: &Container,
    ledger: &mut Ledger,
) -> Result<(), PlacementError> {
    let hierarchy = mounts.hierarchy_of(Controller::Cpuset)?;
    let memory = mounts.hierarchy_of(Controller::Memory)?;
    ledger.create_cgroup(hierarchy, &container.path, &[Controller::Cpuset])?;
    if hierarchy.version == Version::V2 || hierarchy == memory {
        return Ok(());
    }
    fill_from_above(hierarchy, &container.path)?;
    move_processes(memory, hierarchy, &container.path)
}

/// v1: gives what is above the containers all CPUs that are online again.
pub(super) fn widen_above(
    mounts: &CgroupMounts,
    cgroup_root: &CgroupPath,
    containers: &[Container],
) -> Result<(), PlacementError> {
    let hierarchy = mounts.hierarchy_of(Controller::Cpuset)?;
    let not_ours = cgroup_root.lineage().len();
    let above: BTreeSet<CgroupPath> = containers
        .iter()
        // What the root of our tree has is its owner's to say.
        .flat_map(|container| container.pod_path.lineage().split_off(not_ours))
        .collect();
    // In the order of their names, so that each comes after the one above it.
    for cgroup in above {
        match widen(hierarchy, &cgroup) {
            Err(error) if !error.is_vanished() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

fn move_processes(
    from: &Hierarchy,
    to: &Hierarchy,
    cgroup: &CgroupPath,
) -> Result<(), PlacementError> {
    let target = to.dir(cgroup).join("cgroup.procs");
    let mut reads_left = CGROUPS_READ_MAX + 1;
    for _ in 0..PASSES_MAX {
        let mut there = BTreeSet::new();
        processes(
            &to.dir(cgroup),
            CGROUP_DEPTH_MAX,
            &mut reads_left,
            &mut there,
        )?;
        let mut all = BTreeSet::new();
        processes(
            &from.dir(cgroup),
            CGROUP_DEPTH_MAX,
            &mut reads_left,
            &mut all,
        )?;
        if reads_left == 0 {
            return Err(PlacementError::TooManyCgroups {
                cgroup: cgroup.clone(),
                max: CGROUPS_READ_MAX,
            });
        }
        let mut missing = all.difference(&there).peekable();
        if missing.peek().is_none() {
            return Ok(());
        }
        for pid in missing {
            match write_text(&target, pid) {
                // It has ended (ESRCH), or is on its way out (EINVAL).
                Err(FileError::Unwritable {
                    source: Errno::INVAL,
                    ..
                }) => {}
                Err(error) if error.is_vanished() => {}
                result => result?,
            }
        }
    }
    Err(PlacementError::StartsProcesses {
        cgroup: cgroup.clone(),
        passes: PASSES_MAX,
    })
}

/// The processes of a cgroup and those below it; none when it is gone, and no more when nothing is left to be read.
fn processes(
    dir: &Path,
    depth_left: usize,
    reads_left: &mut usize,
    into: &mut BTreeSet<String>,
) -> Result<(), FileError> {
    if *reads_left == 0 {
        return Ok(());
    }
    *reads_left -= 1;
    let text = match read_text(dir.join("cgroup.procs")) {
        Err(error) if error.is_vanished() => return Ok(()),
        text => text?,
    };
    into.extend(text.lines().map(str::to_owned));
    if depth_left == 0 {
        return Ok(());
    }
    for child in pods::cgroup::children(dir)? {
        processes(&dir.join(child), depth_left - 1, reads_left, into)?;
    }
    Ok(())
}
