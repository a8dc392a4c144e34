//! What the operator wants: a configuration file with the kubelet's field names, and flags that override it.
//!
//! This is the only place that knows defaults. Fields that mean the same as in a KubeletConfiguration have the same name and
//! notation, so that they can be pasted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_core::duration::{self, DurationError};
use plimsoll_core::engine::EngineConfig;
use plimsoll_core::quantity::Quantity;
use plimsoll_core::signal::Signal;
use plimsoll_core::threshold::{self, ThresholdError, ThresholdSettings};
use serde::Deserialize;

/// The kubelet's default `evictionHard` for memory (pkg/kubelet/apis/config/v1beta1/defaults_linux.go of 1.36).
pub const DEFAULT_EVICTION_HARD: (&str, &str) = ("memory.available", "100Mi");
/// Default of Plimsoll's own signal: enough for an eviction to finish before the kernel's OOM killer starts, also where the
/// kubelet's measure is far from its threshold. `0%` switches it off.
pub const DEFAULT_KERNEL_HARD: (&str, &str) = ("kernelMemory.available", "64Mi");
/// The kubelet's default `evictionPressureTransitionPeriod`.
pub const DEFAULT_TRANSITION_PERIOD: &str = "5m";

/// The configuration file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ConfigFile {
    /// `plimsoll.dev/v1alpha1`, or a kubelet's.
    pub api_version: Option<String>,
    /// Free.
    pub kind: Option<String>,
    /// Signal → quantity or percentage: evict at once, below it.
    pub eviction_hard: Option<BTreeMap<String, String>>,
    /// Signal → quantity or percentage: evict when below it for its grace period.
    pub eviction_soft: BTreeMap<String, String>,
    /// Signal → duration.
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    /// Signal → quantity or percentage that must come back on top of the threshold.
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    /// How long a node condition stays after its last threshold.
    pub eviction_pressure_transition_period: Option<String>,
    /// Upper bound of a soft eviction's grace period, in seconds.
    pub eviction_max_pod_grace_period: i64,
    /// Resource → quantity that pods cannot have: the kubelet and container runtime.
    pub kube_reserved: BTreeMap<String, String>,
    /// Resource → quantity that pods cannot have: the rest of the system.
    pub system_reserved: BTreeMap<String, String>,
    /// `pods` puts node allocatable on the kubepods cgroup; `none` or an empty list does not. Default: `[pods]`.
    pub enforce_node_allocatable: Option<Vec<String>>,
}

/// Flags that override the file.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Eviction (as the kubelet's flags of the same names)")]
pub struct EvictionFlags {
    /// Hard thresholds, as 'memory.available<1Gi,kernelMemory.available<5%' [default: memory.available<100Mi and
    /// kernelMemory.available<64Mi]
    #[arg(long, value_name = "THRESHOLDS")]
    pub eviction_hard: Option<String>,
    /// Soft thresholds, as 'memory.available<2Gi'
    #[arg(long, value_name = "THRESHOLDS")]
    pub eviction_soft: Option<String>,
    /// Grace periods of the soft thresholds, as 'memory.available=1m30s'
    #[arg(long, value_name = "PERIODS")]
    pub eviction_soft_grace_period: Option<String>,
    /// What must come back on top of a threshold, as 'memory.available=200Mi'
    #[arg(long, value_name = "AMOUNTS")]
    pub eviction_minimum_reclaim: Option<String>,
    /// How long MemoryPressure stays after the last threshold, as '30s' [default: 5m]
    #[arg(long, value_name = "DURATION")]
    pub eviction_pressure_transition_period: Option<String>,
    /// Upper bound of a soft eviction's grace period [default: 0]
    #[arg(long, value_name = "SECONDS")]
    pub eviction_max_pod_grace_period: Option<i64>,
}

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: the configuration cannot be read: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{path}: {message}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        message: String,
    },
    /// A flag is not a list of pairs.
    #[error("--{flag}: {entry:?} is not SIGNAL{separator}VALUE; write for example '{example}'")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// The part that is wrong.
        entry: String,
        /// What stands between signal and value.
        separator: char,
        /// How it is written.
        example: &'static str,
    },
    /// A threshold.
    #[error(transparent)]
    Threshold(#[from] ThresholdError),
    /// The transition period.
    #[error("evictionPressureTransitionPeriod: {0}")]
    TransitionPeriod(#[from] DurationError),
    /// The transition period, negative.
    #[error("evictionPressureTransitionPeriod: {0:?} must not be negative")]
    NegativeTransitionPeriod(String),
    /// A reservation.
    #[error("{field}: memory: {value:?} is not a quantity such as 500Mi: {reason}")]
    Reserved {
        /// `kubeReserved` or `systemReserved`.
        field: &'static str,
        /// The value as written.
        value: String,
        /// What is wrong.
        reason: String,
    },
    /// Something that is not enforced here.
    #[error("enforceNodeAllocatable: {0:?} is not known here: use pods or none")]
    Enforce(String),
}

/// The configuration, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// For the engine.
    pub engine: EngineConfig,
    /// Memory that pods cannot have, bytes.
    pub reserved_memory_bytes: u64,
    /// Whether the kubepods cgroup gets node allocatable as its limit.
    pub enforce_pods: bool,
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`] with the file, and line and column where it is malformed.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        serde_saphyr::from_str(&text).map_err(|error| ConfigError::Parse {
            path: path.to_owned(),
            message: error.to_string(),
        })
    }
}

impl Config {
    /// Puts file and flags together and validates the result.
    ///
    /// # Errors
    /// The first [`ConfigError`], naming the field or flag.
    pub fn new(mut file: ConfigFile, flags: &EvictionFlags) -> Result<Self, ConfigError> {
        if let Some(text) = &flags.eviction_hard {
            file.eviction_hard = Some(pairs("eviction-hard", text, '<', "memory.available<1Gi")?);
        }
        if let Some(text) = &flags.eviction_soft {
            file.eviction_soft = pairs("eviction-soft", text, '<', "memory.available<2Gi")?;
        }
        if let Some(text) = &flags.eviction_soft_grace_period {
            file.eviction_soft_grace_period = pairs(
                "eviction-soft-grace-period",
                text,
                '=',
                "memory.available=1m30s",
            )?;
        }
        if let Some(text) = &flags.eviction_minimum_reclaim {
            file.eviction_minimum_reclaim = pairs(
                "eviction-minimum-reclaim",
                text,
                '=',
                "memory.available=200Mi",
            )?;
        }
        if let Some(text) = &flags.eviction_pressure_transition_period {
            file.eviction_pressure_transition_period = Some(text.clone());
        }
        if let Some(seconds) = flags.eviction_max_pod_grace_period {
            file.eviction_max_pod_grace_period = seconds;
        }
        Self::validated(file)
    }

    fn validated(file: ConfigFile) -> Result<Self, ConfigError> {
        let (signal, value) = DEFAULT_EVICTION_HARD;
        let mut hard = file
            .eviction_hard
            .unwrap_or_else(|| BTreeMap::from([(signal.into(), value.into())]));
        let kernel = Signal::KernelMemoryAvailable.row().name;
        debug_assert_eq!(kernel, DEFAULT_KERNEL_HARD.0);
        if !hard.contains_key(kernel) && !file.eviction_soft.contains_key(kernel) {
            hard.insert(kernel.into(), DEFAULT_KERNEL_HARD.1.into());
        }
        let enforce = file
            .enforce_node_allocatable
            .unwrap_or_else(|| vec!["pods".into()]);
        let enforce_pods = enforce.iter().any(|what| what == "pods");
        if let Some(unknown) = enforce
            .iter()
            .find(|what| !["pods", "none", ""].contains(&what.as_str()))
        {
            return Err(ConfigError::Enforce(unknown.clone()));
        }
        let thresholds = threshold::parse(&ThresholdSettings {
            hard,
            soft: file.eviction_soft,
            soft_grace_period: file.eviction_soft_grace_period,
            minimum_reclaim: file.eviction_minimum_reclaim,
            enforce_pods,
        })?;
        let period = file
            .eviction_pressure_transition_period
            .as_deref()
            .unwrap_or(DEFAULT_TRANSITION_PERIOD);
        let pressure_transition_period_ns = u64::try_from(duration::parse_ns(period)?)
            .map_err(|_| ConfigError::NegativeTransitionPeriod(period.into()))?;
        let reserved_memory_bytes = reserved("kubeReserved", &file.kube_reserved)?
            .saturating_add(reserved("systemReserved", &file.system_reserved)?);
        Ok(Self {
            engine: EngineConfig {
                thresholds,
                pressure_transition_period_ns,
                max_pod_grace_period_s: file.eviction_max_pod_grace_period,
                ..EngineConfig::default()
            },
            reserved_memory_bytes,
            enforce_pods,
        })
    }
}

fn reserved(field: &'static str, resources: &BTreeMap<String, String>) -> Result<u64, ConfigError> {
    let Some(value) = resources.get("memory") else {
        return Ok(0);
    };
    let bad = |reason: String| ConfigError::Reserved {
        field,
        value: value.clone(),
        reason,
    };
    let quantity: Quantity = value.parse().map_err(|error| bad(format!("{error}")))?;
    u64::try_from(quantity.value()).map_err(|_| bad("it must not be negative".into()))
}

fn pairs(
    flag: &'static str,
    text: &str,
    separator: char,
    example: &'static str,
) -> Result<BTreeMap<String, String>, ConfigError> {
    let bad = |entry: &str| ConfigError::Flag {
        flag,
        entry: entry.into(),
        separator,
        example,
    };
    let mut map = BTreeMap::new();
    for entry in text
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
    {
        let (signal, value) = entry.split_once(separator).ok_or_else(|| bad(entry))?;
        let (signal, value) = (signal.trim(), value.trim());
        if signal.is_empty() || value.is_empty() {
            return Err(bad(entry));
        }
        map.insert(signal.to_owned(), value.to_owned());
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::threshold::Amount;

    fn of(text: &str) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, text).unwrap();
        Config::new(ConfigFile::read(&path)?, &EvictionFlags::default())
    }

    fn thresholds(config: &Config) -> Vec<(&'static str, Amount)> {
        config
            .engine
            .thresholds
            .iter()
            .map(|threshold| (threshold.signal.row().name, threshold.value))
            .collect()
    }

    #[test]
    fn defaults_are_the_kubelets_and_the_kernels_headroom() {
        let config = of("").unwrap();
        assert_eq!(
            thresholds(&config),
            [
                ("kernelMemory.available", Amount::Absolute(64 << 20)),
                ("memory.available", Amount::Absolute(100 << 20)),
                ("allocatableMemory.available", Amount::Absolute(100 << 20)),
            ]
        );
        assert_eq!(config.engine.pressure_transition_period_ns, 300_000_000_000);
        assert!(config.enforce_pods);
    }

    #[test]
    fn fields_of_a_kubelet_configuration_are_taken() {
        let config = of("kind: KubeletConfiguration\n\
             evictionHard:\n  memory.available: 5%\n  kernelMemory.available: 0%\n\
             evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 30s}\n\
             evictionPressureTransitionPeriod: 10s\nkubeReserved: {memory: 500Mi}\nsystemReserved: {memory: 12Mi, cpu: 100m}\n\
             enforceNodeAllocatable: [none]\n")
        .unwrap();
        assert_eq!(thresholds(&config).len(), 2);
        assert_eq!(config.reserved_memory_bytes, 512 << 20);
        assert!(!config.enforce_pods);
    }

    #[test]
    fn the_example_is_the_defaults_and_more() {
        let example = of(include_str!("../../docs/example-config.yaml")).unwrap();
        let hard = |config: &Config| {
            let mut hard = thresholds(config);
            hard.truncate(2);
            hard
        };
        assert_eq!(hard(&example), hard(&of("").unwrap()));
        assert!(
            example
                .engine
                .thresholds
                .iter()
                .any(|threshold| !threshold.is_hard())
        );
    }

    #[test]
    fn flags_override_the_file() {
        let flags = EvictionFlags {
            eviction_hard: Some("memory.available<1Gi, kernelMemory.available<10%".into()),
            eviction_pressure_transition_period: Some("1s".into()),
            ..EvictionFlags::default()
        };
        let config = Config::new(ConfigFile::default(), &flags).unwrap();
        assert!(thresholds(&config).contains(&("memory.available", Amount::Absolute(1 << 30))));
        assert_eq!(config.engine.pressure_transition_period_ns, 1_000_000_000);
        let bad = EvictionFlags {
            eviction_hard: Some("memory.available=1Gi".into()),
            ..EvictionFlags::default()
        };
        let message = Config::new(ConfigFile::default(), &bad)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("--eviction-hard") && message.contains("memory.available<1Gi"),
            "{message}"
        );
    }

    #[test]
    fn errors_name_line_and_field() {
        let message = |text: &str| of(text).unwrap_err().to_string();
        let unknown = message("evictionHard:\n  memory.available: 1Gi\nevictionHrad: {}\n");
        assert!(
            unknown.contains("evictionHrad") && unknown.contains("line 3"),
            "{unknown}"
        );
        assert!(
            message("evictionHard: {memory.available: 1Qi}")
                .contains("evictionHard: memory.available")
        );
        assert!(message("kubeReserved: {memory: lots}").contains("kubeReserved: memory"));
        assert!(
            message("evictionPressureTransitionPeriod: 5d")
                .contains("evictionPressureTransitionPeriod")
        );
        assert!(message("enforceNodeAllocatable: [system-reserved]").contains("system-reserved"));
    }
}
