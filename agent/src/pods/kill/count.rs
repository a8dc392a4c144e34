//! How many processes a pod has.

use super::PodKill;
use crate::host::file::{ControlFile, FileError};

/// Processes of a pod that are counted one by one, at most.
const COUNTED_MAX: u64 = 1024;

impl PodKill {
    /// Processes in the pod's cgroup and in those below it, as of the last refresh of its cgroups. Allocates nothing.
    ///
    /// The kubelet adds up its containers (1.36, pkg/kubelet/stats/cri_stats_provider.go `addProcessStats`), and
    /// cAdvisor counts the lines of a container's `cgroup.procs` (container/libcontainer/handler.go
    /// `processStatsFromProcs`); it does not look into cgroups that a container makes for itself. Here these count too:
    /// their processes take PIDs like any other. Of a pod with more cgroups than are kept, or more than 1,024
    /// processes, the tasks count instead, which the kernel counts whatever the pod does (`pids.current`): at least as
    /// many, since each thread is one.
    ///
    /// # Errors
    /// [`FileError::Unreadable`] when a `cgroup.procs` or `pids.current` cannot be read. A cgroup that is gone has no
    /// processes.
    pub fn count_processes(&self) -> Result<u64, FileError> {
        if let Some(tasks) = self.tasks.as_ref().filter(|_| self.members.is_cut()) {
            return gone_is_zero(tasks);
        }
        let mut processes = 0;
        for member in &self.members {
            let max = if self.tasks.is_some() {
                COUNTED_MAX.saturating_sub(processes)
            } else {
                u64::MAX
            };
            match member.processes.count(max) {
                Ok(of_cgroup) => processes += of_cgroup,
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
            if let Some(tasks) = self.tasks.as_ref().filter(|_| processes > COUNTED_MAX) {
                return gone_is_zero(tasks);
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
