//! What a machine allows, as text.

use std::fmt::{self, Write as _};

use plimsoll_core::model::options::LastLine;

use crate::host::Version;
use crate::host::output::Style;
use crate::kernel::object::Embedded;
use crate::kernel::{AccountReport, KindCount, KindReport};
use crate::probe::facts::{Hook, HookOutcome};
use crate::probe::ladder::{Choice, LADDER, Role};
use crate::probe::last_line::LastLineReach;
use crate::probe::mechanism::Mechanism;
use crate::probe::report::{HostReport, Verdict};
use crate::show::table::span;

/// Columns for the longest entry, "+ memory.events".
const WIDE_MECHANISM: usize = 15;

/// The report. `objects`: what this program would load. `records`: what the agent that runs says of the kernel's
/// records; `None` where none runs, or it has no BPF programs.
pub(crate) fn check(
    report: &HostReport,
    objects: &[Embedded],
    records: Option<&Result<AccountReport, String>>,
    style: Style,
) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    write(&mut text, report, objects, records, style).ok();
    text
}

fn write(
    out: &mut String,
    report: &HostReport,
    objects: &[Embedded],
    records: Option<&Result<AccountReport, String>>,
    style: Style,
) -> fmt::Result {
    let HostReport { facts, choices } = report;
    let lockdown = facts.lockdown;
    let (memory, cpu) = (controller(&facts.memory), controller(&facts.cpu));
    writeln!(
        out,
        "kernel {}, lockdown {lockdown}, memory on {memory}, cpu on {cpu}\n",
        facts.kernel
    )?;

    let width = choices
        .iter()
        .map(|choice| choice.signal.name().len())
        .max()
        .unwrap_or(0);
    writeln!(
        out,
        "{}",
        style.bold(&format!(
            "{:width$}  {:WIDE_MECHANISM$}  WHY",
            "SIGNAL", "MECHANISM"
        ))
    )?;
    write_choices(out, choices, width, style)?;
    write_last_line(out, &report.last_line(), style)?;
    match &facts.bpf {
        Ok(hooks) => write_hooks(out, hooks, style)?,
        Err(reason) => writeln!(out, "\n{} {reason}", style.bold("No BPF programs:"))?,
    }

    writeln!(out, "\n{}", style.bold("BPF OBJECT      SHA-256"))?;
    for Embedded { name, sha256 } in objects {
        let digest = sha256.as_deref().unwrap_or("not in this program");
        writeln!(out, "{name:14}  {digest}")?;
    }

    match records {
        Some(Ok(records)) => write_records(out, records, style)?,
        Some(Err(reason)) => writeln!(
            out,
            "\n{} {reason}",
            style.bold("Records of the running agent:")
        )?,
        None => {}
    }

    write_losses(out, report, width, style)?;
    write_verdict(out, report, style)
}

/// Each signal with the mechanisms that serve it.
fn write_choices(out: &mut String, choices: &[Choice], width: usize, style: Style) -> fmt::Result {
    for choice in choices {
        let (signal, mechanism) = match choice.role {
            Role::Primary => (choice.signal.name(), choice.mechanism.name().to_owned()),
            Role::Beside => ("", format!("+ {}", choice.mechanism)),
        };
        let mechanism = format!("{mechanism:WIDE_MECHANISM$}");
        let mechanism = match (choice.role, choice.rung, choice.mechanism) {
            (Role::Beside, ..) => mechanism,
            (Role::Primary, 0, _) => style.green(&mechanism),
            (Role::Primary, _, Mechanism::Sampling) => style.red(&mechanism),
            (Role::Primary, ..) => style.yellow(&mechanism),
        };
        writeln!(out, "{signal:width$}  {mechanism}  {}", choice.why)?;
        for obstacle in choice.because() {
            writeln!(
                out,
                "{:width$}  {:WIDE_MECHANISM$}  {}",
                "",
                "",
                style.dim(&format!("no better: {obstacle}"))
            )?;
        }
    }
    Ok(())
}

fn write_last_line(out: &mut String, last_line: &LastLineReach, style: Style) -> fmt::Result {
    let reach = last_line.to_string();
    let reach = match last_line {
        LastLineReach::Full => style.green(&reach),
        LastLineReach::Partly { .. } => style.yellow(&reach),
        LastLineReach::None { .. } => style.red(&reach),
    };
    // What the running agent has is in `explain` and `/readyz`.
    let holds = match last_line {
        LastLineReach::None { .. } => String::new(),
        _ => format!(
            "; by default it holds for {} after the agent's last sign of life",
            span(LastLine::default().expires_after_ns)
        ),
    };
    writeln!(
        out,
        "\n{} {reach}{holds}",
        style.bold("Last line in the kernel (plimsoll.lastLine):")
    )
}

fn write_verdict(out: &mut String, report: &HostReport, style: Style) -> fmt::Result {
    match (report.verdict(), &report.facts.memory) {
        (Verdict::Unusable, Err(reason)) => {
            writeln!(
                out,
                "\n{}",
                style.red(&format!("plimsoll cannot work here: {reason}"))
            )
        }
        (Verdict::Full, _) => writeln!(
            out,
            "\n{}",
            style.green("Every signal has its best mechanism.")
        ),
        _ => writeln!(
            out,
            "\n{}",
            style.yellow("plimsoll works here, with these losses.")
        ),
    }
}

/// Losses, then each remedy once: on most machines one cause is behind several losses.
fn write_losses(out: &mut String, report: &HostReport, width: usize, style: Style) -> fmt::Result {
    let losses = report.loss_rows(false);
    if losses.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", style.bold("LOST"))?;
    for loss in &losses {
        writeln!(out, "{:width$}  {}", loss.of, loss.lost)?;
    }
    let mut remedies: Vec<(&str, Vec<&str>)> = Vec::new();
    for loss in &losses {
        let Some(remedy) = loss.remedy.as_deref() else {
            continue;
        };
        match remedies.iter_mut().find(|(known, _)| *known == remedy) {
            Some((_, of)) => of.push(loss.of),
            None => remedies.push((remedy, vec![loss.of])),
        }
    }
    if !remedies.is_empty() {
        writeln!(out, "\n{}", style.bold("WHAT TO DO"))?;
    }
    for (remedy, of) in remedies {
        let of = if of.len() >= LADDER.len() {
            "every signal".to_owned()
        } else {
            of.join(", ")
        };
        writeln!(out, "{remedy} {}", style.dim(&format!("(for {of})")))?;
    }
    Ok(())
}

fn write_hooks(out: &mut String, hooks: &[Hook], style: Style) -> fmt::Result {
    let widest = |text: fn(&Hook) -> &str, heading: &str| {
        hooks
            .iter()
            .map(|hook| text(hook).len())
            .max()
            .unwrap_or(0)
            .max(heading.len())
    };
    let (wide_program, wide_target) = (
        widest(|hook| &hook.program, "PROGRAM"),
        widest(|hook| &hook.target, "HOOK"),
    );
    let heading = format!(
        "{:wide_program$}  {:wide_target$}  {:6}  STATE",
        "PROGRAM", "HOOK", "KIND"
    );
    writeln!(out, "\n{}", style.bold(&heading))?;
    for Hook {
        program,
        target,
        kind,
        outcome,
    } in hooks
    {
        let state = match outcome {
            HookOutcome::Attached => style.green("attached"),
            HookOutcome::Unavailable { reason } | HookOutcome::KindRefused { reason } => {
                style.yellow(reason)
            }
            HookOutcome::Idle { reason } => style.dim(reason),
        };
        writeln!(
            out,
            "{program:wide_program$}  {target:wide_target$}  {kind:6}  {state}"
        )?;
    }
    Ok(())
}

/// The account of an agent, as a table.
pub(crate) fn records_text(records: &AccountReport, style: Style) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    write_records(&mut text, records, style).ok();
    text
}

/// The account of the agent that runs.
fn write_records(out: &mut String, records: &AccountReport, style: Style) -> fmt::Result {
    let heading = format!(
        "{:17}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}",
        "RECORDS", "PRODUCED", "CONSUMED", "DROPPED", "ON THE WAY", "ONLY COUNTED"
    );
    writeln!(out, "\n{}", style.bold(&heading))?;
    for KindReport {
        kind,
        count,
        on_the_way,
        ..
    } in &records.kinds
    {
        let KindCount {
            produced,
            consumed,
            dropped,
            folded,
        } = count;
        writeln!(
            out,
            "{kind:17}  {produced:>12}  {consumed:>12}  {dropped:>12}  {on_the_way:>12}  {folded:>12}"
        )?;
    }
    writeln!(
        out,
        "untracked {}, unreadable {}; by CPU: --output json",
        records.untracked, records.unreadable
    )
}

fn controller(version: &Result<Version, String>) -> &'static str {
    match version {
        Ok(Version::V1) => "cgroup v1",
        Ok(Version::V2) => "cgroup v2",
        Err(_) => "no cgroup",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::capabilities::Capabilities;
    use crate::probe::facts::Facts;
    use crate::probe::facts::tests::everything;
    use crate::probe::mechanism::HookKind;
    use crate::probe::mechanism::Without;

    fn rendered(report: &HostReport, color: bool) -> String {
        let objects = [Embedded {
            name: "plimsoll.bpf.o",
            sha256: Some("e3b0".to_owned()),
        }];
        check(report, &objects, None, Style { color })
    }

    #[test]
    fn a_full_machine_has_no_losses() {
        let report = HostReport::new(everything());
        assert_eq!(report.verdict(), Verdict::Full);
        assert_eq!(report.losses(), Vec::<String>::new());
        let text = rendered(&report, false);
        assert!(text.contains("memory threshold            fentry           reported by the charge that crosses it\n"), "{text}");
        assert!(
            text.contains(
                "charges_count         page_counter_try_charge         fentry  attached\n"
            ),
            "{text}"
        );
        assert!(text.contains("plimsoll.bpf.o  e3b0\n"), "{text}");
        assert!(!text.contains("LOST") && !text.contains('\x1b'), "{text}");
        assert!(rendered(&report, true).contains("\x1b[32mattached\x1b[0m"));
    }

    #[test]
    fn a_loss_is_one_line_with_its_remedy() {
        let mut facts = everything();
        for hook in facts
            .bpf
            .as_mut()
            .unwrap()
            .iter_mut()
            .filter(|hook| hook.kind != HookKind::TpBtf)
        {
            hook.outcome = HookOutcome::KindRefused {
                reason: "refused by this host: errno 1 (EPERM)".to_owned(),
            };
        }
        let report = HostReport::new(facts);
        assert_eq!(report.verdict(), Verdict::Degraded);
        let text = rendered(&report, false);
        assert_eq!(
            text.matches("ask the administrator of the host").count(),
            1,
            "one remedy for all losses:\n{text}"
        );
        let losses = report.losses();
        assert_eq!(losses.len(), 8, "{losses:#?}");
        assert!(
            losses.iter().all(|line| !line.contains('\n')
                && line.contains("To fix: ask the administrator of the host")),
            "{losses:#?}"
        );
        assert!(
            rendered(&report, false)
                .contains("no better: fentry refused by this host: errno 1 (EPERM)\n")
        );
    }

    #[test]
    fn a_missing_safety_net_is_a_loss_unless_asked_for() {
        let mut facts = Facts {
            psi: Err("no PSI; boot with psi=1".to_owned()),
            ..everything()
        };
        let has_safety_net = |facts: Facts| {
            let losses = HostReport::new(facts).losses();
            !losses.iter().any(|loss| loss.starts_with("safety net: "))
        };
        assert!(!has_safety_net(facts.clone()));
        facts.without = vec![Without::Psi];
        assert!(has_safety_net(facts));
    }

    #[test]
    fn each_missing_capability_is_named_with_what_it_costs() {
        let report = HostReport::new(Facts {
            // All but CAP_KILL and CAP_SYS_NICE.
            capabilities: Some(Capabilities::from_bits(!(1 << 5 | 1 << 23))),
            ..everything()
        });
        assert_eq!(report.verdict(), Verdict::Degraded);
        let text = rendered(&report, false);
        for words in [
            "CAP_KILL  ",
            "CAP_SYS_NICE  ",
            "grant CAP_KILL (for CAP_KILL)",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(!text.contains("CAP_BPF"), "{text}");
        // `run` is refused SCHED_FIFO, and says so then.
        let mut losses = report.losses();
        losses.retain(|loss| loss.starts_with("CAP_"));
        assert_eq!(losses.len(), 1, "{losses:#?}");
        assert!(
            losses[0].starts_with("CAP_KILL: processes of users other than root"),
            "{losses:#?}"
        );
        assert_eq!(
            serde_json::to_value(&report).unwrap()["facts"]["capabilities"]["missing"],
            serde_json::json!(["CAP_KILL", "CAP_SYS_NICE"])
        );
    }

    #[test]
    fn a_loss_says_why() {
        let mut facts = everything();
        let hooks = facts.bpf.as_mut().unwrap();
        let hook = hooks
            .iter_mut()
            .find(|hook| hook.program == "charges_count");
        hook.unwrap().outcome = HookOutcome::Unavailable {
            reason: "this kernel has no fentry target page_counter_try_charge".to_owned(),
        };
        let losses = HostReport::new(facts).losses();
        let words = "; because fentry page_counter_try_charge: this kernel has no fentry target";
        assert!(
            losses
                .iter()
                .any(|loss| loss.starts_with("memory threshold: ") && loss.contains(words)),
            "{losses:#?}"
        );
    }

    #[test]
    fn without_a_memory_controller_it_cannot_work() {
        let reason = "cgroup controller memory is not available".to_owned();
        let report = HostReport::new(Facts {
            memory: Err(reason.clone()),
            ..everything()
        });
        assert_eq!(report.verdict(), Verdict::Unusable);
        assert!(
            rendered(&report, false).ends_with(&format!("plimsoll cannot work here: {reason}\n"))
        );
    }
}
