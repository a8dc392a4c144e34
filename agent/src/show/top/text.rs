//! An overview as a table, for a pipe.

use plimsoll_core::explain::Standing;

use crate::host::output::Style;
use crate::serve::overview::{Overview, PodStatus};
use crate::show::table::{Table, Tone, bytes};
use crate::show::top::{COLUMNS, candidates, reason, signal_text};

/// Candidates that are named.
const CANDIDATES: usize = 3;

/// The text, each line ended.
pub(crate) fn table(own: &Overview, style: Style) -> String {
    let of = |own: Option<u64>| own.map_or_else(|| "?".to_owned(), |own| bytes(own.into()));
    let node = &own.node;
    let mut text = format!(
        "{} available of {}, swap {} of {}\n",
        of(node.memory_available_bytes),
        of(node.memory_capacity_bytes),
        of(node.swap_used_bytes),
        of(node.swap_capacity_bytes)
    );
    for shown in own.signals.iter().filter_map(signal_text) {
        text += &format!("{shown}\n");
    }
    for condition in own.conditions.iter().filter(|own| own.status) {
        text += &format!("{}\n", style.red(condition.condition.as_str()));
    }
    text.push('\n');
    let mut heading = vec!["POD"];
    heading.extend(COLUMNS.iter().map(|own| own.heading));
    let mut table = Table::new(&heading, &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    for pod in &own.pods {
        let mut cells = vec![pod.pod.clone()];
        cells.extend(COLUMNS.iter().map(|own| (own.cell)(pod)));
        let tone = match (pod.status, pod.place.map(|own| own.standing)) {
            (PodStatus::Evicted | PodStatus::Stuck, _) | (_, Some(Standing::Next)) => Tone::Marked,
            (PodStatus::NotRunning | PodStatus::Ending, _) => Tone::Faint,
            _ => Tone::Plain,
        };
        table.row(tone, cells);
    }
    text += &table.render(style);
    text += &format!("\nNext to be evicted for {}:\n", own.signal);
    let candidates = candidates(own);
    if candidates.is_empty() {
        text.push_str("  nobody\n");
    }
    for pod in candidates.into_iter().take(CANDIDATES) {
        let rank = pod.place.map_or(0, |place| place.rank);
        text += &format!("  {rank} {}: {}\n", pod.pod, reason(own, pod));
    }
    text
}
