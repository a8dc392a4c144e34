//! Everything that has no name of its own, and the process itself.

use super::names::place;
use super::waiting::nanoseconds;
use super::*;

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
    let pod = it.machine.cgroups[process.cgroups[0]].pod;
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
        libc::SYS_sched_setscheduler => {
            operation!("scheduler", "", CALL_NS);
            0
        }
        libc::SYS_mlock | libc::SYS_ioprio_set => 0,
        libc::SYS_openat2 => {
            let path = path_of(a as c_int, b as *const c_char);
            operation!("open", &path, OPEN_NS);
            world().offer_pins(&path);
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

/// The agent begins anew as the same process: its threads end, and its descriptors are closed.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    let real: unsafe extern "C" fn(*const c_char, *const *const c_char) -> c_int =
        unsafe { std::mem::transmute(next(c"execvp")) };
    let Some(_inside) = enter() else {
        return unsafe { real(file, arguments) };
    };
    operation!("exec", "", CALL_NS);
    crate::fault::kill()
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
    operation!("mlockall", "", MS);
    0
}
