//! The C library's calls that the agent reaches the kernel by, answered by the model.
//!
//! This program defines them under the C library's names, so that the standard library, rustix (built for the C
//! library: feature `simulation`), aya, tokio and libc all arrive here. The agent has no part in it: nothing of it is
//! built differently. A call from no thread of the agent, and one of the model itself, goes to the kernel as it is.
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
/// 103 ms were measured for 20,000 of them.
const CGROUP_ENTRY_NS: u64 = 5_000;
/// A list of processes: 6.6 ms were measured for 255 of them. And what each name in it takes.
const PROCS_NS: u64 = 13_000;
const PROCESS_NS: u64 = 200;
/// A line of it, about.
const PID_BYTES: u64 = 6;
const CALL_NS: u64 = 1_000;
const CLOCK_NS: u64 = 40;
/// More than there are in a day that is simulated.
const CLOCK_READINGS_MAX: u64 = 200_000_000;
/// The write of `cgroup.kill`, and making and removing a cgroup: the median that was measured.
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

mod descriptors;
mod names;
mod others;
mod threads;
mod waiting;

/// Used once, so that the linker takes this file's functions and not the C library's.
pub(crate) fn are_here() -> bool {
    let ring = bpf::ring_eventfd as *const () as usize;
    ring != 0
}
