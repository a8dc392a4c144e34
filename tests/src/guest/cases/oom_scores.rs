//! `oom_score_adj` of processes that nobody has started as a container: put there later, forked while being put there.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::agent::Options;
use super::super::clock::wait_until;
use super::super::harness::{Done, Outcome, Test};
use super::super::node::Node;
use super::super::pod::Pod;
use super::super::process::Guard;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "oom_scores::a_process_put_into_a_container_gets_its_score",
        run: || put_into_containers(&Options::hard("memory.available<1Mi"), true),
    },
    Test {
        name: "oom_scores::so_it_does_without_bpf",
        run: || {
            let options = Options::hard("memory.available<1Mi").flag("--without", "bpf");
            put_into_containers(&options, false)
        },
    },
    Test {
        name: "oom_scores::children_forked_meanwhile_get_it_too",
        run: forked_meanwhile,
    },
];

/// Housekeeping without BPF comes every half a second; a busy guest may take longer.
const TIMEOUT: Duration = Duration::from_secs(10);

fn score(pid: u32) -> anyhow::Result<i32> {
    let path = format!("/proc/{pid}/oom_score_adj");
    let text = fs::read_to_string(&path).context(path)?;
    Ok(text.trim().parse()?)
}

fn set_score(pid: u32, adj: i32) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/oom_score_adj");
    fs::write(&path, adj.to_string()).context(path)
}

fn is_soon(pid: u32, wanted: i32) -> bool {
    wait_until(TIMEOUT, Duration::from_millis(1), || {
        score(pid).is_ok_and(|adj| adj == wanted)
    })
}

fn shell(script: &str) -> anyhow::Result<Guard> {
    let child = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("starting a shell")?;
    Ok(Guard(child))
}

/// `exact`: a higher score than the container's is corrected, too.
fn put_into_containers(options: &Options, exact: bool) -> Outcome {
    let node = Node::new()?;
    let pods = [
        (Pod::best_effort("first"), 1000),
        (Pod::guaranteed("last", "100m", "64Mi"), -997),
        (Pod::burstable("critical", "16Mi").critical(), -997),
    ];
    let mut running = Vec::new();
    for (pod, _) in &pods {
        running.push(node.hog(pod, "hold --mb 4")?);
    }
    let agent = node.agent(options)?;
    for ((pod, wanted), leader) in pods.iter().zip(&running) {
        let own = score(leader.process.pid())?;
        ensure!(own == *wanted, "{}: the leader has {own}", pod.name);
        let procs = node.cgroup_file(pod, "main/cgroup.procs");
        for before in [0, -500, -998] {
            if before > *wanted && !exact {
                continue;
            }
            let newcomer = shell("exec sleep 600")?;
            set_score(newcomer.pid(), before)?;
            fs::write(&procs, newcomer.pid().to_string())?;
            ensure!(
                is_soon(newcomer.pid(), *wanted),
                "{}: a newcomer with {before} has {} and not {wanted}; {}",
                pod.name,
                score(newcomer.pid())?,
                agent.errors()
            );
        }
    }
    // What a process has raised by itself stays, through several looks at its cgroup.
    let (own, procs) = (
        running[1].process.pid(),
        node.cgroup_file(&pods[1].0, "main/cgroup.procs"),
    );
    set_score(own, 300)?;
    let other = shell("exec sleep 600")?;
    fs::write(&procs, other.pid().to_string())?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(score(own)? == 300, "a raised score was taken back");
    agent.stop()?;
    ensure!(
        score(running[0].process.pid())? == 1000,
        "the scores did not stay when the agent left"
    );
    Ok(Done::Passed)
}

fn forked_meanwhile() -> Outcome {
    let node = Node::new()?;
    let pod = Pod::guaranteed("forking", "1", "64Mi");
    let leader = node.hog(&pod, "hold --mb 4")?;
    let agent = node.agent(&Options::hard("memory.available<1Mi"))?;
    // It forks all the time while it is moved: some children have copied the old score, 0.
    let parent = shell("i=0; while [ $i -lt 100 ]; do sleep 600 & i=$((i+1)); done; wait")?;
    let procs = node.cgroup_file(&pod, "main/cgroup.procs");
    let pids = || -> Vec<u32> {
        let text = fs::read_to_string(&procs).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    fs::write(&procs, parent.pid().to_string())?;
    // Not all of the hundred: those forked before the move are not in the container.
    let forked = wait_until(TIMEOUT, Duration::from_millis(5), || pids().len() > 20);
    ensure!(forked, "{} processes are in the container", pids().len());
    let mut wrong = Vec::new();
    let served = wait_until(TIMEOUT, Duration::from_millis(5), || {
        wrong = pids()
            .into_iter()
            .filter(|pid| score(*pid).is_ok_and(|adj| adj != -997))
            .collect();
        wrong.is_empty()
    });
    ensure!(
        served,
        "{} of {} processes have another score: {}",
        wrong.len(),
        pids().len(),
        agent.errors()
    );
    agent.stop()?;
    drop(leader);
    Ok(Done::Passed)
}
