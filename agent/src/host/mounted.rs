//! For tests: a file system that is mounted as long as this is there.

use std::path::Path;
use std::process::Command;

use crate::notes;

/// Unmounted with this.
pub(crate) struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    /// What is mounted here already, or is about to be.
    pub(crate) const fn at(path: &'a Path) -> Self {
        Self(path)
    }

    /// A disk that can be filled: a tmpfs with these options. `None`, and said, where none can be mounted.
    pub(crate) fn tmpfs(path: &'a Path, options: &str) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(path)
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(path));
        }
        notes::left_out("no tmpfs can be mounted");
        None
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.0).status().ok();
    }
}
