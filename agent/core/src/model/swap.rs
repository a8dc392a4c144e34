//! Whether pods may swap, and to what.

use serde::{Deserialize, Serialize};

/// Whether pods may swap, as the limits in their cgroups have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodSwap {
    /// Nothing keeps them from it: cgroup v1, or a kernel without swap accounting.
    #[default]
    Unlimited,
    /// They do not: `memorySwap.swapBehavior: NoSwap`.
    Forbidden,
    /// Containers of Burstable pods up to the share of swap that their request is of the machine's memory:
    /// `LimitedSwap`.
    Limited,
}

/// Swap devices in memory (zram), summed; all bytes. All 0 where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CompressedSwap {
    /// Their part of `SwapFree`.
    pub free_bytes: u64,
    /// What was swapped out to them, before compression: `orig_data_size`.
    pub stored_bytes: u64,
    /// Memory that this takes: `mem_used_total`.
    pub used_bytes: u64,
}

impl CompressedSwap {
    /// Whether there is none; such a one is not written to journals.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
