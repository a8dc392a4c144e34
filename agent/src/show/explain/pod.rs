//! Where one pod stands: why it is next or not, and what would change that.

use plimsoll_core::explain::{EvictionExplanation, EvictionStatus, ExplainedPod, WayOut};

use crate::host::output::Style;
use crate::show::table::{amount, bytes};

use super::eviction::{because, kubelet, overuse_lines, share_lines};
use super::limits;
pub(super) fn one_pod(explained: &EvictionExplanation, pod: &ExplainedPod, style: Style) -> String {
    let figure = |figure: u64| amount(figure.into(), explained.usage_unit);
    let class = pod
        .priority_class_name
        .as_ref()
        .map_or_else(String::new, |class| format!(" ({class})"));
    let mut text = format!(
        "{}, {}, priority {}{class}, for {}, {}:\n",
        style.bold(&pod.pod),
        pod.qos_class,
        pod.priority,
        explained.signal,
        because(explained)
    );
    let mut line = |what: &str, says: String| text += &format!("  {what:16}{says}\n");
    if let (Some(usage), Some(working_set)) = (pod.memory_usage_bytes, pod.memory_working_set_bytes)
    {
        let (usage, working_set) = (bytes(usage.into()), bytes(working_set.into()));
        let says = match pod.memory_uncharged_bytes {
            0 => format!("{usage} charged, {working_set} of it working set"),
            queues => format!(
                "{usage} charged; working set {working_set}, with {} in queues of sockets that no cgroup is charged for",
                bytes(queues.into())
            ),
        };
        line("memory", says);
    }
    if let Some(ranked) = &pod.ranked {
        let usage = ranked.usage.map_or_else(
            || "no statistics".to_owned(),
            |usage| {
                let over = ranked.usage_over_request.unwrap_or(0);
                let (over, word) = (
                    amount(over.unsigned_abs().into(), explained.usage_unit),
                    over < 0,
                );
                let word = if word { "below" } else { "above" };
                format!(
                    "{}, {over} {word} its request of {}",
                    figure(usage),
                    figure(ranked.request)
                )
            },
        );
        line("usage", usage);
        line(
            "rank",
            format!("{} of {}", ranked.rank, explained.ranking.pods.len()),
        );
    }
    if let Some(before) = &pod.before {
        line("before it", format!("{}, by {}", before.pod, before.by));
    }
    if let Some(after) = &pod.after {
        line("after it", format!("{}, by {}", after.pod, after.by));
    }
    if pod.leaving {
        line("state", "terminating".to_owned());
    }
    if let Some(defaults) = &pod.limit_defaults {
        line("LimitRange set", limits::set(defaults));
        line("without that", limits::without(defaults));
    }
    for overused in overuse_lines(explained, &pod.pod) {
        line("overused", overused);
    }
    for share in share_lines(explained, &pod.pod) {
        line("share", share);
    }
    for quota in &explained.quotas {
        for (name, used, hard) in quota.nearly_used_up() {
            let text = format!(
                "{}: {name} {used} of {hard} in use; this changes no eviction",
                quota.quota
            );
            line("quota", text);
        }
    }
    text.push('\n');
    text += &verdict(explained, pod);
    text + &kubelet(explained)
}

fn verdict(explained: &EvictionExplanation, pod: &ExplainedPod) -> String {
    let figure = |figure: u64| amount(figure.into(), explained.usage_unit);
    if let Some(why) = pod.exempt {
        return format!("Never evicted: {why}.\n");
    }
    if let Some(why) = pod.not_ranked {
        return format!("Not ranked: {why}.\n");
    }
    let is_next = pod
        .ranked
        .as_ref()
        .is_some_and(|ranked| ranked.standing == EvictionStatus::Next);
    if !is_next {
        let mut text = match pod.shielded_by {
            1 => {
                "One pod would be evicted before it: it is safe while that pod exists.\n".to_owned()
            }
            pods => format!(
                "{pods} pods would be evicted before it: it is safe while one of them exists.\n"
            ),
        };
        text += &match pod.next_at_usage {
            Some(usage) => format!(
                "It would be next at a usage of {}, if nothing else changes.\n",
                figure(usage)
            ),
            None => "No usage would make it next.\n".to_owned(),
        };
        if explained.victims.contains(&pod.pod) {
            text += "It would be evicted together with the next pod: the target needs both.\n";
        }
        return text;
    }
    if explained
        .ranking
        .pods
        .iter()
        .filter(|ranked| ranked.exempt.is_none())
        .count()
        == 1
    {
        return "It is the next to be evicted: no other pod can be.\n".to_owned();
    }
    let mut text = "It is the next to be evicted.".to_owned();
    if pod.ways_out.is_empty() {
        return text + " No change to this pod would put another first.\n";
    }
    text += " Another pod would be first, if nothing else changes, once\n";
    for way in &pod.ways_out {
        text += &match way {
            WayOut::Statistics => {
                "  - its usage is known: without statistics a pod goes first\n".to_owned()
            }
            WayOut::UsageAtMost { usage } => format!("  - it uses {} or less\n", figure(*usage)),
            WayOut::RequestAtLeast { request } => {
                format!("  - it requests {} or more\n", figure(*request))
            }
            WayOut::PriorityAtLeast { priority } => {
                format!("  - its priority is {priority} or higher\n")
            }
        };
    }
    text
}
