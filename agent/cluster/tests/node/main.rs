//! Beside a real kubelet (ring 3): numbers are those of the scenarios in the test plan. `cargo xtask test --cluster` boots the machine that they
//! run in; anywhere else they are left out.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod machine;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::time::Duration;

use machine::{Machine, said};
use serde_json::json;
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
                json!({"init": true}),
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

/// Scenarios that this kubelet cannot show, by name; and nothing of what was evicted is left.
#[test]
fn f_nothing_is_left() {
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
        notes::left_out("scenario 29: the kubelet's own eviction is off here");
        for log in ["agent", "cluster"] {
            let text = fs::read_to_string(format!("/out/{log}.log")).unwrap();
            assert!(!text.contains("panicked"), "{text}");
        }
    });
}
