//! The arguments of `plimsoll-agent`, which `plimsoll run` passes on.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use plimsoll_core::protocol::runtime_link::NRI_SOCKET;

use crate::daemon::start::kubelet::KubeletArgs;
use crate::host::output::OutputArgs;
use crate::input::config::EvictionFlags;
use crate::probe::mechanism::WithoutArgs;
use crate::serve::control::STATE_DIR;
use crate::serve::http;
use crate::storage::KUBELET_DIR;

/// Watch this node and evict pods before the kernel's OOM killer has to
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll run --manifests ./pods
  plimsoll run --manifests ./pods --eviction-hard 'memory.available<1Gi' --journal /var/log/plimsoll.journal
  plimsoll run --manifests ./pods --config kubelet-eviction.yaml --output json
  plimsoll run --kubernetes --config eviction.yaml

Stops on SIGINT and SIGTERM. Pods keep running, and every kernel setting that was changed is restored.

Exit status: 0 stopped by a signal; 1 it could not start or continue (the message says why and what to do); 2 wrong usage; \
70 its loop hung for a minute (the message says where).")]
pub struct RunArgs {
    /// Directory of Kubernetes manifests (YAML or JSON): pods, and the LimitRanges, ResourceQuotas and PriorityClasses
    /// that decide about them; a pod whose manifest is removed is ended
    #[arg(long, value_name = "DIR", default_value = "/etc/plimsoll/pods")]
    pub manifests: PathBuf,
    /// Configuration file: a KubeletConfiguration, YAML or JSON; see `plimsoll config check`
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Cgroup that contains kubepods, relative to the cgroup mount
    /// [default: cgroupRoot of the configuration, or the mount itself]
    #[arg(long, value_name = "CGROUP")]
    pub cgroup_root: Option<String>,
    /// State directory of the agent
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Socket on which other commands ask the agent: explain, top, web, quota, health and others
    /// [default: control.sock in the state directory, or in DIR-control with --control-group]
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
    /// Group (name or number) that may use the socket, which is then in a directory of its own beside the state
    /// directory [default: root only]
    #[arg(long, value_name = "GROUP")]
    pub control_group: Option<String>,
    /// Serve metrics, health and statistics over HTTP on this address, e.g. 127.0.0.1:9186 [default: off]. Warns if it
    /// is not loopback
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = http::address)]
    pub listen: Option<SocketAddr>,
    /// Export metrics for each pod, at most 1024 pods (with --listen)
    #[arg(long, requires = "listen")]
    pub metrics_per_pod: bool,
    /// Write every event and decision to this file, for `plimsoll replay`
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its type says what it is")]
    pub output: OutputArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its type says what it is")]
    pub without: WithoutArgs,
    /// The kubelet's root directory, which contains the volumes; its file system is nodefs
    #[arg(long, value_name = "DIR", default_value = KUBELET_DIR)]
    pub kubelet_dir: PathBuf,
    /// Directory of pods' logs [default: podLogsDir of the configuration, /var/log/pods]
    #[arg(long, value_name = "DIR")]
    pub logs_dir: Option<PathBuf>,
    /// A directory on imagefs, the file system of images [default: the container runtime's, if there is one]
    #[arg(long, value_name = "DIR")]
    pub image_dir: Option<PathBuf>,
    /// A directory on containerfs, the file system of writable layers [default: as for images]
    #[arg(long, value_name = "DIR")]
    pub container_dir: Option<PathBuf>,
    /// Socket of the container runtime (CRI): unused images and ended containers are removed when their disk is short,
    /// before any pod is evicted [default: no runtime is asked]
    #[arg(long, value_name = "PATH", value_parser = runtime_endpoint)]
    pub runtime_endpoint: Option<PathBuf>,
    /// Socket on which the container runtime takes plugins (NRI), with --kubernetes and --runtime-endpoint: containers
    /// get their scores before they start, and those of evicted pods are refused with the reason; without it they get
    /// both after their start
    #[arg(long, value_name = "PATH", default_value = NRI_SOCKET, value_parser = runtime_endpoint)]
    pub nri_socket: PathBuf,
    /// File of the devices that pods may request, with their NUMA nodes; `plimsoll place --help` shows the format
    #[arg(long, value_name = "FILE")]
    pub devices: Option<PathBuf>,
    /// Keep the eviction order in the kernel, so that a BPF program kills when memory is short and plimsoll does not
    /// react (plimsoll.lastLine of the configuration)
    #[arg(long)]
    pub last_line: bool,
    /// Move interrupts off CPUs that are exclusive to a container (with cpuManagerPolicy static)
    #[arg(long)]
    pub move_interrupts: bool,
    /// Leave the BPF programs pinned on exit for the next agent, so that an upgrade leaves no gap
    #[arg(long)]
    pub keep_on_exit: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its type says what it is")]
    pub kubelet: KubeletArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its type says what it is")]
    pub eviction: EvictionFlags,
}

/// As the kubelet's option of this name has it (`unix:///run/…`), or a path.
fn runtime_endpoint(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or(text));
    path.is_absolute().then_some(path).ok_or_else(|| {
        "an absolute path is needed, such as /run/containerd/containerd.sock".to_owned()
    })
}
