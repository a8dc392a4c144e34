//! `cpu_static_policy`: sequences of starts and ends of containers under the static CPU policy.
//!
//! Each step has to give what the kubelet gave, until the record shows one of its defects: CPUs that were not free
//! (sockets and cores of unlike size), CPUs of an init container that another container of the pod has, or, in a
//! sequence with that tag, a best combination of NUMA nodes that was overwritten. From there on the kubelet's books are
//! not ours any more, and each step has to keep what must always hold: the requested number, from CPUs that are free or
//! the pod's own, nothing shared that is exclusive, nothing lost.

use std::collections::BTreeMap;

use plimsoll_core::kube::pod::{Container, Pod};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::TopologyHint;
use plimsoll_core::placement::cpu_set::{CPUS_MAX, CpuSet, CpuSetError};
use plimsoll_core::placement::cpu_static::{
    CpuAllocateError, CpuPolicyError, CpuRefusal, CpuReservation, CpuState, CpuStateError,
    StaticCpuOption, StaticCpuPolicy, StaticCpuSettings, StaticCpus, exclusive_cpus,
};
use plimsoll_core::placement::hints::ProviderHints;
use plimsoll_core::placement::numa_mask::NumaMask;
use serde::Deserialize;
use serde_json::{Value, json};

use super::machines::Machine;
use super::{Verdict, read, same};

#[derive(Deserialize)]
struct Vector {
    topology: Machine,
    reserved_cpus: String,
    num_reserved: u32,
    options: BTreeMap<String, bool>,
    topology_manager_policy: String,
    initial_state: Option<InitialState>,
    pods: Vec<PodRecord>,
    expect_new_error: Option<Kind>,
    expect_start: Option<Start>,
    #[serde(default)]
    steps: Vec<Step>,
    #[serde(default)]
    final_assignments: BTreeMap<String, CpuSet>,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Deserialize)]
struct InitialState {
    default: CpuSet,
    assignments: BTreeMap<String, CpuSet>,
}

#[derive(Deserialize, PartialEq, Debug)]
struct Kind {
    kind: String,
}

#[derive(Deserialize)]
struct Start {
    error: Option<Kind>,
    reserved: CpuSet,
    default: CpuSet,
}

#[derive(Deserialize)]
struct PodRecord {
    uid: String,
    qos: String,
    containers: Vec<ContainerRecord>,
}

#[derive(Deserialize)]
struct ContainerRecord {
    name: String,
    r#type: ContainerType,
    cpu_request_milli: Option<u64>,
    cpu_limit_milli: Option<u64>,
    memory_request: Option<u64>,
    memory_limit: Option<u64>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum ContainerType {
    Init,
    Sidecar,
    App,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Step {
    Allocate {
        pod: String,
        container: String,
        hint: (Option<u64>, bool),
        expect: Books,
    },
    Remove {
        pod: String,
        container: String,
        expect: Books,
    },
    Hints {
        pod: String,
        container: String,
        expect: Hints,
    },
    PodHints {
        pod: String,
        expect: Hints,
    },
}

/// The books after a step.
#[derive(Deserialize, PartialEq, Debug, Default)]
struct Books {
    error: Option<Kind>,
    default: CpuSet,
    #[serde(default)]
    changed: BTreeMap<String, Option<CpuSet>>,
}

impl Books {
    /// What a container has got in this step.
    fn of(&self, pod: &PodUid, container: &str) -> Option<CpuSet> {
        let changed = self.changed.get(&format!("{pod}/{container}"));
        changed.copied().flatten()
    }
}

#[derive(Deserialize, PartialEq, Debug)]
struct Hints {
    hints: Option<BTreeMap<String, Vec<(u64, bool)>>>,
}

pub(super) fn check(vector: &Value) -> Verdict {
    match read(vector).and_then(compare) {
        Ok(None) => Verdict::Pass,
        Ok(Some(defect)) => Verdict::KnownUpstreamDefect(defect),
        Err(why) => Verdict::Fail { why },
    }
}

fn compare(vector: Vector) -> Result<Option<String>, String> {
    let pods = vector
        .pods
        .iter()
        .map(|record| Ok((record.uid.clone(), pod(record)?)))
        .collect::<Result<BTreeMap<String, Pod>, String>>()?;
    let cpus = match CpuSet::parse(&vector.reserved_cpus) {
        // No machine has that CPU, and none of the vectors the last one that a set can have: options are judged before
        // it is.
        Err(CpuSetError::TooHigh { .. }) if !vector.reserved_cpus.contains([',', '-']) => {
            Ok(CpuSet::of(CPUS_MAX - 1))
        }
        parsed => parsed,
    };
    let cpus = cpus.map_err(|error| error.to_string())?;
    let mut settings = StaticCpuSettings {
        reservation: CpuReservation {
            count: vector.num_reserved,
            cpus,
        },
        single_numa_node: vector.topology_manager_policy == "single-numa-node",
        ..StaticCpuSettings::default()
    };
    for (name, on) in &vector.options {
        let option = StaticCpuOption::from_name(name).ok_or(format!("no option {name}"))?;
        settings.set(option, *on);
    }
    let policy = StaticCpuPolicy::new(vector.topology.topology()?, settings);
    let error = policy.as_ref().err().map(|error| kind(policy_error(error)));
    same("expect_new_error", &error, &vector.expect_new_error)?;
    let Ok(policy) = policy else { return Ok(None) };

    let expected = vector.expect_start.ok_or("no expect_start")?;
    same("reserved", &policy.reserved(), &expected.reserved)?;
    let saved = saved_state(vector.initial_state)?;
    let unchanged = saved.shared;
    let started = policy.start(saved);
    let error = started.as_ref().err().map(|error| kind(state_error(error)));
    same("error of the start", &error, &expected.error)?;
    let shared = started.as_ref().map_or(unchanged, StaticCpus::shared);
    same("shared pool after the start", &shared, &expected.default)?;
    let Ok(cpus) = started else { return Ok(None) };

    let alias_sensitive = vector.tags.iter().any(|tag| tag == "alias_sensitive");
    let mut sequence = Sequence {
        cpus,
        pods,
        alias_sensitive,
        reusable: None,
        defect: None,
    };
    for (at, step) in vector.steps.into_iter().enumerate() {
        sequence
            .step(step)
            .map_err(|why| format!("step {at}: {why}"))?;
    }
    if sequence.defect.is_none() {
        let assigned = flat(sequence.cpus.state());
        same("final_assignments", &assigned, &vector.final_assignments)?;
    }
    Ok(sequence.defect)
}

/// A defect: an init container that is asked for once more makes CPUs reusable that another container has.
const DOUBLED: &str = "CPUs of an init container that another container has";

struct Sequence {
    cpus: StaticCpus,
    pods: BTreeMap<String, Pod>,
    alias_sensitive: bool,
    /// Whose CPUs the kubelet uses again, and which (`cpusToReuse`).
    reusable: Option<(PodUid, CpuSet)>,
    /// What the record has shown.
    defect: Option<String>,
}

impl Sequence {
    fn pod(&self, uid: &str) -> Result<&Pod, String> {
        self.pods.get(uid).ok_or(format!("no pod {uid}"))
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Allocate {
                pod,
                container,
                hint: (mask, preferred),
                expect,
            } => {
                let pod = self.pod(&pod)?.clone();
                let container = find(&pod, &container)?;
                let hint = TopologyHint {
                    mask: mask.map(NumaMask),
                    preferred,
                };
                let before = self.cpus.clone();
                let result = self.cpus.allocate(&pod, container, hint);
                let kubelet = self.with_doubled_cpus(&before, &pod, &container.name);
                let kubelets = kubelet.map(|mut kubelet| kubelet.allocate(&pod, container, hint));
                if let Some(Ok(doubled)) = kubelets
                    && self.defect.is_none()
                    && result.as_ref().ok() != Some(&doubled)
                    && doubled == expect.of(&pod.uid(), &container.name)
                {
                    self.defect = Some(DOUBLED.to_owned());
                }
                self.judge_allocation(&before, &pod, container, &result, &expect)?;
                if let Ok(Some(cpus)) = result {
                    self.note_reusable(&pod, &container.name, cpus);
                }
                Ok(())
            }
            Step::Remove {
                pod,
                container,
                expect,
            } => {
                let before = self.cpus.clone();
                let uid = self.pod(&pod)?.uid();
                let had = before.cpus_of(&uid, &container).unwrap_or_default();
                let released = self.cpus.remove(&uid, &container);
                same(
                    "shared pool",
                    &self.cpus.shared(),
                    &(before.shared() | released),
                )?;
                if !released.is_subset(&had) || self.cpus.cpus_of(&uid, &container).is_some() {
                    return Err(format!("released {released}, the container had {had}"));
                }
                self.judge_books(&before, None, &expect)
            }
            Step::Hints {
                pod,
                container,
                expect,
            } => {
                let pod = self.pod(&pod)?.clone();
                let container = find(&pod, &container)?;
                let kubelet = self.with_doubled_cpus(&self.cpus, &pod, &container.name);
                let kubelets = kubelet.map(|kubelet| kubelet.hints(&pod, container));
                self.judge_hints(self.cpus.hints(&pod, container), kubelets, &expect)
            }
            Step::PodHints { pod, expect } => {
                let pod = self.pod(&pod)?.clone();
                let kubelet = self.with_doubled_cpus(&self.cpus, &pod, "");
                let kubelets = kubelet.map(|kubelet| kubelet.pod_hints(&pod));
                self.judge_hints(self.cpus.pod_hints(&pod), kubelets, &expect)
            }
        }
    }

    /// The kubelet's `updateCPUsToReuse`.
    fn note_reusable(&mut self, pod: &Pod, container: &str, cpus: CpuSet) {
        let uid = pod.uid();
        let so_far = match self.reusable.take() {
            Some((of, so_far)) if of == uid => so_far,
            _ => CpuSet::EMPTY,
        };
        let reusable = if ends(pod, container) {
            so_far | cpus
        } else {
            so_far - cpus
        };
        self.reusable = Some((uid, reusable));
    }

    /// The books as the kubelet reads them for this pod where it would give some CPUs twice; `None` where it would not.
    /// An init container that is asked for once more makes its CPUs reusable again (`Allocate` calls
    /// `updateCPUsToReuse` for what it has), though an app container of the pod has taken them over: to the kubelet
    /// they are an init container's alone.
    fn with_doubled_cpus(
        &self,
        books: &StaticCpus,
        pod: &Pod,
        container: &str,
    ) -> Option<StaticCpus> {
        let uid = pod.uid();
        let (_, reusable) = self.reusable.as_ref().filter(|(of, _)| *of == uid)?;
        let mut state = books.state().clone();
        let of_pod = state.assignments.get_mut(&uid)?;
        let mut of_others = of_pod.iter().filter(|(name, _)| !ends(pod, name));
        if of_others.all(|(_, cpus)| cpus.is_disjoint(reusable)) {
            return None;
        }
        let inits = pod.spec.init_containers.iter();
        let mut inits = inits.filter(|init| ends(pod, &init.name) && init.name != container);
        let init = inits.next()?;
        of_pod.values_mut().for_each(|cpus| *cpus -= *reusable);
        of_pod.insert(init.name.clone(), *reusable - state.shared);
        of_pod.retain(|_, cpus| !cpus.is_empty());
        let mut doubled = books.policy().start(state).ok()?;
        let hint = TopologyHint {
            mask: None,
            preferred: true,
        };
        doubled.allocate(pod, init, hint).ok()?;
        Some(doubled)
    }

    fn judge_allocation(
        &mut self,
        before: &StaticCpus,
        pod: &Pod,
        container: &Container,
        result: &Result<Option<CpuSet>, CpuAllocateError>,
        expect: &Books,
    ) -> Result<(), String> {
        let uid = pod.uid();
        let held = |container: &Container| before.cpus_of(&uid, &container.name);
        let (ended, beside): (Vec<&Container>, Vec<&Container>) = pod
            .all_containers()
            .partition(|other| ends(pod, &other.name));
        let all = |containers: Vec<&Container>| {
            let sets = containers.into_iter().filter_map(held);
            sets.fold(CpuSet::EMPTY, |all, cpus| all | cpus)
        };
        let own = held(container).unwrap_or_default();
        let allowed = before.available() | (all(ended) - all(beside)) | own;
        if let Ok(taken) = result {
            let wanted = exclusive_cpus(pod, container);
            same(
                "number of CPUs",
                &taken.map_or(0, |cpus| cpus.len()),
                &wanted,
            )?;
            let taken = taken.unwrap_or_default();
            if !taken.is_subset(&allowed) {
                return Err(format!("took {taken}, of which {allowed} was free"));
            }
        } else if self.cpus.state() != before.state() {
            return Err("an allocation that failed has changed the books".to_owned());
        }

        let theirs = expect.of(&uid, &container.name);
        if self.defect.is_none()
            && let Some(theirs) = theirs
        {
            if !theirs.is_subset(&allowed) {
                self.shows_average_sizes(&theirs, &allowed)?;
                self.defect = Some("CPUs that were not free".to_owned());
            } else if self.alias_sensitive && result.as_ref().ok() != Some(&Some(theirs)) {
                self.defect = Some("alias_sensitive".to_owned());
            }
            if self.defect.is_some() {
                same(
                    "number of CPUs in the record",
                    &Some(theirs.len()),
                    &result
                        .as_ref()
                        .ok()
                        .and_then(|taken| taken.map(|cpus| cpus.len())),
                )?;
            }
        }
        let error = result
            .as_ref()
            .err()
            .map(|error| kind(refusal(&error.refusal)));
        self.judge_books(before, error, expect)
    }

    /// Each CPU that was not free must be in a core or socket that is larger than the average, that looked whole
    /// because an average number of its CPUs was free, and that was taken whole.
    fn shows_average_sizes(&self, taken: &CpuSet, free: &CpuSet) -> Result<(), String> {
        let topology = self.cpus.policy().topology();
        let counts = topology.counts();
        let cores = topology.by_core().values();
        let cores = cores.map(|core| (core, counts.cpus / counts.cores));
        let sockets = topology.by_socket().values();
        let sockets = sockets.map(|socket| (socket, counts.cpus / counts.sockets));
        let looked_whole = cores.chain(sockets).filter(|(cpus, average)| {
            cpus.len() > *average && cpus.overlap(free) >= *average && cpus.is_subset(taken)
        });
        let explained = looked_whole.fold(*free, |explained, (cpus, _)| explained | *cpus);
        if taken.is_subset(&explained) {
            return Ok(());
        }
        Err(format!(
            "recorded {taken}, of which {} was not free, and nothing explains that",
            *taken - *free
        ))
    }

    /// What must always hold; and the record's books, as long as those are sound.
    fn judge_books(
        &self,
        before: &StaticCpus,
        error: Option<Kind>,
        expect: &Books,
    ) -> Result<(), String> {
        self.keeps_invariants()?;
        if self.defect.is_some() {
            return Ok(());
        }
        let (before, after) = (flat(before.state()), flat(self.cpus.state()));
        let keys = before.keys().chain(after.keys());
        let changed = keys.filter(|key| before.get(*key) != after.get(*key));
        let books = Books {
            error,
            default: self.cpus.shared(),
            changed: changed
                .map(|key| (key.clone(), after.get(key).copied()))
                .collect(),
        };
        same("books", &books, expect)
    }

    fn judge_hints(
        &mut self,
        hints: ProviderHints,
        kubelets: Option<ProviderHints>,
        expect: &Hints,
    ) -> Result<(), String> {
        let hints = listed(hints)?;
        if self.defect.is_some() {
            return Ok(());
        }
        if hints != *expect
            && let Some(kubelets) = kubelets
            && listed(kubelets)? == *expect
        {
            self.defect = Some(DOUBLED.to_owned());
            return Ok(());
        }
        same("hints", &hints, expect)
    }

    /// No CPU is lost or shared that is exclusive; none has two owners, unless one of them is an init container of the
    /// same pod.
    fn keeps_invariants(&self) -> Result<(), String> {
        let state = self.cpus.state();
        let mut all = state.shared;
        let mut owners: Vec<(&PodUid, &String, bool, CpuSet)> = Vec::new();
        for (pod, containers) in &state.assignments {
            for (name, cpus) in containers {
                let known = self.pods.get(pod.as_str());
                let ends = known.is_some_and(|pod| ends(pod, name));
                if !cpus.is_disjoint(&state.shared) {
                    return Err(format!(
                        "{pod}/{name}: {cpus} is shared too ({})",
                        state.shared
                    ));
                }
                for (other_pod, other, other_ends, others) in &owners {
                    let in_turn = *other_pod == pod && (ends || *other_ends);
                    if !in_turn && !others.is_disjoint(cpus) {
                        return Err(format!(
                            "{pod}/{name} and {other_pod}/{other} share {}",
                            *others & *cpus
                        ));
                    }
                }
                owners.push((pod, name, ends, *cpus));
                all |= *cpus;
            }
        }
        same("all CPUs", &all, &self.cpus.policy().managed())
    }
}

fn listed(hints: ProviderHints) -> Result<Hints, String> {
    let listed = hints.into_iter().map(|(resource, set)| {
        let hints = set.and_then(|set| set.list());
        let hints = hints.ok_or("hints that cannot be listed")?;
        let pair = |hint: TopologyHint| Some((hint.mask?.0, hint.preferred));
        Ok((resource, hints.into_iter().filter_map(pair).collect()))
    });
    let listed = listed.collect::<Result<BTreeMap<String, Vec<(u64, bool)>>, String>>()?;
    Ok(Hints {
        hints: (!listed.is_empty()).then_some(listed),
    })
}

/// Whether a container has ended before those after it start.
fn ends(pod: &Pod, container: &str) -> bool {
    let inits = pod.spec.init_containers.iter();
    inits
        .filter(|init| init.name == container)
        .any(|init| !init.is_sidecar())
}

fn kind(kind: &str) -> Kind {
    Kind {
        kind: kind.to_owned(),
    }
}

fn policy_error(error: &CpuPolicyError) -> &'static str {
    match error {
        CpuPolicyError::Conflict { .. } => "options_conflict",
        CpuPolicyError::SocketsOnSingleNumaNode => "align_by_socket_with_single_numa_node",
        CpuPolicyError::MoreSocketsThanNumaNodes { .. } => "align_by_socket_more_sockets_than_numa",
        CpuPolicyError::Reserve { .. } => "reserve_failed",
        CpuPolicyError::ReservedUnknown { .. } => "reserve_unknown_cpu",
    }
}

fn state_error(error: &CpuStateError) -> &'static str {
    match error {
        CpuStateError::SharedPoolEmpty => "state_default_empty",
        CpuStateError::ReservedMissing { .. } => "state_reserved_missing",
        CpuStateError::ReservedPresent { .. } => "state_reserved_present",
        CpuStateError::Shared { .. } => "state_overlap",
        CpuStateError::AssignedTwice { .. } => "assigned twice: no error of the kubelet",
        CpuStateError::CpusMismatch { .. } => "state_cpus_mismatch",
    }
}

fn refusal(refusal: &CpuRefusal) -> &'static str {
    match refusal {
        CpuRefusal::PartialCore { .. } => "smt_alignment_multiple",
        CpuRefusal::NotEnoughCores { .. } => "smt_alignment_physical",
        CpuRefusal::NotEnoughCpus { .. } => "not_enough_cpus",
        CpuRefusal::SharedPool { .. } => "shared pool: no error of the kubelet",
    }
}

fn find<'a>(pod: &'a Pod, container: &str) -> Result<&'a Container, String> {
    pod.container(container)
        .ok_or(format!("no container {container}"))
}

fn flat(state: &CpuState) -> BTreeMap<String, CpuSet> {
    let pods = state.assignments.iter();
    pods.flat_map(|(pod, containers)| {
        containers
            .iter()
            .map(move |(container, cpus)| (format!("{pod}/{container}"), *cpus))
    })
    .collect()
}

fn saved_state(initial: Option<InitialState>) -> Result<CpuState, String> {
    let Some(initial) = initial else {
        return Ok(CpuState::default());
    };
    let mut state = CpuState {
        shared: initial.default,
        ..CpuState::default()
    };
    for (key, cpus) in initial.assignments {
        let (pod, container) = key
            .split_once('/')
            .ok_or(format!("no container in {key}"))?;
        let of_pod = state.assignments.entry(PodUid::new(pod)).or_default();
        of_pod.insert(container.to_owned(), cpus);
    }
    Ok(state)
}

/// The pod as the API server would have it.
fn pod(record: &PodRecord) -> Result<Pod, String> {
    let list = |cpu: Option<u64>, memory: Option<u64>| {
        let cpu = cpu.map(|milli| ("cpu", format!("{milli}m")));
        let memory = memory.map(|bytes| ("memory", bytes.to_string()));
        cpu.into_iter()
            .chain(memory)
            .collect::<BTreeMap<&str, String>>()
    };
    let container = |record: &ContainerRecord| {
        json!({
            "name": record.name,
            "restartPolicy": (record.r#type == ContainerType::Sidecar).then_some("Always"),
            "resources": {
                "requests": list(record.cpu_request_milli, record.memory_request),
                "limits": list(record.cpu_limit_milli, record.memory_limit),
            },
        })
    };
    let (apps, inits): (Vec<_>, Vec<_>) = record
        .containers
        .iter()
        .partition(|container| container.r#type == ContainerType::App);
    let pod: Pod = read(&json!({
        "metadata": { "uid": record.uid },
        "spec": {
            "containers": apps.into_iter().map(container).collect::<Vec<_>>(),
            "initContainers": inits.into_iter().map(container).collect::<Vec<_>>(),
        },
    }))?;
    same("qos", &pod.qos_class().as_str(), &record.qos.as_str())?;
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight cores, of which the first is reserved, and a pod whose init container is asked for again when `a` has its
    /// CPUs. The kubelet's static policy of 1.36.2 then gives them to `b` as well.
    fn sequence(of_b: &str, shared: &str) -> Value {
        let container = |name: &str, kind: &str| {
            json!({
                "name": name, "type": kind, "cpu_request_milli": 2000, "cpu_limit_milli": 2000,
                "memory_request": 1, "memory_limit": 1,
            })
        };
        let allocate = |name: &str, shared: &str, changed: Value| {
            json!({
                "op": "allocate", "pod": "p", "container": name, "hint": [null, true],
                "expect": {"default": shared, "changed": changed},
            })
        };
        let cpus: Vec<[u32; 5]> = (0..8).map(|cpu| [cpu, cpu, 0, 0, 0]).collect();
        json!({
            "topology": {
                "id": "t", "desc": "", "num_cpus": 8, "num_cores": 8, "num_sockets": 1, "num_numa_nodes": 1,
                "num_uncore_caches": 1, "cpus": cpus,
            },
            "reserved_cpus": "0", "num_reserved": 1, "options": {}, "topology_manager_policy": "none",
            "pods": [{"uid": "p", "qos": "Guaranteed", "containers": [
                container("i", "init"), container("a", "app"), container("b", "app"),
            ]}],
            "expect_start": {"reserved": "0", "default": "0-7"},
            "steps": [
                allocate("i", "0,3-7", json!({"p/i": "1-2"})),
                allocate("a", "0,3-7", json!({"p/a": "1-2"})),
                allocate("i", "0,3-7", json!({})),
                allocate("b", shared, json!({"p/b": of_b})),
            ],
            "final_assignments": {"p/i": "1-2", "p/a": "1-2", "p/b": of_b},
        })
    }

    #[test]
    fn cpus_that_the_kubelet_gives_twice_are_its_defect() {
        assert_eq!(check(&sequence("3-4", "0,5-7")), Verdict::Pass);
        let known = check(&sequence("1-2", "0,3-7"));
        assert_eq!(known, Verdict::KnownUpstreamDefect(DOUBLED.to_owned()));
        for (of_b, shared) in [("2-3", "0,4-7"), ("5-6", "0,3-4,7"), ("1", "0,3-7")] {
            let wrong = check(&sequence(of_b, shared));
            assert!(matches!(wrong, Verdict::Fail { .. }), "{of_b}: {wrong:?}");
        }
    }
}
