//! The plugin Priority: a pod's priority from its class, and what the API refuses in a class.
//!
//! Source: `plugin/pkg/admission/priority/admission.go` and `pkg/apis/scheduling/validation/validation.go` of 1.36. Of
//! several default classes of the same value, the first by name is taken; upstream takes one by chance.

use super::field::{FieldError, json_text};
use super::object::{Object, PREEMPT_LOWER_PRIORITY, PriorityClass};
use super::object_meta::Scope;
use super::pod_object::PodObject;
use super::pod_rules::preemption_policy_errors;
use super::request::{Operation, Phase, Refusal, Request};
use crate::kube::pod::SYSTEM_NODE_CRITICAL;

/// The kind of priority classes, as the API's validation names it.
pub const CLASS_KIND: &str = "PriorityClass.scheduling.k8s.io";

/// The resource of priority classes.
pub const CLASS_RESOURCE: &str = "priorityclasses.scheduling.k8s.io";

/// The resource of pod groups.
pub const GROUP_RESOURCE: &str = "podgroups.scheduling.k8s.io";

/// The highest value of a class that is not Kubernetes' own.
pub const HIGHEST_USER_VALUE: i32 = 1_000_000_000;

/// What the names of Kubernetes' own classes begin with.
const SYSTEM_PREFIX: &str = "system-";

/// The classes that every cluster has.
pub const SYSTEM_CLASSES: [(&str, i32); 2] = [
    (SYSTEM_NODE_CRITICAL, 2_000_001_000),
    ("system-cluster-critical", 2_000_000_000),
];

/// The classes that every cluster has, as objects.
pub fn system_classes() -> Vec<PriorityClass> {
    let class = |(name, value): (&str, i32)| {
        let mut class = PriorityClass {
            value,
            ..PriorityClass::default()
        };
        class.metadata.name = name.to_owned();
        class.set_defaults();
        class
    };
    SYSTEM_CLASSES.map(class).into()
}

/// What a class gives to a pod.
struct Resolved {
    class: String,
    value: i32,
    policy: Option<String>,
}

/// The class for pods that name none: the default one of the lowest value.
pub fn default_class(classes: &[PriorityClass]) -> Option<&PriorityClass> {
    let defaults = classes.iter().filter(|class| class.global_default);
    defaults.min_by_key(|class| (class.value, &class.metadata.name))
}

fn resolve(request: &Request, name: &str, classes: &[PriorityClass]) -> Result<Resolved, Refusal> {
    let class = if name.is_empty() {
        let Some(class) = default_class(classes) else {
            return Ok(Resolved {
                class: String::new(),
                value: 0,
                policy: Some(PREEMPT_LOWER_PRIORITY.to_owned()),
            });
        };
        class
    } else {
        classes
            .iter()
            .find(|class| class.metadata.name == name)
            .ok_or_else(|| {
                request.forbidden(
                    Phase::Mutate,
                    &format!("no PriorityClass with name {name} was found"),
                )
            })?
    };
    Ok(Resolved {
        class: class.metadata.name.clone(),
        value: class.value,
        policy: class.preemption_policy.clone(),
    })
}

/// Which gated features are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gates {
    /// `WorkloadAwarePreemption`: pod groups have priorities.
    pub workload_aware_preemption: bool,
}

/// The mutating phase: the pod gets the priority of its class.
///
/// # Errors
/// If there is no such class, or the pod says another priority or policy.
pub fn admit(
    request: &mut Request,
    classes: &[PriorityClass],
    gates: Gates,
) -> Result<(), Refusal> {
    if !request.subresource.is_empty() {
        return Ok(());
    }
    let old = match &request.old_object {
        Some(Object::Pod(old)) => Some((
            old.pod.spec.priority,
            old.more.spec.preemption_policy.clone(),
        )),
        _ => None,
    };
    match (&request.object, request.operation) {
        (Object::Pod(pod), Operation::Create) if request.resource.is("pods") => {
            let resolved = resolve(request, pod.priority_class_name(), classes)?;
            let set = match &mut request.object {
                Object::Pod(pod) => set(pod, resolved),
                _ => Ok(()),
            };
            set.map_err(|why| request.forbidden(Phase::Mutate, &why))?;
        }
        (Object::PodGroup(group), Operation::Create)
            if request.resource.is(GROUP_RESOURCE) && gates.workload_aware_preemption =>
        {
            let resolved = resolve(request, &group.spec.priority_class_name, classes)?;
            if let Some(preset) = group
                .spec
                .priority
                .filter(|preset| *preset != resolved.value)
            {
                let why = format!(
                    "priority set in the pod group ({preset}) must match the priority computed ({}) based on the priority class set in the spec",
                    resolved.value
                );
                return Err(request.forbidden(Phase::Mutate, &why));
            }
            let mut group = group.clone();
            group.spec.priority = Some(resolved.value);
            group.spec.priority_class_name = resolved.class;
            request.object = Object::PodGroup(group);
        }
        (Object::Pod(_), Operation::Update) if request.resource.is("pods") => {
            // What is absent stays; what is changed is refused by the API's validation.
            if let (Object::Pod(pod), Some((priority, policy))) = (&mut request.object, old) {
                pod.pod.spec.priority = pod.pod.spec.priority.or(priority);
                let given = &mut pod.more.spec.preemption_policy;
                *given = given.take().or(policy);
            }
        }
        _ => {}
    }
    Ok(())
}

/// # Errors
/// Why the pod may not say what it says.
fn set(pod: &mut PodObject, resolved: Resolved) -> Result<(), String> {
    let Resolved {
        class,
        value,
        policy,
    } = resolved;
    let spec = &mut pod.pod.spec;
    spec.priority_class_name = Some(class).filter(|class| !class.is_empty());
    if let Some(preset) = spec.priority.filter(|preset| *preset != value) {
        return Err(format!(
            "the integer value of priority ({preset}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        ));
    }
    spec.priority = Some(value);
    if let Some(policy) = policy {
        let preset = pod.more.spec.preemption_policy.as_ref();
        if let Some(preset) = preset.filter(|preset| **preset != policy) {
            return Err(format!(
                "the string value of PreemptionPolicy ({preset}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
            ));
        }
        pod.more.spec.preemption_policy = Some(policy);
    }
    Ok(())
}

/// The validating phase: there is one default class.
///
/// # Errors
/// If the request would make a second one.
pub fn validate(request: &Request, classes: &[PriorityClass]) -> Result<(), Refusal> {
    let Object::PriorityClass(class) = &request.object else {
        return Ok(());
    };
    let counts = request.subresource.is_empty()
        && request.resource.is(CLASS_RESOURCE)
        && matches!(request.operation, Operation::Create | Operation::Update);
    if !counts || !class.global_default {
        return Ok(());
    }
    match default_class(classes) {
        Some(other)
            if request.operation == Operation::Create
                || other.metadata.name != class.metadata.name =>
        {
            let why = format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                other.metadata.name
            );
            Err(request
                .forbidden(Phase::Validate, &why)
                .by(&other.metadata.name))
        }
        _ => Ok(()),
    }
}

/// Everything wrong with a new class that has its defaults.
pub fn create_errors(class: &PriorityClass) -> Vec<FieldError> {
    let mut errors = class.metadata.create_errors(Scope::Cluster);
    let name = class.metadata.name.as_str();
    if name.starts_with(SYSTEM_PREFIX) {
        if let Some(why) = not_a_system_class(class) {
            let what = format!(
                "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {why}"
            );
            errors.push(FieldError::forbidden("metadata.name", &what));
        }
    } else if class.value > HIGHEST_USER_VALUE {
        let what =
            format!("maximum allowed value of a user defined priority is {HIGHEST_USER_VALUE}");
        errors.push(FieldError::forbidden("value", &what));
    }
    if let Some(policy) = &class.preemption_policy {
        preemption_policy_errors(policy, "preemptionPolicy", &mut errors);
    }
    errors
}

fn not_a_system_class(class: &PriorityClass) -> Option<String> {
    let name = class.metadata.name.as_str();
    match SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) {
        None => Some(format!("{name} is not a known system priority class")),
        Some((_, value)) if *value != class.value => {
            Some(format!("value of {name} PriorityClass must be {value}"))
        }
        Some(_) if class.global_default => Some(format!(
            "globalDefault of {name} PriorityClass must be false"
        )),
        Some(_) => None,
    }
}

/// Everything wrong with a changed class.
pub fn update_errors(class: &PriorityClass, old: &PriorityClass) -> Vec<FieldError> {
    let mut errors = class.metadata.update_errors(&old.metadata);
    if class.value != old.value {
        errors.push(FieldError::forbidden(
            "value",
            "may not be changed in an update.",
        ));
    }
    if class.preemption_policy != old.preemption_policy {
        let value = class
            .preemption_policy
            .as_deref()
            .map_or_else(|| "null".to_owned(), json_text);
        errors.push(FieldError::invalid(
            "preemptionPolicy",
            &value,
            "field is immutable",
        ));
    }
    errors
}
