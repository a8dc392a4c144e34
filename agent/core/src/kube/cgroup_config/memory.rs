//! Memory QoS and swap: `memory.min`, `memory.low`, `memory.high` and `memory.swap.max`.

use super::settings::{NodeCapacity, QosSettings, SwapBehavior};
use super::{CgroupConfig, bytes};
use crate::kube::pod::{Pod, Resources};
use crate::kube::qos::QosClass;
use crate::kube::resources::MEMORY;

/// Protects a request: that of a Guaranteed pod hard, of others softly.
fn protect(config: &mut CgroupConfig, class: QosClass, request_bytes: u64) {
    if class == QosClass::Guaranteed {
        config.memory_min_bytes = Some(request_bytes);
    } else {
        config.memory_low_bytes = Some(request_bytes);
    }
}

/// Protects a pod's request, if it is to be (`ResourceConfigForPod`). A BestEffort pod has one if its sandbox has
/// overhead.
pub(super) fn protect_pod(
    config: &mut CgroupConfig,
    class: QosClass,
    request_bytes: u64,
    settings: &QosSettings,
    node: &NodeCapacity,
) {
    let is_on = settings.memory_qos && settings.reserves_memory() && node.is_cgroup_v2;
    if is_on && request_bytes > 0 {
        protect(config, class, request_bytes);
    }
}

/// Protects a container's request. A container with nothing to protect has both set to 0, so that what an earlier
/// policy wrote does not stay.
pub(super) fn protect_container(
    config: &mut CgroupConfig,
    class: QosClass,
    request_bytes: u64,
    settings: &QosSettings,
) {
    if settings.reserves_memory() && request_bytes > 0 {
        protect(config, class, request_bytes);
    } else {
        config.memory_min_bytes = Some(0);
        config.memory_low_bytes = Some(0);
    }
}

/// Where a container is slowed down: between its request and its own limit, or node allocatable if it has none; whole
/// pages. `None` where request and limit are equal or the result is not above the request.
pub(super) fn high_bytes(
    request_bytes: u64,
    limit_bytes: u64,
    settings: &QosSettings,
    node: &NodeCapacity,
) -> Option<u64> {
    if request_bytes == limit_bytes || node.page_bytes == 0 {
        return None;
    }
    let top_bytes = match limit_bytes {
        0 => node.allocatable_memory_bytes,
        limit_bytes => limit_bytes,
    };
    if top_bytes == 0 {
        return None;
    }
    // The kubelet's arithmetic, in the same order: sum in float64, rounded down, divided, truncated.
    let (request, top) = (request_bytes as f64, top_bytes as f64);
    let high = (request + (top - request) * settings.memory_throttling_factor).floor();
    let high_bytes = ((high / node.page_bytes as f64) as u64) * node.page_bytes;
    (high_bytes > request_bytes).then_some(high_bytes)
}

/// How much a container may swap (`pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`, `configureLimitedSwap` and
/// `calcSwapForBurstablePods`).
///
/// Under [`SwapBehavior::LimitedSwap`] the share of the node's swap that its request is of the node's memory, if the
/// pod is Burstable and not critical, and the request differs from the limit. Otherwise, and on v1, nothing.
pub(super) fn swap_max_bytes(
    pod: &Pod,
    resources: &Resources,
    settings: &QosSettings,
    node: &NodeCapacity,
) -> u64 {
    let request_bytes = bytes(&resources.request(MEMORY));
    if settings.swap_behavior == SwapBehavior::NoSwap
        || !node.is_cgroup_v2
        || !may_swap(pod)
        || resources.request(MEMORY) == resources.limit(MEMORY)
        || request_bytes > node.memory_bytes
        || node.memory_bytes == 0
    {
        return 0;
    }
    let share = request_bytes as f64 / node.memory_bytes as f64;
    (share * node.swap_bytes as f64) as u64
}

fn may_swap(pod: &Pod) -> bool {
    pod.qos_class() == QosClass::Burstable && !pod.is_critical()
}

/// What the pod's containers that may swap under [`SwapBehavior::LimitedSwap`] request of memory, bytes: each may swap
/// as much of the node's swap as this is of the node's memory.
pub fn swap_request_bytes(pod: &Pod) -> u64 {
    if !may_swap(pod) {
        return 0;
    }
    let regular = pod.spec.containers.iter();
    let sidecars = pod
        .spec
        .init_containers
        .iter()
        .filter(|init| init.is_sidecar());
    regular
        .chain(sidecars)
        .map(|container| &container.resources)
        .filter(|container| container.request(MEMORY) != container.limit(MEMORY))
        .map(|container| bytes(&container.request(MEMORY)))
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NODE, pod};
    use super::super::{MemoryReservationPolicy, container_config, pod_config};
    use super::*;

    const GI: u64 = 1 << 30;

    fn settings() -> QosSettings {
        QosSettings {
            memory_qos: true,
            memory_reservation_policy: MemoryReservationPolicy::TieredReservation,
            swap_behavior: SwapBehavior::LimitedSwap,
            ..QosSettings::default()
        }
    }

    fn burstable() -> Pod {
        pod(
            r#"{"containers":[{"name":"c","resources":{"requests":{"memory":"4Gi"},"limits":{"memory":"8Gi"}}}]}"#,
        )
    }

    #[test]
    fn high_lies_between_request_and_limit_in_whole_pages() {
        let high = |request, limit| high_bytes(request, limit, &settings(), &NODE);
        assert_eq!(high(0, 10 * 4096), Some(9 * 4096));
        assert_eq!(high(4096, 4096), None, "nothing between them");
        assert_eq!(high(4096, 4097), None, "not above the request");
        assert_eq!(high(6 * GI, 0), Some(15 * GI), "towards node allocatable");
        let unknown = NodeCapacity {
            allocatable_memory_bytes: 0,
            ..NODE
        };
        assert_eq!(high_bytes(6 * GI, 0, &settings(), &unknown), None);
    }

    #[test]
    fn requests_are_protected_by_class() {
        let pod = burstable();
        let config = pod_config(&pod, &settings(), &NODE);
        assert_eq!(
            (config.memory_min_bytes, config.memory_low_bytes),
            (None, Some(4 * GI))
        );
        let none = QosSettings {
            memory_reservation_policy: MemoryReservationPolicy::None,
            ..settings()
        };
        let container = &pod.spec.containers[0];
        let config = container_config(&pod, container, &none, &NODE);
        assert_eq!(
            (config.memory_min_bytes, config.memory_low_bytes),
            (Some(0), Some(0))
        );
        assert!(config.memory_high_bytes.is_some());
        let v1 = NodeCapacity {
            is_cgroup_v2: false,
            ..NODE
        };
        let config = container_config(&pod, container, &settings(), &v1);
        assert_eq!(
            (config.memory_high_bytes, config.swap_max_bytes),
            (None, Some(0))
        );
    }

    #[test]
    fn swap_goes_by_the_share_of_memory_requested() {
        let mut pod = burstable();
        let swap =
            |pod: &Pod| swap_max_bytes(pod, &pod.spec.containers[0].resources, &settings(), &NODE);
        assert_eq!(swap(&pod), GI);
        assert_eq!(
            swap_request_bytes(&pod) / (NODE.memory_bytes / NODE.swap_bytes),
            GI
        );
        pod.spec.priority = Some(crate::kube::pod::SYSTEM_CRITICAL_PRIORITY);
        assert_eq!(swap(&pod), 0, "critical");
        assert_eq!(swap_request_bytes(&pod), 0, "critical");
    }
}
