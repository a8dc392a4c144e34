//! What limits have cost pods, for people.

use crate::host::output::Style;
use crate::serve::explained::{ExplainedMemory, PodMemoryView, PodTotals};
use crate::show::table::{Table, Tone, bytes, span};

const NOTHING: &str = "What limits have cost is not known: nothing has been read of any pod yet, or the journal is of format 1, which does not say.";

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
        "\n{}\nSince plimsoll first saw the pod; LATELY is of each second of the last few.\n",
        table.render(style)
    )
}

/// Of each second, milliseconds.
fn lately(ns: u64, of_ns: u64) -> String {
    let ms = (u128::from(ns) * 1000).checked_div(of_ns.into());
    ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"))
}

/// Memory of pods.
pub(crate) fn memory(own: &ExplainedMemory, style: Style) -> String {
    let size = |own: Option<u64>| own.map_or_else(|| "-".to_owned(), |own| bytes(own.into()));
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
    for pod in &own.pods {
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
                size(Some(pod.memory.request_bytes).filter(|own| *own > 0)),
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
    if own.pods.iter().all(|pod| pod.limits.is_none()) {
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
    for pod in &own.pods {
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
    text + "\nSince plimsoll first saw the pod. HIGH, MAX and OOM: times that memory.high was exceeded, memory.max met, and no room made; LOW:\n\
            reclaimed from although below memory.low; KILLED: processes. WAITED for memory, and what of it was reclaim for its own limits,\n\
            sleep for memory.high, or reclaim for the node. READ BACK: pages that had been taken away.\n"
}

/// What that means: the newest first, then usage against request.
fn meaning(own: &PodMemoryView) -> String {
    let mut said = Vec::new();
    if let Some(limits) = &own.limits {
        let (all, recent) = (&limits.all, &limits.recent);
        match all.oom_kills {
            0 => {}
            1 => said.push("a process of it was killed for want of memory".to_owned()),
            kills => said.push(format!("{kills} processes were killed for want of memory")),
        }
        if recent.max > 0 {
            said.push(
                "it is at its limit: what it takes must be reclaimed from it first".to_owned(),
            );
        }
        if recent.high > 0 {
            said.push("it is over memory.high, and slowed down".to_owned());
        }
        if recent.node_reclaim_ns > 0 {
            said.push(format!(
                "it reclaimed for the node for {} lately: the node is short, not the pod",
                span(recent.node_reclaim_ns)
            ));
        }
        if recent.refaulted_pages > 0 {
            said.push(format!(
                "{} pages that were taken away were needed again lately",
                recent.refaulted_pages
            ));
        }
    }
    let Some(used) = own.memory.working_set_bytes else {
        said.push("nothing has been read of it".to_owned());
        return said.join("; ");
    };
    let request = own.memory.request_bytes;
    said.push(match (request, used.checked_sub(request)) {
        (0, _) => "it requests nothing, so all of it counts as above its request".to_owned(),
        (_, None | Some(0)) => "within its request".to_owned(),
        (_, Some(above)) => format!("{} above its request", bytes(above.into())),
    });
    said.join("; ")
}
