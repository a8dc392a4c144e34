//! What a resource counts of a pod, given everything that is known of the pod's usage.

use crate::kube::pod::Pod;
use crate::model::file_system::ImageFsLayout;
use crate::model::reading::{ContainerStorage, Used, VolumeStorage};
use crate::model::signal::Resource;
use crate::policy::eviction::rank::{DiskScope, RankRow};

/// What is known of one pod's usage, whichever resource is asked about. A single figure that is missing counts as zero,
/// as in the kubelet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PodUsage {
    /// Memory that is not inactive page cache, bytes.
    pub working_set_bytes: Option<u64>,
    /// Processes.
    pub processes: Option<u64>,
    /// Disk usage by container.
    pub containers: Vec<ContainerStorage>,
    /// Disk usage by volume.
    pub volumes: Vec<VolumeStorage>,
}

impl Resource {
    /// What it counts, for people.
    pub fn describe(self, layout: ImageFsLayout) -> String {
        let on_disk = |unit: &str, file_system| {
            let scope = DiskScope::of(file_system, layout);
            let parts: Vec<&str> = [
                (scope.rootfs, "writable layers"),
                (scope.logs, "logs"),
                (scope.local_volumes, "local volumes"),
            ]
            .into_iter()
            .filter_map(|(counts, part)| counts.then_some(part))
            .collect();
            if parts.is_empty() {
                "nothing: this file system holds images only, which belong to no pod".to_owned()
            } else {
                format!("{unit} of {}", parts.join(", "))
            }
        };
        match self {
            Self::Memory => "bytes of the working set".to_owned(),
            Self::Processes => "processes".to_owned(),
            Self::Io => "bytes read and written per second".to_owned(),
            Self::Cpu => "thousandths of a CPU".to_owned(),
            Self::DiskBytes(file_system) => on_disk("bytes", file_system),
            Self::DiskInodes(file_system) => on_disk("inodes", file_system),
        }
    }

    /// The pod's row in the ranking; `usage` is `None` where there are no statistics of it at all. `pod` has API
    /// defaults applied.
    pub fn row(self, pod: &Pod, usage: Option<&PodUsage>, layout: ImageFsLayout) -> RankRow {
        let on_disk = |file_system, figure: fn(Used) -> Option<u64>| {
            let usage = usage?;
            let scope = DiskScope::of(file_system, layout);
            Some(scope.used(pod, &usage.containers, &usage.volumes, figure))
        };
        match self {
            Self::Memory => {
                RankRow::memory(pod, usage.map(|usage| usage.working_set_bytes.unwrap_or(0)))
            }
            Self::Processes => RankRow::pids(pod, usage.map(|usage| usage.processes.unwrap_or(0))),
            // Rates: only a running agent knows them.
            Self::Io => RankRow::io(pod, None),
            Self::Cpu => RankRow::cpu(pod, None),
            Self::DiskBytes(file_system) => {
                RankRow::disk_bytes(pod, on_disk(file_system, |used| used.bytes))
            }
            Self::DiskInodes(file_system) => {
                RankRow::disk_inodes(pod, on_disk(file_system, |used| used.inodes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::signal::Signal;

    fn pod() -> Pod {
        serde_json::from_str(
            r#"{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","resources":{"requests":{"memory":"5","ephemeral-storage":"7"}}}],
            "volumes":[{"name":"local","emptyDir":{}},{"name":"ram","emptyDir":{"medium":"Memory"}}]}}"#,
        )
        .unwrap()
    }

    fn usage() -> PodUsage {
        let used = |bytes, inodes| Used {
            bytes: Some(bytes),
            inodes: Some(inodes),
        };
        let volume = |name: &str| VolumeStorage {
            name: name.to_owned(),
            used: used(100, 10),
        };
        PodUsage {
            working_set_bytes: Some(20),
            processes: Some(3),
            containers: vec![ContainerStorage {
                name: "c".to_owned(),
                rootfs: used(1, 2),
                logs: used(4, 8),
            }],
            volumes: vec![volume("local"), volume("ram")],
        }
    }

    #[test]
    fn each_signal_ranks_by_the_resource_it_measures() {
        for (signal, layout, counted, request) in [
            ("memory.available", ImageFsLayout::Shared, 20, 5),
            ("pid.available", ImageFsLayout::Shared, 3, 0),
            ("nodefs.available", ImageFsLayout::Shared, 105, 7),
            ("nodefs.available", ImageFsLayout::Dedicated, 104, 7),
            ("nodefs.inodesFree", ImageFsLayout::Dedicated, 18, 7),
            ("imagefs.available", ImageFsLayout::Dedicated, 1, 7),
            ("imagefs.inodesFree", ImageFsLayout::Split, 0, 7),
            ("containerfs.available", ImageFsLayout::Split, 105, 7),
        ] {
            let resource = Signal::from_name(signal).unwrap().row().resource;
            let row = resource.row(&pod(), Some(&usage()), layout);
            assert_eq!(row.usage, counted, "{signal} {layout:?}");
            assert_eq!(row.request.units_up(), request, "{signal} {layout:?}");
            assert!(row.stats_known && !resource.row(&pod(), None, layout).stats_known);
        }
    }

    #[test]
    fn what_is_counted_is_said() {
        let describe = |signal, layout| {
            Signal::from_name(signal)
                .unwrap()
                .row()
                .resource
                .describe(layout)
        };
        assert_eq!(
            describe("nodefs.available", ImageFsLayout::Dedicated),
            "bytes of logs, local volumes"
        );
        assert!(describe("imagefs.available", ImageFsLayout::Split).contains("images only"));
    }
}
