//! Which of the pods that are being deleted make room (docs/decisions/0066-pods-that-leave-for-long.md).
//!
//! A plan takes a pod that is leaving for room that will soon be there, and its namespace does not use it any more. A
//! deletion does not say that it is soon: its owner chose how long a pod may take.

/// So long a pod that leaves may take, seconds: more is cut when it is evicted.
pub const GRACE_MAX_S: u64 = 600;
/// So long past its time, milliseconds, the pod may still be there.
const LATE_MS: u64 = 30_000;

/// What the deletion of a pod comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// It is not being deleted.
    No,
    /// It will be gone soon.
    Soon,
    /// It may take longer than [`GRACE_MAX_S`]: it uses what it requests, and can be made to end sooner.
    Later,
    /// It should have ended a while ago: it uses what it requests, and no eviction would end it.
    Hangs,
}

impl Deletion {
    /// Of a pod on a node that is being deleted since so many milliseconds, and may take so many seconds.
    #[must_use]
    pub const fn of(grace_s: u64, since_ms: u64) -> Self {
        if grace_s > GRACE_MAX_S {
            Self::Later
        } else if since_ms < grace_s * 1000 + LATE_MS {
            Self::Soon
        } else {
            Self::Hangs
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soon_is_ten_minutes_and_half_a_minute_past_the_time() {
        assert_eq!(Deletion::of(600, 0), Deletion::Soon);
        assert_eq!(Deletion::of(600, 629_999), Deletion::Soon);
        assert_eq!(Deletion::of(600, 630_000), Deletion::Hangs);
        assert_eq!(Deletion::of(0, 29_999), Deletion::Soon);
        assert_eq!(Deletion::of(601, 0), Deletion::Later);
        assert_eq!(Deletion::of(u64::MAX, u64::MAX), Deletion::Later);
    }
}
