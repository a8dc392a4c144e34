//! What one sees while the story runs.

use std::fs;
use std::time::Instant;

use super::super::agent::{Event, Started};
use super::super::memory;
use super::super::node::Node;
use super::super::pod::Pod;
use super::super::table::{bytes, duration};

const BAR_WIDTH: u64 = 50;

/// Writes to standard output, or stays silent when many runs are only measured.
pub(super) struct Narrator {
    start: Instant,
    loud: bool,
    steps: bool,
    last_step: String,
}

impl Narrator {
    pub(super) fn new(loud: bool, steps: bool) -> Self {
        Self {
            start: Instant::now(),
            loud,
            steps,
            last_step: String::new(),
        }
    }

    /// What is done next; `cargo xtask demo` says it when the guest ends in the middle of it.
    pub(super) fn step(&mut self, name: &str) {
        name.clone_into(&mut self.last_step);
        if self.steps {
            println!("@@PLIMSOLL-STEP {name}@@");
        }
    }

    pub(super) fn last_step(&self) -> &str {
        &self.last_step
    }

    fn say(&self, line: &str) {
        if self.loud {
            println!("[{:5.1} s] {line}", self.start.elapsed().as_secs_f32());
        }
    }

    pub(super) fn machine(&self, total_bytes: u64, threshold: &str, without: bool) {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let nodes = count("/sys/devices/system/node", "node");
        let cpus = count("/sys/devices/system/cpu", "cpu");
        self.say(&format!(
            "a node: kernel {}, {}, CPUs: {cpus}, NUMA nodes: {nodes}",
            kernel.trim(),
            bytes(total_bytes),
        ));
        if without {
            self.say(&format!(
                "no agent today; the kubelet would poll for {threshold} every 10 s"
            ));
        } else {
            self.say(&format!("to be held: {threshold}"));
        }
    }

    pub(super) fn pod(&self, node: &Node, pod: &Pod, what: &str) {
        let request = pod
            .requests
            .iter()
            .find(|(resource, _)| *resource == "memory")
            .map_or("nothing", |(_, quantity)| quantity.as_str());
        let used = usage_bytes(node, pod).map_or_else(|| "?".to_owned(), bytes);
        self.say(&format!(
            "pod {:<9} {:<10} uses {used:>10}, requests {request:>7}: {what}",
            pod.name,
            pod.qos()
        ));
    }

    pub(super) fn agent(&self, started: &Started) {
        self.say(&format!("plimsoll run, pid {}", started.pid));
        for mechanism in started
            .mechanisms
            .iter()
            .filter(|mechanism| mechanism.role == "primary")
        {
            self.say(&format!(
                "    {:<16} {:<10} {}",
                mechanism.signal, mechanism.mechanism, mechanism.why
            ));
        }
        for lost in &started.lost {
            self.say(&format!("    lost: {lost}"));
        }
    }

    /// Available memory as a bar; `|` is the threshold.
    pub(super) fn bar(&self, threshold_bytes: u64, node: &Node, leaky: &Pod) {
        let Ok(info) = memory::read() else { return };
        let total_bytes = info.total_bytes.max(1);
        let cell = |bytes: u64| bytes.min(total_bytes) * BAR_WIDTH / total_bytes;
        let (full, mark) = (
            cell(info.working_set_available_bytes()),
            cell(threshold_bytes),
        );
        let bar: String = (0..BAR_WIDTH)
            .map(|index| match index {
                _ if index == mark => '|',
                _ if index < full => '#',
                _ => '.',
            })
            .collect();
        let hog = usage_bytes(node, leaky).map_or_else(|| "gone".to_owned(), bytes);
        self.say(&format!(
            "available [{bar}] {:>10}   leaky {hog:>10}",
            bytes(info.working_set_available_bytes())
        ));
    }

    pub(super) fn event(&self, event: &Event) {
        match event {
            Event::Decision(decision) => self.say(&format!(">>> {}", decision.text)),
            Event::EvictionFinished(finished) => {
                let after = |at: Option<u64>| {
                    super::super::table::since(at, finished.crossed_ns)
                        .map_or_else(|| "-".to_owned(), duration)
                };
                self.say(&format!(
                    ">>> {} {}: gone {} and {} back {} after the crossing",
                    finished.pod,
                    finished.outcome,
                    after(finished.gone_ns),
                    bytes(finished.freed_bytes),
                    after(finished.freed_ns)
                ));
            }
            Event::Warning { text } => self.say(&format!("!!! {text}")),
            Event::Started(_)
            | Event::Stopped(_)
            | Event::KernelOomKill { .. }
            | Event::DiskFreed { .. }
            | Event::LastLineKill { .. }
            | Event::Other => {}
        }
    }
}

fn usage_bytes(node: &Node, pod: &Pod) -> Option<u64> {
    let read = |file| {
        fs::read_to_string(node.cgroup_file(pod, file))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    read("memory.current").or_else(|| read("memory.usage_in_bytes"))
}

/// Entries NAME0, NAME1, … of a directory.
fn count(directory: &str, name: &str) -> usize {
    let numbered = |entry: &fs::DirEntry| {
        let entry = entry.file_name();
        entry
            .to_string_lossy()
            .strip_prefix(name)
            .is_some_and(|rest| rest.parse::<u32>().is_ok())
    };
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(numbered)
        .count()
}

/// Time in which all tasks stalled for memory, microseconds since boot (`full` of `/proc/pressure/memory`).
pub(super) fn memory_stall_us() -> u64 {
    let text = fs::read_to_string("/proc/pressure/memory").unwrap_or_default();
    text.lines()
        .find_map(|line| {
            line.strip_prefix("full")?
                .split("total=")
                .nth(1)?
                .trim()
                .parse()
                .ok()
        })
        .unwrap_or(0)
}
