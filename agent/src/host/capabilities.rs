//! Which capabilities the agent uses, what for, and what is lost without each.
//!
//! **Problem.** In a cluster an agent should not be `privileged`, and an operator wants to know what to grant and what
//! it buys. **Approach.** [`CAPABILITIES`] is the whole list, each with its loss. The guest test
//! `capabilities::the_smallest_set_loses_nothing` runs the agent with exactly these, and `docs/reference/capabilities.md` is
//! written from what was seen there when each was taken away. **Terms.** As in capabilities(7). The agent is taken to
//! be user 0: files that belong to root it may open without any of them.
#![forbid(unsafe_code)]

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

// Bits of `CapEff` (include/uapi/linux/capability.h).
const DAC_OVERRIDE: u32 = 1;
const FOWNER: u32 = 3;
const KILL: u32 = 5;
const IPC_LOCK: u32 = 14;
const SYS_ADMIN: u32 = 21;
const SYS_NICE: u32 = 23;
const SYS_RESOURCE: u32 = 24;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// Who says that a capability is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReportedBy {
    /// The ladder, for each signal that it costs.
    Ladder,
    /// `plimsoll run`, when it tries and is refused at its start; `plimsoll check`, which does not try, from here.
    Attempt,
    /// Nobody else.
    Here,
}

/// A capability that the agent uses.
#[derive(Debug, PartialEq, Eq)]
pub struct Capability {
    /// As in capabilities(7).
    pub name: &'static str,
    /// What the agent cannot do without it; one line for a person.
    pub lost: &'static str,
    bit: u32,
    reported_by: ReportedBy,
}

/// All that the agent uses on a node. Beyond it CAP_SYS_ADMIN lets it read project quotas (else it walks the
/// directories), and CAP_CHOWN is for `--control-group`.
pub static CAPABILITIES: [Capability; 8] = [
    Capability {
        name: "CAP_BPF",
        lost: "no BPF program can be loaded: every signal falls to its next mechanism",
        bit: BPF,
        reported_by: ReportedBy::Ladder,
    },
    Capability {
        name: "CAP_PERFMON",
        lost: "no BPF program can be loaded: every signal falls to its next mechanism",
        bit: PERFMON,
        reported_by: ReportedBy::Ladder,
    },
    Capability {
        name: "CAP_KILL",
        lost: "processes of users other than root cannot be signalled: their pods get no SIGTERM, and on cgroup v1 cannot be evicted at all",
        bit: KILL,
        reported_by: ReportedBy::Here,
    },
    Capability {
        name: "CAP_SYS_RESOURCE",
        lost: "oom_score_adj can only be raised: pods and plimsoll itself are not protected from the kernel's OOM killer",
        bit: SYS_RESOURCE,
        reported_by: ReportedBy::Here,
    },
    Capability {
        name: "CAP_DAC_OVERRIDE",
        lost: "oom_score_adj of processes of users other than root cannot be set, and files of their evicted pods are not removed",
        bit: DAC_OVERRIDE,
        reported_by: ReportedBy::Here,
    },
    Capability {
        name: "CAP_FOWNER",
        lost: "files of other users in sticky directories of an evicted pod are not removed",
        bit: FOWNER,
        reported_by: ReportedBy::Here,
    },
    Capability {
        name: "CAP_SYS_NICE",
        lost: "plimsoll competes with pods for the CPU: no SCHED_FIFO",
        bit: SYS_NICE,
        reported_by: ReportedBy::Attempt,
    },
    Capability {
        name: "CAP_IPC_LOCK",
        lost: "pages of plimsoll can be reclaimed: it may wait for the disk when memory is short",
        bit: IPC_LOCK,
        reported_by: ReportedBy::Attempt,
    },
];

/// The capabilities of this process that are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    effective: u64,
}

impl Capabilities {
    /// From the bits of `CapEff`.
    #[must_use]
    pub const fn from_bits(effective: u64) -> Self {
        Self { effective }
    }

    /// From `/proc/self/status`; `None` without a `CapEff` line that is a hexadecimal number.
    #[must_use]
    pub fn parse(status: &str) -> Option<Self> {
        let text = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(text.trim(), 16)
            .ok()
            .map(Self::from_bits)
    }

    /// `CAP_SYS_ADMIN` includes the two that were split off it in Linux 5.8.
    fn has(self, bit: u32) -> bool {
        let any = match bit {
            BPF | PERFMON => 1 << bit | 1 << SYS_ADMIN,
            _ => 1 << bit,
        };
        self.effective & any != 0
    }

    /// The names of those that BPF lacks; `None` when there are enough.
    #[must_use]
    pub fn missing_for_bpf(self) -> Option<&'static str> {
        match (self.has(BPF), self.has(PERFMON)) {
            (true, true) => None,
            (true, false) => Some("CAP_PERFMON"),
            (false, true) => Some("CAP_BPF"),
            (false, false) => Some("CAP_BPF and CAP_PERFMON"),
        }
    }

    /// Those that the agent would use and does not have, in the order of [`CAPABILITIES`].
    pub fn missing(self) -> impl Iterator<Item = &'static Capability> {
        CAPABILITIES
            .iter()
            .filter(move |capability| !self.has(capability.bit))
    }

    /// Those that are missing and of which neither the ladder speaks nor, for `plimsoll run`, a failed attempt.
    pub fn missing_and_unreported(
        self,
        attempts: bool,
    ) -> impl Iterator<Item = &'static Capability> {
        self.missing()
            .filter(move |capability| match capability.reported_by {
                ReportedBy::Ladder => false,
                ReportedBy::Attempt => !attempts,
                ReportedBy::Here => true,
            })
    }
}

/// `{"effective": "0x…", "missing": ["CAP_…"]}`: the first as `/proc/PID/status` has it, the second what the agent
/// would use.
impl Serialize for Capabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let missing: Vec<&str> = self.missing().map(|capability| capability.name).collect();
        let mut map = serializer.serialize_struct("Capabilities", 2)?;
        map.serialize_field("effective", &format!("{:#x}", self.effective))?;
        map.serialize_field("missing", &missing)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bpf_needs() {
        for (bits, missing) in [
            ("0000008000000000", Some("CAP_PERFMON")),
            ("0000004000000000", Some("CAP_BPF")),
            ("000000c000000000", None),
            ("0000000000200000", None),
            ("0000000000000000", Some("CAP_BPF and CAP_PERFMON")),
        ] {
            let capabilities = Capabilities::parse(&format!("CapEff:\t{bits}\n")).unwrap();
            assert_eq!(capabilities.missing_for_bpf(), missing, "{bits}");
        }
        assert_eq!(Capabilities::parse("CapEff:\tmany\n"), None);
        assert_eq!(Capabilities::parse("Name:\tplimsoll\n"), None);
    }

    #[test]
    fn each_one_is_named_when_it_alone_is_missing() {
        let all = CAPABILITIES
            .iter()
            .fold(0, |bits, capability| bits | 1_u64 << capability.bit);
        assert_eq!(Capabilities::from_bits(all).missing().count(), 0);
        for capability in &CAPABILITIES {
            let others = Capabilities::from_bits(all & !(1 << capability.bit));
            let missing: Vec<_> = others.missing().collect();
            assert_eq!(missing, [capability]);
        }
    }

    #[test]
    fn what_an_attempt_reports_is_not_reported_twice() {
        let none = Capabilities::from_bits(0);
        let names = |attempts| -> Vec<&str> {
            none.missing_and_unreported(attempts)
                .map(|capability| capability.name)
                .collect()
        };
        assert_eq!(
            names(true),
            [
                "CAP_KILL",
                "CAP_SYS_RESOURCE",
                "CAP_DAC_OVERRIDE",
                "CAP_FOWNER"
            ]
        );
        assert_eq!(names(false).len(), 6);
    }

    #[test]
    fn json_has_the_bits_and_the_names() {
        let capabilities = Capabilities::from_bits(1 << SYS_ADMIN | 1 << KILL);
        assert_eq!(
            serde_json::to_value(capabilities).unwrap(),
            serde_json::json!({
                "effective": "0x200020",
                "missing": ["CAP_SYS_RESOURCE", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SYS_NICE", "CAP_IPC_LOCK"],
            })
        );
    }
}
