//! From the path of a cgroup to the pod that it belongs to, by the names that the kubelet gives with either cgroup driver
//! (1.36, pkg/kubelet/cm/pod_container_manager_linux.go `GetPodContainerName`, pkg/kubelet/cm/cgroup_manager_linux.go `ToSystemd`).

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use plimsoll_core::model::units::PodUid;

use crate::host::HostRoot;
use crate::host::file::{FileError, read_text};

/// The directories in which the cgroupfs driver has cgroups of pods.
const TIERS: [&[u8]; 3] = [b"kubepods", b"burstable", b"besteffort"];
/// Names this pod by the downward API, where its cgroup namespace hides the path.
pub const POD_UID_VARIABLE: &str = "PLIMSOLL_POD_UID";

/// The pods to which a cgroup belongs: `kubepods/burstable/podUID/…` of the cgroupfs driver, `kubepods-burstable-podUID.slice` of the systemd driver.
/// Several where a node is itself a container of a pod.
pub fn pods_of(cgroup: &Path) -> Vec<PodUid> {
    let mut pods = Vec::new();
    let mut above: &[u8] = b"";
    for component in cgroup.components() {
        let name = component.as_os_str().as_bytes();
        let uid = if TIERS.contains(&above) {
            name.strip_prefix(b"pod").map(<[u8]>::to_vec)
        } else {
            None
        };
        let uid = uid.or_else(|| systemd_uid(name));
        let uid = uid.filter(|uid| !uid.is_empty());
        if let Some(uid) = uid.and_then(|uid| String::from_utf8(uid).ok()) {
            pods.push(PodUid::new(uid));
        }
        above = name;
    }
    pods
}

/// systemd takes `-` for a level of its own, so that a UID has `_` in its place.
fn systemd_uid(name: &[u8]) -> Option<Vec<u8>> {
    const POD: &[u8] = b"-pod";
    let name = name.strip_suffix(b".slice")?;
    name.strip_prefix(b"kubepods")?;
    let at = name.windows(POD.len()).rposition(|part| part == POD)?;
    let uid = name[at + POD.len()..].iter();
    Some(
        uid.map(|byte| if *byte == b'_' { b'-' } else { *byte })
            .collect(),
    )
}

/// Inode number of the initial cgroup namespace (include/linux/proc_ns.h, `PROC_CGROUP_INIT_INO`).
const INITIAL_CGROUP_NAMESPACE: u64 = 0xEFFF_FFFB;

/// Whether this process sees its cgroups from a namespace of its own, and is not told in which pod it runs: then its pod is unknown.
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
    let text = read_text(host.procfs("self/cgroup"))?;
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let named = std::env::var(POD_UID_VARIABLE).ok();
    let named = named.filter(|uid| !uid.is_empty()).map(PodUid::new);
    let mut pods: Vec<PodUid> = paths
        .flat_map(|path| pods_of(Path::new(path)))
        .chain(named)
        .collect();
    pods.sort();
    pods.dedup();
    Ok(pods)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_drivers_name_their_pods() {
        let of = |path: &str| pods_of(Path::new(path));
        let uid = [PodUid::from("1b2c-9a")];
        for path in [
            "/kubepods/pod1b2c-9a/3f00",
            "/kubepods/burstable/pod1b2c-9a",
            "/a/kubepods/besteffort/pod1b2c-9a/x/y",
            "/kubepods.slice/kubepods-pod1b2c_9a.slice",
            "/kubelet.slice/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1b2c_9a.slice/cri-containerd-77.scope",
        ] {
            assert_eq!(of(path), uid, "{path}");
        }
        for path in [
            "/",
            "/user.slice/pod1",
            "/kubepods/burstable",
            "/kubepods/pod",
            "/kubepods.slice/kubepods-burstable.slice",
            "/other-pod1.slice",
        ] {
            assert_eq!(of(path), [], "{path}");
        }
        let nested = of("/kubepods/poda/c/kubepods/burstable/podb");
        assert_eq!(nested, [PodUid::from("a"), PodUid::from("b")]);
    }

    #[test]
    fn this_process_is_in_the_pod_of_its_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        std::fs::create_dir_all(host.procfs("self")).unwrap();
        let text = "3:memory:/kubepods/burstable/poda/c\n1:name=systemd:/kubepods/burstable/poda/c\n0::/kubepods/poda:b\n";
        std::fs::write(host.procfs("self/cgroup"), text).unwrap();
        let pods = pods_of_this_process(&host).unwrap();
        assert_eq!(pods, [PodUid::from("a"), PodUid::from("a:b")]);
    }
}
