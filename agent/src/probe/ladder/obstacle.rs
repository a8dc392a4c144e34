//! Why a rung cannot be used, and what a person can do about it.

use serde::Serialize;

use super::Without;
use crate::probe::facts::HookKind;

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
