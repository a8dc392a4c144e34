//! Thresholds on the time that is lost waiting for memory and for a disk: who makes others wait goes, alone.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};

use super::super::agent::Agent;
use super::super::harness::{Done, Lacks, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::Node;
use super::super::pod::Pod;
use super::EVICTION_TIMEOUT;
use super::disk::Disk;
use super::policies::{agent_with, told};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "stalls::a_pod_that_reads_its_page_cache_again_and_again_at_its_limit_goes_for_memory",
        on: On::Weekly(Machine::V7_2),
        run: memory_stall,
    },
    Test {
        name: "stalls::the_pod_with_the_most_traffic_goes_for_the_disk",
        on: On::Once(Machine::V7_2),
        run: io_stall,
    },
];

/// The disk for swap, which no test here needs as such.
const DISK: &str = "/dev/nvme0n2";
/// After the victim's end the average still shows what was, for its window of ten seconds: nobody else may go for that.
pub(super) const AFTERMATH_SAMPLES: u32 = 5;

/// The threshold on `signal` makes `victim` go, and nobody else.
fn goes_alone(agent: &mut Agent, signal: &str, victim: &Pod) -> anyhow::Result<()> {
    let pressure = || {
        ["memory", "io"]
            .map(|of| fs::read_to_string(format!("/proc/pressure/{of}")).unwrap_or_default())
    };
    let finished = agent
        .eviction(EVICTION_TIMEOUT * 2)
        .with_context(|| format!("memory and io wait {:?}", pressure()))?;
    ensure!(finished.pod == victim.full_name(), "{finished:?}");
    ensure!(
        finished.signal.as_deref() == Some(signal),
        "by {:?}",
        finished.signal
    );
    eprintln!("{}", told(agent).context("no decision")?);
    agent.after_samples(AFTERMATH_SAMPLES)?;
    ensure!(
        agent.evictions().count() == 1,
        "a second one went for the stall of the first: {:?}",
        agent.events
    );
    Ok(())
}

/// What it reads does not fit into its limit, so each page is fetched again, and dropped again. The other pod has more,
/// within its request. An emulated disk is so fast that this costs some 8 % of the time; without it there is no stall
/// at all.
fn memory_stall() -> Outcome {
    const LIMIT_MB: usize = 64;
    let disk = Disk::mount(192, 65536)?;
    let path = disk.0.join("data");
    fs::write(&path, vec![1; (LIMIT_MB + LIMIT_MB / 2) << 20])?;
    // What is in the page cache already is charged to nobody here: a scene begins with dropped caches.
    fs::File::open(&path)?.sync_all()?;
    let node = Node::new()?;
    let calm = Pod::burstable("calm", "192Mi");
    let mut calm_runs = node.hog(&calm, "hold --mb 160")?;
    let thrashing = Pod::burstable("thrashing", "1Mi").limit("memory", &format!("{LIMIT_MB}Mi"));
    let _thrashing = node.hog(
        &thrashing,
        &format!("reread --path {} --pause-ms 0", path.display()),
    )?;
    let mut agent = agent_with(
        &node,
        "evictionHard: {memory.available: 1Mi, memoryPressure.some.avg10: \"2%\"}\n",
    )?;
    goes_alone(&mut agent, "memoryPressure.some.avg10", &thrashing)?;
    ensure!(calm_runs.process.is_running()?, "the calm pod died");
    agent.stop()?;
    Ok(Done::Passed)
}

/// So many bytes in a second from [`DISK`].
fn limit_reads(file: &Path, bytes_per_s: u64) -> anyhow::Result<()> {
    let device = fs::metadata(DISK)?.rdev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    fs::write(file, format!("{major}:{minor} rbps={bytes_per_s}"))
        .with_context(|| format!("writing {}", file.display()))
}

/// It wants more of the disk than the disk gives: here a limit of its cgroup, as an emulated disk is as fast as the
/// emulated CPUs. Of the others one has far more memory over its request, and one reads now and then.
fn io_stall() -> Outcome {
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    if !controllers.split_whitespace().any(|name| name == "io") {
        return Ok(Done::Skipped(Lacks::IoOnV2));
    }
    ensure!(Path::new(DISK).exists(), "this guest has no {DISK}");
    let node = Node::new()?;
    let large = Pod::burstable("large", "16Mi");
    let mut large_runs = node.hog(&large, "hold --mb 160")?;
    let modest = Pod::best_effort("modest");
    let mut modest_runs = node.hog(
        &modest,
        &format!("direct --path {DISK} --threads 1 --pause-ms 100"),
    )?;
    let busy = Pod::guaranteed("busy", "100m", "64Mi");
    let _busy = node.hog(&busy, &format!("direct --path {DISK} --threads 8"))?;
    let mut agent = agent_with(
        &node,
        "evictionHard: {memory.available: 1Mi, ioPressure.some.avg10: \"10%\"}\n",
    )?;
    limit_reads(&node.cgroup_file(&busy, "io.max"), 4 << 20)?;
    goes_alone(&mut agent, "ioPressure.some.avg10", &busy)?;
    for (pod, running) in [(&large, &mut large_runs), (&modest, &mut modest_runs)] {
        ensure!(running.process.is_running()?, "{} died", pod.name);
    }
    agent.stop()?;
    Ok(Done::Passed)
}
