//! A flame graph: pods or cgroups at the bottom, then processes, then their stacks.

use std::collections::BTreeMap;
use std::io::{self, Write};

use inferno::flamegraph::color::MultiPalette;
use inferno::flamegraph::{Options, Palette, from_lines};
use plimsoll_abi::sampling::SampleEvent;

use super::file::Bounded;
use super::recording::Recording;

/// Frames narrower than this share of the width, percent, are left out; if the file would be too large, the next is tried.
const MIN_WIDTHS: [f64; 3] = [0.01, 0.1, 1.0];

/// The event that a flame graph shows: time on CPU, else the first that was sampled.
fn event(recording: &Recording) -> Option<SampleEvent> {
    let events = &recording.events;
    let cpu = SampleEvent::CpuClock;
    if events.contains(&cpu) {
        Some(cpu)
    } else {
        events.first().copied()
    }
}

/// `pod;process;outermost;…;innermost weight`, the weight in microseconds or occurrences.
fn folded(recording: &Recording, event: SampleEvent) -> Vec<String> {
    let mut weights: BTreeMap<(u32, u32, u32), u64> = BTreeMap::new();
    for sample in recording
        .samples
        .iter()
        .filter(|sample| sample.event == event)
    {
        *weights
            .entry((sample.group, sample.thread, sample.stack))
            .or_default() += sample.weight;
    }
    // By text: many stacks look alike once their addresses are names.
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    // A semicolon separates frames.
    let clean = |text: &str| text.replace(';', ":");
    for ((group, thread, stack), weight) in weights {
        let thread = &recording.threads[thread as usize];
        let group = &recording.groups.all()[group as usize];
        let mut line = format!("{};{}", clean(&group.label()), clean(&thread.comm));
        for node in recording.stacks.path(stack) {
            let frame = recording.stacks.nodes()[node as usize].frame;
            let name = recording.symbols.of(frame);
            line.push(';');
            line += &clean(&name.folded);
            if name.is_kernel {
                line += "_[k]";
            }
        }
        *lines.entry(line).or_default() += weight;
    }
    let unit = if event == SampleEvent::CpuClock {
        1000
    } else {
        1
    };
    lines
        .into_iter()
        .map(|(line, weight)| format!("{line} {}", weight / unit))
        .collect()
}

/// Writes the flame graph. Without samples it says so in the picture.
pub(super) fn write<W: Write>(recording: &Recording, out: &mut Bounded<W>) -> io::Result<()> {
    let shown = event(recording);
    let lines = shown.map_or_else(Vec::new, |event| folded(recording, event));
    for (last, min_width) in MIN_WIDTHS
        .into_iter()
        .enumerate()
        .map(|(place, width)| (place + 1 == MIN_WIDTHS.len(), width))
    {
        let mut options = Options::default();
        options.title = format!(
            "{} of {}",
            shown.map_or("nothing", SampleEvent::name),
            recording.selection
        );
        options.subtitle = Some(losses(recording));
        options.count_name = match shown {
            Some(SampleEvent::CpuClock) => "µs".to_owned(),
            _ => "times".to_owned(),
        };
        options.min_width = min_width;
        // By what kind of function it is: the kernel's are orange, those with `::` in their names yellow, others red.
        options.colors = Palette::Multi(MultiPalette::Java);
        options.no_sort = true;
        options.deterministic = true;
        let mut svg = Vec::new();
        if lines.is_empty() {
            options.subtitle = Some("no sample was taken".to_owned());
        }
        let drawn = from_lines(&mut options, lines.iter().map(String::as_str), &mut svg);
        // Without input inferno writes a picture that says so, and returns an error.
        if let Err(error) = drawn
            && !lines.is_empty()
        {
            return Err(error);
        }
        if last || out.has_room(svg.len(), 0) {
            return out.write_all(&svg);
        }
    }
    Ok(())
}

fn losses(recording: &Recording) -> String {
    let lost: Vec<_> = recording
        .losses
        .all()
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if lost.is_empty() {
        "nothing was lost".to_owned()
    } else {
        format!("lost: {}", lost.join(", "))
    }
}
