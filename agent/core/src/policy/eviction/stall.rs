//! Victims of stalls, and how long one eviction is given to help.
//!
//! Problem: a stall has no amount that an eviction gives back, and its average goes down no faster than its window:
//! right after the pod that thrashed has ended, `avg10` still shows its stalls, and the next pod would be evicted for
//! them. Approach: after the last victim ended, a threshold on a stall evicts no pod for as long as its window
//! ([`settled`]). It may go on raising its condition meanwhile. The same holds after the first event: the average is
//! older than the engine, and may be that of a pod which ended before, or was evicted by an agent that has been
//! restarted since.
//!
//! Which pod is evicted: for memory the memory ranking decides. For io and cpu what counts is what a pod does now, so
//! pods are ranked by their load ([`PodLoads`](crate::model::reading::PodLoads)): bytes read and written per second,
//! which no pod requests; and CPU time per second over the CPU request, since a pod within its request uses what it was
//! promised. A load is the difference of two readings, so a pod that has only begun is no candidate, and before the
//! second reading no pod is ([`is_known`]).

use crate::model::signal::{Resource, Signal};
use crate::model::state::NodeState;
use crate::policy::eviction::leaving;
use crate::policy::eviction::view::View;

/// The window of a signal about stalls, nanoseconds; `None` for other signals.
const fn window_ns(signal: Signal) -> Option<u64> {
    const S: u64 = 1_000_000_000;
    match signal {
        Signal::MemorySome10
        | Signal::MemoryFull10
        | Signal::IoSome10
        | Signal::IoFull10
        | Signal::CpuSome10 => Some(10 * S),
        Signal::MemorySome60
        | Signal::MemoryFull60
        | Signal::IoSome60
        | Signal::IoFull60
        | Signal::CpuSome60 => Some(60 * S),
        Signal::MemorySome300
        | Signal::MemoryFull300
        | Signal::IoSome300
        | Signal::IoFull300
        | Signal::CpuSome300 => Some(300 * S),
        Signal::MemoryAvailable
        | Signal::AllocatableMemoryAvailable
        | Signal::NodefsAvailable
        | Signal::NodefsInodesFree
        | Signal::ImagefsAvailable
        | Signal::ImagefsInodesFree
        | Signal::ContainerfsAvailable
        | Signal::ContainerfsInodesFree
        | Signal::PidAvailable
        | Signal::KernelMemoryAvailable
        | Signal::NumaMemoryAvailable => None,
    }
}

/// Takes note of when the newest victim was still there, or may have been.
pub(crate) fn observe(state: &mut NodeState) {
    state.victim_seen_ns = Some(leaving::victim_seen_ns(state, state.now_ns));
}

/// Whether what a signal shows is all of the time since the last victim was seen.
pub(crate) fn settled(view: &View<'_>, signal: Signal) -> bool {
    let Some(window_ns) = window_ns(signal) else {
        return true;
    };
    let seen_ns = view.victim_seen_ns();
    seen_ns.is_none_or(|seen_ns| view.now_ns.saturating_sub(seen_ns) >= window_ns)
}

/// Whether what pods are ranked by has been read.
pub(crate) fn is_known(view: &View<'_>, resource: Resource) -> bool {
    !matches!(resource, Resource::Io | Resource::Cpu)
        || view.loads().is_some_and(|loads| !loads.pods.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::signal::SIGNALS;
    use crate::model::threshold::Operator;

    #[test]
    fn each_signal_with_a_window_in_its_name_has_it() {
        for row in &SIGNALS {
            let named = row.name.rsplit_once("avg").map(|(_, seconds)| {
                let seconds: u64 = seconds.parse().unwrap();
                seconds * 1_000_000_000
            });
            assert_eq!(window_ns(row.signal), named, "{}", row.name);
            assert_eq!(named.is_some(), row.operator == Operator::GreaterThan);
        }
    }
}
