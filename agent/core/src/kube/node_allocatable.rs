//! What of the node pods may have: capacity minus what is reserved for the system.
//!
//! Problem: three answers differ. What the scheduler may hand out leaves room for the hard eviction thresholds; what
//! the cgroup of all pods is limited to does not, because pods are evicted before they reach it; and what is reserved
//! must fit the node. Approach: [`NodeResources`] holds the operator's lists as they are; each answer is one function
//! on it.
//!
//! Only resources that the node has count: a reservation of `pid` takes part where capacity has `pid`, that is for the
//! cgroup and not for the node's status. In the status, huge pages are taken from memory last, since they cannot be
//! used as anything else.
//!
//! Source: `pkg/kubelet/cm/node_container_manager_linux.go`, `hardEvictionReservation` of `pkg/kubelet/cm/helpers.go`,
//! `pkg/kubelet/nodestatus/setters.go` (`MachineInfo`) of 1.36.

use thiserror::Error;

use crate::kube::cgroup_config::{self, CgroupConfig};
use crate::kube::quantity::{Format, Quantity};
use crate::kube::resources::{self, CPU, MEMORY, ResourceList};

/// Resource name of process ids; only in reservations and in the capacity that cgroups are limited by.
pub const PID: &str = "pid";

/// A node and what is reserved on it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeResources {
    /// All that the node has.
    pub capacity: ResourceList,
    /// `kubeReserved`: for the kubelet and the container runtime.
    pub kube_reserved: ResourceList,
    /// `systemReserved`: for the rest of the system.
    pub system_reserved: ResourceList,
    /// What `evictionHard` keeps free, from [`eviction_reservation`](crate::model::threshold::eviction_reservation).
    pub eviction_hard: ResourceList,
}

/// More is reserved than the node has.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "kubeReserved, systemReserved and evictionHard: {resource}: {reserved} are reserved, but the node has only {capacity}: reserve less"
)]
pub struct OverReserved {
    /// The resource.
    pub resource: String,
    /// What is reserved of it.
    pub reserved: String,
    /// What the node has of it.
    pub capacity: String,
}

impl NodeResources {
    /// What is reserved of each resource, hard eviction thresholds included; resources of which nothing is are left out
    /// (`GetNodeAllocatableReservation`).
    pub fn reservation(&self) -> ResourceList {
        let mut reservation = ResourceList::new();
        for name in self.capacity.keys() {
            let mut sum = Quantity::zero(Format::DecimalSI);
            for list in [
                &self.system_reserved,
                &self.kube_reserved,
                &self.eviction_hard,
            ] {
                if let Some(reserved) = list.get(name) {
                    sum += reserved;
                }
            }
            if !sum.is_zero() {
                reservation.insert(name.clone(), sum);
            }
        }
        reservation
    }

    /// What the node's status offers to the scheduler, never below zero.
    pub fn allocatable(&self) -> ResourceList {
        let reservation = self.reservation();
        let mut allocatable = self.without(&[&reservation]);
        let huge_pages = self.capacity.iter();
        for (_, bytes) in huge_pages.filter(|(name, _)| resources::is_huge_pages(name)) {
            // Upstream reads a capacity without memory as 0.
            let memory = allocatable.entry(MEMORY.to_owned()).or_default();
            *memory -= bytes;
            floor(memory);
        }
        allocatable
    }

    /// What the cgroup of all pods is limited to: no part of it is kept for eviction, and pods' huge pages are counted
    /// beside memory by the kernel too (`getNodeAllocatableAbsoluteImpl`).
    pub fn allocatable_absolute(&self) -> ResourceList {
        self.without(&[&self.system_reserved, &self.kube_reserved])
    }

    /// Capacity minus these, never below zero.
    fn without(&self, reservations: &[&ResourceList]) -> ResourceList {
        let mut left = self.capacity.clone();
        for (name, value) in &mut left {
            for reserved in reservations.iter().filter_map(|list| list.get(name)) {
                *value -= reserved;
            }
            floor(value);
        }
        left
    }

    /// Whether the node has what is reserved (`validateNodeAllocatable`).
    ///
    /// # Errors
    /// One [`OverReserved`] for each resource, by name.
    pub fn validate(&self) -> Result<(), Vec<OverReserved>> {
        let errors: Vec<OverReserved> = self
            .reservation()
            .into_iter()
            .filter(|(name, reserved)| self.capacity.get(name).is_none_or(|have| reserved > have))
            .map(|(name, reserved)| OverReserved {
                capacity: self
                    .capacity
                    .get(&name)
                    .cloned()
                    .unwrap_or_default()
                    .canonical(),
                resource: name,
                reserved: reserved.canonical(),
            })
            .collect();
        if errors.is_empty() {
            Ok(())
        } else {
            Err(errors)
        }
    }
}

fn floor(value: &mut Quantity) {
    if value.sign() < 0 {
        *value = Quantity::zero(value.format());
    }
}

/// How much of a list a cgroup is limited to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limited {
    /// Everything.
    All,
    /// Only what a process can wait for: CPU.
    Compressible,
}

/// A cgroup that may have these resources: kubepods, or the cgroup that a reservation is enforced on
/// (`getCgroupConfig`).
pub fn cgroup_config(list: &ResourceList, limited: Limited) -> CgroupConfig {
    let mut config = CgroupConfig::default();
    if let Some(cpu) = list.get(CPU) {
        config.set_shares(cgroup_config::milli_cpu_to_shares(cpu.milli_value()));
    }
    if limited == Limited::All {
        config.memory_max_bytes = list.get(MEMORY).map(Quantity::value);
        config.pids_max = list
            .get(PID)
            .map(|pids| u64::try_from(pids.value()).unwrap_or(0));
        config.huge_pages_max_bytes = cgroup_config::huge_pages_max_bytes(list);
    }
    config
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::threshold::{ThresholdSettings, eviction_reservation, parse};

    fn list(entries: &[(&str, &str)]) -> ResourceList {
        entries
            .iter()
            .map(|(name, text)| ((*name).to_owned(), text.parse().unwrap()))
            .collect()
    }

    fn eviction_of(hard: &BTreeMap<String, String>, capacity: &ResourceList) -> ResourceList {
        let settings = ThresholdSettings {
            hard: hard.clone(),
            ..ThresholdSettings::default()
        };
        eviction_reservation(&parse(&settings).unwrap(), hard, capacity)
    }

    fn node() -> NodeResources {
        let capacity = list(&[
            ("cpu", "4"),
            ("memory", "8Gi"),
            ("hugepages-2Mi", "1Gi"),
            ("pid", "32768"),
        ]);
        let hard = BTreeMap::from([
            ("memory.available".to_owned(), "25%".to_owned()),
            ("nodefs.available".to_owned(), "10%".to_owned()),
            ("pid.available".to_owned(), "10%".to_owned()),
        ]);
        NodeResources {
            eviction_hard: eviction_of(&hard, &capacity),
            capacity,
            kube_reserved: list(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "1000")]),
            system_reserved: list(&[("pid", "768"), ("ephemeral-storage", "1Gi")]),
        }
    }

    #[test]
    fn the_status_keeps_room_for_eviction_and_huge_pages_and_the_cgroup_does_not() {
        let node = node();
        assert_eq!(
            node.reservation(),
            list(&[("cpu", "500m"), ("memory", "3Gi"), ("pid", "1768")])
        );
        assert_eq!(
            node.allocatable()["memory"],
            list(&[("memory", "4Gi")])["memory"]
        );
        let config = cgroup_config(&node.allocatable_absolute(), Limited::All);
        assert_eq!(
            (config.cpu_shares, config.memory_max_bytes, config.pids_max),
            (Some(3584), Some(7 << 30), Some(31_000))
        );
        assert_eq!(
            config.huge_pages_max_bytes,
            BTreeMap::from([(2 << 20, 1 << 30)])
        );
        let config = cgroup_config(&node.allocatable_absolute(), Limited::Compressible);
        assert_eq!(
            (config.cpu_weight, config.memory_max_bytes),
            (Some(272), None)
        );
    }

    #[test]
    fn huge_pages_are_taken_off_memory_that_is_not_there() {
        let mut node = node();
        node.capacity = list(&[("cpu", "1"), ("hugepages-2Mi", "2Mi")]);
        assert!(node.allocatable()["memory"].is_zero());
    }

    #[test]
    fn an_eviction_threshold_counts_as_it_is_written() {
        let capacity = list(&[("memory", "1Gi")]);
        let hard = BTreeMap::from([("memory.available".to_owned(), "100.5m".to_owned())]);
        assert_eq!(
            eviction_of(&hard, &capacity)["memory"],
            list(&[("memory", "100500u")])["memory"]
        );
    }

    #[test]
    fn reserving_more_than_there_is_leaves_nothing_and_is_named() {
        let mut node = node();
        node.kube_reserved = list(&[("cpu", "5"), ("memory", "7Gi")]);
        assert!(node.allocatable_absolute()["cpu"].is_zero());
        assert!(node.allocatable()["memory"].is_zero());
        let resources: Vec<String> = node
            .validate()
            .unwrap_err()
            .into_iter()
            .map(|error| error.resource)
            .collect();
        assert_eq!(resources, ["cpu", "memory"]);
    }
}
