//! `cargo xtask test`: everything that must hold before a change goes in, and one summary line.
//!
//! Problem: guests and builds take minutes, on machines that do other things as well. Approach: what everything needs
//! comes first; then four jobs at a time, the host's own tests, which begin while the guests' programs are built, and a
//! guest for each machine of the plan ([`guests`]), because a guest uses one CPU. A failing stage prints its log and
//! the others still run. Nothing is stopped by the clock on the wall: only what no longer moves is
//! (`crate::schedulable_time`). Nothing has a second chance: what fails at times is in a ledger ([`flaky`]) until
//! somebody mends it.

mod cargo;
mod cluster;
mod flaky;
mod guests;
mod programs;
mod report;

use std::collections::VecDeque;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use anyhow::Result;

use self::guests::PlannedGuest;
use self::report::Counts;
use crate::architecture::Architecture;
use crate::guest::{OF_DEMO, OF_TESTS, build_programs, packages};
use crate::kernel::Kernel;
use crate::progress::{self, Step, minutes, say};
use crate::{
    bench, busybox, demo, deny, deploy, ebpf, fuzz_parsers, kubernetes, miri, package, process,
    setup, simulate, stress,
};

/// Jobs at a time: what a small machine has CPUs for, and two more, because the host's tests and those of an API server
/// mostly wait.
const JOBS_AT_ONCE: usize = 4;

/// What a stage came to.
#[derive(Debug)]
struct Outcome {
    counts: Counts,
    /// Shown when the stage failed.
    log: String,
    /// Always shown: tests that were skipped or failed, with their reasons.
    notes: Vec<String>,
    /// Guest tests that failed, by name.
    failed_tests: Vec<String>,
}

impl Outcome {
    /// Of a stage that cannot run here.
    fn left_out(why: &str) -> Self {
        Self {
            counts: Counts {
                skipped: 1,
                ..Counts::default()
            },
            log: String::new(),
            notes: vec![format!("left out: {why}")],
            failed_tests: Vec::new(),
        }
    }
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

/// A stage that has ended.
struct Ended {
    name: String,
    outcome: Outcome,
    took: Duration,
}

impl Ended {
    /// Runs a stage.
    fn after(name: impl Into<String>, run: impl FnOnce() -> Outcome) -> Self {
        let (name, started) = (name.into(), Instant::now());
        let outcome = run();
        Self {
            name,
            outcome,
            took: started.elapsed(),
        }
    }
}

/// What can be done beside something else.
enum Job {
    /// Clippy, and the tests that need no guest.
    Host,
    /// A guest.
    Guest(PlannedGuest),
    /// What needs an API server, which is built the first time; if so, with the programs around it.
    ApiServer { all: bool },
    /// The agent against a model of the machine, for some minutes.
    Simulation,
    /// The demo, as a newcomer runs it: it has to succeed.
    Demo,
    /// Foreign bytes, shared memory and dependencies: what is asked once a week.
    Weekly,
}

/// Runs the stages and prints the summary line; 1 on any failure.
pub(crate) fn run(quick: bool, all: bool) -> Result<u8> {
    let started = Instant::now();
    // First, so that progress of a first-time set-up is not mixed with the stages. QEMU is what may need the user.
    if !quick {
        setup::qemu(Architecture::Amd64)?;
    }
    setup::nightly_clippy(&setup::nightly()?)?;
    setup::bpf_linker()?;
    if !quick {
        busybox::fetched(Architecture::Amd64)?;
        for kernel in Kernel::ALL {
            kernel.boot(Architecture::Amd64)?;
        }
    }
    let mut summary = Summary::default();
    summary.stage("formatting", || {
        passes(process::cargo().args(["fmt", "--all", "--check"])).into()
    });
    summary.stage("formatting of ebpf", || {
        let manifest = ["fmt", "--check", "--manifest-path", "ebpf/Cargo.toml"];
        passes(process::cargo().args(manifest)).into()
    });
    // Before what embeds the object.
    summary.stage("BPF object", || ebpf::build().map(|_| ()).into());
    let needs_api_server = !quick || kubernetes::is_built()?;
    if quick {
        say(
            "test",
            "guests left out (--quick): kernels 6.1, 6.12 and 7.2 were not tested",
        );
    }
    if !needs_api_server {
        summary.stage("API server", || {
            Outcome::left_out(
                "no API server is built: `cargo xtask kubernetes test`, or `cargo xtask test`",
            )
        });
    }
    at_once(&mut summary, |summary| {
        let mut jobs = VecDeque::new();
        if !quick {
            match planned(all, summary) {
                Ok(guests) => {
                    jobs.extend(guests.into_iter().map(Job::Guest));
                    jobs.push_back(Job::Demo);
                }
                Err(error) => summary.stage("guests", || Err(error).into()),
            }
        }
        if needs_api_server {
            // Behind the longest guests, for it builds where the host's tests are built, and not last: the first time
            // it builds for minutes.
            jobs.insert(jobs.len().min(2), Job::ApiServer { all });
        }
        // Behind what takes minutes, and before what does not: at the end two CPUs have something to do.
        jobs.insert(jobs.len().min(5), Job::Simulation);
        if all {
            jobs.push_back(Job::Weekly);
        }
        jobs
    });
    flaky::tell(&summary.failed_tests);
    say("test", format_args!("took {}", minutes(started.elapsed())));
    progress::print(&summary.sum.to_string());
    Ok(u8::from(summary.sum.failed > 0))
}

/// The guests to start, once the programs for them are built.
fn planned(all: bool, summary: &mut Summary) -> Result<Vec<PlannedGuest>> {
    let mut programs = Vec::new();
    summary.stage("programs for the guests", || {
        let built = build_programs(Some(OF_TESTS), Architecture::Amd64).and_then(|built| {
            programs = built;
            build_programs(Some(OF_DEMO), Architecture::Amd64)
        });
        built.map(|_| ()).into()
    });
    if programs.is_empty() {
        return Ok(Vec::new());
    }
    let guests = guests::plan(&programs, all)?;
    if guests.iter().any(PlannedGuest::is_arm64) {
        summary.stage("programs for the guests of arm64", || arm64(&guests).into());
    }
    let tests: usize = guests.iter().map(|guest| guest.tests.len()).sum();
    say(
        "test",
        format_args!("{} guests, {tests} tests in them", guests.len()),
    );
    Ok(guests)
}

/// What the guests of the other processor need. Now, because building for one guest makes every other one wait.
fn arm64(guests: &[PlannedGuest]) -> Result<()> {
    setup::qemu(Architecture::Arm64)?;
    busybox::fetched(Architecture::Arm64)?;
    for guest in guests.iter().filter(|guest| guest.is_arm64()) {
        guest.kernel()?.boot(Architecture::Arm64)?;
    }
    build_programs(Some(OF_TESTS), Architecture::Arm64).map(|_| ())
}

/// Does what needs no guest, while `others` finds out what else there is to do; then that, some jobs at a time. From
/// then on each stage is told when it ends.
fn at_once(summary: &mut Summary, others: impl FnOnce(&mut Summary) -> VecDeque<Job>) {
    let jobs = Mutex::new(VecDeque::from([Job::Host]));
    let (sender, ended) = mpsc::channel();
    let works = |sender: mpsc::Sender<Ended>| {
        // A poisoned queue means that a worker panicked; the scope passes that on.
        while let Some(job) = jobs.lock().ok().and_then(|mut jobs| jobs.pop_front()) {
            job.run(&sender);
        }
    };
    std::thread::scope(|scope| {
        let early = sender.clone();
        let first = scope.spawn(|| works(early));
        let others = others(summary);
        if let Ok(mut jobs) = jobs.lock() {
            jobs.extend(others);
        }
        // What failed early has ended its worker.
        for _ in usize::from(!first.is_finished())..JOBS_AT_ONCE {
            let sender = sender.clone();
            scope.spawn(|| works(sender));
        }
        drop(sender);
        for stage in ended {
            summary.tell(&stage);
        }
    });
}

impl Job {
    fn run(self, ended: &mpsc::Sender<Ended>) {
        match self {
            Self::Host => host(ended),
            Self::Guest(guest) => {
                stage(ended, &guest.to_string(), &|step| guests::run(&guest, step));
            }
            Self::ApiServer { all } => stage(ended, "API server", &|step| {
                cargo::with_api_server(step, all)
            }),
            Self::Simulation => stage(ended, "simulation", &|_| {
                simulate::little_of_everything().into()
            }),
            Self::Demo => stage(ended, "demo", &|_| demo::succeeds().into()),
            Self::Weekly => weekly(ended),
        }
    }
}

/// What tests of `agent/runtime` start on this machine: Debian's of bookworm, and one that has NRI.
const OF_RUNTIME: [&str; 3] = ["containerd", "containerd-2", "runc"];

/// What needs no guest.
fn host(ended: &mpsc::Sender<Ended>) {
    stage(ended, "clippy of ebpf", &|step| ebpf::clippy(step).into());
    // Early, for it fetches the Prometheus that a test takes.
    stage(ended, "deployment files", &|_| match deploy::Tools::get() {
        Ok(tools) => deploy::check(&tools).into(),
        Err(error) => Outcome::left_out(&format!("{error:#}")),
    });
    stage(
        ended,
        "containerd and runc",
        &|_| match packages::fetched(&OF_RUNTIME) {
            Ok(()) => Ok(()).into(),
            Err(error) => Outcome::left_out(&format!("{error:#}")),
        },
    );
    stage(ended, "clippy, unit, golden and CLI tests", &cargo::test);
}

/// What takes long, and finds something seldom.
fn weekly(ended: &mpsc::Sender<Ended>) {
    stage(ended, "fuzzing, a minute of each target", &|_| {
        fuzz_parsers::a_minute_of_each().into()
    });
    stage(ended, "simulation, every call", &|_| {
        simulate::every_call().into()
    });
    stage(ended, "benchmarks", &|step| cargo::benchmarks(step).into());
    stage(ended, "Debian package", &|_| package::is_tried().into());
    stage(ended, "memory stressors", &|_| {
        stress::a_little_of_each().into()
    });
    stage(ended, "figures against the report", &|_| {
        bench::none_is_worse().into()
    });
    stage(ended, "Miri", &|_| miri::run().into());
    stage(ended, "dependencies", &|_| deny::passes().into());
}

/// A stage that runs beside others.
fn stage(ended: &mpsc::Sender<Ended>, name: &str, run: &dyn Fn(&Step) -> Outcome) {
    let step = Step::begin("test", name);
    // Its receiver goes after the last sender.
    let _closed = ended.send(Ended::after(name, || run(&step)));
}

/// What has been told so far.
#[derive(Default)]
struct Summary {
    sum: Counts,
    failed_tests: Vec<String>,
}

impl Summary {
    /// Runs a stage while nothing else runs.
    fn stage(&mut self, name: &str, run: impl FnOnce() -> Outcome) {
        say("test", name);
        self.tell(&Ended::after(name, run));
    }

    /// One line on how a stage went, and its log when it failed.
    fn tell(&mut self, ended: &Ended) {
        let Ended {
            name,
            outcome,
            took,
        } = ended;
        let word = if outcome.counts.failed == 0 {
            "ok"
        } else {
            "FAILED"
        };
        if outcome.counts.failed > 0 {
            progress::show(&format!("---- {name}\n{}\n----", outcome.log.trim_end()));
        }
        for note in &outcome.notes {
            say("", note);
        }
        let counts = outcome.counts;
        say(word, format_args!("{name}: {counts} ({})", minutes(*took)));
        self.sum += counts;
        self.failed_tests
            .extend(outcome.failed_tests.iter().cloned());
    }
}

/// The tests beside a kubelet alone, and their summary line; 1 on any failure.
pub(crate) fn run_cluster() -> Result<u8> {
    setup::nightly()?;
    setup::bpf_linker()?;
    let mut summary = Summary::default();
    summary.stage("beside a kubelet", || {
        cluster::run(&Step::begin("test", "beside a kubelet"))
    });
    progress::print(&summary.sum.to_string());
    Ok(u8::from(summary.sum.failed > 0))
}

/// Whether a command succeeds; its words when it does not.
fn passes(command: &mut Command) -> Result<()> {
    let _step = Step::begin("test", crate::process::output::shown(command));
    let next = by_hand(command);
    process::output_of(command, &next).map(|_| ())
}

/// What to do about a command that fails.
fn by_hand(command: &Command) -> String {
    format!(
        "run it yourself: `{}`",
        crate::process::output::shown(command)
    )
}
