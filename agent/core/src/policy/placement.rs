//! Which pods are placed, and when they give back what they hold.
//!
//! Problem: placement ([`NodePlacement`]) knows books, and not that pods start, end, are evicted, change or were there
//! before the agent. Approach: a pod is placed when it is applied, as the kubelet does at admission, and holds what it
//! got until its manifest is gone and its last process with it, or until it has been evicted. An evicted pod that runs
//! again is placed again. What was saved for a pod without a manifest is given back once all manifests have been read
//! ([`EventKind::PodsListed`]).
//!
//! Beside a kubelet that says which devices it has given to whom, a pod that wants some is placed when it has said that
//! of the pod, near to them.
//!
//! Beside a kubelet a pod is placed when its kubelet has said something of its containers, or its first process runs,
//! that of its sandbox: before that the kubelet may refuse it, and anybody who may create pods can have the API server
//! assign one to this node. Nor is a pod placed by amounts that its owner has written since then, before the kubelet
//! says what it has allocated. Pods are known before the API server has named them: such a pod keeps what was saved for
//! it. One that the API shows as ended, or whose deletion has begun, gives back what it holds with its last process,
//! however long the API keeps the object.
//!
//! A pod that is applied with other resources than before is placed anew, unless it runs: then its containers keep what
//! they have, as far as they request it, and get more beside it. Without a kubelet one for which there is no room is
//! not applied before there is, or it has ended ([`may_resize`]); beside a kubelet, which has admitted it, it keeps
//! what it has, and is tried again when something is given back. A step tries a bounded number of those who wait; the
//! others have their turn with [`EventKind::RoomSought`].
//!
//! A node that is short of memory does not wait for any of that: an urgent event, such as a sample, only notes which
//! pods give something up. It is given back, and to those who wait for it, with the next event that is not urgent;
//! [`EventKind::PlacementDue`] is for where there would be none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::kube::pod::{Container, Pod};
use crate::kube::pod_uid::PodUid;
use crate::kube::qos::QosClass;
use crate::model::config::EngineConfig;
use crate::model::decision::{Decision, EvictionEnding};
use crate::model::event::{Event, EventKind, PlacementStart};
use crate::model::eviction_change::EvictionChange;
use crate::model::state::{NodeState, PodState};
use crate::placement::assignments::Assignments;
use crate::placement::device::{GivenDevices, ListedDevices};
use crate::placement::node::{NodePlacement, Placed};
use crate::placement::numa_zones::AgentPlacement;

/// Why the resources of a pod that runs are not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "pod {pod} runs and is not resized in place: {why}; the whole pod stays as it was until that has changed, or its processes have ended"
)]
pub struct NotResized {
    /// Namespace and name.
    pub pod: String,
    /// What is short, and on which NUMA nodes.
    pub why: String,
}

/// Whether a pod's specification may be replaced by this one now: not while the pod runs and what it would have more of
/// is not there beside what it has, or its quality of service would be another. The kubelet of 1.36 refuses any such
/// change of a Guaranteed pod (`podResizesAdmitHandler.Admit` in pkg/kubelet/allocation/handlers.go).
///
/// # Errors
///
/// [`NotResized`]; then the pod should stay as it is, in all.
pub fn may_resize(state: &NodeState, pod: &Pod) -> Result<(), Box<NotResized>> {
    let (Some(placement), Some(known)) = (&state.placement, state.pods.get(&pod.uid())) else {
        return Ok(());
    };
    if !known.running || known.removed || known.leaving.is_some() {
        return Ok(());
    }
    let not_resized = |why| {
        Box::new(NotResized {
            pod: known.name.clone(),
            why,
        })
    };
    if same_resources(&known.pod, pod) {
        return Ok(());
    }
    let (before, after) = (known.pod.qos_class(), pod.qos_class());
    if before != after && (before == QosClass::Guaranteed || after == QosClass::Guaranteed) {
        let why = format!("it would be {after} and was {before}");
        return Err(not_resized(why));
    }
    if matches!(placement.placed(&pod.uid()), Placed::Refused(_)) {
        return Ok(()); // it runs in the shared pool
    }
    let mut tried = placement.clone();
    if !same_containers(&known.pod, pod) {
        tried.remove(&pod.uid());
    }
    tried
        .admit(pod)
        .map_err(|refusal| not_resized(refusal.to_string()))
}

/// Before the state takes the event in: a pod that comes back with other resources gives up what it has, unless its
/// containers run and only their amounts are others. Beside a kubelet it is the same pod whether they run just now or
/// are about to be started again.
pub(crate) fn give_up_changed(config: &EngineConfig, state: &mut NodeState, event: &Event) {
    let Some(placement) = &mut state.placement else {
        return;
    };
    if let EventKind::PodApplied { pod } = &event.kind
        && let Some(known) = state.pods.get(&pod.uid())
        // A pod without a name has nothing to compare.
        && !known.pod.is_unnamed()
        && !pod.is_unnamed()
        && !same_resources(&known.pod, pod)
        && !((known.running || config.beside_kubelet) && same_containers(&known.pod, pod))
    {
        placement.remove(&pod.uid());
    }
}

fn same_resources(one: &Pod, other: &Pod) -> bool {
    let resources = |pod: &Pod| {
        let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        let of = |container: &crate::kube::pod::Container| {
            (
                container.name.clone(),
                container.resources.clone(),
                container.is_sidecar(),
            )
        };
        (
            pod.spec.resources.clone(),
            containers.map(of).collect::<Vec<_>>(),
        )
    };
    resources(one) == resources(other)
}

/// Whether their containers are the same, in this order.
fn same_containers(one: &Pod, other: &Pod) -> bool {
    let names = |pod: &Pod| {
        let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        let of = |container: &Container| (container.name.clone(), container.is_sidecar());
        containers.map(of).collect::<Vec<_>>()
    };
    names(one) == names(other)
}

/// Makes room, so that [`decide`] allocates nothing for urgent events: every pod can give something up before the next
/// event that is not urgent.
pub(crate) fn reserve(state: &mut NodeState) {
    let noted = state.giving_back.len();
    state
        .giving_back
        .reserve(state.pods.len().saturating_sub(noted));
}

/// Places pods and takes back, and says once what came of it. What this step has decided so far begins at `first`.
pub(crate) fn decide(
    config: &EngineConfig,
    state: &mut NodeState,
    event: &Event,
    first: usize,
    decisions: &mut Vec<Decision>,
) {
    if event.kind.is_on_kill_path() {
        note_given_up(state, &event.kind, &decisions[first..]);
        return;
    }
    let mut changed = give_back(state);
    changed |= match &event.kind {
        EventKind::PlacementStarted(start) => begin(config, state, start, decisions),
        EventKind::PodsListed => release_unknown(state),
        EventKind::DevicesGiven { devices } => {
            devices_given(config, state, devices.as_ref(), decisions)
        }
        EventKind::PodApplied { pod } => admit(config, state, &pod.uid(), decisions),
        EventKind::PodRunning { uid } => admit(config, state, uid, decisions),
        EventKind::PodRemoved { uid } | EventKind::PodEndedByKubelet { uid } => {
            release_if_gone(state, uid)
        }
        EventKind::ContainerEnded { uid, container } => container_ended(state, uid, container),
        EventKind::Sample(_)
        | EventKind::PodEmpty { .. }
        | EventKind::FirstProcessesEnded { .. }
        | EventKind::PlacementDue
        | EventKind::EvictionRefused { .. }
        | EventKind::Overused(_)
        | EventKind::BudgetApplied { .. }
        | EventKind::BudgetRemoved { .. }
        | EventKind::DiskFreed { .. }
        | EventKind::RemedyReported { .. }
        | EventKind::LastLineKill { .. }
        | EventKind::CpuReading(_)
        | EventKind::CpuNotWritten { .. }
        | EventKind::RoomSought
        | EventKind::Outcome { .. } => false,
    };
    let Some(placement) = &mut state.placement else {
        return;
    };
    for uid in ended(&decisions[first..]) {
        changed |= placement.remove(uid);
    }
    if changed {
        let waiting = waiting(config, placement).len();
        placement.round.begin(waiting);
    }
    if changed || matches!(event.kind, EventKind::RoomSought) {
        changed |= serve_waiting(config, state, event);
    }
    let Some(placement) = &state.placement else {
        return;
    };
    if changed {
        let assignments = Arc::new(placement.assignments());
        decisions.push(Decision::Place { assignments });
    }
}

/// Pods whose eviction or removal is over.
fn ended(decisions: &[Decision]) -> impl Iterator<Item = &PodUid> {
    decisions
        .iter()
        .filter_map(|decision| match decision.eviction_change() {
            EvictionChange::Over { uid, ending, .. } => match ending {
                EvictionEnding::Freed | EvictionEnding::Lingering => Some(uid),
                EvictionEnding::Stuck => None,
            },
            EvictionChange::Evicted(_) | EvictionChange::None => None,
        })
}

/// What an urgent event says of what pods hold: noted, and given back later. Allocates nothing.
fn note_given_up(state: &mut NodeState, event: &EventKind, decisions: &[Decision]) {
    let empty = match event {
        EventKind::PodEmpty { uid } if !keeps(state, uid) => Some(uid),
        _ => None,
    };
    let Some(placement) = &state.placement else {
        return;
    };
    for uid in ended(decisions).chain(empty) {
        if placement.has_any(uid) && !state.giving_back.contains(uid) {
            state.giving_back.push(uid.clone());
        }
    }
}

/// What urgent events have noted.
fn give_back(state: &mut NodeState) -> bool {
    let Some(placement) = &mut state.placement else {
        return false;
    };
    let uids = state.giving_back.drain(..);
    uids.fold(false, |changed, uid| placement.remove(&uid) | changed)
}

/// With new settings, or on what the machine is now. On settings that cannot be everything stays as it is.
fn begin(
    config: &EngineConfig,
    state: &mut NodeState,
    start: &PlacementStart,
    decisions: &mut Vec<Decision>,
) -> bool {
    let saved = match (&start.saved, &state.placement) {
        (Some(saved), _) => saved.clone(),
        (None, Some(placement)) => placement.assignments(),
        (None, None) => Assignments::default(),
    };
    let (settings, machine) = (start.settings.clone(), start.machine.clone());
    let given = state.placement.as_ref().and_then(NodePlacement::given);
    let given = given.cloned();
    match NodePlacement::start(settings, machine, &saved) {
        Ok((mut placement, notes)) => {
            placement.set_given(given);
            state.placement = Some(placement);
            decisions.extend(
                notes
                    .into_iter()
                    .map(|note| Decision::PlacementLost { note }),
            );
        }
        Err(error) => {
            let why = error.to_string();
            decisions.push(Decision::PlacementFailed { why });
            return false;
        }
    }
    // Pods that lost their assignment get it again, as far as there is room.
    let uids: Vec<PodUid> = state.pods.keys().cloned().collect();
    for uid in uids {
        admit(config, state, &uid, decisions);
    }
    true
}

/// Whether a pod's kubelet is about to say near to which NUMA nodes its devices are.
fn awaits_devices(placement: &NodePlacement, pod: &Pod) -> bool {
    placement
        .given()
        .is_some_and(|given| given.are_awaited(pod))
}

/// Whether a pod is admitted, and is placed when its kubelet has said which devices it has given to it.
pub fn is_waiting_for_devices(state: &NodeState) -> bool {
    let Some(placement) = &state.placement else {
        return false;
    };
    state.pods.iter().any(|(uid, pod)| {
        is_to_run(pod)
            && pod.is_admitted()
            && awaits_devices(placement, &pod.pod)
            && placement.placed(uid) == Placed::Not
    })
}

/// Who has which of the listed devices: of the pods with a name the one that is to run, and was known to be admitted
/// when the kubelet was asked; of several the newest, for the kubelet knows no other.
fn owned(state: &NodeState, listed: &ListedDevices) -> GivenDevices {
    let mut owners: BTreeMap<&str, (u64, &PodUid)> = BTreeMap::new();
    for (uid, pod) in state.pods.iter().filter(|(_, pod)| is_to_run(pod)) {
        let admitted = pod.admitted_at_ns;
        if let Some(at_ns) = admitted.filter(|at_ns| *at_ns < listed.asked_at_ns) {
            let owner = owners.entry(&pod.name).or_insert((at_ns, uid));
            *owner = (*owner).max((at_ns, uid));
        }
    }
    let owners = owners.into_iter().map(|(name, (_, uid))| (name, uid));
    listed.given_to(owners)
}

/// Who was waited for is placed.
fn devices_given(
    config: &EngineConfig,
    state: &mut NodeState,
    devices: Option<&Arc<ListedDevices>>,
    decisions: &mut Vec<Decision>,
) -> bool {
    let given = devices.map(|listed| Arc::new(owned(state, listed)));
    let Some(placement) = &mut state.placement else {
        return false;
    };
    let waited: Vec<PodUid> = state
        .pods
        .iter()
        .filter(|(_, pod)| awaits_devices(placement, &pod.pod))
        .map(|(uid, _)| uid.clone())
        .collect();
    placement.set_given(given);
    waited.iter().fold(false, |changed, uid| {
        admit(config, state, uid, decisions) | changed
    })
}

fn is_to_run(pod: &PodState) -> bool {
    !(pod.removed || pod.ending || pod.leaving.is_some())
}

/// Places a pod that is to run. Whether anything changed.
fn admit(
    config: &EngineConfig,
    state: &mut NodeState,
    uid: &PodUid,
    decisions: &mut Vec<Decision>,
) -> bool {
    let (Some(placement), Some(pod)) = (&mut state.placement, state.pods.get(uid)) else {
        return false;
    };
    if !is_to_run(pod) {
        return false;
    }
    let before = placement.placed(uid);
    let has_none = !matches!(before, Placed::Holds(_));
    if config.beside_kubelet && has_none && !may_get_first(placement, pod) {
        return false;
    }
    let lacked = placement.unserved().get(uid).cloned();
    if let Err(refusal) = placement.admit(&pod.pod) {
        // Said again only if it is another reason.
        let why = refusal.to_string();
        if before != Placed::Refused(why.clone()) && lacked.as_ref() != Some(&why) {
            let uid = uid.clone();
            // Its kubelet has admitted it: it runs in the shared pool.
            let runs_on = config.beside_kubelet || before != Placed::Not || pod.running;
            decisions.push(Decision::PlacementRefused { uid, why, runs_on });
        }
    }
    placement.placed(uid) != before
}

/// Beside a kubelet: whether a pod that has nothing may get something by what it requests.
fn may_get_first(placement: &NodePlacement, pod: &PodState) -> bool {
    // A shortened pod does not say which containers want what.
    pod.is_admitted()
        && !pod.pod.is_shortened()
        && !pod.pod.awaits_allocation()
        && !awaits_devices(placement, &pod.pod)
}

/// Who lacks something. Without a kubelet a refused pod is not started, and does not wait.
fn waiting(config: &EngineConfig, placement: &NodePlacement) -> BTreeSet<PodUid> {
    let refused = placement.refused().keys().filter(|_| config.beside_kubelet);
    let unserved = placement.unserved().keys();
    unserved.chain(refused).cloned().collect()
}

/// Something has changed: who lacks something may have it by now. What they still lack is not said again. Whether
/// anybody got something.
fn serve_waiting(config: &EngineConfig, state: &mut NodeState, event: &Event) -> bool {
    let Some(placement) = &mut state.placement else {
        return false;
    };
    let is_just_tried = |uid: &PodUid| match &event.kind {
        EventKind::PodApplied { pod } => pod.uid() == *uid,
        EventKind::PodRunning { uid: just } => just == uid,
        _ => false,
    };
    let waiting = waiting(config, placement);
    let mut changed = false;
    for uid in placement.round.next(&waiting) {
        let known = state.pods.get(&uid);
        let Some(pod) = known.filter(|pod| is_to_run(pod) && !is_just_tried(&uid)) else {
            continue;
        };
        let before = placement.placed(&uid);
        let has_none = !matches!(before, Placed::Holds(_));
        if config.beside_kubelet && has_none && !may_get_first(placement, pod) {
            continue;
        }
        // Where it still lacks something, the reason is in the books.
        placement.admit(&pod.pod).ok();
        let now = placement.placed(&uid);
        changed |= now != before && matches!(now, Placed::Holds(_));
    }
    changed
}

fn release_unknown(state: &mut NodeState) -> bool {
    let Some(placement) = &mut state.placement else {
        return false;
    };
    let mut pods = placement.pods();
    pods.retain(|uid| !state.pods.contains_key(uid));
    pods.iter()
        .fold(false, |changed, uid| placement.remove(uid) | changed)
}

fn release_if_gone(state: &mut NodeState, uid: &PodUid) -> bool {
    let keeps = keeps(state, uid);
    let placement = state.placement.as_mut().filter(|_| !keeps);
    placement.is_some_and(|placement| placement.remove(uid))
}

/// Whether a pod keeps what it holds: it runs, or may run again.
fn keeps(state: &NodeState, uid: &PodUid) -> bool {
    let pod = state.pods.get(uid);
    pod.is_some_and(|pod| pod.running || !(pod.stuck || pod.ending))
}

fn container_ended(state: &mut NodeState, uid: &PodUid, container: &str) -> bool {
    let (Some(placement), Some(pod)) = (&mut state.placement, state.pods.get(uid)) else {
        return false;
    };
    placement.container_ended(&pod.pod, container)
}

/// What is placed here, as it counts in what NUMA nodes have left; `None`: no policy places anything.
#[must_use]
pub fn agent_placement(state: &NodeState) -> Option<AgentPlacement> {
    let placement = state.placement.as_ref()?;
    let name = |uid: &PodUid| {
        let pod = state.pods.get(uid).filter(|pod| !pod.pod.is_unnamed());
        pod.map(|pod| pod.name.clone())
    };
    Some(AgentPlacement::of(placement, name))
}
