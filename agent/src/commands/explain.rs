//! `plimsoll explain`: what a running agent sees, which pod it would evict, and why; or what it saw, from a journal.
//!
//! The agent computes the explanation ([`plimsoll_core::explain`]) and sends it over its control socket; this module
//! asks and shows.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use plimsoll_core::kube::admission::object::LimitRange;
use plimsoll_core::kube::admission::standing::QuotaUse;

use crate::commands::exit_status::{self, CommandError};
use crate::host::output::{Output, OutputArgs, StdoutError, Style, json, print};
use crate::host::shown::{Show as _, line, page};
use crate::input::manifests::ManifestError;
use crate::input::manifests::objects::{self, Item};
use crate::record::steps::{Difference, JournalReadError, at_seconds, replay_until};
use crate::serve::control::client::{AskError, ask};
use crate::serve::control::server::answer;
use crate::serve::control::{AgentArgs, Answer, Refusal, RefusalKind, Request};

/// Explain a running agent: eviction ranking, OOM kill order, cost of limits, placement
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll explain eviction                          thresholds, the ranking, the next pod
  plimsoll explain eviction default/web              one pod: its rank, and what would make it safe
  plimsoll explain eviction --signal nodefs.available
  plimsoll explain oom                               oom_score_adj, and which process the kernel would kill
  plimsoll explain cpu                               exclusive CPUs, and the shared pool
  plimsoll explain memory                            limits reached, stalls, pages read back, OOM kills, and what they mean
  plimsoll explain throttling default/web            cost of its CPU limit, what plimsoll adds, and why no more
  plimsoll explain topology default/web              hints of each provider, the merged hint, rejected NUMA nodes
  plimsoll explain eviction --journal run.journal --at 1234.567   as it was at that time
  kubectl get resourcequota -A -o yaml | plimsoll explain eviction team-a/web --quotas -   with the quotas of its namespace, beside a kubelet

Only root may ask, unless the agent runs with --control-group. Read-only.")]
pub struct ExplainArgs {
    /// What to explain
    #[arg(value_enum)]
    pub what: What,
    /// Pod: namespace/name, an unambiguous name, or a UID
    pub pod: Option<String>,
    /// Rank for this signal [default: the one that is met, or nearest to its threshold]
    #[arg(long, value_name = "SIGNAL")]
    pub signal: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    /// Explain from this journal instead of asking a running agent
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Time in the journal, in seconds as `plimsoll replay` prints it [default: the end]
    #[arg(long, value_name = "SECONDS", requires = "journal", value_parser = at_seconds)]
    pub at: Option<u64>,
    /// ResourceQuotas with their status, and LimitRanges, for a pod of a cluster: a file, or - for standard input
    #[arg(long, value_name = "PATH")]
    pub quotas: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What to explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Thresholds, the ranking, and the next pod to be evicted
    Eviction,
    /// `oom_score_adj`, and which process the kernel's OOM killer would kill
    Oom,
    /// CPU throttling and suppression: cost, what plimsoll adds, and why no more
    Throttling,
    /// Memory of pods against request and limit, by NUMA node, and the cost of limits
    Memory,
    /// Containers with exclusive CPUs and memory
    Cpu,
    /// The same, with hints of CPUs, memory and devices, and rejected NUMA nodes
    Topology,
}

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// No agent, or it refuses.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalReadError),
    /// `--signal` with something else than `eviction`.
    #[error("--signal applies only to `explain eviction`")]
    Signal,
    /// `--quotas` with something else than a pod of `eviction`.
    #[error("--quotas applies only to `explain eviction POD`")]
    QuotasOfNoPod,
    /// Standard output.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl CommandError for ExplainError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Ask(AskError::Refused(Refusal {
                kind:
                    RefusalKind::UnknownPod | RefusalKind::AmbiguousPod | RefusalKind::UnknownSignal,
                ..
            })) => exit_status::REFUSED,
            Self::Signal | Self::QuotasOfNoPod => exit_status::WRONG_USAGE,
            _ => exit_status::FAILED,
        }
    }
}

/// `plimsoll explain`.
///
/// # Errors
/// [`ExplainError`].
pub fn run(args: &ExplainArgs) -> Result<ExitCode, ExplainError> {
    let given = match &args.quotas {
        Some(_) if args.what != What::Eviction || args.pod.is_none() => {
            return Err(ExplainError::QuotasOfNoPod);
        }
        Some(path) => given(path, io::stdin().lock()),
        None => Given::default(),
    };
    // An eviction does not depend on a quota: what can be explained is.
    for error in &given.unread {
        eprintln!("plimsoll: {}", line(&error.to_string()));
    }
    let mut answer = answer_to(args)?;
    if let Answer::Eviction(explained) = answer {
        let explained = explained.with_quotas(&given.quotas);
        answer = Answer::Eviction(Box::new(explained.with_ranges(&given.ranges)));
    }
    let text = match args.output.format {
        Output::Text => {
            let style = Style::of(&io::stdout());
            page(&crate::show::explain::render(
                &answer,
                args.what == What::Topology,
                style,
            ))
        }
        Output::Json => json_of(&answer)?,
    };
    print(text)?;
    Ok(if given.unread.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(exit_status::FAILED)
    })
}

/// What a file says of the pod's namespace.
#[derive(Default)]
struct Given {
    quotas: Vec<QuotaUse>,
    /// With the API's defaults.
    ranges: Vec<LimitRange>,
    /// What is wrong with those that cannot be read.
    unread: Vec<ManifestError>,
}

/// Reads quotas and LimitRanges. A quota without status is named: nothing is known about it.
fn given(path: &Path, stdin: impl io::Read) -> Given {
    let read = objects::read(&[path.to_owned()], None, stdin);
    let (mut quotas, mut ranges) = (Vec::new(), Vec::new());
    for (source, item) in read.items {
        let quota = match item {
            Item::Quota(quota) => quota,
            Item::LimitRange(mut range) => {
                range.set_defaults();
                ranges.push(*range);
                continue;
            }
            _ => continue,
        };
        let name = format!("{}/{}", quota.metadata.namespace, quota.metadata.name);
        let status = quota.status;
        if status.hard.is_empty() && !quota.spec.hard.is_empty() {
            eprintln!(
                "plimsoll: {}:{}: status: ResourceQuota {} has none, so what is in use of it is not known; give it as `kubectl get resourcequota -o yaml` prints it",
                source.file.shown(),
                source.line(),
                name.shown()
            );
            continue;
        }
        quotas.push(QuotaUse::alone(name, status.hard, status.used));
    }
    Given {
        quotas,
        ranges,
        unread: read.errors,
    }
}

fn json_of(answer: &Answer) -> Result<String, StdoutError> {
    match answer {
        Answer::Eviction(answer) => json(answer),
        Answer::Oom(answer) => json(answer),
        Answer::Throttling(answer) => json(answer),
        Answer::Memory(answer) => json(answer),
        Answer::Placement(answer) => json(answer),
        Answer::AgentPlacement(answer) => json(answer),
        Answer::Records(answer) => json(answer),
        Answer::Health(answer) => json(answer),
        Answer::Overview(answer) => json(answer),
    }
}

fn answer_to(args: &ExplainArgs) -> Result<Answer, ExplainError> {
    let pod = args.pod.clone();
    let request = match args.what {
        What::Eviction => Request::ExplainEviction {
            signal: args.signal.clone(),
            pod,
        },
        _ if args.signal.is_some() => return Err(ExplainError::Signal),
        What::Oom => Request::ExplainOom { pod },
        What::Throttling => Request::ExplainThrottling { pod },
        What::Memory => Request::ExplainMemory { pod },
        What::Cpu | What::Topology => Request::ExplainPlacement { pod },
    };
    let Some(journal) = &args.journal else {
        return Ok(ask(&args.agent.socket(), &request)?);
    };
    let (replayed, snapshot) = replay_until(journal, args.at.unwrap_or(u64::MAX), |_, _| Ok(()))?;
    if let Some(Difference { line, .. }) = replayed.difference {
        eprintln!(
            "plimsoll: {}:{line}: from here this version decides differently from the one that wrote the journal; this is the state at that line",
            journal.shown()
        );
    }
    answer(&request, &snapshot).map_err(|refusal| AskError::from(refusal).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_as_kubectl_prints_them() {
        let quota = |name: &str, status: &str| {
            format!(
                "- {{apiVersion: v1, kind: ResourceQuota, metadata: {{name: {name}, namespace: team}}, spec: {{hard: {{pods: 10}}}}{status}}}\n"
            )
        };
        let list = format!(
            "apiVersion: v1\nkind: List\nitems:\n{}{}{}",
            quota("wrong", ", status: {used: {pods: many}}"),
            quota("compute", ", status: {hard: {pods: 10}, used: {pods: 9}}"),
            quota("new", "")
        );
        let Given {
            quotas,
            unread: errors,
            ..
        } = given(Path::new("-"), list.as_bytes());
        let names: Vec<_> = quotas.iter().map(|quota| quota.quota.as_str()).collect();
        assert_eq!(names, ["team/compute"], "one without status says nothing");
        assert_eq!(quotas[0].nearly_used_up().count(), 1);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let place = "standard input:4: items[0].status.used[pods]: ResourceQuota team/wrong: quantity \"many\"";
        assert!(
            errors.len() == 1 && errors[0].starts_with(place),
            "{errors:?}"
        );
        // A file that is no YAML, or is not there, says so and nothing more.
        for (path, text) in [("-", "items: ["), ("missing.yaml", "")] {
            let Given {
                quotas,
                unread: errors,
                ..
            } = given(Path::new(path), text.as_bytes());
            assert_eq!((quotas.len(), errors.len()), (0, 1), "{path}");
        }
    }

    #[test]
    fn exit_statuses() {
        let refused = |kind| ExplainError::from(AskError::from(Refusal::new(kind, "")));
        assert_eq!(
            refused(RefusalKind::UnknownPod).exit_status(),
            exit_status::REFUSED
        );
        assert_eq!(
            refused(RefusalKind::Busy).exit_status(),
            exit_status::FAILED
        );
        for usage in [ExplainError::Signal, ExplainError::QuotasOfNoPod] {
            assert_eq!(usage.exit_status(), exit_status::WRONG_USAGE);
        }
    }
}
