//! The objects of the cluster, as watches show them. Nothing is gone before a list is complete, everything is bounded, and what was missed is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use plimsoll_core::arbitration::named::Named;

use super::seen::budget::SeenBudget;
use super::seen::consumer::{SeenAllocation, SeenConsumer};
use super::seen::node::SeenNode;
use super::seen::pod::{PodRead, SeenPod};
use super::seen::quota::SeenQuota;
use super::seen::{SeenNamespace, uid_of};
use crate::heard::Heard;

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

    /// Objects that are kept; beyond, the cluster is too large for this program, and no pod is evicted.
    const fn most(self) -> usize {
        match self {
            Self::Pods => 300_000,
            Self::Nodes => 20_000,
            Self::Namespaces | Self::Consumers | Self::Allocations => 50_000,
            Self::Budgets | Self::Quotas => 100_000,
        }
    }
}

/// Objects of a kind.
#[derive(Debug, Clone)]
pub struct Kept<K, V> {
    all: BTreeMap<K, V>,
    listing: Option<BTreeSet<K>>,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            listing: None,
        }
    }
}

impl<K: Ord + Clone, V: PartialEq> Kept<K, V> {
    /// One of them.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.all.get(key)
    }

    /// All, by key.
    pub fn iter(&self) -> std::collections::btree_map::Iter<'_, K, V> {
        self.all.iter()
    }

    /// Those from this key on.
    pub fn from(&self, key: K) -> std::collections::btree_map::Range<'_, K, V> {
        self.all.range(key..)
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn list(&mut self) {
        self.listing = Some(BTreeSet::new());
    }

    /// Whether something changed.
    fn listed(&mut self) -> bool {
        let Some(listed) = self.listing.take() else {
            return false;
        };
        let before = self.all.len();
        self.all.retain(|key, _| listed.contains(key));
        before != self.all.len()
    }

    /// Whether something changed; nothing: there are too many.
    fn put(&mut self, key: K, value: V, most: usize) -> Option<bool> {
        if self.all.len() >= most && !self.all.contains_key(&key) {
            return None;
        }
        if let Some(listing) = &mut self.listing {
            listing.insert(key.clone());
        }
        let changed = self.all.get(&key) != Some(&value);
        self.all.insert(key, value);
        Some(changed)
    }

    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: std::borrow::Borrow<Q>,
    {
        self.all.remove(key).is_some()
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
    /// Objects beyond the bound, since the last list.
    pub beyond: u64,
}

/// Everything that is watched.
#[derive(Debug, Default)]
pub struct Store {
    /// By UID.
    pub pods: Kept<String, SeenPod>,
    /// By name.
    pub nodes: Kept<String, SeenNode>,
    /// By name.
    pub namespaces: Kept<String, SeenNamespace>,
    /// By name.
    pub consumers: Kept<String, SeenConsumer>,
    /// By namespace and name.
    pub budgets: Kept<(String, String), SeenBudget>,
    /// By namespace and name.
    pub quotas: Kept<(String, String), SeenQuota>,
    /// By namespace and name.
    pub allocations: Kept<(String, String), SeenAllocation>,
    /// How often the scheduler was seen to do something.
    pub signs: u64,
    watches: BTreeMap<Kind, Watch>,
    /// What all nodes have together, until one of them changes.
    allocatable: OnceLock<Named>,
}

impl Store {
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

    /// Whether a list would find objects that were beyond the bound and have room now.
    #[must_use]
    pub fn wants_list(&self, kind: Kind) -> bool {
        let watch = self.watch(kind);
        let known = match kind {
            Kind::Pods => self.pods.len(),
            Kind::Nodes => self.nodes.len(),
            Kind::Namespaces => self.namespaces.len(),
            Kind::Consumers => self.consumers.len(),
            Kind::Budgets => self.budgets.len(),
            Kind::Quotas => self.quotas.len(),
            Kind::Allocations => self.allocations.len(),
        };
        watch.is_listed && watch.beyond > 0 && known < kind.most()
    }

    /// What all nodes have together. Kept until a node changes: a review asks for it, and there can be a hundred of them in a second.
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
    pub fn hear(&mut self, kind: Kind, heard: Heard) -> bool {
        let is_changed = self.take(kind, heard);
        if is_changed && kind == Kind::Nodes {
            self.allocatable.take();
        }
        is_changed
    }

    fn take(&mut self, kind: Kind, heard: Heard) -> bool {
        let watch = self.watches.entry(kind).or_default();
        // Within a list only its end says that all is known.
        if watch.is_listed && !matches!(heard, Heard::Missed(_) | Heard::List) {
            watch.missed = None;
        }
        match heard {
            Heard::Missed(why) => {
                watch.missed = Some(why);
                false
            }
            Heard::Word => false,
            Heard::TooLarge => {
                watch.unreadable += 1;
                false
            }
            Heard::List => {
                watch.beyond = 0;
                watch.is_listed = false;
                self.list(kind);
                false
            }
            Heard::Listed => {
                watch.missed = None;
                watch.is_listed = true;
                let is_first = !std::mem::replace(&mut watch.was_listed, true);
                self.listed(kind) | is_first
            }
            Heard::Object(object) => self.object(kind, &object),
            Heard::Gone(object) => self.gone(kind, &object),
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
            Kind::Pods => SeenPod::read(object).map(|read| match read {
                PodRead::Counts(uid, pod) => {
                    let before = self.pods.get(&uid);
                    let is_sign = before.is_some_and(|before| pod.is_sign_after(before));
                    self.signs += u64::from(is_sign);
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

    fn object(value: &serde_json::Value) -> Heard {
        Heard::Object(value.to_string().into_bytes())
    }

    fn pod(uid: &str) -> Heard {
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
            store.hear(kind, Heard::List);
            store.hear(kind, Heard::Listed);
        }
        assert_eq!(store.stale(), None);
        assert!(store.hear(Kind::Pods, pod("u1")) && store.hear(Kind::Pods, pod("u2")));
        assert!(!store.hear(Kind::Pods, pod("u1")), "nothing changed");
        store.hear(Kind::Pods, Heard::Missed("away".into()));
        assert_eq!(store.stale(), Some((Kind::Pods, "away".into())));
        store.hear(Kind::Pods, Heard::List);
        assert!(store.stale().is_some(), "a list that has only begun");
        store.hear(Kind::Pods, pod("u2"));
        assert_eq!(
            store.stale(),
            Some((Kind::Pods, "away".into())),
            "nor its first object"
        );
        assert_eq!(store.pods.len(), 2);
        assert!(store.hear(Kind::Pods, Heard::Listed));
        assert_eq!((store.pods.len(), store.stale()), (1, None));
    }

    #[test]
    fn what_is_listed_anew_is_not_known_until_the_list_ends() {
        let mut store = Store::default();
        for kind in Kind::ALL {
            store.hear(kind, Heard::List);
            store.hear(kind, Heard::Listed);
        }
        // As after 410: nothing was missed in words.
        store.hear(Kind::Pods, Heard::List);
        assert_eq!(store.stale(), Some((Kind::Pods, "listed anew".into())));
        store.hear(Kind::Pods, pod("u1"));
        store.hear(Kind::Pods, Heard::Word);
        assert!(store.stale().is_some());
        assert!(store.watch(Kind::Pods).was_listed);
        store.hear(Kind::Pods, Heard::Listed);
        assert_eq!(store.stale(), None);
    }

    #[test]
    fn what_all_nodes_have_is_summed_anew_when_one_changes_and_not_before() {
        let mut store = Store::default();
        let node = |name: &str, cpus: u64| json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpus.to_string()}}});
        let sum = |store: &Store| store.allocatable().get("cpu").copied().unwrap_or(0);
        store.hear(Kind::Nodes, Heard::List);
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
            Heard::Gone(node("m", 10).to_string().into_bytes()),
        );
        assert_eq!(sum(&store), 4_000);
        // Gone while no watch said so.
        store.hear(Kind::Nodes, Heard::List);
        store.hear(Kind::Nodes, Heard::Listed);
        assert_eq!(sum(&store), 0);
    }

    #[test]
    fn what_was_beyond_the_bound_is_listed_when_there_is_room() {
        let mut store = Store::default();
        store.hear(Kind::Nodes, Heard::List);
        let node = |at: usize| json!({"metadata": {"name": format!("n{at}")}});
        for at in 0..=Kind::Nodes.most() {
            store.hear(Kind::Nodes, object(&node(at)));
        }
        store.hear(Kind::Nodes, Heard::Listed);
        assert_eq!(store.watch(Kind::Nodes).beyond, 1);
        assert!(!store.wants_list(Kind::Nodes));
        let gone = Heard::Gone(node(0).to_string().into_bytes());
        store.hear(Kind::Nodes, gone);
        assert!(store.wants_list(Kind::Nodes));
        store.hear(Kind::Nodes, Heard::List);
        assert!(!store.wants_list(Kind::Nodes), "it is on its way");
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
        store.hear(Kind::Pods, Heard::Object(b"<html>".to_vec()));
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
