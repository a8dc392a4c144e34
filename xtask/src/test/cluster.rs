//! `--cluster`: the tests on a node with a kubelet, in a guest that is a process.

use std::fs;

use anyhow::Result;

use super::Outcome;
use super::report;
use crate::kubernetes::node::{self, NodeArgs};
use crate::progress::{Progress, Step};

/// Runs them all; the binaries are built where there are none.
pub(super) fn run(step: &Step) -> Outcome {
    match try_run(step) {
        Ok(outcome) => outcome,
        Err(error) => Err(error).into(),
    }
}

fn try_run(step: &Step) -> Result<Outcome> {
    let mut done = 0;
    let args = NodeArgs::default();
    let exit = node::boot(&args, &mut |line| {
        done += u64::from(line.starts_with("test "));
        step.at(Progress {
            done,
            total: None,
            unit: "tests",
            now: line.trim().to_owned(),
        });
    })?;
    let log = exit.lines.join("\n");
    let mut counts = report::of_test_program(&log, exit.code() == 0);
    let notes = fs::read_to_string(args.logs().join("notes")).unwrap_or_default();
    let notes = report::notes(&notes);
    // What is left out is part of a test that passes.
    counts.skipped += notes.left_out;
    Ok(Outcome {
        counts,
        log,
        notes: notes.lines,
        failed_tests: Vec::new(),
    })
}
