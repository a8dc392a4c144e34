//! The settings that an agent before has left are put back first, and those of this one last.

use std::path::Path;

use anyhow::Result;

use crate::act::cpu_time::CPU_LEDGER;
use crate::act::holds::HOLDS_LEDGER;
use crate::act::placement::kubelet_cgroups::CPUSETS_LEDGER;
use crate::act::remedies::REMEDIES_LEDGER;
use crate::host::irq::IRQ_LEDGER;
use crate::host::ledger::{AGENT_LEDGER, KnobError, LEDGER_BYTES_MAX, Ledger, PODS_LEDGER};
use crate::host::shown::Show as _;
use crate::host::state_dir;

use super::plan::Plan;

/// All ledgers, in the order in which they are undone: settings of pods before the cgroups that they are in.
pub const LEDGERS: [&str; 7] = [
    CPUSETS_LEDGER,
    HOLDS_LEDGER,
    CPU_LEDGER,
    REMEDIES_LEDGER,
    PODS_LEDGER,
    AGENT_LEDGER,
    IRQ_LEDGER,
];

/// The ledgers of settings that are undone when the agent ends.
pub(super) struct Ledgers {
    pub(super) agent: Ledger,
    pub(super) pods: Ledger,
}

impl Ledgers {
    /// Puts back what is in any ledger, and returns how many settings that were.
    pub(super) fn put_back(plan: &Plan<'_>) -> Result<(Self, usize), KnobError> {
        if plan.no_space.is_some() {
            let agent = plan.ledger(AGENT_LEDGER)?;
            let pods = plan.ledger(PODS_LEDGER)?;
            return Ok((Self { agent, pods }, 0));
        }
        for name in LEDGERS {
            set_aside_if_too_large(&plan.args.state_dir.join(name));
        }
        let mut restored = 0;
        // Beside a kubelet, evicted pods stay held over a restart.
        let holds = plan.kubelet.is_none().then_some(HOLDS_LEDGER);
        // Interrupts here, whoever places from now on.
        let always = [REMEDIES_LEDGER, CPU_LEDGER, IRQ_LEDGER];
        for name in always.into_iter().chain(holds) {
            restored += restore(&mut plan.ledger(name)?)?;
        }
        let mut ledgers = Self {
            agent: plan.ledger(AGENT_LEDGER)?,
            pods: plan.ledger(PODS_LEDGER)?,
        };
        // Pods first: their cgroups are inside the agent's.
        restored += restore(&mut ledgers.pods)? + restore(&mut ledgers.agent)?;
        Ok((ledgers, restored))
    }

    /// Undoes what is in them, as far as it can be now.
    pub(super) fn restore(&mut self) {
        for ledger in [&mut self.pods, &mut self.agent] {
            if ledger.is_closed() {
                continue; // nothing was changed
            }
            if let Err(error) = restore(ledger) {
                tracing::error!(%error, "kernel settings could not be put back; the next start tries again");
            }
        }
    }
}

/// A ledger that cannot be read as a whole would end each start. Without an agent no pod is evicted, so the settings
/// that it names stay as they are.
fn set_aside_if_too_large(ledger: &Path) {
    let is_too_large =
        std::fs::metadata(ledger).is_ok_and(|metadata| metadata.len() > LEDGER_BYTES_MAX);
    if !is_too_large {
        return;
    }
    match state_dir::set_aside(ledger, "it is too large for a ledger") {
        Ok(aside) => tracing::error!(
            "{}: larger than {LEDGER_BYTES_MAX} bytes, so not a ledger; kernel settings that it names are not put back; it is now {}",
            ledger.shown(),
            aside.shown()
        ),
        // The start says what is wrong with it.
        Err(error) => tracing::error!(%error, "{}: cannot be set aside", ledger.shown()),
    }
}

/// Undoes what a ledger says, as far as it can be now. Returns how many settings were put back.
pub(super) fn restore(ledger: &mut Ledger) -> Result<usize, KnobError> {
    let restoration = ledger.restore()?;
    for remark in restoration.remarks() {
        tracing::info!("{remark}");
    }
    Ok(restoration.restored())
}
