//! Containers whose cpuset another plugin of the runtime has set: they keep it.
//!
//! **Problem.** Such a container looks like any other that is not where it should be, and only the runtime's question (NRI), which is asked once, shows that its set was somebody's choice.
//! **Approach.** Their ids are kept in a file of the state directory, as long as their pods are there, so that an agent that is started anew leaves them alone too.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_core::model::units::PodUid;

use super::cgroups::Container;
use crate::host::shown::Show as _;
use crate::host::state_dir;
use crate::pods::names::container_id;

/// Its file, in the state directory.
pub const FOREIGN: &str = "foreign-cpusets.json";
/// More than the most pods with the most ids have.
const BYTES_MAX: u64 = 16 << 20;

/// Ids of such containers.
pub type Ids = BTreeMap<PodUid, BTreeSet<String>>;

/// The file, and what it says.
#[derive(Debug)]
pub(super) struct Foreign {
    path: PathBuf,
    pub(super) ids: Ids,
}

/// What an agent before has left. A file that is none says nothing: it is set aside.
///
/// # Errors
/// The system's.
pub fn read(state_dir: &Path) -> io::Result<Ids> {
    let path = state_dir.join(FOREIGN);
    let Some(text) = state_dir::read(&path, BYTES_MAX)? else {
        return Ok(Ids::new());
    };
    let ids =
        text.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
    ids.or_else(|why| {
        let aside = state_dir::set_aside(&path, &why)?;
        tracing::warn!(
            aside = %aside.shown(),
            "{FOREIGN}: {why}; containers whose cpuset another NRI plugin has set are placed like any other"
        );
        Ok(Ids::new())
    })
}

impl Foreign {
    pub(super) fn open(state_dir: &Path) -> io::Result<Self> {
        Ok(Self {
            path: state_dir.join(FOREIGN),
            ids: read(state_dir)?,
        })
    }

    /// From now on these.
    pub(super) fn set(&mut self, ids: &Ids) -> io::Result<()> {
        if self.ids == *ids {
            return Ok(());
        }
        state_dir::replace(&self.path, &serde_json::to_vec(ids)?)?;
        self.ids.clone_from(ids);
        Ok(())
    }

    pub(super) fn has(&self, container: &Container) -> bool {
        let directory = container.path.as_path().file_name();
        let id = directory.and_then(|name| container_id(name.to_str()?));
        let of_pod = self.ids.get(&container.pod);
        id.is_some_and(|id| of_pod.is_some_and(|ids| ids.contains(id)))
    }
}
