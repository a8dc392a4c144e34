//! `plimsoll config check|print`: whether a file would be accepted, what it comes to, and where each value comes from.
//! Needs no root and touches nothing.

pub mod print;

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::commands::config::print::{json, origin};
use crate::commands::exit_status;
use crate::host::output::{self, Output, OutputArgs, StdoutError, Style};
use crate::host::shown::page;
use crate::input::config::document::{Node, Origin, Value};
use crate::input::config::flags::EvictionFlags;
use crate::input::config::kubelet::FIELDS;
use crate::input::config::remarks::class_of_entry;
use crate::input::config::resolve::Effective;
use crate::input::config::schema::{Class, Shape};
use crate::input::config::{ConfigError, ConfigFile, Remark, display_name};
use crate::show::table::{Table, Tone};

/// Check configuration files, or print the effective configuration
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    #[expect(missing_docs, reason = "its own type says what it is")]
    pub command: ConfigCommand,
}

/// What is to be done.
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Check whether files are valid, and show what plimsoll does with each field
    #[command(after_help = "\
Examples:
  plimsoll config check -f /var/lib/kubelet/config.yaml
  plimsoll config check -f kubelet.yaml --all
  plimsoll config check -f a.yaml -f b.json --output json
  kubectl get cm -n kube-system kubelet-config -o jsonpath={.data.kubelet} | plimsoll config check -f -

Without a file: defaults and flags. Fields that only the kubelet uses are accepted and ignored; --all shows them, too.")]
    Check(CheckArgs),
    /// Print the effective configuration: file, flags and defaults, as a valid file
    #[command(after_help = "\
Examples:
  plimsoll config print
  plimsoll config print -f /var/lib/kubelet/config.yaml --eviction-hard 'memory.available<1Gi'
  plimsoll config print -f kubelet.yaml --all --output json

Text output is YAML with the origin of each value as a comment: default, line of the file, or flag. JSON has no origins.")]
    Print(PrintArgs),
}

/// Arguments of `config check`.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Configuration file, YAML or JSON, or - for standard input; may be repeated
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Also show unset fields with their defaults, and fields that only the kubelet uses
    #[arg(short = 'v', long)]
    pub all: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its own type says what it is")]
    pub eviction: EvictionFlags,
}

/// Arguments of `config print`.
#[derive(Debug, Clone, Args)]
pub struct PrintArgs {
    /// Configuration file, YAML or JSON, or - for standard input
    #[arg(short, long = "file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Also print fields that only the kubelet uses
    #[arg(short = 'v', long)]
    pub all: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its own type says what it is")]
    pub eviction: EvictionFlags,
}

/// What `check` says of one file, as `--output json`.
#[derive(Debug, Serialize)]
struct FileReport<'a> {
    file: Option<&'a Path>,
    accepted: bool,
    errors: Vec<Line>,
    /// Accepted, and not done as the kubelet would.
    remarks: Vec<Line>,
    /// As in the kubelet, and perhaps not meant.
    hints: Vec<Line>,
    fields: Vec<FieldLine>,
}

/// Something that is said of a field.
#[derive(Debug, Serialize)]
struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flag: Option<&'static str>,
    field: String,
    reason: String,
}

impl Line {
    fn new(origin: Origin, field: &str, reason: &str) -> Self {
        let (line, flag) = match origin {
            Origin::File { line } => (Some(line), None),
            Origin::Flag(flag) => (None, Some(flag)),
            Origin::Default => (None, None),
        };
        Self {
            line,
            flag,
            field: field.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

/// A field, or one entry of a map.
#[derive(Debug, Serialize)]
struct FieldLine {
    field: String,
    value: serde_json::Value,
    from: String,
    class: &'static str,
}

/// Runs the command.
///
/// # Errors
/// If `print` has nothing to print, or the answer cannot be written.
pub fn run(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        ConfigCommand::Check(args) => Ok(check(args)?),
        ConfigCommand::Print(args) => {
            let effective = Effective::new(read(args.file.as_deref())?, &args.eviction)?;
            output::print(match args.output.format {
                Output::Text => page(&effective.yaml(args.all)),
                Output::Json => format!("{:#}\n", effective.json(args.all)),
            })?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn read(path: Option<&Path>) -> Result<ConfigFile, ConfigError> {
    path.map_or_else(|| Ok(ConfigFile::default()), ConfigFile::read)
}

fn check(args: &CheckArgs) -> Result<ExitCode, StdoutError> {
    let paths: Vec<Option<&Path>> = if args.files.is_empty() {
        vec![None]
    } else {
        args.files.iter().map(|path| Some(path.as_path())).collect()
    };
    let style = Style::of(&io::stdout());
    let mut answer = String::new();
    let mut status = exit_status::DONE;
    for (index, path) in paths.into_iter().enumerate() {
        let result = read(path).and_then(|file| Effective::new(file, &args.eviction));
        if result.is_err() {
            status = exit_status::FAILED;
        }
        match args.output.format {
            Output::Json => {
                let report = report(path, &result, args.all);
                answer += &serde_json::to_string(&report)?;
                answer.push('\n');
            }
            Output::Text => {
                if index > 0 {
                    answer.push('\n');
                }
                answer += &page(&text(path, &result, args.all, style));
            }
        }
    }
    output::print(answer)?;
    Ok(ExitCode::from(status))
}

fn report<'a>(
    path: Option<&'a Path>,
    result: &Result<Effective, ConfigError>,
    all: bool,
) -> FileReport<'a> {
    let mut report = FileReport {
        file: path,
        accepted: result.is_ok(),
        errors: Vec::new(),
        remarks: Vec::new(),
        hints: Vec::new(),
        fields: Vec::new(),
    };
    match result {
        Err(ConfigError::Invalid(problems)) => {
            report.errors = problems
                .problems
                .iter()
                .map(|problem| Line::new(problem.origin, &problem.field, &problem.reason))
                .collect();
        }
        Err(error) => report.errors = vec![Line::new(Origin::Default, "", &error.to_string())],
        Ok(effective) => {
            let lines = |remarks: &[Remark]| {
                let lines = remarks
                    .iter()
                    .map(|remark| Line::new(remark.origin, &remark.field, &remark.text));
                lines.collect()
            };
            report.remarks = lines(&effective.remarks());
            report.hints = lines(&effective.hints());
            report.fields = fields(effective, all);
        }
    }
    report
}

/// The rows of the table: what file and flags set, or everything.
fn fields(effective: &Effective, all: bool) -> Vec<FieldLine> {
    let mut rows = Vec::new();
    for field in FIELDS {
        let Some(node) = effective.root.get(field.name) else {
            continue;
        };
        match (&field.shape, &node.value) {
            (Shape::Map(_) | Shape::Object(_), Value::Map(entries)) if !entries.is_empty() => {
                // As in messages: a dot before a field, a colon before a key.
                let separator = match field.shape {
                    Shape::Object(_) => ".",
                    _ => ": ",
                };
                for entry in entries {
                    let name = format!("{}{separator}{}", field.name, entry.key);
                    let class = class_of_entry(field, &entry.key);
                    leaves(&name, &entry.node, class, all, &mut rows);
                }
            }
            _ => leaves(field.name, node, field.class, all, &mut rows),
        }
    }
    rows
}

fn leaves(name: &str, node: &Node, class: Class, all: bool, rows: &mut Vec<FieldLine>) {
    match &node.value {
        Value::Map(entries) if !entries.is_empty() => {
            for entry in entries {
                leaves(
                    &format!("{name}.{}", entry.key),
                    &entry.node,
                    class,
                    all,
                    rows,
                );
            }
        }
        value if all || (node.origin != Origin::Default && class != Class::Kubelet) => {
            rows.push(FieldLine {
                field: name.to_owned(),
                value: json(value),
                from: origin(node.origin),
                class: class.as_str(),
            });
        }
        _ => {}
    }
}

fn text(
    path: Option<&Path>,
    result: &Result<Effective, ConfigError>,
    all: bool,
    style: Style,
) -> String {
    let name = path.map_or_else(|| "no file".to_owned(), display_name);
    let effective = match result {
        Ok(effective) => effective,
        Err(error) => {
            let verdict = style.red(&format!("{name}: refused"));
            return format!("{verdict}\n{error}\n");
        }
    };
    let given = |class: Class| {
        let of_class = FIELDS.iter().filter(|field| field.class == class);
        of_class
            .filter(|field| {
                effective
                    .root
                    .get(field.name)
                    .is_some_and(|node| node.origin != Origin::Default)
            })
            .count()
    };
    let verdict = style.green(&format!("{name}: accepted"));
    let mut text = format!(
        "{verdict}; of the fields that are set, {} {}, {} {}, {} {}\n",
        given(Class::Used),
        Class::Used.as_str(),
        given(Class::NotActedOn),
        Class::NotActedOn.as_str(),
        given(Class::Kubelet),
        Class::Kubelet.as_str(),
    );
    let rows = fields(effective, all);
    if !rows.is_empty() {
        let mut table = Table::new(&["FIELD", "VALUE", "FROM", "CLASS"], &[]);
        for row in rows {
            let value = match row.value {
                serde_json::Value::String(text) => text,
                other => other.to_string(),
            };
            let tone = if row.class == Class::Kubelet.as_str() {
                Tone::Faint
            } else {
                Tone::Plain
            };
            table.row(tone, vec![row.field, value, row.from, row.class.to_owned()]);
        }
        text += &table.render(style);
    }
    let mut say = |what: String, remarks: Vec<Remark>| {
        for remark in remarks {
            let place = match remark.origin {
                Origin::File { line } => format!("{name}:{line}"),
                other => origin(other),
            };
            // Writing to a String cannot fail.
            writeln!(text, "{what} {place}: {}: {}", remark.field, remark.text).ok();
        }
    };
    say(style.yellow("remark:"), effective.remarks());
    say(style.dim("hint:"), effective.hints());
    text
}
