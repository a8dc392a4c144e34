//! Containers whose cpuset another plugin of the runtime has set: they keep it.
//!
//! **Problem.** Such a container looks like any other that is not where it should be, and only the runtime's question
//! (NRI), which is asked once, shows that its set was somebody's choice. **Approach.** Their ids are kept in a file of
//! the state directory, as long as their pods are there, so that an agent that is started anew leaves them alone too.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_core::kube::pod_uid::PodUid;

use super::cgroups::Container;
use crate::host::shown::Show as _;
use crate::host::state_dir;

/// Its file, in the state directory.
pub const FOREIGN: &str = "foreign-cpusets.json";
/// More than the most pods with the most ids have.
const BYTES_MAX: u64 = 16 << 20;

/// Ids of such containers, of each pod in the order in which they were made.
pub type Ids = BTreeMap<PodUid, Vec<String>>;

/// The file, and what it says.
#[derive(Debug)]
pub(super) struct Foreign {
    path: PathBuf,
    pub(super) ids: Ids,
    /// They are in the file.
    is_kept: bool,
}

/// What an agent before has left. A file that is none is set aside.
fn read(path: &Path) -> Result<Ids, String> {
    let text = match state_dir::read(path, BYTES_MAX) {
        Ok(None) => return Ok(Ids::new()),
        Ok(Some(text)) => text,
        Err(error) => return Err(error.to_string()),
    };
    let ids =
        text.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
    ids.map_err(|why| match state_dir::set_aside(path, &why) {
        Ok(aside) => format!("{why}; it is set aside as {}", aside.shown()),
        Err(error) => format!("{why}; it cannot be set aside: {error}"),
    })
}

impl Foreign {
    /// Goes on with what an agent before has left. Where that cannot be read nothing is known, and what follows is
    /// returned: placement goes on.
    pub(super) fn open(state_dir: &Path) -> (Self, Option<String>) {
        let path = state_dir.join(FOREIGN);
        let read = read(&path);
        let remark = read.as_ref().err().map(|why| {
            format!(
                "{FOREIGN}: {why}; containers that run, and whose cpuset another NRI plugin has set, are placed like any other"
            )
        });
        let ids = read.unwrap_or_default();
        let is_kept = true;
        (Self { path, ids, is_kept }, remark)
    }

    /// From now on these, whether or not the file can be written.
    pub(super) fn set(&mut self, ids: &Ids) -> io::Result<()> {
        if self.ids != *ids {
            self.ids.clone_from(ids);
            self.is_kept = false;
        }
        if !self.is_kept {
            state_dir::replace(&self.path, &serde_json::to_vec(ids)?)?;
            self.is_kept = true;
        }
        Ok(())
    }

    pub(super) fn has(&self, container: &Container) -> bool {
        let id = container.runtime_id();
        let of_pod = self.ids.get(&container.pod);
        id.is_some_and(|id| of_pod.is_some_and(|ids| ids.iter().any(|known| known == id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_keeps_nothing_from_going_on() {
        let dir = tempfile::tempdir().unwrap();
        let (mut foreign, remark) = Foreign::open(dir.path());
        assert_eq!(remark, None);
        let ids = Ids::from([("a".into(), vec!["1".to_owned()])]);
        foreign.set(&ids).unwrap();
        assert_eq!(Foreign::open(dir.path()).0.ids, ids);
        let file = dir.path().join(FOREIGN);
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 2]).unwrap();
        let (foreign, remark) = Foreign::open(dir.path());
        assert_eq!(foreign.ids, Ids::new());
        let remark = remark.unwrap();
        assert!(remark.contains("it is set aside as "), "{remark}");
        assert_eq!(Foreign::open(dir.path()).1, None, "said once");
        // No file at all.
        std::fs::create_dir(&file).unwrap();
        let (mut foreign, remark) = Foreign::open(dir.path());
        assert_eq!(foreign.ids, Ids::new());
        assert!(remark.is_some());
        for _ in 0..2 {
            foreign.set(&ids).unwrap_err();
            assert_eq!(foreign.ids, ids, "they are left alone all the same");
        }
        std::fs::remove_dir(&file).unwrap();
        foreign.set(&ids).unwrap();
        assert_eq!(Foreign::open(dir.path()).0.ids, ids);
    }
}
