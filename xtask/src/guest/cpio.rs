//! The guest's root file system as a newc cpio archive (Documentation/driver-api/early-userspace/buffer-format.rst),
//! which the kernel unpacks at boot. Written here so that the same content always gives the same bytes: no owner, time
//! or inode number of this machine gets in.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

#[derive(Debug)]
struct Entry {
    mode: u32,
    content: Vec<u8>,
}

/// Files by their path in the guest, without the leading `/`.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    entries: BTreeMap<String, Entry>,
}

impl Archive {
    /// Adds a folder and those above it.
    pub(crate) fn folder(&mut self, path: &str) {
        let mut end = 0;
        let path = path.trim_matches('/');
        while end < path.len() {
            end = path[end + 1..]
                .find('/')
                .map_or(path.len(), |next| end + 1 + next);
            self.entries.entry(path[..end].to_owned()).or_insert(Entry {
                mode: FOLDER,
                content: Vec::new(),
            });
        }
    }

    /// Adds or replaces a file; `program` makes it executable.
    pub(crate) fn file(&mut self, path: &str, content: Vec<u8>, program: bool) {
        self.add(path, if program { PROGRAM } else { FILE }, content);
    }

    /// Adds or replaces a symbolic link.
    pub(crate) fn link(&mut self, path: &str, to: &str) {
        self.add(path, LINK, to.as_bytes().to_vec());
    }

    fn add(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        let path = path.trim_matches('/');
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
        self.entries
            .insert(path.to_owned(), Entry { mode, content });
    }

    /// Adds a file of this machine, executable if it is so here.
    pub(crate) fn copy(&mut self, path: &str, from: &Path) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let mode = fs::metadata(from)
            .with_context(|| format!("cannot read {}", from.display()))?
            .permissions()
            .mode();
        self.file(path, content, mode & 0o111 != 0);
        Ok(())
    }

    /// Adds all that is below the folder `from`. Links are followed, except those that lead nowhere on this machine.
    pub(crate) fn copy_tree(&mut self, path: &str, from: &Path) -> Result<()> {
        let entries =
            fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read {}", from.display()))?;
            let name = entry.file_name();
            let inside = format!("{path}/{}", name.to_string_lossy());
            let file = entry.path();
            if file.is_dir() {
                self.folder(&inside);
                self.copy_tree(&inside, &file)?;
            } else if file.is_file() {
                self.copy(&inside, &file)?;
            } else if let Ok(to) = fs::read_link(&file) {
                self.link(&inside, &to.to_string_lossy());
            }
        }
        Ok(())
    }

    /// Writes all of it below the folder `root`, which is made.
    pub(crate) fn write_below(&self, root: &Path) -> Result<()> {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        fs::create_dir_all(root).with_context(|| format!("cannot create {}", root.display()))?;
        // A folder comes before what is in it.
        for (path, entry) in &self.entries {
            let to = root.join(path);
            let text = String::from_utf8_lossy(&entry.content);
            let written = match entry.mode {
                FOLDER => fs::create_dir(&to),
                LINK => symlink(&*text, &to),
                mode => fs::write(&to, &entry.content).and_then(|()| {
                    fs::set_permissions(&to, fs::Permissions::from_mode(mode & 0o777))
                }),
            };
            written.with_context(|| format!("cannot write {}", to.display()))?;
        }
        Ok(())
    }

    /// The archive's bytes.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let end = Entry {
            mode: 0,
            content: Vec::new(),
        };
        let entries = self
            .entries
            .iter()
            .map(|(path, entry)| (path.as_str(), entry));
        for (inode, (path, entry)) in entries.chain([("TRAILER!!!", &end)]).enumerate() {
            // Fields of newc: inode, mode, uid, gid, links, mtime, size, device (major, minor), rdev (both), name size,
            // check.
            let fields = [
                inode + 1,
                entry.mode as usize,
                0,
                0,
                1,
                0,
                entry.content.len(),
                0,
                0,
                0,
                0,
                path.len() + 1,
                0,
            ];
            bytes.extend_from_slice(b"070701");
            for field in fields {
                bytes.extend_from_slice(format!("{field:08x}").as_bytes());
            }
            bytes.extend_from_slice(path.as_bytes());
            bytes.push(0);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend_from_slice(&entry.content);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_byte_for_byte() {
        let mut archive = Archive::default();
        archive.file("etc/a", b"hello".to_vec(), true);
        let text = String::from_utf8(archive.into_bytes()).unwrap();
        let header = |inode: u32, mode: u32, size: u32, name: u32| {
            format!(
                "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}{0:08x}{0:08x}{0:08x}{0:08x}{name:08x}{0:08x}",
                0, 1
            )
        };
        let expected = [
            header(1, 0o040_755, 0, 4) + "etc\0\0\0",
            header(2, 0o100_755, 5, 6) + "etc/a\0hello\0\0\0",
            header(3, 0, 0, 11) + "TRAILER!!!\0\0\0\0",
        ]
        .concat();
        assert_eq!(text, expected);
        assert_eq!(text.len() % 4, 0);
    }

    #[test]
    fn folders_come_before_what_they_hold() {
        let mut archive = Archive::default();
        archive.link("lib64/ld.so", "/lib/ld.so");
        archive.folder("/a/b/c/");
        archive.file("/a/b/c/d", Vec::new(), false);
        let paths: Vec<&str> = archive.entries.keys().map(String::as_str).collect();
        assert_eq!(
            paths,
            ["a", "a/b", "a/b/c", "a/b/c/d", "lib64", "lib64/ld.so"]
        );
    }

    #[test]
    fn the_same_content_gives_the_same_bytes() {
        let archive = |names: [&str; 2]| {
            let mut archive = Archive::default();
            for name in names {
                archive.file(name, name.as_bytes().to_vec(), false);
            }
            archive.into_bytes()
        };
        assert_eq!(archive(["x", "y"]), archive(["y", "x"]));
    }
}
