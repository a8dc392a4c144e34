//! What several commands say when they fail. What is wrong with their files is an
//! [`InputError`](crate::input::error::InputError).

/// Standard output takes no more; the system's answer follows.
pub(crate) const STDOUT: &str = "cannot write to standard output";
