//! Log lines of programs, for their developers.
//!
//! [`debug`](crate::log::debug) is nothing at all in the object that is released: only `cargo xtask build-ebpf --log`
//! (the feature `log`) makes one that logs, with a ring of its own for the lines. Formatting costs a program many times
//! what the rest of it does.

/// Logs a line at level debug, with a program's context first: `debug!(&ctx, "cgroup {}", id)`.
#[cfg(feature = "log")]
macro_rules! debug {
    ($($argument:tt)+) => {
        aya_log_ebpf::debug!($($argument)+)
    };
}
#[cfg(not(feature = "log"))]
macro_rules! debug {
    ($($argument:tt)+) => {};
}
pub(crate) use debug;
