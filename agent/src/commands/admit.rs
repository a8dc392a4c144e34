//! `plimsoll admit`: whether an API server would take objects, what it would make of them, and why not. No cluster, no
//! agent, no root.
//!
//! [`dry_run`](crate::input::manifests::dry_run) asks, [`admission`] shows.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::commands::exit_status::{self, CommandError};
use crate::host::output::{Document, OutputArgs, StdoutError, Style, print};
use crate::host::shown::page;
use crate::input::error::InputError;
use crate::input::manifests::dry_run::{Defects, Row, Verdict, ask};
use crate::show::admission;
use crate::show::document;

/// Show whether a namespace would take pods and other objects, with which requests and limits, and why not
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll admit -f ./team-a                                        a directory with LimitRanges, quotas, classes and pods
  plimsoll admit -f limits.yaml -f pods.yaml -n team-a --why        where each default comes from, and what each quota counts
  plimsoll admit -f ./team-a --output yaml                          the objects as the API server would keep them
  kubectl get limitrange,quota,priorityclass,pods -n team-a -o yaml | plimsoll admit -f - -f web.yaml -n team-a

LimitRanges, quotas and priority classes decide wherever they stand; pods, claims, services and objects that are only counted are asked for in the order \
of the files. What has a resourceVersion exists already: it is counted and not asked for. A quota with a status is taken as it is. Of a Deployment and its \
like only the object is counted: its pods are made later. Objects of other kinds are named as left out.")]
pub struct AdmitArgs {
    /// Objects: a file, a directory, or - for standard input; may be repeated
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    pub files: Vec<PathBuf>,
    /// Namespace of objects that name none [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Also show where each default comes from, and what each quota counts
    #[arg(long)]
    pub why: bool,
    /// Follow the API server's behaviour, or its documentation where the two differ
    #[arg(long, value_enum, default_value_t)]
    pub admission: Defects,
    #[command(flatten)]
    pub(crate) output: OutputArgs<Document>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The files.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Standard output.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl CommandError for AdmitError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Input(error) => error.exit_status(),
            Self::Output(_) => exit_status::FAILED,
        }
    }
}

/// `plimsoll admit`.
///
/// # Errors
/// [`AdmitError`].
pub fn run(args: &AdmitArgs) -> Result<ExitCode, AdmitError> {
    let namespace = args.namespace.as_deref();
    let answer = ask(&args.files, namespace, args.admission, io::stdin().lock())?;
    let text = match args.output.format {
        Document::Text => {
            let lines: Vec<_> = answer.rows.iter().map(admission::line).collect();
            let mut text = admission::answer(&lines, args.why, Style::of(&io::stdout()));
            text += &remarks(&answer.rows);
            page(&text)
        }
        form => {
            let rows: Vec<Value> = answer.rows.iter().map(admission::json).collect();
            document(form, &json!({ "objects": rows }))?
        }
    };
    print(text)?;
    Ok(status(&answer.rows))
}

/// What is not in the answer.
fn remarks(rows: &[Row]) -> String {
    let owners = rows
        .iter()
        .filter(|row| row.is_owner && !matches!(row.verdict, Verdict::Existing));
    let owners: Vec<String> = owners.map(admission::label).collect();
    if owners.is_empty() {
        return String::new();
    }
    format!(
        "\nNot looked at: the pods that these make later: {}\n",
        owners.join(", ")
    )
}

/// Whether everything was let in.
fn status(rows: &[Row]) -> ExitCode {
    if rows
        .iter()
        .any(|row| matches!(row.verdict, Verdict::Refused(_)))
    {
        ExitCode::from(exit_status::REFUSED)
    } else {
        ExitCode::SUCCESS
    }
}
