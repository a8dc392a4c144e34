//! The quality-of-service class of a pod.
//!
//! Only cpu and memory count, and zero counts as unset. Source: `pkg/apis/core/v1/helper/qos/qos.go` of 1.36.

use crate::kube::pod::{Pod, Resources};
use crate::kube::qos::QosClass;
use crate::kube::quantity::Quantity;
use crate::kube::resource_list::{CPU, MEMORY, ResourceList};

impl Pod {
    /// The QoS class: the recorded one, else computed (`qos.GetPodQOS`).
    pub fn qos_class(&self) -> QosClass {
        self.status.qos_class.unwrap_or_else(|| QosClass::of(self))
    }
}

impl QosClass {
    /// Computes the class from the spec, whatever the status says (`ComputePodQOS`).
    ///
    /// Pod-level resources, where present at all, decide alone: an empty `resources: {}` makes a pod BestEffort.
    pub fn of(pod: &Pod) -> Self {
        let mut sum = Sum::default();
        match &pod.spec.resources {
            Some(level) => sum.add(level),
            None => pod
                .all_containers()
                .for_each(|container| sum.add(&container.resources)),
        }
        sum.class()
    }
}

/// Totals of what is set above zero, for cpu and memory in this order.
#[derive(Default)]
struct Sum {
    requests: [Option<Quantity>; 2],
    limits: [Option<Quantity>; 2],
    /// Whether some container lacks a limit.
    limit_missing: bool,
}

impl Sum {
    fn add(&mut self, resources: &Resources) {
        for (at, name) in [CPU, MEMORY].into_iter().enumerate() {
            let positive =
                |list: &ResourceList| list.get(name).filter(|value| value.sign() > 0).cloned();
            if let Some(request) = positive(&resources.requests) {
                *self.requests[at].get_or_insert_default() += &request;
            }
            match positive(&resources.limits) {
                Some(limit) => *self.limits[at].get_or_insert_default() += &limit,
                None => self.limit_missing = true,
            }
        }
    }

    fn class(&self) -> QosClass {
        if self
            .requests
            .iter()
            .chain(&self.limits)
            .all(Option::is_none)
        {
            QosClass::BestEffort
        } else if !self.limit_missing && self.requests == self.limits {
            QosClass::Guaranteed
        } else {
            QosClass::Burstable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(spec: &str) -> QosClass {
        QosClass::of(&serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap())
    }

    #[test]
    fn classes_by_resources() {
        for (spec, expected) in [
            (r#"{"containers":[{"name":"c"}]}"#, QosClass::BestEffort),
            (
                r#"{"containers":[{"resources":{"requests":{"cpu":"0","memory":"0"}}}]}"#,
                QosClass::BestEffort,
            ),
            (
                r#"{"containers":[{"resources":{"limits":{"ephemeral-storage":"1Gi"}}}]}"#,
                QosClass::BestEffort,
            ),
            (
                r#"{"containers":[{"resources":{"requests":{"cpu":"1"}}}]}"#,
                QosClass::Burstable,
            ),
            (
                r#"{"containers":[{"resources":{"requests":{"cpu":"1","memory":"1Gi"},"limits":{"cpu":"1000m","memory":"1024Mi"}}}]}"#,
                QosClass::Guaranteed,
            ),
            (
                r#"{"containers":[{"resources":{"requests":{"cpu":"1","memory":"1Gi"},"limits":{"cpu":"1","memory":"1Gi"}}}],
                "initContainers":[{"name":"i"}]}"#,
                QosClass::Burstable,
            ),
            (
                r#"{"containers":[{"resources":{"requests":{"cpu":"1"}}}],"resources":{}}"#,
                QosClass::BestEffort,
            ),
        ] {
            assert_eq!(class(spec), expected, "{spec}");
        }
    }
}
