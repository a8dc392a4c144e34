//! What limits have cost pods, for people.

use plimsoll_core::explain::LimitDefaults;

use crate::host::output::Style;
use crate::serve::explained::{ExplainedMemory, PodMemoryView, PodTotals};
use crate::show::table::{Table, Tone, bytes, span};

const NOTHING: &str = "What limits have cost is unknown: no pod has been read yet, or the journal has format 1, which does not record it.";

/// What LimitRanges have set in a pod: `request memory=256Mi, limit cpu=1 of app`. Where the namespace's are known,
/// with those that say so: `limit cpu=1 (by small)`.
pub(crate) fn set(defaults: &LimitDefaults) -> String {
    let mut text = String::new();
    for (at, set) in defaults.set.iter().enumerate() {
        if at > 0 {
            text.push_str(", ");
        }
        let list = if set.is_limit { "limit" } else { "request" };
        text += &format!("{list} {}={}", set.resource, set.amount);
        match set.ranges.as_deref() {
            None => {}
            Some([]) => text.push_str(" (by no LimitRange that is there now)"),
            Some(ranges) => text += &format!(" (by {})", ranges.join(" or ")),
        }
        // Once for all that is in one container.
        let next = defaults.set.get(at + 1);
        if next.is_none_or(|next| next.container != set.container) {
            text += &format!(" of {}", set.container);
        }
    }
    text
}

/// What that means for evictions and for the kernel's OOM killer.
pub(crate) fn without(defaults: &LimitDefaults) -> String {
    let class = defaults.qos_class_without;
    let request = defaults.memory_request_bytes;
    let mut parts = vec![match defaults.memory_request_bytes_without {
        0 if request > 0 => format!(
            "{class}; request of memory 0 instead of {}, so all of its usage counts for eviction",
            bytes(request.into())
        ),
        without if without != request => format!(
            "{class}; request of memory {} instead of {}, so usage above that counts for eviction",
            bytes(without.into()),
            bytes(request.into())
        ),
        _ => format!("{class}; its eviction rank does not change"),
    }];
    for score in &defaults.scores {
        if score.adj != score.adj_without {
            let (adj, without) = (score.adj, score.adj_without);
            parts.push(format!(
                "oom_score_adj {without} instead of {adj} of {}",
                score.container
            ));
        }
    }
    parts.join("; ")
}

/// A table of throttling.
pub(crate) fn throttled(totals: Option<&[PodTotals]>, style: Style) -> String {
    let Some(totals) = totals else {
        return format!("\n{NOTHING}\n");
    };
    let heading = ["POD", "TIMES", "THROTTLED", "LATELY"];
    let mut table = Table::new(&heading, &[1, 2, 3]);
    for pod in totals {
        let all = &pod.limits.all;
        let tone = match (all.throttled, pod.limits.recent.throttled_ns) {
            (0, _) => Tone::Faint,
            (_, 0) => Tone::Plain,
            _ => Tone::Marked,
        };
        let lately = lately(pod.limits.recent.throttled_ns, pod.limits.recent_ns);
        table.row(
            tone,
            vec![
                pod.pod.clone(),
                all.throttled.to_string(),
                span(all.throttled_ns),
                lately,
            ],
        );
    }
    format!(
        "\n{}\nSince plimsoll first saw the pod. LATELY: milliseconds of each second, over the last few seconds.\n",
        table.render(style)
    )
}

/// Of each second, milliseconds.
fn lately(ns: u64, of_ns: u64) -> String {
    let ms = (u128::from(ns) * 1000).checked_div(of_ns.into());
    ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"))
}

/// Memory of pods.
pub(crate) fn memory(explained: &ExplainedMemory, style: Style) -> String {
    let size = |it: Option<u64>| it.map_or_else(|| "-".to_owned(), |value| bytes(value.into()));
    let heading = [
        "POD",
        "QOS",
        "USAGE",
        "WORKING SET",
        "REQUEST",
        "LIMIT",
        "NUMA NODES",
        "WHAT IT MEANS",
    ];
    let mut table = Table::new(&heading, &[2, 3, 4, 5]);
    for pod in &explained.pods {
        let nodes = pod.nodes.iter();
        let nodes: Vec<String> = nodes
            .map(|(name, nodes)| format!("{name}: {nodes}"))
            .collect();
        table.row(
            Tone::Plain,
            vec![
                pod.pod.clone(),
                pod.qos_class.to_string(),
                size(pod.memory.usage_bytes),
                size(pod.memory.working_set_bytes),
                size(Some(pod.memory.request_bytes).filter(|it| *it > 0)),
                size(pod.memory.limit_bytes),
                if nodes.is_empty() {
                    "any".to_owned()
                } else {
                    nodes.join(", ")
                },
                meaning(pod),
            ],
        );
    }
    let mut text = table.render(style);
    if explained.pods.iter().all(|pod| pod.limits.is_none()) {
        return text + &format!("\n{NOTHING}\n");
    }
    let heading = [
        "POD",
        "HIGH",
        "MAX",
        "OOM",
        "KILLED",
        "LOW",
        "WAITED",
        "FOR LIMITS",
        "FOR HIGH",
        "FOR THE NODE",
        "READ BACK",
        "FROM SWAP",
    ];
    let mut table = Table::new(&heading, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    for pod in &explained.pods {
        let Some(limits) = &pod.limits else { continue };
        let all = &limits.all;
        let tone = match (all.oom_kills, all.max + all.high) {
            (1.., _) => Tone::Marked,
            (0, 0) => Tone::Faint,
            _ => Tone::Plain,
        };
        table.row(
            tone,
            vec![
                pod.pod.clone(),
                all.high.to_string(),
                all.max.to_string(),
                all.oom.to_string(),
                all.oom_kills.to_string(),
                all.low.to_string(),
                span(all.stalled_ns),
                span(all.limit_reclaim_ns),
                span(all.high_ns),
                span(all.node_reclaim_ns),
                all.refaulted_pages.to_string(),
                all.swapped_in_pages.to_string(),
            ],
        );
    }
    text += &format!("\n{}", table.render(style));
    text + "\nSince plimsoll first saw the pod. HIGH, MAX and OOM: how often memory.high was exceeded, memory.max was reached, and\n\
            reclaim freed nothing. LOW: reclaimed although below memory.low. KILLED: processes. WAITED for memory; parts of it are reclaim\n\
            for its limits, sleep for memory.high, and reclaim for the node. READ BACK: pages that had been reclaimed.\n"
}

/// What that means: the newest first, then usage against request.
fn meaning(pod: &PodMemoryView) -> String {
    let mut said = Vec::new();
    if let Some(limits) = &pod.limits {
        let (all, recent) = (&limits.all, &limits.recent);
        match all.oom_kills {
            0 => {}
            1 => said.push("one of its processes was OOM-killed".to_owned()),
            kills => said.push(format!("{kills} of its processes were OOM-killed")),
        }
        if recent.max > 0 {
            said.push(
                "at its memory limit: every new page must first be reclaimed from the pod itself"
                    .to_owned(),
            );
        }
        if recent.high > 0 {
            said.push("over memory.high: its tasks are throttled".to_owned());
        }
        if recent.node_reclaim_ns > 0 {
            said.push(format!(
                "it spent {} recently reclaiming for the node: the node is short of memory, not the pod",
                span(recent.node_reclaim_ns)
            ));
        }
        if recent.refaulted_pages > 0 {
            said.push(format!(
                "{} reclaimed pages had to be read back recently",
                recent.refaulted_pages
            ));
        }
    }
    let Some(used) = pod.memory.working_set_bytes else {
        said.push("not read yet".to_owned());
        return said.join("; ");
    };
    let request = pod.memory.request_bytes;
    said.push(match (request, used.checked_sub(request)) {
        (0, _) => "requests nothing, so all its usage counts as above its request".to_owned(),
        (_, None | Some(0)) => "within its request".to_owned(),
        (_, Some(above)) => format!("{} above its request", bytes(above.into())),
    });
    said.join("; ")
}
