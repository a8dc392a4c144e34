//! `plimsoll load-programs`, which `plimsoll run` starts: the BPF programs are loaded by a process that ends.
//!
//! Problem: to load the programs takes the kernel's types, tens of megabytes in small pieces. The allocator does not get all of them back to the kernel, and an
//! agent that is locked in memory keeps the holes for life: 4 MiB. Approach: where programs can be pinned, another process loads and pins them, and the
//! agent takes them over as it would from an agent before it. Whatever goes wrong there, the agent then does by itself, and finds out why.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum as _};
use serde::{Deserialize, Serialize};

use crate::daemon::start::programs;
use crate::kernel::load::{is_pinned, load_pinned};
use crate::kernel::{PinOwner, Pinning};
use crate::probe::ladder::Without;

/// The subcommand, which is not for people.
pub const SUBCOMMAND: &str = "load-programs";

/// Load and pin the BPF programs of `plimsoll run`, which starts this by itself
#[derive(Debug, Clone, Args)]
pub struct LoadProgramsArgs {
    /// The agent's state directory
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
    /// As for `run`
    #[arg(long, value_enum, value_name = "MECHANISM")]
    pub without: Vec<Without>,
    /// As for `run`
    #[arg(long)]
    pub last_line: bool,
}

/// What the process tells the agent, on its standard output.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Told {
    /// It has loaded what is pinned now.
    loaded: bool,
    /// What it removed.
    said: Vec<String>,
}

/// `plimsoll load-programs`.
///
/// # Errors
/// When nothing at all could be attached.
pub fn run(args: &LoadProgramsArgs) -> Result<ExitCode> {
    let owner = PinOwner::of(&args.state_dir);
    let mut said = Vec::new();
    let programs = programs(&args.without, args.last_line);
    let (_bpf, pinning) = load_pinned(programs, &owner, |line| said.push(line))?;
    let loaded = matches!(pinning, Pinning::Made { .. });
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &Told { loaded, said })?;
    writeln!(out)?;
    Ok(ExitCode::SUCCESS)
}

/// What another process has loaded for this one.
#[derive(Debug, Default)]
pub struct LoadedApart(Told);

impl LoadedApart {
    /// Has the programs loaded and pinned by another process, if they can be pinned. The caller holds the lock of the state directory. Nothing is
    /// lost where it fails.
    pub fn try_to(
        owner: &PinOwner,
        state_dir: &Path,
        without: &[Without],
        last_line: bool,
    ) -> Self {
        let is_there = || is_pinned(programs(without, last_line), owner).is_ok_and(|is| is);
        if !owner.can_pin() || is_there() {
            return Self::default();
        }
        match told(state_dir, without, last_line) {
            Ok(told) => Self(told),
            Err(error) => {
                tracing::info!(%error, "BPF programs are loaded by the agent itself, which then keeps more memory");
                Self::default()
            }
        }
    }

    /// What it removed, a line each.
    #[must_use]
    pub fn said(&self) -> &[String] {
        &self.0.said
    }

    /// How the agent should tell of programs that it found pinned.
    #[must_use]
    pub fn judge(&self, pinning: Pinning) -> Pinning {
        match pinning {
            Pinning::TakenOver { path } if self.0.loaded => Pinning::Made { path },
            other => other,
        }
    }
}

fn told(state_dir: &Path, without: &[Without], last_line: bool) -> Result<Told> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(SUBCOMMAND).arg("--state-dir").arg(state_dir);
    for name in without.iter().filter_map(Without::to_possible_value) {
        command.args(["--without", name.get_name()]);
    }
    if last_line {
        command.arg("--last-line");
    }
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_loaded_was_not_there_before_the_agent() {
        let path = PathBuf::from("/sys/fs/bpf/plimsoll/x/y");
        let loaded = LoadedApart(Told {
            loaded: true,
            said: Vec::new(),
        });
        let found = || Pinning::TakenOver { path: path.clone() };
        assert!(matches!(loaded.judge(found()), Pinning::Made { path: made } if made == path));
        let before = LoadedApart::default();
        assert!(matches!(before.judge(found()), Pinning::TakenOver { .. }));
    }

    #[test]
    fn without_a_bpf_file_system_nothing_is_started() {
        let dir = tempfile::tempdir().unwrap();
        let owner = PinOwner::of_in(dir.path(), dir.path());
        assert!(!owner.can_pin());
        let apart = LoadedApart::try_to(&owner, dir.path(), &[], false);
        assert!(!apart.0.loaded && apart.said().is_empty());
    }
}
