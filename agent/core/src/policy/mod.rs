//! Decisions as plain functions: one file per policy.

pub(crate) mod candidates;
pub mod cpu;
pub mod cpu_burst;
pub mod cpu_suppress;
pub(crate) mod disruption;
pub mod eviction;
pub mod foresight;
pub mod freshness;
pub mod last_line;
pub mod leaving;
pub(crate) mod local_storage;
pub mod node_reclaim;
pub(crate) mod on_node;
pub mod oom_order;
pub mod oom_score;
pub mod place;
pub mod rank;
pub mod remedies;
pub mod sampling;
pub(crate) mod stall;
pub mod target;
pub(crate) mod thresholds;
