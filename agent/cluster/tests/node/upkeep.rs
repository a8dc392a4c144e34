//! What both programs cost beside a real kubelet, by the number of its pods: memory, CPU time and calls of the API
//! server, with nothing to do and while pods come and go. `cargo xtask kubernetes node --measure --only upkeep`.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::UnixStream;

use super::machine::{CLUSTER_METRICS, Machine};
use super::support::program::page;
use super::support::server::pod_path;
use super::support::{notes, run, until};
use super::{container, machine};

const COUNTS: [usize; 3] = [0, 50, 110];
/// Made at a time: a node starts them one after the other.
const AT_ONCE: usize = 5;
/// Nothing is measured so soon after the last pod has started.
const SETTLE: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(300);
const BUSY: Duration = Duration::from_secs(60);
/// Of `/proc/PID/stat`, a second.
const TICKS: f64 = 100.0;

/// Of a process so far.
#[derive(Debug, Clone, Copy)]
struct Used {
    cpu_s: f64,
    resident_kib: f64,
    /// Of it what belongs to no file.
    anonymous_kib: f64,
}

impl Used {
    fn of(pid: u32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // The name before it is in brackets, and may have spaces.
        let after = stat.rsplit_once(") ").unwrap().1;
        let of_stat: Vec<f64> = after
            .split(' ')
            .filter_map(|text| text.parse().ok())
            .collect();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let of_status = |name: &str| -> f64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.unwrap().split_whitespace().next();
            number.unwrap().parse().unwrap()
        };
        Self {
            // utime and stime; the state before them is no number.
            cpu_s: (of_stat[10] + of_stat[11]) / TICKS,
            resident_kib: of_status("VmRSS:"),
            anonymous_kib: of_status("RssAnon:"),
        }
    }
}

/// How often `plimsoll-cluster` has called the API server.
async fn calls() -> f64 {
    let text = page(UnixStream::connect(CLUSTER_METRICS).await, "/metrics").await;
    let of = |line: &&str| line.starts_with("plimsoll_cluster_api_calls_total");
    let lines = text.lines().filter(of);
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

/// Notes what both have used in the time that this takes.
async fn note_cost(machine: &Machine, what: &str, work: impl Future<Output = ()>) {
    let pids = [machine.agent_pid(), machine.cluster_pid()];
    let (before, calls_before, from) = (pids.map(Used::of), calls().await, Instant::now());
    work.await;
    let seconds = from.elapsed().as_secs_f64();
    let (after, calls) = (pids.map(Used::of), calls().await - calls_before);
    for (name, before, after) in [
        ("agent", before[0], after[0]),
        ("cluster", before[1], after[1]),
    ] {
        notes::note(format!(
            "{what}: {name}: {:.1} MiB resident, {:.1} of it not of files, {:.2} % of a CPU",
            after.resident_kib / 1024.0,
            after.anonymous_kib / 1024.0,
            100.0 * (after.cpu_s - before.cpu_s) / seconds
        ));
    }
    notes::note(format!(
        "{what}: {:.0} calls an hour ({calls} in {seconds:.0} s)",
        calls * 3600.0 / seconds
    ));
    machine.say(&format!("{what}: see the notes"));
}

/// Makes pods of this name, and waits until they run.
async fn make(machine: &Machine, names: &[String]) {
    let app = container("app", &["/busybox", "sleep", "1000000"]);
    for name in names {
        let spec = json!({"containers": [app], "terminationGracePeriodSeconds": 0});
        machine.create(name, spec).await;
    }
    for name in names {
        until(&format!("pod {name} to run"), async || {
            let seen = machine.server.get(&pod_path(name)).await?;
            let is_running = seen["status"]["containerStatuses"][0]["state"]["running"].is_object();
            is_running.then_some(())
        })
        .await;
    }
}

#[test]
#[ignore = "a measurement: cargo xtask kubernetes node --measure"]
fn memory_cpu_and_calls() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
        // Beside 110 pods there are others for a moment; no threshold is to be met by what shims take.
        let more = "maxPods: 120\nevictionHard: {memory.available: 1Mi}".to_owned();
        let before = machine.restart_kubelet_with(more).await;
        machine.kill_agent();
        machine.start_agent_with(&["--eviction-hard=memory.available<50Mi"]);
        let mut made = 0;
        for count in COUNTS {
            let names: Vec<String> = (made..count).map(|at| format!("resting-{at}")).collect();
            for names in names.chunks(AT_ONCE) {
                make(machine, names).await;
                machine.say(&format!("{} run", names.join(", ")));
            }
            made = count;
            tokio::time::sleep(SETTLE).await;
            note_cost(
                machine,
                &format!("{count} pods, idle"),
                tokio::time::sleep(IDLE),
            )
            .await;
            let mut come_and_gone = 0;
            let what = format!("{count} pods, others come and go");
            note_cost(machine, &what, async {
                let until = Instant::now() + BUSY;
                while Instant::now() < until {
                    let name = format!("passing-{count}-{come_and_gone}");
                    make(machine, std::slice::from_ref(&name)).await;
                    machine.server.delete(&pod_path(&name)).await;
                    come_and_gone += 1;
                }
            })
            .await;
            notes::note(format!("{what}: {come_and_gone}"));
        }
        for at in 0..made {
            machine
                .server
                .delete(&pod_path(&format!("resting-{at}")))
                .await;
        }
        machine.restart_kubelet_with(before).await;
        machine.kill_agent();
        machine.start_agent();
    });
}
