//! Which pods the API server said are critical, on disk: an agent that starts while the API server is away knows a pod
//! by its cgroup alone, and the UID does not tell.
//!
//! Bounded as what is known is. Written when it changes, which is when such a pod comes or goes.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use plimsoll_core::kube::pod_uid::PodUid;
use serde::{Deserialize, Serialize};

use super::ClusterChange;
use crate::host::shown::Show as _;
use crate::host::state_dir;

/// Bytes of the file that are read: more than all UIDs that are known at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Content {
    uids: BTreeSet<PodUid>,
}

/// The file, and what it has.
#[derive(Debug)]
pub(super) struct CriticalPods {
    path: PathBuf,
    uids: BTreeSet<PodUid>,
    is_written: bool,
    is_failure_said: bool,
}

impl CriticalPods {
    /// Reads what an agent before has left. What cannot be used counts as empty, with a warning: the API server's next
    /// list replaces it.
    pub(super) fn open(path: PathBuf) -> Self {
        let uids = match read(&path) {
            Ok(uids) => uids,
            Err(why) => {
                tracing::warn!(path = %path.shown(), why, "which pods are critical is not known until the API server lists them");
                BTreeSet::new()
            }
        };
        Self {
            path,
            uids,
            is_written: true,
            is_failure_said: false,
        }
    }

    pub(super) fn uids(&self) -> &BTreeSet<PodUid> {
        &self.uids
    }

    /// Takes in what the API server says, and writes it down if that is something else.
    pub(super) fn note(&mut self, change: &ClusterChange) {
        let before = self.is_written.then(|| self.uids.clone());
        // A list without any pod, although the agent runs in one: what answers knows no pods.
        if change.is_list && !change.pods.is_empty() {
            self.uids.clear();
        }
        for uid in &change.gone {
            self.uids.remove(uid);
        }
        for pod in &change.pods {
            let uid = pod.pod.uid();
            match pod.pod.is_critical() {
                true => self.uids.insert(uid),
                false => self.uids.remove(&uid),
            };
        }
        if before.as_ref() != Some(&self.uids) {
            self.write();
        }
    }

    fn write(&mut self) {
        let content = Content {
            uids: self.uids.clone(),
        };
        let text = serde_json::to_vec(&content).map_err(io::Error::from);
        let written = text.and_then(|text| state_dir::replace(&self.path, &text));
        self.is_written = written.is_ok();
        if let Err(error) = written
            && !std::mem::replace(&mut self.is_failure_said, true)
        {
            tracing::error!(%error, path = %self.path.shown(), "which pods are critical cannot be written down: after a restart of the agent, and while the API server is away, they may be evicted (reported once)");
        }
    }
}

fn read(path: &std::path::Path) -> Result<BTreeSet<PodUid>, String> {
    let Some(text) = state_dir::read(path, FILE_BYTES_MAX).map_err(|error| error.to_string())?
    else {
        return Ok(BTreeSet::new());
    };
    let content: Content = serde_json::from_slice(&text?).map_err(|error| error.to_string())?;
    Ok(content.uids)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use plimsoll_core::kube::pod::{Pod, SYSTEM_CRITICAL_PRIORITY};
    use plimsoll_core::kube::qos::QosClass;

    use super::super::ClusterPod;
    use super::*;

    fn pod(uid: &str, priority: i32) -> ClusterPod {
        let mut pod = Pod::unnamed(PodUid::from(uid), QosClass::BestEffort);
        pod.spec.priority = Some(priority);
        ClusterPod {
            pod: Arc::new(pod),
            is_leaving: false,
        }
    }

    #[test]
    fn what_was_critical_is_known_to_the_next_agent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("critical-pods.json");
        let known = || CriticalPods::open(path.clone()).uids().clone();
        let mut critical = CriticalPods::open(path.clone());
        assert!(critical.uids().is_empty() && !path.exists());
        let list = ClusterChange {
            pods: vec![pod("a", SYSTEM_CRITICAL_PRIORITY), pod("b", 0)],
            is_list: true,
            ..ClusterChange::default()
        };
        critical.note(&list);
        assert_eq!(known(), BTreeSet::from([PodUid::from("a")]));
        let more = ClusterChange {
            pods: vec![pod("c", SYSTEM_CRITICAL_PRIORITY)],
            gone: vec![PodUid::from("a")],
            ..ClusterChange::default()
        };
        critical.note(&more);
        assert_eq!(known(), BTreeSet::from([PodUid::from("c")]));
        // Nothing new: not written.
        std::fs::remove_file(&path).unwrap();
        critical.note(&more);
        assert!(!path.exists());
        critical.note(&list);
        assert_eq!(known(), BTreeSet::from([PodUid::from("a")]));
        std::fs::write(&path, "{").unwrap();
        assert!(known().is_empty(), "what cannot be read is no list");
    }
}
