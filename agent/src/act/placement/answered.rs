//! Sets that the runtime was answered when it made a container (NRI), and writes for us.
//!
//! **Problem.** The answer is of the moment at which the runtime asks. It writes the set when it starts the container,
//! some time after its cgroup has appeared and after the first look at it: by then the pool may be another one, and a
//! set that nobody wants any more would be taken for somebody else's. **Approach.** What was answered is kept with the
//! container's id ([`Answered`]). After the first look at its cgroup there are two more ([`LOOK_AGAIN`]), until one
//! finds nothing to be put right ([`Settling`]).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};
use plimsoll_core::protocol::runtime_link::Adjustment;

use super::cgroups::Container;
use super::outcome::Outcome;
use crate::host::cgroup::CgroupPath;

/// After the first look at a container's cgroup: a runtime writes the set within some milliseconds, on a busy node
/// perhaps within a second or two.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// Of each pod, by the ids of its containers.
pub type Answered = BTreeMap<PodUid, BTreeMap<String, AnsweredSet>>;

/// What one container is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnsweredSet {
    /// Its `cpuset.cpus`.
    pub cpus: Option<CpuSet>,
    /// Its `cpuset.mems`.
    pub mems: Option<NumaMask>,
}

impl AnsweredSet {
    /// What an answer has of it, if it has anything.
    pub fn of(adjustment: &Adjustment) -> Option<Self> {
        let list = |text: &Option<String>| CpuSet::parse(text.as_deref()?).ok();
        let nodes = |nodes: CpuSet| {
            let is_known = nodes.iter().all(|node| node < NUMA_NODES_MAX);
            is_known.then(|| nodes.iter().collect())
        };
        let set = Self {
            cpus: list(&adjustment.cpus),
            mems: list(&adjustment.mems).and_then(nodes),
        };
        (set.cpus.is_some() || set.mems.is_some()).then_some(set)
    }
}

/// What this container was made with.
pub(super) fn of(answered: &Answered, container: &Container) -> Option<AnsweredSet> {
    let of_pod = answered.get(&container.pod)?;
    of_pod.get(container.runtime_id()?).copied()
}

/// Containers for which the runtime writes a set.
#[derive(Debug, Default)]
pub(super) struct Settling(BTreeMap<CgroupPath, Since>);

#[derive(Debug, Clone, Copy)]
struct Since {
    id: u64,
    at: Instant,
    /// How many of [`LOOK_AGAIN`] are over: all of them also where there need be no more.
    looked_again: usize,
}

impl Settling {
    /// All containers have been looked at.
    pub(super) fn looked(
        &mut self,
        containers: &[Container],
        answered: &Answered,
        outcome: &Outcome,
        now: Instant,
    ) {
        let mut before = std::mem::take(&mut self.0);
        let made = containers.iter();
        let made = made.filter(|container| of(answered, container).is_some());
        for container in made {
            let known = before.remove(&container.path);
            let since = match known.filter(|known| known.id == container.id) {
                Some(known) => known.looked(now, || is_right(outcome, container)),
                None => Since {
                    id: container.id,
                    at: now,
                    looked_again: 0,
                },
            };
            self.0.insert(container.path.clone(), since);
        }
    }

    /// When somebody has to look again.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.0.values().filter_map(|since| since.next_look()).min()
    }
}

impl Since {
    fn next_look(self) -> Option<Instant> {
        Some(self.at + *LOOK_AGAIN.get(self.looked_again)?)
    }

    fn looked(self, now: Instant, is_right: impl Fn() -> bool) -> Self {
        let is_due = self.next_look().is_some_and(|due| due <= now);
        let due = LOOK_AGAIN.iter().filter(|after| self.at + **after <= now);
        let looked_again = match is_due {
            true if is_right() => LOOK_AGAIN.len(),
            true => due.count(),
            false => self.looked_again,
        };
        Self {
            looked_again,
            ..self
        }
    }
}

/// It was where it is to be, before anything was written.
fn is_right(outcome: &Outcome, container: &Container) -> bool {
    let mut written = outcome.written.iter();
    let mut failed = outcome.failed.iter();
    written.all(|write| !write.cgroup.as_path().starts_with(container.path.as_path()))
        && failed.all(|failed| failed.pod != container.pod || failed.container != container.name)
}
