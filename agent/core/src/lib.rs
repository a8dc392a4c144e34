//! The decision core of Plimsoll: what a node does about memory, as pure functions.
//!
//! Events go into [`engine::Engine::step`], decisions come out. Nothing here does I/O, reads a clock, draws a random number,
//! logs, or iterates in an order that is not fixed by the data.

#![forbid(unsafe_code)]

pub mod budget;
pub mod cgroup_config;
pub mod cpu_bandwidth;
pub mod cpu_set;
pub mod decision;
pub mod duration;
pub mod engine;
pub mod event;
pub mod explain;
pub mod machine;
pub mod node_allocatable;
pub mod numa_mask;
pub mod options;
pub mod placement;
pub mod pod;
pub mod policy;
pub mod qos;
pub mod quantity;
pub mod reading;
pub mod resources;
pub mod signal;
pub mod state;
pub mod swap;
pub mod threshold;
pub mod topology;
pub mod units;
