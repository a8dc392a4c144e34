//! Commands of others: how they are run, what they say when they fail, and how far cargo is.

pub(crate) mod output;

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};
use serde::Deserialize;

use crate::progress::{Progress, Step, minutes};
use output::{PATIENCE, ProcessOutput, shown};

/// Lines of a failed program's output that are shown.
const SHOWN_LINES_MAX: usize = 60;

/// Runs `command` to its end and returns its standard output.
///
/// `next` says what to do when it fails; it is the last line of the error.
pub(crate) fn output_of(command: &mut Command, next: &str) -> Result<String> {
    let ended = run(command)?;
    success(command, &ended, next)?;
    Ok(ended.stdout())
}

/// Fails when `command` has: with its last lines, and with what to do `next`.
pub(crate) fn success(command: &Command, ended: &ProcessOutput, next: &str) -> Result<()> {
    if ended.success() {
        return Ok(());
    }
    let how = if ended.hung {
        format!(
            "it hung and was stopped: it said nothing in {} in which it could run",
            minutes(PATIENCE)
        )
    } else {
        ended.status.to_string()
    };
    let next = match ended.status.signal() {
        // Cargo, rustup and apt go on where they were.
        Some(signal) if !ended.hung => &format!(
            "signal {signal} ended it: the kernel when memory was short, or somebody; run the command again, it goes on from here"
        ),
        _ => next,
    };
    bail!(
        "`{}` failed ({how})\n{}\n{next}",
        shown(command),
        last_lines(&said(ended))
    );
}

/// What a program said of its failure: standard error, or standard output when that is empty.
fn said(ended: &ProcessOutput) -> String {
    let errors = ended.stderr();
    if errors.trim_ascii().is_empty() {
        ended.stdout()
    } else {
        errors
    }
}

/// Runs `command` to its end, whatever its status.
pub(crate) fn run(command: &mut Command) -> Result<ProcessOutput> {
    ProcessOutput::run(command, |_| {})
}

/// Runs cargo, and says how many crates are built of how many; cargo counts them.
pub(crate) fn run_cargo(command: &mut Command, step: &Step) -> Result<ProcessOutput> {
    command
        .env("CARGO_TERM_PROGRESS_WHEN", "always")
        .env("CARGO_TERM_PROGRESS_WIDTH", "100");
    ProcessOutput::run(command, |line| {
        if let Some(progress) = cargo_progress(line) {
            step.at(progress);
        }
    })
}

/// One line of `cargo build --message-format=json`; only what is needed of it.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

/// The programs that cargo has built, as its messages say.
pub(crate) fn executables(messages: &str) -> Vec<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok()?.executable)
        .collect()
}

/// What cargo's progress bar says, such as `    Building [==>      ] 23/233: serde, tokio`, or that it waits for
/// another cargo.
fn cargo_progress(piece: &str) -> Option<Progress> {
    let piece = piece.trim();
    if let Some(lock) = piece.strip_prefix("Blocking waiting for file lock on ") {
        return Some(Progress::doing(format!(
            "waiting for another cargo, which has the {lock}"
        )));
    }
    if piece.starts_with("Downloading") {
        return Some(Progress::doing(piece.to_lowercase()));
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
    fn an_interrupted_build_is_said_as_such() {
        let mut build = Command::new("sh");
        build.args(["-c", "echo '   Compiling a v1' >&2; kill -9 $$"]);
        let error = output_of(&mut build, "mend it").unwrap_err().to_string();
        assert!(error.contains("signal 9 ended it"), "{error}");
        assert!(error.contains("run the command again"), "{error}");
        assert!(!error.contains("mend it"), "{error}");
    }

    #[test]
    fn executables_of_cargo_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/t/guest/plimsoll\"}\n\
                        not json\n{\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executables(messages), [PathBuf::from("/t/guest/plimsoll")]);
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
