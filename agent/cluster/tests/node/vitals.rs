//! What the machine has left while the tests run: memory, load, and how late a thread is that sleeps. A test that waits
//! for a program in vain is explained by it.

use std::fs::{self, File};
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use super::machine::free_mib;

const PERIOD: Duration = Duration::from_secs(5);
const LOG: &str = "/out/machine.log";
/// So many of the largest processes are named.
const NAMED: usize = 6;

/// Writes a line to `machine.log` every five seconds, as long as the program runs.
pub(crate) fn follow() {
    let mut log = File::options().create(true).append(true).open(LOG).unwrap();
    thread::spawn(move || {
        loop {
            let asleep = Instant::now();
            thread::sleep(PERIOD);
            let late = asleep.elapsed().saturating_sub(PERIOD).as_millis();
            let first = |path: &str| {
                let text = fs::read_to_string(path).unwrap_or_default();
                text.split_whitespace().next().unwrap_or("?").to_owned()
            };
            let line = format!(
                "{} s: {} MiB available, load {}, {late} ms late; {}\n",
                first("/proc/uptime"),
                free_mib(),
                first("/proc/loadavg"),
                largest().join(", ")
            );
            if log.write_all(line.as_bytes()).is_err() {
                return;
            }
        }
    });
}

/// The largest processes, with their resident MiB.
fn largest() -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all: Vec<(u64, String)> = entries
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path().join("status")).ok()?;
            let of = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
            let resident = of("VmRSS:")?.split_whitespace().next()?.parse().ok()?;
            Some((resident, of("Name:")?.trim().to_owned()))
        })
        .collect();
    all.sort_unstable_by(|one, other| other.cmp(one));
    let named = all.iter().take(NAMED);
    named
        .map(|(kib, name)| format!("{name} {}", kib / 1024))
        .collect()
}
