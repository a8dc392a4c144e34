//! What the host's policy says about BPF, read before anything is tried.
//!
//! Under lockdown=confidentiality some programs still load, so a program that loads does not mean that tracing is allowed;
//! the lockdown file is the policy. A missing capability shows as one sentence here rather than as a failure of each map.

use std::fs;

use super::BpfError;

/// `security/lockdown.c`; absent where securityfs is not mounted or lockdown is not built in.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
const STATUS: &str = "/proc/self/status";

// include/uapi/linux/capability.h
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Refuses when the host's policy or this process's capabilities rule BPF tracing out.
pub(super) fn check() -> Result<(), BpfError> {
    if fs::read_to_string(LOCKDOWN).is_ok_and(|text| is_confidentiality(&text)) {
        return Err(BpfError::Lockdown { path: LOCKDOWN });
    }
    match fs::read_to_string(STATUS)
        .ok()
        .and_then(|text| effective_capabilities(&text))
    {
        Some(effective) if !may_trace(effective) => Err(BpfError::Capability),
        // Unreadable: the attempt itself will tell.
        _ => Ok(()),
    }
}

/// The file lists the modes and brackets the one in force.
fn is_confidentiality(lockdown: &str) -> bool {
    lockdown.contains("[confidentiality]")
}

fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn may_trace(effective: u64) -> bool {
    let has = |capability: u32| effective >> capability & 1 == 1;
    has(CAP_SYS_ADMIN) || has(CAP_BPF) && has(CAP_PERFMON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lockdown_is_the_bracketed_word() {
        assert!(!is_confidentiality("[none] integrity confidentiality\n"));
        assert!(!is_confidentiality("none [integrity] confidentiality\n"));
        assert!(is_confidentiality("none integrity [confidentiality]\n"));
    }

    #[test]
    fn tracing_takes_two_capabilities_or_the_one_above_them() {
        assert!(may_trace(1 << 21));
        assert!(may_trace(1 << 38 | 1 << 39));
        assert!(!may_trace(1 << 38));
        assert!(!may_trace(1 << 39));
        assert_eq!(
            effective_capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n"),
            Some(0x1ff_ffff_ffff)
        );
        assert_eq!(effective_capabilities("Name:\tx\n"), None);
    }
}
