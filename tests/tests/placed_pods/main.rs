//! Random pods on random machines under all policies together: CPUs, memory, devices and the topology manager.
//!
//! Operations: a pod is admitted, or refused and tried again later; its init containers end; it is resized, or not; it
//! is removed; the agent is restarted from what it saved; and everything is planned anew, because settings, the
//! reservation or the CPUs that are online have changed. After each of them [`Node::check`] must hold: nothing has two
//! owners, nothing is lost, the shared pool is never empty, and a refused or removed pod leaves everything as it was. A
//! pod that is resized moves nobody, and keeps what it had as far as it requests it.
//!
//! `PLIMSOLL_PLACEMENT_OPS=1000000 cargo test --profile fuzz -p tests --no-default-features --test placed_pods` makes a
//! million operations; without it a few thousand are made. A failure names the seed of its machine.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod generate;
mod node;

use tests::fuzz::Random;

use node::Node;

const OPERATIONS: u64 = 3_000;
const OPERATIONS_PER_MACHINE: u64 = 300;

/// What was done, so that a run that did nothing is seen.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    operations: u64,
    admitted: u64,
    refused: u64,
    /// Running pods whose requests were changed.
    resized: u64,
    /// Those for which there was no room.
    not_resized: u64,
    /// Refused pods that were placed later.
    served: u64,
    replans: u64,
    /// Containers that a change of settings or CPUs took something from.
    lost: u64,
}

fn run(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let Some(mut node) = Node::new(&mut random) else {
        // Settings that contradict each other are refused, which is tested elsewhere.
        tally.operations += 1;
        return;
    };
    while node.tally.operations < OPERATIONS_PER_MACHINE {
        node.step(&mut random);
    }
    node.clear();
    tally.operations += node.tally.operations;
    tally.admitted += node.tally.admitted;
    tally.refused += node.tally.refused;
    tally.resized += node.tally.resized;
    tally.not_resized += node.tally.not_resized;
    tally.served += node.tally.served;
    tally.replans += node.tally.replans;
    tally.lost += node.tally.lost;
}

#[test]
fn nothing_overlaps_and_nothing_leaks() {
    let wanted = std::env::var("PLIMSOLL_PLACEMENT_OPS").map_or(OPERATIONS, |text| {
        text.parse()
            .expect("PLIMSOLL_PLACEMENT_OPS is a number of operations")
    });
    let first = std::env::var("PLIMSOLL_PLACEMENT_SEED").map_or(1, |text| {
        text.parse().expect("PLIMSOLL_PLACEMENT_SEED is a number")
    });
    let (mut tally, mut seed) = (Tally::default(), first);
    while tally.operations < wanted {
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut tally)));
        assert!(made.is_ok(), "the failure above is that of seed {seed}");
        seed += 1;
    }
    println!("{tally:?} on {} machines", seed - first);
    assert!(
        tally.admitted > tally.operations / 20
            && tally.refused > 0
            && tally.replans > 0
            && tally.resized > tally.operations / 50
            && tally.not_resized > 0
            && tally.served > 0,
        "{tally:?}"
    );
}
