//! Where pods keep what takes space of the node's disks: paths from names, and what the container runtime says instead.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::reading::Used;
use plimsoll_core::protocol::runtime_link::RuntimeContainer;

use crate::host::HostRoot;
use crate::pods::directories::VolumePlugin;

/// Bytes of one mountinfo that are read; more is not looked at.
const MOUNTINFO_BYTES_MAX: u64 = 16 << 20;
/// Room for that of an ordinary container, in place of a dozen reads that begin with 32 bytes.
const MOUNTINFO_AT_ONCE_BYTES: usize = 8 << 10;

/// Where pods keep things on this machine.
#[derive(Debug, Clone)]
pub struct PodPaths {
    /// The machine.
    pub host: HostRoot,
    /// The kubelet's directory.
    pub kubelet_dir: PathBuf,
    /// The directory of pods' logs.
    pub logs_dir: PathBuf,
    /// Below these container runtimes keep writable layers.
    pub layer_roots: Vec<PathBuf>,
    /// What the container runtime says of layers.
    pub runtime_layers: RuntimeLayers,
}

impl PodPaths {
    /// The directory of all pods' directories.
    pub fn pods_dir(&self) -> PathBuf {
        self.host.path(&self.kubelet_dir).join("pods")
    }

    /// A pod's directory; `None` if its UID cannot name one.
    pub fn pod_dir(&self, uid: &PodUid) -> Option<PathBuf> {
        Some(self.pods_dir().join(component(uid.as_str())?))
    }

    /// A pod's volume; `None` if a name cannot name a directory.
    pub fn volume_dir(&self, uid: &PodUid, plugin: VolumePlugin, volume: &str) -> Option<PathBuf> {
        Some(
            self.pod_dir(uid)?
                .join("volumes")
                .join(plugin.directory())
                .join(component(volume)?),
        )
    }

    /// A container's logs; `None` if a name cannot name a directory.
    pub fn container_logs_dir(
        &self,
        (namespace, name, uid): (&str, &str, &PodUid),
        container: &str,
    ) -> Option<PathBuf> {
        let pod = format!("{namespace}_{name}_{uid}");
        let dir = self.host.path(&self.logs_dir).join(component(&pod)?);
        Some(dir.join(component(container)?))
    }
}

/// A name that is one component of a path, so that it cannot lead elsewhere.
fn component(name: &str) -> Option<&str> {
    let is_safe = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
    is_safe.then_some(name)
}

/// Writable layers by the container runtime's figures, which one thread writes and another reads.
#[derive(Debug, Clone, Default)]
pub struct RuntimeLayers(Arc<Mutex<BTreeMap<(String, String), Used>>>);

impl RuntimeLayers {
    /// Takes note of a list: of each container name in each pod the newest.
    pub(super) fn set(&self, containers: &[RuntimeContainer]) {
        let mut newest: Vec<&RuntimeContainer> = containers.iter().collect();
        newest.sort_by_key(|container| container.created_unix_ns);
        let layers = newest.into_iter().filter_map(|container| {
            let layer = container.writable_layer?;
            let used = Used {
                bytes: layer.bytes,
                inodes: layer.inodes,
            };
            Some(((container.pod_uid.clone(), container.name.clone()), used))
        });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = layers.collect();
    }

    pub(super) fn of(&self, uid: &PodUid, container: &str) -> Option<Used> {
        let key = (uid.as_str().to_owned(), container.to_owned());
        let layers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        layers.get(&key).copied()
    }
}

/// What a process sees mounted, by `/proc`.
pub(super) fn mountinfo(host: &HostRoot, process: &str) -> Option<Vec<u8>> {
    use std::io::Read;
    let path = host.procfs(format!("{process}/mountinfo"));
    let mut text = Vec::with_capacity(MOUNTINFO_AT_ONCE_BYTES);
    let file = std::fs::File::open(path).ok()?;
    file.take(MOUNTINFO_BYTES_MAX).read_to_end(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_dots_in_a_name_lead_nowhere_else() {
        assert_eq!(component("a..b"), Some("a..b"));
        for name in ["", ".", "..", "a/b", "a\0b"] {
            assert_eq!(component(name), None, "{name:?}");
        }
    }
}
