//! `/proc/<pid>/mountinfo`: which directory holds a container's writable layer, and what is mounted below a directory.
//!
//! A container runtime mounts the container's root as an overlay and says in the mount's options where what the container writes goes
//! (`upperdir=`). Any process of the container shows it, so no runtime needs to be asked. Format: `proc_pid_mountinfo(5)`; space, tab,
//! newline, backslash and, in overlay options, comma are written as three octal digits (`seq_escape` in the kernel).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Mounts of one text that are looked at.
const MOUNTS_MAX: usize = 100_000;

/// One mount.
struct Mount<'text> {
    point: &'text [u8],
    kind: &'text [u8],
    options: &'text [u8],
}

fn mounts(text: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    text.split(|byte| *byte == b'\n')
        .take(MOUNTS_MAX)
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let point = fields.nth(4)?;
            fields.find(|field| field == b"-")?;
            Some(Mount {
                point,
                kind: fields.next()?,
                options: fields.nth(1)?,
            })
        })
}

/// The directory that holds what a container writes, from the mountinfo of one of its processes.
///
/// `None` if its root is no overlay or a read-only one, and if it is `host_layer`: a process that shares the root of the whole machine,
/// as a command that `plimsoll exec` started does, has no layer of its own.
pub(super) fn writable_layer(mountinfo: &[u8], host_layer: Option<&Path>) -> Option<PathBuf> {
    // Mounts over the root hide the ones before.
    let root = mounts(mountinfo)
        .filter(|mount| mount.point == b"/")
        .last()
        .filter(|mount| mount.kind == b"overlay")?;
    let upper = root
        .options
        .split(|byte| *byte == b',')
        .find_map(|option| option.strip_prefix(b"upperdir="))?;
    Some(path(upper)).filter(|layer| Some(layer.as_path()) != host_layer)
}

/// Whether anything is mounted on `directory` or below it. `directory` has no links in it.
pub(super) fn has_mount_at_or_below(mountinfo: &[u8], directory: &Path) -> bool {
    mounts(mountinfo).any(|mount| path(mount.point).starts_with(directory))
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
                writable_layer(text, None).as_deref(),
                wanted.map(Path::new),
                "{}",
                String::from_utf8_lossy(text)
            );
        }
    }

    #[test]
    fn the_root_of_the_machine_is_nobodys_layer() {
        let layer = Path::new("/var/lib/docker/overlay2/0c5d/diff");
        assert_eq!(writable_layer(DOCKER, Some(layer)), None);
        assert!(writable_layer(CONTAINERD, Some(layer)).is_some());
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
