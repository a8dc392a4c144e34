//! What holds after any number of random steps.

use proptest::prelude::*;

use super::*;

/// One step of a random life of a machine.
#[derive(Debug, Clone)]
enum Step {
    /// The next container of a pod, or one that has memory already; with the hint at this place in its own list, if
    /// any.
    Allocate {
        pod: usize,
        container: usize,
        hint: usize,
    },
    RemoveContainer {
        pod: usize,
        container: usize,
    },
    RemovePod {
        pod: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let allocate =
        (0..4usize, 0..4usize, 0..12usize).prop_map(|(pod, container, hint)| Step::Allocate {
            pod,
            container,
            hint,
        });
    let container = (0..4usize, 0..4usize)
        .prop_map(|(pod, container)| Step::RemoveContainer { pod, container });
    let pod = (0..4usize).prop_map(|pod| Step::RemovePod { pod });
    prop::collection::vec(prop_oneof![6 => allocate, 1 => container, 1 => pod], 1..60)
}

fn pods() -> impl Strategy<Value = Vec<Pod>> {
    let kind = prop_oneof![Just(Kind::Init), Just(Kind::Sidecar), Just(Kind::App)];
    let container = (kind, 1..7u64, 0..3u64);
    let containers = prop::collection::vec(container, 4);
    prop::collection::vec(containers, 4).prop_map(|pods| {
        let named = pods.iter().enumerate();
        named
            .map(|(at, containers)| {
                let mut containers: Vec<_> = containers
                    .iter()
                    .map(|(k, m, p)| (*k, m * GI, *p))
                    .collect();
                containers[3].0 = Kind::App;
                pod(&format!("p{at}"), &containers)
            })
            .collect()
    })
}

fn machines() -> impl Strategy<Value = StaticMemory> {
    let node = (0..9u64, 0..4u64).prop_map(|(memory, pages)| (memory * GI, pages));
    prop::collection::vec(node, 1..6).prop_map(machine)
}

/// What holds whatever was asked for.
fn books_are_sound(memory: &StaticMemory) -> Result<(), TestCaseError> {
    let blocks: Vec<&Block> = memory
        .assignments()
        .values()
        .flat_map(|containers| containers.values().flatten())
        .collect();
    for (id, node) in memory.nodes() {
        for table in node.memory.values() {
            prop_assert_eq!(table.reserved + table.free, table.allocatable);
        }
        let here = blocks
            .iter()
            .filter(|block| block.nodes.contains(*id))
            .count();
        prop_assert_eq!(node.assignments, here as u64);
        if here == 0 {
            prop_assert_eq!(node.cells, NumaMask::of(*id));
            prop_assert!(node.memory.values().all(|table| table.reserved == 0));
        }
    }
    Ok(())
}

/// What holds if every container came on one of its hints, and pods leave as a whole.
fn assigned_memory_exists(memory: &StaticMemory) -> Result<(), TestCaseError> {
    for resource in [MEMORY, PAGES] {
        let mut by_set: BTreeMap<NumaMask, u64> = BTreeMap::new();
        for block in memory
            .assignments()
            .values()
            .flat_map(|blocks| blocks.values().flatten())
        {
            if block.resource == resource {
                *by_set.entry(block.nodes).or_default() += block.bytes;
            }
        }
        let sum = |set: NumaMask, amount: fn(&MemoryTable) -> u64| -> u64 {
            set.iter()
                .map(|node| amount(&memory.nodes()[&node].memory[resource]))
                .sum()
        };
        for (set, bytes) in &by_set {
            prop_assert!(*bytes <= sum(*set, |table| table.allocatable));
            prop_assert_eq!(*bytes, sum(*set, |table| table.reserved));
            // Sets are apart.
            prop_assert!(
                by_set
                    .keys()
                    .all(|other| other == set || (*other & *set).is_empty())
            );
        }
    }
    Ok(())
}

/// As the kubelet admits a pod: all its containers in order, and none if one is refused.
fn admit(memory: &mut StaticMemory, pod: &Pod, hint: usize) -> Result<(), TestCaseError> {
    for container in pod.spec.init_containers.iter().chain(&pod.spec.containers) {
        let hint = hint_at(memory, pod, &container.name, hint);
        let before = memory.clone();
        if memory.allocate(pod, container, hint).is_err() {
            prop_assert_eq!(&before, &*memory);
            remove(memory, pod);
            return Ok(());
        }
        assigned_memory_exists(memory)?;
    }
    Ok(())
}

fn remove(memory: &mut StaticMemory, pod: &Pod) {
    for container in pod.all_containers() {
        memory.remove(&pod.uid(), &container.name);
    }
    memory.forget_reusable(&pod.uid());
}

/// The hint at a place in the container's own list, or any.
fn hint_at(memory: &StaticMemory, pod: &Pod, name: &str, place: usize) -> TopologyHint {
    let masks = masks(memory, pod, name);
    masks.get(place).map_or(ANY, |mask| at(*mask))
}

proptest! {
    #[test]
    fn what_is_given_is_there_and_comes_back(empty in machines(), pods in pods(), steps in steps()) {
        let mut memory = empty.clone();
        for step in steps {
            match step {
                Step::Allocate { pod, hint, .. } => admit(&mut memory, &pods[pod], hint)?,
                Step::RemoveContainer { pod, .. } | Step::RemovePod { pod } => {
                    remove(&mut memory, &pods[pod]);
                }
            }
            books_are_sound(&memory)?;
            assigned_memory_exists(&memory)?;
        }
        pods.iter().for_each(|pod| remove(&mut memory, pod));
        prop_assert_eq!(memory.nodes(), empty.nodes());
    }

    #[test]
    fn books_stay_sound_whatever_is_asked(empty in machines(), pods in pods(), steps in steps()) {
        let mut memory = empty.clone();
        let all = (1u64 << empty.nodes().len()) - 1;
        for step in steps {
            match step {
                Step::Allocate { pod, container, hint } => {
                    let hint = if hint == 0 { ANY } else { at(hint as u64 & all) };
                    let before = memory.clone();
                    if allocate(&mut memory, &pods[pod], &format!("c{container}"), hint).is_err() {
                        prop_assert_eq!(&before, &memory);
                    }
                }
                Step::RemoveContainer { pod, container } => {
                    let (uid, name) = (pods[pod].uid(), format!("c{container}"));
                    memory.remove(&uid, &name);
                    if !memory.assignments().contains_key(&uid) {
                        memory.forget_reusable(&uid);
                    }
                    let once = memory.clone();
                    memory.remove(&uid, &name);
                    prop_assert_eq!(&once, &memory);
                }
                Step::RemovePod { pod } => {
                    remove(&mut memory, &pods[pod]);
                }
            }
            books_are_sound(&memory)?;
        }
        pods.iter().for_each(|pod| remove(&mut memory, pod));
        prop_assert_eq!(memory.nodes(), empty.nodes());
    }

    /// The search against the list of all hints.
    #[test]
    fn nothing_in_the_list_is_better(empty in machines(), pods in pods(), steps in steps(), include in 0u64..32) {
        let mut memory = empty;
        for step in steps {
            if let Step::Allocate { pod, hint, .. } = step {
                admit(&mut memory, &pods[pod], hint)?;
            }
        }
        let include = NumaMask(include & ((1 << memory.nodes().len()) - 1));
        for pod in &pods {
            for container in pod.all_containers() {
                let demand = demand::of_container(pod, container).unwrap();
                let candidates = memory.candidates(pod, &demand);
                let list = match candidates.hints().remove(MEMORY) {
                    Some(Some(hints)) => hints.list().unwrap(),
                    _ => Vec::new(),
                };
                let best = list
                    .into_iter()
                    .filter(|hint| include.is_subset(hint.mask.unwrap()))
                    .min_by_key(|hint| (!hint.preferred, hint.mask.unwrap().len(), hint.mask));
                prop_assert_eq!(candidates.narrowest_including(include), best);
            }
        }
    }
}
