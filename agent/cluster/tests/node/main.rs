//! Beside a real kubelet (ring 3): numbers are those of the scenarios in the test plan. `cargo xtask test --cluster` boots the machine that they
//! run in; anywhere else they are left out.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod applied;
mod daemon_set;
mod machine;
mod measure;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::time::Duration;

use machine::{LEAK, Machine, STATIC_PODS, container, said};
use serde_json::json;
use support::server::pod_path;
use support::{notes, run, until};
use tokio::sync::{Mutex, MutexGuard};

/// One machine for all tests, one test at a time. Outside: not tried; inside `None`: it cannot run here.
static MACHINE: Mutex<Option<Machine>> = Mutex::const_new(None);

async fn machine() -> Option<MutexGuard<'static, Option<Machine>>> {
    let mut machine = MACHINE.lock().await;
    if machine.is_none() {
        *machine = Machine::start().await;
    }
    machine.is_some().then_some(machine)
}

/// Scenario 16: pods of each class, and one with a container that has ended, have their names.
#[test]
fn a_pods_are_named() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        let rest = ["/hog", "hold", "--mb", "5"];
        let both = json!({"memory": "64Mi", "cpu": "100m"});
        let guaranteed = json!({"requests": both, "limits": both});
        machine
            .pod("best-effort", &rest, json!({}), json!({}))
            .await;
        machine
            .pod(
                "burstable",
                &rest,
                json!({"requests": {"memory": "16Mi"}}),
                json!({"initContainers": [container("init", &["/busybox", "sleep", "1"])]}),
            )
            .await;
        machine
            .pod("guaranteed", &rest, guaranteed, json!({}))
            .await;
        let top = machine.top().unwrap();
        for (name, class) in [
            ("best-effort", "Bes"),
            ("burstable", "Bur"),
            ("guaranteed", "Gua"),
        ] {
            let line = top
                .lines()
                .find(|line| line.starts_with(&format!("shop/{name} ")))
                .unwrap();
            assert_eq!(line.split_whitespace().nth(1), Some(class), "{top}");
        }
        println!("{top}");
    });
}

/// Scenarios 23 and 24.
#[test]
fn b_a_pod_that_leaks_is_evicted() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        let pod = machine.leaky("leaky").await;
        machine.leak(&pod).await;
        machine.is_evicted(&pod).await;
        until("the end of the agent's eviction", async || {
            said("eviction_finished", &pod.uid).then_some(())
        })
        .await;
        // What the guide shows (docs/guide/cluster.md).
        machine.show(&["get", "pods"]);
        machine.show(&["describe", "pod", "leaky"]);
        machine.show(&["get", "events"]);
        machine.show(&["describe", "node", machine::NODE]);
    });
}

/// Scenarios 6 and 25: a minute without the API server.
#[test]
fn c_nothing_runs_while_the_api_server_is_away() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        let pod = machine.leaky("unheard").await;
        machine.server.stop();
        machine.say("the API server is stopped");
        machine.leak(&pod).await;
        for _ in 0..60 {
            assert_eq!(pod.processes(), [""; 0], "a container was started again");
            assert!(pod.cgroup.exists(), "its kubelet cannot know");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        machine.server.run().await;
        machine.say("the API server is there again");
        machine.is_evicted(&pod).await;
    });
}

/// Scenario 7: nobody tells, the agent is killed, both are started again.
#[test]
fn d_an_eviction_outlives_both_programs() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
        let pod = machine.leaky("untold").await;
        machine.kill_cluster();
        machine.leak(&pod).await;
        machine.kill_agent();
        machine.say("both programs are killed");
        machine.start_agent();
        machine.start_cluster();
        machine.is_evicted(&pod).await;
    });
}

/// Scenario 30.
#[test]
fn e_the_kubelet_is_started_again() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
        let pod = machine.leaky("kubeletless").await;
        machine.stop_kubelet();
        machine.say("the kubelet is stopped");
        machine.leak(&pod).await;
        machine.start_kubelet();
        machine.say("the kubelet is started");
        machine.is_evicted(&pod).await;
    });
}

/// Scenario 23 for a pod that leaks before its containers run, and for one whose sidecar leaks.
#[test]
fn f_init_containers_and_sidecars_leak() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        let rest = container("app", &["/busybox", "sleep", "100000"]);
        let init = json!({"initContainers": [container("setup", &LEAK)], "containers": [rest]});
        let uid = machine.create("leaky-init", init).await;
        let pod = machine.runs("leaky-init", &uid, "setup").await;
        machine.leak(&pod).await;
        machine.is_evicted(&pod).await;
        if !machine.kubelet_heeds_status().await {
            notes::left_out("sidecars: this kubelet has none (from 1.28)");
            return;
        }
        let mut sidecar = container("proxy", &LEAK);
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({"initContainers": [sidecar], "containers": [rest]});
        let uid = machine.create("leaky-sidecar", spec).await;
        let pod = machine.runs("leaky-sidecar", &uid, "app").await;
        machine.leak(&pod).await;
        machine.is_evicted(&pod).await;
    });
}

/// Scenario 26: what the kubelet makes of a status that another has written.
#[test]
fn g_a_status_needs_an_annotation() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        if !machine.kubelet_heeds_status().await {
            return;
        }
        let rest = ["/hog", "hold", "--mb", "5"];
        let pod = machine.pod("told", &rest, json!({}), json!({})).await;
        let status = json!({"phase": "Failed", "reason": "Evicted", "message": "a test"});
        let path = format!("{}/status", pod_path("told"));
        machine
            .server
            .patch(&path, &json!({"status": status}))
            .await;
        machine.say("the status says Failed, without an annotation");
        until("Running to be written back", async || {
            let phase = machine.server.seen("told").await["status"]["phase"].clone();
            (phase == "Running").then_some(())
        })
        .await;
        machine.say("the kubelet has written Running back");
        assert!(!pod.processes().is_empty(), "it runs on");
        let annotations = json!({"test.plimsoll.dev/evicted": "now"});
        let body = json!({"metadata": {"annotations": annotations}, "status": status});
        machine.server.patch(&path, &body).await;
        machine.say("the status says Failed, with an annotation");
        until("the end of its processes", async || {
            pod.processes().is_empty().then_some(())
        })
        .await;
        machine.say("its processes have ended");
        until("the pod's cgroup to go", async || {
            (!pod.cgroup.exists()).then_some(())
        })
        .await;
        machine.say("its cgroup has gone");
        assert_eq!(
            machine.server.seen("told").await["status"]["phase"],
            "Failed"
        );
    });
}

/// Scenario 27.
#[test]
fn h_hooks_run_at_a_soft_threshold() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
        if !machine.kubelet_heeds_status().await {
            return;
        }
        fs::create_dir_all("/run/hooks").unwrap();
        let script = "trap 'echo term >>/hooks/log; /busybox sleep 3; kill -9 $hog; echo end >>/hooks/log; exit 0' TERM
            /hog ramp --rate-mb-s 25 --max-mb 350 --wait-usr1 & hog=$!; wait; wait";
        let mut app = container("app", &["/busybox", "sh", "-c", script]);
        app["resources"] = json!({"requests": {"memory": "16Mi"}});
        app["volumeMounts"] = json!([{"name": "hooks", "mountPath": "/hooks"}]);
        let hook = ["/busybox", "sh", "-c", "echo hook >>/hooks/log"];
        app["lifecycle"] = json!({"preStop": {"exec": {"command": hook}}});
        let volumes = json!([{"name": "hooks", "hostPath": {"path": "/run/hooks"}}]);
        let spec =
            json!({"containers": [app], "volumes": volumes, "terminationGracePeriodSeconds": 60});
        let uid = machine.create("hooked", spec).await;
        let pod = machine.runs("hooked", &uid, "app").await;
        machine.kill_agent();
        let soft = format!("memory.available<{}Mi", machine.threshold_mib());
        machine.start_agent_with(&[
            "--eviction-hard=memory.available<100Mi",
            "--eviction-soft",
            &soft,
            "--eviction-soft-grace-period=memory.available=1s",
            "--eviction-max-pod-grace-period=60",
        ]);
        until("pod hooked to be shown again", async || {
            machine
                .top()
                .filter(|top| top.contains("shop/hooked "))
                .map(|_| ())
        })
        .await;
        machine.leak(&pod).await;
        until(
            "the API to show its end, and its cgroup to go",
            async || {
                let phase = machine.server.seen("hooked").await["status"]["phase"].clone();
                (phase == "Failed" && !pod.cgroup.exists()).then_some(())
            },
        )
        .await;
        let seen = machine.server.seen("hooked").await;
        let annotation = &seen["metadata"]["annotations"]["plimsoll.dev/evicted"];
        assert!(annotation.is_string(), "{seen:#}");
        machine.say(&format!(
            "the API shows reason {}",
            seen["status"]["reason"]
        ));
        let log = fs::read_to_string("/run/hooks/log").unwrap();
        assert_eq!(
            log, "hook\nterm\nend\n",
            "each once, and its grace was kept"
        );
        machine.kill_agent();
        machine.start_agent();
    });
}

/// Scenario 28: a static pod and one that is critical use most, and another pod goes.
#[test]
fn i_static_and_critical_pods_stay() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        let hold = container("app", &["/hog", "hold", "--mb", "60"]);
        let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static", "namespace": "shop"},
            "spec": {"hostNetwork": true, "containers": [hold]}});
        let file = format!("{STATIC_PODS}/static.json");
        fs::write(&file, manifest.to_string()).unwrap();
        let critical = json!({"priorityClassName": "system-node-critical", "containers": [hold]});
        let uid = machine.create("critical", critical).await;
        let critical = machine.runs("critical", &uid, "app").await;
        until("the static pod to be shown", async || {
            machine
                .top()
                .filter(|top| top.contains("shop/static-node-1 "))
                .map(|_| ())
        })
        .await;
        let pod = machine.leaky("instead").await;
        machine.leak(&pod).await;
        machine.is_evicted(&pod).await;
        assert!(!critical.processes().is_empty());
        let explained = machine.explain();
        println!("{explained}");
        fs::remove_file(&file).unwrap();
        machine.server.delete(&pod_path("critical")).await;
        until("both to end", async || {
            let top = machine.top()?;
            (!top.contains("shop/static-") && !top.contains("shop/critical ")).then_some(())
        })
        .await;
    });
}

/// Scenario 29: the kubelet has the same threshold.
#[test]
fn j_the_kubelet_evicts_too() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
        if !machine.kubelet_heeds_status().await {
            notes::left_out("scenario 29: this kubelet's own eviction needs cgroup v1");
            return;
        }
        let same = format!("memory.available: {}Mi", machine.threshold_mib());
        let none = machine.kubelet_evicts_at(same).await;
        let rest = ["/hog", "hold", "--mb", "20"];
        let other = machine.pod("beside", &rest, json!({}), json!({})).await;
        let pod = machine.leaky("both").await;
        machine.leak(&pod).await;
        until(
            "the API to show its end, and its cgroup to go",
            async || {
                let status = machine.server.seen("both").await["status"].clone();
                (status["phase"] == "Failed" && !pod.cgroup.exists()).then_some(())
            },
        )
        .await;
        let seen = machine.server.seen("both").await;
        let annotation = &seen["metadata"]["annotations"]["plimsoll.dev/evicted"];
        let message = &seen["status"]["message"];
        machine.say(&format!("the API shows it: {annotation}, {message}"));
        // Longer than the kubelet's period of 10 s.
        for _ in 0..25 {
            assert!(!other.processes().is_empty(), "one victim, not two");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        machine.kubelet_evicts_at(none).await;
    });
}

/// Scenario 31: the ranking follows what the kubelet has allocated.
#[test]
fn l_requests_are_resized_in_place() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        if machine.minor_version().await < 33 {
            notes::left_out("scenario 31: this kubelet resizes no pods in place (from 1.33)");
            return;
        }
        for (name, mb) in [("leader", "60"), ("runner-up", "30")] {
            let command = ["/hog", "hold", "--mb", mb];
            let request = json!({"requests": {"memory": "16Mi"}});
            machine.pod(name, &command, request, json!({})).await;
        }
        let is_before = |first: &str, second: &str| {
            let text = machine.explain();
            let at = |name: &str| text.find(&format!("shop/{name}"));
            let at = (at(first)?, at(second)?);
            (at.0 < at.1).then_some(text)
        };
        let before = until("the ranking", async || is_before("leader", "runner-up")).await;
        println!("{before}");
        let resources = json!({"requests": {"memory": "200Mi"}});
        let body = json!({"spec": {"containers": [{"name": "app", "resources": resources}]}});
        let path = format!("{}/resize", pod_path("leader"));
        machine.server.patch(&path, &body).await;
        machine.say("the leader's request is more than it uses");
        let after = until("the ranking to change", async || {
            is_before("runner-up", "leader")
        })
        .await;
        machine.say("the ranking has changed");
        println!("{after}");
        for name in ["leader", "runner-up"] {
            machine.server.delete(&pod_path(name)).await;
        }
    });
}

/// Scenarios that this kubelet cannot show, by name; and nothing of what was evicted is left.
#[test]
fn z_nothing_is_left() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        let holds = fs::read_to_string("/run/plimsoll/holds.jsonl").unwrap_or_default();
        println!("{holds}");
        if !machine.kubelet_heeds_status().await {
            notes::left_out(
                "scenarios 23, 26, 27: this kubelet does not end a pod whose status says Failed (from 1.22)",
            );
        }
        for log in ["agent", "cluster"] {
            let text = fs::read_to_string(format!("/out/{log}.log")).unwrap();
            assert!(!text.contains("panicked"), "{text}");
        }
    });
}
