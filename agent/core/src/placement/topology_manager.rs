//! The kubelet's topology manager: asks the providers, merges their hints, and admits or refuses.
//!
//! Problem: CPUs, memory and devices of a container shall be near each other, but each provider knows only its own.
//! Approach, as in cm/topologymanager (1.36): for each container, or once for the pod ([`TopologyScope`]), every
//! provider gives hints, the policy merges them, and if it admits, the providers allocate with the merged hint. The
//! owner of the providers passes them in as a [`HintProviders`]; nothing is kept here between pods.
//!
//! Differences from the kubelet: distances are looked up by the numbers of both nodes (the kubelet indexes a row that
//! has only existing nodes by the node's number, and dies on machines with gaps in the numbers). A merge that was cut
//! short ([`Merged::is_exact`]) is said. Wrong options are reported by name in the order of names, not of a hash map.

mod explain;
mod settings;

use std::fmt;

use crate::placement::TopologyHint;
use crate::placement::hints::ProviderHints;
use crate::placement::merge::{Merged, NumaInfo, TopologyPolicy, merge};
use crate::placement::numa_mask::NumaMask;

pub use explain::{AlignmentExplanation, Alternative, Loss, Offer, ResourceOffer, explain};
pub use settings::{
    MAX_ALLOWABLE_NUMA_NODES, PREFER_CLOSEST_NUMA_NODES, TopologyManagerError, TopologySettings,
};

/// What is aligned as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopologyScope {
    /// Each container by itself, one after the other.
    Container,
    /// The pod as a whole.
    Pod,
}

/// What hints are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// A container, by its place: init containers first, then the others, as in the pod.
    Container(usize),
    /// The pod as a whole.
    Pod,
}

/// What one provider says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvidedHints {
    /// The provider's name, for people: `cpu`, `memory`, `devices`.
    pub provider: &'static str,
    /// Its hints.
    pub hints: ProviderHints,
}

/// The providers of a node, for one pod that is to be admitted.
pub trait HintProviders {
    /// Why something cannot be allocated.
    type Error;

    /// How many containers the pod has, init containers included.
    fn containers(&self) -> usize;

    /// The hints of all providers, in the order in which they allocate.
    fn hints(&self, asking: Asking) -> Vec<ProvidedHints>;

    /// Allocates with the hint for one container, from all providers.
    ///
    /// # Errors
    ///
    /// If a provider cannot.
    fn allocate(&mut self, container: usize, hint: TopologyHint) -> Result<(), Self::Error>;
}

/// How the hints for a container or a pod were merged: what `explain topology` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alignment {
    /// For what.
    pub asking: Asking,
    /// What each provider said.
    pub hints: Vec<ProvidedHints>,
    /// What it came to.
    pub merged: Merged,
}

/// Why a pod is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal<E> {
    /// The policy does not admit the merged hint.
    NotAligned {
        /// The policy.
        policy: TopologyPolicy,
        /// For what, and the hints.
        alignment: Alignment,
        /// What stands in the way of each other.
        offers: Vec<ResourceOffer>,
    },
    /// A provider could not allocate.
    NotAllocated {
        /// The container's place.
        container: usize,
        /// The provider's reason.
        source: E,
    },
}

/// The topology manager of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyManager {
    policy: TopologyPolicy,
    scope: TopologyScope,
    numa: NumaInfo,
}

impl TopologyManager {
    /// From settings as in the kubelet's configuration, for a machine with these NUMA nodes. `distance` gives how far
    /// the second node is from the first, if that is known.
    ///
    /// # Errors
    ///
    /// What the kubelet would not start with, in its order (`NewManager` in topology_manager.go): options, distances,
    /// number of nodes, policy, scope. With policy `none` nothing else is checked.
    pub fn new(
        settings: &TopologySettings<'_>,
        nodes: NumaMask,
        distance: impl Fn(u32, u32) -> Option<u32>,
    ) -> Result<Self, TopologyManagerError> {
        let (policy, scope, distances) = settings.check(nodes, distance)?;
        Ok(Self {
            policy,
            scope,
            numa: NumaInfo { nodes, distances },
        })
    }

    /// What is done with merged hints.
    #[must_use]
    pub fn policy(&self) -> TopologyPolicy {
        self.policy
    }

    /// What is aligned as one.
    #[must_use]
    pub fn scope(&self) -> TopologyScope {
        self.scope
    }

    /// The machine's NUMA nodes.
    #[must_use]
    pub fn numa(&self) -> &NumaInfo {
        &self.numa
    }

    /// Merges the hints for a container or a pod.
    #[must_use]
    pub fn align(&self, asking: Asking, hints: Vec<ProvidedHints>) -> Alignment {
        let of_providers: Vec<ProviderHints> = hints.iter().map(|of| of.hints.clone()).collect();
        Alignment {
            asking,
            merged: merge(self.policy, &self.numa, &of_providers),
            hints,
        }
    }

    /// Admits a pod: hints, merge, allocation, container by container or for the pod at once (`scope_container.go`,
    /// `scope_pod.go`, `scope_none.go`, 1.36). With policy `none` everything is allocated without a hint.
    ///
    /// # Errors
    ///
    /// If the policy does not admit the merged hint or a provider cannot allocate. What earlier containers of the pod
    /// got stays theirs, as in the kubelet: the owner of the providers takes it back.
    pub fn admit<P: HintProviders>(
        &self,
        providers: &mut P,
    ) -> Result<Vec<Alignment>, Refusal<P::Error>> {
        let containers = 0..providers.containers();
        let mut alignments = Vec::new();
        let mut whole = None;
        if self.policy != TopologyPolicy::None && self.scope == TopologyScope::Pod {
            let alignment = self.aligned(Asking::Pod, providers)?;
            whole = Some(alignment.merged.hint);
            alignments.push(alignment);
        }
        for container in containers {
            let hint = match whole {
                Some(hint) => hint,
                None if self.policy == TopologyPolicy::None => TopologyHint {
                    mask: None,
                    preferred: false,
                },
                None => {
                    let alignment = self.aligned(Asking::Container(container), providers)?;
                    let hint = alignment.merged.hint;
                    alignments.push(alignment);
                    hint
                }
            };
            providers
                .allocate(container, hint)
                .map_err(|source| Refusal::NotAllocated { container, source })?;
        }
        Ok(alignments)
    }

    fn aligned<P: HintProviders>(
        &self,
        asking: Asking,
        providers: &P,
    ) -> Result<Alignment, Refusal<P::Error>> {
        let alignment = self.align(asking, providers.hints(asking));
        if alignment.merged.admitted {
            return Ok(alignment);
        }
        Err(Refusal::NotAligned {
            policy: self.policy,
            offers: explain::offers(&alignment.hints, &self.numa),
            alignment,
        })
    }
}

impl fmt::Display for TopologyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(settings::name_of(*self))
    }
}

impl fmt::Display for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container(place) => write!(f, "container {}", place + 1),
            Self::Pod => f.write_str("the pod"),
        }
    }
}

impl<E: fmt::Display> fmt::Display for Refusal<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAligned {
                policy,
                alignment,
                offers,
            } => {
                write!(
                    f,
                    "{} cannot be aligned as policy {policy} demands:",
                    alignment.asking
                )?;
                let mut separator = " ";
                for offer in offers {
                    write!(f, "{separator}{offer}")?;
                    separator = "; ";
                }
                if !alignment.merged.is_exact {
                    f.write_str("; the search for a common set was cut short")?;
                }
                f.write_str("; free what one of them lacks, or ask for less")
            }
            Self::NotAllocated { container, source } => {
                write!(f, "{}: {source}", Asking::Container(*container))
            }
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for Refusal<E> {}

#[cfg(test)]
mod tests;
