//! The order in which the kernel's OOM killer takes containers, made the order of eviction.
//!
//! **Problem.** When memory runs out before a pod is evicted, the kernel chooses. It takes the process with the most
//! *badness*: its pages, plus its `oom_score_adj` in thousandths of the node's pages (mm/oom_kill.c, `oom_badness`).
//! The kubelet's scores ([`crate::policy::oom::score`]) come from requests alone: a container over its request is taken
//! only if it is larger than its neighbours' head start; on a node of 4 TiB every request below 4 GiB gives 999
//! (kubernetes#142230); a pod of many processes hides behind each of them (kubernetes#133839); a sidecar, which
//! requests little, is killed first (kubernetes#111356).
//!
//! **Approach.** Containers are put into one sequence, in the order of kills, and scores are given from the front, each
//! the highest that keeps the container's badness below that of everything before it, *however the memory is spread
//! over processes*. One unit of score is worth a *step*, 1/1000 of the node's pages, so a container costs its own usage
//! in steps, rounded up.
//!
//! **The sequence.** Pods by the memory eviction ranking ([`Ranking::Memory`]); then pods that are exempt from
//! eviction; then Guaranteed pods within their request, whatever their priority: the kernel takes those last, as with
//! the kubelet. Within a pod: containers above their own request before those within it, regular ones before sidecars
//! among the latter, then by usage over request, then by name.
//!
//! **Bounds.** A ranked container has 3 to 1000, the kubelet's range for Burstable and BestEffort pods, so that a
//! system daemon (0 or less) is safer. An exempt one has -996 to 2, as much as the order allows, and never more than
//! the kubelet would give it. Guaranteed and node-critical ones keep the kubelet's -997. Nothing has -1000, which the
//! kernel never takes.
//!
//! **Guarantee.** Let a container use U pages (what is charged to it, swap included) and let L be known to be in one of
//! its processes (0 where nothing is known). Its processes' badness B is at most `adj·step + U`, and one of them has at
//! least `adj·step + L`. A place is *certain* when the latter is above the former of every container after it. Hence:
//! *while a certain container has a process, the kernel takes none of a later position.* The first in the ranking is
//! certain unless a later usage is larger than the whole range, 997 steps, so in practice always; container *i* is
//! certain when the containers 2 to *i*, each `⌊U/step⌋ + 1` steps, fit into the range and no later usage is more than
//! the steps that are left. On 4 TiB that is room for 900 small containers; and when the first few have ended, all is
//! computed anew.
//!
//! *Proof.* Let M be the smallest `adj·step + L` so far. The next score is the largest integer with `adj·step + U < M`,
//! if that is within the range: then all its processes are below one process of each place before. Scores never rise
//! along the sequence, and a score at the end of the range is one that could not go lower: `finished` tests those
//! containers like all others, and does not call them certain.
//!
//! **What it does not cover.** Pages that a process maps and another cgroup pays for count for the kernel and not in U.
//! For an OOM of a cpuset or of a memory policy the kernel counts only the nodes allowed there, so that a step is
//! smaller; for one of a cgroup's limit, only that cgroup's processes and its limit. Where memory is spread evenly over
//! the range none of it changes which process is first.
//!
//! **Stability.** A score that a container has is kept as long as it keeps the order and is at most [`DRIFT_MAX`] below
//! the one that a fresh computation gives, unless fresh scores make more containers certain. Fresh ones leave each
//! container room to grow by an eighth.

use std::cmp::Reverse;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::kube::pod_uid::PodUid;
use crate::policy::eviction::rank::{RankRow, Ranking};
use crate::policy::oom::score::{BEST_EFFORT_ADJ, GUARANTEED_ADJ};

/// The highest score of a ranked container.
pub const RANKED_MAX: i32 = BEST_EFFORT_ADJ;
/// The lowest score of a ranked container: the kubelet's for a Burstable one.
pub const RANKED_MIN: i32 = 3;
/// The highest score of an exempt container.
pub const EXEMPT_MAX: i32 = RANKED_MIN - 1;
/// The lowest score of an exempt container that the kubelet does not protect itself.
pub const EXEMPT_MIN: i32 = GUARANTEED_ADJ + 1;
/// How far a score may be below a fresh one before it is given anew.
pub const DRIFT_MAX: i32 = 50;

/// Pages and steps of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomNode {
    /// RAM and swap, pages: `totalpages` of `constrained_alloc` in mm/oom_kill.c.
    pub total_pages: u64,
    /// What one unit of `oom_score_adj` is worth, pages. 0 on a node of less than 1000 pages.
    pub step_pages: u64,
    /// Bytes of a page.
    pub page_bytes: NonZeroU64,
}

impl OomNode {
    /// The RAM (`MemTotal`) and swap (`SwapTotal`) of a node, bytes.
    pub fn new(ram_bytes: u64, swap_bytes: u64, page_bytes: NonZeroU64) -> Self {
        let total_pages = (ram_bytes / page_bytes).saturating_add(swap_bytes / page_bytes);
        Self {
            total_pages,
            step_pages: total_pages / 1000,
            page_bytes,
        }
    }

    /// The kernel's badness of a process with this many pages (resident, swapped out, and page tables).
    pub fn badness_pages(&self, adj: i32, pages: u64) -> i64 {
        let step = i64::try_from(self.step_pages).unwrap_or(i64::MAX);
        let pages = i64::try_from(pages).unwrap_or(i64::MAX);
        i64::from(adj).saturating_mul(step).saturating_add(pages)
    }

    fn pages_up(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.page_bytes.get())
    }
}

/// A pod, as far as the order needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomPod {
    /// Its row of the memory ranking.
    pub row: RankRow,
    /// Whether evictions skip it.
    pub exempt: bool,
    /// Its containers that have processes.
    pub containers: Vec<OomContainer>,
}

/// A container, as far as the order needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomContainer {
    /// Its name.
    pub name: String,
    /// Memory and swap charged to its cgroup, bytes. No process of it can have more.
    pub usage_bytes: u64,
    /// What is known to be in one process, bytes; 0 where nothing is known.
    pub largest_process_bytes: u64,
    /// Its memory request, bytes.
    pub request_bytes: u64,
    /// Whether it is an init container that keeps running (a sidecar).
    pub sidecar: bool,
    /// What the kubelet gives it ([`crate::policy::oom::score::oom_score_adj`]).
    pub kubelet_adj: i32,
    /// What it has now; `None` if that is not known.
    pub current_adj: Option<i32>,
}

impl OomContainer {
    fn exceeds_request(&self) -> bool {
        self.usage_bytes > self.request_bytes
    }

    /// The smallest is killed first.
    fn key(&self) -> (bool, bool, Reverse<i128>, &str) {
        let within = !self.exceeds_request();
        let excess = i128::from(self.usage_bytes) - i128::from(self.request_bytes);
        (within, within && self.sidecar, Reverse(excess), &self.name)
    }
}

/// Which part of the sequence a container belongs to. In its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Taken in the order of eviction.
    Ranked,
    /// Never evicted; taken when nothing ranked is left.
    Exempt,
    /// Guaranteed within its request, or node-critical: the kubelet's -997.
    Protected,
}

/// One container in the sequence, with what led to its position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedContainer {
    /// Its pod.
    pub uid: PodUid,
    /// Its name.
    pub container: String,
    /// Its position, from 1: the kernel is to take this one first.
    pub position: usize,
    /// Its pod's rank in the memory eviction ranking, from 1.
    pub pod_rank: usize,
    /// Which part of the sequence.
    pub tier: Tier,
    /// Memory and swap charged to its cgroup, bytes.
    pub usage_bytes: u64,
    /// Its memory request, bytes.
    pub request_bytes: u64,
    /// The score that it is to have.
    pub adj: i32,
    /// The score that it has; `None` if that is not known.
    pub current_adj: Option<i32>,
    /// The kubelet's score.
    pub kubelet_adj: i32,
    /// The most badness that one of its processes can have, pages.
    pub badness_max_pages: i64,
    /// The badness that one of its processes has at least, pages.
    pub badness_min_pages: i64,
    /// The same as `badness_max_pages` by the kubelet's score.
    pub kubelet_badness_max_pages: i64,
    /// While it has a process, the kernel takes none of a later position.
    pub certain: bool,
}

/// The whole sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomPlan {
    /// The node that it was made for.
    pub node: OomNode,
    /// First to be taken first.
    pub containers: Vec<PlannedContainer>,
}

impl OomPlan {
    /// How many containers from the first one on are certain.
    pub fn certain(&self) -> usize {
        self.containers
            .iter()
            .take_while(|container| container.certain)
            .count()
    }

    /// The containers whose score is to be written.
    pub fn changes(&self) -> impl Iterator<Item = &PlannedContainer> {
        self.containers
            .iter()
            .filter(|container| container.current_adj != Some(container.adj))
    }

    /// One container of a pod.
    pub fn container(&self, uid: &PodUid, container: &str) -> Option<&PlannedContainer> {
        self.containers
            .iter()
            .find(|planned| planned.uid == *uid && planned.container == container)
    }
}

/// Puts the containers of `pods` into the order of eviction. Which order `pods` are in does not matter. O(n log n).
pub fn oom_plan(node: OomNode, pods: &[OomPod]) -> OomPlan {
    let containers = sequence(node, pods);
    let fresh = assign_scores(&node, &containers, |_, _| None);
    let kept = assign_scores(&node, &containers, |index, most| {
        let current = containers[index].current_adj?;
        let keeps = current <= most && current >= fresh[index].saturating_sub(DRIFT_MAX);
        keeps.then_some(current)
    });
    let plan = |scores: Vec<i32>| with_certainty(node, containers.clone(), &scores);
    let (fresh, kept) = (plan(fresh), plan(kept));
    if kept.certain() >= fresh.certain() {
        kept
    } else {
        fresh
    }
}

/// The sequence, without scores.
fn sequence(node: OomNode, pods: &[OomPod]) -> Vec<PlannedContainer> {
    let mut ranked: Vec<&OomPod> = pods.iter().collect();
    ranked.sort_unstable_by(|a, b| Ranking::Memory.compare(&a.row, &b.row));
    let mut planned = Vec::with_capacity(pods.iter().map(|pod| pod.containers.len()).sum());
    for (index, pod) in ranked.into_iter().enumerate() {
        let mut containers: Vec<&OomContainer> = pod.containers.iter().collect();
        containers.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        for container in containers {
            let is_kept = container.kubelet_adj == GUARANTEED_ADJ
                && (pod.exempt || !pod.row.exceeds_request());
            let tier = match (is_kept, pod.exempt) {
                (true, _) => Tier::Protected,
                (false, true) => Tier::Exempt,
                (false, false) => Tier::Ranked,
            };
            planned.push(PlannedContainer {
                uid: pod.row.uid.clone(),
                container: container.name.clone(),
                position: 0,
                pod_rank: index + 1,
                tier,
                usage_bytes: container.usage_bytes,
                request_bytes: container.request_bytes,
                adj: 0,
                current_adj: container.current_adj,
                kubelet_adj: container.kubelet_adj,
                badness_max_pages: 0,
                // The score is added when there is one.
                badness_min_pages: node.badness_pages(
                    0,
                    container.largest_process_bytes.min(container.usage_bytes) / node.page_bytes,
                ),
                kubelet_badness_max_pages: node
                    .badness_pages(container.kubelet_adj, node.pages_up(container.usage_bytes)),
                certain: false,
            });
        }
    }
    // Stable: within a tier the ranking's order stays.
    planned.sort_by_key(|container| container.tier);
    planned
}

/// Scores from the front. `keep` is asked with a position, from 0, and the most that the order allows there, and may
/// name the score to keep.
fn assign_scores(
    node: &OomNode,
    containers: &[PlannedContainer],
    keep: impl Fn(usize, i32) -> Option<i32>,
) -> Vec<i32> {
    let mut scores = Vec::with_capacity(containers.len());
    // The least that a process of any earlier container has.
    let mut least: Option<i64> = None;
    let mut before = RANKED_MAX;
    for (index, container) in containers.iter().enumerate() {
        let (floor, ceiling) = match container.tier {
            Tier::Ranked => (RANKED_MIN, RANKED_MAX),
            Tier::Exempt => (EXEMPT_MIN, EXEMPT_MAX),
            Tier::Protected => (container.kubelet_adj, container.kubelet_adj),
        };
        let ceiling = ceiling.min(before);
        let usage_pages = node.pages_up(container.usage_bytes);
        let highest = |pages| highest_below(node, least, pages).clamp(floor.min(ceiling), ceiling);
        let most = highest(usage_pages);
        let adj = keep(index, most)
            .filter(|adj| (floor..=most).contains(adj))
            .unwrap_or_else(|| highest(usage_pages.saturating_add(usage_pages / 8)));
        let min_pages = node
            .badness_pages(adj, 0)
            .saturating_add(container.badness_min_pages);
        least = Some(least.map_or(min_pages, |least| least.min(min_pages)));
        before = adj;
        scores.push(adj);
    }
    scores
}

/// The highest score with which this many pages stay below `least`.
fn highest_below(node: &OomNode, least: Option<i64>, pages: u64) -> i32 {
    let Some(least) = least else {
        return RANKED_MAX;
    };
    let step = i64::try_from(node.step_pages).unwrap_or(i64::MAX);
    if step == 0 {
        return RANKED_MIN; // scores have no effect on so small a node
    }
    let pages = i64::try_from(pages).unwrap_or(i64::MAX);
    let room = least.saturating_sub(1).saturating_sub(pages);
    i32::try_from(room.div_euclid(step)).unwrap_or(if room < 0 { i32::MIN } else { i32::MAX })
}

fn with_certainty(node: OomNode, mut containers: Vec<PlannedContainer>, scores: &[i32]) -> OomPlan {
    let mut worst_later = i64::MIN;
    for (index, (container, adj)) in containers.iter_mut().zip(scores).enumerate().rev() {
        container.position = index + 1;
        container.adj = *adj;
        container.badness_max_pages =
            node.badness_pages(*adj, node.pages_up(container.usage_bytes));
        container.badness_min_pages = node
            .badness_pages(*adj, 0)
            .saturating_add(container.badness_min_pages);
        container.certain = container.badness_min_pages > worst_later;
        worst_later = worst_later.max(container.badness_max_pages);
    }
    OomPlan { node, containers }
}

#[cfg(test)]
mod tests;
