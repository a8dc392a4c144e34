//! What the last line in the kernel can do on this machine: which of its programs are in place, and what is lost by
//! those that are not.
//!
//! Beside the [ladder](crate::probe::ladder), not in it: it is no signal, and nothing takes its place. Where it is not
//! to be had, the kernel's OOM killer comes after an agent that does not answer.
#![forbid(unsafe_code)]

use std::fmt;

use crate::probe::facts::{Hook, HookOutcome};

/// What it can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastLineReach {
    /// It sees each charge, each direct reclaim, and the page allocator's last retry.
    Full,
    /// It sees less.
    Partly {
        /// What it goes by.
        by: Vec<&'static str>,
        /// Why not by the rest: the programs' targets, each with its reason.
        missing: Vec<String>,
    },
    /// It cannot be had.
    None {
        /// Why.
        reason: String,
    },
}

/// Its programs, best first, and what each goes by.
const PROGRAMS: [(&str, &str); 3] = [
    ("last_line_charge", "every charge of memory"),
    ("last_line_reclaim", "direct reclaim"),
    (
        "last_line_retry",
        "the page allocator's last retry before the OOM killer",
    ),
];

impl LastLineReach {
    /// By what became of the hooks.
    pub fn of(bpf: &Result<Vec<Hook>, String>) -> Self {
        let hooks = match bpf {
            Ok(hooks) => hooks,
            Err(reason) => {
                let reason = reason.clone();
                return Self::None { reason };
            }
        };
        let (mut by, mut missing) = (Vec::new(), Vec::new());
        for (program, gives) in PROGRAMS {
            let Some(hook) = hooks.iter().find(|hook| hook.program == program) else {
                missing.push(format!("{program} is not among the programs"));
                continue;
            };
            match &hook.outcome {
                HookOutcome::Attached => by.push(gives),
                HookOutcome::Unavailable { reason }
                | HookOutcome::KindRefused { reason }
                | HookOutcome::Idle { reason } => {
                    missing.push(format!("{} {}: {reason}", hook.kind, hook.target));
                }
            }
        }
        missing.dedup();
        match (by.is_empty(), missing.is_empty()) {
            (_, true) => Self::Full,
            (false, false) => Self::Partly { by, missing },
            (true, false) => Self::None {
                reason: missing.join("; "),
            },
        }
    }

    /// What is lost, for who has asked for it.
    pub fn loss(&self) -> Option<String> {
        match self {
            Self::Full => None,
            _ => Some(format!("last line in the kernel: {self}")),
        }
    }
}

impl fmt::Display for LastLineReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(f, "available"),
            Self::Partly { by, missing } => write!(
                f,
                "acts late, only by {}; {}",
                by.join(" and "),
                missing.join("; ")
            ),
            Self::None { reason } => write!(f, "not available: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::mechanism::HookKind;

    fn hooks(attached: [bool; 3]) -> Result<Vec<Hook>, String> {
        let kinds = [HookKind::Fentry, HookKind::TpBtf, HookKind::TpBtf];
        let hook = |((program, _), (attached, kind)): ((&str, _), (bool, HookKind))| Hook {
            program: program.to_owned(),
            target: "target".to_owned(),
            kind,
            outcome: if attached {
                HookOutcome::Attached
            } else {
                HookOutcome::Unavailable {
                    reason: "no reason".to_owned(),
                }
            },
        };
        Ok(PROGRAMS
            .into_iter()
            .zip(attached.into_iter().zip(kinds))
            .map(hook)
            .collect())
    }

    #[test]
    fn what_is_missing_is_said() {
        assert_eq!(LastLineReach::of(&hooks([true; 3])).loss(), None);
        let late = LastLineReach::of(&hooks([false, false, true])).loss();
        let late = late.unwrap();
        assert!(
            late.contains("only by the page allocator's last retry"),
            "{late}"
        );
        assert!(late.contains("fentry target: no reason"), "{late}");
        let none = LastLineReach::of(&hooks([false; 3]));
        assert!(none.to_string().starts_with("not available"), "{none}");
        let none = LastLineReach::of(&Err("no BPF".to_owned()));
        assert_eq!(none.to_string(), "not available: no BPF");
        assert!(matches!(
            LastLineReach::of(&Ok(Vec::new())),
            LastLineReach::None { .. }
        ));
    }
}
