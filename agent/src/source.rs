//! Where events come from beside BPF: one file per input.
//!
//! Each is optional. One that fails while the agent runs says what failed, why, and what to do about it; the caller
//! drops that source, warns, and goes on with the others.
#![forbid(unsafe_code)]

pub mod cgroup_watch;
pub mod cluster;
mod epoll_set;
pub mod memcg_v1;
pub mod memory_events;
pub mod nri;
pub mod pod_events;
pub mod pod_resources;
pub mod pressure;
pub mod stall_triggers;

pub use epoll_set::EpollError;
