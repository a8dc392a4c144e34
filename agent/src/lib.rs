//! The agent.

pub mod check;
pub mod facts;
pub mod host;
pub mod ladder;
pub mod source;
