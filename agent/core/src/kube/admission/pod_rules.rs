//! What the API refuses in a pod, as far as names, resources and priority go.
//!
//! Source: `ValidatePodCreate`, `ValidatePodUpdate` and `ValidatePodResize` in `pkg/apis/core/validation/validation.go`
//! and the strategies in `pkg/registry/core/pod` of 1.36. Resize policies are part of resources. Not checked:
//! everything else in a pod.

use super::field::{FieldError, json_text, quoted};
use super::names;
use super::object_meta::Scope;
use super::pod_object::{
    ClaimReference, MoreContainer, MoreSpec, PodObject, RESTART_CONTAINER, ResizePolicy, WINDOWS,
};
use super::resource_rules::{self, Options, Owner};
use crate::kube::pod::{CONFIG_MIRROR_ANNOTATION, Container, Resources};
use crate::kube::qos::QosClass;
use crate::kube::resources::{self, CPU, MEMORY, ResourceList, is_huge_pages, is_multiple_of_page};

/// The policies that a pod may have.
const PREEMPTION_POLICIES: [&str; 2] = [super::object::PREEMPT_LOWER_PRIORITY, "Never"];

/// What is wrong with a preemption policy.
pub fn preemption_policy_errors(policy: &str, path: &str, errors: &mut Vec<FieldError>) {
    if policy.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !PREEMPTION_POLICIES.contains(&policy) {
        errors.push(FieldError::not_supported(
            path,
            &json_text(policy),
            &PREEMPTION_POLICIES,
        ));
    }
}

/// Everything wrong with a new pod that has its defaults and its name.
pub fn create_errors(pod: &PodObject) -> Vec<FieldError> {
    let mut errors = pod.meta().create_errors(Scope::Namespaced);
    spec_errors(pod, Kept::default(), &mut errors);
    if !pod.more.spec.ephemeral_containers.is_empty() {
        errors.push(FieldError::forbidden(
            "spec.ephemeralContainers",
            "cannot be set on create",
        ));
    }
    errors
}

/// What a pod may keep that a new one may not have: the API has refused it only since some version.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    parts_of_huge_pages: bool,
    /// An init container that is no sidecar and is restarted by a resize.
    restarted_init_containers: bool,
}

impl Kept {
    fn of(old: &PodObject) -> Self {
        let init = old.pod.spec.init_containers.iter();
        let mut init = init.zip(&old.more.spec.init_containers);
        Self {
            parts_of_huge_pages: has_parts_of_huge_pages(old),
            restarted_init_containers: init
                .any(|(container, more)| !container.is_sidecar() && more.is_restarted()),
        }
    }
}

/// Names, resources and priority of a pod, and that it has a node if it is the mirror of a static one.
fn spec_errors(pod: &PodObject, kept: Kept, errors: &mut Vec<FieldError>) {
    let (spec, more) = (&pod.pod.spec, &pod.more.spec);
    errors.extend(mirror_without_node(pod));
    let pod_claims: Vec<String> = more
        .resource_claims
        .iter()
        .map(|claim| claim.name.clone())
        .collect();
    let options = Options {
        pod_claims: &pod_claims,
        parts_of_huge_pages: kept.parts_of_huge_pages,
    };
    for (list, containers, claiming) in [
        ("containers", &spec.containers, &more.containers),
        (
            "initContainers",
            &spec.init_containers,
            &more.init_containers,
        ),
    ] {
        for (at, container) in containers.iter().enumerate() {
            let claims = claiming
                .get(at)
                .and_then(|container| container.resources.claims.as_deref());
            let claims = claims.unwrap_or_default();
            resource_rules::requirement_errors(
                &container.resources,
                claims,
                Owner::Container,
                format_args!("spec.{list}[{at}].resources"),
                options,
                errors,
            );
            let policies = claiming.get(at).map(|container| &container.resize_policy);
            if let Some(policies) = policies.filter(|policies| !policies.is_empty()) {
                let path = format!("spec.{list}[{at}].resizePolicy");
                resource_rules::resize_policy_errors(policies, &more.restart_policy, &path, errors);
                if list == "initContainers"
                    && !container.is_sidecar()
                    && !kept.restarted_init_containers
                {
                    restarted_errors(policies, &path, errors);
                }
            }
        }
    }
    for (at, container) in more.ephemeral_containers.iter().enumerate() {
        if container.resources != Resources::default() {
            let path = format!("spec.ephemeralContainers[{at}].resources");
            errors.push(FieldError::forbidden(
                path,
                "cannot be set for an Ephemeral Container",
            ));
        }
    }
    let overhead = Resources {
        limits: spec.overhead.clone(),
        ..Resources::default()
    };
    resource_rules::requirement_errors(
        &overhead,
        &[],
        Owner::Container,
        "spec.overhead",
        options,
        errors,
    );
    if let Some(policy) = &more.preemption_policy {
        preemption_policy_errors(policy, "spec.preemptionPolicy", errors);
    }
    let class = pod.priority_class_name();
    if !class.is_empty() {
        let all = names::dns_subdomain_errors(class);
        errors.extend(
            all.iter()
                .map(|what| FieldError::invalid("spec.priorityClassName", &quoted(class), what)),
        );
    }
    if let Some(level) = &spec.resources {
        if more.os.name == WINDOWS {
            errors.push(FieldError::forbidden(
                "spec.resources",
                "may not be set for a windows pod",
            ));
        } else {
            pod_level_errors(pod, level, options, errors);
        }
    }
}

/// The annotation that makes a pod the mirror of a static one.
fn mirror_annotation(pod: &PodObject) -> Option<&String> {
    pod.meta().annotations.get(CONFIG_MIRROR_ANNOTATION)
}

/// The path of that annotation.
fn mirror_path() -> String {
    format!("metadata.annotations[{CONFIG_MIRROR_ANNOTATION}]")
}

/// Only a kubelet makes mirror pods, and each on its own node (`ValidatePodSpecificAnnotations`).
fn mirror_without_node(pod: &PodObject) -> Option<FieldError> {
    let value = mirror_annotation(pod).filter(|_| pod.more.spec.node_name.is_empty())?;
    let what = "must set spec.nodeName if mirror pod annotation is set";
    Some(FieldError::invalid(mirror_path(), &quoted(value), what))
}

/// A pod stays a mirror pod, or none (`ValidatePodSpecificAnnotationUpdates`, which then asks for the node once more).
fn mirror_update_errors(pod: &PodObject, old: &PodObject, errors: &mut Vec<FieldError>) {
    let what = match (mirror_annotation(old), mirror_annotation(pod)) {
        (Some(old), new) if new != Some(old) => {
            Some("may not remove or update mirror pod annotation")
        }
        (None, Some(_)) => Some("may not add mirror pod annotation"),
        _ => None,
    };
    errors.extend(what.map(|what| FieldError::forbidden(mirror_path(), what)));
    errors.extend(mirror_without_node(pod));
}

/// A container that ends before the pod's others start is not restarted by a resize.
fn restarted_errors(policies: &[ResizePolicy], path: &str, errors: &mut Vec<FieldError>) {
    let policies = policies.iter().enumerate();
    let restarting = policies.filter(|(_, policy)| policy.restart_policy == RESTART_CONTAINER);
    errors.extend(restarting.map(|(at, policy)| {
        FieldError::invalid(
            format!("{path}[{at}].restartPolicy"),
            &json_text(&policy.restart_policy),
            "must not be set to 'RestartContainer' for non-sidecar initContainers",
        )
    }));
}

/// Pod-level resources, by themselves and against those of the containers.
fn pod_level_errors(
    pod: &PodObject,
    level: &Resources,
    options: Options<'_>,
    errors: &mut Vec<FieldError>,
) {
    let claims = pod.more.spec.resources.claims.as_deref();
    if claims.is_some() {
        let what = "claims may not be set for Resources at pod-level";
        errors.push(FieldError::forbidden("spec.resources.claims", what));
    }
    let claims = claims.unwrap_or_default();
    resource_rules::requirement_errors(
        level,
        claims,
        Owner::Pod,
        "spec.resources",
        options,
        errors,
    );
    let mut below =
        |field: &str, of_pod: &ResourceList, sums: &ResourceList, counts: fn(&str) -> bool| {
            for (name, sum) in sums.iter().filter(|(name, _)| counts(name)) {
                if let Some(amount) = of_pod.get(name).filter(|amount| sum > *amount) {
                    errors.push(FieldError::invalid(
                        format!("spec.resources.{field}[{name}]"),
                        &quoted(&amount.to_string()),
                        &format!(
                            "must be greater than or equal to aggregate container {field} of {sum}"
                        ),
                    ));
                }
            }
        };
    below(
        "requests",
        &level.requests,
        &resources::aggregate_container_requests(&pod.pod),
        |_| true,
    );
    // Other limits may add up to more than the pod's: they are not all used at once.
    below(
        "limits",
        &level.limits,
        &resources::aggregate_container_limits(&pod.pod),
        is_huge_pages,
    );
    // Upstream does not compare init containers.
    for (at, container) in pod.pod.spec.containers.iter().enumerate() {
        for (name, limit) in &container.resources.limits {
            if let Some(pod_limit) = level
                .limits
                .get(name)
                .filter(|pod_limit| limit > *pod_limit)
            {
                errors.push(FieldError::invalid(
                    format!("spec.resources.containers[{at}][{name}].limits"),
                    &quoted(&limit.to_string()),
                    &format!("must be less than or equal to pod limits of {pod_limit}"),
                ));
            }
        }
    }
}

/// Whether a pod has parts of huge pages, as some had before that was checked.
fn has_parts_of_huge_pages(pod: &PodObject) -> bool {
    let ephemeral = pod.more.spec.ephemeral_containers.iter();
    let containers = pod.pod.all_containers().chain(ephemeral);
    let lists = containers
        .flat_map(|container| [&container.resources.limits, &container.resources.requests]);
    lists
        .chain([&pod.pod.spec.overhead])
        .flatten()
        .any(|(name, amount)| is_huge_pages(name) && !is_multiple_of_page(name, amount))
}

/// What may change in a pod.
const UPDATABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Everything wrong with a changed pod. Below the error about a field that may not change upstream shows what differs;
/// here that is the changed fields alone.
pub fn update_errors(pod: &PodObject, old: &PodObject) -> Vec<FieldError> {
    let mut errors = pod.meta().update_errors(old.meta());
    spec_errors(pod, Kept::of(old), &mut errors);
    mirror_update_errors(pod, old, &mut errors);
    let mut lines = Vec::new();
    let text = |value: &str| quoted(value);
    let number =
        |value: Option<i32>| value.map_or_else(|| "null".to_owned(), |value| value.to_string());
    let policy = |pod: &PodObject| {
        let policy = pod.more.spec.preemption_policy.as_deref();
        policy.map_or_else(|| "null".to_owned(), quoted)
    };
    let mut differ = |field: &str, old: String, new: String| {
        if old != new {
            lines.push(format!("- \"{field}\": {old},\n+ \"{field}\": {new},"));
        }
    };
    differ(
        "PriorityClassName",
        text(old.priority_class_name()),
        text(pod.priority_class_name()),
    );
    differ(
        "Priority",
        number(old.pod.spec.priority),
        number(pod.pod.spec.priority),
    );
    differ("PreemptionPolicy", policy(old), policy(pod));
    if resources_of(pod) != resources_of(old) {
        lines.push("  resources differ".to_owned());
    }
    if !lines.is_empty() {
        let what = format!("{UPDATABLE}\n{}\n", lines.join("\n"));
        errors.push(FieldError::forbidden("spec", &what));
    }
    errors
}

fn resources_of(pod: &PodObject) -> (Vec<(&str, &Resources)>, Option<&Resources>, &ResourceList) {
    let containers = pod.pod.all_containers();
    (
        containers
            .map(|container| (container.name.as_str(), &container.resources))
            .collect(),
        pod.pod.spec.resources.as_ref(),
        &pod.pod.spec.overhead,
    )
}

/// Everything wrong with a pod whose resources are changed while it runs. Shares its rules with [`create_errors`];
/// asked by golden vectors, and by the API server of the tests of `plimsoll-cluster`.
pub fn resize_errors(pod: &PodObject, old: &PodObject) -> Vec<FieldError> {
    let resized = &without_other_changes(pod, old);
    let mut errors = resized.meta().update_errors(old.meta());
    spec_errors(resized, Kept::of(old), &mut errors);
    if old
        .meta()
        .annotations
        .contains_key(CONFIG_MIRROR_ANNOTATION)
    {
        return vec![FieldError::forbidden("[]", "static pods cannot be resized")];
    }
    if old.more.spec.os.name == WINDOWS {
        return vec![FieldError::forbidden(
            "[]",
            "windows pods cannot be resized",
        )];
    }
    if old.pod.qos_class() != QosClass::of(&resized.pod) {
        let recorded = resized.pod.status.qos_class.map_or("", QosClass::as_str);
        let what = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid("spec", &json_text(recorded), what));
    }
    let statuses = &old.more.status.container_statuses;
    let running = statuses
        .iter()
        .find(|status| status.state.running.is_some());
    if running.is_some_and(|status| status.resources.is_none()) {
        let what = "Pod running on node without support for resize";
        errors.push(FieldError::forbidden("spec", what));
    }
    if !old
        .more
        .status
        .node_allocatable_resource_claim_statuses
        .is_empty()
    {
        let what = "pods with node allocatable resource claims cannot be resized";
        errors.push(FieldError::forbidden("spec", what));
    }
    pod_level_resize_errors(resized, old, &mut errors);
    let before = errors.len();
    let (new, was) = (&resized.pod.spec, &old.pod.spec);
    order_errors("containers", &new.containers, &was.containers, &mut errors);
    order_errors(
        "initContainers",
        &new.init_containers,
        &was.init_containers,
        &mut errors,
    );
    if errors.len() > before {
        return errors;
    }
    for (list, new, was) in [
        ("initContainers", &new.init_containers, &was.init_containers),
        ("containers", &new.containers, &was.containers),
    ] {
        for (at, (new, was)) in new.iter().zip(was).enumerate() {
            removed_errors(
                &format!("spec.{list}[{at}].resources"),
                &new.resources,
                &was.resources,
                &mut errors,
            );
        }
    }
    other_changes(resized, old, &mut errors);
    errors
}

/// Changes of containers that a resize may not make. Both pods have the same containers.
fn other_changes(resized: &PodObject, old: &PodObject, errors: &mut Vec<FieldError>) {
    let (new, was) = (&resized.pod.spec, &old.pod.spec);
    let (more, more_was) = (&resized.more.spec, &old.more.spec);
    for at in 0..new.containers.len() {
        let [new, was] = [
            (&new.containers, &more.containers),
            (&was.containers, &more_was.containers),
        ]
        .map(|(containers, more)| Resizable::at(containers, more, at));
        if was.is_more_than_resized(&new) {
            errors.push(FieldError::forbidden(
                "spec",
                "only cpu and memory resources are mutable",
            ));
        }
    }
    for (at, container) in new.init_containers.iter().enumerate() {
        let [new, was] = [
            (&new.init_containers, &more.init_containers),
            (&was.init_containers, &more_was.init_containers),
        ]
        .map(|(containers, more)| Resizable::at(containers, more, at));
        let path = format!("spec.initContainers[{at}]");
        if was.is_more_than_resized(&new) {
            let what = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.push(FieldError::forbidden(&path, what));
        }
        if new != was && !container.is_sidecar() {
            let restarts = new
                .policies
                .iter()
                .filter(|policy| policy.restart_policy == RESTART_CONTAINER);
            let what = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            errors.extend(restarts.map(|_| FieldError::forbidden(&path, what)));
        }
    }
}

/// The part of a container that a resize brings along.
#[derive(PartialEq)]
struct Resizable<'a> {
    resources: Option<&'a Resources>,
    claims: &'a [ClaimReference],
    policies: &'a [ResizePolicy],
}

impl<'a> Resizable<'a> {
    fn at(containers: &'a [Container], more: &'a [MoreContainer], at: usize) -> Self {
        let more = more.get(at);
        let claims = more.and_then(|more| more.resources.claims.as_deref());
        Self {
            resources: containers.get(at).map(|container| &container.resources),
            claims: claims.unwrap_or_default(),
            policies: more
                .map(|more| more.resize_policy.as_slice())
                .unwrap_or_default(),
        }
    }

    /// Whether anything but cpu and memory becomes different. A container that has claims for devices cannot be
    /// resized: upstream compares it with one that has none.
    fn is_more_than_resized(&self, new: &Self) -> bool {
        let others_differ = match (new.resources, self.resources) {
            (Some(new), Some(old)) => others_differ(new, old),
            _ => false,
        };
        others_differ || !self.claims.is_empty() || self.policies != new.policies
    }
}

/// The old pod with the new resources: all else of a resize is dropped, unless containers were moved.
fn without_other_changes(pod: &PodObject, old: &PodObject) -> PodObject {
    let same_names = |new: &[Container], old: &[Container]| {
        new.len() == old.len() && new.iter().zip(old).all(|(new, old)| new.name == old.name)
    };
    let (new, was) = (&pod.pod.spec, &old.pod.spec);
    let mut resized = pod.clone();
    if new.containers.len() != was.containers.len()
        || new.init_containers.len() != was.init_containers.len()
    {
        return resized;
    }
    resized.pod.status = old.pod.status.clone();
    resized.pod.spec = was.clone();
    resized.pod.spec.resources.clone_from(&new.resources);
    let (meta, old_meta) = (&mut resized.more.metadata, old.meta());
    meta.labels.clone_from(&old_meta.labels);
    meta.annotations.clone_from(&old_meta.annotations);
    resized.more.spec = MoreSpec {
        containers: pod.more.spec.containers.clone(),
        init_containers: pod.more.spec.init_containers.clone(),
        ..old.more.spec.clone()
    };
    for (resized, new, was) in [
        (
            &mut resized.pod.spec.containers,
            &new.containers,
            &was.containers,
        ),
        (
            &mut resized.pod.spec.init_containers,
            &new.init_containers,
            &was.init_containers,
        ),
    ] {
        if same_names(new, was) {
            for (resized, new) in resized.iter_mut().zip(new) {
                resized.resources = new.resources.clone();
            }
        } else {
            resized.clone_from(new);
        }
    }
    resized
}

fn pod_level_resize_errors(pod: &PodObject, old: &PodObject, errors: &mut Vec<FieldError>) {
    let level = |pod: &PodObject| pod.pod.spec.resources.clone();
    let is_set = |level: &Option<Resources>| {
        level
            .as_ref()
            .is_some_and(|level| !level.requests.is_empty() || !level.limits.is_empty())
    };
    let (new, old) = (level(pod), level(old));
    if !is_set(&new) && !is_set(&old) {
        return;
    }
    if let Some(old) = &old {
        let Some(new) = &new else {
            errors.push(FieldError::forbidden(
                "spec.resources",
                "pod-level resources cannot be removed",
            ));
            return;
        };
        for (field, what, new, old) in [
            ("requests", "requests", &new.requests, &old.requests),
            ("limits", "limits", &new.limits, &old.limits),
        ] {
            if is_removed(new, old) {
                let what = format!("pod-level resource {what} cannot be removed");
                errors.push(FieldError::forbidden(
                    format!("spec.resources.{field}"),
                    &what,
                ));
            }
        }
    }
    if others_differ(&new.unwrap_or_default(), &old.unwrap_or_default()) {
        let what = "only cpu and memory resources are mutable at pod-level";
        errors.push(FieldError::forbidden("spec", what));
    }
}

fn order_errors(list: &str, new: &[Container], old: &[Container], errors: &mut Vec<FieldError>) {
    if new.len() != old.len() {
        let what = format!("{list} may not be added or removed on resize");
        errors.push(FieldError::forbidden(format!("spec.{list}"), &what));
        return;
    }
    for (at, (new, old)) in new.iter().zip(old).enumerate() {
        if new.name != old.name {
            let what = format!("{list} may not be renamed or reordered on resize");
            errors.push(FieldError::forbidden(
                format!("spec.{list}[{at}].name"),
                &what,
            ));
        }
    }
}

fn removed_errors(path: &str, new: &Resources, old: &Resources, errors: &mut Vec<FieldError>) {
    for (field, new, old) in [
        ("requests", &new.requests, &old.requests),
        ("limits", &new.limits, &old.limits),
    ] {
        if is_removed(new, old) {
            let what = format!("resource {field} cannot be removed");
            errors.push(FieldError::forbidden(format!("{path}.{field}"), &what));
        }
    }
}

fn is_removed(new: &ResourceList, old: &ResourceList) -> bool {
    old.keys().any(|name| !new.contains_key(name))
}

/// Whether anything but cpu and memory differs.
fn others_differ(new: &Resources, old: &Resources) -> bool {
    let others = |list: &ResourceList| {
        let others = list
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), CPU | MEMORY));
        others
            .map(|(name, amount)| (name.clone(), amount.clone()))
            .collect::<ResourceList>()
    };
    others(&new.requests) != others(&old.requests) || others(&new.limits) != others(&old.limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(mirror: Option<&str>, node: &str) -> PodObject {
        let annotations = mirror.map_or_else(String::new, |value| {
            format!(r#""annotations":{{"{CONFIG_MIRROR_ANNOTATION}":"{value}"}},"#)
        });
        let text = format!(
            r#"{{"metadata":{{{annotations}"name":"p","namespace":"n","resourceVersion":"1"}},"spec":{{"nodeName":"{node}"}}}}"#
        );
        PodObject::new(
            serde_json::from_str(&text).unwrap(),
            serde_json::from_str(&text).unwrap(),
        )
    }

    fn texts(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    /// The sentences are those of `ValidatePodSpecificAnnotations` and `ValidatePodSpecificAnnotationUpdates` of 1.36.
    #[test]
    fn a_mirror_pod_has_a_node_and_stays_one() {
        let path = "metadata.annotations[kubernetes.io/config.mirror]";
        let no_node = format!(
            "{path}: Invalid value: \"x\": must set spec.nodeName if mirror pod annotation is set"
        );
        let changed = format!("{path}: Forbidden: may not remove or update mirror pod annotation");
        let added = format!("{path}: Forbidden: may not add mirror pod annotation");
        let errors = create_errors(&pod(Some("x"), ""));
        assert_eq!(texts(&errors), [no_node.as_str()]);
        for (mirror, node) in [(Some("x"), "a"), (None, ""), (None, "a")] {
            assert_eq!(create_errors(&pod(mirror, node)), []);
        }
        for (old, new, node, expected) in [
            (Some("x"), Some("x"), "a", vec![]),
            (None, None, "", vec![]),
            (Some("x"), Some("y"), "a", vec![changed.clone()]),
            (Some("x"), None, "a", vec![changed]),
            (None, Some("x"), "a", vec![added.clone()]),
            (None, Some("x"), "", vec![no_node.clone(), added, no_node]),
        ] {
            let errors = update_errors(&pod(new, node), &pod(old, node));
            assert_eq!(texts(&errors), expected, "{old:?} to {new:?}");
        }
    }
}
