//! `cargo xtask demo`: the project's story on a real kernel, live.
//!
//! The guest program `story` tells it (tests/src/guest/story): pods of real processes, one that leaks, with
//! the agent or without.
//!
//! Problem: an emulated guest is as slow as the machine that it runs on is busy, and whatever waits for seconds in it
//! fails there. Approach: the guest's time is the instructions that it has executed, 1 ns each, and idle time is
//! skipped. So its clock stands still while the machine is busy with something else, every wait is one for progress,
//! and the figures are the same anywhere.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, FromArgMatches as _, ValueEnum};

use crate::architecture::Architecture;
use crate::busybox;
use crate::guest::{Clock, Guest, GuestEnd, OF_DEMO, Programs, build_programs};
use crate::interrupt::Folder;
use crate::kernel::Kernel;
use crate::progress::{self, Progress, Step, say};
use crate::setup;

/// The whole machine: large enough for five pods, small enough to fill quickly.
const MEMORY_MB: u64 = 1024;
/// A guest that says nothing for so long hangs. Time in which this machine kept it from running does not count; booting
/// takes ten seconds.
const PATIENCE: Duration = Duration::from_secs(180);
/// What the guest said last, shown when it ended without a result.
const LINES_SHOWN: usize = 20;
/// Around the name of the step that `story --steps` begins, a line of its own.
const STEP_START: &str = "@@PLIMSOLL-STEP ";
const STEP_END: &str = "@@";
const FIRST_STEP: &str = "booting the guest";

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
    /// Number of runs; with more than 1, print a line for each run, then medians
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Growth of the leaking pod, MB a second
    #[arg(long, default_value_t = 64, value_name = "MB")]
    rate: u64,
    /// What to print
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Take the agent and the guest programs from this folder instead of building them
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

impl DemoArgs {
    fn story(&self) -> String {
        let without = if self.without { " --without" } else { "" };
        format!(
            "story --steps --instruction-time --runs {} --rate-mb-s {}{without}",
            self.runs, self.rate
        )
    }
}

/// How a story ended.
struct Finished {
    status: u8,
    lines: Vec<String>,
    last_step: String,
    by_hand: String,
    /// What the guest left.
    out: Folder,
}

/// Tells the story; the status is the story's own: 0 when all went as it must.
pub(crate) fn run(args: &DemoArgs) -> Result<u8> {
    let finished = tell(args, |line| {
        if args.output == Output::Text {
            progress::print(line);
        }
    })?;
    if finished.status != 0 {
        say("demo", format_args!("to look closer: {}", finished.by_hand));
    }
    if args.output == Output::Json {
        let file = finished.out.path().join("story.json");
        let text = fs::read_to_string(&file).with_context(|| {
            format!(
                "the guest left no result in {}: {}",
                file.display(),
                finished.ended_early("ended")
            )
        })?;
        progress::print(&text);
    }
    Ok(finished.status)
}

/// Tells it as `cargo xtask demo` does; an error has the whole story in it.
pub(crate) fn succeeds() -> Result<()> {
    let matches = DemoArgs::augment_args(clap::Command::new("demo")).get_matches_from(["demo"]);
    let finished = tell(&DemoArgs::from_arg_matches(&matches)?, |_| {})?;
    ensure!(
        finished.status == 0,
        "{}\nthe story ended with status {}\nto look closer: {}",
        finished.lines.join("\n"),
        finished.status,
        finished.by_hand
    );
    Ok(())
}

fn tell(args: &DemoArgs, on_line: impl FnMut(&str)) -> Result<Finished> {
    let out = Folder::new()?;
    let mut guest = Guest::new(args.kernel.clone())
        .memory_mb(MEMORY_MB)
        .clock(Clock::OneCpuInstructions)
        // Its time stands still when this machine has none for it.
        .timeout(None)
        .patience(PATIENCE, |_| true)
        .out(out.path())
        .programs(Programs::None)
        .command(args.story());
    for program in prepare(args)? {
        guest = guest.payload(program);
    }
    let mut audience = Audience::new(on_line);
    let exit = guest.run(|line| audience.line(line))?;
    let lines = exit.lines.iter().filter(|line| step_in(line).is_none());
    let finished = Finished {
        status: exit.code(),
        lines: lines.cloned().collect(),
        last_step: audience.leave(),
        by_hand: guest.by_hand(),
        out,
    };
    match exit.end {
        GuestEnd::Status(_) => Ok(finished),
        GuestEnd::NoStatus => bail!("{}", finished.ended_early("ended")),
        GuestEnd::TimedOut => {
            let how = format!(
                "said nothing for {} s in which it could run, and was stopped,",
                PATIENCE.as_secs()
            );
            bail!("{}", finished.ended_early(&how))
        }
    }
}

impl Finished {
    /// Why there is no result.
    fn ended_early(&self, how: &str) -> String {
        let last = &self.lines[self.lines.len().saturating_sub(LINES_SHOWN)..];
        let said = if last.is_empty() {
            "It said nothing at all.".to_owned()
        } else {
            format!(
                "Its last {} lines:\n    {}",
                last.len(),
                last.join("\n    ")
            )
        };
        format!(
            "the guest {how} while {}. {said}\nTo look closer: {}",
            self.last_step, self.by_hand
        )
    }
}

/// All that takes a while before the guest starts: the kernel comes while the programs are built. Returns the programs.
fn prepare(args: &DemoArgs) -> Result<Vec<PathBuf>> {
    // First: it is what may need the user.
    setup::qemu(Architecture::Amd64)?;
    thread::scope(|scope| {
        let kernel = scope.spawn(|| {
            busybox::fetched(Architecture::Amd64)?;
            args.kernel.boot(Architecture::Amd64)
        });
        let programs = match &args.programs {
            Some(folder) => Ok(vec![folder.clone()]),
            None => build_programs(Some(OF_DEMO), Architecture::Amd64),
        };
        match kernel.join() {
            Ok(boot) => boot?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        programs
    })
}

fn step_in(line: &str) -> Option<&str> {
    let (_, after) = line.split_once(STEP_START)?;
    Some(after.split_once(STEP_END)?.0)
}

/// Who watches: the story's lines go to `on_line`, its steps to the progress on stderr.
struct Audience<F> {
    on_line: F,
    name: String,
    step: Step,
}

impl<F: FnMut(&str)> Audience<F> {
    fn new(on_line: F) -> Self {
        Self {
            on_line,
            name: FIRST_STEP.to_owned(),
            step: Step::begin("demo", "the guest's time counts instructions; booting it"),
        }
    }

    fn line(&mut self, line: &str) {
        if let Some(name) = step_in(line) {
            self.name = name.to_owned();
            self.step.at(Progress::doing(name));
        } else {
            (self.on_line)(line);
        }
    }

    /// The step that was the last to begin.
    fn leave(self) -> String {
        self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_from_lines() {
        let mut lines = Vec::new();
        let mut audience = Audience::new(|line: &str| lines.push(line.to_owned()));
        assert_eq!(audience.name, FIRST_STEP);
        audience.line("[  0.1 s] a node");
        assert_eq!(audience.name, FIRST_STEP);
        audience.line("@@PLIMSOLL-STEP starting pod web@@");
        audience.line("[  0.2 s] pod web");
        assert_eq!(audience.leave(), "starting pod web");
        assert_eq!(lines, ["[  0.1 s] a node", "[  0.2 s] pod web"]);
    }

    #[test]
    fn an_early_end_names_the_step_and_the_last_lines() {
        let mut finished = Finished {
            status: 125,
            lines: (0..50).map(|line| format!("line {line}")).collect(),
            last_step: "starting pod web".to_owned(),
            by_hand: "cargo xtask vm".to_owned(),
            out: Folder::new().unwrap(),
        };
        let text = finished.ended_early("ended");
        assert!(
            text.starts_with("the guest ended while starting pod web. "),
            "{text}"
        );
        assert!(
            text.contains("    line 30\n") && text.contains("    line 49\n"),
            "{text}"
        );
        assert!(!text.contains("line 29"), "{text}");
        assert!(text.ends_with("To look closer: cargo xtask vm"), "{text}");
        finished.lines.clear();
        let text = finished.ended_early("ended");
        assert!(text.contains("said nothing"), "{text}");
    }
}
