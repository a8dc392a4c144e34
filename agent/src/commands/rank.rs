//! `plimsoll rank`: in which order pods would be evicted, from manifests and figures in files. No agent, no root, no
//! kernel.
//!
//! Manifests are read, defaulted and validated as `plimsoll run` does it, and ranked by the code that evicts
//! ([`plimsoll_core::policy::eviction::rank`]); this module only shows it.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use plimsoll_core::explain::{Candidate, ExplainedRanking, RankedPod};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::model::file_system::ImageFsLayout;
use plimsoll_core::model::rank_row::Comparator;
use plimsoll_core::model::signal::{Resource, SIGNALS, Signal, SignalRow, Unit};
use plimsoll_core::policy::oom::score::oom_score_adj;
use serde::Serialize;

use crate::commands::exit_status::{self, CommandError};
use crate::host::output::{Output, OutputArgs, StdoutError, Style, json, print};
use crate::host::shown::page;
use crate::input::error::InputError;
use crate::input::manifests::{Bounds, ManifestError, gather, read_or_stdin, stdin_once};
use crate::input::usage::Usages;
use crate::show::ranking_table::ranking_table;
use crate::show::table::bytes;

/// Show the order in which pods would be evicted, from files
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll rank -f pods.yaml --usage usage.yaml
  plimsoll rank -f ./pods --usage usage.yaml --signal nodefs.available --image-fs dedicated
  kubectl get --raw /api/v1/nodes/NODE/proxy/stats/summary > summary.json
  kubectl get pods -A --field-selector spec.nodeName=NODE -o yaml | plimsoll rank -f - --usage summary.json

usage.yaml (a pod that is missing has no statistics and ranks first; a missing figure is 0):
  default/web:
    memoryWorkingSet: 300Mi
    processes: 12
    containers: {app: {rootfs: {bytes: 1Gi, inodes: 100}, logs: {bytes: 20Mi, inodes: 3}}}
    volumes: {cache: {bytes: 2Gi, inodes: 5000}}")]
pub struct RankArgs {
    /// Pod manifests: a file, a directory, or - for standard input; may be repeated
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    pub files: Vec<PathBuf>,
    /// Usage of the pods: a file as below, or a kubelet's /stats/summary; - for standard input
    #[arg(long, value_name = "FILE")]
    pub usage: Option<PathBuf>,
    /// Eviction signal to rank for
    #[arg(long, value_name = "SIGNAL", default_value = Signal::MemoryAvailable.row().name,
        value_parser = PossibleValuesParser::new(kubelet_signals()))]
    pub signal: String,
    /// Location of images and writable layers
    #[arg(long, value_enum, default_value_t)]
    pub image_fs: ImageFs,
    /// Memory of the node, e.g. 16Gi; also shows oom_score_adj of each container
    #[arg(long, value_name = "QUANTITY", value_parser = capacity)]
    pub memory_capacity: Option<NonZeroU64>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Location of images and writable layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ImageFs {
    /// On the file system of the kubelet's directory
    #[default]
    Shared,
    /// Both on a separate file system
    Dedicated,
    /// Images on a separate file system, writable layers on that of the kubelet's directory
    Split,
}

impl From<ImageFs> for ImageFsLayout {
    fn from(layout: ImageFs) -> Self {
        match layout {
            ImageFs::Shared => Self::Shared,
            ImageFs::Dedicated => Self::Dedicated,
            ImageFs::Split => Self::Split,
        }
    }
}

fn capacity(text: &str) -> Result<NonZeroU64, String> {
    let quantity = Quantity::parse(text).map_err(|error| error.to_string())?;
    u64::try_from(quantity.value())
        .ok()
        .and_then(NonZeroU64::new)
        .ok_or_else(|| "must be more than 0".to_owned())
}

/// Why there is no ranking.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// The files.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Standard output.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl CommandError for RankError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Input(error) => error.exit_status(),
            Self::Output(_) => exit_status::FAILED,
        }
    }
}

/// A ranking, and what it is about.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    signal: &'a str,
    image_fs: ImageFsLayout,
    /// What usage is.
    counted: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_capacity_bytes: Option<NonZeroU64>,
    /// The pod that would be evicted.
    next: Option<&'a str>,
    comparators: &'a [Comparator],
    pods: Vec<Row<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    #[serde(flatten)]
    ranked: &'a RankedPod,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<ContainerScore<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerScore<'a> {
    name: &'a str,
    oom_score_adj: i32,
}

/// `plimsoll rank`.
///
/// # Errors
/// [`RankError`].
pub fn run(args: &RankArgs) -> Result<ExitCode, RankError> {
    let style = Style::of(&io::stdout());
    let text = answer(args, io::stdin().lock(), style, |remark| {
        eprint!("{}", page(&format!("plimsoll: {remark}\n")));
    })?;
    print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// The text to be printed. What is not wrong and yet worth knowing goes to `remark`.
fn answer(
    args: &RankArgs,
    mut stdin: impl io::Read,
    style: Style,
    mut remark: impl FnMut(String),
) -> Result<String, RankError> {
    stdin_once(args.files.iter().chain(&args.usage))?;
    let (manifests, errors) = gather(&args.files, &mut stdin);
    if !errors.is_empty() {
        return Err(invalid(&errors).into());
    }
    let pods: BTreeMap<PodUid, Arc<Pod>> = manifests
        .into_iter()
        .map(|pod| (pod.pod.uid(), pod.pod))
        .collect();
    let usages = match &args.usage {
        Some(path) => read_usage(path, &pods, stdin).map_err(|errors| invalid(&errors))?,
        None => {
            remark("without --usage no pod has statistics, so only priorities count".into());
            Usages::default()
        }
    };
    if !usages.unknown.is_empty() {
        remark(format!(
            "not ranked, because they have no manifest: {}",
            usages.unknown.join(", ")
        ));
    }
    // The parser of the argument accepts no other name.
    let signal = Signal::from_name(&args.signal).unwrap_or(Signal::MemoryAvailable);
    let resource = signal.row().resource;
    let layout = args.image_fs.into();
    let candidates = pods
        .iter()
        .map(|(uid, pod)| Candidate {
            pod: pod.full_name(),
            qos_class: pod.qos_class(),
            exempt: pod.exemption(),
            row: resource.row(pod, usages.pods.get(uid), layout),
        })
        .collect();
    let ranking = ExplainedRanking::new(resource.ranking(), candidates);
    let scores = |ranked: &RankedPod| {
        args.memory_capacity
            .zip(pods.get(&ranked.uid))
            .map_or_else(Vec::new, |(capacity, pod)| {
                pod.all_containers()
                    .map(|container| ContainerScore {
                        name: &container.name,
                        oom_score_adj: oom_score_adj(pod, container, capacity),
                    })
                    .collect()
            })
    };
    let answer = Answer {
        signal: &args.signal,
        image_fs: layout,
        counted: resource.describe(layout),
        memory_capacity_bytes: args.memory_capacity,
        next: ranking.next().map(|ranked| ranked.pod.as_str()),
        comparators: &ranking.comparators,
        pods: ranking
            .pods
            .iter()
            .map(|ranked| Row {
                ranked,
                containers: scores(ranked),
            })
            .collect(),
    };
    Ok(match args.output.format {
        Output::Text => answer.table(signal.row(), style),
        Output::Json => json(&answer)?,
    })
}

/// Those by which a file of usages can rank: the others are about rates, or about one part of the node.
fn kubelet_signals() -> Vec<&'static str> {
    let rows = SIGNALS.iter().filter(|row| row.kubelet);
    rows.map(|row| row.name).collect()
}

fn invalid(errors: &[ManifestError]) -> InputError {
    InputError::invalid("no ranking", errors)
}

fn read_usage(
    path: &Path,
    pods: &BTreeMap<PodUid, Arc<Pod>>,
    stdin: impl io::Read,
) -> Result<Usages, Vec<ManifestError>> {
    let (file, text) = read_or_stdin(path, stdin, Bounds::OFFLINE.bytes);
    let text = text.map_err(|error| vec![error])?;
    crate::input::usage::parse(&file, &text, pods)
}

impl Answer<'_> {
    fn table(&self, signal: &SignalRow, style: Style) -> String {
        let mut text = format!("{} ranks by {}.\n\n", self.signal, self.counted);
        text += &ranking_table(
            self.pods
                .iter()
                .map(|row| (row.ranked, scores(&row.containers))),
            |value| {
                if signal.usage_unit() == Unit::Bytes {
                    bytes(value)
                } else {
                    value.to_string()
                }
            },
            self.memory_capacity_bytes.is_some(),
        )
        .render(style);
        if matches!(signal.resource, Resource::DiskInodes(_)) {
            text += "\nPods request no inodes: like the kubelet, plimsoll subtracts the request for disk space (bytes).\n";
        }
        text += &match (self.next, self.pods.is_empty()) {
            (Some(pod), _) => format!("\nNext to be evicted: {}\n", style.bold(pod)),
            (None, true) => "\nThere are no pods.\n".to_owned(),
            (None, false) => "\nNo pod can be evicted: all pods are exempt.\n".to_owned(),
        };
        text
    }
}

fn scores(containers: &[ContainerScore<'_>]) -> String {
    let scores: Vec<String> = containers
        .iter()
        .map(|it| format!("{}={}", it.name, it.oom_score_adj))
        .collect();
    scores.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: RankArgs,
    }

    const PODS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: app, resources: {requests: {memory: 100Mi}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: batch}
spec: {containers: [{name: job, resources: {requests: {memory: 50Mi}}}], volumes: [{name: scratch, emptyDir: {}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: dns, namespace: kube-system}
spec: {priorityClassName: system-node-critical, containers: [{name: dns}]}
";
    const USAGE: &str = "\
default/web: {memoryWorkingSet: 300Mi, processes: 5}
default/batch: {memoryWorkingSet: 40Mi, processes: 90, volumes: {scratch: {bytes: 2Gi, inodes: 70}}}
kube-system/dns: {memoryWorkingSet: 900Mi}
";

    fn answer_to(arguments: &[&str], pods: &str, usage: &str) -> Result<String, RankError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("usage.yaml");
        std::fs::write(&file, usage).unwrap();
        let mut line = vec!["rank", "-f", "-", "--usage", file.to_str().unwrap()];
        line.extend(arguments);
        let args = Cli::try_parse_from(line).unwrap().args;
        answer(&args, pods.as_bytes(), Style { color: false }, |remark| {
            panic!("{remark}")
        })
    }

    #[test]
    fn a_table_for_people() {
        let text = answer_to(&["--memory-capacity", "1Gi"], PODS, USAGE).unwrap();
        assert_eq!(
            text,
            "\
memory.available ranks by bytes of the working set.

RANK  POD                PRIORITY  QOS         USAGE  REQUEST  USAGE-REQUEST  AHEAD OF THE NEXT BY   EXEMPT                    OOM_SCORE_ADJ
   1  default/web               0  Burstable   300Mi    100Mi          200Mi  lower priority                                   app=903
   2  kube-system/dns  2000001000  BestEffort  900Mi        0          900Mi  exceeding its request  system-critical priority  dns=-997
   3  default/batch             0  Burstable    40Mi     50Mi          -10Mi                                                   job=952

Next to be evicted: default/web
"
        );
    }

    #[test]
    fn each_signal_has_its_order() {
        let next = |arguments: &[&str]| {
            let mut all = vec!["--output", "json"];
            all.extend(arguments);
            let text = answer_to(&all, PODS, USAGE).unwrap();
            let json: serde_json::Value = serde_json::from_str(&text).unwrap();
            json["next"].as_str().unwrap().to_owned()
        };
        assert_eq!(next(&["--signal", "memory.available"]), "default/web");
        assert_eq!(next(&["--signal", "pid.available"]), "default/batch");
        assert_eq!(next(&["--signal", "nodefs.inodesFree"]), "default/batch");
        let images = ["--signal", "imagefs.available", "--image-fs", "dedicated"];
        // No pod has a writable layer: requests are nought, UIDs decide.
        assert_eq!(next(&images), "default/batch");
    }

    #[test]
    fn json_says_what_the_table_says() {
        let text = answer_to(
            &["--output", "json", "--memory-capacity", "1Gi"],
            PODS,
            USAGE,
        );
        let json: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!(json["signal"], "memory.available");
        assert_eq!(json["memoryCapacityBytes"], 1 << 30);
        let [web, dns, _] = json["pods"].as_array().unwrap().as_slice() else {
            panic!("{json:#}");
        };
        assert_eq!(web["usageOverRequest"], 200 << 20);
        assert_eq!(web["aheadOfNextBy"], "priority");
        assert_eq!(web["containers"][0]["oomScoreAdj"], 903);
        assert_eq!(dns["standing"], "skipped");
        assert_eq!(dns["exempt"], "systemPriority");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = answer_to(&[], &PODS.replace("100Mi", "100Qi"), USAGE).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("standard input:4: spec.containers[0]"),
            "{text}"
        );
        let text = answer_to(&[], PODS, "default/none: {}")
            .unwrap_err()
            .to_string();
        assert!(text.contains("usage.yaml:1: default/none"), "{text}");
        let twice = Cli::try_parse_from(["rank", "-f", "-", "--usage", "-"]).unwrap();
        assert!(matches!(
            answer(&twice.args, io::empty(), Style { color: false }, drop),
            Err(RankError::Input(InputError::StdinTwice))
        ));
        for bad in [
            &["rank"][..],
            &["rank", "-f", "a", "--signal", "memory.free"],
            &["rank", "-f", "a", "--memory-capacity", "0"],
        ] {
            assert!(Cli::try_parse_from(bad).is_err());
        }
    }

    #[test]
    fn without_usage_nobody_has_statistics() {
        let args = Cli::try_parse_from(["rank", "-f", "-"]).unwrap().args;
        let mut remarks = Vec::new();
        let text = answer(&args, PODS.as_bytes(), Style { color: false }, |remark| {
            remarks.push(remark);
        });
        assert!(text.unwrap().contains("  ?  "));
        assert!(remarks[0].contains("--usage"), "{remarks:?}");
    }
}
