//! The fallback ladder: which mechanism serves each signal on this machine, why, and what is lost by it.
//!
//! **Problem.** Hosts differ in what they allow: one refuses fentry but takes tracepoints, one is locked down, one has
//! no BTF, one still runs cgroup v1, one has nothing at all. On each of them the agent must work with what remains, and
//! say in a line what that costs. **Approach.** [`LADDER`] has one row per signal and in it one [`Rung`] per mechanism,
//! best first, each with what it [`Need`]s. [`choose`] is pure: it looks at [`Facts`] (gathered by
//! [`crate::probe::facts`]) and takes, per signal, the first rung whose needs are all met. The rungs above it are the
//! reason why; sampling needs nothing, so every signal has a rung. **Terms.** *primary*: the rung that was chosen.
//! *beside*: a mechanism that runs along with the primary one, because it sees what that one cannot. *obstacle*: why a
//! rung cannot be used.
#![forbid(unsafe_code)]

use std::fmt;

mod table;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::host::Version;
use crate::probe::facts::{Facts, HookOutcome, PsiReach};
use crate::probe::mechanism::{HookKind, Mechanism, Obstacle};

pub use table::{LADDER, Need, Row, Rung};

/// What the agent wants to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LadderSignal {
    /// Memory of the node may fall below a threshold.
    MemoryThreshold,
    /// The node's free memory falls below a zone watermark.
    NodeReclaim,
    /// A cgroup is made or removed.
    CgroupLifecycle,
    /// A process is put into a cgroup: its `oom_score_adj` is to become the container's.
    ProcessAttach,
    /// The kernel kills a task for lack of memory.
    OomKill,
    /// A cgroup runs into `memory.high` or `memory.max`.
    MemoryLimit,
    /// A cgroup uses up its CPU quota.
    CpuThrottling,
    /// Tasks of a cgroup wait for a CPU.
    CpuWait,
    /// A process is born into a pod's cgroup by a parent outside (`CLONE_INTO_CGROUP`).
    ProcessBirth,
    /// A cgroup falls below `memory.low`, or is killed as a whole.
    MemoryProtection,
    /// Tasks of a cgroup wait for memory.
    MemoryStall,
    /// Tasks reclaim, because of a limit or for the node, or sleep for `memory.high`.
    ReclaimTime,
    /// A cgroup needs pages that were taken from it, from files or from swap.
    Refault,
    /// The share of time that the node and each pod lose to shortages.
    Pressure,
}

impl LadderSignal {
    /// In the words of a person.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryThreshold => "memory threshold",
            Self::NodeReclaim => "node reclaim",
            Self::CgroupLifecycle => "cgroup lifecycle",
            Self::ProcessAttach => "process attach",
            Self::OomKill => "OOM kill",
            Self::MemoryLimit => "memory.high and memory.max",
            Self::CpuThrottling => "CPU throttling",
            Self::CpuWait => "waits for a CPU",
            Self::ProcessBirth => "process birth",
            Self::MemoryProtection => "memory.low and group kill",
            Self::MemoryStall => "memory stall of a cgroup",
            Self::ReclaimTime => "reclaim and memory.high",
            Self::Refault => "refault and swap-in",
            Self::Pressure => "pressure (PSI)",
        }
    }
}

impl fmt::Display for LadderSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
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

/// Takes, for each signal, the best rung that `facts` allow and what runs beside it. One primary per signal, in the
/// order of [`LADDER`].
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
        // Where it is the best there is, `why` says that it is slow.
        let is_slow = rung.mechanism == Mechanism::Psi && facts.psi == Ok(PsiReach::Unprivileged);
        if is_slow && index > 0 {
            lost = lost.map(|lost| format!("{lost}, and up to 2 s more here"));
            obstacles.push(Obstacle::PsiUnprivileged);
        }
        let primary = Choice {
            signal: row.signal,
            mechanism: rung.mechanism,
            role: Role::Primary,
            rung: index,
            why: why(rung, facts),
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

fn why(rung: &Rung, facts: &Facts) -> String {
    let slow = rung.mechanism == Mechanism::Psi && facts.psi == Ok(PsiReach::Unprivileged);
    if slow {
        format!("{}, in windows of 2 s", rung.gives)
    } else {
        rung.gives.to_owned()
    }
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
        why: why(rung, facts),
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
        Need::Program(programs) => program(programs, mechanism, facts),
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

/// One of `programs` is attached; else the deepest cause that is known, then the loader's words.
fn program(
    programs: &'static [&'static str],
    mechanism: Mechanism,
    facts: &Facts,
) -> Result<(), Obstacle> {
    let loaded = facts.bpf.as_ref();
    let hooks = loaded.map(Vec::as_slice).unwrap_or_default();
    let mut refused = None;
    for hook in programs
        .iter()
        .flat_map(|program| hooks.iter().filter(move |hook| hook.program == *program))
    {
        match &hook.outcome {
            HookOutcome::Attached => return Ok(()),
            // The last program is for what older kernels have, so its refusal tells most.
            HookOutcome::Unavailable { reason } => {
                let (hook, kind, reason) = (hook.target.clone(), hook.kind, reason.clone());
                refused = Some(Obstacle::HookUnavailable { hook, kind, reason });
            }
            HookOutcome::KindRefused { reason } => {
                // Fentry and fexit are refused together: one reason, said once.
                let kind = if mechanism == Mechanism::Fentry {
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
    if let Some(cause) = facts.bpf_obstacle() {
        return Err(cause);
    }
    match (loaded, refused) {
        (Err(reason), _) => Err(Obstacle::NotLoaded {
            reason: reason.clone(),
        }),
        (Ok(_), Some(obstacle)) => Err(obstacle),
        (Ok(_), None) => Err(Obstacle::ProgramAbsent {
            program: programs.first().copied().unwrap_or("?"),
        }),
    }
}

impl Choice {
    /// "Not the top, because": the obstacles of the rungs above, without the one that is in nobody's way (cgroup v2 has
    /// no v1 files).
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
