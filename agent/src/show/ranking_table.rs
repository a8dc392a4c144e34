//! A ranking as a table.

use plimsoll_core::explain::{EvictionStatus, RankedPod};

use crate::show::table::{Table, Tone};

/// The ranking as a table. `last` is the text of the column `OOM_SCORE_ADJ`, if that is wanted.
pub(crate) fn ranking_table<'a>(
    ranked_pods: impl Iterator<Item = (&'a RankedPod, String)>,
    amount: impl Fn(i128) -> String,
    with_scores: bool,
) -> Table {
    let mut heading = vec![
        "RANK",
        "POD",
        "PRIORITY",
        "QOS",
        "USAGE",
        "REQUEST",
        "USAGE-REQUEST",
        "AHEAD OF THE NEXT BY",
        "EXEMPT",
    ];
    if with_scores {
        heading.push("OOM_SCORE_ADJ");
    }
    let mut table = Table::new(&heading, &[0, 2, 4, 5, 6]);
    for (ranked, scores) in ranked_pods {
        let unknown = || "?".to_owned();
        let mut cells = vec![
            ranked.rank.to_string(),
            ranked.pod.clone(),
            ranked.priority.to_string(),
            ranked.qos_class.to_string(),
            ranked
                .usage
                .map_or_else(unknown, |value| amount(value.into())),
            amount(ranked.request.into()),
            ranked
                .usage_over_request
                .map_or_else(unknown, |value| amount(value.into())),
            ranked
                .ahead_of_next_by
                .map_or_else(String::new, |step| step.to_string()),
            ranked
                .exempt
                .map_or_else(String::new, |why| why.to_string()),
        ];
        if with_scores {
            cells.push(scores);
        }
        let tone = match ranked.standing {
            EvictionStatus::Next => Tone::Marked,
            EvictionStatus::Waits => Tone::Plain,
            EvictionStatus::Skipped => Tone::Faint,
        };
        table.row(tone, cells);
    }
    table
}
