//! What the kubelet writes into the cgroups of pods and containers.
//!
//! The result is in the kubelet's terms (cgroup v1: shares, quota, period) with the cgroup v2 weight beside it, so one
//! value serves both hierarchies. A field that is `None` is left alone. Pods must have API defaults applied
//! ([`Pod::set_defaults`]).
//!
//! Source: `pkg/kubelet/cm/helpers_linux.go` (`ResourceConfigForPod`), `pkg/kubelet/cm/qos_container_manager_linux.go`,
//! `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go` of 1.36, and opencontainers/cgroups v0.0.6 for weights.
//! Memory QoS (`memory.high`, `memory.min`, `memory.low`) and swap limits are not part of this.

use std::collections::BTreeMap;

use crate::pod::{Container, Pod, Resources};
use crate::qos::QosClass;
use crate::quantity::Quantity;
use crate::resources::{self, CPU, HUGE_PAGES_PREFIX, MEMORY, ResourceList, Scope};

/// The least `cpu.shares`, and the value for nothing requested.
pub const SHARES_MIN: u64 = 2;
/// The largest `cpu.shares` the kernel takes.
pub const SHARES_MAX: u64 = 262_144;
/// `cpu.shares` of one CPU.
const SHARES_PER_CPU: i64 = 1024;
/// The least quota the kernel takes, in microseconds.
const QUOTA_US_MIN: i64 = 1000;
/// The usual CFS period, in microseconds.
pub const PERIOD_US: u64 = 100_000;
/// A quota of no limit.
pub const QUOTA_UNLIMITED: i64 = -1;

/// The node's settings that take part. The default is the kubelet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupOptions {
    /// `cpuCFSQuota`: whether CPU limits are enforced.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod` in microseconds.
    pub cpu_period_us: u64,
    /// `podPidsLimit`; `None` for no limit.
    pub pod_pids_limit: Option<u64>,
}

impl Default for CgroupOptions {
    fn default() -> Self {
        Self {
            cpu_cfs_quota: true,
            cpu_period_us: PERIOD_US,
            pod_pids_limit: None,
        }
    }
}

/// The contents of one cgroup's control files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CgroupConfig {
    /// v1 `cpu.shares`.
    pub cpu_shares: Option<u64>,
    /// v2 `cpu.weight`, from the shares.
    pub cpu_weight: Option<u64>,
    /// v1 `cpu.cfs_quota_us`; [`QUOTA_UNLIMITED`] for no limit. See [`Self::cpu_max`].
    pub cpu_quota_us: Option<i64>,
    /// v1 `cpu.cfs_period_us`.
    pub cpu_period_us: Option<u64>,
    /// v2 `memory.max`, v1 `memory.limit_in_bytes`.
    pub memory_max_bytes: Option<u64>,
    /// `hugetlb.<size>.max` by page size, both in bytes. The kubelet limits every size of the host that is not listed
    /// here to zero (`cgroup_manager_linux.go`, `GetHugepageLimitsFromResources`).
    pub huge_pages_max_bytes: BTreeMap<u64, u64>,
    /// `pids.max`.
    pub pids_max: Option<u64>,
}

impl CgroupConfig {
    /// The text of v2 `cpu.max`. A quota of zero is unset, as it is to container runtimes.
    pub fn cpu_max(&self) -> Option<String> {
        let (quota, period) = (self.cpu_quota_us?, self.cpu_period_us?);
        match quota {
            0 => None,
            1.. => Some(format!("{quota} {period}")),
            _ => Some(format!("max {period}")),
        }
    }

    fn set_shares(&mut self, shares: u64) {
        self.cpu_shares = Some(shares);
        self.cpu_weight = Some(shares_to_weight(shares));
    }
}

/// `cpu.shares` for a CPU request.
pub fn milli_cpu_to_shares(milli_cpu: i64) -> u64 {
    let shares = i128::from(milli_cpu) * i128::from(SHARES_PER_CPU) / 1000;
    u64::try_from(shares)
        .unwrap_or(0)
        .clamp(SHARES_MIN, SHARES_MAX)
}

/// The CFS quota in microseconds for a CPU limit; 0 for none.
pub fn milli_cpu_to_quota_us(milli_cpu: i64, period_us: u64) -> i64 {
    if milli_cpu == 0 {
        return 0;
    }
    let quota = i128::from(milli_cpu) * i128::from(period_us) / 1000;
    i64::try_from(quota).unwrap_or(i64::MAX).max(QUOTA_US_MIN)
}

/// v2 `cpu.weight` (1 to 10000) for v1 `cpu.shares`; 0, for unset, stays 0.
///
/// `ceil(10^((l² + 125l)/612 - 7/34))` with `l = log2(shares)`: a curve through (2, 1), (1024, 100) and (262144, 10000),
/// where the linear formula used until 2025 gave one CPU a weight of 39.
pub fn shares_to_weight(shares: u64) -> u64 {
    match shares {
        0 => 0,
        1..=SHARES_MIN => 1,
        SHARES_MAX.. => 10_000,
        _ => (weight_exact(shares) - WEIGHT_SLACK).ceil() as u64,
    }
}

/// Subtracted before rounding up, so that 1024 shares give 100 on every libm. No other number of shares is within
/// a hundred times this of a whole weight (tested for all), hence the result does not depend on the last bits of a float.
const WEIGHT_SLACK: f64 = 1e-8;

fn weight_exact(shares: u64) -> f64 {
    let l = (shares as f64).log2();
    10f64.powf((l * l + 125.0 * l) / 612.0 - 7.0 / 34.0)
}

/// Bytes of a quantity; a negative one, which the API refuses, is none.
fn bytes(quantity: &Quantity) -> u64 {
    u64::try_from(quantity.value()).unwrap_or(0)
}

fn huge_pages_max_bytes(list: &ResourceList) -> BTreeMap<u64, u64> {
    let mut limits: BTreeMap<u64, u64> = BTreeMap::new();
    for (name, limit) in list {
        // A size that is no quantity is refused by the API.
        let size = name
            .strip_prefix(HUGE_PAGES_PREFIX)
            .and_then(|size| Quantity::parse(size).ok());
        if let Some(size) = size {
            // Two names of one size, such as 2Mi and 2048Ki, add up.
            let sum = limits.entry(bytes(&size)).or_default();
            *sum = sum.saturating_add(bytes(limit));
        }
    }
    limits
}

/// Whether every container that runs, or is started beside those running already, has a limit (`ContainerFn` of
/// `ResourceConfigForPod`). An init container's limit may be that of the sidecars started before it.
fn every_container_is_limited(pod: &Pod, name: &str) -> bool {
    let limited = |container: &Container| !container.resources.limit(name).is_zero();
    let mut sidecar_limited = false;
    pod.spec.containers.iter().all(limited)
        && pod.spec.init_containers.iter().all(|container| {
            let own = limited(container);
            sidecar_limited |= own && container.is_sidecar();
            own || sidecar_limited
        })
}

/// The cgroup of a pod, with the kubelet's default settings.
pub fn pod_config(pod: &Pod) -> CgroupConfig {
    pod_config_with(pod, &CgroupOptions::default())
}

/// The cgroup of a pod (`ResourceConfigForPod`).
///
/// Its limits are set only if all of its containers are limited, or the pod itself is.
pub fn pod_config_with(pod: &Pod, options: &CgroupOptions) -> CgroupConfig {
    let requests = resources::pod_requests(pod, Scope::ALL);
    let limits = resources::pod_limits(pod, Scope::ALL);
    let milli = |list: &ResourceList| list.get(CPU).map_or(0, Quantity::milli_value);

    let mut config = CgroupConfig {
        huge_pages_max_bytes: huge_pages_max_bytes(&requests),
        pids_max: options.pod_pids_limit,
        ..CgroupConfig::default()
    };
    let class = pod.qos_class();
    config.set_shares(match class {
        QosClass::BestEffort => SHARES_MIN,
        QosClass::Guaranteed | QosClass::Burstable => milli_cpu_to_shares(milli(&requests)),
    });
    let limited = |name: &str| match class {
        QosClass::Guaranteed => true,
        QosClass::Burstable => {
            pod.pod_level_resources()
                .is_some_and(|own| !own.limit(name).is_zero())
                || every_container_is_limited(pod, name)
        }
        QosClass::BestEffort => false,
    };
    if limited(CPU) {
        config.cpu_quota_us = Some(if options.cpu_cfs_quota {
            milli_cpu_to_quota_us(milli(&limits), options.cpu_period_us)
        } else {
            QUOTA_UNLIMITED
        });
        config.cpu_period_us = Some(options.cpu_period_us);
    }
    if limited(MEMORY) {
        config.memory_max_bytes = Some(limits.get(MEMORY).map_or(0, bytes));
    }
    config
}

/// The cgroup of one of the pod's containers, with the kubelet's default settings.
pub fn container_config(pod: &Pod, container: &Container) -> CgroupConfig {
    container_config_with(pod, container, &CgroupOptions::default())
}

/// The cgroup of one of the pod's containers (`generateLinuxContainerResources`).
///
/// A container without a limit, also of a size of huge pages, has the pod-level one, if any.
pub fn container_config_with(
    pod: &Pod,
    container: &Container,
    options: &CgroupOptions,
) -> CgroupConfig {
    let own: &Resources = &container.resources;
    let limit = |name: &str| match (own.limit(name), pod.pod_level_resources()) {
        (limit, Some(level)) if limit.is_zero() => level.limit(name),
        (limit, _) => limit,
    };
    let mut huge_pages = pod
        .pod_level_resources()
        .map_or_else(BTreeMap::new, |level| huge_pages_max_bytes(&level.limits));
    huge_pages.extend(huge_pages_max_bytes(&own.limits));
    let mut config = CgroupConfig {
        huge_pages_max_bytes: huge_pages,
        ..CgroupConfig::default()
    };
    let cpu_limit = limit(CPU);
    config.set_shares(milli_cpu_to_shares(
        own.requests.get(CPU).unwrap_or(&cpu_limit).milli_value(),
    ));
    if options.cpu_cfs_quota {
        config.cpu_quota_us = Some(milli_cpu_to_quota_us(
            cpu_limit.milli_value(),
            options.cpu_period_us,
        ));
        config.cpu_period_us = Some(options.cpu_period_us);
    }
    let memory_limit = limit(MEMORY);
    if !memory_limit.is_zero() {
        config.memory_max_bytes = Some(bytes(&memory_limit));
    }
    config
}

/// The cgroup of all Burstable pods: the shares of what they request together.
pub fn burstable_tier_config<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> CgroupConfig {
    let burstable = pods
        .into_iter()
        .filter(|pod| pod.qos_class() == QosClass::Burstable);
    let milli_cpu = burstable.fold(0i64, |sum, pod| {
        let request = resources::pod_requests(pod, Scope::ALL)
            .get(CPU)
            .map_or(0, Quantity::milli_value);
        sum.saturating_add(request)
    });
    kubepods_config(milli_cpu)
}

/// The cgroup of all BestEffort pods: the least shares.
pub fn best_effort_tier_config() -> CgroupConfig {
    kubepods_config(0)
}

/// The cgroup of all pods, for the node's allocatable CPU in thousandths.
pub fn kubepods_config(allocatable_milli_cpu: i64) -> CgroupConfig {
    let mut config = CgroupConfig::default();
    config.set_shares(milli_cpu_to_shares(allocatable_milli_cpu));
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: &str) -> Pod {
        serde_json::from_str::<Pod>(&format!(r#"{{"spec":{spec}}}"#))
            .unwrap()
            .with_defaults()
    }

    #[test]
    fn no_weight_is_near_a_whole_number_but_one() {
        for shares in SHARES_MIN + 1..SHARES_MAX {
            let exact = weight_exact(shares);
            let distance = (exact - exact.round()).abs();
            assert!(
                shares == 1024 || distance > 100.0 * WEIGHT_SLACK,
                "{shares} shares: {exact}"
            );
            assert!(shares_to_weight(shares) >= shares_to_weight(shares - 1));
        }
        assert_eq!(
            [0, 1, 2, 1024, SHARES_MAX, u64::MAX].map(shares_to_weight),
            [0, 1, 1, 100, 10_000, 10_000]
        );
    }

    #[test]
    fn quota_and_shares_have_bounds() {
        assert_eq!(
            [0, 1, 500, 1_000_000_000].map(milli_cpu_to_shares),
            [2, 2, 512, SHARES_MAX]
        );
        assert_eq!(
            [0, 1, 1500].map(|milli| milli_cpu_to_quota_us(milli, PERIOD_US)),
            [0, 1000, 150_000]
        );
        assert_eq!(milli_cpu_to_quota_us(i64::MAX, PERIOD_US), i64::MAX);
    }

    #[test]
    fn a_pod_is_limited_only_if_all_its_containers_are() {
        let one =
            r#"{"resources":{"limits":{"cpu":"1500m","memory":"1Gi"},"requests":{"cpu":"1"}}}"#;
        let config = pod_config(&pod(&format!(r#"{{"containers":[{one},{one}]}}"#)));
        assert_eq!(config.cpu_max().as_deref(), Some("300000 100000"));
        assert_eq!(
            (config.cpu_shares, config.memory_max_bytes),
            (Some(2048), Some(2 << 30))
        );
        let config = pod_config(&pod(&format!(r#"{{"containers":[{one},{{}}]}}"#)));
        assert_eq!((config.cpu_max(), config.memory_max_bytes), (None, None));
        let config = pod_config(&pod(&format!(
            r#"{{"containers":[{one},{{}}],"resources":{{"limits":{{"memory":"4Gi"}}}}}}"#
        )));
        assert_eq!(
            (config.cpu_max(), config.memory_max_bytes),
            (None, Some(4 << 30))
        );
    }

    #[test]
    fn a_container_falls_back_to_the_pod_limit() {
        let pod = pod(
            r#"{"containers":[{"name":"c","resources":{"requests":{"cpu":"250m"}}}],
            "resources":{"limits":{"cpu":"2","memory":"4Gi"}}}"#,
        );
        let config = container_config(&pod, pod.container("c").unwrap());
        assert_eq!(config.cpu_max().as_deref(), Some("200000 100000"));
        assert_eq!(
            (config.cpu_shares, config.memory_max_bytes),
            (Some(256), Some(4 << 30))
        );
    }

    #[test]
    fn huge_pages_of_one_size_add_up() {
        let pod = pod(
            r#"{"containers":[{"resources":{"limits":{"hugepages-2Mi":"4Mi","hugepages-2048Ki":"2Mi","cpu":"1"}}}]}"#,
        );
        assert_eq!(
            pod_config(&pod).huge_pages_max_bytes,
            BTreeMap::from([(2 << 20, 6 << 20)])
        );
    }

    #[test]
    fn a_container_has_the_huge_pages_of_its_pod_unless_it_names_its_own() {
        let pod = pod(
            r#"{"containers":[{"name":"c","resources":{"limits":{"cpu":"1","hugepages-2Mi":"4Mi"}}}],
            "resources":{"limits":{"cpu":"1","hugepages-2Mi":"8Mi","hugepages-1Gi":"1Gi"}}}"#,
        );
        let config = container_config(&pod, pod.container("c").unwrap());
        assert_eq!(
            config.huge_pages_max_bytes,
            BTreeMap::from([(2 << 20, 4 << 20), (1 << 30, 1 << 30)])
        );
    }

    #[test]
    fn tiers_weigh_what_their_pods_request() {
        let pods = [
            pod(r#"{"containers":[{"resources":{"requests":{"cpu":"1"}}}]}"#),
            pod(r#"{"containers":[{"resources":{"limits":{"cpu":"4","memory":"1Gi"}}}]}"#),
        ];
        assert_eq!(burstable_tier_config(&pods).cpu_weight, Some(100));
        assert_eq!(best_effort_tier_config().cpu_weight, Some(1));
    }

    #[test]
    fn without_quota_a_limited_pod_is_explicitly_unlimited() {
        let pod = pod(r#"{"containers":[{"resources":{"limits":{"cpu":"1","memory":"1Gi"}}}]}"#);
        let options = CgroupOptions {
            cpu_cfs_quota: false,
            pod_pids_limit: Some(64),
            ..CgroupOptions::default()
        };
        let config = pod_config_with(&pod, &options);
        assert_eq!(
            (config.cpu_max().as_deref(), config.pids_max),
            (Some("max 100000"), Some(64))
        );
    }
}
