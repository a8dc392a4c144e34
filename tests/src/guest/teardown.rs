//! What the `teardown` program does: how long the kernel takes to give back the memory of an evicted pod, beside the
//! best that the machine can do.
//!
//! The best is a process of a pod that unmaps as much by itself, without a signal, an exit or an agent in between: its
//! time for a MiB is 1. An eviction is everything from the decision until the agent has seen 95 % of the bytes back.
//! Between the two is what the kernel takes when such a pod is killed and no agent runs. The kinds of memory differ in
//! what has to be undone for each byte: page tables of one process or of two hundred, huge pages, pages of a file in
//! memory.

use std::fs::{self, File};
use std::io::Write as _;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::agent::{EvictionFinished, Options};
use super::clock::now_ns;
use super::figure::{Figures, Unit, ppm, whole};
use super::memory::{self, mib};
use super::node::{Node, calm_down};
use super::pod::Pod;
use super::table::{aligned, since, times};

const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const OUT: &str = "/out/teardown.jsonl";
/// What is left above the threshold when the agent is started, for itself and for the pod to grow through.
const LEFT_BYTES: u64 = mib(160);
/// How fast the pod grows.
const RATE_MB_S: u64 = 512;
/// Between two looks at a pod's memory.
const LOOK_PERIOD: Duration = Duration::from_millis(1);
/// Processes of a pod that has many.
const MANY: u64 = 200;
/// For an eviction, of the guest's time.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the pod's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// Pages of 4 KiB of one process.
    Anonymous,
    /// The same in [`MANY`] processes.
    Processes,
    /// Huge pages of one process.
    Huge,
    /// A memfd of one process.
    Shared,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Anonymous, Self::Processes, Self::Huge, Self::Shared];

    fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous memory, 1 process",
            Self::Processes => "anonymous memory, 200 processes",
            Self::Huge => "huge pages, 1 process",
            Self::Shared => "memfd, 1 process",
        }
    }

    fn thp(self) -> &'static str {
        match self {
            Self::Huge => "always",
            Self::Anonymous | Self::Processes | Self::Shared => "never",
        }
    }

    /// The hog's mode with `mb` MiB, which grows on SIGUSR1.
    fn grows(self, mb: u64) -> String {
        let before = match self {
            Self::Anonymous | Self::Huge => format!("--pre-mb {mb}"),
            Self::Processes => {
                let each = mb.div_ceil(MANY);
                format!("--children {} --children-mb {each}", MANY - 1)
            }
            Self::Shared => format!("--shared-mb {mb}"),
        };
        format!("ramp --wait-usr1 --rate-mb-s {RATE_MB_S} {before}")
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Sizes of the pod's memory.
    pub sizes_mb: Vec<u64>,
    /// Runs of each.
    pub runs: u32,
}

/// How long so many bytes took, as `hog unmap` says it.
#[derive(Clone, Copy, Debug, Deserialize)]
struct FreedIn {
    bytes: u64,
    ns: u64,
}

impl FreedIn {
    /// Nanoseconds for so many bytes at the same rate.
    fn scaled_to(self, bytes: u64) -> u64 {
        let ns = u128::from(self.ns) * u128::from(bytes) / u128::from(self.bytes.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// One eviction beside what its memory takes to be unmapped.
#[derive(Clone, Debug, Serialize)]
struct Row {
    kind: Kind,
    mb: u64,
    /// A process that unmaps by itself as many bytes as came back.
    unmap_ns: u64,
    /// From the kill of such a pod while no agent runs until 95 % of as many bytes are back.
    kill_ns: u64,
    eviction: EvictionFinished,
}

impl Row {
    fn gone_ns(&self) -> Option<i64> {
        since(self.eviction.gone_ns, self.eviction.decided_ns)
    }

    fn back_ns(&self) -> Option<i64> {
        since(self.eviction.freed_ns, self.eviction.decided_ns)
    }

    /// In millionths of what unmapping takes.
    fn ratio(&self) -> Option<i64> {
        ppm(u64::try_from(self.back_ns()?).ok()?, self.unmap_ns)
    }
}

/// Runs the plan.
///
/// # Errors
/// The scene cannot be set up, or an eviction does not free what it is for.
pub fn run(plan: &Plan) -> anyhow::Result<()> {
    let mut out = File::create(OUT).with_context(|| format!("creating {OUT}"))?;
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        if fs::exists(THP)? {
            fs::write(THP, kind.thp()).context("choosing the size of pages")?;
        }
        for &mb in &plan.sizes_mb {
            for _ in 0..plan.runs {
                let row = evict(kind, mb)?;
                writeln!(out, "{}", serde_json::to_string(&row)?)?;
                println!("{}", line(&row));
                rows.push(row);
            }
        }
    }
    println!("\n{}", table(plan, &rows));
    figures(plan, &rows).write()
}

/// A pod of this size is evicted, and before it a process unmaps as much.
fn evict(kind: Kind, mb: u64) -> anyhow::Result<Row> {
    let node = Node::new()?;
    let unmapped = unmap(&node, kind, mb)?;
    calm_down()?;
    let killed = kill(&node, kind, mb)?;
    calm_down()?;
    // It has all but the last of its memory before anybody watches, so that no threshold is met too early.
    let pod = Pod::burstable("evicted", "8Mi");
    let hog = node.hog(&pod, &kind.grows(mb))?;
    let available_bytes = memory::read()?.working_set_available_bytes();
    ensure!(
        available_bytes > LEFT_BYTES + mib(256),
        "{mb} MiB leave {} MiB of this guest: take smaller sizes",
        available_bytes >> 20
    );
    let threshold_mb = (available_bytes - LEFT_BYTES) >> 20;
    let options = Options::hard(&format!("memory.available<{threshold_mb}Mi"));
    let mut agent = node.agent(&options)?;
    hog.process.signal(Signal::USR1)?;
    let eviction = agent.eviction(PATIENCE)?;
    ensure!(
        eviction.outcome == "freed",
        "the eviction of {mb} MiB ended as {}",
        eviction.outcome
    );
    agent.stop()?;
    // The same work for each byte that was back when the eviction was over.
    Ok(Row {
        kind,
        mb,
        unmap_ns: unmapped.scaled_to(eviction.freed_bytes),
        kill_ns: killed.scaled_to(eviction.freed_bytes),
        eviction,
    })
}

/// A process of a pod touches memory and unmaps it.
fn unmap(node: &Node, kind: Kind, mb: u64) -> anyhow::Result<FreedIn> {
    let pod = Pod::burstable("unmaps", "8Mi");
    node.write(&pod)?;
    let mut arguments = vec!["unmap".to_owned(), "--mb".to_owned(), mb.to_string()];
    if kind == Kind::Shared {
        arguments.push("--shared".to_owned());
    }
    let unmapped = node.hog_says(&pod, &arguments)?;
    fs::remove_file(node.manifest(&pod))?;
    Ok(unmapped)
}

/// A pod is killed while no agent runs: how much memory it had, and how long until the kernel, which nobody helps, has
/// given 95 % of it back.
fn kill(node: &Node, kind: Kind, mb: u64) -> anyhow::Result<FreedIn> {
    let pod = Pod::burstable("killed", "8Mi");
    let hog = node.hog(&pod, &kind.grows(mb))?;
    let used = || -> anyhow::Result<u64> {
        let text = fs::read_to_string(node.cgroup_file(&pod, "memory.current"))?;
        text.trim().parse().context("memory.current")
    };
    let bytes = used()?;
    let began_ns = now_ns();
    fs::write(node.cgroup_file(&pod, "cgroup.kill"), "1").context("killing the pod")?;
    while used()? > bytes / 20 {
        sleep(LOOK_PERIOD);
    }
    let ns = now_ns() - began_ns;
    drop(hog);
    fs::remove_file(node.manifest(&pod))?;
    node.clear()?;
    Ok(FreedIn { bytes, ns })
}

fn line(row: &Row) -> String {
    format!(
        "{}, {} MiB: gone {}, back {}, unmapped {}, killed without an agent {}",
        row.kind.name(),
        row.mb,
        times(row.gone_ns()),
        times(row.back_ns()),
        times([whole(row.unmap_ns)]),
        times([whole(row.kill_ns)])
    )
}

fn group(rows: &[Row], kind: Kind, mb: u64) -> impl Iterator<Item = &Row> {
    rows.iter()
        .filter(move |row| row.kind == kind && row.mb == mb)
}

#[allow(clippy::cast_precision_loss, reason = "a ratio of three figures")]
fn table(plan: &Plan, rows: &[Row]) -> String {
    let heading = [
        "memory",
        "MiB",
        "n",
        "decision to last process gone",
        "to 95 % back",
        "unmapped by itself",
        "killed without an agent",
        "back / unmapped",
    ];
    let mut lines = vec![heading.map(str::to_owned).to_vec()];
    for kind in Kind::ALL {
        for &mb in &plan.sizes_mb {
            let of = || group(rows, kind, mb);
            let ratios = super::table::Spread::of(of().filter_map(Row::ratio));
            lines.push(vec![
                kind.name().to_owned(),
                mb.to_string(),
                of().count().to_string(),
                times(of().filter_map(Row::gone_ns)),
                times(of().filter_map(Row::back_ns)),
                times(of().map(|row| whole(row.unmap_ns))),
                times(of().map(|row| whole(row.kill_ns))),
                ratios.map_or_else(
                    || "-".to_owned(),
                    |it| format!("{:.3}", it.median as f64 / 1e6),
                ),
            ]);
        }
    }
    aligned(&lines)
}

fn figures(plan: &Plan, rows: &[Row]) -> Figures {
    let mut figures = Figures::default();
    for kind in Kind::ALL {
        for &mb in &plan.sizes_mb {
            let of = || group(rows, kind, mb);
            let case = format!("{}, {mb} MiB", kind.name());
            let back = of().filter_map(Row::back_ns);
            figures.add(&case, "decision to 95 % back", Unit::Ns, true, back);
            let unmapped = of().map(|row| whole(row.unmap_ns));
            figures.add(&case, "unmapped by itself", Unit::Ns, false, unmapped);
            let killed = of().map(|row| whole(row.kill_ns));
            figures.add(&case, "killed without an agent", Unit::Ns, false, killed);
            let ratios = of().filter_map(Row::ratio);
            // Not judged: a kernel that unmaps sooner would make it worse.
            figures.add(&case, "back, of unmapped", Unit::Ppm, false, ratios);
        }
    }
    figures
}
