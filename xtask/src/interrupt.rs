//! Ctrl-C and SIGTERM: nothing is left behind.
//!
//! Problem: a process that a signal ends at once leaves its temporary folders, its guests and its builds behind. Approach: the
//! signal only ends the programs that this one has started; then what waits for them fails, and every owner clears away what is
//! its own on the way out, as after any other failure. [`check`] is for what waits without a program.

use std::fmt;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::progress::say;

/// A program that was asked to end has this long before it is killed.
const GRACE: Duration = Duration::from_secs(3);
const POLL_EVERY: Duration = Duration::from_millis(5);

static RECEIVED: AtomicI32 = AtomicI32::new(0);
static RUNNING: Mutex<Vec<Arc<Started>>> = Mutex::new(Vec::new());

/// The work was ended by a signal.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("interrupted: its guests, temporary folders and locks are cleared away")
    }
}

impl std::error::Error for Interrupted {}

/// Takes over SIGINT, SIGTERM and, unless it is ignored (`nohup`), SIGHUP.
pub(crate) fn install() -> Result<()> {
    let mut handled = vec![SIGINT, SIGTERM];
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !ignores_hangup(&status) {
        handled.push(SIGHUP);
    }
    let mut signals = Signals::new(handled).context("cannot handle signals")?;
    thread::spawn(move || {
        for signal in signals.forever() {
            received(signal);
        }
    });
    Ok(())
}

fn ignores_hangup(status: &str) -> bool {
    let mask = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

fn received(signal: i32) {
    let first = RECEIVED.swap(signal, Ordering::SeqCst) == 0;
    if !first {
        end_all(Signal::KILL);
        return;
    }
    say(
        "interrupted",
        "ending what was started; once more ends it by force",
    );
    end_all(Signal::INT);
    thread::spawn(|| {
        thread::sleep(GRACE);
        end_all(Signal::KILL);
    });
}

fn end_all(signal: Signal) {
    for started in running().iter() {
        started.end(signal);
    }
}

fn running() -> MutexGuard<'static, Vec<Arc<Started>>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails when a signal has come.
pub(crate) fn check() -> Result<()> {
    match status() {
        Some(_) => Err(Interrupted.into()),
        None => Ok(()),
    }
}

/// The exit status of this process when a signal has come.
pub(crate) fn status() -> Option<u8> {
    match RECEIVED.load(Ordering::SeqCst) {
        0 => None,
        signal => u8::try_from(128 + signal).ok(),
    }
}

/// Who gets the signals of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// The program is in a process group of its own: it and all that it starts is ended by this process alone.
    Separate,
    /// The program has the terminal.
    Terminal,
}

/// A program that was started; it is ended, with its process group, when a signal comes and when this is dropped.
#[derive(Debug)]
pub(crate) struct Program(Arc<Started>);

#[derive(Debug)]
struct Started {
    child: Mutex<Child>,
    group: Group,
}

impl Program {
    /// Starts `command`.
    pub(crate) fn start(command: &mut Command, group: Group) -> Result<Self> {
        if group == Group::Separate {
            command.process_group(0);
        }
        let name = command.get_program().to_string_lossy().into_owned();
        // Held while it starts: a signal that comes now finds it in the list.
        let mut running = running();
        check()?;
        let child = command
            .spawn()
            .with_context(|| format!("cannot start `{name}`: is it installed?"))?;
        let started = Arc::new(Started {
            child: Mutex::new(child),
            group,
        });
        running.push(Arc::clone(&started));
        Ok(Self(started))
    }

    /// Its standard output and standard error, if they are pipes and were not taken before.
    pub(crate) fn pipes(&self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        let mut child = self.0.lock();
        (child.stdout.take(), child.stderr.take())
    }

    /// Waits for its end. A signal that has come meanwhile is a failure.
    pub(crate) fn wait(&self) -> Result<ExitStatus> {
        loop {
            // Not held while waiting: a signal ends it through the same lock.
            let ended = self.0.lock().try_wait();
            if let Some(status) = ended.context("cannot wait for a program")? {
                check()?;
                return Ok(status);
            }
            thread::sleep(POLL_EVERY);
        }
    }

    /// Ends it by force.
    pub(crate) fn kill(&self) {
        self.0.end(Signal::KILL);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.0.end(Signal::KILL);
        // It fails when the program has been waited for, which is the usual case.
        let _waited = self.0.lock().wait();
        running().retain(|started| !Arc::ptr_eq(started, &self.0));
    }
}

impl Started {
    fn lock(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends `signal` unless it has been waited for: its id may be another's by then.
    fn end(&self, signal: Signal) {
        let mut child = self.lock();
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let Some(pid) = pid else { return };
        // It may have ended just now, which is what is wanted.
        let _gone: Result<(), io::Error> = match self.group {
            Group::Separate => kill_process_group(pid, signal),
            Group::Terminal => kill_process(pid, signal),
        }
        .map_err(Into::into);
    }
}

/// Waits until `done` says yes, without a limit; a signal ends it.
pub(crate) fn wait_until(every: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    while !done()? {
        let until = Instant::now() + every;
        while Instant::now() < until {
            check()?;
            thread::sleep(every.min(Duration::from_millis(50)));
        }
    }
    check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_program_ends_with_all_that_it_has_started() {
        use std::io::{BufRead as _, BufReader};
        use std::process::Stdio;

        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(Stdio::piped());
        let program = Program::start(&mut command, Group::Separate).unwrap();
        let (stdout, _) = program.pipes();
        let mut line = String::new();
        BufReader::new(stdout.unwrap())
            .read_line(&mut line)
            .unwrap();
        let pid: u32 = line.trim().parse().unwrap();
        let runs = || {
            std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z "))
        };
        assert!(runs(), "process {pid}");
        drop(program);
        wait_until(Duration::from_millis(10), || Ok(!runs())).unwrap();
    }

    #[test]
    fn nohup_is_seen() {
        assert!(ignores_hangup("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("Name:\tx\nSigIgn:\t0000000000001000\n"));
        assert!(!ignores_hangup(""));
    }
}
