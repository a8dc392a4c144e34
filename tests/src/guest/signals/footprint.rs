//! The agent's CPU time and memory with many cgroups: at rest, while they are busy, and after ten thousand have come
//! and gone.
//!
//! A pod is two cgroups, its own and its container's, with one sleeping process. *Busy* is three more pods that do
//! without end what the agent listens to: one has a CPU quota and spins, one grows and shrinks, one forks. CPU time is
//! the kernel's, of all the agent's threads; the guest's clock counts an instruction as a nanosecond, so it is several
//! times what a real CPU needs.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;

use super::super::agent::{Agent, Options};
use super::super::cgroup;
use super::super::clock::{now_ns, wait_until};
use super::super::figure::{Unit, ppm, whole};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::super::process::{cpu_ns, rss_bytes};
use super::super::table::{aligned, bytes};
use super::Rows;

/// Time for all pods to be up.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Time for the agent to have seen all pods.
pub(super) const SETTLE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(60);
const BUSY: Duration = Duration::from_secs(10);
/// Cgroups that come and go.
const CHURNED: u32 = 10_000;
const CGROUPS_PER_POD: u32 = 2;

/// The agent over a while.
#[derive(Clone, Debug, Serialize)]
struct Row {
    cgroups: u32,
    state: &'static str,
    wall_ns: u64,
    cpu_ns: u64,
    rss_bytes: u64,
}

/// One scene for each number of cgroups; the last also has the comings and goings.
pub(super) fn run(cgroups: &[u32], rows: &mut Rows) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for (index, &count) in cgroups.iter().enumerate() {
        let is_last = index + 1 == cgroups.len();
        for row in scene(count, is_last)? {
            rows.add("footprint", &row)?;
            rows.say(&format!(
                "{} cgroups, {}: {}",
                row.cgroups,
                row.state,
                share(&row)
            ));
            let case = format!("{} cgroups, {}", row.cgroups, row.state);
            let cpu = ppm(row.cpu_ns, row.wall_ns);
            let resident = whole(row.rss_bytes);
            rows.figures
                .add(&case, "CPU time, of one CPU", Unit::Ppm, true, cpu);
            rows.figures
                .add(&case, "resident memory", Unit::Bytes, true, [resident]);
            found.push(row);
        }
    }
    rows.say(&format!("\n{}", table(&found)));
    Ok(())
}

fn scene(cgroups: u32, churn: bool) -> anyhow::Result<Vec<Row>> {
    let node = Node::new()?;
    let _pods = sleepers(&node, cgroups)?;
    let agent = node.agent(&Options::hard("memory.available<100Mi"))?;
    sleep(SETTLE);
    let mut rows = vec![over(&agent, cgroups, "idle", || {
        sleep(IDLE);
        Ok(())
    })?];
    let busy = busy_pods(&node)?;
    sleep(Duration::from_secs(1));
    rows.push(over(&agent, cgroups, "busy", || {
        sleep(BUSY);
        Ok(())
    })?);
    drop(busy);
    if churn {
        for state in ["10,000 came and went", "and 10,000 more"] {
            rows.push(over(&agent, cgroups, state, come_and_go)?);
        }
        rows.push(over(&agent, cgroups, "idle again", || {
            sleep(IDLE);
            Ok(())
        })?);
    }
    let records = agent.stop()?.records;
    ensure!(
        records.produced == records.consumed + records.dropped,
        "{records:?}"
    );
    ensure!(records.dropped == 0, "records were dropped: {records:?}");
    Ok(rows)
}

/// Pods with so many cgroups, once they are all up.
pub(super) fn sleepers(node: &Node, cgroups: u32) -> anyhow::Result<Vec<Running>> {
    let mut pods: Vec<Running> = Vec::new();
    for index in 0..cgroups / CGROUPS_PER_POD {
        let pod = Pod::best_effort(&format!("sleeper-{index}"));
        node.write(&pod)?;
        pods.push(node.exec(&pod, &["sleep", "1000000"])?);
    }
    let mut there = 0;
    let all = wait_until(START_TIMEOUT, Duration::from_millis(100), || {
        there = count_below_kubepods();
        there >= cgroups
    });
    ensure!(all, "{there} cgroups are there, not {cgroups}");
    Ok(pods)
}

fn over(
    agent: &Agent,
    cgroups: u32,
    state: &'static str,
    meanwhile: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Row> {
    let (start_ns, cpu_before_ns) = (now_ns(), cpu_ns(agent.pid())?);
    meanwhile()?;
    Ok(Row {
        cgroups,
        state,
        wall_ns: now_ns() - start_ns,
        cpu_ns: cpu_ns(agent.pid())?.saturating_sub(cpu_before_ns),
        rss_bytes: rss_bytes(agent.pid())?,
    })
}

fn busy_pods(node: &Node) -> anyhow::Result<Vec<Running>> {
    let (spins, grows, forks) = (
        Pod::guaranteed("spins", "100m", "32Mi"),
        Pod::burstable("grows", "8Mi"),
        Pod::burstable("forks", "8Mi"),
    );
    let spinning = node.hog(&spins, "spin")?;
    let growing = node.hog(&grows, "flap --low-mb 4 --high-mb 32 --period-ms 200")?;
    node.write(&forks)?;
    let forking = node.exec(
        &forks,
        &["sh", "-c", "while true; do (:); sleep 0.01; done"],
    )?;
    Ok(vec![spinning, growing, forking])
}

fn come_and_go() -> anyhow::Result<()> {
    let parent = cgroup::memory_root().join("kubepods/besteffort");
    // Without a pod of that class it is not there.
    fs::create_dir_all(&parent).with_context(|| format!("creating {}", parent.display()))?;
    for index in 0..CHURNED {
        let path = parent.join(format!("podchurn-{index}"));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        fs::remove_dir(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

fn count_below_kubepods() -> u32 {
    let kubepods = cgroup::memory_root().join("kubepods");
    let tiers = 1 + fs::read_dir(&kubepods)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_tier(&entry.path()))
        .count();
    let all = cgroup::tree(&kubepods).len();
    u32::try_from(all.saturating_sub(tiers)).unwrap_or(u32::MAX)
}

fn is_tier(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name == "burstable" || name == "besteffort")
}

#[allow(clippy::cast_precision_loss, reason = "a share of three figures")]
fn share(row: &Row) -> String {
    format!(
        "{:.3} % of a CPU, {} resident",
        row.cpu_ns as f64 * 100.0 / row.wall_ns.max(1) as f64,
        bytes(row.rss_bytes)
    )
}

#[allow(clippy::cast_precision_loss, reason = "a share of three figures")]
fn table(rows: &[Row]) -> String {
    let mut lines = vec![
        [
            "cgroups",
            "state",
            "seconds",
            "CPU time",
            "% of a CPU",
            "resident",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for row in rows {
        lines.push(vec![
            row.cgroups.to_string(),
            row.state.to_owned(),
            format!("{:.1}", row.wall_ns as f64 / 1e9),
            super::super::table::duration(i64::try_from(row.cpu_ns).unwrap_or(i64::MAX)),
            format!(
                "{:.3}",
                row.cpu_ns as f64 * 100.0 / row.wall_ns.max(1) as f64
            ),
            bytes(row.rss_bytes),
        ]);
    }
    aligned(&lines)
}
