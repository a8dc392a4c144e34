//! Where the static policy could serve a container or pod: its part in alignment.
//!
//! The kubelet goes through all 2^n masks of NUMA nodes, and through all free CPUs for each
//! (`generateCPUTopologyHints`, 1.36). Here the same test is a [`HintRule`] over one number per node; a caller that
//! needs a list asks the rule for it.

use super::{StaticCpus, exclusive_cpus, exclusive_cpus_of_pod};
use crate::kube::pod::{Container, Pod};
use crate::kube::resources::CPU;
use crate::placement::cpu_set::CpuSet;
use crate::placement::hints::{HintRule, HintSet, Need, Preference, ProviderHints};
use crate::placement::numa_mask::NumaMask;

impl super::CpuPolicy {
    /// As [`StaticCpus::hints_to_grow`]; no preference under `None`.
    #[must_use]
    pub fn hints(&self, pod: &Pod, container: &Container) -> ProviderHints {
        self.exclusive().map_or_else(ProviderHints::new, |cpus| {
            cpus.hints_to_grow(pod, container)
        })
    }

    /// As [`StaticCpus::pod_hints_to_grow`]; no preference under `None`.
    #[must_use]
    pub fn pod_hints(&self, pod: &Pod) -> ProviderHints {
        self.exclusive()
            .map_or_else(ProviderHints::new, |cpus| cpus.pod_hints_to_grow(pod))
    }
}

impl StaticCpus {
    /// On which NUMA nodes a container could have its CPUs (`GetTopologyHints`, 1.36); nothing if it shares. For a
    /// container that has CPUs: where those are, and no hint at all if it now requests another number.
    #[must_use]
    pub fn hints(&self, pod: &Pod, container: &Container) -> ProviderHints {
        let wanted = exclusive_cpus(pod, container);
        if wanted == 0 {
            return ProviderHints::new();
        }
        let uid = pod.uid();
        let hints = match self.cpus_of(&uid, &container.name) {
            Some(cpus) if cpus.len() != wanted => impossible(),
            Some(cpus) => self.rule(&cpus, &CpuSet::EMPTY, wanted),
            None => self.rule(&self.available(), &self.reusable(pod), wanted),
        };
        only_cpu(hints)
    }

    /// On which NUMA nodes a pod could have the CPUs of all its containers (`GetPodTopologyHints`, 1.36).
    #[must_use]
    pub fn pod_hints(&self, pod: &Pod) -> ProviderHints {
        let wanted = exclusive_cpus_of_pod(pod);
        if wanted == 0 {
            return ProviderHints::new();
        }
        let uid = pod.uid();
        let mut assigned = CpuSet::EMPTY;
        for container in pod.all_containers() {
            if let Some(cpus) = self.cpus_of(&uid, &container.name) {
                if cpus.len() != exclusive_cpus(pod, container) {
                    return only_cpu(impossible());
                }
                assigned |= cpus;
            }
        }
        only_cpu(if assigned.len() == wanted {
            self.rule(&assigned, &CpuSet::EMPTY, wanted)
        } else {
            let reusable = self.reusable(pod) | assigned;
            self.rule(&self.available(), &reusable, wanted)
        })
    }

    /// A mask is a hint if it has all nodes of reusable CPUs, and with them enough CPUs. One that is both reusable and
    /// available counts twice, as in the kubelet.
    pub(super) fn rule(&self, available: &CpuSet, reusable: &CpuSet, wanted: u32) -> HintSet {
        let topology = self.policy.topology();
        let on_node = |(node, cpus): (&u32, &CpuSet)| {
            let count = cpus.overlap(available) + cpus.overlap(reusable);
            (*node, u64::from(count))
        };
        let enough = Need::per_node(u64::from(wanted), topology.by_numa().iter().map(on_node));
        let reused = topology.by_numa().iter();
        let reused = reused.filter(|(_, cpus)| !cpus.is_disjoint(reusable));
        let all_reused = reused.map(|(node, _)| Need::any_of(NumaMask::of(*node)));
        let needs = std::iter::once(enough).chain(all_reused).collect();
        HintSet::Rule(HintRule::new(
            topology.numa_nodes(),
            needs,
            self.preference(wanted),
        ))
    }

    /// As few nodes as could hold the request if all their CPUs were free; with `align-by-socket` also as few sockets
    /// (`isHintSocketAligned`, 1.36).
    fn preference(&self, wanted: u32) -> Preference {
        let topology = self.policy.topology();
        let mut sizes: Vec<u32> = topology.by_numa().values().map(CpuSet::len).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let sums = sizes.iter().scan(0, |sum, size| {
            *sum += size;
            Some(*sum)
        });
        // All nodes, if not even they could hold it.
        let too_few = sums.take_while(|sum| *sum < wanted).count();
        let nodes = (too_few + 1).min(sizes.len());
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);

        let counts = topology.counts();
        let nodes_per_socket = counts.numa_nodes / counts.sockets;
        if !self.policy.options().align_by_socket || nodes_per_socket == 0 {
            return Preference::Nodes(nodes);
        }
        let nodes_of = |socket: &CpuSet| {
            let nodes = topology.by_numa().iter();
            let inside = nodes.filter(|(_, cpus)| !cpus.is_disjoint(socket));
            inside.map(|(node, _)| *node).collect()
        };
        Preference::NodesOrSockets {
            nodes,
            sockets: nodes.div_ceil(nodes_per_socket),
            nodes_of_sockets: topology.by_socket().values().map(nodes_of).collect(),
        }
    }
}

fn impossible() -> HintSet {
    HintSet::List(Vec::new())
}

pub(super) fn only_cpu(hints: HintSet) -> ProviderHints {
    ProviderHints::from([(CPU.to_owned(), Some(hints))])
}
