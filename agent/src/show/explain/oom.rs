//! The order of the kernel's OOM killer, for people.

use plimsoll_core::explain::{OomContainer, OomExplanation};
use plimsoll_core::model::options::OomOrder;
use plimsoll_core::policy::oom::score::ScoreRule;

use crate::host::output::Style;
use crate::show::table::{Table, Tone, bytes};

/// The text, each line ended.
pub(crate) fn oom(own: &OomExplanation, style: Style) -> String {
    let swap = match own.swap_bytes {
        0 => "no swap".to_owned(),
        swap => format!("{} of swap", bytes(swap.into())),
    };
    let planned = own.containers.iter().any(|own| own.planned.is_some());
    let order = match (own.order, planned) {
        (OomOrder::Dynamic, true) => "oom_score_adj follows the eviction ranking",
        (OomOrder::Dynamic, false) => {
            "oom_score_adj follows the eviction ranking; there is no plan yet, so this is by the kubelet's"
        }
        (OomOrder::Kubelet, _) => "oom_score_adj is the kubelet's",
    };
    let mut text = format!(
        "{} of memory, {swap}; {order}.\n\n",
        bytes(own.memory_capacity_bytes.into())
    );
    let mut heading = vec![
        "RANK",
        "POD",
        "CONTAINER",
        "QOS",
        "WORKING SET",
        "ADJ",
        "BADNESS",
    ];
    if planned {
        heading.extend(["PLANNED", "HAS", "CERTAIN"]);
    }
    heading.push("WHY THE KUBELET'S ADJ");
    let mut table = Table::new(&heading, &[0, 4, 5, 6]);
    for container in &own.containers {
        let unknown = || "?".to_owned();
        let mut cells = vec![
            container.rank.to_string(),
            container.pod.clone(),
            container.container.clone(),
            container.qos_class.to_string(),
            container
                .pod_working_set_bytes
                .map_or_else(unknown, |own| bytes(own.into())),
            container.kubelet_adj.to_string(),
            container.badness.to_string(),
        ];
        if planned {
            let plan = container.planned;
            cells.push(plan.map_or_else(unknown, |plan| plan.adj.to_string()));
            let has = plan.and_then(|plan| plan.current_adj);
            cells.push(has.map_or_else(unknown, |adj| adj.to_string()));
            let certain = plan.is_some_and(|plan| plan.certain);
            cells.push(if certain { "yes" } else { "" }.to_owned());
        }
        cells.push(rule(container, own.memory_capacity_bytes));
        let tone = if container.rank == 1 {
            Tone::Marked
        } else {
            Tone::Plain
        };
        table.row(tone, cells);
    }
    text += &table.render(style);
    if own.containers.is_empty() {
        return text + "\nNo process: the kernel would take nothing of this.\n";
    }
    text += "\nBADNESS is thousandths of memory and swap plus ADJ, as if one process had all of its pod's working set: what a process really\n\
             has is less. The kernel kills the highest first.\n";
    if planned {
        text += "CERTAIN: while it has a process, the kernel takes none of a later place.\n";
    }
    text
}

fn rule(container: &OomContainer, capacity_bytes: u64) -> String {
    match container.rule {
        ScoreRule::NodeCritical => "system-node-critical".to_owned(),
        ScoreRule::Guaranteed => "Guaranteed: after all others".to_owned(),
        ScoreRule::BestEffort => "BestEffort: before all others".to_owned(),
        ScoreRule::Burstable {
            request_bytes,
            as_least_container,
            unbounded,
        } => {
            let of = if as_least_container {
                " (its regular container that requests least: it is a sidecar)"
            } else {
                ""
            };
            let bound = if unbounded == i64::from(container.kubelet_adj) {
                String::new()
            } else {
                format!(" = {unbounded}, bound to {}", container.kubelet_adj)
            };
            format!(
                "1000 - 1000 * {}{of} / {}{bound}",
                bytes(request_bytes.into()),
                bytes(capacity_bytes.into())
            )
        }
    }
}
