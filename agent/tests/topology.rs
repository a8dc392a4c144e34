//! `plimsoll topology` as people and programs call it: answers, exit statuses, standard input, and what it writes read
//! back.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use plimsoll_core::placement::machine::Machine;

const REFERENCE: &str = include_str!("../../docs/reference/machine.md");

/// The example of the reference.
fn example() -> &'static str {
    let block = REFERENCE.split("```json\n").nth(1).unwrap();
    block.split("```").next().unwrap()
}

fn topology(args: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("topology")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that refuses its arguments does not read.
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).ok();
    child.wait_with_output().unwrap()
}

fn answered(args: &[&str], stdin: &str) -> String {
    let output = topology(args, stdin);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stderr, b"", "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(args: &[&str], stdin: &str) -> String {
    let output = topology(args, stdin);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(output.stdout, b"", "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn this_machine_is_drawn_and_described() {
    let text = answered(&[], "");
    assert!(text.contains("PART") && !text.contains('\x1b'), "{text}");
    let json = answered(&["--output", "json"], "");
    let machine: Machine = serde_json::from_str(&json).unwrap();
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    assert_eq!(machine.online().to_string(), online.trim());
    // What it writes is what it takes, and is drawn the same.
    assert_eq!(answered(&["--machine", "-", "-o", "json"], &json), json);
    assert_eq!(answered(&["--machine", "-"], &json), text);
}

#[test]
fn a_described_machine_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("machine.json");
    std::fs::write(&file, example()).unwrap();
    let text = answered(&["--machine", file.to_str().unwrap()], "");
    assert!(
        text.starts_with("two sockets, and a node of CXL memory\n"),
        "{text}"
    );
    assert!(
        text.contains("NUMA node 2, no CPUs          256Gi\n"),
        "{text}"
    );
    let svg = answered(&["--machine", "-", "--output", "svg"], example());
    assert!(
        svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    assert_eq!(svg.matches("<title>CPU ").count(), 16);
}

#[test]
fn what_is_wrong_is_said_with_file_and_field() {
    let next = "; plimsoll topology --output json shows what such a file looks like\n";
    let wrong = example().replace("\"l3\": 2", "\"l2\": 2");
    assert_eq!(
        refused(&["--machine", "-"], &wrong),
        format!(
            "plimsoll: standard input: cores[2].l2: unknown field; known are threads, socket, die, cluster, node, l3, uncore{next}"
        )
    );
    let text = refused(&["--machine", "-"], "{\n\"version\": 1,\n}");
    assert!(
        text.starts_with("plimsoll: standard input: trailing comma at line 3"),
        "{text}"
    );
    assert!(text.ends_with(next), "{text}");
    let text = refused(&["--machine", "/nowhere/machine.json"], "");
    assert!(text.contains("/nowhere/machine.json"), "{text}");
}

#[test]
fn wrong_usage_is_status_2() {
    assert_eq!(topology(&["--output", "png"], "").status.code(), Some(2));
    assert_eq!(topology(&["machine.json"], "").status.code(), Some(2));
}
