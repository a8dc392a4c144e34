//! An agent that has nothing to do rests, also where nothing that it was asked for can be had.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Everything that is off unless it is asked for.
const CONFIG: &str = "\
plimsoll:
  remedies: {reclaim: 1s, throttle: 1s, notify: 1s}
  lastLine: {enabled: true, expiresAfter: 1s}
  cpuBurst: {enabled: true}
  cpuSuppress: {enabled: true}
  oomScoreOrder: Dynamic
";

/// Which mechanisms are left out in turn.
const WITHOUT: [&str; 3] = [
    "psi",
    "bpf,psi",
    "bpf,psi,memory-events,event-control,inotify",
];

/// How long the agent is watched. It has its timers, a few times a second at most, with the last line's included.
const WATCHED: Duration = Duration::from_secs(4);
/// A loop that never waits takes a sample at least every ten milliseconds, on the slowest of machines.
const SAMPLES_MAX: usize = 60;

#[test]
fn an_agent_without_work_rests() {
    for without in WITHOUT {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("pods")).unwrap();
        fs::write(path("config.yaml"), CONFIG).unwrap();
        let mut agent = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["run", "--output", "json", "--without", without])
            // Nobody's memory or disk is short, whatever else this machine does.
            .args(["--eviction-hard", "memory.available<1Ki"])
            .arg("--config")
            .arg(path("config.yaml"))
            .arg("--manifests")
            .arg(path("pods"))
            .arg("--state-dir")
            .arg(path("state"))
            .arg("--journal")
            .arg(path("journal"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(agent.stdout.take().unwrap()).lines();
        let is_started = lines.by_ref().any(|line| {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            line["event"] == "started"
        });
        let reading = std::thread::spawn(move || lines.for_each(drop));
        std::thread::sleep(WATCHED);
        let pid = rustix::process::Pid::from_child(&agent);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let ended = agent.wait().unwrap();
        reading.join().unwrap();
        assert!(is_started && ended.success(), "{without}: {ended}");
        let journal = fs::read_to_string(path("journal")).unwrap();
        let samples = journal
            .lines()
            .filter(|line| line.contains(r#""event":"sample""#))
            .count();
        assert!(
            (1..SAMPLES_MAX).contains(&samples),
            "without {without}: {samples} samples in {WATCHED:?}"
        );
    }
}
