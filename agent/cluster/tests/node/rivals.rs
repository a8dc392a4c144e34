//! Others on the node that do what the agent does: a second agent, and a kubelet that manages cpusets.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::daemon_set::conditions;
use super::machine;
use super::machine::{Machine, agent_log};
use super::support::program::page;
use super::support::server::pod_path;
use super::support::{notes, run, until};

/// The agent's configuration: a policy that the kubelet has, too.
const PLACES: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: \"0\"
";

/// Where the agent has its metrics here.
const METRICS: &str = "127.0.0.1:9937";

/// How the agent and `plimsoll check` name the kubelet's managers.
const OWNER: &str = "manages cpusets itself";
/// What it says where nobody can.
const NO_CPUSETS: &str = "cgroup controller cpuset is not available";

/// Two DaemonSets: each has a socket of its own for its `plimsoll-cluster`, both have the node's directories. The
/// second agent ends, and the first is not disturbed.
#[test]
fn o_a_second_agent_ends() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        until("the agent", async || machine.top().map(|_| ())).await;
        let threshold = format!("memory.available<{}Mi", machine.threshold_mib());
        let mut second = Command::new(machine.file("plimsoll-agent"))
            .args(["--kubernetes", "--cluster-socket=/run/other.sock"])
            .args(["--keep-on-exit", "--output=json", "--eviction-hard"])
            .arg(threshold)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until("the second agent to end", async || {
            second.try_wait().unwrap()
        })
        .await;
        let output = second.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        machine.say(&format!("the second agent: {}, {error}", output.status));
        assert!(!output.status.success());
        let pid = machine.agent_pid().to_string();
        assert!(error.contains(&pid), "{pid} is in the way: {error}");
        let pod = machine.leaky("of-the-first").await;
        machine.leak(&pod).await;
        machine.is_evicted(&pod).await;
    });
}

/// What the agent's metric says of placement.
async fn placing() -> Option<String> {
    let text = page(TcpStream::connect(METRICS).await, "/metrics").await;
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("plimsoll_placement_active "))?;
    Some(value.to_owned())
}

/// Waits until the node's condition says that a mechanism is lost, with these words.
async fn is_degraded(machine: &Machine, words: &str) {
    let says = |one: &Value| {
        let message = one["message"].as_str().unwrap_or_default();
        one["type"] == "plimsoll.dev/Degraded" && one["status"] == "True" && message.contains(words)
    };
    until("the node's condition to say so", async || {
        conditions(machine).await.iter().any(says).then_some(())
    })
    .await;
}

/// Scenario 34: the kubelet's CPU manager is static, and the agent is to place, too.
#[test]
fn p_cpusets_are_the_kubelets() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
        // Somebody whose CPUs are to be written.
        let rest = ["/hog", "hold", "--mb", "5"];
        machine.pod("placed", &rest, json!({}), json!({})).await;
        let config = "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"".to_owned();
        let none = machine.restart_kubelet_with(config).await;
        until("the kubelet's state to say so", async || {
            let state = fs::read_to_string(machine::CPU_MANAGER_STATE).ok()?;
            state.contains("static").then_some(())
        })
        .await;
        machine.say("the kubelet's CPU manager is static");
        fs::write("/run/places.yaml", PLACES).unwrap();
        machine.kill_agent();
        let listen = format!("--listen={METRICS}");
        machine.start_agent_with(&["--config=/run/places.yaml", &listen]);
        until("the agent to say that it places nothing", async || {
            let log = fs::read_to_string(agent_log()).unwrap_or_default();
            log.contains(OWNER).then_some(())
        })
        .await;
        machine.say("the agent says that it places nothing");
        is_degraded(machine, OWNER).await;
        until("the metric to say so", async || {
            placing().await.filter(|value| value == "0")
        })
        .await;
        machine.say("the node's condition and the metric say so");
        let check = machine.check();
        println!("{check}");
        assert!(check.contains(OWNER), "{check}");
        machine.restart_kubelet_with(none).await;
        // Without a restart of the agent.
        let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap();
        if controllers.split_whitespace().any(|name| name == "cpuset") {
            until("the agent to place", async || {
                placing().await.filter(|value| value == "1")
            })
            .await;
            machine.say("the kubelet places nothing any more, and the agent does");
        } else {
            is_degraded(machine, NO_CPUSETS).await;
            assert_eq!(placing().await.as_deref(), Some("0"));
            machine.say("the kubelet places nothing any more, and this kernel has no cpusets");
            notes::left_out("scenario 34, the agent's own placement: this kernel has no cpuset");
        }
        machine.server.delete(&pod_path("placed")).await;
        machine.kill_agent();
        machine.start_agent();
        until("the agent", async || machine.top().map(|_| ())).await;
    });
}
