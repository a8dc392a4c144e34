//! What the agent says, when it has acted: decisions, the kernel's OOM kills, what limits have cost the pods, and its own end.

use plimsoll_abi::Kind;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::departure::Departure;
use plimsoll_core::model::event::Event;
use plimsoll_core::model::units::PodUid;

use super::oom_kills::folded_kills;
use super::{Agent, now_ns};
use crate::host::processes::process_cost;
use crate::kernel::{self, Bpf};
use crate::probe::ladder::Choice;
use crate::record::journal::Journal;
use crate::record::limit_counts::LimitCounts;
use crate::record::lines::{
    KernelOomKill, Line, MemoryLimit, MemoryStall, Records, Started, Stopped, Throttled,
};

/// Time from the start to the first reading of the manifests, at most: then what is known of pods has to do.
const LISTED_WITHIN_NS: u64 = 5_000_000_000;
/// More than any ring holds.
const RING_RECORDS_MAX: usize = 1 << 16;

/// How much of a count that only grows has been said.
#[derive(Debug, Default)]
pub(super) struct Said(u64);

impl Said {
    /// What has come since, if anything: it counts as said now.
    pub(super) fn more(&mut self, count: u64) -> Option<u64> {
        let more = count.checked_sub(self.0).filter(|more| *more > 0)?;
        self.0 = count;
        Some(more)
    }
}

/// What an agent says of itself when it is ready.
#[derive(Debug)]
pub(super) struct Announcement {
    /// What serves each signal.
    pub(super) mechanisms: Vec<Choice>,
    /// What this host does not allow, one line each.
    pub(super) lost: Vec<String>,
    /// What holds the BPF programs, if there are any.
    pub(super) programs: Option<String>,
}

impl Agent {
    /// Says this when it is ready.
    pub(super) fn announcing(&mut self, announcement: Announcement) {
        // What an agent before this one has lost, it has reported.
        if let Some(Ok(account)) = self.bpf.as_ref().map(Bpf::account) {
            let _said = self.lost_records.more(account.lost() + account.unreadable);
        }
        self.announcement = Some(announcement);
    }

    /// It is ready: says so, once. A manifest that is removed from now on ends its pod.
    pub(super) fn ready(&mut self) {
        let Some(announcement) = self.announcement.take() else {
            return;
        };
        self.reporter.say(&Line::Started(Started {
            pid: std::process::id(),
            mechanisms: &announcement.mechanisms,
            lost: &announcement.lost,
            pods: self.pods.len(),
            programs: announcement.programs.as_deref(),
        }));
        self.heartbeat.ready();
    }

    /// What follows once a decision was carried out: it is counted, said and noted where its effects are looked for, and a pod that has left is given up.
    pub(super) fn conclude(&mut self, event: &Event, decision: &Decision) {
        self.tally.decided(decision);
        let telling = decision.telling();
        let Some(severity) = telling.severity else {
            return;
        };
        let name = telling.pod.map(|uid| self.pods.name(uid));
        let text = decision.to_string();
        self.reporter.say(&Line::Decision {
            at_ns: event.at_ns,
            pod: name.as_deref(),
            severity,
            decision,
            text,
        });
        if let (Some(finished), Some(pod)) = (self.timelines.finished(decision, now_ns()), &name) {
            self.tally.finished(&finished, self.started_ns);
            self.reporter.say(&Line::EvictionFinished {
                pod,
                finished: &finished,
            });
        }
        match decision.departure() {
            Departure::Evicted(uid) => {
                if let Some(storage) = &mut self.storage {
                    storage.note_ended(uid);
                }
            }
            Departure::Over { uid, .. } => {
                // Its counts go with its cgroup.
                self.limits.read_last(uid);
                self.say_limits(event.at_ns);
                self.left(uid);
            }
            Departure::None => {}
        }
    }

    pub(super) fn report_lost_records(&mut self) {
        let Some(Ok(account)) = self.bpf.as_ref().map(Bpf::account) else {
            return;
        };
        if let Some(lost) = self.lost_records.more(account.lost() + account.unreadable) {
            self.warn(format!(
                "{lost} records of the kernel were lost; all pods were read again"
            ));
        }
    }

    /// From when on it is known which pod a cgroup belongs to: an agent that has just started has not read the manifests.
    pub(super) fn listed_at_ns(&self) -> u64 {
        self.listed_by_ns(LISTED_WITHIN_NS)
    }

    /// From when on a list of pods is not waited for: at once if it has come, else so long after the start.
    pub(super) fn listed_by_ns(&self, within_ns: u64) -> u64 {
        if self.tally.pods_listed {
            0
        } else {
            self.started_ns.saturating_add(within_ns)
        }
    }

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

    /// What the pods' limits have cost them since the last time.
    pub(super) fn report_limits(&mut self) {
        let mut failures = Vec::new();
        let at_ns = now_ns();
        let has_followed = self
            .limits
            .follow(&self.pods, at_ns, |failure| failures.push(failure));
        if let Some(bpf) = &mut self.bpf {
            if has_followed && let Err(error) = bpf.count_only(&self.limits.counted()) {
                failures.push(error.to_string());
                self.limits.follow_again();
            }
            bpf.drain_pressure(RING_RECORDS_MAX, |record| self.limits.record(&record));
            // Totals that no record has reported yet: within a window the kernel sends one.
            if self.limits.takes_from_kernel()
                && let Err(error) = bpf
                    .drain_memory(|totals| self.limits.memory_totals(totals))
                    .and_then(|()| bpf.drain_throttle(|totals| self.limits.throttle_totals(totals)))
                    .and_then(|()| bpf.drain_stalls(|totals| self.limits.stall_totals(totals)))
                    .and_then(|()| bpf.drain_refaults(|totals| self.limits.refault_totals(totals)))
            {
                failures.push(error.to_string());
            }
        }
        self.limits.read(at_ns, |failure| failures.push(failure));
        self.say_limits(at_ns);
        if let Some(more) = self.limits.more_not_watched() {
            failures.push(format!(
                "{more} files of pods could not be added to epoll, so they are polled; raise fs.epoll.max_user_watches"
            ));
        }
        for failure in failures {
            self.warn(failure);
        }
        let wants = |journal: &Journal| journal.wants_aside(at_ns);
        if self.journal.as_ref().is_some_and(wants) {
            self.record_aside(at_ns);
        }
    }

    /// What no engine decides by, into the journal.
    fn record_aside(&mut self, at_ns: u64) {
        if let Some(journal) = &mut self.journal {
            journal.record_aside(at_ns, self.limits.totals(), self.oom.plan());
        }
    }

    fn say_limits(&mut self, at_ns: u64) {
        let Self {
            limits,
            pods,
            reporter,
            tally,
            ..
        } = self;
        limits.collect(at_ns, pods, |uid, counts| {
            let pod = &pods.name(uid);
            let LimitCounts {
                high,
                max,
                oom,
                low,
                ..
            } = counts;
            if high + max + oom + low > 0 {
                reporter.say(&Line::MemoryLimit(MemoryLimit {
                    at_ns,
                    pod,
                    high,
                    max,
                    oom,
                    low,
                }));
            }
            let ms = |ns: u64| ns / 1_000_000;
            if counts.has_waited() {
                reporter.say(&Line::MemoryStall(MemoryStall {
                    at_ns,
                    pod,
                    ms: ms(counts.stalled_ns),
                    limit_reclaim_ms: ms(counts.limit_reclaim_ns),
                    high_ms: ms(counts.high_ns),
                    node_reclaim_ms: ms(counts.node_reclaim_ns),
                    refaulted_pages: counts.refaulted_pages,
                    swapped_in_pages: counts.swapped_in_pages,
                }));
            }
            if counts.oom_kills > 0 {
                tally.oom_kills.add(true, counts.oom_kills);
                reporter.say(&Line::KernelOomKill(KernelOomKill {
                    at_ns,
                    pod: Some(pod),
                    tgid: None,
                    comm: None,
                    kills: counts.oom_kills,
                }));
            }
            if counts.throttled + counts.throttled_ns > 0 {
                reporter.say(&Line::Throttled(Throttled {
                    at_ns,
                    pod,
                    count: counts.throttled,
                    ms: counts.throttled_ns / 1_000_000,
                }));
            }
        });
    }

    pub(super) fn warn(&mut self, text: String) {
        self.reporter.say(&Line::Warning { text });
    }

    /// A warning about a pod, which it names as people and as cgroups do.
    /// Too many in a row are counted, not said.
    pub(super) fn warn_of_pod(&mut self, uid: &PodUid, what: impl std::fmt::Display) {
        if !self.pod_warnings.may_say(uid, now_ns()) {
            return;
        }
        self.warn(format!("pod {}: {what}", self.pods.name_and_uid(uid)));
    }

    pub(super) fn report_left_out_warnings(&mut self) {
        for (uid, count) in self.pod_warnings.take_left_out(now_ns()) {
            self.warn(format!(
                "pod {}: {count} more warnings about it were left out; those before tell what kind they are",
                self.pods.name_and_uid(&uid)
            ));
        }
    }

    /// Takes the programs away, reads what is left of their records, and counts.
    fn last_records(&mut self) -> Records {
        let Some(bpf) = &mut self.bpf else {
            return Records::default();
        };
        let hold = if self.keeps_programs {
            kernel::AtEnd::Keep
        } else {
            kernel::AtEnd::Detach
        };
        let (limits, last_line) = (&mut self.limits, &mut self.last_line);
        let account = bpf.finish(hold, |bpf| {
            bpf.drain_critical(RING_RECORDS_MAX, |record| {
                if let Some(last_line) = last_line.as_mut() {
                    last_line.record(&record);
                }
            });
            bpf.drain_lifecycle(RING_RECORDS_MAX, |_| {});
            bpf.drain_pressure(RING_RECORDS_MAX, |record| limits.record(&record));
        });
        match account {
            Ok(account) => Records::of(&account),
            Err(error) => {
                self.warn(format!("the record counters cannot be read: {error}"));
                Records::default()
            }
        }
    }

    fn finish(mut self) {
        let records = self.last_records();
        self.report_last_line_kills();
        self.settle();
        self.report_uncounted_last_line_kills();
        self.limits.finish();
        self.report_limits();
        self.report_folded_oom_kills();
        self.record_aside(now_ns());
        let journal_lost = self.journal.as_ref().map_or(0, Journal::lost);
        if let Some(Err(error)) = self.journal.take().map(Journal::finish) {
            self.warn(error.to_string());
        }
        let (cpu, rss_bytes) = process_cost();
        let cpu_ms = u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX);
        let lines_lost = self.reporter.lost();
        self.reporter.say(&Line::Stopped(Stopped {
            records,
            lines_lost,
            journal_lost,
            cpu_ms,
            rss_bytes,
        }));
        self.reporter.finish();
    }
}

/// An agent that decides nothing any more, and whose programs are still there. To take them away can take long: the kernel waits until
/// every task has passed through the scheduler. No pod should have to wait for that.
#[must_use = "its programs are still there"]
pub struct Ending(pub(super) Agent);

impl Ending {
    /// Takes the programs away, and tells what is left to tell.
    pub fn finish(self) {
        self.0.finish();
    }
}
