//! The cgroups of a pod in one hierarchy: found within a bound, and read again only when they may have changed.
//!
//! **Problem.** A pod that may make cgroups decides how many there are to read: twenty thousand are made in a second. **Approach.** Reading stops at
//! [`CGROUPS_PER_POD_MAX`], in the midst of a directory if need be. That there are more is a state of the tree ([`Tree::is_cut`]): it is then
//! read again when its upper levels, which a runtime makes, have changed, and otherwise only at every [`CUT_READ_EVERY`]th look.
//! Directories come level by level, so containers are found before what they have made.
//!
//! A pod also decides how deep they are, and a directory that is made by its name alone may have a longer path than the kernel opens (PATH_MAX).
//! Such a one, and what is in it, is not kept either: the tree is cut there.

use std::io::ErrorKind;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{CGROUP_PATH_BYTES_MAX, CGROUPS_PER_POD_MAX, file_error};
use crate::host::file::{FileError, errno_of};

/// Looks at a tree with too many cgroups from one reading of its directories to the next.
const CUT_READ_EVERY: u32 = 16;
/// Of a directory without directories in it: its name, and its `.`.
const DIRECTORY_LINKS: u64 = 2;

/// Where a cgroup is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) path: Arc<Path>,
    /// Its directory's inode number: the same path with another id is another cgroup.
    pub(super) id: u64,
    /// 0 for the pod's own.
    pub(super) depth: usize,
    /// Links of its directory just before it was read: a link for each directory in it (`kernfs_refresh_inode`).
    links: u64,
}

/// What is open for a cgroup.
pub(super) trait Node: Sized {
    /// Opens it.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the cgroup is gone.
    fn open(place: Place) -> Result<Self, FileError>;
    fn place(&self) -> &Place;
    fn place_mut(&mut self) -> &mut Place;
}

/// A pod's cgroup and those below it, as far as they are known.
#[derive(Debug)]
pub(super) struct Tree<N> {
    dir: PathBuf,
    nodes: Vec<N>,
    is_cut: bool,
    /// Looks since the directories were read, while it is cut.
    looks_since_read: u32,
    /// Directory entries that were read so far.
    entries_read: u64,
}

impl<'tree, N> IntoIterator for &'tree Tree<N> {
    type Item = &'tree N;
    type IntoIter = std::slice::Iter<'tree, N>;

    fn into_iter(self) -> Self::IntoIter {
        self.nodes.iter()
    }
}

impl<N> Tree<N> {
    /// Below `dir`; nothing is known yet.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            nodes: Vec::new(),
            is_cut: false,
            looks_since_read: 0,
            entries_read: 0,
        }
    }

    /// The known ones, the pod's own first.
    pub(super) fn iter(&self) -> std::slice::Iter<'_, N> {
        self.nodes.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, N> {
        self.nodes.iter_mut()
    }

    /// Whether there are more cgroups than are kept.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    #[cfg(test)]
    pub(super) fn entries_read(&self) -> u64 {
        self.entries_read
    }

    /// Closes everything: the pod has no cgroup here.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.is_cut = false;
    }
}

impl<N: Node> Tree<N> {
    /// Opens what has come and closes what is gone, if anything may have changed.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the pod's cgroup is gone.
    pub(super) fn refresh(&mut self) -> Result<(), FileError> {
        self.looks_since_read = self.looks_since_read.saturating_add(1);
        if self.is_as_known() {
            return Ok(());
        }
        self.read()
    }

    /// Whether reading the directories would find what is known: as many links as before, of which all that are known are still there, are the
    /// same directories. A tenth of what it costs to read directories of sixty files each. Of a tree that is cut only the upper levels are compared.
    pub(super) fn is_as_known(&self) -> bool {
        if self.nodes.is_empty() || self.is_cut && self.looks_since_read >= CUT_READ_EVERY {
            return false;
        }
        let is_same = |node: &N| {
            let place = node.place();
            let is_compared = !self.is_cut || place.depth == 0;
            place.path.metadata().is_ok_and(|now| {
                now.ino() == place.id && (!is_compared || now.nlink() == place.links)
            })
        };
        let mut compared = self
            .nodes
            .iter()
            .filter(|node| !self.is_cut || node.place().depth <= 1);
        compared.all(is_same)
    }

    fn read(&mut self) -> Result<(), FileError> {
        let (places, is_cut) = places_below(&self.dir, &mut self.entries_read)?;
        self.is_cut = is_cut;
        self.looks_since_read = 0;
        let is_same = |place: &Place, node: &N| {
            node.place().id == place.id && node.place().path == place.path
        };
        // A container that was restarted has a new cgroup of the same name.
        self.nodes
            .retain(|node| places.iter().any(|place| is_same(place, node)));
        self.nodes
            .reserve_exact(places.len().saturating_sub(self.nodes.len()));
        for place in places {
            let mut known = self.nodes.iter_mut();
            if let Some(node) = known.find(|node| is_same(&place, node)) {
                *node.place_mut() = place;
                continue;
            }
            match N::open(place) {
                Ok(node) => self.nodes.push(node),
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The pod's cgroup and those below it, and whether there are more: than [`CGROUPS_PER_POD_MAX`], or with longer paths than are kept.
fn places_below(dir: &Path, entries_read: &mut u64) -> Result<(Vec<Place>, bool), FileError> {
    let root = dir
        .metadata()
        .map_err(|error| file_error(&Arc::from(dir), errno_of(&error)))?;
    let mut found = vec![Place {
        path: Arc::from(dir),
        id: root.ino(),
        depth: 0,
        links: root.nlink(),
    }];
    let mut is_cut = false;
    let mut next = 0;
    while next < found.len() {
        let Place { path, depth, .. } = found[next].clone();
        // Before it is read, so that a directory made meanwhile is seen at the next look.
        let links = match path.metadata() {
            Ok(metadata) => metadata.nlink(),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(file_error(&path, errno_of(&error))),
        };
        found[next].links = links;
        next += 1;
        if links == 0 || links == DIRECTORY_LINKS {
            continue;
        }
        let room = CGROUPS_PER_POD_MAX.saturating_sub(found.len());
        let mut children = directories_in(&path, room + 1, entries_read)?;
        is_cut |= children.len() > room;
        children.truncate(room);
        let found_here = children.len();
        children.retain(|(path, _)| path.as_os_str().len() <= CGROUP_PATH_BYTES_MAX);
        is_cut |= children.len() < found_here;
        let children = children.into_iter().map(|(path, id)| Place {
            path,
            id,
            depth: depth + 1,
            links: 0,
        });
        found.extend(children);
        if is_cut && found.len() >= CGROUPS_PER_POD_MAX {
            break;
        }
    }
    Ok((found, is_cut))
}

/// At most `max` of the directories in a directory, those that are read by path; none when it is gone.
fn directories_in(
    dir: &Arc<Path>,
    max: usize,
    entries_read: &mut u64,
) -> Result<Vec<(Arc<Path>, u64)>, FileError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_error(dir, errno_of(&error))),
    };
    let mut found = Vec::new();
    // The kernel gives a directory in portions: what is not asked for is not read.
    for entry in entries.filter_map(Result::ok) {
        *entries_read += 1;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push((Arc::from(entry.path()), entry.ino()));
            if found.len() == max {
                break;
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}
