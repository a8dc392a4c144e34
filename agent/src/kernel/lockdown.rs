//! What the host's policy says about BPF, read before anything is tried.
//!
//! Under lockdown=confidentiality some programs still load, so a program that loads does not mean that tracing is
//! allowed; the lockdown file is the policy. A missing capability shows as one sentence here rather than as a failure
//! of each map.

use std::fs;

use super::BpfError;
use crate::host::capabilities::Capabilities;

/// `security/lockdown.c`; absent where securityfs is not mounted or lockdown is not built in.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
const STATUS: &str = "/proc/self/status";

/// Refuses when the host's policy or this process's capabilities rule BPF tracing out.
pub(super) fn check() -> Result<(), BpfError> {
    if fs::read_to_string(LOCKDOWN).is_ok_and(|text| is_confidentiality(&text)) {
        return Err(BpfError::Lockdown { path: LOCKDOWN });
    }
    match fs::read_to_string(STATUS)
        .ok()
        .and_then(|text| Capabilities::parse(&text))
    {
        Some(held) if held.missing_for_bpf().is_some() => Err(BpfError::Capability),
        // Unreadable: the attempt itself shows it.
        _ => Ok(()),
    }
}

/// The file lists the modes and brackets the one in force.
fn is_confidentiality(lockdown: &str) -> bool {
    lockdown.contains("[confidentiality]")
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
}
