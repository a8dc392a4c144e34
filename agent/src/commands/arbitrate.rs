//! `plimsoll arbitrate`: who may have how much of a cluster and who gives it back, from files. No cluster, no agent, no
//! root.
//!
//! Objects are read as `kubectl get … -o yaml` prints them ([`crate::input::cluster`]); what is computed is one cycle
//! of the arbitrator ([`plimsoll_core::arbitration`]), whose rules docs/reference/arbitrator.md has in plain words.

mod what_if;

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use plimsoll_core::arbitration::amounts::TooManyResources;
use plimsoll_core::arbitration::arbitrate;
use plimsoll_core::arbitration::named::{Objects, Resolved};

use crate::commands::exit_status::{self, CommandError};
use crate::host::clock::wall;
use crate::host::output::{Drawing, OutputArgs, StdoutError, Style, json, print};
use crate::host::shown::{Show as _, page};
use crate::input::cluster::{self, seconds_since_1970};
use crate::input::error::InputError;
use crate::input::manifests::stdin_once;
use crate::show::arbitrate::{Answer, svg};
use what_if::{Change, WhatIfError};

/// Show who may have how much of a cluster, and who gives it back, from files
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  kubectl get nodes,namespaces,pods,pdb,consumers.plimsoll.dev -A -o yaml > cluster.yaml
  plimsoll arbitrate -f cluster.yaml                      shares, who is over and under, the plan
  plimsoll arbitrate -f cluster.yaml -f consumers.yaml    with Consumers from another file
  plimsoll arbitrate -f cluster.yaml --why spark          what ended its share, who has the rest
  plimsoll arbitrate -f cluster.yaml --what-if node=cpu=16,memory=64Gi
  plimsoll arbitrate -f cluster.yaml --what-if weight=spark,4
  plimsoll arbitrate -f cluster.yaml --what-if namespace=new,pods=20,cpu=1,memory=2Gi
  plimsoll arbitrate -f cluster.yaml --output svg > shares.svg

Nothing is changed anywhere. The rules: docs/reference/arbitrator.md.
Of what keeps a pod from a node only spec.nodeSelector is read.")]
pub struct ArbitrateArgs {
    /// Objects as kubectl prints them, YAML or JSON: a file, or - for standard input; may be repeated
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    pub files: Vec<PathBuf>,
    /// Explain the share of this namespace or Consumer
    #[arg(long, value_name = "NAMESPACE")]
    pub why: Option<String>,
    /// Change the cluster first: node=RESOURCE=AMOUNT,… namespace=NAME,pods=COUNT,RESOURCE=AMOUNT,…
    /// weight=CONSUMER,WEIGHT; may be repeated
    #[arg(long, value_name = "CHANGE")]
    pub what_if: Vec<Change>,
    /// Count ages up to this time, such as 2026-11-23T02:39:40Z [default: now]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub now: Option<u64>,
    #[command(flatten)]
    pub(crate) output: OutputArgs<Drawing>,
}

fn time(text: &str) -> Result<u64, String> {
    seconds_since_1970(text).ok_or_else(|| "write it as 2026-11-23T02:39:40Z".to_owned())
}

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
pub enum ArbitrateError {
    /// The files.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Files without an object that counts.
    #[error(
        "nothing is computed: the files have no Node, Pod, Namespace or Consumer{0}; give what `kubectl get nodes,namespaces,pods,pdb,consumers.plimsoll.dev -A -o yaml` prints"
    )]
    Nothing(String),
    /// More resources than can be computed with.
    #[error(transparent)]
    Resources(#[from] TooManyResources),
    /// A change that cannot be made.
    #[error(transparent)]
    WhatIf(#[from] WhatIfError),
    /// `--why` of nothing.
    #[error("--why {0}: there is no such namespace or Consumer; without --why all are listed")]
    Unknown(String),
    /// Standard output.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl CommandError for ArbitrateError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Input(error) => error.exit_status(),
            Self::WhatIf(_) | Self::Unknown(_) => exit_status::REFUSED,
            Self::Nothing(_) | Self::Resources(_) | Self::Output(_) => exit_status::FAILED,
        }
    }
}

/// `plimsoll arbitrate`.
///
/// # Errors
/// [`ArbitrateError`].
pub fn run(args: &ArbitrateArgs) -> Result<ExitCode, ArbitrateError> {
    let style = Style::of(&io::stdout());
    let now = args.now.unwrap_or_else(|| wall().as_secs());
    let (text, left_out) = answer(args, io::stdin().lock(), now, style)?;
    if !left_out.is_empty() {
        eprint!(
            "{}",
            page(&format!("plimsoll: not used: {}\n", left_out.join(", ")))
        );
    }
    print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// The text to be printed, and the objects that are not used.
fn answer(
    args: &ArbitrateArgs,
    stdin: impl Read,
    now_s: u64,
    style: Style,
) -> Result<(String, Vec<String>), ArbitrateError> {
    stdin_once(&args.files)?;
    let files = cluster::read(&args.files, stdin, now_s)
        .map_err(|errors| InputError::invalid("nothing is computed", &errors))?;
    let left_out: Vec<String> = files
        .left_out
        .iter()
        .map(|(kind, count)| format!("{count} {}", kind.shown()))
        .collect();
    let mut original: Objects = files.objects;
    let is_nothing = original.nodes.is_empty()
        && original.pods.is_empty()
        && original.namespaces.is_empty()
        && original.consumers.is_empty();
    if is_nothing {
        let only = match left_out.as_slice() {
            [] => String::new(),
            kinds => format!(", only {}", kinds.join(", ")),
        };
        return Err(ArbitrateError::Nothing(only));
    }
    let mut objects = original.clone();
    for change in &args.what_if {
        change.apply(&mut objects)?;
    }
    for objects in [&mut original, &mut objects] {
        objects.keep_from_nodes_without();
    }
    let Resolved {
        cluster,
        conditions,
    } = objects.resolve()?;
    let cycle = arbitrate(&cluster);
    let before = if args.what_if.is_empty() {
        None
    } else {
        Some(original.resolve()?.cluster)
    };
    let before = before.map(|cluster| {
        let cycle = arbitrate(&cluster);
        (cluster, cycle)
    });
    let before = before.as_ref().map(|(cluster, cycle)| (cluster, cycle));
    let answer = Answer::new(&cluster, &cycle, &objects.pods, &conditions, before);
    let why = args.why.as_ref().map(|name| {
        let serves = |name: &String| {
            objects
                .consumers
                .iter()
                .find(|consumer| consumer.namespace.as_ref() == Some(name))
                .map(|consumer| &consumer.name)
        };
        let at = cluster
            .names
            .iter()
            .position(|known| Some(known) == serves(name).or(Some(name)));
        at.map(|at| answer.why(at))
            .ok_or_else(|| ArbitrateError::Unknown(name.shown().to_string()))
    });
    let why = why.transpose()?;
    let text = match (args.output.format, why) {
        (Drawing::Text, Some(why)) => page(&why),
        (Drawing::Text, None) => page(&answer.text(style)),
        (Drawing::Json, why) => {
            let mut value = answer.json();
            if let Some(why) = why {
                value["why"] = why.into();
            }
            json(&value)?
        }
        (Drawing::Svg, _) => svg::draw(&answer),
    };
    Ok((text, left_out))
}

#[cfg(test)]
mod tests;
