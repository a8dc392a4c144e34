//! The objects of the cluster, as watches show them. Nothing is gone before a list is complete, everything is bounded,
//! and what was missed is known.
//!
//! Of what a tenant can make without an end each namespace [bears](bounded::Borne) its own part
//! (docs/decisions/0067-bounds-of-namespaces.md).

mod bounded;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use plimsoll_core::arbitration::named::Named;

pub use bounded::{Borne, Bounded, Most};

use super::seen::budget::SeenBudget;
use super::seen::consumer::{SeenAllocation, SeenConsumer};
use super::seen::node::SeenNode;
use super::seen::placement::DEFAULT_SCHEDULER;
use super::seen::pod::{PodRead, SeenPod};
use super::seen::quota::SeenQuota;
use super::seen::{SeenNamespace, uid_of};
use crate::watch_event::WatchEvent;

/// Disruption budgets, resource quotas, and Allocations, of a namespace. Where there are more, no pod of it is evicted,
/// none for it, or its Allocation is not written.
pub use plimsoll_core::kube::budget::OF_A_NAMESPACE_MAX;

/// Pods of which it is remembered until the next cycle that they were placed, at most.
const STARTED_MAX: usize = 10_000;
/// Pending pods of a namespace. Those beyond are not known, and so not asked for.
const PENDING_MAX: usize = 100_000;
/// For each so many bytes that its owner has written, a pod counts once more: people write some hundred.
const POD_BYTES: usize = 1024;
/// Without doubt about all, a kind is listed for what was left out only so often, milliseconds: each list holds
/// evictions back for some seconds.
const LIST_FOR_ONE_EVERY_MS: u64 = 600_000;
/// With doubt about all.
const LIST_EVERY_MS: u64 = 60_000;

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Pods.
    Pods,
    /// Nodes.
    Nodes,
    /// Namespaces.
    Namespaces,
    /// Consumers.
    Consumers,
    /// Disruption budgets.
    Budgets,
    /// Resource quotas.
    Quotas,
    /// Allocations.
    Allocations,
}

impl Kind {
    /// All, in the order in which they are reported.
    pub const ALL: [Self; 7] = [
        Self::Consumers,
        Self::Nodes,
        Self::Namespaces,
        Self::Pods,
        Self::Budgets,
        Self::Quotas,
        Self::Allocations,
    ];

    /// As RBAC names it.
    #[must_use]
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::Consumers => "consumers",
            Self::Budgets => "poddisruptionbudgets",
            Self::Quotas => "resourcequotas",
            Self::Allocations => "allocations",
        }
    }

    /// Objects that are kept. Beyond what all have together the cluster is too large for this program, and no pod is
    /// evicted.
    const fn most(self) -> Most {
        let (in_all, of_each) = match self {
            Self::Pods => (300_000, PENDING_MAX),
            Self::Nodes => (20_000, usize::MAX),
            Self::Namespaces | Self::Consumers => (50_000, usize::MAX),
            Self::Allocations => (50_000, OF_A_NAMESPACE_MAX),
            // One more than can count, so that it is known.
            Self::Budgets | Self::Quotas => (100_000, OF_A_NAMESPACE_MAX + 1),
        };
        Most { in_all, of_each }
    }
}

/// How a kind's watch is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watch {
    /// The last list that began is whole: nothing that is gone is still here.
    pub is_listed: bool,
    /// There was a whole list.
    pub was_listed: bool,
    /// What was last said is a failure: why.
    pub missed: Option<String>,
    /// Objects that could not be read.
    pub unreadable: u64,
    /// Objects beyond the bound that no namespace bears, since the last list.
    pub beyond: u64,
}

/// Everything that is watched.
#[derive(Debug, Default)]
pub struct Store {
    /// The scheduler whose pods have room made for them; none: that of pods that name none.
    scheduler: Option<String>,
    /// By UID.
    pub pods: Bounded<String, SeenPod>,
    /// By name.
    pub nodes: Bounded<String, SeenNode>,
    /// By name.
    pub namespaces: Bounded<String, SeenNamespace>,
    /// By name.
    pub consumers: Bounded<String, SeenConsumer>,
    /// By namespace and name.
    pub budgets: Bounded<(String, String), SeenBudget>,
    /// By namespace and name.
    pub quotas: Bounded<(String, String), SeenQuota>,
    /// By namespace and name.
    pub allocations: Bounded<(String, String), SeenAllocation>,
    /// How often the scheduler was seen to do something.
    pub signs: u64,
    /// Pods that were placed since the last cycle, of those for which room was made: they may have ended since.
    pub started: BTreeSet<String>,
    watches: BTreeMap<Kind, Watch>,
    /// What all nodes have together, until one of them changes.
    allocatable: OnceLock<Named>,
}

impl Store {
    /// Knows nothing. `scheduler`: whose pods have room made for them.
    #[must_use]
    pub fn of_scheduler(scheduler: &str) -> Self {
        Self {
            scheduler: Some(scheduler.to_owned()),
            ..Self::default()
        }
    }

    /// The name of the scheduler whose pods have room made for them.
    #[must_use]
    pub fn scheduler(&self) -> &str {
        self.scheduler.as_deref().unwrap_or(DEFAULT_SCHEDULER)
    }

    /// How the watch of a kind is.
    #[must_use]
    pub fn watch(&self, kind: Kind) -> Watch {
        self.watches.get(&kind).cloned().unwrap_or_default()
    }

    /// A kind that is not known as it is now, and why.
    #[must_use]
    pub fn stale(&self) -> Option<(Kind, String)> {
        self.stale_of(&Kind::ALL)
    }

    /// The same, of these kinds.
    #[must_use]
    pub fn stale_of(&self, kinds: &[Kind]) -> Option<(Kind, String)> {
        kinds.iter().copied().find_map(|kind| {
            let watch = self.watch(kind);
            match (watch.missed, watch.is_listed, watch.beyond) {
                (Some(why), _, _) => Some((kind, why)),
                (None, false, _) if watch.was_listed => Some((kind, "listed anew".to_owned())),
                (None, false, _) => Some((kind, "not listed yet".to_owned())),
                (None, true, 0) => None,
                (None, true, beyond) => Some((kind, format!("{beyond} beyond the bound"))),
            }
        })
    }

    /// Whether anything is not known for another reason than that it is just being listed.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        Kind::ALL.iter().any(|kind| {
            let watch = self.watch(*kind);
            watch.missed.is_some() || !watch.was_listed || watch.beyond > 0
        })
    }

    /// How long after the last list another one would find objects that were left out and have room now, milliseconds;
    /// nothing: there are none.
    #[must_use]
    pub fn wants_list(&self, kind: Kind) -> Option<u64> {
        let watch = self.watch(kind);
        let most = kind.most();
        if !watch.is_listed {
            None
        } else if watch.beyond > 0 && self.weight(kind) < most.in_all {
            Some(LIST_EVERY_MS)
        } else {
            let has_room = match kind {
                Kind::Pods => self.pods.has_room_again(most),
                Kind::Budgets => self.budgets.has_room_again(most),
                Kind::Quotas => self.quotas.has_room_again(most),
                Kind::Allocations => self.allocations.has_room_again(most),
                Kind::Nodes | Kind::Namespaces | Kind::Consumers => false,
            };
            has_room.then_some(LIST_FOR_ONE_EVERY_MS)
        }
    }

    /// How many objects of a kind are known.
    #[must_use]
    pub fn len(&self, kind: Kind) -> usize {
        match kind {
            Kind::Pods => self.pods.len(),
            Kind::Nodes => self.nodes.len(),
            Kind::Namespaces => self.namespaces.len(),
            Kind::Consumers => self.consumers.len(),
            Kind::Budgets => self.budgets.len(),
            Kind::Quotas => self.quotas.len(),
            Kind::Allocations => self.allocations.len(),
        }
    }

    /// As how many objects those of a kind count.
    fn weight(&self, kind: Kind) -> usize {
        match kind {
            Kind::Pods => self.pods.weight(),
            _ => self.len(kind),
        }
    }

    /// How many objects of a kind were left out since they were last listed.
    #[must_use]
    pub fn left_out(&self, kind: Kind) -> u64 {
        let borne = match kind {
            Kind::Pods => self.pods.left_out(),
            Kind::Budgets => self.budgets.left_out(),
            Kind::Quotas => self.quotas.left_out(),
            Kind::Allocations => self.allocations.left_out(),
            Kind::Nodes | Kind::Namespaces | Kind::Consumers => 0,
        };
        borne.saturating_add(self.watch(kind).beyond)
    }

    /// Whether a namespace has more budgets than can count: none of its pods is evicted.
    #[must_use]
    pub fn has_many_budgets(&self, namespace: &str) -> bool {
        has_many(&self.budgets, namespace)
    }

    /// Whether it has more resource quotas than can count: what it may ask for is not known.
    #[must_use]
    pub fn has_many_quotas(&self, namespace: &str) -> bool {
        has_many(&self.quotas, namespace)
    }

    /// What all nodes have together. Kept until a node changes: a review asks for it, and there can be a hundred of
    /// them in a second.
    pub fn allocatable(&self) -> &Named {
        self.allocatable.get_or_init(|| {
            let mut total = Named::new();
            for (_, node) in self.nodes.iter() {
                add(&mut total, &node.allocatable);
            }
            total
        })
    }

    /// Takes what was heard; whether anything that counts has changed.
    pub fn hear(&mut self, kind: Kind, heard: WatchEvent) -> bool {
        let is_changed = self.take(kind, heard);
        if is_changed && kind == Kind::Nodes {
            self.allocatable.take();
        }
        is_changed
    }

    fn take(&mut self, kind: Kind, heard: WatchEvent) -> bool {
        let watch = self.watches.entry(kind).or_default();
        // Within a list only its end says that all is known.
        if watch.is_listed
            && !matches!(
                heard,
                WatchEvent::Missed(_) | WatchEvent::Refused(_) | WatchEvent::List(_)
            )
        {
            watch.missed = None;
        }
        match heard {
            WatchEvent::Missed(why) | WatchEvent::Refused(why) => {
                watch.missed = Some(why);
                false
            }
            WatchEvent::Word => false,
            WatchEvent::TooLarge => {
                watch.unreadable += 1;
                false
            }
            WatchEvent::List(_) => {
                watch.beyond = 0;
                watch.is_listed = false;
                self.list(kind);
                false
            }
            WatchEvent::Listed => {
                watch.missed = None;
                watch.is_listed = true;
                let is_first = !std::mem::replace(&mut watch.was_listed, true);
                self.listed(kind) | is_first
            }
            WatchEvent::Object(object) => self.object(kind, &object),
            WatchEvent::Gone(object) => self.gone(kind, &object),
        }
    }

    fn list(&mut self, kind: Kind) {
        match kind {
            Kind::Pods => self.pods.list(),
            Kind::Nodes => self.nodes.list(),
            Kind::Namespaces => self.namespaces.list(),
            Kind::Consumers => self.consumers.list(),
            Kind::Budgets => self.budgets.list(),
            Kind::Quotas => self.quotas.list(),
            Kind::Allocations => self.allocations.list(),
        }
    }

    fn listed(&mut self, kind: Kind) -> bool {
        match kind {
            Kind::Pods => self.pods.listed(),
            Kind::Nodes => self.nodes.listed(),
            Kind::Namespaces => self.namespaces.listed(),
            Kind::Consumers => self.consumers.listed(),
            Kind::Budgets => self.budgets.listed(),
            Kind::Quotas => self.quotas.listed(),
            Kind::Allocations => self.allocations.listed(),
        }
    }

    fn object(&mut self, kind: Kind, object: &[u8]) -> bool {
        let most = kind.most();
        let put = match kind {
            Kind::Pods => SeenPod::read(object, self.scheduler()).map(|read| match read {
                PodRead::Counts(uid, pod) => {
                    let before = self.pods.get(&uid);
                    let is_sign = before.is_some_and(|before| pod.is_sign_after(before));
                    self.signs += u64::from(is_sign);
                    let had_room =
                        |before: &SeenPod| before.node.is_none() && before.room_on.is_some();
                    if pod.node.is_some()
                        && before.is_some_and(had_room)
                        && self.started.len() < STARTED_MAX
                    {
                        self.started.insert(uid.clone());
                    }
                    self.pods.put(uid, *pod, most)
                }
                PodRead::Idle(uid) => Some(self.pods.remove(&uid)),
            }),
            Kind::Nodes => SeenNode::read(object).map(|(key, it)| self.nodes.put(key, it, most)),
            Kind::Namespaces => {
                SeenNamespace::read(object).map(|(key, it)| self.namespaces.put(key, it, most))
            }
            Kind::Consumers => {
                SeenConsumer::read(object).map(|(key, it)| self.consumers.put(key, it, most))
            }
            Kind::Budgets => {
                SeenBudget::read(object).map(|(key, it)| self.budgets.put(key, it, most))
            }
            Kind::Quotas => SeenQuota::read(object).map(|(key, it)| self.quotas.put(key, it, most)),
            Kind::Allocations => {
                SeenAllocation::read(object).map(|(key, it)| self.allocations.put(key, it, most))
            }
        };
        let watch = self.watches.entry(kind).or_default();
        match put {
            Ok(Some(changed)) => changed,
            Ok(None) => {
                watch.beyond += 1;
                false
            }
            Err(_) => {
                watch.unreadable += 1;
                false
            }
        }
    }

    fn gone(&mut self, kind: Kind, object: &[u8]) -> bool {
        let gone = match kind {
            Kind::Pods => uid_of(object).map(|uid| self.pods.remove(&uid)),
            Kind::Nodes => SeenNode::read(object).map(|(key, _)| self.nodes.remove(&key)),
            Kind::Namespaces => {
                SeenNamespace::read(object).map(|(key, _)| self.namespaces.remove(&key))
            }
            Kind::Consumers => {
                SeenConsumer::read(object).map(|(key, _)| self.consumers.remove(&key))
            }
            Kind::Budgets => SeenBudget::read(object).map(|(key, _)| self.budgets.remove(&key)),
            Kind::Quotas => SeenQuota::read(object).map(|(key, _)| self.quotas.remove(&key)),
            Kind::Allocations => {
                SeenAllocation::read(object).map(|(key, _)| self.allocations.remove(&key))
            }
        };
        gone.unwrap_or(true)
    }
}

fn has_many<V: PartialEq + Borne<(String, String)>>(
    kept: &Bounded<(String, String), V>,
    namespace: &str,
) -> bool {
    kept.borne_by(namespace) > OF_A_NAMESPACE_MAX || kept.left_out_of(namespace) > 0
}

/// What a tenant can make is borne by its namespace, and a pod until a kubelet has taken it (`status.startTime`), on
/// whatever node it says that it is: one that runs takes room on a node from others.
impl Borne<String> for SeenPod {
    fn bearer<'a>(&'a self, _: &'a String) -> Option<&'a str> {
        let runs = self.node.is_some() && self.started_unix_ms.is_some();
        (!runs).then_some(&*self.namespace)
    }

    fn weight(&self) -> usize {
        1 + self.bytes() / POD_BYTES
    }
}

macro_rules! borne {
    ($by_namespace:ty) => {
        impl Borne<(String, String)> for $by_namespace {
            fn bearer<'a>(&'a self, (namespace, _): &'a (String, String)) -> Option<&'a str> {
                Some(namespace)
            }
        }
    };
    (nobody: $of_all:ty) => {
        impl Borne<String> for $of_all {
            fn bearer<'a>(&'a self, _: &'a String) -> Option<&'a str> {
                None
            }
        }
    };
}

borne!(SeenBudget);
borne!(SeenQuota);
borne!(SeenAllocation);
borne!(nobody: SeenNode);
borne!(nobody: SeenNamespace);
borne!(nobody: SeenConsumer);

/// Adds amounts by name.
pub(super) fn add(total: &mut Named, amounts: &Named) {
    for (resource, amount) in amounts {
        // Names are few: a copy for the first of each.
        match total.get_mut(resource) {
            Some(sum) => *sum = sum.saturating_add(*amount),
            None => {
                total.insert(resource.clone(), *amount);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: &serde_json::Value) -> WatchEvent {
        WatchEvent::Object(value.to_string().into_bytes())
    }

    fn pod(uid: &str) -> WatchEvent {
        object(
            &json!({"metadata": {"name": uid, "namespace": "a", "uid": uid}, "spec": {"containers": []}}),
        )
    }

    #[test]
    fn nothing_is_known_before_every_list_and_nothing_is_gone_before_it_ends() {
        let mut store = Store::default();
        for kind in Kind::ALL {
            assert!(
                store
                    .stale()
                    .is_some_and(|(_, why)| why == "not listed yet")
            );
            store.hear(kind, WatchEvent::List(None));
            store.hear(kind, WatchEvent::Listed);
        }
        assert_eq!(store.stale(), None);
        assert!(store.hear(Kind::Pods, pod("u1")) && store.hear(Kind::Pods, pod("u2")));
        assert!(!store.hear(Kind::Pods, pod("u1")), "nothing changed");
        store.hear(Kind::Pods, WatchEvent::Missed("away".into()));
        assert_eq!(store.stale(), Some((Kind::Pods, "away".into())));
        store.hear(Kind::Pods, WatchEvent::List(None));
        assert!(store.stale().is_some(), "a list that has only begun");
        store.hear(Kind::Pods, pod("u2"));
        assert_eq!(
            store.stale(),
            Some((Kind::Pods, "away".into())),
            "nor its first object"
        );
        assert_eq!(store.pods.len(), 2);
        assert!(store.hear(Kind::Pods, WatchEvent::Listed));
        assert_eq!((store.pods.len(), store.stale()), (1, None));
    }

    #[test]
    fn what_is_listed_anew_is_not_known_until_the_list_ends() {
        let mut store = Store::default();
        for kind in Kind::ALL {
            store.hear(kind, WatchEvent::List(None));
            store.hear(kind, WatchEvent::Listed);
        }
        // As after 410: nothing was missed in words.
        store.hear(Kind::Pods, WatchEvent::List(None));
        assert_eq!(store.stale(), Some((Kind::Pods, "listed anew".into())));
        store.hear(Kind::Pods, pod("u1"));
        store.hear(Kind::Pods, WatchEvent::Word);
        assert!(store.stale().is_some());
        assert!(store.watch(Kind::Pods).was_listed);
        store.hear(Kind::Pods, WatchEvent::Listed);
        assert_eq!(store.stale(), None);
    }

    #[test]
    fn what_all_nodes_have_is_summed_anew_when_one_changes_and_not_before() {
        let mut store = Store::default();
        let node = |name: &str, cpus: u64| json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpus.to_string()}}});
        let sum = |store: &Store| store.allocatable().get("cpu").copied().unwrap_or(0);
        store.hear(Kind::Nodes, WatchEvent::List(None));
        for name in ["n", "m"] {
            store.hear(Kind::Nodes, object(&node(name, 10)));
        }
        assert_eq!(sum(&store), 20_000);
        store.hear(Kind::Pods, pod("u1"));
        store.hear(Kind::Nodes, object(&node("n", 10)));
        assert!(store.allocatable.get().is_some(), "nothing of it changed");
        store.hear(Kind::Nodes, object(&node("n", 4)));
        assert_eq!(sum(&store), 14_000);
        store.hear(
            Kind::Nodes,
            WatchEvent::Gone(node("m", 10).to_string().into_bytes()),
        );
        assert_eq!(sum(&store), 4_000);
        // Gone while no watch said so.
        store.hear(Kind::Nodes, WatchEvent::List(None));
        store.hear(Kind::Nodes, WatchEvent::Listed);
        assert_eq!(sum(&store), 0);
    }

    #[test]
    fn what_was_beyond_the_bound_is_listed_when_there_is_room() {
        let mut store = Store::default();
        store.hear(Kind::Nodes, WatchEvent::List(None));
        let node = |at: usize| json!({"metadata": {"name": format!("n{at}")}});
        for at in 0..=Kind::Nodes.most().in_all {
            store.hear(Kind::Nodes, object(&node(at)));
        }
        store.hear(Kind::Nodes, WatchEvent::Listed);
        assert_eq!(store.watch(Kind::Nodes).beyond, 1);
        assert_eq!(store.wants_list(Kind::Nodes), None);
        let gone = WatchEvent::Gone(node(0).to_string().into_bytes());
        store.hear(Kind::Nodes, gone);
        assert_eq!(store.wants_list(Kind::Nodes), Some(LIST_EVERY_MS));
        store.hear(Kind::Nodes, WatchEvent::List(None));
        assert_eq!(store.wants_list(Kind::Nodes), None, "it is on its way");
    }

    #[test]
    fn budgets_that_a_namespace_has_too_many_of_are_in_doubt_for_it_alone() {
        let mut store = Store::default();
        for kind in Kind::ALL {
            store.hear(kind, WatchEvent::List(None));
            store.hear(kind, WatchEvent::Listed);
        }
        let budget = |namespace: &str, at: usize| json!({"metadata": {"name": format!("b{at}"), "namespace": namespace}});
        for at in 0..1_000 {
            store.hear(Kind::Budgets, object(&budget("flood", at)));
        }
        store.hear(Kind::Budgets, object(&budget("quiet", 0)));
        assert_eq!(store.stale(), None);
        assert_eq!(store.budgets.len(), OF_A_NAMESPACE_MAX + 2);
        assert!(store.has_many_budgets("flood") && !store.has_many_budgets("quiet"));
        assert!(!store.has_many_quotas("flood"));
        assert_eq!(store.left_out(Kind::Budgets), 899);
        assert_eq!(store.wants_list(Kind::Budgets), None);
        // Which of them are still there is not known before they are listed.
        for at in 0..1_000 {
            let gone = WatchEvent::Gone(budget("flood", at).to_string().into_bytes());
            store.hear(Kind::Budgets, gone);
        }
        assert!(store.has_many_budgets("flood"));
        assert_eq!(store.wants_list(Kind::Budgets), Some(LIST_FOR_ONE_EVERY_MS));
        store.hear(Kind::Budgets, WatchEvent::List(None));
        store.hear(Kind::Budgets, object(&budget("quiet", 0)));
        store.hear(Kind::Budgets, WatchEvent::Listed);
        assert!(!store.has_many_budgets("flood"));
        assert_eq!(store.left_out(Kind::Budgets), 0);
    }

    #[test]
    fn a_list_neither_ends_nor_makes_a_doubt_about_a_namespace_before_it_is_whole() {
        let mut store = Store::default();
        let budget = |name: &str, at: usize| {
            object(&json!({"metadata": {"name": format!("{name}{at}"), "namespace": "a"}}))
        };
        for kind in Kind::ALL {
            store.hear(kind, WatchEvent::List(None));
            store.hear(kind, WatchEvent::Listed);
        }
        for at in 0..=OF_A_NAMESPACE_MAX + 1 {
            store.hear(Kind::Budgets, budget("b", at));
        }
        let gone = json!({"metadata": {"name": "b0", "namespace": "a"}});
        let gone = || WatchEvent::Gone(gone.to_string().into_bytes());
        store.hear(Kind::Budgets, gone());
        store.hear(Kind::Budgets, WatchEvent::List(None));
        assert!(store.has_many_budgets("a"), "so far as is known");
        // They were made anew by other names.
        for at in 0..OF_A_NAMESPACE_MAX {
            store.hear(Kind::Budgets, budget("c", at));
        }
        store.hear(Kind::Budgets, WatchEvent::Listed);
        assert!(!store.has_many_budgets("a"));
        assert_eq!(store.budgets.len(), OF_A_NAMESPACE_MAX);
        assert_eq!(store.left_out(Kind::Budgets), 0);
    }

    /// Pods that run have no namespace that could bear them: the cluster is too large.
    #[test]
    fn more_pods_than_all_may_have_cost_first_who_waits_and_then_all() {
        let mut store = Store::default();
        for kind in Kind::ALL {
            store.hear(kind, WatchEvent::List(None));
            store.hear(kind, WatchEvent::Listed);
        }
        let most = Kind::Pods.most();
        assert!(store.hear(Kind::Pods, pod("waits")));
        let running = |at: usize| SeenPod {
            namespace: "b".to_owned(),
            node: Some("n".to_owned()),
            started_unix_ms: Some(1),
            name: at.to_string(),
            ..SeenPod::default()
        };
        for at in 1..most.in_all {
            store.pods.put(format!("r{at}"), running(at), most);
        }
        assert_eq!(store.pods.len(), most.in_all);
        let next = |uid: &str| json!({"metadata": {"name": uid, "namespace": "b", "uid": uid}, "spec": {"nodeName": "n", "containers": []}, "status": {"startTime": "2026-11-22T08:00:00Z"}});
        store.hear(Kind::Pods, object(&next("one")));
        assert_eq!((store.pods.left_out_of("a"), store.stale()), (1, None));
        store.hear(Kind::Pods, object(&next("two")));
        assert_eq!(
            store.stale(),
            Some((Kind::Pods, "1 beyond the bound".to_owned()))
        );
        assert_eq!(store.left_out(Kind::Pods), 2);
    }

    #[test]
    fn pods_that_wait_can_be_left_out_and_pods_that_run_cannot() {
        let mut pod = SeenPod {
            namespace: "a".to_owned(),
            ..SeenPod::default()
        };
        let uid = String::new();
        assert_eq!(pod.bearer(&uid), Some("a"));
        // Its tenant wrote the node.
        pod.node = Some("n".to_owned());
        assert_eq!(pod.bearer(&uid), Some("a"));
        pod.started_unix_ms = Some(7);
        assert_eq!(pod.bearer(&uid), None);
        assert!(Kind::Pods.most().of_each < Kind::Pods.most().in_all);
    }

    #[test]
    fn a_pod_that_ends_or_is_held_by_a_gate_asks_for_nothing() {
        let mut store = Store::default();
        store.hear(Kind::Pods, pod("u1"));
        let ended = json!({"metadata": {"name": "u1", "namespace": "a", "uid": "u1"}, "status": {"phase": "Failed"}});
        assert!(store.hear(Kind::Pods, object(&ended)) && store.pods.is_empty());
        let gated = json!({"metadata": {"name": "u1", "namespace": "a", "uid": "u1"}, "spec": {"schedulingGates": [{"name": "x"}], "containers": []}});
        store.hear(Kind::Pods, object(&gated));
        assert!(store.pods.is_empty());
        store.hear(Kind::Pods, object(&json!({"metadata": {}})));
        store.hear(Kind::Pods, WatchEvent::Object(b"<html>".to_vec()));
        assert_eq!(store.watch(Kind::Pods).unreadable, 2);
    }

    #[test]
    fn a_consumer_of_a_later_version_is_seen_and_not_understood() {
        let mut store = Store::default();
        let later = json!({"metadata": {"name": "a"}, "spec": {"namespace": "a", "burst": 5}});
        store.hear(Kind::Consumers, object(&later));
        let spec = &store.consumers.get("a").unwrap().spec;
        assert!(
            spec.as_ref().is_err_and(|why| why.contains("burst")),
            "{spec:?}"
        );
        let earlier = json!({"metadata": {"name": "a"}, "spec": {"namespace": "a", "hard": {"requests.cpu": 2}, "reclaim": {"gracePeriod": "1m"}}});
        store.hear(Kind::Consumers, object(&earlier));
        let spec = store.consumers.get("a").unwrap().spec.clone().unwrap();
        assert_eq!(
            (spec.hard["cpu"], spec.grace_period_ms),
            (2000, Some(60_000))
        );
    }
}
