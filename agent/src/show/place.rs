//! A placement for people: one table of containers, and on request how each came there.

use std::fmt::Write as _;

use plimsoll_core::explain::{
    AlignmentView, ContainerPlacement, PlacementExplanation, PodPlacement,
};

use crate::host::output::Style;
use crate::show::table::{Table, Tone, bytes};

/// The whole placement. `why`: also how each pod was aligned.
pub(crate) fn overview(explained: &PlacementExplanation, why: bool, style: Style) -> String {
    let mut text = head(explained, style);
    text += &containers(&explained.pods, style);
    for pod in &explained.pods {
        if let Some(refused) = &pod.refused {
            // Writing to a String cannot fail.
            writeln!(
                text,
                "\n{}: {refused}",
                style.red(&format!("{} is refused", pod.pod))
            )
            .ok();
        }
    }
    if why {
        for pod in &explained.pods {
            text += &reasons(pod, style);
        }
    }
    text
}

fn head(explained: &PlacementExplanation, style: Style) -> String {
    let settings = &explained.settings;
    let mut text = String::new();
    let options: Vec<&str> = settings
        .cpu_manager_policy_options
        .iter()
        .filter(|(_, on)| **on)
        .map(|(name, _)| name.as_str())
        .collect();
    let with = if options.is_empty() {
        String::new()
    } else {
        format!(" ({})", options.join(", "))
    };
    let name = |value: serde_json::Result<serde_json::Value>| {
        value
            .ok()
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default()
    };
    writeln!(
        text,
        "{} CPUs {}{with}, memory {}, topology {} by {}",
        style.bold("Policies:"),
        name(serde_json::to_value(settings.cpu_manager_policy)),
        name(serde_json::to_value(settings.memory_manager_policy)),
        settings.topology_manager_policy,
        settings.topology_manager_scope,
    )
    .ok();
    writeln!(
        text,
        "{} {}",
        style.bold("Shared pool:"),
        explained.shared_pool
    )
    .ok();
    if !explained.reserved.is_empty() {
        writeln!(text, "{} {}", style.bold("Reserved:"), explained.reserved).ok();
    }
    for left in explained
        .memory
        .iter()
        .filter(|left| left.allocatable_bytes > 0)
    {
        writeln!(
            text,
            "{} {} of {} {} free",
            style.bold(&format!("NUMA node {}:", left.node)),
            bytes(left.free_bytes.into()),
            bytes(left.allocatable_bytes.into()),
            left.resource
        )
        .ok();
    }
    text.push('\n');
    text
}

fn containers(pods: &[PodPlacement], style: Style) -> String {
    let mut table = Table::new(
        &[
            "POD",
            "CONTAINER",
            "QOS",
            "WANTS",
            "CPUS",
            "MEMORY NODES",
            "DEVICES",
        ],
        &[3],
    );
    for pod in pods {
        for container in &pod.containers {
            let tone = match (pod.refused.is_some(), container.exclusive) {
                (true, _) => Tone::Marked,
                (false, true) => Tone::Plain,
                (false, false) => Tone::Faint,
            };
            table.row(
                tone,
                vec![
                    pod.pod.clone(),
                    container.name.clone(),
                    pod.qos.to_string(),
                    wanted(container),
                    cpus(container),
                    container
                        .memory_nodes
                        .map_or("any".to_owned(), |nodes| nodes.to_string()),
                    devices(container),
                ],
            );
        }
    }
    table.render(style)
}

fn devices(container: &ContainerPlacement) -> String {
    let ids = container.devices.values().flatten();
    let ids: Vec<&str> = ids.map(String::as_str).collect();
    if ids.is_empty() {
        "-".to_owned()
    } else {
        ids.join(",")
    }
}

fn wanted(container: &ContainerPlacement) -> String {
    match container.wanted_cpus {
        0 => "-".to_owned(),
        cpus => cpus.to_string(),
    }
}

fn cpus(container: &ContainerPlacement) -> String {
    match container.cpus {
        None => "refused".to_owned(),
        Some(cpus) if container.exclusive => cpus.to_string(),
        Some(_) => "shared pool".to_owned(),
    }
}

/// How one pod was aligned.
pub(crate) fn reasons(pod: &PodPlacement, style: Style) -> String {
    let mut text = String::new();
    for alignment in &pod.alignments {
        let whom = match &alignment.container {
            Some(container) => format!("{}/{container}", pod.pod),
            None => format!("{} as a whole", pod.pod),
        };
        writeln!(text, "\n{} {}", style.bold(&whom), merged(alignment)).ok();
        // Who has no wish decides nothing.
        for offer in alignment
            .offers
            .iter()
            .filter(|offer| offer.resource.is_some())
        {
            writeln!(text, "  {}", offer.text).ok();
        }
        for other in &alignment.alternatives {
            let plural = if other.nodes.len() == 1 {
                "node"
            } else {
                "nodes"
            };
            writeln!(
                text,
                "  {}",
                style.dim(&format!("not {plural} {}: {}", other.nodes, other.why))
            )
            .ok();
        }
        if alignment.left_out > 0 {
            writeln!(
                text,
                "  {}",
                style.dim(&format!("and {} more nodes", alignment.left_out))
            )
            .ok();
        }
    }
    text
}

fn merged(alignment: &AlignmentView) -> String {
    let on = match alignment.nodes {
        None => "any NUMA node".to_owned(),
        Some(nodes) if nodes.len() == 1 => format!("NUMA node {nodes}"),
        Some(nodes) => format!("NUMA nodes {nodes}"),
    };
    match (alignment.admitted, alignment.preferred) {
        (true, true) => format!("is aligned on {on}"),
        (true, false) => {
            format!("is on {on}, which is not what all prefer, and the policy admits that")
        }
        (false, _) => format!("could be on {on}, which the policy does not admit"),
    }
}
