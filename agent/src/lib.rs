//! The agent.

pub mod bpf;
pub mod check;
pub mod events;
pub mod exec;
pub mod facts;
pub mod host;
pub mod ladder;
pub mod pod_cgroup;
pub mod source;
