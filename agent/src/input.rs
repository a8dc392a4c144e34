//! What people write: configuration, manifests, usage files. Bounded, with the line of each error.

pub mod cluster;
pub mod config;
pub mod devices;
pub(crate) mod error;
pub(crate) mod load;
pub mod machine;
pub mod manifests;
mod spelling;
pub mod usage;
pub mod yaml;
