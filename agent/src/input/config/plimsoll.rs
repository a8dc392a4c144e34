//! Plimsoll's own options: the object `plimsoll:`, and the kind of a file that is not a kubelet's.
//!
//! Their defaults are [`EvictionOptions::default`], in one place ([`PlimsollOptions::default`]); the table has none.

use plimsoll_core::kube::admission::names::dns_label_errors;
use plimsoll_core::kube::duration;
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::kube::resources::{CPU, MEMORY};
use plimsoll_core::model::options::{
    Availability, Breaker, CpuBurst, CpuOptions, CpuSuppress, EvictionOptions, Foresight, LastLine,
    NamespaceShare, OomOrder, OveruseRanking, Remedies, Victims,
};
use plimsoll_core::policy::cpu::suppress::GIVE_UP_NS;
use plimsoll_core::policy::eviction::remedies::THROTTLE_MAX_NS;
use plimsoll_core::policy::eviction::share::NAMESPACE_SHARES_MAX;

use super::document::{Entry, Node, Value};
use super::problem::Problem;
use super::schema::{Class::Used, Field, Shape, field, int};
use super::tree::Tree;

/// `apiVersion` of our own file.
pub const API_VERSION: &str = "plimsoll.dev/v1alpha1";
/// `kind` of our own file.
pub const KIND: &str = "PlimsollConfiguration";

/// The fields below `plimsoll`.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    field("evictionVictims", Used, Shape::OneOf(&["One", "Targeted"]),
        "pods per eviction pass: One (the kubelet's rule), or Targeted: as many as the threshold needs"),
    field("memoryAvailability", Used, Shape::OneOf(&["Kubelet", "Reclaimable"]),
        "available memory: Kubelet (capacity minus working set), or Reclaimable (what the kernel can hand out)"),
    field("outOfMemoryForesight", Used, Shape::Object(&[
        field("horizon", Used, Shape::Duration, "horizon of the prediction; 0s: off").pointer(),
    ]), "evict if memory would run out within the horizon, even if no threshold is met"),
    field("remedies", Used, Shape::Object(&[
        field("reclaim", Used, Shape::Duration, "time for memory.reclaim on the first pods of the ranking; 0s: off").pointer(),
        field("throttle", Used, Shape::Duration, "time at memory.high for the pod that would be evicted, at most 10s; 0s: off").pointer(),
        field("notify", Used, Shape::Duration, "time for the pod to release memory after its signal; 0s: off").pointer(),
    ]), "remedies tried before a pod is evicted for memory, and for how long"),
    field("evictionBreaker", Used, Shape::Object(&[
        field("interval", Used, Shape::Duration, "at most one eviction for memory in this time; 0s: off").pointer(),
    ]), "evict slowly while the memory of an evicted pod does not come back and other pods do not have what is missing"),
    field("respectDisruptionBudgets", Used, Shape::Bool,
        "skip a pod whose disruption budget is exhausted, if evicting other pods is enough").pointer(),
    field("namespaceShares", Used, Shape::Map(&Shape::Map(&Shape::Quantity)),
        "by namespace, the memory and cpu of this node above which its pods are evicted first among equals").pointer(),
    field("overuseRanking", Used, Shape::OneOf(&["Ignore", "AmongEquals", "BeforePriority"]),
        "beside a kubelet: pods of namespaces that use more of the cluster than they deserve go first, not at all (Ignore), among equals, or before priority"),
    field("oomScoreOrder", Used, Shape::OneOf(&["Kubelet", "Dynamic"]),
        "oom_score_adj by QoS class and request (Kubelet), or following the eviction ranking (Dynamic)"),
    field("podOOMGroup", Used, Shape::Bool,
        "the kernel's OOM killer kills whole pods (memory.oom.group)").pointer(),
    field("lastLine", Used, Shape::Object(&[
        field("enabled", Used, Shape::Bool, "switch the last line on").pointer(),
        field("acknowledgeWithin", Used, Shape::Duration, "the agent must answer a crossing within this time, 10ms to 1m").pointer(),
        field("expiresAfter", Used, Shape::Duration, "stays active for this time after the agent's last update, 1s to 1h").pointer(),
    ]), "a BPF program that kills a task of the next pod in the ranking when memory is short and the agent does not answer"),
    field("cpuBurst", Used, Shape::Object(&[
        field("enabled", Used, Shape::Bool, "switch CPU burst on").pointer(),
        field("burstPercent", Used, int(0, 100), "cpu.max.burst as a percentage of the quota; 0: unchanged").pointer(),
        field("quotaPercent", Used, int(100, 1000), "largest quota as a percentage of the CPU limit's quota; 100: unchanged").pointer(),
        field("allowance", Used, Shape::Duration, "unused CPU time that can be saved, as the time in which the limit allows it").pointer(),
        field("nodeUsePercent", Used, int(1, 100), "no burst while the shared CPUs are busier than this").pointer(),
        field("waitPercent", Used, int(1, 100), "no burst while a pod below its request waits for CPU for more than this share of time").pointer(),
    ]), "let a throttled container burst above its CPU limit for a while, paid from CPU time it left unused"),
    field("cpuSuppress", Used, Shape::Object(&[
        field("enabled", Used, Shape::Bool, "switch CPU suppression on").pointer(),
        field("waitPercent", Used, int(1, 100), "share of time for which a pod below its request may wait for CPU").pointer(),
        field("floorMilliCPU", Used, int(10, 1_000_000), "no pod gets less than this, in thousandths of a CPU").pointer(),
        field("budget", Used, Shape::Duration, "longest suppression in one go, 10s to 24h; in the long run at most half of the time").pointer(),
    ]), "limit BestEffort pods while pods below their CPU request wait for CPU"),
];

/// The options as the engine takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlimsollOptions {
    /// Of the eviction policy.
    pub eviction: EvictionOptions,
    /// Of CPU time.
    pub cpu: CpuOptions,
}

const VICTIMS: [(&str, Victims); 2] = [("One", Victims::One), ("Targeted", Victims::Targeted)];
const AVAILABILITY: [(&str, Availability); 2] = [
    ("Kubelet", Availability::Kubelet),
    ("Reclaimable", Availability::Reclaimable),
];
const OVERUSE_RANKING: [(&str, OveruseRanking); 3] = [
    ("Ignore", OveruseRanking::Ignore),
    ("AmongEquals", OveruseRanking::AmongEquals),
    ("BeforePriority", OveruseRanking::BeforePriority),
];
const OOM_ORDER: [(&str, OomOrder); 2] = [
    ("Kubelet", OomOrder::Kubelet),
    ("Dynamic", OomOrder::Dynamic),
];

fn named<T: Copy>(names: &[(&str, T)], node: Option<&Node>) -> Option<T> {
    let Value::Text(text) = &node?.value else {
        return None;
    };
    names
        .iter()
        .find(|(name, _)| name == text)
        .map(|(_, value)| *value)
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> Value {
    let name = names
        .iter()
        .find(|(_, known)| known == value)
        .map_or("", |(name, _)| name);
    Value::Text(name.to_owned())
}

fn bool_of(node: Option<&Node>) -> Option<bool> {
    match node?.value {
        Value::Bool(value) => Some(value),
        _ => None,
    }
}

/// Nanoseconds of a duration that was checked; 0 where there is none.
fn duration_ns(node: Option<&Node>) -> u64 {
    match node.map(|node| &node.value) {
        Some(Value::Text(text)) => duration::parse_ns(text)
            .ok()
            .and_then(|ns| u64::try_from(ns).ok())
            .unwrap_or(0),
        _ => 0,
    }
}

/// A number that was checked.
fn number(node: Option<&Node>) -> Option<u32> {
    match node?.value {
        Value::Integer(value) => u32::try_from(value).ok(),
        _ => None,
    }
}

/// The shares of namespaces, sorted by name.
pub(super) fn namespace_shares(section: Option<&Node>) -> Vec<NamespaceShare> {
    let of = |entry: &Entry| {
        let amount = |name: &str, of: fn(&Quantity) -> i64| {
            let quantity = Tree(&entry.node).quantity(name);
            quantity.map(|quantity| u64::try_from(of(&quantity)).unwrap_or(0))
        };
        NamespaceShare {
            namespace: entry.key.clone(),
            memory_bytes: amount(MEMORY, Quantity::value),
            cpu_milli: amount(CPU, Quantity::milli_value),
        }
    };
    let mut shares: Vec<NamespaceShare> = entries(section).iter().map(of).collect();
    shares.sort_by(|a, b| a.namespace.cmp(&b.namespace));
    shares
}

/// What `namespaceShares` has.
fn entries(section: Option<&Node>) -> &[Entry] {
    match section.and_then(|section| section.get("namespaceShares")) {
        Some(Node {
            value: Value::Map(entries),
            ..
        }) => entries,
        _ => &[],
    }
}

/// What is wrong with `namespaceShares`: too many, names that no namespace can have, resources without shares, negative
/// amounts.
pub(super) fn check_namespace_shares(section: Option<&Node>, problems: &mut Vec<Problem>) {
    let all = entries(section);
    if let Some(beyond) = all.get(NAMESPACE_SHARES_MAX) {
        problems.push(Problem::new(
            beyond.origin,
            "plimsoll.namespaceShares",
            format!("at most {NAMESPACE_SHARES_MAX} namespaces: leave some out"),
        ));
    }
    for entry in all {
        if !dns_label_errors(&entry.key).is_empty() {
            let what =
                "no namespace has this name: use lower-case letters, digits and '-', at most 63";
            problems.push(Problem::new(
                entry.origin,
                format!("plimsoll.namespaceShares.{}", entry.key),
                what,
            ));
        }
        let Value::Map(amounts) = &entry.node.value else {
            continue;
        };
        for amount in amounts {
            let field = format!("plimsoll.namespaceShares.{}.{}", entry.key, amount.key);
            let quantity = Tree(&entry.node).quantity(&amount.key);
            if ![MEMORY, CPU].contains(&amount.key.as_str()) {
                let what = format!("no shares of it: write {MEMORY} or {CPU}");
                problems.push(Problem::new(amount.origin, field, what));
            } else if quantity.is_some_and(|quantity| quantity.sign() < 0) {
                let what = "must not be negative";
                problems.push(Problem::new(amount.origin, field, what.to_owned()));
            }
        }
    }
}

/// Reads what is about CPU time; an object that is not enabled is `None`.
fn cpu_options(burst: Option<&Node>, suppress: Option<&Node>) -> CpuOptions {
    let is_on = |node: &&Node| bool_of(node.get("enabled")) == Some(true);
    CpuOptions {
        burst: burst.filter(is_on).map(|node| {
            let default = CpuBurst::default();
            CpuBurst {
                burst_percent: number(node.get("burstPercent")).unwrap_or(default.burst_percent),
                quota_percent: number(node.get("quotaPercent")).unwrap_or(default.quota_percent),
                allowance_ns: node
                    .get("allowance")
                    .map_or(default.allowance_ns, |value| duration_ns(Some(value))),
                node_use_percent: number(node.get("nodeUsePercent"))
                    .unwrap_or(default.node_use_percent),
                wait_percent: number(node.get("waitPercent")).unwrap_or(default.wait_percent),
            }
        }),
        suppress: suppress.filter(is_on).map(|node| {
            let default = CpuSuppress::default();
            CpuSuppress {
                wait_percent: number(node.get("waitPercent")).unwrap_or(default.wait_percent),
                floor_milli: number(node.get("floorMilliCPU"))
                    .map_or(default.floor_milli, u64::from),
                budget_ns: node
                    .get("budget")
                    .map_or(default.budget_ns, |value| duration_ns(Some(value))),
            }
        }),
    }
}

/// A duration as it is written, exactly.
pub(super) fn duration_text(ns: u64) -> String {
    const UNITS: [(u64, &str); 6] = [
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    let mut text = String::new();
    let mut rest = ns;
    for (unit_ns, unit) in UNITS {
        if rest >= unit_ns {
            text += &format!("{}{unit}", rest / unit_ns);
            rest %= unit_ns;
        }
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

impl PlimsollOptions {
    /// Reads the object, checked and with defaults.
    pub(super) fn read(node: Option<&Node>) -> Self {
        let default = Self::default().eviction;
        let get = |name: &str| node.and_then(|node| node.get(name));
        let foresight = match get("outOfMemoryForesight") {
            Some(object) => match duration_ns(object.get("horizon")) {
                0 => None,
                horizon_ns => Some(Foresight { horizon_ns }),
            },
            None => default.foresight,
        };
        let remedies = match get("remedies") {
            Some(object) => {
                let remedies = Remedies {
                    reclaim_budget_ns: duration_ns(object.get("reclaim")),
                    throttle_budget_ns: duration_ns(object.get("throttle")),
                    notify_budget_ns: duration_ns(object.get("notify")),
                };
                let any = remedies.reclaim_budget_ns != 0
                    || remedies.throttle_budget_ns != 0
                    || remedies.notify_budget_ns != 0;
                any.then_some(remedies)
            }
            None => default.remedies,
        };
        let breaker = match get("evictionBreaker") {
            Some(object) => match duration_ns(object.get("interval")) {
                0 => None,
                interval_ns => Some(Breaker { interval_ns }),
            },
            None => default.breaker,
        };
        Self {
            eviction: EvictionOptions {
                victims: named(&VICTIMS, get("evictionVictims")).unwrap_or(default.victims),
                availability: named(&AVAILABILITY, get("memoryAvailability"))
                    .unwrap_or(default.availability),
                foresight,
                remedies,
                disruption_budgets: bool_of(get("respectDisruptionBudgets"))
                    .unwrap_or(default.disruption_budgets),
                overuse_ranking: named(&OVERUSE_RANKING, get("overuseRanking"))
                    .unwrap_or(default.overuse_ranking),
                oom_order: named(&OOM_ORDER, get("oomScoreOrder")).unwrap_or(default.oom_order),
                pod_oom_group: bool_of(get("podOOMGroup")).unwrap_or(default.pod_oom_group),
                last_line: get("lastLine")
                    .filter(|object| bool_of(object.get("enabled")) == Some(true))
                    .map(|object| LastLine {
                        acknowledge_within_ns: duration_ns(object.get("acknowledgeWithin")),
                        expires_after_ns: duration_ns(object.get("expiresAfter")),
                    })
                    .or(default.last_line),
                breaker,
            },
            cpu: cpu_options(get("cpuBurst"), get("cpuSuppress")),
        }
    }

    /// The options as they would be written.
    fn entries(&self) -> [(&'static str, Value); 13] {
        let eviction = &self.eviction;
        let durations = |pairs: &[(&str, u64)]| {
            Value::Map(
                pairs
                    .iter()
                    .map(|(name, ns)| Entry::default_of(name, Value::Text(duration_text(*ns))))
                    .collect(),
            )
        };
        let remedies = eviction.remedies.unwrap_or(Remedies {
            reclaim_budget_ns: 0,
            throttle_budget_ns: 0,
            notify_budget_ns: 0,
        });
        [
            ("evictionVictims", name_of(&VICTIMS, &eviction.victims)),
            (
                "memoryAvailability",
                name_of(&AVAILABILITY, &eviction.availability),
            ),
            (
                "outOfMemoryForesight",
                durations(&[("horizon", eviction.foresight.map_or(0, |it| it.horizon_ns))]),
            ),
            (
                "remedies",
                durations(&[
                    ("reclaim", remedies.reclaim_budget_ns),
                    ("throttle", remedies.throttle_budget_ns),
                    ("notify", remedies.notify_budget_ns),
                ]),
            ),
            (
                "evictionBreaker",
                durations(&[("interval", eviction.breaker.map_or(0, |it| it.interval_ns))]),
            ),
            (
                "respectDisruptionBudgets",
                Value::Bool(eviction.disruption_budgets),
            ),
            ("namespaceShares", Value::Map(Vec::new())),
            (
                "overuseRanking",
                name_of(&OVERUSE_RANKING, &eviction.overuse_ranking),
            ),
            ("oomScoreOrder", name_of(&OOM_ORDER, &eviction.oom_order)),
            ("podOOMGroup", Value::Bool(eviction.pod_oom_group)),
            ("lastLine", last_line(eviction.last_line)),
            ("cpuBurst", burst_entries(self.cpu.burst)),
            ("cpuSuppress", suppress_entries(self.cpu.suppress)),
        ]
    }
}

fn last_line(configured: Option<LastLine>) -> Value {
    let enabled = configured.is_some();
    let LastLine {
        acknowledge_within_ns,
        expires_after_ns,
    } = configured.unwrap_or_default();
    let duration = |ns| Value::Text(duration_text(ns));
    Value::Map(vec![
        Entry::default_of("enabled", Value::Bool(enabled)),
        Entry::default_of("acknowledgeWithin", duration(acknowledge_within_ns)),
        Entry::default_of("expiresAfter", duration(expires_after_ns)),
    ])
}

const SECOND_NS: i64 = 1_000_000_000;

/// Durations that have limits: option, part of it, the shortest and the longest, nanoseconds.
const DURATION_LIMITS: [(&str, &str, i64, i64); 4] = [
    ("remedies", "throttle", 0, THROTTLE_MAX_NS.cast_signed()),
    (
        "lastLine",
        "acknowledgeWithin",
        SECOND_NS / 100,
        60 * SECOND_NS,
    ),
    ("lastLine", "expiresAfter", SECOND_NS, 3600 * SECOND_NS),
    // With less, pods would be held and released again and again before it can be known whether that helps.
    (
        "cpuSuppress",
        "budget",
        GIVE_UP_NS.cast_signed(),
        24 * 3600 * SECOND_NS,
    ),
];

/// What is wrong with the durations of an option.
fn check_durations(option: &str, parts: &[Entry], problems: &mut Vec<Problem>) {
    let limits = DURATION_LIMITS.iter().filter(|(of, ..)| *of == option);
    for (_, name, min_ns, max_ns) in limits {
        let Some(part) = parts.iter().find(|part| part.key == *name) else {
            continue;
        };
        // What is no duration has been reported.
        let given = match &part.node.value {
            Value::Text(text) => duration::parse_ns(text).ok(),
            _ => None,
        };
        if given.is_some_and(|ns| !(*min_ns..=*max_ns).contains(&ns)) {
            let text = |ns: i64| duration_text(ns.unsigned_abs());
            problems.push(Problem::new(
                part.node.origin,
                format!("plimsoll.{option}.{name}"),
                format!("from {} to {}", text(*min_ns), text(*max_ns)),
            ));
        }
    }
}

fn burst_entries(configured: Option<CpuBurst>) -> Value {
    let burst = configured.unwrap_or_default();
    let number = |value: u32| Value::Integer(value.into());
    Value::Map(vec![
        Entry::default_of("enabled", Value::Bool(configured.is_some())),
        Entry::default_of("burstPercent", number(burst.burst_percent)),
        Entry::default_of("quotaPercent", number(burst.quota_percent)),
        Entry::default_of("allowance", Value::Text(duration_text(burst.allowance_ns))),
        Entry::default_of("nodeUsePercent", number(burst.node_use_percent)),
        Entry::default_of("waitPercent", number(burst.wait_percent)),
    ])
}

fn suppress_entries(configured: Option<CpuSuppress>) -> Value {
    let suppress = configured.unwrap_or_default();
    Value::Map(vec![
        Entry::default_of("enabled", Value::Bool(configured.is_some())),
        Entry::default_of("waitPercent", Value::Integer(suppress.wait_percent.into())),
        Entry::default_of("floorMilliCPU", Value::Integer(suppress.floor_milli.into())),
        Entry::default_of("budget", Value::Text(duration_text(suppress.budget_ns))),
    ])
}

/// Adds the options that the file leaves out, and says what an object lacks. A remedy that is left out of `remedies` is
/// off.
pub(super) fn complete(root: &mut Node, problems: &mut Vec<Problem>) {
    let Value::Map(fields) = &mut root.value else {
        return;
    };
    if !fields.iter().any(|field| field.key == "plimsoll") {
        fields.push(Entry::default_of("plimsoll", Value::Map(Vec::new())));
    }
    let Some(section) = fields.iter_mut().find(|field| field.key == "plimsoll") else {
        return;
    };
    let Value::Map(options) = &mut section.node.value else {
        return;
    };
    for (name, value) in PlimsollOptions::default().entries() {
        let Some(given) = options.iter_mut().find(|option| option.key == name) else {
            options.push(Entry::default_of(name, value));
            continue;
        };
        let origin = given.node.origin;
        let (Value::Map(parts), Value::Map(wanted)) = (&mut given.node.value, value) else {
            continue;
        };
        for part in wanted {
            if parts.iter().any(|given| given.key == part.key) {
                continue;
            }
            if name == "outOfMemoryForesight" {
                problems.push(Problem::new(
                    origin,
                    "plimsoll.outOfMemoryForesight",
                    "horizon is missing: write for example {horizon: 500ms}, or {horizon: 0s} for off",
                ));
                break;
            }
            if part.key == "enabled" {
                problems.push(Problem::new(
                    origin,
                    format!("plimsoll.{name}"),
                    format!("enabled is missing: write {{enabled: true}}, or leave {name} out"),
                ));
            }
            // Of `remedies` that is 0s: off.
            parts.push(part);
        }
        check_durations(name, parts, problems);
    }
}
