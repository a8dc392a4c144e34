//! A container whose request changes while it runs: it keeps what it has, and nobody else is moved.
//!
//! The kubelet of 1.36 does this behind a gate (`InPlacePodVerticalScalingExclusiveCPUs`) that is off, and refuses
//! otherwise. Here a container that grows keeps all of its CPUs and gets more, nearest first: the rest of its own
//! cores, then its own NUMA nodes, then the hint's. One that shrinks keeps CPUs of as few of its NUMA nodes as can hold
//! it.

use super::{CpuAllocateError, CpuPolicy, CpuRefusal, StaticCpus, exclusive_cpus};
use crate::kube::pod::{Container, Pod};
use crate::kube::pod_uid::PodUid;
use crate::placement::TopologyHint;
use crate::placement::cpu_set::CpuSet;
use crate::placement::hints::ProviderHints;
use crate::placement::numa_mask::NumaMask;

impl CpuPolicy {
    /// As [`StaticCpus::shrink`]; nothing under `None`.
    ///
    /// # Errors
    ///
    /// Those of [`StaticCpus::shrink`].
    pub fn shrink(
        &mut self,
        pod: &Pod,
        container: &Container,
        near: NumaMask,
    ) -> Result<(), CpuAllocateError> {
        self.exclusive_mut()
            .map_or(Ok(()), |cpus| cpus.shrink(pod, container, near))
    }

    /// As [`StaticCpus::growth`]; nothing under `None`.
    #[must_use]
    pub fn growth(&self, pod: &Pod, container: &Container) -> Option<Growth> {
        self.exclusive()?.growth(pod, container)
    }

    /// As [`StaticCpus::is_resized`]; never under `None`.
    #[must_use]
    pub fn is_resized(&self, pod: &Pod, container: &Container) -> bool {
        self.exclusive()
            .is_some_and(|cpus| cpus.is_resized(pod, container))
    }
}

/// What a container has, and what it lacks of what it requests by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growth {
    /// Its CPUs.
    pub held: CpuSet,
    /// The NUMA nodes that they are on.
    pub nodes: NumaMask,
    /// How many more it wants.
    pub missing: u32,
    /// What may be given away on these nodes.
    pub free: CpuSet,
}

impl StaticCpus {
    /// Whether a container has CPUs of its own, and requests another number.
    #[must_use]
    pub fn is_resized(&self, pod: &Pod, container: &Container) -> bool {
        let held = self.cpus_of(&pod.uid(), &container.name);
        held.is_some_and(|held| held.len() != exclusive_cpus(pod, container))
    }

    /// What a container lacks that has CPUs of its own; `None` if it has none, or enough.
    #[must_use]
    pub fn growth(&self, pod: &Pod, container: &Container) -> Option<Growth> {
        let held = self.cpus_of(&pod.uid(), &container.name)?;
        let wanted = exclusive_cpus(pod, container);
        let missing = wanted.checked_sub(held.len()).filter(|more| *more > 0)?;
        let nodes = self.nodes_of(held);
        Some(Growth {
            held,
            nodes,
            missing,
            free: self.growable() & self.policy.topology().cpus_of_nodes(nodes),
        })
    }

    /// What a container may get beside what it has: under `full-pcpus-only` nothing of a core with a reserved CPU.
    fn growable(&self) -> CpuSet {
        match self.policy.options().full_pcpus_only {
            true => self.available() - self.policy.reserved_cores(),
            false => self.available(),
        }
    }

    fn nodes_of(&self, cpus: CpuSet) -> NumaMask {
        let nodes = self.policy.topology().by_numa().iter();
        let on = nodes.filter(|(_, all)| !all.is_disjoint(&cpus));
        on.map(|(node, _)| *node).collect()
    }

    /// As [`StaticCpus::hints`], but a container that wants more than it has is told where it could have them together
    /// with what it has.
    #[must_use]
    pub fn hints_to_grow(&self, pod: &Pod, container: &Container) -> ProviderHints {
        match self.growth(pod, container) {
            Some(growth) => {
                let wanted = growth.held.len() + growth.missing;
                super::hints::only_cpu(self.rule(&self.growable(), &growth.held, wanted))
            }
            None => self.hints(pod, container),
        }
    }

    /// The same for a pod as a whole.
    #[must_use]
    pub fn pod_hints_to_grow(&self, pod: &Pod) -> ProviderHints {
        let grows = |container: &Container| self.growth(pod, container).is_some();
        if !pod.all_containers().any(grows) {
            return self.pod_hints(pod);
        }
        let of_pod = self.state.assignments.get(&pod.uid());
        let held = of_pod.into_iter().flatten();
        let held = held.fold(CpuSet::EMPTY, |all, (_, cpus)| all | *cpus);
        let wanted = super::exclusive_cpus_of_pod(pod);
        super::hints::only_cpu(self.rule(&self.growable(), &held, wanted))
    }

    /// Takes back what a container has beyond its request. It keeps CPUs of as few of its NUMA nodes as can hold it,
    /// among equal ones of those in `near`.
    ///
    /// # Errors
    ///
    /// Under `full-pcpus-only`, if what would stay is no whole number of cores; then nothing has changed.
    pub fn shrink(
        &mut self,
        pod: &Pod,
        container: &Container,
        near: NumaMask,
    ) -> Result<(), CpuAllocateError> {
        let uid = pod.uid();
        let wanted = exclusive_cpus(pod, container);
        let Some(held) = self.cpus_of(&uid, &container.name) else {
            return Ok(());
        };
        if wanted == 0 {
            self.remove(&uid, &container.name);
            return Ok(());
        }
        if held.len() <= wanted {
            return Ok(());
        }
        let refuse = |refusal| CpuAllocateError {
            pod: pod.label(),
            container: container.name.clone(),
            refusal,
        };
        self.whole_cores(wanted).map_err(refuse)?;
        let kept = self.kept(held, wanted, near).map_err(refuse)?;
        self.set_smaller(&uid, &container.name, kept);
        Ok(())
    }

    fn kept(&self, held: CpuSet, wanted: u32, near: NumaMask) -> Result<CpuSet, CpuRefusal> {
        let by_node = self.by_node(&held);
        let mut nodes: Vec<&(u32, CpuSet)> = by_node.iter().collect();
        nodes.sort_by_key(|(node, cpus)| {
            (std::cmp::Reverse(cpus.len()), !near.contains(*node), *node)
        });
        let mut fewest = CpuSet::EMPTY;
        for (_, cpus) in nodes {
            if fewest.len() >= wanted {
                break;
            }
            fewest |= *cpus;
        }
        let kept = self.policy.take(&fewest, wanted);
        // `fewest` has as many: `held` has more than `wanted`, each on a node.
        kept.map_err(|_| CpuRefusal::NotEnoughCpus {
            wanted,
            free: by_node,
        })
    }

    fn set_smaller(&mut self, pod: &PodUid, container: &str, kept: CpuSet) {
        let Some(of_pod) = self.state.assignments.get_mut(pod) else {
            return;
        };
        let Some(cpus) = of_pod.get_mut(container) else {
            return;
        };
        let before = std::mem::replace(cpus, kept);
        // Those of an init container are its pod's still.
        let released = of_pod.values().fold(before, |cpus, other| cpus - *other);
        self.state.shared |= released;
        self.check_books();
    }

    /// Gives a container that has CPUs of its own as many more as it requests, and leaves it those that it has.
    ///
    /// # Errors
    ///
    /// If it cannot have them; then nothing has changed.
    pub(super) fn grow(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: TopologyHint,
        growth: &Growth,
    ) -> Result<CpuSet, CpuAllocateError> {
        let more = self.more(hint, growth);
        let more = more.map_err(|refusal| CpuAllocateError {
            pod: pod.label(),
            container: container.name.clone(),
            refusal,
        })?;
        let cpus = growth.held | more;
        self.state.shared -= more;
        let uid = pod.uid();
        let of_pod = self.state.assignments.entry(uid.clone()).or_default();
        of_pod.insert(container.name.clone(), cpus);
        self.note_reusable(pod, uid, container, cpus);
        Ok(cpus)
    }

    fn more(&self, hint: TopologyHint, growth: &Growth) -> Result<CpuSet, CpuRefusal> {
        let options = self.policy.options();
        self.whole_cores(growth.held.len() + growth.missing)?;
        let allocatable = self.growable();
        let topology = self.policy.topology();
        let cores = topology.by_core().values();
        let own_cores = cores
            .filter(|core| !options.distribute_across_cores && !core.is_disjoint(&growth.held))
            .fold(CpuSet::EMPTY, |all, core| all | *core);
        let own_nodes = topology.cpus_of_nodes(growth.nodes);
        let hinted = hint
            .mask
            .map_or(CpuSet::EMPTY, |mask| self.policy.cpus_near(mask));
        let mut more = CpuSet::EMPTY;
        // The last is for policies that admit what no hint has: a mask that was chosen for its preference has enough.
        for near in [own_cores, own_nodes, hinted, allocatable] {
            let left = growth.missing - more.len();
            let there = (allocatable & near) - more;
            let part = self.policy.take(&there, left.min(there.len()));
            more |= part.map_err(|_| self.not_enough(growth, allocatable))?;
        }
        if more.len() < growth.missing {
            return Err(self.not_enough(growth, allocatable));
        }
        let kept = self.policy.shared_min();
        if (self.state.shared - more).len() < kept {
            return Err(CpuRefusal::SharedPool {
                wanted: growth.missing,
                shared: Box::new(self.state.shared),
                kept,
            });
        }
        Ok(more)
    }

    fn not_enough(&self, growth: &Growth, free: CpuSet) -> CpuRefusal {
        CpuRefusal::NotEnoughCpus {
            wanted: growth.missing,
            free: self.by_node(&free),
        }
    }

    /// `full-pcpus-only` also holds for what a container is resized to.
    fn whole_cores(&self, wanted: u32) -> Result<(), CpuRefusal> {
        let per_core = self.policy.cpus_per_core();
        if self.policy.options().full_pcpus_only && !wanted.is_multiple_of(per_core) {
            return Err(CpuRefusal::PartialCore { wanted, per_core });
        }
        Ok(())
    }
}
