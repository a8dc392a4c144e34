//! The node's file systems: how much is free, and which of the three roles share one.
//!
//! **Terms**, the kubelet's: *nodefs* holds its directory (volumes; logs are counted to it), *imagefs* the images,
//! *containerfs* the writable layers. **Where they are**: nodefs is that of the kubelet's directory, or of the nearest
//! directory above it that exists. The others are told by option, or by the container runtime, or found where runtimes
//! keep their data by default. Beside a kubelet, whose runtime has images somewhere, a place that is not found is
//! unknown: its thresholds are not watched. What layers are known to take then counts to nodefs, as on a node with one
//! disk. **Layout**: from device numbers, as `HasDedicatedImageFs` (`pkg/kubelet/stats/provider.go`) compares devices
//! and `IsContainerFsSeparateFromImageFs` (`pkg/kubelet/container/container_gc.go`) mount points: one device for all is
//! `Shared`, one for images and layers together is `Dedicated`, anything else is `Split`. Subvolumes of one btrfs are
//! one device, as for cAdvisor, which takes what is mounted there (`fs/fs.go`).

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use plimsoll_core::model::file_system::ImageFsLayout;
use plimsoll_core::model::reading::FileSystemReading;
use plimsoll_core::protocol::runtime_link::RuntimeDirectories;
use rustix::fs::statvfs;
use rustix::io::Errno;

use crate::host::HostRoot;
use crate::host::clock::now_ns;
use crate::host::shown::Show as _;

use super::mountinfo::inside;
use super::pod_paths::mountinfo;

const NODEFS: &str = "nodefs";
/// `BTRFS_SUPER_MAGIC` of `linux/magic.h`.
const BTRFS: rustix::fs::FsWord = 0x9123_683e;

/// Where runtimes keep images and layers, in the order in which they are looked for.
pub const RUNTIME_DIRS: [&str; 3] = [
    "/var/lib/containerd",
    "/var/lib/containers/storage",
    "/var/lib/docker",
];

/// Runtimes beside which a directory of containerd can be there: Docker always makes one. By the socket at which a
/// kubelet asks them.
const SERVING_DIRS: [(&str, &str); 2] = [
    ("/run/crio/crio.sock", RUNTIME_DIRS[1]),
    ("/run/cri-dockerd.sock", RUNTIME_DIRS[2]),
];

/// Where they keep writable layers, in distributions too that have a runtime of their own.
pub const LAYER_DIRS: [&str; 6] = [
    RUNTIME_DIRS[0],
    RUNTIME_DIRS[1],
    RUNTIME_DIRS[2],
    "/var/lib/rancher/k3s/agent/containerd",
    "/var/lib/rancher/rke2/agent/containerd",
    "/var/snap/microk8s/common/var/lib/containerd",
];

/// What a kubelet makes in its directory when it starts; in the directory of another one, or of none, it is missing.
const PODS: &str = "pods";

/// A file system that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{role}: {path}: {source}; its thresholds are not watched{}", self.remedy(), path = path.shown())]
pub struct FileSystemError {
    /// `nodefs`, `imagefs` or `containerfs`.
    pub role: &'static str,
    /// The directory.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: Unreadable,
}

/// Why a file system is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The kernel's answer.
    #[error("{0}")]
    Kernel(Errno),
    /// No kubelet has its directory there.
    #[error("it has no directory `pods`, which a kubelet makes in its own")]
    NoKubelet,
    /// The kubelet has another one.
    #[error("the kubelet that runs has another --root-dir, {}", .0.shown())]
    Elsewhere(PathBuf),
}

impl FileSystemError {
    /// What to do, where a directory is another one than was looked for.
    fn remedy(&self) -> &'static str {
        match &self.source {
            Unreadable::NoKubelet | Unreadable::Elsewhere(_) => {
                ": mount the kubelet's --root-dir here, and give it with --kubelet-dir"
            }
            Unreadable::Kernel(Errno::NOENT) if self.role != NODEFS => {
                ": mount the directory in which the container runtime keeps images here, or give a directory on its file system with --image-dir"
            }
            Unreadable::Kernel(_) => "",
        }
    }
}

/// Whose the kubelet's directory is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum KubeletRoot {
    /// No kubelet runs the pods: any directory will do.
    #[default]
    Unused,
    /// The kubelet's, if it looks like one.
    Here,
    /// The kubelet that runs has this one.
    Elsewhere(PathBuf),
}

/// A directory on each of the three.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystems {
    /// On nodefs.
    pub nodefs: PathBuf,
    /// On imagefs.
    pub imagefs: PathBuf,
    /// On containerfs.
    pub containerfs: PathBuf,
    /// Whose the kubelet's directory is.
    pub root: KubeletRoot,
}

/// The three, read.
#[derive(Debug, Clone, PartialEq)]
pub struct FileSystemReadings {
    /// The kubelet's directory.
    pub nodefs: Result<FileSystemReading, FileSystemError>,
    /// Images.
    pub imagefs: Result<FileSystemReading, FileSystemError>,
    /// Writable layers.
    pub containerfs: Result<FileSystemReading, FileSystemError>,
}

impl FileSystems {
    /// Finds the three. A directory that is given counts, whether it exists or not. `has_images`: a runtime keeps
    /// images on this machine, even where its directory is not seen; else images are where the kubelet's directory is.
    pub fn detect(
        host: &HostRoot,
        kubelet_dir: &Path,
        image_dir: Option<&Path>,
        container_dir: Option<&Path>,
        has_images: bool,
    ) -> Self {
        let kubelet_dir = host.path(kubelet_dir);
        let nodefs = kubelet_dir
            .ancestors()
            .find(|dir| dir.is_dir())
            .unwrap_or(&kubelet_dir)
            .to_owned();
        let imagefs = image_dir.map(|dir| host.path(dir)).unwrap_or_else(|| {
            let serving = SERVING_DIRS.iter();
            let serving = serving.filter(|(socket, _)| host.path(socket).exists());
            let dirs = serving.map(|(_, dir)| dir).chain(&RUNTIME_DIRS);
            let mut found = dirs.map(|dir| host.path(dir));
            match found.find(|dir| dir.is_dir()) {
                Some(found) => found,
                None if has_images => host.path(RUNTIME_DIRS[0]),
                None => nodefs.clone(),
            }
        });
        let containerfs = container_dir
            .map(|dir| host.path(dir))
            .unwrap_or_else(|| imagefs.clone());
        Self {
            nodefs,
            imagefs,
            containerfs,
            root: KubeletRoot::Unused,
        }
    }

    /// What is wrong with where images are read, if the runtime says where it has them; `None`: nothing, as far as can
    /// be seen. `is_given`: the place was told by option.
    pub fn misses(
        &self,
        host: &HostRoot,
        of_runtime: &RuntimeDirectories,
        is_given: bool,
    ) -> Option<String> {
        let directory = Path::new(of_runtime.images.as_ref()?);
        let (kept, read) = (directory.shown(), self.imagefs.shown());
        match device(&host.path(directory)) {
            // It is visible under another name, which was given.
            None if is_given => None,
            None if !self.imagefs.is_dir() => Some(format!(
                "the container runtime keeps its images in {kept}, which cannot be seen here, so the thresholds of imagefs are not watched: mount that directory here, or give a directory on its file system with --image-dir"
            )),
            None => Some(format!(
                "the container runtime keeps its images in {kept}, which cannot be seen here, so imagefs is read at {read}: mount that directory here, or give a directory on its file system with --image-dir"
            )),
            of_runtime if of_runtime == device(&self.imagefs) => None,
            Some(_) => Some(format!(
                "the container runtime keeps its images in {kept}, which is on another file system than {read}, where imagefs is read: start the agent again, or give --image-dir {kept}"
            )),
        }
    }

    /// Which of the three share one, now.
    pub fn layout(&self) -> ImageFsLayout {
        let is_elsewhere = matches!(self.root, KubeletRoot::Elsewhere(_));
        layout(
            device(&self.nodefs).filter(|_| !is_elsewhere),
            device(&self.imagefs),
            device(&self.containerfs),
        )
    }

    /// Reads all three: a handful of system calls.
    pub fn read(&self) -> FileSystemReadings {
        FileSystemReadings {
            nodefs: self.nodefs(),
            imagefs: read("imagefs", &self.imagefs),
            containerfs: read("containerfs", &self.containerfs),
        }
    }

    /// A wrong directory is on some disk as well: pods would go for one on which they have nothing.
    fn nodefs(&self) -> Result<FileSystemReading, FileSystemError> {
        let source = match &self.root {
            KubeletRoot::Elsewhere(root) => Unreadable::Elsewhere(root.clone()),
            KubeletRoot::Here if !self.nodefs.join(PODS).is_dir() => Unreadable::NoKubelet,
            KubeletRoot::Unused | KubeletRoot::Here => return read(NODEFS, &self.nodefs),
        };
        Err(FileSystemError {
            role: NODEFS,
            path: self.nodefs.clone(),
            source,
        })
    }
}

/// The device of a directory's file system. Each subvolume of a btrfs has a number of its own: there the mount says it.
fn device(dir: &Path) -> Option<u64> {
    let number = std::fs::metadata(dir).ok()?.dev();
    let is_btrfs = rustix::fs::statfs(dir).is_ok_and(|status| status.f_type == BTRFS);
    Some(if is_btrfs {
        device_of_mount(dir).unwrap_or(number)
    } else {
        number
    })
}

fn device_of_mount(dir: &Path) -> Option<u64> {
    let mountinfo = mountinfo(&HostRoot::live(), "self")?;
    let (major, minor) = inside(&mountinfo, &dir.canonicalize().ok()?)?.device();
    Some(rustix::fs::makedev(major, minor))
}

/// Who shares what, from the device numbers. One that is not known counts as the node's: most nodes have one disk.
fn layout(node: Option<u64>, image: Option<u64>, container: Option<u64>) -> ImageFsLayout {
    let image = image.or(node);
    let container = container.or(node);
    if image == node && container == node {
        ImageFsLayout::Shared
    } else if image == container {
        ImageFsLayout::Dedicated
    } else {
        ImageFsLayout::Split
    }
}

fn read(role: &'static str, dir: &Path) -> Result<FileSystemReading, FileSystemError> {
    let status = statvfs(dir).map_err(|error| FileSystemError {
        role,
        path: dir.to_owned(),
        source: Unreadable::Kernel(error),
    })?;
    let has_inodes = status.f_files > 0;
    Ok(FileSystemReading {
        at_ns: now_ns(),
        available_bytes: status.f_bavail.saturating_mul(status.f_frsize),
        capacity_bytes: status.f_blocks.saturating_mul(status.f_frsize),
        inodes_free: has_inodes.then_some(status.f_ffree),
        inodes: has_inodes.then_some(status.f_files),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cgroup::CgroupPath;
    use crate::notes;
    use crate::storage::StorageSettings;
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    #[test]
    fn layouts_from_device_numbers() {
        use ImageFsLayout::{Dedicated, Shared, Split};
        for (node, image, container, wanted) in [
            (Some(1), Some(1), Some(1), Shared),
            (Some(1), Some(2), Some(2), Dedicated),
            (Some(1), Some(2), Some(1), Split),
            (Some(1), Some(2), Some(3), Split),
            (Some(1), Some(1), Some(2), Split),
            (Some(1), None, None, Shared),
            (None, None, None, Shared),
        ] {
            assert_eq!(
                layout(node, image, container),
                wanted,
                "{node:?} {image:?} {container:?}"
            );
        }
    }

    #[test]
    fn the_three_are_found_or_fall_back() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let kubelet = Path::new("/var/lib/kubelet");
        let at = |path: &str| host.path(path);
        std::fs::create_dir_all(at("/var/lib")).unwrap();
        let found = FileSystems::detect(&host, kubelet, None, None, false);
        assert_eq!(
            (&found.nodefs, &found.imagefs),
            (&at("/var/lib"), &at("/var/lib"))
        );
        // Beside a kubelet the disk of images is another one, for all that can be seen.
        let found = FileSystems::detect(&host, kubelet, None, None, true);
        assert_eq!(found.nodefs, at("/var/lib"));
        let readings = found.read();
        assert!(readings.nodefs.is_ok());
        for unknown in [readings.imagefs, readings.containerfs] {
            let why = unknown.unwrap_err().to_string();
            assert!(
                why.contains("not watched") && why.contains("--image-dir"),
                "{why}"
            );
        }
        std::fs::create_dir_all(at("/var/lib/kubelet")).unwrap();
        std::fs::create_dir_all(at("/var/lib/containers/storage")).unwrap();
        let found = FileSystems::detect(&host, kubelet, None, None, true);
        assert_eq!(
            (found.nodefs, found.imagefs, found.containerfs),
            (
                at("/var/lib/kubelet"),
                at("/var/lib/containers/storage"),
                at("/var/lib/containers/storage")
            )
        );
        // Of Docker's own containerd.
        for dir in ["/var/lib/containerd", "/var/lib/docker", "/run"] {
            std::fs::create_dir_all(at(dir)).unwrap();
        }
        let images = || FileSystems::detect(&host, kubelet, None, None, true).imagefs;
        assert_eq!(images(), at("/var/lib/containerd"));
        std::fs::write(at("/run/cri-dockerd.sock"), "").unwrap();
        assert_eq!(images(), at("/var/lib/docker"));
        let found = FileSystems::detect(
            &host,
            kubelet,
            Some(Path::new("/i")),
            Some(Path::new("/c")),
            true,
        );
        assert_eq!((found.imagefs, found.containerfs), (at("/i"), at("/c")));
    }

    /// Needs a btrfs, and `btrfs`: `mkfs.btrfs IMAGE; mount -o loop IMAGE /mnt`, then
    /// `PLIMSOLL_BTRFS_DIR=/mnt cargo test -p plimsoll --lib subvolume -- --ignored`.
    #[test]
    #[ignore = "needs a btrfs"]
    fn subvolumes_are_one_device() {
        let root =
            std::env::var("PLIMSOLL_BTRFS_DIR").expect("PLIMSOLL_BTRFS_DIR names a directory");
        let dir = tempfile::tempdir_in(root).unwrap();
        let [pods, images] = ["pods", "images"].map(|name| dir.path().join(name));
        for subvolume in [&pods, &images] {
            let made = std::process::Command::new("btrfs")
                .args(["subvolume", "create"])
                .arg(subvolume)
                .status();
            assert!(made.unwrap().success());
        }
        let number = |dir: &Path| std::fs::metadata(dir).unwrap().dev();
        assert_ne!(number(&pods), number(&images));
        assert_eq!(device(&pods), device(&images));
        assert!(device(&pods).is_some());
    }

    #[test]
    fn nodefs_is_not_read_in_the_directory_of_no_kubelet() {
        let dir = tempfile::tempdir().unwrap();
        let settings = |root: KubeletRoot| StorageSettings {
            host: HostRoot::new(dir.path()),
            has_images: true,
            kubelet_root: root,
            ..StorageSettings::live(CgroupPath::new("/").unwrap())
        };
        let nodefs = |root| settings(root).file_systems().read().nodefs;
        let said = |root| nodefs(root).unwrap_err().to_string();
        let kubelet_dir = settings(KubeletRoot::Here)
            .host
            .path(Path::new("/var/lib/kubelet"));
        // What a mount of DirectoryOrCreate has made where the kubelet has another directory.
        std::fs::create_dir_all(&kubelet_dir).unwrap();
        let why = said(KubeletRoot::Here);
        assert!(
            why.contains("no directory `pods`") && why.contains("--kubelet-dir"),
            "{why}"
        );
        assert!(nodefs(KubeletRoot::Unused).is_ok(), "without a kubelet");
        std::fs::create_dir(kubelet_dir.join(PODS)).unwrap();
        assert!(nodefs(KubeletRoot::Here).is_ok());
        // One that a kubelet has left there, or a second one has.
        let elsewhere = KubeletRoot::Elsewhere("/data/kubelet".into());
        let why = said(elsewhere.clone());
        assert!(
            why.contains("--root-dir, /data/kubelet") && why.contains("not watched"),
            "{why}"
        );
        // The other disk is not that of images, either.
        let images = settings(elsewhere)
            .host
            .path(Path::new("/var/lib/containerd"));
        std::fs::create_dir_all(images).unwrap();
        let layout = |root| settings(root).file_systems().layout();
        assert_eq!(layout(KubeletRoot::Here), ImageFsLayout::Shared);
        let elsewhere = KubeletRoot::Elsewhere("/data/kubelet".into());
        assert_eq!(layout(elsewhere), ImageFsLayout::Dedicated);
    }

    #[test]
    fn images_are_read_where_the_runtime_has_them_and_else_it_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        for name in [
            "/var/lib/kubelet",
            "/var/lib/containerd",
            "/data/containerd",
            "/data/layers",
            "/given",
        ] {
            std::fs::create_dir_all(host.path(name)).unwrap();
        }
        let data = host.path("/data");
        match mount("tmpfs", &data, "tmpfs", MountFlags::empty(), c"size=1m") {
            Err(error @ (Errno::PERM | Errno::ACCESS)) => {
                return notes::left_out(format_args!("mount: {error}"));
            }
            result => result.unwrap(),
        }
        for name in ["/data/containerd", "/data/layers"] {
            std::fs::create_dir_all(host.path(name)).unwrap();
        }
        let told = |images: &str, containers: Option<&str>| RuntimeDirectories {
            images: Some(images.to_owned()),
            containers: containers.map(str::to_owned),
        };
        let settings = |image_dir: Option<&str>| StorageSettings {
            host: host.clone(),
            image_dir: image_dir.map(PathBuf::from),
            ..StorageSettings::live(CgroupPath::new("/").unwrap())
        };
        let followed = |given: Option<&str>, told: &RuntimeDirectories| {
            let mut settings = settings(given);
            settings.follow_runtime(told);
            let found = settings.file_systems();
            let misses = found.misses(&host, told, given.is_some());
            (found.imagefs, found.containerfs, misses)
        };
        // A directory that an installation has left behind, or a mount has made, is not taken for the runtime's.
        let elsewhere = told("/data/containerd", Some("/data/layers"));
        let guessed = settings(None).file_systems();
        assert_eq!(guessed.imagefs, host.path("/var/lib/containerd"));
        let warning = guessed.misses(&host, &elsewhere, false).unwrap();
        assert!(warning.contains("another file system"), "{warning}");
        let at = |name: &str| host.path(name);
        assert_eq!(
            followed(None, &elsewhere),
            (at("/data/containerd"), at("/data/layers"), None)
        );
        // What was told by option counts, and it is said where it is wrong.
        let (images, layers, warning) = followed(Some("/given"), &elsewhere);
        assert_eq!((images, layers), (at("/given"), at("/given")));
        assert!(warning.unwrap().contains("--image-dir /data/containerd"));
        // A container does not see all of the host.
        let unseen = told("/mnt/containerd", None);
        let (images, _, warning) = followed(None, &unseen);
        assert_eq!(images, at("/var/lib/containerd"));
        assert!(warning.unwrap().contains("cannot be seen here"));
        assert_eq!(followed(Some("/given"), &unseen).2, None);
        let nothing = RuntimeDirectories::default();
        assert_eq!(followed(None, &nothing).2, None);
        unmount(&data, UnmountFlags::DETACH).unwrap();
    }

    #[test]
    fn a_file_system_is_read_and_a_missing_one_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none");
        let file_systems = FileSystems {
            nodefs: dir.path().to_owned(),
            imagefs: none.clone(),
            containerfs: dir.path().to_owned(),
            root: KubeletRoot::Unused,
        };
        assert_eq!(file_systems.layout(), ImageFsLayout::Shared);
        let readings = file_systems.read();
        let nodefs = readings.nodefs.unwrap();
        assert!(nodefs.at_ns > 0 && nodefs.at_ns <= now_ns());
        assert!(nodefs.available_bytes > 0 && nodefs.available_bytes <= nodefs.capacity_bytes);
        let error = readings.imagefs.unwrap_err();
        assert_eq!(
            (error.role, &error.path, error.source),
            ("imagefs", &none, Unreadable::Kernel(Errno::NOENT))
        );
    }

    #[test]
    fn free_space_and_inodes_of_a_small_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let options = c"size=1m,nr_inodes=100";
        match mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), options) {
            Err(error @ (Errno::PERM | Errno::ACCESS)) => {
                notes::left_out(format_args!("mount: {error}"));
                return;
            }
            result => result.unwrap(),
        }
        let empty = read("nodefs", dir.path()).unwrap();
        std::fs::write(dir.path().join("f"), vec![1; 512 << 10]).unwrap();
        let filled = read("nodefs", dir.path()).unwrap();
        unmount(dir.path(), UnmountFlags::DETACH).unwrap();
        assert_eq!((empty.capacity_bytes, empty.inodes), (1 << 20, Some(100)));
        assert_eq!(
            empty.available_bytes - filled.available_bytes,
            512 << 10,
            "{empty:?} {filled:?}"
        );
        assert_eq!(empty.inodes_free.unwrap() - filled.inodes_free.unwrap(), 1);
    }
}
