//! Disks short: what the node can free without an eviction.

pub mod node_reclaim;
pub mod unused;
