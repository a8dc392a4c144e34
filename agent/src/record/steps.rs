//! The journal's reader: a journal step by step, taken by an engine again.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use plimsoll_core::engine::Engine;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::Event;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::host::output::StdoutError;
use crate::host::shown::Show as _;
use crate::record::journal::aside::{Aside, Recalled};
use crate::record::journal::{Header, JOURNAL_VERSION};
use crate::record::snapshot::Snapshot;

/// Why a journal cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum JournalReadError {
    /// The file cannot be read.
    #[error("{path}: the journal cannot be read: {source}; give the file of plimsoll run --journal", path = path.shown())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The decisions cannot be printed.
    #[error(transparent)]
    Output(#[from] StdoutError),
    /// The first line is none of a journal.
    #[error("{path}: not a journal of plimsoll run --journal: {source}", path = path.shown())]
    NoJournal {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// A line is not what it should be.
    #[error("{path}:{line}: {source}; the journal is damaged from this line on", path = path.shown())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// There is nothing in it.
    #[error("{path}: the journal is empty: the agent ended before it wrote the first line, or the disk was full", path = path.shown())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The journal of another format.
    #[error("{path}: journal format {found} is not supported (only {JOURNAL_VERSION}): use the plimsoll that wrote it ({wrote})", path = path.shown())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The version that wrote it.
        wrote: String,
    },
    /// Steps are missing.
    #[error("{path}:{line}: {lost} steps before this line were not written (the disk was too slow or full), so the rest cannot be replayed", path = path.shown())]
    Gap {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// How many.
        lost: u64,
    },
}

#[derive(Deserialize)]
struct StepLine<'a> {
    #[serde(default)]
    lost: u64,
    event: Option<Event>,
    aside: Option<Aside>,
    #[serde(borrow)]
    decisions: Option<&'a RawValue>,
}

/// A step whose decisions are not those of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The line, from 1.
    pub line: usize,
    /// The decisions in the journal, as their JSON stands there.
    pub journal: String,
    /// Those that came out now.
    pub now: String,
}

/// What a replay found.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Steps replayed.
    pub steps: usize,
    /// Decisions taken.
    pub decisions: usize,
    /// The last line was cut off, as by `kill -9`.
    pub torn: bool,
    /// The first.
    pub difference: Option<Difference>,
}

/// Replays a journal, passing each step's decisions to `show`.
///
/// # Errors
/// [`JournalReadError`]; a torn last line is none.
pub fn replay(
    path: &Path,
    show: impl FnMut(&Event, &[Decision]) -> Result<(), StdoutError>,
) -> Result<Replayed, JournalReadError> {
    replay_until(path, u64::MAX, show).map(|(replayed, _)| replayed)
}

/// As [`replay`], up to the last event at `until_ns` or before; and what was known then.
///
/// # Errors
/// [`JournalReadError`]; a torn last line is none.
pub fn replay_until(
    path: &Path,
    until_ns: u64,
    mut show: impl FnMut(&Event, &[Decision]) -> Result<(), StdoutError>,
) -> Result<(Replayed, Snapshot), JournalReadError> {
    let (mut steps, mut engine, mut recalled) = Steps::open(path)?;
    let mut replayed = Replayed::default();
    let mut decisions = Vec::new();
    while let Some(entry) = steps.next()? {
        let step = match entry {
            Entry::Step(step) => step,
            Entry::Aside(aside) => {
                if aside.at_ns <= until_ns {
                    recalled.apply(aside);
                }
                continue;
            }
        };
        if step.event.at_ns > until_ns {
            break;
        }
        decisions.clear();
        let difference = step.take(&mut engine, &mut decisions)?;
        replayed.steps += 1;
        replayed.decisions += decisions.len();
        show(&step.event, &decisions)?;
        if difference.is_some() {
            replayed.difference = difference;
            break;
        }
    }
    replayed.torn = steps.torn;
    Ok((replayed, recalled.snapshot(&engine)))
}

/// The last nanosecond of the millisecond that `text` names, in seconds, as `plimsoll replay` prints times.
pub(crate) fn at_seconds(text: &str) -> Result<u64, String> {
    let bad = || "use seconds with up to three decimals, e.g. 1234.567".to_owned();
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 3 || !part.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(bad());
    }
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let milliseconds: u64 = format!("{part:0<3}").parse().map_err(|_| bad())?;
    whole
        .checked_mul(1000)
        .and_then(|ms| ms.checked_add(milliseconds + 1)?.checked_mul(1_000_000))
        .map(|end| end - 1)
        .ok_or_else(bad)
}

/// A journal, read step by step.
#[derive(Debug)]
pub struct Steps {
    path: PathBuf,
    reader: BufReader<File>,
    text: String,
    place: StepPlace,
    torn: bool,
}

/// Where a step is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepPlace {
    /// Bytes before it.
    offset: u64,
    /// Lines before it.
    lines: usize,
}

/// What a line is.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, and nearly all are steps"
)]
#[derive(Debug)]
pub enum Entry<'a> {
    /// A step.
    Step(Step<'a>),
    /// Between two steps.
    Aside(Aside),
}

/// A step as it was written.
#[derive(Debug)]
pub struct Step<'a> {
    /// What happened.
    pub event: Event,
    /// What was decided, as JSON.
    recorded: &'a str,
    path: &'a Path,
    line: usize,
}

impl Step<'_> {
    /// Lets the engine take the step, and appends what it decides.
    ///
    /// # Errors
    /// None: decisions can be written as JSON.
    pub fn take(
        &self,
        engine: &mut Engine,
        decisions: &mut Vec<Decision>,
    ) -> Result<Option<Difference>, JournalReadError> {
        let before = decisions.len();
        engine.step(&self.event, decisions);
        let now = serde_json::to_string(&decisions[before..])
            .map_err(|source| bad_line(self.path, self.line, source))?;
        Ok((now != self.recorded).then(|| Difference {
            line: self.line,
            journal: self.recorded.to_owned(),
            now,
        }))
    }
}

fn bad_line(path: &Path, line: usize, source: serde_json::Error) -> JournalReadError {
    JournalReadError::Line {
        path: path.to_owned(),
        line,
        source,
    }
}

impl Steps {
    /// Opens a journal; the engine as it was when it was begun, and what was known beside it.
    ///
    /// # Errors
    /// [`JournalReadError`].
    pub fn open(path: &Path) -> Result<(Self, Engine, Recalled), JournalReadError> {
        let io = |source| JournalReadError::Io {
            path: path.to_owned(),
            source,
        };
        let mut steps = Self {
            path: path.to_owned(),
            reader: BufReader::new(File::open(path).map_err(io)?),
            text: String::new(),
            place: StepPlace {
                offset: 0,
                lines: 0,
            },
            torn: false,
        };
        if !steps.read_line()? {
            return Err(JournalReadError::Empty {
                path: path.to_owned(),
            });
        }
        let header: Header<'_> = serde_json::from_str(&steps.text).map_err(|source| {
            let path = path.to_owned();
            JournalReadError::NoJournal { path, source }
        })?;
        if header.journal != JOURNAL_VERSION {
            return Err(JournalReadError::Version {
                path: path.to_owned(),
                found: header.journal,
                wrote: header.plimsoll.into_owned(),
            });
        }
        let engine = Engine::resume(header.config.into_owned(), header.state.into_owned());
        let mut recalled = Recalled::default();
        recalled.apply(header.aside.into_owned());
        Ok((steps, engine, recalled))
    }

    /// Reads a line into `text`; `false` at the end.
    fn read_line(&mut self) -> Result<bool, JournalReadError> {
        self.text.clear();
        let io = |source| JournalReadError::Io {
            path: self.path.clone(),
            source,
        };
        let read = self.reader.read_line(&mut self.text).map_err(io)?;
        self.place.offset += read as u64;
        self.place.lines += 1;
        Ok(read > 0)
    }

    /// The next step, or what is between; `None` at the end, and where the last line was cut off.
    ///
    /// # Errors
    /// [`JournalReadError`].
    #[expect(
        clippy::should_implement_trait,
        reason = "a step borrows the line, and there may be an error"
    )]
    pub fn next(&mut self) -> Result<Option<Entry<'_>>, JournalReadError> {
        if !self.read_line()? {
            return Ok(None);
        }
        if !self.text.ends_with('\n') {
            self.torn = true;
            return Ok(None);
        }
        let line = self.place.lines;
        let bad = |source| bad_line(&self.path, line, source);
        let step: StepLine<'_> = serde_json::from_str(&self.text).map_err(bad)?;
        if step.lost > 0 {
            return Err(JournalReadError::Gap {
                path: self.path.clone(),
                line,
                lost: step.lost,
            });
        }
        if let Some(aside) = step.aside {
            return Ok(Some(Entry::Aside(aside)));
        }
        let missing = || {
            bad(serde::de::Error::custom(
                "a step needs \"event\" and \"decisions\"",
            ))
        };
        Ok(Some(Entry::Step(Step {
            event: step.event.ok_or_else(missing)?,
            recorded: step.decisions.ok_or_else(missing)?.get(),
            path: &self.path,
            line,
        })))
    }

    /// Where the next step is.
    pub fn place(&self) -> StepPlace {
        self.place
    }

    /// Goes on at a place of this journal.
    ///
    /// # Errors
    /// A file in which one cannot go back, such as a pipe.
    pub fn go_to(&mut self, place: StepPlace) -> Result<(), JournalReadError> {
        self.reader
            .seek(SeekFrom::Start(place.offset))
            .map_err(|source| JournalReadError::Io {
                path: self.path.clone(),
                source,
            })?;
        self.place = place;
        Ok(())
    }

    /// Whether the last line was cut off, as by `kill -9`.
    pub fn is_torn(&self) -> bool {
        self.torn
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::journal::Journal;
    use plimsoll_core::engine::EngineConfig;
    use plimsoll_core::model::event::{EventKind, NodeMemory, Sample};
    use plimsoll_core::model::signal::Signal;
    use plimsoll_core::model::threshold::{Amount, Operator, Passes, Threshold};

    pub(crate) fn journal(path: &Path) {
        let threshold = Threshold {
            signal: Signal::MemoryAvailable,
            operator: Operator::LessThan,
            value: Amount::Absolute(500),
            grace_ns: 0,
            min_reclaim: None,
            passes: Passes::All,
        };
        let mut engine = Engine::new(EngineConfig {
            thresholds: vec![threshold],
            pressure_transition_period_ns: 10,
            max_pod_grace_period_s: 0,
            ..EngineConfig::default()
        });
        let mut journal = Journal::create(path, &engine).unwrap();
        let mut decisions = Vec::new();
        for (at_ns, anon_bytes) in [(1, 100), (2, 900), (100, 100)] {
            let node = NodeMemory {
                capacity_bytes: 1000,
                anon_bytes,
                ..NodeMemory::default()
            };
            let event = Event {
                at_ns,
                kind: EventKind::Sample(Sample {
                    node,
                    ..Sample::default()
                }),
            };
            decisions.clear();
            engine.step(&event, &mut decisions);
            journal.record(&event, &decisions);
        }
        journal.finish().unwrap();
    }

    #[test]
    fn the_same_decisions_come_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        journal(&path);
        let mut shown = 0;
        let replayed = replay(&path, |_, decisions| {
            shown += decisions.len();
            Ok(())
        })
        .unwrap();
        assert_eq!((replayed.steps, replayed.difference.as_ref()), (3, None));
        assert!(shown >= 4, "{shown}");
        assert_eq!(replayed.decisions, shown);
    }

    #[test]
    fn a_changed_decision_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        journal(&path);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(r#""status":true"#));
        std::fs::write(&path, text.replace(r#""status":true"#, r#""status":false"#)).unwrap();
        assert_eq!(
            replay(&path, |_, _| Ok(()))
                .unwrap()
                .difference
                .unwrap()
                .line,
            3
        );
    }

    #[test]
    fn a_torn_last_line_is_left_out_and_damage_before_it_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        journal(&path);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 5]).unwrap();
        let replayed = replay(&path, |_, _| Ok(())).unwrap();
        assert!(replayed.torn && replayed.steps == 2);
        std::fs::write(&path, text.replacen(r#"{"event""#, r#"{"evnt""#, 1)).unwrap();
        assert!(matches!(
            replay(&path, |_, _| Ok(())),
            Err(JournalReadError::Line { line: 2, .. })
        ));
        std::fs::write(
            &path,
            text.replacen("{\"event\"", "{\"lost\":3}\n{\"event\"", 1),
        )
        .unwrap();
        assert!(matches!(
            replay(&path, |_, _| Ok(())),
            Err(JournalReadError::Gap {
                line: 2,
                lost: 3,
                ..
            })
        ));
        std::fs::write(&path, "").unwrap();
        let error = replay(&path, |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("is empty"), "{error}");
        std::fs::write(&path, text.replacen("\"journal\":6", "\"journal\":9", 1)).unwrap();
        assert!(matches!(
            replay(&path, |_, _| Ok(())),
            Err(JournalReadError::Version { found: 9, .. })
        ));
    }

    #[test]
    fn times_are_those_that_replay_prints() {
        assert_eq!(at_seconds("12.345"), Ok(12_345_999_999));
        assert_eq!(at_seconds("12.3"), Ok(12_300_999_999));
        assert_eq!(at_seconds("0"), Ok(999_999));
        for bad in [
            "",
            "1.2345",
            "1,5",
            "-1",
            "x",
            "1.x",
            "99999999999999999999",
        ] {
            assert!(at_seconds(bad).is_err(), "{bad}");
        }
    }
}
