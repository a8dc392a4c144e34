//! Ending a pod's processes: SIGTERM to each container's first process, SIGKILL to all, and their memory freed by a
//! thread ([`release`]).
//!
//! **Problem.** At the moment of a kill there is no memory: nothing may be allocated, and no file opened whose dentry
//! and inode are not pinned already. And a pid read from a file may, by the time of the signal, belong to a process of
//! somebody else. **Approach.** [`PodKill::open`] and [`PodKill::refresh`] run when the pod appears and whenever its
//! cgroups change; they open directories, `cgroup.kill` and a pidfd for each first process. [`PodKill::sigterm`] and
//! [`PodKill::kill`] use only those, and buffers on the stack. They never wait: the caller sees from the cgroup's usage
//! and [`PodKill::is_populated`] whether the kill has worked, and may call again.
//!
//! **No signal can reach a stranger.** A signal goes only through a pidfd, and only when the pid was listed in the
//! container's `cgroup.procs` in a read that began after the pidfd had been opened. Let P be the process behind the
//! pidfd. If P is alive at that read, the pid is P's own, so the listed process is P. If P is dead by then, a signal
//! through its pidfd gets ESRCH, whoever has its pid now. On v2 a read from the beginning of the file begins a new walk
//! of the cgroup's processes (kernel/cgroup/cgroup.c, `__cgroup_procs_start`), so the file that is open already serves.
//! On v1 it is a new open file, because one open file gives the same list again for a second
//! (kernel/cgroup/cgroup-v1.c, `cgroup_pidlist_start`).
//!
//! **Which way.** v2 since 5.14 has `cgroup.kill`, which is atomic, also against forks. On v1, and before 5.14, each
//! process is signalled, in rounds, until a round finds none that is new: a process with SIGKILL pending cannot fork,
//! so each round is shorter. A round reads each cgroup's processes twice, whatever their number, and signals 256: a pod
//! decides how many it has, and who has more, or still forks, leaves the others to a thread. On hybrid hosts both are
//! done, since a runtime may not have put the pod into the unified tree.
//!
//! **What is reached.** On v2 with `cgroup.kill`: every process, however deep. By signals: 256 in the known cgroups, at
//! most [`CGROUPS_PER_POD_MAX`], at once; further ones, and those in other cgroups, by [`Sweep::end`], on a thread that
//! may allocate, which walks the whole tree until a walk finds no process. A process that keeps moving from cgroups not
//! yet walked to others that were can outlive that; the pod then ends as stuck.

mod ages;
mod containers;
mod count;
mod freezer;
mod member;
pub mod release;
mod spared;
mod sweep;
mod thread;
mod tree;

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_core::kube::pod::PressureSignal;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupMounts, CgroupPath, Controller, Version};
use crate::host::file::{ControlFile, FileError, parse_keyed};
pub use ages::Ages;
use containers::Containers;
pub use containers::HOLD_FILE;
use count::Tasks;
use freezer::Thaw;
use member::{FirstProcess, Member, Reading, SeenPids};
pub use sweep::{Sweep, SweepEnded, SweepState};
use thread::Files;
pub(crate) use thread::What;
pub use thread::{HELD, KillThread, WriteTimes};
use tree::Tree;

/// Cgroups of one pod that are kept at most: containers and the cgroups that those make inside.
pub const CGROUPS_PER_POD_MAX: usize = 256;
/// Of the path of a cgroup that is kept, at most: any file in it can be opened by its path (PATH_MAX of 4096 with the
/// zero at its end, NAME_MAX of 255).
pub const CGROUP_PATH_BYTES_MAX: usize = 4096 - 1 - 255 - 1;
/// Of the paths of a pod's cgroups that are kept, at most, together: half as much again as [`CGROUPS_PER_POD_MAX`]
/// below a runtime's container have. They are kept in several places, in memory that is locked: as many paths of
/// [`CGROUP_PATH_BYTES_MAX`] in each of a node's pods would be more than the agent may have.
const PATH_BYTES_PER_POD_MAX: usize = 96 << 10;
/// Rounds of SIGKILL in one call of [`PodKill::kill`].
pub const KILL_ROUNDS_MAX: u32 = 4;
/// Processes that one call signals, in all the pod's cgroups.
const SIGNALS_MAX: usize = member::BATCH;

/// Two lines of at most 20 bytes, and room for those of later kernels.
const EVENTS_BYTES_MAX: usize = 256;

/// What [`PodKill::kill`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Killed {
    /// Processes signalled one by one; 0 by `cgroup.kill` alone, which does not tell.
    pub processes: u32,
    /// Rounds of signals; 0 by `cgroup.kill` alone.
    pub rounds: u32,
    /// Processes were left to [`Sweep::end`].
    pub leaves_some: bool,
}

/// A cgroup of a pod, as of the last refresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptCgroup<'a> {
    /// Its directory in the hierarchy that accounts memory.
    pub dir: &'a Path,
    /// Its id there.
    pub id: u64,
    /// How deep it is in the pod's own, which has 0.
    pub depth: usize,
}

impl<'a> KeptCgroup<'a> {
    /// Whether it is the pod's own.
    pub fn is_pods_own(&self) -> bool {
        self.depth == 0
    }

    /// Whether it is a container's or the sandbox's own: a child of the pod's own.
    pub fn is_container(&self) -> bool {
        self.depth == 1
    }

    /// The name of the container's cgroup that it is, or is below; `None` for the pod's own. Allocates nothing.
    pub fn container_name(&self) -> Option<&'a OsStr> {
        let above = self.depth.checked_sub(1)?;
        self.dir.ancestors().nth(above)?.file_name()
    }
}

/// How `cgroup.kill` and the file of a hold are written.
type Write<'a> = &'a dyn Fn(&Files, What) -> Result<(), FileError>;

/// Everything open that it takes to end one pod.
#[derive(Debug)]
pub struct PodKill {
    host: HostRoot,
    /// `None`: who refreshes reads the ages of processes, and waits for that.
    ages: Option<Arc<Ages>>,
    cgroup_kill: Option<Files>,
    /// `cgroup.events` of the pod's cgroup in the unified tree.
    events: Option<ControlFile>,
    /// `cgroup.kill` reaches every process: the tree that it belongs to is also the one that accounts memory.
    is_unified: bool,
    members: Tree<Member>,
    /// `None`: no pids controller.
    tasks: Option<Tasks>,
    /// On v1: what a frozen process needs before it can die.
    freezer: Option<Tree<Thaw>>,
    sweep: Sweep,
    /// `None`: no kubelet runs it.
    beside: Option<Containers>,
    /// The place among the members of the one in which a process was last seen: it is asked first whether any is left.
    last_populated: AtomicUsize,
}

impl PodKill {
    /// Opens what there is now. Processes and containers that come later are found by [`PodKill::refresh`].
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the pod's cgroup does not exist; [`CgroupError::NoController`] when it does not and
    /// memory is not accounted either.
    pub fn open(
        host: &HostRoot,
        mounts: &CgroupMounts,
        pod: &CgroupPath,
    ) -> Result<Self, CgroupError> {
        Self::open_with(host, mounts, pod, None)
    }

    /// As [`PodKill::open`]; the first processes of containers are looked for by this thread.
    ///
    /// # Errors
    /// As for [`PodKill::open`].
    pub fn open_with(
        host: &HostRoot,
        mounts: &CgroupMounts,
        pod: &CgroupPath,
        ages: Option<Arc<Ages>>,
    ) -> Result<Self, CgroupError> {
        // Where memory is accounted is where the processes must be found; without that controller, any tree that has
        // the pod will do.
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
        let in_unified = |name: &str| unified.map(|unified| unified.dir(pod).join(name));
        let cgroup_kill = if_there(in_unified("cgroup.kill").map(ControlFile::open_to_write))? // since 5.14
            .map(|file| Files::from([Arc::new(file)]));
        let events = if_there(in_unified("cgroup.events").map(ControlFile::open))?;
        let is_unified = unified == Some(hierarchy);
        let freezer = mounts
            .hierarchy_of(Controller::Freezer)
            .ok()
            .filter(|freezer| freezer.version == Version::V1)
            .map(|freezer| freezer.dir(pod));
        let dir = hierarchy.dir(pod);
        let mut pod_kill = Self {
            host: host.clone(),
            ages,
            cgroup_kill,
            events,
            is_unified,
            tasks: Tasks::of(mounts, pod),
            sweep: Sweep::of(&dir, freezer.as_deref()),
            members: Tree::new(dir),
            freezer: freezer.map(Tree::new),
            beside: None,
            last_populated: AtomicUsize::new(0),
        };
        pod_kill.refresh()?;
        Ok(pod_kill)
    }

    /// As [`PodKill::open`], on a kernel as before 5.14: signals only. For tests, on any kernel.
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

    /// Continues with what is known of the cgroups beyond the bound, from an earlier [`PodKill`] of the same cgroup.
    #[must_use]
    pub fn with_sweep_state(mut self, state: Arc<SweepState>) -> Self {
        self.sweep.state = state;
        self
    }

    /// Picks up new containers and their first processes, and drops cgroups that are gone. Returns whether any process
    /// is left, as [`PodKill::is_populated`] does. Allocates and opens: not for the hot path.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the pod's cgroup is gone.
    pub fn refresh(&mut self) -> Result<bool, FileError> {
        self.members.refresh()?;
        self.refresh_containers()?;
        if let Some(tasks) = &mut self.tasks {
            tasks.refresh()?;
        }
        if let Some(freezer) = &mut self.freezer {
            match freezer.refresh() {
                // A runtime need not have one there.
                Err(error) if error.is_vanished() => freezer.clear(),
                refreshed => refreshed?,
            }
        }
        let ages = match &self.ages {
            Some(ages) => Reading::By(ages),
            None => Reading::Here(&self.host),
        };
        let containers = self.members.iter_mut();
        for member in containers.filter(|member| member.starts_container()) {
            match member.refresh_first_process(ages) {
                Err(error) if !error.is_vanished() => return Err(error),
                _ => {}
            }
        }
        let was_empty = self.sweep.state.is_empty();
        let is_populated = self.is_populated()?;
        if was_empty && is_populated {
            // Processes have come since; where they go is not followed.
            self.sweep.state.forget();
        }
        Ok(is_populated)
    }

    /// Whether the pod has more than [`CGROUPS_PER_POD_MAX`] cgroups, or one whose path is longer than
    /// [`CGROUP_PATH_BYTES_MAX`]. Those beyond get no `oom_score_adj`, and records do not tell of them.
    pub fn has_more_cgroups(&self) -> bool {
        self.members.is_cut()
    }

    /// All processes of the pod, for a thread that may allocate ([`Sweep::end`]): for what [`PodKill::kill`] has left
    /// ([`Killed::leaves_some`]).
    pub fn sweep(&self) -> &Sweep {
        &self.sweep
    }

    /// Cgroups that [`PodKill::kill`] does not reach by itself; `None` when it reaches all.
    pub fn needed_sweep(&self) -> Option<&Sweep> {
        let is_cut = self.members.is_cut() || self.freezer.as_ref().is_some_and(Tree::is_cut);
        let reaches_all = self.is_unified && self.cgroup_kill.is_some();
        (is_cut && !reaches_all).then_some(&self.sweep)
    }

    /// The pod's cgroup and those below it, as of the last refresh.
    pub fn cgroups(&self) -> impl Iterator<Item = KeptCgroup<'_>> {
        self.members.iter().map(Member::cgroup)
    }

    /// Whether the first process of a container is still looked for among many: [`PodKill::refresh`] goes on with that.
    pub fn is_searched(&self) -> bool {
        self.members.iter().any(Member::is_searched)
    }

    /// Whether one is looked for by [`Ages`], who notifies when [`PodKill::refresh`] finds more.
    pub fn is_searched_by_thread(&self) -> bool {
        self.members.iter().any(Member::is_searched_by_thread)
    }

    /// Containers whose first process is known and was running at the last refresh.
    pub fn first_processes(&self) -> impl Iterator<Item = Pid> + '_ {
        self.members
            .iter()
            .filter_map(|member| match &member.first_process {
                FirstProcess::Running { pid, .. } => Some(*pid),
                _ => None,
            })
    }

    fn containers(&self) -> impl Iterator<Item = &Member> {
        let members = self.members.iter();
        members.filter(|member| member.starts_container() && !self.is_spared(member))
    }

    /// Whether it is the sandbox's cgroup, or below that. Allocates nothing.
    fn is_spared(&self, member: &Member) -> bool {
        let Some(containers) = self.beside.as_ref().filter(|one| one.is_by_container()) else {
            return false;
        };
        let name = member.cgroup().container_name();
        name.is_some_and(|name| containers.spares(name))
    }

    /// Sends SIGTERM as a container runtime does: to each container's first process. A container whose first process
    /// has ended gets nothing; one in which none has been found yet gets it for its processes, 256 at most. Returns how
    /// many processes got it. Allocates nothing.
    ///
    /// # Errors
    /// [`FileError::Unreadable`] when `cgroup.procs` cannot be read, after the other containers have been served. A
    /// cgroup that is gone is no error.
    pub fn sigterm(&self) -> Result<u32, FileError> {
        let sent = self.containers().map(|member| match &member.first_process {
            FirstProcess::Unknown(_) => member
                .processes
                .signal_some(Signal::TERM, SIGNALS_MAX, &mut SeenPids::new())
                .map(|round| round.signalled),
            FirstProcess::Running { .. } | FirstProcess::Exited | FirstProcess::Moved { .. } => {
                member.signal_first_process(Signal::TERM).map(u32::from)
            }
        });
        signalled(sent)
    }

    /// Whether the first process of each container was seen, and has ended since: a container runtime ends what is left
    /// in them at once. Allocates nothing.
    pub fn have_first_processes_ended(&self) -> bool {
        let mut containers = self.containers().peekable();
        containers.peek().is_some() && containers.all(Member::has_first_process_ended)
    }

    /// Tells each container's first process that memory is short. One that is not known, or has ended, gets nothing.
    /// Allocates nothing.
    ///
    /// # Errors
    /// As for [`PodKill::sigterm`].
    pub fn notify(&self, signal: PressureSignal) -> Result<u32, FileError> {
        let signal = match signal {
            PressureSignal::Hup => Signal::HUP,
            PressureSignal::Usr1 => Signal::USR1,
            PressureSignal::Usr2 => Signal::USR2,
            PressureSignal::Urg => Signal::URG,
            PressureSignal::Winch => Signal::WINCH,
        };
        let containers = self.containers();
        signalled(containers.map(|member| member.signal_first_process(signal).map(u32::from)))
    }

    /// Sends SIGKILL to each container's first process, if it is known: the first part of [`PodKill::kill`], which
    /// waits for no lock of the kernel that a pod can hold. In a PID namespace the kernel ends all its processes with
    /// it. Allocates nothing.
    ///
    /// # Errors
    /// As for [`PodKill::sigterm`].
    pub fn kill_first_processes(&self) -> Result<u32, FileError> {
        let containers = self.containers();
        signalled(containers.map(|member| member.signal_first_process(Signal::KILL).map(u32::from)))
    }

    /// Kills every process of the pod. Allocates nothing and does not wait for them to be gone. Where it has to signal
    /// them one by one, it takes 256 of them: [`Killed::leaves_some`] says whether [`Sweep::end`] is to follow.
    ///
    /// The first processes first: a write to `cgroup.kill` waits for `cgroup_mutex`, which whoever makes and removes
    /// cgroups takes (200 ms were measured). On v1 the pod's known cgroups are thawed before and after: a frozen
    /// process takes SIGKILL when it is thawed, not before.
    ///
    /// # Errors
    /// [`FileError`] when neither `cgroup.kill` nor `cgroup.procs` could be used, or a frozen cgroup of v1 is not
    /// thawed. A cgroup that is gone is no error: nothing is left to kill.
    pub fn kill(&self) -> Result<Killed, FileError> {
        self.kill_with(&thread::write_here)
    }

    /// The same, but `cgroup.kill` is written by a thread, so that the caller does not wait for that either. What goes
    /// wrong there, the thread makes up for. Where it has no place for the files, the processes are signalled.
    ///
    /// # Errors
    /// As for [`PodKill::kill`].
    pub fn kill_by(&self, thread: &KillThread) -> Result<Killed, FileError> {
        self.kill_with(&|files, what| thread.write(files, what))
    }

    fn kill_with(&self, write: Write<'_>) -> Result<Killed, FileError> {
        // What goes wrong here goes wrong again below, where it counts.
        self.kill_first_processes().ok();
        let thawed = self.thaw();
        let killed = self.kill_all(write)?;
        thawed.and(self.thaw())?;
        Ok(killed)
    }

    fn thaw(&self) -> Result<(), FileError> {
        self.freezer.as_ref().map_or(Ok(()), freezer::thaw)
    }

    fn kill_all(&self, write: Write<'_>) -> Result<Killed, FileError> {
        let mut kill_error = None;
        let mut is_killed = false;
        let containers = self.beside.as_ref().filter(|one| one.is_by_container());
        let killed = match (containers, &self.cgroup_kill) {
            (Some(containers), _) => containers.kill(write),
            (None, Some(files)) => write(files, What::Kill).map(|()| true),
            (None, None) => Ok(false),
        };
        match killed {
            Ok(all) => is_killed = all,
            Err(error) if error.is_vanished() => is_killed = true,
            Err(error) => kill_error = Some(error), // EOPNOTSUPP in a threaded cgroup
        }
        if is_killed && self.is_unified {
            return Ok(Killed {
                processes: 0,
                rounds: 0,
                leaves_some: self.needed_sweep().is_some(),
            });
        }
        let mut killed = Killed {
            processes: 0,
            rounds: 0,
            leaves_some: self.needed_sweep().is_some(),
        };
        let mut seen = SeenPids::new();
        let mut procs_error = None;
        let mut new = 1;
        while new > 0 && killed.rounds < KILL_ROUNDS_MAX {
            killed.rounds += 1;
            new = 0;
            let mut left = SIGNALS_MAX;
            let mut is_cut = false;
            for member in self.members.iter().filter(|member| !self.is_spared(member)) {
                match member.processes.signal_some(Signal::KILL, left, &mut seen) {
                    Ok(round) => {
                        new += round.new;
                        is_cut |= round.is_cut;
                        left = left.saturating_sub(round.signalled as usize);
                    }
                    Err(error) if error.is_vanished() => {}
                    Err(error) => procs_error = Some(error),
                }
                if is_cut {
                    break;
                }
            }
            killed.processes += new;
            if is_cut {
                killed.leaves_some = true;
                break;
            }
        }
        // They fork as fast as they are signalled.
        killed.leaves_some |= new > 0;
        match procs_error.or(kill_error) {
            Some(error) if killed.processes == 0 && !is_killed => Err(error),
            _ => Ok(killed),
        }
    }

    /// The pod's cgroup, in the hierarchy that accounts memory.
    pub fn directory(&self) -> &Arc<Path> {
        self.sweep.directory()
    }

    /// Whether any process is left in the pod's cgroups. Allocates nothing.
    ///
    /// On cgroup v2 the kernel's own answer, which no depth or number of cgroups can hide from: `populated` of the
    /// pod's `cgroup.events`. On v1, which has none, the known cgroups are read, beginning with the one that had a
    /// process last time; a pod with more than [`CGROUPS_PER_POD_MAX`] counts as populated until [`Sweep::end`] has
    /// found all of them empty, or they are gone.
    ///
    /// # Errors
    /// [`FileError::Unreadable`] when a file of the pod's cgroups cannot be read. A cgroup that is gone is empty.
    pub fn is_populated(&self) -> Result<bool, FileError> {
        if let Some(containers) = self.beside.as_ref().filter(|one| one.is_by_container()) {
            let is_populated = containers.is_populated()?;
            if is_populated || self.is_unified {
                return Ok(is_populated);
            }
        } else if let Some(events) = &self.events {
            let is_populated = match read_populated(events) {
                Err(error) if error.is_vanished() => false,
                read => read?,
            };
            if is_populated || self.is_unified {
                return Ok(is_populated);
            }
        }
        // Where one was, one mostly still is: a pod decides how many cgroups are before that.
        let members = || self.members.iter().enumerate();
        let last = self.last_populated.load(Ordering::Relaxed);
        for (at, member) in members().skip(last).take(1).chain(members()) {
            if self.is_spared(member) {
                continue;
            }
            match member.processes.has_processes() {
                Ok(true) => {
                    self.last_populated.store(at, Ordering::Relaxed);
                    return Ok(true);
                }
                Ok(false) => {}
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.members.is_cut() && !self.sweep.state.is_empty())
    }
}

/// `None` also for a file that this kernel does not have.
fn if_there(
    opened: Option<Result<ControlFile, FileError>>,
) -> Result<Option<ControlFile>, FileError> {
    match opened {
        Some(Err(error)) if error.is_vanished() => Ok(None),
        opened => opened.transpose(),
    }
}

fn read_populated(events: &ControlFile) -> Result<bool, FileError> {
    let mut buffer = [0; EVENTS_BYTES_MAX];
    let text = events.read_into(&mut buffer)?;
    match parse_keyed(text, &["populated"]) {
        Ok([Some(populated)]) => Ok(populated != 0),
        _ => Err(events.malformed(1, "a line \"populated 0\" or \"populated 1\"")),
    }
}

/// Processes that got the signal, of all; or the first error.
fn signalled(sent: impl Iterator<Item = Result<u32, FileError>>) -> Result<u32, FileError> {
    let mut signalled = 0;
    let mut first_error = None;
    for sent in sent {
        match sent {
            Ok(processes) => signalled += processes,
            Err(error) if error.is_vanished() => {}
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Ok(signalled), Err)
}

fn file_error(path: &Arc<Path>, source: Errno) -> FileError {
    let path = Arc::clone(path);
    match source {
        Errno::NOENT | Errno::NODEV => FileError::Vanished { path },
        _ => FileError::Unreadable { path, source },
    }
}

#[cfg(test)]
mod tests;
