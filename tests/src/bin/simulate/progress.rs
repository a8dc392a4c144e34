//! How far the program is, on standard error, at least every ten seconds: to fail each call of a run takes more than an
//! hour.
//!
//! The lines look as cargo's do, so that `cargo xtask test` does not take them for what a failed run has said last.

use std::os::fd::AsRawFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::kernel;

const EVERY: Duration = Duration::from_secs(10);

/// What is being done, and what was said of it last. The program itself has one thread.
static NOW: Mutex<Option<Progress>> = Mutex::new(None);

struct Progress {
    began: Instant,
    said: Instant,
    what: String,
    done: u64,
    of: usize,
}

impl Progress {
    fn line(&self) -> String {
        let Self { what, done, of, .. } = self;
        let seconds = self.began.elapsed().as_secs();
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        format!("     Running {what}: {done} of {of}, {minutes} min {seconds} s")
    }
}

fn now() -> MutexGuard<'static, Option<Progress>> {
    NOW.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on this is done, so many times. When the next line is due does not depend on it.
pub(crate) fn begin(what: impl Into<String>, of: usize) {
    let mut now = now();
    let at = Instant::now();
    *now = Some(Progress {
        began: at,
        said: now.as_ref().map_or(at, |before| before.said),
        what: what.into(),
        done: 0,
        of,
    });
}

/// It has been done once more.
pub(crate) fn did_one() {
    if let Some(progress) = now().as_mut() {
        progress.done += 1;
    }
    say_if_due();
}

/// Says the line if it is due. Returns the time to the next one.
fn say_if_due() -> Duration {
    let mut now = now();
    let Some(progress) = now.as_mut() else {
        return EVERY;
    };
    let rest = EVERY.saturating_sub(progress.said.elapsed());
    if rest.is_zero() {
        progress.said = Instant::now();
        eprintln!("{}", progress.line());
        return EVERY;
    }
    rest
}

/// Waits until a run has something to say, or has ended.
pub(crate) fn wait_for(run: &std::fs::File) {
    loop {
        let rest = say_if_due();
        let mut poll = libc::pollfd {
            fd: run.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut timeout = libc::timespec {
            tv_sec: i64::try_from(rest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(rest.subsec_nanos()),
        };
        let arguments = [
            &raw mut poll as usize,
            1,
            &raw mut timeout as usize,
            0,
            0,
            0,
        ];
        // SAFETY: one descriptor and one time, which live for the call; the kernel may write what is left of the time.
        if unsafe { kernel::raw(libc::SYS_ppoll, arguments) } != 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is() {
        let began = Instant::now()
            .checked_sub(Duration::from_secs(125))
            .unwrap();
        let progress = Progress {
            began,
            said: began,
            what: "faults of brief".to_owned(),
            done: 3,
            of: 70,
        };
        let line = progress.line();
        assert!(
            line.starts_with("     Running faults of brief: 3 of 70, 2 min"),
            "{line}"
        );
    }

    #[test]
    fn the_next_line_is_due_ten_seconds_after_the_one_before() {
        begin("a", 2);
        let rest = say_if_due();
        assert!(rest > Duration::ZERO && rest <= EVERY);
        let long_ago = Instant::now().checked_sub(EVERY).unwrap();
        now().as_mut().unwrap().said = long_ago;
        // What is done changes, and the line is due all the same.
        begin("b", 5);
        did_one();
        let mut now = now();
        let progress = now.as_mut().unwrap();
        assert!(progress.said > long_ago);
        assert_eq!((progress.done, progress.of), (1, 5));
    }
}
