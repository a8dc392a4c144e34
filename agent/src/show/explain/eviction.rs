//! What evictions come next, and why.

use plimsoll_core::explain::{
    EvictionExplanation, ExplainedShare, ExplainedSignal, ExplainedThreshold, LeavingPod,
    SignalChoice,
};
use plimsoll_core::model::options::OveruseRanking;
use plimsoll_core::model::signal::Unit;
use plimsoll_core::model::threshold::Operator;
use plimsoll_core::protocol::cluster_link::OverusedNamespace;

use crate::host::output::Style;
use crate::show::ranking_table::ranking_table;
use crate::show::table::{Table, Tone, amount, percent, span};

pub(super) fn eviction(explained: &EvictionExplanation, style: Style) -> String {
    let mut text = signals(explained).render(style);
    for condition in explained
        .conditions
        .iter()
        .filter(|condition| condition.status)
    {
        let ends = condition.ends_in_ns.map_or_else(String::new, |ns| {
            format!(" (held for at least {} more)", span(ns))
        });
        text += &format!("\n{}{ends}\n", style.red(condition.condition.as_str()));
    }
    text.push('\n');
    for pod in &explained.leaving {
        text += &leaving(pod);
    }
    for over in &explained.over_local_storage {
        text += &format!(
            "{} is evicted regardless of signals: {}\n",
            over.pod, over.reason
        );
    }
    if !explained.leaving.is_empty() || !explained.over_local_storage.is_empty() {
        text.push('\n');
    }
    text += &format!(
        "Ranking for {}, {}:\n\n",
        explained.signal,
        because(explained)
    );
    text += &ranking(explained).render(style);
    for not in &explained.not_ranked {
        text += &style.dim(&format!("not ranked: {} ({})", not.pod, not.why));
        text.push('\n');
    }
    for share in share_lines(explained, "") {
        text += &format!("share: {share}\n");
    }
    for overused in overuse_lines(explained, "") {
        text += &format!("overused: {overused}\n");
    }
    text += &next(explained, style);
    text += &last_line(explained);
    text + &kubelet(explained)
}

/// What namespaces use of their shares; with a pod, `namespace/name`, of its namespace alone.
pub(super) fn share_lines<'a>(
    explained: &'a EvictionExplanation,
    pod: &'a str,
) -> impl Iterator<Item = String> + 'a {
    let namespace = pod.split_once('/').map(|(namespace, _)| namespace);
    let shares = explained.namespace_shares.iter();
    let asked = shares.filter(move |it| namespace.is_none_or(|asked| asked == it.namespace));
    asked.map(
        move |ExplainedShare {
                  namespace,
                  used,
                  share,
              }| {
            let figure = |figure: u64| amount(figure.into(), explained.usage_unit);
            let what = if used > share {
                "above it: its pods go first among those of equal priority"
            } else {
                "within it"
            };
            format!(
                "{namespace} uses {} of {}, {what}",
                figure(*used),
                figure(*share)
            )
        },
    )
}

/// Namespaces that use more of the cluster than they deserve; with a pod, `namespace/name`, its namespace alone.
pub(super) fn overuse_lines<'a>(
    explained: &'a EvictionExplanation,
    pod: &'a str,
) -> impl Iterator<Item = String> + 'a {
    let what = match explained.options.overuse_ranking {
        OveruseRanking::Ignore => "which changes no eviction (overuseRanking: Ignore)",
        OveruseRanking::AmongEquals => "its pods go first among those of equal priority",
        OveruseRanking::BeforePriority => "its pods go first, whatever their priority",
    };
    let namespace = pod.split_once('/').map(|(namespace, _)| namespace);
    let listed = explained.overuse.iter();
    let listed = listed.flat_map(|list| list.namespaces.iter().map(|it| (list.valid_for_ns, it)));
    let asked = listed.filter(move |(_, it)| namespace.is_none_or(|asked| asked == it.namespace));
    asked.map(move |(valid_for_ns, OverusedNamespace { namespace, excess })| {
        format!(
            "{namespace} uses {}.{} % of the cluster more than it deserves, {what}; by the arbitrator, for another {}",
            excess / 10,
            excess % 10,
            span(valid_for_ns)
        )
    })
}

fn last_line(explained: &EvictionExplanation) -> String {
    /// Those that are named.
    const NAMED: usize = 5;
    let Some(line) = &explained.last_line else {
        return String::new();
    };
    let mut named = line.order[..line.order.len().min(NAMED)].join(", ");
    if line.order.is_empty() {
        named.push_str("no pod");
    } else if line.order.len() > NAMED {
        named += &format!(" and {} more", line.order.len() - NAMED);
    }
    let bytes = |bytes: u64| amount(bytes.into(), Unit::Bytes);
    format!(
        "Last line in the kernel: kills processes of {named} when they allocate while less than {} is available and plimsoll has not answered within {}, \
         or less than {} is available; valid for {} after plimsoll's last sign of life\n",
        bytes(line.line_bytes),
        span(line.acknowledge_within_ns),
        bytes(line.critical_bytes),
        span(line.expires_after_ns),
    )
}

pub(super) fn because(explained: &EvictionExplanation) -> &'static str {
    match explained.signal_because {
        SignalChoice::Asked => "as requested",
        SignalChoice::Foreseen => "because memory is expected to run out soon",
        SignalChoice::Met => "whose threshold is met",
        SignalChoice::Grace => "whose soft threshold is met and in its grace period",
        SignalChoice::Nearest => "the nearest to its threshold",
        SignalChoice::Default => "because no signal with a threshold has been observed",
    }
}

fn signals(explained: &EvictionExplanation) -> Table {
    let mut table = Table::new(
        &["SIGNAL", "SHOWS", "OF", "THRESHOLD", "HEADROOM", "STATE"],
        &[1, 2],
    );
    for signal in &explained.signals {
        let unknown = || "?".to_owned();
        let shown = |figure: Option<u64>| {
            figure.map_or_else(unknown, |figure| amount(figure.into(), signal.unit))
        };
        let capacity = match signal.unit {
            Unit::Share => String::new(),
            _ => shown(signal.capacity),
        };
        let mut head = [signal.signal.to_string(), shown(signal.observed), capacity];
        if signal.thresholds.is_empty() {
            let [name, shows, of] = head;
            let none = vec![name, shows, of, "none".into(), String::new(), String::new()];
            table.row(Tone::Faint, none);
            continue;
        }
        let mut says_never = false;
        for threshold in &signal.thresholds {
            // containerfs has one that is never met for each of nodefs and imagefs: one line is enough.
            if threshold.operator == Operator::Never && std::mem::replace(&mut says_never, true) {
                continue;
            }
            let [name, shows, of] = std::mem::take(&mut head);
            let cells = vec![
                name,
                shows,
                of,
                value(signal, threshold),
                headroom(signal, threshold),
                state(signal, threshold),
            ];
            let tone = match threshold.met_since_ns {
                Some(_) => Tone::Marked,
                None => Tone::Plain,
            };
            table.row(tone, cells);
        }
    }
    table
}

fn value(signal: &ExplainedSignal, threshold: &ExplainedThreshold) -> String {
    let sign = match threshold.operator {
        Operator::LessThan => "<",
        Operator::GreaterThan => ">",
        Operator::Never => return "never met".to_owned(),
    };
    let kind = if threshold.hard {
        "hard".to_owned()
    } else {
        format!("soft, {}", span(threshold.grace_ns))
    };
    let value = threshold
        .value
        .map_or_else(|| "?".to_owned(), |value| amount(value.into(), signal.unit));
    format!("{sign} {value} {kind}")
}

fn headroom(signal: &ExplainedSignal, threshold: &ExplainedThreshold) -> String {
    match (threshold.headroom, threshold.headroom_share) {
        _ if threshold.operator == Operator::Never => String::new(),
        (Some(headroom), _) if signal.unit == Unit::Share => percent(headroom.into()),
        (Some(headroom), Some(share)) => {
            let headroom = amount(headroom.into(), signal.unit);
            format!("{headroom} ({})", percent(share.into()))
        }
        _ => "?".to_owned(),
    }
}

fn state(signal: &ExplainedSignal, threshold: &ExplainedThreshold) -> String {
    if signal.observed.is_none() {
        return "not observed".to_owned();
    }
    let Some(left_ns) = threshold.grace_left_ns else {
        return String::new();
    };
    let grace = if left_ns > 0 {
        format!("met, {} of grace left", span(left_ns))
    } else {
        "met: evicts".to_owned()
    };
    match threshold.min_reclaim {
        Some(more) if more > 0 => {
            let more = amount(more.into(), signal.unit);
            format!("{grace}, ends when {more} more is available")
        }
        _ => grace,
    }
}

fn leaving(pod: &LeavingPod) -> String {
    let why = match (pod.evicted, pod.ended_by_kubelet) {
        (true, _) => "evicted",
        (false, true) => "by its kubelet",
        (false, false) => "manifest removed",
    };
    let phase = match (pod.empty, pod.kill_in_ns) {
        (false, None) if pod.ended_by_kubelet => {
            "a threshold that is met waits for it for 2 s at most, of a disk for 30 s".to_owned()
        }
        (true, _) => "all processes have exited; waiting for its memory to be freed".to_owned(),
        (false, Some(ns)) => format!("killed in {} if processes are left", span(ns)),
        (false, None) => "killed".to_owned(),
    };
    format!("{} is leaving ({why}): {phase}\n", pod.pod)
}

fn ranking(explained: &EvictionExplanation) -> Table {
    let ranked_pods = explained.ranking.pods.iter();
    ranking_table(
        ranked_pods.map(|ranked| (ranked, String::new())),
        |figure| amount(figure, explained.usage_unit),
        false,
    )
}

fn next(explained: &EvictionExplanation, style: Style) -> String {
    let Some(next) = explained.ranking.next() else {
        let why = if explained.ranking.pods.is_empty() {
            "no pod has processes"
        } else {
            "all pods are exempt"
        };
        return format!("\nNo pod can be evicted: {why}.\n");
    };
    let mut text = match &explained.victims[..] {
        [only] if *only == next.pod => format!("\nNext to be evicted: {}", style.bold(only)),
        several => format!(
            "\nTo be evicted together, to reach the target: {}",
            style.bold(&several.join(", "))
        ),
    };
    let following = explained
        .ranking
        .pods
        .iter()
        .find(|ranked| ranked.rank == next.rank + 1);
    if let (Some(following), Some(by)) = (following, next.ahead_of_next_by)
        && explained.victims.len() == 1
    {
        text += &format!(", ahead of {} by {by}", following.pod);
    }
    text + "\n"
}

pub(super) fn kubelet(explained: &EvictionExplanation) -> String {
    let kubelet = &explained.kubelet;
    if kubelet.differences.is_empty() {
        return "The kubelet would choose the same.\n".to_owned();
    }
    let mut text = String::new();
    for difference in &kubelet.differences {
        text += &format!(
            "The kubelet {}; plimsoll {} ({})\n",
            difference.kubelet, difference.plimsoll, difference.because
        );
    }
    text
}
