//! Sets of NUMA nodes.
//!
//! One bit per node, as in the kubelet's `bitmask` (pkg/kubelet/cm/topologymanager/bitmask, 1.36), so that "smaller
//! number" in its rules means the same here.

use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::placement::cpu_set::{Bits, CpuSet, write_list};

/// NUMA nodes are numbered below this.
pub const NUMA_NODES_MAX: u32 = 64;

/// A set of NUMA nodes: bit *i* is node *i*. Ordered by that number.
///
/// As text the kernel's list form. The number is read as well, for the kubelet's state files and vectors have it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NumaMask(pub u64);

impl NumaMask {
    /// No node.
    pub const EMPTY: Self = Self(0);

    /// One node.
    ///
    /// # Panics
    ///
    /// If `node` is not below [`NUMA_NODES_MAX`]: code that reads numbers from outside checks them.
    #[must_use]
    pub fn of(node: u32) -> Self {
        assert!(
            node < NUMA_NODES_MAX,
            "NUMA node {node} is not below {NUMA_NODES_MAX}"
        );
        Self(1 << node)
    }

    /// How many nodes.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the node is in the set.
    #[must_use]
    pub fn contains(self, node: u32) -> bool {
        node < NUMA_NODES_MAX && self.0 >> node & 1 == 1
    }

    /// Whether all nodes here are in `other` too.
    #[must_use]
    pub fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// The nodes, lowest first.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        Bits(self.0)
    }
}

impl BitOr for NumaMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for NumaMask {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// What is in the first and not in the second.
impl Sub for NumaMask {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// # Panics
///
/// If a node is not below [`NUMA_NODES_MAX`].
impl FromIterator<u32> for NumaMask {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        nodes
            .into_iter()
            .fold(Self::EMPTY, |mask, node| mask | Self::of(node))
    }
}

/// The kernel's list form, as in `cpuset.mems`.
impl fmt::Display for NumaMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(self.iter(), f)
    }
}

impl Serialize for NumaMask {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NumaMask {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bits(u64),
            List(CpuSet),
        }
        match Written::deserialize(deserializer)? {
            Written::Bits(bits) => Ok(Self(bits)),
            Written::List(nodes) => match nodes.iter().find(|node| *node >= NUMA_NODES_MAX) {
                Some(node) => Err(serde::de::Error::custom(format!(
                    "NUMA node {node} is beyond {}, the highest that is supported",
                    NUMA_NODES_MAX - 1
                ))),
                None => Ok(nodes.iter().collect()),
            },
        }
    }
}

impl fmt::Debug for NumaMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NumaMask({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_shown_as_the_kernel_lists_nodes() {
        assert_eq!(
            [0, 1, 2, 63].into_iter().collect::<NumaMask>().to_string(),
            "0-2,63"
        );
        assert_eq!(serde_json::to_string(&NumaMask(5)).unwrap(), r#""0,2""#);
        for text in [r#""0,2""#, "5"] {
            assert_eq!(serde_json::from_str::<NumaMask>(text).unwrap(), NumaMask(5));
        }
        assert!(serde_json::from_str::<NumaMask>(r#""64""#).is_err());
    }
}
