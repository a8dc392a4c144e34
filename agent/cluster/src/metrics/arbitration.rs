//! Metrics of the arbitrator.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{count, in_seconds, registered};
use crate::arbitrate::Arbiter;
use crate::arbitrate::store::Kind;

/// Consumers whose amounts are shown.
const CONSUMERS_MAX: usize = 2_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    of: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Resource {
    resource: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Amount {
    consumer: String,
    resource: String,
}

/// What the arbitrator counts.
#[derive(Debug)]
pub struct Arbitration {
    leader: Gauge,
    held_back: Gauge,
    cycles: Counter,
    cycle: Gauge<f64, AtomicU64>,
    notices: Gauge,
    notices_begun: Counter,
    refused: Counter,
    evictions: Family<Of, Counter>,
    entitled: Family<Of, Gauge>,
    objects: Family<Of, Gauge>,
    left_out: Family<Of, Gauge>,
    unreadable: Family<Of, Counter>,
    wrong: Family<Of, Gauge>,
    capacity: Family<Resource, Gauge>,
    deserved: Family<Amount, Gauge>,
    used: Family<Amount, Gauge>,
}

impl Arbitration {
    pub(super) fn new(registry: &mut Registry) -> Self {
        Self {
            leader: registered(
                registry,
                "leader",
                "Whether this process has the Lease and acts",
            ),
            held_back: registered(
                registry,
                "held_back",
                "1 while evictions are suspended because the input is incomplete",
            ),
            notices: registered(registry, "notices", "Pods that have notice of an eviction"),
            cycles: registered(registry, "cycles", "Cycles computed"),
            notices_begun: registered(registry, "notices_begun", "Notices given so far"),
            refused: registered(
                registry,
                "refused_writes",
                "Writes that the API server refused for good",
            ),
            cycle: in_seconds(registry, "last_cycle", "How long the last cycle took"),
            evictions: registered(
                registry,
                "evictions",
                "Evictions that were asked for, by what came of them",
            ),
            unreadable: registered(
                registry,
                "unreadable_objects",
                "Objects that could not be read, by resource",
            ),
            entitled: registered(
                registry,
                "entitled_pods",
                "Entitled pods, by what the plan says",
            ),
            objects: registered(registry, "objects", "Objects that are known, by resource"),
            left_out: registered(
                registry,
                "left_out_objects",
                "How often an object was left out for the bound of its namespace, or of all, since the resource was last listed",
            ),
            wrong: registered(
                registry,
                "wrong_objects",
                "Objects with a fault that was put right, by reason",
            ),
            capacity: registered(
                registry,
                "capacity",
                "What the cluster has for pods: CPU in thousandths",
            ),
            deserved: registered(
                registry,
                "deserved",
                "What a Consumer may have: CPU in thousandths",
            ),
            used: registered(
                registry,
                "used",
                "What a Consumer's pods request: CPU in thousandths",
            ),
        }
    }

    /// What changes with each turn.
    pub fn set_state(&self, arbiter: &Arbiter, acts: bool) {
        self.leader.set(i64::from(acts));
        self.held_back.set(i64::from(arbiter.held_back.is_some()));
        self.notices.set(signed(arbiter.notices()));
        for (outcome, evictions) in &arbiter.figures.evictions {
            let of = outcome.name();
            count(&self.evictions.get_or_create(&Of { of }), *evictions);
        }
    }

    /// What a cycle has found.
    pub fn set(&self, arbiter: &Arbiter) {
        let figures = &arbiter.figures;
        count(&self.cycles, figures.cycles);
        self.cycle
            .set(std::time::Duration::from_micros(figures.cycle_us).as_secs_f64());
        count(&self.notices_begun, figures.notices);
        count(&self.refused, figures.refused);
        let store = &arbiter.store;
        for kind in Kind::ALL {
            let of = kind.resource();
            let known = signed(store.len(kind));
            self.objects.get_or_create(&Of { of }).set(known);
            let left_out = signed(store.left_out(kind));
            self.left_out.get_or_create(&Of { of }).set(left_out);
            let unreadable = self.unreadable.get_or_create(&Of { of });
            count(&unreadable, store.watch(kind).unreadable);
        }
        let judgement = &arbiter.judgement;
        for (family, counts) in [
            (&self.entitled, &judgement.actions),
            (&self.wrong, &judgement.wrong_objects),
        ] {
            family.clear();
            for (of, count) in counts {
                family.get_or_create(&Of { of }).set(signed(*count));
            }
        }
        self.capacity.clear();
        for (resource, amount) in &judgement.capacity {
            let resource = resource.clone();
            self.capacity
                .get_or_create(&Resource { resource })
                .set(signed(*amount));
        }
        self.deserved.clear();
        self.used.clear();
        for row in judgement.rows.iter().take(CONSUMERS_MAX) {
            for (family, amounts) in [(&self.deserved, &row.deserved), (&self.used, &row.used)] {
                for (resource, amount) in amounts {
                    let labels = Amount {
                        consumer: row.name.clone(),
                        resource: resource.clone(),
                    };
                    family.get_or_create(&labels).set(signed(*amount));
                }
            }
        }
    }
}

fn signed(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}
