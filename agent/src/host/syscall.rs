//! The system calls that rustix does not wrap, and tokio's registration of a descriptor, each behind a safe function. The only `unsafe` of the host side.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A refused system call: which one, and the kernel's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {source}")]
pub struct SyscallError {
    /// The call's name in the manual's section 2.
    pub call: &'static str,
    /// The kernel's answer.
    #[source]
    pub source: Errno,
}

/// Frees the memory of a process that is already dying, from our CPU time instead of waiting for its own (`process_mrelease(2)`, Linux 5.15).
///
/// # Errors
/// ESRCH: it has no memory any more, so there is nothing to do. EINVAL: it is not dying, or shares its memory with a process that is not.
/// EAGAIN: its memory is locked for the moment. ENOSYS: the kernel is too old.
pub fn process_mrelease(pidfd: BorrowedFd<'_>) -> Result<(), SyscallError> {
    let fd = pidfd.as_fd().as_raw_fd();
    // SAFETY: process_mrelease takes two integers and touches no memory of ours; `fd` is open for as long as `pidfd` is borrowed, and a
    // descriptor that is no pidfd is answered with EBADF.
    let result = unsafe { libc::syscall(libc::SYS_process_mrelease, fd, 0) };
    check("process_mrelease", result)
}

/// Puts the calling thread under SCHED_FIFO at `priority` (1 is the lowest), with SCHED_RESET_ON_FORK so that no child inherits it.
///
/// # Errors
/// EPERM without CAP_SYS_NICE, or when the cgroup has no real-time budget (`cpu.rt_runtime_us` on v1, CONFIG_RT_GROUP_SCHED).
pub fn sched_fifo_reset_on_fork(priority: i32) -> Result<(), SyscallError> {
    let parameter = sched_param(priority);
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: pid 0 is the calling thread, and `parameter` is a live, initialised sched_param that the kernel only reads, during the call.
    // The raw call is used because musl's wrapper of this name always answers ENOSYS.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            policy,
            &raw const parameter,
        )
    };
    check("sched_setscheduler", result)
}

/// Puts the calling thread back under SCHED_OTHER.
///
/// # Errors
/// None that is known for a thread's own return to SCHED_OTHER; typed all the same.
pub fn sched_other() -> Result<(), SyscallError> {
    let parameter = sched_param(0);
    // SAFETY: as in `sched_fifo_reset_on_fork`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            libc::SCHED_OTHER,
            &raw const parameter,
        )
    };
    check("sched_setscheduler", result)
}

/// The scheduling policy of the calling thread, with the SCHED_RESET_ON_FORK bit, as `sched_getscheduler(2)` returns it.
///
/// # Errors
/// None that is known for the calling thread; typed all the same.
pub fn sched_policy() -> Result<i32, SyscallError> {
    // SAFETY: takes one integer and touches no memory of ours; pid 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    check("sched_getscheduler", result).map(|()| i32::try_from(result).unwrap_or(i32::MAX))
}

#[cfg(not(target_env = "musl"))]
fn sched_param(priority: i32) -> libc::sched_param {
    libc::sched_param {
        sched_priority: priority,
    }
}

// musl's sched_param has reserved fields beside the priority; zero is what its header asks for.
#[cfg(target_env = "musl")]
fn sched_param(priority: i32) -> libc::sched_param {
    let zero = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    libc::sched_param {
        sched_priority: priority,
        sched_ss_low_priority: 0,
        sched_ss_repl_period: zero,
        sched_ss_init_budget: zero,
        sched_ss_max_repl: 0,
    }
}

fn check(call: &'static str, result: libc::c_long) -> Result<(), SyscallError> {
    if result >= 0 {
        return Ok(());
    }
    // libc::syscall leaves the error number in this thread's errno.
    let source = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    Err(SyscallError { call, source })
}

/// A descriptor of our own for what is behind `fd`, to be waited for in tokio's event loop.
///
/// # Errors
/// When no descriptor is to be had, or it cannot be waited for.
pub fn watch(fd: BorrowedFd<'_>, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    let own = fd.try_clone_to_owned()?;
    // SAFETY: an `OwnedFd` names the same open descriptor for as long as it lives, and `AsyncFd` deregisters before dropping it.
    unsafe { AsyncFd::register_with_interest(own, interest) }.map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    #[test]
    fn mrelease_refuses_the_living_and_the_wrong_descriptor() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let error = process_mrelease(pidfd.as_fd()).unwrap_err();
        assert_eq!(
            (error.call, error.source),
            ("process_mrelease", Errno::INVAL)
        );
        let file = std::fs::File::open("/proc/meminfo").unwrap();
        assert_eq!(
            process_mrelease(file.as_fd()).unwrap_err().source,
            Errno::BADF
        );
        pidfd_send_signal(&pidfd, Signal::KILL).unwrap();
        child.wait().unwrap();
        assert_eq!(
            process_mrelease(pidfd.as_fd()).unwrap_err().source,
            Errno::SRCH
        );
    }

    #[test]
    fn a_priority_out_of_range_is_refused() {
        assert_eq!(
            sched_fifo_reset_on_fork(1000).unwrap_err().source,
            Errno::INVAL
        );
    }
}
