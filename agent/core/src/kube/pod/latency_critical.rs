//! Whether other pods are held back while a pod waits for CPU time: its request decides, unless its annotation does.

use super::Pod;

/// `"true"`: what the pod waits for CPU time counts however much it uses, and it is never held back; `"false"`: it
/// never counts. Without it requests decide ([`cpu`](crate::policy::cpu)). Not the kubelet's.
pub const LATENCY_CRITICAL_ANNOTATION: &str = "plimsoll.dev/latency-critical";

/// The annotation has another value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "annotation {LATENCY_CRITICAL_ANNOTATION}: {value:?} is neither \"true\" nor \"false\"; its requests decide"
)]
pub struct UnknownLatencyCritical {
    /// Its value.
    pub value: String,
}

impl Pod {
    /// What the pod says of itself in [`LATENCY_CRITICAL_ANNOTATION`]; `None` without it.
    ///
    /// # Errors
    /// [`UnknownLatencyCritical`] when that is neither `true` nor `false`.
    pub fn latency_critical(&self) -> Result<Option<bool>, UnknownLatencyCritical> {
        let annotations = &self.metadata.annotations;
        match annotations
            .get(LATENCY_CRITICAL_ANNOTATION)
            .map(String::as_str)
        {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(value) => Err(UnknownLatencyCritical {
                value: value.to_owned(),
            }),
        }
    }
}
