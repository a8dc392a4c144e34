//! How long a program waits before it tries the other end again. The time itself is the caller's.

use std::time::Duration;

/// Pauses after failures: each is twice as long as the one before, up to a longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Without a failure so far.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// After a failure: how long to wait.
    pub fn failed(&mut self) -> Duration {
        let factor = 2_u32.saturating_pow(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// Failures since the last success.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// After a success.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let pauses = |backoff: &mut Backoff, count: u32| -> Vec<u64> {
            (0..count).map(|_| backoff.failed().as_secs()).collect()
        };
        assert_eq!(pauses(&mut backoff, 8), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses(&mut backoff, 100)[99], 60);
        backoff.reset();
        assert_eq!(backoff.failures(), 0);
        assert_eq!(pauses(&mut backoff, 2), [1, 2]);
        assert_eq!(backoff.failures(), 2);
    }
}
