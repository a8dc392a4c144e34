//! What this node's NUMA nodes have left, as its NodeResourceTopology object (`topology.node.k8s.io/v1alpha2`).
//!
//! **Problem.** A scheduler reads one object of each node, and others write such objects too (node-feature-discovery,
//! the resource topology exporter): two writers undo each other, and the scheduler believes either. **Approach.**
//! Server-side apply without `force`: the API server itself refuses what another manager has set (409), in the same
//! step as the write, so nothing is read before and no moment is between. Such an object is left alone, and looked at
//! again every [`FOREIGN_AGAIN_MS`]. Where the resource is not installed (404) it is tried again every
//! [`ABSENT_AGAIN_MS`].
//!
//! A change is written at once, but no two writes are closer than [`WRITE_EVERY_MS`]; what has not changed every
//! [`HEARTBEAT_MS`], for the object may have been deleted.

use std::collections::BTreeMap;

use plimsoll_core::kube::node_resource_topology::{KnownPod, ListedPod, NodeTopology};
use serde_json::{Value, json};

use crate::backoff::Backoff;
use crate::call::{Answer, Call, Content, Refusal, Verb};
use crate::clock::Now;
use crate::report::body::escaped;
use crate::report::node::SeenNode;
use crate::store::Store;

/// As RBAC names it.
pub const RESOURCE: &str = "noderesourcetopologies";
const API_VERSION: &str = "topology.node.k8s.io/v1alpha2";
/// No two writes are closer, milliseconds.
const WRITE_EVERY_MS: u64 = 3_000;
/// What has not changed is written so often, milliseconds: the API server stores nothing then.
const HEARTBEAT_MS: u64 = 300_000;
/// Another writer may have gone, milliseconds.
const FOREIGN_AGAIN_MS: u64 = 60_000;
/// The resource may have been installed, milliseconds.
const ABSENT_AGAIN_MS: u64 = 30_000;
/// How often the object is put together anew although the agent says nothing: a pod may have ended.
const LOOK_EVERY_MS: u64 = 1_000;

/// How the object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ObjectState {
    /// The agent has said nothing of it, or it was not tried yet.
    #[default]
    Unknown,
    /// Written.
    Written,
    /// Another one writes it.
    Foreign,
    /// The cluster has no such resource.
    Absent,
    /// Refused for another reason, or not answered.
    Failed,
}

impl ObjectState {
    /// All but the unknown one, with their names in metrics.
    pub const NAMED: [(Self, &'static str); 4] = [
        (Self::Written, "written"),
        (Self::Foreign, "foreign"),
        (Self::Absent, "absent"),
        (Self::Failed, "failed"),
    ];
}

/// The writer of one object.
#[derive(Debug)]
pub struct TopologyReports {
    /// What the agent says.
    topology: Option<NodeTopology>,
    /// The object that is to be there, and since when it differs from what was written.
    wanted: Option<Value>,
    differs_since_ms: Option<u64>,
    looked_ms: Option<u64>,
    written: Option<Value>,
    /// On its way.
    in_flight: Option<Value>,
    sent_ms: Option<u64>,
    not_before_ms: u64,
    backoff: Backoff,
    state: ObjectState,
    /// For people, to be taken by [`Self::words`].
    words: Vec<String>,
}

impl TopologyReports {
    /// Nothing to say so far.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            topology: None,
            wanted: None,
            differs_since_ms: None,
            looked_ms: None,
            written: None,
            in_flight: None,
            sent_ms: None,
            not_before_ms: 0,
            backoff: Backoff::new(seed),
            state: ObjectState::Unknown,
            words: Vec::new(),
        }
    }

    /// Takes what the agent says.
    pub fn want(&mut self, topology: NodeTopology) {
        self.topology = Some(topology);
        self.looked_ms = None;
    }

    /// Puts the object together, where that is due.
    fn look(&mut self, node: &SeenNode, pods: &Store, now: Now) {
        let looked_ms = self.looked_ms;
        let is_due = looked_ms.is_none_or(|looked_ms| now.mono_ms >= looked_ms + LOOK_EVERY_MS);
        let Some(topology) = self.topology.as_ref().filter(|_| is_due) else {
            return;
        };
        self.looked_ms = Some(now.mono_ms);
        let wanted = object(topology, node, pods);
        if self.written.as_ref() == Some(&wanted) {
            self.differs_since_ms = None;
        } else {
            self.differs_since_ms.get_or_insert(now.mono_ms);
        }
        self.wanted = Some(wanted);
    }

    /// Whether a call can be made now.
    pub fn prepare(&mut self, node: Option<&SeenNode>, pods: &Store, now: Now) -> bool {
        let Some(node) = node else { return false };
        self.look(node, pods, now);
        if self.wanted.is_none() || self.in_flight.is_some() || now.mono_ms < self.not_before_ms {
            return false;
        }
        let Some(sent_ms) = self.sent_ms else {
            return true;
        };
        let every_ms = match self.differs_since_ms {
            Some(_) => WRITE_EVERY_MS,
            None => HEARTBEAT_MS,
        };
        now.mono_ms >= sent_ms + every_ms
    }

    /// The call, which is then on its way.
    pub fn send(&mut self, node_name: &str, now: Now, dry_run: bool) -> Call {
        self.sent_ms = Some(now.mono_ms);
        self.in_flight.clone_from(&self.wanted);
        let path = object_path(node_name);
        let body = self.wanted.as_ref().unwrap_or(&Value::Null);
        Call::write(
            Verb::Patch,
            RESOURCE,
            &path,
            Content::ApplyUnlessForeign,
            body,
            dry_run,
        )
    }

    /// What came of it.
    pub fn answered(&mut self, answer: &Answer, now: Now) {
        let sent = self.in_flight.take();
        let state = match answer {
            Answer::Done(_) => {
                self.backoff.reset();
                self.written = sent;
                // It is put together anew before the next write: then it differs or not.
                (self.differs_since_ms, self.looked_ms) = (None, None);
                ObjectState::Written
            }
            Answer::Refused(Refusal {
                code: 409,
                is_foreign: false,
                ..
            }) => {
                self.not_before_ms = now.mono_ms + FOREIGN_AGAIN_MS;
                ObjectState::Foreign
            }
            // Of a resource that is not installed, which is no Status.
            Answer::Refused(Refusal { code: 404, .. }) => {
                self.not_before_ms = now.mono_ms + ABSENT_AGAIN_MS;
                ObjectState::Absent
            }
            Answer::Refused(_) | Answer::Lost(_) => {
                let wait_ms = self.backoff.wait_at_least_ms(answer.retry_after_ms());
                self.not_before_ms = now.mono_ms + wait_ms;
                ObjectState::Failed
            }
        };
        if !matches!(answer, Answer::Done(_)) {
            // What is there is not known.
            self.written = None;
        }
        if std::mem::replace(&mut self.state, state) != state {
            self.words.extend(self.word(answer));
        }
    }

    /// What there is to say of a new state. Other refusals are said where all are.
    fn word(&self, answer: &Answer) -> Option<String> {
        match (self.state, answer) {
            (ObjectState::Foreign, Answer::Refused(refusal)) => Some(format!(
                "the NodeResourceTopology of this node is written by another program and is left alone: {}; end one of the two writers",
                refusal.message
            )),
            (ObjectState::Absent, _) => Some(format!(
                "the cluster has no {RESOURCE}.{API_VERSION}: install the resource of the scheduler's plugin, or leave out --node-resource-topology; it is looked for every {} s",
                ABSENT_AGAIN_MS / 1_000
            )),
            (ObjectState::Written, _) => {
                Some("the NodeResourceTopology of this node is written".to_owned())
            }
            _ => None,
        }
    }

    /// What is to be said since the last time.
    pub fn words(&mut self) -> Vec<String> {
        std::mem::take(&mut self.words)
    }

    /// Whether nothing waits but the next heartbeat.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let waits_long = matches!(self.state, ObjectState::Foreign | ObjectState::Absent);
        self.topology.is_none()
            || waits_long
            || self.differs_since_ms.is_none() && self.looked_ms.is_some()
    }

    /// How the object is, and for how long it is not as it should be, milliseconds.
    #[must_use]
    pub fn state(&self, now: Now) -> (ObjectState, u64) {
        let since_ms = self.differs_since_ms.unwrap_or(now.mono_ms);
        (self.state, now.mono_ms.saturating_sub(since_ms))
    }
}

/// Where the object of a node is.
#[must_use]
pub fn object_path(node_name: &str) -> String {
    format!("/apis/{API_VERSION}/{RESOURCE}/{}", escaped(node_name))
}

/// Whether the object of a `GET` was written here.
#[must_use]
pub fn is_written_here(object: &[u8]) -> bool {
    let object: Value = serde_json::from_slice(object).unwrap_or_default();
    let entries = object["metadata"]["managedFields"].as_array();
    entries.into_iter().flatten().any(|entry| {
        entry["manager"] == "plimsoll"
            && entry["operation"] == "Apply"
            && entry["fieldsV1"].get("f:zones").is_some()
    })
}

fn object(topology: &NodeTopology, node: &SeenNode, pods: &Store) -> Value {
    let mut known = BTreeMap::<(&str, &str), KnownPod<'_>>::new();
    for pod in pods.iter() {
        let now = KnownPod {
            has_ended: pod.phase.is_terminal(),
            requests: pod.exclusive.as_ref(),
        };
        let one = known.entry((&pod.namespace, &pod.name)).or_insert(now);
        // One of the same name that has not gone yet.
        if one.has_ended && !now.has_ended {
            *one = now;
        }
    }
    let known = |pod: &ListedPod| {
        let key = (pod.namespace.as_str(), pod.name.as_str());
        known.get(&key).copied().unwrap_or_default()
    };
    let topology = topology.clone().without(known);
    json!({
        "apiVersion": API_VERSION,
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": node.name,
            // It goes with its node.
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}],
        },
        "attributes": topology.attributes(topology.fingerprint(known)),
        "zones": topology.named_zones(),
    })
}

#[cfg(test)]
mod tests;
