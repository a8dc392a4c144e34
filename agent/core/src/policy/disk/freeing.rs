//! Freeing disk space before a pod is evicted for it.
//!
//! Rule: `reclaimNodeLevelResources` and `buildSignalToNodeReclaimFuncs` in pkg/kubelet/eviction of Kubernetes 1.36:
//! ended containers and unused images are deleted first where they are on the file system in question; if then every
//! threshold is satisfied with its minimum reclaim, no pod is evicted. Here logs and volumes of ended pods come before
//! both.
//!
//! What is freed is freed by the agent, off the hot path; the engine waits for the outcome and for a reading after it,
//! but not for ever.

use crate::model::config::EngineConfig;
use crate::model::decision::FreeSource;
use crate::model::file_system::{FileSystem, ImageFsLayout};
use crate::model::reading::FileSystemReading;
use crate::model::signal::{Observation, Resource};
use crate::model::threshold::{Passes, Threshold};

/// Then the outcome is not waited for any longer, nanoseconds. The agent answers within 25 s, or while space still
/// comes of what is being removed within a minute.
pub const PATIENCE_NS: u64 = 65_000_000_000;

/// What can be freed for `resource`; empty if it is no file system.
pub fn sources(resource: Resource, layout: ImageFsLayout) -> &'static [FreeSource] {
    use FreeSource::{EndedContainers, EndedPods, UnusedImages};
    let (Resource::DiskBytes(file_system) | Resource::DiskInodes(file_system)) = resource else {
        return &[];
    };
    match (layout, file_system) {
        (ImageFsLayout::Shared, _) => &[EndedPods, EndedContainers, UnusedImages],
        (ImageFsLayout::Dedicated, FileSystem::Node) => &[EndedPods],
        (ImageFsLayout::Dedicated, FileSystem::Image | FileSystem::Container) => {
            &[EndedContainers, UnusedImages]
        }
        (ImageFsLayout::Split, FileSystem::Node | FileSystem::Container) => {
            &[EndedPods, EndedContainers]
        }
        (ImageFsLayout::Split, FileSystem::Image) => &[UnusedImages],
    }
}

/// The three file systems, as they are now; `None` for one that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileSystemsNow {
    /// Of the kubelet's directory.
    pub nodefs: Option<FileSystemReading>,
    /// Of images.
    pub imagefs: Option<FileSystemReading>,
    /// Of writable layers.
    pub containerfs: Option<FileSystemReading>,
}

impl FileSystemsNow {
    fn of(&self, file_system: FileSystem) -> Option<FileSystemReading> {
        match file_system {
            FileSystem::Node => self.nodefs,
            FileSystem::Image => self.imagefs,
            FileSystem::Container => self.containerfs,
        }
    }

    fn observation(&self, resource: Resource) -> Option<Observation> {
        let (value, capacity, at_ns) = match resource {
            Resource::DiskBytes(file_system) => {
                let now = self.of(file_system)?;
                (now.available_bytes, now.capacity_bytes, now.at_ns)
            }
            Resource::DiskInodes(file_system) => {
                let now = self.of(file_system)?;
                (now.inodes_free?, now.inodes?, now.at_ns)
            }
            _ => return None,
        };
        let at_ns = Some(at_ns);
        Some(Observation {
            value,
            capacity,
            at_ns,
        })
    }
}

/// Until when space is freed: every disk threshold is satisfied with its minimum reclaim, as the kubelet asks before it
/// spares the pods.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Targets {
    thresholds: Vec<Threshold>,
    layout: ImageFsLayout,
}

impl Targets {
    /// The thresholds on disks of this configuration.
    pub fn of(config: &EngineConfig) -> Self {
        let is_disk = |threshold: &&Threshold| {
            let resource = threshold.signal.row().resource;
            threshold.passes != Passes::First && !sources(resource, config.layout).is_empty()
        };
        Self {
            thresholds: config.thresholds.iter().filter(is_disk).copied().collect(),
            layout: config.layout,
        }
    }

    /// The sources, of those given, that free something where a threshold is not satisfied; none: enough is free.
    pub fn short_of(&self, given: &[FreeSource], now: &FileSystemsNow) -> Vec<FreeSource> {
        let frees = |source: &&FreeSource| {
            self.thresholds.iter().any(|threshold| {
                let resource = threshold.signal.row().resource;
                let observation = now.observation(resource);
                sources(resource, self.layout).contains(source)
                    && observation.is_some_and(|seen| threshold.shortfall(seen, true).is_some())
            })
        };
        given.iter().filter(frees).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::threshold::{ThresholdSettings, parse};
    use FreeSource::{EndedContainers, EndedPods, UnusedImages};

    const GIB: u64 = 1 << 30;

    fn reading(available_bytes: u64, inodes_free: u64) -> Option<FileSystemReading> {
        Some(FileSystemReading {
            at_ns: 1,
            available_bytes,
            capacity_bytes: 100 * GIB,
            inodes_free: Some(inodes_free),
            inodes: Some(1000),
        })
    }

    fn targets(layout: ImageFsLayout) -> Targets {
        let hard = [
            ("memory.available", "100Mi"),
            ("nodefs.available", "10%"),
            ("imagefs.available", "15%"),
            ("imagefs.inodesFree", "100"),
        ];
        let text = |pairs: &[(&str, &str)]| {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect()
        };
        let settings = ThresholdSettings {
            hard: text(&hard),
            minimum_reclaim: text(&[("imagefs.available", "5Gi")]),
            ..ThresholdSettings::default()
        };
        Targets::of(&EngineConfig {
            thresholds: parse(&settings).unwrap(),
            layout,
            ..EngineConfig::default()
        })
    }

    #[test]
    fn space_is_freed_until_every_threshold_has_its_minimum_reclaim_too() {
        let targets = targets(ImageFsLayout::Shared);
        let all = [EndedPods, EndedContainers, UnusedImages];
        for (available, inodes, is_short) in [
            (9, 500, true),
            (12, 500, true),
            (19, 500, true),
            (21, 500, false),
            (21, 99, true),
        ] {
            let disk = reading(available * GIB, inodes);
            let now = FileSystemsNow {
                nodefs: disk,
                imagefs: disk,
                containerfs: disk,
            };
            let wanted: &[FreeSource] = if is_short { &all } else { &[] };
            assert_eq!(targets.short_of(&all, &now), wanted, "{available} {inodes}");
        }
        // What cannot be read asks for nothing.
        assert_eq!(targets.short_of(&all, &FileSystemsNow::default()), []);
    }

    #[test]
    fn images_do_not_go_for_a_disk_that_they_are_not_on() {
        let targets = targets(ImageFsLayout::Dedicated);
        let now = FileSystemsNow {
            nodefs: reading(GIB, 500),
            imagefs: reading(90 * GIB, 500),
            containerfs: reading(90 * GIB, 500),
        };
        let all = [EndedPods, EndedContainers, UnusedImages];
        assert_eq!(targets.short_of(&all, &now), [EndedPods]);
        assert_eq!(targets.short_of(&[UnusedImages], &now), []);
    }
}
