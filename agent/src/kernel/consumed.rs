//! What the agent has read, in a map: it goes on counting where the agent before it stopped.
//!
//! One word per kind and CPU, mapped into this process, so that counting a record is one addition and not a system call. The word is
//! raised right after the record was given back to the ring: an agent that is killed between the two leaves that one record
//! uncounted, and the account of its kind and CPU then stays open by one.

#![allow(
    unsafe_code,
    reason = "memory that is shared with the kernel has no safe wrapper"
)]

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{Map, MapData};
use plimsoll_abi::KIND_SLOTS;
use rustix::mm::{MapFlags, ProtFlags};

use super::BpfError;

/// The words that a map for so many CPUs needs.
pub(super) const fn words(cpus: usize) -> usize {
    cpus * KIND_SLOTS
}

pub(super) struct Consumed {
    words: NonNull<AtomicU64>,
    length: usize,
    bytes: usize,
    /// Holds the map.
    _map: MapData,
}

// SAFETY: the mapping belongs to this value alone, and its words are atomics.
unsafe impl Send for Consumed {}

impl Consumed {
    /// Maps the words of a map that was made with room for `cpus`.
    pub(super) fn map(map: Map, cpus: usize) -> Result<Self, BpfError> {
        let refused = |reason: String| BpfError::Map {
            map: "CONSUMED",
            reason,
        };
        let Map::Array(map) = map else {
            return Err(refused("it is not an array".to_owned()));
        };
        let length = words(cpus);
        let bytes = (length * size_of::<u64>()).next_multiple_of(rustix::param::page_size());
        let words =
            map_pages(map.fd().as_fd(), bytes).map_err(|errno| refused(errno.to_string()))?;
        Ok(Self {
            words,
            length,
            bytes,
            _map: map,
        })
    }

    fn word(&self, cpu: usize, slot: usize) -> Option<&AtomicU64> {
        let index = cpu * KIND_SLOTS + slot;
        if slot >= KIND_SLOTS || index >= self.length {
            return None;
        }
        // SAFETY: within the mapping.
        let word = unsafe { self.words.add(index) };
        // SAFETY: the mapping lives as long as this value; the kernel and other processes write these words, if at all, as whole
        // words.
        Some(unsafe { word.as_ref() })
    }

    /// Counts a record.
    pub(super) fn count(&self, cpu: u32, slot: u16) {
        if let Some(word) = self.word(cpu as usize, usize::from(slot)) {
            // There is one reader: no other writes it.
            word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Records of a kind (by number) and CPU that were read.
    pub(super) fn get(&self, cpu: usize, slot: usize) -> u64 {
        self.word(cpu, slot)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

impl Drop for Consumed {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`; no reference to its words is left. It cannot fail for such a range.
        let _ = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), self.bytes) };
    }
}

fn map_pages(fd: BorrowedFd<'_>, bytes: usize) -> rustix::io::Result<NonNull<AtomicU64>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists. The kernel refuses a length beyond
    // the map's.
    let pages = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            fd,
            0,
        )
    }?;
    NonNull::new(pages.cast()).ok_or(rustix::io::Errno::FAULT)
}
