//! Nodes.

use std::collections::BTreeMap;

use plimsoll_core::arbitration::cluster::NodeState;
use plimsoll_core::arbitration::named::Named;
use plimsoll_core::arbitration::units::Rounding;
use plimsoll_core::protocol::cluster_link::WITHHELD_ANNOTATION;
use serde::Deserialize;
use serde_json::Value;

use super::{Meta, Texts, amounts, read};
use crate::clock::{Now, unix_ms_of};
use crate::report::pressure::{OVERUSED, read_withheld};

/// Three heartbeats of a condition of Plimsoll, milliseconds.
const PRESSED_FOR_MS: u64 = 1_800_000;

/// A taint of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub(in crate::arbitrate) key: String,
    pub(in crate::arbitrate) value: Option<String>,
    pub(in crate::arbitrate) effect: String,
}

impl Taint {
    /// Whether pods that do not tolerate it cannot start there.
    #[must_use]
    pub fn keeps_away(&self) -> bool {
        matches!(self.effect.as_str(), "NoSchedule" | "NoExecute")
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenNode {
    /// UID.
    pub uid: String,
    /// For pods.
    pub allocatable: Named,
    /// What of that cannot be had under pressure.
    pub withheld: Named,
    /// When it said so, milliseconds since 1970 by its clock.
    pub withheld_at_unix_ms: u64,
    /// `Ready` is true.
    pub is_ready: bool,
    /// `spec.unschedulable`.
    pub is_cordoned: bool,
    /// Its kubelet says that it is short of something.
    pub kubelet_has_pressure: bool,
    /// Its agent says that it is short of memory, and said so last at this time, milliseconds since 1970 by the node's
    /// clock.
    pub pressed_at_unix_ms: Option<u64>,
    /// Labels.
    pub labels: Texts,
    /// Taints that keep pods away.
    pub taints: Vec<Taint>,
    /// The value of [`OVERUSED`].
    pub overused: Option<String>,
}

impl SeenNode {
    /// Whether it is short of something. The condition of an agent counts for [`PRESSED_FOR_MS`] after its last
    /// heartbeat: an agent that has gone cannot take it back.
    #[must_use]
    pub fn has_pressure(&self, now: Now) -> bool {
        let is_new = |at_unix_ms: u64| now.unix_ms.saturating_sub(at_unix_ms) < PRESSED_FOR_MS;
        self.kubelet_has_pressure || self.pressed_at_unix_ms.is_some_and(is_new)
    }

    /// Whether pods can start there.
    #[must_use]
    pub fn state(&self, now: Now) -> NodeState {
        NodeState::of(self.is_ready, self.is_cordoned, self.has_pressure(now))
    }

    /// Reads one, with its name.
    ///
    /// # Errors
    /// What serde says.
    pub fn read(object: &[u8]) -> Result<(String, Self), String> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct ApiNode {
            metadata: Meta,
            spec: Spec,
            status: Status,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Spec {
            unschedulable: bool,
            taints: Option<Vec<Taint>>,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Status {
            allocatable: Option<BTreeMap<String, Value>>,
            conditions: Option<Vec<NodeCondition>>,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct NodeCondition {
            r#type: String,
            status: String,
            #[serde(rename = "lastHeartbeatTime")]
            heard: Option<String>,
        }
        let node: ApiNode = read(object)?;
        let conditions = node.status.conditions.unwrap_or_default();
        let true_one = |name: &str| {
            let mut of_name = conditions.iter().filter(|it| it.r#type == name);
            of_name.find(|it| it.status == "True")
        };
        let pressed = true_one(NodeState::AGENT_PRESSURE);
        let pressed_at = pressed.map(|it| unix_ms_of(it.heard.as_deref()?));
        let mut annotations = node.metadata.annotations.unwrap_or_default();
        let withheld = annotations.get(WITHHELD_ANNOTATION);
        let withheld = withheld.and_then(|text| read_withheld(text));
        let (withheld_at_unix_ms, withheld) = withheld.unwrap_or_default();
        let taints = node.spec.taints.unwrap_or_default();
        let seen = Self {
            uid: node.metadata.uid,
            allocatable: amounts(node.status.allocatable, Rounding::Down),
            withheld: amounts(Some(withheld), Rounding::Up),
            withheld_at_unix_ms,
            is_ready: true_one("Ready").is_some(),
            is_cordoned: node.spec.unschedulable,
            kubelet_has_pressure: NodeState::KUBELET_PRESSURE
                .into_iter()
                .any(|name| true_one(name).is_some()),
            // One without a time is as old as can be.
            pressed_at_unix_ms: pressed_at.map(Option::unwrap_or_default),
            labels: node.metadata.labels.unwrap_or_default(),
            taints: taints.into_iter().filter(Taint::keeps_away).collect(),
            overused: annotations.remove(OVERUSED),
        };
        Ok((node.metadata.name, seen))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pressure_that_an_agent_has_left_behind_ends() {
        let heard = "2026-11-22T10:00:00Z";
        let node = |kind: &str, heard: Option<&str>| {
            let object = json!({"metadata": {"name": "n", "uid": "u"}, "status": {"conditions": [
                {"type": "Ready", "status": "True"}, {"type": kind, "status": "True", "lastHeartbeatTime": heard},
            ]}});
            SeenNode::read(object.to_string().as_bytes()).unwrap().1
        };
        let after = |minutes: u64| Now {
            mono_ms: 0,
            unix_ms: unix_ms_of(heard).unwrap() + minutes * 60_000,
        };
        let pressed = node(NodeState::AGENT_PRESSURE, Some(heard));
        assert_eq!(pressed.state(after(0)), NodeState::Cordoned);
        assert_eq!(pressed.state(after(29)), NodeState::Cordoned);
        assert_eq!(pressed.state(after(30)), NodeState::Ready);
        // A clock that is behind.
        let now = Now {
            mono_ms: 0,
            unix_ms: 0,
        };
        assert!(pressed.has_pressure(now));
        assert!(!node(NodeState::AGENT_PRESSURE, None).has_pressure(after(0)));
        // The node controller sees to the kubelet's.
        assert!(node("MemoryPressure", Some(heard)).has_pressure(after(9_000)));
    }
}
