//! The tests that need a kernel of their own: `guest_tests [FILTER…] [--skip PREFIX]`, `--list`. Run by `cargo xtask test` on each kernel.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use tests::guest::cases;
use tests::guest::harness::{Test, run, run_here};

#[derive(Parser)]
struct Arguments {
    /// Only tests whose name contains one of these.
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// Without tests whose name begins with this; may be repeated.
    #[arg(long, value_name = "PREFIX")]
    skip: Vec<String>,
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
    let skips = |name: &str| arguments.skip.iter().any(|prefix| name.starts_with(prefix));
    let filters = &arguments.filters;
    let is_meant = |name: &str| {
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
    };
    tests.retain(|test| is_meant(test.name) && !skips(test.name));
    if arguments.list {
        for test in tests {
            println!("{}", test.name);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let tally = run(&tests)?;
    Ok(if tally.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
