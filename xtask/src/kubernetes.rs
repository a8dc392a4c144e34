//! `cargo xtask kubernetes`: a real API server with its etcd on loopback, without a VM, for tests and for trying
//! things.
//!
//! The binaries come from `--binaries DIR`, else from the cache, else they are built once ([`build`]). How the servers
//! are started is known to the tests of `plimsoll-cluster` alone (agent/cluster/tests/support/server.rs): `up` runs one
//! of them that does nothing but stay.

mod build;
pub(crate) mod node;

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

pub(crate) use build::SourceDropped;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Subcommand;

use crate::lock::Lock;
use crate::progress::{Step, print, say};
use crate::{interrupt, paths, process};

/// Names the folder with the binaries to the tests.
pub(crate) const BINARIES_VARIABLE: &str = "PLIMSOLL_KUBERNETES";
/// Its value where another stage runs these tests.
pub(crate) const ELSEWHERE: &str = "elsewhere";
/// The program of these tests.
pub(crate) const TESTS: &str = "api_server";
/// Names the folder where a server that stays says where it is.
const UP_VARIABLE: &str = "PLIMSOLL_KUBERNETES_UP";
/// Of the sources in Debian.
const VERSION: &str = "1.20.2";
/// What the tests with an API server need of a folder of binaries.
const PROGRAMS: &[&str] = &["etcd", "kube-apiserver"];
/// What is built for them: the tests with a scheduler are left out where a folder has none.
const PROGRAMS_OF_CLUSTER: &[&str] = &[
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
];
/// What those with a node need.
const PROGRAMS_OF_NODE: &[&str] = &["etcd", "kube-apiserver", "kubelet"];

/// What to do with the servers.
#[derive(Debug, Subcommand)]
pub(crate) enum KubernetesCommand {
    /// Start etcd and kube-apiserver on loopback, and leave them running; prints the kubeconfig
    Up(Binaries),
    /// Run the tests of plimsoll-cluster against a server of their own
    Test(Binaries),
    /// Boot a machine with containerd, a kubelet and the two programs beside it, and run the tests there (no root, no
    /// emulator; some minutes)
    Node(node::NodeArgs),
    /// End what `up` started
    Down,
}

/// Where etcd and kube-apiserver are.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Binaries {
    /// A folder with etcd, kube-apiserver and (for `node`) kubelet of one version from 1.20 on
    /// [default: the cache; built from Debian's source 1.20.2 the first time, some minutes]. Tests that need
    /// kube-scheduler and kube-controller-manager are left out where it has none
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(command: &KubernetesCommand) -> Result<u8> {
    match command {
        KubernetesCommand::Up(binaries) => up(&found(binaries.binaries.as_deref())?)?,
        KubernetesCommand::Node(args) => return node::run(args),
        KubernetesCommand::Test(binaries) => {
            let binaries = found(binaries.binaries.as_deref())?;
            // Its output as it comes: names of tests are on one stream, what they say on the other.
            let status = interrupt::status(&mut tests(&binaries)).context("cannot start cargo")?;
            return Ok(u8::from(!status.success()));
        }
        KubernetesCommand::Down => down()?,
    }
    Ok(0)
}

fn missing(folder: &Path, programs: &[&'static str]) -> Vec<&'static str> {
    let mut missing = programs.to_vec();
    missing.retain(|name| !folder.join(name).is_file());
    missing
}

/// Whether the cache has the binaries.
pub(crate) fn is_built() -> Result<bool> {
    Ok(missing(&cached()?, PROGRAMS).is_empty())
}

/// The folder of the cache.
fn cached() -> Result<PathBuf> {
    Ok(paths::cache()?.join("kubernetes").join(VERSION))
}

/// The folder of the cache with an API server, and with a scheduler and controllers if they were built once: they take
/// minutes for a few tests.
pub(crate) fn api_server() -> Result<PathBuf> {
    built(PROGRAMS)
}

/// The folder with the programs of a cluster without nodes: `given`, or the cache, where they are built when there are
/// none.
pub(crate) fn found(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(folder) = given {
        return has(folder, PROGRAMS);
    }
    built(PROGRAMS_OF_CLUSTER).or_else(|error| {
        if !is_built()? {
            return Err(error);
        }
        say(
            "kubernetes",
            format_args!("no scheduler and controllers, their tests are left out: {error:#}"),
        );
        cached()
    })
}

/// `folder`, if it has `programs`.
fn has(folder: &Path, programs: &[&'static str]) -> Result<PathBuf> {
    if let Some(name) = missing(folder, programs).first() {
        bail!(
            "{} has no {name}: --binaries takes a folder with {}",
            folder.display(),
            programs.join(", ")
        );
    }
    folder
        .canonicalize()
        .with_context(|| format!("cannot resolve {}", folder.display()))
}

/// The folder of the cache, once it has `programs`.
fn built(programs: &[&'static str]) -> Result<PathBuf> {
    let cache = paths::cache()?.join("kubernetes");
    let folder = cache.join(VERSION);
    if !missing(&folder, programs).is_empty() {
        let _lock = Lock::take(&cache)?;
        // Another one may have built them meanwhile.
        let missing = missing(&folder, programs);
        if !missing.is_empty() {
            build::into(&cache, &folder, &missing)?;
        }
    }
    Ok(folder)
}

/// `cargo test` of what needs the servers. Of the whole workspace: what `cargo test --workspace` has built is what it
/// needs as well.
fn tests(binaries: &Path) -> Command {
    let mut command = process::cargo();
    command
        .args(["test", "--locked", "--workspace", "--test", TESTS])
        .env(BINARIES_VARIABLE, binaries);
    command
}

fn up_folder() -> Result<PathBuf> {
    Ok(paths::cache()?.join("kubernetes").join("up"))
}

fn up(binaries: &Path) -> Result<()> {
    let folder = up_folder()?;
    let kubeconfig = folder.join("admin.conf");
    ensure!(
        !kubeconfig.exists(),
        "{} is there: a server runs already, or one was killed; end it with `cargo xtask kubernetes down`",
        kubeconfig.display()
    );
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let _none = fs::remove_file(folder.join("stop"));
    let log = folder.join("log");
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = tests(binaries);
    command.args(["--", "--ignored", "--exact", "stays_up", "--nocapture"]);
    command
        .env(UP_VARIABLE, &folder)
        .stdin(Stdio::null())
        .process_group(0);
    command
        .stdout(output.try_clone().context("cannot share the log")?)
        .stderr(output);
    let mut child = interrupt::spawn(&mut command).context("cannot start cargo")?;
    let step = Step::begin("kubernetes", "starting etcd and kube-apiserver");
    while !kubeconfig.exists() {
        if let Some(status) = child.try_wait().context("cannot wait for cargo")? {
            bail!(
                "the servers ended with {status}; {} says why",
                log.display()
            );
        }
        thread::sleep(Duration::from_millis(200));
    }
    step.done();
    print(&format!("export KUBECONFIG={}", kubeconfig.display()));
    Ok(())
}

fn down() -> Result<()> {
    let folder = up_folder()?;
    let kubeconfig = folder.join("admin.conf");
    if !kubeconfig.exists() {
        say("kubernetes", "nothing runs");
        return Ok(());
    }
    let stop = folder.join("stop");
    fs::write(&stop, "").with_context(|| format!("cannot write {}", stop.display()))?;
    let step = Step::begin("kubernetes", "waiting for the servers to end");
    // They look every 100 ms; what was killed does not look any more.
    for _ in 0..100 {
        if !kubeconfig.exists() {
            step.done();
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    let _gone = fs::remove_file(&kubeconfig);
    say(
        "kubernetes",
        format_args!(
            "no API server answers at {}: it was killed, or it hangs; look for etcd and kube-apiserver in `ps`",
            folder.display()
        ),
    );
    Ok(())
}
