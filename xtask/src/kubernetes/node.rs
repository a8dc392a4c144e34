//! `cargo xtask kubernetes node`, and `cargo xtask test --cluster`: a node with containerd, a kubelet and an API server, and beside them `plimsoll-agent` and
//! `plimsoll-cluster`.
//!
//! The tests are agent/cluster/tests/node: they start all of it themselves, in a guest that this boots and that is gone with them. containerd and runc are
//! Debian bookworm's: the last that a kubelet of 1.20 talks to.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Binaries, PROGRAMS_OF_NODE, found_with};
use crate::guest::{GuestExit, OF_NODE, UmlGuest, build_programs, cluster_tests};
use crate::paths;
use crate::progress::{minutes, print, say};

/// What runs on the node.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    binaries: Binaries,
    /// Take plimsoll, plimsoll-agent and hog from this folder instead of building them
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

/// The tests' program, in the guest.
const TESTS: &str = "node";
/// A test waits ten minutes at most, and says so.
const PATIENCE: Duration = Duration::from_secs(20 * 60);
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Boots the guest and shows what the tests say; their exit status.
pub(super) fn run(args: &NodeArgs) -> Result<u8> {
    let exit = boot(args, &mut |line| print(line))?;
    say(
        "kubernetes",
        format_args!(
            "took {}; logs are in {}",
            minutes(exit.took),
            logs().display()
        ),
    );
    Ok(exit.code())
}

/// Where the programs on the node write.
pub(crate) fn logs() -> PathBuf {
    paths::target("cluster-logs")
}

/// Boots the guest; every ten seconds a line says which test runs.
pub(crate) fn boot(args: &NodeArgs, on_line: &mut dyn FnMut(&str)) -> Result<GuestExit> {
    let binaries = found_with(args.binaries.binaries.as_deref(), PROGRAMS_OF_NODE)?;
    let mut payload = Vec::new();
    for name in PROGRAMS_OF_NODE {
        payload.push(((*name).to_owned(), binaries.join(name)));
    }
    for program in programs(args.programs.as_deref())?
        .into_iter()
        .chain(cluster_tests()?)
    {
        let name = program.file_name().context("a program without a name")?;
        let name = name.to_string_lossy().into_owned();
        // Cargo names a program of tests `node-1234567890abcdef`.
        let is_tests = name.starts_with(&format!("{TESTS}-"));
        payload.push((if is_tests { TESTS.to_owned() } else { name }, program));
    }
    let out = logs();
    let _none = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let guest = UmlGuest {
        packages: vec!["containerd", "runc"],
        payload,
        command: format!(
            "PLIMSOLL_NODE=/payload PLIMSOLL_KUBERNETES=/payload PLIMSOLL_TEST_NOTES=/out/notes {TESTS} --test-threads 1 --nocapture"
        ),
        memory_mb: 3072,
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

fn programs(given: Option<&Path>) -> Result<Vec<PathBuf>> {
    let Some(folder) = given else {
        return build_programs(Some(OF_NODE));
    };
    let programs: Vec<PathBuf> = OF_NODE.iter().map(|name| folder.join(name)).collect();
    for program in &programs {
        let path = program.display();
        ensure!(
            program.is_file(),
            "{path} is not there: --programs takes a folder with {}",
            OF_NODE.join(", ")
        );
    }
    Ok(programs)
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
