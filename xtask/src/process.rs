//! Running other programs: their output is kept and shown only when they fail.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};

/// Lines of a failed program's output that are shown.
const SHOWN_LINES_MAX: usize = 60;

/// Runs `command` to its end and returns its standard output.
///
/// `next` says what to do when it fails; it is the last line of the error.
pub(crate) fn output_of(command: &mut Command, next: &str) -> Result<String> {
    let output = run(command)?;
    if !output.status.success() {
        bail!(
            "`{}` failed ({})\n{}\n{next}",
            shown(command),
            output.status,
            last_lines(&merged(&output))
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `command` to its end, whatever its status, and returns status and output.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    command
        .stdin(Stdio::null())
        .env("TERM", "dumb")
        .env("CARGO_TERM_COLOR", "never")
        .output()
        .with_context(|| format!("cannot start `{}`: is it installed?", shown(command)))
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
}
