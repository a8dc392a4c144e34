use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ArbitrateArgs,
}

/// The first of the two examples of `docs/reference/arbitrator.md`, worked by hand.
const WORKED: &str = include_str!("worked.yaml");

fn ask(arguments: &[&str], input: &str) -> Result<String, ArbitrateError> {
    let line = ["arbitrate", "-f", "-"].iter().chain(arguments);
    let Line { args } = Line::try_parse_from(line).unwrap();
    answer(&args, input.as_bytes(), 1_000_000, Style { color: false }).map(|(text, _)| text)
}

#[test]
fn the_example_worked_by_hand() {
    let text = ask(&[], WORKED).unwrap();
    let has = |cells: &[&str]| {
        text.lines().any(|line| {
            line.split_whitespace()
                .collect::<Vec<_>>()
                .starts_with(cells)
        })
    };
    assert!(
        has(&[
            "a", "cpu", "-", "4500m", "6", "6", "-", "over", "by", "1500m"
        ]),
        "{text}"
    );
    assert!(
        has(&[
            "b", "cpu", "-", "4500m", "4", "10", "-", "under", "by", "500m"
        ]),
        "{text}"
    );
    assert!(
        has(&["c", "cpu", "2", "1", "0", "1", "-", "under", "by", "1"]),
        "{text}"
    );
    assert!(
        text.contains("c/c-1 gets room on n1: evict a/a-6"),
        "{text}"
    );
}

#[test]
fn why_a_namespace_has_no_more() {
    let text = ask(&["--why", "b"], WORKED).unwrap();
    assert!(text.contains("ended by cpu"), "{text}");
    assert!(text.contains("The rest of cpu: a 4500m, c 1."), "{text}");
    let error = ask(&["--why", "nobody"], WORKED).unwrap_err();
    assert_eq!(error.exit_status(), exit_status::REFUSED);
}

#[test]
fn what_would_be_otherwise() {
    let text = ask(
        &[
            "--what-if",
            "weight=b,2",
            "--what-if",
            "namespace=d,pods=3,cpu=1",
        ],
        WORKED,
    )
    .unwrap();
    assert!(
        text.contains("WAS") && text.contains("d/what-if-0"),
        "{text}"
    );
    for node in [
        "node=cpu=10,memory=40Gi,pods=110",
        "node=cpu=10,memory=40Gi",
    ] {
        let more = ask(&["--what-if", node], WORKED).unwrap();
        assert!(more.contains("fits on what-if:1"), "{more}");
    }
    assert!(matches!(
        ask(&["--what-if", "weight=x,2"], WORKED),
        Err(ArbitrateError::WhatIf(_))
    ));
    for wrong in [
        "",
        "node",
        "node=cpu",
        "namespace=",
        "weight=a,many",
        "weight=a,0",
        "weight=a,1000001",
        "node=cpu=-1",
        "namespace=a,pods=1,cpu=1,cpu=2",
        "namespace=a,pods=0,cpu=1",
        "namespace=a,pods=1.5,cpu=1",
        "namespace=a,pods=1,pods=2",
        "namespace=a,pods=100001",
        "pod=x",
    ] {
        assert!(wrong.parse::<Change>().is_err(), "{wrong}");
    }
}

/// A file that is empty, because kubectl failed, is no cluster without pods; and nothing is shared where there are no
/// nodes.
#[test]
fn without_objects_or_nodes_no_shares_are_made_up() {
    for (input, only) in [
        ("", "Consumer;"),
        ("kind: List\nitems: []\n", "Consumer;"),
        (
            "kind: Service\nmetadata: {name: s}\n",
            "Consumer, only 1 Service;",
        ),
    ] {
        let error = ask(&[], input).unwrap_err().to_string();
        assert!(error.contains(only), "{error}");
    }
    let pod = "kind: Pod\nmetadata: {name: p, namespace: a}\nspec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}\n";
    let text = ask(&[], pod).unwrap();
    assert!(
        text.contains("Cluster: NoNodes: no Node is among"),
        "{text}"
    );
}

#[test]
fn no_pod_goes_for_one_that_asks_for_a_device_that_no_node_has() {
    let mut cluster =
        "kind: Node\nmetadata: {name: n1}\nstatus: {allocatable: {cpu: 2, pods: 110}}\n".to_owned();
    for (name, node, gpu) in [
        ("a-1", "n1", ""),
        ("a-2", "n1", ""),
        ("b-1", "", ", nvidia.com/gpu: 1"),
    ] {
        let namespace = &name[..1];
        cluster += &format!(
            "---\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{nodeName: \"{node}\", containers: [{{name: c, resources: {{requests: {{cpu: 1{gpu}}}}}}}]}}\n"
        );
    }
    let text = ask(&[], &cluster).unwrap();
    assert!(
        !text.contains("evict") && text.contains("Pod b/b-1: NeverFits"),
        "{text}"
    );
    // With such a node it has a place.
    let text = ask(&["--what-if", "node=cpu=2,nvidia.com/gpu=1"], &cluster).unwrap();
    assert!(text.contains("b/b-1 fits on what-if:1"), "{text}");
}

#[test]
fn limits_count_where_a_consumer_names_them() {
    let pod = |name: &str| {
        format!(
            "kind: Pod\nmetadata: {{name: {name}, namespace: a}}\nspec: {{nodeName: n1, containers: [{{name: c, resources: {{requests: {{cpu: 1}}, limits: {{cpu: 2}}}}}}]}}\n---\n"
        )
    };
    let node =
        "kind: Node\nmetadata: {name: n1}\nstatus: {allocatable: {cpu: 10, pods: 110}}\n---\n";
    let cluster = format!("{node}{}{}", pod("one"), pod("other"));
    let without = ask(&[], &cluster).unwrap();
    assert!(!without.contains("limits"), "{without}");
    let consumer =
        "kind: Consumer\nmetadata: {name: a}\nspec: {namespace: a, hard: {limits.cpu: 3}}\n";
    let with = ask(&[], &format!("{cluster}{consumer}")).unwrap();
    let line = with
        .lines()
        .find(|line| line.contains("limits.cpu"))
        .unwrap();
    let cells: Vec<&str> = line.split_whitespace().collect();
    let expected = [
        "a",
        "limits.cpu",
        "-",
        "2",
        "4",
        "2",
        "3",
        "over",
        "by",
        "2",
    ];
    assert_eq!(cells, expected, "{with}");
}

/// Names are chosen by who writes the objects: none begins a line, colours one or moves the cursor.
#[test]
fn names_command_no_terminal() {
    let odd = r#"
kind: Consumer
apiVersion: plimsoll.dev/v1alpha1
metadata: {name: "x\u001b[31m\nConsumer y: Accepted: fine"}
spec: {namespace: a, parent: nowhere, reserved: {"cpu": 100, "example.com/r\u001b[2J": 1}}
---
"#;
    let input = format!("{odd}{WORKED}");
    let escaped = r"x\x1b[31m\nConsumer y: Accepted: fine";
    for more in [&[][..], &["--why", "a"], &["--what-if", "weight=a,3"]] {
        let text = ask(more, &input).unwrap();
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(!text.contains("\nConsumer y"), "{text}");
        assert!(text.contains(escaped), "{text}");
    }
    let unknown = ask(&["--why", "\u{1b}[31m\n"], WORKED)
        .unwrap_err()
        .to_string();
    assert!(!unknown.contains(['\u{1b}', '\n']), "{unknown}");
}

#[test]
fn json_and_svg() {
    let value: serde_json::Value =
        serde_json::from_str(&ask(&["-o", "json"], WORKED).unwrap()).unwrap();
    assert_eq!(value["capacity"]["cpu"], 10_000);
    assert_eq!(value["consumers"][0]["resources"]["cpu"]["deserved"], 4500);
    assert_eq!(value["steps"][0]["evict"][0], "a/a-6");
    let picture = ask(&["-o", "svg"], WORKED).unwrap();
    assert!(
        picture.starts_with("<svg") && picture.ends_with("</svg>\n"),
        "{picture}"
    );
    // CPU, memory and pods of a.
    assert_eq!(picture.matches("class=\"over\"").count(), 3, "{picture}");
}

/// The faults that files can have, each a condition of the object that says what is done and what to do; the rest is
/// arbitrated.
#[test]
fn every_fault_of_a_snapshot_is_a_condition() {
    let faults = "
{kind: Consumer, metadata: {name: cycle-a}, spec: {parent: cycle-b}}
---
{kind: Consumer, metadata: {name: cycle-b}, spec: {parent: cycle-a}}
---
{kind: Consumer, metadata: {name: group}, spec: {unlimited: true}}
---
{kind: Consumer, metadata: {name: m}, spec: {namespace: m, reserved: {cpu: 50, nvidia.com/gpu: 1}, hard: {memory: 9E}}}
---
kind: Pod
metadata: {name: giant, namespace: m}
spec: {containers: [{name: c, resources: {requests: {cpu: 99}}}]}
---
kind: Pod
metadata: {name: many, namespace: m}
spec: {containers: [{name: c, resources: {requests: {cpu: 10}}}, {name: d, resources: {requests: {cpu: 0}}}]}
---
kind: Pod
metadata: {name: lost, namespace: m}
spec: {nodeName: gone, containers: [{name: c, resources: {requests: {cpu: 1}}}]}
";
    let text = ask(&[], &format!("{WORKED}---{faults}")).unwrap();
    for condition in [
        "Consumer cycle-a: Cycle: it is among its parents itself; counted as without a parent. Correct spec.parent",
        "Consumer group: UnlimitedGroup:",
        "Consumer m: UnknownResource: nvidia.com/gpu is reserved, and no node has it",
        "Consumer m: AmountTooLarge:",
        "Pod m/lost: UnknownNode: runs on node gone",
        "Pod m/giant: NeverFits: no node that is ready and that it may use could hold it",
    ] {
        assert!(text.contains(condition), "{condition}\n{text}");
    }
    assert!(!text.contains("m/giant is"), "{text}");
}

#[test]
fn bad_objects_become_conditions() {
    let consumers = "
kind: Consumer
metadata: {name: a}
spec: {namespace: a, parent: nowhere, hard: {cpu: 1}, reserved: {cpu: 2}}
---
kind: Pod
metadata: {name: none, namespace: a}
";
    let text = ask(&[], &format!("{WORKED}---{consumers}")).unwrap();
    for condition in [
        "Consumer a: NoParent:",
        "Consumer a: ReservedAboveHard:",
        "Pod a/none: NoRequests:",
    ] {
        assert!(text.contains(condition), "{condition}\n{text}");
    }
}

/// Six of its ten pods leave, and may take a year: the namespace uses ten CPUs all the same, and room is made of them.
/// What is over in ten minutes is room for others.
#[test]
fn pods_that_leave_for_long_are_used() {
    let pod = |namespace: &str, at: usize, more: &str, node: &str| {
        format!(
            "---
kind: Pod
metadata: {{name: {namespace}-{at}, namespace: {namespace}, uid: {namespace}{at}, creationTimestamp: '1970-01-10T00:00:00Z'{more}}}
spec: {{{node}containers: [{{name: c, resources: {{requests: {{cpu: 1, memory: 1Gi}}}}}}]}}
"
        )
    };
    let snapshot = |end: &str, grace: u64| {
        let mut text = "
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: 10, memory: 40Gi, pods: 110}, conditions: [{type: Ready, status: 'True', lastHeartbeatTime: '1970-01-12T13:46:40Z'}]}
---
kind: Consumer
metadata: {name: a}
spec: {namespace: a, reserved: {cpu: 5, memory: 20Gi, pods: 50}}
"
        .to_owned();
        for at in 0..10 {
            let leaves =
                format!(", deletionTimestamp: '{end}', deletionGracePeriodSeconds: {grace}");
            let more = if at < 6 { &leaves } else { "" };
            text += &pod("t", at, more, "nodeName: n1, ");
        }
        (0..3).for_each(|at| text += &pod("a", at, "", ""));
        ask(&[], &text).unwrap()
    };
    let later = snapshot("1971-01-12T00:00:00Z", 31_536_000);
    assert!(
        later.contains("a/a-0 gets room on n1: evict t/t-"),
        "{later}"
    );
    let soon = snapshot("1970-01-12T13:47:00Z", 60);
    assert!(!soon.contains("evict t/"), "{soon}");
    let hangs = snapshot("1970-01-12T13:45:00Z", 60);
    assert!(
        hangs.contains("a/a-0 gets room on n1: evict t/t-6"),
        "{hangs}"
    );
}
