//! The C library's calls that the agent reaches the kernel by, answered by the model.
//!
//! This program defines them under the C library's names, so that the standard library, rustix (built for the C library: feature
//! `simulation`), aya, tokio and libc all arrive here. The agent has no part in it: nothing of it is built differently. A call from no thread of the
//! agent, and one of the model itself, goes to the kernel as it is.
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::missing_safety_doc,
    reason = "each function has the contract of the C library's function of its name, and each block is that call"
)]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};

use crate::bpf;
use crate::fault::operation;
use crate::files::Kind;
use crate::kernel::{answer, next, raw, refuse};
use crate::machine::{self, MS};
use crate::threads::{State, Thread, advance, switch, wait};
use crate::world::{self, AGENT_PID, enter, world};

/// What operations cost, nanoseconds.
const OPEN_NS: u64 = 4_000;
const READ_NS: u64 = 2_000;
const WRITE_NS: u64 = 5_000;
const ENTRY_NS: u64 = 250;
/// 103 ms for 20,000 of them (FAULTS.md B4).
const CGROUP_ENTRY_NS: u64 = 5_000;
const CALL_NS: u64 = 1_000;
const CLOCK_NS: u64 = 40;
/// The write of `cgroup.kill`, and making and removing a cgroup, median (FAULTS.md C3).
const CGROUP_NS: u64 = 24_000;

fn path_of(dirfd: c_int, path: *const c_char) -> String {
    world().path_of(dirfd, unsafe { CStr::from_ptr(path) })
}

/// With the operation's cost; an error is the answer.
macro_rules! operation {
    ($call:literal, $path:expr, $cost:expr) => {
        if let Err(errno) = operation($call, $path, $cost) {
            return refuse(errno).try_into().unwrap_or(-1);
        }
    };
}

fn small(result: isize) -> c_int {
    c_int::try_from(answer(result)).unwrap_or(-1)
}

// Files by name.

fn open_at(dirfd: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    let Some(_inside) = enter() else {
        let arguments = [
            dirfd as usize,
            path as usize,
            flags as usize,
            mode as usize,
            0,
            0,
        ];
        return small(unsafe { raw(libc::SYS_openat, arguments) });
    };
    let path = path_of(dirfd, path);
    operation!("open", &path, OPEN_NS);
    small(world().open(path, flags, mode))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    open_at(dirfd, path, flags, mode)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    open_at(dirfd, path, flags, mode)
}

/// The path to ask the kernel for, or the error: what the model makes is not there as a file.
fn place(path: &str) -> Result<std::ffi::CString, c_int> {
    let world = world();
    match world.machine.makes(path) {
        Some(false) => Err(libc::ENOENT),
        Some(true) => Ok(world.place_of("/proc/placeholder")),
        None => Ok(world.place_of(path)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statx(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut libc::statx,
) -> c_int {
    let call = |dirfd: c_int, path: *const c_char| {
        let arguments = [
            dirfd as usize,
            path as usize,
            flags as usize,
            mask as usize,
            to as usize,
            0,
        ];
        small(unsafe { raw(libc::SYS_statx, arguments) })
    };
    let Some(_inside) = enter() else {
        return call(dirfd, path);
    };
    if path.is_null() || unsafe { *path } == 0 {
        return call(dirfd, path);
    }
    let path = path_of(dirfd, path);
    operation!("stat", &path, CALL_NS);
    world().offer_pins(&path);
    match place(&path) {
        Ok(place) => call(libc::AT_FDCWD, place.as_ptr()),
        Err(errno) => small(-(errno as isize)),
    }
}

fn stat_at(dirfd: c_int, path: *const c_char, to: *mut c_void, flags: c_int) -> c_int {
    let call = |dirfd: c_int, path: *const c_char| {
        let arguments = [
            dirfd as usize,
            path as usize,
            to as usize,
            flags as usize,
            0,
            0,
        ];
        small(unsafe { raw(libc::SYS_newfstatat, arguments) })
    };
    let Some(_inside) = enter() else {
        return call(dirfd, path);
    };
    if unsafe { *path } == 0 {
        return call(dirfd, path);
    }
    let path = path_of(dirfd, path);
    operation!("stat", &path, CALL_NS);
    world().offer_pins(&path);
    match place(&path) {
        Ok(place) => call(libc::AT_FDCWD, place.as_ptr()),
        Err(errno) => small(-(errno as isize)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat64(path: *const c_char, to: *mut c_void) -> c_int {
    stat_at(libc::AT_FDCWD, path, to, 0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, to: *mut c_void) -> c_int {
    stat_at(libc::AT_FDCWD, path, to, 0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lstat64(path: *const c_char, to: *mut c_void) -> c_int {
    stat_at(libc::AT_FDCWD, path, to, libc::AT_SYMLINK_NOFOLLOW)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat64(
    dirfd: c_int,
    path: *const c_char,
    to: *mut c_void,
    flags: c_int,
) -> c_int {
    stat_at(dirfd, path, to, flags)
}

fn statfs_at(path: *const c_char, to: *mut libc::statfs64) -> c_int {
    let call = |path: *const c_char| {
        small(unsafe { raw(libc::SYS_statfs, [path as usize, to as usize, 0, 0, 0, 0]) })
    };
    let Some(_inside) = enter() else {
        return call(path);
    };
    let path = path_of(libc::AT_FDCWD, path);
    operation!("stat", &path, CALL_NS);
    let result = call(world().place_of(&path).as_ptr());
    if result == 0 {
        disk(&path, to);
    }
    result
}

/// A disk of 100 GiB, half full; and the BPF file system is one.
fn disk(path: &str, to: *mut libc::statfs64) {
    const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
    let to = unsafe { &mut *to };
    (to.f_bsize, to.f_frsize) = (4096, 4096);
    (to.f_blocks, to.f_bfree, to.f_bavail) = (26_214_400, 13_107_200, 13_107_200);
    (to.f_files, to.f_ffree) = (1_000_000, 900_000);
    if path.starts_with("/sys/fs/bpf") {
        to.f_type = BPF_FS_MAGIC as _;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statfs64(path: *const c_char, to: *mut libc::statfs64) -> c_int {
    statfs_at(path, to)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatfs64(fd: c_int, to: *mut libc::statfs64) -> c_int {
    let result = small(unsafe { raw(libc::SYS_fstatfs, [fd as usize, to as usize, 0, 0, 0, 0]) });
    if let Some(_inside) = enter()
        && result == 0
    {
        let path = world()
            .fds
            .get(&fd)
            .map(|fd| fd.path.clone())
            .unwrap_or_default();
        disk(&path, to);
    }
    result
}

fn fill_statvfs(to: *mut libc::statvfs64) -> c_int {
    let to = unsafe { &mut *to };
    *to = unsafe { std::mem::zeroed() };
    (to.f_bsize, to.f_frsize, to.f_namemax) = (4096, 4096, 255);
    (to.f_blocks, to.f_bfree, to.f_bavail) = (26_214_400, 13_107_200, 13_107_200);
    (to.f_files, to.f_ffree, to.f_favail) = (1_000_000, 900_000, 900_000);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statvfs64(path: *const c_char, to: *mut libc::statvfs64) -> c_int {
    let Some(_inside) = enter() else {
        return fill_statvfs(to);
    };
    let path = path_of(libc::AT_FDCWD, path);
    operation!("stat", &path, CALL_NS);
    if !std::path::Path::new(&*world().place_of(&path).to_string_lossy()).exists() {
        return small(-(libc::ENOENT as isize));
    }
    fill_statvfs(to)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatvfs64(_fd: c_int, to: *mut libc::statvfs64) -> c_int {
    fill_statvfs(to)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    let real: unsafe extern "C" fn(*const c_char) -> *mut libc::DIR =
        unsafe { std::mem::transmute(next(c"opendir")) };
    let Some(_inside) = enter() else {
        return unsafe { real(path) };
    };
    let path = path_of(libc::AT_FDCWD, path);
    if let Err(errno) = operation("opendir", &path, OPEN_NS) {
        refuse(errno);
        return std::ptr::null_mut();
    }
    let place = world().place_of(&path);
    let dir = unsafe { real(place.as_ptr()) };
    if crate::world::World::cgroup_path(&path).is_some() {
        world().cgroup_dirs.insert(dir as usize);
    } else {
        world().cgroup_dirs.remove(&(dir as usize));
    }
    dir
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readdir64(dir: *mut libc::DIR) -> *mut libc::dirent64 {
    let real: unsafe extern "C" fn(*mut libc::DIR) -> *mut libc::dirent64 =
        unsafe { std::mem::transmute(next(c"readdir64")) };
    if let Some(_inside) = enter() {
        let it = world();
        let cost_ns = if it.cgroup_dirs.contains(&(dir as usize)) {
            CGROUP_ENTRY_NS
        } else {
            ENTRY_NS
        };
        if it.threads[it.current].is_loop {
            it.checks.spent("opendir", cost_ns);
        }
        advance(cost_ns);
    }
    unsafe { real(dir) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdirat(dirfd: c_int, path: *const c_char, mode: c_uint) -> c_int {
    let call = |dirfd: c_int, path: *const c_char| {
        small(unsafe {
            raw(
                libc::SYS_mkdirat,
                [dirfd as usize, path as usize, mode as usize, 0, 0, 0],
            )
        })
    };
    let Some(_inside) = enter() else {
        return call(dirfd, path);
    };
    let path = path_of(dirfd, path);
    operation!("mkdir", &path, CGROUP_NS);
    if let Some(cgroup) = crate::world::World::cgroup_path(&path) {
        let cgroup = cgroup.to_owned();
        return match world().make_cgroup(&cgroup, true) {
            Ok(_) => 0,
            Err(errno) => small(-(errno as isize)),
        };
    }
    call(libc::AT_FDCWD, world().place_of(&path).as_ptr())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(path: *const c_char, mode: c_uint) -> c_int {
    unsafe { mkdirat(libc::AT_FDCWD, path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
    let call = |dirfd: c_int, path: *const c_char| {
        small(unsafe {
            raw(
                libc::SYS_unlinkat,
                [dirfd as usize, path as usize, flags as usize, 0, 0, 0],
            )
        })
    };
    let Some(_inside) = enter() else {
        return call(dirfd, path);
    };
    let path = path_of(dirfd, path);
    if flags & libc::AT_REMOVEDIR != 0 {
        operation!("rmdir", &path, CGROUP_NS);
        if let Some(cgroup) = crate::world::World::cgroup_path(&path) {
            let cgroup = cgroup.to_owned();
            return match world().remove_cgroup(&cgroup) {
                Ok(()) => 0,
                Err(errno) => small(-(errno as isize)),
            };
        }
    } else {
        operation!("unlink", &path, CALL_NS);
    }
    call(libc::AT_FDCWD, world().place_of(&path).as_ptr())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(path: *const c_char) -> c_int {
    unsafe { unlinkat(libc::AT_FDCWD, path, libc::AT_REMOVEDIR) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    unsafe { unlinkat(libc::AT_FDCWD, path, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let call = |from: *const c_char, to: *const c_char| {
        small(unsafe { raw(libc::SYS_rename, [from as usize, to as usize, 0, 0, 0, 0]) })
    };
    let Some(_inside) = enter() else {
        return call(from, to);
    };
    let (from, to) = (path_of(libc::AT_FDCWD, from), path_of(libc::AT_FDCWD, to));
    operation!("rename", &to, CALL_NS);
    call(
        world().place_of(&from).as_ptr(),
        world().place_of(&to).as_ptr(),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readlink(path: *const c_char, to: *mut c_char, length: usize) -> isize {
    let call = |path: *const c_char| {
        answer(unsafe {
            raw(
                libc::SYS_readlink,
                [path as usize, to as usize, length, 0, 0, 0],
            )
        })
    };
    let Some(_inside) = enter() else {
        return call(path);
    };
    let path = path_of(libc::AT_FDCWD, path);
    operation!("stat", &path, CALL_NS);
    call(world().place_of(&path).as_ptr())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn inotify_add_watch(fd: c_int, path: *const c_char, mask: c_uint) -> c_int {
    let call = |path: *const c_char| {
        small(unsafe {
            raw(
                libc::SYS_inotify_add_watch,
                [fd as usize, path as usize, mask as usize, 0, 0, 0],
            )
        })
    };
    let Some(_inside) = enter() else {
        return call(path);
    };
    let path = path_of(libc::AT_FDCWD, path);
    operation!("inotify", &path, CALL_NS);
    call(world().place_of(&path).as_ptr())
}

// Open files.

fn read_at(fd: c_int, to: *mut c_void, length: usize, offset: Option<i64>) -> isize {
    let call = || {
        answer(match offset {
            Some(offset) => unsafe {
                raw(
                    libc::SYS_pread64,
                    [fd as usize, to as usize, length, offset as usize, 0, 0],
                )
            },
            None => unsafe { raw(libc::SYS_read, [fd as usize, to as usize, length, 0, 0, 0]) },
        })
    };
    let Some(_inside) = enter() else {
        return call();
    };
    let Some(open) = world().fds.get(&fd).cloned() else {
        advance(CALL_NS);
        return call();
    };
    operation!("read", &open.path, READ_NS);
    let it = world();
    let now_ns = it.now_ns;
    if open.path == "/proc/meminfo" && it.threads[it.current].is_loop {
        let available = it.machine.available(now_ns);
        it.checks.sampled(now_ns, available);
        it.machine.now_ns = now_ns;
        it.check_machine();
    }
    let content = match it.machine.content(&open, now_ns) {
        None => return call(),
        Some(Err(errno)) => return refuse(errno),
        Some(Ok(content)) => content,
    };
    let start = offset.map_or(open.position, |offset| {
        usize::try_from(offset).unwrap_or(usize::MAX)
    });
    let rest = content.get(start..).unwrap_or_default();
    let count = rest.len().min(length);
    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to.cast(), count) };
    if offset.is_none()
        && let Some(open) = it.fds.get_mut(&fd)
    {
        open.position += count;
    }
    count.cast_signed()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, to: *mut c_void, length: usize) -> isize {
    read_at(fd, to, length, None)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(fd: c_int, to: *mut c_void, length: usize, offset: i64) -> isize {
    read_at(fd, to, length, Some(offset))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread(fd: c_int, to: *mut c_void, length: usize, offset: i64) -> isize {
    read_at(fd, to, length, Some(offset))
}

fn write_at(fd: c_int, from: *const c_void, length: usize, offset: Option<i64>) -> isize {
    let call = || {
        answer(match offset {
            Some(offset) => unsafe {
                raw(
                    libc::SYS_pwrite64,
                    [fd as usize, from as usize, length, offset as usize, 0, 0],
                )
            },
            None => unsafe {
                raw(
                    libc::SYS_write,
                    [fd as usize, from as usize, length, 0, 0, 0],
                )
            },
        })
    };
    let Some(_inside) = enter() else {
        return call();
    };
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) };
    if fd == 1 || fd == 2 {
        // Nothing comes between: the standard library's lock on it would outlive a `kill -9`, which ends no process here.
        let it = world();
        it.checks.output(bytes, it.now_ns);
        return length.cast_signed();
    }
    world().poked = true;
    let Some(open) = world().fds.get(&fd).cloned() else {
        advance(CALL_NS);
        return call();
    };
    let file = open.path.rsplit('/').next().unwrap_or_default();
    let mut cost_ns = if file == "cgroup.kill" {
        CGROUP_NS
    } else {
        WRITE_NS
    };
    if matches!(file, "cgroup.kill" | "cgroup.procs") {
        cost_ns += world().machine.mutex_ns;
    }
    operation!("write", &open.path, cost_ns);
    let text = String::from_utf8_lossy(bytes);
    let it = world();
    match open.kind {
        Kind::Control { cgroup } => {
            it.check_knob(cgroup, file, &open.path, &text);
            if file == "cgroup.kill" {
                let pod = it.machine.cgroups[cgroup].pod;
                it.check_signal(pod, libc::SIGKILL);
            }
            match it.write_control(cgroup, file, &text) {
                Ok(()) => length.cast_signed(),
                Err(errno) => refuse(errno),
            }
        }
        Kind::Made => {
            let pid = open
                .path
                .split('/')
                .nth(2)
                .and_then(|pid| pid.parse().ok())
                .unwrap_or(AGENT_PID);
            match it.machine.processes.get_mut(&pid) {
                Some(process) => {
                    process.oom_score_adj = text.trim().parse().unwrap_or(0);
                    length.cast_signed()
                }
                None => refuse(libc::ESRCH),
            }
        }
        Kind::PsiTrigger => length.cast_signed(),
        _ => call(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, from: *const c_void, length: usize) -> isize {
    write_at(fd, from, length, None)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, from: *const c_void, length: usize, offset: i64) -> isize {
    write_at(fd, from, length, Some(offset))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, length: usize, offset: i64) -> isize {
    write_at(fd, from, length, Some(offset))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    let Some(_inside) = enter() else {
        return answer(unsafe {
            raw(
                libc::SYS_writev,
                [fd as usize, parts as usize, count as usize, 0, 0, 0],
            )
        });
    };
    drop(_inside);
    let parts = unsafe { std::slice::from_raw_parts(parts, usize::try_from(count).unwrap_or(0)) };
    let bytes: Vec<u8> = parts
        .iter()
        .flat_map(|part| unsafe {
            std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len)
        })
        .copied()
        .collect();
    write_at(fd, bytes.as_ptr().cast(), bytes.len(), None)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(fd: c_int, length: i64) -> c_int {
    let call = || {
        small(unsafe {
            raw(
                libc::SYS_ftruncate,
                [fd as usize, length as usize, 0, 0, 0, 0],
            )
        })
    };
    let Some(_inside) = enter() else {
        return call();
    };
    let path = world()
        .fds
        .get(&fd)
        .map(|open| open.path.clone())
        .unwrap_or_default();
    operation!("ftruncate", &path, CALL_NS);
    call()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(fd: c_int, length: i64) -> c_int {
    unsafe { ftruncate64(fd, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    let Some(_inside) = enter() else {
        return small(unsafe { raw(libc::SYS_fdatasync, [fd as usize, 0, 0, 0, 0, 0]) });
    };
    let path = world()
        .fds
        .get(&fd)
        .map(|open| open.path.clone())
        .unwrap_or_default();
    operation!("fsync", &path, MS);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    unsafe { fdatasync(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn flock(fd: c_int, how: c_int) -> c_int {
    let call = |how: c_int| {
        small(unsafe { raw(libc::SYS_flock, [fd as usize, how as usize, 0, 0, 0, 0]) })
    };
    let Some(_inside) = enter() else {
        return call(how);
    };
    let path = world()
        .fds
        .get(&fd)
        .map(|open| open.path.clone())
        .unwrap_or_default();
    // To let go never fails.
    let is_unlock = how & libc::LOCK_UN != 0;
    if is_unlock {
        operation!("unlock", &path, CALL_NS);
    } else {
        operation!("flock", &path, CALL_NS);
    }
    loop {
        let result = call(how | libc::LOCK_NB);
        let is_held = result != 0 && unsafe { *libc::__errno_location() } == libc::EWOULDBLOCK;
        if !is_held || how & libc::LOCK_NB != 0 {
            return result;
        }
        let until_ns = world().now_ns + MS;
        wait(State::Sleep, Some(until_ns));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if let Some(_inside) = enter() {
        world().fds.remove(&fd);
        world().poked = true;
        advance(CALL_NS);
    }
    small(unsafe { raw(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) })
}

fn fcntl_any(fd: c_int, command: c_int, argument: usize) -> c_int {
    let result = small(unsafe {
        raw(
            libc::SYS_fcntl,
            [fd as usize, command as usize, argument, 0, 0, 0],
        )
    });
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
        && result >= 0
        && let Some(_inside) = enter()
        && let Some(open) = world().fds.get(&fd).cloned()
    {
        world().fds.insert(result, open);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    fcntl_any(fd, command, argument)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    fcntl_any(fd, command, argument)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let result = unsafe {
        raw(
            libc::SYS_socket,
            [domain as usize, kind as usize, protocol as usize, 0, 0, 0],
        )
    };
    if let Some(_inside) = enter() {
        world().add(result, Kind::Plain, "socket".to_owned());
    }
    small(result)
}

fn map(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let mut fd = fd as usize;
    if fd != usize::MAX
        && let Some(_inside) = enter()
        && let Some(memory) = world().mapped(i32::try_from(fd).unwrap_or(-1))
    {
        fd = memory;
    }
    let arguments = [
        at as usize,
        length,
        protection as usize,
        flags as usize,
        fd,
        offset as usize,
    ];
    answer(unsafe { raw(libc::SYS_mmap, arguments) }) as *mut c_void
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    map(at, length, protection, flags, fd, offset)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    map(at, length, protection, flags, fd, offset)
}

// Waiting.

fn deadline(timeout_ms: c_int) -> Option<u64> {
    let timeout_ms = u64::try_from(timeout_ms).ok()?;
    Some(world().now_ns + timeout_ms * MS)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    fd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    let call = |timeout_ms: c_int| {
        let arguments = [
            fd as usize,
            events as usize,
            most as usize,
            timeout_ms as usize,
            0,
            0,
        ];
        small(unsafe { raw(libc::SYS_epoll_pwait, arguments) })
    };
    let Some(_inside) = enter() else {
        return call(timeout_ms);
    };
    let is_loop = {
        let it = world();
        let is_loop = it.threads[it.current].is_loop;
        if is_loop {
            let now_ns = it.now_ns;
            it.checks.turn_ended(now_ns);
        }
        is_loop
    };
    advance(CALL_NS);
    let deadline_ns = deadline(timeout_ms);
    let result = loop {
        let count = call(0);
        if count != 0 || timeout_ms == 0 {
            break count;
        }
        let poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        if !wait(State::Poll(vec![poll]), deadline_ns) {
            break 0;
        }
    };
    let it = world();
    if is_loop {
        let now_ns = it.now_ns;
        it.checks.turn_begins(now_ns);
    }
    for index in 0..usize::try_from(result).unwrap_or(0) {
        // A PSI trigger is an eventfd here, which can only become readable.
        let event = unsafe { &mut *events.add(index) };
        if it.priority.contains(&(fd, event.u64)) {
            event.events = libc::EPOLLPRI as u32;
        }
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(
    fd: c_int,
    operation: c_int,
    of: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    if let Some(_inside) = enter()
        && operation == libc::EPOLL_CTL_ADD
        && world()
            .fds
            .get(&of)
            .is_some_and(|open| open.kind == Kind::PsiTrigger)
    {
        let event = unsafe { &mut *event };
        event.events = event.events & !(libc::EPOLLPRI as u32) | libc::EPOLLIN as u32;
        world().priority.insert((fd, event.u64));
    }
    small(unsafe {
        raw(
            libc::SYS_epoll_ctl,
            [
                fd as usize,
                operation as usize,
                of as usize,
                event as usize,
                0,
                0,
            ],
        )
    })
}

fn poll_until(fds: *mut libc::pollfd, count: usize, deadline_ns: Option<u64>) -> c_int {
    loop {
        let ready = small(unsafe { raw(libc::SYS_poll, [fds as usize, count, 0, 0, 0, 0]) });
        if ready != 0 || deadline_ns.is_some_and(|at_ns| at_ns <= world().now_ns) {
            return ready;
        }
        let list = unsafe { std::slice::from_raw_parts(fds, count) }.to_vec();
        if !wait(State::Poll(list), deadline_ns) {
            return 0;
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int {
    let count = usize::try_from(count).unwrap_or(0);
    let Some(_inside) = enter() else {
        return small(unsafe {
            raw(
                libc::SYS_poll,
                [fds as usize, count, timeout_ms as usize, 0, 0, 0],
            )
        });
    };
    advance(CALL_NS);
    poll_until(fds, count, deadline(timeout_ms))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let count = usize::try_from(count).unwrap_or(0);
    let Some(_inside) = enter() else {
        return small(unsafe {
            raw(
                libc::SYS_ppoll,
                [fds as usize, count, timeout as usize, mask as usize, 8, 0],
            )
        });
    };
    advance(CALL_NS);
    let now_ns = world().now_ns;
    let deadline_ns = (!timeout.is_null()).then(|| now_ns + nanoseconds(timeout));
    poll_until(fds, count, deadline_ns)
}

fn nanoseconds(time: *const libc::timespec) -> u64 {
    let time = unsafe { &*time };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nanosleep(time: *const libc::timespec, rest: *mut libc::timespec) -> c_int {
    let Some(_inside) = enter() else {
        return small(unsafe {
            raw(
                libc::SYS_nanosleep,
                [time as usize, rest as usize, 0, 0, 0, 0],
            )
        });
    };
    let until_ns = world().now_ns + nanoseconds(time);
    wait(State::Sleep, Some(until_ns));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: c_int,
    flags: c_int,
    time: *const libc::timespec,
    rest: *mut libc::timespec,
) -> c_int {
    let Some(_inside) = enter() else {
        let arguments = [
            clock as usize,
            flags as usize,
            time as usize,
            rest as usize,
            0,
            0,
        ];
        return i32::try_from(-unsafe { raw(libc::SYS_clock_nanosleep, arguments) })
            .unwrap_or(libc::EINVAL);
    };
    let from_ns = if flags & libc::TIMER_ABSTIME != 0 {
        0
    } else {
        world().now_ns
    };
    wait(State::Sleep, Some(from_ns + nanoseconds(time)));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sched_yield() -> c_int {
    if let Some(_inside) = enter() {
        advance(CALL_NS);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, to: *mut libc::timespec) -> c_int {
    let Some(_inside) = enter() else {
        return small(unsafe {
            raw(
                libc::SYS_clock_gettime,
                [clock as usize, to as usize, 0, 0, 0, 0],
            )
        });
    };
    advance(CLOCK_NS);
    let base_ns = if clock == libc::CLOCK_REALTIME {
        1_700_000_000_000_000_000
    } else {
        0
    };
    let now_ns = base_ns + world().now_ns;
    let to = unsafe { &mut *to };
    to.tv_sec = (now_ns / 1_000_000_000).cast_signed();
    to.tv_nsec = (now_ns % 1_000_000_000).cast_signed();
    0
}

// Threads.

struct Begin {
    routine: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
    id: usize,
}

extern "C" fn begin(begin: *mut c_void) -> *mut c_void {
    let Begin {
        routine,
        argument,
        id,
    } = *unsafe { Box::from_raw(begin.cast::<Begin>()) };
    {
        let _inside = world::stay_inside();
        world::adopt(id + 1);
        let baton = std::sync::Arc::clone(&world().threads[id].baton);
        crate::kernel::wait_for(&baton);
    }
    let result = routine(argument);
    let _inside = world::stay_inside();
    world().ended(id);
    switch();
    world::adopt(0);
    result
}

type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    routine: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    let real: Create = unsafe { std::mem::transmute(next(c"pthread_create")) };
    let Some(_inside) = enter() else {
        return unsafe { real(thread, attributes, routine, argument) };
    };
    if let Err(errno) = operation("thread", "", 20_000) {
        return errno;
    }
    let it = world();
    let id = it.threads.len();
    it.threads
        .push(Thread::new(it.now_ns, it.incarnation, false));
    let begins = Box::into_raw(Box::new(Begin {
        routine,
        argument,
        id,
    }));
    let result = unsafe { real(thread, attributes, begin, begins.cast()) };
    if result == 0 {
        it.threads[id].handle = Some(unsafe { *thread });
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_join(thread: libc::pthread_t, result: *mut *mut c_void) -> c_int {
    let real: unsafe extern "C" fn(libc::pthread_t, *mut *mut c_void) -> c_int =
        unsafe { std::mem::transmute(next(c"pthread_join")) };
    if let Some(_inside) = enter() {
        let id = world()
            .threads
            .iter()
            .rposition(|known| known.handle == Some(thread));
        if let Some(id) = id
            && !matches!(world().threads[id].state, State::Ended)
        {
            wait(State::Join(id), None);
        }
    }
    unsafe { real(thread, result) }
}

// Everything that has no name of its own.

fn futex(address: usize, operation: c_int, value: u32, timeout: *const libc::timespec) -> isize {
    let command = operation & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    match command {
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
            let now = unsafe { &*(address as *const std::sync::atomic::AtomicU32) };
            if now.load(std::sync::atomic::Ordering::SeqCst) != value {
                return refuse(libc::EAGAIN);
            }
            let from_ns = if command == libc::FUTEX_WAIT {
                world().now_ns
            } else {
                0
            };
            let deadline_ns = (!timeout.is_null()).then(|| from_ns + nanoseconds(timeout));
            if wait(State::Futex(address), deadline_ns) {
                0
            } else {
                refuse(libc::ETIMEDOUT)
            }
        }
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => {
            let woken = world().wake_futex(address, value as usize);
            advance(CALL_NS);
            woken.cast_signed()
        }
        _ => refuse(libc::ENOSYS),
    }
}

fn send_signal(fd: c_int, signal: c_int) -> isize {
    operation!("pidfd_send_signal", "", CALL_NS * 3);
    let it = world();
    let Some(Kind::Pidfd { pid, started }) = it.fds.get(&fd).map(|open| open.kind.clone()) else {
        return refuse(libc::EBADF);
    };
    it.machine.now_ns = it.now_ns;
    let process = it
        .machine
        .processes
        .get(&pid)
        .filter(|process| process.started == started);
    let Some(process) = process else {
        return refuse(libc::ESRCH);
    };
    let pod = it.machine.cgroups[process.cgroup].pod;
    it.check_signal(pod, signal);
    it.machine.signal(pid, signal);
    0
}

fn release(fd: c_int) -> isize {
    let found = world().fds.get(&fd).map(|open| open.kind.clone());
    let Some(Kind::Pidfd { pid, started }) = found else {
        return refuse(libc::EBADF);
    };
    world().machine.now_ns = world().now_ns;
    let process = world()
        .machine
        .processes
        .get(&pid)
        .filter(|process| process.started == started);
    let now_ns = world().now_ns;
    let cost_ns = match process.map(|process| (process.killed_ns, process.stuck_until_ns > now_ns))
    {
        None => return refuse(libc::ESRCH),
        Some((None, _)) => return refuse(libc::EINVAL),
        // It waits for a device with its memory map locked.
        Some((Some(_), true)) => return refuse(libc::EAGAIN),
        Some((Some(_), false)) => world().machine.unmap_ns(pid),
    };
    operation!("process_mrelease", "", CALL_NS + cost_ns);
    let it = world();
    it.machine.now_ns = it.now_ns;
    it.machine.unmapped(pid);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let call = || answer(unsafe { raw(number, [a, b, c, d, e, f]) });
    let Some(_inside) = enter() else {
        return call() as c_long;
    };
    let result = match number {
        libc::SYS_futex => futex(a, b as c_int, c as u32, d as *const libc::timespec),
        libc::SYS_getrandom => fill_random(a as *mut u8, b),
        libc::SYS_bpf => {
            operation!("bpf", "", CALL_NS);
            machine::count_charges(world());
            answer(world().bpf(a, b as *mut u8))
        }
        libc::SYS_pidfd_open => {
            operation!("pidfd_open", "", CALL_NS * 2);
            let pid = i32::try_from(a).unwrap_or(0);
            let it = world();
            let Some(started) = it
                .machine
                .processes
                .get(&pid)
                .map(|process| process.started)
            else {
                return refuse(libc::ESRCH) as c_long;
            };
            let fd = unsafe {
                raw(
                    libc::SYS_eventfd2,
                    [0, libc::EFD_CLOEXEC as usize, 0, 0, 0, 0],
                )
            };
            it.add(fd, Kind::Pidfd { pid, started }, String::new())
        }
        libc::SYS_pidfd_send_signal => send_signal(a as c_int, b as c_int),
        libc::SYS_process_mrelease => release(a as c_int),
        libc::SYS_sched_setscheduler | libc::SYS_mlock | libc::SYS_ioprio_set => 0,
        libc::SYS_openat2 => {
            let path = path_of(a as c_int, b as *const c_char);
            operation!("open", &path, OPEN_NS);
            let fd = call();
            world().add(fd, Kind::Plain, path)
        }
        libc::SYS_statx => unsafe { statx_inside(a, b, c, d, e) },
        _ => call(),
    };
    result as c_long
}

unsafe fn statx_inside(dirfd: usize, path: usize, flags: usize, mask: usize, to: usize) -> isize {
    let path = path as *const c_char;
    if path.is_null() || unsafe { *path } == 0 {
        return answer(unsafe { raw(libc::SYS_statx, [dirfd, path as usize, flags, mask, to, 0]) });
    }
    let path = path_of(dirfd as c_int, path);
    operation!("stat", &path, CALL_NS);
    match place(&path) {
        Ok(place) => answer(unsafe {
            raw(
                libc::SYS_statx,
                [
                    libc::AT_FDCWD as usize,
                    place.as_ptr() as usize,
                    flags,
                    mask,
                    to,
                    0,
                ],
            )
        }),
        Err(errno) => refuse(errno),
    }
}

fn fill_random(to: *mut u8, length: usize) -> isize {
    for index in 0..length {
        unsafe { *to.add(index) = world().random.next() as u8 };
    }
    length.cast_signed()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(to: *mut c_void, length: usize, flags: c_uint) -> isize {
    let Some(_inside) = enter() else {
        return answer(unsafe {
            raw(
                libc::SYS_getrandom,
                [to as usize, length, flags as usize, 0, 0, 0],
            )
        });
    };
    fill_random(to.cast(), length)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getpid() -> c_int {
    let Some(_inside) = enter() else {
        return small(unsafe { raw(libc::SYS_getpid, [0; 6]) });
    };
    AGENT_PID
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    let Some(_inside) = enter() else {
        return small(unsafe { raw(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) });
    };
    0
}

/// Used once, so that the linker takes this file's functions and not the C library's.
pub(crate) fn are_here() -> bool {
    let ring = bpf::ring_eventfd as *const () as usize;
    ring != 0
}
