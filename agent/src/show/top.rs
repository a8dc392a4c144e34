//! A [`Model`](model::Model) as a screen. Pure: the same model and size give the same cells.
//!
//! From the top: what this is; the node; what its signals show; a line for what is unusual; the pods; who would be
//! evicted next and why; what was said last; the keys. Everything is readable without colour: colours only repeat what
//! letters say.

pub mod model;
pub mod text;

use plimsoll_core::explain::{EvictionStatus, ExplainedSignal};
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::model::telling::Severity;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use crate::host::shown::line;
use crate::record::limit_counts::LimitCounts;
use crate::serve::overview::{Overview, PodOverview, PodStatus};
use crate::show::pod_words::{candidates, facts, fate, or_dash, reason, share, signal_text, size};
use crate::show::table::{bytes, span};
use crate::show::top::model::{Feed, Model, Page, Sort, rate};

/// The least that everything fits on.
pub(crate) const WIDE_MIN: u16 = 80;
/// The least that everything fits on.
pub(crate) const HIGH_MIN: u16 = 24;

/// From here on there is room for more columns.
const WIDE: usize = 110;
/// Cells of the bar.
const BAR: usize = 24;
/// Lines above the pods.
const HEAD: u16 = 5;
/// Candidates that are shown, and lines of what was said, on the smallest screen.
const CANDIDATES: u16 = 3;
const RECENT_LINES: u16 = 4;

/// What a key does.
const KEYS: [(&str, &str); 10] = [
    ("q, Ctrl-C", "quit"),
    (
        "Up Down k j",
        "select a pod; PgUp, PgDn, Home, End go further",
    ),
    ("Enter", "details of the selected pod, and back"),
    ("s, S", "sort by the next column, the previous one"),
    ("r", "reverse the order"),
    ("/", "show only pods whose name contains the text"),
    ("Esc", "back to the pods; then clear the filter"),
    ("p, Space", "pause the screen (journal: play)"),
    ("?, h", "this help, and back"),
    (
        "Left Right [ ] n N g G",
        "in a journal: step, 10 s, decision, begin, end",
    ),
];

/// What letters say, in colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Plain,
    Heading,
    Selected,
    Faint,
    Good,
    Warning,
    Critical,
}

impl Look {
    fn style(self, has_color: bool) -> Style {
        let plain = Style::new();
        let colored = |color| {
            if has_color { plain.fg(color) } else { plain }
        };
        match self {
            Self::Plain => plain,
            Self::Heading => plain.add_modifier(Modifier::BOLD),
            Self::Selected => plain.add_modifier(Modifier::REVERSED),
            Self::Faint => plain.add_modifier(Modifier::DIM),
            Self::Good => colored(Color::Green),
            Self::Warning => colored(Color::Yellow),
            Self::Critical => colored(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

impl From<Severity> for Look {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => Self::Plain,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Critical,
        }
    }
}

/// Draws all of it.
pub(crate) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let area = frame.area();
    let mut screen = Screen {
        frame,
        area,
        next: area.y,
        has_color: model.has_color,
    };
    if area.width < WIDE_MIN || area.height < HIGH_MIN {
        let size = format!("{}x{}", area.width, area.height);
        screen.line(Look::Critical, "The terminal is too small.");
        screen.line(
            Look::Plain,
            &format!("It is {size}, this needs {WIDE_MIN}x{HIGH_MIN}."),
        );
        screen.line(Look::Plain, "Make it larger; or q, and");
        screen.line(Look::Plain, "plimsoll top --once");
        return;
    }
    screen.title(model);
    match (&model.overview, model.page) {
        (_, Page::Help) => help(&mut screen),
        (None, _) => screen.line(Look::Plain, "The agent has not answered yet."),
        (Some(overview), Page::Pods) => pods_page(&mut screen, model, overview),
        (Some(overview), Page::Pod) => pod_page(&mut screen, model, overview),
    }
    screen.foot(model);
}

/// Lines from top to bottom.
struct Screen<'a, 'b> {
    frame: &'a mut Frame<'b>,
    area: Rect,
    next: u16,
    has_color: bool,
}

impl Screen<'_, '_> {
    fn wide(&self) -> usize {
        self.area.width.into()
    }

    /// Lines that are left, without the last.
    fn left(&self) -> u16 {
        self.area.bottom().saturating_sub(self.next + 1)
    }

    fn line(&mut self, look: Look, text: &str) {
        let style = look.style(self.has_color);
        let text = fitted(text, self.wide());
        self.spans(vec![Span::styled(text, style)], Style::new());
    }

    fn spans(&mut self, spans: Vec<Span<'_>>, style: Style) {
        if self.next < self.area.bottom() {
            let row = Rect::new(self.area.x, self.next, self.area.width, 1);
            self.frame
                .render_widget(Line::from(spans).style(style), row);
            self.next += 1;
        }
    }

    fn span<'s>(&self, look: Look, text: impl Into<String>) -> Span<'s> {
        Span::styled(text.into(), look.style(self.has_color))
    }

    /// Text to the left and to the right, in reverse.
    fn bar(&mut self, left: &str, right: &str) {
        let room = self.wide().saturating_sub(right.chars().count());
        let left = fitted(left, room);
        let text = format!("{left:room$}{right}");
        self.line(Look::Selected, &text);
    }

    fn title(&mut self, model: &Model) {
        let overview = model.overview.as_ref();
        let name = overview.and_then(|it| it.node.name.as_deref());
        let pods = overview.map_or(0, |it| it.pods.len());
        let mut left = match (name, &model.feed) {
            (Some(name), _) => format!("plimsoll top  {name}"),
            (None, Feed::Live { .. }) => "plimsoll top".to_owned(),
            (None, Feed::Recorded { .. }) => "plimsoll top  journal".to_owned(),
        };
        left += &format!("  {pods} pods, by {}", model.sort.name());
        if model.is_reversed {
            left.push_str(" reversed");
        }
        if !model.filter.is_empty() || model.edits_filter {
            let cursor = if model.edits_filter { "_" } else { "" };
            left += &format!("  filter /{}{cursor}", model.filter);
        }
        let ago = |since: std::time::Duration| model.now.saturating_sub(since).as_secs();
        let right = match (&model.feed, model.paused) {
            (_, Some(since)) => format!("PAUSED for {} s", ago(since)),
            (Feed::Live { every, .. }, None) => {
                let longest = overview.and_then(|it| it.longest_turn_ns);
                let longest = longest.map(|ns| format!("longest turn {}  ", span(ns)));
                format!("{}every {}", longest.unwrap_or_default(), span_of(*every))
            }
            (
                Feed::Recorded {
                    position, plays_ns, ..
                },
                None,
            ) => {
                let plays = if plays_ns.is_some() { "plays  " } else { "" };
                let after = position.at_ns.saturating_sub(position.begin_ns);
                format!(
                    "{plays}step {} of {}  {} (+{} s)",
                    position.step,
                    position.steps,
                    time(position.at_ns),
                    after / 1_000_000_000
                )
            }
        };
        self.bar(&left, &right);
    }

    fn foot(&mut self, model: &Model) {
        self.next = self.area.bottom() - 1;
        let keys = match (&model.feed, model.edits_filter) {
            (_, true) => "type part of a name   Enter apply   Esc clear",
            (Feed::Live { .. }, _) => {
                "q quit  s sort  r reverse  / filter  p pause  Enter details  ? help"
            }
            (Feed::Recorded { .. }, _) => {
                "q quit  Left Right step  [ ] 10 s  n N decision  Space play  s sort  ? help"
            }
        };
        self.line(Look::Faint, keys);
    }
}

fn span_of(it: std::time::Duration) -> String {
    span(u64::try_from(it.as_nanos()).unwrap_or(u64::MAX))
}

/// CLOCK_MONOTONIC, as `plimsoll replay` prints it.
fn time(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000_000_000, ns / 1_000_000 % 1000)
}

/// Not longer than that; what is cut off leaves a mark.
fn fitted(text: &str, wide: usize) -> String {
    if text.chars().count() <= wide {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(wide.saturating_sub(1)).collect();
    cut.push('~');
    cut
}

fn help(screen: &mut Screen<'_, '_>) {
    screen.line(Look::Plain, "");
    for (key, does) in KEYS {
        screen.line(Look::Plain, &format!("  {key:24}{does}"));
    }
    screen.line(Look::Plain, "");
    for text in [
        "  MEM     working set: memory without inactive page cache",
        "  REQ LIM memory request and limit",
        "  CPU     CPUs in use, thousandths; CPUS: its exclusive CPUs",
        "  THR     ms of each second throttled by the CPU limit",
        "  WAIT    ms of each second in which tasks wait for memory",
        "  PSI     % of the last 10 s in which a task waited for memory",
        "  EVICT   rank: > is next, - is exempt, OUT is leaving",
    ] {
        screen.line(Look::Plain, text);
    }
}

fn pods_page(screen: &mut Screen<'_, '_>, model: &Model, overview: &Overview) {
    node(screen, overview);
    signals(screen, overview);
    unusual(screen, model, overview);
    debug_assert_eq!(screen.next, screen.area.y + HEAD);
    // What is more than the least is shared: of each five lines three for pods, one for what was said.
    let more = screen.area.height - HIGH_MIN;
    let candidates = CANDIDATES + more / 5;
    let lines = RECENT_LINES + more / 5;
    let pods = screen.left().saturating_sub(1 + candidates + 1 + lines + 1);
    pods_table(screen, model, pods.into());
    candidates_list(screen, overview, candidates.into());
    recent_lines_list(screen, overview, lines.into());
}

fn node(screen: &mut Screen<'_, '_>, overview: &Overview) {
    let node = &overview.node;
    let of = |it: Option<u64>| it.map_or_else(|| "?".to_owned(), |value| bytes(value.into()));
    let available = node.memory_available_bytes.unwrap_or(0);
    let capacity = node.memory_capacity_bytes.unwrap_or(0);
    let used = capacity.saturating_sub(available);
    let cells = (used * BAR as u64).checked_div(capacity).unwrap_or(0);
    let cells = usize::try_from(cells).unwrap_or(0).min(BAR);
    let swap = match (node.swap_used_bytes, node.swap_capacity_bytes) {
        (_, Some(0)) => "no swap".to_owned(),
        (used, all) => format!("swap {} of {}", of(used), of(all)),
    };
    let look = if overview.conditions.iter().any(|condition| condition.status) {
        Look::Critical
    } else {
        Look::Good
    };
    let spans = vec![
        screen.span(Look::Plain, "memory  ["),
        screen.span(look, "#".repeat(cells)),
        screen.span(Look::Faint, ".".repeat(BAR - cells)),
        screen.span(
            Look::Plain,
            format!(
                "]  {} available of {}, {swap}",
                of(node.memory_available_bytes),
                of(node.memory_capacity_bytes)
            ),
        ),
    ];
    screen.spans(spans, Style::new());
    let share = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), |it| format!("{it:.1}"));
    let cpus = node.cpu_used_milli.map_or_else(String::new, |milli| {
        format!("   CPUs in use {}.{:02}", milli / 1000, milli % 1000 / 10)
    });
    let pressure = &node.pressure;
    let waits = if (pressure.cpu, pressure.memory, pressure.io) == (None, None, None) {
        "waits   not measured".to_owned()
    } else {
        format!(
            "waits   cpu {} %, memory {} %, io {} % of the last 10 s",
            share(pressure.cpu),
            share(pressure.memory),
            share(pressure.io)
        )
    };
    screen.line(Look::Plain, &(waits + &cpus));
}

/// The signal that pods are ranked for, and as many more as there is room for.
fn signals(screen: &mut Screen<'_, '_>, overview: &Overview) {
    let is_first = |signal: &&ExplainedSignal| signal.signal == overview.signal;
    let first = overview.signals.iter().filter(is_first);
    let others = overview.signals.iter().filter(|it| !is_first(it));
    let mut text = "signals ".to_owned();
    let mut look = Look::Plain;
    let mut is_any = false;
    for signal in first.chain(others) {
        let Some(shown) = signal_text(signal) else {
            continue;
        };
        if signal
            .thresholds
            .iter()
            .any(|threshold| threshold.met_since_ns.is_some())
        {
            look = Look::Critical;
        }
        let gap = if is_any { "; " } else { "" };
        if is_any && text.chars().count() + shown.chars().count() + 2 > screen.wide() {
            break;
        }
        text += gap;
        text += &shown;
        is_any = true;
    }
    if !is_any {
        text.push_str("no signal with a threshold is observed");
    }
    screen.line(look, &text);
}

/// The one line for what is not as usual.
fn unusual(screen: &mut Screen<'_, '_>, model: &Model, overview: &Overview) {
    let ago = |since: std::time::Duration| model.now.saturating_sub(since).as_secs();
    match &model.feed {
        Feed::Live {
            silent: Some((since, why)),
            ..
        } => {
            let text = format!(
                "NO ANSWER for {} s; this is {} s old; retrying: {why}",
                ago(*since),
                ago(model.seen)
            );
            return screen.line(Look::Critical, &text);
        }
        Feed::Live {
            restarted: Some(at),
            ..
        } => {
            let pid = overview.pid.unwrap_or(0);
            let text = format!(
                "another agent (PID {pid}) has answered for {} s; its counts start at zero",
                ago(*at)
            );
            return screen.line(Look::Warning, &text);
        }
        Feed::Recorded {
            remark: Some(remark),
            ..
        } => return screen.line(Look::Warning, remark),
        _ => {}
    }
    let raised = overview
        .conditions
        .iter()
        .filter(|condition| condition.status);
    let raised: Vec<&str> = raised
        .map(|condition| condition.condition.as_str())
        .collect();
    match (raised.as_slice(), overview.refused.as_slice()) {
        ([], []) => screen.line(Look::Plain, ""),
        ([], [first, ..]) => {
            let (pods, message) = (overview.refused.len(), line(&first.message));
            let text = format!("NOT ADMITTED: {pods}; {}: {message}", first.pod);
            screen.line(Look::Warning, &text);
        }
        (raised, _) => screen.line(Look::Critical, &raised.join(", ")),
    }
}

/// A column of the table.
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    wide: usize,
    /// What pods can be sorted by it.
    sort: Option<Sort>,
    pub(crate) cell: fn(&PodOverview) -> String,
}

/// Milliseconds per second of a time that is counted.
fn per_second(pod: &PodOverview, of: fn(&LimitCounts) -> u64) -> String {
    or_dash(rate(pod, of).map(|ns| match ns {
        0 => "0".to_owned(),
        1..1_000_000 => "<1".to_owned(),
        _ => (ns / 1_000_000).to_string(),
    }))
}

fn class(pod: &PodOverview) -> &'static str {
    match pod.qos_class {
        QosClass::Guaranteed => "Gua",
        QosClass::Burstable => "Bur",
        QosClass::BestEffort => "Bes",
    }
}

/// Those that are always there, then those for wide screens.
pub(crate) const COLUMNS: [Column; 14] = [
    column("QOS", 3, None, |it| class(it).to_owned()),
    column("MEM", 7, Some(Sort::Memory), |pod| {
        size(pod.memory.working_set_bytes)
    }),
    column("REQ", 7, None, |pod| {
        size(Some(pod.memory.request_bytes).filter(|it| *it > 0))
    }),
    column("LIM", 7, None, |pod| size(pod.memory.limit_bytes)),
    column("CPU", 6, Some(Sort::Cpu), |pod| {
        or_dash(pod.cpu.used_milli.map(|value| value.to_string()))
    }),
    column("THR", 5, Some(Sort::Throttling), |it| {
        per_second(it, |counts| counts.throttled_ns)
    }),
    column("WAIT", 5, Some(Sort::Stalls), |it| {
        per_second(it, |counts| counts.stalled_ns)
    }),
    column("PSI", 5, Some(Sort::Pressure), |pod| {
        share(pod.pressure.memory)
    }),
    column("CPUS", 5, None, |pod| {
        or_dash(Some(pod.cpu.exclusive.to_string()).filter(|it| !it.is_empty()))
    }),
    column("EVICT", 5, Some(Sort::Eviction), fate),
    column("CPU%10", 6, None, |pod| share(pod.pressure.cpu)),
    column("IO%10", 6, None, |pod| share(pod.pressure.io)),
    column("SWAP", 7, None, |pod| size(pod.memory.swap_bytes)),
    column("OOM", 4, None, |pod| {
        or_dash(pod.limits.map(|it| it.all.oom_kills.to_string()))
    }),
];
const ALWAYS: usize = 10;

const fn column(
    heading: &'static str,
    wide: usize,
    sort: Option<Sort>,
    cell: fn(&PodOverview) -> String,
) -> Column {
    Column {
        heading,
        wide,
        sort,
        cell,
    }
}

fn pods_table(screen: &mut Screen<'_, '_>, model: &Model, high: usize) {
    let wide = screen.wide();
    let columns = if wide >= WIDE {
        &COLUMNS[..]
    } else {
        &COLUMNS[..ALWAYS]
    };
    let taken: usize = columns.iter().map(|it| it.wide + 1).sum();
    let name_wide = wide - taken - 1;
    let sorts_by = |sort: Option<Sort>| sort == Some(model.sort);
    let mut spans = vec![screen.span(
        Look::Heading,
        format!(
            " {:name_wide$}",
            if model.sort == Sort::Name {
                "POD*"
            } else {
                "POD"
            }
        ),
    )];
    for column in columns {
        let mark = if sorts_by(column.sort) { "*" } else { "" };
        let text = format!("{mark}{}", column.heading);
        spans.push(screen.span(Look::Heading, format!(" {text:>wide$}", wide = column.wide)));
    }
    screen.spans(spans, Style::new());
    let end = screen.next + u16::try_from(high).unwrap_or(0);
    let rows = model.rows();
    if rows.is_empty() {
        let why = if model.filter.is_empty() {
            "no pods".to_owned()
        } else {
            format!("no pod has {:?} in its name: Esc shows all", model.filter)
        };
        screen.line(Look::Faint, &format!(" {why}"));
    }
    let selected = model.selection(&rows);
    let offset = (selected + 1).saturating_sub(high);
    for (index, pod) in rows.iter().enumerate().skip(offset).take(high) {
        let is_selected = index == selected;
        let mark = if is_selected { '>' } else { ' ' };
        let mut text = format!("{mark}{:name_wide$}", fitted(&pod.pod, name_wide));
        for column in columns {
            let cell = fitted(&(column.cell)(pod), column.wide);
            text += &format!(" {cell:>wide$}", wide = column.wide);
        }
        let look = match (is_selected, pod.status, pod.ranked.map(|it| it.standing)) {
            (true, ..) => Look::Selected,
            (_, PodStatus::Evicted | PodStatus::Stuck, _) => Look::Critical,
            (_, _, Some(EvictionStatus::Next)) => Look::Warning,
            (_, PodStatus::NotRunning | PodStatus::Ending, _) => Look::Faint,
            _ => Look::Plain,
        };
        screen.line(look, &text);
    }
    screen.next = end;
}

fn candidates_list(screen: &mut Screen<'_, '_>, overview: &Overview, high: usize) {
    let end = screen.next + 1 + u16::try_from(high).unwrap_or(0);
    let victims = match &overview.victims[..] {
        [] | [_] => String::new(),
        several => format!(", {} together", several.len()),
    };
    let title = format!("NEXT TO BE EVICTED for {}{victims}", overview.signal);
    screen.line(Look::Heading, &title);
    let found = candidates(overview);
    if found.is_empty() {
        screen.line(Look::Faint, " no pod can be evicted");
    }
    for pod in found.into_iter().take(high) {
        let goes = overview.victims.contains(&pod.pod);
        let (mark, look) = if goes {
            ('>', Look::Warning)
        } else {
            (' ', Look::Plain)
        };
        let rank = pod.ranked.map_or(0, |ranked| ranked.rank);
        let text = format!("{mark}{rank} {}: {}", pod.pod, reason(overview, pod));
        screen.line(look, &text);
    }
    screen.next = end;
}

fn recent_lines_list(screen: &mut Screen<'_, '_>, overview: &Overview, high: usize) {
    screen.line(Look::Heading, "LATEST LINES");
    if overview.recent_lines.is_empty() {
        screen.line(Look::Faint, " nothing yet");
    }
    let first = overview.recent_lines.len().saturating_sub(high);
    for line in &overview.recent_lines[first..] {
        screen.line(line.severity.into(), &format!(" {}", line.text));
    }
}

/// All that is known of the pod that is selected.
fn pod_page(screen: &mut Screen<'_, '_>, model: &Model, overview: &Overview) {
    let rows = model.rows();
    let Some(pod) = rows.get(model.selection(&rows)) else {
        return screen.line(Look::Faint, "no pod is selected");
    };
    for (what, says) in facts(overview, pod) {
        if what.is_empty() {
            screen.line(Look::Heading, &says);
        } else {
            screen.line(Look::Plain, &format!("  {what:18}{says}"));
        }
    }
    let uid = pod.uid.as_str();
    let of_pod: Vec<_> = overview
        .recent_lines
        .iter()
        .filter(|it| it.text.contains(uid) || it.text.contains(&pod.pod))
        .collect();
    let room = usize::from(screen.left()).saturating_sub(1);
    if of_pod.is_empty() || room == 0 {
        return;
    }
    screen.line(Look::Heading, "LATEST LINES ABOUT IT");
    for line in &of_pod[of_pod.len().saturating_sub(room)..] {
        screen.line(line.severity.into(), &format!(" {}", line.text));
    }
}
