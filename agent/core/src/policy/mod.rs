//! Decisions as plain functions: one file per policy.

pub mod eviction;
pub mod freshness;
pub mod leaving;
pub mod oom_score;
pub mod rank;
pub mod sampling;
