//! Where events come from: one file per input.
#![forbid(unsafe_code)]

pub mod cgroup_watch;
pub mod memcg_v1;
pub mod memory_events;
pub mod pod_events;
pub mod pressure;
pub mod stall_triggers;
