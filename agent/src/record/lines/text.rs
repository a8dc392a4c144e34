//! Lines as people read them: a function for each kind.

use plimsoll_core::model::decision::{Decision, In};
use plimsoll_core::model::eviction_change::EvictionChange;
use plimsoll_core::model::signal::Unit;
use plimsoll_core::model::telling::Severity;

use super::{
    KernelOomKill, LastLineKill, Line, MemoryLimit, MemoryStall, Started, Stopped, Throttled,
};
use crate::host::shown::{self, Show as _};
use crate::probe::ladder::Role;
use crate::record::timeline::Finished;

const BOLD: &str = "1";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

/// The line for people.
pub(super) fn text(line: &Line<'_>, color: bool) -> String {
    match line {
        Line::Started(line) => started(line, color),
        Line::Decision {
            at_ns,
            pod,
            severity,
            text,
            decision,
        } => {
            let text = match pod {
                // The UID of a manifest's pod is its name; one of the API server tells people nothing.
                Some(pod) if !text.contains(&pod.replacen('/', "_", 1)) => {
                    shown::line(&format!("{pod}: {text}")).to_string()
                }
                _ => shown::line(text).to_string(),
            };
            let text = paint(color, color_of(*severity, decision), &text);
            format!("{} {text}", seconds(*at_ns))
        }
        Line::EvictionFinished { pod, finished } => eviction_finished(pod, finished),
        Line::DiskFreed {
            bytes,
            inodes,
            items,
            containers,
            images,
        } => {
            let (bytes, inodes) = (In(Unit::Bytes, *bytes), In(Unit::Inodes, *inodes));
            let what = [
                (*items, "directories of ended pods"),
                (*containers, "ended containers"),
                (*images, "unused images"),
            ];
            let what = what.iter().filter(|(count, _)| *count > 0);
            let what: Vec<String> = what.map(|(count, of)| format!("{count} {of}")).collect();
            format!("freed {bytes} and {inodes}: {}", what.join(", "))
        }
        Line::KernelOomKill(line) => kernel_oom_kill(line, color),
        Line::LastLineKill(line) => last_line_kill(line, color),
        Line::MemoryLimit(line) => memory_limit(line, color),
        Line::MemoryStall(line) => memory_stall(line, color),
        Line::Throttled(line) => throttled(line, color),
        Line::Warning { text } => {
            let text = shown::line(text);
            format!("{} {text}", paint(color, YELLOW, "warning:"))
        }
        Line::Stopped(line) => stopped(line),
    }
}

/// The colour of a decision's line: red where a pod is killed, green where one has left.
fn color_of(severity: Severity, decision: &Decision) -> &'static str {
    match (severity, decision.eviction_change()) {
        (Severity::Critical, _) => RED,
        (Severity::Warning | Severity::Info, EvictionChange::Over { .. }) => GREEN,
        (Severity::Warning | Severity::Info, EvictionChange::Evicted(_) | EvictionChange::None) => {
            BOLD
        }
    }
}

fn started(line: &Started<'_>, color: bool) -> String {
    let mut text = format!(
        "plimsoll {} runs (pid {}), {} pods",
        env!("CARGO_PKG_VERSION"),
        line.pid,
        line.pods
    );
    let mut add = |detail: String| {
        text.push_str("\n  ");
        text.push_str(&detail);
    };
    for choice in line.mechanisms.iter().filter(|it| it.role == Role::Primary) {
        add(format!("{:<28}{}", choice.signal.name(), choice.mechanism));
    }
    if let Some(programs) = line.programs {
        add(format!("BPF programs {}", shown::line(programs)));
    }
    for lost in line.lost {
        let lost = shown::line(lost);
        add(format!("{} {lost}", paint(color, YELLOW, "lost:")));
    }
    text
}

fn eviction_finished(pod: &str, finished: &Finished) -> String {
    let pod = pod.shown();
    let timeline = &finished.timeline;
    let since = timeline.crossed_ns.unwrap_or(timeline.received_ns);
    let after =
        |at_ns: Option<u64>| at_ns.map_or("-".into(), |at_ns| micros(at_ns.saturating_sub(since)));
    format!(
        "{}   {pod}: {} → received {} → decided {} → signalled {} → killed {} → gone {} → memory back {}",
        seconds(finished.freed_ns),
        if timeline.crossed_ns.is_some() {
            "crossing"
        } else {
            "sample"
        },
        after(Some(timeline.received_ns)),
        after(Some(timeline.decided_ns)),
        after(timeline.signalled_ns),
        after(timeline.killed_ns),
        after(timeline.gone_ns),
        after(Some(finished.freed_ns)),
    )
}

fn kernel_oom_kill(line: &KernelOomKill<'_>, color: bool) -> String {
    let pod = line
        .pod
        .map_or(String::new(), |pod| format!(" of pod {}", pod.shown()));
    let kills = line.kills;
    let victim = match (line.tgid, line.comm.map(|comm| comm.shown())) {
        (Some(tgid), Some(comm)) if kills > 1 => {
            let others = kills - 1;
            format!("process {tgid} ({comm}) and {others} more of its group,")
        }
        (Some(tgid), Some(comm)) => format!("process {tgid} ({comm})"),
        _ if kills == 1 => "a process".to_owned(),
        _ => format!("{kills} processes"),
    };
    format!(
        "{} {} {victim}{pod}",
        seconds(line.at_ns),
        paint(color, RED, "kernel OOM killer:")
    )
}

fn last_line_kill(line: &LastLineKill<'_>, color: bool) -> String {
    let LastLineKill {
        at_ns,
        pod,
        comm,
        kill,
        text,
    } = line;
    let bytes = |bytes: u64| In(Unit::Bytes, bytes);
    let figures = match (kill.available_bytes, kill.wanted_bytes) {
        (Some(available), Some(wanted)) => {
            format!(": {} available, {} wanted", bytes(available), bytes(wanted))
        }
        _ => String::new(),
    };
    let crossed = kill.crossed_ns.map_or(String::new(), |crossed_ns| {
        let after = micros(kill.killed_ns.saturating_sub(crossed_ns));
        format!(", {after} after a crossing")
    });
    let (pod, text) = (pod.shown(), shown::line(text));
    let comm = comm.map_or(String::new(), |comm| format!(" ({})", comm.shown()));
    let others = match kill.kills {
        0 | 1 => String::new(),
        kills => format!(" and {} more", kills - 1),
    };
    format!(
        "{} {} process {}{comm}{others} of pod {pod}; {text}{figures}{crossed}",
        seconds(*at_ns),
        paint(color, RED, "last line in the kernel:"),
        kill.tgid,
    )
}

fn memory_limit(line: &MemoryLimit<'_>, color: bool) -> String {
    let counts = [
        ("memory.low", line.low),
        ("memory.high", line.high),
        ("memory.max", line.max),
        ("out of memory", line.oom),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| format!("{what} {}", times(*count)))
        .collect();
    format!(
        "{} {} {}: {}",
        seconds(line.at_ns),
        paint(color, YELLOW, "memory limit:"),
        line.pod.shown(),
        counts.join(", ")
    )
}

fn memory_stall(line: &MemoryStall<'_>, color: bool) -> String {
    let parts = [
        (line.limit_reclaim_ms, "ms of it reclaim for its limits"),
        (line.high_ms, "ms asleep for memory.high"),
        (line.node_reclaim_ms, "ms reclaim for the node"),
        (line.refaulted_pages, "pages needed back"),
        (line.swapped_in_pages, "pages from swap"),
    ];
    let parts: String = parts
        .iter()
        .filter(|(amount, _)| *amount > 0)
        .map(|(amount, what)| format!(", {amount} {what}"))
        .collect();
    format!(
        "{} {} {}: {} ms{parts}",
        seconds(line.at_ns),
        paint(color, YELLOW, "waited for memory:"),
        line.pod.shown(),
        line.ms
    )
}

fn throttled(line: &Throttled<'_>, color: bool) -> String {
    format!(
        "{} {} {}: {}, {} ms",
        seconds(line.at_ns),
        paint(color, YELLOW, "CPU throttled:"),
        line.pod.shown(),
        times(line.count),
        line.ms
    )
}

fn stopped(line: &Stopped) -> String {
    let mut text = format!(
        "plimsoll stops: {} records, {} lost; {} ms of CPU, {} KiB resident",
        line.records.produced,
        line.records.dropped,
        line.cpu_ms,
        line.rss_bytes >> 10
    );
    let (lines, steps) = (line.lines_lost, line.journal_lost);
    if lines + steps > 0 {
        text.push_str(&format!("; {lines} lines and {steps} journal steps lost"));
    }
    text
}

fn paint(color: bool, code: &str, text: &str) -> String {
    if color {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

pub(super) fn seconds(at_ns: u64) -> String {
    format!(
        "{:>6}.{:06}",
        at_ns / 1_000_000_000,
        at_ns / 1000 % 1_000_000
    )
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

fn micros(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} µs", ns / 1000),
        1_000_000..1_000_000_000 => format!("{}.{:02} ms", ns / 1_000_000, ns / 10_000 % 100),
        _ => format!("{}.{:02} s", ns / 1_000_000_000, ns / 10_000_000 % 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::model::event::{LastLineKill as LastLineKillEvent, LastLineReason};
    use proptest::prelude::*;

    #[test]
    fn amounts_of_zero_are_left_out_of_the_text_only() {
        let line = Line::MemoryStall(MemoryStall {
            at_ns: 1_500_000_000,
            pod: "default/web",
            ms: 20,
            limit_reclaim_ms: 0,
            high_ms: 15,
            node_reclaim_ms: 0,
            refaulted_pages: 3,
            swapped_in_pages: 0,
        });
        assert_eq!(
            text(&line, false),
            "     1.500000 waited for memory: default/web: 20 ms, 15 ms asleep for memory.high, 3 pages needed back"
        );
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            r#"{"event":"memory_stall","at_ns":1500000000,"pod":"default/web","ms":20,"limit_reclaim_ms":0,"high_ms":15,"node_reclaim_ms":0,"refaulted_pages":3,"swapped_in_pages":0}"#
        );
    }

    #[test]
    fn a_decision_about_a_pod_of_the_api_server_names_it() {
        let said = |uid: &str| {
            let decision = Decision::StopReclaim { uid: uid.into() };
            let line = Line::Decision {
                at_ns: 1_500_000_000,
                pod: Some("shop/web"),
                severity: Severity::Info,
                decision: &decision,
                text: decision.to_string(),
            };
            text(&line, false)
        };
        let uid = "1b2c9a00-0000-4000-8000-00000000000a";
        assert_eq!(
            said(uid),
            format!("     1.500000 shop/web: stop reclaiming from {uid}")
        );
        assert_eq!(
            said("shop_web"),
            "     1.500000 stop reclaiming from shop_web"
        );
    }

    #[test]
    fn a_kill_of_a_whole_group_names_its_first_process() {
        let kill = |tgid, comm, kills| {
            let line = KernelOomKill {
                at_ns: 0,
                pod: Some("default/web"),
                tgid,
                comm,
                kills,
            };
            kernel_oom_kill(&line, false)
        };
        let head = "     0.000000 kernel OOM killer:";
        assert_eq!(
            kill(Some(7), Some("web"), 3),
            format!("{head} process 7 (web) and 2 more of its group, of pod default/web")
        );
        assert_eq!(
            kill(None, None, 3),
            format!("{head} 3 processes of pod default/web")
        );
    }

    #[test]
    fn kills_of_the_last_line_whose_records_were_lost_are_said_with_the_next() {
        let said = |comm, kills| {
            let kill = LastLineKillEvent {
                killed_ns: 0,
                why: LastLineReason::Critical,
                tgid: 7,
                kills,
                available_bytes: None,
                wanted_bytes: None,
                crossed_ns: None,
            };
            let line = LastLineKill {
                at_ns: 0,
                pod: "default/web",
                comm,
                kill: &kill,
                text: "why".to_owned(),
            };
            last_line_kill(&line, false)
        };
        let head = "     0.000000 last line in the kernel:";
        assert_eq!(
            said(Some("web"), 1),
            format!("{head} process 7 (web) of pod default/web; why")
        );
        assert_eq!(
            said(None, 3),
            format!("{head} process 7 and 2 more of pod default/web; why")
        );
    }

    proptest! {
        #[test]
        fn no_line_has_a_control_character_whatever_a_process_is_called(comm in prop::collection::vec(any::<u8>(), 0..16), foreign in any::<String>()) {
            let comm = String::from_utf8_lossy(&comm);
            let kernel_oom_kill = KernelOomKill {
                at_ns: 0,
                pod: Some(&foreign),
                tgid: Some(7),
                comm: Some(&comm),
                kills: 2,
            };
            let kill = LastLineKillEvent {
                killed_ns: 1,
                why: LastLineReason::Critical,
                tgid: 7,
                kills: 1,
                available_bytes: None,
                wanted_bytes: None,
                crossed_ns: None,
            };
            let last_line_kill = LastLineKill {
                at_ns: 0,
                pod: &foreign,
                comm: Some(&comm),
                kill: &kill,
                text: foreign.clone(),
            };
            let limit = MemoryLimit { at_ns: 0, pod: &foreign, high: 1, max: 1, oom: 1, low: 1 };
            let throttled = Throttled { at_ns: 0, pod: &foreign, count: 1, ms: 1 };
            let path: std::sync::Arc<std::path::Path> = std::path::Path::new(&foreign).into();
            let error = crate::host::FileError::Vanished { path };
            for line in [
                Line::KernelOomKill(kernel_oom_kill),
                Line::LastLineKill(last_line_kill),
                Line::MemoryLimit(limit),
                Line::Throttled(throttled),
                Line::Warning { text: foreign.clone() },
                Line::Warning { text: error.to_string() },
            ] {
                let text = text(&line, false);
                prop_assert!(shown::is_fit(&text), "{text:?}");
            }
            prop_assert!(shown::is_fit(&error.to_string()));
        }
    }
}
