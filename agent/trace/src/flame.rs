//! A flame graph: pods or cgroups at the bottom, then processes, then their stacks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use inferno::flamegraph::color::MultiPalette;
use inferno::flamegraph::{Options, Palette, from_lines};
use plimsoll_abi::sampling::SampleEvent;

use super::file::Bounded;
use super::recording::Recording;

/// Frames narrower than this share of the width, percent, are left out; if the file would be too large, the next is
/// tried.
const MIN_WIDTHS: [f64; 3] = [0.01, 0.1, 1.0];

/// Text of all stacks, bytes. A stack of the longest names that are possible takes 130 KB, and containers can make
/// many.
const LINES_BYTES_MAX: usize = 64 << 20;

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

/// Lines, and samples that found no room in them.
#[derive(Default)]
struct Folded {
    lines: Vec<String>,
    not_drawn: u64,
}

/// `pod;process;outermost;…;innermost weight`, the weight in microseconds or occurrences. The heaviest stacks come
/// first where there is no room for all.
fn folded(recording: &Recording, event: SampleEvent, bytes_max: usize) -> Folded {
    let mut weights: BTreeMap<(u32, u32, u32), (u64, u64)> = BTreeMap::new();
    for sample in recording
        .samples
        .iter()
        .filter(|sample| sample.event == event)
    {
        let (weight, samples) = weights
            .entry((sample.group, sample.thread, sample.stack))
            .or_default();
        *weight += sample.weight;
        *samples += 1;
    }
    let mut weights: Vec<_> = weights.into_iter().collect();
    weights.sort_by_key(|(_, (weight, _))| Reverse(*weight));
    // By text: many stacks look alike once their addresses are names.
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let (mut left, mut not_drawn) = (bytes_max, 0);
    for ((group, thread, stack), (weight, samples)) in weights {
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
        if let Some(known) = lines.get_mut(&line) {
            *known += weight;
        } else if let Some(rest) = left.checked_sub(line.len()) {
            left = rest;
            lines.insert(line, weight);
        } else {
            not_drawn += samples;
        }
    }
    let unit = if event == SampleEvent::CpuClock {
        1000
    } else {
        1
    };
    Folded {
        lines: lines
            .into_iter()
            .map(|(line, weight)| format!("{line} {}", weight / unit))
            .collect(),
        not_drawn,
    }
}

/// A semicolon separates frames, and some characters, which containers can have in their names, make a file that is no
/// SVG.
fn clean(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            ';' => ':',
            '\u{fffe}' | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
            other if other.is_control() => char::REPLACEMENT_CHARACTER,
            other => other,
        })
        .collect()
}

/// Writes the flame graph. Without samples it says so in the picture. Returns how many samples found no room.
pub(super) fn write<W: Write>(recording: &Recording, out: &mut Bounded<W>) -> io::Result<u64> {
    let shown = event(recording);
    let Folded { lines, not_drawn } = shown
        .map(|event| folded(recording, event, LINES_BYTES_MAX))
        .unwrap_or_default();
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
            out.write_all(&svg)?;
            return Ok(not_drawn);
        }
    }
    Ok(not_drawn)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_makes_a_file_that_is_no_svg() {
        assert_eq!(clean("a;b\n\u{1}\u{ffff}ü"), "a:b\u{fffd}\u{fffd}\u{fffd}ü");
    }
}
