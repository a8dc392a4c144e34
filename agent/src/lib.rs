//! The agent: everything that touches kernel, clock or screen. What is decided is decided in `plimsoll-core`.

#![deny(unsafe_code)]

pub mod act;
pub mod commands;
pub mod daemon;
pub mod host;
pub mod input;
pub mod kernel;
pub mod pods;
pub mod probe;
pub mod record;
pub mod serve;
pub mod show;
pub mod source;
pub mod storage;
#[cfg(test)]
mod testkit;

#[cfg(test)]
#[path = "../tests/notes/mod.rs"]
mod notes;
