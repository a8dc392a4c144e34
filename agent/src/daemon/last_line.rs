//! The last line in the kernel, kept up to date, and reports of what it did.
//!
//! **Problem.** What is left in the kernel must be right when the agent stops being able to act, which it does not know
//! beforehand; and what was done meanwhile must be known afterwards, also by another agent. **Approach.** Each sample
//! acknowledges the crossings before it, and renews what is in force, in two map updates. The order follows the
//! samples, a few times a second at most. A kill comes as a record, and is counted in a map: what no record has
//! reported is found in the map. A sample too soon for a new order is followed by one that is not: the agent may be
//! gone before anything else leads to one.
//!
//! Who is in the order, and where the line is, the core says ([`plimsoll_core::policy::oom::last_line`]).

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::{EventKind, LastLineKill, LastLineReason};
use plimsoll_core::model::options;
use plimsoll_core::policy::oom::last_line::{LastLinePlan, plan};

use super::telling::Said;
use super::{Agent, now_ns};
use crate::host::HostRoot;
use crate::host::zoneinfo;
use crate::kernel::decode::{Body, Record};
use crate::kernel::last_line::{CondemnedPod, LineSetting, PodKills, uid_text};
use crate::kernel::{Bpf, BpfError, pages_up};
use crate::record::lines::{self, Line};

/// Between two orders.
const ORDER_EVERY_NS: u64 = 100_000_000;
/// It is renewed so often at the least, and three times in the time for which it holds: pods come and go.
const RENEW_EVERY_NS: u64 = 10_000_000_000;
/// Between two looks at the zones' watermarks: they change when somebody sets `vm.min_free_kbytes` or adds memory.
const WATERMARKS_EVERY_NS: u64 = 60_000_000_000;
/// Kills kept until they are reported, at most; those beyond are found in the map.
const KILLS_MAX: usize = 64;

/// Keeps it.
#[derive(Debug)]
pub struct LastLine {
    options: options::LastLine,
    host: HostRoot,
    /// The sum of the zones' low watermarks, pages, and when it was read.
    low_pages: u64,
    low_read_ns: Option<u64>,
    /// What is in force, but for its times.
    plan: Option<LastLinePlan>,
    /// When the order was renewed, too.
    ordered_ns: Option<u64>,
    /// When it was last tried. After the order: too soon for another one.
    renewed_ns: u64,
    /// The newest sample: when it began, and what had been charged then.
    sampled: (u64, Option<u64>),
    kills: Vec<KillRecord>,
    /// So many of them the engine knows; they are reported when there is time.
    taken_in: usize,
    /// It stays when the agent ends.
    is_left: bool,
    /// The last thing that went wrong: said once.
    failure: Option<String>,
    refused: Said,
}

/// A kill that a record has reported.
#[derive(Debug)]
struct KillRecord {
    cgroup_id: u64,
    uid: [u8; plimsoll_abi::last_line::UID_BYTES],
    comm: [u8; plimsoll_abi::COMM_BYTES],
    kill: LastLineKill,
}

impl LastLine {
    /// With these options.
    pub fn new(options: options::LastLine, host: &HostRoot) -> Self {
        Self {
            options,
            host: host.clone(),
            low_pages: 0,
            low_read_ns: None,
            plan: None,
            ordered_ns: None,
            renewed_ns: 0,
            sampled: (0, None),
            kills: Vec::with_capacity(KILLS_MAX),
            taken_in: 0,
            is_left: false,
            failure: None,
            refused: Said::default(),
        }
    }

    /// A sample has been taken that was begun then, and is about to be judged.
    pub(super) fn note_sample(&mut self, at_ns: u64, charged_bytes: Option<u64>) {
        self.sampled = (at_ns, charged_bytes);
    }

    /// When the newest sample began.
    #[cfg(test)]
    pub(super) fn sampled(&self) -> u64 {
        self.sampled.0
    }

    /// When it is to be renewed at the latest.
    pub(super) fn renew_at_ns(&self) -> u64 {
        let renew_ns = RENEW_EVERY_NS.min(self.options.expires_after_ns / 3);
        let order_at_ns = self.ordered_ns.filter(|at_ns| *at_ns < self.renewed_ns);
        let order_at_ns = order_at_ns.map_or(u64::MAX, |at_ns| at_ns + ORDER_EVERY_NS);
        self.renewed_ns.saturating_add(renew_ns).min(order_at_ns)
    }

    /// It is renewed now, also if something is refused: the next try has its time. Returns whether the order is, too.
    /// If it is too soon for that, it has its own time.
    fn begin_renewal(&mut self, now_ns: u64) -> bool {
        self.renewed_ns = now_ns;
        let is_order_due = since(self.ordered_ns, now_ns) >= ORDER_EVERY_NS;
        if is_order_due {
            self.ordered_ns = Some(now_ns);
        }
        is_order_due
    }

    /// Takes in a record. Allocates nothing.
    pub(super) fn record(&mut self, record: &Record<'_>) {
        let Body::LastLineKill {
            why,
            tgid,
            comm,
            uid,
            kills,
            available_pages,
            wanted_pages,
            crossed_ns,
            ..
        } = record.body
        else {
            return;
        };
        if self.kills.len() == KILLS_MAX {
            return;
        }
        let page_bytes = rustix::param::page_size() as u64;
        let mut kill = KillRecord {
            cgroup_id: record.cgroup_id,
            uid: [0; plimsoll_abi::last_line::UID_BYTES],
            comm: [0; plimsoll_abi::COMM_BYTES],
            kill: LastLineKill {
                killed_ns: record.ts_ns,
                why,
                tgid,
                kills,
                available_bytes: available_pages.map(|pages| pages.saturating_mul(page_bytes)),
                wanted_bytes: available_pages.map(|_| wanted_pages.saturating_mul(page_bytes)),
                crossed_ns,
            },
        };
        kill.uid[..uid.len()].copy_from_slice(uid);
        kill.comm[..comm.len()].copy_from_slice(comm);
        self.kills.push(kill);
    }
}

impl Agent {
    /// Also keeps a last line in the kernel, where one of its programs is attached.
    pub fn with_last_line(mut self, last_line: Option<LastLine>) -> Self {
        let has_programs = self.bpf.as_mut().and_then(Bpf::last_line).is_some();
        self.last_line = last_line.filter(|_| has_programs);
        let holds_ns = self
            .last_line
            .as_ref()
            .map(|line| line.options.expires_after_ns);
        self.tally.last_line_holds_ns = holds_ns;
        self
    }

    /// When what records have reported of the last line is to be taken in, if there is any.
    pub(super) fn last_line_kills_at_ns(&self) -> Option<u64> {
        let line = self.last_line.as_ref()?;
        (!line.kills.is_empty()).then(|| self.listed_at_ns())
    }

    /// Takes in what records have reported of the last line: the engine completes what it began, before it judges a
    /// sample. Allocates nothing for pods that are known.
    pub(super) fn take_in_last_line_kills(&mut self) {
        if self
            .last_line_kills_at_ns()
            .is_none_or(|at_ns| now_ns() < at_ns)
        {
            return;
        }
        let Some(last_line) = &mut self.last_line else {
            return;
        };
        let begin = std::mem::replace(&mut last_line.taken_in, last_line.kills.len());
        let kills = std::mem::take(&mut last_line.kills);
        for record in &kills[begin..] {
            self.last_line_killed(record.cgroup_id, uid_text(&record.uid), record.kill);
        }
        if let Some(last_line) = &mut self.last_line {
            last_line.kills = kills;
        }
    }

    /// Reports them. Not urgent.
    pub(super) fn report_last_line_kills(&mut self) {
        self.take_in_last_line_kills();
        let Some(last_line) = self.last_line.as_mut().filter(|line| line.taken_in > 0) else {
            return;
        };
        last_line.taken_in = 0;
        let kills = std::mem::take(&mut last_line.kills);
        self.publish();
        for record in &kills {
            let kills = new_kills(record.kill.kills, self.reported_kills(record.cgroup_id));
            if kills == 0 {
                continue;
            }
            let end = record.comm.iter().position(|byte| *byte == 0);
            let comm = String::from_utf8_lossy(&record.comm[..end.unwrap_or(record.comm.len())]);
            let kill = LastLineKill {
                kills,
                ..record.kill
            };
            self.say_last_line_kill(uid_text(&record.uid), Some(&comm), &kill);
            self.count_as_reported(record.cgroup_id, record.kill.kills);
        }
        if let Some(last_line) = &mut self.last_line {
            // Keeps its room.
            last_line.kills = kills;
            last_line.kills.clear();
        }
    }

    fn last_line_killed(&mut self, cgroup_id: u64, uid: &str, kill: LastLineKill) {
        let known = self.pods.by_cgroup_id(cgroup_id).cloned();
        let uid = known.unwrap_or_else(|| PodUid::from(uid));
        self.step(now_ns(), EventKind::LastLineKill { uid, kill });
    }

    /// `kill.kills`: those that were not said before.
    fn say_last_line_kill(&mut self, uid: &str, comm: Option<&str>, kill: &LastLineKill) {
        self.tally.last_line_kills += kill.kills;
        let pod = self.pods.name(&PodUid::from(uid));
        self.reporter.say(&Line::LastLineKill(lines::LastLineKill {
            at_ns: kill.killed_ns,
            pod: &pod,
            comm,
            kill,
            text: kill.why.to_string(),
        }));
    }

    /// How many of a pod's kills have been reported. Unknown is none: rather twice than never.
    fn reported_kills(&mut self, cgroup_id: u64) -> u64 {
        let maps = self.bpf.as_mut().and_then(Bpf::last_line);
        match maps.map(|maps| maps.reported(cgroup_id)) {
            Some(Ok(kills)) => kills,
            Some(Err(error)) => {
                self.last_line_failed(error.to_string());
                0
            }
            None => 0,
        }
    }

    fn count_as_reported(&mut self, cgroup_id: u64, kills: u64) {
        let counted = self
            .bpf
            .as_mut()
            .and_then(Bpf::last_line)
            .map(|maps| maps.note_reported(cgroup_id, kills));
        if let Some(Err(error)) = counted {
            self.last_line_failed(error.to_string());
        }
    }

    /// A sample has been taken and answered: acknowledges it, and renews what is in force.
    pub(super) fn renew_last_line(&mut self) {
        if let Err(text) = self.try_renew_last_line() {
            self.last_line_failed(text);
        }
    }

    fn try_renew_last_line(&mut self) -> Result<(), String> {
        let (Some(line), Some(bpf)) = (&mut self.last_line, &mut self.bpf) else {
            return Ok(());
        };
        let Some(maps) = bpf.last_line() else {
            return Ok(());
        };
        let now_ns = now_ns();
        let is_order_due = line.begin_renewal(now_ns);
        let until_ns = now_ns.saturating_add(line.options.expires_after_ns);
        if since(line.low_read_ns, now_ns) >= WATERMARKS_EVERY_NS {
            line.low_pages =
                zoneinfo::low_watermarks(&line.host).map_err(|error| error.to_string())?;
            line.low_read_ns = Some(now_ns);
        }
        let mut ordered = Ok(());
        if is_order_due {
            line.plan = plan(self.engine.config(), self.engine.state());
            let condemned = line.plan.iter().flat_map(|plan| &plan.order);
            let order: Vec<CondemnedPod> = condemned
                .filter_map(|pod| {
                    let (_, cgroup_id) = self.pods.cgroup(pod.uid())?;
                    Some(CondemnedPod {
                        pod: pod.clone(),
                        cgroup_id,
                    })
                })
                .collect();
            ordered = maps.condemn(&order);
        }
        let mut setting = LineSetting::default();
        if let (Some(plan), Some(node)) = (&line.plan, &self.engine.state().node) {
            let (acked_ns, charged_bytes) = line.sampled;
            let left_bytes = node.memory.left_bytes() + node.memory.swap_free_bytes;
            let spare_bytes = left_bytes.saturating_sub(plan.line_bytes);
            setting = LineSetting {
                until_ns,
                line_pages: pages_up(plan.line_bytes),
                critical_pages: pages_up(plan.critical_bytes),
                budget_ns: line.options.acknowledge_within_ns,
                check_at_pages: pages_up(charged_bytes.unwrap_or(0).saturating_add(spare_bytes)),
                cache_kept_pages: line.low_pages,
                acked_ns,
            };
        }
        maps.set(&setting)
            .and(ordered)
            .and_then(|()| {
                if is_order_due {
                    maps.forget_others()
                } else {
                    Ok(())
                }
            })
            .map_err(|error| error.to_string())
    }

    /// Reports what no record has reported: the ring was full, or another agent was here.
    pub(super) fn report_uncounted_last_line_kills(&mut self) {
        if self.last_line.is_none() || now_ns() < self.listed_at_ns() {
            return;
        }
        match self.unreported_kills() {
            Ok(unreported) => {
                for (kills, missing) in unreported {
                    let kill = LastLineKill {
                        killed_ns: kills.last_ns,
                        why: kills.why.unwrap_or(LastLineReason::Unacknowledged),
                        tgid: kills.tgid,
                        kills: missing,
                        available_bytes: None,
                        wanted_bytes: None,
                        crossed_ns: None,
                    };
                    let uid = uid_text(&kills.uid);
                    self.last_line_killed(kills.cgroup_id, uid, kill);
                    self.publish();
                    self.say_last_line_kill(uid, None, &kill);
                    self.count_as_reported(kills.cgroup_id, kills.count);
                }
            }
            Err(error) => self.last_line_failed(error.to_string()),
        }
    }

    /// Pods of which more was killed than was reported, and how much more. Those that are gone and reported are
    /// forgotten.
    fn unreported_kills(&mut self) -> Result<Vec<(PodKills, u64)>, BpfError> {
        let Some(maps) = self.bpf.as_mut().and_then(Bpf::last_line) else {
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        maps.kills(|kills| all.push(kills))?;
        let mut unreported = Vec::new();
        for kills in all {
            let missing = new_kills(kills.count, maps.reported(kills.cgroup_id)?);
            if missing > 0 {
                unreported.push((kills, missing));
            } else if self.pods.by_cgroup_id(kills.cgroup_id).is_none() {
                maps.forget_kills(kills.cgroup_id)?;
            }
        }
        let refused = maps.refused()?;
        if let Some(line) = &mut self.last_line
            && let Some(more) = line.refused.more(refused)
        {
            self.warn(format!(
                "the kernel could not deliver {more} kills of the last line: the process was exiting, or another signal was on its way"
            ));
        }
        Ok(unreported)
    }

    /// The agent ends because it can judge nothing any more, as if it were killed: what is in force stays for the next
    /// agent, or until it expires, and its programs stay with it.
    pub(super) fn leave_last_line(&mut self) {
        if let Some(line) = &mut self.last_line {
            line.is_left = true;
            self.keeps_programs = true;
        }
    }

    /// An orderly end takes it back.
    pub(super) fn end_last_line(&mut self) {
        if self.last_line.as_ref().is_none_or(|line| line.is_left) {
            return;
        }
        if let Some(maps) = self.bpf.as_mut().and_then(Bpf::last_line) {
            let emptied = maps.condemn(&[]);
            let ended = maps.set(&LineSetting::default()).and(emptied);
            if let Err(error) = ended {
                self.warn(format!("the last line stays until it expires: {error}"));
            }
        }
    }

    fn last_line_failed(&mut self, text: String) {
        let Some(line) = &mut self.last_line else {
            return;
        };
        if line.failure.as_ref() != Some(&text) {
            line.failure = Some(text.clone());
            self.warn(format!("the last line in the kernel cannot be updated, and expires unless an update succeeds: {text}"));
        }
    }
}

/// Of so many kills of a pod, those that have not been reported. A record has the number of all so far: with it, those
/// whose records were lost are reported too, and of two records in the wrong order the second says nothing new.
fn new_kills(kills: u64, reported: u64) -> u64 {
    kills.saturating_sub(reported)
}

/// Time that has passed since then, nanoseconds; `u64::MAX` if it never was.
fn since(at_ns: Option<u64>, now_ns: u64) -> u64 {
    at_ns.map_or(u64::MAX, |at_ns| now_ns.saturating_sub(at_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_too_soon_for_a_new_order_is_made_up_for() {
        const MS: u64 = 1_000_000;
        let options = options::LastLine {
            expires_after_ns: 30_000 * MS,
            ..options::LastLine::default()
        };
        let mut line = LastLine::new(options, &HostRoot::live());
        let mut sample = |at_ns| (line.begin_renewal(at_ns), line.renew_at_ns());
        assert_eq!(sample(1000 * MS), (true, 11_000 * MS));
        assert_eq!(sample(1030 * MS), (false, 1100 * MS));
        assert_eq!(sample(1090 * MS), (false, 1100 * MS));
        assert_eq!(sample(1100 * MS), (true, 11_100 * MS));
    }

    /// What is reported of a pod, by the numbers that records and at last the map say.
    fn reported(mut before: u64, said: &[u64]) -> Vec<u64> {
        let one = |kills: &u64| {
            let new = new_kills(*kills, before);
            before = before.max(*kills);
            new
        };
        said.iter().map(one).collect()
    }

    #[test]
    fn each_kill_of_a_pod_is_counted_once() {
        assert_eq!(reported(0, &[1, 2, 3, 4, 4]), [1, 1, 1, 1, 0]);
        // The record of the second was lost.
        assert_eq!(reported(0, &[1, 3, 4, 4]), [1, 2, 1, 0]);
        // Those of the last were: the map has them.
        assert_eq!(reported(0, &[1, 4]), [1, 3]);
        // Another CPU was faster.
        assert_eq!(reported(0, &[2, 1, 2]), [2, 0, 0]);
        // An agent before has reported five.
        assert_eq!(reported(5, &[6, 6]), [1, 0]);
    }
}
