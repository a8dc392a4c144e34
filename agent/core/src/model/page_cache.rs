//! How much of what the kernel lists as file pages is page cache.
//!
//! **Problem.** Page cache counts as memory that can be had, by the kernel's lists of it: `inactive_file` and
//! `active_file` of a cgroup, `Inactive(file)` and `Active(file)` of the node. Anonymous pages are on these lists after
//! `madvise(MADV_FREE)`: the kernel may drop them, and where they have been written again since it sees that only when
//! it scans them (mm/swap.c `lru_lazyfree`, mm/vmscan.c). A pod that frees its memory so and goes on writing to it
//! would hide all of it.
//! **Approach.** Page cache is counted a second time, by what is in it: `file` less `shmem`, which is on the lists of
//! anonymous pages (v1: `total_cache` and `total_shmem`; of the node `Cached + Buffers - Shmem`). What the lists have
//! beyond that is *lazily freed*, and counts as used. Nobody can tell which of it has been written again without a look
//! at each page, so memory that its pod does not need any more counts until the kernel takes it.
//!
//! Page cache that is locked, or of a ramfs, is in the second count and on neither list: so much of what is lazily
//! freed is not seen.

/// The node's counters may be behind each other by so much: each CPU counts up to 125 pages (`MAX_THRESHOLD` of the
/// kernel's mm/vmstat.c) before it adds them to what `/proc/meminfo` shows.
pub const CACHE_NOISE_BYTES: u64 = 4 << 20;

/// Page cache, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageCache {
    /// What the kernel drops first.
    pub inactive_bytes: u64,
    /// What was used more than once lately.
    pub active_bytes: u64,
}

impl PageCache {
    /// The lists of file pages without what of them is lazily freed. Such pages begin on the inactive list. One that
    /// was used again may be on the other, and then hides behind no page of this one.
    pub(crate) const fn of_lists(
        inactive_bytes: u64,
        active_bytes: u64,
        lazily_freed_bytes: u64,
    ) -> Self {
        let beyond_bytes = lazily_freed_bytes.saturating_sub(inactive_bytes);
        Self {
            inactive_bytes: inactive_bytes.saturating_sub(lazily_freed_bytes),
            active_bytes: active_bytes.saturating_sub(beyond_bytes),
        }
    }

    /// All of it.
    pub const fn all_bytes(self) -> u64 {
        self.inactive_bytes.saturating_add(self.active_bytes)
    }
}

/// What of the lists of file pages is lazily freed. `file` and `shmem` are of the same text as the lists; without one
/// of them there is nothing to compare with, and it is 0.
pub fn lazily_freed_bytes(lists_bytes: u64, file: Option<u64>, shmem: Option<u64>) -> u64 {
    file.zip(shmem).map_or(0, |(file_bytes, shmem_bytes)| {
        lists_bytes.saturating_sub(file_bytes.saturating_sub(shmem_bytes))
    })
}

/// The same of a node's or a NUMA node's counters, which may be behind each other ([`CACHE_NOISE_BYTES`]).
pub fn node_lazily_freed_bytes(lists_bytes: u64, file_bytes: u64, shmem_bytes: u64) -> u64 {
    let file_bytes = file_bytes.saturating_add(CACHE_NOISE_BYTES);
    lazily_freed_bytes(lists_bytes, Some(file_bytes), Some(shmem_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_lists_have_beyond_page_cache_is_lazily_freed() {
        let of = lazily_freed_bytes;
        assert_eq!(of(1573, Some(0), Some(0)), 1573);
        assert_eq!(of(1573, Some(600), Some(100)), 1073);
        // Page cache that is locked is on no list, and shmem is on another.
        assert_eq!(of(300, Some(500), Some(100)), 0);
        assert_eq!(of(300, Some(400), Some(100)), 0);
        // Two counters that are read one after the other.
        assert_eq!(of(10, Some(100), Some(104)), 10);
    }

    #[test]
    fn without_both_figures_it_is_not_known() {
        for (file, shmem) in [(None, None), (Some(0), None), (None, Some(0))] {
            assert_eq!(lazily_freed_bytes(1573, file, shmem), 0);
        }
    }

    #[test]
    fn it_comes_off_the_inactive_list_first() {
        let of = |inactive, active, lazily_freed| {
            let cache = PageCache::of_lists(inactive, active, lazily_freed);
            assert_eq!(
                cache.all_bytes(),
                (inactive + active).saturating_sub(lazily_freed)
            );
            (cache.inactive_bytes, cache.active_bytes)
        };
        assert_eq!(of(100, 50, 0), (100, 50));
        assert_eq!(of(100, 50, 60), (40, 50));
        assert_eq!(of(100, 50, 120), (0, 30));
        assert_eq!(of(100, 50, 200), (0, 0));
    }
}
