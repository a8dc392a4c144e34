//! `cgroup_config`: the control files of kubepods, tiers, pods and containers.
//!
//! Not compared: `weight_old`, the formula of container runtimes until 2025.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use plimsoll_core::kube::cgroup_config::{
    self, CgroupConfig, MemoryReservationPolicy, NodeCapacity, QosSettings, SwapBehavior,
};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::policy::oom::score;
use serde::Deserialize;
use serde_json::Value;

use super::pods::refused;
use super::{Verdict, read, same};

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Vector {
    MilliCpu {
        milli_cpu: i64,
        period: u64,
        shares: u64,
        quota: i64,
        quota_100000: i64,
        weight_new: u64,
    },
    SharesToWeight {
        shares: u64,
        weight_new: u64,
        shares_to_milli_cpu: i64,
    },
    WeightToSharesKubelet {
        weight: u64,
        shares: u64,
    },
    QuotaToMilliCpu {
        quota: i64,
        period: u64,
        milli_cpu: i64,
    },
    PodResourceConfig(Box<PodVector>),
    ContainerResources(Box<ContainersVector>),
    QosCgroups(Box<TiersVector>),
}

#[derive(Deserialize)]
struct PodVector {
    pod: Pod,
    resources_valid: bool,
    qos: QosClass,
    enforce_cpu_limits: bool,
    cpu_period: u64,
    memory_qos: bool,
    memory_reservation_policy: Policy,
    expected: Limits,
}

#[derive(Deserialize)]
struct ContainersVector {
    pod: Pod,
    resources_valid: bool,
    qos: QosClass,
    cgroup_v2: bool,
    cpu_cfs_quota: bool,
    cpu_cfs_quota_period_us: u64,
    memory_qos: bool,
    memory_reservation_policy: Policy,
    memory_throttling_factor: f64,
    swap_behavior: String,
    memory_capacity: NonZeroU64,
    node_allocatable_memory: u64,
    swap_capacity: u64,
    page_size: u64,
    expected: Vec<ContainerExpected>,
}

#[derive(Deserialize)]
struct ContainerExpected {
    list: String,
    index: usize,
    cpu_shares: u64,
    cpu_quota: i64,
    cpu_period: u64,
    memory_limit_in_bytes: i64,
    memory_swap_limit_in_bytes: i64,
    oom_score_adj: i32,
    #[serde(default)]
    unified: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct TiersVector {
    pods: Vec<Pod>,
    node_allocatable_memory: u64,
    qos_reserved_memory_percent: Option<i64>,
    tiered_reservation: bool,
    expected: TiersExpected,
}

#[derive(Deserialize)]
struct TiersExpected {
    guaranteed: Limits,
    burstable: Limits,
    besteffort: Limits,
}

#[derive(Deserialize)]
enum Policy {
    None,
    TieredReservation,
}

impl From<Policy> for MemoryReservationPolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::None => Self::None,
            Policy::TieredReservation => Self::TieredReservation,
        }
    }
}

/// A cgroup as the vectors have it; what is missing is not set.
#[derive(Deserialize, Debug)]
pub(super) struct Limits {
    cpu_shares: Option<u64>,
    cpu_weight_new: Option<u64>,
    cpu_quota: Option<i64>,
    cpu_period: Option<u64>,
    memory_limit: Option<i64>,
    pids_limit: Option<u64>,
    #[serde(default)]
    hugepage_limits: BTreeMap<String, u64>,
    #[serde(default)]
    unified: BTreeMap<String, String>,
}

impl Limits {
    pub(super) fn same_as(&self, what: &str, actual: &CgroupConfig) -> Result<(), String> {
        let Self {
            cpu_shares,
            cpu_weight_new,
            cpu_quota,
            cpu_period,
            memory_limit,
            pids_limit,
            hugepage_limits,
            unified: expected_unified,
        } = self;
        let field = |field: &str| format!("{what}: {field}");
        same(&field("cpu_shares"), &actual.cpu_shares, cpu_shares)?;
        same(&field("cpu_weight_new"), &actual.cpu_weight, cpu_weight_new)?;
        same(&field("cpu_quota"), &actual.cpu_quota_us, cpu_quota)?;
        same(&field("cpu_period"), &actual.cpu_period_us, cpu_period)?;
        same(
            &field("memory_limit"),
            &actual.memory_max_bytes,
            memory_limit,
        )?;
        same(&field("pids_limit"), &actual.pids_max, pids_limit)?;
        let huge_pages = actual.huge_pages_max_bytes.iter();
        same(
            &field("hugepage_limits"),
            &huge_pages
                .map(|(size, limit)| (size.to_string(), *limit))
                .collect(),
            hugepage_limits,
        )?;
        same(&field("unified"), &unified(actual), expected_unified)
    }
}

/// The keys that the kubelet hands over as they are.
fn unified(config: &CgroupConfig) -> BTreeMap<String, String> {
    [
        ("memory.min", config.memory_min_bytes),
        ("memory.low", config.memory_low_bytes),
        ("memory.high", config.memory_high_bytes),
        ("memory.swap.max", config.swap_max_bytes),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key.to_owned(), value?.to_string())))
    .collect()
}

pub(super) fn check(vector: &Value) -> Verdict {
    let complaint = match read(vector) {
        Ok(Vector::MilliCpu {
            milli_cpu,
            period,
            shares,
            quota,
            quota_100000,
            weight_new,
        }) => {
            let actual = cgroup_config::milli_cpu_to_shares(milli_cpu);
            same("shares", &actual, &shares)
                .and(same(
                    "weight",
                    &cgroup_config::shares_to_weight(actual),
                    &weight_new,
                ))
                .and(same(
                    "quota",
                    &cgroup_config::milli_cpu_to_quota_us(milli_cpu, period),
                    &quota,
                ))
                .and(same(
                    "quota_100000",
                    &cgroup_config::milli_cpu_to_quota_us(milli_cpu, 100_000),
                    &quota_100000,
                ))
        }
        Ok(Vector::SharesToWeight {
            shares,
            weight_new,
            shares_to_milli_cpu,
        }) => same(
            "weight",
            &cgroup_config::shares_to_weight(shares),
            &weight_new,
        )
        .and(same(
            "shares_to_milli_cpu",
            &cgroup_config::shares_to_milli_cpu(shares),
            &shares_to_milli_cpu,
        )),
        Ok(Vector::WeightToSharesKubelet { weight, shares }) => {
            same("shares", &cgroup_config::weight_to_shares(weight), &shares)
        }
        Ok(Vector::QuotaToMilliCpu {
            quota,
            period,
            milli_cpu,
        }) => same(
            "milli_cpu",
            &cgroup_config::quota_us_to_milli_cpu(quota, period),
            &milli_cpu,
        ),
        Ok(Vector::PodResourceConfig(vector)) => {
            return pod(*vector).unwrap_or_else(|why| Verdict::Fail { why });
        }
        Ok(Vector::ContainerResources(vector)) => containers(*vector),
        Ok(Vector::QosCgroups(vector)) => tiers(*vector),
        Err(why) => Err(why),
    };
    Verdict::of(complaint)
}

fn pod(vector: PodVector) -> Result<Verdict, String> {
    let settings = QosSettings {
        cpu_cfs_quota: vector.enforce_cpu_limits,
        cpu_period_us: vector.cpu_period,
        memory_qos: vector.memory_qos,
        memory_reservation_policy: vector.memory_reservation_policy.into(),
        ..QosSettings::default()
    };
    let pod = vector.pod.with_defaults();
    same("qos", &pod.qos_class(), &vector.qos)?;
    let actual = cgroup_config::pod_config(&pod, &settings, &NODE);
    vector.expected.same_as("pod", &actual)?;
    match refused(&pod, vector.resources_valid) {
        Err(_) if refused(&with_overhead_in_big_requests(&pod), vector.resources_valid).is_ok() => {
            Ok(Verdict::KnownUpstreamDefect(
                "resources_valid is that of a pod whose request has overhead in a shared decimal"
                    .to_owned(),
            ))
        }
        result => result.map(|()| Verdict::Pass),
    }
}

/// The pod after upstream has computed its cgroup: a pod-level request that is a big decimal is shared with the result, to which overhead
/// is added in place. The vectors' `resources_valid` was asked after that.
fn with_overhead_in_big_requests(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    let level = pod.spec.resources.iter_mut();
    for (name, request) in level.flat_map(|level| &mut level.requests) {
        if let Some(overhead) = pod.spec.overhead.get(name)
            && request.is_big()
        {
            *request += overhead;
        }
    }
    pod
}

/// A node of which nothing but the version of its cgroups takes part.
const NODE: NodeCapacity = NodeCapacity {
    is_cgroup_v2: true,
    memory_bytes: 0,
    swap_bytes: 0,
    allocatable_memory_bytes: 0,
    page_bytes: 4096,
};

fn containers(vector: ContainersVector) -> Result<(), String> {
    let settings = QosSettings {
        cpu_cfs_quota: vector.cpu_cfs_quota,
        cpu_period_us: vector.cpu_cfs_quota_period_us,
        memory_qos: vector.memory_qos,
        memory_reservation_policy: vector.memory_reservation_policy.into(),
        memory_throttling_factor: vector.memory_throttling_factor,
        swap_behavior: match vector.swap_behavior.as_str() {
            "" | "NoSwap" => SwapBehavior::NoSwap,
            "LimitedSwap" => SwapBehavior::LimitedSwap,
            other => return Err(format!("swap_behavior {other:?} is unknown")),
        },
        ..QosSettings::default()
    };
    let node = NodeCapacity {
        is_cgroup_v2: vector.cgroup_v2,
        memory_bytes: vector.memory_capacity.get(),
        swap_bytes: vector.swap_capacity,
        allocatable_memory_bytes: vector.node_allocatable_memory,
        page_bytes: vector.page_size,
    };
    let pod = vector.pod.with_defaults();
    same("qos", &pod.qos_class(), &vector.qos)?;
    refused(&pod, vector.resources_valid)?;
    same(
        "number of containers",
        &pod.all_containers().count(),
        &vector.expected.len(),
    )?;
    for expected in &vector.expected {
        let list = match expected.list.as_str() {
            "containers" => &pod.spec.containers,
            "initContainers" => &pod.spec.init_containers,
            list => return Err(format!("list {list:?} is unknown")),
        };
        let place = format!("{}[{}]", expected.list, expected.index);
        let container = list
            .get(expected.index)
            .ok_or_else(|| format!("{place} does not exist"))?;
        let config = cgroup_config::container_config(&pod, container, &settings, &node);
        // The runtime's message has 0 for unset.
        let memory_limit = config.memory_max_bytes.unwrap_or(0);
        let (swap_limit, mut keys) = (
            if node.is_cgroup_v2 { 0 } else { memory_limit },
            unified(&config),
        );
        if !node.is_cgroup_v2 {
            keys.clear();
        }
        same(
            &place,
            &(
                config.cpu_shares,
                config.cpu_quota_us.unwrap_or(0),
                config.cpu_period_us.unwrap_or(0),
                memory_limit,
                swap_limit,
            ),
            &(
                Some(expected.cpu_shares),
                expected.cpu_quota,
                expected.cpu_period,
                expected.memory_limit_in_bytes,
                expected.memory_swap_limit_in_bytes,
            ),
        )?;
        same(&format!("{place}: unified"), &keys, &expected.unified)?;
        same(
            &format!("{place}: oom_score_adj"),
            &score::oom_score_adj(&pod, container, vector.memory_capacity),
            &expected.oom_score_adj,
        )?;
    }
    Ok(())
}

fn tiers(vector: TiersVector) -> Result<(), String> {
    let settings = QosSettings {
        memory_qos: true,
        memory_reservation_policy: if vector.tiered_reservation {
            MemoryReservationPolicy::TieredReservation
        } else {
            MemoryReservationPolicy::None
        },
        qos_reserved_memory_percent: vector.qos_reserved_memory_percent,
        ..QosSettings::default()
    };
    let node = NodeCapacity {
        allocatable_memory_bytes: vector.node_allocatable_memory,
        ..NODE
    };
    let pods: Vec<Pod> = vector.pods.into_iter().map(Pod::with_defaults).collect();
    let actual = cgroup_config::tiers(&pods, &settings, &node);
    let expected = vector.expected;
    expected
        .guaranteed
        .same_as("guaranteed", &actual.kubepods)?;
    expected.burstable.same_as("burstable", &actual.burstable)?;
    expected
        .besteffort
        .same_as("besteffort", &actual.best_effort)
}
