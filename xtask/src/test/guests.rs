//! The guests of the plan: each runs its tests, and what it says becomes an [`Outcome`].
//!
//! The plan is the tests' own (tests/src/guest/machines.rs): `guest_tests --plan`, a static program, runs on this
//! machine as well.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Deserialize;

use super::Outcome;
use super::report::{self, GuestOutcome};
use crate::architecture::Architecture;
use crate::guest::{Clock, Guest, GuestEnd, GuestExit, OF_TESTS, Programs};
use crate::kernel::Kernel;
use crate::process;
use crate::progress::{Progress, Step, minutes};

/// What a guest of the tests is booted with, so that the emulator has less to do. With `--all` guests are as nodes are.
///
/// Nothing in these guests reads what a CPU speculates, and the kernel's mitigations take a quarter of what the
/// emulator does. And 112 is `X86_FEATURE_REP_GOOD`: without it the kernel clears and copies pages in loops of eight
/// words. When the emulator counts instructions, each word of a `rep stos` is a jump of its own, and tests that fill
/// memory take a seventh longer.
const QUICKLY_EMULATED: &str = "mitigations=off clearcpuid=112";

/// The program that runs in the guests (tests/src/bin/guest_tests.rs).
const GUEST_TESTS: &str = "guest_tests";

/// A guest in which no test begins or ends for so long, without counting time that this machine had for others, hangs.
/// A test that hangs is over much earlier: its limit counts the guest's instructions.
const PATIENCE: Duration = Duration::from_secs(40 * 60);

/// Tests named for the time that they took.
const SLOWEST_SHOWN: usize = 3;

/// Console lines shown of a guest that died or hung.
const LAST_LINES: usize = 20;

/// A line of `guest_tests --plan`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct PlannedGuest {
    name: String,
    architecture: String,
    kernel: String,
    cgroup: String,
    topology: String,
    memory_mb: u64,
    parameters: String,
    /// The names of its tests.
    pub(super) tests: Vec<String>,
    /// Whether it runs all that fits it.
    #[serde(skip)]
    all: bool,
}

impl PlannedGuest {
    pub(super) fn is_arm64(&self) -> bool {
        self.architecture == Architecture::Arm64.name()
    }

    pub(super) fn kernel(&self) -> Result<Kernel> {
        let unknown = |error: String| anyhow!("the plan of guest {}: {error}", self.name);
        self.kernel.parse().map_err(unknown)
    }
}

/// For the line that tells how it went.
impl fmt::Display for PlannedGuest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "guest {}", self.name)
    }
}

/// Asks the tests where they run.
pub(super) fn plan(programs: &[PathBuf], all: bool) -> Result<Vec<PlannedGuest>> {
    let is_it = |program: &&PathBuf| {
        program
            .file_name()
            .is_some_and(|name| name == Path::new(GUEST_TESTS))
    };
    let program = programs
        .iter()
        .find(is_it)
        .with_context(|| format!("cargo built no {GUEST_TESTS}"))?;
    let mut command = Command::new(program);
    command.arg("--plan");
    if all {
        command.arg("--all");
    }
    let lines = process::output_of(
        &mut command,
        "the guests' programs do not run on this machine",
    )?;
    read(&lines, all)
}

fn read(lines: &str, all: bool) -> Result<Vec<PlannedGuest>> {
    let guest = |line: &str| {
        let mut guest: PlannedGuest = serde_json::from_str(line)
            .with_context(|| format!("a line of `{GUEST_TESTS} --plan`: {line}"))?;
        ensure!(!guest.tests.is_empty(), "guest {} has no test", guest.name);
        guest.all = all;
        Ok(guest)
    };
    let guests = lines.lines().map(guest).collect::<Result<Vec<_>>>()?;
    ensure!(!guests.is_empty(), "the plan has no guest");
    Ok(guests)
}

/// Starts the guest, and says how far it is.
pub(super) fn run(planned: &PlannedGuest, step: &Step) -> Outcome {
    let guest = match guest(planned) {
        Ok(guest) => guest,
        Err(error) => return Err(error).into(),
    };
    let mut failed = 0_u64;
    let mut times = Vec::new();
    let mut began = Instant::now();
    let exit = guest.run(|text| {
        if let Some((name, _)) = report::outcome(text) {
            times.push((began.elapsed(), name.to_owned()));
        }
        if let Some((test, number)) = report::begun(text) {
            step.at(Progress {
                done: number.saturating_sub(1),
                total: Some(planned.tests.len() as u64),
                unit: "tests",
                now: format!("{failed} failed, {test}"),
            });
            began = Instant::now();
        }
        if let Some((_, GuestOutcome::Failed)) = report::outcome(text) {
            failed += 1;
        }
    });
    match exit {
        Ok(exit) => {
            let mut outcome = outcome(planned, &exit, &guest.by_hand());
            outcome.notes.extend(slowest(times));
            outcome
        }
        Err(error) => Err(error.context(format!("run it yourself: `{}`", guest.by_hand()))).into(),
    }
}

/// The tests that took longest on this machine's clock, for whoever balances the guests: the guest's clock skips idle
/// time.
fn slowest(mut times: Vec<(Duration, String)>) -> Option<String> {
    times.sort_by(|one, other| other.cmp(one));
    let slowest: Vec<String> = times
        .iter()
        .take(SLOWEST_SHOWN)
        .map(|(time, name)| format!("{name} {}", minutes(*time)))
        .collect();
    (!slowest.is_empty()).then(|| format!("slowest: {}", slowest.join(", ")))
}

/// Kernel 6.1 waits for ever for its second CPU when the emulator counts instructions. And on eight NUMA nodes `exec`
/// is then so much faster than the agent that a pod may start before its manifest has been read.
fn clock(kernel: &str, topology: &str) -> Clock {
    let is_slow_to_boot = kernel == "6.1" && topology != "flat:1";
    if is_slow_to_boot || topology == "numa8" {
        Clock::Host
    } else {
        Clock::Instructions
    }
}

fn guest(planned: &PlannedGuest) -> Result<Guest> {
    let PlannedGuest {
        name,
        architecture,
        kernel,
        cgroup,
        topology,
        memory_mb,
        parameters,
        all,
        ..
    } = planned;
    let (every, quickly) = if *all {
        (" --all", "")
    } else {
        ("", QUICKLY_EMULATED)
    };
    let unknown = |error: String| anyhow!("the plan of guest {name}: {error}");
    let mut guest = Guest::new(planned.kernel()?)
        .architecture(architecture.parse().map_err(unknown)?)
        .topology(topology.parse().map_err(unknown)?)
        .memory_mb(*memory_mb)
        .cgroup(cgroup.parse().map_err(unknown)?)
        .programs(Programs::Only(OF_TESTS))
        .clock(clock(kernel, topology))
        .timeout(None)
        .patience(PATIENCE, report::moves)
        .command(format!("{GUEST_TESTS} --on {name}{every}"));
    for parameters in [parameters, quickly] {
        if !parameters.is_empty() {
            guest = guest.append(parameters);
        }
    }
    Ok(guest)
}

/// What the guest's lines say, compared with the plan: a test that was planned and did not end has failed.
fn outcome(planned: &PlannedGuest, exit: &GuestExit, by_hand: &str) -> Outcome {
    let results = report::of_guest_tests(&exit.lines, &planned.tests, exit.code());
    let end = match exit.end {
        GuestEnd::Status(status) => format!("{GUEST_TESTS} ended with status {status}"),
        GuestEnd::TimedOut => format!(
            "the guest hung and was stopped: no test began or ended in {} in which it could run",
            minutes(PATIENCE)
        ),
        GuestEnd::NoStatus => "the guest died: it ended without a status".to_owned(),
    };
    let mut notes: Vec<String> = report::notable(&exit.lines).map(str::to_owned).collect();
    if results.unfinished > 0 {
        let during = match &results.during {
            Some(test) => format!("during {test}"),
            None => "before the first test".to_owned(),
        };
        notes.push(format!(
            "{end}, {during}; {} of {} tests did not end",
            results.unfinished,
            planned.tests.len()
        ));
    }
    let lines = match exit.end {
        GuestEnd::Status(_) => &exit.lines[..],
        // What it said last is why; what failed before that is in the notes.
        _ => &exit.lines[exit.lines.len().saturating_sub(LAST_LINES)..],
    };
    Outcome {
        counts: results.counts,
        log: format!(
            "{}\n{end}, {} after its start\nlook closer: `{by_hand}`\nor a shell in it: `{}`",
            lines.join("\n"),
            minutes(exit.took),
            shell(by_hand)
        ),
        notes,
        failed_tests: results.failed,
    }
}

/// The same guest with a shell.
fn shell(by_hand: &str) -> &str {
    by_hand
        .split_once(" --timeout ")
        .map_or(by_hand, |(guest, _)| guest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned() -> PlannedGuest {
        let line = r#"{"name":"6.1","architecture":"amd64","kernel":"6.1","cgroup":"cgroup2","topology":"flat:4","memory_mb":2048,"parameters":"psi=0","tests":["a","b","c"]}"#;
        read(line, true).unwrap().remove(0)
    }

    fn exit(end: GuestEnd, text: &str) -> GuestExit {
        GuestExit {
            end,
            lines: text.lines().map(str::to_owned).collect(),
            took: Duration::from_secs(61),
        }
    }

    #[test]
    fn a_plan_is_read_and_one_that_says_nothing_refused() {
        let planned = planned();
        assert_eq!(planned.to_string(), "guest 6.1");
        let by_hand = guest(&planned).unwrap().by_hand();
        assert!(
            by_hand.contains(
                "--kernel 6.1 --cgroup cgroup2 --topology flat:4 --memory 2048 --append 'psi=0'"
            ) && by_hand.ends_with("--cmd 'guest_tests --on 6.1 --all'"),
            "{by_hand}"
        );
        assert!(shell(&by_hand).ends_with("--append 'psi=0'"), "{by_hand}");
        let newer = PlannedGuest {
            kernel: "7.2".to_owned(),
            ..planned.clone()
        };
        assert!(
            guest(&newer)
                .unwrap()
                .by_hand()
                .contains(" --clock instructions ")
        );
        assert!(read("", false).is_err());
        assert!(read("nonsense", false).is_err());
        let no_tests = r#"{"name":"x","architecture":"amd64","kernel":"6.1","cgroup":"cgroup2","topology":"flat:4","memory_mb":1,"parameters":"","tests":[]}"#;
        assert!(read(no_tests, false).is_err());
        let mut unknown = planned;
        unknown.cgroup = "cgroup3".to_owned();
        assert!(guest(&unknown).is_err());
    }

    #[test]
    fn the_slowest_are_named() {
        let times = [3, 70, 1, 2].map(|s| (Duration::from_secs(s), format!("t{s}")));
        assert_eq!(
            slowest(times.to_vec()).as_deref(),
            Some("slowest: t70 1 min 10 s, t3 3 s, t2 2 s")
        );
        assert_eq!(slowest(Vec::new()), None);
    }

    #[test]
    fn a_guest_that_dies_or_hangs_is_told_with_its_test_and_its_last_lines() {
        let noise: String = (0..100).map(|line| format!("noise {line}\n")).collect();
        let text = format!(
            "running a (1 of 3)\ntest a ... ok (1.0 s)\nrunning b (2 of 3)\n{noise}Kernel panic"
        );
        for (end, words) in [
            (GuestEnd::NoStatus, "the guest died"),
            (GuestEnd::TimedOut, "the guest hung"),
        ] {
            let outcome = outcome(&planned(), &exit(end, &text), "cargo xtask vm");
            assert_eq!(outcome.counts.to_string(), "1 passed, 2 failed");
            assert_eq!(outcome.notes.len(), 1);
            assert!(outcome.notes[0].starts_with(words), "{:?}", outcome.notes);
            assert!(
                outcome.notes[0].ends_with("during b; 2 of 3 tests did not end"),
                "{:?}",
                outcome.notes
            );
            assert!(outcome.log.starts_with("noise 81\n"), "{}", outcome.log);
            for part in ["Kernel panic", words, "1 min 1 s", "`cargo xtask vm`"] {
                assert!(outcome.log.contains(part), "{part}: {}", outcome.log);
            }
            assert_eq!(outcome.failed_tests, ["b", "c"]);
        }
        let boot = exit(GuestEnd::NoStatus, "");
        let outcome = outcome(&planned(), &boot, "cargo xtask vm");
        assert!(
            outcome.notes[0].contains("before the first test; 3 of 3"),
            "{:?}",
            outcome.notes
        );
        assert_eq!(outcome.counts.failed, 3);
    }
}
