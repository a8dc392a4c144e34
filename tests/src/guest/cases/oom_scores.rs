//! What the kernel's OOM killer chooses: `oom_score_adj` of processes that appear later, and its order made that of
//! eviction.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;

use super::super::agent::{Agent, Event, Options};
use super::super::clock::{now_ns, wait_until};
use super::super::harness::{Done, Outcome, Test};
use super::super::kernel_oom::{KernelLog, KernelVictim};
use super::super::machines::{Machine, On};
use super::super::memory;
use super::super::node::Node;
use super::super::pod::Pod;
use super::super::process::{Guard, program};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "oom_scores::children_forked_meanwhile_get_it_too",
        on: On::First(&[Machine::Hybrid, Machine::V7_2]),
        run: forked_meanwhile,
    },
    Test {
        name: "oom_scores::a_container_goes_as_a_whole_and_is_told_as_one_kill",
        on: On::Once(Machine::V7_2),
        run: || group_oom("", &["main"], 6),
    },
    Test {
        name: "oom_scores::so_does_a_pod_with_pod_oom_group",
        on: On::Weekly(Machine::V6_12),
        run: || group_oom("plimsoll: {podOOMGroup: true}\n", &["", "main"], 7),
    },
    Test {
        name: "oom_scores::a_process_put_into_a_container_gets_its_score",
        on: On::First(&[Machine::V7_2, Machine::Hybrid]),
        run: || {
            put_into_containers(
                &Options::hard("memory.available<1Mi").on_tracepoints(),
                true,
            )
        },
    },
    Test {
        name: "oom_scores::so_it_does_without_bpf",
        on: On::Weekly(Machine::V6_12),
        run: || {
            let options = Options::hard("memory.available<1Mi").flag("--without", "bpf");
            put_into_containers(&options, false)
        },
    },
    Test {
        name: "oom_scores::by_the_kubelets_scores_the_kernel_takes_an_innocent_pod",
        on: On::Weekly(Machine::V6_12),
        run: || node_oom("", "innocent"),
    },
    Test {
        name: "oom_scores::in_the_dynamic_order_it_takes_the_first_of_the_ranking",
        on: On::Once(Machine::V6_12),
        run: || node_oom("plimsoll: {oomScoreOrder: Dynamic}\n", "greedy"),
    },
];

/// Housekeeping without BPF comes every half a second; a busy guest may take longer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Gigabytes, as fast as an emulated CPU can fill them.
const TIME_TO_FILL: Duration = Duration::from_secs(150);

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
    // No sample tells of a look at a cgroup: for several of them.
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
    let agent = node.agent(&Options::hard("memory.available<1Mi").on_tracepoints())?;
    // It forks all the time while it is moved, so that some children have copied the old score, 0. No more than a
    // thousand.
    let enough = node.directory.join("enough");
    let script = format!(
        "i=0; while [ $i -lt 1000 -a ! -e {} ]; do sleep 600 & i=$((i+1)); done; wait",
        enough.display()
    );
    let parent = shell(&script)?;
    let procs = node.cgroup_file(&pod, "main/cgroup.procs");
    let pids = || -> Vec<u32> {
        let text = fs::read_to_string(&procs).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    fs::write(&procs, parent.pid().to_string())?;
    // Those forked before the move are not in the container.
    let forked = wait_until(TIMEOUT, Duration::from_millis(5), || pids().len() > 20);
    fs::write(&enough, "")?;
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

/// Runs out of memory as a node, by a process that is in no pod and that the kernel does not take. `first` is whom the
/// kernel takes first.
///
/// `greedy` is 50 % above its request, in ten processes; `innocent` is within its own, which is smaller, in one.
fn node_oom(config: &str, first: &str) -> Outcome {
    let node = Node::new()?;
    let total_mb = memory::read()?.total_bytes >> 20;
    let (innocent, greedy) = (
        Pod::burstable("innocent", &format!("{}Mi", total_mb / 6)),
        Pod::burstable("greedy", &format!("{}Mi", total_mb / 5)),
    );
    let _innocent = node.hog(&innocent, &format!("hold --mb {}", total_mb / 8))?;
    let in_each_mb = total_mb * 3 / 100;
    let _greedy = node.hog(&greedy, &format!("fork --n 10 --mb {in_each_mb}"))?;
    let file = node.directory.join("config.yaml");
    fs::write(&file, config)?;
    let options = Options::hard("memory.available<1Mi")
        .on_tracepoints()
        .flag("--config", &file.to_string_lossy());
    let agent = node.agent(&options)?;
    if first == "greedy" {
        // The plan follows the usage, and the scores the plan.
        let procs = node.cgroup_file(&greedy, "main/cgroup.procs");
        let ordered = wait_until(TIMEOUT, Duration::from_millis(20), || {
            let text = fs::read_to_string(&procs).unwrap_or_default();
            let mut pids = text.lines().filter_map(|line| line.parse().ok());
            pids.all(|pid| score(pid).is_ok_and(|adj| adj == 1000))
        });
        ensure!(ordered, "greedy is not first: {}", agent.errors());
    }
    let victims = run_out_of_memory(&agent)?;
    let cgroup = victims[0].cgroup.clone().unwrap_or_default();
    ensure!(
        cgroup.contains(&format!("poddefault_{first}/")),
        "the kernel took {:?} and not {first}",
        victims[0]
    );
    agent.stop()?;
    Ok(Done::Passed)
}

/// Until the kernel has killed somebody. The agent is stopped meanwhile, or it would evict before the kernel has to.
fn run_out_of_memory(agent: &Agent) -> anyhow::Result<Vec<KernelVictim>> {
    agent.signal(Signal::STOP)?;
    let mut log = KernelLog::from_now()?;
    let hog = program("hog");
    let eater = shell(&format!(
        "echo -1000 > /proc/self/oom_score_adj; exec {} ramp --rate-mb-s 512",
        hog.display()
    ))?;
    let mut victims = Vec::new();
    let killed = wait_until(TIME_TO_FILL, Duration::from_millis(1), || {
        log.drain(now_ns(), &mut victims).is_ok() && !victims.is_empty()
    });
    drop(eater);
    ensure!(killed, "the kernel has killed nobody");
    agent.signal(Signal::CONT)?;
    Ok(victims)
}

/// A pod with six processes in its container and one in another cgroup of the pod, which no container's name is on.
/// `groups`: the cgroups that are taken as a whole. `kills`: how many go.
fn group_oom(config: &str, groups: &[&str], kills: u64) -> Outcome {
    if let Some(lacks) = super::needs_memory_v2() {
        return Ok(lacks);
    }
    let node = Node::new()?;
    let total_mb = memory::read()?.total_bytes >> 20;
    let (pod, other) = (
        Pod::best_effort("greedy"),
        Pod::guaranteed("other", "1", "64Mi"),
    );
    let mut hog = node.hog(&pod, &format!("fork --n 5 --mb {}", total_mb / 20))?;
    let _other = node.hog(&other, "hold --mb 4")?;
    let beside = node.cgroup_file(&pod, "beside");
    fs::create_dir(&beside)?;
    let mut sleeper = shell("exec sleep 600")?;
    fs::write(beside.join("cgroup.procs"), sleeper.pid().to_string())?;
    let file = node.directory.join("config.yaml");
    fs::write(&file, config)?;
    let options = Options::hard("memory.available<1Mi").flag("--config", &file.to_string_lossy());
    let mut agent = node.agent(&options)?;
    let group = |pod: &Pod, name: &str| {
        let path = node.cgroup_file(pod, name).join("memory.oom.group");
        fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
    };
    for name in ["", "main", "beside"] {
        let wanted = groups.contains(&name);
        let is_so = wait_until(TIMEOUT, Duration::from_millis(10), || {
            group(&pod, name) == wanted
        });
        ensure!(is_so, "memory.oom.group of {name:?} is {}", !wanted);
    }
    run_out_of_memory(&agent)?;
    ensure!(hog.process.wait_gone(TIMEOUT), "the container still runs");
    let told = agent.wait(TIMEOUT, |event| match event {
        Event::KernelOomKill { pod, kills } => Some((pod.clone(), *kills)),
        _ => None,
    })?;
    ensure!(
        told == (Some(pod.full_name()), kills),
        "told {told:?}, {kills} processes of {} were to go",
        pod.full_name()
    );
    let is_whole = groups.contains(&"");
    ensure!(
        sleeper.wait_gone(Duration::from_millis(if is_whole { 10_000 } else { 200 })) == is_whole,
        "the process beside the container: whole pod {is_whole}"
    );
    agent.stop()?;
    ensure!(
        !group(&other, ""),
        "memory.oom.group of a pod was not put back"
    );
    Ok(Done::Passed)
}
