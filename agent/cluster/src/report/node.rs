//! What is said about the node itself: conditions beside the kubelet's, and a taint where the option asks for it.
//!
//! Conditions are a strategic merge by `type`, so that those of the kubelet and of others stay. Taints are one atomic
//! list: it is read, and a JSON patch adds to it, or removes what is found where it was read. So a write of anything
//! else of the node, however often it comes, does not get in the way.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use plimsoll_core::protocol::cluster_link::{
    NodeConditionReport, PlimsollCondition, WITHHELD_ANNOTATION,
};

use crate::backoff::Backoff;
use crate::call::{Answer, Call, Content, Refusal, Verb, cut};
use crate::clock::{Now, rfc3339_s};
use crate::report::body::escaped;
use crate::report::pressure::{OVERUSED, OverusedList, RENEWED_EVERY_MS, withheld_value};

/// Unchanged conditions are written so often, milliseconds: half as often as the kubelet's
/// (`nodeStatusReportFrequency`), for each write goes to all who watch nodes.
const HEARTBEAT_MS: u64 = 600_000;
/// An agent that is gone for longer does not only start anew, milliseconds: what it said is not known any more. As long
/// as a kubelet may be silent (`--node-monitor-grace-period` of kube-controller-manager from 1.32 on).
const LOST_AFTER_MS: u64 = 50_000;
/// Key of the taint.
pub const TAINT_KEY: &str = "plimsoll.dev/memory-pressure";
const TAINT_EFFECT: &str = "NoSchedule";
/// Where the taints of a node are, as a JSON pointer.
const TAINTS: &str = "/spec/taints";
/// All that may be on a node.
const CONDITIONS: [PlimsollCondition; 3] = [
    PlimsollCondition::MemoryPressure,
    PlimsollCondition::Stalled,
    PlimsollCondition::Degraded,
];
/// Status of a condition of which nothing is known.
const UNKNOWN: &str = "Unknown";
/// Bytes of a condition's message.
const MESSAGE_BYTES_MAX: usize = 1024;

/// This node's object, as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenNode {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `status.nodeInfo.kubeletVersion`.
    pub kubelet_version: String,
    /// `spec.taints`, in their order.
    pub taints: Vec<Value>,
    /// Conditions of Plimsoll that are true or false there.
    pub stated: Vec<PlimsollCondition>,
    /// What the arbitrator says of namespaces with pods here.
    pub overused: Option<OverusedList>,
}

impl SeenNode {
    /// Reads a node object.
    #[must_use]
    pub fn read(object: &[u8]) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct ApiNode {
            metadata: Meta,
            #[serde(default)]
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(serde::Deserialize)]
        struct Meta {
            name: String,
            uid: String,
            #[serde(default)]
            annotations: Option<BTreeMap<String, String>>,
        }
        #[derive(serde::Deserialize, Default)]
        struct Spec {
            #[serde(default)]
            taints: Option<Vec<Value>>,
        }
        #[derive(serde::Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            node_info: Info,
            conditions: Option<Vec<ApiCondition>>,
        }
        #[derive(serde::Deserialize, Default)]
        #[serde(default)]
        struct ApiCondition {
            r#type: String,
            status: String,
        }
        #[derive(serde::Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Info {
            kubelet_version: String,
        }
        let node: ApiNode = serde_json::from_slice(object).ok()?;
        let annotations = node.metadata.annotations.unwrap_or_default();
        let overused = annotations.get(OVERUSED);
        let conditions = node.status.conditions.unwrap_or_default();
        let is_stated = |one: &PlimsollCondition| {
            let mut of_type = conditions.iter().filter(|it| it.r#type == one.name());
            of_type.any(|it| it.status != UNKNOWN)
        };
        Some(Self {
            stated: CONDITIONS.into_iter().filter(is_stated).collect(),
            overused: overused.and_then(|text| OverusedList::read(text)),
            name: node.metadata.name,
            uid: node.metadata.uid,
            kubelet_version: node.status.node_info.kubelet_version,
            taints: node.spec.taints.unwrap_or_default(),
        })
    }

    /// Whether the kubelet ends a pod whose status says `Failed`: from 1.22 on. An unknown version counts as a new one.
    #[must_use]
    pub fn kubelet_heeds_status(&self) -> bool {
        let mut numbers = self.kubelet_version.trim_start_matches('v').split('.');
        let mut number = || numbers.next()?.parse::<u32>().ok();
        match (number(), number()) {
            (Some(major), Some(minor)) => (major, minor) >= (1, 22),
            _ => true,
        }
    }

    fn has_taint(&self) -> bool {
        self.taints.iter().any(is_taint)
    }
}

fn is_taint(taint: &Value) -> bool {
    taint["key"] == TAINT_KEY
}

/// What a call about the node is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodePurpose {
    /// Write the conditions.
    Conditions,
    /// Read the node, to change its taints.
    ReadTaints,
    /// Write the taints.
    WriteTaints,
}

/// What the agent wants shown of the node.
#[derive(Debug)]
pub struct NodeReports {
    wanted: Vec<NodeConditionReport>,
    /// What of the node's memory cannot be had, bytes.
    withheld_bytes: u64,
    is_dirty: bool,
    last_written_ms: u64,
    /// When the agent was last connected; nothing: it is.
    lost: Option<Now>,
    /// The conditions that are on their way say that nothing is known.
    sends_unknown: bool,
    /// The API server has them.
    is_unknown: bool,
    /// Whether the taint is to be there; `None`: nothing is known, or it cannot be written.
    wants_taint: Option<bool>,
    /// Whether pressure is to be a taint.
    taints: bool,
    /// It is not, and one that is there from before cannot be taken away.
    leaves_taint: bool,
    /// The node as it was just read, to be written back with the change.
    fresh: Option<SeenNode>,
    /// The last write of the taint met one of somebody else.
    had_conflict: bool,
    in_flight: Option<NodePurpose>,
    not_before_ms: u64,
    backoff: Backoff,
    /// A taint that cannot be written does not keep the conditions from being written.
    taint_not_before_ms: u64,
    taint_backoff: Backoff,
}

impl NodeReports {
    /// Nothing to say so far.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            wanted: Vec::new(),
            withheld_bytes: 0,
            is_dirty: false,
            last_written_ms: 0,
            lost: None,
            sends_unknown: false,
            is_unknown: false,
            wants_taint: None,
            taints: false,
            leaves_taint: false,
            fresh: None,
            had_conflict: false,
            in_flight: None,
            not_before_ms: 0,
            backoff: Backoff::new(seed),
            taint_not_before_ms: 0,
            taint_backoff: Backoff::new(!seed),
        }
    }

    /// The node was registered anew: it has none of the conditions.
    pub const fn note_new_node(&mut self) {
        self.is_dirty |= !self.wanted.is_empty();
    }

    /// Takes all conditions of the agent, each once. Returns those that have just begun. `taints`: whether pressure is
    /// to be a taint; without, one that is there from before goes.
    pub fn want(
        &mut self,
        conditions: Vec<NodeConditionReport>,
        taints: bool,
    ) -> Vec<NodeConditionReport> {
        // What an agent says that has just been started: nothing yet.
        if conditions.is_empty() {
            return conditions;
        }
        let was = |condition| {
            self.wanted
                .iter()
                .any(|known| known.condition == condition && known.status)
        };
        let begun = conditions
            .iter()
            .filter(|new| new.status && !was(new.condition));
        let begun = begun.cloned().collect();
        let was_lost = self.lost.take().is_some();
        self.is_dirty |= was_lost || self.wanted != conditions;
        let pressure = conditions
            .iter()
            .find(|it| it.condition == PlimsollCondition::MemoryPressure);
        self.taints = taints;
        if let Some(pressure) = pressure.filter(|_| taints || !self.leaves_taint) {
            self.wants_taint = Some(pressure.status && taints);
        }
        self.wanted = conditions;
        begun
    }

    /// Takes what the agent says is withheld.
    pub fn withhold(&mut self, memory_bytes: u64) {
        self.is_dirty |= self.withheld_bytes != memory_bytes;
        self.withheld_bytes = memory_bytes;
    }

    /// The agent is gone. What it withheld is not known any more, and no condition has a heartbeat.
    pub fn lose_agent(&mut self, now: Now) {
        self.withhold(0);
        self.lost.get_or_insert(now);
    }

    /// Takes over the conditions and the taint that an earlier agent has left on the node, where no agent has connected
    /// for [`LOST_AFTER_MS`] since this process began: the conditions become `Unknown`, and the taint goes.
    pub fn take_over(&mut self, node: Option<&SeenNode>, now: Now) {
        if !self.wanted.is_empty() {
            return;
        }
        self.lost.get_or_insert(now);
        let Some(node) = node.filter(|_| self.is_lost(now)) else {
            return;
        };
        if node.has_taint() && !self.leaves_taint {
            self.wants_taint = Some(false);
        }
        let left = |condition: &PlimsollCondition| NodeConditionReport {
            condition: *condition,
            status: false,
            reason: String::new(),
            message: String::new(),
            since_unix_ms: now.unix_ms,
        };
        self.wanted = node.stated.iter().map(left).collect();
    }

    /// Whether the agent is gone for good.
    fn is_lost(&self, now: Now) -> bool {
        self.lost
            .is_some_and(|lost| now.mono_ms >= lost.mono_ms.saturating_add(LOST_AFTER_MS))
    }

    /// Whether the taint is to be there; nothing: it is let be. As with the kubelet's, whose taints go when its
    /// conditions are unknown.
    fn taint_wanted(&self, now: Now) -> Option<bool> {
        let is_lost = self.is_lost(now);
        self.wants_taint.map(|wants| wants && !is_lost)
    }

    /// Whether nothing waits but the next heartbeat, or for the node to be seen.
    #[must_use]
    pub fn is_idle(&self, node: Option<&SeenNode>, now: Now) -> bool {
        node.is_none_or(|node| !self.is_dirty && !self.is_taint_due(node, now))
    }

    fn is_taint_left(&self, refusal: &Refusal) -> bool {
        !self.taints && refusal.code == 403 && !refusal.is_foreign
    }

    fn taint_differs(&self, node: &SeenNode, now: Now) -> bool {
        self.taint_wanted(now)
            .is_some_and(|wants| wants != node.has_taint())
    }

    fn is_taint_due(&self, node: &SeenNode, now: Now) -> bool {
        now.mono_ms >= self.taint_not_before_ms && self.taint_differs(node, now)
    }

    /// What to do next.
    #[must_use]
    pub fn next(&self, node: Option<&SeenNode>, now: Now) -> Option<NodePurpose> {
        let node = node?;
        if self.in_flight.is_some() {
            return None;
        }
        if self.is_taint_due(node, now) {
            return Some(match self.fresh {
                Some(_) => NodePurpose::WriteTaints,
                None => NodePurpose::ReadTaints,
            });
        }
        if now.mono_ms < self.not_before_ms {
            return None;
        }
        // What is withheld would be void before the next heartbeat.
        let every_ms = if self.withheld_bytes > 0 {
            RENEWED_EVERY_MS
        } else {
            HEARTBEAT_MS
        };
        let is_due = match self.lost {
            None => now.mono_ms.saturating_sub(self.last_written_ms) >= every_ms,
            // A heartbeat would say that someone has looked.
            Some(_) => self.is_lost(now) && !self.is_unknown,
        };
        (!self.wanted.is_empty() && (self.is_dirty || is_due)).then_some(NodePurpose::Conditions)
    }

    /// The call, which is then on its way.
    pub fn send(&mut self, purpose: NodePurpose, name: &str, now: Now, dry_run: bool) -> Call {
        self.in_flight = Some(purpose);
        let path = format!("/api/v1/nodes/{}", escaped(name));
        match purpose {
            NodePurpose::Conditions => {
                self.is_dirty = false;
                self.sends_unknown = self.is_lost(now);
                let heard = self.lost.unwrap_or(now);
                let shown = |wanted: &NodeConditionReport| {
                    if self.sends_unknown {
                        unknown(wanted, heard)
                    } else {
                        condition(wanted, heard)
                    }
                };
                conditions_call(
                    name,
                    self.wanted.iter().map(shown).collect(),
                    withheld_value(self.withheld_bytes, now.unix_ms),
                    dry_run,
                )
            }
            NodePurpose::ReadTaints => Call::get("nodes", path),
            NodePurpose::WriteTaints => {
                let fresh = self.fresh.take().unwrap_or_default();
                taints_call(&fresh, self.taint_wanted(now) == Some(true), dry_run)
            }
        }
    }

    /// What came of it. Returns the node where the answer shows it.
    pub fn answered(
        &mut self,
        purpose: NodePurpose,
        answer: &Answer,
        now: Now,
    ) -> Option<SeenNode> {
        self.in_flight = None;
        match purpose {
            NodePurpose::Conditions => {
                self.conditions_answered(answer, now);
                None
            }
            NodePurpose::ReadTaints | NodePurpose::WriteTaints => {
                self.taints_answered(purpose, answer, now)
            }
        }
    }

    fn conditions_answered(&mut self, answer: &Answer, now: Now) {
        if let Answer::Done(_) = answer {
            self.last_written_ms = now.mono_ms;
            self.is_unknown = self.sends_unknown;
            self.backoff.reset();
        } else {
            self.is_dirty = true;
            let wait_ms = self.backoff.wait_at_least_ms(answer.retry_after_ms());
            self.not_before_ms = now.mono_ms + wait_ms;
        }
    }

    fn taints_answered(
        &mut self,
        purpose: NodePurpose,
        answer: &Answer,
        now: Now,
    ) -> Option<SeenNode> {
        match answer {
            Answer::Done(body) => {
                let node = SeenNode::read(body);
                if purpose == NodePurpose::ReadTaints {
                    self.fresh.clone_from(&node);
                } else {
                    // Removed once: another process may hear an agent that this one does not, and set it again.
                    if self.is_lost(now) && node.as_ref().is_some_and(|node| !node.has_taint()) {
                        self.wants_taint = None;
                    }
                    self.had_conflict = false;
                    // Something may have undone it on the way.
                    if node
                        .as_ref()
                        .is_none_or(|node| self.taint_differs(node, now))
                    {
                        let wait_ms = self.taint_backoff.wait_ms();
                        self.taint_not_before_ms = now.mono_ms + wait_ms;
                    } else {
                        self.taint_backoff.reset();
                    }
                }
                return node;
            }
            // Somebody else wrote the taints in between: read again, at once the first time.
            Answer::Refused(refusal)
                if purpose == NodePurpose::WriteTaints
                    && matches!(refusal.code, 409 | 422)
                    && !std::mem::replace(&mut self.had_conflict, true) => {}
            // The right goes with the option.
            Answer::Refused(refusal) if self.is_taint_left(refusal) => {
                (self.leaves_taint, self.wants_taint) = (true, None);
            }
            Answer::Refused(_) | Answer::Lost(_) => {
                let asked_ms = answer.retry_after_ms();
                let wait_ms = self.taint_backoff.wait_at_least_ms(asked_ms);
                self.taint_not_before_ms = now.mono_ms + wait_ms;
            }
        }
        None
    }
}

/// `heard`: when the agent was last known to hold to it.
fn condition(report: &NodeConditionReport, heard: Now) -> Value {
    json!({
        "type": report.condition.name(),
        "status": if report.status { "True" } else { "False" },
        "reason": report.reason,
        "message": cut(&report.message, MESSAGE_BYTES_MAX),
        "lastHeartbeatTime": rfc3339_s(heard.unix_ms),
        "lastTransitionTime": rfc3339_s(report.since_unix_ms),
    })
}

/// As the node controller has the conditions of a kubelet that is silent.
fn unknown(report: &NodeConditionReport, heard: Now) -> Value {
    json!({
        "type": report.condition.name(),
        "status": UNKNOWN,
        "reason": "AgentStatusUnknown",
        "message": "plimsoll-agent is not connected to plimsoll-cluster any more: look at its log on the node",
        "lastHeartbeatTime": rfc3339_s(heard.unix_ms),
        "lastTransitionTime": rfc3339_s(heard.unix_ms),
    })
}

/// `withheld`: the annotation; nothing takes it away. The status subresource lets annotations through.
fn conditions_call(
    name: &str,
    conditions: Vec<Value>,
    withheld: Option<String>,
    dry_run: bool,
) -> Call {
    let path = format!("/api/v1/nodes/{}/status", escaped(name));
    let body = json!({
        "metadata": {"annotations": {WITHHELD_ANNOTATION: withheld}},
        "status": {"conditions": conditions},
    });
    Call::write(
        Verb::Patch,
        "nodes/status",
        &path,
        Content::StrategicMerge,
        &body,
        dry_run,
    )
}

/// Adds or removes the taint, and touches no other. Refused (422) where the list is not any more as `node` has it.
fn taints_call(node: &SeenNode, wanted: bool, dry_run: bool) -> Call {
    // Not the node that has got its name since.
    let mut steps = vec![json!({"op": "test", "path": "/metadata/uid", "value": node.uid})];
    let taint = json!({"key": TAINT_KEY, "effect": TAINT_EFFECT});
    if wanted && node.taints.is_empty() {
        steps.push(json!({"op": "test", "path": TAINTS, "value": null}));
        steps.push(json!({"op": "add", "path": TAINTS, "value": [taint]}));
    } else if wanted {
        steps.push(json!({"op": "add", "path": format!("{TAINTS}/-"), "value": taint}));
    } else {
        // From the end, so that no place changes before its turn.
        let ours = node.taints.iter().enumerate().rev();
        for (at, _) in ours.filter(|(_, taint)| is_taint(taint)) {
            let path = format!("{TAINTS}/{at}");
            steps.push(json!({"op": "test", "path": format!("{path}/key"), "value": TAINT_KEY}));
            steps.push(json!({"op": "remove", "path": path}));
        }
    }
    let path = format!("/api/v1/nodes/{}", escaped(&node.name));
    Call::write(
        Verb::Patch,
        "nodes",
        &path,
        Content::JsonPatch,
        &Value::Array(steps),
        dry_run,
    )
}

/// Takes everything of Plimsoll off the node: its taint where there is one, its conditions, and what it withheld.
#[must_use]
pub fn removal(node: &SeenNode, dry_run: bool) -> Vec<Call> {
    let conditions = CONDITIONS
        .map(|it| json!({"type": it.name(), "$patch": "delete"}))
        .to_vec();
    let taint = node.has_taint().then(|| taints_call(node, false, dry_run));
    let rest = conditions_call(&node.name, conditions, None, dry_run);
    taint.into_iter().chain([rest]).collect()
}

#[cfg(test)]
mod tests;
