//! The clock that decides: CLOCK_MONOTONIC, by which the kernel stamps its records and the engine reckons. And what
//! others show.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot, suspended time left out (CLOCK_MONOTONIC).
#[must_use]
pub fn now_ns() -> u64 {
    reading_ns(ClockId::Monotonic)
}

/// What another clock shows, in nanoseconds.
#[must_use]
pub fn reading_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // None of the clocks that are read here is ever negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// CPU time that this process has used.
#[must_use]
pub fn cpu_time() -> Duration {
    Duration::from_nanos(reading_ns(ClockId::ProcessCPUTime))
}

/// Time since 1970 by the machine's clock, for people to read and for the API. A clock before 1970 has no figure: zero.
#[must_use]
pub fn wall() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Rest after a piece of work, as a multiple of what it took.
const REST_PER_WORK: u64 = 9;
/// But not more than this.
const REST_MAX_NS: u64 = 1_000_000_000;

/// When work that can be asked for at any rate may begin again, so that it takes at most a tenth of the loop's time.
#[must_use]
pub fn rest_until_ns(began_ns: u64, ended_ns: u64) -> u64 {
    let took_ns = ended_ns.saturating_sub(began_ns);
    ended_ns + took_ns.saturating_mul(REST_PER_WORK).min(REST_MAX_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_the_kernels_and_does_not_go_back() {
        let first_ns = now_ns();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime_s: f64 = uptime.split_whitespace().next().unwrap().parse().unwrap();
        let second_ns = now_ns();
        assert!(first_ns <= second_ns);
        // /proc/uptime counts suspended time too, so it is the later one; it is written in hundredths of a second.
        assert!(first_ns as f64 / 1e9 <= uptime_s + 0.01);
    }

    #[test]
    fn work_that_is_asked_for_again_and_again_takes_a_tenth_of_the_time() {
        const MS: u64 = 1_000_000;
        assert_eq!(rest_until_ns(1000 * MS, 1007 * MS), 1070 * MS);
        let held_up_by_something_else = rest_until_ns(2000 * MS, 9000 * MS);
        assert_eq!(held_up_by_something_else, 10_000 * MS);
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let before = cpu_time();
        let mut sum = 0_u64;
        while cpu_time() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_time() > before);
    }
}
