//! Loops that do one thing as often as they are told, for `cargo xtask bench cost`. Each prints one JSON line: events
//! and times.

use std::fs;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, ensure};
use rustix::pipe::pipe;
use rustix::thread::{CpuSet, clock_nanosleep_absolute, sched_setaffinity};
use rustix::time::{ClockId, Timespec, clock_gettime};
use tests::guest::clock::now_ns;

use super::memory;

fn say(events: u64, wall_ns: u64, cpu_ns: u64) {
    println!("{{\"events\":{events},\"wall_ns\":{wall_ns},\"cpu_ns\":{cpu_ns}}}");
}

/// CPU time of this process so far.
fn own_cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Maps, touches and unmaps 64 MiB.
pub(crate) fn faults(rounds: u32) {
    let (wall_ns, cpu_ns) = (now_ns(), own_cpu_ns());
    let mut faults = 0_u64;
    for _ in 0..rounds {
        // Freed at the end of the round, back to the kernel: a new mapping each time.
        let mut block = vec![0_u8; memory::BLOCK_BYTES];
        for page in block.chunks_mut(memory::PAGE_BYTES) {
            page[0] = 1;
            faults += 1;
        }
        std::hint::black_box(&block);
    }
    say(faults, now_ns() - wall_ns, own_cpu_ns() - cpu_ns);
}

/// A million steps of arithmetic in each round.
pub(crate) fn compute(rounds: u32) {
    let (wall_ns, cpu_ns) = (now_ns(), own_cpu_ns());
    let mut state = 1_u64;
    for _ in 0..rounds {
        for _ in 0..1_000_000 {
            state = std::hint::black_box(state.rotate_left(5) ^ 0x9e37_79b9);
        }
    }
    say(rounds.into(), now_ns() - wall_ns, own_cpu_ns() - cpu_ns);
}

/// A shell forks children that end at once. Their CPU time is that of the cgroup.
pub(crate) fn forks(rounds: u32) -> anyhow::Result<()> {
    let script = format!("i=0; while [ $i -lt {rounds} ]; do (:); i=$((i+1)); done");
    let (wall_ns, cpu_ns) = (now_ns(), cgroup_cpu_ns()?);
    let status = Command::new("sh").args(["-c", &script]).status()?;
    ensure!(status.success(), "the shell ended with {status}");
    let (wall_ns, cpu_ns) = (now_ns() - wall_ns, cgroup_cpu_ns()? - cpu_ns);
    say(rounds.into(), wall_ns, cpu_ns);
    Ok(())
}

/// CPU time of all that ran in this process's cgroup so far; v2 only.
fn cgroup_cpu_ns() -> anyhow::Result<u64> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let path = own
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .context("no cgroup v2")?;
    let stat = fs::read_to_string(format!("/sys/fs/cgroup{path}/cpu.stat"))?;
    let used = stat
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))
        .context("cpu.stat has no usage_usec")?;
    Ok(used.parse::<u64>()? * 1_000)
}

/// A byte goes to another thread on the same CPU and back, through two pipes: two switches a round.
pub(crate) fn switches(rounds: u32) -> anyhow::Result<()> {
    let mut one_cpu = CpuSet::new();
    one_cpu.set(0);
    sched_setaffinity(None, &one_cpu).context("staying on CPU 0")?;
    let (there_out, there_in) = pipe()?;
    let (back_out, back_in) = pipe()?;
    let echo = thread::spawn(move || -> rustix::io::Result<()> {
        let mut byte = [0];
        for _ in 0..rounds {
            rustix::io::read(&there_out, &mut byte)?;
            rustix::io::write(&back_in, &byte)?;
        }
        Ok(())
    });
    let (wall_ns, cpu_ns) = (now_ns(), own_cpu_ns());
    let mut byte = [0];
    for _ in 0..rounds {
        rustix::io::write(&there_in, &byte)?;
        rustix::io::read(&back_out, &mut byte)?;
    }
    let (wall_ns, cpu_ns) = (now_ns() - wall_ns, own_cpu_ns() - cpu_ns);
    echo.join()
        .map_err(|_| anyhow::anyhow!("the other thread has panicked"))??;
    say(u64::from(rounds) * 2, wall_ns, cpu_ns);
    Ok(())
}

/// Sleeps until one fixed time after the other, however late the one before was; of each how late, nanoseconds.
pub(crate) fn ticks(every_ns: u64, count: u64) -> anyhow::Result<Vec<u64>> {
    let mut late = Vec::new();
    let begin = now_ns();
    for tick in 1..=count {
        let due = begin + tick * every_ns;
        let at = Timespec {
            tv_sec: i64::try_from(due / 1_000_000_000)?,
            tv_nsec: i64::try_from(due % 1_000_000_000)?,
        };
        clock_nanosleep_absolute(ClockId::Monotonic, &at).context("sleeping")?;
        late.push(now_ns() - due);
    }
    Ok(late)
}
