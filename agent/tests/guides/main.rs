//! Every command in README.md, docs/guide and docs/incident.md works: here if any machine will do, in a guest if it
//! needs a kernel.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod fences;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fences::{PAGES, Where, blocks, run};

const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

fn run_here(text: &str) -> Result<usize, String> {
    let scratch = tempfile::tempdir().unwrap();
    let places = [Where::Anywhere];
    run(
        "guide.md",
        text,
        &places,
        Path::new(PLIMSOLL),
        scratch.path(),
    )
}

/// A command that takes minutes or a node, and the file of the repository that runs it, or does what it does: its path
/// and a text that it must contain.
const RUN_ELSEWHERE: &[(&str, &str, &str)] = &[
    ("cargo xtask test", ".ci/run", "exec cargo xtask test\n"),
    ("cargo xtask demo", "xtask/src/test.rs", "demo::succeeds()"),
    (
        "cargo xtask build-ebpf",
        "xtask/src/test.rs",
        "ebpf::build()",
    ),
    (
        "cargo build --release -p plimsoll -p plimsoll-trace -p plimsoll-runtime",
        "xtask/src/release.rs",
        r#"["build", "--locked", "--release", "--bins"]"#,
    ),
    (
        INSTALL,
        "agent/tests/guides/main.rs",
        "fn the_line_that_installs_does",
    ),
    (
        "cargo xtask image --arch amd64",
        "xtask/src/kubernetes/node.rs",
        "image::write(&[part], layout)",
    ),
    (
        "ctr --namespace k8s.io images import target/image.tar",
        NODE_TESTS,
        "machine.import_image();",
    ),
    ("kubectl plimsoll top", NODE_TESTS, r#"&["top"][..]"#),
    (
        "kubectl plimsoll top node-1",
        NODE_TESTS,
        r#"&["top", NODE"#,
    ),
    (
        "kubectl plimsoll explain node-1",
        NODE_TESTS,
        r#"&["explain", NODE]"#,
    ),
    ("kubectl plimsoll check", NODE_TESTS, r#"&["check"]"#),
    (
        "plimsoll web --cluster",
        "agent/tests/web.rs",
        r#"["web", "--listen", "127.0.0.1:0", "--cluster"]"#,
    ),
    (
        "plimsoll-agent --kubernetes --config eviction.yaml",
        "agent/cluster/tests/node/rivals.rs",
        r#"start_agent_with(&["--config=/run/places.yaml""#,
    ),
    (
        "plimsoll-runtime list images",
        "agent/runtime/tests/support/mod.rs",
        r#".args(["list", what,"#,
    ),
    (
        "plimsoll-runtime list containers",
        "agent/runtime/tests/support/mod.rs",
        r#".args(["list", what,"#,
    ),
];

/// Beside a real kubelet, installed as the guide says it.
const NODE_TESTS: &str = "agent/cluster/tests/node/applied.rs";

/// The first words of commands. A fence `text` is not run, so that none may stand in one.
const PROGRAMS: &[&str] = &[
    "cargo",
    "ctr",
    "curl",
    "helm",
    "kubectl",
    "mkdir",
    "plimsoll",
    "plimsoll-agent",
    "plimsoll-cluster",
    "plimsoll-runtime",
    "plimsoll-trace",
    "skopeo",
];

/// Commands in a fence `text` that no test runs yet: the page, and how they begin.
const NOT_RUN: &[(&str, &str)] = &[
    ("docs/guide/cluster.md", "plimsoll topology --zones"),
    ("docs/guide/sharing.md", "kubectl "),
];
const INSTALL: &str = "(cd target/release && sudo install plimsoll plimsoll-agent plimsoll-runtime plimsoll-trace /usr/local/bin)";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_page_is_run() {
    let names: BTreeSet<String> = fs::read_dir(root().join("docs/guide"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| format!("docs/guide/{name}"))
        .collect();
    let pages = PAGES.iter().map(|(page, _)| (*page).to_owned());
    let guides = pages
        .filter(|page| page.starts_with("docs/guide/"))
        .collect();
    assert_eq!(names, guides, "PAGES in fences.rs lists them");
    for (page, text) in PAGES {
        let scratch = tempfile::tempdir().unwrap();
        let places = [Where::Anywhere];
        let ran = run(page, text, &places, Path::new(PLIMSOLL), scratch.path());
        println!(
            "{page}: {} blocks",
            ran.unwrap_or_else(|error| panic!("{error}"))
        );
    }
}

#[test]
fn commands_have_no_prompt() {
    for (page, text) in PAGES {
        for block in blocks(page, text).unwrap() {
            assert!(
                block.script.lines().all(|line| !line.starts_with("$ ")),
                "{page}:{}: a command has a prompt",
                block.line
            );
        }
    }
}

#[test]
fn no_command_hides_in_an_output() {
    for (page, text) in PAGES {
        let mut is_output = false;
        for (line, number) in text.lines().zip(1..) {
            match line.trim_start().strip_prefix("```") {
                Some(mark) => is_output = mark == "text",
                None if is_output => {
                    let mut words = line.split_whitespace();
                    let is_command = words.next().is_some_and(|word| PROGRAMS.contains(&word))
                        // What the agent says of itself begins with its name, too.
                        && words.next().is_some_and(|word| !matches!(word, "stops:" | "starts:"));
                    let is_known =
                        |(known, start): &(&str, &str)| known == page && line.starts_with(start);
                    let is_command = is_command && !NOT_RUN.iter().any(is_known);
                    assert!(!is_command, "{page}:{number}: {line:?} is run by no test");
                }
                None => {}
            }
        }
    }
}

#[test]
fn blocks_of_a_cluster_are_where_a_test_runs_them() {
    for (page, text) in PAGES {
        let blocks = blocks(page, text).unwrap();
        let block = blocks
            .iter()
            .find(|block| matches!(block.on, Where::Cluster(_)));
        assert!(
            block.is_none() || *page == "docs/guide/cluster.md",
            "{page}"
        );
    }
}

#[test]
fn commands_of_the_repository_are_run_by_a_file_of_it() {
    for (page, text) in PAGES {
        let blocks = blocks(page, text).unwrap();
        let blocks = blocks.iter().filter(|block| block.on == Where::Repository);
        for (line, number) in blocks.flat_map(|block| block.script.lines().zip(block.line..)) {
            let (command, _) = line.split_once(" #").unwrap_or((line, ""));
            let row = RUN_ELSEWHERE
                .iter()
                .find(|(known, ..)| *known == command.trim_end());
            let Some((_, file, text)) = row else {
                panic!("{page}:{number}: {command:?} is not in RUN_ELSEWHERE");
            };
            let runs = fs::read_to_string(root().join(file)).unwrap();
            assert!(
                runs.contains(text),
                "{page}:{number}: {file} no longer has {text:?}, which runs {command:?}"
            );
        }
    }
}

/// With other directories, and without becoming another user.
#[test]
fn the_line_that_installs_does() {
    let scratch = tempfile::tempdir().unwrap();
    let [built, bin] = ["target/release", "bin"].map(|name| scratch.path().join(name));
    fs::create_dir_all(&built).unwrap();
    fs::create_dir(&bin).unwrap();
    let programs = [
        "plimsoll",
        "plimsoll-agent",
        "plimsoll-runtime",
        "plimsoll-trace",
    ];
    for program in programs {
        fs::write(built.join(program), "#!/bin/sh\n").unwrap();
    }
    let line = INSTALL
        .replace("sudo ", "")
        .replace("/usr/local/bin", bin.to_str().unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-ec", &line]).current_dir(scratch.path());
    assert!(shell.status().unwrap().success(), "{line}");
    for program in programs {
        let status = Command::new(bin.join(program)).status().unwrap();
        assert!(status.success(), "{program}");
    }
    assert_eq!(fs::read_dir(bin).unwrap().count(), programs.len());
}

#[test]
fn typos_and_other_output_are_found() {
    let refused = |text: &str, why: &str| {
        let error = run_here(text).unwrap_err();
        assert!(error.contains(why), "{text:?}: {error}");
    };
    refused(
        "```shell\ntrue\n```\n",
        "guide.md:1: unknown mark \"shell\"",
    );
    refused("```sh geust\ntrue\n```\n", "write sh, sh guest");
    refused("```\ntrue\n```\n", "unknown mark \"\"");
    refused("a\n\n```sh\ntrue\n", "guide.md:3: the block is not closed");
    refused("```sh\n\n```\n", "the block is empty");
    refused("```sh\nplimsoll rnak\n```\n", "unrecognized subcommand");
    refused("```sh\necho a\nfalse\n```\n", "failed");
    refused(
        "```sh\necho a\n```\n\n```text\nb\n```\n",
        "guide.md:2: the block prints\na\nand not\nb",
    );
    refused(
        "```sh\necho a\n```\n```text\na\nb\n```\n",
        "the block prints",
    );
}

#[test]
fn blocks_are_one_session() {
    let text = "```sh\nx=1; cd /\n```\nwords\n```sh guest\nfalse\n```\n```sh\necho $x; pwd; seq 9\n```\n\n```text\n1\n/\n...\n8\n9\n...\n```\n";
    assert_eq!(run_here(text), Ok(2));
    // Not directly below: an example.
    assert_eq!(
        run_here("```sh\necho a\n```\nsuch as\n```text\nb\n```\n"),
        Ok(1)
    );
}

#[test]
fn a_background_block_and_what_is_waited_for_run_where_guest_blocks_do() {
    let text = "```sh guest background\nwhile [ ! -e stop ]; do sleep 0.1; done; echo end; touch stopped\n```\n\
        ```sh guest\ntouch stop\n```\n<!-- until: test -e stopped -->\n```sh guest\ncat .background\n```\n\n```text\nend\n```\n";
    let scratch = tempfile::tempdir().unwrap();
    let ran = run(
        "guide.md",
        text,
        &[Where::Guest],
        Path::new(PLIMSOLL),
        scratch.path(),
    );
    assert_eq!(ran, Ok(4));
    assert_eq!(run_here(text), Ok(0));
}
