//! What the `burst` program does.
//!
//! The known case: a service that uses four fifths of its CPU limit over any second, in bursts, so that a third of its
//! 100 ms periods is throttled. Beside it run two pods without limits that answer requests at a steady rate. The agent
//! runs both times, with `cpuBurst` off and on, so that its own cost is on both sides. After a warm-up, in which the
//! agent finds out, it is measured for as long.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::agent::{Event, Options};
use super::cgroup;
use super::clock::wait_until;
use super::figure::{Figures, Unit, ppm, whole};
use super::node::{Node, Running};
use super::pod::Pod;
use super::process::{program, wait_log};
use super::table::{aligned, duration};

const OUT: &str = "/out/burst.jsonl";
/// 30 ms of CPU time in each period.
const LIMIT: &str = "300m";
/// Requests of 1 ms each, and milliseconds between bursts: every other burst needs more than one and a half quotas,
/// both together four fifths. Not a multiple of the period, so that bursts come at all times within it.
const PATTERN: (&str, &str) = ("4,48", "107");
/// A tenth of a CPU, evenly.
const NEIGHBOUR: (&str, &str) = ("1", "10");
/// Emulated, and on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Runs of each.
    pub runs: u32,
    /// Seconds of warm-up, and of measurement.
    pub seconds: u64,
    /// Rows as JSON instead of a table.
    pub json: bool,
}

/// What requests took, nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latencies(pub Vec<u64>);

impl Latencies {
    /// The latency that so many per cent of the requests did not exceed; `None` without any.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Option<u64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        // The nearest rank: the least that enough are not above.
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied()
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
struct Row {
    cpu_burst: bool,
    periods: u64,
    throttled: u64,
    requests: usize,
    p50_ns: u64,
    p99_ns: u64,
    neighbour_requests: usize,
    neighbour_p99_ns: u64,
    decisions: Vec<String>,
    agent_cpu_ms: u64,
}

/// Runs the plan and prints what it came to.
///
/// # Errors
/// The scene cannot be set up, or the case is not the known one.
pub fn run(plan: &Plan) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for _ in 0..plan.runs {
        for cpu_burst in [false, true] {
            let row = measure(plan, cpu_burst)?;
            if plan.json {
                println!("{}", serde_json::to_string(&row)?);
            }
            rows.push(row);
        }
    }
    let mut text = String::new();
    for row in &rows {
        text += &serde_json::to_string(row)?;
        text.push('\n');
    }
    if Path::new("/out").is_dir() {
        fs::write(OUT, text)?;
        figures(&rows).write()?;
    }
    if !plan.json {
        print(&rows);
    }
    Ok(())
}

/// With and without `cpuBurst`, for reports.
fn figures(rows: &[Row]) -> Figures {
    let mut figures = Figures::default();
    for (on, case) in [(false, "cpuBurst off"), (true, "cpuBurst on")] {
        let of = || rows.iter().filter(move |row| row.cpu_burst == on);
        let throttled = of().filter_map(|row| ppm(row.throttled, row.periods));
        figures.add(case, "throttled periods, of all", Unit::Ppm, on, throttled);
        let p99 = of().map(|row| whole(row.p99_ns));
        figures.add(case, "99 % of requests within", Unit::Ns, false, p99);
        let neighbours = of().map(|row| whole(row.neighbour_p99_ns));
        figures.add(
            case,
            "99 % of neighbours' requests within",
            Unit::Ns,
            false,
            neighbours,
        );
    }
    figures
}

fn measure(plan: &Plan, cpu_burst: bool) -> anyhow::Result<Row> {
    let node = Node::new()?;
    let config = node.directory.join("config.yaml");
    fs::write(
        &config,
        format!(
            "evictionHard: {{memory.available: 1Mi}}\nplimsoll: {{cpuBurst: {{enabled: {cpu_burst}}}}}\n"
        ),
    )?;
    let web = Pod::burstable("web", "16Mi").limit("cpu", LIMIT);
    let neighbours = [Pod::burstable("one", "16Mi"), Pod::burstable("two", "16Mi")];
    let mut agent = node.agent(&Options::default().flag("--config", &config.to_string_lossy()))?;
    let mut running = Vec::new();
    for neighbour in &neighbours {
        running.push(service(&node, neighbour, NEIGHBOUR, plan)?);
    }
    running.push(service(&node, &web, PATTERN, plan)?);
    let stat = cpu_root().join(web.cgroup()).join("main/cpu.stat");
    let counts = || -> anyhow::Result<(u64, u64)> {
        Ok((
            cgroup::keyed(&stat, "nr_periods")?,
            cgroup::keyed(&stat, "nr_throttled")?,
        ))
    };
    wait_log(&node.log(&web), "full", PATIENCE).context("the service does not get warm")?;
    let before = counts()?;
    let result = |pod: &Pod| result_path(&node, pod);
    let is_there = wait_until(PATIENCE, Duration::from_millis(200), || {
        result(&web).exists() && neighbours.iter().all(|pod| result(pod).exists())
    });
    ensure!(is_there, "no result: {}", node.output(&web));
    let after = counts()?;
    let read = |pod: &Pod| -> anyhow::Result<Latencies> {
        Ok(serde_json::from_str(&fs::read_to_string(result(pod))?)?)
    };
    let own = read(&web)?;
    let mut others = Latencies::default();
    for neighbour in &neighbours {
        others.0.extend(read(neighbour)?.0);
    }
    agent.drain()?;
    let decisions = agent.events.iter().filter_map(|(_, event)| match event {
        Event::Decision(decision) => Some(decision.text.clone()),
        _ => None,
    });
    let decisions = decisions.collect();
    let stopped = agent.stop()?;
    drop(running);
    node.clear()?;
    let percentile =
        |of: &Latencies, percent| of.percentile(percent).context("no request was answered");
    Ok(Row {
        cpu_burst,
        periods: after.0 - before.0,
        throttled: after.1 - before.1,
        requests: own.0.len(),
        p50_ns: percentile(&own, 50)?,
        p99_ns: percentile(&own, 99)?,
        neighbour_requests: others.0.len(),
        neighbour_p99_ns: percentile(&others, 99)?,
        decisions,
        agent_cpu_ms: stopped.cpu_ms,
    })
}

/// The hierarchy of the cpu controller.
fn cpu_root() -> PathBuf {
    let roots = cgroup::hierarchies();
    let has_cpu = |root: &&PathBuf| {
        root.ends_with("cpu")
            || root.ends_with("cpu,cpuacct")
            || fs::read_to_string(root.join("cgroup.controllers"))
                .is_ok_and(|names| names.split_whitespace().any(|name| name == "cpu"))
    };
    roots
        .iter()
        .find(has_cpu)
        .cloned()
        .unwrap_or_else(cgroup::memory_root)
}

fn result_path(node: &Node, pod: &Pod) -> PathBuf {
    node.directory
        .join("log")
        .join(format!("{}.json", pod.name))
}

fn service(
    node: &Node,
    pod: &Pod,
    (pattern, every_ms): (&str, &str),
    plan: &Plan,
) -> anyhow::Result<Running> {
    node.write(pod)?;
    let program = program("service");
    let (log, result) = (node.log(pod), result_path(node, pod));
    let seconds = plan.seconds.to_string();
    let running = node.exec(
        pod,
        &[
            &program.to_string_lossy(),
            "--pattern",
            pattern,
            "--every-ms",
            every_ms,
            "--warm-up-s",
            &seconds,
            "--seconds",
            &seconds,
            "--result",
            &result.to_string_lossy(),
            "--log",
            &log.to_string_lossy(),
        ],
    )?;
    wait_log(&log, "ready", PATIENCE)
        .with_context(|| format!("pod {} did not come up: {}", pod.name, node.output(pod)))?;
    Ok(running)
}

fn print(rows: &[Row]) {
    let ns = |ns: u64| duration(i64::try_from(ns).unwrap_or(i64::MAX));
    let mut table = vec![
        [
            "cpuBurst",
            "throttled",
            "requests",
            "p50",
            "p99",
            "neighbours' requests",
            "their p99",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for row in rows {
        table.push(vec![
            if row.cpu_burst { "on" } else { "off" }.to_owned(),
            format!("{} of {} periods", row.throttled, row.periods),
            row.requests.to_string(),
            ns(row.p50_ns),
            ns(row.p99_ns),
            row.neighbour_requests.to_string(),
            ns(row.neighbour_p99_ns),
        ]);
    }
    println!("{}", aligned(&table));
    let of = |on: bool| rows.iter().filter(move |row| row.cpu_burst == on);
    let share = |on| {
        let (throttled, periods) = of(on).fold((0, 0), |sum, row| {
            (sum.0 + row.throttled, sum.1 + row.periods)
        });
        throttled * 1000 / periods.max(1)
    };
    let median = |on, value: fn(&Row) -> u64| {
        let mut values: Vec<u64> = of(on).map(value).collect();
        values.sort_unstable();
        values
            .get((values.len().max(1) - 1) / 2)
            .copied()
            .unwrap_or(0)
    };
    let change = |value: fn(&Row) -> u64| {
        let (off, on) = (median(false, value), median(true, value));
        (i128::from(on) - i128::from(off)) * 1000 / i128::from(off.max(1))
    };
    let percent = |permille: i128| {
        format!(
            "{}{}.{} %",
            if permille < 0 { "-" } else { "+" },
            permille.abs() / 10,
            permille.abs() % 10
        )
    };
    println!(
        "throttled: {}.{} % of periods without, {}.{} % with",
        share(false) / 10,
        share(false) % 10,
        share(true) / 10,
        share(true) % 10
    );
    println!(
        "medians, with against without: p50 {}, p99 {}; neighbours' requests {}, their p99 {}",
        percent(change(|row| row.p50_ns)),
        percent(change(|row| row.p99_ns)),
        percent(change(|row| row.neighbour_requests as u64)),
        percent(change(|row| row.neighbour_p99_ns))
    );
    for row in rows.iter().rev().find(|row| row.cpu_burst).into_iter() {
        for decision in &row.decisions {
            println!("  {decision}");
        }
    }
}
