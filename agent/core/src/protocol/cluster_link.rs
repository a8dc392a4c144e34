//! What the agent and `plimsoll-cluster` say to each other over their socket.
//!
//! **Problem.** Only `plimsoll-cluster` holds a token and reads what a network sends; only the agent may touch the
//! machine. Each must stay right if the other one lies, stalls or dies. **Approach.** Two kinds of frames
//! ([`framing`](crate::protocol::framing)), with bounds that the receiver checks before it reads. The agent believes
//! nothing that it can see for itself: a pod counts only if it has a cgroup here. `plimsoll-cluster` keeps no decision:
//! an [`EvictionIntent`] is on the agent's disk until [`ToAgent::Settled`] says that the API shows it, and is sent
//! again after each connection.

use serde::{Deserialize, Serialize};

use crate::kube::budget::DisruptionBudget;
use crate::kube::node_resource_topology::NodeTopology;
use crate::kube::pod::Pod;
use crate::kube::pod_uid::PodUid;
use crate::protocol::framing::Framing;

/// The version of this protocol. A peer with another one is refused with both numbers.
pub const PROTOCOL: u32 = 4;
/// Of all frames. The largest pod has a fraction of these values.
pub const FRAMING: Framing = Framing {
    bytes_max: 1 << 20,
    values_max: 32_768,
};
/// Pods of one node that are taken from the cluster: four times what upstream supports (110), rounded up.
pub const PODS_MAX: usize = 1024;
/// Bytes of the frames of all pods, and of all budgets: some times what the largest node has.
pub const PODS_BYTES_MAX: usize = 16 << 20;
/// Bytes of a name or a UID: as many as the API server takes.
pub const NAME_BYTES_MAX: usize = 253;
/// Budgets that are taken from the cluster.
pub const BUDGETS_MAX: usize = 1024;
/// Overused namespaces that are taken from the cluster: those with pods here, and a node has no more.
pub const OVERUSED_MAX: usize = 256;
/// A list of overused namespaces holds for so long after its time stamp, milliseconds.
pub const OVERUSED_FOR_MS: u64 = 60_000;
/// The annotation of a node: what of its allocatable cannot be had without meeting an eviction threshold, and since
/// when. It holds as long as a list of overused namespaces.
pub const WITHHELD_ANNOTATION: &str = "plimsoll.dev/withheld";

/// How much longer something holds that was written at a time, milliseconds; 0: it is void.
#[must_use]
pub fn valid_ms(at_unix_ms: u64, unix_ms: u64) -> u64 {
    // One that is dated a little ahead is as new as can be.
    let is_ahead = at_unix_ms > unix_ms.saturating_add(OVERUSED_FOR_MS);
    let age_ms = unix_ms.saturating_sub(at_unix_ms);
    if is_ahead {
        0
    } else {
        OVERUSED_FOR_MS.saturating_sub(age_ms)
    }
}
/// The greatest excess of a namespace: all of the cluster, in thousandths.
pub const EXCESS_MAX: u16 = 1000;
/// Evictions that wait to be reported; beyond, the oldest ones become a count.
pub const INTENTS_MAX: usize = 1024;

/// A frame from `plimsoll-cluster` to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToAgent {
    /// The first frame of a connection.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// `metadata.name` of this node.
        node: String,
    },
    /// A complete list begins: what was known and does not follow until [`Self::Listed`] has gone from the API.
    List,
    /// A pod of this node, listed, added or changed; only what decisions read.
    Pod {
        /// The pod. Requests are those that the kubelet has allocated, where it says so.
        pod: Box<Pod>,
        /// Whether its phase is `Failed` or `Succeeded`, or its deletion has begun: the kubelet is ending it, or has.
        #[serde(default)]
        is_leaving: bool,
    },
    /// The pod has gone from the API.
    PodGone {
        /// Which one.
        uid: PodUid,
    },
    /// A disruption budget of a namespace that has pods here, listed, added or changed.
    Budget {
        /// The budget.
        budget: Box<DisruptionBudget>,
    },
    /// A budget has gone.
    BudgetGone {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The list is complete.
    Listed,
    /// Whether the API server answers: `false` after 5 s without a connection or with errors of the server alone. A
    /// watch that is silent for 90 s (the server sends a bookmark every minute) is a reason to ask.
    Api {
        /// It does.
        is_reachable: bool,
    },
    /// What is known of this node's object.
    Node {
        /// `status.nodeInfo.kubeletVersion`.
        kubelet_version: String,
    },
    /// The arbitrator says which namespaces with pods here use more of the cluster than they deserve. Takes the place
    /// of the list before.
    Overused {
        /// How much longer it holds, milliseconds: [`OVERUSED_FOR_MS`] at most, 0 for a list that is void.
        valid_ms: u64,
        /// Each once, [`OVERUSED_MAX`] at most.
        namespaces: Vec<OverusedNamespace>,
    },
    /// The API server has taken the report of an eviction: the kubelet ends the pod now, with hooks and SIGTERM. Comes
    /// before [`Self::Settled`].
    Reported {
        /// Of which pod.
        uid: PodUid,
    },
    /// The eviction is refused for now (`--evict-by EvictionAPI`, soft thresholds), by a disruption budget or by what
    /// judges evictions as one: another pod may go instead, with [`ToCluster::Withdrawn`] for this one. Else it is
    /// reported all the same when its grace is over.
    Refused {
        /// Of which pod.
        uid: PodUid,
    },
    /// An eviction needs no further report: the intent may be struck.
    Settled {
        /// Of which pod.
        uid: PodUid,
        /// How.
        how: Settled,
    },
}

/// A namespace that uses more of the cluster than it deserves.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OverusedNamespace {
    /// The namespace.
    pub namespace: String,
    /// What it uses beyond what it deserves of the resource in which that is most, in thousandths of the cluster's:
    /// [`EXCESS_MAX`] at most.
    pub excess: u16,
}

/// Why an eviction needs no further report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settled {
    /// The API shows the pod as `Failed` with our reason, or with the annotation after the kubelet dropped the reason,
    /// and the kubelet is done with it.
    Shown,
    /// The pod had ended for another reason; an Event says what happened.
    EndedOtherwise,
    /// The API has no pod of this UID any more.
    Gone,
    /// The API refused it for good, or the kubelet took it back five times; an Event says so where one could be
    /// written.
    GivenUp,
}

/// A frame from the agent to `plimsoll-cluster`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToCluster {
    /// The first frame of a connection. All intents that are not settled follow.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Evictions that were never reported, because more than [`INTENTS_MAX`] waited.
        unreported: u64,
        /// For how long a pod that is evicted for a soft threshold may run on at most, seconds; 0: it is given no time.
        /// `None`: there is no such threshold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        soft_grace_s: Option<u32>,
    },
    /// A pod was evicted, or is being evicted.
    Evicted {
        /// What is to be reported.
        intent: Box<EvictionIntent>,
        /// The pod may run again: see [`ToCluster::LetGo`].
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_let_go: bool,
    },
    /// An eviction that was not begun is not wanted any more; nothing is settled for it.
    Withdrawn {
        /// Of which pod.
        uid: PodUid,
    },
    /// The pod's cgroup is gone: the kubelet has finished, and another PATCH would only be undone.
    CgroupGone {
        /// Of which pod.
        uid: PodUid,
    },
    /// The pod may run again, because the API server has not answered for long: it is not ended for this eviction any
    /// more, unless that is written already.
    LetGo {
        /// Which pod.
        uid: PodUid,
    },
    /// Conditions of this node, all of them.
    Conditions {
        /// Each once.
        conditions: Vec<NodeConditionReport>,
    },
    /// What of this node's allocatable memory cannot be had without meeting an eviction threshold. Sent when it
    /// changes, every 10 s at most.
    Withheld {
        /// Bytes; 0 without pressure.
        memory_bytes: u64,
    },
    /// What the node's NUMA nodes have left. Sent when it changes, where the option asks for it.
    NodeTopology {
        /// All of it.
        topology: Box<NodeTopology>,
    },
}

/// An eviction, as it is to be shown in the API. Kept on disk until it is settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvictionIntent {
    /// The pod's UID: the precondition of every call.
    pub uid: PodUid,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// When it was decided: milliseconds since 1970. Stays the same however late it is reported.
    pub decided_unix_ms: u64,
    /// The signal, as in the configuration (`memory.available`).
    pub signal: String,
    /// The status message: the kubelet's sentence, then rank, comparator and runner-up.
    pub message: String,
    /// Place in the ranking, from 1.
    pub rank: u32,
    /// How many pods were ranked.
    pub ranked: u32,
    /// Line of the journal that has the decision, where there is a journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<u64>,
    /// Grace that the pod was given, seconds; 0 at a hard threshold.
    pub grace_s: u32,
    /// Whether nothing can be started in the pod's cgroup until the API shows its end.
    pub is_held: bool,
    /// `starved_resource` of the kubelet's Event (`memory`, `ephemeral-storage`, …).
    pub starved_resource: String,
    /// `offending_containers` of the kubelet's Event: names, separated by commas.
    pub offending_containers: String,
    /// `offending_containers_usage`: amounts in the same order.
    pub offending_containers_usage: String,
}

/// A condition of this node that Plimsoll sets beside the kubelet's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeConditionReport {
    /// Which one.
    pub condition: PlimsollCondition,
    /// Whether there is trouble.
    pub status: bool,
    /// One word in CamelCase.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// When the status changed: milliseconds since 1970.
    pub since_unix_ms: u64,
}

/// Conditions of Plimsoll. None of them becomes a taint by itself: only the kubelet's do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlimsollCondition {
    /// A memory threshold is met, one on waits for memory among them.
    MemoryPressure,
    /// A threshold on waits for disk or CPU is met.
    Stalled,
    /// A mechanism is lost, or evictions are not reported.
    Degraded,
}

impl PlimsollCondition {
    /// Its `type` in the node's status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemoryPressure => "plimsoll.dev/MemoryPressure",
            Self::Stalled => "plimsoll.dev/Stalled",
            Self::Degraded => "plimsoll.dev/Degraded",
        }
    }
}
