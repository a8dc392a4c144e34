//! Pod statistics as vectors write them, and the readings that the engine takes.

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::model::reading::{ContainerStorage, PodStorage, Used, VolumeStorage};
use serde::Deserialize;

/// A pod and what is known of its usage.
#[derive(Deserialize)]
pub(super) struct Entry {
    pub(super) pod: Pod,
    // Without `default`, a missing field is an error and null is "no statistics".
    #[serde(deserialize_with = "Option::deserialize")]
    pub(super) stats: Option<Stats>,
}

#[derive(Deserialize)]
pub(super) struct Stats {
    pub(super) memory_working_set_bytes: Option<u64>,
    pub(super) process_count: Option<u64>,
    containers: Vec<ContainerStats>,
    volumes: Vec<VolumeStats>,
}

#[derive(Deserialize)]
struct ContainerStats {
    name: String,
    rootfs_used_bytes: Option<u64>,
    rootfs_inodes_used: Option<u64>,
    logs_used_bytes: Option<u64>,
    logs_inodes_used: Option<u64>,
}

#[derive(Deserialize)]
struct VolumeStats {
    name: String,
    used_bytes: Option<u64>,
    inodes_used: Option<u64>,
}

impl Stats {
    /// What the pod has on disk.
    pub(super) fn storage(&self, pod: &Pod) -> PodStorage {
        let containers = self.containers.iter().map(|own| ContainerStorage {
            name: own.name.clone(),
            rootfs: Used {
                bytes: own.rootfs_used_bytes,
                inodes: own.rootfs_inodes_used,
            },
            logs: Used {
                bytes: own.logs_used_bytes,
                inodes: own.logs_inodes_used,
            },
        });
        let volumes = self.volumes.iter().map(|own| VolumeStorage {
            name: own.name.clone(),
            used: Used {
                bytes: own.used_bytes,
                inodes: own.inodes_used,
            },
        });
        PodStorage {
            uid: pod.uid(),
            containers: containers.collect(),
            volumes: volumes.collect(),
            files: Used::default(),
            is_cut: false,
        }
    }
}
