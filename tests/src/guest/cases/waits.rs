//! Waits for memory, pages read back, processes: what the programs add up per cgroup, against the kernel's own figures.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll::kernel::decode::{Body, MemoryLimitEvent, RefaultKind, StallCause};
use plimsoll::kernel::{Bpf, Family, StallTotals};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::super::cgroup;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::On;
use super::super::process::{Guard, hog_in, program};
use super::disk::{Disk, run};
use super::needs_memory_v2;
use super::records::{Scratch, id, load, settle};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "waits::stall_time_equals_memory_pressure",
        on: On::EachKernel,
        run: stall_time_equals_memory_pressure,
    },
    Test {
        name: "waits::reclaim_names_owner_and_actor_and_kills_equal_memory_events",
        on: On::EachKernel,
        run: reclaim_names_owner_and_actor,
    },
    Test {
        name: "waits::refaults_equal_memory_stat",
        on: On::EachKernel,
        run: refaults_equal_memory_stat,
    },
    Test {
        name: "waits::pages_from_swap_equal_vmstat",
        on: On::EachKernel,
        run: pages_from_swap_equal_vmstat,
    },
    Test {
        name: "waits::processes_of_followed_cgroups_alone_count",
        on: On::EachKernelAndHybrid,
        run: processes_of_followed_cgroups,
    },
];

fn stalls(bpf: &Bpf, cgroup_id: u64) -> anyhow::Result<Vec<StallTotals>> {
    let mut found = Vec::new();
    bpf.drain_stalls(|totals| {
        if totals.cgroup_id == cgroup_id {
            found.push(totals);
        }
    })?;
    Ok(found)
}

fn of(totals: &[StallTotals], cause: StallCause) -> anyhow::Result<StallTotals> {
    totals
        .iter()
        .find(|totals| totals.cause == cause)
        .copied()
        .with_context(|| format!("no stall for {cause:?}: {totals:?}"))
}

/// A program that joins the cgroup first, to its end.
fn run_in(directory: &Path, command: &str) -> anyhow::Result<()> {
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec {command}",
        directory.display()
    );
    let status = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .context("starting a shell")?;
    ensure!(status.success(), "{command}: {status}");
    Ok(())
}

fn stall_time_equals_memory_pressure() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let scratch = Scratch::new("memory")?;
    let slow = scratch.child("slow")?;
    fs::write(slow.join("memory.high"), "16M")?;
    let slow_id = id(&slow)?;
    // PSI weighs CPUs by the time that they were in use: of one thread that moves from one to another it sees less.
    let mut one_cpu = CpuSet::new();
    one_cpu.set(0);
    sched_setaffinity(None, &one_cpu)?;
    let mut bpf = load(&[Family::Stall], Duration::ZERO)?;
    let hog = hog_in(&slow, "hold --mb 20")?;
    std::thread::sleep(Duration::from_secs(3));
    drop(hog);
    let mut recorded_ns = 0;
    settle(&mut bpf, |record| {
        if let Body::MemoryStall {
            cause: StallCause::Memory,
            sum_ns,
            ..
        } = record.body
            && record.cgroup_id == slow_id
        {
            recorded_ns = sum_ns.max(recorded_ns);
        }
    });
    // The file is brought up to date every two seconds.
    std::thread::sleep(Duration::from_millis(2100));
    let pressure = fs::read_to_string(slow.join("memory.pressure"))?;
    let kernel_ns = 1000
        * pressure
            .lines()
            .find_map(|line| {
                line.strip_prefix("some ")?
                    .rsplit_once("total=")?
                    .1
                    .parse::<u64>()
                    .ok()
            })
            .with_context(|| format!("no total in {pressure}"))?;
    let totals = stalls(&bpf, slow_id)?;
    let all = of(&totals, StallCause::Memory)?;
    let (asleep, reclaim) = (
        of(&totals, StallCause::High)?,
        of(&totals, StallCause::Limit)?,
    );
    eprintln!("{totals:?}, memory.pressure {kernel_ns} ns");
    ensure!(
        recorded_ns == all.sum_ns,
        "records end at {recorded_ns} ns: {all:?}"
    );
    // One thread: both count the same time, but for the moments between the two marks.
    let bound_ns = kernel_ns / 20 + 20_000_000;
    ensure!(
        kernel_ns > 100_000_000 && all.sum_ns.abs_diff(kernel_ns) <= bound_ns,
        "{all:?}, memory.pressure {kernel_ns} ns, allowed {bound_ns} ns apart"
    );
    ensure!(
        asleep.count > 0
            && reclaim.count > 0
            && asleep.sum_ns + reclaim.sum_ns <= all.sum_ns + bound_ns,
        "the parts are more than the whole: {totals:?}"
    );
    Ok(Done::Passed)
}

fn reclaim_names_owner_and_actor() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let scratch = Scratch::new("memory")?;
    let child = scratch.child("child")?;
    scratch.set("memory.max", "32M")?;
    fs::write(child.join("memory.low"), "32M")?;
    fs::write(child.join("memory.oom.group"), "1")?;
    let (owner, actor) = (id(&scratch.0)?, id(&child)?);
    let mut bpf = load(&[Family::Stall, Family::Memcg], Duration::ZERO)?;
    // Files that can be reclaimed first, so that there is something for reclaim to do.
    let mut bystander = hog_in(&child, "hold --mb 1")?;
    let mut hog = hog_in(&child, "hold --mb 64")?;
    for process in [&mut hog, &mut bystander] {
        ensure!(
            process.wait_gone(Duration::from_secs(30)),
            "the cgroup is over its limit and lives"
        );
    }
    let mut actors = Vec::new();
    settle(&mut bpf, |record| {
        if let Body::MemoryStall {
            cause: StallCause::Limit,
            actor_cgroup_id,
            ..
        } = record.body
            && record.cgroup_id == owner
        {
            actors.push(actor_cgroup_id);
        }
    });
    ensure!(
        !actors.is_empty() && actors.iter().all(|found| *found == actor),
        "reclaim for {owner} by {actors:?} and not {actor}"
    );
    let reclaim = of(&stalls(&bpf, owner)?, StallCause::Limit)?;
    let mut seen = Vec::new();
    bpf.drain_memory(|totals| seen.push((totals.cgroup_id, totals.event, totals.count)))?;
    let count = |cgroup_id, event| {
        seen.iter()
            .find(|(id, found, _)| (*id, *found) == (cgroup_id, event))
            .map_or(0, |(.., count)| *count)
    };
    let local = |directory: &Path, key| cgroup::keyed(&directory.join("memory.events.local"), key);
    ensure!(
        reclaim.count >= count(owner, MemoryLimitEvent::Max) && reclaim.sum_ns > 0,
        "{reclaim:?}: {seen:?}"
    );
    for (event, key) in [
        (MemoryLimitEvent::OomKill, "oom_kill"),
        (MemoryLimitEvent::OomGroupKill, "oom_group_kill"),
    ] {
        let kernel = local(&child, key)?;
        ensure!(
            kernel > 0 && count(actor, event) == kernel,
            "{key}: memory.events.local {kernel}, seen {seen:?}"
        );
    }
    // Only one kernel has a hook for it.
    if bpf.is_attached("memcg_memory_event") {
        let kernel = local(&child, "low")?;
        ensure!(
            count(actor, MemoryLimitEvent::Low) == kernel,
            "low: memory.events.local {kernel}, seen {seen:?}"
        );
    }
    Ok(Done::Passed)
}

fn pages_back(bpf: &Bpf, cgroup_id: u64, what: RefaultKind) -> anyhow::Result<u64> {
    let mut pages = 0;
    bpf.drain_refaults(|totals| {
        if (totals.cgroup_id, totals.what) == (cgroup_id, what) {
            pages = totals.pages;
        }
    })?;
    Ok(pages)
}

fn refaults_equal_memory_stat() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let disk = Disk::mount(64, 16384)?;
    let file = disk.0.join("read");
    run(
        "dd",
        &[
            "if=/dev/zero",
            &format!("of={}", file.display()),
            "bs=1M",
            "count=40",
        ],
    )?;
    run("sync", &[])?;
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    let scratch = Scratch::new("memory")?;
    let reader = scratch.child("reader")?;
    fs::write(reader.join("memory.max"), "24M")?;
    let bpf = load(&[Family::Refault], Duration::from_millis(10))?;
    for _ in 0..4 {
        run_in(
            &reader,
            &format!("dd if={} of=/dev/null bs=1M", file.display()),
        )?;
    }
    let kernel = cgroup::keyed(&reader.join("memory.stat"), "workingset_refault_file")?;
    let seen = pages_back(&bpf, id(&reader)?, RefaultKind::File)?;
    eprintln!("{seen} pages seen, memory.stat {kernel}");
    // What the kernel leaves out (a shadow without its cgroup) has no place here; the counters of a busy CPU come late.
    let bound = kernel / 10 + 128;
    ensure!(
        kernel > 1000 && seen.abs_diff(kernel) <= bound,
        "{seen} pages seen, memory.stat {kernel}, allowed {bound} apart"
    );
    Ok(Done::Passed)
}

fn pages_from_swap_equal_vmstat() -> Outcome {
    const DEVICE: &str = "/dev/nvme0n1";
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    run("mkswap", &[DEVICE])?;
    run("swapon", &[DEVICE])?;
    let outcome = swap_in();
    run("swapoff", &[DEVICE])?;
    outcome
}

fn swap_in() -> Outcome {
    let scratch = Scratch::new("memory")?;
    let group = scratch.child("swaps")?;
    fs::write(group.join("memory.max"), "16M")?;
    let bpf = load(&[Family::Refault], Duration::from_millis(10))?;
    let before = cgroup::keyed(Path::new("/proc/vmstat"), "pswpin")?;
    // Each block is read into the same buffer: larger than the limit, and nothing that could be stored as zeros.
    run_in(&group, "dd if=/dev/urandom of=/dev/null bs=24M count=3")?;
    let kernel = cgroup::keyed(Path::new("/proc/vmstat"), "pswpin")? - before;
    let seen = pages_back(&bpf, id(&group)?, RefaultKind::SwapIn)?;
    let refaults = pages_back(&bpf, id(&group)?, RefaultKind::Anon)?;
    eprintln!("{seen} pages seen from swap, {refaults} refaults, vmstat {kernel}");
    let bound = kernel / 20 + 64;
    ensure!(
        kernel > 1000 && seen.abs_diff(kernel) <= bound && refaults > 0,
        "{seen} pages seen from swap and {refaults} refaults, vmstat {kernel}, allowed {bound} apart"
    );
    Ok(Done::Passed)
}

fn processes_of_followed_cgroups() -> Outcome {
    let scratch = Scratch::new("memory")?;
    let (followed, other) = (scratch.child("followed")?, scratch.child("other")?);
    let mut bpf = load(&[Family::Processes], Duration::from_millis(10))?;
    bpf.follow_processes(&[id(&followed)?].into())?;
    // Ten children, each of which starts a program, and one that the shell becomes at the end.
    let script = format!(
        "sh -c 'for i in 0 1 2 3 4 5 6 7 8 9; do {} -c : & done; wait'",
        "/bin/sh"
    );
    for directory in [&followed, &other] {
        run_in(directory, &script)?;
    }
    let mut seen = Vec::new();
    bpf.drain_processes(|totals| seen.push((totals.cgroup_id, totals.forks, totals.execs)))?;
    ensure!(seen == [(id(&followed)?, 10, 11)], "{seen:?}");
    let mut births = 0;
    settle(&mut bpf, |record| {
        births += u32::from(matches!(record.body, Body::ProcessBirth { .. }));
    });
    ensure!(births == 0, "{births} births from outside among children");
    bpf.follow_processes(&[].into())?;
    let mut left = 0;
    bpf.drain_processes(|_| left += 1)?;
    ensure!(left == 0, "a cgroup is still followed");
    // A thread is no process.
    bpf.follow_processes(&[id(&other)?].into())?;
    let spinner: Guard = hog_in(&other, "spin --threads 4 --seconds 60")?;
    std::thread::sleep(Duration::from_millis(500));
    drop(spinner);
    let mut seen = Vec::new();
    bpf.drain_processes(|totals| seen.push((totals.forks, totals.execs)))?;
    ensure!(
        seen == [(0, 1)],
        "the {} and its threads: {seen:?}",
        program("hog").display()
    );
    Ok(Done::Passed)
}
