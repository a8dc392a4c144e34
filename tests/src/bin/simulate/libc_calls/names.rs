//! Files by name.

use super::*;

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
    if flags & (libc::O_CREAT | libc::O_TRUNC) != 0 {
        operation!("create", &path, OPEN_NS);
    } else {
        operation!("open", &path, OPEN_NS);
    }
    if let Err(errno) = world().machine.disks.open(&path, flags) {
        return small(-(errno as isize));
    }
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
pub(super) fn place(path: &str) -> Result<std::ffi::CString, c_int> {
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
    if !dir.is_null() {
        // Names are looked up from it.
        let fd = unsafe { libc::dirfd(dir) };
        world().add(fd as isize, Kind::Plain, path);
    }
    dir
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closedir(dir: *mut libc::DIR) -> c_int {
    let real: unsafe extern "C" fn(*mut libc::DIR) -> c_int =
        unsafe { std::mem::transmute(next(c"closedir")) };
    if let Some(_inside) = enter() {
        world().fds.remove(&unsafe { libc::dirfd(dir) });
        // Another directory may come to be at its address.
        world().cgroup_dirs.remove(&(dir as usize));
    }
    unsafe { real(dir) }
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
    if let Err(errno) = world().machine.disks.name(&path, true) {
        return small(-(errno as isize));
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
    if let Err(errno) = world().machine.disks.name(&path, false) {
        return small(-(errno as isize));
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
    if let Err(errno) = world().machine.disks.name(&to, false) {
        return small(-(errno as isize));
    }
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
