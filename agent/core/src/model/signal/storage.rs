//! File systems: bytes and inodes.
//!
//! Rule: makeSignalObservations in pkg/kubelet/eviction/helpers.go of Kubernetes 1.36: available and capacity as
//! `statvfs(3)` reports them to unprivileged users; inodes only where the file system counts them.

use crate::model::file_system::FileSystem;
use crate::model::reading::{FileSystemReading, StorageReading};
use crate::model::signal::row::{
    NodeCondition, Observation, Operator, Readings, Resource, Seen, Signal, SignalRow, Unit,
};

const BYTES: SignalRow = SignalRow {
    signal: Signal::NodefsAvailable,
    name: "nodefs.available",
    unit: Unit::Bytes,
    operator: Operator::LessThan,
    condition: Some(NodeCondition::DiskPressure),
    resource: Resource::DiskBytes(FileSystem::Node),
    kubelet: true,
    meaning: "bytes free on the file system of pod volumes and logs",
    observe: |readings| bytes(readings, |storage| storage.nodefs),
};

const INODES: SignalRow = SignalRow {
    signal: Signal::NodefsInodesFree,
    name: "nodefs.inodesFree",
    unit: Unit::Inodes,
    resource: Resource::DiskInodes(FileSystem::Node),
    meaning: "inodes free on the file system of pod volumes and logs",
    observe: |readings| inodes(readings, |storage| storage.nodefs),
    ..BYTES
};

/// `nodefs.available`.
pub(super) const NODEFS_AVAILABLE: SignalRow = BYTES;
/// `nodefs.inodesFree`.
pub(super) const NODEFS_INODES: SignalRow = INODES;
/// `imagefs.available`.
pub(super) const IMAGEFS_AVAILABLE: SignalRow = SignalRow {
    signal: Signal::ImagefsAvailable,
    name: "imagefs.available",
    resource: Resource::DiskBytes(FileSystem::Image),
    meaning: "bytes free on the file system of images",
    observe: |readings| bytes(readings, |storage| storage.imagefs),
    ..BYTES
};
/// `imagefs.inodesFree`.
pub(super) const IMAGEFS_INODES: SignalRow = SignalRow {
    signal: Signal::ImagefsInodesFree,
    name: "imagefs.inodesFree",
    resource: Resource::DiskInodes(FileSystem::Image),
    meaning: "inodes free on the file system of images",
    observe: |readings| inodes(readings, |storage| storage.imagefs),
    ..INODES
};
/// `containerfs.available`.
pub(super) const CONTAINERFS_AVAILABLE: SignalRow = SignalRow {
    signal: Signal::ContainerfsAvailable,
    name: "containerfs.available",
    resource: Resource::DiskBytes(FileSystem::Container),
    meaning: "bytes free on the file system of writable layers",
    observe: |readings| bytes(readings, |storage| storage.containerfs),
    ..BYTES
};
/// `containerfs.inodesFree`.
pub(super) const CONTAINERFS_INODES: SignalRow = SignalRow {
    signal: Signal::ContainerfsInodesFree,
    name: "containerfs.inodesFree",
    resource: Resource::DiskInodes(FileSystem::Container),
    meaning: "inodes free on the file system of writable layers",
    observe: |readings| inodes(readings, |storage| storage.containerfs),
    ..INODES
};

fn bytes(readings: &Readings<'_>, of: fn(&StorageReading) -> Option<FileSystemReading>) -> Seen {
    let Some(storage) = &readings.sample.storage else {
        return Seen::NotRead;
    };
    let seen = of(storage).map(|file_system| Observation {
        value: file_system.available_bytes,
        capacity: file_system.capacity_bytes,
        at_ns: Some(file_system.at_ns),
    });
    seen.into()
}

fn inodes(readings: &Readings<'_>, of: fn(&StorageReading) -> Option<FileSystemReading>) -> Seen {
    let Some(storage) = &readings.sample.storage else {
        return Seen::NotRead;
    };
    let seen = of(storage).and_then(|file_system| {
        Some(Observation {
            value: file_system.inodes_free?,
            capacity: file_system.inodes?,
            at_ns: Some(file_system.at_ns),
        })
    });
    seen.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::event::Sample;
    use crate::model::options::Availability;
    use crate::model::signal::Observations;

    #[test]
    fn a_file_system_is_remembered_until_it_is_read_again() {
        let mut sample = Sample::default();
        let observe = |sample: &Sample, last: Observations| {
            last.updated(&Readings {
                sample,
                at_ns: 9,
                availability: Availability::Kubelet,
                swap_bytes: 0,
            })
        };
        sample.storage = Some(Arc::new(StorageReading {
            nodefs: Some(FileSystemReading {
                at_ns: 5,
                available_bytes: 10,
                capacity_bytes: 100,
                inodes_free: None,
                inodes: None,
            }),
            imagefs: None,
            containerfs: None,
            pods: Vec::new(),
        }));
        let seen = observe(&sample, Observations::default());
        let nodefs = Observation {
            value: 10,
            capacity: 100,
            at_ns: Some(5),
        };
        assert_eq!(seen.get(Signal::NodefsAvailable), Some(nodefs));
        assert_eq!(seen.get(Signal::NodefsInodesFree), None);
        sample.storage = None;
        let later = observe(&sample, seen);
        assert_eq!(later.get(Signal::NodefsAvailable), Some(nodefs));
    }
}
