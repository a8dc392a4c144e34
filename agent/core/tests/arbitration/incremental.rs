//! A cluster that is kept, and told of changes: the same bytes as computed from scratch.

use plimsoll_core::arbitration::amounts::Resources;
use plimsoll_core::arbitration::arbitrate;
use plimsoll_core::arbitration::cluster::{Cluster, Node, NodeState, Pod};
use plimsoll_core::arbitration::groups::Consumer;
use plimsoll_core::arbitration::incremental::IncrementalCluster;
use proptest::collection::vec;
use proptest::prelude::*;

/// What happens to a cluster.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// A pod of another cluster comes, or takes the place of that with the same UID.
    Put(usize),
    Remove(usize),
    /// A pod is seen again, and nothing of it has changed.
    Again(usize),
    /// A pod is more important than it was: it asks for the same.
    Raise(usize),
    /// So many seconds.
    Pass(u64),
}

pub(crate) fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        3 => (0..40_usize).prop_map(Change::Put),
        2 => (0..40_usize).prop_map(Change::Remove),
        1 => (0..40_usize).prop_map(Change::Again),
        1 => (0..40_usize).prop_map(Change::Raise),
        1 => (0..70_u64).prop_map(Change::Pass),
    ];
    vec(change, 1..25)
}

/// The pods of the other cluster, as far as they name what there is.
fn fitting(cluster: &Cluster, other: &Cluster) -> Vec<Pod> {
    let pods = other.pods.iter().cloned();
    pods.filter(|pod| pod.namespace < cluster.consumers.len())
        .collect()
}

/// After each change, and at the end after several without an answer in between.
pub(crate) fn check(
    cluster: &Cluster,
    other: &Cluster,
    changes: &[Change],
    asks_each_time: bool,
) -> Result<(), TestCaseError> {
    let pods = fitting(cluster, other);
    let mut kept = IncrementalCluster::new(cluster.clone());
    for change in changes {
        match change {
            Change::Put(at) => {
                if let Some(pod) = pods.get(at % pods.len().max(1)) {
                    kept.put(pod.clone());
                }
            }
            Change::Remove(at) => {
                kept.remove(&format!("pod-{at:02}"));
            }
            Change::Again(at) | Change::Raise(at) => {
                let pods = &kept.cluster().pods;
                if let Some(mut pod) = pods.get(at % pods.len().max(1)).cloned() {
                    pod.priority += i64::from(matches!(change, Change::Raise(_)));
                    kept.put(pod);
                }
            }
            Change::Pass(seconds) => kept.pass(*seconds),
        }
        if asks_each_time {
            let scratch = arbitrate(kept.cluster());
            prop_assert_eq!(kept.cycle(), scratch);
        }
    }
    let scratch = arbitrate(kept.cluster());
    prop_assert_eq!(kept.cycle(), scratch);
    Ok(())
}

/// Why a change of one pod cannot cost as little as that pod: where a resource is short, what it asks for more is
/// missing to all others. So each of their amounts has to be computed again.
#[test]
fn one_pod_changes_what_all_other_namespaces_deserve() {
    const NAMESPACES: usize = 100;
    let resources = Resources::new(["cpu", "pods"].map(str::to_owned)).unwrap();
    let consumer = |parent| Consumer {
        parent,
        weight: 1,
        hard: resources.unbounded(),
        reserved: resources.none(),
        unlimited: false,
    };
    let pod = |namespace: usize, cpu: u64| Pod {
        uid: format!("pod-{namespace:02}"),
        namespace,
        requests: [cpu, 1].into(),
        ..Pod::default()
    };
    // The last ones are groups, of which the first has one member, or none.
    for groups in [0, 10] {
        let of_group = |at: usize| match (groups, at) {
            (0, _) => None,
            (_, 0) => Some(NAMESPACES),
            _ => Some(NAMESPACES + 1 + at % (groups - 1)),
        };
        let leaves = (0..NAMESPACES).map(|at| consumer(of_group(at)));
        let cluster = Cluster {
            nodes: vec![Node {
                name: "n".to_owned(),
                allocatable: [Some(100_000), Some(1_000)].into(),
                withheld: [0, 0].into(),
                state: NodeState::Ready,
            }],
            names: (0..NAMESPACES + groups)
                .map(|at| format!("{at:03}"))
                .collect(),
            consumers: leaves.chain((0..groups).map(|_| consumer(None))).collect(),
            pods: (0..NAMESPACES)
                .map(|at| pod(at, if at == 0 { 1 } else { 5_000 }))
                .collect(),
            resources: resources.clone(),
            ..Cluster::default()
        };
        let mut kept = IncrementalCluster::new(cluster);
        let before = kept.deserved().clone();
        kept.put(pod(0, 501));
        let after = kept.deserved();
        for namespace in 1..NAMESPACES {
            let (before, after) = (&before.amounts[namespace], &after.amounts[namespace]);
            assert!(after[0] < before[0], "{namespace}: {after:?} of {before:?}");
        }
    }
}
