//! The system calls that rustix does not wrap, and tokio's registration of a descriptor, each behind a safe function.
//! The only `unsafe` of the host side.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;
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

/// Frees the memory of a process that is already dying, from our CPU time instead of waiting for its own
/// (`process_mrelease(2)`, Linux 5.15).
///
/// # Errors
/// ESRCH: it has no memory any more, so there is nothing to do. EINVAL: it is not dying, or shares its memory with a
/// process that is not. EAGAIN: its memory is locked for the moment. ENOSYS: the kernel is too old.
pub fn process_mrelease(pidfd: BorrowedFd<'_>) -> Result<(), SyscallError> {
    let fd = pidfd.as_fd().as_raw_fd();
    // SAFETY: process_mrelease takes two integers and touches no memory of ours; `fd` is open for as long as `pidfd` is
    // borrowed, and a descriptor that is no pidfd is answered with EBADF.
    let result = unsafe { libc::syscall(libc::SYS_process_mrelease, fd, 0) };
    check("process_mrelease", result)
}

/// Locks the pages from `start` to `end` in memory, and brings in those that are not there (`mlock(2)`).
///
/// # Errors
/// ENOMEM: something there is not mapped, or cannot be read, or the limit is met. EPERM without CAP_IPC_LOCK.
pub fn mlock(start: usize, end: usize) -> Result<(), SyscallError> {
    let bytes = end.saturating_sub(start);
    // SAFETY: the kernel only reads the range's numbers; it changes neither what is mapped there nor what is in it, and
    // refuses a range that is not mapped.
    let result = unsafe { libc::syscall(libc::SYS_mlock, start, bytes) };
    check("mlock", result)
}

/// Has the allocator give the kernel all pages back in which nothing is allocated any more. Does nothing where the C
/// library has no such call.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers; glibc documents it as safe to call from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the allocator write to each block that it hands out from now on, or no longer, so that the block's pages are
/// there before they are needed. Does nothing where the C library has no such option.
pub fn fill_allocations(fills: bool) {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers. What is written is in blocks that nobody has yet, or nobody has any more.
    unsafe {
        libc::mallopt(libc::M_PERTURB, i32::from(fills));
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = fills;
}

/// Puts the calling thread under SCHED_FIFO at `priority` (1 is the lowest), with SCHED_RESET_ON_FORK so that no child
/// inherits it.
///
/// # Errors
/// EPERM without CAP_SYS_NICE, or when the cgroup has no real-time budget (`cpu.rt_runtime_us` on v1,
/// CONFIG_RT_GROUP_SCHED).
pub fn sched_fifo_reset_on_fork(priority: i32) -> Result<(), SyscallError> {
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    set_scheduler(CALLING_THREAD, policy, priority)
}

/// Puts a thread, or the calling one, under SCHED_RR at `priority` (1 is the lowest), with SCHED_RESET_ON_FORK. No
/// weight, quota or idle state of a cgroup's CPU controller holds it back any more.
///
/// # Errors
/// As for [`sched_fifo_reset_on_fork`]; ESRCH when the thread has ended.
pub fn sched_rr_reset_on_fork(thread: Option<Pid>, priority: i32) -> Result<(), SyscallError> {
    let thread = thread.map_or(CALLING_THREAD, |thread| thread.as_raw_nonzero().get());
    set_scheduler(thread, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, priority)
}

/// Puts the calling thread back under SCHED_OTHER.
///
/// # Errors
/// None that is known for a thread's own return to SCHED_OTHER; typed all the same.
pub fn sched_other() -> Result<(), SyscallError> {
    set_scheduler(CALLING_THREAD, libc::SCHED_OTHER, 0)
}

/// Puts the calling thread under SCHED_IDLE: it runs when nothing else wants the CPU. [`sched_other`] takes it back.
///
/// # Errors
/// None that is known for a thread that lowers itself; typed all the same.
pub fn sched_idle() -> Result<(), SyscallError> {
    set_scheduler(CALLING_THREAD, libc::SCHED_IDLE, 0)
}

/// Frees the whole pages of `memory` lazily (`madvise(2)`, MADV_FREE), and writes to each of them again, so that none
/// is free. For a workload of the tests, which has no `unsafe`.
///
/// # Errors
/// EINVAL: it is not anonymous memory, or locked.
pub fn free_lazily_and_write(memory: &mut [u8]) -> Result<(), SyscallError> {
    let page_bytes = rustix::param::page_size();
    let first = memory.as_ptr().align_offset(page_bytes).min(memory.len());
    let pages = &mut memory[first..];
    let whole_bytes = pages.len() / page_bytes * page_bytes;
    let pages = &mut pages[..whole_bytes];
    if pages.is_empty() {
        return Ok(());
    }
    // SAFETY: whole pages within `memory`, which nobody else reads or writes while it is borrowed. Until a page is
    // written its bytes may become zeros at any time; each is written below, and none is read before.
    let result = unsafe { libc::madvise(pages.as_mut_ptr().cast(), pages.len(), libc::MADV_FREE) };
    for byte in pages.iter_mut().step_by(page_bytes) {
        // SAFETY: a byte that is borrowed for writing. Volatile: that the page is written is what counts.
        unsafe { std::ptr::from_mut(byte).write_volatile(1) };
    }
    check("madvise", result.into())
}

/// As the scheduler calls have it.
const CALLING_THREAD: i32 = 0;

fn set_scheduler(thread: i32, policy: i32, priority: i32) -> Result<(), SyscallError> {
    let parameter = sched_param(priority);
    // SAFETY: `parameter` is a live, initialised sched_param that the kernel only reads, during the call.
    // The raw call is used because musl's wrapper of this name always answers ENOSYS.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread,
            policy,
            &raw const parameter,
        )
    };
    check("sched_setscheduler", result)
}

/// How the calling thread's disk requests stand beside those of others (`ioprio_set(2)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoPriority {
    /// Only when nobody else wants the disk (IOPRIO_CLASS_IDLE).
    Idle,
    /// As by the thread's nice value (IOPRIO_CLASS_NONE).
    Ordinary,
}

/// Sets the calling thread's I/O priority. Schedulers without classes ignore it.
///
/// # Errors
/// EPERM where a security module forbids it.
pub fn ioprio_set(priority: IoPriority) -> Result<(), SyscallError> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    const IOPRIO_CLASS_SHIFT: u32 = 13;
    let value: libc::c_int = match priority {
        IoPriority::Idle => 3 << IOPRIO_CLASS_SHIFT,
        IoPriority::Ordinary => 0,
    };
    // SAFETY: ioprio_set takes three integers and touches no memory of ours; `who` 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, value) };
    check("ioprio_set", result)
}

/// The project that a file or directory is accounted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Project {
    /// Its number; 0 is the default project, that of everything nobody has put elsewhere.
    pub id: u32,
    /// Whether what is made in this directory belongs to it too (FS_XFLAG_PROJINHERIT).
    pub is_inherited: bool,
}

/// The project of the open file `fd` (`ioctl(FS_IOC_FSGETXATTR)`).
///
/// # Errors
/// ENOTTY or EOPNOTSUPP: the file system knows no projects.
pub fn project_of(fd: BorrowedFd<'_>) -> Result<Project, SyscallError> {
    // `struct fsxattr` of linux/fs.h.
    #[repr(C)]
    #[derive(Default)]
    struct FsXattr {
        xflags: u32,
        extsize: u32,
        nextents: u32,
        projid: u32,
        cowextsize: u32,
        pad: [u8; 8],
    }
    const _: () = assert!(size_of::<FsXattr>() == 28);
    // _IOR('X', 31, struct fsxattr)
    const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801c_581f;
    const FS_XFLAG_PROJINHERIT: u32 = 0x200;
    let mut attributes = FsXattr::default();
    // SAFETY: the request's number says that the kernel writes 28 bytes, the size of `attributes` (asserted above),
    // which lives for the call; every bit pattern is a valid FsXattr. A file system that does not know the request
    // answers with an error.
    let result = unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            fd.as_raw_fd(),
            FS_IOC_FSGETXATTR,
            &raw mut attributes,
        )
    };
    check("ioctl(FS_IOC_FSGETXATTR)", result)?;
    Ok(Project {
        id: attributes.projid,
        is_inherited: attributes.xflags & FS_XFLAG_PROJINHERIT != 0,
    })
}

/// What a project takes: `(bytes, inodes)`, as the file system that `fd` is on keeps count (`quotactl_fd(Q_GETQUOTA)`,
/// Linux 5.14).
///
/// # Errors
/// ESRCH: project quotas are off, or none is kept for this project. EPERM: it needs CAP_SYS_ADMIN. ENOSYS: no quotas
/// here.
pub fn project_usage(fd: BorrowedFd<'_>, project: u32) -> Result<(u64, u64), SyscallError> {
    // `struct if_dqblk` of linux/quota.h.
    #[repr(C)]
    #[derive(Default)]
    struct IfDqblk {
        bhardlimit: u64,
        bsoftlimit: u64,
        curspace: u64,
        ihardlimit: u64,
        isoftlimit: u64,
        curinodes: u64,
        btime: u64,
        itime: u64,
        valid: u32,
    }
    const _: () = assert!(size_of::<IfDqblk>() == 72);
    const PRJQUOTA: libc::c_uint = 2;
    const Q_GETQUOTA: libc::c_uint = 0x80_0007;
    const QIF_SPACE_AND_INODES: u32 = 2 | 8;
    let mut block = IfDqblk::default();
    // SAFETY: Q_GETQUOTA writes one if_dqblk, the size of `block` (asserted above), which lives for the call; every bit
    // pattern is a valid IfDqblk. The other arguments are integers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            fd.as_raw_fd(),
            Q_GETQUOTA << 8 | PRJQUOTA,
            project,
            &raw mut block,
        )
    };
    check("quotactl_fd(Q_GETQUOTA)", result)?;
    if block.valid & QIF_SPACE_AND_INODES != QIF_SPACE_AND_INODES {
        return Err(SyscallError {
            call: "quotactl_fd(Q_GETQUOTA)",
            source: Errno::SRCH,
        });
    }
    Ok((block.curspace, block.curinodes))
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
/// If `dup` or the registration with epoll fails.
pub fn watch(fd: BorrowedFd<'_>, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    let clone = fd.try_clone_to_owned()?;
    // SAFETY: an `OwnedFd` names the same open descriptor for as long as it lives, and `AsyncFd` deregisters before
    // dropping it.
    unsafe { AsyncFd::register_with_interest(clone, interest) }.map_err(io::Error::from)
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

    /// The scheduling policy of the calling thread (proc_pid_stat(5), field 41).
    fn sched_policy() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, from_third) = stat.rsplit_once(") ").unwrap();
        let field = from_third.split(' ').nth(41 - 3);
        field.unwrap().parse().unwrap()
    }

    #[test]
    fn a_thread_steps_back_and_forward_again() {
        std::thread::spawn(|| {
            sched_idle().unwrap();
            assert_eq!(sched_policy(), libc::SCHED_IDLE);
            sched_other().unwrap();
            assert_eq!(sched_policy(), libc::SCHED_OTHER);
            ioprio_set(IoPriority::Idle).unwrap();
            ioprio_set(IoPriority::Ordinary).unwrap();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn memory_that_is_freed_lazily_and_written_is_there() {
        let page_bytes = rustix::param::page_size();
        // Larger than what malloc takes from its heap.
        let mut memory = vec![7_u8; 64 << 20];
        // Another test may have locked all memory of this process: then it is refused, and written all the same.
        if let Err(error) = free_lazily_and_write(&mut memory) {
            assert_eq!(error.source, Errno::INVAL, "{error}");
        }
        let written = memory.iter().filter(|byte| **byte == 1).count();
        let pages = memory.len() / page_bytes;
        assert!((pages - 1..=pages).contains(&written), "{written} pages");
        let mut none = [7_u8; 8];
        assert!(free_lazily_and_write(&mut none).is_ok());
        assert_eq!(none, [7; 8]);
    }

    #[test]
    fn a_file_system_without_projects_says_so() {
        let file = std::fs::File::open("/proc/meminfo").unwrap();
        let error = project_of(file.as_fd()).unwrap_err();
        assert!(
            matches!(error.source, Errno::NOTTY | Errno::OPNOTSUPP),
            "{error}"
        );
        assert!(project_usage(file.as_fd(), 1).is_err());
    }

    #[test]
    fn a_priority_out_of_range_is_refused() {
        assert_eq!(
            sched_fifo_reset_on_fork(1000).unwrap_err().source,
            Errno::INVAL
        );
    }
}
