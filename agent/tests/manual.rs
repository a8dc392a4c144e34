//! Manual pages and completions, as a package makes them and a shell reads them.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod notes;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn plimsoll(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(args: &[&str]) -> String {
    let output = plimsoll(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    assert_eq!(output.stderr, b"", "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that `--help` of `command` names, and theirs.
fn commands(command: &[&str]) -> BTreeSet<Vec<String>> {
    let help = said(&[command, &["--help"]].concat());
    let mut found = BTreeSet::new();
    found.insert(command.iter().map(|own| (*own).to_owned()).collect());
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in lines.take_while(|line| !line.is_empty()) {
        let is_name = line.starts_with("  ") && !line.starts_with("   ");
        let name = line.split_whitespace().next().unwrap();
        if is_name && name != "help" {
            found.append(&mut commands(&[command, &[name]].concat()));
        }
    }
    found
}

fn man(dir: &Path) -> Output {
    plimsoll(&["man", "--dir", dir.to_str().unwrap()])
}

#[test]
fn every_command_has_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("share/man1");
    assert_eq!(man(&pages).status.code(), Some(0));
    let names: BTreeSet<String> = fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected: BTreeSet<String> = commands(&[])
        .into_iter()
        .map(|command| {
            let words = [vec!["plimsoll".to_owned()], command].concat();
            words.join("-") + ".1"
        })
        .collect();
    assert_eq!(names, expected);
    for name in [
        "plimsoll-run.1",
        "plimsoll-config-check.1",
        "plimsoll-top.1",
    ] {
        assert!(names.contains(name), "{names:?}");
    }
    for name in &names {
        let page = fs::read_to_string(pages.join(name)).unwrap();
        for heading in [".TH ", ".SH NAME", ".SH SYNOPSIS"] {
            assert!(page.contains(heading), "{name}: {page}");
        }
    }
    let run = fs::read_to_string(pages.join("plimsoll-run.1")).unwrap();
    assert!(
        run.contains("control\\-group") && run.contains("Exit status"),
        "{run}"
    );
    let synopsis = run.split(".SH SYNOPSIS").nth(1).unwrap();
    assert!(
        synopsis.trim_start().starts_with("\\fBplimsoll run\\fR"),
        "{synopsis}"
    );
    // Once more, over what is there.
    assert_eq!(man(&pages).status.code(), Some(0));
    assert_eq!(fs::read_dir(&pages).unwrap().count(), names.len());
}

#[test]
fn a_page_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let output = man(&dir.path().join("file/man1"));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("file/man1: cannot be written: Not a directory"),
        "{text}"
    );
    // A directory stands where a page should be.
    fs::create_dir_all(dir.path().join("plimsoll.1/x")).unwrap();
    let output = man(dir.path());
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("plimsoll.1: "), "{text}");
    let left = fs::read_dir(dir.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        left.iter()
            .all(|name| !name.to_str().unwrap().contains("unfinished")),
        "{left:?}"
    );
}

/// What bash offers for these words, the last of them unfinished.
fn completed(script: &str, words: &[&str]) -> Vec<String> {
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let mut bash = Command::new("bash")
        .args(["--norc", "--noprofile", "-eu"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let asks = format!(
        "{script}\nCOMP_WORDS=({words})\nCOMP_CWORD={last}\nCOMPREPLY=()\n\
         _plimsoll plimsoll \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        words = words.join(" "),
        last = words.len() - 1
    );
    bash.stdin
        .take()
        .unwrap()
        .write_all(asks.as_bytes())
        .unwrap();
    let output = bash.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let offered = text.lines().filter(|line| !line.is_empty());
    offered.map(ToOwned::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    let script = said(&["completions", "bash"]);
    assert_eq!(completed(&script, &["plimsoll", "to"]), ["top", "topology"]);
    let options = completed(&script, &["plimsoll", "top", "--jo"]);
    assert_eq!(options, ["--journal"]);
    let values = completed(&script, &["plimsoll", "explain", "thr"]);
    assert_eq!(values, ["throttling"]);
    let values = completed(&script, &["plimsoll", "top", "--output", ""]);
    assert_eq!(values, ["text", "json"]);
    let options = completed(&script, &["plimsoll", "--v"]);
    assert_eq!(options, ["--version"]);
}

/// The options that `--help` of a command lists.
fn options(command: &[&str]) -> BTreeSet<String> {
    let help = said(&[command, &["--help"]].concat());
    let lines = help.lines().filter(|line| {
        let indent = line.len() - line.trim_start().len();
        (2..=6).contains(&indent) && line.trim_start().starts_with('-')
    });
    lines
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")))
        .map(|word| word.trim_end_matches(['.', ',']).to_owned())
        .collect()
}

#[test]
fn what_is_hidden_is_not_offered() {
    let script = said(&["completions", "bash"]);
    let all = commands(&[]);
    for command in &all {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let words = [&["plimsoll"], &command[..]].concat();
        let offered = completed(&script, &[&words[..], &["--"]].concat());
        let offered: BTreeSet<String> = offered.into_iter().collect();
        assert_eq!(offered, options(&command), "{command:?}");
    }
    let offered = completed(&script, &["plimsoll", ""]);
    let names = offered.iter().filter(|word| !word.starts_with('-'));
    let names: BTreeSet<Vec<String>> = names.map(|word| vec![word.clone()]).collect();
    let known = all.iter().filter(|command| command.len() == 1).cloned();
    let known: BTreeSet<Vec<String>> = known.chain([vec!["help".to_owned()]]).collect();
    assert_eq!(names, known);
    for shell in ["zsh", "fish"] {
        let script = said(&["completions", shell]);
        let hidden = "Do not read the rings before the end";
        assert!(!script.contains(hidden), "{shell}");
        assert!(script.contains("window"), "{shell}");
    }
}

#[test]
fn other_shells_have_theirs() {
    let zsh = said(&["completions", "zsh"]);
    assert!(zsh.starts_with("#compdef plimsoll"), "{zsh}");
    let fish = said(&["completions", "fish"]);
    assert!(fish.contains("complete -c plimsoll"), "{fish}");
    for (shell, text) in [("zsh", &zsh), ("fish", &fish)] {
        assert!(text.contains("throttling"), "{shell}");
        // Where there is one, it reads its own.
        let Ok(mut child) = Command::new(shell).arg("-n").stdin(Stdio::piped()).spawn() else {
            notes::note(format_args!(
                "there is no {shell} here to read its completions"
            ));
            continue;
        };
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        assert!(child.wait().unwrap().success(), "{shell}");
    }
    let output = plimsoll(&["completions", "tcsh"]);
    assert_eq!(output.status.code(), Some(2));
}
