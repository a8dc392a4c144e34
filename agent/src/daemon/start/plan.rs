//! What the agent is to do, as its arguments, its configuration and the host say, before it changes anything.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use plimsoll_core::model::options::EvictionOptions;
use plimsoll_core::placement::device::ListedDevices;
use tokio::sync::mpsc;

use crate::act::placement::{KubeletProcess, kubelet_process};
use crate::daemon::start::kubelet::{
    KUBELET_CONFIG, RunningConfig, alignment, other_root, running_config,
};
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupMounts, CgroupPath, Controller, Version};
use crate::host::ledger::{KnobError, Ledger};
use crate::host::shown::Show as _;
use crate::host::state_dir::{has_no_space, try_space};
use crate::host::state_lock::{LockError, StateLock};
use crate::input::config::{Config, ConfigFile, Effective};
use crate::pods;
use crate::pods::names::{KubeletTree, TreeError};
use crate::serve::http;
use crate::source::cluster::ClusterLink;
use crate::source::nri::NriSettings;
use crate::source::pod_resources::{IN_KUBELET_DIR, Outlets, ResourceSettings, TopologySource};
use crate::storage::filesystem::KubeletRoot;
use crate::storage::runtime::RuntimeSettings;
use crate::storage::{LOGS_DIR, StorageSettings};

use super::args::RunArgs;

/// What the arguments, the configuration and the host say. Nothing has been changed yet.
pub(super) struct Plan<'a> {
    pub(super) args: &'a RunArgs,
    pub(super) config: Config,
    pub(super) remarks: Vec<String>,
    pub(super) host: HostRoot,
    pub(super) mounts: CgroupMounts,
    pub(super) cgroup_root: CgroupPath,
    pub(super) kubepods: CgroupPath,
    /// `None`: no kubelet runs the pods.
    pub(super) kubelet: Option<KubeletTree>,
    /// What that kubelet is configured to; `Ok(None)`: no configuration of one was found.
    pub(super) kubelets_config: Result<Option<RunningConfig>, String>,
    pub(super) listener: Option<TcpListener>,
    /// Why the state directory takes nothing. Then no kernel setting is changed.
    pub(super) no_space: Option<String>,
}

impl<'a> Plan<'a> {
    pub(super) fn check(args: &'a RunArgs) -> Result<Self> {
        let file = args.config.as_deref().map(ConfigFile::read).transpose()?;
        let effective = Effective::new(file.unwrap_or_default(), &args.eviction)?;
        let remarks = effective.remarks();
        let mut config = effective.config;
        set_options(args, &mut config.engine.options);
        let cgroup_root = match &args.cgroup_root {
            Some(path) => CgroupPath::new(path).context("--cgroup-root")?,
            None => CgroupPath::new(&config.cgroups.root).context("cgroupRoot")?,
        };
        let host = HostRoot::live();
        let mounts = host.cgroup_mounts()?;
        anyhow::ensure!(
            !config.fail_cgroup_v1
                || mounts.hierarchy_of(Controller::Memory)?.version == Version::V2,
            "failCgroupV1 is true, and memory is controlled by cgroup v1 here: boot with cgroup v2, or set failCgroupV1: false"
        );
        let tree = || KubeletTree::find(&mounts, &cgroup_root);
        let kubelet = args.kubelet.kubernetes.then(tree).transpose()?;
        config.engine.beside_kubelet = kubelet.is_some();
        let kubelets_config = match &kubelet {
            Some(_) => {
                let given = args.kubelet.kubelet_config.as_deref();
                running_config(&host, given, &args.kubelet_dir)
            }
            None => Ok(None),
        };
        let kubepods = match &kubelet {
            Some(tree) => tree.kubepods().clone(),
            None => pods::cgroup::kubepods_path(&cgroup_root)?,
        };
        if kubelet.is_none() {
            refuse_kubelets_pods(&host, &kubepods, tree())?;
        }
        Ok(Self {
            args,
            config,
            remarks: remarks
                .iter()
                .filter(|remark| kubelet.is_none() || remark.field != "cgroupDriver")
                .map(|remark| format!("{}: {}", remark.field, remark.text))
                .collect(),
            kubepods,
            kubelet,
            kubelets_config,
            host,
            mounts,
            cgroup_root,
            listener: args.listen.map(http::bind).transpose()?,
            no_space: None,
        })
    }

    /// The lock of the state directory. `None` where that is full or read-only and has none from before.
    pub(super) fn lock(&mut self) -> Result<Option<StateLock>, LockError> {
        let lock = match StateLock::acquire(&self.args.state_dir) {
            Err(error) if error.is_out_of_space() => {
                self.no_space = Some(error.to_string());
                return Ok(None);
            }
            lock => lock?,
        };
        if let Err(error) = try_space(&self.args.state_dir)
            && has_no_space(&error)
        {
            self.no_space = Some(format!("{}: {error}", self.args.state_dir.shown()));
        }
        Ok(Some(lock))
    }

    /// The configuration by which the cgroups and logs of pods are as they are: the kubelet's where one runs them and
    /// its configuration was found.
    pub(super) fn of_pods(&self) -> &Config {
        match &self.kubelets_config {
            Ok(Some(kubelet)) => &kubelet.config,
            Ok(None) | Err(_) => &self.config,
        }
    }

    /// Where pods' logs are.
    pub(super) fn logs_dir(&self) -> PathBuf {
        let configured = &self.of_pods().storage.pod_logs_dir;
        match &self.args.logs_dir {
            Some(given) => given.clone(),
            None if configured.is_absolute() => configured.clone(),
            None => PathBuf::from(LOGS_DIR),
        }
    }

    /// What there is to say of logs that are not seen.
    pub(super) fn unseen_logs(&self) -> Option<String> {
        let dir = self.logs_dir();
        // The usual one is missing where no pod has started yet.
        let is_seen = dir == Path::new(LOGS_DIR) || self.host.path(&dir).is_dir();
        (!is_seen).then(|| {
            format!(
                "logs of pods: the kubelet has them in {}, which cannot be seen here, so they count for no pod: mount that directory, or give its name here with --logs-dir",
                dir.shown()
            )
        })
    }

    /// The ledger of this name, in the state directory.
    pub(super) fn ledger(&self, name: &str) -> Result<Ledger, KnobError> {
        let path = self.args.state_dir.join(name);
        match &self.no_space {
            Some(why) => Ledger::closed(&self.host, path, why.clone()),
            None => Ledger::open(&self.host, path),
        }
    }
}

/// Without a kubelet the agent writes limits and weights of the cgroups above its pods: those of a kubelet are not its
/// to write.
fn refuse_kubelets_pods(
    host: &HostRoot,
    kubepods: &CgroupPath,
    found: Result<KubeletTree, TreeError>,
) -> Result<()> {
    let is_kubelets = found.is_ok_and(|tree| tree.kubepods() == kubepods);
    if is_kubelets && let Some(KubeletProcess { pid, program }) = kubelet_process(host) {
        anyhow::bail!(
            "{program} (pid {pid}) runs a kubelet, and {kubepods} is where such a one has its pods: start with --kubernetes to watch them, or give pods of --manifests another --cgroup-root"
        );
    }
    Ok(())
}

/// What arguments turn on that the configuration may have, too.
fn set_options(args: &RunArgs, options: &mut EvictionOptions) {
    if args.last_line {
        options.last_line.get_or_insert_with(Default::default);
    }
    options.disruption_budgets |= args.kubelet.respect_disruption_budgets;
}

/// Where the node's disks are, and how often they are read.
pub(super) fn disks(plan: &Plan<'_>) -> StorageSettings {
    let Plan { args, config, .. } = plan;
    let live = StorageSettings::live(plan.cgroup_root.clone());
    let cycle = Duration::from_nanos(config.storage.volume_stats_period_ns);
    StorageSettings {
        host: plan.host.clone(),
        kubelet_dir: args.kubelet_dir.clone(),
        kubelet_root: match &plan.kubelet {
            None => KubeletRoot::Unused,
            Some(_) => match other_root(&plan.host, &args.kubelet_dir) {
                Some(root) => KubeletRoot::Elsewhere(root),
                None => KubeletRoot::Here,
            },
        },
        logs_dir: plan.logs_dir(),
        image_dir: args.image_dir.clone(),
        container_dir: args.container_dir.clone(),
        has_images: plan.kubelet.is_some(),
        runtime: runtime_settings(args),
        // 0 turns the kubelet's survey off; limits on local storage need one.
        cycle: if cycle.is_zero() { live.cycle } else { cycle },
        ..live
    }
}

/// The container runtime, and `plimsoll-runtime`, in the directory of this program.
pub(super) fn runtime_settings(args: &RunArgs) -> Option<RuntimeSettings> {
    let socket = args.runtime_endpoint.clone()?;
    let program = runtime_program();
    Some(RuntimeSettings { socket, program })
}

/// What asks the kubelet what it has given to containers, where an option wants it, or the loop that places them near
/// to their devices.
pub(super) fn topology_source(
    plan: &Plan<'_>,
    link: &ClusterLink,
    devices: Option<mpsc::Sender<Option<Arc<ListedDevices>>>>,
) -> Option<io::Result<TopologySource>> {
    let args = &plan.args;
    let zones = args.kubelet.node_resource_topology;
    if !zones && devices.is_none() {
        return None;
    }
    let in_dir = || args.kubelet_dir.join(IN_KUBELET_DIR);
    let settings = ResourceSettings {
        socket: args.kubelet.pod_resources.clone().unwrap_or_else(in_dir),
        program: runtime_program(),
    };
    let config = kubelet_config_path(args);
    let outlets = Outlets {
        zones: zones.then(|| link.topology()),
        devices,
    };
    let host = plan.host.clone();
    Some(TopologySource::start(
        settings,
        host,
        alignment(config),
        outlets,
    ))
}

/// The kubelet's configuration: the file that was given, or the one in its directory, which many kubelets have.
pub(super) fn kubelet_config_path(args: &RunArgs) -> PathBuf {
    let given = args.kubelet.kubelet_config.clone();
    given.unwrap_or_else(|| args.kubelet_dir.join(KUBELET_CONFIG))
}

/// Where the runtime takes plugins, where one runs the pods.
pub(super) fn nri_settings(plan: &Plan<'_>) -> Option<NriSettings> {
    plan.kubelet.as_ref()?;
    Some(NriSettings {
        socket: plan.args.nri_socket.clone(),
        runtime: plan.args.runtime_endpoint.clone()?,
        program: runtime_program(),
    })
}

/// In the directory of this program.
fn runtime_program() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program.with_file_name("plimsoll-runtime")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn arguments_turn_options_on_and_none_off() {
        let options = |arguments: &[&str], disruption_budgets| {
            let arguments = ["plimsoll-agent", "--kubernetes"].iter().chain(arguments);
            let mut options = EvictionOptions {
                disruption_budgets,
                ..EvictionOptions::default()
            };
            set_options(&Line::parse_from(arguments).run, &mut options);
            (options.disruption_budgets, options.last_line.is_some())
        };
        assert_eq!(options(&[], false), (false, false));
        assert_eq!(options(&[], true), (true, false));
        let on = ["--respect-disruption-budgets", "--last-line"];
        assert_eq!(options(&on, false), (true, true));
        let alone = ["plimsoll-agent", "--respect-disruption-budgets"];
        assert!(Line::try_parse_from(alone).is_err(), "without a kubelet");
    }
}
