//! The cgroups above the pods: kubepods and, below it, those of Burstable and of BestEffort pods.
//!
//! Source: `UpdateCgroups` of `pkg/kubelet/cm/qos_container_manager_linux.go`. Guaranteed pods are directly below
//! kubepods.

use super::settings::{NodeCapacity, QosSettings};
use super::{CgroupConfig, SHARES_MIN, milli_cpu_to_shares};
use crate::kube::pod::Pod;
use crate::kube::qos::QosClass;
use crate::kube::quantity::Quantity;
use crate::kube::resources::{self, CPU, MEMORY, Scope};

/// What depends on which pods there are. Huge pages are not limited at this level (`setHugePagesUnbounded`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tiers {
    /// For kubepods, besides [`kubepods`](crate::kube::node_allocatable::kubepods): only `memory.min`.
    pub kubepods: CgroupConfig,
    /// For all Burstable pods.
    pub burstable: CgroupConfig,
    /// For all BestEffort pods.
    pub best_effort: CgroupConfig,
}

/// The cgroups above these pods, which are those that have not ended.
pub fn tiers<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    settings: &QosSettings,
    node: &NodeCapacity,
) -> Tiers {
    let mut burstable_milli_cpu = 0i64;
    let mut guaranteed_bytes = 0i64;
    let mut burstable_bytes = 0i64;
    for pod in pods {
        let class = pod.qos_class();
        if class == QosClass::BestEffort {
            continue;
        }
        let requests = resources::pod_requests(pod, Scope::ALL);
        let bytes = requests.get(MEMORY).map_or(0, Quantity::value);
        if class == QosClass::Guaranteed {
            guaranteed_bytes = guaranteed_bytes.saturating_add(bytes);
        } else {
            burstable_bytes = burstable_bytes.saturating_add(bytes);
            let milli_cpu = requests.get(CPU).map_or(0, Quantity::milli_value);
            burstable_milli_cpu = burstable_milli_cpu.saturating_add(milli_cpu);
        }
    }

    let mut tiers = Tiers::default();
    tiers
        .burstable
        .set_shares(milli_cpu_to_shares(burstable_milli_cpu));
    tiers.best_effort.set_shares(SHARES_MIN);
    if settings.memory_qos && node.is_cgroup_v2 {
        let protect = |bytes: i64| match settings.reserves_memory() {
            true => u64::try_from(bytes).unwrap_or(0),
            false => 0,
        };
        tiers.kubepods.memory_min_bytes =
            Some(protect(guaranteed_bytes.saturating_add(burstable_bytes)));
        tiers.burstable.memory_low_bytes = Some(protect(burstable_bytes));
    }
    if let Some(percent) = settings.qos_reserved_memory_percent
        && let Ok(allocatable @ 1..) = i64::try_from(node.allocatable_memory_bytes)
    {
        let burstable_max = allocatable.saturating_sub(reserve(guaranteed_bytes, percent));
        tiers.burstable.memory_max_bytes = Some(burstable_max);
        tiers.best_effort.memory_max_bytes =
            Some(burstable_max.saturating_sub(reserve(burstable_bytes, percent)));
    }
    tiers
}

/// The share of requests that lower tiers may not use (`setMemoryReserve`).
fn reserve(request_bytes: i64, percent: i64) -> i64 {
    let share = i128::from(request_bytes) * i128::from(percent) / 100;
    i64::try_from(share).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NODE, pod};
    use super::super::{MemoryReservationPolicy, QosSettings};
    use super::*;

    const GI: i64 = 1 << 30;

    fn pods() -> [Pod; 3] {
        [
            pod(r#"{"containers":[{"resources":{"requests":{"cpu":"1","memory":"4Gi"}}}]}"#),
            pod(r#"{"containers":[{"resources":{"limits":{"cpu":"4","memory":"2Gi"}}}]}"#),
            pod(r#"{"containers":[{}]}"#),
        ]
    }

    #[test]
    fn tiers_weigh_what_their_pods_request() {
        let tiers = tiers(&pods(), &QosSettings::default(), &NODE);
        assert_eq!(tiers.burstable.cpu_weight, Some(100));
        assert_eq!(tiers.best_effort.cpu_weight, Some(1));
        assert_eq!(tiers.kubepods, CgroupConfig::default());
    }

    #[test]
    fn reserved_memory_is_kept_from_the_tiers_below() {
        let settings = QosSettings {
            qos_reserved_memory_percent: Some(50),
            ..QosSettings::default()
        };
        let configs = tiers(&pods(), &settings, &NODE);
        assert_eq!(configs.burstable.memory_max_bytes, Some(15 * GI));
        assert_eq!(configs.best_effort.memory_max_bytes, Some(13 * GI));
        let unknown = NodeCapacity {
            allocatable_memory_bytes: 0,
            ..NODE
        };
        assert_eq!(
            tiers(&pods(), &settings, &unknown)
                .burstable
                .memory_max_bytes,
            None
        );
    }

    #[test]
    fn protection_of_a_pod_needs_that_of_the_cgroups_above_it() {
        let settings = QosSettings {
            memory_qos: true,
            memory_reservation_policy: MemoryReservationPolicy::TieredReservation,
            ..QosSettings::default()
        };
        let configs = tiers(&pods(), &settings, &NODE);
        assert_eq!(configs.kubepods.memory_min_bytes, Some(6 << 30));
        assert_eq!(configs.burstable.memory_low_bytes, Some(4 << 30));
        assert_eq!(configs.best_effort.memory_low_bytes, None);
    }
}
