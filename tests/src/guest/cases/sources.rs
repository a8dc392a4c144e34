//! The agent's sources that need no BPF, on a real kernel: notifications of cgroup v1 and v2, PSI triggers, inotify on
//! cgroups.
//!
//! Each of them says something when it happens and nothing before, and tells a cgroup that is gone from other errors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll::host::{Controller, HostRoot, Version};
use plimsoll::source::cgroup_watch::{CgroupChange, CgroupWatch, DIRECTORIES_PER_CALL_MAX};
use plimsoll::source::memcg_v1::{MemcgV1, PressureLevel};
use plimsoll::source::memory_events::MemoryEvents;
use plimsoll::source::pressure::{PressureError, PsiTrigger, Stall, Trigger, Wake};
use rustix::fs::inotify;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::super::clock::wait_until;
use super::super::harness::{Done, Lacks, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::process::Guard;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "sources::v1_threshold_is_signalled_when_crossed_and_not_before",
        on: On::Once(Machine::Hybrid),
        run: || v1(threshold),
    },
    Test {
        name: "sources::v1_removal_signals_and_the_next_read_has_vanished",
        on: On::Once(Machine::Hybrid),
        run: || v1(removal),
    },
    Test {
        name: "sources::v1_out_of_memory_is_signalled_and_counted",
        on: On::Once(Machine::Hybrid),
        run: || v1(out_of_memory),
    },
    Test {
        name: "sources::v1_pressure_level_is_signalled",
        on: On::Once(Machine::Hybrid),
        run: || v1(pressure_level),
    },
    Test {
        name: "sources::v1_inotify_sees_cgroups",
        on: On::Once(Machine::Hybrid),
        run: || v1(watch_a_pod),
    },
    Test {
        name: "sources::v2_events_wake_count_and_vanish",
        on: On::EachKernel,
        run: || v2(events),
    },
    Test {
        name: "sources::v2_events_wake_tokio",
        on: On::EachKernel,
        run: || v2(events_wake_tokio),
    },
    Test {
        name: "sources::v2_pressure_of_a_cgroup_wakes_tokio_and_vanishes",
        on: On::EachKernel,
        run: || v2(pressure_of_a_cgroup),
    },
    Test {
        name: "sources::v2_inotify_sees_cgroups",
        on: On::EachKernel,
        run: || v2(watch_a_pod),
    },
    Test {
        name: "sources::psi_node_trigger_is_taken_once_per_descriptor",
        on: On::EachKernel,
        run: node_trigger,
    },
    Test {
        name: "sources::psi_cpu_trigger_fires",
        on: On::EachKernel,
        run: cpu_trigger,
    },
    Test {
        name: "sources::inotify_overflow_is_healed_by_a_rescan",
        on: On::Once(Machine::V6_12),
        run: inotify_overflow,
    },
];

const LONG: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A memory cgroup of this test alone, removed at the end.
struct TestCgroup(PathBuf);

impl TestCgroup {
    /// `None` when memory is not on this version here.
    fn new(version: Version) -> anyhow::Result<Option<Self>> {
        let mounts = HostRoot::live().cgroup_mounts()?;
        let memory = mounts.hierarchy_of(Controller::Memory)?;
        if memory.version != version {
            return Ok(None);
        }
        let path = memory
            .mount
            .join(format!("sources-test-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Some(Self(path)))
    }

    fn set(&self, file: &str, value: u64) -> anyhow::Result<()> {
        fs::write(self.0.join(file), value.to_string()).with_context(|| format!("writing {file}"))
    }

    /// A process in here that touches so much at once and ends.
    fn touch(&self, mib: u64) -> anyhow::Result<Guard> {
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec dd if=/dev/zero of=/dev/null bs={} count=1",
            self.0.display(),
            mib * MIB
        );
        shell(&script)
    }

    /// False when something kept it for 10 s.
    fn remove(&self) -> bool {
        // A dead task leaves its cgroup a moment after it was waited for.
        wait_until(Duration::from_secs(10), Duration::from_millis(20), || {
            fs::remove_dir(&self.0).is_ok() || !self.0.exists()
        })
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        if !self.remove() {
            eprintln!("{} is still there", self.0.display());
        }
    }
}

fn shell(script: &str) -> anyhow::Result<Guard> {
    let child = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting sh")?;
    Ok(Guard(child))
}

fn ended(child: &mut Child) -> anyhow::Result<std::process::ExitStatus> {
    child.wait().context("waiting for a process")
}

fn on(
    version: Version,
    lacks: Lacks,
    test: fn(&TestCgroup) -> anyhow::Result<()>,
) -> anyhow::Result<Done> {
    let Some(cgroup) = TestCgroup::new(version)? else {
        return Ok(Done::Skipped(lacks));
    };
    test(&cgroup)?;
    Ok(Done::Passed)
}

fn v1(test: fn(&TestCgroup) -> anyhow::Result<()>) -> Outcome {
    on(Version::V1, Lacks::MemoryOnV1, test)
}

fn v2(test: fn(&TestCgroup) -> anyhow::Result<()>) -> Outcome {
    on(Version::V2, Lacks::MemoryOnV2, test)
}

fn threshold(cgroup: &TestCgroup) -> anyhow::Result<()> {
    let memcg = MemcgV1::open(&cgroup.0)?;
    let armed = memcg.notify_at(32 * MIB)?;
    let status = ended(&mut cgroup.touch(8)?.0)?;
    ensure!(status.success(), "dd ended with {status}");
    ensure!(armed.take()? == 0, "8 MiB do not cross 32 MiB");
    let mut child = cgroup.touch(64)?;
    ensure!(armed.wait(LONG)? >= 1, "64 MiB cross 32 MiB");
    ended(&mut child.0)?;
    // Another threshold is another notification; the old one, dropped, is out of the kernel's list.
    drop(armed);
    let armed = memcg.notify_at(16 * MIB)?;
    let mut child = cgroup.touch(64)?;
    ensure!(armed.wait(LONG)? >= 1, "64 MiB cross 16 MiB");
    ended(&mut child.0)?;
    Ok(())
}

fn removal(cgroup: &TestCgroup) -> anyhow::Result<()> {
    let memcg = MemcgV1::open(&cgroup.0)?;
    let armed = memcg.notify_at(1024 * MIB)?;
    ensure!(cgroup.remove(), "the cgroup stays");
    ensure!(armed.wait(LONG)? >= 1, "a removal wakes");
    let usage = memcg.usage_bytes();
    ensure!(
        usage.as_ref().is_err_and(|error| error.is_vanished()),
        "{usage:?}"
    );
    let again = memcg.notify_at(MIB);
    ensure!(
        again.as_ref().is_err_and(|error| error.is_vanished()),
        "{again:?}"
    );
    Ok(())
}

fn out_of_memory(cgroup: &TestCgroup) -> anyhow::Result<()> {
    cgroup.set("memory.limit_in_bytes", 16 * MIB)?;
    let memcg = MemcgV1::open(&cgroup.0)?;
    let armed = memcg.notify_oom()?;
    let before = memcg.oom_control()?;
    ensure!(
        !before.oom_kill_disable,
        "the OOM killer is off: {before:?}"
    );
    let mut child = cgroup.touch(64)?;
    ensure!(armed.wait(LONG)? >= 1, "running out of memory wakes");
    let status = ended(&mut child.0)?;
    ensure!(!status.success(), "64 MiB fit into 16 MiB");
    let after = memcg.oom_control()?;
    ensure!(after.oom_kill > before.oom_kill, "{before:?}, {after:?}");
    Ok(())
}

fn pressure_level(cgroup: &TestCgroup) -> anyhow::Result<()> {
    cgroup.set("memory.limit_in_bytes", 16 * MIB)?;
    let memcg = MemcgV1::open(&cgroup.0)?;
    let armed = memcg.notify_pressure(PressureLevel::Low)?;
    let mut child = cgroup.touch(64)?;
    ensure!(armed.wait(LONG)? >= 1, "reclaim wakes");
    ended(&mut child.0)?;
    Ok(())
}

fn events(cgroup: &TestCgroup) -> anyhow::Result<()> {
    cgroup.set("memory.max", 16 * MIB)?;
    let mut events = MemoryEvents::open(&cgroup.0)?;
    ensure!(!events.wait(Duration::ZERO)?, "nothing has happened yet");
    let mut child = cgroup.touch(64)?;
    let mut oom_kill = 0;
    while oom_kill == 0 {
        ensure!(events.wait(LONG)?, "no notification");
        oom_kill += events.read_delta()?.oom_kill;
    }
    ensure!(events.counts().max > 0, "{:?}", events.counts());
    ended(&mut child.0)?;
    ensure!(cgroup.remove(), "the cgroup stays");
    ensure!(events.wait(LONG)?, "a removal wakes as well");
    let gone = events.read_delta();
    ensure!(
        gone.as_ref().is_err_and(|error| error.is_vanished()),
        "{gone:?}"
    );
    Ok(())
}

#[expect(
    deprecated,
    reason = "tokio 1.54 has no safe way to watch for priority readiness but this one; the sources own their descriptors"
)]
fn for_priority<T: std::os::fd::AsRawFd>(source: T) -> std::io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(source, Interest::PRIORITY)
}

fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(future)
}

fn events_wake_tokio(cgroup: &TestCgroup) -> anyhow::Result<()> {
    cgroup.set("memory.high", 8 * MIB)?;
    cgroup.set("memory.max", 16 * MIB)?;
    block_on(async {
        let mut events = for_priority(MemoryEvents::open(&cgroup.0)?)?;
        let _child = cgroup.touch(64)?;
        // Any count will do: who is killed at memory.max before it comes back from the kernel was never throttled.
        while events.get_ref().counts().is_zero() {
            let woken = tokio::time::timeout(LONG, events.ready_mut(Interest::PRIORITY)).await;
            let mut ready = woken.with_context(|| {
                let now = fs::read_to_string(cgroup.0.join("memory.events"));
                format!("no notification of {now:?}")
            })??;
            ready.clear_ready();
            ready.get_inner_mut().read_delta()?;
        }
        Ok(())
    })
}

fn pressure_of_a_cgroup(cgroup: &TestCgroup) -> anyhow::Result<()> {
    cgroup.set("memory.high", 8 * MIB)?;
    let trigger = Trigger::new(Stall::Some, 20, 500)?;
    let armed = PsiTrigger::arm(cgroup.0.join("memory.pressure"), trigger)?;
    ensure!(
        armed.wait(Duration::ZERO)? == Wake::Quiet,
        "nothing has happened yet"
    );
    let armed = block_on(async {
        let armed = for_priority(armed)?;
        // Anonymous memory over memory.high without swap: throttled for seconds.
        let _child = cgroup.touch(64)?;
        let woken = tokio::time::timeout(LONG, armed.ready(Interest::PRIORITY)).await;
        woken.context("no notification")??.clear_ready();
        Ok(armed.into_inner())
    })?;
    armed.check()?;
    ensure!(cgroup.remove(), "the cgroup stays");
    let gone = armed.wait(LONG);
    ensure!(
        matches!(gone, Err(PressureError::Vanished { .. })),
        "{gone:?}"
    );
    Ok(())
}

fn watch_a_pod(cgroup: &TestCgroup) -> anyhow::Result<()> {
    let cgroup = &cgroup.0;
    let mut watch = CgroupWatch::open(cgroup)?;
    fs::create_dir(cgroup.join("pod1"))?;
    fs::create_dir(cgroup.join("pod1/c1"))?;
    let created = [
        CgroupChange::Created("pod1".into()),
        CgroupChange::Created("pod1/c1".into()),
    ];
    let seen = watch.changes()?;
    ensure!(seen == created, "{seen:?}");
    fs::remove_dir(cgroup.join("pod1/c1"))?;
    fs::remove_dir(cgroup.join("pod1"))?;
    let removed = [
        CgroupChange::Removed("pod1/c1".into()),
        CgroupChange::Removed("pod1".into()),
    ];
    let seen = watch.changes()?;
    ensure!(seen == removed, "{seen:?}");
    Ok(())
}

fn node_trigger() -> Outcome {
    let trigger = Trigger::new(Stall::Full, 400, 1000)?;
    let armed = PsiTrigger::arm("/proc/pressure/memory", trigger)?;
    armed.check()?;
    let second = rustix::io::write(&armed, b"some 50000 2000000\0");
    ensure!(second == Err(rustix::io::Errno::BUSY), "{second:?}");
    Ok(Done::Passed)
}

fn cpu_trigger() -> Outcome {
    let trigger = Trigger::new(Stall::Some, 20, 500)?;
    let armed = PsiTrigger::arm("/proc/pressure/cpu", trigger)?;
    let cpus = std::thread::available_parallelism()?.get();
    let _busy = (0..=cpus)
        .map(|_| shell("while :; do :; done"))
        .collect::<anyhow::Result<Vec<Guard>>>()?;
    let wake = armed.wait(LONG)?;
    ensure!(wake == Wake::Stalled, "{wake:?}");
    Ok(Done::Passed)
}

/// Makes the real kernel's queue overflow instead of believing in it.
fn inotify_overflow() -> Outcome {
    // The limit of a queue is fixed when the instance is made.
    let limit = Path::new("/proc/sys/fs/inotify/max_queued_events");
    let directory = PathBuf::from(format!("/tmp/sources-test-{}", std::process::id()));
    fs::create_dir(&directory)?;
    let before = fs::read_to_string(limit)?;
    fs::write(limit, "16")?;
    let watch = CgroupWatch::open(&directory);
    fs::write(limit, before.trim())?;
    let mut watch = watch?;
    for pod in 0..200 {
        fs::create_dir(directory.join(format!("pod{pod}")))?;
    }
    // One call looks at a part of them; the walk passes all of them at most once more.
    let (mut seen, mut calls) = (watch.changes()?.len(), 1);
    while watch.has_more() {
        seen += watch.changes()?.len();
        calls += 1;
        let most = 2 * 201usize.div_ceil(DIRECTORIES_PER_CALL_MAX) + 1;
        ensure!(calls <= most, "not done after {most} calls");
    }
    ensure!(seen == 200, "{seen} of 200 are seen");
    ensure!(
        (watch.overflows(), watch.unwatched()) == (1, 0),
        "{} overflows, {} directories not watched",
        watch.overflows(),
        watch.unwatched()
    );
    // And what inotify itself says of a directory that is not there, which the watch relies on.
    let instance = inotify::init(inotify::CreateFlags::CLOEXEC)?;
    let missing = inotify::add_watch(&instance, directory.join("no"), inotify::WatchFlags::CREATE);
    ensure!(missing == Err(rustix::io::Errno::NOENT), "{missing:?}");
    fs::remove_dir_all(&directory)?;
    Ok(Done::Passed)
}
