//! `plimsoll check`: what this machine allows, which mechanism serves each signal, why, and what that costs.
//!
//! Loads and attaches the BPF programs for a moment and detaches them again; changes nothing else. The same [`Facts`]
//! and [`choose`] decide for `plimsoll run`, so what is shown is what would happen.
#![forbid(unsafe_code)]

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use plimsoll_core::protocol::runtime_link::{NRI_SOCKET, RUNTIME_SOCKETS};
use rustix::param::page_size;
use serde::Serialize;

use crate::act::placement::other_managers::beside;
use crate::act::placement::usable::usable_cpus;
use crate::act::placement::{KubeletProcess, kubelet_process};
use crate::commands::exit_status::{self, CommandError};
use crate::host::cgroup::CgroupRootArgs;
use crate::host::file::read_text;
use crate::host::output::{Output, OutputArgs, StdoutError, Style, json, print};
use crate::host::shown::{Show as _, page};
use crate::host::socket_queues::is_booted_without_sockets;
use crate::host::{CgroupError, CgroupPath, HostRoot, Version};
use crate::kernel::AccountReport;
use crate::kernel::object::{Embedded, embedded};
use crate::kernel::programs::{Programs, load};
use crate::pods::names::{KubeletTree, TreeError};
use crate::probe::facts::{Facts, Hook, hooks_of, kinds_without};
use crate::probe::mechanism::{Without, WithoutArgs};
use crate::probe::report::{HostReport, Verdict};
use crate::serve::control::client::{AskError, ask};
use crate::serve::control::{AgentArgs, Answer, Request};
use crate::show;
use crate::storage::runtime::{self, RUNTIME_ASKED_WITHIN, RuntimeSettings};
use crate::storage::{KUBELET_DIR, StorageSettings};

/// Show which mechanism serves each signal on this machine, and why
#[derive(Debug, Clone, Default, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) cgroup_root: CgroupRootArgs,
    #[command(flatten)]
    pub(crate) without: WithoutArgs,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// `--cgroup-root` is not a cgroup path.
    #[error("--cgroup-root: {0}")]
    CgroupRoot(#[source] CgroupError),
    /// The report could not be written.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl CommandError for CheckError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::CgroupRoot(_) => exit_status::WRONG_USAGE,
            Self::Output(_) => exit_status::FAILED,
        }
    }
}

/// What is printed.
#[derive(Debug, Serialize)]
struct CheckAnswer {
    #[serde(flatten)]
    report: HostReport,
    /// Where pods would come from.
    mode: Mode,
    /// Where the container runtime that listens here keeps its images, for people; `None`: none was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<String>,
    /// How much memory of sockets is charged to no pod, for people; `None`: theirs is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    sockets: Option<String>,
    /// The exit status.
    exit_status: u8,
    /// What this program loads into the kernel.
    objects: [Embedded; 2],
    /// What the agent that runs says of the kernel's records; `None` where none runs, or it has no BPF programs.
    records: Option<Result<AccountReport, String>>,
}

impl CheckAnswer {
    fn new(
        report: HostReport,
        mode: Mode,
        (images, sockets): (Option<String>, Option<String>),
        records: Option<Result<AccountReport, String>>,
    ) -> Self {
        Self {
            mode,
            images,
            sockets,
            exit_status: match report.verdict() {
                Verdict::Full => exit_status::DONE,
                Verdict::Degraded => exit_status::FAILED,
                Verdict::Unusable => exit_status::REFUSED,
            },
            report,
            objects: embedded(),
            records,
        }
    }
}

/// Beside what the agent would run.
#[derive(Debug, Default, Serialize)]
struct Mode {
    /// The pid of the kubelet that runs.
    kubelet: Option<u32>,
    /// Where it has its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    kubepods: Option<String>,
    /// Its `cgroupDriver`.
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<&'static str>,
    /// How many pods have a cgroup there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<usize>,
    /// Whether the container runtime offers to ask when it makes a container, where it does so by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    nri: Option<bool>,
    /// Why plimsoll can place no container: the kubelet does, or may.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<String>,
    /// CPUs that are online and on which no pod can run.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus_outside: Option<String>,
    /// For people.
    text: String,
}

impl Mode {
    fn of(host: &HostRoot, cgroup_root: &CgroupPath) -> Self {
        let Some(KubeletProcess { pid, program }) = kubelet_process(host) else {
            return Self {
                text: "no kubelet runs: pods come from manifests (--manifests)".to_owned(),
                ..Self::default()
            };
        };
        let found = host
            .cgroup_mounts()
            .map_err(TreeError::from)
            .and_then(|mounts| {
                let tree = KubeletTree::find(&mounts, cgroup_root)?;
                let pods = tree.pods(&mounts)?.len();
                let cpus = usable_cpus(host, &mounts, tree.kubepods());
                Ok((tree, pods, cpus))
            });
        let placement = beside(host, Path::new(KUBELET_DIR)).map(|owner| owner.to_string());
        let places = match &placement {
            Some(owner) => format!("; {owner}"),
            None => "; it manages no cpusets, so plimsoll can (cpuManagerPolicy in its own configuration)".to_owned(),
        };
        match found {
            Ok((tree, pods, cpus)) => {
                let (kubepods, driver) = (tree.kubepods().to_string(), tree.driver().name());
                let has_nri = host.path(NRI_SOCKET).exists();
                let nri = match has_nri {
                    true => "NRI is used with --runtime-endpoint",
                    false => "no NRI",
                };
                let (outside, limits) = match cpus {
                    Ok((_, outside)) if outside.is_empty() => (None, String::new()),
                    Ok((usable, outside)) => {
                        let limits = format!(
                            "; no pod can run on CPUs {outside}, which are online: {kubepods} has CPUs {usable} (restart the kubelet if they came after it, or take away what narrows the set, such as systemd AllowedCPUs=)"
                        );
                        (Some(outside.to_string()), limits)
                    }
                    Err(error) => (
                        None,
                        format!("; which CPUs pods can use is unknown: {error}"),
                    ),
                };
                let text = format!(
                    "a kubelet runs ({program}, pid {pid}): start with --kubernetes; {pods} pods below {kubepods}, {driver} driver; {nri} ({NRI_SOCKET}){places}{limits}"
                );
                Self {
                    kubelet: Some(pid),
                    kubepods: Some(kubepods),
                    driver: Some(driver),
                    pods: Some(pods),
                    nri: Some(has_nri),
                    placement,
                    cpus_outside: outside,
                    text,
                }
            }
            Err(error) => Self {
                kubelet: Some(pid),
                text: format!(
                    "a kubelet runs ({program}, pid {pid}), and --kubernetes cannot start: {error}{places}"
                ),
                placement,
                ..Self::default()
            },
        }
    }
}

/// `plimsoll check` on this machine.
///
/// # Errors
/// [`CheckError`] for a bad `--cgroup-root` or an unwritable standard output. What the machine lacks is in the report
/// and the exit status.
pub fn run(args: &CheckArgs) -> Result<ExitCode, CheckError> {
    let style = Style::of(&io::stdout());
    let (text, status) = report(args, &HostRoot::live(), load_hooks, style)?;
    print(text)?;
    Ok(ExitCode::from(status))
}

/// Attaches every hook that `plimsoll run` uses and the host allows, and detaches them by dropping the programs.
fn load_hooks(without: &[Without]) -> Result<Vec<Hook>, String> {
    // The rings are not read, so the window does not matter; a full ring only counts.
    let programs = Programs {
        without: kinds_without(without),
        window: Duration::from_secs(1),
        last_line: true,
    };
    let bpf = load(programs).map_err(|error| error.to_string())?;
    Ok(hooks_of(bpf.hooks()))
}

/// Asks the runtime, and compares with what would be read without asking it.
fn images(host: &HostRoot, cgroup_root: &CgroupPath, has_kubelet: bool) -> Option<String> {
    let mut sockets = RUNTIME_SOCKETS.iter().map(|socket| host.path(socket));
    let socket = sockets.find(|socket| socket.exists())?;
    let mut disks = StorageSettings {
        host: host.clone(),
        has_images: has_kubelet,
        ..StorageSettings::live(cgroup_root.clone())
    };
    let settings = RuntimeSettings {
        socket: socket.clone(),
        program: std::env::current_exe()
            .unwrap_or_default()
            .with_file_name("plimsoll-runtime"),
    };
    let directories = runtime::directories(settings, RUNTIME_ASKED_WITHIN);
    let wrong = directories.as_ref().ok().and_then(|directories| {
        disks.follow_runtime(directories);
        disks.file_systems().misses(host, directories, false)
    });
    let (socket, read) = (socket.shown(), disks.file_systems().imagefs);
    let place = match read.is_dir() {
        true => format!("imagefs is read at {}", read.shown()),
        false => "imagefs is not watched, as no directory with images is seen here".to_owned(),
    };
    Some(match (directories, wrong) {
        (Err(why), _) => format!(
            "{place}; the container runtime at {socket} does not say where it has its images: {why}"
        ),
        (Ok(_), Some(wrong)) => wrong,
        (Ok(directories), None) if directories.images.is_some() => {
            format!("{place} with --runtime-endpoint {socket}, where that runtime has its images")
        }
        (Ok(_), None) => {
            format!(
                "{place}; the container runtime at {socket} does not say where it has its images"
            )
        }
    })
}

/// What the queues of sockets may take without a pod that is charged for it, where the kernel charges none: v1 counts
/// those of TCP by themselves, if at all (Documentation/admin-guide/cgroup-v1/memory.rst, 2.7), and v2 none with
/// `cgroup.memory=nosocket`. Pages, all sockets of the machine together: Documentation/networking/ip-sysctl.rst.
fn uncharged_sockets(host: &HostRoot, memory: Option<Version>) -> Option<String> {
    let why = match memory? {
        Version::V1 => "memory on cgroup v1",
        Version::V2 if is_booted_without_sockets(host) => "cgroup.memory=nosocket",
        Version::V2 => return None,
    };
    let max_pages = |name| {
        let text = read_text(host.procfs(format!("sys/net/ipv4/{name}"))).ok()?;
        text.split_ascii_whitespace().nth(2)?.parse::<u64>().ok()
    };
    // A network namespace of its own does not show them.
    let bound = max_pages("tcp_mem").zip(max_pages("udp_mem"));
    let bound = bound.map_or_else(String::new, |(tcp, udp)| {
        let bytes = tcp.saturating_add(udp).saturating_mul(page_size() as u64);
        format!(", up to {} MiB of this node", bytes >> 20)
    });
    Some(format!(
        "the queues of TCP and UDP sockets are charged to no pod ({why}){bound}: lower the third values of net.ipv4.tcp_mem and net.ipv4.udp_mem where pods are not trusted"
    ))
}

/// Asks the agent that runs, if one does.
fn records(args: &CheckArgs) -> Option<Result<AccountReport, String>> {
    match ask(&args.agent.socket(), &Request::Records) {
        Ok(Answer::Records(records)) => records.map(Ok),
        Ok(_) => Some(Err("it answered something else".to_owned())),
        Err(AskError::NoAgent { .. }) => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

/// Checks the machine: the report, and the exit status.
///
/// `load` loads and attaches the BPF programs, reports on its hooks and detaches them; it is not called where that is
/// ruled out already.
///
/// # Errors
/// [`CheckError`] for a bad `--cgroup-root`.
fn report(
    args: &CheckArgs,
    host: &HostRoot,
    load: impl FnOnce(&[Without]) -> Result<Vec<Hook>, String>,
    style: Style,
) -> Result<(String, u8), CheckError> {
    let cgroup_root = args.cgroup_root.path().map_err(CheckError::CgroupRoot)?;
    let mut facts = Facts::probe(host, &cgroup_root, &args.without.mechanisms, Ok(Vec::new()));
    facts.bpf = match facts.without_bpf() {
        Some(obstacle) => Err(obstacle.to_string()),
        None => load(&args.without.mechanisms),
    };
    let mode = Mode::of(host, &cgroup_root);
    let images = images(host, &cgroup_root, mode.kubelet.is_some());
    let sockets = uncharged_sockets(host, facts.memory.as_ref().ok().copied());
    let host_report = HostReport::new(facts);
    let answer = CheckAnswer::new(host_report, mode, (images, sockets), records(args));
    let text = match args.output.format {
        Output::Text => {
            let text = show::check::check(
                &answer.report,
                &answer.objects,
                answer.records.as_ref(),
                style,
            );
            let mut text = format!("{text}\nMode: {}\n", answer.mode.text);
            for (what, said) in [("Images", &answer.images), ("Sockets", &answer.sockets)] {
                text += &said
                    .as_ref()
                    .map_or_else(String::new, |said| format!("{what}: {said}\n"));
            }
            page(&text)
        }
        Output::Json => json(&answer)?,
    };
    Ok((text, answer.exit_status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cgroup::tests::fake_v2;
    use crate::probe::facts::tests::everything;

    #[test]
    fn where_images_are_is_said_where_a_runtime_listens() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let root = CgroupPath::new("/").unwrap();
        assert_eq!(images(&host, &root, true), None);
        let socket = host.path("/run/crio/crio.sock");
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        std::fs::write(&socket, "").unwrap();
        let said = images(&host, &root, true).unwrap();
        assert!(said.starts_with("imagefs is not watched"), "{said}");
        std::fs::create_dir_all(host.path("/var/lib/containers/storage")).unwrap();
        let said = images(&host, &root, true).unwrap();
        // Beside this test is no plimsoll-runtime that could ask, or it finds that nothing listens.
        assert!(
            said.contains("/var/lib/containers/storage; the container runtime at"),
            "{said}"
        );
        assert!(said.contains("does not say"), "{said}");
    }

    #[test]
    fn memory_of_sockets_that_no_pod_is_charged_for_is_said_with_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let write = |name: &str, text: &str| {
            let file = host.procfs(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let said = |version| uncharged_sockets(&host, Some(version));
        write("cmdline", "quiet cgroup.memory=nokmem\n");
        assert_eq!(said(Version::V2), None);
        assert_eq!(uncharged_sockets(&host, None), None);
        let v1 = said(Version::V1).unwrap();
        assert!(v1.contains("(memory on cgroup v1): lower"), "{v1}");
        let pages_of_a_gib = (1 << 30) / page_size();
        write("sys/net/ipv4/tcp_mem", &format!("1\t2\t{pages_of_a_gib}\n"));
        write("sys/net/ipv4/udp_mem", &format!("1\t2\t{pages_of_a_gib}\n"));
        let v1 = said(Version::V1).unwrap();
        assert!(v1.contains("up to 2048 MiB of this node"), "{v1}");
        write("cmdline", "quiet cgroup.memory=nokmem,nosocket\n");
        let v2 = said(Version::V2).unwrap();
        assert!(v2.contains("(cgroup.memory=nosocket), up to 2048"), "{v2}");
    }

    #[test]
    fn json_has_facts_choices_and_status() {
        let facts = Facts {
            without: vec![Without::Bpf],
            bpf: Err("left out".to_owned()),
            ..everything()
        };
        let json = serde_json::to_value(CheckAnswer::new(
            HostReport::new(facts),
            Mode::default(),
            (None, None),
            None,
        ))
        .unwrap();
        assert_eq!(json["exit_status"], 1);
        assert_eq!(json["facts"]["bpf"]["reason"], "left out");
        assert_eq!(json["objects"][0]["name"], "plimsoll.bpf.o");
        assert_eq!(json["facts"]["memory"]["ok"], 2);
        assert_eq!(json["facts"]["psi"]["ok"], "privileged");
        assert_eq!(json["choices"][0]["signal"], "memory-threshold");
        assert_eq!(json["choices"][0]["mechanism"], "psi");
        assert_eq!(json["choices"][0]["obstacles"][0]["obstacle"], "without");
        assert_eq!(json["choices"][0]["obstacles"][0]["option"], "bpf");
    }

    #[test]
    fn the_mode_is_that_of_the_kubelet_which_runs() {
        let (_dir, host) = fake_v2();
        let mode = || Mode::of(&host, &CgroupPath::default());
        assert!(mode().kubelet.is_none() && mode().text.contains("--manifests"));
        std::fs::create_dir_all(host.procfs("77")).unwrap();
        for (file, text) in [
            ("comm", "kubelet\n"),
            ("cmdline", "kubelet\0"),
            ("status", "Uid:\t0\t0\t0\t0\n"),
            ("cgroup", "0::/system.slice/kubelet.service\n"),
        ] {
            std::fs::write(host.procfs(format!("77/{file}")), text).unwrap();
        }
        assert!(
            mode().text.contains("cannot start: no cgroup"),
            "{}",
            mode().text
        );
        let pod = host.path("/sys/fs/cgroup/kubepods.slice/kubepods-podx.slice");
        std::fs::create_dir_all(pod).unwrap();
        let found = mode();
        assert_eq!(
            (found.kubelet, found.driver, found.pods),
            (Some(77), Some("systemd"), Some(1))
        );
        let unknown = found.placement.unwrap();
        assert!(unknown.contains("is unknown"), "{unknown}");
        assert_eq!(found.nri, Some(false));
        assert!(found.text.contains("no NRI"), "{}", found.text);
        std::fs::create_dir_all(host.path(NRI_SOCKET)).unwrap();
        assert!(
            mode().text.contains("NRI is used with --runtime-endpoint"),
            "{}",
            mode().text
        );
        // A kubelet that places keeps what it places.
        std::fs::create_dir_all(host.path(KUBELET_DIR)).unwrap();
        let state = host.path(KUBELET_DIR).join("cpu_manager_state");
        std::fs::write(&state, r#"{"policyName": "none"}"#).unwrap();
        assert_eq!(mode().placement, None);
        std::fs::write(state, r#"{"policyName": "static"}"#).unwrap();
        let owned = mode();
        let why = owned.placement.unwrap();
        assert!(why.contains("Set its cpuManagerPolicy: none"), "{why}");
        assert!(owned.text.contains(&why), "{}", owned.text);
        // A CPU that came after the kubelet.
        assert!(owned.text.contains("is unknown: "), "{}", owned.text);
        let put = |path: std::path::PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(host.sysfs("devices/system/cpu/online"), "0-3\n");
        assert_eq!(mode().cpus_outside, None);
        let kubepods = host.path("/sys/fs/cgroup/kubepods.slice");
        put(kubepods.join("cpuset.cpus.effective"), "0-2\n");
        let narrow = mode();
        assert_eq!(narrow.cpus_outside.as_deref(), Some("3"));
        assert!(
            narrow.text.contains("no pod can run on CPUs 3"),
            "{}",
            narrow.text
        );
    }

    #[test]
    fn bpf_is_not_loaded_where_it_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let args = CheckArgs {
            without: WithoutArgs {
                mechanisms: vec![Without::Bpf],
            },
            output: Output::Json.into(),
            ..CheckArgs::default()
        };
        let plain = Style { color: false };
        let (text, status) = report(&args, &host, |_| panic!("must not be called"), plain).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["exit_status"], status);
        assert_eq!(
            status,
            exit_status::REFUSED,
            "an empty directory has no memory controller"
        );
        assert_eq!(json["facts"]["bpf"]["reason"], "left out by --without bpf");
        let args = CheckArgs {
            cgroup_root: CgroupRootArgs {
                cgroup_root: "../x".to_owned(),
            },
            ..CheckArgs::default()
        };
        let error = report(&args, &host, |_| panic!("must not be called"), plain).unwrap_err();
        assert!(error.to_string().starts_with("--cgroup-root: "), "{error}");
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let unwritable = CheckError::Output(full.into());
        assert_eq!(unwritable.exit_status(), exit_status::FAILED);
    }
}
