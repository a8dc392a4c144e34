//! Every command in docs/guide, where it has a kernel to itself.

use std::fs;

use anyhow::ensure;

use super::super::harness::{Done, Outcome, Test};
use super::super::process::program;
use super::{Node, needs_memory_v2};

#[path = "../../../../agent/tests/guides/fences.rs"]
mod fences;

use fences::{GUIDES, Where, run};

pub(super) const TESTS: &[Test] = &[Test {
    name: "guides::every_command_works",
    run: every_command_works,
}];

fn every_command_works() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    for (guide, text) in GUIDES {
        let node = Node::new()?;
        let scratch = node.directory.join("guide");
        fs::create_dir_all(&scratch)?;
        let places = [Where::Anywhere, Where::Guest];
        let ran = run(guide, text, &places, &program("plimsoll"), &scratch);
        let ran = ran.map_err(anyhow::Error::msg)?;
        ensure!(ran > 0, "{guide} has no command");
    }
    Ok(Done::Passed)
}
