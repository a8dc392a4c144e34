//! A workload for the guests: grows, holds, caches, multiplies, faults or spins, and says when it was told to go.
//!
//! With `--log FILE` each event is one line `WORD NS [MIB]` (`CLOCK_MONOTONIC`): `ready`, `start`, `at`, `full`, `sigterm`.

#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;
use std::process::{Command, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use signal_hook::consts::{SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tests::guest::clock::now_ns;

const PAGE_BYTES: usize = 4096;
/// Larger than what malloc ever serves from its heap (32 MiB), so that each block is a mapping of its own, untouched and zero.
const BLOCK_BYTES: usize = 64 << 20;
const STEP: Duration = Duration::from_millis(10);
const SHELL_STATUS_OF_SIGTERM: i32 = 143;

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
        /// Touched at once, before the ramp.
        #[arg(long, default_value_t = 0)]
        pre_mb: usize,
        /// Stops growing here and holds; otherwise grows until it is killed.
        #[arg(long)]
        max_mb: Option<usize>,
        /// Starts the ramp on SIGUSR1 only.
        #[arg(long)]
        wait_usr1: bool,
    },
    /// Touches memory and sleeps.
    Hold {
        /// Size.
        #[arg(long)]
        mb: usize,
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
    /// Starts processes that hold memory each, and sleeps.
    Fork {
        /// How many.
        #[arg(long)]
        n: usize,
        /// Size of each.
        #[arg(long, default_value_t = 1)]
        mb: usize,
    },
    /// Maps, touches and unmaps memory in a loop; prints one JSON line with faults and times.
    Faults {
        /// Rounds of 64 MiB.
        #[arg(long)]
        rounds: u32,
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

/// Writes events; failing to is no reason to stop hogging.
struct Log(Option<File>);

impl Log {
    fn event(&self, word: &str, touched_bytes: usize) {
        let Some(mut file) = self.0.as_ref() else {
            return;
        };
        let line = format!("{word} {} {}\n", now_ns(), touched_bytes >> 20);
        if let Err(error) = file.write_all(line.as_bytes()) {
            eprintln!("hog: cannot write to its log: {error}");
        }
    }
}

fn main() -> anyhow::Result<()> {
    let Arguments { manners, mode } = Arguments::parse();
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
    let go = Arc::new(AtomicBool::new(false));
    answer_signals(
        manners.on_term,
        Log(file.as_ref().map(File::try_clone).transpose()?),
        Arc::clone(&go),
    )?;
    let log = Log(file);
    match mode {
        Mode::Ramp {
            rate_mb_s,
            pre_mb,
            max_mb,
            wait_usr1,
        } => {
            let mut memory = Memory::default();
            memory.grow_to(pre_mb << 20);
            log.event("ready", memory.touched_bytes);
            while wait_usr1 && !go.load(Ordering::Acquire) {
                thread::park();
            }
            ramp(&mut memory, rate_mb_s, max_mb.map(|mb| mb << 20), &log);
            sleep_for_ever();
        }
        Mode::Hold { mb } => {
            let mut memory = Memory::default();
            memory.grow_to(mb << 20);
            log.event("ready", memory.touched_bytes);
            sleep_for_ever();
        }
        Mode::File { mb, path } => {
            let mut file = BufWriter::new(
                File::create(&path).with_context(|| format!("creating {}", path.display()))?,
            );
            let block = vec![1_u8; 1 << 20];
            for _ in 0..mb {
                file.write_all(&block)?;
            }
            file.into_inner()?.sync_all()?;
            log.event("ready", mb << 20);
            sleep_for_ever();
        }
        Mode::Fork { n, mb } => {
            let own = std::env::current_exe()?;
            let mb_each = mb.to_string();
            for _ in 0..n {
                Command::new(&own)
                    .args(["hold", "--mb", &mb_each])
                    .spawn()
                    .context("starting a child")?;
            }
            log.event("ready", (n * mb) << 20);
            sleep_for_ever();
        }
        Mode::Faults { rounds } => fault_loop(rounds),
        Mode::Spin { threads, seconds } => {
            for _ in 0..threads.max(1) {
                thread::spawn(|| {
                    loop {
                        std::hint::spin_loop();
                    }
                });
            }
            match seconds {
                Some(seconds) => thread::sleep(Duration::from_secs(seconds)),
                None => sleep_for_ever(),
            }
        }
    }
    Ok(())
}

/// A thread that waits for signals: SIGTERM is answered while the ramp is in the middle of a step.
fn answer_signals(on_term: OnTerm, log: Log, go: Arc<AtomicBool>) -> anyhow::Result<()> {
    let main = thread::current();
    let mut signals = Signals::new([SIGTERM, SIGUSR1]).context("installing signal handlers")?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                go.store(true, Ordering::Release);
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

/// Anonymous memory that is mapped in blocks and touched page by page.
#[derive(Default)]
struct Memory {
    blocks: Vec<Vec<u8>>,
    touched_bytes: usize,
}

impl Memory {
    fn grow_to(&mut self, bytes: usize) {
        while self.touched_bytes < bytes {
            let offset = self.touched_bytes % BLOCK_BYTES;
            if self.touched_bytes / BLOCK_BYTES == self.blocks.len() {
                self.blocks.push(vec![0; BLOCK_BYTES]);
            }
            if let Some(block) = self.blocks.last_mut() {
                block[offset] = 1;
            }
            self.touched_bytes += PAGE_BYTES;
        }
    }
}

fn ramp(memory: &mut Memory, rate_mb_s: u64, max_bytes: Option<usize>, log: &Log) {
    let base_bytes = memory.touched_bytes;
    let start = Instant::now();
    log.event("start", base_bytes);
    let mut told_bytes = base_bytes;
    loop {
        let grown_bytes = u128::from(rate_mb_s << 20) * start.elapsed().as_micros() / 1_000_000;
        let want_bytes =
            base_bytes.saturating_add(usize::try_from(grown_bytes).unwrap_or(usize::MAX));
        memory.grow_to(max_bytes.map_or(want_bytes, |max| want_bytes.min(max)));
        if memory.touched_bytes - told_bytes >= 256 << 20 {
            told_bytes = memory.touched_bytes;
            log.event("at", told_bytes);
        }
        if max_bytes.is_some_and(|max| memory.touched_bytes >= max) {
            log.event("full", memory.touched_bytes);
            return;
        }
        thread::sleep(STEP);
    }
}

fn fault_loop(rounds: u32) {
    let wall_ns = now_ns();
    let cpu_ns = thread_cpu_ns();
    let mut faults = 0_u64;
    for _ in 0..rounds {
        // Freed at the end of the round, back to the kernel: a new mapping each time.
        let mut block = vec![0_u8; BLOCK_BYTES];
        for page in block.chunks_mut(PAGE_BYTES) {
            page[0] = 1;
            faults += 1;
        }
        std::hint::black_box(&block);
    }
    let (wall_ns, cpu_ns) = (now_ns() - wall_ns, thread_cpu_ns() - cpu_ns);
    println!("{{\"faults\":{faults},\"wall_ns\":{wall_ns},\"cpu_ns\":{cpu_ns}}}");
}

fn thread_cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn sleep_for_ever() -> ! {
    loop {
        thread::park();
    }
}
