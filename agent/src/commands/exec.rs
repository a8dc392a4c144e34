//! `plimsoll exec -f pod.yaml [-c NAME] -- CMD…`: runs a command as one of a pod's containers.
//!
//! **Problem.** Without a cluster there is no container runtime that would put processes into a pod's cgroups.
//! **Approach.** This process makes the pod's and the container's cgroup, writes their limits from the manifest by the
//! kubelet's rules, moves itself into them, takes on the container's `oom_score_adj`, and becomes the command by
//! `execve`: same pid, same terminal, no parent left behind. It works with and without a running agent; the agent sees
//! the cgroup appear, and removes it when it is empty.
//!
//! **Exit status.** The command's own; 125 when plimsoll itself failed, 126 when the command cannot be executed, 127
//! when it is not found, as docker and systemd-run have it.
//!
//! Where CPUs or memory are placed ([`crate::act::placement`]), the container starts in the cpuset that its pod was
//! given, and a pod that could not be placed is refused.
//!
//! Where a LimitRange, ResourceQuota or PriorityClass decides about the pod, it starts as the agent has admitted it,
//! and is refused if it was ([`crate::input::manifests::admission`]).
//!
//! The pod's emptyDir volumes are directories in the kubelet's layout, and with `--log` so is the container's log
//! ([`volumes`]).
#![forbid(unsafe_code)]

pub mod volumes;

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use plimsoll_core::kube::cgroup_config::{
    CgroupConfig, NodeCapacity, QosSettings, container_config, pod_config, tiers,
};
use plimsoll_core::kube::pod::{Container, Pod};
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::policy::oom::score::oom_score_adj;
use rustix::io::Errno;

use crate::act::kubepods::{self, KubepodsError};
use crate::act::placement::{PlacementError, StartPermit};
use crate::commands::exit_status::{self, CommandError};
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupMounts, CgroupPath};
use crate::host::file::{FileError, read_text, write_text};
use crate::host::ledger::{KnobError, Ledger, PODS_LEDGER};
use crate::host::shown::{Show as _, line};
use crate::host::state_dir::{self, StateError};
use crate::input::config::{Config, ConfigError, ConfigFile, EvictionFlags};
use crate::input::error::lines;
use crate::input::manifests::admission::{NotAdmitted, admitted};
use crate::input::manifests::{ManifestError, ManifestPod, read_file};
use crate::pods;
use crate::pods::cgroup::{ApplyError, CreateError};
use crate::serve::control::STATE_DIR;
use crate::storage::pod_paths::{PodPaths, RuntimeLayers};
use crate::storage::{KUBELET_DIR, LOGS_DIR};
use volumes::VolumeError;

/// How often the cgroup is made anew when an agent removes it, still empty, before we are in it.
const JOIN_ATTEMPTS_MAX: u32 = 5;
/// How often the agent may place the pods anew while this process is on its way and stopped.
const PERMITS_MAX: u32 = 10;

/// Run a command as a container of a pod.
///
/// Creates the directory of each emptyDir volume, KUBELET_DIR/pods/UID/volumes/kubernetes.io~empty-dir/NAME, and passes
/// its path to the command in the environment variable PLIMSOLL_VOLUME_NAME (upper case, '_' for '-'). Mounts nothing
/// at the mountPath. `plimsoll run` deletes a finished pod's volumes when disk space is short.
#[derive(Debug, Clone, clap::Args)]
pub struct ExecArgs {
    /// Manifest file with the pod
    #[arg(short = 'f', long = "file", value_name = "POD.YAML")]
    pub file: PathBuf,
    /// Container to run as; required if the pod has several
    #[arg(short = 'c', long = "container", value_name = "NAME")]
    pub container: Option<String>,
    /// Pod to run as: NAME, NAMESPACE/NAME or UID; required if the file has several
    #[arg(long, value_name = "POD")]
    pub pod: Option<String>,
    /// Cgroup that contains kubepods, relative to the cgroup mount, as given to `plimsoll run`
    /// [default: cgroupRoot of --config, or the mount itself]
    #[arg(long, value_name = "CGROUP")]
    pub cgroup_root: Option<String>,
    /// State directory of the agent
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Configuration file (KubeletConfiguration): settings that affect limits, such as memory.high and swap
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Maximum number of processes and threads of the pod; -1: unlimited
    /// [default: podPidsLimit of the file, or unlimited]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub pod_pids_limit: Option<i64>,
    /// Directory of the kubelet, which contains the volumes
    #[arg(long, value_name = "DIR", default_value = KUBELET_DIR)]
    pub kubelet_dir: PathBuf,
    /// Append standard output and error to LOGS_DIR/NAMESPACE_POD_UID/CONTAINER/0.log
    #[arg(long)]
    pub log: bool,
    /// Directory of pod logs
    #[arg(long, value_name = "DIR", default_value = LOGS_DIR)]
    pub logs_dir: PathBuf,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Why the command does not run. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The manifest has errors, and no pod to take.
    #[error("{}", lines(.errors))]
    Manifest {
        /// All of them.
        errors: Vec<ManifestError>,
    },
    /// The file has no such pod, or several and none was named.
    #[error("{file}: {problem}; the file has: {names}", file = file.shown())]
    Pod {
        /// The manifest.
        file: PathBuf,
        /// What is the matter.
        problem: String,
        /// The pods that there are.
        names: String,
    },
    /// The pod has no such container, or several and none was named.
    #[error("pod {pod}: {problem}; it has: {names}")]
    Container {
        /// The pod's UID.
        pod: String,
        /// What is the matter.
        problem: String,
        /// The containers that there are.
        names: String,
    },
    /// The configuration file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What the machine has, or what of it is for pods.
    #[error(transparent)]
    Node(#[from] KubepodsError),
    /// `--pod-pids-limit` is no limit.
    #[error("--pod-pids-limit {0}: use a positive number, or -1 for no limit")]
    PodPidsLimit(i64),
    /// The cgroup mounts or a path below them.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The cgroups cannot be made.
    #[error(transparent)]
    Create(#[from] KnobError),
    /// What its namespace has decided about the pod.
    #[error(transparent)]
    NotAdmitted(#[from] NotAdmitted),
    /// Where the container is to run cannot be found out or written, or its pod was refused.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The limits cannot be written.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A file of /proc or a cgroup.
    #[error(transparent)]
    File(#[from] FileError),
    /// A volume or the log cannot be made.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Standard output and error cannot be sent to the log.
    #[error("--log: {0}")]
    Log(#[source] Errno),
    /// The agent removed the cgroup each time, or its parent is being removed.
    #[error(
        "{cgroup}: removed {JOIN_ATTEMPTS_MAX} times while being made; is another program cleaning up this tree?"
    )]
    Removed {
        /// The container's cgroup.
        cgroup: CgroupPath,
    },
    /// The agent did not wait for us, each time.
    #[error(
        "the agent has placed the pods anew {PERMITS_MAX} times while this command was stopped on its way; try again"
    )]
    Overtaken,
    /// The state directory is not to be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The command is not there.
    #[error("{command}: command not found", command = command.shown())]
    NotFound {
        /// The command.
        command: PathBuf,
    },
    /// The command is there and cannot be executed.
    #[error("{command}: cannot be executed: {source}", command = command.shown())]
    CannotExecute {
        /// The command.
        command: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl From<CreateError> for ExecError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Knob(error) => error.into(),
            CreateError::Cpuset(error) => PlacementError::from(error).into(),
        }
    }
}

impl CommandError for ExecError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::NotFound { .. } => exit_status::EXEC_NOT_FOUND,
            Self::CannotExecute { .. } => exit_status::EXEC_CANNOT_EXECUTE,
            _ => exit_status::EXEC_FAILED,
        }
    }
}

/// Becomes the command, in the pod's cgroup. Returns only on failure.
///
/// # Errors
/// [`ExecError`], with its exit status.
pub fn run(args: ExecArgs) -> Result<Infallible, ExecError> {
    let host = HostRoot::live();
    let file = args.config.as_deref().map(ConfigFile::read).transpose()?;
    let config = Config::new(file.unwrap_or_default(), &EvictionFlags::default())?;
    let mut settings = config.cgroups.qos;
    if let Some(limit) = args.pod_pids_limit {
        settings.pod_pids_limit = pids_limit(limit)?;
    }
    let (pods, errors) = read_file(&args.file);
    let given = select_pod(&args.file, &pods, errors, args.pod.as_deref())?;
    select_container(given, args.container.as_deref())?;
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| ExecError::NotFound {
            command: PathBuf::new(),
        })?;
    // Before anything is changed: most mistakes are here.
    let program = find_program(program, std::env::var_os("PATH").as_deref())?;

    let mounts = host.cgroup_mounts()?;
    let cgroup_root = CgroupPath::new(args.cgroup_root.as_ref().unwrap_or(&config.cgroups.root))?;
    state_dir::prepare(&args.state_dir)?;
    let of_agent = admitted(&args.state_dir, given)?;
    let pod = of_agent.as_deref().unwrap_or(given);
    let container = select_container(pod, args.container.as_deref())?;
    let mut ledger = Ledger::open(&host, args.state_dir.join(PODS_LEDGER))?;
    let node = kubepods::capacity(&host, &mounts, &config)?;
    let adj = oom_score_adj(
        pod,
        container,
        NonZeroU64::new(node.memory_bytes).unwrap_or(NonZeroU64::MIN),
    );

    // Before the agent sees the process, which may give it another one (oomScoreOrder).
    set_oom_score_adj(&host, adj)?;
    let permit = || StartPermit::begin(&host, (&mounts, &cgroup_root), &args.state_dir, &pod.uid());
    enter_as_placed(permit, |permit| {
        let given_to = (&settings, &node, permit);
        enter(&mounts, &cgroup_root, pod, container, given_to, &mut ledger)?;
        // Its manifest may be gone by now. If not, the agent sees this process when it goes.
        admitted(&args.state_dir, given)?;
        Ok(())
    })?;
    let paths = PodPaths {
        host,
        kubelet_dir: absolute(args.kubelet_dir),
        logs_dir: absolute(args.logs_dir),
        layer_roots: Vec::new(),
        runtime_layers: RuntimeLayers::default(),
    };
    let (volumes, notes) = volumes::make(&paths, pod)?;
    for note in notes {
        eprintln!("plimsoll: note: {}", line(&note.to_string()));
    }
    let mut command = std::process::Command::new(&program);
    command
        .arg0(&args.command[0])
        .args(arguments)
        .envs(volumes.iter().map(|it| (&it.variable, &it.path)));
    let log = match args.log {
        true => Some(volumes::open_log(&paths, pod, container)?),
        false => None,
    };
    Err(become_command(command, program, log.as_ref()))
}

/// Enters the container's cgroup until that is where the pods were placed. While the permit is held, the agent moves no
/// pod.
fn enter_as_placed(
    permit: impl Fn() -> Result<StartPermit, PlacementError>,
    mut enter: impl FnMut(&StartPermit) -> Result<(), ExecError>,
) -> Result<(), ExecError> {
    for _ in 0..PERMITS_MAX {
        let permit = permit()?;
        for note in permit.notes() {
            eprintln!("plimsoll: note: {}", line(&note.to_string()));
        }
        enter(&permit)?;
        // Not if this process was stopped for long, and the agent has placed the pods meanwhile.
        if permit.is_current()? {
            return Ok(());
        }
    }
    Err(ExecError::Overtaken)
}

/// Executes the command, with its output in `log` where there is one. Returns why that failed.
fn become_command(
    mut command: std::process::Command,
    program: PathBuf,
    log: Option<&std::fs::File>,
) -> ExecError {
    let terminal = match log.map(send_to).transpose() {
        Ok(terminal) => terminal,
        Err(errno) => return ExecError::Log(errno),
    };
    // `exec` returns only when it has failed. Our descriptors are close-on-exec, so the ledger's lock cannot leak.
    let source = command.exec();
    if let Some(terminal) = terminal {
        rustix::stdio::dup2_stderr(&terminal).ok(); // else the error goes to the log, too
    }
    ExecError::CannotExecute {
        command: program,
        source,
    }
}

/// A directory given on the command line is relative to where we are, not to the host's root.
fn absolute(dir: PathBuf) -> PathBuf {
    std::path::absolute(&dir).unwrap_or(dir)
}

/// Sends standard output and error to `log`; what standard error was before.
fn send_to(log: &std::fs::File) -> Result<OwnedFd, Errno> {
    let before = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
    rustix::stdio::dup2_stdout(log)?;
    rustix::stdio::dup2_stderr(log)?;
    Ok(before)
}

/// Takes on the container's score. A score that protects needs CAP_SYS_RESOURCE; without it the command runs all the
/// same, and this is said.
fn set_oom_score_adj(host: &HostRoot, adj: i32) -> Result<(), FileError> {
    let path = host.procfs("self/oom_score_adj");
    match write_text(&path, &adj.to_string()) {
        Err(FileError::Unwritable {
            source: Errno::ACCESS | Errno::PERM,
            ..
        }) => {
            let now = read_text(&path)?;
            eprintln!(
                "plimsoll: note: oom_score_adj stays {} instead of {adj}: lowering it needs CAP_SYS_RESOURCE",
                now.trim()
            );
            Ok(())
        }
        result => result,
    }
}

fn pids_limit(limit: i64) -> Result<Option<u64>, ExecError> {
    match limit {
        -1 => Ok(None),
        1.. => Ok(Some(limit.unsigned_abs())),
        _ => Err(ExecError::PodPidsLimit(limit)),
    }
}

/// The pod to take. With errors in the file, only a pod that was named counts: an unnamed one might be among the
/// broken.
fn select_pod<'pods>(
    file: &Path,
    pods: &'pods [ManifestPod],
    errors: Vec<ManifestError>,
    wanted: Option<&str>,
) -> Result<&'pods Pod, ExecError> {
    let matches = |pod: &&ManifestPod| {
        let pod = &pod.pod;
        wanted.is_none_or(|wanted| {
            wanted == pod.metadata.name
                || wanted == pod.uid().as_str()
                || wanted.split_once('/') == Some((pod.namespace(), &pod.metadata.name))
        })
    };
    let found: Vec<_> = pods.iter().filter(matches).collect();
    let problem = match (found.as_slice(), wanted) {
        ([one], Some(_)) => {
            for error in errors {
                eprintln!("plimsoll: {}", line(&error.to_string()));
            }
            return Ok(&one.pod);
        }
        _ if !errors.is_empty() => return Err(ExecError::Manifest { errors }),
        ([one], None) => return Ok(&one.pod),
        ([], None) => "no pods in this file".to_owned(),
        (_, None) => "several pods; choose one with --pod".to_owned(),
        ([], Some(wanted)) => format!("no pod {wanted}"),
        (_, Some(wanted)) => format!("several pods {wanted}; use --pod NAMESPACE/NAME"),
    };
    let names: Vec<_> = pods.iter().map(|pod| pod.pod.full_name()).collect();
    let names = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    Err(ExecError::Pod {
        file: file.to_owned(),
        problem,
        names,
    })
}

fn select_container<'pod>(
    pod: &'pod Pod,
    wanted: Option<&str>,
) -> Result<&'pod Container, ExecError> {
    let problem = match (wanted, pod.spec.containers.as_slice()) {
        (None, [one]) => return Ok(one),
        (None, _) => "several containers; choose one with -c".to_owned(),
        (Some(wanted), _) => match pod.container(wanted) {
            Some(container) => return Ok(container),
            None => format!("no container {wanted}"),
        },
    };
    let names: Vec<_> = pod
        .all_containers()
        .map(|container| container.name.as_str())
        .collect();
    Err(ExecError::Container {
        pod: pod.uid().to_string(),
        problem,
        names: names.join(", "),
    })
}

/// Finds the program as execvp(3) does.
fn find_program(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ExecError> {
    if program.as_encoded_bytes().contains(&b'/') {
        return check_program(PathBuf::from(program));
    }
    let mut denied = None;
    for dir in path
        .map(std::env::split_paths)
        .into_iter()
        .flatten()
        .filter(|_| !program.is_empty())
    {
        match check_program(dir.join(program)) {
            Err(error @ ExecError::CannotExecute { .. }) => denied = denied.or(Some(error)),
            Err(_) => {}
            found => return found,
        }
    }
    Err(denied.unwrap_or_else(|| ExecError::NotFound {
        command: PathBuf::from(program),
    }))
}

fn check_program(command: PathBuf) -> Result<PathBuf, ExecError> {
    use std::io::{Error, ErrorKind};
    match std::fs::metadata(&command) {
        Ok(metadata) if metadata.is_dir() => Err(ExecError::CannotExecute {
            command,
            source: Error::from(ErrorKind::IsADirectory),
        }),
        Ok(metadata) if metadata.permissions().mode() & 0o111 == 0 => {
            Err(ExecError::CannotExecute {
                command,
                source: Error::from(ErrorKind::PermissionDenied),
            })
        }
        Ok(_) => Ok(command),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(ExecError::NotFound { command })
        }
        Err(source) => Err(ExecError::CannotExecute { command, source }),
    }
}

/// Makes the cgroups with their limits and moves this process in.
fn enter(
    mounts: &CgroupMounts,
    cgroup_root: &CgroupPath,
    pod: &Pod,
    container: &Container,
    given: (&QosSettings, &NodeCapacity, &StartPermit),
    ledger: &mut Ledger,
) -> Result<(), ExecError> {
    let pod_path = pods::cgroup::pod_path(cgroup_root, pod)?;
    let container_path = pods::cgroup::container_path(&pod_path, &container.name)?;
    for attempt in 1..=JOIN_ATTEMPTS_MAX {
        match try_enter(
            mounts,
            cgroup_root,
            (pod, &pod_path),
            (container, &container_path),
            given,
            ledger,
        ) {
            Ok(notes) => {
                for note in notes {
                    eprintln!("plimsoll: note: {}", line(&note.to_string()));
                }
                return Ok(());
            }
            // An agent has removed the pod's empty cgroup just now.
            Err(error) if is_vanished(&error) => {}
            // Or another's ledger has taken back a controller between our look and our write; if it stays so, it is not
            // passed on here.
            Err(ExecError::Create(KnobError::Enable {
                source: Errno::NOENT,
                ..
            })) if attempt < JOIN_ATTEMPTS_MAX => {}
            Err(error) => {
                pods::cgroup::remove_empty(mounts, &pod_path).ok(); // best effort: the first error is the one to report
                return Err(error);
            }
        }
    }
    Err(ExecError::Removed {
        cgroup: container_path,
    })
}

fn is_vanished(error: &ExecError) -> bool {
    match error {
        ExecError::Create(error) => error.is_vanished(),
        ExecError::Placement(error) => error.is_vanished(),
        ExecError::Apply(error) => error.is_vanished(),
        ExecError::File(error) => error.is_vanished(),
        _ => false,
    }
}

fn try_enter(
    mounts: &CgroupMounts,
    cgroup_root: &CgroupPath,
    (pod, pod_path): (&Pod, &CgroupPath),
    (container, container_path): (&Container, &CgroupPath),
    (settings, node, permit): (&QosSettings, &NodeCapacity, &StartPermit),
    ledger: &mut Ledger,
) -> Result<Vec<String>, ExecError> {
    let class = pod.qos_class();
    let tier = pods::cgroup::tier_path(cgroup_root, class)?;
    let is_new_tier = pods::cgroup::pod_hierarchies(mounts)
        .iter()
        .any(|(hierarchy, _)| !hierarchy.has(&tier));
    if permit.places() {
        pods::cgroup::create_placed(mounts, container_path, ledger)?;
    } else {
        pods::cgroup::create(mounts, container_path, ledger)?;
    }
    if is_new_tier && class == QosClass::BestEffort {
        // What the Burstable pods together request is known to the agent only, which sets it.
        let config = CgroupConfig {
            memory_max_bytes: None,
            ..tiers([], settings, node).best_effort
        };
        pods::cgroup::apply_tier(mounts, &tier, &config, &mut pods::cgroup::directly)?;
    }
    let mut of_pod = pod_config(pod, settings, node);
    let mut of_container = container_config(pod, container, settings, node);
    permit.free_of_quota(&container.name, &mut of_pod, &mut of_container);
    let notes = pods::cgroup::apply(mounts, pod_path, &of_pod)?;
    pods::cgroup::apply(mounts, container_path, &of_container)?;
    pods::cgroup::set_oom_group(mounts, container_path)?;
    permit.place(mounts, container_path, &container.name)?;
    pods::cgroup::join_self(mounts, container_path)?;
    Ok(notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::manifests::ManifestPod;
    use std::sync::Arc;

    fn pods(json: &[&str]) -> Vec<ManifestPod> {
        let pod = |json: &&str| serde_json::from_str::<Pod>(json).unwrap();
        json.iter()
            .map(|json| ManifestPod {
                pod: Arc::new(pod(json)),
                document: Arc::default(),
                file: Arc::from(Path::new("f")),
                line: 1,
            })
            .collect()
    }

    #[test]
    fn which_pod() {
        let two = pods(&[
            r#"{"metadata":{"name":"a","namespace":"x"},"spec":{"containers":[{"name":"c"},{"name":"d"}],"initContainers":[{"name":"i"}]}}"#,
            r#"{"metadata":{"name":"a","namespace":"y","uid":"u"},"spec":{"containers":[{"name":"c"}]}}"#,
        ]);
        let file = Path::new("f.yaml");
        let select = |wanted| {
            select_pod(file, &two, Vec::new(), wanted).map(|pod| pod.namespace().to_owned())
        };
        assert_eq!(
            (select(Some("x/a")).unwrap(), select(Some("u")).unwrap()),
            ("x".to_owned(), "y".to_owned())
        );
        for (wanted, message) in [
            (
                None,
                "f.yaml: several pods; choose one with --pod; the file has: x/a, y/a",
            ),
            (
                Some("a"),
                "f.yaml: several pods a; use --pod NAMESPACE/NAME; the file has: x/a, y/a",
            ),
            (Some("b"), "f.yaml: no pod b; the file has: x/a, y/a"),
        ] {
            let error = select(wanted).unwrap_err();
            assert_eq!(
                (error.to_string().as_str(), error.exit_status()),
                (message, exit_status::EXEC_FAILED)
            );
        }
        assert!(
            select_pod(file, &[], Vec::new(), None)
                .unwrap_err()
                .to_string()
                .ends_with("the file has: none")
        );
        // An unnamed pod beside a broken one might be the wrong one.
        let errors = || {
            vec![ManifestError::Syntax {
                file: Arc::from(file),
                line: 7,
                what: "bad".to_owned(),
            }]
        };
        assert!(
            select_pod(file, &two[1..], errors(), None)
                .unwrap_err()
                .to_string()
                .contains("f.yaml:7: bad")
        );
        assert!(select_pod(file, &two[1..], errors(), Some("a")).is_ok());

        let (one, other) = (&two[0].pod, &two[1].pod);
        assert_eq!(select_container(other, None).unwrap().name, "c");
        assert_eq!(select_container(one, Some("i")).unwrap().name, "i");
        let error = select_container(one, None).unwrap_err().to_string();
        assert_eq!(
            error,
            "pod x_a: several containers; choose one with -c; it has: c, d, i"
        );
        assert!(
            select_container(one, Some("e"))
                .unwrap_err()
                .to_string()
                .contains("no container e")
        );
    }

    #[test]
    fn which_program() {
        let dir = tempfile::tempdir().unwrap();
        let (good, bad) = (dir.path().join("good"), dir.path().join("bad"));
        std::fs::write(&good, "").unwrap();
        std::fs::set_permissions(&good, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(&bad, "").unwrap();
        let path = std::env::join_paths([Path::new("/nonexistent"), dir.path()]).unwrap();
        let find = |name: &OsStr| find_program(name, Some(&path));
        assert_eq!(find(OsStr::new("good")).unwrap(), good);
        assert_eq!(find(good.as_os_str()).unwrap(), good);
        for (name, code) in [
            ("bad", 126),
            ("none", 127),
            ("", 127),
            ("/nonexistent/none", 127),
            ("/tmp", 126),
        ] {
            assert_eq!(
                find(OsStr::new(name)).unwrap_err().exit_status(),
                code,
                "{name}"
            );
        }
    }

    #[test]
    fn pids() {
        assert_eq!(
            (pids_limit(-1).unwrap(), pids_limit(5).unwrap()),
            (None, Some(5))
        );
        assert!(pids_limit(0).unwrap_err().to_string().contains("positive"));
        assert!(pids_limit(-2).is_err());
    }
}
