//! `memory_manager`: NUMA memory under the policy Static, as sequences of steps.
//!
//! After every step the whole state is compared with the one before, so that what should not change is checked as well.
//!
//! A defect of upstream is not copied (see `plimsoll_core::placement::memory`): bytes that stay promised on a node
//! where no container is. No vector known so far shows it. Where one does, the steps after it say nothing, and the
//! vector counts as a known upstream defect.

use std::collections::BTreeMap;

use plimsoll_core::kube::pod::{Container, Pod};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::TopologyHint;
use plimsoll_core::placement::hints::{HintSet, ProviderHints};
use plimsoll_core::placement::memory::{
    AllocateError, Assignments, HugePages, MachineError, NodeMemory, NumaMemory, RefusalKind,
    ReservedMemory, StaticMemory,
};
use plimsoll_core::placement::numa_mask::NumaMask;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Verdict, read, same};

#[derive(Deserialize)]
struct Vector {
    numa_nodes: Vec<Node>,
    system_reserved: ReservedMemory,
    pods: Vec<PodInput>,
    expect_new_error: Option<ExpectedError>,
    #[serde(default)]
    initial_machine_state: BTreeMap<u32, InitialNode>,
    #[serde(default)]
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Node {
    id: u32,
    memory: u64,
    #[serde(default)]
    hugepages: Vec<Pool>,
}

#[derive(Deserialize)]
struct Pool {
    page_size_kb: u64,
    num_pages: u64,
}

#[derive(Deserialize)]
struct PodInput {
    uid: String,
    qos: String,
    containers: Vec<ContainerInput>,
}

#[derive(Deserialize)]
struct ContainerInput {
    name: String,
    r#type: String,
    cpu_request_milli: Option<i64>,
    cpu_limit_milli: Option<i64>,
    memory_request: Option<i64>,
    memory_limit: Option<i64>,
    #[serde(default)]
    hugepages: Option<BTreeMap<String, i64>>,
}

#[derive(Deserialize)]
struct ExpectedError {
    kind: String,
}

#[derive(Deserialize, PartialEq, Debug)]
struct InitialNode {
    assignments: u64,
    cells: Vec<u32>,
    memory: BTreeMap<String, Table>,
}

#[derive(Deserialize, PartialEq, Debug)]
struct Table {
    total: u64,
    system_reserved: u64,
    allocatable: u64,
    reserved: u64,
    free: u64,
}

/// Mask and preferred.
type ExpectedHint = (Option<u64>, bool);

#[derive(Deserialize)]
struct Step {
    op: String,
    pod: String,
    container: Option<String>,
    hint: Option<ExpectedHint>,
    expect: Expected,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    error: Option<ExpectedError>,
    #[serde(default)]
    blocks_changed: BTreeMap<String, Option<Vec<ExpectedBlock>>>,
    #[serde(default)]
    machine_state_changed: BTreeMap<u32, ChangedNode>,
    hints: Option<BTreeMap<String, Vec<ExpectedHint>>>,
}

#[derive(Deserialize, PartialEq, Debug)]
struct ExpectedBlock {
    numa_mask: u64,
    r#type: String,
    size: u64,
}

#[derive(Deserialize, PartialEq, Debug)]
struct ChangedNode {
    assignments: u64,
    cells: Vec<u32>,
    reserved_free: BTreeMap<String, (u64, u64)>,
}

pub(super) fn check(vector: &Value) -> Verdict {
    match read(vector).and_then(compare) {
        Ok(None) => Verdict::Pass,
        Ok(Some(defect)) => Verdict::KnownUpstreamDefect(defect),
        Err(why) => Verdict::Fail { why },
    }
}

/// What upstream's known defect was, if it showed.
type Defect = Option<String>;

fn compare(vector: Vector) -> Result<Defect, String> {
    let machine: Vec<NumaMemory> = vector.numa_nodes.iter().map(numa_memory).collect();
    let pods: Vec<Pod> = vector.pods.iter().map(pod).collect::<Result<_, _>>()?;
    for (pod, input) in pods.iter().zip(&vector.pods) {
        same("qos", &pod.qos_class().as_str(), &input.qos.as_str())?;
    }
    let mut memory = match (
        StaticMemory::new(&machine, &vector.system_reserved),
        vector.expect_new_error,
    ) {
        (Ok(memory), None) => memory,
        (Err(MachineError::NothingReserved), Some(error)) => {
            same("expect_new_error", &"mem_no_reserved", &error.kind.as_str())?;
            return Ok(None);
        }
        (actual, expected) => {
            let expected = expected.map_or_else(|| "success".to_owned(), |error| error.kind);
            return Err(format!(
                "expect_new_error: got {actual:?}, expected {expected}"
            ));
        }
    };
    let initial = memory.nodes().iter().map(|(id, node)| (*id, full(node)));
    same(
        "initial_machine_state",
        &initial.collect(),
        &vector.initial_machine_state,
    )?;
    for (at, step) in vector.steps.iter().enumerate() {
        let named = |why| format!("step {at} ({} of {}): {why}", step.op, step.pod);
        let pod = pods.iter().find(|pod| pod.uid().as_str() == step.pod);
        let pod = pod.ok_or_else(|| named("no such pod".to_owned()))?;
        match take(&mut memory, pod, step) {
            Ok(None) => {}
            Ok(Some(defect)) => return Ok(Some(named(defect))),
            Err(why) => return Err(named(why)),
        }
    }
    Ok(None)
}

fn take(memory: &mut StaticMemory, pod: &Pod, step: &Step) -> Result<Defect, String> {
    let before = memory.clone();
    let expected = &step.expect;
    match step.op.as_str() {
        "allocate" => {
            let (mask, preferred) = step.hint.ok_or("allocate without hint")?;
            let hint = TopologyHint {
                mask: mask.map(NumaMask),
                preferred,
            };
            let outcome = memory.allocate(pod, container(pod, step)?, hint);
            let kind = outcome.as_ref().err().map_or(Ok("none"), kind)?;
            let expected = expected.error.as_ref();
            same(
                "error",
                &kind,
                &expected.map_or("none", |error| &error.kind),
            )?;
        }
        "remove" => memory.remove(&pod.uid(), &container(pod, step)?.name),
        "hints" => same_hints(memory.hints(pod, container(pod, step)?), expected)?,
        "pod_hints" => same_hints(memory.pod_hints(pod), expected)?,
        other => return Err(format!("unknown op {other:?}")),
    }
    same(
        "blocks_changed",
        &blocks_changed(before.assignments(), memory.assignments()),
        &expected.blocks_changed,
    )?;
    if let Some(defect) = leak(memory, expected) {
        return Ok(Some(defect));
    }
    let changed = memory.nodes().iter();
    let changed = changed.filter(|(id, node)| before.nodes().get(id) != Some(node));
    same(
        "machine_state_changed",
        &changed.map(|(id, node)| (*id, short(node))).collect(),
        &expected.machine_state_changed,
    )?;
    Ok(None)
}

/// Upstream keeps bytes promised on a node that no container is on. Steps after that cannot be compared.
fn leak(memory: &StaticMemory, expected: &Expected) -> Defect {
    let changed = expected.machine_state_changed.iter();
    let mut leaks = changed.filter(|(id, node)| {
        node.assignments == 0
            && node
                .reserved_free
                .values()
                .any(|(reserved, _)| *reserved > 0)
            && memory.nodes().get(id).is_some_and(|own| {
                own.assignments == 0 && own.memory.values().all(|table| table.reserved == 0)
            })
    });
    let (id, _) = leaks.next()?;
    Some(format!("node {id} has bytes promised to nobody"))
}

fn kind(error: &AllocateError) -> Result<&'static str, String> {
    match error {
        AllocateError::Refused(refusal) => Ok(match refusal.kind {
            RefusalKind::NoDefaultAffinity => "mem_no_default_affinity",
            RefusalKind::NoDefaultPreferred => "mem_no_default_preferred",
            RefusalKind::CannotExtend => "mem_cannot_extend",
            RefusalKind::NoExtendedPreferred => "mem_no_extended_preferred",
            RefusalKind::ViolatesGroup => "mem_violates_group",
        }),
        other => Err(format!("error: got {other}")),
    }
}

fn same_hints(actual: Option<ProviderHints>, expected: &Expected) -> Result<(), String> {
    let plain = |hint: TopologyHint| (hint.mask.map(|mask| mask.0), hint.preferred);
    let lists = |hints: ProviderHints| -> Option<BTreeMap<_, Vec<_>>> {
        let lists = hints.into_iter().map(|(resource, hints)| {
            let list = hints.as_ref().and_then(HintSet::list)?;
            Some((resource, list.into_iter().map(plain).collect()))
        });
        lists.collect()
    };
    let actual = match actual {
        Some(hints) => Some(lists(hints).ok_or("hints: got some that are not listed")?),
        None => None,
    };
    same("hints", &actual, &expected.hints)
}

fn blocks_changed(
    before: &Assignments,
    after: &Assignments,
) -> BTreeMap<String, Option<Vec<ExpectedBlock>>> {
    let flat = |assignments: &Assignments| -> BTreeMap<String, Vec<ExpectedBlock>> {
        let all = assignments.iter().flat_map(|(pod, containers)| {
            containers
                .iter()
                .map(move |(container, blocks)| (key(pod, container), blocks))
        });
        all.map(|(key, blocks)| {
            let blocks = blocks.iter().map(|block| ExpectedBlock {
                numa_mask: block.nodes.0,
                r#type: block.resource.clone(),
                size: block.bytes,
            });
            (key, blocks.collect())
        })
        .collect()
    };
    let (before, mut changed) = (flat(before), BTreeMap::new());
    let mut after = flat(after);
    for (key, blocks) in before {
        match after.remove(&key) {
            Some(now) if now == blocks => {}
            now => {
                changed.insert(key, now);
            }
        }
    }
    changed.extend(after.into_iter().map(|(key, blocks)| (key, Some(blocks))));
    changed
}

fn key(pod: &PodUid, container: &str) -> String {
    format!("{pod}/{container}")
}

fn full(node: &NodeMemory) -> InitialNode {
    let tables = node.memory.iter().map(|(resource, table)| {
        let table = Table {
            total: table.total,
            system_reserved: table.system_reserved,
            allocatable: table.allocatable,
            reserved: table.reserved,
            free: table.free,
        };
        (resource.clone(), table)
    });
    InitialNode {
        assignments: node.assignments,
        cells: node.cells.iter().collect(),
        memory: tables.collect(),
    }
}

fn short(node: &NodeMemory) -> ChangedNode {
    let amounts = node.memory.iter();
    let amounts = amounts.map(|(resource, own)| (resource.clone(), (own.reserved, own.free)));
    ChangedNode {
        assignments: node.assignments,
        cells: node.cells.iter().collect(),
        reserved_free: amounts.collect(),
    }
}

fn numa_memory(node: &Node) -> NumaMemory {
    let pools = node.hugepages.iter().map(|pool| HugePages {
        page_bytes: pool.page_size_kb * 1024,
        pages: pool.num_pages,
    });
    NumaMemory {
        id: node.id,
        bytes: node.memory,
        huge_pages: pools.collect(),
    }
}

fn container<'a>(pod: &'a Pod, step: &Step) -> Result<&'a Container, String> {
    let name = step.container.as_deref().ok_or("step without container")?;
    let mut all = pod.all_containers();
    all.find(|container| container.name == name)
        .ok_or_else(|| format!("no container {name}"))
}

fn pod(input: &PodInput) -> Result<Pod, String> {
    let (mut init, mut regular) = (Vec::new(), Vec::new());
    for own in &input.containers {
        let list = |milli: Option<i64>, bytes: Option<i64>| {
            let huge_pages = own.hugepages.iter().flatten();
            let mut list: BTreeMap<&str, String> = huge_pages
                .map(|(name, bytes)| (name.as_str(), bytes.to_string()))
                .collect();
            list.extend(milli.map(|milli| ("cpu", format!("{milli}m"))));
            list.extend(bytes.map(|bytes| ("memory", bytes.to_string())));
            list
        };
        let mut container = json!({
            "name": own.name,
            "resources": {
                "requests": list(own.cpu_request_milli, own.memory_request),
                "limits": list(own.cpu_limit_milli, own.memory_limit),
            },
        });
        match own.r#type.as_str() {
            "app" => regular.push(container),
            "init" => init.push(container),
            "sidecar" => {
                container["restartPolicy"] = json!("Always");
                init.push(container);
            }
            other => return Err(format!("unknown container type {other:?}")),
        }
    }
    let pod = json!({
        "metadata": {"uid": input.uid},
        "spec": {"initContainers": init, "containers": regular},
    });
    serde_json::from_value(pod).map_err(|error| error.to_string())
}
