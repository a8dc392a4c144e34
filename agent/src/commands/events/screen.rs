//! Records as lines of text or JSON.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::{EventsArgs, EventsError};
use crate::host::cgroup_paths::{CgroupPaths, Ids};
use crate::host::output::Output;
use crate::host::shown::Show as _;
use crate::kernel::decode::{
    Body, MemoryLimitEvent, NodeCounters, OomLimit, ReclaimPhase, Record, RefaultKind, StallCause,
    ThrottlePhase,
};
use crate::kernel::last_line::uid_text;
use crate::kernel::{Bpf, Generation};

/// Records read from a ring before looking at the clock again.
const BUDGET: usize = 256;

/// Times [`BUDGET`] records are more than a ring holds.
const ROUNDS: usize = 256;

/// Cgroups whose processes are followed.
const FOLLOWED_MAX: usize = 4096;

/// Shows records as they come.
pub(super) struct Screen<'args> {
    args: &'args EventsArgs,
    pub(super) paths: CgroupPaths,
    /// Whether there are cgroups whose processes are not followed yet.
    has_new: bool,
}

impl<'args> Screen<'args> {
    pub(super) fn new(args: &'args EventsArgs, paths: CgroupPaths) -> Self {
        Screen {
            args,
            paths,
            has_new: true,
        }
    }

    pub(super) fn drain(&mut self, bpf: &mut Bpf, out: &mut impl Write) -> io::Result<()> {
        let mut result = Ok(());
        let mut show = |record: Record<'_>| {
            if result.is_ok() {
                result = self.show(&record, out);
            }
        };
        // As many as the rings hold, not as many as a flood sends.
        for _ in 0..ROUNDS {
            let taken = [
                bpf.drain_critical(BUDGET, &mut show),
                bpf.drain_lifecycle(BUDGET, &mut show),
                bpf.drain_pressure(BUDGET, &mut show),
            ];
            if !taken.contains(&BUDGET) {
                break;
            }
        }
        result
    }

    fn show(&mut self, record: &Record<'_>, out: &mut impl Write) -> io::Result<()> {
        if let Body::CgroupMkdir {
            hierarchy_id, path, ..
        } = record.body
        {
            self.has_new |= self.paths.made(hierarchy_id, record.cgroup_id, path);
        }
        let path = self.paths.of(ids_of(&record.body), record.cgroup_id);
        let path = path.map(str::to_owned);
        let is_shown = self.is_wanted(record, path.as_deref());
        let result = match (is_shown, self.args.output.format) {
            (false, _) => Ok(()),
            (true, Output::Text) => self.text(record, path.as_deref(), out),
            (true, Output::Json) => self.json(record, path.as_deref(), out),
        };
        if let Body::CgroupRmdir { hierarchy_id, .. } = record.body {
            self.paths.removed(hierarchy_id, record.cgroup_id);
        }
        result
    }

    /// The births of `--cgroup` and what is below it; of all cgroups there would be too many.
    pub(super) fn follow_processes(&mut self, bpf: &mut Bpf) -> Result<(), EventsError> {
        let Some(wanted) = self.args.cgroup.as_ref().filter(|_| self.has_new) else {
            return Ok(());
        };
        self.has_new = false;
        let wanted = Path::new("/").join(wanted);
        let below = |(_, path): &(u64, &str)| Path::new("/").join(path).starts_with(&wanted);
        let ids = self.paths.all(Ids::Memory).filter(below).map(|(id, _)| id);
        Ok(bpf.follow_processes(&ids.take(FOLLOWED_MAX).collect())?)
    }

    fn is_wanted(&self, record: &Record<'_>, path: Option<&str>) -> bool {
        let by_kind = self.args.kind.is_empty() || self.args.kind.contains(&record.body.kind());
        let by_path = match (&self.args.cgroup, path) {
            (None, _) => true,
            (Some(wanted), Some(path)) => {
                let root = Path::new("/");
                root.join(path).starts_with(root.join(wanted))
            }
            (Some(_), None) => false,
        };
        by_kind && by_path
    }

    fn text(
        &self,
        record: &Record<'_>,
        path: Option<&str>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let (seconds, micros) = (
            record.ts_ns / 1_000_000_000,
            record.ts_ns / 1_000 % 1_000_000,
        );
        write!(
            out,
            "{seconds:>6}.{micros:06} cpu{:<3} {:<17} ",
            record.cpu,
            record.body.kind().name()
        )?;
        match (record.cgroup_id, path) {
            (0, _) => write!(out, "node")?,
            (id, Some(path)) => write!(out, "{} ({id})", path.shown())?,
            (id, None) => write!(out, "({id})")?,
        }
        writeln!(out, ": {}", self.words(record))
    }

    /// What a record says, in words.
    fn words(&self, record: &Record<'_>) -> String {
        match record.body {
            Body::ChargesReached {
                charged_bytes,
                generation: Generation(generation),
                node,
            } => {
                let node = node.map(|node| {
                    let (free, available) = (node.free_bytes, node.available_bytes);
                    format!(", {free} bytes free, {available} available")
                });
                let node = node.unwrap_or_default();
                format!("{charged_bytes} bytes charged in total, generation {generation}{node}")
            }
            Body::LastLineKill {
                why,
                tgid,
                comm,
                place,
                kills,
                ..
            } => {
                let comm = comm.shown();
                let rank = u64::from(place) + 1;
                format!(
                    "process {tgid} ({comm}), kill {kills} in this pod, rank {rank} in the last line: {why}"
                )
            }
            Body::CgroupMkdir {
                level,
                hierarchy_id,
                is_cut,
                ..
            } => {
                let cut = if is_cut { ", path cut" } else { "" };
                format!("level {level}{}{cut}", v1(hierarchy_id))
            }
            Body::CgroupRmdir {
                level,
                hierarchy_id,
            } => format!("level {level}{}", v1(hierarchy_id)),
            Body::CgroupAttach { tgid, hierarchy_id } => {
                format!("process {tgid}{}", v1(hierarchy_id))
            }
            Body::CgroupPopulated {
                is_populated,
                hierarchy_id,
            } => {
                let state = if is_populated { "populated" } else { "empty" };
                format!("{state}{}", v1(hierarchy_id))
            }
            Body::OomKill {
                limit,
                tgid,
                oom_score_adj,
                points,
                total_pages,
                anon_pages,
                comm,
            } => {
                let (comm, limit) = (comm.shown(), self.limit(limit));
                let points = points.map(|points| format!("points {points}, "));
                let points = points.unwrap_or_default();
                format!(
                    "victim {comm} (process {tgid}, oom_score_adj {oom_score_adj}, {points}{anon_pages} of {total_pages} pages anonymous), limit of {limit}"
                )
            }
            Body::MemoryEvent {
                event,
                count,
                pages,
            } => {
                let pages = pages.map(|pages| format!(", {pages} pages asked for"));
                let (event, pages) = (event_name(event), pages.unwrap_or_default());
                format!("{event} met {count} times so far{pages}")
            }
            Body::Throttle {
                phase: ThrottlePhase::Start,
                count,
                ..
            } => format!("start, {count} ended so far"),
            Body::Throttle {
                phase: ThrottlePhase::Stop,
                count,
                sum_ns,
                max_ns,
            } => format!("stop, {}", so_far(count, sum_ns, max_ns)),
            Body::NodeReclaim {
                phase,
                count,
                node,
                order,
            } => {
                let node = node.map(|node| format!(", NUMA node {node}"));
                let (phase, node) = (phase_name(phase), node.unwrap_or_default());
                format!("{phase}, order {order}, {count} times so far{node}")
            }
            Body::MemoryStall {
                cause,
                actor_cgroup_id,
                count,
                sum_ns,
                max_ns,
                pages,
            } => {
                let pages = pages.map(|pages| format!(", {pages} pages freed"));
                let by_another = actor_cgroup_id != record.cgroup_id;
                let actor =
                    by_another.then(|| format!(", last by {}", self.cgroup(actor_cgroup_id)));
                let (pages, actor) = (pages.unwrap_or_default(), actor.unwrap_or_default());
                let so_far = so_far(count, sum_ns, max_ns);
                format!("{}, {so_far}{pages}{actor}", cause_name(cause))
            }
            Body::Refault { what, count, pages } => {
                format!("{}, {count} so far, {pages} pages", refault_name(what))
            }
            Body::ProcessBirth {
                tgid,
                parent_tgid,
                parent_cgroup_id,
            } => {
                let path = self.paths.of(Ids::Memory, parent_cgroup_id);
                let path = path.unwrap_or("?").shown();
                format!("process {tgid}, parent {parent_tgid} in {path}")
            }
        }
    }

    /// The cgroup, or the node, whose limit made the OOM killer choose.
    fn limit(&self, limit: OomLimit) -> String {
        match limit {
            OomLimit::Node => "the node".to_owned(),
            OomLimit::Unknown => "(in the record of the choice)".to_owned(),
            OomLimit::Cgroup(id) => self.cgroup(id),
        }
    }

    fn cgroup(&self, id: u64) -> String {
        match self.paths.of(Ids::Memory, id) {
            Some(path) => format!("{} ({id})", path.shown()),
            None => format!("cgroup {id}"),
        }
    }

    fn json(
        &self,
        record: &Record<'_>,
        path: Option<&str>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let mut object = details(&record.body);
        object["ts_ns"] = json!(record.ts_ns);
        object["cpu"] = json!(record.cpu);
        object["kind"] = json!(record.body.kind().name());
        object["cgroup_id"] = json!(record.cgroup_id);
        object["cgroup"] = json!(path);
        writeln!(out, "{object}")
    }
}

/// How often and how long something has happened.
fn so_far(count: u64, sum_ns: u64, max_ns: u64) -> String {
    let (sum, max) = (sum_ns / 1000, max_ns / 1000);
    format!("{count} so far for {sum} µs, longest {max} µs")
}

/// " (v1 hierarchy N)", or nothing on v2.
fn v1(hierarchy_id: u32) -> String {
    if hierarchy_id == 0 {
        String::new()
    } else {
        format!(" (v1 hierarchy {hierarchy_id})")
    }
}

fn event_name(event: MemoryLimitEvent) -> &'static str {
    match event {
        MemoryLimitEvent::High => "memory.high",
        MemoryLimitEvent::Max => "memory.max",
        MemoryLimitEvent::Oom => "oom",
        MemoryLimitEvent::Low => "memory.low",
        MemoryLimitEvent::OomKill => "oom_kill",
        MemoryLimitEvent::OomGroupKill => "oom_group_kill",
    }
}

pub(super) fn cause_name(cause: StallCause) -> &'static str {
    match cause {
        StallCause::Memory => "memory",
        StallCause::Limit => "limit-reclaim",
        StallCause::High => "memory.high",
        StallCause::Node => "node-reclaim",
    }
}

pub(super) fn refault_name(what: RefaultKind) -> &'static str {
    match what {
        RefaultKind::Anon => "refault_anon",
        RefaultKind::File => "refault_file",
        RefaultKind::SwapIn => "swap_in",
    }
}

fn phase_name(phase: ReclaimPhase) -> &'static str {
    match phase {
        ReclaimPhase::KswapdWake => "kswapd_wake",
        ReclaimPhase::DirectReclaim => "direct_reclaim",
    }
}

/// The fields of a body; absent ones are null.
fn details(body: &Body<'_>) -> Value {
    match *body {
        Body::ChargesReached {
            charged_bytes,
            generation: Generation(generation),
            node,
        } => json!({
            "charged_bytes": charged_bytes,
            "generation": generation,
            "node": node.map(counters),
        }),
        Body::LastLineKill {
            why,
            tgid,
            comm,
            uid,
            place,
            kills,
            available_pages,
            wanted_pages,
            crossed_ns,
            acked_ns,
        } => json!({
            "why": why, "tgid": tgid, "comm": String::from_utf8_lossy(comm), "uid": uid_text(uid), "place": place,
            "kills": kills, "available_pages": available_pages, "wanted_pages": wanted_pages,
            "crossed_ns": crossed_ns, "acked_ns": acked_ns,
        }),
        Body::CgroupMkdir {
            level,
            hierarchy_id,
            is_cut,
            ..
        } => {
            json!({"level": level, "hierarchy_id": hierarchy_id, "is_cut": is_cut})
        }
        Body::CgroupRmdir {
            level,
            hierarchy_id,
        } => json!({"level": level, "hierarchy_id": hierarchy_id}),
        Body::CgroupAttach { tgid, hierarchy_id } => {
            json!({"tgid": tgid, "hierarchy_id": hierarchy_id})
        }
        Body::CgroupPopulated {
            is_populated,
            hierarchy_id,
        } => {
            json!({"is_populated": is_populated, "hierarchy_id": hierarchy_id})
        }
        Body::OomKill {
            limit,
            tgid,
            oom_score_adj,
            points,
            total_pages,
            anon_pages,
            comm,
        } => {
            let (limit, limit_cgroup_id) = match limit {
                OomLimit::Node => ("node", None),
                OomLimit::Unknown => ("unknown", None),
                OomLimit::Cgroup(id) => ("cgroup", Some(id)),
            };
            json!({
                "limit": limit, "limit_cgroup_id": limit_cgroup_id, "tgid": tgid, "oom_score_adj": oom_score_adj,
                "points": points, "total_pages": total_pages, "anon_pages": anon_pages,
                "comm": String::from_utf8_lossy(comm),
            })
        }
        Body::MemoryEvent {
            event,
            count,
            pages,
        } => {
            json!({"event": event_name(event), "count": count, "pages": pages})
        }
        Body::Throttle {
            phase,
            count,
            sum_ns,
            max_ns,
        } => json!({
            "phase": match phase { ThrottlePhase::Start => "start", ThrottlePhase::Stop => "stop" },
            "count": count, "sum_ns": sum_ns, "max_ns": max_ns,
        }),
        Body::NodeReclaim {
            phase,
            count,
            node,
            order,
        } => {
            json!({"phase": phase_name(phase), "count": count, "node": node, "order": order})
        }
        Body::MemoryStall {
            cause,
            actor_cgroup_id,
            count,
            sum_ns,
            max_ns,
            pages,
        } => json!({
            "cause": cause_name(cause), "actor_cgroup_id": actor_cgroup_id, "count": count, "sum_ns": sum_ns,
            "max_ns": max_ns, "pages": pages,
        }),
        Body::Refault { what, count, pages } => {
            json!({"what": refault_name(what), "count": count, "pages": pages})
        }
        Body::ProcessBirth {
            tgid,
            parent_tgid,
            parent_cgroup_id,
        } => json!({
            "tgid": tgid, "parent_tgid": parent_tgid, "parent_cgroup_id": parent_cgroup_id,
        }),
    }
}

fn counters(node: NodeCounters) -> Value {
    json!({
        "free_bytes": node.free_bytes,
        "available_bytes": node.available_bytes,
        "anon_bytes": node.anon_bytes,
        "file_bytes": node.file_bytes,
        "inactive_file_bytes": node.inactive_file_bytes,
        "active_file_bytes": node.active_file_bytes,
        "shmem_bytes": node.shmem_bytes,
    })
}

/// The hierarchy that a record's cgroup id belongs to.
fn ids_of(body: &Body<'_>) -> Ids {
    match body {
        Body::CgroupMkdir { hierarchy_id, .. }
        | Body::CgroupRmdir { hierarchy_id, .. }
        | Body::CgroupAttach { hierarchy_id, .. }
        | Body::CgroupPopulated { hierarchy_id, .. } => Ids::Hierarchy(*hierarchy_id),
        Body::Throttle { .. } => Ids::Cpu,
        _ => Ids::Memory,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host::shown::is_fit;
    use plimsoll_abi::Kind;
    use proptest::prelude::*;

    #[test]
    fn only_the_cgroup_and_those_below_it_are_shown() {
        let args = EventsArgs {
            cgroup: Some("/kubepods".into()),
            kind: vec![Kind::CgroupRmdir],
            output: Output::Text.into(),
            length: None,
            window: Duration::from_millis(100),
            stall: false,
            object: None,
        };
        let screen = Screen::new(&args, CgroupPaths::default());
        let record = |body| Record {
            ts_ns: 0,
            cgroup_id: 9,
            cpu: 0,
            body,
        };
        let rmdir = record(Body::CgroupRmdir {
            level: 1,
            hierarchy_id: 0,
        });
        assert!(screen.is_wanted(&rmdir, Some("/kubepods")));
        assert!(screen.is_wanted(&rmdir, Some("/kubepods/pod1")));
        assert!(!screen.is_wanted(&rmdir, Some("/kubepods2")));
        assert!(!screen.is_wanted(&rmdir, None));
        assert!(!screen.is_wanted(
            &record(Body::CgroupAttach {
                tgid: 1,
                hierarchy_id: 0
            }),
            Some("/kubepods")
        ));
    }

    #[test]
    fn a_record_becomes_one_line_of_text_or_json() {
        let mut args = EventsArgs {
            cgroup: None,
            kind: vec![],
            output: Output::Text.into(),
            length: None,
            window: Duration::from_millis(100),
            stall: false,
            object: None,
        };
        let record = Record {
            ts_ns: 12_000_345_678,
            cgroup_id: 9,
            cpu: 3,
            body: Body::OomKill {
                limit: OomLimit::Cgroup(8),
                tgid: 77,
                oom_score_adj: 1000,
                points: Some(500),
                total_pages: 20,
                anon_pages: 10,
                comm: b"hog",
            },
        };
        let paths = CgroupPaths::known(4, 2, &[(4, 8, "/k"), (4, 9, "/k/p"), (2, 9, "/other")]);
        let mut text = Vec::new();
        Screen::new(&args, paths.clone())
            .show(&record, &mut text)
            .expect("a vector takes everything");
        assert_eq!(
            String::from_utf8_lossy(&text),
            "    12.000345 cpu3   oom-kill          /k/p (9): victim hog (process 77, oom_score_adj 1000, points 500, \
             10 of 20 pages anonymous), limit of /k (8)\n"
        );
        args.output = Output::Json.into();
        let mut line = Vec::new();
        Screen::new(&args, paths)
            .show(&record, &mut line)
            .expect("a vector takes everything");
        let value: Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(value["cgroup"], "/k/p");
        assert_eq!(value["limit_cgroup_id"], 8);
        assert_eq!(value["comm"], "hog");
    }

    proptest! {
        #[test]
        fn no_line_of_text_has_a_control_character_whatever_processes_and_cgroups_are_called(
            comm in prop::collection::vec(any::<u8>(), 0..16),
            name in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let args = EventsArgs {
                cgroup: None,
                kind: vec![],
                output: Output::Text.into(),
                length: None,
                window: Duration::from_millis(100),
                stall: false,
                object: None,
            };
            let mut paths = CgroupPaths::known(0, 0, &[]);
            paths.made(0, 8, &name);
            paths.made(0, 9, &name);
            let screen = Screen::new(&args, paths);
            let bodies = [
                Body::OomKill {
                    limit: OomLimit::Cgroup(8),
                    tgid: 77,
                    oom_score_adj: 1000,
                    points: None,
                    total_pages: 20,
                    anon_pages: 10,
                    comm: &comm,
                },
                Body::MemoryStall {
                    cause: StallCause::Limit,
                    actor_cgroup_id: 8,
                    count: 1,
                    sum_ns: 1,
                    max_ns: 1,
                    pages: None,
                },
                Body::ProcessBirth {
                    tgid: 1,
                    parent_tgid: 1,
                    parent_cgroup_id: 8,
                },
            ];
            for body in bodies {
                let record = Record { ts_ns: 0, cgroup_id: 9, cpu: 0, body };
                let mut line = Vec::new();
                let path = screen.paths.of(Ids::Memory, 9);
                screen.text(&record, path, &mut line).expect("a vector takes everything");
                let line = String::from_utf8(line).expect("text");
                let line = line.strip_suffix('\n').expect("a whole line");
                prop_assert!(is_fit(line), "{line:?}");
            }
        }
    }
}
