//! Somebody else who manages cpusets: then we do not.
//!
//! **Problem.** Two that write the same cpusets undo each other's placements every few seconds, and both believe in
//! theirs. **Approach.** The kubelet is known by its state files: a policy other than `none` in one of them, and a
//! kubelet that runs. Anybody else is known by what happens: a set that we wrote has another value each time we look.
//! Then nothing is written for a while ([`BackOff`]), and after that it is tried again: who changed a set for a minute
//! and ended must not keep a node from being placed until somebody restarts the agent.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_core::placement::cpu_set::CpuSet;
use serde::Deserialize;

use super::kubelet_state::{
    CPU_MANAGER_STATE, CPU_POLICY_STATIC, MEMORY_MANAGER_STATE, MEMORY_POLICY_STATIC,
};
use crate::host::HostRoot;
use crate::host::cgroup::CgroupPath;
use crate::host::file::{read_text, read_whole};
use crate::host::process_users::ProcessUsers;
use crate::host::shown::Show as _;
use crate::pods::names::pods_of_process;

/// The kubelet's state files: the policy with which it writes cpusets, and the field that says so.
const FILES: [(&str, &str, &str); 2] = [
    (CPU_MANAGER_STATE, CPU_POLICY_STATIC, "cpuManagerPolicy"),
    (
        MEMORY_MANAGER_STATE,
        MEMORY_POLICY_STATIC,
        "memoryManagerPolicy",
    ),
];
/// Looks in a row at which a set had another value than we wrote, before it is somebody else's.
pub const REWRITES_MAX: u32 = 3;
/// How long nothing is written after that; twice as long each time that it happens again.
const PAUSE_MIN: Duration = Duration::from_secs(60);
/// At most.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// What a kubelet is called.
const KUBELET: &str = "kubelet";
/// Programs that have one inside: of k3s, and of MicroK8s.
const WITH_KUBELET: [&str; 3] = ["k3s-server", "k3s-agent", "kubelite"];
/// Processes that are looked at: as many as there can be (`PID_MAX_LIMIT`).
const PROCESSES_MAX: usize = 4 << 20;

/// Who else manages cpusets, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OtherOwner {
    /// The kubelet.
    #[error(
        "the kubelet{pid} manages cpusets itself: {file} has policy {policy:?}; plimsoll places nothing. Set its {field}: {none} \
         and restart it (its assignments can be taken over), or set Plimsoll's to none", file = file.shown(), none = none(field),
        pid = pid.map_or(String::new(), |pid| format!(" (pid {pid})"))
    )]
    Kubelet {
        /// Its process, if it was looked for.
        pid: Option<u32>,
        /// Its state file.
        file: PathBuf,
        /// What it says.
        policy: String,
        /// The field of its configuration.
        field: &'static str,
    },
    /// Beside a kubelet: it is not known whether it manages them.
    #[error(
        "{file}: {why}; whether the kubelet manages cpusets is unknown, and plimsoll places nothing until that can be read: start the kubelet, or name its \
         directory with --kubelet-dir and let the agent read it", file = file.shown()
    )]
    Unknown {
        /// Its state file.
        file: PathBuf,
        /// Why it says nothing.
        why: String,
    },
    /// Somebody unknown.
    #[error(
        "{cgroup}: another program changed cpuset.cpus from {ours:?} to {theirs:?}, {times} times in a row; placement pauses for {pause_s} s, then tries again. Find the program (systemd AllowedCPUs=, a container runtime, a tuning daemon; auditctl -w FILE -p w) and stop it"
    )]
    Rewriter {
        /// The container's cgroup.
        cgroup: CgroupPath,
        /// What we wrote.
        ours: String,
        /// What was there instead.
        theirs: String,
        /// How often.
        times: u32,
        /// How long nothing is placed from then on, seconds.
        pause_s: u64,
    },
}

/// Somebody else wrote cpusets: when it is tried again, and whether they have given up.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    /// What was said, and until when nothing is written.
    paused: Option<(OtherOwner, Instant)>,
    /// The cgroup, and how long the last pause was; `None` when nobody has been seen, or not for long.
    contested: Option<(CgroupPath, Duration)>,
    /// Looks since the last pause at which everything was as we wrote it.
    held: u32,
}

impl BackOff {
    /// Who it was, while nothing is to be written. From the end of the pause on, `None`.
    pub(super) fn paused(&mut self, now: Instant) -> Option<OtherOwner> {
        self.paused.take_if(|(_, until)| *until <= now);
        self.paused.as_ref().map(|(owner, _)| owner.clone())
    }

    /// A set was changed so often in a row that it is somebody else's. Returns what is to be said.
    pub(super) fn pause(
        &mut self,
        now: Instant,
        cgroup: &CgroupPath,
        (ours, theirs): (CpuSet, CpuSet),
        times: u32,
    ) -> OtherOwner {
        let last = self.contested.take().map(|(_, pause)| pause);
        let pause = last.map_or(PAUSE_MIN, |pause| (pause * 2).min(PAUSE_MAX));
        let owner = OtherOwner::Rewriter {
            cgroup: cgroup.clone(),
            ours: ours.to_string(),
            theirs: theirs.to_string(),
            times,
            pause_s: pause.as_secs(),
        };
        self.held = 0;
        self.contested = Some((cgroup.clone(), pause));
        self.paused = Some((owner.clone(), now + pause));
        owner
    }

    /// All sets were looked at; `as_written`: none had another value than ours. Returns the cgroup that nobody contests
    /// any more, once.
    pub(super) fn looked(&mut self, as_written: bool) -> Option<CgroupPath> {
        if !as_written {
            self.held = 0;
            return None;
        }
        self.contested.as_ref()?;
        self.held += 1;
        // As many looks as it takes to see somebody, and the one that wrote.
        let over = self.held > REWRITES_MAX;
        over.then(|| self.contested.take().map(|(cgroup, _)| cgroup))?
    }
}

fn none(field: &str) -> &'static str {
    if field == "memoryManagerPolicy" {
        "None"
    } else {
        "none"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    policy_name: String,
}

/// The kubelet, if it runs and has a policy that writes cpusets.
///
/// A file without a kubelet is what a former one has left: it can be taken over.
#[must_use]
pub fn kubelet(host: &HostRoot, kubelet_dir: &Path) -> Option<OtherOwner> {
    FILES.into_iter().find_map(|(name, policy, field)| {
        let file = host.path(kubelet_dir).join(name);
        let text = std::fs::read(&file).ok()?;
        let found: Policy = serde_json::from_slice(&text).ok()?;
        let pid = (found.policy_name == policy).then(|| running_kubelet(host))??;
        Some(OtherOwner::Kubelet {
            pid: Some(pid),
            file,
            policy: found.policy_name,
            field,
        })
    })
}

/// The kubelet beside which the agent runs, unless its state files say that it manages neither CPUs nor memory. Its
/// process is not looked for: it may have another name (it is a part of some distributions' own programs), or be
/// between two starts.
#[must_use]
pub fn beside(host: &HostRoot, kubelet_dir: &Path) -> Option<OtherOwner> {
    FILES.into_iter().find_map(|(name, _, field)| {
        let file = host.path(kubelet_dir).join(name);
        let unknown = |why: String| {
            let file = file.clone();
            Some(OtherOwner::Unknown { file, why })
        };
        let text = match read_text(&file) {
            Ok(text) => text,
            // Kubelets before 1.21 have no memory manager.
            Err(error) if error.is_vanished() && name == MEMORY_MANAGER_STATE => return None,
            Err(error) if error.is_vanished() => return unknown("does not exist".to_owned()),
            Err(error) => return unknown(error.to_string()),
        };
        match serde_json::from_str::<Policy>(&text) {
            Err(error) => unknown(error.to_string()),
            Ok(found) if found.policy_name.eq_ignore_ascii_case("none") => None,
            Ok(found) => Some(OtherOwner::Kubelet {
                pid: None,
                file,
                policy: found.policy_name,
                field,
            }),
        }
    })
}

/// The policy of a state file, where it is one.
pub(super) fn policy_of(text: &str) -> Option<String> {
    let found: Policy = serde_json::from_str(text).ok()?;
    Some(found.policy_name)
}

/// A process that runs the pods of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KubeletProcess {
    /// Its pid.
    pub pid: u32,
    /// What it is called: `kubelet`, or a program with a kubelet inside.
    pub program: &'static str,
}

/// The pid of a kubelet, if one runs as a program of its own: its command line is a kubelet's.
pub fn running_kubelet(host: &HostRoot) -> Option<u32> {
    let found = processes_named(host, &[KUBELET]);
    found.map(|process| process.pid).min()
}

/// What runs the pods of this node, if anything does: a kubelet, or a distribution's program that has one inside.
pub fn kubelet_process(host: &HostRoot) -> Option<KubeletProcess> {
    if let Some(pid) = running_kubelet(host) {
        return Some(KubeletProcess {
            pid,
            program: KUBELET,
        });
    }
    processes_named(host, &WITH_KUBELET).min_by_key(|process| process.pid)
}

/// Processes of these names that may be a kubelet. A process in a pod may call itself as it likes, and one whose
/// cgroups cannot be read counts as in one; what a unit or a container outside of pods is called makes no pod of it. So
/// may a process of any user of the node: a kubelet was started by root, its real user. On cgroup v1 a process that has
/// ended is in no cgroup: it has no command line either. Of that one byte is read: a process can have one of any length
/// (`PR_SET_MM_MAP`).
fn processes_named(
    host: &HostRoot,
    programs: &'static [&'static str],
) -> impl Iterator<Item = KubeletProcess> {
    let entries = std::fs::read_dir(host.procfs("")).into_iter().flatten();
    let pids = entries
        .take(PROCESSES_MAX)
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let is_in_pod = |pid: u32| {
        let pods = pods_of_process(host, &pid.to_string());
        pods.map_or(true, |pods| !pods.is_empty())
    };
    let has_ended = |pid: u32| {
        let command = File::open(host.procfs(format!("{pid}/cmdline")));
        let read = command.and_then(|mut command| command.read(&mut [0]));
        read.map_or(true, |bytes| bytes == 0)
    };
    pids.filter_map(move |pid| {
        let comm = std::fs::read(host.procfs(format!("{pid}/comm"))).ok()?;
        let comm = comm.trim_ascii_end();
        let program = programs.iter().find(|name| name.as_bytes() == comm)?;
        let is_roots = ProcessUsers::of(host, pid).is_some_and(|users| users.real == 0);
        let may_be = is_roots && !is_in_pod(pid) && !has_ended(pid) && !is_nested(host, pid);
        may_be.then_some(KubeletProcess { pid, program })
    })
}

/// Whether a process is in a PID namespace below this one: a node that is a container of this machine (kind, k3d) has
/// its kubelet there. One that cannot be read is gone.
fn is_nested(host: &HostRoot, pid: u32) -> bool {
    let status = read_whole(host.procfs(format!("{pid}/status"))).unwrap_or_default();
    let mut lines = status.split(|byte| *byte == b'\n');
    let pids = lines.find_map(|line| line.strip_prefix(b"NSpid:"));
    pids.is_some_and(|pids| pids.trim_ascii().contains(&b'\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a `status`: real, effective, saved and file system's user.
    fn status_of([real, effective, saved, fs]: [u32; 4]) -> String {
        format!("Name:\tkubelet\nUid:\t{real}\t{effective}\t{saved}\t{fs}\nGid:\t0\t0\t0\t0\n")
    }

    #[test]
    fn who_is_not_root_or_another_node_starts_no_kubelet() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        for (pid, users, name) in [
            (70, [1000, 1000, 1000, 1000], "kubelet"),
            // A program with a setuid bit, by a link of that name.
            (71, [1000, 0, 0, 0], "kubelet"),
            (72, [10, 10, 10, 10], "kubelet\\nUid:\\t0"),
            (73, [0, 0, 0, 0], "kubelet"),
        ] {
            let process = host.procfs(pid.to_string());
            std::fs::create_dir_all(&process).unwrap();
            let status = status_of(users).replace("kubelet", name);
            for (file, text) in [
                ("comm", "kubelet\n"),
                ("cgroup", "0::/user.slice\n"),
                ("cmdline", "kubelet\0"),
                ("status", &status),
            ] {
                std::fs::write(process.join(file), text).unwrap();
            }
        }
        assert_eq!(running_kubelet(&host), Some(73));
        let status = status_of([0; 4]);
        let below = format!("{status}NSpid:\t73\t12\n");
        std::fs::write(host.procfs("73/status"), below).unwrap();
        assert_eq!(running_kubelet(&host), None, "a node in a container");
        std::fs::write(host.procfs("73/status"), format!("{status}NSpid:\t73\n")).unwrap();
        assert_eq!(running_kubelet(&host), Some(73));
        std::fs::remove_file(host.procfs("73/status")).unwrap();
        assert_eq!(running_kubelet(&host), None);
    }

    #[test]
    fn a_program_with_a_kubelet_inside_is_found_behind_a_kubelet() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        std::fs::create_dir_all(host.procfs("")).unwrap();
        assert_eq!(kubelet_process(&host), None);
        for (pid, program) in [(80, "k3s-agent"), (79, "kubelite"), (90, "kubelet")] {
            let process = host.procfs(pid.to_string());
            std::fs::create_dir_all(&process).unwrap();
            for (file, text) in [
                ("comm", &*format!("{program}\n")),
                ("cgroup", "0::/system.slice/k.service\n"),
                ("cmdline", "k\0"),
                ("status", &status_of([0; 4])),
            ] {
                std::fs::write(process.join(file), text).unwrap();
            }
            let found = kubelet_process(&host).unwrap();
            let least = if pid == 90 {
                (90, "kubelet")
            } else {
                (pid, program)
            };
            assert_eq!((found.pid, found.program), least);
        }
        assert_eq!(running_kubelet(&host), Some(90));
    }

    #[test]
    fn a_kubelet_is_no_process_of_a_pod_and_may_be_anywhere_else() {
        let is_found = |comm: &str, cgroup: &[u8], command: &str| {
            let dir = tempfile::tempdir().unwrap();
            let host = HostRoot::new(dir.path());
            let process = host.procfs("77");
            std::fs::create_dir_all(&process).unwrap();
            std::fs::write(process.join("comm"), format!("{comm}\n")).unwrap();
            std::fs::write(process.join("cgroup"), [b"0::", cgroup, b"\n"].concat()).unwrap();
            std::fs::write(process.join("cmdline"), command).unwrap();
            std::fs::write(process.join("status"), status_of([0; 4])).unwrap();
            running_kubelet(&host).is_some()
        };
        let found = |comm: &str, cgroup: &str| is_found(comm, cgroup.as_bytes(), "kubelet\0");
        for elsewhere in [
            "/system.slice/kubelet.service",
            "/system.slice/kubepods-tools.service",
            "/docker/kubepods/kubelet",
            "/kubepods.service",
            // From a cgroup namespace.
            "/../../../system.slice/kubelet.service",
            "/../../podman-kubelet.service",
        ] {
            assert!(found("kubelet", elsewhere), "{elsewhere}");
        }
        assert!(!found("kubelets", "/system.slice/kubelet.service"));
        for pod in [
            "/kubepods/burstable/pod1b2c/3f00",
            "/kubepods.slice/kubepods-pod1b2c_9a.slice/cri-containerd-77.scope",
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1b2c.slice",
            // From the cgroup namespace of a container in the same tier, and in another.
            "/../../pod1b2c-9a/3f00",
            "/../../../besteffort/pod1b2c/3f00",
        ] {
            assert!(!found("kubelet", pod), "{pod}");
        }
        // What a container has made in its own cgroup.
        let nested = b"/kubepods/burstable/pod1b2c/3f00/\xff";
        assert!(!is_found("kubelet", nested, "kubelet\0"));
        // A process that has ended: on cgroup v1 it is in the root.
        assert!(is_found("kubelet", b"/", "kubelet\0"));
        assert!(!is_found("kubelet", b"/", ""));
    }
}
