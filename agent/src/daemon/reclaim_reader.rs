//! What reclaim for the node achieves, followed from sample to sample.

use plimsoll_core::model::event::{Cause, NodeMemory, Sample};
use plimsoll_core::model::reclaim_yield::ReclaimYield;
use plimsoll_core::model::swap::PodSwap;

use crate::host::HostRoot;
use crate::host::numa;
use crate::host::vmstat::VmstatFile;

/// What reclaim has done is read no more often than this, nanoseconds.
const READ_NS: u64 = 5_000_000;

/// Reclaim that takes nothing is looked at again after this, nanoseconds; each time after twice as long,
const LOOK_AGAIN_NS: u64 = 20_000_000;
/// and after this at most.
const LOOK_AGAIN_MAX_NS: u64 = 1_280_000_000;

/// Reads what reclaim has done, and knows what page cache cannot be had.
#[derive(Debug)]
pub(super) struct ReclaimReader {
    /// `None` where the kernel does not say it for this node.
    vmstat: Option<VmstatFile>,
    read_ns: u64,
    reclaim: ReclaimYield,
    pod_swap: PodSwap,
    /// After how long to look again.
    again_ns: u64,
}

impl ReclaimReader {
    /// Opens the file. The counts are the machine's, so they say nothing where the node is a container of it; and of a
    /// machine with several NUMA nodes they do not say which one lacks memory.
    pub(super) fn open(host: &HostRoot, is_container: bool) -> Self {
        Self {
            vmstat: (numa::has_one_node(host) && !is_container)
                .then(|| VmstatFile::open(host).ok())
                .flatten(),
            read_ns: 0,
            reclaim: ReclaimYield::default(),
            pod_swap: PodSwap::default(),
            again_ns: LOOK_AGAIN_NS / 2,
        }
    }

    /// Pods may swap so.
    pub(super) fn set_pod_swap(&mut self, pod_swap: PodSwap) {
        self.pod_swap = pod_swap;
    }

    /// Looks at what reclaim has done, and has what cannot be had of the node's page cache count as used. Not after a
    /// crossing: that comes before any reclaim, and nothing may hold it up. What cannot be read says nothing.
    pub(super) fn follow(&mut self, now_ns: u64, sample: &mut Sample) {
        let cache_bytes = cache_bytes(&sample.node);
        let is_old = now_ns.saturating_sub(self.read_ns) >= READ_NS;
        if is_old
            && !matches!(sample.cause, Cause::ChargeThreshold { .. })
            && let Some(vmstat) = &self.vmstat
        {
            self.read_ns = now_ns;
            match vmstat.read() {
                Ok(counts) => {
                    let swappable_bytes = swappable_bytes(sample, self.pod_swap);
                    let listed_bytes = cache_bytes.saturating_add(swappable_bytes);
                    let listed_pages = listed_bytes / rustix::param::page_size() as u64;
                    self.reclaim
                        .observe(now_ns, counts, listed_pages, cache_bytes);
                }
                Err(_) => self.reclaim.interrupted(),
            }
            self.again_ns = match self.reclaim.is_in_vain() {
                true => self.again_ns.saturating_mul(2).min(LOOK_AGAIN_MAX_NS),
                false => LOOK_AGAIN_NS / 2,
            };
        }
        let held_bytes = self.reclaim.held_bytes(now_ns).min(cache_bytes);
        let node = &mut sample.node;
        node.lazily_freed_bytes = node.lazily_freed_bytes.max(held_bytes);
    }

    /// When to look again at what reclaim does: the kernel gives up after some hundred milliseconds. `None`: it takes
    /// what it looks at, rests, or was just found not to.
    pub(super) fn looks_again_ns(&self) -> Option<u64> {
        self.reclaim
            .is_in_vain()
            .then(|| self.read_ns.saturating_add(self.again_ns))
    }

    /// A pod has ended that had `cache_bytes` of page cache.
    pub(super) fn released(&mut self, cache_bytes: u64) {
        self.reclaim.released(cache_bytes);
    }
}

fn cache_bytes(node: &NodeMemory) -> u64 {
    node.inactive_file_bytes
        .saturating_add(node.active_file_bytes)
}

/// Anonymous memory that kswapd looks at: none without free swap, and none of a cgroup that may not swap
/// (`can_reclaim_anon_pages` in mm/vmscan.c). All that pods have beside page cache stands for theirs.
fn swappable_bytes(sample: &Sample, pod_swap: PodSwap) -> u64 {
    let in_pods_bytes = match (pod_swap, &sample.kubepods) {
        (PodSwap::Forbidden, Some(kubepods)) => kubepods.unreclaimable_bytes(),
        _ => 0,
    };
    match sample.node.swap_free_bytes {
        0 => 0,
        _ => sample.node.anon_bytes.saturating_sub(in_pods_bytes),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::model::event::CgroupMemory;

    use super::*;

    const MIB: u64 = 1 << 20;
    const S: u64 = 1_000_000_000;

    fn host(nodes: &str) -> (tempfile::TempDir, HostRoot) {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        std::fs::create_dir_all(host.procfs("")).unwrap();
        let list = host.sysfs("devices/system/node");
        std::fs::create_dir_all(&list).unwrap();
        std::fs::write(list.join("has_memory"), nodes).unwrap();
        kswapd(&host, 0, 0);
        (dir, host)
    }

    fn kswapd(host: &HostRoot, scanned_bytes: u64, taken_bytes: u64) {
        let page = rustix::param::page_size() as u64;
        let text = format!(
            "pgscan_kswapd {}\npgsteal_kswapd {}\n",
            scanned_bytes / page,
            taken_bytes / page
        );
        std::fs::write(host.procfs("vmstat"), text).unwrap();
    }

    fn sample(cause: Cause) -> Sample {
        Sample {
            cause,
            node: NodeMemory {
                anon_bytes: 400 * MIB,
                inactive_file_bytes: 200 * MIB,
                active_file_bytes: 100 * MIB,
                lazily_freed_bytes: 10 * MIB,
                swap_free_bytes: 0,
                ..NodeMemory::default()
            },
            ..Sample::default()
        }
    }

    /// What counts as no page cache at this time, MiB.
    fn lazily(reader: &mut ReclaimReader, at_ns: u64, cause: Cause) -> u64 {
        let mut sample = sample(cause);
        reader.follow(at_ns, &mut sample);
        sample.node.lazily_freed_bytes / MIB
    }

    #[test]
    fn what_kswapd_looked_at_in_vain_counts_as_used() {
        let (_dir, host) = host("0\n");
        let mut reader = ReclaimReader::open(&host, false);
        assert_eq!(lazily(&mut reader, S, Cause::Timer), 10);
        assert_eq!(reader.looks_again_ns(), None);
        kswapd(&host, 200 * MIB, 0);
        // A crossing is answered with what is known.
        let crossing = Cause::ChargeThreshold { crossed_ns: 0 };
        assert_eq!(lazily(&mut reader, S + READ_NS, crossing), 10);
        assert_eq!(reader.looks_again_ns(), None);
        assert_eq!(lazily(&mut reader, S + READ_NS, Cause::Timer), 10);
        assert_eq!(reader.looks_again_ns(), Some(S + READ_NS + LOOK_AGAIN_NS));
        kswapd(&host, 300 * MIB, 0);
        assert_eq!(lazily(&mut reader, S + 2 * READ_NS, Cause::Timer), 300);
        assert_eq!(reader.looks_again_ns(), None);
        reader.released(250 * MIB);
        assert_eq!(lazily(&mut reader, S + 3 * READ_NS, crossing), 50);
        assert_eq!(lazily(&mut reader, 12 * S, Cause::Timer), 10);
    }

    #[test]
    fn it_looks_again_later_each_time_and_not_at_what_cannot_be_read() {
        let (_dir, host) = host("0\n");
        let mut reader = ReclaimReader::open(&host, false);
        lazily(&mut reader, S, Cause::Timer);
        let mut again_ms = |step: u64, scanned_mib: u64| {
            kswapd(&host, scanned_mib * MIB, 0);
            let at_ns = S + step * 100_000_000;
            lazily(&mut reader, at_ns, Cause::Timer);
            let again_ns = reader.looks_again_ns();
            again_ns.map(|again_ns| (again_ns - at_ns) / 1_000_000)
        };
        let found: Vec<_> = (1..9).map(|step| again_ms(step, step)).collect();
        let expected = [20, 40, 80, 160, 320, 640, 1280, 1280].map(Some);
        assert_eq!(found, expected);
        assert_eq!(again_ms(9, 8), None, "kswapd rests");
        assert_eq!(again_ms(10, 9), Some(20));
        std::fs::write(host.procfs("vmstat"), "").unwrap();
        lazily(&mut reader, 3 * S, Cause::Timer);
        assert_eq!(reader.looks_again_ns(), None);
    }

    #[test]
    fn counts_of_another_machine_or_of_several_nodes_say_nothing() {
        for (nodes, is_container, held) in
            [("0\n", false, 300), ("0\n", true, 10), ("0-1\n", false, 10)]
        {
            let (_dir, host) = host(nodes);
            let mut reader = ReclaimReader::open(&host, is_container);
            lazily(&mut reader, S, Cause::Timer);
            kswapd(&host, 300 * MIB, 0);
            assert_eq!(
                lazily(&mut reader, 2 * S, Cause::Timer),
                held,
                "{nodes}{is_container}"
            );
        }
    }

    #[test]
    fn with_swap_kswapd_looks_at_what_may_be_swapped_too() {
        // When what cannot be had is found, MiB that kswapd has looked at.
        let found_after = |pod_swap, kubepods: Option<CgroupMemory>| {
            let (_dir, host) = host("0\n");
            let mut reader = ReclaimReader::open(&host, false);
            reader.set_pod_swap(pod_swap);
            let mut lazily = |at_s: u64, scanned_mib: u64| {
                kswapd(&host, scanned_mib * MIB, 0);
                let mut sample = sample(Cause::Timer);
                sample.node.swap_free_bytes = MIB;
                sample.kubepods = kubepods;
                reader.follow(at_s * S, &mut sample);
                sample.node.lazily_freed_bytes / MIB
            };
            assert_eq!(lazily(1, 0), 10);
            (1..=14).find_map(|step| {
                let scanned_mib = step * 50;
                (lazily(1 + step, scanned_mib) == 300).then_some(scanned_mib)
            })
        };
        // 400 MiB of the node are anonymous memory, 350 of them in pods, which have 250 of page cache.
        let kubepods = CgroupMemory {
            usage_bytes: 600 * MIB,
            inactive_file_bytes: 200 * MIB,
            active_file_bytes: 50 * MIB,
            ..CgroupMemory::default()
        };
        for (pod_swap, kubepods, expected) in [
            (PodSwap::Unlimited, Some(kubepods), 700),
            (PodSwap::Limited, Some(kubepods), 700),
            (PodSwap::Forbidden, Some(kubepods), 350),
            (PodSwap::Forbidden, None, 700),
        ] {
            let found = found_after(pod_swap, kubepods);
            assert_eq!(found, Some(expected), "{pod_swap:?}");
        }
    }
}
