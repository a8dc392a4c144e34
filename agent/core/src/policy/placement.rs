//! Which pods are placed, and when they give back what they hold.
//!
//! Problem: placement ([`NodePlacement`]) knows books, and not that pods start, end, are evicted, change or were there before the agent.
//! Approach: a pod is placed when it is applied, as the kubelet does at admission, and holds what it got until its manifest is gone and its
//! last process with it, or until it has been evicted. An evicted pod that runs again is placed again. What was saved for a pod
//! without a manifest is given back once all manifests have been read ([`EventKind::PodsListed`]).
//!
//! Beside a kubelet, pods are known before the API server has named them: such a pod keeps what was saved for it. One that the API shows as ended, or
//! whose deletion has begun, gives back what it holds with its last process, however long the API keeps the object.
//!
//! A pod that is applied with other resources than before is placed anew, unless it runs and has something of its own: that is not resized in place
//! ([`may_resize`]), and the caller does not apply it before it has ended.

use std::sync::Arc;

use crate::kube::pod::{Container, Pod};
use crate::kube::qos::QosClass;
use crate::kube::resources::{CPU, MEMORY};
use crate::model::config::EngineConfig;
use crate::model::decision::{Decision, Ending};
use crate::model::event::{Event, EventKind, PlacementStart};
use crate::model::state::NodeState;
use crate::model::units::PodUid;
use crate::placement::assignments::Assignments;
use crate::placement::node::{CpuManagerPolicy, MemoryManagerPolicy, NodePlacement, Placed};

/// Why the resources of a pod that runs are not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "pod {pod}, container {container}: its request for {resource} is {wanted} now and was {held}, and it runs: under {field} {policy} what a \
     Guaranteed pod has is not resized in place (the kubelet does it with feature gate {gate} only); the whole pod stays as it was \
     until its processes have ended: end it, or put the manifest back"
)]
pub struct NotResized {
    /// Namespace and name.
    pub pod: String,
    /// The first container that differs.
    pub container: String,
    /// `cpu` or `memory`.
    pub resource: &'static str,
    /// What it requests in force.
    pub held: String,
    /// What it is to request.
    pub wanted: String,
    /// The field of the configuration.
    pub field: &'static str,
    /// Its value.
    pub policy: &'static str,
    /// The kubelet's feature gate.
    pub gate: &'static str,
}

/// Whether a pod's specification may be replaced by this one now (`podResizesAdmitHandler.Admit` in pkg/kubelet/allocation/handlers.go, 1.36): not while
/// the pod runs, is Guaranteed, and another amount is requested of what a static policy hands out.
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
    if pod.qos_class() != QosClass::Guaranteed && known.pod.qos_class() != QosClass::Guaranteed {
        return Ok(());
    }
    let settings = placement.settings();
    let refuse =
        |container: &Container, held: &Container, resource, [field, policy, gate]: [_; 3]| {
            let amount = |container: &Container| container.resources.request(resource).canonical();
            Box::new(NotResized {
                pod: known.name.clone(),
                container: container.name.clone(),
                resource,
                held: amount(held),
                wanted: amount(container),
                field,
                policy,
                gate,
            })
        };
    let differs = |resource| {
        let mut both = pod.all_containers().filter_map(|wanted| {
            let mut held = known.pod.all_containers();
            Some((wanted, held.find(|held| held.name == wanted.name)?))
        });
        both.find(|(wanted, held)| {
            wanted.resources.request(resource) != held.resources.request(resource)
        })
    };
    if settings.cpu_manager_policy == CpuManagerPolicy::Static
        && let Some((wanted, held)) = differs(CPU)
    {
        let why = [
            "cpuManagerPolicy",
            "static",
            "InPlacePodVerticalScalingExclusiveCPUs",
        ];
        return Err(refuse(wanted, held, CPU, why));
    }
    if settings.memory_manager_policy == MemoryManagerPolicy::Static
        && let Some((wanted, held)) = differs(MEMORY)
    {
        let why = [
            "memoryManagerPolicy",
            "Static",
            "InPlacePodVerticalScalingExclusiveMemory",
        ];
        return Err(refuse(wanted, held, MEMORY, why));
    }
    Ok(())
}

/// Before the state takes the event in: a pod that comes back with other resources gives up what it has.
pub(crate) fn give_up_changed(state: &mut NodeState, event: &Event) {
    let Some(placement) = &mut state.placement else {
        return;
    };
    if let EventKind::PodApplied { pod } = &event.kind
        && let Some(known) = state.pods.get(&pod.uid())
        // Of one without a name nothing is known that could differ.
        && !known.pod.is_unnamed()
        && !pod.is_unnamed()
        && !same_resources(&known.pod, pod)
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

/// Places pods and takes back, and says once what came of it. `decided`: what this step has decided so far.
pub(crate) fn decide(
    config: &EngineConfig,
    state: &mut NodeState,
    event: &Event,
    first: usize,
    decisions: &mut Vec<Decision>,
) {
    let mut changed = match &event.kind {
        EventKind::PlacementStarted(start) => begin(config, state, start, decisions),
        EventKind::PodsListed => release_unknown(state),
        EventKind::PodApplied { pod } => admit(config, state, &pod.uid(), decisions),
        EventKind::PodRunning { uid } => admit(config, state, uid, decisions),
        EventKind::PodRemoved { uid }
        | EventKind::PodEmpty { uid }
        | EventKind::PodEnding { uid } => release_if_gone(state, uid),
        EventKind::ContainerEnded { uid, container } => container_ended(state, uid, container),
        EventKind::Sample(_)
        | EventKind::EvictionRefused { .. }
        | EventKind::Overused(_)
        | EventKind::BudgetApplied { .. }
        | EventKind::BudgetRemoved { .. }
        | EventKind::NodeReclaimed { .. }
        | EventKind::Stage { .. }
        | EventKind::LastLineKill { .. }
        | EventKind::CpuReading(_)
        | EventKind::CpuNotWritten { .. }
        | EventKind::Outcome { .. } => false,
    };
    let Some(placement) = &mut state.placement else {
        return;
    };
    for decision in &decisions[first..] {
        if let Decision::Finished {
            uid,
            ending: Ending::Freed | Ending::Lingering,
            ..
        } = decision
        {
            changed |= placement.remove(uid);
        }
    }
    if changed {
        let assignments = Arc::new(placement.assignments());
        decisions.push(Decision::Place { assignments });
    }
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
    match NodePlacement::start(settings, machine, &saved) {
        Ok((placement, notes)) => {
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
    if pod.removed || pod.ending || pod.leaving.is_some() {
        return false;
    }
    let before = placement.placed(uid);
    if let Err(refusal) = placement.admit(&pod.pod) {
        // Said again only if it is another reason.
        let why = refusal.to_string();
        if before != Placed::Refused(why.clone()) {
            let uid = uid.clone();
            // Its kubelet has admitted it: it runs in the shared pool.
            let runs_on = config.beside_kubelet || before != Placed::Not || pod.running;
            decisions.push(Decision::PlacementRefused { uid, why, runs_on });
        }
    }
    placement.placed(uid) != before
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
    let Some(placement) = &mut state.placement else {
        return false;
    };
    let stays = state
        .pods
        .get(uid)
        .is_some_and(|pod| pod.running || !(pod.stuck || pod.ending));
    !stays && placement.remove(uid)
}

fn container_ended(state: &mut NodeState, uid: &PodUid, container: &str) -> bool {
    let (Some(placement), Some(pod)) = (&mut state.placement, state.pods.get(uid)) else {
        return false;
    };
    placement.container_ended(&pod.pod, container)
}
