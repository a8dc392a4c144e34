//! The journal: every event that reached the engine and every decision that it took, one JSON line per step.
//!
//! Problem: to explain a decision, and to repeat it, everything that it was based on must be kept; yet a slow or full
//! disk must never delay an eviction. Approach: the loop formats a line *after* it has acted, into a buffer whose
//! written parts come back (`BytesMut`), and hands it to a writer thread through a queue that is bounded in bytes,
//! because all of it is locked memory. What cannot be written is counted and said; the agent goes on.
//!
//! A disk that is full may have room again: the writer takes back the torn line, waits for a second, then for longer,
//! and asks for the state of that moment, with which a new file begins. What an agent before has written is evidence: a
//! start renames it to `NAME.1` as well. A journal has mode 0600 and is a regular file; links and devices are refused.
//!
//! Format: a header line `{"journal":6,"plimsoll":VERSION,"config":…,"state":…,"aside":…}`, then
//! `{"event":…,"decisions":[…]}` lines, and between them now and then `{"aside":…}` ([`aside`]). A file that reaches
//! its size limit is renamed to `NAME.1` and a new one begins with the state of that moment, so each file replays by
//! itself. A step that could not be queued leaves a line `{"lost":N}`: what follows it cannot be replayed. Format 1 has
//! no asides.

pub mod aside;

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::Event;
use plimsoll_core::model::state::NodeState;
use plimsoll_core::policy::oom::order::OomPlan;

use crate::host::shown::Show as _;
use crate::host::state_dir;
use crate::host::worker::{NotTaken, WorkerThread};
use crate::record::limit_counts::LimitTotals;
use aside::{Aside, Written};

/// The format's version.
pub const JOURNAL_VERSION: u32 = 6;
/// Steps that may wait for the disk. More are counted as lost.
const QUEUE_STEPS: usize = 1024;
/// Bytes that may wait for the disk: a hundred samples of 500 pods. One step more may be on its way.
const QUEUE_BYTES_MAX: usize = 8 << 20;
/// How long a disk that took nothing is left alone, at first and at most. Each further failure doubles it.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Of the writer thread.
const STACK_BYTES: usize = 128 << 10;
/// Room for some tens of steps of a busy node.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes of one file before the next is begun.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// Why there is no journal, or no more of it.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file cannot be made or written.
    #[error("{path}: the journal cannot be written: {source}; make room there or choose another --journal", path = path.shown())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The writer thread cannot be started.
    #[error(
        "the journal's writer thread cannot be started: {0}; raise the limit of threads of the agent's cgroup (pids.max)"
    )]
    Thread(#[source] std::io::Error),
}

/// The first line of a journal.
#[derive(Debug, Serialize, Deserialize)]
pub struct Header<'a> {
    /// [`JOURNAL_VERSION`].
    pub journal: u32,
    /// The agent's version.
    pub plimsoll: std::borrow::Cow<'a, str>,
    /// What the engine was told.
    pub config: std::borrow::Cow<'a, EngineConfig>,
    /// What it knew when this file began.
    pub state: std::borrow::Cow<'a, NodeState>,
    /// What was known beside it.
    #[serde(default)]
    pub aside: std::borrow::Cow<'a, Aside>,
}

/// One step, as written.
#[derive(Serialize)]
struct StepLine<'a> {
    event: &'a Event,
    decisions: &'a [Decision],
}

#[derive(Serialize)]
struct AsideLine<'a> {
    aside: &'a Aside,
}

#[derive(Debug)]
enum Message {
    Line(Bytes),
    /// The old file is full: go on in a new one, which begins with this line.
    NextFile(Bytes),
}

/// What both ends of the journal know.
#[derive(Debug, Default)]
struct Shared {
    /// Bytes that wait for the disk.
    queued_bytes: AtomicUsize,
    /// Steps that were queued and could not be written.
    lost: AtomicU64,
    /// The writer has failed: it writes nothing until a new file begins. Cleared by the loop, which sends the new
    /// file's first line.
    has_failed: AtomicBool,
    /// The writer, having failed, tries again: it wants that line.
    wants_file: AtomicBool,
}

/// The loop's end of the journal.
#[derive(Debug)]
pub struct Journal {
    /// `None` once it has ended.
    writer: Option<WorkerThread<Message>>,
    shared: Arc<Shared>,
    /// The next line.
    buffer: BytesMut,
    errors: Receiver<JournalError>,
    written_bytes: u64,
    file_bytes_max: u64,
    /// Steps since the last one that was queued.
    lost_now: u64,
    lost: u64,
    asides: Written,
    /// The first line of a new file found no place in the queue, and is not made again before all of that is written.
    is_next_file_waiting: bool,
}

impl Journal {
    /// Begins a journal; an earlier file of that name becomes `NAME.1`. On a disk without room it begins when there is
    /// room.
    ///
    /// # Errors
    /// When the file cannot be made for another reason, or the kernel gives no thread.
    pub fn create(path: &Path, engine: &Engine) -> Result<Self, JournalError> {
        Self::with_file_bytes_max(path, engine, FILE_BYTES_MAX)
    }

    fn with_file_bytes_max(
        path: &Path,
        engine: &Engine,
        file_bytes_max: u64,
    ) -> Result<Self, JournalError> {
        let header = header_line(engine, &Aside::default());
        let written_bytes = header.len() as u64;
        let (error_sender, errors) = channel();
        let shared = Arc::new(Shared::default());
        let mut output = Output {
            path: path.to_owned(),
            file: None,
            written_bytes: 0,
            pause: PAUSE_MIN,
            retry_at: None,
            shared: Arc::clone(&shared),
            errors: error_sender,
        };
        match output.begin(&header) {
            Ok(()) => {}
            Err(error) if state_dir::has_no_space(&error) => output.failed(error),
            Err(source) => {
                return Err(JournalError::Write {
                    path: path.to_owned(),
                    source,
                });
            }
        }
        let writer = WorkerThread::start("journal", STACK_BYTES, QUEUE_STEPS, move |queue, _| {
            output.write_all(&queue);
        })
        .map_err(JournalError::Thread)?;
        Ok(Self {
            buffer: BytesMut::with_capacity(BUFFER_BYTES),
            errors,
            writer: Some(writer),
            shared,
            written_bytes,
            file_bytes_max,
            lost_now: 0,
            lost: 0,
            asides: Written::default(),
            is_next_file_waiting: false,
        })
    }

    /// Queues one step. Never waits.
    pub fn record(&mut self, event: &Event, decisions: &[Decision]) {
        // A step that will not be queued is not made into text either.
        if !self.has_room() {
            self.lost_now += 1;
            self.lost += 1;
            return;
        }
        // The room of lines that have been written meanwhile is taken back here, if a new step would not fit.
        self.buffer.reserve(BUFFER_BYTES / 4);
        if self.lost_now > 0 {
            let lost = format!("{{\"lost\":{}}}\n", self.lost_now);
            self.buffer.extend_from_slice(lost.as_bytes());
        }
        let step = StepLine { event, decisions };
        if let Err(error) = serde_json::to_writer((&mut self.buffer).writer(), &step) {
            tracing::error!(%error, "a step cannot be written as JSON; it is missing from the journal");
            self.buffer.clear();
            self.lost_now += 1;
            self.lost += 1;
            return;
        }
        self.buffer.put_u8(b'\n');
        let line = self.buffer.split().freeze();
        let bytes = line.len();
        match self.send(Message::Line(line), bytes) {
            Ok(()) => self.lost_now = 0,
            Err(_) => {
                self.lost_now += 1;
                self.lost += 1;
            }
        }
    }

    fn queued_bytes(&self) -> usize {
        self.shared.queued_bytes.load(Ordering::Acquire)
    }

    /// Whether a line may be queued.
    fn has_room(&self) -> bool {
        let has_failed = self.writer.is_none() || self.shared.has_failed.load(Ordering::Acquire);
        !has_failed && self.queued_bytes() < QUEUE_BYTES_MAX
    }

    /// Queues a message of so many bytes.
    fn send(&mut self, message: Message, bytes: usize) -> Result<(), NotTaken> {
        let writer = self.writer.as_ref().ok_or(NotTaken::Ended)?;
        // Before it is sent: the writer takes it off again.
        self.shared.queued_bytes.fetch_add(bytes, Ordering::AcqRel);
        let sent = writer.send(message);
        match sent {
            Ok(()) => self.written_bytes += bytes as u64,
            Err(why) => {
                self.shared.queued_bytes.fetch_sub(bytes, Ordering::AcqRel);
                if why == NotTaken::Ended {
                    self.writer = None;
                }
            }
        }
        sent
    }

    /// Whether it is time for [`record_aside`](Self::record_aside).
    pub fn wants_aside(&self, now_ns: u64) -> bool {
        self.asides.is_due(now_ns)
    }

    /// Queues what has changed of this since the last time, if anything has. Never waits. What finds the queue full is
    /// written next time: no step is missing then.
    pub fn record_aside<'a>(
        &mut self,
        now_ns: u64,
        limits: impl Iterator<Item = (&'a PodUid, LimitTotals)>,
        plan: Option<&OomPlan>,
    ) {
        // All pods' totals are not gone through for what will not be queued.
        if !self.has_room() {
            return;
        }
        let Some(aside) = self.asides.next(now_ns, limits, plan) else {
            return;
        };
        let line = serde_json::to_vec(&AsideLine { aside: &aside }).map(|mut line| {
            line.push(b'\n');
            line
        });
        let queued = line.is_ok_and(|line| {
            let bytes = line.len();
            self.send(Message::Line(line.into()), bytes).is_ok()
        });
        if !queued {
            self.asides.forget();
        }
    }

    /// Begins a new file if this one is full, or if it could not be written and is to be tried again. For an engine
    /// that has taken in no step but those recorded.
    pub fn next_file_if_full(&mut self, engine: &Engine) {
        let is_wanted = self.shared.wants_file.load(Ordering::Acquire);
        let is_full = self.written_bytes > self.file_bytes_max
            && !self.shared.has_failed.load(Ordering::Acquire);
        if is_wanted || is_full {
            self.next_file(engine);
        }
    }

    fn next_file(&mut self, engine: &Engine) {
        // The whole state is made into text: not with each step while there is no place for it.
        let queued_bytes = self.queued_bytes();
        if queued_bytes >= QUEUE_BYTES_MAX || (self.is_next_file_waiting && queued_bytes > 0) {
            return;
        }
        let header = header_line(engine, &self.asides.known);
        let bytes = header.len();
        // What is queued behind it belongs to the new file.
        let was_wanted = self.shared.wants_file.swap(false, Ordering::AcqRel);
        if was_wanted {
            self.shared.has_failed.store(false, Ordering::Release);
        }
        self.is_next_file_waiting = self.send(Message::NextFile(header.into()), bytes).is_err();
        if !self.is_next_file_waiting {
            self.written_bytes = bytes as u64;
            self.lost_now = 0;
        } else if was_wanted {
            self.shared.has_failed.store(true, Ordering::Release);
            self.shared.wants_file.store(true, Ordering::Release);
        }
    }

    /// The error that stopped the journal, once for each time that it stopped.
    pub fn take_error(&mut self) -> Option<JournalError> {
        self.errors.try_recv().ok()
    }

    /// Steps that are not in the journal.
    pub fn lost(&self) -> u64 {
        self.lost + self.shared.lost.load(Ordering::Relaxed)
    }

    /// Writes what is queued and closes the file.
    ///
    /// # Errors
    /// The error that stopped the journal, if it has not been taken.
    pub fn finish(mut self) -> Result<(), JournalError> {
        self.writer = None;
        self.take_error().map_or(Ok(()), Err)
    }
}

fn header_line(engine: &Engine, aside: &Aside) -> Vec<u8> {
    let header = Header {
        journal: JOURNAL_VERSION,
        plimsoll: env!("CARGO_PKG_VERSION").into(),
        config: std::borrow::Cow::Borrowed(engine.config()),
        state: std::borrow::Cow::Borrowed(engine.state()),
        aside: std::borrow::Cow::Borrowed(aside),
    };
    // Plain structs with text keys: serialising them to memory cannot fail; an empty line would be refused by `replay`.
    let mut line = serde_json::to_vec(&header).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The writer thread's end.
struct Output {
    path: PathBuf,
    /// `None` from a failure until a new file has begun.
    file: Option<File>,
    /// Bytes of whole lines in it.
    written_bytes: u64,
    /// How long the disk is left alone after the next failure.
    pause: Duration,
    /// When a new file is asked for.
    retry_at: Option<Instant>,
    shared: Arc<Shared>,
    errors: Sender<JournalError>,
}

impl Output {
    fn write_all(&mut self, queue: &Receiver<Message>) {
        loop {
            let message = match self.retry_at {
                None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => queue.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match message {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {
                    self.retry_at = None;
                    self.shared.wants_file.store(true, Ordering::Release);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, message: Message) {
        let bytes = match &message {
            Message::Line(line) | Message::NextFile(line) => line.len(),
        };
        let written = match message {
            Message::Line(line) => self.write(&line),
            Message::NextFile(header) => self.begin(&header),
        };
        self.shared.queued_bytes.fetch_sub(bytes, Ordering::AcqRel);
        if let Err(error) = written {
            self.failed(error);
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        if let Err(error) = file.write_all(line) {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            // What was written of it. If it stays, readers take it for the torn end that it is.
            file.set_len(self.written_bytes).ok();
            return Err(error);
        }
        self.written_bytes += line.len() as u64;
        Ok(())
    }

    /// Begins a new file with this line; the one that is there is set aside.
    fn begin(&mut self, header: &[u8]) -> io::Result<()> {
        let was_writing = self.file.take().is_some();
        set_aside(&self.path)?;
        let mut file = state_dir::create_new(&self.path)?;
        if let Err(error) = file.write_all(header) {
            // An empty or torn file would be set aside the next time, in the place of one with steps.
            std::fs::remove_file(&self.path).ok();
            return Err(error);
        }
        if !was_writing && self.pause > PAUSE_MIN {
            tracing::warn!(path = %self.path.shown(), "the journal is written again");
        }
        self.file = Some(file);
        self.written_bytes = header.len() as u64;
        self.pause = PAUSE_MIN;
        self.retry_at = None;
        // It was asked for while the file before could still be written: then nobody else says that there is one again.
        self.shared.has_failed.store(false, Ordering::Release);
        Ok(())
    }

    /// Writes nothing more until a new file has begun.
    fn failed(&mut self, source: io::Error) {
        self.file = None;
        self.shared.has_failed.store(true, Ordering::Release);
        self.retry_at = Some(Instant::now() + self.pause);
        // Said when it begins, and not with each attempt.
        if self.pause == PAUSE_MIN {
            let path = self.path.clone();
            // The receiver is gone only when the agent is.
            let _ = self.errors.send(JournalError::Write { path, source });
        }
        self.pause = (2 * self.pause).min(PAUSE_MAX);
    }
}

/// Renames the journal that is there to `NAME.1`. A file or link of that name is replaced, whoever made it and wherever
/// it leads.
fn set_aside(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            Err(io::Error::other("it is not a regular file; remove it"))
        }
        Ok(metadata) if metadata.len() == 0 => Ok(()),
        Ok(_) => {
            // Whoever made it readable by all, it is for root from now on. One of another user stays as it is.
            drop(state_dir::open_private(path));
            let mut old = path.as_os_str().to_owned();
            old.push(".1");
            std::fs::rename(path, &old).map_err(|error| {
                let old = Path::new(&old).shown();
                io::Error::new(
                    error.kind(),
                    format!("{old} cannot be replaced ({error}); remove it"),
                )
            })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::kube::pod_uid::PodUid;
    use plimsoll_core::model::event::EventKind;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt};

    fn engine() -> Engine {
        Engine::new(EngineConfig {
            thresholds: Vec::new(),
            pressure_transition_period_ns: 0,
            max_pod_grace_period_s: 0,
            ..EngineConfig::default()
        })
    }

    fn event(at_ns: u64) -> Event {
        Event {
            at_ns,
            kind: EventKind::PodEmpty {
                uid: PodUid::from("a"),
            },
        }
    }

    #[test]
    fn each_step_is_a_line_after_the_header() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let engine = engine();
        let mut journal = Journal::create(&path, &engine).unwrap();
        for at_ns in 1..=3 {
            journal.record(&event(at_ns), &[Decision::SampleBy { at_ns }]);
        }
        journal.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].starts_with(r#"{"journal":6,"#));
        assert_eq!(
            lines[1],
            r#"{"event":{"at_ns":1,"event":"pod_empty","uid":"a"},"decisions":[{"decision":"sample_by","at_ns":1}]}"#
        );
    }

    #[test]
    fn a_full_file_is_set_aside_and_the_next_begins_with_a_header() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let engine = engine();
        let mut journal = Journal::with_file_bytes_max(&path, &engine, 400).unwrap();
        for at_ns in 1..=10 {
            journal.record(&event(at_ns), &[]);
            journal.next_file_if_full(&engine);
        }
        journal.finish().unwrap();
        assert!(
            std::fs::read_to_string(&path)
                .unwrap()
                .starts_with(r#"{"journal":6,"#)
        );
        assert!(
            std::fs::read_to_string(dir.path().join("journal.1"))
                .unwrap()
                .starts_with(r#"{"journal":6,"#)
        );
    }

    /// Who reads only the newer file misses nothing.
    #[test]
    fn the_next_file_begins_with_the_state_of_asides() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let engine = engine();
        let mut journal = Journal::with_file_bytes_max(&path, &engine, 1).unwrap();
        let uid = PodUid::from("a");
        let mut totals = LimitTotals::default();
        totals.all.throttled = 5;
        let at_ns = 10_000_000_000;
        assert!(journal.wants_aside(at_ns));
        journal.record_aside(at_ns, [(&uid, totals)].into_iter(), None);
        assert!(!journal.wants_aside(at_ns + 1));
        journal.next_file_if_full(&engine);
        journal.finish().unwrap();
        let aside = r#""aside":{"at_ns":10000000000,"limits":{"a":{"throttled":5}}}}"#;
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let old = read("journal.1");
        assert_eq!(old.lines().last().unwrap(), format!("{{{aside}"));
        let new = read("journal");
        assert!(new.ends_with(&format!(",{aside}\n")), "{new}");
        assert_eq!(new.lines().count(), 1);
    }

    /// They are made of all pods' totals, and the loop asks in every look.
    #[test]
    fn an_aside_for_which_there_is_no_room_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::create(&path, &engine()).unwrap();
        let shared = Arc::clone(&journal.shared);
        let uid = PodUid::from("a");
        let mut record = |at_ns, has_room: bool| {
            let pods = std::iter::once((&uid, LimitTotals::default()));
            let pods = pods.inspect(|_| assert!(has_room, "pods are gone through"));
            journal.record_aside(at_ns, pods, None);
        };
        shared.has_failed.store(true, Ordering::Release);
        record(5_000_000_000, false);
        shared.has_failed.store(false, Ordering::Release);
        shared
            .queued_bytes
            .store(QUEUE_BYTES_MAX, Ordering::Release);
        record(6_000_000_000, false);
        shared.queued_bytes.store(0, Ordering::Release);
        record(7_000_000_000, true);
        journal.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.lines().last().unwrap(),
            r#"{"aside":{"at_ns":7000000000,"limits":{"a":{}}}}"#
        );
    }

    /// What led to a crash is there after the restart.
    #[test]
    fn a_start_keeps_what_was_written_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let engine = engine();
        let mut journal = Journal::create(&path, &engine).unwrap();
        journal.record(&event(1), &[]);
        journal.finish().unwrap();
        // As of an agent that was killed while it wrote.
        let mut evidence = std::fs::read_to_string(&path).unwrap();
        evidence += r#"{"event":{"at_ns":2,"#;
        std::fs::write(&path, &evidence).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        Journal::create(&path, &engine).unwrap().finish().unwrap();
        let old = dir.path().join("journal.1");
        assert_eq!(std::fs::read_to_string(&old).unwrap(), evidence);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
        for path in [path, old] {
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o600, "{}", path.shown());
        }
    }

    #[test]
    fn links_and_devices_are_refused_and_stay() {
        let engine = engine();
        let error = Journal::create(Path::new("/dev/full"), &engine).unwrap_err();
        assert!(error.to_string().contains("/dev/full"), "{error}");
        assert!(Path::new("/dev/full").exists());
        let dir = tempfile::tempdir().unwrap();
        let (precious, link) = (dir.path().join("precious"), dir.path().join("journal"));
        std::fs::write(&precious, "text").unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        let error = Journal::create(&link, &engine).unwrap_err();
        assert!(error.to_string().contains("regular file"), "{error}");
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "text");
    }

    #[test]
    fn the_name_of_the_old_file_may_be_taken() {
        let engine = engine();
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("journal"), dir.path().join("journal.1"));
        let start = || Journal::create(&path, &engine).map(|journal| journal.finish());
        // A link is replaced, and what it leads to stays.
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "text").unwrap();
        std::os::unix::fs::symlink(&precious, &old).unwrap();
        start().unwrap().unwrap();
        start().unwrap().unwrap();
        assert!(old.symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "text");
        // So is a file of another user.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&old, Some(65534), None).unwrap();
            start().unwrap().unwrap();
            assert_eq!(old.metadata().unwrap().uid(), 0);
        }
        // A directory is named, and stays with the journal that there is.
        std::fs::remove_file(&old).unwrap();
        std::fs::create_dir(&old).unwrap();
        let error = start().unwrap_err().to_string();
        assert!(error.contains("journal.1 cannot be replaced"), "{error}");
        assert!(old.is_dir() && path.is_file());
        // While the agent runs as well; it goes on when the directory is gone.
        std::fs::remove_dir(&old).unwrap();
        let mut journal = Journal::with_file_bytes_max(&path, &engine, 1).unwrap();
        std::fs::remove_file(&old).unwrap();
        std::fs::create_dir(&old).unwrap();
        journal.record(&event(1), &[]);
        journal.next_file_if_full(&engine);
        while !journal.shared.wants_file.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let error = journal.take_error().unwrap().to_string();
        assert!(error.contains("journal.1 cannot be replaced"), "{error}");
        std::fs::remove_dir(&old).unwrap();
        journal.next_file_if_full(&engine);
        journal.finish().unwrap();
        let steps = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
        assert_eq!((steps(&old), steps(&path)), (2, 1));
    }

    /// Where the journal's directory is open to others, a link to a file of root's could take its mode away.
    #[test]
    fn a_file_with_another_name_keeps_its_mode() {
        let engine = engine();
        let dir = tempfile::tempdir().unwrap();
        let (path, precious) = (dir.path().join("journal"), dir.path().join("precious"));
        std::fs::write(&precious, "text").unwrap();
        std::fs::set_permissions(&precious, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::hard_link(&precious, &path).unwrap();
        Journal::create(&path, &engine).unwrap().finish().unwrap();
        let mode = precious.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644);
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "text");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_said_once() {
        let engine = engine();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::create(&path, &engine).unwrap();
        // The next file cannot be begun: writing fails from here on.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        journal.next_file(&engine);
        journal.record(&event(1), &[]);
        journal.writer.as_mut().unwrap().end();
        assert!(journal.take_error().is_some());
        assert!(journal.take_error().is_none());
        assert_eq!(journal.lost(), 1);
        journal.record(&event(2), &[]);
        assert_eq!(journal.lost(), 2);
    }

    /// The next file was asked for, as this one was full, before a line of this one failed.
    #[test]
    fn a_file_that_was_asked_for_before_the_failure_is_written() {
        let engine = engine();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::create(&path, &engine).unwrap();
        journal.shared.has_failed.store(true, Ordering::Release);
        journal.next_file(&engine);
        while journal.shared.has_failed.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        journal.record(&event(1), &[]);
        journal.writer.as_mut().unwrap().end();
        assert_eq!(journal.lost(), 0);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    /// All of the queue is locked memory.
    #[test]
    fn what_waits_for_a_slow_disk_is_bounded_in_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine();
        let mut journal =
            Journal::with_file_bytes_max(&dir.path().join("journal"), &engine, 1).unwrap();
        // A disk that takes nothing.
        let (go_on, wait) = channel::<()>();
        let stuck = WorkerThread::start("stuck", STACK_BYTES, QUEUE_STEPS, move |queue, _| {
            wait.recv().ok();
            drop(queue);
        });
        journal.writer = Some(stuck.unwrap());
        let uid = "u".repeat(100 << 10);
        let step = Event {
            at_ns: 1,
            kind: EventKind::PodEmpty {
                uid: PodUid::from(uid.as_str()),
            },
        };
        for _ in 0..QUEUE_STEPS {
            journal.record(&step, &[]);
        }
        let bytes = journal.queued_bytes();
        assert!(bytes < QUEUE_BYTES_MAX + (101 << 10), "{bytes} bytes wait");
        assert!(journal.lost() > QUEUE_STEPS as u64 / 2);
        assert_eq!(journal.lost_now, journal.lost());
        // The file is full as well; nothing is queued for that.
        let sent = journal.writer.as_ref().unwrap().dropped();
        journal.next_file_if_full(&engine);
        assert_eq!(journal.writer.as_ref().unwrap().dropped(), sent);
        assert_eq!(journal.queued_bytes(), bytes);
        drop(go_on);
    }
}
