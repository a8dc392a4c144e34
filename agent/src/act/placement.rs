//! Makes the machine what the engine has decided about CPUs and NUMA memory.
//!
//! **Problem.** A placement is a value ([`Assignments`](plimsoll_core::placement::assignments::Assignments)); what
//! counts is on which CPUs the processes of dozens of cgroups run, at every instant, while containers are started by
//! somebody else, agents are restarted and CPUs are unplugged.
//!
//! **Approach.** The loop says what is to be ([`Placement::want`]) and never waits. A thread of its own
//! ([`Placement::start`]) makes it so ([`applier`]), when that changes, when a container appears, within a second of
//! CPUs or memory nodes that come or go, and every `cpuManagerReconcilePeriod`; only the newest placement counts.
//! `exec` asks the same checkpoint before it starts a container ([`StartPermit`]). Whoever else manages cpusets is left
//! alone ([`owner`]).
//!
//! What is placed are the containers of pods. Processes of the system run where they ran: as with the kubelet, keep
//! them off by `reservedSystemCPUs` and systemd's `CPUAffinity=`. So does on v1 a process that somebody puts into a
//! pod's own cgroup, beside its containers.
//!
//! **Terms.** *exclusive*: CPUs of one container, and nobody else's. *shared pool*: the CPUs of all other containers.
#![forbid(unsafe_code)]

pub mod answered;
pub mod applier;
mod cgroups;
pub mod checkpoint;
pub mod kubelet_cgroups;
pub mod kubelet_state;
pub mod other_managers;
pub mod outcome;
mod paths;
mod plan;
pub mod plugin_cpusets;
pub mod quota;
pub mod start_permit;
pub mod usable;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::cpu_set::{CpuSet, CpuSetError};
use tokio::sync::mpsc;

pub use applier::{Applier, Options, Wanted};
pub use other_managers::{KubeletProcess, OtherOwner, kubelet_process, running_kubelet};
pub use outcome::{Failed, Occupied, Outcome, Unusable, Written};
pub use paths::NodePaths;
pub use quota::{PodQuotas, Quotas};
pub use start_permit::StartPermit;
pub use usable::Usable;

use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupPath};
use crate::host::clock::{now_ns, rest_until_ns};
use crate::host::cpuset::CpusetError;
use crate::host::file::{FileError, read_text};
use crate::host::ledger::KnobError;
use crate::host::shown::Show as _;
use crate::host::worker::WorkerThread;
use checkpoint::CheckpointError;

/// Reports that may wait for the loop.
const REPORTS: usize = 8;
/// How often the files that tell of CPUs and memory nodes are read: nothing else tells of them.
const WATCH: Duration = Duration::from_secs(1);
/// All of it is locked in memory.
const STACK_BYTES: usize = 512 << 10;

/// Why something is not placed.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// A pod that could not be placed must not be started.
    #[error("pod {pod} is not started: it could not be placed: {reason}")]
    Refused {
        /// Which pod.
        pod: PodUid,
        /// Why.
        reason: String,
    },
    /// Somebody else does it.
    #[error(transparent)]
    OtherOwner(#[from] OtherOwner),
    /// The checkpoint or its lock.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A cgroup's CPUs or nodes.
    #[error(transparent)]
    Cpuset(#[from] CpusetError),
    /// The cgroups.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A cgroup cannot be made, or its controller not be enabled.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// Another file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The kubelet's state file, which says which containers it has placed.
    #[error("{path}: {source}; memory nodes of containers stay as they are until it can be read", path = path.shown())]
    KubeletState {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: kubelet_state::KubeletStateError,
    },
    /// The state files for a kubelet, and those that came from one, cannot be removed.
    #[error("{dir}: {0}; plimsoll tries again", dir = kubelet_state::FOR_KUBELET)]
    ForKubelet(#[source] std::io::Error),
    /// A list of CPUs, or of NUMA nodes.
    #[error(
        "{path}: {}",
        match .source {
            CpuSetError::TooHigh { .. } => format!("{source}: this version places nothing on such a machine; all else works"),
            _ => format!("is not a list of CPUs or NUMA nodes: {source}; please report it with the kernel's version"),
        }
    )]
    List {
        /// The file.
        path: String,
        /// What is wrong.
        #[source]
        source: CpuSetError,
    },
    /// Somebody cannot be moved off them.
    #[error("CPUs {cpus} are not exclusive to it yet: {by} cannot be moved off them")]
    Occupied {
        /// Which CPUs.
        cpus: String,
        /// Who is there.
        by: CgroupPath,
    },
    /// The kernel runs it on other CPUs than it was told to.
    #[error(
        "CPUs {wanted} were written, and the kernel runs it on {effective}: a cgroup above it does not have them; take away what narrows the set of its pod or its QoS class (systemd AllowedCPUs=)"
    )]
    Elsewhere {
        /// What was written.
        wanted: String,
        /// Where it runs.
        effective: String,
    },
    /// v1: the container has more cgroups than are read.
    #[error(
        "{cgroup}: has so many cgroups below it ({max} reads) that its processes get no cpuset; remove those that nothing uses, and plimsoll tries again"
    )]
    TooManyCgroups {
        /// The container's cgroup.
        cgroup: CgroupPath,
        /// How many were read.
        max: usize,
    },
    /// v1: processes are started faster than they can be moved.
    #[error(
        "{cgroup}: processes without a cpuset are started faster than they can be moved ({passes} passes); plimsoll tries again"
    )]
    StartsProcesses {
        /// The container's cgroup.
        cgroup: CgroupPath,
        /// How often it was tried.
        passes: u32,
    },
}

impl PlacementError {
    /// Whether the cgroup is gone.
    pub fn is_vanished(&self) -> bool {
        match self {
            Self::Cpuset(error) => error.is_vanished(),
            Self::Cgroup(error) => error.is_vanished(),
            Self::Knob(error) => error.is_vanished(),
            Self::File(error) => error.is_vanished(),
            _ => false,
        }
    }
}

/// The CPUs that are online.
///
/// # Errors
/// [`PlacementError::File`] or [`PlacementError::List`].
pub fn online_cpus(host: &HostRoot) -> Result<CpuSet, PlacementError> {
    let path = host.sysfs("devices/system/cpu/online");
    CpuSet::parse(&read_text(&path)?).map_err(|source| PlacementError::List {
        path: path.shown().to_string(),
        source,
    })
}

/// What the thread has to say.
#[derive(Debug)]
pub enum Report {
    /// The placement with this number was carried out, as far as the outcome says. Also when something was put right,
    /// or has failed anew.
    Applied {
        /// What [`Placement::want`] returned.
        number: u64,
        /// What was done.
        outcome: Box<Outcome>,
    },
    /// Nothing could be done. Said once until it changes.
    Failed {
        /// What [`Placement::want`] returned.
        number: u64,
        /// Why; [`PlacementError::OtherOwner`] says that nothing will be, until that is over.
        error: PlacementError,
    },
    /// CPUs or memory nodes came or went: placements should be made anew. The first one says what there is.
    Machine {
        /// What pods can use now.
        usable: Box<Usable>,
    },
}

/// Reports of the thread.
pub type Reports = mpsc::Receiver<Report>;

#[derive(Debug, Default)]
struct Shared {
    /// The newest placement, and its number.
    wanted: Mutex<(u64, Option<Arc<Wanted>>)>,
    /// Reports that found no room.
    lost: AtomicU64,
}

impl Shared {
    fn wanted(&self) -> MutexGuard<'_, (u64, Option<Arc<Wanted>>)> {
        // No code panics while it has the lock.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop's side. Dropping it waits for the write that is under way; interrupts are as before then.
#[derive(Debug)]
pub struct Placement {
    shared: Arc<Shared>,
    /// One job is enough: it only says that there is something to look at.
    thread: WorkerThread<()>,
}

impl Placement {
    /// Starts the thread, which looks every `period`, beside when it is told to and when the machine has changed.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(applier: Applier, period: Duration) -> std::io::Result<(Self, Reports)> {
        let shared = Arc::new(Shared::default());
        let (reports, receiver) = mpsc::channel(REPORTS);
        let worker = Worker {
            shared: Arc::clone(&shared),
            applier,
            reports,
            period,
            said: (0, Vec::new()),
            number: 0,
            unsaid: None,
        };
        let thread = WorkerThread::start("placement", STACK_BYTES, 1, move |woken, _| {
            worker.run(&woken);
        })?;
        Ok((Self { shared, thread }, receiver))
    }

    /// Has this placement carried out, instead of any that is not begun. Does not wait. Returns its number, which its
    /// report has.
    pub fn want(&self, wanted: Wanted) -> u64 {
        let number = {
            let mut newest = self.shared.wanted();
            *newest = (newest.0 + 1, Some(Arc::new(wanted)));
            newest.0
        };
        self.look();
        number
    }

    /// A container's cgroup has appeared. Does not wait.
    pub fn look(&self) {
        // Full: it is about to look anyway.
        self.thread.send(()).ok();
    }

    /// Reports that found no room, because the loop did not listen.
    pub fn lost_reports(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

struct Worker {
    shared: Arc<Shared>,
    applier: Applier,
    reports: mpsc::Sender<Report>,
    period: Duration,
    /// The number and the remarks of the last report.
    said: (u64, Vec<String>),
    /// The placement of the last turn.
    number: u64,
    /// What pods can use, as the loop has not been told yet.
    unsaid: Option<Usable>,
}

impl Worker {
    fn run(mut self, woken: &Receiver<()>) {
        let period_ns = u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let began_ns = now_ns();
            self.turn();
            let ended_ns = now_ns();
            let turns = Turns {
                look_at_ns: rest_until_ns(began_ns, ended_ns),
                routine_at_ns: ended_ns.saturating_add(self.until_next_look_ns(period_ns)),
            };
            let is_new = || self.shared.wanted().0 != self.number;
            if !turns.wait(woken, is_new, || self.applier.has_machine_changed()) {
                return self.applier.end();
            }
        }
    }

    /// After a period in any case.
    fn until_next_look_ns(&self, period_ns: u64) -> u64 {
        let Some(at) = self.applier.next_look() else {
            return period_ns;
        };
        let left = at.saturating_duration_since(Instant::now());
        u64::try_from(left.as_nanos()).map_or(period_ns, |left| left.min(period_ns))
    }

    fn turn(&mut self) {
        match self.applier.look_at_machine() {
            Ok(Some(usable)) => self.unsaid = Some(usable),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "which CPUs pods can use is unknown"),
        }
        if let Some(usable) = self.unsaid.take() {
            let report = Report::Machine {
                usable: Box::new(usable),
            };
            if !self.tell(report) {
                self.unsaid = Some(usable);
            }
        }
        let (number, wanted) = self.shared.wanted().clone();
        self.number = number;
        let Some(wanted) = wanted else {
            return;
        };
        let result = self.applier.apply(&wanted);
        let (is_quiet, remarks) = match &result {
            Ok(outcome) => (outcome.written.is_empty(), outcome.remarks()),
            Err(error) => (true, vec![error.to_string()]),
        };
        let said = (number, remarks);
        if is_quiet && said == self.said {
            return;
        }
        let is_taken = self.tell(match result {
            Ok(outcome) => Report::Applied {
                number,
                outcome: Box::new(outcome),
            },
            Err(error) => Report::Failed { number, error },
        });
        // What was not taken is said with the next turn.
        self.said = if is_taken { said } else { (0, Vec::new()) };
    }

    fn tell(&self, report: Report) -> bool {
        let is_taken = self.reports.try_send(report).is_ok();
        if !is_taken {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        is_taken
    }
}

/// When the thread has its next turn. Any process that comes and goes in a pod asks for a look, and each look is at all
/// containers.
struct Turns {
    /// Not before, if it was only asked to look.
    look_at_ns: u64,
    /// In any case.
    routine_at_ns: u64,
}

impl Turns {
    /// Waits for the next turn: at once for another placement. Whether to go on.
    fn wait(
        &self,
        woken: &Receiver<()>,
        is_new: impl Fn() -> bool,
        has_machine_changed: impl Fn() -> bool,
    ) -> bool {
        let mut at_ns = self.routine_at_ns;
        loop {
            let left = Duration::from_nanos(at_ns.saturating_sub(now_ns()));
            match woken.recv_timeout(left.min(WATCH)) {
                Ok(()) if is_new() || self.look_at_ns <= now_ns() => return true,
                Ok(()) => at_ns = self.look_at_ns.min(self.routine_at_ns),
                Err(RecvTimeoutError::Timeout) if at_ns <= now_ns() => return true,
                Err(RecvTimeoutError::Timeout) if has_machine_changed() => {
                    at_ns = self.look_at_ns.min(self.routine_at_ns);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc::sync_channel;

    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    #[test]
    fn a_look_waits_for_its_time_and_another_placement_does_not() {
        let (wake, woken) = sync_channel(2);
        let turns = |look_at_ns| Turns {
            look_at_ns,
            routine_at_ns: now_ns() + HOUR_NS,
        };
        wake.send(()).unwrap();
        assert!(turns(now_ns() + HOUR_NS).wait(&woken, || true, || false));
        wake.send(()).unwrap();
        assert!(turns(0).wait(&woken, || false, || false));
        wake.send(()).unwrap();
        wake.send(()).unwrap();
        let look_at_ns = now_ns() + 20_000_000;
        assert!(turns(look_at_ns).wait(&woken, || false, || false));
        assert!(now_ns() >= look_at_ns);
        let routine = Turns {
            look_at_ns: now_ns() + HOUR_NS,
            routine_at_ns: 0,
        };
        assert!(routine.wait(&woken, || false, || false));
        // Nobody says that the machine has changed.
        let seen = Cell::new(0);
        let second_time = || seen.replace(seen.get() + 1) > 0;
        assert!(turns(0).wait(&woken, || false, second_time));
        assert_eq!(seen.get(), 2);
        drop(wake);
        assert!(!turns(0).wait(&woken, || false, || false));
    }
}
