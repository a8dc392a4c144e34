//! `plimsoll quota`: what the quotas of namespaces have left, and who takes how much, from files; or what those of a
//! running agent have left.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use plimsoll_core::kube::admission::object::{ResourceQuota, Scope};
use plimsoll_core::kube::admission::resource_quota::recalculate::Counts;
use plimsoll_core::kube::admission::standing::{QuotaUse, RefusedPod, label};
use plimsoll_core::kube::resources::ResourceList;
use serde_json::{Value, json};

use crate::commands::exit_status::{self, CommandError};
use crate::host::output::{self, Document, OutputArgs, StdoutError, Style};
use crate::host::shown::page;
use crate::input::error::InputError;
use crate::input::manifests::dry_run::{Defects, Row, Verdict, ask};
use crate::serve::control::AgentArgs;
use crate::serve::control::client::{AskError, ask_overview};
use crate::show::admission::{self, Line, Outcome, QuotaLines, amounts};
use crate::show::document;

/// Show what the quotas of namespaces have left, and who takes how much: from files, or of a running agent
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll quota -f ./team-a                          as if all of it were created in an empty namespace
  plimsoll quota -f ./team-a -n team-a -o json
  kubectl get quota,limitrange,pods,pvc,services -n team-a -o yaml | plimsoll quota -f - -f web.yaml -n team-a
  plimsoll quota -n team-a                            what the agent of this machine has admitted, and which pods it refuses

Objects are admitted as by `plimsoll admit`; one that is refused takes nothing. What a quota with a status has in use beyond the objects that \
are given is taken by others. Without files a running agent is asked (plimsoll run --manifests); it names the 16 that take most of a quota, the \
largest part of any resource first (fewer beyond 64 quotas), and says how much all others take.")]
pub struct QuotaArgs {
    /// Objects: a file, a directory, or - for standard input; may be repeated [default: ask the agent]
    #[arg(
        short,
        long = "file",
        value_name = "PATH",
        conflicts_with = "control_socket"
    )]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    /// Show this namespace alone; objects that name none are in it [default: default, and all are shown]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Follow the API server's behaviour, or its documentation where the two differ
    #[arg(long, value_enum, default_value_t)]
    pub admission: Defects,
    #[command(flatten)]
    pub(crate) output: OutputArgs<Document>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// The files.
    #[error(transparent)]
    Input(#[from] InputError),
    /// No agent, or it refuses.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Standard output.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl CommandError for QuotaError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Input(error) => error.exit_status(),
            Self::Ask(_) | Self::Output(_) => exit_status::FAILED,
        }
    }
}

/// What one quota has.
struct OneQuota<'a> {
    quota: &'a ResourceQuota,
    /// Label and amounts.
    takers: Vec<(String, ResourceList)>,
    /// What is in use beyond that.
    others: ResourceList,
    /// By how many objects, if that is known.
    others_count: Option<usize>,
}

/// `plimsoll quota`.
///
/// # Errors
/// [`QuotaError`].
pub fn run(args: &QuotaArgs) -> Result<ExitCode, QuotaError> {
    if args.files.is_empty() {
        return of_agent(args);
    }
    let namespace = args.namespace.as_deref();
    let answer = ask(&args.files, namespace, args.admission, io::stdin().lock())?;
    let is_shown = |quota: &ResourceQuota| {
        namespace.is_none_or(|namespace| quota.metadata.namespace == namespace)
    };
    let quotas: Vec<ResourceQuota> = answer.world.quotas().filter(is_shown).collect();
    let counts = answer.world.counts();
    let quotas = quotas.iter();
    let standings: Vec<OneQuota<'_>> = quotas.map(|quota| OneQuota::of(&counts, quota)).collect();
    let refused: Vec<&Row> = answer
        .rows
        .iter()
        .filter(|row| matches!(row.verdict, Verdict::Refused(_)))
        .collect();
    let lines: Vec<Line<'_>> = refused.iter().map(|row| admission::line(row)).collect();
    let values = || refused.iter().map(|row| admission::json(row)).collect();
    print(args, &standings, &lines, values)
}

/// What the agent of this machine says. It names those that take most of a quota, and has the answer of each refused
/// pod.
fn of_agent(args: &QuotaArgs) -> Result<ExitCode, QuotaError> {
    let overview = ask_overview(&args.agent.socket())?;
    let is_shown = |label: &str| {
        let of = label
            .split_once('/')
            .map_or(label, |(namespace, _)| namespace);
        args.namespace.as_deref().is_none_or(|asked| asked == of)
    };
    let quotas = overview.quotas.iter().filter(|it| is_shown(&it.quota));
    let quotas: Vec<(&QuotaUse, ResourceQuota)> = quotas.map(|it| (it, as_quota(it))).collect();
    let standings = quotas
        .iter()
        .map(|(it, quota)| OneQuota::answered(it, quota));
    let standings: Vec<OneQuota<'_>> = standings.collect();
    let refused = overview.refused.iter().filter(|it| is_shown(&it.pod));
    let refused: Vec<&RefusedPod> = refused.collect();
    let lines: Vec<Line<'_>> = refused.iter().copied().map(refused_line).collect();
    let values = || {
        let refused = refused.iter();
        refused
            .map(|it| json!({"pod": it.pod, "place": it.place, "verdict": "Refused", "message": it.message}))
            .collect()
    };
    print(args, &standings, &lines, values)
}

fn refused_line(pod: &RefusedPod) -> Line<'_> {
    Line {
        label: format!("Pod {}", pod.pod),
        place: pod.place.clone(),
        outcome: Outcome::Refused {
            message: &pod.message,
            causes: Vec::new(),
        },
    }
}

/// A quota as far as the agent tells of it.
fn as_quota(quota: &QuotaUse) -> ResourceQuota {
    let mut object = ResourceQuota::default();
    if let Some((namespace, name)) = quota.quota.split_once('/') {
        namespace.clone_into(&mut object.metadata.namespace);
        name.clone_into(&mut object.metadata.name);
    }
    object.status.hard.clone_from(&quota.hard);
    object.status.used.clone_from(&quota.used);
    object
}

fn print(
    args: &QuotaArgs,
    standings: &[OneQuota<'_>],
    refused: &[Line<'_>],
    values: impl FnOnce() -> Vec<Value>,
) -> Result<ExitCode, QuotaError> {
    let style = Style::of(&io::stdout());
    let text = match args.output.format {
        Document::Text => {
            let lines: Vec<QuotaLines> = standings.iter().map(OneQuota::lines).collect();
            let mut text = match lines.as_slice() {
                [] => "no ResourceQuota: nothing is limited\n".to_owned(),
                lines => admission::quotas(lines, style),
            };
            if !refused.is_empty() {
                text.push('\n');
                text += &admission::answer(refused, false, style);
            }
            page(&text)
        }
        form => {
            let quotas: Vec<Value> = standings.iter().map(OneQuota::json).collect();
            document(form, &json!({"quotas": quotas, "refused": values()}))?
        }
    };
    output::print(text)?;
    let over = standings
        .iter()
        .any(|standing| standing.rows().any(|(_, over)| over));
    Ok(if over || !refused.is_empty() {
        ExitCode::from(exit_status::REFUSED)
    } else {
        ExitCode::SUCCESS
    })
}

impl<'a> OneQuota<'a> {
    /// As the agent says it.
    fn answered(of: &QuotaUse, quota: &'a ResourceQuota) -> Self {
        let takers = of.takers.iter();
        Self {
            quota,
            takers: takers
                .map(|taker| (taker.object.clone(), taker.amounts.clone()))
                .collect(),
            others: of.others.clone(),
            others_count: Some(of.others_count),
        }
    }

    fn of(counts: &Counts<'_>, quota: &'a ResourceQuota) -> Self {
        let mut others = quota.status.used.clone();
        let mut takers = Vec::new();
        for (counted, takes) in counts.takers(quota) {
            for (name, amount) in &takes {
                if let Some(rest) = others.get_mut(name) {
                    *rest -= amount;
                }
            }
            takers.push((label(counted), takes));
        }
        others.retain(|_, amount| amount.sign() > 0);
        Self {
            quota,
            takers,
            others,
            others_count: None,
        }
    }

    /// Name, used, hard and what is left, and whether more is in use than may be.
    fn rows(&self) -> impl Iterator<Item = ([String; 4], bool)> {
        let status = &self.quota.status;
        status.hard.iter().map(|(name, hard)| {
            let Some(used) = status.used.get(name) else {
                return (
                    [
                        name.clone(),
                        "unknown".to_owned(),
                        hard.to_string(),
                        "unknown".to_owned(),
                    ],
                    false,
                );
            };
            let mut left = hard.clone();
            left -= used;
            (
                [
                    name.clone(),
                    used.to_string(),
                    hard.to_string(),
                    left.to_string(),
                ],
                used > hard,
            )
        })
    }

    /// `Terminating`, `PriorityClass In high,low`.
    fn scopes(&self) -> Vec<String> {
        let shown = |scope: Scope<'_>| match (scope.operator, scope.values) {
            ("Exists", _) => scope.scope_name.to_owned(),
            (operator, Some(values)) => {
                format!("{} {operator} {}", scope.scope_name, values.join(","))
            }
            (operator, None) => format!("{} {operator}", scope.scope_name),
        };
        self.quota.scopes().map(shown).collect()
    }

    fn lines(&self) -> QuotaLines {
        let meta = &self.quota.metadata;
        let scopes = self.scopes();
        let takers = self
            .takers
            .iter()
            .map(|(label, takes)| (label.clone(), amounts(takes)));
        let label = match self.others_count {
            Some(count) => format!("{count} others"),
            None => "others".to_owned(),
        };
        let others = Some((label, amounts(&self.others))).filter(|_| !self.others.is_empty());
        QuotaLines {
            label: format!("{}/{}", meta.namespace, meta.name),
            scopes: if scopes.is_empty() {
                String::new()
            } else {
                format!("scopes: {}", scopes.join(", "))
            },
            rows: self.rows().collect(),
            takers: takers.chain(others).collect(),
        }
    }

    fn json(&self) -> Value {
        let meta = &self.quota.metadata;
        let rows: Vec<Value> = self
            .rows()
            .map(|([name, used, hard, left], over)| json!({"name": name, "used": used, "hard": hard, "left": left, "over": over}))
            .collect();
        let takers: Vec<Value> = self
            .takers
            .iter()
            .map(|(label, takes)| json!({"object": label, "amounts": takes}))
            .collect();
        let scopes: Vec<Value> = self
            .quota
            .scopes()
            .map(|scope| {
                let mut value = json!({"scopeName": scope.scope_name, "operator": scope.operator});
                if let Some(values) = scope.values {
                    value["values"] = json!(values);
                }
                value
            })
            .collect();
        let mut value = json!({
            "namespace": meta.namespace,
            "name": meta.name,
            "scopes": scopes,
            "resources": rows,
            "takenBy": takers,
            "others": self.others,
        });
        if let Some(count) = self.others_count {
            value["othersCount"] = json!(count);
        }
        value
    }
}
