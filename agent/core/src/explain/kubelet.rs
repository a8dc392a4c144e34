//! What the kubelet would do where Plimsoll decides, and which option or rule makes them differ.

use serde::{Deserialize, Serialize};

use crate::explain::ranking::{Candidate, ExplainedRanking};
use crate::model::config::EngineConfig;
use crate::model::options::{Availability, OomOrder, Victims};
use crate::model::signal::{Signal, memory};
use crate::model::state::NodeState;
use crate::policy::memory::candidates;
use crate::policy::memory::foresight::{self, Foreseen};
use crate::policy::memory::share;

/// What the kubelet would do in the same place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletAnswer {
    /// Its victim for the same signal; `None`: no pod, or it has no such signal.
    pub victim: Option<String>,
    /// Where both differ, and the option that makes it so. Empty: the answer is the same.
    pub differences: Vec<Difference>,
}

/// Where Plimsoll departs from the kubelet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// The option, as in the configuration, or the rule.
    pub because: String,
    /// What the kubelet would see or do.
    pub kubelet: String,
    /// What Plimsoll sees or does.
    pub plimsoll: String,
}

/// The kubelet's answer to the same state, and why ours is another one.
pub(crate) fn answer(
    config: &EngineConfig,
    state: &NodeState,
    signal: Signal,
    ranking: &ExplainedRanking,
    victims: &[String],
) -> KubeletAnswer {
    let row = signal.row();
    let mut differences = Vec::new();
    let mut differ = |because: &str, kubelet: String, plimsoll: String| {
        differences.push(Difference {
            because: because.to_owned(),
            kubelet,
            plimsoll,
        });
    };
    if !row.kubelet {
        differ(
            row.name,
            "has no such signal and evicts nobody for it".to_owned(),
            victims.first().map_or_else(
                || "would evict nobody".to_owned(),
                |pod| format!("would evict {pod}"),
            ),
        );
    }
    // The kubelet ranks a pod without statistics first, so also one without processes.
    let mut all: Vec<Candidate> = state
        .pods
        .values()
        .filter(|pod| !pod.removed)
        .map(|pod| Candidate::new(pod, candidates::row(config, state, pod, row.resource)))
        .collect();
    all.sort_unstable_by(|a, b| row.resource.ranking().compare(&a.row, &b.row));
    let first = all.iter().find(|candidate| candidate.exempt.is_none());
    let victim = first
        .map(|candidate| candidate.pod.clone())
        .filter(|_| row.kubelet);
    let ours = ranking.next().map(|place| &place.pod);
    if let Some(first) = first.filter(|candidate| row.kubelet && Some(&candidate.pod) != ours) {
        let runs = state
            .pods
            .get(&first.row.uid)
            .is_some_and(|pod| pod.running);
        let by_share = !config.namespace_shares.is_empty();
        let by_overuse = share::counts_overuse(config, state, row.resource);
        let why = match (runs, by_share, by_overuse) {
            (true, true, false) => "namespaceShares",
            (true, false, true) => "overuseRanking",
            (true, true, true) => "namespaceShares and overuseRanking",
            _ => "pods without processes are not candidates",
        };
        differ(
            why,
            format!("would evict {}", first.pod),
            ours.map_or_else(
                || "would evict nobody".to_owned(),
                |pod| format!("would evict {pod}"),
            ),
        );
    }
    let options = config.options;
    if options.victims == Victims::Targeted && victims.len() > 1 {
        differ(
            "evictionVictims: Targeted",
            format!(
                "would evict {} alone, and look again",
                victim.as_deref().unwrap_or("nobody")
            ),
            format!("would evict {} at once", victims.join(", ")),
        );
    } else if options.victims == Victims::Targeted
        && let ([victim_name], Some(kubelets)) = (victims, &victim)
        && victim_name != kubelets
        && ours == Some(kubelets)
    {
        differ(
            "evictionVictims: Targeted",
            format!("would evict {kubelets}, which does not suffice"),
            format!("would evict {victim_name}, which suffices alone"),
        );
    }
    if options.availability != Availability::Kubelet
        && signal == Signal::MemoryAvailable
        && let (Some(node), Some(seen)) = (&state.node, state.observations.get(signal))
    {
        let theirs = memory::available_bytes(&node.memory, 0, Availability::Kubelet);
        if theirs != seen.value {
            differ(
                "memoryAvailability: Reclaimable",
                format!("sees {theirs} bytes available"),
                format!("sees {} bytes available", seen.value),
            );
        }
    }
    let is_memory = row.resource == crate::model::signal::Resource::Memory;
    if let Some(shortage) = foresight::shortage(config, state).filter(|_| is_memory) {
        let Foreseen {
            rate_bytes_per_s,
            horizon_ns,
            ..
        } = shortage.foreseen;
        differ(
            "outOfMemoryForesight",
            "waits for its threshold".to_owned(),
            format!(
                "evicts now: {rate_bytes_per_s} bytes go per second, and memory is gone within {} ms",
                horizon_ns / 1_000_000
            ),
        );
    }
    if options.remedies.is_some() && is_memory {
        differ(
            "remedies",
            "evicts at once".to_owned(),
            "reclaims, throttles or notifies first, each within its budget".to_owned(),
        );
    }
    if let (Some(breaker), Some(retained), true) = (options.breaker, &state.retained, is_memory) {
        differ(
            "evictionBreaker",
            "evicts again when the volumes and cgroups of its last victim are gone, after 30 s at most".to_owned(),
            format!(
                "evicts one pod per {} s for what {} bytes of ended pods take",
                breaker.interval_ns / 1_000_000_000,
                retained.hold.bytes
            ),
        );
    }
    if options.disruption_budgets {
        differ(
            "respectDisruptionBudgets: true",
            "does not look at disruption budgets".to_owned(),
            "passes over a pod whose budget is used up, where another choice exists".to_owned(),
        );
    }
    if options.oom_order == OomOrder::Dynamic && is_memory {
        differ(
            "oomScoreOrder: Dynamic",
            "leaves oom_score_adj as it was when the container started".to_owned(),
            "keeps the kernel's order that of this ranking".to_owned(),
        );
    }
    KubeletAnswer {
        victim,
        differences,
    }
}
