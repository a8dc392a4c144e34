//! The thread that follows a manifests directory.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod_uid::PodUid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;

use super::admission::AdmissionContext;
use super::{ManifestChange, ManifestDir, PODS_MAX, SETTLE_MS};
use crate::host::shown::Show as _;
use crate::host::wake_fd::WakeFd;

/// Stack of the thread: all of it is locked in memory. The deepest file takes more than 512 KiB of it without
/// optimisation.
const STACK_BYTES: usize = 2 << 20;
/// How often a directory that has gone away is looked for.
const RETRY_MS: u64 = 1000;

/// Why the directory cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// It cannot be read.
    #[error("{dir}: the manifests directory cannot be read: {source}; create it or name another one with --manifests", dir = dir.shown())]
    Directory {
        /// Which directory.
        dir: PathBuf,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The kernel gives no inotify instance, descriptor or thread.
    #[error(
        "the manifests directory cannot be watched: {what}: {source}; see fs.inotify.max_user_instances and max_user_watches"
    )]
    Kernel {
        /// Which call.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// A running watch. Dropping it ends its thread.
#[derive(Debug)]
pub struct ManifestWatch {
    stop: WakeFd,
    left_pods: Option<LeftPods>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ManifestWatch {
    /// Starts watching on an ordinary thread. `send` gets the first state, which may have no pods, and then each
    /// change; it may block (a bounded channel), and ends the watch by returning `false`.
    ///
    /// # Errors
    /// [`WatchError`] when the directory is not there or the kernel refuses the watch.
    pub fn spawn(
        dir: impl Into<PathBuf>,
        ground: Option<AdmissionContext>,
        send: impl FnMut(ManifestChange) -> bool + Send + 'static,
    ) -> Result<Self, WatchError> {
        let dir = dir.into();
        let kernel = |what| move |source| WatchError::Kernel { what, source };
        let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .map_err(kernel("inotify_init1"))?;
        add_watch(&events, &dir).map_err(|source| WatchError::Directory {
            dir: dir.clone(),
            source,
        })?;
        let stop = WakeFd::new().map_err(kernel("eventfd"))?;
        let wake = WakeFd::new().map_err(kernel("eventfd"))?;
        let (sender, left) = mpsc::sync_channel(PODS_MAX);
        let follower = Follower {
            events,
            stop: stop.clone(),
            wake: wake.clone(),
            left,
        };
        let thread = std::thread::Builder::new()
            .name("manifests".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || follower.watch(&dir, ground, send))
            .map_err(|error| WatchError::Kernel {
                what: "clone",
                source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
            })?;
        Ok(Self {
            stop,
            left_pods: Some(LeftPods { sender, wake }),
            thread: Some(thread),
        })
    }

    /// Where the thread is told which pods have left, once.
    pub fn take_left_pods(&mut self) -> Option<LeftPods> {
        self.left_pods.take()
    }
}

/// Tells the thread which of the pods that it has removed have left.
#[derive(Debug)]
pub struct LeftPods {
    sender: mpsc::SyncSender<PodUid>,
    wake: WakeFd,
}

impl LeftPods {
    /// A pod has left. Does not wait; returns whether there was room for it.
    pub fn send(&self, uid: &PodUid) -> bool {
        let sent = self.sender.try_send(uid.clone());
        self.wake.wake();
        // A thread that has ended needs to know nothing.
        !matches!(sent, Err(mpsc::TrySendError::Full(_)))
    }
}

impl Drop for ManifestWatch {
    fn drop(&mut self) {
        self.stop.wake();
        // Not joined: the thread may be waiting in `send` for a loop that has ended.
        drop(self.thread.take());
    }
}

fn add_watch(events: &OwnedFd, dir: &Path) -> Result<i32, Errno> {
    use inotify::WatchFlags;
    let wanted = WatchFlags::CLOSE_WRITE
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ATTRIB
        | WatchFlags::ONLYDIR;
    inotify::add_watch(events, dir, wanted)
}

/// What the thread waits for.
struct Follower {
    events: OwnedFd,
    stop: WakeFd,
    wake: WakeFd,
    left: mpsc::Receiver<PodUid>,
}

impl Follower {
    fn watch(
        self,
        dir: &Path,
        ground: Option<AdmissionContext>,
        mut send: impl FnMut(ManifestChange) -> bool,
    ) {
        let start = Instant::now();
        let mut manifests = ManifestDir::new(dir);
        if let Some(ground) = ground {
            manifests = manifests.with_admission(ground);
        }
        let mut is_watched = true;
        loop {
            let (change, is_settling) = manifests.look(start.elapsed());
            if change.is_some_and(|change| !send(change)) {
                return;
            }
            let timeout_ms = match (is_settling, is_watched) {
                (true, _) => Some(SETTLE_MS),
                (false, false) => Some(RETRY_MS),
                (false, true) => manifests.is_undecided().then_some(RETRY_MS),
            };
            let timeout = timeout_ms.map(|ms| Timespec {
                tv_sec: (ms / 1000).cast_signed(),
                tv_nsec: (ms % 1000 * 1_000_000).cast_signed(),
            });
            let mut fds = [
                PollFd::new(&self.events, PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::new(&self.wake, PollFlags::IN),
            ];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => std::thread::sleep(Duration::from_millis(RETRY_MS)), // ENOMEM: try again, slowly
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            self.wake.clear();
            for uid in self.left.try_iter() {
                manifests.note_left(&uid);
            }
            // A directory that was moved away or deleted, and one that came back under its name, look the same: watch
            // the name anew.
            let is_gone = drain(&self.events);
            if is_gone || !is_watched {
                is_watched = add_watch(&self.events, dir).is_ok();
            }
        }
    }
}

/// Takes all events; true when the directory itself went away.
fn drain(events: &OwnedFd) -> bool {
    use inotify::ReadFlags;
    let mut is_gone = false;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(events.as_fd(), &mut buffer);
    while let Ok(event) = reader.next() {
        is_gone |= event.events().intersects(
            ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT,
        );
    }
    is_gone
}
