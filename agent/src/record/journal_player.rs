//! A journal to step through, forwards and backwards.
//!
//! **Problem.** The engine only goes forwards, and a journal has up to some hundred thousand steps. **Approach.** It is
//! read once; on the way the engine's state is marked now and then, at most [`MARKS_MAX`] times. To go to a step is to
//! start from the mark before it and take the steps between, read again from the file. In memory are the marks and, of
//! each step, its time.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use plimsoll_core::engine::Engine;
use plimsoll_core::model::state::NodeState;

use crate::record::journal::aside::Recalled;
use crate::record::lines::{KEPT_LINES, RecentLine};
use crate::record::snapshot::Snapshot;
use crate::record::steps::{Difference, Entry, JournalReadError, StepPlace, Steps};

/// Marks that are kept. When there are so many, every other is dropped and the next are twice as far apart.
const MARKS_MAX: usize = 64;
/// Steps between two marks at first.
const MARK_EVERY: usize = 64;

/// Where to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seek {
    /// So many steps on, or back.
    Steps(isize),
    /// So many nanoseconds on, or back.
    Time(i64),
    /// To the next step with a decision that is said, or the one before.
    Decision {
        /// On, or back.
        forward: bool,
    },
    /// Before the first step.
    Begin,
    /// After the last step.
    End,
    /// After the last step at this time or before, CLOCK_MONOTONIC nanoseconds.
    At(u64),
}

/// Where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// Steps taken.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
    /// The time of the newest step taken, CLOCK_MONOTONIC nanoseconds.
    pub at_ns: u64,
    /// The time of the first.
    pub begin_ns: u64,
    /// The time of the last.
    pub end_ns: u64,
}

#[derive(Debug)]
struct Mark {
    step: usize,
    place: StepPlace,
    state: NodeState,
    recalled: Recalled,
    recent_lines: VecDeque<Arc<RecentLine>>,
    said: u64,
}

/// What is remembered of a step.
#[derive(Debug, Clone, Copy)]
struct Seen {
    at_ns: u64,
    is_reported: bool,
}

/// An open journal.
#[derive(Debug)]
pub(crate) struct JournalPlayer {
    steps: Steps,
    engine: Engine,
    /// What is told between steps, up to the newest step.
    recalled: Recalled,
    /// All of it.
    recalled_last: Recalled,
    /// Steps taken.
    step: usize,
    recent_lines: VecDeque<Arc<RecentLine>>,
    said: u64,
    seen: Vec<Seen>,
    marks: Vec<Mark>,
    mark_every: usize,
    remark: Option<String>,
}

impl JournalPlayer {
    /// Opens a journal, reads all of it, and is at its end. Damage behind the first step is a [remark](Self::remark),
    /// and the end.
    ///
    /// # Errors
    /// [`JournalReadError`].
    pub(crate) fn open(path: &Path) -> Result<Self, JournalReadError> {
        let (steps, engine, recalled) = Steps::open(path)?;
        let mut recording = Self {
            steps,
            engine,
            recalled,
            recalled_last: Recalled::default(),
            step: 0,
            recent_lines: VecDeque::with_capacity(KEPT_LINES),
            said: 0,
            seen: Vec::new(),
            marks: Vec::new(),
            mark_every: MARK_EVERY,
            remark: None,
        };
        loop {
            recording.mark();
            match recording.take() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if recording.step > 0 => {
                    recording.remark = Some(format!("{error}; only what comes before is shown"));
                    break;
                }
                Err(error) => return Err(error),
            }
            if recording.remark.is_some() {
                break;
            }
        }
        if recording.steps.is_torn() {
            recording.remark = Some("the last line is incomplete and was ignored".to_owned());
        }
        recording.recalled_last = recording.recalled.clone();
        Ok(recording)
    }

    /// What is to be said of it as a whole.
    pub(crate) fn remark(&self) -> Option<&str> {
        self.remark.as_deref()
    }

    /// Where it is.
    pub(crate) fn position(&self) -> Position {
        let at = |index: Option<usize>| {
            let seen = index.and_then(|index| self.seen.get(index));
            seen.map_or(self.engine.state().now_ns, |seen| seen.at_ns)
        };
        Position {
            step: self.step,
            steps: self.seen.len(),
            at_ns: at(self.step.checked_sub(1)),
            begin_ns: at(Some(0)),
            end_ns: at(self.seen.len().checked_sub(1)),
        }
    }

    /// What was said last, the oldest first.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &RecentLine> {
        self.recent_lines.iter().map(|line| &**line)
    }

    /// What was known then.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            recent_lines: self.recent_lines.iter().cloned().collect(),
            ..self.recalled.snapshot(&self.engine)
        }
    }

    /// Goes there, as far as there are steps.
    ///
    /// # Errors
    /// [`JournalReadError`], for a file that has been changed meanwhile.
    pub(crate) fn seek(&mut self, to: Seek) -> Result<(), JournalReadError> {
        let target = self.target(to);
        let mark = self.marks.iter().rfind(|mark| mark.step <= target);
        if let Some(mark) = mark
            && (target < self.step || mark.step > self.step)
        {
            self.steps.go_to(mark.place)?;
            self.engine = Engine::resume(self.engine.config().clone(), mark.state.clone());
            self.recalled = mark.recalled.clone();
            self.step = mark.step;
            self.recent_lines = mark.recent_lines.clone();
            self.said = mark.said;
        }
        while self.step < target && self.take()? {}
        if self.step == self.seen.len() {
            // What follows the last step, too.
            self.recalled = self.recalled_last.clone();
        }
        Ok(())
    }

    fn target(&self, to: Seek) -> usize {
        let steps = self.seen.len();
        let at = |ns: u64| self.seen.partition_point(|seen| seen.at_ns <= ns);
        match to {
            Seek::Begin => 0,
            Seek::End => steps,
            Seek::At(ns) => at(ns),
            Seek::Steps(by) => self.step.saturating_add_signed(by).min(steps),
            Seek::Time(by) => {
                let to = at(self.position().at_ns.saturating_add_signed(by));
                // There may be no step in so short a time.
                if by > 0 {
                    to.max(self.step + 1).min(steps)
                } else {
                    to
                }
            }
            Seek::Decision { forward: true } => {
                let later = self.seen.iter().skip(self.step);
                later
                    .clone()
                    .position(|seen| seen.is_reported)
                    .map_or(steps, |index| self.step + index + 1)
            }
            Seek::Decision { forward: false } => {
                let before = &self.seen[..self.step.saturating_sub(1)];
                before
                    .iter()
                    .rposition(|seen| seen.is_reported)
                    .map_or(0, |index| index + 1)
            }
        }
    }

    /// Takes the next step; `false` at the end.
    fn take(&mut self) -> Result<bool, JournalReadError> {
        let step = loop {
            match self.steps.next()? {
                Some(Entry::Step(step)) => break step,
                Some(Entry::Aside(aside)) => self.recalled.apply(aside),
                None => return Ok(false),
            }
        };
        let mut decisions = Vec::new();
        let difference = step.take(&mut self.engine, &mut decisions)?;
        let at_ns = step.event.at_ns;
        let mut is_reported = false;
        for decision in &decisions {
            let Some(severity) = decision.telling().severity else {
                continue;
            };
            is_reported = true;
            if self.recent_lines.len() == KEPT_LINES {
                self.recent_lines.pop_front();
            }
            self.said += 1;
            let line = RecentLine::decision(self.said, at_ns, severity, decision);
            self.recent_lines.push_back(Arc::new(line));
        }
        if self.step == self.seen.len() {
            self.seen.push(Seen { at_ns, is_reported });
        }
        self.step += 1;
        if let Some(Difference { line, .. }) = difference {
            self.remark = Some(format!(
                "from line {line} this version decides differently from the one that wrote the journal; only what comes before is shown"
            ));
        }
        Ok(true)
    }

    fn mark(&mut self) {
        if !self.step.is_multiple_of(self.mark_every) {
            return;
        }
        if self.marks.len() == MARKS_MAX {
            self.mark_every *= 2;
            let every = self.mark_every;
            self.marks.retain(|mark| mark.step.is_multiple_of(every));
            if !self.step.is_multiple_of(every) {
                return;
            }
        }
        self.marks.push(Mark {
            step: self.step,
            place: self.steps.place(),
            state: self.engine.state().clone(),
            recalled: self.recalled.clone(),
            recent_lines: self.recent_lines.clone(),
            said: self.said,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::journal::Journal;
    use crate::record::limit_counts::LimitTotals;
    use plimsoll_core::engine::EngineConfig;
    use plimsoll_core::kube::pod_uid::PodUid;
    use plimsoll_core::model::event::{Event, EventKind, NodeMemory, Sample};
    use plimsoll_core::model::signal::Signal;
    use plimsoll_core::model::threshold::{Amount, Operator, Passes, Threshold};

    const STEPS: u64 = 300;

    /// A step each second, with less and less memory, and between them what a limit has cost a pod; and the states
    /// after each.
    fn journal(path: &Path) -> Vec<NodeState> {
        let mut engine = Engine::new(EngineConfig {
            thresholds: vec![Threshold {
                signal: Signal::MemoryAvailable,
                operator: Operator::LessThan,
                value: Amount::Absolute(STEPS / 2),
                grace_ns: 0,
                min_reclaim: None,
                passes: Passes::All,
            }],
            ..EngineConfig::default()
        });
        let pod = r#"{"metadata":{"name":"a","uid":"a"},"spec":{"containers":[{"name":"app"}]}}"#;
        let pod = Arc::new(serde_json::from_str(pod).unwrap());
        let kind = EventKind::PodApplied { pod };
        engine.step(&Event { at_ns: 1, kind }, &mut Vec::new());
        let mut journal = Journal::create(path, &engine).unwrap();
        let mut states = vec![engine.state().clone()];
        for index in 1..=STEPS {
            let node = NodeMemory {
                capacity_bytes: STEPS + 1,
                anon_bytes: index,
                ..NodeMemory::default()
            };
            let kind = EventKind::Sample(Sample {
                node,
                ..Sample::default()
            });
            let event = Event {
                at_ns: index * 1_000_000_000,
                kind,
            };
            let mut decisions = Vec::new();
            engine.step(&event, &mut decisions);
            journal.record(&event, &decisions);
            if journal.wants_aside(event.at_ns + 1) {
                let uid = PodUid::from("a");
                let mut totals = LimitTotals::default();
                totals.all.throttled = index;
                let all = std::iter::once((&uid, totals));
                journal.record_aside(event.at_ns + 1, all, None);
            }
            states.push(engine.state().clone());
        }
        journal.finish().unwrap();
        states
    }

    #[test]
    fn every_step_is_found_from_everywhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let states = journal(&path);
        let mut item = JournalPlayer::open(&path).unwrap();
        assert_eq!((item.position().step, item.remark()), (300, None));
        let at = |recording: &JournalPlayer| {
            (
                recording.position().step,
                recording.engine.state() == &states[recording.step],
            )
        };
        // After every fourth step, and told by the next; at the end by itself.
        let throttled_at = |step: usize| {
            if step == 300 {
                300
            } else {
                step.saturating_sub(1) / 4 * 4
            }
        };
        for (to, step) in [
            (Seek::Steps(-1), 299),
            (Seek::Begin, 0),
            (Seek::Steps(-1), 0),
            (Seek::Steps(1), 1),
            (Seek::Time(10_000_000_000), 11),
            (Seek::Time(-10_000_000_000), 1),
            (Seek::At(200_500_000_000), 200),
            (Seek::Time(-70_000_000_000), 130),
            // The condition is raised, and nobody can be evicted.
            (Seek::Decision { forward: true }, 152),
            (Seek::Decision { forward: true }, 300),
            (Seek::Decision { forward: false }, 152),
            (Seek::Decision { forward: false }, 0),
            (Seek::Steps(129), 129),
            (Seek::Steps(1000), 300),
            (Seek::End, 300),
        ] {
            item.seek(to).unwrap();
            assert_eq!(at(&item), (step, true), "{to:?}");
            let limits = item.snapshot().limits.get(&PodUid::from("a")).copied();
            let throttled = limits.map_or(0, |it| it.all.throttled);
            assert_eq!(throttled, throttled_at(step) as u64, "{to:?}");
        }
        item.seek(Seek::At(152_000_000_000)).unwrap();
        let lines = item.snapshot().recent_lines;
        assert!(lines[0].text.starts_with("152.000000 "), "{lines:?}");
        assert_eq!(lines[0].number, 1);
    }

    #[test]
    fn marks_are_few_and_evenly_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        journal(&path);
        let mut recording = JournalPlayer::open(&path).unwrap();
        assert_eq!(recording.marks.len(), 5);
        for step in 5..1000 {
            recording.step = step * MARK_EVERY;
            recording.mark();
            assert!(recording.marks.len() <= MARKS_MAX);
        }
        let apart = |pair: &[Mark]| pair[1].step - pair[0].step;
        assert!(
            recording
                .marks
                .windows(2)
                .all(|pair| apart(pair) == recording.mark_every)
        );
    }

    #[test]
    fn damage_is_shown_up_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        journal(&path);
        let text = std::fs::read_to_string(&path).unwrap();
        let with = |line: usize, other: &str| {
            let mut lines: Vec<&str> = text.lines().collect();
            lines[line] = other;
            std::fs::write(&path, lines.join("\n") + "\n").unwrap();
            JournalPlayer::open(&path)
        };
        let item = with(100, "{}").unwrap();
        // An aside after every fourth step has a line, too.
        assert_eq!(item.position().step, 80);
        assert!(
            item.remark().unwrap().contains(":101: "),
            "{:?}",
            item.remark()
        );
        let it = with(100, r#"{"lost":7}"#).unwrap();
        assert!(
            it.remark().unwrap().contains("7 steps"),
            "{:?}",
            it.remark()
        );
        assert!(matches!(
            with(1, "{}"),
            Err(JournalReadError::Line { line: 2, .. })
        ));
        std::fs::write(&path, &text[..text.len() - 5]).unwrap();
        let recording = JournalPlayer::open(&path).unwrap();
        assert!(recording.remark().unwrap().contains("incomplete"));
        std::fs::write(&path, "").unwrap();
        assert!(matches!(
            JournalPlayer::open(&path),
            Err(JournalReadError::Empty { .. })
        ));
    }
}
