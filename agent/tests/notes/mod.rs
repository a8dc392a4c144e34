//! What a test has to say although it passes: that it was left out here, or how much it has checked.
//!
//! The test runner shows nothing of a test that passes. So `cargo xtask test` names a file in `PLIMSOLL_TEST_NOTES`;
//! what is written there is shown with the summary, and what was left out counts as skipped. Without the variable it
//! goes to standard error alone.

#![allow(
    dead_code,
    reason = "each program of tests takes what it needs of this"
)]

use std::fmt::Display;
use std::fs::File;
use std::io::Write as _;

/// This test cannot run here.
pub(crate) fn left_out(reason: impl Display) {
    let thread = std::thread::current();
    note(format_args!(
        "left out: {}: {reason}",
        thread.name().unwrap_or("a test")
    ));
}

/// A line that is worth a look with every run.
pub(crate) fn note(text: impl Display) {
    // A line each, however long the reason; one write, as others write meanwhile.
    let line = format!("{}\n", text.to_string().trim_end().replace('\n', "; "));
    eprint!("{line}");
    let Some(path) = std::env::var_os("PLIMSOLL_TEST_NOTES") else {
        return;
    };
    let written = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("{path:?}: {error}");
    }
}
