//! What the `cost` program does.
//!
//! The loop maps 64 MiB, touches each page once and unmaps, so that the memory controller charges 64 pages at a time as
//! fast as the machine can. It runs as a pod's container, three cgroups deep, each level watched or below a watched one.
//! Off and on alternate (ABAB…), so that a drift of the machine hits both. Huge pages are off: they would charge 512 pages
//! at a time and hide the cost.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::agent::{Agent, Options};
use super::node::Node;
use super::pod::Pod;
use super::process::program;
use super::table::{Spread, aligned, duration};

const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const OUT: &str = "/out/cost.jsonl";

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Pairs of off and on.
    pub pairs: u32,
    /// Rounds of a measurement.
    pub rounds: u32,
}

/// What the loop said of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Loop {
    faults: u64,
    wall_ns: u64,
    cpu_ns: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    agent: bool,
    #[serde(flatten)]
    faults: Loop,
}

/// Runs the plan and prints nanoseconds per fault and the ratio.
///
/// # Errors
/// The scene cannot be set up.
pub fn run(plan: &Plan) -> anyhow::Result<()> {
    if fs::exists(THP)? {
        fs::write(THP, "never").context("switching huge pages off")?;
    }
    let node = Node::new()?;
    let pod = Pod::burstable("faults", "64Mi");
    node.write(&pod)?;
    let bystander = Pod::guaranteed("bystander", "10m", "16Mi");
    let _bystander = node.hog(&bystander, "hold --mb 2")?;
    // Once before, so that the first measurement finds what the others find.
    fault_loop(&node, &pod, plan.rounds)?;
    let mut rows = Vec::new();
    for _ in 0..plan.pairs {
        for agent in [false, true] {
            let running: Option<Agent> = if agent {
                Some(node.agent(&Options::hard("memory.available<100Mi"))?)
            } else {
                None
            };
            let row = Row {
                agent,
                faults: fault_loop(&node, &pod, plan.rounds)?,
            };
            println!(
                "{}: {} a fault",
                if agent { "on " } else { "off" },
                duration(per_fault_ns(row.faults.wall_ns, row))
            );
            rows.push(row);
            if let Some(running) = running {
                ensure!(running.stop()?.records.dropped == 0, "records were dropped");
            }
        }
    }
    let text: Vec<String> = rows
        .iter()
        .map(serde_json::to_string)
        .collect::<Result<_, _>>()?;
    fs::write(OUT, text.join("\n") + "\n").with_context(|| format!("writing {OUT}"))?;
    println!("\n{}", table(&rows));
    Ok(())
}

fn fault_loop(node: &Node, pod: &Pod, rounds: u32) -> anyhow::Result<Loop> {
    let output = Command::new(program("plimsoll"))
        .arg("exec")
        .arg("-f")
        .arg(node.manifest(pod))
        .args(["-c", "main", "--"])
        .arg(program("hog"))
        .args(["faults", "--rounds", &rounds.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .context("starting plimsoll exec")?;
    ensure!(
        output.status.success(),
        "the loop ended with {}",
        output.status
    );
    serde_json::from_slice(&output.stdout).context("the loop's line")
}

fn per_fault_ns(ns: u64, row: Row) -> i64 {
    i64::try_from(ns / row.faults.faults.max(1)).unwrap_or(i64::MAX)
}

#[allow(clippy::cast_precision_loss, reason = "a ratio of four figures")]
fn table(rows: &[Row]) -> String {
    let spread = |agent: bool, pick: fn(&Loop) -> u64| {
        Spread::of(
            rows.iter()
                .filter(|row| row.agent == agent)
                .filter_map(|row| i64::try_from(pick(&row.faults)).ok()),
        )
    };
    let wall: fn(&Loop) -> u64 = |faults| faults.wall_ns;
    let measures = [("wall", wall), ("CPU of the loop", |faults| faults.cpu_ns)];
    let mut lines = vec![
        ["time", "detached", "attached", "attached / detached"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (name, pick) in measures {
        if let (Some(off), Some(on)) = (spread(false, pick), spread(true, pick)) {
            lines.push(vec![
                name.to_owned(),
                off.times(),
                on.times(),
                format!("{:.4}", on.median as f64 / off.median.max(1) as f64),
            ]);
        }
    }
    aligned(&lines)
}
