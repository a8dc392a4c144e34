//! Where the cgroups of pods are, by the names that the kubelet's cgroupfs driver gives ([`crate::pods::cgroup`]), and
//! what is in one.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::qos::QosClass;

use crate::host::cgroup::{CgroupError, CgroupPath};
use crate::host::file::{FileError, errno_of};

/// The cgroup of all pods.
pub const KUBEPODS: &str = "kubepods";
pub(super) const POD_PREFIX: &str = "pod";
/// Children of a cgroup that are looked at: pods of a QoS class, or cgroups that a container has made.
pub(crate) const CHILDREN_MAX: usize = 4096;

/// The cgroup below `kubepods` for a QoS class; none for Guaranteed, whose pods are directly below it.
pub fn tier(class: QosClass) -> Option<&'static str> {
    match class {
        QosClass::Guaranteed => None,
        QosClass::Burstable => Some("burstable"),
        QosClass::BestEffort => Some("besteffort"),
    }
}

/// The cgroup of all pods.
///
/// # Errors
/// None for a root that is a [`CgroupPath`].
pub fn kubepods_path(cgroup_root: &CgroupPath) -> Result<CgroupPath, CgroupError> {
    cgroup_root.join(KUBEPODS)
}

/// The cgroup of all pods of a QoS class.
///
/// # Errors
/// None for a root that is a [`CgroupPath`].
pub fn tier_path(cgroup_root: &CgroupPath, class: QosClass) -> Result<CgroupPath, CgroupError> {
    let kubepods = kubepods_path(cgroup_root)?;
    tier(class).map_or(Ok(kubepods.clone()), |tier| kubepods.join(tier))
}

/// Where a pod's cgroup is, or will be.
///
/// # Errors
/// [`CgroupError::BadPath`] for a UID that cannot name a cgroup.
pub fn pod_path(cgroup_root: &CgroupPath, pod: &Pod) -> Result<CgroupPath, CgroupError> {
    child(
        &tier_path(cgroup_root, pod.qos_class())?,
        &format!("{POD_PREFIX}{}", pod.uid()),
    )
}

/// The cgroup of one of a pod's containers.
///
/// # Errors
/// [`CgroupError::BadPath`] for a name that cannot name a cgroup.
pub fn container_path(pod: &CgroupPath, container: &str) -> Result<CgroupPath, CgroupError> {
    child(pod, container)
}

pub(super) fn child(parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError> {
    // One name, so that a slash in it cannot lead elsewhere.
    if name.contains('/') || name.is_empty() {
        return Err(CgroupError::BadPath {
            path: name.to_owned(),
        });
    }
    parent.join(name)
}

/// Names of a cgroup's children, sorted: the first [`CHILDREN_MAX`] that the kernel gives. None when it is gone.
pub(crate) fn children(dir: &Path) -> Result<Vec<OsString>, FileError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(FileError::Unreadable {
                path: Arc::from(dir),
                source: errno_of(&error),
            });
        }
    };
    let mut names: Vec<OsString> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name())
        .take(CHILDREN_MAX)
        .collect();
    names.sort_unstable();
    Ok(names)
}
