//! The process that a guest runs on: started, read from, and never left behind.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, SyncSender};

use anyhow::{Context as _, Result, ensure};

use crate::interrupt;
use crate::progress::say;

/// Reads of the console that may wait for the caller; then the guest waits.
const READS_QUEUED_MAX: usize = 64;

/// What a guest runs on, QEMU or user-mode Linux, while it runs; killed when dropped early.
pub(super) struct Running {
    name: &'static str,
    child: Child,
    errors: PathBuf,
}

impl Running {
    /// Starts it, which people call `name`; its errors go to a file in `work`.
    pub(super) fn start(
        name: &'static str,
        mut command: Command,
        stdin: Stdio,
        work: &Path,
    ) -> Result<Self> {
        let errors = work.join("machine.stderr");
        let log =
            File::create(&errors).with_context(|| format!("cannot create {}", errors.display()))?;
        command.stdin(stdin).stdout(Stdio::piped()).stderr(log);
        let child =
            interrupt::spawn(&mut command).with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name,
            child,
            errors,
        })
    }

    /// Its process id: `setpriv` becomes QEMU.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The console's bytes; disconnected when it ends.
    pub(super) fn console(&mut self) -> Result<mpsc::Receiver<Vec<u8>>> {
        let mut stdout = self
            .child
            .stdout
            .take()
            .with_context(|| format!("the console of {} was taken before", self.name))?;
        let (sender, receiver): (SyncSender<Vec<u8>>, _) = mpsc::sync_channel(READS_QUEUED_MAX);
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(length @ 1..) = stdout.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(receiver)
    }

    /// Waits for its end, or ends it with `kill`; fails when it failed itself.
    pub(super) fn finish(mut self, kill: bool) -> Result<()> {
        let name = self.name;
        if kill {
            self.child
                .kill()
                .with_context(|| format!("cannot stop {name}"))?;
        }
        let status = self
            .child
            .wait()
            .with_context(|| format!("cannot wait for {name}"))?;
        let errors = fs::read_to_string(&self.errors).unwrap_or_default();
        // Emulation lacks a few features of the named CPU models; that is expected and long.
        let messages = errors
            .lines()
            .filter(|line| !line.contains("TCG doesn't support requested feature"));
        let messages: Vec<&str> = messages.collect();
        ensure!(
            kill || status.success(),
            "{name} failed ({status}):\n{}",
            messages.join("\n")
        );
        for line in messages {
            say("machine", line);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail when it has ended already, which is the usual case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
