//! What changes the host: one file or folder for each kind of effect. Every change is in a ledger before it is made.

pub mod cpu_time;
pub mod holds;
pub mod kubepods;
pub mod memory_release;
pub mod oom_group;
pub mod oom_order;
pub mod oom_scores;
pub mod placement;
pub mod remedies;
