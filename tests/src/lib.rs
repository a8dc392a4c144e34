//! Shared code of the tests.

#![forbid(unsafe_code)]

#[cfg(feature = "guest")]
pub mod guest;
