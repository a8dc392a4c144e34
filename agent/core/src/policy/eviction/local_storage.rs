//! Pods that have more on disk than they may.
//!
//! Rule: `localStorageEviction` in pkg/kubelet/eviction/eviction_manager.go of Kubernetes 1.36: at each reading every
//! pod over one of its limits is evicted, whatever the node's state, before any threshold is checked. In this order: an
//! `emptyDir` over its `sizeLimit` (also one in memory); the pod over the sum of its `ephemeral-storage` limits, also
//! if that is 0; a container over its own. Writable layers count in the pod's sum (`calcEphemeralStorage` in
//! pkg/kubelet/stats/helper.go), and in that of a container only where images share the node's file system. Critical
//! pods stay.

use crate::kube::quantity::Quantity;
use crate::kube::resources::{self, EPHEMERAL_STORAGE, Scope};
use crate::model::config::EngineConfig;
use crate::model::decision::{Decision, Limited, LocalStorageReason, Reason};
use crate::model::file_system::{FileSystem, ImageFsLayout};
use crate::model::rank_row::Nanos;
use crate::model::reading::PodStorage;
use crate::model::signal::Resource;
use crate::model::state::{NodeState, PodState};
use crate::policy::eviction::leaving;
use crate::policy::eviction::rank::DiskScope;
use crate::policy::eviction::view::View;

/// Evicts all offenders of the newest reading.
pub(crate) fn decide(config: &EngineConfig, state: &mut NodeState, decisions: &mut Vec<Decision>) {
    let Some(storage) = state.storage.clone() else {
        return;
    };
    for used in &storage.pods {
        let Some(pod) = state.pods.get(&used.uid) else {
            continue;
        };
        // One that only its owner or its kubelet ends can take as long as it likes.
        let is_ended = pod
            .leaving
            .is_some_and(|leaving| leaving.evicted_for.is_some() || leaving.killed_at_ns.is_some());
        let is_there = pod.running || View::now(config, state).waits(pod);
        let may_go = is_there && !pod.row.exempt && !pod.stuck && !is_ended;
        let Some(reason) = may_go.then(|| offence(config, pod, used)).flatten() else {
            continue;
        };
        leaving::steps::evict(
            config,
            state,
            &used.uid,
            Resource::DiskBytes(FileSystem::Node),
            leaving::steps::hard_grace_s(config),
            Reason::LocalStorage(reason),
            decisions,
        );
    }
}

/// The first limit that a pod exceeds.
pub(crate) fn offence(
    config: &EngineConfig,
    pod: &PodState,
    used: &PodStorage,
) -> Option<LocalStorageReason> {
    empty_dir(pod, used)
        .or_else(|| whole_pod(pod, used))
        .or_else(|| container(config, pod, used))
}

fn exceeded(limited: Limited, usage: u64, limit: &Quantity) -> Option<LocalStorageReason> {
    // A pod's containers together may have 0; for a volume or a container that is no limit.
    let is_limit = limit.sign() > 0 || limited == Limited::Pod;
    let is_above = Nanos::from_units(usage) > Nanos(limit.nanos());
    (is_limit && is_above).then_some(LocalStorageReason {
        limited,
        usage,
        limit: u64::try_from(limit.value()).unwrap_or(0),
    })
}

fn empty_dir(pod: &PodState, used: &PodStorage) -> Option<LocalStorageReason> {
    pod.pod.spec.volumes.iter().find_map(|volume| {
        let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
        let volume_usage = used
            .volumes
            .iter()
            .find(|volume_usage| volume_usage.name == volume.name)?;
        exceeded(
            Limited::EmptyDir(volume.name.clone()),
            volume_usage.used.bytes?,
            limit,
        )
    })
}

fn whole_pod(pod: &PodState, used: &PodStorage) -> Option<LocalStorageReason> {
    let limits = resources::pod_limits(&pod.pod, Scope::ALL);
    let limit = limits.get(EPHEMERAL_STORAGE)?;
    let scope = DiskScope {
        rootfs: true,
        logs: true,
        local_volumes: true,
    };
    let usage = scope.used_by(&pod.pod, used, |used| used.bytes);
    exceeded(Limited::Pod, usage, limit)
}

fn container(
    config: &EngineConfig,
    pod: &PodState,
    used: &PodStorage,
) -> Option<LocalStorageReason> {
    used.containers.iter().find_map(|container_usage| {
        let container = pod
            .pod
            .spec
            .containers
            .iter()
            .find(|container| container.name == container_usage.name)?;
        let limit = container.resources.limits.get(EPHEMERAL_STORAGE)?;
        let layer = container_usage
            .rootfs
            .bytes
            .filter(|_| layers_on_nodefs(config));
        let usage = container_usage
            .logs
            .bytes
            .unwrap_or(0)
            .saturating_add(layer.unwrap_or(0));
        exceeded(
            Limited::Container(container_usage.name.clone()),
            usage,
            limit,
        )
    })
}

fn layers_on_nodefs(config: &EngineConfig) -> bool {
    config.layout == ImageFsLayout::Shared
}
