//! A cluster that is kept from cycle to cycle, and told of each pod that comes, changes or goes.
//!
//! Problem: between two cycles a few pods change, and counting all pods anew takes as long as all the rest of what is decided.
//!
//! Approach: a change is noted, and marks its namespace. Only marked namespaces are counted again, and what namespaces deserve is computed again only if one of them asks for something else
//! or uses something else. The answers are those of [`arbitrate`](super::arbitrate) for the same cluster, to the byte. What couples all namespaces is computed as a whole: the common
//! level of a filling, and the plan.
//!
//! Of nodes, Consumers and budgets there are few, and they seldom change: then a new [`Kept`] is made. A pod of a cordoned node changes what there is: then all is counted.

use std::collections::{BTreeMap, BTreeSet};

use super::Cycle;
use super::census::Census;
use super::cluster::{Cluster, NodeState, Pod};
use super::entitled::{entitled, overused};
use super::groups::{Deserved, deserve};
use super::plan::{Step, plan};

/// A cluster, and what was computed of it.
#[derive(Debug)]
pub struct Kept {
    cluster: Cluster,
    /// The place of each pod, by its UID.
    places: BTreeMap<String, usize>,
    /// The places of each namespace's pods.
    of_namespaces: Vec<Vec<usize>>,
    census: Census,
    /// As of the last time; nothing: it is to be computed again.
    deserved: Option<Deserved>,
    /// Namespaces with changes that are not counted yet.
    marked: BTreeSet<usize>,
    /// What there is has changed.
    is_capacity_void: bool,
}

impl Kept {
    /// From a whole cluster. Of pods with the same UID the last one counts.
    #[must_use]
    pub fn new(mut cluster: Cluster) -> Self {
        let pods = std::mem::take(&mut cluster.pods);
        let pods: BTreeMap<String, Pod> =
            pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        let places = pods.keys().cloned().zip(0..).collect();
        cluster.pods = pods.into_values().collect();
        let mut of_namespaces = vec![Vec::new(); cluster.consumers.len()];
        for (at, pod) in cluster.pods.iter().enumerate() {
            of_namespaces[pod.namespace].push(at);
        }
        Self {
            census: Census::of(&cluster),
            cluster,
            places,
            of_namespaces,
            deserved: None,
            marked: BTreeSet::new(),
            is_capacity_void: false,
        }
    }

    /// The cluster as it is: its pods in some order, to which places in answers refer until the next change.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// A pod has come, or is not any more what it was.
    pub fn put(&mut self, pod: Pod) {
        self.remove(&pod.uid);
        let at = self.cluster.pods.len();
        self.note(&pod);
        self.census
            .standings
            .push(self.census.standing(&self.cluster, &pod));
        self.places.insert(pod.uid.clone(), at);
        self.of_namespaces[pod.namespace].push(at);
        self.cluster.pods.push(pod);
    }

    /// A pod has gone: what it was, if it was known.
    pub fn remove(&mut self, uid: &str) -> Option<Pod> {
        let at = self.places.remove(uid)?;
        let pod = self.cluster.pods.swap_remove(at);
        self.census.standings.swap_remove(at);
        self.note(&pod);
        self.of_namespaces[pod.namespace].retain(|other| *other != at);
        // The last one has its place now.
        if let Some(moved) = self.cluster.pods.get(at) {
            let before = self.cluster.pods.len();
            self.places.insert(moved.uid.clone(), at);
            let known = [
                &mut self.of_namespaces[moved.namespace],
                &mut self.census.pending[moved.namespace],
            ];
            for place in known.into_iter().flatten() {
                if *place == before {
                    *place = at;
                }
            }
        }
        Some(pod)
    }

    /// Time passes: each pod runs, or waits, for so many seconds more. An entitled pod alone waits for an eviction: of others [`put`](Self::put) says so.
    pub fn pass(&mut self, seconds: u64) {
        // The order of pods by their times stays.
        for pod in &mut self.cluster.pods {
            let since = if pod.node.is_some() {
                &mut pod.age
            } else {
                &mut pod.waiting
            };
            *since = since.saturating_add(seconds);
        }
    }

    fn note(&mut self, pod: &Pod) {
        self.marked.insert(pod.namespace);
        let state = pod.node.map(|node| self.cluster.nodes[node].state);
        self.is_capacity_void |= state == Some(NodeState::Cordoned);
    }

    /// What there is, and who asks for it.
    pub fn census(&mut self) -> &Census {
        if std::mem::take(&mut self.is_capacity_void) {
            self.marked.clear();
            self.census = Census::of(&self.cluster);
            self.deserved = None;
        }
        for namespace in std::mem::take(&mut self.marked) {
            let before = self.census.asks[namespace].clone();
            self.census
                .recount(&self.cluster, namespace, &self.of_namespaces[namespace]);
            let ask = &self.census.asks[namespace];
            if ask.demand != before.demand || ask.used != before.used {
                self.deserved = None;
            }
        }
        &self.census
    }

    /// What each Consumer deserves.
    pub fn deserved(&mut self) -> &Deserved {
        self.census();
        let (cluster, census) = (&self.cluster, &self.census);
        self.deserved
            .get_or_insert_with(|| deserve(&cluster.consumers, &census.asks, &census.capacity))
    }

    /// What is done for each entitled pod.
    pub fn steps(&mut self) -> Vec<Step> {
        self.deserved();
        let Some(deserved) = &self.deserved else {
            return Vec::new();
        };
        let entitled = entitled(&self.cluster, &self.census, deserved);
        plan(&self.cluster, &self.census, deserved, &entitled)
    }

    /// All of a cycle, as [`arbitrate`](super::arbitrate) has it.
    pub fn cycle(&mut self) -> Cycle {
        let steps = self.steps();
        let deserved = self.deserved().clone();
        Cycle {
            overused: overused(&self.cluster.consumers, &self.census.asks, &deserved),
            census: self.census.clone(),
            deserved,
            steps,
        }
    }
}
