//! What lives on in the cgroup of a pod that is ended container by container.

use std::ffi::OsStr;

use crate::pods::names::is_monitor;

/// What is left alone in a pod's cgroup.
#[derive(Debug, Default)]
pub(super) struct Spared {
    /// The sandbox's cgroup.
    pub(super) sandbox: Option<Box<OsStr>>,
    /// CRI-O has its monitors in the pod's cgroup.
    pub(super) has_monitors: bool,
}

impl Spared {
    /// Whether this child of the pod's cgroup is left alone.
    pub(super) fn has(&self, name: &OsStr) -> bool {
        self.sandbox.as_deref() == Some(name) || is_monitors(name)
    }

    /// Whether anything is.
    pub(super) fn is_any(&self) -> bool {
        self.sandbox.is_some() || self.has_monitors
    }
}

/// Whether a cgroup of this name is that of a container's monitor.
pub(super) fn is_monitors(name: &OsStr) -> bool {
    name.to_str().is_some_and(is_monitor)
}
