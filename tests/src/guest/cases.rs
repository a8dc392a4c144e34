//! The guest tests, by theme. A test is a function here and a line in its theme's list.

mod capabilities;
mod cpu;
mod disk;
mod eviction;
mod explain;
mod faults;
mod flood;
mod guides;
mod hostile;
mod journal;
mod ladder;
mod last_line;
mod numa;
mod oom_scores;
mod placement;
mod planned;
mod pods;
mod policies;
mod qos;
mod records;
mod remedies;
mod reserved;
mod restart;
mod scenarios;
mod sources;
mod stalls;
mod swap;
mod top;
mod trace;
mod waits;

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::cgroup;
use super::harness::{Done, Lacks, Outcome, Test};
use super::kernel_oom::vmstat_oom_kill;
use super::memory::{self, mib};
use super::node::{Node, Running};
use super::pod::Pod;

/// All of them.
#[must_use]
pub fn all() -> Vec<Test> {
    [
        records::TESTS,
        waits::TESTS,
        pods::TESTS,
        placement::TESTS,
        planned::TESTS,
        cpu::TESTS,
        qos::TESTS,
        reserved::TESTS,
        eviction::TESTS,
        scenarios::TESTS,
        swap::TESTS,
        disk::TESTS,
        journal::TESTS,
        oom_scores::TESTS,
        faults::TESTS,
        flood::TESTS,
        hostile::TESTS,
        last_line::TESTS,
        ladder::TESTS,
        capabilities::TESTS,
        policies::TESTS,
        stalls::TESTS,
        numa::TESTS,
        remedies::TESTS,
        explain::TESTS,
        guides::TESTS,
        restart::TESTS,
        sources::TESTS,
        top::TESTS,
        trace::TESTS,
    ]
    .concat()
}

/// Time for an eviction from its cause to its end, on a slow and busy machine.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(60);

/// `Some` when memory is on cgroup v1 here.
fn needs_memory_v2() -> Option<Done> {
    (!Path::new("/sys/fs/cgroup/cgroup.controllers").exists())
        .then_some(Done::Skipped(Lacks::MemoryOnV2))
}

/// With the generations of newer kernels, pages that are read do not become active.
const GENERATIONS: &str = "/sys/kernel/mm/lru_gen/enabled";

/// Runs `test` where page cache that is read again counts as active, and so as working set, on every kernel.
fn with_active_page_cache(test: fn() -> Outcome) -> Outcome {
    let generations = fs::read_to_string(GENERATIONS).ok();
    if generations.is_some() {
        fs::write(GENERATIONS, "0")?;
    }
    let outcome = test();
    if let Some(text) = generations {
        fs::write(GENERATIONS, text.trim())?;
    }
    outcome
}

/// Available memory now, as the kubelet counts.
fn available_bytes() -> anyhow::Result<u64> {
    Ok(memory::read()?.working_set_available_bytes())
}

/// A threshold that is `below_mb` under what is available now, as the agent's flag has it.
fn threshold_below_now(below_mb: u64) -> anyhow::Result<String> {
    Ok(format!(
        "memory.available<{}Ki",
        available_bytes()?.saturating_sub(mib(below_mb)) >> 10
    ))
}

/// Starts `pod` as a hog that will grow by `mb` once [`go`] is called, and then hold.
fn leak(node: &Node, pod: &Pod, mb: u64, manners: &str) -> anyhow::Result<Running> {
    node.hog(
        pod,
        &format!("ramp --wait-usr1 --rate-mb-s 128 --max-mb {mb} {manners}"),
    )
}

fn go(hog: &Running) -> anyhow::Result<()> {
    Ok(hog.process.signal(rustix::process::Signal::USR1)?)
}

/// The kernel's OOM kills so far, to compare.
fn oom_kills() -> anyhow::Result<u64> {
    Ok(vmstat_oom_kill()?)
}

/// Every cgroup and every setting of all hierarchies.
fn whole_tree() -> Vec<(std::path::PathBuf, String)> {
    let mut found = Vec::new();
    for hierarchy in cgroup::hierarchies() {
        found.extend(
            cgroup::tree(&hierarchy)
                .into_iter()
                .map(|directory| (directory, String::new())),
        );
        found.extend(cgroup::knobs(&hierarchy));
    }
    found
}
