//! The `oom_score_adj` of a container's processes, by which the kernel's OOM killer chooses.
//!
//! The kernel adds a process's share of memory, in thousandths, to this value and kills the highest sum. Burstable
//! containers therefore get 1000 less the share they requested: a process at its request reaches 1000, one above it
//! more.
//!
//! Source: `pkg/kubelet/qos/policy.go` of 1.36.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::kube::pod::{Container, Pod};
use crate::kube::qos::QosClass;
use crate::kube::resources::{self, MEMORY};

/// Guaranteed and node-critical pods: the last to be killed, after the kubelet (-999).
pub const GUARANTEED_ADJ: i32 = -997;

/// BestEffort pods: the first to be killed.
pub const BEST_EFFORT_ADJ: i32 = 1000;

/// The lowest value of a Burstable container, so that one requesting everything is still killed before Guaranteed ones.
const BURSTABLE_ADJ_MIN: i32 = 1000 + GUARANTEED_ADJ;

/// Why a container has its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    tag = "rule",
    rename_all_fields = "camelCase"
)]
pub enum ScoreRule {
    /// The pod is critical and of the class `system-node-critical`.
    NodeCritical,
    /// The pod is Guaranteed.
    Guaranteed,
    /// The pod is BestEffort.
    BestEffort,
    /// The pod is Burstable: 1000 less the thousandths of the node's memory that the container requests.
    Burstable {
        /// What counts as the container's request, its share of a request of the whole pod included.
        request_bytes: i64,
        /// The container is a sidecar, and this is what the regular container that requests least has: it counts, being
        /// more.
        as_least_container: bool,
        /// The value without the bounds that keep it between the other classes.
        unbounded: i64,
    },
}

/// A value and its reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Score {
    /// What is written to `oom_score_adj`.
    pub adj: i32,
    /// Why.
    pub rule: ScoreRule,
}

/// The value for one container of `pod`, which has API defaults applied ([`Pod::set_defaults`]), on a node with
/// `memory_capacity_bytes` of memory.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity_bytes: NonZeroU64) -> i32 {
    score(pod, container, memory_capacity_bytes).adj
}

/// As [`oom_score_adj`], with the reason.
pub fn score(pod: &Pod, container: &Container, memory_capacity_bytes: NonZeroU64) -> Score {
    let fixed = |adj, rule| Score { adj, rule };
    if pod.is_node_critical() {
        return fixed(GUARANTEED_ADJ, ScoreRule::NodeCritical);
    }
    match pod.qos_class() {
        QosClass::Guaranteed => return fixed(GUARANTEED_ADJ, ScoreRule::Guaranteed),
        QosClass::BestEffort => return fixed(BEST_EFFORT_ADJ, ScoreRule::BestEffort),
        QosClass::Burstable => {}
    }
    let share = unclaimed_share_bytes(pod);
    let from_request = |request: i64| {
        let request = i128::from(request) + i128::from(share);
        1000 - 1000 * request / i128::from(memory_capacity_bytes.get())
    };
    let mut request_bytes = memory_request_bytes(container);
    let mut unbounded = from_request(request_bytes);
    let mut as_least_container = false;
    if is_sidecar_of(pod, container) {
        // A sidecar is killed no earlier than the regular container that requests least.
        let least = pod
            .spec
            .containers
            .iter()
            .map(memory_request_bytes)
            .min()
            .unwrap_or(0);
        if from_request(least) < unbounded {
            unbounded = from_request(least);
            request_bytes = least;
            as_least_container = true;
        }
    }
    // One below BestEffort: a Burstable pod is the better protected one. Values above it need a negative request.
    let adj = match i32::try_from(unbounded)
        .unwrap_or(BURSTABLE_ADJ_MIN)
        .max(BURSTABLE_ADJ_MIN)
    {
        BEST_EFFORT_ADJ => BEST_EFFORT_ADJ - 1,
        adj => adj,
    };
    let rule = ScoreRule::Burstable {
        request_bytes: request_bytes.saturating_add(share),
        as_least_container,
        unbounded: i64::try_from(unbounded).unwrap_or(i64::MIN),
    };
    Score { adj, rule }
}

fn memory_request_bytes(container: &Container) -> i64 {
    container.resources.request(MEMORY).value()
}

/// What the pod requests beyond its containers' sum, divided among all of them; negative where they request more.
fn unclaimed_share_bytes(pod: &Pod) -> i64 {
    let Some(pod_resources) = pod.pod_level_resources() else {
        return 0;
    };
    let request = pod_resources.request(MEMORY);
    let containers = i64::try_from(pod.all_containers().count()).unwrap_or(i64::MAX);
    if request.is_zero() || containers == 0 {
        return 0;
    }
    let claimed = resources::aggregate_container_requests(pod)
        .get(MEMORY)
        .map_or(0, |sum| sum.value());
    request.value().saturating_sub(claimed) / containers
}

fn is_sidecar_of(pod: &Pod, container: &Container) -> bool {
    container.is_sidecar()
        && pod
            .spec
            .init_containers
            .iter()
            .any(|init| init.name == container.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn adj(spec: &str, container: &str) -> i32 {
        let pod: Pod = serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap();
        let pod = pod.with_defaults();
        oom_score_adj(
            &pod,
            pod.container(container).unwrap(),
            NonZeroU64::new(30 * GIB).unwrap(),
        )
    }

    #[test]
    fn follows_the_documented_table() {
        assert_eq!(adj(r#"{"containers":[{"name":"c"}]}"#, "c"), 1000);
        assert_eq!(
            adj(
                r#"{"containers":[{"name":"c","resources":{"limits":{"cpu":"1","memory":"4Gi"}}}]}"#,
                "c"
            ),
            -997
        );
        assert_eq!(
            adj(
                r#"{"containers":[{"name":"c","resources":{"requests":{"memory":"4Gi"}}}]}"#,
                "c"
            ),
            867
        );
    }

    #[test]
    fn burstable_stays_between_guaranteed_and_best_effort() {
        assert_eq!(
            adj(
                r#"{"containers":[{"name":"c","resources":{"requests":{"memory":"1"}}}]}"#,
                "c"
            ),
            999
        );
        assert_eq!(
            adj(
                r#"{"containers":[{"name":"c","resources":{"requests":{"memory":"90Gi"}}}]}"#,
                "c"
            ),
            3
        );
        assert_eq!(
            adj(
                r#"{"containers":[{"name":"c","resources":{"requests":{"memory":"8E"}}}]}"#,
                "c"
            ),
            3
        );
    }

    #[test]
    fn node_critical_needs_priority_and_class() {
        let spec = |more: &str| {
            format!(r#"{{"containers":[{{"name":"c"}}],"priority":2000001000{more}}}"#)
        };
        assert_eq!(adj(&spec(""), "c"), 1000);
        assert_eq!(
            adj(&spec(r#","priorityClassName":"system-node-critical""#), "c"),
            -997
        );
    }

    #[test]
    fn a_sidecar_is_no_worse_than_the_smallest_container() {
        let spec = r#"{"containers":[{"name":"c","resources":{"requests":{"memory":"3Gi"}}}],
            "initContainers":[{"name":"s","restartPolicy":"Always"},{"name":"i"}]}"#;
        assert_eq!(adj(spec, "s"), 900);
        assert_eq!(adj(spec, "i"), 999);
        let pod: Pod = serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap();
        let capacity = NonZeroU64::new(30 * GIB).unwrap();
        let rule = |name| score(&pod, pod.container(name).unwrap(), capacity).rule;
        let expect = |request_gib: i64, as_least_container, unbounded| ScoreRule::Burstable {
            request_bytes: request_gib << 30,
            as_least_container,
            unbounded,
        };
        assert_eq!(rule("s"), expect(3, true, 900));
        assert_eq!(rule("c"), expect(3, false, 900));
        assert_eq!(rule("i"), expect(0, false, 1000));
    }

    #[test]
    fn what_the_pod_requests_beyond_its_containers_is_shared() {
        let spec = r#"{"containers":[{"name":"a","resources":{"requests":{"memory":"3Gi"}}},{"name":"b"}],
            "resources":{"requests":{"memory":"9Gi"}}}"#;
        assert_eq!(adj(spec, "a"), 800);
        assert_eq!(adj(spec, "b"), 900);
    }
}
