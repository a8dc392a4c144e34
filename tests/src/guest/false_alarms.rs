//! Crossings that are no shortage, again and again: how long does each take until it is judged, and how long the worst?
//!
//! A pod takes memory and gives it back, a little above the threshold, so that what is charged since the last sample
//! reaches what was left of it. The agent counts its own reactions (`plimsoll_reaction_seconds`), and keeps the
//! longest.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Serialize;

use super::agent::Options;
use super::figure::{Figures, Unit, whole};
use super::memory::{self, mib};
use super::node::{Node, Running};
use super::page::{ADDRESS, get};
use super::pod::Pod;
use super::table::duration;

/// What is left above the threshold while the pod has all that it takes.
const LEFT_BYTES: u64 = mib(64);
/// What that is, MB.
const HIGH_MB: u64 = 68;
/// Wall-clock time without a further crossing after which there will be none.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the agent has counted.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pods: u32,
    crossings: u64,
    mean_ns: u64,
    /// The least bound that half of them did not exceed.
    median_below_ns: u64,
    longest_ns: u64,
}

impl Row {
    /// For reports.
    pub(super) fn put_figures(&self, figures: &mut Figures) {
        let case = format!("plimsoll, {} pods, false alarms", self.pods);
        let (mean, longest) = (whole(self.mean_ns), whole(self.longest_ns));
        figures.add(&case, "answered after, on average", Unit::Ns, true, [mean]);
        // One of many, and so another one each time.
        figures.add(
            &case,
            "answered after, the longest",
            Unit::Ns,
            false,
            [longest],
        );
    }

    /// For people.
    pub(super) fn told(&self) -> String {
        let time = |ns| duration(whole(ns));
        format!(
            "false alarms with {} pods: {} crossings, judged after {} on average, half of them within {}, the longest after {}",
            self.pods,
            self.crossings,
            time(self.mean_ns),
            time(self.median_below_ns),
            time(self.longest_ns)
        )
    }
}

/// Waits for so many crossings.
pub(super) fn run(
    crossings: u64,
    pods: u32,
    bystanders: impl FnOnce(&Node) -> anyhow::Result<Vec<Running>>,
) -> anyhow::Result<Row> {
    let node = Node::new()?;
    let _bystanders = bystanders(&node)?;
    let available_bytes = memory::read()?.working_set_available_bytes();
    let threshold_kib = available_bytes.saturating_sub(LEFT_BYTES + mib(HIGH_MB)) >> 10;
    let options = Options::hard(&format!("memory.available<{threshold_kib}Ki"));
    let agent = node.agent(&options.flag("--listen", ADDRESS))?;
    // Who crosses while the agent takes in the first list of pods waits for the end of that, and is no case of this.
    sleep(Duration::from_secs(2));
    let pod = Pod::burstable("comes-and-goes", "64Mi");
    let flap = format!("flap --low-mb 4 --high-mb {HIGH_MB} --period-ms 2");
    let _flapping = node.hog(&pod, &flap)?;
    let (mut seen, mut since) = (0, Instant::now());
    let page = loop {
        sleep(Duration::from_millis(500));
        let page = get("/metrics")?;
        let count = value(&page, "plimsoll_reaction_seconds_count")? as u64;
        if count >= crossings {
            break page;
        }
        if count > seen {
            (seen, since) = (count, Instant::now());
        }
        ensure!(since.elapsed() < PATIENCE, "{seen} crossings, and no more");
    };
    let records = agent.stop()?.records;
    ensure!(records.dropped == 0, "records were dropped: {records:?}");
    row(&page, pods)
}

/// Of the metrics page.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "times and counts that a benchmark shows with three figures"
)]
fn row(page: &str, pods: u32) -> anyhow::Result<Row> {
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let crossings = value(page, "plimsoll_reaction_seconds_count")?;
    let buckets = page.lines().filter_map(|line| {
        let rest = line.strip_prefix("plimsoll_reaction_seconds_bucket{")?;
        let (labels, count) = rest.split_once("} ")?;
        let bound = labels
            .contains(CAUSE)
            .then(|| labels.split_once("le=\""))??;
        let bound = bound.1.split_once('"')?.0.parse::<f64>().ok()?;
        Some((bound, count.parse::<f64>().ok()?))
    });
    let mut buckets = buckets.skip_while(|(_, count)| *count < crossings / 2.0);
    let (median_below, _) = buckets.next().context("no bucket has half of them")?;
    Ok(Row {
        pods,
        crossings: crossings as u64,
        mean_ns: ns(value(page, "plimsoll_reaction_seconds_sum")? / crossings.max(1.0)),
        median_below_ns: ns(median_below),
        longest_ns: ns(value(page, "plimsoll_longest_reaction_seconds")?),
    })
}

const CAUSE: &str = "cause=\"charge_threshold\"";

fn value(page: &str, name: &str) -> anyhow::Result<f64> {
    let mut lines = page.lines();
    let line = lines.find(|line| line.starts_with(name) && line.contains(CAUSE));
    let text = line.and_then(|line| line.rsplit_once(' '));
    let (_, number) = text.with_context(|| format!("the metrics have no {name} for {CAUSE}"))?;
    Ok(number.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_read() {
        let page = "plimsoll_reaction_seconds_sum{cause=\"charge_threshold\"} 0.0004\n\
                    plimsoll_reaction_seconds_count{cause=\"charge_threshold\"} 10\n\
                    plimsoll_reaction_seconds_bucket{le=\"0.000025\",cause=\"charge_threshold\"} 4\n\
                    plimsoll_reaction_seconds_bucket{le=\"0.00005\",cause=\"charge_threshold\"} 9\n\
                    plimsoll_reaction_seconds_bucket{le=\"+Inf\",cause=\"charge_threshold\"} 10\n\
                    plimsoll_longest_reaction_seconds{cause=\"kswapd_wake\"} 7\n\
                    plimsoll_longest_reaction_seconds{cause=\"charge_threshold\"} 0.0001\n";
        let row = row(page, 3).unwrap();
        assert_eq!(
            (
                row.crossings,
                row.mean_ns,
                row.median_below_ns,
                row.longest_ns
            ),
            (10, 40_000, 50_000, 100_000)
        );
        assert!(value(page, "plimsoll_nothing").is_err());
    }
}
