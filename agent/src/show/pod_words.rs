//! The node's pods in the words of the screen, of the table and of the page for browsers: who would be evicted first,
//! why, and what limits have cost.

use plimsoll_core::explain::{EvictionStatus, ExplainedSignal};
use plimsoll_core::model::signal::Unit;
use plimsoll_core::model::threshold::Operator;

use crate::record::limit_counts::LimitCounts;
use crate::serve::overview::{Overview, PodOverview, PodStatus};
use crate::show::table::{amount, bytes, span};

/// The signal, and how it stands to the threshold that is nearest.
pub(crate) fn signal_text(signal: &ExplainedSignal) -> Option<String> {
    let observed = signal.observed?;
    let threshold = signal
        .thresholds
        .iter()
        .filter(|threshold| threshold.operator != Operator::Never)
        .min_by_key(|threshold| threshold.headroom_share)?;
    let sign = if threshold.operator == Operator::GreaterThan {
        ">"
    } else {
        "<"
    };
    let value = threshold.value?;
    let state = match (threshold.met_since_ns, threshold.grace_left_ns) {
        (None, _) => String::new(),
        (Some(_), Some(1..)) => " MET, grace runs".to_owned(),
        (Some(_), _) => " MET".to_owned(),
    };
    Some(format!(
        "{} {} ({sign}{}){state}",
        signal.signal,
        amount(observed.into(), signal.unit),
        amount(value.into(), signal.unit)
    ))
}

pub(crate) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

pub(crate) fn size(it: Option<u64>) -> String {
    or_dash(it.map(|value| bytes(value.into())))
}

pub(crate) fn share(value: Option<f64>) -> String {
    or_dash(value.map(|it| format!("{it:.1}")))
}

/// Its rank, or what else becomes of it.
pub(crate) fn fate(pod: &PodOverview) -> String {
    match (pod.status, pod.ranked) {
        (PodStatus::Evicted, _) => "OUT".to_owned(),
        (PodStatus::Ending, _) => "end".to_owned(),
        (PodStatus::Stuck, _) => "STUCK".to_owned(),
        (_, None) => "off".to_owned(),
        (_, Some(ranked)) => match ranked.standing {
            EvictionStatus::Next => format!(">{}", ranked.rank),
            EvictionStatus::Waits => ranked.rank.to_string(),
            EvictionStatus::Skipped => "-".to_owned(),
        },
    }
}

/// Those that can be evicted, the first first.
pub(crate) fn candidates(overview: &Overview) -> Vec<&PodOverview> {
    let can_go = |pod: &&PodOverview| {
        pod.status == PodStatus::Running
            && pod
                .ranked
                .is_some_and(|ranked| ranked.standing != EvictionStatus::Skipped)
    };
    let mut found: Vec<&PodOverview> = overview.pods.iter().filter(can_go).collect();
    found.sort_by_key(|pod| pod.ranked.map_or(usize::MAX, |ranked| ranked.rank));
    found
}

/// Why a pod stands where it stands.
pub(crate) fn reason(overview: &Overview, pod: &PodOverview) -> String {
    let Some(ranked) = pod.ranked else {
        return "not ranked".to_owned();
    };
    if let Some(why) = ranked.exempt {
        return format!("never evicted: {why}");
    }
    let figure = |of: u64| amount(of.into(), overview.usage_unit);
    let usage = match (ranked.usage, ranked.usage_over_request) {
        (Some(usage), Some(over)) => {
            let word = if over < 0 { "below" } else { "above" };
            let over = figure(over.unsigned_abs());
            format!("{} is {over} {word} its request", figure(usage))
        }
        _ => "no statistics".to_owned(),
    };
    let priority = if pod.priority == 0 {
        String::new()
    } else {
        format!(", priority {}", pod.priority)
    };
    let ahead = ranked
        .ahead_of_next_by
        .map_or_else(String::new, |by| format!("; ahead by {by}"));
    format!("{usage}{priority}{ahead}")
}

/// What is known of a pod; a line without a name is a heading.
pub(crate) fn facts(overview: &Overview, pod: &PodOverview) -> Vec<(&'static str, String)> {
    let milli = |it: Option<u64>| or_dash(it.map(|value| amount(value.into(), Unit::MilliCpus)));
    let mut facts = vec![
        (
            "",
            format!("{}  {}, priority {}", pod.pod, pod.qos_class, pod.priority),
        ),
        (
            "state",
            match pod.status {
                PodStatus::Running => "running",
                PodStatus::NotRunning => "no processes",
                PodStatus::Evicted => "evicted, terminating",
                PodStatus::Ending => "manifest removed, terminating",
                PodStatus::Stuck => "killed, and still there",
            }
            .to_owned(),
        ),
        (
            "memory",
            format!(
                "{} charged, {} working set, {} swap; request {}, limit {}",
                size(pod.memory.usage_bytes),
                size(pod.memory.working_set_bytes),
                size(pod.memory.swap_bytes),
                bytes(pod.memory.request_bytes.into()),
                size(pod.memory.limit_bytes)
            ),
        ),
        (
            "CPUs",
            format!(
                "{} in use; request {}, limit {}; exclusive: {}",
                milli(pod.cpu.used_milli),
                milli(Some(pod.cpu.request_milli)),
                milli(pod.cpu.limit_milli),
                or_dash(Some(pod.cpu.exclusive.to_string()).filter(|it| !it.is_empty()))
            ),
        ),
        (
            "waits (PSI)",
            format!(
                "cpu {} %, memory {} %, io {} % of the last 10 s",
                share(pod.pressure.cpu),
                share(pod.pressure.memory),
                share(pod.pressure.io)
            ),
        ),
        (
            "eviction",
            match pod.ranked {
                Some(ranked) => format!("rank {}: {}", ranked.rank, reason(overview, pod)),
                None => reason(overview, pod),
            },
        ),
    ];
    if let Some(limits) = &pod.limits {
        let all = &limits.all;
        facts.push(("", "Limits, since the agent first saw the pod".to_owned()));
        facts.extend(limit_facts(all));
    }
    facts
}

/// What limits have cost a pod, in words.
fn limit_facts(all: &LimitCounts) -> [(&'static str, String); 6] {
    [
        (
            "CPU limit",
            format!(
                "throttled {} times, {}",
                all.throttled,
                span(all.throttled_ns)
            ),
        ),
        (
            "memory limits",
            format!(
                "high {}, max {}, out of memory {}, below low {} times",
                all.high, all.max, all.oom, all.low
            ),
        ),
        ("OOM kills", format!("{} processes", all.oom_kills)),
        ("waited for memory", span(all.stalled_ns)),
        (
            "  of it for",
            format!(
                "its limits {}, memory.high {}, the node {}",
                span(all.limit_reclaim_ns),
                span(all.high_ns),
                span(all.node_reclaim_ns)
            ),
        ),
        (
            "read back",
            format!(
                "{} reclaimed pages, {} from swap",
                all.refaulted_pages, all.swapped_in_pages
            ),
        ),
    ]
}
