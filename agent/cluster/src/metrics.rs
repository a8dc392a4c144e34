//! What is counted, in the text format of Prometheus.

mod arbitration;

pub use arbitration::Arbitration;

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_core::shown::line;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::report::Figures;
use crate::report::topology::ObjectState;
use crate::store::Dropped;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    verb: &'static str,
    resource: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    of: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    answer: &'static str,
}

/// Names and help of what both programs have.
const API_CALLS: (&str, &str) = (
    "api_calls",
    "Calls of the API server by verb, resource and status code; 0 where no answer came",
);
const WATCH_RESTARTS: (&str, &str) = (
    "watch_restarts",
    "Watches that began with a new list, by resource",
);

/// A metric that the registry shows from now on.
fn registered<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// The same, with its unit in its name.
fn in_seconds(registry: &mut Registry, name: &str, help: &str) -> Gauge<f64, AtomicU64> {
    let gauge = Gauge::default();
    registry.register_with_unit(name, help, Unit::Seconds, gauge.clone());
    gauge
}

/// Sets a counter to what was counted elsewhere, which never falls.
fn count(counter: &Counter, total: u64) {
    counter.inner().store(total, Ordering::Relaxed);
}

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    calls: Family<CallLabels, Counter>,
    restarts: Family<Of, Counter>,
    dropped: Family<Of, Counter>,
    settled: Family<Of, Counter>,
    topology: Family<Of, Gauge>,
    unwritten_topology: Gauge<f64, AtomicU64>,
    pods: Gauge,
    unreported: Gauge,
    unsettled: Gauge,
    oldest: Gauge<f64, AtomicU64>,
    is_reachable: Gauge,
    is_agent_connected: Gauge,
    is_node_known: Gauge,
    /// Of the arbitrator.
    is_ready: Gauge,
    reviews: Family<Answered, Counter>,
    webhook: Gauge,
    /// A word that is said once and not with each repetition.
    last_said: Mutex<String>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("plimsoll_cluster");
        let shown = &mut registry;
        Self {
            calls: registered(shown, API_CALLS.0, API_CALLS.1),
            restarts: registered(shown, WATCH_RESTARTS.0, WATCH_RESTARTS.1),
            dropped: registered(
                shown,
                "dropped",
                "What was not taken or not written: objects of the API server by reason, Events, intents",
            ),
            settled: registered(
                shown,
                "settled_evictions",
                "Evictions that need no further report, by how they ended",
            ),
            pods: registered(shown, "pods", "Pods of this node that are known"),
            unreported: registered(
                shown,
                "unreported_evictions",
                "Evictions that the API server has not taken",
            ),
            unsettled: registered(
                shown,
                "unsettled_evictions",
                "Evictions that are not settled",
            ),
            oldest: in_seconds(
                shown,
                "oldest_unreported_eviction_age",
                "Age of the oldest eviction that the API server has not taken",
            ),
            is_reachable: registered(shown, "api_reachable", "Whether the API server answers"),
            is_agent_connected: registered(
                shown,
                "agent_connected",
                "Whether plimsoll-agent is connected",
            ),
            is_node_known: registered(
                shown,
                "node_known",
                "Whether the API server has a node of this name",
            ),
            topology: registered(
                shown,
                "node_topology",
                "Whether the NodeResourceTopology of this node is written, another program's, not installed, or refused",
            ),
            unwritten_topology: in_seconds(
                shown,
                "unwritten_node_topology_age",
                "For how long the NodeResourceTopology of this node has not been what the agent says",
            ),
            is_ready: Gauge::default(),
            reviews: Family::default(),
            webhook: Gauge::default(),
            last_said: Mutex::default(),
            registry,
        }
    }

    /// The metrics of the arbitrator, in a registry without those of a node.
    #[must_use]
    pub fn of_arbitrator() -> (Self, Arbitration) {
        let mut registry = Registry::with_prefix("plimsoll_arbitrator");
        let shown = &mut registry;
        let mut metrics = Self {
            calls: registered(shown, API_CALLS.0, API_CALLS.1),
            restarts: registered(shown, WATCH_RESTARTS.0, WATCH_RESTARTS.1),
            is_ready: registered(shown, "ready", "Whether all objects were listed"),
            reviews: registered(
                shown,
                "admission_requests",
                "Requests to the webhook by result; unreadable, busy, late and crowded ones were not reviewed",
            ),
            webhook: registered(
                shown,
                "webhook_ready",
                "Whether the webhook has a certificate that the API server trusts",
            ),
            ..Self::new()
        };
        let arbitration = Arbitration::new(&mut registry);
        metrics.registry = registry;
        (metrics, arbitration)
    }

    /// All objects were listed.
    pub fn set_ready(&self, is_ready: bool) {
        self.is_ready.set(i64::from(is_ready));
    }

    /// A call was answered; `code` 0: it was not.
    pub fn called(&self, verb: &'static str, resource: &'static str, code: u16) {
        self.calls
            .get_or_create(&CallLabels {
                verb,
                resource,
                code,
            })
            .inc();
    }

    /// The webhook was asked about a Consumer.
    pub fn reviewed(&self, answer: &'static str) {
        self.reviews.get_or_create(&Answered { answer }).inc();
    }

    /// Whether the webhook serves a certificate that the API server trusts.
    pub fn set_webhook(&self, is_ready: bool) {
        self.webhook.set(i64::from(is_ready));
    }

    /// A watch begins with a new list.
    pub fn restarted(&self, of: &'static str) {
        self.restarts.get_or_create(&Of { of }).inc();
    }

    /// Takes what the loop counts.
    pub fn set(
        &self,
        figures: &Figures,
        pods: usize,
        dropped: Dropped,
        is_reachable: bool,
        is_agent_connected: bool,
    ) {
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        for (of, dropped) in [
            ("garbage", dropped.garbage),
            ("too_large", dropped.too_large),
            ("other_node", dropped.other_node),
            ("too_many", dropped.too_many),
            ("shortened", dropped.shortened),
            ("ended", dropped.ended),
            ("events", figures.events_dropped),
            ("intents", figures.intents_refused),
        ] {
            count(&self.dropped.get_or_create(&Of { of }), dropped);
        }
        let ways = ["shown", "ended_otherwise", "gone", "given_up"];
        for (of, settled) in ways.into_iter().zip(figures.settled) {
            count(&self.settled.get_or_create(&Of { of }), settled);
        }
        let (state, unwritten_ms) = figures.topology;
        for (known, of) in ObjectState::NAMED {
            let is_so = i64::from(known == state);
            self.topology.get_or_create(&Of { of }).set(is_so);
        }
        self.unwritten_topology
            .set(std::time::Duration::from_millis(unwritten_ms).as_secs_f64());
        self.pods.set(i64::try_from(pods).unwrap_or(i64::MAX));
        self.unreported.set(signed(figures.unreported));
        self.unsettled.set(signed(figures.unsettled));
        // Ages of some days at most: exact in a float.
        self.oldest
            .set(std::time::Duration::from_millis(figures.oldest_unreported_ms).as_secs_f64());
        self.is_reachable.set(i64::from(is_reachable));
        self.is_agent_connected.set(i64::from(is_agent_connected));
        self.is_node_known.set(i64::from(figures.is_node_known));
    }

    /// What readiness asks: whether the agent is connected; of the arbitrator, whether it knows the cluster.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_agent_connected.get() != 0 || self.is_ready.get() != 0
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String does not fail.
        let _never = encode(&mut text, &self.registry);
        text
    }

    /// A line on standard error, not again while nothing else is said.
    pub fn say(&self, text: &str) {
        let mut last = self
            .last_said
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *last != text {
            eprintln!("plimsoll-cluster: {}", line(text));
            text.clone_into(&mut last);
        }
    }
}
