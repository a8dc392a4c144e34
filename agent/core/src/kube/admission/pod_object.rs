//! A pod as admission sees it: the part that the node's decisions look at, and what only the API server asks about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::object_meta::{ObjectMeta, null_as_default};
use crate::kube::pod::{AnySource, Container, Pod, Resources};
use crate::kube::quantity::Quantity;
use crate::kube::resources::{self, ResourceList};

/// The operating system whose pods have no pod-level resources.
pub const WINDOWS: &str = "windows";

/// The resize policy that restarts the container.
pub const RESTART_CONTAINER: &str = "RestartContainer";

/// A pod. Both parts are read from the same document.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodObject {
    /// What the node's decisions look at: containers, resources, priority. Its metadata is not used: see
    /// [`MorePod::metadata`].
    pub pod: Pod,
    /// The rest.
    pub more: MorePod,
}

/// The fields of a pod that [`Pod`] lacks.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MorePod {
    /// Name, namespace, annotations and the like.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What was asked for.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: MoreSpec,
    /// What the cluster has recorded.
    #[serde(deserialize_with = "null_as_default")]
    pub status: MoreStatus,
}

/// The fields of `spec` that [`Pod`] lacks.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MoreSpec {
    /// Seconds after which the pod is ended; set, the pod is a terminating one.
    pub active_deadline_seconds: Option<i64>,
    /// Whether it may preempt pods of lower priority.
    pub preemption_policy: Option<String>,
    /// When its containers start again; empty for `Always`.
    #[serde(deserialize_with = "null_as_default")]
    pub restart_policy: String,
    /// The node that it runs on; empty: none so far.
    #[serde(deserialize_with = "null_as_default")]
    pub node_name: String,
    /// Which pods it wants to be near to, or far from.
    #[serde(deserialize_with = "null_as_default")]
    pub affinity: Affinity,
    /// Containers that were added to the running pod.
    #[serde(deserialize_with = "null_as_default")]
    pub ephemeral_containers: Vec<Container>,
    /// The operating system.
    #[serde(deserialize_with = "null_as_default")]
    pub os: Os,
    /// Claims for devices.
    #[serde(deserialize_with = "null_as_default")]
    pub resource_claims: Vec<Named>,
    /// Pod-level claims.
    #[serde(deserialize_with = "null_as_default")]
    pub resources: Claims,
    /// The same of containers, in their order.
    #[serde(deserialize_with = "null_as_default")]
    pub containers: Vec<MoreContainer>,
    /// The same of init containers, in their order.
    #[serde(deserialize_with = "null_as_default")]
    pub init_containers: Vec<MoreContainer>,
}

/// `os`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Os {
    /// `linux` or `windows`.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
}

/// Something of which only the name matters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Named {
    /// The name.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
}

/// The part of a container that [`Container`] lacks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MoreContainer {
    /// The claims of `resources`.
    #[serde(deserialize_with = "null_as_default")]
    pub resources: Claims,
    /// What a change of its resources needs.
    #[serde(deserialize_with = "null_as_default")]
    pub resize_policy: Vec<ResizePolicy>,
}

impl MoreContainer {
    /// Whether a resize restarts it.
    pub fn is_restarted(&self) -> bool {
        let mut policies = self.resize_policy.iter();
        policies.any(|policy| policy.restart_policy == RESTART_CONTAINER)
    }
}

/// One of a container's `resizePolicy`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResizePolicy {
    /// Of which resource.
    #[serde(deserialize_with = "null_as_default")]
    pub resource_name: String,
    /// `NotRequired` or `RestartContainer`.
    #[serde(deserialize_with = "null_as_default")]
    pub restart_policy: String,
}

/// `resources.claims`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Claims {
    /// Absent differs from empty only where claims are not allowed at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claims: Option<Vec<ClaimReference>>,
}

/// One of `resources.claims`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimReference {
    /// One of the pod's `resourceClaims`.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// One request of that claim; empty for all.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub request: String,
}

/// `affinity`, as far as other namespaces come into it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    /// Pods to be near to.
    #[serde(deserialize_with = "null_as_default")]
    pub pod_affinity: PodAffinity,
    /// Pods to be far from.
    #[serde(deserialize_with = "null_as_default")]
    pub pod_anti_affinity: PodAffinity,
}

/// `podAffinity` or `podAntiAffinity`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAffinity {
    /// Terms that have to hold.
    #[serde(deserialize_with = "null_as_default")]
    pub required_during_scheduling_ignored_during_execution: Vec<AffinityTerm>,
    /// Terms that are wished for.
    #[serde(deserialize_with = "null_as_default")]
    pub preferred_during_scheduling_ignored_during_execution: Vec<WeightedTerm>,
}

/// A wished-for term.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WeightedTerm {
    /// The term.
    #[serde(deserialize_with = "null_as_default")]
    pub pod_affinity_term: AffinityTerm,
}

/// A term of an affinity.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AffinityTerm {
    /// Namespaces by name.
    #[serde(deserialize_with = "null_as_default")]
    pub namespaces: Vec<String>,
    /// Namespaces by label; an empty selector is any.
    pub namespace_selector: Option<AnySource>,
}

/// The fields of `status` that [`Pod`] lacks.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MoreStatus {
    /// `Pending`, `Running`, `Succeeded` or `Failed`.
    #[serde(deserialize_with = "null_as_default")]
    pub phase: String,
    /// What the kubelet says about the containers.
    #[serde(deserialize_with = "null_as_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// The same of init containers.
    #[serde(deserialize_with = "null_as_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// What the pod as a whole has.
    pub resources: Option<Resources>,
    /// What the node has set aside for the pod as a whole, with its overhead.
    #[serde(deserialize_with = "null_as_default")]
    pub allocated_resources: ResourceList,
    /// What holds for the pod.
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
    /// The claim that stands for the pod's extended resources.
    pub extended_resource_claim_status: Option<ExtendedResourceClaimStatus>,
    /// Claims for devices that have some of the node's cpu or memory.
    #[serde(deserialize_with = "null_as_default")]
    pub node_allocatable_resource_claim_statuses: Vec<AnySource>,
}

/// One of `status.containerStatuses`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// The container.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// What it has.
    pub resources: Option<Resources>,
    /// What the node has set aside for it.
    #[serde(deserialize_with = "null_as_default")]
    pub allocated_resources: ResourceList,
    /// What it is doing.
    #[serde(deserialize_with = "null_as_default")]
    pub state: ContainerState,
}

/// `state` of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Present while it runs.
    pub running: Option<AnySource>,
}

/// One of `status.conditions`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// What the condition is about.
    #[serde(rename = "type", deserialize_with = "null_as_default")]
    pub kind: String,
    /// Why it has its value.
    #[serde(deserialize_with = "null_as_default")]
    pub reason: String,
}

/// `status.extendedResourceClaimStatus`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtendedResourceClaimStatus {
    /// The claim.
    #[serde(deserialize_with = "null_as_default")]
    pub resource_claim_name: String,
}

/// The decimal exponent of a thousandth: the API keeps nothing finer.
pub(super) const MILLI: i32 = -3;

/// Rounds every quantity up to a thousandth, away from zero.
pub fn round_to_milli(list: &mut ResourceList) {
    list.values_mut()
        .for_each(|quantity| quantity.round_up(MILLI));
}

impl Affinity {
    /// Whether a term looks at other namespaces.
    fn crosses_namespaces(&self) -> bool {
        [&self.pod_affinity, &self.pod_anti_affinity]
            .iter()
            .any(|affinity| {
                let wished = affinity
                    .preferred_during_scheduling_ignored_during_execution
                    .iter();
                affinity
                    .required_during_scheduling_ignored_during_execution
                    .iter()
                    .chain(wished.map(|wished| &wished.pod_affinity_term))
                    .any(|term| !term.namespaces.is_empty() || term.namespace_selector.is_some())
            })
    }
}

impl PodObject {
    /// The pod of a document that was read as both parts.
    pub fn new(pod: Pod, more: MorePod) -> Self {
        Self { pod, more }
    }

    /// `metadata`.
    pub fn meta(&self) -> &ObjectMeta {
        &self.more.metadata
    }

    /// Sets what the API sets by itself (`SetObjectDefaults_Pod`), as far as resources go.
    pub fn set_defaults(&mut self) {
        self.pod.set_defaults();
        let spec = &mut self.pod.spec;
        let containers = spec.containers.iter_mut().chain(&mut spec.init_containers);
        let containers = containers.chain(&mut self.more.spec.ephemeral_containers);
        let statuses = &mut self.more.status;
        let statuses = statuses
            .container_statuses
            .iter_mut()
            .chain(&mut statuses.init_container_statuses);
        let resources = containers
            .map(|container| &mut container.resources)
            .chain(&mut spec.resources);
        for resources in resources {
            round_to_milli(&mut resources.requests);
            round_to_milli(&mut resources.limits);
        }
        for status in statuses {
            round_to_milli(&mut status.allocated_resources);
            if let Some(resources) = &mut status.resources {
                round_to_milli(&mut resources.requests);
                round_to_milli(&mut resources.limits);
            }
        }
        round_to_milli(&mut spec.overhead);
    }

    /// The name of its priority class; empty if it has none.
    pub fn priority_class_name(&self) -> &str {
        self.pod
            .spec
            .priority_class_name
            .as_deref()
            .unwrap_or_default()
    }

    /// Whether it ends by itself after some time (`IsTerminating`).
    pub fn is_terminating(&self) -> bool {
        self.more
            .spec
            .active_deadline_seconds
            .is_some_and(|seconds| seconds >= 0)
    }

    /// Whether its affinity looks at other namespaces (`usesCrossNamespacePodAffinity`).
    pub fn crosses_namespaces(&self) -> bool {
        self.more.spec.affinity.crosses_namespaces()
    }

    /// [`MoreStatus::effective`].
    pub fn with_effective_resources(&self) -> std::borrow::Cow<'_, Pod> {
        self.more.status.effective(&self.pod)
    }
}

impl MoreStatus {
    /// Whether the node can never give what a resize asks for.
    pub fn is_resize_infeasible(&self) -> bool {
        let mut conditions = self.conditions.iter();
        let pending = conditions.find(|condition| condition.kind == "PodResizePending");
        pending.is_some_and(|condition| condition.reason == "Infeasible")
    }

    /// The pod with the larger of what its containers ask for and what they have, where the kubelet says what they have
    /// (`UseStatusResources`).
    pub fn effective<'pod>(&self, pod: &'pod Pod) -> std::borrow::Cow<'pod, Pod> {
        let statuses: BTreeMap<&str, &ContainerStatus> = self
            .container_statuses
            .iter()
            .chain(&self.init_container_statuses)
            .map(|status| (status.name.as_str(), status))
            .collect();
        if statuses.values().all(|status| status.resources.is_none()) {
            return std::borrow::Cow::Borrowed(pod);
        }
        let infeasible = self.is_resize_infeasible();
        let mut pod = pod.clone();
        let sidecars = pod
            .spec
            .init_containers
            .iter_mut()
            .filter(|container| container.is_sidecar());
        for container in pod.spec.containers.iter_mut().chain(sidecars) {
            let Some((status, actual)) = statuses
                .get(container.name.as_str())
                .and_then(|status| Some((status, status.resources.as_ref()?)))
            else {
                continue;
            };
            let asked = &mut container.resources;
            if infeasible {
                asked.requests.clear();
                asked.limits.clear();
            }
            resources::take_larger(&mut asked.requests, &actual.requests);
            resources::take_larger(&mut asked.requests, &status.allocated_resources);
            resources::take_larger(&mut asked.limits, &actual.limits);
        }
        std::borrow::Cow::Owned(pod)
    }

    /// The pod as the scheduler counts one on a node: as [`MoreStatus::effective`], and with the larger of what is
    /// asked for the pod as a whole and what it has. Quotas do not look at the latter.
    ///
    /// Source: `PodRequests` in `k8s.io/component-helpers/resource/helpers.go` of 1.36, with the options of
    /// `CalculateResource` in `pkg/scheduler/framework/types.go`. What the node has set aside has the overhead in it,
    /// and `PodRequests` adds it once more (kubernetes#139627): whoever counts it once takes a node for emptier than
    /// the scheduler does.
    pub fn as_scheduled<'pod>(&self, pod: &'pod Pod) -> std::borrow::Cow<'pod, Pod> {
        let mut pod = self.effective(pod);
        let is_of_pod = pod.pod_level_resources().is_some();
        let Some(has) = self.resources.as_ref().filter(|_| is_of_pod) else {
            return pod;
        };
        let infeasible = self.is_resize_infeasible();
        let asked = pod.to_mut().spec.resources.iter_mut();
        for (name, asked) in asked.flat_map(|of_pod| &mut of_pod.requests) {
            let allocated = self.allocated_resources.get(name);
            match has.requests.get(name).max(allocated) {
                Some(most) if infeasible || most > &*asked => asked.clone_from(most),
                None if infeasible => *asked = Quantity::default(),
                _ => {}
            }
        }
        pod
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kube::resources::{Scope, pod_requests};

    /// What the scheduler of 1.36 counts, by `PodRequests`.
    #[test]
    fn a_resize_of_the_pod_as_a_whole_is_counted_as_the_scheduler_counts_it() {
        let counted = |asked: &str, status: serde_json::Value| {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"overhead": {"cpu": "100m"}, "resources": {"requests": {"cpu": asked}},
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "10m", "memory": "1Gi"}}}]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let status: MoreStatus = serde_json::from_value(status).unwrap();
            let requests = pod_requests(&status.as_scheduled(&pod), Scope::ALL);
            assert_eq!(requests["memory"].canonical(), "1Gi");
            requests["cpu"].canonical()
        };
        let status = |has: &str, allocated: &str, reason: &str| {
            json!({"resources": {"requests": {"cpu": has}}, "allocatedResources": {"cpu": allocated, "memory": "1Gi"},
                "conditions": [{"type": "PodResizePending", "reason": reason}]})
        };
        // It never gets that.
        assert_eq!(counted("1000", status("2", "2", "Infeasible")), "2100m");
        // It has that from now on, or still has it.
        assert_eq!(counted("2", status("1", "1", "Deferred")), "2100m");
        assert_eq!(counted("1", status("2", "2", "Deferred")), "2100m");
        // What is set aside has the overhead in it, which comes once more.
        assert_eq!(counted("1", status("1", "1100m", "")), "1200m");
        // A kubelet that says nothing of it, as before 1.36.
        let silent = json!({"allocatedResources": {"cpu": "5"}});
        assert_eq!(counted("1", silent), "1100m");
        let infeasible = json!({"resources": {}, "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}]});
        assert_eq!(counted("1000", infeasible), "100m");
    }
}
