//! What the agent has read, in a map: it goes on counting where the agent before it stopped.
//!
//! One word per kind and CPU, mapped into this process, so that counting a record is one addition and not a system
//! call. The word is raised right after the record was given back to the ring: an agent that is killed between the two
//! leaves that one record uncounted, and the account of its kind and CPU then stays open by one.

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
    words: Words,
    bytes: usize,
    /// Holds the map.
    _map: MapData,
}

/// Words that live elsewhere, and that others may write at the same time.
struct Words {
    start: NonNull<AtomicU64>,
    length: usize,
}

// SAFETY: `Words::new` has the memory to itself but for atomic accesses, and an AtomicU64 may be used from any thread.
unsafe impl Send for Words {}

impl Words {
    /// # Safety
    /// For as long as the value is used, `length` initialised words are at `start`, aligned, and everybody writes them
    /// as whole words.
    const unsafe fn new(start: NonNull<AtomicU64>, length: usize) -> Self {
        Self { start, length }
    }

    fn word(&self, cpu: usize, slot: usize) -> Option<&AtomicU64> {
        let index = cpu.checked_mul(KIND_SLOTS)?.checked_add(slot)?;
        if slot >= KIND_SLOTS || index >= self.length {
            return None;
        }
        // SAFETY: below `length`, so within the memory that `new` was promised.
        let word = unsafe { self.start.add(index) };
        // SAFETY: as promised to `new`: alive, aligned, and written by atomic accesses only.
        Some(unsafe { word.as_ref() })
    }

    fn count(&self, cpu: usize, slot: usize) {
        if let Some(word) = self.word(cpu, slot) {
            // There is one reader: no other writes it.
            word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    fn get(&self, cpu: usize, slot: usize) -> u64 {
        self.word(cpu, slot)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

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
        let start =
            map_pages(map.fd().as_fd(), bytes).map_err(|errno| refused(errno.to_string()))?;
        // SAFETY: the mapping has `bytes`, which is no less than `length` words, begins at a page, and lives until
        // `drop`; the kernel and other processes write these words, if at all, as whole words.
        let words = unsafe { Words::new(start, length) };
        Ok(Self {
            words,
            bytes,
            _map: map,
        })
    }

    /// Counts a record.
    pub(super) fn count(&self, cpu: u32, slot: u16) {
        self.words.count(cpu as usize, usize::from(slot));
    }

    /// Records of a kind (by number) and CPU that were read.
    pub(super) fn get(&self, cpu: usize, slot: usize) -> u64 {
        self.words.get(cpu, slot)
    }
}

impl Drop for Consumed {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`; no reference to its words is left. It cannot fail for such a range.
        let _ = unsafe { rustix::mm::munmap(self.words.start.as_ptr().cast(), self.bytes) };
    }
}

fn map_pages(fd: BorrowedFd<'_>, bytes: usize) -> rustix::io::Result<NonNull<AtomicU64>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists. The kernel refuses a
    // length beyond the map's.
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

/// Also run by Miri (`cargo xtask miri`), which knows no `mmap` of a descriptor: the words are a buffer here, and a
/// thread writes as the kernel would.
#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: usize = 2;

    fn buffer() -> Vec<AtomicU64> {
        std::iter::repeat_with(AtomicU64::default)
            .take(words(CPUS))
            .collect()
    }

    fn of(buffer: &[AtomicU64]) -> Words {
        let start = NonNull::from(buffer).cast();
        // SAFETY: the tests keep the buffer, and share it as atomics.
        unsafe { Words::new(start, buffer.len()) }
    }

    #[test]
    fn each_kind_and_cpu_has_a_word() {
        let buffer = buffer();
        let words = of(&buffer);
        for cpu in 0..CPUS {
            for slot in 0..KIND_SLOTS {
                words.count(cpu, slot);
            }
        }
        words.count(1, 3);
        assert_eq!((words.get(0, 3), words.get(1, 3)), (1, 2));
        assert!(buffer.iter().all(|word| word.load(Ordering::Relaxed) > 0));
    }

    #[test]
    fn numbers_that_no_record_should_have_touch_nothing() {
        let buffer = buffer();
        let words = of(&buffer);
        let wrong = [
            (0, KIND_SLOTS),
            (CPUS, 0),
            (CPUS - 1, KIND_SLOTS),
            (u32::MAX as usize, 0),
            (usize::MAX, usize::from(u16::MAX)),
        ];
        for (cpu, slot) in wrong {
            words.count(cpu, slot);
            assert_eq!(words.get(cpu, slot), 0);
        }
        assert!(buffer.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_word_may_be_written_while_it_is_read() {
        let buffer = buffer();
        let words = of(&buffer);
        let last = words.length - 1;
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=50).for_each(|value| buffer[last].store(value, Ordering::Relaxed)));
            let mut seen = 0;
            while seen < 50 {
                let now = words.get(CPUS - 1, KIND_SLOTS - 1);
                assert!(now >= seen);
                seen = now;
                std::thread::yield_now();
            }
        });
    }
}
