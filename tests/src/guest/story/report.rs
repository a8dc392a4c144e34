//! What came of it: the table, the verdict, the medians.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::super::agent::{EvictionFinished, Stopped};
use super::super::node::Running;
use super::super::pod::Pod;
use super::super::sampler::Seen;
use super::super::table::{aligned, bytes, duration, since, times};

/// What the figures are.
const INSTRUCTION_TIME: &str = "times             instruction time: 1 ns for each instruction that the guest executed, idle time skipped";

/// A pod that lost a process.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Victim {
    /// `namespace/name`.
    pod: String,
    /// `plimsoll` or `kernel`.
    by: &'static str,
    /// Why.
    why: String,
}

impl Victim {
    pub(super) fn evicted(finished: &EvictionFinished, why: String) -> Self {
        Self {
            pod: finished.pod.clone(),
            by: "plimsoll",
            why,
        }
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    without: bool,
    /// Times count instructions of the guest, 1 ns each.
    pub(super) instruction_time: bool,
    kernel: String,
    threshold_bytes: u64,
    total_bytes: u64,
    rate_mb_s: u64,
    pub(super) seen: Seen,
    pub(super) victims: Vec<Victim>,
    pub(super) evictions: Vec<EvictionFinished>,
    pub(super) kernel_kills_by_pod: BTreeMap<String, u64>,
    pub(super) stopped: Option<Stopped>,
    stalled_us: u64,
    /// What should not have happened; empty is success.
    pub(super) problems: Vec<String>,
}

impl Report {
    pub(super) fn new(
        without: bool,
        threshold_bytes: u64,
        total_bytes: u64,
        rate_mb_s: u64,
        seen: Seen,
        stalled_us: u64,
    ) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .to_owned();
        Self {
            without,
            instruction_time: false,
            kernel,
            threshold_bytes,
            total_bytes,
            rate_mb_s,
            seen,
            victims: Vec::new(),
            evictions: Vec::new(),
            kernel_kills_by_pod: BTreeMap::new(),
            stopped: None,
            stalled_us,
            problems: Vec::new(),
        }
    }

    /// Adds those that the kernel killed, and every bystander that is not running any more for whatever reason.
    pub(super) fn kernel_victims(
        &mut self,
        bystanders: &mut [(Pod, Running)],
        leaky: &Pod,
    ) -> std::io::Result<()> {
        for victim in &self.seen.kernel_victims {
            let cgroup = victim.cgroup.as_deref().unwrap_or_default();
            let pod = bystanders
                .iter()
                .map(|(pod, _)| pod)
                .chain([leaky])
                .find(|pod| cgroup.contains(&pod.cgroup()));
            let pod = pod.map_or_else(
                || format!("process {} ({})", victim.pid, victim.comm),
                Pod::full_name,
            );
            let after = since(Some(victim.seen_ns), self.seen.working_set_crossed_ns)
                .map(duration)
                .unwrap_or_default();
            self.victims.push(Victim {
                pod,
                by: "kernel",
                why: format!("OOM killer, {after} after the crossing"),
            });
        }
        for (pod, running) in bystanders {
            let name = pod.full_name();
            if !running.process.is_running()?
                && self.victims.iter().all(|victim| victim.pod != name)
            {
                self.victims.push(Victim {
                    pod: name,
                    by: "unknown",
                    why: "its process has ended".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Fills `problems`.
    pub(super) fn judge(&mut self, leaky: &Pod) {
        if self.without {
            if self.seen.kernel_oom_kills == 0 {
                self.problems
                    .push("the kernel killed nobody: the story could not be told".to_owned());
            }
            return;
        }
        let wrong: Vec<String> = self
            .victims
            .iter()
            .filter(|victim| victim.pod != leaky.full_name())
            .map(|victim| {
                format!(
                    "{} died, but {} was to: {} ({})",
                    victim.pod,
                    leaky.full_name(),
                    victim.why,
                    victim.by
                )
            })
            .collect();
        self.problems.extend(wrong);
        if self.seen.kernel_oom_kills > 0 {
            self.problems.push(format!(
                "the kernel's OOM killer fired {} times",
                self.seen.kernel_oom_kills
            ));
        }
        match self.evictions.first() {
            None => self.problems.push("nothing was evicted".to_owned()),
            Some(eviction) if eviction.outcome != "freed" => self.problems.push(format!(
                "the eviction ended as {}, not freed",
                eviction.outcome
            )),
            Some(_) => {}
        }
        if self.seen.recovered_ns.is_none() {
            self.problems
                .push("memory did not come back above the threshold".to_owned());
        }
        if let Some(records) = self.stopped.map(|stopped| stopped.records) {
            if records.dropped > 0 {
                self.problems
                    .push(format!("{} records were dropped", records.dropped));
            }
            if records.produced != records.consumed + records.dropped {
                self.problems.push(format!(
                    "records do not add up: produced {}, consumed {}, dropped {}",
                    records.produced, records.consumed, records.dropped
                ));
            }
        }
    }

    /// Steps after the crossing, with the time of each.
    fn steps(&self) -> Vec<(&'static str, Option<i64>)> {
        if self.without {
            let crossed = self.seen.working_set_crossed_ns;
            return vec![
                (
                    "first kill by the kernel",
                    since(self.seen.kernel_oom_ns, crossed),
                ),
                ("leaky gone", since(self.seen.gone_ns, crossed)),
                (
                    "above the threshold again",
                    since(self.seen.recovered_ns, crossed),
                ),
            ];
        }
        let eviction = self.evictions.first();
        let crossed = eviction
            .and_then(|eviction| eviction.crossed_ns)
            .or(self.seen.working_set_crossed_ns);
        let of =
            |pick: fn(&EvictionFinished) -> Option<u64>| since(eviction.and_then(pick), crossed);
        vec![
            ("record received", of(|eviction| eviction.received_ns)),
            ("decision", of(|eviction| eviction.decided_ns)),
            ("SIGTERM", of(|eviction| eviction.signalled_ns)),
            ("cgroup.kill", of(|eviction| eviction.killed_ns)),
            ("last process gone", of(|eviction| eviction.gone_ns)),
            ("95 % of the bytes back", of(|eviction| eviction.freed_ns)),
            (
                "above the threshold again",
                since(self.seen.recovered_ns, crossed),
            ),
        ]
    }

    /// The end of a story that is watched.
    pub(super) fn table(&self) -> String {
        let mut rows = vec![vec!["step".to_owned(), "after the crossing".to_owned()]];
        for (step, after) in self.steps() {
            let missing = if step == "cgroup.kill" {
                "not needed"
            } else {
                "-"
            };
            rows.push(vec![
                step.to_owned(),
                after.map_or_else(|| missing.to_owned(), duration),
            ]);
        }
        let mut text = format!("\n{}\n", aligned(&rows));
        let mut rows = vec![["who died", "by", "why"].map(str::to_owned).to_vec()];
        for victim in &self.victims {
            rows.push(vec![
                victim.pod.clone(),
                victim.by.to_owned(),
                victim.why.clone(),
            ]);
        }
        let mut add = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        add(aligned(&rows));
        let by_pod: Vec<String> = self
            .kernel_kills_by_pod
            .iter()
            .map(|(pod, kills)| format!("{pod} {kills}"))
            .collect();
        let by_pod = if by_pod.is_empty() {
            "none in any pod".to_owned()
        } else {
            by_pod.join(", ")
        };
        add(format!(
            "kernel oom_kill   {} ({by_pod})",
            self.seen.kernel_oom_kills
        ));
        if !self.without {
            let by = match self.evictions.first().map(|eviction| eviction.crossed_ns) {
                Some(Some(_)) => "the kernel's record",
                _ => "the sampler beside: no record was the cause",
            };
            add(format!("crossing timed by {by}"));
        }
        add(format!(
            "least available   {}, threshold {}",
            bytes(self.seen.available_bytes_min),
            bytes(self.threshold_bytes)
        ));
        add(format!(
            "memory stall      {} in which every task waited for memory",
            duration(i64::try_from(self.stalled_us * 1000).unwrap_or(i64::MAX))
        ));
        if let Some(stopped) = self.stopped {
            let records = stopped.records;
            add(format!(
                "records           {} produced, {} consumed, {} lost",
                records.produced, records.consumed, records.dropped
            ));
            add(format!(
                "agent             {} ms CPU, {} resident",
                stopped.cpu_ms,
                bytes(stopped.rss_bytes)
            ));
        }
        if self.instruction_time {
            add(INSTRUCTION_TIME.to_owned());
        }
        for problem in &self.problems {
            add(format!("PROBLEM           {problem}"));
        }
        text
    }

    /// A run among many.
    pub(super) fn line(&self) -> String {
        let steps = self
            .steps()
            .into_iter()
            .fold(String::new(), |mut line, (step, after)| {
                if let Some(after) = after {
                    // Writing to a String cannot fail.
                    let _always_ok = write!(line, "{step} {}, ", duration(after));
                }
                line
            });
        let verdict = if self.problems.is_empty() {
            "ok".to_owned()
        } else {
            self.problems.join("; ")
        };
        format!("{steps}oom_kill {}: {verdict}", self.seen.kernel_oom_kills)
    }
}

/// Medians over runs, with least and greatest.
pub(super) fn medians(reports: &[Report]) -> String {
    let mut rows = vec![
        ["step", "after the crossing, median [min..max]", "runs"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let steps = reports.first().map(Report::steps).unwrap_or_default();
    for (index, (step, _)) in steps.iter().enumerate() {
        let values: Vec<i64> = reports
            .iter()
            .filter_map(|report| report.steps().get(index)?.1)
            .collect();
        rows.push(vec![
            (*step).to_owned(),
            times(values.iter().copied()),
            values.len().to_string(),
        ]);
    }
    let killed = reports
        .iter()
        .filter(|report| report.seen.kernel_oom_kills > 0)
        .count();
    let failed = reports
        .iter()
        .filter(|report| !report.problems.is_empty())
        .count();
    let stopped = |pick: fn(&Stopped) -> u64| times_of(reports, pick);
    let mut text = aligned(&rows);
    text.push_str(&format!(
        "kernel's OOM killer fired in {killed} of {} runs; {failed} runs failed\n",
        reports.len()
    ));
    if reports.iter().any(|report| report.stopped.is_some()) {
        text.push_str(&format!(
            "agent: CPU {} ms, RSS {} KiB, records dropped {} (median [min..max])\n",
            stopped(|last| last.cpu_ms),
            stopped(|last| last.rss_bytes >> 10),
            stopped(|last| last.records.dropped)
        ));
    }
    text
}

fn times_of(reports: &[Report], pick: fn(&Stopped) -> u64) -> String {
    use super::super::table::Spread;
    let values = reports
        .iter()
        .filter_map(|report| i64::try_from(pick(report.stopped.as_ref()?)).ok());
    Spread::of(values).map_or_else(
        || "-".to_owned(),
        |spread| format!("{} [{}..{}]", spread.median, spread.min, spread.max),
    )
}
