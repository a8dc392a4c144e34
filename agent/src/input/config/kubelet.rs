//! Every field of a KubeletConfiguration, `kubelet.config.k8s.io/v1beta1` of 1.36.
//!
//! Source: names, types and ranges from `staging/src/k8s.io/kubelet/config/v1beta1/types.go` (with
//! `component-base/logs/api/v1` and `component-base/tracing/api/v1`), defaults from
//! `pkg/kubelet/apis/config/v1beta1/defaults.go`, ranges of single fields from
//! `pkg/kubelet/apis/config/validation/validation.go`; what several fields must be together is in [`super::rules`].
//! `evictionHard` has its defaults elsewhere, in `pkg/kubelet/eviction/defaults_linux.go`.
//!
//! Differences: the kubelet falls back to a lenient reader when the strict one finds an unknown or repeated field
//! (`pkg/kubelet/kubeletconfig/util/codec`), and goes on with a warning; here both are errors. Quantities may be
//! numbers. A negative duration is refused everywhere. What the kubelet would say of its own fields is left to the
//! kubelet: here only their names are known.

use super::plimsoll;
use super::schema::{COUNT, Class, Field, INT32, INT64, Shape, TEXTS, field, int, kubelets};

use Class::{NotActedOn, Used};
use Shape::{Amount, Bool, Duration, List, Map, Number, Object, OneOf, Quantity, Text};

/// `apiVersion` of a kubelet's file.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// `kind` of a kubelet's file.
pub const KIND: &str = "KubeletConfiguration";

/// The default of `evictionHard` where the file has no such field (`loadConfigFile` in `cmd/kubelet/app/server.go`, and
/// `DefaultEvictionHard` in `pkg/kubelet/eviction/defaults_linux.go`).
pub const DEFAULT_EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

const PERCENT: Shape = int(0, 100);
const LABELS: Shape = Map(&Text);
const THRESHOLDS: Shape = Map(&Amount);
const QUANTITIES: Shape = Map(&Quantity);

/// The fields, in the order of `types.go`; behind them those that are the kubelet's alone, which are accepted by name;
/// `plimsoll` last.
// One field a line, as a table is read.
#[rustfmt::skip]
pub static FIELDS: &[Field] = &[
    field("apiVersion", Used, Text, "file format: kubelet.config.k8s.io/v1beta1 or plimsoll.dev/v1alpha1"),
    field("kind", Used, Text, "file format: KubeletConfiguration or PlimsollConfiguration"),
    field("podLogsDir", Used, Text, "directory of pod logs; their bytes count as usage of the pod").or("/var/log/pods"),
    field("oomScoreAdj", NotActedOn, int(-1000, 1000), "oom_score_adj of the kubelet; Plimsoll's is -999")
        .or("-999").pointer(),
    field("imageMinimumGCAge", NotActedOn, Duration, "minimum age of an unused image before it may be removed").or("2m"),
    field("imageMaximumGCAge", NotActedOn, Duration, "age of an unused image at which it is removed; 0s: never").or("0s"),
    field("imageGCHighThresholdPercent", NotActedOn, PERCENT, "disk usage that starts the removal of images").or("85").pointer(),
    field("imageGCLowThresholdPercent", NotActedOn, PERCENT, "disk usage that ends the removal of images").or("80").pointer(),
    field("volumeStatsAggPeriod", Used, Duration, "interval between measurements of pod volumes").or("1m"),
    field("cgroupRoot", Used, Text, "parent cgroup of kubepods; --cgroup-root overrides it"),
    field("cgroupsPerQOS", NotActedOn, Bool, "cgroups per QoS class; always on in Plimsoll").or("true").pointer(),
    field("cgroupDriver", NotActedOn, OneOf(&["cgroupfs", "systemd"]), "how cgroups are created and named; Plimsoll uses cgroupfs")
        .or("cgroupfs"),
    field("cpuManagerPolicy", Used, OneOf(&["none", "static"]), "static: containers of Guaranteed pods get exclusive CPUs").or("none"),
    field("singleProcessOOMKill", Used, Bool, "false: an OOM kill ends all processes of the container (memory.oom.group, cgroup v2)")
        .pointer(),
    field("cpuManagerPolicyOptions", Used, LABELS, "options of the static CPU policy"),
    field("cpuManagerReconcilePeriod", Used, Duration, "interval between checks of the containers' CPUs").or("10s"),
    field("memoryManagerPolicy", Used, OneOf(&["None", "Static"]), "Static: containers of Guaranteed pods get memory from chosen NUMA nodes").or("None"),
    field("topologyManagerPolicy", Used, OneOf(&["none", "best-effort", "restricted", "single-numa-node"]),
        "how strictly CPUs, memory and devices are aligned on NUMA nodes").or("none"),
    field("topologyManagerScope", Used, OneOf(&["container", "pod"]), "unit of alignment: container or pod").or("container"),
    field("topologyManagerPolicyOptions", Used, LABELS, "options of the topology policy"),
    field("qosReserved", Used, LABELS, "percentage of a QoS class's memory requests that lower classes cannot use (gate QOSReserved)"),
    field("maxPods", NotActedOn, COUNT, "maximum number of pods").or("110"),
    field("podPidsLimit", Used, INT64, "maximum number of processes per pod (pids.max); -1: unlimited").or("-1").pointer(),
    field("cpuCFSQuota", Used, Bool, "enforce CPU limits").or("true").pointer(),
    field("cpuCFSQuotaPeriod", Used, Duration, "CPU quota period, 1ms to 1s").or("100ms").pointer(),
    field("evictionHard", Used, THRESHOLDS, "map of signal to threshold; below it (stalls: above it) a pod is evicted at once"),
    field("evictionSoft", Used, THRESHOLDS, "map of signal to threshold; below it for the grace period a pod is evicted").or("{}"),
    field("evictionSoftGracePeriod", Used, Map(&Duration), "map of signal to duration; required for each signal of evictionSoft").or("{}"),
    field("evictionPressureTransitionPeriod", Used, Duration, "how long a node condition is kept after its thresholds are no longer met").or("5m"),
    field("evictionMaxPodGracePeriod", Used, INT32, "longest grace period of a soft eviction, seconds; negative: none").or("0"),
    field("evictionMinimumReclaim", Used, THRESHOLDS, "map of signal to the amount above the threshold that must be available again").or("{}"),
    field("mergeDefaultEvictionSettings", Used, Bool, "keep the evictionHard defaults of signals that are not listed")
        .or("false").pointer(),
    field("podsPerCore", NotActedOn, COUNT, "maximum number of pods per CPU; 0: unlimited").or("0"),
    field("featureGates", Used, Map(&Bool), "feature gates; MemoryQoS, NodeSwap, CustomCPUCFSQuotaPeriod and QOSReserved have an effect").or("{}"),
    field("memorySwap", Used, Object(MEMORY_SWAP), "swap for containers"),
    field("containerLogMaxSize", NotActedOn, Quantity, "size at which a container's log is rotated").or("10Mi"),
    field("containerLogMaxFiles", NotActedOn, int(2, i32::MAX as i64), "maximum number of log files per container").or("5").pointer(),
    field("systemReserved", Used, QUANTITIES, "map of resource to quantity reserved for the system; cpu, memory, pid and huge pages are enforced").or("{}"),
    field("kubeReserved", Used, QUANTITIES, "map of resource to quantity reserved for Kubernetes daemons; as systemReserved").or("{}"),
    field("reservedSystemCPUs", Used, Text, "CPUs reserved for the system, e.g. 0-1,4; replaces cpu of both reservations"),
    field("systemReservedCgroup", Used, Text, "cgroup that gets the limits of systemReserved"),
    field("kubeReservedCgroup", Used, Text, "cgroup that gets the limits of kubeReserved"),
    field("enforceNodeAllocatable", Used, TEXTS, "cgroups that get limits: pods, system-reserved, kube-reserved, … or none")
        .or("[pods]").pointer(),
    field("reservedMemory", Used, List(&Object(RESERVED_MEMORY)), "memory reserved per NUMA node"),
    field("memoryThrottlingFactor", Used, Number, "position of memory.high between request and limit, above 0 up to 1 (gate MemoryQoS)")
        .or("0.9").pointer(),
    field("memoryReservationPolicy", Used, OneOf(&["None", "TieredReservation"]), "TieredReservation: requests become memory.min and memory.low (gate MemoryQoS)")
        .or("None"),
    field("localStorageCapacityIsolation", Used, Bool, "enforce limits on ephemeral storage").or("true").pointer(),
    field("failCgroupV1", Used, Bool, "refuse to start on cgroup v1").or("false").pointer(),
    // The last three are of releases after 1.36: a newer file is no error for what is not Plimsoll's.
    kubelets("enableServer"), kubelets("staticPodPath"), kubelets("syncFrequency"), kubelets("fileCheckFrequency"),
    kubelets("httpCheckFrequency"), kubelets("staticPodURL"), kubelets("staticPodURLHeader"), kubelets("address"), kubelets("port"),
    kubelets("readOnlyPort"), kubelets("tlsCertFile"), kubelets("tlsPrivateKeyFile"), kubelets("tlsCipherSuites"),
    kubelets("tlsCurvePreferences"), kubelets("tlsMinVersion"), kubelets("rotateCertificates"), kubelets("serverTLSBootstrap"),
    kubelets("authentication"), kubelets("authorization"), kubelets("registryPullQPS"), kubelets("registryBurst"),
    kubelets("imagePullCredentialsVerificationPolicy"), kubelets("preloadedImagesVerificationAllowlist"), kubelets("eventRecordQPS"),
    kubelets("eventBurst"), kubelets("enableDebuggingHandlers"), kubelets("enableContentionProfiling"), kubelets("healthzPort"),
    kubelets("healthzBindAddress"), kubelets("clusterDomain"), kubelets("clusterDNS"), kubelets("streamingConnectionIdleTimeout"),
    kubelets("nodeStatusUpdateFrequency"), kubelets("nodeStatusReportFrequency"), kubelets("nodeLeaseDurationSeconds"),
    kubelets("kubeletCgroups"), kubelets("systemCgroups"), kubelets("runtimeRequestTimeout"), kubelets("hairpinMode"), kubelets("podCIDR"),
    kubelets("resolvConf"), kubelets("runOnce"), kubelets("nodeStatusMaxImages"), kubelets("maxOpenFiles"), kubelets("contentType"),
    kubelets("kubeAPIQPS"), kubelets("kubeAPIBurst"), kubelets("serializeImagePulls"), kubelets("maxParallelImagePulls"),
    kubelets("enableControllerAttachDetach"), kubelets("protectKernelDefaults"), kubelets("makeIPTablesUtilChains"),
    kubelets("iptablesMasqueradeBit"), kubelets("iptablesDropBit"), kubelets("failSwapOn"), kubelets("containerLogMaxWorkers"),
    kubelets("containerLogMonitorInterval"), kubelets("configMapAndSecretChangeDetectionStrategy"), kubelets("showHiddenMetricsForVersion"),
    kubelets("allowedUnsafeSysctls"), kubelets("volumePluginDir"), kubelets("providerID"), kubelets("kernelMemcgNotification"),
    kubelets("logging"), kubelets("enableSystemLogHandler"), kubelets("enableSystemLogQuery"), kubelets("shutdownGracePeriod"),
    kubelets("shutdownGracePeriodCriticalPods"), kubelets("shutdownGracePeriodByPodPriority"), kubelets("crashLoopBackOff"),
    kubelets("enableProfilingHandler"), kubelets("enableDebugFlagsHandler"), kubelets("seccompDefault"), kubelets("registerWithTaints"),
    kubelets("registerNode"), kubelets("tracing"), kubelets("containerRuntimeEndpoint"), kubelets("imageServiceEndpoint"),
    kubelets("userNamespaces"), kubelets("configTrialDuration"), kubelets("defaultPodSysctls"), kubelets("draManagerReconcilePeriod"),
    kubelets("podHousekeepingPeriod"),
    field("plimsoll", Used, Object(plimsoll::FIELDS), "Plimsoll's own options"),

];

const MEMORY_SWAP: &[Field] = &[field(
    "swapBehavior",
    Used,
    OneOf(&["NoSwap", "LimitedSwap"]),
    "NoSwap, or LimitedSwap: Burstable containers may swap in proportion to their request",
)
.or("NoSwap")];

const RESERVED_MEMORY: &[Field] = &[
    field("numaNode", NotActedOn, COUNT, "the node").pointer(),
    field(
        "limits",
        NotActedOn,
        QUANTITIES,
        "memory or hugepages-SIZE → quantity",
    ),
];
