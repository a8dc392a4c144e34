//! The cgroups of a pod in one hierarchy: found within a bound, and read again only when they may have changed.
//!
//! **Problem.** A pod that may make cgroups decides how many there are to read: twenty thousand are made in a second.
//! **Approach.** Reading stops at [`CGROUPS_PER_POD_MAX`], in the midst of a directory if need be. That there are more
//! is a state of the tree ([`Tree::is_cut`]): it is then read again when its upper levels, which a runtime makes, have
//! changed, and otherwise only at every [`CUT_READ_EVERY`]th look. Directories come level by level, so containers are
//! found before what they have made.
//!
//! A pod also decides how deep they are, and a directory that is made by its name alone may have a longer path than the
//! kernel opens (PATH_MAX). Such a one, and what is in it, is not kept either: the tree is cut there. And so it is
//! where the paths together have [`PATH_BYTES_PER_POD_MAX`].

use std::io::ErrorKind;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{CGROUP_PATH_BYTES_MAX, CGROUPS_PER_POD_MAX, PATH_BYTES_PER_POD_MAX, file_error};
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
    /// The last reading did not come to its end: what is known may lack some.
    is_partial: bool,
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
            is_partial: false,
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

    /// Whether reading the directories would find what is known: as many links as before, of which all that are known
    /// are still there, are the same directories. A tenth of what it costs to read directories of sixty files each. Of
    /// a tree that is cut only the upper levels are compared.
    pub(super) fn is_as_known(&self) -> bool {
        if self.nodes.is_empty()
            || self.is_partial
            || self.is_cut && self.looks_since_read >= CUT_READ_EVERY
        {
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
        self.is_partial = true;
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
        let mut failed = None;
        for place in places {
            let mut known = self.nodes.iter_mut();
            if let Some(node) = known.find(|node| is_same(&place, node)) {
                *node.place_mut() = place;
                continue;
            }
            match N::open(place) {
                Ok(node) => self.nodes.push(node),
                Err(error) if error.is_vanished() => {}
                // The others are opened all the same.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        self.is_partial = failed.is_some();
        failed.map_or(Ok(()), Err)
    }
}

/// The pod's cgroup and those below it, and whether there are more: than [`CGROUPS_PER_POD_MAX`], or with longer paths
/// than are kept.
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
    let mut path_bytes = dir.as_os_str().len();
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
        children.retain(|(path, _)| {
            let bytes = path.as_os_str().len();
            let is_kept =
                bytes <= CGROUP_PATH_BYTES_MAX && path_bytes + bytes <= PATH_BYTES_PER_POD_MAX;
            path_bytes += if is_kept { bytes } else { 0 };
            is_kept
        });
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
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(file_error(dir, errno_of(&error))),
        };
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

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::io::Errno;

    use super::*;

    /// A directory with a file of this name cannot be opened.
    const REFUSED: &str = "refused";

    struct Opened(Place);

    impl Node for Opened {
        fn open(place: Place) -> Result<Self, FileError> {
            match place.path.join(REFUSED).exists() {
                true => Err(file_error(&place.path, Errno::NFILE)),
                false => Ok(Self(place)),
            }
        }

        fn place(&self) -> &Place {
            &self.0
        }

        fn place_mut(&mut self) -> &mut Place {
            &mut self.0
        }
    }

    #[test]
    fn what_could_not_be_opened_is_opened_at_the_next_look_and_the_others_at_once() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        // A file, so that no directory's links change when it goes.
        let refused = dir.path().join("a").join(REFUSED);
        fs::write(&refused, "").unwrap();
        let mut tree = Tree::<Opened>::new(dir.path().to_owned());
        assert!(tree.refresh().is_err());
        assert_eq!(tree.iter().count(), 3, "the pod's own, b and c");
        fs::remove_file(refused).unwrap();
        tree.refresh().unwrap();
        assert_eq!(tree.iter().count(), 4);
        assert!(tree.is_as_known());
    }

    #[test]
    fn long_paths_are_kept_within_a_bound_for_all_of_a_pod() {
        let dir = tempfile::tempdir().unwrap();
        for container in 0..8 {
            fs::create_dir(dir.path().join(format!("container-{container}"))).unwrap();
        }
        let mut deep = dir.path().join("container-0");
        for _ in 0..12 {
            deep.push("x".repeat(255));
        }
        for at in 0..100 {
            fs::create_dir_all(deep.join(at.to_string())).unwrap();
        }
        let mut tree = Tree::<Opened>::new(dir.path().to_owned());
        tree.refresh().unwrap();
        let bytes: usize = tree.iter().map(|node| node.0.path.as_os_str().len()).sum();
        let containers = tree.iter().filter(|node| node.0.depth == 1).count();
        assert!(tree.is_cut() && bytes <= PATH_BYTES_PER_POD_MAX, "{bytes}");
        assert_eq!(containers, 8, "found before what is inside");
        // As many as a pod may have, below names as runtimes give them.
        let dir = tempfile::tempdir().unwrap();
        let mut pod = dir
            .path()
            .join("x".repeat(160_usize.saturating_sub(dir.path().as_os_str().len())));
        pod.push(format!("cri-containerd-{}.scope", "0".repeat(64)));
        for at in 0..CGROUPS_PER_POD_MAX - 1 {
            fs::create_dir_all(pod.join(format!("system.slice-{at}.service"))).unwrap();
        }
        let mut tree = Tree::<Opened>::new(pod);
        tree.refresh().unwrap();
        assert_eq!(
            (tree.iter().count(), tree.is_cut()),
            (CGROUPS_PER_POD_MAX, false)
        );
    }
}
