//! A pod whose requests change while it runs.
//!
//! Problem: a container that grows or shrinks must not be moved, nor move anybody: its caches are warm and its pages
//! are where it runs. Approach: first what shrinks gives back; then what lacks something is aligned with what it has
//! and gets the rest. What shrinks does so in any case, for others were promised it; where something cannot grow the
//! pod keeps what it has, and the refusal names the NUMA nodes that are short.
//!
//! Whoever owns a pod may write any amount into it; what the kubelet has not allocated counts for nothing
//! (`as_allocated`).

use std::borrow::Cow;

use super::turn::{in_order, why};
use super::{NodePlacement, NotPlaced, Turn};
use crate::kube::pod::{Container, Pod};
use crate::kube::quantity::{Format, Quantity};
use crate::kube::resources::{CPU, MEMORY, is_huge_pages};
use crate::placement::numa_mask::NumaMask;
use crate::placement::topology_manager::Refusal;

impl NodePlacement {
    /// The pod, in which a container that is not [allocated](Container::unallocated) requests of what is placed what it
    /// has. A pod that has nothing stays as it is: whether it may be placed is not decided here.
    pub(super) fn as_allocated<'a>(&self, pod: &'a Pod) -> Cow<'a, Pod> {
        let uid = pod.uid();
        let is_allocated = pod.all_containers().all(|container| !container.unallocated);
        if is_allocated || self.assignment_of(&uid).is_empty() {
            return Cow::Borrowed(pod);
        }
        let mut allocated = pod.clone();
        allocated.status.qos_class = Some(pod.qos_class());
        let spec = &mut allocated.spec;
        let containers = spec.containers.iter_mut().chain(&mut spec.init_containers);
        for container in containers.filter(|container| container.unallocated) {
            let requests = &mut container.resources.requests;
            if let Some(books) = self.cpu_books() {
                requests.remove(CPU);
                let of_pod = books.assignments.get(&uid);
                if let Some(cpus) = of_pod.and_then(|of_pod| of_pod.get(&container.name)) {
                    let held = Quantity::from_value(i64::from(cpus.len()), Format::DecimalSI);
                    requests.insert(CPU.to_owned(), held);
                }
            }
            if let Some(memory) = self.memory() {
                requests.retain(|name, _| name != MEMORY && !is_huge_pages(name));
                let of_pod = memory.assignments().get(&uid);
                let blocks = of_pod.and_then(|of_pod| of_pod.get(&container.name));
                requests.extend(blocks.into_iter().flatten().map(|block| {
                    let bytes = i64::try_from(block.bytes).unwrap_or(i64::MAX);
                    let held = Quantity::from_value(bytes, Format::BinarySI);
                    (block.resource.clone(), held)
                }));
            }
        }
        Cow::Owned(allocated)
    }

    /// Whether a container has another amount of CPUs or memory than it requests by now.
    #[must_use]
    pub fn is_resized(&self, pod: &Pod) -> bool {
        self.resizable(pod).any(|container| {
            self.cpus.is_resized(pod, container) || self.memory.is_resized(pod, container)
        })
    }

    /// Those that run beside each other: one that runs to its end before others start is not resized.
    fn resizable<'a>(&self, pod: &'a Pod) -> impl Iterator<Item = &'a Container> {
        in_order(pod).filter(|container| !pod.is_plain_init(&container.name))
    }

    /// Gives the containers of a pod what they request by now; nothing that they keep is moved.
    pub(super) fn resize(&mut self, pod: &Pod) -> Result<(), NotPlaced> {
        let uid = pod.uid();
        let whole = (self.cpus.clone(), self.memory.clone());
        if let Err(refusal) = self.shrink(pod) {
            (self.cpus, self.memory) = whole;
            return Err(self.not_resized(pod, refusal, String::new()));
        }
        let held = self.assignment_of(&uid);
        let is_behind = |container: &Container| {
            pod.is_plain_init(&container.name) && !held.contains_key(&container.name)
        };
        let growing: Vec<&Container> = in_order(pod)
            .filter(|container| {
                let lacks = self.cpus.growth(pod, container).is_some()
                    || self.memory.is_resized(pod, container)
                    || !self.is_served(pod, container);
                lacks && !is_behind(container)
            })
            .collect();
        if growing.is_empty() {
            self.unserved.remove(&uid);
            return Ok(());
        }
        let before = (self.cpus.clone(), self.memory.clone(), self.devices.clone());
        let mut turn = Turn {
            pod,
            containers: &growing,
            nodes: self.machine.node_ids(),
            given: self.given.as_deref(),
            devices: &mut self.devices,
            cpus: &mut self.cpus,
            memory: &mut self.memory,
        };
        match self.manager.admit(&mut turn) {
            Ok(alignments) => {
                let reasons = alignments
                    .iter()
                    .map(|alignment| self.reason(alignment, &growing));
                let reasons = reasons.collect();
                self.memory.settle();
                self.unserved.remove(&uid);
                self.reasons.insert(uid, reasons);
                Ok(())
            }
            Err(refusal) => {
                (self.cpus, self.memory, self.devices) = before;
                let reason = why(&refusal, &growing);
                let short = self.short(pod, &growing);
                if let Refusal::NotAligned { alignment, .. } = &refusal {
                    let reasons = vec![self.reason(alignment, &growing)];
                    self.reasons.insert(uid, reasons);
                }
                Err(self.not_resized(pod, refusal, format!("{reason}{short}")))
            }
        }
    }

    fn shrink(&mut self, pod: &Pod) -> Result<(), Refusal<super::NotAllocated>> {
        let containers: Vec<&Container> = self.resizable(pod).collect();
        for (place, container) in containers.into_iter().enumerate() {
            let memory = self.memory();
            let near = memory.and_then(|memory| memory.memory_nodes(&pod.uid(), &container.name));
            self.cpus
                .shrink(pod, container, near.unwrap_or(NumaMask::EMPTY))
                .map_err(|source| Refusal::NotAllocated {
                    container: place,
                    source: source.into(),
                })?;
            self.memory.shrink(pod, container);
        }
        self.memory.settle();
        Ok(())
    }

    fn not_resized(
        &mut self,
        pod: &Pod,
        refusal: Refusal<super::NotAllocated>,
        reason: String,
    ) -> NotPlaced {
        let reason = match &refusal {
            Refusal::NotAllocated { source, .. } if reason.is_empty() => source.to_string(),
            _ => reason,
        };
        self.unserved.insert(pod.uid(), reason.clone());
        NotPlaced {
            why: reason,
            refusal: Box::new(refusal),
        }
    }

    /// Which NUMA nodes have too little for what a container wants beside what it has there.
    fn short(&self, pod: &Pod, growing: &[&Container]) -> String {
        let mut text = String::new();
        for container in growing {
            let name = &container.name;
            if let Some(growth) = self.cpus.growth(pod, container)
                && growth.free.len() < growth.missing
            {
                text += &format!(
                    "; container {name} has CPUs {} and wants {} more, and NUMA node {} is short of {} (free there: {})",
                    growth.held,
                    growth.missing,
                    growth.nodes,
                    growth.missing - growth.free.len(),
                    match growth.free.is_empty() {
                        true => "none".to_owned(),
                        false => growth.free.to_string(),
                    }
                );
            }
            if let Some(short) = self.memory.not_grown(pod, container) {
                text += &format!("; {short}");
            }
        }
        text
    }
}
