//! How fast CPU time goes: the mean since an earlier request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A reading is compared with until one is so much newer: the mean is over at least this long once there is one,
/// however often it is asked.
const RENEWED_AFTER: Duration = Duration::from_secs(2);
/// A mean over less than this says more about ticks than about the cgroup.
const SHORTEST: Duration = Duration::from_millis(50);
/// After so long without a request for it, a cgroup is taken to be gone.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    usage_ns: u64,
}

/// The last two readings of a cgroup that are far enough apart.
#[derive(Debug)]
struct Known {
    before: Option<Reading>,
    last: Reading,
    seen: Instant,
}

/// By cgroup.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<BTreeMap<PathBuf, Known>>);

impl Rates {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Known>> {
        // A map of numbers is as good after a panic as before.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a reading and says the mean since an earlier one, in billionths of a CPU.
    pub(super) fn nano_cores(&self, cgroup: &Path, at: Instant, usage_ns: u64) -> Option<u64> {
        let new = Reading { at, usage_ns };
        let mut all = self.lock();
        let known = all.entry(cgroup.to_owned()).or_insert(Known {
            before: None,
            last: new,
            seen: at,
        });
        known.seen = at;
        if usage_ns < known.last.usage_ns {
            // Another cgroup of the same name.
            known.before = None;
            known.last = new;
        }
        if at.saturating_duration_since(known.last.at) >= RENEWED_AFTER {
            known.before = Some(std::mem::replace(&mut known.last, new));
        }
        let since = known.before.unwrap_or(known.last);
        let time = at.saturating_duration_since(since.at);
        if time < SHORTEST {
            return None;
        }
        let used = u128::from(usage_ns - since.usage_ns);
        u64::try_from(used * 1_000_000_000 / time.as_nanos()).ok()
    }

    /// Lets go of cgroups that no client has asked about for long.
    pub(super) fn forget_old(&self) {
        self.lock()
            .retain(|_, known| known.seen.elapsed() < FORGOTTEN_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_mean_since_an_earlier_request() {
        let rates = Rates::default();
        let start = Instant::now();
        let at = |ms, usage_ms: u64| {
            let at = start + Duration::from_millis(ms);
            rates.nano_cores(Path::new("a"), at, usage_ms * 1_000_000)
        };
        assert_eq!(at(0, 100), None);
        assert_eq!(at(10, 110), None, "too short");
        assert_eq!(at(100, 150), Some(500_000_000));
        // Since the first, which is then replaced.
        assert_eq!(at(2000, 2100), Some(1_000_000_000));
        assert_eq!(at(3000, 2100), Some(666_666_666), "since the first still");
        // The reading at 2000 ms is old enough: since it from now on.
        assert_eq!(at(4000, 4100), Some(1_000_000_000));
        assert_eq!(at(4100, 4100), Some(952_380_952));
        // A new cgroup of that name.
        assert_eq!(at(5000, 1), None);
        assert_eq!(at(5100, 51), Some(500_000_000));
    }
}
