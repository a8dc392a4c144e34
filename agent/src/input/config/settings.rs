//! The configuration as the agent takes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use plimsoll_core::engine::EngineConfig;
use plimsoll_core::kube::cgroup_config::{MemoryReservationPolicy, QosSettings, SwapBehavior};
use plimsoll_core::kube::resources::{CPU, MEMORY, ResourceList};
use plimsoll_core::model::file_system::ImageFsLayout;
use plimsoll_core::model::threshold::{self, Threshold, ThresholdError, ThresholdSettings};
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::node::PlacementSettings;

use super::document::Value;
use super::placement::placement;
use super::plimsoll::{PlimsollOptions, namespace_shares};
use super::rules;
use super::tree::{Tree, quantity};

/// The configuration, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// For the engine, on a node of which the file systems are not known.
    pub engine: EngineConfig,
    /// What its thresholds were read from.
    pub thresholds: ThresholdSettings,
    /// What is kept from pods, and where that is enforced.
    pub node: NodeSettings,
    /// Where pods' cgroups are, and what is in them.
    pub cgroups: CgroupSettings,
    /// Which pods get CPUs and memory of their own.
    pub placement: PlacementSettings,
    /// `cpuManagerReconcilePeriod`: between two checks of the containers' CPUs, nanoseconds.
    pub cpu_reconcile_period_ns: u64,
    /// What disks are kept free of.
    pub storage: StorageSettings,
    /// `oomScoreAdj`: of the kubelet's process.
    pub oom_score_adj: i32,
    /// `failCgroupV1`: refuse to start on cgroup v1.
    pub fail_cgroup_v1: bool,
    /// `featureGates`, as far as the file sets them.
    pub feature_gates: BTreeMap<String, bool>,
}

/// What is kept from pods, and where that is enforced.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSettings {
    /// `kubeReserved`, without `cpu` where `reservedSystemCPUs` is set.
    pub kube_reserved: ResourceList,
    /// `systemReserved`; `cpu` is the number of `reservedSystemCPUs` where that is set.
    pub system_reserved: ResourceList,
    /// `reservedSystemCPUs`.
    pub reserved_cpus: CpuSet,
    /// `enforceNodeAllocatable`; empty for `none`.
    pub enforce: BTreeSet<String>,
    /// `kubeReservedCgroup`.
    pub kube_reserved_cgroup: Option<String>,
    /// `systemReservedCgroup`.
    pub system_reserved_cgroup: Option<String>,
    /// `maxPods`.
    pub max_pods: u32,
    /// `podsPerCore`; `None` for no limit.
    pub pods_per_core: Option<u32>,
}

/// Where pods' cgroups are, and what is in them.
#[derive(Debug, Clone, PartialEq)]
pub struct CgroupSettings {
    /// `cgroupRoot`; empty for the root.
    pub root: String,
    /// What is written into them.
    pub qos: QosSettings,
    /// `singleProcessOOMKill`; `None`: false on cgroup v2, true on v1.
    pub single_process_oom_kill: Option<bool>,
}

/// What disks are kept free of.
#[derive(Debug, Clone, PartialEq)]
pub struct StorageSettings {
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// `containerLogMaxSize`, bytes.
    pub container_log_max_bytes: u64,
    /// `containerLogMaxFiles`.
    pub container_log_max_files: u32,
    /// `volumeStatsAggPeriod`, nanoseconds.
    pub volume_stats_period_ns: u64,
    /// `imageGCHighThresholdPercent`.
    pub image_gc_high_percent: u32,
    /// `imageGCLowThresholdPercent`.
    pub image_gc_low_percent: u32,
    /// `imageMinimumGCAge`, nanoseconds.
    pub image_min_age_ns: u64,
    /// `imageMaximumGCAge`, nanoseconds; `None` for never.
    pub image_max_age_ns: Option<u64>,
}

impl Config {
    /// For the engine, on a node with its file systems laid out like this.
    ///
    /// # Errors
    /// None that [`Config::new`] would not have found.
    pub fn engine_on(&self, layout: ImageFsLayout) -> Result<EngineConfig, ThresholdError> {
        Ok(EngineConfig {
            thresholds: threshold::for_layout(&self.thresholds, layout)?,
            layout,
            ..self.engine.clone()
        })
    }

    /// Whether the kubepods cgroup gets node allocatable as its limit.
    pub fn enforces_pods(&self) -> bool {
        self.node.enforce.contains("pods")
    }
}

/// The values of a tree that has been checked and has its defaults, so that no field below is missing.
pub(super) fn config(
    tree: Tree<'_>,
    thresholds: Vec<Threshold>,
    statements: ThresholdSettings,
) -> Config {
    let count = |field: &str| {
        tree.integer(field)
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(0)
    };
    let ns = |field: &str| tree.duration_ns(field).unwrap_or(0);
    let flag = |field: &str| tree.bool(field).unwrap_or(false);
    let text = |field: &str| tree.text(field).map(str::to_owned);
    let node = node(tree);
    let options = PlimsollOptions::read(tree.0.get("plimsoll"));
    Config {
        thresholds: statements,
        engine: EngineConfig {
            thresholds,
            pressure_transition_period_ns: ns("evictionPressureTransitionPeriod"),
            max_pod_grace_period_s: tree.integer("evictionMaxPodGracePeriod").unwrap_or(0),
            local_storage_limits: flag("localStorageCapacityIsolation"),
            options: options.eviction,
            cpu: options.cpu,
            namespace_shares: namespace_shares(tree.0.get("plimsoll")),
            ..EngineConfig::default()
        },
        placement: placement(
            tree,
            node.reserved_cpus,
            [&node.kube_reserved, &node.system_reserved],
        ),
        cpu_reconcile_period_ns: ns("cpuManagerReconcilePeriod"),
        node,
        cgroups: CgroupSettings {
            root: text("cgroupRoot").unwrap_or_default(),
            qos: QosSettings {
                cpu_cfs_quota: flag("cpuCFSQuota"),
                cpu_period_us: ns("cpuCFSQuotaPeriod") / 1000,
                pod_pids_limit: tree
                    .integer("podPidsLimit")
                    .and_then(|limit| u64::try_from(limit).ok())
                    // `ResourceConfigForPod` sets a limit only if it is more than 0.
                    .filter(|limit| *limit > 0),
                memory_qos: tree.gate("MemoryQoS"),
                memory_throttling_factor: tree.number("memoryThrottlingFactor").unwrap_or(0.9),
                memory_reservation_policy: match tree.text("memoryReservationPolicy") {
                    Some("TieredReservation") => MemoryReservationPolicy::TieredReservation,
                    _ => MemoryReservationPolicy::None,
                },
                swap_behavior: match tree
                    .object("memorySwap")
                    .and_then(|swap| swap.text("swapBehavior"))
                {
                    Some("LimitedSwap") => SwapBehavior::LimitedSwap,
                    _ => SwapBehavior::NoSwap,
                },
                qos_reserved_memory_percent: tree
                    .labels("qosReserved")
                    .find(|(name, ..)| *name == MEMORY && tree.gate("QOSReserved"))
                    .and_then(|(_, text, _)| rules::percentage(text)),
            },
            single_process_oom_kill: tree.bool("singleProcessOOMKill"),
        },
        storage: StorageSettings {
            pod_logs_dir: text("podLogsDir").unwrap_or_default().into(),
            container_log_max_bytes: tree
                .quantity("containerLogMaxSize")
                .and_then(|size| u64::try_from(size.value()).ok())
                .unwrap_or(0),
            container_log_max_files: count("containerLogMaxFiles"),
            volume_stats_period_ns: ns("volumeStatsAggPeriod"),
            image_gc_high_percent: count("imageGCHighThresholdPercent"),
            image_gc_low_percent: count("imageGCLowThresholdPercent"),
            image_min_age_ns: ns("imageMinimumGCAge"),
            image_max_age_ns: Some(ns("imageMaximumGCAge")).filter(|age| *age > 0),
        },
        oom_score_adj: tree
            .integer("oomScoreAdj")
            .and_then(|adj| i32::try_from(adj).ok())
            .unwrap_or(0),
        fail_cgroup_v1: flag("failCgroupV1"),
        feature_gates: gates(tree),
    }
}

fn gates(tree: Tree<'_>) -> BTreeMap<String, bool> {
    let Some(Value::Map(entries)) = tree.0.get("featureGates").map(|node| &node.value) else {
        return BTreeMap::new();
    };
    entries
        .iter()
        .filter_map(|entry| match entry.node.value {
            Value::Bool(on) => Some((entry.key.clone(), on)),
            _ => None,
        })
        .collect()
}

fn node(tree: Tree<'_>) -> NodeSettings {
    let list = |field: &str| -> ResourceList {
        tree.quantities(field)
            .map(|(name, quantity, _)| (name.to_owned(), quantity))
            .collect()
    };
    let mut kube_reserved = list("kubeReserved");
    let mut system_reserved = list("systemReserved");
    let reserved_cpus = tree
        .text("reservedSystemCPUs")
        .and_then(|text| CpuSet::parse(text).ok())
        .unwrap_or_default();
    if !reserved_cpus.is_empty() {
        // `run` in cmd/kubelet/app/server.go.
        kube_reserved.remove(CPU);
        if let Some(cpus) = quantity(&reserved_cpus.len().to_string()) {
            system_reserved.insert(CPU.to_owned(), cpus);
        }
    }
    NodeSettings {
        kube_reserved,
        system_reserved,
        reserved_cpus,
        enforce: tree
            .texts("enforceNodeAllocatable")
            .filter(|(item, _)| *item != "none")
            .map(|(item, _)| item.to_owned())
            .collect(),
        kube_reserved_cgroup: tree.text("kubeReservedCgroup").map(str::to_owned),
        system_reserved_cgroup: tree.text("systemReservedCgroup").map(str::to_owned),
        max_pods: tree
            .integer("maxPods")
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(0),
        pods_per_core: tree
            .integer("podsPerCore")
            .and_then(|count| u32::try_from(count).ok())
            .filter(|count| *count > 0),
    }
}
