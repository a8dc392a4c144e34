//! Which namespaces use more of the node than their share.
//!
//! Problem: a ResourceQuota bounds what the pods of a namespace request together, and no one bounds what they use: a
//! namespace whose pods all stay a little above small requests goes as late as one that keeps within large ones.
//! Approach: option `namespaceShares` names amounts of this node. Once a namespace uses more, its pods go first among
//! those that the kubelet's rules hold equal: after missing statistics, "exceeds its request" and priority, before the
//! amount over the request ([`Comparator::OverShare`](crate::model::rank_row::Comparator::OverShare)), the namespace
//! that is further above its share first. Nothing else changes: a share reserves nothing, refuses nothing, and evicts
//! nobody by itself.
//!
//! What a namespace uses is the sum over its pods that are ranked: working sets for memory, CPU time for CPU stalls.
//! Other resources have no shares.
//!
//! In a cluster the arbitrator says which namespaces use more than they deserve of it
//! (`docs/decisions/0048-overuse-ranking.md`). That is a share too, of the cluster: with `overuseRanking: AmongEquals`
//! the excess counts in the same step, and the greater of both excesses decides. With `BeforePriority` it has a step of
//! its own. The arbitrator's list holds for a minute after its time stamp, and is then as if it were empty.

use crate::model::config::EngineConfig;
use crate::model::event::Overused;
use crate::model::options::{NamespaceShare, OveruseRanking};
use crate::model::rank_row::RankRow;
use crate::model::signal::Resource;
use crate::model::state::{NodeState, PodState};
use crate::policy::eviction::view::View;
use crate::protocol::cluster_link::OverusedNamespace;

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

/// Whether pods can be above a share of this.
const fn is_shared(resource: Resource) -> bool {
    matches!(resource, Resource::Memory | Resource::Cpu)
}

/// The arbitrator's list, while it holds and counts.
pub(crate) fn overused<'state>(
    config: &EngineConfig,
    state: &'state NodeState,
    now_ns: u64,
) -> Option<&'state Overused> {
    let is_ignored = config.options.overuse_ranking == OveruseRanking::Ignore;
    let list = state.overused.as_deref().filter(|_| !is_ignored)?;
    (now_ns < list.until_ns && !list.namespaces.is_empty()).then_some(list)
}

/// Marks the rows of namespaces above their share of the node, or of the cluster. Allocates nothing.
pub(crate) fn mark(view: &View<'_>, resource: Resource, rows: &mut [RankRow]) {
    let View { config, state, .. } = *view;
    if !config.namespace_shares.is_empty() {
        let used = used(config, state, rows);
        for row in rows.iter_mut() {
            let share = place(config, state, row)
                .and_then(|at| Some((at, share_of(&config.namespace_shares[at], resource)?)));
            row.over_share = share.map_or(0, |(at, share)| excess(used[at], share));
        }
    }
    let list = overused(config, state, view.now_ns).filter(|_| is_shared(resource));
    let Some(list) = list else { return };
    for row in rows {
        let pod = state.pods.get(&row.uid);
        let (overused, over_share) = pod.map_or((0, 0), |pod| of_overuse(config, list, pod));
        row.overused = overused;
        row.over_share = row.over_share.max(over_share);
    }
}

/// What the arbitrator's list makes of a pod: [`RankRow::overused`] and the least [`RankRow::over_share`].
pub(crate) fn of_overuse(config: &EngineConfig, list: &Overused, pod: &PodState) -> (u16, u16) {
    let excess = list.excess(pod.pod.namespace());
    match config.options.overuse_ranking {
        OveruseRanking::Ignore => (0, 0),
        OveruseRanking::AmongEquals => (0, excess),
        OveruseRanking::BeforePriority => (excess, 0),
    }
}

/// Whether the arbitrator's list counts in the order of pods now.
pub(crate) fn counts_overuse(config: &EngineConfig, state: &NodeState, resource: Resource) -> bool {
    is_shared(resource) && overused(config, state, state.now_ns).is_some()
}

/// The namespaces that the arbitrator says are overused, and how much longer that holds, nanoseconds: whether or not it
/// counts here. Nothing for a resource without shares.
pub(crate) fn overuse(
    state: &NodeState,
    resource: Resource,
) -> Option<(&[OverusedNamespace], u64)> {
    let list = state.overused.as_deref().filter(|_| is_shared(resource))?;
    let left_ns = list
        .until_ns
        .checked_sub(state.now_ns)
        .filter(|left| *left > 0)?;
    (!list.namespaces.is_empty()).then_some((&list.namespaces[..], left_ns))
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
    use crate::model::rank_row::Comparator;
    use crate::policy::eviction::rank::Ranking;

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
        ranked_at(OveruseRanking::Ignore, shares, pods, 1)
    }

    /// At that time, where `a` is over by 30 ‰ of the cluster and `b` by 20 ‰, up to 100 ns.
    fn ranked_at(
        overuse_ranking: OveruseRanking,
        shares: &[NamespaceShare],
        pods: &[(Arc<Pod>, u64)],
        now_ns: u64,
    ) -> Vec<(String, u16, Option<Comparator>)> {
        let mut config = EngineConfig {
            namespace_shares: shares.to_vec(),
            ..EngineConfig::default()
        };
        config.options.overuse_ranking = overuse_ranking;
        let mut engine = Engine::new(config);
        let namespaces = [("a", 30), ("b", 20)].map(|(namespace, excess)| OverusedNamespace {
            namespace: namespace.into(),
            excess,
        });
        let list = Overused {
            until_ns: 100,
            namespaces: namespaces.into(),
        };
        let kind = EventKind::Overused(Arc::new(list));
        engine.step(&Event { at_ns: 1, kind }, &mut Vec::new());
        for (pod, _) in pods {
            let kind = EventKind::PodApplied {
                pod: Arc::clone(pod),
            };
            let at_ns = now_ns;
            engine.step(&Event { at_ns, kind }, &mut Vec::new());
        }
        let mut rows: Vec<RankRow> = pods
            .iter()
            .map(|(pod, usage)| RankRow::memory(pod, Some(*usage)))
            .collect();
        let view = View::now(engine.config(), engine.state());
        mark(&view, Resource::Memory, &mut rows);
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
    fn pods_of_overused_namespaces_go_first_where_the_option_says_and_for_a_minute() {
        let pods = [
            (pod("a", "a1", 0), 100 * MIB),
            (pod("b", "b1", 0), 150 * MIB),
            (pod("c", "c1", 0), 300 * MIB),
            (pod("a", "important", 7), 200 * MIB),
            (pod("c", "low", -1), MIB),
        ];
        let order = |ranking, now_ns| -> Vec<String> {
            let rows = ranked_at(ranking, &[], &pods, now_ns).into_iter();
            rows.map(|(uid, ..)| uid).collect()
        };
        let kubelet = ["low", "c1", "b1", "a1", "important"];
        assert_eq!(order(OveruseRanking::Ignore, 1), kubelet);
        let among = OveruseRanking::AmongEquals;
        assert_eq!(order(among, 1), ["low", "a1", "b1", "c1", "important"]);
        let before = OveruseRanking::BeforePriority;
        assert_eq!(order(before, 1), ["a1", "important", "b1", "low", "c1"]);
        for ranking in [among, before] {
            assert_ne!(order(ranking, 99), kubelet);
            assert_eq!(order(ranking, 100), kubelet, "void");
        }
        let by = |ranking| ranked_at(ranking, &[], &pods, 1)[1].2;
        assert_eq!(by(among), Some(Comparator::OverShare));
        assert_eq!(by(before), Some(Comparator::Overused));
        // Of two shares the one that is exceeded further counts.
        let shares = [share("c", 300 * MIB)];
        let rows = ranked_at(among, &shares, &pods, 1);
        let uids: Vec<&str> = rows.iter().map(|(uid, ..)| uid.as_str()).collect();
        assert_eq!(uids, ["low", "a1", "b1", "c1", "important"]);
        assert_eq!((rows[1].1, rows[3].1), (30, 4));
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
