//! What is said over the control socket.

use std::sync::Arc;

use plimsoll_core::explain::{EvictionExplanation, OomExplanation, PlacementExplanation};
use plimsoll_core::placement::numa_zones::AgentPlacement;
use serde::{Deserialize, Serialize};

use crate::kernel::AccountReport;
use crate::serve::explained::{ExplainedMemory, ExplainedThrottling};
use crate::serve::overview::Overview;

/// The version of the protocol. A change that an older client cannot read raises it.
pub const VERSION: u32 = 1;

/// A question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(
    tag = "request",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Request {
    /// Thresholds, the ranking, who would go next.
    ExplainEviction {
        /// The signal to rank for; else the one that is nearest to its threshold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<String>,
        /// A pod to look at: `namespace/name`, a name that only one has, or a UID.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<String>,
    },
    /// The order in which the kernel's OOM killer would choose.
    ExplainOom {
        /// A pod to look at, as above.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<String>,
    },
    /// Who is throttled or held back, what is given, and why no more.
    ExplainThrottling {
        /// A pod to look at, as above.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<String>,
    },
    /// What pods have of memory, and what their limits have cost them.
    ExplainMemory {
        /// A pod to look at, as above.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<String>,
    },
    /// Whether the loop answers, and whether it knows its pods.
    Health,
    /// Where every record of the kernel went.
    Records,
    /// The node at a glance.
    Overview,
    /// Which CPUs and NUMA nodes pods have, and how they came there.
    ExplainPlacement {
        /// A pod to look at, as above.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<String>,
    },
    /// What the agent has placed, as it counts in what NUMA nodes have left.
    AgentPlacement,
}

/// The answer to a question that could be answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// To [`Request::ExplainEviction`].
    Eviction(Box<EvictionExplanation>),
    /// To [`Request::ExplainOom`].
    Oom(Box<OomExplanation>),
    /// To [`Request::ExplainThrottling`].
    Throttling(Box<ExplainedThrottling>),
    /// To [`Request::ExplainMemory`].
    Memory(Box<ExplainedMemory>),
    /// To [`Request::ExplainPlacement`].
    Placement(Box<PlacementExplanation>),
    /// To [`Request::AgentPlacement`]; `None` where no policy of the agent's places anything.
    AgentPlacement(Option<Box<AgentPlacement>>),
    /// To [`Request::Health`]: the loop answers, or there would be a refusal.
    Health(Health),
    /// To [`Request::Records`]; `None` where no BPF program sends any.
    Records(Option<AccountReport>),
    /// To [`Request::Overview`].
    Overview(Arc<Overview>),
}

/// How an agent is whose loop answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// The pods are listed, and every source is open.
    pub ready: bool,
    /// Pods that are wanted.
    pub pods: usize,
}

/// Why a question is not answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub kind: RefusalKind,
    /// For people, with what to do.
    pub message: String,
}

/// Why a question is not answered, for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefusalKind {
    /// The request cannot be read.
    BadRequest,
    /// Another version of the protocol.
    Version,
    /// Too many clients, or a loop that has no time.
    Busy,
    /// No pod has that name.
    UnknownPod,
    /// Several pods have that name.
    AmbiguousPod,
    /// No such signal, or none that this agent can observe.
    UnknownSignal,
    /// The agent has not looked at the node yet.
    NotReady,
    /// No policy of the agent's places anything.
    NothingPlaced,
}

impl Refusal {
    /// One of that kind.
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

/// A whole answering line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reply {
    /// It could be answered.
    Answer(Answer),
    /// It could not.
    Error(Refusal),
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    v: u32,
    #[serde(flatten)]
    body: T,
}

#[derive(Deserialize)]
struct VersionOnly {
    v: u32,
}

impl Request {
    /// The line, ended.
    pub fn to_line(&self) -> String {
        line(self)
    }

    /// Reads a line.
    ///
    /// # Errors
    /// [`RefusalKind::BadRequest`] or [`RefusalKind::Version`].
    pub fn of_line(line: &[u8]) -> Result<Self, Refusal> {
        let bad = |error: serde_json::Error| {
            Refusal::new(
                RefusalKind::BadRequest,
                format!(
                    "malformed request: {error}; example: {}",
                    Self::ExplainOom { pod: None }.to_line().trim_end()
                ),
            )
        };
        let VersionOnly { v } = serde_json::from_slice(line).map_err(bad)?;
        if v != VERSION {
            return Err(Refusal::new(
                RefusalKind::Version,
                format!(
                    "this agent ({}) speaks version {VERSION} of the control protocol, not {v}; use the plimsoll that it was started from",
                    env!("CARGO_PKG_VERSION")
                ),
            ));
        }
        // `v` is known here; what is left is the request, in which no field is unknown.
        let mut fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(line).map_err(bad)?;
        fields.remove("v");
        serde_json::from_value(fields.into()).map_err(bad)
    }
}

impl Reply {
    /// The line, ended.
    pub fn to_line(&self) -> String {
        line(self)
    }

    /// Reads a line.
    ///
    /// # Errors
    /// What serde says: another version's, or no answer at all.
    pub fn of_line(line: &[u8]) -> Result<Self, serde_json::Error> {
        let VersionOnly { v } = serde_json::from_slice(line)?;
        if v != VERSION {
            return Err(serde::de::Error::custom(format!(
                "the agent speaks version {v} of the control protocol, this command {VERSION}: use the plimsoll that the agent was started from"
            )));
        }
        serde_json::from_slice::<Versioned<Self>>(line).map(|reply| reply.body)
    }
}

impl From<Result<Answer, Refusal>> for Reply {
    fn from(result: Result<Answer, Refusal>) -> Self {
        match result {
            Ok(answer) => Self::Answer(answer),
            Err(refusal) => Self::Error(refusal),
        }
    }
}

fn line(body: &impl Serialize) -> String {
    // These types have only fields that JSON can hold, and keys that are text.
    let mut text = serde_json::to_string(&Versioned { v: VERSION, body }).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_versioned_line() {
        let request = Request::ExplainEviction {
            signal: Some("pid.available".to_owned()),
            pod: None,
        };
        let line = request.to_line();
        assert_eq!(
            line,
            "{\"v\":1,\"request\":\"explainEviction\",\"signal\":\"pid.available\"}\n"
        );
        assert_eq!(Request::of_line(line.as_bytes()), Ok(request));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (line, kind) in [
            ("", RefusalKind::BadRequest),
            ("{}", RefusalKind::BadRequest),
            ("[1]", RefusalKind::BadRequest),
            (r#"{"v":1}"#, RefusalKind::BadRequest),
            (r#"{"v":1,"request":"evict"}"#, RefusalKind::BadRequest),
            (
                r#"{"v":1,"request":"explainOom","pot":"a"}"#,
                RefusalKind::BadRequest,
            ),
            (
                r#"{"v":1,"request":"explainOom","pod":7}"#,
                RefusalKind::BadRequest,
            ),
            (r#"{"v":2,"request":"explainOom"}"#, RefusalKind::Version),
            ("\u{0}\u{1}", RefusalKind::BadRequest),
        ] {
            let refusal = Request::of_line(line.as_bytes()).unwrap_err();
            assert_eq!(refusal.kind, kind, "{line}: {refusal}");
        }
        assert!(Request::of_line(b"\xff\xfe").is_err());
        let deep = "[".repeat(60_000);
        assert!(Request::of_line(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_reply_is_read_back() {
        let reply = Reply::Error(Refusal::new(RefusalKind::Busy, "later"));
        let line = reply.to_line();
        assert_eq!(
            line,
            "{\"v\":1,\"error\":{\"kind\":\"busy\",\"message\":\"later\"}}\n"
        );
        assert_eq!(Reply::of_line(line.as_bytes()).unwrap(), reply);
        let other = Reply::of_line(br#"{"v":9,"answer":{}}"#).unwrap_err();
        assert!(other.to_string().contains("version 9"), "{other}");
    }
}
