//! What wakes the loop: opening it, waiting for it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::daemon::limits::Limits;
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupMounts, CgroupPath, Controller, Version};
use crate::host::syscall::watch;
use crate::input::manifests::{ManifestChange, ManifestWatch};
use crate::kernel::Bpf;
use crate::pods;
use crate::probe::ladder::{LadderSignal, Mechanism};
use crate::probe::report::Report;
use crate::record::lines::{Line, Reporter};
use crate::serve::control::{self, SnapshotRequests};
use crate::source::cgroup_watch::CgroupWatch;
use crate::source::memcg_v1::{MemcgV1, Notification, PressureLevel};
use crate::source::pressure::{PsiTrigger, Stall, Trigger};
use crate::source::stall_triggers::{ArmedTriggers, StallTrigger};
use crate::storage::StorageEvent;

/// Manifest changes that may wait for the loop; their thread waits beyond.
const MANIFEST_CHANGES: usize = 16;
/// Housekeeping where the kernel tells of cgroups that come and go: only drains the pressure ring and catches what was missed.
const HOUSEKEEPING_TOLD: Duration = Duration::from_secs(5);
/// Housekeeping where nothing tells of the first and last process of a pod, or of those put into it later.
const HOUSEKEEPING_UNTOLD: Duration = Duration::from_millis(500);
/// The PSI safety net: half of what a task can stall in a window of half a second before it is worth a look.
const PSI: (Stall, u32, u32) = (Stall::Some, 20, 500);
/// "Medium" is when the kernel has to scan more than twice the pages that it frees; "low" is ordinary page cache at work.
const PRESSURE_LEVEL: PressureLevel = PressureLevel::Medium;
/// The kernel signals that for each 512 pages scanned.
const PRESSURE_LEVEL_PACE: Duration = Duration::from_millis(10);
/// The kernel signals a change of one `memory.events` every 10 ms, for as long as a pod is at its limit.
const POD_EVENTS_PACE: Duration = Duration::from_millis(100);

/// What wakes the loop.
#[derive(Debug)]
pub struct Sources {
    pub(super) critical: Option<AsyncFd<OwnedFd>>,
    pub(super) lifecycle: Option<AsyncFd<OwnedFd>>,
    pub(super) psi: Option<Watched<PsiTrigger>>,
    /// PSI triggers that thresholds on pressure signals need.
    pub(super) stalls: Option<Watched<ArmedTriggers>>,
    pub(super) usage: Option<V1Usage>,
    /// `memory.pressure_level` of cgroup v1.
    pub(super) pressure_level: Option<Paced<Notification>>,
    /// `memory.events` and its like of all pods.
    pub(super) pod_events: Option<Paced<()>>,
    pub(super) cgroups: Option<Watched<CgroupWatch>>,
    pub(super) manifests: mpsc::Receiver<ManifestChange>,
    /// What the threads that watch disks tell.
    pub(super) storage: Option<mpsc::Receiver<StorageEvent>>,
    _manifest_watch: Option<ManifestWatch>,
    /// Questions for a snapshot.
    pub(super) snapshots: SnapshotRequests,
    pub(super) housekeeping: Duration,
    /// Records tell of every cgroup and process that comes or goes.
    pub(super) tells_of_cgroups: bool,
}

/// A source and the descriptor by which it is waited for.
#[derive(Debug)]
pub(super) struct Watched<T> {
    // Dropped first: a descriptor must be deregistered before its source ends.
    pub(super) fd: AsyncFd<OwnedFd>,
    pub(super) source: T,
}

/// A source that can fire much more often than there is a point in looking.
#[derive(Debug)]
pub(super) struct Paced<T> {
    pub(super) watched: Watched<T>,
    pace: Duration,
    not_before: Instant,
}

impl<T> Paced<T> {
    fn new(source: T, fd: AsyncFd<OwnedFd>, pace: Duration) -> Self {
        Self {
            watched: Watched { fd, source },
            pace,
            not_before: Instant::now(),
        }
    }

    /// It has been looked at: not again so soon.
    pub(super) fn looked_at(&mut self) {
        self.not_before = Instant::now() + self.pace;
    }
}

/// The cgroup v1 notification on the node's usage. It is armed anew after each sample.
#[derive(Debug)]
pub(super) struct V1Usage {
    memcg: MemcgV1,
    armed: Option<Watched<Notification>>,
}

impl Sources {
    /// Opens what the ladder has chosen.
    ///
    /// # Errors
    /// When a ring buffer cannot be waited for. Another source that cannot be opened after all is said and left out.
    pub fn open(
        host: &HostRoot,
        mounts: &CgroupMounts,
        cgroup_root: &CgroupPath,
        bpf: Option<&Bpf>,
        report: &Report,
        reporter: &mut Reporter,
    ) -> Result<Self> {
        let serves = |signal, mechanism| {
            report
                .choices
                .iter()
                .any(|choice| choice.signal == signal && choice.mechanism == mechanism)
        };
        let uses = |mechanism| {
            report
                .choices
                .iter()
                .any(|choice| choice.mechanism == mechanism)
        };
        let mut left_out = |what: &str, error: &dyn std::fmt::Display| {
            reporter.say(&Line::Warning {
                text: format!("{what} is left out: {error}"),
            });
        };
        let critical = bpf
            .map(|bpf| watch(bpf.critical_fd(), Interest::READABLE))
            .transpose()
            .context("cannot register the BPF ring buffer with epoll")?;
        let lifecycle = bpf
            .map(|bpf| watch(bpf.lifecycle_fd(), Interest::READABLE))
            .transpose()
            .context("cannot register the BPF ring buffer with epoll")?;
        let psi = uses(Mechanism::Psi)
            .then(|| {
                let (stall, stall_ms, window_ms) = PSI;
                let trigger = Trigger::new(stall, stall_ms, window_ms)?;
                PsiTrigger::arm_as_allowed(host.procfs("pressure/memory"), trigger)
            })
            .and_then(|psi| {
                psi.map_err(|error| left_out("the PSI trigger", &error))
                    .ok()
            })
            .and_then(|trigger| {
                let fd = watch(trigger.as_fd(), Interest::PRIORITY)
                    .map_err(|error| left_out("the PSI trigger", &error))
                    .ok()?;
                Some(Watched {
                    fd,
                    source: trigger,
                })
            });
        let mut v1_root = |what: &str| {
            let memory = mounts
                .hierarchy_of(Controller::Memory)
                .ok()
                .filter(|memory| memory.version == Version::V1)?;
            MemcgV1::open(&memory.dir(&CgroupPath::default()))
                .map_err(|error| left_out(what, &error))
                .ok()
        };
        let usage = serves(LadderSignal::MemoryThreshold, Mechanism::EventControl)
            .then(|| v1_root("the cgroup v1 usage notification"))
            .flatten()
            .map(|memcg| V1Usage { memcg, armed: None });
        let pressure_level = serves(LadderSignal::NodeReclaim, Mechanism::EventControl)
            .then(|| v1_root("memory.pressure_level"))
            .flatten()
            .and_then(|memcg| {
                watch_pressure_level(&memcg)
                    .map_err(|error| left_out("memory.pressure_level", &error))
                    .ok()
            });
        let told = bpf.is_some_and(|bpf| {
            [
                "cgroup_mkdir",
                "cgroup_rmdir",
                "cgroup_notify_populated",
                "cgroup_attach_task",
            ]
            .iter()
            .all(|program| bpf.is_attached(program))
        });
        let cgroups = uses(Mechanism::Inotify)
            .then(|| {
                let memory = mounts.hierarchy_of(Controller::Memory).ok()?;
                let kubepods = pods::cgroup::kubepods_path(cgroup_root).ok()?;
                let cgroups = CgroupWatch::open(&memory.dir(&kubepods))
                    .map_err(|error| left_out("the watch of the cgroup directories", &error))
                    .ok()?;
                let fd = watch(cgroups.as_fd(), Interest::READABLE)
                    .map_err(|error| left_out("the watch of the cgroup directories", &error))
                    .ok()?;
                Some(Watched {
                    fd,
                    source: cgroups,
                })
            })
            .flatten();
        Ok(Self {
            critical,
            lifecycle,
            psi,
            stalls: None,
            usage,
            pressure_level,
            pod_events: None,
            cgroups,
            // Nobody tells, and nobody asks.
            manifests: mpsc::channel(1).1,
            _manifest_watch: None,
            storage: None,
            snapshots: control::snapshots().1,
            tells_of_cgroups: told,
            housekeeping: if told {
                HOUSEKEEPING_TOLD
            } else {
                HOUSEKEEPING_UNTOLD
            },
        })
    }

    /// Waits for the stalls that thresholds on pressure signals need too. One that cannot be had is said and left out: averages
    /// are then seen at the next sample.
    ///
    /// # Errors
    /// When they cannot be waited for.
    pub fn watch_stalls(
        &mut self,
        host: &HostRoot,
        wanted: &[StallTrigger],
        reporter: &mut Reporter,
    ) -> Result<()> {
        let armed = ArmedTriggers::arm(host, wanted, |error| {
            reporter.say(&Line::Warning {
                text: format!("a PSI trigger for a threshold is left out: {error}"),
            });
        })
        .context("PSI triggers cannot be waited for")?;
        if let Some(source) = armed {
            let fd = watch(source.as_fd(), Interest::READABLE)
                .context("PSI triggers cannot be waited for")?;
            self.stalls = Some(Watched { fd, source });
        }
        Ok(())
    }

    /// Follows the manifests in a directory, by a thread.
    ///
    /// # Errors
    /// When it cannot be watched.
    pub fn watch_manifests(&mut self, dir: &Path) -> Result<()> {
        let (sender, manifests) = mpsc::channel(MANIFEST_CHANGES);
        self.manifests = manifests;
        self._manifest_watch = Some(ManifestWatch::spawn(dir, move |change| {
            sender.blocking_send(change).is_ok()
        })?);
        Ok(())
    }

    /// Answers these questions for snapshots too.
    pub fn give_snapshots_to(&mut self, requests: SnapshotRequests) {
        self.snapshots = requests;
    }

    /// Listens to the threads that watch disks too.
    pub fn watch_disks(&mut self, events: mpsc::Receiver<StorageEvent>) {
        self.storage = Some(events);
    }

    /// Waits for the memory events of pods too, if any are watched.
    ///
    /// # Errors
    /// When their descriptor cannot be waited for.
    pub fn watch_pods(&mut self, limits: &Limits) -> Result<()> {
        self.pod_events = limits
            .events_fd()
            .map(|fd| watch(fd, Interest::READABLE))
            .transpose()
            .context("the pods' memory events cannot be waited for")?
            .map(|fd| Paced::new((), fd, POD_EVENTS_PACE));
        Ok(())
    }
}

fn watch_pressure_level(memcg: &MemcgV1) -> Result<Paced<Notification>> {
    let source = memcg.notify_pressure(PRESSURE_LEVEL)?;
    let fd = watch(source.as_fd(), Interest::READABLE)?;
    Ok(Paced::new(source, fd, PRESSURE_LEVEL_PACE))
}

/// Waits until a descriptor is ready; for ever if there is none. The caller then takes all that there is.
pub(super) async fn ready(
    fd: Option<&AsyncFd<OwnedFd>>,
    interest: Interest,
) -> std::io::Result<()> {
    match fd {
        Some(fd) => {
            fd.ready(interest).await?.clear_ready();
            Ok(())
        }
        None => std::future::pending().await,
    }
}

/// The same, but not before a time; and then at once if something is left of the last time.
pub(super) async fn ready_at(
    fd: Option<&AsyncFd<OwnedFd>>,
    (is_left, at): (bool, Option<Instant>),
) -> std::io::Result<()> {
    if let Some(at) = at {
        tokio::time::sleep_until(at).await;
    }
    if is_left {
        return Ok(());
    }
    ready(fd, Interest::READABLE).await
}

/// The same for a source that is not to be looked at too often.
pub(super) async fn ready_paced<T>(paced: Option<&Paced<T>>) -> std::io::Result<()> {
    if let Some(paced) = paced {
        tokio::time::sleep_until(paced.not_before).await;
    }
    ready(paced.map(|paced| &paced.watched.fd), Interest::READABLE).await
}

/// The next message; for ever none if nobody is there to send one.
pub(super) async fn told<T>(messages: &mut Option<mpsc::Receiver<T>>) -> T {
    if let Some(messages) = messages
        && let Some(message) = messages.recv().await
    {
        return message;
    }
    std::future::pending().await
}

pub(super) async fn usage_reached(usage: Option<&V1Usage>) -> Result<()> {
    let Some(armed) = usage.and_then(|usage| usage.armed.as_ref()) else {
        return std::future::pending().await;
    };
    ready(Some(&armed.fd), Interest::READABLE).await?;
    armed.source.take()?;
    Ok(())
}

impl V1Usage {
    /// Arms the notification at the usage that the newest headroom allows.
    pub(super) fn arm(&mut self, headroom_bytes: Option<u64>) {
        let Some(headroom_bytes) = headroom_bytes else {
            self.armed = None;
            return;
        };
        let armed = self
            .memcg
            .usage_bytes()
            .and_then(|now_bytes| {
                self.memcg
                    .notify_at(now_bytes.saturating_add(headroom_bytes.max(1)))
            })
            .map_err(anyhow::Error::from)
            .and_then(|source| {
                Ok(Watched {
                    fd: watch(source.as_fd(), Interest::READABLE)?,
                    source,
                })
            });
        self.armed = match armed {
            Ok(armed) => Some(armed),
            Err(error) => {
                tracing::warn!(%error, "the cgroup v1 notification cannot be armed; the timer remains");
                None
            }
        };
    }
}
