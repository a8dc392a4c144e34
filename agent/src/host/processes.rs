//! How many processes and threads the node may have, and has: both take a PID.
//!
//! **Problem.** A node without a free PID cannot fork, not even to recover. **Approach.** The kubelet's figures (1.36,
//! pkg/kubelet/stats/pidlimit/pidlimit_linux.go `Stats`, `runningTaskCount`): the limit is the smaller of
//! `kernel.pid_max` and `kernel.threads-max`, or the one of them that can be read; what exists is the number after the
//! slash in `/proc/loadavg`, and `sysinfo(2)` where that cannot be read, which has 16 bits for it (kubernetes#107107).

use std::time::Duration;

use rustix::process::Pid;

use super::HostRoot;
use super::file::{ControlFile, FileError, parse_u64, read_whole};

/// The node's PIDs at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeProcesses {
    /// How many processes and threads there can be.
    pub max: u64,
    /// How many there are.
    pub running: u64,
}

/// The three files, opened once.
#[derive(Debug)]
pub struct ProcessFiles {
    limit: ControlFile,
    other_limit: Option<ControlFile>,
    loadavg: Option<ControlFile>,
}

/// Six figures at most, of 20 digits each.
const LOADAVG_BYTES_MAX: usize = 256;

impl ProcessFiles {
    /// Opens what there is; what there is not is passed to `missing`.
    ///
    /// `None` when there is no limit to be read: then nothing can be said of the node's PIDs.
    pub fn open(host: &HostRoot, mut missing: impl FnMut(FileError)) -> Option<Self> {
        let mut open = |path| match ControlFile::open(host.procfs(path)) {
            Ok(file) => Some(file),
            Err(error) => {
                missing(error);
                None
            }
        };
        let pid_max = open("sys/kernel/pid_max");
        let threads_max = open("sys/kernel/threads-max");
        let loadavg = open("loadavg");
        let mut limits = pid_max.into_iter().chain(threads_max);
        Some(Self {
            limit: limits.next()?,
            other_limit: limits.next(),
            loadavg,
        })
    }

    /// Reads them; allocates nothing. A file that fails while another can stand in for it is passed to `failed`.
    ///
    /// # Errors
    /// When no limit can be read.
    pub fn read(&self, mut failed: impl FnMut(&FileError)) -> Result<NodeProcesses, FileError> {
        let other_limit = self.other_limit.as_ref().map(ControlFile::read_u64);
        let max = match (self.limit.read_u64(), other_limit) {
            (Ok(limit), Some(Ok(other))) => limit.min(other),
            (Ok(max), Some(Err(error))) | (Err(error), Some(Ok(max))) => {
                failed(&error);
                max
            }
            (only, None) => only?,
            (Err(error), Some(Err(_))) => return Err(error),
        };
        let running = match self.loadavg.as_ref().map(read_tasks) {
            Some(Ok(tasks)) => tasks,
            none_or_error => {
                if let Some(Err(error)) = none_or_error {
                    failed(&error);
                }
                u64::from(rustix::system::sysinfo().procs)
            }
        };
        Ok(NodeProcesses { max, running })
    }
}

/// The tasks that exist: the second number of the fourth field.
fn read_tasks(loadavg: &ControlFile) -> Result<u64, FileError> {
    let mut buffer = [0; LOADAVG_BYTES_MAX];
    let text = loadavg.read_into(&mut buffer)?;
    text.split(u8::is_ascii_whitespace)
        .nth(3)
        .and_then(|field| field.split(|byte| *byte == b'/').nth(1))
        .and_then(parse_u64)
        .ok_or_else(|| loadavg.malformed(1, "AVG AVG AVG RUNNABLE/TASKS PID"))
}

/// CPU time of this process and its resident memory in bytes; 0 for what `/proc` does not show.
pub fn process_cost() -> (Duration, u64) {
    let resident_pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split_whitespace().nth(1)?.parse::<u64>().ok())
        .unwrap_or(0);
    let resident_bytes = resident_pages * rustix::param::page_size() as u64;
    (super::clock::cpu_time(), resident_bytes)
}

/// When a process was started, in clock ticks since boot: field 22 of `/proc/PID/stat`. `None` when it is gone.
pub fn start_ticks(host: &HostRoot, pid: Pid) -> Option<u64> {
    let stat = read_whole(host.procfs(format!("{}/stat", pid.as_raw_nonzero()))).ok()?;
    // The command may contain anything, also bytes that are no text, so count from its closing parenthesis: state is
    // field 3.
    let command_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = stat[command_end + 1..].split(u8::is_ascii_whitespace);
    let mut fields = rest.filter(|field| !field.is_empty());
    fields.nth(22 - 3).and_then(parse_u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, HostRoot) {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        std::fs::create_dir_all(host.procfs("sys/kernel")).unwrap();
        for (path, text) in files {
            std::fs::write(host.procfs(path), text).unwrap();
        }
        (dir, host)
    }

    #[test]
    fn the_start_of_a_process_whose_command_is_no_text() {
        let (_dir, host) = host(&[]);
        let pid = Pid::from_raw(77);
        let fields: String = (3..=30).map(|field| format!(" {field}")).collect();
        for command in [&b"sh"[..], b"a) b (c", b"\xff\xfe\n\x1b[8m"] {
            let stat = [b"77 (", command, b")", fields.as_bytes(), b"\n"].concat();
            std::fs::create_dir_all(host.procfs("77")).unwrap();
            std::fs::write(host.procfs("77/stat"), stat).unwrap();
            let ticks = pid.and_then(|pid| start_ticks(&host, pid));
            assert_eq!(ticks, Some(22), "{command:?}");
        }
    }

    const LOADAVG: (&str, &str) = ("loadavg", "1.36 3.49 4.53 2/73518 3715089\n");

    fn never(error: &FileError) {
        panic!("{error}");
    }

    #[test]
    fn the_smaller_limit_counts() {
        for (pids, threads, wanted) in [
            ("32768\n", "192731\n", 32_768),
            ("4194304\n", "15000\n", 15_000),
        ] {
            let (_dir, host) = host(&[
                ("sys/kernel/pid_max", pids),
                ("sys/kernel/threads-max", threads),
                LOADAVG,
            ]);
            let files = ProcessFiles::open(&host, |error| never(&error)).unwrap();
            let read = files.read(never).unwrap();
            assert_eq!((read.max, read.running), (wanted, 73_518));
        }
    }

    #[test]
    fn one_limit_is_enough_and_none_is_not() {
        let (_dir, one) = host(&[("sys/kernel/threads-max", "500\n"), LOADAVG]);
        let mut missing = Vec::new();
        let files = ProcessFiles::open(&one, |error| missing.push(error)).unwrap();
        assert_eq!(files.read(never).unwrap().max, 500);
        assert_eq!(missing.len(), 1);
        assert!(missing[0].path().ends_with("sys/kernel/pid_max"));

        let (_dir, none) = host(&[LOADAVG]);
        let mut missing = 0;
        assert!(ProcessFiles::open(&none, |_| missing += 1).is_none());
        assert_eq!(missing, 2);
    }

    #[test]
    fn a_limit_that_fails_is_reported_and_the_other_counts() {
        let (_dir, host) = host(&[
            ("sys/kernel/pid_max", "many\n"),
            ("sys/kernel/threads-max", "500\n"),
            LOADAVG,
        ]);
        let files = ProcessFiles::open(&host, |error| never(&error)).unwrap();
        let mut failed = Vec::new();
        let read = files.read(|error| failed.push(error.clone())).unwrap();
        assert_eq!(read.max, 500);
        assert!(matches!(failed[..], [FileError::Malformed { .. }]));
        std::fs::write(host.procfs("sys/kernel/threads-max"), "few\n").unwrap();
        assert!(files.read(|_| ()).is_err());
    }

    #[test]
    fn without_loadavg_the_kernel_is_asked() {
        for bad in ["1.36 3.49 4.53\n", "1.36 3.49 4.53 2 3715089\n", ""] {
            let (_dir, host) = host(&[("sys/kernel/pid_max", "500\n"), ("loadavg", bad)]);
            let files = ProcessFiles::open(&host, drop).unwrap();
            let mut failed = 0;
            let read = files.read(|_| failed += 1).unwrap();
            assert_eq!(failed, 1, "{bad:?}");
            assert!(read.running > 0);
        }
    }

    #[test]
    fn this_machine() {
        let files = ProcessFiles::open(&HostRoot::live(), |error| never(&error)).unwrap();
        let read = files.read(never).unwrap();
        assert!(read.running > 0 && read.running < read.max, "{read:?}");
    }
}
