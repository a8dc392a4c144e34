//! Shared code of the tests.

#![forbid(unsafe_code)]

pub mod conformance;
pub mod fuzz;
#[cfg(feature = "guest")]
pub mod guest;
