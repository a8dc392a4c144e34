//! Every command in README.md and the guides, on a kernel of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::ensure;

use super::super::harness::{Done, Outcome, Test, every_hook};
use super::super::machines::{Machine, On};
use super::super::pod::Pod;
use super::super::process::program;
use super::{Node, needs_memory_v2};

#[path = "../../../../agent/tests/guides/fences.rs"]
mod fences;

use fences::{PAGES, Where, blocks, run};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "guides::every_command_of_the_readme_works",
        on: On::Once(Machine::V7_2),
        run: || commands_work(|guide| guide == README),
    },
    Test {
        name: "guides::every_command_works",
        on: On::Weekly(Machine::V7_2),
        run: || commands_work(|guide| guide != README && guide != INCIDENT),
    },
    Test {
        name: "guides::the_incident_comes_to_its_end",
        on: On::Weekly(Machine::V7_2),
        run: || commands_work(|guide| guide == INCIDENT),
    },
];

const README: &str = "README.md";
/// It fills the memory of its node, which takes minutes where that is large and emulated.
const INCIDENT: &str = "docs/incident.md";
/// What its pod need not fill: enough is left to see it grow for as long as a reader looks. Where the clock is the
/// host's, that may be long.
const INCIDENT_FILLED: [&str; 2] = ["hold --mb 1000", "hold --mb 700"];

fn commands_work(is_wanted: fn(&str) -> bool) -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let places = [Where::Anywhere, Where::Guest];
    let mut count = 0;
    for (page, text) in PAGES.iter().filter(|(page, _)| is_wanted(page)) {
        let blocks = blocks(page, text).map_err(anyhow::Error::msg)?;
        // Every command of that page needs a cluster, or the repository.
        if !blocks.iter().any(|block| places.contains(&block.on)) {
            continue;
        }
        let node = Node::new()?;
        // No pod of the page's own agent.
        let others = Pod::best_effort("others");
        let _filled = (*page == INCIDENT)
            .then(|| node.hog(&others, INCIDENT_FILLED[usize::from(every_hook())]))
            .transpose()?;
        let scratch = node.directory.join("guide");
        fs::create_dir_all(&scratch)?;
        let ran = run(page, text, &places, &command(&node)?, &scratch);
        let ran = ran.map_err(anyhow::Error::msg)?;
        ensure!(ran > 0, "{page} has no command");
        count += 1;
    }
    ensure!(count > 0, "there is no such page");
    Ok(Done::Passed)
}

/// What a reader's `plimsoll` is here: the program, whose agents do without fentry as those of other tests
/// (`Options::on_tracepoints`). What is printed of an agent does not depend on it.
fn command(node: &Node) -> anyhow::Result<PathBuf> {
    let program = program("plimsoll");
    if every_hook() {
        return Ok(program);
    }
    let folder = node.directory.join("bin");
    fs::create_dir_all(&folder)?;
    let command = folder.join("plimsoll");
    let program = program.display();
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = run ]; then\n  shift\n  exec {program} run --without fentry \"$@\"\nfi\nexec {program} \"$@\"\n"
    );
    fs::write(&command, script)?;
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755))?;
    Ok(command)
}
