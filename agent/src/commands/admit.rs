//! `plimsoll admit`: whether an API server would take objects, what it would make of them, and why not. No cluster, no agent, no root.
//!
//! The plugins are in [`plimsoll_core::kube::admission`]; this module only reads, asks and shows.

pub(crate) mod objects;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use plimsoll_core::kube::admission::Admission;
use plimsoll_core::kube::admission::chain::Admitted;
use plimsoll_core::kube::admission::object::Object;
use plimsoll_core::kube::admission::pod_object::PodObject;
use serde_json::{Value, json};

use self::objects::{Answer, Row, Verdict, ask};
use crate::commands::exit_status::{self, CommandError};
use crate::host::output::{OutputArgs, Style};
use crate::host::shown::{Show as _, page};
use crate::input::manifests::{ManifestError, STDIN};
use crate::serve::control::client::AskError;
use crate::show::admission;

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
    /// Whether the API server's known defects are kept
    #[arg(long, value_enum, default_value_t)]
    pub admission: Defects,
    #[command(flatten)]
    pub(crate) output: OutputArgs<Form>,
}

/// The API server's known defects (decision 0036).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Defects {
    /// Kept: as a cluster answers
    #[default]
    Upstream,
    /// Left out: as the documentation says
    Corrected,
}

impl From<Defects> for Admission {
    fn from(defects: Defects) -> Self {
        match defects {
            Defects::Upstream => Self::Upstream,
            Defects::Corrected => Self::Corrected,
        }
    }
}

/// A form in which objects are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Form {
    /// For people: lines and aligned tables
    #[default]
    Text,
    /// For programs: one JSON document
    Json,
    /// The same document as YAML
    Yaml,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// Files that are wrong; all messages, one a line.
    #[error("nothing is admitted, because the input is invalid:\n{0}")]
    Input(String),
    /// `-` twice.
    #[error("standard input can be read only once; write the other input to a file")]
    StdinTwice,
    /// No agent, or it refuses.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Standard output.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

impl CommandError for AdmitError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::StdinTwice => exit_status::WRONG_USAGE,
            Self::Input(_) | Self::Ask(_) | Self::Output(_) => exit_status::FAILED,
        }
    }
}

impl From<Vec<ManifestError>> for AdmitError {
    fn from(errors: Vec<ManifestError>) -> Self {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Self::Input(lines.join("\n"))
    }
}

/// Refuses `-` twice.
fn check_stdin(files: &[PathBuf]) -> Result<(), AdmitError> {
    let times = files
        .iter()
        .filter(|path| path.as_os_str() == STDIN)
        .count();
    if times > 1 {
        Err(AdmitError::StdinTwice)
    } else {
        Ok(())
    }
}

/// `plimsoll admit`.
///
/// # Errors
/// [`AdmitError`].
pub fn run(args: &AdmitArgs) -> Result<ExitCode, AdmitError> {
    let namespace = args.namespace.as_deref();
    let answer = ask(
        &args.files,
        namespace,
        args.admission.into(),
        io::stdin().lock(),
    )?;
    let mut stdout = io::stdout().lock();
    let text = match args.output.format {
        Form::Text => {
            let lines: Vec<_> = answer.rows.iter().map(Row::line).collect();
            let mut text = admission::answer(&lines, args.why, Style::of(&stdout));
            text += &remarks(&answer.rows);
            page(&text)
        }
        form => document(form, &json!({ "objects": rows(&answer) }))?,
    };
    stdout.write_all(text.as_bytes())?;
    Ok(status(&answer.rows))
}

/// A document in a form for programs.
pub(crate) fn document(form: Form, value: &Value) -> Result<String, AdmitError> {
    Ok(match form {
        Form::Yaml => serde_saphyr::to_string(value).map_err(io::Error::other)?,
        Form::Text | Form::Json => {
            serde_json::to_string_pretty(value).map_err(io::Error::from)? + "\n"
        }
    })
}

/// What is not in the answer.
fn remarks(rows: &[Row]) -> String {
    let owners = rows
        .iter()
        .filter(|row| row.is_owner && !matches!(row.verdict, Verdict::Existing));
    let owners: Vec<String> = owners.map(Row::label).collect();
    if owners.is_empty() {
        return String::new();
    }
    format!(
        "\nNot looked at: the pods that these make later: {}\n",
        owners.join(", ")
    )
}

/// Whether everything was let in.
pub(crate) fn status(rows: &[Row]) -> ExitCode {
    if rows
        .iter()
        .any(|row| matches!(row.verdict, Verdict::Refused(_)))
    {
        ExitCode::from(exit_status::REFUSED)
    } else {
        ExitCode::SUCCESS
    }
}

/// Every object for programs.
fn rows(answer: &Answer) -> Vec<Value> {
    answer.rows.iter().map(row).collect()
}

/// An object for programs.
pub(crate) fn row(row: &Row) -> Value {
    let mut value = json!({
        "kind": row.source.kind,
        "name": row.name,
        "file": row.source.file.shown().to_string(),
        "line": row.source.line(),
    });
    if !row.namespace.is_empty() {
        value["namespace"] = json!(row.namespace);
    }
    let more = match &row.verdict {
        Verdict::Admitted(admitted) => json!({
            "verdict": "Admitted",
            "defaults": admitted.defaults,
            "charges": admitted.charges,
            "object": kept(row, admitted),
        }),
        Verdict::InForce => json!({"verdict": "InForce"}),
        Verdict::Existing => json!({"verdict": "Exists"}),
        Verdict::LeftOut(why) => json!({"verdict": "LeftOut", "why": why}),
        Verdict::Refused(refusal) => {
            let errors = refusal.errors.iter();
            let errors: Vec<Value> = errors
                .map(|error| {
                    let line = row.source.line_of(&error.field);
                    json!({"type": error.kind.as_str(), "field": error.field, "line": line, "message": error.to_string()})
                })
                .collect();
            json!({
                "verdict": "Refused",
                "code": refusal.code,
                "reason": refusal.reason,
                "message": refusal.message,
                "refusedBy": refusal.refused_by,
                "causes": refusal.causes,
                "errors": errors,
            })
        }
    };
    if let (Some(value), Value::Object(more)) = (value.as_object_mut(), more) {
        value.extend(more);
    }
    value
}

/// The document with what admission has set.
fn kept(row: &Row, admitted: &Admitted) -> Value {
    let mut document = row.source.json();
    let meta = admitted.object.meta();
    document["metadata"]["name"] = json!(meta.name);
    document["metadata"]["namespace"] = json!(meta.namespace);
    if let Object::Pod(pod) = &*admitted.object {
        set_pod(&mut document, pod);
    }
    document
}

fn set_pod(document: &mut Value, pod: &PodObject) {
    let spec = &pod.pod.spec;
    if let Some(fields) = document.as_object_mut() {
        fields.remove("status"); // a client's is dropped on creation
    }
    if !pod.meta().annotations.is_empty() {
        document["metadata"]["annotations"] = json!(pod.meta().annotations);
    }
    for (list, containers) in [
        ("containers", &spec.containers),
        ("initContainers", &spec.init_containers),
    ] {
        for (at, container) in containers.iter().enumerate() {
            if let Some(given) = document.pointer_mut(&format!("/spec/{list}/{at}")) {
                set_amounts(&mut given["resources"], &json!(container.resources));
            }
        }
    }
    if let Some(level) = &spec.resources {
        set_amounts(&mut document["spec"]["resources"], &json!(level));
    }
    for (field, value) in [
        ("priorityClassName", json!(spec.priority_class_name)),
        ("priority", json!(spec.priority)),
        ("preemptionPolicy", json!(pod.more.spec.preemption_policy)),
    ] {
        if !value.is_null() {
            document["spec"][field] = value;
        }
    }
}

/// Sets requests and limits, and leaves the rest.
fn set_amounts(resources: &mut Value, amounts: &Value) {
    for list in ["requests", "limits"] {
        if let Some(amounts) = amounts.get(list) {
            resources[list] = amounts.clone();
        }
    }
}
