//! The CPU time that a cgroup has used: v2 `cpu.stat`, which every cgroup has; v1 `cpuacct.usage`.

use super::{CgroupError, CgroupMounts, CgroupPath, Version};
use crate::host::file::{ControlFile, FileError};

/// The file that has it, opened once.
#[derive(Debug)]
pub struct CpuTimeFile {
    file: ControlFile,
    version: Version,
}

impl CpuTimeFile {
    /// Opens the file of a cgroup in the hierarchy that counts CPU time.
    ///
    /// # Errors
    /// [`CgroupError`]: there is no such hierarchy, or the cgroup is not there.
    pub fn open(mounts: &CgroupMounts, cgroup: &CgroupPath) -> Result<Self, CgroupError> {
        let hierarchy = mounts.hierarchy_of_cpu_time()?;
        let name = match hierarchy.version {
            Version::V1 => "cpuacct.usage",
            Version::V2 => "cpu.stat",
        };
        Ok(Self {
            file: ControlFile::open(hierarchy.dir(cgroup).join(name))?,
            version: hierarchy.version,
        })
    }

    /// All of it so far. v2 counts microseconds.
    ///
    /// # Errors
    /// [`FileError`] in each of its kinds.
    pub fn read_ns(&self) -> Result<u64, FileError> {
        match self.version {
            Version::V1 => self.file.read_u64(),
            Version::V2 => {
                let [usage_us] = self.file.read_keyed(&["usage_usec"])?;
                let usage_us = usage_us.ok_or_else(|| self.file.malformed(0, "a line usage_usec"));
                Ok(usage_us?.saturating_mul(1000))
            }
        }
    }
}
