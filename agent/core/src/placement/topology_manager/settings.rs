//! The settings of the topology manager, checked as the kubelet checks them.

use std::collections::BTreeMap;

use super::TopologyScope;
use crate::placement::merge::TopologyPolicy;
use crate::placement::numa_distances::{DistancesError, NumaDistances};
use crate::placement::numa_mask::NumaMask;

/// Option: of as many nodes, the closest are better than the lowest.
pub const PREFER_CLOSEST_NUMA_NODES: &str = "prefer-closest-numa-nodes";

/// Option: how many NUMA nodes the machine may have.
pub const MAX_ALLOWABLE_NUMA_NODES: &str = "max-allowable-numa-nodes";

/// How many it may have unless the option says otherwise, and the least that the option may say.
const NUMA_NODES_DEFAULT_MAX: i64 = 8;

const POLICIES: [(&str, TopologyPolicy); 4] = [
    ("none", TopologyPolicy::None),
    ("best-effort", TopologyPolicy::BestEffort),
    ("restricted", TopologyPolicy::Restricted),
    ("single-numa-node", TopologyPolicy::SingleNumaNode),
];

pub(super) fn name_of(policy: TopologyPolicy) -> &'static str {
    match policy {
        TopologyPolicy::None => "none",
        TopologyPolicy::BestEffort => "best-effort",
        TopologyPolicy::Restricted => "restricted",
        TopologyPolicy::SingleNumaNode => "single-numa-node",
    }
}

/// As in the kubelet's configuration.
#[derive(Debug, Clone, Copy)]
pub struct TopologySettings<'a> {
    /// `topologyManagerPolicy`.
    pub policy: &'a str,
    /// `topologyManagerScope`.
    pub scope: &'a str,
    /// `topologyManagerPolicyOptions`.
    pub options: &'a BTreeMap<String, String>,
}

/// Why settings do not go together with each other or the machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyManagerError {
    /// An option that does not exist.
    #[error(
        "topologyManagerPolicyOptions: {name:?} is not known; there are \
         {PREFER_CLOSEST_NUMA_NODES} and {MAX_ALLOWABLE_NUMA_NODES}"
    )]
    UnknownOption {
        /// Its name.
        name: String,
    },
    /// A value that cannot be read.
    #[error("topologyManagerPolicyOptions: {name}: {value:?} is not {expected}")]
    BadOptionValue {
        /// The option.
        name: &'static str,
        /// What it is set to.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The limit is lower than the default.
    #[error(
        "topologyManagerPolicyOptions: {MAX_ALLOWABLE_NUMA_NODES}: {value} is less than \
         {NUMA_NODES_DEFAULT_MAX}, the default; raise it or leave it out"
    )]
    MaxNumaBelowDefault {
        /// What it is set to.
        value: i64,
    },
    /// The machine has more nodes than the limit.
    #[error(
        "the machine has {nodes} NUMA nodes, more than the {max} that are allowed; \
         set topologyManagerPolicyOptions: {MAX_ALLOWABLE_NUMA_NODES} to {nodes} or more"
    )]
    TooManyNumaNodes {
        /// How many it has.
        nodes: u32,
        /// How many it may have.
        max: i64,
    },
    /// Closer nodes are to be preferred, but the distances are unknown.
    #[error("topologyManagerPolicyOptions: {PREFER_CLOSEST_NUMA_NODES}: {0}")]
    NoDistances(#[from] DistancesError),
    /// A policy that does not exist.
    #[error(
        "topologyManagerPolicy: {name:?} is not known; there are none, best-effort, restricted and single-numa-node"
    )]
    UnknownPolicy {
        /// Its name.
        name: String,
    },
    /// A scope that does not exist.
    #[error("topologyManagerScope: {name:?} is not known; there are container and pod")]
    UnknownScope {
        /// Its name.
        name: String,
    },
}

/// The options, read.
struct Options {
    prefer_closest: bool,
    max_nodes: i64,
}

impl Options {
    fn read(options: &BTreeMap<String, String>) -> Result<Self, TopologyManagerError> {
        let mut read = Self {
            prefer_closest: false,
            max_nodes: NUMA_NODES_DEFAULT_MAX,
        };
        for (name, value) in options {
            let bad = |name, expected| TopologyManagerError::BadOptionValue {
                name,
                value: value.clone(),
                expected,
            };
            match name.as_str() {
                PREFER_CLOSEST_NUMA_NODES => {
                    read.prefer_closest = boolean(value)
                        .ok_or_else(|| bad(PREFER_CLOSEST_NUMA_NODES, "true or false"))?;
                }
                MAX_ALLOWABLE_NUMA_NODES => {
                    let max = value.parse::<i64>();
                    read.max_nodes =
                        max.map_err(|_| bad(MAX_ALLOWABLE_NUMA_NODES, "a whole number"))?;
                    if read.max_nodes < NUMA_NODES_DEFAULT_MAX {
                        return Err(TopologyManagerError::MaxNumaBelowDefault {
                            value: read.max_nodes,
                        });
                    }
                }
                _ => return Err(TopologyManagerError::UnknownOption { name: name.clone() }),
            }
        }
        Ok(read)
    }
}

/// What Go's `strconv.ParseBool` takes.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

impl TopologySettings<'_> {
    pub(super) fn check(
        &self,
        nodes: NumaMask,
        distance: impl Fn(u32, u32) -> Option<u32>,
    ) -> Result<(TopologyPolicy, TopologyScope, Option<NumaDistances>), TopologyManagerError> {
        if self.policy == name_of(TopologyPolicy::None) {
            return Ok((TopologyPolicy::None, TopologyScope::Container, None));
        }
        let options = Options::read(self.options)?;
        let distances = options
            .prefer_closest
            .then(|| NumaDistances::new(nodes, distance));
        let distances = distances.transpose()?;
        if i64::from(nodes.len()) > options.max_nodes {
            return Err(TopologyManagerError::TooManyNumaNodes {
                nodes: nodes.len(),
                max: options.max_nodes,
            });
        }
        let policy = POLICIES.iter().find(|(name, _)| *name == self.policy);
        let (_, policy) = policy.ok_or_else(|| TopologyManagerError::UnknownPolicy {
            name: self.policy.to_owned(),
        })?;
        let scope = match self.scope {
            "container" => TopologyScope::Container,
            "pod" => TopologyScope::Pod,
            _ => {
                return Err(TopologyManagerError::UnknownScope {
                    name: self.scope.to_owned(),
                });
            }
        };
        Ok((*policy, scope, distances))
    }
}
