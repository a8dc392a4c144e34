//! What the engine sees, which pods it would evict, and what the kubelet would do instead.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::explain::kubelet::{self, KubeletAnswer};
use crate::explain::pod::{ExplainedPod, NoSuchPod, find};
use crate::explain::ranking::{Candidate, ExplainedRanking, NotRanked, NotRankedReason};
use crate::kube::admission::object::LimitRange;
use crate::kube::admission::standing::QuotaUse;
use crate::kube::pod_uid::PodUid;
use crate::model::config::EngineConfig;
use crate::model::decision::LocalStorageReason;
use crate::model::options::EvictionOptions;
use crate::model::signal::{NodeCondition, Observation, SIGNALS, Signal, Unit};
use crate::model::state::{NodeState, PodState, ThresholdState};
use crate::model::threshold::{Operator, Passes, Threshold};
use crate::policy::eviction::candidates;
use crate::policy::eviction::foresight;
use crate::policy::eviction::local_storage;
use crate::policy::eviction::share;
use crate::policy::eviction::thresholds::{self, Met};
use crate::policy::eviction::verdict::{self, Scratch};
use crate::policy::eviction::view::View;
use crate::policy::oom::last_line;
use crate::protocol::cluster_link::OverusedNamespace;

/// Everything about evictions, at one instant. Times are CLOCK_MONOTONIC or spans, nanoseconds; amounts in their
/// signal's unit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionExplanation {
    /// When.
    pub now_ns: u64,
    /// Where the engine departs from the kubelet.
    pub options: EvictionOptions,
    /// Every signal that has a threshold or has been observed.
    pub signals: Vec<ExplainedSignal>,
    /// The node's conditions.
    pub conditions: Vec<ExplainedCondition>,
    /// Pods on their way out.
    pub leaving: Vec<LeavingPod>,
    /// Pods over a local storage limit: evicted whatever the signals show.
    pub over_local_storage: Vec<OverLocalStorage>,
    /// The signal that pods are ranked for.
    pub signal: Signal,
    /// Why that one.
    pub signal_because: SignalChoice,
    /// What pods' usage is counted in.
    pub usage_unit: Unit,
    /// The ranking.
    pub ranking: ExplainedRanking,
    /// What the namespaces with a share use of it: option `namespaceShares`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespace_shares: Vec<ExplainedShare>,
    /// Namespaces that use more of the cluster than they deserve, while the arbitrator's list holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overuse: Option<ExplainedOveruse>,
    /// Quotas of the namespace of [`Self::pod`], as far as whoever asks knows them: the engine has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<QuotaUse>,
    /// The pods that would be evicted if the signal met a threshold now: `namespace/name`.
    pub victims: Vec<String>,
    /// Pods that are not ranked.
    pub not_ranked: Vec<NotRanked>,
    /// What is left in the kernel for when the agent does not answer; `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_line: Option<ExplainedLastLine>,
    /// What the kubelet would do.
    pub kubelet: KubeletAnswer,
    /// The pod that was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<ExplainedPod>,
}

/// One signal.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedSignal {
    /// Which.
    pub signal: Signal,
    /// Its unit.
    pub unit: Unit,
    /// The condition that it raises.
    pub condition: Option<NodeCondition>,
    /// Whether the kubelet knows it.
    pub kubelet: bool,
    /// What it shows; `None`: nothing has been read.
    pub observed: Option<u64>,
    /// How much there is in all.
    pub capacity: Option<u64>,
    /// How old the reading is.
    pub age_ns: Option<u64>,
    /// Its thresholds, in the order of the configuration.
    pub thresholds: Vec<ExplainedThreshold>,
}

/// One threshold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedThreshold {
    /// Whether it evicts at once.
    pub hard: bool,
    /// On which side it is met.
    pub operator: Operator,
    /// Its value; `None`: a share of a capacity that is not known.
    pub value: Option<u64>,
    /// What must be there on top before it is over.
    pub min_reclaim: Option<u64>,
    /// How much more can be used (stalls: can be added) before the threshold is met; negative if it is exceeded.
    /// `None`: it is never met, or nothing is observed.
    pub headroom: Option<i64>,
    /// The same in hundredths of a percent of the capacity.
    pub headroom_share: Option<i64>,
    /// How long it must be met.
    pub grace_ns: u64,
    /// Since when it has been met.
    pub met_since_ns: Option<u64>,
    /// What is left of its grace period; `None`: it is not met. 0: it asks for a victim.
    pub grace_left_ns: Option<u64>,
}

/// A node condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedCondition {
    /// Which.
    pub condition: NodeCondition,
    /// Its status.
    pub status: bool,
    /// How long it stays if nothing is met any more.
    pub ends_in_ns: Option<u64>,
}

/// A pod on its way out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeavingPod {
    /// `namespace/name`.
    pub pod: String,
    /// Whether it is evicted; otherwise its manifest was removed, or its kubelet ends it.
    pub evicted: bool,
    /// Whether its kubelet ends it.
    #[serde(default)]
    pub ended_by_kubelet: bool,
    /// Since when.
    pub since_ns: u64,
    /// When its grace period is over; `None`: it has been killed, or its kubelet kills it.
    pub kill_in_ns: Option<u64>,
    /// Whether only its memory is awaited.
    pub empty: bool,
}

/// A pod over a limit of local storage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OverLocalStorage {
    /// `namespace/name`.
    pub pod: String,
    /// Which limit.
    pub reason: LocalStorageReason,
}

/// Why pods are ranked for a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SignalChoice {
    /// It was asked for.
    Asked,
    /// Memory is predicted to run out soon.
    Foreseen,
    /// Its threshold asks for a victim.
    Met,
    /// One of its thresholds is met, and the grace period runs.
    Grace,
    /// It is the nearest to its threshold.
    Nearest,
    /// There is no threshold on anything that is observed.
    Default,
}

/// The last line in the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedLastLine {
    /// Below this many bytes of `kernelMemory.available`, the condemned pods are killed if the agent does not answer.
    pub line_bytes: u64,
    /// Below this, at once.
    pub critical_bytes: u64,
    /// The time in which the agent is to answer.
    pub acknowledge_within_ns: u64,
    /// How long it holds after the agent was last heard of.
    pub expires_after_ns: u64,
    /// The condemned pods in the order in which they are killed: `namespace/name`.
    pub order: Vec<String>,
}

/// What a namespace uses of its share, in the unit that pods' usage is counted in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedShare {
    /// The namespace.
    pub namespace: String,
    /// What its ranked pods use together.
    pub used: u64,
    /// Above this its pods go first among equals.
    pub share: u64,
}

/// Namespaces that the arbitrator of the cluster says use more than they deserve.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedOveruse {
    /// How much longer the list holds, nanoseconds.
    pub valid_for_ns: u64,
    /// By name.
    pub namespaces: Vec<OverusedNamespace>,
}

/// Why there is no explanation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no such signal.
    #[error("{0:?} is no eviction signal; one of {known}", known = SIGNALS.iter().map(|row| row.name).collect::<Vec<_>>().join(", "))]
    UnknownSignal(String),
    /// The pod.
    #[error(transparent)]
    Pod(#[from] NoSuchPod),
}

impl EvictionExplanation {
    /// With those of these quotas that are of the namespace of [`Self::pod`]. One that is known already stays as it is.
    #[must_use]
    pub fn with_quotas(mut self, quotas: &[QuotaUse]) -> Self {
        let namespace = |name: &str| {
            name.split_once('/')
                .map(|(namespace, _)| namespace.to_owned())
        };
        if let Some(pod) = &self.pod {
            let of_pod = namespace(&pod.pod);
            let known: BTreeSet<String> = self
                .quotas
                .iter()
                .map(|known| known.quota.clone())
                .collect();
            let more = quotas
                .iter()
                .filter(|quota| namespace(&quota.quota) == of_pod && !known.contains(&quota.quota));
            self.quotas.extend(more.cloned());
        }
        self
    }

    /// With the names of those of these LimitRanges that would set what the annotation of [`Self::pod`] says was set.
    /// They have the API's defaults; where none is of the pod's namespace, nothing is known of its LimitRanges.
    #[must_use]
    pub fn with_ranges(mut self, ranges: &[LimitRange]) -> Self {
        if let Some(pod) = &mut self.pod
            && let Some(defaults) = &mut pod.limit_defaults
        {
            let of_pod = pod.pod.split_once('/').map(|(namespace, _)| namespace);
            let ranges = ranges.iter();
            let of_pod = ranges.filter(|it| Some(it.metadata.namespace.as_str()) == of_pod);
            let of_pod: Vec<&LimitRange> = of_pod.collect();
            if !of_pod.is_empty() {
                defaults.name_ranges(&of_pod);
            }
        }
        self
    }

    /// Explains `state`; for `signal`, or else for the one that would act or is nearest to its threshold; and `pod` in
    /// particular.
    ///
    /// # Errors
    /// A signal or a pod that is not there.
    pub fn new(
        config: &EngineConfig,
        state: &NodeState,
        signal: Option<&str>,
        pod: Option<&str>,
    ) -> Result<Self, ExplainError> {
        let asked = signal
            .map(|name| {
                Signal::from_name(name).ok_or_else(|| ExplainError::UnknownSignal(name.to_owned()))
            })
            .transpose()?;
        let pod = pod.map(|name| find(state, name)).transpose()?;
        let (signal, signal_because) = choose_signal(config, state, asked);
        let resource = signal.row().resource;
        let view = View::now(config, state);
        let mut rows = Vec::new();
        verdict::candidates(&view, signal, &mut rows);
        let mut everywhere = Vec::new();
        candidates::rows(&view, resource, &mut everywhere);
        let shares = share::standing(config, state, resource, &everywhere).into_iter();
        let namespace_shares = shares
            .map(|(namespace, used, share)| ExplainedShare {
                namespace: namespace.to_owned(),
                used,
                share,
            })
            .collect();
        let overuse = share::overuse(state, resource);
        let overuse = overuse.map(|(namespaces, valid_for_ns)| ExplainedOveruse {
            valid_for_ns,
            namespaces: namespaces.to_vec(),
        });
        let ranked: Vec<Candidate> = rows
            .into_iter()
            .filter_map(|row| Some(Candidate::new(state.pods.get(&row.uid)?, row)))
            .collect();
        let of = |uid: &PodUid| ranked.iter().find(|candidate| candidate.row.uid == *uid);
        let not_ranked: Vec<NotRanked> = {
            let names: BTreeSet<&PodUid> =
                ranked.iter().map(|candidate| &candidate.row.uid).collect();
            let others = state.pods.iter().filter(|(uid, _)| !names.contains(uid));
            others
                .map(|(uid, pod)| NotRanked {
                    pod: pod.name.clone(),
                    uid: uid.clone(),
                    why: NotRankedReason::of(&view, resource, pod),
                })
                .collect()
        };
        let pod = pod.map(|pod| {
            let candidate = of(&pod.row.uid).cloned();
            ExplainedPod::new(&view, resource, pod, candidate, &ranked)
        });
        let ranking = ExplainedRanking::new(resource.ranking(), ranked);
        let victims = victims(config, state, signal);
        let kubelet = kubelet::answer(config, state, signal, &ranking, &victims);
        Ok(Self {
            now_ns: state.now_ns,
            options: config.options,
            signals: signals(config, state),
            conditions: conditions(config, state),
            leaving: leaving(state),
            over_local_storage: over_local_storage(config, state),
            signal,
            signal_because,
            usage_unit: signal.row().usage_unit(),
            ranking,
            namespace_shares,
            overuse,
            quotas: Vec::new(),
            victims,
            not_ranked,
            last_line: last_line(config, state),
            kubelet,
            pod,
        })
    }
}

fn last_line(config: &EngineConfig, state: &NodeState) -> Option<ExplainedLastLine> {
    let options = config.options.last_line?;
    let plan = last_line::plan(config, state)?;
    let name =
        |condemned: &last_line::Condemned| Some(state.pods.get(condemned.uid())?.name.clone());
    Some(ExplainedLastLine {
        line_bytes: plan.line_bytes,
        critical_bytes: plan.critical_bytes,
        acknowledge_within_ns: options.acknowledge_within_ns,
        expires_after_ns: options.expires_after_ns,
        order: plan.order.iter().filter_map(name).collect(),
    })
}

/// The thresholds that count in the next pass.
fn counting<'state>(
    config: &'state EngineConfig,
    state: &'state NodeState,
) -> impl Iterator<Item = (&'state Threshold, &'state ThresholdState)> {
    let all = config.thresholds.iter().zip(&state.thresholds);
    all.filter(|(threshold, known)| match threshold.passes {
        Passes::All => true,
        Passes::First => !state.passed || known.met,
        Passes::Later => state.passed,
    })
}

fn signals(config: &EngineConfig, state: &NodeState) -> Vec<ExplainedSignal> {
    let thresholds_of =
        |signal| counting(config, state).filter(move |(threshold, _)| threshold.signal == signal);
    SIGNALS
        .iter()
        .filter_map(|row| {
            let observation = state.observations.get(row.signal);
            let thresholds: Vec<ExplainedThreshold> = thresholds_of(row.signal)
                .map(|(threshold, known)| {
                    explained(state, threshold, known.first_observed_ns, observation)
                })
                .collect();
            if observation.is_none() && thresholds.is_empty() {
                return None;
            }
            Some(ExplainedSignal {
                signal: row.signal,
                unit: row.unit,
                condition: row.condition,
                kubelet: row.kubelet,
                observed: observation.map(|observed| observed.value),
                capacity: observation.map(|observed| observed.capacity),
                age_ns: observation
                    .and_then(|observed| observed.at_ns)
                    .map(|at_ns| state.now_ns.saturating_sub(at_ns)),
                thresholds,
            })
        })
        .collect()
}

fn explained(
    state: &NodeState,
    threshold: &Threshold,
    met_since_ns: Option<u64>,
    observation: Option<Observation>,
) -> ExplainedThreshold {
    let headroom = observation
        .filter(|_| threshold.operator != Operator::Never)
        .map(|observed| headroom(threshold, observed));
    let clamp = |amount: i128| {
        i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX })
    };
    let capacity = observation.map(|observed| observed.capacity);
    ExplainedThreshold {
        hard: threshold.is_hard(),
        operator: threshold.operator,
        value: capacity.map(|capacity| threshold.amount(capacity)),
        min_reclaim: threshold
            .min_reclaim
            .and_then(|amount| capacity.map(|capacity| amount.units(capacity))),
        headroom: headroom.map(clamp),
        headroom_share: headroom
            .zip(capacity)
            .map(|(headroom, capacity)| clamp(share(headroom, capacity))),
        grace_ns: threshold.grace_ns,
        met_since_ns,
        grace_left_ns: met_since_ns.map(|since_ns| {
            let met_ns = state.now_ns.saturating_sub(since_ns);
            threshold.grace_ns.saturating_sub(met_ns)
        }),
    }
}

/// How much more can be used before the threshold is met; negative where it is met.
pub fn headroom(threshold: &Threshold, observation: Observation) -> i128 {
    let value = i128::from(threshold.amount(observation.capacity));
    let seen = i128::from(observation.value);
    match threshold.operator {
        Operator::LessThan => seen - value,
        Operator::GreaterThan => value - seen,
        Operator::Never => i128::MAX,
    }
}

/// In hundredths of a percent of the capacity.
fn share(headroom: i128, capacity: u64) -> i128 {
    headroom.saturating_mul(10_000) / i128::from(capacity.max(1))
}

fn conditions(config: &EngineConfig, state: &NodeState) -> Vec<ExplainedCondition> {
    NodeCondition::ALL
        .into_iter()
        .map(|condition| {
            let condition_state = state.condition(condition);
            let ends_ns = condition_state
                .last_observed_ns
                .map(|last_ns| last_ns.saturating_add(config.pressure_transition_period_ns));
            ExplainedCondition {
                condition,
                status: condition_state.status,
                ends_in_ns: ends_ns
                    .filter(|_| condition_state.status)
                    .map(|ends_ns| ends_ns.saturating_sub(state.now_ns)),
            }
        })
        .collect()
}

fn leaving(state: &NodeState) -> Vec<LeavingPod> {
    let of = |pod: &PodState| {
        let leaving = pod.leaving?;
        Some(LeavingPod {
            pod: pod.name.clone(),
            evicted: leaving.evicted_for.is_some(),
            ended_by_kubelet: leaving.ended_by_kubelet,
            since_ns: leaving.since_ns,
            kill_in_ns: (leaving.killed_at_ns.is_none() && !leaving.ended_by_kubelet)
                .then(|| leaving.kill_at_ns.saturating_sub(state.now_ns)),
            empty: leaving.empty_at_ns.is_some(),
        })
    };
    state.pods.values().filter_map(of).collect()
}

fn over_local_storage(config: &EngineConfig, state: &NodeState) -> Vec<OverLocalStorage> {
    let Some(storage) = state
        .storage
        .as_ref()
        .filter(|_| config.local_storage_limits)
    else {
        return Vec::new();
    };
    storage
        .pods
        .iter()
        .filter_map(|used| {
            let pod = state.pods.get(&used.uid).filter(|pod| !pod.row.exempt)?;
            Some(OverLocalStorage {
                pod: pod.name.clone(),
                reason: local_storage::offence(config, pod, used)?,
            })
        })
        .collect()
}

fn choose_signal(
    config: &EngineConfig,
    state: &NodeState,
    asked: Option<Signal>,
) -> (Signal, SignalChoice) {
    if let Some(signal) = asked {
        return (signal, SignalChoice::Asked);
    }
    if let Some(foreseen) = foresight::shortage(config, state) {
        return (
            Met::foreseen(&foreseen).threshold.signal,
            SignalChoice::Foreseen,
        );
    }
    let met = config
        .thresholds
        .iter()
        .zip(&state.thresholds)
        .enumerate()
        .filter(|(_, (_, known))| known.met)
        .filter_map(|(index, (threshold, _))| met_of(state, index, threshold));
    if let Some(met) = thresholds::most_urgent_of(met) {
        return (met.threshold.signal, SignalChoice::Met);
    }
    let nearest = counting(config, state)
        .filter(|(threshold, _)| threshold.operator != Operator::Never)
        .filter_map(|(threshold, _)| {
            let observation = state.observations.get(threshold.signal)?;
            let share = share(headroom(threshold, observation), observation.capacity);
            Some((threshold.signal, share))
        })
        .min_by_key(|(_, share)| *share);
    match nearest {
        Some((signal, share)) if share < 0 => (signal, SignalChoice::Grace),
        Some((signal, _)) => (signal, SignalChoice::Nearest),
        None => (Signal::MemoryAvailable, SignalChoice::Default),
    }
}

fn met_of(state: &NodeState, index: usize, threshold: &Threshold) -> Option<Met> {
    Some(Met {
        index,
        threshold: *threshold,
        observation: state.observations.get(threshold.signal)?,
        foreseen: None,
    })
}

/// The pods that would be evicted if a threshold of `signal` were met now: its first threshold that is met, otherwise
/// its first.
fn victims(config: &EngineConfig, state: &NodeState, signal: Signal) -> Vec<String> {
    let is_of_signal = |index: &usize| config.thresholds[*index].signal == signal;
    let all = || (0..config.thresholds.len()).filter(is_of_signal);
    let is_met = |index: &usize| state.thresholds.get(*index).is_some_and(|known| known.met);
    let index = all().find(is_met).or_else(|| all().next());
    let foreseen = foresight::shortage(config, state).map(|foreseen| Met::foreseen(&foreseen));
    let met = foreseen
        .filter(|met| met.threshold.signal == signal)
        .or_else(|| index.and_then(|index| met_of(state, index, &config.thresholds[index])))
        .unwrap_or(Met {
            // No threshold, or nothing observed: the question is then about any amount.
            index: 0,
            threshold: Threshold {
                signal,
                operator: Operator::Never,
                value: crate::model::threshold::Amount::Absolute(0),
                grace_ns: 0,
                min_reclaim: None,
                passes: Passes::All,
            },
            observation: Observation {
                value: 0,
                capacity: 0,
                at_ns: None,
            },
            foreseen: None,
        });
    let mut scratch = Scratch::default();
    verdict::victims(&View::now(config, state), &met, &mut scratch);
    let name = |at: &usize| {
        let uid = &scratch.rows[*at].uid;
        state
            .pods
            .get(uid)
            .map_or_else(|| uid.to_string(), |pod| pod.name.clone())
    };
    scratch.chosen.iter().map(name).collect()
}
