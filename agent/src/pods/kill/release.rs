//! Gets the memory of a killed pod back: hurries its processes out, and frees their pages in their stead.
//!
//! **Problem.** A killed process frees its memory when it runs again, and a pod decides how soon that is: SCHED_IDLE or
//! a CPU that a neighbour keeps busy need no privilege, `cpu.max` throttles it. `process_mrelease(2)` frees its pages
//! from the CPU time of the caller, but first waits for the `mmap_lock` of the victim, which a thread of the victim may
//! hold while it does not run. **Approach.** Each dying thread gets SCHED_RR, which no weight, quota or idle state of a
//! cgroup applies to, and all CPUs of its cpuset. Then the caller frees the pages. All of it may block for as long as
//! the memory is large: this is for a thread that nobody waits for.
//!
//! **Only the dying are hurried.** The flags or the pending signals of a thread say that it never returns to user mode
//! (`PF_EXITING`, `PF_SIGNALED`, or a pending SIGKILL). A pid that another process has by now fails that test.

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::member::Processes;
use super::sweep::each_below;
use crate::host::HostRoot;
use crate::host::file::FileError;
use crate::host::protect::RELEASE_PRIORITY;
use crate::host::syscall::{process_mrelease, sched_rr_reset_on_fork};

/// Processes that one call of [`release`] works on.
pub const PROCESSES_MAX: usize = 4096;
/// Cgroups of one pod that one call reads.
const CGROUPS_MAX: u32 = 4096;
/// Threads of one process that are hurried.
const THREADS_MAX: usize = 1024;

/// `PF_EXITING` and `PF_SIGNALED` (include/linux/sched.h).
const ENDING_FLAGS: u64 = 0x4 | 0x400;
/// SIGKILL in a set of pending signals.
const SIGKILL_PENDING: u64 = 1 << (9 - 1);
/// Fields of `/proc/PID/task/TID/stat` (proc(5)), counted from 1.
const FLAGS_FIELD: usize = 9;
const PENDING_FIELD: usize = 31;
const POLICY_FIELD: usize = 41;
const SCHED_RR: u64 = 2;

/// What [`release`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Released {
    /// Processes that are still listed in the cgroups that were read.
    pub listed: u32,
    /// Where the next call goes on, if there were more cgroups or processes than one call reads.
    pub next: Option<u32>,
    /// Dying processes whose memory was freed.
    pub freed: u32,
    /// Processes that had no memory any more.
    pub already_gone: u32,
    /// Processes for which the kernel refused: not dying, sharing memory with one that is not, or locked. Their own
    /// exit frees it.
    pub refused: u32,
    /// Threads that were hurried.
    pub hurried: u32,
}

/// Hurries the processes out that are dying in the pod's cgroup and below, and frees their memory. Takes as long as the
/// kernel needs to unmap their pages. `skip`: cgroups that an earlier call has read.
///
/// # Errors
/// [`FileError`] when no process could be found because a cgroup cannot be read. A cgroup that is gone is no error.
pub fn release(host: &HostRoot, pod_dir: &Arc<Path>, skip: u32) -> Result<Released, FileError> {
    let (pids, next) = processes(pod_dir, skip)?;
    let mut released = Released {
        listed: u32::try_from(pids.len()).unwrap_or(u32::MAX),
        next,
        ..Released::default()
    };
    // All of them first: one that is not running may hold what frees another.
    for pid in &pids {
        released.hurried += hurry(host, *pid);
    }
    for pid in pids {
        // A stranger behind a reused pid is not dying, so the kernel refuses; and freeing a dying one's memory harms no
        // other.
        let freed = pidfd_open(pid, PidfdFlags::empty())
            .and_then(|pidfd| process_mrelease(pidfd.as_fd()).map_err(|error| error.source));
        match freed {
            Ok(()) => released.freed += 1,
            Err(Errno::SRCH) => released.already_gone += 1,
            Err(_) => released.refused += 1,
        }
    }
    Ok(released)
}

/// Processes of a pod, and where to go on.
fn processes(pod_dir: &Arc<Path>, skip: u32) -> Result<(Vec<Pid>, Option<u32>), FileError> {
    let pids = RefCell::new(Vec::new());
    let cgroups = Cell::new(0_u32);
    let end = skip.saturating_add(CGROUPS_MAX);
    let walked = each_below(
        pod_dir,
        &mut |_| {
            cgroups.set(cgroups.get() + 1);
            cgroups.get() < end && pids.borrow().len() < PROCESSES_MAX
        },
        &mut |dir, _| {
            if cgroups.get() < skip {
                return Ok(());
            }
            let processes = Processes::of(dir, Arc::clone(pod_dir))?;
            processes.for_each_pid(&mut |pid| {
                let mut pids = pids.borrow_mut();
                if pids.len() < PROCESSES_MAX {
                    pids.push(pid);
                }
            })
        },
    );
    let is_cut = match walked {
        Ok(is_whole) => !is_whole,
        Err(error) if pids.borrow().is_empty() && !error.is_vanished() => return Err(error),
        Err(_) => false,
    };
    Ok((pids.into_inner(), is_cut.then(|| cgroups.get())))
}

/// Gives the dying threads of a process the CPU. Returns how many.
fn hurry(host: &HostRoot, pid: Pid) -> u32 {
    let tasks = host.procfs(format!("{}/task", pid.as_raw_nonzero()));
    let Ok(entries) = std::fs::read_dir(&tasks) else {
        return 0; // it has ended
    };
    let mut hurried = 0;
    for entry in entries.take(THREADS_MAX).filter_map(Result::ok) {
        let thread = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(thread) = thread.and_then(Pid::from_raw) else {
            continue;
        };
        let Ok(stat) = std::fs::read(entry.path().join("stat")) else {
            continue;
        };
        if !needs_hurry(&stat) {
            continue;
        }
        // Both are help only. Where SCHED_RR is refused, so was the loop's SCHED_FIFO, which the agent has warned of.
        let is_scheduled = sched_rr_reset_on_fork(Some(thread), RELEASE_PRIORITY).is_ok();
        let mut all = CpuSet::new();
        for cpu in 0..CpuSet::MAX_CPU {
            all.set(cpu);
        }
        sched_setaffinity(Some(thread), &all).ok();
        hurried += u32::from(is_scheduled);
    }
    hurried
}

/// Whether a thread is dying and does not have SCHED_RR yet. `stat`: its `/proc/PID/task/TID/stat`.
fn needs_hurry(stat: &[u8]) -> bool {
    // The command may contain anything, so count from its closing parenthesis: state is field 3.
    let Some(end) = stat.iter().rposition(|byte| *byte == b')') else {
        return false;
    };
    let fields: Vec<&[u8]> = stat[end + 1..]
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty())
        .collect();
    let field = |number: usize| {
        let digits = std::str::from_utf8(fields.get(number - 3)?).ok()?;
        digits.parse::<u64>().ok()
    };
    let is_dying = field(FLAGS_FIELD).is_some_and(|flags| flags & ENDING_FLAGS != 0)
        || field(PENDING_FIELD).is_some_and(|pending| pending & SIGKILL_PENDING != 0);
    is_dying && field(POLICY_FIELD).is_some_and(|policy| policy != SCHED_RR)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `stat` with these fields, and the command `a) R (b`.
    fn stat(flags: u64, pending: u64, policy: u64) -> Vec<u8> {
        let mut fields = vec!["0".to_owned(); 50];
        fields[0] = "S".to_owned();
        fields[FLAGS_FIELD - 3] = flags.to_string();
        fields[PENDING_FIELD - 3] = pending.to_string();
        fields[POLICY_FIELD - 3] = policy.to_string();
        format!("7 (a) R (b) {}\n", fields.join(" ")).into_bytes()
    }

    #[test]
    fn only_dying_threads_are_hurried_and_only_once() {
        assert!(!needs_hurry(&stat(0x40_0100, 0, 0)));
        assert!(needs_hurry(&stat(0x40_0104, 0, 0)), "PF_EXITING");
        assert!(needs_hurry(&stat(0x40_0500, 0, 0)), "PF_SIGNALED");
        assert!(needs_hurry(&stat(0, SIGKILL_PENDING, 5)), "SIGKILL pending");
        assert!(!needs_hurry(&stat(0, 1 << 14, 5)), "SIGTERM pending");
        assert!(!needs_hurry(&stat(0x4, 0, SCHED_RR)));
        for text in [&b""[..], b"7 (a", b"7 (a) S 1 2"] {
            assert!(!needs_hurry(text));
        }
    }

    #[test]
    fn a_pod_that_is_gone_has_nothing_to_release() {
        let dir = tempfile::tempdir().unwrap();
        let released = release(&HostRoot::live(), &Arc::from(dir.path().join("gone")), 0).unwrap();
        assert_eq!(released, Released::default());
    }

    #[test]
    fn cgroups_beyond_those_of_one_call_come_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let pod_dir: Arc<Path> = Arc::from(dir.path());
        std::fs::write(dir.path().join("cgroup.procs"), "").unwrap();
        for index in 0..CGROUPS_MAX + 9 {
            let cgroup = dir.path().join(format!("c{index}"));
            std::fs::create_dir(&cgroup).unwrap();
            std::fs::write(cgroup.join("cgroup.procs"), "").unwrap();
        }
        let first = release(&HostRoot::live(), &pod_dir, 0).unwrap();
        let next = first.next.expect("there are more");
        assert_eq!((first.listed, next), (0, CGROUPS_MAX));
        let rest = release(&HostRoot::live(), &pod_dir, next).unwrap();
        assert_eq!(rest.next, None);
    }
}
