//! What the API server refuses in a pod's resources.
//!
//! A manifest that no API server has seen has to be checked here, else a request above its limit or half a huge page
//! would become a cgroup setting. Checked is a pod with defaults applied ([`Pod::set_defaults`]).
//!
//! Source: `pkg/apis/core/v1/validation/validation.go` (`ValidateContainerResourceRequirements`) and
//! `pkg/apis/core/validation/validation.go` (`validatePodResources`) of 1.36.

use std::fmt;

use super::field::FieldError;
use super::names::{is_extended, may_overcommit};
use super::resource_rules::{container_name_errors, pod_name_errors};
use crate::kube::pod::{Pod, Resources};
use crate::kube::quantity::Quantity;
use crate::kube::resources::{self, CPU, MEMORY, ResourceList, is_huge_pages, is_multiple_of_page};

/// One thing wrong with a pod's resources.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ResourceError {
    /// The field, in the API's notation, such as `spec.containers[0].resources.requests`.
    pub field: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What can be wrong. The texts say what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// A name that is neither one of Kubernetes' own nor of the form `domain/name`, and what the API server says of it.
    Name(String),
    /// Less than zero.
    Negative(Quantity),
    /// A fraction of something that comes in whole pieces.
    Fraction(Quantity),
    /// Not a whole number of pages.
    PartOfPage(Quantity),
    /// More requested than the limit allows.
    AboveLimit(String, Quantity, Quantity),
    /// Requested and limited differently, though the resource cannot be lent out.
    NotLimit(String, Quantity, Quantity),
    /// Requested without a limit, though the resource cannot be lent out.
    LimitMissing,
    /// Huge pages in a container with neither cpu nor memory.
    HugePagesAlone,
    /// The pod has less than its containers together.
    BelowContainers(Quantity, Quantity),
    /// A container has more than the pod.
    AbovePod(Quantity, Quantity),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(what) => {
                write!(
                    f,
                    "{what}: write cpu, memory, ephemeral-storage, hugepages-<size> or <domain>/<name>"
                )
            }
            Self::Negative(value) => write!(f, "{value} is negative: write 0 or more"),
            Self::Fraction(value) => write!(f, "{value} is not whole: write a whole number"),
            Self::PartOfPage(value) => {
                write!(f, "{value} is not a multiple of the page size: write one")
            }
            Self::AboveLimit(name, request, limit) => {
                write!(
                    f,
                    "{name} request {request} is above its limit: write at most {limit}"
                )
            }
            Self::NotLimit(name, request, limit) => {
                write!(
                    f,
                    "{name} request {request} differs from its limit: write {limit}"
                )
            }
            Self::LimitMissing => write!(
                f,
                "no limit, but the resource cannot be overcommitted: write one"
            ),
            Self::HugePagesAlone => write!(f, "huge pages alone: add a cpu or memory request"),
            Self::BelowContainers(amount, sum) => write!(
                f,
                "{amount} is less than the containers' sum: write at least {sum}"
            ),
            Self::AbovePod(amount, pod) => {
                write!(
                    f,
                    "{amount} is more than the pod may use: write at most {pod}"
                )
            }
        }
    }
}

/// Everything wrong with the resources of `pod`; empty if the API server would accept them.
pub fn validate(pod: &Pod) -> Vec<ResourceError> {
    let pod = &in_thousandths(pod);
    let mut errors = Errors(Vec::new());
    let lists = [
        ("containers", &pod.spec.containers),
        ("initContainers", &pod.spec.init_containers),
    ];
    for (list, containers) in lists {
        for (at, container) in containers.iter().enumerate() {
            errors.requirements(
                &format!("spec.{list}[{at}].resources"),
                &container.resources,
                container_name,
            );
        }
    }
    let overhead = Resources {
        limits: pod.spec.overhead.clone(),
        ..Resources::default()
    };
    errors.requirements("spec.overhead", &overhead, container_name);
    if let Some(level) = &pod.spec.resources {
        errors.requirements("spec.resources", level, pod_name);
        errors.consistency(pod, level);
    }
    errors.0
}

/// What is wrong with names of resources.
type NameErrors = fn(&str, &mut Vec<FieldError>);

fn container_name(name: &str, errors: &mut Vec<FieldError>) {
    container_name_errors(name, "", errors);
}

fn pod_name(name: &str, errors: &mut Vec<FieldError>) {
    pod_name_errors(name, "", errors);
}

fn is_whole(quantity: &Quantity) -> bool {
    quantity.nanos() % 1_000_000_000 == 0
}

/// The pod as the API server sees it: its own types have no quantity finer than a thousandth, so two containers of 500u
/// are 2m together (`Convert_v1_ResourceList_To_core_ResourceList`).
fn in_thousandths(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    let containers = pod
        .spec
        .containers
        .iter_mut()
        .chain(&mut pod.spec.init_containers);
    let resources = containers
        .map(|container| &mut container.resources)
        .chain(&mut pod.spec.resources);
    let lists = resources
        .flat_map(|resources| [&mut resources.requests, &mut resources.limits])
        .chain([&mut pod.spec.overhead]);
    lists
        .flat_map(|list| list.values_mut())
        .for_each(|quantity| quantity.round_up(-3));
    pod
}

struct Errors(Vec<ResourceError>);

impl Errors {
    fn add(&mut self, field: String, problem: Problem) {
        self.0.push(ResourceError { field, problem });
    }

    /// One container's resources, or the pod's own.
    fn requirements(&mut self, path: &str, resources: &Resources, name_errors: NameErrors) {
        let mut huge_pages = false;
        let mut cpu_or_memory = false;
        for (list_name, list) in [
            ("limits", &resources.limits),
            ("requests", &resources.requests),
        ] {
            for (name, quantity) in list {
                let field = format!("{path}.{list_name}[{name}]");
                let mut wrong = Vec::new();
                name_errors(name, &mut wrong);
                for error in wrong {
                    self.add(field.clone(), Problem::Name(error.body));
                }
                if quantity.sign() < 0 {
                    self.add(field.clone(), Problem::Negative(quantity.clone()));
                } else if is_extended(name) && !is_whole(quantity) {
                    self.add(field.clone(), Problem::Fraction(quantity.clone()));
                }
                if list_name == "requests" {
                    self.request(path, name, quantity, resources.limits.get(name));
                }
                if is_huge_pages(name) {
                    huge_pages = true;
                    if !is_multiple_of_page(name, quantity) {
                        self.add(field, Problem::PartOfPage(quantity.clone()));
                    }
                }
                cpu_or_memory |= matches!(name.as_str(), CPU | MEMORY);
            }
        }
        if huge_pages && !cpu_or_memory {
            self.add(path.to_owned(), Problem::HugePagesAlone);
        }
    }

    fn request(&mut self, path: &str, name: &str, request: &Quantity, limit: Option<&Quantity>) {
        let field = format!("{path}.requests");
        match limit {
            Some(limit) if !may_overcommit(name) && request != limit => {
                self.add(
                    field,
                    Problem::NotLimit(name.to_owned(), request.clone(), limit.clone()),
                );
            }
            Some(limit) if request > limit => {
                self.add(
                    field,
                    Problem::AboveLimit(name.to_owned(), request.clone(), limit.clone()),
                );
            }
            None if !may_overcommit(name) => {
                self.add(format!("{path}.limits"), Problem::LimitMissing)
            }
            _ => {}
        }
    }

    /// The pod's own resources against its containers'.
    fn consistency(&mut self, pod: &Pod, level: &Resources) {
        let mut below = |field: &str,
                         sums: &ResourceList,
                         pod_amounts: &ResourceList,
                         counts: fn(&str) -> bool| {
            for (name, sum) in sums.iter().filter(|(name, _)| counts(name)) {
                if let Some(pod_amounts) = pod_amounts
                    .get(name)
                    .filter(|pod_amounts| sum > *pod_amounts)
                {
                    self.add(
                        format!("spec.resources.{field}[{name}]"),
                        Problem::BelowContainers(pod_amounts.clone(), sum.clone()),
                    );
                }
            }
        };
        below(
            "requests",
            &resources::aggregate_container_requests(pod),
            &level.requests,
            // Also of what a pod cannot have as a whole.
            |_| true,
        );
        // Other limits may add up to more than the pod's: they are not all used at once.
        below(
            "limits",
            &resources::aggregate_container_limits(pod),
            &level.limits,
            is_huge_pages,
        );
        // Upstream does not compare init containers.
        for (at, container) in pod.spec.containers.iter().enumerate() {
            for (name, limit) in &container.resources.limits {
                if let Some(pod_limit) = level
                    .limits
                    .get(name)
                    .filter(|pod_limit| limit > *pod_limit)
                {
                    let field = format!("spec.resources.containers[{at}][{name}].limits");
                    self.add(field, Problem::AbovePod(limit.clone(), pod_limit.clone()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(spec: &str) -> Vec<String> {
        let pod: Pod = serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap();
        validate(&pod.with_defaults())
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// `IsNativeResource` looks for the domain anywhere in the name; `validateContainerResourceName` for what an
    /// extended resource may be called.
    #[test]
    fn a_name_with_a_domain_is_not_enough() {
        let of = |name: &str, amount: &str, list: &str| {
            errors(&format!(
                r#"{{"containers":[{{"name":"c","resources":{{"{list}":{{"{name}":"{amount}"}}}}}}]}}"#
            ))
        };
        assert_eq!(of("xkubernetes.io/foo", "1500m", "requests"), [""; 0]);
        for name in [
            "requests.example.com/gpu",
            "a/b/c",
            "UPPER.example.com/Gpu",
            "nvidia.com/",
        ] {
            // In limits, and in requests by default.
            let errors = of(name, "1", "limits");
            assert!(
                errors.len() >= 2 && errors.len() % 2 == 0,
                "{name}: {errors:?}"
            );
        }
        assert_eq!(of("nvidia.com/gpu", "1", "limits"), [""; 0]);
    }

    #[test]
    fn each_error_names_the_field_and_what_to_write() {
        for (resources, expected) in [
            (
                r#"{"limits":{"memory":"1Gi"},"requests":{"memory":"1Gi"}}"#,
                None,
            ),
            (
                r#"{"limits":{"cpu":1},"requests":{"cpu":"1500m"}}"#,
                Some("requests: cpu request 1500m is above its limit: write at most 1"),
            ),
            (
                r#"{"requests":{"memory":"-1"}}"#,
                Some("requests[memory]: -1 is negative"),
            ),
            (
                r#"{"requests":{"gpu":"1"}}"#,
                Some("must be a standard resource type or fully qualified: write cpu, memory"),
            ),
            (
                r#"{"requests":{"example.com/gpu":"1"}}"#,
                Some("limits: no limit"),
            ),
            (
                r#"{"limits":{"example.com/gpu":"500m"}}"#,
                Some("[example.com/gpu]: 500m is not whole"),
            ),
            (
                r#"{"limits":{"hugepages-2Mi":"2Mi"}}"#,
                Some("resources: huge pages alone"),
            ),
            (
                r#"{"limits":{"hugepages-2Mi":"3Mi","cpu":"1"}}"#,
                Some("resources.limits[hugepages-2Mi]: 3Mi is not a multiple"),
            ),
        ] {
            let errors = errors(&format!(
                r#"{{"containers":[{{"resources":{resources}}}]}}"#
            ));
            match expected {
                None => assert!(errors.is_empty(), "{resources}: {errors:?}"),
                Some(text) => assert!(
                    errors[0].starts_with("spec.containers[0].resources")
                        && errors[0].contains(text),
                    "{errors:?}"
                ),
            }
        }
    }

    /// As many errors as the API server counts: `ValidateQualifiedName` has two, and a container wants an extended
    /// name.
    #[test]
    fn a_malformed_name_has_an_error_for_each_rule() {
        let pod = r#"{"containers":[{"resources":{"limits":{"example.com/":"1"},"requests":{"example.com/":"1"}}}]}"#;
        let errors = errors(pod);
        assert_eq!(errors.len(), 6, "{errors:?}");
    }

    #[test]
    fn what_a_pod_cannot_have_as_a_whole_is_compared_with_its_containers() {
        let errors = errors(
            r#"{"containers":[{"resources":{"requests":{"cpu":"1","ephemeral-storage":"5Gi"}}}],
            "resources":{"requests":{"cpu":"1","ephemeral-storage":"1Gi"}}}"#,
        );
        let [unsupported, below] = &*errors else {
            panic!("{errors:?}");
        };
        assert!(unsupported.contains("Unsupported value"), "{unsupported}");
        assert!(
            below.ends_with("1Gi is less than the containers' sum: write at least 5Gi"),
            "{below}"
        );
    }

    #[test]
    fn a_sum_is_of_rounded_values() {
        let errors = errors(
            r#"{"containers":[{"resources":{"requests":{"cpu":"500u"}}},{"resources":{"requests":{"cpu":"500u"}}}],
            "resources":{"requests":{"cpu":"1m"}}}"#,
        );
        assert_eq!(
            errors,
            [
                "spec.resources.requests[cpu]: 1m is less than the containers' sum: write at least 2m"
            ]
        );
    }

    #[test]
    fn pod_and_containers_have_to_agree() {
        let errors = errors(
            r#"{"containers":[{"resources":{"requests":{"cpu":"2"},"limits":{"cpu":"4"}}}],
            "resources":{"requests":{"cpu":"1"},"limits":{"cpu":"3"}}}"#,
        );
        assert_eq!(
            errors,
            [
                "spec.resources.requests[cpu]: 1 is less than the containers' sum: write at least 2",
                "spec.resources.containers[0][cpu].limits: 4 is more than the pod may use: write at most 3",
            ]
        );
    }
}
