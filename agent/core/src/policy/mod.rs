//! Decisions as plain functions: one file per policy.

pub mod oom_score;
pub mod rank;
