//! The journal: every event that reached the engine and every decision that it took, one JSON line per step.
//!
//! Problem: to explain a decision, and to repeat it, everything that it was based on must be kept; yet a slow or full disk must
//! never delay an eviction. Approach: the loop formats a line *after* it has acted, into a buffer whose written parts come back
//! (`BytesMut`), and hands it to a writer thread through a bounded queue. What cannot be written is counted and said; the agent goes on.
//!
//! Format: a header line `{"journal":3,"plimsoll":VERSION,"config":…,"state":…,"aside":…}`, then `{"event":…,"decisions":[…]}` lines, and
//! between them now and then `{"aside":…}` ([`aside`]). A file that reaches its size limit is renamed to `NAME.1` and a new one begins with
//! the state of that moment, so each file replays by itself. A step that could not be queued leaves a line `{"lost":N}`: what follows it
//! cannot be replayed. Format 1 has no asides.

pub mod aside;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::Event;
use plimsoll_core::model::state::NodeState;
use plimsoll_core::model::units::PodUid;
use plimsoll_core::policy::oom::order::OomPlan;

use crate::host::shown::Show as _;
use crate::host::worker::{NotTaken, WorkerThread};
use crate::record::limit_counts::LimitTotals;
use aside::{Aside, Written};

/// The format's version.
pub const JOURNAL_VERSION: u32 = 3;
/// The oldest that is read.
pub const OLDEST_VERSION: u32 = 1;
/// Steps that may wait for the disk. More are counted as lost.
const QUEUE_STEPS: usize = 1024;
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
    #[error("{path}: the journal cannot be written: {source}; make room there or choose another --journal; the agent continues without it", path = path.shown())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The writer thread cannot be started.
    #[error("the journal's writer thread cannot be started: {0}")]
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

/// The loop's end of the journal.
#[derive(Debug)]
pub struct Journal {
    /// `None` once it has failed.
    writer: Option<WorkerThread<Message>>,
    /// The next line.
    buffer: BytesMut,
    errors: Receiver<JournalError>,
    written_bytes: u64,
    file_bytes_max: u64,
    /// Steps since the last one that was queued.
    lost_now: u64,
    lost: u64,
    asides: Written,
}

impl Journal {
    /// Begins a journal; an earlier file of that name is replaced.
    ///
    /// # Errors
    /// When the file cannot be made or its first line not written.
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
        let mut output = Output {
            path: path.to_owned(),
            file: begin(path, &header)?,
        };
        let (error_sender, errors) = channel();
        let writer = WorkerThread::start("journal", STACK_BYTES, QUEUE_STEPS, move |queue| {
            output.write_all(queue, &error_sender);
        })
        .map_err(JournalError::Thread)?;
        Ok(Self {
            buffer: BytesMut::with_capacity(BUFFER_BYTES),
            errors,
            writer: Some(writer),
            written_bytes,
            file_bytes_max,
            lost_now: 0,
            lost: 0,
            asides: Written::default(),
        })
    }

    /// Queues one step. Never waits.
    pub fn record(&mut self, event: &Event, decisions: &[Decision]) {
        let Some(writer) = &self.writer else {
            self.lost += 1;
            return;
        };
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
        self.written_bytes += line.len() as u64;
        match writer.send(Message::Line(line)) {
            Ok(()) => self.lost_now = 0,
            Err(NotTaken::Full) => {
                self.lost_now += 1;
                self.lost += 1;
            }
            Err(NotTaken::Ended) => {
                self.writer = None;
                self.lost += 1;
            }
        }
    }

    /// Whether it is time for [`record_aside`](Self::record_aside).
    pub fn wants_aside(&self, now_ns: u64) -> bool {
        self.asides.is_due(now_ns)
    }

    /// Queues what has changed of this since the last time, if anything has. Never waits. What finds the queue full is written next
    /// time: no step is missing then.
    pub fn record_aside<'a>(
        &mut self,
        now_ns: u64,
        limits: impl Iterator<Item = (&'a PodUid, LimitTotals)>,
        plan: Option<&OomPlan>,
    ) {
        let Some(aside) = self.asides.next(now_ns, limits, plan) else {
            return;
        };
        let line = serde_json::to_vec(&AsideLine { aside: &aside }).map(|mut line| {
            line.push(b'\n');
            line
        });
        let queued = line.is_ok_and(|line| {
            let bytes = line.len() as u64;
            let is_queued = self
                .writer
                .as_ref()
                .is_some_and(|writer| writer.send(Message::Line(line.into())).is_ok());
            if is_queued {
                self.written_bytes += bytes;
            }
            is_queued
        });
        if !queued {
            self.asides.forget();
        }
    }

    /// Begins a new file if this one is full. For an engine that has taken in no step but those recorded.
    pub fn next_file_if_full(&mut self, engine: &Engine) {
        if self.written_bytes > self.file_bytes_max {
            self.next_file(engine);
        }
    }

    fn next_file(&mut self, engine: &Engine) {
        let header = header_line(engine, &self.asides.known);
        let bytes = header.len() as u64;
        if let Some(writer) = &self.writer
            && writer.send(Message::NextFile(header.into())).is_ok()
        {
            self.written_bytes = bytes;
            self.lost_now = 0;
        }
    }

    /// The error that ended the journal, once.
    pub fn take_error(&mut self) -> Option<JournalError> {
        self.errors.try_recv().ok()
    }

    /// Steps that are not in the journal.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes what is queued and closes the file.
    ///
    /// # Errors
    /// The error that ended the journal, if it has not been taken.
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

fn begin(path: &Path, header: &[u8]) -> Result<File, JournalError> {
    let begin = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        file.write_all(header)?;
        Ok(file)
    };
    begin().map_err(|source| JournalError::Write {
        path: path.to_owned(),
        source,
    })
}

struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    fn write_all(&mut self, queue: Receiver<Message>, errors: &Sender<JournalError>) {
        for message in queue {
            let result = match message {
                Message::Line(line) => {
                    self.file
                        .write_all(&line)
                        .map_err(|source| JournalError::Write {
                            path: self.path.clone(),
                            source,
                        })
                }
                Message::NextFile(header) => self.next_file(&header),
            };
            if let Err(error) = result {
                // The receiver is gone only when the agent is: then nobody is left to tell.
                let _ = errors.send(error);
                return;
            }
        }
    }

    fn next_file(&mut self, header: &[u8]) -> Result<(), JournalError> {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        std::fs::rename(&self.path, &old).map_err(|source| JournalError::Write {
            path: self.path.clone(),
            source,
        })?;
        self.file = begin(&self.path, header)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::model::event::EventKind;
    use plimsoll_core::model::units::PodUid;

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
        assert!(lines[0].starts_with(r#"{"journal":3,"#));
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
                .starts_with(r#"{"journal":3,"#)
        );
        assert!(
            std::fs::read_to_string(dir.path().join("journal.1"))
                .unwrap()
                .starts_with(r#"{"journal":3,"#)
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

    #[test]
    fn a_full_disk_ends_the_journal_and_is_said_once() {
        let engine = engine();
        // /dev/full takes nothing at all; a journal on it never begins.
        let error = Journal::create(Path::new("/dev/full"), &engine).unwrap_err();
        assert!(error.to_string().contains("/dev/full"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::create(&path, &engine).unwrap();
        // The next file cannot be begun: as on a full disk, writing fails from here on.
        std::fs::remove_file(&path).unwrap();
        journal.next_file(&engine);
        journal.writer.as_mut().unwrap().end();
        assert!(journal.take_error().is_some());
        assert!(journal.take_error().is_none());
        journal.record(&event(1), &[]);
        assert_eq!(journal.lost(), 1);
    }
}
