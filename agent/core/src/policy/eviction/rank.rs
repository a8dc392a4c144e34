//! The order in which pods are evicted.
//!
//! Problem: when a resource runs out, which pod is evicted first? The kubelet sorts by a short list of comparators per
//! resource. Its sort is unstable and has no last tie-break, so equal pods have no defined order; and it recomputes
//! requests and sums inside each comparison.
//!
//! Approach: what a comparison needs is computed once per pod ([`RankRow`]); sorting rows neither allocates nor reads
//! anything else. Each [`Ranking`] is a table of [`Comparator`]s in the kubelet's order, ended by the pod's UID, which
//! makes the order total: the same rows give the same order, however they were shuffled before. The table is also how
//! `explain` says which comparator set two pods apart ([`Ranking::deciding_comparator`]).
//!
//! Source: `pkg/kubelet/eviction/helpers.go` of 1.36 (`buildSignalToRankFunc` and the comparators above it).
//!
//! Differences, each on purpose: pods without a name ([`Comparator::Unnamed`], beside a kubelet) go last; namespaces
//! that use too much ([`Comparator::Overused`], [`Comparator::OverShare`], options) go first among pods of the same
//! standing; the rankings for stalls of CPUs and disks; the UID at the end.
//!
//! The order stands in three more places, each of which a test compares with this one: the numbers that rows are sorted
//! by (`sort_keys`), the one pass that finds the first pod without rows ([`lineup`](crate::policy::eviction::lineup)),
//! and the last line's program, without namespaces (`goes_before` in `ebpf/abi/src/last_line.rs`).
//!
//! Terms: *usage* is what the signal measures (working set, disk bytes, inodes, processes); *excess* is usage minus
//! request and may be negative. Of memory, what is lazily freed is usage, unlike in the kubelet
//! ([`page_cache`](crate::model::page_cache)).

mod sort_keys;

use std::cmp::Ordering;

use crate::kube::pod::Pod;
use crate::model::file_system::{FileSystem, ImageFsLayout};
use crate::model::rank_row::Comparator;
pub use crate::model::rank_row::{Nanos, RankRow};
use crate::model::reading::{ContainerStorage, PodStorage, Used, VolumeStorage};

pub use sort_keys::SortKey;

impl Comparator {
    /// Compares two rows by this step alone.
    pub fn compare(self, a: &RankRow, b: &RankRow) -> Ordering {
        match self {
            Self::Unnamed => a.unnamed.cmp(&b.unnamed),
            Self::MissingStats => missing_stats(a, b),
            Self::ExceedsRequest => exceeds_request(a, b),
            Self::Overused => b.overused.cmp(&a.overused),
            Self::Priority => priority(a, b),
            Self::OverShare => b.over_share.cmp(&a.over_share),
            Self::UsageOverRequest => usage_over_request(a, b),
            Self::Uid => uid(a, b),
        }
    }
}

fn missing_stats(a: &RankRow, b: &RankRow) -> Ordering {
    a.stats_known.cmp(&b.stats_known)
}

fn exceeds_request(a: &RankRow, b: &RankRow) -> Ordering {
    b.exceeds_request().cmp(&a.exceeds_request())
}

fn priority(a: &RankRow, b: &RankRow) -> Ordering {
    a.priority.cmp(&b.priority)
}

fn usage_over_request(a: &RankRow, b: &RankRow) -> Ordering {
    // Two pods without statistics have no usage to compare, whatever they request.
    if !a.stats_known && !b.stats_known {
        return Ordering::Equal;
    }
    b.excess().cmp(&a.excess())
}

fn uid(a: &RankRow, b: &RankRow) -> Ordering {
    a.uid.cmp(&b.uid)
}

/// A resource's order of comparators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranking {
    /// `memory.available` and `allocatableMemory.available` (`rankMemoryPressure`).
    Memory,
    /// `nodefs`, `imagefs` and `containerfs`, bytes and inodes (`rankDiskPressureFunc`).
    Disk,
    /// `pid.available` (`rankPIDPressure`): no pod requests processes, so none exceeds a request.
    Pids,
    /// CPU stalls: the pod that uses most above its request is evicted first. The kubelet does not have this.
    Cpu,
    /// Disk stalls: no pod requests traffic. The kubelet does not have this.
    Io,
}

impl Ranking {
    /// The comparators, the most important first.
    pub const fn order(self) -> &'static [Comparator] {
        use Comparator::{
            ExceedsRequest, MissingStats, OverShare, Overused, Priority, Uid, Unnamed,
            UsageOverRequest,
        };
        match self {
            Self::Memory | Self::Cpu => &[
                Unnamed,
                MissingStats,
                ExceedsRequest,
                Overused,
                Priority,
                OverShare,
                UsageOverRequest,
                Uid,
            ],
            Self::Disk => &[
                Unnamed,
                MissingStats,
                ExceedsRequest,
                Priority,
                UsageOverRequest,
                Uid,
            ],
            Self::Pids | Self::Io => &[Unnamed, Priority, MissingStats, UsageOverRequest, Uid],
        }
    }

    /// Compares two rows by all comparators in turn. `Equal` only for rows of the same pod.
    pub fn compare(self, a: &RankRow, b: &RankRow) -> Ordering {
        self.order()
            .iter()
            .map(|step| step.compare(a, b))
            .find(|outcome| outcome.is_ne())
            .unwrap_or(Ordering::Equal)
    }

    /// Whether two rows differ in amounts only: neither pod is more important than the other.
    pub fn same_class(self, a: &RankRow, b: &RankRow) -> bool {
        let amounts =
            |step: &&Comparator| matches!(step, Comparator::UsageOverRequest | Comparator::Uid);
        self.order()
            .iter()
            .filter(|step| !amounts(step))
            .all(|step| step.compare(a, b).is_eq())
    }

    /// Sorts `rows`, the first to be evicted at index 0: O(n log n). Allocates only if `sort_keys`, whose content does
    /// not matter, has no room for all.
    pub fn rank(self, rows: &mut [RankRow], sort_keys: &mut Vec<SortKey>) {
        sort_keys::sort(self.order(), |a, b| self.compare(a, b), rows, sort_keys);
    }

    /// The comparator that sets two rows apart; [`Comparator::Uid`] where no other does.
    pub fn deciding_comparator(self, a: &RankRow, b: &RankRow) -> Comparator {
        self.order()
            .iter()
            .copied()
            .find(|step| step.compare(a, b).is_ne())
            .unwrap_or(Comparator::Uid)
    }
}

/// Which parts of a pod's disk usage a file system holds. Images are shared by pods and count for none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskScope {
    /// Writable layers.
    pub rootfs: bool,
    /// Container logs.
    pub logs: bool,
    /// Volumes for which [`crate::kube::pod::Volume::is_local`] holds.
    pub local_volumes: bool,
}

impl DiskScope {
    /// What a signal about `file_system` counts.
    pub const fn of(file_system: FileSystem, layout: ImageFsLayout) -> Self {
        const ALL: DiskScope = DiskScope {
            rootfs: true,
            logs: true,
            local_volumes: true,
        };
        match (layout, file_system) {
            (ImageFsLayout::Shared, _)
            | (ImageFsLayout::Split, FileSystem::Node | FileSystem::Container) => ALL,
            (ImageFsLayout::Dedicated, FileSystem::Node) => Self {
                rootfs: false,
                ..ALL
            },
            (ImageFsLayout::Dedicated, FileSystem::Image | FileSystem::Container) => Self {
                rootfs: true,
                logs: false,
                local_volumes: false,
            },
            (ImageFsLayout::Split, FileSystem::Image) => Self {
                rootfs: false,
                logs: false,
                local_volumes: false,
            },
        }
    }

    /// A pod's usage in this scope, with the files that the kubelet makes for it: they lie where logs do. The kubelet
    /// counts `/etc/hosts` at the pod's limit (`calcEphemeralStorage` in pkg/kubelet/stats/helper.go), in its ranking
    /// none of them. A pod may write them as long as there is room, so here they count in both.
    pub fn used_by(self, pod: &Pod, storage: &PodStorage, figure: fn(Used) -> Option<u64>) -> u64 {
        let files = figure(storage.files).filter(|_| self.logs).unwrap_or(0);
        self.used(pod, &storage.containers, &storage.volumes, figure)
            .saturating_add(files)
    }

    /// A pod's usage in this scope (`podDiskUsage`): bytes or inodes, as `figure` says. A missing figure counts as
    /// zero.
    pub fn used(
        self,
        pod: &Pod,
        containers: &[ContainerStorage],
        volumes: &[VolumeStorage],
        figure: fn(Used) -> Option<u64>,
    ) -> u64 {
        let mut sum = 0u64;
        let mut add = |counts: bool, used: Used| {
            let figure = figure(used).filter(|_| counts);
            sum = sum.saturating_add(figure.unwrap_or(0));
        };
        for container in containers {
            add(self.rootfs, container.rootfs);
            add(self.logs, container.logs);
        }
        for volume in pod.spec.volumes.iter().filter(|volume| volume.is_local()) {
            let measured = volumes.iter().find(|of| of.name == volume.name);
            add(
                self.local_volumes,
                measured.map_or(Used::default(), |of| of.used),
            );
        }
        sum
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kube::pod_uid::PodUid;
    use crate::kube::quantity::Quantity;

    fn row(uid: &str, stats_known: bool, priority: i32, usage: u64, request: u64) -> RankRow {
        let request = Nanos::from_units(request);
        RankRow {
            uid: PodUid::from(uid),
            stats_known,
            unnamed: 0,
            exempt: false,
            priority,
            overused: 0,
            over_share: 0,
            usage,
            allowance: request,
            request,
        }
    }

    fn ranked(ranking: Ranking, mut rows: Vec<RankRow>) -> Vec<String> {
        ranking.rank(&mut rows, &mut Vec::new());
        rows.iter().map(|row| row.uid.to_string()).collect()
    }

    #[test]
    fn memory_order_is_stats_then_excess_flag_then_priority_then_amount() {
        let rows = vec![
            row("within", true, -5, 10, 20),
            row("far-above", true, 0, 90, 10),
            row("above-but-important", true, 7, 900, 0),
            row("unknown", false, 100, 0, 0),
            row("above", true, 0, 30, 10),
        ];
        assert_eq!(
            ranked(Ranking::Memory, rows),
            [
                "unknown",
                "far-above",
                "above",
                "above-but-important",
                "within"
            ]
        );
    }

    #[test]
    fn a_pod_of_which_only_the_cgroup_is_known_goes_last_and_by_its_class() {
        use crate::kube::pod::Pod;
        use crate::kube::qos::QosClass;
        let unnamed = |uid: &str, class, usage| {
            let pod = Pod::unnamed(PodUid::from(uid), class);
            RankRow::memory(&pod, Some(usage))
        };
        for ranking in [Ranking::Memory, Ranking::Pids] {
            let rows = vec![
                unnamed("burstable", QosClass::Burstable, 900),
                unnamed("guaranteed", QosClass::Guaranteed, 950),
                unnamed("small", QosClass::BestEffort, 5),
                unnamed("large", QosClass::BestEffort, 6),
                row("within", true, 1000, 1, 20),
            ];
            let order = ["within", "large", "small", "burstable", "guaranteed"];
            assert_eq!(ranked(ranking, rows), order);
        }
    }

    #[test]
    fn pids_look_at_priority_before_missing_stats() {
        let rows = vec![
            row("unknown", false, 1, 0, 0),
            row("busy", true, 1, 9, 0),
            row("low", true, 0, 1, 0),
        ];
        assert_eq!(ranked(Ranking::Pids, rows), ["low", "unknown", "busy"]);
    }

    #[test]
    fn a_fraction_of_a_byte_decides() {
        let mut a = row("a", true, 0, 1, 0);
        a.request = Nanos::from_quantity(&Quantity::parse("0.5").unwrap());
        a.allowance = a.request;
        let b = row("b", true, 0, 1, 1);
        assert!(a.exceeds_request() && !b.exceeds_request());
        assert_eq!(
            Ranking::Memory.deciding_comparator(&a, &b),
            Comparator::ExceedsRequest
        );
    }

    #[test]
    fn the_deciding_comparator_is_named() {
        let base = row("a", true, 0, 10, 5);
        let decides = |other: &RankRow| Ranking::Memory.deciding_comparator(&base, other);
        let cases = [
            (row("b", false, 0, 10, 5), Comparator::MissingStats),
            (row("b", true, 0, 5, 5), Comparator::ExceedsRequest),
            (row("b", true, 1, 10, 5), Comparator::Priority),
            (row("b", true, 0, 11, 5), Comparator::UsageOverRequest),
            (row("b", true, 0, 10, 5), Comparator::Uid),
        ];
        for (other, comparator) in cases {
            assert_eq!(decides(&other), comparator);
        }
    }

    fn any_amount() -> impl Strategy<Value = i128> {
        prop_oneof![
            6 => 0i128..5_000_000_000,
            1 => any::<u64>().prop_map(|units| Nanos::from_units(units).0),
            1 => any::<i128>(),
        ]
    }

    prop_compose! {
        fn any_row()(
            uid in "[a-d]{1,3}",
            stats_known: bool,
            unnamed in 0u8..4,
            priority in prop_oneof![4 => -2i32..3, 1 => any::<i32>()],
            overused in prop_oneof![4 => 0u16..3, 1 => 0u16..=1000],
            over_share in prop_oneof![4 => 0u16..3, 1 => any::<u16>()],
            usage in prop_oneof![4 => 0u64..5, 1 => any::<u64>()],
            allowance in any_amount(),
            request in any_amount(),
        ) -> RankRow {
            RankRow {
                unnamed,
                overused,
                over_share,
                allowance: Nanos(allowance),
                request: Nanos(request),
                ..row(&uid, stats_known, priority, usage, 0)
            }
        }
    }

    pub(crate) fn any_rows() -> impl Strategy<Value = Vec<RankRow>> {
        prop::collection::vec(any_row(), 0..40).prop_map(|mut rows| {
            for (at, row) in rows.iter_mut().enumerate() {
                row.uid = PodUid::from(format!("{}-{at}", row.uid).as_str());
            }
            rows
        })
    }

    fn any_ranking() -> impl Strategy<Value = Ranking> {
        prop_oneof![
            Just(Ranking::Memory),
            Just(Ranking::Disk),
            Just(Ranking::Pids),
            Just(Ranking::Cpu),
            Just(Ranking::Io)
        ]
    }

    proptest! {
        #[test]
        fn order_is_total(ranking in any_ranking(), a in any_row(), b in any_row(), c in any_row()) {
            prop_assert_eq!(ranking.compare(&a, &b), ranking.compare(&b, &a).reverse());
            prop_assert_eq!(ranking.compare(&a, &a), Ordering::Equal);
            if ranking.compare(&a, &b).is_le() && ranking.compare(&b, &c).is_le() {
                prop_assert!(ranking.compare(&a, &c).is_le());
            }
            if a.uid != b.uid {
                prop_assert!(ranking.compare(&a, &b).is_ne());
            }
        }

        #[test]
        fn order_does_not_depend_on_the_input_order(
            ranking in any_ranking(),
            (rows, shuffled) in any_rows().prop_flat_map(|rows| (Just(rows.clone()), Just(rows).prop_shuffle())),
        ) {
            let ranked_rows = ranked(ranking, rows.clone());
            prop_assert_eq!(ranked_rows.len(), rows.len());
            prop_assert_eq!(ranked_rows, ranked(ranking, shuffled));
        }

        #[test]
        fn sorting_by_keys_is_sorting_by_comparators(ranking in any_ranking(), rows in any_rows()) {
            let mut compared = rows.clone();
            compared.sort_by(|a, b| ranking.compare(a, b));
            let mut keyed = rows;
            ranking.rank(&mut keyed, &mut Vec::new());
            prop_assert_eq!(keyed, compared);
        }

        #[test]
        fn neighbours_are_set_apart_by_the_named_comparator(ranking in any_ranking(), rows in any_rows()) {
            let mut rows = rows;
            ranking.rank(&mut rows, &mut Vec::new());
            for pair in rows.windows(2) {
                let step = ranking.deciding_comparator(&pair[0], &pair[1]);
                prop_assert_eq!(step.compare(&pair[0], &pair[1]), Ordering::Less);
            }
        }
    }
}
