//! What free swap is worth.
//!
//! **Problem.** `SwapFree` counts slots. Two things make them worth less than the memory that the kernel still has to
//! find. Pods may not use them: with `NoSwap`, the kubelet's default, none at all, with `LimitedSwap` each container
//! its share. And slots of a device in memory (zram) take memory themselves when they are filled: all that they free,
//! if the pages do not compress. A reader of `SwapFree` sees gigabytes while the kernel's OOM killer runs.
//! **Approach.** Free swap counts as far as memory may still move there: anonymous memory outside of pods, and the
//! unused part of the pods' shares. Of that, what would go to zram counts as far as the pages that are there have been
//! compressed. Zswap is left out: what it holds can be written to the disk behind it.

use crate::model::config::EngineConfig;
use crate::model::event::{NodeMemory, Sample};
use crate::model::state::NodeState;
use crate::model::swap::{CompressedSwap, PodSwap};

/// As long as little is stored, pages are taken to halve, which is what the kernel's own text expects
/// (Documentation/admin-guide/blockdev/zram.rst): as if so much had been stored before, and taken half of it. The first
/// pages tell little: a few in each of many size classes take more than they were. No more than that: with 16 MiB, 48
/// MiB of pages that do not compress left 475 MiB of free zram worth 59, a threshold's worth, when the kernel's OOM
/// killer fired; with 4 MiB it is 18.
const EXPECTED_STORED_BYTES: u64 = 4 << 20;
const EXPECTED_USED_BYTES: u64 = EXPECTED_STORED_BYTES / 2;

impl CompressedSwap {
    /// Memory that is won when so many bytes more are swapped out to these devices.
    fn won_bytes(&self, bytes: u64) -> u64 {
        let stored = self.stored_bytes.saturating_add(EXPECTED_STORED_BYTES);
        let used = self.used_bytes.saturating_add(EXPECTED_USED_BYTES);
        let won = u128::from(bytes) * u128::from(stored.saturating_sub(used)) / u128::from(stored);
        u64::try_from(won).unwrap_or(bytes)
    }
}

/// Memory that the kernel can still free by swapping out, if every page may be swapped, bytes.
pub(crate) fn winnable_bytes(node: &NodeMemory, movable_bytes: u64) -> u64 {
    let free = node.swap_free_bytes.min(movable_bytes);
    // Devices in memory are given the higher priority, so what is swapped out next goes there.
    let in_memory = node.compressed_swap.free_bytes.min(free);
    (free - in_memory).saturating_add(node.compressed_swap.won_bytes(in_memory))
}

/// The same for the memory that may go to swap here.
pub(crate) fn left_bytes(config: &EngineConfig, state: &NodeState, sample: &Sample) -> u64 {
    if sample.node.swap_free_bytes == 0 {
        return 0;
    }
    winnable_bytes(&sample.node, movable_bytes(config, state, sample))
}

/// How much may still be swapped out if there were room for it, bytes.
fn movable_bytes(config: &EngineConfig, state: &NodeState, sample: &Sample) -> u64 {
    let node = &sample.node;
    if config.pod_swap == PodSwap::Unlimited {
        return u64::MAX;
    }
    let (in_pods, swapped) = sample.kubepods.map_or((0, 0), |kubepods| {
        (kubepods.unreclaimable_bytes(), kubepods.swap_bytes)
    });
    // Kernel memory and tmpfs of pods are subtracted too: better too little than too much.
    let outside = node.anon_bytes.saturating_sub(in_pods);
    if config.pod_swap == PodSwap::Forbidden {
        return outside;
    }
    let requests = state
        .pods
        .values()
        .filter(|pod| pod.running)
        .map(|pod| pod.swap_request_bytes)
        .fold(0, u64::saturating_add);
    let shares = u128::from(requests) * u128::from(node.swap_total_bytes)
        / u128::from(node.capacity_bytes.max(1));
    let shares = u64::try_from(shares).unwrap_or(u64::MAX);
    outside.saturating_add(shares.saturating_sub(swapped).min(in_pods))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::engine::Engine;
    use crate::kube::pod::Pod;
    use crate::model::event::{CgroupMemory, Event, EventKind};

    const MI: u64 = 1 << 20;

    /// What free swap is worth on a node of 1000 Mi with 400 Mi of swap, 300 of them free. Pods have 500 Mi in memory
    /// and 50 Mi in swap, others 60 Mi; `web` requests 200 Mi, and with `running` it runs.
    fn left(pod_swap: PodSwap, running: bool) -> u64 {
        let config = EngineConfig {
            pod_swap,
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(config);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "web"},
            "spec": {"containers": [{"name": "main", "resources": {"requests": {"memory": "200Mi"}}}]},
        }))
        .unwrap();
        let pod = Arc::new(pod.with_defaults());
        let uid = pod.uid();
        let mut events = vec![EventKind::PodApplied { pod }];
        if running {
            events.push(EventKind::PodRunning { uid });
        }
        for kind in events {
            engine.step(&Event { at_ns: 1, kind }, &mut Vec::new());
        }
        let sample = Sample {
            node: NodeMemory {
                capacity_bytes: 1000 * MI,
                anon_bytes: 560 * MI,
                swap_total_bytes: 400 * MI,
                ..node(300, CompressedSwap::default())
            },
            kubepods: Some(CgroupMemory {
                usage_bytes: 510 * MI,
                inactive_file_bytes: 10 * MI,
                swap_bytes: 50 * MI,
                ..CgroupMemory::default()
            }),
            ..Sample::default()
        };
        left_bytes(engine.config(), engine.state(), &sample) / MI
    }

    #[test]
    fn swap_counts_by_what_pods_may_use() {
        assert_eq!(left(PodSwap::Unlimited, true), 300);
        assert_eq!(left(PodSwap::Forbidden, true), 60);
        // A fifth of 400 Mi, of which 50 are used.
        assert_eq!(left(PodSwap::Limited, true), 60 + 30);
        assert_eq!(left(PodSwap::Limited, false), 60);
    }

    fn node(free: u64, zram: CompressedSwap) -> NodeMemory {
        NodeMemory {
            swap_free_bytes: free * MI,
            compressed_swap: zram,
            ..NodeMemory::default()
        }
    }

    fn zram(free: u64, stored: u64, used: u64) -> CompressedSwap {
        CompressedSwap {
            free_bytes: free * MI,
            stored_bytes: stored * MI,
            used_bytes: used * MI,
        }
    }

    #[test]
    fn a_disk_gives_all_that_is_free() {
        let disk = node(100, CompressedSwap::default());
        assert_eq!(winnable_bytes(&disk, u64::MAX), 100 * MI);
        assert_eq!(winnable_bytes(&disk, 30 * MI), 30 * MI);
        assert_eq!(winnable_bytes(&disk, 0), 0);
    }

    #[test]
    fn zram_gives_what_compression_leaves() {
        let won = |free, zram| winnable_bytes(&node(free, zram), u64::MAX) / MI;
        // Nothing is known yet: a half.
        assert_eq!(won(100, zram(100, 0, 0)), 50);
        // A quarter, nothing at all, and what takes more than it was.
        assert_eq!(won(100, zram(100, 1000, 246)), 75);
        assert_eq!(won(100, zram(100, 1000, 1000)), 0);
        assert_eq!(won(100, zram(100, 1000, 1010)), 0);
        // A disk behind it.
        assert_eq!(won(100, zram(60, 1000, 1010)), 40);
        // A reading that is older than the other.
        assert_eq!(won(50, zram(100, 0, 0)), 25);
        let huge = CompressedSwap {
            free_bytes: u64::MAX,
            stored_bytes: u64::MAX,
            used_bytes: 0,
        };
        assert!(huge.won_bytes(u64::MAX) > u64::MAX / 2);
    }
}
