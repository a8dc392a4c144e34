//! Errors of the BPF side, and aya's errors in one line.

use std::error::Error;
use std::io;

use super::btf::BtfError;

/// Why BPF cannot be used, or a call on it failed.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// Pins cannot be removed.
    #[error(transparent)]
    Pins(#[from] super::PinError),
    /// The kernel does not say how many CPUs there can be.
    #[error("{path}: cannot be read: {source}; check that the host's /sys is mounted")]
    Cpus {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The host's policy forbids reading kernel memory.
    #[error(
        "{path} says confidentiality: this host's policy forbids BPF tracing; only a reboot without it changes that"
    )]
    Lockdown {
        /// The file.
        path: &'static str,
    },
    /// This process may not load tracing programs.
    #[error(
        "loading BPF programs needs CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN: start plimsoll as root or grant them"
    )]
    Capability,
    /// The kernel shows no type information.
    #[error("{path}: {source}; BPF programs here need a kernel built with CONFIG_DEBUG_INFO_BTF")]
    NoBtf {
        /// The file.
        path: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel's type information cannot be read.
    #[error("{path}: cannot be read: {source}; please report it with the kernel's version")]
    Btf {
        /// The file.
        path: &'static str,
        /// What is wrong with it.
        source: BtfError,
    },
    /// A realtime kernel whose ring buffers have a lock that sleeps.
    #[error(
        "this realtime kernel (PREEMPT_RT) can hang when a BPF program writes to a ring buffer, as the lock of the ring sleeps: boot a kernel from 6.12 on, or one whose vendor has \"bpf: Use raw_spinlock_t in ringbuf\""
    )]
    SleepingRing,
    /// The kernel or the loader refuses the object as a whole.
    #[error("the BPF object cannot be used: {reason}")]
    Object {
        /// errno and its name, or what is wrong.
        reason: String,
    },
    /// No hook could be attached.
    #[error("this host allows none of the BPF hooks: {reason}")]
    NoHook {
        /// The first hook's reason.
        reason: String,
    },
    /// A map operation failed.
    #[error("BPF map {map}: {reason}")]
    Map {
        /// Its name.
        map: &'static str,
        /// errno and its name.
        reason: String,
    },
    /// The kernel does not show what programs cost.
    #[error("run time of BPF programs: {reason}; it needs CAP_SYS_ADMIN and Linux 5.8")]
    Stats {
        /// errno and its name, or which program.
        reason: String,
    },
    /// No perf event can be sampled.
    #[error("nothing can be sampled here: {reason}")]
    NoSampling {
        /// errno and its name and what to do, or what is missing.
        reason: String,
    },
}

/// Kernel-internal, yet the BPF system call returns it.
const ENOTSUPP: i32 = 524;

/// Why this host refuses a program on a function that does nothing, with what the errno alone does not say.
pub(super) fn refusal_of_functions(reason: String) -> String {
    if reason != errno_text(ENOTSUPP) {
        return reason;
    }
    // `arch_prepare_bpf_trampoline` or `register_ftrace_direct` is not there.
    format!(
        "{reason}: this kernel cannot call programs from its functions (on arm64 from 6.4 on, with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS)"
    )
}

/// For `map_err` on an operation on `map`.
pub(super) fn map_error(map: &'static str) -> impl Fn(aya::maps::MapError) -> BpfError {
    move |error| BpfError::Map {
        map,
        reason: reason(&error),
    }
}

/// An error of aya in one line: the errno that the kernel gave, and the verifier's last words if there are any.
pub(super) fn reason(error: &(dyn Error + 'static)) -> String {
    let mut errno = None;
    let mut verdict = None;
    let mut next = Some(error);
    // aya nests three deep; the bound is against a cycle.
    for _ in 0..16 {
        let Some(current) = next else { break };
        if let Some(error) = current.downcast_ref::<io::Error>() {
            errno = error.raw_os_error().or(errno);
        }
        if let Some(aya::programs::ProgramError::LoadError { verifier_log, .. }) =
            current.downcast_ref()
        {
            verdict = last_words(&verifier_log.to_string());
        }
        next = current.source();
    }
    match (errno, verdict) {
        (Some(errno), Some(verdict)) => format!("{}: {verdict}", errno_text(errno)),
        (Some(errno), None) => errno_text(errno),
        (None, _) => error.to_string().replace('\n', " "),
    }
}

/// The last line of a verifier log that is about the program rather than about the verifier.
fn last_words(log: &str) -> Option<String> {
    log.lines()
        .map(str::trim)
        .rfind(|line| {
            !line.is_empty()
                && !["processed ", "verification time", "stack depth"]
                    .iter()
                    .any(|start| line.starts_with(start))
        })
        .map(str::to_owned)
}

fn errno_text(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::ESRCH => "ESRCH",
        libc::E2BIG => "E2BIG",
        libc::EBADF => "EBADF",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOSPC => "ENOSPC",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        ENOTSUPP => "ENOTSUPP",
        _ => return format!("errno {errno}"),
    };
    format!("errno {errno} ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_is_found_below_other_errors() {
        let error = aya::maps::MapError::CreateError {
            name: "CHARGES".into(),
            io_error: io::Error::from_raw_os_error(1),
        };
        assert_eq!(reason(&error), "errno 1 (EPERM)");
        assert_eq!(reason(&aya::maps::MapError::KeyNotFound), "key not found");
    }

    #[test]
    fn a_kernel_that_calls_no_program_from_functions_is_explained() {
        let explained = refusal_of_functions(errno_text(524));
        assert!(
            explained.starts_with("errno 524 (ENOTSUPP): ") && explained.contains("arm64"),
            "{explained}"
        );
        assert_eq!(refusal_of_functions(errno_text(1)), "errno 1 (EPERM)");
    }

    #[test]
    fn the_verdict_is_the_last_line_about_the_program() {
        let log = "0: R1=ctx()\n1: (79) r1 = *(u64 *)(r1 +0)\naccess beyond struct cgroup at off 999 size 8\n\
                   processed 2 insns (limit 1000000) max_states_per_insn 0\n\n";
        assert_eq!(
            last_words(log).as_deref(),
            Some("access beyond struct cgroup at off 999 size 8")
        );
        assert_eq!(last_words("processed 0 insns\n"), None);
    }
}
