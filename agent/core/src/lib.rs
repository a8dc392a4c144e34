//! The decision core of Plimsoll, as pure functions: what a node does about shortages of memory, disk and CPU, and who
//! gets what (placement, admission, shares of a cluster).
//!
//! Events go into [`engine::Engine::step`], decisions come out. Nothing here does I/O, reads a clock, draws a random
//! number, logs, or iterates in an order that is not fixed by the data.

#![forbid(unsafe_code)]

pub mod arbitration;
pub mod engine;
pub mod explain;
pub mod kube;
pub mod model;
pub mod placement;
pub mod policy;
pub mod protocol;
pub mod shown;
mod zero;
