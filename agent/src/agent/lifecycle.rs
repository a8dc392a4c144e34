//! The ring of cgroups and processes that come and go: read without letting a flood take the loop.
//!
//! **Problem.** Whoever may make cgroups below his own (a delegated subtree), or moves a process to and fro, sends a record each time,
//! a hundred thousand a second. They must cost neither what is urgent nor a look at all pods each. **Approach.** The critical ring is read
//! first, always, and this one in small portions. In ordinary times a look follows its record at once. After [`LOOKS`] in a
//! [`WINDOW_NS`], or while there is more to read than a portion, the next look waits, and what the records ask for (a sample, a
//! look at all pods) is done once per window. And however often it is asked for, looking at all pods takes at most a tenth of the loop's
//! time ([`HousekeepingPace`]): with hundreds of pods it takes milliseconds, and whoever makes and removes one cgroup without end
//! stays below any number of records that could be called a flood. Where the ring was full, the records that are missing are made up for by reading
//! cgroupfs: every pod is looked at again, and every process of it.

use std::time::Duration;

use plimsoll_abi::Kind;
use tokio::time::Instant;

use super::{Agent, Woken, judge, now_ns};
use crate::bpf::{Bpf, BpfError};
use crate::source::decode::Body;

/// Records taken in one go; then the loop looks at its other sources.
const PORTION: usize = 256;
/// Looks that are taken at once in one window: more than the start of a pod needs.
const LOOKS: u32 = 16;
/// In a flood, what its records ask for is done this often.
const WINDOW_NS: u64 = 100_000_000;
/// Between two portions of a flood. The ring holds several times what a flood can send meanwhile.
const PORTION_PAUSE_NS: u64 = 1_000_000;
/// Pods are read again after a loss at most this often.
const RESYNC_NS: u64 = 1_000_000_000;
/// Time without a look at all pods after one, as a multiple of what that took.
const REST_PER_LOOK: u64 = 9;
/// But not more than this.
const REST_MAX_NS: u64 = 1_000_000_000;
/// Cgroups whose processes are followed; those of further pods are found by reading `cgroup.procs`.
const FOLLOWED_MAX: usize = 4096;
/// The kinds on this ring.
const KINDS: [Kind; 5] = [
    Kind::CgroupMkdir,
    Kind::CgroupRmdir,
    Kind::CgroupAttach,
    Kind::CgroupPopulated,
    Kind::ProcessBirth,
];

/// When to look, and what was missed.
#[derive(Debug, Default)]
pub(super) struct LifecyclePace {
    /// The last portion was a full one: there may be more, and nothing tells.
    is_left: bool,
    not_before_ns: u64,
    window_ns: u64,
    looks: u32,
    /// What the records of this window ask for has been asked for.
    has_asked: bool,
    /// Records may have been lost since they were last counted.
    is_suspect: bool,
    lost: u64,
    resynced_ns: u64,
}

impl LifecyclePace {
    /// Whether it is time to look.
    fn is_due(&self, now_ns: u64) -> bool {
        self.not_before_ns <= now_ns
    }

    /// A look has been taken, and found so many records. Returns whether they may ask for something now.
    fn looked(&mut self, taken: usize, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.window_ns) >= WINDOW_NS {
            self.window_ns = now_ns;
            self.looks = 0;
            self.has_asked = false;
        }
        self.looks += 1;
        self.is_left = taken == PORTION;
        self.is_suspect |= self.is_left;
        self.not_before_ns = if self.is_left {
            now_ns + PORTION_PAUSE_NS
        } else if self.looks >= LOOKS {
            self.window_ns + WINDOW_NS
        } else {
            0
        };
        let may_ask = !(self.is_left && self.has_asked);
        self.has_asked |= self.is_left;
        may_ask
    }

    /// Whether lost records are to be looked for now.
    fn is_resync_due(&self, now_ns: u64) -> bool {
        self.is_suspect && now_ns.saturating_sub(self.resynced_ns) >= RESYNC_NS
    }

    /// When to look without being told, or not before when if told: `None` if at any time.
    pub(super) fn wait(&self) -> (bool, Option<Instant>) {
        let now_ns = now_ns();
        let at = (self.not_before_ns > now_ns)
            .then(|| Instant::now() + Duration::from_nanos(self.not_before_ns - now_ns));
        (self.is_left, at)
    }
}

/// When all pods may be looked at again because something asks for it.
#[derive(Debug, Default)]
pub(super) struct HousekeepingPace {
    from_ns: u64,
}

impl HousekeepingPace {
    /// When it may begin, if not now.
    pub(super) fn not_before(&self, now_ns: u64) -> Option<u64> {
        (now_ns < self.from_ns).then_some(self.from_ns)
    }

    /// It has been done.
    pub(super) fn done(&mut self, began_ns: u64, ended_ns: u64) {
        let took_ns = ended_ns.saturating_sub(began_ns);
        self.from_ns = ended_ns + took_ns.saturating_mul(REST_PER_LOOK).min(REST_MAX_NS);
    }
}

/// Records of these kinds that were lost so far.
fn lost(bpf: &Bpf) -> Result<u64, BpfError> {
    let mut sum = 0;
    for kind in KINDS {
        sum += bpf.missed(kind)?;
    }
    Ok(sum)
}

impl Agent {
    /// Takes a portion of the ring, if it is time.
    pub(super) fn drain_lifecycle(&mut self, woken: &mut Woken) {
        let Some(bpf) = &mut self.bpf else { return };
        let at_ns = now_ns();
        if !self.lifecycle.is_due(at_ns) {
            return;
        }
        let mut asked = Woken::default();
        let oom_kills = &mut self.oom_kills;
        let oom_scores = &mut self.oom_scores;
        let taken = bpf.drain_lifecycle(PORTION, |record| {
            match (&record.body, oom_scores.as_mut()) {
                (Body::CgroupAttach { tgid, hierarchy_id }, Some(scores)) => {
                    scores.attached(record.cgroup_id, *hierarchy_id, *tgid);
                }
                (Body::ProcessBirth { tgid, .. }, Some(scores)) => {
                    scores.born(record.cgroup_id, *tgid);
                }
                _ => {}
            }
            // Nothing of what is armed is on this ring.
            judge(&record, Some(0), &mut asked, oom_kills);
        });
        // Seen at the next housekeeping, whenever that is.
        woken.containers |= asked.containers;
        if taken > 0 && self.lifecycle.looked(taken, at_ns) {
            woken.housekeeping |= asked.housekeeping;
            if let Some(cause) = asked.cause {
                woken.by(cause);
            }
        }
    }

    /// Has the kernel tell of processes that are born in the cgroups of pods, now that those are known.
    pub(super) fn follow_processes(&mut self) {
        let Some(bpf) = self
            .bpf
            .as_mut()
            .filter(|bpf| bpf.is_attached("process_fork"))
        else {
            return;
        };
        let wanted = self
            .pods
            .cgroups()
            .flat_map(|(_, cgroups)| cgroups.map(|(_, id)| id))
            .take(FOLLOWED_MAX)
            .collect();
        if let Err(error) = bpf.follow_processes(&wanted) {
            self.warn(error.to_string());
        }
    }

    /// Whether the kernel tells of every process that comes into a pod's cgroup.
    pub(super) fn follows_all_processes(&self) -> bool {
        let cgroups = self.pods.cgroups().flat_map(|(_, cgroups)| cgroups);
        self.bpf
            .as_ref()
            .is_some_and(|bpf| bpf.is_attached("process_fork"))
            && cgroups.take(FOLLOWED_MAX + 1).count() <= FOLLOWED_MAX
    }

    /// After a flood: if records were lost, all pods and their processes are read again. Not urgent.
    pub(super) fn make_up_for_lost_lifecycle(&mut self, woken: &mut Woken) {
        let at_ns = now_ns();
        let (Some(bpf), true) = (&self.bpf, self.lifecycle.is_resync_due(at_ns)) else {
            return;
        };
        self.lifecycle.resynced_ns = at_ns;
        // Not before all was read: what is lost until then is counted the next time.
        self.lifecycle.is_suspect = self.lifecycle.is_left;
        match lost(bpf) {
            Ok(lost) if lost > self.lifecycle.lost => {
                self.lifecycle.lost = lost;
                woken.housekeeping = true;
                self.containers_came();
                if let Some(scores) = &mut self.oom_scores {
                    scores.missed_some();
                }
            }
            Ok(_) => {}
            Err(error) => self.warn(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn ordinary_records_are_looked_at_at_once() {
        let mut pace = LifecyclePace::default();
        for look in 1..u64::from(LOOKS) {
            assert!(pace.is_due(look * MS) && pace.looked(3, look * MS));
        }
        assert!(pace.is_due(16 * MS));
        assert!(!pace.is_resync_due(10_000 * MS));
    }

    #[test]
    fn a_trickle_of_wakeups_waits_for_the_window() {
        let mut pace = LifecyclePace::default();
        let begin = 1000 * MS;
        for look in 0..u64::from(LOOKS) {
            assert!(pace.is_due(begin + look * MS));
            pace.looked(1, begin + look * MS);
        }
        assert!(!pace.is_due(begin + 99 * MS));
        assert!(pace.is_due(begin + 100 * MS));
        pace.looked(1, begin + 100 * MS);
        assert!(pace.is_due(begin + 101 * MS));
    }

    #[test]
    fn looking_at_all_pods_takes_a_tenth_of_the_time() {
        let mut pace = HousekeepingPace::default();
        assert_eq!(pace.not_before(0), None);
        pace.done(1000 * MS, 1007 * MS);
        assert_eq!(pace.not_before(1007 * MS), Some(1070 * MS));
        assert_eq!(pace.not_before(1070 * MS), None);
        // A loop that was held up by something else.
        pace.done(2000 * MS, 9000 * MS);
        assert_eq!(pace.not_before(9000 * MS), Some(10_000 * MS));
    }

    #[test]
    fn a_flood_asks_once_per_window_and_is_suspected_of_losses() {
        let mut pace = LifecyclePace::default();
        let begin = 1000 * MS;
        let asked = (0..200)
            .filter(|look| pace.looked(PORTION, begin + look * MS))
            .count();
        assert_eq!(asked, 2);
        assert!(!pace.is_due(begin + 199 * MS) && pace.is_due(begin + 200 * MS));
        assert!(pace.is_resync_due(begin + 200 * MS));
        // The end of it asks in any case: those are the newest records.
        assert!(pace.looked(PORTION - 1, begin + 200 * MS));
        assert!(pace.looked(1, begin + 201 * MS));
    }
}
