//! How far a pod is in its life, as its status says.

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// `Pending`, `Running`, `Unknown`, or what is not known here.
    #[default]
    Living,
    /// `Succeeded`.
    Succeeded,
    /// `Failed`.
    Failed,
}

impl Phase {
    /// The phase of this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        match name {
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::Living,
        }
    }

    /// Nothing of the pod will run again (`IsPodTerminal` in pkg/api/v1/pod of Kubernetes).
    #[must_use]
    pub fn is_terminal(self) -> bool {
        self != Self::Living
    }
}
