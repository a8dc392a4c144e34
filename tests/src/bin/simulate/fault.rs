//! Every operation of the agent is counted here, costs time, and may fail, take longer, or be its last.

use std::collections::BTreeMap;

use crate::run::{OPERATIONS_MAX, OPERATIONS_PER_SECOND_MAX};
use crate::threads::{State, advance, switch};
use crate::world::world;

/// What becomes of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It answers with this error number.
    Errno(i32),
    /// It takes so much longer.
    Slow(u64),
    /// `kill -9` before it.
    Kill,
    /// `kill -9` in the middle of it: a write that is half done.
    Tear,
}

/// An operation that was.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) path: String,
    /// By the loop itself.
    pub(crate) is_loop: bool,
}

impl Call {
    /// Whether it changes something that outlives the agent: `kill -9` before and after it leave different things.
    pub(crate) fn changes(&self) -> bool {
        matches!(
            self.name.as_str(),
            "create"
                | "write"
                | "mkdir"
                | "rename"
                | "rmdir"
                | "unlink"
                | "fsync"
                | "ftruncate"
                | "exec"
        )
    }
}

/// Which operations of a run are not as usual.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// By number, from 1.
    pub(crate) at: BTreeMap<u64, Fault>,
    /// Once in so many operations one takes longer; 0: never.
    pub(crate) slow_one_in: u64,
    /// Once in so many operations one fails; 0: never.
    pub(crate) fail_one_in: u64,
    pub(crate) clock_readings: u64,
    /// Operations so far.
    pub(crate) count: u64,
    /// Of the first run, for those that enumerate.
    pub(crate) calls: Vec<Call>,
    pub(crate) notes_calls: bool,
    /// FNV-1a of all calls, paths and times: equal runs have equal ones.
    pub(crate) trace: u64,
    pub(crate) prints: bool,
    /// The write that is under way is the last one, and half of it is done.
    pub(crate) tears: bool,
}

/// Errors that a call can have on any machine.
pub(crate) fn errnos(call: &str) -> &'static [i32] {
    match call {
        "open" | "opendir" => &[libc::EMFILE, libc::ENOMEM, libc::EIO, libc::EINTR],
        "create" => &[
            libc::ENOSPC,
            libc::EMFILE,
            libc::ENOMEM,
            libc::EIO,
            libc::EINTR,
        ],
        "read" => &[libc::EIO, libc::ENOMEM, libc::EINTR, libc::EAGAIN],
        "write" => &[
            libc::ENOSPC,
            libc::EIO,
            libc::ENOMEM,
            libc::EINTR,
            libc::EAGAIN,
        ],
        "mkdir" | "rename" => &[libc::ENOSPC, libc::ENOMEM, libc::EIO, libc::EROFS],
        "thread" => &[libc::EAGAIN],
        "socket" | "eventfd" | "dup" => &[libc::EMFILE, libc::ENOMEM],
        "epoll" => &[libc::ENOMEM, libc::ENOSPC],
        "mmap" => &[libc::ENOMEM, libc::EAGAIN],
        "mlockall" => &[libc::ENOMEM, libc::EPERM],
        "scheduler" => &[libc::EPERM],
        "rmdir" | "unlink" => &[libc::EBUSY, libc::EROFS],
        "stat" => &[libc::ENOMEM, libc::EIO],
        "fsync" | "ftruncate" => &[libc::EIO, libc::ENOSPC],
        "flock" => &[libc::ENOLCK],
        "pidfd_open" => &[libc::EMFILE, libc::ENOMEM, libc::ESRCH],
        "pidfd_send_signal" => &[libc::EPERM, libc::ESRCH],
        "process_mrelease" => &[libc::EAGAIN, libc::EINVAL, libc::ENOSYS],
        "bpf" => &[libc::ENOMEM, libc::EPERM],
        "inotify" => &[libc::ENOSPC, libc::EMFILE],
        _ => &[],
    }
}

/// One operation of the agent. It has cost its time when this returns; an error is what it answers.
pub(crate) fn operation(call: &'static str, path: &str, cost_ns: u64) -> Result<(), i32> {
    let it = world();
    it.plan.count += 1;
    let number = it.plan.count;
    if it.plan.notes_calls {
        let is_loop = it.threads[it.current].is_loop;
        it.plan.calls.push(Call {
            name: call.to_owned(),
            path: path.to_owned(),
            is_loop,
        });
    }
    let thread = &it.threads[it.current];
    it.checks.operation(thread.is_loop);
    if it.plan.prints {
        let at_us = (it.now_ns - crate::world::EPOCH_NS) / 1000;
        eprintln!(
            "{number:>8} {at_us:>12} us thread {} {call} {path}",
            it.current
        );
    }
    for byte in call.bytes().chain(it.now_ns.to_le_bytes()) {
        it.plan.trace = (it.plan.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let seconds = (it.now_ns - crate::world::EPOCH_NS) / crate::machine::SECOND;
    if number > OPERATIONS_MAX + seconds * OPERATIONS_PER_SECOND_MAX {
        it.give_up("the agent does not come to rest");
    }
    let is_loop = it.threads[it.current].is_loop;
    let fault = it.plan.at.get(&number).copied().or_else(|| by_chance(call));
    match fault {
        Some(Fault::Errno(errno)) => {
            it.checks.has_failed = true;
            advance(cost_ns);
            Err(errno)
        }
        Some(Fault::Slow(ns)) => {
            if is_loop {
                it.checks.spent("slow", ns);
                it.checks.held_up_ns += ns;
                it.checks.was_held_up = true;
            }
            advance(cost_ns + ns);
            Ok(())
        }
        Some(Fault::Kill) => kill(),
        Some(Fault::Tear) => {
            it.plan.tears = true;
            Ok(())
        }
        None => {
            if is_loop {
                it.checks.spent(call, cost_ns);
            }
            advance(cost_ns);
            Ok(())
        }
    }
}

fn by_chance(call: &str) -> Option<Fault> {
    let it = world();
    // The start is the enumeration's: an agent that may not start proves nothing.
    if !it.checks.is_serving() {
        return None;
    }
    let (slow, fail) = (it.plan.slow_one_in, it.plan.fail_one_in);
    if slow > 0 && it.random.one_in(slow) {
        return Some(Fault::Slow(it.random.between(1, 20) * 1_000_000));
    }
    if fail > 0 && it.random.one_in(fail) {
        let errnos = errnos(call);
        // Two calls whose failure ends the agent, by design: the node's memory and the rings.
        let index = usize::try_from(it.random.below(errnos.len() as u64)).unwrap_or(0);
        return errnos.get(index).map(|errno| Fault::Errno(*errno));
    }
    None
}

/// `kill -9` of the agent: none of its threads goes on, its descriptors are closed, its files stay.
pub(crate) fn kill() -> ! {
    {
        let it = world();
        let incarnation = it.incarnation;
        for thread in &mut it.threads {
            if thread.incarnation == incarnation && !matches!(thread.state, State::Ended) {
                thread.state = State::Killed;
            }
        }
        it.close_all(incarnation);
        it.checks.killed(it.now_ns);
        // Records of pins that are half removed have no reader.
        it.checks.has_failed |= it.now_ns >= it.machine.stop_ns;
        crate::machine::agent_killed(it);
    }
    loop {
        switch();
    }
}
