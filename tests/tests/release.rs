//! The memory of a killed pod that does what it can to keep it: [`release`] on real processes.
//!
//! The victim is SCHED_IDLE on a CPU that a neighbour keeps busy, and holds the lock of its memory. The CPU time of
//! that neighbour is the clock: by itself the victim gets three thousandths of what the neighbour gets, on a machine of
//! any speed and at any load.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "../../agent/tests/notes/mod.rs"]
mod notes;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use plimsoll::act::memory_release::MemoryRelease;
use plimsoll::host::HostRoot;
use plimsoll::host::syscall::{sched_other, sched_rr_reset_on_fork};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

const VICTIM_MB: usize = 512;
/// CPU time of the neighbour until the victim has to be gone. By itself the victim needs several times as much for one
/// turn of its loop.
const PATIENCE: Duration = Duration::from_secs(1);

/// A thread that keeps CPU 0 busy until this is dropped.
struct Neighbour {
    ends: Arc<AtomicBool>,
    cpu_ns: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Neighbour {
    fn start() -> Self {
        let (ends, cpu_ns) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (of_thread, clock) = (Arc::clone(&ends), Arc::clone(&cpu_ns));
        let thread = thread::spawn(move || {
            let mut cpus = CpuSet::new();
            cpus.set(0);
            sched_setaffinity(None, &cpus).unwrap();
            while !of_thread.load(Ordering::Relaxed) {
                let used = clock_gettime(ClockId::ThreadCPUTime);
                let used_ns = used.tv_sec * 1_000_000_000 + used.tv_nsec;
                clock.store(used_ns.unsigned_abs(), Ordering::Relaxed);
            }
        });
        Self {
            ends,
            cpu_ns,
            thread: Some(thread),
        }
    }

    fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn victim() -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hog"))
        .args(["resist", "--mb", &VICTIM_MB.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "ready");
    child
}

#[test]
fn a_victim_that_resists_goes_at_once() {
    if let Err(error) = sched_rr_reset_on_fork(None, 1).and_then(|()| sched_other()) {
        return notes::left_out(error);
    }
    let mut victim = victim();
    // What the release reads of a cgroup is the list of its processes.
    let pod = tempfile::tempdir().unwrap();
    std::fs::write(
        pod.path().join("cgroup.procs"),
        format!("{}\n", victim.id()),
    )
    .unwrap();

    let release = MemoryRelease::start(HostRoot::live()).unwrap();
    let neighbour = Neighbour::start();
    // Until the victim has had its share.
    while neighbour.cpu_time() < Duration::from_secs(1) {
        thread::sleep(Duration::from_millis(1));
    }
    victim.kill().unwrap();
    let killed_at = neighbour.cpu_time();
    release.add(&Arc::from(pod.path()));
    let taken = || neighbour.cpu_time().saturating_sub(killed_at);
    while victim.try_wait().unwrap().is_none() {
        assert!(taken() < PATIENCE, "still there");
        thread::sleep(Duration::from_millis(1));
    }
    notes::note(format_args!(
        "{VICTIM_MB} MiB of a victim that resists: back after {:.3} s of its neighbour",
        taken().as_secs_f64()
    ));
    assert_eq!(release.refused(), 0);
}
