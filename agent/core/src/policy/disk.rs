//! Disks short: what the node can free without an eviction.

pub mod freeing;
pub mod unused;
