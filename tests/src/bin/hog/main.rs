//! A workload for the guests: takes memory, page cache, disk space, disk time, inodes, PIDs or CPU time, and says when
//! it was told to go.
//!
//! With `--log FILE` each event is one line `WORD NS AMOUNT` (`CLOCK_MONOTONIC`): `ready`, `start`, `at`, `full` (its
//! goal is reached), `refused` (the kernel gave no more), `sigterm`. The amount is in the mode's unit: MiB, inodes,
//! processes or rounds. `full` and `refused` are also said on standard output.

#![forbid(unsafe_code)]

mod files;
mod loops;
mod memory;
mod processes;
mod sockets;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use plimsoll::host::syscall::sched_idle;
use signal_hook::consts::{SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tests::guest::burst::Latencies;
use tests::guest::clock::now_ns;

use self::memory::Memory;

/// Between two steps of what grows at a rate.
const STEP: Duration = Duration::from_millis(10);
const SHELL_STATUS_OF_SIGTERM: i32 = 143;
/// How fast memory grows beside a storm.
const STORM_MB_S: u64 = 64;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    manners: Manners,
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Args)]
struct Manners {
    /// What SIGTERM does: leave, only be noted, or nothing at all.
    #[arg(long, value_enum, default_value_t = OnTerm::Exit, global = true)]
    on_term: OnTerm,
    /// Appends events to this file.
    #[arg(long, global = true)]
    log: Option<PathBuf>,
    /// Runs on the CPUs of this NUMA node, so that its memory comes from there as long as there is any.
    #[arg(long, global = true, value_name = "NODE")]
    numa_node: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnTerm {
    Exit,
    Log,
    Ignore,
}

#[derive(Subcommand)]
enum Mode {
    /// Touches anonymous memory at a fixed rate, in steps of 10 ms.
    Ramp {
        /// Growth.
        #[arg(long)]
        rate_mb_s: u64,
        /// Makes up for none of the time in which it was kept from growing: no step is more than twice as large as it
        /// should be.
        #[arg(long)]
        steady: bool,
        /// Touched at once, before the ramp.
        #[arg(long, default_value_t = 0)]
        pre_mb: usize,
        /// Stops growing here and holds; otherwise grows until it is killed.
        #[arg(long)]
        max_mb: Option<usize>,
        /// Starts the ramp on SIGUSR1 only.
        #[arg(long)]
        wait_usr1: bool,
        /// Fills the pages with what does not compress.
        #[arg(long)]
        noise: bool,
        /// Frees it lazily (MADV_FREE) as it grows, and writes it again: the kernel lists it as page cache.
        #[arg(long, conflicts_with = "noise")]
        lazily: bool,
        /// Written into a memfd before, which stays open.
        #[arg(long, default_value_t = 0)]
        shared_mb: usize,
        /// Processes that are started before and hold memory, too.
        #[arg(long, default_value_t = 0)]
        children: usize,
        /// Size of each of them.
        #[arg(long, default_value_t = 1)]
        children_mb: usize,
    },
    /// Touches memory and gives it back; prints one JSON line with how long giving back took.
    Unmap {
        /// Size.
        #[arg(long)]
        mb: usize,
        /// A memfd instead of anonymous memory.
        #[arg(long)]
        shared: bool,
    },
    /// Touches memory and sleeps.
    Hold {
        /// Size.
        #[arg(long)]
        mb: usize,
        /// Says so on standard output when it has it.
        #[arg(long)]
        say: bool,
    },
    /// Touches memory and makes it hard to get back: SCHED_IDLE, on one CPU, and it holds the lock of its memory nearly
    /// all the time.
    Resist {
        /// Size.
        #[arg(long)]
        mb: usize,
        /// The CPU.
        #[arg(long, default_value_t = 0)]
        cpu: usize,
    },
    /// Touches memory, and gives most of it back on SIGUSR1.
    GiveBack {
        /// Size.
        #[arg(long)]
        mb: usize,
        /// What it keeps.
        #[arg(long)]
        keep_mb: usize,
    },
    /// Writes a file, so that its pages are in the page cache, and sleeps.
    File {
        /// Size.
        #[arg(long)]
        mb: usize,
        /// The file.
        #[arg(long)]
        path: PathBuf,
    },
    /// Reads a file without blocks and holds all its pages in pipes, so that its page cache cannot be dropped.
    Pin {
        /// Size.
        #[arg(long)]
        mb: usize,
        /// The file.
        #[arg(long)]
        path: PathBuf,
    },
    /// Fills the queues of netlink sockets, which no cgroup is charged for, one socket after the other.
    Queues {
        #[command(flatten)]
        growth: Growth,
    },
    /// Writes a memfd, which stays open, and sleeps.
    Memfd {
        /// Size.
        #[arg(long)]
        mb: usize,
    },
    /// Writes a file, so that its pages are clean page cache, and on SIGUSR1 takes as much anonymous memory.
    CacheThenMemory {
        /// Size of each.
        #[arg(long)]
        mb: usize,
        /// The file.
        #[arg(long)]
        path: PathBuf,
    },
    /// On SIGUSR1, starts processes that start processes, as fast as the kernel lets them and for ever, and takes
    /// memory.
    Storm {
        /// Size.
        #[arg(long)]
        mb: usize,
    },
    /// What `storm` starts.
    #[command(hide = true)]
    Spawn,
    /// Starts processes that hold memory each, and sleeps.
    Fork {
        /// How many.
        #[arg(long)]
        n: usize,
        /// Size of each.
        #[arg(long, default_value_t = 1)]
        mb: usize,
    },
    /// Lets memory grow and shrink between two sizes, for ever.
    Flap {
        /// The smaller size.
        #[arg(long)]
        low_mb: usize,
        /// The larger size.
        #[arg(long)]
        high_mb: usize,
        /// Time from one peak to the next; half of it is spent at each size.
        #[arg(long)]
        period_ms: u64,
        /// Starts on SIGUSR1 only; until then it has the smaller size.
        #[arg(long)]
        wait_usr1: bool,
    },
    /// Fills a directory with bytes at a fixed rate, and then sleeps.
    Fill {
        /// The directory; it is made.
        #[arg(long)]
        dir: PathBuf,
        #[command(flatten)]
        growth: Growth,
    },
    /// Fills a directory with empty files at a fixed rate, and then sleeps.
    Inodes {
        /// The directory; it is made.
        #[arg(long)]
        dir: PathBuf,
        #[command(flatten)]
        growth: Growth,
    },
    /// Starts sleeping processes at a fixed rate, and then sleeps. They end with it.
    Pids {
        #[command(flatten)]
        growth: Growth,
    },
    /// Writes a file and reads it again and again: its pages stay in the page cache, and are used.
    Reread {
        /// The file.
        #[arg(long)]
        path: PathBuf,
        /// Size; without it the file is there and only read.
        #[arg(long)]
        mb: Option<usize>,
        /// Rests this long after each round.
        #[arg(long, default_value_t = 100)]
        pause_ms: u64,
        /// Reads it so often, and then sleeps with the pages in the page cache; without it for ever.
        #[arg(long)]
        rounds: Option<u64>,
        /// Starts writing on SIGUSR1 only.
        #[arg(long)]
        wait_usr1: bool,
    },
    /// Reads a file or disk past the page cache, for ever.
    Direct {
        /// The file.
        #[arg(long)]
        path: PathBuf,
        /// How many threads read at the same time.
        #[arg(long, default_value_t = 1)]
        threads: u64,
        /// Each rests this long after each read.
        #[arg(long, default_value_t = 0)]
        pause_ms: u64,
    },
    /// What `pids` starts.
    #[command(hide = true)]
    Sleep,
    /// Maps, touches and unmaps memory in a loop; prints one JSON line with faults and times.
    Faults {
        /// Rounds of 64 MiB.
        #[arg(long)]
        rounds: u32,
    },
    /// Forks children that end at once, in a loop; prints one JSON line with forks and times.
    Forks {
        /// How many.
        #[arg(long)]
        rounds: u32,
    },
    /// Lets two threads wake each other, in a loop; prints one JSON line with switches and times.
    Switches {
        /// To and fro.
        #[arg(long)]
        rounds: u32,
    },
    /// Asks for more huge pages than any machine has, in a loop, and ends. Each request is refused.
    HugeRequests {
        /// How many.
        #[arg(long)]
        count: u32,
    },
    /// Computes, in a loop; prints one JSON line with rounds and times.
    Compute {
        /// Rounds of a million steps.
        #[arg(long)]
        rounds: u32,
    },
    /// Sleeps until one fixed time after the other; prints one JSON line with how late each wake-up was, nanoseconds.
    Ticks {
        /// Between two of these times.
        #[arg(long)]
        every_us: u64,
        /// How many.
        #[arg(long)]
        count: u64,
    },
    /// Uses the CPU.
    Spin {
        /// Threads.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Stops after this time; otherwise runs until it is killed.
        #[arg(long)]
        seconds: Option<u64>,
    },
}

/// How something countable grows.
#[derive(Args)]
struct Growth {
    /// How many: MiB, files or processes.
    #[arg(long)]
    count: u64,
    /// How many in a second.
    #[arg(long)]
    rate_s: u64,
    /// Starts on SIGUSR1 only.
    #[arg(long)]
    wait_usr1: bool,
}

impl Growth {
    /// Makes one after the other until there are enough or the kernel refuses, and says which of both it was.
    fn run(&self, go: &Go, log: &Log, mut make: impl FnMut(u64) -> std::io::Result<()>) {
        log.event("ready", 0);
        if self.wait_usr1 {
            go.wait();
        }
        log.event("start", 0);
        let start = Instant::now();
        let mut made = 0;
        while made < self.count {
            let due = u128::from(self.rate_s) * start.elapsed().as_millis() / 1000 + 1;
            while made < self.count && u128::from(made) < due {
                if let Err(error) = make(made) {
                    println!("refused at {made}: {error}");
                    log.event("refused", made);
                    return;
                }
                made += 1;
            }
            thread::sleep(STEP);
        }
        log.goal(made);
    }
}

/// SIGUSR1 has come.
#[derive(Clone)]
struct Go(Arc<AtomicBool>);

impl Go {
    /// On the main thread only: that is the one which is woken.
    fn wait(&self) {
        while !self.0.load(Ordering::Acquire) {
            thread::park();
        }
    }
}

/// Writes events; failing to is no reason to stop hogging.
struct Log(Option<File>);

impl Log {
    fn event(&self, word: &str, amount: u64) {
        let Some(mut file) = self.0.as_ref() else {
            return;
        };
        let line = format!("{word} {} {amount}\n", now_ns());
        if let Err(error) = file.write_all(line.as_bytes()) {
            eprintln!("hog: cannot write to its log: {error}");
        }
    }

    /// It has what it was to take.
    fn goal(&self, amount: u64) {
        println!("reached {amount}");
        self.event("full", amount);
    }
}

fn main() -> anyhow::Result<()> {
    let Arguments { manners, mode } = Arguments::parse();
    match mode {
        Mode::Sleep => return processes::sleep_while_the_parent_lives(),
        Mode::Spawn => return processes::spawn_for_ever(),
        _ => {}
    }
    if let Some(node) = manners.numa_node {
        memory::run_on_numa_node(node)?;
    }
    let file = match &manners.log {
        Some(path) => Some(
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .with_context(|| format!("opening {}", path.display()))?,
        ),
        None => None,
    };
    let go = Go(Arc::new(AtomicBool::new(false)));
    answer_signals(
        manners.on_term,
        Log(file.as_ref().map(File::try_clone).transpose()?),
        go.clone(),
    )?;
    let log = Log(file);
    match mode {
        Mode::Ramp {
            rate_mb_s,
            steady,
            pre_mb,
            max_mb,
            wait_usr1,
            noise,
            lazily,
            shared_mb,
            children,
            children_mb,
        } => {
            let mut memory = match (noise, lazily) {
                (true, _) => Memory::of_noise(),
                (_, true) => Memory::freed_lazily(),
                _ => Memory::default(),
            };
            memory.grow_to(pre_mb << 20);
            let _shared = files::memfd(shared_mb)?;
            processes::fork_and_wait(children, children_mb)?;
            log.event("ready", memory.touched_mb());
            if wait_usr1 {
                go.wait();
            }
            let max_bytes = max_mb.map(|mb| mb << 20);
            memory::ramp(&mut memory, rate_mb_s, max_bytes, steady, &log);
            sleep_for_ever();
        }
        Mode::Unmap { mb, shared } => memory::unmap(mb, shared),
        Mode::Hold { mb, say } => {
            let mut memory = Memory::default();
            memory.grow_to(mb << 20);
            log.event("ready", memory.touched_mb());
            if say {
                println!("ready");
            }
            sleep_for_ever();
        }
        Mode::Resist { mb, cpu } => {
            let mut memory = Memory::default();
            memory.grow_to(mb << 20);
            memory::stay_on(cpu)?;
            sched_idle().context("choosing SCHED_IDLE")?;
            log.event("ready", memory.touched_mb());
            println!("ready");
            memory::hold_lock()
        }
        Mode::GiveBack { mb, keep_mb } => {
            let (mut kept, mut cache) = (Memory::default(), Memory::default());
            kept.grow_to(keep_mb << 20);
            cache.grow_to(mb.saturating_sub(keep_mb) << 20);
            log.event("ready", mb as u64);
            go.wait();
            drop(cache);
            log.event("gave", kept.touched_mb());
            sleep_for_ever();
        }
        Mode::Flap {
            low_mb,
            high_mb,
            period_ms,
            wait_usr1,
        } => {
            let mut low = Memory::default();
            low.grow_to(low_mb << 20);
            log.event("ready", low.touched_mb());
            if wait_usr1 {
                go.wait();
            }
            let half = Duration::from_millis(period_ms / 2);
            memory::flap(high_mb.saturating_sub(low_mb) << 20, half, &log)
        }
        Mode::File { mb, path } => {
            files::write(&path, mb)?;
            log.event("ready", mb as u64);
            sleep_for_ever();
        }
        Mode::Pin { mb, path } => {
            let _pipes = files::pin(&path, mb)?;
            log.event("ready", mb as u64);
            sleep_for_ever();
        }
        Mode::Fill { dir, growth } => {
            files::fill(&dir, &growth, &go, &log)?;
            sleep_for_ever();
        }
        Mode::Inodes { dir, growth } => {
            files::inodes(&dir, &growth, &go, &log)?;
            sleep_for_ever();
        }
        Mode::Reread {
            path,
            mb,
            pause_ms,
            rounds,
            wait_usr1,
        } => {
            log.event("ready", 0);
            if wait_usr1 {
                go.wait();
            }
            if let Some(mb) = mb {
                files::write(&path, mb)?;
            }
            let rounds = rounds.unwrap_or(u64::MAX);
            files::reread(&path, rounds, Duration::from_millis(pause_ms), &log)?;
            sleep_for_ever();
        }
        Mode::Direct {
            path,
            threads,
            pause_ms,
        } => files::direct(&path, threads, Duration::from_millis(pause_ms), &log),
        Mode::Fork { n, mb } => {
            processes::fork(n, mb)?;
            log.event("ready", (n * mb) as u64);
            sleep_for_ever();
        }
        Mode::Pids { growth } => {
            processes::pids(&growth, &go, &log)?;
            sleep_for_ever();
        }
        Mode::Queues { growth } => {
            sockets::fill(&growth, &go, &log)?;
            sleep_for_ever();
        }
        Mode::Memfd { mb } => {
            let _file = files::memfd(mb)?;
            log.event("ready", mb as u64);
            sleep_for_ever();
        }
        Mode::CacheThenMemory { mb, path } => {
            files::write(&path, mb)?;
            log.event("ready", mb as u64);
            go.wait();
            let mut memory = Memory::default();
            memory.grow_to(mb << 20);
            log.goal(memory.touched_mb());
            sleep_for_ever();
        }
        Mode::Storm { mb } => {
            log.event("ready", 0);
            go.wait();
            thread::spawn(processes::spawn_for_ever);
            let mut memory = Memory::default();
            memory::ramp(&mut memory, STORM_MB_S, Some(mb << 20), false, &log);
            sleep_for_ever();
        }
        // Done above.
        Mode::Sleep | Mode::Spawn => Ok(()),
        Mode::Faults { rounds } => {
            loops::faults(rounds);
            Ok(())
        }
        Mode::Forks { rounds } => loops::forks(rounds),
        Mode::Switches { rounds } => loops::switches(rounds),
        Mode::HugeRequests { count } => memory::request_huge_pages(count),
        Mode::Compute { rounds } => {
            loops::compute(rounds);
            Ok(())
        }
        Mode::Ticks { every_us, count } => {
            let late = Latencies(loops::ticks(every_us * 1000, count)?);
            println!("{}", serde_json::to_string(&late)?);
            Ok(())
        }
        Mode::Spin { threads, seconds } => {
            for _ in 0..threads.max(1) {
                thread::spawn(|| {
                    // No pause instruction: an emulated CPU stops for each.
                    let mut turns = 0_u64;
                    loop {
                        turns = std::hint::black_box(turns.wrapping_add(1));
                    }
                });
            }
            match seconds {
                Some(seconds) => {
                    thread::sleep(Duration::from_secs(seconds));
                    Ok(())
                }
                None => sleep_for_ever(),
            }
        }
    }
}

/// A thread that waits for signals: SIGTERM is answered while the ramp is in the middle of a step.
fn answer_signals(on_term: OnTerm, log: Log, go: Go) -> anyhow::Result<()> {
    let main = thread::current();
    let mut signals = Signals::new([SIGTERM, SIGUSR1]).context("installing signal handlers")?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                go.0.store(true, Ordering::Release);
                main.unpark();
                continue;
            }
            if on_term != OnTerm::Ignore {
                log.event("sigterm", 0);
            }
            if on_term == OnTerm::Exit {
                exit(SHELL_STATUS_OF_SIGTERM);
            }
        }
    });
    Ok(())
}

fn sleep_for_ever() -> ! {
    loop {
        thread::park();
    }
}
