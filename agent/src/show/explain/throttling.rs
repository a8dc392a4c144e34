//! CPU throttling, for people.

use plimsoll_core::explain::{CgroupCpuView, ThrottlingExplanation};

use crate::host::output::Style;
use crate::serve::explained::ExplainedThrottling;
use crate::show::explain::limits::throttled;
use crate::show::table::{Table, Tone, percent};

/// The text, each line ended.
pub(crate) fn throttling(explained: &ExplainedThrottling, style: Style) -> String {
    bandwidth(&explained.explanation, style) + &throttled(explained.totals.as_deref(), style)
}

/// What is done about it.
fn bandwidth(explained: &ThrottlingExplanation, style: Style) -> String {
    let mut text = options(explained);
    let Some(node) = &explained.node else {
        return text
            + "\nNothing has been read: CPU time is read only while cpuBurst or cpuSuppress is on, first one second after the start.\n";
    };
    text += &format!(
        "{} shared CPUs, {} busy{}.\n",
        node.cpus,
        percent(node.busy.into()),
        node.source.map_or(String::new(), |source| format!(
            "; waiting is measured by {source}"
        ))
    );
    for waiter in &explained.waiters {
        text += &format!("{waiter}.\n");
    }
    if let Some(why) = &explained.guard {
        text += &format!("No container gets more: {why}.\n");
    }
    let held = explained.suppression.held.len();
    if let (Some(_), Some(why)) = (explained.options.suppress, &explained.suppression.why) {
        text += &format!(
            "{held} pods are held back; {why}; {} s of the budget are spent.\n",
            explained.suppression.spent_ns / 1_000_000_000
        );
    }
    text.push('\n');
    let heading = [
        "POD",
        "CONTAINER",
        "QOS",
        "LIMIT",
        "QUOTA",
        "BURST",
        "THROTTLED",
        "USED",
        "SAVED",
        "WAITS",
        "WHAT IS DONE",
    ];
    let mut table = Table::new(&heading, &[3, 4, 5, 6, 7, 8, 9]);
    for cgroup in &explained.cgroups {
        table.row(tone(cgroup), cells(cgroup, node.interval_ns));
    }
    text += &table.render(style);
    if explained.cgroups.is_empty() {
        text += "\nNo pod has a process.\n";
    } else {
        text += "\nLIMIT, QUOTA and BURST are thousandths of a CPU; THROTTLED is periods since the previous reading; SAVED is unused CPU time below the limit.\n";
    }
    text
}

fn options(explained: &ThrottlingExplanation) -> String {
    let burst = match explained.options.burst {
        None => "cpuBurst is off".to_owned(),
        Some(burst) => format!(
            "cpuBurst: burst {} % of the limit, quota up to {} %, at most {} s saved, while CPUs are at most {} % busy and no pod below its request waits more than {} %",
            burst.burst_percent,
            burst.quota_percent,
            burst.allowance_ns / 1_000_000_000,
            burst.node_use_percent,
            burst.wait_percent
        ),
    };
    let suppress = match explained.options.suppress {
        None => "cpuSuppress is off".to_owned(),
        Some(suppress) => format!(
            "cpuSuppress: BestEffort pods down to {}m while a pod below its request waits more than {} %, for at most {} s",
            suppress.floor_milli,
            suppress.wait_percent,
            suppress.budget_ns / 1_000_000_000
        ),
    };
    format!("{burst}.\n{suppress}.\n")
}

fn tone(cgroup: &CgroupCpuView) -> Tone {
    let is_changed =
        cgroup.quota_us != cgroup.configured_quota_us || cgroup.burst_us.is_some_and(|us| us > 0);
    match (
        cgroup.throttled > 0 || is_changed,
        cgroup.configured_quota_us,
    ) {
        (true, _) => Tone::Marked,
        (false, Some(_)) => Tone::Plain,
        (false, None) => Tone::Faint,
    }
}

fn cells(cgroup: &CgroupCpuView, interval_ns: u64) -> Vec<String> {
    let milli = |us: Option<u64>| {
        us.map_or_else(
            || "-".to_owned(),
            |us| (us.saturating_mul(1000) / cgroup.period_us.max(1)).to_string(),
        )
    };
    let interval_us = (interval_ns / 1000).max(1);
    vec![
        cgroup.pod.clone(),
        match &*cgroup.container {
            "" => "(pod)".to_owned(),
            name => name.to_owned(),
        },
        cgroup.qos_class.to_string(),
        milli(cgroup.configured_quota_us),
        milli(cgroup.quota_us),
        milli(cgroup.burst_us),
        format!("{}/{}", cgroup.throttled, cgroup.periods),
        format!("{}m", cgroup.used_us.saturating_mul(1000) / interval_us),
        format!("{} ms", cgroup.allowance_us / 1000),
        match (cgroup.waited, cgroup.comes_first) {
            (None, _) => "-".to_owned(),
            (Some(waited), true) => format!("{} first", percent(waited.into())),
            (Some(waited), false) => percent(waited.into()),
        },
        cgroup.verdict.clone(),
    ]
}
