//! Explanations for people.

pub mod limits;
pub mod oom;
pub mod throttling;

use plimsoll_core::explain::{
    EvictionExplanation, ExplainedPod, ExplainedSignal, ExplainedThreshold, LeavingPod,
    SignalChoice, Standing, WayOut,
};
use plimsoll_core::model::signal::Unit;
use plimsoll_core::model::threshold::Operator;

use crate::host::output::Style;
use crate::serve::control::Answer;
use crate::show::rank::ranking_table;
use crate::show::table::{Table, Tone, amount, bytes, percent, span};

/// The text, each line ended.
/// `why`: of a placement also how it came about.
pub(crate) fn render(answer: &Answer, why: bool, style: Style) -> String {
    match answer {
        Answer::Eviction(own) => match &own.pod {
            None => eviction(own, style),
            Some(pod) => one_pod(own, pod, style),
        },
        Answer::Oom(own) => crate::show::explain::oom::oom(own, style),
        Answer::Throttling(own) => crate::show::explain::throttling::throttling(own, style),
        Answer::Memory(own) => crate::show::explain::limits::memory(own, style),
        Answer::Placement(own) => crate::show::place::overview(own, why, style),
        Answer::Records(own) => own.as_ref().map_or_else(
            || "no BPF program sends records\n".to_owned(),
            |own| crate::show::check::records_text(own, style),
        ),
        Answer::Overview(own) => crate::show::top::text::table(own, style),
    }
}

fn eviction(own: &EvictionExplanation, style: Style) -> String {
    let mut text = signals(own).render(style);
    for condition in own.conditions.iter().filter(|condition| condition.status) {
        let ends = condition.ends_in_ns.map_or_else(String::new, |ns| {
            format!(", for {} more at least", span(ns))
        });
        text += &format!("\n{}{ends}\n", style.red(condition.condition.as_str()));
    }
    text.push('\n');
    for pod in &own.leaving {
        text += &leaving(pod);
    }
    for over in &own.over_local_storage {
        text += &format!(
            "{} goes whatever the signals show: {}\n",
            over.pod, over.reason
        );
    }
    if !own.leaving.is_empty() || !own.over_local_storage.is_empty() {
        text.push('\n');
    }
    text += &format!("Ranking for {}, {}:\n\n", own.signal, because(own));
    text += &ranking(own).render(style);
    for not in &own.not_ranked {
        text += &style.dim(&format!("not ranked: {}, which {}", not.pod, not.why));
        text.push('\n');
    }
    text += &next(own, style);
    text += &last_line(own);
    text + &kubelet(own)
}

fn last_line(own: &EvictionExplanation) -> String {
    /// Those that are named.
    const NAMED: usize = 5;
    let Some(line) = &own.last_line else {
        return String::new();
    };
    let mut named = line.order[..line.order.len().min(NAMED)].join(", ");
    if line.order.is_empty() {
        named.push_str("nobody");
    } else if line.order.len() > NAMED {
        named += &format!(" and {} more", line.order.len() - NAMED);
    }
    let bytes = |bytes: u64| amount(bytes.into(), Unit::Bytes);
    format!(
        "The last line in the kernel, for {} after plimsoll was last heard of: with less than {} available, if plimsoll does not answer within {}, \
         or less than {}, it kills what allocates of {named}\n",
        span(line.expires_after_ns),
        bytes(line.line_bytes),
        span(line.acknowledge_within_ns),
        bytes(line.critical_bytes),
    )
}

fn because(own: &EvictionExplanation) -> &'static str {
    match own.signal_because {
        SignalChoice::Asked => "as asked for",
        SignalChoice::Foreseen => "as it is foreseen that memory is gone soon",
        SignalChoice::Met => "which asks for a victim",
        SignalChoice::Grace => "of which a threshold is met and its grace period runs",
        SignalChoice::Nearest => "the nearest to its threshold",
        SignalChoice::Default => "as no signal with a threshold has been observed",
    }
}

fn signals(own: &EvictionExplanation) -> Table {
    let mut table = Table::new(
        &["SIGNAL", "SHOWS", "OF", "THRESHOLD", "HEADROOM", "STATE"],
        &[1, 2],
    );
    for signal in &own.signals {
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
        .map_or_else(|| "?".to_owned(), |own| amount(own.into(), signal.unit));
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
        "met: asks for a victim".to_owned()
    };
    match threshold.min_reclaim {
        Some(more) if more > 0 => {
            let more = amount(more.into(), signal.unit);
            format!("{grace}, over when {more} more is there")
        }
        _ => grace,
    }
}

fn leaving(pod: &LeavingPod) -> String {
    let why = if pod.evicted {
        "evicted"
    } else {
        "its manifest is gone"
    };
    let stage = match (pod.empty, pod.kill_in_ns) {
        (true, _) => "all processes are gone, its memory is awaited".to_owned(),
        (false, Some(ns)) => format!("killed in {} if it has not left by then", span(ns)),
        (false, None) => "killed".to_owned(),
    };
    format!("{} is on its way out ({why}): {stage}\n", pod.pod)
}

fn ranking(own: &EvictionExplanation) -> Table {
    let places = own.ranking.places.iter();
    ranking_table(
        places.map(|place| (place, String::new())),
        |figure| amount(figure, own.usage_unit),
        false,
    )
}

fn next(own: &EvictionExplanation, style: Style) -> String {
    let Some(next) = own.ranking.next() else {
        let why = if own.ranking.places.is_empty() {
            "no pod has processes"
        } else {
            "all are exempt"
        };
        return format!("\nNobody can be evicted: {why}.\n");
    };
    let mut text = match &own.victims[..] {
        [only] if *only == next.pod => format!("\nNext to be evicted: {}", style.bold(only)),
        several => format!(
            "\nTo be evicted together, being as many as are needed: {}",
            style.bold(&several.join(", "))
        ),
    };
    let following = own
        .ranking
        .places
        .iter()
        .find(|place| place.rank == next.rank + 1);
    if let (Some(following), Some(by)) = (following, next.ahead_of_next_by)
        && own.victims.len() == 1
    {
        text += &format!(", ahead of {} by {by}", following.pod);
    }
    text + "\n"
}

fn kubelet(own: &EvictionExplanation) -> String {
    let kubelet = &own.kubelet;
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

fn one_pod(own: &EvictionExplanation, pod: &ExplainedPod, style: Style) -> String {
    let figure = |figure: u64| amount(figure.into(), own.usage_unit);
    let class = pod
        .priority_class_name
        .as_ref()
        .map_or_else(String::new, |class| format!(" ({class})"));
    let mut text = format!(
        "{}, {}, priority {}{class}, for {}, {}:\n",
        style.bold(&pod.pod),
        pod.qos_class,
        pod.priority,
        own.signal,
        because(own)
    );
    let mut line = |what: &str, says: String| text += &format!("  {what:16}{says}\n");
    if let (Some(usage), Some(working_set)) = (pod.memory_usage_bytes, pod.memory_working_set_bytes)
    {
        line(
            "memory",
            format!(
                "{} charged, of which {} is the working set",
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
                let (over, word) = (amount(over.unsigned_abs().into(), own.usage_unit), over < 0);
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
            format!("{} of {}", place.rank, own.ranking.places.len()),
        );
    }
    if let Some(before) = &pod.before {
        line("before it", format!("{}, by {}", before.pod, before.by));
    }
    if let Some(after) = &pod.after {
        line("after it", format!("{}, by {}", after.pod, after.by));
    }
    if pod.leaving {
        line("state", "on its way out".to_owned());
    }
    text.push('\n');
    text += &verdict(own, pod);
    text + &kubelet(own)
}

fn verdict(own: &EvictionExplanation, pod: &ExplainedPod) -> String {
    let figure = |figure: u64| amount(figure.into(), own.usage_unit);
    if let Some(why) = pod.exempt {
        return format!("It is not evicted for any signal: {why}.\n");
    }
    if let Some(why) = pod.not_ranked {
        return format!("It is not evicted: it {why}.\n");
    }
    let is_next = pod
        .place
        .as_ref()
        .is_some_and(|place| place.standing == Standing::Next);
    if !is_next {
        let mut text = match pod.shielded_by {
            1 => "One pod that can be evicted goes before it: it is safe while that is there.\n"
                .to_owned(),
            pods => format!(
                "{pods} pods that can be evicted go before it: it is safe while one of them is there.\n"
            ),
        };
        text += &match pod.next_at_usage {
            Some(usage) => format!(
                "It would be the next from a usage of {} on, if all else stays.\n",
                figure(usage)
            ),
            None => "No usage of its own would make it the next.\n".to_owned(),
        };
        if own.victims.contains(&pod.pod) {
            text += "It would be evicted together with the next one: the target needs both.\n";
        }
        return text;
    }
    if own
        .ranking
        .places
        .iter()
        .filter(|place| place.exempt.is_none())
        .count()
        == 1
    {
        return "It is the next to be evicted: nobody else can be.\n".to_owned();
    }
    let mut text = "It is the next to be evicted.".to_owned();
    if pod.ways_out.is_empty() {
        return text + " No change of its own would put another pod in its place.\n";
    }
    text += " Another would be, if all else stays, from the moment that\n";
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
    use plimsoll_core::model::signal::Signal;
    use plimsoll_core::model::threshold::{Amount, Passes, Threshold};

    use super::*;
    use crate::record::limit_counts::{LimitCounts, LimitTotals};
    use crate::record::snapshot::Snapshot;
    use crate::serve::control::Request;
    use crate::serve::control::server::answer;
    use crate::testkit::{self, MIB};

    fn snapshot() -> Snapshot {
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
    fn evictions() {
        assert_eq!(shown(&eviction_of(None)), "\
SIGNAL                  SHOWS   OF  THRESHOLD           HEADROOM          STATE
memory.available        500Mi  1Gi  < 100Mi hard        400Mi (39.06 %)
                                    < 600Mi soft, 30 s  -100Mi (-9.76 %)  met, 30 s of grace left, over when 50Mi more is there
kernelMemory.available      0  1Gi  none

MemoryPressure, for 5 min more at least

Ranking for memory.available, of which a threshold is met and its grace period runs:

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
                "The last line in the kernel, for 30 s after plimsoll was last heard of: with less than 100Mi available, if plimsoll \
                 does not answer within 200 ms, or less than 25Mi, it kills what allocates of default/web, default/batch\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn one_pod_and_its_ways_out() {
        assert_eq!(shown(&eviction_of(Some("web"))), "\
default/web, Burstable, priority 0, for memory.available, of which a threshold is met and its grace period runs:
  memory          300Mi charged, of which 300Mi is the working set
  usage           300Mi, 200Mi above its request of 100Mi
  place           1 of 3
  after it        default/batch, by more usage over request

It is the next to be evicted. Another would be, if all else stays, from the moment that
  - it uses 140Mi or less
  - it requests 260Mi or more
  - its priority is 1 or higher
The kubelet would choose the same.
");
        assert_eq!(shown(&eviction_of(Some("batch"))), "\
default/batch, BestEffort, priority 0, for memory.available, of which a threshold is met and its grace period runs:
  memory          40Mi charged, of which 40Mi is the working set
  usage           40Mi, 40Mi above its request of 0
  place           2 of 3
  before it       default/web, by more usage over request
  after it        default/dns, by lower priority

One pod that can be evicted goes before it: it is safe while that is there.
It would be the next from a usage of 200Mi on, if all else stays.
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
default/batch  BestEffort   40Mi         40Mi        -      -  any         it reclaimed for the node for 20 ms lately: the node is short, not the pod; 300 pages that were taken away were needed again lately; it requests nothing, so all of it counts as above its request
default/dns    BestEffort   20Mi         20Mi        -      -  any         it requests nothing, so all of it counts as above its request
default/web    Burstable   300Mi        300Mi    100Mi      -  any         a process of it was killed for want of memory; it is at its limit: what it takes must be reclaimed from it first; 200Mi above its request

POD            HIGH  MAX  OOM  KILLED  LOW  WAITED  FOR LIMITS  FOR HIGH  FOR THE NODE  READ BACK  FROM SWAP
default/batch     0    0    0       0    0    0 ms        0 ms      0 ms         20 ms        300          0
default/web       0   40    0       1    0   1.5 s       1.4 s      0 ms          0 ms          0          0

Since plimsoll first saw the pod. HIGH, MAX and OOM: times that memory.high was exceeded, memory.max met, and no room made; LOW:
reclaimed from although below memory.low; KILLED: processes. WAITED for memory, and what of it was reclaim for its own limits,
sleep for memory.high, or reclaim for the node. READ BACK: pages that had been taken away.
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
            text.contains("of format 1") && !text.contains("KILLED"),
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
        assert!(text.contains("of format 1"), "{text}");
        // Programs read the same names as before.
        let answer = answer(&one, &with_totals()).unwrap();
        let Answer::Throttling(own) = &answer else {
            panic!("another answer");
        };
        let json = serde_json::to_value(own).unwrap();
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
        assert_eq!(read.own, own.own);
    }

    #[test]
    fn kills_by_the_kernel() {
        assert_eq!(shown(&Request::ExplainOom { pod: None }), "\
1Gi of memory, no swap; oom_score_adj is the kubelet's.

RANK  POD            CONTAINER  QOS         WORKING SET   ADJ  BADNESS  WHY THE KUBELET'S ADJ
   1  default/web    app        Burstable         300Mi   903     1195  1000 - 1000 * 100Mi / 1Gi
   2  default/batch  job        BestEffort         40Mi  1000     1039  BestEffort: before all others
   3  default/dns    dns        BestEffort         20Mi  -997     -978  system-node-critical

BADNESS is thousandths of memory and swap plus ADJ, as if one process had all of its pod's working set: what a process really
has is less. The kernel kills the highest first.
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
