//! `cargo xtask test`: everything that must hold before a change goes in, and one summary line.
//!
//! Stages run one after the other, cheap ones first; the guests run in pairs, because a guest uses one CPU of this machine.
//! A failing stage prints its log and the others still run.

mod report;

use std::fmt;
use std::io::{self, Write as _};
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Result;

use self::report::Counts;
use crate::guest::{CgroupLayout, Guest, GuestEnd, Topology};
use crate::kernel::Kernel;
use crate::progress::say;
use crate::{ebpf, process, setup};

/// A guest and what it runs.
struct Run {
    kernel: Kernel,
    cgroup: CgroupLayout,
    topology: Topology,
    memory_mb: u64,
    /// Only tests with this in their names.
    filter: &'static str,
    /// And none whose names begin with one of these.
    skips: &'static [&'static str],
    /// More kernel parameters.
    append: &'static str,
}

impl Run {
    /// The newest. What is above the kernel is run here alone; what is as old as the oldest kernel, there or between.
    const fn newest(kernel: Kernel) -> Self {
        const SKIPS: &[&str] = &[
            "disk::",
            "last_line::nobody",
            "oom_scores::by",
            "oom_scores::in",
            "placement::",
            "planned::",
            "swap::",
        ];
        Self::all_but(kernel, CgroupLayout::Cgroup2, SKIPS)
    }

    /// The oldest. Pins and `uninstall` are run in the guest with its other hierarchy.
    const fn oldest(kernel: Kernel) -> Self {
        const SKIPS: &[&str] = &[
            "capabilities::",
            "explain::",
            "faults::a_flood",
            "guides::",
            "journal::",
            "last_line::nobody",
            "oom_scores::by",
            "oom_scores::in",
            "planned::",
            "policies::",
            "qos::",
            "reserved::",
            "restart::",
            "scenarios::",
            "sources::",
            "stalls::",
            "top::",
        ];
        Self::all_but(kernel, CgroupLayout::Cgroup2, SKIPS)
    }

    /// Neither the oldest of how things are done nor the newest: the programs, and what an agent does with what they tell.
    const fn between(kernel: Kernel) -> Self {
        const SKIPS: &[&str] = &[
            "capabilities::",
            "cpu::",
            "disk::",
            "explain::",
            "faults::a_flood",
            "guides::",
            "journal::",
            "placement::",
            "planned::",
            "policies::",
            "qos::",
            "remedies::",
            "reserved::",
            "scenarios::",
            "sources::",
            "stalls::",
            "top::",
            "trace::",
        ];
        Self::all_but(kernel, CgroupLayout::Cgroup2, SKIPS)
    }

    /// All tests but those whose names begin with one of `skips`, on a machine with one NUMA node.
    const fn all_but(kernel: Kernel, cgroup: CgroupLayout, skips: &'static [&'static str]) -> Self {
        Self {
            kernel,
            cgroup,
            topology: Topology::Flat(4),
            memory_mb: GUEST_MEMORY_MB,
            filter: "",
            skips,
            append: "",
        }
    }

    /// Without those to which the hierarchy makes no difference: they have been run on this kernel or another.
    const fn hierarchy(kernel: Kernel, cgroup: CgroupLayout) -> Self {
        const SKIPS: &[&str] = &[
            "disk::",
            "explain::",
            "faults::a_flood",
            "guides::",
            "journal::",
            "last_line::nobody",
            "last_line::without",
            "planned::",
            "policies::",
            "remedies::",
            "scenarios::",
            "stalls::a_pod_that_reads",
            "swap::",
            "top::",
            // What is about v1 stays.
            "capabilities::each",
            "capabilities::the",
            "capabilities::unprivileged",
        ];
        Self::all_but(kernel, cgroup, SKIPS)
    }

    /// The tests of NUMA nodes, on a machine with two.
    const fn numa(kernel: Kernel, cgroup: CgroupLayout) -> Self {
        Self {
            kernel,
            cgroup,
            topology: Topology::Numa2Flat(1),
            memory_mb: GUEST_MEMORY_MB,
            filter: "numa::",
            skips: &[],
            append: "",
        }
    }

    /// What a host that was booted so still allows.
    const fn booted(kernel: Kernel, append: &'static str) -> Self {
        Self {
            kernel,
            cgroup: CgroupLayout::Cgroup2,
            topology: Topology::Flat(4),
            memory_mb: GUEST_MEMORY_MB,
            filter: "ladder::as_booted",
            skips: &[],
            append,
        }
    }

    /// Only these tests.
    const fn only(kernel: Kernel, cgroup: CgroupLayout, filter: &'static str) -> Self {
        Self {
            kernel,
            cgroup,
            topology: Topology::Flat(4),
            memory_mb: GUEST_MEMORY_MB,
            filter,
            skips: &[],
            append: "",
        }
    }

    /// Where processes are, on a machine with eight NUMA nodes, threads and split caches.
    const fn planned(kernel: Kernel, cgroup: CgroupLayout) -> Self {
        Self {
            kernel,
            cgroup,
            topology: Topology::Numa8,
            // Each node has room for its pods.
            memory_mb: 2 * GUEST_MEMORY_MB,
            filter: "planned::",
            skips: &[],
            append: "",
        }
    }
}

/// For the line that tells how it went.
impl fmt::Display for Run {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, cgroup, .. } = self;
        write!(formatter, "guest tests, kernel {kernel}, {}", cgroup.name())?;
        if !self.filter.is_empty() {
            write!(formatter, ", {} on {}", self.filter, self.topology)?;
        }
        if !self.append.is_empty() {
            write!(formatter, ", {}", self.append)?;
        }
        Ok(())
    }
}

/// The guests, long ones first.
static GUESTS: [Run; 9] = [
    Run::oldest(Kernel::V6_1),
    Run::newest(Kernel::V7_2),
    Run::between(Kernel::V6_12),
    // The one kernel of the three that still has the memory controller on cgroup v1.
    Run::hierarchy(Kernel::V6_1, CgroupLayout::Hybrid),
    Run::planned(Kernel::V7_2, CgroupLayout::Cgroup2),
    Run::numa(Kernel::V7_2, CgroupLayout::Cgroup2),
    Run::numa(Kernel::V6_1, CgroupLayout::Hybrid),
    Run::booted(Kernel::V6_12, "lockdown=confidentiality"),
    Run::booted(Kernel::V7_2, "lockdown=integrity psi=0"),
];

/// Hosts that allow only part of what the agent would like, in every combination: minutes that CI does not spend.
static LADDER_GUESTS: [Run; 20] = [
    Run::booted(Kernel::V6_1, "lockdown=integrity"),
    Run::booted(Kernel::V6_1, "lockdown=confidentiality"),
    Run::booted(Kernel::V6_1, "psi=0"),
    Run::booted(Kernel::V6_1, "lockdown=confidentiality psi=0"),
    Run::booted(Kernel::V6_12, "lockdown=integrity"),
    Run::booted(Kernel::V6_12, "lockdown=confidentiality"),
    Run::booted(Kernel::V6_12, "psi=0"),
    Run::booted(Kernel::V6_12, "lockdown=confidentiality psi=0"),
    Run::booted(Kernel::V7_2, "lockdown=integrity"),
    Run::booted(Kernel::V7_2, "lockdown=confidentiality"),
    Run::booted(Kernel::V7_2, "psi=0"),
    Run::booted(Kernel::V7_2, "lockdown=confidentiality psi=0"),
    Run::only(Kernel::V6_1, CgroupLayout::Cgroup2, "ladder::"),
    Run::only(Kernel::V6_1, CgroupLayout::Hybrid, "ladder::"),
    Run::only(Kernel::V6_1, CgroupLayout::Cgroup1, "ladder::"),
    Run::only(Kernel::V6_12, CgroupLayout::Cgroup2, "ladder::"),
    Run::only(Kernel::V7_2, CgroupLayout::Cgroup2, "ladder::"),
    Run::only(Kernel::V6_1, CgroupLayout::Cgroup1, "capabilities::"),
    Run::only(Kernel::V6_12, CgroupLayout::Cgroup2, "capabilities::"),
    Run::only(Kernel::V7_2, CgroupLayout::Cgroup2, "capabilities::"),
];
/// Guests at a time.
const GUESTS_AT_ONCE: usize = 2;
/// Guest tests that may fail at first.
const SECOND_CHANCES: usize = 3;
/// The program that runs in them (tests/src/bin/guest_tests.rs).
const GUEST_TESTS: &str = "guest_tests";
/// Room for a node with pods and a hog.
const GUEST_MEMORY_MB: u64 = 2048;
/// Time for one guest.
const GUEST_TIME_MAX: Duration = Duration::from_secs(25 * 60);
/// Time for `cargo test`, seconds, its build included: a test that hangs must not hang everything.
const CARGO_TEST_TIME_MAX_S: &str = "1500";

/// What a stage came to.
struct Outcome {
    counts: Counts,
    /// Shown when the stage failed.
    log: String,
    /// Always shown: tests that were skipped or failed, with their reasons.
    notes: Vec<String>,
    /// Guest tests that failed.
    failed_tests: Vec<String>,
}

impl From<Result<()>> for Outcome {
    fn from(result: Result<()>) -> Self {
        Self {
            counts: Counts::one(result.is_ok()),
            log: result
                .err()
                .map(|error| format!("{error:#}"))
                .unwrap_or_default(),
            notes: Vec::new(),
            failed_tests: Vec::new(),
        }
    }
}

/// Runs the stages and prints the summary line; 1 on any failure.
pub(crate) fn run(quick: bool) -> Result<u8> {
    let started = Instant::now();
    // First, so that progress of a first-time set-up is not mixed with the stages.
    if !quick {
        setup::qemu()?;
    }
    setup::nightly_clippy(&setup::nightly()?)?;
    setup::bpf_linker()?;
    if !quick {
        setup::busybox()?;
        for kernel in Kernel::ALL {
            kernel.boot()?;
        }
    }

    let mut sum = Counts::default();
    sum += stage("formatting", || {
        passes(process::cargo().args(["fmt", "--all", "--check"])).into()
    });
    sum += stage("formatting of ebpf", || {
        let manifest = ["fmt", "--check", "--manifest-path", "ebpf/Cargo.toml"];
        passes(process::cargo().args(manifest)).into()
    });
    // Before what embeds the object.
    sum += stage("BPF object", || ebpf::build().map(|_| ()).into());
    sum += stage("clippy", || {
        let clippy = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        passes(process::cargo().args(clippy)).into()
    });
    sum += stage("clippy of ebpf", || ebpf::clippy().into());
    sum += stage("unit, golden and CLI tests", cargo_test);
    if quick {
        say(
            "test",
            "guests left out (--quick): kernels 6.1, 6.12 and 7.2 were not tested",
        );
    } else {
        say("test", "guests: kernels 6.1, 6.12 and 7.2");
        sum += guests(&GUESTS);
    }
    say("test", format_args!("took {}", minutes(started.elapsed())));
    println!("{sum}");
    Ok(u8::from(sum.failed > 0))
}

/// Only the guests that allow part of what the agent would like; 1 on any failure.
pub(crate) fn run_ladder() -> Result<u8> {
    let started = Instant::now();
    say("test", "guests on every rung of the ladder");
    let sum = guests(&LADDER_GUESTS);
    say("test", format_args!("took {}", minutes(started.elapsed())));
    println!("{sum}");
    Ok(u8::from(sum.failed > 0))
}

fn stage(name: &str, run: impl FnOnce() -> Outcome) -> Counts {
    say("test", name);
    let started = Instant::now();
    let outcome = run();
    tell(name, &outcome, started.elapsed())
}

/// One line on how a stage went, and its log when it failed.
fn tell(name: &str, outcome: &Outcome, took: Duration) -> Counts {
    let Outcome {
        counts, log, notes, ..
    } = outcome;
    let word = if counts.failed == 0 { "ok" } else { "FAILED" };
    if counts.failed > 0 {
        let _ = writeln!(io::stderr(), "---- {name}\n{}\n----", log.trim_end());
    }
    for note in notes {
        say("", note);
    }
    say(word, format_args!("{name}: {counts} ({})", minutes(took)));
    *counts
}

fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

/// Whether a command succeeds; its words when it does not.
fn passes(command: &mut Command) -> Result<()> {
    process::output_of(
        command,
        &format!("run it yourself: `{}`", process::shown(command)),
    )
    .map(|_| ())
}

fn cargo_test() -> Outcome {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10", CARGO_TEST_TIME_MAX_S])
        .args(["cargo", "test", "--workspace", "--no-fail-fast"])
        .current_dir(crate::paths::root());
    process::without_own_environment(&mut command);
    match process::run(&mut command) {
        Ok(output) => {
            let log = process::merged(&output);
            let mut counts = report::of_cargo_test(&log, output.status.success());
            if counts == Counts::default() {
                counts.failed = 1;
            }
            Outcome {
                counts,
                log: failures(&log),
                notes: Vec::new(),
                failed_tests: Vec::new(),
            }
        }
        Err(error) => Err(error).into(),
    }
}

/// `cargo test`'s output without the tests that succeeded.
fn failures(log: &str) -> String {
    let told = |line: &&str| {
        let passed = line.starts_with("test ") && line.ends_with(" ... ok");
        !passed && !line.is_empty() && !line.starts_with("running ") && !process::is_progress(line)
    };
    log.lines().filter(told).collect::<Vec<_>>().join("\n")
}

/// Runs these guests, at most [`GUESTS_AT_ONCE`] at a time, and tells of each when it ends. Then what has failed, if that is little, has
/// a second chance in a guest that has the machine to itself: a test that waits for something has a limit, and an emulated
/// CPU that shares its host may stand still for longer. That it was needed is said.
fn guests(runs: &[Run]) -> Counts {
    let queue = Mutex::new(runs.iter());
    let (sender, ended) = mpsc::channel();
    let mut sum = Counts::default();
    let mut failed = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..GUESTS_AT_ONCE {
            let (queue, sender) = (&queue, sender.clone());
            scope.spawn(move || {
                // A poisoned queue means that a worker panicked; the scope passes that on.
                while let Some(run) = queue.lock().ok().and_then(|mut queue| queue.next()) {
                    let started = Instant::now();
                    let outcome = guest(run, run.filter);
                    if sender.send((run, outcome, started.elapsed())).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (run, outcome, took) in ended {
            sum += tell(&run.to_string(), &outcome, took);
            if !outcome.failed_tests.is_empty() {
                failed.push((run, outcome.failed_tests));
            }
        }
    });
    if failed.iter().map(|(_, names)| names.len()).sum::<usize>() > SECOND_CHANCES {
        return sum;
    }
    for (run, names) in failed {
        let started = Instant::now();
        let outcome = guest(run, &names.join(" "));
        let name = format!("{run}: what has failed, once more and alone");
        let again = tell(&name, &outcome, started.elapsed());
        // Each name chooses one test or more.
        if again.failed == 0 && again.passed >= names.len() as u64 {
            sum.failed -= names.len() as u64;
            sum.passed += names.len() as u64;
        }
    }
    sum
}

fn guest(run: &Run, filter: &str) -> Outcome {
    let Run {
        kernel,
        cgroup,
        topology,
        memory_mb,
        skips,
        append,
        ..
    } = run;
    let skips: String = skips
        .iter()
        .map(|prefix| format!(" --skip {prefix}"))
        .collect();
    let command = format!("{GUEST_TESTS} {filter}{skips}");
    let command = command.trim_end();
    let ended = Guest::new(kernel.clone())
        .topology(*topology)
        .memory_mb(*memory_mb)
        .cgroup(*cgroup)
        .append(append)
        .timeout(Some(GUEST_TIME_MAX))
        .command(command)
        .run(|_| {});
    let exit = match ended {
        Ok(exit) => exit,
        Err(error) => return Err(error).into(),
    };
    let counts = report::of_guest_tests(&exit.lines, exit.code());
    let end = match exit.end {
        GuestEnd::Status(status) => format!("{GUEST_TESTS} ended with status {status}"),
        GuestEnd::TimedOut => format!("the guest was stopped after {}", minutes(GUEST_TIME_MAX)),
        GuestEnd::NoStatus => "the guest ended without a status".to_owned(),
    };
    let starts = if exit.attempts > 1 {
        ", started twice"
    } else {
        ""
    };
    let again = format!(
        "cargo xtask vm --kernel {kernel} --cgroup {} --topology {topology} --memory {memory_mb} --append '{append}' --cmd '{command}'",
        cgroup.name()
    );
    Outcome {
        counts,
        log: format!(
            "{}\n{end}{starts}, {} after its start\nrun it yourself: `{again}`",
            exit.lines.join("\n"),
            minutes(exit.took)
        ),
        notes: report::notable(&exit.lines).map(str::to_owned).collect(),
        failed_tests: report::failed_guest_tests(&exit.lines),
    }
}
