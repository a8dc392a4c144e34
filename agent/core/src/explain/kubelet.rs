//! What the kubelet would do where Plimsoll decides, and which option or rule makes them differ.

use serde::{Deserialize, Serialize};

use crate::explain::ranking::{Candidate, ExplainedRanking, NotRankedReason};
use crate::model::config::EngineConfig;
use crate::model::options::{Availability, OomOrder, Victims};
use crate::model::signal::{Resource, Signal, memory};
use crate::model::state::NodeState;
use crate::policy::eviction::candidates;
use crate::policy::eviction::foresight::{self, Foreseen};
use crate::policy::eviction::share;
use crate::policy::eviction::view::View;

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
    let mut comparison = Comparison {
        config,
        state,
        signal,
        ranking,
        victims,
        differences: Vec::new(),
    };
    comparison.signals();
    let victim = comparison.first_of_the_ranking();
    comparison.how_many(victim.as_deref());
    comparison.availability();
    comparison.foresight();
    comparison.what_comes_before();
    comparison.what_comes_after();
    KubeletAnswer {
        victim,
        differences: comparison.differences,
    }
}

/// What is compared, and what has been found.
struct Comparison<'a> {
    config: &'a EngineConfig,
    state: &'a NodeState,
    signal: Signal,
    ranking: &'a ExplainedRanking,
    /// The pods that we would evict.
    victims: &'a [String],
    differences: Vec<Difference>,
}

impl Comparison<'_> {
    fn differ(&mut self, because: &str, kubelet: impl Into<String>, plimsoll: impl Into<String>) {
        self.differences.push(Difference {
            because: because.to_owned(),
            kubelet: kubelet.into(),
            plimsoll: plimsoll.into(),
        });
    }

    /// The first pod of our ranking that may go.
    fn ours(&self) -> Option<&str> {
        self.ranking.next().map(|place| &*place.pod)
    }

    fn is_memory(&self) -> bool {
        self.signal.row().resource == Resource::Memory
    }

    /// Signals that the kubelet has not.
    fn signals(&mut self) {
        let row = self.signal.row();
        if !row.kubelet {
            self.differ(
                row.name,
                "has no such signal and evicts no pod for it",
                would_evict(self.victims.first().map(String::as_str)),
            );
        }
    }

    /// The kubelet's victim, and why its ranking begins with another pod than ours.
    fn first_of_the_ranking(&mut self) -> Option<String> {
        let (config, state, row) = (self.config, self.state, self.signal.row());
        if !row.kubelet {
            return None;
        }
        // The kubelet ranks a pod without statistics first, so also one without processes; but none that has ended for
        // good (`filterOutInactivePods`, pkg/kubelet/kubelet_pods.go).
        let mut all: Vec<Candidate> = state
            .pods
            .values()
            .filter(|pod| !pod.removed && (pod.running || !pod.ending))
            .map(|pod| Candidate::new(pod, candidates::row(config, state, pod, row.resource)))
            .collect();
        all.sort_unstable_by(|a, b| row.resource.ranking().compare(&a.row, &b.row));
        let first = all
            .into_iter()
            .find(|candidate| candidate.exempt.is_none())?;
        if Some(&*first.pod) != self.ours() {
            let mut ranked = self.ranking.pods.iter();
            let is_ranked = ranked.any(|place| place.uid == first.row.uid);
            let not_ranked = state.pods.get(&first.row.uid).filter(|_| !is_ranked);
            let view = View::now(config, state);
            let by_share = !config.namespace_shares.is_empty();
            let by_overuse = share::counts_overuse(config, state, row.resource);
            let why = match (not_ranked, by_share, by_overuse) {
                (Some(pod), ..) => {
                    let why = NotRankedReason::of(&view, row.resource, pod);
                    format!("a pod is not ranked: {why}")
                }
                (None, true, false) => "namespaceShares".to_owned(),
                (None, false, true) => "overuseRanking".to_owned(),
                (None, ..) => "namespaceShares and overuseRanking".to_owned(),
            };
            let ours = would_evict(self.ours());
            self.differ(&why, would_evict(Some(&first.pod)), ours);
        }
        Some(first.pod)
    }

    /// How many pods go at once, and which one if one is enough.
    fn how_many(&mut self, kubelets: Option<&str>) {
        const BECAUSE: &str = "evictionVictims: Targeted";
        if self.config.options.victims != Victims::Targeted {
            return;
        }
        let victims = self.victims;
        if victims.len() > 1 {
            let alone = kubelets.unwrap_or("no pod");
            self.differ(
                BECAUSE,
                format!("would evict {alone} alone, and look again"),
                format!("would evict {} at once", victims.join(", ")),
            );
        } else if let ([victim], Some(kubelets)) = (victims, kubelets)
            && victim != kubelets
            && self.ours() == Some(kubelets)
        {
            self.differ(
                BECAUSE,
                format!("would evict {kubelets}, which does not suffice"),
                format!("would evict {victim}, which suffices alone"),
            );
        }
    }

    /// What counts as available memory.
    fn availability(&mut self) {
        if self.config.options.availability != Availability::Kubelet
            && self.signal == Signal::MemoryAvailable
            && let (Some(node), Some(seen)) =
                (&self.state.node, self.state.observations.get(self.signal))
        {
            let theirs = memory::available_bytes(&node.memory, 0, Availability::Kubelet);
            if theirs != seen.value {
                self.differ(
                    "memoryAvailability: Reclaimable",
                    format!("sees {theirs} bytes available"),
                    format!("sees {} bytes available", seen.value),
                );
            }
        }
    }

    /// A shortage that is to come.
    fn foresight(&mut self) {
        let shortage = foresight::shortage(self.config, self.state);
        if let Some(shortage) = shortage.filter(|_| self.is_memory()) {
            let Foreseen {
                rate_bytes_per_s,
                horizon_ns,
                ..
            } = shortage.foreseen;
            self.differ(
                "outOfMemoryForesight",
                "waits for its threshold",
                format!(
                    "evicts now: {rate_bytes_per_s} bytes go per second, and memory is gone within {} ms",
                    horizon_ns / 1_000_000
                ),
            );
        }
    }

    /// What is tried before an eviction, and what delays one.
    fn what_comes_before(&mut self) {
        let (options, is_memory) = (self.config.options, self.is_memory());
        if options.remedies.is_some() && is_memory {
            self.differ(
                "remedies",
                "evicts at once",
                "reclaims, throttles or notifies first, each within its budget",
            );
        }
        if let (Some(breaker), Some(retained), true) =
            (options.breaker, &self.state.retained, is_memory)
        {
            self.differ(
                "evictionBreaker",
                "evicts again when the volumes and cgroups of its last victim are gone, after 30 s at most",
                format!(
                    "evicts one pod per {} s for what {} bytes of ended pods take",
                    breaker.interval_ns / 1_000_000_000,
                    retained.hold.bytes
                ),
            );
        }
    }

    /// Budgets that are respected, and the order in which the kernel kills if an eviction is too late.
    fn what_comes_after(&mut self) {
        let options = self.config.options;
        if options.disruption_budgets {
            self.differ(
                "respectDisruptionBudgets: true",
                "does not look at disruption budgets",
                "passes over a pod whose budget is used up, where another choice exists",
            );
        }
        if options.oom_order == OomOrder::Dynamic && self.is_memory() {
            self.differ(
                "oomScoreOrder: Dynamic",
                "leaves oom_score_adj as it was when the container started",
                "keeps the kernel's order that of this ranking",
            );
        }
    }
}

fn would_evict(pod: Option<&str>) -> String {
    format!("would evict {}", pod.unwrap_or("no pod"))
}
