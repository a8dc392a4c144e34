//! How long to wait before the next try, and how many calls a second: pure, with the time and the randomness given.

use std::collections::VecDeque;

/// The first wait, milliseconds. Source: client-go's reflector (`NewReflector`: 800 ms, factor 2, at most 30 s).
const FIRST_MS: u64 = 800;
/// The longest wait, milliseconds, jitter not counted.
const LONGEST_MS: u64 = 30_000;

/// Doubles from 0.8 s to 30 s, each wait up to a half longer by chance, so that the nodes of a cluster do not ask in
/// step.
#[derive(Debug, Clone)]
pub struct Backoff {
    next_ms: u64,
    random: u64,
}

impl Backoff {
    /// `seed` is different for each process.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            next_ms: FIRST_MS,
            random: seed | 1,
        }
    }

    /// After a failure: how long to wait, milliseconds.
    pub fn wait_ms(&mut self) -> u64 {
        let base = self.next_ms;
        self.next_ms = (base * 2).min(LONGEST_MS);
        // xorshift64: spread is all that is needed of it.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        base + self.random % (base / 2)
    }

    /// The same, and not less than the server has asked for.
    pub fn wait_at_least_ms(&mut self, asked_ms: Option<u64>) -> u64 {
        asked_ms.unwrap_or(0).max(self.wait_ms())
    }

    /// After a success.
    pub const fn reset(&mut self) {
        self.next_ms = FIRST_MS;
    }
}

/// A token bucket.
#[derive(Debug, Clone)]
pub struct Bucket {
    capacity: u64,
    /// One token in so many milliseconds.
    every_ms: u64,
    tokens: u64,
    counted_ms: u64,
}

impl Bucket {
    /// Full.
    #[must_use]
    pub const fn new(capacity: u64, every_ms: u64) -> Self {
        Self {
            capacity,
            every_ms,
            tokens: capacity,
            counted_ms: 0,
        }
    }

    fn fill(&mut self, mono_ms: u64) {
        let new = mono_ms.saturating_sub(self.counted_ms) / self.every_ms;
        self.counted_ms += new * self.every_ms;
        self.tokens = self.tokens.saturating_add(new).min(self.capacity);
    }

    /// Takes one, if there is one.
    pub fn take(&mut self, mono_ms: u64) -> bool {
        self.fill(mono_ms);
        let is_there = self.tokens > 0;
        self.tokens -= u64::from(is_there);
        is_there
    }
}

/// At most so many in any second: stricter than a bucket, which lets its capacity through on top.
#[derive(Debug, Clone)]
pub struct Pace {
    most: usize,
    last_ms: VecDeque<u64>,
}

impl Pace {
    /// None so far.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self {
            most,
            last_ms: VecDeque::new(),
        }
    }

    /// Whether one may go now.
    #[must_use]
    pub fn allows(&self, mono_ms: u64) -> bool {
        let first_ms = self.last_ms.front().copied().unwrap_or(0);
        self.last_ms.len() < self.most || mono_ms >= first_ms + 1000
    }

    /// One goes.
    pub fn count(&mut self, mono_ms: u64) {
        if self.last_ms.len() >= self.most {
            self.last_ms.pop_front();
        }
        self.last_ms.push_back(mono_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_half_a_minute_and_differ() {
        let mut backoff = Backoff::new(7);
        let waits: Vec<u64> = (0..10).map(|_| backoff.wait_ms()).collect();
        for (at, wait) in waits.iter().enumerate() {
            let base = (FIRST_MS << at).min(LONGEST_MS);
            assert!((base..base + base / 2).contains(wait), "{at}: {wait}");
        }
        backoff.reset();
        assert!(backoff.wait_ms() < 2 * FIRST_MS);
        assert_ne!(Backoff::new(7).wait_ms(), Backoff::new(99).wait_ms());
    }

    #[test]
    fn a_bucket_lets_its_capacity_through_and_then_one_at_a_time() {
        let mut bucket = Bucket::new(25, 6_000);
        let taken = (0..12_000).filter(|ms| bucket.take(*ms)).count();
        assert_eq!(taken, 26);
        // What was not taken in a day is no debt.
        let taken = (0..100).filter(|_| bucket.take(86_400_000)).count();
        assert_eq!(taken, 25);
    }

    #[test]
    fn ten_in_any_second() {
        let mut pace = Pace::new(10);
        let mut gone = Vec::new();
        for ms in 0..10_000 {
            // Bursts, pauses, and a steady stream.
            if (ms % 700 < 3 || ms > 5_000) && pace.allows(ms) {
                pace.count(ms);
                gone.push(ms);
            }
        }
        assert!(
            gone.windows(11)
                .all(|window| window[10] - window[0] >= 1_000)
        );
        assert!(gone.len() > 50);
    }
}
