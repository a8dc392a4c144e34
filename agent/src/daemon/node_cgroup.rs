//! The node's memory where the node is a container (kind, minikube, k3d): that of its cgroup.
//!
//! `/proc/meminfo` is the machine's, with everything that runs beside the node. The kubelet takes a node's usage from
//! there only where the root of the mounted hierarchy has no `memory.current` (`statMemory` in opencontainers/cgroups
//! `fs2/memory.go`), as the kernel's own root has none; else from that file. Its capacity stays the machine's
//! (cAdvisor). Here a limit of the container is its capacity where it is less: the kernel kills at that limit.

use plimsoll_core::model::event::NodeMemory;

use crate::host::cgroup::{
    CgroupError, CgroupMounts, CgroupPath, Controller, MemoryLimitFile, PodMemoryFiles, Version,
};
use crate::host::file::FileError;

/// The cgroup of a node that is a container.
#[derive(Debug)]
pub(super) struct NodeCgroup {
    memory: PodMemoryFiles,
    limit: MemoryLimitFile,
}

impl NodeCgroup {
    /// Opens its files. `None`: the hierarchy is mounted from its root, or is one of cgroup v1, where every root has
    /// these files.
    ///
    /// # Errors
    /// When a file that is there cannot be opened.
    pub(super) fn open(mounts: &CgroupMounts) -> Result<Option<Self>, CgroupError> {
        let hierarchy = mounts.hierarchy_of(Controller::Memory)?;
        let is_root = !hierarchy.mount.join("memory.current").exists();
        if is_root || hierarchy.version == Version::V1 {
            return Ok(None);
        }
        let root = CgroupPath::default();
        Ok(Some(Self {
            memory: PodMemoryFiles::open(mounts, &root)?,
            limit: MemoryLimitFile::open(mounts, &root)?,
        }))
    }

    /// Replaces what the machine uses with what the node does. What the kernel still hands out is also bounded by the
    /// limit. Allocates nothing.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(super) fn read(&self, node: &mut NodeMemory) -> Result<(), FileError> {
        let usage_bytes = self.memory.read_usage_bytes()?;
        let cache = self.memory.read_cache()?;
        let limit_bytes = self.limit.read_bytes()?.unwrap_or(u64::MAX);
        let file_bytes = cache
            .inactive_file_bytes
            .saturating_add(cache.active_file_bytes);
        let left_bytes = limit_bytes.saturating_sub(usage_bytes);
        node.capacity_bytes = node.capacity_bytes.min(limit_bytes);
        // With the kernel's own memory: the kubelet's usage has it too.
        node.anon_bytes = usage_bytes.saturating_sub(file_bytes);
        node.file_bytes = usage_bytes - node.anon_bytes;
        node.inactive_file_bytes = cache.inactive_file_bytes;
        node.active_file_bytes = cache.active_file_bytes;
        node.lazily_freed_bytes = cache.lazily_freed_bytes;
        node.free_bytes = node.free_bytes.min(left_bytes);
        node.kernel_available_bytes = node
            .kernel_available_bytes
            .min(left_bytes.saturating_add(file_bytes));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cgroup::tests::fake_v2;

    const GIB: u64 = 1 << 30;

    fn machine() -> NodeMemory {
        NodeMemory {
            capacity_bytes: 64 * GIB,
            anon_bytes: 50 * GIB,
            file_bytes: 4 * GIB,
            inactive_file_bytes: 3 * GIB,
            active_file_bytes: GIB,
            free_bytes: 8 * GIB,
            kernel_available_bytes: 11 * GIB,
            ..NodeMemory::default()
        }
    }

    fn host(files: &[(&str, String)]) -> (tempfile::TempDir, CgroupMounts) {
        let (dir, host) = fake_v2();
        for (name, text) in files {
            std::fs::write(dir.path().join("sys/fs/cgroup").join(name), text).unwrap();
        }
        let mounts = host.cgroup_mounts().unwrap();
        (dir, mounts)
    }

    #[test]
    fn a_node_that_is_a_container_has_its_cgroups_memory() {
        let stat = format!(
            "anon {}\nfile {}\nshmem 0\ninactive_file {}\nactive_file {}\n",
            GIB,
            2 * GIB,
            GIB,
            GIB
        );
        let file = |limit: String| {
            [
                ("memory.current", (4 * GIB).to_string()),
                ("memory.stat", stat.clone()),
                ("memory.max", limit),
            ]
        };
        let (_dir, mounts) = host(&file("max".into()));
        let mut node = machine();
        NodeCgroup::open(&mounts)
            .unwrap()
            .unwrap()
            .read(&mut node)
            .unwrap();
        let expected = NodeMemory {
            anon_bytes: 2 * GIB,
            file_bytes: 2 * GIB,
            inactive_file_bytes: GIB,
            active_file_bytes: GIB,
            ..machine()
        };
        assert_eq!(node, expected);

        let (_dir, mounts) = host(&file((6 * GIB).to_string()));
        let mut node = machine();
        NodeCgroup::open(&mounts)
            .unwrap()
            .unwrap()
            .read(&mut node)
            .unwrap();
        let expected = NodeMemory {
            capacity_bytes: 6 * GIB,
            free_bytes: 2 * GIB,
            kernel_available_bytes: 4 * GIB,
            ..expected
        };
        assert_eq!(node, expected);
    }

    #[test]
    fn the_kernels_root_is_none() {
        let (_dir, mounts) = host(&[]);
        assert!(NodeCgroup::open(&mounts).unwrap().is_none());
    }
}
