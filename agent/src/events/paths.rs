//! Names for cgroup ids: records carry ids, people read paths.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use crate::host::{CgroupMounts, Version};

/// Cgroups whose paths are kept.
pub(super) const CGROUPS_MAX: usize = 65_536;

/// Paths of cgroups by (is on v1, id).
pub(super) struct Paths(pub(super) BTreeMap<(bool, u64), String>);

impl Paths {
    /// Reads the directories that are there now; later ones come with their records.
    pub(super) fn walk(mounts: &CgroupMounts) -> Paths {
        let mut paths = BTreeMap::new();
        for hierarchy in mounts.hierarchies() {
            let is_v1 = hierarchy.version == Version::V1;
            let mut open = vec![(hierarchy.mount.clone(), String::new())];
            while let Some((directory, path)) = open.pop() {
                // A directory may vanish at any moment.
                if let Ok(metadata) = directory.metadata() {
                    let shown = if path.is_empty() { "/" } else { &path };
                    paths
                        .entry((is_v1, metadata.ino()))
                        .or_insert_with(|| shown.to_owned());
                }
                if paths.len() >= CGROUPS_MAX {
                    break;
                }
                let Ok(entries) = std::fs::read_dir(&directory) else {
                    continue;
                };
                for entry in entries
                    .flatten()
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                {
                    open.push((
                        entry.path(),
                        format!("{path}/{}", entry.file_name().to_string_lossy()),
                    ));
                }
            }
        }
        Paths(paths)
    }

    /// The path of a cgroup of an unknown hierarchy: v2 if it is there, else v1.
    pub(super) fn of(&self, id: u64) -> Option<&str> {
        let path = |is_v1| self.0.get(&(is_v1, id)).map(String::as_str);
        path(false).or_else(|| path(true))
    }
}
