//! The demo's story: set the scene, let one pod leak, watch, judge.
//!
//! Five pods. `web` (Guaranteed), `database` (Burstable, high priority) and `cache` (Burstable) stay within their
//! requests; `batch` (BestEffort) requests nothing and uses little; `leaky` (Burstable) grows far over its request. By
//! the kubelet's order `leaky` is the one to go. Without an agent nothing happens until memory has run out; then the
//! kernel's OOM killer goes by size and `oom_score_adj`.

mod evidence;
mod narrate;
mod report;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use self::narrate::Narrator;
use self::report::{Report, Victim};
use super::agent::{Agent, Event, Options};
use super::cgroup;
use super::memory::{self, mib};
use super::node::{Node, Running};
use super::pod::Pod;
use super::process::program;
use super::sampler::Seen;

/// Share of memory that is to stay available: a quarter of the machine, in MiB.
const THRESHOLD_SHARE: u64 = 4;
/// What is left to grow through before the threshold when the ramp starts.
const RAMP_BYTES: u64 = mib(200);
const MAX_MS: u64 = 90_000;
/// How often the agent's lines are looked for, and how often the bar is drawn.
const TICK: Duration = Duration::from_millis(50);
const TICKS_PER_BAR: u32 = 10;
const OUT: &str = "/out/story.json";

/// How the story is told.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// No agent.
    pub without: bool,
    /// How often.
    pub runs: u32,
    /// Growth of the leaking pod.
    pub rate_mb_s: u64,
    /// JSON on standard output at the end.
    pub json: bool,
    /// A line for each step that begins, for `cargo xtask demo`.
    pub steps: bool,
    /// Time is executed instructions, and is reported as such.
    pub instruction_time: bool,
}

/// One of the pods, with the memory that its process holds.
struct Role {
    pod: Pod,
    holds_mb: u64,
    what: &'static str,
}

fn cast() -> Vec<Role> {
    vec![
        Role {
            pod: Pod::guaranteed("web", "500m", "128Mi"),
            holds_mb: 64,
            what: "within its request",
        },
        Role {
            pod: Pod::burstable("database", "256Mi").priority(100_000),
            holds_mb: 192,
            what: "within its request, high priority",
        },
        Role {
            pod: Pod::burstable("cache", "128Mi"),
            holds_mb: 96,
            what: "within its request",
        },
        Role {
            pod: Pod::best_effort("batch"),
            holds_mb: 32,
            what: "requests nothing, uses little",
        },
    ]
}

/// Tells the story as often as planned; the status is the demo's.
///
/// # Errors
/// The scene cannot be set, or a program of the guest is missing.
pub fn tell(plan: &Plan) -> anyhow::Result<ExitCode> {
    // Children set their own; the narrator must live to tell the end.
    fs::write("/proc/self/oom_score_adj", "-1000")
        .context("protecting the narrator from the OOM killer")?;
    let mut reports = Vec::new();
    for run in 1..=plan.runs {
        let mut narrator = Narrator::new(plan.runs == 1, plan.steps);
        let report = tell_once(plan, &mut narrator)?;
        if plan.runs == 1 {
            println!("{}", report.table());
        } else {
            println!("run {run} of {}: {}", plan.runs, report.line());
        }
        reports.push(report);
    }
    if plan.runs > 1 {
        println!("\n{}", report::medians(&reports));
    }
    let text = serde_json::to_string(&reports)?;
    if plan.json {
        println!("{text}");
    }
    fs::write(OUT, text).with_context(|| format!("writing {OUT}"))?;
    let failed = reports
        .iter()
        .filter(|report| !report.problems.is_empty())
        .count();
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn tell_once(plan: &Plan, narrator: &mut Narrator) -> anyhow::Result<Report> {
    narrator.step("clearing the node");
    let node = Node::new()?;
    let mut agent = None;
    let told = tell_on(&node, plan, narrator, &mut agent);
    told.map_err(|error| {
        eprintln!("{}", evidence::of(&node, agent.as_mut()));
        error.context(format!("{} failed", narrator.last_step()))
    })
}

fn tell_on(
    node: &Node,
    plan: &Plan,
    narrator: &mut Narrator,
    agent: &mut Option<Agent>,
) -> anyhow::Result<Report> {
    let total_bytes = memory::read()?.total_bytes;
    let threshold_bytes = total_bytes / THRESHOLD_SHARE / mib(1) * mib(1);
    let threshold = format!("memory.available<{}Mi", threshold_bytes >> 20);
    narrator.machine(total_bytes, &threshold, plan.without);
    let mut bystanders: Vec<(Pod, Running)> = Vec::new();
    for Role {
        pod,
        holds_mb,
        what,
    } in cast()
    {
        narrator.step(&format!("starting pod {}", pod.name));
        let running = node.hog(&pod, &format!("hold --mb {holds_mb}"))?;
        narrator.pod(node, &pod, what);
        bystanders.push((pod, running));
    }
    if !plan.without {
        narrator.step("starting the agent");
        let started = node.agent(&Options::hard(&threshold))?;
        narrator.agent(&started.started);
        *agent = Some(started);
    }
    let leaky = Pod::burstable("leaky", "64Mi").grace_s(5);
    let pre_mb = memory::read()?
        .working_set_available_bytes()
        .saturating_sub(threshold_bytes + RAMP_BYTES)
        >> 20;
    narrator.step("starting pod leaky");
    let mut hog = node.hog(
        &leaky,
        &format!(
            "ramp --wait-usr1 --rate-mb-s {} --pre-mb {pre_mb}",
            plan.rate_mb_s
        ),
    )?;
    narrator.pod(
        node,
        &leaky,
        &format!("leaks {} MB/s from now on", plan.rate_mb_s),
    );

    narrator.step("letting pod leaky leak");
    let stalled_us = narrate::memory_stall_us();
    let kills_before = kernel_kills(node, &bystanders, &leaky);
    let seen = watch(
        &hog,
        threshold_bytes,
        narrator,
        agent.as_mut(),
        node,
        &leaky,
    )?;
    narrator.step("counting who died");
    let stalled_us = narrate::memory_stall_us().saturating_sub(stalled_us);
    // The kill counters of cgroups that are gone by now went with them: those pods are in `seen`.
    let mut kernel_kills = kernel_kills(node, &bystanders, &leaky);
    kernel_kills.retain(|pod, kills| *kills > kills_before.get(pod).copied().unwrap_or(0));

    let mut report = Report::new(
        plan.without,
        threshold_bytes,
        total_bytes,
        plan.rate_mb_s,
        seen,
        stalled_us,
    );
    report.instruction_time = plan.instruction_time;
    report.kernel_kills_by_pod = kernel_kills;
    report.kernel_victims(&mut bystanders, &leaky)?;
    if let Some(agent) = agent.as_mut() {
        narrator.step("waiting for what the agent says of the eviction");
        if report.seen.gone_ns.is_some() && !agent.evictions().any(|_| true) {
            // The bytes' return is reported after the process has gone.
            agent
                .eviction(Duration::from_secs(15))
                .context("the hog is gone, but the agent does not say that it evicted it")?;
        }
        agent.drain()?;
        for finished in agent.evictions() {
            report
                .victims
                .push(Victim::evicted(finished, reason_of(agent, &finished.pod)));
        }
        report.evictions = agent.evictions().cloned().collect();
    }
    if let Some(agent) = agent.take() {
        narrator.step("stopping the agent");
        report.stopped = Some(agent.stop()?);
    }
    report.judge(&leaky);
    narrator.step("ending pod leaky");
    // Gone already when the story went well.
    let _gone = hog.process.signal(rustix::process::Signal::KILL);
    ensure!(
        hog.process.wait_gone(Duration::from_secs(10)),
        "the leaking pod cannot be ended"
    );
    Ok(report)
}

/// Starts the ramp and narrates until memory is back; what the sampler saw.
fn watch(
    hog: &Running,
    threshold_bytes: u64,
    narrator: &Narrator,
    mut agent: Option<&mut Agent>,
    node: &Node,
    leaky: &Pod,
) -> anyhow::Result<Seen> {
    let mut sampler = Command::new(program("sampler"))
        .args([
            "--pid",
            &hog.process.pid().to_string(),
            "--threshold-bytes",
            &threshold_bytes.to_string(),
        ])
        .args(["--max-ms", &MAX_MS.to_string(), "--settle-ms", "500"])
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the sampler")?;
    let mut ticks = 0_u32;
    while sampler.try_wait()?.is_none() {
        if ticks.is_multiple_of(TICKS_PER_BAR) {
            narrator.bar(threshold_bytes, node, leaky);
        }
        ticks += 1;
        if let Some(agent) = &mut agent {
            let told = agent.events.len();
            agent.drain()?;
            for (_, event) in &agent.events[told..] {
                narrator.event(event);
            }
        }
        std::thread::sleep(TICK);
    }
    let output = sampler.wait_with_output()?;
    ensure!(
        output.status.success(),
        "the sampler ended with {}",
        output.status
    );
    serde_json::from_slice(&output.stdout).context("the sampler's line")
}

/// The text of the decision that named the pod.
fn reason_of(agent: &Agent, pod: &str) -> String {
    agent
        .events
        .iter()
        .find_map(|(_, event)| match event {
            Event::Decision(decision)
                if decision.pod.as_deref() == Some(pod) && decision.text.starts_with("evict") =>
            {
                Some(decision.text.clone())
            }
            _ => None,
        })
        .unwrap_or_default()
}

/// `oom_kill` of each pod's `memory.events`, where the cgroup is there.
fn kernel_kills(node: &Node, bystanders: &[(Pod, Running)], leaky: &Pod) -> BTreeMap<String, u64> {
    bystanders
        .iter()
        .map(|(pod, _)| pod)
        .chain([leaky])
        .filter_map(|pod| {
            Some((
                pod.full_name(),
                cgroup::keyed(&node.cgroup_file(pod, "memory.events"), "oom_kill").ok()?,
            ))
        })
        .collect()
}
