//! Hosts that allow only part of what the agent would like: by the next best mechanism it still evicts the right pod
//! before the kernel's OOM killer has to, and both `plimsoll check` and the agent itself say what is missing.
//!
//! What a running kernel can be made to refuse is done here; what only the kernel command line can (`lockdown=`,
//! `psi=0`) is [`as_booted`], which expects what this guest was booted with: `cargo xtask test --all` boots them all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use plimsoll::probe::mechanism::Mechanism;

use super::super::agent::{Agent, Options};
use super::super::cgroup;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::Node;
use super::super::pod::Pod;
use super::super::process::{program, run_program};
use super::{EVICTION_TIMEOUT, go, oom_kills, threshold_below_now};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "ladder::as_booted",
        on: On::First(&[Machine::Confidential, Machine::IntegrityNoPsi]),
        run: as_booted,
    },
    Test {
        name: "ladder::without_fentry",
        on: On::First(&[Machine::Hybrid, Machine::V7_2]),
        run: || {
            evicts(
                Some("fentry"),
                &by(Mechanism::Tracepoint, "left out by --without fentry"),
            )
        },
    },
    Test {
        name: "ladder::without_bpf",
        on: On::EachKernelAndHybrid,
        run: || {
            evicts(
                Some("bpf"),
                &by(Mechanism::Psi, "left out by --without bpf"),
            )
        },
    },
    Test {
        name: "ladder::without_bpf_and_psi",
        on: On::First(&[Machine::V6_12, Machine::Hybrid]),
        run: || {
            evicts(
                Some("bpf,psi"),
                &by(Mechanism::Sampling, "left out by --without bpf"),
            )
        },
    },
    Test {
        name: "ladder::a_kernel_without_btf",
        on: On::First(&[Machine::V7_2, Machine::Hybrid]),
        run: || {
            let _hidden = Hidden::below_nothing(Path::new("/sys/kernel/btf"))?;
            evicts(None, &by(Mechanism::Psi, "the kernel has no BTF"))
        },
    },
    Test {
        name: "ladder::a_kernel_that_calls_the_function_something_else",
        on: On::Weekly(Machine::Hybrid),
        run: function_is_missing,
    },
    Test {
        name: "ladder::tracefs_is_not_mounted",
        on: On::Weekly(Machine::Hybrid),
        run: no_tracefs,
    },
];

/// The running kernel's type information.
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// What serves memory thresholds on this host.
pub(super) struct Wanted {
    mechanism: Mechanism,
    /// What must be said about why it is not a better one, or what else is missing; `None`: nothing is.
    because: Option<&'static str>,
}

/// On cgroup v1 the kernel's own notification stands above all but fentry.
fn by(on_v2: Mechanism, because: &'static str) -> Wanted {
    let on_v1 = cgroup::memory_root().ends_with("memory") && on_v2 != Mechanism::Fentry;
    Wanted {
        mechanism: if on_v1 {
            Mechanism::EventControl
        } else {
            on_v2
        },
        because: Some(because),
    }
}

/// Nothing is missing.
pub(super) const WHOLE: Wanted = Wanted {
    mechanism: Mechanism::Fentry,
    because: None,
};

/// What a kernel that was booted without parameters has: nothing is missing, but for arm64 before 6.4, which calls no
/// program from a function.
fn whole() -> anyhow::Result<Wanted> {
    const RELEASE: &str = "/proc/sys/kernel/osrelease";
    let release = fs::read_to_string(RELEASE).context(RELEASE)?;
    let mut numbers = release.split(|next: char| !next.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let version = number().zip(number()).with_context(|| release.clone())?;
    if cfg!(target_arch = "aarch64") && version < (6, 4) {
        return Ok(by(
            Mechanism::Tracepoint,
            "this kernel cannot call programs from its functions (on arm64 from 6.4 on",
        ));
    }
    Ok(WHOLE)
}

/// What `plimsoll check` says. Programs are tried for each of its forms, which takes long in a guest: its text is asked
/// for where a reason is wanted, its JSON where none is, and both where no programs are tried.
fn checked(without: Option<&str>, wanted: &Wanted) -> anyhow::Result<()> {
    let check = |output: &str| -> anyhow::Result<String> {
        let mut command = Command::new(program("plimsoll"));
        command.args(["check", "--output", output]);
        if let Some(without) = without {
            command.args(["--without", without]);
        }
        let output = command.output().context("starting plimsoll check")?;
        Ok(String::from_utf8(output.stdout)?)
    };
    if let Some(because) = wanted.because {
        let text = check("text")?;
        let name = wanted.mechanism.name();
        // The first line that begins so is the choice; what it costs comes further down.
        let chosen = text
            .lines()
            .find_map(|line| line.strip_prefix("memory threshold"));
        ensure!(
            chosen.is_some_and(|rest| rest.trim_start().starts_with(name)),
            "check does not choose {name}: {text}"
        );
        ensure!(
            text.contains(because),
            "check does not say `{because}`: {text}"
        );
    }
    if wanted.because.is_some() && without.is_none_or(|without| !without.contains("bpf")) {
        return Ok(());
    }
    let json = check("json")?;
    let report: serde_json::Value =
        serde_json::from_str(&json).context("the JSON of plimsoll check")?;
    let primary = report["choices"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|choice| choice["signal"] == "memory-threshold" && choice["role"] == "primary")
        .with_context(|| format!("check chose nothing: {json}"))?;
    ensure!(
        primary["mechanism"] == serde_json::to_value(wanted.mechanism)?,
        "check chose {}: {json}",
        primary["mechanism"]
    );
    ensure!(
        wanted.because.is_some()
            || (primary["lost"].is_null() && report["facts"]["psi"]["ok"] == "privileged"),
        "something is missing: {json}"
    );
    Ok(())
}

/// What the agent says when it starts.
pub(super) fn said(agent: &Agent, wanted: &Wanted) -> anyhow::Result<()> {
    let primary = agent
        .started
        .mechanisms
        .iter()
        .find(|choice| choice.signal == "memory-threshold" && choice.role == "primary");
    let mechanism = serde_json::to_value(wanted.mechanism)?;
    ensure!(
        primary.is_some_and(|choice| mechanism == choice.mechanism),
        "the agent chose {primary:?}; {:?}",
        agent.started.lost
    );
    let lost = &agent.started.lost;
    if let Some(because) = wanted.because {
        ensure!(
            lost.iter().any(|line| line.contains(because)),
            "the agent does not say `{because}`: {lost:#?}"
        );
    }
    ensure!(
        lost.iter().all(|line| !line.contains('\n')),
        "not a line each: {lost:#?}"
    );
    Ok(())
}

/// `plimsoll check` says what is `wanted`, and an agent started now does, and evicts the pod that grows; nobody else
/// goes.
fn evicts(without: Option<&str>, wanted: &Wanted) -> Outcome {
    checked(without, wanted)?;
    let kills = oom_kills()?;
    let node = Node::new()?;
    let (leaky, steady) = (
        Pod::burstable("leaky", "32Mi"),
        Pod::burstable("steady", "64Mi"),
    );
    let mut neighbour = node.hog(&steady, "hold --mb 32")?;
    // Grows without end: too late is never.
    let hog = node.hog(&leaky, "ramp --wait-usr1 --rate-mb-s 64")?;
    let mut options = Options::hard(&threshold_below_now(96)?);
    if let Some(without) = without {
        options = options.flag("--without", without);
    }
    let mut agent = node.agent(&options)?;
    said(&agent, wanted)?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == leaky.full_name() && finished.outcome == "freed",
        "{finished:?}"
    );
    ensure!(
        neighbour.process.is_running()? && agent.evictions().count() == 1,
        "somebody else went, too: {:?}",
        agent.events
    );
    let records = agent.stop()?.records;
    ensure!(
        records.produced == records.consumed + records.dropped,
        "{records:?}"
    );
    ensure!(oom_kills()? == kills, "the kernel's OOM killer fired first");
    Ok(Done::Passed)
}

/// The value of a kernel parameter; the last one counts.
fn booted_with(parameter: &str) -> anyhow::Result<Option<String>> {
    let line = fs::read_to_string("/proc/cmdline")?;
    Ok(line
        .split_whitespace()
        .filter_map(|word| word.strip_prefix(parameter)?.strip_prefix('='))
        .next_back()
        .map(str::to_owned))
}

fn as_booted() -> Outcome {
    let is_confidential = booted_with("lockdown")?.as_deref() == Some("confidentiality");
    let has_psi = booted_with("psi")?.as_deref() != Some("0");
    let lockdown = "kernel lockdown is \"confidentiality\"";
    let wanted = match (is_confidential, has_psi) {
        (false, true) => whole()?,
        (false, false) => by(Mechanism::Fentry, "boot with psi=1"),
        (true, true) => by(Mechanism::Psi, lockdown),
        (true, false) => by(Mechanism::Sampling, lockdown),
    };
    evicts(None, &wanted)?;
    if !is_confidential && !has_psi {
        return evicts(Some("bpf"), &by(Mechanism::Sampling, "boot with psi=1"));
    }
    Ok(Done::Passed)
}

/// A file or directory behind which another is hidden until this is dropped.
struct Hidden(PathBuf);

impl Hidden {
    /// A directory that is empty.
    fn below_nothing(directory: &Path) -> anyhow::Result<Self> {
        run_program(
            "mount",
            &["-t", "tmpfs", "tmpfs", &directory.to_string_lossy()],
        )?;
        Ok(Self(directory.to_owned()))
    }

    /// A file with another's contents.
    fn behind(path: &Path, other: &Path) -> anyhow::Result<Self> {
        let (shown, over) = (other.to_string_lossy(), path.to_string_lossy());
        run_program("mount", &["--bind", &shown, &over])?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if let Err(error) = run_program("umount", &["-l", &self.0.to_string_lossy()]) {
            eprintln!("{error:#}");
        }
    }
}

/// Type information in which the function that charges memory has another name, as in a kernel that has renamed it. All
/// else, the ids among it, is as the running kernel has it, so that the other hooks attach.
fn function_is_missing() -> Outcome {
    const NAME: &[u8] = b"\0page_counter_try_charge\0";
    const OTHER: &[u8] = b"\0page_counter_may_charge\0";
    let mut types = fs::read(BTF)?;
    let at: Vec<usize> = types
        .windows(NAME.len())
        .enumerate()
        .filter_map(|(at, bytes)| (bytes == NAME).then_some(at))
        .collect();
    let [at] = at[..] else {
        anyhow::bail!("the name is there {} times", at.len());
    };
    types[at..at + NAME.len()].copy_from_slice(OTHER);
    let renamed = Path::new("/tmp/renamed.btf");
    fs::write(renamed, types)?;
    let _hidden = Hidden::behind(Path::new(BTF), renamed)?;
    evicts(
        None,
        &by(
            Mechanism::Tracepoint,
            "this kernel has no fentry target page_counter_try_charge",
        ),
    )
}

/// The programs are attached by BTF, which needs no tracefs.
fn no_tracefs() -> Outcome {
    const TRACEFS: &str = "/sys/kernel/tracing";
    let mounts = |path: &str| -> anyhow::Result<bool> {
        Ok(fs::read_to_string("/proc/mounts")?
            .lines()
            .any(|line| line.split(' ').nth(1) == Some(path)))
    };
    // debugfs shows it once more, below itself.
    let debugfs = "/sys/kernel/debug";
    let had = [
        (TRACEFS, "tracefs", mounts(TRACEFS)?),
        (debugfs, "debugfs", mounts(debugfs)?),
    ];
    for (path, _, _) in had.iter().filter(|(_, _, mounted)| *mounted) {
        run_program("umount", &["-l", path])?;
    }
    let gone = !Path::new(TRACEFS).join("events").exists();
    let result = whole().and_then(|wanted| evicts(None, &wanted));
    for (path, kind, _) in had.iter().filter(|(_, _, mounted)| *mounted) {
        run_program("mount", &["-t", kind, kind, path])?;
    }
    ensure!(gone, "{TRACEFS} is still there");
    result
}
