//! Kills by the kernel's OOM killer, kept until they are reported.
//!
//! **Problem.** A cgroup with `memory.oom.group` is killed as a whole. The kernel makes one choice (`oom_kill_process`)
//! and then marks each victim, the chosen one first (`mark_oom_victim`, once per process): a record each, with as much
//! time between them as it takes to write to the console. A person wants one line. **Approach.** The kernel makes one
//! choice at a time, under `oom_lock`, so a victim named after a choice, in the same pod, is the choice's. (A dying
//! task that needs memory is marked, too, without having been chosen: `out_of_memory` lets it go first.) A kill is
//! reported when nothing has arrived for a while: by the time of arrival here, for an agent that was stopped finds old
//! records of a kill that is still going on. A process may be marked twice and counts once: the chosen one as itself
//! and as a member of its cgroup, and one whose main thread has died before its others when the kernel comes by again
//! (both seen). Where only victims are named, those of one pod at one time are one kill.

use std::collections::BTreeMap;

use plimsoll_abi::{Kind, NO_POD};
use plimsoll_core::kube::pod_uid::PodUid;

use super::{Agent, now_ns};
use crate::kernel::decode::Record;
use crate::kernel::{Bpf, BpfError};
use crate::pods::registry::Pods;
use crate::record::lines::{KernelOomKill, Line};

/// Kills kept at most.
const KILLS_MAX: usize = 64;
/// A kill is reported when no record has arrived for so long. The lines that the kernel writes for a victim take 20-40
/// ms on a serial console of 115,200 baud.
const SETTLED_NS: u64 = 200_000_000;
/// But not later than this after the first has.
const REPORT_WITHIN_NS: u64 = 2_000_000_000;
/// Processes of one kill that are told apart.
const COUNTED_MAX: usize = 128;
/// Cgroups that the victims of one kill are counted in; those of further ones are taken for its own.
const CGROUPS_MAX: usize = 16;

/// Those that are not reported yet.
#[derive(Debug)]
pub(super) struct OomKills {
    pub(super) kills: Vec<OomKill>,
    /// When they arrived. `None`: there are none.
    arrival: Option<Arrival>,
    /// A storm is reported in part.
    pub(super) unreported: u64,
    pub(super) folded: Folded,
}

/// When records were taken from the ring.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    first_ns: u64,
    newest_ns: u64,
}

/// Kills without a record: the kernel side counts them for each cgroup (`plimsoll_abi::oom_totals`) once that has had
/// its share.
#[derive(Debug, Default)]
pub(super) struct Folded {
    missed: u64,
    /// Found so far, by cgroup. What is gone in the kernel is forgotten here.
    reported: BTreeMap<u64, u64>,
    found: BTreeMap<u64, u64>,
    /// All that was handed on. The kernel adds the total of a cgroup that goes to that of [`NO_POD`], whether it was
    /// handed on or not.
    reported_sum: u64,
}

/// Kills of the kernel's OOM killer that got no record, by cgroup.
fn folded_kills(bpf: &Bpf, mut f: impl FnMut(u64, u64)) -> Result<(), BpfError> {
    let names_victims = bpf.is_attached("mark_victim");
    bpf.drain_oom_kills(|totals| {
        let kills = if names_victims {
            totals.victims
        } else {
            totals.choices
        };
        f(totals.cgroup_id, kills);
    })
}

impl Folded {
    /// Whether the kernel's sum has changed since the last time.
    pub(super) fn note_missed(&mut self, missed: u64) -> bool {
        std::mem::replace(&mut self.missed, missed) != missed
    }

    /// OOM kills of cgroups that were removed before this agent began. They are not reported: an agent before has done
    /// it, or their time is unknown.
    pub(super) fn begin_after(&mut self, bpf: &Bpf) -> Result<(), BpfError> {
        folded_kills(bpf, |cgroup_id, kills| {
            if cgroup_id == NO_POD {
                self.reported_sum = kills;
            }
        })
    }

    /// A cgroup's total so far.
    pub(super) fn found(&mut self, cgroup_id: u64, kills: u64) {
        self.found.insert(cgroup_id, kills);
    }

    /// The totals could not be read to their end: they are read anew at the next look.
    pub(super) fn failed(&mut self) {
        self.found.clear();
        self.missed = u64::MAX;
    }

    /// Hands on what has come since the last report.
    pub(super) fn tell(&mut self, mut f: impl FnMut(u64, u64)) {
        if self.found.is_empty() {
            return;
        }
        let found = std::mem::take(&mut self.found);
        for (cgroup_id, kills) in &found {
            if *cgroup_id == NO_POD {
                continue;
            }
            // Fewer: another cgroup has got the number of one that is gone.
            let reported = self.reported.get(cgroup_id).filter(|known| *known <= kills);
            let new = kills - reported.copied().unwrap_or(0);
            if new > 0 {
                f(*cgroup_id, new);
                self.reported_sum += new;
            }
        }
        let sum: u64 = found.values().sum();
        let left = sum.saturating_sub(self.reported_sum);
        if left > 0 && found.contains_key(&NO_POD) {
            f(NO_POD, left);
            self.reported_sum += left;
        }
        self.reported = found;
    }
}

/// One of them.
#[derive(Debug)]
pub(super) struct OomKill {
    pub(super) at_ns: u64,
    pub(super) cgroup_id: u64,
    /// The pod, looked up while its cgroup is known. `None`: not yet.
    pod: Option<Option<(PodUid, String)>>,
    pub(super) tgid: u32,
    pub(super) comm: [u8; plimsoll_abi::COMM_BYTES],
    /// The record says whose limit was hit: it is the kernel's choice, and its victims are named by records of their
    /// own.
    pub(super) is_choice: bool,
    /// The processes that have been counted; 0 where there is none. Those beyond are counted as often as they are
    /// named.
    counted: [u32; COUNTED_MAX],
    /// Victims named so far, by cgroup.
    cgroups: [Option<CgroupVictims>; CGROUPS_MAX],
    /// Those in further cgroups.
    elsewhere: u64,
}

/// Victims in one cgroup.
#[derive(Debug, Clone, Copy)]
struct CgroupVictims {
    cgroup_id: u64,
    count: u64,
    /// Whether it is the pod's. `None`: not looked up yet.
    is_of_pod: Option<bool>,
}

impl OomKill {
    /// Counts a victim, once. Allocates nothing.
    fn count(&mut self, tgid: u32, cgroup_id: u64) {
        for slot in &mut self.counted {
            if *slot == tgid {
                return;
            }
            if *slot == 0 {
                *slot = tgid;
                break;
            }
        }
        for slot in &mut self.cgroups {
            let victims = slot.get_or_insert(CgroupVictims {
                cgroup_id,
                count: 0,
                is_of_pod: None,
            });
            if victims.cgroup_id == cgroup_id {
                victims.count += 1;
                return;
            }
        }
        self.elsewhere += 1;
    }

    /// Looks up whose the cgroups are: soon, for they may be gone when the kill is reported.
    pub(super) fn look_up(&mut self, pods: &Pods) {
        let whose = |cgroup_id| {
            let uid = pods.by_cgroup_id(cgroup_id)?;
            Some((uid.clone(), pods.name(uid)))
        };
        let pod = self.pod.get_or_insert_with(|| whose(self.cgroup_id));
        for victims in self.cgroups.iter_mut().flatten() {
            victims.is_of_pod.get_or_insert_with(|| {
                victims.cgroup_id == self.cgroup_id
                    || pod.is_some() && whose(victims.cgroup_id) == *pod
            });
        }
    }

    /// The pod's name, once it was looked up.
    pub(super) fn pod(&self) -> Option<&str> {
        Some(&self.pod.as_ref()?.as_ref()?.1)
    }

    /// The pod, once it was looked up.
    pub(super) fn uid(&self) -> Option<&PodUid> {
        Some(&self.pod.as_ref()?.as_ref()?.0)
    }

    /// How many processes went. 1 where no record names the victims of a choice.
    pub(super) fn victims(&self) -> u64 {
        let of_pod = |victims: &&CgroupVictims| victims.is_of_pod != Some(false);
        let named: u64 = self
            .cgroups
            .iter()
            .flatten()
            .filter(of_pod)
            .map(|victims| victims.count)
            .sum();
        (named + self.elsewhere).max(1)
    }
}

impl Default for OomKills {
    fn default() -> Self {
        Self {
            kills: Vec::with_capacity(KILLS_MAX),
            arrival: None,
            unreported: 0,
            folded: Folded::default(),
        }
    }
}

impl OomKills {
    /// Takes in a record: a choice, or a victim. Allocates nothing.
    pub(super) fn add_record(
        &mut self,
        now_ns: u64,
        record: &Record<'_>,
        is_choice: bool,
        tgid: u32,
        comm: &[u8],
    ) {
        let mut name = [0; plimsoll_abi::COMM_BYTES];
        let length = comm.len().min(name.len());
        name[..length].copy_from_slice(&comm[..length]);
        self.push(
            now_ns,
            OomKill {
                at_ns: record.ts_ns,
                cgroup_id: record.cgroup_id,
                pod: None,
                tgid,
                comm: name,
                is_choice,
                counted: [0; COUNTED_MAX],
                cgroups: [None; CGROUPS_MAX],
                elsewhere: 0,
            },
        );
    }

    fn push(&mut self, now_ns: u64, mut kill: OomKill) {
        let arrival = self.arrival.get_or_insert(Arrival {
            first_ns: now_ns,
            newest_ns: now_ns,
        });
        arrival.newest_ns = now_ns;
        if let Some(choice) = self.kills.last_mut()
            && choice.is_choice
            && !kill.is_choice
        {
            choice.count(kill.tgid, kill.cgroup_id);
        } else if self.kills.len() == KILLS_MAX {
            self.unreported += 1;
        } else {
            if !kill.is_choice {
                // A choice is among the victims that are named after it.
                kill.count(kill.tgid, kill.cgroup_id);
            }
            self.kills.push(kill);
        }
    }

    /// When they are to be reported: at once (0) when there is no room for more, never (`None`) when there are none.
    pub(super) fn report_at_ns(&self) -> Option<u64> {
        let arrival = self.arrival?;
        if self.kills.len() == KILLS_MAX {
            return Some(0);
        }
        let settled_ns = arrival.newest_ns.saturating_add(SETTLED_NS);
        Some(settled_ns.min(arrival.first_ns.saturating_add(REPORT_WITHIN_NS)))
    }

    /// Forgets what has been reported, and says how many there was no room for. It keeps its room for the next records.
    pub(super) fn take_unreported(&mut self) -> u64 {
        self.kills.clear();
        self.arrival = None;
        std::mem::take(&mut self.unreported)
    }
}

impl Agent {
    /// When there is a kill to tell, if any.
    pub(super) fn report_oom_kills_at_ns(&self) -> Option<u64> {
        let report_at_ns = self.oom_kills.report_at_ns()?;
        Some(report_at_ns.max(self.listed_at_ns()))
    }

    /// Tells the kernel's OOM kills whose last victim has been named, a kill at a time.
    pub(super) fn report_oom_kills(&mut self, now_ns: u64) {
        let Some(report_at_ns) = self.report_oom_kills_at_ns() else {
            return;
        };
        if now_ns < self.listed_at_ns() {
            return;
        }
        for kill in &mut self.oom_kills.kills {
            kill.look_up(&self.pods);
        }
        if now_ns < report_at_ns {
            return;
        }
        let mut index = 0;
        while let Some(kill) = self.oom_kills.kills.get(index) {
            let pod = kill.pod();
            let mut kills = kill.victims();
            index += 1;
            // Where the choice is not known, victims of one pod at one time are one kill.
            while let Some(next) = self.oom_kills.kills.get(index)
                && !(kill.is_choice || next.is_choice)
                && pod.is_some()
                && pod == next.pod()
            {
                kills += next.victims();
                index += 1;
            }
            self.tally.oom_kills.add(pod.is_some(), kills);
            if let Some(uid) = kill.uid() {
                self.limits.oom_killed(uid, now_ns, kills);
            }
            let comm = String::from_utf8_lossy(&kill.comm);
            self.reporter.say(&Line::KernelOomKill(KernelOomKill {
                at_ns: kill.at_ns,
                pod,
                tgid: Some(kill.tgid),
                comm: Some(comm.trim_end_matches('\0')),
                kills,
            }));
        }
        let unreported = self.oom_kills.take_unreported();
        self.tally.oom_kills.unknown += unreported;
        if unreported > 0 {
            self.warn(format!(
                "the kernel's OOM killer killed {unreported} more times than can be listed"
            ));
        }
    }

    /// Kills that the kernel has only counted, because one cgroup had so many of them.
    pub(super) fn report_folded_oom_kills(&mut self) {
        let Self {
            bpf: Some(bpf),
            oom_kills,
            pods,
            reporter,
            tally,
            limits,
            ..
        } = self
        else {
            return;
        };
        let at_ns = now_ns();
        let result = bpf.missed(Kind::OomKill).and_then(|missed| {
            if !oom_kills.folded.note_missed(missed) {
                return Ok(());
            }
            folded_kills(bpf, |cgroup_id, kills| {
                oom_kills.folded.found(cgroup_id, kills)
            })
        });
        if let Err(error) = result {
            oom_kills.folded.failed();
            return self.warn(error.to_string());
        }
        oom_kills.folded.tell(|cgroup_id, kills| {
            let uid = pods.by_cgroup_id(cgroup_id);
            if let Some(uid) = uid {
                limits.oom_killed(uid, at_ns, kills);
            }
            let pod = uid.map(|uid| pods.name(uid));
            tally.oom_kills.add(pod.is_some(), kills);
            reporter.say(&Line::KernelOomKill(KernelOomKill {
                at_ns,
                pod: pod.as_deref(),
                tgid: None,
                comm: None,
                kills,
            }));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill(at_ms: u64, tgid: u32, is_choice: bool) -> OomKill {
        OomKill {
            at_ns: at_ms * 1_000_000,
            cgroup_id: 7,
            pod: None,
            tgid,
            comm: [0; plimsoll_abi::COMM_BYTES],
            is_choice,
            counted: [0; COUNTED_MAX],
            cgroups: [None; CGROUPS_MAX],
            elsewhere: 0,
        }
    }

    fn kills_of(records: &[(u64, u32, bool)]) -> (Vec<(u32, u64)>, OomKills) {
        let mut kills = OomKills {
            kills: Vec::new(),
            ..OomKills::default()
        };
        for &(at_ms, tgid, is_choice) in records {
            kills.push(at_ms * 1_000_000, kill(at_ms, tgid, is_choice));
        }
        let of = |kill: &OomKill| (kill.tgid, kill.victims());
        (kills.kills.iter().map(of).collect(), kills)
    }

    #[test]
    fn a_cgroup_that_is_killed_as_a_whole_is_one_kill() {
        let (found, kills) = kills_of(&[
            (1000, 5, true),
            (1001, 5, false),
            (1040, 6, false),
            // However long the kernel takes.
            (1480, 7, false),
            (1481, 9, true),
            (1482, 9, false),
        ]);
        assert_eq!(found, [(5, 3), (9, 1)]);
        assert_eq!(kills.report_at_ns(), Some(1_682_000_000));
    }

    #[test]
    fn an_agent_that_was_stopped_waits_for_the_rest_of_a_kill() {
        let (_, mut kills) = kills_of(&[]);
        assert_eq!(kills.report_at_ns(), None);
        kills.push(9_000_000_000, kill(1000, 5, true));
        kills.push(9_000_000_000, kill(1001, 5, false));
        assert_eq!(kills.report_at_ns(), Some(9_200_000_000));
        kills.push(9_100_000_000, kill(9050, 6, false));
        assert_eq!(kills.report_at_ns(), Some(9_300_000_000));
        assert_eq!(kills.kills[0].victims(), 2);
        kills.push(10_900_000_000, kill(10_900, 7, false));
        assert_eq!(kills.report_at_ns(), Some(11_000_000_000), "not for ever");
        assert_eq!((kills.take_unreported(), kills.report_at_ns()), (0, None));
    }

    #[test]
    fn a_dying_task_of_somebody_else_is_no_victim() {
        let (_, mut kills) = kills_of(&[(1000, 5, true), (1001, 5, false)]);
        let elsewhere = OomKill {
            cgroup_id: 8,
            ..kill(1002, 6, false)
        };
        kills.push(1_002_000_000, elsewhere);
        assert_eq!(kills.kills[0].victims(), 2);
        let host = crate::host::HostRoot::new("/nonexistent");
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        let mounts = "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
        std::fs::write(dir.path().join("proc/self/mounts"), mounts).unwrap();
        let mounts = crate::host::HostRoot::new(dir.path())
            .cgroup_mounts()
            .unwrap();
        kills.kills[0].look_up(&Pods::new(host, mounts, Default::default()));
        assert_eq!((kills.kills[0].victims(), kills.kills[0].pod()), (1, None));
    }

    #[test]
    fn victims_in_many_cgroups_are_all_counted() {
        let (_, mut kills) = kills_of(&[(1000, 5, true)]);
        for tgid in 1..=20 {
            let victim = OomKill {
                cgroup_id: u64::from(tgid),
                ..kill(1001, tgid, false)
            };
            kills.push(1_001_000_000, victim);
        }
        assert_eq!(kills.kills[0].victims(), 20);
    }

    #[test]
    fn a_process_counts_once() {
        let (found, _) = kills_of(&[
            (1000, 5, true),
            (1001, 5, false),
            (1002, 6, false),
            (1003, 5, false),
            (1004, 6, false),
        ]);
        assert_eq!(found, [(5, 2)]);
    }

    #[test]
    fn victims_named_by_themselves_are_kills_of_their_own() {
        let (found, _) = kills_of(&[(1000, 5, false), (1001, 6, false)]);
        assert_eq!(found, [(5, 1), (6, 1)]);
    }

    /// What is handed on when these totals are read.
    fn handed_on(folded: &mut Folded, totals: &[(u64, u64)]) -> Vec<(u64, u64)> {
        for &(cgroup_id, kills) in totals {
            folded.found(cgroup_id, kills);
        }
        let mut new = Vec::new();
        folded.tell(|cgroup_id, kills| new.push((cgroup_id, kills)));
        new
    }

    #[test]
    fn what_was_only_counted_is_told_once() {
        let mut folded = Folded::default();
        assert!(folded.note_missed(5) && !folded.note_missed(5));
        let mut new = |totals: &[(u64, u64)]| handed_on(&mut folded, totals);
        assert_eq!(new(&[(7, 3), (8, 0)]), [(7, 3)]);
        assert_eq!(new(&[(7, 5), (8, 1)]), [(7, 2), (8, 1)]);
        // Nothing was read: nothing is forgotten.
        assert_eq!(new(&[]), []);
        // 7 is gone; its number comes back as another cgroup's.
        assert_eq!(new(&[(8, 1)]), []);
        assert_eq!(new(&[(7, 4), (8, 1)]), [(7, 4)]);
    }

    #[test]
    fn what_was_counted_in_no_pod_before_this_agent_is_not_told_again() {
        let mut folded = Folded {
            reported_sum: 10,
            ..Folded::default()
        };
        assert_eq!(handed_on(&mut folded, &[(NO_POD, 10), (7, 2)]), [(7, 2)]);
    }

    #[test]
    fn of_a_cgroup_that_is_gone_what_was_not_told_is_told_in_no_pod() {
        let mut folded = Folded::default();
        let mut new = |totals: &[(u64, u64)]| handed_on(&mut folded, totals);
        assert_eq!(
            new(&[(NO_POD, 1), (7, 3), (8, 2)]),
            [(7, 3), (8, 2), (NO_POD, 1)]
        );
        // 7 had two more when it went, 8 one more since.
        assert_eq!(new(&[(NO_POD, 6), (8, 3)]), [(8, 1), (NO_POD, 2)]);
        // 8 went with all told, 9 came and went between two looks.
        assert_eq!(new(&[(NO_POD, 13)]), [(NO_POD, 4)]);
        // 10 was read, went, and is in both: told once, if not at its time.
        assert_eq!(new(&[(NO_POD, 18), (10, 5)]), [(10, 5), (NO_POD, 5)]);
        assert_eq!(new(&[(NO_POD, 18)]), []);
        assert_eq!(new(&[(NO_POD, 25)]), [(NO_POD, 2)]);
    }

    #[test]
    fn a_storm_is_told_at_once_and_the_rest_counted() {
        let records: Vec<_> = (0..70).map(|index| (1000, index, true)).collect();
        let (found, kills) = kills_of(&records);
        assert_eq!((found.len(), kills.unreported), (KILLS_MAX, 6));
        assert_eq!(kills.report_at_ns(), Some(0));
        assert_eq!(kills_of(&[]).1.report_at_ns(), None);
        // It never settles, and is told all the same.
        let stream: Vec<_> = (0..90)
            .map(|index| (1000 + 40 * index, 5, index == 0))
            .collect();
        assert_eq!(kills_of(&stream).1.report_at_ns(), Some(3_000_000_000));
    }
}
