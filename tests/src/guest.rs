//! What the programs that run inside a guest share: measuring memory, starting pods and the agent, harness and tables.
//!
//! The guest is a Debian kernel with a busybox initramfs, booted by `cargo xtask vm`, `demo`, `test` and `bench`.
//! Nothing here is of use on a machine that one cares about: the tests fill its memory and kill what they find in
//! `kubepods`. All times are `CLOCK_MONOTONIC` nanoseconds, the clock of the BPF records.

pub mod agent;
pub mod ballast;
pub mod burst;
pub mod cases;
pub mod cgroup;
pub mod clock;
pub mod cost;
mod false_alarms;
pub mod figure;
pub mod harness;
pub mod kernel_oom;
pub mod machines;
pub mod memory;
pub mod node;
pub mod on;
pub mod page;
pub mod plan;
pub mod pod;
pub mod process;
pub mod reaction;
pub mod sampler;
pub mod signals;
pub mod story;
pub mod stress;
pub mod swap;
pub mod table;
pub mod teardown;
