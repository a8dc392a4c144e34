//! `cgroup_config`, in part: CPU, memory limit and huge pages of pods, containers and tiers.
//!
//! Not covered: the kubelet's conversions back from shares, weight and quota, and of the covered kinds Memory QoS and swap.

use std::collections::BTreeMap;

use plimsoll_core::cgroup_config::{self, CgroupConfig, CgroupOptions};
use plimsoll_core::pod::Pod;
use serde::Deserialize;
use serde_json::Value;

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
    },
    PodResourceConfig(Box<PodVector>),
    ContainerResources(Box<ContainersVector>),
    QosCgroups {
        pods: Vec<Pod>,
        expected: BTreeMap<String, Tier>,
    },
    WeightToSharesKubelet {},
    QuotaToMilliCpu {},
}

#[derive(Deserialize)]
struct PodVector {
    pod: Pod,
    enforce_cpu_limits: bool,
    cpu_period: u64,
    expected: PodExpected,
}

#[derive(Deserialize)]
struct PodExpected {
    cpu_shares: u64,
    cpu_weight_new: u64,
    cpu_quota: Option<i64>,
    cpu_period: Option<u64>,
    memory_limit: Option<u64>,
    #[serde(default)]
    hugepage_limits: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct ContainersVector {
    pod: Pod,
    cpu_cfs_quota: bool,
    cpu_cfs_quota_period_us: u64,
    expected: Vec<ContainerExpected>,
}

#[derive(Deserialize)]
struct ContainerExpected {
    list: String,
    index: usize,
    cpu_shares: u64,
    cpu_quota: i64,
    cpu_period: u64,
    memory_limit_in_bytes: u64,
}

#[derive(Deserialize)]
struct Tier {
    cpu_shares: Option<u64>,
    cpu_weight_new: Option<u64>,
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
        Ok(Vector::SharesToWeight { shares, weight_new }) => same(
            "weight",
            &cgroup_config::shares_to_weight(shares),
            &weight_new,
        ),
        Ok(Vector::PodResourceConfig(expected)) => pod(*expected),
        Ok(Vector::ContainerResources(expected)) => containers(*expected),
        Ok(Vector::QosCgroups { pods, expected }) => tiers(pods, &expected),
        Ok(Vector::WeightToSharesKubelet {} | Vector::QuotaToMilliCpu {}) => {
            return Verdict::NotCovered;
        }
        Err(why) => Err(why),
    };
    Verdict::of(complaint)
}

fn pod(vector: PodVector) -> Result<(), String> {
    let options = CgroupOptions {
        cpu_cfs_quota: vector.enforce_cpu_limits,
        cpu_period_us: vector.cpu_period,
        ..CgroupOptions::default()
    };
    let actual = cgroup_config::pod_config_with(&vector.pod.with_defaults(), &options);
    let expected = vector.expected;
    let huge_pages = expected.hugepage_limits.into_iter();
    let huge_pages = huge_pages
        .map(|(size, limit)| Ok((size.parse()?, limit)))
        .collect::<Result<_, _>>();
    let expected = CgroupConfig {
        cpu_shares: Some(expected.cpu_shares),
        cpu_weight: Some(expected.cpu_weight_new),
        cpu_quota_us: expected.cpu_quota,
        cpu_period_us: expected.cpu_period,
        memory_max_bytes: expected.memory_limit,
        huge_pages_max_bytes: huge_pages
            .map_err(|error: std::num::ParseIntError| format!("hugepage_limits: {error}"))?,
        pids_max: None,
    };
    same("pod", &actual, &expected)
}

fn containers(vector: ContainersVector) -> Result<(), String> {
    let options = CgroupOptions {
        cpu_cfs_quota: vector.cpu_cfs_quota,
        cpu_period_us: vector.cpu_cfs_quota_period_us,
        ..CgroupOptions::default()
    };
    let pod = vector.pod.with_defaults();
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
        let actual = cgroup_config::container_config_with(&pod, container, &options);
        // The runtime's message has 0 for unset.
        let actual = (
            actual.cpu_shares,
            actual.cpu_quota_us.unwrap_or(0),
            actual.cpu_period_us.unwrap_or(0),
            actual.memory_max_bytes.unwrap_or(0),
        );
        let expected = (
            Some(expected.cpu_shares),
            expected.cpu_quota,
            expected.cpu_period,
            expected.memory_limit_in_bytes,
        );
        same(&place, &actual, &expected)?;
    }
    Ok(())
}

fn tiers(pods: Vec<Pod>, expected: &BTreeMap<String, Tier>) -> Result<(), String> {
    let pods: Vec<Pod> = pods.into_iter().map(Pod::with_defaults).collect();
    for (name, actual) in [
        ("burstable", cgroup_config::burstable_tier_config(&pods)),
        ("besteffort", cgroup_config::best_effort_tier_config()),
    ] {
        let expected = expected
            .get(name)
            .ok_or_else(|| format!("{name} is missing"))?;
        same(
            name,
            &(actual.cpu_shares, actual.cpu_weight),
            &(expected.cpu_shares, expected.cpu_weight_new),
        )?;
    }
    Ok(())
}
