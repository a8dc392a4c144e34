//! A cluster that is kept, and told of changes: the same bytes as computed from scratch.

use plimsoll_core::arbitration::arbitrate;
use plimsoll_core::arbitration::cluster::{Cluster, Pod};
use plimsoll_core::arbitration::kept::Kept;
use proptest::collection::vec;
use proptest::prelude::*;

/// What happens to a cluster.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// A pod of another cluster comes, or takes the place of that with the same UID.
    Put(usize),
    Remove(usize),
    /// So many seconds.
    Pass(u64),
}

pub(crate) fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        3 => (0..40_usize).prop_map(Change::Put),
        2 => (0..40_usize).prop_map(Change::Remove),
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
    let mut kept = Kept::new(cluster.clone());
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
