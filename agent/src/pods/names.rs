//! From the path of a cgroup to the pod, QoS class and container that it belongs to, and back, by the names that the
//! kubelet and the runtimes give.
//!
//! **Problem.** The kubelet has two cgroup drivers, runtimes name containers as they like, and `--cgroup-root` puts all
//! of it anywhere. None of it is configured for the agent. **Approach.** [`KubeletTree::find`] looks for the tree that
//! has pods. Of two trees with pods neither is right: that is an error.
//!
//! | driver | pod | container |
//! |---|---|---|
//! | cgroupfs | `[ROOT/]kubepods[/burstable\|/besteffort]/podUID` | containerd, cri-dockerd `/ID`; CRI-O `/crio-ID` |
//! | systemd | `[ROOT.slice/]kubepods.slice[/kubepods-burstable.slice]/kubepods-burstable-podUID.slice`, `-` of the UID as `_` | `/cri-containerd-ID.scope`, `/crio-ID.scope`, `/docker-ID.scope` |
//!
//! With systemd each level has the names of those above it: below `--cgroup-root=/kubelet` the tree is
//! `kubelet.slice/kubelet-kubepods.slice`. crun has its processes in `container` below the scope. `crio-conmon-ID` is
//! no container. Sources: 1.36, pkg/kubelet/cm/pod_container_manager_linux.go `GetPodContainerName`,
//! pkg/kubelet/cm/cgroup_manager_linux.go `ToSystemd`.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::qos::QosClass;

use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupMounts, CgroupPath, Controller, Hierarchy};
use crate::host::file::{FileError, errno_of, read_text, read_whole};
use crate::pods::paths::{KUBEPODS, children, tier};

/// Names this pod by the downward API, where its cgroup namespace hides the path.
pub const POD_UID_VARIABLE: &str = "PLIMSOLL_POD_UID";
/// Below a scope of systemd, crun has the processes of the container here.
pub const CRUN_CONTAINER: &str = "container";
/// CRI-O's containers begin with it, with either driver.
pub const CRIO: &str = "crio-";
const MONITOR: &str = "crio-conmon-";
/// Digits of a container's id: what containerd, CRI-O and Docker make.
const ID_DIGITS: usize = 64;
/// Levels below the mount, or below `--cgroup-root`, at which the tree is looked for.
const LEVELS_MAX: usize = 4;
/// Directories that are looked at for it.
const DIRECTORIES_MAX: usize = 4096;

/// How the kubelet names cgroups (`cgroupDriver`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Driver {
    /// Directories.
    Cgroupfs,
    /// Units of systemd.
    Systemd,
}

impl Driver {
    /// As in the kubelet's configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }
}

/// The pods to which a cgroup belongs: `kubepods/burstable/podUID/…` of the cgroupfs driver,
/// `kubepods-burstable-podUID.slice` of the systemd driver. Several where a node is itself a container of a pod.
pub fn pods_of(cgroup: &Path) -> Vec<PodUid> {
    let mut above: &[u8] = b"";
    let pods = cgroup.components().filter_map(|component| {
        let name = component.as_os_str().as_bytes();
        let above = std::mem::replace(&mut above, name);
        let pod = pod_at(above, name).map(|(uid, _)| uid);
        pod.or_else(|| pod_beside(above, name))
    });
    pods.collect()
}

/// A pod of the cgroupfs driver as a process in a cgroup namespace of its own sees it: `/../../podUID`. The tier that
/// both are in has no name there.
fn pod_beside(above: &[u8], name: &[u8]) -> Option<PodUid> {
    let uid = name.strip_prefix(b"pod").filter(|_| above == b"..")?;
    let is_uid = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    let uid = std::str::from_utf8(uid).ok()?;
    (!uid.is_empty() && uid.bytes().all(is_uid)).then(|| PodUid::new(uid))
}

/// The pod whose cgroup has this name in a directory of that name.
fn pod_at(above: &[u8], name: &[u8]) -> Option<(PodUid, QosClass)> {
    let of_tier = || {
        let class = match above {
            b"kubepods" => QosClass::Guaranteed,
            b"burstable" => QosClass::Burstable,
            b"besteffort" => QosClass::BestEffort,
            _ => return None,
        };
        Some((name.strip_prefix(b"pod")?.to_vec(), class))
    };
    let (uid, class) = of_tier().or_else(|| of_slice(name))?;
    let uid = String::from_utf8(uid).ok().filter(|uid| !uid.is_empty())?;
    Some((PodUid::new(uid), class))
}

/// systemd takes `-` for a level of its own, so that a UID has `_` in its place.
fn of_slice(name: &[u8]) -> Option<(Vec<u8>, QosClass)> {
    const POD: &[u8] = b"-pod";
    let name = name.strip_suffix(b".slice")?;
    let at = name.windows(POD.len()).rposition(|part| part == POD)?;
    let (tier, uid) = (&name[..at], &name[at + POD.len()..]);
    let with_class = |suffix: &[u8], class| Some((tier.strip_suffix(suffix)?, class));
    let (kubepods, class) = with_class(b"-burstable", QosClass::Burstable)
        .or_else(|| with_class(b"-besteffort", QosClass::BestEffort))
        .unwrap_or((tier, QosClass::Guaranteed));
    if kubepods != b"kubepods" && !kubepods.ends_with(b"-kubepods") {
        return None;
    }
    let dashes = uid.iter().map(|byte| match byte {
        b'_' => b'-',
        byte => *byte,
    });
    Some((dashes.collect(), class))
}

/// The id of the container, or of the sandbox, whose cgroup has this name; `None` for what is neither.
pub fn container_id(name: &str) -> Option<&str> {
    let id = match name.strip_suffix(".scope") {
        Some(unit) => unit.rsplit_once('-')?.1,
        None => name.strip_prefix(CRIO).unwrap_or(name),
    };
    (is_id(id) && !name.starts_with(MONITOR)).then_some(id)
}

/// Whether a directory in a pod's cgroup is that of CRI-O's monitor of a container (`conmon_cgroup = "pod"`): it is
/// told when the container has ended, and has to live to say how.
pub fn is_monitor(name: &str) -> bool {
    let id = name.strip_prefix(MONITOR);
    id.is_some_and(|id| is_id(id.strip_suffix(".scope").unwrap_or(id)))
}

fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && is_hex(text)
}

/// The name of the container whose cgroup has this name, as the API lists it; `None` for the sandbox, and for what is
/// not listed yet.
pub fn container_name<'pod>(pod: &'pod Pod, directory: &str) -> Option<&'pod str> {
    let id = container_id(directory)?;
    let mut statuses = pod.status.containers();
    let status = statuses.find(|status| status.id() == Some(id))?;
    Some(&status.name)
}

fn is_hex(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A pod's cgroup, as the kubelet has made it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodCgroup {
    /// Whose it is. Of a static pod: the hash, not the UID that the API server gives its mirror.
    pub uid: PodUid,
    /// In which class it is.
    pub class: QosClass,
    /// Where it is in each hierarchy.
    pub path: CgroupPath,
}

/// Why it is not known where the kubelet has its pods.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// There is none.
    #[error(
        "no cgroup named kubepods or kubepods.slice was found below {root} in {mounts}: start the kubelet first, or say with --cgroup-root where it is (its own --cgroup-root)"
    )]
    None {
        /// Below which it was looked for.
        root: CgroupPath,
        /// The mounts that were searched.
        mounts: String,
    },
    /// Two have pods.
    #[error(
        "{first} and {second} both have pods, and only one is this kubelet's: name the cgroup above it with --cgroup-root, or remove the other one (the rest of an earlier kubelet with another cgroupDriver?)"
    )]
    Both {
        /// One of them.
        first: CgroupPath,
        /// Another.
        second: CgroupPath,
    },
    /// A directory cannot be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

/// The cgroups of a kubelet's pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubeletTree {
    kubepods: CgroupPath,
    driver: Driver,
}

impl KubeletTree {
    /// Looks for it, in all hierarchies in which pods have cgroups; below `root` if that is not empty (the kubelet's
    /// `--cgroup-root`, in either form). Of several the one with pods; what is in a container (a node of kind or k3d
    /// below Docker's cgroup) only where nothing else is.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn find(mounts: &CgroupMounts, root: &CgroupPath) -> Result<Self, TreeError> {
        let mut found = BTreeSet::new();
        for hierarchy in hierarchies(mounts) {
            let roots = [root.clone(), slice_of(root)?];
            for root in roots.iter().collect::<BTreeSet<_>>() {
                trees_below(hierarchy, root, &mut found)?;
            }
        }
        let mut with_pods = Vec::new();
        for tree in &found {
            if !tree.pods(mounts)?.is_empty() {
                with_pods.push(tree);
            }
        }
        let is_outside = |tree: &&KubeletTree| {
            let below = tree.kubepods.as_path().strip_prefix(root.as_path());
            let mut names = below.unwrap_or(tree.kubepods.as_path()).iter();
            !names.any(|name| {
                name.to_str()
                    .is_some_and(|name| container_id(name).is_some())
            })
        };
        let outside: Vec<_> = with_pods.iter().copied().filter(is_outside).collect();
        if !outside.is_empty() {
            with_pods = outside;
        }
        // Before the first pod is there, a single tree is the right one too.
        match (&with_pods[..], found.len()) {
            ([first, second, ..], _) => Err(TreeError::Both {
                first: first.kubepods.clone(),
                second: second.kubepods.clone(),
            }),
            ([tree], _) => Ok((*tree).clone()),
            ([], 1) => found.into_iter().next().ok_or_else(|| none(mounts, root)),
            ([], _) => Err(none(mounts, root)),
        }
    }

    /// How its cgroups are named.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// The cgroup of all pods.
    pub fn kubepods(&self) -> &CgroupPath {
        &self.kubepods
    }

    /// The cgroup of all pods of a class.
    ///
    /// # Errors
    /// None for a tree that was found.
    pub fn tier(&self, class: QosClass) -> Result<CgroupPath, CgroupError> {
        let Some(tier) = tier(class) else {
            return Ok(self.kubepods.clone());
        };
        match self.driver {
            Driver::Cgroupfs => self.kubepods.join(tier),
            Driver::Systemd => self.kubepods.join(&format!("{}-{tier}.slice", self.stem())),
        }
    }

    /// The cgroup of a pod.
    ///
    /// # Errors
    /// [`CgroupError::BadPath`] for a UID that cannot name a cgroup.
    pub fn pod(&self, class: QosClass, uid: &PodUid) -> Result<CgroupPath, CgroupError> {
        let bad = uid.as_str().is_empty() || uid.as_str().contains('/');
        if bad {
            let path = uid.to_string();
            return Err(CgroupError::BadPath { path });
        }
        let name = match self.driver {
            Driver::Cgroupfs => format!("pod{uid}"),
            Driver::Systemd => {
                let class = tier(class).map_or(String::new(), |tier| format!("-{tier}"));
                let uid = uid.as_str().replace('-', "_");
                format!("{}{class}-pod{uid}.slice", self.stem())
            }
        };
        self.tier(class)?.join(&name)
    }

    /// All pods that have a cgroup, sorted by UID; each once.
    ///
    /// # Errors
    /// When a directory cannot be read; one that is gone has no pods.
    pub fn pods(&self, mounts: &CgroupMounts) -> Result<Vec<PodCgroup>, CgroupError> {
        let mut pods = Vec::new();
        for class in [
            QosClass::Guaranteed,
            QosClass::Burstable,
            QosClass::BestEffort,
        ] {
            let tier = self.tier(class)?;
            let above = tier.as_path().file_name().unwrap_or_default().as_bytes();
            for hierarchy in hierarchies(mounts) {
                for name in children(&hierarchy.dir(&tier))? {
                    // A UID is text.
                    let (Some((uid, of)), Some(name)) =
                        (pod_at(above, name.as_bytes()), name.to_str())
                    else {
                        continue;
                    };
                    if of == class {
                        let path = tier.join(name)?;
                        pods.push(PodCgroup { uid, class, path });
                    }
                }
            }
        }
        pods.sort();
        pods.dedup_by(|left, right| left.uid == right.uid);
        Ok(pods)
    }

    /// Whether a path of a record is below kubepods: from the hierarchy's root, with a slash before. Allocates nothing.
    pub fn has_below(&self, path: &[u8]) -> bool {
        let below = path.strip_prefix(b"/").and_then(|path| {
            let kubepods = self.kubepods.as_path().as_os_str().as_bytes();
            path.strip_prefix(kubepods)
        });
        below.is_some_and(|below| below.starts_with(b"/"))
    }

    /// The pod in one of whose containers a process is. For a process that sees its own cgroups from a namespace, which
    /// hides their names.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn pod_of_process(
        &self,
        mounts: &CgroupMounts,
        pid: u32,
    ) -> Result<Option<PodUid>, CgroupError> {
        let pid = pid.to_string();
        let has = |dir: &Path| {
            read_text(dir.join("cgroup.procs"))
                .is_ok_and(|procs| procs.lines().any(|line| line == pid))
        };
        for pod in self.pods(mounts)? {
            for hierarchy in hierarchies(mounts) {
                let dir = hierarchy.dir(&pod.path);
                for name in children(&dir)? {
                    let container = dir.join(name);
                    if has(&container) || has(&container.join(CRUN_CONTAINER)) {
                        return Ok(Some(pod.uid));
                    }
                }
            }
        }
        Ok(None)
    }

    /// What its units begin with.
    fn stem(&self) -> String {
        let name = self.kubepods.as_path().file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        name.strip_suffix(".slice").unwrap_or(&name).to_owned()
    }
}

fn none(mounts: &CgroupMounts, root: &CgroupPath) -> TreeError {
    let mounts: Vec<String> = hierarchies(mounts)
        .map(|hierarchy| hierarchy.mount.to_string_lossy().into_owned())
        .collect();
    TreeError::None {
        root: root.clone(),
        mounts: mounts.join(", "),
    }
}

/// Where pods are looked for: where memory is accounted, and in the unified tree.
fn hierarchies(mounts: &CgroupMounts) -> impl Iterator<Item = &Hierarchy> {
    let memory = mounts.hierarchy_of(Controller::Memory).ok();
    let unified = mounts.unified().filter(move |one| Some(*one) != memory);
    memory.into_iter().chain(unified)
}

/// A cgroup root as the systemd driver has it: `/kubelet/my-node` is `kubelet.slice/kubelet-my_node.slice`
/// (`escapeSystemdCgroupName` of `pkg/kubelet/cm/cgroup_manager_linux.go`).
fn slice_of(root: &CgroupPath) -> Result<CgroupPath, CgroupError> {
    let (mut path, mut stem) = (CgroupPath::default(), String::new());
    for name in root.as_path().iter() {
        let name = name.to_string_lossy();
        if name.ends_with(".slice") {
            return Ok(root.clone());
        }
        let dash = if stem.is_empty() { "" } else { "-" };
        stem = format!("{stem}{dash}{}", name.replace('-', "_"));
        path = path.join(&format!("{stem}.slice"))?;
    }
    Ok(path)
}

fn trees_below(
    hierarchy: &Hierarchy,
    root: &CgroupPath,
    found: &mut BTreeSet<KubeletTree>,
) -> Result<(), CgroupError> {
    let mut pending = VecDeque::from([(root.clone(), 0)]);
    let mut looked_at = 0;
    while let Some((path, level)) = pending.pop_front() {
        looked_at += 1;
        if looked_at > DIRECTORIES_MAX {
            return Ok(());
        }
        for name in children(&hierarchy.dir(&path))? {
            // What is not text is not the kubelet's, nor is a line feed.
            let child = name.to_str().and_then(|name| path.join(name).ok());
            let (Some(name), Some(child)) = (name.to_str(), child) else {
                continue;
            };
            let driver = match name.strip_suffix(".slice") {
                None if name == KUBEPODS => Some(Driver::Cgroupfs),
                Some(stem) if stem == KUBEPODS || stem.ends_with("-kubepods") => {
                    Some(Driver::Systemd)
                }
                _ => None,
            };
            let is_leaf = name.ends_with(".service") || name.ends_with(".scope");
            match driver {
                Some(driver) => {
                    found.insert(KubeletTree {
                        kubepods: child,
                        driver,
                    });
                }
                None if level + 1 < LEVELS_MAX && !is_leaf => pending.push_back((child, level + 1)),
                None => {}
            }
        }
    }
    Ok(())
}

/// Inode number of the initial cgroup namespace (include/linux/proc_ns.h, `PROC_CGROUP_INIT_INO`).
const INITIAL_CGROUP_NAMESPACE: u64 = 0xEFFF_FFFB;

/// Whether this process sees its cgroups from a namespace of its own, and is not told in which pod it runs: then its
/// pod is unknown.
pub fn is_pod_hidden(host: &HostRoot) -> bool {
    let namespace = std::fs::metadata(host.procfs("self/ns/cgroup"));
    namespace.is_ok_and(|namespace| namespace.ino() != INITIAL_CGROUP_NAMESPACE)
        && std::env::var_os(POD_UID_VARIABLE).is_none()
}

/// The pods that this process runs in, as far as its cgroups and [`POD_UID_VARIABLE`] say; none outside of a pod.
///
/// # Errors
/// When the cgroups of this process cannot be read.
pub fn pods_of_this_process(host: &HostRoot) -> Result<Vec<PodUid>, FileError> {
    let named = std::env::var(POD_UID_VARIABLE).ok();
    let named = named.filter(|uid| !uid.is_empty()).map(PodUid::new);
    let mut pods = pods_of_process(host, "self")?;
    pods.extend(named);
    pods.sort();
    pods.dedup();
    Ok(pods)
}

/// The pods that a process of `/proc` runs in, by its cgroups: of each hierarchy, unsorted.
///
/// # Errors
/// When its cgroups cannot be read.
pub fn pods_of_process(host: &HostRoot, process: &str) -> Result<Vec<PodUid>, FileError> {
    let file = host.procfs(format!("{process}/cgroup"));
    let refused = |error: std::io::Error| FileError::new_read(&Arc::from(&*file), errno_of(&error));
    // A container names the cgroups in its own as it likes: that need not be text.
    let lines = read_whole(&file).map_err(refused)?;
    let lines = lines.split(|byte| *byte == b'\n');
    let paths = lines.filter_map(|line| line.splitn(3, |byte| *byte == b':').nth(2));
    let pods = paths.flat_map(|path| pods_of(Path::new(OsStr::from_bytes(path))));
    Ok(pods.collect())
}

#[cfg(test)]
mod tests;
