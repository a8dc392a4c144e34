//! The cgroups above the pods, and what the node's settings make of those of pods, on a real kernel.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll_core::kube::cgroup_config::{milli_cpu_to_shares, shares_to_weight};

use super::super::agent::Options;
use super::super::cgroup;
use super::super::clock::wait_until;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::Node;
use super::super::pod::Pod;
use super::super::swap::{Device, Swap};
use super::whole_tree;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "qos::cgroups_have_what_the_node_and_its_pods_say",
        on: On::Once(Machine::V7_2),
        run: cgroups_follow,
    },
    Test {
        name: "qos::what_is_above_a_running_pod_is_given_back",
        on: On::Once(Machine::V7_2),
        run: given_back,
    },
    Test {
        name: "qos::only_burstable_pods_swap_and_by_their_share",
        on: On::Once(Machine::V6_1),
        run: limited_swap,
    },
];

const MIB: u64 = 1 << 20;

const SETTINGS: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n\
    kubeReserved: {memory: 64Mi, pid: \"100\"}\nevictionHard: {memory.available: 1Mi}\npodPidsLimit: 77\n\
    featureGates: {MemoryQoS: true, QOSReserved: true}\nmemoryReservationPolicy: TieredReservation\nqosReserved: {memory: 50%}\n";

/// One file that must come to have a value.
pub(super) fn comes_to(cgroup: &Path, file: &str, value: impl Display) -> anyhow::Result<()> {
    let path = cgroup.join(file);
    let value = value.to_string();
    let read = || fs::read_to_string(&path).unwrap_or_default();
    let has = || read().trim() == value;
    ensure!(
        wait_until(Duration::from_secs(20), Duration::from_millis(50), has),
        "{} is {:?}, not {value}",
        path.display(),
        read()
    );
    Ok(())
}

fn number(path: &str) -> anyhow::Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    Ok(text.trim().parse()?)
}

/// Four huge pages, until it is dropped.
struct HugePages;

impl HugePages {
    const FILE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

    /// `None` without the controller.
    fn reserve() -> anyhow::Result<Option<Self>> {
        let controllers = fs::read_to_string(cgroup::memory_root().join("cgroup.controllers"))?;
        if !controllers.split_whitespace().any(|name| name == "hugetlb") {
            return Ok(None);
        }
        fs::write(Self::FILE, "4")?;
        Ok(Some(Self))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Err(error) = fs::write(Self::FILE, "0") {
            eprintln!("{}: {error}", Self::FILE);
        }
    }
}

/// kubepods has what the node may give away.
fn node_is_limited(kubepods: &Path, allocatable: u64) -> anyhow::Result<()> {
    comes_to(kubepods, "memory.max", allocatable)?;
    let processes = number("/proc/sys/kernel/pid_max")?;
    let threads = number("/proc/sys/kernel/threads-max")?;
    comes_to(kubepods, "pids.max", processes.min(threads) - 100)?;
    let cpus = i64::try_from(std::thread::available_parallelism()?.get())?;
    let weight = shares_to_weight(milli_cpu_to_shares(cpus * 1000));
    comes_to(kubepods, "cpu.weight", weight)
}

fn cgroups_follow() -> Outcome {
    if let Some(skipped) = super::needs_memory_v2() {
        return Ok(skipped);
    }
    let node = Node::new()?;
    let huge_pages = HugePages::reserve()?;
    let config = node.configure(SETTINGS)?;
    let agent = node.agent(
        &Options::default()
            .on_tracepoints()
            .flag("--config", &config.to_string_lossy()),
    )?;
    let kubepods = cgroup::memory_root().join("kubepods");
    let (burstable, best_effort) = (kubepods.join("burstable"), kubepods.join("besteffort"));
    let allocatable = super::memory::read()?.total_bytes - 64 * MIB;
    node_is_limited(&kubepods, allocatable)?;
    comes_to(&burstable, "cpu.weight", 1)?;

    let pod = Pod::burstable("kept", "32Mi").limit("memory", "64Mi");
    let mut running = node.hog(&pod, "hold --mb 8")?;
    // 100m are 102 shares.
    comes_to(&burstable, "cpu.weight", 17)?;
    comes_to(&best_effort, "cpu.weight", 1)?;
    comes_to(&kubepods, "memory.min", 32 * MIB)?;
    comes_to(&burstable, "memory.low", 32 * MIB)?;
    comes_to(&burstable, "memory.max", allocatable)?;
    comes_to(&best_effort, "memory.max", allocatable - 16 * MIB)?;
    let of_pod = node.cgroup_file(&pod, "");
    comes_to(&of_pod, "pids.max", 77)?;
    comes_to(&of_pod, "memory.low", 32 * MIB)?;
    comes_to(&of_pod, "memory.max", 64 * MIB)?;
    let container = node.cgroup_file(&pod, "main");
    comes_to(&container, "memory.low", 32 * MIB)?;
    // Nine tenths of the way from 32Mi to 64Mi, in whole pages.
    comes_to(&container, "memory.high", 15_564 * 4096)?;
    comes_to(&container, "memory.swap.max", 0)?;
    if huge_pages.is_some() {
        let reserved = number(HugePages::FILE)? * 2 * MIB;
        ensure!(reserved > 0, "the guest has no memory for huge pages");
        comes_to(&kubepods, "hugetlb.2MB.max", reserved)?;
        comes_to(&kubepods, "hugetlb.2MB.rsvd.max", reserved)?;
        comes_to(&burstable, "hugetlb.2MB.max", "max")?;
        comes_to(&container, "hugetlb.2MB.max", 0)?;
    }

    let exact = Pod::guaranteed("exact", "200m", "24Mi");
    let _exact = node.hog(&exact, "hold --mb 8")?;
    comes_to(&kubepods, "memory.min", 56 * MIB)?;
    comes_to(&burstable, "memory.max", allocatable - 12 * MIB)?;
    comes_to(&best_effort, "memory.max", allocatable - 28 * MIB)?;
    comes_to(&burstable, "cpu.weight", 17)?;
    comes_to(&node.cgroup_file(&exact, ""), "memory.min", 24 * MIB)?;
    let container = node.cgroup_file(&exact, "main");
    comes_to(&container, "memory.min", 24 * MIB)?;
    comes_to(&container, "memory.low", 0)?;
    comes_to(&container, "memory.high", "max")?;

    fs::remove_file(node.manifest(&pod))?;
    ensure!(
        running.process.wait_gone(Duration::from_secs(60)),
        "the pod runs without its manifest"
    );
    comes_to(&burstable, "cpu.weight", 1)?;
    comes_to(&burstable, "memory.low", 0)?;
    comes_to(&kubepods, "memory.min", 24 * MIB)?;
    comes_to(&best_effort, "memory.max", allocatable - 12 * MIB)?;
    agent.stop()?;
    Ok(Done::Passed)
}

/// By an agent that ends, and by the next one for an agent that is killed.
fn given_back() -> Outcome {
    if let Some(skipped) = super::needs_memory_v2() {
        return Ok(skipped);
    }
    let node = Node::new()?;
    let config = node.configure(SETTINGS)?;
    let options = Options::default()
        .on_tracepoints()
        .flag("--config", &config.to_string_lossy());
    let _pod = node.hog(&Pod::burstable("bystander", "16Mi"), "hold --mb 8")?;
    let before = whole_tree();
    let allocatable = super::memory::read()?.total_bytes - 64 * MIB;
    let kubepods = cgroup::memory_root().join("kubepods");
    let in_force = || {
        node_is_limited(&kubepods, allocatable)?;
        comes_to(&kubepods, "memory.min", 16 * MIB)?;
        comes_to(&kubepods.join("burstable"), "memory.low", 16 * MIB)
    };
    let as_before = |ended: &str| {
        let after = whole_tree();
        let changed: Vec<_> = after.iter().filter(|knob| !before.contains(knob)).collect();
        let missing: Vec<_> = before.iter().filter(|knob| !after.contains(knob)).collect();
        ensure!(
            changed.is_empty() && missing.is_empty(),
            "after {ended}: changed or new: {changed:?}; was: {missing:?}"
        );
        Ok(())
    };

    let agent = node.agent(&options)?;
    in_force()?;
    agent.stop()?;
    as_before("an agent that was stopped")?;
    let agent = node.agent(&options)?;
    in_force()?;
    agent.kill().context("killing the agent")?;
    in_force().context("of a killed agent")?;
    node.agent(&options)?.stop()?;
    as_before("a killed agent and its successor")?;
    Ok(Done::Passed)
}

fn limited_swap() -> Outcome {
    if let Some(skipped) = super::needs_memory_v2() {
        return Ok(skipped);
    }
    let _swap = Swap::on(Device::Disk)?;
    let node = Node::new()?;
    node.configure(&format!(
        "{SETTINGS}memorySwap: {{swapBehavior: LimitedSwap}}\n"
    ))?;
    let memory = super::memory::read()?;
    // Nothing is swapped out yet.
    let swap_bytes = memory.swap_free_bytes;
    ensure!(swap_bytes > 0, "the swap is not in use");
    let share = u128::from(32 * MIB) * u128::from(swap_bytes) / u128::from(memory.total_bytes);
    let burstable = Pod::burstable("swaps", "32Mi");
    let critical = Pod::burstable("matters", "32Mi").critical();
    let pods = [
        // The kernel keeps whole pages.
        (burstable, share / 4096 * 4096),
        (critical, 0),
        (Pod::guaranteed("exact", "100m", "32Mi"), 0),
        (Pod::best_effort("modest"), 0),
    ];
    for (pod, swap_max) in &pods {
        let _running = node.hog(pod, "hold --mb 8")?;
        let container = node.cgroup_file(pod, "main");
        comes_to(&container, "memory.swap.max", swap_max)?;
    }
    node.clear()?;
    Ok(Done::Passed)
}
