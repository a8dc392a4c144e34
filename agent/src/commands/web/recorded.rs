//! A journal as a page shows it: the state at any time, and a time line of memory and decisions.

use std::path::Path;

use plimsoll_core::explain::ExplainError;
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::Operator;
use serde::Serialize;

use super::WebError;
use crate::record::journal_player::{JournalPlayer, Seek};
use crate::record::lines::RecentLine;
use crate::record::steps::JournalReadError;
use crate::serve::overview::{Figures, Overview};

/// Points of the curve: more than a screen has columns for.
const POINTS_MAX: usize = 600;
/// Decisions on the time line; the first ones of a longer journal.
const DECISIONS_MAX: usize = 2000;

/// An open journal.
#[derive(Debug)]
pub(super) struct Recorded {
    recording: JournalPlayer,
    timeline: Timeline,
}

/// What a journal has.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Timeline {
    /// CLOCK_MONOTONIC, nanoseconds.
    begin_ns: u64,
    end_ns: u64,
    /// What is to be said of the journal as a whole.
    remark: Option<String>,
    points: Vec<Point>,
    decisions: Vec<Decided>,
    /// Decisions that are left out.
    decisions_left_out: usize,
}

/// Memory at one time, bytes.
#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Point {
    at_ns: u64,
    available_bytes: Option<u64>,
    /// The highest hard threshold on it.
    threshold_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Decided {
    at_ns: u64,
    #[serde(flatten)]
    line: RecentLine,
}

impl Recorded {
    /// Opens a journal and reads all of it.
    pub(super) fn open(path: &Path) -> Result<Self, WebError> {
        let mut recording = JournalPlayer::open(path)?;
        let end = recording.position();
        recording.seek(Seek::Begin)?;
        let mut points = Vec::new();
        for point in 0..=POINTS_MAX.min(end.steps) {
            // In the order of steps, so that none is taken twice.
            let step = point * end.steps / POINTS_MAX.min(end.steps).max(1);
            let by = step.saturating_sub(recording.position().step);
            recording.seek(Seek::Steps(isize::try_from(by).unwrap_or(isize::MAX)))?;
            points.push(Point::of(
                recording.position().at_ns,
                &overview(&recording)?,
            ));
        }
        let (decisions, decisions_left_out) = decisions(&mut recording)?;
        recording.seek(Seek::End)?;
        let timeline = Timeline {
            begin_ns: end.begin_ns,
            end_ns: end.end_ns,
            remark: recording.remark().map(str::to_owned),
            points,
            decisions,
            decisions_left_out,
        };
        Ok(Self {
            recording,
            timeline,
        })
    }

    pub(super) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The node as it was then; at the end if no time is given.
    pub(super) fn at(&mut self, at_ns: Option<u64>) -> Result<Overview, WebError> {
        self.recording.seek(at_ns.map_or(Seek::End, Seek::At))?;
        Ok(overview(&self.recording)?)
    }
}

fn overview(recording: &JournalPlayer) -> Result<Overview, ExplainError> {
    Overview::new(&recording.snapshot(), &Figures::default())
}

impl Point {
    fn of(at_ns: u64, overview: &Overview) -> Self {
        let mut signals = overview.signals.iter();
        let memory = signals.find(|it| it.signal == Signal::MemoryAvailable);
        let thresholds = memory.map_or(&[][..], |it| &it.thresholds);
        let hard = thresholds
            .iter()
            .filter(|it| it.hard && it.operator == Operator::LessThan);
        Self {
            at_ns,
            available_bytes: memory.and_then(|it| it.observed),
            threshold_bytes: hard.filter_map(|it| it.value).max(),
        }
    }
}

/// All that was decided and said, and how much of it is left out.
fn decisions(recording: &mut JournalPlayer) -> Result<(Vec<Decided>, usize), JournalReadError> {
    let mut decided: Vec<Decided> = Vec::new();
    let (mut said, mut left_out) = (0, 0);
    recording.seek(Seek::Begin)?;
    while recording.position().step < recording.position().steps {
        recording.seek(Seek::Decision { forward: true })?;
        let at_ns = recording.position().at_ns;
        for line in recording.lines().filter(|line| line.number > said) {
            if decided.len() < DECISIONS_MAX {
                let line = line.clone();
                decided.push(Decided { at_ns, line });
            } else {
                left_out += 1;
            }
        }
        said = recording.lines().last().map_or(said, |line| line.number);
    }
    Ok((decided, left_out))
}
