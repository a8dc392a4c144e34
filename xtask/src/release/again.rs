//! The same release from another folder: a build that says nothing of its place gives the same bytes there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::interrupt::Folder;
use crate::paths;
use crate::process::output::ProcessOutput;
use crate::process::{self, output_of};
use crate::progress::{self, Progress, Step, say};

/// Builds a copy of the sources elsewhere, and compares with `first`; 1 when a file differs.
pub(super) fn same(first: &Path) -> Result<u8> {
    // Of another length too, and not below this one.
    let elsewhere = Folder::inside(&paths::cache()?)?;
    let copy = elsewhere.path().join("a/second/place/of/plimsoll");
    copy_sources(&copy)?;
    let second = elsewhere.path().join("dist");
    build(&copy, &second)?;
    let differences = compare(first, &second)?;
    for difference in &differences {
        say("differs", difference);
    }
    progress::print(if differences.is_empty() {
        "the second build, in another folder, is the same byte by byte"
    } else {
        "the second build is another one: see what differs above"
    });
    Ok(u8::from(!differences.is_empty()))
}

/// Copies what git knows, as it is now; tools that are built need not be built again.
fn copy_sources(to: &Path) -> Result<()> {
    let mut list = Command::new("git");
    list.args(["ls-files", "-z"]).current_dir(paths::root());
    let listed = output_of(&mut list, "the sources must be a clone of the repository")?;
    for name in listed.split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (paths::root().join(name), to.join(name));
        let parent = to.parent().context("a file without a folder")?;
        fs::create_dir_all(parent)
            .and_then(|()| match fs::read_link(&from) {
                // A link stays one: it may lead to a folder.
                Ok(target) => symlink(target, &to),
                Err(_) => fs::copy(&from, &to).map(|_| ()),
            })
            .with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let target = to.join("target");
    fs::create_dir_all(&target)
        .and_then(|()| symlink(paths::target("tools"), target.join("tools")))
        .with_context(|| format!("cannot write to {}", target.display()))
}

fn build(copy: &Path, out: &Path) -> Result<()> {
    let step = Step::begin("verify", "building again in another folder");
    let mut release = process::cargo();
    release
        .args(["run", "--locked", "--quiet", "--package", "xtask", "--"])
        .args(["release", "--out"])
        .arg(out)
        .env_remove("CARGO_TARGET_DIR")
        .current_dir(copy);
    let ended = ProcessOutput::run(&mut release, |line| {
        step.at(Progress::doing(line.trim()));
    })?;
    process::success(
        &release,
        &ended,
        "the first build succeeded: see what differs",
    )?;
    step.done();
    Ok(())
}

/// The files that are not the same in both folders, and why.
fn compare(first: &Path, second: &Path) -> Result<Vec<String>> {
    let names = |folder: &Path| -> Result<Vec<_>> {
        let entries =
            fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        Ok(names)
    };
    let mut differences = Vec::new();
    for name in names(second)? {
        let (one, other) = (fs::read(first.join(&name)), fs::read(second.join(&name)));
        let name = name.to_string_lossy();
        match (one, other) {
            (Ok(one), Ok(other)) => {
                if let Some(at) = first_difference(&one, &other) {
                    differences.push(format!("{name}: from byte {at} on"));
                }
            }
            (one, other) => {
                one.and(other)
                    .with_context(|| format!("cannot read {name}"))?;
            }
        }
    }
    Ok(differences)
}

fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let shared = one.len().min(other.len());
    let within = one.iter().zip(other).position(|(one, other)| one != other);
    within.or((one.len() != other.len()).then_some(shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (name, first, second) in [("a", "same", "same"), ("b", "abc", "abX"), ("c", "ab", "a")]
        {
            fs::write(one.path().join(name), first).unwrap();
            fs::write(other.path().join(name), second).unwrap();
        }
        let differences = compare(one.path(), other.path()).unwrap();
        assert_eq!(differences, ["b: from byte 2 on", "c: from byte 1 on"]);
        fs::write(other.path().join("d"), "").unwrap();
        assert!(compare(one.path(), other.path()).is_err(), "d is missing");
    }
}
