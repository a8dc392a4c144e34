//! A cluster that is kept from cycle to cycle, and told of each pod that comes, changes or goes.
//!
//! Problem: between two cycles a few pods change, and counting all pods anew takes as long as all the rest of what is
//! decided.
//!
//! Approach: a change is noted, and marks its namespace. Only marked namespaces are counted again, and what namespaces
//! deserve is computed again only if one of them asks for something else or uses something else; of that, what a group
//! asks for only if one of its members does. Where nothing has changed the plan stays. The answers are those of
//! [`arbitrate`](super::arbitrate) for the same cluster, to the byte, but where a cycle
//! [cannot search for all](super::plan::turns). What couples all namespaces is computed as a whole: the common level of
//! a filling, and the plan. One pod more can change what each of the others deserves, so there is nothing to be kept of
//! that.
//!
//! Of nodes, Consumers and budgets there are few, and they seldom change: then a new [`IncrementalCluster`] is made. A
//! pod of a cordoned node changes what there is: then all is counted.

use std::collections::{BTreeMap, BTreeSet};

use super::Cycle;
use super::census::Census;
use super::cluster::{Cluster, NodeState, Pod};
use super::entitled::{entitled, overused};
use super::groups::{Asked, Deserved, deserve_again};
use super::plan::turns::Turns;
use super::plan::{Step, plan};

/// A cluster, and what was computed of it.
#[derive(Debug)]
pub struct IncrementalCluster {
    cluster: Cluster,
    /// The place of each pod, by its UID.
    places: BTreeMap<String, usize>,
    /// The places of each namespace's pods.
    of_namespaces: Vec<Vec<usize>>,
    census: Census,
    /// As of the last time; nothing: it is to be computed again.
    deserved: Option<Deserved>,
    asked: Asked,
    /// The same: what is done for each entitled pod.
    steps: Option<Vec<Step>>,
    turns: Turns,
    /// Namespaces with changes that are not counted yet.
    marked: BTreeSet<usize>,
    /// What there is has changed.
    is_capacity_void: bool,
}

impl IncrementalCluster {
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
            asked: Asked::default(),
            steps: None,
            turns: Turns::default(),
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
        let known = self.places.get(&pod.uid);
        if known.is_some_and(|at| self.cluster.pods[*at] == pod) {
            return;
        }
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

    /// Time passes: each pod runs, or waits, for so many seconds more. An entitled pod alone waits for an eviction: of
    /// others [`put`](Self::put) says so.
    pub fn pass(&mut self, seconds: u64) {
        if seconds > 0 {
            self.steps = None;
        }
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
        self.steps = None;
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
            self.asked = Asked::default();
        }
        for namespace in std::mem::take(&mut self.marked) {
            let before = self.census.asks[namespace].clone();
            self.census
                .recount(&self.cluster, namespace, &self.of_namespaces[namespace]);
            let ask = &self.census.asks[namespace];
            if ask.demand != before.demand || ask.used != before.used {
                self.deserved = None;
                self.asked.forget(&self.cluster.consumers, namespace);
            }
        }
        &self.census
    }

    /// What each Consumer deserves.
    pub fn deserved(&mut self) -> &Deserved {
        self.census();
        let (cluster, census, asked) = (&self.cluster, &self.census, &mut self.asked);
        self.deserved.get_or_insert_with(|| {
            deserve_again(&cluster.consumers, &census.asks, &census.capacity, asked)
        })
    }

    /// What is done for each entitled pod.
    pub fn steps(&mut self) -> &[Step] {
        self.deserved();
        // A cycle that could not search for all goes on where it was.
        if self.turns.waiting() > 0 {
            self.steps = None;
        }
        let (cluster, census, turns) = (&self.cluster, &self.census, &mut self.turns);
        let deserved = &self.deserved;
        self.steps.get_or_insert_with(|| {
            let Some(deserved) = deserved else {
                return Vec::new();
            };
            let entitled = entitled(cluster, census, deserved);
            plan(cluster, census, deserved, &entitled, turns)
        })
    }

    /// All of a cycle, as [`arbitrate`](super::arbitrate) has it.
    pub fn cycle(&mut self) -> Cycle {
        let steps = self.steps().to_vec();
        let deserved = self.deserved().clone();
        Cycle {
            overused: overused(&self.cluster.consumers, &self.census.asks, &deserved),
            census: self.census.clone(),
            deserved,
            steps,
        }
    }
}
