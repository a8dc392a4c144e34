//! `cargo xtask demo`: the project's story on a real kernel, live.
//!
//! The guest program `story` tells it (tests/src/guest/story): pods of real processes, one that leaks, the agent or nobody.

use std::fs;
use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use crate::guest::{Guest, GuestEnd, Topology};
use crate::kernel::Kernel;
use crate::progress::say;

/// The whole machine: large enough for five pods, small enough to fill quickly.
const MEMORY_MB: u64 = 2048;
/// Wall-clock time for one run on a slow and busy machine, and for the boot.
const RUN_TIME_MAX: Duration = Duration::from_secs(180);

/// How the result comes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// The story as it happens, and a table.
    Text,
    /// One JSON array with an object for each run, nothing else.
    Json,
}

/// What is shown.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Kernel to boot: 6.1, 6.12, 7.2, or the path of an image
    #[arg(long, default_value = "6.12")]
    kernel: Kernel,
    /// The same story with the agent off: what happens today
    #[arg(long)]
    without: bool,
    /// Tell it so often, a line each, and print medians
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Growth of the leaking pod, MB a second
    #[arg(long, default_value_t = 64, value_name = "MB")]
    rate: u64,
    /// What to print
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Tells the story; the status is the story's own: 0 when all went as it must.
pub(crate) fn run(args: &DemoArgs) -> Result<u8> {
    let out = tempfile::tempdir().context("cannot make a temporary folder")?;
    let without = if args.without { " --without" } else { "" };
    let exit = Guest::new(args.kernel.clone())
        .topology(Topology::Numa2)
        .memory_mb(MEMORY_MB)
        .timeout(Some(RUN_TIME_MAX * (args.runs + 1)))
        .out(out.path())
        .command(format!(
            "story --runs {} --rate-mb-s {}{without}",
            args.runs, args.rate
        ))
        .run(|line| {
            if args.output == Output::Text {
                // A closed stdout (a pager that ended) must not stop the guest.
                let _closed = writeln!(io::stdout(), "{line}");
            }
        })?;
    match exit.end {
        GuestEnd::Status(_) => {}
        GuestEnd::TimedOut => say("demo", "stopped: the guest took too long"),
        GuestEnd::NoStatus => say(
            "demo",
            "the guest ended without an exit status: see the console above for a panic",
        ),
    }
    if args.output == Output::Json {
        let file = out.path().join("story.json");
        let text = fs::read_to_string(&file)
            .with_context(|| format!("the guest left no result:\n{}", exit.lines.join("\n")))?;
        println!("{text}");
    }
    Ok(exit.code())
}
