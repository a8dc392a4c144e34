//! What is not a record: the hooks at the start, totals and accounts at the end.

use std::collections::BTreeMap;
use std::io::{self, Write};

use plimsoll_abi::KINDS;
use serde_json::{Value, json};

use super::EventsError;
use super::screen::{cause_name, refault_name};
use crate::host::cgroup_paths::{CgroupPaths, Ids};
use crate::host::output::Output;
use crate::host::shown::{Show as _, line};
use crate::kernel::{Account, AccountReport, Bpf, Family, HookReport, HookState, KindCount};

pub(super) fn print_hook(
    out: &mut impl Write,
    output: Output,
    hook: &HookReport,
) -> io::Result<()> {
    match output {
        Output::Text => writeln!(out, "{}", line(&hook.to_string())),
        Output::Json => {
            let (verified, translated, reason) = match &hook.state {
                HookState::Attached {
                    verified_insns,
                    translated_insns,
                } => (*verified_insns, *translated_insns, None),
                HookState::Unavailable(reason) => (None, None, Some(reason.to_string())),
            };
            writeln!(
                out,
                "{}",
                json!({
                    "hook": hook.program, "family": hook.family.name(), "type": hook.kind.to_string(),
                    "target": hook.target, "attached": hook.is_attached(), "verified_insns": verified,
                    "translated_insns": translated, "reason": reason,
                })
            )
        }
    }
}

pub(super) fn print_throttle(
    out: &mut impl Write,
    output: Output,
    bpf: &Bpf,
    paths: &CgroupPaths,
) -> Result<(), EventsError> {
    if !bpf
        .hooks()
        .iter()
        .any(|hook| hook.family == Family::Throttle && hook.is_attached())
    {
        return Ok(());
    }
    let mut totals = Vec::new();
    bpf.drain_throttle(|total| totals.push(total))?;
    totals.sort_by_key(|total| total.cgroup_id);
    for total in totals {
        let path = paths.of(Ids::Cpu, total.cgroup_id);
        match output {
            Output::Text => writeln!(
                out,
                "throttled in all: {} ({}): {} times for {} µs, longest {} µs",
                path.unwrap_or("?").shown(),
                total.cgroup_id,
                total.count,
                total.sum_ns / 1000,
                total.max_ns / 1000
            )?,
            Output::Json => writeln!(
                out,
                "{}",
                json!({
                    "throttle_total": total.cgroup_id, "cgroup": path, "count": total.count, "sum_ns": total.sum_ns,
                    "max_ns": total.max_ns,
                })
            )?,
        }
    }
    Ok(())
}

/// Waits for memory, pages read back and processes, by cgroup.
pub(super) fn print_totals(
    out: &mut impl Write,
    output: Output,
    bpf: &Bpf,
    paths: &CgroupPaths,
) -> Result<(), EventsError> {
    // Sorted, because a hash map's order says nothing.
    let mut lines: BTreeMap<(u64, u8, &'static str), (String, Value)> = BTreeMap::new();
    bpf.drain_stalls(|total| {
        let cause = cause_name(total.cause);
        let text = format!(
            "{} times for {} µs, longest {} µs, {} pages freed",
            total.count,
            total.sum_ns / 1000,
            total.max_ns / 1000,
            total.pages
        );
        let object = json!({
            "stall_total": total.cgroup_id, "cause": cause, "count": total.count, "sum_ns": total.sum_ns,
            "max_ns": total.max_ns, "pages": total.pages,
        });
        lines.insert((total.cgroup_id, 0, cause), (text, object));
    })?;
    bpf.drain_refaults(|total| {
        let what = refault_name(total.what);
        let text = format!("{} times, {} pages", total.count, total.pages);
        let object = json!({
            "refault_total": total.cgroup_id, "what": what, "count": total.count, "pages": total.pages,
        });
        lines.insert((total.cgroup_id, 1, what), (text, object));
    })?;
    bpf.drain_processes(|total| {
        if total.forks + total.execs > 0 {
            let text = format!("{} born, {} programs started", total.forks, total.execs);
            let object = json!({
                "process_total": total.cgroup_id, "forks": total.forks, "execs": total.execs,
            });
            lines.insert((total.cgroup_id, 2, "processes"), (text, object));
        }
    })?;
    for ((cgroup_id, kind, name), (text, mut object)) in lines {
        let path = paths.of(Ids::Memory, cgroup_id);
        match output {
            Output::Text => {
                let what = ["held up in all", "read back in all", "in all"][usize::from(kind)];
                writeln!(
                    out,
                    "{what}: {} ({cgroup_id}): {name}: {text}",
                    path.unwrap_or("?").shown()
                )?;
            }
            Output::Json => {
                object["cgroup"] = json!(path);
                writeln!(out, "{object}")?;
            }
        }
    }
    Ok(())
}

pub(super) fn print_account(
    out: &mut impl Write,
    output: Output,
    account: &Account,
) -> io::Result<()> {
    let report = AccountReport::from(account);
    for kind in KINDS {
        let count = account.of(kind);
        let KindCount {
            produced,
            consumed,
            dropped,
            folded,
        } = count;
        match output {
            Output::Text => {
                write!(
                    out,
                    "{:<17} produced {produced} = consumed {consumed} + dropped {dropped}",
                    kind.name(),
                )?;
                if folded > 0 {
                    write!(out, "; {folded} more only counted, per cgroup")?;
                }
                writeln!(out)?;
            }
            Output::Json => {
                let mut object = json!(
                    report
                        .kinds
                        .iter()
                        .find(|report| report.kind == kind.name())
                );
                object["counts"] = json!(kind.name());
                writeln!(out, "{object}")?;
            }
        }
    }
    let (untracked, unreadable) = (account.untracked(), account.unreadable);
    match output {
        Output::Text => {
            for (cpu, kind, count) in account.open() {
                writeln!(out, "CPU {cpu}, {}: {count:?} does not add up", kind.name())?;
            }
            if account.open().next().is_none() {
                let cpus = account.cpus();
                writeln!(out, "this adds up for each kind on each of {cpus} CPUs")?;
            }
            writeln!(out, "untracked {untracked}, unreadable {unreadable}")
        }
        Output::Json => {
            let open = account.open().count();
            writeln!(
                out,
                "{}",
                json!({"untracked": untracked, "unreadable": unreadable, "open": open})
            )
        }
    }
}
