//! Did the kernel's OOM killer act? Two witnesses: `/dev/kmsg` says when and whom, `/proc/vmstat` counts.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The kernel's count of processes killed by the OOM killer since boot (`oom_kill` in `/proc/vmstat`).
///
/// # Errors
/// The file cannot be read or has no such line.
pub fn vmstat_oom_kill() -> io::Result<u64> {
    fs::read_to_string("/proc/vmstat")?
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        .ok_or_else(|| {
            io::Error::other("/proc/vmstat has no oom_kill line: kernel older than 4.13?")
        })
}

/// A process that the OOM killer killed, as the kernel's log names it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KernelVictim {
    /// When the record was read, `CLOCK_MONOTONIC`.
    pub seen_ns: u64,
    /// Process id.
    pub pid: u32,
    /// `comm` of the process.
    pub comm: String,
    /// Its memory cgroup, from the `oom-kill:` line before, relative to the mount.
    pub cgroup: Option<String>,
}

/// Follows `/dev/kmsg` from now on.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
    buffer: Box<[u8; 8192]>,
    cgroup: Option<String>,
}

impl KernelLog {
    /// Starts after the last record that is in the log now.
    ///
    /// # Errors
    /// As `open(2)` and `lseek(2)`.
    pub fn from_now() -> io::Result<Self> {
        let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(nonblock)
            .open("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self {
            file,
            buffer: Box::new([0; 8192]),
            cgroup: None,
        })
    }

    /// Appends the victims named since the last call.
    ///
    /// # Errors
    /// As `read(2)`, except that an empty log and an overwritten record are no errors.
    pub fn drain(&mut self, now_ns: u64, victims: &mut Vec<KernelVictim>) -> io::Result<()> {
        while let Some(text) = self.next()? {
            self.record(&text, now_ns, victims);
        }
        Ok(())
    }

    /// The newest `count` lines of those written since the last call, at most: `TIME s: TEXT`.
    ///
    /// # Errors
    /// As [`KernelLog::drain`].
    pub fn newest(&mut self, count: usize) -> io::Result<Vec<String>> {
        let mut lines = VecDeque::with_capacity(count);
        while let Some(text) = self.next()? {
            if lines.len() == count {
                lines.pop_front();
            }
            lines.push_back(line(&text));
        }
        Ok(lines.into())
    }

    /// The next record, if there is one.
    fn next(&mut self) -> io::Result<Option<String>> {
        loop {
            match self.file.read(&mut self.buffer[..]) {
                Ok(length) => {
                    let text = String::from_utf8_lossy(&self.buffer[..length]);
                    return Ok(Some(text.into_owned()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // The log wrapped: the next read continues with the oldest record that is left.
                Err(error) if error.raw_os_error() == Some(Errno::PIPE.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn record(&mut self, text: &str, now_ns: u64, victims: &mut Vec<KernelVictim>) {
        if text.contains("oom-kill:") {
            self.cgroup = between(text, "task_memcg=", ",").map(str::to_owned);
        } else if let Some(rest) = text.split("Killed process ").nth(1) {
            victims.push(KernelVictim {
                seen_ns: now_ns,
                pid: rest
                    .split(' ')
                    .next()
                    .and_then(|pid| pid.parse().ok())
                    .unwrap_or(0),
                comm: between(rest, "(", ")").unwrap_or("?").to_owned(),
                cgroup: self.cgroup.take(),
            });
        }
    }
}

impl AsFd for KernelLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A record `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT` and lines of its properties, for people.
fn line(record: &str) -> String {
    let first = record.lines().next().unwrap_or_default();
    let Some((prefix, text)) = first.split_once(';') else {
        return first.to_owned();
    };
    let us = prefix.split(',').nth(2).and_then(|us| us.parse().ok());
    let us: u64 = us.unwrap_or(0);
    format!("{}.{:06} s: {text}", us / 1_000_000, us % 1_000_000)
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split(after).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_line() {
        let record = "3,1207,528625253,-;Out of memory: Killed process 1043 (hog)\n SUBSYSTEM=x\n";
        assert_eq!(
            line(record),
            "528.625253 s: Out of memory: Killed process 1043 (hog)"
        );
    }

    #[test]
    fn a_kill_is_read_with_its_cgroup() {
        let mut log = KernelLog {
            file: File::open("/dev/null").unwrap(),
            buffer: Box::new([0; 8192]),
            cgroup: None,
        };
        let mut victims = Vec::new();
        log.record("6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/kubepods/besteffort/podx/c,task=hog,pid=7,uid=0\n", 5, &mut victims);
        log.record(
            "3,1,2,-;Out of memory: Killed process 7 (hog) total-vm:1kB, anon-rss:1kB\n",
            5,
            &mut victims,
        );
        assert_eq!(
            victims,
            [KernelVictim {
                seen_ns: 5,
                pid: 7,
                comm: "hog".into(),
                cgroup: Some("/kubepods/besteffort/podx/c".into())
            }]
        );
    }
}
