//! A container whose request changes while it runs: its memory stays on the nodes where it is.
//!
//! The kubelet of 1.36 does this behind a gate (`InPlacePodVerticalScalingExclusiveMemory`) that is off, and refuses
//! otherwise. Here the nodes of a container never change while it runs, for pages that are there would have to move, or
//! be on nodes where they are not counted. So a request that grows is served on those nodes, or not at all.

use std::collections::BTreeMap;
use std::fmt;

use super::demand::{self, MemoryDemand};
use super::machine::in_units;
use super::{AllocateError, Block, Blocks, MemoryPolicy, StaticMemory};
use crate::kube::pod::{Container, Pod};
use crate::placement::TopologyHint;
use crate::placement::hints::{HintSet, ProviderHints};
use crate::placement::numa_mask::NumaMask;

/// Which nodes have too little for what a container wants beyond what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotGrown {
    /// Namespace and name of the pod; its UID if it has no name.
    pub pod: String,
    /// The container.
    pub container: String,
    /// `memory`, or huge pages of one size.
    pub resource: String,
    /// Bytes that it has.
    pub held: u64,
    /// Bytes that it requests.
    pub wanted: u64,
    /// What its nodes have free, bytes.
    pub free: BTreeMap<u32, u64>,
}

impl fmt::Display for NotGrown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = self.wanted.saturating_sub(self.held);
        let free = self
            .free
            .values()
            .fold(0, |all: u64, node| all.saturating_add(*node));
        write!(
            f,
            "pod {}, container {}: it has {} of {} and wants {} more,",
            self.pod,
            self.container,
            in_units(self.held),
            self.resource,
            in_units(more)
        )?;
        let mut separator = "";
        for (node, bytes) in &self.free {
            write!(
                f,
                "{separator} and NUMA node {node} has {} free",
                in_units(*bytes)
            )?;
            separator = ",";
        }
        let missing = in_units(more.saturating_sub(free));
        write!(f, ": {missing} more would have to be free there")
    }
}

impl std::error::Error for NotGrown {}

impl MemoryPolicy {
    /// As [`StaticMemory::shrink`]; nothing under `None`.
    pub fn shrink(&mut self, pod: &Pod, container: &Container) {
        if let Self::Static(memory) = self {
            memory.shrink(pod, container);
        }
    }

    /// As [`StaticMemory::not_grown`]; nothing under `None`.
    #[must_use]
    pub fn not_grown(&self, pod: &Pod, container: &Container) -> Option<NotGrown> {
        match self {
            Self::None => None,
            Self::Static(memory) => memory.not_grown(pod, container),
        }
    }

    /// As [`StaticMemory::is_resized`]; never under `None`.
    #[must_use]
    pub fn is_resized(&self, pod: &Pod, container: &Container) -> bool {
        match self {
            Self::None => false,
            Self::Static(memory) => memory.is_resized(pod, container),
        }
    }
}

impl StaticMemory {
    /// Whether a container has memory, and requests other amounts of the same. Never of one that runs to its end before
    /// others start: of its bytes others have some.
    #[must_use]
    pub fn is_resized(&self, pod: &Pod, container: &Container) -> bool {
        self.changed(pod, container)
            .is_some_and(|(blocks, demand)| {
                blocks
                    .iter()
                    .any(|block| demand.get(&block.resource) != Some(&block.bytes))
            })
    }

    /// What a container has, and what it requests, where both are of the same resources.
    fn changed(&self, pod: &Pod, container: &Container) -> Option<(&Blocks, MemoryDemand)> {
        if !demand::is_placed(pod) || pod.is_plain_init(&container.name) {
            return None;
        }
        let blocks = self.blocks(&pod.uid(), &container.name)?;
        let demand = demand::of_container(pod, container).ok()?;
        let is_same = blocks.len() == demand.len()
            && blocks
                .iter()
                .all(|block| demand.contains_key(&block.resource));
        is_same.then_some((blocks, demand))
    }

    /// The first resource of which a container wants more than its nodes have.
    #[must_use]
    pub fn not_grown(&self, pod: &Pod, container: &Container) -> Option<NotGrown> {
        let (blocks, demand) = self.changed(pod, container)?;
        blocks.iter().find_map(|block| {
            let wanted = demand[&block.resource];
            let more = wanted.checked_sub(block.bytes)?;
            let nodes = block.nodes.iter();
            let free: BTreeMap<u32, u64> = nodes
                .filter_map(|id| Some((id, self.books.0.get(&id)?.free(&block.resource))))
                .collect();
            let all = free
                .values()
                .fold(0, |all: u64, node| all.saturating_add(*node));
            (more > all).then(|| NotGrown {
                pod: pod.label(),
                container: container.name.clone(),
                resource: block.resource.clone(),
                held: block.bytes,
                wanted,
                free,
            })
        })
    }

    /// Gives a container as much as it requests, on its nodes.
    ///
    /// # Errors
    ///
    /// [`AllocateError::NotGrown`]; then nothing has changed.
    pub fn resize(&mut self, pod: &Pod, container: &Container) -> Result<(), AllocateError> {
        if let Some(why) = self.not_grown(pod, container) {
            return Err(AllocateError::NotGrown(Box::new(why)));
        }
        self.set_bytes(pod, container, |_, wanted| wanted);
        Ok(())
    }

    /// Takes back what a container has beyond its request.
    pub fn shrink(&mut self, pod: &Pod, container: &Container) {
        self.set_bytes(pod, container, u64::min);
    }

    fn set_bytes(&mut self, pod: &Pod, container: &Container, to: impl Fn(u64, u64) -> u64) {
        let Some((blocks, demand)) = self.changed(pod, container) else {
            return;
        };
        let resized = |block: &Block| Block {
            bytes: to(block.bytes, demand[&block.resource]),
            ..block.clone()
        };
        let (before, after): (Blocks, Blocks) =
            (blocks.clone(), blocks.iter().map(resized).collect());
        // All are given back first: what is free is then free for any of them.
        for block in &before {
            self.books
                .give_back(block.nodes, &block.resource, block.bytes);
        }
        for block in &after {
            self.books.take(block.nodes, &block.resource, block.bytes);
        }
        if let Some(of_pod) = self.assignments.get_mut(&pod.uid()) {
            of_pod.insert(container.name.clone(), after);
        }
    }

    /// As [`StaticMemory::hints`], but a container that requests another amount than it has is to stay where it is, if
    /// it can.
    #[must_use]
    pub fn hints_to_grow(&self, pod: &Pod, container: &Container) -> Option<ProviderHints> {
        if !self.is_resized(pod, container) {
            return self.hints(pod, container);
        }
        let blocks = self.blocks(&pod.uid(), &container.name)?;
        let lacks = self.not_grown(pod, container);
        let hints = |block: &Block| match &lacks {
            Some(lacks) if lacks.resource == block.resource => HintSet::List(Vec::new()),
            _ => stays(block.nodes),
        };
        let hints = blocks
            .iter()
            .map(|block| (block.resource.clone(), Some(hints(block))));
        Some(hints.collect())
    }

    /// As [`StaticMemory::pod_hints`], but a pod of which a container is resized is to stay where it is, if all of it
    /// is on the same nodes.
    #[must_use]
    pub fn pod_hints_to_grow(&self, pod: &Pod) -> Option<ProviderHints> {
        if !pod
            .all_containers()
            .any(|container| self.is_resized(pod, container))
        {
            return self.pod_hints(pod);
        }
        let of_pod = self.assignments.get(&pod.uid())?;
        let blocks: Vec<&Block> = of_pod.values().flatten().collect();
        let nodes = blocks.first()?.nodes;
        let is_on_one_set = blocks.iter().all(|block| block.nodes == nodes);
        let hints = blocks
            .iter()
            .map(|block| (block.resource.clone(), Some(stays(nodes))));
        is_on_one_set.then(|| hints.collect())
    }
}

fn stays(nodes: NumaMask) -> HintSet {
    HintSet::List(vec![TopologyHint {
        mask: Some(nodes),
        preferred: true,
    }])
}
