//! The golden vectors: the committed samples always, the full files where they are at hand.

#[path = "../../agent/tests/notes/mod.rs"]
mod notes;

use std::path::{Path, PathBuf};

use serde_json::Value;
use tests::conformance::{self, FILES, Machines, Verdict};

/// Where the full files are, if that is not beside the workspace.
const FULL_FILES_VARIABLE: &str = "PLIMSOLL_GOLDEN";

/// Checks every file, and says how many vectors of which kinds these were.
fn check_all(directory: &Path, which: &str) {
    let mut failed = Vec::new();
    let mut counts = Vec::new();
    let (mut all, mut defects) = (0, 0);
    for (stem, check) in FILES {
        let report = conformance::run_with(&directory.join(format!("{stem}.jsonl")), *check)
            .unwrap_or_else(|error| panic!("{error}"));
        println!("{report}");
        if !report.is_success() {
            failed.push(stem);
        }
        let vectors =
            report.passed + report.failed + report.known_upstream_defects + report.acceptable;
        (all, defects) = (all + vectors, defects + report.known_upstream_defects);
        counts.push(format!("{stem} {vectors}"));
    }
    notes::note(format_args!(
        "golden vectors, {which}: {all} of {} kinds, on {defects} of them upstream is wrong: {}",
        FILES.len(),
        counts.join(", ")
    ));
    assert!(failed.is_empty(), "vectors failed in {failed:?}; see above");
}

#[test]
fn samples_agree_with_the_kubelet() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    check_all(&samples, "samples");
}

#[test]
fn full_files_agree_with_the_kubelet() {
    let directory = std::env::var_os(FULL_FILES_VARIABLE).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/golden"),
        PathBuf::from,
    );
    if directory.is_dir() {
        check_all(&directory, "full files");
    } else {
        notes::left_out(format_args!(
            "no {}; the samples alone were checked",
            directory.display()
        ));
    }
}

/// The fields of each file that are compared; the others are inputs or text for people. `A/B` is B in A, or in each
/// element of A; there may be more levels.
const COMPARED: &[(&str, &[&str])] = &[
    (
        "qos_class",
        &[
            "qos_after_api_defaulting",
            "qos_without_defaulting",
            "resources_valid",
        ],
    ),
    ("oom_score_adj", &["expected", "qos", "resources_valid"]),
    (
        "quantity",
        &[
            "approx_f64",
            "as_int64_exact",
            "binary_si",
            "canonical",
            "cmp",
            "dec_form",
            "decimal_si",
            "diff",
            "diff_milli",
            "diff_value",
            "format",
            "is_zero",
            "milli_decimal_si",
            "milli_value",
            "sign",
            "string",
            "sum",
            "sum_milli",
            "sum_value",
            "value",
        ],
    ),
    ("eviction_rank", &["ranked", "tie_groups"]),
    (
        "eviction_thresholds_parse",
        &[
            "thresholds",
            "resolved_at_capacity/values",
            "after_container_fs_update",
        ],
    ),
    (
        "eviction_timeline",
        &[
            "effective_thresholds",
            "steps/first_observed",
            "steps/thresholds_met_after_grace",
            "steps/thresholds_with_updated_stats",
            "steps/node_conditions",
            "steps/evicted_pod",
            "steps/grace_period_override",
            "steps/node_reclaim",
        ],
    ),
    ("seeds_tables", &["expected", "ranked"]),
    (
        "cgroup_config",
        &[
            "expected",
            "qos",
            "quota_100000",
            "resources_valid",
            "shares_to_milli_cpu",
            "weight_new",
        ],
    ),
    (
        "node_allocatable",
        &[
            "allocatable_absolute_for_cgroup",
            "kubepods_cgroup",
            "kubepods_cgroup_compressible_only",
            "node_status_allocatable",
            "node_status_allocatable_memory_bytes",
            "reservation",
            "valid",
        ],
    ),
    (
        "memory_manager",
        &[
            "expect_new_error/kind",
            "initial_machine_state",
            "pods/qos",
            "steps/expect/blocks_changed",
            "steps/expect/error/kind",
            "steps/expect/hints",
            "steps/expect/machine_state_changed",
        ],
    ),
    ("cpu_assignment", &["expect/cpus", "expect/error/kind"]),
    (
        "cpu_static_policy",
        &[
            "expect_new_error/kind",
            "expect_start/error/kind",
            "expect_start/reserved",
            "expect_start/default",
            "steps/expect/error/kind",
            "steps/expect/default",
            "steps/expect/changed",
            "steps/expect/hints",
            "final_assignments",
        ],
    ),
    (
        "pod_resources",
        &[
            "defaulted_pod_level_resources",
            "eviction_request_quantity_after_defaulting",
            "pod_limits",
            "pod_requests",
            "pod_requests_no_overhead",
            "pod_requests_skip_pod_level",
            "resources_valid",
        ],
    ),
    (
        "limit_range",
        &[
            "admit",
            "after_api_defaulting",
            "after_limit_ranger",
            "annotation",
            "errors",
            "failed_limit_range",
            "limit_ranges_defaulted",
            "qos_after",
            "resources_valid_after",
        ],
    ),
    (
        "resource_quota",
        &[
            "admit",
            "message",
            "new_used",
            "pod_usage",
            "quota_matches",
            "used_milli",
        ],
    ),
    (
        "admission_limit_range",
        &[
            "out/allowed",
            "out/api_validation/code",
            "out/api_validation/errors/field",
            "out/api_validation/errors/message",
            "out/api_validation/errors/type",
            "out/api_validation/message",
            "out/api_validation/valid",
            "out/causes",
            "out/code",
            "out/defaulted",
            "out/errors",
            "out/handled",
            "out/message",
            "out/object",
            "out/reason",
            "out/refused_by",
            "out/stage",
            "out/valid",
        ],
    ),
    (
        "admission_resource_quota",
        &[
            "out/allowed",
            "out/code",
            "out/configuration_error",
            "out/delta",
            "out/errors",
            "out/handled",
            "out/matches",
            "out/message",
            "out/reason",
            "out/status_updates",
            "out/usage",
            "out/used",
            "out/valid",
            "out/with_status",
        ],
    ),
    (
        "priority",
        &[
            "out/allowed",
            "out/api_validation/code",
            "out/api_validation/errors/field",
            "out/api_validation/errors/type",
            "out/api_validation/valid",
            "out/code",
            "out/message",
            "out/object",
            "out/reason",
            "out/stage",
        ],
    ),
    (
        "resource_names",
        &[
            "out/code",
            "out/errors",
            "out/message",
            "out/object",
            "out/reason",
            "out/valid",
        ],
    ),
    (
        "topology_merge",
        &[
            "expect/mask",
            "expect/preferred",
            "expect/admit",
            "expect_error/kind",
        ],
    ),
    (
        "drf_deserved",
        &["deserved", "used", "overused", "passed_over", "shortage"],
    ),
    (
        "arbitration_plan",
        &[
            "expected/capacity",
            "expected/deserved",
            "expected/overused",
            "expected/never_fits",
            "expected/steps/pod",
            "expected/steps/action",
            "expected/steps/node",
            "expected/steps/evict",
            "expected/first_preemption/pod",
            "expected/first_preemption/minimum",
        ],
    ),
];

/// Changes one scalar somewhere in `value`; false if there is none.
fn falsify(value: &mut Value) -> bool {
    match value {
        Value::Null => return false,
        Value::Bool(flag) => *flag = !*flag,
        Value::Number(number) => *value = (number.as_i64().unwrap_or(0) + 1).into(),
        Value::String(text) => text.push('1'),
        Value::Array(items) => return items.iter_mut().rev().any(falsify),
        // `_old` is what container runtimes did until 2025; nobody compares it.
        Value::Object(fields) => {
            return fields
                .iter_mut()
                .rev()
                .any(|(name, field)| !name.ends_with("_old") && falsify(field));
        }
    }
    true
}

/// Where a field is: its JSON pointers. An array on the way stands for each of its elements.
fn places(value: &Value, field: &[&str], prefix: &str, found: &mut Vec<String>) {
    let Some((name, rest)) = field.split_first() else {
        found.push(prefix.to_owned());
        return;
    };
    match value {
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                places(item, field, &format!("{prefix}/{at}"), found);
            }
        }
        _ => {
            if let Some(inner) = value.get(name) {
                places(inner, rest, &format!("{prefix}/{name}"), found);
            }
        }
    }
}

/// The vector with a field made wrong, once for each place in which it is.
fn with_wrong(vector: &Value, field: &str) -> Vec<Value> {
    let mut found = Vec::new();
    let field: Vec<&str> = field.split('/').collect();
    places(vector, &field, "", &mut found);
    let wrong = found.iter().filter_map(|place| {
        let mut wrong = vector.clone();
        falsify(wrong.pointer_mut(place)?).then_some(wrong)
    });
    wrong.collect()
}

/// A field that was made wrong so often, and was found each time, is compared.
const FALSIFIED_ENOUGH: usize = 100;

/// A check that passes whatever is expected would be worth nothing: each compared field, made wrong, has to fail.
#[test]
fn every_compared_field_can_fail() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    for (stem, fields) in COMPARED {
        let path = directory.join(format!("{stem}.jsonl"));
        let check = FILES.iter().find(|(own, _)| own == stem).unwrap().1;
        let machines = Machines::beside(&path, stem).unwrap();
        let mut falsified = vec![0; fields.len()];
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let mut vector: Value = serde_json::from_str(line).unwrap();
            machines.place_into(&mut vector);
            // Once the kubelet's books are wrong, the rest of a sequence is not compared with them.
            let defect = matches!(check(&vector), Verdict::KnownUpstreamDefect(_));
            if defect && *stem == "cpu_static_policy" {
                continue;
            }
            // Another order has another outcome, and that is right, too.
            if vector["out"].get("other_orders").is_some() {
                continue;
            }
            let seldom = fields.iter().zip(&mut falsified);
            for (field, count) in seldom.filter(|(_, count)| **count < FALSIFIED_ENOUGH) {
                for wrong in with_wrong(&vector, field) {
                    *count += 1;
                    assert!(
                        matches!(check(&wrong), Verdict::Fail { .. }),
                        "{stem}: {} passes with a wrong {field}",
                        vector["id"]
                    );
                }
            }
        }
        for (field, count) in fields.iter().zip(falsified) {
            assert!(count > 0, "{stem}: no line of the sample has {field}");
        }
    }
}
