//! Where things are: the workspace, what the project builds into `target`, and the cache outside git.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The workspace root.
pub(crate) fn root() -> &'static Path {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.parent().unwrap_or(manifest_dir)
}

/// `target/NAME` of the workspace. `CARGO_TARGET_DIR` does not move these: other parts of the project look for them
/// here.
pub(crate) fn target(name: &str) -> PathBuf {
    root().join("target").join(name)
}

/// The BPF object that `agent/build.rs` embeds.
pub(crate) fn bpf_object() -> PathBuf {
    target("bpf").join("plimsoll.bpf.o")
}

/// The BPF object of tracing sessions, which `agent/build.rs` embeds too.
pub(crate) fn sampling_object() -> PathBuf {
    target("bpf").join("sampling.bpf.o")
}

/// The BPF object whose programs log: `cargo xtask build-ebpf --log`.
pub(crate) fn log_object() -> PathBuf {
    target("bpf").join("plimsoll-log.bpf.o")
}

/// The BPF object that `cargo xtask bench signals` compares with.
pub(crate) fn ping_object() -> PathBuf {
    target("bpf").join("ping.bpf.o")
}

/// Kernels and Debian packages: `$PLIMSOLL_CACHE`, else `$XDG_CACHE_HOME/plimsoll`, else `~/.cache/plimsoll`.
pub(crate) fn cache() -> Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache = set("PLIMSOLL_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("plimsoll")))
        .or_else(|| Some(set("HOME")?.join(".cache/plimsoll")))
        .context("no cache folder: neither PLIMSOLL_CACHE nor XDG_CACHE_HOME nor HOME is set; set PLIMSOLL_CACHE")?;
    std::fs::create_dir_all(&cache).with_context(|| {
        format!(
            "cannot create the cache folder {}; set PLIMSOLL_CACHE to a writable one",
            cache.display()
        )
    })?;
    cache
        .canonicalize()
        .with_context(|| format!("cannot resolve the cache folder {}", cache.display()))
}

/// Free bytes of the file system that holds `folder`, where they can be read.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let fs = rustix::fs::statvfs(folder).ok()?;
    Some(fs.f_bavail.saturating_mul(fs.f_frsize))
}
