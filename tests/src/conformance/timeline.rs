//! `eviction_timeline`: the kubelet's `synchronize`, step by step.
//!
//! The engine gets what the kubelet got: the same observations at the same times. A pod that it evicts leaves at once
//! and is back in the next step, as in the vectors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::{Decision, FreeSource, Reason};
use plimsoll_core::model::event::{Cause, Event, EventKind};
use plimsoll_core::model::reading::{PodProcesses, ProcessReading, StorageReading};
use plimsoll_core::model::signal::{NodeCondition, Observation, Observations, Signal};
use plimsoll_core::model::state::ThresholdState;
use plimsoll_core::model::threshold::for_layout;
use serde::Deserialize;
use serde_json::Value;

use super::stats::Entry;
use super::thresholds::{ExpectedThreshold, Settings, as_keys, lasting, layout, same_thresholds};
use super::{Verdict, read, same};

const S: u64 = 1_000_000_000;

#[derive(Deserialize)]
struct Vector {
    #[serde(flatten)]
    settings: Settings,
    effective_thresholds: Vec<ExpectedThreshold>,
    dedicated_image_fs: bool,
    split_container_image_fs: bool,
    pressure_transition_period_s: u64,
    max_pod_grace_period_s: i64,
    pods: Vec<Entry>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    t: u64,
    observations: BTreeMap<String, ExpectedObservation>,
    observations_after_node_reclaim: Option<BTreeMap<String, ExpectedObservation>>,
    first_observed: Vec<FirstObserved>,
    thresholds_met_after_grace: Vec<ExpectedThreshold>,
    thresholds_with_updated_stats: Vec<ExpectedThreshold>,
    node_conditions: Vec<String>,
    reclaim_candidates: Vec<ExpectedThreshold>,
    ambiguous_choice: bool,
    evicted_pod: Option<String>,
    grace_period_override: Option<i64>,
    /// `null` where it depends on an ambiguous choice.
    node_reclaim: Option<NodeReclaim>,
}

#[derive(Deserialize)]
struct ExpectedObservation {
    available: u64,
    capacity: u64,
    time: Option<u64>,
}

#[derive(Deserialize)]
struct FirstObserved {
    first_observed_at: u64,
    #[serde(flatten)]
    threshold: ExpectedThreshold,
}

#[derive(Deserialize, PartialEq, Eq, Debug, Default)]
struct NodeReclaim {
    container_gc: u32,
    image_gc: u32,
}

pub(super) fn check(vector: &Value) -> Verdict {
    Verdict::of(read(vector).and_then(timeline))
}

fn timeline(vector: Vector) -> Result<(), String> {
    let layout = layout(vector.dedicated_image_fs, vector.split_container_image_fs)
        .ok_or("split without dedicated")?;
    let thresholds = for_layout(&vector.settings.settings(), layout);
    let config = EngineConfig {
        thresholds: thresholds.map_err(|error| error.to_string())?,
        layout,
        local_storage_limits: false,
        pressure_transition_period_ns: vector.pressure_transition_period_s * S,
        max_pod_grace_period_s: vector.max_pod_grace_period_s,
        ..EngineConfig::default()
    };
    same_thresholds(
        "effective thresholds",
        lasting(&config.thresholds),
        vector.effective_thresholds,
    )?;
    let mut node = Node {
        engine: with_pods(config, vector.pods),
        now_ns: 0,
    };
    for step in vector.steps {
        let t = step.t;
        node.step(step).map_err(|why| format!("t = {t}: {why}"))?;
    }
    Ok(())
}

/// An engine that knows the pods and what they use, and nothing of the node.
fn with_pods(config: EngineConfig, pods: Vec<Entry>) -> Engine {
    let mut engine = Engine::new(config.clone());
    let mut storage = Vec::new();
    let mut processes = Vec::new();
    let mut working_sets = BTreeMap::new();
    for Entry { pod, stats } in pods {
        let pod = pod.with_defaults();
        let uid = pod.uid();
        if let Some(stats) = stats {
            storage.push(stats.storage(&pod));
            processes.push(PodProcesses {
                uid: uid.clone(),
                processes: stats.process_count.unwrap_or(0),
            });
            working_sets.insert(uid.clone(), stats.memory_working_set_bytes.unwrap_or(0));
        }
        for kind in [
            EventKind::PodApplied { pod: Arc::new(pod) },
            EventKind::PodRunning { uid },
        ] {
            engine.step(&Event { at_ns: 0, kind }, &mut Vec::new());
        }
    }
    storage.sort_unstable_by(|a, b| a.uid.cmp(&b.uid));
    processes.sort_unstable_by(|a, b| a.uid.cmp(&b.uid));
    let mut state = engine.state().clone();
    state.storage = Some(Arc::new(StorageReading {
        nodefs: None,
        imagefs: None,
        containerfs: None,
        pods: storage,
    }));
    state.processes = Some(Arc::new(ProcessReading {
        at_ns: 0,
        max: 0,
        running: 0,
        pods: processes,
    }));
    for (uid, pod) in &mut state.pods {
        if let Some(working_set) = working_sets.get(uid) {
            pod.row.stats_known = true;
            pod.row.usage = *working_set;
        }
    }
    Engine::resume(config, state)
}

struct Node {
    engine: Engine,
    now_ns: u64,
}

/// A choice of the engine.
struct Eviction {
    uid: PodUid,
    grace_s: i64,
    signal: Signal,
    soft: bool,
}

impl Node {
    fn step(&mut self, step: Step) -> Result<(), String> {
        self.now_ns = step.t * S;
        let observations = observed(&step.observations)?;
        let mut decisions = self.judge(Cause::Timer, &observations);
        self.compare_thresholds(&step)?;

        let mut reclaimed = NodeReclaim::default();
        let sources: Vec<FreeSource> = decisions
            .iter()
            .filter_map(|decision| match decision {
                Decision::FreeDisk { sources, .. } => Some(sources.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        if !sources.is_empty() {
            let count = |source| u32::from(sources.contains(&source));
            reclaimed.container_gc = count(FreeSource::EndedContainers);
            reclaimed.image_gc = count(FreeSource::UnusedImages);
            self.event(EventKind::DiskFreed {
                bytes: 0,
                inodes: 0,
                error: None,
            });
            // Where it has nothing to free itself the kubelet does not look a second time.
            let after = match &step.observations_after_node_reclaim {
                Some(after) if reclaimed != NodeReclaim::default() => observed(after)?,
                _ => observations,
            };
            decisions.extend(self.judge(Cause::DiskFreed, &after));
        }
        if let Some(expected) = &step.node_reclaim {
            same("node reclaim", &reclaimed, expected)?;
        }
        let evictions: Vec<Eviction> = decisions.iter().filter_map(eviction).collect();
        self.compare_eviction(&step, &evictions)?;
        for Eviction { uid, .. } in evictions {
            self.event(EventKind::PodEmpty { uid: uid.clone() });
            self.event(EventKind::PodRunning { uid });
        }
        Ok(())
    }

    fn judge(&mut self, cause: Cause, observations: &Observations) -> Vec<Decision> {
        let mut decisions = Vec::new();
        self.engine
            .judge(self.now_ns, cause, observations, &mut decisions);
        decisions
    }

    fn event(&mut self, kind: EventKind) {
        let at_ns = self.now_ns;
        self.engine.step(&Event { at_ns, kind }, &mut Vec::new());
    }

    fn compare_thresholds(&self, step: &Step) -> Result<(), String> {
        let state = self.engine.state();
        let all = || {
            let all = self.engine.config().thresholds.iter();
            all.zip(&state.thresholds)
        };
        let having = |which: fn(&ThresholdState) -> bool| {
            let having = all().filter(move |(_, known)| which(known));
            as_keys(having.map(|(threshold, _)| threshold))
        };
        let in_order = |mut thresholds: Vec<ExpectedThreshold>| {
            thresholds.sort_unstable();
            thresholds
        };
        same(
            "met after grace",
            &having(|known| known.met),
            &in_order(step.thresholds_met_after_grace.clone()),
        )?;
        same(
            "with updated stats",
            &having(|known| known.met && known.updated),
            &in_order(step.thresholds_with_updated_stats.clone()),
        )?;
        let times: BTreeSet<u64> = state
            .thresholds
            .iter()
            .filter_map(|known| known.first_observed_ns)
            .collect();
        let at = |time: u64| {
            let observed = all().filter(move |(_, known)| known.first_observed_ns == Some(time));
            let keys = as_keys(observed.map(|(threshold, _)| threshold));
            keys.into_iter().map(move |threshold| (threshold, time / S))
        };
        let mut first: Vec<_> = times.into_iter().flat_map(at).collect();
        first.sort_unstable();
        let mut expected: Vec<_> = step
            .first_observed
            .iter()
            .map(|own| (own.threshold.clone(), own.first_observed_at))
            .collect();
        expected.sort_unstable();
        same("first observed", &first, &expected)?;
        let mut conditions: Vec<String> = NodeCondition::ALL
            .into_iter()
            .filter(|condition| state.condition(*condition).status)
            .map(|condition| condition.as_str().to_owned())
            .collect();
        conditions.sort_unstable();
        same("node conditions", &conditions, &step.node_conditions)
    }

    fn compare_eviction(&self, step: &Step, evictions: &[Eviction]) -> Result<(), String> {
        let evicted = match evictions {
            [] => None,
            [one] => Some(one),
            more => return Err(format!("{} pods evicted at once", more.len())),
        };
        if let Some(evicted) = evicted {
            let thresholds = self.engine.config().thresholds.iter();
            let mut acted_on = thresholds
                .filter(|own| own.signal == evicted.signal && own.is_hard() != evicted.soft);
            let is_candidate = acted_on.any(|own| {
                step.reclaim_candidates
                    .contains(&ExpectedThreshold::from(own))
            });
            if !is_candidate {
                return Err(format!(
                    "acted on {}, not one of {:?}",
                    evicted.signal, step.reclaim_candidates
                ));
            }
        }
        if step.ambiguous_choice {
            let unspecified = [None, Some("unspecified")].contains(&step.evicted_pod.as_deref());
            return if unspecified {
                Ok(())
            } else {
                Err(format!("ambiguous, and yet {:?}", step.evicted_pod))
            };
        }
        let name = evicted.map(|own| self.engine.state().pods[&own.uid].pod.metadata.name.clone());
        same("evicted pod", &name, &step.evicted_pod)?;
        same(
            "grace period",
            &evicted.map(|own| own.grace_s),
            &step.grace_period_override,
        )
    }
}

fn eviction(decision: &Decision) -> Option<Eviction> {
    match decision {
        Decision::Evict {
            uid,
            grace_s,
            reason: Reason::Threshold(reason),
        } => Some(Eviction {
            uid: uid.clone(),
            grace_s: *grace_s,
            signal: reason.signal,
            soft: reason.soft,
        }),
        _ => None,
    }
}

fn observed(all: &BTreeMap<String, ExpectedObservation>) -> Result<Observations, String> {
    let mut observations = Observations::default();
    for (name, own) in all {
        let signal = Signal::from_name(name).ok_or_else(|| format!("no signal {name:?}"))?;
        let observation = Observation {
            value: own.available,
            capacity: own.capacity,
            at_ns: own.time.map(|t| t * S),
        };
        observations.set(signal, Some(observation));
    }
    Ok(observations)
}
