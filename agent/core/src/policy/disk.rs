//! Disks short: limits of local storage, and what the node can free without an eviction.

pub mod local_storage;
pub mod node_reclaim;
pub mod unused;
