//! What the `cost` program does: loops that do nothing but what the agent's programs are attached to, off and on in
//! turns.
//!
//! [`Loop::Faults`] maps 64 MiB, touches each page once and unmaps, so that the memory controller charges 64 pages at a
//! time as fast as the machine can. Huge pages are off: they would charge 512 pages at a time and hide the cost.
//! [`Loop::Forks`] is a shell that forks a child that ends at once, without an exec, which would cost much more than
//! what is looked for. [`Loop::Switches`] are two threads that wake each other through pipes. [`Loop::Compute`]
//! computes, which only a tracing session sees. Each runs as a pod's container, three cgroups deep. The cases
//! ([`Attached`]) take turns, so that a drift of the machine hits all; with the agent, `plimsoll events` or
//! `plimsoll trace`, its own CPU time is in the wall-clock time.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::agent::{Agent, Options};
use super::clock::wait_until;
use super::figure::{Figures, Unit, ppm, whole};
use super::node::Node;
use super::pod::Pod;
use super::process::{Guard, program};
use super::table::{Spread, aligned, duration};

const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const OUT: &str = "/out/cost.jsonl";
/// Rounds of 64 MiB, that is 16384 faults.
const FAULT_ROUNDS: u32 = 4;
const FORKS: u32 = 2_000;
const SWITCHES: u32 = 50_000;
const COMPUTE_ROUNDS: u32 = 300;
/// For `plimsoll events` to attach everything.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// What is done over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Loop {
    /// Page faults.
    Faults,
    /// Forks.
    Forks,
    /// Context switches.
    Switches,
    /// Arithmetic.
    Compute,
}

impl Loop {
    fn name(self) -> &'static str {
        match self {
            Self::Faults => "page fault",
            Self::Forks => "fork",
            Self::Switches => "context switch",
            Self::Compute => "million steps",
        }
    }

    /// The hog's mode.
    fn arguments(self) -> [String; 3] {
        let (mode, rounds) = match self {
            Self::Faults => ("faults", FAULT_ROUNDS),
            Self::Forks => ("forks", FORKS),
            Self::Switches => ("switches", SWITCHES),
            Self::Compute => ("compute", COMPUTE_ROUNDS),
        };
        [mode.to_owned(), "--rounds".to_owned(), rounds.to_string()]
    }
}

/// Which programs are attached meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attached {
    /// None.
    Nothing,
    /// What `plimsoll run` has.
    Agent,
    /// Every one there is, by `plimsoll events`.
    Everything,
    /// What a tracing session has, of the whole node at 99 Hz with all events: `plimsoll trace`.
    Session,
}

impl Attached {
    const ALL: [Self; 4] = [Self::Nothing, Self::Agent, Self::Everything, Self::Session];
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Pairs of off and on.
    pub pairs: u32,
    /// Which loops.
    pub loops: Vec<Loop>,
}

/// What the loop said of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Ran {
    /// Faults, forks or switches.
    events: u64,
    wall_ns: u64,
    cpu_ns: u64,
}

/// One run of a loop.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    #[serde(rename = "loop")]
    of: Loop,
    attached: Attached,
    #[serde(flatten)]
    ran: Ran,
}

/// Runs the plan, keeps the rows and prints the table.
///
/// # Errors
/// The scene cannot be set up.
pub fn run(plan: &Plan) -> anyhow::Result<()> {
    let rows = measure(plan)?;
    let text: Vec<String> = rows
        .iter()
        .map(serde_json::to_string)
        .collect::<Result<_, _>>()?;
    fs::write(OUT, text.join("\n") + "\n").with_context(|| format!("writing {OUT}"))?;
    println!("{}", table(&rows));
    let mut figures = Figures::default();
    put_figures(&rows, &mut figures);
    figures.write()
}

/// Ratios of neighbours in turn, so that a drift of the machine is in both parts.
pub(super) fn put_figures(rows: &[Row], figures: &mut Figures) {
    let times = |of: Loop, attached: Attached| {
        let rows = rows.iter();
        rows.filter(move |row| row.of == of && row.attached == attached)
            .map(|row| row.ran)
    };
    for of in [Loop::Faults, Loop::Forks, Loop::Switches, Loop::Compute] {
        let an_event =
            times(of, Attached::Nothing).map(|ran| whole(ran.cpu_ns / ran.events.max(1)));
        figures.add(
            of.name(),
            "CPU time of one, detached",
            Unit::Ns,
            false,
            an_event,
        );
        for (attached, figure) in [
            (
                Attached::Agent,
                "CPU time with the agent, beyond that without",
            ),
            (
                Attached::Everything,
                "CPU time with every program, beyond that without",
            ),
            (
                Attached::Session,
                "CPU time with a tracing session, beyond that without",
            ),
        ] {
            let excess = times(of, attached)
                .zip(times(of, Attached::Nothing))
                .filter_map(|(on, off)| Some(ppm(on.cpu_ns, off.cpu_ns)? - 1_000_000));
            figures.add(of.name(), figure, Unit::ExcessPpm, true, excess);
        }
    }
}

/// Every loop with and without the agent, in turns.
///
/// # Errors
/// The scene cannot be set up, a loop fails, or the agent drops records.
pub fn measure(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    if fs::exists(THP)? {
        fs::write(THP, "never").context("switching huge pages off")?;
    }
    let node = Node::new()?;
    let pod = Pod::burstable("loops", "64Mi");
    node.write(&pod)?;
    let bystander = Pod::guaranteed("bystander", "10m", "16Mi");
    let _bystander = node.hog(&bystander, "hold --mb 2")?;
    // Once before, so that the first measurement finds what the others find.
    for &of in &plan.loops {
        node.hog_says::<Ran>(&pod, &of.arguments())?;
    }
    let mut rows = Vec::new();
    for _ in 0..plan.pairs {
        for attached in Attached::ALL {
            let running = Running::start(&node, attached)?;
            for &of in &plan.loops {
                let ran = node.hog_says::<Ran>(&pod, &of.arguments())?;
                rows.push(Row { of, attached, ran });
            }
            running.stop(&node)?;
        }
    }
    Ok(rows)
}

/// What holds the programs.
enum Running {
    Nothing,
    Agent(Box<Agent>),
    Everything(Guard),
    Session(Guard),
}

impl Running {
    fn start(node: &Node, attached: Attached) -> anyhow::Result<Self> {
        Ok(match attached {
            Attached::Nothing => Self::Nothing,
            Attached::Agent => Self::Agent(Box::new(
                node.agent(&Options::hard("memory.available<100Mi"))?,
            )),
            Attached::Everything => {
                let output = node.directory.join("log/events.out");
                let events = Guard(
                    Command::new(program("plimsoll"))
                        .args(["events", "--output", "json"])
                        .stdin(Stdio::null())
                        .stdout(File::create(&output)?)
                        .stderr(Stdio::inherit())
                        .spawn()
                        .context("starting plimsoll events")?,
                );
                // It writes for the first time when everything is attached.
                let attached = wait_until(START_TIMEOUT, Duration::from_millis(50), || {
                    fs::metadata(&output).is_ok_and(|metadata| metadata.len() > 0)
                });
                ensure!(attached, "plimsoll events says nothing");
                Self::Everything(events)
            }
            Attached::Session => {
                let said = node.directory.join("log/trace.err");
                let trace = Guard(
                    Command::new(program("plimsoll"))
                        .args(["trace", "--for", "0", "--output", "json"])
                        .stdin(Stdio::null())
                        .stdout(File::create(node.directory.join("log/trace.out"))?)
                        .stderr(File::create(&said)?)
                        .spawn()
                        .context("starting plimsoll trace")?,
                );
                // It says so when everything is attached.
                let attached = wait_until(START_TIMEOUT, Duration::from_millis(50), || {
                    fs::metadata(&said).is_ok_and(|metadata| metadata.len() > 0)
                });
                ensure!(attached, "plimsoll trace says nothing");
                Self::Session(trace)
            }
        })
    }

    fn stop(self, node: &Node) -> anyhow::Result<()> {
        match self {
            Self::Nothing => {}
            Self::Agent(agent) => {
                ensure!(agent.stop()?.records.dropped == 0, "records were dropped");
            }
            Self::Everything(mut events) => {
                events.signal(Signal::TERM)?;
                let status = events.0.wait()?;
                ensure!(
                    status.success(),
                    "plimsoll events ended with {status}: records were lost"
                );
            }
            Self::Session(mut trace) => {
                trace.signal(Signal::TERM)?;
                let status = trace.0.wait()?;
                ensure!(status.success(), "plimsoll trace ended with {status}");
                let summary = fs::read(node.directory.join("log/trace.out"))?;
                let summary: serde_json::Value = serde_json::from_slice(&summary)?;
                let dropped = &summary["losses"]["samplesDropped"];
                ensure!(
                    summary["samples"].as_u64() > Some(0) && *dropped == 0,
                    "samples were dropped: {}",
                    summary["losses"]
                );
            }
        }
        Ok(())
    }
}

/// Time per event, and the ratios of the medians.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "a ratio of four figures")]
pub fn table(rows: &[Row]) -> String {
    let spread = |of: Loop, attached: Attached, pick: fn(&Ran) -> u64| {
        Spread::of(
            rows.iter()
                .filter(|row| row.of == of && row.attached == attached)
                .filter_map(|row| i64::try_from(pick(&row.ran)).ok()),
        )
    };
    let wall: fn(&Ran) -> u64 = |ran| ran.wall_ns;
    let measures = [("wall", wall), ("CPU of the loop", |ran| ran.cpu_ns)];
    let mut lines = vec![
        [
            "loop",
            "time",
            "detached",
            "an event",
            "agent",
            "agent / detached",
            "everything",
            "everything / detached",
            "session",
            "session / detached",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for of in [Loop::Faults, Loop::Forks, Loop::Switches, Loop::Compute] {
        for (name, pick) in measures {
            let events = rows
                .iter()
                .find(|row| row.of == of)
                .map(|row| i64::try_from(row.ran.events.max(1)).unwrap_or(i64::MAX));
            let [off, agent, all, session] =
                Attached::ALL.map(|attached| spread(of, attached, pick));
            let (Some(off), Some(agent), Some(all), Some(session), Some(events)) =
                (off, agent, all, session, events)
            else {
                continue;
            };
            let ratio = |on: Spread| format!("{:.4}", on.median as f64 / off.median.max(1) as f64);
            lines.push(vec![
                of.name().to_owned(),
                name.to_owned(),
                off.times(),
                duration(off.median / events),
                agent.times(),
                ratio(agent),
                all.times(),
                ratio(all),
                session.times(),
                ratio(session),
            ]);
        }
    }
    aligned(&lines)
}
