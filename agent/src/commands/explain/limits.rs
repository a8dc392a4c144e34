//! What limits have cost pods, explained: CPU throttling beside what is done about it, and memory.
//!
//! The totals are counted by the loop for people ([`crate::daemon::limits`]) and nobody decides by them: a journal has them beside its steps
//! ([`crate::record::journal::aside`]). Where it has none, they are absent, and the text says so.

use std::collections::BTreeMap;

use plimsoll_core::explain::{ExplainError, NoSuchPod, ThrottlingExplanation, find_pod, placement};
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::model::units::PodUid;
use plimsoll_core::placement::numa_mask::NumaMask;
use serde::{Deserialize, Serialize};

use crate::daemon::limits::LimitTotals;
use crate::serve::control::Snapshot;
use crate::serve::overview::{Figures, MemoryOverview, Overview, PodOverview};
use crate::show::table::{bytes, span};

/// CPU throttling.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedThrottling {
    /// What is done about it.
    #[serde(flatten)]
    pub own: ThrottlingExplanation,
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
    /// What all that means, in words.
    pub verdict: String,
}

impl ExplainedThrottling {
    /// Explains all pods, or one.
    ///
    /// # Errors
    /// [`NoSuchPod`].
    pub fn new(snapshot: &Snapshot, pod: Option<&str>) -> Result<Self, NoSuchPod> {
        let Snapshot { config, state, .. } = snapshot;
        let own = ThrottlingExplanation::new(config, state, pod)?;
        let totals = snapshot.limits.iter().filter_map(|(uid, limits)| {
            let name = &state.pods.get(uid)?.name;
            (own.pod.is_none() || own.pod.as_ref() == Some(name)).then(|| PodTotals {
                pod: name.clone(),
                uid: uid.clone(),
                limits: *limits,
            })
        });
        let totals: Vec<PodTotals> = totals.collect();
        Ok(Self {
            totals: (!snapshot.limits.is_empty()).then_some(totals),
            own,
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
        let asked = asked.map(|own| own.pod.uid());
        let overview = Overview::new(snapshot, &Figures::default())?;
        let mut nodes: BTreeMap<String, BTreeMap<String, NumaMask>> = BTreeMap::new();
        if let Some(placed) = &state.placement {
            let pods = state.pods.values().map(|pod| &*pod.pod);
            for pod in placement(placed, pods).pods {
                let of = pod.containers.into_iter();
                let bound = of.filter_map(|own| Some((own.name, own.memory_nodes?)));
                nodes.insert(pod.pod, bound.collect());
            }
        }
        let shown = overview.pods.into_iter();
        let shown = shown.filter(|own| asked.as_ref().is_none_or(|uid| *uid == own.uid));
        let pods = shown.map(|own| PodMemoryView {
            verdict: verdict(&own),
            nodes: nodes.remove(&own.pod).unwrap_or_default(),
            pod: own.pod,
            uid: own.uid,
            qos_class: own.qos_class,
            memory: own.memory,
            limits: own.limits,
        });
        let pods: Vec<PodMemoryView> = pods.collect();
        Ok(Self {
            pod: asked.and_then(|_| Some(pods.first()?.pod.clone())),
            pods,
        })
    }
}

/// The newest first, then what it has against what it may have.
fn verdict(own: &PodOverview) -> String {
    let mut said = Vec::new();
    if let Some(limits) = &own.limits {
        let (all, recent) = (&limits.all, &limits.recent);
        match all.oom_kills {
            0 => {}
            1 => said.push("a process of it was killed for want of memory".to_owned()),
            kills => said.push(format!("{kills} processes were killed for want of memory")),
        }
        if recent.max > 0 {
            said.push(
                "it is at its limit: what it takes must be reclaimed from it first".to_owned(),
            );
        }
        if recent.high > 0 {
            said.push("it is over memory.high, and slowed down".to_owned());
        }
        if recent.node_reclaim_ns > 0 {
            said.push(format!(
                "it reclaimed for the node for {} lately: the node is short, not the pod",
                span(recent.node_reclaim_ns)
            ));
        }
        if recent.refaulted_pages > 0 {
            said.push(format!(
                "{} pages that were taken away were needed again lately",
                recent.refaulted_pages
            ));
        }
    }
    let Some(used) = own.memory.working_set_bytes else {
        said.push("nothing has been read of it".to_owned());
        return said.join("; ");
    };
    let request = own.memory.request_bytes;
    said.push(match (request, used.checked_sub(request)) {
        (0, _) => "it requests nothing, so all of it counts as above its request".to_owned(),
        (_, None | Some(0)) => "within its request".to_owned(),
        (_, Some(above)) => format!("{} above its request", bytes(above.into())),
    });
    said.join("; ")
}
