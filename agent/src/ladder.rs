//! The fallback ladder: which mechanism serves each signal on this machine, why, and what is lost by it.
//!
//! **Problem.** Hosts differ in what they allow: one refuses fentry but takes tracepoints, one is locked down, one has no BTF, one still runs cgroup v1,
//! one has nothing at all. On each of them the agent must work with what remains, and say in a line what that costs.
//! **Approach.** [`LADDER`] has one row per signal and in it one [`Rung`] per mechanism, best first, each with what it [`Need`]s.
//! [`choose`] is pure: it looks at [`Facts`] (gathered by [`crate::facts`]) and takes, per signal, the first rung whose needs are all met. The rungs
//! above it are the reason why; sampling needs nothing, so every signal has a rung.
//! **Terms.** *primary*: the rung that was chosen. *beside*: a mechanism that runs along with the primary one, because it sees what that one cannot.
//! *obstacle*: why a rung cannot be used.
#![forbid(unsafe_code)]

use std::fmt;

use serde::Serialize;

use crate::facts::{Facts, HookKind, HookOutcome, PsiReach};
use crate::host::Version;

/// What the agent wants to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LadderSignal {
    /// Usage of the node or of kubepods crosses the armed threshold.
    MemoryThreshold,
    /// The node's free memory falls below a zone watermark.
    NodeReclaim,
    /// A cgroup is made or removed.
    CgroupLifecycle,
    /// The kernel kills a task for lack of memory.
    OomKill,
    /// A cgroup runs into `memory.high` or `memory.max`.
    MemoryLimit,
    /// A cgroup uses up its CPU quota.
    CpuThrottling,
}

impl LadderSignal {
    /// In the words of a person.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryThreshold => "memory threshold",
            Self::NodeReclaim => "node reclaim",
            Self::CgroupLifecycle => "cgroup lifecycle",
            Self::OomKill => "OOM kill",
            Self::MemoryLimit => "memory.high and memory.max",
            Self::CpuThrottling => "CPU throttling",
        }
    }
}

impl fmt::Display for LadderSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// By which means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// BPF on entry or exit of a kernel function (fentry, fexit).
    Fentry,
    /// BPF on a tracepoint (tp_btf).
    Tracepoint,
    /// POLLPRI on `memory.events` (cgroup v2).
    MemoryEvents,
    /// An eventfd registered through `cgroup.event_control` (cgroup v1).
    EventControl,
    /// A PSI trigger.
    Psi,
    /// inotify on the cgroup directories, with a walk behind it.
    Inotify,
    /// Reading files again and again.
    Sampling,
}

impl Mechanism {
    /// In the words of a person.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Tracepoint => "tracepoint",
            Self::MemoryEvents => "memory.events",
            Self::EventControl => "v1 eventfd",
            Self::Psi => "PSI trigger",
            Self::Inotify => "inotify",
            Self::Sampling => "sampling",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Mechanisms that can be left out on request (`--without`), to see and test what the agent falls back to. Sampling cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Without {
    /// Every BPF program.
    Bpf,
    /// BPF on kernel functions (fentry, fexit).
    Fentry,
    /// BPF on tracepoints (tp_btf).
    Tracepoint,
    /// PSI triggers.
    Psi,
    /// POLLPRI on memory.events.
    MemoryEvents,
    /// cgroup v1 eventfds.
    EventControl,
    /// inotify on the cgroup tree.
    Inotify,
}

impl Without {
    /// Whether it takes `mechanism` away.
    pub fn covers(self, mechanism: Mechanism) -> bool {
        match self {
            Self::Bpf => matches!(mechanism, Mechanism::Fentry | Mechanism::Tracepoint),
            Self::Fentry => mechanism == Mechanism::Fentry,
            Self::Tracepoint => mechanism == Mechanism::Tracepoint,
            Self::Psi => mechanism == Mechanism::Psi,
            Self::MemoryEvents => mechanism == Mechanism::MemoryEvents,
            Self::EventControl => mechanism == Mechanism::EventControl,
            Self::Inotify => mechanism == Mechanism::Inotify,
        }
    }
}

impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bpf => "bpf",
            Self::Fentry => "fentry",
            Self::Tracepoint => "tracepoint",
            Self::Psi => "psi",
            Self::MemoryEvents => "memory-events",
            Self::EventControl => "event-control",
            Self::Inotify => "inotify",
        })
    }
}

/// What a rung stands on.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// A BPF program on one of these targets (kernel function or tracepoint), the first that there is.
    Hook(&'static [&'static str]),
    /// `memory.events`: memory on cgroup v2.
    MemoryEvents,
    /// `cgroup.event_control`: memory on cgroup v1.
    EventControl,
    /// A PSI trigger on `/proc/pressure/memory`.
    Psi,
    /// An inotify instance.
    Inotify,
}

/// One way to get a signal.
#[derive(Debug)]
pub struct Rung {
    /// By which means.
    pub mechanism: Mechanism,
    /// All of them must be there.
    pub needs: &'static [Need],
    /// What is good about it.
    pub gives: &'static str,
    /// What is slower or invisible when it is this and not a higher one; empty for the top.
    pub lost: &'static str,
    /// What runs along with it where available, best first.
    pub beside: &'static [Mechanism],
}

/// One signal and its rungs, best first. The last is always sampling.
#[derive(Debug)]
pub struct Row {
    /// Which signal.
    pub signal: LadderSignal,
    /// Best first.
    pub rungs: &'static [Rung],
}

use Mechanism::{EventControl, Fentry, Inotify, MemoryEvents, Psi, Sampling, Tracepoint};

/// The ladder.
pub static LADDER: [Row; 6] = [
    Row {
        signal: LadderSignal::MemoryThreshold,
        rungs: &[
            Rung {
                mechanism: Fentry,
                // The counter's address comes from the agent's own read of the usage file, which differs between v2 and v1.
                needs: &[
                    Need::Hook(&["page_counter_try_charge"]),
                    Need::Hook(&["memory_current_read", "mem_cgroup_read_u64"]),
                ],
                gives: "reported by the charge that crosses it",
                lost: "",
                beside: &[Psi, Sampling],
            },
            // Above the tracepoints: it reports the very crossing, they only what follows when the whole node runs short.
            Rung {
                mechanism: EventControl,
                needs: &[Need::EventControl],
                gives: "the kernel signals the crossing, within 128 page events of a CPU",
                lost: "a crossing is seen up to 128 page events of each CPU late, and without its time",
                beside: &[Tracepoint, Psi, Sampling],
            },
            Rung {
                mechanism: Tracepoint,
                needs: &[
                    Need::Hook(&["mm_vmscan_kswapd_wake"]),
                    Need::Hook(&["mm_vmscan_direct_reclaim_begin"]),
                ],
                gives: "shortage of the whole node is reported as it begins",
                lost: "a threshold crossed while the node still has free memory is seen by the next sample, not at once",
                beside: &[Psi, Sampling],
            },
            Rung {
                mechanism: Psi,
                needs: &[Need::Psi],
                gives: "wakes when tasks stall on memory",
                lost: "a threshold crossed before tasks stall is seen by the next sample; stalls take 60-120 ms to show",
                beside: &[Sampling],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "interval from head-room and fastest growth seen",
                lost: "every crossing is seen by the next sample: growth faster than any before is seen late, perhaps after the kernel's OOM killer",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::NodeReclaim,
        rungs: &[
            Rung {
                mechanism: Tracepoint,
                needs: &[
                    Need::Hook(&["mm_vmscan_kswapd_wake"]),
                    Need::Hook(&["mm_vmscan_direct_reclaim_begin"]),
                ],
                gives: "reported when kswapd wakes and when a task must reclaim by itself",
                lost: "",
                beside: &[Psi],
            },
            Rung {
                mechanism: Psi,
                needs: &[Need::Psi],
                gives: "wakes when tasks stall on memory",
                lost: "the early warning (kswapd woken) is invisible: only stalls that follow it are reported, 60-120 ms late",
                beside: &[],
            },
            Rung {
                mechanism: EventControl,
                needs: &[Need::EventControl],
                gives: "memory.pressure_level of the root cgroup",
                lost: "the early warning comes by memory.pressure_level, after some hundred pages of hard reclaim",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "free memory in each sample",
                lost: "there is no early warning between two samples",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::CgroupLifecycle,
        rungs: &[
            Rung {
                mechanism: Tracepoint,
                needs: &[Need::Hook(&["cgroup_mkdir"]), Need::Hook(&["cgroup_rmdir"])],
                gives: "reported with the cgroup's id as it happens",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Inotify,
                needs: &[Need::Inotify],
                gives: "the cgroup directories are watched",
                lost: "a cgroup that lives only for a moment may never be seen",
                beside: &[Sampling],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "the cgroup tree is walked",
                lost: "a new pod is not known, nor counted, until the next walk",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::OomKill,
        rungs: &[
            Rung {
                mechanism: Fentry,
                needs: &[Need::Hook(&["oom_kill_process"])],
                gives: "reported with the victim and the cgroup whose limit was hit",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Tracepoint,
                needs: &[Need::Hook(&["mark_victim"])],
                gives: "reported with the victim and its cgroup",
                lost: "the record names the victim but not the cgroup whose limit was hit",
                beside: &[MemoryEvents, EventControl],
            },
            Rung {
                mechanism: MemoryEvents,
                needs: &[Need::MemoryEvents],
                gives: "oom_kill of each pod's memory.events",
                lost: "a kill is counted per pod; which process died is not known",
                beside: &[],
            },
            Rung {
                mechanism: EventControl,
                needs: &[Need::EventControl],
                gives: "memory.oom_control of each pod",
                lost: "a pod that runs out of memory is reported; which process died is not known, nor a kill for the whole node at once",
                beside: &[Sampling],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "oom_kill counters in each sample",
                lost: "a kill is seen by the next sample; which process died is not known",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::MemoryLimit,
        rungs: &[
            Rung {
                mechanism: Fentry,
                // One function on 7.2; before, one per kind, because the common one is inlined.
                needs: &[
                    Need::Hook(&["__memcg_memory_event", "reclaim_high"]),
                    Need::Hook(&["__memcg_memory_event", "try_to_free_mem_cgroup_pages"]),
                ],
                gives: "each event is counted in the kernel, with the cgroup that owns the limit",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: MemoryEvents,
                needs: &[Need::MemoryEvents],
                gives: "high and max of each pod's memory.events",
                lost: "events within 10 ms come as one; how long tasks were held up is not known",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "counters of each pod in each sample",
                lost: "a pod at its limit is seen by the next sample",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::CpuThrottling,
        rungs: &[
            Rung {
                mechanism: Fentry,
                needs: &[
                    Need::Hook(&["throttle_cfs_rq"]),
                    Need::Hook(&["unthrottle_cfs_rq"]),
                ],
                gives: "start, stop and duration per cgroup",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "nr_throttled and throttled time of cpu.stat",
                lost: "only sums between two samples: when a throttle began and how long each lasted is not known",
                beside: &[],
            },
        ],
    },
];

/// Why a rung cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, thiserror::Error)]
#[serde(rename_all = "kebab-case", tag = "obstacle")]
pub enum Obstacle {
    /// Left out on request.
    #[error("left out by --without {option}")]
    Without {
        /// Which value of the option.
        option: Without,
    },
    /// The lockdown file says confidentiality: programs that read kernel memory are refused.
    #[error("kernel lockdown is \"confidentiality\"")]
    Lockdown,
    /// The kernel has no type information.
    #[error("the kernel has no BTF")]
    NoBtf,
    /// The process may not use BPF.
    #[error("capabilities are missing: {missing}")]
    Capabilities {
        /// Which ones.
        missing: String,
    },
    /// The object as a whole was not loaded.
    #[error("BPF: {reason}")]
    NotLoaded {
        /// The loader's words.
        reason: String,
    },
    /// Every program of this type was refused.
    #[error("{reason}")]
    KindRefused {
        /// Program type.
        kind: HookKind,
        /// The loader's words.
        reason: String,
    },
    /// This one program was refused.
    #[error("{kind} {hook}: {reason}")]
    HookUnavailable {
        /// Kernel function or tracepoint.
        hook: String,
        /// Program type.
        kind: HookKind,
        /// The loader's words.
        reason: String,
    },
    /// The object has no such program of this type.
    #[error("the BPF object has no program on {hook}")]
    HookAbsent {
        /// Kernel function or tracepoint.
        hook: &'static str,
    },
    /// No PSI trigger.
    #[error("{reason}")]
    NoPsi {
        /// The kernel's words.
        reason: String,
    },
    /// A PSI trigger, but a slow one: the kernel takes 2 s windows only.
    #[error("CAP_SYS_RESOURCE is missing, so PSI windows are 2 s")]
    PsiUnprivileged,
    /// The memory controller is on cgroup v1, where this file does not exist.
    #[error("memory is on cgroup v1, which has no memory.events")]
    MemoryOnV1,
    /// The memory controller is on cgroup v2, where this file does not exist.
    #[error("memory is on cgroup v2, which has no cgroup.event_control")]
    MemoryOnV2,
    /// No memory controller at all.
    #[error("{reason}")]
    NoMemoryController {
        /// Why.
        reason: String,
    },
    /// No `cgroup.event_control`.
    #[error("{reason}")]
    NoEventControl {
        /// Why.
        reason: String,
    },
    /// No inotify.
    #[error("{reason}")]
    NoInotify {
        /// Why.
        reason: String,
    },
}

impl Obstacle {
    /// What a person can do about it; `None` when nothing needs doing or the message says it already.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Lockdown => {
                Some("boot with lockdown=integrity or none (Secure Boot policies may set it)")
            }
            Self::NoBtf => Some(
                "use a kernel with CONFIG_DEBUG_INFO_BTF=y, as all large distributions build it",
            ),
            Self::Capabilities { .. } => Some("run as root, or grant CAP_BPF and CAP_PERFMON"),
            Self::KindRefused {
                kind: HookKind::Fentry | HookKind::Fexit,
                ..
            } => Some(
                "ask whoever runs the host to allow fentry programs; nothing on this machine sets that",
            ),
            Self::KindRefused {
                kind: HookKind::TpBtf,
                ..
            } => Some("ask whoever runs the host to allow tp_btf programs"),
            Self::HookUnavailable { .. } => {
                Some("use a kernel on which this hook attaches (tested: 6.1, 6.12, 7.2)")
            }
            Self::PsiUnprivileged => Some("grant CAP_SYS_RESOURCE"),
            Self::MemoryOnV1 => Some(
                "boot with cgroup v2: systemd.unified_cgroup_hierarchy=1, or mount cgroup2 and no v1 memory hierarchy",
            ),
            Self::NoMemoryController { .. } => {
                Some("boot with cgroup_enable=memory and mount a cgroup file system that has it")
            }
            Self::Without { .. }
            | Self::NotLoaded { .. }
            | Self::HookAbsent { .. }
            | Self::NoPsi { .. }
            | Self::MemoryOnV2
            | Self::NoEventControl { .. }
            | Self::NoInotify { .. } => None,
        }
    }
}

/// Whether a mechanism was chosen for a signal or only helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The best rung that this machine has.
    Primary,
    /// Runs along with the primary one.
    Beside,
}

/// One mechanism at work for one signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// For which signal.
    pub signal: LadderSignal,
    /// By which means.
    pub mechanism: Mechanism,
    /// Chosen, or beside the chosen one.
    pub role: Role,
    /// Place in its row, 0 for the top.
    pub rung: usize,
    /// What it gives. Why none above it was taken is in `obstacles`.
    pub why: String,
    /// What is slower or invisible because it is not the top; one line for a person.
    pub lost: Option<String>,
    /// Why each rung above was not taken, best first, without repetition. Empty for the top and for what runs beside.
    pub obstacles: Vec<Obstacle>,
}

/// Takes, for each signal, the best rung that `facts` allow and what runs beside it. One primary per signal, in the order of [`LADDER`].
pub fn choose(facts: &Facts) -> Vec<Choice> {
    LADDER
        .iter()
        .flat_map(|row| choose_row(row, facts))
        .collect()
}

fn choose_row(row: &Row, facts: &Facts) -> Vec<Choice> {
    let mut obstacles: Vec<Obstacle> = Vec::new();
    for (index, rung) in row.rungs.iter().enumerate() {
        if let Err(obstacle) = available(rung, facts) {
            if !obstacles.contains(&obstacle) {
                obstacles.push(obstacle);
            }
            continue;
        }
        let mut lost = (!rung.lost.is_empty()).then(|| rung.lost.to_owned());
        if rung.mechanism == Psi && facts.psi == Ok(PsiReach::Unprivileged) {
            lost = lost.map(|lost| format!("{lost}, and up to 2 s more here"));
            obstacles.push(Obstacle::PsiUnprivileged);
        }
        let primary = Choice {
            signal: row.signal,
            mechanism: rung.mechanism,
            role: Role::Primary,
            rung: index,
            why: rung.gives.to_owned(),
            lost,
            obstacles,
        };
        return std::iter::once(primary)
            .chain(
                rung.beside
                    .iter()
                    .filter_map(|mechanism| beside(row, *mechanism, facts)),
            )
            .collect();
    }
    // Sampling needs nothing and cannot be left out: `every_row_ends_with_sampling` below.
    Vec::new()
}

/// A mechanism that runs along is a rung of the same row, so that it is explained in one place.
fn beside(row: &Row, mechanism: Mechanism, facts: &Facts) -> Option<Choice> {
    let (index, rung) = row
        .rungs
        .iter()
        .enumerate()
        .find(|(_, rung)| rung.mechanism == mechanism)?;
    available(rung, facts).ok()?;
    Some(Choice {
        signal: row.signal,
        mechanism,
        role: Role::Beside,
        rung: index,
        why: rung.gives.to_owned(),
        lost: None,
        obstacles: Vec::new(),
    })
}

fn available(rung: &Rung, facts: &Facts) -> Result<(), Obstacle> {
    if let Some(option) = facts
        .without
        .iter()
        .copied()
        .find(|option| option.covers(rung.mechanism))
    {
        return Err(Obstacle::Without { option });
    }
    rung.needs
        .iter()
        .try_for_each(|need| met(*need, rung.mechanism, facts))
}

fn met(need: Need, mechanism: Mechanism, facts: &Facts) -> Result<(), Obstacle> {
    let on_memory = |version: Version, otherwise: Obstacle| match &facts.memory {
        Ok(found) if *found == version => Ok(()),
        Ok(_) => Err(otherwise),
        Err(reason) => Err(Obstacle::NoMemoryController {
            reason: reason.clone(),
        }),
    };
    match need {
        Need::Hook(targets) => hook(targets, mechanism, facts),
        Need::MemoryEvents => on_memory(Version::V2, Obstacle::MemoryOnV1),
        Need::EventControl => {
            on_memory(Version::V1, Obstacle::MemoryOnV2)?;
            facts
                .event_control
                .clone()
                .map_err(|reason| Obstacle::NoEventControl { reason })
        }
        Need::Psi => facts
            .psi
            .clone()
            .map(drop)
            .map_err(|reason| Obstacle::NoPsi { reason }),
        Need::Inotify => facts
            .inotify
            .clone()
            .map_err(|reason| Obstacle::NoInotify { reason }),
    }
}

/// One of `targets` is attached by a program of this mechanism; else the deepest cause that is known, then the loader's words.
fn hook(
    targets: &'static [&'static str],
    mechanism: Mechanism,
    facts: &Facts,
) -> Result<(), Obstacle> {
    let loaded = facts.bpf.as_ref();
    let mut refused = None;
    for target in targets {
        for hook in loaded.map(Vec::as_slice).unwrap_or_default() {
            if hook.target != *target || hook.kind.mechanism() != mechanism {
                continue;
            }
            match &hook.outcome {
                HookOutcome::Attached => return Ok(()),
                // The last target is the one that older kernels have, so its refusal tells most.
                HookOutcome::Unavailable { reason } => {
                    refused = Some(Obstacle::HookUnavailable {
                        hook: hook.target.clone(),
                        kind: hook.kind,
                        reason: reason.clone(),
                    });
                }
                HookOutcome::KindRefused { reason } => {
                    // Fentry and fexit are refused together: one reason, said once.
                    let kind = if mechanism == Fentry {
                        HookKind::Fentry
                    } else {
                        hook.kind
                    };
                    refused = Some(Obstacle::KindRefused {
                        kind,
                        reason: reason.clone(),
                    });
                }
                HookOutcome::Idle { .. } => {}
            }
        }
    }
    if let Some(cause) = facts.bpf_obstacle() {
        return Err(cause);
    }
    match (loaded, refused) {
        (Err(reason), _) => Err(Obstacle::NotLoaded {
            reason: reason.clone(),
        }),
        (Ok(_), Some(obstacle)) => Err(obstacle),
        (Ok(_), None) => Err(Obstacle::HookAbsent {
            hook: targets.first().copied().unwrap_or("?"),
        }),
    }
}

impl Choice {
    /// "Not the top, because": the obstacles of the rungs above, without the one that is in nobody's way (cgroup v2 has no v1 files).
    pub fn because(&self) -> impl Iterator<Item = &Obstacle> {
        self.obstacles
            .iter()
            .filter(|obstacle| !matches!(obstacle, Obstacle::MemoryOnV2))
    }

    /// What a person can do to get a higher rung: the first obstacle that has a remedy.
    pub fn remedy(&self) -> Option<String> {
        let left_out = |obstacle: &Obstacle| match obstacle {
            Obstacle::Without { option } => Some(format!("run without --without {option}")),
            _ => None,
        };
        self.because().find_map(|obstacle| {
            obstacle
                .remedy()
                .map(str::to_owned)
                .or_else(|| left_out(obstacle))
        })
    }
}

/// Whether every signal is served by the top of its row.
pub fn is_full(choices: &[Choice]) -> bool {
    choices
        .iter()
        .all(|choice| choice.role == Role::Beside || choice.rung == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::everything;
    use crate::facts::{Hook, Lockdown};

    /// What was chosen for each signal, in the ladder's order.
    fn primaries(facts: &Facts) -> [Mechanism; 6] {
        let chosen: Vec<_> = choose(facts)
            .into_iter()
            .filter(|choice| choice.role == Role::Primary)
            .collect();
        for (choice, row) in chosen.iter().zip(&LADDER) {
            assert_eq!(choice.signal, row.signal);
        }
        let mechanisms: Vec<_> = chosen.iter().map(|choice| choice.mechanism).collect();
        mechanisms.try_into().unwrap()
    }

    fn primary(facts: &Facts, signal: LadderSignal) -> Choice {
        choose(facts)
            .into_iter()
            .find(|choice| choice.signal == signal && choice.role == Role::Primary)
            .unwrap()
    }

    fn beside(facts: &Facts, signal: LadderSignal) -> Vec<Mechanism> {
        choose(facts)
            .into_iter()
            .filter(|choice| choice.signal == signal && choice.role == Role::Beside)
            .map(|choice| choice.mechanism)
            .collect()
    }

    fn refuse(facts: &mut Facts, refused: impl Fn(&Hook) -> bool) {
        for hook in facts
            .bpf
            .as_mut()
            .unwrap()
            .iter_mut()
            .filter(|hook| refused(hook))
        {
            hook.outcome = HookOutcome::Unavailable {
                reason: "Operation not permitted (errno 1)".to_owned(),
            };
        }
    }

    fn refuse_fentry(facts: &mut Facts) {
        for hook in facts
            .bpf
            .as_mut()
            .unwrap()
            .iter_mut()
            .filter(|hook| hook.kind.mechanism() == Fentry)
        {
            hook.outcome = HookOutcome::KindRefused {
                reason: "fentry refused by this host: errno 1 (EPERM)".to_owned(),
            };
        }
    }

    fn v1(mut facts: Facts) -> Facts {
        facts.memory = Ok(Version::V1);
        facts.cpu = Ok(Version::V1);
        facts.event_control = Ok(());
        facts
    }

    fn no_bpf() -> Facts {
        Facts {
            bpf: Err("built without its BPF object".to_owned()),
            ..everything()
        }
    }

    /// HOOKS.md §16, the host that Plimsoll is developed on: hybrid with memory on v1, fentry refused, tracepoints fine, no CAP_SYS_RESOURCE.
    fn development_host() -> Facts {
        let mut facts = v1(everything());
        refuse_fentry(&mut facts);
        facts.psi = Ok(PsiReach::Unprivileged);
        facts
    }

    #[test]
    fn which_mechanism_on_which_machine() {
        let with = |change: &dyn Fn(&mut Facts)| {
            let mut facts = everything();
            change(&mut facts);
            facts
        };
        let without_any = [
            Without::Bpf,
            Without::Psi,
            Without::MemoryEvents,
            Without::EventControl,
            Without::Inotify,
        ];
        let no_bpf_on_v2 = [Psi, Psi, Inotify, MemoryEvents, MemoryEvents, Sampling];
        #[rustfmt::skip]
        let table = [
            ("everything", everything(), [Fentry, Tracepoint, Tracepoint, Fentry, Fentry, Fentry]),
            ("everything on v1", v1(everything()), [Fentry, Tracepoint, Tracepoint, Fentry, Fentry, Fentry]),
            ("fentry refused, v2", with(&|facts| refuse(facts, |hook| hook.kind != HookKind::TpBtf)),
                [Tracepoint, Tracepoint, Tracepoint, Tracepoint, MemoryEvents, Sampling]),
            ("development host", development_host(), [EventControl, Tracepoint, Tracepoint, Tracepoint, Sampling, Sampling]),
            ("tracepoints refused", with(&|facts| refuse(facts, |hook| hook.kind == HookKind::TpBtf)),
                [Fentry, Psi, Inotify, Fentry, Fentry, Fentry]),
            ("no object", no_bpf(), no_bpf_on_v2),
            ("no BTF", with(&|facts| { facts.btf = false; facts.bpf = Err("no BTF".to_owned()); }), no_bpf_on_v2),
            ("lockdown", with(&|facts| { facts.lockdown = Lockdown::Confidentiality; facts.bpf = Err("not tried".to_owned()); }), no_bpf_on_v2),
            ("no BPF on v1", v1(no_bpf()), [EventControl, Psi, Inotify, EventControl, Sampling, Sampling]),
            ("no BPF, no PSI on v1", Facts { psi: Err("psi=0".to_owned()), ..v1(no_bpf()) },
                [EventControl, EventControl, Inotify, EventControl, Sampling, Sampling]),
            ("no BPF, no PSI on v2", Facts { psi: Err("psi=0".to_owned()), ..no_bpf() },
                [Sampling, Sampling, Inotify, MemoryEvents, MemoryEvents, Sampling]),
            ("v1 without event_control (PREEMPT_RT)", Facts { event_control: Err("absent".to_owned()), ..v1(no_bpf()) },
                [Psi, Psi, Inotify, Sampling, Sampling, Sampling]),
            ("nothing at all", with(&|facts| facts.without = without_any.to_vec()), [Sampling; 6]),
        ];
        for (machine, facts, wanted) in table {
            assert_eq!(primaries(&facts), wanted, "{machine}");
        }
    }

    #[test]
    fn psi_and_sampling_run_beside_the_armed_threshold() {
        assert_eq!(
            beside(&everything(), LadderSignal::MemoryThreshold),
            [Psi, Sampling]
        );
        assert_eq!(
            beside(&development_host(), LadderSignal::MemoryThreshold),
            [Tracepoint, Psi, Sampling]
        );
        assert_eq!(
            beside(
                &Facts {
                    psi: Err("psi=0".to_owned()),
                    ..everything()
                },
                LadderSignal::MemoryThreshold
            ),
            [Sampling]
        );
        assert_eq!(
            beside(
                &Facts {
                    without: vec![Without::Psi],
                    ..everything()
                },
                LadderSignal::MemoryThreshold
            ),
            [Sampling]
        );
    }

    #[test]
    fn the_threshold_needs_both_of_its_programs() {
        for target in ["page_counter_try_charge", "memory_current_read"] {
            let mut facts = everything();
            refuse(&mut facts, |hook| hook.target == target);
            let choice = primary(&facts, LadderSignal::MemoryThreshold);
            assert_eq!(choice.mechanism, Tracepoint);
            assert!(
                choice.obstacles[0].to_string().contains(target),
                "{}",
                choice.obstacles[0]
            );
        }
    }

    #[test]
    fn a_newer_function_or_the_older_pair() {
        // 7.2 has __memcg_memory_event; there reclaim_high may be gone.
        let mut facts = everything();
        facts.bpf.as_mut().unwrap().retain(|hook| {
            !matches!(
                hook.target.as_str(),
                "reclaim_high" | "try_to_free_mem_cgroup_pages"
            )
        });
        let choice = primary(&facts, LadderSignal::MemoryLimit);
        assert_eq!(choice.mechanism, MemoryEvents);
        assert_eq!(
            choice.obstacles,
            [Obstacle::HookAbsent {
                hook: "__memcg_memory_event"
            }]
        );
        facts.bpf.as_mut().unwrap().push(Hook {
            target: "__memcg_memory_event".to_owned(),
            kind: HookKind::Fentry,
            outcome: HookOutcome::Attached,
        });
        assert_eq!(primary(&facts, LadderSignal::MemoryLimit).mechanism, Fentry);
    }

    #[test]
    fn the_reason_is_the_deepest_one_known() {
        let first =
            |facts: &Facts| primary(facts, LadderSignal::MemoryThreshold).obstacles[0].clone();
        let mut facts = no_bpf();
        assert!(matches!(first(&facts), Obstacle::NotLoaded { .. }));
        facts.capabilities = Some(crate::facts::Capabilities {
            bpf: true,
            perfmon: false,
            sys_admin: false,
        });
        assert_eq!(
            first(&facts),
            Obstacle::Capabilities {
                missing: "CAP_PERFMON".to_owned()
            }
        );
        facts.btf = false;
        assert_eq!(first(&facts), Obstacle::NoBtf);
        facts.lockdown = Lockdown::Confidentiality;
        assert_eq!(first(&facts), Obstacle::Lockdown);
        facts.without = vec![Without::Bpf];
        assert_eq!(
            first(&facts),
            Obstacle::Without {
                option: Without::Bpf
            }
        );
    }

    #[test]
    fn what_is_attached_counts_whatever_else_is_said() {
        // Capabilities may come from a user namespace or a BPF token: the loader's success is the better witness.
        let facts = Facts {
            capabilities: Some(crate::facts::Capabilities {
                bpf: false,
                perfmon: false,
                sys_admin: false,
            }),
            ..everything()
        };
        assert!(is_full(&choose(&facts)));
    }

    #[test]
    fn a_refused_type_is_one_reason_for_all_its_hooks() {
        let wanted = Obstacle::KindRefused {
            kind: HookKind::Fentry,
            reason: "fentry refused by this host: errno 1 (EPERM)".to_owned(),
        };
        for signal in [
            LadderSignal::MemoryThreshold,
            LadderSignal::OomKill,
            LadderSignal::MemoryLimit,
            LadderSignal::CpuThrottling,
        ] {
            let choice = primary(&development_host(), signal);
            assert_eq!(choice.obstacles[0], wanted);
            assert!(choice.remedy().unwrap().contains("allow fentry"));
        }
    }

    #[test]
    fn one_reason_is_said_once() {
        let facts = Facts {
            without: vec![Without::Bpf],
            ..everything()
        };
        let choice = primary(&facts, LadderSignal::MemoryThreshold);
        let wanted = [
            Obstacle::Without {
                option: Without::Bpf,
            },
            Obstacle::MemoryOnV2,
        ];
        assert_eq!(
            choice.obstacles, wanted,
            "fentry and tracepoint share a reason"
        );
        assert_eq!(choice.because().count(), 1);
        assert_eq!(choice.remedy().unwrap(), "run without --without bpf");
    }

    #[test]
    fn a_slow_psi_trigger_says_so() {
        let facts = Facts {
            psi: Ok(PsiReach::Unprivileged),
            ..no_bpf()
        };
        let choice = primary(&facts, LadderSignal::MemoryThreshold);
        assert!(
            choice
                .lost
                .as_deref()
                .unwrap()
                .ends_with("up to 2 s more here")
        );
        assert!(choice.obstacles.contains(&Obstacle::PsiUnprivileged));
    }

    #[test]
    fn every_row_ends_with_sampling() {
        for row in &LADDER {
            let last = row.rungs.last().unwrap();
            assert_eq!(last.mechanism, Sampling);
            assert!(last.needs.is_empty());
            for rung in row.rungs {
                assert!(
                    rung.beside.iter().all(|mechanism| row
                        .rungs
                        .iter()
                        .any(|other| other.mechanism == *mechanism)),
                    "{rung:?}"
                );
                assert!(!rung.beside.contains(&rung.mechanism), "{rung:?}");
            }
        }
    }

    /// Every combination of facts: one primary for each signal, nothing that was left out, and a loss exactly when it is not the top.
    #[test]
    fn every_machine_is_served() {
        let options = [
            Without::Bpf,
            Without::Fentry,
            Without::Tracepoint,
            Without::Psi,
            Without::MemoryEvents,
            Without::EventControl,
            Without::Inotify,
        ];
        let bases = [
            everything(),
            v1(everything()),
            development_host(),
            no_bpf(),
            v1(no_bpf()),
            Facts {
                memory: Err("none".to_owned()),
                ..no_bpf()
            },
        ];
        for base in bases {
            for mask in 0..1_u32 << options.len() {
                let without: Vec<_> = (0..)
                    .zip(options)
                    .filter(|(bit, _)| mask & (1 << bit) != 0)
                    .map(|(_, option)| option)
                    .collect();
                let facts = Facts {
                    without,
                    ..base.clone()
                };
                let choices = choose(&facts);
                primaries(&facts);
                for choice in &choices {
                    assert!(
                        !facts
                            .without
                            .iter()
                            .any(|option| option.covers(choice.mechanism)),
                        "{choice:?}"
                    );
                    let degraded = choice.role == Role::Primary && choice.rung > 0;
                    assert_eq!(choice.lost.is_some(), degraded, "{choice:?}");
                    assert_eq!(!choice.obstacles.is_empty(), degraded, "{choice:?}");
                }
                let full = choices
                    .iter()
                    .all(|choice| choice.role == Role::Beside || choice.lost.is_none());
                assert_eq!(is_full(&choices), full);
            }
        }
    }
}
