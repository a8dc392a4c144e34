//! Every command in docs/guide and docs/incident.md works: those that need no kernel of their own are run here, the others in a guest.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod fences;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use fences::{GUIDES, Where, blocks, run};

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

#[test]
fn every_guide_is_run() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide");
    let names: BTreeSet<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let all = GUIDES.iter().map(|(name, _)| (*name).to_owned());
    let known = all.filter(|name| !name.starts_with("../")).collect();
    assert_eq!(names, known, "GUIDES in fences.rs lists them");
    for (guide, text) in GUIDES {
        let scratch = tempfile::tempdir().unwrap();
        let places = [Where::Anywhere];
        let ran = run(guide, text, &places, Path::new(PLIMSOLL), scratch.path());
        println!(
            "{guide}: {} blocks",
            ran.unwrap_or_else(|error| panic!("{error}"))
        );
    }
}

#[test]
fn every_command_in_a_guide_is_one() {
    for (guide, text) in GUIDES {
        for block in blocks(guide, text).unwrap() {
            assert!(
                block.script.lines().all(|line| !line.starts_with("$ ")),
                "{guide}:{}: commands have no prompt",
                block.line
            );
        }
    }
}

#[test]
fn typos_and_other_output_are_found() {
    let refused = |text: &str, why: &str| {
        let error = run_here(text).unwrap_err();
        assert!(error.contains(why), "{text:?}: {error}");
    };
    refused(
        "```shell\ntrue\n```\n",
        "guide.md:1: no block is marked \"shell\"",
    );
    refused("```sh geust\ntrue\n```\n", "one of sh, sh guest, text");
    refused("```\ntrue\n```\n", "no block is marked \"\"");
    refused("a\n\n```sh\ntrue\n", "guide.md:3: the block has no end");
    refused("```sh\n\n```\n", "the block is empty");
    refused("```sh\nplimsoll rnak\n```\n", "unrecognized subcommand");
    refused("```sh\necho a\nfalse\n```\n", "failed");
    refused(
        "```sh\necho a\n```\n\n```text\nb\n```\n",
        "guide.md:2: it prints\na\nand not\nb",
    );
    refused("```sh\necho a\n```\n```text\na\nb\n```\n", "it prints");
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
