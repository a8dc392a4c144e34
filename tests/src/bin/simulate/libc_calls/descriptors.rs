//! Open files.

use std::sync::Arc;

use super::*;

/// What a reading of a part of a cgroup's list of processes takes. v1 makes all of it when it is begun
/// (`pidlist_array_load`); v2 goes on where it was.
fn list_ns(cgroup: usize, from: u64, length: u64) -> u64 {
    let machine = &world().machine;
    let cgroup = &machine.cgroups[cgroup];
    let processes = cgroup.processes.len() as u64;
    let listed = match (from, machine.hierarchies[cgroup.hierarchy].is_v1) {
        (0, true) => processes,
        (0, false) => processes.min(length / PID_BYTES),
        (_, true) => 0,
        (from, false) => processes
            .saturating_sub(from / PID_BYTES)
            .min(length / PID_BYTES),
    };
    let begin_ns = if from == 0 { PROCS_NS } else { READ_NS };
    begin_ns + listed * PROCESS_NS
}

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
    let start = offset.map_or(open.position, |offset| {
        usize::try_from(offset).unwrap_or(usize::MAX)
    });
    let is_list = open.path.ends_with("/cgroup.procs");
    let cost_ns = match &open.kind {
        Kind::Control { cgroup } if is_list => list_ns(*cgroup, start as u64, length as u64),
        _ => READ_NS,
    };
    operation!("read", &open.path, cost_ns);
    let it = world();
    let now_ns = it.now_ns;
    if open.path == "/proc/meminfo" && it.threads[it.current].is_loop {
        let available = it.machine.available(now_ns);
        it.checks.sampled(now_ns, available);
        it.machine.now_ns = now_ns;
        it.check_machine();
    }
    let content: Arc<[u8]> = match open.list.clone().filter(|_| start > 0) {
        Some(list) => list,
        None => match it.machine.content(&open, now_ns) {
            None => return call(),
            Some(Err(errno)) => return refuse(errno),
            Some(Ok(content)) => content.into(),
        },
    };
    if is_list && let Some(open) = it.fds.get_mut(&fd) {
        open.list = Some(Arc::clone(&content));
    }
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
        // Nothing comes between: the standard library's lock on it would outlive a `kill -9`, which ends no process
        // here.
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
    // Others have the lock so long. Not a cost: nothing is done before then, and meanwhile the machine goes on.
    let held_up_ns = world().machine.oom_adj_ns;
    if file == "oom_score_adj" && held_up_ns > 0 {
        let until_ns = world().now_ns + held_up_ns;
        wait(State::Sleep, Some(until_ns));
    }
    operation!("write", &open.path, cost_ns);
    if std::mem::take(&mut world().plan.tears) {
        if open.kind == Kind::Plain {
            unsafe {
                raw(
                    libc::SYS_write,
                    [fd as usize, from as usize, length / 2, 0, 0, 0],
                )
            };
        }
        crate::fault::kill();
    }
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
        Kind::Plain => match it.machine.disks.write(&open.path, length) {
            Ok(written) if written == length => call(),
            Ok(0) => 0,
            Ok(written) => {
                let arguments = [
                    fd as usize,
                    from as usize,
                    written,
                    offset.unwrap_or(0) as usize,
                    0,
                    0,
                ];
                let number = if offset.is_some() {
                    libc::SYS_pwrite64
                } else {
                    libc::SYS_write
                };
                answer(unsafe { raw(number, arguments) })
            }
            Err(errno) => refuse(errno),
        },
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
        world().machine.forget_bells(|bell| bell == fd);
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
    {
        if let Err(errno) = operation("dup", "", CALL_NS) {
            small(unsafe { raw(libc::SYS_close, [result as usize, 0, 0, 0, 0, 0]) });
            return small(-(errno as isize));
        }
        if let Some(open) = world().fds.get(&fd).cloned() {
            world().fds.insert(result, open);
        }
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
    let call = || unsafe {
        raw(
            libc::SYS_socket,
            [domain as usize, kind as usize, protocol as usize, 0, 0, 0],
        )
    };
    let Some(_inside) = enter() else {
        return small(call());
    };
    operation!("socket", "", CALL_NS);
    let result = call();
    world().add(result, Kind::Plain, "socket".to_owned());
    small(result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn eventfd(count: c_uint, flags: c_int) -> c_int {
    let call = || {
        small(unsafe {
            raw(
                libc::SYS_eventfd2,
                [count as usize, flags as usize, 0, 0, 0, 0],
            )
        })
    };
    let Some(_inside) = enter() else {
        return call();
    };
    operation!("eventfd", "", CALL_NS);
    call()
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
    {
        if let Err(errno) = operation("mmap", "", CALL_NS) {
            refuse(errno);
            return libc::MAP_FAILED;
        }
        if let Some(memory) = world().mapped(i32::try_from(fd).unwrap_or(-1)) {
            fd = memory;
        }
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
