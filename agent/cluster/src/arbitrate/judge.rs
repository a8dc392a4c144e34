//! From what is known to what should be: the shares of all Consumers, and which pods make room for which. Pure, and
//! without memory of its own: what only time can tell comes in as [`Memory`].
//!
//! Only a namespace with a Consumer is arbitrated. What pods of the others use is theirs: none of them is evicted, so
//! the Consumers share what is left. None is evicted for them either, so their pending pods ask for nothing.

mod closed_nodes;
mod nodes;
mod objects;
mod pressure;
mod rows;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::arbitration::amounts::TooManyResources;
use plimsoll_core::arbitration::census::Census;
use plimsoll_core::arbitration::cluster::Cluster;
use plimsoll_core::arbitration::entitled::{Entitled, entitled};
use plimsoll_core::arbitration::groups::deserve;
use plimsoll_core::arbitration::named::Named;
use plimsoll_core::arbitration::plan::turns::Turns;
use plimsoll_core::arbitration::plan::{Action, Step, plan};

use super::pod_warning::PodWarning;
use super::seen::consumer::ConsumerSpec;
use super::seen::pod::SeenPod;
use super::store::Store;
use crate::clock::Now;
#[cfg(test)]
pub(super) use closed_nodes::closed_with;
#[cfg(test)]
pub(super) use nodes::refused_with;

/// Evictions that can be noticed at once; of the plan the rest is *limited*.
pub const NOTICES_MAX: usize = 100;
/// Notices of one namespace whose Consumer gives a long grace. They do not count against the others.
const LONG_NOTICES_MAX: usize = 20;
/// All of them together.
const ALL_LONG_NOTICES_MAX: usize = 900;
/// A grace beyond this, and beyond the usual one, is long, milliseconds.
const LONG_GRACE_MS: u64 = 60_000;
/// Why no room is made for some pods.
const MISSED: &str = "room that they did not take twice";

/// Consumers of namespaces, with their names, by namespace.
type OfNamespaces<'a> = BTreeMap<String, (&'a String, &'a ConsumerSpec)>;

/// Times that hold where a Consumer names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// How long before its eviction a pod has notice, milliseconds.
    pub grace_period_ms: u64,
    /// How long a pod runs before it can be evicted, milliseconds.
    pub minimum_run_time_ms: u64,
}

/// What only time can tell.
#[derive(Debug, Default)]
pub struct Memory {
    /// Since when a pending pod is entitled: milliseconds of the clock that never jumps.
    pub entitled_since: BTreeMap<String, u64>,
    /// Since when a pod is known to run, and how old it was then, milliseconds.
    pub running_since: BTreeMap<String, (u64, u64)>,
    /// Pods that are evicted, as far as is known, and not yet seen to leave.
    pub evicted: BTreeSet<String>,
    /// Pods that are left alone for now: the Eviction API refused.
    pub left_alone: BTreeSet<String>,
    /// Pods that have notice.
    pub noticed: BTreeSet<String>,
    /// Pending pods for which no room is made for now.
    pub unserved: BTreeSet<String>,
    /// The time that a leaving pod was given, seconds, and since when.
    pub leaving_since: BTreeMap<String, (u64, u64)>,
    /// Namespaces that are being deleted, and since when, by the clock that never jumps.
    pub terminating_since: BTreeMap<String, u64>,
    /// Pending pods for which room is being made, or was.
    pub begun: BTreeSet<String>,
    /// Whose turn it is, where a cycle cannot search for all.
    pub turns: Turns,
    /// There was a cycle before: a pod that is seen for the first time has just started.
    pub is_warm: bool,
}

/// Pods that make room for another one on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaim {
    /// For which pod: its UID.
    pub pod: String,
    /// Where.
    pub node: String,
    /// UIDs, in the order in which they go.
    pub victims: Vec<String>,
    /// The pod is of an unlimited Consumer: it waits for no notice.
    pub is_urgent: bool,
}

/// What is found for a Consumer that exists as an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its namespace, unless it is a group.
    pub namespace: Option<String>,
    /// What it may have.
    pub deserved: Named,
    /// What its pods use.
    pub used: Named,
    /// What it never passes, quotas counted.
    pub hard: Named,
    /// What it has for sure.
    pub reserved: Named,
    /// Resources of which it uses more than it deserves, with the excess.
    pub over: Named,
    /// By how much the floors of its members pass what it has.
    pub short: Named,
    /// The resource of which it uses the greatest share, with capacity.
    pub dominant: Option<(String, u64, u64)>,
    /// Pods beyond `hard`.
    pub passed_over: u64,
    /// Entitled pods that wait for others to leave, and those for which none may.
    pub waiting: u64,
    /// Of those.
    pub blocked: u64,
    /// Pending pods that are refused, by what they have.
    pub not_served: BTreeMap<&'static str, u64>,
    /// What is wrong with it: a word and a text.
    pub wrong: Vec<(&'static str, String)>,
    /// What is unusual about its pods, and of how many.
    pub pod_warnings: BTreeMap<PodWarning, u64>,
}

/// What a cycle comes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Judgement {
    /// What there is.
    pub capacity: Named,
    /// By name.
    pub rows: Vec<Row>,
    /// In the order in which pods are served.
    pub reclaims: Vec<Reclaim>,
    /// UIDs of all entitled pods.
    pub entitled: Vec<String>,
    /// Entitled pods by what the plan says: fit, leaving, preempt, blocked, limited, not served.
    pub actions: BTreeMap<&'static str, u64>,
    /// What is wrong with other objects, by reason.
    pub wrong_objects: BTreeMap<&'static str, u64>,
    /// Namespaces by node that reports pressure: what is overused there, in 1/1000 of the capacity.
    pub overused_on: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Judges. `unix_ms` is of the clock that never jumps; what nodes have stamped is compared with the one on the wall.
///
/// # Errors
/// More resources than can be computed with.
pub fn judge(
    store: &Store,
    memory: &mut Memory,
    times: Times,
    now: Now,
    unix_ms: u64,
) -> Result<Judgement, TooManyResources> {
    objects::note_running(store, memory, now.mono_ms, unix_ms);
    objects::note_leaving(store, memory, now.mono_ms);
    let consumers = consumers(store);
    let hanging = objects::hanging(store, memory, now.mono_ms);
    let objects = objects::objects(store, memory, &consumers, &hanging, times, now);
    let resolved = objects.resolve()?;
    let mut cluster = resolved.cluster;
    let pods: Vec<(&String, &SeenPod)> = store.pods.iter().collect();
    let refused = nodes::choose_nodes(store, &pods, &mut cluster, nodes::WORK_MAX);
    let census = Census::of(&cluster);
    let deserved = deserve(&cluster.consumers, &census.asks, &census.capacity);
    let all = entitled(&cluster, &census, &deserved);
    let is_served = |entitled: &&Entitled| {
        let (uid, pod) = pods[entitled.pod];
        consumers.contains_key(&pod.namespace)
            && pod.placement.unknown.is_none()
            && !refused.contains_key(&entitled.pod)
            && !memory.unserved.contains(uid)
            && is_living(store, &pod.namespace)
    };
    let served: Vec<Entitled> = all.iter().filter(is_served).cloned().collect();
    let turns = &mut memory.turns;
    let steps = plan(&cluster, &census, &deserved, &served, turns);
    let mut judgement = Judgement {
        capacity: rows::named(&cluster, &rows::bounds(&census.capacity)),
        rows: rows::rows(store, &cluster, &census, &deserved, &consumers),
        entitled: all.iter().map(|it| pods[it.pod].0.clone()).collect(),
        ..Judgement::default()
    };
    let not_served = all.len() - served.len();
    judgement
        .actions
        .insert("not_served", u64::try_from(not_served).unwrap_or(u64::MAX));
    let of_nodes = u64::try_from(hanging.len()).unwrap_or(u64::MAX);
    let reason = PodWarning::EvictedPodsHang.reason();
    judgement.wrong_objects.insert(reason, of_nodes);
    for (at, (_, pod)) in pods.iter().enumerate() {
        // With too many quotas it is not the pod that is unusual.
        if let Some(warning) = PodWarning::of(pod, census.standings[at])
            && !store.has_many_quotas(&pod.namespace)
        {
            judgement.warn_of_pod(warning, &cluster, at);
        }
        let node = pod.node.as_deref().unwrap_or_default();
        let hangs = hanging.contains(&(node, pod.namespace.as_str()));
        if hangs && !pod.is_leaving && !pod.is_daemon {
            judgement.warn_of_pod(PodWarning::EvictedPodsHang, &cluster, at);
        }
    }
    let left_out = all.iter().filter(|entitled| !is_served(entitled));
    let left_out = left_out.filter(|entitled| is_living(store, &pods[entitled.pod].1.namespace));
    let left_out = left_out.map(|entitled| {
        let unknown = pods[entitled.pod].1.placement.unknown;
        (entitled.pod, unknown.unwrap_or(MISSED))
    });
    let mut why: BTreeMap<usize, &'static str> = left_out.collect();
    why.extend(&refused);
    for (at, why) in why {
        if let Some(row) = judgement.row_of(&cluster, at) {
            *row.not_served.entry(why).or_default() += 1;
        }
    }
    let long = |pod: &SeenPod| {
        let spec = consumers.get(&pod.namespace).map(|(_, spec)| *spec);
        has_long_grace(spec, times)
    };
    note_steps(&mut judgement, &cluster, &pods, &steps, &consumers, |uid| {
        let pod = store.pods.get(uid)?;
        (long(pod) && !memory.noticed.contains(uid)).then_some(pod.namespace.as_str())
    });
    rows::blame(&mut judgement, resolved.conditions);
    judgement.overused_on =
        pressure::overused_on(store, &cluster, &census, &deserved, &consumers, now);
    Ok(judgement)
}

impl Judgement {
    fn warn_of_pod(&mut self, warning: PodWarning, cluster: &Cluster, pod: usize) {
        if let Some(row) = self.row_of(cluster, pod) {
            *row.pod_warnings.entry(warning).or_default() += 1;
        }
        let known = self.wrong_objects.entry(warning.reason());
        *known.or_default() += u64::from(warning == PodWarning::NeverFits);
    }

    /// The row of a pod's Consumer.
    fn row_of(&mut self, cluster: &Cluster, pod: usize) -> Option<&mut Row> {
        let name = &cluster.names[cluster.pods[pod].namespace];
        let at = self.rows.binary_search_by(|row| row.name.cmp(name)).ok()?;
        self.rows.get_mut(at)
    }
}

/// Takes the steps of the plan. `begins_long`: the namespace of a victim with a long grace whose notice would begin
/// now.
fn note_steps<'a>(
    judgement: &mut Judgement,
    cluster: &Cluster,
    pods: &[(&'a String, &'a SeenPod)],
    steps: &[Step],
    consumers: &OfNamespaces<'_>,
    begins_long: impl Fn(&str) -> Option<&'a str>,
) {
    let mut begun: BTreeMap<&str, usize> = BTreeMap::new();
    for step in steps {
        let (uid, pod) = pods[step.pod];
        let word = match &step.action {
            Action::Fits { .. } => "fits",
            Action::Leaving { .. } => "leaving",
            Action::Grace => "grace",
            Action::Preempt { evict, .. } => {
                let long = evict.iter().filter_map(|at| begins_long(pods[*at].0));
                let long: Vec<&str> = long.collect();
                let is_beyond = long
                    .iter()
                    .any(|it| begun.get(it).copied().unwrap_or(0) >= LONG_NOTICES_MAX);
                long.iter()
                    .for_each(|it| *begun.entry(it).or_default() += 1);
                if is_beyond { "limited" } else { "preempt" }
            }
            Action::Blocked => "blocked",
            Action::Limited => "limited",
        };
        *judgement.actions.entry(word).or_default() += 1;
        if let Some(row) = judgement.row_of(cluster, step.pod) {
            row.waiting += u64::from(word != "fits");
            row.blocked += u64::from(word == "blocked");
        }
        if let Action::Preempt { node, evict } = &step.action
            && word == "preempt"
        {
            judgement.reclaims.push(Reclaim {
                pod: uid.clone(),
                node: cluster.nodes[*node].name.clone(),
                victims: evict.iter().map(|at| pods[*at].0.clone()).collect(),
                is_urgent: consumers
                    .get(&pod.namespace)
                    .is_some_and(|(_, spec)| spec.unlimited),
            });
        }
    }
}

/// Consumers of namespaces, by namespace; of two for the same one the first by name.
pub(super) fn consumers(store: &Store) -> OfNamespaces<'_> {
    let mut consumers = BTreeMap::new();
    for (name, consumer) in store.consumers.iter() {
        if let Ok(spec) = &consumer.spec
            && let Some(namespace) = &spec.namespace
        {
            consumers.entry(namespace.clone()).or_insert((name, spec));
        }
    }
    consumers
}

/// A namespace that is there to stay.
fn is_living(store: &Store, namespace: &str) -> bool {
    let namespace = store.namespaces.get(namespace);
    namespace.is_some_and(|namespace| !namespace.is_terminating)
}

/// Whether notices to its pods take longer than most.
fn has_long_grace(spec: Option<&ConsumerSpec>, times: Times) -> bool {
    let grace_ms = spec.and_then(|spec| spec.grace_period_ms);
    grace_ms.is_some_and(|ms| ms > LONG_GRACE_MS.max(times.grace_period_ms))
}
