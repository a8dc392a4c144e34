//! The start beside a kubelet: what is asked for, and what the agent then does without.

use std::cell::Cell;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use clap::Args;
use plimsoll_core::kube::node_resource_topology::Alignment;
use plimsoll_core::model::config::EngineConfig;
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::Threshold;
use rustix::fs::{Mode, OFlags};
use serde_json::Value;

use crate::act::placement::running_kubelet;
use crate::host::HostRoot;
use crate::host::shown::Show as _;
use crate::input::config::{Config, ConfigFile, EvictionFlags};
use crate::source::cluster::{SOCKET, USER};
use crate::source::pod_resources::ReadAlignment;
use crate::storage::KUBELET_DIR;

/// The kubelet's file in its directory, where many have it.
pub(super) const KUBELET_CONFIG: &str = "config.yaml";
/// Pods' volumes, in the kubelet's directory.
const PODS: &str = "pods";
/// More than any kubelet is started with.
const COMMAND_LINE_BYTES_MAX: u64 = 64 << 10;
/// More than any configuration has.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Under which key `/configz` has it.
const CONFIGZ_KEY: &str = "kubeletconfig";
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// What there is to say of the kubelet.
#[derive(Debug, Clone, Args)]
pub struct KubeletArgs {
    /// Evict the pods of this node's kubelet, which plimsoll-cluster names and whose evictions it reports; nothing that
    /// the kubelet owns is changed
    #[arg(long, conflicts_with = "manifests")]
    pub kubernetes: bool,
    /// Socket at which plimsoll-cluster connects (with --kubernetes)
    #[arg(long, value_name = "PATH", requires = "kubernetes", default_value = SOCKET)]
    pub cluster_socket: PathBuf,
    /// User that may connect there besides root (with --kubernetes)
    #[arg(long, value_name = "UID", requires = "kubernetes", default_value_t = USER)]
    pub cluster_uid: u32,
    /// The kubelet's configuration file, or what its /configz answers: conflicts with the agent's thresholds are
    /// reported (with --kubernetes)
    /// [default: what the kubelet that runs was started with, or config.yaml in --kubelet-dir]
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    pub kubelet_config: Option<PathBuf>,
    /// Say what each NUMA node has left, for a scheduler that binds by it: plimsoll-runtime asks the kubelet, and
    /// plimsoll-cluster with the same option writes this node's NodeResourceTopology (with --kubernetes)
    #[arg(long, requires = "kubernetes")]
    pub node_resource_topology: bool,
    /// Pass over a pod whose disruption budget is used up, if evicting other pods is enough: plimsoll-cluster with the
    /// same option watches the budgets (plimsoll.respectDisruptionBudgets of the configuration; with --kubernetes)
    #[arg(long, requires = "kubernetes")]
    pub respect_disruption_budgets: bool,
    /// Socket on which the kubelet lists what it has given to containers (with --node-resource-topology, or a
    /// topologyManagerPolicy) [default: pod-resources/kubelet.sock in --kubelet-dir]
    #[arg(long, value_name = "PATH", requires = "kubernetes")]
    pub pod_resources: Option<PathBuf>,
}

/// Reads a kubelet's configuration: its file, or the answer of `/configz`.
///
/// # Errors
/// It cannot be read, or is neither.
pub fn kubelet_config(path: &Path) -> Result<Config, String> {
    configuration(path, &EvictionFlags::default())
}

/// The configuration of the kubelet that runs.
#[derive(Debug)]
pub(super) struct RunningConfig {
    pub(super) config: Config,
    /// The directory of which its command line says that more is in it; that is not read.
    pub(super) drop_ins: Option<PathBuf>,
}

impl From<Config> for RunningConfig {
    fn from(config: Config) -> Self {
        Self {
            config,
            drop_ins: None,
        }
    }
}

/// The configuration of the kubelet that runs. `given` is its file, where somebody said so.
///
/// # Errors
/// It cannot be read, or is none. `Ok(None)`: no kubelet was found, nor a file where most have it.
pub(super) fn running_config(
    host: &HostRoot,
    given: Option<&Path>,
    kubelet_dir: &Path,
) -> Result<Option<RunningConfig>, String> {
    if let Some(given) = given {
        return Ok(Some(kubelet_config(given)?.into()));
    }
    let usual = kubelet_dir.join(KUBELET_CONFIG);
    // Where a program of another name runs it, as in k3s, only the file is left.
    let Some(pid) = running_kubelet(host) else {
        let found = usual.exists().then(|| kubelet_config(&usual));
        return Ok(found.transpose()?.map(RunningConfig::from));
    };
    let command = CommandLine::read(&host.procfs(format!("{pid}/cmdline")))?;
    let path = match &command.config {
        Some(path) => {
            let as_kubelet = as_seen_by(host, pid, path);
            let looked = std::fs::metadata(&as_kubelet).map_err(|error| error.kind());
            readable(as_kubelet, looked.map(|_| ()), path, kubelet_dir)
        }
        None => usual,
    };
    let config = if command.config.is_none() && !path.exists() {
        let file = ConfigFile::parse("", None).map_err(|error| error.to_string())?;
        Config::new(file, &command.flags).map_err(|error| error.to_string())?
    } else {
        configuration(&path, &command.flags)?
    };
    Ok(Some(RunningConfig {
        config,
        drop_ins: command.config_dir,
    }))
}

/// The directory of the kubelet that runs, where that is another one than ours. `None`: it is the same, or there is no
/// kubelet that says so.
pub(super) fn other_root(host: &HostRoot, kubelet_dir: &Path) -> Option<PathBuf> {
    let pid = running_kubelet(host)?;
    let command = CommandLine::read(&host.procfs(format!("{pid}/cmdline"))).ok()?;
    let theirs = command
        .root_dir
        .unwrap_or_else(|| PathBuf::from(KUBELET_DIR));
    // One directory can have two names: in a container, and by a link.
    let id = |path: PathBuf| {
        let status = std::fs::metadata(path)?;
        std::io::Result::Ok((status.dev(), status.ino()))
    };
    let is_one = match id(as_seen_by(host, pid, &theirs)) {
        Ok(seen) => id(host.path(kubelet_dir)).is_ok_and(|ours| ours == seen),
        // Without CAP_SYS_PTRACE nobody can tell.
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    };
    (theirs != kubelet_dir && !is_one).then_some(theirs)
}

/// A file as a process sees it: the agent's container has another root.
fn as_seen_by(host: &HostRoot, process: u32, path: &Path) -> PathBuf {
    let path = path.strip_prefix("/").unwrap_or(path);
    host.procfs(format!("{process}/root")).join(path)
}

/// The kubelet's file as the kubelet sees it, unless that cannot be looked at: without CAP_SYS_PTRACE the kernel does
/// not let the agent through `/proc/PID/root`. Then the same path counts, if it is in the kubelet's directory, which is
/// mounted where the kubelet has it, and not in what pods fill there.
fn readable(
    as_kubelet: PathBuf,
    looked: Result<(), ErrorKind>,
    path: &Path,
    kubelet_dir: &Path,
) -> PathBuf {
    let is_hidden = looked == Err(ErrorKind::PermissionDenied);
    let leads_up = path.components().any(|part| part == Component::ParentDir);
    let is_of_pods = path.starts_with(kubelet_dir.join(PODS)) || leads_up;
    if is_hidden && path.starts_with(kubelet_dir) && !is_of_pods {
        path.to_owned()
    } else {
        as_kubelet
    }
}

/// What a kubelet's command line says of its configuration.
#[derive(Debug, Default)]
struct CommandLine {
    config: Option<PathBuf>,
    config_dir: Option<PathBuf>,
    root_dir: Option<PathBuf>,
    flags: EvictionFlags,
}

impl CommandLine {
    fn read(path: &Path) -> Result<Self, String> {
        let mut text = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(COMMAND_LINE_BYTES_MAX).read_to_end(&mut text))
            .map_err(|error| format!("{}: {error}", path.shown()))?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    fn parse(text: &str) -> Self {
        let mut command = Self::default();
        let mut words = text.split('\0').skip(1);
        while let Some(word) = words.next() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            let mut value = || value.or_else(|| words.next()).map(str::to_owned);
            match name {
                "--config" => command.config = value().map(PathBuf::from),
                "--config-dir" => command.config_dir = value().map(PathBuf::from),
                "--root-dir" => command.root_dir = value().map(PathBuf::from),
                "--eviction-hard" => command.flags.eviction_hard = value(),
                "--eviction-soft" => command.flags.eviction_soft = value(),
                "--eviction-soft-grace-period" => {
                    command.flags.eviction_soft_grace_period = value();
                }
                _ => {}
            }
        }
        command
    }
}

/// The text of a file. A FIFO would hold up the start for ever, and a device may say anything.
fn regular_file(path: &Path) -> std::io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    file.take(CONFIG_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn configuration(path: &Path, flags: &EvictionFlags) -> Result<Config, String> {
    let parsed = |text: &str| {
        let file = ConfigFile::parse(text, Some(path)).map_err(|error| error.to_string())?;
        Config::new(file, flags).map_err(|error| error.to_string())
    };
    let text = regular_file(path).map_err(|error| format!("{}: {error}", path.shown()))?;
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

/// Reads the kubelet's topology policy from its configuration, each time anew: a kubelet that is started again may have
/// another. `None` where there is no file, or it cannot be read; that is said once for each change.
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
            "the kubelet's evictionHard memory.available ({} Mi) is met no later than plimsoll's: it evicts by itself, up to ten seconds late; set it lower, e.g. to 50Mi, beside the signals of disks: a kubelet has no threshold for a signal that its evictionHard leaves out",
            theirs >> 20
        ));
    }
    if kubelet.thresholds.iter().any(|one| is_soft(&one)) {
        lines.push("the kubelet has an evictionSoft threshold on memory.available: it evicts for it besides plimsoll; take it out of the kubelet's configuration".to_owned());
    }
    lines
}

/// How much time soft thresholds give a pod at most, seconds; `None`: there are none.
pub(super) fn soft_grace_s(config: &EngineConfig) -> Option<u32> {
    let has_soft = config.thresholds.iter().any(|one| !one.is_hard());
    has_soft.then(|| u32::try_from(config.max_pod_grace_period_s).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn text(hard: &str) -> String {
        format!(
            "apiVersion: {API_VERSION}\nkind: KubeletConfiguration\nevictionHard: {{memory.available: {hard}}}\n"
        )
    }

    fn ours(hard: &str) -> EngineConfig {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        std::fs::write(&file, text(hard)).unwrap();
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
    fn only_a_soft_threshold_gives_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let grace = |more: &str| {
            std::fs::write(&file, text("500Mi") + more).unwrap();
            soft_grace_s(&kubelet_config(&file).unwrap().engine)
        };
        let soft = "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 30s}\n";
        let limit = "evictionMaxPodGracePeriod: 60\n";
        assert_eq!(grace(&format!("{soft}{limit}")), Some(60));
        assert_eq!(grace(soft), Some(0));
        assert_eq!(grace(limit), None);
        assert_eq!(
            grace(&format!("{soft}evictionMaxPodGracePeriod: -1\n")),
            Some(0)
        );
    }

    #[test]
    fn what_the_running_kubelet_was_started_with_counts() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let kubelet_dir = dir.path().join("kubelet");
        std::fs::create_dir_all(&kubelet_dir).unwrap();
        let hard = || {
            let found = running_config(&host, None, &kubelet_dir).unwrap();
            found.map(|RunningConfig { config, drop_ins }| {
                let memory = |one: &&Threshold| one.signal == Signal::MemoryAvailable;
                let threshold = config.engine.thresholds.iter().find(memory);
                (threshold.map(|one| one.amount(16 * GIB) >> 20), drop_ins)
            })
        };
        assert_eq!(hard(), None);
        std::fs::write(kubelet_dir.join(KUBELET_CONFIG), text("200Mi")).unwrap();
        assert_eq!(
            hard(),
            Some((Some(200), None)),
            "no process: its usual file"
        );
        let process = host.procfs("77");
        std::fs::create_dir_all(process.join("root/etc")).unwrap();
        std::fs::write(process.join("root/etc/kubelet.json"), text("300Mi")).unwrap();
        std::fs::write(process.join("comm"), "kubelet\n").unwrap();
        std::fs::write(process.join("status"), "Uid:\t0\t0\t0\t0\n").unwrap();
        std::fs::write(process.join("cgroup"), "0::/system.slice/kubelet.service\n").unwrap();
        for (words, expected, drop_ins) in [
            (&["kubelet", "--v=2"][..], Some(200), None),
            (
                &["kubelet", "--config", "/etc/kubelet.json"],
                Some(300),
                None,
            ),
            (
                &[
                    "kubelet",
                    "--config=/etc/kubelet.json",
                    "--config-dir=/etc/more",
                ],
                Some(300),
                Some(PathBuf::from("/etc/more")),
            ),
            (
                &[
                    "kubelet",
                    "--config=/etc/kubelet.json",
                    "--eviction-hard=memory.available<750Mi",
                ],
                Some(750),
                None,
            ),
        ] {
            std::fs::write(process.join("cmdline"), words.join("\0") + "\0").unwrap();
            assert_eq!(hard(), Some((expected, drop_ins)), "{words:?}");
        }
        std::fs::write(process.join("cmdline"), "kubelet\0--config=/none\0").unwrap();
        assert!(running_config(&host, None, &kubelet_dir).is_err());
        // Without any file its own defaults hold.
        std::fs::remove_file(kubelet_dir.join(KUBELET_CONFIG)).unwrap();
        std::fs::write(process.join("cmdline"), "kubelet\0").unwrap();
        assert_eq!(hard(), Some((Some(100), None)));
    }

    #[test]
    fn the_directory_of_the_kubelet_that_runs_is_ours_or_it_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let process = host.procfs("77");
        std::fs::create_dir_all(&process).unwrap();
        std::os::unix::fs::symlink(dir.path(), process.join("root")).unwrap();
        std::fs::write(process.join("comm"), "kubelet\n").unwrap();
        std::fs::write(process.join("status"), "Uid:\t0\t0\t0\t0\n").unwrap();
        std::fs::write(process.join("cgroup"), "0::/system.slice/kubelet.service\n").unwrap();
        let other = |words: &[&str], ours: &str| {
            std::fs::write(process.join("cmdline"), words.join("\0") + "\0").unwrap();
            other_root(&host, Path::new(ours))
        };
        let k0s = "/var/lib/k0s/kubelet";
        for words in [
            &["kubelet", "--root-dir=/var/lib/k0s/kubelet"][..],
            &["kubelet", "--v=2", "--root-dir", "/var/lib/k0s/kubelet/"],
        ] {
            assert_eq!(other(words, k0s), None, "{words:?}");
            assert_eq!(other(words, KUBELET_DIR).unwrap(), Path::new(k0s));
        }
        // Its own default.
        assert_eq!(other(&["kubelet"], KUBELET_DIR), None);
        assert_eq!(
            other(&["kubelet"], k0s).unwrap(),
            Path::new("/var/lib/kubelet")
        );
        // The same directory, mounted where the agent looks for it.
        for name in ["/data/kubelet", "/var/lib"] {
            std::fs::create_dir_all(host.path(Path::new(name))).unwrap();
        }
        let data = ["kubelet", "--root-dir=/data/kubelet"];
        assert!(other(&data, KUBELET_DIR).is_some());
        let ours = host.path(Path::new(KUBELET_DIR));
        std::os::unix::fs::symlink(host.path(Path::new("/data/kubelet")), ours).unwrap();
        assert_eq!(other(&data, KUBELET_DIR), None);
        // A program of another name says nothing.
        std::fs::write(process.join("comm"), "k3s-server\n").unwrap();
        assert_eq!(other(&data, k0s), None);
    }

    #[test]
    fn what_the_kernel_hides_behind_the_kubelets_root_is_read_in_its_directory() {
        let file_of = |looked, path| {
            let kubelet_dir = Path::new("/var/lib/kubelet");
            readable(
                "/proc/7/root/x".into(),
                looked,
                Path::new(path),
                kubelet_dir,
            )
        };
        let (inside, outside) = ("/var/lib/kubelet/config.yaml", "/etc/kubelet.yaml");
        let denied = Err(ErrorKind::PermissionDenied);
        assert_eq!(file_of(denied, inside), Path::new(inside));
        for (looked, path) in [
            (Ok(()), inside),
            (Err(ErrorKind::NotFound), inside),
            (denied, outside),
            (denied, "/var/lib/kubelet/pods/1b2c/volumes/x"),
            (denied, "/var/lib/kubelet/../../../tmp/x"),
        ] {
            assert_eq!(file_of(looked, path), Path::new("/proc/7/root/x"));
        }
    }

    #[test]
    fn what_is_no_regular_file_is_refused_and_holds_nothing_up() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [&*fifo, dir.path(), Path::new("/dev/zero")] {
            let error = kubelet_config(path).err().unwrap();
            assert!(error.contains("no regular file"), "{error}");
        }
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
