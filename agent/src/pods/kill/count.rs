//! How many PIDs a pod takes.

use std::path::PathBuf;

use super::{PodKill, if_there};
use crate::host::cgroup::{CgroupMounts, CgroupPath, Controller};
use crate::host::file::{ControlFile, FileError};

/// `pids.current` of the pod's cgroup: the kernel's count of its tasks, and of those in the cgroups below it.
#[derive(Debug)]
pub(super) struct Tasks {
    path: PathBuf,
    /// `None`: it was not there at the last look. On v1 a runtime makes a pod's cgroup in each hierarchy in turn.
    file: Option<ControlFile>,
}

impl Tasks {
    /// Not opened yet. `None` where that controller is not.
    pub(super) fn of(mounts: &CgroupMounts, pod: &CgroupPath) -> Option<Self> {
        let pids = mounts.hierarchy_of(Controller::Pids).ok()?;
        Some(Self {
            path: pids.dir(pod).join("pids.current"),
            file: None,
        })
    }

    /// Opens it, if it has not been there before.
    pub(super) fn refresh(&mut self) -> Result<(), FileError> {
        if self.file.is_none() {
            self.file = if_there(Some(ControlFile::open(&self.path)))?;
        }
        Ok(())
    }
}

impl PodKill {
    /// PIDs that the pod takes: its tasks, which are the threads of its processes and the processes that have ended and
    /// are not waited for. Where there is no pids controller, its processes, as of the last refresh of its cgroups.
    /// Allocates nothing.
    ///
    /// The kubelet ranks by processes (1.36, pkg/kubelet/eviction/helpers.go `process`): it adds up its containers
    /// (pkg/kubelet/stats/cri_stats_provider.go `addProcessStats`), of which cAdvisor counts the lines of `cgroup.procs`
    /// (container/libcontainer/handler.go `processStatsFromProcs`). A process of a thousand threads is one line and
    /// takes a thousand PIDs, and a process that is not waited for has no line (docs/decisions/0076).
    ///
    /// # Errors
    /// [`FileError::Unreadable`] when `pids.current`, or without it a `cgroup.procs`, cannot be read. A cgroup that is
    /// gone has none.
    pub fn count_tasks(&self) -> Result<u64, FileError> {
        match self.tasks.as_ref().and_then(|tasks| tasks.file.as_ref()) {
            Some(tasks) => gone_is_zero(tasks.read_u64()),
            None => self.members.iter().try_fold(0, |tasks, member| {
                Ok(tasks + gone_is_zero(member.processes.count())?)
            }),
        }
    }
}

fn gone_is_zero(counted: Result<u64, FileError>) -> Result<u64, FileError> {
    match counted {
        Err(error) if error.is_vanished() => Ok(0),
        counted => counted,
    }
}
