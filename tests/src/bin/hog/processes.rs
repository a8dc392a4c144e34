//! Processes: with memory, or only with a PID.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::{Go, Growth, Log, sleep_for_ever};

/// Between two attempts of one process of a storm: all of them share the guest's one emulated CPU with the agent.
const BETWEEN_SPAWNS: Duration = Duration::from_millis(2);

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

/// The same, and it returns when each of them holds its memory: then it has said so on its standard output.
pub(crate) fn fork_and_wait(n: usize, mb: usize) -> anyhow::Result<()> {
    let own = std::env::current_exe()?;
    let mb_each = mb.to_string();
    for _ in 0..n {
        let mut child = Command::new(&own)
            .args(["hold", "--say", "--mb", &mb_each])
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a child")?;
        let mut said = [0];
        let stdout = child.stdout.as_mut().context("a child without stdout")?;
        stdout
            .read_exact(&mut said)
            .context("a child ended before it held its memory")?;
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

/// Starts one process after the other that does the same: at a limit of processes, one takes each place that falls
/// free.
pub(crate) fn spawn_for_ever() -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    loop {
        // Refused at the limit: then again.
        let _refused = Command::new(&program)
            .arg("spawn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        thread::sleep(BETWEEN_SPAWNS);
    }
}
