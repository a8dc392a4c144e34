//! The agent's end of `plimsoll-runtime nri`, which answers the container runtime when it makes a container.
//!
//! **Problem.** The runtime's question comes when it comes, and is answered at once or never. **Approach.** What the
//! loop decides of a pod is sent ahead, pod by pod ([`NriLink::set`]). One thread keeps all of it, starts
//! `plimsoll-runtime nri`, gives it the whole table each time, and hands the loop what it says. A process that ends or
//! sends what is no frame is killed and started again later. The loop waits for none of it; where the loop does not
//! listen, nothing is read, and the other end counts what it drops.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::protocol::backoff::Backoff;
use plimsoll_core::protocol::framing::LENGTH_BYTES;
use plimsoll_core::protocol::runtime_link::{
    ANSWERED_PODS_MAX, FRAMING, FromNri, PROTOCOL, PodAnswers, ToNri,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::mpsc;

use crate::host::child_program::ChildProgram;
use crate::host::runtime_program::{Lost, RESTARTS, parsed, same_protocol};
use crate::host::wake_fd::WakeFd;
use crate::host::worker::WorkerThread;

/// Answers of pods that may wait for the thread.
const CHANGES_MAX: usize = ANSWERED_PODS_MAX;
/// Frames that may wait for the loop; then the other end is not read.
const EVENTS_MAX: usize = 64;
/// After this time it is tried again to hand a frame to the loop.
const EVENT_AGAIN: Duration = Duration::from_millis(20);
/// Words of this thread and frames that wait in it: one frame at a time, and what ended the connection.
const WAITING_MAX: usize = 4;
/// From the start of the process to its first frame.
const GREETED_WITHIN: Duration = Duration::from_secs(10);
/// To write one frame.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// Read at one time, bytes.
const PORTION: usize = 16 << 10;
const STACK_BYTES: usize = 256 << 10;

/// Where the runtime takes plugins, and the program that is one.
#[derive(Debug, Clone)]
pub struct NriSettings {
    /// The runtime's socket.
    pub socket: PathBuf,
    /// Where it is asked for its events.
    pub runtime: PathBuf,
    /// `plimsoll-runtime`.
    pub program: PathBuf,
}

/// What the runtime is to be answered from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NriChange {
    /// Of a pod.
    Pod {
        /// Which pod.
        uid: PodUid,
        /// The answers; empty ones change nothing.
        answers: PodAnswers,
    },
    /// Of containers that have no CPUs of their own.
    SharedPool(Option<String>),
}

/// What the other end says, without its greeting.
pub type NriEvents = mpsc::Receiver<FromNri>;

/// The loop's side.
#[derive(Debug)]
pub struct NriLink {
    thread: WorkerThread<NriChange>,
    wake: WakeFd,
}

impl NriLink {
    /// Starts the thread, which starts the program.
    ///
    /// # Errors
    /// When the kernel gives no thread or descriptor.
    pub fn start(settings: NriSettings) -> io::Result<(Self, NriEvents)> {
        Self::started_by(Box::new(move || {
            let arguments = [
                OsStr::new("nri"),
                OsStr::new("--nri-socket"),
                settings.socket.as_os_str(),
                OsStr::new("--runtime-endpoint"),
                settings.runtime.as_os_str(),
            ];
            ChildProgram::start(&settings.program, arguments)
        }))
    }

    fn started_by(start: Start) -> io::Result<(Self, NriEvents)> {
        let wake = WakeFd::new()?;
        let (events, received) = mpsc::channel(EVENTS_MAX);
        let work = Work {
            start,
            wake: wake.clone(),
            events,
            table: BTreeMap::new(),
            pool: None,
            waiting: VecDeque::new(),
            peer: None,
            not_before: Instant::now(),
            restarts: RESTARTS,
        };
        let thread = WorkerThread::start("nri", STACK_BYTES, CHANGES_MAX, move |changes, _| {
            work.run(&changes);
        })?;
        Ok((Self { thread, wake }, received))
    }

    /// From now on the runtime is answered so. Does not wait. Returns whether there was room.
    pub fn set(&self, change: NriChange) -> bool {
        let sent = self.thread.send(change);
        self.wake.wake();
        sent.is_ok()
    }

    /// Without a thread: what it would be given is in the queue.
    #[cfg(test)]
    pub(crate) fn without_thread() -> (Self, Receiver<NriChange>) {
        let (thread, taken) = WorkerThread::without_thread(CHANGES_MAX);
        let wake = WakeFd::new().unwrap();
        (Self { thread, wake }, taken)
    }
}

impl Drop for NriLink {
    /// Ends the thread, and the program with it.
    fn drop(&mut self) {
        self.thread.close();
        self.wake.wake();
    }
}

type Start = Box<dyn FnMut() -> io::Result<ChildProgram> + Send>;

/// The other end, as long as it lives.
struct Peer {
    companion: ChildProgram,
    /// What has come and is no whole frame yet, or is not taken yet.
    input: Vec<u8>,
    has_greeted: bool,
    greeted_by: Instant,
}

/// The thread.
struct Work {
    start: Start,
    wake: WakeFd,
    events: mpsc::Sender<FromNri>,
    table: BTreeMap<PodUid, PodAnswers>,
    pool: Option<String>,
    waiting: VecDeque<FromNri>,
    peer: Option<Peer>,
    not_before: Instant,
    /// Until a runtime is answered.
    restarts: Backoff,
}

impl Work {
    fn run(mut self, changes: &Receiver<NriChange>) {
        while self.take_changes(changes) {
            self.start_if_due();
            self.hand_over();
            // After it no frame is left that could be taken: nothing would wake this for one.
            self.take_frames();
            let is_readable = self.wait();
            if is_readable {
                self.read();
            }
        }
    }

    /// Whether the loop goes on.
    fn take_changes(&mut self, changes: &Receiver<NriChange>) -> bool {
        loop {
            let change = match changes.try_recv() {
                Ok(change) => change,
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            };
            let has_greeted = self.peer.as_ref().is_some_and(|peer| peer.has_greeted);
            let (uid, answers) = match change {
                NriChange::Pod { uid, answers } => (uid, answers),
                NriChange::SharedPool(cpus) => {
                    self.pool.clone_from(&cpus);
                    if has_greeted {
                        self.write(&ToNri::SharedPool { cpus });
                    }
                    continue;
                }
            };
            if answers.is_empty() {
                self.table.remove(&uid);
            } else if self.table.len() < ANSWERED_PODS_MAX || self.table.contains_key(&uid) {
                self.table.insert(uid.clone(), answers.clone());
            } else {
                continue; // the loop knows no more pods than that
            }
            let frame = ToNri::Pod {
                uid: uid.as_str().to_owned(),
                answers,
            };
            if has_greeted {
                self.write(&frame);
            }
        }
    }

    fn start_if_due(&mut self) {
        if self.peer.is_some() || Instant::now() < self.not_before {
            return;
        }
        let started = (self.start)().and_then(|companion| {
            companion.stream.set_write_timeout(Some(WRITTEN_WITHIN))?;
            Ok(companion)
        });
        match started {
            Ok(companion) => {
                self.peer = Some(Peer {
                    companion,
                    input: Vec::new(),
                    has_greeted: false,
                    greeted_by: Instant::now() + GREETED_WITHIN,
                });
            }
            Err(error) => self.lose(error.to_string()),
        }
    }

    /// It is ended, and started again later.
    fn lose(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.peer = None;
        self.not_before = Instant::now() + self.restarts.failed();
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(FromNri::Away { why });
        }
    }

    fn hand_over(&mut self) {
        while let Some(event) = self.waiting.pop_front() {
            match self.events.try_send(event) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(event)) => {
                    self.waiting.push_front(event);
                    return;
                }
                // The loop has ended, which the other queue says, too.
                Err(mpsc::error::TrySendError::Closed(_)) => return,
            }
        }
    }

    /// Waits until there is something to do. Whether the other end has said something.
    fn wait(&mut self) -> bool {
        let now = Instant::now();
        let until = match &self.peer {
            _ if !self.waiting.is_empty() => Some(now + EVENT_AGAIN),
            None => Some(self.not_before),
            Some(peer) => (!peer.has_greeted).then_some(peer.greeted_by),
        };
        let timeout = until.map(|until| {
            // Upwards: else it would turn until the millisecond is over.
            let wait = until.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            }
        });
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        // Where the loop does not listen, nothing is read.
        let peer = self.peer.as_ref().filter(|_| self.waiting.is_empty());
        fds.extend(peer.map(|peer| PollFd::new(&peer.companion.stream, PollFlags::IN)));
        // Interrupted: it comes back.
        let ready = poll(&mut fds, timeout.as_ref()).unwrap_or(0);
        let is_readable = ready > 0 && fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        self.wake.clear();
        let is_late = |peer: &Peer| !peer.has_greeted && Instant::now() >= peer.greeted_by;
        if !is_readable && self.peer.as_ref().is_some_and(is_late) {
            self.lose(Lost::Late);
        }
        is_readable
    }

    fn read(&mut self) {
        let Some(peer) = &mut self.peer else {
            return;
        };
        let mut portion = [0; PORTION];
        match peer.companion.stream.read(&mut portion) {
            Ok(0) => self.lose(Lost::Ended),
            Ok(read) => peer.input.extend_from_slice(&portion[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.lose(Lost::from(error)),
        }
    }

    /// Takes one frame after the other, as long as the loop listens.
    fn take_frames(&mut self) {
        while self.waiting.is_empty()
            && let Some(peer) = &mut self.peer
        {
            match peer.next_frame() {
                Ok(None) => return,
                Ok(Some(frame)) => self.take_frame(frame),
                Err(why) => self.lose(why),
            }
            self.hand_over();
        }
    }

    fn take_frame(&mut self, frame: FromNri) {
        let has_greeted = self.peer.as_ref().is_some_and(|peer| peer.has_greeted);
        match frame {
            FromNri::Hello { protocol } if !has_greeted => {
                match same_protocol(protocol, PROTOCOL) {
                    Ok(()) => self.greeted(),
                    Err(other) => self.lose(other),
                }
            }
            FromNri::Connected { .. }
            | FromNri::Away { .. }
            | FromNri::Container { .. }
            | FromNri::Update { .. }
            | FromNri::Updated { .. }
            | FromNri::Events { .. }
            | FromNri::Started { .. }
            | FromNri::Ended { .. }
            | FromNri::Dropped { .. }
                if has_greeted =>
            {
                if matches!(frame, FromNri::Connected { .. }) {
                    self.restarts.reset();
                }
                self.waiting.push_back(frame);
            }
            _ => self.lose(Lost::Nonsense),
        }
    }

    /// It gets all that is known.
    fn greeted(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.has_greeted = true;
        }
        let pods: Vec<ToNri> = self
            .table
            .iter()
            .map(|(uid, answers)| ToNri::Pod {
                uid: uid.as_str().to_owned(),
                answers: answers.clone(),
            })
            .collect();
        let pool = self.pool.clone();
        let pool = pool.map(|cpus| ToNri::SharedPool { cpus: Some(cpus) });
        for frame in pool.iter().chain(&pods).chain([&ToNri::Complete]) {
            self.write(frame);
        }
    }

    fn write(&mut self, frame: &ToNri) {
        let Some(bytes) = fitting(frame) else {
            return;
        };
        if let Some(peer) = &mut self.peer
            && let Err(error) = peer.companion.stream.write_all(&bytes)
        {
            self.lose(match Lost::from(error) {
                Lost::Late => Lost::Unread,
                lost => lost,
            });
        }
    }
}

/// A pod's answers that do not fit into a frame are sent without scores, or else only as far as it is refused, so that
/// nothing older holds.
fn fitting(frame: &ToNri) -> Option<Vec<u8>> {
    if let Some(bytes) = encode(frame) {
        return Some(bytes);
    }
    let ToNri::Pod { uid, answers } = frame else {
        return None;
    };
    let with = |answers| {
        let uid = uid.clone();
        encode(&ToNri::Pod { uid, answers })
    };
    let without_scores = with(PodAnswers {
        oom_score_adj: BTreeMap::new(),
        specified: BTreeMap::new(),
        ..answers.clone()
    });
    tracing::warn!(
        uid,
        has_places = without_scores.is_some(),
        "NRI: a pod has too many containers for a frame; their scores, or also their CPUs, are applied when they have started"
    );
    without_scores.or_else(|| {
        with(PodAnswers {
            refusal: answers.refusal.clone(),
            ..PodAnswers::default()
        })
    })
}

impl Peer {
    fn next_frame(&mut self) -> Result<Option<FromNri>, Lost> {
        let Some(end) = FRAMING.first(&self.input).map_err(Lost::TooLong)? else {
            return Ok(None);
        };
        let later = self.input.split_off(end);
        let frame = std::mem::replace(&mut self.input, later);
        parsed(&FRAMING, &frame[LENGTH_BYTES..]).map(Some)
    }
}

/// `None`: it is too long, or has too many values.
fn encode(frame: &ToNri) -> Option<Vec<u8>> {
    let json = serde_json::to_vec(frame).ok()?;
    FRAMING.body(&json).ok()?;
    FRAMING.frame(&json).ok()
}

#[cfg(test)]
mod tests;
