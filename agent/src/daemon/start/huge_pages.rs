//! What reserved huge pages do to thresholds on `memory.available`.
//!
//! Problem: the kubelet's formula is all memory less what the root's cgroup uses, and pages that are reserved for huge
//! ones are in the first and not in the second. With 64 GiB of them `memory.available` never falls below 64 GiB, and a
//! threshold of 100 MiB is never met. Approach: the formula stays the kubelet's, and it is said.

use plimsoll_core::model::amount::{In, Unit};
use plimsoll_core::model::config::EngineConfig;
use plimsoll_core::model::options::Availability;
use plimsoll_core::model::signal::Signal;

use crate::host::HostRoot;
use crate::host::file::FileError;
use crate::host::meminfo::MeminfoFile;

/// What to say of this machine; `None`: its thresholds can be met.
pub(super) fn remark(host: &HostRoot, config: &EngineConfig) -> Result<Option<String>, FileError> {
    let meminfo = MeminfoFile::open(host)?;
    let huge_bytes = meminfo.read_huge_page_bytes()?;
    Ok(late_by(config, meminfo.read()?.total, huge_bytes))
}

fn late_by(config: &EngineConfig, capacity_bytes: u64, huge_bytes: u64) -> Option<String> {
    let is_kubelets = config.options.availability == Availability::Kubelet;
    let mut thresholds = config.thresholds.iter();
    let is_hidden = thresholds.any(|threshold| {
        threshold.signal == Signal::MemoryAvailable
            && threshold.amount(capacity_bytes) <= huge_bytes
    });
    (is_kubelets && is_hidden && huge_bytes > 0).then(|| {
        format!(
            "a threshold on memory.available, which counts the {} that are reserved for huge pages as available, as the kubelet does: it is met too late by as much, or never; \
             set memoryAvailability: Reclaimable, or a threshold on kernelMemory.available",
            In(Unit::Bytes, huge_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use plimsoll_core::model::threshold::{Amount, Passes, Threshold};

    use super::*;

    const GI: u64 = 1 << 30;

    #[test]
    fn reserved_pages_that_hide_a_threshold_are_said() {
        let mut config = EngineConfig {
            thresholds: vec![Threshold {
                signal: Signal::MemoryAvailable,
                operator: Signal::MemoryAvailable.row().operator,
                value: Amount::Absolute(GI),
                grace_ns: 0,
                min_reclaim: None,
                passes: Passes::All,
            }],
            ..EngineConfig::default()
        };
        assert_eq!(late_by(&config, 64 * GI, 0), None);
        assert_eq!(late_by(&config, 64 * GI, GI - 1), None);
        let text = late_by(&config, 64 * GI, 32 * GI).unwrap();
        assert!(text.contains("32Gi"), "{text}");
        config.options.availability = Availability::Reclaimable;
        assert_eq!(late_by(&config, 64 * GI, 32 * GI), None);
        config.options.availability = Availability::Kubelet;
        config.thresholds[0].signal = Signal::KernelMemoryAvailable;
        assert_eq!(late_by(&config, 64 * GI, 32 * GI), None);
    }
}
