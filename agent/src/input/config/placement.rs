//! What the configuration says about CPUs and memory of one's own.
//!
//! Source of the rules: `NewContainerManager` in pkg/kubelet/cm/container_manager_linux.go and `validateReservedMemory`
//! in pkg/kubelet/cm/memorymanager/memory_manager.go, 1.36.

use std::collections::BTreeMap;

use plimsoll_core::kube::resources::{CPU, ResourceList};
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::memory::ReservedMemory;
use plimsoll_core::placement::node::{
    CpuManagerPolicy, DeviceSettings, MemoryManagerPolicy, PlacementSettings,
};

use super::rules;
use super::tree::Tree;

/// The fields that have been checked, with their defaults.
pub(super) fn placement(
    tree: Tree<'_>,
    reserved_system_cpus: CpuSet,
    reserved: [&ResourceList; 2],
) -> PlacementSettings {
    let text = |field: &str| tree.text(field).unwrap_or_default().to_owned();
    PlacementSettings {
        cpu_manager_policy: match tree.text("cpuManagerPolicy") {
            Some("static") => CpuManagerPolicy::Static,
            _ => CpuManagerPolicy::None,
        },
        cpu_manager_policy_options: tree
            .labels("cpuManagerPolicyOptions")
            .filter_map(|(name, text, _)| Some((name.to_owned(), rules::go_bool(text)?)))
            .collect(),
        reserved_system_cpus,
        reserved_cpu_count: reserved_cpus(reserved),
        memory_manager_policy: match tree.text("memoryManagerPolicy") {
            Some("Static") => MemoryManagerPolicy::Static,
            _ => MemoryManagerPolicy::None,
        },
        reserved_memory: reserved_memory(tree),
        topology_manager_policy: text("topologyManagerPolicy"),
        topology_manager_scope: text("topologyManagerScope"),
        topology_manager_policy_options: tree
            .labels("topologyManagerPolicyOptions")
            .map(|(name, text, _)| (name.to_owned(), text.to_owned()))
            .collect(),
        // No field of the kubelet's: it hears of them from device plugins.
        devices: DeviceSettings::default(),
    }
}

/// Whole CPUs: a part of one cannot be kept free.
fn reserved_cpus(lists: [&ResourceList; 2]) -> u32 {
    let milli = lists
        .iter()
        .filter_map(|list| list.get(CPU))
        .map(|cpus| cpus.milli_value().max(0))
        .fold(0_i64, i64::saturating_add);
    u32::try_from(milli.saturating_add(999) / 1000).unwrap_or(u32::MAX)
}

fn reserved_memory(tree: Tree<'_>) -> ReservedMemory {
    let mut reserved = ReservedMemory::new();
    for item in tree.items("reservedMemory") {
        let node = item
            .integer("numaNode")
            .and_then(|node| u32::try_from(node).ok());
        let of_node: &mut BTreeMap<String, u64> = reserved.entry(node.unwrap_or(0)).or_default();
        for (name, quantity, _) in item.quantities("limits") {
            of_node.insert(
                name.to_owned(),
                u64::try_from(quantity.value()).unwrap_or(0),
            );
        }
    }
    reserved
}

#[cfg(test)]
mod tests {
    use crate::input::config::{Config, ConfigFile, EvictionFlags};

    #[test]
    fn the_fields_come_by_the_kubelets_names() {
        let text = "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: \"true\", strict-cpu-reservation: \"false\"}\n\
            kubeReserved: {cpu: 500m}\nsystemReserved: {cpu: 600m, memory: 1Gi}\nmemoryManagerPolicy: Static\n\
            reservedMemory: [{numaNode: 1, limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}]\n\
            topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n\
            topologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"true\"}\n";
        let file = ConfigFile::parse(text, None).unwrap();
        let settings = Config::new(file, &EvictionFlags::default())
            .unwrap()
            .placement;
        assert!(settings.is_active());
        assert_eq!(
            serde_json::to_value(&settings).unwrap(),
            serde_json::json!({
                "cpuManagerPolicy": "static",
                "cpuManagerPolicyOptions": {"full-pcpus-only": true, "strict-cpu-reservation": false},
                "reservedSystemCPUs": "",
                "reservedCpuCount": 2,
                "memoryManagerPolicy": "Static",
                "reservedMemory": [{"numaNode": 1, "limits": {"memory": 1 << 30, "hugepages-2Mi": 4 << 20}}],
                "topologyManagerPolicy": "restricted",
                "topologyManagerScope": "pod",
                "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
            })
        );
        let file =
            ConfigFile::parse("reservedSystemCPUs: 0-1,4\nkubeReserved: {cpu: 9}\n", None).unwrap();
        let settings = Config::new(file, &EvictionFlags::default())
            .unwrap()
            .placement;
        assert!(!settings.is_active());
        assert_eq!(
            (
                settings.reserved_system_cpus.to_string(),
                settings.reserved_cpu_count
            ),
            ("0-1,4".into(), 3)
        );
    }
}
