//! Chrome's trace event format, which `chrome://tracing`, Perfetto's and speedscope's viewers open.
//!
//! Spans and marks are events of a made-up process for each cgroup, with a track for each kind. Samples are in it twice, because the
//! viewers differ: in `samples` with `stackFrames`, of which some draw stacks, and as moments on the track of their thread, named after the
//! innermost function, which all of them show.
//!
//! The format is one document, so everything has its share of the file: stacks a quarter, samples as much, and then spans and marks, the
//! fewest and most telling, before the samples' moments. What finds no room is counted in the document itself.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::file::Bounded;
use super::recording::{Kept, Recording};
use super::stacks::NO_STACK;

/// Process ids from here on are cgroups: no kernel gives a process one above 4,194,304.
const GROUP_PID: u64 = 1 << 30;
/// The track of marks; those of spans follow.
const MARKS_TID: u64 = 1;
/// Kept for the end of the document.
const END_BYTES: u64 = 64 << 10;
/// Frames that are written out with a moment.
const FRAMES_SHOWN: usize = 8;

/// Writes the trace, and returns how many things found no room.
pub(super) fn write<W: Write>(
    recording: &Recording,
    max: u64,
    metadata: &Value,
    out: &mut Bounded<W>,
) -> io::Result<u64> {
    let quarter = max / 4;
    let mut left_out = 0;
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\n\"stackFrames\":{")?;
    let written = write_frames(recording, 3 * quarter, out)?;
    out.write_all(b"},\n\"samples\":[")?;
    let mut list = List::new(2 * quarter);
    for sample in &recording.samples {
        let frame = (sample.stack < written && sample.stack != NO_STACK).then_some(sample.stack);
        let mut event = json!({
            "name": sample.event.name(), "ts": micros(recording, sample.ts_ns), "cpu": sample.cpu,
            "pid": recording.threads[sample.thread as usize].tgid,
            "tid": recording.threads[sample.thread as usize].tid, "weight": sample.weight,
        });
        if let Some(frame) = frame {
            event["sf"] = json!(frame);
        }
        left_out += list.push(&event, out)?;
    }
    out.write_all(b"],\n\"traceEvents\":[")?;
    let mut list = List::new(END_BYTES.min(quarter));
    for event in names(recording).into_iter().chain(lasting(recording)) {
        left_out += list.push(&event, out)?;
    }
    for sample in &recording.samples {
        left_out += list.push(&moment(recording, sample), out)?;
    }
    let mut metadata = metadata.clone();
    metadata["notWritten"] = json!(left_out);
    write!(out, "],\n\"otherData\":{metadata}}}\n")?;
    Ok(left_out)
}

/// Elements of an array, as long as there is room.
struct List {
    is_first: bool,
    /// Left free after them.
    kept: u64,
}

impl List {
    fn new(kept: u64) -> Self {
        Self {
            is_first: true,
            kept,
        }
    }

    /// 1 if it found no room.
    fn push<W: Write>(&mut self, event: &Value, out: &mut Bounded<W>) -> io::Result<u64> {
        let text = format!("{}{event}", if self.is_first { "\n" } else { ",\n" });
        if !out.has_room(text.len(), self.kept) {
            return Ok(1);
        }
        self.is_first = false;
        out.write_all(text.as_bytes())?;
        Ok(0)
    }
}

/// Writes the tree of stacks up to the first node without room, which is returned: every node comes after its parent.
fn write_frames<W: Write>(
    recording: &Recording,
    kept: u64,
    out: &mut Bounded<W>,
) -> io::Result<u32> {
    let nodes = recording.stacks.nodes();
    for (index, node) in (0_u32..).zip(nodes).skip(1) {
        let name = recording.symbols.of(node.frame);
        let category = if name.is_kernel { "kernel" } else { "user" };
        let mut frame = json!({"name": name.text, "category": category});
        if node.parent != NO_STACK {
            frame["parent"] = json!(node.parent.to_string());
        }
        let text = format!(
            "{}\"{index}\":{frame}",
            if index == 1 { "\n" } else { ",\n" }
        );
        if !out.has_room(text.len(), kept) {
            return Ok(index);
        }
        out.write_all(text.as_bytes())?;
    }
    Ok(u32::try_from(nodes.len()).unwrap_or(u32::MAX))
}

/// Microseconds since the session began, to the nanosecond.
fn micros(recording: &Recording, ts_ns: u64) -> f64 {
    let since_ns = ts_ns as i64 - recording.clocks.monotonic_ns as i64;
    // Below 2^53 for the hundred days that a session does not last.
    since_ns as f64 / 1000.0
}

/// What processes, threads and cgroups are called.
fn names(recording: &Recording) -> Vec<Value> {
    let name = |pid: u64, tid: u64, what: &str, name: String| json!({"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}});
    let mut events = Vec::new();
    let mut processes = BTreeSet::new();
    for thread in &recording.threads {
        let group = &recording.groups.all()[thread.group as usize];
        let (pid, tid) = (u64::from(thread.tgid), u64::from(thread.tid));
        if processes.insert(thread.tgid) {
            let label = format!("{} ({})", thread.comm, group.label());
            events.push(name(pid, tid, "process_name", label));
        }
        events.push(name(pid, tid, "thread_name", thread.comm.clone()));
    }
    let mut tracks = BTreeSet::new();
    for span in &recording.spans {
        tracks.insert((span.group, span_tid(span.kind), span.kind.name()));
    }
    for mark in &recording.marks {
        tracks.insert((mark.group, MARKS_TID, "events"));
    }
    for (group, tid, track) in tracks {
        let pid = GROUP_PID + u64::from(group);
        let label = recording.groups.all()[group as usize].label();
        events.push(name(pid, tid, "process_name", label));
        events.push(name(pid, tid, "thread_name", track.to_owned()));
        events.push(
            json!({"ph": "M", "pid": pid, "tid": tid, "name": "process_sort_index", "args": {"sort_index": -1}}),
        );
    }
    events
}

fn span_tid(kind: super::spans::SpanKind) -> u64 {
    MARKS_TID + 1 + kind as u64
}

/// Spans and marks.
fn lasting(recording: &Recording) -> impl Iterator<Item = Value> {
    let spans = recording.spans.iter().map(|span| {
        json!({
            "ph": "X", "cat": "plimsoll", "name": span.kind.name(), "pid": GROUP_PID + u64::from(span.group),
            "tid": span_tid(span.kind), "ts": micros(recording, span.start_ns),
            "dur": (span.end_ns - span.start_ns) as f64 / 1000.0,
            "args": {"waits": span.count, "time in all (ns)": span.sum_ns},
        })
    });
    let marks = recording.marks.iter().map(|mark| {
        let mut event = json!({
            "ph": "i", "s": "p", "cat": "plimsoll", "name": mark.kind.name(), "pid": GROUP_PID + u64::from(mark.group),
            "tid": MARKS_TID, "ts": micros(recording, mark.ts_ns), "args": {"count": mark.count},
        });
        if let Some(detail) = &mark.detail {
            event["args"]["detail"] = json!(detail);
        }
        event
    });
    spans.chain(marks)
}

/// A sample as a moment on its thread's track.
fn moment(recording: &Recording, sample: &Kept) -> Value {
    let thread = &recording.threads[sample.thread as usize];
    let path = recording.stacks.path(sample.stack);
    let stack: Vec<_> = path
        .iter()
        .rev()
        .take(FRAMES_SHOWN)
        .map(|node| {
            let frame = recording.stacks.nodes()[*node as usize].frame;
            recording.symbols.of(frame).text.as_str()
        })
        .collect();
    let more = if path.len() > FRAMES_SHOWN {
        " < …"
    } else {
        ""
    };
    json!({
        "ph": "i", "s": "t", "cat": sample.event.name(), "name": stack.first().unwrap_or(&"[no stack]"),
        "pid": thread.tgid, "tid": thread.tid, "ts": micros(recording, sample.ts_ns),
        "args": {
            "event": sample.event.name(), "cpu": sample.cpu, "weight": sample.weight,
            "stack": format!("{}{more}", stack.join(" < ")),
        },
    })
}
