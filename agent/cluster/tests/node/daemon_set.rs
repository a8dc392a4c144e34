//! The programs as `deploy/base` installs them: an image in containerd, started by the kubelet, with a token and the
//! rights of the manifests. The DaemonSet's controller is this test, which makes the pod of its template: `applied` is
//! the same where Kubernetes has its own.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::machine::{Machine, NODE};
use super::support::server::pod_path;
use super::support::{notes, run, until};
use super::{LEAK, container, machine};

/// What `kubectl apply -k deploy/base` sends.
const BASE: [&str; 4] = [
    include_str!("../../../../deploy/base/serviceaccount.yaml"),
    include_str!("../../../../deploy/base/rbac.yaml"),
    include_str!("../../../../deploy/base/admission-policy.yaml"),
    include_str!("../../../../deploy/base/daemonset.yaml"),
];
const CONFIG: &str = include_str!("../../../../deploy/base/config.yaml");
const IMAGE: &str = "localhost/plimsoll/plimsoll:1";
/// The agent's state directory, which is the node's.
const STATE: &str = "/run/plimsoll";
/// Files there that are no ledgers of the node's settings.
const OF_EVICTED_PODS: [&str; 2] = ["holds.jsonl", "intents.jsonl"];
const PODS: &str = "/api/v1/namespaces/plimsoll/pods";
/// Kubernetes has them since then.
const ADMISSION_POLICIES_FROM: u32 = 30;
/// What `deploy/components/least-privilege` gives the agent instead of `privileged`.
const LEAST_PRIVILEGE: &str =
    include_str!("../../../../deploy/components/least-privilege/kustomization.yaml");

/// Where objects of a kind are made.
fn collection(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "ServiceAccount" => "/api/v1/namespaces/plimsoll/serviceaccounts",
        "ConfigMap" => "/api/v1/namespaces/plimsoll/configmaps",
        "ClusterRole" => "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "ClusterRoleBinding" => "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "ValidatingAdmissionPolicy" => {
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
        }
        "ValidatingAdmissionPolicyBinding" => {
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
        }
        _ => return None,
    })
}

/// Makes all objects; returns the template of the DaemonSet's pods.
async fn install(machine: &Machine) -> Value {
    let server = &machine.server;
    let namespace = json!({"metadata": {"name": "plimsoll"}});
    server.create("/api/v1/namespaces", &namespace).await;
    // The controller manager puts it into each namespace.
    let authority = std::fs::read_to_string(server.path("ca.crt")).unwrap();
    let authority =
        json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": authority}});
    let config_maps = collection("ConfigMap").unwrap();
    server.create(config_maps, &authority).await;
    let threshold = format!("memory.available: {}Mi", machine.threshold_mib());
    let text = CONFIG.replace("memory.available: 500Mi", &threshold);
    assert!(text.contains(&threshold), "{text}");
    let config = json!({"metadata": {"name": "plimsoll"}, "data": {"config.yaml": text}});
    server.create(config_maps, &config).await;
    let has_policies = machine.minor_version().await >= ADMISSION_POLICIES_FROM;
    let mut template = Value::Null;
    for text in BASE {
        let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        for mut object in objects {
            let kind = object["kind"].as_str().unwrap().to_owned();
            match kind.as_str() {
                "DaemonSet" => template = object["spec"]["template"].take(),
                // The other tests' rights have this name.
                "ClusterRole" => object["metadata"]["name"] = json!("plimsoll-node"),
                "ClusterRoleBinding" => {
                    object["metadata"]["name"] = json!("plimsoll-node");
                    object["roleRef"]["name"] = json!("plimsoll-node");
                    // Which Kustomize writes.
                    object["subjects"][0]["namespace"] = json!("plimsoll");
                }
                _ => {}
            }
            let is_policy = kind.starts_with("ValidatingAdmission");
            if let Some(path) = collection(&kind)
                && (has_policies || !is_policy)
            {
                server.create(path, &object).await;
            }
        }
    }
    assert!(template.is_object());
    template
}

/// The pod that the DaemonSet's controller makes. There is no service network here, so the API server's address is
/// given.
fn pod_of(machine: &Machine, template: &Value, name: &str) -> Value {
    let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["name"] = json!(name);
    pod["spec"]["nodeName"] = json!(NODE);
    for container in pod["spec"]["containers"].as_array_mut().unwrap() {
        container["image"] = json!(IMAGE);
        container["imagePullPolicy"] = json!("Never");
        if container["name"] == "cluster" {
            let address = json!([
                {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
                {"name": "KUBERNETES_SERVICE_PORT", "value": machine.server.port.to_string()},
            ]);
            let env = container["env"].as_array_mut().unwrap();
            env.extend(address.as_array().unwrap().iter().cloned());
        }
    }
    pod
}

async fn start(machine: &Machine, pod: &Value) {
    let name = pod["metadata"]["name"].as_str().unwrap();
    machine.server.create(PODS, pod).await;
    let path = format!("{PODS}/{name}");
    let mut said = Value::Null;
    until("the pod of plimsoll to be ready", async || {
        let pod = machine.server.get(&path).await?;
        let of = |key: &str| pod["status"][key].as_array().cloned().unwrap_or_default();
        let states: Vec<Value> = of("containerStatuses")
            .iter()
            .map(|one| one["state"].clone())
            .collect();
        let states = json!(states);
        if states != said {
            machine.say(&format!("{name}: {states}"));
            said = states;
        }
        let is_ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
        of("conditions").iter().any(is_ready).then_some(())
    })
    .await;
    machine.say(&format!("pod {name} is ready"));
}

/// Deletes the pod, and waits until it has gone, as a DaemonSet's controller does before it makes the next.
async fn end(machine: &Machine, name: &str) {
    let path = format!("{PODS}/{name}");
    machine.server.delete_plain(&path).await;
    until("the pod of plimsoll to go", async || {
        machine.server.get(&path).await.is_none().then_some(())
    })
    .await;
    machine.say(&format!("pod {name} has gone"));
}

/// A pod leaks and is evicted.
pub(super) async fn evicts(machine: &Machine, name: &str) {
    let mut app = container("app", &LEAK);
    app["resources"] = json!({"requests": {"memory": "16Mi"}});
    let uid = machine.create(name, json!({"containers": [app]})).await;
    let pod = machine.runs(name, &uid, "app").await;
    machine.begin_leak(&pod);
    until("the end of its processes", async || {
        pod.processes().is_empty().then_some(())
    })
    .await;
    machine.say(&format!("pod {name} was killed"));
    machine.is_evicted(&pod).await;
    // What the guide shows (docs/guide/cluster.md).
    machine.show(&["get", "pods"]);
    machine.show(&["describe", "pod", name]);
    machine.show(&["get", "events"]);
    machine.server.delete(&pod_path(name)).await;
}

/// Of Plimsoll's.
pub(super) async fn conditions(machine: &Machine) -> Vec<Value> {
    let node = machine.server.get(&format!("/api/v1/nodes/{NODE}")).await;
    let node = node.unwrap_or_default();
    let all = node["status"]["conditions"].as_array().cloned();
    let is_ours = |one: &Value| {
        let name = one["type"].as_str().unwrap_or_default();
        name.starts_with("plimsoll.dev/")
    };
    all.unwrap_or_default()
        .into_iter()
        .filter(is_ours)
        .collect()
}

/// Shows them: no threshold is met, and what this guest lacks is named.
pub(super) fn say_conditions(machine: &Machine, ours: &[Value]) {
    let expected = [
        ("plimsoll.dev/MemoryPressure", "False"),
        ("plimsoll.dev/Stalled", "False"),
        ("plimsoll.dev/Degraded", "True"),
    ];
    for (name, status) in expected {
        let one = ours.iter().find(|one| one["type"] == name);
        let one = one.unwrap_or_else(|| panic!("no {name}: {ours:#?}"));
        machine.say(&format!("{name} {}: {}", one["status"], one["message"]));
        assert_eq!(one["status"], status, "{one:#}");
        let message = one["message"].as_str().unwrap_or_default();
        assert!(!message.is_empty(), "{one:#}");
    }
}

/// An agent that ended without `--keep-on-exit` has put all settings back, and holds nothing; `plimsoll uninstall`
/// takes away the files that are left, and finds nothing to restore.
pub(super) fn nothing_is_left(machine: &Machine) {
    let held = machine.held();
    assert!(held.is_empty(), "{held:?}");
    // All that are there, so that none can be forgotten here. Holds are of evicted pods, and went with their cgroups;
    // evictions that are to be told are no settings.
    let mut ledgers = 0;
    for entry in fs::read_dir(STATE).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if !name.ends_with(".jsonl") || OF_EVICTED_PODS.contains(&name.as_ref()) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "", "{name} has settings that were not put back");
        ledgers += 1;
    }
    assert!(ledgers > 0, "the agent's ledgers are not in {STATE}");
    let program = machine.file("plimsoll");
    let text = machine::output(&program.to_string_lossy(), &["uninstall"]);
    machine.say(&text);
    for line in text.lines().filter(|line| line.starts_with("restored")) {
        // Of evicted pods, whose cgroups went with their holds.
        assert!(line.contains("cgroup.max.descendants"), "{line}");
    }
    assert!(!Path::new(STATE).exists(), "{text}");
    let pinned: Vec<_> = fs::read_dir("/sys/fs/bpf")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert!(pinned.is_empty(), "{pinned:?}");
}

/// Scenarios 18, 32 and 33: installed, replaced, with fewer privileges, and taken off.
#[test]
fn k_as_the_pod_of_a_daemon_set() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
        if machine.has_operator() {
            notes::left_out("scenarios 18, 32, 33 without a DaemonSet's controller: there is one");
            return;
        }
        machine.import_programs(IMAGE);
        machine.kill_agent();
        machine.kill_cluster();
        let template = install(machine).await;
        start(machine, &pod_of(machine, &template, "plimsoll-1")).await;
        let ours = until("the node's conditions", async || {
            let ours = conditions(machine).await;
            (ours.len() == 3).then_some(ours)
        })
        .await;
        say_conditions(machine, &ours);
        evicts(machine, "leaky-1").await;

        // The next version: the state directory and holds are those of the one before.
        end(machine, "plimsoll-1").await;
        let component: Value = serde_saphyr::from_str(LEAST_PRIVILEGE).unwrap();
        let patch = component["patches"][0]["patch"].as_str().unwrap();
        let patch: Vec<Value> = serde_saphyr::from_str(patch).unwrap();
        let mut lesser = template.clone();
        assert_eq!(
            patch[0]["path"],
            "/spec/template/spec/containers/0/securityContext"
        );
        lesser["spec"]["containers"][0]["securityContext"] = patch[0]["value"].clone();
        start(machine, &pod_of(machine, &lesser, "plimsoll-2")).await;
        evicts(machine, "leaky-2").await;
        end(machine, "plimsoll-2").await;

        // deploy/uninstall.
        let mut last = template.clone();
        let containers = last["spec"]["containers"].as_array_mut().unwrap();
        let arguments = containers[0]["args"].as_array_mut().unwrap();
        arguments.retain(|argument| argument != "--keep-on-exit");
        let arguments = containers[1]["args"].as_array_mut().unwrap();
        arguments.push(json!("--clean-up-on-exit"));
        start(machine, &pod_of(machine, &last, "plimsoll-3")).await;
        end(machine, "plimsoll-3").await;
        let left = conditions(machine).await;
        assert!(left.is_empty(), "{left:#?}");
        nothing_is_left(machine);
        machine.start_agent();
        machine.start_cluster();
    });
}
