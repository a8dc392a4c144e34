//! What the agent measures and counts, as Prometheus reads it.
//!
//! **Problem.** The loop knows everything and has time for no client; a page of metrics is text that must be right to
//! the letter. **Approach.** A page is made on the listener's thread from one [`Snapshot`], from procfs, and from the
//! kernel's own counts of the BPF programs; the crate `prometheus-client` writes it. A loop that does not answer leaves
//! a page with what is known without it, and `plimsoll_loop_answering 0`. **Bounds.** All labels but those of pods are
//! from fixed tables; pods have series only if asked for ([`Readings::pods`]), and at most [`POD_SERIES_MAX`] of them.
//!
//! All series: docs/reference/metrics.md.

mod page;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_core::explain::headroom;
use plimsoll_core::model::signal::{NodeCondition, Signal, Unit};
use plimsoll_core::model::state::{NodeState, PodState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use crate::host::panics;
use crate::kernel::AccountReport;
use crate::kernel::stats::RunCounts;
use crate::record::snapshot::Snapshot;
use crate::record::tally::{NriTally, PlacementTally, ReportCounts, Tally};
use crate::serve::listener::ClientFigures;
use page::{Page, Value};

pub use text::Form;

/// Pods that have series of their own, at most; those with the smallest UIDs.
pub const POD_SERIES_MAX: usize = 1024;

/// Decisions that have a series before the first of them is taken, so that the first is seen as an increase.
const ALWAYS: [(&str, &str); 10] = [
    ("end", ""),
    ("finished", "freed"),
    ("finished", "lingering"),
    ("finished", "stuck"),
    ("kill", "grace_over"),
    ("kill", "headroom_halved"),
    ("kill", "terminate_failed"),
    ("kill", "first_processes_ended"),
    ("no_victim", "all_exempt"),
    ("no_victim", "no_pods"),
];

/// What the process itself has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessFigures {
    /// CPU time of all its threads.
    pub cpu: Duration,
    /// Resident memory.
    pub resident_bytes: u64,
    /// When it began, since 1970.
    pub started: Duration,
}

/// All that one page is made of.
#[derive(Clone, Debug)]
pub struct Readings {
    /// What the loop knows; `None` if it did not answer.
    pub snapshot: Option<Arc<Snapshot>>,
    /// What the BPF programs have run, as far as the kernel counts.
    pub programs: Vec<RunCounts>,
    /// The process.
    pub process: ProcessFigures,
    /// The listener's clients.
    pub clients: ClientFigures,
    /// Whether pods have series of their own.
    pub pods: bool,
}

impl Readings {
    /// The page.
    ///
    /// # Errors
    /// None: text can always be written to memory.
    pub fn page(self, form: Form) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(form.of(text))
    }

    fn agent(&self, page: &mut Page<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let help = "Always 1; the version is a label.";
        page.gauge(
            "plimsoll_build_info",
            help,
            "",
            [(version, Value::Count(1))],
        )?;
        let answers = Value::Count(self.snapshot.is_some().into());
        let help = "Whether the agent's loop answered this scrape; if not, only metrics that do not need it are present.";
        page.gauge("plimsoll_loop_answering", help, "", [([], answers)])?;
        let cpu = Value::Float(self.process.cpu.as_secs_f64());
        let help = "CPU time of all threads of the agent.";
        page.counter("process_cpu", help, "seconds", [([], cpu)])?;
        let resident = Value::Count(self.process.resident_bytes);
        let help = "Resident memory of the agent.";
        page.gauge("process_resident_memory", help, "bytes", [([], resident)])?;
        let started = Value::Float(self.process.started.as_secs_f64());
        let help = "Start time of the agent, since 1970.";
        page.gauge("process_start_time", help, "seconds", [([], started)])?;
        let panics = Value::Count(panics::caught());
        let help = "Requests, files and slices of work that a mistake in plimsoll has ended; the log of the agent has each.";
        page.counter("plimsoll_panics", help, "", [([], panics)])?;
        let clients = [
            ("answered", self.clients.answered),
            ("sent_away", self.clients.sent_away),
            ("lost", self.clients.lost),
        ];
        page.counter(
            "plimsoll_http_connections",
            "Clients of this listener: answered, rejected because there were too many, or dropped because they were slow or invalid.",
            "",
            clients.map(|(outcome, count)| ([("outcome", outcome)], Value::Count(count))),
        )?;
        page.counter(
            "plimsoll_bpf_program_runs",
            "Runs of each BPF program while the kernel counted them (kernel.bpf_stats_enabled).",
            "",
            self.programs
                .iter()
                .map(|it| ([("program", it.program)], Value::Count(it.count))),
        )?;
        page.counter(
            "plimsoll_bpf_program_run",
            "Run time of each BPF program while the kernel measured it (kernel.bpf_stats_enabled).",
            "seconds",
            self.programs.iter().map(|it| {
                let seconds = Value::Float(it.time.as_secs_f64());
                ([("program", it.program)], seconds)
            }),
        )?;
        page.counter(
            "plimsoll_bpf_program_missed_runs",
            "Runs of each BPF program that the kernel left out, because a task lost the CPU while it was in the program.",
            "",
            self.programs.iter().filter_map(|it| {
                let missed = Value::Count(it.missed?);
                Some(([("program", it.program)], missed))
            }),
        )
    }
}

impl Collector for Readings {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page::new(encoder);
        self.agent(&mut page)?;
        let Some(snapshot) = &self.snapshot else {
            return Ok(());
        };
        counted(snapshot, &mut page)?;
        if let Some(records) = &snapshot.records {
            kernel_records(records, &mut page)?;
        }
        node(snapshot, &mut page)?;
        if self.pods {
            pods(&snapshot.state, &mut page)?;
        }
        Ok(())
    }
}

/// What the loop has counted.
fn counted(snapshot: &Snapshot, page: &mut Page<'_>) -> fmt::Result {
    let tally = &snapshot.tally;
    decisions(snapshot, page)?;
    kills(tally, page)?;
    latencies(tally, page)?;
    left_out(tally, page)?;
    cgroup_kills(tally, page)?;
    admissions(snapshot, page)?;
    sources(tally, page)?;
    cluster(tally.reports, page)?;
    placement(tally.placement, page)?;
    nri(tally.nri, page)?;
    page.counter(
        "plimsoll_journal_steps_lost",
        "Steps that are missing from the journal; absent without a journal.",
        "",
        tally
            .journal_steps_lost
            .map(|lost| ([], Value::Count(lost))),
    )
}

/// Decisions, and those that have not been taken yet.
fn decisions(snapshot: &Snapshot, page: &mut Page<'_>) -> fmt::Result {
    let mut decisions: BTreeMap<(&str, &str), u64> =
        ALWAYS.into_iter().map(|labels| (labels, 0)).collect();
    for threshold in &snapshot.config.thresholds {
        decisions.insert(("evict", threshold.signal.row().name), 0);
    }
    decisions.extend(
        snapshot
            .tally
            .decisions
            .iter()
            .map(|(labels, count)| (*labels, *count)),
    );
    page.counter(
        "plimsoll_decisions",
        "Decisions taken and carried out, by name and reason.",
        "",
        decisions.into_iter().map(|((decision, reason), count)| {
            let labels = [("decision", decision), ("reason", reason)];
            (labels, Value::Count(count))
        }),
    )
}

/// Processes that the kernel has killed.
fn kills(tally: &Tally, page: &mut Page<'_>) -> fmt::Result {
    let kills = [
        ("pod", tally.oom_kills.of_pods),
        ("elsewhere", tally.oom_kills.elsewhere),
        ("unknown", tally.oom_kills.unknown),
    ];
    page.counter(
        "plimsoll_kernel_oom_kills",
        "Processes killed by the kernel's OOM killer: in pods, elsewhere, or in a burst too fast to attribute each.",
        "",
        kills.map(|(victim, count)| ([("victim", victim)], Value::Count(count))),
    )?;
    page.counter(
        "plimsoll_last_line_kills",
        "Processes that the last line in the kernel killed.",
        "",
        [([], Value::Count(tally.last_line_kills))],
    )
}

/// How long reactions, evictions and turns of the loop took.
fn latencies(tally: &Tally, page: &mut Page<'_>) -> fmt::Result {
    let reactions = [
        ("charge_threshold", &tally.reactions.charge_threshold),
        ("direct_reclaim", &tally.reactions.direct_reclaim),
        ("kswapd_wake", &tally.reactions.kswapd_wake),
    ];
    page.histogram(
        "plimsoll_reaction",
        "Time from the kernel's time stamp of an event to the engine's decision, whatever it is.",
        reactions.map(|(cause, latencies)| ([("cause", cause)], latencies)),
    )?;
    page.gauge(
        "plimsoll_longest_reaction",
        "The longest time from the kernel's time stamp of an event to the engine's decision.",
        "seconds",
        reactions.map(|(cause, latencies)| ([("cause", cause)], seconds(latencies.max_ns))),
    )?;
    page.histogram(
        "plimsoll_eviction_decision",
        "Finished evictions: time from the crossing to the choice of the pod. Evictions without a crossing are not included.",
        [([], &tally.evictions.decided)],
    )?;
    page.histogram(
        "plimsoll_eviction_gone",
        "Finished evictions: time from the crossing to the end of the pod's last process.",
        [([], &tally.evictions.gone)],
    )?;
    page.histogram(
        "plimsoll_eviction_freed",
        "Finished evictions: time from the crossing until the pod's memory was freed, or the wait for it ended.",
        [([], &tally.evictions.freed)],
    )?;
    page.histogram(
        "plimsoll_loop_turn",
        "Turns of the loop: time in which nothing else could be reacted to.",
        [([], &tally.turns)],
    )?;
    page.gauge(
        "plimsoll_loop_longest_turn",
        "The longest turn of the loop.",
        "seconds",
        [([], seconds(tally.turns.max_ns))],
    )
}

/// What found no room in a queue, or was not said.
fn left_out(tally: &Tally, page: &mut Page<'_>) -> fmt::Result {
    page.counter(
        "plimsoll_output_lines_lost",
        "Lines of standard output dropped because the queue was full.",
        "",
        [([], Value::Count(tally.lines_lost))],
    )?;
    page.counter(
        "plimsoll_cgroup_work_refused",
        "Kills, removals and reads of memory.stat in cgroups of pods that found no room in the queue of their thread.",
        "",
        [([], Value::Count(tally.cgroup_work_refused))],
    )?;
    page.counter(
        "plimsoll_warnings_left_out",
        "Warnings about pods that were suppressed because one pod caused too many in a row.",
        "",
        [([], Value::Count(tally.pod_warnings_left_out))],
    )
}

/// How pods were killed, and their memory was freed.
fn cgroup_kills(tally: &Tally, page: &mut Page<'_>) -> fmt::Result {
    let (kills, sum_ns, max_ns) = tally.kill_writes;
    page.counter(
        "plimsoll_cgroup_kill_writes",
        "Writes to cgroup.kill, by the thread that waits for them.",
        "",
        [([], Value::Count(kills))],
    )?;
    page.counter(
        "plimsoll_cgroup_kill_write_time",
        "Time that these writes took: the kernel makes them wait while others make and remove cgroups.",
        "seconds",
        [([], seconds(sum_ns))],
    )?;
    page.gauge(
        "plimsoll_cgroup_kill_longest_write",
        "The longest of these writes.",
        "seconds",
        [([], seconds(max_ns))],
    )?;
    page.counter(
        "plimsoll_memory_releases_refused",
        "Killed pods whose memory was left to their processes, because the agent was freeing that of others.",
        "",
        [([], Value::Count(tally.releases_refused))],
    )
}

/// Which pods may run.
fn admissions(snapshot: &Snapshot, page: &mut Page<'_>) -> fmt::Result {
    let [admitted, refused] = snapshot.tally.admissions;
    page.counter(
        "plimsoll_admissions",
        "Pods of manifests, by what LimitRanges, quotas and priority classes made of them; each refused pod once, however often it asks.",
        "",
        [("admitted", admitted), ("refused", refused)]
            .map(|(verdict, count)| ([("verdict", verdict)], Value::Count(count))),
    )?;
    page.gauge(
        "plimsoll_pods_refused",
        "Pods of manifests that may not run at the moment.",
        "",
        [([], Value::Count(snapshot.refused.len() as u64))],
    )
}

/// Sources that are gone, and what the others do not see.
fn sources(tally: &Tally, page: &mut Page<'_>) -> fmt::Result {
    page.counter(
        "plimsoll_sources_lost",
        "Optional sources that failed while the agent ran.",
        "",
        [([], Value::Count(tally.sources_lost))],
    )?;
    page.gauge(
        "plimsoll_cgroups_unwatched",
        "Directories of cgroups that inotify does not watch; absent where BPF programs report cgroups.",
        "",
        tally
            .cgroups_unwatched
            .map(|count| ([], Value::Count(count))),
    )
}

/// What the API server is to be told.
fn cluster(reports: Option<ReportCounts>, page: &mut Page<'_>) -> fmt::Result {
    let reports =
        |count: fn(ReportCounts) -> u64| reports.map(|counts| ([], Value::Count(count(counts))));
    page.gauge(
        "plimsoll_evictions_unsettled",
        "Evictions that the API server does not show yet; only beside a kubelet.",
        "",
        reports(|counts| counts.unsettled),
    )?;
    page.counter(
        "plimsoll_eviction_reports_dropped",
        "Evictions that will never be reported to the API server, because too many waited; only beside a kubelet.",
        "",
        reports(|counts| counts.unreported),
    )?;
    page.counter(
        "plimsoll_cluster_frames_refused",
        "Messages of plimsoll-cluster that were malformed, of an unknown type, or about what is not known; only beside a kubelet.",
        "",
        reports(|counts| counts.refused_frames),
    )?;
    page.counter(
        "plimsoll_cluster_clients_refused",
        "Clients of the socket for plimsoll-cluster that were of another user, or one too many; only beside a kubelet.",
        "",
        reports(|counts| counts.refused_clients),
    )?;
    page.gauge(
        "plimsoll_cluster_connected",
        "1 if plimsoll-cluster is connected; only beside a kubelet.",
        "",
        reports(|counts| u64::from(counts.is_connected)),
    )
}

fn seconds(ns: u64) -> Value<'static> {
    Value::Float(Duration::from_nanos(ns).as_secs_f64())
}

/// What came of placement.
fn placement(tally: Option<PlacementTally>, page: &mut Page<'_>) -> fmt::Result {
    page.gauge(
        "plimsoll_placement_active",
        "1 if the agent writes the cpusets of containers, 0 if another program manages them; absent without a placement policy.",
        "",
        tally.map(|it| ([], Value::Count(u64::from(it.is_active)))),
    )?;
    page.counter(
        "plimsoll_placement_writes",
        "Files of cgroups that were written to place containers.",
        "",
        tally.map(|it| ([], Value::Count(it.writes))),
    )?;
    page.gauge(
        "plimsoll_placement_failed",
        "Containers that were not where they belong when placement last looked.",
        "",
        tally.map(|it| ([], Value::Count(it.failed))),
    )?;
    page.gauge(
        "plimsoll_placement_cpus_outside",
        "CPUs that are online and on which no pod can run: the cpuset of the cgroup of all pods does not have them. Nothing is placed on them.",
        "",
        tally.map(|it| ([], Value::Count(it.cpus_outside))),
    )?;
    page.counter(
        "plimsoll_placement_reports_lost",
        "Reports of the placement thread that the loop did not take in time.",
        "",
        tally.map(|it| ([], Value::Count(it.reports_lost))),
    )
}

/// What the container runtime was answered when it made containers.
fn nri(tally: Option<NriTally>, page: &mut Page<'_>) -> fmt::Result {
    page.gauge(
        "plimsoll_nri_connected",
        "1 while the runtime is connected by NRI; absent without NRI.",
        "",
        tally.map(|nri| ([], Value::Count(u64::from(nri.is_connected)))),
    )?;
    let answers = tally.map(|nri| {
        [
            ("unchanged", nri.unchanged),
            ("changed", nri.changed),
            ("refused", nri.refused),
            ("unheard", nri.dropped),
        ]
    });
    page.counter(
        "plimsoll_nri_containers",
        "Containers that the runtime made or refused, by the answer; `unheard`: the agent did not learn the answer.",
        "",
        answers
            .into_iter()
            .flatten()
            .map(|(answer, count)| ([("answer", answer)], Value::Count(count))),
    )
}

/// Where the kernel's records went.
fn kernel_records(records: &AccountReport, page: &mut Page<'_>) -> fmt::Result {
    type Part = fn(&crate::kernel::KindCount) -> u64;
    let parts: [(&str, &str, Part); 4] = [
        (
            "plimsoll_records_produced",
            "Records that the BPF programs tried to send.",
            |count| count.produced,
        ),
        (
            "plimsoll_records_consumed",
            "Records that the agent has read.",
            |count| count.consumed,
        ),
        (
            "plimsoll_records_dropped",
            "Records dropped because their ring buffer was full.",
            |count| count.dropped,
        ),
        (
            "plimsoll_records_folded",
            "Events counted only in their cgroup's totals, without a record each.",
            |count| count.folded,
        ),
    ];
    for (name, help, part) in parts {
        let rows = records.kinds.iter().map(|it| {
            let labels = [("kind", it.kind.as_str())];
            (labels, Value::Count(part(&it.count)))
        });
        page.counter(name, help, "", rows)?;
    }
    page.counter(
        "plimsoll_records_untracked",
        "Events dropped because their map was full; later totals lack them.",
        "",
        [([], Value::Count(records.untracked))],
    )?;
    page.counter(
        "plimsoll_records_unreadable",
        "Records that the agent could not read.",
        "",
        [([], Value::Count(records.unreadable))],
    )
}

/// Signals, thresholds, conditions, and how many pods there are.
fn node(snapshot: &Snapshot, page: &mut Page<'_>) -> fmt::Result {
    let Snapshot { config, state, .. } = snapshot;
    // Copies of one threshold, for the first pass and for later ones, are one series: the nearer, and met if either is.
    let mut headrooms: BTreeMap<(Signal, bool), i128> = BTreeMap::new();
    let mut met: BTreeMap<(Signal, bool), bool> = BTreeMap::new();
    for (threshold, it) in config.thresholds.iter().zip(&state.thresholds) {
        let key = (threshold.signal, threshold.is_hard());
        *met.entry(key).or_default() |= it.met;
        if let Some(observation) = state.observations.get(threshold.signal) {
            let left = headroom(threshold, observation);
            let known = headrooms.entry(key).or_insert(left);
            *known = left.min(*known);
        }
    }
    for unit in [Unit::Bytes, Unit::Inodes, Unit::Processes, Unit::Share] {
        let suffix = suffix(unit);
        let seen = || {
            let all = state.observations.iter();
            all.filter(|(signal, _)| signal.row().unit == unit)
        };
        page.gauge(
            "plimsoll_signal_observed",
            "Last value of each signal: the available amount, or the share of time in which tasks waited.",
            suffix,
            seen().map(|(signal, it)| ([("signal", signal.row().name)], level(unit, it.value.into()))),
        )?;
        if unit != Unit::Share {
            page.gauge(
                "plimsoll_signal_capacity",
                "Total of the resource that a signal observes.",
                suffix,
                seen().map(|(signal, it)| {
                    (
                        [("signal", signal.row().name)],
                        level(unit, it.capacity.into()),
                    )
                }),
            )?;
        }
        let left = headrooms
            .iter()
            .filter(|((signal, _), _)| signal.row().unit == unit);
        page.gauge(
            "plimsoll_threshold_headroom",
            "Distance to the threshold; negative beyond it.",
            suffix,
            left.map(|(key, left)| (threshold_labels(*key), level(unit, *left))),
        )?;
    }
    page.gauge(
        "plimsoll_threshold_met",
        "Whether a threshold has been met for its grace period.",
        "",
        met.iter()
            .map(|(key, met)| (threshold_labels(*key), Value::Count((*met).into()))),
    )?;
    page.gauge(
        "plimsoll_node_condition",
        "Whether a node condition is true.",
        "",
        NodeCondition::ALL.map(|condition| {
            let status = state.condition(condition).status;
            (
                [("condition", condition.as_str())],
                Value::Count(status.into()),
            )
        }),
    )?;
    let count = |is: fn(&PodState) -> bool| {
        Value::Count(state.pods.values().filter(|pod| is(pod)).count() as u64)
    };
    let states = [
        ("leaving", count(|pod| pod.leaving.is_some())),
        ("running", count(|pod| pod.leaving.is_none() && pod.running)),
        (
            "waiting",
            count(|pod| pod.leaving.is_none() && !pod.running),
        ),
    ];
    page.gauge(
        "plimsoll_pods",
        "Known pods: terminating, with processes, or without.",
        "",
        states.map(|(state, count)| ([("state", state)], count)),
    )
}

fn threshold_labels((signal, hard): (Signal, bool)) -> [(&'static str, &'static str); 2] {
    let kind = if hard { "hard" } else { "soft" };
    [("signal", signal.row().name), ("threshold", kind)]
}

/// How a unit ends a name.
const fn suffix(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "bytes",
        Unit::Inodes => "inodes",
        Unit::Processes => "processes",
        Unit::Share => "ratio",
        Unit::BytesPerSecond => "bytes_per_second",
        Unit::MilliCpus => "millicpus",
    }
}

/// An amount in that unit.
fn level(unit: Unit, amount: i128) -> Value<'static> {
    if unit == Unit::Share {
        // Hundredths of a percent.
        Value::Float(amount as f64 / 10_000.0)
    } else {
        let clamped = amount.clamp(i64::MIN.into(), i64::MAX.into());
        Value::Level(i64::try_from(clamped).unwrap_or(i64::MAX))
    }
}

/// Series of pods.
fn pods(state: &NodeState, page: &mut Page<'_>) -> fmt::Result {
    let shown = || state.pods.iter().take(POD_SERIES_MAX);
    let rows = |figure: fn(&PodState) -> Option<u64>| {
        shown().filter_map(move |(uid, pod)| {
            let (namespace, name) = pod.name.split_once('/').unwrap_or(("", &pod.name));
            let labels = [
                ("namespace", namespace),
                ("pod", name),
                ("uid", uid.as_str()),
            ];
            Some((labels, Value::Count(figure(pod)?)))
        })
    };
    page.gauge(
        "plimsoll_pod_memory_usage",
        "Memory charged to a pod when it was last read.",
        "bytes",
        rows(|pod| Some(pod.memory?.usage_bytes)),
    )?;
    page.gauge(
        "plimsoll_pod_memory_working_set",
        "Working set of a pod: its charged memory without inactive file pages and huge pages.",
        "bytes",
        rows(|pod| Some(pod.memory?.working_set_bytes)),
    )?;
    page.gauge(
        "plimsoll_pod_running",
        "Whether a pod has processes.",
        "",
        rows(|pod| Some(pod.running.into())),
    )?;
    let left_out = state.pods.len().saturating_sub(POD_SERIES_MAX) as u64;
    page.gauge(
        "plimsoll_pods_without_series",
        "Pods without series, because there are too many.",
        "",
        [([], Value::Count(left_out))],
    )
}

#[cfg(test)]
mod tests;
