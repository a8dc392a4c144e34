//! Nodes.

use std::collections::BTreeMap;

use plimsoll_core::arbitration::cluster::NodeState;
use plimsoll_core::arbitration::named::Named;
use plimsoll_core::arbitration::units::Rounding;
use serde::Deserialize;
use serde_json::Value;

use super::{Meta, Texts, amounts, read};
use crate::report::pressure::{OVERUSED, WITHHELD, read_withheld};

/// A taint of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
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
    /// It says that it is short of something.
    pub has_pressure: bool,
    /// Labels.
    pub labels: Texts,
    /// Taints that keep pods away.
    pub taints: Vec<Taint>,
    /// The value of [`OVERUSED`].
    pub overused: Option<String>,
}

impl SeenNode {
    /// Whether pods can start there.
    #[must_use]
    pub fn state(&self) -> NodeState {
        NodeState::of(self.is_ready, self.is_cordoned, self.has_pressure)
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
        }
        let node: ApiNode = read(object)?;
        let conditions = node.status.conditions.unwrap_or_default();
        let is_true = |names: &[&str]| {
            conditions.iter().any(|condition| {
                names.contains(&condition.r#type.as_str()) && condition.status == "True"
            })
        };
        let mut annotations = node.metadata.annotations.unwrap_or_default();
        let withheld = annotations.get(WITHHELD);
        let withheld = withheld.and_then(|text| read_withheld(text));
        let (withheld_at_unix_ms, withheld) = withheld.unwrap_or_default();
        let taints = node.spec.taints.unwrap_or_default();
        let seen = Self {
            uid: node.metadata.uid,
            allocatable: amounts(node.status.allocatable, Rounding::Down),
            withheld: amounts(Some(withheld), Rounding::Up),
            withheld_at_unix_ms,
            is_ready: is_true(&["Ready"]),
            is_cordoned: node.spec.unschedulable,
            has_pressure: is_true(&NodeState::PRESSURE),
            labels: node.metadata.labels.unwrap_or_default(),
            taints: taints.into_iter().filter(Taint::keeps_away).collect(),
            overused: annotations.remove(OVERUSED),
        };
        Ok((node.metadata.name, seen))
    }
}
