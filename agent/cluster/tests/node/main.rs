//! Beside a real kubelet (ring 3): numbers are those of the scenarios in the test plan.
//! `cargo xtask test --cluster` boots the machine that they run in; anywhere else they are left out.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod applied;
mod daemon_set;
mod machine;
mod measure;
mod rivals;
#[path = "../support/mod.rs"]
mod support;
mod upkeep;
mod vitals;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use machine::{LEAK, Machine, Pod, STATIC_PODS, container, said};
use serde_json::{Value, json};
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

/// How often a kubelet may start a container again in this time, if each start fails: at once, and then with pauses
/// that double from a second on, the shortest that a kubelet can be told, up to a minute. One whose sandbox was gone
/// would do it all the time.
fn starts_at_most(time: Duration) -> u64 {
    let seconds = time.as_secs().max(1);
    2 + u64::from(seconds.ilog2()) + seconds / 60
}

/// Scenarios 6 and 25: a minute without the API server.
#[test]
fn c_nothing_runs_while_the_api_server_is_away() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        let pod = machine.leaky("unheard").await;
        let sandbox = pod.sandbox();
        machine.server.stop();
        machine.say("the API server is stopped");
        let stopped = Instant::now();
        machine.leak(&pod).await;
        for _ in 0..60 {
            assert_eq!(pod.processes(), [""; 0], "a container was started again");
            assert!(pod.cgroup.exists(), "its kubelet cannot know");
            assert!(
                !machine::pids(&sandbox).is_empty(),
                "its sandbox was killed"
            );
            let free = machine::free_mib();
            let threshold = machine.threshold_mib();
            assert!(free >= threshold, "{free} MiB available of {threshold}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        machine.server.run().await;
        machine.say("the API server is there again");
        let refused = machine.is_evicted(&pod).await.restarts;
        let most = starts_at_most(stopped.elapsed());
        // Without one it was the kubelet that left the pod alone, and not the hold that kept it down.
        assert!(refused >= 1, "its kubelet has not tried to start it again");
        assert!(refused <= most, "{refused} starts, {most} at most");
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

/// Scenario 30: told once, and nothing of it is left.
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
        until("the hold", async || {
            machine.held().contains(&pod.cgroup).then_some(())
        })
        .await;
        machine.start_kubelet();
        machine.say("the kubelet is started");
        let eviction = machine.is_evicted(&pod).await;
        // A second report of the same eviction would make a series of its Event.
        assert!(eviction.event["series"].is_null(), "{:#}", eviction.event);
        until("the end of the agent's eviction", async || {
            said("eviction_finished", &pod.uid).then_some(())
        })
        .await;
        for word in ["\"evict\"", "\"eviction_finished\""] {
            assert_eq!(machine::times_said(word, &pod.uid), 1, "{word}");
        }
        let held = machine.held();
        assert!(!held.contains(&pod.cgroup), "held still: {held:?}");
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
        let setup = container("setup", &["/busybox", "sleep", "1"]);
        let spec = json!({"initContainers": [setup, sidecar], "containers": [rest]});
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

/// A pod whose hook and SIGTERM handler write what they do to `/run/hooks/NAME`; it leaks up to 350 MB, and ends this
/// long after SIGTERM.
async fn hooked(machine: &Machine, name: &str, seconds: u32) -> Pod {
    fs::create_dir_all("/run/hooks").unwrap();
    let script = format!(
        "trap 'echo term >>/hooks/{name}; /busybox sleep {seconds}; kill -9 $hog; echo end >>/hooks/{name}; exit 0' TERM
            /hog ramp --rate-mb-s 25 --max-mb 350 --wait-usr1 & hog=$!; wait; wait"
    );
    let mut app = container("app", &["/busybox", "sh", "-c", &script]);
    app["resources"] = json!({"requests": {"memory": "16Mi"}});
    app["volumeMounts"] = json!([{"name": "hooks", "mountPath": "/hooks"}]);
    let hook = format!("echo hook >>/hooks/{name}");
    let hook = ["/busybox", "sh", "-c", &hook];
    app["lifecycle"] = json!({"preStop": {"exec": {"command": hook}}});
    let volumes = json!([{"name": "hooks", "hostPath": {"path": "/run/hooks"}}]);
    let spec =
        json!({"containers": [app], "volumes": volumes, "terminationGracePeriodSeconds": 60});
    let uid = machine.create(name, spec).await;
    machine.runs(name, &uid, "app").await
}

/// What it has written.
fn hooks_of(pod: &Pod) -> String {
    fs::read_to_string(Path::new("/run/hooks").join(&pod.name)).unwrap_or_default()
}

/// Starts the agent anew with a soft threshold in place of the hard one.
async fn start_soft_agent(machine: &mut Machine, grace_s: u32, pod: &Pod) {
    machine.kill_agent();
    let soft = format!("memory.available<{}Mi", machine.threshold_mib());
    machine.start_agent_with(&[
        "--eviction-hard=memory.available<100Mi",
        "--eviction-soft",
        &soft,
        "--eviction-soft-grace-period=memory.available=1s",
        &format!("--eviction-max-pod-grace-period={grace_s}"),
    ]);
    let shown = format!("shop/{} ", pod.name);
    until("its pod to be shown again", async || {
        machine.top().filter(|top| top.contains(&shown)).map(|_| ())
    })
    .await;
}

/// Waits until the API shows the end of a pod that had a grace period, and its cgroup has gone.
async fn has_ended(machine: &Machine, pod: &Pod) {
    let seen = until(
        "the API to show its end, and its cgroup to go",
        async || {
            let seen = machine.server.seen(&pod.name).await;
            (seen["status"]["phase"] == "Failed" && !pod.cgroup.exists()).then_some(seen)
        },
    )
    .await;
    let annotation = &seen["metadata"]["annotations"]["plimsoll.dev/evicted"];
    assert!(annotation.is_string(), "{seen:#}");
    machine.say(&format!(
        "the API shows reason {}",
        seen["status"]["reason"]
    ));
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
        let pod = hooked(machine, "hooked", 3).await;
        start_soft_agent(machine, 60, &pod).await;
        machine.leak(&pod).await;
        has_ended(machine, &pod).await;
        let log = hooks_of(&pod);
        if said("without hooks", &pod.uid) {
            notes::left_out(
                "scenario 27, the hook: here the API server took more than 2 s to take the eviction, and the agent sent SIGTERM itself",
            );
            assert!(log.contains("term\n") && log.ends_with("end\n"), "{log}");
        } else {
            assert_eq!(
                log, "hook\nterm\nend\n",
                "each once, and its grace was kept"
            );
        }
        machine.kill_agent();
        machine.start_agent();
    });
}

/// Scenario 28: a static pod and one that is critical use most, and another pod goes.
#[test]
fn i_static_and_critical_pods_stay() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
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
        machine.renew_threshold().await;
        let pod = machine.leaky("instead").await;
        machine.leak(&pod).await;
        machine.is_evicted(&pod).await;
        assert!(!critical.processes().is_empty());
        let explained = machine.explain();
        println!("{explained}");
        for (name, why) in [
            ("shop/static-node-1", "static pod"),
            ("shop/critical", "system-critical priority"),
        ] {
            let row = explained
                .lines()
                .find(|line| line.split_whitespace().nth(1) == Some(name))
                .unwrap_or_else(|| panic!("no {name} in {explained}"));
            assert!(row.trim_end().ends_with(why), "{row}");
        }
        // Where nobody is left, that is said instead.
        let next = explained
            .lines()
            .find(|line| {
                line.starts_with("Next to be evicted: ")
                    || *line == "No pod can be evicted: all pods are exempt."
            })
            .unwrap_or_else(|| panic!("nobody is next in {explained}"));
        for name in ["shop/static-node-1", "shop/critical"] {
            assert!(
                !next.starts_with(&format!("Next to be evicted: {name}")),
                "{next}"
            );
        }
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
        machine.renew_threshold().await;
        let same = format!(
            "evictionHard: {{memory.available: {}Mi}}",
            machine.threshold_mib()
        );
        let none = machine.restart_kubelet_with(same).await;
        let rest = ["/hog", "hold", "--mb", "20"];
        let request = json!({"requests": {"memory": "32Mi"}});
        let other = machine.pod("beside", &rest, request, json!({})).await;
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
        machine.restart_kubelet_with(none).await;
    });
}

/// Scenario 31: the ranking follows what the kubelet has allocated.
#[test]
fn l_requests_are_resized_in_place() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
        if machine.minor_version().await < 33 {
            notes::left_out("scenario 31: this kubelet resizes no pods in place (from 1.33)");
            return;
        }
        machine.renew_threshold().await;
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

/// Scenario 17, with this runtime and this driver: what a hold refuses, and that it ends when it is lifted.
#[test]
fn n_a_held_pod_starts_nothing() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        let rest = ["/hog", "hold", "--mb", "5"];
        let pod = machine.pod("held", &rest, json!({}), json!({})).await;
        let hold = pod.cgroup.join("cgroup.max.descendants");
        fs::write(&hold, "0").unwrap();
        for pid in pod.processes() {
            machine::output("/bin/busybox", &["kill", "-KILL", &pid]);
        }
        until("the end of its process", async || {
            pod.processes().is_empty().then_some(())
        })
        .await;
        machine.say("held, and its process killed");
        let refusal = until("a start to be refused", async || {
            assert_eq!(pod.processes(), [""; 0], "something was started");
            let seen = machine.server.seen("held").await;
            let status = &seen["status"]["containerStatuses"][0];
            let states = [
                &status["state"]["waiting"],
                &status["lastState"]["terminated"],
            ];
            let messages = states.map(|state| state["message"].as_str().unwrap_or_default());
            // cgroupfs; systemd, which does not say why.
            let words = ["resource temporarily unavailable", "unable to start unit"];
            let is_refusal = |message: &&str| words.iter().any(|words| message.contains(words));
            messages.into_iter().find(is_refusal).map(str::to_owned)
        })
        .await;
        machine.say(&format!("refused: {refusal}"));
        fs::write(&hold, "max").unwrap();
        machine.say("lifted");
        until("it to run again", async || {
            (!pod.processes().is_empty()).then_some(())
        })
        .await;
        machine.say("it runs again");
        machine.server.delete(&pod_path("held")).await;
    });
}

/// The kubelet ends during a grace period: it is the agent that ends the pod, at the end of it, and a kubelet that
/// comes back starts nothing.
#[test]
fn q_the_kubelet_ends_during_a_grace_period() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
        if !machine.kubelet_heeds_status().await {
            return;
        }
        machine.renew_threshold().await;
        let pod = hooked(machine, "deserted", 600).await;
        start_soft_agent(machine, 15, &pod).await;
        machine.begin_leak(&pod);
        until("SIGTERM", async || {
            hooks_of(&pod).ends_with("term\n").then_some(())
        })
        .await;
        machine.stop_kubelet();
        machine.say("its hook has run, it has its SIGTERM, and the kubelet is stopped");
        until("the end of its processes", async || {
            pod.processes().is_empty().then_some(())
        })
        .await;
        machine.say("the agent has ended it");
        machine.start_kubelet();
        has_ended(machine, &pod).await;
        assert_eq!(hooks_of(&pod), "hook\nterm\n");
        machine.kill_agent();
        machine.start_agent();
    });
}

/// UIDs of evictions that the agent has yet to see told, by its file.
fn unsettled() -> BTreeSet<String> {
    let text = fs::read_to_string("/run/plimsoll/intents.jsonl").unwrap_or_default();
    let mut waiting = BTreeSet::new();
    // The last line may be half written.
    for line in text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
    {
        let line: Value = serde_json::from_str(line).unwrap();
        if let Some(uid) = line["struck"].as_str() {
            waiting.remove(uid);
        } else {
            let uid = line["evicted"]["uid"].as_str();
            waiting.insert(uid.unwrap_or_else(|| panic!("{line}")).to_owned());
        }
    }
    waiting
}

/// Scenarios that this kubelet cannot show, by name; and nothing of what was evicted is left.
#[test]
fn z_nothing_is_left() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        let held = machine.held();
        assert!(held.is_empty(), "held still: {held:?}");
        until("every eviction to be settled", async || {
            unsettled().is_empty().then_some(())
        })
        .await;
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
