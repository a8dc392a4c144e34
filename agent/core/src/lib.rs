//! The decision core.

pub mod pod;
pub mod policy;
pub mod qos;
pub mod quantity;
pub mod resources;
pub mod units;
