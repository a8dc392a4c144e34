//! One cgroup of a pod: its processes, and signals to them.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, fstatfs};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::file_error;
use super::tree::{Node, Place};
use crate::host::HostRoot;
use crate::host::file::FileError;
use crate::host::processes::start_ticks;
use crate::pods::names::CRUN_CONTAINER;

/// Open pidfds at one time.
pub(super) const BATCH: usize = 64;
const PROCS_CHUNK_BYTES: usize = 4096;
/// Reads of one `cgroup.procs`: enough for 4 million pids, the kernel's own limit, of 8 bytes each.
const PROCS_CHUNKS_MAX: usize = 8192;
const PROCS_FILE: &CStr = c"cgroup.procs";
/// Of a file system of cgroup v2 (include/uapi/linux/magic.h, `CGROUP2_SUPER_MAGIC`).
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// Takes a part of `cgroup.procs`, and says whether it wants more.
type OfChunk<'f> = &'f mut dyn FnMut(&[u8]) -> Result<ControlFlow<()>, FileError>;

#[derive(Debug)]
pub(super) enum FirstProcess {
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
pub(super) struct Member {
    place: Place,
    pub(super) processes: Processes,
    /// Of a container; unknown elsewhere.
    pub(super) first_process: FirstProcess,
}

/// The processes of one cgroup, by its directory.
#[derive(Debug)]
pub(super) struct Processes {
    /// For errors.
    path: Arc<Path>,
    dir: OwnedFd,
    /// Keeps the dentry and the inode of `cgroup.procs` in memory, so that opening it again reads no disk and makes nothing.
    procs: OwnedFd,
    /// A read of `procs` from its beginning lists the processes as they are then: on v2, not on v1.
    pub(super) lists_anew: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Round {
    pub(super) signalled: u32,
    pub(super) new: u32,
}

impl Node for Member {
    fn open(place: Place) -> Result<Self, FileError> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&*place.path, flags, Mode::empty())
            .map_err(|errno| file_error(&place.path, errno))?;
        Ok(Self {
            processes: Processes::of(dir, Arc::clone(&place.path))?,
            place,
            first_process: FirstProcess::Unknown,
        })
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }
}

impl Member {
    /// Whether it is a child of the pod's cgroup, or where crun has a container's processes below systemd's scope for it.
    pub(super) fn is_container(&self) -> bool {
        let path = &self.place.path;
        let is_in_scope = || {
            let above = path.parent().and_then(Path::extension);
            path.ends_with(CRUN_CONTAINER) && above.is_some_and(|end| end == "scope")
        };
        self.place.depth == 1 || self.place.depth == 2 && is_in_scope()
    }

    /// Finds a container's first process, or that it has ended.
    pub(super) fn refresh_first_process(&mut self, host: &HostRoot) -> Result<(), FileError> {
        let known = match &self.first_process {
            FirstProcess::Exited => return Ok(()),
            FirstProcess::Running { pid, .. } => Some(*pid),
            FirstProcess::Unknown => None,
        };
        let mut is_known_listed = false;
        // cgroup.procs is in no useful order (v1: by pid; v2: by css_set), so the oldest is looked for.
        let mut oldest = None;
        self.processes.for_each_pid(&mut |pid| {
            is_known_listed |= known == Some(pid);
            if known.is_none()
                && let Some(ticks) = start_ticks(host, pid)
            {
                let age = (ticks, pid.as_raw_nonzero());
                if oldest.is_none_or(|(known, _)| age < known) {
                    oldest = Some((age, pid));
                }
            }
        })?;
        if known.is_some() && !is_known_listed {
            self.first_process = FirstProcess::Exited;
        }
        if let Some((_, pid)) = oldest
            && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
            && self.processes.is_listed(pid)?
        {
            self.first_process = FirstProcess::Running { pid, pidfd };
        }
        Ok(())
    }

    /// Sends a signal to the first process, if it is known and still in the container. Returns whether it got it.
    pub(super) fn signal_first_process(&self, signal: Signal) -> Result<bool, FileError> {
        match &self.first_process {
            FirstProcess::Running { pid, pidfd } => self.processes.signal(*pid, pidfd, signal),
            FirstProcess::Unknown | FirstProcess::Exited => Ok(false),
        }
    }
}

impl Processes {
    /// Those of the cgroup with this directory.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the cgroup is gone.
    pub(super) fn of(dir: OwnedFd, path: Arc<Path>) -> Result<Self, FileError> {
        let procs = open_procs(&dir).map_err(|errno| file_error(&path, errno))?;
        let lists_anew = fstatfs(&procs).is_ok_and(|file_system| {
            // The field's type is not the same on all machines.
            u64::try_from(file_system.f_type).is_ok_and(|magic| magic == CGROUP2_MAGIC)
        });
        Ok(Self {
            path,
            dir,
            procs,
            lists_anew,
        })
    }

    /// Whether any process is listed in this cgroup itself.
    pub(super) fn has_processes(&self) -> Result<bool, FileError> {
        let mut any = false;
        self.for_each_pid(&mut |_| any = true)?;
        Ok(any)
    }

    /// Returns whether the process got the signal.
    fn signal(&self, pid: Pid, pidfd: &OwnedFd, signal: Signal) -> Result<bool, FileError> {
        // The pidfd is older than this read: see the module's proof.
        if is_spared(pid) || !self.is_listed_anew(pid)? {
            return Ok(false);
        }
        match pidfd_send_signal(pidfd, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(source) => Err(self.not_signalled(source)),
        }
    }

    /// Signals every process of this cgroup, a batch at a time.
    pub(super) fn signal_all(
        &self,
        signal: Signal,
        seen: &mut SeenPids,
    ) -> Result<Round, FileError> {
        let mut round = Round::default();
        let mut batch: [Option<(Pid, OwnedFd)>; BATCH] = [const { None }; BATCH];
        let mut filled = 0;
        let mut batch_error = None;
        self.for_each_pid(&mut |pid| {
            if is_spared(pid) {
                return;
            }
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(pidfd) => {
                    batch[filled] = Some((pid, pidfd));
                    filled += 1;
                }
                Err(Errno::SRCH) => {}
                // No descriptor, or no memory: the process is there, and has no signal.
                Err(source) => {
                    batch_error = Some(FileError::NotSignalled {
                        path: Arc::clone(&self.path),
                        source,
                    });
                }
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
            Some(source) if result.is_ok() => Err(self.not_signalled(source)),
            _ => result,
        }
    }

    fn not_signalled(&self, source: Errno) -> FileError {
        FileError::NotSignalled {
            path: Arc::clone(&self.path),
            source,
        }
    }

    fn is_listed(&self, wanted: Pid) -> Result<bool, FileError> {
        let mut is_listed = false;
        self.for_each_pid(&mut |pid| is_listed |= pid == wanted)?;
        Ok(is_listed)
    }

    /// The same, without opening the file again where it lists anew, and without reading on after the process. Opening it, and being told where it ends,
    /// is most of what SIGTERM takes.
    pub(super) fn is_listed_anew(&self, wanted: Pid) -> Result<bool, FileError> {
        if !self.lists_anew {
            return self.is_listed(wanted);
        }
        let mut is_listed = false;
        let mut pids = PidParser::default();
        self.for_each_chunk_of(&self.procs, &mut |chunk| {
            self.feed(&mut pids, chunk, &mut |pid| is_listed |= pid == wanted)?;
            Ok(if is_listed {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        pids.end(&mut |pid| is_listed |= pid == wanted);
        Ok(is_listed)
    }

    /// Calls `f` for each process now in this cgroup. A pid of 0 (a process of a pid namespace that we do not see) is left out.
    pub(super) fn for_each_pid(&self, f: &mut dyn FnMut(Pid)) -> Result<(), FileError> {
        let mut pids = PidParser::default();
        self.for_each_chunk(&mut |chunk| self.feed(&mut pids, chunk, f))?;
        pids.end(f);
        Ok(())
    }

    fn feed(
        &self,
        pids: &mut PidParser,
        chunk: &[u8],
        f: &mut dyn FnMut(Pid),
    ) -> Result<(), FileError> {
        pids.feed(chunk, f).map_err(|line| FileError::Malformed {
            path: Arc::clone(&self.path),
            line,
            expected: "a pid on each line of cgroup.procs",
        })
    }

    /// Lines, not pids: a process whose pid we do not see (it shows as 0) counts.
    pub(super) fn count(&self) -> Result<u64, FileError> {
        let mut lines = 0;
        self.for_each_chunk(&mut |chunk| {
            lines += chunk.iter().filter(|byte| **byte == b'\n').count() as u64;
            Ok(())
        })?;
        Ok(lines)
    }

    /// Opens `cgroup.procs` and reads it.
    fn for_each_chunk(
        &self,
        f: &mut dyn FnMut(&[u8]) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let procs = open_procs(&self.dir).map_err(|errno| file_error(&self.path, errno))?;
        self.for_each_chunk_of(&procs, &mut |chunk| {
            f(chunk).map(|()| ControlFlow::Continue(()))
        })
    }

    /// Reads `cgroup.procs` from its beginning. A threaded cgroup has none to read (EOPNOTSUPP): its processes are listed in the cgroup that
    /// is the root of its domain, which is the pod's own or one below that (Documentation/admin-guide/cgroup-v2.rst, "Threads").
    fn for_each_chunk_of(&self, procs: &OwnedFd, f: OfChunk<'_>) -> Result<(), FileError> {
        let mut buffer = [MaybeUninit::uninit(); PROCS_CHUNK_BYTES];
        let mut offset = 0;
        for _ in 0..PROCS_CHUNKS_MAX {
            let read = loop {
                match rustix::io::pread(procs, &mut buffer, offset) {
                    Err(Errno::INTR) => {}
                    read => break read,
                }
            };
            let chunk = match read {
                Ok(([], _)) | Err(Errno::OPNOTSUPP) => return Ok(()),
                Ok((chunk, _)) => chunk,
                Err(errno) => return Err(file_error(&self.path, errno)),
            };
            offset += chunk.len() as u64;
            if f(chunk)?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Ourselves and the machine's init: if something has put them into a pod, to end them would end more than the pod.
fn is_spared(pid: Pid) -> bool {
    pid == rustix::process::getpid() || pid == Pid::INIT
}

fn open_procs(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, PROCS_FILE, flags, Mode::empty())
}

/// Pids from the chunks of a `cgroup.procs`, which may cut a number in two.
#[derive(Debug, Default)]
pub(super) struct PidParser {
    value: Option<i32>,
    line: u32,
}

impl PidParser {
    pub(super) fn feed(&mut self, chunk: &[u8], f: &mut dyn FnMut(Pid)) -> Result<(), u32> {
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

    pub(super) fn end(&mut self, f: &mut dyn FnMut(Pid)) {
        self.line += 1;
        if let Some(pid) = self.value.take().and_then(Pid::from_raw) {
            f(pid);
        }
    }
}

/// Which pids were signalled in this call. Two pids may share a bit; the cost is a round too few, and the caller sees who is left.
#[derive(Debug)]
pub(super) struct SeenPids([u64; 1024]);

impl SeenPids {
    pub(super) fn new() -> Self {
        Self([0; 1024])
    }

    /// Whether it was not in yet.
    pub(super) fn insert(&mut self, pid: Pid) -> bool {
        let bit = pid.as_raw_nonzero().get().unsigned_abs() as usize % (1024 * 64);
        let (word, mask) = (bit / 64, 1 << (bit % 64));
        let is_new = self.0[word] & mask == 0;
        self.0[word] |= mask;
        is_new
    }
}
