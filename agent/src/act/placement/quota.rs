//! The CFS quota of who has exclusive CPUs: none.
//!
//! **Problem.** A container that may use exactly the CPUs that are its own is throttled all the same by the limit that
//! says so, because the quota is handed out in slices (kubernetes#70585). **Approach.** The kubelet's (1.36,
//! `DisableCPUQuotaWithExclusiveCPUs`): a container with exclusive CPUs has no quota (kuberuntime_container_linux.go,
//! `generateLinuxContainerResources`), and neither has its pod (pod_container_manager_linux.go, `EnsureExists`: as soon
//! as one container of it, init containers included, has exclusive CPUs). The kubelet decides that when the cgroup is
//! made; here the quota also goes and comes back with the CPUs of a container that runs.
//!
//! Only a quota that is off where it should be on is written: one that somebody has changed is not ours.

use std::collections::BTreeMap;

use plimsoll_core::kube::cgroup_config::{
    CgroupConfig, NodeCapacity, QosSettings, container_config, pod_config,
};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;

use crate::host::cgroup::{CgroupMounts, CgroupPath, Controller, Version};
use crate::host::file::{FileError, read_text, write_text};

/// A quota: this much CPU time in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// In microseconds.
    pub quota_us: i64,
    /// In microseconds.
    pub period_us: u64,
}

/// What a pod and its containers are limited to while they have no exclusive CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodQuotas {
    /// The pod's; `None` for no limit.
    pub pod: Option<Quota>,
    /// Those of containers that have one.
    pub containers: BTreeMap<String, Quota>,
}

/// By pod.
pub type Quotas = BTreeMap<PodUid, PodQuotas>;

impl PodQuotas {
    /// As its specification says.
    #[must_use]
    pub fn of(pod: &Pod, settings: &QosSettings, node: &NodeCapacity) -> Self {
        let quota = |config: &CgroupConfig| {
            let (quota_us, period_us) = (config.cpu_quota_us?, config.cpu_period_us?);
            (quota_us > 0).then_some(Quota {
                quota_us,
                period_us,
            })
        };
        let containers = pod.all_containers().filter_map(|container| {
            let quota = quota(&container_config(pod, container, settings, node))?;
            Some((container.name.clone(), quota))
        });
        Self {
            pod: quota(&pod_config(pod, settings, node)),
            containers: containers.collect(),
        }
    }
}

/// Takes a cgroup's quota away, or gives it back where it is off. Returns what was written, if anything.
///
/// A cgroup without the cpu controller, or one that is gone, has none.
///
/// # Errors
/// [`FileError`].
pub(super) fn set(
    mounts: &CgroupMounts,
    cgroup: &CgroupPath,
    quota: Option<Quota>,
) -> Result<Option<String>, FileError> {
    let Ok(hierarchy) = mounts.hierarchy_of(Controller::Cpu) else {
        return Ok(None);
    };
    let dir = hierarchy.dir(cgroup);
    let (file, unlimited) = match hierarchy.version {
        Version::V1 => ("cpu.cfs_quota_us", "-1"),
        Version::V2 => ("cpu.max", "max"),
    };
    let written = || {
        let now = read_text(dir.join(file))?;
        let is_off = now.split_ascii_whitespace().next() == Some(unlimited);
        let value = match (quota, hierarchy.version) {
            (None, _) if is_off => return Ok(None),
            (None, _) => unlimited.to_owned(),
            (Some(_), _) if !is_off => return Ok(None),
            (Some(quota), Version::V2) => format!("{} {}", quota.quota_us, quota.period_us),
            (Some(quota), Version::V1) => {
                // The period first: a new quota is checked against it.
                write_text(dir.join("cpu.cfs_period_us"), &quota.period_us.to_string())?;
                quota.quota_us.to_string()
            }
        };
        write_text(dir.join(file), &value).map(|()| Some(value))
    };
    match written() {
        Err(error) if error.is_vanished() => Ok(None),
        result => result,
    }
}
