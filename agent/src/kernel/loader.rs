//! Object → attached hooks.

use std::fs;

use aya::programs::links::FdLink;
use aya::programs::{Program, ProgramError};
use aya::{Ebpf, EbpfLoader, Endianness};
use plimsoll_abi::{Config, MEMORY_NODES_MAX, last_line::Counters};
use zerocopy::IntoBytes;

use super::btf::{self, Btf};
use super::charges::charge_pages_max;
use super::counters;
use super::error::{reason, refusal_of_functions};
use super::hooks::{HOOKS, Hook};
use super::layout::{self, Resolved};
use super::{
    BpfError, BpfOptions, Counts, Family, HookKind, HookReport, HookState, Unavailable, consumed,
    lockdown,
};
use crate::host::cgroup_paths::hierarchy_number;
use crate::host::file::read_text;
use crate::host::numa::parse_list;
use crate::host::{Controller, HostRoot, Version};

/// The running kernel's type information.
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Programs that do nothing, their kinds, and functions of the kernel's self-tests: they show whether the host lets a
/// program of this kind attach.
const CANARIES: [(&str, HookKind, &str); 2] = [
    ("canary_fentry", HookKind::Fentry, "bpf_fentry_test1"),
    ("canary_tp_btf", HookKind::TpBtf, "bpf_test_finish"),
];

/// Members without which the programs do not read the node's memory.
const NODE_PAGES: [&str; 22] = [
    "task_struct.cgroups",
    "css_set.subsys[memory_cgrp_id]",
    "cgroup_subsys_state.cgroup",
    "cgroup.ancestors",
    "cgroup.subsys[memory_cgrp_id]",
    "mem_cgroup.css",
    "mem_cgroup.nodeinfo",
    "mem_cgroup_per_node.lruvec.pgdat",
    "pglist_data.totalreserve_pages",
    "pglist_data.vm_stat[NR_ANON_MAPPED]",
    "pglist_data.vm_stat[NR_FILE_PAGES]",
    "pglist_data.vm_stat[NR_INACTIVE_FILE]",
    "pglist_data.vm_stat[NR_ACTIVE_FILE]",
    "pglist_data.vm_stat[NR_SHMEM]",
    "pglist_data.vm_stat[NR_SLAB_RECLAIMABLE_B]",
    "pglist_data.vm_stat[NR_KERNEL_MISC_RECLAIMABLE]",
    "pglist_data.node_zones[0]",
    "pglist_data.node_zones[1]",
    "pglist_data.nr_zones",
    "zone.vm_stat[NR_FREE_PAGES]",
    "zone._watermark[WMARK_LOW]",
    "zone.watermark_boost",
];

/// Says whether PSI counts.
const PRESSURE: &str = "/proc/pressure/memory";

pub(super) struct Loaded {
    pub(super) ebpf: Ebpf,
    pub(super) hooks: Vec<HookReport>,
    /// What holds each program at its target, by program.
    pub(super) links: Vec<(&'static str, FdLink)>,
}

/// What the programs need to know of the machine beside its kernel.
pub(super) struct Machine {
    pub(super) hierarchies: Hierarchies,
    /// How many there can be.
    pub(super) cpus: usize,
    /// [`Config::memory_nodes`].
    pub(super) memory_nodes: u32,
}

/// The hierarchies of the controllers whose cgroups are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hierarchies {
    /// The memory controller sits on cgroup v1.
    pub(super) memory_is_v1: bool,
    /// Its hierarchy's number, 0 for the unified one.
    pub(super) memory: u32,
    /// That of the cpu controller.
    pub(super) cpu: u32,
}

impl Machine {
    pub(super) fn probe() -> Result<Self, BpfError> {
        let cpus = aya::util::nr_cpus().map_err(|(path, source)| BpfError::Cpus {
            path: path.to_owned(),
            source,
        })?;
        let host = HostRoot::live();
        // Without the file all is taken to be unified, as where the mounts cannot be read.
        let numbers = read_text(host.procfs("self/cgroup")).unwrap_or_default();
        Ok(Self {
            hierarchies: Hierarchies {
                memory_is_v1: memory_is_v1(&host),
                memory: hierarchy_number(&numbers, Controller::Memory),
                cpu: hierarchy_number(&numbers, Controller::Cpu),
            },
            cpus,
            memory_nodes: memory_nodes(&host),
        })
    }
}

pub(super) fn load(
    object: &[u8],
    options: &BpfOptions,
    machine: &Machine,
) -> Result<Loaded, BpfError> {
    lockdown::check()?;
    let bytes = kernel_types()?;
    let btf = parse_kernel_types(&bytes)?;
    check_ring_lock(&btf)?;
    let targets = Targets::new(&btf)?;
    let resolved = layout::resolve(&btf);
    let config = Config {
        window_ns: u64::try_from(options.window.as_nanos()).unwrap_or(u64::MAX),
        charge_pages_max: charge_pages_max(machine.cpus),
        memory_is_v1: u32::from(machine.hierarchies.memory_is_v1),
        memory_hierarchy: machine.hierarchies.memory,
        cpu_hierarchy: machine.hierarchies.cpu,
        // The file is there without PSI, too, and then cannot be read.
        psi_is_on: u32::from(fs::read(PRESSURE).is_ok()),
        counts_pods_only: u32::from(options.counts == Counts::PodsOnly),
        memory_nodes: if NODE_PAGES
            .iter()
            .any(|member| resolved.missing.contains(member))
        {
            0
        } else {
            machine.memory_nodes
        },
    };
    // A long list: read only if a program needs it.
    let counters = if options.hooks.contains(Family::LastLine) {
        counters::find(&btf).map_err(|error| error.to_string())
    } else {
        Ok(Counters::default())
    };
    let addresses = counters.as_ref().copied().unwrap_or_default();
    let ebpf = EbpfLoader::new()
        .btf(Some(&targets.functions))
        .override_global("LAYOUT", resolved.layout.as_bytes(), true)
        .override_global("CONFIG", config.as_bytes(), true)
        .override_global("COUNTERS", addresses.as_bytes(), true)
        .map_max_entries(
            "CONSUMED",
            u32::try_from(consumed::words(machine.cpus)).unwrap_or(u32::MAX),
        )
        .load(object)
        .map_err(|error| BpfError::Object {
            reason: reason(&error),
        })?;
    let mut attaching = Attaching {
        ebpf,
        btf: &btf,
        targets: &targets,
        resolved,
        counters: counters.err(),
        hooks: Vec::new(),
        links: Vec::new(),
        allowed: CANARIES.map(|(_, kind, _)| (kind, None)),
    };
    for hook in HOOKS
        .iter()
        .filter(|hook| options.hooks.contains(hook.family))
    {
        let state = match attaching.obstacle(hook) {
            Some(unavailable) => HookState::Unavailable(unavailable),
            None if options.without.contains(&hook.kind) => {
                HookState::Unavailable(Unavailable::LeftOut { kind: hook.kind })
            }
            None => attaching.attach(hook),
        };
        attaching.hooks.push(HookReport {
            family: hook.family,
            program: hook.program,
            kind: hook.kind,
            target: hook.target,
            state,
        });
    }
    let Attaching {
        ebpf, hooks, links, ..
    } = attaching;
    if !hooks.is_empty() && !hooks.iter().any(HookReport::is_attached) {
        return Err(BpfError::NoHook {
            reason: hooks[0].to_string(),
        });
    }
    Ok(Loaded { ebpf, hooks, links })
}

/// Programs take room in rings under locks of the scheduler, where nothing may sleep. On a realtime kernel
/// `spinlock_t`, which is a mutex there, was the lock of a ring until Linux 6.12 (8b62645b09f8, "bpf: Use
/// raw_spinlock_t in ringbuf").
pub(super) fn check_ring_lock(btf: &Btf<'_>) -> Result<(), BpfError> {
    match btf.offset("bpf_ringbuf.spinlock.lock.owner") {
        Some(_) => Err(BpfError::SleepingRing),
        None => Ok(()),
    }
}

/// What aya reads to find the number of each target. In the whole of the kernel's types it would compare 60,000 names
/// for each program: that was a tenth of an agent's start.
struct Targets {
    functions: aya::Btf,
    tracepoints: aya::Btf,
}

impl Targets {
    fn new(btf: &Btf<'_>) -> Result<Self, BpfError> {
        let targets = |at_tracepoint: bool| {
            let hooks = HOOKS.iter().map(|hook| (hook.kind, hook.target));
            let all = hooks.chain(CANARIES.map(|(_, kind, target)| (kind, target)));
            all.filter(move |(kind, _)| (*kind == HookKind::TpBtf) == at_tracepoint)
                .map(|(_, target)| target)
        };
        let tracepoints: Vec<String> = targets(true).map(btf::tracepoint).collect();
        let tracepoints = btf.with_typedefs(tracepoints.iter().map(String::as_str));
        let tracepoints = aya::Btf::parse(&tracepoints, Endianness::default());
        Ok(Targets {
            functions: btf.with_functions(targets(false)),
            tracepoints: tracepoints.map_err(|error| BpfError::Object {
                reason: reason(&error),
            })?,
        })
    }
}

/// The running kernel's type information, as bytes.
pub(super) fn kernel_types() -> Result<Vec<u8>, BpfError> {
    fs::read(VMLINUX).map_err(|source| BpfError::NoBtf {
        path: VMLINUX,
        source,
    })
}

/// Parses what [`kernel_types`] gave.
pub(super) fn parse_kernel_types(bytes: &[u8]) -> Result<Btf<'_>, BpfError> {
    Btf::parse(bytes).map_err(|source| BpfError::Btf {
        path: VMLINUX,
        source,
    })
}

/// How many NUMA nodes there can be; 0 for more than the programs can add up, or where that cannot be known.
fn memory_nodes(host: &HostRoot) -> u32 {
    let last = match read_text(host.sysfs("devices/system/node/possible")) {
        Ok(text) => parse_list(text.trim().as_bytes()).and_then(|nodes| nodes.last().copied()),
        // A kernel without NUMA.
        Err(error) if error.is_vanished() => Some(0_u32),
        Err(_) => None,
    };
    last.and_then(|last| last.checked_add(1))
        .filter(|nodes| *nodes <= MEMORY_NODES_MAX)
        .unwrap_or(0)
}

/// Whether the memory controller sits on a cgroup v1 hierarchy. Where that cannot be found out, v2: the kernel's
/// default.
fn memory_is_v1(host: &HostRoot) -> bool {
    host.cgroup_mounts().is_ok_and(|mounts| {
        mounts
            .hierarchy_of(Controller::Memory)
            .is_ok_and(|hierarchy| hierarchy.version == Version::V1)
    })
}

/// The kind whose canary answers for this one: fexit shares fentry's mechanism.
fn canary_of(kind: HookKind) -> HookKind {
    match kind {
        HookKind::Fentry | HookKind::Fexit => HookKind::Fentry,
        HookKind::TpBtf => HookKind::TpBtf,
    }
}

struct Attaching<'kernel> {
    ebpf: Ebpf,
    btf: &'kernel Btf<'kernel>,
    targets: &'kernel Targets,
    resolved: Resolved,
    /// Why the kernel's counters of pages are not known.
    counters: Option<String>,
    hooks: Vec<HookReport>,
    links: Vec<(&'static str, FdLink)>,
    /// What the canaries have shown, of each kind of which a hook was refused: the reason if the host refuses the kind.
    allowed: [(HookKind, Option<Result<(), String>>); CANARIES.len()],
}

impl Attaching<'_> {
    /// Attaches a program that does nothing and takes it away again: the reason if the host refuses its kind. Only
    /// where a hook of the kind was refused, since on a host that refuses none it costs what a hook costs, and a grace
    /// period.
    fn refusal_of(&mut self, kind: HookKind) -> Option<&String> {
        let kind = canary_of(kind);
        let at = CANARIES.iter().position(|canary| canary.1 == kind)?;
        if self.allowed[at].1.is_none() {
            self.allowed[at].1 = Some(self.canary(at));
        }
        self.known_refusal(kind)
    }

    /// The same, if it has been found out.
    fn known_refusal(&self, kind: HookKind) -> Option<&String> {
        let kind = canary_of(kind);
        let (_, known) = self.allowed.iter().find(|(of, _)| *of == kind)?;
        known.as_ref()?.as_ref().err()
    }

    fn canary(&mut self, at: usize) -> Result<(), String> {
        let (program, kind, target) = CANARIES[at];
        if !self.has_target(kind, target) {
            // A kernel without the self-test: loading the hooks shows it.
            return Ok(());
        }
        let attached = self.load_and_attach(program, target).map(drop);
        if let Some(program) = self.ebpf.program_mut(program) {
            // It fails only if the program was not loaded, and `attached` then has the reason.
            let _ = match program {
                Program::FEntry(program) => program.unload(),
                Program::BtfTracePoint(program) => program.unload(),
                _ => Ok(()),
            };
        }
        match kind {
            HookKind::Fentry | HookKind::Fexit => attached.map_err(refusal_of_functions),
            HookKind::TpBtf => attached,
        }
    }

    /// What keeps a hook from being tried, if anything.
    fn obstacle(&self, hook: &Hook) -> Option<Unavailable> {
        let is_attached = |program: &&'static str| {
            self.hooks
                .iter()
                .any(|done| done.program == *program && done.is_attached())
        };
        if let Some(by) = hook.unless.filter(is_attached) {
            return Some(Unavailable::NotNeeded { by });
        }
        if let Some(reason) = self.known_refusal(hook.kind) {
            return Some(Unavailable::KindRefused {
                kind: hook.kind,
                reason: reason.clone(),
            });
        }
        if !self.has_target(hook.kind, hook.target) {
            return Some(Unavailable::NoTarget {
                kind: hook.kind,
                target: hook.target,
            });
        }
        if let Some(of) = hook
            .only_with
            .first()
            .filter(|_| !hook.only_with.iter().any(is_attached))
        {
            return Some(Unavailable::Partner { of });
        }
        if let Some(reason) = self.counters.as_ref().filter(|_| hook.counters) {
            let reason = reason.clone();
            return Some(Unavailable::NoCounters { reason });
        }
        hook.needs
            .iter()
            .copied()
            .flatten()
            .find(|member| self.resolved.missing.contains(member))
            .map(|member| Unavailable::NoMember { member })
    }

    fn has_target(&self, kind: HookKind, target: &str) -> bool {
        match kind {
            HookKind::Fentry | HookKind::Fexit => self.btf.has_function(target),
            HookKind::TpBtf => self.btf.has_tracepoint(target),
        }
    }

    fn attach(&mut self, hook: &Hook) -> HookState {
        let attached = self
            .load_and_attach(hook.program, hook.target)
            .map(|link| self.links.push((hook.program, link)));
        if let Err(reason) = attached {
            let kind = hook.kind;
            return HookState::Unavailable(match self.refusal_of(kind) {
                Some(reason) => Unavailable::KindRefused {
                    kind,
                    reason: reason.clone(),
                },
                None => Unavailable::Refused {
                    kind,
                    target: hook.target,
                    reason,
                },
            });
        }
        let info = self
            .ebpf
            .program(hook.program)
            .and_then(|program| program.info().ok());
        let verified_insns = info
            .as_ref()
            .and_then(|info| info.verified_instruction_count());
        // An instruction is eight bytes.
        let translated_insns = info
            .as_ref()
            .and_then(|info| info.size_translated())
            .map(|bytes| bytes / 8);
        HookState::Attached {
            verified_insns,
            translated_insns,
        }
    }

    fn load_and_attach(&mut self, program: &str, target: &str) -> Result<FdLink, String> {
        let found = self
            .ebpf
            .program_mut(program)
            .ok_or_else(|| format!("the BPF object has no program {program}"))?;
        let mut attempt = || -> Result<FdLink, ProgramError> {
            Ok(match found {
                Program::FEntry(program) => {
                    program.load(target, &self.targets.functions)?;
                    let link = program.attach()?;
                    program.take_link(link)?.into()
                }
                Program::FExit(program) => {
                    program.load(target, &self.targets.functions)?;
                    let link = program.attach()?;
                    program.take_link(link)?.into()
                }
                Program::BtfTracePoint(program) => {
                    program.load(target, &self.targets.tracepoints)?;
                    let link = program.attach()?;
                    program.take_link(link)?.into()
                }
                _ => return Err(ProgramError::UnexpectedProgramType),
            })
        };
        attempt().map_err(|error| reason(&error))
    }
}
