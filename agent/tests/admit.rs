//! `plimsoll admit` and `plimsoll quota` as their users run them.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const LIMITS: &str = "\
apiVersion: v1
kind: LimitRange
metadata: {name: limits}
spec:
  limits:
  - type: Container
    default: {cpu: 500m, memory: 256Mi}
    defaultRequest: {cpu: 100m}
    max: {cpu: 2}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: compute}
spec:
  hard: {pods: 2, requests.cpu: 1}
";

fn pod(name: &str, resources: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: main, image: x, resources: {resources}}}]}}\n"
    )
}

fn plimsoll(dir: &Path, arguments: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .current_dir(dir)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its arguments reads nothing.
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).ok();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn scene() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("limits.yaml"), LIMITS).unwrap();
    let pods = pod("web", "{}")
        + &pod("big", "{limits: {cpu: 4}}")
        + &pod("db", "{requests: {cpu: 400m}}")
        + &pod("late", "{}");
    std::fs::write(dir.path().join("pods.yaml"), pods).unwrap();
    dir
}

fn json(dir: &Path, arguments: &[&str]) -> Value {
    let out = plimsoll(dir, arguments, "");
    serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&out.stderr)))
}

#[test]
fn verdicts_defaults_and_sentences() {
    let dir = scene();
    let out = plimsoll(
        dir.path(),
        &["admit", "-f", ".", "-n", "team-a", "--why"],
        "",
    );
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    for line in [
        "pods \"big\" is forbidden: maximum cpu usage per Container is 2, but limit is 4",
        "pods \"late\" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=2, limited: pods=2",
        "  spec.containers[0].resources.requests[cpu] = 100m: LimitRange limits, spec.limits[0].defaultRequest",
        "  spec.containers[0].resources.requests[memory] = 256Mi: LimitRange limits, spec.limits[0].default",
        "  spec.priority = 0: no PriorityClass, none is the default",
        "  ResourceQuota compute counts pods=1,requests.cpu=100m",
    ] {
        assert!(shown.contains(line), "no {line:?} in\n{shown}");
    }
}

#[test]
fn what_is_printed_for_programs_is_admitted_as_it_is() {
    let dir = scene();
    let answer = json(
        dir.path(),
        &["admit", "-f", ".", "-n", "team-a", "-o", "json"],
    );
    let objects = answer["objects"].as_array().unwrap();
    let verdicts: Vec<&str> = objects
        .iter()
        .map(|object| object["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(
        verdicts,
        [
            "InForce", "InForce", "Admitted", "Refused", "Admitted", "Refused"
        ]
    );
    let web = &objects[2]["object"];
    assert_eq!(
        web["spec"]["containers"][0]["resources"]["limits"]["cpu"],
        "500m"
    );
    assert_eq!(web["spec"]["containers"][0]["image"], "x");
    assert_eq!(web["metadata"]["namespace"], "team-a");
    assert_eq!(objects[3]["refusedBy"], "limits");
    assert_eq!(objects[5]["refusedBy"], "compute");
    let again = plimsoll(
        dir.path(),
        &[
            "admit",
            "-f",
            "limits.yaml",
            "-f",
            "-",
            "-n",
            "team-a",
            "-o",
            "yaml",
        ],
        &web.to_string(),
    );
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert!(
        text(&again.stdout).contains("defaults: []"),
        "{}",
        text(&again.stdout)
    );
}

#[test]
fn a_list_from_a_cluster_is_counted_and_its_quotas_are_believed() {
    let list = "{apiVersion: v1, kind: List, items: [
        {apiVersion: v1, kind: ResourceQuota, metadata: {name: q, namespace: team, resourceVersion: '5'}, spec: {hard: {pods: 3}}, status: {hard: {pods: 3}, used: {pods: 2}}},
        {apiVersion: v1, kind: Pod, metadata: {name: old, namespace: team, resourceVersion: '6'}, spec: {containers: [{name: c}]}}]}";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("new.yaml"),
        pod("a", "{}") + &pod("b", "{}"),
    )
    .unwrap();
    let out = plimsoll(
        dir.path(),
        &[
            "quota", "-f", "-", "-f", "new.yaml", "-n", "team", "-o", "json",
        ],
        list,
    );
    assert_eq!(out.status.code(), Some(3));
    let answer: Value = serde_json::from_slice(&out.stdout).unwrap();
    let quota = &answer["quotas"][0];
    assert_eq!(quota["resources"][0]["used"], "3");
    assert_eq!(quota["resources"][0]["left"], "0");
    let takers: Vec<&str> = quota["takenBy"]
        .as_array()
        .unwrap()
        .iter()
        .map(|taker| taker["object"].as_str().unwrap())
        .collect();
    assert_eq!(takers, ["pods old", "pods a"]);
    assert_eq!(quota["others"]["pods"], "1", "one that was not given");
    assert_eq!(answer["refused"][0]["name"], "b");
}

#[test]
fn owners_and_other_kinds_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let text_of = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 2}\n---\napiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\n";
    let out = plimsoll(dir.path(), &["admit", "-f", "-"], text_of);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    assert!(shown.contains("Deployment default/d  admitted"), "{shown}");
    assert!(
        shown.contains("Not looked at: the pods that these make later: Deployment default/d"),
        "{shown}"
    );
    assert!(
        shown.contains(
            "LEFT OUT\nstandard input:6: Widget: kind Widget of example.com/v1 is not known here"
        ),
        "{shown}"
    );
}

#[test]
fn wrong_files_admit_nothing_and_name_the_line() {
    for (wrong, message) in [
        (
            "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, resources: {limits: {cpu: lots}}}]}\n",
            "wrong.yaml:3: spec.containers[0].resources.limits[cpu]:",
        ),
        (
            "apiVersion: v1\nkind: ResourceQuota\nspce: {}\n",
            "wrong.yaml:3: spce: unknown field; did you mean spec?",
        ),
        ("a: [\n", "wrong.yaml:"),
    ] {
        let dir = scene();
        std::fs::write(dir.path().join("wrong.yaml"), wrong).unwrap();
        let out = plimsoll(dir.path(), &["admit", "-f", "."], "");
        assert_eq!(out.status.code(), Some(1));
        assert!(text(&out.stderr).contains(message), "{}", text(&out.stderr));
        assert_eq!(text(&out.stdout), "");
    }
    // What only the API's rules refuse is a refusal, with the line of each cause.
    let range = "apiVersion: v1\nkind: LimitRange\nmetadata: {name: l}\nspec:\n  limits:\n  - type: Pod\n    min: {cpu: 3}\n    max: {cpu: 2}\n";
    let dir = tempfile::tempdir().unwrap();
    let out = plimsoll(dir.path(), &["admit", "-f", "-"], range);
    assert_eq!(out.status.code(), Some(3));
    let shown = text(&out.stdout);
    assert!(shown.contains("standard input:1: LimitRange \"l\" is invalid: spec.limits[0].min[cpu]: Invalid value: \"3\": min value 3 is greater than max value 2"), "{shown}");
    assert!(
        shown.contains("  standard input:7: spec.limits[0].min[cpu]:"),
        "{shown}"
    );
    let twice = plimsoll(dir.path(), &["admit", "-f", "-", "-f", "-"], "");
    assert_eq!(twice.status.code(), Some(2));
}

/// Each is refused with its file, line and field, and the rest is answered as if it were not there.
#[test]
fn bad_objects_are_refused_and_decide_nothing() {
    let class = |name: &str, value: u32| {
        format!(
            "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {name}}}\nvalue: {value}\nglobalDefault: true\n"
        )
    };
    let quota = |spec: &str| {
        format!(
            "---\napiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: q}}\nspec:\n  {spec}\n"
        )
    };
    let web = pod("web", "{}");
    let cases: [(String, &[&str]); 6] = [
        (
            class("a", 1) + &class("b", 2) + &web,
            &[
                "standard input:12: priorityclasses.scheduling.k8s.io \"b\" is forbidden: PriorityClass a is already marked as default",
                "Pod default/web  admitted         1",
            ],
        ),
        (
            quota("hard: {pods: 0}\n  scopeSelector:\n    matchExpressions:\n    - {scopeName: PriorityClass, operator: In}") + &web,
            &[
                "  standard input:8: spec.scopeSelector.matchExpressions.values: Required value",
                "Pod default/web          admitted",
            ],
        ),
        (
            quota("hard: {pods: -1}") + &web,
            &[
                "  standard input:6: spec.hard[pods]: Invalid value: \"-1\": must be greater than or equal to 0",
                "Pod default/web          admitted",
            ],
        ),
        (
            pod("web", "{requests: {cpu: -1}}"),
            &["  standard input:5: spec.containers[0].resources.requests[cpu]: Invalid value: \"-1\""],
        ),
        (
            quota("hard: {requests.memory: 9999999999999999999Ei}")
                + &pod("web", "{requests: {memory: 9999999999999999999Ei}}")
                + &pod("more", "{requests: {memory: 1}}"),
            &["Pod default/web          admitted", "standard input:13: pods \"more\" is forbidden: exceeded quota: q, requested: requests.memory=1,"],
        ),
        (
            // A cluster has lowered it, and its pods are more than that.
            "---\napiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q, resourceVersion: '1'}\nspec: {hard: {pods: 1}}\nstatus: {hard: {pods: 1}, used: {pods: 3}}\n".to_owned() + &web,
            &["pods \"web\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=1"],
        ),
    ];
    for (text_of, wanted) in cases {
        let dir = tempfile::tempdir().unwrap();
        let out = plimsoll(dir.path(), &["admit", "-f", "-"], &text_of);
        let shown = text(&out.stdout);
        assert_eq!(out.status.code(), Some(3), "{shown}{}", text(&out.stderr));
        for line in wanted {
            assert!(shown.contains(line), "no {line:?} in\n{shown}");
        }
    }
}

/// A quota without status is counted from the objects that are there.
#[test]
fn a_quota_without_status_is_counted() {
    let list = "{apiVersion: v1, kind: List, items: [
        {apiVersion: v1, kind: ResourceQuota, metadata: {name: q, resourceVersion: '5'}, spec: {hard: {pods: 1}}},
        {apiVersion: v1, kind: Pod, metadata: {name: old, resourceVersion: '6'}, spec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}}]}";
    let dir = tempfile::tempdir().unwrap();
    let new = pod("old", "{requests: {cpu: 2}}") + &pod("new", "{}");
    std::fs::write(dir.path().join("new.yaml"), new).unwrap();
    let out = plimsoll(dir.path(), &["admit", "-f", "-", "-f", "new.yaml"], list);
    let shown = text(&out.stdout);
    assert_eq!(out.status.code(), Some(3), "{shown}");
    for line in [
        "new.yaml:2: pods \"old\" already exists",
        "new.yaml:7: pods \"new\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1",
    ] {
        assert!(shown.contains(line), "no {line:?} in\n{shown}");
    }
}

#[test]
fn a_thousand_quotas_and_as_many_pods() {
    let quotas: String = (0..1000)
        .map(|at| format!("---\napiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: q{at:03}}}\nspec: {{hard: {{pods: 2}}}}\n"))
        .collect();
    let pods: String = (0..3).map(|at| pod(&format!("p{at}"), "{}")).collect();
    let dir = tempfile::tempdir().unwrap();
    let out = plimsoll(
        dir.path(),
        &["quota", "-f", "-", "-o", "json"],
        &(quotas + &pods),
    );
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    let answer: Value = serde_json::from_slice(&out.stdout).unwrap();
    let all = answer["quotas"].as_array().unwrap();
    assert_eq!(all.len(), 1000);
    assert!(all.iter().all(|quota| quota["resources"][0]["used"] == "2"));
    let refused = answer["refused"].as_array().unwrap();
    assert_eq!(
        (refused.len(), &refused[0]["refusedBy"]),
        (1, &Value::from("q000"))
    );
}
