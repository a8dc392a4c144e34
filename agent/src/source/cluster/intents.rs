//! Evictions that are to be reported, on disk: a line for each, read at the start, struck when the API shows it.
//!
//! Idempotent by UID: the first one counts, with its time. Bounded: of too many the oldest becomes a count. A torn last
//! line is an eviction that the agent died over; the pod is then killed by the next agent, or shows as what it is. The
//! file is replaced when most of its lines are struck.
//!
//! Beside an eviction it is kept that the pod may run again although the API server has not shown its end (on disk: an
//! agent that starts must not kill it for an eviction that is over), and that its cgroup has gone (for whoever connects
//! next).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::protocol::cluster_link::{EvictionIntent, INTENTS_MAX};
use serde::{Deserialize, Serialize};

use crate::host::state_dir;

/// Bytes of the file that are read: more than as many lines as there may be.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Lines besides those that wait, before the file is replaced.
const STRUCK_MAX: usize = 64;
/// Lines of another version that are kept, and bytes of each.
const FOREIGN_MAX: usize = 64;
const FOREIGN_BYTES_MAX: usize = 16 << 10;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Evicted(Box<EvictionIntent>),
    Struck(PodUid),
    LetGo(PodUid),
}

/// The file, and what of it counts.
#[derive(Debug)]
pub(super) struct Intents {
    path: PathBuf,
    waiting: BTreeMap<u64, EvictionIntent>,
    by_uid: BTreeMap<PodUid, u64>,
    /// Those of them that may run again.
    let_go: BTreeSet<PodUid>,
    /// Those of them whose cgroup has gone.
    gone: BTreeSet<PodUid>,
    next: u64,
    /// Lines of the file.
    lines: usize,
    merged: u64,
    error: Option<io::Error>,
    /// Whole lines that another version has written and this one cannot read: for that version they are still to be
    /// reported.
    foreign: Vec<Vec<u8>>,
}

impl Intents {
    /// Reads what an agent before has left.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let mut text = Vec::new();
        match File::open(&path) {
            Ok(file) => {
                file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut intents = Self {
            path,
            waiting: BTreeMap::new(),
            by_uid: BTreeMap::new(),
            let_go: BTreeSet::new(),
            gone: BTreeSet::new(),
            next: 0,
            lines: 0,
            merged: 0,
            error: None,
            foreign: Vec::new(),
        };
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        for line in lines.filter(|line| *line != b"\n") {
            intents.lines += 1;
            match serde_json::from_slice(line) {
                Ok(Line::Evicted(intent)) => {
                    intents.let_go.remove(&intent.uid);
                    intents.keep(*intent);
                }
                Ok(Line::Struck(uid)) => {
                    intents.drop_of(&uid);
                }
                Ok(Line::LetGo(uid)) => {
                    intents.let_go.extend(intents.contains(&uid).then_some(uid));
                }
                Err(error) => {
                    let is_whole = line.ends_with(b"\n") && line.len() <= FOREIGN_BYTES_MAX;
                    let is_kept = is_whole && intents.foreign.len() < FOREIGN_MAX;
                    tracing::warn!(%error, is_kept, "a line of the evictions to be reported cannot be read, and its eviction is not reported by this version");
                    if is_kept {
                        intents.foreign.push(line.to_vec());
                    }
                }
            }
        }
        // Also takes away a torn line.
        if intents.lines > 0 {
            intents.replace();
        }
        Ok(intents)
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn contains(&self, uid: &PodUid) -> bool {
        self.by_uid.contains_key(uid)
    }

    /// All that wait, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &EvictionIntent> {
        self.waiting.values()
    }

    /// Whether the pod may run again although its eviction is not settled.
    pub(super) fn is_let_go(&self, uid: &PodUid) -> bool {
        self.let_go.contains(uid)
    }

    /// Those whose cgroup has gone.
    pub(super) fn gone(&self) -> impl Iterator<Item = &PodUid> {
        self.gone.iter()
    }

    /// The pod may run again, and its eviction is still to be reported.
    pub(super) fn let_go(&mut self, uid: &PodUid) {
        if self.contains(uid) && self.let_go.insert(uid.clone()) {
            self.append(&Line::LetGo(uid.clone()));
        }
    }

    /// The pod's cgroup has gone.
    pub(super) fn note_gone(&mut self, uid: &PodUid) {
        if self.contains(uid) {
            self.gone.insert(uid.clone());
        }
    }

    /// Whether it is new. It counts also where it cannot be written: see [`Intents::take_error`].
    pub(super) fn add(&mut self, intent: &EvictionIntent) -> bool {
        // One that was let go, and is evicted again: what runs in it is to end, and its first time counts.
        let was_let_go = self.let_go.remove(&intent.uid);
        let is_wanted = self.keep(intent.clone()) || was_let_go;
        if is_wanted {
            self.append(&Line::Evicted(Box::new(intent.clone())));
        }
        is_wanted
    }

    /// Whether it had waited.
    pub(super) fn strike(&mut self, uid: &PodUid) -> bool {
        if !self.drop_of(uid) {
            return false;
        }
        if self.lines > self.needed_lines() + STRUCK_MAX {
            self.replace();
        } else {
            self.append(&Line::Struck(uid.clone()));
        }
        true
    }

    /// How many became a count since the last time.
    pub(super) fn take_merged(&mut self) -> u64 {
        std::mem::take(&mut self.merged)
    }

    /// Why the disk does not have all of it.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    fn keep(&mut self, intent: EvictionIntent) -> bool {
        if self.contains(&intent.uid) {
            return false;
        }
        if self.waiting.len() == INTENTS_MAX
            && let Some(oldest) = self
                .waiting
                .values()
                .next()
                .map(|oldest| oldest.uid.clone())
        {
            self.drop_of(&oldest);
            self.merged += 1;
        }
        self.by_uid.insert(intent.uid.clone(), self.next);
        self.waiting.insert(self.next, intent);
        self.next += 1;
        true
    }

    /// Lines of a file without what is struck.
    fn needed_lines(&self) -> usize {
        self.foreign.len() + self.waiting.len() + self.let_go.len()
    }

    fn drop_of(&mut self, uid: &PodUid) -> bool {
        self.let_go.remove(uid);
        self.gone.remove(uid);
        let number = self.by_uid.remove(uid);
        number.is_some_and(|number| self.waiting.remove(&number).is_some())
    }

    fn append(&mut self, line: &Line) {
        self.lines += 1;
        let written = text_of(line).and_then(|text| {
            let mut file = state_dir::open_private(&self.path)?;
            file.write_all(&text)
        });
        self.note(written);
    }

    fn replace(&mut self) {
        self.lines = self.needed_lines();
        let new = state_dir::new_beside(&self.path);
        let written = state_dir::create_new(&new).and_then(|mut file| {
            for line in &self.foreign {
                file.write_all(line)?;
            }
            for intent in self.waiting.values() {
                file.write_all(&text_of(&Line::Evicted(Box::new(intent.clone())))?)?;
            }
            for uid in &self.let_go {
                file.write_all(&text_of(&Line::LetGo(uid.clone()))?)?;
            }
            std::fs::rename(&new, &self.path)
        });
        self.note(written);
    }

    fn note(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.error = Some(error);
        }
    }
}

fn text_of(line: &Line) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent(uid: &str, decided_unix_ms: u64) -> EvictionIntent {
        serde_json::from_value(serde_json::json!({
            "uid": uid, "namespace": "default", "name": uid, "decidedUnixMs": decided_unix_ms, "signal": "memory.available",
            "message": "The node was low on resource: memory. ", "rank": 1, "ranked": 2, "graceS": 0, "isHeld": true,
            "starvedResource": "memory", "offendingContainers": "", "offendingContainersUsage": "",
        }))
        .unwrap()
    }

    fn uids(intents: &Intents) -> Vec<&str> {
        intents.iter().map(|intent| intent.uid.as_str()).collect()
    }

    #[test]
    fn what_waits_is_there_again_after_a_restart_and_each_pod_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("intents.jsonl");
        let mut intents = Intents::open(path.clone()).unwrap();
        for (uid, at) in [("b", 1), ("a", 2), ("c", 3), ("a", 9)] {
            assert_eq!(intents.add(&intent(uid, at)), at != 9, "{uid}");
        }
        assert!(intents.strike(&"c".into()) && !intents.strike(&"c".into()));
        assert!(intents.take_error().is_none());
        // The agent is killed over a line.
        let mut file = state_dir::open_private(&path).unwrap();
        file.write_all(b"{\"evicted\":{\"uid\":\"torn\"").unwrap();
        let mut intents = Intents::open(path.clone()).unwrap();
        assert_eq!(uids(&intents), ["b", "a"]);
        assert_eq!(
            intents.iter().last(),
            Some(&intent("a", 2)),
            "its first time"
        );
        intents.strike(&"b".into());
        assert_eq!(uids(&Intents::open(path).unwrap()), ["a"]);
    }

    #[test]
    fn a_pod_that_was_let_go_is_let_go_after_a_restart_until_its_eviction_is_settled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("intents.jsonl");
        let mut intents = Intents::open(path.clone()).unwrap();
        intents.add(&intent("a", 1));
        intents.let_go(&"a".into());
        intents.note_gone(&"a".into());
        intents.let_go(&"never evicted".into());
        // The second is from a file that was replaced.
        for _ in 0..2 {
            intents = Intents::open(path.clone()).unwrap();
            assert!(intents.is_let_go(&"a".into()) && !intents.is_let_go(&"never evicted".into()));
            assert_eq!(uids(&intents), ["a"], "it is still to be reported");
        }
        assert!(intents.add(&intent("a", 9)), "it is wanted again");
        assert!(!intents.add(&intent("a", 10)), "it is reported once");
        let mut intents = Intents::open(path.clone()).unwrap();
        assert!(!intents.is_let_go(&"a".into()), "evicted again");
        assert_eq!(intents.iter().next(), Some(&intent("a", 1)));
        intents.let_go(&"a".into());
        intents.note_gone(&"a".into());
        assert_eq!(intents.gone().count(), 1);
        intents.strike(&"a".into());
        assert_eq!(intents.gone().count(), 0);
        intents.add(&intent("a", 2));
        assert!(!Intents::open(path).unwrap().is_let_go(&"a".into()));
    }

    #[test]
    fn of_too_many_the_oldest_becomes_a_count_and_the_file_stays_small() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("intents.jsonl");
        let mut intents = Intents::open(path.clone()).unwrap();
        for number in 0..INTENTS_MAX as u64 + 3 {
            intents.keep(intent(&format!("u{number}"), number));
        }
        assert_eq!((intents.len(), intents.take_merged()), (INTENTS_MAX, 3));
        assert_eq!(uids(&intents)[0], "u3");
        let mut intents = Intents::open(dir.path().join("other")).unwrap();
        for number in 0..400 {
            intents.add(&intent("x", number));
            intents.strike(&"x".into());
        }
        let lines = std::fs::read_to_string(dir.path().join("other")).unwrap();
        assert!(
            lines.lines().count() <= STRUCK_MAX + 2,
            "{}",
            lines.lines().count()
        );
        assert!(Intents::open(path).unwrap().iter().next().is_none());
    }

    #[test]
    fn what_a_later_version_has_written_is_there_for_it_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("intents.jsonl");
        let later = "{\"evicted\":{\"uid\":\"b\",\"cause\":\"new\"}}\n";
        std::fs::write(&path, later).unwrap();
        let mut intents = Intents::open(path.clone()).unwrap();
        intents.add(&intent("a", 1));
        intents.strike(&"a".into());
        assert!(Intents::open(path.clone()).unwrap().iter().next().is_none());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), later);
        // As many as there is room for.
        std::fs::write(&path, later.repeat(FOREIGN_MAX + 1)).unwrap();
        Intents::open(path.clone()).unwrap();
        let kept = std::fs::read_to_string(path).unwrap();
        assert_eq!(kept.lines().count(), FOREIGN_MAX);
    }

    #[test]
    fn a_disk_that_takes_nothing_costs_the_copy_only() {
        let mut intents = Intents::open(PathBuf::from("/proc/none/intents")).unwrap();
        assert!(intents.add(&intent("a", 1)));
        assert!(intents.take_error().is_some());
        assert_eq!(intents.len(), 1);
    }
}
