//! Which namespaces use more of the node than their share.
//!
//! Problem: a ResourceQuota bounds what the pods of a namespace request together, and no one bounds what they use: a namespace whose pods all stay a
//! little above small requests goes as late as one that keeps within large ones. Approach: option `namespaceShares` names amounts of this node. Once a namespace
//! uses more, its pods go first among those that the kubelet's rules hold equal: after missing statistics, "exceeds its request" and priority, before the amount over
//! the request ([`Comparator::OverShare`](crate::policy::memory::rank::Comparator::OverShare)), the namespace that is further above its share first. Nothing else changes: a share
//! reserves nothing, refuses nothing, and evicts nobody by itself.
//!
//! What a namespace uses is the sum over its pods that are ranked: working sets for memory, CPU time for CPU stalls. Other resources have no shares.

use crate::model::config::EngineConfig;
use crate::model::options::NamespaceShare;
use crate::model::rank_row::RankRow;
use crate::model::signal::Resource;
use crate::model::state::NodeState;

/// Namespaces with a share, at most: their sums are on the stack.
pub const NAMESPACE_SHARES_MAX: usize = 64;

/// A namespace's share of what pods are ranked for; `None`: it has none.
fn share_of(share: &NamespaceShare, resource: Resource) -> Option<u64> {
    match resource {
        Resource::Memory => share.memory_bytes,
        Resource::Cpu => share.cpu_milli,
        _ => None,
    }
}

/// What a namespace uses beyond its share, in thousandths of the share, rounded up; 0 within it.
fn excess(used: u64, share: u64) -> u16 {
    let beyond = u128::from(used.saturating_sub(share)) * 1000;
    u16::try_from(beyond.div_ceil(u128::from(share.max(1)))).unwrap_or(u16::MAX)
}

/// Where a row's namespace is among those with a share.
fn place(config: &EngineConfig, state: &NodeState, row: &RankRow) -> Option<usize> {
    let namespace = state.pods.get(&row.uid)?.pod.namespace();
    let shares = &config.namespace_shares;
    let place = shares.binary_search_by(|share| share.namespace.as_str().cmp(namespace));
    place.ok().filter(|at| *at < NAMESPACE_SHARES_MAX)
}

/// What the rows use together, by the place of their namespace.
fn used(config: &EngineConfig, state: &NodeState, rows: &[RankRow]) -> [u64; NAMESPACE_SHARES_MAX] {
    let mut used = [0u64; NAMESPACE_SHARES_MAX];
    for row in rows {
        if let Some(at) = place(config, state, row) {
            used[at] = used[at].saturating_add(row.usage);
        }
    }
    used
}

/// Marks the rows of namespaces above their share. Allocates nothing.
pub(crate) fn mark(
    config: &EngineConfig,
    state: &NodeState,
    resource: Resource,
    rows: &mut [RankRow],
) {
    if config.namespace_shares.is_empty() {
        return;
    }
    let used = used(config, state, rows);
    for row in rows {
        let share = place(config, state, row)
            .and_then(|at| Some((at, share_of(&config.namespace_shares[at], resource)?)));
        row.over_share = share.map_or(0, |(at, share)| excess(used[at], share));
    }
}

/// What each namespace with a share of this resource uses of it: namespace, used, share.
pub(crate) fn standing<'config>(
    config: &'config EngineConfig,
    state: &NodeState,
    resource: Resource,
    rows: &[RankRow],
) -> Vec<(&'config str, u64, u64)> {
    let used = used(config, state, rows);
    let shares = config.namespace_shares.iter().zip(used);
    let of = |(share, used): (&'config NamespaceShare, u64)| {
        Some((share.namespace.as_str(), used, share_of(share, resource)?))
    };
    shares.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::Engine;
    use crate::kube::pod::Pod;
    use crate::model::event::{Event, EventKind};
    use crate::policy::memory::rank::{Comparator, Ranking};

    const MIB: u64 = 1 << 20;

    fn share(namespace: &str, memory_bytes: u64) -> NamespaceShare {
        NamespaceShare {
            namespace: namespace.into(),
            memory_bytes: Some(memory_bytes),
            cpu_milli: None,
        }
    }

    fn pod(namespace: &str, name: &str, priority: i32) -> Arc<Pod> {
        let json = format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","uid":"{name}"}},"spec":{{"priority":{priority}}}}}"#
        );
        Arc::new(serde_json::from_str(&json).unwrap())
    }

    /// The ranking of pods that use so much, by UID.
    fn ranked(
        shares: &[NamespaceShare],
        pods: &[(Arc<Pod>, u64)],
    ) -> Vec<(String, u16, Option<Comparator>)> {
        let config = EngineConfig {
            namespace_shares: shares.to_vec(),
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(config);
        for (pod, _) in pods {
            let kind = EventKind::PodApplied {
                pod: Arc::clone(pod),
            };
            engine.step(&Event { at_ns: 1, kind }, &mut Vec::new());
        }
        let mut rows: Vec<RankRow> = pods
            .iter()
            .map(|(pod, usage)| RankRow::memory(pod, Some(*usage)))
            .collect();
        mark(engine.config(), engine.state(), Resource::Memory, &mut rows);
        Ranking::Memory.rank(&mut rows, &mut Vec::new());
        let by = |at: usize| {
            let next = rows.get(at + 1)?;
            Some(Ranking::Memory.deciding_comparator(&rows[at], next))
        };
        let row = |at: usize| (rows[at].uid.to_string(), rows[at].over_share, by(at));
        (0..rows.len()).map(row).collect()
    }

    #[test]
    fn pods_of_a_namespace_above_its_share_go_first_among_equals() {
        let pods = [
            (pod("a", "a1", 0), 100 * MIB),
            (pod("a", "a2", 0), 150 * MIB),
            (pod("b", "b1", 0), 300 * MIB),
            (pod("a", "important", 7), 900 * MIB),
            (pod("c", "c1", -1), MIB),
        ];
        let order = |shares: &[NamespaceShare]| -> Vec<String> {
            let rows = ranked(shares, &pods).into_iter();
            rows.map(|(uid, ..)| uid).collect()
        };
        // Without shares: priority, then what is used above the request.
        assert_eq!(order(&[]), ["c1", "b1", "a2", "a1", "important"]);
        // Within its share a namespace goes as it would.
        let within = [share("a", 4096 * MIB), share("b", 4096 * MIB)];
        assert_eq!(order(&within), ["c1", "b1", "a2", "a1", "important"]);
        // Above it, its pods go before those of their priority, never before those below.
        let above = [share("a", 1000 * MIB), share("b", 4096 * MIB)];
        let rows = ranked(&above, &pods);
        let uids: Vec<&str> = rows.iter().map(|(uid, ..)| uid.as_str()).collect();
        assert_eq!(uids, ["c1", "a2", "a1", "b1", "important"]);
        assert_eq!(rows[1].2, Some(Comparator::UsageOverRequest));
        assert_eq!(rows[2].2, Some(Comparator::OverShare));
        assert_eq!((rows[1].1, rows[3].1), (150, 0));
        // The namespace that is further above goes first.
        let both = [share("a", 1000 * MIB), share("b", 100 * MIB)];
        assert_eq!(order(&both), ["c1", "b1", "a2", "a1", "important"]);
    }

    #[test]
    fn excess_is_in_thousandths_and_bounded() {
        for (used, share, expected) in [
            (0, 0, 0),
            (100, 100, 0),
            (101, 100, 10),
            (1_000_001, 1_000_000, 1),
            (u64::MAX, 1, u16::MAX),
            (5, 0, 5000),
        ] {
            assert_eq!(excess(used, share), expected, "{used} of {share}");
        }
    }
}
