//! The folders of this machine, kept out of what the compilers write.
//!
//! Problem: panics, debug information and the BTF of BPF programs name source files by absolute paths, so that a build
//! says where it was made, and is another one in another folder. Approach: `--remap-path-prefix` for the three places
//! where sources are, and [`found_in`] to make sure.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::paths;

/// Where the sources of Rust's own library are, below a toolchain.
const LIBRARY: &str = "lib/rustlib/src/rust";

/// Where cargo has what it has fetched: `$CARGO_HOME`, else `~/.cargo`.
fn cargo_home() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(set("HOME")?).join(".cargo")))
        .context("neither CARGO_HOME nor HOME is set; set CARGO_HOME")
}

/// Flags for rustc. Everything must have been fetched: the name of a registry's folder depends on the registry.
/// `sysroot` is that of the toolchain.
pub(crate) fn flags(sysroot: &Path) -> Result<Vec<String>> {
    let mut prefixes = vec![
        (paths::root().to_owned(), "/plimsoll"),
        (sysroot.join(LIBRARY), "/rust"),
    ];
    let registries = cargo_home()?.join("registry/src");
    // There is none where all crates are vendored, below the workspace.
    let entries = fs::read_dir(&registries).into_iter().flatten();
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    prefixes.extend(folders.into_iter().map(|folder| (folder, "/crates")));
    Ok(prefixes
        .into_iter()
        .map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display()))
        .collect())
}

/// A folder of this machine that `bytes` name, if there is one.
pub(crate) fn found_in(bytes: &[u8]) -> Result<Option<PathBuf>> {
    let mut folders = vec![paths::root().to_owned(), cargo_home()?];
    folders.extend(std::env::var_os("RUSTUP_HOME").map(PathBuf::from));
    folders.extend(std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".rustup")));
    Ok(folders
        .into_iter()
        .find(|folder| names(bytes, folder.as_os_str().as_encoded_bytes())))
}

fn names(bytes: &[u8], folder: &[u8]) -> bool {
    bytes
        .windows(folder.len() + 1)
        .any(|window| window.starts_with(folder) && window.ends_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_of_sources_has_a_name() {
        let flags = flags(Path::new("/t/nightly")).unwrap();
        let root = paths::root().display();
        assert_eq!(flags[0], format!("--remap-path-prefix={root}=/plimsoll"));
        assert_eq!(
            flags[1],
            "--remap-path-prefix=/t/nightly/lib/rustlib/src/rust=/rust"
        );
        assert!(flags.len() > 2 && flags[2..].iter().all(|flag| flag.ends_with("=/crates")));
    }

    #[test]
    fn a_folder_is_found_in_bytes() {
        let inside = paths::root().join("agent/src/main.rs");
        let bytes = [b"\0panicked at ", inside.as_os_str().as_encoded_bytes()].concat();
        assert_eq!(found_in(&bytes).unwrap().as_deref(), Some(paths::root()));
        assert_eq!(found_in(b"/plimsoll/agent/src/main.rs").unwrap(), None);
        assert!(!names(b"/work/tree", b"/work/t"));
    }
}
