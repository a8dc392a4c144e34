use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: RehearseArgs,
}

/// One node with 10 CPU; web has 4 of them for sure.
const CLUSTER: &str = "
kind: List
items:
- {kind: Node, metadata: {name: n1}, status: {allocatable: {cpu: 10, memory: 40Gi, pods: 110}}}
- {kind: Consumer, metadata: {name: web}, spec: {namespace: web, reserved: {cpu: 4}}}
";

/// batch fills the cluster in the first hours; web comes at 6 h.
const LOAD: &str = "
days: 1
turn: 1m
pods:
- {namespace: batch, every: 20m, count: 4, runs: 2h, requests: {cpu: 1, memory: 1Gi}}
- {namespace: web, every: 30m, count: 2, runs: 1h, requests: {cpu: 1, memory: 1Gi}, from: 6h, to: 20h}
";

fn rehearse(load: &str, arguments: &[&str]) -> Result<String, RehearseError> {
    rehearse_saying(load, arguments, 0).map(|(text, _)| text)
}

/// The text, and what was said on the way, when each turn takes so long.
fn rehearse_saying(
    load: &str,
    arguments: &[&str],
    turn_ns: u64,
) -> Result<(String, Vec<String>), RehearseError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("load.yaml");
    std::fs::write(&path, load).unwrap();
    let line = ["rehearse", "-f", "-", "--load", path.to_str().unwrap()];
    let Line { args } = Line::try_parse_from(line.iter().chain(arguments)).unwrap();
    let (mut time_ns, mut said) = (0, Vec::new());
    let mut now_ns = || {
        time_ns += turn_ns;
        time_ns
    };
    let mut say = |text: &str| said.push(text.to_owned());
    let mut progress = Progress::new(&mut now_ns, &mut say);
    let style = Style { color: false };
    let text = answer(&args, CLUSTER.as_bytes(), 1_000_000, style, &mut progress)?;
    Ok((text, said))
}

#[test]
fn policies_stand_side_by_side() {
    let text = rehearse(LOAD, &[]).unwrap();
    let row = |namespace: &str, policy: &str| {
        let mut lines = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines
            .find(|cells| cells.starts_with(&[namespace, policy]))
            .unwrap()
    };
    for policy in ["shares", "quotas", "priorities"] {
        row("batch", policy);
        row("web", policy);
    }
    assert_eq!(row("batch", "quotas")[4], "0", "{text}");
    assert_ne!(row("batch", "shares")[4], "0", "{text}");
    assert!(text.contains("no pod went round"), "{text}");
}

#[test]
fn no_pod_starts_that_requests_a_device_which_no_node_has() {
    let device = "pods:\n- {namespace: web, every: 1h, runs: 1h, requests: {cpu: 1, example.com/gpu: 1}}\n- {namespace: batch, every: 1h, runs: 1h, requests: {cpu: 1}}\n";
    let json = rehearse(device, &["--output", "json"]).unwrap();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    for policy in value["policies"].as_array().unwrap() {
        let namespaces = policy["namespaces"].as_array().unwrap();
        let started = |name: &str| {
            let mut all = namespaces.iter();
            all.find(|it| it["name"] == name).unwrap()["started"].as_u64()
        };
        assert_eq!(started("web"), Some(0), "{policy}");
        assert!(started("batch") > Some(10), "{policy}");
    }
}

#[test]
fn the_same_seed_is_the_same_play() {
    let json = rehearse(LOAD, &["--output", "json"]).unwrap();
    assert_eq!(
        json,
        rehearse(LOAD, &["--output", "json", "--seed", "1"]).unwrap()
    );
    assert_ne!(
        json,
        rehearse(LOAD, &["--output", "json", "--seed", "2"]).unwrap()
    );
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["policies"].as_array().unwrap().len(), 3);
    assert_eq!(value["policies"][0]["namespaces"][0]["name"], "batch");
    let svg = rehearse(LOAD, &["--output", "svg"]).unwrap();
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    assert!(svg.contains("web"), "{svg}");
}

#[test]
fn a_long_rehearsal_says_how_far_it_is() {
    // 1440 turns of 50 ms for each of three policies: 216 s.
    let (_, said) = rehearse_saying(LOAD, &[], 50_000_000).unwrap();
    assert_eq!(said.len(), 21, "{said:?}");
    assert!(
        said[0].starts_with("plimsoll: rehearsing shares, 1 of 3: day 1 of 1;"),
        "{said:?}"
    );
    let (_, said) = rehearse_saying(LOAD, &[], 1).unwrap();
    assert!(said.is_empty(), "{said:?}");
}

/// 26,000 pods that each run for all of a month, looked at every ten seconds: hours of work.
#[test]
fn what_would_take_hours_is_refused_at_once() {
    let much = "days: 31\nturn: 10s\npods:\n- {namespace: a, every: 100s, runs: 744h, requests: {cpu: 1}, spread: Even}\n";
    let error = rehearse(much, &[]).unwrap_err();
    assert_eq!(error.exit_status(), exit_status::REFUSED);
    for part in [
        "26783 pods over 267840 turns",
        "at most 200000000",
        "lengthen turn",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let error = rehearse("pods: 3\n", &[]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("load.yaml:1: pods: expected a list"),
        "{error}"
    );
    assert_eq!(error.exit_status(), exit_status::FAILED);
    let much =
        "days: 31\npods:\n- {namespace: a, every: 1s, count: 9, runs: 1s, requests: {cpu: 1}}\n";
    let error = rehearse(much, &[]).unwrap_err();
    assert_eq!(error.exit_status(), exit_status::REFUSED);
}
