//! The emulator's process: started, read from, and never left behind.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, SyncSender};

use anyhow::{Context as _, Result, ensure};

use crate::progress::say;

/// Reads of the console that may wait for the caller; then the guest waits.
const READS_QUEUED_MAX: usize = 64;

/// QEMU while it runs; killed when dropped early.
pub(super) struct Running {
    child: Child,
    errors: PathBuf,
}

impl Running {
    /// Starts it; its errors go to a file in `work`.
    pub(super) fn start(mut command: Command, stdin: Stdio, work: &Path) -> Result<Self> {
        let errors = work.join("qemu.stderr");
        let log =
            File::create(&errors).with_context(|| format!("cannot create {}", errors.display()))?;
        let child = command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("cannot start QEMU")?;
        Ok(Self { child, errors })
    }

    /// Its process id: `setpriv` becomes QEMU.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The console's bytes; disconnected when QEMU ends.
    pub(super) fn console(&mut self) -> Result<mpsc::Receiver<Vec<u8>>> {
        let mut stdout = self
            .child
            .stdout
            .take()
            .context("QEMU's console was taken before")?;
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

    /// Waits for its end, or ends it with `kill`; fails when QEMU itself failed.
    pub(super) fn finish(mut self, kill: bool) -> Result<()> {
        if kill {
            self.child.kill().context("cannot stop QEMU")?;
        }
        let status = self.child.wait().context("cannot wait for QEMU")?;
        let errors = fs::read_to_string(&self.errors).unwrap_or_default();
        // Emulation lacks a few features of the named CPU models; that is expected and long.
        let told = errors
            .lines()
            .filter(|line| !line.contains("TCG doesn't support requested feature"));
        let told: Vec<&str> = told.collect();
        ensure!(
            kill || status.success(),
            "QEMU failed ({status}):\n{}",
            told.join("\n")
        );
        for line in told {
            say("qemu", line);
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
