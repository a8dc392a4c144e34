//! What LimitRanges have set in a pod, and what that means for who is evicted and killed first.
//!
//! The API server notes it in an annotation (`plugin/pkg/admission/limitranger` of 1.36), which names containers and
//! resources, and no LimitRange. So does the agent where it admits pods by itself. What the pod would be without is
//! computed by the rules that decide about it.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::kube::admission::limit_range::ANNOTATION;
use crate::kube::admission::object::LimitRange;
use crate::kube::pod::{Container, Pod, Resources};
use crate::kube::qos::QosClass;
use crate::kube::quantity::Quantity;
use crate::kube::resources::{MEMORY, eviction_request};
use crate::policy::oom::score::oom_score_adj;

/// What the annotation begins with.
const PREFIX: &str = "LimitRanger plugin set: ";

/// What LimitRanges have set in a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitDefaults {
    /// Each value, in the annotation's order.
    pub set: Vec<LimitDefault>,
    /// The pod's class without them.
    pub qos_class_without: QosClass,
    /// Its request of memory, bytes: usage above it puts a pod forward for eviction.
    pub memory_request_bytes: i64,
    /// The same without them.
    pub memory_request_bytes_without: i64,
    /// The kubelet's `oom_score_adj` of its containers; empty while the node's memory is not known.
    pub scores: Vec<ScoreChange>,
}

/// A value that a LimitRange has set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitDefault {
    /// In which container.
    pub container: String,
    /// Whether it is a limit; else a request.
    pub is_limit: bool,
    /// Of which resource.
    pub resource: String,
    /// How much.
    pub amount: Quantity,
    /// The LimitRanges of the namespace that would set the same now; `None` where these are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranges: Option<Vec<String>>,
}

/// A container's `oom_score_adj`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScoreChange {
    /// Which container.
    pub container: String,
    /// With what LimitRanges have set.
    pub adj: i32,
    /// Without.
    pub adj_without: i32,
}

impl LimitDefaults {
    /// Names the LimitRanges that would set each value. These are all of the pod's namespace, with the API's defaults.
    pub fn name_ranges(&mut self, ranges: &[&LimitRange]) {
        let defaults: Vec<(&str, Resources)> = ranges
            .iter()
            .map(|range| (range.metadata.name.as_str(), range.container_defaults()))
            .collect();
        for set in &mut self.set {
            let sets = |defaults: &Resources| {
                let list = match set.is_limit {
                    true => &defaults.limits,
                    false => &defaults.requests,
                };
                list.get(&set.resource) == Some(&set.amount)
            };
            let same = defaults.iter().filter(|(_, defaults)| sets(defaults));
            set.ranges = Some(same.map(|(name, _)| (*name).to_owned()).collect());
        }
    }

    /// What the annotation says; `None` where it is missing, or says nothing that is in the pod.
    pub fn of(pod: &Pod, memory_capacity_bytes: Option<u64>) -> Option<Self> {
        let text = pod.metadata.annotations.get(ANNOTATION)?;
        let mut without = pod.clone();
        // The class that the API server has recorded is that of the whole pod.
        without.status.qos_class = None;
        let mut set = Vec::new();
        for (resources, is_limit, name) in text.strip_prefix(PREFIX)?.split("; ").filter_map(read) {
            let spec = &mut without.spec;
            let mut all = spec.containers.iter_mut().chain(&mut spec.init_containers);
            let Some(container) = all.find(|container| container.name == name) else {
                continue;
            };
            let list = match is_limit {
                true => &mut container.resources.limits,
                false => &mut container.resources.requests,
            };
            for resource in resources.split(", ") {
                if let Some(amount) = list.remove(resource) {
                    set.push(LimitDefault {
                        container: name.to_owned(),
                        is_limit,
                        resource: resource.to_owned(),
                        amount,
                        ranges: None,
                    });
                }
            }
        }
        if set.is_empty() {
            return None;
        }
        let capacity = memory_capacity_bytes.and_then(NonZeroU64::new);
        let score = |(container, bare): (&Container, &Container)| {
            capacity.map(|capacity| ScoreChange {
                container: container.name.clone(),
                adj: oom_score_adj(pod, container, capacity),
                adj_without: oom_score_adj(&without, bare, capacity),
            })
        };
        let containers = pod.all_containers().zip(without.all_containers());
        Some(Self {
            scores: containers.filter_map(score).collect(),
            set,
            qos_class_without: without.qos_class(),
            memory_request_bytes: eviction_request(pod, MEMORY).value(),
            memory_request_bytes_without: eviction_request(&without, MEMORY).value(),
        })
    }
}

/// Resources, whether they are limits, and the container, of one part of the annotation:
/// `cpu, memory request for container app`.
fn read(part: &str) -> Option<(&str, bool, &str)> {
    let (resources, is_limit, rest) = match part.split_once(" request for ") {
        Some((resources, rest)) => (resources, false, rest),
        None => {
            let (resources, rest) = part.split_once(" limit for ")?;
            (resources, true, rest)
        }
    };
    let rest = rest.strip_prefix("init ").unwrap_or(rest);
    Some((resources, is_limit, rest.strip_prefix("container ")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn pod(annotation: &str, containers: &str) -> Pod {
        let json = format!(
            r#"{{"metadata":{{"name":"p","annotations":{{"{ANNOTATION}":"{annotation}"}}}},"spec":{{"containers":[{containers}]}},"status":{{"qosClass":"Burstable"}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn a_pod_that_would_be_best_effort() {
        let annotation = "LimitRanger plugin set: cpu, memory request for container a; memory limit for container a";
        let containers = r#"{"name":"a","resources":{"requests":{"cpu":"100m","memory":"512Mi"},"limits":{"memory":"512Mi"}}}"#;
        let defaults = LimitDefaults::of(&pod(annotation, containers), Some(GIB)).unwrap();
        let set: Vec<String> = defaults
            .set
            .iter()
            .map(|it| {
                format!(
                    "{} {} {}={}",
                    it.container, it.is_limit, it.resource, it.amount
                )
            })
            .collect();
        assert_eq!(
            set,
            [
                "a false cpu=100m",
                "a false memory=512Mi",
                "a true memory=512Mi"
            ]
        );
        assert_eq!(defaults.qos_class_without, QosClass::BestEffort);
        assert_eq!(
            (
                defaults.memory_request_bytes,
                defaults.memory_request_bytes_without
            ),
            (512 << 20, 0)
        );
        let score = &defaults.scores[0];
        assert_eq!((score.adj, score.adj_without), (500, 1000));
    }

    #[test]
    fn what_the_pod_set_by_itself_stays() {
        let annotation =
            "LimitRanger plugin set: cpu limit for container b; cpu request for init container i";
        let containers = r#"{"name":"a"},{"name":"b","resources":{"requests":{"memory":"1Gi"},"limits":{"cpu":"1"}}}"#;
        let defaults = LimitDefaults::of(&pod(annotation, containers), None).unwrap();
        assert_eq!(defaults.set.len(), 1, "no such init container");
        assert_eq!(defaults.qos_class_without, QosClass::Burstable);
        assert_eq!(defaults.memory_request_bytes_without, 1 << 30);
        assert_eq!(defaults.scores, []);
    }

    #[test]
    fn other_texts_say_nothing() {
        let containers = r#"{"name":"a","resources":{"limits":{"cpu":"1"}}}"#;
        for annotation in [
            "",
            "LimitRanger plugin set: ",
            "LimitRanger plugin set: cpu limit for a",
            "LimitRanger plugin set: memory limit for container a",
            "cpu limit for container a",
        ] {
            assert_eq!(LimitDefaults::of(&pod(annotation, containers), None), None);
        }
    }
}
