//! The decision core of Plimsoll: what a node does about memory, as pure functions.
//!
//! Events go into [`engine::Engine::step`], decisions come out. Nothing here does I/O, reads a clock, draws a random number,
//! logs, or iterates in an order that is not fixed by the data.

#![forbid(unsafe_code)]

pub mod arbitration;
pub mod engine;
pub mod explain;
pub mod kube;
pub mod model;
pub mod placement;
pub mod policy;
pub mod shown;
