//! What to do: pure functions over a [`NodeState`](crate::model::state::NodeState), one file per policy.

pub mod cpu;
pub mod disk;
pub mod eviction;
pub mod oom;
pub mod placement;
