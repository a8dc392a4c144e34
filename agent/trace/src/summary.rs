//! What a session saw, on standard output.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use plimsoll_abi::sampling::SampleEvent;
use serde::Serialize;

use super::groups::GroupIndex;
use super::recording::Recording;
use super::spans::{MarkKind, SpanKind};
use super::stacks::NO_STACK;
use plimsoll::host::output::Style;
use plimsoll::host::shown::Show as _;
use plimsoll::show::table::{Table, Tone, bytes};

/// Functions that are shown.
const HOTTEST: usize = 10;
/// Characters of a function's name that are shown to people: those of generic code have hundreds.
const NAME_SHOWN: usize = 64;
/// Cgroups that are shown to people; programs get all.
const GROUPS_SHOWN: usize = 20;

/// A session in figures.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    /// Which plimsoll made it.
    version: &'static str,
    /// What was selected, in words.
    selection: String,
    /// How long it took.
    duration_ns: u64,
    /// Samples per second and CPU that were asked for.
    frequency: u32,
    /// Samples that were read.
    samples: u64,
    /// By cgroup, the one with the most time on CPU first.
    groups: Vec<GroupSummary>,
    /// Innermost functions by time on CPU.
    hottest: Vec<Function>,
    /// Everything that can be lost, with how much was.
    losses: BTreeMap<&'static str, u64>,
    /// What this host does not give.
    not_available: Vec<NotAvailable>,
    /// Files whose functions have no names, or not all, by the reason.
    without_names: Vec<WithoutNames>,
    /// What was written.
    files: Vec<Written>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupSummary {
    /// Path from the root of its hierarchy, or `node`.
    cgroup: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    #[serde(skip)]
    label: String,
    /// Samples of any event.
    samples: u64,
    /// Time on CPU, estimated from samples.
    cpu_ns: u64,
    /// Page faults, likewise.
    page_faults: u64,
    /// Context switches, likewise.
    context_switches: u64,
    /// Each CPU's run queue by itself, by the kernel's clock.
    throttled_ns: u64,
    /// Each task's waits for memory by themselves, of the cause that has most (they overlap).
    stalled_ns: u64,
    /// The same for each cause.
    waits: BTreeMap<&'static str, Waited>,
    /// How often things happened.
    marks: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Waited {
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Function {
    name: String,
    kernel: bool,
    /// Time in it, not in what it calls.
    self_ns: u64,
    /// The cgroup that spends most of that.
    mostly: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NotAvailable {
    event: &'static str,
    in_part: bool,
    reason: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WithoutNames {
    reason: String,
    files: u64,
    /// The path of one, as its process sees it.
    example: String,
}

/// A file that was written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Written {
    /// Its name.
    pub(super) path: PathBuf,
    /// Its size.
    pub(super) bytes: u64,
    /// Samples, spans and marks that found no room in it.
    pub(super) not_written: u64,
}

/// What every file says of itself, by name.
pub(super) fn metadata(recording: &Recording) -> serde_json::Value {
    let losses: BTreeMap<_, _> = recording.losses.all().into_iter().collect();
    let mut metadata = serde_json::json!({
        "plimsoll": env!("CARGO_PKG_VERSION"),
        "selection": recording.selection,
        "frequency": recording.frequency,
        "durationNs": recording.end_ns.saturating_sub(recording.clocks.monotonic_ns),
        "startMonotonicNs": recording.clocks.monotonic_ns,
        "startRealtimeNs": recording.clocks.realtime_ns,
    });
    for (name, count) in losses {
        metadata[name] = serde_json::json!(count);
    }
    for (why, nameless) in &recording.symbols.nameless {
        metadata[format!("files without names: {why}")] = serde_json::json!(nameless.files);
    }
    for refused in &recording.refused {
        metadata[format!("not available: {}", refused.event)] = serde_json::json!(refused.reason);
    }
    metadata
}

impl GroupSummary {
    fn of(recording: &Recording, index: GroupIndex) -> Self {
        let group = &recording.groups.all()[index as usize];
        let sum = |event| {
            let sum = recording.sums.get(&(index, event));
            sum.copied().unwrap_or_default()
        };
        let waits_of = |kind: SpanKind| {
            let waits = recording.waits.get(&(index, kind))?;
            let waited = Waited {
                count: waits.count,
                sum_ns: waits.sum_ns,
                max_ns: waits.max_ns,
            };
            Some((kind.name(), waited))
        };
        let waits: BTreeMap<_, _> = SpanKind::ALL.into_iter().filter_map(waits_of).collect();
        let throttled = SpanKind::Throttled.name();
        let stalls = waits.iter().filter(|(name, _)| **name != throttled);
        let mut marks: BTreeMap<&'static str, u64> = BTreeMap::new();
        for mark in recording.marks.iter().filter(|mark| mark.group == index) {
            *marks.entry(mark.kind.name()).or_default() += mark.count;
        }
        Self {
            cgroup: group.path.clone(),
            pod: group.pod.clone(),
            container: group.container.clone(),
            label: group.label(),
            samples: SampleEvent::ALL
                .into_iter()
                .map(|event| sum(event).samples)
                .sum(),
            cpu_ns: sum(SampleEvent::CpuClock).weight,
            page_faults: sum(SampleEvent::PageFaults).weight,
            context_switches: sum(SampleEvent::ContextSwitches).weight,
            throttled_ns: waits.get(throttled).map_or(0, |waited| waited.sum_ns),
            stalled_ns: stalls.map(|(_, waited)| waited.sum_ns).max().unwrap_or(0),
            waits,
            marks,
        }
    }
}

impl Summary {
    pub(super) fn of(recording: &Recording, files: Vec<Written>) -> Self {
        let mut seen: BTreeSet<GroupIndex> = BTreeSet::new();
        seen.extend(recording.sums.keys().map(|(group, _)| *group));
        seen.extend(recording.waits.keys().map(|(group, _)| *group));
        seen.extend(recording.marks.iter().map(|mark| mark.group));
        let of_group = |group| GroupSummary::of(recording, group);
        let mut groups: Vec<GroupSummary> = seen.into_iter().map(of_group).collect();
        groups.sort_by(|left, right| {
            (
                right.cpu_ns,
                right.stalled_ns,
                right.throttled_ns,
                &left.cgroup,
            )
                .cmp(&(
                    left.cpu_ns,
                    left.stalled_ns,
                    left.throttled_ns,
                    &right.cgroup,
                ))
        });
        Self {
            version: env!("CARGO_PKG_VERSION"),
            selection: recording.selection.clone(),
            duration_ns: recording
                .end_ns
                .saturating_sub(recording.clocks.monotonic_ns),
            frequency: recording.frequency,
            samples: recording.sums.values().map(|sum| sum.samples).sum(),
            groups,
            hottest: hottest(recording),
            losses: recording.losses.all().into_iter().collect(),
            not_available: recording
                .refused
                .iter()
                .map(|refused| NotAvailable {
                    event: refused.event,
                    in_part: refused.in_part,
                    reason: refused.reason.clone(),
                })
                .collect(),
            without_names: recording
                .symbols
                .nameless
                .iter()
                .map(|(why, nameless)| WithoutNames {
                    reason: why.to_string(),
                    files: nameless.files,
                    example: nameless.example.clone(),
                })
                .collect(),
            files,
        }
    }

    /// Lines and tables.
    pub(super) fn text(&self, style: Style) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        writeln!(
            text,
            "{} for {:.1} s at {} Hz: {} samples\n",
            self.selection,
            seconds(self.duration_ns),
            self.frequency,
            self.samples
        )
        .ok();
        self.write_groups(&mut text, style);
        self.write_hottest(&mut text, style);
        text.push('\n');
        for missing in &self.not_available {
            let part = if missing.in_part { "in part " } else { "" };
            writeln!(
                text,
                "{}{}: {part}not available here: {}",
                style.yellow("note: "),
                missing.event,
                missing.reason
            )
            .ok();
        }
        for missing in &self.without_names {
            writeln!(
                text,
                "{}functions without names in {} file{}: {} ({})",
                style.yellow("note: "),
                missing.files,
                if missing.files == 1 { "" } else { "s" },
                missing.reason,
                missing.example.shown()
            )
            .ok();
        }
        let lost: Vec<_> = self
            .losses
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        if lost.is_empty() {
            text += "lost: nothing\n";
        } else {
            writeln!(text, "{} {}", style.yellow("lost:"), lost.join(", ")).ok();
        }
        self.write_files(&mut text);
        text
    }

    fn write_groups(&self, text: &mut String, style: Style) {
        let mut table = Table::new(
            &[
                "CPU",
                "CPU S",
                "FAULTS",
                "SWITCHES",
                "THROTTLED",
                "STALLED",
                "OOM",
                "CGROUP",
            ],
            &[0, 1, 2, 3, 4, 5, 6],
        );
        for group in self.groups.iter().take(GROUPS_SHOWN) {
            let kills = group.marks.get(MarkKind::OomKill.name()).copied();
            table.row(
                Tone::Plain,
                vec![
                    percent(group.cpu_ns, self.duration_ns),
                    format!("{:.2}", seconds(group.cpu_ns)),
                    some(group.page_faults),
                    some(group.context_switches),
                    duration(group.throttled_ns),
                    duration(group.stalled_ns),
                    some(kills.unwrap_or(0)),
                    group.label.clone(),
                ],
            );
        }
        *text += &table.render(style);
        if self.groups.len() > GROUPS_SHOWN {
            let more = self.groups.len() - GROUPS_SHOWN;
            writeln!(text, "and {more} more (--output json has all)").ok();
        }
    }

    fn write_hottest(&self, text: &mut String, style: Style) {
        if !self.hottest.is_empty() {
            let all: u64 = self.groups.iter().map(|group| group.cpu_ns).sum();
            let mut table = Table::new(&["SELF", "FUNCTION", "MOSTLY"], &[0]);
            for function in &self.hottest {
                let kind = if function.kernel { " [k]" } else { "" };
                table.row(
                    Tone::Plain,
                    vec![
                        percent(function.self_ns, all),
                        format!("{}{kind}", shortened(&function.name)),
                        function.mostly.clone(),
                    ],
                );
            }
            write!(text, "\n{}", table.render(style)).ok();
        }
    }

    fn write_files(&self, text: &mut String) {
        for file in &self.files {
            write!(
                text,
                "wrote {} ({})",
                file.path.shown(),
                bytes(i128::from(file.bytes))
            )
            .ok();
            if file.not_written > 0 {
                write!(
                    text,
                    ", without {} that found no room in it",
                    file.not_written
                )
                .ok();
            }
            text.push('\n');
        }
    }
}

/// The innermost functions of samples on CPU.
fn hottest(recording: &Recording) -> Vec<Function> {
    let mut functions: BTreeMap<(&str, bool), BTreeMap<GroupIndex, u64>> = BTreeMap::new();
    for sample in recording
        .samples
        .iter()
        .filter(|sample| sample.event == SampleEvent::CpuClock && sample.stack != NO_STACK)
    {
        let frame = recording.stacks.nodes()[sample.stack as usize].frame;
        let name = recording.symbols.of(frame);
        *functions
            .entry((&name.folded, name.is_kernel))
            .or_default()
            .entry(sample.group)
            .or_default() += sample.weight;
    }
    let mut functions: Vec<Function> = functions
        .into_iter()
        .map(|((name, kernel), groups)| Function {
            name: name.to_owned(),
            kernel,
            self_ns: groups.values().sum(),
            mostly: groups
                .iter()
                .max_by_key(|(group, weight)| (**weight, std::cmp::Reverse(**group)))
                .map(|(group, _)| recording.groups.all()[*group as usize].label())
                .unwrap_or_default(),
        })
        .collect();
    functions.sort_by(|left, right| (right.self_ns, &left.name).cmp(&(left.self_ns, &right.name)));
    functions.truncate(HOTTEST);
    functions
}

/// Its end, which says most.
fn shortened(name: &str) -> String {
    let length = name.chars().count();
    if length <= NAME_SHOWN {
        return name.to_owned();
    }
    let end: String = name.chars().skip(length - NAME_SHOWN + 1).collect();
    format!("…{end}")
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Of a whole that may be less than the part: several CPUs.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
}

fn some(count: u64) -> String {
    if count == 0 {
        "-".to_owned()
    } else {
        count.to_string()
    }
}

fn duration(ns: u64) -> String {
    match ns {
        0 => "-".to_owned(),
        1..1_000_000 => format!("{} µs", ns.div_ceil(1000)),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{:.2} s", seconds(ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short_and_nothing_is_a_dash() {
        assert_eq!([0, 1, 999_999].map(duration), ["-", "1 µs", "1000 µs"]);
        assert_eq!(duration(1_500_000_000), "1.50 s");
        assert_eq!(percent(3, 2), "150.0 %");
        assert_eq!((percent(1, 0), some(0)), ("-".into(), "-".into()));
        assert_eq!(shortened("short"), "short");
        let long = shortened(&format!("{}::end", "ü".repeat(100)));
        assert_eq!(long.chars().count(), NAME_SHOWN);
        assert!(long.starts_with('…') && long.ends_with("::end"));
    }
}
