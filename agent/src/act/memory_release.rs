//! Gets the memory of killed pods back on a thread of its own.
//!
//! **Problem.** What frees a victim's memory ([`release`]) takes as long as the memory is large, and as long as the
//! victim holds the lock of its own memory: 0.3 s for each GiB and, against a pod that resists, tens of seconds were
//! measured. The loop that evicts must not wait for that. **Approach.** A thread that is there before it is needed, at
//! a real-time priority below the loop's. The loop hands it the pod's cgroup; the thread works on all the pods that it
//! has, again and again, until their cgroups are empty or 30 s are over. A pod for which there is no place gets its
//! memory freed by its processes alone, and is counted.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_core::policy::eviction::leaving::STUCK_AFTER_KILL_NS;

use crate::host::HostRoot;
use crate::host::clock::now_ns;
use crate::host::handover::Handover;
use crate::host::protect::RELEASE_PRIORITY;
use crate::host::syscall::sched_rr_reset_on_fork;
use crate::host::worker::{End, WorkerThread};
use crate::pods::kill::release::release;

/// Pods that may wait for the thread, and that it works on at one time.
const PODS_MAX: usize = 8;
/// Between two rounds: the processes that were hurried run meanwhile.
const ROUND_PERIOD: Duration = Duration::from_millis(5);
const STACK_BYTES: usize = 128 << 10;

#[derive(Debug, Default)]
struct Shared {
    pods: Handover<Arc<Path>, PODS_MAX>,
    refused: AtomicU64,
}

/// The loop's side.
#[derive(Debug)]
pub struct MemoryRelease {
    shared: Arc<Shared>,
    thread: WorkerThread<Infallible>,
}

impl MemoryRelease {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub fn start(host: HostRoot) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = WorkerThread::start("release", STACK_BYTES, 0, move |_jobs, end| {
            // Refused where the loop's SCHED_FIFO is, which the agent has warned of.
            if let Err(error) = sched_rr_reset_on_fork(None, RELEASE_PRIORITY) {
                tracing::debug!(%error, "the thread that releases memory has an ordinary priority");
            }
            work(&host, &of_thread, &end);
        })?;
        Ok(Self { shared, thread })
    }

    /// Has the thread free the memory of a pod whose processes have been killed; `pod_dir` is its cgroup. Does not
    /// wait, allocates nothing.
    pub fn add(&self, pod_dir: &Arc<Path>) {
        let pods = &self.shared.pods;
        if !pods.put_once(Arc::clone(pod_dir), |one, other| one == other) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(thread) = self.thread.thread() {
            thread.unpark();
        }
    }

    /// Pods for which there was no place.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

impl Drop for MemoryRelease {
    fn drop(&mut self) {
        if !self.thread.end_soon() {
            tracing::warn!(
                "the memory of a killed pod is still being freed; its processes go on with it"
            );
        }
    }
}

struct Victim {
    pod_dir: Arc<Path>,
    until_ns: u64,
    /// Cgroups that were read; more follow.
    read: u32,
}

impl Victim {
    /// One round for this pod. Returns whether another is to follow.
    fn work(&mut self, host: &HostRoot) -> bool {
        match release(host, &self.pod_dir, self.read) {
            Ok(released) => {
                let is_over = released.listed == 0 && released.next.is_none() && self.read == 0;
                self.read = released.next.unwrap_or(0);
                !is_over && now_ns() < self.until_ns
            }
            Err(error) => {
                tracing::warn!(%error, "the memory of a killed pod is left to its processes");
                false
            }
        }
    }
}

fn work(host: &HostRoot, shared: &Shared, end: &End) {
    let mut victims: Vec<Victim> = Vec::with_capacity(PODS_MAX);
    while !end.is_asked() {
        while victims.len() < PODS_MAX
            && let Some(pod_dir) = shared.pods.take()
        {
            let until_ns = now_ns().saturating_add(STUCK_AFTER_KILL_NS);
            victims.push(Victim {
                pod_dir,
                until_ns,
                read: 0,
            });
        }
        victims.retain_mut(|victim| victim.work(host));
        // A pod, or the end, that comes in between has left its token: then this returns at once.
        if victims.is_empty() {
            std::thread::park();
        } else {
            std::thread::park_timeout(ROUND_PERIOD);
        }
    }
}
