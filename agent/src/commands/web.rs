//! `plimsoll web`: one page for a browser, from a running agent or a journal.
//!
//! **Problem.** Who presses on the node, who goes next and why, and what was decided when, are easier to see as
//! pictures than in a terminal; and the agent's process is no place for pages. **Approach.** A process of its own asks
//! the control socket, or steps through a journal, and serves three files and two JSON documents. The page needs
//! nothing from elsewhere. Names of pods are strangers' words: the page shows them as text, and its policy lets no
//! other script run.

mod document;
mod nodes;
mod pages;
mod recorded;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use plimsoll_core::explain::ExplainError;
use serde::Serialize;

use self::nodes::Cluster;
use self::pages::{Source, WebPages};
use self::recorded::Recorded;
use crate::commands::exit_status::CommandError;
use crate::host::output::{StdoutError, print};
use crate::host::stop::StopSignals;
use crate::record::steps::JournalReadError;
use crate::serve::control::AgentArgs;
use crate::serve::control::client::{AskError, ask_overview};
use crate::serve::http::{self, Bounds, ListenError, Server};
use crate::serve::overview::Overview;
use crate::show::pod_words::{candidates, reason, signal_text};

/// Serve a page for browsers: pods by pressure, memory against thresholds, who goes next and why
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll web                                 the local agent, at http://127.0.0.1:9187
  plimsoll web --journal run.journal            a journal, with a time line to go along
  plimsoll web --cluster                       all nodes of a cluster, with kubectl's rights of yours
  ssh -L 9187:127.0.0.1:9187 NODE plimsoll web     a node's page in the browser of this machine

Only root may ask the agent, unless it runs with --control-group. Read-only, without password or encryption: an address other than \
loopback shows names and usage of pods to everyone who can reach it. Ctrl-C ends it.")]
pub struct WebArgs {
    /// Serve on this address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9187", value_parser = http::address)]
    pub listen: SocketAddr,
    /// Also answer browsers that call this host by NAME, e.g. behind a proxy; may be repeated
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// Show this journal instead of asking a running agent
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Show the nodes of a cluster: `kubectl exec` asks each node's agent, with the rights that you have
    #[arg(long, conflicts_with = "journal")]
    pub cluster: bool,
    /// Namespace of the agents
    #[arg(
        long,
        value_name = "NAME",
        default_value = "plimsoll",
        requires = "cluster"
    )]
    pub namespace: String,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// The address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalReadError),
    /// What the journal's state says.
    #[error(transparent)]
    Overview(#[from] ExplainError),
    /// No agent, or it refuses.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// No agent of a cluster could be found.
    #[error("the nodes of the cluster cannot be shown: {0}")]
    Cluster(String),
    /// Signals.
    #[error("the page cannot be served: {0}")]
    Io(#[from] io::Error),
    /// Standard output.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl CommandError for WebError {}

/// What the page shows: the overview, and its sentences.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    overview: &'a Overview,
    /// Each signal against its nearest threshold.
    signals: Vec<String>,
    /// Who could go, the first first.
    candidates: Vec<&'a str>,
    /// Why each pod stands where it stands, by UID.
    reasons: BTreeMap<&'a str, String>,
}

impl<'a> Shown<'a> {
    fn of(overview: &'a Overview) -> Self {
        Self {
            overview,
            signals: overview.signals.iter().filter_map(signal_text).collect(),
            candidates: candidates(overview)
                .into_iter()
                .map(|pod| pod.uid.as_str())
                .collect(),
            reasons: overview
                .pods
                .iter()
                .map(|pod| (pod.uid.as_str(), reason(overview, pod)))
                .collect(),
        }
    }
}

/// `plimsoll web`.
///
/// # Errors
/// [`WebError`].
pub fn run(args: &WebArgs) -> Result<ExitCode, WebError> {
    let source = match &args.journal {
        Some(path) => Source::Recorded(Box::new(Recorded::open(path)?)),
        None if args.cluster => {
            let cluster = Cluster::open(args.namespace.clone()).map_err(WebError::Cluster)?;
            Source::Cluster(cluster.into())
        }
        None => {
            let socket = args.agent.socket();
            // Before anybody opens a browser.
            ask_overview(&socket)?;
            Source::Live(socket)
        }
    };
    let listener = http::bind(args.listen)?;
    let pages = WebPages::new(source, args.hosts.clone());
    let server = Server::start(listener, pages, Bounds::default())?;
    if let Some(warning) = http::exposed(args.listen) {
        eprintln!("plimsoll: {warning}");
    }
    print(format!("http://{}/  (Ctrl-C ends it)\n", server.address()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        StopSignals::catch()?.received().await;
        Ok::<(), io::Error>(())
    })?;
    drop(server);
    Ok(ExitCode::SUCCESS)
}
