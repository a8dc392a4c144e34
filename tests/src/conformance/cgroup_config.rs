//! `cgroup_config`: the control files of kubepods, tiers, pods and containers.
//!
//! Not compared: `weight_old`, the formula of container runtimes until 2025.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use plimsoll_core::kube::cgroup_config::{
    self, CgroupConfig, MemoryReservationPolicy, NodeCapacity, QosSettings, SwapBehavior, Tiers,
};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::policy::oom::score;
use serde::Deserialize;
use serde_json::Value;

use super::pods::{add_overhead_to_shared_limits, add_overhead_to_shared_requests, refused};
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
        Ok(Vector::QosCgroups(vector)) => {
            return tiers(*vector).unwrap_or_else(|why| Verdict::Fail { why });
        }
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
    let judge = |qos: QosClass, pod: &Pod, checked: &Pod| {
        same("qos", &qos, &vector.qos)?;
        let actual = cgroup_config::pod_config(pod, &settings, &NODE);
        vector.expected.same_as("pod", &actual)?;
        refused(checked, vector.resources_valid)
    };
    let Err(why) = judge(pod.qos_class(), &pod, &pod) else {
        return Ok(Verdict::Pass);
    };
    // Upstream looks at the class when it has added up, and was asked for `resources_valid` after that.
    let after = after_totals(&pod);
    let mut reclassified = pod.clone();
    reclassified.status.qos_class = Some(after.qos_class());
    let is_known = [pod.qos_class(), after.qos_class()]
        .into_iter()
        .any(|qos| judge(qos, &reclassified, &after).is_ok());
    if after != pod && is_known {
        Ok(Verdict::KnownUpstreamDefect(
            "the pod has overhead in a shared decimal".to_owned(),
        ))
    } else {
        Err(why)
    }
}

/// The pod after upstream has computed its cgroup.
fn after_totals(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    add_overhead_to_shared_requests(&mut pod);
    add_overhead_to_shared_limits(&mut pod);
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

fn tiers(vector: TiersVector) -> Result<Verdict, String> {
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
    let compare = |actual: &Tiers| {
        let expected = &vector.expected;
        expected
            .guaranteed
            .same_as("guaranteed", &actual.kubepods)?;
        expected.burstable.same_as("burstable", &actual.burstable)?;
        expected
            .besteffort
            .same_as("besteffort", &actual.best_effort)
    };
    let Err(why) = compare(&cgroup_config::tiers(&pods, &settings, &node)) else {
        return Ok(Verdict::Pass);
    };
    match compare(&tiers_one_by_one(
        pods,
        &settings,
        &node,
        vector.tiered_reservation,
    )) {
        Ok(()) => Ok(Verdict::KnownUpstreamDefect(
            "overhead was added to a shared decimal for each setting".to_owned(),
        )),
        Err(_) => Err(why),
    }
}

/// Upstream adds up the pods for each setting anew (`UpdateCgroups`): for the shares those that are Burstable, for
/// protection and for the reserve both classes. Each time overhead is added to decimals that are shared, which may
/// change a pod's class, too.
fn tiers_one_by_one(
    mut pods: Vec<Pod>,
    settings: &QosSettings,
    node: &NodeCapacity,
    tiered_reservation: bool,
) -> Tiers {
    let mut add_up = |classes: &[QosClass]| {
        let tiers = cgroup_config::tiers(&pods, settings, node);
        let counted = pods
            .iter_mut()
            .filter(|pod| classes.contains(&pod.qos_class()));
        counted.for_each(add_overhead_to_shared_requests);
        tiers
    };
    let both = [QosClass::Guaranteed, QosClass::Burstable];
    let mut tiers = add_up(&[QosClass::Burstable]);
    if tiered_reservation {
        let protected = add_up(&both);
        tiers.kubepods.memory_min_bytes = protected.kubepods.memory_min_bytes;
        tiers.burstable.memory_low_bytes = protected.burstable.memory_low_bytes;
    }
    let reserved = add_up(&both);
    tiers.burstable.memory_max_bytes = reserved.burstable.memory_max_bytes;
    tiers.best_effort.memory_max_bytes = reserved.best_effort.memory_max_bytes;
    tiers
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GI: i64 = 1 << 30;

    /// A pod of which overhead is added to a big decimal, as 1.5Gi is one.
    fn pod(memory_limit: &str) -> Value {
        json!({"spec": {
            "containers": [{"name": "c"}],
            "overhead": {"memory": "1Gi"},
            "resources": {"requests": {"cpu": "1", "memory": "1.5Gi"}, "limits": {"cpu": "1", "memory": memory_limit}},
        }})
    }

    /// What `PodRequests` of 1.36.2 returns when it is called again: 1.5Gi and 1Gi, 2Gi, 3Gi.
    #[test]
    fn each_total_of_the_tiers_adds_overhead_once_more() {
        let vector = |memory_low: i64, allocatable: i64| {
            json!({
                "kind": "qos_cgroups", "pods": [pod("4Gi")], "node_allocatable_memory": 100 * GI,
                "tiered_reservation": true, "qos_reserved_memory_percent": 100,
                "expected": {
                    "guaranteed": {"unified": {"memory.min": memory_low.to_string()}},
                    "burstable": {
                        "cpu_shares": 1024, "cpu_weight_new": 100, "memory_limit": 100 * GI,
                        "unified": {"memory.low": memory_low.to_string()},
                    },
                    "besteffort": {"cpu_shares": 2, "cpu_weight_new": 1, "memory_limit": allocatable},
                },
            })
        };
        let right = 5 * GI / 2;
        assert_eq!(check(&vector(right, 100 * GI - right)), Verdict::Pass);
        // After the shares and, for the reserve, after the protection.
        let known = check(&vector(right + GI, 100 * GI - right - 2 * GI));
        assert!(
            matches!(known, Verdict::KnownUpstreamDefect(_)),
            "{known:?}"
        );
        for (memory_low, allocatable) in [
            (right + GI, 100 * GI - right - GI),
            (right + 2 * GI, 100 * GI - right - 2 * GI),
            (right + GI + 1, 100 * GI - right - 2 * GI),
        ] {
            let wrong = check(&vector(memory_low, allocatable));
            assert!(matches!(wrong, Verdict::Fail { .. }), "{wrong:?}");
        }
    }

    #[test]
    fn a_pod_is_judged_again_with_what_its_totals_left_in_it() {
        let vector = |memory_limit: &str, limit_bytes: i64, key: &str, valid: bool| {
            json!({
                "kind": "pod_resource_config", "pod": pod(memory_limit), "cpu_period": 100_000, "enforce_cpu_limits": true,
                "memory_qos": true, "memory_reservation_policy": "TieredReservation",
                "qos": if memory_limit == "4Gi" { "Burstable" } else { "Guaranteed" }, "resources_valid": valid,
                "expected": {
                    "cpu_shares": 1024, "cpu_weight_new": 100, "cpu_quota": 100_000, "cpu_period": 100_000,
                    "memory_limit": limit_bytes, "unified": {key: (5 * GI / 2).to_string()},
                },
            })
        };
        assert_eq!(
            check(&vector("4Gi", 5 * GI, "memory.low", true)),
            Verdict::Pass
        );
        // 1536Mi is no big decimal: with 2.5Gi the request is above the limit, and not equal to it any more.
        let known = check(&vector("1536Mi", 5 * GI / 2, "memory.low", false));
        assert!(
            matches!(known, Verdict::KnownUpstreamDefect(_)),
            "{known:?}"
        );
        // Both are big decimals, and stay equal.
        assert_eq!(
            check(&vector("1.5Gi", 5 * GI / 2, "memory.min", true)),
            Verdict::Pass
        );
        for (limit, bytes, key, valid) in [
            ("1536Mi", 5 * GI / 2, "memory.low", true),
            ("1536Mi", 7 * GI / 2, "memory.low", false),
            ("4Gi", 5 * GI, "memory.low", false),
        ] {
            let wrong = check(&vector(limit, bytes, key, valid));
            assert!(matches!(wrong, Verdict::Fail { .. }), "{limit}: {wrong:?}");
        }
    }
}
