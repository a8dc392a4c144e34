//! Running other programs: their output is kept and shown only when they fail.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::progress::{Progress, Step};

/// Lines of a failed program's output that are shown.
const SHOWN_LINES_MAX: usize = 60;

/// Runs `command` to its end and returns its standard output.
///
/// `next` says what to do when it fails; it is the last line of the error.
pub(crate) fn output_of(command: &mut Command, next: &str) -> Result<String> {
    let output = run(command)?;
    success(command, &output, next)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Fails when `command` has: with its last lines, and with what to do `next`.
pub(crate) fn success(command: &Command, output: &Output, next: &str) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let next = match output.status.signal() {
        // Cargo, rustup and apt go on where they were.
        Some(signal) => &format!(
            "signal {signal} ended it: the kernel when memory was short, or somebody; run the command again, it goes on from here"
        ),
        None => next,
    };
    bail!(
        "`{}` failed ({})\n{}\n{next}",
        shown(command),
        output.status,
        last_lines(&said(output))
    );
}

/// What a program said of its failure: standard error, or standard output when that is empty.
fn said(output: &Output) -> String {
    if output.stderr.trim_ascii().is_empty() {
        merged(output)
    } else {
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// Runs `command` to its end, whatever its status, and returns status and output.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    run_watched(command, |_| {})
}

/// As [`run`]; `on_errors` gets what comes on standard error as it comes, a line or a state of a progress bar at a time.
pub(crate) fn run_watched(
    command: &mut Command,
    mut on_errors: impl FnMut(&str),
) -> Result<Output> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env("TERM", "dumb")
        .env("CARGO_TERM_COLOR", "never")
        // Ctrl-C on the terminal is for this process alone, which ends all that it has started: see `interrupt`.
        .process_group(0);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start `{}`: is it installed?", shown(command)))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let stdout = thread::spawn(move || {
        let mut bytes = Vec::new();
        // What cannot be read any more is missing; the status says how it ended.
        let _cut_off = stdout.map(|mut stdout| stdout.read_to_end(&mut bytes));
        bytes
    });
    let mut errors = Errors::default();
    if let Some(mut stderr) = stderr {
        let mut buffer = [0; 8192];
        while let Ok(length @ 1..) = stderr.read(&mut buffer) {
            errors.push(&buffer[..length], &mut on_errors);
        }
    }
    let status = child.wait().context("cannot wait for a program")?;
    Ok(Output {
        status,
        stdout: stdout.join().unwrap_or_default(),
        stderr: errors.rest(),
    })
}

/// Runs cargo, and says how many crates are built of how many; cargo counts them.
pub(crate) fn run_cargo(command: &mut Command, step: &Step) -> Result<Output> {
    command
        .env("CARGO_TERM_PROGRESS_WHEN", "always")
        .env("CARGO_TERM_PROGRESS_WIDTH", "100");
    run_watched(command, |piece| {
        if let Some(progress) = cargo_progress(piece) {
            step.at(progress);
        }
    })
}

/// A program's standard error without the states of its progress bars: these end with a carriage return.
#[derive(Default)]
struct Errors {
    lines: Vec<u8>,
    piece: Vec<u8>,
}

impl Errors {
    fn push(&mut self, bytes: &[u8], on_piece: &mut impl FnMut(&str)) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    on_piece(&String::from_utf8_lossy(&self.piece));
                    self.lines.append(&mut self.piece);
                    self.lines.push(b'\n');
                }
                b'\r' => {
                    on_piece(&String::from_utf8_lossy(&self.piece));
                    self.piece.clear();
                }
                _ => self.piece.push(*byte),
            }
        }
    }

    fn rest(mut self) -> Vec<u8> {
        self.lines.append(&mut self.piece);
        self.lines
    }
}

/// What cargo's progress bar says, such as `    Building [==>      ] 23/233: serde, tokio`, or that it waits for another cargo.
fn cargo_progress(piece: &str) -> Option<Progress> {
    let piece = piece.trim();
    let now = |text: &str| {
        Some(Progress {
            now: text.to_owned(),
            ..Progress::default()
        })
    };
    if let Some(lock) = piece.strip_prefix("Blocking waiting for file lock on ") {
        return now(&format!("waiting for another cargo, which has the {lock}"));
    }
    if piece.starts_with("Downloading") {
        return now(&piece.to_lowercase());
    }
    let bar = piece.strip_prefix("Building [")?;
    let (counted, names) = bar.split_once("] ")?.1.split_once(':')?;
    let (done, total) = counted.split_once('/')?;
    Some(Progress {
        done: done.parse().ok()?,
        total: Some(total.parse().ok()?),
        unit: "crates",
        now: names
            .split(',')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned(),
    })
}

/// Both output streams of a finished program, errors last.
pub(crate) fn merged(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

/// The end of `text`, where programs say why they failed, without cargo's progress.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text
        .trim_end()
        .lines()
        .filter(|line| !is_progress(line))
        .collect();
    lines[lines.len().saturating_sub(SHOWN_LINES_MAX)..].join("\n")
}

/// Whether a line only says what cargo is doing: an indented verb of its own.
pub(crate) fn is_progress(line: &str) -> bool {
    let verbs = [
        "Compiling ",
        "Checking ",
        "Running ",
        "Doc-tests ",
        "Downloading ",
        "Downloaded ",
        "Blocking ",
    ];
    line.starts_with(' ') && verbs.iter().any(|verb| line.trim_start().starts_with(verb))
}

/// The command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The first file called `program` in `PATH`.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// `cargo` for the workspace, as the user would start it.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    without_own_environment(&mut command);
    command.current_dir(crate::paths::root());
    command
}

/// Takes out what the outer `cargo run` put into the environment for this process alone: it would make the inner cargo
/// build everything again.
pub(crate) fn without_own_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let of_package = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        if of_package {
            command.env_remove(name);
        }
    }
    for name in ["RUSTC", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        command.env_remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_without_progress() {
        let log = "   Compiling a v1\nerror: it broke\n    Checking b v2\n     Running tests\nhelp: mend it\n\n";
        assert_eq!(last_lines(log), "error: it broke\nhelp: mend it");
        let long: String = (0..2 * SHOWN_LINES_MAX)
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(last_lines(&long).lines().count(), SHOWN_LINES_MAX);
    }

    #[test]
    fn both_streams_come_back_without_progress_bars() {
        let script = "printf 'one\\n'; printf '  Building [> ] 1/2: a\\r  Building [=>] 2/2: b\\rerror: it broke\\nhelp' >&2; exit 3";
        let mut pieces = Vec::new();
        let output = run_watched(Command::new("sh").args(["-c", script]), |piece| {
            pieces.push(piece.to_owned());
        })
        .unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(merged(&output), "one\nerror: it broke\nhelp");
        let expected = [
            "  Building [> ] 1/2: a",
            "  Building [=>] 2/2: b",
            "error: it broke",
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn an_interrupted_build_is_said_as_such() {
        let mut build = Command::new("sh");
        build.args(["-c", "echo '   Compiling a v1' >&2; kill -9 $$"]);
        let error = output_of(&mut build, "mend it").unwrap_err().to_string();
        assert!(error.contains("signal 9 ended it"), "{error}");
        assert!(error.contains("run the command again"), "{error}");
        assert!(!error.contains("mend it"), "{error}");
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let error = run(&mut Command::new("/nowhere/cargo")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/cargo"), "{error}");
    }

    #[test]
    fn cargo_says_how_far_it_is() {
        let bar = "    Building [===>                      ] 34/233: serde_derive, toki…        ";
        let progress = cargo_progress(bar).unwrap();
        assert_eq!((progress.done, progress.total), (34, Some(233)));
        assert_eq!(
            (progress.unit, progress.now.as_str()),
            ("crates", "serde_derive")
        );
        let blocked = "    Blocking waiting for file lock on build directory";
        let progress = cargo_progress(blocked).unwrap();
        assert!(progress.now.contains("build directory"), "{progress:?}");
        for other in [
            "",
            "   Compiling serde v1.0.229",
            "    Building [",
            "error: x",
        ] {
            assert_eq!(cargo_progress(other), None, "{other}");
        }
    }
}
