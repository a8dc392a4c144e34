//! Cgroup hierarchies: which are mounted, which controller lives where, and one pod's memory files.
//!
//! **Problem.** The same pod is one directory on cgroup v2, one directory per controller on v1, and some of each on a
//! hybrid host. **Approach.** [`CgroupMounts`] is read once from `/proc/self/mounts`; a [`CgroupPath`] is relative to
//! any hierarchy; and each question ("where is memory accounted?") is asked by [`Controller`]. Source:
//! Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.

mod cpu;
mod memory;

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::HostRoot;
use super::file::{FileError, errno_of, read_text};

use crate::host::shown::Show as _;

pub use cpu::CpuTimeFile;
pub use memory::{MemoryLimitFile, PageCache, PodMemoryFiles, UNLIMITED_BYTES};

/// How deep below the pod's cgroup containers' own cgroups are looked for.
pub const CGROUP_DEPTH_MAX: usize = 6;
/// Mounts looked at, at most; a node with a thousand pods has a few thousand.
const MOUNTS_MAX: usize = 65_536;
/// Bytes of it that are read.
const MOUNTS_BYTES_MAX: u64 = 16 << 20;

/// What can go wrong with the cgroup file systems.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CgroupError {
    /// One file of them.
    #[error(transparent)]
    File(#[from] FileError),
    /// No cgroup file system is mounted.
    #[error("{mounts}: no cgroup file system is mounted; mount one: mount -t cgroup2 cgroup2 /sys/fs/cgroup", mounts = mounts.shown())]
    NoHierarchy {
        /// The mounts file that was read.
        mounts: PathBuf,
    },
    /// A path that would leave its hierarchy.
    #[error(
        "{path:?} is not a cgroup path: use names separated by \"/\", none of them empty, \".\" or \"..\""
    )]
    BadPath {
        /// The text.
        path: String,
    },
    /// No hierarchy has the controller.
    #[error("cgroup controller {controller} is not available{hint}", hint = controller.hint())]
    NoController {
        /// Which controller.
        controller: Controller,
    },
}

impl CgroupError {
    /// Whether the cgroup is gone, which most callers take as "the pod has ended" and not as a fault.
    pub fn is_vanished(&self) -> bool {
        matches!(self, Self::File(error) if error.is_vanished())
    }
}

/// A cgroup controller that Plimsoll uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum Controller {
    Cpu,
    /// CPU time on cgroup v1, where it is mounted apart from `cpu` or, mostly, with it. v2's `cpu.stat` needs none.
    Cpuacct,
    Cpuset,
    Memory,
    Pids,
    Hugetlb,
    Freezer,
    Io,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Cpu,
        Self::Cpuacct,
        Self::Cpuset,
        Self::Memory,
        Self::Pids,
        Self::Hugetlb,
        Self::Freezer,
        Self::Io,
    ];

    /// The kernel's name, as in `cgroup.controllers` and in v1 mount options (`io` is `blkio` there).
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Hugetlb => "hugetlb",
            Self::Freezer => "freezer",
            Self::Io => "io",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        // v1's name for the same.
        let name = if name == "blkio" { "io" } else { name };
        Self::ALL
            .into_iter()
            .find(|controller| controller.name() == name)
    }

    fn hint(self) -> &'static str {
        match self {
            Self::Memory => {
                "; mount cgroup2 (newer kernels account memory only there), or boot without cgroup_disable=memory"
            }
            Self::Hugetlb => "; the kernel needs CONFIG_CGROUP_HUGETLB",
            _ => {
                "; see /proc/cgroups for what the kernel has, and check that a hierarchy with it is mounted and delegated"
            }
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The version of one hierarchy's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `cgroup`: control files such as `memory.usage_in_bytes`.
    V1,
    /// `cgroup2`: the unified tree.
    V2,
}

/// How the host as a whole is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Only v1 hierarchies.
    V1,
    /// Only the unified tree.
    V2,
    /// Both: some or all controllers on v1 and a unified tree beside them.
    Hybrid,
}

impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::V1 => "cgroup v1",
            Self::V2 => "cgroup v2",
            Self::Hybrid => "cgroup v1 and v2 (hybrid)",
        })
    }
}

/// A cgroup below the root of a hierarchy: `kubepods/burstable/pod1234`. The empty path is the root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CgroupPath(PathBuf);

/// `--cgroup-root` of the commands that look for an agent's pods.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct CgroupRootArgs {
    /// Cgroup that contains kubepods, relative to the cgroup mount, as given to `plimsoll run`
    #[arg(long, value_name = "CGROUP", default_value = "/")]
    pub cgroup_root: String,
}

impl CgroupRootArgs {
    /// Where it is.
    ///
    /// # Errors
    /// [`CgroupError::BadPath`].
    pub fn path(&self) -> Result<CgroupPath, CgroupError> {
        CgroupPath::new(&self.cgroup_root)
    }
}

impl CgroupPath {
    /// Leading and trailing slashes are ignored, as in `--cgroup-root /plimsoll/`.
    ///
    /// # Errors
    /// [`CgroupError::BadPath`] for an empty name inside, `.` or `..`.
    pub fn new(path: &str) -> Result<Self, CgroupError> {
        let trimmed = path.trim_matches('/');
        if trimmed.is_empty() {
            return Ok(Self::default());
        }
        let is_bad = |name: &str| {
            name.is_empty() || name == "." || name == ".." || name.contains(['\0', '\n'])
        };
        if trimmed.split('/').any(is_bad) {
            return Err(CgroupError::BadPath {
                path: path.to_owned(),
            });
        }
        Ok(Self(PathBuf::from(trimmed)))
    }

    /// A child of this cgroup; `name` may itself have several parts.
    ///
    /// # Errors
    /// [`CgroupError::BadPath`], as for [`CgroupPath::new`].
    pub fn join(&self, name: &str) -> Result<Self, CgroupError> {
        Ok(Self(self.0.join(Self::new(name)?.0)))
    }

    /// The path, relative to the hierarchy's mount point.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// This cgroup and those above it, from just below the root downwards.
    pub fn lineage(&self) -> Vec<Self> {
        let mut lineage: Vec<_> = self
            .0
            .ancestors()
            .filter(|path| !path.as_os_str().is_empty())
            .map(|path| Self(path.to_owned()))
            .collect();
        lineage.reverse();
        lineage
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "/{}", self.0.shown())
    }
}

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its interface.
    pub version: Version,
    /// The controllers that it has, sorted. On v2: those in the root's `cgroup.controllers`.
    pub controllers: Vec<Controller>,
    /// Where it is mounted, below the [`HostRoot`].
    pub mount: PathBuf,
}

impl Hierarchy {
    /// The directory of a cgroup.
    pub fn dir(&self, path: &CgroupPath) -> PathBuf {
        self.mount.join(path.as_path())
    }

    /// Whether the mount shows the hierarchy from its root: kernel programs report paths from there. Where the node is
    /// a container (kind, minikube, k3d) it shows the node's own cgroup and what is below. The root's number is 1
    /// (`cgroup_setup_root` in kernel/cgroup/cgroup.c).
    ///
    /// # Errors
    /// When the mount cannot be read.
    pub fn is_whole(&self) -> std::io::Result<bool> {
        Ok(std::fs::metadata(&self.mount)?.ino() == 1)
    }

    /// Whether the cgroup exists here.
    pub fn has(&self, path: &CgroupPath) -> bool {
        self.dir(path).is_dir()
    }

    /// The cgroup's id as BPF programs see it (`cgroup->kn->id`), which is its directory's inode number.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the cgroup does not exist.
    pub fn cgroup_id(&self, path: &CgroupPath) -> Result<u64, FileError> {
        cgroup_id(&self.dir(path))
    }
}

/// The cgroup id of a cgroup directory: its inode number.
///
/// # Errors
/// [`FileError::Vanished`] when it does not exist.
pub fn cgroup_id(dir: &Path) -> Result<u64, FileError> {
    match std::fs::metadata(dir) {
        Ok(metadata) => Ok(metadata.ino()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(FileError::Vanished {
            path: Arc::from(dir),
        }),
        Err(error) => Err(FileError::Unreadable {
            path: Arc::from(dir),
            source: errno_of(&error),
        }),
    }
}

/// The host's hierarchies. Mounts do not change while a node runs pods, so this is read once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupMounts {
    hierarchies: Vec<Hierarchy>,
    skipped: usize,
}

impl CgroupMounts {
    /// Reads `/proc/self/mounts`. When a hierarchy is mounted several times, its first mount that can be read counts.
    /// The file is bytes: any user who may mount anything (FUSE) chooses the names in it.
    ///
    /// # Errors
    /// [`CgroupError::NoHierarchy`] when none is mounted; [`FileError`] when the file, or each hierarchy that is
    /// mounted, cannot be read.
    pub fn discover(host: &HostRoot) -> Result<Self, CgroupError> {
        let mounts = host.procfs("self/mounts");
        let text = read_bytes(&mounts)?;
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        let (mut skipped, mut first_error) = (0, None);
        let lines = text.split(|byte| *byte == b'\n').take(MOUNTS_MAX);
        for line in lines.filter(|line| !line.is_empty()) {
            let mut fields = line.split(|byte| *byte == b' ');
            let (_, Some(mount_point), Some(kind), Some(options)) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                skipped += 1;
                continue;
            };
            let mount = host.path(unescape(mount_point));
            match hierarchy_at(mount, kind, options, &hierarchies) {
                Ok(hierarchy) => hierarchies.extend(hierarchy),
                // Mounted over, or another's: the same hierarchy may be mounted elsewhere too.
                Err(error) => {
                    skipped += 1;
                    first_error.get_or_insert(error);
                }
            }
        }
        match (hierarchies.is_empty(), first_error) {
            (false, _) => Ok(Self {
                hierarchies,
                skipped,
            }),
            (true, Some(error)) => Err(error.into()),
            (true, None) => Err(CgroupError::NoHierarchy { mounts }),
        }
    }

    /// Lines of the list of mounts that are none, and cgroup mounts that cannot be read.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// All hierarchies, in the order in which they are mounted.
    pub fn hierarchies(&self) -> &[Hierarchy] {
        &self.hierarchies
    }

    /// The hierarchy that has a controller.
    ///
    /// # Errors
    /// [`CgroupError::NoController`] says what to do.
    pub fn hierarchy_of(&self, controller: Controller) -> Result<&Hierarchy, CgroupError> {
        let has = |hierarchy: &&Hierarchy| hierarchy.controllers.contains(&controller);
        self.hierarchies
            .iter()
            .find(has)
            .ok_or(CgroupError::NoController { controller })
    }

    /// The hierarchy that counts CPU time: `cpuacct` on v1, mostly mounted with `cpu`; on v2 every cgroup has
    /// `cpu.stat`.
    ///
    /// # Errors
    /// [`CgroupError::NoController`] says what to do.
    pub fn hierarchy_of_cpu_time(&self) -> Result<&Hierarchy, CgroupError> {
        self.hierarchy_of(Controller::Cpuacct)
            .or_else(|_| self.hierarchy_of(Controller::Cpu))
            .or_else(|error| self.unified().ok_or(error))
    }

    /// The v2 tree, with or without controllers.
    pub fn unified(&self) -> Option<&Hierarchy> {
        self.hierarchies
            .iter()
            .find(|hierarchy| hierarchy.version == Version::V2)
    }

    /// v1, v2 or hybrid.
    pub fn layout(&self) -> Layout {
        match (
            self.unified(),
            self.hierarchies
                .iter()
                .any(|hierarchy| hierarchy.version == Version::V1),
        ) {
            (Some(_), true) => Layout::Hybrid,
            (Some(_), false) => Layout::V2,
            (None, _) => Layout::V1,
        }
    }
}

/// The hierarchy of one mount; `None` if it is none, none that we use, or one that is known.
fn hierarchy_at(
    mount: PathBuf,
    kind: &[u8],
    options: &[u8],
    known: &[Hierarchy],
) -> Result<Option<Hierarchy>, FileError> {
    let (version, mut controllers) = match kind {
        b"cgroup2" if known.iter().all(|other| other.version != Version::V2) => {
            let names = read_text(mount.join("cgroup.controllers"))?;
            let names = names.split_ascii_whitespace();
            (
                Version::V2,
                names.filter_map(Controller::from_name).collect::<Vec<_>>(),
            )
        }
        b"cgroup" => {
            let is_new = |controller: &Controller| {
                known
                    .iter()
                    .all(|other| !other.controllers.contains(controller))
            };
            let names = options
                .split(|byte| *byte == b',')
                .filter_map(|name| std::str::from_utf8(name).ok());
            let controllers = names.filter_map(Controller::from_name).filter(is_new);
            (Version::V1, controllers.collect())
        }
        _ => return Ok(None),
    };
    if version == Version::V1 && controllers.is_empty() {
        return Ok(None); // a named hierarchy (systemd), or one whose controllers we do not use
    }
    controllers.sort_unstable();
    Ok(Some(Hierarchy {
        version,
        controllers,
        mount,
    }))
}

/// The first [`MOUNTS_BYTES_MAX`] of a file.
fn read_bytes(path: &Path) -> Result<Vec<u8>, FileError> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MOUNTS_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|error| FileError::new_read(&Arc::from(path), errno_of(&error)))?;
    Ok(bytes)
}

/// Undoes the octal escapes (space, tab, newline, backslash) of a mounts file.
fn unescape(text: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let value = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(value.unwrap_or(*first));
        rest = if value.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A directory that looks like a host with the given mounts (`KIND MOUNT_POINT OPTIONS` each).
    pub(crate) fn fake_host(mounts: &[(&str, &str, &str)]) -> (tempfile::TempDir, HostRoot) {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        std::fs::create_dir_all(host.procfs("self")).unwrap();
        let mut text = String::from("proc /proc proc rw 0 0\n");
        for (kind, mount_point, options) in mounts {
            text += &format!("{kind} {mount_point} {kind} {options} 0 0\n");
            std::fs::create_dir_all(host.path(unescape(mount_point.as_bytes()))).unwrap();
        }
        std::fs::write(host.procfs("self/mounts"), text).unwrap();
        (dir, host)
    }

    pub(crate) fn fake_v2() -> (tempfile::TempDir, HostRoot) {
        let (dir, host) = fake_host(&[("cgroup2", "/sys/fs/cgroup", "rw")]);
        std::fs::write(
            host.path("/sys/fs/cgroup/cgroup.controllers"),
            "cpuset cpu io memory hugetlb pids rdma\n",
        )
        .unwrap();
        std::fs::write(host.path("/sys/fs/cgroup/cgroup.subtree_control"), "").unwrap();
        (dir, host)
    }

    #[test]
    fn a_mount_of_a_part_is_not_whole() {
        let mounts = HostRoot::live().cgroup_mounts().unwrap();
        let mut hierarchy = mounts.hierarchies[0].clone();
        let root = hierarchy.mount.clone();
        if !hierarchy.is_whole().unwrap() {
            return crate::notes::left_out(
                "this machine is a container with a part of the hierarchy",
            );
        }
        let mut children = std::fs::read_dir(&root).unwrap().flatten();
        let child = children.find(|entry| entry.path().is_dir());
        // As a container's own cgroup is mounted for it.
        hierarchy.mount = child.map_or_else(|| root.join("none"), |child| child.path());
        assert!(!hierarchy.is_whole().unwrap_or(false));
    }

    #[test]
    fn unified() {
        let (_dir, host) = fake_v2();
        let mounts = host.cgroup_mounts().unwrap();
        assert_eq!(mounts.layout(), Layout::V2);
        let memory = mounts.hierarchy_of(Controller::Memory).unwrap();
        assert_eq!(memory.version, Version::V2);
        assert_eq!(
            memory.dir(&CgroupPath::new("/a/b/").unwrap()),
            host.path("/sys/fs/cgroup/a/b")
        );
        let error = mounts.hierarchy_of(Controller::Freezer).unwrap_err();
        assert!(
            error.to_string().contains("freezer is not available"),
            "{error}"
        );
    }

    /// As a FUSE mount of any user has it.
    #[test]
    fn a_mount_whose_name_is_no_text_hides_nothing() {
        let (_dir, host) = fake_v2();
        let text = std::fs::read(host.procfs("self/mounts")).unwrap();
        let hostile: [&[u8]; 5] = [
            b"x /mnt/\xff\xfe\x80 fuse rw 0 0\n",
            b"\xff\n",
            b"cgroup2 /gone\xff cgroup2 rw 0 0\n",
            b"cgroup /\xff cgroup rw,\xff,name=x 0 0\n",
            b"x / \\9\\777\\ \xff\n\n",
        ];
        let mut all = hostile.concat();
        all.extend_from_slice(&text);
        std::fs::write(host.procfs("self/mounts"), all).unwrap();
        let mounts = host.cgroup_mounts().unwrap();
        let unified = mounts.unified().unwrap();
        assert_eq!(unified.mount, host.path("/sys/fs/cgroup"));
        assert!(unified.controllers.contains(&Controller::Memory));
        assert_eq!(
            mounts.skipped(),
            2,
            "what is no mount, and what is not there"
        );
    }

    #[test]
    fn the_only_hierarchy_that_cannot_be_read_is_named() {
        let (_dir, host) = fake_v2();
        std::fs::remove_file(host.path("/sys/fs/cgroup/cgroup.controllers")).unwrap();
        let error = host.cgroup_mounts().unwrap_err().to_string();
        assert!(error.contains("cgroup.controllers"), "{error}");
    }

    proptest::proptest! {
        /// Whatever is mounted where, the host's hierarchy is found.
        #[test]
        fn any_bytes_among_the_mounts(bytes: Vec<u8>) {
            let (_dir, host) = fake_v2();
            let mut all = bytes;
            all.push(b'\n');
            all.extend_from_slice(&std::fs::read(host.procfs("self/mounts")).unwrap());
            std::fs::write(host.procfs("self/mounts"), all).unwrap();
            proptest::prop_assert!(host.cgroup_mounts().unwrap().unified().is_some());
        }
    }

    #[test]
    fn v1_and_hybrid_say_which_controller_lives_where() {
        let v1 = [
            ("cgroup", "/sys/fs/cgroup/cpu", "rw,relatime,cpu,cpuacct"),
            ("cgroup", "/sys/fs/cgroup/memory", "rw,memory"),
            ("cgroup", "/elsewhere/memory", "rw,memory"),
            ("cgroup", "/sys/fs/cgroup/systemd", "rw,name=systemd"),
        ];
        let (_dir, host) = fake_host(&v1);
        let mounts = host.cgroup_mounts().unwrap();
        assert_eq!(mounts.layout(), Layout::V1);
        assert_eq!(
            mounts.hierarchies().len(),
            2,
            "the second mount and the named one are skipped"
        );
        assert_eq!(
            mounts.hierarchy_of(Controller::Memory).unwrap().mount,
            host.path("/sys/fs/cgroup/memory")
        );

        let (_dir, host) = fake_host(&[
            v1[0],
            v1[1],
            ("cgroup2", "/sys/fs/cgroup/uni\\040fied", "rw"),
        ]);
        std::fs::write(
            host.path("/sys/fs/cgroup/uni fied/cgroup.controllers"),
            "pids\n",
        )
        .unwrap();
        let mounts = host.cgroup_mounts().unwrap();
        assert_eq!(mounts.layout(), Layout::Hybrid);
        assert_eq!(
            mounts.hierarchy_of(Controller::Cpu).unwrap().version,
            Version::V1
        );
        assert_eq!(
            mounts.hierarchy_of(Controller::Pids).unwrap(),
            mounts.unified().unwrap()
        );
    }

    #[test]
    fn no_hierarchy_and_no_mounts_file() {
        let (dir, host) = fake_host(&[]);
        assert!(
            host.cgroup_mounts()
                .unwrap_err()
                .to_string()
                .contains("no cgroup file system is mounted")
        );
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert!(matches!(
            host.cgroup_mounts().unwrap_err(),
            CgroupError::File(FileError::Vanished { .. })
        ));
    }

    #[test]
    fn paths() {
        assert_eq!(CgroupPath::new("/").unwrap(), CgroupPath::default());
        let path = CgroupPath::new("root")
            .unwrap()
            .join("kubepods/podx")
            .unwrap();
        assert_eq!(path.to_string(), "/root/kubepods/podx");
        let lineage: Vec<_> = path.lineage().iter().map(ToString::to_string).collect();
        assert_eq!(lineage, ["/root", "/root/kubepods", "/root/kubepods/podx"]);
        for bad in ["..", "a/../b", "a//b", "./a", "a\nb"] {
            assert!(CgroupPath::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn memory_of_a_pod_on_both_versions() {
        let (_dir, host) = fake_v2();
        let pod = CgroupPath::new("kubepods/poda").unwrap();
        let dir = host.path("/sys/fs/cgroup/kubepods/poda");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("memory.current"), "5000\n").unwrap();
        let mounts = host.cgroup_mounts().unwrap();
        assert!(matches!(
            PodMemoryFiles::open(&mounts, &pod).unwrap_err(),
            CgroupError::File(FileError::Vanished { .. })
        ));
        std::fs::write(
            dir.join("memory.stat"),
            "anon 1\ninactive_file 77\nactive_file 7\n",
        )
        .unwrap();
        let files = PodMemoryFiles::open(&mounts, &pod).unwrap();
        assert_eq!(files.read_usage_bytes().unwrap(), 5000);
        assert_eq!(
            files.read_cache().unwrap(),
            PageCache {
                inactive_file_bytes: 77,
                active_file_bytes: 7,
                ..PageCache::default()
            }
        );
        let lazily_freed = |files: &PodMemoryFiles, text: &str| {
            std::fs::write(dir.join("memory.stat"), text).unwrap();
            files.read_cache().unwrap().lazily_freed_bytes
        };
        let text = "anon 4\nfile 60\nshmem 20\ninactive_file 77\nactive_file 7\n";
        assert_eq!(lazily_freed(&files, text), 44);
        let text = text.replace("file 60", "file 104");
        assert_eq!(lazily_freed(&files, &text), 0);
        let text = text + "hugetlb 4194304\n";
        std::fs::write(dir.join("memory.stat"), text).unwrap();
        assert_eq!(files.read_cache().unwrap().huge_page_bytes, 4 << 20);
        std::fs::write(dir.join("memory.stat"), "inactive_file 77\n").unwrap();
        assert!(matches!(
            files.read_cache().unwrap_err(),
            FileError::Malformed { .. }
        ));

        let (_dir, host) = fake_host(&[("cgroup", "/sys/fs/cgroup/memory", "memory")]);
        let dir = host.path("/sys/fs/cgroup/memory/kubepods/poda");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("memory.usage_in_bytes"), "6000\n").unwrap();
        std::fs::write(
            dir.join("memory.stat"),
            "cache 1\nshmem 1\ninactive_file 1\ntotal_cache 25\ntotal_shmem 5\ntotal_inactive_file 78\ntotal_active_file 8\n",
        )
        .unwrap();
        let files = PodMemoryFiles::open(&host.cgroup_mounts().unwrap(), &pod).unwrap();
        assert_eq!(files.read_usage_bytes().unwrap(), 6000);
        assert_eq!(
            files.read_cache().unwrap(),
            PageCache {
                inactive_file_bytes: 78,
                active_file_bytes: 8,
                lazily_freed_bytes: 66,
                huge_page_bytes: 0,
            }
        );
    }
}
