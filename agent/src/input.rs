//! What people write: configuration, manifests, usage files. Bounded, with the line of each error.

pub mod config;
pub mod devices;
pub(crate) mod error;
pub(crate) mod load;
pub mod machine;
pub mod manifests;
pub mod snapshot;
mod spelling;
pub mod usage;
pub mod yaml;
