//! Running other programs: their lines as they come, kept for when they fail, and an end to what hangs.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::interrupt;
use crate::schedulable_time::SchedulableTime;

/// A program that says nothing for so long, not counting time that this machine had for others, hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20 * 60);
/// How often a silent program is looked at.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Lines that may wait to be looked at; then the program waits.
const LINES_QUEUED_MAX: usize = 1024;
/// Lines kept, the first ones. Longer lines are cut there.
const LINES_KEPT_MAX: usize = 200_000;
const LINE_BYTES_MAX: usize = 1 << 20;

/// The command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct ProcessOutput {
    /// How it ended.
    pub(crate) status: ExitStatus,
    /// It was stopped: it said nothing for too long while it could run.
    pub(crate) hung: bool,
    lines: Vec<Line>,
}

/// What a program says at once.
#[derive(Debug)]
struct Line {
    text: String,
    is_error: bool,
    /// Of a progress bar: it ends with a carriage return, and the next one is written over it.
    is_passing: bool,
}

impl ProcessOutput {
    /// Runs it, gives each line to `on_line`, those of progress bars as well, and ends it and all that it has started
    /// when it hangs.
    pub(crate) fn run(command: &mut Command, on_line: impl FnMut(&str)) -> Result<Self> {
        Self::run_with(command, PATIENCE, on_line)
    }

    fn run_with(
        command: &mut Command,
        patience: Duration,
        mut on_line: impl FnMut(&str),
    ) -> Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env("TERM", "dumb")
            .env("CARGO_TERM_COLOR", "never")
            // Ctrl-C on the terminal is for this process alone, which ends all that it has started: see `interrupt`.
            .process_group(0);
        let mut child = interrupt::spawn(command)
            .with_context(|| format!("cannot start `{}`: is it installed?", shown(command)))?;
        let mut quiet = SchedulableTime::of(child.id());
        let (sender, said) = mpsc::sync_channel(LINES_QUEUED_MAX);
        read(child.stdout.take(), false, sender.clone());
        read(child.stderr.take(), true, sender);
        let (mut lines, mut hung) = (Vec::new(), false);
        loop {
            match said.recv_timeout(BETWEEN_LOOKS) {
                Ok(line) => {
                    quiet.restart();
                    on_line(&line.text);
                    if !line.is_passing && lines.len() < LINES_KEPT_MAX {
                        lines.push(line);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if quiet.passed() >= patience {
                        hung = true;
                        interrupt::end_tree(child.id());
                        break;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = child.wait().context("cannot wait for a program")?;
        Ok(Self {
            status,
            hung,
            lines,
        })
    }

    /// Whether it ended by itself with status 0.
    pub(crate) fn success(&self) -> bool {
        self.status.success() && !self.hung
    }

    /// Both streams, in the order in which they came.
    pub(crate) fn text(&self) -> String {
        self.joined(|_| true)
    }

    /// Standard output.
    pub(crate) fn stdout(&self) -> String {
        self.joined(|line| !line.is_error)
    }

    /// Standard error.
    pub(crate) fn stderr(&self) -> String {
        self.joined(|line| line.is_error)
    }

    fn joined(&self, which: impl Fn(&Line) -> bool) -> String {
        let lines = self.lines.iter().filter(|line| which(line));
        let texts: Vec<&str> = lines.map(|line| line.text.as_str()).collect();
        texts.join("\n")
    }
}

/// Reads a stream to its end, in a thread of its own.
fn read(stream: Option<impl Read + Send + 'static>, is_error: bool, lines: SyncSender<Line>) {
    let Some(mut stream) = stream else { return };
    std::thread::spawn(move || {
        let (mut buffer, mut line) = ([0; 8192], Vec::new());
        let send = |line: &mut Vec<u8>, is_passing| {
            let text = String::from_utf8_lossy(line).into_owned();
            line.clear();
            lines.send(Line {
                text,
                is_error,
                is_passing,
            })
        };
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            for byte in &buffer[..length] {
                let ends = match byte {
                    b'\n' => true,
                    b'\r' => !line.is_empty(),
                    byte => {
                        line.push(*byte);
                        line.len() >= LINE_BYTES_MAX
                    }
                };
                if ends && send(&mut line, *byte == b'\r').is_err() {
                    return;
                }
            }
        }
        if !line.is_empty() {
            // Its receiver is gone when the program was stopped.
            let _stopped = send(&mut line, false);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_and_status_without_progress_bars() {
        let mut seen = Vec::new();
        let script = "echo one; printf '  Building [> ] 1/2: a\\r  Building [=>] 2/2: b\\rerror: it broke\\nhelp' >&2; exit 3";
        let ended = ProcessOutput::run(&mut shell(script), |line| {
            seen.push(line.trim().to_owned());
        })
        .unwrap();
        seen.sort();
        let expected = [
            "Building [=>] 2/2: b",
            "Building [> ] 1/2: a",
            "error: it broke",
            "help",
            "one",
        ];
        assert_eq!(seen, expected);
        assert_eq!(ended.stdout(), "one");
        assert_eq!(ended.stderr(), "error: it broke\nhelp");
        assert_eq!(ended.text().lines().count(), 3, "{ended:?}");
        assert_eq!(ended.status.code(), Some(3));
        assert!(!ended.success() && !ended.hung);
    }

    #[test]
    fn what_hangs_is_ended_with_what_it_has_started() {
        interrupt::install().unwrap();
        // The second has lost its parent. All is said at once: what comes later than that may come too late.
        let script =
            "sleep 1000 & child=$!; orphan=$(sleep 1001 >&2 & echo $!); echo $child $orphan; wait";
        let patience = Duration::from_secs(5);
        let ended = ProcessOutput::run_with(&mut shell(script), patience, |_| {}).unwrap();
        assert!(ended.hung && !ended.success());
        let stdout = ended.stdout();
        assert_eq!(stdout.split_whitespace().count(), 2, "{stdout}");
        for pid in stdout.split_whitespace() {
            let sleeper = format!("/proc/{pid}/cmdline");
            let runs = std::fs::read_to_string(sleeper).unwrap_or_default();
            assert!(!runs.contains("sleep"), "its child still runs: {runs}");
        }
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let error = ProcessOutput::run(&mut Command::new("/nowhere/cargo"), |_| {}).unwrap_err();
        assert!(error.to_string().contains("/nowhere/cargo"), "{error}");
    }
}
