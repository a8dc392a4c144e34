//! What a turn needs to know before it writes.

use plimsoll_core::model::units::PodUid;
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::cpuset_order::Cpus;

use super::Offline;
use super::cgroups::Container;
use crate::host::cpuset::CpusetError;

/// Where its processes are: what is written, or, where that is nothing or nothing that is online (v2), what the kernel makes of it.
pub(super) fn runs_on(container: &Container, online: CpuSet) -> Result<CpuSet, CpusetError> {
    let written = container.cpuset.cpus()?;
    if written.is_disjoint(&online) {
        container.cpuset.effective_cpus()
    } else {
        Ok(written)
    }
}

/// What was to be, and what was before that, as one: while it is not known how much of it came into force, both count.
pub(super) fn all_of(known: &[Assignments]) -> Option<Assignments> {
    let (last, before) = known.split_first()?;
    let mut all = last.clone();
    for (pod, containers) in before.iter().flat_map(|before| &before.containers) {
        for (container, earlier) in containers {
            let both = all.containers.entry(pod.clone()).or_default();
            let both = both.entry(container.clone()).or_default();
            both.cpus = match (both.cpus, earlier.cpus) {
                (Some(one), Some(other)) => Some(one | other),
                (one, other) => one.or(other),
            };
        }
    }
    Some(all)
}

/// Of who was alone before, what still counts when all but some containers are where they are to be: those who are there have what they have now, those that
/// are gone have nothing. Without that it would grow for as long as one of them cannot be moved.
pub(super) fn left_over(
    before: Assignments,
    now: &Assignments,
    settled: &[(PodUid, String)],
    is_failed: impl Fn(&PodUid, &str) -> bool,
) -> Assignments {
    let mut left = before;
    for (pod, containers) in &mut left.containers {
        containers.retain(|container, _| is_failed(pod, container));
    }
    left.containers
        .retain(|_, containers| !containers.is_empty());
    for (pod, container) in settled {
        if let Some(assignment) = now.get(pod, container) {
            let of_pod = left.containers.entry(pod.clone()).or_default();
            of_pod.insert(container.clone(), assignment.clone());
        }
    }
    left.refused.clear();
    left
}

/// Everybody everywhere.
pub(super) fn nobody_alone(online: CpuSet) -> Assignments {
    Assignments {
        shared_pool: online,
        ..Assignments::default()
    }
}

/// Where a container is to run, of what is online.
pub(super) fn then(
    assignments: &Assignments,
    container: &Container,
    online: CpuSet,
) -> (Cpus, Option<Offline>) {
    let wanted = assignments.cpus(&container.pod, &container.name);
    let there = wanted.cpus & online;
    let pool = assignments.shared_pool & online;
    let offline = (wanted.exclusive && there != wanted.cpus).then(|| Offline {
        pod: container.pod.clone(),
        container: container.name.clone(),
        cpus: wanted.cpus - online,
    });
    // All of them are gone: until somebody has planned anew, it runs with the others.
    let choices = [
        (there, wanted.exclusive),
        (pool, false),
        (online - assignments.exclusive(), false),
    ];
    let chosen = choices.into_iter().find(|(cpus, _)| !cpus.is_empty());
    let (cpus, exclusive) = chosen.unwrap_or((online, false));
    (Cpus { cpus, exclusive }, offline)
}

/// Whether it is on CPUs that are, or were, its own.
pub(super) fn was_alone(known: &[Assignments], container: &Container, now: CpuSet) -> bool {
    known.iter().any(|assignments| {
        let cpus = assignments.cpus(&container.pod, &container.name);
        cpus.exclusive && now.is_subset(&cpus.cpus)
    })
}
