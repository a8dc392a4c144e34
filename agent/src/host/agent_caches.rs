//! What walking directories leaves behind in the agent's own cgroup.
//!
//! **Problem.** The `stat` of a file makes its inode and its name in the kernel, and both are charged to the cgroup of
//! who asked. With a limit, as in a DaemonSet, a walk over some 300,000 files of tenants fills it and keeps it full;
//! then every allocation of every thread reclaims first, the loop's too: 64 openings of `cgroup.procs` took 34 ms
//! instead of 0.5. **Approach.** After each slice the thread that walks looks at its own cgroup. Above [`FULL`] of the
//! limit it has the kernel drop what goes beyond [`LEFT`] (`memory.reclaim`, cgroup v2 since Linux 5.19), so that it
//! waits itself. What else the agent has is locked in memory, and stays, if it is alone in the cgroup. This is no
//! setting: nothing is left to put back.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::HostRoot;
use super::cgroup::{CgroupMounts, Controller, Version};
use super::file::{ControlFile, FileError};
use super::protect::current_v2_cgroup;

/// From this part of the limit on something is dropped: numerator and denominator.
const FULL: (u64, u64) = (3, 4);
/// Down to this part of it.
const LEFT: (u64, u64) = (1, 2);
/// In one call, which takes some ten milliseconds for so much; the next slice goes on.
const RECLAIM_BYTES_MAX: u64 = 64 << 20;
/// After the kernel has found too little to drop: what is left there is locked.
const REST: Duration = Duration::from_secs(10);

/// The caches of the cgroup that this process is in.
#[derive(Debug)]
pub struct AgentCaches {
    host: HostRoot,
    mounts: CgroupMounts,
    not_before: Option<Instant>,
    /// Why nothing is dropped has been said.
    is_said: bool,
}

impl AgentCaches {
    /// Of this process on `host`.
    pub fn new(host: HostRoot, mounts: CgroupMounts) -> Self {
        Self {
            host,
            mounts,
            not_before: None,
            is_said: false,
        }
    }

    /// Drops what is too much. May take long: for the thread that has caused it. What cannot be done is said once, and
    /// only to who debugs: the walk goes on as without it.
    pub fn trim(&mut self, now: Instant) {
        if self.rests(now) {
            return;
        }
        match self.try_trim() {
            Ok(true) => {}
            Ok(false) => self.not_before = Some(now + REST),
            Err(why) => self.cannot(now, &why),
        }
    }

    /// Whether there is something to drop, and it is time. What cannot be told counts as no.
    pub fn is_full(&mut self, now: Instant) -> bool {
        if self.rests(now) {
            return false;
        }
        let excess = self.own_dir().and_then(|dir| {
            let excess = excess_bytes(&dir);
            excess.map_err(|error| error.to_string())
        });
        match excess {
            Ok(excess) => excess.is_some(),
            Err(why) => {
                self.cannot(now, &why);
                false
            }
        }
    }

    fn rests(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|at| now < at)
    }

    fn cannot(&mut self, now: Instant, why: &str) {
        self.not_before = Some(now + REST);
        if !std::mem::replace(&mut self.is_said, true) {
            tracing::debug!("caches of walks stay in the agent's own cgroup: {why}");
        }
    }

    /// Looked up each time: the start moves this process, and a supervisor may.
    fn own_dir(&self) -> Result<PathBuf, String> {
        let memory = self.mounts.hierarchy_of(Controller::Memory);
        let memory = memory.map_err(|error| error.to_string())?;
        if memory.version == Version::V1 {
            return Err("cgroup v1 has no memory.reclaim".to_owned());
        }
        Ok(memory.dir(&current_v2_cgroup(&self.host)?))
    }

    /// Whether there may be more to do soon.
    fn try_trim(&self) -> Result<bool, String> {
        let text = |error: FileError| error.to_string();
        let dir = self.own_dir()?;
        let Some(excess_bytes) = excess_bytes(&dir).map_err(text)? else {
            return Ok(true);
        };
        let bytes = excess_bytes.min(RECLAIM_BYTES_MAX).to_string();
        let file = ControlFile::open_to_write(dir.join("memory.reclaim")).map_err(text)?;
        match file.write(bytes.as_bytes()) {
            Ok(()) => Ok(true),
            // It has dropped less than it was asked for.
            Err(FileError::Unwritable {
                source: Errno::AGAIN,
                ..
            }) => Ok(self::excess_bytes(&dir).map_err(text)?.is_none()),
            Err(error) => Err(text(error)),
        }
    }
}

/// What a cgroup has beyond [`LEFT`], if it has more than [`FULL`]; `None` also where nothing limits it.
fn excess_bytes(dir: &Path) -> Result<Option<u64>, FileError> {
    let read = |name: &str| match ControlFile::open(dir.join(name)) {
        // The root has none.
        Err(FileError::Vanished { .. }) => Ok(u64::MAX),
        file => file?.read_u64(),
    };
    // Above memory.high the kernel makes allocations wait.
    let limit_bytes = read("memory.max")?.min(read("memory.high")?);
    if limit_bytes == u64::MAX {
        return Ok(None);
    }
    let part = |(numerator, denominator): (u64, u64)| limit_bytes / denominator * numerator;
    let usage_bytes = read("memory.current")?;
    let is_full = usage_bytes > part(FULL);
    Ok(is_full.then(|| usage_bytes.saturating_sub(part(LEFT))))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::super::cgroup::tests::fake_v2;
    use super::*;

    const MIB: u64 = 1 << 20;

    struct Own {
        _dir: tempfile::TempDir,
        cgroup: PathBuf,
        caches: AgentCaches,
    }

    /// A process in a cgroup with this limit.
    fn own(limit: &str) -> Own {
        let (dir, host) = fake_v2();
        let own = host.procfs(std::process::id().to_string());
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("cgroup"), "0::/agent/plimsoll\n").unwrap();
        let cgroup = host.path("/sys/fs/cgroup/agent/plimsoll");
        fs::create_dir_all(&cgroup).unwrap();
        for (name, text) in [
            ("memory.max", limit),
            ("memory.high", "max"),
            ("memory.reclaim", ""),
        ] {
            fs::write(cgroup.join(name), text).unwrap();
        }
        let mounts = host.cgroup_mounts().unwrap();
        Own {
            _dir: dir,
            cgroup,
            caches: AgentCaches::new(host, mounts),
        }
    }

    impl Own {
        /// What is asked of the kernel while so much is used.
        fn asked(&mut self, usage_bytes: u64, now: Instant) -> String {
            let reclaim = self.cgroup.join("memory.reclaim");
            let usage = format!("{usage_bytes}\n");
            fs::write(self.cgroup.join("memory.current"), usage).unwrap();
            fs::write(&reclaim, "").unwrap();
            self.caches.trim(now);
            fs::read_to_string(reclaim).unwrap()
        }
    }

    #[test]
    fn above_three_quarters_of_the_limit_half_of_it_is_left() {
        let mut own = own("104857600\n");
        let now = Instant::now();
        assert_eq!(own.asked(75 * MIB, now), "");
        assert_eq!(own.asked(80 * MIB, now), (30 * MIB).to_string());
        // memory.high counts as well, and one call has a bound.
        fs::write(own.cgroup.join("memory.high"), "41943040\n").unwrap();
        assert_eq!(own.asked(31 * MIB, now), (11 * MIB).to_string());
        assert_eq!(own.asked(100 * MIB, now), RECLAIM_BYTES_MAX.to_string());
    }

    #[test]
    fn without_a_limit_nothing_is_asked() {
        let mut own = own("max\n");
        let now = Instant::now();
        assert_eq!(own.asked(1 << 50, now), "");
        fs::remove_file(own.cgroup.join("memory.max")).unwrap();
        fs::remove_file(own.cgroup.join("memory.high")).unwrap();
        assert_eq!(own.asked(1 << 50, now), "", "the root");
        assert!(!own.caches.is_said);
    }

    #[test]
    fn a_kernel_without_the_file_is_asked_again_after_a_rest() {
        let mut own = own("104857600\n");
        let reclaim = own.cgroup.join("memory.reclaim");
        let usage = format!("{}\n", 90 * MIB);
        fs::write(own.cgroup.join("memory.current"), usage).unwrap();
        fs::remove_file(&reclaim).unwrap();
        let now = Instant::now();
        own.caches.trim(now);
        assert!(own.caches.is_said && !reclaim.exists());
        assert_eq!(own.asked(90 * MIB, now), "", "it rests");
        assert_eq!(
            own.asked(90 * MIB, now + REST),
            (40 * MIB).to_string(),
            "it is there now"
        );
    }

    #[test]
    fn a_process_whose_cgroup_is_not_known_asks_nothing() {
        let mut own = own("104857600\n");
        let file = own.caches.host.procfs(std::process::id().to_string());
        fs::write(file.join("cgroup"), "0::/../other\n").unwrap();
        assert_eq!(own.asked(90 * MIB, Instant::now()), "");
        assert!(own.caches.is_said);
    }
}
