//! Explanations for people.

pub mod limits;
pub mod oom;
pub mod throttling;

use plimsoll_core::explain::{
    EvictionExplanation, ExplainedPod, ExplainedShare, ExplainedSignal, ExplainedThreshold,
    LeavingPod, SignalChoice, Standing, WayOut,
};
use plimsoll_core::kube::cluster_link::OverusedNamespace;
use plimsoll_core::model::options::OveruseRanking;
use plimsoll_core::model::signal::Unit;
use plimsoll_core::model::threshold::Operator;

use crate::host::output::Style;
use crate::serve::control::Answer;
use crate::show::rank::ranking_table;
use crate::show::table::{Table, Tone, amount, bytes, percent, span};

/// Renders the answer; `why` adds how a placement came about.
pub(crate) fn render(answer: &Answer, why: bool, style: Style) -> String {
    match answer {
        Answer::Eviction(answer) => match &answer.pod {
            None => eviction(answer, style),
            Some(pod) => one_pod(answer, pod, style),
        },
        Answer::Oom(answer) => crate::show::explain::oom::oom(answer, style),
        Answer::Throttling(answer) => crate::show::explain::throttling::throttling(answer, style),
        Answer::Memory(answer) => crate::show::explain::limits::memory(answer, style),
        Answer::Placement(answer) => crate::show::place::overview(answer, why, style),
        Answer::Records(answer) => answer.as_ref().map_or_else(
            || "no BPF program sends records\n".to_owned(),
            |it| crate::show::check::records_text(it, style),
        ),
        Answer::Health(answer) => format!("{} pods are wanted\n", answer.pods),
        Answer::Overview(answer) => crate::show::top::text::table(answer, style),
    }
}

fn eviction(explained: &EvictionExplanation, style: Style) -> String {
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
fn share_lines<'a>(
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
fn overuse_lines<'a>(
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

fn because(explained: &EvictionExplanation) -> &'static str {
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
    let stage = match (pod.empty, pod.kill_in_ns) {
        (false, None) if pod.ended_by_kubelet => {
            "a threshold that is met waits for it for 2 s at most, of a disk for 30 s".to_owned()
        }
        (true, _) => "all processes have exited; waiting for its memory to be freed".to_owned(),
        (false, Some(ns)) => format!("killed in {} if processes are left", span(ns)),
        (false, None) => "killed".to_owned(),
    };
    format!("{} is terminating ({why}): {stage}\n", pod.pod)
}

fn ranking(explained: &EvictionExplanation) -> Table {
    let places = explained.ranking.places.iter();
    ranking_table(
        places.map(|place| (place, String::new())),
        |figure| amount(figure, explained.usage_unit),
        false,
    )
}

fn next(explained: &EvictionExplanation, style: Style) -> String {
    let Some(next) = explained.ranking.next() else {
        let why = if explained.ranking.places.is_empty() {
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
        .places
        .iter()
        .find(|place| place.rank == next.rank + 1);
    if let (Some(following), Some(by)) = (following, next.ahead_of_next_by)
        && explained.victims.len() == 1
    {
        text += &format!(", ahead of {} by {by}", following.pod);
    }
    text + "\n"
}

fn kubelet(explained: &EvictionExplanation) -> String {
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

fn one_pod(explained: &EvictionExplanation, pod: &ExplainedPod, style: Style) -> String {
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
        line(
            "memory",
            format!(
                "{} charged, {} of it working set",
                bytes(usage.into()),
                bytes(working_set.into())
            ),
        );
    }
    if let Some(place) = &pod.place {
        let usage = place.usage.map_or_else(
            || "no statistics".to_owned(),
            |usage| {
                let over = place.usage_over_request.unwrap_or(0);
                let (over, word) = (
                    amount(over.unsigned_abs().into(), explained.usage_unit),
                    over < 0,
                );
                let word = if word { "below" } else { "above" };
                format!(
                    "{}, {over} {word} its request of {}",
                    figure(usage),
                    figure(place.request)
                )
            },
        );
        line("usage", usage);
        line(
            "place",
            format!("{} of {}", place.rank, explained.ranking.places.len()),
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
        .place
        .as_ref()
        .is_some_and(|place| place.standing == Standing::Next);
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
        .places
        .iter()
        .filter(|place| place.exempt.is_none())
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

#[cfg(test)]
mod tests {
    use plimsoll_core::engine::EngineConfig;
    use plimsoll_core::explain::ExplainedOveruse;
    use plimsoll_core::kube::admission::object::LimitRange;
    use plimsoll_core::kube::admission::standing::QuotaUse;
    use plimsoll_core::model::options::NamespaceShare;
    use plimsoll_core::model::rank_row::Comparator;
    use plimsoll_core::model::signal::Signal;
    use plimsoll_core::model::threshold::{Amount, Passes, Threshold};

    use super::*;
    use crate::record::limit_counts::{LimitCounts, LimitTotals};
    use crate::record::snapshot::Snapshot;
    use crate::serve::control::Request;
    use crate::serve::control::server::answer;
    use crate::testkit::{self, MIB};

    fn snapshot() -> Snapshot {
        snapshot_with(Vec::new())
    }

    fn snapshot_with(namespace_shares: Vec<NamespaceShare>) -> Snapshot {
        let threshold = |mib, grace_ns| Threshold {
            signal: Signal::MemoryAvailable,
            operator: Operator::LessThan,
            value: Amount::Absolute(mib * MIB),
            grace_ns,
            min_reclaim: Some(Amount::Absolute(50 * MIB)),
            passes: Passes::All,
        };
        let config = EngineConfig {
            thresholds: vec![threshold(100, 0), threshold(600, 30_000_000_000)],
            namespace_shares,
            ..EngineConfig::default()
        };
        let pods = [
            (
                "web",
                r#""containers":[{"name":"app","resources":{"requests":{"memory":"100Mi"}}}]"#,
                300,
            ),
            ("batch", r#""containers":[{"name":"job"}]"#, 40),
            (
                "dns",
                r#""priority":2000001000,"priorityClassName":"system-node-critical","containers":[{"name":"dns"}]"#,
                20,
            ),
        ];
        let pods = pods.map(|(name, spec, used_mib)| (testkit::pod(name, spec), used_mib));
        let engine = testkit::engine(config, &testkit::events(pods, &[(2, 524)]), |_, _| {});
        Snapshot::of(&engine)
    }

    fn shown(request: &Request) -> String {
        render(
            &answer(request, &snapshot()).unwrap(),
            false,
            Style { color: false },
        )
    }

    fn eviction_of(pod: Option<&str>) -> Request {
        Request::ExplainEviction {
            signal: None,
            pod: pod.map(ToOwned::to_owned),
        }
    }

    #[test]
    fn who_uses_too_much_of_the_cluster_and_what_that_means_here() {
        let Ok(Answer::Eviction(mut explained)) = answer(&eviction_of(None), &snapshot()) else {
            panic!("another answer");
        };
        explained.overuse = Some(ExplainedOveruse {
            valid_for_ns: 40_000_000_000,
            namespaces: vec![OverusedNamespace {
                namespace: "default".into(),
                excess: 12,
            }],
        });
        for (ranking, words) in [
            (
                OveruseRanking::Ignore,
                "which changes no eviction (overuseRanking: Ignore)",
            ),
            (
                OveruseRanking::AmongEquals,
                "its pods go first among those of equal priority",
            ),
            (
                OveruseRanking::BeforePriority,
                "its pods go first, whatever their priority",
            ),
        ] {
            explained.options.overuse_ranking = ranking;
            let answer = Answer::Eviction(explained.clone());
            let text = render(&answer, false, Style { color: false });
            let line = format!(
                "overused: default uses 1.2 % of the cluster more than it deserves, {words}; by the arbitrator, for another 40 s\n"
            );
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn shares_and_quotas() {
        let share = NamespaceShare {
            namespace: "default".into(),
            memory_bytes: Some(200 * MIB),
            cpu_milli: None,
        };
        let list = |text: &str| serde_json::from_str(text).unwrap();
        let hard = || list(r#"{"pods": "10", "requests.cpu": "1"}"#);
        let quota = |name: &str, used: &str| QuotaUse::alone(name.into(), hard(), list(used));
        let mut snapshot = snapshot_with(vec![share]);
        snapshot.quotas = [
            quota(
                "default/compute",
                r#"{"pods": "9", "requests.cpu": "100m"}"#,
            ),
            quota("other/compute", r#"{"pods": "10", "requests.cpu": "1"}"#),
        ]
        .into();
        let shown = |pod| {
            let answer = answer(&eviction_of(pod), &snapshot).unwrap();
            render(&answer, false, Style { color: false })
        };
        let Ok(Answer::Eviction(explained)) = answer(&eviction_of(None), &snapshot) else {
            panic!("another answer");
        };
        let ranking = &explained.ranking;
        assert!(ranking.places.iter().all(|place| place.over_share == 800));
        assert!(ranking.comparators.contains(&Comparator::OverShare));
        let used = "default uses 360Mi of 200Mi, above it: its pods go first among those of equal priority\n";
        let given = [
            quota("default/compute", r#"{"pods": "1"}"#),
            quota("default/more", r#"{"pods": "0", "requests.cpu": "1"}"#),
            quota("other/more", r#"{"pods": "10"}"#),
        ];
        let of_namespace = |pod| -> Vec<String> {
            let Ok(Answer::Eviction(explained)) = answer(&eviction_of(pod), &snapshot) else {
                panic!("another answer");
            };
            let quotas = explained.with_quotas(&given).quotas.into_iter();
            quotas
                .map(|quota| format!("{}: {} pods", quota.quota, quota.used["pods"]))
                .collect()
        };
        assert_eq!(of_namespace(None), Vec::<String>::new());
        assert_eq!(
            of_namespace(Some("web")),
            ["default/compute: 9 pods", "default/more: 0 pods"],
            "what the agent knows stays"
        );
        let all = shown(None);
        assert!(all.contains(&format!("share: {used}")), "{all}");
        let pod = shown(Some("web"));
        assert!(pod.contains(&format!("  share           {used}")), "{pod}");
        assert!(
            pod.contains(
                "  quota           default/compute: pods 9 of 10 in use; this changes no eviction\n"
            ),
            "{pod}"
        );
        assert!(
            !pod.contains("requests.cpu") && !pod.contains("other/compute"),
            "{pod}"
        );
    }

    #[test]
    fn evictions() {
        assert_eq!(shown(&eviction_of(None)), "\
SIGNAL                  SHOWS   OF  THRESHOLD           HEADROOM          STATE
memory.available        500Mi  1Gi  < 100Mi hard        400Mi (39.06 %)
                                    < 600Mi soft, 30 s  -100Mi (-9.76 %)  met, 30 s of grace left, ends when 50Mi more is available
kernelMemory.available      0  1Gi  none

MemoryPressure (held for at least 5 min more)

Ranking for memory.available, whose soft threshold is met and in its grace period:

RANK  POD              PRIORITY  QOS         USAGE  REQUEST  USAGE-REQUEST  AHEAD OF THE NEXT BY     EXEMPT
   1  default/web             0  Burstable   300Mi    100Mi          200Mi  more usage over request
   2  default/batch           0  BestEffort   40Mi        0           40Mi  lower priority
   3  default/dns    2000001000  BestEffort   20Mi        0           20Mi                           system-critical priority

Next to be evicted: default/web, ahead of default/batch by more usage over request
The kubelet would choose the same.
");
    }

    #[test]
    fn the_condemned_are_named() {
        let mut snapshot = snapshot();
        snapshot.config.options.last_line = Some(Default::default());
        let answer = answer(&eviction_of(None), &snapshot).unwrap();
        let text = render(&answer, false, Style { color: false });
        assert!(
            text.contains(
                "Last line in the kernel: kills processes of default/web, default/batch when they allocate while less than 100Mi is available \
                 and plimsoll has not answered within 200 ms, or less than 25Mi is available; valid for 10 min after plimsoll's last sign of life\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn what_a_limit_range_has_set() {
        let mut snapshot = snapshot();
        let web = snapshot
            .state
            .pods
            .values_mut()
            .find(|pod| pod.name == "default/web");
        let web = &mut web.unwrap().pod;
        let mut with = (**web).clone();
        let note = "LimitRanger plugin set: memory request for container main";
        let annotations = &mut with.metadata.annotations;
        annotations.insert("kubernetes.io/limit-ranger".into(), note.into());
        with.spec.containers[0].name = "main".into();
        *web = std::sync::Arc::new(with);
        let answer = answer(&eviction_of(Some("web")), &snapshot).unwrap();
        let text = render(&answer, false, Style { color: false });
        assert!(
            text.contains(
                "  LimitRange set  request memory=100Mi of main\n  \
                 without that    BestEffort; request of memory 0 instead of 100Mi, so all of its usage counts for eviction; oom_score_adj 1000 instead of "
            ),
            "{text}"
        );
        let Answer::Eviction(explained) = answer else {
            panic!("another answer");
        };
        let range = |namespace: &str, name: &str, amount: &str| -> LimitRange {
            let item =
                serde_json::json!({"type": "Container", "defaultRequest": {"memory": amount}});
            let range = serde_json::json!({"metadata": {"name": name, "namespace": namespace}, "spec": {"limits": [item]}});
            serde_json::from_value(range).unwrap()
        };
        let line = |ranges: &[LimitRange]| {
            let explained = explained.clone().with_ranges(ranges);
            let answer = Answer::Eviction(Box::new(explained));
            let text = render(&answer, false, Style { color: false });
            let line = text.lines().find(|line| line.contains("LimitRange set"));
            line.unwrap().trim().to_owned()
        };
        let elsewhere = range("other", "elsewhere", "100Mi");
        let all = [
            range("default", "large", "1Gi"),
            range("default", "small", "102400Ki"),
            elsewhere.clone(),
        ];
        assert_eq!(
            line(&all),
            "LimitRange set  request memory=100Mi (by small) of main"
        );
        let none =
            "LimitRange set  request memory=100Mi (by no LimitRange that is there now) of main";
        assert_eq!(line(&[range("default", "large", "1Gi")]), none);
        // Nothing is known of the namespace's.
        assert_eq!(
            line(&[elsewhere]),
            "LimitRange set  request memory=100Mi of main"
        );
        assert_eq!(line(&[]), "LimitRange set  request memory=100Mi of main");
    }

    #[test]
    fn one_pod_and_its_ways_out() {
        assert_eq!(shown(&eviction_of(Some("web"))), "\
default/web, Burstable, priority 0, for memory.available, whose soft threshold is met and in its grace period:
  memory          300Mi charged, 300Mi of it working set
  usage           300Mi, 200Mi above its request of 100Mi
  place           1 of 3
  after it        default/batch, by more usage over request

It is the next to be evicted. Another pod would be first, if nothing else changes, once
  - it uses 140Mi or less
  - it requests 260Mi or more
  - its priority is 1 or higher
The kubelet would choose the same.
");
        assert_eq!(shown(&eviction_of(Some("batch"))), "\
default/batch, BestEffort, priority 0, for memory.available, whose soft threshold is met and in its grace period:
  memory          40Mi charged, 40Mi of it working set
  usage           40Mi, 40Mi above its request of 0
  place           2 of 3
  before it       default/web, by more usage over request
  after it        default/dns, by lower priority

One pod would be evicted before it: it is safe while that pod exists.
It would be next at a usage of 200Mi, if nothing else changes.
The kubelet would choose the same.
");
    }

    /// What limits have cost two of the pods.
    fn with_totals() -> Snapshot {
        let mut snapshot = snapshot();
        for (pod, all, recent) in [
            (
                "web",
                LimitCounts {
                    max: 40,
                    oom_kills: 1,
                    stalled_ns: 1_500_000_000,
                    limit_reclaim_ns: 1_400_000_000,
                    throttled: 30,
                    throttled_ns: 2_000_000_000,
                    ..LimitCounts::default()
                },
                LimitCounts {
                    max: 5,
                    throttled_ns: 500_000_000,
                    ..LimitCounts::default()
                },
            ),
            (
                "batch",
                LimitCounts {
                    node_reclaim_ns: 20_000_000,
                    refaulted_pages: 300,
                    ..LimitCounts::default()
                },
                LimitCounts {
                    node_reclaim_ns: 20_000_000,
                    refaulted_pages: 300,
                    ..LimitCounts::default()
                },
            ),
        ] {
            let mut totals = LimitTotals::default();
            (totals.all, totals.recent, totals.recent_ns) = (all, recent, 5_000_000_000);
            let uid = plimsoll_core::model::units::PodUid::of_name("default", pod);
            snapshot.limits.insert(uid, totals);
        }
        snapshot
    }

    fn shown_with_totals(request: &Request) -> String {
        let answer = answer(request, &with_totals()).unwrap();
        render(&answer, false, Style { color: false })
    }

    #[test]
    fn memory_and_what_limits_have_cost() {
        let text = shown_with_totals(&Request::ExplainMemory { pod: None });
        assert_eq!(
            text,
            "\
POD            QOS         USAGE  WORKING SET  REQUEST  LIMIT  NUMA NODES  WHAT IT MEANS
default/batch  BestEffort   40Mi         40Mi        -      -  any         it spent 20 ms recently reclaiming for the node: the node is short of memory, not the pod; 300 reclaimed pages had to be read back recently; requests nothing, so all its usage counts as above its request
default/dns    BestEffort   20Mi         20Mi        -      -  any         requests nothing, so all its usage counts as above its request
default/web    Burstable   300Mi        300Mi    100Mi      -  any         one of its processes was OOM-killed; at its memory limit: every new page must first be reclaimed from the pod itself; 200Mi above its request

POD            HIGH  MAX  OOM  KILLED  LOW  WAITED  FOR LIMITS  FOR HIGH  FOR THE NODE  READ BACK  FROM SWAP
default/batch     0    0    0       0    0    0 ms        0 ms      0 ms         20 ms        300          0
default/web       0   40    0       1    0   1.5 s       1.4 s      0 ms          0 ms          0          0

Since plimsoll first saw the pod. HIGH, MAX and OOM: how often memory.high was exceeded, memory.max was reached, and
reclaim freed nothing. LOW: reclaimed although below memory.low. KILLED: processes. WAITED for memory; parts of it are reclaim
for its limits, sleep for memory.high, and reclaim for the node. READ BACK: pages that had been reclaimed.
"
        );
        let one = Request::ExplainMemory {
            pod: Some("batch".to_owned()),
        };
        let text = shown_with_totals(&one);
        assert!(
            text.contains("default/batch") && !text.contains("default/web"),
            "{text}"
        );
        let nobody = Request::ExplainMemory {
            pod: Some("nobody".to_owned()),
        };
        let refusal = answer(&nobody, &with_totals()).unwrap_err();
        assert_eq!(refusal.kind, crate::serve::control::RefusalKind::UnknownPod);
        // Of a journal.
        let text = shown(&Request::ExplainMemory { pod: None });
        assert!(text.contains("200Mi above its request"), "{text}");
        assert!(
            text.contains("has format 1") && !text.contains("KILLED"),
            "{text}"
        );
    }

    #[test]
    fn throttling_also_where_nothing_is_done_about_it() {
        let text = shown_with_totals(&Request::ExplainThrottling { pod: None });
        assert!(text.starts_with("cpuBurst is off.\n"), "{text}");
        assert!(
            text.contains(
                "\
POD            TIMES  THROTTLED  LATELY
default/batch      0       0 ms    0 ms
default/web       30        2 s  100 ms
"
            ),
            "{text}"
        );
        let one = Request::ExplainThrottling {
            pod: Some("web".to_owned()),
        };
        assert!(!shown_with_totals(&one).contains("default/batch"));
        let text = shown(&Request::ExplainThrottling { pod: None });
        assert!(text.contains("has format 1"), "{text}");
        // Programs read the same names as before.
        let answer = answer(&one, &with_totals()).unwrap();
        let Answer::Throttling(explained) = &answer else {
            panic!("another answer");
        };
        let json = serde_json::to_value(explained).unwrap();
        assert!(
            json["cgroups"].is_array() && json["options"].is_object(),
            "{json}"
        );
        assert_eq!(
            json["totals"][0]["limits"]["all"]["throttled"], 30,
            "{json}"
        );
        let read: crate::serve::explained::ExplainedThrottling =
            serde_json::from_value(json).unwrap();
        assert_eq!(read.explanation, explained.explanation);
    }

    #[test]
    fn kills_by_the_kernel() {
        assert_eq!(shown(&Request::ExplainOom { pod: None }), "\
1Gi of memory, no swap; oom_score_adj is the kubelet's.

RANK  POD            CONTAINER  QOS         WORKING SET   ADJ  BADNESS  WHY THE KUBELET'S ADJ
   1  default/web    app        Burstable         300Mi   903     1195  1000 - 1000 * 100Mi / 1Gi
   2  default/batch  job        BestEffort         40Mi  1000     1039  BestEffort: killed first
   3  default/dns    dns        BestEffort         20Mi  -997     -978  system-node-critical

BADNESS is thousandths of memory and swap plus ADJ, as if one process had the whole working set of its pod;
a real process has less. The kernel kills the highest first.
");
    }

    #[test]
    fn amounts_and_spans() {
        assert_eq!(amount(-1234, Unit::Share), "-12.34 %");
        assert_eq!(amount(5, Unit::Inodes), "5");
        assert_eq!(span(999_999_999), "999 ms");
        assert_eq!(span(61_500_000_000), "61.5 s");
        assert_eq!(span(300_000_000_000), "5 min");
    }
}
