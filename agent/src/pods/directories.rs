//! Where pods have files on disk: their containers' writable layers, logs and volumes.

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;

use crate::host::cgroup::{CgroupError, CgroupPath};
use crate::pods::paths::container_path;

/// Volume plugins whose space counts against the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumePlugin {
    /// `emptyDir`, of any medium.
    EmptyDir,
    /// `configMap`
    ConfigMap,
    /// `gitRepo`
    GitRepo,
}

impl VolumePlugin {
    /// Its directory below a pod's `volumes`.
    pub fn directory(self) -> &'static str {
        match self {
            Self::EmptyDir => "kubernetes.io~empty-dir",
            Self::ConfigMap => "kubernetes.io~configmap",
            Self::GitRepo => "kubernetes.io~git-repo",
        }
    }
}

/// A container that may have something on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerDirs {
    /// Its name in the pod.
    pub name: String,
    /// Its cgroup, in which its processes are looked for.
    pub cgroup: CgroupPath,
}

/// A volume that may have a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeDir {
    /// Its name in the pod.
    pub name: String,
    /// Whose directory it is in.
    pub plugin: VolumePlugin,
}

/// Where a pod may have something on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDirs {
    /// Which pod.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether its processes are in a user namespace of their own.
    pub has_user_namespace: bool,
    /// Its containers, init containers and ephemeral ones too.
    pub containers: Vec<ContainerDirs>,
    /// Its volumes.
    pub volumes: Vec<VolumeDir>,
}

impl PodDirs {
    /// The pod's, with each container in a cgroup of its own name below `pod_cgroup`, as `plimsoll exec` has it.
    ///
    /// # Errors
    /// When a container's name cannot name a cgroup.
    pub fn of(pod: &Pod, pod_cgroup: &CgroupPath) -> Result<Self, CgroupError> {
        // What debugs a pod writes on its account too. Its containers are in the status alone here.
        let debugging = &pod.status.ephemeral_container_statuses;
        let names = pod.all_containers().map(|container| &container.name);
        let names = names.chain(debugging.iter().map(|status| &status.name));
        let containers = names.map(|name| {
            Ok(ContainerDirs {
                cgroup: container_path(pod_cgroup, name)?,
                name: name.clone(),
            })
        });
        let volumes = pod.spec.volumes.iter().filter_map(|volume| {
            let plugin = if volume.empty_dir.is_some() {
                VolumePlugin::EmptyDir
            } else if volume.config_map.is_some() {
                VolumePlugin::ConfigMap
            } else if volume.git_repo.is_some() {
                VolumePlugin::GitRepo
            } else {
                return None;
            };
            Some(VolumeDir {
                name: volume.name.clone(),
                plugin,
            })
        });
        Ok(Self {
            uid: pod.uid(),
            namespace: pod.namespace().to_owned(),
            name: pod.metadata.name.clone(),
            has_user_namespace: pod.spec.host_users == Some(false),
            containers: containers.collect::<Result<_, CgroupError>>()?,
            volumes: volumes.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ephemeral_containers_have_files_too() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "uid": "p"},
            "spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
            "status": {"ephemeralContainerStatuses": [{"name": "debugger", "state": {"running": {}}}]},
        }))
        .unwrap();
        let cgroup = CgroupPath::new("/kubepods/podp").unwrap();
        let dirs = PodDirs::of(&pod, &cgroup).unwrap();
        let mut names: Vec<_> = dirs.containers.iter().map(|dir| &*dir.name).collect();
        names.sort_unstable();
        assert_eq!(names, ["c", "debugger", "i"]);
    }
}
