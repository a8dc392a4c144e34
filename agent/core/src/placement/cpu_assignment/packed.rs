//! CPUs close together: best fit from the largest whole thing to the single CPU.

use crate::placement::cpu_set::CpuSet;

use super::CpuSorting;
use super::layout::{CpuLayout, Group};

/// One call: what is still free, and what has been taken.
///
/// Lists are sorted by free CPUs, fewest first, then by id, from the outer level to the inner one. Each stage looks at
/// its list as it was when the stage began; taking one group changes no other group of that level, so counts may be
/// read later.
pub(super) struct Packing<'a> {
    layout: &'a CpuLayout,
    free: CpuSet,
    /// Free CPUs by group.
    counts: Vec<u16>,
    needed: u32,
    taken: CpuSet,
    /// Whether the kubelet would have taken CPUs that are not free: what is left of a large socket or core had average
    /// size.
    misled: bool,
}

/// What a call came to.
pub(super) struct Packed {
    pub(super) cpus: CpuSet,
    /// Whether the kubelet would have taken CPUs that are not free here, so that there is no answer to match.
    pub(super) misled: bool,
}

impl<'a> Packing<'a> {
    /// To take `needed` of the CPUs in `free`, which are online and not fewer.
    pub(super) fn new(layout: &'a CpuLayout, free: CpuSet, needed: u32) -> Self {
        let mut counts = vec![0; layout.groups()];
        for cpu in free.iter() {
            let place = layout.place(cpu);
            for group in [place.socket, place.node, place.uncore, place.core] {
                counts[group.index()] += 1;
            }
        }
        Self {
            layout,
            free,
            counts,
            needed,
            taken: CpuSet::EMPTY,
            misled: false,
        }
    }

    /// Takes them.
    pub(super) fn run(mut self, sorting: CpuSorting, prefer_uncore: bool) -> Packed {
        if self.needed > 0 {
            self.take(sorting, prefer_uncore);
        }
        Packed {
            cpus: self.taken,
            misled: self.misled,
        }
    }

    fn take(&mut self, sorting: CpuSorting, prefer_uncore: bool) {
        let average = self.layout.average();
        if self.layout.nodes_above_sockets() {
            self.take_whole(&self.nodes(), None);
            self.take_whole(&self.sockets(), Some(average.socket));
        } else {
            self.take_whole(&self.sockets(), Some(average.socket));
            self.take_whole(&self.nodes(), None);
        }
        if prefer_uncore {
            self.take_uncore_caches();
        }
        if sorting == CpuSorting::Packed {
            for holder in self.core_holders() {
                self.take_whole(self.layout.cores_of(holder), Some(average.core));
            }
        }
        self.take_single(sorting);
    }

    pub(super) fn free_in(&self, group: Group) -> u32 {
        u32::from(self.counts[group.index()])
    }

    /// NUMA nodes with free CPUs; inside their sockets where sockets are the larger.
    pub(super) fn nodes(&self) -> Vec<Group> {
        if self.layout.nodes_above_sockets() {
            self.sorted(self.layout.nodes())
        } else {
            self.across(&self.sockets())
        }
    }

    /// Sockets with free CPUs; inside their nodes where nodes are the larger.
    fn sockets(&self) -> Vec<Group> {
        if self.layout.nodes_above_sockets() {
            self.across(&self.nodes())
        } else {
            self.sorted(self.layout.sockets())
        }
    }

    /// What cores are listed by: the inner of sockets and nodes.
    fn core_holders(&self) -> Vec<Group> {
        if self.layout.nodes_above_sockets() {
            self.sockets()
        } else {
            self.nodes()
        }
    }

    fn sorted(&self, groups: &[Group]) -> Vec<Group> {
        let with_free = groups.iter().copied().filter(|group| self.has_free(*group));
        let mut sorted: Vec<Group> = with_free.collect();
        sorted.sort_unstable_by_key(|group| (self.counts[group.index()], *group));
        sorted
    }

    /// The inner groups of `outer`, each once.
    fn across(&self, outer: &[Group]) -> Vec<Group> {
        let mut listed = Vec::with_capacity(outer.len());
        for holder in outer {
            let free = self.free & *self.layout.cpus_of(*holder);
            for inner in self.sorted(self.layout.across(*holder)) {
                let shares = !self.layout.cpus_of(inner).is_disjoint(&free);
                if shares && !listed.contains(&inner) {
                    listed.push(inner);
                }
            }
        }
        listed
    }

    fn has_free(&self, group: Group) -> bool {
        self.counts[group.index()] > 0
    }

    /// Takes the groups that are free as a whole and not more than is needed. `average`: what the kubelet takes for the
    /// size.
    fn take_whole(&mut self, groups: &[Group], average: Option<u32>) {
        for group in groups {
            let size = u32::from(self.layout.size_of(*group));
            let free = self.free_in(*group);
            if free != average.unwrap_or(size) || !(1..=self.needed).contains(&size) {
                continue;
            }
            if free == size {
                let cpus = *self.layout.cpus_of(*group);
                self.claim(&cpus);
            } else {
                self.misled = true;
            }
        }
    }

    fn claim(&mut self, cpus: &CpuSet) {
        for cpu in cpus.iter() {
            let place = self.layout.place(cpu);
            for group in [place.socket, place.node, place.uncore, place.core] {
                self.counts[group.index()] -= 1;
            }
        }
        self.free -= *cpus;
        self.taken |= *cpus;
        self.needed -= cpus.len();
    }

    /// Whole caches while at least an average one is needed, then one cache that can give exactly the rest
    /// (`takeUncoreCache`, `takePartialUncore`, 1.36).
    ///
    /// The kubelet takes whole caches anew before each partial attempt. Those after the first find nothing: what was
    /// left whole was larger than the need, which has not grown.
    fn take_uncore_caches(&mut self) {
        let caches = self.uncore_caches();
        if self.needed >= self.layout.average().uncore {
            self.take_whole(&caches, None);
        }
        for cache in caches {
            if self.needed == 0 {
                return;
            }
            self.take_partial_uncore(cache);
        }
    }

    /// By nodes. A cache of several nodes is listed under those in which it has a free CPU
    /// (`sortAvailableUncoreCaches`).
    fn uncore_caches(&self) -> Vec<Group> {
        let of_node = |node: &Group| {
            let free = self.free & *self.layout.cpus_of(*node);
            let caches = self.sorted(self.layout.uncores_of(*node)).into_iter();
            caches.filter(move |cache| !self.layout.cpus_of(*cache).is_disjoint(&free))
        };
        self.nodes().iter().flat_map(of_node).collect()
    }

    fn take_partial_uncore(&mut self, cache: Group) {
        let per_core = self.layout.average().core;
        let cores_needed = self.needed.div_ceil(per_core) as usize;
        let cores = self.layout.cores_of(cache).iter();
        let with_free = cores.filter(|core| self.has_free(**core));
        let mut cpus = with_free
            .take(cores_needed)
            .fold(CpuSet::EMPTY, |cpus, core| {
                cpus | (self.free & *self.layout.cpus_of(*core))
            });
        if self.needed % 2 == 1
            && per_core > 1
            && cpus.len() > self.needed
            && let Some(highest) = cpus.iter().last()
        {
            cpus.remove(highest);
        }
        if cpus.len() == self.needed {
            self.claim(&cpus);
        }
    }

    /// Single CPUs until there are enough.
    fn take_single(&mut self, sorting: CpuSorting) {
        let holders = match sorting {
            CpuSorting::Packed => self.core_holders(),
            CpuSorting::Spread => self.sockets(),
        };
        for holder in holders {
            match sorting {
                CpuSorting::Packed => {
                    for core in self.sorted(self.layout.cores_of(holder)) {
                        self.take_first_of(core);
                        if self.needed == 0 {
                            return;
                        }
                    }
                }
                CpuSorting::Spread => self.take_first_of(holder),
            }
        }
    }

    /// The lowest free CPUs of a group, as many as are needed.
    fn take_first_of(&mut self, group: Group) {
        let free = self.free & *self.layout.cpus_of(group);
        let cpus = free.iter().take(self.needed as usize).collect();
        self.claim(&cpus);
    }
}
