//! `eviction_rank`: the order in which pods are evicted.
//!
//! The kubelet leaves pods that its comparators call equal in no defined order (`tie_groups`). Ours is the order of
//! their UIDs; what is compared is the order modulo ties, and that the ties are the same.

use std::collections::BTreeMap;

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::file_system::{FileSystem, ImageFsLayout};
use plimsoll_core::model::rank_row::Comparator;
use plimsoll_core::model::reading::Used;
use plimsoll_core::policy::eviction::rank::{DiskScope, RankRow, Ranking};
use serde::Deserialize;
use serde_json::Value;

use super::stats::{Entry, Stats};
use super::{Verdict, read, same};

#[derive(Deserialize)]
struct Vector {
    signal: String,
    dedicated_image_fs: bool,
    split_container_image_fs: bool,
    pods: Vec<Entry>,
    ranked: Vec<String>,
    tie_groups: Vec<Vec<String>>,
}

/// What a signal ranks by.
enum Measure {
    Memory,
    Pids,
    DiskBytes(DiskScope),
    DiskInodes(DiskScope),
}

impl Measure {
    fn of(signal: &str, layout: ImageFsLayout) -> Result<Self, String> {
        let unknown = || format!("signal {signal:?} is unknown");
        let (subject, quality) = signal.split_once('.').ok_or_else(unknown)?;
        let scope = match subject {
            "memory" | "allocatableMemory" if quality == "available" => return Ok(Self::Memory),
            "pid" if quality == "available" => return Ok(Self::Pids),
            "nodefs" => DiskScope::of(FileSystem::Node, layout),
            "imagefs" => DiskScope::of(FileSystem::Image, layout),
            "containerfs" => DiskScope::of(FileSystem::Container, layout),
            _ => return Err(unknown()),
        };
        match quality {
            "available" => Ok(Self::DiskBytes(scope)),
            "inodesFree" => Ok(Self::DiskInodes(scope)),
            _ => Err(unknown()),
        }
    }

    fn ranking(&self) -> Ranking {
        match self {
            Self::Memory => Ranking::Memory,
            Self::Pids => Ranking::Pids,
            Self::DiskBytes(_) | Self::DiskInodes(_) => Ranking::Disk,
        }
    }

    fn row(&self, pod: &Pod, stats: Option<&Stats>) -> RankRow {
        match *self {
            Self::Memory => RankRow::memory(
                pod,
                stats.map(|own| own.memory_working_set_bytes.unwrap_or(0)),
            ),
            Self::Pids => RankRow::pids(pod, stats.map(|own| own.process_count.unwrap_or(0))),
            Self::DiskBytes(scope) => RankRow::disk_bytes(
                pod,
                stats.map(|own| used(own, pod, scope, |used| used.bytes)),
            ),
            Self::DiskInodes(scope) => RankRow::disk_inodes(
                pod,
                stats.map(|own| used(own, pod, scope, |used| used.inodes)),
            ),
        }
    }
}

fn used(stats: &Stats, pod: &Pod, scope: DiskScope, figure: fn(Used) -> Option<u64>) -> u64 {
    let storage = stats.storage(pod);
    scope.used(pod, &storage.containers, &storage.volumes, figure)
}

pub(super) fn check(vector: &Value) -> Verdict {
    Verdict::of(read(vector).and_then(ranked))
}

fn ranked(expected: Vector) -> Result<(), String> {
    let layout = match (
        expected.dedicated_image_fs,
        expected.split_container_image_fs,
    ) {
        (false, _) => ImageFsLayout::Shared,
        (true, false) => ImageFsLayout::Dedicated,
        (true, true) => ImageFsLayout::Split,
    };
    let measure = Measure::of(&expected.signal, layout)?;
    let mut names: BTreeMap<PodUid, String> = BTreeMap::new();
    let mut rows = Vec::new();
    for Entry { pod, stats } in expected.pods {
        let pod = pod.with_defaults();
        rows.push(measure.row(&pod, stats.as_ref()));
        if names.insert(pod.uid(), pod.metadata.name.clone()).is_some() {
            return Err(format!("two pods have the UID {}", pod.uid()));
        }
    }
    measure.ranking().rank(&mut rows, &mut Vec::new());

    // Runs of pods that only the UID tells apart, each sorted by name.
    let mut runs: Vec<Vec<String>> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let tied =
            at > 0 && measure.ranking().deciding_comparator(&rows[at - 1], row) == Comparator::Uid;
        match runs.last_mut().filter(|_| tied) {
            Some(run) => run.push(names[&row.uid].clone()),
            None => runs.push(vec![names[&row.uid].clone()]),
        }
    }
    runs.iter_mut().for_each(|run| run.sort_unstable());

    let mut at = 0;
    for run in &runs {
        let mut theirs = expected
            .ranked
            .iter()
            .skip(at)
            .take(run.len())
            .cloned()
            .collect::<Vec<_>>();
        theirs.sort_unstable();
        same(&format!("pods from rank {at}"), run, &theirs)?;
        at += run.len();
    }
    same("number of pods", &at, &expected.ranked.len())?;
    let ties = runs
        .into_iter()
        .filter(|run| run.len() > 1)
        .collect::<Vec<_>>();
    same("tie_groups", &ties, &expected.tie_groups)
}
