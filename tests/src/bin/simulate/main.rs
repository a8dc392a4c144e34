//! The whole agent against a model of the machine, in virtual time: `cargo xtask simulate`.
//!
//! **Problem.** The engine is pure and tested as such; what went wrong, went wrong between the loop, files, threads and
//! the kernel. Guests show one timing each, slowly. **Approach.** The agent is the real one,
//! [`plimsoll::daemon::start::run`] and all its threads. The C library below it is this program's ([`libc_calls`]):
//! files, clock, threads and system calls are answered by a [`machine`] whose every change comes from one seed. A run
//! is a process; the same seed is the same run. [`check`] holds what must be so after every step.
//!
//! **Terms.** *operation*: a call that can fail. *plan*: which operation of a run fails, takes longer, or is followed
//! by nothing (`kill -9`). *turn*: from one wait of the loop to the next.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call of the kernel with the address of something is one operation"
)]

mod bpf;
mod check;
mod enumerate;
mod fault;
mod files;
mod kernel;
mod libc_calls;
mod machine;
mod progress;
mod random;
mod run;
mod scenario;
mod threads;
mod world;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use crate::fault::{Fault, Plan};
use crate::machine::Happening;
use crate::run::{Order, Report, run_apart};
use crate::scenario::{Scenario, brief, by_seed, hostile, ledgers};

#[global_allocator]
static ALLOCATOR: world::Counting = world::Counting;

/// Runs the agent against a model of the machine, in virtual time
#[derive(Debug, Clone, Parser)]
#[command(after_help = "\
Examples:
  cargo xtask simulate --seed 7 --hours 24      a day by seed, again and again the same
  cargo xtask simulate --seed 100 --seeds 50 --hours 0.5
  cargo xtask simulate --scenario stays --print what the agent says
  cargo xtask simulate --faults                 each operation of one eviction fails, with each error
  cargo xtask simulate --blocked                each operation of it takes 20 s
  cargo xtask simulate --kills                  kill -9 before each operation of a run with all ledgers, and a restart
  cargo xtask simulate                          a little of everything: what `cargo xtask test` runs

Exit status: 0 every rule held; 1 otherwise (the message has the command that shows it again).")]
struct Args {
    /// The first seed
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Virtual hours of each seed
    #[arg(long, default_value_t = 1.0)]
    hours: f64,
    /// One scenario by name
    #[arg(long)]
    scenario: Option<String>,
    /// Make each operation of a scenario (or of a short one) fail, with each error that it can have
    #[arg(long)]
    faults: bool,
    /// Make each operation of a scenario block
    #[arg(long)]
    blocked: bool,
    /// kill -9 before each operation of a scenario
    #[arg(long)]
    kills: bool,
    /// With --faults, --blocked and --kills: only every so manyth operation
    #[arg(long, default_value_t = 1)]
    every: u64,
    /// One operation by number, with `errno=N`, `slow=MS`, `kill` or `tear`, e.g. 812:kill
    #[arg(long)]
    fault: Vec<String>,
    /// Print the agent's output
    #[arg(long)]
    print: bool,
    /// And each operation
    #[arg(long)]
    trace: bool,
}

/// Sums over runs.
#[derive(Default)]
struct Tally {
    runs: u64,
    operations: u64,
    turns: u64,
    virtual_ns: u64,
    evictions: u64,
    longest_turn_ns: u64,
    slowest_answer_ns: u64,
    failed: u64,
}

impl Tally {
    /// Takes in a run. What is broken is printed, with the command that shows it again.
    fn take(&mut self, scenario: &Scenario, report: &Report, again: &str) -> bool {
        self.runs += 1;
        self.operations += report.operations;
        self.turns += report.turns;
        self.virtual_ns += report.virtual_ns;
        self.evictions += report.evictions;
        if report.broken.is_empty() {
            self.longest_turn_ns = self.longest_turn_ns.max(report.longest_turn_ns);
            self.slowest_answer_ns = self.slowest_answer_ns.max(report.slowest_answer_ns);
        }
        for broken in &report.broken {
            println!(
                "{}: {} at {} ms: {}",
                scenario.name, broken.rule, broken.at_ms, broken.text
            );
        }
        let is_well = report.broken.is_empty();
        if !is_well {
            self.failed += 1;
            println!("  again: cargo xtask simulate {again}");
        }
        is_well
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if !libc_calls::are_here() {
        return ExitCode::FAILURE;
    }
    let began = Instant::now();
    let mut tally = Tally::default();
    let enumerates = args.faults || args.blocked || args.kills;
    let is_all = args.seed.is_none() && args.scenario.is_none() && !enumerates;
    let mut named = None;
    if let Some(name) = &args.scenario {
        named = hostile().into_iter().find(|it| it.name == *name);
        if named.is_none() {
            eprintln!("no such scenario; there are {}", names());
            return ExitCode::from(2);
        }
    }
    if let (Some(scenario), false) = (&named, enumerates) {
        progress::begin(format!("scenario {}", scenario.name), 1);
        let again = format!("--scenario {}", scenario.name);
        one(&args, scenario, &again, &mut tally);
    }
    if let Some(first) = args.seed {
        progress::begin("seeds", usize::try_from(args.seeds).unwrap_or(usize::MAX));
        for seed in first..first + args.seeds {
            one_seed(&args, seed, &mut tally);
            progress::did_one();
        }
    }
    if is_all {
        everything(&args, &mut tally);
    }
    if args.faults {
        let scenario = named.clone().unwrap_or_else(brief);
        enumerate::faults(&args, &scenario, false, &mut tally);
    }
    if args.blocked {
        let scenario = named.clone().unwrap_or_else(brief);
        enumerate::blocked(&args, &scenario, false, &mut tally);
    }
    if args.kills {
        let scenario = named.unwrap_or_else(ledgers);
        enumerate::kills(&args, &scenario, true, &mut tally);
    }
    let took = began.elapsed();
    let hours = tally.virtual_ns as f64 / 3.6e12;
    println!(
        "{} runs, {:.2} virtual hours in {:.1} s, {} operations, {} turns ({:.0}/s), {} evictions; longest turn {} us, slowest answer {} us; {} runs broke a rule",
        tally.runs,
        hours,
        took.as_secs_f64(),
        tally.operations,
        tally.turns,
        tally.turns as f64 / took.as_secs_f64(),
        tally.evictions,
        tally.longest_turn_ns / 1000,
        tally.slowest_answer_ns / 1000,
        tally.failed,
    );
    if tally.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn names() -> String {
    hostile()
        .iter()
        .map(|scenario| scenario.name.clone())
        .collect::<Vec<_>>()
        .join(", ")
}

fn plan_of(args: &Args) -> Plan {
    let mut plan = Plan {
        prints: args.trace,
        ..Plan::default()
    };
    for text in &args.fault {
        let (number, what) = text.split_once(':').unwrap_or((text, "kill"));
        let value = |name: &str| {
            what.strip_prefix(name)
                .and_then(|value| value.parse::<u64>().ok())
        };
        let fault = match (value("errno="), value("slow=")) {
            (Some(errno), _) => Fault::Errno(i32::try_from(errno).unwrap_or(libc::EIO)),
            (_, Some(ms)) => Fault::Slow(ms * 1_000_000),
            _ if what == "tear" => Fault::Tear,
            _ => Fault::Kill,
        };
        if let Ok(number) = number.parse() {
            plan.at.insert(number, fault);
        }
    }
    plan
}

fn one(args: &Args, scenario: &Scenario, again: &str, tally: &mut Tally) {
    let order = Order {
        seed: 1,
        plan: plan_of(args),
        prints: args.print || args.trace,
        ..Order::default()
    };
    let report = run_apart(scenario, order.clone());
    if args.print {
        println!("{report:#?}");
    }
    tally.take(scenario, &report, again);
    let has_jumps = scenario
        .happenings
        .iter()
        .any(|(_, it)| matches!(it, Happening::Clock(_)));
    if has_jumps
        && run_apart(
            scenario,
            Order {
                without_clock: true,
                prints: false,
                ..order
            },
        )
        .trace
            != report.trace
    {
        tally.failed += 1;
        println!(
            "{}: clock: the agent does something else when CLOCK_REALTIME jumps\n  again: cargo xtask simulate {again}",
            scenario.name
        );
    }
}

fn one_seed(args: &Args, seed: u64, tally: &mut Tally) {
    let mut scenario = by_seed(seed, args.hours);
    let mut plan = plan_of(args);
    if seed % 2 == 1 {
        (plan.slow_one_in, plan.fail_one_in) = (20_000, 20_000);
    }
    let order = Order {
        seed,
        plan,
        prints: args.print,
        ..Order::default()
    };
    let report = run_apart(&scenario, order.clone());
    let again = format!("--seed {seed} --hours {}", args.hours);
    if args.print {
        println!("{report:#?}");
    }
    if !tally.take(&scenario, &report, &again) {
        shrink(&mut scenario, &order, &report);
    }
}

/// Takes happenings away for as long as the same rule is broken.
fn shrink(scenario: &mut Scenario, order: &Order, report: &Report) {
    let Some(rule) = report.broken.first().map(|broken| broken.rule.clone()) else {
        return;
    };
    let mut step = scenario.happenings.len().div_ceil(2);
    while step > 0 {
        let mut at = 0;
        while at < scenario.happenings.len() {
            let mut smaller = scenario.clone();
            let end = (at + step).min(smaller.happenings.len());
            smaller.happenings.drain(at..end);
            let report = run_apart(
                &smaller,
                Order {
                    prints: false,
                    ..order.clone()
                },
            );
            if report.broken.iter().any(|broken| broken.rule == rule) {
                *scenario = smaller;
            } else {
                at += step;
            }
        }
        step /= 2;
    }
    println!(
        "  shrunk to {} happenings that still break {rule}:",
        scenario.happenings.len()
    );
    for (at_ns, happening) in &scenario.happenings {
        println!("    at {} s: {happening:?}", at_ns / 1_000_000_000);
    }
}

/// Of the operations of a short run, so many are one that a test run has time for; `--faults --blocked --kills` takes
/// them all.
const EVERY: u64 = 32;

/// What a test run has time for.
fn everything(args: &Args, tally: &mut Tally) {
    if enumerate::record(&brief()).trace != enumerate::record(&brief()).trace {
        tally.failed += 1;
        println!("two runs of one seed differ: something reads what is not the model's");
    }
    progress::begin("scenarios", hostile().len());
    for scenario in hostile() {
        let before = tally.failed;
        one(
            args,
            &scenario,
            &format!("--scenario {}", scenario.name),
            tally,
        );
        if tally.failed == before {
            println!("{}: well", scenario.name);
        }
        progress::did_one();
    }
    let args = &Args {
        hours: 0.1,
        every: EVERY,
        ..args.clone()
    };
    progress::begin("seeds", 8);
    for seed in 0..8 {
        one_seed(args, seed, tally);
        progress::did_one();
    }
    enumerate::faults(args, &brief(), true, tally);
    enumerate::blocked(args, &brief(), true, tally);
    enumerate::kills(args, &ledgers(), false, tally);
}
