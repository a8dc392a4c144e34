//! `plimsoll check`: what this machine allows, which mechanism serves each signal, why, and what that costs.
//!
//! Loads and attaches the BPF programs for a moment and detaches them again; changes nothing else. The same [`Facts`]
//! and [`choose`] decide for `plimsoll run`, so what is shown is what would happen.
#![forbid(unsafe_code)]

use std::fmt::{self, Write as _};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use crate::host::capabilities::Capability;
use crate::host::output::{Output, Style};
use crate::host::{CgroupError, CgroupPath, HostRoot, Version};
use crate::kernel::object::object;
use crate::kernel::{
    AccountReport, Bpf, BpfOptions, Family, HookKind, HookSet, KindCount, KindReport, PinOwner,
    Pinning,
};
use crate::probe::facts::{Facts, Hook, HookOutcome, hooks_of};
use crate::probe::ladder::{Choice, LADDER, Mechanism, Role, Without, choose, is_full};
use crate::probe::last_line::LastLineReach;
use crate::serve::control::client::{AskError, ask};
use crate::serve::control::{Answer, Request, socket_path};

/// Everything is served by the best mechanism.
pub const EXIT_FULL: u8 = 0;
/// It works, with losses.
pub const EXIT_DEGRADED: u8 = 1;
/// It cannot work.
pub const EXIT_UNUSABLE: u8 = 2;

/// Columns for the longest entry, "+ memory.events".
const WIDE_MECHANISM: usize = 15;

/// Show which mechanism serves each signal on this machine, and why
#[derive(Debug, Clone, Default, clap::Args)]
#[command(
    after_help = "Exit status: 0 every signal has its best mechanism; 1 plimsoll works here, with the losses that are listed; \
                        2 plimsoll cannot work here (no cgroup memory controller) or the arguments are wrong."
)]
pub struct CheckArgs {
    /// How to print
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
    /// The cgroup below which kubepods is, relative to the cgroup mount
    #[arg(long, value_name = "CGROUP", default_value = "")]
    pub cgroup_root: String,
    /// Leave a mechanism out, to see what plimsoll falls back to; may be repeated
    #[arg(long, value_enum, value_name = "MECHANISM", value_delimiter = ',')]
    pub without: Vec<Without>,
    /// The state directory of an agent that may run: it is asked where the kernel's records went
    #[arg(long, value_name = "DIR", default_value = "/run/plimsoll")]
    pub state_dir: PathBuf,
    /// That agent's socket [default: control.sock in the state directory]
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// `--cgroup-root` is not a cgroup path.
    #[error("--cgroup-root: {0}")]
    CgroupRoot(#[source] CgroupError),
    /// The report could not be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// Something that a better machine would give.
struct Loss {
    /// Of which signal.
    of: &'static str,
    /// What is slower or invisible.
    lost: String,
    /// Why, where the table does not say so.
    because: Option<String>,
    /// What a person can do.
    remedy: Option<String>,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.of, self.lost)?;
        if let Some(because) = &self.because {
            write!(f, "; because {because}")?;
        }
        self.remedy
            .as_ref()
            .map_or(Ok(()), |remedy| write!(f, ". To mend: {remedy}"))
    }
}

/// What `plimsoll check` found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What was found.
    pub facts: Facts,
    /// What follows from it.
    pub choices: Vec<Choice>,
    /// [`EXIT_FULL`], [`EXIT_DEGRADED`] or [`EXIT_UNUSABLE`].
    pub exit_status: u8,
    /// What the agent that runs says of the kernel's records; `None` where none runs, or it has no BPF programs.
    pub records: Option<Result<AccountReport, String>>,
}

impl Report {
    /// Chooses from `facts`.
    pub fn new(facts: Facts) -> Self {
        let choices = choose(&facts);
        let is_whole = is_full(&choices) && missing_capabilities(&facts, false).next().is_none();
        let exit_status = match (&facts.memory, is_whole) {
            (Err(_), _) => EXIT_UNUSABLE,
            (Ok(_), true) => EXIT_FULL,
            (Ok(_), false) => EXIT_DEGRADED,
        };
        Self {
            facts,
            choices,
            exit_status,
            records: None,
        }
    }

    /// What is lost here, why, and what to do about it, one line each, as `plimsoll run` says it when it starts. Without what its
    /// own attempts to protect itself will tell.
    pub fn losses(&self) -> Vec<String> {
        self.loss_rows(true)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// What the last line in the kernel could do here.
    pub fn last_line(&self) -> LastLineReach {
        LastLineReach::of(&self.facts.bpf)
    }

    /// `attempts`: for `plimsoll run`, which tries what needs a capability and tells when it is refused.
    fn loss_rows(&self, attempts: bool) -> Vec<Loss> {
        let of_choice = |choice: &Choice| {
            let lost = choice.lost.clone()?;
            Some(Loss {
                of: choice.signal.name(),
                lost,
                because: choice.because().next().map(ToString::to_string),
                remedy: choice.remedy(),
            })
        };
        let mut losses: Vec<Loss> = self.choices.iter().filter_map(of_choice).collect();
        if let Err(reason) = &self.facts.psi
            && !self.facts.without.contains(&Without::Psi)
        {
            let lost = "nothing wakes plimsoll when tasks stall on memory and all else is silent"
                .to_owned();
            losses.push(Loss {
                of: "safety net",
                lost,
                because: None,
                remedy: Some(reason.clone()),
            });
        }
        losses.extend(
            missing_capabilities(&self.facts, attempts).map(|capability| Loss {
                of: capability.name,
                lost: capability.lost.to_owned(),
                because: None,
                remedy: Some(format!("grant {}", capability.name)),
            }),
        );
        losses
    }

    /// The report for a person; `color` for a terminal.
    pub fn render(&self, color: bool) -> String {
        let style = Style { color };
        let mut text = String::new();
        // Writing to a String cannot fail.
        self.write(&mut text, style).ok();
        text
    }

    fn write(&self, out: &mut String, style: Style) -> fmt::Result {
        let Self { facts, choices, .. } = self;
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

        let last_line = self.last_line();
        let reach = last_line.to_string();
        let reach = match last_line {
            LastLineReach::Full => style.green(&reach),
            LastLineReach::Partly { .. } => style.yellow(&reach),
            LastLineReach::None { .. } => style.red(&reach),
        };
        writeln!(
            out,
            "\n{} {reach}",
            style.bold("Last line in the kernel (plimsoll.lastLine):")
        )?;
        match &facts.bpf {
            Ok(hooks) => write_hooks(out, hooks, style)?,
            Err(reason) => writeln!(out, "\n{} {reason}", style.bold("No BPF programs:"))?,
        }

        match &self.records {
            Some(Ok(records)) => write_records(out, records, style)?,
            Some(Err(reason)) => writeln!(
                out,
                "\n{} {reason}",
                style.bold("Records of the running agent:")
            )?,
            None => {}
        }

        self.write_losses(out, width, style)?;
        match (self.exit_status, &facts.memory) {
            (EXIT_UNUSABLE, Err(reason)) => {
                writeln!(
                    out,
                    "\n{}",
                    style.red(&format!("plimsoll cannot work here: {reason}"))
                )
            }
            (EXIT_FULL, _) => writeln!(
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
    fn write_losses(&self, out: &mut String, width: usize, style: Style) -> fmt::Result {
        let losses = self.loss_rows(false);
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

/// Nothing when this process's capabilities cannot be read: what is refused will then tell.
fn missing_capabilities(
    facts: &Facts,
    attempts: bool,
) -> impl Iterator<Item = &'static Capability> {
    facts
        .capabilities
        .into_iter()
        .flat_map(move |held| held.missing_and_untold(attempts))
}

fn controller(version: &Result<Version, String>) -> &'static str {
    match version {
        Ok(Version::V1) => "cgroup v1",
        Ok(Version::V2) => "cgroup v2",
        Err(_) => "no cgroup",
    }
}

/// `plimsoll check` on this machine.
///
/// # Errors
/// [`CheckError`] for a bad `--cgroup-root` or an unwritable standard output. What the machine lacks is in the report
/// and the exit status.
pub fn run(args: &CheckArgs) -> Result<ExitCode, CheckError> {
    let mut stdout = io::stdout().lock();
    let color = Style::of(&stdout).color;
    run_with(args, &HostRoot::live(), load_hooks, &mut stdout, color)
}

/// Attaches every hook that `plimsoll run` uses and the host allows, and detaches them by dropping the programs.
fn load_hooks(without: &[Without]) -> Result<Vec<Hook>, String> {
    // Nobody reads the rings, so the window does not matter; a full ring only counts.
    let object = object().map_err(|error| error.to_string())?;
    let bpf = Bpf::load(object, &bpf_options(without, Duration::from_secs(1), true))
        .map_err(|error| error.to_string())?;
    Ok(hooks_of(bpf.hooks()))
}

/// Loads what `plimsoll run` uses, with or without the last line, or takes it over from the agent before. Of records that come in floods, at most one per cgroup is
/// sent in `window`. `said` gets a line for what was removed.
///
/// # Errors
/// In words, when nothing at all could be attached.
pub fn load_bpf(
    without: &[Without],
    window: Duration,
    last_line: bool,
    owner: &PinOwner,
    said: impl FnMut(String),
) -> Result<(Bpf, Pinning), String> {
    let object = object().map_err(|error| error.to_string())?;
    Bpf::load_pinned(
        object,
        &bpf_options(without, window, last_line),
        owner,
        said,
    )
    .map_err(|error| error.to_string())
}

/// Whether that finds its programs pinned by an agent before.
///
/// # Errors
/// As a text for people.
pub fn is_pinned(
    without: &[Without],
    window: Duration,
    last_line: bool,
    owner: &PinOwner,
) -> Result<bool, String> {
    let object = object().map_err(|error| error.to_string())?;
    Bpf::is_pinned(object, &bpf_options(without, window, last_line), owner)
        .map_err(|error| error.to_string())
}

fn bpf_options(without: &[Without], window: Duration, last_line: bool) -> BpfOptions {
    let mut hooks = HookSet::ALL;
    if !last_line {
        hooks = hooks.without(Family::LastLine);
    }
    BpfOptions {
        hooks,
        without: match (
            without.contains(&Without::Fentry),
            without.contains(&Without::Tracepoint),
        ) {
            (false, false) => &[],
            (true, false) => &[HookKind::Fentry, HookKind::Fexit],
            (false, true) => &[HookKind::TpBtf],
            (true, true) => &[HookKind::Fentry, HookKind::Fexit, HookKind::TpBtf],
        },
        window,
    }
}

/// Asks the agent that runs, if one does.
fn records(args: &CheckArgs) -> Option<Result<AccountReport, String>> {
    let socket = socket_path(&args.state_dir, args.control_socket.as_deref());
    match ask(&socket, &Request::Records) {
        Ok(Answer::Records(records)) => records.map(Ok),
        Ok(_) => Some(Err("it answered something else".to_owned())),
        Err(AskError::NoAgent { .. }) => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

/// Checks the machine and writes the report to `out`.
///
/// `load` loads and attaches the BPF programs, reports on its hooks and detaches them; it is not called where that is
/// ruled out already.
///
/// # Errors
/// [`CheckError`] for a bad `--cgroup-root` or an unwritable `out`.
pub fn run_with(
    args: &CheckArgs,
    host: &HostRoot,
    load: impl FnOnce(&[Without]) -> Result<Vec<Hook>, String>,
    out: &mut impl io::Write,
    color: bool,
) -> Result<ExitCode, CheckError> {
    let cgroup_root = CgroupPath::new(&args.cgroup_root).map_err(CheckError::CgroupRoot)?;
    let mut facts = Facts::probe(host, &cgroup_root, &args.without, Ok(Vec::new()));
    facts.bpf = match facts.without_bpf() {
        Some(obstacle) => Err(obstacle.to_string()),
        None => load(&args.without),
    };
    let mut report = Report::new(facts);
    report.records = records(args);
    match args.output {
        Output::Text => out.write_all(report.render(color).as_bytes())?,
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &report).map_err(io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(ExitCode::from(report.exit_status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::capabilities::Capabilities;
    use crate::probe::facts::HookKind;
    use crate::probe::facts::tests::everything;

    #[test]
    fn a_full_machine_has_no_losses() {
        let report = Report::new(everything());
        assert_eq!(report.exit_status, EXIT_FULL);
        assert_eq!(report.losses(), Vec::<String>::new());
        let text = report.render(false);
        assert!(text.contains("memory threshold            fentry           reported by the charge that crosses it\n"), "{text}");
        assert!(
            text.contains(
                "charges_count         page_counter_try_charge         fentry  attached\n"
            ),
            "{text}"
        );
        assert!(!text.contains("LOST") && !text.contains('\x1b'), "{text}");
        assert!(report.render(true).contains("\x1b[32mattached\x1b[0m"));
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
        let report = Report::new(facts);
        assert_eq!(report.exit_status, EXIT_DEGRADED);
        let text = report.render(false);
        assert_eq!(
            text.matches("ask whoever runs the host").count(),
            1,
            "one remedy for all losses:\n{text}"
        );
        let losses = report.losses();
        assert_eq!(losses.len(), 8, "{losses:#?}");
        assert!(
            losses
                .iter()
                .all(|line| !line.contains('\n')
                    && line.contains("To mend: ask whoever runs the host")),
            "{losses:#?}"
        );
        assert!(
            report
                .render(false)
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
            let losses = Report::new(facts).losses();
            !losses.iter().any(|loss| loss.starts_with("safety net: "))
        };
        assert!(!has_safety_net(facts.clone()));
        facts.without = vec![Without::Psi];
        assert!(has_safety_net(facts));
    }

    #[test]
    fn each_missing_capability_is_named_with_what_it_costs() {
        let report = Report::new(Facts {
            // All but CAP_KILL and CAP_SYS_NICE.
            capabilities: Some(Capabilities::from_bits(!(1 << 5 | 1 << 23))),
            ..everything()
        });
        assert_eq!(report.exit_status, EXIT_DEGRADED);
        let text = report.render(false);
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
            losses[0].starts_with("CAP_KILL: no signal reaches"),
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
        let losses = Report::new(facts).losses();
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
        let report = Report::new(Facts {
            memory: Err(reason.clone()),
            ..everything()
        });
        assert_eq!(report.exit_status, EXIT_UNUSABLE);
        assert!(
            report
                .render(false)
                .ends_with(&format!("plimsoll cannot work here: {reason}\n"))
        );
    }

    #[test]
    fn json_has_facts_choices_and_status() {
        let facts = Facts {
            without: vec![Without::Bpf],
            bpf: Err("left out".to_owned()),
            ..everything()
        };
        let json = serde_json::to_value(Report::new(facts)).unwrap();
        assert_eq!(json["exit_status"], 1);
        assert_eq!(json["facts"]["bpf"]["reason"], "left out");
        assert_eq!(json["facts"]["memory"]["ok"], 2);
        assert_eq!(json["facts"]["psi"]["ok"], "privileged");
        assert_eq!(json["choices"][0]["signal"], "memory-threshold");
        assert_eq!(json["choices"][0]["mechanism"], "psi");
        assert_eq!(json["choices"][0]["obstacles"][0]["obstacle"], "without");
        assert_eq!(json["choices"][0]["obstacles"][0]["option"], "bpf");
    }

    #[test]
    fn bpf_is_not_loaded_where_it_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let mut out = Vec::new();
        let args = CheckArgs {
            without: vec![Without::Bpf],
            output: Output::Json,
            ..CheckArgs::default()
        };
        run_with(
            &args,
            &host,
            |_| panic!("must not be called"),
            &mut out,
            false,
        )
        .unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(
            json["exit_status"], EXIT_UNUSABLE,
            "an empty directory has no memory controller"
        );
        assert_eq!(json["facts"]["bpf"]["reason"], "left out by --without bpf");
        let args = CheckArgs {
            cgroup_root: "../x".to_owned(),
            ..CheckArgs::default()
        };
        let error = run_with(
            &args,
            &host,
            |_| panic!("must not be called"),
            &mut out,
            false,
        )
        .unwrap_err();
        assert!(error.to_string().starts_with("--cgroup-root: "), "{error}");
    }
}
