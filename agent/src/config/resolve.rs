//! From a file and flags to what is in force: defaults, overrides, validation, [`Config`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use plimsoll_core::cgroup_config::CgroupOptions;
use plimsoll_core::engine::EngineConfig;
use plimsoll_core::resources::{CPU, MEMORY, ResourceList};
use plimsoll_core::signal::{SIGNALS, Signal};
use plimsoll_core::threshold::{self, Threshold, ThresholdSettings};

use super::document::{Entry, Node, Origin, Value};
use super::flags::EvictionFlags;
use super::kubelet::{self, DEFAULT_EVICTION_HARD, FIELDS};
use super::plimsoll::{self, PlimsollOptions};
use super::problem::{Problem, Problems};
use super::rules::{self, GATES};
use super::schema::{self, Class};
use super::tree::Tree;
use super::{ConfigError, ConfigFile};

/// Default of Plimsoll's own signal: enough for an eviction to finish before the kernel's OOM killer starts, also where the
/// kubelet's measure is far from its threshold. `0%` switches it off.
pub const DEFAULT_KERNEL_HARD: (&str, &str) = ("kernelMemory.available", "64Mi");

/// Feature gates that change eviction, QoS or OOM handling in the kubelet and are not read here, with their defaults in 1.36.
const OTHER_GATES: [(&str, bool); 5] = [
    ("DisableCPUQuotaWithExclusiveCPUs", true),
    ("InPlacePodVerticalScaling", true),
    ("KubeletSeparateDiskGC", true),
    ("LocalStorageCapacityIsolationFSQuotaMonitoring", false),
    ("PodLevelResources", true),
];

/// The configuration, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// For the engine.
    pub engine: EngineConfig,
    /// What is kept from pods, and where that is enforced.
    pub node: NodeSettings,
    /// Where pods' cgroups are, and what is in them.
    pub cgroups: CgroupSettings,
    /// What disks are kept free of.
    pub storage: StorageSettings,
    /// `oomScoreAdj`: of the kubelet's process.
    pub oom_score_adj: i32,
    /// `failCgroupV1`: refuse to start on cgroup v1.
    pub fail_cgroup_v1: bool,
    /// `featureGates`, as far as the file sets them.
    pub feature_gates: BTreeMap<String, bool>,
}

/// What is kept from pods, and where that is enforced.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSettings {
    /// `kubeReserved`, without `cpu` where `reservedSystemCPUs` is set.
    pub kube_reserved: ResourceList,
    /// `systemReserved`; `cpu` is the number of `reservedSystemCPUs` where that is set.
    pub system_reserved: ResourceList,
    /// `reservedSystemCPUs`.
    pub reserved_cpus: BTreeSet<u32>,
    /// `enforceNodeAllocatable`; empty for `none`.
    pub enforce: BTreeSet<String>,
    /// `kubeReservedCgroup`.
    pub kube_reserved_cgroup: Option<String>,
    /// `systemReservedCgroup`.
    pub system_reserved_cgroup: Option<String>,
    /// `maxPods`.
    pub max_pods: u32,
    /// `podsPerCore`; `None` for no limit.
    pub pods_per_core: Option<u32>,
}

/// Where pods' cgroups are, and what is in them.
#[derive(Debug, Clone, PartialEq)]
pub struct CgroupSettings {
    /// `cgroupRoot`; empty for the root.
    pub root: String,
    /// `cpuCFSQuota`, `cpuCFSQuotaPeriod` and `podPidsLimit`.
    pub options: CgroupOptions,
    /// `singleProcessOOMKill`; `None`: false on cgroup v2, true on v1.
    pub single_process_oom_kill: Option<bool>,
    /// Feature gate `MemoryQoS`.
    pub memory_qos: bool,
    /// `memoryThrottlingFactor`.
    pub memory_throttling_factor: f64,
    /// `memoryReservationPolicy` is `TieredReservation`.
    pub tiered_reservation: bool,
    /// `memorySwap.swapBehavior` is `LimitedSwap`.
    pub limited_swap: bool,
    /// `qosReserved` for memory, in percent, where the feature gate `QOSReserved` is on.
    pub qos_reserved_memory_percent: Option<i64>,
}

/// What disks are kept free of.
#[derive(Debug, Clone, PartialEq)]
pub struct StorageSettings {
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// `containerLogMaxSize`, bytes.
    pub container_log_max_bytes: u64,
    /// `containerLogMaxFiles`.
    pub container_log_max_files: u32,
    /// `volumeStatsAggPeriod`, nanoseconds.
    pub volume_stats_period_ns: u64,
    /// `imageGCHighThresholdPercent`.
    pub image_gc_high_percent: u32,
    /// `imageGCLowThresholdPercent`.
    pub image_gc_low_percent: u32,
    /// `imageMinimumGCAge`, nanoseconds.
    pub image_min_age_ns: u64,
    /// `imageMaximumGCAge`, nanoseconds; `None` for never.
    pub image_max_age_ns: Option<u64>,
}

impl Config {
    /// Puts file and flags together and validates the result.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with everything that is wrong.
    pub fn new(file: ConfigFile, flags: &EvictionFlags) -> Result<Self, ConfigError> {
        Ok(Effective::new(file, flags)?.config)
    }

    /// Memory that pods cannot have, bytes.
    pub fn reserved_memory_bytes(&self) -> u64 {
        let bytes = |list: &ResourceList| {
            list.get(MEMORY)
                .map_or(0, |quantity| u64::try_from(quantity.value()).unwrap_or(0))
        };
        bytes(&self.node.kube_reserved).saturating_add(bytes(&self.node.system_reserved))
    }

    /// Whether the kubepods cgroup gets node allocatable as its limit.
    pub fn enforces_pods(&self) -> bool {
        self.node.enforce.contains("pods")
    }
}

/// What is in force, with where each value comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// The file; `None` where there is none.
    pub path: Option<PathBuf>,
    /// All fields, with defaults.
    pub root: Node,
    /// The same, for the agent.
    pub config: Config,
}

/// Something that is accepted, and does not do what the kubelet would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Where the value comes from.
    pub origin: Origin,
    /// The field.
    pub field: String,
    /// What is different.
    pub text: String,
}

impl Effective {
    /// Puts file and flags together and validates the result.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with everything that is wrong.
    pub fn new(file: ConfigFile, flags: &EvictionFlags) -> Result<Self, ConfigError> {
        let ConfigFile { path, mut root } = file;
        let mut problems = Vec::new();
        if let Err(problem) = kind(&root) {
            // What is in a file of another kind is no error of its own.
            return Err(Problems::new(path.as_deref(), vec![problem]).into());
        }
        schema::check(&mut root, FIELDS, &mut problems);
        default_thresholds(&mut root);
        override_with(&mut root, flags, &mut problems);
        kernel_threshold(&mut root);
        plimsoll::complete(&mut root, &mut problems);
        schema::add_defaults(&mut root, FIELDS);
        depending_defaults(&mut root);

        let tree = Tree(&root);
        rules::check(tree, &mut problems);
        let thresholds = thresholds(tree, &mut problems);
        if !problems.is_empty() {
            return Err(Problems::new(path.as_deref(), problems).into());
        }
        let config = config(tree, thresholds);
        Ok(Self { path, root, config })
    }

    /// What is set and not acted on as the kubelet would.
    pub fn remarks(&self) -> Vec<Remark> {
        let tree = Tree(&self.root);
        let mut remarks = Vec::new();
        let mut say = |origin: Origin, field: String, text: String| {
            remarks.push(Remark {
                origin,
                field,
                text,
            });
        };
        for field in FIELDS.iter().filter(|field| field.class == Class::Later) {
            let Some(node) = self.root.get(field.name) else {
                continue;
            };
            if node.origin == Origin::Default || same_as_default(node, field) {
                continue;
            }
            let text = match field.name {
                "cgroupDriver" => {
                    "systemd: pods' cgroups are made with the names and in the way of the cgroupfs driver all the same; pods of a kubelet with this driver are not seen"
                        .to_owned()
                }
                _ => format!("accepted, and not acted on yet: {}", field.meaning),
            };
            say(node.origin, field.name.to_owned(), text);
        }
        for list in ["kubeReserved", "systemReserved"] {
            for (name, quantity, origin) in tree.quantities(list) {
                if name != MEMORY && !quantity.is_zero() {
                    say(
                        origin,
                        format!("{list}: {name}"),
                        "accepted, and not acted on yet: only memory is kept from pods".to_owned(),
                    );
                }
            }
        }
        for (item, origin) in tree.texts("enforceNodeAllocatable") {
            if !["pods", "none"].contains(&item) {
                say(
                    origin,
                    format!("enforceNodeAllocatable: {item}"),
                    "accepted, and not acted on yet: only pods is enforced".to_owned(),
                );
            }
        }
        let later = GATES.iter().filter(|(name, _)| {
            // The field that the gate lets pass is remarked on by itself.
            *name == "MemoryQoS"
        });
        for (name, default) in later.chain(&OTHER_GATES) {
            let gates = tree.object("featureGates");
            if let Some(gates) = gates
                && gates.bool(name) == Some(!default)
            {
                say(
                    gates.given(name).unwrap_or(Origin::Default),
                    format!("featureGates: {name}"),
                    "accepted, and not acted on yet".to_owned(),
                );
            }
        }
        remarks.sort_by_key(|remark| match remark.origin {
            Origin::File { line } => line,
            Origin::Default | Origin::Flag(_) => 0,
        });
        remarks
    }
}

fn same_as_default(node: &Node, field: &schema::Field) -> bool {
    let Some(default) = schema::default_value(field) else {
        return false;
    };
    let mut plain = node.clone();
    plain.set_origin(Origin::Default);
    plain.value == default
}

/// Whether `apiVersion` and `kind` are a kubelet's or ours. Either may be left out.
fn kind(root: &Node) -> Result<(), Problem> {
    const KINDS: [(&str, &str); 2] = [
        (kubelet::API_VERSION, kubelet::KIND),
        (plimsoll::API_VERSION, plimsoll::KIND),
    ];
    let tree = Tree(root);
    let wanted = || {
        let kinds: Vec<String> = KINDS
            .iter()
            .map(|(version, kind)| format!("{kind} with apiVersion {version}"))
            .collect();
        format!("use {}", kinds.join(", or "))
    };
    let api_version = tree.text("apiVersion").filter(|text| !text.is_empty());
    let kind = tree.text("kind").filter(|text| !text.is_empty());
    if let Some(kind) = kind
        && !KINDS.iter().any(|(_, known)| *known == kind)
    {
        let reason = format!("{kind:?} is not a configuration of the node: {}", wanted());
        return Err(tree.problem("kind", reason));
    }
    if let Some(version) = api_version
        && !KINDS
            .iter()
            .any(|(known, of)| *known == version && kind.is_none_or(|kind| kind == *of))
    {
        let of = kind.map_or(String::new(), |kind| format!(" of a {kind}"));
        let reason = format!("{version:?} is not a known version{of}: {}", wanted());
        return Err(tree.problem("apiVersion", reason));
    }
    Ok(())
}

fn entries_mut<'a>(root: &'a mut Node, field: &str) -> Option<&'a mut Vec<Entry>> {
    let Value::Map(fields) = &mut root.value else {
        return None;
    };
    let entry = fields.iter_mut().find(|entry| entry.key == field)?;
    match &mut entry.node.value {
        Value::Map(entries) => Some(entries),
        _ => None,
    }
}

fn default_entry(name: &str, value: Value) -> Entry {
    Entry {
        key: name.to_owned(),
        origin: Origin::Default,
        node: Node::default_of(value),
    }
}

/// The kubelet's default thresholds: where the file has no `evictionHard`, and with `mergeDefaultEvictionSettings` for each signal
/// that it does not name. A flag, set afterwards, replaces them all (`loadConfigFile` in `cmd/kubelet/app/server.go`).
fn default_thresholds(root: &mut Node) {
    let merge = Tree(root).bool("mergeDefaultEvictionSettings") == Some(true);
    let given = Tree(root).has("evictionHard");
    if given && !merge {
        return;
    }
    if !given && let Value::Map(fields) = &mut root.value {
        fields.push(default_entry("evictionHard", Value::Map(Vec::new())));
    }
    let Some(hard) = entries_mut(root, "evictionHard") else {
        return;
    };
    for (signal, amount) in DEFAULT_EVICTION_HARD {
        if !hard.iter().any(|entry| entry.key == signal) {
            hard.push(default_entry(signal, Value::Text(amount.to_owned())));
        }
    }
}

/// Our own default threshold, unless the signal is in `evictionHard` or `evictionSoft`.
fn kernel_threshold(root: &mut Node) {
    let (signal, amount) = DEFAULT_KERNEL_HARD;
    let named = ["evictionHard", "evictionSoft"].iter().any(|field| {
        root.get(field)
            .is_some_and(|node| node.get(signal).is_some())
    });
    if named {
        return;
    }
    if let Some(hard) = entries_mut(root, "evictionHard") {
        hard.push(default_entry(signal, Value::Text(amount.to_owned())));
    }
}

/// Puts what flags say in the place of what the file says, checked in the same way.
fn override_with(root: &mut Node, flags: &EvictionFlags, problems: &mut Vec<Problem>) {
    let mut given = Node::default_of(Value::Map(flags.fields(problems)));
    schema::check(&mut given, FIELDS, problems);
    let (Value::Map(fields), Value::Map(given)) = (&mut root.value, given.value) else {
        return;
    };
    for entry in given {
        fields.retain(|field| field.key != entry.key);
        fields.push(entry);
    }
}

/// Defaults that depend on other fields (`SetDefaults_KubeletConfiguration`).
fn depending_defaults(root: &mut Node) {
    let tree = Tree(root);
    let report = tree
        .given("nodeStatusReportFrequency")
        .is_none()
        .then(|| tree.given("nodeStatusUpdateFrequency"))
        .flatten()
        .and_then(|_| tree.text("nodeStatusUpdateFrequency"))
        .map(str::to_owned);
    let parallel = tree
        .integer("maxParallelImagePulls")
        .is_some_and(|pulls| pulls > 1);
    let serialize = !tree.has("serializeImagePulls");
    let unlimited = tree.integer("podPidsLimit").is_some_and(|limit| limit < 0);
    let Value::Map(fields) = &mut root.value else {
        return;
    };
    let mut set = |name: &str, value: Value| {
        fields.retain(|field| field.key != name);
        fields.push(default_entry(name, value));
    };
    if let Some(frequency) = report {
        set("nodeStatusReportFrequency", Value::Text(frequency));
    }
    if serialize {
        set("serializeImagePulls", Value::Bool(!parallel));
    }
    if unlimited {
        set("podPidsLimit", Value::Integer(-1));
    }
}

/// The thresholds, or all that is wrong with them.
fn thresholds(tree: Tree<'_>, problems: &mut Vec<Problem>) -> Vec<Threshold> {
    const GRACE: &str = "evictionSoftGracePeriod";
    let map = |field: &str| -> BTreeMap<String, String> {
        tree.labels(field)
            .map(|(signal, text, _)| (signal.to_owned(), text.to_owned()))
            .collect()
    };
    for field in [
        "evictionHard",
        "evictionSoft",
        GRACE,
        "evictionMinimumReclaim",
    ] {
        for (name, text, origin) in tree.labels(field) {
            let Some(signal) = Signal::from_name(name) else {
                let known = SIGNALS.iter().map(|row| row.name);
                let hint = match schema::nearest(name, known.clone()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("use one of {}", known.collect::<Vec<_>>().join(", ")),
                };
                let reason = format!("unsupported eviction signal: {hint}");
                problems.push(Problem::new(origin, format!("{field}: {name}"), reason));
                continue;
            };
            let one = BTreeMap::from([(name.to_owned(), text.to_owned())]);
            let mut settings = ThresholdSettings::default();
            match field {
                "evictionHard" => settings.hard = one,
                "evictionSoft" => {
                    settings.soft = one;
                    settings.soft_grace_period = BTreeMap::from([(name.to_owned(), "1s".into())]);
                }
                GRACE => settings.soft_grace_period = one,
                _ => settings.minimum_reclaim = one,
            }
            let path = format!("{field}: {signal}");
            if let Err(error) = threshold::parse(&settings) {
                let message = error.to_string();
                let reason = message
                    .strip_prefix(&format!("{path}: "))
                    .unwrap_or(&message);
                problems.push(Problem::new(origin, path, reason));
            } else if field == "evictionSoft"
                && tree.object(GRACE).is_none_or(|grace| !grace.has(name))
            {
                let reason = format!("it has no entry in {GRACE}: add one, for example \"30s\"");
                problems.push(Problem::new(origin, path, reason));
            }
        }
    }
    if !problems.is_empty() {
        return Vec::new();
    }
    let settings = ThresholdSettings {
        hard: map("evictionHard"),
        soft: map("evictionSoft"),
        soft_grace_period: map(GRACE),
        minimum_reclaim: map("evictionMinimumReclaim"),
        enforce_pods: tree
            .texts("enforceNodeAllocatable")
            .any(|(item, _)| item == "pods"),
    };
    threshold::parse(&settings).unwrap_or_else(|error| {
        problems.push(Problem::new(Origin::Default, "", error.to_string()));
        Vec::new()
    })
}

/// The values of a tree that has been checked and has its defaults, so that no field below is missing.
fn config(tree: Tree<'_>, thresholds: Vec<Threshold>) -> Config {
    let count = |field: &str| {
        tree.integer(field)
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(0)
    };
    let ns = |field: &str| tree.duration_ns(field).unwrap_or(0);
    let flag = |field: &str| tree.bool(field).unwrap_or(false);
    let text = |field: &str| tree.text(field).map(str::to_owned);
    Config {
        engine: EngineConfig {
            thresholds,
            pressure_transition_period_ns: ns("evictionPressureTransitionPeriod"),
            max_pod_grace_period_s: tree.integer("evictionMaxPodGracePeriod").unwrap_or(0),
            local_storage_limits: flag("localStorageCapacityIsolation"),
            options: PlimsollOptions::read(tree.0.get("plimsoll")).eviction,
            ..EngineConfig::default()
        },
        node: node(tree),
        cgroups: CgroupSettings {
            root: text("cgroupRoot").unwrap_or_default(),
            options: CgroupOptions {
                cpu_cfs_quota: flag("cpuCFSQuota"),
                cpu_period_us: ns("cpuCFSQuotaPeriod") / 1000,
                pod_pids_limit: tree
                    .integer("podPidsLimit")
                    .and_then(|limit| u64::try_from(limit).ok())
                    // `ResourceConfigForPod` sets a limit only if it is more than 0.
                    .filter(|limit| *limit > 0),
            },
            single_process_oom_kill: tree.bool("singleProcessOOMKill"),
            memory_qos: tree.gate("MemoryQoS"),
            memory_throttling_factor: tree.number("memoryThrottlingFactor").unwrap_or(0.9),
            tiered_reservation: tree.text("memoryReservationPolicy") == Some("TieredReservation"),
            limited_swap: tree
                .object("memorySwap")
                .and_then(|swap| swap.text("swapBehavior"))
                == Some("LimitedSwap"),
            qos_reserved_memory_percent: tree
                .labels("qosReserved")
                .find(|(name, ..)| *name == MEMORY && tree.gate("QOSReserved"))
                .and_then(|(_, text, _)| rules::percentage(text)),
        },
        storage: StorageSettings {
            pod_logs_dir: text("podLogsDir").unwrap_or_default().into(),
            container_log_max_bytes: tree
                .quantity("containerLogMaxSize")
                .and_then(|size| u64::try_from(size.value()).ok())
                .unwrap_or(0),
            container_log_max_files: count("containerLogMaxFiles"),
            volume_stats_period_ns: ns("volumeStatsAggPeriod"),
            image_gc_high_percent: count("imageGCHighThresholdPercent"),
            image_gc_low_percent: count("imageGCLowThresholdPercent"),
            image_min_age_ns: ns("imageMinimumGCAge"),
            image_max_age_ns: Some(ns("imageMaximumGCAge")).filter(|age| *age > 0),
        },
        oom_score_adj: tree
            .integer("oomScoreAdj")
            .and_then(|adj| i32::try_from(adj).ok())
            .unwrap_or(0),
        fail_cgroup_v1: flag("failCgroupV1"),
        feature_gates: gates(tree),
    }
}

fn gates(tree: Tree<'_>) -> BTreeMap<String, bool> {
    let Some(Value::Map(entries)) = tree.0.get("featureGates").map(|node| &node.value) else {
        return BTreeMap::new();
    };
    entries
        .iter()
        .filter_map(|entry| match entry.node.value {
            Value::Bool(on) => Some((entry.key.clone(), on)),
            _ => None,
        })
        .collect()
}

fn node(tree: Tree<'_>) -> NodeSettings {
    let list = |field: &str| -> ResourceList {
        tree.quantities(field)
            .map(|(name, quantity, _)| (name.to_owned(), quantity))
            .collect()
    };
    let mut kube_reserved = list("kubeReserved");
    let mut system_reserved = list("systemReserved");
    let reserved_cpus = tree
        .text("reservedSystemCPUs")
        .and_then(|text| rules::cpus(text).ok())
        .unwrap_or_default();
    if !reserved_cpus.is_empty() {
        // `run` in cmd/kubelet/app/server.go.
        kube_reserved.remove(CPU);
        if let Some(cpus) = rules::quantity(&reserved_cpus.len().to_string()) {
            system_reserved.insert(CPU.to_owned(), cpus);
        }
    }
    NodeSettings {
        kube_reserved,
        system_reserved,
        reserved_cpus,
        enforce: tree
            .texts("enforceNodeAllocatable")
            .filter(|(item, _)| *item != "none")
            .map(|(item, _)| item.to_owned())
            .collect(),
        kube_reserved_cgroup: tree.text("kubeReservedCgroup").map(str::to_owned),
        system_reserved_cgroup: tree.text("systemReservedCgroup").map(str::to_owned),
        max_pods: tree
            .integer("maxPods")
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(0),
        pods_per_core: tree
            .integer("podsPerCore")
            .and_then(|count| u32::try_from(count).ok())
            .filter(|count| *count > 0),
    }
}

impl ConfigFile {
    /// Reads a text that came from `path`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if it is no document.
    pub fn parse(text: &str, path: Option<&Path>) -> Result<Self, ConfigError> {
        let root = super::document::parse(text).map_err(|malformed| {
            let origin = malformed
                .line
                .map_or(Origin::Default, |line| Origin::File { line });
            Problems::new(path, vec![Problem::new(origin, "", malformed.reason)])
        })?;
        Ok(Self {
            path: path.map(Path::to_owned),
            root,
        })
    }
}
