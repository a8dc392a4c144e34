//! What a container has on disk: its pod's emptyDir volumes and its log, in the kubelet's layout.
//!
//! **Problem.** Disk usage is counted and evicted for by directory, so a command that stands in for a container needs
//! its directories where the kubelet would make them. **Approach.** They are made after the cgroup was joined: from
//! then on the pod has a process, and its directories are not freed as those of an ended one. The command learns by
//! environment variables where its volumes are: that works for every program and needs neither rights nor a root file
//! system, which a mount at `volumeMounts.mountPath` would.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use plimsoll_core::kube::pod::{Container, Pod};

use crate::host::shown::Show as _;
use crate::pods::directories::VolumePlugin;
use crate::storage::pod_paths::PodPaths;

/// What the name of a volume's variable starts with.
pub const VARIABLE_PREFIX: &str = "PLIMSOLL_VOLUME_";

/// Directories above a volume: as the kubelet makes them (`volume.MountSetup` in `pkg/kubelet/kubelet_pods.go`).
const DIR_MODE: u32 = 0o750;
/// A volume: any user of the container may write (`perm` in `pkg/volume/emptydir/empty_dir.go`).
const VOLUME_MODE: u32 = 0o777;
/// A directory of logs (`PodLogsDirectoryPerm`), and a log.
const LOGS_DIR_MODE: u32 = 0o755;
const LOG_MODE: u32 = 0o640;

/// A directory or a log that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The kernel refused it.
    #[error("{path}: cannot be created: {source}; choose another {option}", path = path.shown())]
    Create {
        /// Which.
        path: PathBuf,
        /// The option that decides where it is.
        option: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A name in the manifest cannot name a directory.
    #[error("{field} {name:?} cannot name a directory; use letters, digits, '-', '_' and '.'")]
    Name {
        /// Which field.
        field: &'static str,
        /// Its value.
        name: String,
    },
}

/// A volume that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// The variable that tells the command.
    pub variable: OsString,
    /// Where it is.
    pub path: PathBuf,
}

/// Makes the pod's emptyDir volumes, and says which it does not make. What is there already is left as it is.
///
/// # Errors
/// [`VolumeError`] for the first that cannot be made.
pub(super) fn make(paths: &PodPaths, pod: &Pod) -> Result<(Vec<Volume>, Vec<String>), VolumeError> {
    let (mut volumes, mut notes) = (Vec::new(), Vec::new());
    for volume in &pod.spec.volumes {
        let Some(source) = &volume.empty_dir else {
            continue;
        };
        let variable = variable(&volume.name);
        if !source.medium.is_empty() {
            notes.push(format!(
                "volume {}: exec does not mount medium {}; {variable} is not set",
                volume.name, source.medium
            ));
            continue;
        }
        let path = paths
            .volume_dir(&pod.uid(), VolumePlugin::EmptyDir, &volume.name)
            .ok_or_else(|| VolumeError::Name {
                field: "spec.volumes[].name or metadata.uid",
                name: volume.name.clone(),
            })?;
        make_volume(&path).map_err(|source| VolumeError::Create {
            path: path.clone(),
            option: "--kubelet-dir",
            source,
        })?;
        volumes.push(Volume {
            variable: variable.into(),
            path,
        });
    }
    Ok((volumes, notes))
}

fn make_volume(path: &Path) -> std::io::Result<()> {
    let mut above = DirBuilder::new();
    above.recursive(true).mode(DIR_MODE);
    if let Some(parent) = path.parent() {
        above.create(parent)?;
    }
    match DirBuilder::new().mode(VOLUME_MODE).create(path) {
        // The umask took some away.
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(VOLUME_MODE)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// `PLIMSOLL_VOLUME_` and the name in capitals. A name has no `_`, so no two volumes get the same variable.
fn variable(volume: &str) -> String {
    format!(
        "{VARIABLE_PREFIX}{}",
        volume.to_ascii_uppercase().replace('-', "_")
    )
}

/// Opens the container's log, to append to.
///
/// # Errors
/// [`VolumeError`]: it cannot be made.
pub(super) fn open_log(
    paths: &PodPaths,
    pod: &Pod,
    container: &Container,
) -> Result<File, VolumeError> {
    let identity = (pod.namespace(), pod.metadata.name.as_str(), &pod.uid());
    let dir = paths
        .container_logs_dir(identity, &container.name)
        .ok_or_else(|| VolumeError::Name {
            field: "metadata or container name",
            name: container.name.clone(),
        })?;
    let path = dir.join("0.log");
    DirBuilder::new()
        .recursive(true)
        .mode(LOGS_DIR_MODE)
        .create(&dir)
        .and_then(|()| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .mode(LOG_MODE)
                .open(&path)
        })
        .map_err(|source| VolumeError::Create {
            path,
            option: "--logs-dir",
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostRoot;
    use crate::storage::pod_paths::RuntimeLayers;
    use std::io::Write;

    fn places(root: &Path) -> PodPaths {
        PodPaths {
            host: HostRoot::new(root),
            kubelet_dir: PathBuf::from("/kubelet"),
            logs_dir: PathBuf::from("/logs"),
            layer_roots: Vec::new(),
            runtime_layers: RuntimeLayers::default(),
        }
    }

    fn pod() -> Pod {
        serde_json::from_str(
            r#"{"metadata":{"name":"web","namespace":"shop","uid":"u"},"spec":{"containers":[{"name":"app"}],"volumes":[
            {"name":"my-data","emptyDir":{"sizeLimit":"1Mi"}},{"name":"shm","emptyDir":{"medium":"Memory"}},{"name":"host","hostPath":{}}]}}"#,
        )
        .unwrap()
    }

    #[test]
    fn volumes_are_made_where_the_kubelet_has_them_and_left_alone_the_second_time() {
        let dir = tempfile::tempdir().unwrap();
        let (volumes, notes) = make(&places(dir.path()), &pod()).unwrap();
        let path = dir
            .path()
            .join("kubelet/pods/u/volumes/kubernetes.io~empty-dir/my-data");
        assert_eq!(
            volumes,
            [Volume {
                variable: "PLIMSOLL_VOLUME_MY_DATA".into(),
                path: path.clone()
            }]
        );
        assert_eq!(
            notes,
            ["volume shm: exec does not mount medium Memory; PLIMSOLL_VOLUME_SHM is not set"]
        );
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(
            (mode(&path), mode(path.parent().unwrap())),
            (VOLUME_MODE, DIR_MODE)
        );
        std::fs::write(path.join("kept"), "x").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        assert_eq!(make(&places(dir.path()), &pod()).unwrap().0, volumes);
        assert!(path.join("kept").exists());
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn what_cannot_be_made_names_path_and_option() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("kubelet"), "a file").unwrap();
        std::fs::write(dir.path().join("logs"), "a file").unwrap();
        let error = make(&places(dir.path()), &pod()).unwrap_err().to_string();
        assert!(
            error.contains("my-data") && error.contains("--kubelet-dir"),
            "{error}"
        );
        let pod = pod();
        let error = open_log(&places(dir.path()), &pod, &pod.spec.containers[0]).unwrap_err();
        assert!(error.to_string().contains("--logs-dir"), "{error}");
        let mut bad = pod.clone();
        bad.spec.volumes[0].name = "..".to_owned();
        let error = make(&places(dir.path()), &bad).unwrap_err().to_string();
        assert!(error.contains("cannot name a directory"), "{error}");
    }

    #[test]
    fn a_log_is_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let pod = pod();
        for line in ["one\n", "two\n"] {
            let mut log = open_log(&places(dir.path()), &pod, &pod.spec.containers[0]).unwrap();
            log.write_all(line.as_bytes()).unwrap();
        }
        let path = dir.path().join("logs/shop_web_u/app/0.log");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "one\ntwo\n");
    }
}
