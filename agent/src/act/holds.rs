//! Pods that are held after their eviction: nothing new starts in their cgroups until the API server shows their end.
//!
//! **Problem.** A kubelet starts again what was killed, and the report of an eviction may take as long as the API server is away. The hold that keeps
//! the node's memory free meanwhile is a file that outlives the agent. **Approach.** Each pod's file is in a ledger of its own before it can be
//! written ([`Ledger::record_ahead`]), because the write is the first step of a kill. Holds stay when the agent ends: an upgrade is no reason to
//! start an evicted pod again. They are lifted by [`Holds::lift`], at the start for pods whose eviction is settled, and by `plimsoll uninstall`. One that
//! cannot be lifted now (no file descriptor is left, another process has the ledger) is in [`Holds::to_lift`], and is to be lifted again.
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
/// The id of no cgroup.
const NO_CGROUP: u64 = 0;

/// The files of all pods that may be held.
#[derive(Debug)]
pub struct Holds {
    ledger: Ledger,
    /// The file, and the id of the pod's cgroup.
    files: BTreeMap<PodUid, (PathBuf, u64)>,
    /// Those that are to run again, and could not be let go.
    to_lift: BTreeSet<PodUid>,
    lines: u32,
}

/// A pod that is still held: it is in [`Holds::to_lift`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotLifted {
    /// Why, the first time.
    pub first: Option<String>,
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
        let (mut held, mut files, mut to_lift) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        for change in ledger.changes()? {
            let Change::Write { path, .. } = change else {
                continue;
            };
            let uid = path.parent().and_then(|dir| pods_of(dir).pop());
            if let Some(uid) = &uid
                && unsettled.contains(uid)
                && is_held(&path)
            {
                held.push(uid.clone());
                files.insert(uid.clone(), (path, NO_CGROUP));
            } else if ledger.restore_file(&path)?.busy().is_some()
                && let Some(uid) = uid
            {
                to_lift.insert(uid.clone());
                files.insert(uid, (path, NO_CGROUP));
            }
        }
        let holds = Self {
            ledger,
            files,
            to_lift,
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
    /// [`NotLifted`].
    pub fn lift(&mut self, uid: &PodUid) -> Result<bool, NotLifted> {
        let Some((file, _)) = self.files.get(uid) else {
            self.to_lift.remove(uid);
            return Ok(false);
        };
        let why = match self.ledger.restore_file(file) {
            Err(error) => error.to_string(),
            Ok(restoration) => match restoration.busy() {
                Some(why) => why.to_owned(),
                None => {
                    self.files.remove(uid);
                    self.to_lift.remove(uid);
                    return Ok(restoration.restored() > 0);
                }
            },
        };
        let is_first = self.to_lift.insert(uid.clone());
        Err(NotLifted {
            first: is_first.then_some(why),
        })
    }

    /// As [`Holds::lift`], but not now.
    ///
    /// # Errors
    /// [`NotLifted`], without a reason; not for a pod that is not held.
    pub fn lift_later(&mut self, uid: &PodUid) -> Result<(), NotLifted> {
        if !self.files.contains_key(uid) {
            return Ok(());
        }
        self.to_lift.insert(uid.clone());
        Err(NotLifted { first: None })
    }

    /// Those that are still to be let go.
    pub fn to_lift(&self) -> &BTreeSet<PodUid> {
        &self.to_lift
    }

    /// The pod was evicted again: it stays held.
    pub fn keep(&mut self, uid: &PodUid) {
        self.to_lift.remove(uid);
    }

    /// The pod's cgroup has gone, and its file with it; or it is in no list any more. One that is to be lifted is lifted all the same.
    pub fn forget(&mut self, uid: &PodUid) {
        if !self.to_lift.contains(uid) {
            self.files.remove(uid);
        }
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
    /// Without a file descriptor a file cannot be read; one that the kernel refuses to read stands in for that.
    #[test]
    fn what_could_not_be_lifted_is_lifted_again() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let open = || Ledger::open(&host, dir.path().join("state").join(HOLDS_LEDGER)).unwrap();
        let (pod, uid) = (dir.path().join("kubepods/poda"), PodUid::from("a"));
        let (file, away) = (pod.join("hold"), pod.join("away"));
        std::fs::create_dir_all(&pod).unwrap();
        std::fs::write(&file, "max").unwrap();
        let (mut holds, _) = Holds::take_up(open(), &BTreeSet::new()).unwrap();
        holds.record(&uid, file.clone(), 7).unwrap();
        std::fs::write(&file, HELD).unwrap();
        let put_away = || {
            std::fs::rename(&file, &away).unwrap();
            std::os::unix::fs::symlink("/proc/self/mem", &file).unwrap();
        };
        let put_back = || {
            std::fs::remove_file(&file).unwrap();
            std::fs::rename(&away, &file).unwrap();
        };
        put_away();
        assert!(holds.lift(&uid).unwrap_err().first.is_some());
        assert_eq!(holds.lift(&uid).unwrap_err().first, None, "said once");
        assert_eq!(holds.to_lift().len(), 1);
        // Another agent goes on with it.
        drop(holds);
        let (mut holds, held) = Holds::take_up(open(), &BTreeSet::new()).unwrap();
        assert!(held.is_empty());
        assert_eq!(holds.to_lift().len(), 1);
        put_back();
        // In no list any more, and held all the same.
        holds.forget(&uid);
        assert_eq!(holds.to_lift().len(), 1);
        // Evicted again meanwhile: not to be let go.
        holds.keep(&uid);
        assert!(holds.to_lift().is_empty());
        assert!(holds.lift_later(&uid).is_err());
        assert_eq!(holds.lift(&uid), Ok(true));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "max");
        assert!(holds.to_lift().is_empty() && open().changes().unwrap().is_empty());
        assert_eq!(holds.lift_later(&uid), Ok(()), "nothing is held");
        // Held by an agent before, and let go before this one has looked at the pod.
        holds.record(&uid, file.clone(), 7).unwrap();
        std::fs::write(&file, HELD).unwrap();
        let (mut holds, _) = Holds::take_up(open(), &[uid.clone()].into()).unwrap();
        assert_eq!(holds.lift(&uid), Ok(true));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "max");
    }
}
