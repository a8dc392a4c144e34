//! What a running agent knows at one instant, or knew, as a journal has it: all that answers are made of.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::admission::standing::{QuotaUse, RefusedPod};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::state::NodeState;
use plimsoll_core::policy::oom::order::OomPlan;

use crate::kernel::AccountReport;
use crate::record::limit_counts::LimitTotals;
use crate::record::lines::RecentLine;
use crate::record::tally::Tally;

/// What the loop gives away: all that explanations are made of, at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// What the engine was told.
    pub config: EngineConfig,
    /// What it knows.
    pub state: NodeState,
    /// The order of OOM kills, where the agent makes one.
    pub oom_plan: Option<OomPlan>,
    /// Where every record of the kernel went, where BPF programs send any.
    pub records: Option<AccountReport>,
    /// What the loop has counted of its own work.
    pub tally: Tally,
    /// What limits have cost the pods.
    pub limits: BTreeMap<PodUid, LimitTotals>,
    /// Pods that have a manifest and may not run.
    pub refused: Arc<[RefusedPod]>,
    /// What is in use of the quotas.
    pub quotas: Arc<[QuotaUse]>,
    /// The newest of what was said, the oldest first.
    pub recent_lines: Vec<Arc<RecentLine>>,
}

impl Snapshot {
    /// What an engine knows, without anything that only a running loop has.
    pub fn of(engine: &Engine) -> Self {
        Self {
            config: engine.config().clone(),
            state: engine.state().clone(),
            oom_plan: None,
            records: None,
            tally: Tally::default(),
            limits: BTreeMap::new(),
            refused: Arc::default(),
            quotas: Arc::default(),
            recent_lines: Vec::new(),
        }
    }
}
