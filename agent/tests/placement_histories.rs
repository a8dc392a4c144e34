//! Random histories of placed pods ([`histories`]) on this machine.
//!
//! `PLIMSOLL_HISTORIES=10000 cargo test -p plimsoll --test placement_histories -- --nocapture` makes ten thousand;
//! without it a few are made (in a guest with cgroup v2 hundreds: `guest_tests placement::no_random_history`). A
//! failure names its seed; `PLIMSOLL_HISTORY=SEED` makes that one alone, or begins with it. What needs root, a cpuset
//! hierarchy and two CPUs says so and is left out without, before the first history: what fails from then on is a
//! failure.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod histories;
mod notes;

const HISTORIES: u64 = 20;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
fn no_exclusive_cpu_is_shared_and_none_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    if let Some(why) = histories::lacking(dir.path()) {
        notes::left_out(why);
        return;
    }
    let first = number("PLIMSOLL_HISTORY");
    let count = number("PLIMSOLL_HISTORIES").unwrap_or(if first.is_some() { 1 } else { HISTORIES });
    let tally = histories::make(dir.path(), first.unwrap_or(1), count);
    println!("{tally:?}");
    assert!(
        count < HISTORIES
            || (tally.exclusive > 0 && tally.resized > 0 && tally.restarted_agents > 0)
    );
}
