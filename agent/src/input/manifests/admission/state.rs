//! Which pods are admitted, in a file of the state directory: for the next agent, and for `plimsoll exec`.
//!
//! **Problem.** An admitted pod keeps the requests, limits and priority that it was admitted with, whatever becomes of
//! the LimitRange that set them, and whatever process counts it next. **Approach.** `admitted.json` has the admitted
//! pods themselves; what is in use of a quota is counted from them and never stored, so no crash counts a pod twice or
//! loses one. The file is replaced as a whole before the loop hears of a pod. Without a LimitRange, ResourceQuota or
//! PriorityClass there is no file.
//!
//! A file that is cut off, edited or of another version is renamed to `admitted.json.damaged-N`, and said; pods that
//! run are then admitted as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::host::shown::Show as _;
use crate::host::state_dir;

/// The file, in the state directory.
pub const ADMITTED: &str = "admitted.json";
/// What is written now.
const VERSION: u32 = 1;
/// A file above this is none of ours, and none is written: a thousand pods take some MiB.
const BYTES_MAX: u64 = 64 << 20;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// It cannot be read or written.
    #[error("{path} cannot be read or written: {source}; it is tried again", path = path.shown())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is damaged.
    #[error("{path}: {why}; `plimsoll run` sets it aside when it starts", path = path.shown())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// Why `plimsoll exec` does not start a pod.
#[derive(Debug, thiserror::Error)]
pub enum NotAdmitted {
    /// It was refused.
    #[error("{0}")]
    Refused(String),
    /// Its manifest is gone.
    #[error(
        "pod {0}: its manifest was removed, and it is on its way out; try again when it has left"
    )]
    Leaving(String),
    /// No agent has decided about it.
    #[error(
        "pod {0}: LimitRanges, ResourceQuotas or PriorityClasses decide about it, and no agent has admitted it yet; put its manifest into the directory of `plimsoll run --manifests`, and try again"
    )]
    Unknown(String),
    /// What was decided cannot be read.
    #[error(transparent)]
    State(#[from] StateFileError),
}

/// What is in the file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AdmittedPods {
    /// The number of the next file that is seen for the first time.
    pub(super) next_file: u64,
    /// The number of each manifest file, by its name: those that were first seen together have the same.
    pub(super) files: BTreeMap<String, u64>,
    pub(super) rules: Rules,
    /// Those about which something decides, or has decided.
    pub(super) pods: Vec<AdmittedPod>,
    /// Why each of the others was refused.
    pub(super) refused: BTreeMap<PodUid, String>,
}

/// About which pods something decides.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Rules {
    /// There are priority classes: about all.
    pub(super) everywhere: bool,
    /// There are LimitRanges or quotas: about those of these namespaces.
    pub(super) namespaces: BTreeSet<String>,
}

impl Rules {
    pub(super) fn decide_about(&self, namespace: &str) -> bool {
        self.everywhere || self.namespaces.contains(namespace)
    }
}

/// An admitted pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AdmittedPod {
    pub(super) file: PathBuf,
    pub(super) line: u64,
    /// Its manifest is gone, and it has not left yet.
    #[serde(default)]
    pub(super) leaving: bool,
    /// As its manifest had it.
    pub(super) document: Arc<Value>,
    /// With what was set when it was admitted.
    pub(super) pod: Arc<Pod>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<'text> {
    version: u32,
    /// Of the text of `admitted`.
    checksum: String,
    #[serde(borrow)]
    admitted: &'text RawValue,
}

impl AdmittedPods {
    /// Reads the file, if there is one.
    pub(super) fn read(state_dir: &Path) -> Result<Option<Self>, StateFileError> {
        let path = state_dir.join(ADMITTED);
        match state_dir::read(&path, BYTES_MAX) {
            Ok(None) => Ok(None),
            Ok(Some(text)) => match text.and_then(|text| parse(&text)) {
                Ok(admitted) => Ok(Some(admitted)),
                Err(why) => Err(StateFileError::Damaged { path, why }),
            },
            Err(source) => Err(StateFileError::Io { path, source }),
        }
    }

    /// Replaces the file.
    pub(super) fn write(&self, state_dir: &Path) -> Result<(), StateFileError> {
        let write = || {
            let admitted = serde_json::value::to_raw_value(self)?;
            let written = Written {
                version: VERSION,
                checksum: state_dir::checksum(admitted.get()),
                admitted: &admitted,
            };
            let mut text = serde_json::to_vec(&written)?;
            text.push(b'\n');
            if text.len() as u64 > BYTES_MAX {
                let why = format!("it would be larger than {BYTES_MAX} bytes; remove manifests");
                return Err(std::io::Error::other(why));
            }
            state_dir::replace(&state_dir.join(ADMITTED), &text)
        };
        write().map_err(|source| StateFileError::Io {
            path: state_dir.join(ADMITTED),
            source,
        })
    }

    /// Removes the file: nothing decides about any pod.
    pub(super) fn remove(state_dir: &Path) -> Result<(), StateFileError> {
        let path = state_dir.join(ADMITTED);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(StateFileError::Io { path, source })
            }
            _ => Ok(()),
        }
    }
}

fn parse(text: &[u8]) -> Result<AdmittedPods, String> {
    let written: Written<'_> = serde_json::from_slice(text)
        .map_err(|error| format!("not a file of admitted pods: {error}"))?;
    state_dir::verify(
        (written.version, VERSION),
        written.admitted.get(),
        &written.checksum,
    )?;
    serde_json::from_str(written.admitted.get())
        .map_err(|error| format!("not a file of admitted pods: {error}"))
}

/// The pod as an agent has admitted it; `None` where nothing decides about it.
///
/// # Errors
/// [`NotAdmitted`]: then it is not to be started.
pub fn admitted(state_dir: &Path, pod: &Pod) -> Result<Option<Arc<Pod>>, NotAdmitted> {
    let Some(mut admitted) = AdmittedPods::read(state_dir)? else {
        return Ok(None);
    };
    let uid = pod.uid();
    let name = || pod.full_name();
    if let Some(message) = admitted.refused.remove(&uid) {
        return Err(NotAdmitted::Refused(message));
    }
    let known = admitted
        .pods
        .into_iter()
        .find(|known| known.pod.uid() == uid);
    match known {
        Some(known) if known.leaving => Err(NotAdmitted::Leaving(name())),
        Some(known) => Ok(Some(known.pod)),
        None if admitted.rules.decide_about(pod.namespace()) => Err(NotAdmitted::Unknown(name())),
        None => Ok(None),
    }
}
