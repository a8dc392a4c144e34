//! Anonymous memory: grown, held, given back.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use memmap2::MmapOptions;
use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use rustix::thread::{CpuSet, sched_setaffinity};

use plimsoll::host::syscall::free_lazily_and_write;
use tests::guest::clock::now_ns;

use super::{Log, STEP, files};

pub(crate) const PAGE_BYTES: usize = 4096;
/// Larger than what malloc ever serves from its heap (32 MiB), so that each block is a mapping of its own, untouched
/// and zero.
pub(crate) const BLOCK_BYTES: usize = 64 << 20;

/// So much is freed lazily at a time; a block is a multiple of it.
const LAZY_BYTES: usize = 8 << 20;

/// Anonymous memory that is mapped in blocks and touched page by page.
#[derive(Default)]
pub(crate) struct Memory {
    blocks: Vec<Vec<u8>>,
    touched_bytes: usize,
    noise: Option<Noise>,
    /// What of it was freed lazily and written again, where it is at all.
    freed_lazily_bytes: Option<usize>,
}

/// A generator (xorshift64) whose numbers have no pattern that a compressor finds.
struct Noise(u64);

impl Noise {
    fn fill(&mut self, page: &mut [u8]) {
        for word in page.chunks_exact_mut(size_of::<u64>()) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_ne_bytes());
        }
    }
}

impl Memory {
    /// Its pages do not compress.
    pub(crate) fn of_noise() -> Self {
        Self {
            noise: Some(Noise(0x9e37_79b9_7f4a_7c15)),
            ..Self::default()
        }
    }

    /// Each part of it is freed lazily as soon as it is there, and written again.
    pub(crate) fn freed_lazily() -> Self {
        Self {
            freed_lazily_bytes: Some(0),
            ..Self::default()
        }
    }

    pub(crate) fn grow_to(&mut self, bytes: usize) {
        while self.touched_bytes < bytes {
            let offset = self.touched_bytes % BLOCK_BYTES;
            if self.touched_bytes / BLOCK_BYTES == self.blocks.len() {
                self.blocks.push(vec![0; BLOCK_BYTES]);
            }
            if let Some(block) = self.blocks.last_mut() {
                match &mut self.noise {
                    Some(noise) => noise.fill(&mut block[offset..offset + PAGE_BYTES]),
                    None => block[offset] = 1,
                }
            }
            self.touched_bytes += PAGE_BYTES;
            self.free_lazily();
        }
    }

    fn free_lazily(&mut self) {
        let Some(freed_bytes) = &mut self.freed_lazily_bytes else {
            return;
        };
        if self.touched_bytes < *freed_bytes + LAZY_BYTES {
            return;
        }
        let offset = *freed_bytes % BLOCK_BYTES;
        let block = &mut self.blocks[*freed_bytes / BLOCK_BYTES];
        if let Err(error) = free_lazily_and_write(&mut block[offset..offset + LAZY_BYTES]) {
            eprintln!("hog: {error}");
        }
        *freed_bytes += LAZY_BYTES;
    }

    pub(crate) fn touched_mb(&self) -> u64 {
        (self.touched_bytes >> 20) as u64
    }
}

/// Grows at a rate. `is_steady`: it makes up for no time in which it could not.
pub(crate) fn ramp(
    memory: &mut Memory,
    rate_mb_s: u64,
    max_bytes: Option<usize>,
    is_steady: bool,
    log: &Log,
) {
    let base_bytes = memory.touched_bytes;
    let (mut looked, mut passed) = (Instant::now(), Duration::ZERO);
    log.event("start", memory.touched_mb());
    let mut told_bytes = base_bytes;
    loop {
        let since = looked.elapsed();
        looked += since;
        passed += if is_steady {
            since.min(2 * STEP)
        } else {
            since
        };
        let grown_bytes = u128::from(rate_mb_s << 20) * passed.as_micros() / 1_000_000;
        let want_bytes =
            base_bytes.saturating_add(usize::try_from(grown_bytes).unwrap_or(usize::MAX));
        memory.grow_to(max_bytes.map_or(want_bytes, |max| want_bytes.min(max)));
        if memory.touched_bytes - told_bytes >= 256 << 20 {
            told_bytes = memory.touched_bytes;
            log.event("at", memory.touched_mb());
        }
        if max_bytes.is_some_and(|max| memory.touched_bytes >= max) {
            log.goal(memory.touched_mb());
            return;
        }
        thread::sleep(STEP);
    }
}

/// Holds `bytes` for a while, gives them back for a while, and so on. The amount in the log is the round.
pub(crate) fn flap(bytes: usize, half: Duration, log: &Log) -> ! {
    for round in 0_u64.. {
        let mut memory = Memory::default();
        memory.grow_to(bytes);
        log.event("at", round);
        thread::sleep(half);
        drop(memory);
        thread::sleep(half);
    }
    unreachable!("u64 has more rounds than the machine has time")
}

/// Takes memory, gives it back at once, and says how long that took.
pub(crate) fn unmap(mb: usize, shared: bool) -> anyhow::Result<()> {
    let ns = if shared {
        time_of_drop(files::memfd(mb)?)
    } else {
        let mut memory = Memory::default();
        memory.grow_to(mb << 20);
        time_of_drop(memory)
    };
    println!(r#"{{"bytes":{},"ns":{ns}}}"#, mb << 20);
    Ok(())
}

fn time_of_drop<T>(held: T) -> u64 {
    let before_ns = now_ns();
    drop(held);
    now_ns() - before_ns
}

/// Memory is taken from the node of the CPU that touches it first, unless that node is full. A binding without that
/// exception is the pod's `cpuset.mems`.
pub(crate) fn run_on_numa_node(node: u32) -> anyhow::Result<()> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let list = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let mut cpus = CpuSet::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for cpu in first.parse::<usize>()?..=last.parse()? {
            cpus.set(cpu);
        }
    }
    ensure!(cpus.count() > 0, "NUMA node {node} has no CPU");
    sched_setaffinity(None, &cpus).context("choosing CPUs")
}

/// The calling thread runs on one CPU only, as those that it starts do.
pub(crate) fn stay_on(cpu: usize) -> anyhow::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).with_context(|| format!("staying on CPU {cpu}"))
}

/// Locks and unlocks all memory, for ever. The kernel goes over all pages for each, with `mmap_lock` held.
pub(crate) fn hold_lock() -> anyhow::Result<()> {
    loop {
        mlockall(MlockAllFlags::CURRENT).context("locking memory")?;
        munlockall().context("unlocking memory")?;
    }
}

/// Asks so often for 64 TiB of huge pages.
pub(crate) fn request_huge_pages(count: u32) -> anyhow::Result<()> {
    let mut request = MmapOptions::new();
    request.len(1 << 46).huge(None);
    for _ in 0..count {
        ensure!(request.map_anon().is_err(), "the machine has them");
    }
    Ok(())
}
