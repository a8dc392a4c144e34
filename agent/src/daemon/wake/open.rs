//! Opens the descriptors that wake the loop, as the ladder has chosen them.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::Interest;

use super::Sources;
use super::source::{Source, Taken, Watched};
use super::source_name::SourceName;
use crate::daemon::limits::Limits;
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupMounts, CgroupPath, Controller, Version};
use crate::host::shown::Show as _;
use crate::kernel::Bpf;
use crate::probe::ladder::LadderSignal;
use crate::probe::mechanism::Mechanism;
use crate::probe::report::HostReport;
use crate::record::lines::{Line, Reporter};
use crate::source::cgroup_watch::CgroupWatch;
use crate::source::memcg_v1::{MemcgV1, MemcgV1Error, PressureLevel};
use crate::source::pressure::{PsiTrigger, Stall, Trigger};
use crate::source::stall_triggers::{ArmedTriggers, StallTrigger};

/// Between two rescans where the kernel reports cgroups that come and go. One drains the pressure ring, finds what was
/// missed in a twelfth of the pods, and gives each feature its turn.
const RESCAN_REPORTED: Duration = Duration::from_secs(5);
/// Between two rescans where nothing reports the first and last process of a pod, or those put into it later.
pub(super) const RESCAN_UNREPORTED: Duration = Duration::from_millis(500);
/// The PSI safety net: half of what a task can stall in a window of half a second before it is worth a look.
const PSI: (Stall, u32, u32) = (Stall::Some, 20, 500);
/// "Medium" is when the kernel has to scan more than twice the pages that it frees; "low" is ordinary page cache at
/// work.
const PRESSURE_LEVEL: PressureLevel = PressureLevel::Medium;
/// The kernel signals that for each 512 pages scanned.
const PRESSURE_LEVEL_PACE: Duration = Duration::from_millis(10);
/// The kernel signals a change of one `memory.events` every 10 ms, for as long as a pod is at its limit.
const POD_EVENTS_PACE: Duration = Duration::from_millis(100);
/// A pod that may make cgroups can change directories all the time, and have all of them walked for as long.
const CGROUPS_PACE: Duration = Duration::from_millis(100);

/// What [`Sources::open`] goes by, and where it says what is left out.
struct Opening<'a> {
    report: &'a HostReport,
    reporter: &'a mut Reporter,
}

impl Opening<'_> {
    /// Whether the ladder has chosen it, for this signal or for any.
    fn is_chosen(&self, mechanism: Mechanism, signal: Option<LadderSignal>) -> bool {
        self.report.choices.iter().any(|choice| {
            choice.mechanism == mechanism && signal.is_none_or(|signal| choice.signal == signal)
        })
    }

    /// The root of the memory hierarchy of cgroup v1, where its events are chosen for the signal.
    fn v1_root_for(
        &self,
        signal: LadderSignal,
        mounts: &CgroupMounts,
    ) -> Option<Result<MemcgV1, MemcgV1Error>> {
        let is_chosen = self.is_chosen(Mechanism::EventControl, Some(signal));
        is_chosen.then(|| v1_root(mounts)).flatten()
    }

    fn leave_out(&mut self, name: SourceName, error: &anyhow::Error) {
        self.reporter.say(&Line::Warning {
            text: format!("{} is left out: {error:#}; {}", name.name(), name.loss()),
        });
    }

    /// One that cannot be opened is left out with a warning.
    fn source(&mut self, name: SourceName, watched: Option<Result<Watched>>) -> Source {
        let mut source = Source::absent(name);
        match watched {
            Some(Ok(watched)) => source.watched = Some(watched),
            Some(Err(error)) => self.leave_out(name, &error),
            None => {}
        }
        source
    }

    /// Whether cgroups can be found by the ids that records have.
    fn can_name_cgroups(&mut self, mounts: &CgroupMounts) -> bool {
        match names_cgroups(mounts) {
            Ok(_) => true,
            Err(why) => {
                self.reporter.say(&Line::Warning {
                    text: format!(
                        "cgroups that come and go are looked for every {} ms: {why}",
                        RESCAN_UNREPORTED.as_millis()
                    ),
                });
                false
            }
        }
    }
}

impl Sources {
    /// Opens what the ladder has chosen.
    ///
    /// # Errors
    /// When the ring buffer of urgent records cannot be registered. Any other source that cannot be opened is left out
    /// with a warning.
    pub fn open(
        host: &HostRoot,
        mounts: &CgroupMounts,
        kubepods: &CgroupPath,
        bpf: Option<&Bpf>,
        report: &HostReport,
        reporter: &mut Reporter,
    ) -> Result<Self> {
        let mut opening = Opening { report, reporter };
        let ring = |fd| Watched::new(fd, Interest::READABLE, || Ok(()));
        // Without the first ring nothing is urgent any more: that is not optional where there are programs.
        let records = Source {
            watched: bpf
                .map(|bpf| ring(bpf.critical_fd()))
                .transpose()
                .context("cannot register the BPF ring buffer with epoll")?,
            ..Source::absent(SourceName::CriticalRing)
        };
        let lifecycle = opening.source(
            SourceName::LifecycleRing,
            bpf.map(|bpf| ring(bpf.lifecycle_fd())),
        );
        let is_psi = opening.is_chosen(Mechanism::Psi, None);
        let psi = opening.source(SourceName::PsiTrigger, is_psi.then(|| watch_psi(host)));
        let usage_root = opening.v1_root_for(LadderSignal::MemoryThreshold, mounts);
        let level_root = opening.v1_root_for(LadderSignal::NodeReclaim, mounts);
        let pressure_level = opening.source(
            SourceName::PressureLevel,
            level_root.map(|root| watch_pressure_level(&root?)),
        );
        let unwatched = Arc::new(AtomicU64::new(0));
        let is_inotify = opening.is_chosen(Mechanism::Inotify, None);
        let cgroups = opening.source(
            SourceName::CgroupWatch,
            is_inotify.then(|| watch_cgroups(mounts, kubepods, Arc::clone(&unwatched))),
        );
        let usage_root = usage_root.and_then(|root| {
            root.map_err(|error| opening.leave_out(SourceName::Usage, &error.into()))
                .ok()
        });
        let reports_cgroups = lifecycle.watched.is_some()
            && bpf.is_some_and(reports_cgroups)
            && opening.can_name_cgroups(mounts);
        Ok(Self {
            records,
            lifecycle,
            psi,
            usage_root,
            pressure_level: pressure_level.paced(PRESSURE_LEVEL_PACE),
            cgroups: cgroups.paced(CGROUPS_PACE),
            unwatched,
            reports_cgroups,
            rescan_period: if reports_cgroups {
                RESCAN_REPORTED
            } else {
                RESCAN_UNREPORTED
            },
            ..Self::none()
        })
    }

    /// Waits for the stalls that thresholds on pressure signals need, too. A trigger that cannot be had is left out
    /// with a warning: averages are then seen by the next sample.
    ///
    /// # Errors
    /// When they cannot be registered with epoll.
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
        })?;
        if let Some(armed) = armed {
            let fd = armed.as_fd().try_clone_to_owned()?;
            let watched = Watched::new(fd.as_fd(), Interest::READABLE, move || Ok(armed.take()?))?;
            self.stalls.watched = Some(watched);
        }
        Ok(())
    }

    /// Waits for the memory events of pods too, if any are watched.
    ///
    /// # Errors
    /// When their descriptor cannot be registered with epoll.
    pub fn watch_pods(&mut self, limits: &Limits) -> Result<()> {
        let Some(events) = limits.events() else {
            return Ok(());
        };
        let fd = events.as_fd();
        let taken = events.try_clone().context("the pods' memory events")?;
        self.pod_events.watched = Some(Watched::new(fd, Interest::READABLE, move || {
            Ok(taken.take().map(|_| ())?)
        })?);
        self.pod_events.pace = POD_EVENTS_PACE;
        Ok(())
    }
}

/// The PSI trigger of the node.
fn watch_psi(host: &HostRoot) -> Result<Watched> {
    let (stall, stall_ms, window_ms) = PSI;
    let trigger = Trigger::new(stall, stall_ms, window_ms)?;
    let psi = PsiTrigger::arm_as_allowed(host.procfs("pressure/memory"), trigger)?;
    let fd = psi.as_fd().try_clone_to_owned()?;
    Watched::new(fd.as_fd(), Interest::PRIORITY, move || {
        // Armed for as long as it is held here.
        let _ = &psi;
        Ok(())
    })
}

/// The memory controller's root on cgroup v1; `None` on v2, or without it.
fn v1_root(mounts: &CgroupMounts) -> Option<Result<MemcgV1, MemcgV1Error>> {
    let memory = mounts.hierarchy_of(Controller::Memory).ok()?;
    (memory.version == Version::V1).then(|| MemcgV1::open(&memory.dir(&CgroupPath::default())))
}

/// Directories that come and go below the cgroup of all pods. `unwatched` is how many of them are not watched.
fn watch_cgroups(
    mounts: &CgroupMounts,
    kubepods: &CgroupPath,
    unwatched: Arc<AtomicU64>,
) -> Result<Watched> {
    let memory = mounts.hierarchy_of(Controller::Memory)?;
    let mut cgroups = CgroupWatch::open(&memory.dir(kubepods))?;
    let fd = cgroups.as_fd().try_clone_to_owned()?;
    let show = move |cgroups: &CgroupWatch| {
        let count = u64::try_from(cgroups.unwatched()).unwrap_or(u64::MAX);
        unwatched.store(count, Ordering::Relaxed);
    };
    show(&cgroups);
    let has_more = cgroups.has_more();
    // Which cgroup it was does not matter: every wanted pod is rescanned.
    let mut watched = Watched::in_parts(fd.as_fd(), Interest::READABLE, move || {
        let missed = |cgroups: &CgroupWatch| (cgroups.overflows(), cgroups.beyond());
        let missed_before = missed(&cgroups);
        let changes = cgroups.changes()?;
        show(&cgroups);
        Ok(Taken {
            is_news: !changes.is_empty() || missed(&cgroups) != missed_before,
            has_more: cgroups.has_more(),
        })
    })?;
    watched.has_more = has_more;
    Ok(watched)
}

/// Whether reports of cgroups name them as they are named here; else why not.
fn names_cgroups(mounts: &CgroupMounts) -> Result<(), String> {
    let hierarchy = mounts.hierarchy_of(Controller::Memory);
    let hierarchy = hierarchy.map_err(|error| error.to_string())?;
    let mount = hierarchy.mount.shown();
    match hierarchy.is_whole() {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "{mount} is a part of a hierarchy, as where the node itself is a container, and the kernel reports paths from the root of the whole"
        )),
        Err(error) => Err(format!("{mount}: {error}")),
    }
}

/// Whether all that happens to cgroups is reported.
fn reports_cgroups(bpf: &Bpf) -> bool {
    [
        "cgroup_mkdir",
        "cgroup_rmdir",
        "cgroup_notify_populated",
        "cgroup_attach_task",
    ]
    .iter()
    .all(|program| bpf.is_attached(program))
}

fn watch_pressure_level(memcg: &MemcgV1) -> Result<Watched> {
    let source = memcg.notify_pressure(PRESSURE_LEVEL)?;
    let fd = source.as_fd().try_clone_to_owned()?;
    Watched::new(fd.as_fd(), Interest::READABLE, move || {
        Ok(source.take().map(|_| ())?)
    })
}

/// The notification on the node's usage, `headroom_bytes` above what it is now.
pub(super) fn watch_usage(root: &MemcgV1, headroom_bytes: u64) -> Result<Watched> {
    let at_bytes = root.usage_bytes()?.saturating_add(headroom_bytes.max(1));
    let source = root.notify_at(at_bytes)?;
    let fd = source.as_fd().try_clone_to_owned()?;
    Watched::new(fd.as_fd(), Interest::READABLE, move || {
        Ok(source.take().map(|_| ())?)
    })
}
