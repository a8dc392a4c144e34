//! What the `reaction` program does: peers, the scenario, rows and the table.
//!
//! Terms. *Crossing*: for Plimsoll the kernel's time of its own record when there is one; for every peer also what the
//! sampler saw, by the measure that this peer goes by (earlyoom: `MemAvailable`; oomd: used; the kernel and Plimsoll:
//! capacity minus working set). *Hog gone*: its pidfd became readable. *Kernel first*: the OOM killer killed anything.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;

use super::agent::{Agent, EvictionFinished, Options, Records};
use super::clock::now_ns;
use super::false_alarms;
use super::figure::{Figures, Unit, whole};
use super::memory::{self, mib};
use super::node::{Node, Running, calm_down};
use super::pod::Pod;
use super::process::{Guard, cpu_ns, program, read_log, rss_bytes};
use super::sampler::{Seen, Watch};
use super::table::{aligned, bytes, since, times};

/// Memory left to ramp through before the threshold, as in the scenario of 2026-11.
const RAMP_BYTES: u64 = mib(350);
const INTERVAL_MS: u64 = 2;
const OUT: &str = "/out/reaction.jsonl";

/// Who watches over memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// Nobody but the kernel.
    None,
    /// Debian's earlyoom.
    Earlyoom,
    /// Debian's oomd, `memory_above` on the hog's parent, interval 1 s.
    Oomd,
    /// This project.
    Plimsoll,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Earlyoom => "earlyoom",
            Self::Oomd => "oomd",
            Self::Plimsoll => "plimsoll",
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Runs of each combination.
    pub runs: u32,
    /// Growth of the hog.
    pub rates_mb_s: Vec<u64>,
    /// Quantities.
    pub thresholds: Vec<String>,
    /// Systems.
    pub peers: Vec<Peer>,
    /// Pods on the node with the hog.
    pub pods: u32,
    /// Idle measurement, 0 for none.
    pub idle_s: u64,
    /// Crossings that are no shortage, 0 for none.
    pub false_alarms: u64,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
struct Row {
    peer: Peer,
    rate_mb_s: u64,
    threshold: String,
    pods: u32,
    run: u32,
    seen: Seen,
    sigterm_ns: Option<u64>,
    /// A peer's log line that says it acts, at the time it arrived.
    peer_decided_ns: Option<u64>,
    peer_said: Option<String>,
    eviction: Option<EvictionFinished>,
}

impl Row {
    fn crossed_ns(&self) -> Option<u64> {
        let sampled = match self.peer {
            Peer::Earlyoom => self.seen.mem_available_crossed_ns,
            Peer::Oomd => self.seen.used_crossed_ns,
            Peer::None => self.seen.working_set_crossed_ns,
            Peer::Plimsoll => self
                .eviction
                .as_ref()
                .and_then(|eviction| eviction.crossed_ns)
                .or(self.seen.working_set_crossed_ns),
        };
        // An agent that acts before the sampler sees the crossing leaves none: then the start of the act is the bound.
        sampled.or(self.sigterm_ns)
    }

    fn decided_ns(&self) -> Option<u64> {
        self.eviction
            .as_ref()
            .and_then(|eviction| eviction.decided_ns)
            .or(self.peer_decided_ns)
    }

    fn kernel_first(&self) -> bool {
        self.seen.kernel_oom_kills > 0
    }
}

/// A peer's cost at rest.
#[derive(Clone, Copy, Debug, Serialize)]
struct Idle {
    peer: Peer,
    seconds: u64,
    cpu_ns: u64,
    rss_bytes: u64,
}

/// Runs the plan.
///
/// # Errors
/// The guest lacks a program, or a scene cannot be set up. A peer that fails to act is a result, not an error.
pub fn run(plan: &Plan) -> anyhow::Result<()> {
    let mut out = File::create(OUT).with_context(|| format!("creating {OUT}"))?;
    let (mut rows, mut idles) = (Vec::new(), Vec::new());
    for &peer in &plan.peers {
        for threshold in &plan.thresholds {
            let mut system = System::start(peer, threshold, plan)?;
            if plan.idle_s > 0
                && threshold == &plan.thresholds[0]
                && let Some(idle) = system.idle(plan.idle_s)?
            {
                writeln!(out, "{}", serde_json::to_string(&idle)?)?;
                idles.push(idle);
            }
            for &rate_mb_s in &plan.rates_mb_s {
                for run in 1..=plan.runs {
                    let row = system.ramp(rate_mb_s, run)?;
                    println!("{}", told(&row));
                    writeln!(out, "{}", serde_json::to_string(&row)?)?;
                    rows.push(row);
                }
            }
            if let Some(records) = system.stop()? {
                println!(
                    "{peer:?}: records produced {}, consumed {}, dropped {}",
                    records.produced, records.consumed, records.dropped
                );
            }
        }
    }
    let mut false_alarms = None;
    if plan.false_alarms > 0 && plan.peers.contains(&Peer::Plimsoll) {
        let row = false_alarms::run(plan.false_alarms, plan.pods, |node| {
            bystanders(node, plan.pods)
        })?;
        println!("{}", row.told());
        writeln!(out, "{}", serde_json::to_string(&row)?)?;
        false_alarms = Some(row);
    }
    println!("\n{}", summary(plan, &rows));
    let hops = hop_table(&rows);
    if !hops.is_empty() {
        println!("{hops}");
    }
    if !idles.is_empty() {
        println!("{}", idle_table(&idles));
    }
    let mut figures = figures(plan, &rows, &idles);
    if let Some(row) = false_alarms {
        row.put_figures(&mut figures);
    }
    figures.write()
}

/// What a ramp and a rest came to, for reports.
fn figures(plan: &Plan, rows: &[Row], idles: &[Idle]) -> Figures {
    type At = fn(&Row) -> Option<u64>;
    let times: [(&str, At); 5] = [
        ("record received", |row| row.eviction.as_ref()?.received_ns),
        ("decision", Row::decided_ns),
        ("SIGTERM", |row| {
            row.eviction
                .as_ref()
                .and_then(|eviction| eviction.signalled_ns)
                .or(row.sigterm_ns)
        }),
        ("hog gone", |row| row.seen.gone_ns),
        ("memory back", |row| row.seen.recovered_ns),
    ];
    let mut figures = Figures::default();
    for scene in scenes(plan) {
        let of_scene: Vec<&Row> = scene.rows(rows).collect();
        let judged = scene.peer == Peer::Plimsoll;
        let case = format!(
            "{}, {} pods, memory.available<{}, {} MB/s",
            scene.peer.name(),
            plan.pods,
            scene.threshold,
            scene.rate_mb_s
        );
        for (figure, at) in times {
            let after = of_scene
                .iter()
                .filter_map(|row| since(at(row), row.crossed_ns()));
            figures.add(&case, figure, Unit::Ns, judged, after);
        }
        if !of_scene.is_empty() {
            let first = of_scene.iter().filter(|row| row.kernel_first()).count();
            let kills = whole(first as u64);
            figures.add(
                &case,
                "runs in which the kernel was first",
                Unit::Count,
                judged,
                [kills],
            );
        }
    }
    for idle in idles {
        let case = format!(
            "{}, {} pods, at rest for {} s",
            idle.peer.name(),
            plan.pods,
            idle.seconds
        );
        let judged = idle.peer == Peer::Plimsoll;
        figures.add(&case, "CPU time", Unit::Ns, judged, [whole(idle.cpu_ns)]);
        figures.add(
            &case,
            "resident memory",
            Unit::Bytes,
            judged,
            [whole(idle.rss_bytes)],
        );
    }
    figures
}

/// One system at one threshold and rate.
struct Scene<'plan> {
    peer: Peer,
    threshold: &'plan str,
    rate_mb_s: u64,
}

impl Scene<'_> {
    fn rows<'rows>(&self, rows: &'rows [Row]) -> impl Iterator<Item = &'rows Row> {
        rows.iter().filter(|row| {
            row.peer == self.peer
                && row.rate_mb_s == self.rate_mb_s
                && row.threshold == self.threshold
        })
    }
}

/// Thresholds first, then rates, so that systems stand beside each other.
fn scenes(plan: &Plan) -> impl Iterator<Item = Scene<'_>> {
    let rates = move |threshold| {
        let peers = move |&rate_mb_s| {
            plan.peers.iter().map(move |&peer| Scene {
                peer,
                threshold,
                rate_mb_s,
            })
        };
        plan.rates_mb_s.iter().flat_map(peers)
    };
    plan.thresholds
        .iter()
        .flat_map(move |threshold| rates(threshold))
}

/// A peer that is running, with its scene.
struct System<'plan> {
    peer: Peer,
    threshold: String,
    threshold_bytes: u64,
    plan: &'plan Plan,
    node: Node,
    agent: Option<Agent>,
    other: Option<Other>,
    _bystanders: Vec<Running>,
    hogs: u32,
}

/// A peer that is not ours: its process and its lines, with the time they arrived.
struct Other {
    process: Guard,
    lines: Arc<Mutex<Vec<(u64, String)>>>,
}

impl<'plan> System<'plan> {
    fn start(peer: Peer, threshold: &str, plan: &'plan Plan) -> anyhow::Result<Self> {
        let threshold_bytes = quantity_bytes(threshold)?;
        let node = Node::new()?;
        let bystanders = bystanders(&node, plan.pods)?;
        let (mut agent, mut other) = (None, None);
        match peer {
            Peer::None => {}
            Peer::Plimsoll => {
                agent = Some(node.agent(&Options::hard(&format!("memory.available<{threshold}")))?)
            }
            Peer::Earlyoom => {
                // SIGTERM at the threshold, SIGKILL at half of it; no periodic report.
                let limits = format!("{},{}", threshold_bytes >> 10, threshold_bytes >> 11);
                other = Some(Other::spawn(
                    Command::new("earlyoom").args(["-M", &limits, "-r", "0"]),
                )?);
            }
            Peer::Oomd => {
                let config = node.directory.join("oomd.json");
                let used_bytes = memory::read()?
                    .used_available_bytes()
                    .saturating_sub(threshold_bytes);
                fs::write(&config, oomd_config(used_bytes))?;
                other = Some(Other::spawn(
                    Command::new("oomd")
                        .args(["--interval", "1", "--config"])
                        .arg(&config),
                )?);
            }
        }
        std::thread::sleep(Duration::from_secs(2));
        Ok(Self {
            peer,
            threshold: threshold.to_owned(),
            threshold_bytes,
            plan,
            node,
            agent,
            other,
            _bystanders: bystanders,
            hogs: 0,
        })
    }

    fn ramp(&mut self, rate_mb_s: u64, run: u32) -> anyhow::Result<Row> {
        calm_down()?;
        self.hogs += 1;
        let pod = Pod::burstable(&format!("hog-{}", self.hogs), "64Mi");
        let available_bytes = memory::read()?.working_set_available_bytes();
        let pre_mb = available_bytes.saturating_sub(self.threshold_bytes + RAMP_BYTES) >> 20;
        let mut hog = self.node.hog(
            &pod,
            &format!("ramp --wait-usr1 --rate-mb-s {rate_mb_s} --pre-mb {pre_mb}"),
        )?;
        // The peers' polling phases must vary from run to run.
        std::thread::sleep(Duration::from_millis(1000 + u64::from(run) * 370 % 1000));
        let from_line = self
            .other
            .as_ref()
            .map_or(0, |other| other.lines.lock().map_or(0, |lines| lines.len()));
        let seen = sample(&Watch {
            pid: hog.process.pid(),
            threshold_bytes: self.threshold_bytes,
            interval_ms: INTERVAL_MS,
            max_ms: 60_000,
            settle_ms: 500,
        })?;
        let eviction = match &mut self.agent {
            Some(agent) if seen.gone_ns.is_some() => agent.eviction(Duration::from_secs(20)).ok(),
            _ => None,
        };
        let (peer_decided_ns, peer_said) = self
            .other
            .as_ref()
            .and_then(|other| other.acted(from_line))
            .unzip();
        let sigterm_ns = read_log(&hog.log, "sigterm");
        // Gone already in the runs that went well.
        let _gone = hog.process.signal(rustix::process::Signal::KILL);
        ensure!(
            hog.process.wait_gone(Duration::from_secs(10)),
            "the hog cannot be killed"
        );
        fs::remove_file(self.node.manifest(&pod))?;
        Ok(Row {
            peer: self.peer,
            rate_mb_s,
            threshold: self.threshold.clone(),
            pods: self.plan.pods,
            run,
            seen,
            sigterm_ns,
            peer_decided_ns,
            peer_said,
            eviction,
        })
    }

    fn idle(&mut self, seconds: u64) -> anyhow::Result<Option<Idle>> {
        let pid = match (&self.agent, &self.other) {
            (Some(agent), _) => agent.pid(),
            (_, Some(other)) => other.process.pid(),
            _ => return Ok(None),
        };
        calm_down()?;
        let before_ns = cpu_ns(pid)?;
        std::thread::sleep(Duration::from_secs(seconds));
        Ok(Some(Idle {
            peer: self.peer,
            seconds,
            cpu_ns: cpu_ns(pid)?.saturating_sub(before_ns),
            rss_bytes: rss_bytes(pid)?,
        }))
    }

    fn stop(self) -> anyhow::Result<Option<Records>> {
        Ok(match self.agent {
            Some(agent) => Some(agent.stop()?.records),
            None => None,
        })
    }
}

/// All pods but one, which grows.
fn bystanders(node: &Node, pods: u32) -> anyhow::Result<Vec<Running>> {
    // So that a thousand leave room for it.
    let held = match pods {
        ..=500 => "hold --mb 2",
        _ => "hold --mb 1",
    };
    let pod = |index: u32| {
        let name = format!("bystander-{index}");
        if index % 2 == 1 {
            Pod::guaranteed(&name, "10m", "16Mi")
        } else {
            Pod::best_effort(&name)
        }
    };
    (1..pods).map(|index| node.hog(&pod(index), held)).collect()
}

impl Other {
    fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let (reader, writer) = std::io::pipe()?;
        let child = command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .spawn()
            .with_context(|| format!("starting {name}: is its Debian package in this guest?"))?;
        // What the peer's own unit file does for it on a real system.
        fs::write(format!("/proc/{}/oom_score_adj", child.id()), "-900")?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                let Ok(mut lines) = sink.lock() else { return };
                lines.push((now_ns(), line));
            }
        });
        let mut other = Self {
            process: Guard(child),
            lines,
        };
        std::thread::sleep(Duration::from_millis(500));
        ensure!(
            other.process.is_running()?,
            "{name} ended at once: {:?}",
            other
                .lines
                .lock()
                .map(|lines| lines.clone())
                .unwrap_or_default()
        );
        Ok(other)
    }

    fn acted(&self, from_line: usize) -> Option<(u64, String)> {
        const ACTS: &[&str] = &[
            "sending SIG",
            "Trying to kill",
            "Killed",
            "killing",
            "Action",
        ];
        let lines = self.lines.lock().ok()?;
        lines
            .iter()
            .skip(from_line)
            .find(|(_, line)| ACTS.iter().any(|act| line.contains(act)))
            .cloned()
    }
}

/// `sampler` as a process of its own: its memory is locked, this program's is not.
fn sample(watch: &Watch) -> anyhow::Result<Seen> {
    let output = Command::new(program("sampler"))
        .args([
            "--pid",
            &watch.pid.to_string(),
            "--threshold-bytes",
            &watch.threshold_bytes.to_string(),
        ])
        .args([
            "--interval-ms",
            &watch.interval_ms.to_string(),
            "--max-ms",
            &watch.max_ms.to_string(),
        ])
        .args(["--settle-ms", &watch.settle_ms.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .context("starting the sampler")?;
    ensure!(
        output.status.success(),
        "the sampler ended with {}",
        output.status
    );
    serde_json::from_slice(&output.stdout).context("the sampler's line")
}

fn quantity_bytes(text: &str) -> anyhow::Result<u64> {
    let (digits, shift) = match (text.strip_suffix("Gi"), text.strip_suffix("Mi")) {
        (Some(digits), _) => (digits, 30),
        (_, Some(digits)) => (digits, 20),
        _ => bail!("threshold {text}: write it in Mi or Gi"),
    };
    Ok(digits
        .parse::<u64>()
        .with_context(|| format!("threshold {text}"))?
        << shift)
}

fn oomd_config(used_bytes: u64) -> String {
    format!(
        r#"{{"rulesets":[{{"name":"ramp","detectors":[["above",{{"name":"memory_above","args":{{"cgroup":"kubepods","threshold":"{}M","duration":"0"}}}}]],
        "actions":[{{"name":"kill_by_memory_size_or_growth","args":{{"cgroup":"kubepods/burstable/*"}}}}]}}]}}"#,
        used_bytes >> 20
    )
}

fn told(row: &Row) -> String {
    let crossed = row.crossed_ns();
    let part =
        |at: Option<u64>| since(at, crossed).map_or_else(|| "-".to_owned(), super::table::duration);
    format!(
        "{:?} {} MB/s {} run {}: decision {}, hog gone {}, back {}{}",
        row.peer,
        row.rate_mb_s,
        row.threshold,
        row.run,
        part(row.decided_ns()),
        part(row.seen.gone_ns),
        part(row.seen.recovered_ns),
        row.seen
            .kernel_victims
            .first()
            .map(|victim| format!(", KERNEL killed {} ({})", victim.comm, victim.pid))
            .unwrap_or_default()
    )
}

fn summary(plan: &Plan, rows: &[Row]) -> String {
    let heading = [
        "peer",
        "threshold",
        "MB/s",
        "n",
        "to record",
        "to decision",
        "hog gone",
        "memory back",
        "kernel first",
        "least available",
    ];
    let mut table = vec![heading.map(str::to_owned).to_vec()];
    for scene in scenes(plan) {
        let group: Vec<&Row> = scene.rows(rows).collect();
        if group.is_empty() {
            continue;
        }
        let span = |at: fn(&Row) -> Option<u64>| {
            times(
                group
                    .iter()
                    .filter_map(|row| since(at(row), row.crossed_ns())),
            )
        };
        table.push(vec![
            scene.peer.name().to_owned(),
            scene.threshold.to_owned(),
            scene.rate_mb_s.to_string(),
            group.len().to_string(),
            span(|row| row.eviction.as_ref()?.received_ns),
            span(Row::decided_ns),
            span(|row| row.seen.gone_ns),
            span(|row| row.seen.recovered_ns),
            format!(
                "{}/{}",
                group.iter().filter(|row| row.kernel_first()).count(),
                group.len()
            ),
            group
                .iter()
                .map(|row| row.seen.available_bytes_min)
                .min()
                .map_or_else(|| "-".to_owned(), bytes),
        ]);
    }
    aligned(&table)
}

/// When each step of a reaction was over, after its crossing: where the time goes.
fn hop_table(rows: &[Row]) -> String {
    type Hop = fn(&EvictionFinished) -> Option<u64>;
    let hops: [(&str, Hop); 6] = [
        ("record", |it| it.received_ns),
        ("node read", |it| it.node_read_ns),
        ("pods read", |it| it.pods_read_ns),
        ("read anew", |it| it.freshened_ns),
        ("decision", |it| it.decided_ns),
        ("SIGTERM", |it| it.signalled_ns),
    ];
    let evictions = rows.iter().filter_map(|row| row.eviction.as_ref());
    let crossed: Vec<_> = evictions.filter(|it| it.crossed_ns.is_some()).collect();
    if crossed.is_empty() {
        return String::new();
    }
    let heading = hops.map(|(name, _)| name.to_owned()).to_vec();
    let figures = hops.map(|(_, hop)| {
        let after = crossed
            .iter()
            .filter_map(|it| since(hop(it), it.crossed_ns));
        times(after)
    });
    aligned(&[heading, figures.to_vec()])
}

fn idle_table(idles: &[Idle]) -> String {
    let mut table = vec![
        ["peer", "idle CPU", "of", "RSS"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for idle in idles {
        table.push(vec![
            idle.peer.name().to_owned(),
            super::table::duration(i64::try_from(idle.cpu_ns).unwrap_or(i64::MAX)),
            format!("{} s", idle.seconds),
            bytes(idle.rss_bytes),
        ]);
    }
    aligned(&table)
}
