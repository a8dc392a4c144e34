//! Where a container's writable layer is, from what its processes show, and which of them is believed.
//!
//! **Problem.** A process may unshare a user and a mount namespace without any privilege, and mount there what it
//! likes: an overlay whose `upperdir=` names any directory of the host, or no overlay at all. Believed, the first sends
//! root to walk a path of the pod's choice, and the second makes a full layer count as nothing. **Approach.** Asked is
//! the container's *first process*, the one that started earliest, which the runtime made. Its mounts count if they
//! cannot have been changed without privilege: its user namespace is the machine's. The directory counts if it is below
//! a directory of a known runtime, with no link on the way. Where any of this fails the layer is *unknown*: no figure,
//! and a warning with the reason. A process whose main thread has ended (`pthread_exit`) shows neither mounts nor a
//! root any more; those of a thread that lives are asked then. **Terms.** *machine's user namespace*: the initial one,
//! whose number is the same on every kernel.

use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, ResolveFlags, Statx, StatxFlags, openat, openat2, statx};
use rustix::io::Errno;
use rustix::process::Pid;

use super::descent::OPEN_DIRECTORY;
use super::mountinfo::{RootMount, root_mount};
use super::pod_paths::{PodPaths, mountinfo};
use crate::host::cgroup::{CgroupMounts, CgroupPath};
use crate::host::file::{ControlFile, read_text};
use crate::host::processes::start_ticks;

/// Levels of cgroups below a container's that are searched for a process.
const SEARCH_DEPTH_MAX: usize = 4;
/// Cgroups of one container that are searched. A process of the container may make any number of them.
const CGROUPS_SEARCHED_MAX: usize = 256;
/// Processes of one container of which the first is looked for. The kernel lists those that came first before those
/// that came later.
const PROCESSES_ASKED_MAX: usize = 64;
/// Threads of the first process that are asked, if its main thread has ended.
const THREADS_ASKED_MAX: usize = 64;
/// What `/proc/PID/ns/user` is in the machine's user namespace: `PROC_USER_INIT_INO` in the kernel's
/// `include/linux/proc_ns.h`.
const MACHINE_USER_NAMESPACE: &str = "user:[4026531837]";

/// Why nobody knows what a container has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayerUnknown {
    /// Its processes can mount what they like.
    #[error(
        "its first process is in a user namespace of its own, where it can change what its mounts show"
    )]
    UserNamespace,
    /// It lives, and shows nothing.
    #[error(
        "its first process runs and does not show its mounts or its root; where the agent lacks CAP_SYS_PTRACE, the kernel hides them"
    )]
    NotShown,
    /// It has processes where nobody searches.
    #[error(
        "it may have processes, and none was found in its cgroup or in the {CGROUPS_SEARCHED_MAX} cgroups, {SEARCH_DEPTH_MAX} levels deep, that are searched"
    )]
    NoProcessFound,
    /// Its root is something else than it says.
    #[error("its first process has another root than its mounts show")]
    OtherRoot,
    /// The root is no overlay.
    #[error("its root is no overlay")]
    NoOverlay,
    /// The layer is at a place where no runtime keeps any.
    #[error(
        "its layer is below no directory of a known runtime; if yours keeps them there, name a directory above with --container-dir"
    )]
    Elsewhere,
}

/// A container's writable layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Layer {
    /// It has none: no process, a read-only root, or the root of the machine itself.
    Absent,
    /// This directory.
    At(RuntimePath),
    /// It may have one.
    Unknown(LayerUnknown),
}

/// A directory below a runtime's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RuntimePath {
    /// The runtime's directory.
    root: PathBuf,
    below: PathBuf,
}

impl RuntimePath {
    fn new(layer: &Path, roots: &[PathBuf]) -> Option<Self> {
        let plain = |it: Component<'_>| matches!(it, Component::RootDir | Component::Normal(_));
        if !layer.components().all(plain) {
            return None;
        }
        roots.iter().find_map(|root| {
            let below = layer.strip_prefix(root).ok()?;
            Some(Self {
                root: root.clone(),
                below: below.to_owned(),
            })
        })
    }

    pub(super) fn path(&self, paths: &PodPaths) -> PathBuf {
        paths.host.path(&self.root).join(&self.below)
    }

    /// Opens it. The runtime's directory may be a link, as an administrator makes them; nothing below it may: what is
    /// in a layer is the pod's.
    pub(super) fn open(&self, paths: &PodPaths) -> Result<OwnedFd, Errno> {
        let root = std::fs::canonicalize(paths.host.path(&self.root))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let root = openat(CWD, &root, OPEN_DIRECTORY, Mode::empty())?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(&root, &self.below, OPEN_DIRECTORY, Mode::empty(), resolve)
    }
}

/// The writable layer under the machine's own root, where that is an overlay.
pub(super) fn host_layer(paths: &PodPaths) -> Option<PathBuf> {
    let text = mountinfo(&paths.host, "1").or_else(|| mountinfo(&paths.host, "self"))?;
    root_mount(&text)?.upper
}

/// The writable layer of the container whose processes are in `cgroup`.
pub(super) fn container_layer(
    paths: &PodPaths,
    mounts: &CgroupMounts,
    cgroup: &CgroupPath,
    host_layer: Option<&Path>,
) -> Layer {
    let dir = mounts
        .hierarchies()
        .iter()
        .map(|hierarchy| hierarchy.dir(cgroup))
        .find(|dir| dir.is_dir());
    let Some(dir) = dir else {
        return Layer::Absent;
    };
    // By the kernel's count where there is one, else where not every cgroup was searched.
    let hides =
        |search: &Search| search.pids.is_empty() && is_populated(&dir).unwrap_or(search.is_cut);
    let mut search = Search::of(&dir);
    if hides(&search) {
        // One may have started or ended since.
        search = Search::of(&dir);
        if hides(&search) {
            return Layer::Unknown(LayerUnknown::NoProcessFound);
        }
    }
    let first = search
        .pids
        .iter()
        .filter_map(|pid| Some((start_ticks(&paths.host, *pid)?, *pid)))
        .min_by_key(|(started, pid)| (*started, pid.as_raw_nonzero()));
    let Some((_, first)) = first else {
        return Layer::Absent;
    };
    let is_listed = || {
        let again = Search::of(&dir);
        again.pids.contains(&first) || hides(&again)
    };
    layer_of(paths, first, host_layer, is_listed)
}

/// What a thread shows of its root.
struct Shown {
    mountinfo: Vec<u8>,
    root: Statx,
}

/// `None`: it has ended. An error: it is not to be believed.
fn shown_by(paths: &PodPaths, thread: &str) -> Result<Option<Shown>, LayerUnknown> {
    // Before anything that asks a file system: the root of such a process may be one that never answers.
    match std::fs::read_link(paths.host.procfs(format!("{thread}/ns/user"))) {
        Ok(namespace) if namespace == Path::new(MACHINE_USER_NAMESPACE) => {}
        Ok(_) => return Err(LayerUnknown::UserNamespace),
        Err(_) => return Ok(None),
    }
    // A thread that is ending has no mounts to show.
    let mountinfo = mountinfo(&paths.host, thread).filter(|text| !text.is_empty());
    // A process in the machine's user namespace may have changed its root to a file system of a server, and that server
    // is not asked either.
    let root = root_of(paths, thread);
    let shown = mountinfo.zip(root.ok());
    Ok(shown.map(|(mountinfo, root)| Shown { mountinfo, root }))
}

fn root_of(paths: &PodPaths, process: &str) -> Result<Statx, Errno> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let root = paths.host.procfs(format!("{process}/root"));
    statx(CWD, root, flags, StatxFlags::BASIC_STATS)
}

/// What the process shows, or the first of its threads that lives.
fn shown_by_any(paths: &PodPaths, process: &str) -> Result<Option<Shown>, LayerUnknown> {
    if let Some(shown) = shown_by(paths, process)? {
        return Ok(Some(shown));
    }
    let threads = std::fs::read_dir(paths.host.procfs(format!("{process}/task")));
    let threads = threads.into_iter().flatten().flatten();
    for thread in threads.take(THREADS_ASKED_MAX) {
        let thread = format!("{process}/task/{}", thread.file_name().to_string_lossy());
        if let Some(shown) = shown_by(paths, &thread)? {
            return Ok(Some(shown));
        }
    }
    Ok(None)
}

/// `is_listed`: whether the process is in the container's cgroup still. There the kernel lists none that has ended with
/// all its threads.
fn layer_of(
    paths: &PodPaths,
    first: Pid,
    host_layer: Option<&Path>,
    is_listed: impl Fn() -> bool,
) -> Layer {
    let Shown {
        mountinfo: text,
        root,
    } = match shown_by_any(paths, &first.as_raw_nonzero().to_string()) {
        Ok(Some(shown)) => shown,
        Ok(None) if is_listed() => return Layer::Unknown(LayerUnknown::NotShown),
        Ok(None) => return Layer::Absent,
        Err(why) => return Layer::Unknown(why),
    };
    let root_device = (root.stx_dev_major, root.stx_dev_minor);
    let is_machines = |machine: Statx| {
        let device = (machine.stx_dev_major, machine.stx_dev_minor);
        (device, machine.stx_ino) == (root_device, root.stx_ino)
    };
    if root_of(paths, "1").is_ok_and(is_machines) {
        return Layer::Absent;
    }
    let Some(RootMount {
        device,
        is_overlay,
        upper,
    }) = root_mount(&text)
    else {
        return Layer::Unknown(LayerUnknown::OtherRoot);
    };
    if device != root_device {
        return Layer::Unknown(LayerUnknown::OtherRoot);
    }
    match upper {
        _ if !is_overlay => Layer::Unknown(LayerUnknown::NoOverlay),
        // Read-only.
        None => Layer::Absent,
        Some(upper) if Some(upper.as_path()) == host_layer => Layer::Absent,
        Some(upper) => match RuntimePath::new(&upper, &paths.layer_roots) {
            Some(path) => Layer::At(path),
            None => Layer::Unknown(LayerUnknown::Elsewhere),
        },
    }
}

/// Whether a process is in a cgroup or below it, by the kernel's count; `None`: cgroup v1 has none.
fn is_populated(dir: &Path) -> Option<bool> {
    let events = ControlFile::open(dir.join("cgroup.events")).ok()?;
    let [populated] = events.read_keyed(&["populated"]).ok()?;
    populated.map(|populated| populated != 0)
}

/// A search for processes in a cgroup, else in those below.
struct Search {
    /// Some of those of the first cgroup that has any.
    pids: Vec<Pid>,
    cgroups_left: usize,
    /// Whether there are cgroups that were not searched for want of cgroups or levels left.
    is_cut: bool,
}

impl Search {
    fn of(dir: &Path) -> Self {
        let mut search = Self {
            pids: Vec::new(),
            cgroups_left: CGROUPS_SEARCHED_MAX,
            is_cut: false,
        };
        search.visit(dir, SEARCH_DEPTH_MAX);
        search
    }

    fn visit(&mut self, dir: &Path, depth_left: usize) {
        self.cgroups_left = self.cgroups_left.saturating_sub(1);
        if let Ok(text) = read_text(dir.join("cgroup.procs")) {
            let listed = text.lines().take(PROCESSES_ASKED_MAX);
            let listed = listed.filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
            self.pids.extend(listed);
        }
        if !self.pids.is_empty() {
            return;
        }
        for child in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if !child.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if depth_left == 0 || self.cgroups_left == 0 {
                self.is_cut = true;
                return;
            }
            self.visit(&child.path(), depth_left - 1);
            if !self.pids.is_empty() {
                return;
            }
        }
    }
}
