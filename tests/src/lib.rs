//! Shared code of the tests.

#![forbid(unsafe_code)]

pub mod conformance;
#[cfg(feature = "guest")]
pub mod guest;
