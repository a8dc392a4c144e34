//! Perfetto's trace format.
//!
//! A trace is a list of packets. Spans and marks are track events, a track for each cgroup and kind; samples are
//! `PerfSample`s, whose stacks the viewer draws as flame graphs for any part of the time line. Each event that is
//! sampled has a packet sequence of its own, because what it counts is a default of the sequence. Strings, frames and
//! stacks are sent once, with the first sample that needs them.
//!
//! Only the few messages and fields that are written are declared here ([`message`]), with the numbers of Perfetto's
//! `protos/perfetto/trace`. Its time line is `CLOCK_BOOTTIME`; ours is `CLOCK_MONOTONIC`, and a snapshot of both tells
//! the viewer how they differ.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, Write};

use plimsoll_abi::sampling::SampleEvent;
use prost::Message as _;
use serde_json::Value;

use self::message::{
    Callstack, Clock, ClockSnapshot, DebugAnnotation, Defaults, Frame, InternedData,
    InternedString, Mapping, Packet, PerfDefaults, PerfSample, Process, Thread, Timebase,
    TrackDescriptor, TrackEvent,
};
use super::file::Bounded;
use super::recording::Recording;
use super::spans::SpanKind;
use super::stacks::{Frame as StackFrame, NO_STACK};

// `BuiltinClock` of clock_snapshot.proto.
const REALTIME: u32 = 1;
const MONOTONIC: u32 = 3;
const BOOTTIME: u32 = 6;

// `SequenceFlags` of trace_packet.proto.
const CLEARED: u32 = 1;
const NEEDS: u32 = 2;

// `Type` of track_event.proto.
const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;

// `CpuMode` of profile_packet.proto.
const KERNEL: i32 = 1;
const USER: i32 = 2;

/// The sequence of track events; those of samples follow.
const EVENTS_SEQUENCE: u32 = 1;
/// Kept for what is said at the end.
const END_BYTES: u64 = 64 << 10;
/// The track of the session itself.
const SESSION_TRACK: u64 = 1;
/// Tracks of threads and cgroups have their ids from here on.
const THREAD_TRACKS: u64 = 1 << 32;
const GROUP_TRACKS: u64 = 2 << 32;
/// Tracks that one cgroup has room for: its own, that of marks, and those of spans.
const TRACKS_OF_A_GROUP: u64 = 16;
const _: () = assert!(SpanKind::ALL.len() + 2 <= TRACKS_OF_A_GROUP as usize);

/// Mappings that are no file.
const KERNEL_MAPPING: u64 = 1;
const UNKNOWN_MAPPING: u64 = 2;
/// Those of modules follow.
const FIRST_MODULE: u64 = 3;

/// Writes the trace, and returns how many things found no room.
pub(super) fn write<W: Write>(
    recording: &Recording,
    metadata: &Value,
    out: &mut Bounded<W>,
) -> io::Result<u64> {
    let mut packets = Packets { out, left_out: 0 };
    packets.push(Packet {
        clock_snapshot: Some(snapshot(recording)),
        sequence: Some(EVENTS_SEQUENCE),
        flags: Some(CLEARED),
        ..Packet::default()
    })?;
    for descriptor in tracks(recording) {
        packets.push(Packet {
            track_descriptor: Some(descriptor),
            sequence: Some(EVENTS_SEQUENCE),
            ..Packet::default()
        })?;
    }
    // Fewer than samples, and more telling: first, so that they have room.
    for span in &recording.spans {
        let track = track_of(span.group, 1 + span.kind as u64);
        let mut begin = event(span.start_ns, SLICE_BEGIN, track, span.kind.name());
        if let Some(event) = &mut begin.track_event {
            event.annotations = vec![
                DebugAnnotation::number("waits", span.count),
                DebugAnnotation::number("time in all (ns)", span.sum_ns),
            ];
        }
        packets.push_both(begin, event(span.end_ns, SLICE_END, track, ""))?;
    }
    for mark in &recording.marks {
        let mut packet = event(
            mark.ts_ns,
            INSTANT,
            track_of(mark.group, 0),
            mark.kind.name(),
        );
        if let Some(event) = &mut packet.track_event {
            event
                .annotations
                .push(DebugAnnotation::number("count", mark.count));
            if let Some(detail) = &mark.detail {
                event
                    .annotations
                    .push(DebugAnnotation::words("detail", detail.clone()));
            }
        }
        packets.push(packet)?;
    }
    for sampled in &recording.events {
        write_samples(recording, *sampled, &mut packets)?;
    }
    let left_out = packets.left_out;
    let mut packet = event(
        recording.end_ns,
        INSTANT,
        SESSION_TRACK,
        "what this trace is, and what it lost",
    );
    if let Some(event) = &mut packet.track_event {
        event.annotations = annotations(metadata);
        event
            .annotations
            .push(DebugAnnotation::number("notWritten", left_out));
    }
    let bytes = encode(&packet);
    packets.out.write_all(&bytes)?;
    Ok(left_out)
}

/// Packets, as long as there is room.
struct Packets<'out, W> {
    out: &'out mut Bounded<W>,
    left_out: u64,
}

impl<W: Write> Packets<'_, W> {
    fn push(&mut self, packet: Packet) -> io::Result<bool> {
        self.push_bytes(&encode(&packet))
    }

    /// Both or neither.
    fn push_both(&mut self, first: Packet, second: Packet) -> io::Result<bool> {
        let mut bytes = encode(&first);
        bytes.extend(encode(&second));
        self.push_bytes(&bytes)
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if !self.out.has_room(bytes.len(), END_BYTES) {
            self.left_out += 1;
            return Ok(false);
        }
        self.out.write_all(bytes)?;
        Ok(true)
    }
}

/// A packet as an element of the list that a trace is.
fn encode(packet: &Packet) -> Vec<u8> {
    message::Trace {
        packet: vec![packet.clone()],
    }
    .encode_to_vec()
}

fn snapshot(recording: &Recording) -> ClockSnapshot {
    let clocks = recording.clocks;
    let clock = |id, ns| Clock {
        id: Some(id),
        timestamp: Some(ns),
    };
    ClockSnapshot {
        clocks: vec![
            clock(BOOTTIME, clocks.boottime_ns),
            clock(MONOTONIC, clocks.monotonic_ns),
            clock(REALTIME, clocks.realtime_ns),
        ],
    }
}

/// The id of a cgroup's track: 0 for marks, then those of spans; the cgroup's own comes before.
fn track_of(group: u32, kind: u64) -> u64 {
    GROUP_TRACKS + u64::from(group) * TRACKS_OF_A_GROUP + 1 + kind
}

fn tracks(recording: &Recording) -> Vec<TrackDescriptor> {
    let mut tracks = vec![TrackDescriptor {
        uuid: Some(SESSION_TRACK),
        name: Some("plimsoll trace".to_owned()),
        ..TrackDescriptor::default()
    }];
    let mut wanted = BTreeSet::new();
    for span in &recording.spans {
        wanted.insert((span.group, 1 + span.kind as u64, span.kind.name()));
    }
    for mark in &recording.marks {
        wanted.insert((mark.group, 0, "events"));
    }
    let groups: BTreeSet<u32> = wanted.iter().map(|(group, ..)| *group).collect();
    for group in groups {
        tracks.push(TrackDescriptor {
            uuid: Some(track_of(group, 0) - 1),
            name: Some(recording.groups.all()[group as usize].label()),
            ..TrackDescriptor::default()
        });
    }
    for (group, kind, name) in wanted {
        tracks.push(TrackDescriptor {
            uuid: Some(track_of(group, kind)),
            parent_uuid: Some(track_of(group, 0) - 1),
            name: Some(name.to_owned()),
            ..TrackDescriptor::default()
        });
    }
    let mut next = THREAD_TRACKS;
    let mut uuid = || {
        next += 1;
        Some(next)
    };
    // The first thread of a process names it.
    let mut processes: BTreeMap<u32, &super::recording::Thread> = BTreeMap::new();
    for thread in &recording.threads {
        let known = processes.entry(thread.tgid).or_insert(thread);
        if thread.tid == thread.tgid {
            *known = thread;
        }
    }
    for (tgid, thread) in processes {
        let group = recording.groups.all()[thread.group as usize].label();
        tracks.push(TrackDescriptor {
            uuid: uuid(),
            process: Some(Process {
                pid: Some(tgid as i32),
                name: Some(format!("{} ({group})", thread.comm)),
            }),
            ..TrackDescriptor::default()
        });
    }
    for thread in &recording.threads {
        tracks.push(TrackDescriptor {
            uuid: uuid(),
            thread: Some(Thread {
                pid: Some(thread.tgid as i32),
                tid: Some(i64::from(thread.tid)),
                name: Some(thread.comm.clone()),
            }),
            ..TrackDescriptor::default()
        });
    }
    tracks
}

fn event(ts_ns: u64, kind: i32, track: u64, name: &str) -> Packet {
    Packet {
        timestamp: Some(ts_ns),
        clock: Some(MONOTONIC),
        sequence: Some(EVENTS_SEQUENCE),
        track_event: Some(TrackEvent {
            kind: Some(kind),
            track: Some(track),
            name: (!name.is_empty()).then(|| name.to_owned()),
            categories: vec!["plimsoll".to_owned()],
            ..TrackEvent::default()
        }),
        ..Packet::default()
    }
}

fn annotations(metadata: &Value) -> Vec<DebugAnnotation> {
    let Some(fields) = metadata.as_object() else {
        return Vec::new();
    };
    fields
        .iter()
        .map(|(name, value)| match value.as_u64() {
            Some(number) => DebugAnnotation::number(name, number),
            None => DebugAnnotation::words(
                name,
                value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned),
            ),
        })
        .collect()
}

/// `Counter` of perf_events.proto.
fn counter(event: SampleEvent) -> i32 {
    match event {
        SampleEvent::CpuClock => 1,
        SampleEvent::PageFaults => 2,
        SampleEvent::ContextSwitches => 4,
    }
}

fn write_samples<W: Write>(
    recording: &Recording,
    sampled: SampleEvent,
    packets: &mut Packets<'_, W>,
) -> io::Result<()> {
    let sequence = EVENTS_SEQUENCE + 1 + u32::from(sampled.number());
    packets.push(Packet {
        sequence: Some(sequence),
        flags: Some(CLEARED),
        defaults: Some(Defaults {
            clock: Some(MONOTONIC),
            perf: Some(PerfDefaults {
                timebase: Some(Timebase {
                    frequency: Some(u64::from(recording.frequency)),
                    counter: Some(counter(sampled)),
                    name: Some(sampled.name().to_owned()),
                }),
            }),
        }),
        ..Packet::default()
    })?;
    let mut interned = Interned::default();
    // The counter is the CPU's, and grows.
    let mut counted: BTreeMap<u32, u64> = BTreeMap::new();
    for sample in recording
        .samples
        .iter()
        .filter(|sample| sample.event == sampled)
    {
        let thread = &recording.threads[sample.thread as usize];
        let count = counted.entry(sample.cpu).or_default();
        *count += sample.weight;
        let (data, keys) = interned.stack(recording, sample.stack);
        let innermost = recording.stacks.nodes()[sample.stack as usize].frame;
        let is_kernel = sample.stack != NO_STACK && recording.symbols.of(innermost).is_kernel;
        let written = packets.push(Packet {
            timestamp: Some(sample.ts_ns),
            sequence: Some(sequence),
            flags: Some(NEEDS),
            interned_data: data,
            perf_sample: Some(PerfSample {
                cpu: Some(sample.cpu),
                pid: Some(thread.tgid),
                tid: Some(thread.tid),
                callstack: (sample.stack != NO_STACK).then_some(u64::from(sample.stack)),
                mode: Some(if is_kernel { KERNEL } else { USER }),
                count: Some(*count),
                lost: None,
            }),
            ..Packet::default()
        })?;
        if written {
            interned.sent(keys);
        }
    }
    let lost = recording.losses.samples_dropped.get(&sampled);
    if let Some(lost) = lost.copied().filter(|lost| *lost > 0) {
        packets.push(Packet {
            timestamp: Some(recording.end_ns),
            sequence: Some(sequence),
            flags: Some(NEEDS),
            perf_sample: Some(PerfSample {
                // Of all CPUs: the ring is one.
                cpu: Some(0),
                lost: Some(lost),
                ..PerfSample::default()
            }),
            ..Packet::default()
        })?;
    }
    Ok(())
}

/// Ids of names that only one frame has; those that are shared are numbered from 1, and are fewer.
const FIRST_NAMELESS: u64 = 1 << 32;

/// What a sequence has sent of strings, frames and stacks.
#[derive(Default)]
struct Interned {
    strings: HashMap<String, u64>,
    sent: HashSet<Key>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Function(u64),
    Path(u64),
    Mapping(u64),
    Frame(u64),
    Stack(u64),
}

impl Interned {
    /// What must be sent with a sample of this stack, and under which keys it is known then.
    fn stack(&mut self, recording: &Recording, stack: u32) -> (Option<InternedData>, Vec<Key>) {
        let mut keys = Vec::new();
        if stack == NO_STACK || self.sent.contains(&Key::Stack(u64::from(stack))) {
            return (None, keys);
        }
        let mut data = InternedData::default();
        let mut frames = Vec::new();
        for node in recording.stacks.path(stack) {
            let frame = recording.stacks.nodes()[node as usize].frame;
            let id = u64::from(frame) + 1;
            frames.push(id);
            if !self.is_new(Key::Frame(id), &mut keys) {
                continue;
            }
            let name = recording.symbols.of(frame);
            let text = name.text();
            let function = if name.is_shared() {
                self.string(&text)
            } else {
                // Each is another, and need not be kept to be found again.
                FIRST_NAMELESS + u64::from(frame)
            };
            if self.is_new(Key::Function(function), &mut keys) {
                data.functions.push(InternedString::new(function, &text));
            }
            let (mapping, path, pc) = match recording.stacks.frames()[frame as usize] {
                StackFrame::Kernel(address) => (KERNEL_MAPPING, "/kernel", address),
                StackFrame::File { module, offset } => (
                    FIRST_MODULE + u64::from(module),
                    recording.stacks.modules()[module as usize].path.as_str(),
                    offset,
                ),
                StackFrame::Area { module } => (
                    FIRST_MODULE + u64::from(module),
                    recording.stacks.modules()[module as usize].path.as_str(),
                    0,
                ),
                StackFrame::Unknown => (UNKNOWN_MAPPING, "[unknown]", 0),
            };
            if self.is_new(Key::Mapping(mapping), &mut keys) {
                let text = self.string(path);
                if self.is_new(Key::Path(text), &mut keys) {
                    data.paths.push(InternedString::new(text, path));
                }
                data.mappings.push(Mapping {
                    id: Some(mapping),
                    paths: vec![text],
                });
            }
            data.frames.push(Frame {
                id: Some(id),
                function: Some(function),
                mapping: Some(mapping),
                pc: Some(pc),
            });
        }
        keys.push(Key::Stack(u64::from(stack)));
        data.stacks.push(Callstack {
            id: Some(u64::from(stack)),
            frames,
        });
        (Some(data), keys)
    }

    fn is_new(&self, key: Key, keys: &mut Vec<Key>) -> bool {
        let is_new = !self.sent.contains(&key) && !keys.contains(&key);
        if is_new {
            keys.push(key);
        }
        is_new
    }

    fn string(&mut self, text: &str) -> u64 {
        let next = self.strings.len() as u64 + 1;
        *self.strings.entry(text.to_owned()).or_insert(next)
    }

    fn sent(&mut self, keys: Vec<Key>) {
        self.sent.extend(keys);
    }
}

/// Reads a trace, of which fields that are not declared here are left out.
///
/// # Errors
/// It is no trace.
pub fn read(bytes: &[u8]) -> Result<message::Trace, prost::DecodeError> {
    message::Trace::decode(bytes)
}

/// The messages, as far as they are written. Names are short, numbers are Perfetto's.
#[expect(
    missing_docs,
    reason = "Perfetto's protos/perfetto/trace documents them"
)]
pub mod message {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub struct Trace {
        #[prost(message, repeated, tag = "1")]
        pub packet: Vec<Packet>,
    }

    /// `TracePacket`.
    #[derive(Clone, PartialEq, Message)]
    pub struct Packet {
        #[prost(message, optional, tag = "6")]
        pub clock_snapshot: Option<ClockSnapshot>,
        #[prost(uint64, optional, tag = "8")]
        pub timestamp: Option<u64>,
        #[prost(uint32, optional, tag = "10")]
        pub sequence: Option<u32>,
        #[prost(message, optional, tag = "11")]
        pub track_event: Option<TrackEvent>,
        #[prost(message, optional, tag = "12")]
        pub interned_data: Option<InternedData>,
        #[prost(uint32, optional, tag = "13")]
        pub flags: Option<u32>,
        #[prost(uint32, optional, tag = "58")]
        pub clock: Option<u32>,
        #[prost(message, optional, tag = "59")]
        pub defaults: Option<Defaults>,
        #[prost(message, optional, tag = "60")]
        pub track_descriptor: Option<TrackDescriptor>,
        #[prost(message, optional, tag = "66")]
        pub perf_sample: Option<PerfSample>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ClockSnapshot {
        #[prost(message, repeated, tag = "1")]
        pub clocks: Vec<Clock>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Clock {
        #[prost(uint32, optional, tag = "1")]
        pub id: Option<u32>,
        #[prost(uint64, optional, tag = "2")]
        pub timestamp: Option<u64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct TrackDescriptor {
        #[prost(uint64, optional, tag = "1")]
        pub uuid: Option<u64>,
        #[prost(string, optional, tag = "2")]
        pub name: Option<String>,
        #[prost(message, optional, tag = "3")]
        pub process: Option<Process>,
        #[prost(message, optional, tag = "4")]
        pub thread: Option<Thread>,
        #[prost(uint64, optional, tag = "5")]
        pub parent_uuid: Option<u64>,
    }

    /// `ProcessDescriptor`.
    #[derive(Clone, PartialEq, Message)]
    pub struct Process {
        #[prost(int32, optional, tag = "1")]
        pub pid: Option<i32>,
        #[prost(string, optional, tag = "6")]
        pub name: Option<String>,
    }

    /// `ThreadDescriptor`.
    #[derive(Clone, PartialEq, Message)]
    pub struct Thread {
        #[prost(int32, optional, tag = "1")]
        pub pid: Option<i32>,
        #[prost(int64, optional, tag = "2")]
        pub tid: Option<i64>,
        #[prost(string, optional, tag = "5")]
        pub name: Option<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct TrackEvent {
        #[prost(message, repeated, tag = "4")]
        pub annotations: Vec<DebugAnnotation>,
        #[prost(int32, optional, tag = "9")]
        pub kind: Option<i32>,
        #[prost(uint64, optional, tag = "11")]
        pub track: Option<u64>,
        #[prost(string, repeated, tag = "22")]
        pub categories: Vec<String>,
        #[prost(string, optional, tag = "23")]
        pub name: Option<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct DebugAnnotation {
        #[prost(uint64, optional, tag = "3")]
        pub uint: Option<u64>,
        #[prost(string, optional, tag = "6")]
        pub text: Option<String>,
        #[prost(string, optional, tag = "10")]
        pub name: Option<String>,
    }

    impl DebugAnnotation {
        pub fn number(name: &str, value: u64) -> Self {
            Self {
                uint: Some(value),
                text: None,
                name: Some(name.to_owned()),
            }
        }

        pub fn words(name: &str, value: String) -> Self {
            Self {
                uint: None,
                text: Some(value),
                name: Some(name.to_owned()),
            }
        }
    }

    /// `TracePacketDefaults`.
    #[derive(Clone, PartialEq, Message)]
    pub struct Defaults {
        #[prost(message, optional, tag = "12")]
        pub perf: Option<PerfDefaults>,
        #[prost(uint32, optional, tag = "58")]
        pub clock: Option<u32>,
    }

    /// `PerfSampleDefaults`.
    #[derive(Clone, PartialEq, Message)]
    pub struct PerfDefaults {
        #[prost(message, optional, tag = "1")]
        pub timebase: Option<Timebase>,
    }

    /// `PerfEvents.Timebase`.
    #[derive(Clone, PartialEq, Message)]
    pub struct Timebase {
        #[prost(uint64, optional, tag = "2")]
        pub frequency: Option<u64>,
        #[prost(int32, optional, tag = "4")]
        pub counter: Option<i32>,
        #[prost(string, optional, tag = "10")]
        pub name: Option<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct PerfSample {
        #[prost(uint32, optional, tag = "1")]
        pub cpu: Option<u32>,
        #[prost(uint32, optional, tag = "2")]
        pub pid: Option<u32>,
        #[prost(uint32, optional, tag = "3")]
        pub tid: Option<u32>,
        #[prost(uint64, optional, tag = "4")]
        pub callstack: Option<u64>,
        #[prost(int32, optional, tag = "5")]
        pub mode: Option<i32>,
        #[prost(uint64, optional, tag = "6")]
        pub count: Option<u64>,
        #[prost(uint64, optional, tag = "17")]
        pub lost: Option<u64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct InternedData {
        #[prost(message, repeated, tag = "5")]
        pub functions: Vec<InternedString>,
        #[prost(message, repeated, tag = "6")]
        pub frames: Vec<Frame>,
        #[prost(message, repeated, tag = "7")]
        pub stacks: Vec<Callstack>,
        #[prost(message, repeated, tag = "17")]
        pub paths: Vec<InternedString>,
        #[prost(message, repeated, tag = "19")]
        pub mappings: Vec<Mapping>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct InternedString {
        #[prost(uint64, optional, tag = "1")]
        pub id: Option<u64>,
        #[prost(bytes = "vec", optional, tag = "2")]
        pub text: Option<Vec<u8>>,
    }

    impl InternedString {
        pub fn new(id: u64, text: &str) -> Self {
            Self {
                id: Some(id),
                text: Some(text.as_bytes().to_vec()),
            }
        }
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Mapping {
        #[prost(uint64, optional, tag = "1")]
        pub id: Option<u64>,
        #[prost(uint64, repeated, packed = "false", tag = "7")]
        pub paths: Vec<u64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Frame {
        #[prost(uint64, optional, tag = "1")]
        pub id: Option<u64>,
        #[prost(uint64, optional, tag = "2")]
        pub function: Option<u64>,
        #[prost(uint64, optional, tag = "3")]
        pub mapping: Option<u64>,
        #[prost(uint64, optional, tag = "4")]
        pub pc: Option<u64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Callstack {
        #[prost(uint64, optional, tag = "1")]
        pub id: Option<u64>,
        #[prost(uint64, repeated, packed = "false", tag = "2")]
        pub frames: Vec<u64>,
    }
}
