//! A clock that stands still while this machine has no time for what it measures.
//!
//! Problem: a guest or a test that hangs has to be stopped, and one that is slow because this machine is busy must not
//! be. Approach: count the time in which a process and its descendants could have moved: what they ran, or the time in
//! which none of them waited for a CPU. A process that hangs asleep is charged all time, one that spins what it spins,
//! one that is kept from running next to nothing.
//!
//! `/proc/PID/task/*/schedstat` has both figures. Where the kernel lacks it (`CONFIG_SCHED_INFO`), all time counts.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// A longer time between two looks counts as this: this machine slept, or all of us were stopped.
const BETWEEN_LOOKS_MAX: Duration = Duration::from_secs(5);

/// What a thread has had so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Scheduled {
    ran: Duration,
    waited: Duration,
}

/// The clock of a process and its descendants.
#[derive(Debug)]
pub(crate) struct SchedulableTime {
    pid: u32,
    looked: Instant,
    threads: BTreeMap<u32, Scheduled>,
    passed: Duration,
    /// The next look is the first one.
    is_new: bool,
}

impl SchedulableTime {
    /// Starts at zero.
    pub(crate) fn of(pid: u32) -> Self {
        Self {
            pid,
            looked: Instant::now(),
            threads: threads(pid),
            passed: Duration::ZERO,
            is_new: false,
        }
    }

    /// The time since the start, or since the first call after the last [`Self::restart`]. To be called about once a
    /// second.
    pub(crate) fn passed(&mut self) -> Duration {
        let (now, threads) = (Instant::now(), threads(self.pid));
        let between = now
            .saturating_duration_since(self.looked)
            .min(BETWEEN_LOOKS_MAX);
        let mut since = Scheduled::default();
        for (tid, at) in &threads {
            let before = self.threads.get(tid).copied().unwrap_or_default();
            since.ran += at.ran.saturating_sub(before.ran);
            since.waited += at.waited.saturating_sub(before.waited);
        }
        if !std::mem::take(&mut self.is_new) {
            self.passed += schedulable_time(between, since);
        }
        self.looked = now;
        self.threads = threads;
        self.passed
    }

    /// Something has moved: from zero again. What was before is no part of it: it takes no look by itself, as each line
    /// of a program calls it.
    pub(crate) fn restart(&mut self) {
        self.passed = Duration::ZERO;
        self.is_new = true;
    }
}

/// How much of a time threads could have used that ran and waited for a CPU so long, taken together.
fn schedulable_time(between: Duration, since: Scheduled) -> Duration {
    between
        .saturating_sub(since.waited)
        .max(since.ran.min(between))
}

/// The threads of a process and of its descendants.
fn threads(pid: u32) -> BTreeMap<u32, Scheduled> {
    let mut found = BTreeMap::new();
    for process in descendants(pid).into_iter().chain([pid]) {
        // It may have ended meanwhile.
        let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let tid = task.file_name().to_str().and_then(|tid| tid.parse().ok());
            let text = fs::read_to_string(task.path().join("schedstat"));
            if let Some((tid, scheduled)) = tid.zip(text.ok().as_deref().and_then(scheduled)) {
                found.insert(tid, scheduled);
            }
        }
    }
    found
}

/// A `schedstat`: nanoseconds on a CPU, nanoseconds in a run queue, turns.
fn scheduled(text: &str) -> Option<Scheduled> {
    let mut figures = text.split_whitespace().map(str::parse);
    let mut next = || Some(Duration::from_nanos(figures.next()?.ok()?));
    Some(Scheduled {
        ran: next()?,
        waited: next()?,
    })
}

/// The processes below a process, in no order.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let parents: Vec<(u32, u32)> = processes
        .flatten()
        .filter_map(|process| {
            let pid = process.file_name().to_str()?.parse().ok()?;
            let parent = stat(pid)?.get(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = Vec::new();
    let mut open = vec![pid];
    // Ends: a process has one parent, so each is found once; only a pid that was reused during the look could be there
    // twice.
    while let Some(parent) = open.pop() {
        for (child, its_parent) in &parents {
            if *its_parent == parent && !found.contains(child) && *child != pid {
                found.push(*child);
                open.push(*child);
            }
        }
    }
    found
}

/// The fields of `/proc/PID/stat` after the command's name: the first is the state, field 3 of proc_pid_stat(5). `None`
/// when it has ended.
pub(crate) fn stat(pid: u32) -> Option<Vec<String>> {
    fields_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The command's name is in brackets and may have any character.
fn fields_of(stat: &str) -> Option<Vec<String>> {
    let (_, after) = stat.rsplit_once(')')?;
    Some(after.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn since(ran_ms: u64, waited_ms: u64) -> Scheduled {
        Scheduled {
            ran: Duration::from_millis(ran_ms),
            waited: Duration::from_millis(waited_ms),
        }
    }

    #[test]
    fn who_sleeps_or_spins_has_all_time_and_who_waits_for_a_cpu_has_none() {
        assert_eq!(schedulable_time(SECOND, since(0, 0)), SECOND);
        assert_eq!(schedulable_time(SECOND, since(1000, 0)), SECOND);
        assert_eq!(
            schedulable_time(SECOND, since(330, 670)),
            Duration::from_millis(330)
        );
        assert_eq!(schedulable_time(SECOND, since(0, 1000)), Duration::ZERO);
        // Eight threads on two CPUs.
        assert_eq!(schedulable_time(SECOND, since(2000, 6000)), SECOND);
    }

    #[test]
    fn the_kernels_files() {
        assert_eq!(
            scheduled("1500000 2500000 7\n"),
            Some(Scheduled {
                ran: Duration::from_micros(1500),
                waited: Duration::from_micros(2500)
            })
        );
        assert_eq!(scheduled(""), None);
        let fields = fields_of("7 (a) b) S 3 7 7 0").unwrap();
        assert_eq!(fields[..2], ["S", "3"]);
        assert_eq!(fields_of("7 (a"), None);
    }

    #[test]
    fn a_child_and_its_child_are_descendants_and_a_sleeper_is_charged() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & wait"])
            .spawn()
            .unwrap();
        let mut clock = SchedulableTime::of(shell.id());
        // Until there is a sleeper, however long that takes.
        while descendants(shell.id()).is_empty() {
            std::thread::yield_now();
        }
        assert!(descendants(std::process::id()).contains(&shell.id()));
        clock.restart();
        let mut passed = clock.passed();
        while passed < Duration::from_millis(20) {
            std::thread::sleep(Duration::from_millis(5));
            passed = clock.passed();
        }
        clock.restart();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(clock.passed(), Duration::ZERO, "it did not start again");
        for pid in descendants(shell.id()) {
            let _gone = Command::new("kill").arg(pid.to_string()).status();
        }
        shell.wait().unwrap();
    }
}
