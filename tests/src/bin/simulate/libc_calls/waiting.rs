//! Waiting, and the clock.

use super::*;

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
    {
        operation!("epoll", "", CALL_NS);
        let is_trigger = world()
            .fds
            .get(&of)
            .is_some_and(|open| open.kind == Kind::PsiTrigger);
        if is_trigger {
            let event = unsafe { &mut *event };
            event.events = event.events & !(libc::EPOLLPRI as u32) | libc::EPOLLIN as u32;
            world().priority.insert((fd, event.u64));
        }
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

pub(super) fn nanoseconds(time: *const libc::timespec) -> u64 {
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
    let it = world();
    it.plan.clock_readings += 1;
    if it.plan.clock_readings > CLOCK_READINGS_MAX {
        it.give_up("the agent reads the clock again and again");
    }
    let base_ns = if clock == libc::CLOCK_REALTIME {
        world().since_1970_ns()
    } else {
        0
    };
    let now_ns = base_ns + world().now_ns;
    let to = unsafe { &mut *to };
    to.tv_sec = (now_ns / 1_000_000_000).cast_signed();
    to.tv_nsec = (now_ns % 1_000_000_000).cast_signed();
    0
}
