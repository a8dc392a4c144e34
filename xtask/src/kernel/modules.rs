//! Modules that guest tests load: Debian builds zram (swap in compressed memory) and the files of disk quotas as such.
//!
//! Problem: Debian's packages hold thousands of modules, partly compressed, and no list of what depends on what
//! (`depmod` makes it on the machine). Approach: the few that are wanted and what their own `.modinfo` says they depend
//! on, uncompressed, are kept under names that sort in the order in which they are to be loaded: `00-zsmalloc.ko`,
//! `01-zram.ko`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use object::{Object as _, ObjectSection as _};

use crate::interrupt::{self, Folder};

/// The compressor that zram of 6.1 takes by default, a module of its own that nothing depends on: the kernel asks for
/// it when a device is made. Newer ones have compressors inside.
const COMPRESSOR: &str = "lzo_rle";
/// What tests ask for: zram, and the format of the quotas of ext4.
const WANTED: [&str; 2] = ["zram", "quota_v2"];

/// Below the root of an unpacked package. Debian moved it with 7.x.
const FOLDERS: [&str; 2] = ["lib/modules", "usr/lib/modules"];

/// Puts the wanted modules of kernel `release`, unpacked below `root`, into the folder `into`, which appears when it is
/// whole.
pub(super) fn keep(root: &Path, release: &str, into: &Path, busybox: &Path) -> Result<()> {
    let mut package = Package {
        busybox,
        files: BTreeMap::new(),
        contents: Vec::new(),
    };
    for folder in FOLDERS {
        index(&root.join(folder).join(release), &mut package.files)?;
    }
    ensure!(
        !package.files.is_empty(),
        "Debian's package of kernel {release} holds no modules below lib/modules or usr/lib/modules"
    );
    if package.files.contains_key(COMPRESSOR) {
        package.add(COMPRESSOR)?;
    }
    for name in WANTED {
        package.add(name)?;
    }
    let parent = into
        .parent()
        .context("the folder of modules has no parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let partial = Folder::inside(parent)?;
    let whole = partial.path().join("modules");
    fs::create_dir(&whole).with_context(|| format!("cannot create {}", whole.display()))?;
    for (place, (name, content)) in package.contents.iter().enumerate() {
        let path = whole.join(format!("{place:02}-{name}.ko"));
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if into.exists() {
        fs::remove_dir_all(into).with_context(|| format!("cannot remove {}", into.display()))?;
    }
    fs::rename(&whole, into).with_context(|| format!("cannot write {}", into.display()))
}

/// The modules that [`keep`] put there, in the order in which they are to be loaded; of an older xtask perhaps not all
/// ([`are_all`]).
pub(super) fn kept(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Whether all that tests ask for is among the kept files.
pub(super) fn are_all(kept: &[PathBuf]) -> bool {
    let is_kept = |name: &&str| {
        kept.iter()
            .filter_map(|file| file.file_stem()?.to_str()?.split_once('-'))
            .any(|(_, kept)| kept == *name)
    };
    WANTED.iter().all(is_kept)
}

struct Package<'a> {
    busybox: &'a Path,
    /// All that it holds, by module name.
    files: BTreeMap<String, PathBuf>,
    /// What was added: name and content, after what it depends on.
    contents: Vec<(String, Vec<u8>)>,
}

impl Package<'_> {
    fn add(&mut self, name: &str) -> Result<()> {
        if self.contents.iter().any(|(added, _)| added == name) {
            return Ok(());
        }
        let file = self
            .files
            .get(name)
            .with_context(|| format!("the kernel package lacks the module {name}"))?;
        let content = self.uncompressed(file)?;
        let dependencies = depends(&content)
            .with_context(|| format!("{} has no dependencies to read", file.display()))?;
        // The kernel has no circular ones: modpost refuses them.
        for dependency in dependencies {
            self.add(&dependency)?;
        }
        self.contents.push((name.to_owned(), content));
        Ok(())
    }

    fn uncompressed(&self, file: &Path) -> Result<Vec<u8>> {
        if file.extension().is_some_and(|extension| extension == "ko") {
            return fs::read(file).with_context(|| format!("cannot read {}", file.display()));
        }
        let mut xz = Command::new(self.busybox);
        xz.args(["xz", "-dc"]).arg(file);
        let output = interrupt::output(&mut xz)
            .with_context(|| format!("cannot start {}", self.busybox.display()))?;
        if !output.status.success() {
            bail!(
                "`busybox xz -dc {}` failed ({}): {}",
                file.display(),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        Ok(output.stdout)
    }
}

/// Adds the modules below `folder`, if it is there, by name.
fn index(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry
            .with_context(|| format!("cannot read {}", folder.display()))?
            .path();
        if path.is_dir() && !path.is_symlink() {
            index(&path, files)?;
        } else if let Some(name) = name_of(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// The name that the kernel has for the module in this file: `lzo_rle` for `lzo-rle.ko.xz`.
fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let name = file
        .strip_suffix(".ko")
        .or_else(|| file.strip_suffix(".ko.xz"))?;
    Some(name.replace('-', "_"))
}

/// What a module depends on, by its own word: `depends=` in the section `.modinfo`, whose entries end with a zero byte.
fn depends(module: &[u8]) -> Result<Vec<String>> {
    let file = object::File::parse(module)?;
    let info = file
        .section_by_name(".modinfo")
        .context("no section .modinfo")?
        .data()?;
    depends_in(info).context("no `depends=` in .modinfo")
}

fn depends_in(info: &[u8]) -> Option<Vec<String>> {
    let names = info
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(b"depends="))?;
    let names = String::from_utf8_lossy(names);
    let names = names.split(',').filter(|name| !name.is_empty());
    Some(names.map(|name| name.replace('-', "_")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_what_modinfo_says() {
        let info = b"parm=num_devices:x\0\0depends=zsmalloc,lz4-compress\0name=zram\0";
        assert_eq!(depends_in(info).unwrap(), ["zsmalloc", "lz4_compress"]);
        assert_eq!(depends_in(b"a=b\0depends=\0").unwrap(), [""; 0]);
        assert_eq!(depends_in(b"name=zram\0"), None);
    }

    #[test]
    fn modules_of_an_older_xtask_are_not_all() {
        let files = |names: &[&str]| -> Vec<PathBuf> { names.iter().map(PathBuf::from).collect() };
        let older = ["m/00-zsmalloc.ko", "m/01-zram.ko"];
        assert!(!are_all(&files(&older)));
        let whole = [older[0], older[1], "m/02-quota_tree.ko", "m/03-quota_v2.ko"];
        assert!(are_all(&files(&whole)));
        assert!(!are_all(&[]));
    }

    #[test]
    fn a_module_has_the_kernels_name() {
        let name = |file: &str| name_of(Path::new(file));
        assert_eq!(name("x/lzo-rle.ko.xz").as_deref(), Some("lzo_rle"));
        assert_eq!(name("x/zram.ko").as_deref(), Some("zram"));
        assert_eq!(name("x/modules.order"), None);
    }
}
