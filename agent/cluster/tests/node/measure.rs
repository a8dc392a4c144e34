//! How long the steps of an eviction take beside a real kubelet: `cargo xtask kubernetes node --measure`. Nothing fails
//! for being slow; what an owner relies on (no start in place, one victim) is checked as in the tests.
//!
//! Times are this guest's clock, which is the host's: with other work beside it they are longer. What the API shows is
//! read every [`LOOK`].

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::machine::{LAST_WORD, Machine, Pod, agent_log, is_shown, keeps_its_story};
use super::support::server::pod_path;
use super::support::{notes, run, until};
use super::{fs, machine};

const LOOK: Duration = Duration::from_millis(25);
const RUNS: usize = 10;
/// Pods that leak during one outage of the API server.
const IN_AN_OUTAGE: usize = 5;
const OUTAGES: usize = 2;
const OUTAGE: Duration = Duration::from_secs(60);
const BESIDE_THE_KUBELET: usize = 5;

/// Seconds from the leak's first byte, where it is not said otherwise.
#[derive(Debug, Default, Clone, Copy)]
struct Times {
    decided: f64,
    /// Of the last process of its containers.
    gone: f64,
    /// `Failed` and `Evicted` in the API, the first time.
    shown: Option<f64>,
    /// The same, from then on for good; `None` where the kubelet has dropped the reason, as it may.
    stands: Option<f64>,
    cgroup_gone: f64,
    /// Starts that the hold refused: each counts as a restart.
    refused: u64,
}

impl Times {
    fn after_decision(&self, to: f64) -> f64 {
        to - self.decided
    }
}

/// Seconds since the guest has booted: the clock of the agent's lines.
fn uptime() -> f64 {
    let text = fs::read_to_string("/proc/uptime").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// The agent's line about a finished eviction.
fn finished(uid: &str) -> Option<Value> {
    let log = fs::read_to_string(agent_log()).unwrap_or_default();
    let is_it = |line: &&str| line.contains("\"eviction_finished\"") && line.contains(uid);
    serde_json::from_str(log.lines().rev().find(is_it)?).ok()
}

/// When the agent did this, seconds since the guest has booted.
fn step(line: &Value, name: &str) -> f64 {
    line[name].as_f64().unwrap_or(f64::NAN) / 1e9
}

/// `median [least..most]`, of seconds.
fn spread(mut all: Vec<f64>) -> String {
    if all.is_empty() {
        return "none".to_owned();
    }
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    let median = match all.len() % 2 {
        0 => f64::midpoint(all[middle - 1], all[middle]),
        _ => all[middle],
    };
    let last = all[all.len() - 1];
    format!("{median:.3} s [{:.3}..{last:.3}] of {}", all[0], all.len())
}

/// Of those that have it.
fn note_spread(what: &str, times: &[Times], of: impl Fn(&Times) -> Option<f64>) {
    let all = times.iter().filter_map(of).collect();
    notes::note(format!("{what}: {}", spread(all)));
}

/// Follows a pod that leaks since `from` until its cgroup has gone and the API shows its end.
async fn follow(machine: &Machine, pod: &Pod, from: f64) -> Times {
    let mut times = Times::default();
    let (mut was_killed, mut ended) = (false, None::<Instant>);
    let started = Instant::now();
    loop {
        let is_empty = pod.processes().is_empty();
        assert!(is_empty || !was_killed, "a container was started in place");
        was_killed |= is_empty;
        let seen = machine.server.get(&pod_path(&pod.name)).await;
        let seen = seen.unwrap_or_default();
        let in_time = started.elapsed() < Duration::from_secs(600);
        assert!(in_time, "{times:?} {:#}", seen["status"]);
        let at = uptime() - from;
        if is_shown(&seen["status"]) {
            times.shown.get_or_insert(at);
            times.stands.get_or_insert(at);
        } else {
            times.stands = None;
        }
        if ended.is_none() && !pod.cgroup.exists() {
            times.cgroup_gone = at;
            ended = Some(Instant::now());
        }
        if let Some(ended) = ended
            && keeps_its_story(&seen)
            && (times.stands.is_some() || ended.elapsed() >= LAST_WORD)
        {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    let line = until("the agent's line of it", async || finished(&pod.uid)).await;
    times.decided = step(&line, "decided_ns") - from;
    times.gone = step(&line, "gone_ns") - from;
    times.refused = restarts(machine, pod).await;
    machine.say(&format!("{}: {times:.2?}", pod.name));
    times
}

/// How often its container was started again, or its start refused; that nothing was started is for the caller to see.
async fn restarts(machine: &Machine, pod: &Pod) -> u64 {
    let seen = machine.server.seen(&pod.name).await;
    let count = &seen["status"]["containerStatuses"][0]["restartCount"];
    count.as_u64().unwrap_or_default()
}

async fn delete(machine: &Machine, pod: &Pod) {
    machine.server.delete(&pod_path(&pod.name)).await;
}

/// The median way of a pod that leaks.
#[test]
#[ignore = "a measurement: cargo xtask kubernetes node --measure"]
fn evictions() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        if !machine.kubelet_heeds_status().await {
            return;
        }
        let mut all = Vec::new();
        for at in 0..RUNS {
            let pod = machine.leaky(&format!("leaky-{at}")).await;
            let from = uptime();
            machine.begin_leak(&pod);
            all.push(follow(machine, &pod, from).await);
            delete(machine, &pod).await;
        }
        note_spread("leak to decision", &all, |one| Some(one.decided));
        note_spread("decision to hog gone", &all, |one| {
            Some(one.after_decision(one.gone))
        });
        note_spread("decision to Failed/Evicted in the API", &all, |one| {
            one.shown.map(|at| one.after_decision(at))
        });
        note_spread("decision to Failed/Evicted for good", &all, |one| {
            one.stands.map(|at| one.after_decision(at))
        });
        note_spread("decision to cgroup removed", &all, |one| {
            Some(one.after_decision(one.cgroup_gone))
        });
        let refused: Vec<u64> = all.iter().map(|one| one.refused).collect();
        notes::note(format!("starts that the hold refused: {refused:?}"));
    });
}

/// The same while the API server is away for a minute.
#[test]
#[ignore = "a measurement: cargo xtask kubernetes node --measure"]
fn evictions_without_the_api_server() {
    run(async {
        let Some(guard) = machine().await else { return };
        let machine = guard.as_ref().unwrap();
        if !machine.kubelet_heeds_status().await {
            return;
        }
        let (mut all, mut back_to, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for outage in 0..OUTAGES {
            let mut pods = Vec::new();
            for at in 0..IN_AN_OUTAGE {
                pods.push(machine.leaky(&format!("unheard-{outage}-{at}")).await);
            }
            machine.server.stop();
            let stopped = Instant::now();
            let mut leaks = Vec::new();
            for pod in &pods {
                let from = uptime();
                machine.leak(pod).await;
                leaks.push(from);
            }
            while stopped.elapsed() < OUTAGE {
                for pod in &pods {
                    assert_eq!(pod.processes(), [""; 0], "a container was started again");
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            machine.server.run().await;
            let back = uptime();
            machine.say("the API server is there again");
            for (pod, from) in pods.iter().zip(leaks) {
                let line = until("the agent's line of it", async || finished(&pod.uid)).await;
                all.push(Times {
                    decided: step(&line, "decided_ns") - from,
                    gone: step(&line, "gone_ns") - from,
                    ..Times::default()
                });
            }
            let mut left: Vec<(&Pod, Times)> =
                pods.iter().map(|pod| (pod, Times::default())).collect();
            let limit = Instant::now() + Duration::from_secs(600);
            loop {
                let mut are_over = true;
                for (pod, times) in &mut left {
                    assert_eq!(pod.processes(), [""; 0], "a container was started again");
                    let seen = machine.server.seen(&pod.name).await;
                    let at = uptime() - back;
                    if is_shown(&seen["status"]) {
                        times.shown.get_or_insert(at);
                        times.stands.get_or_insert(at);
                    } else {
                        times.stands = None;
                    }
                    if times.cgroup_gone == 0.0 && !pod.cgroup.exists() {
                        times.cgroup_gone = at;
                    }
                    let had_last_word = at - times.cgroup_gone >= LAST_WORD.as_secs_f64();
                    are_over &= times.cgroup_gone > 0.0
                        && keeps_its_story(&seen)
                        && (times.stands.is_some() || had_last_word);
                }
                if are_over {
                    break;
                }
                assert!(Instant::now() < limit, "{left:?}");
                tokio::time::sleep(LOOK).await;
            }
            for (pod, times) in left {
                machine.say(&format!("{}: {times:.2?}", pod.name));
                refused.push(restarts(machine, pod).await);
                back_to.push(times);
                delete(machine, pod).await;
            }
        }
        note_spread("API server away: leak to decision", &all, |one| {
            Some(one.decided)
        });
        note_spread("API server away: decision to hog gone", &all, |one| {
            Some(one.after_decision(one.gone))
        });
        note_spread(
            "API server back to Failed/Evicted in the API",
            &back_to,
            |one| one.shown,
        );
        note_spread(
            "API server back to Failed/Evicted for good",
            &back_to,
            |one| one.stands,
        );
        note_spread("API server back to cgroup removed", &back_to, |one| {
            Some(one.cgroup_gone)
        });
        notes::note(format!(
            "API server away: starts that the hold refused: {refused:?}"
        ));
    });
}

/// Beside the kubelet's own eviction at the same threshold, and the kubelet alone.
#[test]
#[ignore = "a measurement: cargo xtask kubernetes node --measure"]
fn first_of_two() {
    run(async {
        let Some(mut guard) = machine().await else {
            return;
        };
        let machine = guard.as_mut().unwrap();
        if !machine.kubelet_heeds_status().await {
            return;
        }
        machine.renew_threshold().await;
        let same = format!(
            "evictionHard: {{memory.available: {}Mi}}",
            machine.threshold_mib()
        );
        let none = machine.restart_kubelet_with(same).await;
        let other = machine
            .pod(
                "beside",
                &["/hog", "hold", "--mb", "20"],
                json!({"requests": {"memory": "32Mi"}}),
                json!({}),
            )
            .await;
        for with_agent in [true, false] {
            let who = match with_agent {
                true => "agent and kubelet",
                false => "kubelet alone",
            };
            if !with_agent {
                machine.kill_agent();
            }
            let (mut gone, mut lost, mut ours) = (Vec::new(), Vec::new(), 0);
            for at in 0..BESIDE_THE_KUBELET {
                let name = format!("both-{at}-{}", u8::from(with_agent));
                let pod = machine.leaky_by_api(&name).await;
                let from = uptime();
                machine.begin_leak(&pod);
                let mut least = u64::MAX;
                while !pod.processes().is_empty() {
                    least = least.min(super::machine::free_mib());
                    tokio::time::sleep(LOOK).await;
                }
                gone.push(uptime() - from);
                #[expect(clippy::cast_precision_loss, reason = "MiB")]
                lost.push(machine.threshold_mib().saturating_sub(least) as f64);
                let seen = until("the API to show its end", async || {
                    let seen = machine.server.get(&pod_path(&name)).await?;
                    let is_over = seen["status"]["phase"] == "Failed" && !pod.cgroup.exists();
                    is_over.then_some(seen)
                })
                .await;
                ours += usize::from(
                    seen["metadata"]["annotations"]["plimsoll.dev/evicted"].is_string(),
                );
                let message = &seen["status"]["message"];
                machine.say(&format!("{who}: {name}: {message}"));
                assert!(!other.processes().is_empty(), "one victim, not two");
                delete(machine, &pod).await;
            }
            notes::note(format!(
                "{who}: leak to hog gone: {}; below the threshold: {} (MiB); {ours} of {BESIDE_THE_KUBELET} by the agent",
                spread(gone),
                spread(lost).replace(" s ", " ")
            ));
        }
        machine.start_agent();
        machine.restart_kubelet_with(none).await;
    });
}
