//! What follows from the facts: the mechanism that serves each signal, what is lost here, and what a person can do about it.
//!
//! `plimsoll check` prints it; `plimsoll run` opens the sources that it names.

use std::fmt;

use serde::Serialize;

use crate::host::capabilities::Capability;
use crate::kernel::AccountReport;
use crate::probe::facts::Facts;
use crate::probe::ladder::{Choice, Without, choose, is_full};
use crate::probe::last_line::LastLineReach;

/// Everything is served by the best mechanism.
pub const EXIT_FULL: u8 = 0;
/// It works, with losses.
pub const EXIT_DEGRADED: u8 = 1;
/// It cannot work.
pub const EXIT_UNUSABLE: u8 = 2;

/// Something that a better machine would give.
pub(crate) struct Loss {
    /// Of which signal.
    pub(crate) of: &'static str,
    /// What is slower or invisible.
    pub(crate) lost: String,
    /// Why, where the table does not say so.
    pub(crate) because: Option<String>,
    /// What a person can do.
    pub(crate) remedy: Option<String>,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.of, self.lost)?;
        if let Some(because) = &self.because {
            write!(f, "; because {because}")?;
        }
        self.remedy
            .as_ref()
            .map_or(Ok(()), |remedy| write!(f, ". To mend: {remedy}"))
    }
}

/// What `plimsoll check` found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What was found.
    pub facts: Facts,
    /// What follows from it.
    pub choices: Vec<Choice>,
    /// [`EXIT_FULL`], [`EXIT_DEGRADED`] or [`EXIT_UNUSABLE`].
    pub exit_status: u8,
    /// What the agent that runs says of the kernel's records; `None` where none runs, or it has no BPF programs.
    pub records: Option<Result<AccountReport, String>>,
}

impl Report {
    /// Chooses from `facts`.
    pub fn new(facts: Facts) -> Self {
        let choices = choose(&facts);
        let is_whole = is_full(&choices) && missing_capabilities(&facts, false).next().is_none();
        let exit_status = match (&facts.memory, is_whole) {
            (Err(_), _) => EXIT_UNUSABLE,
            (Ok(_), true) => EXIT_FULL,
            (Ok(_), false) => EXIT_DEGRADED,
        };
        Self {
            facts,
            choices,
            exit_status,
            records: None,
        }
    }

    /// What is lost here, why, and what to do about it, one line each, as `plimsoll run` says it when it starts. Without what its
    /// own attempts to protect itself will tell.
    pub fn losses(&self) -> Vec<String> {
        self.loss_rows(true)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// What the last line in the kernel could do here.
    pub fn last_line(&self) -> LastLineReach {
        LastLineReach::of(&self.facts.bpf)
    }

    /// `attempts`: for `plimsoll run`, which tries what needs a capability and tells when it is refused.
    pub(crate) fn loss_rows(&self, attempts: bool) -> Vec<Loss> {
        let of_choice = |choice: &Choice| {
            let lost = choice.lost.clone()?;
            Some(Loss {
                of: choice.signal.name(),
                lost,
                because: choice.because().next().map(ToString::to_string),
                remedy: choice.remedy(),
            })
        };
        let mut losses: Vec<Loss> = self.choices.iter().filter_map(of_choice).collect();
        if let Err(reason) = &self.facts.psi
            && !self.facts.without.contains(&Without::Psi)
        {
            let lost = "nothing wakes plimsoll when tasks stall on memory and all else is silent"
                .to_owned();
            losses.push(Loss {
                of: "safety net",
                lost,
                because: None,
                remedy: Some(reason.clone()),
            });
        }
        losses.extend(
            missing_capabilities(&self.facts, attempts).map(|capability| Loss {
                of: capability.name,
                lost: capability.lost.to_owned(),
                because: None,
                remedy: Some(format!("grant {}", capability.name)),
            }),
        );
        losses
    }
}

/// Nothing when this process's capabilities cannot be read: what is refused will then tell.
fn missing_capabilities(
    facts: &Facts,
    attempts: bool,
) -> impl Iterator<Item = &'static Capability> {
    facts
        .capabilities
        .into_iter()
        .flat_map(move |held| held.missing_and_untold(attempts))
}
