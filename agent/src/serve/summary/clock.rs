//! Times as the Kubernetes API writes them: RFC 3339, UTC, whole seconds.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use plimsoll_core::kube::time;
use serde::{Serialize, Serializer};

use crate::host::clock::{now_ns, wall};

/// A time since 1970. Zero is a time that is not known, and `null`, as a `metav1.Time` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(pub Duration);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_zero() {
            serializer.serialize_none()
        } else {
            serializer.serialize_str(&text_of_seconds(self.0.as_secs()))
        }
    }
}

/// The time of a request, by both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    wall: Duration,
    monotonic: Duration,
}

impl Clock {
    pub(super) fn now() -> Self {
        Self {
            wall: wall(),
            monotonic: Duration::from_nanos(now_ns()),
        }
    }

    pub(super) fn time(&self) -> Time {
        Time(self.wall)
    }

    /// Of a CLOCK_MONOTONIC time.
    pub(super) fn time_of(&self, at_ns: u64) -> Time {
        let ago = self.monotonic.saturating_sub(Duration::from_nanos(at_ns));
        Time(self.wall.saturating_sub(ago))
    }

    /// When a cgroup was made or got its newest child, which is what cAdvisor calls its creation; `None` if it is not
    /// there.
    pub(super) fn made(&self, dir: &Path) -> Option<Time> {
        let modified = std::fs::metadata(dir).ok()?.modified().ok()?;
        Some(Time(
            modified.duration_since(UNIX_EPOCH).unwrap_or_default(),
        ))
    }
}

/// Seconds since 1970 as `2026-11-22T03:45:45Z`.
fn text_of_seconds(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    time::Time { seconds, nanos: 0 }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        // As `date -u -d @SECONDS +%FT%TZ` says.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(text_of_seconds(seconds), text);
        }
    }

    #[test]
    fn monotonic_times_are_as_long_ago_on_the_wall() {
        let clock = Clock {
            wall: Duration::from_secs(951_782_400),
            monotonic: Duration::from_secs(100),
        };
        let text = |time: Time| serde_json::to_value(time).unwrap();
        assert_eq!(text(clock.time_of(99_000_000_000)), "2000-02-28T23:59:59Z");
        assert_eq!(clock.time(), clock.time_of(101_000_000_000));
        assert_eq!(text(Time::default()), serde_json::Value::Null);
    }
}
