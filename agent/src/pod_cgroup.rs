//! The cgroup tree of the pods, laid out as the kubelet's cgroupfs driver does it.
//!
//! ```text
//! <mount>/<cgroup root>/kubepods/pod<uid>/<container>                Guaranteed
//! <mount>/<cgroup root>/kubepods/burstable/pod<uid>/<container>      Burstable
//! <mount>/<cgroup root>/kubepods/besteffort/pod<uid>/<container>     BestEffort
//! ```
//!
//! On v1 and hybrid hosts the same path exists in each hierarchy that has a controller that pods need, and in the unified tree if one is
//! mounted: there it has no limits, but `cgroup.kill` and `cgroup.events`.
//! Source: `pkg/kubelet/cm/{pod_container_manager_linux,cgroup_manager_linux}.go` of 1.36, opencontainers/cgroups `fs` and `fs2`.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

use plimsoll_core::cgroup_config::CgroupConfig;
use plimsoll_core::pod::Pod;
use plimsoll_core::qos::QosClass;
use plimsoll_core::units::PodUid;

use crate::host::cgroup::{
    CgroupError, CgroupMounts, CgroupPath, Controller, Hierarchy, Version, cgroup_id,
};
use crate::host::file::{ControlFile, FileError, errno_of, read_text, write_text};
use crate::host::kill::{CGROUP_DEPTH_MAX, CGROUPS_PER_POD_MAX};
use crate::host::knobs::{KnobError, Ledger};

/// The cgroup of all pods.
pub const KUBEPODS: &str = "kubepods";
/// The controllers that pods need, where the host has them.
pub const POD_CONTROLLERS: [Controller; 5] = [
    Controller::Cpu,
    Controller::Memory,
    Controller::Pids,
    Controller::Hugetlb,
    Controller::Io,
];

const POD_PREFIX: &str = "pod";

/// The cgroup below `kubepods` for a QoS class; none for Guaranteed, whose pods are directly below it.
pub fn tier(class: QosClass) -> Option<&'static str> {
    match class {
        QosClass::Guaranteed => None,
        QosClass::Burstable => Some("burstable"),
        QosClass::BestEffort => Some("besteffort"),
    }
}

/// The cgroup of all pods.
///
/// # Errors
/// None for a root that is a [`CgroupPath`].
pub fn kubepods_path(cgroup_root: &CgroupPath) -> Result<CgroupPath, CgroupError> {
    cgroup_root.join(KUBEPODS)
}

/// The cgroup of all pods of a QoS class.
///
/// # Errors
/// None for a root that is a [`CgroupPath`].
pub fn tier_path(cgroup_root: &CgroupPath, class: QosClass) -> Result<CgroupPath, CgroupError> {
    let kubepods = kubepods_path(cgroup_root)?;
    tier(class).map_or(Ok(kubepods.clone()), |tier| kubepods.join(tier))
}

/// Where a pod's cgroup is, or will be.
///
/// # Errors
/// [`CgroupError::BadPath`] for a UID that cannot name a cgroup.
pub fn pod_path(cgroup_root: &CgroupPath, pod: &Pod) -> Result<CgroupPath, CgroupError> {
    child(
        &tier_path(cgroup_root, pod.qos_class())?,
        &format!("{POD_PREFIX}{}", pod.uid()),
    )
}

/// The cgroup of one of a pod's containers.
///
/// # Errors
/// [`CgroupError::BadPath`] for a name that cannot name a cgroup.
pub fn container_path(pod: &CgroupPath, container: &str) -> Result<CgroupPath, CgroupError> {
    child(pod, container)
}

fn child(parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError> {
    // One name, so that a slash in it cannot lead elsewhere.
    if name.contains('/') || name.is_empty() {
        return Err(CgroupError::BadPath {
            path: name.to_owned(),
        });
    }
    parent.join(name)
}

/// The hierarchies in which a pod has a cgroup, each with the pod controllers that it has.
pub fn pod_hierarchies(mounts: &CgroupMounts) -> Vec<(&Hierarchy, Vec<Controller>)> {
    let of = |hierarchy: &Hierarchy| -> Vec<Controller> {
        POD_CONTROLLERS
            .into_iter()
            .filter(|controller| mounts.hierarchy_of(*controller) == Ok(hierarchy))
            .collect()
    };
    mounts
        .hierarchies()
        .iter()
        .map(|hierarchy| (hierarchy, of(hierarchy)))
        .filter(|(hierarchy, controllers)| {
            !controllers.is_empty() || hierarchy.version == Version::V2
        })
        .collect()
}

/// Looks for a pod's cgroup in each QoS class: the class of a pod that runs is what it was when it was started.
pub fn find(mounts: &CgroupMounts, cgroup_root: &CgroupPath, uid: &PodUid) -> Option<CgroupPath> {
    [
        QosClass::Guaranteed,
        QosClass::Burstable,
        QosClass::BestEffort,
    ]
    .into_iter()
    .find_map(|class| {
        let path = child(
            &tier_path(cgroup_root, class).ok()?,
            &format!("{POD_PREFIX}{uid}"),
        )
        .ok()?;
        pod_hierarchies(mounts)
            .iter()
            .any(|(hierarchy, _)| hierarchy.has(&path))
            .then_some(path)
    })
}

/// All pods that have a cgroup, sorted by path, whoever made it.
///
/// # Errors
/// When a directory cannot be read; one that is gone has no pods.
pub fn list(
    mounts: &CgroupMounts,
    cgroup_root: &CgroupPath,
) -> Result<Vec<(PodUid, CgroupPath)>, CgroupError> {
    let mut pods = Vec::new();
    for class in [
        QosClass::Guaranteed,
        QosClass::Burstable,
        QosClass::BestEffort,
    ] {
        let tier = tier_path(cgroup_root, class)?;
        for (hierarchy, _) in pod_hierarchies(mounts) {
            for name in children(&hierarchy.dir(&tier))? {
                if let Some(uid) = name.strip_prefix(POD_PREFIX).filter(|uid| !uid.is_empty()) {
                    pods.push((PodUid::from(uid), child(&tier, &name)?));
                }
            }
        }
    }
    pods.sort_by(|left, right| left.1.cmp(&right.1));
    pods.dedup();
    Ok(pods)
}

/// A container's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerCgroup {
    /// Its directory's name: the container's name, or the id that a container runtime gave it.
    pub name: String,
    /// Its path in each hierarchy.
    pub path: CgroupPath,
    /// Its id in the hierarchy that accounts memory.
    pub id: u64,
}

/// The containers of a pod, in the hierarchy that accounts memory, sorted by name.
///
/// # Errors
/// [`FileError::Vanished`] when the pod's cgroup is gone.
pub fn containers(
    mounts: &CgroupMounts,
    pod: &CgroupPath,
) -> Result<Vec<ContainerCgroup>, CgroupError> {
    let hierarchy = mounts.hierarchy_of(Controller::Memory)?;
    let dir = hierarchy.dir(pod);
    cgroup_id(&dir)?;
    let mut containers = Vec::new();
    for name in children(&dir)? {
        match cgroup_id(&dir.join(&name)) {
            Ok(id) => containers.push(ContainerCgroup {
                path: child(pod, &name)?,
                name,
                id,
            }),
            Err(error) if error.is_vanished() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(containers)
}

/// Whether any process is left in a cgroup or below it. A pod that had processes and has none any more has ended.
///
/// # Errors
/// When a control file cannot be read; a cgroup that is gone is empty.
pub fn is_populated(mounts: &CgroupMounts, cgroup: &CgroupPath) -> Result<bool, FileError> {
    for (hierarchy, _) in pod_hierarchies(mounts) {
        let dir = hierarchy.dir(cgroup);
        let populated = match hierarchy.version {
            Version::V2 => ControlFile::open(dir.join("cgroup.events"))
                .and_then(|events| events.read_keyed(&["populated"]))
                .map(|[populated]| populated == Some(1)),
            Version::V1 => has_processes(&dir, CGROUP_DEPTH_MAX),
        };
        match populated {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) if error.is_vanished() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn has_processes(dir: &Path, depth_left: usize) -> Result<bool, FileError> {
    if !read_text(dir.join("cgroup.procs"))?.is_empty() {
        return Ok(true);
    }
    if depth_left == 0 {
        return Ok(false);
    }
    for name in children(dir)? {
        match has_processes(&dir.join(name), depth_left - 1) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) if error.is_vanished() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Removes a pod's cgroup and those below it in every hierarchy, as far as they are empty. The kernel refuses the others.
///
/// Returns whether nothing of it is left.
///
/// # Errors
/// When a directory cannot be read, or cannot be removed for another reason than being in use.
pub fn remove_empty(mounts: &CgroupMounts, pod: &CgroupPath) -> Result<bool, FileError> {
    let mut is_gone = true;
    for (hierarchy, _) in pod_hierarchies(mounts) {
        is_gone &= remove_tree(&hierarchy.dir(pod), CGROUP_DEPTH_MAX)?;
    }
    Ok(is_gone)
}

fn remove_tree(dir: &Path, depth_left: usize) -> Result<bool, FileError> {
    use rustix::io::Errno;
    if depth_left > 0 {
        for name in children(dir)? {
            remove_tree(&dir.join(name), depth_left - 1)?;
        }
    }
    match std::fs::remove_dir(dir).map_err(|error| errno_of(&error)) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::BUSY | Errno::NOTEMPTY) => Ok(false),
        Err(source) => Err(FileError::Unwritable {
            path: Arc::from(dir),
            source,
        }),
    }
}

/// Names of a cgroup's children, sorted, at most [`CGROUPS_PER_POD_MAX`] times a thousand; none when it is gone.
fn children(dir: &Path) -> Result<Vec<String>, FileError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(FileError::Unreadable {
                path: Arc::from(dir),
                source: errno_of(&error),
            });
        }
    };
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .take(CGROUPS_PER_POD_MAX * 1000)
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// Why a cgroup does not have its limits.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A name that cannot name a cgroup.
    #[error(transparent)]
    Path(#[from] CgroupError),
    /// The specification asks for something that needs a controller which no hierarchy has.
    #[error("{field} needs a cgroup controller: {source}; or take {field} out of the manifest")]
    NoController {
        /// What of the pod asks for it.
        field: String,
        /// Which controller, and what to do.
        #[source]
        source: CgroupError,
    },
    /// The machine has no huge pages of this size.
    #[error("{field}: this kernel has no huge pages of that size ({path} does not exist); see /sys/kernel/mm/hugepages", path = path.display())]
    NoPageSize {
        /// What of the pod asks for it.
        field: String,
        /// The control file that is missing.
        path: Arc<Path>,
    },
    /// A control file refused its value.
    #[error("{field} = {value}: {source}")]
    Refused {
        /// What of the pod asks for it.
        field: &'static str,
        /// What was written.
        value: String,
        /// The file and the kernel's answer.
        #[source]
        source: FileError,
    },
    /// The hugetlb control files cannot be listed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl ApplyError {
    /// Whether the cgroup was removed meanwhile.
    pub fn is_vanished(&self) -> bool {
        match self {
            Self::Path(error) => error.is_vanished(),
            Self::Refused { source, .. } | Self::File(source) => source.is_vanished(),
            Self::NoController { .. } | Self::NoPageSize { .. } => false,
        }
    }
}

/// Creates a cgroup in all hierarchies that pods have one in. What is created or enabled is in the ledger.
///
/// # Errors
/// [`KnobError`].
pub fn create(
    mounts: &CgroupMounts,
    cgroup: &CgroupPath,
    ledger: &mut Ledger,
) -> Result<(), KnobError> {
    for (hierarchy, controllers) in pod_hierarchies(mounts) {
        ledger.create_cgroup(hierarchy, cgroup, &controllers)?;
    }
    Ok(())
}

/// Writes the limits of a pod's or container's cgroup. Returns one line for each controller that is missing and that the
/// specification did not ask for.
///
/// These are not in the ledger: they are gone with the cgroup, which is.
///
/// # Errors
/// [`ApplyError`] names the pod's field and the controller or file.
pub fn apply(
    mounts: &CgroupMounts,
    cgroup: &CgroupPath,
    config: &CgroupConfig,
) -> Result<Vec<String>, ApplyError> {
    let notes = apply_cpu_memory_pids(mounts, cgroup, config)?;
    apply_huge_pages(mounts, cgroup, config)?;
    Ok(notes)
}

fn apply_cpu_memory_pids(
    mounts: &CgroupMounts,
    cgroup: &CgroupPath,
    config: &CgroupConfig,
) -> Result<Vec<String>, ApplyError> {
    let mut notes = Vec::new();
    let mut write = |controller,
                     field: &'static str,
                     is_asked: bool,
                     values: &dyn Fn(Version) -> Vec<(&'static str, String)>| {
        let hierarchy = match mounts.hierarchy_of(controller) {
            Ok(hierarchy) => hierarchy,
            Err(source) if is_asked => {
                return Err(ApplyError::NoController {
                    field: field.to_owned(),
                    source,
                });
            }
            Err(source) => {
                notes.push(source.to_string());
                return Ok(());
            }
        };
        for (file, value) in values(hierarchy.version) {
            let path = hierarchy.dir(cgroup).join(file);
            write_text(&path, &value).map_err(|source| ApplyError::Refused {
                field,
                value,
                source,
            })?;
        }
        Ok(())
    };
    if let (Some(shares), Some(weight)) = (config.cpu_shares, config.cpu_weight) {
        let is_asked = shares > plimsoll_core::cgroup_config::SHARES_MIN;
        write(
            Controller::Cpu,
            "resources.requests.cpu",
            is_asked,
            &|version| match version {
                Version::V1 => vec![("cpu.shares", shares.to_string())],
                Version::V2 => vec![("cpu.weight", weight.to_string())],
            },
        )?;
    }
    if let (Some(cpu_max), Some(quota), Some(period)) =
        (config.cpu_max(), config.cpu_quota_us, config.cpu_period_us)
    {
        write(
            Controller::Cpu,
            "resources.limits.cpu",
            quota > 0,
            &|version| match version {
                // The period first: a new quota is checked against it.
                Version::V1 => vec![
                    ("cpu.cfs_period_us", period.to_string()),
                    ("cpu.cfs_quota_us", quota.max(-1).to_string()),
                ],
                Version::V2 => vec![("cpu.max", cpu_max.clone())],
            },
        )?;
    }
    // A limit of 0 is none, as it is to container runtimes.
    match config.memory_max_bytes.filter(|bytes| *bytes > 0) {
        Some(bytes) => write(
            Controller::Memory,
            "resources.limits.memory",
            true,
            &|version| match version {
                Version::V1 => vec![("memory.limit_in_bytes", bytes.to_string())],
                Version::V2 => vec![("memory.max", bytes.to_string())],
            },
        )?,
        None => write(
            Controller::Memory,
            "resources.requests.memory",
            false,
            &|_| Vec::new(),
        )?,
    }
    if let Some(pids_max) = config.pids_max {
        write(Controller::Pids, "podPidsLimit", true, &|_| {
            vec![("pids.max", pids_max.to_string())]
        })?;
    }
    Ok(notes)
}

/// Writes the limits of the cgroup of all pods of a QoS class (`qos_container_manager_linux.go`). A tier without a cgroup is left out, and
/// huge pages stay unlimited at this level (`setHugePagesUnbounded`).
///
/// # Errors
/// [`ApplyError`]. A tier that vanishes meanwhile is no error.
pub fn apply_tier(
    mounts: &CgroupMounts,
    cgroup_root: &CgroupPath,
    class: QosClass,
    config: &CgroupConfig,
) -> Result<(), ApplyError> {
    let (Ok(cpu), Ok(path)) = (
        mounts.hierarchy_of(Controller::Cpu),
        tier_path(cgroup_root, class),
    ) else {
        return Ok(());
    };
    if !cpu.has(&path) {
        return Ok(());
    }
    match apply_cpu_memory_pids(mounts, &path, config) {
        Err(error) if !error.is_vanished() => Err(error),
        _ => Ok(()),
    }
}

/// Sizes that the specification does not name get 0, as the kubelet does it (`HugePageSizes` of kuberuntime and of the cgroup manager).
fn apply_huge_pages(
    mounts: &CgroupMounts,
    cgroup: &CgroupPath,
    config: &CgroupConfig,
) -> Result<(), ApplyError> {
    let field = |size: u64| {
        format!(
            "resources.limits.hugepages-{}",
            page_size_name(size).trim_end_matches('B').to_owned() + "i"
        )
    };
    let asked = || {
        config
            .huge_pages_max_bytes
            .iter()
            .filter(|(_, limit)| **limit > 0)
    };
    let hierarchy = match (mounts.hierarchy_of(Controller::Hugetlb), asked().next()) {
        (Ok(hierarchy), _) => hierarchy,
        (Err(_), None) => return Ok(()),
        (Err(source), Some((size, _))) => {
            return Err(ApplyError::NoController {
                field: field(*size),
                source,
            });
        }
    };
    let dir = hierarchy.dir(cgroup);
    let (limit_file, reserved_file) = match hierarchy.version {
        Version::V1 => ("limit_in_bytes", "rsvd.limit_in_bytes"),
        Version::V2 => ("max", "rsvd.max"),
    };
    let sizes = page_sizes(&dir, limit_file)?;
    if let Some((size, _)) = asked().find(|(size, _)| !sizes.contains(&page_size_name(**size))) {
        let path = Arc::from(dir.join(format!("hugetlb.{}.{limit_file}", page_size_name(*size))));
        return Err(ApplyError::NoPageSize {
            field: field(*size),
            path,
        });
    }
    for size in sizes {
        let limit = config
            .huge_pages_max_bytes
            .iter()
            .find(|(bytes, _)| page_size_name(**bytes) == size)
            .map_or(0, |(_, limit)| *limit);
        for file in [limit_file, reserved_file] {
            let path = dir.join(format!("hugetlb.{size}.{file}"));
            match write_text(&path, &limit.to_string()) {
                Ok(()) => {}
                Err(error) if error.is_vanished() && file == reserved_file => {} // since 5.7
                Err(source) => {
                    return Err(ApplyError::Refused {
                        field: "resources.limits.hugepages",
                        value: limit.to_string(),
                        source,
                    });
                }
            }
        }
    }
    Ok(())
}

/// The page sizes of the machine, from the names of a cgroup's hugetlb files.
fn page_sizes(dir: &Path, limit_file: &str) -> Result<Vec<String>, FileError> {
    let unreadable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => FileError::Vanished {
            path: Arc::from(dir),
        },
        _ => FileError::Unreadable {
            path: Arc::from(dir),
            source: errno_of(&error),
        },
    };
    let mut sizes = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let size = name
            .to_str()
            .and_then(|name| name.strip_prefix("hugetlb."))
            .and_then(|name| name.split_once('.'));
        if let Some((size, _)) = size.filter(|(_, file)| *file == limit_file) {
            sizes.push(size.to_owned());
        }
    }
    sizes.sort_unstable();
    Ok(sizes)
}

/// The kernel's name of a page size in hugetlb control files (mm/hugetlb_cgroup.c, `mem_fmt`).
fn page_size_name(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 30 => format!("{}GB", bytes >> 30),
        _ if bytes >= 1 << 20 => format!("{}MB", bytes >> 20),
        _ => format!("{}KB", bytes >> 10),
    }
}

/// On v2: a container whose one process is killed for lack of memory is killed as a whole, as the kubelet sets it up unless
/// `singleProcessOOMKill` is on (kuberuntime_container_linux.go).
///
/// # Errors
/// When the file refuses the value. v1 has no such file, which is no error.
pub fn set_oom_group(mounts: &CgroupMounts, container: &CgroupPath) -> Result<(), FileError> {
    match mounts.hierarchy_of(Controller::Memory) {
        Ok(hierarchy) if hierarchy.version == Version::V2 => {
            write_text(hierarchy.dir(container).join("memory.oom.group"), "1")
        }
        _ => Ok(()),
    }
}

/// Moves this process into a cgroup, in every hierarchy that it exists in for pods.
///
/// # Errors
/// [`FileError::Vanished`] when it was removed meanwhile.
pub fn join_self(mounts: &CgroupMounts, cgroup: &CgroupPath) -> Result<(), FileError> {
    for (hierarchy, _) in pod_hierarchies(mounts) {
        // 0 means the writer.
        write_text(hierarchy.dir(cgroup).join("cgroup.procs"), "0")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
