//! From the event to userspace.
//!
//! The main thread reads the rings as the agent does: at real-time priority, woken by those that wake, looking at the
//! others every [`LOOK_EVERY`] (as `plimsoll events`). Another thread makes things happen ([`super::load`]). A record's
//! latency is the time at which the reader has it less the time that the program put into it; both clocks are the same.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use aya::maps::{MapData, RingBuf};
use aya::programs::BtfTracePoint;
use aya::sys::{Stats, enable_stats};
use aya::{Btf, Ebpf};
use plimsoll::host::syscall::sched_fifo_reset_on_fork;
use plimsoll::kernel::object::object;
use plimsoll::kernel::stats::RunMeter;
use plimsoll::kernel::{Bpf, BpfOptions, Counts, HookSet, KindCount};
use plimsoll_abi::KINDS;
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;

use super::super::clock::{now_ns, timespec};
use super::super::figure::{Unit, whole};
use super::super::process::program;
use super::super::table::{aligned, duration};
use super::load::{self, Ask, Flood, Polled};
use super::{Rows, hooks};

/// Rings that do not wake are looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// As the agent has it.
const FIFO_PRIORITY: i32 = 1;
/// Of records that come in floods at most one per cgroup in this time.
const WINDOW: Duration = Duration::from_millis(100);
/// Records read before looking at anything else.
const BUDGET: usize = 1024;

/// The program of `ebpf/src/bin/ping.rs`.
struct Ping {
    ring: RingBuf<MapData>,
    _ebpf: Ebpf,
}

impl Ping {
    fn attach() -> anyhow::Result<Self> {
        let path = program("ping.bpf.o");
        // Aligned as the ELF parser wants it: an allocation of this size is.
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut ebpf = Ebpf::load(&bytes)?;
        let ping: &mut BtfTracePoint = ebpf
            .program_mut("ping")
            .context("the object has no program ping")?
            .try_into()?;
        ping.load("oom_score_adj_update", &Btf::from_sys_fs()?)?;
        ping.attach()?;
        let ring = ebpf
            .take_map("PINGS")
            .context("the object has no map PINGS")?
            .try_into()?;
        Ok(Self { ring, _ebpf: ebpf })
    }
}

/// How soon records of one kind were there.
#[derive(Clone, Debug, Serialize)]
struct Row {
    record: String,
    /// Whether the ring wakes the reader.
    wakes: bool,
    records: usize,
    median_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    /// The median beside that of the bare ring.
    times_ping: f64,
}

#[derive(Default)]
struct Heard {
    pings: Vec<u64>,
    by_name: BTreeMap<(&'static str, bool), Vec<u64>>,
}

struct Listener {
    bpf: Bpf,
    ping: Ping,
    heard: Heard,
    pings: u64,
    is_quiet: bool,
    looked: Instant,
}

/// Measures and prints: programs, latencies, polling, floods.
pub(super) fn run(rows: &mut Rows) -> anyhow::Result<()> {
    // As long as it is open, the kernel counts runs and run time of every BPF program.
    let counting = enable_stats(Stats::RunTime).context("statistics of BPF programs")?;
    let bpf = Bpf::load(
        object()?,
        &BpfOptions {
            hooks: HookSet::ALL,
            without: &[],
            window: WINDOW,
            counts: Counts::EachCgroup,
        },
    )?;
    let mut listener = Listener {
        bpf,
        ping: Ping::attach()?,
        heard: Heard::default(),
        pings: 0,
        is_quiet: true,
        looked: Instant::now(),
    };
    let (asks, asked) = channel();
    // Before this thread becomes urgent: what it starts then would not be.
    let load = thread::spawn(move || load::run(&asks));
    sched_fifo_reset_on_fork(FIFO_PRIORITY).context("SCHED_FIFO")?;
    while !load.is_finished() {
        listener.turn(&asked)?;
    }
    let (polled, floods) = load
        .join()
        .map_err(|_| anyhow::anyhow!("the load has panicked"))??;
    drop(counting);

    let meters = listener.bpf.run_meters();
    let counts: Result<Vec<_>, _> = meters.iter().map(RunMeter::read).collect();
    let programs = hooks::rows(listener.bpf.hooks(), &counts?);
    for row in &programs {
        rows.add("hooks", row)?;
        row.put_figures(&mut rows.figures);
    }
    rows.say(&hooks::table(&programs));
    let latencies = listener.rows()?;
    for row in &latencies {
        rows.add("latency", row)?;
        // What is looked at now and then is as late as it is looked at.
        let judged = row.wakes;
        let case = format!("record {}", row.record);
        rows.figures.add(
            &case,
            "median from the event to userspace",
            Unit::Ns,
            judged,
            [whole(row.median_ns)],
        );
        rows.figures.add(
            &case,
            "99 % from the event to userspace",
            Unit::Ns,
            false,
            [whole(row.p99_ns)],
        );
    }
    rows.say(&latency_table(&latencies));
    for row in &polled {
        rows.add("polling", row)?;
    }
    rows.say(&polled_table(&polled));
    for row in &floods {
        rows.add("rate", row)?;
    }
    rows.say(&flood_table(&floods));
    Ok(())
}

impl Listener {
    /// Waits for at most [`LOOK_EVERY`] and takes what is there.
    fn turn(&mut self, asked: &Receiver<Ask>) -> anyhow::Result<()> {
        {
            let mut fds = [
                PollFd::from_borrowed_fd(self.ping.ring.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.bpf.critical_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.bpf.lifecycle_fd(), PollFlags::IN),
            ];
            let timeout = timespec(LOOK_EVERY.as_nanos().try_into()?);
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for the rings"),
            }
        }
        let (heard, is_quiet) = (&mut self.heard, self.is_quiet);
        while let Some(item) = self.ping.ring.next() {
            let now = now_ns();
            let sent = item
                .first_chunk()
                .map_or(now, |bytes| u64::from_ne_bytes(*bytes));
            self.pings += 1;
            if is_quiet {
                heard.pings.push(now.saturating_sub(sent));
            }
        }
        let mut note = |wakes: bool, record: plimsoll::kernel::decode::Record<'_>| {
            if is_quiet {
                let late = now_ns().saturating_sub(record.ts_ns);
                let key = (record.body.kind().name(), wakes);
                heard.by_name.entry(key).or_default().push(late);
            }
        };
        self.bpf.drain_critical(BUDGET, |record| note(true, record));
        self.bpf
            .drain_lifecycle(BUDGET, |record| note(true, record));
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            self.bpf
                .drain_pressure(BUDGET, |record| note(false, record));
        }
        while let Ok(ask) = asked.try_recv() {
            self.answer(ask)?;
        }
        Ok(())
    }

    /// An answer that nobody waits for any more is not missed.
    fn answer(&mut self, ask: Ask) -> anyhow::Result<()> {
        match ask {
            Ask::ArmCharges { ahead_bytes, done } => {
                let charged = self
                    .bpf
                    .charged_bytes()
                    .context("charges are not counted here")?;
                self.bpf.arm_charges(charged + ahead_bytes)?;
                let _gone = done.send(());
            }
            Ask::Noise => self.is_quiet = false,
            Ask::Account { done } => {
                // What is still on its way has been sent before.
                while self.bpf.drain_critical(BUDGET, |_| ()) == BUDGET {}
                while self.bpf.drain_lifecycle(BUDGET, |_| ()) == BUDGET {}
                while self.bpf.drain_pressure(BUDGET, |_| ()) == BUDGET {}
                while self.ping.ring.next().is_some() {
                    self.pings += 1;
                }
                let account = self.bpf.account()?;
                let counts: Vec<(&'static str, KindCount)> = KINDS
                    .into_iter()
                    .map(|kind| (kind.name(), account.of(kind)))
                    .collect();
                let _gone = done.send((counts, self.pings));
            }
        }
        Ok(())
    }

    #[allow(clippy::cast_precision_loss, reason = "a ratio of three figures")]
    fn rows(&mut self) -> anyhow::Result<Vec<Row>> {
        let pings = std::mem::take(&mut self.heard.pings);
        let ping = Quantiles::of(pings).context("no ping has arrived")?;
        let row = |name: &str, wakes, found: Quantiles| Row {
            record: name.to_owned(),
            wakes,
            records: found.count,
            median_ns: found.median,
            p99_ns: found.p99,
            max_ns: found.max,
            times_ping: found.median as f64 / ping.median.max(1) as f64,
        };
        let mut rows = vec![row("bare ring", true, ping)];
        for ((name, wakes), times) in std::mem::take(&mut self.heard.by_name) {
            if let Some(found) = Quantiles::of(times) {
                rows.push(row(name, wakes, found));
            }
        }
        Ok(rows)
    }
}

#[derive(Clone, Copy)]
struct Quantiles {
    count: usize,
    median: u64,
    p99: u64,
    max: u64,
}

impl Quantiles {
    fn of(mut values: Vec<u64>) -> Option<Self> {
        values.sort_unstable();
        let last = values.len().checked_sub(1)?;
        Some(Self {
            count: values.len(),
            median: values[last / 2],
            p99: values[last * 99 / 100],
            max: values[last],
        })
    }
}

fn time(ns: u64) -> String {
    duration(i64::try_from(ns).unwrap_or(i64::MAX))
}

fn latency_table(rows: &[Row]) -> String {
    let mut lines = vec![
        [
            "record",
            "ring",
            "records",
            "median",
            "p99",
            "max",
            "x bare ring",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for row in rows {
        lines.push(vec![
            row.record.clone(),
            if row.wakes { "wakes" } else { "every 20 ms" }.to_owned(),
            row.records.to_string(),
            time(row.median_ns),
            time(row.p99_ns),
            time(row.max_ns),
            format!("{:.2}", row.times_ping),
        ]);
    }
    aligned(&lines)
}

fn polled_table(rows: &[Polled]) -> String {
    let mut lines = vec![
        ["polling", "events", "median", "max"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for every_s in load::POLLED_EVERY_S {
        let late = rows
            .iter()
            .filter(|row| row.every_s == every_s)
            .map(|row| row.late_ns)
            .collect();
        if let Some(found) = Quantiles::of(late) {
            lines.push(vec![
                format!("every {every_s} s"),
                found.count.to_string(),
                time(found.median),
                time(found.max),
            ]);
        }
    }
    aligned(&lines)
}

#[allow(clippy::cast_precision_loss, reason = "three figures are shown")]
fn flood_table(rows: &[Flood]) -> String {
    let mut lines = vec![
        [
            "flood",
            "record",
            "produced",
            "consumed",
            "dropped",
            "records/s",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for row in rows {
        lines.push(vec![
            row.flood.to_owned(),
            row.record.to_owned(),
            row.produced.to_string(),
            row.consumed.to_string(),
            row.dropped.to_string(),
            format!(
                "{:.0}",
                row.consumed as f64 * 1e9 / row.took_ns.max(1) as f64
            ),
        ]);
    }
    aligned(&lines)
}
