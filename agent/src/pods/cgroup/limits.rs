//! Writing a [`CgroupConfig`] into control files, of v1 and v2.

use std::path::Path;
use std::sync::Arc;

use plimsoll_core::kube::cgroup_config::{CgroupConfig, QUOTA_UNLIMITED, SHARES_MIN};

use crate::host::cgroup::{CgroupError, CgroupMounts, CgroupPath, Controller, Hierarchy, Version};
use crate::host::file::{FileError, errno_of, read_text, write_text};
use crate::host::ledger::KnobError;
use crate::host::shown::Show as _;

/// Why a cgroup does not have its limits.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A name that cannot name a cgroup.
    #[error(transparent)]
    Path(#[from] CgroupError),
    /// The specification asks for something that needs a controller which no hierarchy has.
    #[error("{field} needs a cgroup controller: {source}; or take {field} out of the manifest")]
    NoController {
        /// What of the pod asks for it.
        field: String,
        /// Which controller, and what to do.
        #[source]
        source: CgroupError,
    },
    /// The machine has no huge pages of this size.
    #[error("{field}: this kernel has no huge pages of that size ({path} does not exist); see /sys/kernel/mm/hugepages", path = path.shown())]
    NoPageSize {
        /// What of the pod asks for it.
        field: String,
        /// The control file that is missing.
        path: Arc<Path>,
    },
    /// A control file refused its value.
    #[error("{field} = {value}: {source}")]
    Refused {
        /// What of the pod asks for it.
        field: &'static str,
        /// What was written.
        value: String,
        /// The file and the kernel's answer.
        #[source]
        source: KnobError,
    },
    /// The hugetlb control files cannot be listed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl ApplyError {
    /// Whether the cgroup was removed meanwhile.
    pub fn is_vanished(&self) -> bool {
        match self {
            Self::Path(error) => error.is_vanished(),
            Self::Refused { source, .. } => source.is_vanished(),
            Self::File(source) => source.is_vanished(),
            Self::NoController { .. } | Self::NoPageSize { .. } => false,
        }
    }
}

/// How a control file is written: with or without the ledger.
pub(super) type Write<'a> = dyn FnMut(&Path, &str) -> Result<(), KnobError> + 'a;

/// Writes a control file of a cgroup that is in the ledger itself.
///
/// # Errors
/// [`KnobError::Knob`].
pub fn directly(path: &Path, value: &str) -> Result<(), KnobError> {
    write_text(path, value).map_err(KnobError::from)
}

/// Writes the limits of a pod's or container's cgroup. Returns one line for each controller or file that is missing and
/// that the specification did not ask for.
///
/// These are not in the ledger: they are gone with the cgroup, which is.
///
/// # Errors
/// [`ApplyError`] names the pod's field and the controller or file.
pub fn apply(
    mounts: &CgroupMounts,
    cgroup: &CgroupPath,
    config: &CgroupConfig,
) -> Result<Vec<String>, ApplyError> {
    apply_with(mounts, cgroup, config, &mut directly)
}

/// As [`apply`], each file written by `write`.
///
/// # Errors
/// As [`apply`].
pub fn apply_with(
    mounts: &CgroupMounts,
    cgroup: &CgroupPath,
    config: &CgroupConfig,
    write: &mut Write<'_>,
) -> Result<Vec<String>, ApplyError> {
    let mut files = Files {
        mounts,
        cgroup,
        write,
        notes: Vec::new(),
    };
    files.cpu(config)?;
    files.memory(config)?;
    files.pids(config)?;
    files.huge_pages(config)?;
    Ok(files.notes)
}

/// Writes the limits of the cgroup of all pods of a QoS class (`qos_container_manager_linux.go`). A tier without a
/// cgroup is left out, and huge pages stay unlimited at this level (`setHugePagesUnbounded`).
///
/// # Errors
/// [`ApplyError`]. A tier that vanishes meanwhile is no error.
pub fn apply_tier(
    mounts: &CgroupMounts,
    tier: &CgroupPath,
    config: &CgroupConfig,
    write: &mut Write<'_>,
) -> Result<(), ApplyError> {
    let mut files = Files {
        mounts,
        cgroup: tier,
        write,
        notes: Vec::new(),
    };
    match files.cpu(config).and_then(|()| files.memory(config)) {
        Err(error) if !error.is_vanished() => Err(error),
        _ => Ok(()),
    }
}

/// Writes `pids.max` of a cgroup, if there is a limit.
///
/// # Errors
/// [`ApplyError`].
pub fn apply_pids(
    mounts: &CgroupMounts,
    cgroup: &CgroupPath,
    pids_max: Option<u64>,
    write: &mut Write<'_>,
) -> Result<(), ApplyError> {
    let config = CgroupConfig {
        pids_max,
        ..CgroupConfig::default()
    };
    Files {
        mounts,
        cgroup,
        write,
        notes: Vec::new(),
    }
    .pids(&config)
}

/// The control files of one cgroup.
struct Files<'a, 'w> {
    mounts: &'a CgroupMounts,
    cgroup: &'a CgroupPath,
    write: &'a mut Write<'w>,
    notes: Vec<String>,
}

/// Whole pages: what the kernel makes of a number of bytes, so that it reads back as it was written.
fn whole_pages(bytes: u64) -> String {
    let page_bytes = rustix::param::page_size() as u64;
    (bytes / page_bytes * page_bytes).to_string()
}

impl<'a> Files<'a, '_> {
    /// The hierarchy of a controller. A missing one is an error if `is_asked`, else a note.
    fn hierarchy(
        &mut self,
        controller: Controller,
        field: &'static str,
        is_asked: bool,
    ) -> Result<Option<&'a Hierarchy>, ApplyError> {
        match self.mounts.hierarchy_of(controller) {
            Ok(hierarchy) => Ok(Some(hierarchy)),
            Err(source) if is_asked => Err(ApplyError::NoController {
                field: field.to_owned(),
                source,
            }),
            Err(source) => {
                self.notes.push(source.to_string());
                Ok(None)
            }
        }
    }

    fn put(
        &mut self,
        hierarchy: &Hierarchy,
        file: &str,
        field: &'static str,
        value: String,
    ) -> Result<(), ApplyError> {
        let path = hierarchy.dir(self.cgroup).join(file);
        (self.write)(&path, &value).map_err(|source| ApplyError::Refused {
            field,
            value,
            source,
        })
    }

    fn cpu(&mut self, config: &CgroupConfig) -> Result<(), ApplyError> {
        if let (Some(shares), Some(weight)) = (config.cpu_shares, config.cpu_weight) {
            const FIELD: &str = "resources.requests.cpu";
            let is_asked = shares > SHARES_MIN;
            if let Some(hierarchy) = self.hierarchy(Controller::Cpu, FIELD, is_asked)? {
                match hierarchy.version {
                    Version::V1 => self.put(hierarchy, "cpu.shares", FIELD, shares.to_string()),
                    Version::V2 => self.put(hierarchy, "cpu.weight", FIELD, weight.to_string()),
                }?;
            }
        }
        if let (Some(cpu_max), Some(quota), Some(period)) =
            (config.cpu_max(), config.cpu_quota_us, config.cpu_period_us)
        {
            const FIELD: &str = "resources.limits.cpu";
            match self.hierarchy(Controller::Cpu, FIELD, quota > 0)? {
                Some(hierarchy) if hierarchy.version == Version::V1 => {
                    // The period first: a new quota is checked against it.
                    self.put(hierarchy, "cpu.cfs_period_us", FIELD, period.to_string())?;
                    self.lower_burst(hierarchy, "cpu.cfs_burst_us", FIELD, quota)?;
                    let quota = quota.max(QUOTA_UNLIMITED).to_string();
                    self.put(hierarchy, "cpu.cfs_quota_us", FIELD, quota)?;
                }
                Some(hierarchy) => {
                    self.lower_burst(hierarchy, "cpu.max.burst", FIELD, quota)?;
                    self.put(hierarchy, "cpu.max", FIELD, cpu_max)?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// The kernel refuses a quota below the burst (`tg_set_cfs_bandwidth`), which may be that of option `cpuBurst`: it
    /// is earned anew then.
    fn lower_burst(
        &mut self,
        hierarchy: &Hierarchy,
        file: &str,
        field: &'static str,
        quota: i64,
    ) -> Result<(), ApplyError> {
        // Without the file (an older kernel, a cgroup that is gone) there is none; the write of the quota says what is
        // wrong.
        let text = read_text(hierarchy.dir(self.cgroup).join(file)).unwrap_or_default();
        let burst = text.trim().parse::<i64>().unwrap_or(0);
        match quota > 0 && burst > quota {
            true => self.put(hierarchy, file, field, "0".to_owned()),
            false => Ok(()),
        }
    }

    /// A limit of 0 is none, as it is to container runtimes.
    fn memory(&mut self, config: &CgroupConfig) -> Result<(), ApplyError> {
        const LIMIT: &str = "resources.limits.memory";
        let max_bytes = config
            .memory_max_bytes
            .and_then(|bytes| u64::try_from(bytes).ok());
        let max_bytes = max_bytes.filter(|bytes| *bytes > 0);
        let Some(hierarchy) = self.hierarchy(Controller::Memory, LIMIT, max_bytes.is_some())?
        else {
            return Ok(());
        };
        if hierarchy.version == Version::V1 {
            return self.memory_v1(hierarchy, max_bytes, config.swap_max_bytes);
        }
        if let Some(bytes) = max_bytes {
            self.put(hierarchy, "memory.max", LIMIT, whole_pages(bytes))?;
        }
        for (file, bytes) in [
            ("memory.min", config.memory_min_bytes),
            ("memory.low", config.memory_low_bytes),
            ("memory.high", config.memory_high_bytes),
        ] {
            if let Some(bytes) = bytes {
                self.put(
                    hierarchy,
                    file,
                    "featureGates.MemoryQoS",
                    whole_pages(bytes),
                )?;
            }
        }
        if let Some(bytes) = config.swap_max_bytes {
            const SWAP: &str = "memorySwap.swapBehavior";
            match self.put(hierarchy, "memory.swap.max", SWAP, whole_pages(bytes)) {
                // A kernel without swap accounting does not have the file (`swapControllerAvailable`).
                Err(error) if error.is_vanished() && hierarchy.has(self.cgroup) => {
                    let note = "memory.swap.max does not exist: swap is not limited, see the kernel's CONFIG_SWAP and swapaccount=";
                    self.notes.push(note.to_owned());
                }
                result => result?,
            }
        }
        Ok(())
    }

    /// v1 limits memory alone, and memory with swap; the second never below the first.
    fn memory_v1(
        &mut self,
        hierarchy: &Hierarchy,
        max_bytes: Option<u64>,
        swap_max_bytes: Option<u64>,
    ) -> Result<(), ApplyError> {
        const LIMIT: &str = "resources.limits.memory";
        const SWAP: &str = "memorySwap.swapBehavior";
        const BOTH: &str = "memory.memsw.limit_in_bytes";
        let Some(bytes) = max_bytes else {
            return Ok(());
        };
        let limits_swap =
            swap_max_bytes == Some(0) && hierarchy.dir(self.cgroup).join(BOTH).exists();
        if limits_swap {
            self.put(hierarchy, BOTH, SWAP, "-1".to_owned())?;
        }
        self.put(
            hierarchy,
            "memory.limit_in_bytes",
            LIMIT,
            whole_pages(bytes),
        )?;
        if limits_swap {
            self.put(hierarchy, BOTH, SWAP, whole_pages(bytes))?;
        }
        Ok(())
    }

    fn pids(&mut self, config: &CgroupConfig) -> Result<(), ApplyError> {
        const FIELD: &str = "podPidsLimit";
        match config.pids_max {
            Some(max) => match self.hierarchy(Controller::Pids, FIELD, true)? {
                Some(hierarchy) => self.put(hierarchy, "pids.max", FIELD, max.to_string()),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Sizes that the specification does not name get 0, as the kubelet does it (`HugePageSizes` of kuberuntime and of
    /// the cgroup manager).
    fn huge_pages(&mut self, config: &CgroupConfig) -> Result<(), ApplyError> {
        let field = |size: u64| {
            format!(
                "resources.limits.hugepages-{}",
                page_size_name(size).trim_end_matches('B').to_owned() + "i"
            )
        };
        let asked = || {
            config
                .huge_pages_max_bytes
                .iter()
                .filter(|(_, limit)| **limit > 0)
        };
        let hierarchy = match (
            self.mounts.hierarchy_of(Controller::Hugetlb),
            asked().next(),
        ) {
            (Ok(hierarchy), _) => hierarchy,
            (Err(_), None) => return Ok(()),
            (Err(source), Some((size, _))) => {
                return Err(ApplyError::NoController {
                    field: field(*size),
                    source,
                });
            }
        };
        let dir = hierarchy.dir(self.cgroup);
        let (limit_file, reserved_file) = match hierarchy.version {
            Version::V1 => ("limit_in_bytes", "rsvd.limit_in_bytes"),
            Version::V2 => ("max", "rsvd.max"),
        };
        let sizes = page_sizes(&dir, limit_file)?;
        if let Some((size, _)) = asked().find(|(size, _)| !sizes.contains(&page_size_name(**size)))
        {
            let path =
                Arc::from(dir.join(format!("hugetlb.{}.{limit_file}", page_size_name(*size))));
            return Err(ApplyError::NoPageSize {
                field: field(*size),
                path,
            });
        }
        for size in sizes {
            let limit = config
                .huge_pages_max_bytes
                .iter()
                .find(|(bytes, _)| page_size_name(**bytes) == size)
                .map_or(0, |(bytes, limit)| {
                    limit.checked_div(*bytes).unwrap_or(0) * bytes
                });
            for file in [limit_file, reserved_file] {
                let path = dir.join(format!("hugetlb.{size}.{file}"));
                match (self.write)(&path, &limit.to_string()) {
                    Ok(()) => {}
                    Err(error) if error.is_vanished() && file == reserved_file => {} // since 5.7
                    Err(source) => {
                        return Err(ApplyError::Refused {
                            field: "resources.limits.hugepages",
                            value: limit.to_string(),
                            source,
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

/// The page sizes of the machine, from the names of a cgroup's hugetlb files.
fn page_sizes(dir: &Path, limit_file: &str) -> Result<Vec<String>, FileError> {
    let unreadable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => FileError::Vanished {
            path: Arc::from(dir),
        },
        _ => FileError::Unreadable {
            path: Arc::from(dir),
            source: errno_of(&error),
        },
    };
    let mut sizes = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let size = name
            .to_str()
            .and_then(|name| name.strip_prefix("hugetlb."))
            .and_then(|name| name.split_once('.'));
        if let Some((size, _)) = size.filter(|(_, file)| *file == limit_file) {
            sizes.push(size.to_owned());
        }
    }
    sizes.sort_unstable();
    Ok(sizes)
}

/// The kernel's name of a page size in hugetlb control files (mm/hugetlb_cgroup.c, `mem_fmt`).
fn page_size_name(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 30 => format!("{}GB", bytes >> 30),
        _ if bytes >= 1 << 20 => format!("{}MB", bytes >> 20),
        _ => format!("{}KB", bytes >> 10),
    }
}
