//! The tests that need a kernel of their own: `guest_tests [FILTER…]`, `--list`. `cargo xtask test` asks for the guests
//! to start with `--plan`, and runs `--on NAME` in each.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use tests::guest::cases;
use tests::guest::harness::{Hooks, Lacking, Test, run, run_here};
use tests::guest::machines::{MACHINES, plan};

#[derive(Parser)]
struct Arguments {
    /// Only tests whose name contains one of these.
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// The tests of this machine, by their declarations; `--plan` has the names.
    #[arg(long, value_name = "MACHINE")]
    on: Option<String>,
    /// With --on and --plan: every test on every machine that fits it. Agents have every hook, also where a test does
    /// not depend on it.
    #[arg(long)]
    all: bool,
    /// Prints the machines to start, a line of JSON each.
    #[arg(long)]
    plan: bool,
    /// Prints the names.
    #[arg(long)]
    list: bool,
    /// Runs this test in this process.
    #[arg(long, hide = true)]
    one: Option<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let mut tests: Vec<Test> = cases::all();
    if let Some(name) = arguments.one {
        let test = tests
            .iter()
            .find(|test| test.name == name)
            .with_context(|| format!("no test {name}"))?;
        return Ok(run_here(test));
    }
    if arguments.plan {
        for guest in plan(&tests, arguments.all) {
            println!("{}", serde_json::to_string(&guest)?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut lacking = Lacking::Skips;
    if let Some(name) = &arguments.on {
        let machine = MACHINES.iter().find(|machine| machine.name() == *name);
        let machine = machine.with_context(|| {
            let names: Vec<String> = MACHINES.iter().map(|machine| machine.name()).collect();
            format!("no machine {name}; there are {}", names.join(", "))
        })?;
        tests = machine.tests(&tests, arguments.all);
        if !arguments.all {
            lacking = Lacking::Fails;
        }
    }
    let filters = &arguments.filters;
    let is_meant = |name: &str| {
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
    };
    tests.retain(|test| is_meant(test.name));
    if arguments.list {
        for test in tests {
            println!("{}", test.name);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let hooks = if arguments.all {
        Hooks::Every
    } else {
        Hooks::Tracepoints
    };
    let tally = run(&tests, lacking, hooks)?;
    Ok(if tally.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
