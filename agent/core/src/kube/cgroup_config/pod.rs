//! The cgroups of one pod and of its containers.

use std::collections::BTreeMap;

use super::settings::{NodeCapacity, QosSettings};
use super::{
    CgroupConfig, QUOTA_UNLIMITED, SHARES_MIN, bytes, huge_pages_max_bytes, memory,
    milli_cpu_to_quota_us, milli_cpu_to_shares,
};
use crate::kube::pod::{Container, Pod, Resources};
use crate::kube::qos::QosClass;
use crate::kube::quantity::Quantity;
use crate::kube::resources::{self, CPU, MEMORY, ResourceList, Scope};

/// Whether every container that runs, or starts while others run, has a limit (`ContainerFn` of
/// `ResourceConfigForPod`). An init container's limit may be that of the sidecars started before it.
fn every_container_is_limited(pod: &Pod, name: &str) -> bool {
    let limited = |container: &Container| !container.resources.limit(name).is_zero();
    let mut sidecar_limited = false;
    pod.spec.containers.iter().all(limited)
        && pod.spec.init_containers.iter().all(|container| {
            let is_limited = limited(container);
            sidecar_limited |= is_limited && container.is_sidecar();
            is_limited || sidecar_limited
        })
}

/// The cgroup of a pod (`ResourceConfigForPod`).
///
/// Its limits are set only if all of its containers are limited, or the pod itself is.
pub fn pod_config(pod: &Pod, settings: &QosSettings, node: &NodeCapacity) -> CgroupConfig {
    let requests = resources::pod_requests(pod, Scope::ALL);
    let limits = resources::pod_limits(pod, Scope::ALL);
    let milli = |list: &ResourceList| list.get(CPU).map_or(0, Quantity::milli_value);

    let mut config = CgroupConfig {
        huge_pages_max_bytes: huge_pages_max_bytes(&requests),
        pids_max: settings.pod_pids_limit,
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
                .is_some_and(|resources| !resources.limit(name).is_zero())
                || every_container_is_limited(pod, name)
        }
        QosClass::BestEffort => false,
    };
    if limited(CPU) {
        config.cpu_quota_us = Some(if settings.cpu_cfs_quota {
            milli_cpu_to_quota_us(milli(&limits), settings.cpu_period_us)
        } else {
            QUOTA_UNLIMITED
        });
        config.cpu_period_us = Some(settings.cpu_period_us);
    }
    if limited(MEMORY) {
        config.memory_max_bytes = Some(limits.get(MEMORY).map_or(0, Quantity::value));
    }
    memory::protect_pod(
        &mut config,
        class,
        requests.get(MEMORY).map_or(0, bytes),
        settings,
        node,
    );
    config
}

/// The cgroup of one of the pod's containers (`generateLinuxContainerResources`).
///
/// A container without a limit, also of a size of huge pages, has the pod-level one, if any.
pub fn container_config(
    pod: &Pod,
    container: &Container,
    settings: &QosSettings,
    node: &NodeCapacity,
) -> CgroupConfig {
    let resources: &Resources = &container.resources;
    let limit = |name: &str| match (resources.limit(name), pod.pod_level_resources()) {
        (limit, Some(level)) if limit.is_zero() => level.limit(name),
        (limit, _) => limit,
    };
    let mut huge_pages = pod
        .pod_level_resources()
        .map_or_else(BTreeMap::new, |level| huge_pages_max_bytes(&level.limits));
    huge_pages.extend(huge_pages_max_bytes(&resources.limits));
    let mut config = CgroupConfig {
        huge_pages_max_bytes: huge_pages,
        ..CgroupConfig::default()
    };
    let cpu_limit = limit(CPU);
    config.set_shares(milli_cpu_to_shares(
        resources
            .requests
            .get(CPU)
            .unwrap_or(&cpu_limit)
            .milli_value(),
    ));
    if settings.cpu_cfs_quota {
        config.cpu_quota_us = Some(milli_cpu_to_quota_us(
            cpu_limit.milli_value(),
            settings.cpu_period_us,
        ));
        config.cpu_period_us = Some(settings.cpu_period_us);
    }
    let memory_limit = limit(MEMORY);
    if !memory_limit.is_zero() {
        config.memory_max_bytes = Some(memory_limit.value());
    }
    let request_bytes = bytes(&resources.request(MEMORY));
    if settings.memory_qos && node.is_cgroup_v2 {
        memory::protect_container(&mut config, pod.qos_class(), request_bytes, settings);
        config.memory_high_bytes = memory::high_bytes(
            request_bytes,
            bytes(&resources.limit(MEMORY)),
            settings,
            node,
        );
    }
    config.swap_max_bytes = Some(memory::swap_max_bytes(pod, resources, settings, node));
    config
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NODE, pod};
    use super::*;

    fn pod_config(pod: &Pod) -> CgroupConfig {
        super::pod_config(pod, &QosSettings::default(), &NODE)
    }

    fn container_config(pod: &Pod, name: &str) -> CgroupConfig {
        let container = pod.container(name).unwrap();
        super::container_config(pod, container, &QosSettings::default(), &NODE)
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
        let config = container_config(&pod, "c");
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
    fn a_container_has_the_huge_pages_of_its_pod_unless_it_sets_a_limit() {
        let pod = pod(
            r#"{"containers":[{"name":"c","resources":{"limits":{"cpu":"1","hugepages-2Mi":"4Mi"}}}],
            "resources":{"limits":{"cpu":"1","hugepages-2Mi":"8Mi","hugepages-1Gi":"1Gi"}}}"#,
        );
        let config = container_config(&pod, "c");
        assert_eq!(
            config.huge_pages_max_bytes,
            BTreeMap::from([(2 << 20, 4 << 20), (1 << 30, 1 << 30)])
        );
    }

    #[test]
    fn without_quota_a_limited_pod_is_explicitly_unlimited() {
        let pod = pod(r#"{"containers":[{"resources":{"limits":{"cpu":"1","memory":"1Gi"}}}]}"#);
        let settings = QosSettings {
            cpu_cfs_quota: false,
            pod_pids_limit: Some(64),
            ..QosSettings::default()
        };
        let config = super::pod_config(&pod, &settings, &NODE);
        assert_eq!(
            (config.cpu_max().as_deref(), config.pids_max),
            (Some("max 100000"), Some(64))
        );
    }
}
