//! What a turn needs to know before it writes.

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::cpuset_order::{Change, Cpus};

use super::Unusable;
use super::cgroups::Container;
use super::outcome::Outcome;
use crate::host::cpuset::CpusetError;

/// Where its processes are: what is written, or, where that is nothing or nothing that pods can use (v2), what the
/// kernel makes of it.
pub(super) fn runs_on(container: &Container, usable: CpuSet) -> Result<CpuSet, CpusetError> {
    let written = container.cpuset.cpus()?;
    if written.is_disjoint(&usable) {
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

/// Of who was alone before, what still counts when all but some containers are where they are to be: those who are
/// there have what they have now, those that are gone have nothing. Without that it would grow for as long as one of
/// them cannot be moved.
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
pub(super) fn nobody_alone(usable: CpuSet) -> Assignments {
    Assignments {
        shared_pool: usable,
        ..Assignments::default()
    }
}

/// Where a container is to run, of what pods can use. `bound`: one that shares runs on no other CPUs than these, if
/// there are any; its pod, or its QoS class, may have been made when there were fewer (v1).
fn then(
    assignments: &Assignments,
    container: &Container,
    usable: CpuSet,
    bound: Option<CpuSet>,
) -> (Cpus, Option<Unusable>) {
    let wanted = assignments.cpus(&container.pod, &container.name);
    let there = wanted.cpus & usable;
    let pool = assignments.shared_pool & usable;
    let unusable = (wanted.exclusive && there != wanted.cpus).then(|| Unusable {
        pod: container.pod.clone(),
        container: container.name.clone(),
        cpus: wanted.cpus - usable,
    });
    // All of them are gone: until somebody has planned anew, it runs with the others.
    let choices = [
        (there, wanted.exclusive),
        (pool, false),
        (usable - assignments.exclusive(), false),
    ];
    let chosen = choices.into_iter().find(|(cpus, _)| !cpus.is_empty());
    let (mut cpus, exclusive) = chosen.unwrap_or((usable, false));
    if let Some(bound) = bound.filter(|bound| !exclusive && !bound.is_disjoint(&cpus)) {
        cpus &= bound;
    }
    (Cpus { cpus, exclusive }, unusable)
}

/// Where each container is and where it is to be; those that cannot be read have failed.
pub(super) fn changes<'a>(
    wanted: &Assignments,
    known: &[Assignments],
    containers: &'a [Container],
    usable: CpuSet,
    outcome: &mut Outcome,
) -> (Vec<&'a Container>, Vec<Change>) {
    let mut changes = Vec::new();
    let mut moved = Vec::new();
    for container in containers {
        let looked =
            runs_on(container, usable).and_then(|now| Ok((now, container.cpuset.bound()?)));
        match looked {
            Ok((now, bound)) => {
                let (then, unusable) = then(wanted, container, usable, bound);
                outcome.unusable.extend(unusable);
                let exclusive = was_alone(known, container, now);
                let now = Cpus {
                    cpus: now & usable,
                    exclusive,
                };
                changes.push(Change { now, then });
                moved.push(container);
            }
            Err(error) => outcome.fail(&container.pod, &container.name, error.into()),
        }
    }
    (moved, changes)
}

/// Where the kernel runs a container that was told to run on `target`, if that is elsewhere and matters: one that is to
/// be alone has other CPUs, or one that shares is on `exclusive` ones. A set in which the cgroup above has nothing
/// counts for nothing (v2): its processes are wherever those of the cgroup above may be.
pub(super) fn runs_elsewhere(
    container: &Container,
    target: Cpus,
    exclusive: CpuSet,
) -> Result<Option<CpuSet>, CpusetError> {
    let effective = container.effective_cpus()?;
    let is_elsewhere = !target.cpus.is_subset(&effective)
        && (target.exclusive || !effective.is_disjoint(&exclusive));
    Ok(is_elsewhere.then_some(effective))
}

/// Whether it is on CPUs that are, or were, its own.
fn was_alone(known: &[Assignments], container: &Container, now: CpuSet) -> bool {
    known.iter().any(|assignments| {
        let cpus = assignments.cpus(&container.pod, &container.name);
        cpus.exclusive && now.is_subset(&cpus.cpus)
    })
}
