//! What a kubelet says of exclusive CPUs, memory of NUMA nodes and devices (`PodResourcesLister`, v1), and how it comes
//! from `plimsoll-runtime` to the agent.
//!
//! **Problem.** The kubelet has no watch for it, and answers over gRPC, which stays out of the agent. **Approach.**
//! `plimsoll-runtime resources` asks every [`ASKED_EVERY_MS`], and at once when the agent wants to know ([`ToKubelet`];
//! no two questions are closer than [`ASKED_APART_MS`]), and sends a frame each time: what has changed as a whole, or
//! that nothing has. A peer that is silent hangs. The kubelet names pods, and says no UID (1.36): so each answer has
//! the time at which it was asked for, by which it is known whose it can be.

use serde::{Deserialize, Serialize};

use crate::protocol::cluster_link::PODS_MAX;
use crate::protocol::framing::Framing;

/// The version of these frames.
pub const PROTOCOL: u32 = 3;
/// Of all frames. 1024 pods, half of which have CPUs, memory and a device, have some 15,000 values.
pub const FRAMING: Framing = Framing {
    bytes_max: 1 << 20,
    values_max: 32_768,
};
/// How often the kubelet is asked, milliseconds. It answers from memory.
pub const ASKED_EVERY_MS: u64 = 1_000;
/// How far apart questions are at least, however often the agent asks, milliseconds: pods decide how often they come
/// and go, and an answer of a large node is not for nothing.
pub const ASKED_APART_MS: u64 = 200;

/// A frame from `plimsoll-runtime resources`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromKubelet {
    /// The first frame.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
    },
    /// What the kubelet says now.
    Resources {
        /// Before the kubelet was asked: CLOCK_MONOTONIC, nanoseconds.
        asked_at_ns: u64,
        /// All of it.
        resources: Box<NodeResources>,
    },
    /// What it has said before still holds.
    Same {
        /// As in [`Self::Resources`].
        asked_at_ns: u64,
    },
    /// It does not answer, or says what cannot be used. What it has said before is not known to hold.
    Failed {
        /// Why, for people.
        why: String,
    },
}

/// A frame to `plimsoll-runtime resources`; its bounds are those of [`runtime_link`](crate::protocol::runtime_link).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToKubelet {
    /// The kubelet is to be asked at once; the answer is as always.
    Ask,
}

/// Devices of one kind on the same NUMA nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Devices {
    /// The resource that asks for them.
    pub resource: String,
    /// Their ids.
    pub ids: Vec<String>,
    /// NUMA nodes that they are near to; none: it does not matter.
    pub numa_nodes: Vec<i64>,
}

/// Memory or huge pages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// `memory`, `hugepages-2Mi`.
    pub kind: String,
    /// How much of all these nodes together, bytes.
    pub bytes: u64,
    /// Of these NUMA nodes.
    pub numa_nodes: Vec<i64>,
}

/// What one container has got, or all of the node together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Given {
    /// `namespace/pod/container`; empty for the node.
    pub container: String,
    /// Exclusive CPUs; of the node: those that may become exclusive.
    pub cpus: Vec<i64>,
    /// Memory.
    pub memory: Vec<Memory>,
    /// Devices.
    pub devices: Vec<Devices>,
}

/// What the kubelet has, and what it has given away.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeResources {
    /// All that it may give; `None`: a kubelet before 1.23 does not say.
    pub allocatable: Option<Given>,
    /// Containers that have got something, sorted.
    pub given: Vec<Given>,
    /// All pods that it lists, `namespace/pod`, sorted; also those that have got nothing.
    pub pods: Vec<String>,
}

impl NodeResources {
    /// Which of the kubelet's managers give something to containers now: then CPUs or memory nodes are the kubelet's to
    /// place.
    #[must_use]
    pub fn owners(&self) -> Vec<&'static str> {
        let cpus = self.given.iter().any(|given| !given.cpus.is_empty());
        let memory = self.given.iter().any(|given| !given.memory.is_empty());
        let owners = [
            cpus.then_some("cpuManagerPolicy: static"),
            memory.then_some("memoryManagerPolicy: Static"),
        ];
        owners.into_iter().flatten().collect()
    }

    /// Whether there are more pods than a node has: such an answer is not used.
    #[must_use]
    pub fn has_too_many_pods(&self) -> bool {
        self.pods.len() > PODS_MAX
    }
}
