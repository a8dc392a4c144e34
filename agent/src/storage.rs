//! The node's disks: how full they are, which pod has what on them, and what can be freed before a pod has to go.
//!
//! **Problem.** Whether a file system is nearly full is one system call; whose fault it is may take minutes of walking.
//! Both have to be ready when a threshold is met, and neither may hold up the loop that watches memory, or take the
//! disk away from pods. **Approach.** Two threads. `storage` reads the file systems ([`filesystem`]) as often as the
//! caller says and sends each reading with the newest figures of pods. `storage-walk` surveys the pods ([`usage`]), a
//! slice of [`SLICE_ENTRIES`] at a time, under SCHED_IDLE and with idle I/O priority, resting [`REST`] times as long as
//! it worked; [`StorageHandle::rank_now`] makes it finish a new survey of all pods at ordinary priority and without
//! rest. It also frees what the node can do without ([`freeing`]), when asked to. **Between the threads and the loop**
//! are bounded queues and counters without locks: the walking thread may be kept from the CPU for long, and the loop
//! must never wait for it. Reports that do not fit are told later or counted. A third thread, `storage-runtime`, asks a
//! container runtime where there is one ([`runtime`]). **Terms.** *cycle*: one survey of all pods; a figure is at most
//! one cycle old, a pod without one is surveyed next.
#![deny(unsafe_code)]

mod descent;
pub mod filesystem;
pub mod freeing;
mod layer;
pub mod mountinfo;
pub mod pod_paths;
mod reader;
pub mod remove;
pub mod runtime;
mod surveyor;
#[cfg(test)]
mod tests;
pub mod usage;
pub mod walk;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use plimsoll_core::model::decision::FreeSource;
use plimsoll_core::model::reading::StorageReading;
use plimsoll_core::policy::disk::freeing::Targets;
use plimsoll_core::protocol::runtime_link::RuntimeDirectories;
use rustix::io::Errno;
use tokio::sync::mpsc;

use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupPath};
use crate::host::worker::{NotTaken, WorkerThread};
use crate::pods::directories::PodDirs;
use filesystem::{FileSystems, KubeletRoot, LAYER_DIRS};
use freeing::{EndedPods, FreeRequest, Freed, FreesDisk};
use pod_paths::{PodPaths, RuntimeLayers};
use runtime::{FreeOrder, RuntimeSettings, RuntimeSpace};
use surveyor::Surveyor;
use usage::DirectoryReport;

/// Entries of directories that one slice looks at: some milliseconds.
pub const SLICE_ENTRIES: u32 = 1_000;
/// How many times as long as a slice took the thread rests after it, unless a ranking is waited for.
pub const REST: u32 = 4;
/// Shortest time between two readings of the file systems.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longest time between two readings of the file systems.
pub const INTERVAL_MAX: Duration = Duration::from_secs(10);
/// Time between the starts of two cycles, as the kubelet's `volumeStatsAggPeriod`.
pub const CYCLE: Duration = Duration::from_secs(60);
/// Events that wait for the loop.
const EVENTS_MAX: usize = 64;
/// Orders that wait for the walking thread.
const ORDERS_MAX: usize = 64;
/// How long the end of a thread is waited for: it may be held up by a disk that does not answer.
const SHUTDOWN: Duration = Duration::from_secs(2);
/// Neither thread goes deep, and `mlockall` keeps all of it in memory.
const STACK_BYTES: usize = 256 << 10;

/// What to watch.
#[derive(Debug, Clone)]
pub struct StorageSettings {
    /// The machine.
    pub host: HostRoot,
    /// The kubelet's directory.
    pub kubelet_dir: PathBuf,
    /// Whose that is.
    pub kubelet_root: KubeletRoot,
    /// The directory of pods' logs.
    pub logs_dir: PathBuf,
    /// A directory on imagefs; else the runtime's, if there is one.
    pub image_dir: Option<PathBuf>,
    /// A directory on containerfs; else as imagefs.
    pub container_dir: Option<PathBuf>,
    /// Whether a container runtime keeps images on this machine, as beside a kubelet.
    pub has_images: bool,
    /// Where the runtime has both, as far as that can be seen here ([`Self::follow_runtime`]).
    pub of_runtime: RuntimeDirectories,
    /// Below which the pods' cgroups are.
    pub cgroup_root: CgroupPath,
    /// The first interval between readings of the file systems; see [`StorageHandle::set_interval`].
    pub interval: Duration,
    /// Time between the starts of two cycles.
    pub cycle: Duration,
    /// The container runtime that may be asked to remove what is not needed.
    pub runtime: Option<RuntimeSettings>,
}

impl StorageSettings {
    /// The kubelet's directories on this machine.
    pub fn live(cgroup_root: CgroupPath) -> Self {
        Self {
            host: HostRoot::live(),
            kubelet_dir: PathBuf::from(KUBELET_DIR),
            kubelet_root: KubeletRoot::Unused,
            logs_dir: PathBuf::from(LOGS_DIR),
            image_dir: None,
            container_dir: None,
            has_images: false,
            of_runtime: RuntimeDirectories::default(),
            cgroup_root,
            interval: INTERVAL_MAX,
            cycle: CYCLE,
            runtime: None,
        }
    }

    /// Images and layers are where the runtime says that it has them, as far as that can be seen here and no other
    /// place was told by option.
    pub fn follow_runtime(&mut self, of_runtime: &RuntimeDirectories) {
        let is_seen = |directory: &String| self.host.path(Path::new(directory)).is_dir();
        self.of_runtime = RuntimeDirectories {
            images: of_runtime.images.clone().filter(is_seen),
            containers: of_runtime.containers.clone().filter(is_seen),
        };
    }

    /// What was told by option, else by the runtime: for images, and for layers. A place for images alone is also that
    /// for layers.
    fn named_dirs(&self) -> [Option<&Path>; 2] {
        let of_runtime = [&self.of_runtime.images, &self.of_runtime.containers];
        let of_runtime = of_runtime.map(|directory| directory.as_deref().map(Path::new));
        let [images, layers] = match self.image_dir {
            Some(_) => [self.image_dir.as_deref(), None],
            None => of_runtime,
        };
        [images, self.container_dir.as_deref().or(layers)]
    }

    /// The file systems that are watched with these settings; their layout is a setting of the engine.
    pub fn file_systems(&self) -> FileSystems {
        let [images, layers] = self.named_dirs();
        let found = FileSystems::detect(
            &self.host,
            &self.kubelet_dir,
            images,
            layers,
            self.has_images,
        );
        match &self.kubelet_root {
            KubeletRoot::Unused => found,
            // Not one above it, where it is missing.
            root => FileSystems {
                nodefs: self.host.path(&self.kubelet_dir),
                root: root.clone(),
                ..found
            },
        }
    }
}

/// The kubelet's directory, unless told otherwise (`--root-dir` of the kubelet).
pub const KUBELET_DIR: &str = "/var/lib/kubelet";
/// Where pods' logs are, unless told otherwise (`podLogsDir` of the kubelet).
pub const LOGS_DIR: &str = "/var/log/pods";

/// What the threads tell.
#[derive(Debug)]
pub enum StorageEvent {
    /// File systems just read, and the newest figures of pods.
    Reading(Arc<StorageReading>),
    /// The same, after a [`StorageHandle::rank_now`]: every pod that the thread knew of at that call has been measured
    /// since.
    Ranked(Arc<StorageReading>),
    /// Something was freed, or would have been.
    Freed {
        /// Which provider.
        provider: &'static str,
        /// Nothing was really deleted.
        dry: bool,
        /// All since the request. With `more` set this is progress, else the end.
        freed: Freed,
    },
    /// Answer to [`StorageHandle::report`]: every directory as it was last measured, by ascending UID.
    Report(Vec<DirectoryReport>),
    /// Something that people should know.
    Warning(String),
}

/// Why the threads cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// Without cgroups no pod's processes can be found.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    /// The kernel refused something.
    #[error("storage: {what}: {source}; raise the limit on threads or open files")]
    Kernel {
        /// Which call.
        what: &'static str,
        /// Its answer.
        #[source]
        source: Errno,
    },
}

/// [`ORDERS_MAX`] orders wait already. Ask again later; nothing was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("storage: {ORDERS_MAX} requests are already queued; try again later")]
pub struct Busy;

/// What the loop wants from the walking thread.
#[derive(Debug)]
enum Order {
    Pods(Arc<[PodDirs]>),
    Rank,
    Free(FreeRequest),
    Report,
}

/// What both threads and the handle share. Nobody ever waits for it.
#[derive(Debug)]
struct Shared {
    interval_ms: AtomicU64,
    events_dropped: AtomicU64,
}

impl Shared {
    fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.load(Ordering::Relaxed))
    }
}

/// The observers of the node's disks.
#[derive(Debug)]
pub struct Storage;

impl Storage {
    /// Starts both threads, with [`EndedPods`] to free space.
    ///
    /// # Errors
    /// [`StorageError`]: no cgroups, or no more threads or descriptors.
    pub fn spawn(
        settings: StorageSettings,
    ) -> Result<(StorageHandle, mpsc::Receiver<StorageEvent>), StorageError> {
        let paths = paths(&settings);
        let ended = EndedPods::new(
            paths,
            settings.host.cgroup_mounts()?,
            settings.cgroup_root.clone(),
        );
        Self::spawn_with(settings, vec![Box::new(ended)])
    }

    /// Starts both threads, with these providers, which are asked in this order.
    ///
    /// # Errors
    /// As [`Self::spawn`].
    pub fn spawn_with(
        settings: StorageSettings,
        providers: Vec<Box<dyn FreesDisk>>,
    ) -> Result<(StorageHandle, mpsc::Receiver<StorageEvent>), StorageError> {
        let shared = Arc::new(Shared {
            interval_ms: AtomicU64::new(interval_ms(settings.interval)),
            events_dropped: AtomicU64::new(0),
        });
        let paths = paths(&settings);
        let runtime_layers = paths.runtime_layers.clone();
        let mounts = settings.host.cgroup_mounts()?;
        let file_systems = settings.file_systems();
        let runtime_file_systems = file_systems.clone();
        let (host, is_given) = (settings.host.clone(), settings.image_dir.is_some());
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let (figures, observer_figures) = sync_channel(surveyor::FIGURES_MAX);
        let thread = |error: std::io::Error| StorageError::Kernel {
            what: "clone",
            source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        };
        // If the second cannot be started, dropping the first ends it.
        let runtime_events = events.clone();
        let reader = reader::Reader::new(
            file_systems,
            Arc::clone(&shared),
            observer_figures,
            events.clone(),
        );
        let reader = WorkerThread::start("storage", STACK_BYTES, 0, move |queue, _| {
            reader.run(&queue);
        })
        .map_err(thread)?;
        let means = surveyor::Means {
            paths,
            mounts,
            providers,
            cycle: settings.cycle,
            reader: reader.thread().cloned(),
        };
        let surveyor_shared = Arc::clone(&shared);
        let surveyor =
            WorkerThread::start("storage-walk", STACK_BYTES, ORDERS_MAX, move |orders, _| {
                Surveyor::new(means, surveyor_shared, orders, figures, events).run();
            })
            .map_err(thread)?;
        let runtime = settings.runtime.map(|settings| {
            let space = RuntimeSpace::new(settings, runtime_file_systems, runtime_events)
                .with_layers(runtime_layers)
                .comparing(host, is_given);
            WorkerThread::start("storage-runtime", STACK_BYTES, 1, move |orders, _| {
                space.run(&orders)
            })
        });
        let runtime = runtime.transpose().map_err(thread)?;
        let handle = StorageHandle {
            shared,
            reader,
            surveyor,
            runtime,
        };
        Ok((handle, receiver))
    }
}

fn interval_ms(interval: Duration) -> u64 {
    let interval = interval.clamp(INTERVAL_MIN, INTERVAL_MAX).as_millis();
    // At most INTERVAL_MAX.
    u64::try_from(interval).unwrap_or(u64::MAX)
}

fn paths(settings: &StorageSettings) -> PodPaths {
    PodPaths {
        host: settings.host.clone(),
        kubelet_dir: settings.kubelet_dir.clone(),
        logs_dir: settings.logs_dir.clone(),
        layer_roots: layer_roots(settings),
        runtime_layers: RuntimeLayers::default(),
    }
}

/// Below which writable layers are believed to be: where the runtimes keep them, and what the administrator or the
/// runtime itself has named.
fn layer_roots(settings: &StorageSettings) -> Vec<PathBuf> {
    let named = settings.named_dirs().into_iter().flatten();
    let known = LAYER_DIRS.iter().map(PathBuf::from);
    known.chain(named.map(Path::to_owned)).collect()
}

/// What the loop holds. No call waits for anything, except [`Self::shutdown`] and dropping it.
#[derive(Debug)]
pub struct StorageHandle {
    shared: Arc<Shared>,
    /// It has no jobs: it is unparked.
    reader: WorkerThread<Infallible>,
    surveyor: WorkerThread<Order>,
    runtime: Option<WorkerThread<FreeOrder>>,
}

impl StorageHandle {
    /// The pods to measure from now on.
    ///
    /// # Errors
    /// [`Busy`]: ask again later.
    pub fn set_pods(&self, pods: Vec<PodDirs>) -> Result<(), Busy> {
        self.order(Order::Pods(pods.into()))
    }

    /// How often the file systems are to be read, from now on: the nearer to a threshold, the sooner. Held between
    /// [`INTERVAL_MIN`] and [`INTERVAL_MAX`].
    pub fn set_interval(&self, interval: Duration) {
        let interval = interval_ms(interval);
        if self.shared.interval_ms.swap(interval, Ordering::Relaxed) != interval
            && let Some(thread) = self.reader.thread()
        {
            thread.unpark();
        }
    }

    /// Measures all pods as fast as possible; [`StorageEvent::Ranked`] follows. Asking again before that adds one more
    /// survey, not several.
    ///
    /// # Errors
    /// [`Busy`]: ask again later.
    pub fn rank_now(&self) -> Result<(), Busy> {
        self.order(Order::Rank)
    }

    /// Frees what the request allows; [`StorageEvent::Freed`] follows, per provider. A pod that [`Self::set_pods`]
    /// brings later counts as live from then on. A request that comes while another is worked on replaces it.
    ///
    /// # Errors
    /// [`Busy`]: ask again later.
    pub fn free(&self, request: FreeRequest) -> Result<(), Busy> {
        self.order(Order::Free(request))
    }

    /// Has the container runtime remove ended containers and unused images, of these sources, until the targets are
    /// reached, or `until`; [`StorageEvent::Freed`] of [`runtime::PROVIDER`] follows. `None`: there is none, or
    /// nothing of this is its.
    ///
    /// # Errors
    /// [`Busy`]: ask again later.
    pub fn free_runtime(
        &self,
        sources: &[FreeSource],
        targets: Targets,
        until: Instant,
    ) -> Option<Result<(), Busy>> {
        let runtime = self.runtime.as_ref()?;
        let is_its = |source: &&FreeSource| **source != FreeSource::EndedPods;
        let sources: Vec<FreeSource> = sources.iter().filter(is_its).copied().collect();
        if sources.is_empty() {
            return None;
        }
        let order = FreeOrder {
            sources,
            targets,
            until,
        };
        Some(match runtime.send(order) {
            Ok(()) => Ok(()),
            // Its end is the end of the process.
            Err(NotTaken::Ended | NotTaken::Full) => Err(Busy),
        })
    }

    /// Asks for every directory with its figures and how they were found; [`StorageEvent::Report`] follows.
    ///
    /// # Errors
    /// [`Busy`]: ask again later.
    pub fn report(&self) -> Result<(), Busy> {
        self.order(Order::Report)
    }

    /// Events that did not fit into the loop's queue and were not kept for later: readings, of which the next one takes
    /// the place, and warnings.
    pub fn events_dropped(&self) -> u64 {
        self.shared.events_dropped.load(Ordering::Relaxed)
    }

    fn order(&self, order: Order) -> Result<(), Busy> {
        match self.surveyor.send(order) {
            // A thread that has ended does so because the process ends.
            Ok(()) | Err(NotTaken::Ended) => Ok(()),
            Err(NotTaken::Full) => Err(Busy),
        }
    }

    /// Ends the threads. Whether they have ended: a disk that does not answer may keep one, which then ends with the
    /// process.
    fn stop_by(&mut self, deadline: Instant) -> bool {
        self.surveyor.close();
        if let Some(runtime) = &mut self.runtime {
            runtime.close();
        }
        let has_ended = self.reader.end_by(deadline);
        let has_ended = self.surveyor.end_by(deadline) && has_ended;
        let runtime = self.runtime.as_mut();
        runtime.is_none_or(|runtime| runtime.end_by(deadline)) && has_ended
    }
}

impl Drop for StorageHandle {
    fn drop(&mut self) {
        self.stop_by(Instant::now() + SHUTDOWN);
    }
}
