//! How far what runs is: a line every ten seconds while nothing else is said.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::progress::say;

/// No longer silence than this.
const EVERY: Duration = Duration::from_secs(10);

/// What runs now, each with how far it is.
#[derive(Debug, Default)]
pub(super) struct Board {
    lines: Mutex<Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    started: Instant,
    progress: String,
}

/// A stage's line on the board; gone when dropped.
#[derive(Debug)]
pub(super) struct Line<'board> {
    board: &'board Board,
    name: String,
}

impl Board {
    fn lines(&self) -> MutexGuard<'_, Vec<Entry>> {
        match self.lines.lock() {
            Ok(lines) => lines,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// A line for a stage that begins. Names are different.
    pub(super) fn line(&self, name: &str) -> Line<'_> {
        self.lines().push(Entry {
            name: name.to_owned(),
            started: Instant::now(),
            progress: String::new(),
        });
        Line {
            board: self,
            name: name.to_owned(),
        }
    }

    /// What there is to say now.
    fn shown(&self) -> Vec<String> {
        let shown = |entry: &Entry| {
            let Entry {
                name,
                started,
                progress,
            } = entry;
            let since = super::minutes(started.elapsed());
            match progress.as_str() {
                "" => format!("{name} ({since})"),
                progress => format!("{name}: {progress} ({since})"),
            }
        };
        self.lines().iter().map(shown).collect()
    }

    /// Says how far everything is while `work` is done.
    pub(super) fn watch<T>(&self, work: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            let (done, is_done) = mpsc::channel::<()>();
            scope.spawn(move || {
                while is_done.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    for line in self.shown() {
                        say("running", line);
                    }
                }
            });
            let result = work();
            drop(done);
            result
        })
    }
}

impl Line<'_> {
    /// How far it is now.
    pub(super) fn say(&self, progress: impl Into<String>) {
        let mut lines = self.board.lines();
        if let Some(entry) = lines.iter_mut().find(|entry| entry.name == self.name) {
            entry.progress = progress.into();
        }
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.board.lines().retain(|entry| entry.name != self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_shown_with_how_far_it_is_and_what_has_ended_is_not() {
        let board = Board::default();
        let (clippy, guest) = (board.line("clippy"), board.line("guest 6.1"));
        guest.say("3 of 40 tests");
        assert_eq!(
            board.shown(),
            ["clippy (0 s)", "guest 6.1: 3 of 40 tests (0 s)"]
        );
        drop(clippy);
        assert_eq!(board.shown(), ["guest 6.1: 3 of 40 tests (0 s)"]);
        drop(guest);
        assert!(board.shown().is_empty());
        assert_eq!(board.watch(|| 7), 7);
    }
}
