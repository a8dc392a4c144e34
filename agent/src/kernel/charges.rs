//! What is charged to memory cgroups, and the total at which the kernel reports.
//!
//! The kernel counts pages and the agent counts bytes: this is where the one becomes the other.
//!
//! Each arming has a number, its [`Generation`]. A record of a crossing carries the number of the arming that it
//! answers, so "is this what I asked for last?" is one comparison with [`Bpf::newest_arming`]. The number lives in the
//! map, beside the threshold: an agent that takes over pinned programs goes on from it. Until that agent arms for the
//! first time, the newest arming is the one that the agent before it left, and its crossing counts.

use std::sync::atomic::{Ordering, fence};

use aya::maps::{Array, MapData};
use plimsoll_abi::charges;

use super::error::map_error;
use super::{Bpf, BpfError};

/// The number of an arming of the charge threshold: 1 for the first since the programs were loaded, and one more for
/// each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(pub u64);

/// As many pages as it takes to hold so many bytes: the unit of the kernel's counters.
#[must_use]
pub fn pages_up(bytes: u64) -> u64 {
    bytes.div_ceil(rustix::param::page_size() as u64)
}

/// The most pages that one charge of memory is for: a huge page of the second level, a block of order 10 (4 MiB on most
/// processors), or 32 KiB for each CPU (`PCPU_MIN_UNIT_SIZE`).
pub(super) fn charge_pages_max(cpus: usize) -> u64 {
    let page_size = rustix::param::page_size() as u64;
    let entries = page_size / size_of::<u64>() as u64;
    entries
        .max(pages_up(4 << 20))
        .max(pages_up((32 << 10) * cpus as u64))
}

/// The size of so many pages.
pub(super) fn bytes_of_pages(pages: u64) -> u64 {
    pages.saturating_mul(rustix::param::page_size() as u64)
}

/// The map behind it.
pub(super) struct Charges {
    words: Array<MapData, u64>,
    /// The program that counts is attached.
    is_counted: bool,
    newest: Generation,
}

impl Charges {
    /// Goes on from the generation that is in the map.
    pub(super) fn new(words: Array<MapData, u64>, is_counted: bool) -> Result<Self, BpfError> {
        let newest = words
            .get(&charges::GENERATION, 0)
            .map_err(map_error("CHARGES"))?;
        Ok(Self {
            words,
            is_counted,
            newest: Generation(newest),
        })
    }
}

impl Bpf {
    /// Bytes charged to memory cgroups since the programs were attached, gross; `None` where no program counts them.
    /// One map lookup, no allocation. A record of a crossing carries this total
    /// ([`Body::ChargesReached`](super::decode::Body)).
    #[must_use]
    pub fn charged_bytes(&self) -> Option<u64> {
        let pages = self
            .charges
            .is_counted
            .then(|| self.charges.words.get(&charges::TOTAL_PAGES, 0).ok())
            .flatten()?;
        Some(bytes_of_pages(pages))
    }

    /// Asks for one [`ChargesReached`](plimsoll_abi::Kind::ChargesReached) record when [`Bpf::charged_bytes`] reaches
    /// this, replacing what was asked before. If it is there already, the next charge sends the record. The result,
    /// which [`Bpf::newest_arming`] returns from now on, comes back in the record. Two map updates, no allocation.
    ///
    /// # Errors
    /// When the kernel refuses an update.
    pub fn arm_charges(&mut self, at_charged_bytes: u64) -> Result<Generation, BpfError> {
        let newest = Generation(self.charges.newest.0 + 1);
        // In this order: see `charges::GENERATION`.
        for (index, word) in [
            (charges::GENERATION, newest.0),
            (charges::THRESHOLD_PAGES, pages_up(at_charged_bytes)),
        ] {
            self.charges
                .words
                .set(index, word, 0)
                .map_err(map_error("CHARGES"))?;
            // Arm lets another CPU see the two in the other order, and a system call is no barrier.
            fence(Ordering::SeqCst);
            self.charges.newest = newest;
        }
        Ok(newest)
    }

    /// The newest arming: by this agent, or by the agent before it as long as this one has armed nothing.
    #[must_use]
    pub fn newest_arming(&self) -> Generation {
        self.charges.newest
    }
}
