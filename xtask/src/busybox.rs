//! busybox, the user space of the guests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use object::{Object as _, ObjectSection as _};

use crate::apt;
use crate::architecture::Architecture;
use crate::lock::Lock;
use crate::paths;
use crate::process::in_path;

/// A statically linked busybox: this machine's where it is of this architecture, else Debian's, unpacked into the
/// cache.
pub(crate) fn fetched(architecture: Architecture) -> Result<PathBuf> {
    let is_it = |path: &PathBuf| is_static(path) && architecture.check(path).is_ok();
    if let Some(found) = in_path("busybox").filter(is_it) {
        return Ok(found);
    }
    let cache = paths::cache()?;
    let purpose = architecture.of("busybox");
    let folder = cache.join(&purpose);
    let find = || {
        ["bin/busybox", "usr/bin/busybox"]
            .map(|name| folder.join(name))
            .into_iter()
            .find(is_it)
    };
    if let Some(cached) = find() {
        return Ok(cached);
    }
    let _lock = Lock::take(&cache)?;
    if let Some(cached) = find() {
        return Ok(cached);
    }
    let suite = ("bookworm", architecture);
    apt::keep_pinned(&cache, suite, &purpose, &folder, |_| {
        Ok(vec!["busybox-static".to_owned()])
    })?;
    find().with_context(|| {
        format!("Debian's busybox-static holds no static busybox for {architecture}")
    })
}

/// Whether the file is a program that runs without a dynamic loader.
fn is_static(path: &Path) -> bool {
    let Ok(bytes) = fs::read(path) else {
        return false;
    };
    object::File::parse(bytes.as_slice()).is_ok_and(|file| {
        file.sections()
            .all(|section| section.name() != Ok(".interp"))
    })
}
