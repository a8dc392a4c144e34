//! Freeing disk space before a pod is evicted for it.
//!
//! Rule: `reclaimNodeLevelResources` and `buildSignalToNodeReclaimFuncs` in pkg/kubelet/eviction of Kubernetes 1.36: ended
//! containers and unused images are deleted first where they are on the file system in question; if then every threshold is satisfied
//! with its minimum reclaim, no pod is evicted. Here logs and volumes of ended pods come before both.
//!
//! What is freed is freed by the agent, off the hot path; the engine waits for the outcome and for a reading after it, but not
//! for ever.

use crate::model::decision::ReclaimSource;
use crate::model::signal::Resource;
use crate::policy::memory::rank::{FileSystem, ImageFsLayout};

/// Then the outcome is not waited for any longer, nanoseconds.
pub const PATIENCE_NS: u64 = 30_000_000_000;

/// What can be freed for `resource`; empty if it is no file system.
pub fn sources(resource: Resource, layout: ImageFsLayout) -> &'static [ReclaimSource] {
    use ReclaimSource::{EndedContainers, EndedPods, UnusedImages};
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
