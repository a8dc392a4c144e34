//! The order in which the kernel's OOM killer would choose, by the scores that containers have.
//!
//! Rule of the kernel (mm/oom_kill.c, `oom_badness`): a process's points are its resident memory, swap and page tables,
//! plus `oom_score_adj` thousandths of all memory and swap; the kernel kills the highest, and never one at -1000. What
//! is known here is a pod's working set, not what each process has, so a container's points are an upper bound: as if
//! one process of it held all that the pod has. With [`OomOrder::Dynamic`] there is a plan, which knows each
//! container's own usage and what can be promised.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::explain::NoSuchPod;
use crate::explain::pod::find;
use crate::kube::pod_uid::PodUid;
use crate::kube::qos::QosClass;
use crate::model::config::EngineConfig;
use crate::model::options::OomOrder;
use crate::model::state::{NodeState, PodState};
use crate::policy::oom::order::{OomPlan, PlannedContainer, Tier};
use crate::policy::oom::score::{self, Score, ScoreRule};

/// The order in which the kernel would kill.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomExplanation {
    /// Which order is asked for.
    pub order: OomOrder,
    /// `MemTotal`, bytes.
    pub memory_capacity_bytes: u64,
    /// `SwapTotal`, bytes.
    pub swap_bytes: u64,
    /// Containers of pods with processes, the first to be killed first: by the plan where there is one, else by
    /// `badness`.
    pub containers: Vec<OomContainer>,
    /// The pod that was asked about; then only its containers are above, with their places among all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

/// One container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomContainer {
    /// Its place among all, from 1.
    pub rank: usize,
    /// `namespace/name`.
    pub pod: String,
    /// The pod's identity.
    pub uid: PodUid,
    /// The container's name.
    pub container: String,
    /// The pod's class.
    pub qos_class: QosClass,
    /// The kubelet's `oom_score_adj`.
    pub kubelet_adj: i32,
    /// How it came to that.
    pub rule: ScoreRule,
    /// The pod's working set, bytes.
    pub pod_working_set_bytes: Option<u64>,
    /// The kernel's points with the kubelet's score, as a share of all memory and swap, in thousandths: an upper bound.
    pub badness: i64,
    /// Its place in the plan, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<PlannedScore>,
}

/// What the plan of [`OomOrder::Dynamic`] gives a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedScore {
    /// Its place, from 1.
    pub position: usize,
    /// Which part of the sequence it belongs to.
    pub tier: Tier,
    /// The score that it is to have.
    pub adj: i32,
    /// The score that it has, if that is known.
    pub current_adj: Option<i32>,
    /// Memory and swap charged to its cgroup, bytes.
    pub usage_bytes: u64,
    /// While it has a process, the kernel takes none of a later place.
    pub certain: bool,
}

/// Why there is no explanation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OomError {
    /// The node has not been read yet.
    #[error("the agent has not read the node's memory yet; ask again in a second")]
    NotReady,
    /// The pod.
    #[error(transparent)]
    Pod(#[from] NoSuchPod),
}

impl OomExplanation {
    /// Explains `state`, and `pod` in particular; `plan` is the newest one where [`OomOrder::Dynamic`] is in force.
    ///
    /// # Errors
    /// [`OomError`].
    pub fn new(
        config: &EngineConfig,
        state: &NodeState,
        plan: Option<&OomPlan>,
        pod: Option<&str>,
    ) -> Result<Self, OomError> {
        let asked = pod.map(|name| find(state, name)).transpose()?;
        let node = state.node.as_ref().ok_or(OomError::NotReady)?;
        let (capacity_bytes, swap_bytes) =
            (node.memory.capacity_bytes, node.memory.swap_total_bytes);
        let capacity = NonZeroU64::new(capacity_bytes).ok_or(OomError::NotReady)?;
        let mut containers: Vec<OomContainer> = state
            .pods
            .values()
            .filter(|pod| pod.running)
            .flat_map(|pod| containers_of(pod, capacity, swap_bytes))
            .collect();
        // Searching the plan for each container would be quadratic.
        let planned: BTreeMap<(&PodUid, &str), &PlannedContainer> = plan
            .into_iter()
            .flat_map(|plan| &plan.containers)
            .map(|place| ((&place.uid, place.container.as_str()), place))
            .collect();
        for container in &mut containers {
            let place = planned.get(&(&container.uid, container.container.as_str()));
            container.planned = place.map(|place| PlannedScore {
                position: place.position,
                tier: place.tier,
                adj: place.adj,
                current_adj: place.current_adj,
                usage_bytes: place.usage_bytes,
                certain: place.certain,
            });
        }
        let place = |container: &OomContainer| {
            container
                .planned
                .map_or(usize::MAX, |planned| planned.position)
        };
        containers.sort_by(|a, b| {
            let names = (&a.uid, &a.container).cmp(&(&b.uid, &b.container));
            place(a)
                .cmp(&place(b))
                .then(b.badness.cmp(&a.badness))
                .then(names)
        });
        for (index, container) in containers.iter_mut().enumerate() {
            container.rank = index + 1;
        }
        if let Some(asked) = asked {
            containers.retain(|container| container.uid == asked.row.uid);
        }
        Ok(Self {
            order: config.options.oom_order,
            memory_capacity_bytes: capacity_bytes,
            swap_bytes,
            containers,
            pod: asked.map(|pod| pod.name.clone()),
        })
    }
}

fn containers_of(
    pod: &PodState,
    capacity: NonZeroU64,
    swap_bytes: u64,
) -> impl Iterator<Item = OomContainer> {
    let working_set = pod.memory.map(|memory| memory.working_set_bytes);
    pod.pod.all_containers().map(move |container| {
        let Score { adj, rule } = score::score(&pod.pod, container, capacity);
        OomContainer {
            rank: 0,
            pod: pod.name.clone(),
            uid: pod.row.uid.clone(),
            container: container.name.clone(),
            qos_class: pod.pod.qos_class(),
            kubelet_adj: adj,
            rule,
            pod_working_set_bytes: working_set,
            badness: badness(working_set.unwrap_or(0), capacity.get(), swap_bytes, adj),
            planned: None,
        }
    })
}

/// In thousandths of all memory and swap, rounded down.
fn badness(used_bytes: u64, capacity_bytes: u64, swap_bytes: u64, adj: i32) -> i64 {
    let all = u128::from(capacity_bytes) + u128::from(swap_bytes);
    let used = u128::from(used_bytes) * 1000 / all.max(1);
    i64::try_from(used)
        .unwrap_or(i64::MAX)
        .saturating_add(adj.into())
}
