//! The BPF programs, from this side: loading, attaching, arming, reading.
//!
//! Problem: a host may allow all, some or none of what the programs need, and the agent must work in each case and say what
//! it lost. Approach: policy first ([`BpfError`] when nothing at all can work), then one do-nothing program per program
//! type, then hook by hook, each with its own outcome ([`HookReport`]). After loading, nothing here allocates or opens a file
//! on the path from a record to a decision: reading a ring and arming a threshold are a few system calls on descriptors that are
//! open.
//!
//! Terms: a *hook* is one program on one kernel function or tracepoint. To *register* a cgroup is to learn the kernel's counter
//! behind its `memory.current`; to *arm* it is to ask for one record when that counter reaches a number.

pub mod decode;
pub mod sample;

mod account;
pub mod btf;
mod charges;
mod consumed;
mod counters;
mod error;
mod hooks;
pub mod last_line;
mod layout;
pub mod load;
mod loader;
mod log;
pub mod object;
mod pins;
mod policy;
mod ring;
mod run_queue;
pub mod sampling;
pub mod stats;
mod totals;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, PerCpuValues};
use aya::programs::links::FdLink;
use aya::programs::{BtfTracePoint, Program, ProgramInfo};
use plimsoll_abi::{
    FILTER_WORDS, KINDS, Kind, MANIFEST_BYTES, ROOT_CGROUP_ID, UNTRACKED, agent, dropped,
    filter_bit, folded, memory_totals, oom_totals, produced, seen, throttle_totals, watch,
};

pub use account::{Account, AccountReport, CpuReport, KindCount, KindReport};
pub use charges::{Generation, pages_up};
pub use error::BpfError;
pub use hooks::{Family, HookKind, HookReport, HookSet, HookState, Unavailable};
pub use pins::{PinError, PinOwner, PinSet, Pinning};
pub use run_queue::{OneIn, RunQueueTotals};
pub use totals::{ProcessTotals, RefaultTotals, StallTotals};

use self::log::ProgramLog;
use crate::kernel::decode::{DecodeError, MemoryLimitEvent, Record, memory_limit_event};
use account::CpuAccount;
use charges::Charges;
use consumed::Consumed;
use error::map_error;
use last_line::LastLineMaps;
use loader::Machine;
use pins::{Manifest, identity};
use ring::Ring;

/// Reads of `memory.current` until the program must have seen one. Another thread of the agent may read such a file at the
/// same moment, hence more than one.
const REGISTER_ATTEMPTS: usize = 4;

/// How often, and how long apart, rings are read for the last records of programs that were just detached.
const SETTLE_ROUNDS: usize = 20;
const SETTLE_PAUSE: Duration = Duration::from_millis(2);

/// What to load, and the numbers that are fixed at load time.
#[derive(Clone, Copy, Debug)]
pub struct BpfOptions {
    /// The agent's process id in the initial pid namespace: its reads of `memory.current` register counters.
    pub agent_tgid: u32,
    /// Which families of hooks.
    pub hooks: HookSet,
    /// Kinds of programs that are not to be used, to see what the agent falls back to.
    pub without: &'static [HookKind],
    /// Of the records that come in floods, at most one per cgroup is sent in this time.
    pub window: Duration,
    /// How many of the switches of a CPU the run-queue program looks at.
    pub run_queue_one_in: OneIn,
}

/// A counter as it was when it was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterSeen {
    /// Charged to the cgroup.
    pub usage_bytes: u64,
    /// Charged to the top of the hierarchy, that is to all cgroups but the root itself.
    pub root_usage_bytes: u64,
}

/// How often a cgroup met one of its memory limits since the programs were attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTotals {
    /// The cgroup that owns the limit.
    pub cgroup_id: u64,
    /// Which limit.
    pub event: MemoryLimitEvent,
    /// How often.
    pub count: u64,
}

/// Kills of the kernel's OOM killer in a cgroup that got no record, since the programs were attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomTotals {
    /// The victims' cgroup.
    pub cgroup_id: u64,
    /// Choices of the killer.
    pub choices: u64,
    /// Victims that were named, each thread that was marked.
    pub victims: u64,
}

/// Running totals of a cgroup's CPU throttling since the programs were attached, each CPU's run queue by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleTotals {
    /// The cgroup with the quota.
    pub cgroup_id: u64,
    /// Finished throttles.
    pub count: u64,
    /// Their time.
    pub sum_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

struct Counter {
    address: u64,
    is_watched: bool,
}

/// Reading the kernel's types took tens of megabytes, which the allocator keeps: the agent, soon locked in memory, would
/// hold them for life.
#[allow(unsafe_code, reason = "the allocator's own call has no safe wrapper")]
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers; glibc documents it as safe to call from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// What becomes of pinned programs when their agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// They go with it.
    Detach,
    /// They stay for the next one. Those that are not pinned go all the same.
    Keep,
}

/// What keeps the programs attached.
enum Hold {
    /// This process.
    Process {
        ebpf: Ebpf,
        _links: Vec<(&'static str, FdLink)>,
    },
    /// Pins, until they are removed. Programs that are attached on demand are this process's own, by program.
    Pins {
        set: PinSet,
        on_demand: BTreeMap<&'static str, BtfTracePoint>,
    },
    /// Nothing any more.
    Nothing,
}

/// The loaded programs. Dropping it detaches and unloads them, unless they are pinned: then they stay, as they do when the process
/// is killed.
pub struct Bpf {
    hold: Hold,
    /// Lines of programs that log, if this process has loaded such.
    log: Option<ProgramLog>,
    consumed: Consumed,
    manifest: Array<MapData, [u8; MANIFEST_BYTES]>,
    hooks: Vec<HookReport>,
    critical: Ring,
    lifecycle: Ring,
    pressure: Ring,
    watch: HashMap<MapData, u64, [u64; watch::WORDS]>,
    filter: Array<MapData, [u64; FILTER_WORDS]>,
    seen: Array<MapData, [u64; seen::WORDS]>,
    counts: PerCpuArray<MapData, u64>,
    charges: Charges,
    agent: Array<MapData, u64>,
    throttle: HashMap<MapData, u64, [u64; throttle_totals::WORDS]>,
    memory: HashMap<MapData, [u64; 2], [u64; memory_totals::WORDS]>,
    oom_kills: HashMap<MapData, u64, [u64; oom_totals::WORDS]>,
    run_queue: run_queue::Watch,
    last_line: LastLineMaps,
    totals: totals::Totals,
    /// By cgroup id.
    counters: BTreeMap<u64, Counter>,
    /// What `filter` holds.
    filter_words: [u64; FILTER_WORDS],
    page_bytes: u64,
}

fn take_map(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, BpfError> {
    ebpf.take_map(name).ok_or_else(|| BpfError::Object {
        reason: format!("it has no map {name}"),
    })
}

/// Removes sets that cannot be used: another version's, other options', half a set.
fn remove_others(sets: &[PinSet], used: Option<&PinSet>, said: &mut impl FnMut(String)) {
    for set in sets.iter().filter(|set| Some(*set) != used) {
        let path = set.path().display();
        match set.remove() {
            Ok(()) => said(format!(
                "BPF programs of an earlier agent were removed: {path}"
            )),
            Err(error) => said(format!("BPF programs of an earlier agent stay: {error}")),
        }
    }
}

fn is_attached(hooks: &[HookReport], program: &str) -> bool {
    hooks
        .iter()
        .any(|hook| hook.program == program && hook.is_attached())
}

impl Bpf {
    /// Loads the object and attaches every hook of `options` that this host allows.
    ///
    /// # Errors
    /// Only when nothing at all can work: policy, capabilities, no BTF, an object that the kernel cannot take, or no hook
    /// attached. Everything less is in [`Bpf::hooks`].
    pub fn load(object: &[u8], options: &BpfOptions) -> Result<Bpf, BpfError> {
        let machine = Machine::probe()?;
        let loaded = loader::load(object, options, &machine)?;
        give_memory_back();
        let mut ebpf = loaded.ebpf;
        let mut bpf = Self::of_maps(&machine, options, loaded.hooks, |name| {
            take_map(&mut ebpf, name)
        })?;
        bpf.tell_process(options)?;
        bpf.log = ProgramLog::of(&mut ebpf);
        bpf.hold = Hold::Process {
            ebpf,
            _links: loaded.links,
        };
        Ok(bpf)
    }

    /// Whether an agent before this one has left pinned what would be loaded. It may still turn out to be damaged.
    ///
    /// # Errors
    /// The machine cannot be looked at: [`BpfError`].
    pub fn is_pinned(
        object: &[u8],
        options: &BpfOptions,
        owner: &PinOwner,
    ) -> Result<bool, BpfError> {
        let machine = Machine::probe()?;
        let name = identity(object, options, machine.memory_is_v1, machine.cpus);
        Ok(owner.set(&name).exists())
    }

    /// As [`Bpf::load`], but takes over what an agent before left pinned if it is what would be loaded, and else pins what it loads.
    /// Every other set of this owner is removed; `said` gets a line for each. That pins cannot be made is no error: the
    /// programs then end with this process, as [`Pinning`] tells.
    ///
    /// The caller holds the lock of the owner's state directory: the rings have one reader.
    ///
    /// # Errors
    /// As [`Bpf::load`].
    pub fn load_pinned(
        object: &[u8],
        options: &BpfOptions,
        owner: &PinOwner,
        mut said: impl FnMut(String),
    ) -> Result<(Bpf, Pinning), BpfError> {
        let machine = Machine::probe()?;
        let set = owner.set(&identity(
            object,
            options,
            machine.memory_is_v1,
            machine.cpus,
        ));
        let sets = match owner.prepare().and_then(|()| owner.sets()) {
            Ok(sets) => sets,
            Err(error) => return Ok((Self::load(object, options)?, Pinning::Not(error))),
        };
        if set.exists() {
            match Self::take_over(&set, options, &machine) {
                Ok(bpf) => {
                    remove_others(&sets, Some(&set), &mut said);
                    let path = set.path().to_owned();
                    return Ok((bpf, Pinning::TakenOver { path }));
                }
                Err(error) => said(format!(
                    "the BPF programs that an agent left cannot be taken over and are replaced: {error}"
                )),
            }
        }
        remove_others(&sets, None, &mut said);
        let loaded = loader::load(object, options, &machine)?;
        give_memory_back();
        let mut ebpf = loaded.ebpf;
        let mut pinned = set.begin();
        let mut bpf = Self::of_maps(&machine, options, loaded.hooks, |name| {
            let map = take_map(&mut ebpf, name)?;
            if pinned.is_ok() {
                pinned = set.pin_map(name, &map);
            }
            Ok(map)
        })?;
        bpf.tell_process(options)?;
        // While it is being pinned, each link has two holders: this process and its pin.
        let mut links = Vec::with_capacity(loaded.links.len());
        let mut unpinned = loaded.links.into_iter();
        let pin_all = || -> Result<Hold, PinError> {
            pinned?;
            for (name, link) in unpinned.by_ref() {
                if let Some(program) = ebpf.program_mut(name) {
                    links.push((name, set.pin_program(name, program, link)?));
                }
            }
            for hook in bpf.hooks.iter().filter(|hook| hook.is_on_demand()) {
                if let Some(program) = ebpf.program_mut(hook.program) {
                    set.pin_on_demand(hook.program, program)?;
                }
            }
            bpf.store_manifest(&set)?;
            set.complete()?;
            bpf.hold_by(&set)
        };
        match pin_all() {
            Ok(hold) => {
                bpf.hold = hold;
                let path = set.path().to_owned();
                Ok((bpf, Pinning::Made { path }))
            }
            Err(error) => {
                // What was pinned already is lost with its pin, so all is loaded again; this happens once in the life of a misconfigured host.
                drop((bpf, links, unpinned, ebpf));
                if let Err(error) = set.remove() {
                    said(error.to_string());
                }
                Ok((Self::load(object, options)?, Pinning::Not(error)))
            }
        }
    }

    /// Holds the programs by their pins.
    fn hold_by(&self, set: &PinSet) -> Result<Hold, PinError> {
        let mut on_demand = BTreeMap::new();
        for hook in self.hooks.iter().filter(|hook| hook.is_on_demand()) {
            on_demand.insert(hook.program, set.on_demand(hook.program)?);
        }
        Ok(Hold::Pins {
            set: set.clone(),
            on_demand,
        })
    }

    /// A program that is attached on demand; `None` after [`Bpf::finish`].
    fn on_demand(&mut self, program: &str) -> Option<&mut BtfTracePoint> {
        match &mut self.hold {
            Hold::Process { ebpf, .. } => match ebpf.program_mut(program)? {
                Program::BtfTracePoint(program) => Some(program),
                _ => None,
            },
            Hold::Pins { on_demand, .. } => on_demand.get_mut(program),
            Hold::Nothing => None,
        }
    }

    /// What the kernel says of a program, or why it says nothing.
    fn program_info(&self, program: &str) -> Result<ProgramInfo, String> {
        match &self.hold {
            Hold::Process { ebpf, .. } => ebpf
                .program(program)
                .ok_or_else(|| "the BPF object has no such program".to_owned())?
                .info()
                .map_err(|error| error::reason(&error)),
            Hold::Pins { set, .. } => set.program_info(program),
            Hold::Nothing => Err("it was taken away".to_owned()),
        }
    }

    fn store_manifest(&mut self, set: &PinSet) -> Result<(), PinError> {
        Manifest::new(&self.hooks)
            .store(&mut self.manifest)
            .ok_or_else(|| PinError::Torn {
                path: set.path().to_owned(),
                what: "the list of hooks cannot be written".to_owned(),
            })
    }

    /// Makes this from pins alone.
    fn take_over(set: &PinSet, options: &BpfOptions, machine: &Machine) -> Result<Bpf, PinError> {
        set.check_complete()?;
        let torn = |error: BpfError| PinError::Torn {
            path: set.path().to_owned(),
            what: error.to_string(),
        };
        let manifest = set
            .map("MANIFEST")?
            .try_into()
            .ok()
            .as_ref()
            .and_then(Manifest::of_map)
            .ok_or_else(|| PinError::Torn {
                path: set.path().to_owned(),
                what: "its list of hooks cannot be read".to_owned(),
            })?;
        let hooks = set.hooks(&manifest, options.without)?;
        let mut missing = None;
        let bpf = Self::of_maps(machine, options, hooks, |name| {
            set.map(name).map_err(|error| {
                let reason = error.to_string();
                missing = Some(error);
                BpfError::Map { map: name, reason }
            })
        });
        let mut bpf = match (bpf, missing) {
            (_, Some(error)) => return Err(error),
            (bpf, None) => bpf.map_err(torn)?,
        };
        bpf.tell_process(options).map_err(torn)?;
        bpf.adopt_watches().map_err(torn)?;
        bpf.hold = bpf.hold_by(set)?;
        Ok(bpf)
    }

    /// Tells the programs who their agent is.
    fn tell_process(&mut self, options: &BpfOptions) -> Result<(), BpfError> {
        self.agent
            .set(agent::TGID, u64::from(options.agent_tgid), 0)
            .map_err(map_error("AGENT"))
    }

    /// What the agent before has armed stays armed. Its files are closed, so a counter may be another cgroup's by now:
    /// [`Bpf::register`] finds out for cgroups that are still there, and a record names the cgroup that was meant.
    fn adopt_watches(&mut self) -> Result<(), BpfError> {
        for entry in self.watch.iter() {
            let (address, value) = entry.map_err(map_error("WATCH"))?;
            self.counters.insert(
                value[watch::CGROUP_ID],
                Counter {
                    address,
                    is_watched: true,
                },
            );
        }
        self.filter_words = self.filter.get(&0, 0).map_err(map_error("FILTER"))?;
        Ok(())
    }

    fn of_maps(
        machine: &Machine,
        options: &BpfOptions,
        hooks: Vec<HookReport>,
        mut take: impl FnMut(&'static str) -> Result<Map, BpfError>,
    ) -> Result<Bpf, BpfError> {
        let (cpus, run_queue_one_in) = (machine.cpus, options.run_queue_one_in);
        macro_rules! map {
            ($name:literal) => {
                take($name)?.try_into().map_err(map_error($name))?
            };
        }
        Ok(Bpf {
            hold: Hold::Nothing,
            log: None,
            consumed: Consumed::map(take("CONSUMED")?, cpus)?,
            manifest: map!("MANIFEST"),
            agent: map!("AGENT"),
            critical: Ring::new(map!("CRITICAL")),
            lifecycle: Ring::new(map!("LIFECYCLE")),
            pressure: Ring::new(map!("PRESSURE")),
            watch: map!("WATCH"),
            filter: map!("FILTER"),
            seen: map!("SEEN"),
            counts: map!("COUNTS"),
            charges: Charges::new(map!("CHARGES"), is_attached(&hooks, "charges_count"))?,
            throttle: map!("THROTTLE"),
            memory: map!("MEMORY"),
            oom_kills: map!("OOM_KILLS"),
            totals: totals::Totals {
                stalls: map!("STALLS"),
                refaults: map!("REFAULTS"),
                processes: map!("PROCESSES"),
                followed: BTreeSet::new(),
            },
            run_queue: run_queue::Watch::new(map!("RUN_QUEUE"), run_queue_one_in, cpus),
            last_line: LastLineMaps {
                line: map!("LAST_LINE"),
                seen: map!("LAST_LINE_SEEN"),
                condemned: map!("CONDEMNED"),
                kills: map!("LAST_LINE_KILLS"),
                told: map!("LAST_LINE_TOLD"),
                order: BTreeMap::new(),
                order_known: false,
            },
            hooks,
            counters: BTreeMap::new(),
            filter_words: [0; FILTER_WORDS],
            page_bytes: rustix::param::page_size() as u64,
        })
    }

    /// Takes the programs away, and has `drain` read what is left until every account adds up. A program that was running may
    /// take a moment longer; an account that is still open after that is what the caller will find.
    ///
    /// # Errors
    /// When pins cannot be removed, or the kernel refuses to show the counters.
    pub fn finish(
        &mut self,
        at_end: AtEnd,
        mut drain: impl FnMut(&mut Bpf),
    ) -> Result<Account, BpfError> {
        if let (Hold::Pins { .. }, AtEnd::Keep) = (&self.hold, at_end) {
            // They go on sending: what is counted now is open by what comes meanwhile.
            drain(self);
            return self.account();
        }
        if let Hold::Pins { set, .. } = std::mem::replace(&mut self.hold, Hold::Nothing) {
            set.remove()?;
        }
        for _ in 0..SETTLE_ROUNDS {
            drain(self);
            let account = self.account()?;
            if account.open().next().is_none() {
                return Ok(account);
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
        self.account()
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

    /// The same for cgroups and processes that come and go. When it returns `budget` there may be more, and nothing wakes whoever
    /// waits for [`Bpf::lifecycle_fd`] until all has been read.
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

    /// Learns which kernel counter is behind `memory_current`, an open `memory.current` (v1: `memory.usage_in_bytes`), by
    /// reading it. The counter at the top of the hierarchy is registered with it, as [`ROOT_CGROUP_ID`].
    ///
    /// # Errors
    /// When the file cannot be read, or the program that watches these reads did not see it.
    pub fn register(
        &mut self,
        memory_current: BorrowedFd<'_>,
        cgroup_id: u64,
    ) -> Result<CounterSeen, BpfError> {
        if !self.is_attached("threshold_charge") {
            return Err(BpfError::NoThresholds);
        }
        for _ in 0..REGISTER_ATTEMPTS {
            let seen = self.look(memory_current)?;
            if seen[seen::CGROUP_ID] != cgroup_id
                || seen[seen::COUNTER] == 0
                || seen[seen::ROOT_COUNTER] == 0
            {
                continue;
            }
            // Arms nothing: an entry with the same counter keeps its watch.
            for (id, address) in [
                (cgroup_id, seen[seen::COUNTER]),
                (ROOT_CGROUP_ID, seen[seen::ROOT_COUNTER]),
            ] {
                if self
                    .counters
                    .get(&id)
                    .is_none_or(|known| known.address != address)
                {
                    self.forget(id)?;
                    self.counters.insert(
                        id,
                        Counter {
                            address,
                            is_watched: false,
                        },
                    );
                }
            }
            return Ok(CounterSeen {
                usage_bytes: self.bytes(seen[seen::USAGE_PAGES]),
                root_usage_bytes: self.bytes(seen[seen::ROOT_USAGE_PAGES]),
            });
        }
        Err(BpfError::CounterNotSeen { cgroup_id })
    }

    /// Asks for one [`Kind::ThresholdCrossed`] record when the cgroup's usage is about to reach `threshold_bytes`, replacing
    /// what was asked before. If it is there already, the next charge sends it. `generation` comes back in the record.
    ///
    /// One map update (a second one the first time), no allocation on either side of the border.
    ///
    /// # Errors
    /// When the cgroup is not registered, or the kernel refuses the update (too many watched counters).
    pub fn arm(
        &mut self,
        cgroup_id: u64,
        threshold_bytes: u64,
        generation: u64,
    ) -> Result<(), BpfError> {
        let threshold_pages = threshold_bytes.div_ceil(self.page_bytes);
        let counter = self
            .counters
            .get_mut(&cgroup_id)
            .ok_or(BpfError::NotRegistered { cgroup_id })?;
        let mut value = [0; watch::WORDS];
        value[watch::CGROUP_ID] = cgroup_id;
        value[watch::THRESHOLD_PAGES] = threshold_pages;
        value[watch::GENERATION] = generation;
        value[watch::ARMED] = 1;
        self.watch
            .insert(counter.address, value, 0)
            .map_err(map_error("WATCH"))?;
        counter.is_watched = true;
        let (word, mask) = filter_bit(counter.address as u32);
        if self.filter_words[word] & mask == 0 {
            self.filter_words[word] |= mask;
            self.filter
                .set(0, self.filter_words, 0)
                .map_err(map_error("FILTER"))?;
        }
        Ok(())
    }

    /// Takes back what was asked for with [`Bpf::arm`]. A record may be on its way already.
    ///
    /// # Errors
    /// When the kernel refuses the update.
    pub fn disarm(&mut self, cgroup_id: u64) -> Result<(), BpfError> {
        let Some(counter) = self
            .counters
            .get_mut(&cgroup_id)
            .filter(|counter| counter.is_watched)
        else {
            return Ok(());
        };
        counter.is_watched = false;
        let address = counter.address;
        // The filter first: a hit without an entry would only cost time.
        let mut words = [0; FILTER_WORDS];
        for watched in self.counters.values().filter(|counter| counter.is_watched) {
            let (word, mask) = filter_bit(watched.address as u32);
            words[word] |= mask;
        }
        if words != self.filter_words {
            self.filter_words = words;
            self.filter.set(0, words, 0).map_err(map_error("FILTER"))?;
        }
        self.watch.remove(&address).map_err(map_error("WATCH"))
    }

    /// Forgets a cgroup that is gone, so that its counter's address can be another's.
    ///
    /// # Errors
    /// As [`Bpf::disarm`].
    pub fn forget(&mut self, cgroup_id: u64) -> Result<(), BpfError> {
        self.disarm(cgroup_id)?;
        self.counters.remove(&cgroup_id);
        Ok(())
    }

    /// Reads the file, whereupon the program notes the counter behind it.
    fn look(&self, memory_current: BorrowedFd<'_>) -> Result<[u64; seen::WORDS], BpfError> {
        let mut text = [0u8; 32];
        rustix::io::pread(memory_current, &mut text, 0).map_err(|errno| BpfError::Read {
            errno: errno.raw_os_error(),
        })?;
        self.seen.get(&0, 0).map_err(map_error("SEEN"))
    }

    fn bytes(&self, pages: u64) -> u64 {
        // A counter can be below zero for a moment.
        if pages > u64::MAX / 2 {
            0
        } else {
            pages.saturating_mul(self.page_bytes)
        }
    }

    fn rings(&self) -> [&Ring; 3] {
        [&self.critical, &self.lifecycle, &self.pressure]
    }

    /// Where every record went so far.
    ///
    /// # Errors
    /// When the kernel refuses to show the counters.
    pub fn account(&self) -> Result<Account, BpfError> {
        let count = |index: u32| -> Result<PerCpuValues<u64>, BpfError> {
            self.counts.get(&index, 0).map_err(map_error("COUNTS"))
        };
        let untracked = count(UNTRACKED)?;
        let rings = self.rings();
        let mut account = Account {
            cpus: vec![CpuAccount::default(); untracked.len()],
            unreadable: rings.iter().map(|ring| ring.unreadable).sum(),
        };
        for kind in KINDS {
            let slot = usize::from(kind.number());
            // Dropped first: a record that is sent in between counts as on its way, not as lost.
            let (dropped, produced) = (count(dropped(kind))?, count(produced(kind))?);
            let folded = count(folded(kind))?;
            for (cpu, part) in account.cpus.iter_mut().enumerate() {
                part.untracked = untracked[cpu];
                part.kinds[slot] = KindCount {
                    produced: produced[cpu],
                    consumed: self.consumed.get(cpu, slot),
                    dropped: dropped[cpu],
                    folded: folded[cpu],
                };
            }
        }
        Ok(account)
    }

    /// How many events of a kind went without a record of their own, or with one that was lost. Two map lookups.
    ///
    /// # Errors
    /// When the kernel refuses to show the counters.
    pub fn missed(&self, kind: Kind) -> Result<u64, BpfError> {
        let mut sum = 0;
        for index in [dropped(kind), folded(kind)] {
            let counts = self.counts.get(&index, 0).map_err(map_error("COUNTS"))?;
            sum += counts.iter().sum::<u64>();
        }
        Ok(sum)
    }

    /// Kills of the kernel's OOM killer that got no record, by cgroup. Reads only.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn drain_oom_kills(&self, mut f: impl FnMut(OomTotals)) -> Result<(), BpfError> {
        for entry in self.oom_kills.iter() {
            let (cgroup_id, value) = entry.map_err(map_error("OOM_KILLS"))?;
            f(OomTotals {
                cgroup_id,
                choices: value[oom_totals::CHOICES],
                victims: value[oom_totals::VICTIMS],
            });
        }
        Ok(())
    }

    /// Every cgroup's throttling so far, including what no record has told yet. Reads only.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn drain_throttle(&self, mut f: impl FnMut(ThrottleTotals)) -> Result<(), BpfError> {
        for entry in self.throttle.iter() {
            let (cgroup_id, value) = entry.map_err(map_error("THROTTLE"))?;
            f(ThrottleTotals {
                cgroup_id,
                count: value[throttle_totals::COUNT],
                sum_ns: value[throttle_totals::SUM_NS],
                max_ns: value[throttle_totals::MAX_NS],
            });
        }
        Ok(())
    }

    /// How often each cgroup met its memory limits so far, including what no record has told yet. Reads only.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn drain_memory(&self, mut f: impl FnMut(MemoryTotals)) -> Result<(), BpfError> {
        for entry in self.memory.iter() {
            let ([cgroup_id, event], value) = entry.map_err(map_error("MEMORY"))?;
            // The programs write no other.
            let event = u32::try_from(event).ok().and_then(memory_limit_event);
            if let Some(event) = event {
                f(MemoryTotals {
                    cgroup_id,
                    event,
                    count: value[memory_totals::COUNT],
                });
            }
        }
        Ok(())
    }
}
