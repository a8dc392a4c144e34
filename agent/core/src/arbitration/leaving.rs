//! Which of the pods that are being deleted make room (docs/decisions/0066-pods-that-leave-for-long.md).
//!
//! A plan takes a pod that is leaving for room that will soon be there, and its namespace does not use it any more. A deletion does not say that it is soon: its owner chose how long a pod may take.

/// So far off, in milliseconds, the end of a pod that leaves may be; and for so long past it the pod may still be there.
pub const SOON_MS: u64 = 60_000;

/// What the deletion of a pod comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// It is not being deleted.
    No,
    /// It will be gone soon.
    Soon,
    /// Its end is further off: it uses what it requests, and can be made to end sooner.
    Later,
    /// It should have ended a while ago: it uses what it requests, and no eviction would end it.
    Hangs,
}

impl Leaving {
    /// Of a pod on a node, whose `deletionTimestamp` (the end of its grace period, as the API server has it) is this, in milliseconds since 1970 as the time that it is now.
    #[must_use]
    pub const fn of(end_unix_ms: Option<u64>, now_unix_ms: u64) -> Self {
        let Some(end) = end_unix_ms else {
            return Self::No;
        };
        if end > now_unix_ms.saturating_add(SOON_MS) {
            Self::Later
        } else if now_unix_ms > end.saturating_add(SOON_MS) {
            Self::Hangs
        } else {
            Self::Soon
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soon_is_a_minute_before_and_after_the_end() {
        let of = |end| Leaving::of(Some(end), 100_000);
        assert_eq!(Leaving::of(None, 100_000), Leaving::No);
        assert_eq!(of(160_001), Leaving::Later);
        assert_eq!(of(160_000), Leaving::Soon);
        assert_eq!(of(40_000), Leaving::Soon);
        assert_eq!(of(39_999), Leaving::Hangs);
        assert_eq!(of(u64::MAX), Leaving::Later);
    }
}
