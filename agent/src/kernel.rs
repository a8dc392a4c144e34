//! The BPF programs, from this side: loading, attaching, arming, reading.
//!
//! Problem: a host may allow all, some or none of what the programs need, and the agent must work in each case and say
//! what it lost. Approach: what the host forbids first ([`BpfError`] when nothing at all can work), then one do-nothing
//! program per program type, then hook by hook, each with its own outcome ([`HookReport`]). After loading, nothing here
//! allocates or opens a file on the path from a record to a decision: reading a ring and arming a threshold are a few
//! system calls on descriptors that are open.
//!
//! Terms: a *hook* is one program on one kernel function or tracepoint.

pub mod btf;
pub mod decode;
mod digest;
pub mod last_line;
pub mod object;
pub mod perf_events;
pub mod perf_sample;
pub mod programs;
pub mod stats;

mod account;
mod charges;
mod consumed;
mod counters;
mod error;
mod followed;
mod hook_report;
mod hooks;
mod identity;
mod layout;
mod lifetime;
mod loader;
mod lockdown;
mod log;
mod manifest;
mod pins;
mod ring;
mod symbols;
mod totals;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use aya::maps::{Array, MapData, PerCpuArray};
use aya::programs::ProgramInfo;
use plimsoll_abi::MANIFEST_BYTES;

pub use account::{Account, AccountReport, CpuReport, KindCount, KindReport};
pub use charges::{Generation, pages_up};
pub use error::BpfError;
pub use hook_report::{HookReport, HookState, Unavailable};
pub use hooks::{Family, HookKind, HookSet};
pub use lifetime::AtEnd;
use pins::PinLock;
pub use pins::{PinError, PinOwner, PinSet, Pinning};
pub use totals::{
    Counted, MemoryTotals, OomTotals, ProcessTotals, RefaultTotals, StallTotals, ThrottleTotals,
};

use self::log::ProgramLog;
use charges::Charges;
use consumed::Consumed;
use decode::{DecodeError, Record};
use last_line::LastLineMaps;
use lifetime::Attachment;
use ring::Ring;
use totals::Totals;

/// Whose events are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Each cgroup's, under its id. Whoever may make cgroups can fill the maps: for a look at the machine, and for
    /// tests.
    EachCgroup,
    /// Those of the cgroups that [`Bpf::count_only`] names, and of all below them. Nothing that a pod does takes the
    /// room of another.
    PodsOnly,
}

/// What to load, and the numbers that are fixed at load time.
#[derive(Clone, Copy, Debug)]
pub struct BpfOptions {
    /// Which families of hooks.
    pub hooks: HookSet,
    /// Kinds of programs that are not to be used, to see what the agent falls back to.
    pub without: &'static [HookKind],
    /// Of the records that come in floods, at most one per cgroup is sent in this time.
    pub window: Duration,
    /// Whose events are counted.
    pub counts: Counts,
}

/// The loaded programs. Dropping it detaches and unloads them, unless they are pinned: then they stay, as they do when
/// the process is killed.
pub struct Bpf {
    attachment: Attachment,
    /// Of the pins, if that is what holds the programs.
    pin_lock: Option<PinLock>,
    /// Lines of programs that log, if this process has loaded such.
    log: Option<ProgramLog>,
    consumed: Consumed,
    manifest: Array<MapData, [u8; MANIFEST_BYTES]>,
    hooks: Vec<HookReport>,
    critical: Ring,
    lifecycle: Ring,
    pressure: Ring,
    counts: PerCpuArray<MapData, u64>,
    charges: Charges,
    last_line: LastLineMaps,
    totals: Totals,
}

fn is_attached(hooks: &[HookReport], program: &str) -> bool {
    hooks
        .iter()
        .any(|hook| hook.program == program && hook.is_attached())
}

impl Bpf {
    /// What the kernel says of a program, or why it says nothing.
    fn program_info(&self, program: &str) -> Result<ProgramInfo, String> {
        match &self.attachment {
            Attachment::Process { ebpf, .. } => ebpf
                .program(program)
                .ok_or_else(|| "the BPF object has no such program".to_owned())?
                .info()
                .map_err(|error| error::reason(&error)),
            Attachment::Pins(set) => set.program_info(program),
            Attachment::Nothing => Err("it was taken away".to_owned()),
        }
    }

    /// What became of each hook that was asked for.
    #[must_use]
    pub fn hooks(&self) -> &[HookReport] {
        &self.hooks
    }

    /// Whether a program is attached.
    #[must_use]
    pub fn is_attached(&self, program: &str) -> bool {
        is_attached(&self.hooks, program)
    }

    /// The last line's maps; `None` where no program goes by them.
    pub fn last_line(&mut self) -> Option<&mut LastLineMaps> {
        self.hooks
            .iter()
            .any(|hook| hook.family == Family::LastLine && hook.is_attached())
            .then_some(&mut self.last_line)
    }

    /// Readable when [`Bpf::drain_critical`] has something to do.
    #[must_use]
    pub fn critical_fd(&self) -> BorrowedFd<'_> {
        self.critical.ring.as_fd()
    }

    /// Hands at most `budget` urgent records to `f`, oldest first, and returns how many places of the ring were freed.
    /// Does not allocate. When it returns `budget` there may be more.
    pub fn drain_critical(&mut self, budget: usize, f: impl FnMut(Record<'_>)) -> usize {
        self.critical.drain(budget, &self.consumed, f)
    }

    /// Readable when [`Bpf::drain_lifecycle`] has something to do, and had nothing left the last time.
    #[must_use]
    pub fn lifecycle_fd(&self) -> BorrowedFd<'_> {
        self.lifecycle.ring.as_fd()
    }

    /// The same for cgroups and processes that come and go. When it returns `budget` there may be more, and
    /// [`Bpf::lifecycle_fd`] does not become readable again until all has been read.
    pub fn drain_lifecycle(&mut self, budget: usize, f: impl FnMut(Record<'_>)) -> usize {
        self.lifecycle.drain(budget, &self.consumed, f)
    }

    /// The same for the aggregated records.
    pub fn drain_pressure(&mut self, budget: usize, f: impl FnMut(Record<'_>)) -> usize {
        self.pressure.drain(budget, &self.consumed, f)
    }

    /// Puts what the programs have logged since into this process's log. Only an object that was built to log does.
    pub fn flush_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// The last record that could not be read, if any: how many is in [`Account::unreadable`].
    #[must_use]
    pub fn last_decode_error(&self) -> Option<DecodeError> {
        self.rings().iter().find_map(|ring| ring.last_error)
    }

    fn rings(&self) -> [&Ring; 3] {
        [&self.critical, &self.lifecycle, &self.pressure]
    }
}
