//! `--what-if`: changes of a cluster before its shares are computed.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use plimsoll_core::arbitration::cluster::NodeState;
use plimsoll_core::arbitration::named::{
    Named, NamedConsumer, NamedNode, NamedPod, Objects, WEIGHT_MAX,
};
use plimsoll_core::kube::quantity::Quantity;

use crate::host::shown::Show as _;
use crate::input::cluster::in_canonical_units;

/// Pods that one change adds, at most.
const PODS_MAX: u64 = 100_000;

/// Pods that an added node takes if nothing else is said: the kubelet's `maxPods`.
const PODS_OF_A_NODE: u64 = 110;

/// Seconds that an added pod has waited: longer than any grace period.
const WAITED_S: u64 = 86_400;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// One more node.
    Node {
        /// What it has for pods.
        allocatable: BTreeMap<String, u64>,
    },
    /// Pending pods of a namespace, which is made if it is not there.
    Namespace {
        /// Its name.
        name: String,
        /// How many pods.
        pods: u64,
        /// What each requests.
        requests: BTreeMap<String, u64>,
    },
    /// Another weight.
    Weight {
        /// A Consumer, or a namespace without one.
        name: String,
        /// The weight.
        weight: u64,
    },
}

/// Why a change cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum WhatIfError {
    /// No such Consumer.
    #[error(
        "--what-if weight={0}: there is no such namespace or Consumer; run the command without --what-if to list them"
    )]
    Unknown(String),
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write node=RESOURCE=AMOUNT,…, namespace=NAME,pods=COUNT,RESOURCE=AMOUNT,… or weight=CONSUMER,WEIGHT";
        let (kind, rest) = text.split_once('=').ok_or(form)?;
        let mut parts = rest.split(',');
        match kind {
            "node" => {
                let mut allocatable = amounts(parts)?;
                allocatable
                    .entry("pods".to_owned())
                    .or_insert(PODS_OF_A_NODE);
                Ok(Self::Node { allocatable })
            }
            "namespace" => {
                let name = parts
                    .next()
                    .filter(|name| !name.is_empty() && !name.contains('='))
                    .ok_or(form)?;
                let (count, parts): (Vec<&str>, Vec<&str>) =
                    parts.partition(|part| part.starts_with("pods="));
                let count = count.iter().map(|part| part["pods=".len()..].parse().ok());
                let pods = match count.collect::<Vec<_>>()[..] {
                    [] => 1,
                    [Some(pods)] if (1..=PODS_MAX).contains(&pods) => pods,
                    _ => {
                        return Err(format!(
                            "pods is given once, as a whole number from 1 to {PODS_MAX}"
                        ));
                    }
                };
                let mut requests = amounts(parts.into_iter())?;
                requests.insert("pods".to_owned(), 1);
                let name = name.to_owned();
                Ok(Self::Namespace {
                    name,
                    pods,
                    requests,
                })
            }
            "weight" => {
                let (name, weight) = rest.rsplit_once(',').ok_or(form)?;
                let weight = weight
                    .parse()
                    .ok()
                    .filter(|weight| (1..=WEIGHT_MAX).contains(weight))
                    .ok_or("the weight is a whole number from 1 to 1000000")?;
                let name = name.to_owned();
                Ok(Self::Weight { name, weight })
            }
            _ => Err(form.to_owned()),
        }
    }
}

fn amounts<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Named, String> {
    let mut amounts = Named::new();
    for part in parts {
        let (name, amount) = part
            .split_once('=')
            .ok_or_else(|| format!("{part:?} is no RESOURCE=AMOUNT"))?;
        let quantity = Quantity::parse(amount).map_err(|error| error.to_string())?;
        if amount.starts_with('-') {
            return Err(format!("{part:?}: an amount is not negative"));
        }
        let before = amounts.insert(name.to_owned(), in_canonical_units(name, &quantity));
        if before.is_some() {
            return Err(format!("{name} is given twice; give it once"));
        }
    }
    Ok(amounts)
}

impl Change {
    /// Makes the change.
    ///
    /// # Errors
    /// The change is about a Consumer that is not there.
    pub(super) fn apply(&self, objects: &mut Objects) -> Result<(), WhatIfError> {
        match self {
            Self::Node { allocatable } => {
                // A colon is in no node's name.
                let name = format!("what-if:{}", objects.nodes.len());
                objects.nodes.push(NamedNode {
                    name,
                    allocatable: allocatable.clone(),
                    withheld: Named::new(),
                    state: NodeState::Ready,
                });
            }
            Self::Namespace {
                name,
                pods,
                requests,
            } => {
                objects.namespaces.insert(name.clone());
                let first = objects.pods.len();
                objects.pods.extend((0..*pods).map(|at| NamedPod {
                    uid: format!(
                        "what-if:{}",
                        first + usize::try_from(at).unwrap_or_default()
                    ),
                    namespace: name.clone(),
                    name: format!("what-if-{at}"),
                    node: None,
                    requests: requests.clone(),
                    priority: 0,
                    age: 0,
                    waiting: WAITED_S,
                    leaving: false,
                    daemon: false,
                    nodes: None,
                    budgets: BTreeSet::new(),
                }));
            }
            Self::Weight { name, weight } => set_weight(objects, name, *weight)?,
        }
        Ok(())
    }
}

fn set_weight(objects: &mut Objects, name: &str, weight: u64) -> Result<(), WhatIfError> {
    let is_meant = |consumer: &&mut NamedConsumer| {
        consumer.name == name || consumer.namespace.as_deref() == Some(name)
    };
    if let Some(consumer) = objects.consumers.iter_mut().find(is_meant) {
        consumer.weight = Some(weight);
        return Ok(());
    }
    if !objects.namespaces.contains(name) && !objects.pods.iter().any(|pod| pod.namespace == name) {
        return Err(WhatIfError::Unknown(name.shown().to_string()));
    }
    objects.consumers.push(NamedConsumer {
        name: name.to_owned(),
        namespace: Some(name.to_owned()),
        weight: Some(weight),
        ..NamedConsumer::default()
    });
    Ok(())
}
