//! What the commands say while they work.
//!
//! Progress goes to stderr, so that stdout carries only what a command is asked for (a table, a guest's console, the
//! summary of the tests). [`say`] prints one line for one thing. A [`Step`] is something that takes a while: it says
//! how far it is, so that no step is silent for more than ten seconds, whatever it waits for.
//!
//! Two ways to show steps: on a terminal one line, rewritten each half second; in a log a line for each step every ten
//! seconds.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A step in a log says this often how far it is.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// The line on a terminal is rewritten this often.
const REWRITE_EVERY: Duration = Duration::from_millis(500);
/// Steps that take no longer end without a line of their own.
const SHORT: Duration = Duration::from_secs(2);
/// Width of a terminal line: nothing here asks the terminal for its own.
const WIDTH: usize = 79;

/// Prints one line: the part of the work, then what it is doing.
pub(crate) fn say(part: &str, doing: impl Display) {
    board().line(&format!("{part:>12}  {doing}"));
}

/// Prints lines of somebody else's, such as a log.
pub(crate) fn show(lines: &str) {
    board().line(lines);
}

/// Nobody else says anything from now on: for the end of this process.
pub(crate) fn last_words() -> LastWords {
    let mut board = board();
    board.clear();
    board.steps.clear();
    LastWords(board)
}

/// See [`last_words`].
pub(crate) struct LastWords(MutexGuard<'static, Board>);

impl LastWords {
    /// As [`say`].
    pub(crate) fn say(&mut self, part: &str, doing: impl Display) {
        self.0.line(&format!("{part:>12}  {doing}"));
    }
}

/// A time as one says it: `40 s`, `3 min 20 s`.
pub(crate) fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

/// Prints a line of a command's result to stdout, past the line on the terminal that shows progress.
pub(crate) fn print(line: &str) {
    let mut board = board();
    board.clear();
    // A closed stdout (a pager that ended) must not stop the work.
    let _closed = writeln!(io::stdout(), "{line}");
    board.redraw(Instant::now());
}

/// How far a step is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// So many are done.
    pub(crate) done: u64,
    /// Of so many, where that is known.
    pub(crate) total: Option<u64>,
    /// What is counted: `crates`, `MB`, `tests`.
    pub(crate) unit: &'static str,
    /// What is being done just now, if there is a word for it.
    pub(crate) now: String,
}

impl Progress {
    /// Nothing that could be counted.
    pub(crate) fn doing(now: impl Into<String>) -> Self {
        Self {
            now: now.into(),
            ..Self::default()
        }
    }

    fn text(&self) -> String {
        let count = match self.total {
            Some(total) => format!("{} of {total} {}", self.done, self.unit),
            None if self.unit.is_empty() => String::new(),
            None => format!("{} {}", self.done, self.unit),
        };
        match (count.is_empty(), self.now.is_empty()) {
            (_, true) => count,
            (true, false) => self.now.clone(),
            (false, false) => format!("{count} ({})", self.now),
        }
    }
}

/// Something that takes a while. Dropping it ends it, without a line when it was short or failed.
#[derive(Debug)]
pub(crate) struct Step {
    id: u64,
}

impl Step {
    /// Begins a step, and says so: the part of the work, then what it is doing.
    pub(crate) fn begin(part: &str, doing: impl Display) -> Self {
        static TICKER: OnceLock<()> = OnceLock::new();
        TICKER.get_or_init(|| {
            thread::spawn(|| {
                loop {
                    thread::sleep(REWRITE_EVERY);
                    board().tick(Instant::now());
                }
            });
        });
        let mut board = board();
        let id = board.begin(part, &doing.to_string(), Instant::now());
        Self { id }
    }

    /// Says how far it is.
    pub(crate) fn at(&self, progress: Progress) {
        if let Some(state) = board().find(self.id) {
            state.progress = progress;
        }
    }

    /// Ends a step that succeeded; one that was not short says how long it took.
    pub(crate) fn done(self) {
        let mut board = board();
        let Some(state) = board.find(self.id) else {
            return;
        };
        let took = state.began.elapsed();
        if took >= SHORT {
            let line = format!(
                "{:>12}  {}: done in {}",
                state.part,
                state.doing,
                minutes(took)
            );
            board.line(&line);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        board().end(self.id);
    }
}

/// All steps that are under way, and where they are shown.
struct Board {
    terminal: bool,
    steps: Vec<State>,
    next_id: u64,
    /// A line on the terminal is to be rewritten.
    drawn: bool,
    out: Box<dyn io::Write + Send>,
}

struct State {
    id: u64,
    part: String,
    doing: String,
    began: Instant,
    said: Instant,
    progress: Progress,
}

impl State {
    fn text(&self, now: Instant) -> String {
        let progress = self.progress.text();
        let separator = if progress.is_empty() { "" } else { ", " };
        let took = minutes(now.saturating_duration_since(self.began));
        format!("{}: {progress}{separator}{took}", self.doing)
    }
}

fn board() -> MutexGuard<'static, Board> {
    static BOARD: OnceLock<Mutex<Board>> = OnceLock::new();
    BOARD
        .get_or_init(|| {
            // A dumb terminal cannot rewrite a line.
            let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
            let terminal = io::stderr().is_terminal() && !dumb;
            Mutex::new(Board::new(terminal, Box::new(io::stderr())))
        })
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    fn new(terminal: bool, out: Box<dyn io::Write + Send>) -> Self {
        Self {
            terminal,
            steps: Vec::new(),
            next_id: 0,
            drawn: false,
            out,
        }
    }

    fn begin(&mut self, part: &str, doing: &str, now: Instant) -> u64 {
        self.line(&format!("{part:>12}  {doing}"));
        self.next_id += 1;
        self.steps.push(State {
            id: self.next_id,
            part: part.to_owned(),
            doing: doing.to_owned(),
            began: now,
            said: now,
            progress: Progress::default(),
        });
        self.next_id
    }

    fn find(&mut self, id: u64) -> Option<&mut State> {
        self.steps.iter_mut().find(|state| state.id == id)
    }

    fn end(&mut self, id: u64) {
        self.clear();
        self.steps.retain(|state| state.id != id);
        self.redraw(Instant::now());
    }

    fn tick(&mut self, now: Instant) {
        if self.terminal {
            self.redraw(now);
            return;
        }
        let mut lines = Vec::new();
        for state in &mut self.steps {
            if now.saturating_duration_since(state.said) >= LOG_EVERY {
                state.said = now;
                lines.push(format!("{:>12}  {}", state.part, state.text(now)));
            }
        }
        for line in lines {
            self.line(&line);
        }
    }

    /// A whole line, above the one that is rewritten.
    fn line(&mut self, line: &str) {
        self.clear();
        // Progress is a courtesy: a closed stderr must not stop the work.
        let _closed = writeln!(self.out, "{line}");
        self.redraw(Instant::now());
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _closed = write!(self.out, "\r\x1b[K").and_then(|()| self.out.flush());
        }
    }

    fn redraw(&mut self, now: Instant) {
        if !self.terminal || self.steps.is_empty() {
            return;
        }
        let texts: Vec<String> = self.steps.iter().map(|state| state.text(now)).collect();
        let text: String = format!("{:>12}  {}", "", texts.join(" | "))
            .chars()
            .take(WIDTH)
            .collect();
        self.drawn = true;
        let _closed = write!(self.out, "\r\x1b[K{text}").and_then(|()| self.out.flush());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Written {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
        }
    }

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn board(terminal: bool) -> (Board, Written) {
        let written = Written::default();
        (Board::new(terminal, Box::new(written.clone())), written)
    }

    fn crates(done: u64) -> Progress {
        Progress {
            done,
            total: Some(233),
            unit: "crates",
            now: "tokio".to_owned(),
        }
    }

    #[test]
    fn a_log_has_a_line_for_each_step_every_ten_seconds() {
        let (mut board, written) = board(false);
        let start = Instant::now();
        let second = |seconds| start + Duration::from_secs(seconds);
        let build = board.begin("guest", "building the agent", start);
        let fetch = board.begin("kernel", "6.12", second(4));
        board.find(build).unwrap().progress = crates(34);
        written.take();
        board.tick(second(9));
        assert_eq!(written.take(), "");
        board.tick(second(10));
        assert_eq!(
            written.take(),
            "       guest  building the agent: 34 of 233 crates (tokio), 10 s\n"
        );
        board.tick(second(15));
        assert_eq!(written.take(), "      kernel  6.12: 11 s\n");
        board.end(fetch);
        board.tick(second(20));
        assert_eq!(
            written.take(),
            "       guest  building the agent: 34 of 233 crates (tokio), 20 s\n"
        );
    }

    #[test]
    fn a_terminal_has_one_line_that_other_lines_do_not_break() {
        let (mut board, written) = board(true);
        let start = Instant::now();
        let build = board.begin("guest", "building the agent", start);
        board.find(build).unwrap().progress = crates(34);
        written.take();
        board.tick(start + Duration::from_secs(3));
        assert_eq!(
            written.take(),
            "\r\x1b[K              building the agent: 34 of 233 crates (tokio), 3 s"
        );
        board.line("a line");
        let after = written.take();
        assert!(
            after.starts_with("\r\x1b[Ka line\n\r\x1b[K   "),
            "{after:?}"
        );
        board.end(build);
        assert_eq!(written.take(), "\r\x1b[K");
        board.line("the end");
        assert_eq!(written.take(), "the end\n");
    }

    #[test]
    fn a_terminal_line_does_not_wrap() {
        let (mut board, written) = board(true);
        for part in ["guest", "kernel", "bpf-linker"] {
            board.begin(
                part,
                "something that takes forty columns to say",
                Instant::now(),
            );
        }
        written.take();
        board.tick(Instant::now());
        assert_eq!(written.take().trim_start_matches("\r\x1b[K").len(), WIDTH);
    }

    #[test]
    fn what_is_counted_is_said() {
        let counted = Progress {
            done: 3,
            total: Some(29),
            unit: "MB",
            now: String::new(),
        };
        assert_eq!(counted.text(), "3 of 29 MB");
        assert_eq!(
            Progress {
                total: None,
                ..counted
            }
            .text(),
            "3 MB"
        );
        assert_eq!(Progress::default().text(), "");
    }
}
