//! An agent that has nothing to do rests, also where nothing that it was asked for can be had.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "fixtures/agent.rs"]
mod agent;

use std::fs;
use std::time::Duration;

use agent::Agent;

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
        let (config, journal) = (path("config.yaml"), path("journal"));
        let options = [
            ("--without", without),
            ("--config", config.to_str().unwrap()),
            ("--journal", journal.to_str().unwrap()),
        ];
        let cgroup_root = format!("plimsoll-test-idle-{}", std::process::id());
        let options = options.map(<[&str; 2]>::from);
        let mut agent = Agent::start(dir.path(), &cgroup_root, options.as_flattened());
        agent.wait_for("started");
        std::thread::sleep(WATCHED);
        agent.stop();
        let journal = fs::read_to_string(journal).unwrap();
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
