//! Time, as decisions see it: two numbers that the loop reads once a turn. Durations come from the first one, so that a
//! clock that is set does not matter.

use k8s_openapi::jiff::Timestamp;
use plimsoll_core::kube::time::Time;

/// A moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since the program started; never goes back.
    pub mono_ms: u64,
    /// Milliseconds since 1970, by the machine's clock.
    pub unix_ms: u64,
}

fn timestamp(unix_ms: u64) -> Timestamp {
    let ms = i64::try_from(unix_ms).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
}

/// With milliseconds, as annotations have it: `2026-11-22T10:00:00.123Z`.
#[must_use]
pub fn rfc3339_ms(unix_ms: u64) -> String {
    format!("{:.3}", timestamp(unix_ms))
}

/// With whole seconds: `metav1.Time`.
#[must_use]
pub fn rfc3339_s(unix_ms: u64) -> String {
    format!("{:.0}", timestamp(unix_ms))
}

/// With microseconds: `metav1.MicroTime`.
#[must_use]
pub fn rfc3339_us(unix_ms: u64) -> String {
    format!("{:.6}", timestamp(unix_ms))
}

/// Milliseconds since 1970 of a `metav1.Time`; `None` for what is no time.
#[must_use]
pub fn unix_ms_of(text: &str) -> Option<u64> {
    let time = Time::parse(text).ok()?;
    let ms = u64::try_from(time.seconds).ok()?.saturating_mul(1000);
    Some(ms.saturating_add(u64::from(time.nanos / 1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_api_has_them() {
        let ms = 1_795_341_600_123;
        assert_eq!(rfc3339_ms(ms), "2026-11-22T10:00:00.123Z");
        assert_eq!(rfc3339_s(ms), "2026-11-22T10:00:00Z");
        assert_eq!(rfc3339_us(ms), "2026-11-22T10:00:00.123000Z");
        assert_eq!(unix_ms_of("2026-11-22T10:00:00Z"), Some(ms - 123));
        assert_eq!(unix_ms_of("yesterday"), None);
        // A clock that is wrong makes no panic.
        assert!(!rfc3339_ms(u64::MAX).is_empty());
    }
}
