//! What makes the records: a little of everything that the agent listens to, then floods.
//!
//! Each step is short and leaves time between its events, so that each wakes the reader by itself. A signal that is
//! added later is heard when one of these steps causes it; one that none causes is missing from the table, and wants a
//! step here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll::kernel::KindCount;
use serde::Serialize;

use super::super::cgroup;
use super::super::clock::now_ns;
use super::super::memory::{self, mib};
use super::super::process::{Guard, program, run_program, wait_log};

/// What only the thread that has the programs can do.
pub(super) enum Ask {
    /// A record when so much more has been charged.
    ArmCharges { ahead_bytes: u64, done: Sender<()> },
    /// From now on latencies are not noted: floods come.
    Noise,
    /// Where every record went so far, by kind, and the pings that arrived.
    Account { done: Sender<Account> },
}

type Account = (Vec<(&'static str, KindCount)>, u64);

/// An event that somebody who looks every so often sees late.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Polled {
    pub(super) every_s: u64,
    pub(super) late_ns: u64,
}

/// Records as fast as they can be made, all of which arrived.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Flood {
    pub(super) flood: &'static str,
    pub(super) record: &'static str,
    pub(super) produced: u64,
    pub(super) consumed: u64,
    pub(super) dropped: u64,
    pub(super) took_ns: u64,
}

/// What is compared with: reading the file every so often.
pub(super) const POLLED_EVERY_S: [u64; 2] = [1, 10];

const ROOT: &str = "/sys/fs/cgroup";
const PAUSE: Duration = Duration::from_millis(5);
/// Events of each kind that are made one by one.
const ROUNDS: u64 = 40;
const PINGS: u64 = 200;
const POLLED_ROUNDS: u64 = 10;
const FLOOD: u64 = 5_000;
const SCORE: &str = "/proc/thread-self/oom_score_adj";

/// A cgroup of this benchmark; everything in it goes with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> anyhow::Result<Self> {
        let path = Path::new(ROOT).join(format!("signals-{name}"));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }

    fn set(&self, file: &str, value: &str) -> anyhow::Result<()> {
        fs::write(self.0.join(file), value).with_context(|| format!("writing {value} to {file}"))
    }

    fn take(&self, process: &Guard) -> anyhow::Result<()> {
        self.set("cgroup.procs", &process.pid().to_string())
    }

    /// Starts a line of shell in it.
    fn start(&self, line: &str) -> anyhow::Result<Guard> {
        let script = format!("echo $$ > {}/cgroup.procs && {line}", self.0.display());
        Ok(Guard(shell(&script)?))
    }

    /// Starts the hog in it.
    fn hog(&self, arguments: &str) -> anyhow::Result<Guard> {
        self.start(&format!("exec {} {arguments}", program("hog").display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !cgroup::remove(&self.0) {
            eprintln!("{} stays", self.0.display());
        }
    }
}

fn shell(script: &str) -> anyhow::Result<Child> {
    Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting a shell")
}

struct Load<'asks> {
    asks: &'asks Sender<Ask>,
    /// A process that is moved about.
    mover: Guard,
}

/// Runs all steps.
///
/// # Errors
/// A step cannot be set up.
pub(super) fn run(asks: &Sender<Ask>) -> anyhow::Result<(Vec<Polled>, Vec<Flood>)> {
    let load = Load {
        asks,
        mover: Guard(shell("exec sleep 100000")?),
    };
    load.pings(PINGS, PAUSE)?;
    load.lifecycle()?;
    // Memory that this process takes is charged to a cgroup that can be watched: the root has no such limits.
    let own = Scratch::new("own")?;
    own.set("cgroup.procs", &std::process::id().to_string())?;
    load.thresholds()?;
    fs::write(
        Path::new(ROOT).join("cgroup.procs"),
        std::process::id().to_string(),
    )?;
    limits()?;
    throttle()?;
    Load::processes()?;
    refaults()?;
    node_reclaim()?;
    let polled = load.polled()?;
    load.ask(Ask::Noise)?;
    let floods = [
        load.ping_flood()?,
        load.attach_flood()?,
        load.mkdir_flood()?,
    ];
    Ok((polled, floods.concat()))
}

impl Load<'_> {
    fn ask(&self, ask: Ask) -> anyhow::Result<()> {
        self.asks.send(ask).ok().context("the reader has ended")
    }

    fn pings(&self, count: u64, pause: Duration) -> anyhow::Result<()> {
        for _ in 0..count {
            fs::write(SCORE, "0")?;
            if !pause.is_zero() {
                sleep(pause);
            }
        }
        Ok(())
    }

    fn lifecycle(&self) -> anyhow::Result<()> {
        for _ in 0..ROUNDS {
            let scratch = Scratch::new("life")?;
            sleep(PAUSE);
            scratch.take(&self.mover)?;
            sleep(PAUSE);
            self.take_back()?;
            sleep(PAUSE);
        }
        Ok(())
    }

    fn take_back(&self) -> anyhow::Result<()> {
        let root = Path::new(ROOT).join("cgroup.procs");
        fs::write(root, self.mover.pid().to_string()).context("moving a process to the root")
    }

    /// The node's total, armed a little ahead.
    fn thresholds(&self) -> anyhow::Result<()> {
        for _ in 0..ROUNDS {
            let (done, armed) = channel();
            self.ask(Ask::ArmCharges {
                ahead_bytes: mib(2),
                done,
            })?;
            armed.recv().context("charges were not armed")?;
            // Larger than what malloc keeps for itself (32 MiB), so that each is charged anew; 8 MiB of it are touched.
            let mut taken = vec![0_u8; 40 << 20];
            taken
                .iter_mut()
                .step_by(4096)
                .take(2048)
                .for_each(|byte| *byte = 1);
            std::hint::black_box(&taken);
            drop(taken);
            sleep(PAUSE);
        }
        Ok(())
    }

    /// Processes come into a cgroup, at times that are spread over ten seconds; its `cgroup.events` is read on the
    /// second.
    fn polled(&self) -> anyhow::Result<Vec<Polled>> {
        let mut rows = Vec::new();
        let longest_ns = POLLED_EVERY_S[1] * 1_000_000_000;
        for round in 0..POLLED_ROUNDS {
            let scratch = Scratch::new("polled")?;
            let events = scratch.0.join("cgroup.events");
            // By the golden ratio each falls into the largest gap.
            let phase_ns = round * longest_ns * 618 / 1000 % longest_ns;
            sleep_until(now_ns().next_multiple_of(longest_ns) + phase_ns);
            scratch.take(&self.mover)?;
            let happened_ns = now_ns();
            for every_s in POLLED_EVERY_S {
                sleep_until((happened_ns + 1).next_multiple_of(every_s * 1_000_000_000));
                ensure!(
                    cgroup::keyed(&events, "populated")? == 1,
                    "the cgroup is empty"
                );
                rows.push(Polled {
                    every_s,
                    late_ns: now_ns() - happened_ns,
                });
            }
            self.take_back()?;
        }
        Ok(rows)
    }

    /// Forks and execs.
    fn processes() -> anyhow::Result<()> {
        let scratch = Scratch::new("forks")?;
        let mut forks =
            scratch.start("i=0; while [ $i -lt 100 ]; do (:); /bin/true; i=$((i+1)); done")?;
        ensure!(
            forks.wait_gone(Duration::from_secs(60)),
            "the shell does not end"
        );
        Ok(())
    }

    fn account(&self) -> anyhow::Result<Account> {
        let (done, account) = channel();
        self.ask(Ask::Account { done })?;
        account.recv().context("there is no account")
    }

    /// What `flood` makes, and how long it takes. The reader is more urgent and is woken by each record: when the flood
    /// is over, so is the reading.
    fn flooded(
        &self,
        name: &'static str,
        pings: u64,
        flood: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<Flood>> {
        let before = self.account()?;
        let start_ns = now_ns();
        flood()?;
        let took_ns = now_ns() - start_ns;
        let after = self.account()?;
        let mut rows: Vec<Flood> = before
            .0
            .iter()
            .zip(&after.0)
            .filter(|(before, after)| after.1.produced > before.1.produced + FLOOD / 2)
            .map(|((record, before), (_, after))| Flood {
                flood: name,
                record,
                produced: after.produced - before.produced,
                consumed: after.consumed - before.consumed,
                dropped: after.dropped - before.dropped,
                took_ns,
            })
            .collect();
        if pings > 0 {
            let consumed = after.1 - before.1;
            rows.push(Flood {
                flood: name,
                record: "bare ring",
                produced: pings,
                consumed,
                dropped: pings - consumed,
                took_ns,
            });
        }
        Ok(rows)
    }

    fn ping_flood(&self) -> anyhow::Result<Vec<Flood>> {
        self.flooded("pings", FLOOD, || self.pings(FLOOD, Duration::ZERO))
    }

    fn attach_flood(&self) -> anyhow::Result<Vec<Flood>> {
        let scratches = [Scratch::new("here")?, Scratch::new("there")?];
        let rows = self.flooded("a process moved to and fro", 0, || {
            (0..FLOOD / 2).try_for_each(|_| {
                scratches
                    .iter()
                    .try_for_each(|scratch| scratch.take(&self.mover))
            })
        })?;
        self.take_back()?;
        Ok(rows)
    }

    fn mkdir_flood(&self) -> anyhow::Result<Vec<Flood>> {
        let scratch = Scratch::new("tree")?;
        let child = scratch.0.join("child");
        self.flooded("cgroups made and removed", 0, || {
            (0..FLOOD).try_for_each(|_| {
                fs::create_dir(&child)?;
                Ok(fs::remove_dir(&child)?)
            })
        })
    }
}

fn sleep_until(at_ns: u64) {
    sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
}

/// `memory.high` for a while, then `memory.max` to its end, the kernel's OOM killer.
fn limits() -> anyhow::Result<()> {
    let high = Scratch::new("high")?;
    high.set("memory.high", "16M")?;
    let hog = high.hog("hold --mb 24")?;
    sleep(Duration::from_secs(2));
    drop(hog);
    for _ in 0..5 {
        let max = Scratch::new("max")?;
        max.set("memory.max", "16M")?;
        let mut hog = max.hog("hold --mb 64")?;
        ensure!(
            hog.wait_gone(Duration::from_secs(30)),
            "nobody was killed at memory.max"
        );
    }
    Ok(())
}

fn throttle() -> anyhow::Result<()> {
    let scratch = Scratch::new("throttled")?;
    scratch.set("cpu.max", "5000 50000")?;
    let _hog = scratch.hog("spin --seconds 3")?;
    sleep(Duration::from_secs(3));
    Ok(())
}

/// Page cache that is dropped and wanted again, and memory that goes to swap and comes back.
fn refaults() -> anyhow::Result<()> {
    const MOUNT: &str = "/tmp/signals-disk";
    fs::create_dir_all(MOUNT)?;
    run_program("mke2fs", &["-F", "/dev/nvme0n1", "262144"])?;
    run_program("mount", &["-t", "ext2", "/dev/nvme0n1", MOUNT])?;
    let scratch = Scratch::new("cache")?;
    scratch.set("memory.max", "32M")?;
    let hog = scratch.hog(&format!("reread --path {MOUNT}/file --mb 48 --pause-ms 1"))?;
    sleep(Duration::from_secs(3));
    drop(hog);
    drop(scratch);
    run_program("umount", &[MOUNT])?;

    run_program("mkswap", &["/dev/nvme0n2"])?;
    run_program("swapon", &["/dev/nvme0n2"])?;
    let scratch = Scratch::new("swap")?;
    scratch.set("memory.max", "24M")?;
    let hog = scratch.hog("flap --low-mb 8 --high-mb 40 --period-ms 300")?;
    sleep(Duration::from_secs(2));
    drop(hog);
    drop(scratch);
    run_program("swapoff", &["/dev/nvme0n2"])
}

/// Free memory below the watermarks: almost all is taken, and a disk is read into the page cache.
fn node_reclaim() -> anyhow::Result<()> {
    let scratch = Scratch::new("node")?;
    let take_mb = memory::read()?.free_bytes.saturating_sub(mib(160)) >> 20;
    let hog = scratch.hog(&format!("--log /tmp/signals-hog.log hold --mb {take_mb}"))?;
    ensure!(
        wait_log(
            Path::new("/tmp/signals-hog.log"),
            "ready",
            Duration::from_secs(120)
        )
        .is_some(),
        "the hog did not come up"
    );
    run_program(
        "dd",
        &["if=/dev/nvme0n1", "of=/dev/null", "bs=1M", "count=400"],
    )?;
    drop(hog);
    Ok(())
}
