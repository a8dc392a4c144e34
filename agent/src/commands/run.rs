//! `plimsoll run`: becomes `plimsoll-agent`, which has what the agent needs and nothing else, because all of it is
//! locked in memory.

use crate::daemon::start::PROGRAM;
use crate::host::program::{NotStarted, become_program};

/// Becomes the agent. Its arguments have been parsed, so wrong usage is reported as that of `plimsoll run`.
///
/// # Errors
/// When `plimsoll-agent` is not beside this program.
pub fn run() -> Result<std::convert::Infallible, NotStarted> {
    become_program(PROGRAM)
}
