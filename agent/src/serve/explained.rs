//! What limits have cost pods, explained: CPU throttling beside what is done about it, and memory.
//!
//! The loop counts the totals ([`crate::record::limit_counts`]); no decision depends on them, so a journal has them
//! beside its steps ([`crate::record::journal::aside`]). Where it has none, they are absent.

use std::collections::BTreeMap;

use plimsoll_core::explain::{ExplainError, NoSuchPod, ThrottlingExplanation, find_pod, placement};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::placement::numa_mask::NumaMask;
use serde::{Deserialize, Serialize};

use crate::record::limit_counts::LimitTotals;
use crate::record::snapshot::Snapshot;
use crate::serve::overview::{Figures, MemoryOverview, Overview};

/// CPU throttling.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedThrottling {
    /// What is done about it.
    #[serde(flatten)]
    pub explanation: ThrottlingExplanation,
    /// What limits have cost pods; `None`: nothing has been read yet, or from a journal that does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totals: Option<Vec<PodTotals>>,
}

/// What limits have cost a pod.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodTotals {
    /// `namespace/name`.
    pub pod: String,
    /// Its identity.
    pub uid: PodUid,
    /// Since the agent first saw it.
    pub limits: LimitTotals,
}

/// Memory of pods.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedMemory {
    /// The pods, or the one that was asked about.
    pub pods: Vec<PodMemoryView>,
    /// The pod that was asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

/// Memory of one pod.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMemoryView {
    /// `namespace/name`.
    pub pod: String,
    /// Its identity.
    pub uid: PodUid,
    /// Its class.
    pub qos_class: QosClass,
    /// What it has and may have, bytes.
    pub memory: MemoryOverview,
    /// The NUMA nodes that its containers' memory is on, by container; those that may have any are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, NumaMask>,
    /// What its limits have cost it; `None`: nothing has been read yet, or from a journal that does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitTotals>,
}

impl ExplainedThrottling {
    /// Explains all pods, or one.
    ///
    /// # Errors
    /// [`NoSuchPod`].
    pub fn new(snapshot: &Snapshot, pod: Option<&str>) -> Result<Self, NoSuchPod> {
        let Snapshot { config, state, .. } = snapshot;
        let explanation = ThrottlingExplanation::new(config, state, pod)?;
        let totals = snapshot.limits.iter().filter_map(|(uid, limits)| {
            let name = &state.pods.get(uid)?.name;
            (explanation.pod.is_none() || explanation.pod.as_ref() == Some(name)).then(|| {
                PodTotals {
                    pod: name.clone(),
                    uid: uid.clone(),
                    limits: *limits,
                }
            })
        });
        let totals: Vec<PodTotals> = totals.collect();
        Ok(Self {
            totals: (!snapshot.limits.is_empty()).then_some(totals),
            explanation,
        })
    }
}

impl ExplainedMemory {
    /// Explains all pods, or one.
    ///
    /// # Errors
    /// [`NoSuchPod`].
    pub fn new(snapshot: &Snapshot, pod: Option<&str>) -> Result<Self, ExplainError> {
        let state = &snapshot.state;
        let asked = pod.map(|name| find_pod(state, name)).transpose()?;
        let asked = asked.map(|pod| pod.pod.uid());
        let overview = Overview::new(snapshot, &Figures::default())?;
        let mut nodes: BTreeMap<String, BTreeMap<String, NumaMask>> = BTreeMap::new();
        if let Some(placed) = &state.placement {
            let pods = state.pods.values().map(|pod| &*pod.pod);
            for pod in placement(placed, pods).pods {
                let of = pod.containers.into_iter();
                let bound = of.filter_map(|it| Some((it.name, it.memory_nodes?)));
                nodes.insert(pod.pod, bound.collect());
            }
        }
        let shown = overview.pods.into_iter();
        let shown = shown.filter(|pod| asked.as_ref().is_none_or(|uid| *uid == pod.uid));
        let pods = shown.map(|pod| PodMemoryView {
            nodes: nodes.remove(&pod.pod).unwrap_or_default(),
            pod: pod.pod,
            uid: pod.uid,
            qos_class: pod.qos_class,
            memory: pod.memory,
            limits: pod.limits,
        });
        let pods: Vec<PodMemoryView> = pods.collect();
        Ok(Self {
            pod: asked.and_then(|_| Some(pods.first()?.pod.clone())),
            pods,
        })
    }
}
