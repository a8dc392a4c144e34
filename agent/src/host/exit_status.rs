//! The numbers with which the programs end. What each means for a command: `commands::exit_status`.

/// The command did what it was asked to do.
pub const DONE: u8 = 0;
/// The command failed (a file cannot be read or is wrong, no agent answers, the output cannot be written), or it found
/// a loss.
pub const FAILED: u8 = 1;
/// The arguments are wrong. Nothing else ends with this status.
pub const WRONG_USAGE: u8 = 2;
/// The answer is no, or there is none to what was asked.
pub const REFUSED: u8 = 3;
/// `plimsoll exec` failed, as docker and systemd-run have it.
pub const EXEC_FAILED: u8 = 125;
/// The command of `plimsoll exec` is there and cannot be executed.
pub const EXEC_CANNOT_EXECUTE: u8 = 126;
/// The command of `plimsoll exec` is not found.
pub const EXEC_NOT_FOUND: u8 = 127;
