use plimsoll_core::engine::EngineConfig;
use plimsoll_core::explain::ExplainedOveruse;
use plimsoll_core::kube::admission::object::LimitRange;
use plimsoll_core::kube::admission::standing::QuotaUse;
use plimsoll_core::model::options::{NamespaceShare, OveruseRanking};
use plimsoll_core::model::rank_row::Comparator;
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::signal::Unit;
use plimsoll_core::model::threshold::Operator;
use plimsoll_core::model::threshold::{Amount, Passes, Threshold};
use plimsoll_core::protocol::cluster_link::OverusedNamespace;

use super::*;
use crate::record::limit_counts::{LimitCounts, LimitTotals};
use crate::record::snapshot::Snapshot;
use crate::serve::control::Request;
use crate::serve::control::server::answer;
use crate::show::table::{amount, span};
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
    assert!(ranking.pods.iter().all(|ranked| ranked.over_share == 800));
    assert!(ranking.comparators.contains(&Comparator::OverShare));
    let used =
        "default uses 360Mi of 200Mi, above it: its pods go first among those of equal priority\n";
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
        let item = serde_json::json!({"type": "Container", "defaultRequest": {"memory": amount}});
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
    let none = "LimitRange set  request memory=100Mi (by no LimitRange that is there now) of main";
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
  rank            1 of 3
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
  rank            2 of 3
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
        let uid = plimsoll_core::kube::pod_uid::PodUid::of_name("default", pod);
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
    let read: crate::serve::explained::ExplainedThrottling = serde_json::from_value(json).unwrap();
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
