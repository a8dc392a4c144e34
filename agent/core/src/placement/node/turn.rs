//! One pod's turn: the providers as the topology manager asks them.

use super::NotAllocated;
use crate::kube::pod::{Container, Pod};
use crate::placement::TopologyHint;
use crate::placement::cpu_static::CpuPolicy;
use crate::placement::device::{Devices, GivenDevices};
use crate::placement::hints::ProviderHints;
use crate::placement::memory::MemoryPolicy;
use crate::placement::numa_mask::NumaMask;
use crate::placement::topology_manager::{Asking, HintProviders, ProvidedHints, Refusal};

/// As they are started.
pub(super) fn in_order(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.init_containers.iter().chain(&pod.spec.containers)
}

/// The providers, while one pod is placed.
pub(super) struct Turn<'a> {
    pub(super) pod: &'a Pod,
    pub(super) containers: &'a [&'a Container],
    /// The machine's.
    pub(super) nodes: NumaMask,
    pub(super) given: Option<&'a GivenDevices>,
    pub(super) devices: &'a mut Devices,
    pub(super) cpus: &'a mut CpuPolicy,
    pub(super) memory: &'a mut MemoryPolicy,
}

impl Turn<'_> {
    fn has_its_cpus(&self, container: &Container) -> bool {
        self.cpus.exclusive().is_some_and(|cpus| {
            let held = cpus.cpus_of(&self.pod.uid(), &container.name);
            held.is_some() && cpus.growth(self.pod, container).is_none()
        })
    }
}

impl HintProviders for Turn<'_> {
    type Error = NotAllocated;

    fn containers(&self) -> usize {
        self.containers.len()
    }

    fn hints(&self, asking: Asking) -> Vec<ProvidedHints> {
        let (mut devices, cpus, memory) = match asking {
            Asking::Pod => (
                self.devices.pod_hints(self.pod),
                self.cpus.pod_hints(self.pod),
                self.memory.pod_hints(self.pod),
            ),
            Asking::Container(place) => {
                let container = self.containers[place];
                (
                    self.devices.hints(self.pod, container),
                    self.cpus.hints(self.pod, container),
                    self.memory.hints(self.pod, container),
                )
            }
        };
        devices.extend(
            self.given
                .map_or_else(ProviderHints::new, |given| match asking {
                    Asking::Pod => given.pod_hints(self.nodes, self.pod),
                    Asking::Container(place) => {
                        given.hints(self.nodes, self.pod, self.containers[place])
                    }
                }),
        );
        vec![
            ProvidedHints {
                provider: "devices",
                hints: devices,
            },
            ProvidedHints {
                provider: "cpu",
                hints: cpus,
            },
            ProvidedHints {
                provider: "memory",
                hints: memory.unwrap_or_default(),
            },
        ]
    }

    fn allocate(&mut self, place: usize, hint: TopologyHint) -> Result<(), NotAllocated> {
        let container = self.containers[place];
        self.devices.allocate(self.pod, container, hint)?;
        // `full-pcpus-only` is checked again for what a container has, and must not take it away after a restart.
        if !self.has_its_cpus(container) {
            self.cpus.allocate(self.pod, container, hint)?;
        }
        self.memory.allocate(self.pod, container, hint)?;
        Ok(())
    }
}

/// A refusal with the container's name in place of its number.
pub(super) fn why(refusal: &Refusal<NotAllocated>, containers: &[&Container]) -> String {
    match refusal {
        Refusal::NotAligned { alignment, .. } => match alignment.asking {
            Asking::Pod => refusal.to_string(),
            Asking::Container(place) => {
                let named = format!("container {}", containers[place].name);
                refusal
                    .to_string()
                    .replacen(&alignment.asking.to_string(), &named, 1)
            }
        },
        // It names pod and container itself.
        Refusal::NotAllocated { source, .. } => source.to_string(),
    }
}
