//! What fields must be together, as the kubelet validates it.
//!
//! Source: `ValidateKubeletConfiguration` in `pkg/kubelet/apis/config/validation/validation.go` with
//! `validation_reserved_memory.go`, `parseResourceList` and `run` in `cmd/kubelet/app/server.go`, `ParseQOSReserved` in
//! `pkg/kubelet/cm/container_manager.go`, the option tables in `pkg/kubelet/cm/cpumanager/policy_options.go` and
//! `pkg/kubelet/cm/topologymanager/policy_options.go`, and `cpuset.Parse` in `k8s.io/utils`, all of 1.36. Ranges of
//! single fields are in the table ([`super::kubelet`]).
//!
//! Of fields that are the kubelet's alone only their ranges are checked. Names of feature gates are not: each release
//! has others.

use std::collections::BTreeSet;

use plimsoll_core::kube::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, is_huge_pages};
use plimsoll_core::placement::cpu_set::CpuSet;

use super::document::Origin;
use super::problem::Problem;
use super::tree::Tree;

/// Resource name of process IDs in reservations (`pkg/kubelet/stats/pidlimit`).
pub const PIDS: &str = "pid";

/// Items of `enforceNodeAllocatable` (`pkg/kubelet/types/constants.go`).
pub const ENFORCEMENTS: [&str; 6] = [
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
    "none",
];

const CPU_OPTIONS: [&str; 6] = [
    "full-pcpus-only",
    "distribute-cpus-across-numa",
    "align-by-socket",
    "distribute-cpus-across-cores",
    "strict-cpu-reservation",
    "prefer-align-cpus-by-uncorecache",
];
const TOPOLOGY_SWITCH: &str = "prefer-closest-numa-nodes";
const TOPOLOGY_COUNT: &str = "max-allowable-numa-nodes";
/// The least and default `max-allowable-numa-nodes`.
const NUMA_NODES: u64 = 8;
const MS_NS: u64 = 1_000_000;
/// Checks a tree that has its defaults.
pub(super) fn check(tree: Tree<'_>, problems: &mut Vec<Problem>) {
    quota(tree, problems);
    images(tree, problems);
    logs(tree, problems);
    enforcement(tree, problems);
    reservations(tree, problems);
    memory(tree, problems);
    managers(tree, problems);
}

fn quota(tree: Tree<'_>, problems: &mut Vec<Problem>) {
    const FIELD: &str = "cpuCFSQuotaPeriod";
    let Some(period_ns) = tree.duration_ns(FIELD) else {
        return;
    };
    if !(MS_NS..=1000 * MS_NS).contains(&period_ns) {
        problems.push(tree.problem(FIELD, "must be between 1ms and 1s"));
    } else if !tree.gate("CustomCPUCFSQuotaPeriod") && period_ns != 100 * MS_NS {
        problems.push(tree.problem(
            FIELD,
            "a period other than 100ms needs the feature gate CustomCPUCFSQuotaPeriod, which is switched off",
        ));
    }
}

fn images(tree: Tree<'_>, problems: &mut Vec<Problem>) {
    if let (Some(high), Some(low)) = (
        tree.integer("imageGCHighThresholdPercent"),
        tree.integer("imageGCLowThresholdPercent"),
    ) && low >= high
    {
        problems.push(tree.problem(
            "imageGCLowThresholdPercent",
            format!("{low} must be less than imageGCHighThresholdPercent, which is {high}"),
        ));
    }
    if let (Some(most), Some(least)) = (
        tree.duration_ns("imageMaximumGCAge"),
        tree.duration_ns("imageMinimumGCAge"),
    ) && most > 0
        && most <= least
    {
        problems.push(tree.problem(
            "imageMaximumGCAge",
            "must be more than imageMinimumGCAge, or 0s for never",
        ));
    }
}

fn logs(tree: Tree<'_>, problems: &mut Vec<Problem>) {
    if let Some(size) = tree.quantity("containerLogMaxSize")
        && size.value() <= 0
    {
        problems.push(tree.problem("containerLogMaxSize", "must be more than 0"));
    }
    if let Some(dir) = tree.text("podLogsDir") {
        let clean = dir.starts_with('/')
            && (dir == "/"
                || dir[1..]
                    .split('/')
                    .all(|part| !matches!(part, "" | "." | "..")));
        if !clean || !dir.is_ascii() {
            problems.push(tree.problem(
                "podLogsDir",
                format!("{dir:?} must be an absolute path of ASCII characters without \"//\", \".\", \"..\" and a \"/\" at its end"),
            ));
        }
    }
}

fn enforcement(tree: Tree<'_>, problems: &mut Vec<Problem>) {
    const FIELD: &str = "enforceNodeAllocatable";
    let items: Vec<(&str, Origin)> = tree.texts(FIELD).collect();
    let has = |wanted: &str| items.iter().any(|(item, _)| *item == wanted);
    for what in ["system-reserved", "kube-reserved"] {
        if has(what) && has(&format!("{what}-compressible")) {
            problems.push(tree.problem(
                FIELD,
                format!("{what} and {what}-compressible exclude each other: keep one"),
            ));
        }
    }
    let mut seen = BTreeSet::new();
    for &(item, origin) in &items {
        let problem = |reason: String| Problem::new(origin, FIELD, reason);
        if !seen.insert(item) {
            problems.push(problem(format!("{item:?} is there twice")));
            continue;
        }
        let cgroup_field = match item {
            "pods" => None,
            "system-reserved" | "system-reserved-compressible" => Some("systemReservedCgroup"),
            "kube-reserved" | "kube-reserved-compressible" => Some("kubeReservedCgroup"),
            "none" => {
                if items.len() > 1 {
                    problems.push(problem("\"none\" must stand alone".into()));
                }
                continue;
            }
            _ => {
                problems.push(problem(format!(
                    "{item:?} is not one of {}",
                    ENFORCEMENTS.join(", ")
                )));
                continue;
            }
        };
        if let Some(field) = cgroup_field
            && !tree.has(field)
        {
            problems.push(problem(format!(
                "{item:?} needs {field}: name the cgroup that is to be limited"
            )));
        }
        if tree.bool("cgroupsPerQOS") == Some(false) {
            problems.push(problem(format!(
                "{item:?} needs cgroupsPerQOS: true; with false, write [none]"
            )));
        }
    }
}

fn reservations(tree: Tree<'_>, problems: &mut Vec<Problem>) {
    for field in ["kubeReserved", "systemReserved"] {
        for (name, quantity, origin) in tree.quantities(field) {
            let path = format!("{field}: {name}");
            if ![CPU, MEMORY, EPHEMERAL_STORAGE, PIDS].contains(&name) {
                problems.push(Problem::new(
                    origin,
                    path,
                    format!(
                        "it cannot be reserved: use {CPU}, {MEMORY}, {EPHEMERAL_STORAGE} or {PIDS}"
                    ),
                ));
            } else if quantity.sign() < 0 {
                problems.push(Problem::new(origin, path, "it must not be negative"));
            }
        }
    }
    const CPUS: &str = "reservedSystemCPUs";
    if let Some(text) = tree.text(CPUS) {
        if let Err(error) = CpuSet::parse(text) {
            problems.push(tree.problem(CPUS, error.to_string()));
        }
        for field in ["systemReservedCgroup", "kubeReservedCgroup"] {
            if tree.has(field) {
                problems.push(tree.problem(
                    CPUS,
                    format!("it cannot be used together with {field}: leave one of them out"),
                ));
            }
        }
    }
    let mut seen = BTreeSet::new();
    for (index, reservation) in tree.items("reservedMemory").enumerate() {
        let numa_node = reservation.integer("numaNode").unwrap_or(0);
        for (name, quantity, origin) in reservation.quantities("limits") {
            let mut problem = |reason: String| {
                problems.push(Problem::new(
                    origin,
                    format!("reservedMemory[{index}].limits: {name}"),
                    reason,
                ));
            };
            if name != MEMORY && !is_huge_pages(name) {
                problem(format!("use {MEMORY} or hugepages-SIZE"));
            }
            if quantity.sign() <= 0 {
                problem("it must be more than 0".into());
            }
            if !seen.insert((numa_node, name)) {
                problem(format!("NUMA node {numa_node} has it twice"));
            }
        }
    }
}

fn memory(tree: Tree<'_>, problems: &mut Vec<Problem>) {
    const FACTOR: &str = "memoryThrottlingFactor";
    if let Some(factor) = tree.number(FACTOR)
        && !(factor > 0.0 && factor <= 1.0)
    {
        problems.push(tree.problem(
            FACTOR,
            format!("{factor} must be more than 0 and at most 1"),
        ));
    }
    const POLICY: &str = "memoryReservationPolicy";
    if tree.text(POLICY) == Some("TieredReservation") && !tree.gate("MemoryQoS") {
        problems.push(tree.problem(
            POLICY,
            "TieredReservation needs the feature gate MemoryQoS: add featureGates: {MemoryQoS: true}",
        ));
    }
    if !tree.gate("NodeSwap")
        && let Some(origin) = tree.given("memorySwap")
    {
        problems.push(Problem::new(
            origin,
            "memorySwap.swapBehavior",
            "it needs the feature gate NodeSwap, which is switched off",
        ));
    }
    const QOS: &str = "qosReserved";
    for (name, text, origin) in tree.labels(QOS) {
        let path = format!("{QOS}: {name}");
        if name != MEMORY {
            problems.push(Problem::new(
                origin,
                path,
                format!("only {MEMORY} can be reserved"),
            ));
        } else if percentage(text).is_none() {
            problems.push(Problem::new(
                origin,
                path,
                format!("{text:?} must be a whole percentage between 0% and 100%"),
            ));
        }
    }
}

fn managers(tree: Tree<'_>, problems: &mut Vec<Problem>) {
    const CPU: &str = "cpuManagerPolicyOptions";
    for (name, text, origin) in tree.labels(CPU) {
        let reason = if !CPU_OPTIONS.contains(&name) {
            format!(
                "there is no such option: use one of {}",
                CPU_OPTIONS.join(", ")
            )
        } else if go_bool(text).is_none() {
            format!("{text:?} must be \"true\" or \"false\"")
        } else {
            continue;
        };
        problems.push(Problem::new(origin, format!("{CPU}: {name}"), reason));
    }
    const TOPOLOGY: &str = "topologyManagerPolicyOptions";
    for (name, text, origin) in tree.labels(TOPOLOGY) {
        let reason = match name {
            TOPOLOGY_SWITCH if go_bool(text).is_none() => {
                format!("{text:?} must be \"true\" or \"false\"")
            }
            TOPOLOGY_COUNT if !text.parse::<u64>().is_ok_and(|count| count >= NUMA_NODES) => {
                format!("{text:?} must be a whole number of at least {NUMA_NODES}")
            }
            TOPOLOGY_SWITCH | TOPOLOGY_COUNT => continue,
            _ => format!("there is no such option: use {TOPOLOGY_SWITCH} or {TOPOLOGY_COUNT}"),
        };
        problems.push(Problem::new(origin, format!("{TOPOLOGY}: {name}"), reason));
    }
}

/// A whole percentage, as `50%`.
pub(super) fn percentage(text: &str) -> Option<i64> {
    let percent = text.strip_suffix('%')?.parse().ok()?;
    (0..=100).contains(&percent).then_some(percent)
}

/// What Go's `strconv.ParseBool` takes.
pub(super) fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}
