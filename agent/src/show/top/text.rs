//! An overview as a table, for a pipe.

use plimsoll_core::explain::EvictionStatus;

use crate::host::output::Style;
use crate::host::shown::line;
use crate::serve::overview::{Overview, PodStatus};
use crate::show::pod_words::{candidates, reason, signal_text};
use crate::show::table::{Table, Tone, bytes};
use crate::show::top::COLUMNS;

/// Candidates that are named.
const CANDIDATES: usize = 3;

/// The text, each line ended.
pub(crate) fn table(overview: &Overview, style: Style) -> String {
    let of = |it: Option<u64>| it.map_or_else(|| "?".to_owned(), |value| bytes(value.into()));
    let node = &overview.node;
    let mut text = format!(
        "{} available of {}, swap {} of {}\n",
        of(node.memory_available_bytes),
        of(node.memory_capacity_bytes),
        of(node.swap_used_bytes),
        of(node.swap_capacity_bytes)
    );
    for shown in overview.signals.iter().filter_map(signal_text) {
        text += &format!("{shown}\n");
    }
    for condition in overview
        .conditions
        .iter()
        .filter(|condition| condition.status)
    {
        text += &format!("{}\n", style.red(condition.condition.as_str()));
    }
    text.push('\n');
    let mut heading = vec!["POD"];
    heading.extend(COLUMNS.iter().map(|it| it.heading));
    let mut table = Table::new(&heading, &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    for pod in &overview.pods {
        let mut cells = vec![pod.pod.clone()];
        cells.extend(COLUMNS.iter().map(|it| (it.cell)(pod)));
        let tone = match (pod.status, pod.ranked.map(|it| it.standing)) {
            (PodStatus::Evicted | PodStatus::Stuck, _) | (_, Some(EvictionStatus::Next)) => {
                Tone::Marked
            }
            (PodStatus::NotRunning | PodStatus::Ending, _) => Tone::Faint,
            _ => Tone::Plain,
        };
        table.row(tone, cells);
    }
    text += &table.render(style);
    text += &format!("\nNext to be evicted for {}:\n", overview.signal);
    let candidates = candidates(overview);
    if candidates.is_empty() {
        text.push_str("  no pod\n");
    }
    for pod in candidates.into_iter().take(CANDIDATES) {
        let rank = pod.ranked.map_or(0, |ranked| ranked.rank);
        text += &format!("  {rank} {}: {}\n", pod.pod, reason(overview, pod));
    }
    text + &admission(overview, style)
}

/// The pods that may not run, and what is in use of the quotas; nothing where nothing decides about pods.
fn admission(overview: &Overview, style: Style) -> String {
    let mut text = String::new();
    if !overview.refused.is_empty() {
        text += "\nNot admitted:\n";
        for refused in &overview.refused {
            text += &format!("  {}: {}\n", refused.pod, line(&refused.message));
        }
    }
    if !overview.quotas.is_empty() {
        text.push('\n');
        let mut table = Table::new(&["QUOTA", "RESOURCE", "USED", "HARD"], &[2, 3]);
        for quota in &overview.quotas {
            for (name, hard) in &quota.hard {
                let used = quota.used.get(name);
                let tone = match used.is_some_and(|used| used > hard) {
                    true => Tone::Marked,
                    false => Tone::Plain,
                };
                let used = used.map_or_else(|| "?".to_owned(), ToString::to_string);
                table.row(
                    tone,
                    vec![quota.quota.clone(), name.clone(), used, hard.to_string()],
                );
            }
        }
        text += &table.render(style);
    }
    text
}

/// The node in one line, its fields separated by tabs: pods with processes, memory available, of how much, conditions,
/// who goes next and why.
pub(crate) fn node_line(overview: &Overview) -> String {
    let of = |it: Option<u64>| it.map_or_else(|| "?".to_owned(), |value| bytes(value.into()));
    let running = overview.pods.iter();
    let running = running.filter(|pod| pod.status == PodStatus::Running);
    let conditions = overview.conditions.iter().filter(|it| it.status);
    let conditions: Vec<&str> = conditions.map(|it| it.condition.as_str()).collect();
    let next = candidates(overview).into_iter().next();
    let next = next.map_or_else(
        || "no pod".to_owned(),
        |pod| format!("{}: {}", pod.pod, reason(overview, pod)),
    );
    let conditions = match &*conditions {
        [] => "-".to_owned(),
        some => some.join(","),
    };
    let node = &overview.node;
    format!(
        "{}\t{}\t{}\t{conditions}\t{}\n",
        running.count(),
        of(node.memory_available_bytes),
        of(node.memory_capacity_bytes),
        line(&next)
    )
}
