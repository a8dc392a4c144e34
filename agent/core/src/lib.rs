//! The decision core.

pub mod units;
