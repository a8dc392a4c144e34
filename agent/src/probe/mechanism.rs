//! Mechanisms that serve the signals, which of them can be left out, and why one cannot be used.
#![forbid(unsafe_code)]

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

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

/// `--without`, the same for every command.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct WithoutArgs {
    /// Do not use this mechanism, to see what plimsoll falls back to; may be repeated
    #[arg(
        long = "without",
        value_enum,
        value_name = "MECHANISM",
        value_delimiter = ','
    )]
    pub mechanisms: Vec<Without>,
}

/// Mechanisms that can be left out on request (`--without`), to see and test what the agent falls back to. Sampling
/// cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
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

/// As `--without` takes it.
impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // None is hidden, so each has one.
        self.to_possible_value()
            .map_or(Ok(()), |option| f.write_str(option.get_name()))
    }
}

/// Program type of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HookKind {
    /// On entry of a kernel function.
    Fentry,
    /// On return from one.
    Fexit,
    /// On a tracepoint, with typed arguments.
    TpBtf,
}

impl HookKind {
    /// The rung that hooks of this type serve.
    pub fn mechanism(self) -> Mechanism {
        match self {
            Self::Fentry | Self::Fexit => Mechanism::Fentry,
            Self::TpBtf => Mechanism::Tracepoint,
        }
    }
}

impl fmt::Display for HookKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fentry => "fentry",
            Self::Fexit => "fexit",
            Self::TpBtf => "tp_btf",
        })
    }
}

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
    #[error("{kind} {reason}")]
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
    /// The object has no such program, or did not try it.
    #[error("the BPF program {program} is not in use")]
    ProgramAbsent {
        /// Its name in the object.
        program: &'static str,
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
                "ask the administrator of the host to allow fentry programs; nothing on this machine sets that",
            ),
            Self::KindRefused {
                kind: HookKind::TpBtf,
                ..
            } => Some("ask the administrator of the host to allow tp_btf programs"),
            Self::HookUnavailable { .. } => Some(
                "use a kernel that has this hook (tested: Debian's 6.1, 6.12, 7.2), or report it",
            ),
            Self::PsiUnprivileged => Some("grant CAP_SYS_RESOURCE"),
            Self::MemoryOnV1 => Some(
                "boot with cgroup v2: systemd.unified_cgroup_hierarchy=1, or mount cgroup2 and no v1 memory hierarchy",
            ),
            Self::NoMemoryController { .. } => {
                Some("boot with cgroup_enable=memory and mount a cgroup file system that has it")
            }
            Self::NotLoaded { .. } => {
                Some("fix the error above that keeps the BPF object from loading")
            }
            Self::Without { .. }
            | Self::ProgramAbsent { .. }
            | Self::NoPsi { .. }
            | Self::MemoryOnV2
            | Self::NoEventControl { .. }
            | Self::NoInotify { .. } => None,
        }
    }
}
