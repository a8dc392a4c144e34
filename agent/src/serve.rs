//! What the agent serves: the control socket, metrics, health and statistics.

pub mod control;
pub mod explained;
pub mod http;
pub mod listener;
pub mod metrics;
pub mod overview;
pub mod summary;
