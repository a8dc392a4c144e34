//! How many processes a pod has.

use super::PodKill;
use crate::host::file::{ControlFile, FileError};

/// Of a pod with more tasks these count, and not its processes.
const TASKS_MAX: u64 = 1024;

impl PodKill {
    /// Processes in the pod's cgroup and in those below it, as of the last refresh of its cgroups. Allocates nothing.
    ///
    /// The kubelet adds up its containers (1.36, pkg/kubelet/stats/cri_stats_provider.go `addProcessStats`), and
    /// cAdvisor counts the lines of a container's `cgroup.procs` (container/libcontainer/handler.go
    /// `processStatsFromProcs`); it does not look into cgroups that a container makes for itself. Here these count too:
    /// their processes take PIDs like any other.
    ///
    /// Threads take PIDs as well, and so does a process that has ended and is not waited for; neither has a line. So of
    /// a pod with more than 1,024 tasks, or with more cgroups than are kept, the tasks count, as the kernel counts them
    /// (`pids.current`): a process of 20,000 threads is the first to go, and looking at it costs no step over each of
    /// them.
    ///
    /// # Errors
    /// [`FileError::Unreadable`] when a `cgroup.procs` or `pids.current` cannot be read. A cgroup that is gone has no
    /// processes.
    pub fn count_processes(&self) -> Result<u64, FileError> {
        let mut processes_max = u64::MAX;
        if let Some(tasks) = &self.tasks {
            let tasks = gone_is_zero(tasks)?;
            if tasks > TASKS_MAX || self.members.is_cut() {
                return Ok(tasks);
            }
            // More may have come since.
            processes_max = TASKS_MAX;
        }
        let mut processes = 0;
        for member in &self.members {
            match member
                .processes
                .count(processes_max.saturating_sub(processes))
            {
                Ok(of_cgroup) => processes += of_cgroup,
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(processes)
    }
}

fn gone_is_zero(tasks: &ControlFile) -> Result<u64, FileError> {
    match tasks.read_u64() {
        Err(error) if error.is_vanished() => Ok(0),
        tasks => tasks,
    }
}
