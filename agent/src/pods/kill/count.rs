//! How many processes a pod has, from the directories that [`PodKill`] holds open.

use super::{
    Errno, FileError, Member, PROCS_CHUNK_BYTES, PROCS_CHUNKS_MAX, PodKill, file_error, open_procs,
};

impl PodKill {
    /// Processes in the pod's cgroup and in those below it, as of the last refresh of its cgroups. Allocates nothing.
    ///
    /// The kubelet adds up its containers (1.36, pkg/kubelet/stats/cri_stats_provider.go `addProcessStats`), and cAdvisor counts
    /// the lines of a container's `cgroup.procs` (container/libcontainer/handler.go `processStatsFromProcs`); it does not look
    /// into cgroups that a container makes for itself. Here these count too: their processes take PIDs like any other.
    ///
    /// # Errors
    /// [`FileError::Unreadable`] when a `cgroup.procs` cannot be read. A cgroup that is gone has no processes.
    pub fn count_processes(&self) -> Result<u64, FileError> {
        let mut processes = 0;
        for member in &self.members {
            match member.count_processes() {
                Ok(of_cgroup) => processes += of_cgroup,
                // The processes of a threaded cgroup are listed in the cgroup that is the root of its domain.
                Err(FileError::Unreadable {
                    source: Errno::OPNOTSUPP,
                    ..
                }) => {}
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(processes)
    }
}

impl Member {
    /// Lines, not pids: a process whose pid we do not see (it shows as 0) counts.
    fn count_processes(&self) -> Result<u64, FileError> {
        let procs = open_procs(&self.dir).map_err(|errno| file_error(&self.path, errno))?;
        let mut buffer = [0; PROCS_CHUNK_BYTES];
        let mut lines = 0;
        for _ in 0..PROCS_CHUNKS_MAX {
            let filled = rustix::io::retry_on_intr(|| rustix::io::read(&procs, &mut buffer))
                .map_err(|errno| file_error(&self.path, errno))?;
            if filled == 0 {
                break;
            }
            let ends = buffer[..filled].iter().filter(|byte| **byte == b'\n');
            lines += ends.count() as u64;
        }
        Ok(lines)
    }
}
