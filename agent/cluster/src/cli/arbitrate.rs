//! `plimsoll-cluster arbitrate`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use plimsoll_core::kube::duration;
use serde_json::Value;

use crate::api::Source;
use crate::arbitrate::Settings as Rules;
use crate::arbitrate::judge::Times;
use crate::arbitrate::seen::placement::DEFAULT_SCHEDULER;
use crate::run::arbitrate::Settings;
use crate::run::webhook::Settings as Webhook;
use crate::serve::Address;

pub(super) const AFTER_HELP: &str = "\
Examples:
  plimsoll-cluster arbitrate --listen [::]:9187                   in a pod, with its service account
  plimsoll-cluster arbitrate --webhook [::]:9443                  refuses a wrong Consumer when it is written
  plimsoll-cluster arbitrate --kubeconfig admin.conf --once       says what it would do, and changes nothing
  plimsoll-cluster arbitrate --kubeconfig admin.conf --once --output json
  plimsoll-cluster arbitrate --dry-run                            shares, notices as Events, and no eviction
  plimsoll-cluster arbitrate --grace-period 2m --minimum-run-time 10m

Exit status: 0 ended by SIGTERM or SIGINT, or --once has said it; 1 the configuration cannot be used, or --once could not read the cluster; 2 wrong usage.

Rights and rules: docs/reference/cluster.md, docs/reference/arbitrator.md.";

/// Share the cluster between namespaces with a Consumer: shares, notices, evictions within budgets
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Arbitrate {
    /// Address and credentials [default: the service account of the pod that this runs in]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease plimsoll-arbitrator, which elects the one process that acts
    #[arg(long, value_name = "NAMESPACE", default_value = "plimsoll", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    lease_namespace: String,
    /// Name of this process in the Lease and in Events; a number is appended
    #[arg(
        long,
        env = "POD_NAME",
        value_name = "NAME",
        default_value = "arbitrator"
    )]
    identity: String,
    /// Notice that a pod gets before its eviction, unless its Consumer sets one
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = milliseconds)]
    grace_period: u64,
    /// Minimum time that a pod runs before it can be evicted, unless its Consumer sets one
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = milliseconds)]
    minimum_run_time: u64,
    /// Minimum time between two cycles
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = cycle)]
    cycle: u64,
    /// Maximum number of evictions per second
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=100))]
    max_evictions_per_second: u16,
    /// The scheduler whose pods have room made for them: their `schedulerName`. It has to be a kube-scheduler, or to
    /// keep nominated nodes free as that does
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SCHEDULER, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    scheduler_name: String,
    /// Decide, write shares and Events, and evict no pod: evictions are sent as dry runs
    #[arg(long)]
    dry_run: bool,
    /// Serve /metrics, /healthz and /readyz on this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Check Consumers when they are written: the port of the webhook of deploy/components/arbitrator. The leader makes
    /// its certificate
    #[arg(long, value_name = "ADDRESS:PORT")]
    webhook: Option<SocketAddr>,
    /// DNS name in the webhook's certificate, by which the API server calls it
    /// [default: plimsoll-arbitrator.NAMESPACE.svc, of the Lease's namespace]
    #[arg(long, value_name = "NAME", requires = "webhook", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    webhook_name: Option<String>,
    /// File of CA certificates (PEM): accept only webhook clients whose certificate one of them signed; read again when
    /// it changes
    #[arg(long, value_name = "PATH", requires = "webhook")]
    webhook_client_ca: Option<PathBuf>,
    /// Read the cluster, print shares and plan, then exit
    #[arg(long)]
    once: bool,
    /// Output format of --once
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        value_enum,
        default_value = "text",
        requires = "once"
    )]
    output: Output,
}

/// How something is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people.
    Text,
    /// One object.
    Json,
}

fn milliseconds(text: &str) -> Result<u64, String> {
    let ns = duration::parse_ns(text).map_err(|error| error.to_string())?;
    let ms = u64::try_from(ns / 1_000_000).ok();
    ms.filter(|ms| *ms <= 86_400_000)
        .ok_or_else(|| "give a time from 0s to 24h".to_owned())
}

fn cycle(text: &str) -> Result<u64, String> {
    milliseconds(text).and_then(|ms| {
        let is_right = (100..=60_000).contains(&ms);
        is_right
            .then_some(ms)
            .ok_or_else(|| "give a time from 100ms to 60s".to_owned())
    })
}

impl Arbitrate {
    /// With `--once`: how it prints.
    pub(super) fn once(&self) -> Option<Output> {
        self.once.then_some(self.output)
    }

    pub(super) fn settings(self) -> Settings {
        let namespace = self.lease_namespace;
        let webhook = self.webhook.map(|listen| Webhook {
            listen,
            name: self
                .webhook_name
                .unwrap_or_else(|| format!("plimsoll-arbitrator.{namespace}.svc")),
            namespace: namespace.clone(),
            client_ca: self.webhook_client_ca,
        });
        Settings {
            source: self
                .kubeconfig
                .map_or(Source::InCluster, Source::Kubeconfig),
            rules: Rules {
                times: Times {
                    grace_period_ms: self.grace_period,
                    minimum_run_time_ms: self.minimum_run_time,
                },
                cycle_ms: self.cycle,
                evictions_per_second: self.max_evictions_per_second.into(),
                is_dry: self.dry_run,
                identity: self.identity,
                scheduler: self.scheduler_name,
            },
            lease_namespace: namespace,
            listen: self.listen.map(Address::Tcp),
            webhook,
        }
    }
}

/// What `--once` prints.
pub(super) fn printed(found: &Value, output: Output) -> String {
    if output == Output::Json {
        return format!("{found:#}\n");
    }
    let empty = Vec::new();
    let rows = found["consumers"].as_array().unwrap_or(&empty);
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let mut lines = vec![
        [
            "CONSUMER", "RESOURCE", "RESERVED", "DESERVED", "USED", "HARD", "STATE",
        ]
        .map(str::to_owned),
    ];
    for row in rows {
        let deserved = row["deserved"].as_object();
        for resource in deserved.into_iter().flat_map(|deserved| deserved.keys()) {
            let over = row["over"][resource].as_str();
            let state = over.map_or_else(|| "-".to_owned(), |over| format!("over by {over}"));
            lines.push([
                word(&row["name"]),
                resource.clone(),
                word(&row["reserved"][resource]),
                word(&row["deserved"][resource]),
                word(&row["used"][resource]),
                word(&row["hard"][resource]),
                state,
            ]);
        }
    }
    let mut text = String::new();
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].len())
            .max()
            .unwrap_or(0)
    };
    for line in &lines {
        let cells: Vec<String> = line
            .iter()
            .enumerate()
            .map(|(column, cell)| format!("{cell:<width$}", width = width(column)))
            .collect();
        // Writing into a String does not fail.
        let _never = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    for row in rows {
        for wrong in row["wrong"].as_array().unwrap_or(&empty) {
            let _never = writeln!(
                text,
                "Consumer {}: {}: {}",
                word(&row["name"]),
                word(&wrong["reason"]),
                word(&wrong["message"])
            );
        }
    }
    for reclaim in found["reclaims"].as_array().unwrap_or(&empty) {
        let victims: Vec<String> = reclaim["evict"]
            .as_array()
            .unwrap_or(&empty)
            .iter()
            .map(word)
            .collect();
        let _never = writeln!(
            text,
            "{} gets room on {}: evict {}",
            word(&reclaim["pod"]),
            word(&reclaim["node"]),
            victims.join(", ")
        );
    }
    text
}
