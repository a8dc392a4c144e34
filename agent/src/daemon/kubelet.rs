//! Beside a kubelet: pods come from its cgroups and from the API server, evictions are held and reported, and nothing
//! that the kubelet has made is changed.
//!
//! **Problem.** The kubelet starts again what dies, and only the API server's word ends a pod. That word may be late,
//! and the agent may be replaced meanwhile. **Approach.** A pod is known from its cgroup, whether or not the API server
//! has named it ([`Agent::follow_kubelet_tree`]). A kill comes with a hold ([`crate::act::holds`]), and before its
//! report, which is on the disk until it is settled ([`crate::source::cluster`]). At a soft threshold the report comes
//! first: the kubelet runs hooks and sends SIGTERM. If none of that is seen in [`ACKNOWLEDGE_NS`], the agent does.
//!
//! **Terms.** *evicted*: from the decision until the pod's cgroup has gone, its UID has left the API, or the hold was
//! given up.

mod api;
mod hold;
mod report;
mod tree;
mod unseen;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::protocol::cluster_link::NodeConditionReport;

use self::unseen::UnseenPods;
use super::{Agent, now_ns};
use crate::act::holds::Holds;
use crate::record::tally::ReportCounts;
use crate::source::cluster::{ClusterLink, LeftBehind};
use crate::source::pod_resources::TopologySource;

/// In this time the API server has to take the report of an eviction for a soft threshold; then the agent ends the pod
/// itself.
const ACKNOWLEDGE_NS: u64 = 2_000_000_000;
/// How long a pod is held without a word from the API server.
const HOLD_MAX_NS: u64 = 600_000_000_000;
/// After the start the API server has so long to name the pods that are there. Until then the engine knows no pod of
/// which only the cgroup is known: it may be critical, and no pod is to go because its agent was started anew
/// (k/k#70618).
const NAMES_WITHIN_NS: u64 = 10_000_000_000;
/// After this time it is looked what has come of a lift, and one that has failed is tried again.
const LIFT_AGAIN_NS: u64 = 1_000_000_000;
/// What is withheld is said anew at most so often; its end is said at once.
const WITHHELD_EVERY_NS: u64 = 10_000_000_000;
/// Pods that one sample can have killed.
const HELD_AT_ONCE: usize = 64;
/// Pods that are known at one time: those of the API, and as many that it has not named.
const PODS_MAX: usize = 2048;

/// An evicted pod.
#[derive(Debug, Default)]
struct Evicted {
    /// Since when it is held, nanoseconds.
    held_ns: Option<u64>,
    /// Until when its report is to be acknowledged, nanoseconds.
    acknowledge_by_ns: Option<u64>,
    /// It was killed; what runs in it now was started again.
    is_killed: bool,
    /// That it was started again has been said.
    is_said: bool,
    /// When it was last killed again, nanoseconds.
    killed_again_ns: Option<u64>,
    /// It got SIGTERM from plimsoll, because nothing had acknowledged its report.
    is_terminated: bool,
}

impl Evicted {
    /// Whether something was done to the pod already, so that it cannot just stay.
    fn is_begun(&self) -> bool {
        self.is_terminated || self.is_killed || self.held_ns.is_some()
    }
}

/// What it takes beside a kubelet.
#[derive(Debug)]
pub struct KubeletWork {
    link: Option<ClusterLink>,
    /// What NUMA nodes have left; a thread of its own.
    topology: Option<TopologySource>,
    holds: Option<Holds>,
    evicted: BTreeMap<PodUid, Evicted>,
    /// Pods that the API server called critical before this agent started.
    critical: BTreeSet<PodUid>,
    /// Held on the way to a kill, and not noted yet.
    newly_held: Vec<PodUid>,
    /// When the API server was last known to answer, nanoseconds.
    api_answered_ns: u64,
    is_api_reachable: bool,
    /// What the node lacks.
    lost: Vec<String>,
    /// Why nothing is placed although it is to be.
    not_placing: Option<String>,
    unseen: UnseenPods,
    conditions: Vec<NodeConditionReport>,
    /// What was last said to be withheld, bytes, and when, nanoseconds.
    withheld: (u64, u64),
    is_unheld_said: bool,
    is_tree_said: bool,
    is_unused_budgets_said: bool,
    /// When holds that could not be lifted are lifted again, nanoseconds; `None`: there are none.
    lift_again_ns: Option<u64>,
}

impl KubeletWork {
    /// Reports through `link`; `held`: pods that an agent before has left held.
    pub fn new(
        link: Option<ClusterLink>,
        holds: Option<Holds>,
        held: Vec<PodUid>,
        left: LeftBehind,
        lost: Vec<String>,
    ) -> Self {
        let at_ns = now_ns();
        let mut evicted: BTreeMap<PodUid, Evicted> = BTreeMap::new();
        for uid in left.unsettled {
            // Where nothing holds it, what runs in it now was started again.
            let is_killed = left.killed.contains(&uid);
            evicted.entry(uid).or_default().is_killed = is_killed;
        }
        for uid in held {
            let pod = evicted.entry(uid).or_default();
            (pod.held_ns, pod.is_killed) = (Some(at_ns), true);
        }
        let has_more = holds
            .as_ref()
            .is_some_and(|holds| !holds.to_lift().is_empty());
        Self {
            link,
            topology: None,
            lift_again_ns: has_more.then_some(at_ns),
            critical: left.critical,
            holds,
            evicted,
            newly_held: Vec::with_capacity(HELD_AT_ONCE),
            api_answered_ns: at_ns,
            is_api_reachable: false,
            lost,
            not_placing: None,
            unseen: UnseenPods::default(),
            conditions: Vec::new(),
            withheld: (0, 0),
            is_unheld_said: false,
            is_tree_said: false,
            is_unused_budgets_said: false,
        }
    }

    /// Says what NUMA nodes have left.
    #[must_use]
    pub fn with_topology(mut self, topology: Option<TopologySource>) -> Self {
        self.topology = topology;
        self
    }

    /// What asks the kubelet what it has given to containers.
    pub(super) fn topology(&self) -> Option<&TopologySource> {
        self.topology.as_ref()
    }

    /// When something is to be done of which nothing else reminds the loop.
    pub(super) fn at_ns(&self) -> Option<u64> {
        let hold_ends = |pod: &Evicted| {
            let since_ns = pod.held_ns?.max(self.api_answered_ns);
            (!self.is_api_reachable).then(|| since_ns.saturating_add(HOLD_MAX_NS))
        };
        let at = |pod: &Evicted| {
            pod.acknowledge_by_ns
                .into_iter()
                .chain(hold_ends(pod))
                .min()
        };
        let evicted = self.evicted.values().filter_map(at);
        evicted.chain(self.lift_again_ns).min()
    }

    /// Evicted pods in which nothing new is to start, whether or not they can be held (cgroup v1).
    pub(super) fn closed(&self) -> impl Iterator<Item = &PodUid> {
        let evicted = self.evicted.iter();
        evicted.filter_map(|(uid, pod)| pod.is_begun().then_some(uid))
    }

    /// Of the reports to `plimsoll-cluster`.
    pub(super) fn counts(&self) -> Option<ReportCounts> {
        let counts = self.link.as_ref()?.counts();
        let [unsettled, unreported, refused_frames, refused_clients] = counts.read();
        Some(ReportCounts {
            unsettled,
            unreported,
            refused_frames,
            refused_clients,
            is_connected: counts.is_connected.load(Ordering::Relaxed),
        })
    }
}

impl Agent {
    /// Lets it run beside a kubelet.
    #[must_use]
    pub fn with_kubelet(mut self, kubelet: Option<KubeletWork>) -> Self {
        self.kubelet = kubelet;
        self
    }

    /// Holds stay: an eviction is not over because the agent is replaced.
    pub(super) fn end_kubelet(&mut self) {
        if let Some(work) = &mut self.kubelet {
            (work.topology, work.link) = (None, None);
        }
    }
}

#[cfg(test)]
mod tests;
