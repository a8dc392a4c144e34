//! Pods that are held after their eviction: nothing new starts in their cgroups until the API server shows their end.
//!
//! **Problem.** A kubelet starts again what was killed, and the report of an eviction may take as long as the API
//! server is away. The hold that keeps the node's memory free meanwhile is a file that outlives the agent.
//! **Approach.** Each pod's file is in a ledger of its own before it can be written ([`Ledger::record_ahead`]), because
//! the write is the first step of a kill. Holds stay when the agent ends: an upgrade is no reason to start an evicted
//! pod again. They are lifted by [`Holds::lift`], at the start for pods whose eviction is settled, and by
//! `plimsoll uninstall`. One that cannot be lifted now (no file descriptor is left, another process has the ledger) is
//! in [`Holds::to_lift`], and is to be lifted again.
//!
//! **On a thread.** To lift a hold waits for `cgroup_mutex`, which every tenant's mkdir takes, and writes the ledger to
//! the disk. The loop hands it over; while the thread is at it the ledger is the thread's, and who is to be recorded
//! waits for the next look ([`Recorded::Later`]).
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use plimsoll_core::kube::pod_uid::PodUid;

use crate::host::file::read_text;
use crate::host::ledger::{Change, KnobError, Ledger};
use crate::host::worker::WorkerThread;
use crate::pods::kill::HELD;
use crate::pods::names::pods_of;

/// Its ledger, in the state directory.
pub const HOLDS_LEDGER: &str = "holds.jsonl";
/// So many pods add a line each to the ledger; then the lines of those that have gone are taken out.
const FORGET_EVERY: u32 = 128;
/// The id of no cgroup.
const NO_CGROUP: u64 = 0;

/// Holds that wait for the thread, or whose outcome waits for the loop.
const LIFTS_MAX: usize = 256;
const STACK_BYTES: usize = 256 << 10;

/// The files of all pods that may be held.
#[derive(Debug)]
pub struct Holds {
    /// The loop only tries the lock.
    ledger: Arc<Mutex<Ledger>>,
    /// The file, and the id of the pod's cgroup.
    files: BTreeMap<PodUid, (PathBuf, u64)>,
    /// Those that are to run again, and are held still.
    to_lift: BTreeSet<PodUid>,
    /// The thread has them.
    lifting: BTreeSet<PodUid>,
    /// Why they could not be let go has been said.
    said: BTreeSet<PodUid>,
    lines: u32,
    thread: WorkerThread<(PodUid, PathBuf)>,
    outcomes: Receiver<Outcome>,
}

/// What the thread has done: whether the pod had been held, or why it is held still.
type Outcome = (PodUid, Result<bool, String>);

/// What came of [`Holds::record`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It is in the ledger from now on.
    New,
    /// It was.
    Known,
    /// The thread has the ledger: it must not be held yet.
    Later,
}

/// What came of [`Holds::lift`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifted {
    /// Whose hold.
    pub uid: PodUid,
    /// Whether the pod had been held.
    ///
    /// # Errors
    /// It is held still, and in [`Holds::to_lift`]. Why, the first time.
    pub was_held: Result<bool, Option<String>>,
}

/// Why nobody can be held.
#[derive(Debug, thiserror::Error)]
pub enum HoldsError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Ledger(#[from] KnobError),
    /// The kernel gives no thread.
    #[error(
        "the thread that lifts holds cannot be started: {0}; raise the limit of threads of the agent's cgroup (pids.max)"
    )]
    Thread(std::io::Error),
}

impl Holds {
    /// Goes on with what an agent before has left: pods in `unsettled` stay held, others are let go. Returns those that
    /// are held, too.
    ///
    /// # Errors
    /// [`HoldsError`]: the ledger cannot be read, or there is no thread.
    pub fn take_up(
        mut ledger: Ledger,
        unsettled: &BTreeSet<PodUid>,
    ) -> Result<(Self, Vec<PodUid>), HoldsError> {
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
        let ledger = Arc::new(Mutex::new(ledger));
        let of_thread = Arc::clone(&ledger);
        let (done, outcomes) = sync_channel::<Outcome>(LIFTS_MAX);
        let thread = WorkerThread::start(
            "pod-lift",
            STACK_BYTES,
            LIFTS_MAX,
            move |lifts: Receiver<(PodUid, PathBuf)>, _| {
                for (uid, file) in lifts {
                    let mut ledger = of_thread.lock().unwrap_or_else(PoisonError::into_inner);
                    let outcome = lift(&mut ledger, &file);
                    drop(ledger);
                    if done.send((uid, outcome)).is_err() {
                        // The agent ends; what is left is in the ledger.
                        return;
                    }
                }
            },
        );
        let holds = Self {
            ledger,
            files,
            to_lift,
            lifting: BTreeSet::new(),
            said: BTreeSet::new(),
            lines: 0,
            thread: thread.map_err(HoldsError::Thread)?,
            outcomes,
        };
        Ok((holds, held))
    }

    /// A pod may be held from now on, by this file of its cgroup. Not for the hot path.
    ///
    /// # Errors
    /// [`KnobError`]: it must not be.
    pub fn record(
        &mut self,
        uid: &PodUid,
        file: PathBuf,
        cgroup_id: u64,
    ) -> Result<Recorded, KnobError> {
        if self.lifting.contains(uid) {
            return Ok(Recorded::Later);
        }
        if self
            .files
            .get(uid)
            .is_some_and(|(_, known)| *known == cgroup_id)
        {
            return Ok(Recorded::Known);
        }
        let mut ledger = match self.ledger.try_lock() {
            Ok(ledger) => ledger,
            Err(TryLockError::Poisoned(ledger)) => ledger.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(Recorded::Later),
        };
        ledger.record_ahead(&file, HELD)?;
        self.files.insert(uid.clone(), (file, cgroup_id));
        self.lines += 1;
        if self.lines >= FORGET_EVERY {
            self.lines = 0;
            ledger.forget_vanished()?;
        }
        Ok(Recorded::New)
    }

    /// Has a pod let go by the thread: [`Holds::lifted`] tells when it is. Returns whether the thread has it: then its
    /// file must not be written any more.
    pub fn lift(&mut self, uid: &PodUid) -> bool {
        let Some((file, _)) = self.files.get(uid) else {
            self.to_lift.remove(uid);
            return false;
        };
        self.to_lift.insert(uid.clone());
        if !self.lifting.contains(uid) && self.thread.send((uid.clone(), file.clone())).is_ok() {
            self.lifting.insert(uid.clone());
        }
        self.lifting.contains(uid)
    }

    /// As [`Holds::lift`], but not now.
    pub fn lift_later(&mut self, uid: &PodUid) {
        if self.files.contains_key(uid) {
            self.to_lift.insert(uid.clone());
        }
    }

    /// The next pod that the thread is done with.
    pub fn lifted(&mut self) -> Option<Lifted> {
        let (uid, outcome) = self.outcomes.try_recv().ok()?;
        self.lifting.remove(&uid);
        let was_held = match outcome {
            Ok(was_held) => {
                self.files.remove(&uid);
                self.to_lift.remove(&uid);
                self.said.remove(&uid);
                Ok(was_held)
            }
            Err(why) => Err(self.said.insert(uid.clone()).then_some(why)),
        };
        Some(Lifted { uid, was_held })
    }

    /// Those that are still to be let go.
    pub fn to_lift(&self) -> &BTreeSet<PodUid> {
        &self.to_lift
    }

    /// Those of them that the thread does not have.
    pub fn not_lifting(&self) -> Vec<PodUid> {
        let waiting = self.to_lift.difference(&self.lifting);
        waiting.cloned().collect()
    }

    /// The pod was evicted again: it stays held.
    pub fn keep(&mut self, uid: &PodUid) {
        self.to_lift.remove(uid);
    }

    /// The pod's cgroup has gone, and its file with it; or it is in no list any more. One that is to be lifted is
    /// lifted all the same.
    pub fn forget(&mut self, uid: &PodUid) {
        if !self.to_lift.contains(uid) {
            self.files.remove(uid);
        }
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        if !self.thread.end_soon() {
            tracing::warn!(
                "a hold is still being lifted; it is in the ledger, and the next agent or `plimsoll uninstall` lifts it"
            );
        }
    }
}

/// Whether it had been held, or why it still is.
fn lift(ledger: &mut Ledger, file: &Path) -> Result<bool, String> {
    match ledger.restore_file(file) {
        Err(error) => Err(error.to_string()),
        Ok(restoration) => match restoration.busy() {
            Some(why) => Err(why.to_owned()),
            None => Ok(restoration.restored() > 0),
        },
    }
}

fn is_held(file: &Path) -> bool {
    read_text(file).is_ok_and(|text| text.trim_end() == HELD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostRoot;

    /// Waits for the thread.
    fn lift_now(holds: &mut Holds, uid: &PodUid) -> Result<bool, Option<String>> {
        if !holds.lift(uid) {
            return Ok(false);
        }
        loop {
            if let Some(Lifted { was_held, .. }) = holds.lifted() {
                return was_held;
            }
            std::thread::yield_now();
        }
    }

    /// The thread has the ledger, and a tenant the lock that it waits for.
    #[test]
    fn the_loop_waits_neither_for_a_lift_nor_for_the_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let ledger = Ledger::open(&host, dir.path().join("state").join(HOLDS_LEDGER)).unwrap();
        let (mut holds, _) = Holds::take_up(ledger, &BTreeSet::new()).unwrap();
        let file = |uid: &str| dir.path().join(format!("pod{uid}/hold"));
        let uids = ["a", "b"].map(PodUid::from);
        for uid in &uids {
            std::fs::create_dir_all(file(uid.as_str()).parent().unwrap()).unwrap();
            std::fs::write(file(uid.as_str()), "max").unwrap();
        }
        let [a, b] = &uids;
        assert_eq!(holds.record(a, file("a"), 1).unwrap(), Recorded::New);
        std::fs::write(file("a"), HELD).unwrap();
        let held_up = Arc::clone(&holds.ledger);
        let held_up = held_up.lock().unwrap();
        assert!(holds.lift(a) && holds.lift(a), "handed over");
        assert_eq!(holds.lifted(), None);
        assert_eq!((holds.to_lift().len(), holds.not_lifting()), (1, vec![]));
        assert_eq!(holds.record(b, file("b"), 2).unwrap(), Recorded::Later);
        assert_eq!(
            holds.record(a, file("a"), 1).unwrap(),
            Recorded::Later,
            "it loses its line"
        );
        assert!(is_held(&file("a")));
        drop(held_up);
        let lifted = loop {
            if let Some(lifted) = holds.lifted() {
                break lifted;
            }
            std::thread::yield_now();
        };
        let uid = a.clone();
        let was_held = Ok(true);
        assert_eq!(lifted, Lifted { uid, was_held });
        assert!(!is_held(&file("a")) && holds.to_lift().is_empty());
        assert_eq!(holds.record(a, file("a"), 1).unwrap(), Recorded::New);
        assert_eq!(holds.record(b, file("b"), 2).unwrap(), Recorded::New);
        assert_eq!(holds.lifted(), None, "once");
    }

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
            let mut record = || holds.record(&uid_of, file(uid), id as u64).unwrap();
            assert_eq!(record(), Recorded::New);
            assert_eq!(record(), Recorded::Known);
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
        assert_eq!(lift_now(&mut holds, &"a".into()), Ok(true));
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
        assert!(lift_now(&mut holds, &uid).unwrap_err().is_some());
        assert_eq!(lift_now(&mut holds, &uid), Err(None), "said once");
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
        holds.lift_later(&uid);
        assert_eq!(holds.to_lift().len(), 1);
        assert_eq!(lift_now(&mut holds, &uid), Ok(true));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "max");
        assert!(holds.to_lift().is_empty() && open().changes().unwrap().is_empty());
        holds.lift_later(&uid);
        assert!(holds.to_lift().is_empty(), "nothing is held");
        // Held by an agent before, and let go before this one has looked at the pod.
        holds.record(&uid, file.clone(), 7).unwrap();
        std::fs::write(&file, HELD).unwrap();
        let (mut holds, _) = Holds::take_up(open(), &[uid.clone()].into()).unwrap();
        assert_eq!(lift_now(&mut holds, &uid), Ok(true));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "max");
    }
}
