//! The vocabulary: what comes in, what is known, what goes out. Imports itself and [`crate::kube`], no policy.

pub mod decision;
pub mod event;
pub mod options;
pub mod reading;
pub mod signal;
pub mod state;
pub mod threshold;
pub mod units;
