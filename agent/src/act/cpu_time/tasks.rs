//! CPU time and waiting of a cgroup, summed over its tasks: where no file of the cgroup says it.
//!
//! **Problem.** cgroup v1 has no pressure files, and no CPU time where `cpuacct` is mounted elsewhere; nor has v2 the
//! first with `psi=0`. **Approach.** `/proc/TID/schedstat` of each task has both since the task began
//! (Documentation/scheduler/sched-stats.rst). What a task gained between two looks is added to totals that only grow;
//! what it did after the last look before its end is missing.

use std::collections::BTreeMap;
use std::path::Path;

use crate::host::HostRoot;
use crate::host::file::{FileError, parse_u64, read_text};

/// Tasks of one cgroup that are looked at; what others do is missing.
pub(super) const TASKS_MAX: usize = 1024;

/// Nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// On a CPU.
    pub(super) ran_ns: u64,
    /// On a run queue, waiting for one.
    pub(super) waited_ns: u64,
}

/// The tasks of one cgroup.
#[derive(Debug, Default)]
pub(super) struct TaskTimes {
    known: BTreeMap<u64, Times>,
    sum: Times,
}

impl TaskTimes {
    /// Looks at all tasks in `list` (`tasks` on v1, `cgroup.threads` on v2) and returns the totals.
    pub(super) fn read(&mut self, host: &HostRoot, list: &Path) -> Result<Times, FileError> {
        let text = read_text(list)?;
        let ids = text.lines().filter_map(|line| parse_u64(line.as_bytes()));
        let mut now = BTreeMap::new();
        for id in ids.take(TASKS_MAX) {
            // It may have ended, or never have been on a CPU: then it has nothing to add.
            let Some(times) = times_of(host, id) else {
                continue;
            };
            // A number that is used again begins anew.
            let then = match self.known.get(&id) {
                Some(then) if then.ran_ns <= times.ran_ns => *then,
                _ => Times::default(),
            };
            self.sum.ran_ns += times.ran_ns - then.ran_ns;
            self.sum.waited_ns += times.waited_ns.saturating_sub(then.waited_ns);
            now.insert(id, times);
        }
        self.known = now;
        Ok(self.sum)
    }
}

/// `RAN_NS WAITED_NS TIMESLICES`.
fn times_of(host: &HostRoot, id: u64) -> Option<Times> {
    let text = read_text(host.procfs(format!("{id}/schedstat"))).ok()?;
    let mut words = text
        .split_ascii_whitespace()
        .map(|word| parse_u64(word.as_bytes()));
    Some(Times {
        ran_ns: words.next()??,
        waited_ns: words.next()??,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_grow_by_what_each_task_gains() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let list = dir.path().join("tasks");
        let task = |id: u64, text: &str| {
            let process = host.procfs(id.to_string());
            std::fs::create_dir_all(&process).unwrap();
            std::fs::write(process.join("schedstat"), text).unwrap();
        };
        let mut times = TaskTimes::default();
        let mut read = |ids: &str| {
            std::fs::write(&list, ids).unwrap();
            let Times { ran_ns, waited_ns } = times.read(&host, &list).unwrap();
            (ran_ns, waited_ns)
        };
        task(7, "1000 50 3\n");
        task(8, "10 1 1\n");
        assert_eq!(read("7\n8\n9\n"), (1010, 51));
        task(7, "1500 60 4\n");
        assert_eq!(read("7\n8\n"), (1510, 61));
        // 8 has ended: what it did stays. 7 is another task now.
        task(7, "5 1 1\n");
        assert_eq!(read("7\n"), (1515, 62));
        assert!(times.read(&host, &dir.path().join("none")).is_err());
    }
}
