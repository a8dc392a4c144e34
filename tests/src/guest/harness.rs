//! A list of tests, run one after the other in a guest, reported as cargo's own test runner does.
//!
//! Each test is a process of its own, leader of a process group: a panic (which aborts in this profile), a hang or a
//! lost child stays its own affair. The next scene clears away what it left in `kubepods`.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::clock::wait_until;
use super::kernel_oom::KernelLog;
use super::on::On;

/// A test that takes longer hangs. By the guest's clock, which counts instructions under `cargo xtask test`: how busy
/// the host is makes no difference.
const TEST_TIME_MAX: Duration = Duration::from_secs(600);
/// Another limit than that, in seconds: for a test that was asked to do more than usual.
const TEST_TIME_VARIABLE: &str = "PLIMSOLL_TEST_SECONDS";
/// Set for the tests of `--all`.
const EVERY_HOOK_VARIABLE: &str = "PLIMSOLL_TEST_EVERY_HOOK";
const STATUS_SKIPPED: u8 = 77;

/// Where the kernel's OOM killer reads whom to spare.
const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";
/// Of what the kernel said while a test failed, so much is shown.
const KERNEL_LINES: usize = 20;
/// Time for what a test left to be gone.
const LEFTOVERS_TIME: Duration = Duration::from_secs(10);

/// One test. It panics or returns an error to fail.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// `theme::what_must_hold`.
    pub name: &'static str,
    /// The machines that it runs on.
    pub on: On,
    /// The test.
    pub run: fn() -> Outcome,
}

/// How a test ends when it does not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// What must hold, holds.
    Passed,
    /// This guest lacks what the test is about.
    Skipped(Lacks),
}

/// A test's result.
pub type Outcome = anyhow::Result<Done>;

/// What it means that a machine lacks what a test is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// The test is skipped: it was not chosen for this machine.
    Skips,
    /// The test fails: it was declared for this machine, and would be skipped here for ever.
    Fails,
}

/// What a guest may lack. Nothing else is a reason to skip, so that a failure cannot hide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// No cgroup v2 memory controller (hybrid or v1 boot).
    MemoryOnV2,
    /// No v1 memory hierarchy.
    MemoryOnV1,
    /// No `cgroup.kill` (kernel before 5.14, or v1).
    CgroupKill,
    /// No io controller on cgroup v2.
    IoOnV2,
    /// One NUMA node.
    TwoNumaNodes,
    /// Fewer than four CPUs.
    FourCpus,
    /// Fewer than eight CPUs.
    EightCpus,
    /// CPUs cannot be switched off.
    CpuHotplug,
    /// An image by path came without modules.
    Zram,
}

impl Lacks {
    fn reason(self) -> &'static str {
        match self {
            Self::MemoryOnV2 => "the memory controller is not on cgroup v2 here",
            Self::MemoryOnV1 => "the memory controller is not on cgroup v1 here",
            Self::CgroupKill => "the kernel has no cgroup.kill",
            Self::IoOnV2 => "the io controller is not on cgroup v2 here",
            Self::TwoNumaNodes => "this machine has one NUMA node",
            Self::FourCpus => "this machine has fewer than four CPUs",
            Self::EightCpus => "this machine has fewer than eight CPUs",
            Self::CpuHotplug => "CPUs cannot be switched off here",
            Self::Zram => "this guest has no zram: its kernel came without modules",
        }
    }
}

/// Which hooks the agents of a run have, where a test does not depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hooks {
    /// Those that are quickly attached.
    Tracepoints,
    /// All that the machine has.
    Every,
}

/// Whether this test's run is one of [`Hooks::Every`].
#[must_use]
pub fn every_hook() -> bool {
    std::env::var_os(EVERY_HOOK_VARIABLE).is_some()
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Passed.
    pub passed: u32,
    /// Failed.
    pub failed: u32,
    /// Skipped.
    pub skipped: u32,
}

/// Runs one test in this process: 0 passed, 77 skipped, 1 failed; what there is to say goes to standard error.
#[must_use]
pub fn run_here(test: &Test) -> ExitCode {
    // What it starts is not to be spared as the process before it is.
    if let Err(error) = fs::write(OOM_SCORE_ADJ, "0") {
        eprintln!("{OOM_SCORE_ADJ}: {error}");
        return ExitCode::FAILURE;
    }
    match (test.run)() {
        Ok(Done::Passed) => ExitCode::SUCCESS,
        Ok(Done::Skipped(lacks)) => {
            eprintln!("{}", lacks.reason());
            ExitCode::from(STATUS_SKIPPED)
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The kernel's OOM killer is not to end the test instead of what it is about.
///
/// # Errors
/// The kernel refuses.
pub fn spare_this_process() -> anyhow::Result<()> {
    fs::write(OOM_SCORE_ADJ, "-1000").context(OOM_SCORE_ADJ)
}

/// Runs the tests, each as `guest_tests --one NAME`; prints a line before and after each and one at the end.
///
/// # Errors
/// A test cannot be started at all.
pub fn run(tests: &[Test], lacking: Lacking, hooks: Hooks) -> anyhow::Result<Tally> {
    spare_this_process()?;
    let mut tally = Tally::default();
    for (number, test) in (1..).zip(tests) {
        // Who watches sees how far it is, and which test the guest died in.
        println!("running {} ({number} of {})", test.name, tests.len());
        let mut kernel_log = KernelLog::from_now().context("/dev/kmsg")?;
        let start = Instant::now();
        let (status, mut said) = run_apart(test, hooks)?;
        let took_s = start.elapsed().as_secs_f32();
        let skipped = status == Some(i32::from(STATUS_SKIPPED));
        if status == Some(0) {
            tally.passed += 1;
            println!("test {} ... ok ({took_s:.1} s)", test.name);
            continue;
        }
        if skipped && lacking == Lacking::Skips {
            tally.skipped += 1;
            println!("test {} ... skipped: {}", test.name, said.trim_end());
            continue;
        }
        if skipped {
            said.insert_str(0, "its `on:` names this machine, where it cannot run: ");
        }
        tally.failed += 1;
        println!("test {} ... FAILED ({took_s:.1} s)", test.name);
        for line in said.lines() {
            println!("    {line}");
        }
        for line in kernel_log.newest(KERNEL_LINES).context("/dev/kmsg")? {
            println!("    kernel, {line}");
        }
    }
    println!(
        "\n{} passed, {} failed, {} skipped",
        tally.passed, tally.failed, tally.skipped
    );
    Ok(tally)
}

/// The exit status (`None`: killed, or out of time) and what the test wrote.
fn run_apart(test: &Test, hooks: Hooks) -> anyhow::Result<(Option<i32>, String)> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--one", test.name])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    if hooks == Hooks::Every {
        command.env(EVERY_HOOK_VARIABLE, "1");
    }
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {}", test.name))?;
    let group = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .context("a child's pid is positive")?;
    let mut stderr = child.stderr.take().context("standard error is a pipe")?;
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        // A read error ends the text; the status tells whether the test passed.
        let _length = stderr.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    });
    let time_max = match std::env::var(TEST_TIME_VARIABLE) {
        Ok(text) => Duration::from_secs(text.parse().context(TEST_TIME_VARIABLE)?),
        Err(_) => TEST_TIME_MAX,
    };
    let ended = wait_until(time_max, Duration::from_millis(10), || {
        matches!(child.try_wait(), Ok(Some(_)))
    });
    // Its children are in its group; an empty group is what a tidy test leaves.
    let _empty = kill_process_group(group, Signal::KILL);
    let status = child.wait()?;
    // The next test is to find the memory free.
    let all_gone = wait_until(LEFTOVERS_TIME, Duration::from_millis(10), || {
        test_kill_process_group(group).is_err()
    });
    let mut said = reader.join().unwrap_or_default();
    if let (None, Some(signal)) = (status.code(), status.signal()) {
        said.push_str(&format!("ended by signal {signal}\n"));
    }
    if !all_gone {
        said.push_str("what it started is still there\n");
    }
    if !ended {
        said.push_str(&format!(
            "stopped: not finished after {} s of the guest's clock\n",
            time_max.as_secs()
        ));
    }
    Ok((status.code().filter(|_| ended), said))
}
