//! `kubectl plimsoll` (deploy/kubectl-plimsoll) with a kubectl that knows three nodes, of which one does not answer,
//! a pod that waits for a node, and pods that have ended.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod node;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

const PLUGIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubectl-plimsoll");

/// A kubectl whose `exec` runs the program here, with the state directory of the pod's name.
fn kubectl(dir: &Path) {
    let text = format!(
        r#"#!/bin/sh
case "$*" in
"--namespace default get resourcequotas,limitranges --output yaml")
    echo 'apiVersion: v1
kind: List
items:
- {{apiVersion: v1, kind: ResourceQuota, metadata: {{name: compute, namespace: default}}, status: {{hard: {{pods: 10}}, used: {{pods: 9}}}}}}'
    exit ;;
"--namespace other get resourcequotas --output yaml") echo "you may not" >&2; exit 1 ;;
esac
[ "$1 $2" = "--namespace plimsoll" ] || exit 9
case "$3" in
get)
    # As the API server: pods that have ended are listed, but for a selector.
    case "$*" in
    *status.phase=Running*) ended= ;;
    *) ended='b pod-a-ended\n' ;;
    esac
    case "$*" in
    *spec.nodeName=b*) printf "${{ended}}b pod-b\nb pod-second\n" ;;
    *spec.nodeName=*) ;;
    *) printf "${{ended}}b pod-b\n pod-waits\nc pod-c\na pod-a\n" ;;
    esac ;;
exec)
    shift 3
    [ "$1" != --stdin ] || shift
    pod=$1; shift
    [ "$1 $2 $3 $4" = "--container agent -- /plimsoll" ] || exit 8
    shift 4
    exec {plimsoll} "$@" --state-dir {dir}/$pod ;;
esac
"#,
        plimsoll = env!("CARGO_BIN_EXE_plimsoll"),
        dir = dir.to_str().unwrap(),
    );
    let path = dir.join("kubectl");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
}

fn plugin(dir: &Path, args: &[&str]) -> Output {
    let path = format!(
        "{}:{}",
        dir.to_str().unwrap(),
        std::env::var("PATH").unwrap()
    );
    let temporary = dir.join("tmp");
    fs::create_dir_all(&temporary).unwrap();
    let output = Command::new(PLUGIN)
        .args(args)
        .env("PATH", path)
        .env("TMPDIR", &temporary)
        .output()
        .unwrap();
    let left = fs::read_dir(&temporary).unwrap().count();
    assert_eq!(left, 0, "{args:?} leaves a temporary directory behind");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn one_table_over_all_nodes_and_one_node_s_reasons() {
    let dir = tempfile::tempdir().unwrap();
    kubectl(dir.path());
    let mut servers = Vec::new();
    for (pod, pods) in [("pod-a", &["x"][..]), ("pod-b", &["x", "yy"])] {
        let state = dir.path().join(pod);
        fs::create_dir(&state).unwrap();
        servers.push(node::serve(&state.join("control.sock"), None, pods));
    }
    let all = plugin(dir.path(), &["top"]);
    assert_eq!(all.status.code(), Some(1), "{all:?}");
    let table = text(&all.stdout);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{all:?}");
    // On each the last pod is on its way out.
    let expected = [
        "NODE  PODS  AVAILABLE  OF   SHORT           NEXT",
        "a     0     24Mi       1Gi  MemoryPressure  no pod",
        "b     1     24Mi       1Gi  MemoryPressure  default/x: 1Mi is 1Mi above its request",
    ];
    assert_eq!(lines, expected);
    assert!(
        text(&all.stderr).contains("kubectl plimsoll: c: "),
        "{all:?}"
    );

    let why = plugin(dir.path(), &["explain", "b", "eviction", "default/x"]);
    assert_eq!(why.status.code(), Some(0), "{why:?}");
    assert!(text(&why.stdout).contains("default/x"), "{why:?}");
    let near = "default/compute: pods 9 of 10 in use";
    assert!(text(&why.stdout).contains(near), "{why:?}");
    // The agent knows the namespace of a pod that is named without one.
    let by_name = plugin(dir.path(), &["explain", "b", "eviction", "x"]);
    assert_eq!(by_name.status.code(), Some(0), "{by_name:?}");
    assert!(text(&by_name.stdout).contains(near), "{by_name:?}");
    let unknown = plugin(dir.path(), &["explain", "b", "eviction", "unknown"]);
    assert_eq!(unknown.status.code(), Some(3), "{unknown:?}");
    // Who may not list quotas is explained the rest; here there is no such pod.
    let without = plugin(dir.path(), &["explain", "b", "eviction", "other/x"]);
    let said = text(&without.stderr);
    assert!(
        said.contains("without quotas: you may not") && said.contains("other/x"),
        "{without:?}"
    );

    let nowhere = plugin(dir.path(), &["explain", "nowhere"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(
        text(&nowhere.stderr).contains("no agent runs on nowhere"),
        "{nowhere:?}"
    );
    assert_eq!(plugin(dir.path(), &["explain"]).status.code(), Some(2));
    assert_eq!(plugin(dir.path(), &["--help"]).status.code(), Some(0));
}
