//! `plimsoll trace`: its figures against the kernel's own, its files, and what it leaves alone.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll::kernel::object::object;
use plimsoll::kernel::{AtEnd, Bpf, BpfOptions, Counts, Family, HookSet, PinOwner};
use plimsoll_trace::perfetto::read;
use rustix::process::Signal;
use serde_json::Value;

use super::super::cgroup::keyed;
use super::super::clock::wait_until;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::process::{Guard, hog_in, program};
use super::needs_memory_v2;
use super::records::Scratch;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "trace::a_session_agrees_with_the_kernel",
        on: On::Once(Machine::V6_1),
        run: a_session_agrees_with_the_kernel,
    },
    Test {
        name: "trace::an_agents_programs_are_left_alone",
        on: On::Weekly(Machine::V7_2),
        run: an_agents_programs_are_left_alone,
    },
];

/// For everything to be loaded and attached, and for a process to be killed, on a slow and busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Where agents pin.
const PINS: &str = "/sys/fs/bpf";

fn trace(arguments: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(program("plimsoll"));
    command.arg("trace").args(arguments).stdin(Stdio::null());
    Ok(command)
}

fn summary(output: &Output) -> anyhow::Result<Value> {
    ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("the summary is no JSON")
}

fn group<'a>(summary: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    let groups = summary["groups"].as_array().context("no groups")?;
    groups
        .iter()
        .find(|group| {
            group["cgroup"]
                .as_str()
                .is_some_and(|path| path.ends_with(name))
        })
        .with_context(|| format!("no group {name} in {summary}"))
}

fn number(value: &Value, field: &str) -> anyhow::Result<u64> {
    value[field]
        .as_u64()
        .with_context(|| format!("no number {field} in {value}"))
}

/// One pod that is throttled, one that is held at `memory.high`, one that is killed for its limit, and one beside them
/// that nobody asked for.
fn a_session_agrees_with_the_kernel() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let scratch = Scratch::new("memory")?;
    fs::write(scratch.0.join("cgroup.subtree_control"), "+cpu +memory")?;
    let busy = scratch.child("busy")?;
    // Less than its share, also of one CPU.
    fs::write(busy.join("cpu.max"), "20000 100000")?;
    let slow = scratch.child("slow")?;
    fs::write(slow.join("memory.high"), "16M")?;
    let tight = scratch.child("tight")?;
    fs::write(tight.join("memory.max"), "16M")?;
    fs::write(tight.join("memory.swap.max"), "0").ok();
    let other = Scratch::beside("other")?;
    let _others = hog_in(&other.0, "spin")?;
    let _spin = hog_in(&busy, "spin --threads 2")?;
    let files = ["pftrace", "svg"].map(|ending| format!("/tmp/trace-test.{ending}"));
    let said = "/tmp/trace-test.err";
    let mut session = trace(&[
        "--cgroup",
        "/records-test",
        "--for",
        "0",
        "--output",
        "json",
    ])?;
    for file in &files {
        session.arg(file);
    }
    let mut session = Guard(
        session
            .stdout(Stdio::piped())
            .stderr(fs::File::create(said)?)
            .spawn()?,
    );
    // Loading takes its time here; it says so when everything is in place.
    let has_begun = wait_until(START_TIMEOUT, Duration::from_millis(20), || {
        fs::metadata(said).is_ok_and(|metadata| metadata.len() > 0)
    });
    ensure!(has_begun, "plimsoll trace says nothing");
    let stat = |key| keyed(&busy.join("cpu.stat"), key);
    let before = (stat("usage_usec")?, stat("throttled_usec")?);
    let _held = hog_in(&slow, "hold --mb 20")?;
    let mut killed = hog_in(&tight, "hold --mb 64")?;
    ensure!(
        killed.wait_gone(START_TIMEOUT),
        "nothing was killed for its limit"
    );
    std::thread::sleep(Duration::from_secs(3));
    let after = (stat("usage_usec")?, stat("throttled_usec")?);
    session.signal(Signal::TERM)?;
    let output = session.output()?;
    eprint!("{}", fs::read_to_string(said)?);
    let summary = summary(&output)?;
    let losses = summary["losses"].as_object().context("no losses")?;
    ensure!(
        losses.values().all(|count| count == 0),
        "something was lost: {losses:?}"
    );
    ensure!(
        summary["notAvailable"] == Value::Array(Vec::new()),
        "not everything is there: {}",
        summary["notAvailable"]
    );
    ensure!(
        group(&summary, "/other").is_err(),
        "a cgroup that nobody selected is there: {summary}"
    );
    let in_all = summary["durationNs"].as_u64().context("no duration")?;
    let own = group(&summary, "/busy")?;
    let (cpu_ns, throttled_ns) = (number(own, "cpuNs")?, number(own, "throttledNs")?);
    let kernel_cpu_ns = 1000 * (after.0 - before.0);
    let kernel_throttled_ns = 1000 * (after.1 - before.1);
    eprintln!(
        "cpu {cpu_ns} of {kernel_cpu_ns} ns, throttled {throttled_ns} of {kernel_throttled_ns} ns, session {in_all} ns"
    );
    // Samples are an estimate, and an emulated machine's timers are late: but no other figure.
    ensure!(
        cpu_ns > kernel_cpu_ns / 2 && cpu_ns < 2 * kernel_cpu_ns,
        "time on CPU {cpu_ns} ns, the kernel says {kernel_cpu_ns} ns"
    );
    // The session is a little longer than what is between the two readings; a throttle counts at its end.
    let bound_ns = kernel_throttled_ns / 4;
    ensure!(
        kernel_throttled_ns > 0 && throttled_ns.abs_diff(kernel_throttled_ns) <= bound_ns,
        "throttled {throttled_ns} ns, the kernel says {kernel_throttled_ns} ns, allowed {bound_ns} ns apart"
    );
    let held = group(&summary, "/slow")?;
    ensure!(
        number(held, "stalledNs")? > 0 && held["marks"]["memory.high met"].as_u64() > Some(0),
        "{held}"
    );
    let killed = group(&summary, "/tight")?;
    ensure!(killed["marks"]["OOM kill"] == 1, "{killed}");
    ensure!(
        killed["marks"]["memory.max met"].as_u64() > Some(0),
        "{killed}"
    );
    check_files(&files)?;
    for file in files {
        fs::remove_file(file)?;
    }
    Ok(Done::Passed)
}

fn check_files(files: &[String; 2]) -> anyhow::Result<()> {
    let [pftrace, svg] = files.each_ref().map(fs::read);
    let pftrace = pftrace?;
    let trace = read(&pftrace)?;
    let events = || {
        let all = trace.packet.iter();
        all.filter_map(|packet| Some((packet.timestamp?, packet.track_event.as_ref()?)))
    };
    // A slice is its begin, with its name, and right behind that its end.
    let throttled_ns: Vec<u64> = events()
        .zip(events().skip(1))
        .filter(|((_, begin), _)| begin.name.as_deref() == Some("throttled"))
        .map(|((start_ns, _), (end_ns, _))| end_ns.saturating_sub(start_ns))
        .collect();
    ensure!(throttled_ns.len() > 5, "{} throttles", throttled_ns.len());
    // In every period the quota lasts for a tenth of it with two CPUs, and for a third with a share of one.
    let longest_ns = throttled_ns.iter().copied().max().unwrap_or(0);
    ensure!(
        (20_000_000..400_000_000).contains(&longest_ns),
        "the longest throttle takes {longest_ns} ns"
    );
    let (_, kill) = events()
        .find(|(_, event)| event.name.as_deref() == Some("OOM kill"))
        .context("no OOM kill")?;
    let mut details = kill
        .annotations
        .iter()
        .filter_map(|own| own.text.as_deref());
    ensure!(
        details.any(|detail| detail.contains("(hog)") && detail.contains("/records-test/tight")),
        "{kill:?}"
    );
    let interned = || {
        trace
            .packet
            .iter()
            .filter_map(|packet| packet.interned_data.as_ref())
    };
    let frames: usize = interned().map(|data| data.frames.len()).sum();
    ensure!(frames > 0, "no frames");
    let names: Vec<_> = interned()
        .flat_map(|data| &data.functions)
        .filter_map(|function| function.text.as_deref().map(String::from_utf8_lossy))
        .collect();
    // A function of a stripped program has the name of its file.
    ensure!(
        names.iter().any(|name| !name.starts_with('[')),
        "no function of the kernel has a name"
    );
    ensure!(
        names
            .iter()
            .any(|name| name.starts_with("[hog+0x") || name.contains("hog::")),
        "no frame is in the hog"
    );
    let samples = trace
        .packet
        .iter()
        .filter(|packet| packet.perf_sample.is_some());
    ensure!(samples.count() > 50, "too few samples");
    for needle in [
        "throttled",
        "OOM kill",
        "memory.high met",
        "cpu-clock",
        "/kernel",
    ] {
        ensure!(
            pftrace
                .windows(needle.len())
                .any(|bytes| bytes == needle.as_bytes()),
            "no {needle} in the Perfetto trace"
        );
    }
    let svg = String::from_utf8(svg?)?;
    ensure!(
        svg.contains("cpu-clock of /records-test")
            && (svg.contains("[hog]") || svg.contains("hog::")),
        "no flame graph of the hog"
    );
    Ok(())
}

/// Everything below a directory, with what tells one file from another.
fn inodes(directory: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if let Ok(metadata) = entry.metadata() {
                found.insert(entry.path(), metadata.ino());
                if metadata.is_dir() {
                    open.push(entry.path());
                }
            }
        }
    }
    found
}

fn an_agents_programs_are_left_alone() -> Outcome {
    let dir = PathBuf::from("/tmp/trace-beside");
    fs::create_dir_all(&dir)?;
    let owner = PinOwner::of(&dir);
    owner.remove()?;
    let (mut bpf, _) = Bpf::load_pinned(
        object()?,
        &BpfOptions {
            // As many as it takes to see that they are left alone.
            hooks: HookSet::NONE.with(Family::Lifecycle).with(Family::Reclaim),
            without: &[],
            window: Duration::from_millis(100),
            counts: Counts::EachCgroup,
        },
        &owner,
        |line| eprintln!("{line}"),
    )?;
    let pins = inodes(Path::new(PINS));
    ensure!(!pins.is_empty(), "nothing is pinned");
    // Something to see: nobody is sampled on an idle machine.
    let _spin = Guard(Command::new(program("hog")).arg("spin").spawn()?);
    let output = trace(&["--for", "1s", "--events", "cpu-clock,reclaim,oom"])?
        .args(["--output", "json"])
        .output()?;
    let seen = summary(&output)?;
    ensure!(number(&seen, "samples")? > 0, "{seen}");
    ensure!(inodes(Path::new(PINS)) == pins, "pins have changed");
    // Its programs still tell it, and it has lost nothing.
    let scratch = Scratch::new("memory")?;
    let mut made = 0;
    let account = bpf.finish(AtEnd::Detach, |bpf| {
        while bpf.drain_critical(256, |_| ()) > 0 || bpf.drain_pressure(256, |_| ()) > 0 {}
        while bpf.drain_lifecycle(256, |record| {
            made += u32::from(record.body.kind().name() == "cgroup-mkdir");
        }) > 0
        {}
    })?;
    drop(scratch);
    ensure!(made > 0, "the agent's programs tell it nothing any more");
    ensure!(account.lost() == 0, "{} records were lost", account.lost());
    owner.remove()?;
    Ok(Done::Passed)
}
