//! A ranking as a table.

use plimsoll_core::explain::{EvictionStatus, Place};

use crate::show::table::{Table, Tone};

/// The ranking as a table. `last` is the text of the column `OOM_SCORE_ADJ`, if that is wanted.
pub(crate) fn ranking_table<'a>(
    places: impl Iterator<Item = (&'a Place, String)>,
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
    for (place, scores) in places {
        let unknown = || "?".to_owned();
        let mut cells = vec![
            place.rank.to_string(),
            place.pod.clone(),
            place.priority.to_string(),
            place.qos_class.to_string(),
            place
                .usage
                .map_or_else(unknown, |value| amount(value.into())),
            amount(place.request.into()),
            place
                .usage_over_request
                .map_or_else(unknown, |value| amount(value.into())),
            place
                .ahead_of_next_by
                .map_or_else(String::new, |step| step.to_string()),
            place.exempt.map_or_else(String::new, |why| why.to_string()),
        ];
        if with_scores {
            cells.push(scores);
        }
        let tone = match place.standing {
            EvictionStatus::Next => Tone::Marked,
            EvictionStatus::Waits => Tone::Plain,
            EvictionStatus::Skipped => Tone::Faint,
        };
        table.row(tone, cells);
    }
    table
}
