//! What this machine allows, which mechanism serves each signal, and what is lost: shown by `plimsoll check`, acted on
//! by `plimsoll run`.
#![forbid(unsafe_code)]

use std::fmt;

use serde::Serialize;

use crate::host::capabilities::Capability;
use crate::probe::facts::Facts;
use crate::probe::ladder::{Choice, choose, is_full};
use crate::probe::last_line::LastLineReach;
use crate::probe::mechanism::Without;

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
            .map_or(Ok(()), |remedy| write!(f, ". To fix: {remedy}"))
    }
}

/// How much of plimsoll a machine allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Every signal has its best mechanism.
    Full,
    /// plimsoll works, with losses.
    Degraded,
    /// plimsoll cannot work: there is no memory controller.
    Unusable,
}

/// What this machine allows, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostReport {
    /// What was found.
    pub facts: Facts,
    /// What follows from it.
    pub choices: Vec<Choice>,
}

impl HostReport {
    /// Chooses from `facts`.
    pub fn new(facts: Facts) -> Self {
        let choices = choose(&facts);
        Self { facts, choices }
    }

    /// All of it in a word.
    pub fn verdict(&self) -> Verdict {
        let is_whole =
            is_full(&self.choices) && missing_capabilities(&self.facts, false).next().is_none();
        match (&self.facts.memory, is_whole) {
            (Err(_), _) => Verdict::Unusable,
            (Ok(_), true) => Verdict::Full,
            (Ok(_), false) => Verdict::Degraded,
        }
    }

    /// What is lost here, why, and what to do about it, one line each, as `plimsoll run` says it when it starts.
    /// Without what its own attempts to protect itself will tell.
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
            let lost =
                "nothing wakes plimsoll when tasks stall on memory and no other source reports"
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
        .flat_map(move |held| held.missing_and_unreported(attempts))
}
