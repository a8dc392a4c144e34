//! A long command: its lines as they come, and an end to it when it hangs.

use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::interrupt;
use crate::opportunity::Opportunity;
use crate::process::shown;

/// How often it is looked at whether it hangs.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Lines that may wait to be looked at; then the command waits.
const LINES_QUEUED_MAX: usize = 1024;
/// Lines kept, the first ones. Longer lines are cut there.
const LINES_KEPT_MAX: usize = 200_000;
const LINE_BYTES_MAX: usize = 64 * 1024;

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Both streams, a line as it came.
    pub(crate) lines: Vec<String>,
    /// Standard output alone.
    pub(crate) stdout: Vec<String>,
    /// Whether its status is 0.
    pub(crate) success: bool,
    /// It was stopped: it said nothing for too long while it could run.
    pub(crate) hung: bool,
}

impl Watched {
    /// Runs it, gives each line to `on_line`, those of cargo's progress bar as well, and ends it and all that it has started when it says
    /// nothing for `patience`, not counting time in which this machine kept it from running.
    pub(crate) fn run(
        command: &mut Command,
        patience: Duration,
        mut on_line: impl FnMut(&str),
    ) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env("TERM", "dumb")
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_TERM_PROGRESS_WHEN", "always")
            .env("CARGO_TERM_PROGRESS_WIDTH", "100")
            // Ctrl-C on the terminal is for this process alone: see `interrupt`.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start `{}`: is it installed?", shown(command)))?;
        let mut quiet = Opportunity::of(child.id());
        let (sender, said) = mpsc::sync_channel(LINES_QUEUED_MAX);
        read(child.stdout.take(), true, sender.clone());
        read(child.stderr.take(), false, sender);
        let mut watched = Self {
            lines: Vec::new(),
            stdout: Vec::new(),
            success: false,
            hung: false,
        };
        loop {
            match said.recv_timeout(BETWEEN_LOOKS) {
                Ok((is_stdout, line)) => {
                    quiet.restart();
                    on_line(&line);
                    if progress_in(&line).is_some() || watched.lines.len() >= LINES_KEPT_MAX {
                        continue;
                    }
                    if is_stdout {
                        watched.stdout.push(line.clone());
                    }
                    watched.lines.push(line);
                }
                Err(RecvTimeoutError::Timeout) => {
                    if quiet.passed() >= patience {
                        watched.hung = true;
                        interrupt::end_tree(child.id());
                        break;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = child.wait().context("cannot wait for a command")?;
        watched.success = status.success() && !watched.hung;
        Ok(watched)
    }

    /// Both streams.
    pub(crate) fn text(&self) -> String {
        self.lines.join("\n")
    }
}

/// Reads a stream to its end, in a thread of its own.
fn read(
    stream: Option<impl Read + Send + 'static>,
    is_stdout: bool,
    lines: SyncSender<(bool, String)>,
) {
    let Some(mut stream) = stream else { return };
    std::thread::spawn(move || {
        let (mut buffer, mut line) = ([0; 8192], Vec::new());
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            for byte in &buffer[..length] {
                // Cargo's bar ends with a carriage return.
                let ends = matches!(byte, b'\n' | b'\r');
                if !ends {
                    line.push(*byte);
                }
                if (ends && !(*byte == b'\r' && line.is_empty())) || line.len() >= LINE_BYTES_MAX {
                    let text = String::from_utf8_lossy(&line).into_owned();
                    line.clear();
                    if lines.send((is_stdout, text)).is_err() {
                        return;
                    }
                }
            }
        }
        if !line.is_empty() {
            let _closed = lines.send((is_stdout, String::from_utf8_lossy(&line).into_owned()));
        }
    });
}

/// `34 of 120` in a line of cargo's progress bar: `Building [===>   ] 34/120: serde`.
pub(crate) fn progress_in(line: &str) -> Option<String> {
    let (before, after) = line.split_once("] ")?;
    if !before.contains('[') || !line.trim_start().starts_with("Building") {
        return None;
    }
    let (done, rest) = after.split_once('/')?;
    let of: String = rest.chars().take_while(char::is_ascii_digit).collect();
    (!done.is_empty() && done.bytes().all(|byte| byte.is_ascii_digit()) && !of.is_empty())
        .then(|| format!("{done} of {of}"))
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
    fn cargos_bar() {
        assert_eq!(
            progress_in("    Building [=====>          ] 34/120: serde, log(build)").as_deref(),
            Some("34 of 120")
        );
        for line in ["   Compiling a v1", "Building [=> ] x/3", "[a] 1/2", ""] {
            assert_eq!(progress_in(line), None, "{line}");
        }
    }

    #[test]
    fn lines_and_status() {
        let mut seen = Vec::new();
        let script = "echo one; printf '   Building [> ] 1/2: a\\r' >&2; echo two >&2; exit 3";
        let ended = Watched::run(&mut shell(script), Duration::MAX, |line| {
            seen.push(line.trim().to_owned());
        })
        .unwrap();
        seen.sort();
        assert_eq!(seen, ["Building [> ] 1/2: a", "one", "two"]);
        assert_eq!(ended.stdout, ["one"]);
        assert_eq!(ended.lines.len(), 2, "{:?}", ended.lines);
        assert!(!ended.success && !ended.hung);
    }

    #[test]
    fn what_hangs_is_ended_with_what_it_has_started() {
        let script = "echo up; sleep 1000 & echo $!; wait";
        let patience = Duration::from_millis(1500);
        let ended = Watched::run(&mut shell(script), patience, |_| {}).unwrap();
        assert!(ended.hung && !ended.success);
        let sleeper = format!("/proc/{}/cmdline", ended.stdout[1]);
        let runs = std::fs::read_to_string(sleeper).unwrap_or_default();
        assert!(!runs.contains("1000"), "its child still runs: {runs}");
    }
}
