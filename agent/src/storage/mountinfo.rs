//! `/proc/<pid>/mountinfo`: which directory holds a container's writable layer, and what is mounted below a directory.
//!
//! A container runtime mounts the container's root as an overlay and says in the mount's options where what the
//! container writes goes (`upperdir=`). Any process of the container shows it, so no runtime needs to be asked. Format:
//! `proc_pid_mountinfo(5)`; space, tab, newline, backslash and, in overlay options, comma are written as three octal
//! digits (`seq_escape` in the kernel).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Mounts of one text that are looked at.
const MOUNTS_MAX: usize = 100_000;

/// One mount.
struct Mount<'text> {
    id: &'text [u8],
    parent: &'text [u8],
    device: Option<(u32, u32)>,
    /// The directory of the file system that is mounted.
    root: &'text [u8],
    point: &'text [u8],
    /// Whether mounts that are made elsewhere appear here too: it is shared, or follows one that is.
    is_shared: bool,
    kind: &'text [u8],
    options: &'text [u8],
}

fn mounts(text: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    text.split(|byte| *byte == b'\n')
        .take(MOUNTS_MAX)
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let (id, parent) = (fields.next()?, fields.next()?);
            let device = fields.next()?;
            let (root, point) = (fields.next()?, fields.next()?);
            let tag = |field: &[u8]| field.starts_with(b"shared:") || field.starts_with(b"master:");
            let mut is_shared = false;
            fields.find(|field| {
                is_shared |= tag(field);
                field == b"-"
            })?;
            Some(Mount {
                id,
                parent,
                device: device_number(device),
                root,
                point,
                is_shared,
                kind: fields.next()?,
                options: fields.nth(1)?,
            })
        })
}

/// What is mounted at the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootMount {
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// Whether it is an overlay.
    pub is_overlay: bool,
    /// The directory that holds what is written there; a read-only overlay has none.
    pub upper: Option<PathBuf>,
}

/// The root of a process, from its mountinfo.
pub fn root_mount(mountinfo: &[u8]) -> Option<RootMount> {
    // Mounts over the root hide the ones before.
    let root = mounts(mountinfo)
        .filter(|mount| mount.point == b"/")
        .last()?;
    let is_overlay = root.kind == b"overlay";
    let upper = root
        .options
        .split(|byte| *byte == b',')
        .find_map(|option| option.strip_prefix(b"upperdir="))
        .filter(|_| is_overlay);
    Some(RootMount {
        device: root.device?,
        is_overlay,
        upper: upper.map(path),
    })
}

/// File systems that ask a server, by their names in `mountinfo`, without what follows a dot (`fuse.sshfs`).
const SERVED: [&str; 13] = [
    "9p", "afs", "autofs", "ceph", "cifs", "coda", "fuse", "fuseblk", "lustre", "nfs", "nfs4",
    "smb3", "virtiofs",
];

/// The mounts of a process by their numbers, and of those that ask a server the kind.
#[derive(Debug, Default)]
pub struct MountKinds(BTreeMap<u64, Option<&'static str>>);

impl MountKinds {
    /// From its mountinfo.
    pub fn of(mountinfo: &[u8]) -> Self {
        let kind = |mount: &Mount<'_>| {
            let name = mount.kind.split(|byte| *byte == b'.').next();
            let served = SERVED.iter().find(|served| Some(served.as_bytes()) == name);
            served.copied()
        };
        let number = |id: &[u8]| std::str::from_utf8(id).ok()?.parse().ok();
        let kinds = mounts(mountinfo).filter_map(|mount| Some((number(mount.id)?, kind(&mount))));
        Self(kinds.collect())
    }

    /// The kind of a mount if it asks a server, else `Some(None)`; `None` if the list does not have the mount.
    pub fn served(&self, mount_id: u64) -> Option<Option<&'static str>> {
        self.0.get(&mount_id).copied()
    }
}

/// Whether anything is mounted on `directory` or below it. `directory` has no links in it.
pub fn has_mount_at_or_below(mountinfo: &[u8], directory: &Path) -> bool {
    mounts(mountinfo).any(|mount| path(mount.point).starts_with(directory))
}

/// A directory as every mount namespace knows it: by its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside {
    device: (u32, u32),
    /// From the root of the file system.
    path: PathBuf,
    /// Whether mounts that another namespace makes there appear in this one.
    pub is_shared: bool,
}

/// Where a directory without links is, by the mounts of a process that sees it at that path.
pub fn inside(mountinfo: &[u8], directory: &Path) -> Option<Inside> {
    // Of two at one point the later one hides the other.
    let mount = mounts(mountinfo)
        .filter(|mount| directory.starts_with(path(mount.point)))
        .max_by_key(|mount| mount.point.len())?;
    let below = directory.strip_prefix(path(mount.point)).ok()?;
    Some(Inside {
        device: mount.device?,
        path: path(mount.root).join(below),
        is_shared: mount.is_shared,
    })
}

impl Inside {
    /// Major and minor number of the file system's device: one for all subvolumes of a btrfs, whose files name others.
    pub fn device(&self) -> (u32, u32) {
        self.device
    }
}

/// Whether another namespace, whose mounts these are, has anything mounted on that directory or below it, wherever it
/// sees it.
pub fn has_mount_inside(mountinfo: &[u8], directory: &Inside) -> bool {
    let by_id: BTreeMap<&[u8], Mount<'_>> =
        mounts(mountinfo).map(|mount| (mount.id, mount)).collect();
    by_id.values().any(|mount| {
        let Some(parent) = by_id.get(mount.parent) else {
            return false;
        };
        let point = path(mount.point);
        let Ok(below) = point.strip_prefix(path(parent.point)) else {
            return false;
        };
        parent.device == Some(directory.device)
            && path(parent.root).join(below).starts_with(&directory.path)
    })
}

/// `MAJOR:MINOR`.
fn device_number(text: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(text).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Undoes the kernel's escapes.
fn path(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] if first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Recorded on Linux 6.18: an overlay as root of a mount namespace, its upper directory with a space in the name.
    const RECORDED: &[u8] = b"\
66 42 0:40 / / rw,relatime - overlay overlay rw,lowerdir=/tmp/ovl/lower,upperdir=/tmp/ovl/tm/upper\\040dir,workdir=/tmp/ovl/tm/work,uuid=on
67 66 0:43 / /proc rw,relatime - proc proc rw
";
    // As containerd mounts them.
    const CONTAINERD: &[u8] = b"\
1263 1130 0:158 / / rw,relatime master:437 - overlay overlay rw,lowerdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/62/fs:/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/61/fs,upperdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/75/fs,workdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/75/work
1264 1263 0:161 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
1265 1263 0:162 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
1290 1263 254:1 /var/lib/kubelet/pods/8bf6b0ae-4c5a-4a4e-9b8f-8d1a0d1e1f7c/volumes/kubernetes.io~empty-dir/data /data rw,relatime - ext4 /dev/vda1 rw
";
    // As docker does, with optional fields before the dash, and a volume whose name has a space.
    const DOCKER: &[u8] = b"\
1050 702 0:52 / / rw,relatime shared:5 master:9 - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/AAA:/var/lib/docker/overlay2/l/BBB,upperdir=/var/lib/docker/overlay2/0c5d/diff,workdir=/var/lib/docker/overlay2/0c5d/work,nouserxattr
1060 1050 8:1 /srv/a\\040b /mnt/a\\040b rw - ext4 /dev/sda1 rw,errors=remount-ro
";
    // A machine without containers.
    const HOST: &[u8] = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard
23 22 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
31 22 0:26 / /var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/cache rw - tmpfs tmpfs rw,size=1024k
";

    #[test]
    fn the_upper_directory_of_the_root() {
        for (text, wanted) in [
            (RECORDED, Some("/tmp/ovl/tm/upper dir")),
            (
                CONTAINERD,
                Some("/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/75/fs"),
            ),
            (DOCKER, Some("/var/lib/docker/overlay2/0c5d/diff")),
            (HOST, None),
            (b"", None),
            (b"garbage\n1 2 3\n", None),
            (
                b"1 0 0:5 / / ro - overlay overlay ro,lowerdir=/a:/b\n",
                None,
            ),
            // Escaped: a comma, a space and a backslash; and what only looks like an escape.
            (
                b"1 0 0:5 / / rw - overlay none rw,upperdir=/a\\054b\\040c\\134d\\9,workdir=/w\n",
                Some("/a,b c\\d\\9"),
            ),
            // Something else is mounted over the overlay, or an overlay over something else.
            (
                b"1 0 0:5 / / rw - overlay o rw,upperdir=/u\n2 1 8:1 / / rw - ext4 /dev/sda rw\n",
                None,
            ),
            (
                b"2 1 8:1 / / rw - ext4 /dev/sda rw\n1 0 0:5 / / rw - overlay o rw,upperdir=/u\n",
                Some("/u"),
            ),
            // An overlay elsewhere is no root.
            (b"1 0 0:5 / /x rw - overlay o rw,upperdir=/u\n", None),
        ] {
            assert_eq!(
                root_mount(text).and_then(|root| root.upper).as_deref(),
                wanted.map(Path::new),
                "{}",
                String::from_utf8_lossy(text)
            );
        }
    }

    #[test]
    fn the_root_has_a_device_and_a_kind() {
        let root = root_mount(DOCKER).expect("a root");
        assert_eq!((root.device, root.is_overlay), ((0, 52), true));
        let root = root_mount(HOST).expect("a root");
        assert_eq!((root.device, root.is_overlay), ((8, 1), false));
        assert_eq!(
            root_mount(b"1 0 x / / rw - overlay o rw,upperdir=/u\n"),
            None
        );
    }

    #[test]
    fn a_mount_of_another_namespace_is_found_wherever_that_sees_the_directory() {
        // The agent's container has the host's /var/lib/kubelet at /kubelet, and does not see what is mounted later.
        let agent = b"\
1 0 0:40 / / rw - overlay overlay rw
2 1 8:1 /var/lib/kubelet /kubelet rw - ext4 /dev/sda1 rw
3 1 8:1 /srv /srv rw master:1 - ext4 /dev/sda1 rw
";
        let pod = inside(agent, Path::new("/kubelet/pods/u1")).expect("a mount");
        assert_eq!((pod.device, pod.is_shared), ((8, 1), false));
        assert_eq!(pod.path, Path::new("/var/lib/kubelet/pods/u1"));
        assert!(has_mount_inside(HOST, &pod));
        for other in ["/kubelet/pods/u", "/kubelet/pods/u2", "/srv/pods/u1"] {
            let other = inside(agent, Path::new(other)).expect("a mount");
            assert!(!has_mount_inside(HOST, &other), "{other:?}");
        }
        assert!(
            inside(agent, Path::new("/srv/x"))
                .expect("a mount")
                .is_shared
        );
        // On another file system that has the same path.
        let host = String::from_utf8_lossy(HOST).replace("8:1", "8:2");
        assert!(!has_mount_inside(host.as_bytes(), &pod));
    }

    #[test]
    fn mounts_at_and_below_a_directory() {
        for (directory, wanted) in [
            ("/var/lib/kubelet/pods/u1", true),
            (
                "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/cache",
                true,
            ),
            ("/var/lib/kubelet/pods/u", false),
            ("/var/lib/kubelet/pods/u2", false),
        ] {
            assert_eq!(
                has_mount_at_or_below(HOST, Path::new(directory)),
                wanted,
                "{directory}"
            );
        }
        assert!(has_mount_at_or_below(DOCKER, Path::new("/mnt/a b")));
    }
}
