//! What this machine allows, as far as the fallback ladder asks.
//!
//! **Problem.** "It did not work" has a dozen causes, and a person can mend most of them when told which it is.
//! **Approach.** Each fact is tried for real where trying leaves no trace (a PSI trigger and an eventfd are armed and
//! dropped at once), else read. A fact that is false carries its reason. What BPF allows is told by the loader, hook by
//! hook.
#![forbid(unsafe_code)]

use std::fmt;

use serde::{Serialize, Serializer};

use crate::host::capabilities::Capabilities;
use crate::host::file::read_text;
use crate::host::{CgroupMounts, CgroupPath, Controller, HostRoot, Version};
use crate::kernel::{self, HookReport, HookState, Unavailable};
use crate::probe::mechanism::{HookKind, Obstacle, Without};
use crate::source::memcg_v1::MemcgV1;
use crate::source::pressure::{PsiTrigger, Stall, Trigger};

/// The trigger that is tried: the shortest window, so that a refusal shows.
const PROBE_STALL_MS: u32 = 50;
const PROBE_WINDOW_MS: u32 = 500;

/// The kernel's lockdown (Documentation: kernel_lockdown.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lockdown {
    /// Not locked.
    None,
    /// The kernel cannot be changed from user space; BPF works.
    Integrity,
    /// Nor can its memory be read: BPF programs with a read helper are refused.
    Confidentiality,
    /// The file cannot be read (securityfs not mounted, or no lockdown in this kernel).
    Unknown,
}

impl fmt::Display for Lockdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Integrity => "integrity",
            Self::Confidentiality => "confidentiality",
            Self::Unknown => "unknown",
        })
    }
}

impl Lockdown {
    /// From the text of the `lockdown` security file: the word in brackets.
    fn parse(text: &str) -> Self {
        match text
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map(|(word, _)| word)
        {
            Some("none") => Self::None,
            Some("integrity") => Self::Integrity,
            Some("confidentiality") => Self::Confidentiality,
            _ => Self::Unknown,
        }
    }
}

/// How good a PSI trigger may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PsiReach {
    /// Windows from 500 ms, looked at ten times per window.
    Privileged,
    /// CAP_SYS_RESOURCE is missing: windows of 2 s and its multiples, looked at every 2 s.
    Unprivileged,
}

/// What became of a hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum HookOutcome {
    /// It was loaded and attached.
    Attached,
    /// This one was refused, or its kernel function is missing.
    Unavailable {
        /// The loader's words.
        reason: String,
    },
    /// The host refuses every program of this type.
    KindRefused {
        /// The loader's words.
        reason: String,
    },
    /// It was not tried because it is not for this host, another sees the same, or it is left out on request. Nothing
    /// is lost by it.
    Idle {
        /// Which of these.
        reason: String,
    },
}

/// One BPF program and where it is attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hook {
    /// Name of the program in the BPF object.
    pub program: String,
    /// Kernel function or tracepoint.
    pub target: String,
    /// Program type.
    pub kind: HookKind,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: HookOutcome,
}

impl From<&HookReport> for Hook {
    fn from(report: &HookReport) -> Self {
        let outcome = match &report.state {
            HookState::Attached { .. } => HookOutcome::Attached,
            HookState::Unavailable(why) => {
                // Target and type stand beside the outcome wherever it is shown.
                let reason = why.beside_target();
                match why {
                    // is_loss says so of what was left out too; here that is no fault of the machine.
                    Unavailable::LeftOut { .. } => HookOutcome::Idle { reason },
                    why if why.refuses_kind() => HookOutcome::KindRefused { reason },
                    why if why.is_loss() => HookOutcome::Unavailable { reason },
                    _ => HookOutcome::Idle { reason },
                }
            }
        };
        let kind = match report.kind {
            kernel::HookKind::Fentry => HookKind::Fentry,
            kernel::HookKind::Fexit => HookKind::Fexit,
            kernel::HookKind::TpBtf => HookKind::TpBtf,
        };
        Self {
            program: report.program.to_owned(),
            target: report.target.to_owned(),
            kind,
            outcome,
        }
    }
}

/// What the loader reports of its hooks, as plain data.
pub fn hooks_of(reports: &[HookReport]) -> Vec<Hook> {
    reports.iter().map(Hook::from).collect()
}

/// The kinds of attachment that these options leave out.
pub fn kinds_without(without: &[Without]) -> &'static [kernel::HookKind] {
    use kernel::HookKind::{Fentry, Fexit, TpBtf};
    match (
        without.contains(&Without::Fentry),
        without.contains(&Without::Tracepoint),
    ) {
        (false, false) => &[],
        (true, false) => &[Fentry, Fexit],
        (false, true) => &[TpBtf],
        (true, true) => &[Fentry, Fexit, TpBtf],
    }
}

/// A fact, or the reason why not.
type Fact<T> = Result<T, String>;

/// What the ladder is chosen from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Kernel release.
    pub kernel: String,
    /// The hooks, or why the BPF object as a whole was not loaded.
    #[serde(serialize_with = "fact")]
    pub bpf: Fact<Vec<Hook>>,
    /// Whether the kernel has type information (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    /// Lockdown.
    pub lockdown: Lockdown,
    /// Capabilities of this process; `None` when they cannot be read.
    pub capabilities: Option<Capabilities>,
    /// Which cgroup version has the memory controller.
    #[serde(serialize_with = "version")]
    pub memory: Fact<Version>,
    /// Which cgroup version has the cpu controller.
    #[serde(serialize_with = "version")]
    pub cpu: Fact<Version>,
    /// PSI triggers on `/proc/pressure/memory`.
    #[serde(serialize_with = "fact")]
    pub psi: Fact<PsiReach>,
    /// cgroup v1 eventfds.
    #[serde(serialize_with = "fact")]
    pub event_control: Fact<()>,
    /// inotify.
    #[serde(serialize_with = "fact")]
    pub inotify: Fact<()>,
    /// What is left out on request.
    pub without: Vec<Without>,
}

impl Facts {
    /// Reads the machine. `bpf` is what became of loading the object: see [`Facts::without_bpf`] for when not to try at
    /// all.
    pub fn probe(
        host: &HostRoot,
        cgroup_root: &CgroupPath,
        without: &[Without],
        bpf: Fact<Vec<Hook>>,
    ) -> Self {
        let mounts = host.cgroup_mounts().map_err(|error| error.to_string());
        let version_of = |controller| {
            let mounts = mounts.as_ref().map_err(Clone::clone)?;
            mounts
                .hierarchy_of(controller)
                .map(|hierarchy| hierarchy.version)
                .map_err(|error| error.to_string())
        };
        Self {
            kernel: read_text(host.procfs("sys/kernel/osrelease"))
                .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned()),
            bpf,
            btf: host.sysfs("kernel/btf/vmlinux").exists(),
            lockdown: read_text(host.sysfs("kernel/security/lockdown"))
                .map_or(Lockdown::Unknown, |text| Lockdown::parse(&text)),
            capabilities: read_text(host.procfs("self/status"))
                .ok()
                .and_then(|status| Capabilities::parse(&status)),
            memory: version_of(Controller::Memory),
            cpu: version_of(Controller::Cpu),
            psi: probe_psi(host),
            event_control: mounts
                .clone()
                .and_then(|mounts| probe_event_control(&mounts, cgroup_root)),
            inotify: rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC)
                .map(drop)
                .map_err(|errno| format!("inotify: {errno}; raise fs.inotify.max_user_instances")),
            without: without.to_vec(),
        }
    }

    /// What is known, apart from the loader's answer, to keep BPF from working. Loading is not tried when there is such
    /// a reason: under lockdown some programs would load all the same, and the lockdown file is policy.
    pub fn bpf_obstacle(&self) -> Option<Obstacle> {
        if self.lockdown == Lockdown::Confidentiality {
            return Some(Obstacle::Lockdown);
        }
        if !self.btf {
            return Some(Obstacle::NoBtf);
        }
        let missing = self.capabilities.and_then(Capabilities::missing_for_bpf)?;
        Some(Obstacle::Capabilities {
            missing: missing.to_owned(),
        })
    }

    /// Why loading is not to be tried, if so: left out on request, or [`Facts::bpf_obstacle`].
    pub fn without_bpf(&self) -> Option<Obstacle> {
        let option = Without::Bpf;
        if self.without.contains(&option) {
            Some(Obstacle::Without { option })
        } else {
            self.bpf_obstacle()
        }
    }
}

fn probe_psi(host: &HostRoot) -> Fact<PsiReach> {
    let trigger = Trigger::new(Stall::Some, PROBE_STALL_MS, PROBE_WINDOW_MS)
        .map_err(|error| error.to_string())?;
    match PsiTrigger::arm_as_allowed(host.procfs("pressure/memory"), trigger) {
        Ok(armed) if armed.trigger() == trigger => Ok(PsiReach::Privileged),
        Ok(_) => Ok(PsiReach::Unprivileged),
        Err(error) => Err(error.to_string()),
    }
}

/// Registers a threshold that is never reached: a kernel may have the file and refuse the use.
fn probe_event_control(mounts: &CgroupMounts, cgroup_root: &CgroupPath) -> Fact<()> {
    let hierarchy = mounts
        .hierarchy_of(Controller::Memory)
        .map_err(|error| error.to_string())?;
    if hierarchy.version != Version::V1 {
        return Err("memory is on cgroup v2, which has no cgroup.event_control".to_owned());
    }
    // A root that does not exist yet is made by the agent, with the same kernel behind it.
    let root = if hierarchy.has(cgroup_root) {
        hierarchy.dir(cgroup_root)
    } else {
        hierarchy.mount.clone()
    };
    let memcg = MemcgV1::open(&root).map_err(|error| error.to_string())?;
    // The kernel's own "unlimited" (page_counter_memparse caps it).
    memcg
        .notify_at(i64::MAX.cast_unsigned())
        .map(drop)
        .map_err(|error| error.to_string())
}

/// `{"ok": …}` or `{"reason": "…"}`.
fn fact<T: Serialize, S: Serializer>(fact: &Fact<T>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    enum Shape<'fact, T> {
        Ok(&'fact T),
        Reason(&'fact str),
    }
    match fact {
        Ok(value) => Shape::Ok(value),
        Err(reason) => Shape::Reason(reason),
    }
    .serialize(serializer)
}

fn version<S: Serializer>(version: &Fact<Version>, serializer: S) -> Result<S::Ok, S::Error> {
    let number = version.clone().map(|version| match version {
        Version::V1 => 1_u8,
        Version::V2 => 2,
    });
    fact(&number, serializer)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    /// A machine where everything works: cgroup v2, PSI, and each hook of the ladder attached.
    pub(crate) fn everything() -> Facts {
        let hook = |(program, kind, target): (&str, HookKind, &str)| Hook {
            program: program.to_owned(),
            target: target.to_owned(),
            kind,
            outcome: HookOutcome::Attached,
        };
        let hooks = [
            ("cgroup_mkdir", HookKind::TpBtf, "cgroup_mkdir"),
            ("cgroup_rmdir", HookKind::TpBtf, "cgroup_rmdir"),
            ("cgroup_attach_task", HookKind::TpBtf, "cgroup_attach_task"),
            ("charges_count", HookKind::Fentry, "page_counter_try_charge"),
            ("oom_kill_process", HookKind::Fentry, "oom_kill_process"),
            ("mark_victim", HookKind::TpBtf, "mark_victim"),
            ("kswapd_wake", HookKind::TpBtf, "mm_vmscan_kswapd_wake"),
            (
                "direct_reclaim",
                HookKind::TpBtf,
                "mm_vmscan_direct_reclaim_begin",
            ),
            ("memcg_high", HookKind::Fentry, "reclaim_high"),
            (
                "memcg_max",
                HookKind::Fentry,
                "try_to_free_mem_cgroup_pages",
            ),
            ("throttle_stop", HookKind::Fexit, "unthrottle_cfs_rq"),
            ("throttle_start", HookKind::Fexit, "throttle_cfs_rq"),
            ("memcg_oom_kill", HookKind::Fentry, "__oom_kill_process"),
            (
                "memcg_oom_group_kill",
                HookKind::Fexit,
                "mem_cgroup_get_oom_group",
            ),
            ("stall_leave", HookKind::Fentry, "psi_memstall_leave"),
            ("stall_enter", HookKind::Fentry, "psi_memstall_enter"),
            ("high_sleep", HookKind::Fentry, "schedule_timeout_killable"),
            (
                "limit_reclaim",
                HookKind::Fentry,
                "try_to_free_mem_cgroup_pages",
            ),
            (
                "limit_reclaim_tp",
                HookKind::TpBtf,
                "mm_vmscan_memcg_reclaim_begin",
            ),
            (
                "node_reclaim",
                HookKind::TpBtf,
                "mm_vmscan_direct_reclaim_begin",
            ),
            ("refault_page", HookKind::Fentry, "workingset_refault"),
            ("swap_in_folio", HookKind::Fentry, "swap_read_folio"),
            ("process_fork", HookKind::TpBtf, "sched_process_fork"),
            ("process_exec", HookKind::TpBtf, "sched_process_exec"),
        ];
        let hooks: Vec<Hook> = hooks.into_iter().map(hook).collect();
        Facts {
            kernel: "6.12.0".to_owned(),
            bpf: Ok(hooks),
            btf: true,
            lockdown: Lockdown::None,
            capabilities: Some(Capabilities::from_bits(u64::MAX)),
            memory: Ok(Version::V2),
            cpu: Ok(Version::V2),
            psi: Ok(PsiReach::Privileged),
            event_control: Err(
                "memory is on cgroup v2, which has no cgroup.event_control".to_owned()
            ),
            inotify: Ok(()),
            without: Vec::new(),
        }
    }

    /// The files of a machine in a directory; each test changes what it is about.
    fn machine(memory_on: Version) -> (tempfile::TempDir, HostRoot) {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        for path in [
            "proc/self",
            "proc/sys/kernel",
            "proc/pressure",
            "sys/kernel/btf",
            "sys/kernel/security",
            "sys/fs/cgroup/memory",
        ] {
            create_dir_all(dir.path().join(path)).unwrap();
        }
        let file = |path: &str, text: &str| write(dir.path().join(path), text).unwrap();
        file("proc/sys/kernel/osrelease", "6.1.0-50-amd64\n");
        file(
            "proc/self/status",
            "Name:\tplimsoll\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n",
        );
        file(
            "proc/pressure/memory",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        );
        file("sys/kernel/btf/vmlinux", "");
        file(
            "sys/kernel/security/lockdown",
            "none [integrity] confidentiality\n",
        );
        match memory_on {
            Version::V2 => {
                file(
                    "proc/self/mounts",
                    "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
                );
                file("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
            }
            Version::V1 => {
                file(
                    "proc/self/mounts",
                    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n",
                );
                for name in [
                    "cgroup.event_control",
                    "memory.usage_in_bytes",
                    "memory.oom_control",
                ] {
                    file(&format!("sys/fs/cgroup/memory/{name}"), "");
                }
            }
        }
        (dir, host)
    }

    fn probe(host: &HostRoot) -> Facts {
        Facts::probe(host, &CgroupPath::default(), &[], Ok(Vec::new()))
    }

    #[test]
    fn a_whole_machine() {
        let (_dir, host) = machine(Version::V2);
        let facts = probe(&host);
        assert_eq!(facts.kernel, "6.1.0-50-amd64");
        assert!(facts.btf);
        assert_eq!(facts.lockdown, Lockdown::Integrity);
        assert_eq!(facts.capabilities.unwrap().missing().count(), 0);
        assert_eq!(
            (facts.memory.as_ref(), facts.cpu.as_ref()),
            (Ok(&Version::V2), Ok(&Version::V2))
        );
        assert_eq!(facts.psi, Ok(PsiReach::Privileged));
        assert!(
            facts
                .event_control
                .as_ref()
                .unwrap_err()
                .contains("cgroup v2")
        );
        assert_eq!(facts.inotify, Ok(()));
        assert_eq!(facts.bpf_obstacle(), None);
    }

    #[test]
    fn a_v1_machine_takes_an_eventfd() {
        let (dir, host) = machine(Version::V1);
        let facts = probe(&host);
        assert_eq!(facts.memory, Ok(Version::V1));
        assert!(facts.cpu.unwrap_err().contains("cpu is not available"));
        assert_eq!(facts.event_control, Ok(()));
        std::fs::remove_file(dir.path().join("sys/fs/cgroup/memory/cgroup.event_control")).unwrap();
        assert!(
            probe(&host)
                .event_control
                .unwrap_err()
                .contains("cgroup.event_control")
        );
    }

    #[test]
    fn an_empty_machine_says_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let facts = probe(&HostRoot::new(dir.path()));
        assert_eq!(facts.kernel, "unknown");
        assert!(!facts.btf);
        assert_eq!(facts.lockdown, Lockdown::Unknown);
        assert_eq!(facts.capabilities, None);
        assert!(facts.memory.unwrap_err().contains("mounts"));
        assert!(facts.psi.unwrap_err().contains("boot with psi=1"));
    }

    #[test]
    fn malformed_files_are_unknown_and_not_permission() {
        let (dir, host) = machine(Version::V2);
        write(dir.path().join("proc/self/status"), "CapEff:\tmany\n").unwrap();
        write(dir.path().join("sys/kernel/security/lockdown"), "garbage").unwrap();
        write(dir.path().join("proc/self/mounts"), "cgroup2\n\n   \n").unwrap();
        let facts = probe(&host);
        assert_eq!(facts.capabilities, None);
        assert_eq!(facts.lockdown, Lockdown::Unknown);
        assert!(facts.memory.unwrap_err().contains("no cgroup file system"));
    }

    #[test]
    fn lockdown_words() {
        for (text, wanted) in [
            ("[none] integrity confidentiality\n", Lockdown::None),
            ("none [integrity] confidentiality\n", Lockdown::Integrity),
            (
                "none integrity [confidentiality]\n",
                Lockdown::Confidentiality,
            ),
            ("none integrity confidentiality\n", Lockdown::Unknown),
            ("", Lockdown::Unknown),
        ] {
            assert_eq!(Lockdown::parse(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn what_the_loader_reports() {
        let outcome = |state| {
            let report = HookReport {
                family: kernel::Family::Oom,
                program: "oom_kill_process",
                kind: kernel::HookKind::Fentry,
                target: "oom_kill_process",
                state,
            };
            Hook::from(&report).outcome
        };
        let unavailable = |why| outcome(HookState::Unavailable(why));
        let attached = HookState::Attached {
            verified_insns: None,
            translated_insns: None,
        };
        assert_eq!(outcome(attached), HookOutcome::Attached);
        let (kind, target, reason) = (
            kernel::HookKind::Fentry,
            "oom_kill_process",
            "errno 1 (EPERM)".to_owned(),
        );
        assert_eq!(
            unavailable(Unavailable::KindRefused {
                kind,
                reason: reason.clone()
            }),
            HookOutcome::KindRefused {
                reason: "refused by this host: errno 1 (EPERM)".to_owned()
            }
        );
        assert_eq!(
            unavailable(Unavailable::Refused {
                kind,
                target,
                reason
            }),
            HookOutcome::Unavailable {
                reason: "refused: errno 1 (EPERM)".to_owned()
            }
        );
        let missing = unavailable(Unavailable::NoMember {
            member: "cgroup.kn",
        });
        assert!(matches!(missing, HookOutcome::Unavailable { .. }));
        for why in [
            Unavailable::NotNeeded { by: "mark_victim" },
            Unavailable::LeftOut { kind },
        ] {
            assert!(matches!(unavailable(why), HookOutcome::Idle { .. }));
        }
    }

    #[test]
    fn lockdown_outranks_the_rest_and_a_request_outranks_all() {
        let mut facts = everything();
        facts.btf = false;
        assert_eq!(facts.bpf_obstacle(), Some(Obstacle::NoBtf));
        facts.lockdown = Lockdown::Confidentiality;
        assert_eq!(facts.bpf_obstacle(), Some(Obstacle::Lockdown));
        facts.without = vec![Without::Bpf];
        assert_eq!(
            facts.without_bpf(),
            Some(Obstacle::Without {
                option: Without::Bpf
            })
        );
    }
}
