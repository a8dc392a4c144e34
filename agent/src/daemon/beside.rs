//! The start beside a kubelet: what is asked for, and what the agent then does without.

use std::cell::Cell;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_core::kube::node_topology::Alignment;
use plimsoll_core::model::config::EngineConfig;
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::Threshold;
use serde_json::Value;

use crate::host::shown::Show as _;
use crate::input::config::{Config, ConfigFile, EvictionFlags};
use crate::source::cluster::{SOCKET, USER};
use crate::source::node_topology::{ReadAlignment, SOCKET as POD_RESOURCES};

/// More than any configuration has.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Under which key `/configz` has it.
const CONFIGZ_KEY: &str = "kubeletconfig";
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// What there is to say of the kubelet.
#[derive(Debug, Clone, Args)]
pub struct KubeletArgs {
    /// Evict the pods of this node's kubelet, which plimsoll-cluster names and whose evictions it reports; nothing that the kubelet owns is changed
    #[arg(long, conflicts_with = "manifests")]
    pub kubernetes: bool,
    /// Socket at which plimsoll-cluster connects (with --kubernetes)
    #[arg(long, value_name = "PATH", requires = "kubernetes", default_value = SOCKET)]
    pub cluster_socket: PathBuf,
    /// User that may connect there besides root (with --kubernetes)
    #[arg(long, value_name = "UID", requires = "kubernetes", default_value_t = USER)]
    pub cluster_uid: u32,
    /// The kubelet's configuration file, or what its /configz answers: conflicts with the agent's thresholds are reported (with --kubernetes) [default: config.yaml
    /// in --kubelet-dir, if it can be read]
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    pub kubelet_config: Option<PathBuf>,
    /// Say what each NUMA node has left, for a scheduler that binds by it: plimsoll-runtime asks the kubelet, and plimsoll-cluster with the same option
    /// writes this node's NodeResourceTopology (with --kubernetes)
    #[arg(long, requires = "kubernetes")]
    pub node_resource_topology: bool,
    /// Socket on which the kubelet lists what it has given to containers (with --node-resource-topology, or a topologyManagerPolicy)
    #[arg(long, value_name = "PATH", requires = "kubernetes", default_value = POD_RESOURCES)]
    pub pod_resources: PathBuf,
}

/// Reads a kubelet's configuration: its file, or the answer of `/configz`.
///
/// # Errors
/// It cannot be read, or is neither.
pub fn kubelet_config(path: &Path) -> Result<Config, String> {
    let parsed = |text: &str| {
        let file = ConfigFile::parse(text, Some(path)).map_err(|error| error.to_string())?;
        let config = Config::new(file, &EvictionFlags::default());
        config.map_err(|error| error.to_string())
    };
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(CONFIG_BYTES_MAX).read_to_string(&mut text))
        .map_err(|error| format!("{}: {error}", path.shown()))?;
    let answer: Option<Value> = serde_json::from_str(&text).ok();
    match answer.and_then(|mut answer| Some(answer.get_mut(CONFIGZ_KEY)?.take())) {
        Some(Value::Object(mut config)) => {
            // The answer does not say what it is.
            config.insert("apiVersion".to_owned(), API_VERSION.into());
            config.insert("kind".to_owned(), "KubeletConfiguration".into());
            parsed(&Value::Object(config).to_string())
        }
        _ => parsed(&text),
    }
}

/// Reads the kubelet's topology policy from its configuration, each time anew: a kubelet that is started again may have another. `None` where there is no file,
/// or it cannot be read; that is said once for each change.
pub fn alignment(path: PathBuf) -> ReadAlignment {
    let said = Cell::new(false);
    Box::new(move || match kubelet_config(&path) {
        Ok(config) => {
            said.set(false);
            Some(Alignment {
                policy: config.placement.topology_manager_policy,
                scope: config.placement.topology_manager_scope,
            })
        }
        Err(error) => {
            if !said.replace(true) {
                tracing::warn!(
                    "NodeResourceTopology: the kubelet's topology policy is unknown, so the scheduler's plugin will filter nothing: {error}; give --kubelet-config"
                );
            }
            None
        }
    })
}

/// By which settings the kubelet acts before the agent does, a line each.
pub(super) fn conflicts(
    ours: &EngineConfig,
    kubelet: &EngineConfig,
    memory_bytes: u64,
) -> Vec<String> {
    let amount = |config: &EngineConfig| {
        let hard = config.thresholds.iter().filter(|one| one.is_hard());
        let memory = hard.filter(|one| one.signal == Signal::MemoryAvailable);
        memory.map(|one| one.amount(memory_bytes)).max()
    };
    let is_soft = |one: &&Threshold| !one.is_hard() && one.signal == Signal::MemoryAvailable;
    let mut lines = Vec::new();
    if let Some(theirs) = amount(kubelet)
        && amount(ours).is_none_or(|ours| theirs >= ours)
    {
        lines.push(format!(
            "the kubelet's evictionHard memory.available ({} Mi) is met no later than plimsoll's: it evicts by itself, up to ten seconds late; set it lower (50Mi is a net below plimsoll)",
            theirs >> 20
        ));
    }
    if kubelet.thresholds.iter().any(|one| is_soft(&one)) {
        lines.push("the kubelet has an evictionSoft threshold on memory.available: it evicts for it besides plimsoll; take it out of the kubelet's configuration".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn ours(hard: &str) -> EngineConfig {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let text = format!(
            "apiVersion: {API_VERSION}\nkind: KubeletConfiguration\nevictionHard: {{memory.available: {hard}}}\n"
        );
        std::fs::write(&file, text).unwrap();
        kubelet_config(&file).unwrap().engine
    }

    #[test]
    fn a_kubelet_that_evicts_first_is_a_line() {
        let says =
            |ours: &EngineConfig, kubelet: &EngineConfig| conflicts(ours, kubelet, 16 * GIB).len();
        assert_eq!(says(&ours("500Mi"), &ours("50Mi")), 0);
        assert_eq!(says(&ours("500Mi"), &ours("500Mi")), 1);
        assert_eq!(says(&ours("500Mi"), &ours("5%")), 1);
    }

    #[test]
    fn both_forms_of_the_kubelets_configuration_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("configz");
        let text = r#"{"kubeletconfig": {"evictionHard": {"memory.available": "2Gi"}, "evictionSoft": {"memory.available": "3Gi"},
            "evictionSoftGracePeriod": {"memory.available": "1m30s"}, "cgroupDriver": "systemd"}}"#;
        std::fs::write(&file, text).unwrap();
        let kubelet = kubelet_config(&file).unwrap().engine;
        let lines = conflicts(&ours("1Gi"), &kubelet, 16 * GIB);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("2048 Mi"), "{lines:?}");
        std::fs::write(&file, "{\"kubeletconfig\": 7}").unwrap();
        assert!(kubelet_config(&file).is_err());
        assert!(kubelet_config(&dir.path().join("none")).is_err());
    }
}
