//! The node's disk runs out of space or of inodes: what goes first, who goes for it, and who stays.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::agent::{Agent, Event, Options};
use super::super::clock::wait_until;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::Node;
use super::super::pod::Pod;
pub(super) use super::super::process::run_program as run;
use super::scenarios::{quiet, reached, wait_for_changes};
use super::{EVICTION_TIMEOUT, go};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "disk::who_fills_the_disk_is_evicted_alone_after_the_node_freed_what_it_could",
        on: On::Once(Machine::V6_1),
        run: bytes_run_out,
    },
    Test {
        name: "disk::who_takes_the_inodes_is_evicted_alone",
        on: On::Weekly(Machine::V6_1),
        run: inodes_run_out,
    },
    Test {
        name: "disk::what_an_ended_pod_left_is_freed_and_nobody_is_evicted",
        on: On::Weekly(Machine::V6_1Smp),
        run: freeing_disk_suffices,
    },
    Test {
        name: "disk::a_volume_above_its_size_limit_takes_its_pod_though_the_disk_has_plenty",
        on: On::Once(Machine::V6_1),
        run: size_limit,
    },
];

/// The volume of the pods here.
const VOLUME: &str = "data";

/// The guest's first disk with an empty file system, mounted until it is dropped. Make it before the [`Node`], whose
/// pods use it.
pub(super) struct Disk(pub(super) PathBuf);

impl Disk {
    /// With a file system of so many MiB, and an inode for every so many bytes.
    pub(super) fn mount(mib: u64, bytes_per_inode: u64) -> anyhow::Result<Self> {
        const DEVICE: &str = "/dev/nvme0n1";
        let path = PathBuf::from("/tmp/disk");
        let text = path.to_string_lossy().into_owned();
        std::fs::create_dir_all(&path)?;
        // A test that was killed did not clean up.
        if std::fs::read_to_string("/proc/mounts")?.contains(&format!(" {text} ")) {
            run("umount", &[&text])?;
        }
        let (kib, ratio) = ((mib << 10).to_string(), bytes_per_inode.to_string());
        run(
            "mke2fs",
            &["-F", "-b", "4096", "-m", "0", "-i", &ratio, DEVICE, &kib],
        )?;
        run("mount", &["-t", "ext2", DEVICE, &text])?;
        Ok(Self(path))
    }

    /// Where a pod's volume is.
    fn volume(&self, pod: &Pod) -> PathBuf {
        self.0.join(format!(
            "pods/{}/volumes/kubernetes.io~empty-dir/{VOLUME}",
            pod.uid()
        ))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &[&self.0.to_string_lossy()]) {
            eprintln!("{error:#}");
        }
    }
}

/// A pod with one emptyDir volume.
fn with_volume(name: &str, size_limit: Option<&'static str>) -> Pod {
    Pod::best_effort(name).empty_dir(VOLUME, size_limit)
}

/// A hog's mode in the pod's volume.
fn into_volume(mode: &str, disk: &Disk, pod: &Pod) -> String {
    format!("{mode} --dir {}", disk.volume(pod).display())
}

fn is_decision(event: &Event, kind: &str) -> bool {
    matches!(event, Event::Decision(decision) if decision.decision["decision"] == kind)
}

/// The place of the first event that `is` accepts.
fn first(agent: &Agent, is: impl Fn(&Event) -> bool) -> Option<usize> {
    agent.events.iter().position(|(_, event)| is(event))
}

/// What all freeing together gave back so far: bytes and inodes.
fn freed_by(agent: &Agent) -> (u64, u64) {
    let sums = agent.events.iter().filter_map(|(_, event)| match event {
        Event::DiskFreed { bytes, inodes } => Some((*bytes, *inodes)),
        _ => None,
    });
    sums.fold((0, 0), |(bytes, inodes), (more_bytes, more_inodes)| {
        (bytes + more_bytes, inodes + more_inodes)
    })
}

fn has_files(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
}

/// A pod takes what there is by `greedy`; another one takes some by `modest` and stays.
fn runs_out(
    disk: &Disk,
    signal: &str,
    threshold: &str,
    [greedy, modest]: [&str; 2],
    is_freed: impl Fn((u64, u64)) -> bool,
) -> Outcome {
    let node = Node::new()?.with_kubelet_dir(&disk.0);
    let calm = with_volume("calm", None);
    let mut spared = node.hog(&calm, &into_volume(modest, disk, &calm))?;
    reached(&spared)?;
    let filling = with_volume("filling", None);
    let mut hog = node.hog(
        &filling,
        &into_volume(&format!("{greedy} --wait-usr1"), disk, &filling),
    )?;
    let mut agent =
        node.agent(&Options::hard(&format!("memory.available<1Mi,{threshold}")).on_tracepoints())?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == filling.full_name() && finished.signal.as_deref() == Some(signal),
        "{} was evicted for {:?}",
        finished.pod,
        finished.signal
    );
    ensure!(
        hog.process.wait_gone(Duration::from_secs(5)),
        "the victim still runs"
    );
    wait_for_changes(&mut agent, "DiskPressure", &[true, false])?;
    let freeing = first(&agent, |event| is_decision(event, "free_disk"));
    let evict = first(&agent, |event| is_decision(event, "evict"));
    ensure!(
        freeing.is_some() && freeing < evict,
        "a pod went before the node freed what it could: {:?}",
        agent.events
    );
    let freed = freed_by(&agent);
    ensure!(is_freed(freed), "only {freed:?} bytes and inodes are back");
    ensure!(
        !disk.volume(&filling).exists(),
        "the victim's volume is still there"
    );
    quiet(&mut agent, 1)?;
    ensure!(spared.process.is_running()?, "a second pod died");
    ensure!(
        has_files(&disk.volume(&calm)),
        "the other pod's volume is gone"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

fn bytes_run_out() -> Outcome {
    let disk = Disk::mount(64, 16384)?;
    let hogs = ["fill --count 44 --rate-s 32", "fill --count 4 --rate-s 32"];
    runs_out(
        &disk,
        "nodefs.available",
        "nodefs.available<24Mi",
        hogs,
        |(bytes, _)| bytes >= 16 << 20,
    )
}

fn inodes_run_out() -> Outcome {
    // 4096 of them.
    let disk = Disk::mount(64, 16384)?;
    let hogs = [
        "inodes --count 3000 --rate-s 2000",
        "inodes --count 100 --rate-s 2000",
    ];
    runs_out(
        &disk,
        "nodefs.inodesFree",
        "nodefs.inodesFree<2000",
        hogs,
        |(_, inodes)| inodes >= 1000,
    )
}

fn freeing_disk_suffices() -> Outcome {
    let disk = Disk::mount(64, 16384)?;
    let node = Node::new()?.with_kubelet_dir(&disk.0);
    let past = with_volume("past", None);
    let mut ended = node.hog(
        &past,
        &into_volume("fill --count 24 --rate-s 64", &disk, &past),
    )?;
    reached(&ended)?;
    let calm = with_volume("calm", None);
    let mut spared = node.hog(
        &calm,
        &into_volume("fill --count 24 --rate-s 16 --wait-usr1", &disk, &calm),
    )?;
    let options = Options::hard("memory.available<1Mi,nodefs.available<24Mi").on_tracepoints();
    let mut agent = node.agent(&options)?;
    ended.process.signal(rustix::process::Signal::KILL)?;
    ensure!(
        ended.process.wait_gone(Duration::from_secs(5)),
        "the pod does not end"
    );
    std::fs::remove_file(node.manifest(&past))?;
    ensure!(
        has_files(&disk.volume(&past)),
        "freed before it was needed: the test tests nothing"
    );
    // Before the disk is short: what belongs to a pod that is known is not freed.
    let state = node.directory.join("state");
    let state = state.to_string_lossy();
    let is_forgotten = wait_until(Duration::from_secs(60), Duration::from_millis(100), || {
        let seen = super::top::top(&["--state-dir", &state, "--output", "json"]);
        seen.is_ok_and(|seen| seen.contains("default/calm") && !seen.contains("default/past"))
    });
    ensure!(is_forgotten, "the agent does not forget the removed pod");
    go(&spared)?;
    wait_for_changes(&mut agent, "DiskPressure", &[true, false])?;
    reached(&spared).with_context(|| format!("{:?}", agent.events))?;
    let (bytes, _) = freed_by(&agent);
    ensure!(bytes >= 24 << 20, "only {bytes} bytes are back");
    ensure!(
        !disk.volume(&past).exists(),
        "the ended pod's volume is still there"
    );
    quiet(&mut agent, 0)?;
    let evict = first(&agent, |event| is_decision(event, "evict"));
    ensure!(evict.is_none(), "somebody was evicted: {:?}", agent.events);
    ensure!(spared.process.is_running()?, "a pod died");
    agent.stop()?;
    Ok(Done::Passed)
}

fn size_limit() -> Outcome {
    let disk = Disk::mount(64, 16384)?;
    let node = Node::new()?.with_kubelet_dir(&disk.0);
    let config = node.directory.join("config.yaml");
    std::fs::write(&config, "volumeStatsAggPeriod: 2s\n")?;
    // Uses more than the one that goes, and is allowed to.
    let calm = with_volume("calm", Some("32Mi"));
    let mut spared = node.hog(
        &calm,
        &into_volume("fill --count 16 --rate-s 64", &disk, &calm),
    )?;
    reached(&spared)?;
    let over = with_volume("over", Some("4Mi"));
    let mut hog = node.hog(
        &over,
        &into_volume("fill --count 8 --rate-s 32 --wait-usr1", &disk, &over),
    )?;
    let options = Options::hard("memory.available<1Mi,nodefs.available<4Mi")
        .on_tracepoints()
        .flag("--config", &config.to_string_lossy());
    let mut agent = node.agent(&options)?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == over.full_name() && finished.signal.is_none(),
        "{} was evicted for {:?}",
        finished.pod,
        finished.signal
    );
    ensure!(
        hog.process.wait_gone(Duration::from_secs(5)),
        "the victim still runs"
    );
    quiet(&mut agent, 1)?;
    wait_for_changes(&mut agent, "DiskPressure", &[])?;
    ensure!(spared.process.is_running()?, "a second pod died");
    agent.stop()?;
    Ok(Done::Passed)
}
