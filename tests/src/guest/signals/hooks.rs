//! Every program that the agent has: what it serves, how it is attached, and what a run of it costs.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll::kernel::stats::RunCounts;
use plimsoll::kernel::{HookReport, HookState};
use plimsoll::probe::ladder::{LADDER, Need};
use serde::Serialize;

use super::super::figure::{Figures, Unit, whole};
use super::super::table::aligned;

/// One program on this kernel.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// In the words of the ladder; the family's name for what is no signal of its own.
    signal: String,
    program: &'static str,
    target: &'static str,
    mechanism: String,
    /// Why it is not attached; the rest is then unknown.
    absent: Option<String>,
    verified_insns: Option<u32>,
    translated_insns: Option<u32>,
    runs: Option<u64>,
    ns_per_run: Option<u64>,
}

impl Row {
    /// None of a program that is not attached or has not run.
    pub(super) fn put_figures(&self, figures: &mut Figures) {
        let case = format!("program {}", self.program);
        let verified = self.verified_insns.map(i64::from);
        figures.add(
            &case,
            "instructions that the verifier walks",
            Unit::Count,
            true,
            verified,
        );
        let run = self.ns_per_run.map(whole);
        figures.add(&case, "time of a run", Unit::Ns, true, run);
    }
}

/// Programs in the order of loading, with what they have run.
pub(super) fn rows(hooks: &[HookReport], stats: &[RunCounts]) -> Vec<Row> {
    let stats: BTreeMap<&str, &RunCounts> = stats.iter().map(|run| (run.program, run)).collect();
    hooks
        .iter()
        .map(|hook| {
            let ran = stats.get(hook.program).filter(|run| run.count > 0);
            let (absent, verified_insns, translated_insns) = match &hook.state {
                HookState::Attached {
                    verified_insns,
                    translated_insns,
                } => (None, *verified_insns, *translated_insns),
                HookState::Unavailable(why) => (Some(why.to_string()), None, None),
            };
            Row {
                signal: signal_of(hook),
                program: hook.program,
                target: hook.target,
                mechanism: hook.kind.to_string(),
                absent,
                verified_insns,
                translated_insns,
                runs: ran.map(|run| run.count),
                ns_per_run: ran.map(|run| per_run_ns(run.time, run.count)),
            }
        })
        .collect()
}

fn per_run_ns(time: Duration, count: u64) -> u64 {
    u64::try_from(time.as_nanos() / u128::from(count.max(1))).unwrap_or(u64::MAX)
}

/// The ladder says which program serves which signal: of several the one that it is the better mechanism for.
fn signal_of(hook: &HookReport) -> String {
    let serves =
        |need: &Need| matches!(need, Need::Program(programs) if programs.contains(&hook.program));
    LADDER
        .iter()
        .filter_map(|row| {
            let at = row
                .rungs
                .iter()
                .position(|rung| rung.needs.iter().any(serves))?;
            Some((at, row.signal.name()))
        })
        .min_by_key(|(at, _)| *at)
        .map_or_else(
            || format!("({})", hook.family.name()),
            |(_, signal)| signal.to_owned(),
        )
}

/// The attached ones, then one line for each that is not.
pub(super) fn table(rows: &[Row]) -> String {
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let mut lines = vec![
        [
            "signal",
            "mechanism",
            "on",
            "program",
            "verified",
            "xlated",
            "runs",
            "ns a run",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let (attached, absent): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.absent.is_none());
    for row in attached {
        lines.push(vec![
            row.signal.clone(),
            row.mechanism.clone(),
            row.target.to_owned(),
            row.program.to_owned(),
            number(row.verified_insns.map(u64::from)),
            number(row.translated_insns.map(u64::from)),
            number(row.runs),
            number(row.ns_per_run),
        ]);
    }
    let mut text = aligned(&lines);
    for row in absent {
        let why = row.absent.as_deref().unwrap_or_default();
        text.push_str(&format!("not attached: {}: {why}\n", row.program));
    }
    text
}
