//! The last line's maps, from this side ([`plimsoll_abi::last_line`] says what they hold,
//! [`plimsoll_core::policy::oom::last_line`] who is in them).
//!
//! A pod gets into the order as a [`CondemnedPod`], and only what the core has condemned can become one.

use std::collections::BTreeSet;
use std::sync::atomic::{Ordering, fence};

use aya::maps::{Array, HashMap, MapData, MapError};
use plimsoll_abi::last_line::{
    CONDEMNED_MAX, SLOT_WORDS, UID_BYTES, UID_WORDS, condemned, line, pods, seen, slot_of, word_of,
};
use plimsoll_core::model::event::LastLineReason;
use plimsoll_core::policy::oom::last_line::Condemned;

use super::BpfError;
use super::error::map_error;
use crate::kernel::decode::last_line_reason;

const REPORTED: &str = "KILLS_REPORTED";
const PODS: &str = "LAST_LINE_PODS";
/// `BPF_NOEXIST`.
const NO_EXIST: u64 = 1;

/// A pod of the order, with the cgroup that it is known by in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CondemnedPod {
    /// The pod, as the core has condemned it.
    pub pod: Condemned,
    /// Its cgroup in the hierarchy that accounts memory.
    pub cgroup_id: u64,
}

/// What is in force until the next time. Amounts in pages, times CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineSetting {
    /// Until then.
    pub until_ns: u64,
    /// Below this, a condemned pod is killed if the agent does not acknowledge in time.
    pub line_pages: u64,
    /// Below this, it is killed at once.
    pub critical_pages: u64,
    /// A crossing is to be acknowledged within this time.
    pub budget_ns: u64,
    /// Until so much has been charged, memory cannot be at the line.
    pub check_at_pages: u64,
    /// So much page cache does not count as available.
    pub cache_kept_pages: u64,
    /// Crossings up to then are acknowledged.
    pub acked_ns: u64,
}

/// Nobody is killed, and no charge is looked at.
impl Default for LineSetting {
    fn default() -> Self {
        Self {
            until_ns: 0,
            line_pages: 0,
            critical_pages: 0,
            budget_ns: 0,
            check_at_pages: u64::MAX,
            cache_kept_pages: 0,
            acked_ns: 0,
        }
    }
}

/// What was done to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodKills {
    /// Its cgroup.
    pub cgroup_id: u64,
    /// Processes killed.
    pub count: u64,
    /// When the last one was.
    pub last_ns: u64,
    /// Why; `None` for a number that this plimsoll does not know.
    pub why: Option<LastLineReason>,
    /// Its process id.
    pub tgid: u32,
    /// The pod's UID, padded with NULs.
    pub uid: [u8; UID_BYTES],
}

/// The maps.
pub struct LastLineMaps {
    line: Array<MapData, [u64; SLOT_WORDS]>,
    newest: Array<MapData, u64>,
    seen: Array<MapData, u64>,
    pods: HashMap<MapData, u64, [u64; pods::WORDS]>,
    reported: HashMap<MapData, u64, u64>,
    /// What is put in force next.
    next: Box<[u64; SLOT_WORDS]>,
    /// What is in force, 0 for nothing.
    generation: u64,
    /// The keys of `pods`, once they are known: an agent before this one has left some.
    known: Option<BTreeSet<u64>>,
}

impl LastLineMaps {
    /// Goes on from what is in force.
    pub(super) fn new(
        line: Array<MapData, [u64; SLOT_WORDS]>,
        newest: Array<MapData, u64>,
        seen: Array<MapData, u64>,
        pods: HashMap<MapData, u64, [u64; pods::WORDS]>,
        reported: HashMap<MapData, u64, u64>,
    ) -> Result<Self, BpfError> {
        let generation = newest.get(&0, 0).map_err(map_error("LAST_LINE_NEWEST"))?;
        Ok(Self {
            line,
            newest,
            seen,
            pods,
            reported,
            next: Box::new([0; SLOT_WORDS]),
            generation,
            known: None,
        })
    }

    /// Puts a setting in force, with the order of the last [`condemn`](Self::condemn). A program goes by all of it or
    /// by all of what was before: what is written first is seen first. Two map updates, no allocation.
    ///
    /// # Errors
    /// When the kernel refuses an update: what was in force stays.
    pub fn set(&mut self, setting: &LineSetting) -> Result<(), BpfError> {
        let generation = self.generation + 1;
        let next = &mut self.next;
        next[..line::WORDS].copy_from_slice(&line_words(generation, setting));
        self.line
            .set(slot_of(generation), **next, 0)
            .map_err(map_error("LAST_LINE"))?;
        // Arm lets another CPU see the two in the other order, and a system call is no barrier.
        fence(Ordering::SeqCst);
        self.newest
            .set(0, generation, 0)
            .map_err(map_error("LAST_LINE_NEWEST"))?;
        self.generation = generation;
        Ok(())
    }

    /// The order of the next [`set`](Self::set). Programs know nothing of a pod without an entry of its own, so each
    /// gets one.
    ///
    /// # Errors
    /// When the kernel refuses an entry: that pod is left out.
    pub fn condemn(&mut self, order: &[CondemnedPod]) -> Result<(), BpfError> {
        let mut result = Ok(());
        let known = match &mut self.known {
            Some(known) => known,
            unknown => {
                let keys: Result<_, _> = self.pods.keys().collect();
                unknown.insert(keys.map_err(map_error(PODS))?)
            }
        };
        self.next[line::WORDS..].fill(0);
        let mut place = 0;
        for pod in order.iter().take(CONDEMNED_MAX as usize) {
            if !known.contains(&pod.cgroup_id) {
                let mut entry = [0; pods::WORDS];
                entry[pods::ID] = pod.cgroup_id;
                entry[pods::UID..].copy_from_slice(&uid_words(pod.pod.uid().as_str()));
                if let Err(error) = self.pods.insert(pod.cgroup_id, entry, NO_EXIST) {
                    result = Err(map_error(PODS)(error));
                    continue;
                }
                known.insert(pod.cgroup_id);
            }
            let words = &mut self.next[word_of(place, 0)..][..condemned::WORDS];
            words.copy_from_slice(&condemned_words(place, pod));
            place += 1;
        }
        result
    }

    /// Takes away the entries of pods that are not in the order in force and of which nothing was killed. Not before
    /// the order is in force.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_others(&mut self) -> Result<(), BpfError> {
        let next = &self.next;
        let is_in_order = |id: u64| {
            (0..CONDEMNED_MAX as usize).any(|place| next[word_of(place, condemned::ID)] == id)
        };
        let others = self.known.iter().flatten().copied();
        let others: Vec<u64> = others.filter(|id| !is_in_order(*id)).collect();
        for id in others {
            let entry = self.pods.get(&id, 0).map_err(map_error(PODS))?;
            if entry[pods::COUNT] == 0 {
                self.remove_pod(id)?;
            }
        }
        Ok(())
    }

    fn remove_pod(&mut self, cgroup_id: u64) -> Result<(), BpfError> {
        self.pods.remove(&cgroup_id).map_err(map_error(PODS))?;
        if let Some(known) = &mut self.known {
            known.remove(&cgroup_id);
        }
        Ok(())
    }

    /// What was done so far, by whichever agent's order.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn kills(&self, mut f: impl FnMut(PodKills)) -> Result<(), BpfError> {
        for entry in self.pods.iter() {
            let (cgroup_id, value) = entry.map_err(map_error(PODS))?;
            if value[pods::COUNT] == 0 {
                continue;
            }
            let mut uid = [0; UID_BYTES];
            for (bytes, word) in uid.chunks_exact_mut(8).zip(&value[pods::UID..]) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            f(PodKills {
                cgroup_id,
                count: value[pods::COUNT],
                last_ns: value[pods::LAST_NS],
                why: u32::try_from(value[pods::REASON])
                    .ok()
                    .and_then(last_line_reason),
                tgid: u32::try_from(value[pods::TGID]).unwrap_or(0),
                uid,
            });
        }
        Ok(())
    }

    /// Forgets what was done to a pod that is gone, so that there is room for others.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_kills(&mut self, cgroup_id: u64) -> Result<(), BpfError> {
        self.remove_pod(cgroup_id)?;
        match self.reported.remove(&cgroup_id) {
            // None of its kills was reported.
            Err(MapError::KeyNotFound) => Ok(()),
            removed => removed.map_err(map_error(REPORTED)),
        }
    }

    /// Notes how many of a pod's kills have been reported, for this agent and those after it. Never fewer than before.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn note_reported(&mut self, cgroup_id: u64, kills: u64) -> Result<(), BpfError> {
        if kills > self.reported(cgroup_id)? {
            self.reported
                .insert(cgroup_id, kills, 0)
                .map_err(map_error(REPORTED))?;
        }
        Ok(())
    }

    /// How many of a pod's kills have been reported.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn reported(&self, cgroup_id: u64) -> Result<u64, BpfError> {
        match self.reported.get(&cgroup_id, 0) {
            Err(MapError::KeyNotFound) => Ok(0),
            kills => kills.map_err(map_error(REPORTED)),
        }
    }

    /// Signals that the kernel did not take.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn refused(&self) -> Result<u64, BpfError> {
        self.seen
            .get(&seen::REFUSED, 0)
            .map_err(map_error("LAST_LINE_SEEN"))
    }
}

/// The first words of a slot of the `LAST_LINE` map.
fn line_words(generation: u64, setting: &LineSetting) -> [u64; line::WORDS] {
    let mut words = [0; line::WORDS];
    words[line::GENERATION] = generation;
    words[line::UNTIL_NS] = setting.until_ns;
    words[line::LINE_PAGES] = setting.line_pages;
    words[line::CRITICAL_PAGES] = setting.critical_pages;
    words[line::BUDGET_NS] = setting.budget_ns;
    words[line::CHECK_AT_PAGES] = setting.check_at_pages;
    words[line::CACHE_KEPT_PAGES] = setting.cache_kept_pages;
    words[line::ACKED_NS] = setting.acked_ns;
    words[line::PAGE_BYTES] = rustix::param::page_size() as u64;
    words
}

/// A pod as a slot of the `LAST_LINE` map has it.
fn condemned_words(place: usize, pod: &CondemnedPod) -> [u64; condemned::WORDS] {
    let mut words = [0; condemned::WORDS];
    words[condemned::ID] = pod.cgroup_id;
    words[condemned::TIER] = u64::from(pod.pod.tier);
    words[condemned::PRIORITY] = i64::from(pod.pod.priority).cast_unsigned();
    words[condemned::REQUEST_BYTES] = pod.pod.request_bytes;
    words[condemned::HELD_BYTES] = pod.pod.held_bytes;
    words[condemned::USAGE_BYTES] = pod.pod.usage_bytes;
    words[condemned::PLACE] = place as u64;
    words[condemned::UID..].copy_from_slice(&uid_words(pod.pod.uid().as_str()));
    words
}

/// A UID as the kernel keeps it: its first bytes, padded with NULs.
fn uid_words(uid: &str) -> [u64; UID_WORDS] {
    let mut words = [0; UID_WORDS];
    for (word, bytes) in words.iter_mut().zip(uid.as_bytes().chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(padded);
    }
    words
}

/// The text of such a UID.
#[must_use]
pub fn uid_text(uid: &[u8]) -> &str {
    let end = uid.iter().position(|byte| *byte == 0).unwrap_or(uid.len());
    let text = &uid[..end];
    // A long one may have been cut inside a character.
    str::from_utf8(text)
        .unwrap_or_else(|error| str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use plimsoll_abi::last_line::{self, Seen, goes_before};
    use plimsoll_core::kube::pod_uid::PodUid;
    use plimsoll_core::model::rank_row::{Nanos, RankRow};
    use plimsoll_core::policy::eviction::rank::Ranking;
    use plimsoll_core::policy::oom::last_line::KillFlags;
    use proptest::prelude::*;

    use super::*;

    fn row(
        index: usize,
        (stats_known, priority, usage, request): (bool, i32, u64, u64),
    ) -> RankRow {
        RankRow {
            uid: PodUid::from(format!("pod-{index}").as_str()),
            stats_known,
            unnamed: 0,
            exempt: false,
            priority,
            overused: 0,
            over_share: 0,
            usage: if stats_known { usage } else { 0 },
            allowance: Nanos::from_units(request),
            request: Nanos::from_units(request),
        }
    }

    proptest! {
        /// While the agent's figures are the newest, the program's order is the agent's.
        #[test]
        fn the_program_ranks_as_the_core_does(
            rows in prop::collection::vec((any::<bool>(), -1..2i32, 0..4u64, 0..4u64), 1..12)
        ) {
            let mut rows: Vec<RankRow> = rows.into_iter().enumerate().map(|(index, it)| row(index, it)).collect();
            Ranking::Memory.rank(&mut rows, &mut Vec::new());
            let mut slot = [0; SLOT_WORDS];
            for (place, row) in rows.iter().enumerate() {
                let pod = Condemned::of(row, KillFlags::default(), 77).unwrap();
                let pod = CondemnedPod { pod, cgroup_id: place as u64 + 1 };
                slot[word_of(place, 0)..][..condemned::WORDS].copy_from_slice(&condemned_words(place, &pod));
            }
            let now = |place| last_line::standing(place, &[0; line::WORDS], Seen::default(), |at| slot[at]);
            for place in 1..rows.len() {
                prop_assert!(goes_before(&now(place - 1), &now(place)), "{:?}", rows);
                prop_assert!(!goes_before(&now(place), &now(place - 1)), "{:?}", rows);
            }
        }
    }

    #[test]
    fn what_is_put_in_force_for_nobody_has_no_charge_looked_at() {
        let words = line_words(7, &LineSetting::default());
        assert_eq!((words[line::GENERATION], words[line::UNTIL_NS]), (7, 0));
        assert_eq!(words[line::CHECK_AT_PAGES], u64::MAX);
        let overdue_ns = 1;
        assert_eq!(last_line::shortage(&words, overdue_ns, 0), 0);
    }

    #[test]
    fn a_uid_is_kept_as_far_as_it_fits() {
        let kept = |uid: &str| {
            let bytes: Vec<u8> = uid_words(uid)
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .collect();
            uid_text(&bytes).to_owned()
        };
        let uid = "0a1b2c3d-0000-1111-2222-333344445555";
        assert_eq!(kept(uid), uid);
        assert_eq!(kept(""), "");
        assert_eq!(kept(&"x".repeat(60)), "x".repeat(UID_BYTES));
        let cut = format!("{}é", "x".repeat(UID_BYTES - 1));
        assert_eq!(kept(&cut), "x".repeat(UID_BYTES - 1));
    }
}
