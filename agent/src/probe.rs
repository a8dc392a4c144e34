//! What this host allows: facts, and the mechanism that serves each signal.

pub mod facts;
pub mod ladder;
pub mod last_line;
pub mod mechanism;
pub mod report;
