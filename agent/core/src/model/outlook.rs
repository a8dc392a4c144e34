//! How memory shrinks, as far as it was observed, and when it is predicted to run out.
//!
//! The rules are in [`foresight`](crate::policy::eviction::foresight).

use serde::{Deserialize, Serialize};

/// Intervals that the rate is taken from.
pub(crate) const INTERVALS: usize = 5;

/// What is known of how memory shrinks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Outlook {
    /// The newest figures.
    pub(crate) now: Option<Figures>,
    /// Where the interval under way began.
    pub(crate) since: Option<Figures>,
    /// The lowest point before.
    pub(crate) low_bytes: u64,
    /// The least that was unused in this horizon and in the one before; `None`: nothing seen.
    pub(crate) lows: [Option<u64>; 2],
    /// When this one began, nanoseconds.
    pub(crate) lows_since_ns: u64,
    /// The intervals before, the newest last; a missing one is empty.
    pub(crate) intervals: [Interval; INTERVALS],
    /// When the kernel last showed that it is short of free memory, nanoseconds.
    pub(crate) short_ns: Option<u64>,
    /// A pod is being ended for memory: the memory it returns is no trend.
    pub(crate) leaving: bool,
}

/// What a sample shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) at_ns: u64,
    /// What the kernel can hand out before its OOM killer runs.
    pub(crate) left_bytes: u64,
    /// Free memory, page cache and free swap.
    pub(crate) unused_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) capacity_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Interval {
    pub(crate) elapsed_ns: u64,
    /// Of what was unused.
    pub(crate) lost_bytes: i64,
    /// Of what the kernel could hand out.
    pub(crate) left_lost_bytes: i64,
}

/// An end of memory that is foreseen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Foreseen {
    /// How fast it shrinks, bytes per second.
    pub rate_bytes_per_s: u64,
    /// How far ahead it was looked, nanoseconds.
    pub horizon_ns: u64,
}
