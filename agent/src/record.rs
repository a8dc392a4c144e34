//! What is kept of what happened: the journal and its reader, lines of output, counts, time lines.

pub mod journal;
pub mod journal_player;
pub mod limit_counts;
pub mod lines;
pub mod snapshot;
pub mod steps;
pub mod tally;
pub mod timeline;
