//! Placement in the loop: the engine decides who runs where, a thread makes it so, and what the machine becomes goes
//! back to the engine.
//!
//! **Problem.** Placement begins with what an earlier agent, or a kubelet, has left; CPUs come and go; and init
//! containers hold CPUs that they no longer need. **Approach.** [`PlacementWork::prepare`] finds out what there is
//! before the loop starts, and refuses where the settings cannot be. A kubelet that manages cpusets itself is asked
//! about before each write, so that its policy may change at any time. In the loop
//! [`Decision::Place`](plimsoll_core::model::decision::Decision::Place) is noted, and handed to the thread after all
//! decisions have been carried out: what the thread is given is allocated, behind a lock. Its reports are said, or
//! become events.

mod applied;
mod nri_containers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use plimsoll_core::kube::cgroup_config::{NodeCapacity, QosSettings};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::{EventKind, PlacementStart};
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::machine::Machine;
use plimsoll_core::placement::memory::NodeMemory;
use plimsoll_core::placement::node::{NodePlacement, PlacementSettings};
use plimsoll_core::policy::placement::{agent_placement, is_waiting_for_devices, may_resize};
use plimsoll_core::protocol::runtime_link::ContainerPlace;

use self::applied::InForce;
use self::nri_containers::Made;
pub(super) use self::nri_containers::MadeContainer;
use super::{Agent, KubeletWork};
use crate::act::kubepods;
use crate::act::placement::answered::Answered;
use crate::act::placement::checkpoint::{
    BREAK_AFTER, CHECKPOINT, Checkpoint, Found, PlacementLock,
};
use crate::act::placement::kubelet_cgroups::Names;
use crate::act::placement::kubelet_state::{
    self, CPU_MANAGER_STATE, CpuManagerState, FOR_KUBELET, FROM_KUBELET, MEMORY_MANAGER_STATE,
    MemoryManagerState,
};
use crate::act::placement::plugin_cpusets;
use crate::act::placement::{
    Applier, NodePaths, Options, OtherOwner, Outcome, Placement, PlacementError, PodQuotas, Quotas,
    Report, Reports, Usable, Wanted,
};
use crate::host::HostRoot;
use crate::host::cgroup::CgroupMounts;
use crate::host::file::read_text;
use crate::host::shown::Show as _;
use crate::host::topology::read_machine;
use crate::input::config::Config;
use crate::pods;
use crate::pods::names::{container_id, container_name};
use crate::pods::registry::Pods;
use crate::record::tally::PlacementTally;

/// cpuManagerReconcilePeriod where it is zero; the kubelet's default.
const RECONCILE_PERIOD: Duration = Duration::from_secs(10);

/// What the loop needs for placement.
#[derive(Debug)]
pub struct PlacementWork {
    host: HostRoot,
    mounts: CgroupMounts,
    settings: PlacementSettings,
    qos: QosSettings,
    capacity: NodeCapacity,
    placement: Placement,
    /// The start event; taken when the loop begins.
    start: Option<Box<PlacementStart>>,
    /// What pods can use, as the thread has seen it last.
    usable: Usable,
    /// What of it the engine plans with; another value until it has taken what was seen last.
    planned: Usable,
    /// Why it has not, as it was last said.
    not_taken: Option<String>,
    /// The machine with which the engine could not plan.
    refused: Option<Machine>,
    /// All manifests of the start have been seen.
    listed: bool,
    /// The thread has not looked since a container may have come, or limits were written.
    unseen: bool,
    /// Specifications that are applied when their pods have ended, at most one for each pod.
    resizes: BTreeMap<PodUid, Arc<Pod>>,
    beside_kubelet: bool,
    /// What is decided, and how much of it is so.
    in_force: InForce,
    /// The names that the thread was given.
    names: Names,
    /// What the runtime has told.
    made: Made,
    /// Those that the thread was given.
    foreign_given: plugin_cpusets::Ids,
    /// The answers that the thread was given.
    answered_given: Answered,
    /// Something was decided: there may be room for who waits.
    has_changed: bool,
    /// What was decided in this turn, and is not handed to the thread yet.
    due: Option<Arc<Assignments>>,
    /// The number of the newest placement.
    number: u64,
    tally: PlacementTally,
}

impl PlacementWork {
    /// Looks at the machine and at what was left, and starts the thread, whose reports are for the loop. `None` if the
    /// configuration places nothing; what an earlier agent has placed is then undone. What people should know goes to
    /// `remark`.
    ///
    /// # Errors
    /// If without a kubelet's tree a kubelet manages cpusets here, the machine cannot be read, or the settings cannot
    /// be on it.
    pub fn prepare(
        paths: NodePaths,
        capacity: NodeCapacity,
        moves_interrupts: bool,
        config: &Config,
        devices: Option<plimsoll_core::placement::node::DeviceSettings>,
        mut remark: impl FnMut(String),
    ) -> Result<Option<(Self, Reports)>> {
        let mut settings = config.placement.clone();
        settings.devices = devices.unwrap_or_default();
        let is_active = settings.is_active();
        // When the kubelet places, the checkpoint is gone before the policies are none.
        let for_kubelet = format!("{FOR_KUBELET}{CPU_MANAGER_STATE}");
        let is_left = |file: &str| paths.state_dir.join(file).exists();
        if !is_active && !is_left(CHECKPOINT) && !is_left(&for_kubelet) {
            return Ok(None);
        }
        if !is_active && Applier::hand_over(&paths)? {
            remark("cpuManagerPolicy and memoryManagerPolicy are none now: the kubelet places, and all that was placed is its own".into());
            return Ok(None);
        }
        let quota_gate = config.feature_gates.get("DisableCPUQuotaWithExclusiveCPUs");
        let options = Options {
            moves_interrupts,
            keeps_quota: quota_gate == Some(&false),
        };
        let (mut applier, remarks) = Applier::open(paths.clone(), options)?;
        remarks.into_iter().for_each(&mut remark);
        if !is_active {
            if let Some(outcome) = applier.withdraw(Quotas::new())? {
                remark("cpuManagerPolicy and memoryManagerPolicy are none now: all containers share all CPUs again".into());
                outcome.remarks().into_iter().for_each(remark);
            }
            return Ok(None);
        }
        let usable = Usable::read(&paths)?;
        let machine = read_machine(&paths.host)?.without(usable.outside)?;
        settings.check_reserved_memory(&kubepods::reservation(&paths.host, config)?, &machine)?;
        let saved = saved(&paths, &machine, &mut remark)?;
        // The engine starts it in the loop. What it would refuse has to be known before anything is changed.
        let settings_here = settings.without(usable.outside);
        NodePlacement::start(settings_here.clone(), machine.clone(), &saved)?;
        let period = Duration::from_nanos(config.cpu_reconcile_period_ns);
        let period = if period.is_zero() {
            RECONCILE_PERIOD
        } else {
            period
        };
        let foreign = applier.foreign().clone();
        let (placement, reports) = Placement::start(applier, period).context(
            "the thread for placement cannot be started; raise the limit of threads of the agent's cgroup (pids.max)",
        )?;
        let work = Self {
            host: paths.host,
            mounts: paths.mounts,
            qos: config.cgroups.qos,
            capacity,
            placement,
            usable,
            planned: usable,
            not_taken: None,
            refused: None,
            start: Some(Box::new(PlacementStart {
                settings: settings_here,
                machine,
                saved: Some(saved),
            })),
            settings,
            listed: false,
            unseen: false,
            resizes: BTreeMap::new(),
            beside_kubelet: paths.kubelet.is_some(),
            in_force: InForce::default(),
            names: Names::new(),
            made: Made::new(foreign),
            foreign_given: plugin_cpusets::Ids::new(),
            answered_given: Answered::new(),
            has_changed: false,
            due: None,
            number: 0,
            // Not active before the thread has placed something: the kubelet may do it.
            tally: PlacementTally::default(),
        };
        Ok(Some((work, reports)))
    }

    /// Starts from what the loop knows; a pod whose limits are not known keeps none.
    fn wanted(
        &self,
        assignments: &Assignments,
        pods: &[Arc<Pod>],
        memory: BTreeMap<u32, NodeMemory>,
    ) -> Wanted {
        let quotas = pods
            .iter()
            .filter(|pod| assignments.containers.contains_key(&pod.uid()));
        Wanted {
            assignments: assignments.clone(),
            quotas: quotas
                .map(|pod| (pod.uid(), PodQuotas::of(pod, &self.qos, &self.capacity)))
                .collect(),
            names: self.names_of(assignments, pods),
            foreign: self.made.foreign.clone(),
            answered: self.made.answered.clone(),
            memory,
        }
    }

    /// Beside a kubelet: which container of a pod that holds something has which id, as the API and the runtime say.
    fn names_of(&self, assignments: &Assignments, pods: &[Arc<Pod>]) -> Names {
        if !self.beside_kubelet {
            return Names::new();
        }
        let holders = pods.iter().map(|pod| (pod.uid(), pod));
        let holders = holders.filter(|(uid, _)| assignments.containers.contains_key(uid));
        holders
            .map(|(uid, pod)| {
                let given = self.made.names.get(&uid).cloned();
                let mut names = given.unwrap_or_default();
                let listed = pod.status.containers().filter_map(|status| {
                    let id = container_id(status.id()?)?;
                    Some((id.to_owned(), status.name.clone()))
                });
                names.extend(listed);
                (uid, names)
            })
            .collect()
    }

    /// The number of the newest placement that the thread was given.
    #[cfg(test)]
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether CPUs and memory are aligned to anything: then it matters near to what a container's devices are.
    pub(super) fn is_aligned(&self) -> bool {
        self.settings.topology_manager_policy != "none"
    }

    /// What came of it so far.
    pub(super) fn tally(&self) -> PlacementTally {
        PlacementTally {
            reports_lost: self.placement.lost_reports(),
            ..self.tally
        }
    }

    fn came_into_force(&mut self, number: u64, outcome: &Outcome) {
        let count = |some: usize| u64::try_from(some).unwrap_or(u64::MAX);
        self.tally.is_active = true;
        self.tally.writes += count(outcome.written.len());
        self.tally.failed = count(outcome.failed.len());
        self.tally.cpus_outside = u64::from(outcome.usable.outside.len());
        if let Some((_, kept)) = &outcome.fell_back {
            self.in_force.fell_back(kept, &outcome.occupied);
        } else if number == self.number {
            self.in_force.applied(&outcome.occupied);
        }
    }

    /// As [`InForce::pool_of_new`]. `None` while nothing is placed, or the kubelet does it.
    pub(super) fn pool_of_new(&self) -> Option<CpuSet> {
        self.in_force.pool_of_new(self.usable.cpus)
    }

    /// Pods that hold something.
    pub(super) fn holders(&self) -> impl Iterator<Item = &PodUid> {
        let decided = self.in_force.decided().into_iter();
        decided.flat_map(|decided| decided.containers.keys())
    }

    /// As [`InForce::places`].
    pub(super) fn places(&self, uid: &PodUid) -> BTreeMap<String, ContainerPlace> {
        self.in_force.places(uid, self.usable.cpus)
    }

    /// Another value than before: what [`Self::places`] and [`Self::foreign`] say may be something else.
    pub(super) fn revision(&self) -> (u64, u64, CpuSet) {
        (
            self.in_force.revision(),
            self.made.revision,
            self.usable.cpus,
        )
    }

    /// Containers of a pod whose cpuset another plugin of the runtime has set, by id.
    pub(super) fn foreign(&self, uid: &PodUid) -> BTreeSet<String> {
        let ids = self.made.foreign.get(uid).into_iter().flatten();
        ids.cloned().collect()
    }

    /// Pods with such containers.
    pub(super) fn with_foreign(&self) -> impl Iterator<Item = &PodUid> {
        self.made.foreign.keys()
    }

    /// The runtime has told which container this is.
    pub(super) fn note_named(&mut self, pods: &Pods, uid: &PodUid, id: &str, name: &str) {
        self.unseen = true;
        // Of one that is not known yet the API names its containers with it.
        if pods.contains(uid) {
            self.made.name(uid, id.to_owned(), name.to_owned());
        }
    }

    /// The runtime has changed a container's resources.
    pub(super) fn note_updated(&mut self) {
        self.unseen = true;
    }

    /// The runtime makes a container. Returns what people should know.
    pub(super) fn note_made(
        &mut self,
        pods: &Pods,
        uid: &PodUid,
        container: MadeContainer,
    ) -> Option<String> {
        self.unseen = true;
        let mounts = &self.mounts;
        let running = || {
            let cgroup = pods.cgroup(uid);
            let all = cgroup.map(|(path, _)| pods::cgroup::containers(mounts, path));
            let all = all.and_then(Result::ok).unwrap_or_default().into_iter();
            all.filter_map(|cgroup| Some(container_id(&cgroup.name)?.to_owned()))
                .collect()
        };
        self.made.note(uid, container, pods.contains(uid), running)
    }
}

/// What an earlier agent has placed; else what a kubelet has that no longer runs, or had before it was given other
/// policies.
fn saved(
    paths: &NodePaths,
    machine: &Machine,
    remark: &mut impl FnMut(String),
) -> Result<Assignments> {
    let from_kubelet = paths
        .state_dir
        .join(format!("{FROM_KUBELET}{CPU_MANAGER_STATE}"));
    let found = {
        let lock = PlacementLock::exclusive_by_force(&paths.state_dir, BREAK_AFTER)?;
        Checkpoint::read(&lock, &paths.state_dir)?
    };
    match found {
        Found::Checkpoint(checkpoint) => {
            if is_newer(&from_kubelet, &paths.state_dir.join(CHECKPOINT)) {
                remark(format!(
                    "{}: is newer than {CHECKPOINT}, and nothing is taken over from it: placement goes on with what this agent has placed",
                    from_kubelet.shown()
                ));
            }
            return Ok(checkpoint.assignments);
        }
        Found::Damaged(set_aside) => {
            remark(set_aside.to_string());
            // What was put aside from a kubelet that runs is older than what is damaged: others may have its CPUs by
            // now.
            if paths.kubelet.is_some() {
                return Ok(Assignments::default());
            }
        }
        Found::Nothing => {}
    }
    // One that runs has given nothing away by now, or nothing is placed. What it had was put aside before its policies
    // were changed.
    let file = |name: &str| match paths.kubelet {
        Some(_) => paths.state_dir.join(format!("{FROM_KUBELET}{name}")),
        None => paths.kubelet_dir.join(name),
    };
    let path = file(CPU_MANAGER_STATE);
    if !path.exists() {
        return Ok(Assignments::default());
    }
    match kubelets(&path, &file(MEMORY_MANAGER_STATE)) {
        Ok(taken) if taken.containers.is_empty() => Ok(Assignments::default()),
        Ok(taken) => {
            remark(format!(
                "{}: exclusive CPUs {} of {} pods are taken over from the kubelet, as far as they are among {}",
                path.shown(),
                taken.exclusive(),
                taken.containers.len(),
                machine.online()
            ));
            Ok(taken)
        }
        Err(error) => {
            remark(format!("{error:#}: nothing is taken over from the kubelet"));
            Ok(Assignments::default())
        }
    }
}

fn is_newer(one: &Path, other: &Path) -> bool {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|there| there.modified());
    matches!((modified(one), modified(other)), (Ok(one), Ok(other)) if one > other)
}

fn kubelets(cpus: &PathBuf, memory: &PathBuf) -> Result<Assignments> {
    let named = |path: &Path| path.shown().to_string();
    let cpu = CpuManagerState::parse(&read_text(cpus)?).with_context(|| named(cpus))?;
    let memory = match memory.exists() {
        true => {
            Some(MemoryManagerState::parse(&read_text(memory)?).with_context(|| named(memory))?)
        }
        false => None,
    };
    Ok(kubelet_state::assignments(&cpu, memory.as_ref()))
}

impl Agent {
    /// Also places pods on CPUs and NUMA nodes.
    #[must_use]
    pub fn with_placement(mut self, work: Option<PlacementWork>) -> Self {
        self.placement = work;
        self
    }

    /// Begins, before the first manifest is looked at.
    pub(super) fn begin_placement(&mut self) {
        let start = self.placement.as_mut().and_then(|work| work.start.take());
        if let Some(start) = start {
            self.handle_event(EventKind::PlacementStarted(start));
        }
    }

    /// Takes note of a placement. Allocates nothing.
    pub(super) fn note_placement(&mut self, assignments: &Arc<Assignments>) {
        if let Some(work) = &mut self.placement {
            work.due = Some(Arc::clone(assignments));
        }
    }

    /// Has what was noted carried out.
    pub(super) fn place_what_is_due(&mut self) {
        let due = self.placement.as_mut().and_then(|work| work.due.take());
        if let Some(assignments) = due {
            self.place(&assignments);
            self.publish_placement();
        }
    }

    /// What is placed counts in what NUMA nodes have left.
    fn publish_placement(&self) {
        let source = self.kubelet.as_ref().and_then(KubeletWork::topology);
        if let Some(source) = source.filter(|source| source.wants_placement())
            && let Some(work) = &self.placement
        {
            // What is decided and not in force, because the kubelet places, is nobody's.
            let placed = agent_placement(self.engine.state());
            source.place(placed.filter(|_| work.tally.is_active));
        }
    }

    /// What pods have given up while something urgent was done is given to others.
    pub(super) fn give_back(&mut self) {
        if !self.engine.state().giving_back.is_empty() {
            self.handle_event(EventKind::PlacementDue);
            // Who waits for room, and for a resize, is served in a look at the pods.
            self.rescans.ask();
        }
    }

    /// Has a placement carried out. Does not wait.
    fn place(&mut self, assignments: &Assignments) {
        if let Some(work) = &mut self.placement {
            let pods = self.engine.state().pods.values();
            let pods: Vec<Arc<Pod>> = pods.map(|pod| Arc::clone(&pod.pod)).collect();
            let placement = self.engine.state().placement.as_ref();
            let memory = placement.and_then(NodePlacement::memory);
            let memory = memory.map_or_else(BTreeMap::new, |memory| memory.nodes().clone());
            let wanted = work.wanted(assignments, &pods, memory);
            work.in_force.decide(assignments);
            work.names.clone_from(&wanted.names);
            work.foreign_given.clone_from(&wanted.foreign);
            work.answered_given.clone_from(&wanted.answered);
            work.has_changed = true;
            work.number = work.placement.want(wanted);
        }
    }

    /// Has what was decided carried out again, where other names, or other answers of the runtime, are known by now.
    /// Whether that was so.
    pub(super) fn place_by_new_names(&mut self) -> bool {
        let Some(work) = &mut self.placement else {
            return false;
        };
        work.made.retain(&self.pods, work.listed);
        let decided = work.in_force.decided().cloned();
        let Some(decided) = decided.filter(|_| work.beside_kubelet) else {
            return false;
        };
        let pods = self.engine.state().pods.values();
        let pods: Vec<Arc<Pod>> = pods.map(|pod| Arc::clone(&pod.pod)).collect();
        let is_new = work.names_of(&decided, &pods) != work.names
            || work.made.foreign != work.foreign_given
            || work.made.answered != work.answered_given;
        if is_new {
            self.place(&decided);
        }
        is_new
    }

    /// What the thread has done, or seen.
    pub(super) fn placement_reported(&mut self, report: Report) {
        let work = self.placement.as_mut();
        match report {
            Report::Applied { number, outcome } => {
                if let Some(work) = work {
                    work.came_into_force(number, &outcome);
                }
                let not_kept = outcome.fell_back.as_ref();
                self.say_no_placement(
                    not_kept.map(|(why, _)| format!("new placement of CPUs and memory: {why}")),
                );
                for remark in outcome.remarks() {
                    self.warn(remark);
                }
            }
            Report::Failed { error, .. } => {
                if let Some(work) = work {
                    work.tally.is_active = false;
                    if let PlacementError::OtherOwner(OtherOwner::Kubelet { .. }) = error {
                        work.in_force.ended();
                    }
                }
                self.say_no_placement(Some(format!("placement of CPUs and memory: {error}")));
                self.warn(format!("nothing is placed: {error}"));
            }
            Report::Machine { usable } => self.machine_changed(*usable),
        }
    }

    fn machine_changed(&mut self, usable: Usable) {
        if let Some(work) = &mut self.placement {
            work.usable = usable;
            self.plan_with_machine();
        }
    }

    /// Has the engine plan with the machine that the thread has seen last. Where it cannot be read, or the engine
    /// cannot plan with it, the engine goes on with the one before; each look after pods tries again.
    fn plan_with_machine(&mut self) {
        let Some(work) = &mut self.placement else {
            return;
        };
        let usable = work.usable;
        if work.planned == usable {
            return;
        }
        let machine = read_machine(&work.host).map_err(|error| error.to_string());
        let machine = machine.and_then(|machine| {
            let machine = machine.without(usable.outside);
            machine.map_err(|error| error.to_string())
        });
        let machine = match machine {
            Ok(machine) => machine,
            Err(why) => {
                if work.not_taken.as_ref() != Some(&why) {
                    work.not_taken = Some(why.clone());
                    self.warn(format!(
                        "{why}; pods are placed as on the machine before, until it can be read"
                    ));
                }
                return;
            }
        };
        work.not_taken = None;
        // The same machine again comes to the same.
        if work.refused.as_ref() == Some(&machine) {
            return;
        }
        let start = PlacementStart {
            settings: work.settings.without(usable.outside),
            machine: machine.clone(),
            saved: None,
        };
        let nodes = match usable.nodes.is_empty() {
            true => String::new(),
            false => format!(" and memory of NUMA nodes {}", usable.nodes),
        };
        self.warn(format!(
            "pods can use CPUs {}{nodes} now: they are placed anew as far as they have to be",
            usable.cpus
        ));
        self.handle_event(EventKind::PlacementStarted(Box::new(start)));
        let placement = self.engine.state().placement.as_ref();
        let is_taken = placement.is_some_and(|placement| *placement.machine() == machine);
        if let Some(work) = &mut self.placement {
            match is_taken {
                true => (work.planned, work.refused) = (usable, None),
                false => work.refused = Some(machine),
            }
        }
    }

    /// All manifests that were there at the start have been taken in.
    pub(super) fn pods_are_listed(&mut self) {
        if let Some(work) = &mut self.placement
            && !std::mem::replace(&mut work.listed, true)
        {
            self.handle_event(EventKind::PodsListed);
        }
    }

    /// Whether a pod may be applied now. If not, that is said, and it is applied when its processes have ended; until
    /// then everything about it is as it was.
    pub(super) fn admit_resize(&mut self, pod: &Arc<Pod>) -> bool {
        let refused = may_resize(self.engine.state(), pod).err();
        let Some(work) = &mut self.placement else {
            return true;
        };
        if work.beside_kubelet {
            return true; // the kubelet has decided on that
        }
        let uid = pod.uid();
        match refused {
            None => {
                work.resizes.remove(&uid);
                true
            }
            Some(refused) => {
                work.resizes.insert(uid, Arc::clone(pod));
                self.warn(refused.to_string());
                false
            }
        }
    }

    /// The specification that was to wait for the pod's end.
    pub(super) fn forget_resize(&mut self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.placement.as_mut()?.resizes.remove(uid)
    }

    /// Containers may have come, or their limits have been written: the thread is to look when there is time
    /// ([`Agent::rescan_placement`]). What nobody tells of it sees at its next look.
    pub(super) fn containers_came(&mut self) {
        if let Some(work) = &mut self.placement {
            work.unseen = true;
        }
    }

    /// Something of any pod may have changed unseen: all are read again, and the thread looks. Not urgent.
    pub(super) fn look_at_all(&mut self) {
        self.rescans.note_all();
        self.rescans.ask();
        self.containers_came();
    }

    /// The thread looks if there is something to see; init containers may have ended; a machine that could not be read
    /// is read again.
    pub(super) fn rescan_placement(&mut self) {
        self.plan_with_machine();
        let Some(work) = &mut self.placement else {
            return;
        };
        if std::mem::take(&mut work.unseen)
            && !self.place_by_new_names()
            && let Some(work) = &self.placement
        {
            work.placement.look();
        }
        for (uid, container) in self.ended_init_containers() {
            self.handle_event(EventKind::ContainerEnded { uid, container });
        }
        self.apply_waiting_resizes();
        self.try_who_waits();
        self.ask_for_devices();
        // The API may have named who holds something.
        self.publish_placement();
    }

    /// Its kubelet is asked for pods that wait for nothing else.
    pub(super) fn ask_for_devices(&self) {
        let source = self.kubelet.as_ref().and_then(KubeletWork::topology);
        let Some(source) = source.filter(|_| self.placement.is_some()) else {
            return;
        };
        if is_waiting_for_devices(self.engine.state()) {
            source.ask();
        }
    }

    /// More of the pods that wait for room, if there may be some: a few at a time.
    fn try_who_waits(&mut self) {
        if self.has_untried() {
            self.handle_event(EventKind::RoomSought);
        }
        if self.has_untried() {
            self.rescans.ask();
        }
    }

    fn has_untried(&self) -> bool {
        let placement = self.engine.state().placement.as_ref();
        placement.is_some_and(NodePlacement::has_untried)
    }

    /// What was to wait for room is applied when there is some.
    fn apply_waiting_resizes(&mut self) {
        let Some(work) = &mut self.placement else {
            return;
        };
        if !std::mem::take(&mut work.has_changed) {
            return;
        }
        let waiting: Vec<PodUid> = work.resizes.keys().cloned().collect();
        for uid in waiting {
            let Some(pod) = self.forget_resize(&uid) else {
                continue;
            };
            if may_resize(self.engine.state(), &pod).is_ok() {
                self.apply(pod, "");
                self.containers_came();
            } else if let Some(work) = &mut self.placement {
                work.resizes.insert(uid, pod);
            }
        }
    }

    /// Init containers that hold something although a container that starts after them runs.
    fn ended_init_containers(&self) -> Vec<(PodUid, String)> {
        let state = self.engine.state();
        let (Some(work), Some(placement)) = (&self.placement, &state.placement) else {
            return Vec::new();
        };
        let mut ended = Vec::new();
        let with_inits = state
            .pods
            .iter()
            .filter(|(_, pod)| pod.running && !pod.pod.spec.init_containers.is_empty());
        for (uid, pod) in with_inits {
            let inits = pod.pod.spec.init_containers.iter();
            let mut holding = inits
                .filter(|init| !init.is_sidecar() && placement.holds(uid, &init.name))
                .peekable();
            if holding.peek().is_some() && self.runs_its_containers(work, uid, &pod.pod) {
                ended.extend(holding.map(|init| (uid.clone(), init.name.clone())));
            }
        }
        ended
    }

    fn runs_its_containers(&self, work: &PlacementWork, uid: &PodUid, pod: &Pod) -> bool {
        let Some((path, _)) = self.pods.cgroup(uid) else {
            return false;
        };
        if work.beside_kubelet {
            let cgroups = pods::cgroup::containers(&work.mounts, path);
            return cgroups.unwrap_or_default().iter().any(|cgroup| {
                let name = container_name(pod, &cgroup.name);
                name.is_some_and(|name| pod.spec.containers.iter().any(|one| one.name == name))
                    && pods::cgroup::is_populated(&work.mounts, &cgroup.path).unwrap_or(false)
            });
        }
        pod.spec.containers.iter().any(|container| {
            let cgroup = pods::cgroup::container_path(path, &container.name);
            cgroup.is_ok_and(|cgroup| {
                pods::cgroup::is_populated(&work.mounts, &cgroup).unwrap_or(false)
            })
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
