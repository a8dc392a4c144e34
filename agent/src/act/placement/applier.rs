//! Makes the cgroups what a placement says, so that no exclusive CPU is shared on the way.
//!
//! One turn ([`Applier::apply`]), all of it while no container can be started by `exec`:
//! 1. the checkpoint says what is to be, and what was;
//! 2. each container is found, and what it runs on is read;
//! 3. [`cpuset_order`] says who leaves, and who arrives; CPUs, then NUMA nodes, whose pages may take long to move, then
//!    quotas and interrupts;
//! 4. the checkpoint says that it is so.
//!
//! Where the checkpoint cannot be written, what it has is carried out in place of what is wanted: nobody gets CPUs that
//! the next agent would not know of, and containers that came since are kept off the exclusive CPUs of others.
//!
//! A container that cannot be moved away keeps its CPUs from whoever should arrive there: that one stays where it is,
//! and both are reported and tried again. Of one whose cpuset cannot even be read nobody knows where it runs: it is
//! reported, and does not keep the others from their places. A turn in which everything is right writes nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::cpuset_order::{self, Change, Write};
use plimsoll_core::placement::memory::NodeMemory;

use super::PlacementError;
use super::answered::{self, Answered, Settling};
use super::cgroups::{self, Container};
use super::checkpoint::{BREAK_AFTER, CHECKPOINT, Checkpoint, Found, PlacementLock};
use super::kubelet_cgroups::{self, Names, Sets};
use super::kubelet_state;
use super::other_managers::{BackOff, OtherOwner, REWRITES_MAX};
use super::outcome::{Occupied, Outcome, Overlap, Written};
use super::paths::NodePaths;
use super::plan::{all_of, changes, left_over, nobody_alone, runs_elsewhere, runs_on};
use super::plugin_cpusets::{self, Foreign};
use super::quota::{self, Quota, Quotas};
use super::usable::Usable;
use crate::host::cgroup::CgroupPath;
use crate::host::cpuset::{CPUS, MEMS};
use crate::host::irq::{IRQ_LEDGER, IrqAffinity};
use crate::host::ledger::{Ledger, PODS_LEDGER};

/// What is done beside cpusets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether interrupts are kept off exclusive CPUs.
    pub moves_interrupts: bool,
    /// Whether containers with exclusive CPUs keep their CFS quota.
    pub keeps_quota: bool,
}

/// The placement to apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Who holds what.
    pub assignments: Assignments,
    /// What pods are limited to when they have no exclusive CPUs.
    pub quotas: Quotas,
    /// Beside a kubelet: which container is which.
    pub names: Names,
    /// Beside a kubelet: containers whose cpuset another plugin of the runtime has set.
    pub foreign: plugin_cpusets::Ids,
    /// Beside a kubelet: what the runtime makes containers with.
    pub answered: Answered,
    /// The books of each NUMA node under `memoryManagerPolicy: Static`.
    pub memory: BTreeMap<u32, NodeMemory>,
}

/// A set that was written, and how often somebody has changed it since.
#[derive(Debug, Clone, Copy)]
struct Ours {
    id: u64,
    cpus: CpuSet,
    rewritten: u32,
}

/// Writes placements. One for each state directory.
#[derive(Debug)]
pub struct Applier {
    paths: NodePaths,
    options: Options,
    /// What is in force; `None` until it was looked up.
    before: Option<Assignments>,
    pods_ledger: Ledger,
    /// Beside a kubelet: what was written, and what there was before.
    sets: Option<Sets>,
    foreign: Foreign,
    irqs: Option<IrqAffinity>,
    settling: Settling,
    ours: BTreeMap<CgroupPath, Ours>,
    /// What pods could use when that was last looked at.
    seen: Option<Usable>,
    /// The CPUs of that at the last look at the sets.
    usable_at_look: Option<CpuSet>,
    /// The files for a kubelet have what is in force.
    is_kept_for_kubelet: bool,
    back_off: BackOff,
    /// Why not all could be left to the kubelet, as it was last said.
    not_left: Option<String>,
}

impl Applier {
    /// Opens it, and puts back the interrupts that a dead agent has moved. Returns also what could not be put back.
    ///
    /// # Errors
    /// [`PlacementError::OtherOwner`] without a kubelet's tree, when a kubelet does this; a ledger that cannot be
    /// opened. Beside a kubelet that is no error here: [`Applier::apply`] asks each time, and does nothing while the
    /// kubelet does this, or nobody knows.
    pub fn open(paths: NodePaths, options: Options) -> Result<(Self, Vec<String>), PlacementError> {
        let sets = paths.kubelet.is_some();
        let sets = sets.then(|| Sets::open(&paths.host, &paths.state_dir));
        let mut sets = sets.transpose()?;
        let mut not_left = None;
        if let Some(owner) = paths.other_owner() {
            say_not_left(leave_to(&owner, &paths, sets.as_mut()), &mut not_left);
            if paths.kubelet.is_none() {
                return Err(owner.into());
            }
        }
        let (foreign, unread) = Foreign::open(&paths.state_dir);
        let pods_ledger = Ledger::open(&paths.host, paths.state_dir.join(PODS_LEDGER))?;
        // Also without the option: the agent before this one may have had it.
        let ledger = Ledger::open(&paths.host, paths.state_dir.join(IRQ_LEDGER))?;
        let (irqs, restoration) = IrqAffinity::open(&paths.host, ledger)?;
        let applier = Self {
            irqs: options.moves_interrupts.then_some(irqs),
            paths,
            options,
            before: None,
            pods_ledger,
            sets,
            foreign,
            settling: Settling::default(),
            ours: BTreeMap::new(),
            seen: None,
            usable_at_look: None,
            is_kept_for_kubelet: false,
            back_off: BackOff::default(),
            not_left,
        };
        let remarks = restoration.remarks().into_iter().chain(unread);
        Ok((applier, remarks.collect()))
    }

    /// Containers whose cpuset another plugin of the runtime has set, as an agent before has left them.
    pub fn foreign(&self) -> &plugin_cpusets::Ids {
        &self.foreign.ids
    }

    /// The kubelet places from now on, and this agent does not: nothing of what it has placed is left for it to go on
    /// from. Whether it is so.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub fn hand_over(paths: &NodePaths) -> Result<bool, PlacementError> {
        let Some(owner @ OtherOwner::Kubelet { .. }) = paths.other_owner() else {
            return Ok(false);
        };
        if paths.kubelet.is_none() {
            return Ok(false);
        }
        let mut sets = Sets::open(&paths.host, &paths.state_dir)?;
        leave_to(&owner, paths, Some(&mut sets))?;
        kubelet_state::forget(&paths.state_dir).map_err(PlacementError::ForKubelet)?;
        let lock = PlacementLock::exclusive_by_force(&paths.state_dir, BREAK_AFTER)?;
        Checkpoint::remove(&lock, &paths.state_dir)?;
        Ok(true)
    }

    /// What pods can use, if it is something else than at the last call.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub fn look_at_machine(&mut self) -> Result<Option<Usable>, PlacementError> {
        let usable = Usable::read(&self.paths)?;
        Ok((self.seen.replace(usable) != Some(usable)).then_some(usable))
    }

    /// Whether the next [`Applier::look_at_machine`] has something to say. While it cannot be told, as far as anybody
    /// knows it has not.
    pub fn has_machine_changed(&self) -> bool {
        Usable::read(&self.paths).is_ok_and(|usable| self.seen != Some(usable))
    }

    /// When a set that the runtime writes for us may have come after the last look.
    pub fn next_look(&self) -> Option<Instant> {
        self.settling.next_look()
    }

    /// Makes it so. What could not be done is in the outcome, and the next call tries again.
    ///
    /// # Errors
    /// [`PlacementError`] when nothing at all could be done, or nothing may be because somebody else does it.
    pub fn apply(&mut self, wanted: &Wanted) -> Result<Outcome, PlacementError> {
        self.apply_at(wanted, Instant::now())
    }

    /// [`Applier::apply`] at this time.
    fn apply_at(&mut self, wanted: &Wanted, now: Instant) -> Result<Outcome, PlacementError> {
        let result = self.carry_out(wanted, now, true);
        if result.is_err() {
            // Nothing was looked at, and that is tried again in its own time.
            self.settling = Settling::default();
        }
        result
    }

    /// `falls_back`: where this cannot be kept, what was kept before is carried out; else that is an error.
    fn carry_out(
        &mut self,
        wanted: &Wanted,
        now: Instant,
        falls_back: bool,
    ) -> Result<Outcome, PlacementError> {
        if let Some(owner) = self.paths.other_owner() {
            let left = leave_to(&owner, &self.paths, self.sets.as_mut());
            say_not_left(left, &mut self.not_left);
            return Err(owner.into());
        }
        if let Some(owner) = self.back_off.paused(now) {
            return Err(owner.into());
        }
        let kept = self.foreign.set(&wanted.foreign);
        let usable = Usable::read(&self.paths)?;
        let lock = PlacementLock::exclusive_by_force(&self.paths.state_dir, BREAK_AFTER)?;
        let mut outcome = Outcome {
            usable,
            of_all_pods: self.paths.of_all_pods().clone(),
            foreign_not_kept: kept.err().map(|error| error.to_string()),
            ..Outcome::default()
        };
        let mut known = self.read_known(&lock, &mut outcome)?;
        let mut wanted = Cow::Borrowed(wanted);
        let (checkpoint, is_new) =
            self.keep(&lock, &mut wanted, &mut known, falls_back, &mut outcome)?;
        let wanted = wanted.as_ref();
        let containers = self.containers(wanted, &known, &mut outcome)?;
        outcome.uncontested = self.notice_rewriting(&containers, usable.cpus, now)?;
        let settled = self.cpus(wanted, &known, &containers, usable.cpus, &mut outcome);
        let is_apart = outcome.failed.is_empty();
        self.mems(wanted, &containers, &mut outcome);
        self.settling
            .looked(&containers, &wanted.answered, &outcome, now);
        // Beside a kubelet they are its own.
        if self.paths.kubelet.is_none() {
            self.quotas(wanted, &checkpoint, &containers, &mut outcome);
        }
        if let Some(irqs) = &mut self.irqs {
            match irqs.keep_off(wanted.assignments.exclusive(), usable.online()) {
                Ok(moved) => outcome.interrupts = moved,
                Err(error) => outcome.interrupts.failed = Some(error.to_string()),
            }
        }
        self.note_finished(&lock, checkpoint, &settled, is_apart, &mut outcome);
        self.is_kept_for_kubelet &= !is_new;
        // Everything is in force, with the interrupts or without.
        if is_apart && outcome.fell_back.is_none() {
            self.keep_for_kubelet(wanted, &mut outcome);
        }
        if is_apart {
            self.before = Some(wanted.assignments.clone());
        }
        Ok(outcome)
    }

    /// Writes the checkpoint of what is to be in force, before any cgroup. Where it cannot be written and `falls_back`,
    /// what was kept before is wanted from now on. Also returns whether it is new.
    fn keep(
        &self,
        lock: &PlacementLock,
        wanted: &mut Cow<'_, Wanted>,
        known: &mut Vec<Assignments>,
        falls_back: bool,
        outcome: &mut Outcome,
    ) -> Result<(Checkpoint, bool), PlacementError> {
        let is_new = known.first() != Some(&wanted.assignments);
        if known.is_empty() {
            known.extend(self.before.clone());
        }
        // Who was alone before is so until the last cgroup is written.
        let before = match is_new {
            true => Some(all_of(known).unwrap_or_else(|| nobody_alone(outcome.usable.cpus))),
            false => known.get(1).cloned(),
        };
        let mut checkpoint = Checkpoint {
            assignments: wanted.assignments.clone(),
            before,
            keeps_quota: self.options.keeps_quota,
        };
        if is_new && let Err(error) = checkpoint.write(lock, &self.paths.state_dir) {
            let Some(kept) = known.first().filter(|_| falls_back).cloned() else {
                return Err(error.into());
            };
            checkpoint.assignments = kept.clone();
            checkpoint.before = known.get(1).cloned();
            outcome.fell_back = Some((error.to_string(), kept.clone()));
            wanted.to_mut().assignments = kept;
            return Ok((checkpoint, false));
        }
        Ok((checkpoint, is_new))
    }

    /// Once cgroups are written: who is still where nobody else may be yet stays in the checkpoint, and no one else.
    /// `is_apart`: everybody has left the CPUs of others.
    fn note_finished(
        &self,
        lock: &PlacementLock,
        mut checkpoint: Checkpoint,
        settled: &[(PodUid, String)],
        is_apart: bool,
        outcome: &mut Outcome,
    ) {
        let before = checkpoint.before.clone().filter(|_| !is_apart);
        let before = before.map(|before| {
            let is_failed = |pod: &PodUid, container: &str| {
                let mut failed = outcome.failed.iter();
                failed.any(|failed| failed.pod == *pod && failed.container == container)
            };
            left_over(before, &checkpoint.assignments, settled, is_failed)
        });
        if before != checkpoint.before {
            checkpoint.before = before;
            // Until it is there, containers start where nobody was alone before either.
            let written = checkpoint.write(lock, &self.paths.state_dir);
            outcome.not_finished = written.err().map(|error| error.to_string());
        }
    }

    /// What the checkpoint says is in force, and what was before that where it was not finished.
    fn read_known(
        &self,
        lock: &PlacementLock,
        outcome: &mut Outcome,
    ) -> Result<Vec<Assignments>, PlacementError> {
        Ok(match Checkpoint::read(lock, &self.paths.state_dir)? {
            Found::Nothing => Vec::new(),
            Found::Checkpoint(found) => std::iter::once(found.assignments)
                .chain(found.before)
                .collect(),
            Found::Damaged(aside) => {
                outcome.set_aside = Some(aside);
                Vec::new()
            }
        })
    }

    /// Keeps this placement in the files of a kubelet that may take the node over, unless it is there.
    fn keep_for_kubelet(&mut self, wanted: &Wanted, outcome: &mut Outcome) {
        if self.is_kept_for_kubelet {
            return;
        }
        let kept = kubelet_state::keep(&self.paths.state_dir, &wanted.assignments, &wanted.memory);
        self.is_kept_for_kubelet = kept.is_ok();
        outcome.not_kept_for_kubelet = kept.err().map(|error| error.to_string());
    }

    /// Ends the placement: all containers run on all CPUs, with memory from any node. Interrupts are put back. Nothing
    /// is done where none is in force.
    ///
    /// # Errors
    /// As [`Applier::apply`].
    pub fn withdraw(&mut self, quotas: Quotas) -> Result<Option<Outcome>, PlacementError> {
        {
            let lock = PlacementLock::exclusive_by_force(&self.paths.state_dir, BREAK_AFTER)?;
            if Checkpoint::read(&lock, &self.paths.state_dir)? == Found::Nothing {
                // Of a placement that another owner has ended.
                kubelet_state::forget_ours(&self.paths.state_dir)
                    .map_err(PlacementError::ForKubelet)?;
                return Ok(None);
            }
        }
        let wanted = Wanted {
            assignments: nobody_alone(Usable::read(&self.paths)?.cpus),
            quotas,
            names: Names::new(),
            foreign: self.foreign.ids.clone(),
            answered: Answered::new(),
            memory: BTreeMap::new(),
        };
        let outcome = self.carry_out(&wanted, Instant::now(), false)?;
        if let Some(sets) = &mut self.sets {
            sets.restore()?;
        }
        if outcome.failed.is_empty() {
            let lock = PlacementLock::exclusive_by_force(&self.paths.state_dir, BREAK_AFTER)?;
            Checkpoint::remove(&lock, &self.paths.state_dir)?;
            kubelet_state::forget(&self.paths.state_dir).map_err(PlacementError::ForKubelet)?;
            self.before = None;
        }
        self.end();
        Ok(Some(outcome))
    }

    /// Puts interrupts back. Cpusets stay: they go with their cgroups, and what they keep apart still runs.
    pub fn end(&mut self) {
        let restored = self.irqs.as_mut().map(IrqAffinity::restore);
        match restored {
            Some(Ok(restoration)) => {
                for remark in restoration.remarks() {
                    tracing::warn!("{remark}");
                }
            }
            Some(Err(error)) => {
                tracing::error!(%error, "interrupt affinity is not restored; the next start tries again");
            }
            None => {}
        }
    }

    /// The containers that have a cpuset, or have got one now.
    fn containers(
        &mut self,
        wanted: &Wanted,
        known: &[Assignments],
        outcome: &mut Outcome,
    ) -> Result<Vec<Container>, PlacementError> {
        if let (Some(tree), Some(sets)) = (&self.paths.kubelet, &mut self.sets) {
            let mut all = kubelet_cgroups::list(&self.paths.mounts, tree, &wanted.names)?;
            all.retain(|container| {
                let is_foreign = self.foreign.has(container);
                if is_foreign {
                    outcome
                        .overlaps
                        .extend(overlap(container, &wanted.assignments));
                }
                !is_foreign
            });
            let known: Vec<&Assignments> = [&wanted.assignments].into_iter().chain(known).collect();
            kubelet_cgroups::claim(&mut all, &known);
            all.retain(|container| {
                let adopted = sets.adopt(&self.paths.mounts, container);
                let noted = adopted.and_then(|()| {
                    sets.note(container, &known, answered::of(&wanted.answered, container))
                });
                noted
                    .map_err(|error| outcome.fail(&container.pod, &container.name, error))
                    .is_ok()
            });
            return Ok(all);
        }
        let all = cgroups::list(&self.paths.mounts, &self.paths.cgroup_root)?;
        let mut containers = Vec::new();
        for container in all {
            match cgroups::adopt(&self.paths.mounts, &container, &mut self.pods_ledger) {
                Ok(()) => containers.push(container),
                Err(error) => outcome.fail(&container.pod, &container.name, error),
            }
        }
        cgroups::widen_above(&self.paths.mounts, &self.paths.cgroup_root, &containers)?;
        Ok(containers)
    }

    /// Counts the sets that are not as we wrote them. Returns the cgroup that somebody else wrote to before, and does
    /// no more.
    fn notice_rewriting(
        &mut self,
        containers: &[Container],
        usable: CpuSet,
        now: Instant,
    ) -> Result<Option<CgroupPath>, PlacementError> {
        let has_changed = self.usable_at_look.replace(usable) != Some(usable);
        let there = |path: &CgroupPath| containers.iter().any(|container| container.path == *path);
        self.ours.retain(|path, _| there(path));
        let mut as_written = true;
        for container in containers {
            let Some(ours) = self.ours.get_mut(&container.path) else {
                continue;
            };
            let Ok(theirs) = runs_on(container, usable) else {
                continue;
            };
            // v1 takes CPUs out of sets when they go offline, and does not give them back. On v2 they stay in what is
            // written.
            let is_as_written = theirs & usable == ours.cpus & usable;
            if is_as_written || ours.id != container.id || has_changed {
                ours.rewritten = 0;
                continue;
            }
            as_written = false;
            ours.rewritten += 1;
            if ours.rewritten >= REWRITES_MAX {
                let (sets, times) = ((ours.cpus, theirs), ours.rewritten);
                // What is there when it is tried again is not news.
                self.ours.clear();
                return Err(self
                    .back_off
                    .pause(now, &container.path, sets, times)
                    .into());
            }
        }
        Ok(self.back_off.looked(as_written))
    }

    /// Writes `cpuset.cpus` in an order in which no exclusive CPU is shared. Returns who is where it is to be.
    fn cpus(
        &mut self,
        wanted: &Wanted,
        known: &[Assignments],
        containers: &[Container],
        usable: CpuSet,
        outcome: &mut Outcome,
    ) -> Vec<(PodUid, String)> {
        let (moved, changes) = changes(&wanted.assignments, known, containers, usable, outcome);
        let order = cpuset_order::order(usable, &changes);
        outcome.shared = order
            .shared
            .iter()
            .map(|index| Written::cpus(moved[*index], changes[*index].then.cpus))
            .collect();
        let mut settled = vec![true; changes.len()];
        let mut at: Vec<CpuSet> = changes.iter().map(|change| change.now.cpus).collect();
        for Write { change, cpus } in order.leave {
            settled[change] = self.write(moved[change], cpus, outcome);
            if settled[change] {
                at[change] = cpus;
            }
        }
        self.arrive(&moved, &changes, order.arrive, &mut settled, outcome);
        let exclusive = wanted.assignments.exclusive();
        for (index, (container, change)) in moved.iter().zip(&changes).enumerate() {
            if !settled[index] {
                continue;
            }
            // What it runs on is within what was written by now, and is all of it afterwards.
            let followed = self.follow(container, CPUS, outcome);
            let looked =
                followed.and_then(|()| Ok(runs_elsewhere(container, change.then, exclusive)?));
            let error = match looked {
                Ok(None) => continue,
                Ok(Some(effective)) => {
                    at[index] = effective;
                    PlacementError::Elsewhere {
                        wanted: change.then.cpus.to_string(),
                        effective: effective.to_string(),
                    }
                }
                Err(error) if error.is_vanished() => continue,
                Err(error) => error,
            };
            outcome.fail(&container.pod, &container.name, error);
            settled[index] = false;
        }
        let unsettled = (0..changes.len()).filter(|index| !settled[*index]);
        let occupied = unsettled.map(|index| Occupied {
            pod: moved[index].pod.clone(),
            container: moved[index].name.clone(),
            cpus: at[index],
        });
        outcome.occupied = occupied.collect();
        for ((container, change), is_settled) in moved.iter().zip(&changes).zip(&settled) {
            self.remember(container, change.then.cpus, *is_settled);
        }
        let there = moved.iter().zip(settled).filter(|(_, settled)| *settled);
        there
            .map(|(container, _)| (container.pod.clone(), container.name.clone()))
            .collect()
    }

    /// crun writes the sets of a specification into a cgroup below a scope as well: there they are to be those of the
    /// scope. What there was is in the ledger ([`Sets::note`]).
    fn follow(
        &self,
        container: &Container,
        file: &'static str,
        outcome: &mut Outcome,
    ) -> Result<(), PlacementError> {
        let nested = container.nested().filter(|_| self.sets.is_some());
        if let Some(nested) = nested
            && nested.inherit(file)?
        {
            outcome.written.push(Written::inherited(container, file));
        }
        Ok(())
    }

    /// Has everybody arrive who could leave, but nobody where somebody is who could not.
    fn arrive(
        &mut self,
        moved: &[&Container],
        changes: &[Change],
        arrivals: Vec<Write>,
        settled: &mut [bool],
        outcome: &mut Outcome,
    ) {
        let stuck: Vec<usize> = (0..changes.len())
            .filter(|index| !settled[*index])
            .collect();
        for Write { change, cpus } in arrivals {
            if !settled[change] {
                continue;
            }
            let arrives_alone = changes[change].then.exclusive;
            let in_the_way = stuck.iter().find(|who| {
                let on = changes[**who].now.cpus;
                arrives_alone && **who != change && !on.is_disjoint(&cpus)
            });
            settled[change] = match in_the_way {
                Some(who) => {
                    let error = PlacementError::Occupied {
                        cpus: (changes[*who].now.cpus & cpus).to_string(),
                        by: moved[*who].path.clone(),
                    };
                    outcome.fail(&moved[change].pod, &moved[change].name, error);
                    false
                }
                None => self.write(moved[change], cpus, outcome),
            };
        }
    }

    /// What it has now is what we gave it, so that we see who changes it.
    fn remember(&mut self, container: &Container, cpus: CpuSet, is_settled: bool) {
        if !is_settled {
            self.ours.remove(&container.path);
            return;
        }
        let before = self.ours.get(&container.path);
        let before = before.filter(|before| before.id == container.id);
        let ours = Ours {
            id: container.id,
            cpus,
            rewritten: before.map_or(0, |before| before.rewritten),
        };
        self.ours.insert(container.path.clone(), ours);
    }

    /// Returns whether its processes are where they were told to be.
    fn write(&mut self, container: &Container, cpus: CpuSet, outcome: &mut Outcome) -> bool {
        let recorded = match &mut self.sets {
            Some(sets) => sets.record(container, CPUS, &cpus.to_string()),
            None => Ok(()),
        };
        let written = recorded.and_then(|()| Ok(container.cpuset.set_cpus(cpus)?));
        match written {
            Ok(written) => {
                if written {
                    outcome.written.push(Written::cpus(container, cpus));
                }
                true
            }
            // It has ended, and is on no CPU.
            Err(error) if error.is_vanished() => true,
            Err(error) => {
                outcome.fail(&container.pod, &container.name, error);
                false
            }
        }
    }

    fn mems(&mut self, wanted: &Wanted, containers: &[Container], outcome: &mut Outcome) {
        for container in containers {
            let nodes = wanted.assignments.nodes(&container.pod, &container.name);
            let recorded = match (&mut self.sets, nodes) {
                (None, _) => Ok(()),
                // Of another program's making.
                (Some(sets), None) if !sets.has_nodes(container) => continue,
                (Some(sets), None) => container
                    .cpuset
                    .inherited(MEMS)
                    .map_err(PlacementError::from)
                    .and_then(|nodes| sets.record(container, MEMS, &nodes)),
                (Some(sets), Some(nodes)) => sets.record(container, MEMS, &nodes.to_string()),
            };
            let written = recorded.and_then(|()| match nodes {
                Some(nodes) => Ok(container.cpuset.set_mems(nodes)?),
                None => Ok(container.cpuset.inherit_mems()?),
            });
            let followed = written.and_then(|is_new| {
                if is_new {
                    outcome.written.push(Written::mems(container, nodes));
                }
                self.follow(container, MEMS, outcome)
            });
            match followed {
                Err(error) if error.is_vanished() => {}
                Err(error) => outcome.fail(&container.pod, &container.name, error),
                Ok(()) => {}
            }
        }
    }

    fn quotas(
        &self,
        wanted: &Wanted,
        checkpoint: &Checkpoint,
        containers: &[Container],
        outcome: &mut Outcome,
    ) {
        let mut pods: BTreeMap<&PodUid, &CgroupPath> = BTreeMap::new();
        // The container's before the pod's: v1 refuses a pod's quota that is below a container's.
        for container in containers {
            let (pod, name) = (&container.pod, container.name.as_str());
            pods.insert(pod, &container.pod_path);
            let quotas = wanted.quotas.get(pod);
            let specified = quotas.and_then(|quotas| quotas.containers.get(name).copied());
            let is_free = checkpoint.frees_container(pod, name);
            self.quota(&container.path, (pod, name), (is_free, specified), outcome);
        }
        for (pod, path) in pods {
            let specified = wanted.quotas.get(pod).and_then(|quotas| quotas.pod);
            let is_free = checkpoint.frees_pod(pod);
            self.quota(path, (pod, ""), (is_free, specified), outcome);
        }
    }

    fn quota(
        &self,
        cgroup: &CgroupPath,
        (pod, container): (&PodUid, &str),
        (is_free, specified): (bool, Option<Quota>),
        outcome: &mut Outcome,
    ) {
        let quota = match (is_free, specified) {
            (true, _) => None,
            // Nothing to give back.
            (false, None) => return,
            (false, quota) => quota,
        };
        match quota::set(&self.paths.mounts, cgroup, quota) {
            Ok(Some(value)) => outcome
                .written
                .push(Written::quota(pod, container, cgroup, value)),
            Ok(None) => {}
            Err(error) => outcome.fail(pod, container, error.into()),
        }
    }
}

/// Somebody else manages cpusets from now on: what they do not write is not to stay ours, and the checkpoint is not to
/// be gone on from when they have ended.
fn leave_to(
    owner: &OtherOwner,
    paths: &NodePaths,
    sets: Option<&mut Sets>,
) -> Result<(), PlacementError> {
    let (OtherOwner::Kubelet { .. }, Some(sets)) = (owner, sets) else {
        return Ok(());
    };
    // That goes in any case.
    let forgotten = forget_checkpoint(paths);
    sets.hand_over(|| kubelet_cgroups::nodes_of_kubelet(paths))?;
    forgotten
}

/// Says once what is tried again at each look.
fn say_not_left(left: Result<(), PlacementError>, said: &mut Option<String>) {
    let why = left.err().map(|error| error.to_string());
    if let Some(why) = why.as_ref().filter(|_| why != *said) {
        tracing::error!(
            why,
            "not all of what was placed is given back; the next look tries again"
        );
    }
    *said = why;
}

fn forget_checkpoint(paths: &NodePaths) -> Result<(), PlacementError> {
    if !paths.state_dir.join(CHECKPOINT).exists() {
        return Ok(());
    }
    let lock = PlacementLock::exclusive_by_force(&paths.state_dir, BREAK_AFTER)?;
    Ok(Checkpoint::remove(&lock, &paths.state_dir)?)
}

/// Another program has put a container where others are to be alone.
fn overlap(container: &Container, assignments: &Assignments) -> Option<Overlap> {
    let cpus = container.effective_cpus().ok()?;
    let assigned = assignments.cpus(&container.pod, &container.name);
    let others = match assigned.exclusive {
        true => assignments.exclusive() - assigned.cpus,
        false => assignments.exclusive(),
    };
    let shared = cpus & others;
    (!shared.is_empty()).then(|| Overlap {
        pod: container.pod.clone(),
        container: container.name.clone(),
        cpus: shared,
    })
}

#[cfg(test)]
mod tests;
