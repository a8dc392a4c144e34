//! The state as the judgement of a sample finds it.
//!
//! Problem: what is to be done about a sample is asked twice: before the engine takes the sample in ("which figure is
//! too old for that?") and when it does. Two computations of one answer drift apart. Approach: both read a [`View`]. It
//! shows the state as it is or, with a sample *ahead*, as [`Engine::step`](crate::engine::Engine::step) makes it before
//! it judges that sample: victims that are gone by then no longer hold up the next, and a figure of a pod that is old
//! counts as the most that it can be.
//!
//! A sample ahead is one of memory. Readings of file systems come with samples that have no old figure.

use crate::kube::pod_uid::PodUid;
use crate::model::config::EngineConfig;
use crate::model::decision::EvictionEnding;
use crate::model::event::{PodMemory, PodsRead, Sample};
use crate::model::rank_row::RankRow;
use crate::model::reading::{NumaPods, PodLoads};
use crate::model::signal::{Observations, Readings, Resource};
use crate::model::state::{Hold, Leaving, NodeState, PodState};
use crate::model::unread::Unread;
use crate::policy::eviction::leaving::{self, After};
use crate::policy::eviction::usage_bounds::most_used_bytes;
use crate::policy::eviction::{retained, swap};

/// A pod in which nothing runs has to have so much in memory or on a disk that its end is worth it: a sandbox, the
/// kernel's own memory of a pod, its directories and logs take a few MiB.
const LEFT_BYTES_MIN: u64 = 16 << 20;
/// As many inodes: ext4 has one for each 16 KiB (`inode_ratio` of mke2fs.conf).
const LEFT_INODES_MIN: u64 = LEFT_BYTES_MIN / (16 << 10);

/// The state, and perhaps a sample that it has not taken in yet.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) config: &'a EngineConfig,
    pub(crate) state: &'a NodeState,
    pub(crate) now_ns: u64,
    ahead: Option<&'a Sample>,
}

impl<'a> View<'a> {
    /// The state as it is.
    pub(crate) fn now(config: &'a EngineConfig, state: &'a NodeState) -> Self {
        Self {
            config,
            state,
            now_ns: state.now_ns,
            ahead: None,
        }
    }

    /// The state as it will be when `sample`, taken at `at_ns`, is judged.
    pub(crate) fn ahead(
        config: &'a EngineConfig,
        state: &'a NodeState,
        sample: &'a Sample,
        at_ns: u64,
    ) -> Self {
        Self {
            config,
            state,
            now_ns: at_ns.max(state.now_ns),
            ahead: Some(sample),
        }
    }

    /// The sample ahead.
    pub(crate) fn sample(&self) -> Option<&'a Sample> {
        self.ahead
    }

    /// The sample ahead, if it has pods.
    pub(crate) fn pods_ahead(&self) -> Option<&'a Sample> {
        self.ahead
            .filter(|sample| sample.pods_read != PodsRead::None)
    }

    /// How a pod leaves, if it does.
    pub(crate) fn leaving(&self, pod: &PodState) -> Option<Leaving> {
        match self.after(pod)? {
            After::Leaving(leaving) => Some(leaving),
            After::Ended(_) => None,
        }
    }

    /// What the sample ahead makes of a pod that leaves.
    fn after(&self, pod: &PodState) -> Option<After> {
        let leaving = pod.leaving?;
        if self.ahead.is_none() {
            return Some(After::Leaving(leaving));
        }
        let usage_bytes = match self.pods_ahead() {
            Some(_) => self.memory_ahead(pod).map(|memory| memory.usage_bytes),
            None => pod.memory.map(|memory| memory.usage_bytes),
        };
        let now_ns = self.now_ns;
        Some(leaving::after(leaving, pod.running, usage_bytes, now_ns))
    }

    fn memory_ahead(&self, pod: &PodState) -> Option<PodMemory> {
        let sample = self.pods_ahead()?;
        let mut pods = sample.pods.iter();
        let memory = pods.find(|memory| memory.uid == pod.row.uid)?;
        Some(memory.limited(&sample.node))
    }

    /// Whether it ends with the sample ahead, and memory stays.
    pub(crate) fn ends_lingering(&self, pod: &PodState) -> bool {
        self.after(pod) == Some(After::Ended(EvictionEnding::Lingering))
    }

    /// Memory that outlived evicted pods.
    pub(crate) fn hold(&self) -> Option<Hold> {
        let known = self.state.retained.as_ref().map(|retained| retained.hold);
        if self.ahead.is_none() {
            return known;
        }
        let availability = self.config.options.availability;
        let used_bytes = |pod: &PodState| match self.pods_ahead() {
            Some(_) => self
                .memory_ahead(pod)
                .map_or(0, |memory| memory.used_bytes(availability)),
            None => pod.row.usage,
        };
        let pods = self.state.leaving();
        pods.fold(known, |known, pod| match (pod.leaving, self.after(pod)) {
            (Some(leaving), Some(After::Ended(ending))) => retained::after(
                self.config,
                known,
                &leaving,
                pod.retained_bytes,
                ending,
                used_bytes(pod),
                self.now_ns,
            ),
            _ => known,
        })
    }

    /// Whether a pod that is known to use so much of a resource may be chosen for it, be it exempt or not: not one that
    /// has no process and next to nothing else, or whose processes have been killed and do not go.
    pub(crate) fn is_candidate(&self, pod: &PodState, resource: Resource, used: u64) -> bool {
        if !pod.running {
            let is_worth_it = match resource {
                Resource::Memory | Resource::DiskBytes(_) => used >= LEFT_BYTES_MIN,
                Resource::DiskInodes(_) => used >= LEFT_INODES_MIN,
                Resource::Processes | Resource::Io | Resource::Cpu => false,
            };
            return is_worth_it && self.waits(pod);
        }
        if pod.leaving.is_none() {
            return !leaving::is_stuck(pod, self.now_ns);
        }
        match self.after(pod) {
            Some(After::Ended(ending)) => ending != EvictionEnding::Stuck,
            Some(After::Leaving(leaving)) => {
                !leaving::is_overdue(&leaving, self.now_ns) && !leaving::is_stuck(pod, self.now_ns)
            }
            None => true,
        }
    }

    /// Whether a pod in which nothing runs may be asked of its kubelet. What its init containers have left in volumes,
    /// in memory or on a disk, stays until the kubelet ends it. An eviction asks for that, and after a while the next.
    pub(crate) fn waits(&self, pod: &PodState) -> bool {
        let was_asked_for = pod.leaving.is_some() || leaving::is_evicted(pod, self.now_ns);
        pod.is_waiting(self.config) && !was_asked_for
    }

    /// Whether a disruption budget has refused its eviction, and others are to go in its place.
    pub(crate) fn is_refused(&self, pod: &PodState) -> bool {
        let until_ns = pod.refused_until_ns;
        until_ns.is_some_and(|until_ns| self.now_ns < until_ns)
    }

    /// Whether an eviction is under way, so that none for `resource` may begin. Pods that their kubelet ends are none.
    /// Memory does not wait for a pod that still has time to leave for another reason.
    pub(crate) fn eviction_under_way(&self, resource: Resource) -> bool {
        let mut leaving = self.state.leaving().filter_map(|pod| self.leaving(pod));
        leaving.any(|leaving| leaving::is_under_way(&leaving, resource))
    }

    /// When the newest victim was still there, or may have been, nanoseconds; `None`: no event was taken in yet.
    pub(crate) fn victim_seen_ns(&self) -> Option<u64> {
        match self.ahead {
            Some(_) => Some(leaving::victim_seen_ns(self.state, self.now_ns)),
            None => self.state.victim_seen_ns,
        }
    }

    /// What pods take of the CPUs and disks.
    pub(crate) fn loads(&self) -> Option<&'a PodLoads> {
        let ahead = self.ahead.and_then(|sample| sample.loads.as_deref());
        ahead.or(self.state.loads.as_deref())
    }

    /// What pods have on the NUMA node that is pressed most.
    pub(crate) fn numa_pods(&self) -> Option<&'a NumaPods> {
        let ahead = self.ahead.and_then(|sample| sample.numa_pods.as_deref());
        ahead.or(self.state.numa_pods.as_deref())
    }

    /// The bounds of what pods use which the sample ahead does not have; `None`: it has all.
    pub(crate) fn unread(&self) -> Option<Unread> {
        let sample = self
            .ahead
            .filter(|sample| sample.pods_read == PodsRead::Leaders)?;
        Some(Unread::of(sample))
    }

    /// Whether the sample ahead lacks a pod, and others may not.
    pub(crate) fn is_unread(&self, uid: &PodUid) -> bool {
        let sample = self
            .ahead
            .filter(|sample| sample.pods_read == PodsRead::Leaders);
        sample.is_some_and(|sample| sample.pods.iter().all(|memory| memory.uid != *uid))
    }

    /// Puts what the sample ahead shows into rows of the memory ranking, which are in the order of UIDs.
    pub(crate) fn apply_sample(&self, rows: &mut [RankRow]) {
        let Some(sample) = self.pods_ahead() else {
            return;
        };
        if self.unread().is_none() {
            for row in &mut *rows {
                (row.stats_known, row.usage) = (false, 0);
            }
        }
        // Most samples have the same order, and then nothing is searched.
        let mut next = 0;
        for memory in &sample.pods {
            if rows.get(next).is_none_or(|row| row.uid != memory.uid) {
                match rows.binary_search_by(|row| row.uid.cmp(&memory.uid)) {
                    Ok(at) => next = at,
                    Err(_) => continue,
                }
            }
            rows[next].stats_known = true;
            let memory = memory.limited(&sample.node);
            rows[next].usage = most_used_bytes(&memory, self.config.options.availability);
            next += 1;
        }
    }

    /// What the signals show with the sample ahead, and what free swap is worth, bytes.
    pub(crate) fn observations(&self) -> (Observations, u64) {
        let known = self.state.observations;
        let Some(sample) = self.ahead else {
            return (known, 0);
        };
        let swap_bytes = swap::left_bytes(self.config, self.state, sample);
        let readings = Readings {
            sample,
            at_ns: self.now_ns,
            availability: self.config.options.availability,
            swap_bytes,
        };
        (known.updated(&readings), swap_bytes)
    }
}
