//! What the agent says of itself and when it has acted: its start, decisions, warnings, and its own end.

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::Event;
use plimsoll_core::model::eviction_change::EvictionChange;

use super::{Agent, now_ns};
use crate::host::processes::process_cost;
use crate::kernel::{self, Bpf};
use crate::probe::ladder::Choice;
use crate::record::journal::Journal;
use crate::record::lines::{Line, Records, Started, Stopped};

/// Time from the start to the first reading of the manifests, at most: then what is known of pods has to do.
const LISTED_WITHIN_NS: u64 = 5_000_000_000;
/// More than any ring holds.
pub(super) const RING_RECORDS_MAX: usize = 1 << 16;

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

    /// What follows once a decision was carried out: it is counted, said and noted where its effects are looked for,
    /// and a pod that has left is given up.
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
        match decision.eviction_change() {
            EvictionChange::Evicted(uid) => {
                if let Some(storage) = &mut self.storage {
                    storage.note_ended(uid);
                }
            }
            EvictionChange::Over { uid, .. } => {
                // Its counts go with its cgroup.
                self.limits.read_last(uid);
                self.say_limits(event.at_ns);
                self.left(uid);
            }
            EvictionChange::None => {}
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

    /// From when on it is known which pod a cgroup belongs to: an agent that has just started has not read the
    /// manifests.
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
        self.publish();
        self.report_uncounted_last_line_kills();
        self.limits.finish();
        self.report_limits_at_once();
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

/// An agent that decides nothing any more, and whose programs are still there. To take them away can take long: the
/// kernel waits until every task has passed through the scheduler. No pod should have to wait for that.
#[must_use = "its programs are still there"]
pub struct Ending(pub(super) Agent);

impl Ending {
    /// Takes the programs away, and tells what is left to tell.
    pub fn finish(self) {
        self.0.finish();
    }
}
