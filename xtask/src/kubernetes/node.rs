//! `cargo xtask kubernetes node`, and `cargo xtask test --cluster`: a node with containerd, a kubelet and an API
//! server, and beside them `plimsoll-agent` and `plimsoll-cluster`.
//!
//! The tests are agent/cluster/tests/node: they start all of it themselves, in a guest that this boots and that is gone
//! with them. runc and systemd are Debian bookworm's, and containerd too (1.6) for a kubelet that is as old; one of
//! 1.26 or later talks to containerd 2, which comes from Debian sid.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Binaries, PROGRAMS_OF_NODE, built, has};
use crate::architecture::Architecture;
use crate::guest::{GuestExit, OF_NODE, UmlGuest, build_programs, cluster_tests};
use crate::interrupt::Folder;
use crate::process::{in_path, output_of};
use crate::progress::{minutes, print, say};
use crate::{image, paths, release};

/// What runs on the node.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    binaries: Binaries,
    /// Only tests whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure instead of testing
    #[arg(long)]
    measure: bool,
    /// Who makes the pods' cgroups: the kubelet and runc themselves, or systemd, which is PID 1 then
    #[arg(long, value_enum, default_value_t)]
    cgroup_driver: CgroupDriver,
    /// Take plimsoll, plimsoll-agent and hog from this folder instead of building them; also plimsoll-cluster and node
    /// (its tests) where it has both
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Where the programs on the node write: a folder that is empty or made
    /// [default: target/cluster-logs, which is emptied]
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
}

/// As the kubelet and containerd are told.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CgroupDriver {
    #[default]
    Cgroupfs,
    Systemd,
}

/// The tests' program, in the guest.
const TESTS: &str = "node";
/// A test waits ten minutes at most, and says so.
const PATIENCE: Duration = Duration::from_secs(20 * 60);
/// Beside a node. Without them nothing is installed as an operator does it.
const OF_OPERATORS: &[&str] = &["kubectl", "kube-controller-manager", "kube-scheduler"];
/// From this minor version of 1 on a kubelet speaks CRI v1 alone.
const CRI_V1_FROM: u32 = 26;
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Boots the guest and shows what the tests say; their exit status.
pub(super) fn run(args: &NodeArgs) -> Result<u8> {
    let exit = boot(args, &mut |line| print(line))?;
    say(
        "kubernetes",
        format_args!(
            "took {}; logs are in {}",
            minutes(exit.took),
            args.logs().display()
        ),
    );
    Ok(exit.code())
}

impl NodeArgs {
    /// Where the programs on the node write.
    pub(crate) fn logs(&self) -> PathBuf {
        let given = self.logs.clone();
        given.unwrap_or_else(|| paths::target("cluster-logs"))
    }
}

/// Boots the guest; every ten seconds a line says which test runs.
pub(crate) fn boot(args: &NodeArgs, on_line: &mut dyn FnMut(&str)) -> Result<GuestExit> {
    let given = args.binaries.binaries.as_deref();
    let binaries = given.map_or_else(
        || built(PROGRAMS_OF_NODE),
        |folder| has(folder, PROGRAMS_OF_NODE),
    )?;
    let mut payload = Vec::new();
    for name in PROGRAMS_OF_NODE {
        payload.push(((*name).to_owned(), binaries.join(name)));
    }
    for name in OF_OPERATORS {
        let path = Some(binaries.join(name)).filter(|path| path.is_file());
        // What people see is shown where it is there; the others are of one version.
        let path = path.or_else(|| in_path(name).filter(|_| *name == "kubectl"));
        payload.extend(path.map(|path| ((*name).to_owned(), path)));
    }
    let programs = programs(args.programs.as_deref())?;
    let staging = Folder::new()?;
    let image = staging.path().join("image");
    payload.push(("image.tar".to_owned(), image_of(&programs, &image)?));
    add_folder("deploy", &paths::root().join("deploy"), &mut payload)?;
    for program in programs {
        let name = program.file_name().context("a program without a name")?;
        let name = name.to_string_lossy().into_owned();
        // Cargo names a program of tests `node-1234567890abcdef`.
        let is_tests = name.starts_with(&format!("{TESTS}-"));
        payload.push((if is_tests { TESTS.to_owned() } else { name }, program));
    }
    let containerd = match minor_version(&binaries.join("kubelet"))? {
        CRI_V1_FROM.. => "containerd-2",
        _ => "containerd",
    };
    let only = args.only.as_deref().unwrap_or_default();
    let measure = if args.measure { "--ignored" } else { "" };
    let out = args.logs();
    if args.logs.is_none() {
        let _none = fs::remove_dir_all(&out);
    }
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let is_empty = fs::read_dir(&out).is_ok_and(|mut entries| entries.next().is_none());
    ensure!(
        is_empty,
        "{} is not empty: --logs takes a folder of its own",
        out.display()
    );
    let out = out
        .canonicalize()
        .with_context(|| format!("cannot resolve {}", out.display()))?;
    let mut packages = vec![containerd, "runc"];
    let driver = match args.cgroup_driver {
        CgroupDriver::Cgroupfs => "cgroupfs",
        CgroupDriver::Systemd => {
            packages.push("systemd");
            "systemd"
        }
    };
    let guest = UmlGuest {
        packages,
        payload,
        command: format!(
            "PLIMSOLL_NODE=/payload PLIMSOLL_CGROUP_DRIVER={driver} PLIMSOLL_KUBERNETES=/payload PLIMSOLL_SERVER_LOGS=/out PLIMSOLL_TEST_NOTES=/out/notes {TESTS} --test-threads 1 --nocapture {measure} {only}"
        ),
        // 110 pods have as many shims.
        memory_mb: if args.measure { 6144 } else { 3072 },
        out,
    };
    let last = Mutex::new(String::new());
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| say_now_and_then(&last, &ended));
        let exit = guest.run(
            PATIENCE,
            |line| line.contains(" s  ") || line.contains("test "),
            &mut |line| {
                if let Ok(mut last) = last.lock() {
                    line.trim().clone_into(&mut last);
                }
                on_line(line);
            },
        );
        ended.store(true, Ordering::Relaxed);
        exit
    })
}

/// 36 of a kubelet that says `Kubernetes v1.36.2`.
fn minor_version(kubelet: &Path) -> Result<u32> {
    let next = "--binaries takes programs for this machine";
    let said = output_of(Command::new(kubelet).arg("--version"), next)?;
    minor_in(&said).with_context(|| format!("{} says no version: {said}", kubelet.display()))
}

fn minor_in(said: &str) -> Option<u32> {
    said.split_once("v1.")?.1.split('.').next()?.parse().ok()
}

fn programs(given: Option<&Path>) -> Result<Vec<PathBuf>> {
    let Some(folder) = given else {
        return Ok([
            build_programs(Some(OF_NODE), Architecture::Amd64)?,
            cluster_tests()?,
        ]
        .concat());
    };
    let in_folder = |name: &&str| folder.join(name);
    let mut programs: Vec<PathBuf> = OF_NODE.iter().map(in_folder).collect();
    for program in &programs {
        let path = program.display();
        ensure!(
            program.is_file(),
            "{path} is not there: --programs takes a folder with {}",
            OF_NODE.join(", ")
        );
    }
    let of_cluster = ["plimsoll-cluster", TESTS].each_ref().map(in_folder);
    match of_cluster.iter().all(|program| program.is_file()) {
        true => programs.extend(of_cluster),
        false => programs.extend(cluster_tests()?),
    }
    Ok(programs)
}

/// The image of those of these programs that belong into it; what is left out is not used by `deploy/base`.
fn image_of(programs: &[PathBuf], layout: &Path) -> Result<PathBuf> {
    let is_released = |path: &&PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| release::PROGRAMS.contains(&name))
    };
    let part = image::Part {
        architecture: Architecture::Amd64,
        programs: programs.iter().filter(is_released).cloned().collect(),
        put: release::put_here,
    };
    Ok(image::write(&[part], layout)?.1)
}

/// Adds each file below the folder, under `name`.
fn add_folder(name: &str, folder: &Path, payload: &mut Vec<(String, PathBuf)>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry
            .with_context(|| format!("cannot read {}", folder.display()))?
            .path();
        let file = path.file_name().context("a file without a name")?;
        let name = format!("{name}/{}", file.to_string_lossy());
        // The chart's links lead to what is there already.
        match path.symlink_metadata() {
            Ok(kind) if kind.is_dir() => add_folder(&name, &path, payload)?,
            Ok(kind) if kind.is_file() => payload.push((name, path)),
            _ => {}
        }
    }
    Ok(())
}

fn say_now_and_then(last: &Mutex<String>, ended: &AtomicBool) {
    let (started, mut said) = (Instant::now(), Instant::now());
    while !ended.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(100));
        if said.elapsed() >= SAID_EVERY
            && let Ok(last) = last.lock()
            && !last.is_empty()
        {
            said = Instant::now();
            say(
                "cluster",
                format_args!("{}: {last}", minutes(started.elapsed())),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minor_version_of_a_kubelet() {
        assert_eq!(minor_in("Kubernetes v1.36.2\n"), Some(36));
        assert_eq!(minor_in("Kubernetes v1.20.2-dirty\n"), Some(20));
        assert_eq!(minor_in("no"), None);
    }
}
