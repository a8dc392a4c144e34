//! The configuration of the engine.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::kube::pod_uid::PodUid;
use crate::model::file_system::ImageFsLayout;
use crate::model::options::{CpuOptions, EvictionOptions, NamespaceShare};
use crate::model::swap::PodSwap;
use crate::model::threshold::Threshold;

/// The configuration of the engine. Part of every journal's header.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EngineConfig {
    /// The eviction thresholds, as [`crate::model::threshold::for_layout`] returns them.
    pub thresholds: Vec<Threshold>,
    /// How images, writable layers and the kubelet's directory are spread over file systems.
    pub layout: ImageFsLayout,
    /// `localStorageCapacityIsolation`: whether pods over a limit of local storage are evicted.
    pub local_storage_limits: bool,
    /// `evictionPressureTransitionPeriod`: how long a condition is kept after its last threshold, in nanoseconds.
    pub pressure_transition_period_ns: u64,
    /// `evictionMaxPodGracePeriod`: upper bound of a soft eviction's grace period, in seconds. May be negative, as in
    /// the kubelet: then there is no grace.
    pub max_pod_grace_period_s: i64,
    /// Options in which the engine departs from the kubelet.
    pub options: EvictionOptions,
    /// Whether pods may swap.
    #[serde(default)]
    pub pod_swap: PodSwap,
    /// Options about CPU time.
    #[serde(default)]
    pub cpu: CpuOptions,
    /// Pods that no decision may end, hold back or put in an order of kills, whatever their manifests say: the agent's.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub exempt_uids: BTreeSet<PodUid>,
    /// What namespaces may use of the node: option `namespaceShares`. Sorted by namespace, which each has once;
    /// [`NAMESPACE_SHARES_MAX`](crate::policy::eviction::share::NAMESPACE_SHARES_MAX) at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespace_shares: Vec<NamespaceShare>,
    /// A kubelet runs the pods: it starts again what ends, it ends what the API server says, and a hard threshold
    /// leaves no grace period.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside_kubelet: bool,
}

impl Default for EngineConfig {
    /// No thresholds, and the kubelet's defaults for everything else.
    fn default() -> Self {
        Self {
            thresholds: Vec::new(),
            layout: ImageFsLayout::Shared,
            local_storage_limits: true,
            pressure_transition_period_ns: 300_000_000_000,
            max_pod_grace_period_s: 0,
            options: EvictionOptions::kubelet(),
            pod_swap: PodSwap::default(),
            cpu: CpuOptions::default(),
            exempt_uids: BTreeSet::new(),
            namespace_shares: Vec::new(),
            beside_kubelet: false,
        }
    }
}
