//! `arbitration_plan`: a whole cycle of the arbitrator, from nodes, Consumers, pods and budgets to amounts and a plan.
//!
//! Where the first preemption takes other victims than expected, and the vector lists both sets as acceptable, the
//! vector is counted apart. Later steps then say nothing, as they depend on it.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::arbitration::amounts::Resources;
use plimsoll_core::arbitration::arbitrate;
use plimsoll_core::arbitration::census::PodUse;
use plimsoll_core::arbitration::cluster::{Cluster, Node, NodeState, Options, Pod};
use plimsoll_core::arbitration::groups::Consumer;
use plimsoll_core::arbitration::plan::{Action, Step};
use serde::Deserialize;
use serde_json::Value;

use super::drf_deserved::{ConsumerInput, amounts, bounds, named};
use super::{Verdict, read, same};

type Named = BTreeMap<String, u64>;

#[derive(Deserialize)]
struct Vector {
    nodes: Vec<NodeInput>,
    consumers: Vec<ConsumerInput>,
    pods: Vec<PodInput>,
    budgets: Vec<BudgetInput>,
    options: OptionsInput,
    expected: Expected,
}

#[derive(Deserialize)]
struct NodeInput {
    name: String,
    allocatable: Named,
    state: Option<String>,
    #[serde(default)]
    withheld: Named,
}

#[derive(Deserialize)]
struct PodInput {
    uid: String,
    namespace: String,
    node: Option<String>,
    requests: Named,
    priority: i64,
    age: u64,
    waiting: u64,
    #[serde(default)]
    leaving: bool,
    #[serde(default)]
    daemon: bool,
    nodes: Option<Vec<String>>,
    #[serde(default)]
    budgets: Vec<String>,
}

#[derive(Deserialize)]
struct BudgetInput {
    name: String,
    namespace: String,
    allowed: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OptionsInput {
    max_evictions_per_cycle: Option<usize>,
}

#[derive(Deserialize)]
struct Expected {
    capacity: Named,
    deserved: BTreeMap<String, Named>,
    overused: BTreeMap<String, Vec<String>>,
    never_fits: BTreeSet<String>,
    steps: Vec<ExpectedStep>,
    first_preemption: Option<FirstPreemption>,
}

#[derive(Deserialize, PartialEq, Debug)]
struct ExpectedStep {
    pod: String,
    action: String,
    node: Option<String>,
    #[serde(default)]
    evict: Vec<String>,
}

#[derive(Deserialize)]
struct FirstPreemption {
    pod: String,
    minimum: usize,
    acceptable: Vec<(String, BTreeSet<String>)>,
}

pub(super) fn check(vector: &Value) -> Verdict {
    match read(vector).and_then(compare) {
        Ok(None) => Verdict::Pass,
        Ok(Some(difference)) => Verdict::Acceptable(difference),
        Err(why) => Verdict::Fail { why },
    }
}

/// How the plan differs, if it does and may.
fn compare(mut vector: Vector) -> Result<Option<String>, String> {
    vector.consumers.sort_by(|a, b| a.name.cmp(&b.name));
    vector.nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let cluster = cluster(&vector)?;
    let cycle = arbitrate(&cluster);
    let expected = &vector.expected;
    let resources = &cluster.resources;
    let capacity = cycle
        .census
        .capacity
        .iter()
        .map(|capacity| capacity.unwrap_or(0))
        .collect();
    same(
        "capacity",
        &named(resources, &capacity, |_| true),
        &expected.capacity,
    )?;
    let deserved = cluster.names.iter().zip(&cycle.deserved.amounts);
    let deserved = deserved.map(|(name, row)| (name.clone(), named(resources, row, |_| true)));
    same("deserved", &deserved.collect(), &expected.deserved)?;
    let names: Vec<&str> = resources.names().collect();
    let overused = cycle.overused.iter().map(|(consumer, over)| {
        let over = over.iter().map(|place| names[place].to_owned());
        (cluster.names[*consumer].clone(), over.collect())
    });
    same("overused", &overused.collect(), &expected.overused)?;
    let never_fits = cluster.pods.iter().zip(&cycle.census.standings);
    let never_fits = never_fits.filter(|(_, standing)| **standing == PodUse::NeverFits);
    same(
        "never_fits",
        &never_fits.map(|(pod, _)| pod.uid.clone()).collect(),
        &expected.never_fits,
    )?;
    let steps: Vec<ExpectedStep> = cycle
        .steps
        .iter()
        .map(|step| shown(&cluster, step))
        .collect();
    let difference = same("steps", &steps, &expected.steps).err();
    let Some(first) = &expected.first_preemption else {
        let preempts = steps.iter().any(is_preemption);
        same("first_preemption", &preempts, &false)?;
        return difference.map_or(Ok(None), Err);
    };
    let at = steps.iter().position(is_preemption);
    let at = at.ok_or("first_preemption: got none")?;
    same("first_preemption/pod", &steps[at].pod, &first.pod)?;
    same(
        "first_preemption/minimum",
        &steps[at].evict.len(),
        &first.minimum,
    )?;
    let Some(difference) = difference else {
        return Ok(None);
    };
    let expected = &expected.steps;
    let may_differ = expected.len() > at
        && steps[..at] == expected[..at]
        && is_preemption(&expected[at])
        && expected[at].pod == steps[at].pod
        && steps[at] != expected[at]
        && first.allows(&steps[at])
        && first.allows(&expected[at]);
    if may_differ {
        Ok(Some(difference))
    } else {
        Err(difference)
    }
}

fn is_preemption(step: &ExpectedStep) -> bool {
    step.action == "Preempt"
}

impl FirstPreemption {
    fn allows(&self, step: &ExpectedStep) -> bool {
        let evict: BTreeSet<String> = step.evict.iter().cloned().collect();
        let mut sets = self.acceptable.iter();
        sets.any(|(node, set)| step.node.as_ref() == Some(node) && evict == *set)
    }
}

fn shown(cluster: &Cluster, step: &Step) -> ExpectedStep {
    let uid = |pod: &usize| cluster.pods[*pod].uid.clone();
    let (action, node, evict) = match &step.action {
        Action::Fits { node } => ("Fits", Some(*node), Vec::new()),
        Action::Leaving { node } => ("Leaving", Some(*node), Vec::new()),
        Action::Grace => ("Grace", None, Vec::new()),
        Action::Preempt { node, evict } => {
            ("Preempt", Some(*node), evict.iter().map(uid).collect())
        }
        Action::Blocked => ("Blocked", None, Vec::new()),
        Action::Limited => ("Limited", None, Vec::new()),
    };
    ExpectedStep {
        pod: uid(&step.pod),
        action: action.to_owned(),
        node: node.map(|node| cluster.nodes[node].name.clone()),
        evict,
    }
}

fn cluster(vector: &Vector) -> Result<Cluster, String> {
    let resources = Resources::new(names(vector)).map_err(|error| error.to_string())?;
    let position = |what: &str, name: &String, names: &[&String]| {
        let found = names.iter().position(|known| *known == name);
        found.ok_or_else(|| format!("no {what} {name}"))
    };
    let node_names: Vec<&String> = vector.nodes.iter().map(|node| &node.name).collect();
    let consumer_names: Vec<&String> = vector
        .consumers
        .iter()
        .map(|consumer| &consumer.name)
        .collect();
    let budget_of = |namespace: &String, name: &String| {
        let mut budgets = vector.budgets.iter();
        let found =
            budgets.position(|budget| budget.namespace == *namespace && budget.name == *name);
        found.ok_or_else(|| format!("no budget {namespace}/{name}"))
    };
    let node_of = |name: &String| position("node", name, &node_names);
    let pods = vector.pods.iter().map(|pod| {
        let nodes = pod.nodes.as_ref().map(|nodes| {
            let mut nodes = nodes.iter().map(node_of).collect::<Result<Vec<_>, _>>()?;
            nodes.sort_unstable();
            Ok::<_, String>(nodes)
        });
        Ok(Pod {
            uid: pod.uid.clone(),
            namespace: position("consumer", &pod.namespace, &consumer_names)?,
            node: pod.node.as_ref().map(node_of).transpose()?,
            requests: amounts(&resources, &pod.requests),
            priority: pod.priority,
            age: pod.age,
            waiting: pod.waiting,
            leaving: pod.leaving,
            daemon: pod.daemon,
            nodes: nodes.transpose()?.map(std::sync::Arc::from),
            budgets: pod
                .budgets
                .iter()
                .map(|budget| budget_of(&pod.namespace, budget))
                .collect::<Result<_, _>>()?,
        })
    });
    let pods = pods.collect::<Result<_, String>>()?;
    let consumers = vector.consumers.iter().map(|input| {
        let parent = input
            .parent
            .as_ref()
            .map(|parent| position("consumer", parent, &consumer_names));
        Ok(Consumer {
            parent: parent.transpose()?,
            weight: input.weight.unwrap_or(1),
            hard: bounds(&resources, &input.hard),
            reserved: amounts(&resources, &input.reserved),
            unlimited: input.unlimited,
        })
    });
    let defaults = Options::default();
    Ok(Cluster {
        nodes: vector
            .nodes
            .iter()
            .map(|node| self::node(&resources, node))
            .collect::<Result<_, _>>()?,
        consumers: consumers.collect::<Result<_, String>>()?,
        names: vector
            .consumers
            .iter()
            .map(|consumer| consumer.name.clone())
            .collect(),
        pods,
        budgets: vector.budgets.iter().map(|budget| budget.allowed).collect(),
        options: Options {
            max_evictions_per_cycle: vector
                .options
                .max_evictions_per_cycle
                .unwrap_or(defaults.max_evictions_per_cycle),
            ..defaults
        },
        resources,
    })
}

fn node(resources: &Resources, node: &NodeInput) -> Result<Node, String> {
    Ok(Node {
        name: node.name.clone(),
        allocatable: bounds(resources, &node.allocatable),
        withheld: amounts(resources, &node.withheld),
        state: match node.state.as_deref() {
            None | Some("Ready") => NodeState::Ready,
            Some("Cordoned") => NodeState::Cordoned,
            Some("NotReady") => NodeState::NotReady,
            Some(other) => return Err(format!("unknown state {other}")),
        },
    })
}

fn names(vector: &Vector) -> BTreeSet<String> {
    let nodes = vector
        .nodes
        .iter()
        .flat_map(|node| [&node.allocatable, &node.withheld]);
    let consumers = vector
        .consumers
        .iter()
        .flat_map(|consumer| [&consumer.hard, &consumer.reserved]);
    let pods = vector.pods.iter().map(|pod| &pod.requests);
    nodes
        .chain(consumers)
        .chain(pods)
        .flat_map(|named| named.keys().cloned())
        .collect()
}
