//! The agent.

pub mod host;
