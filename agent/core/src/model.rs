//! The vocabulary: what comes in, what is known, what goes out. Imports itself and what is below ([`crate::placement`],
//! [`crate::kube`]), no policy; tests/tests/rooms holds it to that.

pub mod amount;
pub mod bandwidth;
pub mod config;
pub mod cpu_state;
pub mod decision;
pub mod event;
pub mod eviction_change;
pub mod file_system;
pub mod options;
pub mod outlook;
pub mod page_cache;
pub mod rank_row;
pub mod reading;
pub mod reclaim_yield;
pub mod remedy;
pub mod signal;
pub mod state;
pub mod swap;
pub mod telling;
pub mod threshold;
pub mod uncharged;
pub mod unread;
