//! Explanations for people.

mod eviction;
pub mod limits;
pub mod oom;
mod pod;
pub mod throttling;

use crate::host::output::Style;
use crate::serve::control::Answer;

/// Renders the answer; `why` adds how a placement came about.
pub(crate) fn render(answer: &Answer, why: bool, style: Style) -> String {
    match answer {
        Answer::Eviction(answer) => match &answer.pod {
            None => eviction::eviction(answer, style),
            Some(pod) => pod::one_pod(answer, pod, style),
        },
        Answer::Oom(answer) => crate::show::explain::oom::oom(answer, style),
        Answer::Throttling(answer) => crate::show::explain::throttling::throttling(answer, style),
        Answer::Memory(answer) => crate::show::explain::limits::memory(answer, style),
        Answer::Placement(answer) => crate::show::place::overview(answer, why, style),
        Answer::Records(answer) => answer.as_ref().map_or_else(
            || "no BPF program sends records\n".to_owned(),
            |it| crate::show::check::records_text(it, style),
        ),
        Answer::AgentPlacement(answer) => match answer {
            Some(_) => "what is placed counts in `plimsoll topology --zones`\n".to_owned(),
            None => "nothing is placed\n".to_owned(),
        },
        Answer::Health(answer) => format!("{} pods are wanted\n", answer.pods),
        Answer::Overview(answer) => crate::show::top::text::table(answer, style),
    }
}

#[cfg(test)]
mod tests;
