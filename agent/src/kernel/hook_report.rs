//! What became of a hook on this host.

use std::fmt;

use super::hooks::{Family, HookKind};

/// Why a hook is not attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The running kernel lacks the function or tracepoint.
    #[error("this kernel has no {kind} target {target}")]
    NoTarget {
        /// How it would be attached.
        kind: HookKind,
        /// The function or tracepoint.
        target: &'static str,
    },
    /// The running kernel's struct lacks a member that the program loads.
    #[error("this kernel's BTF has no {member}")]
    NoMember {
        /// The member.
        member: &'static str,
    },
    /// The kernel's own counters of pages cannot be found.
    #[error("the kernel's page counters cannot be located: {reason}")]
    NoCounters {
        /// Why.
        reason: String,
    },
    /// The kernel refuses every program of this kind: a program that does nothing was refused too.
    #[error("{kind} refused by this host: {reason}")]
    KindRefused {
        /// Of which kind.
        kind: HookKind,
        /// errno and its name, or the verifier's last words.
        reason: String,
    },
    /// Programs of this kind are not wanted (`--without`).
    #[error("{kind} is left out on request")]
    LeftOut {
        /// Which kind.
        kind: HookKind,
    },
    /// The kernel refuses this program.
    #[error("{kind} {target} refused: {reason}")]
    Refused {
        /// How it would be attached.
        kind: HookKind,
        /// The function or tracepoint.
        target: &'static str,
        /// errno and its name, or the verifier's last words.
        reason: String,
    },
    /// Another program sees the same and more.
    #[error("not needed: {by} is attached")]
    NotNeeded {
        /// The other program.
        by: &'static str,
    },
    /// It works only together with another program, which is not attached.
    #[error("needs {of}, which is not attached")]
    Partner {
        /// The other program.
        of: &'static str,
    },
    /// As the agent found that loaded the programs, which this one has taken over.
    #[error("{text}")]
    Earlier {
        /// Its words.
        text: String,
        /// [`Unavailable::is_loss`].
        is_loss: bool,
        /// [`Unavailable::refuses_kind`].
        refuses_kind: bool,
    },
}

impl Unavailable {
    /// Whether something is lost: `false` when the hook is simply not for this host.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        match self {
            Unavailable::Earlier { is_loss, .. } => *is_loss,
            Unavailable::NotNeeded { .. } => false,
            _ => true,
        }
    }

    /// The reason without the hook's own kind and target.
    #[must_use]
    pub fn beside_target(&self) -> String {
        match self {
            Unavailable::KindRefused { reason, .. } => format!("refused by this host: {reason}"),
            Unavailable::Refused { reason, .. } => format!("refused: {reason}"),
            Unavailable::LeftOut { .. } => "left out on request".to_owned(),
            why => why.to_string(),
        }
    }

    /// Whether the host refuses every program of this kind.
    #[must_use]
    pub const fn refuses_kind(&self) -> bool {
        match self {
            Unavailable::Earlier { refuses_kind, .. } => *refuses_kind,
            Unavailable::KindRefused { .. } => true,
            _ => false,
        }
    }
}

/// What became of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookState {
    /// It is in place.
    Attached {
        /// Instructions that the verifier walked; `None` before 5.16.
        verified_insns: Option<u32>,
        /// Instructions of the program as the kernel runs it.
        translated_insns: Option<u32>,
    },
    /// It is not.
    Unavailable(Unavailable),
}

/// What became of a hook, with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookReport {
    /// What it is for.
    pub family: Family,
    /// Name of the program.
    pub program: &'static str,
    /// How it attaches.
    pub kind: HookKind,
    /// Kernel function or tracepoint.
    pub target: &'static str,
    /// Attached or not.
    pub state: HookState,
}

impl HookReport {
    /// Whether it is in place.
    #[must_use]
    pub const fn is_attached(&self) -> bool {
        matches!(self.state, HookState::Attached { .. })
    }
}

impl fmt::Display for HookReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}: ", self.family.name(), self.kind, self.target)?;
        let verified_insns = match &self.state {
            HookState::Attached { verified_insns, .. } => {
                f.write_str("attached")?;
                verified_insns
            }
            HookState::Unavailable(reason) => return reason.fmt(f),
        };
        verified_insns.map_or(Ok(()), |count| write!(f, ", {count} instructions verified"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_line() {
        let report = HookReport {
            family: Family::Oom,
            program: "oom_kill_process",
            kind: HookKind::Fentry,
            target: "oom_kill_process",
            state: HookState::Unavailable(Unavailable::KindRefused {
                kind: HookKind::Fentry,
                reason: "errno 1 (EPERM)".into(),
            }),
        };
        assert_eq!(
            report.to_string(),
            "oom fentry oom_kill_process: fentry refused by this host: errno 1 (EPERM)"
        );
    }
}
