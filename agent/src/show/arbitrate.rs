//! A cycle of the arbitrator as a table, as JSON and, in [`svg`], as a picture.

pub(crate) mod svg;

use plimsoll_core::arbitration::Cycle;
use plimsoll_core::arbitration::amounts::{AMOUNT_LIMIT, Amounts};
use plimsoll_core::arbitration::census::PodUse;
use plimsoll_core::arbitration::cluster::Cluster;
use plimsoll_core::arbitration::fill::ONE;
use plimsoll_core::arbitration::named::{Condition, NamedPod};
use plimsoll_core::arbitration::plan::Action;
use serde_json::{Map, Value, json};

use crate::host::output::Style;
use crate::host::shown::{Show as _, line};
use crate::show::table::{Table, Tone, bytes, percent_of};

/// How many namespaces an answer to "who has the rest" names.
const HOLDERS_MAX: usize = 8;

/// What is shown.
pub(crate) struct Answer<'a> {
    cluster: &'a Cluster,
    cycle: &'a Cycle,
    /// The cluster's pods, with their names.
    pods: &'a [NamedPod],
    conditions: &'a [Condition],
    /// Without the changes of `--what-if`.
    before: Option<(&'a Cluster, &'a Cycle)>,
    is_group: Vec<bool>,
    /// What pods ask for; of groups the sums.
    asked: Vec<Amounts>,
}

/// An amount as people read it.
pub(crate) fn amount(resource: &str, amount: u64) -> String {
    match resource {
        "cpu" | "limits.cpu" if amount.is_multiple_of(1000) => (amount / 1000).to_string(),
        "cpu" | "limits.cpu" => format!("{amount}m"),
        _ if resource.contains("memory")
            || resource.contains("storage")
            || resource.starts_with("hugepages-") =>
        {
            bytes(amount.into())
        }
        _ => amount.to_string(),
    }
}

impl<'a> Answer<'a> {
    pub(crate) fn new(
        cluster: &'a Cluster,
        cycle: &'a Cycle,
        pods: &'a [NamedPod],
        conditions: &'a [Condition],
        before: Option<(&'a Cluster, &'a Cycle)>,
    ) -> Self {
        let mut answer = Self {
            cluster,
            cycle,
            pods,
            conditions,
            before,
            is_group: vec![false; cluster.consumers.len()],
            asked: cycle
                .census
                .asks
                .iter()
                .map(|ask| ask.demand.total.clone())
                .collect(),
        };
        for (at, _) in answer.tree().into_iter().rev() {
            let Some(parent) = cluster.consumers[at].parent else {
                continue;
            };
            answer.is_group[parent] = true;
            for resource in 0..cluster.resources.len() {
                let sum = answer.asked[parent][resource].saturating_add(answer.asked[at][resource]);
                answer.asked[parent][resource] = sum;
            }
        }
        answer
    }

    fn names(&self) -> Vec<&str> {
        self.cluster.resources.names().collect()
    }

    /// Consumers in the order of the tree, each with its level.
    fn tree(&self) -> Vec<(usize, usize)> {
        let mut children = vec![Vec::new(); self.cluster.names.len()];
        let mut open = Vec::new();
        for (at, consumer) in self.cluster.consumers.iter().enumerate().rev() {
            match consumer.parent {
                Some(parent) => children[parent].push((at, 0)),
                None => open.push((at, 0)),
            }
        }
        let mut tree = Vec::new();
        while let Some((at, level)) = open.pop() {
            tree.push((at, level));
            open.extend(children[at].iter().map(|(child, _)| (*child, level + 1)));
        }
        tree
    }

    /// What a Consumer deserved before the changes.
    fn was(&self, at: usize, resource: &str) -> Option<u64> {
        let (cluster, cycle) = self.before?;
        let consumer = cluster
            .names
            .iter()
            .position(|name| *name == self.cluster.names[at])?;
        Some(cycle.deserved.amounts[consumer][cluster.resources.place(resource)?])
    }

    fn is_shown(&self, at: usize, resource: usize) -> bool {
        let consumer = &self.cluster.consumers[at];
        let amounts = [
            self.cycle.deserved.used[at][resource],
            self.asked[at][resource],
            consumer.reserved[resource],
        ];
        amounts.iter().any(|amount| *amount > 0)
    }

    /// The whole answer as text.
    pub(crate) fn text(&self, style: Style) -> String {
        let mut text = self.shares(style);
        text += "\n";
        text += &self.plan();
        let found = self.found();
        if !self.conditions.is_empty() || !found.is_empty() {
            text += "\nConditions:\n";
        }
        for condition in self.conditions.iter().chain(&found) {
            text += &format!(
                "  {}: {}: {}\n",
                line(&condition.object),
                condition.reason,
                line(&condition.message)
            );
        }
        text
    }

    fn shares(&self, style: Style) -> String {
        let heading: &[&'static str] = match self.before {
            None => &[
                "CONSUMER",
                "RESOURCE",
                "RESERVED",
                "DESERVED",
                "USED",
                "ASKED FOR",
                "HARD",
                "STATE",
            ],
            Some(_) => &[
                "CONSUMER",
                "RESOURCE",
                "RESERVED",
                "DESERVED",
                "USED",
                "ASKED FOR",
                "HARD",
                "WAS",
                "STATE",
            ],
        };
        let mut table = Table::new(heading, &[2, 3, 4, 5, 6]);
        for (at, level) in self.tree() {
            let consumer = &self.cluster.consumers[at];
            for (resource, name) in self.names().into_iter().enumerate() {
                if !self.is_shown(at, resource) {
                    continue;
                }
                let shown = |value: u64| amount(name, value);
                let (deserved, used) = (
                    self.cycle.deserved.amounts[at][resource],
                    self.cycle.deserved.used[at][resource],
                );
                let asked = self.asked[at][resource];
                let is_judged = !self.is_group[at] && !consumer.unlimited;
                let (tone, state) = match is_judged {
                    true if used > deserved => {
                        (Tone::Marked, format!("over by {}", shown(used - deserved)))
                    }
                    true if used < deserved => {
                        (Tone::Plain, format!("under by {}", shown(deserved - used)))
                    }
                    _ => (Tone::Plain, String::new()),
                };
                let hard = consumer.hard[resource].map_or_else(|| "-".to_owned(), shown);
                let reserved = consumer.reserved[resource];
                let mut cells = vec![
                    format!("{}{}", "  ".repeat(level), self.cluster.names[at]),
                    name.to_owned(),
                    if reserved > 0 {
                        shown(reserved)
                    } else {
                        "-".to_owned()
                    },
                    shown(deserved),
                    shown(used),
                    shown(asked),
                    hard,
                ];
                if self.before.is_some() {
                    cells.push(self.was(at, name).map_or_else(|| "-".to_owned(), shown));
                }
                cells.push(state);
                table.row(tone, cells);
            }
        }
        table.render(style)
    }

    fn pod(&self, at: usize) -> String {
        format!("{}/{}", self.pods[at].namespace, self.pods[at].name)
    }

    fn plan(&self) -> String {
        if self.cycle.steps.is_empty() {
            return "No pending pod may run within what its namespace deserves: nothing is planned.\n".to_owned();
        }
        let mut text = "Plan:\n".to_owned();
        for step in &self.cycle.steps {
            let node = |node: &usize| self.cluster.nodes[*node].name.as_str();
            let what = match &step.action {
                Action::Fits { node: at } => format!("fits on {}", node(at)),
                Action::Leaving { node: at } => {
                    format!("will fit on {} when pods there have left", node(at))
                }
                Action::Grace => "waits: not long enough yet for an eviction".to_owned(),
                Action::Preempt { node: at, evict } => {
                    let evict: Vec<String> = evict.iter().map(|pod| self.pod(*pod)).collect();
                    format!("gets room on {}: evict {}", node(at), evict.join(", "))
                }
                Action::Blocked => {
                    "is blocked: no pods may be evicted that would make room".to_owned()
                }
                Action::Limited => "waits: this cycle evicts enough already, or has looked for victims for long enough".to_owned(),
            };
            text += &format!("  {} {}\n", line(&self.pod(step.pod)), line(&what));
        }
        text
    }

    /// What shows only when all is computed: where more is reserved than there is, and pods that could never run.
    fn found(&self) -> Vec<Condition> {
        let names = self.names();
        let mut conditions = Vec::new();
        if self.cluster.nodes.is_empty() {
            conditions.push(Condition {
                object: "Cluster".to_owned(),
                reason: "NoNodes",
                message: "no Node is among the objects, so that nothing bounds what namespaces deserve but their hard, and no pod fits anywhere. Add what `kubectl get nodes -o yaml` prints".to_owned(),
            });
        }
        for (resource, name) in names.iter().enumerate() {
            let nodes = self.cluster.nodes.iter();
            let all = nodes.filter_map(|node| node.allocatable[resource]);
            let all: u128 = all.map(u128::from).sum();
            if all >= AMOUNT_LIMIT.into() {
                conditions.push(Condition {
                    object: "Cluster".to_owned(),
                    reason: "AmountTooLarge",
                    message: format!(
                        "all nodes together have more {name} than can be computed with; it is counted as {} at most",
                        amount(name, AMOUNT_LIMIT - 1)
                    ),
                });
            }
        }
        for (at, standing) in self.cycle.census.standings.iter().enumerate() {
            if *standing == PodUse::NeverFits {
                conditions.push(Condition {
                    object: format!("Pod {}", self.pod(at)),
                    reason: "NeverFits",
                    message: "no node that is ready and that it may use could hold it, even an empty one; it is not asked for. Lower its requests, or add such a node".to_owned(),
                });
            }
        }
        for (at, shortage) in self.cycle.deserved.shortages.iter().enumerate() {
            let group = self.cluster.names.get(at);
            let object =
                group.map_or_else(|| "Cluster".to_owned(), |name| format!("Consumer {name}"));
            for (resource, short) in shortage
                .iter()
                .flatten()
                .enumerate()
                .filter(|(_, short)| **short > 0)
            {
                conditions.push(Condition {
                    object: object.clone(),
                    reason: "OverReserved",
                    message: format!(
                        "{} of {} more is reserved than there is; each gets its part",
                        amount(names[resource], *short),
                        names[resource]
                    ),
                });
            }
        }
        conditions
    }

    /// Why a namespace has no more.
    pub(crate) fn why(&self, at: usize) -> String {
        let names = self.names().into_iter();
        let names: Vec<String> = names.map(|name| name.shown().to_string()).collect();
        let consumer = &self.cluster.consumers[at];
        let (deserved, capacity) = (
            &self.cycle.deserved.amounts[at],
            &self.cycle.census.capacity,
        );
        let shares = (0..names.len()).filter_map(|resource| {
            Some((
                deserved[resource],
                capacity[resource].filter(|capacity| *capacity > 0)?,
                resource,
            ))
        });
        let greatest = shares
            .max_by_key(|(part, whole, _)| u128::from(*part) * (1 << 60) / u128::from(*whole));
        let name = self.cluster.names[at].shown();
        let mut text = format!("{name} has weight {}", consumer.weight);
        if let Some((part, whole, resource)) = greatest.filter(|(part, ..)| *part > 0) {
            text += &format!(
                " and deserves {} of the cluster's {} ({} of {}), its greatest share.\n",
                percent_of(part.into(), whole.into()),
                names[resource],
                amount(&names[resource], part),
                amount(&names[resource], whole)
            );
        } else {
            text += ".\n";
        }
        let demand = &self.cycle.census.asks[at].demand;
        if demand.is_nothing() {
            return text + "Its pods ask for nothing.\n";
        }
        let mut used_up: Vec<usize> = Vec::new();
        for (class, end) in demand.classes.iter().zip(&self.cycle.deserved.ends[at]) {
            let needs = class.needs.iter().map(|resource| names[resource].as_str());
            let needs: Vec<&str> = needs.collect();
            text += &format!(
                "Pods that request {}: {} of what they ask for",
                needs.join(", "),
                percent_of(end.fraction, ONE)
            );
            match end.ended_by {
                Some(resource) => {
                    text += &format!(
                        "; ended by {}, which is used up or bounded above.\n",
                        names[resource]
                    );
                    used_up.push(resource);
                }
                None => text += ".\n",
            }
        }
        used_up.sort_unstable();
        used_up.dedup();
        for resource in used_up {
            text += &self.holders(at, resource);
        }
        let passed_over = self.cycle.census.asks[at].passed_over;
        if passed_over > 0 {
            text += &format!("{passed_over} of its pods are beyond its hard and not counted.\n");
        }
        text
    }

    /// Who has the rest of a resource.
    fn holders(&self, at: usize, resource: usize) -> String {
        let name = self.names()[resource];
        let leaves = (0..self.cluster.consumers.len())
            .filter(|other| *other != at && !self.is_group[*other]);
        let mut holders: Vec<(u64, usize)> = leaves
            .map(|other| (self.cycle.deserved.amounts[other][resource], other))
            .filter(|(part, _)| *part > 0)
            .collect();
        holders.sort_by_key(|(part, other)| (std::cmp::Reverse(*part), *other));
        let more = holders.len().saturating_sub(HOLDERS_MAX);
        let shown = holders.iter().take(HOLDERS_MAX).map(|(part, other)| {
            let other = self.cluster.names[*other].shown();
            format!("{other} {}", amount(name, *part))
        });
        let shown: Vec<String> = shown.collect();
        let mut text = format!(
            "The rest of {}: {}",
            name.shown(),
            if shown.is_empty() {
                "no other namespace".to_owned()
            } else {
                shown.join(", ")
            }
        );
        if more > 0 {
            text += &format!(", and {more} more");
        }
        text + ".\n"
    }

    /// The whole answer as JSON, in canonical units: CPU in thousandths, everything else in its unit.
    pub(crate) fn json(&self) -> Value {
        let consumers: Vec<Value> = self
            .tree()
            .into_iter()
            .map(|(at, _)| self.consumer_json(at))
            .collect();
        let found = self.found();
        let conditions = self.conditions.iter().chain(&found).map(|condition| json!({"object": condition.object, "reason": condition.reason, "message": condition.message}));
        let capacity = self
            .names()
            .into_iter()
            .zip(&self.cycle.census.capacity)
            .filter_map(|(name, capacity)| Some((name.to_owned(), json!((*capacity)?))));
        json!({
            "capacity": capacity.collect::<Map<_, _>>(),
            "consumers": consumers,
            "steps": self.cycle.steps.iter().map(|step| self.step_json(step.pod, &step.action)).collect::<Vec<_>>(),
            "conditions": conditions.collect::<Vec<_>>(),
        })
    }

    fn consumer_json(&self, at: usize) -> Value {
        let consumer = &self.cluster.consumers[at];
        let mut resources = Map::new();
        for (resource, name) in self
            .names()
            .into_iter()
            .enumerate()
            .filter(|(resource, _)| self.is_shown(at, *resource))
        {
            let mut amounts = json!({
                "reserved": consumer.reserved[resource],
                "deserved": self.cycle.deserved.amounts[at][resource],
                "used": self.cycle.deserved.used[at][resource],
                "askedFor": self.asked[at][resource],
                "hard": consumer.hard[resource],
            });
            if self.before.is_some() {
                amounts["deservedBefore"] = json!(self.was(at, name));
            }
            resources.insert(name.to_owned(), amounts);
        }
        let names = self.names();
        let overused = self.cycle.overused.iter().filter(|(other, _)| *other == at);
        let overused: Vec<&str> = overused
            .flat_map(|(_, over)| over.iter())
            .map(|resource| names[resource])
            .collect();
        json!({
            "name": self.cluster.names[at],
            "parent": consumer.parent.map(|parent| &self.cluster.names[parent]),
            "weight": consumer.weight,
            "unlimited": consumer.unlimited,
            "resources": resources,
            "overused": overused,
            "passedOver": self.cycle.census.asks[at].passed_over,
        })
    }

    fn step_json(&self, pod: usize, action: &Action) -> Value {
        let (name, node, evict) = match action {
            Action::Fits { node } => ("Fits", Some(node), None),
            Action::Leaving { node } => ("Leaving", Some(node), None),
            Action::Grace => ("Grace", None, None),
            Action::Preempt { node, evict } => ("Preempt", Some(node), Some(evict)),
            Action::Blocked => ("Blocked", None, None),
            Action::Limited => ("Limited", None, None),
        };
        let mut step = json!({"pod": self.pod(pod), "action": name});
        if let Some(node) = node {
            step["node"] = json!(self.cluster.nodes[*node].name);
        }
        if let Some(evict) = evict {
            step["evict"] = evict.iter().map(|pod| self.pod(*pod)).collect();
        }
        step
    }
}
