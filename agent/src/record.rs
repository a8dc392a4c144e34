//! What is kept of what happened: the journal, lines of output, counts, time lines.

pub mod journal;
pub mod lines;
pub mod tally;
pub mod timeline;
