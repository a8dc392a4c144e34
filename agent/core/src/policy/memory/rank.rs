//! The order in which pods are evicted.
//!
//! Problem: when a resource runs out, which pod goes first? The kubelet sorts by a short list of comparators per resource.
//! Its sort is unstable and has no last tie-break, so equal pods have no defined order; and it recomputes requests and
//! sums inside each comparison.
//!
//! Approach: what a comparison needs is computed once per pod ([`RankRow`]); sorting rows neither allocates nor reads
//! anything else. Each [`Ranking`] is a table of [`Comparator`]s in the kubelet's order, ended by the pod's UID, which makes
//! the order total: the same rows give the same order, however they were shuffled before. The table is also how
//! `explain` says which comparator set two pods apart ([`Ranking::deciding_comparator`]).
//!
//! Source: `pkg/kubelet/eviction/helpers.go` of 1.36 (`buildSignalToRankFunc` and the comparators above it).
//!
//! Terms: *usage* is what the signal measures (working set, disk bytes, inodes, processes); *excess* is usage minus
//! request and may be negative.

mod places;

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kube::pod::{Pod, Volume};
use crate::kube::quantity::Quantity;
use crate::kube::resources::{self, CPU, EPHEMERAL_STORAGE, MEMORY};
use crate::model::reading::{ContainerStorage, Used, VolumeStorage};
use crate::model::units::PodUid;

pub use places::Place;

/// Units of a resource, counted in 10⁻⁹ because requests may have fractions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Nanos(i128);

impl Nanos {
    const PER_UNIT: i128 = 1_000_000_000;

    /// Whole units, such as bytes.
    pub const fn from_units(units: u64) -> Self {
        // Below 2^64 × 2^30.
        Self(units as i128 * Self::PER_UNIT)
    }

    /// Any quantity, clamped to ±2¹²⁷ nanos.
    pub fn from_quantity(quantity: &Quantity) -> Self {
        Self(quantity.nanos())
    }

    /// In whole units, rounded up, between 0 and 2⁶⁴ - 1.
    pub fn units_up(self) -> u64 {
        let units = self.0.max(0).saturating_add(Self::PER_UNIT - 1) / Self::PER_UNIT;
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// In whole units, rounded down, between -2⁶³ and 2⁶³ - 1.
    pub fn units_down(self) -> i64 {
        let units = self.0.div_euclid(Self::PER_UNIT);
        i64::try_from(units).unwrap_or(if units < 0 { i64::MIN } else { i64::MAX })
    }

    /// `part` of `whole` of it, rounded down. `whole` is not 0.
    pub(crate) const fn share(self, part: u64, whole: u64) -> Self {
        let (part, whole) = (part as i128, whole as i128);
        // Below 2^127 in two steps: quotient and remainder are each multiplied by less than 2^64.
        let (quotient, rest) = (self.0.div_euclid(whole), self.0.rem_euclid(whole));
        Self(
            quotient
                .saturating_mul(part)
                .saturating_add(rest * part / whole),
        )
    }

    /// What `self` has beyond `other`.
    const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// One pod in a ranking. A field that the ranking does not use stays at its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRow {
    /// Whose row it is; the last tie-break.
    pub uid: PodUid,
    /// Whether there are statistics for the pod at all. A missing single figure counts as zero instead.
    pub stats_known: bool,
    /// Whether it is never evicted (static, mirror and critical pods). It is ranked all the same.
    pub exempt: bool,
    /// The pod's priority, 0 if it has none.
    pub priority: i32,
    /// What the pod uses, in the signal's unit: bytes, inodes or processes.
    pub usage: u64,
    /// Usage above this exceeds the pod's request.
    pub allowance: Nanos,
    /// What is subtracted from usage before amounts are compared.
    ///
    /// The same as `allowance`, except for inodes: nothing requests inodes, so the allowance is zero, yet the kubelet
    /// subtracts the pod's disk request in bytes.
    pub request: Nanos,
}

impl RankRow {
    /// A row of the memory ranking. `usage_bytes` is the working set; `None` if there are no statistics.
    pub fn memory(pod: &Pod, usage_bytes: Option<u64>) -> Self {
        let request = Nanos::from_quantity(&resources::eviction_request(pod, MEMORY));
        Self::new(pod, usage_bytes, request, request)
    }

    /// A row of the disk ranking by bytes.
    pub fn disk_bytes(pod: &Pod, usage_bytes: Option<u64>) -> Self {
        let request = Nanos::from_quantity(&resources::eviction_request(pod, EPHEMERAL_STORAGE));
        Self::new(pod, usage_bytes, request, request)
    }

    /// A row of the disk ranking by inodes; see [`Self::request`].
    pub fn disk_inodes(pod: &Pod, inodes: Option<u64>) -> Self {
        let request = Nanos::from_quantity(&resources::eviction_request(pod, EPHEMERAL_STORAGE));
        Self::new(pod, inodes, Nanos::default(), request)
    }

    /// A row of the process ranking. Nothing requests processes.
    pub fn pids(pod: &Pod, processes: Option<u64>) -> Self {
        Self::new(pod, processes, Nanos::default(), Nanos::default())
    }

    /// A row of the ranking by CPU time: `milli_cpus` of `pod` against its CPU request.
    pub fn cpu(pod: &Pod, milli_cpus: Option<u64>) -> Self {
        let request = Nanos::from_quantity(&resources::eviction_request(pod, CPU));
        let milli = Nanos(request.0.saturating_mul(1000));
        Self::new(pod, milli_cpus, milli, milli)
    }

    /// A row of the ranking by disk traffic. Nothing requests it.
    pub fn io(pod: &Pod, bytes_per_s: Option<u64>) -> Self {
        Self::new(pod, bytes_per_s, Nanos::default(), Nanos::default())
    }

    fn new(pod: &Pod, usage: Option<u64>, allowance: Nanos, request: Nanos) -> Self {
        Self {
            uid: pod.uid(),
            stats_known: usage.is_some(),
            exempt: pod.is_critical(),
            priority: pod.priority(),
            usage: usage.unwrap_or(0),
            allowance,
            request,
        }
    }

    /// Whether the pod uses more than it requested; never known without statistics.
    pub fn exceeds_request(&self) -> bool {
        self.stats_known && Nanos::from_units(self.usage) > self.allowance
    }

    /// Usage minus request, negative below it.
    pub fn excess(&self) -> Nanos {
        Nanos::from_units(self.usage).minus(self.request)
    }
}

/// One step of a ranking. `Less` means: evicted earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Comparator {
    /// A pod without statistics goes first: nobody can say it is innocent.
    MissingStats,
    /// A pod above its request goes before one within it.
    ExceedsRequest,
    /// The lower priority goes first.
    Priority,
    /// The larger usage minus request goes first.
    UsageOverRequest,
    /// The smaller UID goes first. Not the kubelet's: it leaves such pods in no defined order.
    Uid,
}

impl Comparator {
    /// Compares two rows by this step alone.
    pub fn compare(self, a: &RankRow, b: &RankRow) -> Ordering {
        match self {
            Self::MissingStats => missing_stats(a, b),
            Self::ExceedsRequest => exceeds_request(a, b),
            Self::Priority => priority(a, b),
            Self::UsageOverRequest => usage_over_request(a, b),
            Self::Uid => uid(a, b),
        }
    }

    /// A stable name for journals and `explain`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MissingStats => "missingStats",
            Self::ExceedsRequest => "exceedsRequest",
            Self::Priority => "priority",
            Self::UsageOverRequest => "usageOverRequest",
            Self::Uid => "uid",
        }
    }
}

impl fmt::Display for Comparator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::MissingStats => "having no statistics",
            Self::ExceedsRequest => "exceeding its request",
            Self::Priority => "lower priority",
            Self::UsageOverRequest => "more usage over request",
            Self::Uid => "UID only",
        })
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
    // Two pods without statistics have no usage to tell them apart, whatever they request.
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
    /// `pid.available` (`rankPIDPressure`): nobody requests processes, so nobody exceeds a request.
    Pids,
    /// Stalls for the CPU: who takes more than was promised goes first. Not the kubelet's.
    Cpu,
    /// Stalls for the disk: nobody requests traffic. Not the kubelet's.
    Io,
}

impl Ranking {
    /// The comparators, the most important first.
    pub const fn order(self) -> &'static [Comparator] {
        use Comparator::{ExceedsRequest, MissingStats, Priority, Uid, UsageOverRequest};
        match self {
            Self::Memory | Self::Disk | Self::Cpu => &[
                MissingStats,
                ExceedsRequest,
                Priority,
                UsageOverRequest,
                Uid,
            ],
            Self::Pids | Self::Io => &[Priority, MissingStats, UsageOverRequest, Uid],
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

    /// Whether only amounts tell two rows apart: neither pod is more important than the other.
    pub fn same_class(self, a: &RankRow, b: &RankRow) -> bool {
        let amounts =
            |step: &&Comparator| matches!(step, Comparator::UsageOverRequest | Comparator::Uid);
        self.order()
            .iter()
            .filter(|step| !amounts(step))
            .all(|step| step.compare(a, b).is_eq())
    }

    /// Sorts `rows`, the first to be evicted at index 0: O(n log n). Allocates only if `places`, whose content does not matter,
    /// has no room for all.
    pub fn rank(self, rows: &mut [RankRow], places: &mut Vec<Place>) {
        places::sort(self, rows, places);
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

/// How images, container layers and the kubelet's own directory are spread over file systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFsLayout {
    /// All on one.
    Shared,
    /// Images and layers together on a second one.
    Dedicated,
    /// Images on a second one, layers beside the kubelet's directory.
    Split,
}

/// The file systems that signals are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileSystem {
    /// The kubelet's directory: logs and local volumes.
    Node,
    /// Images.
    Image,
    /// Writable layers of containers.
    Container,
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

    /// A pod's usage in this scope (`podDiskUsage`): bytes or inodes, as `figure` says. A missing figure counts as zero.
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
        for volume in volumes {
            let own = pod.spec.volumes.iter().find(|own| own.name == volume.name);
            add(
                self.local_volumes && own.is_some_and(Volume::is_local),
                volume.used,
            );
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(uid: &str, stats_known: bool, priority: i32, usage: u64, request: u64) -> RankRow {
        let request = Nanos::from_units(request);
        RankRow {
            uid: PodUid::from(uid),
            stats_known,
            exempt: false,
            priority,
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
        let decides = |other: &RankRow| Ranking::Memory.deciding_comparator(&base, other).as_str();
        assert_eq!(decides(&row("b", false, 0, 10, 5)), "missingStats");
        assert_eq!(decides(&row("b", true, 0, 5, 5)), "exceedsRequest");
        assert_eq!(decides(&row("b", true, 1, 10, 5)), "priority");
        assert_eq!(decides(&row("b", true, 0, 11, 5)), "usageOverRequest");
        assert_eq!(decides(&row("b", true, 0, 10, 5)), "uid");
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
            priority in prop_oneof![4 => -2i32..3, 1 => any::<i32>()],
            usage in prop_oneof![4 => 0u64..5, 1 => any::<u64>()],
            allowance in any_amount(),
            request in any_amount(),
        ) -> RankRow {
            RankRow {
                allowance: Nanos(allowance),
                request: Nanos(request),
                ..row(&uid, stats_known, priority, usage, 0)
            }
        }
    }

    fn any_rows() -> impl Strategy<Value = Vec<RankRow>> {
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
