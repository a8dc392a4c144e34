//! Processes: with memory, or only with a PID.

use std::process::{Command, Stdio};

use anyhow::Context as _;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use tests::guest::clock::now_ns;

use super::{Go, Growth, Log, sleep_for_ever};

/// `n` processes that hold `mb` MiB each.
pub(crate) fn fork(n: usize, mb: usize) -> anyhow::Result<()> {
    let own = std::env::current_exe()?;
    let mb_each = mb.to_string();
    for _ in 0..n {
        Command::new(&own)
            .args(["hold", "--mb", &mb_each])
            .spawn()
            .context("starting a child")?;
    }
    Ok(())
}

/// Sleeping processes of one thread, which end when this one does.
pub(crate) fn pids(growth: &Growth, go: &Go, log: &Log) -> anyhow::Result<()> {
    let own = std::env::current_exe()?;
    growth.run(go, log, |_| {
        Command::new(&own)
            .arg("sleep")
            .stdin(Stdio::null())
            .spawn()
            .map(drop)
    });
    Ok(())
}

/// One of them: the kernel kills it when the main thread of its parent ends.
pub(crate) fn sleep_while_the_parent_lives() -> anyhow::Result<()> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::KILL)).context("asking for a signal")?;
    if getppid() != parent {
        // It ended before the kernel was asked.
        return Ok(());
    }
    sleep_for_ever()
}

/// A byte goes to another thread on the same CPU and back, through two pipes.
pub(crate) fn switch_loop(rounds: u32) -> anyhow::Result<()> {
    let mut one_cpu = CpuSet::new();
    one_cpu.set(0);
    sched_setaffinity(None, &one_cpu).context("staying on CPU 0")?;
    let (there_read, there_write) = rustix::pipe::pipe().context("making a pipe")?;
    let (back_read, back_write) = rustix::pipe::pipe().context("making a pipe")?;
    let begin_ns = now_ns();
    let begin_cpu = clock_gettime(ClockId::ProcessCPUTime);
    let other = std::thread::spawn(move || -> rustix::io::Result<()> {
        let mut byte = [0; 1];
        for _ in 0..rounds {
            rustix::io::read(&there_read, &mut byte)?;
            rustix::io::write(&back_write, &byte)?;
        }
        Ok(())
    });
    let mut byte = [0; 1];
    for _ in 0..rounds {
        rustix::io::write(&there_write, &byte)?;
        rustix::io::read(&back_read, &mut byte)?;
    }
    match other.join() {
        Ok(ended) => ended.context("the other thread")?,
        Err(_) => anyhow::bail!("the other thread panicked"),
    }
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu_ns = (cpu.tv_sec - begin_cpu.tv_sec) * 1_000_000_000 + cpu.tv_nsec - begin_cpu.tv_nsec;
    println!(
        r#"{{"switches": {}, "wall_ns": {}, "cpu_ns": {cpu_ns}}}"#,
        u64::from(rounds) * 2,
        now_ns() - begin_ns,
    );
    Ok(())
}
