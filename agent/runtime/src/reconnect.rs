//! When to connect to a container runtime again, after a connection has ended.

use std::time::Duration;

use plimsoll_core::protocol::backoff::Backoff;

/// A runtime to which there is no connection is away or starts: what it makes before it is listened to is made without.
/// To try costs one call of the system.
const AWAY: Duration = Duration::from_millis(500);
/// A connection that was of use for so long has not failed: the next one is another.
const LASTING: Duration = Duration::from_secs(10);

/// Counts the connections that failed soon, one after the other.
#[derive(Debug)]
pub(crate) struct Reconnect(Backoff);

impl Reconnect {
    /// After the first such failure `first`, and at most `longest`.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self(Backoff::new(first, longest))
    }

    /// How long to wait. `is_away`: nothing answered at the socket. `lasted`: how long the connection was of use, if it
    /// was at all.
    pub(crate) fn pause(&mut self, is_away: bool, lasted: Option<Duration>) -> Duration {
        if is_away || lasted.is_some_and(|lasted| lasted >= LASTING) {
            self.0.reset();
        }
        match is_away {
            true => AWAY,
            false => self.0.failed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_soon_is_tried_less_and_less_often() {
        let seconds = Duration::from_secs;
        let mut again = Reconnect::new(seconds(1), seconds(60));
        assert_eq!(again.pause(false, None), seconds(1));
        assert_eq!(again.pause(false, Some(seconds(9))), seconds(2));
        assert_eq!(again.pause(false, Some(LASTING)), seconds(1));
        assert_eq!(again.pause(false, None), seconds(2));
        assert_eq!(again.pause(true, None), AWAY);
        assert_eq!(again.pause(false, None), seconds(1));
    }
}
