//! `cargo xtask package --try`: the package in a Debian guest whose PID 1 is systemd: installed, started, killed,
//! upgraded, removed and purged.
//!
//! What is done, and what has to be so after each step, is in `trial.sh`. The guest is user-mode Linux: no BPF there,
//! so the agent samples.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::guest::UmlGuest;
use crate::interrupt::Folder;
use crate::progress::{minutes, print, say};

const SCRIPT: &str = include_str!("trial.sh");
/// What the script takes. libc-bin has `ldconfig`, without which dpkg does nothing; libgcc-s1 is for programs that were
/// not built for everybody.
const PACKAGES: [&str; 5] = ["systemd", "dpkg", "tar", "libc-bin", "libgcc-s1"];
const MEMORY_MB: u64 = 1024;
/// Without a line of the script.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// Tries the package; an error shows what failed.
pub(super) fn run(package: &Path) -> Result<()> {
    let out = Folder::new()?;
    let script = out.path().join("trial.sh");
    fs::write(&script, SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
    let guest = UmlGuest {
        packages: PACKAGES.to_vec(),
        payload: vec![
            ("plimsoll.deb".to_owned(), package.to_owned()),
            ("trial.sh".to_owned(), script),
        ],
        command: "sh /payload/trial.sh".to_owned(),
        memory_mb: MEMORY_MB,
        out: out.path().to_owned(),
    };
    let is_step = |line: &str| line.contains("trial: ");
    let exit = guest.run(PATIENCE, is_step, &mut |line| print(line))?;
    ensure!(
        exit.code() == 0,
        "the package failed its trial: the last line that begins with `trial:` says where"
    );
    say(
        "package",
        format_args!("its trial took {}", minutes(exit.took)),
    );
    Ok(())
}
