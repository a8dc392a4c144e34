//! The emulator's process: started, read from, and never left behind.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, SyncSender};

use anyhow::{Context as _, Result, ensure};

use crate::interrupt::{Group, Program};
use crate::progress::say;

/// Reads of the console that may wait for the caller; then the guest waits.
const READS_QUEUED_MAX: usize = 64;

/// QEMU while it runs; killed when dropped early, and when this process is interrupted.
pub(super) struct Running {
    program: Program,
    errors: PathBuf,
}

impl Running {
    /// Starts it; its errors go to a file in `work`. With the terminal as its input it has the terminal's signals, too.
    pub(super) fn start(mut command: Command, has_terminal: bool, work: &Path) -> Result<Self> {
        let errors = work.join("qemu.stderr");
        let log =
            File::create(&errors).with_context(|| format!("cannot create {}", errors.display()))?;
        let (stdin, group) = if has_terminal {
            (Stdio::inherit(), Group::Terminal)
        } else {
            (Stdio::null(), Group::Separate)
        };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(log);
        let program = Program::start(&mut command, group)?;
        Ok(Self { program, errors })
    }

    /// The console's bytes; disconnected when QEMU ends.
    pub(super) fn console(&mut self) -> Result<mpsc::Receiver<Vec<u8>>> {
        let (stdout, _) = self.program.pipes();
        let mut stdout = stdout.context("QEMU's console was taken before")?;
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
    pub(super) fn finish(self, kill: bool) -> Result<()> {
        if kill {
            self.program.kill();
        }
        let status = self.program.wait()?;
        let errors = fs::read_to_string(&self.errors).unwrap_or_default();
        // Emulation lacks a few features of the named CPU models; that is expected and long.
        let said = errors
            .lines()
            .filter(|line| !line.contains("TCG doesn't support requested feature"));
        let said: Vec<&str> = said.collect();
        ensure!(
            kill || status.success(),
            "QEMU failed ({status}):\n{}",
            said.join("\n")
        );
        for line in said {
            say("qemu", line);
        }
        Ok(())
    }
}
