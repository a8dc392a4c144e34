//! The programs of one release, which become each other: `plimsoll run` is `plimsoll-agent`, `plimsoll trace` is
//! `plimsoll-trace`.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");
const AGENT: &str = env!("CARGO_BIN_EXE_plimsoll-agent");

/// A test that starts a process while another still writes a program would hand it the open file, and that program be
/// refused as busy.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A copy of `plimsoll` in a directory in which nothing else is.
fn alone(dir: &Path) -> Command {
    let program = dir.join("plimsoll");
    fs::copy(PLIMSOLL, &program).unwrap();
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// A stand-in that says what it was given.
fn stand_in(dir: &Path, name: &str) {
    let path = dir.join(name);
    fs::write(
        &path,
        "#!/bin/sh\necho \"$$\"\nprintf '%s\\n' \"$@\"\nexit 7\n",
    )
    .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_command_becomes_the_program_beside_it() {
    let _alone = one_at_a_time();
    for (command, program, arguments) in [
        ("run", "plimsoll-agent", ["--manifests", "a directory"]),
        ("trace", "plimsoll-trace", ["--pod", "default/a b"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        stand_in(dir.path(), program);
        let child = alone(dir.path())
            .arg(command)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().to_string();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(7));
        let said = text(&output.stdout);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines, [pid.as_str(), arguments[0], arguments[1]]);
    }
}

#[test]
fn a_program_that_is_not_there_is_named_with_its_place() {
    let _alone = one_at_a_time();
    for (command, program) in [("run", "plimsoll-agent"), ("trace", "plimsoll-trace")] {
        let dir = tempfile::tempdir().unwrap();
        let output = alone(dir.path()).arg(command).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        let place = dir.path().join(program).to_str().unwrap().to_owned();
        assert!(said.contains(&place), "{said}");
        assert!(said.contains("in one directory"), "{said}");
    }
}

#[test]
fn wrong_usage_is_told_before() {
    let _alone = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    for command in ["run", "trace"] {
        let wrong = alone(dir.path()).args([command, "--nonsense"]).output();
        let wrong = wrong.unwrap();
        assert_eq!(wrong.status.code(), Some(2));
        let said = text(&wrong.stderr);
        assert!(said.contains(&format!("plimsoll {command}")), "{said}");
    }
}

fn help(program: &str, arguments: &[&str]) -> String {
    let Output { status, stdout, .. } = Command::new(program).args(arguments).output().unwrap();
    assert!(status.success());
    text(&stdout)
}

#[test]
fn the_agent_has_the_options_of_run_and_its_version() {
    let _alone = one_at_a_time();
    let options = |help: &str| -> Vec<String> {
        let words = help.split_whitespace();
        words
            .filter(|word| word.starts_with("--"))
            .map(str::to_owned)
            .collect()
    };
    let of_run = help(PLIMSOLL, &["run", "--help"]);
    let mut of_agent = options(&help(AGENT, &["--help"]));
    of_agent.retain(|option| option != "--version");
    assert_eq!(options(&of_run), of_agent);
    assert!(of_run.contains("--manifests"), "{of_run}");
    let version = help(AGENT, &["--version"]);
    assert_eq!(
        version.trim(),
        format!("plimsoll-agent {}", env!("CARGO_PKG_VERSION"))
    );
}
