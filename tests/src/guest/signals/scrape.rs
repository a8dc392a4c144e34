//! What it takes to read the HTTP listener with many cgroups: time and size of each page, and the agent's CPU time for
//! it.
//!
//! The pods are those of [`super::footprint`], at rest. Pods have series of their own in the metrics: without them the
//! page's size does not depend on how many there are.

use std::thread::sleep;
use std::time::Duration;

use serde::Serialize;

use super::super::agent::Options;
use super::super::clock::now_ns;
use super::super::figure::{Unit, whole};
use super::super::node::Node;
use super::super::page::{ADDRESS, get};
use super::super::process::cpu_ns;
use super::super::table::{aligned, bytes, duration};
use super::Rows;
use super::footprint::{SETTLE, sleepers};

const PAGES: [&str; 3] = ["/metrics", "/metrics/resource", "/stats/summary"];
/// Times that each page is read.
const TIMES: usize = 20;
/// More than a snapshot's life, so that each page is made of a new one.
const PAUSE: Duration = Duration::from_millis(200);

/// One page.
#[derive(Clone, Debug, Serialize)]
struct Row {
    cgroups: u32,
    page: &'static str,
    bytes: usize,
    median_ns: u64,
    most_ns: u64,
    /// The agent's, for one reading, with what it did besides.
    cpu_ns: u64,
}

/// One scene for each number of cgroups.
pub(super) fn run(cgroups: &[u32], rows: &mut Rows) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for &count in cgroups {
        let node = Node::new()?;
        let _pods = sleepers(&node, count)?;
        let options = Options::hard("memory.available<100Mi")
            .flag("--listen", ADDRESS)
            .flag("--metrics-per-pod", "");
        let agent = node.agent(&options)?;
        sleep(SETTLE);
        for page in PAGES {
            let cpu_before_ns = cpu_ns(agent.pid())?;
            let mut times = Vec::with_capacity(TIMES);
            let mut size = 0;
            for _ in 0..TIMES {
                sleep(PAUSE);
                let start_ns = now_ns();
                size = get(page)?.len();
                times.push(now_ns() - start_ns);
            }
            let used_ns = cpu_ns(agent.pid())?.saturating_sub(cpu_before_ns);
            times.sort_unstable();
            let row = Row {
                cgroups: count,
                page,
                bytes: size,
                median_ns: times[TIMES / 2],
                most_ns: times[TIMES - 1],
                cpu_ns: used_ns / TIMES as u64,
            };
            rows.add("scrape", &row)?;
            let case = format!("{count} cgroups, {page}");
            let times = times.iter().map(|&time| whole(time));
            rows.figures
                .add(&case, "time of an answer", Unit::Ns, true, times);
            rows.figures
                .add(&case, "size", Unit::Bytes, true, [whole(size as u64)]);
            found.push(row);
        }
        agent.stop()?;
    }
    rows.say(&format!("\n{}", table(&found)));
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let ns = |ns: u64| duration(i64::try_from(ns).unwrap_or(i64::MAX));
    let head = [
        "cgroups",
        "page",
        "size",
        "median",
        "slowest",
        "agent's CPU time",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        lines.push(vec![
            row.cgroups.to_string(),
            row.page.to_owned(),
            bytes(row.bytes as u64),
            ns(row.median_ns),
            ns(row.most_ns),
            ns(row.cpu_ns),
        ]);
    }
    aligned(&lines)
}
