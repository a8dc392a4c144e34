//! Whether the API server answers.

use crate::clock::Now;

/// Errors alone for so long make it unreachable, milliseconds.
const LOST_AFTER_MS: u64 = 5_000;

/// What is known of it. Before the first word it counts as unreachable, and nothing is said about that.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    missed_since_ms: Option<u64>,
    is_reachable: bool,
}

impl Reach {
    /// It said something. Returns whether that is new.
    pub(crate) fn heard(&mut self) -> bool {
        self.missed_since_ms = None;
        !std::mem::replace(&mut self.is_reachable, true)
    }

    /// It did not.
    pub(crate) fn missed(&mut self, now: Now) {
        self.missed_since_ms.get_or_insert(now.mono_ms);
    }

    /// Whether it has just become unreachable.
    pub(crate) fn note_loss(&mut self, now: Now) -> bool {
        let since = self.missed_since_ms;
        let is_lost = since.is_some_and(|since| now.mono_ms.saturating_sub(since) >= LOST_AFTER_MS);
        is_lost && std::mem::replace(&mut self.is_reachable, false)
    }

    /// Whether it answers.
    pub(crate) const fn is_reachable(&self) -> bool {
        self.is_reachable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_seconds_of_errors_alone_make_it_unreachable() {
        let now = |mono_ms| Now {
            mono_ms,
            unix_ms: 0,
        };
        let mut reach = Reach::default();
        assert!(reach.heard() && !reach.heard());
        reach.missed(now(1_000));
        reach.missed(now(5_000));
        assert!(!reach.note_loss(now(5_999)) && reach.is_reachable());
        assert!(reach.note_loss(now(6_000)) && !reach.note_loss(now(7_000)));
        assert!(reach.heard());
        reach.missed(now(9_000));
        reach.heard();
        assert!(!reach.note_loss(now(20_000)));
    }
}
