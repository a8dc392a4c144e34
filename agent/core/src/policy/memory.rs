//! Shortages of memory, disk and PIDs: which thresholds are met, which pod is evicted, what is tried before, and when
//! to sample again.

pub mod breaker;
pub mod candidates;
pub mod disruption;
pub mod eviction;
pub mod foresight;
pub mod freshness;
pub mod leaving;
pub(crate) mod lineup;
pub mod local_storage;
pub mod numa;
pub mod rank;
pub(crate) mod ranking_head;
pub mod remedies;
pub(crate) mod retained;
pub mod sampling;
pub mod share;
pub mod stall;
pub mod swap;
pub mod target;
pub(crate) mod termination;
pub mod thresholds;
pub mod usage_bounds;
pub(crate) mod verdict;
pub(crate) mod view;
