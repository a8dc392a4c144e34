//! The pods that may be evicted, as rows of the ranking for the resource that runs out.
//!
//! Rule: `buildSignalToRankFunc` in pkg/kubelet/eviction/helpers.go of Kubernetes 1.36. Difference, on purpose: pods
//! without processes are not candidates where evicting them frees nothing, that is where no kubelet has them, or where
//! they are not known to have much of what runs out; and a pod whose processes survive SIGKILL is not chosen again.

use crate::model::config::EngineConfig;
use crate::model::reading::{PodLoad, PodStorage};
use crate::model::signal::Resource;
use crate::model::state::{NodeState, PodState};
use crate::model::unread::Charged;
use crate::policy::eviction::rank::{DiskScope, RankRow, Ranking};
use crate::policy::eviction::share;
use crate::policy::eviction::view::View;

impl Resource {
    /// How pods are ranked when it runs out.
    pub const fn ranking(self) -> Ranking {
        match self {
            Self::Memory => Ranking::Memory,
            Self::DiskBytes(_) | Self::DiskInodes(_) => Ranking::Disk,
            Self::Processes => Ranking::Pids,
            Self::Io => Ranking::Io,
            Self::Cpu => Ranking::Cpu,
        }
    }
}

/// Fills `rows`, unsorted. For memory nothing is allocated if there is room for all pods.
pub(crate) fn rows(view: &View<'_>, resource: Resource, rows: &mut Vec<RankRow>) {
    let state = view.state;
    rows.clear();
    if resource == Resource::Memory {
        let pods = || {
            state
                .pods
                .values()
                .filter(|pod| pod.running || view.waits(pod))
        };
        let unread = view.unread();
        rows.extend(pods().map(|pod| {
            let mut row = pod.row.clone();
            if let (Some(unread), Some(known)) = (&unread, &pod.memory) {
                row.usage = unread.most_bytes(&Charged::of(known));
            }
            row
        }));
        view.apply_sample(rows);
        let mut pods = pods();
        rows.retain(|row| {
            let pod = pods.next();
            pod.is_some_and(|pod| view.is_candidate(pod, resource, row.usage))
        });
    } else {
        let by_load = matches!(resource, Resource::Io | Resource::Cpu);
        let pods = state.pods.values();
        let pods = pods.filter(|pod| !by_load || load(state, pod).is_some());
        rows.extend(pods.filter_map(|pod| row_of_candidate(view, pod, resource)));
    }
    share::mark(view, resource, rows);
}

/// A pod's row in the ranking of `resource` by what is known, if it may be chosen.
pub(crate) fn row_of_candidate(
    view: &View<'_>,
    pod: &PodState,
    resource: Resource,
) -> Option<RankRow> {
    let row = row(view.config, view.state, pod, resource);
    let on_disk = matches!(resource, Resource::DiskBytes(_) | Resource::DiskInodes(_));
    // It has more than could be counted.
    let is_cut = on_disk && storage(view.state, pod).is_some_and(|usage| usage.is_cut);
    let used = if is_cut { u64::MAX } else { row.usage };
    view.is_candidate(pod, resource, used).then_some(row)
}

/// A pod's row in the ranking of `resource`.
pub(crate) fn row(
    config: &EngineConfig,
    state: &NodeState,
    pod: &PodState,
    resource: Resource,
) -> RankRow {
    let storage = || storage(state, pod).filter(|usage| !usage.is_cut);
    let mut row = match resource {
        Resource::Memory => pod.row.clone(),
        Resource::DiskBytes(file_system) => {
            let scope = DiskScope::of(file_system, config.layout);
            let used = storage().map(|usage| scope.used_by(&pod.pod, usage, |used| used.bytes));
            RankRow::disk_bytes(&pod.pod, used)
        }
        Resource::DiskInodes(file_system) => {
            let scope = DiskScope::of(file_system, config.layout);
            let used = storage().map(|usage| scope.used_by(&pod.pod, usage, |used| used.inodes));
            RankRow::disk_inodes(&pod.pod, used)
        }
        Resource::Io => RankRow::io(
            &pod.pod,
            load(state, pod).and_then(|load| load.io_bytes_per_s),
        ),
        Resource::Cpu => RankRow::cpu(&pod.pod, load(state, pod).and_then(|load| load.cpu_milli)),
        Resource::Processes => {
            let processes = state.processes.as_ref().and_then(|all| {
                let at = all
                    .pods
                    .binary_search_by(|entry| entry.uid.cmp(&pod.row.uid))
                    .ok()?;
                Some(all.pods[at].processes)
            });
            RankRow::pids(&pod.pod, processes)
        }
    };
    // The manifest does not say all: see `EngineConfig::exempt_uids`.
    row.exempt = pod.row.exempt;
    row
}

fn storage<'state>(state: &'state NodeState, pod: &PodState) -> Option<&'state PodStorage> {
    let all = &state.storage.as_ref()?.pods;
    let at = all
        .binary_search_by(|entry| entry.uid.cmp(&pod.row.uid))
        .ok()?;
    Some(&all[at])
}

fn load<'state>(state: &'state NodeState, pod: &PodState) -> Option<&'state PodLoad> {
    let all = &state.loads.as_ref()?.pods;
    let at = all
        .binary_search_by(|entry| entry.uid.cmp(&pod.row.uid))
        .ok()?;
    Some(&all[at])
}
