//! The one world of this process: threads, virtual time, open files, the machine. One run is one process.
//!
//! **Who may touch it.** Threads of the agent run one at a time, each between two operations: the thread that has the
//! baton has the world. A call of the C library inside the model itself is not the agent's and goes to the real kernel
//! ([`enter`]).

use std::cell::{Cell, UnsafeCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bpf::Bpf;
use crate::check::Checks;
use crate::fault::Plan;
use crate::files::Fd;
use crate::machine::Machine;
use crate::random::Random;
use crate::threads::Thread;

/// The process id that the agent has.
pub(crate) const AGENT_PID: i32 = 4242;
/// CLOCK_MONOTONIC at the start.
pub(crate) const EPOCH_NS: u64 = 1_000_000_000_000;
/// CLOCK_REALTIME when CLOCK_MONOTONIC was zero, before it jumps.
const REALTIME_NS: u64 = 1_700_000_000_000_000_000;

/// Something that is to have happened by the end of a run.
pub(crate) type Expected = (&'static str, fn(&World) -> bool);

pub(crate) struct World {
    /// Where the model's files are.
    pub(crate) root: PathBuf,
    pub(crate) threads: Vec<Thread>,
    pub(crate) current: usize,
    pub(crate) now_ns: u64,
    /// Descriptors may have become readable.
    pub(crate) poked: bool,
    pub(crate) fds: BTreeMap<i32, Fd>,
    pub(crate) machine: Machine,
    pub(crate) bpf: Bpf,
    pub(crate) checks: Checks,
    pub(crate) plan: Plan,
    pub(crate) random: Random,
    /// Of the agent: 0 for the first, one more after each kill -9.
    pub(crate) incarnation: u32,
    /// Listings of cgroups that the agent has open.
    pub(crate) cgroup_dirs: BTreeSet<usize>,
    /// The kernel never needs to kill, whatever call fails, once the agent has started.
    pub(crate) is_oom_ruled_out: bool,
    /// What the run is for, by name: it has failed if it has not happened.
    pub(crate) expects: Vec<Expected>,
    /// PSI triggers in epoll sets: by the set and its word.
    pub(crate) priority: BTreeSet<(i32, u64)>,
}

impl World {
    /// What CLOCK_REALTIME is ahead of CLOCK_MONOTONIC.
    pub(crate) fn since_1970_ns(&self) -> u64 {
        REALTIME_NS.saturating_add_signed(self.machine.clock_ns)
    }
}

struct Place(UnsafeCell<Option<Box<World>>>);

// SAFETY: only the thread that has the baton touches it.
unsafe impl Sync for Place {}

static WORLD: Place = Place(UnsafeCell::new(None));
static IS_ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Which of the model's threads this is, from 1; 0: none of them.
    static ID: Cell<usize> = const { Cell::new(0) };
    /// The model itself is at work.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Begins.
pub(crate) fn begin(world: World) {
    // SAFETY: before the first thread of the agent.
    unsafe { *WORLD.0.get() = Some(Box::new(world)) };
    IS_ON.store(true, Ordering::SeqCst);
}

/// The world. Not to be held over anything that can hand the baton on.
pub(crate) fn world<'a>() -> &'a mut World {
    // SAFETY: see the module: one thread at a time, and no reference is held over a switch.
    match unsafe { &mut *WORLD.0.get() } {
        Some(world) => world,
        None => std::process::abort(),
    }
}

/// For as long as it lives, calls of this thread are the model's own.
pub(crate) struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// `None` when the call is to go to the real kernel: from no thread of the agent, or from the model.
pub(crate) fn enter() -> Option<Inside> {
    if !IS_ON.load(Ordering::Relaxed) || ID.get() == 0 || INSIDE.get() {
        return None;
    }
    INSIDE.set(true);
    Some(Inside)
}

/// As [`enter`], for the model's threads as such.
pub(crate) fn stay_inside() -> Inside {
    INSIDE.set(true);
    Inside
}

/// This thread is that one of the model's; 0: no longer any.
pub(crate) fn adopt(id: usize) {
    ID.set(id);
}

/// Which one it is.
pub(crate) fn id() -> usize {
    ID.get() - 1
}

/// What this thread has allocated so far, outside of the model.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Somebody may have the heap's lock.
static IS_HEAP_HELD: AtomicBool = AtomicBool::new(false);

/// A thread of low priority has the heap's lock, and does not run before then.
pub(crate) fn hold_heap(until_ns: u64) {
    world().machine.heap_held_until_ns = until_ns;
    IS_HEAP_HELD.store(true, Ordering::Relaxed);
}

/// A thread of the agent that allocates or frees takes the heap's lock: it waits for the one that has it.
fn wait_for_heap() {
    if !IS_HEAP_HELD.load(Ordering::Relaxed) {
        return;
    }
    let Some(_inside) = enter() else { return };
    let it = world();
    let left_ns = it.machine.heap_held_until_ns.saturating_sub(it.now_ns);
    if left_ns == 0 {
        IS_HEAP_HELD.store(false, Ordering::Relaxed);
        return;
    }
    if it.threads[it.current].is_loop {
        it.checks.spent("heap", left_ns);
    }
    crate::threads::advance(left_ns);
}

/// The system's allocator, counted for each thread.
pub(crate) struct Counting;

// SAFETY: all is the system allocator's; counting touches a plain cell.
unsafe impl std::alloc::GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        if !INSIDE.get() {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            wait_for_heap();
        }
        // SAFETY: the caller's.
        unsafe { std::alloc::System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: std::alloc::Layout) {
        wait_for_heap();
        // SAFETY: the caller's.
        unsafe { std::alloc::System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: std::alloc::Layout, size: usize) -> *mut u8 {
        if !INSIDE.get() {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            wait_for_heap();
        }
        // SAFETY: the caller's.
        unsafe { std::alloc::System.realloc(at, layout, size) }
    }
}
