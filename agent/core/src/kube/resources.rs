//! What a pod as a whole requests and is limited to.
//!
//! The pod runs its regular containers and sidecars together, but before them its init containers one by one, each
//! beside the sidecars started so far. Its need is the larger of both. Pod-level values replace the sum; overhead comes
//! on top.
//!
//! Source: `k8s.io/component-helpers/resource/helpers.go` and `pkg/api/v1/resource/helpers.go` of 1.36.

use crate::kube::pod::{Container, Pod, Resources};
use crate::kube::quantity::{Format, Quantity};

pub use crate::kube::resource_list::{
    CPU, EPHEMERAL_STORAGE, HUGE_PAGES_PREFIX, MEMORY, ResourceList, is_huge_pages,
    is_multiple_of_page, is_pod_level_resource,
};

/// Which parts of a pod a total includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// The containers' own values.
    pub containers: bool,
    /// Pod-level values; they replace what the containers add up to.
    pub pod_level: bool,
    /// The sandbox's overhead.
    pub overhead: bool,
}

impl Scope {
    /// Everything: what is scheduled, counted against quotas and written to the pod's cgroup.
    pub const ALL: Self = Self {
        containers: true,
        pod_level: true,
        overhead: true,
    };
}

fn add(sum: &mut ResourceList, other: &ResourceList) {
    for (name, quantity) in other {
        match sum.get_mut(name) {
            Some(value) => *value += quantity,
            None => {
                sum.insert(name.clone(), quantity.clone());
            }
        }
    }
}

/// Raises each quantity to the other list's, where that is larger (`maxResourceList`).
pub(crate) fn take_larger(largest: &mut ResourceList, other: &ResourceList) {
    for (name, quantity) in other {
        match largest.get_mut(name) {
            Some(value) if quantity > value => *value = quantity.compared_with(value),
            Some(_) => {}
            None => {
                largest.insert(name.clone(), quantity.clone());
            }
        }
    }
}

fn aggregate(pod: &Pod, list: impl Fn(&Container) -> &ResourceList) -> ResourceList {
    let mut running = ResourceList::new();
    for container in &pod.spec.containers {
        add(&mut running, list(container));
    }
    let mut sidecars = ResourceList::new();
    let mut starting = ResourceList::new();
    for container in &pod.spec.init_containers {
        if container.is_sidecar() {
            add(&mut running, list(container));
            add(&mut sidecars, list(container));
            take_larger(&mut starting, &sidecars);
        } else {
            let mut step = list(container).clone();
            add(&mut step, &sidecars);
            take_larger(&mut starting, &step);
        }
    }
    take_larger(&mut running, &starting);
    running
}

/// What the containers request together (`AggregateContainerRequests`).
pub fn aggregate_container_requests(pod: &Pod) -> ResourceList {
    aggregate(pod, |container| &container.resources.requests)
}

/// What the containers are limited to together (`AggregateContainerLimits`). A container without a limit counts
/// nothing.
pub fn aggregate_container_limits(pod: &Pod) -> ResourceList {
    aggregate(pod, |container| &container.resources.limits)
}

impl Pod {
    /// Pod-level resources, if any that the pod level supports is set (`IsPodLevelResourcesSet`).
    pub fn pod_level_resources(&self) -> Option<&Resources> {
        self.spec.resources.as_ref().filter(|resources| {
            resources
                .requests
                .keys()
                .chain(resources.limits.keys())
                .any(|name| is_pod_level_resource(name))
        })
    }

    /// Fills in the requests that the API server would (`SetDefaults_Pod`): the limit where a container or, by the
    /// rules of pod-level resources, the pod has none. Applying it twice changes nothing more.
    pub fn set_defaults(&mut self) {
        for container in self
            .spec
            .containers
            .iter_mut()
            .chain(&mut self.spec.init_containers)
        {
            for (name, limit) in &container.resources.limits {
                if !container.resources.requests.contains_key(name) {
                    container
                        .resources
                        .requests
                        .insert(name.clone(), limit.clone());
                }
            }
        }
        let Some(mut resources) = self.spec.resources.take() else {
            return;
        };
        if resources.requests.is_empty() && resources.limits.is_empty() {
            self.spec.resources = Some(resources);
            return;
        }
        let requests = aggregate_container_requests(self);
        let limits = aggregate_container_limits(self);
        for (name, limit) in &limits {
            if is_huge_pages(name)
                && !resources.requests.contains_key(name)
                && !resources.limits.contains_key(name)
            {
                resources.limits.insert(name.clone(), limit.clone());
            }
        }
        if !resources.limits.is_empty() {
            for (name, request) in &requests {
                if matches!(name.as_str(), CPU | MEMORY) && !resources.requests.contains_key(name) {
                    resources.requests.insert(name.clone(), request.clone());
                }
            }
            for (name, limit) in &resources.limits {
                if is_pod_level_resource(name) && !resources.requests.contains_key(name) {
                    resources.requests.insert(name.clone(), limit.clone());
                }
            }
        }
        self.spec.resources = Some(resources);
    }

    /// The pod with [`Self::set_defaults`] applied.
    #[must_use]
    pub fn with_defaults(mut self) -> Self {
        self.set_defaults();
        self
    }
}

fn replace_by_pod_level(total: &mut ResourceList, pod_level: &ResourceList) {
    for (name, quantity) in pod_level {
        if is_pod_level_resource(name) {
            total.insert(name.clone(), quantity.clone());
        }
    }
}

/// What the pod requests (`PodRequests`).
pub fn pod_requests(pod: &Pod, scope: Scope) -> ResourceList {
    let mut total = if scope.containers {
        aggregate_container_requests(pod)
    } else {
        ResourceList::new()
    };
    if scope.pod_level
        && let Some(pod_level) = pod.pod_level_resources()
    {
        replace_by_pod_level(&mut total, &pod_level.requests);
    }
    if scope.overhead {
        add(&mut total, &pod.spec.overhead);
    }
    total
}

/// What the pod is limited to (`PodLimits`). Overhead only raises limits that exist and are not zero.
pub fn pod_limits(pod: &Pod, scope: Scope) -> ResourceList {
    let mut total = if scope.containers {
        aggregate_container_limits(pod)
    } else {
        ResourceList::new()
    };
    if scope.pod_level
        && let Some(pod_level) = pod.pod_level_resources()
    {
        replace_by_pod_level(&mut total, &pod_level.limits);
    }
    if scope.overhead {
        for (name, quantity) in &pod.spec.overhead {
            if let Some(limit) = total.get_mut(name).filter(|limit| !limit.is_zero()) {
                *limit += quantity;
            }
        }
    }
    total
}

/// The request that eviction compares usage with (`GetResourceRequestQuantity`).
///
/// Differs from [`pod_requests`] in two ways: pod-level resources hide the containers' also for resources the pod level
/// does not set, and overhead is added only to a request that is not zero.
pub fn eviction_request(pod: &Pod, name: &str) -> Quantity {
    let scope = Scope {
        containers: pod.pod_level_resources().is_none(),
        pod_level: true,
        overhead: false,
    };
    let mut request = Quantity::zero(match name {
        MEMORY | EPHEMERAL_STORAGE | "storage" => Format::BinarySI,
        _ => Format::DecimalSI,
    });
    if let Some(pod_request) = pod_requests(pod, scope).get(name) {
        request += pod_request;
    }
    if let Some(overhead) = pod.spec.overhead.get(name)
        && !request.is_zero()
    {
        request += overhead;
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: &str) -> Pod {
        serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap()
    }

    const SIDECARS: &str = r#"
        "containers":[{"resources":{"requests":{"memory":"10"}}}],
        "initContainers":[
            {"resources":{"requests":{"memory":"2"}},"restartPolicy":"Always"},
            {"resources":{"requests":{"memory":"100"}}},
            {"resources":{"requests":{"memory":"50"}},"restartPolicy":"Always"}]"#;

    #[test]
    fn the_larger_of_starting_and_running_counts() {
        let pod = pod(&format!("{{{SIDECARS}}}"));
        // Starting: 100 beside the sidecar of 2. Running: 10 + 2 + 50.
        assert_eq!(aggregate_container_requests(&pod)[MEMORY].value(), 102);
    }

    #[test]
    fn overhead_is_added_by_different_rules() {
        let pod = pod(
            r#"{"containers":[{"resources":{"limits":{"cpu":"1"}}}],"overhead":{"cpu":"1","memory":"5"}}"#,
        );
        assert_eq!(pod_requests(&pod, Scope::ALL)[MEMORY].value(), 5);
        assert_eq!(eviction_request(&pod, MEMORY).value(), 0);
        let limits = pod_limits(&pod, Scope::ALL);
        assert_eq!(limits[CPU].value(), 2);
        assert!(!limits.contains_key(MEMORY));
    }

    #[test]
    fn pages_are_counted_in_whole_bytes() {
        for (name, amount, expected) in [
            ("hugepages-2Mi", "4Mi", true),
            ("hugepages-2Mi", "3Mi", false),
            // Rounded up to 2097152 and 2097153.
            ("hugepages-2Mi", "2097151500m", true),
            ("hugepages-2Mi", "2097152001m", false),
            ("hugepages-2Mi", "0", true),
            ("hugepages-1500m", "3", false),
            ("hugepages-999999999n", "3", true),
            ("hugepages-0", "0", false),
            ("hugepages--2Mi", "2Mi", false),
            ("hugepages-x", "2Mi", false),
            ("hugepages-10E", "0", false),
        ] {
            let quantity = Quantity::parse(amount).unwrap();
            let is_multiple = is_multiple_of_page(name, &quantity);
            assert_eq!(is_multiple, expected, "{amount} of {name}");
        }
    }

    #[test]
    fn pod_level_values_hide_the_containers_from_eviction() {
        let pod = pod(&format!(
            r#"{{{SIDECARS},"resources":{{"requests":{{"cpu":"1"}}}}}}"#
        ));
        assert_eq!(eviction_request(&pod, MEMORY).value(), 0);
        assert_eq!(pod_requests(&pod, Scope::ALL)[MEMORY].value(), 102);
    }
}
