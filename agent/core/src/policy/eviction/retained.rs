//! Memory that is still there when the pod that used it has gone. What follows from it:
//! [`breaker`](crate::policy::eviction::breaker).

use crate::kube::pod_uid::PodUid;
use crate::model::config::EngineConfig;
use crate::model::decision::EvictionEnding;
use crate::model::signal::Resource;
use crate::model::state::{Hold, Leaving, Retained};

/// An eviction failed if less than one part in so many came back.
pub(crate) const FREED_PART: u64 = 5;

/// What is held after a pod has ended that was leaving and uses `used_bytes` now, of which `counted_bytes` are held
/// already ([`retained_bytes`](crate::model::state::PodState::retained_bytes)).
pub(crate) fn after(
    config: &EngineConfig,
    known: Option<Hold>,
    leaving: &Leaving,
    counted_bytes: u64,
    ending: EvictionEnding,
    used_bytes: u64,
    now_ns: u64,
) -> Option<Hold> {
    let Some(breaker) = config.options.breaker else {
        return known;
    };
    let freed_bytes = leaving.used_before_bytes.saturating_sub(used_bytes);
    let failed = ending == EvictionEnding::Lingering
        && leaving.evicted_for == Some(Resource::Memory)
        && freed_bytes < leaving.used_before_bytes / FREED_PART;
    if !failed {
        return known;
    }
    let known = known.unwrap_or_default();
    let others_bytes = known.bytes.saturating_sub(counted_bytes);
    Some(Hold {
        bytes: others_bytes.saturating_add(used_bytes),
        until_ns: now_ns.saturating_add(breaker.interval_ns),
        ..known
    })
}

/// Takes note of what [`after`] says of a pod.
pub(crate) fn remember(retained: &mut Option<Retained>, uid: &PodUid, hold: Option<Hold>) {
    let Some(hold) = hold else { return };
    match retained {
        Some(known) if known.hold == hold => {}
        Some(known) => {
            known.uid = uid.clone();
            known.hold = hold;
        }
        None => {
            *retained = Some(Retained {
                uid: uid.clone(),
                hold,
                reported: false,
            });
        }
    }
}
