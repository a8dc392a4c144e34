//! Space that the node can free before any pod has to go.
//!
//! The kubelet deletes dead containers and unused images first, and evicts only if that was not enough
//! (`reclaimNodeLevelResources` in `pkg/kubelet/eviction/eviction_manager.go`). Here is what lies in directories of
//! pods that have ended ([`EndedPods`]); what only a container runtime can remove is in [`super::runtime`].
//!
//! Each call is bounded and goes on where the last one stopped. Nothing is deleted unless the request says so
//! ([`FreeRequest::dry`]).

mod ended_pods;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_core::kube::pod_uid::PodUid;
use rustix::io::Errno;

use crate::host::cgroup::CgroupError;
use crate::host::shown::Show as _;

pub use ended_pods::EndedPods;

/// Directories that an answer names as kept.
pub const KEPT_MAX: usize = 32;
/// How old a directory of a pod that nobody has heard of has to be, unless told otherwise.
pub const AGE_MIN: Duration = Duration::from_secs(600);

/// What may be freed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeRequest {
    /// Only say what would be deleted.
    pub dry: bool,
    /// Pods that are wanted or still run. Nothing of theirs is touched.
    pub live: BTreeSet<PodUid>,
    /// Pods of ours that have ended for good: evicted, or not wanted any more. What is theirs goes whatever its age. A
    /// pod in both lists is live.
    pub ended: BTreeSet<PodUid>,
    /// How long the directories of other pods must have been left alone.
    pub age_min: Duration,
}

impl Default for FreeRequest {
    /// Dry, and nothing known.
    fn default() -> Self {
        Self {
            dry: true,
            live: BTreeSet::new(),
            ended: BTreeSet::new(),
            age_min: AGE_MIN,
        }
    }
}

/// A directory that was not freed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub why: KeptBecause,
}

/// Why a directory that nobody seems to need is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeptBecause {
    /// A process is in the pod's cgroup.
    #[error("the pod has processes")]
    Processes,
    /// It is no longer certain that it has none.
    #[error("its cgroup cannot be read")]
    CgroupUnknown,
    /// Something is mounted there.
    #[error("something is mounted on it or below it")]
    Mounted,
    /// Something could be mounted there that cannot be seen from here.
    #[error(
        "mounts that the host makes there are not visible to this process; run it in the host's PID namespace, and with mountPropagation: \
         HostToContainer on the kubelet's and the logs' directories"
    )]
    MountsHidden,
    /// Of a pod that nobody has heard of, and changed not long ago.
    #[error("changed too recently")]
    Young,
    /// Names in it could not be deleted.
    #[error("{0} names could not be deleted")]
    Undeletable(u64),
    /// Directories were moved while they were deleted.
    #[error("moved while it was deleted")]
    Moved,
    /// It has this many names at least, or names are made in it as fast as they are deleted.
    #[error(
        "not all of it goes in one request: {0} names were read in the pod's directories; it has more, or somebody still makes new ones; the next \
         request goes on"
    )]
    TooManyNames(u32),
    /// It could not be opened.
    #[error("{0}")]
    Unreadable(Errno),
}

/// What a call freed, or would have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Freed {
    /// Bytes on disk.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
    /// Directories (volumes, logs of a pod) that are gone.
    pub items: u64,
    /// Ended containers that are gone.
    pub containers: u64,
    /// Unused images that are gone.
    pub images: u64,
    /// Whether there is more to do: call again.
    pub more: bool,
    /// What was left, [`KEPT_MAX`] at most.
    pub kept: Vec<Kept>,
    /// How many more were left than `kept` names.
    pub kept_more: u64,
}

impl Freed {
    /// Adds what another call did.
    pub fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes += other.inodes;
        self.items += other.items;
        self.containers += other.containers;
        self.images += other.images;
        self.more = other.more;
        self.kept_more += other.kept_more;
        for kept in other.kept {
            self.keep(kept);
        }
    }

    fn keep(&mut self, kept: Kept) {
        if self.kept.len() < KEPT_MAX {
            self.kept.push(kept);
        } else {
            self.kept_more += 1;
        }
    }
}

/// Why a provider cannot work.
#[derive(Debug, thiserror::Error)]
pub enum FreeError {
    /// A directory of all pods cannot be read.
    #[error("{path}: {source}; nothing of ended pods is freed there", path = path.shown())]
    Directory {
        /// Which.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// Without cgroups nobody can say which pods have processes.
    #[error("cannot tell which pods have processes, so nothing is freed: {0}")]
    Cgroups(#[from] CgroupError),
    /// Without the list of mounts nobody can say what is safe to delete.
    #[error("/proc/self/mountinfo cannot be read, so nothing is freed")]
    Mounts,
}

/// Something that frees space of the node without ending a pod.
pub trait FreesDisk: Send {
    /// Its name, in one word.
    fn name(&self) -> &'static str;

    /// Frees, looking at about `entries` files. `is_first`: a new request, so look at everything again.
    ///
    /// # Errors
    /// [`FreeError`] when it cannot work at all; what is merely kept is in the answer.
    fn free(
        &mut self,
        request: &FreeRequest,
        is_first: bool,
        entries: u32,
    ) -> Result<Freed, FreeError>;
}

/// Beside a kubelet: directories, containers and images are its own, and it frees them itself.
#[derive(Debug, Clone, Copy)]
pub struct LeftToKubelet;

impl FreesDisk for LeftToKubelet {
    fn name(&self) -> &'static str {
        "kubelet"
    }

    fn free(
        &mut self,
        _request: &FreeRequest,
        _is_first: bool,
        _entries: u32,
    ) -> Result<Freed, FreeError> {
        Ok(Freed::default())
    }
}
