//! Which CPUs a container gets: the kubelet's answer, CPU by CPU, without its cost.
//!
//! Problem: of the CPUs that are free, choose as many as requested so that a container stays within few sockets, NUMA
//! nodes, caches and cores (*packed*), or is spread evenly over the fewest nodes that can hold it (*distributed*).
//! Approach: the rules of `takeByTopologyNUMAPacked` and `takeByTopologyNUMADistributed`
//! (pkg/kubelet/cm/cpumanager/cpu_assignment.go, 1.36) over counters: [`CpuLayout`] numbers sockets, nodes, caches and
//! cores once per machine, and a call keeps one count of free CPUs for each. The search over combinations of nodes is
//! not an enumeration: see `numa_distribution`.
//!
//! Differences from the kubelet, all of them where it errs (docs/reference/placement-improvements.md):
//! - a CPU that is not free is never taken. The kubelet compares the free CPUs of a socket or core with the *average*
//!   size and then takes all of its CPUs, free or not. Here it also has to be free in fact, and the answer is on as few
//!   nodes as can be;
//! - the best combination of nodes is kept. The kubelet's best one is overwritten by later ones, which share its
//!   memory;
//! - nodes that run out of whole groups end the distribution. The kubelet loops for ever;
//! - a socket, node or cache that is listed twice because it spans others counts once.
//!
//! Terms: a *group* is what a distributed request is handed out in: one CPU, or all CPUs of a core under
//! `full-pcpus-only`.

mod layout;
mod numa_distribution;
mod packed;

use crate::placement::cpu_set::CpuSet;
use numa_distribution::NumaDistribution;
use packed::Packing;

pub use layout::CpuLayout;

/// In which order single CPUs are taken (`CPUSortingStrategy`, 1.36).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuSorting {
    /// Core by core.
    #[default]
    Packed,
    /// By number within a socket, which spreads a container over cores where siblings are numbered apart; no whole core
    /// is sought first (`distribute-cpus-across-cores`).
    Spread,
}

/// Fewer CPUs are free than wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wanted} CPUs are wanted, and {count} may be taken ({free}): {missing} more would have to be free",
    count = .free.len(),
    missing = .wanted.saturating_sub(.free.len())
)]
pub struct NotEnoughCpus {
    /// How many were requested.
    pub wanted: u32,
    /// Those that may be taken.
    pub free: Box<CpuSet>,
}

impl CpuLayout {
    /// Takes `request` of the `available` CPUs, close together: whole nodes and sockets first, then (with
    /// `prefer_uncore`) whole and partial uncore caches, whole cores, single CPUs (`takeByTopologyNUMAPacked`, 1.36).
    ///
    /// CPUs that are not online do not count as available.
    ///
    /// # Errors
    ///
    /// If fewer are available.
    pub fn take_packed(
        &self,
        available: &CpuSet,
        request: u32,
        sorting: CpuSorting,
        prefer_uncore: bool,
    ) -> Result<CpuSet, NotEnoughCpus> {
        let free = self.online_of(available, request)?;
        Ok(self.pack(free, request, sorting, prefer_uncore))
    }

    fn pack(&self, free: CpuSet, request: u32, sorting: CpuSorting, prefer_uncore: bool) -> CpuSet {
        let packed = Packing::new(self, free, request).run(sorting, prefer_uncore);
        if !packed.misled {
            return packed.cpus;
        }
        // The kubelet's answer has CPUs that are not free, and may be on fewer nodes for it. Ours is on no more than
        // must be.
        let nodes = self.fewest_nodes_for(&free, request);
        let spanned = |cpus: &CpuSet| {
            let nodes = self.nodes().iter();
            nodes
                .filter(|node| !self.cpus_of(**node).is_disjoint(cpus))
                .count()
        };
        if spanned(&packed.cpus) <= spanned(&nodes) {
            return packed.cpus;
        }
        Packing::new(self, nodes, request)
            .run(sorting, prefer_uncore)
            .cpus
    }

    /// What is free on as few nodes as can serve the request: those with most, and the last the one with fewest that
    /// suffices.
    fn fewest_nodes_for(&self, free: &CpuSet, request: u32) -> CpuSet {
        let on_nodes = self.nodes().iter().map(|node| *free & *self.cpus_of(*node));
        let mut on_nodes: Vec<CpuSet> = on_nodes.collect();
        on_nodes.sort_by_key(|on_node| std::cmp::Reverse(on_node.len()));
        let mut chosen = CpuSet::EMPTY;
        for (at, on_node) in on_nodes.iter().enumerate() {
            let missing = request.saturating_sub(chosen.len());
            if on_node.len() >= missing {
                let smaller = on_nodes[at..].iter().rev();
                let last = smaller.into_iter().find(|other| other.len() >= missing);
                return chosen | *last.unwrap_or(on_node);
            }
            chosen |= *on_node;
        }
        chosen
    }

    /// Takes `request` of the `available` CPUs, the same number from each of the fewest NUMA nodes that can give them
    /// in groups of `group` CPUs (0 counts as 1); a remainder goes where it leaves all nodes most alike
    /// (`takeByTopologyNUMADistributed`, 1.36; KEP-2902). Where that cannot be done, packed.
    ///
    /// # Errors
    ///
    /// If fewer are available.
    pub fn take_distributed(
        &self,
        available: &CpuSet,
        request: u32,
        group: u32,
        sorting: CpuSorting,
    ) -> Result<CpuSet, NotEnoughCpus> {
        let group = group.max(1);
        let free = self.online_of(available, request)?;
        if request == 0 {
            return Ok(CpuSet::EMPTY);
        }
        let whole = Packing::new(self, free, request);
        let nodes = whole.nodes();
        let per_node: Vec<u32> = nodes.iter().map(|node| whole.free_in(*node)).collect();
        let distribution = if request.is_multiple_of(group) {
            let groups = request / group;
            let fewest = self.fewest_nodes(groups, group);
            let most = per_node
                .len()
                .min(usize::try_from(groups).unwrap_or(usize::MAX));
            NumaDistribution::find(&per_node, groups, group, fewest..=most)
        } else {
            None
        };
        let Some(distribution) = distribution else {
            return Ok(self.pack(free, request, sorting, false));
        };
        let mut result = CpuSet::EMPTY;
        for (node, extra) in nodes.iter().zip(distribution.extra) {
            let Some(extra) = extra else { continue };
            let mut on_node = free & *self.cpus_of(*node);
            // As in the kubelet each group is a call of its own: one call for all of them could choose other CPUs.
            let shares = std::iter::once(distribution.even * group)
                .chain((0..extra).map(|_| group))
                .filter(|share| *share > 0);
            for share in shares {
                let taken = Packing::new(self, on_node, share).run(sorting, false).cpus;
                on_node -= taken;
                result |= taken;
            }
        }
        Ok(result)
    }

    /// What is online of `available`, if that is enough.
    fn online_of(&self, available: &CpuSet, request: u32) -> Result<CpuSet, NotEnoughCpus> {
        let free = *available & self.online();
        if request > free.len() {
            return Err(NotEnoughCpus {
                wanted: request,
                free: Box::new(free),
            });
        }
        Ok(free)
    }

    /// The smallest number of nodes worth trying, by the average number of groups on a node
    /// (`rangeNUMANodesNeededToSatisfy`, 1.36).
    fn fewest_nodes(&self, groups: u32, group: u32) -> usize {
        let nodes = u32::try_from(self.nodes().len()).unwrap_or(u32::MAX);
        let groups_per_node = self.online().len().div_ceil(group).div_ceil(nodes);
        usize::try_from(groups.div_ceil(groups_per_node)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests;
