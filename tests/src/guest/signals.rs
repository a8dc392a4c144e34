//! What the `signals` program does: what each signal costs and how soon it is seen, on the kernel that it runs on.
//!
//! Six parts, each with its own rows and table. [`hooks`]: every program with its verified instructions and run time
//! per event. [`latency`]: from the event to userspace, by kind of record, beside a bare ring buffer and beside
//! polling; and how many records a second arrive without one being dropped. [`super::cost`]: loops that do nothing but
//! what is hooked, attached against detached. [`footprint`]: the agent's CPU time and memory with many cgroups.
//! [`resident`]: of what that memory is. [`scrape`]: what it takes to read its HTTP listener then.
//!
//! Nothing here lists the signals: programs come from the loader, kinds of records from the ABI, and what they serve
//! from the ladder.

pub mod footprint;
pub mod hooks;
pub mod latency;
mod load;
mod resident;
pub mod scrape;

use std::fs::File;
use std::io::Write as _;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;

use super::cost::{self, Loop};
use super::figure::Figures;

const OUT: &str = "/out/signals.jsonl";

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Every program: instructions, run time, and how soon its records arrive.
    Hooks,
    /// Loops, attached against detached.
    Loops,
    /// The agent with many cgroups.
    Footprint,
    /// Its HTTP listener with many cgroups.
    Scrape,
    /// What of it is resident.
    Resident,
}

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables.
    Text,
    /// One JSON object per row.
    Json,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which parts.
    pub parts: Vec<Part>,
    /// Pairs of attached and detached.
    pub pairs: u32,
    /// Cgroups that the agent has to follow.
    pub cgroups: Vec<u32>,
    /// How to print.
    pub output: Output,
}

/// Where rows go.
pub(super) struct Rows {
    file: File,
    output: Output,
    figures: Figures,
}

impl Rows {
    fn add<T: Serialize>(&mut self, part: &'static str, row: &T) -> anyhow::Result<()> {
        #[derive(Serialize)]
        struct Tagged<'row, T> {
            part: &'static str,
            #[serde(flatten)]
            row: &'row T,
        }
        let line = serde_json::to_string(&Tagged { part, row })?;
        if self.output == Output::Json {
            println!("{line}");
        }
        writeln!(self.file, "{line}").with_context(|| format!("writing {OUT}"))
    }

    fn say(&self, text: &str) {
        if self.output == Output::Text {
            println!("{text}");
        }
    }
}

/// Runs the plan.
///
/// # Errors
/// The guest lacks something, or a scene cannot be set up.
pub fn run(plan: &Plan) -> anyhow::Result<()> {
    let file = File::create(OUT).with_context(|| format!("creating {OUT}"))?;
    let mut rows = Rows {
        file,
        output: plan.output,
        figures: Figures::default(),
    };
    for part in &plan.parts {
        match part {
            Part::Hooks => latency::run(&mut rows)?,
            Part::Loops => {
                let measured = cost::measure(&cost::Plan {
                    pairs: plan.pairs,
                    loops: vec![Loop::Faults, Loop::Forks, Loop::Switches],
                })?;
                for row in &measured {
                    rows.add("loops", row)?;
                }
                rows.say(&format!("\n{}", cost::table(&measured)));
                cost::put_figures(&measured, &mut rows.figures);
            }
            Part::Footprint => footprint::run(&plan.cgroups, &mut rows)?,
            Part::Scrape => scrape::run(&plan.cgroups, &mut rows)?,
            Part::Resident => resident::run(&plan.cgroups, &mut rows)?,
        }
    }
    rows.figures.write()
}
