//! `cargo xtask vm`: any command, or a shell, in a guest.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use crate::architecture::Architecture;
use crate::guest::{CgroupLayout, Clock, Guest, GuestEnd, Programs, Topology};
use crate::kernel::Kernel;
use crate::progress::{self, say};

/// What a guest is and does.
#[derive(Debug, Args)]
pub(crate) struct VmArgs {
    /// Processor: amd64, or arm64 (programs are cross-compiled; flat and numa2:CPUS only, no --package)
    #[arg(long, default_value = "amd64")]
    arch: Architecture,
    /// Kernel to boot: 6.1, 6.12, 7.2, or the path of an image
    #[arg(long, default_value = "6.12")]
    kernel: Kernel,
    /// CPUs and memory nodes: flat[:CPUS], smt, dies, numa2[:CPUS], numa4, multi, numa8, hmat
    #[arg(long, default_value = "flat")]
    topology: Topology,
    /// Memory of the guest, MB
    #[arg(long, default_value_t = 1536, value_name = "MB", value_parser = clap::value_parser!(u64).range(64..))]
    memory: u64,
    /// Cgroup hierarchies to mount: cgroup2, cgroup1, hybrid
    #[arg(long, default_value = "cgroup2")]
    cgroup: CgroupLayout,
    /// File for /payload, or folder whose content goes there (repeatable)
    #[arg(long, value_name = "PATH")]
    payload: Vec<PathBuf>,
    /// Debian bookworm package to install with its libraries (repeatable)
    #[arg(long, value_name = "NAME")]
    package: Vec<String>,
    /// Where files arrive that the command leaves in /out
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// More kernel parameters
    #[arg(
        long,
        value_name = "PARAMETERS",
        default_value = "",
        allow_hyphen_values = true
    )]
    append: String,
    /// What the guest's clock follows: `host`; `instructions`, as in `cargo xtask test` (idle time is skipped, a busy
    /// host makes no difference to the guest); or `one-cpu`, as in benchmarks (1 ns an instruction)
    #[arg(long, value_name = "CLOCK", default_value = "host")]
    clock: Clock,
    /// Leave out the agent and the guest programs (nothing is built)
    #[arg(long)]
    bare: bool,
    /// Stop the guest after so many seconds [default: 180; none for a shell]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Line of shell to run; without it, or with `shell`, a shell on this terminal
    #[arg(long, value_name = "COMMAND")]
    cmd: Option<String>,
    /// Command and its arguments, instead of --cmd
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "cmd")]
    words: Vec<String>,
}

/// Runs the guest; the exit status is the command's, 124 when the time was up, 125 when there was none.
pub(crate) fn run(args: VmArgs) -> Result<u8> {
    for path in &args.payload {
        ensure!(path.exists(), "--payload {}: no such file", path.display());
    }
    let packages: Vec<&str> = args.package.iter().map(String::as_str).collect();
    let mut guest = Guest::new(args.kernel)
        .architecture(args.arch)
        .topology(args.topology)
        .memory_mb(args.memory)
        .cgroup(args.cgroup)
        .append(&args.append)
        .debian_packages(&packages)
        .programs(if args.bare {
            Programs::None
        } else {
            Programs::All
        })
        .clock(args.clock);
    for path in args.payload {
        guest = guest.payload(path);
    }
    if let Some(out) = args.out {
        guest = guest.out(out);
    }
    let command = match args.cmd {
        _ if !args.words.is_empty() => quoted(&args.words),
        Some(command) if command != "shell" => command,
        _ => {
            ensure!(
                args.timeout.is_none(),
                "--timeout is for --cmd; a shell ends with `exit` or Ctrl-A X"
            );
            return guest.shell();
        }
    };
    let timeout = Duration::from_secs(args.timeout.unwrap_or(180));
    let exit = guest
        .command(command)
        .timeout(Some(timeout))
        .run(progress::print)?;
    match exit.end {
        GuestEnd::Status(_) => {}
        GuestEnd::TimedOut => say(
            "guest",
            format_args!("stopped after {} s (--timeout)", timeout.as_secs()),
        ),
        GuestEnd::NoStatus => say(
            "guest",
            "ended without an exit status: see the console above for a panic",
        ),
    }
    Ok(exit.code())
}

/// The words as a line of shell.
fn quoted(words: &[String]) -> String {
    let quoted: Vec<String> = words
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', "'\\''")))
        .collect();
    quoted.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        let words = ["sh", "-c", "echo 'a  b' $HOME"].map(str::to_owned);
        assert_eq!(quoted(&words), r"'sh' '-c' 'echo '\''a  b'\'' $HOME'");
    }
}
