//! Reads the node and its pods into the engine's sample, without allocating.

use plimsoll_core::event::{Cause, CgroupMemory, NodeMemory, Sample};
use plimsoll_core::units::PodUid;

use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupMounts, CgroupPath, PodMemoryFiles};
use crate::host::file::FileError;
use crate::host::meminfo::MeminfoFile;
use crate::pods::Pods;

/// The files that every sample reads.
#[derive(Debug)]
pub struct Sampler {
    meminfo: MeminfoFile,
    kubepods: PodMemoryFiles,
    kubepods_limit_bytes: u64,
}

impl Sampler {
    /// Opens the node's files. `kubepods_limit_bytes` is what was written to the kubepods cgroup's limit.
    ///
    /// # Errors
    /// When one of them cannot be opened: without them nothing can be decided.
    pub fn open(
        host: &HostRoot,
        mounts: &CgroupMounts,
        kubepods: &CgroupPath,
        kubepods_limit_bytes: u64,
    ) -> Result<Self, CgroupError> {
        Ok(Self {
            meminfo: MeminfoFile::open(host)?,
            kubepods: PodMemoryFiles::open(mounts, kubepods)?,
            kubepods_limit_bytes,
        })
    }

    /// Takes a sample: pods first, the node last, so that the node's figures are never older than a victim's.
    ///
    /// # Errors
    /// When the node's own file cannot be read; then there is no sample. A pod or the kubepods cgroup that cannot be read is
    /// passed to `failed` and missing from the sample.
    pub fn take(
        &self,
        cause: Cause,
        now_ns: u64,
        charged_bytes: Option<u64>,
        pods: &mut Pods,
        sample: &mut Sample,
        mut failed: impl FnMut(Option<&PodUid>, &FileError),
    ) -> Result<(), FileError> {
        let urgent = matches!(
            cause,
            Cause::ChargeThreshold { .. } | Cause::DirectReclaim { .. }
        );
        sample.cause = cause;
        sample.charged_bytes = charged_bytes;
        pods.read(&mut sample.pods, now_ns, urgent, |uid, error| {
            failed(Some(uid), error)
        });
        sample.kubepods = match self.kubepods.read() {
            Ok(memory) => Some(CgroupMemory {
                usage_bytes: memory.usage_bytes,
                inactive_file_bytes: memory.inactive_file_bytes,
                limit_bytes: Some(self.kubepods_limit_bytes),
            }),
            Err(error) => {
                failed(None, &error);
                None
            }
        };
        let node = self.meminfo.read()?;
        sample.node = NodeMemory {
            capacity_bytes: node.total,
            anon_bytes: node.anon,
            file_bytes: node.cached + node.buffers + node.swap_cached,
            inactive_file_bytes: node.inactive_file,
            free_bytes: node.free,
            kernel_available_bytes: node.available,
            swap_total_bytes: node.swap_total,
            swap_free_bytes: node.swap_free,
        };
        Ok(())
    }
}
