//! Victims for one NUMA node: pods by what they have there.
//!
//! Problem: for `numaMemory.available` a pod that uses much on another node is no help, and the memory ranking would
//! take it. Approach: a pod's usage is its working set on the pressed node
//! ([`NumaPods`](crate::model::reading::NumaPods)), and its request the same share of its request: no pod requests
//! memory of one NUMA node, and a pod that is above its request as a whole is above it here. That the request is not
//! taken in full matters: with 12 GiB on two nodes and a request of 10 GiB it would pass for a pod within its request.
//!
//! The figures cost a file of some thirty lines per pod. So they are not in a sample until the engine asks for them
//! ([`Stale::NumaPods`](crate::policy::eviction::freshness::Stale)): when a pod is to be chosen for that node.

use crate::model::event::Sample;
use crate::model::signal::numa::most_pressed;
use crate::model::signal::{Resource, Signal};
use crate::model::state::NodeState;
use crate::policy::eviction::rank::{Nanos, RankRow};
use crate::policy::eviction::view::View;

/// The node for which a sample lacks the figures of pods.
pub(crate) fn missing(sample: &Sample) -> Option<u32> {
    let node = most_pressed(&sample.numa)?.node;
    let known = sample
        .numa_pods
        .as_ref()
        .is_some_and(|pods| pods.node == node);
    (!known).then_some(node)
}

/// The NUMA node that a signal is about.
pub(crate) fn node(state: &NodeState, signal: Signal) -> Option<u32> {
    let pods = state.numa_pods.as_ref();
    pods.filter(|_| signal == Signal::NumaMemoryAvailable)
        .map(|pods| pods.node)
}

/// Makes rows of the memory ranking rows for the pressed node. A pod without figures counts as one without statistics.
pub(crate) fn use_numa_figures(view: &View<'_>, signal: Signal, rows: &mut Vec<RankRow>) {
    if signal != Signal::NumaMemoryAvailable {
        return;
    }
    for row in rows.iter_mut() {
        let used_bytes = view.numa_pods().and_then(|all| {
            let at = all
                .pods
                .binary_search_by(|pod| pod.uid.cmp(&row.uid))
                .ok()?;
            Some(all.pods[at].used_bytes)
        });
        let whole = row.usage.max(used_bytes.unwrap_or(0));
        row.stats_known = used_bytes.is_some();
        row.usage = used_bytes.unwrap_or(0);
        row.allowance = share(row.allowance, row.usage, whole);
        row.request = share(row.request, row.usage, whole);
    }
    // Where nothing runs, what is left has to be there.
    let pods = &view.state.pods;
    rows.retain(|row| {
        let pod = pods.get(&row.uid);
        pod.is_none_or(|pod| view.is_candidate(pod, Resource::Memory, row.usage))
    });
}

fn share(request: Nanos, part: u64, whole: u64) -> Nanos {
    if whole == 0 {
        return request;
    }
    request.share(part, whole)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::EngineConfig;
    use crate::kube::pod_uid::PodUid;
    use crate::model::reading::{NumaPods, PodOnNode};

    #[test]
    fn a_request_counts_by_the_share_that_is_on_the_node() {
        let gib = |n: u64| n << 30;
        let row = |name: &str, usage, request| RankRow {
            uid: PodUid::from(name),
            exempt: false,
            unnamed: 0,
            stats_known: true,
            priority: 0,
            overused: 0,
            over_share: 0,
            usage: gib(usage),
            allowance: Nanos::from_units(gib(request)),
            request: Nanos::from_units(gib(request)),
        };
        let mut rows = vec![
            row("over", 12, 10),
            row("within", 8, 10),
            row("away", 9, 0),
            row("new", 1, 0),
        ];
        let on = |name: &str, used| PodOnNode {
            uid: PodUid::from(name),
            used_bytes: gib(used),
        };
        let state = NodeState {
            numa_pods: Some(Arc::new(NumaPods {
                at_ns: 1,
                node: 1,
                pods: vec![on("away", 0), on("over", 6), on("within", 8)],
            })),
            ..NodeState::default()
        };
        let config = EngineConfig::default();
        let view = View::now(&config, &state);
        use_numa_figures(&view, Signal::MemoryAvailable, &mut rows);
        assert_eq!(rows[0].usage, gib(12));
        use_numa_figures(&view, Signal::NumaMemoryAvailable, &mut rows);
        assert!(
            rows[0].exceeds_request() && !rows[1].exceeds_request() && !rows[2].exceeds_request()
        );
        assert_eq!(rows[0].excess().units_down(), 1 << 30);
        assert!(!rows[3].stats_known);
    }
}
