//! The agent.

pub mod check;
pub mod exec;
pub mod facts;
pub mod host;
pub mod ladder;
pub mod pod_cgroup;
pub mod source;
