//! Ending a pod's processes: SIGTERM to each container's leader, SIGKILL to all, and their memory freed by a thread ([`release`]).
//!
//! **Problem.** At the moment of a kill there is no memory: nothing may be allocated, and no file opened whose dentry and inode are not
//! pinned already. And a pid read from a file may, by the time of the signal, belong to a process of somebody else.
//! **Approach.** [`PodKill::open`] and [`PodKill::refresh`] run when the pod appears and whenever its cgroups change; they open
//! directories, `cgroup.kill` and a pidfd for each leader. [`PodKill::sigterm`] and [`PodKill::kill`]
//! use only those, and buffers on the stack. They never wait: the caller sees from the cgroup's usage and [`PodKill::is_populated`]
//! whether the kill has worked, and may call again.
//!
//! **No signal can reach a stranger.** A signal goes only through a pidfd, and only when the pid was listed in the container's
//! `cgroup.procs` in a read that began after the pidfd had been opened. Let P be the process behind the pidfd. If P is alive at that
//! read, the pid is P's own, so the listed process is P. If P is dead by then, a signal through its pidfd gets ESRCH, whoever has its
//! pid now. The read is by a new open file, because v1 gives one open file the same list again for a second (kernel/cgroup/cgroup-v1.c,
//! `cgroup_pidlist_start`).
//!
//! **Which way.** v2 since 5.14 has `cgroup.kill`, which is atomic, also against forks. On v1, and before 5.14, each process is
//! signalled, in rounds, until a round finds none that is new: a process with SIGKILL pending cannot fork, so each round is shorter.
//! On hybrid hosts both are done, since a runtime may not have put the pod into the unified tree.

mod count;
pub mod release;

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::kube::pod::PressureSignal;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::host::HostRoot;
use crate::host::cgroup::CGROUP_DEPTH_MAX;
use crate::host::cgroup::{CgroupError, CgroupMounts, CgroupPath, Controller, cgroup_id};
use crate::host::file::{ControlFile, FileError, errno_of};
use crate::host::processes::start_ticks;

/// Cgroups of one pod at most: containers and the cgroups that those make inside.
pub const CGROUPS_PER_POD_MAX: usize = 256;
/// Rounds of SIGKILL in one call of [`PodKill::kill`].
pub const KILL_ROUNDS_MAX: u32 = 16;

/// Open pidfds at one time.
const BATCH: usize = 64;
/// Of a directory without directories in it: its name, and its `.`.
const DIRECTORY_LINKS: u64 = 2;
const PROCS_FILE: &CStr = c"cgroup.procs";
const PROCS_CHUNK_BYTES: usize = 4096;
/// Reads of one `cgroup.procs`: enough for 4 million pids, the kernel's own limit, of 8 bytes each.
const PROCS_CHUNKS_MAX: usize = 8192;

/// What [`PodKill::sigterm`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signalled {
    /// Processes that got the signal.
    pub processes: u32,
}

/// By which way a pod was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillMethod {
    /// `cgroup.kill`.
    CgroupKill,
    /// SIGKILL to each process.
    Signals,
    /// Both (hybrid hosts).
    CgroupKillAndSignals,
}

/// What [`PodKill::kill`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Killed {
    /// By which way.
    pub how: KillMethod,
    /// Processes signalled one by one; 0 by `cgroup.kill` alone, which does not tell.
    pub processes: u32,
    /// Rounds of signals; 0 by `cgroup.kill` alone.
    pub rounds: u32,
}

#[derive(Debug)]
enum Leader {
    /// No process has been seen in the container yet.
    Unknown,
    Running {
        pid: Pid,
        pidfd: OwnedFd,
    },
    /// It has ended; a runtime would send nothing now.
    Exited,
}

/// One cgroup of the pod: the pod's own, a container's, or one that a container made.
#[derive(Debug)]
struct Member {
    path: Arc<Path>,
    id: u64,
    /// Cgroups in it when it was last read; `None`: it is so deep that it is not read.
    children: Option<u64>,
    dir: OwnedFd,
    /// Never read; keeps the dentry and the inode of `cgroup.procs` in memory, so that opening it again reads no disk and makes nothing.
    _procs_pin: OwnedFd,
    is_container: bool,
    leader: Leader,
}

/// Everything open that it takes to end one pod.
#[derive(Debug)]
pub struct PodKill {
    host: HostRoot,
    pod_dir: Arc<Path>,
    cgroup_kill: Option<ControlFile>,
    /// `cgroup.kill` reaches every process: the tree that it belongs to is also the one that accounts memory.
    is_unified: bool,
    members: Vec<Member>,
}

impl PodKill {
    /// Opens what there is now. Processes and containers that come later are found by [`PodKill::refresh`].
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the pod's cgroup does not exist; [`CgroupError::NoController`] when it does not and memory is not accounted either.
    pub fn open(
        host: &HostRoot,
        mounts: &CgroupMounts,
        pod: &CgroupPath,
    ) -> Result<Self, CgroupError> {
        // Where memory is accounted is where the processes must be found; without that controller, any tree that has the pod will do.
        let others = || {
            mounts
                .unified()
                .into_iter()
                .chain(mounts.hierarchies())
                .find(|hierarchy| hierarchy.has(pod))
        };
        let hierarchy = match mounts.hierarchy_of(Controller::Memory) {
            Ok(hierarchy) => hierarchy,
            Err(error) => others().ok_or(error)?,
        };
        let unified = mounts.unified().filter(|unified| unified.has(pod));
        let cgroup_kill = match unified
            .map(|unified| ControlFile::open_to_write(unified.dir(pod).join("cgroup.kill")))
        {
            Some(Ok(file)) => Some(file),
            Some(Err(error)) if error.is_vanished() => None, // before 5.14
            Some(Err(error)) => return Err(error.into()),
            None => None,
        };
        let is_unified = unified == Some(hierarchy);
        let mut pod_kill = Self {
            host: host.clone(),
            pod_dir: Arc::from(hierarchy.dir(pod)),
            cgroup_kill,
            is_unified,
            members: Vec::new(),
        };
        pod_kill.refresh()?;
        Ok(pod_kill)
    }

    /// As [`PodKill::open`], for a kernel before 5.14: signals only. Lets the fallback be used, and tested, on any kernel.
    ///
    /// # Errors
    /// As for [`PodKill::open`].
    pub fn open_without_cgroup_kill(
        host: &HostRoot,
        mounts: &CgroupMounts,
        pod: &CgroupPath,
    ) -> Result<Self, CgroupError> {
        let pod_kill = Self::open(host, mounts, pod)?;
        Ok(Self {
            cgroup_kill: None,
            ..pod_kill
        })
    }

    /// Picks up new containers and leaders, and drops cgroups that are gone. Returns whether any process is left, as [`PodKill::is_populated`]
    /// does. Allocates and opens: not for the hot path.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the pod's cgroup is gone.
    pub fn refresh(&mut self) -> Result<bool, FileError> {
        if !self.is_as_known() {
            self.read_cgroups()?;
        }
        let mut is_populated = false;
        for member in &mut self.members {
            match member.refresh_leader(&self.host) {
                Ok(has_processes) => is_populated |= has_processes,
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(is_populated)
    }

    /// Whether reading the directories would find what is known. A cgroup's directory has a link for each directory in it (`kernfs_refresh_inode`):
    /// as many as before, of which all that are known are still there, are the same. A tenth of what it costs to read
    /// directories of sixty files each.
    fn is_as_known(&self) -> bool {
        let is_whole = !self.members.is_empty() && self.members.len() < CGROUPS_PER_POD_MAX;
        is_whole
            && self.members.iter().all(|member| {
                member.path.metadata().is_ok_and(|now| {
                    let children = now.nlink().checked_sub(DIRECTORY_LINKS);
                    now.ino() == member.id
                        && (member.children.is_none() || member.children == children)
                })
            })
    }

    fn read_cgroups(&mut self) -> Result<(), FileError> {
        let found = cgroups_below(&self.pod_dir)?;
        // A container that was restarted has a new cgroup of the same name.
        self.members.retain(|member| {
            found
                .iter()
                .any(|cgroup| cgroup.id == member.id && *cgroup.path == *member.path)
        });
        self.members
            .reserve_exact(found.len().saturating_sub(self.members.len()));
        for Cgroup {
            path,
            depth,
            id,
            children,
        } in found
        {
            let mut known = self.members.iter_mut();
            if let Some(member) = known.find(|member| *member.path == *path) {
                member.children = children;
                continue;
            }
            match Member::open(&path, id, depth == 1) {
                Ok(member) => self.members.push(Member { children, ..member }),
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The pod's cgroup and those below it, as of the last refresh: directory, and id in its hierarchy.
    pub fn cgroups(&self) -> impl Iterator<Item = (&Path, u64)> + '_ {
        self.members.iter().map(|member| (&*member.path, member.id))
    }

    /// Containers whose leader is known and was running at the last refresh.
    pub fn leaders(&self) -> impl Iterator<Item = Pid> + '_ {
        self.members
            .iter()
            .filter_map(|member| match &member.leader {
                Leader::Running { pid, .. } => Some(*pid),
                _ => None,
            })
    }

    /// Whether `cgroup.kill` will be used.
    pub fn has_cgroup_kill(&self) -> bool {
        self.cgroup_kill.is_some()
    }

    /// Sends SIGTERM as a container runtime does: to each container's first process. A container whose first process has ended gets
    /// nothing; one in which none has been seen gets it for all its processes. Allocates nothing.
    ///
    /// # Errors
    /// [`FileError::Unreadable`] when `cgroup.procs` cannot be read, after the other containers have been served. A cgroup that is gone is no error.
    pub fn sigterm(&self) -> Result<Signalled, FileError> {
        let mut signalled = Signalled::default();
        let mut first_error = None;
        for member in self.members.iter().filter(|member| member.is_container) {
            let sent = match &member.leader {
                Leader::Running { pid, pidfd } => member.signal_leader(*pid, pidfd, Signal::TERM),
                Leader::Exited => Ok(0),
                Leader::Unknown => member
                    .signal_all(Signal::TERM, &mut SeenPids::new())
                    .map(|round| round.signalled),
            };
            match sent {
                Ok(processes) => signalled.processes += processes,
                Err(error) if error.is_vanished() => {}
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(signalled), Err)
    }

    /// Tells each container's first process that memory is short. One that is not known, or has ended, gets nothing. Allocates nothing.
    ///
    /// # Errors
    /// As for [`PodKill::sigterm`].
    pub fn notify(&self, signal: PressureSignal) -> Result<Signalled, FileError> {
        let signal = match signal {
            PressureSignal::Hup => Signal::HUP,
            PressureSignal::Usr1 => Signal::USR1,
            PressureSignal::Usr2 => Signal::USR2,
            PressureSignal::Urg => Signal::URG,
            PressureSignal::Winch => Signal::WINCH,
        };
        let mut signalled = Signalled::default();
        let mut first_error = None;
        for member in self.members.iter().filter(|member| member.is_container) {
            let Leader::Running { pid, pidfd } = &member.leader else {
                continue;
            };
            match member.signal_leader(*pid, pidfd, signal) {
                Ok(processes) => signalled.processes += processes,
                Err(error) if error.is_vanished() => {}
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(signalled), Err)
    }

    /// Kills every process of the pod. Allocates nothing and does not wait for them to be gone.
    ///
    /// # Errors
    /// [`FileError`] when neither `cgroup.kill` nor `cgroup.procs` could be used. A cgroup that is gone is no error: nothing is left to kill.
    pub fn kill(&self) -> Result<Killed, FileError> {
        let mut kill_error = None;
        let mut is_killed = false;
        if let Some(file) = &self.cgroup_kill {
            match file.write(b"1") {
                Ok(()) => is_killed = true,
                Err(error) if error.is_vanished() => is_killed = true,
                Err(error) => kill_error = Some(error), // EOPNOTSUPP in a threaded cgroup
            }
        }
        if is_killed && self.is_unified {
            return Ok(Killed {
                how: KillMethod::CgroupKill,
                processes: 0,
                rounds: 0,
            });
        }
        let how = if is_killed {
            KillMethod::CgroupKillAndSignals
        } else {
            KillMethod::Signals
        };
        let mut killed = Killed {
            how,
            processes: 0,
            rounds: 0,
        };
        let mut seen = SeenPids::new();
        let mut procs_error = None;
        while killed.rounds < KILL_ROUNDS_MAX {
            killed.rounds += 1;
            let mut new = 0;
            for member in &self.members {
                match member.signal_all(Signal::KILL, &mut seen) {
                    Ok(round) => new += round.new,
                    Err(error) if error.is_vanished() => {}
                    Err(error) => procs_error = Some(error),
                }
            }
            killed.processes += new;
            if new == 0 {
                break;
            }
        }
        match procs_error.or(kill_error) {
            Some(error) if killed.processes == 0 && !is_killed => Err(error),
            _ => Ok(killed),
        }
    }

    /// The pod's cgroup.
    pub fn directory(&self) -> &Arc<Path> {
        &self.pod_dir
    }

    /// Whether any process is left in the pod's cgroups. Allocates nothing.
    ///
    /// # Errors
    /// [`FileError::Unreadable`] when `cgroup.procs` cannot be read. A cgroup that is gone is empty.
    pub fn is_populated(&self) -> Result<bool, FileError> {
        for member in &self.members {
            let mut any = false;
            match member.for_each_pid(&mut |_| any = true) {
                Ok(()) if any => return Ok(true),
                Ok(()) => {}
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Round {
    signalled: u32,
    new: u32,
}

impl Member {
    fn open(path: &Path, id: u64, is_container: bool) -> Result<Self, FileError> {
        let path: Arc<Path> = Arc::from(path);
        let dir = rustix::fs::open(&*path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| file_error(&path, errno))?;
        let procs = open_procs(&dir).map_err(|errno| file_error(&path, errno))?;
        Ok(Self {
            path,
            id,
            children: None,
            dir,
            _procs_pin: procs,
            is_container,
            leader: Leader::Unknown,
        })
    }

    /// Returns whether any process is in this cgroup.
    fn refresh_leader(&mut self, host: &HostRoot) -> Result<bool, FileError> {
        let known = match &self.leader {
            Leader::Running { pid, .. } => Some(*pid),
            Leader::Exited | Leader::Unknown => None,
        };
        let is_unknown = matches!(self.leader, Leader::Unknown);
        let (mut has_processes, mut is_known_listed) = (false, false);
        // cgroup.procs is in no useful order (v1: by pid; v2: by css_set), so the oldest is looked for.
        let mut oldest = None;
        self.for_each_pid(&mut |pid| {
            has_processes = true;
            is_known_listed |= known == Some(pid);
            if is_unknown && let Some(ticks) = start_ticks(host, pid) {
                let age = (ticks, pid.as_raw_nonzero());
                if oldest.is_none_or(|(known, _)| age < known) {
                    oldest = Some((age, pid));
                }
            }
        })?;
        if known.is_some() && !is_known_listed {
            self.leader = Leader::Exited;
        }
        if let Some((_, pid)) = oldest
            && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
            && self.is_listed(pid)?
        {
            self.leader = Leader::Running { pid, pidfd };
        }
        Ok(has_processes)
    }

    fn signal_leader(&self, pid: Pid, pidfd: &OwnedFd, signal: Signal) -> Result<u32, FileError> {
        // The pidfd is older than this read: see the module's proof.
        if !self.is_listed(pid)? {
            return Ok(0);
        }
        match pidfd_send_signal(pidfd, signal) {
            Ok(()) => Ok(1),
            Err(Errno::SRCH) => Ok(0),
            Err(source) => Err(FileError::NotSignalled {
                path: Arc::clone(&self.path),
                source,
            }),
        }
    }

    /// Signals every process of this cgroup, a batch at a time.
    fn signal_all(&self, signal: Signal, seen: &mut SeenPids) -> Result<Round, FileError> {
        let mut round = Round::default();
        let mut batch: [Option<(Pid, OwnedFd)>; BATCH] = [const { None }; BATCH];
        let mut filled = 0;
        let mut batch_error = None;
        self.for_each_pid(&mut |pid| {
            // Neither ourselves nor the machine's init: whoever put them into a pod, killing them would end more than the pod.
            if pid == rustix::process::getpid() || pid == Pid::INIT {
                return;
            }
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
                batch[filled] = Some((pid, pidfd));
                filled += 1;
            }
            if filled == BATCH {
                filled = 0;
                if let Err(error) = self.signal_batch(&mut batch, signal, seen, &mut round) {
                    batch_error = Some(error);
                }
            }
        })?;
        self.signal_batch(&mut batch, signal, seen, &mut round)?;
        batch_error.map_or(Ok(round), Err)
    }

    fn signal_batch(
        &self,
        batch: &mut [Option<(Pid, OwnedFd)>; BATCH],
        signal: Signal,
        seen: &mut SeenPids,
        round: &mut Round,
    ) -> Result<(), FileError> {
        if batch.iter().all(Option::is_none) {
            return Ok(());
        }
        let mut refused = None;
        let result = self.for_each_pid(&mut |listed| {
            for slot in batch.iter_mut() {
                let Some((pid, pidfd)) = slot else { continue };
                if *pid != listed {
                    continue;
                }
                match pidfd_send_signal(&*pidfd, signal) {
                    Ok(()) => {
                        round.signalled += 1;
                        round.new += u32::from(seen.insert(listed));
                    }
                    Err(Errno::SRCH) => {}
                    // EPERM: another user's process, and no CAP_KILL.
                    Err(errno) => refused = Some(errno),
                }
                *slot = None;
            }
        });
        // Those that are not listed any more have ended or moved away: they are not the pod's.
        batch.fill_with(|| None);
        match refused {
            Some(source) if result.is_ok() => Err(FileError::NotSignalled {
                path: Arc::clone(&self.path),
                source,
            }),
            _ => result,
        }
    }

    fn is_listed(&self, wanted: Pid) -> Result<bool, FileError> {
        let mut is_listed = false;
        self.for_each_pid(&mut |pid| is_listed |= pid == wanted)?;
        Ok(is_listed)
    }

    /// Calls `f` for each process now in this cgroup. A pid of 0 (a process of a pid namespace that we do not see) is left out.
    fn for_each_pid(&self, f: &mut dyn FnMut(Pid)) -> Result<(), FileError> {
        for_each_pid(&self.dir, &self.path, f)
    }
}

/// Calls `f` for each process now in the cgroup `dir`, whose path is `path`. A pid of 0 (a process of a pid namespace that we do not see) is left out.
fn for_each_pid(dir: &OwnedFd, path: &Arc<Path>, f: &mut dyn FnMut(Pid)) -> Result<(), FileError> {
    let procs = open_procs(dir).map_err(|errno| file_error(path, errno))?;
    let mut pids = PidParser::default();
    let mut buffer = [MaybeUninit::uninit(); PROCS_CHUNK_BYTES];
    for _ in 0..PROCS_CHUNKS_MAX {
        let (chunk, _) = loop {
            match rustix::io::read(&procs, &mut buffer) {
                Err(Errno::INTR) => {}
                read => break read,
            }
        }
        .map_err(|errno| file_error(path, errno))?;
        if chunk.is_empty() {
            pids.end(f);
            return Ok(());
        }
        pids.feed(chunk, f).map_err(|line| FileError::Malformed {
            path: Arc::clone(path),
            line,
            expected: "a pid on each line of cgroup.procs",
        })?;
    }
    Ok(())
}

fn open_procs(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(
        dir,
        PROCS_FILE,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

fn file_error(path: &Arc<Path>, source: Errno) -> FileError {
    let path = Arc::clone(path);
    match source {
        Errno::NOENT | Errno::NODEV => FileError::Vanished { path },
        _ => FileError::Unreadable { path, source },
    }
}

/// A cgroup found below a pod's.
#[derive(Debug, Clone)]
struct Cgroup {
    path: PathBuf,
    /// 0 for the pod's own.
    depth: usize,
    /// Its directory's inode number: the same path with another id is another cgroup.
    id: u64,
    /// Directories in it, if it was read.
    children: Option<u64>,
}

/// The pod's cgroup and those below it.
fn cgroups_below(pod_dir: &Path) -> Result<Vec<Cgroup>, FileError> {
    let mut found = vec![Cgroup {
        path: pod_dir.to_owned(),
        depth: 0,
        id: cgroup_id(pod_dir)?,
        children: None,
    }];
    let mut next = 0;
    while next < found.len() && found.len() < CGROUPS_PER_POD_MAX {
        let Cgroup { path, depth, .. } = found[next].clone();
        next += 1;
        if depth == CGROUP_DEPTH_MAX {
            continue;
        }
        // Also of one that has vanished: should it be back, it is read.
        found[next - 1].children = Some(0);
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(file_error(&Arc::from(path.as_path()), errno_of(&error))),
        };
        let mut children: Vec<Cgroup> = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| Cgroup {
                path: entry.path(),
                depth: depth + 1,
                id: entry.ino(),
                children: None,
            })
            .collect();
        found[next - 1].children = u64::try_from(children.len()).ok();
        children.sort_unstable_by(|left, right| left.path.cmp(&right.path));
        children.truncate(CGROUPS_PER_POD_MAX - found.len());
        found.extend(children);
    }
    Ok(found)
}

/// Pids from the chunks of a `cgroup.procs`, which may cut a number in two.
#[derive(Debug, Default)]
struct PidParser {
    value: Option<i32>,
    line: u32,
}

impl PidParser {
    fn feed(&mut self, chunk: &[u8], f: &mut dyn FnMut(Pid)) -> Result<(), u32> {
        for byte in chunk {
            match byte {
                b'0'..=b'9' => {
                    let digit = i32::from(byte - b'0');
                    let value = self
                        .value
                        .unwrap_or(0)
                        .checked_mul(10)
                        .and_then(|value| value.checked_add(digit));
                    self.value = Some(value.ok_or(self.line + 1)?);
                }
                b'\n' => self.end(f),
                _ => return Err(self.line + 1),
            }
        }
        Ok(())
    }

    fn end(&mut self, f: &mut dyn FnMut(Pid)) {
        self.line += 1;
        if let Some(pid) = self.value.take().and_then(Pid::from_raw) {
            f(pid);
        }
    }
}

/// Which pids were signalled in this call. Two pids may share a bit; the cost is a round too few, and the caller sees who is left.
#[derive(Debug)]
struct SeenPids([u64; 1024]);

impl SeenPids {
    fn new() -> Self {
        Self([0; 1024])
    }

    /// Whether it was not in yet.
    fn insert(&mut self, pid: Pid) -> bool {
        let bit = pid.as_raw_nonzero().get().unsigned_abs() as usize % (1024 * 64);
        let (word, mask) = (bit / 64, 1 << (bit % 64));
        let is_new = self.0[word] & mask == 0;
        self.0[word] |= mask;
        is_new
    }
}

#[cfg(test)]
mod tests;
