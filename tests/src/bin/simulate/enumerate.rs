//! Each operation of a run fails, blocks, or is the last that the agent does: one run for each, until no operation is
//! left.
//!
//! The scenario is a short one, so that all of it can be had in a test run; `--scenario` takes another. Operations are
//! counted from a run in which nothing fails; a run that differs from it does so from the operation on that was made to
//! fail.

use crate::fault::{Call, Fault, Plan, errnos};
use crate::progress;
use crate::run::{Order, Report, run_apart};
use crate::scenario::Scenario;
use crate::{Args, Tally};

/// How long a blocked operation takes: longer than any patience of the agent's with its own threads, and less than what
/// its watchdog takes for a hang.
const BLOCKED_NS: u64 = 20_000_000_000;

fn order(number: u64, fault: Fault) -> Order {
    Order {
        seed: 1,
        plan: Plan {
            at: [(number, fault)].into(),
            ..Plan::default()
        },
        ..Order::default()
    }
}

/// A run in which nothing fails, with all its operations.
pub(crate) fn record(scenario: &Scenario) -> Report {
    let plan = Plan {
        notes_calls: true,
        ..Plan::default()
    };
    run_apart(
        scenario,
        Order {
            seed: 1,
            plan,
            ..Order::default()
        },
    )
}

/// The operations that a mode is about, by their numbers. How far it is with them is said.
fn operations(
    args: &Args,
    scenario: &Scenario,
    mode: &str,
) -> impl Iterator<Item = (u64, Call)> + use<> {
    let what = format!("{mode} of {}, by operation", scenario.name);
    progress::begin(&what, 0);
    let numbered = (1..).zip(record(scenario).calls);
    let every = args.every;
    let operations: Vec<_> = numbered.filter(|(number, _)| number % every == 0).collect();
    progress::begin(what, operations.len());
    // Counted when the next one is asked for: then it is done.
    let mut is_first = true;
    operations.into_iter().inspect(move |_| {
        if !std::mem::take(&mut is_first) {
            progress::did_one();
        }
    })
}

fn run(scenario: &Scenario, number: u64, fault: Fault, how: &str, tally: &mut Tally) {
    let report = run_apart(scenario, order(number, fault));
    let again = format!("--scenario {} --fault {number}:{how}", scenario.name);
    tally.take(scenario, &report, &again);
}

/// Each operation fails: with each error that it can have, or with `rotate` with one of them, another one for the next
/// operation of its kind.
pub(crate) fn faults(args: &Args, scenario: &Scenario, rotate: bool, tally: &mut Tally) {
    let mut turns = std::collections::BTreeMap::<String, usize>::new();
    for (number, call) in operations(args, scenario, "faults") {
        let mut errors = errnos(&call.name);
        if rotate && !errors.is_empty() {
            let turn = turns.entry(call.name.clone()).or_default();
            errors = &errors[*turn % errors.len()..][..1];
            *turn += 1;
        }
        for errno in errors {
            run(
                scenario,
                number,
                Fault::Errno(*errno),
                &format!("errno={errno}"),
                tally,
            );
        }
    }
}

/// Each operation takes 20 seconds. Where it is the loop's, that is the loop's time, and all else must hold; with
/// `others` only what is not the loop's.
pub(crate) fn blocked(args: &Args, scenario: &Scenario, others: bool, tally: &mut Tally) {
    let how = format!("slow={}", BLOCKED_NS / 1_000_000);
    for (number, call) in operations(args, scenario, "blocked") {
        if !(others && call.is_loop) {
            run(scenario, number, Fault::Slow(BLOCKED_NS), &how, tally);
        }
    }
}

/// `kill -9` before each operation that changes something which outlives the agent, and in the middle of each write;
/// the agent that follows finds what is left. With `all` before every other operation as well.
pub(crate) fn kills(args: &Args, scenario: &Scenario, all: bool, tally: &mut Tally) {
    for (number, call) in operations(args, scenario, "kills") {
        if all || call.changes() {
            run(scenario, number, Fault::Kill, "kill", tally);
        }
        if call.name == "write" {
            run(scenario, number, Fault::Tear, "tear", tally);
        }
    }
}
