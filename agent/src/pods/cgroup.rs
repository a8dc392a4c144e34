//! The cgroup tree of the pods, laid out as the kubelet's cgroupfs driver does it.
//!
//! ```text
//! <mount>/<cgroup root>/kubepods/pod<uid>/<container>                Guaranteed
//! <mount>/<cgroup root>/kubepods/burstable/pod<uid>/<container>      Burstable
//! <mount>/<cgroup root>/kubepods/besteffort/pod<uid>/<container>     BestEffort
//! ```
//!
//! On v1 and hybrid hosts the same path exists in each hierarchy that has a controller that pods need, and in the
//! unified tree if one is mounted: there it has no limits, but `cgroup.kill` and `cgroup.events`. The cpuset controller
//! is used only where CPUs or memory are placed (`act/placement`): [`create_placed`]. Source:
//! `pkg/kubelet/cm/{pod_container_manager_linux,cgroup_manager_linux}.go` of 1.36, opencontainers/cgroups `fs` and
//! `fs2`.
#![forbid(unsafe_code)]

mod limits;

use std::path::{Path, PathBuf};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::qos::QosClass;

use crate::host::cgroup::{
    CgroupError, CgroupMounts, CgroupPath, Controller, Hierarchy, Version, cgroup_id,
};
use crate::host::cpuset::{self, CpusetError};
use crate::host::file::{ControlFile, FileError, read_text, write_text};
use crate::host::ledger::{KnobError, Ledger};
use crate::pods::paths::{POD_PREFIX, child};
use crate::pods::remove_tree::remove_tree;

pub(crate) use crate::pods::paths::{CHILDREN_MAX, children};
pub use crate::pods::paths::{KUBEPODS, container_path, kubepods_path, pod_path, tier, tier_path};
pub use limits::{ApplyError, apply, apply_pids, apply_tier, apply_with, directly};

/// The controllers that pods need, where the host has them.
pub const POD_CONTROLLERS: [Controller; 6] = [
    Controller::Cpu,
    Controller::Cpuacct,
    Controller::Memory,
    Controller::Pids,
    Controller::Hugetlb,
    Controller::Io,
];

/// The hierarchies in which a pod has a cgroup, each with the pod controllers that it has.
pub fn pod_hierarchies(mounts: &CgroupMounts) -> Vec<(&Hierarchy, Vec<Controller>)> {
    let of = |hierarchy: &Hierarchy| -> Vec<Controller> {
        POD_CONTROLLERS
            .into_iter()
            .filter(|controller| mounts.hierarchy_of(*controller) == Ok(hierarchy))
            .collect()
    };
    mounts
        .hierarchies()
        .iter()
        .map(|hierarchy| (hierarchy, of(hierarchy)))
        .filter(|(hierarchy, controllers)| {
            !controllers.is_empty() || hierarchy.version == Version::V2
        })
        .collect()
}

/// Those hierarchies, after the one of cpusets where that is another (v1): there a pod has a cgroup if CPUs or memory
/// are placed. It is the first, so that whoever joins is on the right CPUs before it belongs to the pod anywhere.
fn all_hierarchies(mounts: &CgroupMounts) -> Vec<&Hierarchy> {
    let mut all: Vec<&Hierarchy> = pod_hierarchies(mounts)
        .into_iter()
        .map(|(hierarchy, _)| hierarchy)
        .collect();
    if let Ok(cpusets) = mounts.hierarchy_of(Controller::Cpuset)
        && !all.contains(&cpusets)
    {
        all.insert(0, cpusets);
    }
    all
}

/// Looks for a pod's cgroup in each QoS class: the class of a pod that runs is what it was when it was started.
pub fn find(mounts: &CgroupMounts, cgroup_root: &CgroupPath, uid: &PodUid) -> Option<CgroupPath> {
    [
        QosClass::Guaranteed,
        QosClass::Burstable,
        QosClass::BestEffort,
    ]
    .into_iter()
    .find_map(|class| {
        let path = child(
            &tier_path(cgroup_root, class).ok()?,
            &format!("{POD_PREFIX}{uid}"),
        )
        .ok()?;
        all_hierarchies(mounts)
            .iter()
            .any(|hierarchy| hierarchy.has(&path))
            .then_some(path)
    })
}

/// All pods that have a cgroup, sorted by path, whoever made it.
///
/// # Errors
/// When a directory cannot be read; one that is gone has no pods.
pub fn list(
    mounts: &CgroupMounts,
    cgroup_root: &CgroupPath,
) -> Result<Vec<(PodUid, CgroupPath)>, CgroupError> {
    let mut pods = Vec::new();
    for class in [
        QosClass::Guaranteed,
        QosClass::Burstable,
        QosClass::BestEffort,
    ] {
        let tier = tier_path(cgroup_root, class)?;
        for hierarchy in all_hierarchies(mounts) {
            for name in children(&hierarchy.dir(&tier))? {
                // A UID is text.
                let uid = name.to_str().and_then(|name| name.strip_prefix(POD_PREFIX));
                if let Some(uid) = uid.filter(|uid| !uid.is_empty()) {
                    let path = child(&tier, &format!("{POD_PREFIX}{uid}"))?;
                    pods.push((PodUid::from(uid), path));
                }
            }
        }
    }
    pods.sort_by(|left, right| left.1.cmp(&right.1));
    pods.dedup();
    Ok(pods)
}

/// A container's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerCgroup {
    /// Its directory's name: the container's name, or the id that a container runtime gave it.
    pub name: String,
    /// Its path in each hierarchy.
    pub path: CgroupPath,
    /// Its id in the hierarchy that accounts memory.
    pub id: u64,
}

/// The containers of a pod, in the hierarchy that accounts memory, sorted by name.
///
/// # Errors
/// [`FileError::Vanished`] when the pod's cgroup is gone.
pub fn containers(
    mounts: &CgroupMounts,
    pod: &CgroupPath,
) -> Result<Vec<ContainerCgroup>, CgroupError> {
    let hierarchy = mounts.hierarchy_of(Controller::Memory)?;
    let dir = hierarchy.dir(pod);
    cgroup_id(&dir)?;
    let mut containers = Vec::new();
    // What is not text names no container.
    let names = children(&dir)?;
    for name in names.into_iter().filter_map(|name| name.into_string().ok()) {
        match cgroup_id(&dir.join(&name)) {
            Ok(id) => containers.push(ContainerCgroup {
                path: child(pod, &name)?,
                name,
                id,
            }),
            Err(error) if error.is_vanished() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(containers)
}

/// Whether any process is left in a cgroup or below it. A pod that had processes and has none any more has ended.
///
/// # Errors
/// When a control file cannot be read; a cgroup that is gone is empty.
pub fn is_populated(mounts: &CgroupMounts, cgroup: &CgroupPath) -> Result<bool, FileError> {
    for hierarchy in all_hierarchies(mounts) {
        let dir = hierarchy.dir(cgroup);
        let populated = match hierarchy.version {
            Version::V2 => ControlFile::open(dir.join("cgroup.events"))
                .and_then(|events| events.read_keyed(&["populated"]))
                .map(|[populated]| populated == Some(1)),
            Version::V1 => has_processes(&dir),
        };
        match populated {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) if error.is_vanished() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Of v1, which has no `cgroup.events`. A tree with more cgroups than are looked at counts as populated.
fn has_processes(dir: &Path) -> Result<bool, FileError> {
    let mut pending = vec![dir.to_owned()];
    let mut looked_at = 0;
    while let Some(dir) = pending.pop() {
        if looked_at == CHILDREN_MAX {
            return Ok(true);
        }
        looked_at += 1;
        match read_text(dir.join("cgroup.procs")) {
            Ok(text) if !text.is_empty() => return Ok(true),
            Err(error) if !error.is_vanished() => return Err(error),
            _ => {}
        }
        pending.extend(children(&dir)?.iter().map(|name| dir.join(name)));
    }
    Ok(false)
}

/// Removes a pod's cgroup and those below it in every hierarchy, as far as they are empty. The kernel refuses the
/// others.
///
/// Returns whether nothing of it is left.
///
/// # Errors
/// When a directory cannot be read, or cannot be removed for another reason than being in use.
pub fn remove_empty(mounts: &CgroupMounts, pod: &CgroupPath) -> Result<bool, FileError> {
    let mut is_gone = true;
    for dir in dirs(mounts, pod) {
        is_gone &= remove_tree(&dir)?;
    }
    Ok(is_gone)
}

/// The directories of a cgroup, whether or not they are there.
pub(super) fn dirs(mounts: &CgroupMounts, cgroup: &CgroupPath) -> Vec<PathBuf> {
    let all = all_hierarchies(mounts).into_iter();
    all.map(|hierarchy| hierarchy.dir(cgroup)).collect()
}

/// Creates a cgroup in all hierarchies that pods have one in. What is created or enabled is in the ledger.
///
/// # Errors
/// [`KnobError`].
pub fn create(
    mounts: &CgroupMounts,
    cgroup: &CgroupPath,
    ledger: &mut Ledger,
) -> Result<(), KnobError> {
    for (hierarchy, controllers) in pod_hierarchies(mounts) {
        ledger.create_cgroup(hierarchy, cgroup, &controllers)?;
    }
    Ok(())
}

/// As [`create`], with the cpuset controller: enabled for it and those above it (v2), or with a cgroup of its own in
/// that hierarchy (v1), on all CPUs and NUMA nodes that the ones above have.
///
/// # Errors
/// [`KnobError`]; [`CpusetError`] where no hierarchy has the controller.
pub fn create_placed(
    mounts: &CgroupMounts,
    cgroup: &CgroupPath,
    ledger: &mut Ledger,
) -> Result<(), CreateError> {
    create(mounts, cgroup, ledger)?;
    let hierarchy = mounts
        .hierarchy_of(Controller::Cpuset)
        .map_err(CpusetError::from)?;
    ledger.create_cgroup(hierarchy, cgroup, &[Controller::Cpuset])?;
    Ok(cpuset::fill_from_above(hierarchy, cgroup)?)
}

/// Why a cgroup with a cpuset is not there.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The cgroup.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// Its cpuset.
    #[error(transparent)]
    Cpuset(#[from] CpusetError),
}

/// On v2: a container whose one process is killed for lack of memory is killed as a whole, as the kubelet sets it up
/// unless `singleProcessOOMKill` is on (kuberuntime_container_linux.go).
///
/// # Errors
/// When the file refuses the value. v1 has no such file, which is no error.
pub fn set_oom_group(mounts: &CgroupMounts, container: &CgroupPath) -> Result<(), FileError> {
    match mounts.hierarchy_of(Controller::Memory) {
        Ok(hierarchy) if hierarchy.version == Version::V2 => {
            write_text(hierarchy.dir(container).join("memory.oom.group"), "1")
        }
        _ => Ok(()),
    }
}

/// Moves this process into a cgroup, in every hierarchy that it exists in for pods.
///
/// # Errors
/// [`FileError::Vanished`] when it was removed meanwhile.
pub fn join_self(mounts: &CgroupMounts, cgroup: &CgroupPath) -> Result<(), FileError> {
    for hierarchy in all_hierarchies(mounts) {
        // Of cpusets there is one only where something is placed.
        if is_of_cpusets_alone(hierarchy) && !hierarchy.has(cgroup) {
            continue;
        }
        // 0 means the writer.
        write_text(hierarchy.dir(cgroup).join("cgroup.procs"), "0")?;
    }
    Ok(())
}

fn is_of_cpusets_alone(hierarchy: &Hierarchy) -> bool {
    let of_pods = |controller| POD_CONTROLLERS.contains(controller);
    hierarchy.version == Version::V1 && !hierarchy.controllers.iter().any(of_pods)
}

#[cfg(test)]
mod tests;
