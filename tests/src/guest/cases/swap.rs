//! Memory with swap: what of it counts as left, until when nobody has to go, and who goes then.

use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::agent::{Agent, Options};
use super::super::ballast::Ballast;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::memory::{self, mib};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::super::swap::{Device, Swap, load_zram, zram_stored_bytes};
use super::scenarios::{quiet, reached};
use super::{EVICTION_TIMEOUT, go, leak, needs_memory_v2, oom_kills};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "swap::free_swap_counts_for_pods_that_may_use_it",
        on: On::Once(Machine::V6_1),
        run: free_swap,
    },
    Test {
        name: "swap::free_swap_does_not_count_for_pods_that_may_not",
        on: On::Once(Machine::V6_1),
        run: forbidden_swap,
    },
    Test {
        name: "swap::zram_takes_pages_while_they_compress_and_then_a_pod_goes_before_the_kernel_kills",
        // On the machine whose clock is the host's: where time counts instructions, compressing is slower than the hog.
        on: On::Weekly(Machine::V6_1Smp),
        run: zram,
    },
];

/// `memorySwap.swapBehavior` under which a pod that requests this much may swap half of what there is, or more.
const MAY_SWAP: &str = "memorySwap: {swapBehavior: LimitedSwap}\n";
const REQUEST: &str = "1Gi";

/// The pod is the victim, for what the kernel has left.
fn evicted(agent: &mut Agent, pod: &Pod) -> anyhow::Result<()> {
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == pod.full_name()
            && finished.signal.as_deref() == Some("kernelMemory.available"),
        "{} was evicted for {:?}",
        finished.pod,
        finished.signal
    );
    Ok(())
}

/// A pod grows by twice the distance to the threshold, and swap comes after the threshold was chosen.
fn grows(swap: Option<Device>, behavior: &str, evicts: bool) -> anyhow::Result<()> {
    let node = Node::new()?;
    let config = node.configure(behavior)?;
    let left = memory::read()?.available_bytes.saturating_sub(mib(96));
    let threshold = format!("kernelMemory.available<{}Ki", left >> 10);
    let swap = swap.map(Swap::on).transpose()?;
    let pod = Pod::burstable("leaky", REQUEST);
    let mut hog = leak(&node, &pod, 192, "")?;
    let options = Options::hard(&threshold)
        .on_tracepoints()
        .flag("--config", &config.to_string_lossy());
    let mut agent = node.agent(&options)?;
    go(&hog)?;
    if evicts {
        evicted(&mut agent, &pod)?;
    } else {
        reached(&hog)?;
        quiet(&mut agent, 0)?;
        ensure!(hog.process.is_running()?, "the pod died");
    }
    agent.stop()?;
    drop(hog);
    drop(node);
    drop(swap);
    Ok(())
}

fn free_swap() -> Outcome {
    ensure!(memory::read()?.swap_free_bytes == 0, "this guest has swap");
    grows(None, MAY_SWAP, true).context("without swap")?;
    grows(Some(Device::Disk), MAY_SWAP, false).context("with swap")?;
    Ok(Done::Passed)
}

fn forbidden_swap() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    grows(
        Some(Device::Disk),
        "memorySwap: {swapBehavior: NoSwap}\n",
        true,
    )?;
    Ok(Done::Passed)
}

/// A pod that grows by `more` beyond what there is. Where this machine keeps the guest waiting it does not make up for
/// that at once: pages are swapped out no faster meanwhile.
fn hog(node: &Node, pod: &Pod, more: &str) -> anyhow::Result<Running> {
    let ramp = format!("ramp --wait-usr1 --rate-mb-s 96 --steady {more}");
    node.hog(pod, &ramp)
}

fn zram() -> Outcome {
    const MEMORY_MB: u64 = 320;
    const ZRAM: Device = Device::Zram(512);
    /// More than there is without swap, however much the ballast leaves within its tolerance.
    const GOAL: &str = "--max-mb 448";
    if let Some(lacks) = load_zram()? {
        return Ok(Done::Skipped(lacks));
    }
    ensure!(memory::read()?.swap_free_bytes == 0, "this guest has swap");
    let kills = oom_kills()?;
    let node = Node::new()?;
    let config = node.configure(MAY_SWAP)?;
    let options = Options::hard("kernelMemory.available<64Mi")
        .on_tracepoints()
        .flag("--config", &config.to_string_lossy());
    let mut agent = node.agent(&options)?;
    // After the agent, which takes huge pages off what pods may have.
    let _ballast = Ballast::leaving(MEMORY_MB)?;

    let swap = Swap::on(ZRAM)?;
    let pod = Pod::burstable("compresses", REQUEST);
    let mut held = hog(&node, &pod, GOAL)?;
    go(&held)?;
    reached(&held)?;
    quiet(&mut agent, 0)?;
    ensure!(held.process.is_running()?, "the pod died");
    let stored = zram_stored_bytes()?;
    ensure!(
        stored > mib(16),
        "only {stored} bytes went to zram: the test tests nothing"
    );
    held.process.signal(rustix::process::Signal::KILL)?;
    ensure!(
        held.process.wait_gone(Duration::from_secs(10)),
        "the load did not go away"
    );
    drop(swap);

    let pod = Pod::burstable("has-no-swap", REQUEST);
    let grows = hog(&node, &pod, GOAL)?;
    go(&grows)?;
    evicted(&mut agent, &pod).context("with swap off again")?;

    let swap = Swap::on(ZRAM)?;
    let pod = Pod::burstable("does-not-compress", REQUEST);
    let grows = hog(&node, &pod, "--noise")?;
    go(&grows)?;
    evicted(&mut agent, &pod).context("with pages that do not compress")?;
    let now = oom_kills()?;
    ensure!(now == kills, "the kernel's OOM killer fired");
    ensure!(
        agent.evictions().count() == 2,
        "evicted others too: {:?}",
        agent.events
    );
    agent.stop()?;
    drop(node);
    drop(swap);
    Ok(Done::Passed)
}
