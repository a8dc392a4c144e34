//! A witness of who may run where: samples the CPUs of processes while they are moved.
//!
//! **Problem.** "Nobody else was on an exclusive CPU at any instant" cannot be read from a file. **Approach.**
//! `Cpus_allowed_list` of every thread of the cgroups in question, over and over. One after the other they are read, so
//! that a conflict counts only if both masks are the same in the sample before and after: each was then so while the
//! other was read (unless it changed and changed back in those microseconds).

use std::path::PathBuf;

use plimsoll::host::HostRoot;
use plimsoll::host::file::read_text;
use plimsoll_core::placement::cpu_set::CpuSet;

/// Threads that are looked at in one sample.
const THREADS_MAX: usize = 65_536;

/// A thread that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Which of the cgroups it is in.
    pub(crate) group: usize,
    /// Its id.
    pub(crate) tid: u32,
    /// Where it may run.
    pub(crate) allowed: CpuSet,
}

/// Two that may run on one CPU, and one of them should be alone there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// Whose CPUs they are.
    pub(crate) owner: Seen,
    /// Who else may run there.
    pub(crate) other: Seen,
}

/// Looks at the threads of some cgroups.
#[derive(Debug)]
pub(crate) struct Witness {
    host: HostRoot,
    groups: Vec<PathBuf>,
    last: Vec<Sharing>,
}

impl Witness {
    /// Of the cgroups with these directories.
    pub(crate) fn new(host: &HostRoot, groups: Vec<PathBuf>) -> Self {
        Self {
            host: host.clone(),
            groups,
            last: Vec::new(),
        }
    }

    /// All threads, and where they may run now. One that ends meanwhile is left out.
    pub(crate) fn sample(&self) -> Vec<Seen> {
        let mut seen = Vec::new();
        for (group, dir) in self.groups.iter().enumerate() {
            let procs = read_text(dir.join("cgroup.procs")).unwrap_or_default();
            for pid in procs.lines() {
                let tasks = std::fs::read_dir(self.host.procfs(format!("{pid}/task")));
                for task in tasks.into_iter().flatten().filter_map(Result::ok) {
                    let status = read_text(task.path().join("status"));
                    let allowed = status.ok().and_then(|status| allowed(&status));
                    let tid = task.file_name().to_str().and_then(|tid| tid.parse().ok());
                    if let Some((tid, allowed)) = tid.zip(allowed)
                        && seen.len() < THREADS_MAX
                    {
                        seen.push(Seen {
                            group,
                            tid,
                            allowed,
                        });
                    }
                }
            }
        }
        seen
    }

    /// Takes a sample. Whoever runs on nothing but CPUs that are its group's `exclusive` must be alone there; returns
    /// who is not, now and in the sample before.
    pub(crate) fn look(&mut self, exclusive: &[(usize, CpuSet)]) -> Vec<Sharing> {
        let seen = self.sample();
        let mut now = Vec::new();
        for owner in &seen {
            let is_exclusive = |(group, cpus): &(usize, CpuSet)| {
                *group == owner.group && owner.allowed.is_subset(cpus)
            };
            if !exclusive.iter().any(is_exclusive) {
                continue;
            }
            let others = seen.iter().filter(|other| {
                other.group != owner.group && !other.allowed.is_disjoint(&owner.allowed)
            });
            now.extend(others.map(|other| Sharing {
                owner: owner.clone(),
                other: other.clone(),
            }));
        }
        let proven = now.iter().filter(|sharing| self.last.contains(sharing));
        let proven = proven.cloned().collect();
        self.last = now;
        proven
    }
}

fn allowed(status: &str) -> Option<CpuSet> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    CpuSet::parse(line).ok()
}
