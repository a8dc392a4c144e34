//! Which pods a program in the kernel may kill when the agent cannot act, and below how much available memory.
//!
//! Problem: an agent that is frozen, starved or dead evicts no pod. Approach (option [`LastLine`]): after each sample
//! the agent leaves in the kernel the order in which it would evict for memory, and two amounts. A program there kills
//! the task that allocates if its pod is in the order, its turn has come, and memory is short by the kernel's own count
//! (`MemAvailable + SwapFree`):
//!
//! - below the *line* (the largest hard threshold on memory), if a crossing was not acknowledged in time;
//! - below the *critical* amount, a quarter of that, at once. An agent that is alive has taken away its victim's grace
//!   by [half](crate::policy::eviction::thresholds::half).
//!
//! No pod that is exempt from eviction can be in the order: [`Condemned`] is made from a row of the ranking, and from
//! no row of an exempt pod. Pods that are leaving come first; pods that a disruption budget protects come last.
//!
//! The agent may be gone for minutes, so the program ranks the pods of the order anew by what they hold by then. It
//! needs what the ranking goes by: [`Condemned`] has it. Pods that came later are not in the order, and are never
//! killed.

use serde::{Deserialize, Serialize};

use crate::kube::pod_uid::PodUid;
use crate::model::config::EngineConfig;
use crate::model::signal::{Resource, Signal};
use crate::model::state::NodeState;
use crate::policy::eviction::candidates;
use crate::policy::eviction::disruption::Budgeting;
use crate::policy::eviction::rank::{RankRow, Ranking};
use crate::policy::eviction::thresholds::is_memory_floor;
use crate::policy::eviction::view::View;

#[cfg(doc)]
use crate::model::options::LastLine;

/// Pods in the order, at most: as many as the kernel's map holds.
pub const CONDEMNED_MAX: usize = 32;

/// The critical amount is this part of the line.
const CRITICAL_PART: u64 = 4;

/// A pod that may be killed by the kernel, in the name of the agent. Never one that is exempt from eviction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Condemned {
    uid: PodUid,
    /// Pods of a lower tier go first, whatever they hold.
    pub tier: u8,
    /// The pod's priority.
    pub priority: i32,
    /// What it requests, rounded down.
    pub request_bytes: u64,
    /// Its working set, as the ranking has it.
    pub held_bytes: u64,
    /// `memory.current` at that time; 0 if it is not known.
    pub usage_bytes: u64,
}

impl Condemned {
    /// `None` for a pod that is exempt.
    pub fn of(row: &RankRow, standing: KillFlags, usage_bytes: u64) -> Option<Self> {
        let known = |bytes| if row.stats_known { bytes } else { 0 };
        let request_bytes = u64::try_from(row.request.units_down()).unwrap_or(0);
        (!row.exempt).then(|| Self {
            uid: row.uid.clone(),
            tier: standing.tier(row),
            priority: row.priority,
            // Of two pods without statistics none holds more than the other.
            request_bytes: known(request_bytes),
            held_bytes: known(row.usage),
            usage_bytes: known(usage_bytes),
        })
    }

    /// Which pod.
    pub fn uid(&self) -> &PodUid {
        &self.uid
    }
}

/// What counts before the ranking.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KillFlags {
    /// It is on its way out.
    pub is_leaving: bool,
    /// A disruption budget protects it.
    pub is_protected: bool,
}

impl KillFlags {
    /// What goes before the ranking's order: pods on their way out, then those that no budget protects. After all of
    /// them, as in the ranking, pods of which only the cgroup is known: they may be critical.
    fn group(self, row: &RankRow) -> u8 {
        u8::from(row.unnamed > 0) << 2
            | u8::from(!self.is_leaving) << 1
            | u8::from(self.is_protected)
    }

    /// The tier of a pod: within its [group](Self::group) those without statistics are first.
    fn tier(self, row: &RankRow) -> u8 {
        self.group(row) << 1 | u8::from(row.stats_known)
    }
}

/// What the agent leaves in the kernel. Amounts of what `kernelMemory.available` shows, bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LastLinePlan {
    /// Below this, condemned pods are killed if the agent does not answer.
    pub line_bytes: u64,
    /// Below this, at once.
    pub critical_bytes: u64,
    /// The pods, in the order in which they are killed.
    pub order: Vec<Condemned>,
}

/// What to leave in the kernel now. `None`: the option is off, or no hard threshold on memory says where the line is.
pub fn plan(config: &EngineConfig, state: &NodeState) -> Option<LastLinePlan> {
    config.options.last_line?;
    let line_bytes = line_bytes(config, state)?;
    let mut rows = Vec::new();
    let view = View::now(config, state);
    candidates::rows(&view, Resource::Memory, &mut rows);
    let ranking = Ranking::Memory;
    ranking.rank(&mut rows, &mut Vec::new());
    let pod = |row: &RankRow| state.pods.get(&row.uid);
    // What nothing runs in has no process to kill.
    let may_go = |row: &RankRow| !row.exempt && pod(row).is_some_and(|pod| pod.running);
    let mut order: Vec<usize> = (0..rows.len()).filter(|&at| may_go(&rows[at])).collect();
    let mut preferred = order.clone();
    if config.options.disruption_budgets {
        Budgeting::default().prefer(&view, ranking, &rows, &mut preferred, None, true);
    }
    let standing = |at: usize| KillFlags {
        // Not whom the kubelet ends: it may take as long as it likes, and there may be many.
        is_leaving: pod(&rows[at])
            .and_then(|pod| pod.leaving)
            .is_some_and(|leaving| !leaving.ended_by_kubelet),
        is_protected: preferred.binary_search(&at).is_err(),
    };
    // Stable: within each group the ranking's order stays.
    order.sort_by_key(|&at| standing(at).group(&rows[at]));
    let condemned = order.iter().filter_map(|&at| {
        let reading = pod(&rows[at]).and_then(|pod| pod.memory);
        let usage_bytes = reading.map_or(0, |reading| reading.usage_bytes);
        Condemned::of(&rows[at], standing(at), usage_bytes)
    });
    Some(LastLinePlan {
        line_bytes,
        critical_bytes: line_bytes / CRITICAL_PART,
        order: condemned.take(CONDEMNED_MAX).collect(),
    })
}

/// The largest hard threshold on the node's memory.
fn line_bytes(config: &EngineConfig, state: &NodeState) -> Option<u64> {
    let of_node = |signal| {
        matches!(
            signal,
            Signal::MemoryAvailable | Signal::KernelMemoryAvailable
        )
    };
    let thresholds = config
        .thresholds
        .iter()
        .filter(|threshold| is_memory_floor(threshold) && of_node(threshold.signal));
    let amounts = thresholds.filter_map(|threshold| {
        let observation = state.observations.get(threshold.signal)?;
        Some(threshold.amount(observation.capacity))
    });
    amounts.max().filter(|bytes| *bytes > 0)
}
