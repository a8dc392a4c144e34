//! Paths and bodies of the calls of one eviction.

use serde_json::{Value, json};

use crate::call::{Call, Content, Verb};
use crate::clock::rfc3339_s;
use crate::pod::{EVICTED_ANNOTATION, EVICTED_LABEL, EVICTED_REASON, SeenPod};
use crate::report::eviction::{Eviction, Purpose};

/// The reason of the condition `DisruptionTarget`; the kubelet's is `TerminationByKubelet`.
pub const DISRUPTION_REASON: &str = "TerminationByPlimsoll";

/// `/api/v1/namespaces/NS/pods/P`. Names come from the API, which allows no character that a path would have to escape;
/// others are escaped all the same.
#[must_use]
pub fn pod_path(namespace: &str, name: &str) -> String {
    format!(
        "/api/v1/namespaces/{}/pods/{}",
        escaped(namespace),
        escaped(name)
    )
}

/// Percent-encoded, for a path or a query.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// The call of this purpose. `policy_version`: the group and version that `pods/eviction` takes.
#[must_use]
pub fn call(
    eviction: &Eviction,
    purpose: Purpose,
    pod: &SeenPod,
    policy_version: &str,
    dry_run: bool,
) -> Call {
    let path = pod_path(&pod.namespace, &pod.name);
    // Never 0: that would be `force`.
    let grace_s = eviction.intent.grace_s.max(1);
    match purpose {
        Purpose::Read => Call::get("pods", path),
        Purpose::Report => Call::write(
            Verb::Patch,
            "pods/status",
            &format!("{path}/status"),
            Content::StrategicMerge,
            &status(eviction, pod),
            dry_run,
        ),
        Purpose::Delete => delete(pod, Some(grace_s), dry_run),
        Purpose::Evict => {
            let mut options =
                json!({"gracePeriodSeconds": grace_s, "preconditions": {"uid": pod.uid}});
            if dry_run {
                options["dryRun"] = json!(["All"]);
            }
            let body = json!({
                "apiVersion": policy_version,
                "kind": "Eviction",
                "metadata": {"name": &*pod.name, "namespace": &*pod.namespace},
                "deleteOptions": options,
            });
            Call::write(
                Verb::Post,
                "pods/eviction",
                &format!("{path}/eviction"),
                Content::Json,
                &body,
                dry_run,
            )
        }
    }
}

/// Deletes the object of this pod and no other. Without a grace it is the pod's; one that has ended goes at once.
#[must_use]
pub fn delete(pod: &SeenPod, grace_s: Option<u32>, dry_run: bool) -> Call {
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": pod.uid},
    });
    if let Some(grace_s) = grace_s {
        body["gracePeriodSeconds"] = json!(grace_s);
    }
    let path = pod_path(&pod.namespace, &pod.name);
    Call::write(Verb::Delete, "pods", &path, Content::Json, &body, dry_run)
}

/// Status and annotation, or label, in one: the status subresource lets both through
/// (`podStatusStrategy.PrepareForUpdate`), and only with one of them the status reaches the kubelet's `UpdatePod` at
/// once.
fn status(eviction: &Eviction, pod: &SeenPod) -> Value {
    let intent = &eviction.intent;
    let mut metadata = json!({"uid": pod.uid, "resourceVersion": &*pod.resource_version});
    match eviction.label(pod) {
        Some(label) => metadata["labels"] = json!({EVICTED_LABEL: label}),
        None => metadata["annotations"] = json!({EVICTED_ANNOTATION: eviction.annotation(pod)}),
    }
    json!({
        "metadata": metadata,
        "status": {
            "phase": "Failed",
            "reason": EVICTED_REASON,
            "message": intent.message,
            "conditions": [{
                "type": "DisruptionTarget",
                "status": "True",
                "reason": DISRUPTION_REASON,
                "message": intent.message,
                "lastTransitionTime": rfc3339_s(intent.decided_unix_ms),
            }],
        },
    })
}
