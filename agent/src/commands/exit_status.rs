//! The exit statuses of `plimsoll`.

/// The command did what it was asked to do.
pub const DONE: u8 = 0;
/// The command failed, or found what its table calls a loss or a difference; the message says why.
pub const FAILED: u8 = 1;
/// The arguments are wrong: nothing else ends with this status.
pub const WRONG_USAGE: u8 = 2;
/// The command did its work, and the answer is no; what that means depends on the command.
pub const REFUSED: u8 = 3;
