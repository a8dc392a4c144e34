//! What the `stress` program does.
//!
//! Problem: tests show the leaks that their authors thought of. Approach: `stress-ng` has some hundred ways to use
//! memory, which others thought of. Each of its stressors of the classes `memory` and `vm` runs as a pod, two workers
//! with four fifths of the node's memory between them where it takes a size, beside two pods that use less than they
//! request. The same agent sees all of them come and go. Whatever they do, the innocent pods live, the kernel's OOM
//! killer has nothing to do, the agent runs, and every record is accounted for.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::agent::{Agent, Options};
use super::cgroup;
use super::kernel_oom::{KernelLog, vmstat_oom_kill};
use super::memory::{self, mib};
use super::node::{Node, Running};
use super::pod::Pod;

const PROGRAM: &str = "stress-ng";
/// Of its stressors those that use memory. The others are about CPUs, disks and the rest.
const CLASSES: [&str; 2] = ["memory", "vm"];
/// Below this a pod has to go.
const THRESHOLD_MB: u64 = 200;
const INNOCENT_MB: u64 = 32;
/// Beyond a stressor's time: it gives everything back, on an emulated CPU.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of each stressor.
    pub seconds: u64,
    /// Only these; none: all.
    pub stressors: Vec<String>,
}

/// What became of them.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    ran: u32,
    evicted: u32,
    refused: u32,
    oom_kills: u64,
}

/// The names in `stress-ng --class CLASS?`: "class 'vm' stressors: bigheap brk …".
fn names(answer: &str) -> impl Iterator<Item = &str> {
    let list = answer.split_once("stressors:").map_or("", |(_, list)| list);
    list.split_whitespace()
}

/// All stressors of the classes, by name.
fn stressors() -> anyhow::Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for class in CLASSES {
        let output = Command::new(PROGRAM)
            .args(["--class", &format!("{class}?")])
            .output()
            .with_context(|| format!("{PROGRAM} is no program of this guest"))?;
        let text = [output.stdout, output.stderr].concat();
        all.extend(names(&String::from_utf8_lossy(&text)).map(str::to_owned));
    }
    ensure!(!all.is_empty(), "{PROGRAM} names no stressors");
    Ok(all)
}

/// Runs the plan, says a line for each stressor and one at the end. Whether everything held.
///
/// # Errors
/// The scene cannot be set up, or the agent has ended.
pub fn run(plan: &Plan) -> anyhow::Result<bool> {
    super::harness::spare_this_process()?;
    let all = stressors()?;
    let wanted: Vec<&String> = match plan.stressors.is_empty() {
        true => all.iter().collect(),
        false => plan.stressors.iter().collect(),
    };
    let node = Node::new()?;
    let mut innocents = Vec::new();
    for name in ["calm", "quiet"] {
        let pod = Pod::burstable(name, "64Mi");
        innocents.push((name, node.hog(&pod, &format!("hold --mb {INNOCENT_MB}"))?));
    }
    let mut agent = node.agent(&Options::hard(&format!(
        "memory.available<{THRESHOLD_MB}Mi"
    )))?;
    let size_mb = memory::read()?.total_bytes / 5 * 4 / mib(1);
    let mut tally = Tally::default();
    let mut dead = BTreeSet::new();
    for (number, name) in (1..).zip(&wanted) {
        let said = stress(&node, &mut agent, name, plan.seconds, size_mb, &mut tally)?;
        for (innocent, running) in &mut innocents {
            if !running.process.is_running()? {
                dead.insert(*innocent);
            }
        }
        println!("{name} ({number} of {}): {said}", wanted.len());
    }
    let records = agent.stop()?.records;
    let is_even = records.open == 0 && records.produced == records.consumed + records.dropped;
    let Tally {
        ran,
        evicted,
        refused,
        oom_kills,
    } = tally;
    println!(
        "{ran} stressors for {} s each, {evicted} evicted, {refused} that cannot run here; kernel OOM kills: {oom_kills}; innocent pods dead: {}; records: {records:?}",
        plan.seconds,
        dead.len()
    );
    Ok(dead.is_empty() && is_even && tally.shows_something(plan.stressors.is_empty()))
}

impl Tally {
    /// Whether the kernel killed nobody, and that says something: not all were refused here, and of all that there are
    /// one has to go at least.
    fn shows_something(&self, is_whole: bool) -> bool {
        let &Self {
            ran,
            evicted,
            refused,
            oom_kills,
        } = self;
        oom_kills == 0 && ran > refused && (evicted > 0 || !is_whole)
    }
}

/// One of them, to its end.
fn stress(
    node: &Node,
    agent: &mut Agent,
    name: &str,
    seconds: u64,
    size_mb: u64,
    tally: &mut Tally,
) -> anyhow::Result<String> {
    let pod = Pod::burstable(&format!("stress-{name}"), "16Mi").grace_s(1);
    node.write(&pod)?;
    let (before, mut log) = (vmstat_oom_kill()?, KernelLog::from_now()?);
    let evictions = agent.evictions().count();
    let bytes = format!("{size_mb}M");
    let (stressor, time) = (format!("--{name}"), format!("{seconds}s"));
    let directory = node.directory.join("log");
    let mut words = vec![PROGRAM, stressor.as_str(), "2", "--timeout", time.as_str()];
    let directory = directory.to_string_lossy();
    words.extend(["--temp-path", &directory, "--no-rand-seed", "--oomable"]);
    let sizes = format!("--{name}-bytes");
    if has_size(name) {
        words.extend([sizes.as_str(), bytes.as_str()]);
    }
    let mut running: Running = node.exec(&pod, &words)?;
    let is_over = running
        .process
        .wait_gone(Duration::from_secs(seconds) + PATIENCE);
    // What it left behind goes with its pod.
    for hierarchy in cgroup::hierarchies() {
        let directory = hierarchy.join(pod.cgroup());
        ensure!(
            cgroup::remove(&directory),
            "{} cannot be removed",
            directory.display()
        );
    }
    let status = running.process.0.try_wait()?;
    fs::remove_file(node.manifest(&pod))?;
    agent.after_samples(1)?;
    let killed = vmstat_oom_kill()?.saturating_sub(before);
    tally.oom_kills += killed;
    tally.ran += 1;
    let was_evicted = agent.evictions().count() > evictions;
    tally.evicted += u32::from(was_evicted);
    let output = node.output(&pod);
    let cannot_run = !was_evicted && status.is_some_and(|status| !status.success());
    tally.refused += u32::from(cannot_run);
    let last = output.lines().last().unwrap_or_default().to_owned();
    let mut said = match (is_over, was_evicted, cannot_run) {
        (false, ..) => "did not end by itself".to_owned(),
        (_, true, _) => "evicted".to_owned(),
        (_, _, true) => format!("cannot run here: {last}"),
        _ => "ran to its end".to_owned(),
    };
    if killed > 0 {
        let lines = log.newest(12)?.join(" | ");
        said.push_str(&format!("; {killed} KERNEL OOM KILLS: {lines}"));
    }
    Ok(said)
}

/// Whether a stressor takes `--NAME-bytes`. `bigheap`, `brk` and `stack` grow without end.
fn has_size(name: &str) -> bool {
    ["malloc", "mmap", "mremap", "shm", "shm-sysv", "vm"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_which_nothing_happened_does_not_pass() {
        let tally = Tally {
            ran: 20,
            evicted: 3,
            refused: 4,
            oom_kills: 0,
        };
        assert!(tally.shows_something(true) && tally.shows_something(false));
        for nothing in [
            Tally::default(),
            Tally {
                refused: 20,
                ..tally
            },
            Tally {
                evicted: 0,
                ..tally
            },
            Tally {
                oom_kills: 1,
                ..tally
            },
        ] {
            assert!(!nothing.shows_something(true), "{nothing:?}");
        }
        let one = Tally {
            ran: 1,
            evicted: 0,
            refused: 0,
            oom_kills: 0,
        };
        assert!(one.shows_something(false), "one that was asked for by name");
    }

    #[test]
    fn names_of_a_class() {
        let answer = "class 'vm' stressors: bigheap brk vm-rw\n";
        let found: Vec<&str> = names(answer).collect();
        assert_eq!(found, ["bigheap", "brk", "vm-rw"]);
        assert_eq!(names("Unknown class").count(), 0);
    }
}
