//! One cgroup of a pod: its processes, and signals to them.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::num::NonZeroI32;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fstatfs};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::ages::{Age, Ages, Answer, oldest};
use super::tree::{Node, Place};
use super::{KeptCgroup, file_error};
use crate::host::HostRoot;
use crate::host::file::FileError;
use crate::pods::names::CRUN_CONTAINER;

/// Processes that are signalled without allocating, at most, and as many pidfds at one time.
pub(super) const BATCH: usize = 256;
/// Processes whose age one call reads, some milliseconds.
pub(super) const PROCESSES_READ_MAX: usize = 256;
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
    /// No process has been seen in the container yet, or not all that it has.
    Unknown(Search),
    Running {
        pid: Pid,
        pidfd: OwnedFd,
    },
    /// It has ended; a runtime would send nothing now.
    Exited,
    /// It lives, in another cgroup, as systemd does in a container. It gets nothing.
    Moved {
        pidfd: OwnedFd,
    },
}

/// The search for the oldest process of a container, so many at a time: `cgroup.procs` is in no useful order (v1: by
/// pid; v2: by css_set), and a container may have tens of thousands. They are looked at by ascending pid; one that
/// comes meanwhile is no older, wherever its pid is.
#[derive(Debug, Default)]
pub(super) struct Search {
    oldest: Option<Age>,
    /// Those with higher pids are left; `None`: all, or none.
    after: Option<NonZeroI32>,
    /// Those up to there are at the thread.
    asked: Option<Answer>,
    /// The thread had no place for them.
    is_refused: bool,
}

impl Search {
    fn go_on(&mut self, ages: Reading<'_>, processes: &Processes) -> Result<(), FileError> {
        if let Some(asked) = &self.asked {
            match asked.try_recv() {
                Ok(oldest) => self.take(oldest),
                Err(TryRecvError::Empty) => return Ok(()),
                // Its end takes them all.
                Err(TryRecvError::Disconnected) => (self.oldest, self.after) = (None, None),
            }
            self.asked = None;
            if self.after.is_none() {
                return Ok(());
            }
        }
        self.is_refused = false;
        let after = match self.after {
            Some(after) => after.get(),
            None => {
                self.oldest = None;
                0
            }
        };
        let mut pids = Vec::new();
        processes.for_each_pid(&mut |pid| {
            if pid.as_raw_nonzero().get() > after {
                pids.push(pid);
            }
        })?;
        let is_cut = pids.len() > PROCESSES_READ_MAX;
        if is_cut {
            pids.select_nth_unstable_by_key(PROCESSES_READ_MAX, |pid| pid.as_raw_nonzero());
            pids.truncate(PROCESSES_READ_MAX);
        }
        let last = pids.iter().map(|pid| pid.as_raw_nonzero()).max();
        match (ages, &pids[..]) {
            // Whenever it was started.
            (_, [alone]) if after == 0 => self.take(Some((0, alone.as_raw_nonzero()))),
            (_, []) => {}
            (Reading::Here(host), pids) => self.take(oldest(host, pids.iter())),
            (Reading::By(thread), _) => match thread.ask(pids) {
                Some(answer) => self.asked = Some(answer),
                None => {
                    // The same ones at the next look.
                    self.is_refused = true;
                    return Ok(());
                }
            },
        }
        self.after = last.filter(|_| is_cut);
        Ok(())
    }

    fn take(&mut self, age: Option<Age>) {
        self.oldest = self.oldest.into_iter().chain(age).min();
    }

    /// Whether the thread is waited for.
    fn waits(&self) -> bool {
        self.asked.is_some() || self.is_refused
    }

    /// The oldest of all.
    fn found(&self) -> Option<Pid> {
        let is_whole = self.after.is_none() && !self.waits();
        let (_, pid) = self.oldest.filter(|_| is_whole)?;
        Pid::from_raw(pid.get())
    }
}

/// Where the ages of processes are read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reading<'a> {
    /// By the thread.
    By(&'a Ages),
    /// By the caller, who waits.
    Here(&'a HostRoot),
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
    /// Keeps the dentry and the inode of `cgroup.procs` in memory, so that opening it again reads no disk and makes
    /// nothing.
    procs: OwnedFd,
    /// A read of `procs` from its beginning lists the processes as they are then: on v2, not on v1.
    pub(super) lists_anew: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Round {
    pub(super) signalled: u32,
    pub(super) new: u32,
    /// There are more processes than were to be signalled.
    pub(super) is_cut: bool,
}

/// Processes that were listed, by pidfds that are older than the next reading. Sorted by their pids before they are
/// signalled.
type Batch = [Option<(Pid, OwnedFd)>];

impl Node for Member {
    fn open(place: Place) -> Result<Self, FileError> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&*place.path, flags, Mode::empty())
            .map_err(|errno| file_error(&place.path, errno))?;
        Ok(Self {
            processes: Processes::of(dir, Arc::clone(&place.path))?,
            place,
            first_process: FirstProcess::Unknown(Search::default()),
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
    pub(super) fn cgroup(&self) -> KeptCgroup<'_> {
        KeptCgroup {
            dir: &self.place.path,
            id: self.place.id,
            depth: self.place.depth,
        }
    }

    /// Whether a container's first process starts in it: a container's own cgroup, or where crun has the processes
    /// below systemd's scope for it.
    pub(super) fn starts_container(&self) -> bool {
        let path = &self.place.path;
        let is_in_scope = || {
            let above = path.parent().and_then(Path::extension);
            path.ends_with(CRUN_CONTAINER) && above.is_some_and(|end| end == "scope")
        };
        self.cgroup().is_container() || self.place.depth == 2 && is_in_scope()
    }

    /// Finds a container's first process, or that it has ended. Of a container with more than [`PROCESSES_READ_MAX`]
    /// processes it may take several calls.
    pub(super) fn refresh_first_process(&mut self, ages: Reading<'_>) -> Result<(), FileError> {
        match &mut self.first_process {
            FirstProcess::Exited | FirstProcess::Moved { .. } => {}
            FirstProcess::Running { pid, .. } => {
                let is_listed = self.processes.is_listed_anew(*pid)?;
                if !is_listed
                    && let FirstProcess::Running { pidfd, .. } =
                        std::mem::replace(&mut self.first_process, FirstProcess::Exited)
                    && !has_ended(&pidfd)
                {
                    self.first_process = FirstProcess::Moved { pidfd };
                }
            }
            FirstProcess::Unknown(search) => {
                search.go_on(ages, &self.processes)?;
                if let Some(pid) = search.found()
                    && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
                    && self.processes.is_listed_anew(pid)?
                {
                    self.first_process = FirstProcess::Running { pid, pidfd };
                }
            }
        }
        Ok(())
    }

    /// Whether the first process is found by looking again, and not by waiting for one.
    pub(super) fn is_searched(&self) -> bool {
        matches!(&self.first_process, FirstProcess::Unknown(search) if search.after.is_some() && !search.waits())
    }

    /// Whether it is looked for by the thread, which tells when it has looked.
    pub(super) fn is_searched_by_thread(&self) -> bool {
        matches!(&self.first_process, FirstProcess::Unknown(search) if search.waits())
    }

    /// Sends a signal to the first process, if it is known and still in the container. Returns whether it got it.
    pub(super) fn signal_first_process(&self, signal: Signal) -> Result<bool, FileError> {
        match &self.first_process {
            FirstProcess::Running { pid, pidfd } => self.processes.signal(*pid, pidfd, signal),
            FirstProcess::Unknown(_) | FirstProcess::Exited | FirstProcess::Moved { .. } => {
                Ok(false)
            }
        }
    }

    /// Whether the first process was seen, and has ended since. Allocates nothing.
    pub(super) fn has_first_process_ended(&self) -> bool {
        match &self.first_process {
            FirstProcess::Unknown(_) => false,
            FirstProcess::Running { pidfd, .. } | FirstProcess::Moved { pidfd } => has_ended(pidfd),
            FirstProcess::Exited => true,
        }
    }
}

/// A pidfd is readable when its process has ended, with all its threads.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
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
        self.has_listed(&mut |_| true)
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

    /// Signals the processes of this cgroup, `max` and [`BATCH`] at most. Two readings, whatever their number.
    /// Allocates nothing.
    pub(super) fn signal_some(
        &self,
        signal: Signal,
        max: usize,
        seen: &mut SeenPids,
    ) -> Result<Round, FileError> {
        let mut round = Round::default();
        let mut batch: [Option<(Pid, OwnedFd)>; BATCH] = [const { None }; BATCH];
        let (mut filled, mut failed) = (0, Ok(()));
        self.has_listed(&mut |pid| {
            if is_spared(pid) {
                return false;
            }
            if filled == max.min(BATCH) {
                round.is_cut = true;
                return true;
            }
            match self.opened(pid) {
                Ok(Some(pidfd)) => {
                    batch[filled] = Some((pid, pidfd));
                    filled += 1;
                }
                Ok(None) => {}
                Err(error) => failed = Err(error),
            }
            false
        })?;
        self.signal_batch(&mut batch[..filled], signal, seen, &mut round)?;
        failed.map(|()| round)
    }

    /// Signals every process of this cgroup, a batch at a time. For a thread that nobody waits for: each batch is a
    /// reading, and this allocates.
    pub(super) fn signal_all(
        &self,
        signal: Signal,
        seen: &mut SeenPids,
    ) -> Result<Round, FileError> {
        let (mut round, mut failed) = (Round::default(), Ok(()));
        let mut pids = Vec::new();
        self.for_each_pid(&mut |pid| pids.push(pid))?;
        pids.retain(|pid| !is_spared(*pid));
        for pids in pids.chunks(BATCH) {
            let mut batch = Vec::with_capacity(pids.len());
            for &pid in pids {
                match self.opened(pid) {
                    Ok(pidfd) => batch.extend(pidfd.map(|pidfd| Some((pid, pidfd)))),
                    Err(error) => failed = Err(error),
                }
            }
            if let Err(error) = self.signal_batch(&mut batch, signal, seen, &mut round) {
                failed = Err(error);
            }
        }
        failed.map(|()| round)
    }

    /// `None`: it has ended.
    fn opened(&self, pid: Pid) -> Result<Option<OwnedFd>, FileError> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Some(pidfd)),
            Err(Errno::SRCH) => Ok(None),
            // No descriptor, or no memory: the process is there, and has no signal.
            Err(source) => Err(self.not_signalled(source)),
        }
    }

    fn signal_batch(
        &self,
        batch: &mut Batch,
        signal: Signal,
        seen: &mut SeenPids,
        round: &mut Round,
    ) -> Result<(), FileError> {
        if batch.is_empty() {
            return Ok(());
        }
        let number = |pid: Pid| pid.as_raw_nonzero();
        let number_of = |slot: &Option<(Pid, OwnedFd)>| slot.as_ref().map(|(pid, _)| number(*pid));
        batch.sort_unstable_by_key(number_of);
        let mut refused = None;
        // Those that are not listed any more have ended or moved away: they are not the pod's.
        self.for_each_pid(&mut |listed| {
            let at = batch.binary_search_by_key(&Some(number(listed)), number_of);
            let Some((_, pidfd)) = at.ok().and_then(|at| batch[at].as_ref()) else {
                return;
            };
            match pidfd_send_signal(pidfd, signal) {
                Ok(()) => {
                    round.signalled += 1;
                    round.new += u32::from(seen.insert(listed));
                }
                Err(Errno::SRCH) => {}
                // EPERM: another user's process, and no CAP_KILL.
                Err(errno) => refused = Some(errno),
            }
        })?;
        refused.map_or(Ok(()), |source| Err(self.not_signalled(source)))
    }

    fn not_signalled(&self, source: Errno) -> FileError {
        FileError::NotSignalled {
            path: Arc::clone(&self.path),
            source,
        }
    }

    /// Whether the process is listed in a reading that begins now, by the open file where that lists anew: opening it,
    /// and being told where it ends, is most of what SIGTERM takes.
    pub(super) fn is_listed_anew(&self, wanted: Pid) -> Result<bool, FileError> {
        self.has_listed(&mut |pid| pid == wanted)
    }

    /// Whether `f` is true of a process that is listed now. Reads on no further then.
    fn has_listed(&self, f: &mut dyn FnMut(Pid) -> bool) -> Result<bool, FileError> {
        let anew;
        let procs = if self.lists_anew {
            &self.procs
        } else {
            anew = self.open_anew()?;
            &anew
        };
        let mut has = false;
        let mut pids = PidParser::default();
        self.for_each_chunk_of(procs, &mut |chunk| {
            self.feed(&mut pids, chunk, &mut |pid| has = has || f(pid))?;
            Ok(if has {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        pids.end(&mut |pid| has = has || f(pid));
        Ok(has)
    }

    /// Calls `f` for each process now in this cgroup. A pid of 0 (a process of a pid namespace that we do not see) is
    /// left out.
    pub(super) fn for_each_pid(&self, f: &mut dyn FnMut(Pid)) -> Result<(), FileError> {
        let mut pids = PidParser::default();
        self.for_each_chunk_of(&self.open_anew()?, &mut |chunk| {
            self.feed(&mut pids, chunk, f)
                .map(|()| ControlFlow::Continue(()))
        })?;
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
        self.for_each_chunk_of(&self.open_anew()?, &mut |chunk| {
            lines += chunk.iter().filter(|byte| **byte == b'\n').count() as u64;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(lines)
    }

    fn open_anew(&self) -> Result<OwnedFd, FileError> {
        open_procs(&self.dir).map_err(|errno| file_error(&self.path, errno))
    }

    /// Reads `cgroup.procs` from its beginning. A threaded cgroup has none to read (EOPNOTSUPP): its processes are
    /// listed in the cgroup that is the root of its domain, which is the pod's own or one below that
    /// (Documentation/admin-guide/cgroup-v2.rst, "Threads").
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

/// Which pids were signalled in this call. Two pids may share a bit; the cost is a round too few, and the caller sees
/// who is left.
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
