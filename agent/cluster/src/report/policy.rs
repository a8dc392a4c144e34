//! The options that say how an eviction is shown.

use std::str::FromStr;

use plimsoll_core::kube::duration;

/// What becomes of the objects of evicted pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EvictedPods {
    /// They stay, as the kubelet's do.
    #[default]
    Keep,
    /// Each is deleted once its status is written.
    Delete,
    /// The newest ones of each owner stay for a while; only pods of this node are counted.
    KeepSome {
        /// So many of each owner.
        per_owner: u32,
        /// For so long, milliseconds.
        for_ms: u64,
    },
}

impl FromStr for EvictedPods {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is neither `Keep`, `Delete` nor such as `keepPerOwner=3,keepFor=1h`")
        };
        match text {
            "Keep" => return Ok(Self::Keep),
            "Delete" => return Ok(Self::Delete),
            _ => {}
        }
        let (mut per_owner, mut for_ms) = (None, None);
        for part in text.split(',') {
            match part.split_once('=').ok_or_else(wrong)? {
                ("keepPerOwner", number) => per_owner = number.parse().ok(),
                ("keepFor", time) => {
                    let ns = duration::parse_ns(time).map_err(|error| error.to_string())?;
                    for_ms = u64::try_from(ns / 1_000_000).ok();
                }
                _ => return Err(wrong()),
            }
        }
        match (per_owner, for_ms) {
            (Some(per_owner), Some(for_ms)) => Ok(Self::KeepSome { per_owner, for_ms }),
            _ => Err(wrong()),
        }
    }
}

/// Which call ends a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum EvictBy {
    /// A PATCH of its status.
    #[default]
    #[value(name = "Status")]
    Status,
    /// At soft thresholds the Eviction API, which heeds disruption budgets, and the PATCH when the grace is over.
    #[value(name = "EvictionAPI")]
    EvictionApi,
}

/// All of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// `--evicted-pods`.
    pub evicted_pods: EvictedPods,
    /// `--evict-by`.
    pub evict_by: EvictBy,
    /// `--dry-run`: the API server checks every write and stores none.
    pub dry_run: bool,
    /// `--taint-on-pressure`.
    pub taint_on_pressure: bool,
    /// `--node-resource-topology`.
    pub node_resource_topology: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicted_pods_are_read_as_written() {
        assert_eq!("Keep".parse(), Ok(EvictedPods::Keep));
        assert_eq!("Delete".parse(), Ok(EvictedPods::Delete));
        let some = EvictedPods::KeepSome {
            per_owner: 3,
            for_ms: 3_600_000,
        };
        assert_eq!("keepPerOwner=3,keepFor=1h".parse(), Ok(some));
        for wrong in [
            "",
            "keep",
            "keepPerOwner=3",
            "keepPerOwner=-1,keepFor=1h",
            "keepFor=1h,x=2",
            "keepPerOwner=3,keepFor=-1h",
        ] {
            assert!(wrong.parse::<EvictedPods>().is_err(), "{wrong}");
        }
        assert!(
            "keepPerOwner=1,keepFor=7"
                .parse::<EvictedPods>()
                .unwrap_err()
                .contains("missing unit")
        );
    }
}
