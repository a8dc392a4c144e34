//! Why a container gets no memory, and what would have to be free.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use super::Assignments;
use super::candidates::Candidates;
use super::demand::{DemandError, MemoryDemand};
use super::machine::{Books, in_units};
use super::resize::NotGrown;
use crate::kube::pod_uid::PodUid;
use crate::placement::numa_mask::NumaMask;

/// Why [`StaticMemory::allocate`](super::StaticMemory::allocate) did not.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AllocateError {
    /// The kubelet's rules refuse it.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// A container that has memory requests more, and its nodes have not as much.
    #[error(transparent)]
    NotGrown(Box<NotGrown>),
    /// What it requests is no number of bytes.
    #[error(transparent)]
    Demand(#[from] DemandError),
    /// The hint names NUMA nodes that the machine has not.
    #[error(
        "pod {pod}, container {container}: the hint names NUMA nodes {nodes}, which this machine has not: merge hints of this machine only"
    )]
    UnknownNodes {
        /// Namespace and name.
        pod: String,
        /// The container.
        container: String,
        /// The nodes.
        nodes: NumaMask,
    },
}

/// Which of the kubelet's rules refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// Any nodes would do, and there are none.
    NoDefaultAffinity,
    /// Any nodes would do, but as few as possible are asked for, and those are not free.
    NoDefaultPreferred,
    /// The hint's nodes have not enough, and no larger set that includes them has.
    CannotExtend,
    /// The hint's nodes have not enough; a larger set has, but as few nodes as possible are asked for.
    NoExtendedPreferred,
    /// The nodes have enough, but containers of other sets are on them.
    ViolatesGroup,
}

/// A refusal with its figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Which rule.
    pub kind: RefusalKind,
    /// Namespace and name of the pod; its UID if it has no name.
    pub pod: String,
    /// The container.
    pub container: String,
    /// The nodes that were to serve it: the hint's, or the ones found for it; empty where none were.
    pub nodes: NumaMask,
    /// Bytes wanted by resource.
    pub wanted: MemoryDemand,
    /// Bytes free by resource and NUMA node.
    pub free: BTreeMap<String, BTreeMap<u32, u64>>,
    /// What would help.
    pub shortfall: Shortfall,
}

/// What would have to be free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shortfall {
    /// Nothing helps: all nodes together may not hand out that much.
    TooLarge {
        /// Bytes that pods may have at most, by resource.
        allocatable: BTreeMap<String, u64>,
    },
    /// On these nodes it would be served.
    Free {
        /// Of the smallest sets that are large enough one that has much free.
        nodes: NumaMask,
        /// Bytes by resource that are missing there. Empty: only other containers' sets are in the way.
        missing: BTreeMap<String, u64>,
        /// The containers with memory on these nodes: pod and container.
        holders: Vec<(PodUid, String)>,
    },
}

/// What [`Refusal`] shows of the policy's state.
pub(super) struct View<'a> {
    pub(super) books: &'a Books,
    pub(super) assignments: &'a Assignments,
    pub(super) demand: &'a MemoryDemand,
    pub(super) candidates: &'a Candidates<'a>,
}

impl View<'_> {
    /// The figures of a refusal. `nodes`: as in [`Refusal`].
    pub(super) fn refuse(
        &self,
        kind: RefusalKind,
        pod: String,
        container: &str,
        nodes: NumaMask,
    ) -> AllocateError {
        let free = |resource: &String| {
            let nodes = self.books.0.iter();
            let free = nodes.map(|(id, node)| (*id, node.free(resource)));
            (resource.clone(), free.collect())
        };
        let shortfall = match kind {
            RefusalKind::ViolatesGroup => self.on(nodes),
            RefusalKind::NoDefaultAffinity | RefusalKind::NoDefaultPreferred => {
                self.shortfall(NumaMask::EMPTY)
            }
            RefusalKind::CannotExtend | RefusalKind::NoExtendedPreferred => self.shortfall(nodes),
        };
        AllocateError::Refused(Box::new(Refusal {
            kind,
            pod,
            container: container.to_owned(),
            nodes,
            wanted: self.demand.clone(),
            free: self.demand.keys().map(free).collect(),
            shortfall,
        }))
    }

    fn shortfall(&self, including: NumaMask) -> Shortfall {
        match self.candidates.roomiest(including) {
            Some(nodes) => self.on(nodes),
            None => Shortfall::TooLarge {
                allocatable: self.sums(self.books.mask(), |node, name| node.allocatable(name)),
            },
        }
    }

    fn on(&self, nodes: NumaMask) -> Shortfall {
        let free = self.sums(nodes, |node, name| node.free(name));
        let wanted = self.demand.iter();
        let missing = wanted
            .map(|(name, bytes)| (name.clone(), bytes.saturating_sub(free[name])))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        let mut holders = Vec::new();
        for (pod, containers) in self.assignments {
            for (container, blocks) in containers {
                if blocks.iter().any(|block| !(block.nodes & nodes).is_empty()) {
                    holders.push((pod.clone(), container.clone()));
                }
            }
        }
        Shortfall::Free {
            nodes,
            missing,
            holders,
        }
    }

    fn sums(
        &self,
        nodes: NumaMask,
        amount: impl Fn(&super::machine::NodeMemory, &str) -> u64,
    ) -> BTreeMap<String, u64> {
        let of = |name: &str| {
            let nodes = nodes.iter().filter_map(|id| self.books.0.get(&id));
            nodes.fold(0u64, |sum, node| sum.saturating_add(amount(node, name)))
        };
        let names = self.demand.keys();
        names.map(|name| (name.clone(), of(name))).collect()
    }
}

/// How many holders a message names.
const HOLDERS_SHOWN: usize = 8;

/// `7Gi of memory and 2Mi of hugepages-2Mi`.
struct Amounts<'a>(&'a BTreeMap<String, u64>);

impl fmt::Display for Amounts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (resource, bytes) in self.0 {
            write!(f, "{separator}{} of {resource}", in_units(*bytes))?;
            separator = " and ";
        }
        Ok(())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            pod,
            container,
            nodes,
            wanted,
            free,
            shortfall,
        } = self;
        write!(f, "pod {pod}, container {container}: ")?;
        match kind {
            RefusalKind::NoDefaultAffinity => write!(f, "no NUMA nodes have")?,
            RefusalKind::NoDefaultPreferred => {
                write!(
                    f,
                    "as few NUMA nodes as possible are wanted, and none of those sets has"
                )?;
            }
            RefusalKind::CannotExtend => {
                write!(
                    f,
                    "NUMA nodes {nodes} have not enough, and no set with more nodes has"
                )?;
            }
            RefusalKind::NoExtendedPreferred => write!(
                f,
                "NUMA nodes {nodes} have not enough, and no set with them, of as few nodes as possible, has"
            )?,
            RefusalKind::ViolatesGroup => write!(
                f,
                "NUMA nodes {nodes} hold memory of containers with other sets of nodes, so they cannot together give"
            )?,
        }
        write!(f, " {}", Amounts(wanted))?;
        for (resource, nodes) in free {
            write!(f, "; {resource} free:")?;
            let mut separator = "";
            for (node, bytes) in nodes {
                write!(f, "{separator} {} on node {node}", in_units(*bytes))?;
                separator = ",";
            }
        }
        match shortfall {
            Shortfall::TooLarge { allocatable } => write!(
                f,
                "; pods may have {} on this machine: request less, or reserve less for the system",
                Amounts(allocatable)
            ),
            Shortfall::Free {
                nodes,
                missing,
                holders,
            } => {
                write!(f, "; it fits on NUMA nodes {nodes} ")?;
                if missing.is_empty() {
                    write!(f, "once no other container's set shares them")?;
                } else {
                    write!(f, "once {} more is free there", Amounts(missing))?;
                }
                for (at, (pod, container)) in holders.iter().take(HOLDERS_SHOWN).enumerate() {
                    let before = if at == 0 {
                        ", where memory is held by"
                    } else {
                        ","
                    };
                    write!(f, "{before} pod {pod} container {container}")?;
                }
                match holders.len().saturating_sub(HOLDERS_SHOWN) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

impl std::error::Error for Refusal {}
