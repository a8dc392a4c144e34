//! Objects as users name them, and the way from there to a [`Cluster`].
//!
//! Bad input is a *condition* on the object that causes it and never an error: the object is put right in the way that
//! evicts least, and the rest of the cluster is arbitrated as if nothing were wrong. The rules are those of the webhook
//! (`docs/reference/arbitrator.md`, "Refused when it is written"), for what slipped through.

use std::collections::{BTreeMap, BTreeSet};

use super::amounts::{AMOUNT_LIMIT, Amounts, Bounds, Resources, TooManyResources};
use super::cluster::{Cluster, Node, NodeState, Options, Pod};
use super::groups::Consumer;
use super::requests::{is_nothing, is_of_limits};
use super::units::quantity_of;

pub use super::units::Named;

/// The greatest weight.
pub const WEIGHT_MAX: u64 = 1_000_000;
/// Levels of groups and namespaces, at most.
pub const LEVELS_MAX: usize = 8;
/// The namespace that is unlimited if no Consumer says otherwise.
pub const KUBE_SYSTEM: &str = "kube-system";
/// The node of all pods whose node is not known. No node has this name. One for all of them: a tenant writes the node
/// of its pods, and could make as many as it has pods.
const NOT_THERE: &str = "";

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedNode {
    /// Its name.
    pub name: String,
    /// What it has for pods.
    pub allocatable: Named,
    /// What of that cannot be had under pressure.
    pub withheld: Named,
    /// Whether pods can start there.
    pub state: NodeState,
}

/// A Consumer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamedConsumer {
    /// Its name.
    pub name: String,
    /// Its namespace; nothing: it is a group.
    pub namespace: Option<String>,
    /// The group that it is in; nothing: the cluster.
    pub parent: Option<String>,
    /// Nothing: 1.
    pub weight: Option<u64>,
    /// What it never passes.
    pub hard: Named,
    /// What it has for sure.
    pub reserved: Named,
    /// Gets what it asks for before all others.
    pub unlimited: bool,
}

/// A pod that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPod {
    /// The API server's.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Where it runs.
    pub node: Option<String>,
    /// What it requests.
    pub requests: Named,
    /// Greater is more important.
    pub priority: i64,
    /// Seconds since it started.
    pub age: u64,
    /// Seconds for which it is pending.
    pub waiting: u64,
    /// It is being deleted.
    pub leaving: bool,
    /// Of a DaemonSet, a mirror or a static pod.
    pub daemon: bool,
    /// The nodes that it may use; nothing: all.
    pub nodes: Option<BTreeSet<String>>,
    /// The disruption budgets of its namespace that select it.
    pub budgets: BTreeSet<String>,
}

/// Everything that is known of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Objects {
    /// Nodes.
    pub nodes: Vec<NamedNode>,
    /// Namespaces; those of Consumers and pods need not be here.
    pub namespaces: BTreeSet<String>,
    /// Consumers.
    pub consumers: Vec<NamedConsumer>,
    /// Pods.
    pub pods: Vec<NamedPod>,
    /// How many more pods a budget allows to be evicted, by namespace and name.
    pub budgets: BTreeMap<(String, String), u64>,
    /// How preemption is held back.
    pub options: Options,
}

/// What is wrong with an object, and what is done about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Condition {
    /// Its kind and name, such as `Consumer spark`.
    pub object: String,
    /// What is wrong, in one word.
    pub reason: &'static str,
    /// What it is, and what is done about it.
    pub message: String,
}

/// A cluster, with what is wrong with its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The cluster. Its pods stand as the objects' pods do.
    pub cluster: Cluster,
    /// Sorted by object.
    pub conditions: Vec<Condition>,
}

impl Objects {
    /// Looks up all names.
    ///
    /// # Errors
    /// More resources than can be computed with.
    pub fn resolve(&self) -> Result<Resolved, TooManyResources> {
        let mut resolver = Resolver {
            objects: self,
            resources: Resources::new(self.resource_names())?,
            conditions: Vec::new(),
        };
        let nodes = resolver.nodes();
        let rows = resolver.consumer_rows();
        let parents = resolver.parents(&rows);
        let names: Vec<String> = rows.keys().cloned().collect();
        let consumers: Vec<Consumer> = rows
            .values()
            .zip(parents)
            .map(|(row, parent)| resolver.consumer(row, parent, &nodes))
            .collect();
        let looked_up = Indexes {
            nodes: nodes
                .iter()
                .map(|node| node.name.as_str())
                .zip(0..)
                .collect(),
            namespaces: rows
                .values()
                .zip(0..)
                .filter_map(|(row, place)| Some((row.namespace.as_deref()?, place)))
                .collect(),
            budgets: self
                .budgets
                .keys()
                .map(|(namespace, name)| (namespace.as_str(), name.as_str()))
                .zip(0..)
                .collect(),
        };
        let pods = self
            .pods
            .iter()
            .map(|pod| resolver.pod(pod, &looked_up))
            .collect();
        drop(looked_up);
        let Resolver {
            resources,
            mut conditions,
            ..
        } = resolver;
        conditions.sort();
        conditions.dedup();
        let cluster = Cluster {
            resources,
            nodes,
            consumers,
            names,
            pods,
            budgets: self.budgets.values().copied().collect(),
            options: self.options.clone(),
        };
        Ok(Resolved {
            cluster,
            conditions,
        })
    }

    /// A pod that requests a device or huge pages which no node has can start nowhere. A node in a file written by hand
    /// may leave the usual resources out: nothing bounds those then.
    pub fn keep_from_nodes_without(&mut self) {
        let nodes = self.nodes.iter();
        let offered: BTreeSet<&String> = nodes.flat_map(|node| node.allocatable.keys()).collect();
        let is_missing = |name: &String| {
            let is_special = name.contains('/') || name.starts_with("hugepages-");
            is_special && !offered.contains(name)
        };
        for pod in &mut self.pods {
            let mut requests = pod.requests.iter();
            if requests.any(|(name, amount)| *amount > 0 && is_missing(name)) {
                pod.nodes = Some(BTreeSet::new());
            }
        }
    }

    fn resource_names(&self) -> impl Iterator<Item = String> {
        let nodes = self
            .nodes
            .iter()
            .flat_map(|node| [&node.allocatable, &node.withheld]);
        let consumers = self
            .consumers
            .iter()
            .flat_map(|consumer| [&consumer.hard, &consumer.reserved]);
        let pods = self.pods.iter().flat_map(|pod| pod.requests.keys());
        // Limits count where a Consumer names them.
        let pods = pods.filter(|name| !is_of_limits(name));
        let others = nodes.chain(consumers).flat_map(|named| named.keys());
        others.chain(pods).cloned()
    }
}

/// The places of what pods name.
struct Indexes<'a> {
    nodes: BTreeMap<&'a str, usize>,
    namespaces: BTreeMap<&'a str, usize>,
    budgets: BTreeMap<(&'a str, &'a str), usize>,
}

struct Resolver<'a> {
    objects: &'a Objects,
    resources: Resources,
    conditions: Vec<Condition>,
}

impl<'a> Resolver<'a> {
    fn note(&mut self, object: String, reason: &'static str, message: impl Into<String>) {
        self.conditions.push(Condition {
            object,
            reason,
            message: message.into(),
        });
    }

    /// An amount that can be computed with.
    fn within_limit(&mut self, object: &str, resource: &str, amount: u64) -> u64 {
        if amount >= AMOUNT_LIMIT {
            let more = if amount == u64::MAX { "more than " } else { "" };
            let shown = quantity_of(resource, amount);
            let most = quantity_of(resource, AMOUNT_LIMIT - 1);
            let message = format!(
                "{more}{shown} of {resource} is too much to compute with; counted as {most}"
            );
            self.note(object.to_owned(), "AmountTooLarge", message);
        }
        amount.min(AMOUNT_LIMIT - 1)
    }

    fn amounts(&mut self, object: &str, named: &Named) -> Amounts {
        let mut amounts = self.resources.none();
        for (name, amount) in named {
            if let Some(place) = self.resources.place(name) {
                amounts[place] = self.within_limit(object, name, *amount);
            }
        }
        amounts
    }

    fn bounds(&mut self, object: &str, named: &Named) -> Bounds {
        let amounts = self.amounts(object, named);
        let names = self.resources.names().zip(amounts);
        names
            .map(|(name, amount)| named.contains_key(name).then_some(amount))
            .collect()
    }

    /// All nodes by name, and [one](NOT_THERE) for those that only pods name.
    fn nodes(&mut self) -> Vec<Node> {
        let mut nodes = BTreeMap::new();
        for node in &self.objects.nodes {
            let object = format!("Node {}", node.name);
            if nodes.contains_key(&node.name) {
                self.note(object, "Duplicate", "given twice; the first one counts");
                continue;
            }
            let allocatable = self.bounds(&object, &node.allocatable);
            let withheld = self.amounts(&object, &node.withheld);
            nodes.insert(
                node.name.clone(),
                Node {
                    name: node.name.clone(),
                    allocatable,
                    withheld,
                    state: node.state,
                },
            );
        }
        let mut is_any_lost = false;
        for pod in &self.objects.pods {
            let Some(name) = pod.node.as_ref().filter(|name| !nodes.contains_key(*name)) else {
                continue;
            };
            let message = format!(
                "runs on node {name}, which is not known; counted as on a node that is not ready"
            );
            self.note(shown_pod(pod), "UnknownNode", message);
            is_any_lost = true;
        }
        if is_any_lost {
            nodes.insert(
                NOT_THERE.to_owned(),
                Node {
                    name: NOT_THERE.to_owned(),
                    allocatable: self.resources.unbounded(),
                    withheld: self.resources.none(),
                    state: NodeState::NotReady,
                },
            );
        }
        nodes.into_values().collect()
    }

    /// Consumers by name, with one for each namespace that has none.
    fn consumer_rows(&mut self) -> BTreeMap<String, NamedConsumer> {
        let mut given: Vec<&NamedConsumer> = self.objects.consumers.iter().collect();
        given.sort_by(|a, b| a.name.cmp(&b.name));
        let mut rows: BTreeMap<String, NamedConsumer> = BTreeMap::new();
        let mut served: BTreeMap<String, String> = BTreeMap::new();
        for consumer in given {
            let object = format!("Consumer {}", consumer.name);
            if rows.contains_key(&consumer.name) {
                self.note(object, "Duplicate", "given twice; the first one counts");
                continue;
            }
            if let Some(namespace) = &consumer.namespace {
                if let Some(other) = served.get(namespace) {
                    let message = format!(
                        "namespace {namespace} has Consumer {other} already; this one is ignored"
                    );
                    self.note(object, "NamespaceTaken", message);
                    continue;
                }
                served.insert(namespace.clone(), consumer.name.clone());
            }
            rows.insert(consumer.name.clone(), consumer.clone());
        }
        let pods = self.objects.pods.iter().map(|pod| &pod.namespace);
        let namespaces: BTreeSet<&String> = self.objects.namespaces.iter().chain(pods).collect();
        for namespace in namespaces
            .into_iter()
            .filter(|namespace| !served.contains_key(*namespace))
        {
            // A colon is in no object's name.
            let name = if rows.contains_key(namespace) {
                format!("namespace:{namespace}")
            } else {
                namespace.clone()
            };
            let consumer = NamedConsumer {
                name: name.clone(),
                namespace: Some(namespace.clone()),
                unlimited: namespace == KUBE_SYSTEM,
                ..NamedConsumer::default()
            };
            rows.insert(name, consumer);
        }
        rows
    }

    /// The place of each Consumer's parent. A parent that cannot be is left out: the Consumer then stands in the
    /// cluster itself.
    fn parents(&mut self, rows: &BTreeMap<String, NamedConsumer>) -> Vec<Option<usize>> {
        let places: BTreeMap<&String, usize> = rows.keys().zip(0..).collect();
        let all: Vec<&NamedConsumer> = rows.values().collect();
        let mut parents: Vec<Option<usize>> = Vec::new();
        for row in &all {
            let parent = row
                .parent
                .as_ref()
                .and_then(|parent| places.get(parent).copied());
            let is_group = parent.is_some_and(|parent| all[parent].namespace.is_none());
            if let Some(name) = row.parent.as_ref().filter(|_| !is_group) {
                let what = if parent.is_some() {
                    "is a namespace and no group"
                } else {
                    "does not exist"
                };
                let message = format!(
                    "its parent {name} {what}; counted as without a parent. Correct spec.parent, or create the group"
                );
                self.note(format!("Consumer {}", row.name), "NoParent", message);
            }
            parents.push(parent.filter(|_| is_group));
        }
        for at in 0..parents.len() {
            let mut above = Vec::new();
            let mut next = parents[at];
            while let Some(parent) =
                next.filter(|parent| above.len() < LEVELS_MAX && !above.contains(parent))
            {
                above.push(parent);
                next = parents[parent];
            }
            if next.is_some() || above.len() >= LEVELS_MAX {
                let is_cycle = above.contains(&at);
                let (reason, what) = if is_cycle {
                    ("Cycle", "it is among its parents itself")
                } else {
                    ("TooDeep", "more than 8 levels, or a cycle, are above it")
                };
                let message = format!("{what}; counted as without a parent. Correct spec.parent");
                self.note(format!("Consumer {}", all[at].name), reason, message);
                parents[at] = None;
            }
        }
        parents
    }

    fn consumer(&mut self, row: &NamedConsumer, parent: Option<usize>, nodes: &[Node]) -> Consumer {
        let object = format!("Consumer {}", row.name);
        let weight = row.weight.unwrap_or(1);
        if !(1..=WEIGHT_MAX).contains(&weight) {
            let message =
                format!("weight {weight} is not from 1 to {WEIGHT_MAX}; the nearest one counts");
            self.note(object.clone(), "WeightOutOfRange", message);
        }
        if row.unlimited && parent.is_some() {
            self.note(
                object.clone(),
                "UnlimitedInGroup",
                "unlimited is only for Consumers without a parent; it is ignored",
            );
        }
        if row.unlimited && row.namespace.is_none() {
            self.note(
                object.clone(),
                "UnlimitedGroup",
                "unlimited is only for Consumers with a namespace; it is ignored. Set it for the members instead, without spec.parent",
            );
        }
        let hard = self.bounds(&object, &row.hard);
        let mut reserved = self.amounts(&object, &row.reserved);
        let names: Vec<String> = self.resources.names().map(str::to_owned).collect();
        for (place, name) in names.iter().enumerate() {
            if let Some(hard) = hard[place].filter(|hard| *hard < reserved[place]) {
                let shown = quantity_of(name, hard);
                let more = quantity_of(name, reserved[place]);
                // Rounded they may look alike.
                let by = if more == shown {
                    " by less than is shown"
                } else {
                    ""
                };
                let message = format!(
                    "reserved {more} of {name} is above hard {shown}{by}; counted as {shown}"
                );
                self.note(object.clone(), "ReservedAboveHard", message);
                reserved[place] = hard;
            }
            if reserved[place] > 0 && nodes.iter().all(|node| node.allocatable[place].is_none()) {
                let message = format!("{name} is reserved, and no node has it; it cannot be given");
                self.note(object.clone(), "UnknownResource", message);
            }
        }
        Consumer {
            weight: weight.clamp(1, WEIGHT_MAX),
            unlimited: row.unlimited && parent.is_none() && row.namespace.is_some(),
            parent,
            hard,
            reserved,
        }
    }

    fn pod(&mut self, pod: &NamedPod, indexes: &Indexes<'_>) -> Pod {
        let object = shown_pod(pod);
        if is_nothing(&pod.requests) {
            self.note(
                object.clone(),
                "NoRequests",
                "requests nothing; it counts as one of pods alone",
            );
        }
        let place_of = |name: &String| indexes.nodes.get(name.as_str()).copied();
        let not_there = || indexes.nodes.get(NOT_THERE).copied();
        let namespace = indexes
            .namespaces
            .get(pod.namespace.as_str())
            .copied()
            .unwrap_or_default();
        let budget = |name: &String| {
            indexes
                .budgets
                .get(&(pod.namespace.as_str(), name.as_str()))
                .copied()
        };
        Pod {
            uid: pod.uid.clone(),
            namespace,
            node: pod
                .node
                .as_ref()
                .and_then(|name| place_of(name).or_else(not_there)),
            requests: self.amounts(&object, &pod.requests),
            priority: pod.priority,
            age: pod.age,
            waiting: pod.waiting,
            leaving: pod.leaving,
            daemon: pod.daemon,
            nodes: pod
                .nodes
                .as_ref()
                .map(|nodes| nodes.iter().filter_map(place_of).collect()),
            budgets: pod.budgets.iter().filter_map(budget).collect(),
        }
    }
}

fn shown_pod(pod: &NamedPod) -> String {
    format!("Pod {}/{}", pod.namespace, pod.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consumer(name: &str, parent: Option<&str>) -> NamedConsumer {
        NamedConsumer {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            ..NamedConsumer::default()
        }
    }

    fn reasons(objects: &Objects) -> Vec<(String, &'static str)> {
        let conditions = objects.resolve().unwrap().conditions;
        conditions
            .into_iter()
            .map(|condition| (condition.object, condition.reason))
            .collect()
    }

    fn named(amounts: &[(&str, u64)]) -> Named {
        amounts
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), *amount))
            .collect()
    }

    #[test]
    fn amounts_are_said_as_quantities() {
        let objects = Objects {
            consumers: vec![NamedConsumer {
                namespace: Some("a".to_owned()),
                hard: named(&[("cpu", 1500), ("memory", 2 << 30)]),
                reserved: named(&[("cpu", 2000), ("memory", 1 << 61)]),
                ..consumer("a", None)
            }],
            ..Objects::default()
        };
        let conditions = objects.resolve().unwrap().conditions;
        let messages: Vec<&str> = conditions
            .iter()
            .map(|said| said.message.as_str())
            .collect();
        for message in [
            "2147483648Gi of memory is too much to compute with; counted as 1099511627775Mi",
            "reserved 2 of cpu is above hard 1500m; counted as 1500m",
        ] {
            assert!(messages.contains(&message), "{messages:?}");
        }
    }

    #[test]
    fn parents_that_cannot_be_are_left_out() {
        let leaf = NamedConsumer {
            namespace: Some("leaf".to_owned()),
            ..consumer("leaf", Some("b"))
        };
        let objects = Objects {
            consumers: vec![
                consumer("a", Some("b")),
                consumer("b", Some("a")),
                leaf,
                consumer("lost", Some("nobody")),
                consumer("under", Some("leaf")),
            ],
            ..Objects::default()
        };
        let reasons = reasons(&objects);
        assert_eq!(reasons[0], ("Consumer a".to_owned(), "Cycle"));
        assert!(reasons.contains(&("Consumer lost".to_owned(), "NoParent")));
        assert!(reasons.contains(&("Consumer under".to_owned(), "NoParent")));
        let cluster = objects.resolve().unwrap().cluster;
        let parents: Vec<_> = cluster
            .consumers
            .iter()
            .map(|consumer| consumer.parent)
            .collect();
        // a, b, leaf, lost, under
        assert_eq!(parents, [None, Some(0), Some(1), None, None]);
    }

    #[test]
    fn a_tree_of_more_than_eight_levels_is_cut() {
        let mut consumers = vec![consumer("g00", None)];
        consumers.extend(
            (1..30).map(|at| consumer(&format!("g{at:02}"), Some(&format!("g{:02}", at - 1)))),
        );
        let objects = Objects {
            consumers,
            ..Objects::default()
        };
        let parents: Vec<_> = objects
            .resolve()
            .unwrap()
            .cluster
            .consumers
            .iter()
            .map(|consumer| consumer.parent)
            .collect();
        for start in &parents {
            let (mut above, mut levels) = (*start, 1);
            while let Some(parent) = above {
                (above, levels) = (parents[parent], levels + 1);
            }
            assert!(levels <= LEVELS_MAX);
        }
    }

    #[test]
    fn amounts_weights_and_reservations_are_put_right() {
        let objects = Objects {
            consumers: vec![NamedConsumer {
                namespace: Some("a".to_owned()),
                weight: Some(0),
                hard: named(&[("cpu", 10), ("memory", u64::MAX)]),
                reserved: named(&[("cpu", 20)]),
                ..consumer("a", None)
            }],
            ..Objects::default()
        };
        let all: Vec<_> = reasons(&objects)
            .into_iter()
            .map(|(_, reason)| reason)
            .collect();
        assert_eq!(
            all,
            [
                "AmountTooLarge",
                "ReservedAboveHard",
                "UnknownResource",
                "WeightOutOfRange"
            ]
        );
        let cluster = objects.resolve().unwrap().cluster;
        assert_eq!(
            (
                cluster.consumers[0].weight,
                cluster.consumers[0].reserved[0]
            ),
            (1, 10)
        );
    }

    /// What a group asks for depends on what unlimited Consumers leave: so it cannot be one.
    #[test]
    fn a_group_is_not_unlimited() {
        let objects = Objects {
            consumers: vec![NamedConsumer {
                unlimited: true,
                ..consumer("group", None)
            }],
            ..Objects::default()
        };
        assert_eq!(
            reasons(&objects),
            [("Consumer group".to_owned(), "UnlimitedGroup")]
        );
        assert!(!objects.resolve().unwrap().cluster.consumers[0].unlimited);
    }

    #[test]
    fn every_namespace_has_a_consumer() {
        let objects = Objects {
            namespaces: ["kube-system", "web"].map(str::to_owned).into(),
            consumers: vec![consumer("web", None)],
            ..Objects::default()
        };
        let cluster = objects.resolve().unwrap().cluster;
        assert_eq!(cluster.names, ["kube-system", "namespace:web", "web"]);
        assert!(cluster.consumers[0].unlimited);
    }

    /// A tenant writes the node of its pod, and each pod can name another one.
    #[test]
    fn nodes_that_are_not_there_are_one() {
        let pod = |at: usize| NamedPod {
            uid: format!("u{at}"),
            namespace: "a".to_owned(),
            name: format!("p{at}"),
            node: Some(format!("made-up-{at}")),
            requests: named(&[("cpu", 1000), ("pods", 1)]),
            priority: 0,
            age: 0,
            waiting: 0,
            leaving: false,
            daemon: false,
            nodes: None,
            budgets: BTreeSet::new(),
        };
        let node = NamedNode {
            name: "n".to_owned(),
            allocatable: named(&[("cpu", 4000), ("pods", 110)]),
            withheld: Named::new(),
            state: NodeState::Ready,
        };
        let objects = Objects {
            nodes: vec![node],
            pods: (0..1000).map(pod).collect(),
            ..Objects::default()
        };
        let resolved = objects.resolve().unwrap();
        let nodes: Vec<(&str, NodeState)> = resolved
            .cluster
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node.state))
            .collect();
        assert_eq!(nodes, [("", NodeState::NotReady), ("n", NodeState::Ready)]);
        // They wait to come back, and each says so.
        assert!(resolved.cluster.pods.iter().all(|pod| pod.node == Some(0)));
        assert_eq!(resolved.conditions.len(), 1000);
    }
}
