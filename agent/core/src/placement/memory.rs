//! NUMA memory for containers: on which nodes each one's memory and huge pages are.
//!
//! Problem: a Guaranteed container's memory should be on few NUMA nodes, near its CPUs, and be there when it is needed.
//! Approach: books per node and resource ([`NodeMemory`]); a container is given a *set* of nodes ([`Block`]), and its
//! bytes are entered on them. The books answer which sets could serve a container ([`ProviderHints`]), and a set is
//! what its `cpuset.mems` is made of.
//!
//! Terms, as in pkg/kubelet/cm/memorymanager of 1.36, whose policy Static this is: a *block* is one resource of one
//! container with its set; nodes that serve a set of several are a *group*, and serve no other set until all their
//! blocks are given back; memory of init containers is *reusable* by what starts after them in the same pod, where that
//! is given exactly the same set.
//!
//! Differences from the kubelet, none of which the golden vectors show:
//! * More reserved than a node has is refused ([`MachineError::OverReserved`]); the kubelet's number wraps around.
//! * Between pods, what is promised is what there are blocks for: [`StaticMemory::settle`].
//! * A node that no container is on is free. In the kubelet bytes can stay promised there for ever: `Books::give_back`
//!   says when.
//! * A removed pod is to leave nothing to itself: call [`StaticMemory::forget_reusable`]. In the kubelet a pod that
//!   comes back with the same UID (a static pod) and is served next is not charged for what its init containers once
//!   had.
//! * A resource that a node has not counts as zero there, and hints with nodes that do not exist are an error; the
//!   kubelet panics.
//! * A container whose request changes keeps its nodes ([`StaticMemory::is_resized`]). The kubelet of 1.36 refuses
//!   that.
//! * Nothing takes 2^n steps: `candidates` and `cover` say how, and what bounds them.

mod candidates;
mod cover;
mod demand;
mod machine;
mod refusal;
mod resize;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use demand::{DemandError, MemoryDemand};
pub use machine::{HugePages, MachineError, MemoryTable, NodeMemory, NumaMemory, ReservedMemory};
pub use refusal::{AllocateError, Refusal, RefusalKind, Shortfall};
pub use resize::NotGrown;

use crate::kube::pod::{Container, Pod};
use crate::kube::pod_uid::PodUid;
use crate::placement::TopologyHint;
use crate::placement::hints::{HintSet, ProviderHints};
use crate::placement::numa_mask::NumaMask;
use candidates::Candidates;
use machine::Books;
use refusal::View;

/// One resource of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The nodes it is on.
    pub nodes: NumaMask,
    /// `memory`, or huge pages of one size.
    pub resource: String,
    /// How much. Of an init container only what no other container has reused, so that a pod's blocks add up to what it
    /// has.
    pub bytes: u64,
}

/// A container's blocks, by ascending resource.
pub type Blocks = Vec<Block>;

/// All blocks, by pod and container.
pub type Assignments = BTreeMap<PodUid, BTreeMap<String, Blocks>>;

/// `memoryManagerPolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// No container gets nodes; no set is better than another.
    None,
    /// Containers of Guaranteed pods do.
    Static(StaticMemory),
}

impl MemoryPolicy {
    /// As [`StaticMemory::allocate`], or [`StaticMemory::resize`] for a container that has its memory; nothing under
    /// `None`.
    ///
    /// # Errors
    ///
    /// Those of [`StaticMemory::allocate`].
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: TopologyHint,
    ) -> Result<(), AllocateError> {
        match self {
            Self::None => Ok(()),
            Self::Static(memory) if memory.is_resized(pod, container) => {
                memory.resize(pod, container)
            }
            Self::Static(memory) => memory.allocate(pod, container, hint),
        }
    }

    /// As [`StaticMemory::settle`].
    pub fn settle(&mut self) {
        if let Self::Static(memory) = self {
            memory.settle();
        }
    }

    /// As [`StaticMemory::remove`].
    pub fn remove(&mut self, pod: &PodUid, container: &str) {
        if let Self::Static(memory) = self {
            memory.remove(pod, container);
        }
    }

    /// As [`StaticMemory::hints_to_grow`]; no preference under `None`.
    #[must_use]
    pub fn hints(&self, pod: &Pod, container: &Container) -> Option<ProviderHints> {
        match self {
            Self::None => None,
            Self::Static(memory) => memory.hints_to_grow(pod, container),
        }
    }

    /// As [`StaticMemory::pod_hints_to_grow`]; no preference under `None`.
    #[must_use]
    pub fn pod_hints(&self, pod: &Pod) -> Option<ProviderHints> {
        match self {
            Self::None => None,
            Self::Static(memory) => memory.pod_hints_to_grow(pod),
        }
    }
}

/// Blocks that do not fit the machine.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// They are on a node that the machine has not.
    #[error(
        "pod {pod}, container {container}: {resource} is on NUMA nodes {nodes}, but the machine has {machine}: place the pod anew"
    )]
    UnknownNodes {
        /// The pod.
        pod: PodUid,
        /// Its container.
        container: String,
        /// The block's resource.
        resource: String,
        /// The block's nodes.
        nodes: NumaMask,
        /// The machine's.
        machine: NumaMask,
    },
    /// The nodes have less than the blocks on them.
    #[error(
        "pod {pod}, container {container}: NUMA nodes {nodes} have {missing} too little for its {bytes} of {resource}: less is \
         allocatable there than when it was placed; place the pod anew, or reserve less",
        missing = machine::in_units(*.missing), bytes = machine::in_units(*.bytes)
    )]
    TooLittle {
        /// The pod.
        pod: PodUid,
        /// Its container.
        container: String,
        /// The block's resource.
        resource: String,
        /// The block's nodes.
        nodes: NumaMask,
        /// The block's bytes.
        bytes: u64,
        /// Of these, what is not there.
        missing: u64,
    },
}

/// What init containers of the pod that was served last left to the rest of it: bytes by exact set and resource.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reusable {
    pod: PodUid,
    left: BTreeMap<NumaMask, BTreeMap<String, u64>>,
}

/// The policy Static.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticMemory {
    books: Books,
    assignments: Assignments,
    reusable: Option<Reusable>,
}

impl StaticMemory {
    /// A machine on which no container has memory yet.
    ///
    /// # Errors
    ///
    /// [`MachineError`], with the node and the setting.
    pub fn new(machine: &[NumaMemory], reserved: &ReservedMemory) -> Result<Self, MachineError> {
        Ok(Self {
            books: Books::new(machine, reserved)?,
            assignments: Assignments::new(),
            reusable: None,
        })
    }

    /// The same machine with these blocks instead of its own. With its own ([`Self::assignments`]) this puts right
    /// which node of a group holds how much. Blocks on few nodes are entered first, for those on more have a choice:
    /// two sets of several nodes are the same or have none in common, so that what fitted in any order fits in this
    /// one. Among equals, by pod and container.
    ///
    /// # Errors
    ///
    /// The first block that does not fit.
    pub fn restored(&self, assignments: &Assignments) -> Result<Self, RestoreError> {
        let mut books = self.books.clone();
        books.clear();
        let machine = books.mask();
        let mut entries: Vec<(&PodUid, &String, &Block)> = assignments
            .iter()
            .flat_map(|(pod, containers)| containers.iter().map(move |entry| (pod, entry)))
            .flat_map(|(pod, (container, blocks))| {
                blocks.iter().map(move |block| (pod, container, block))
            })
            .collect();
        entries.sort_by_key(|(_, _, block)| block.nodes.len());
        for (pod, container, block) in entries {
            if !block.nodes.is_subset(machine) {
                return Err(RestoreError::UnknownNodes {
                    pod: pod.clone(),
                    container: container.clone(),
                    resource: block.resource.clone(),
                    nodes: block.nodes,
                    machine,
                });
            }
            let missing = books.take(block.nodes, &block.resource, block.bytes);
            if missing > 0 {
                return Err(RestoreError::TooLittle {
                    pod: pod.clone(),
                    container: container.clone(),
                    resource: block.resource.clone(),
                    nodes: block.nodes,
                    bytes: block.bytes,
                    missing,
                });
            }
        }
        Ok(Self {
            books,
            assignments: assignments.clone(),
            reusable: None,
        })
    }

    /// The books of each node.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<u32, NodeMemory> {
        &self.books.0
    }

    /// What each container has.
    #[must_use]
    pub fn assignments(&self) -> &Assignments {
        &self.assignments
    }

    /// The nodes of a container's blocks; `None` if it has none.
    #[must_use]
    pub fn memory_nodes(&self, pod: &PodUid, container: &str) -> Option<NumaMask> {
        let blocks = self.blocks(pod, container)?.iter();
        blocks
            .map(|block| block.nodes)
            .reduce(|all, nodes| all | nodes)
    }

    fn blocks(&self, pod: &PodUid, container: &str) -> Option<&Blocks> {
        self.assignments.get(pod)?.get(container)
    }

    /// Gives a container its memory on the nodes of `hint`, or on the best nodes where any will do or the hint's are
    /// not enough. Nothing for pods that are not Guaranteed or have pod-level resources, and for a container that has
    /// its memory.
    ///
    /// # Errors
    ///
    /// [`AllocateError`]; then nothing has changed.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: TopologyHint,
    ) -> Result<(), AllocateError> {
        if !demand::is_placed(pod) {
            return Ok(());
        }
        let uid = pod.uid();
        if let Some(blocks) = self.blocks(&uid, &container.name) {
            let blocks = blocks.clone();
            self.note_reusable(pod, container, &blocks);
            return Ok(());
        }
        let demand = demand::of_container(pod, container)?;
        let nodes = self.choose(pod, container, &demand, hint)?;
        let mut blocks = Blocks::new();
        for (resource, wanted) in demand {
            let reused = self.left(&uid, nodes, &resource);
            // `choose` saw to it that the rest is free; the kubelet does not look at what remains either.
            self.books
                .take(nodes, &resource, wanted.saturating_sub(reused));
            blocks.push(Block {
                nodes,
                resource,
                bytes: wanted,
            });
        }
        self.note_reusable(pod, container, &blocks);
        self.shrink_init_containers(pod, container, &blocks);
        let containers = self.assignments.entry(uid).or_default();
        containers.insert(container.name.clone(), blocks);
        Ok(())
    }

    /// Whether a container has all the memory that it would be given.
    #[must_use]
    pub fn is_served(&self, pod: &Pod, container: &Container) -> bool {
        if !demand::is_placed(pod) {
            return true;
        }
        let Ok(demand) = demand::of_container(pod, container) else {
            return false;
        };
        let blocks = self.blocks(&pod.uid(), &container.name);
        let blocks = blocks.map_or(&[][..], Vec::as_slice);
        // Of an init container's bytes others may have some by now.
        blocks.len() == demand.len()
            && blocks
                .iter()
                .all(|block| demand.contains_key(&block.resource))
    }

    /// On which nodes.
    fn choose(
        &self,
        pod: &Pod,
        container: &Container,
        demand: &MemoryDemand,
        hint: TopologyHint,
    ) -> Result<NumaMask, AllocateError> {
        let candidates = self.candidates(pod, demand);
        let view = View {
            books: &self.books,
            assignments: &self.assignments,
            demand,
            candidates: &candidates,
        };
        let refuse = |kind, nodes| view.refuse(kind, pod.label(), &container.name, nodes);
        let mut preferred = hint.preferred;
        let mut nodes = match hint.mask {
            Some(mask) => mask,
            None => {
                let found = candidates.narrowest_including(NumaMask::EMPTY);
                let (mask, found_preferred) = found
                    .and_then(|found| Some((found.mask?, found.preferred)))
                    .ok_or_else(|| refuse(RefusalKind::NoDefaultAffinity, NumaMask::EMPTY))?;
                if preferred && !found_preferred {
                    return Err(refuse(RefusalKind::NoDefaultPreferred, mask));
                }
                preferred = found_preferred;
                mask
            }
        };
        let unknown = nodes - self.books.mask();
        if !unknown.is_empty() {
            return Err(AllocateError::UnknownNodes {
                pod: pod.label(),
                container: container.name.clone(),
                nodes: unknown,
            });
        }
        // What could be reused does not count here, but it does where the set is extended, and it may be extended to
        // itself.
        if !self.books.has_free(nodes, demand) {
            let found = candidates.narrowest_including(nodes);
            let (mask, found_preferred) = found
                .and_then(|found| Some((found.mask?, found.preferred)))
                .ok_or_else(|| refuse(RefusalKind::CannotExtend, nodes))?;
            if preferred && !found_preferred {
                return Err(refuse(RefusalKind::NoExtendedPreferred, nodes));
            }
            nodes = mask;
        }
        // A single node is never refused, not even one of a group.
        if nodes.len() > 1 && self.books.is_shared_by_others(nodes) {
            return Err(refuse(RefusalKind::ViolatesGroup, nodes));
        }
        Ok(nodes)
    }

    /// What init containers of this pod have left is given back, and not for its other containers any more. The kubelet
    /// forgets it when it serves another pod.
    pub fn forget_reusable(&mut self, pod: &PodUid) {
        self.reusable.take_if(|reusable| reusable.pod == *pod);
    }

    /// Takes a container's memory back. Nothing if it has none. What an init container has left stays for its pod, as
    /// in the kubelet.
    pub fn remove(&mut self, pod: &PodUid, container: &str) {
        let Some(containers) = self.assignments.get_mut(pod) else {
            return;
        };
        let Some(blocks) = containers.remove(container) else {
            return;
        };
        if containers.is_empty() {
            self.assignments.remove(pod);
        }
        for block in blocks {
            self.books
                .give_back(block.nodes, &block.resource, block.bytes);
        }
    }

    /// Sets the books to the sums of the blocks, as a restart would. Call it between pods.
    ///
    /// The kubelet's sums go wrong where what an init container left is used by more than one container, and where
    /// bytes of a group are given back on a node that a block of its own shares with it: bytes are then reserved for no
    /// container, or those of another are free, until no container is on the node. Here every operation alone is the
    /// kubelet's, and nothing of it stays.
    pub fn settle(&mut self) {
        if let Ok(settled) = self.restored(&self.assignments) {
            self.books = settled.books;
        }
    }

    /// The sets of nodes that could serve a container; no resource if there is none. `None`: no preference, also where
    /// its request cannot be read or is not what it has.
    #[must_use]
    pub fn hints(&self, pod: &Pod, container: &Container) -> Option<ProviderHints> {
        if !demand::is_placed(pod) {
            return None;
        }
        let demand = demand::of_container(pod, container).ok()?;
        match self.blocks(&pod.uid(), &container.name) {
            Some(blocks) => held(blocks, &demand),
            None => Some(self.candidates(pod, &demand).hints()),
        }
    }

    /// The sets of nodes that could serve a whole pod. Once a container has memory, that is where the pod is, if the
    /// container has as much as the whole pod requests; otherwise there is no preference.
    #[must_use]
    pub fn pod_hints(&self, pod: &Pod) -> Option<ProviderHints> {
        if !demand::is_placed(pod) {
            return None;
        }
        let demand = demand::of_pod(pod).ok()?;
        let uid = pod.uid();
        let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        let mut with_memory = containers.filter_map(|container| self.blocks(&uid, &container.name));
        match with_memory.next() {
            Some(blocks) => held(blocks, &demand),
            None => Some(self.candidates(pod, &demand).hints()),
        }
    }

    fn candidates<'a>(&self, pod: &Pod, demand: &'a MemoryDemand) -> Candidates<'a> {
        let nothing = BTreeMap::new();
        let reusable = self.reusable.as_ref();
        let reusable = reusable.filter(|reusable| reusable.pod == pod.uid());
        Candidates::new(
            &self.books,
            demand,
            reusable.map_or(&nothing, |reusable| &reusable.left),
        )
    }

    /// What init containers of the pod left on exactly these nodes.
    fn left(&self, pod: &PodUid, nodes: NumaMask, resource: &str) -> u64 {
        let reusable = self
            .reusable
            .as_ref()
            .filter(|reusable| reusable.pod == *pod);
        let left = reusable.and_then(|reusable| reusable.left.get(&nodes)?.get(resource));
        left.copied().unwrap_or(0)
    }

    /// Notes what this container leaves or uses of it (`updatePodReusableMemory`). What other pods left is forgotten:
    /// pods are served one after the other.
    fn note_reusable(&mut self, pod: &Pod, container: &Container, blocks: &Blocks) {
        let uid = pod.uid();
        self.reusable.take_if(|reusable| reusable.pod != uid);
        if pod.is_plain_init(&container.name) {
            let reusable = self.reusable.get_or_insert_with(|| Reusable {
                pod: uid,
                left: BTreeMap::new(),
            });
            for block in blocks {
                let left = reusable.left.entry(block.nodes).or_default();
                let bytes = left.entry(block.resource.clone()).or_default();
                *bytes = block.bytes.max(*bytes);
            }
        } else if let Some(reusable) = &mut self.reusable {
            for block in blocks {
                let left = reusable.left.get_mut(&block.nodes);
                if let Some(bytes) = left.and_then(|left| left.get_mut(&block.resource)) {
                    *bytes = bytes.saturating_sub(block.bytes);
                }
            }
        }
    }

    /// Takes from the blocks of earlier init containers what this container uses of them
    /// (`updateInitContainersMemoryBlocks`).
    fn shrink_init_containers(&mut self, pod: &Pod, container: &Container, blocks: &Blocks) {
        let Some(containers) = self.assignments.get_mut(&pod.uid()) else {
            return;
        };
        let init = pod.spec.init_containers.iter();
        let before = init.take_while(|init| init.name != container.name);
        let plain: Vec<&Container> = before.filter(|init| !init.is_sidecar()).collect();
        for block in blocks {
            let mut used = block.bytes;
            for init in &plain {
                let init_blocks = containers.get_mut(&init.name).into_iter().flatten();
                for init_block in init_blocks.filter(|init_block| {
                    init_block.resource == block.resource && init_block.nodes == block.nodes
                }) {
                    let part = used.min(init_block.bytes);
                    init_block.bytes -= part;
                    used -= part;
                }
            }
        }
    }
}

/// Where the blocks are, if they are of what is wanted, no more and no less (`regenerateHints`).
fn held(blocks: &Blocks, demand: &MemoryDemand) -> Option<ProviderHints> {
    let same = blocks.len() == demand.len()
        && blocks
            .iter()
            .all(|block| demand.get(&block.resource) == Some(&block.bytes));
    same.then(|| {
        let hint = |block: &Block| TopologyHint {
            mask: Some(block.nodes),
            preferred: true,
        };
        let hints = |block: &Block| Some(HintSet::List(vec![hint(block)]));
        let blocks = blocks.iter();
        blocks
            .map(|block| (block.resource.clone(), hints(block)))
            .collect()
    })
}
