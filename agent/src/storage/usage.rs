//! What each pod has on the node's disks: writable layers, logs and volumes, directory by directory.
//!
//! **What is measured** is what the kubelet measures, where it lays it out:
//! - *Volumes*: `<kubelet-dir>/pods/<UID>/volumes/kubernetes.io~<plugin>/<volume>`, for the plugins whose space counts
//!   against the pod ([`VolumePlugin`]; `IsLocalEphemeralVolume` in `pkg/volume/util/util.go`). hostPath is not: its
//!   plugin has no metrics (`hostPath` embeds `MetricsNil` in `pkg/volume/hostpath/host_path.go`), so the kubelet's
//!   summary, and its ranking, know nothing of it.
//! - *Logs*: `<logs-dir>/<namespace>_<name>_<UID>/<container>` (`BuildContainerLogsDirectory` in
//!   `pkg/kubelet/kuberuntime/helpers.go`).
//! - *Files that the kubelet makes for the pod* and that its containers may write: `<kubelet-dir>/pods/<UID>/etc-hosts`
//!   (`getEtcHostsPath` in pkg/kubelet/kubelet_pods.go), and in `<kubelet-dir>/pods/<UID>/containers/<container>` a
//!   file for each termination message, which the kubelet does not count. Pods can make no names there.
//! - *Writable layers*: the upper directory of the overlay that is the root of the container's first process
//!   ([`super::layer`]).
//!
//! **How**: by project quota where the directory is the root of a project of its own, and *every* pod is in a user
//! namespace of its own: one system call, exact, and files that are deleted but still open count too. *Of its own*
//! means: things made in it inherit the project, the directory above has another, and no other measured directory has
//! the same. In the machine's user namespace whoever owns a file can give it any project (`fileattr_set_prepare` in
//! fs/file_attr.c): one pod there makes its own figure what it likes, and that of every other pod larger. Otherwise it
//! is walked ([`super::walk`]). Each time anew: nothing a directory shows tells that no file below has grown, so no
//! figure is kept because a directory looks unchanged.
//!
//! **Bounds.** A pod may make or move names faster than they are read, and trees deeper than we go. A walk ends after
//! so many names ([`NAMES_MAX`]), and those of one pod share a bound, too ([`FULL_WALKS`]): the pods after it get their
//! figures. A directory in which directories were moved during the count is counted again ([`MOVED_WALKS`]). The figure
//! is then what was counted, and is said to be short; in the rankings the pod has none ([`PodStorage::is_cut`]).
//!
//! **Terms.** *survey*: one measurement of a list of pods, a slice at a time.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::reading::{ContainerStorage, PodStorage, Used, VolumeStorage};
use rustix::fs::{CWD, Mode, StatxAttributes, openat};
use rustix::io::Errno;

use super::descent::{NAMES_MAX, OPEN_DIRECTORY, status_at};
use super::layer::{Layer, LayerUnknown, RuntimePath, container_layer, host_layer};
use super::mountinfo::MountKinds;
use super::pod_paths::{PodPaths, mountinfo};
use super::walk::{Walk, Walked};
use crate::host::cgroup::CgroupMounts;
use crate::host::clock::now_ns;
use crate::host::shown::Show as _;
use crate::host::syscall::{project_of, project_usage};
use crate::pods::directories::PodDirs;

/// How many walks of one pod may be as long as a walk may be. When as many names were read, each further walk of that
/// pod in the same survey is short.
const FULL_WALKS: u32 = 4;
/// Which part of the longest a short walk is. It sees a few large files wherever they are.
const SHORT_WALK_PART: u32 = 40;
/// How many times in a row a directory is walked in which directories were moved meanwhile. A walk loses its way only
/// if one leaves its parent while we are more than [`OPEN_MAX`](super::descent::OPEN_MAX) levels below that. A pod may
/// do that once by chance. One that does it during three walks in a row does it because of them: it counts as one whose
/// count ended early. No figure of an earlier survey takes part, so that nothing a pod once had is held against it.
const MOVED_WALKS: u8 = 3;

/// Which part of a pod a directory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The writable layer of the container of this name.
    Rootfs(String),
    /// The logs of the container of this name.
    Logs(String),
    /// The volume of this name.
    Volume(String),
    /// Its `/etc/hosts`.
    EtcHosts,
    /// Its termination messages.
    TerminationMessages,
}

/// How a directory was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeasuredBy {
    /// The file system keeps count for this project.
    Quota {
        /// The project.
        project: u32,
    },
    /// Every file was looked at.
    Walked(Walked),
    /// It could not be read.
    Failed(Errno),
    /// The container runtime says so: the layer is not where it can be walked safely, or not known from here.
    Runtime,
    /// Nobody knows where it is.
    Unknown(LayerUnknown),
    /// A file system of this kind is mounted on it, whose server may never answer. What is there is not on the node's
    /// disks.
    Served(&'static str),
}

/// One directory, measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryReport {
    /// Whose.
    pub uid: PodUid,
    /// What of it.
    pub part: Part,
    /// Where; of a layer that is unknown the container's cgroup.
    pub path: PathBuf,
    /// How.
    pub way: MeasuredBy,
    /// The result.
    pub used: Used,
    /// When it was finished: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
}

impl DirectoryReport {
    /// Whether its count ended before it did, for something that its pod can bring about. What was moved in the last of
    /// its walks was moved in all ([`MOVED_WALKS`]).
    fn is_cut(&self) -> bool {
        let is_short =
            |walked: &Walked| walked.cut_at.is_some() || (walked.too_deep, walked.moved) != (0, 0);
        matches!(&self.way, MeasuredBy::Walked(walked) if is_short(walked))
    }

    /// Why the figures are less than what is there, if they are.
    pub fn shortfall(&self) -> Option<String> {
        match &self.way {
            MeasuredBy::Quota { .. } | MeasuredBy::Runtime => None,
            MeasuredBy::Walked(walked) if walked.is_complete() => None,
            // It ended in the meantime.
            MeasuredBy::Failed(Errno::NOENT) => None,
            MeasuredBy::Walked(walked) => Some(format!(
                "{path}: usage is inexact: {unreadable} unreadable, {moved} moved during the count, {deep} too deep, {links} hard links \
                 perhaps counted twice{cut}",
                path = self.path.shown(),
                cut = cut(walked),
                unreadable = walked.unreadable,
                moved = walked.moved,
                deep = walked.too_deep,
                links = walked.links_untracked,
            )),
            MeasuredBy::Failed(error) => {
                Some(format!("{}: {error}; not counted", self.path.shown()))
            }
            MeasuredBy::Served(kind) => Some(format!(
                "{}: {kind} is mounted there, a file system whose server may never answer; not counted",
                self.path.shown()
            )),
            MeasuredBy::Unknown(why) => Some(format!(
                "{}: how much this container has written is unknown, and not counted: {why}",
                self.path.shown()
            )),
        }
    }
}

/// That the count ended early, if it did.
fn cut(walked: &Walked) -> String {
    let said = |names| {
        format!(
            ", and the count ended after {names} names: there are more, or they are made faster than they are read"
        )
    };
    walked.cut_at.map(said).unwrap_or_default()
}

/// A pod, measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSurvey {
    /// The figures.
    pub storage: PodStorage,
    /// Where they come from.
    pub directories: Vec<DirectoryReport>,
}

/// A project on a device.
type ProjectKey = (u64, u32);

#[derive(Debug)]
struct Planned {
    part: Part,
    location: Location,
    project: Option<ProjectKey>,
}

#[derive(Debug)]
enum Location {
    /// On a path that is not the pod's.
    Path(PathBuf),
    /// A single file, on a path that is not the pod's.
    File(PathBuf),
    /// A layer.
    Layer(RuntimePath),
    /// A layer that the runtime has measured; the container's cgroup.
    Runtime(PathBuf, Used),
    /// A layer that is somewhere; the container's cgroup.
    Unknown(PathBuf, LayerUnknown),
}

impl Location {
    fn path(&self, paths: &PodPaths) -> PathBuf {
        match self {
            Self::Path(path)
            | Self::File(path)
            | Self::Runtime(path, _)
            | Self::Unknown(path, _) => path.clone(),
            Self::Layer(layer) => layer.path(paths),
        }
    }

    /// Opens it, unless that would ask a server.
    fn open(&self, paths: &PodPaths, kinds: &mut MountKinds) -> Result<OwnedFd, MeasuredBy> {
        match self {
            Self::Path(path) => match served(paths, kinds, path) {
                Some(kind) => Err(MeasuredBy::Served(kind)),
                None => {
                    openat(CWD, path, OPEN_DIRECTORY, Mode::empty()).map_err(MeasuredBy::Failed)
                }
            },
            Self::Layer(layer) => layer.open(paths).map_err(MeasuredBy::Failed),
            Self::File(path) => Err(match status_at(CWD, path) {
                Ok(status) => MeasuredBy::Walked(Walked::of_file(&status)),
                Err(error) => MeasuredBy::Failed(error),
            }),
            Self::Runtime(..) => Err(MeasuredBy::Runtime),
            Self::Unknown(_, why) => Err(MeasuredBy::Unknown(*why)),
        }
    }
}

/// The kind of file system that is mounted on a directory, if it is one that asks a server for everything. The server
/// is not asked for this.
fn served(paths: &PodPaths, kinds: &mut MountKinds, path: &Path) -> Option<&'static str> {
    let status = status_at(CWD, path).ok()?;
    let is_mount = status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    if !is_mount {
        return None;
    }
    if kinds.served(status.stx_mnt_id).is_none() {
        // Made since the list was read.
        *kinds = MountKinds::of(&mountinfo(&paths.host, "self")?);
    }
    kinds.served(status.stx_mnt_id)?
}

/// Walks of one directory in which directories were moved.
#[derive(Debug, Clone, Copy, Default)]
struct Moved {
    walks: u8,
    /// The most that any of them has counted.
    most: Walked,
}

/// A survey under way.
#[derive(Debug)]
pub struct Survey {
    pods: Arc<[PodDirs]>,
    /// Of each pod, once it was looked for.
    plans: Vec<Vec<Planned>>,
    /// How many directories are in each project.
    projects: BTreeMap<ProjectKey, u32>,
    /// The pod that is measured.
    pod: usize,
    reports: Vec<DirectoryReport>,
    walk: Option<Walk>,
    /// Walks of the current directory that lost their way.
    moved: Moved,
    /// Names that one walk reads at most.
    pub(super) names_max: u32,
    /// Names that were read in directories of this pod that are finished.
    names: u32,
    /// Whether no pod can put files into the project of another.
    pub(super) believes_quotas: bool,
    /// The writable layer of the machine's own root, once it was looked for.
    host_layer: Option<Option<PathBuf>>,
    /// Of the agent's mount namespace, once a mount was met.
    mount_kinds: MountKinds,
}

impl Survey {
    /// A survey of these pods, in this order.
    pub fn of(pods: Arc<[PodDirs]>) -> Self {
        Self {
            believes_quotas: pods.iter().all(|pod| pod.has_user_namespace),
            plans: Vec::with_capacity(pods.len()),
            pods,
            projects: BTreeMap::new(),
            pod: 0,
            reports: Vec::new(),
            walk: None,
            moved: Moved::default(),
            names_max: NAMES_MAX,
            names: 0,
            host_layer: None,
            mount_kinds: MountKinds::default(),
        }
    }

    /// From now on everything is walked: a pod that is not in this survey can put files into the projects of those that
    /// are.
    pub fn doubt_quotas(&mut self) {
        self.believes_quotas = false;
    }

    /// Looks at about `entries` entries more and gives each pod that is finished to `finished`. Whether all are.
    ///
    /// All directories are found before the first is measured: only then is it known which share a project.
    pub fn advance(
        &mut self,
        paths: &PodPaths,
        mounts: &CgroupMounts,
        entries: u32,
        mut finished: impl FnMut(PodSurvey),
    ) -> bool {
        let mut left = entries;
        while let Some(pod) = self.pods.get(self.plans.len()) {
            if left == 0 {
                return false;
            }
            let host_layer = self.host_layer.get_or_insert_with(|| host_layer(paths));
            let kinds = &mut self.mount_kinds;
            let plan = plan(paths, mounts, pod, host_layer.as_deref(), kinds);
            left = left.saturating_sub(1 + u32::try_from(plan.len()).unwrap_or(u32::MAX));
            for directory in &plan {
                if let Some(key) = directory.project {
                    *self.projects.entry(key).or_default() += 1;
                }
            }
            self.plans.push(plan);
        }
        while self.pod < self.pods.len() {
            if left == 0 {
                return false;
            }
            match self.plans[self.pod].get(self.reports.len()) {
                None => {
                    let directories = std::mem::take(&mut self.reports);
                    finished(PodSurvey {
                        storage: assemble(&self.pods[self.pod], &directories),
                        directories,
                    });
                    self.pod += 1;
                    self.names = 0;
                    left -= 1;
                }
                Some(_) => match self.measure(paths, &mut left) {
                    Some(report) => self.reports.push(report),
                    None => return false,
                },
            }
        }
        true
    }

    /// How many names the next walk may read.
    fn names_left(&self) -> u32 {
        let of_pod = self.names_max.saturating_mul(FULL_WALKS);
        let left = of_pod.saturating_sub(self.names).min(self.names_max);
        left.max(self.names_max / SHORT_WALK_PART)
    }

    /// Goes on with the current directory. `left`: how many names the slice may still read; `None`: it ends before the
    /// directory does.
    fn measure(&mut self, paths: &PodPaths, left: &mut u32) -> Option<DirectoryReport> {
        let begun = match self.walk.take() {
            Some(walk) => Begun::Walk(walk),
            None => {
                *left = left.saturating_sub(1);
                self.begin(paths)
            }
        };
        let (way, used) = match begun {
            Begun::Measured(way, used) => (way, used),
            Begun::Walk(walk) => self.walk_on(walk, left)?,
        };
        self.moved = Moved::default();
        let planned = &self.plans[self.pod][self.reports.len()];
        Some(DirectoryReport {
            uid: self.pods[self.pod].uid.clone(),
            part: planned.part.clone(),
            path: planned.location.path(paths),
            way,
            used,
            at_ns: now_ns(),
        })
    }

    /// Begins with the current directory.
    fn begin(&mut self, paths: &PodPaths) -> Begun {
        let names_left = self.names_left();
        let planned = &self.plans[self.pod][self.reports.len()];
        let fd = match planned.location.open(paths, &mut self.mount_kinds) {
            Ok(fd) => fd,
            Err(way) => {
                let used = match (way, &planned.location) {
                    (MeasuredBy::Walked(walked), _) => by_walk(walked).1,
                    (_, Location::Runtime(_, used)) => *used,
                    _ => Used::default(),
                };
                return Begun::Measured(way, used);
            }
        };
        let alone = planned
            .project
            .filter(|key| self.believes_quotas && self.projects.get(key) == Some(&1));
        if let Some((way, used)) = alone.and_then(|key| by_quota(&fd, key)) {
            return Begun::Measured(way, used);
        }
        match Walk::start_at(fd.as_fd()) {
            Ok(walk) => Begun::Walk(walk.at_most(names_left)),
            Err(error) => Begun::Measured(MeasuredBy::Failed(error), Used::default()),
        }
    }

    fn walk_on(&mut self, mut walk: Walk, left: &mut u32) -> Option<(MeasuredBy, Used)> {
        let before = walk.names();
        let Some(walked) = walk.advance(*left) else {
            self.walk = Some(walk);
            return None;
        };
        // Not inodes: a file may have many names.
        *left = left.saturating_sub(walk.names() - before);
        self.names = self.names.saturating_add(walk.names());
        let Moved { walks, most } = &mut self.moved;
        most.bytes = most.bytes.max(walked.bytes);
        most.inodes = most.inodes.max(walked.inodes);
        if walked.moved == 0 && walked.cut_at.is_none() {
            return Some(by_walk(walked));
        }
        *walks += 1;
        if *walks < MOVED_WALKS && walked.cut_at.is_none() {
            // Without a walk the next slice begins with the same directory.
            return None;
        }
        Some(by_walk(Walked {
            bytes: most.bytes,
            inodes: most.inodes,
            ..walked
        }))
    }
}

/// A directory that is begun with.
enum Begun {
    /// It is known without a walk.
    Measured(MeasuredBy, Used),
    /// It is walked.
    Walk(Walk),
}

fn by_walk(walked: Walked) -> (MeasuredBy, Used) {
    let used = Used {
        bytes: Some(walked.bytes),
        inodes: Some(walked.inodes),
    };
    (MeasuredBy::Walked(walked), used)
}

/// The directories that a pod has.
fn plan(
    paths: &PodPaths,
    mounts: &CgroupMounts,
    pod: &PodDirs,
    host_layer: Option<&Path>,
    kinds: &mut MountKinds,
) -> Vec<Planned> {
    let mut plan = Vec::new();
    let mut add = |part, location: Location| match location.open(paths, kinds) {
        Ok(fd) => plan.push(Planned {
            part,
            project: project_rooted_at(&fd),
            location,
        }),
        Err(MeasuredBy::Failed(Errno::NOENT)) => {}
        // What cannot be read is said when it is measured.
        Err(_) => plan.push(Planned {
            part,
            location,
            project: None,
        }),
    };
    for container in &pod.containers {
        let rootfs = Part::Rootfs(container.name.clone());
        let cgroup = || container.cgroup.as_path().to_owned();
        let measured = paths.runtime_layers.of(&pod.uid, &container.name);
        match (
            container_layer(paths, mounts, &container.cgroup, host_layer),
            measured,
        ) {
            (Layer::At(layer), _) => add(rootfs, Location::Layer(layer)),
            // Beside a kubelet a container's cgroup has another name, and its processes are not found.
            (Layer::Absent | Layer::Unknown(_), Some(used)) => {
                add(rootfs, Location::Runtime(cgroup(), used));
            }
            (Layer::Absent, None) => {}
            (Layer::Unknown(why), None) => add(rootfs, Location::Unknown(cgroup(), why)),
        }
        let identity = (pod.namespace.as_str(), pod.name.as_str(), &pod.uid);
        if let Some(logs) = paths.container_logs_dir(identity, &container.name) {
            add(Part::Logs(container.name.clone()), Location::Path(logs));
        }
    }
    for volume in &pod.volumes {
        if let Some(path) = paths.volume_dir(&pod.uid, volume.plugin, &volume.name) {
            add(Part::Volume(volume.name.clone()), Location::Path(path));
        }
    }
    if let Some(dir) = paths.pod_dir(&pod.uid) {
        add(Part::EtcHosts, Location::File(dir.join("etc-hosts")));
        add(
            Part::TerminationMessages,
            Location::Path(dir.join("containers")),
        );
    }
    plan
}

/// The project that this directory is the root of.
fn project_rooted_at(fd: &OwnedFd) -> Option<ProjectKey> {
    let project = project_of(fd.as_fd()).ok()?;
    if project.id == 0 || !project.is_inherited {
        return None;
    }
    let above = openat(fd, c"..", OPEN_DIRECTORY, Mode::empty()).ok()?;
    // At the root of a file system the directory above is on another, which may know no projects.
    if project_of(above.as_fd()).is_ok_and(|above| above.id == project.id) {
        return None;
    }
    let device = std::fs::File::from(fd.try_clone().ok()?)
        .metadata()
        .ok()?
        .dev();
    Some((device, project.id))
}

fn by_quota(fd: &OwnedFd, key: ProjectKey) -> Option<(MeasuredBy, Used)> {
    if project_rooted_at(fd) != Some(key) {
        return None;
    }
    let (bytes, inodes) = project_usage(fd.as_fd(), key.1).ok()?;
    let used = Used {
        bytes: Some(bytes),
        inodes: Some(inodes),
    };
    Some((MeasuredBy::Quota { project: key.1 }, used))
}

fn assemble(pod: &PodDirs, reports: &[DirectoryReport]) -> PodStorage {
    let used = |part: Part| {
        reports
            .iter()
            .find(|report| report.part == part)
            .map(|report| report.used)
    };
    let containers = pod.containers.iter().map(|container| ContainerStorage {
        name: container.name.clone(),
        rootfs: used(Part::Rootfs(container.name.clone())).unwrap_or_default(),
        logs: used(Part::Logs(container.name.clone())).unwrap_or_default(),
    });
    let volumes = pod.volumes.iter().filter_map(|volume| {
        Some(VolumeStorage {
            name: volume.name.clone(),
            used: used(Part::Volume(volume.name.clone()))?,
        })
    });
    let files =
        [Part::EtcHosts, Part::TerminationMessages].map(|part| used(part).unwrap_or_default());
    let sum = |figure: fn(Used) -> Option<u64>| {
        let known = files.into_iter().filter_map(figure);
        known.reduce(u64::saturating_add)
    };
    PodStorage {
        uid: pod.uid.clone(),
        containers: containers.collect(),
        volumes: volumes.collect(),
        files: Used {
            bytes: sum(|used| used.bytes),
            inodes: sum(|used| used.inodes),
        },
        is_cut: reports.iter().any(DirectoryReport::is_cut),
    }
}

#[cfg(test)]
mod tests;
