//! What is on the screen, and what a key, an answer or time does to it. Pure: no terminal, no socket, no clock.

use std::cmp::Ordering;
use std::time::Duration;

use plimsoll_core::kube::pod_uid::PodUid;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::record::journal_player::{Position, Seek};
use crate::record::limit_counts::LimitCounts;
use crate::serve::overview::{Overview, PodOverview};

/// Characters of a filter.
const FILTER_MAX: usize = 64;
/// A page of pods.
const PAGE: isize = 10;
/// How far a key goes in a recording.
const SKIP_NS: i64 = 10_000_000_000;
/// That the agent is another one is said for so long.
const NEWS: Duration = Duration::from_secs(30);

/// What pods are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// How long its tasks wait for memory, then what it uses above its request.
    Pressure,
    /// Its rank.
    Eviction,
    /// Its working set.
    Memory,
    /// CPUs in use.
    Cpu,
    /// Time throttled lately.
    Throttling,
    /// Time waited for memory lately.
    Stalls,
    /// Its name.
    Name,
}

impl Sort {
    /// In the order in which a key goes through them.
    pub(crate) const ALL: [Self; 7] = [
        Self::Pressure,
        Self::Eviction,
        Self::Memory,
        Self::Cpu,
        Self::Throttling,
        Self::Stalls,
        Self::Name,
    ];

    /// As it is shown.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pressure => "pressure",
            Self::Eviction => "eviction",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Throttling => "throttling",
            Self::Stalls => "stalls",
            Self::Name => "name",
        }
    }

    /// The pod that belongs further up is less.
    fn compare(self, a: &PodOverview, b: &PodOverview) -> Ordering {
        let more = |of: fn(&PodOverview) -> u64| of(b).cmp(&of(a));
        let stalled = |pod: &PodOverview| rate(pod, |counts| counts.stalled_ns).unwrap_or(0);
        match self {
            Self::Pressure => {
                let share = |pod: &PodOverview| pod.pressure.memory.unwrap_or(0.0);
                share(b)
                    .total_cmp(&share(a))
                    .then_with(|| more(stalled))
                    .then_with(|| above_request(b).cmp(&above_request(a)))
            }
            Self::Eviction => {
                let rank = |pod: &PodOverview| pod.ranked.map_or(usize::MAX, |ranked| ranked.rank);
                rank(a).cmp(&rank(b))
            }
            Self::Memory => more(|pod| pod.memory.working_set_bytes.unwrap_or(0)),
            Self::Cpu => more(|pod| pod.cpu.used_milli.unwrap_or(0)),
            Self::Throttling => more(|it| rate(it, |counts| counts.throttled_ns).unwrap_or(0)),
            Self::Stalls => more(stalled),
            Self::Name => Ordering::Equal,
        }
        .then_with(|| a.pod.cmp(&b.pod))
        .then_with(|| a.uid.cmp(&b.uid))
    }
}

/// What a pod uses above what it requests, bytes.
fn above_request(pod: &PodOverview) -> i128 {
    let used = pod.memory.working_set_bytes.unwrap_or(0);
    i128::from(used) - i128::from(pod.memory.request_bytes)
}

/// How fast a total grew lately, per second (of times: nanoseconds per second).
pub(crate) fn rate(pod: &PodOverview, of: fn(&LimitCounts) -> u64) -> Option<u64> {
    let limits = pod.limits.as_ref()?;
    let grown = u128::from(of(&limits.recent)) * 1_000_000_000;
    u64::try_from(grown.checked_div(limits.recent_ns.into())?).ok()
}

/// What is shown of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Page {
    /// All pods.
    Pods,
    /// The one that is selected.
    Pod,
    /// The keys.
    Help,
}

/// Where overviews come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Feed {
    /// From an agent.
    Live {
        /// How often it is asked.
        every: Duration,
        /// Since when there is no answer, and why.
        silent: Option<(Duration, String)>,
        /// When another agent than before first answered.
        restarted: Option<Duration>,
    },
    /// From a journal.
    Recorded {
        /// Where it is.
        position: Position,
        /// The time that it plays, CLOCK_MONOTONIC nanoseconds; `None`: it stands still.
        plays_ns: Option<u64>,
        /// What is to be said of it as a whole.
        remark: Option<String>,
    },
}

/// What happens to it.
#[derive(Debug)]
pub(crate) enum Message {
    /// A key.
    Key(KeyEvent),
    /// Time has come to this, since the start.
    Tick(Duration),
    /// The agent has answered.
    Answer(Box<Overview>),
    /// It has not, and why.
    NoAnswer(String),
    /// The recording is there now.
    At(Position, Box<Overview>),
}

/// What is to be done outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Leave.
    Quit,
    /// Go there in the recording.
    Seek(Seek),
}

/// All of it.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    /// The newest overview.
    pub overview: Option<Box<Overview>>,
    /// Where it comes from.
    pub feed: Feed,
    /// Since the start.
    pub now: Duration,
    /// When `overview` came.
    pub seen: Duration,
    /// What pods are sorted by.
    pub sort: Sort,
    /// The other way round.
    pub is_reversed: bool,
    /// Pods whose name contains this.
    pub filter: String,
    /// The filter is being written.
    pub edits_filter: bool,
    /// Since when nothing new is taken in.
    pub paused: Option<Duration>,
    /// The pod that is selected.
    pub selected: Option<PodUid>,
    /// What is shown.
    pub page: Page,
    /// Whether colours may be used.
    pub has_color: bool,
}

impl Model {
    /// Before anything is known.
    pub(crate) fn new(feed: Feed, has_color: bool) -> Self {
        Self {
            overview: None,
            feed,
            now: Duration::ZERO,
            seen: Duration::ZERO,
            sort: Sort::Pressure,
            is_reversed: false,
            filter: String::new(),
            edits_filter: false,
            paused: None,
            selected: None,
            page: Page::Pods,
            has_color,
        }
    }

    /// The pods that are shown, in their order.
    pub(crate) fn rows(&self) -> Vec<&PodOverview> {
        let pods = self.overview.iter().flat_map(|it| &it.pods);
        let mut rows: Vec<&PodOverview> =
            pods.filter(|pod| pod.pod.contains(&self.filter)).collect();
        rows.sort_by(|a, b| {
            let order = self.sort.compare(a, b);
            if self.is_reversed {
                order.reverse()
            } else {
                order
            }
        });
        rows
    }

    /// Which of `rows` is selected: the first if the one that was is not there.
    pub(crate) fn selection(&self, rows: &[&PodOverview]) -> usize {
        let is_selected = |pod: &&PodOverview| Some(&pod.uid) == self.selected.as_ref();
        rows.iter().position(is_selected).unwrap_or(0)
    }

    /// Takes in what happens.
    pub(crate) fn update(&mut self, message: Message) -> Option<Command> {
        match message {
            Message::Key(key) => return self.key(key),
            Message::Tick(now) => {
                let passed = now.saturating_sub(self.now);
                self.now = now;
                if let Feed::Recorded {
                    plays_ns, position, ..
                } = &mut self.feed
                    && let Some(time_ns) = plays_ns
                {
                    let passed = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
                    let time_ns = time_ns.saturating_add(passed);
                    *plays_ns = Some(time_ns).filter(|ns| *ns < position.end_ns);
                    return Some(Command::Seek(Seek::At(time_ns)));
                }
            }
            Message::Answer(overview) => self.answered(overview),
            Message::NoAnswer(why) => {
                let now = self.now;
                if let Feed::Live { silent, .. } = &mut self.feed {
                    let since = silent.as_ref().map_or(now, |(since, _)| *since);
                    *silent = Some((since, why));
                }
            }
            Message::At(to, overview) => {
                if let Feed::Recorded { position, .. } = &mut self.feed {
                    *position = to;
                }
                self.take(overview);
            }
        }
        None
    }

    fn answered(&mut self, overview: Box<Overview>) {
        let now = self.now;
        let known = self.overview.as_ref().and_then(|it| it.pid);
        if let Feed::Live {
            silent, restarted, ..
        } = &mut self.feed
        {
            *silent = None;
            if known.is_some() && known != overview.pid {
                *restarted = Some(now);
            }
            if restarted.is_some_and(|at| now.saturating_sub(at) > NEWS) {
                *restarted = None;
            }
        }
        if self.paused.is_none() {
            self.take(overview);
        }
    }

    fn take(&mut self, overview: Box<Overview>) {
        self.overview = Some(overview);
        self.seen = self.now;
    }

    fn key(&mut self, key: KeyEvent) -> Option<Command> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            // A terminal in raw mode sends these as keys.
            return matches!(key.code, KeyCode::Char('c' | 'd')).then_some(Command::Quit);
        }
        if self.edits_filter {
            match key.code {
                KeyCode::Enter => self.edits_filter = false,
                KeyCode::Esc => {
                    self.edits_filter = false;
                    self.filter.clear();
                }
                KeyCode::Backspace => {
                    self.filter.pop();
                }
                KeyCode::Char(it) if self.filter.chars().count() < FILTER_MAX => {
                    self.filter.push(it);
                }
                _ => {}
            }
            return None;
        }
        match key.code {
            KeyCode::Char('q') => return Some(Command::Quit),
            KeyCode::Char('?' | 'h') => self.turn_to(Page::Help),
            KeyCode::Enter => self.turn_to(Page::Pod),
            KeyCode::Esc if self.page != Page::Pods => self.page = Page::Pods,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('/') => {
                self.page = Page::Pods;
                self.edits_filter = true;
            }
            KeyCode::Char('s') => self.sort_by_next(1),
            KeyCode::Char('S') => self.sort_by_next(Sort::ALL.len() - 1),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('p' | ' ') => self.pause(),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-PAGE),
            KeyCode::PageDown => self.select(PAGE),
            KeyCode::Home => self.select(isize::MIN),
            KeyCode::End => self.select(isize::MAX),
            other => return self.seek_key(other),
        }
        None
    }

    fn seek_key(&mut self, key: KeyCode) -> Option<Command> {
        let Feed::Recorded { plays_ns, .. } = &mut self.feed else {
            return None;
        };
        let seek = match key {
            KeyCode::Right | KeyCode::Char('l') => Seek::Steps(1),
            KeyCode::Left => Seek::Steps(-1),
            KeyCode::Char(']') => Seek::Time(SKIP_NS),
            KeyCode::Char('[') => Seek::Time(-SKIP_NS),
            KeyCode::Char('n') => Seek::Decision { forward: true },
            KeyCode::Char('N') => Seek::Decision { forward: false },
            KeyCode::Char('g') => Seek::Begin,
            KeyCode::Char('G') => Seek::End,
            _ => return None,
        };
        *plays_ns = None;
        Some(Command::Seek(seek))
    }

    fn turn_to(&mut self, page: Page) {
        self.page = if self.page == page { Page::Pods } else { page };
    }

    fn sort_by_next(&mut self, by: usize) {
        let now = Sort::ALL.iter().position(|it| *it == self.sort);
        self.sort = Sort::ALL[(now.unwrap_or(0) + by) % Sort::ALL.len()];
    }

    fn pause(&mut self) {
        match &mut self.feed {
            Feed::Live { .. } if self.paused.is_some() => self.paused = None,
            Feed::Live { .. } => self.paused = Some(self.now),
            Feed::Recorded {
                plays_ns, position, ..
            } => {
                *plays_ns = match plays_ns {
                    Some(_) => None,
                    None => Some(position.at_ns.max(position.begin_ns)),
                }
            }
        }
    }

    fn select(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let at = self.selection(&rows).saturating_add_signed(by).min(last);
        self.selected = rows.get(at).map(|pod| pod.uid.clone());
    }
}
