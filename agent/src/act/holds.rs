//! Pods that are held after their eviction: nothing new starts in their cgroups until the API server shows their end.
//!
//! **Problem.** A kubelet starts again what was killed, and the report of an eviction may take as long as the API server is away. The hold that keeps
//! the node's memory free meanwhile is a file that outlives the agent. **Approach.** Each pod's file is in a ledger of its own before it can be
//! written ([`Ledger::record_ahead`]), because the write is the first step of a kill. Holds stay when the agent ends: an upgrade is no reason to
//! start an evicted pod again. They are lifted by [`Holds::lift`], at the start for pods whose eviction is settled, and by `plimsoll uninstall`.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use plimsoll_core::model::units::PodUid;

use crate::host::file::read_text;
use crate::host::knobs::{Change, KnobError, Ledger};
use crate::pods::kill::HELD;
use crate::pods::names::pods_of;

/// Its ledger, in the state directory.
pub const HOLDS_LEDGER: &str = "holds.jsonl";
/// So many pods add a line each to the ledger; then the lines of those that have gone are taken out.
const FORGET_EVERY: u32 = 128;

/// The files of all pods that may be held.
#[derive(Debug)]
pub struct Holds {
    ledger: Ledger,
    /// The file, and the id of the pod's cgroup.
    files: BTreeMap<PodUid, (PathBuf, u64)>,
    lines: u32,
}

impl Holds {
    /// Goes on with what an agent before has left: pods in `unsettled` stay held, others are let go. Returns those that are held, too.
    ///
    /// # Errors
    /// [`KnobError`] when the ledger cannot be read.
    pub fn take_up(
        mut ledger: Ledger,
        unsettled: &BTreeSet<PodUid>,
    ) -> Result<(Self, Vec<PodUid>), KnobError> {
        let mut held = Vec::new();
        for change in ledger.changes()? {
            let Change::Write { path, .. } = change else {
                continue;
            };
            let uid = path.parent().and_then(|dir| pods_of(dir).pop());
            match uid.filter(|uid| unsettled.contains(uid) && is_held(&path)) {
                Some(uid) => held.push(uid),
                None => {
                    ledger.restore_file(&path)?;
                }
            }
        }
        let files = BTreeMap::new();
        let holds = Self {
            ledger,
            files,
            lines: 0,
        };
        Ok((holds, held))
    }

    /// A pod may be held from now on, by this file of its cgroup. Returns whether that is new. Not for the hot path.
    ///
    /// # Errors
    /// [`KnobError`]: it must not be.
    pub fn record(
        &mut self,
        uid: &PodUid,
        file: PathBuf,
        cgroup_id: u64,
    ) -> Result<bool, KnobError> {
        if self
            .files
            .get(uid)
            .is_some_and(|(_, known)| *known == cgroup_id)
        {
            return Ok(false);
        }
        self.ledger.record_ahead(&file, HELD)?;
        self.files.insert(uid.clone(), (file, cgroup_id));
        self.lines += 1;
        if self.lines >= FORGET_EVERY {
            self.lines = 0;
            self.ledger.forget_vanished()?;
        }
        Ok(true)
    }

    /// Lets a pod go. Whether it had been held.
    ///
    /// # Errors
    /// [`KnobError`]; it is tried again at the next start.
    pub fn lift(&mut self, uid: &PodUid) -> Result<bool, KnobError> {
        let Some((file, _)) = self.files.remove(uid) else {
            return Ok(false);
        };
        let restoration = self.ledger.restore_file(&file)?;
        Ok(restoration.restored() > 0)
    }

    /// The pod's cgroup has gone, and its file with it.
    pub fn forget(&mut self, uid: &PodUid) {
        self.files.remove(uid);
    }
}

fn is_held(file: &Path) -> bool {
    read_text(file).is_ok_and(|text| text.trim_end() == HELD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostRoot;

    #[test]
    fn a_hold_is_in_the_ledger_before_it_is_made_and_outlives_the_agent_while_unsettled() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let open = || Ledger::open(&host, dir.path().join("state").join(HOLDS_LEDGER)).unwrap();
        let file = |uid: &str| dir.path().join(format!("kubepods/burstable/pod{uid}/hold"));
        let read = |uid: &str| std::fs::read_to_string(file(uid)).unwrap();
        for uid in ["a", "b", "c"] {
            std::fs::create_dir_all(file(uid).parent().unwrap()).unwrap();
            std::fs::write(file(uid), "max").unwrap();
        }
        let (mut holds, held) = Holds::take_up(open(), &BTreeSet::new()).unwrap();
        assert!(held.is_empty());
        for (id, uid) in ["a", "b", "c"].into_iter().enumerate() {
            let uid_of = PodUid::from(uid);
            assert!(holds.record(&uid_of, file(uid), id as u64).unwrap());
            assert!(!holds.record(&uid_of, file(uid), id as u64).unwrap());
        }
        assert_eq!(open().changes().unwrap().len(), 3);
        // As the loop does.
        for uid in ["a", "b"] {
            std::fs::write(file(uid), HELD).unwrap();
        }
        drop(holds);

        let (mut holds, held) = Holds::take_up(open(), &[PodUid::from("a")].into()).unwrap();
        assert_eq!(held, [PodUid::from("a")]);
        assert_eq!(
            (read("a"), read("b"), read("c")),
            ("0".into(), "max".into(), "max".into())
        );
        assert_eq!(open().changes().unwrap().len(), 1);
        // It is the same pod: its line is there already.
        holds.record(&"a".into(), file("a"), 7).unwrap();
        assert!(holds.lift(&"a".into()).unwrap());
        assert_eq!(read("a"), "max");
        assert!(open().changes().unwrap().is_empty());
    }
}
