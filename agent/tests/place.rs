//! `plimsoll place` as its user runs it.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

use std::path::Path;
use std::process::{Command, Output};

/// Two NUMA nodes of a socket each, with four cores of one thread.
const MACHINE: &str = r#"{"id": "t", "desc": "", "num_cpus": 8, "num_cores": 8, "num_sockets": 2, "num_numa_nodes": 2, "num_uncore_caches": 2,
    "cpus": [[0,0,0,0,0],[1,1,0,0,0],[2,2,0,0,0],[3,3,0,0,0],[4,4,1,1,1],[5,5,1,1,1],[6,6,1,1,1],[7,7,1,1,1]]}"#;

const DEVICES: &str = r#"{"devices": [{"resource_name": "vendor.example/nic", "device_ids": ["nic0"], "topology": {"nodes": [{"ID": 1}]}}]}"#;

fn pod(name: &str, cpus: u32, more: &str) -> String {
    let amounts = format!("{{cpu: {cpus}, memory: 1Gi{more}}}");
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: main, image: x, \
         resources: {{requests: {amounts}, limits: {amounts}}}}}]}}\n---\n"
    )
}

fn place(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .current_dir(dir)
        .args(["place", "-f", "pods.yaml", "--machine", "machine.json"])
        .args(arguments)
        .output()
        .unwrap()
}

fn scene() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("machine.json"), MACHINE.replace('\n', "")).unwrap();
    std::fs::write(dir.path().join("devices.json"), DEVICES).unwrap();
    let pods = pod("db", 3, ", vendor.example/nic: 1") + &pod("web", 3, "") + &pod("big", 4, "");
    std::fs::write(dir.path().join("pods.yaml"), pods).unwrap();
    dir
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn each_container_with_its_cpus_and_what_is_refused_with_its_reason() {
    let dir = scene();
    let options = [
        "--topology-manager-policy",
        "single-numa-node",
        "--devices",
        "devices.json",
        "--why",
    ];
    let out = place(dir.path(), &options);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    for line in [
        "Shared pool: 0,7",
        "default/db   main       Guaranteed      3  4-6      any           nic0",
        "default/web  main       Guaranteed      3  1-3      any           -",
        "default/big  main       Guaranteed      4  refused  any           -",
        "default/db/main is aligned on NUMA node 1",
        "  not node 0: not enough there: devices/vendor.example/nic",
    ] {
        assert!(shown.contains(line), "{line:?} is not in\n{shown}");
    }
    assert!(
        shown.contains("default/big is refused: container main cannot be aligned"),
        "{shown}"
    );
}

#[test]
fn programs_get_the_same_as_json_and_people_a_picture() {
    let dir = scene();
    let out = place(dir.path(), &["--reserved-cpus", "0,4", "--output", "json"]);
    assert_eq!(out.status.code(), Some(3));
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(told["reserved"], "0,4");
    assert_eq!(told["pods"][0]["containers"][0]["cpus"], "1-3");
    assert_eq!(told["pods"][1]["containers"][0]["cpus"], "5-7");
    assert!(
        told["pods"][2]["refused"]
            .as_str()
            .unwrap()
            .contains("4 CPUs are wanted")
    );
    let picture = text(&place(dir.path(), &["--output", "svg"]).stdout);
    assert!(
        picture.starts_with("<svg") && picture.contains("default/db/main"),
        "{picture}"
    );
}

#[test]
fn a_kubelets_configuration_is_followed_and_what_cannot_be_is_said() {
    let dir = scene();
    let write = |text: &str| std::fs::write(dir.path().join("kubelet.yaml"), text).unwrap();
    write("cpuManagerPolicy: static\nreservedSystemCPUs: 0-1\ntopologyManagerPolicy: restricted\n");
    let out = text(&place(dir.path(), &["--config", "kubelet.yaml"]).stdout);
    assert!(
        out.contains("CPUs static, memory None, topology restricted by container")
            && out.contains("Reserved: 0-1"),
        "{out}"
    );
    write("cpuManagerPolicy: static\n");
    let out = place(dir.path(), &["--config", "kubelet.yaml"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        text(&out.stderr).contains("reservedSystemCPUs"),
        "{}",
        text(&out.stderr)
    );
    std::fs::write(dir.path().join("devices.json"), "{\"x\": 1}").unwrap();
    let out = place(dir.path(), &["--devices", "devices.json"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        text(&out.stderr).starts_with("plimsoll: devices.json: "),
        "{}",
        text(&out.stderr)
    );
}
