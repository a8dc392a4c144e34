//! The cgroups that are not one pod's: kubepods, the two tiers below it, and those that reservations are enforced on.
//!
//! **Problem.** What pods may have together depends on the machine and the configuration; what a tier weighs, and what
//! of its memory is protected, on which pods there are. All of it has to be gone when the agent is. **Approach.**
//! [`Kubepods::make`] makes the cgroups and writes what does not change; [`Kubepods::follow`] writes the rest again
//! when pods came or went. Every write goes through the ledger. The values are the core's ([`node_allocatable`],
//! [`cgroup_config::tiers`]).
//!
//! A limit below what is used already would make the kernel kill: then the limit is what is used, and it follows
//! downwards (`enforceNodeAllocatableCgroups` tries again until evictions have made room; `retrySetMemoryReserve` takes
//! the usage). Source: `pkg/kubelet/cm/{node_container_manager_linux,qos_container_manager_linux}.go` of 1.36.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use plimsoll_core::kube::cgroup_config::{self, CgroupConfig, NodeCapacity, QosSettings};
use plimsoll_core::kube::node_allocatable::{self, Limited, NodeResources, OverReserved, PID};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::kube::quantity::{Format, Quantity};
use plimsoll_core::kube::resources::{CPU, HUGE_PAGES_PREFIX, MEMORY, ResourceList};
use plimsoll_core::model::threshold::eviction_reservation;

use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupMounts, CgroupPath, Controller, Version};
use crate::host::file::{FileError, read_text};
use crate::host::ledger::{KnobError, Ledger};
use crate::host::meminfo::MeminfoFile;
use crate::host::shown::Show as _;
use crate::input::config::Config;
use crate::input::config::settings::NodeSettings;
use crate::pods;
use crate::pods::cgroup::ApplyError;
use crate::pods::registry::Pods;

/// The controllers that limit something here.
const LIMITING: [Controller; 4] = [
    Controller::Cpu,
    Controller::Memory,
    Controller::Pids,
    Controller::Hugetlb,
];
/// Huge page sizes of a machine: more than any has.
const PAGE_SIZES_MAX: usize = 16;

/// Why the cgroups above the pods are not as the configuration wants them.
#[derive(Debug, thiserror::Error)]
pub enum KubepodsError {
    /// A path, or a hierarchy that is missing.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A cgroup cannot be made, or a file cannot be written.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// What the machine has cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A limit cannot be written.
    #[error("{cgroup}: {source}")]
    Apply {
        /// The cgroup.
        cgroup: CgroupPath,
        /// Which value, and why.
        #[source]
        source: ApplyError,
    },
    /// More is reserved than there is.
    #[error("{}", crate::input::error::lines(.0))]
    OverReserved(Vec<OverReserved>),
    /// The cgroup that a reservation is to be enforced on is not there.
    #[error(
        "{field}: {cgroup} does not exist in {mount}: create it, or take {enforcement} out of enforceNodeAllocatable",
        mount = mount.shown()
    )]
    NoReservedCgroup {
        /// The field that names it.
        field: &'static str,
        /// The cgroup.
        cgroup: CgroupPath,
        /// The hierarchy in which it is missing.
        mount: PathBuf,
        /// The value of `enforceNodeAllocatable` that asks for it.
        enforcement: String,
    },
    /// That cgroup is there and does not have a controller that the reservation needs.
    #[error(
        "{field}: {cgroup} does not have the controller {controller}: enable it in cgroup.subtree_control of the cgroup above it, or take {enforcement} out of enforceNodeAllocatable"
    )]
    ReservedCgroupLacks {
        /// The field that names it.
        field: &'static str,
        /// The cgroup.
        cgroup: CgroupPath,
        /// The controller.
        controller: Controller,
        /// The value of `enforceNodeAllocatable` that asks for it.
        enforcement: String,
    },
    /// The field that names that cgroup is not set.
    #[error(
        "{field} is not set, and enforceNodeAllocatable has {enforcement}: name a cgroup, or take it out"
    )]
    ReservedCgroupNotNamed {
        /// The field.
        field: &'static str,
        /// The value of `enforceNodeAllocatable` that asks for it.
        enforcement: String,
    },
}

/// Something that cannot be enforced on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absent {
    /// No hierarchy has the controller.
    Controller(Controller),
    /// The controller is there, and cannot be passed on to the pods.
    NotDelegated(String),
    /// Memory QoS is on, and memory is on cgroup v1.
    MemoryQos,
    /// Pods may swap, and the kernel cannot limit that.
    SwapLimit,
    /// The ledger takes nothing, so that no setting is changed.
    NotWritten(String),
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller(controller) => {
                let lost = match controller {
                    Controller::Cpu => "pods' shares and limits of CPU",
                    Controller::Pids => "podPidsLimit and the reservation of pid",
                    Controller::Hugetlb => "limits of huge pages",
                    _ => "its limits",
                };
                write!(
                    f,
                    "cgroup controller {controller} is not available: {lost} are not enforced"
                )
            }
            Self::NotDelegated(why) => write!(
                f,
                "the cgroups above the pods do not have all controllers: {why}"
            ),
            Self::NotWritten(why) => write!(
                f,
                "limits and reservations of the cgroups above the pods stay as they are: {why}"
            ),
            Self::MemoryQos => write!(
                f,
                "featureGates.MemoryQoS needs cgroup v2, and memory is on v1 here: memory.min, memory.low and memory.high are not set"
            ),
            Self::SwapLimit => write!(
                f,
                "memorySwap.swapBehavior: this kernel has no separate swap limit: pods do not swap, or swap without limit"
            ),
        }
    }
}

/// What the machine has, by resource: what the kubelet calls its internal capacity, without disk.
fn machine(host: &HostRoot, memory_bytes: u64) -> Result<ResourceList, FileError> {
    let whole = |value: u64| {
        Quantity::from_value(i64::try_from(value).unwrap_or(i64::MAX), Format::BinarySI)
    };
    let mut capacity = ResourceList::from([(MEMORY.to_owned(), whole(memory_bytes))]);
    let online = read_text(host.sysfs("devices/system/cpu/online"))?;
    capacity.insert(CPU.to_owned(), whole(count_cpus(online.trim())));
    // `pkg/kubelet/stats/pidlimit`: whichever is reached first.
    let limits = ["sys/kernel/pid_max", "sys/kernel/threads-max"];
    let pids = limits
        .iter()
        .filter_map(|file| read_text(host.procfs(file)).ok()?.trim().parse().ok())
        .min();
    if let Some(pids) = pids {
        capacity.insert(PID.to_owned(), whole(pids));
    }
    // Without the directory the kernel has no huge pages.
    let sizes = std::fs::read_dir(host.sysfs("kernel/mm/hugepages"))
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    for entry in sizes.take(PAGE_SIZES_MAX) {
        let name = entry.file_name();
        let kib = name
            .to_str()
            .and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB"));
        let Some(kib) = kib.and_then(|kib| kib.parse::<u64>().ok()) else {
            continue;
        };
        let pages: u64 = read_text(entry.path().join("nr_hugepages"))?
            .trim()
            .parse()
            .unwrap_or(0);
        let resource = format!("{HUGE_PAGES_PREFIX}{kib}Ki");
        capacity.insert(resource, whole(pages.saturating_mul(kib << 10)));
    }
    Ok(capacity)
}

/// How many are in a list such as `0-3,8`.
fn count_cpus(list: &str) -> u64 {
    list.split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            Some((last + 1).saturating_sub(first))
        })
        .sum()
}

fn resources(
    host: &HostRoot,
    config: &Config,
    memory_bytes: u64,
) -> Result<NodeResources, FileError> {
    let capacity = machine(host, memory_bytes)?;
    Ok(NodeResources {
        eviction_hard: eviction_reservation(
            &config.engine.thresholds,
            &config.thresholds.hard,
            &capacity,
        ),
        capacity,
        kube_reserved: config.node.kube_reserved.clone(),
        system_reserved: config.node.system_reserved.clone(),
    })
}

/// What is kept from pods of each resource, hard eviction thresholds included.
///
/// # Errors
/// [`FileError`] when what the machine has cannot be read.
pub fn reservation(host: &HostRoot, config: &Config) -> Result<ResourceList, FileError> {
    let memory = MeminfoFile::open(host)?.read()?;
    Ok(resources(host, config, memory.total)?.reservation())
}

fn capacity_of(
    host: &HostRoot,
    mounts: &CgroupMounts,
    config: &Config,
) -> Result<(NodeCapacity, NodeResources), KubepodsError> {
    let memory = MeminfoFile::open(host)?.read()?;
    let resources = resources(host, config, memory.total)?;
    let allocatable = resources.allocatable_absolute();
    let allocatable_bytes = allocatable.get(MEMORY).map_or(0, Quantity::value);
    let capacity = NodeCapacity {
        is_cgroup_v2: mounts.hierarchy_of(Controller::Memory)?.version == Version::V2,
        memory_bytes: memory.total,
        swap_bytes: memory.swap_total,
        allocatable_memory_bytes: u64::try_from(allocatable_bytes).unwrap_or(0),
        page_bytes: rustix::param::page_size() as u64,
    };
    Ok((capacity, resources))
}

/// What of this machine takes part in its cgroups' configuration.
///
/// # Errors
/// [`KubepodsError::File`] or [`KubepodsError::Cgroup`] when it cannot be read.
pub fn capacity(
    host: &HostRoot,
    mounts: &CgroupMounts,
    config: &Config,
) -> Result<NodeCapacity, KubepodsError> {
    Ok(capacity_of(host, mounts, config)?.0)
}

/// kubepods and its tiers, made and kept.
#[derive(Debug)]
pub struct Kubepods {
    mounts: CgroupMounts,
    cgroup_root: CgroupPath,
    settings: QosSettings,
    capacity: NodeCapacity,
    /// Of kubepods, what does not depend on the pods.
    node: CgroupConfig,
    ledger: Ledger,
    /// [`Pods::generation`] of what is written; `None`: nothing is, or a limit is held above its value by what is used.
    written: Option<u64>,
    /// The last error, and for which pods: it has been said.
    failed: Option<(u64, String)>,
}

impl Kubepods {
    /// Makes the cgroups and limits kubepods to node allocatable, or to the node's capacity where `pods` are not
    /// enforced; enforces reservations. Returns also what this machine lacks.
    ///
    /// # Errors
    /// [`KubepodsError`]; what was changed until then is in the ledger.
    pub fn make(
        host: &HostRoot,
        mounts: &CgroupMounts,
        cgroup_root: &CgroupPath,
        config: &Config,
        mut ledger: Ledger,
    ) -> Result<(Self, Vec<Absent>), KubepodsError> {
        let (capacity, resources) = capacity_of(host, mounts, config)?;
        resources.validate().map_err(KubepodsError::OverReserved)?;
        let path = pods::cgroup::kubepods_path(cgroup_root)?;
        let memory = mounts.hierarchy_of(Controller::Memory)?;
        ledger.create_cgroup(memory, &path, &[Controller::Memory])?;
        let mut absent = absent(mounts, &config.cgroups.qos, &capacity);
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            let tier = pods::cgroup::tier_path(cgroup_root, class)?;
            if let Err(error) = pods::cgroup::create(mounts, &tier, &mut ledger) {
                let lacks = Absent::NotDelegated(error.to_string());
                if !absent.contains(&lacks) {
                    absent.push(lacks);
                }
            }
        }
        let list = if config.enforces_pods() {
            resources.allocatable_absolute()
        } else {
            resources.capacity.clone()
        };
        let mut kubepods = Self {
            mounts: mounts.clone(),
            cgroup_root: cgroup_root.clone(),
            settings: config.cgroups.qos,
            capacity,
            node: node_allocatable::cgroup_config(&list, Limited::All),
            ledger,
            written: None,
            failed: None,
        };
        let written = kubepods
            .write(&[], &mut false)
            .and_then(|()| kubepods.enforce_reservations(&config.node));
        match written {
            Err(error) if kubepods.ledger.is_closed() => {
                absent.push(Absent::NotWritten(error.to_string()));
            }
            written => written?,
        }
        Ok((kubepods, absent))
    }

    /// What of the machine takes part in pods' limits.
    pub fn capacity(&self) -> NodeCapacity {
        self.capacity
    }

    /// Writes what depends on the pods, if they have changed since. Not for the hot path.
    ///
    /// # Errors
    /// [`KubepodsError`]; it is tried again when pods change, and while a limit is held above its value, which says the
    /// same error once.
    pub fn follow(&mut self, pods: &Pods) -> Result<(), KubepodsError> {
        if self.written == Some(pods.generation()) {
            return Ok(());
        }
        let was_held = self.written.is_none();
        let generation = pods.generation();
        self.written = Some(generation);
        let pods: Vec<&Pod> = pods.iter().map(AsRef::as_ref).collect();
        let mut is_held = false;
        let result = self.write(&pods, &mut is_held);
        // A limit that is held above its value is to follow what is used, also after an error.
        if is_held || was_held && result.is_err() {
            self.written = None;
        }
        // The same error every second helps nobody.
        let error = result.as_ref().err();
        let failed = error.map(|error| (generation, error.to_string()));
        let is_said = failed.is_some() && self.failed == failed;
        self.failed = failed;
        if is_said { Ok(()) } else { result }
    }

    /// Sets `is_held` if a limit is held above its value.
    fn write(&mut self, pods: &[&Pod], is_held: &mut bool) -> Result<(), KubepodsError> {
        let tiers = cgroup_config::tiers(pods.iter().copied(), &self.settings, &self.capacity);
        let kubepods = pods::cgroup::kubepods_path(&self.cgroup_root)?;
        let mut config = CgroupConfig {
            memory_min_bytes: tiers.kubepods.memory_min_bytes,
            ..self.node.clone()
        };
        *is_held |= self.hold(&kubepods, &mut config);
        // Said once, when the cgroups were made.
        self.without_missing(&mut config);
        let ledger = &mut self.ledger;
        pods::cgroup::apply_with(&self.mounts, &kubepods, &config, &mut |path, value| {
            ledger.write(path, value)
        })
        .map_err(|source| KubepodsError::Apply {
            cgroup: kubepods,
            source,
        })?;
        for (class, mut config) in [
            (QosClass::Burstable, tiers.burstable),
            (QosClass::BestEffort, tiers.best_effort),
        ] {
            let tier = pods::cgroup::tier_path(&self.cgroup_root, class)?;
            *is_held |= self.hold(&tier, &mut config);
            self.without_missing(&mut config);
            let ledger = &mut self.ledger;
            pods::cgroup::apply_tier(&self.mounts, &tier, &config, &mut |path, value| {
                ledger.write(path, value)
            })
            .map_err(|source| KubepodsError::Apply {
                cgroup: tier,
                source,
            })?;
        }
        Ok(())
    }

    /// Raises a memory limit to what is used already. Returns whether that was needed.
    fn hold(&self, cgroup: &CgroupPath, config: &mut CgroupConfig) -> bool {
        let Some(limit_bytes) = config.memory_max_bytes else {
            return false;
        };
        let used_bytes = self.used_bytes(cgroup).unwrap_or(0);
        let floor_bytes = used_bytes.max(self.capacity.page_bytes);
        let floor_bytes = i64::try_from(floor_bytes).unwrap_or(i64::MAX);
        if floor_bytes <= limit_bytes {
            return false;
        }
        config.memory_max_bytes = Some(floor_bytes);
        true
    }

    fn used_bytes(&self, cgroup: &CgroupPath) -> Option<u64> {
        let memory = self.mounts.hierarchy_of(Controller::Memory).ok()?;
        let file = match memory.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        read_text(memory.dir(cgroup).join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// Takes out what no controller here can enforce.
    fn without_missing(&self, config: &mut CgroupConfig) {
        let has = |controller| self.mounts.hierarchy_of(controller).is_ok();
        if !has(Controller::Cpu) {
            config.cpu_shares = None;
        }
        if !has(Controller::Pids) {
            config.pids_max = None;
        }
        if !has(Controller::Hugetlb) {
            config.huge_pages_max_bytes = BTreeMap::new();
        }
    }

    /// The first controller that a cgroup needs for these limits and that has not been passed on to it (v2).
    fn lacks(&self, cgroup: &CgroupPath, config: &CgroupConfig) -> Option<Controller> {
        [
            (
                Controller::Cpu,
                "cpu.weight",
                config.cpu_shares.is_some() && config.cpu_weight.is_some(),
            ),
            (
                Controller::Memory,
                "memory.max",
                config.memory_max_bytes.is_some(),
            ),
            (Controller::Pids, "pids.max", config.pids_max.is_some()),
        ]
        .into_iter()
        .filter(|(_, _, is_needed)| *is_needed)
        .find_map(|(controller, file, _)| {
            let hierarchy = self.mounts.hierarchy_of(controller).ok()?;
            let is_missing =
                hierarchy.version == Version::V2 && !hierarchy.dir(cgroup).join(file).exists();
            is_missing.then_some(controller)
        })
    }

    /// Limits the cgroups of the system and of the kubelet to what is reserved for them, where `enforceNodeAllocatable`
    /// says so.
    fn enforce_reservations(&mut self, node: &NodeSettings) -> Result<(), KubepodsError> {
        for (name, field, cgroup, reserved) in [
            (
                "system-reserved",
                "systemReservedCgroup",
                &node.system_reserved_cgroup,
                &node.system_reserved,
            ),
            (
                "kube-reserved",
                "kubeReservedCgroup",
                &node.kube_reserved_cgroup,
                &node.kube_reserved,
            ),
        ] {
            let compressible = format!("{name}-compressible");
            let (enforcement, limited) = if node.enforce.contains(name) {
                (name.to_owned(), Limited::All)
            } else if node.enforce.contains(&compressible) {
                (compressible, Limited::Compressible)
            } else {
                continue;
            };
            let cgroup = cgroup
                .as_deref()
                .filter(|cgroup| !cgroup.is_empty())
                .ok_or_else(|| KubepodsError::ReservedCgroupNotNamed {
                    field,
                    enforcement: enforcement.clone(),
                })?;
            let cgroup = CgroupPath::new(cgroup)?;
            let mut config = node_allocatable::cgroup_config(reserved, limited);
            self.without_missing(&mut config);
            for controller in LIMITING {
                if let Ok(hierarchy) = self.mounts.hierarchy_of(controller)
                    && !hierarchy.has(&cgroup)
                {
                    return Err(KubepodsError::NoReservedCgroup {
                        field,
                        cgroup,
                        mount: hierarchy.mount.clone(),
                        enforcement,
                    });
                }
            }
            if let Some(controller) = self.lacks(&cgroup, &config) {
                return Err(KubepodsError::ReservedCgroupLacks {
                    field,
                    cgroup,
                    controller,
                    enforcement,
                });
            }
            self.hold(&cgroup, &mut config);
            let pids_max = config.pids_max;
            let ledger = &mut self.ledger;
            let mut write = |path: &std::path::Path, value: &str| ledger.write(path, value);
            // Huge pages cannot be reserved, so none of its files is touched.
            pods::cgroup::apply_tier(&self.mounts, &cgroup, &config, &mut write)
                .and_then(|()| {
                    pods::cgroup::apply_pids(&self.mounts, &cgroup, pids_max, &mut write)
                })
                .map_err(|source| KubepodsError::Apply { cgroup, source })?;
        }
        Ok(())
    }
}

/// What the settings ask for and this machine cannot do.
fn absent(mounts: &CgroupMounts, settings: &QosSettings, capacity: &NodeCapacity) -> Vec<Absent> {
    let mut absent: Vec<Absent> = LIMITING
        .into_iter()
        .filter(|controller| mounts.hierarchy_of(*controller).is_err())
        .map(Absent::Controller)
        .collect();
    if settings.memory_qos && !capacity.is_cgroup_v2 {
        absent.push(Absent::MemoryQos);
    }
    if settings.swap_behavior == cgroup_config::SwapBehavior::LimitedSwap && !capacity.is_cgroup_v2
    {
        absent.push(Absent::SwapLimit);
    }
    absent
}

#[cfg(test)]
mod tests;
