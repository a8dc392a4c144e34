//! The commands of docs/guide/cluster.md that need a cluster, as an operator gives them: kubectl and helm, a real API
//! server, and no node. What the controllers of DaemonSets and of namespaces do then is a few lines, so that servers
//! without a kube-controller-manager will do.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::deploy::tool;
use super::*;

#[path = "../../../tests/guides/fences.rs"]
#[allow(dead_code, reason = "the tests of the guides need all of it")]
mod fences;

use fences::{PAGES, Way, Where};

const PAGE: &str = "docs/guide/cluster.md";
const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");

/// A program of this name that calls `tool` for this API server. Not every build of a server has the description by
/// which kubectl judges what it sends: the server judges.
fn put(folder: &Path, name: &str, tool: &Path, kubeconfig: &Path) {
    let text = format!(
        "#!/bin/sh
command=$1
shift
case $command in
apply) set -- --validate=false \"$@\" ;;
esac
exec '{}' --kubeconfig '{}' \"$command\" \"$@\"
",
        tool.to_str().unwrap(),
        kubeconfig.to_str().unwrap()
    );
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
}

/// Whether kubectl can judge an object by the server's own description; one that has just started may need some
/// seconds.
fn describes_itself(kubectl: &Path, server: &Server) -> bool {
    (0..TRIED_MAX).any(|_| {
        let mut tried = Command::new(kubectl);
        tried.arg("--kubeconfig").arg(server.path("admin.conf"));
        tried.args(["apply", "--dry-run=client", "--filename"]);
        let output = tried.arg(Path::new(DEPLOY).join("base/namespace.yaml"));
        output.output().unwrap().status.success()
    })
}

/// How often it is asked for; each time kubectl takes some tenths of a second.
const TRIED_MAX: u32 = 20;

const SET: &str = "/apis/apps/v1/namespaces/plimsoll/daemonsets/plimsoll";

/// What the controllers do with a DaemonSet that no node wants, and with a namespace that is to go, as long as it is
/// polled.
async fn controllers(server: &Server) {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Some(set) = server.get(SET).await {
            let metadata = &set["metadata"];
            if !metadata["deletionTimestamp"].is_null() {
                let last = json!({"metadata": {"finalizers": null}});
                server.admin.call(&merge(SET, &last)).await;
            } else if set["status"]["observedGeneration"] != metadata["generation"] {
                let status = json!({"status": {"observedGeneration": metadata["generation"], "currentNumberScheduled": 0,
                    "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0, "updatedNumberScheduled": 0}});
                server
                    .admin
                    .call(&merge(&format!("{SET}/status"), &status))
                    .await;
            }
        }
        let namespace = "/api/v1/namespaces/plimsoll";
        let seen = server.get(namespace).await.unwrap_or_default();
        if !seen["metadata"]["deletionTimestamp"].is_null() {
            let mut last = seen;
            last["spec"]["finalizers"] = json!([]);
            let call = Call::write(
                Verb::Put,
                "test",
                &format!("{namespace}/finalize"),
                Content::Json,
                &last,
                false,
            );
            server.admin.call(&call).await;
        }
    }
}

fn merge(path: &str, body: &Value) -> Call {
    Call::write(Verb::Patch, "test", path, Content::Merge, body, false)
}

/// Scenarios 14 and 33 without a node: each way through the page, one after the other.
#[test]
fn the_guides_commands_install_and_uninstall() {
    run(async {
        let (Some(kubectl), Some(helm)) = (tool("kubectl"), tool("helm")) else {
            return support::notes::left_out(
                "needs kubectl and helm: cargo xtask deploy-check fetches them",
            );
        };
        let Some(server) = Server::start().await else {
            return;
        };
        // The tests' own, of these names.
        let rights = "/apis/rbac.authorization.k8s.io/v1";
        let (role, binding) = (
            format!("{rights}/clusterroles/plimsoll"),
            format!("{rights}/clusterrolebindings/plimsoll"),
        );
        server.delete(&role).await;
        server.delete(&binding).await;
        let scratch = tempfile::tempdir().unwrap();
        let programs = scratch.path().join("programs");
        fs::create_dir(&programs).unwrap();
        put(&programs, "kubectl", &kubectl, &server.path("admin.conf"));
        put(&programs, "helm", &helm, &server.path("admin.conf"));
        let (_, text) = PAGES.iter().find(|(page, _)| *page == PAGE).unwrap();
        let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
        let has_policies = server.get(policies).await.is_some();
        // The last one uninstalls nothing.
        for way in [Way::Kubectl, Way::Helm, Way::Before130] {
            // The chart takes servers from 1.24 on: one with policies is newer.
            if has_policies == (way == Way::Before130) {
                support::notes::left_out(format_args!(
                    "{PAGE}, the way {way:?}: this API server is of another version"
                ));
                continue;
            }
            if way == Way::Helm && !describes_itself(&kubectl, &server) {
                support::notes::left_out(format_args!(
                    "{PAGE}, the way Helm: this build of an API server has no description, and helm asks for it"
                ));
                continue;
            }
            let folder = scratch.path().join(format!("{way:?}"));
            fs::create_dir(&folder).unwrap();
            let copied = Command::new("cp")
                .arg("-a")
                .arg(DEPLOY)
                .arg(&folder)
                .status();
            assert!(copied.unwrap().success());
            let program = programs.join("plimsoll");
            let session = tokio::task::spawn_blocking(move || {
                fences::run(PAGE, text, &[Where::Cluster(way)], &program, &folder)
            });
            let ran = tokio::select! {
                () = controllers(&server) => unreachable!("it does not end"),
                ran = session => ran.unwrap(),
            };
            let blocks = ran.unwrap_or_else(|error| panic!("{error}"));
            assert!(blocks > 0, "{way:?}");
            let is_installed = way == Way::Before130;
            for object in [SET, role.as_str(), binding.as_str()] {
                let there = server.get(object).await.is_some();
                assert_eq!(there, is_installed, "{way:?}: {object}");
            }
            support::notes::note(format_args!("{PAGE}, the way {way:?}: {blocks} blocks run"));
        }
    });
}

/// What a DaemonSet that is just deleted leaves on its nodes goes by the page's commands, and nothing else does.
#[test]
fn the_guides_commands_take_off_what_was_left_behind() {
    run(async {
        let Some(kubectl) = tool("kubectl") else {
            return support::notes::left_out("needs kubectl: cargo xtask deploy-check fetches it");
        };
        let Some(server) = Server::start().await else {
            return;
        };
        for node in ["left", "clean"] {
            server.node(node, "v1.36.2").await;
        }
        let left = "/api/v1/nodes/left";
        let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
        let meta = json!({"metadata": {"annotations": {"plimsoll.dev/withheld": "{}", "example.com/kept": "a"}},
            "spec": {"taints": [taint("plimsoll.dev/memory-pressure"), taint("example.com/kept")]}});
        server.merge(left, &meta).await;
        // That one of the three is not there adds nothing.
        let conditions = json!({"status": {"conditions": [
            {"type": "plimsoll.dev/MemoryPressure", "status": "True"}, {"type": "plimsoll.dev/Degraded", "status": "True"}]}});
        server.patch(&format!("{left}/status"), &conditions).await;
        // What the arbitrator has written.
        let list = json!({"metadata": {"annotations": {"plimsoll.dev/overused": "{}"}}});
        server.merge(left, &list).await;
        server.pod("left", "left-0").await;
        server.pod("clean", "clean-0").await;
        let notice = json!({"metadata": {"annotations": {"plimsoll.dev/evict-after": "2026-11-22T10:00:00Z",
            "plimsoll.dev/room-on": "left", "example.com/kept": "a"}}});
        server.merge(&pod_path("left-0"), &notice).await;
        let scratch = tempfile::tempdir().unwrap();
        put(
            scratch.path(),
            "kubectl",
            &kubectl,
            &server.path("admin.conf"),
        );
        let (_, text) = PAGES.iter().find(|(page, _)| *page == PAGE).unwrap();
        let program = scratch.path().join("plimsoll");
        let folder = scratch.path().join("session");
        fs::create_dir(&folder).unwrap();
        let session = tokio::task::spawn_blocking(move || {
            fences::run(
                PAGE,
                text,
                &[Where::Cluster(Way::LeftBehind)],
                &program,
                &folder,
            )
        });
        let blocks = session.await.unwrap();
        assert_eq!(blocks.unwrap_or_else(|error| panic!("{error}")), 2);
        let annotations = &server.seen("left-0").await["metadata"]["annotations"];
        assert_eq!(annotations["example.com/kept"], "a");
        let text = annotations.to_string();
        assert!(!text.contains("\"plimsoll.dev/"), "{text}");
        for node in ["left", "clean"] {
            let mut node = server.get(&format!("/api/v1/nodes/{node}")).await.unwrap();
            node["metadata"]["managedFields"] = json!(null);
            assert!(!node.to_string().contains("\"plimsoll.dev/"), "{node:#}");
            let conditions = node["status"]["conditions"].as_array().unwrap();
            assert_eq!(conditions.len(), 1, "{node:#}");
        }
        let node = server.get(left).await.unwrap();
        assert_eq!(node["metadata"]["annotations"]["example.com/kept"], "a");
        let taints = node["spec"]["taints"].as_array().unwrap();
        let is_kept = |taint: &Value| taint["key"] == "example.com/kept";
        assert!(taints.iter().any(is_kept), "{node:#}");
    });
}
