//! `kubectl apply -k deploy/base` on a node with the controllers and the scheduler of its version, as
//! docs/guide/cluster.md says it. Nothing of it is changed: neither the image's name, nor the threshold of 500Mi, nor
//! where the API server is.

use std::fs;

use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::daemon_set::{conditions, evicts, nothing_is_left, say_conditions};
use super::machine;
use super::machine::{Ballast, Machine, NODE, output};
use super::support::server::{RIGHTS, SERVICE};
use super::support::{notes, run, until};

/// Kubernetes has admission policies since then; `kubectl apply` fails where a kind is not known.
const ADMISSION_POLICIES_FROM: u32 = 30;
const PODS: &str = "/api/v1/namespaces/plimsoll/pods";
/// What is available before a pod leaks, MiB: 200 above the threshold of the base.
const AVAILABLE_MIB: u64 = 700;
/// Components that need nothing but the base: with fewer privileges, and each option that needs a right more.
const OPTIONS: [&str; 5] = [
    "least-privilege",
    "taint",
    "budgets",
    "delete-evicted",
    "eviction-api",
];
const LOG_OF_CLUSTER: [&str; 5] = [
    "--namespace",
    "plimsoll",
    "logs",
    "daemonset/plimsoll",
    "--container=cluster",
];
/// The taint of `components/taint`.
const TAINT: &str = "plimsoll.dev/memory-pressure";

/// A kustomization of one's own, as the guide has it: the base with these components.
fn with_components(machine: &Machine, names: &[&str]) -> String {
    let folder = machine.file("deploy/mine");
    let components: Vec<_> = names
        .iter()
        .map(|name| format!("../components/{name}"))
        .collect();
    let text = json!({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["../base"], "components": components});
    fs::create_dir_all(&folder).unwrap();
    // JSON is YAML.
    fs::write(folder.join("kustomization.yaml"), text.to_string()).unwrap();
    folder.to_string_lossy().into_owned()
}

/// Whether the node has Plimsoll's taint.
async fn is_tainted(machine: &Machine) -> bool {
    let node = machine.server.get(&format!("/api/v1/nodes/{NODE}")).await;
    let node = node.unwrap();
    let taints = node["spec"]["taints"].as_array();
    taints
        .into_iter()
        .flatten()
        .any(|taint| taint["key"] == TAINT)
}

/// What kube-proxy does for the API server's service.
async fn serve_the_service(port: u16) {
    let address = format!("{SERVICE}/32");
    output(
        "/bin/busybox",
        &["ip", "addr", "add", &address, "dev", "lo"],
    );
    let listener = TcpListener::bind((SERVICE, 443)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut to) = TcpStream::connect(("127.0.0.1", port)).await {
                    let _ended = copy_bidirectional(&mut from, &mut to).await;
                }
            });
        }
    });
}

/// Waits until the DaemonSet's only pod is of this generation and ready; what it says meanwhile is shown.
async fn is_rolled_out(machine: &Machine) -> Value {
    let mut said = Value::Null;
    let path = "/apis/apps/v1/namespaces/plimsoll/daemonsets/plimsoll";
    until("the DaemonSet to be rolled out", async || {
        let pods = machine.server.get(PODS).await?;
        let states: Vec<&Value> = pods["items"]
            .as_array()?
            .iter()
            .flat_map(|pod| pod["status"]["containerStatuses"].as_array())
            .flatten()
            .map(|one| &one["state"])
            .collect();
        let states = json!(states);
        if states != said {
            machine.say(&format!("plimsoll: {states}"));
            said = states;
        }
        let set = machine.server.get(path).await?;
        let status = &set["status"];
        let is_new = status["observedGeneration"] == set["metadata"]["generation"];
        let is_whole = status["updatedNumberScheduled"] == 1 && status["numberReady"] == 1;
        let one = pods["items"].as_array().filter(|items| items.len() == 1)?;
        (is_new && is_whole).then(|| one[0].clone())
    })
    .await
}

/// Restarts of its containers so far.
fn restarts(pod: &Value) -> Vec<u64> {
    let all = pod["status"]["containerStatuses"].as_array();
    let count = |one: &Value| one["restartCount"].as_u64();
    all.into_iter().flatten().filter_map(count).collect()
}

/// Memory and CPU time of each container of the pod, and of the shim's sandbox.
fn note_costs(machine: &Machine, pod: &Value, what: &str) {
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    for status in pod["status"]["containerStatuses"].as_array().unwrap() {
        let id = status["containerID"].as_str().unwrap();
        let id = id.rsplit('/').next().unwrap();
        let cgroup = machine::container_cgroup(&machine::pod_cgroup(uid), id);
        let read = |name: &str| fs::read_to_string(cgroup.join(name)).unwrap_or_default();
        let pids = machine::pids(&cgroup);
        let status_of = |pid: &String| fs::read_to_string(format!("/proc/{pid}/status"));
        let text: String = pids.iter().flat_map(status_of).collect();
        let resident: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("VmRSS"))
            .collect();
        notes::note(format_args!(
            "{what}: {}: {resident:?}, memory.current {}, {}",
            status["name"],
            read("memory.current").trim(),
            read("cpu.stat").lines().next().unwrap_or_default()
        ));
    }
    machine.say(&format!("{what}: see the notes"));
}

/// Scenarios 18, 32 and 33, by hand as an operator does it.
#[test]
fn m_applied_as_the_guide_says() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
        if !machine.has_operator() || machine.minor_version().await < ADMISSION_POLICIES_FROM {
            notes::left_out(
                "kubectl apply -k deploy/base: needs kubectl, kube-controller-manager and kube-scheduler in --binaries DIR, from 1.30 on",
            );
            return;
        }
        machine.kill_agent();
        machine.kill_cluster();
        serve_the_service(machine.server.port).await;
        let _control = machine.server.control();
        machine.import_image();

        let base = machine.file("deploy/base");
        let base = base.to_string_lossy();
        assert!(machine.kubectl(&["apply", "-k", &base]), "apply");
        let pod = is_rolled_out(machine).await;
        machine.say("the DaemonSet is rolled out");
        assert_eq!(restarts(&pod), [0, 0], "{pod:#}");
        let ours = until("the node's conditions", async || {
            let ours = conditions(machine).await;
            (ours.len() == 3).then_some(ours)
        })
        .await;
        say_conditions(machine, &ours);
        machine.kubectl(&["--namespace", "plimsoll", "get", "pods", "--output", "wide"]);
        // Plimsoll's own pod is the only one there, and never goes.
        for (what, expected) in [
            (&["top"][..], NODE),
            (&["top", NODE, "--once"], "plimsoll/plimsoll-"),
            (&["check"], NODE),
            (&["check", NODE], "memory threshold"),
            (&["explain", NODE], "system-critical priority"),
        ] {
            machine.kubectl_plimsoll(what, expected);
        }
        let ballast = Ballast::until_available(AVAILABLE_MIB);
        machine.say("700Mi are available");
        evicts(machine, "leaky-1").await;
        machine.show(&["describe", "node", NODE]);
        note_costs(machine, &pod, "as installed, after an eviction");

        // The next version: holds and evictions are those of the one before.
        let restart = [
            "--namespace",
            "plimsoll",
            "rollout",
            "restart",
            "daemonset/plimsoll",
        ];
        assert!(machine.kubectl(&restart));
        is_rolled_out(machine).await;
        machine.say("upgraded");
        evicts(machine, "leaky-2").await;

        let mut mine = OPTIONS.to_vec();
        let folder = with_components(machine, &mine);
        assert!(machine.kubectl(&["apply", "-k", &folder]));
        is_rolled_out(machine).await;
        machine.say("with least privilege and options");
        machine.kubectl_plimsoll(&["check"], NODE);
        let tainted = until("the node's taint", async || {
            is_tainted(machine).await.then_some(())
        });
        // It may have gone again before all of the eviction is told.
        tokio::join!(evicts(machine, "leaky-3"), tainted);
        machine.say("the node had the taint");
        // What an option needs that its component does not allow is said there, in the API server's words.
        let log = machine.kubectl_says(&LOG_OF_CLUSTER);
        assert!(!log.contains("forbidden"), "{log}");
        drop(ballast);

        mine.push("uninstall");
        uninstall(machine, &with_components(machine, &mine)).await;
        // The other tests' rights had the names of those that are gone now.
        machine.server.grant(&RIGHTS).await;
        machine.start_agent();
        machine.start_cluster();
    });
}

/// As the guide says it, with this kustomization.
async fn uninstall(machine: &Machine, folder: &str) {
    assert!(machine.kubectl(&["apply", "-k", folder]));
    is_rolled_out(machine).await;
    let first = [
        "--namespace",
        "plimsoll",
        "delete",
        "daemonset/plimsoll",
        "--cascade=foreground",
        "--timeout=15m",
    ];
    assert!(machine.kubectl(&first));
    let left = conditions(machine).await;
    assert!(left.is_empty(), "{left:#?}");
    assert!(!is_tainted(machine).await, "the taint is left");
    assert!(machine.kubectl(&[
        "delete",
        "-k",
        folder,
        "--ignore-not-found",
        "--timeout=15m"
    ]));
    until("the namespace to go", async || {
        let path = "/api/v1/namespaces/plimsoll";
        machine.server.get(path).await.is_none().then_some(())
    })
    .await;
    machine.say("uninstalled");
    nothing_is_left(machine);
}
