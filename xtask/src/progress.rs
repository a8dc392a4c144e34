//! What the commands say while they work.
//!
//! Progress goes to stderr, one line per thing begun, so that stdout carries only what a command is asked for
//! (a table, a guest's console, the summary of the tests).

use std::fmt::Display;
use std::io::Write as _;

/// Prints one progress line: the part of the work, then what it is doing.
pub(crate) fn say(part: &str, doing: impl Display) {
    // Progress is a courtesy: a closed stderr must not stop the work.
    let _ = writeln!(std::io::stderr(), "{part:>12}  {doing}");
}
