//! The lines of output and the journal that say what limits have cost the pods.

use anyhow::Result;

use super::super::telling::RING_RECORDS_MAX;
use super::super::{Agent, now_ns};
use crate::record::journal::Journal;
use crate::record::limit_counts::LimitCounts;
use crate::record::lines::{KernelOomKill, Line, MemoryLimit, MemoryStall, Throttled};

impl Agent {
    /// What the pods' limits have cost them since the last time. Between any few cgroups urgent work comes first.
    ///
    /// # Errors
    /// When the node's memory cannot be read.
    pub(in crate::daemon) fn report_limits(&mut self) -> Result<()> {
        self.report_limits_between(Self::interrupt)
    }

    /// The same without a pause: for the first time, when not all that the agent has been told of pods is in force, and
    /// for the last.
    pub(in crate::daemon) fn report_limits_at_once(&mut self) {
        // Only what comes between fails.
        self.report_limits_between(|_| Ok(())).ok();
    }

    fn report_limits_between(&mut self, between: impl Fn(&mut Self) -> Result<()>) -> Result<()> {
        let mut failures = Vec::new();
        let at_ns = now_ns();
        let following = self.limits.begin_to_follow(&self.pods, at_ns);
        let has_followed = following.is_some();
        if let Some(mut following) = following {
            for uid in self.pods.uids() {
                self.limits
                    .follow_pod(&mut following, &self.pods, &uid, |failure| {
                        failures.push(failure);
                    });
                between(self)?;
            }
            self.limits.end_following(following);
        }
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
        let mut reading = self.limits.begin_to_read(at_ns);
        while self
            .limits
            .read_some(&mut reading, |failure| failures.push(failure))
        {
            between(self)?;
        }
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
        Ok(())
    }

    /// What no engine decides by, into the journal.
    pub(in crate::daemon) fn record_aside(&mut self, at_ns: u64) {
        if let Some(journal) = &mut self.journal {
            journal.record_aside(at_ns, self.limits.totals(), self.oom.plan());
        }
    }

    /// Says what is new of each pod.
    pub(in crate::daemon) fn say_limits(&mut self, at_ns: u64) {
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
                    ms: ms(counts.throttled_ns),
                }));
            }
        });
    }
}
