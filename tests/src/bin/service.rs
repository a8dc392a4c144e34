//! A service for measurements: requests come at fixed times, however long the ones before them take, and cost CPU time
//! on a few threads.
//!
//! At each interval comes the next burst of the pattern: so many requests at once. What a request waited, from when it
//! came until it was done, is its latency. After the warm-up it says `full` to its log, after the measurement it writes
//! one JSON object to `--result` and goes on, so that nobody gets its CPU time while others are still measured.

#![forbid(unsafe_code)]

use std::fs;
use std::hint::black_box;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use tests::guest::burst::Latencies;
use tests::guest::clock::now_ns;

#[derive(Parser)]
struct Arguments {
    /// Threads that answer.
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// Requests of each burst, one after the other, for ever.
    #[arg(long, value_delimiter = ',')]
    pattern: Vec<u32>,
    /// Between two bursts, milliseconds.
    #[arg(long, default_value_t = 100)]
    every_ms: u64,
    /// CPU time of a request, microseconds.
    #[arg(long, default_value_t = 1000)]
    cost_us: u64,
    /// Not measured.
    #[arg(long)]
    warm_up_s: u64,
    /// Measured.
    #[arg(long)]
    seconds: u64,
    /// Where the result goes.
    #[arg(long)]
    result: PathBuf,
    /// Appends events to this file.
    #[arg(long)]
    log: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let (send, requests) = channel::<u64>();
    let requests = Arc::new(Mutex::new(requests));
    let (done, latencies) = channel();
    for _ in 0..arguments.threads.max(1) {
        let (requests, done) = (Arc::clone(&requests), done.clone());
        let cost_ns = arguments.cost_us * 1000;
        thread::spawn(move || answer(&requests, &done, cost_ns));
    }
    say(&arguments, "ready")?;
    let every_ns = arguments.every_ms.max(1) * 1_000_000;
    let start_ns = now_ns() + every_ns;
    let measured_ns = start_ns + arguments.warm_up_s * 1_000_000_000;
    let end_ns = measured_ns + arguments.seconds * 1_000_000_000;
    let (mut at_ns, mut is_measured, mut result) = (start_ns, false, Some(Latencies::default()));
    for burst in arguments.pattern.iter().cycle() {
        while now_ns() < at_ns {
            thread::sleep(Duration::from_nanos(at_ns - now_ns()));
        }
        if !is_measured && at_ns >= measured_ns {
            is_measured = true;
            say(&arguments, "full")?;
        }
        for _ in 0..*burst {
            send.send(at_ns)?;
        }
        for (came_ns, took_ns) in latencies.try_iter() {
            if let Some(result) = result
                .as_mut()
                .filter(|_| (measured_ns..end_ns).contains(&came_ns))
            {
                result.0.push(took_ns);
            }
        }
        // A second more for those that came last.
        if at_ns > end_ns + 1_000_000_000
            && let Some(result) = result.take()
        {
            let text = serde_json::to_string(&result)?;
            let new = arguments.result.with_extension("new");
            fs::write(&new, text)?;
            fs::rename(&new, &arguments.result)?;
        }
        at_ns += every_ns;
    }
    Ok(())
}

/// When each request came, and how long it took.
fn answer(requests: &Mutex<Receiver<u64>>, done: &Sender<(u64, u64)>, cost_ns: u64) {
    loop {
        let request = requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        let Ok(came_ns) = request else { return };
        let until_ns = thread_ns() + cost_ns;
        while thread_ns() < until_ns {
            // Not `spin_loop`: an emulator leaves its loop at each `pause`, a microsecond for the nanosecond that the
            // guest's clock counts.
            for index in 0..2000_u32 {
                black_box(index);
            }
        }
        if done.send((came_ns, now_ns() - came_ns)).is_err() {
            return;
        }
    }
}

/// CPU time of this thread.
fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn say(arguments: &Arguments, word: &str) -> anyhow::Result<()> {
    let mut log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&arguments.log)?;
    writeln!(log, "{word} {} 0", now_ns())?;
    Ok(())
}
