//! How a pod asks for a notification when memory is short, before it is evicted.
//!
//! A signal is the one message that every program can take and that needs nothing from Kubernetes: garbage collectors
//! and caches already free memory on one. A pod that does not ask is never sent any.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Pod;

/// Names the signal by which a pod's containers want to be notified when memory is short, so that they can give some
/// back: see [`PressureSignal`]. Not the kubelet's.
pub const PRESSURE_SIGNAL_ANNOTATION: &str = "plimsoll.dev/memory-pressure-signal";

impl Pod {
    /// The signal that the pod asks for in [`PRESSURE_SIGNAL_ANNOTATION`]; `None` without it.
    ///
    /// # Errors
    /// [`UnknownPressureSignal`] when the annotation names no signal that may be sent.
    pub fn pressure_signal(&self) -> Result<Option<PressureSignal>, UnknownPressureSignal> {
        let Some(name) = self.metadata.annotations.get(PRESSURE_SIGNAL_ANNOTATION) else {
            return Ok(None);
        };
        let known = PressureSignal::ALL
            .into_iter()
            .find(|signal| signal.name() == name);
        known
            .map(Some)
            .ok_or_else(|| UnknownPressureSignal { name: name.clone() })
    }
}

/// A signal that tells a pod's processes that memory is short. Only signals that programs are free to give a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PressureSignal {
    /// SIGHUP.
    #[serde(rename = "SIGHUP")]
    Hup,
    /// SIGUSR1.
    #[serde(rename = "SIGUSR1")]
    Usr1,
    /// SIGUSR2.
    #[serde(rename = "SIGUSR2")]
    Usr2,
    /// SIGURG, which is ignored unless it is caught.
    #[serde(rename = "SIGURG")]
    Urg,
    /// SIGWINCH, which is ignored unless it is caught.
    #[serde(rename = "SIGWINCH")]
    Winch,
}

impl PressureSignal {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Hup, Self::Usr1, Self::Usr2, Self::Urg, Self::Winch];

    /// Its name, as the annotation has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hup => "SIGHUP",
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
            Self::Urg => "SIGURG",
            Self::Winch => "SIGWINCH",
        }
    }
}

impl fmt::Display for PressureSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The annotation names something else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "annotation {PRESSURE_SIGNAL_ANNOTATION}: {name:?} is none of SIGHUP, SIGUSR1, SIGUSR2, SIGURG and SIGWINCH; the pod is not notified when memory is short"
)]
pub struct UnknownPressureSignal {
    /// What it names.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_names_a_signal_that_may_be_sent() {
        let asks = |name: &str| {
            let mut pod = Pod::default();
            let annotations = &mut pod.metadata.annotations;
            annotations.insert(PRESSURE_SIGNAL_ANNOTATION.into(), name.into());
            pod.pressure_signal()
        };
        for signal in PressureSignal::ALL {
            assert_eq!(asks(signal.name()), Ok(Some(signal)));
            let json = serde_json::to_string(&signal).unwrap();
            assert_eq!(json, format!("\"{signal}\""));
        }
        assert_eq!(Pod::default().pressure_signal(), Ok(None));
        for refused in ["SIGKILL", "SIGTERM", "usr1", ""] {
            let error = asks(refused).unwrap_err().to_string();
            assert!(
                error.contains("SIGUSR1") && error.contains(refused),
                "{error}"
            );
        }
    }
}
