//! Debian packages inside a guest: their files, the dynamic loader, and the shared libraries that their programs name.
//!
//! A guest has no package manager. The packages are unpacked into the cache; then the `NEEDED` entries of each program
//! are followed through libraries of the packages they depend on, and only libraries that are really needed go along.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{Dyn as _, FileHeader as _};

use super::cpio::Archive;
use crate::apt::{self, Suite};
use crate::architecture::Architecture;
use crate::interrupt::Folder;
use crate::lock::Lock;
use crate::paths;

/// The peers were measured as in this release.
const SUITE: &str = "bookworm";
const LOADER: &str = "ld-linux-x86-64.so.2";
/// Packages of another suite, under names of the guest: the name, Debian's name, the suite. Their libraries are
/// bookworm's all the same.
const OF_OTHER_SUITES: [(&str, &str, &str); 1] = [("containerd-2", "containerd", "sid")];
/// Where Debian's loader looks first.
const LIBRARY_FOLDER: &str = "lib/x86_64-linux-gnu";
/// Parts of a package that no program needs.
const LEFT_OUT: [&str; 4] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
];

/// Has `packages` unpacked in the cache, where tests on this machine find their programs.
pub(crate) fn fetched(packages: &[&str]) -> Result<()> {
    let store = Store::new()?;
    let _lock = Lock::take(&store.cache)?;
    packages
        .iter()
        .try_for_each(|package| store.unpacked(package).map(drop))
}

/// Adds `packages` to the guest.
pub(super) fn install(packages: &[&str], archive: &mut Archive) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let store = Store::new()?;
    let _lock = Lock::take(&store.cache)?;
    let mut needed = BTreeSet::new();
    let mut libraries = BTreeMap::new();
    for package in packages {
        let root = store.unpacked(package)?;
        let mut files = Vec::new();
        list(&root, &mut files)?;
        for file in &files {
            let inside = file
                .strip_prefix(&root)
                .unwrap_or(file)
                .to_string_lossy()
                .into_owned();
            if LEFT_OUT.iter().any(|left_out| inside.starts_with(left_out)) {
                continue;
            }
            match fs::read_link(file) {
                Ok(to) => archive.link(&inside, &to.to_string_lossy()),
                Err(_) => archive.copy(&inside, file)?,
            }
            needed.extend(needed_by(file)?);
        }
        // Programs of dependencies (init systems, debconf) are not for a guest; libraries are.
        let dependencies = store.libraries(package)?;
        store.fetch(&dependencies)?;
        for dependency in &dependencies {
            index(&store.folder.join(dependency), &mut libraries)?;
        }
        index(&root, &mut libraries)?;
    }
    if needed.is_empty() {
        return Ok(());
    }
    for (name, path) in closure(needed, &libraries)? {
        archive.file(&format!("{LIBRARY_FOLDER}/{name}"), read(&path)?, true);
    }
    let loader = libraries.get(LOADER).with_context(|| {
        format!("no package of {packages:?} depends on libc6, which has {LOADER}")
    })?;
    archive.file(&format!("lib64/{LOADER}"), read(loader)?, true);
    Ok(())
}

struct Store {
    cache: PathBuf,
    folder: PathBuf,
}

impl Store {
    fn new() -> Result<Self> {
        let cache = paths::cache()?;
        Ok(Self {
            folder: cache.join("packages").join(SUITE),
            cache,
        })
    }

    /// The folder that holds the package's files.
    fn unpacked(&self, package: &str) -> Result<PathBuf> {
        let folder = self.folder.join(package);
        if folder.is_dir() {
            return Ok(folder);
        }
        let purpose = format!("package-{package}");
        let (name, suite) = in_debian(package);
        if apt::pinned(&purpose).is_empty() {
            self.fetch(&[package.to_owned()])?;
            return Ok(folder);
        }
        apt::keep_pinned(
            &self.cache,
            (suite, Architecture::Amd64),
            &purpose,
            &folder,
            |_| Ok(vec![name.to_owned()]),
        )?;
        Ok(folder)
    }

    /// Puts the newest of each package that is not there yet beside the others.
    fn fetch(&self, packages: &[String]) -> Result<()> {
        let partial = self.partial()?;
        let missing: Vec<(&str, PathBuf)> = packages
            .iter()
            .filter(|package| !self.folder.join(package).is_dir())
            .map(|package| (package.as_str(), partial.path().join(package)))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Suite::open(&self.cache, SUITE, Architecture::Amd64)?.unpack(&missing)?;
        for (package, root) in missing {
            let folder = self.folder.join(package);
            fs::rename(&root, &folder)
                .with_context(|| format!("cannot write {}", folder.display()))?;
        }
        Ok(())
    }

    fn partial(&self) -> Result<Folder> {
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot create {}", self.folder.display()))?;
        Folder::inside(&self.folder)
    }

    /// The library packages that `package` depends on, directly or not; kept beside the package, so that a filled cache
    /// needs no network.
    fn libraries(&self, package: &str) -> Result<Vec<String>> {
        let known = self.folder.join(format!("{package}.libraries"));
        if let Ok(text) = fs::read_to_string(&known) {
            return Ok(text.lines().map(str::to_owned).collect());
        }
        let (name, _) = in_debian(package);
        let names = Suite::open(&self.cache, SUITE, Architecture::Amd64)?.libraries(name)?;
        // Whole or not there: a part of it names too few.
        let partial = self.partial()?;
        let whole = partial.path().join("libraries");
        fs::write(&whole, names.join("\n"))
            .and_then(|()| fs::rename(&whole, &known))
            .with_context(|| format!("cannot write {}", known.display()))?;
        Ok(names)
    }
}

/// Debian's name of a package, and its suite.
fn in_debian(package: &str) -> (&str, &str) {
    let mut others = OF_OTHER_SUITES.iter();
    let other = others.find(|(name, _, _)| *name == package);
    other.map_or((package, SUITE), |(_, name, suite)| (name, suite))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// All files and links below `folder`.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let path = entry
            .with_context(|| format!("cannot read {}", folder.display()))?
            .path();
        if path.is_dir() && !path.is_symlink() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}

/// Adds the shared libraries below `root` by file name, links resolved inside their folder.
fn index(root: &Path, libraries: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let mut files = Vec::new();
    list(root, &mut files)?;
    for file in files {
        let Some(name) = file
            .file_name()
            .and_then(|name| name.to_str())
            .filter(|name| name.contains(".so"))
        else {
            continue;
        };
        let target = match fs::read_link(&file) {
            // Libraries link to a neighbour, or to an absolute path of the guest.
            Ok(to) if to.is_absolute() => root.join(to.strip_prefix("/").unwrap_or(&to)),
            Ok(to) => file.with_file_name(to),
            Err(_) => file.clone(),
        };
        if target.is_file() {
            libraries.entry(name.to_owned()).or_insert(target);
        }
    }
    Ok(())
}

/// The libraries that `needed` and they themselves need, by name.
fn closure(
    mut needed: BTreeSet<String>,
    libraries: &BTreeMap<String, PathBuf>,
) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    while let Some(name) = needed.pop_first() {
        if found.contains_key(&name) {
            continue;
        }
        let Some(path) = libraries.get(&name) else {
            bail!(
                "no Debian library package that these depend on has {name}: add the package that has it with --package"
            );
        };
        needed.extend(needed_by(path)?);
        found.insert(name, path.clone());
    }
    Ok(found)
}

/// The `NEEDED` names of a 64-bit ELF file; none for any other file.
fn needed_by(path: &Path) -> Result<Vec<String>> {
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let bytes = read(path)?;
    Ok(needed_in(&bytes).unwrap_or_default())
}

fn needed_in(bytes: &[u8]) -> Option<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, bytes).ok()?;
    let (dynamic, strings) = sections.dynamic(endian, bytes).ok()??;
    let strings = sections.strings(endian, bytes, strings).ok()?;
    let names = dynamic
        .iter()
        .filter(|entry| entry.tag(endian) == object::elf::DT_NEEDED)
        .filter_map(|entry| entry.string(endian, strings).ok())
        .map(|name| String::from_utf8_lossy(name).into_owned());
    Some(names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_test_needs_the_c_library() {
        let needed = needed_by(&std::env::current_exe().unwrap()).unwrap();
        assert!(
            needed.iter().any(|name| name.starts_with("libc.so")),
            "{needed:?}"
        );
        assert_eq!(needed_in(b"#!/bin/sh"), None);
    }

    #[test]
    fn packages_of_other_suites_are_pinned() {
        for (package, name, _) in OF_OTHER_SUITES {
            let pinned = apt::pinned(&format!("package-{package}"));
            let names: Vec<&str> = pinned.iter().map(|one| one.package.as_str()).collect();
            assert_eq!(names, [name]);
        }
        assert_eq!(in_debian("runc"), ("runc", SUITE));
    }

    #[test]
    fn libraries_are_found_in_lib_and_in_usr_lib() {
        let root = tempfile::tempdir().unwrap();
        for (folder, name) in [
            ("lib/x86_64-linux-gnu", "libz.so.1.2.13"),
            ("usr/lib/x86_64-linux-gnu", "libsctp.so.1.0.19"),
        ] {
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(name), "").unwrap();
            let link = name.splitn(4, '.').take(3).collect::<Vec<_>>().join(".");
            std::os::unix::fs::symlink(name, folder.join(link)).unwrap();
        }
        let mut libraries = BTreeMap::new();
        index(root.path(), &mut libraries).unwrap();
        let needed = BTreeSet::from(["libz.so.1", "libsctp.so.1"].map(str::to_owned));
        assert_eq!(
            closure(needed, &libraries).unwrap().len(),
            2,
            "{libraries:?}"
        );
    }

    #[test]
    fn links_are_indexed_by_their_own_name() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/lib")).unwrap();
        fs::write(root.path().join("usr/lib/liba.so.1.2"), "").unwrap();
        std::os::unix::fs::symlink("liba.so.1.2", root.path().join("usr/lib/liba.so.1")).unwrap();
        let mut libraries = BTreeMap::new();
        index(root.path(), &mut libraries).unwrap();
        assert_eq!(
            libraries["liba.so.1"],
            root.path().join("usr/lib/liba.so.1.2")
        );
        let closed = closure(BTreeSet::from(["liba.so.1".to_owned()]), &libraries).unwrap();
        assert_eq!(closed.len(), 1);
        let missing = closure(BTreeSet::from(["libb.so".to_owned()]), &libraries).unwrap_err();
        assert!(missing.to_string().contains("libb.so"), "{missing}");
    }
}
