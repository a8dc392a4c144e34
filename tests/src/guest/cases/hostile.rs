//! Pods that resist, hide, or leave their memory behind: the right one still goes, soon, and no innocent one with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll_core::shown::Show as _;
use rustix::process::Signal;

use super::super::agent::Options;
use super::super::cgroup;
use super::super::clock::wait_until;
use super::super::harness::{Done, Lacks, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::memory::{self, mib};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::super::process::{Guard, program, run_program, wait_log};
use super::super::table::since;
use super::disk::Disk;
use super::{
    EVICTION_TIMEOUT, available_bytes, go, leak, needs_memory_v2, oom_kills, threshold_below_now,
};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "hostile::a_pod_that_resists_holds_nobody_up",
        on: On::Once(Machine::V6_1),
        run: resisting,
    },
    Test {
        name: "hostile::a_pod_of_nested_cgroups_does_not_hide",
        on: On::First(&[Machine::Hybrid, Machine::V7_2]),
        run: nested,
    },
    Test {
        name: "hostile::a_pod_of_many_cgroups_does_not_hide",
        on: On::First(&[Machine::V7_2, Machine::Hybrid]),
        run: many,
    },
    Test {
        name: "hostile::a_pod_with_a_threaded_cgroup_goes_and_may_come_again",
        on: On::Once(Machine::V6_1),
        run: threaded,
    },
    Test {
        name: "hostile::memory_that_outlives_its_pod_costs_two_pods_at_most",
        on: On::Once(Machine::V6_12),
        run: outliving,
    },
    Test {
        name: "hostile::memory_in_another_pod_s_hands_costs_two_pods_at_most",
        on: On::Weekly(Machine::V6_12),
        run: handed_over,
    },
    Test {
        name: "hostile::a_pod_that_waits_for_a_dead_disk_holds_nobody_up",
        on: On::Weekly(Machine::V6_1),
        run: uninterruptible,
    },
    Test {
        name: "hostile::page_cache_that_becomes_memory_at_the_limit_counts",
        on: On::Once(Machine::V7_2),
        run: cache_becomes_memory,
    },
    Test {
        name: "hostile::memory_that_is_freed_lazily_and_written_again_counts",
        on: On::EachKernelAndHybrid,
        run: freed_lazily,
    },
    Test {
        name: "hostile::page_cache_that_pipes_hold_counts_once_reclaim_takes_none",
        on: On::First(&[Machine::V7_2, Machine::V6_1]),
        run: pinned,
    },
    Test {
        name: "hostile::what_waits_in_sockets_counts",
        on: On::First(&[Machine::Hybrid, Machine::V7_2]),
        run: queues,
    },
    Test {
        name: "hostile::a_storm_of_forks_at_the_pid_limit_ends",
        on: On::Weekly(Machine::Hybrid),
        run: storm,
    },
    Test {
        name: "hostile::names_with_escapes_stay_on_their_line",
        on: On::Once(Machine::V6_12),
        run: names,
    },
];

/// More than the BPF programs, the kubelet and this agent look into.
const NESTED: usize = 12;
const MANY: usize = 400;
/// A second of the guest's time.
const SECOND_NS: i64 = 1_000_000_000;

fn container(node: &Node, pod: &Pod) -> PathBuf {
    node.cgroup_file(pod, "main")
}

/// Puts a pod's process into a cgroup below that of its container.
fn move_into(running: &Running, cgroup: &Path) -> anyhow::Result<()> {
    fs::write(
        cgroup.join("cgroup.procs"),
        running.process.pid().to_string(),
    )
    .with_context(|| format!("moving a process into {}", cgroup.display()))
}

/// Its dying threads are SCHED_IDLE beside a neighbour that wants every CPU, and hold the lock of their memory.
fn resisting() -> Outcome {
    let node = Node::new()?;
    let stubborn = Pod::burstable("stubborn", "16Mi").grace_s(1);
    let second = Pod::burstable("second", "16Mi");
    let neighbour = Pod::guaranteed("neighbour", "1", "64Mi");
    // Before the victim: to attach a program the kernel waits until every task has left the CPU by itself (RCU tasks),
    // which a task that stays in the kernel and hardly runs does not.
    let mut agent = node.agent(&Options::hard(&threshold_below_now(256 + 64)?).on_tracepoints())?;
    let _neighbour = node.hog(&neighbour, "spin --threads 8")?;
    let mut victim = node.hog(&stubborn, "--on-term ignore resist --mb 256")?;
    let mut next = leak(&node, &second, 192, "")?;
    go(&next)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == stubborn.full_name() && finished.outcome == "freed",
        "{finished:?}"
    );
    let killed_ns = since(finished.gone_ns, finished.killed_ns).context("it was not killed")?;
    ensure!(
        killed_ns < SECOND_NS,
        "it was gone {killed_ns} ns after it was killed"
    );
    ensure!(
        victim.process.wait_gone(Duration::from_secs(5)) && next.process.is_running()?,
        "the wrong pod is gone"
    );
    agent.after_samples(3)?;
    let evicted = agent.decisions("evict");
    ensure!(evicted == 1, "{evicted} evictions: {:?}", agent.events);
    agent.stop()?;
    Ok(Done::Passed)
}

/// Evicts a pod whose process is in one of the cgroups that `make` makes below its container.
fn hidden(make: impl Fn(&Path) -> anyhow::Result<PathBuf>) -> Outcome {
    let node = Node::new()?;
    let hog = Pod::burstable("hog", "16Mi");
    let innocent = Pod::burstable("innocent", "16Mi");
    let mut spared = node.hog(&innocent, "hold --mb 64")?;
    let mut leaking = leak(&node, &hog, 192, "")?;
    let mut agent = node.agent(&Options::hard(&threshold_below_now(128)?).on_tracepoints())?;
    move_into(&leaking, &make(&container(&node, &hog))?)?;
    // Until the agent has seen where the pod's process is now.
    agent.after_samples(3)?;
    go(&leaking)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == hog.full_name() && finished.outcome == "freed",
        "{finished:?}"
    );
    ensure!(
        leaking.process.wait_gone(Duration::from_secs(5)) && spared.process.is_running()?,
        "the wrong pod is gone"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

fn nested() -> Outcome {
    hidden(|container| {
        let cgroup = (0..NESTED).fold(container.to_owned(), |path, _| path.join("d"));
        fs::create_dir_all(&cgroup)?;
        Ok(cgroup)
    })
}

fn many() -> Outcome {
    hidden(|container| {
        for index in 0..MANY {
            fs::create_dir(container.join(format!("c{index:03}")))?;
        }
        Ok(container.join(format!("c{:03}", MANY - 1)))
    })
}

/// `cgroup.procs` of a threaded cgroup cannot be read.
fn threaded() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let node = Node::new()?;
    let hog = Pod::burstable("hog", "16Mi");
    for round in 0..2 {
        // What the first one wrote.
        fs::remove_file(node.log(&hog)).ok();
        let mut leaking = leak(&node, &hog, 192, "")?;
        let threads = container(&node, &hog).join("threads");
        if !threads.is_dir() {
            fs::create_dir(&threads)?;
            if let Err(error) = fs::write(threads.join("cgroup.type"), "threaded") {
                eprintln!("{error}");
                return Ok(Done::Skipped(Lacks::MemoryOnV2));
            }
        }
        let mut agent = node.agent(&Options::hard(&threshold_below_now(128)?).on_tracepoints())?;
        go(&leaking)?;
        let finished = agent.eviction(EVICTION_TIMEOUT)?;
        ensure!(
            finished.pod == hog.full_name() && finished.outcome == "freed",
            "round {round}: {finished:?}"
        );
        ensure!(
            leaking.process.wait_gone(Duration::from_secs(5)),
            "round {round}: it still runs"
        );
        agent.stop()?;
    }
    Ok(Done::Passed)
}

/// A file on a tmpfs stays charged to the pod that wrote it, after the pod.
fn outliving() -> Outcome {
    left_behind(|node, hog| {
        let file = node.directory.join("outlives");
        Ok((
            node.hog(hog, &format!("file --mb 256 --path {}", file.display()))?,
            None,
        ))
    })
}

/// So does a memfd that another process has open, as after SCM_RIGHTS; and so are pages that a pipe or an io_uring of
/// another process holds.
fn handed_over() -> Outcome {
    left_behind(|node, hog| {
        let running = node.hog(hog, "memfd --mb 256")?;
        let is_memfd = |path: &PathBuf| {
            fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("memfd:"))
        };
        let files = fs::read_dir(format!("/proc/{}/fd", running.process.pid()))?;
        let memfd = files.flatten().map(|file| file.path()).find(is_memfd);
        let held = File::open(memfd.context("the hog has no memfd")?)?;
        Ok((running, Some(held)))
    })
}

/// Memory of a pod's that `start` takes is there when the pod is gone.
fn left_behind(
    start: impl FnOnce(&Node, &Pod) -> anyhow::Result<(Running, Option<File>)>,
) -> Outcome {
    const OTHERS: usize = 4;
    let node = Node::new()?;
    let hog = Pod::burstable("hog", "16Mi");
    let mut others = Vec::new();
    for index in 0..OTHERS {
        let pod = Pod::burstable(&format!("other-{index}"), "16Mi");
        others.push(node.hog(&pod, "hold --mb 40")?);
    }
    let _hog = start(&node, &hog)?;
    // Met as it stands, and not met without what the pod left.
    let wanted = (available_bytes()? + mib(64)) >> 10;
    let mut agent =
        node.agent(&Options::hard(&format!("memory.available<{wanted}Ki")).on_tracepoints())?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(finished.pod == hog.full_name(), "{finished:?}");
    agent.after_samples(20)?;
    let left = others
        .iter_mut()
        .map(|other| other.process.is_running())
        .collect::<Result<Vec<_>, _>>()?;
    let left = left.into_iter().filter(|runs| *runs).count();
    ensure!(
        left + 1 >= OTHERS,
        "{left} of {OTHERS} other pods are left: {:?}",
        agent.events
    );
    // They were asked for, and held back.
    ensure!(
        agent.decisions("evictions_held") > 0,
        "nobody was to go in its place: {:?}",
        agent.events
    );
    agent.stop()?;
    Ok(Done::Passed)
}

/// A file system that nobody can write to, until it is dropped: who tries waits, and no signal ends that.
struct Frozen<'disk>(&'disk Disk);

impl<'disk> Frozen<'disk> {
    fn new(disk: &'disk Disk) -> anyhow::Result<Self> {
        run_program("fsfreeze", &["--freeze", &disk.0.to_string_lossy()])?;
        Ok(Self(disk))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = run_program("fsfreeze", &["--unfreeze", &self.0.0.to_string_lossy()]) {
            eprintln!("{error:#}");
        }
    }
}

/// Uninterruptible sleep.
fn is_in_d_state(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().any(|thread| {
        fs::read_to_string(thread.path().join("status"))
            .is_ok_and(|status| status.contains("State:\tD"))
    })
}

/// It cannot die, but its memory comes back and the next leak has its own victim, at once.
fn uninterruptible() -> Outcome {
    let disk = Disk::mount(16, 16384)?;
    let node = Node::new()?;
    let stuck = Pod::burstable("stuck", "16Mi").grace_s(1);
    let next = Pod::burstable("next", "16Mi");
    let innocent = Pod::burstable("innocent", "16Mi");
    let mut spared = node.hog(&innocent, "hold --mb 32")?;
    node.write(&stuck)?;
    let log = disk.0.join("log");
    let (hog, log_text) = (program("hog"), log.to_string_lossy());
    let words = [
        &hog.to_string_lossy(),
        "--log",
        &log_text,
        "--on-term",
        "log",
        "hold",
        "--mb",
        "192",
    ];
    let mut held = node.exec(&stuck, &words)?;
    ensure!(
        wait_log(&log, "ready", EVICTION_TIMEOUT).is_some(),
        "the pod does not come up: {}",
        node.output(&stuck)
    );
    let mut leaking = leak(&node, &next, 160, "")?;
    let mut agent = node.agent(&Options::hard(&threshold_below_now(64)?).on_tracepoints())?;
    let frozen = Frozen::new(&disk)?;
    // It is to write what it does about it.
    held.process.signal(Signal::TERM)?;
    let pid = held.process.pid();
    ensure!(
        wait_until(EVICTION_TIMEOUT, Duration::from_millis(10), || {
            is_in_d_state(pid)
        }),
        "it does not wait for its disk"
    );
    go(&leaking)?;
    let first = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        first.pod == stuck.full_name() && first.outcome == "stuck",
        "{first:?}"
    );
    ensure!(is_in_d_state(pid), "it has died after all");
    ensure!(
        first.freed_bytes > mib(128),
        "its memory is still there: {first:?}"
    );
    // The next one is not the same once more.
    let wanted = available_bytes()?.saturating_sub(mib(64)) >> 10;
    ensure!(
        leaking.process.is_running()?,
        "two pods went for one: {:?}",
        agent.events
    );
    agent.stop()?;
    let mut agent =
        node.agent(&Options::hard(&format!("memory.available<{wanted}Ki")).on_tracepoints())?;
    let third = Pod::burstable("third", "16Mi");
    let third_hog = leak(&node, &third, 192, "")?;
    go(&third_hog)?;
    let second = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        second.pod != innocent.full_name() && spared.process.is_running()?,
        "{second:?}"
    );
    drop(frozen);
    ensure!(
        held.process.wait_gone(EVICTION_TIMEOUT),
        "it lives, though its disk answers again"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

/// What a pod uses stands still at its limit, and what was clean page cache in it is memory by now.
fn cache_becomes_memory() -> Outcome {
    let disk = Disk::mount(192, 16384)?;
    let node = Node::new()?;
    let hog = Pod::burstable("hog", "16Mi").limit("memory", "136Mi");
    // Less beyond its request than the hog has by the time of the crossing, and more than the hog has without its new
    // memory.
    let innocent = Pod::burstable("innocent", "16Mi");
    let mut spared = node.hog(&innocent, "hold --mb 32")?;
    let file = disk.0.join("cache");
    let mut turning = node.hog(
        &hog,
        &format!("cache-then-memory --mb 112 --path {}", file.display()),
    )?;
    let mut agent = node.agent(&Options::hard(&threshold_below_now(80)?).on_tracepoints())?;
    agent.after_samples(2)?;
    go(&turning)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    // Not whether it is freed: what is left of its page cache stays with the file.
    ensure!(finished.pod == hog.full_name(), "{finished:?}");
    ensure!(
        turning.process.wait_gone(Duration::from_secs(5)) && spared.process.is_running()?,
        "the wrong pod is gone"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

/// What a pod frees with MADV_FREE and writes again is in use, and on the kernel's lists of page cache: by these alone
/// the pod uses nearly nothing and the node has all of it, until the OOM killer runs.
fn freed_lazily() -> Outcome {
    let kernels_before = oom_kills()?;
    for signal in ["memory.available", "kernelMemory.available"] {
        let node = Node::new()?;
        let hog = Pod::burstable("hog", "64Mi");
        let innocent = Pod::burstable("innocent", "16Mi");
        let mut spared = node.hog(&innocent, "hold --mb 24")?;
        let mut growing = node.hog(&hog, "ramp --wait-usr1 --rate-mb-s 128 --lazily")?;
        let node_memory = memory::read()?;
        let now_bytes = match signal {
            "memory.available" => node_memory.working_set_available_bytes(),
            _ => node_memory.available_bytes,
        };
        let wanted_kib = now_bytes.saturating_sub(mib(160)) >> 10;
        let mut agent =
            node.agent(&Options::hard(&format!("{signal}<{wanted_kib}Ki")).on_tracepoints())?;
        go(&growing)?;
        let finished = agent.eviction(EVICTION_TIMEOUT)?;
        ensure!(
            finished.pod == hog.full_name() && finished.outcome == "freed",
            "{signal}: {finished:?}"
        );
        ensure!(
            growing.process.wait_gone(Duration::from_secs(5)) && spared.process.is_running()?,
            "{signal}: the wrong pod is gone"
        );
        agent.stop()?;
    }
    let kernels = oom_kills()? - kernels_before;
    ensure!(kernels == 0, "the kernel's OOM killer ran {kernels} times");
    Ok(Done::Passed)
}

/// Page cache whose pages pipes hold is available by every figure of the kernel, and cannot be dropped: the innocent
/// pod grows into what is not there.
fn pinned() -> Outcome {
    const PINNED_MIB: u64 = 400;
    let kernels_before = oom_kills()?;
    let disk = Disk::mount(192, 16384)?;
    let node = Node::new()?;
    let hog = Pod::burstable("hog", "64Mi");
    // Never above its request.
    let innocent = Pod::burstable("innocent", "8Gi");
    let file = disk.0.join("pinned");
    let mut pinning = node.hog(
        &hog,
        &format!("pin --mb {PINNED_MIB} --path {}", file.display()),
    )?;
    let mut agent = node.agent(&Options::hard("kernelMemory.available<48Mi").on_tracepoints())?;
    agent.after_samples(2)?;
    // More than there is as long as that is held, and less than there is afterwards.
    let left_mib = memory::read()?.available_bytes >> 20;
    let max_mib = left_mib.saturating_sub(PINNED_MIB / 2);
    let mut growing = node.hog(
        &innocent,
        &format!("ramp --wait-usr1 --rate-mb-s 64 --max-mb {max_mib}"),
    )?;
    go(&growing)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(finished.pod == hog.full_name(), "{finished:?}");
    ensure!(
        pinning.process.wait_gone(Duration::from_secs(5)),
        "the hog is still there"
    );
    agent.after_samples(2)?;
    ensure!(growing.process.is_running()?, "the innocent pod is gone");
    let kernels = oom_kills()? - kernels_before;
    ensure!(kernels == 0, "the kernel's OOM killer ran {kernels} times");
    agent.stop()?;
    Ok(Done::Passed)
}

/// Pods with what waits in netlink sockets, which their cgroups are not charged for: in the host's network namespace,
/// as an innocent pod is that has more than it requests, and in one of their own.
fn queues() -> Outcome {
    // 300 MiB.
    const QUEUES: &str = "queues --wait-usr1 --count 1500 --rate-s 500";
    let kernels_before = oom_kills()?;
    for is_alone in [false, true] {
        let node = Node::new()?;
        let hog = Pod::burstable("hog", "16Mi");
        let innocent = Pod::burstable("innocent", "16Mi");
        let mut spared = node.hog(&innocent, "hold --mb 48")?;
        let mut filling = match is_alone {
            false => node.hog(&hog, QUEUES)?,
            true => {
                node.write(&hog)?;
                let (program, log) = (program("hog"), node.log(&hog));
                let [program, log_text] = [&program, &log].map(|path| path.to_string_lossy());
                let mut command = vec!["unshare", "-n", &*program, "--log", &*log_text];
                command.extend(QUEUES.split_whitespace());
                let filling = node.exec(&hog, &command)?;
                wait_log(&log, "ready", Duration::from_secs(60)).context("no hog")?;
                filling
            }
        };
        let wanted_kib = memory::read()?.available_bytes.saturating_sub(mib(160)) >> 10;
        // What the kubelet takes for available does not fall by it.
        let threshold = format!("kernelMemory.available<{wanted_kib}Ki");
        let mut agent = node.agent(&Options::hard(&threshold).on_tracepoints())?;
        agent.after_samples(2)?;
        go(&filling)?;
        let finished = agent.eviction(EVICTION_TIMEOUT)?;
        let case = format!("alone: {is_alone}");
        // Not whether it is freed: of the little that it was charged for some stays.
        ensure!(finished.pod == hog.full_name(), "{case}: {finished:?}");
        ensure!(
            filling.process.wait_gone(Duration::from_secs(5)) && spared.process.is_running()?,
            "{case}: the wrong pod is gone"
        );
        let is_back = wait_until(EVICTION_TIMEOUT, Duration::from_millis(10), || {
            memory::read().is_ok_and(|node| node.available_bytes >> 10 > wanted_kib)
        });
        ensure!(is_back, "{case}: the memory is not back");
        agent.stop()?;
    }
    let kernels = oom_kills()? - kernels_before;
    ensure!(kernels == 0, "the kernel's OOM killer ran {kernels} times");
    Ok(Done::Passed)
}

/// Each process that is killed leaves a place that the others fill at once.
fn storm() -> Outcome {
    const PIDS: &str = "48";
    let node = Node::new()?;
    let hog = Pod::burstable("hog", "16Mi").grace_s(1);
    let innocent = Pod::burstable("innocent", "16Mi");
    let mut spared = node.hog(&innocent, "hold --mb 32")?;
    let mut storming = node.hog(&hog, "storm --mb 256")?;
    let limited = cgroup::hierarchies().into_iter().find_map(|hierarchy| {
        let file = hierarchy.join(hog.cgroup()).join("pids.max");
        fs::write(&file, PIDS).ok().map(|()| file)
    });
    let limited = limited.context("no hierarchy limits processes")?;
    let mut agent = node.agent(&Options::hard(&threshold_below_now(160)?).on_tracepoints())?;
    go(&storming)?;
    let current = limited.with_file_name("pids.current");
    ensure!(
        wait_until(EVICTION_TIMEOUT, Duration::from_millis(10), || {
            fs::read_to_string(&current).is_ok_and(|count| count.trim() == PIDS)
        }),
        "no storm"
    );
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == hog.full_name() && finished.outcome == "freed",
        "{finished:?}"
    );
    ensure!(
        storming.process.wait_gone(Duration::from_secs(5)) && spared.process.is_running()?,
        "the wrong pod is gone"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

/// A command whose name clears the screen and begins a line is killed by the kernel, in a cgroup whose name does the
/// same.
fn names() -> Outcome {
    /// Resets a terminal, hides what follows, and begins a line.
    const FAKE: &str = "\u{1b}c\u{1b}[8m\nfake";
    let node = Node::new()?;
    let odd = Pod::burstable("odd", "8Mi").limit("memory", "24Mi");
    node.write(&odd)?;
    let output = node.directory.join("log/agent.out");
    let file = File::create(&output)?;
    let mut agent = Command::new(program("plimsoll"));
    agent
        .args([
            "run",
            "--output",
            "text",
            "--eviction-hard",
            "memory.available<1Mi",
        ])
        .arg("--manifests")
        .arg(node.manifests())
        .arg("--state-dir")
        .arg(node.directory.join("state"))
        .stdin(Stdio::null())
        .stderr(file.try_clone()?)
        .stdout(file);
    let mut agent = Guard(agent.spawn()?);
    let says = |word: &str| {
        wait_until(EVICTION_TIMEOUT, Duration::from_millis(50), || {
            fs::read(&output).is_ok_and(|text| String::from_utf8_lossy(&text).contains(word))
        })
    };
    ensure!(
        says(" runs (pid "),
        "it does not start: {:?}",
        fs::read_to_string(&output)
    );
    let command = node.directory.join(FAKE);
    std::os::unix::fs::symlink(program("hog"), &command)?;
    let mut running = node.exec(&odd, &[&command.to_string_lossy(), "hold", "--mb", "48"])?;
    let odd_cgroup = container(&node, &odd).join("\u{1b}[2J\r\u{9b}8m");
    fs::create_dir_all(&odd_cgroup)?;
    ensure!(
        running.process.wait_gone(EVICTION_TIMEOUT),
        "its limit is not met"
    );
    // The command itself, as it is shown: the table of the start has its own words about OOM kills.
    ensure!(
        says(&FAKE.shown().to_string()),
        "the kill is not said by the command's name: {:?}",
        fs::read_to_string(&output)
    );
    agent.signal(Signal::TERM)?;
    ensure!(agent.wait_gone(EVICTION_TIMEOUT), "it does not end");
    let said = fs::read_to_string(&output)?;
    let control = said.chars().find(|one| *one != '\n' && one.is_control());
    ensure!(control.is_none(), "{control:?} in {said:?}");
    ensure!(
        said.lines().all(|line| !line.starts_with("fake")),
        "a name begins a line: {said:?}"
    );
    Ok(Done::Passed)
}
