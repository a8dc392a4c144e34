//! `plimsoll config` as people and programs call it: answers, exit statuses, standard input.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/input/config/testdata");

fn plimsoll(args: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
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

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn json_lines(output: &Output) -> Vec<serde_json::Value> {
    let lines = stdout(output).lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn several_files_are_each_answered_and_one_that_is_refused_decides() {
    let good = format!("{TESTDATA}/kubeadm.yaml");
    let args = [
        "config", "check", "-f", &good, "-f", "-", "--output", "json",
    ];
    let output = plimsoll(&args, "maxPods: x\nmaxPod: 1\n");
    assert_eq!(output.status.code(), Some(1));
    let lines = json_lines(&output);
    assert_eq!(lines[0]["accepted"], true);
    assert_eq!(lines[0]["remarks"][0]["field"], "cgroupDriver");
    assert_eq!(
        lines[1],
        serde_json::json!({
            "file": "-",
            "accepted": false,
            "errors": [
                {"line": 1, "field": "maxPods", "reason": "\"x\" is a text: write a whole number of at least 0"},
                {"line": 2, "field": "maxPod", "reason": "there is no such field: did you mean maxPods?"},
            ],
            "remarks": [],
            "hints": [],
            "fields": [],
        })
    );
}

#[test]
fn each_file_of_a_real_node_is_accepted() {
    let mut args = vec!["config".to_owned(), "check".to_owned()];
    let mut files = 0;
    for entry in std::fs::read_dir(TESTDATA).unwrap() {
        args.extend([
            "-f".to_owned(),
            entry.unwrap().path().to_str().unwrap().to_owned(),
        ]);
        files += 1;
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = plimsoll(&args, "");
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    assert_eq!(stdout(&output).matches(": accepted;").count(), files);
}

#[test]
fn all_shows_what_is_not_plimsolls_and_defaults() {
    let file = "port: 10251\nmemorySwap: {swapBehavior: LimitedSwap}\n";
    let short = plimsoll(&["config", "check", "-f", "-"], file);
    assert!(!stdout(&short).contains("10251"), "{}", stdout(&short));
    assert!(stdout(&short).contains("memorySwap.swapBehavior"));
    let long = plimsoll(&["config", "check", "-v", "-f", "-"], file);
    let row = |name: &str| {
        let row = stdout(&long)
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("port"), "port 10251 line 1 not Plimsoll's");
    assert_eq!(
        row("evictionHard: memory.available"),
        "evictionHard: memory.available 100Mi default used"
    );
}

#[test]
fn print_with_flags_is_a_file_that_means_the_same() {
    let flags = [
        "--eviction-hard",
        "memory.available<1Gi,ioPressure.full.avg10>30%",
    ];
    let first = plimsoll(
        &[&["config", "print", "-f", "-"], &flags[..]].concat(),
        "cgroupRoot: /a\n",
    );
    assert_eq!(first.status.code(), Some(0));
    assert!(stdout(&first).contains("# --eviction-hard") && stdout(&first).contains("# line 1"));
    let json = |file: &str| {
        let output = plimsoll(
            &["config", "print", "--all", "--output", "json", "-f", "-"],
            file,
        );
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let again = json(stdout(&first));
    assert_eq!(again["evictionHard"]["ioPressure.full.avg10"], "30%");
    assert_eq!(again["cgroupRoot"], "/a");
    assert_eq!(json(&again.to_string()), again);
}

#[test]
fn statuses_tell_refusal_from_wrong_usage() {
    let refused = plimsoll(&["config", "print", "-f", "/nonexistent"], "");
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        std::str::from_utf8(&refused.stderr).unwrap(),
        "plimsoll: /nonexistent: the configuration cannot be read: No such file or directory (os error 2)\n"
    );
    for args in [
        &["config"][..],
        &["config", "check", "--nope"],
        &["config", "print", "-f"],
    ] {
        assert_eq!(plimsoll(args, "").status.code(), Some(2), "{args:?}");
    }
}
