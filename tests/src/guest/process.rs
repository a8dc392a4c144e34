//! Children, their exit and what they cost.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::clock::wait_until;

/// A child that does not outlive the test: killed and reaped on drop.
#[derive(Debug)]
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // An error here means that it is gone already, which is what is wanted.
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

impl Guard {
    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has not ended yet.
    ///
    /// # Errors
    /// As `wait4(2)`.
    pub fn is_running(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }

    /// Waits until it has ended; false when `timeout` passed before.
    #[must_use]
    pub fn wait_gone(&mut self, timeout: Duration) -> bool {
        wait_until(timeout, Duration::from_millis(5), || {
            matches!(self.0.try_wait(), Ok(Some(_)))
        })
    }

    /// Waits until it ends, and returns what it wrote to its pipes.
    ///
    /// # Errors
    /// As `read(2)` and `wait4(2)`.
    pub fn output(&mut self) -> io::Result<Output> {
        let mut stdout = Vec::new();
        if let Some(pipe) = &mut self.0.stdout {
            pipe.read_to_end(&mut stdout)?;
        }
        let mut stderr = Vec::new();
        if let Some(pipe) = &mut self.0.stderr {
            pipe.read_to_end(&mut stderr)?;
        }
        let status = self.0.wait()?;
        Ok(Output {
            status,
            stdout,
            stderr,
        })
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// As `kill(2)`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        send(self.pid(), signal)
    }
}

/// A shell that joins the cgroup, and then runs `script`. It says nothing.
///
/// # Errors
/// It cannot be started.
pub fn shell_in(cgroup: &Path, script: &str) -> anyhow::Result<Guard> {
    let script = format!("echo $$ > {}/cgroup.procs && {script}", cgroup.display());
    let child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Ok(Guard(child.context("starting a shell")?))
}

/// A hog that joins the cgroup first.
///
/// # Errors
/// As [`shell_in`].
pub fn hog_in(cgroup: &Path, arguments: &str) -> anyhow::Result<Guard> {
    let hog = program("hog");
    shell_in(cgroup, &format!("exec {} {arguments}", hog.display()))
}

/// Sends a signal to a process.
///
/// # Errors
/// As `kill(2)`.
pub fn send(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("no such pid"))?;
    Ok(kill_process(pid, signal)?)
}

/// The program of the same build beside this one, or the guest's own command of that name.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|own| Some(own.parent()?.join(name)));
    beside
        .filter(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from(name))
}

/// Runs a command to its end.
///
/// # Errors
/// It cannot be started, or fails; with its standard error.
pub fn run_program(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// CPU time of all threads of a process so far, nanoseconds: the sum of `/proc/PID/task/*/schedstat`. Threads that have
/// ended are not in it.
///
/// # Errors
/// The process is gone, or the kernel has no `CONFIG_SCHED_INFO`.
pub fn cpu_ns(pid: u32) -> io::Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        sum += text
            .split(' ')
            .next()
            .and_then(|ns| ns.parse::<u64>().ok())
            .unwrap_or(0);
    }
    Ok(sum)
}

/// Resident memory of a process (`VmRSS`), bytes.
///
/// # Errors
/// The process is gone.
pub fn rss_bytes(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    Ok(kib.unwrap_or(0) * 1024)
}

/// Waits until a line of the hog's log starts with `word`; its time.
#[must_use]
pub fn wait_log(path: &Path, word: &str, timeout: Duration) -> Option<u64> {
    let mut found = None;
    wait_until(timeout, Duration::from_millis(10), || {
        found = read_log(path, word);
        found.is_some()
    });
    found
}

/// The time of the first event `word` in a hog's log.
#[must_use]
pub fn read_log(path: &Path, word: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(' ');
        (fields.next() == Some(word)).then(|| fields.next()?.parse().ok())?
    })
}
