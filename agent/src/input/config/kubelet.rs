//! Every field of a KubeletConfiguration, `kubelet.config.k8s.io/v1beta1` of 1.36.
//!
//! Source: names, types and ranges from `staging/src/k8s.io/kubelet/config/v1beta1/types.go` (with `component-base/logs/api/v1` and
//! `component-base/tracing/api/v1`), defaults from `pkg/kubelet/apis/config/v1beta1/defaults.go`, ranges of single fields from
//! `pkg/kubelet/apis/config/validation/validation.go`; what several fields must be together is in [`super::rules`].
//! `evictionHard` has its defaults elsewhere, in `pkg/kubelet/eviction/defaults_linux.go`.
//!
//! Differences: the kubelet falls back to a lenient reader when the strict one finds an unknown or repeated field
//! (`pkg/kubelet/kubeletconfig/util/codec`), and goes on with a warning; here both are errors. Quantities may be numbers. A
//! negative duration is refused everywhere.

use super::plimsoll;
use super::schema::{COUNT, Class, Field, INT32, INT64, Shape, TEXTS, field, int};

use Class::{Kubelet, Later, Used};
use Shape::{
    Amount, Bool, Duration, List, Map, NanosecondsOrDuration, Number, Object, OneOf, Quantity, Text,
};

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

const PORT: Shape = int(0, 65_535);
const PERCENT: Shape = int(0, 100);
const BIT: Shape = int(0, 31);
const HEADERS: Shape = Map(&TEXTS);
const LABELS: Shape = Map(&Text);
const THRESHOLDS: Shape = Map(&Amount);
const QUANTITIES: Shape = Map(&Quantity);

/// The fields, in the order of `types.go`, and `plimsoll` behind them.
// One field a line, as a table is read.
#[rustfmt::skip]
pub static FIELDS: &[Field] = &[
    field("apiVersion", Used, Text, "file format: kubelet.config.k8s.io/v1beta1 or plimsoll.dev/v1alpha1"),
    field("kind", Used, Text, "file format: KubeletConfiguration or PlimsollConfiguration"),
    field("enableServer", Kubelet, Bool, "the kubelet serves HTTPS").or("true").pointer(),
    field("staticPodPath", Kubelet, Text, "directory of the kubelet's static pods; Plimsoll has --manifests"),
    field("podLogsDir", Used, Text, "directory of pod logs; their bytes count as usage of the pod").or("/var/log/pods"),
    field("syncFrequency", Kubelet, Duration, "interval between syncs of running containers").or("1m"),
    field("fileCheckFrequency", Kubelet, Duration, "interval between reads of staticPodPath").or("20s"),
    field("httpCheckFrequency", Kubelet, Duration, "interval between reads of staticPodURL").or("20s"),
    field("staticPodURL", Kubelet, Text, "URL of static pods"),
    field("staticPodURLHeader", Kubelet, HEADERS, "headers for staticPodURL"),
    field("address", Kubelet, Text, "address of the kubelet's server").or("0.0.0.0"),
    field("port", Kubelet, int(0, 65_535), "port of the kubelet's server").or("10250"),
    field("readOnlyPort", Kubelet, PORT, "port of the kubelet's server without authentication"),
    field("tlsCertFile", Kubelet, Text, "certificate of the kubelet's server"),
    field("tlsPrivateKeyFile", Kubelet, Text, "key of the kubelet's server"),
    field("tlsCipherSuites", Kubelet, TEXTS, "cipher suites of the kubelet's server"),
    field("tlsCurvePreferences", Kubelet, List(&INT32), "key exchanges of the kubelet's server"),
    field("tlsMinVersion", Kubelet, Text, "minimum TLS version of the kubelet's server"),
    field("rotateCertificates", Kubelet, Bool, "renew the client certificate"),
    field("serverTLSBootstrap", Kubelet, Bool, "request the server certificate"),
    field("authentication", Kubelet, Object(AUTHENTICATION), "authentication of clients of the kubelet's server"),
    field("authorization", Kubelet, Object(AUTHORIZATION), "authorization of clients of the kubelet's server"),
    field("registryPullQPS", Kubelet, COUNT, "image pulls per second").or("5").pointer(),
    field("registryBurst", Kubelet, COUNT, "maximum burst of image pulls").or("10"),
    field("imagePullCredentialsVerificationPolicy", Kubelet,
        OneOf(&["NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"]),
        "when pull credentials are verified for an image that is already on the node").or("NeverVerifyPreloadedImages"),
    field("preloadedImagesVerificationAllowlist", Kubelet, TEXTS, "images that need no pull credentials"),
    field("eventRecordQPS", Kubelet, COUNT, "events per second").or("50").pointer(),
    field("eventBurst", Kubelet, COUNT, "maximum burst of events").or("100"),
    field("enableDebuggingHandlers", Kubelet, Bool, "the server has logs, exec and attach").or("true").pointer(),
    field("enableContentionProfiling", Kubelet, Bool, "the server profiles locks"),
    field("healthzPort", Kubelet, PORT, "port of /healthz").or("10248").pointer(),
    field("healthzBindAddress", Kubelet, Text, "address of /healthz").or("127.0.0.1"),
    field("oomScoreAdj", Later, int(-1000, 1000), "oom_score_adj of the kubelet; Plimsoll's is -999")
        .or("-999").pointer(),
    field("clusterDomain", Kubelet, Text, "DNS domain of the cluster"),
    field("clusterDNS", Kubelet, TEXTS, "DNS servers of the cluster"),
    field("streamingConnectionIdleTimeout", Kubelet, Duration, "no longer has an effect").or("4h"),
    field("nodeStatusUpdateFrequency", Kubelet, Duration, "interval between computations of the node's status").or("10s"),
    field("nodeStatusReportFrequency", Kubelet, Duration, "interval between reports of the node's status").or("5m"),
    field("nodeLeaseDurationSeconds", Kubelet, COUNT, "lifetime of the node's lease").or("40"),
    field("imageMinimumGCAge", Later, Duration, "minimum age of an unused image before it may be removed").or("2m"),
    field("imageMaximumGCAge", Later, Duration, "age of an unused image at which it is removed; 0s: never").or("0s"),
    field("imageGCHighThresholdPercent", Later, PERCENT, "disk usage that starts the removal of images").or("85").pointer(),
    field("imageGCLowThresholdPercent", Later, PERCENT, "disk usage that ends the removal of images").or("80").pointer(),
    field("volumeStatsAggPeriod", Used, Duration, "interval between measurements of pod volumes").or("1m"),
    field("kubeletCgroups", Kubelet, Text, "cgroup of the kubelet's process"),
    field("systemCgroups", Kubelet, Text, "cgroup for system processes that have no cgroup"),
    field("cgroupRoot", Used, Text, "parent cgroup of kubepods; --cgroup-root overrides it"),
    field("cgroupsPerQOS", Later, Bool, "cgroups per QoS class; always on in Plimsoll").or("true").pointer(),
    field("cgroupDriver", Later, OneOf(&["cgroupfs", "systemd"]), "how cgroups are created and named; Plimsoll uses cgroupfs")
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
    field("runtimeRequestTimeout", Kubelet, Duration, "of requests to the container runtime").or("2m"),
    field("hairpinMode", Kubelet, OneOf(&["promiscuous-bridge", "hairpin-veth", "none"]), "of the container bridge")
        .or("promiscuous-bridge"),
    field("maxPods", Later, COUNT, "maximum number of pods").or("110"),
    field("podCIDR", Kubelet, Text, "addresses of pods without a control plane"),
    field("podPidsLimit", Used, INT64, "maximum number of processes per pod (pids.max); -1: unlimited").or("-1").pointer(),
    field("resolvConf", Kubelet, Text, "resolver configuration for containers").or("/etc/resolv.conf").pointer(),
    field("runOnce", Kubelet, Bool, "no longer allowed to be true"),
    field("cpuCFSQuota", Used, Bool, "enforce CPU limits").or("true").pointer(),
    field("cpuCFSQuotaPeriod", Used, Duration, "CPU quota period, 1ms to 1s").or("100ms").pointer(),
    field("nodeStatusMaxImages", Kubelet, int(-1, i32::MAX as i64), "images in the node's status; -1: all").or("50").pointer(),
    field("maxOpenFiles", Kubelet, int(0, i64::MAX), "open files of the kubelet's process").or("1000000"),
    field("contentType", Kubelet, Text, "of requests to the API server").or("application/vnd.kubernetes.protobuf"),
    field("kubeAPIQPS", Kubelet, COUNT, "requests to the API server per second").or("50").pointer(),
    field("kubeAPIBurst", Kubelet, COUNT, "maximum burst of requests to the API server").or("100"),
    field("serializeImagePulls", Kubelet, Bool, "pull images one at a time").pointer(),
    field("maxParallelImagePulls", Kubelet, int(1, i32::MAX as i64), "images pulled at once").pointer(),
    field("evictionHard", Used, THRESHOLDS, "map of signal to threshold; below it (stalls: above it) a pod is evicted at once"),
    field("evictionSoft", Used, THRESHOLDS, "map of signal to threshold; below it for the grace period a pod is evicted").or("{}"),
    field("evictionSoftGracePeriod", Used, Map(&Duration), "map of signal to duration; required for each signal of evictionSoft").or("{}"),
    field("evictionPressureTransitionPeriod", Used, Duration, "how long a node condition is kept after its thresholds are no longer met").or("5m"),
    field("evictionMaxPodGracePeriod", Used, INT32, "longest grace period of a soft eviction, seconds; negative: none").or("0"),
    field("evictionMinimumReclaim", Used, THRESHOLDS, "map of signal to the amount above the threshold that must be available again").or("{}"),
    field("mergeDefaultEvictionSettings", Used, Bool, "keep the evictionHard defaults of signals that are not listed")
        .or("false").pointer(),
    field("podsPerCore", Later, COUNT, "maximum number of pods per CPU; 0: unlimited").or("0"),
    field("enableControllerAttachDetach", Kubelet, Bool, "the attach/detach controller attaches volumes").or("true").pointer(),
    field("protectKernelDefaults", Kubelet, Bool, "the kubelet refuses to start if kernel settings differ from its defaults"),
    field("makeIPTablesUtilChains", Kubelet, Bool, "create the iptables hint chain").or("true").pointer(),
    field("iptablesMasqueradeBit", Kubelet, BIT, "no longer has an effect").or("14").pointer(),
    field("iptablesDropBit", Kubelet, BIT, "no longer has an effect").or("15").pointer(),
    field("featureGates", Used, Map(&Bool), "feature gates; MemoryQoS, NodeSwap, CustomCPUCFSQuotaPeriod and QOSReserved have an effect").or("{}"),
    field("failSwapOn", Kubelet, Bool, "the kubelet refuses to start with swap on; Plimsoll accounts for swap").or("true").pointer(),
    field("memorySwap", Used, Object(MEMORY_SWAP), "swap for containers"),
    field("containerLogMaxSize", Later, Quantity, "size at which a container's log is rotated").or("10Mi"),
    field("containerLogMaxFiles", Later, int(2, i32::MAX as i64), "maximum number of log files per container").or("5").pointer(),
    field("containerLogMaxWorkers", Kubelet, int(1, i32::MAX as i64), "logs rotated at once").or("1").pointer(),
    field("containerLogMonitorInterval", Kubelet, Duration, "interval between checks of the logs, at least 3s").or("10s").pointer(),
    field("configMapAndSecretChangeDetectionStrategy", Kubelet, OneOf(&["Get", "Cache", "Watch"]), "how changes of ConfigMaps and Secrets are detected")
        .or("Watch"),
    field("systemReserved", Used, QUANTITIES, "map of resource to quantity reserved for the system; cpu, memory, pid and huge pages are enforced").or("{}"),
    field("kubeReserved", Used, QUANTITIES, "map of resource to quantity reserved for Kubernetes daemons; as systemReserved").or("{}"),
    field("reservedSystemCPUs", Used, Text, "CPUs reserved for the system, e.g. 0-1,4; replaces cpu of both reservations"),
    field("showHiddenMetricsForVersion", Kubelet, Text, "metrics of an earlier release"),
    field("systemReservedCgroup", Used, Text, "cgroup that gets the limits of systemReserved"),
    field("kubeReservedCgroup", Used, Text, "cgroup that gets the limits of kubeReserved"),
    field("enforceNodeAllocatable", Used, TEXTS, "cgroups that get limits: pods, system-reserved, kube-reserved, … or none")
        .or("[pods]").pointer(),
    field("allowedUnsafeSysctls", Kubelet, TEXTS, "sysctls that pods may set"),
    field("volumePluginDir", Kubelet, Text, "directory of volume plug-ins")
        .or("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"),
    field("providerID", Kubelet, Text, "identity of the node at its cloud"),
    field("kernelMemcgNotification", Kubelet, Bool, "the kubelet uses memory notifications of the kernel; Plimsoll always does"),
    field("logging", Kubelet, Object(LOGGING), "the kubelet's log; Plimsoll has PLIMSOLL_LOG"),
    field("enableSystemLogHandler", Kubelet, Bool, "the server has /logs").or("true").pointer(),
    field("enableSystemLogQuery", Kubelet, Bool, "/logs can be queried").pointer(),
    field("shutdownGracePeriod", Kubelet, Duration, "how long the node's shutdown waits for pods").or("0s"),
    field("shutdownGracePeriodCriticalPods", Kubelet, Duration, "the part of it for critical pods").or("0s"),
    field("shutdownGracePeriodByPodPriority", Kubelet, List(&Object(SHUTDOWN)), "the same, by priority"),
    field("crashLoopBackOff", Kubelet, Object(CRASH_LOOP), "restarts of containers that crash"),
    field("reservedMemory", Used, List(&Object(RESERVED_MEMORY)), "memory reserved per NUMA node"),
    field("enableProfilingHandler", Kubelet, Bool, "the server has /debug/pprof").or("true").pointer(),
    field("enableDebugFlagsHandler", Kubelet, Bool, "the server has /debug/flags").or("true").pointer(),
    field("seccompDefault", Kubelet, Bool, "RuntimeDefault is the default seccomp profile of pods").or("false").pointer(),
    field("memoryThrottlingFactor", Used, Number, "position of memory.high between request and limit, above 0 up to 1 (gate MemoryQoS)")
        .or("0.9").pointer(),
    field("memoryReservationPolicy", Used, OneOf(&["None", "TieredReservation"]), "TieredReservation: requests become memory.min and memory.low (gate MemoryQoS)")
        .or("None"),
    field("registerWithTaints", Kubelet, List(&Object(TAINT)), "taints of a new node"),
    field("registerNode", Kubelet, Bool, "the node registers itself").or("true").pointer(),
    field("tracing", Kubelet, Object(TRACING), "OpenTelemetry of the kubelet"),
    field("localStorageCapacityIsolation", Used, Bool, "enforce limits on ephemeral storage").or("true").pointer(),
    field("containerRuntimeEndpoint", Kubelet, Text, "socket of the container runtime").or("unix:///run/containerd/containerd.sock"),
    field("imageServiceEndpoint", Kubelet, Text, "socket of the image service"),
    field("failCgroupV1", Used, Bool, "refuse to start on cgroup v1").or("false").pointer(),
    field("userNamespaces", Kubelet, Object(USER_NAMESPACES), "user IDs of pods"),
    field("configTrialDuration", Kubelet, Duration, "no longer read by any kubelet (before 1.24)"),
    // Of releases after 1.36, so that a newer file is no error for what is not Plimsoll's.
    field("defaultPodSysctls", Kubelet, LABELS, "sysctls of all pods (after 1.36)"),
    field("draManagerReconcilePeriod", Kubelet, Duration, "interval between checks of claims (after 1.36)"),
    field("podHousekeepingPeriod", Kubelet, Duration, "interval between clean-ups of pods (after 1.36)").pointer(),
    field("plimsoll", Used, Object(plimsoll::FIELDS), "Plimsoll's own options"),
];

const AUTHENTICATION: &[Field] = &[
    field(
        "x509",
        Kubelet,
        Object(&[field("clientCAFile", Kubelet, Text, "CA of clients")]),
        "client certificates",
    ),
    field(
        "webhook",
        Kubelet,
        Object(&[
            field("enabled", Kubelet, Bool, "whether tokens are reviewed")
                .or("true")
                .pointer(),
            field("cacheTTL", Kubelet, Duration, "lifetime of an answer").or("2m"),
        ]),
        "bearer tokens",
    ),
    field(
        "anonymous",
        Kubelet,
        Object(&[
            field("enabled", Kubelet, Bool, "anonymous requests are allowed")
                .or("false")
                .pointer(),
        ]),
        "calls without either",
    ),
];

const AUTHORIZATION: &[Field] = &[
    field(
        "mode",
        Kubelet,
        OneOf(&["AlwaysAllow", "Webhook"]),
        "authorization mode",
    )
    .or("Webhook"),
    field(
        "webhook",
        Kubelet,
        Object(&[
            field("cacheAuthorizedTTL", Kubelet, Duration, "lifetime of a yes").or("5m"),
            field(
                "cacheUnauthorizedTTL",
                Kubelet,
                Duration,
                "lifetime of a no",
            )
            .or("30s"),
        ]),
        "the API server's answers",
    ),
];

const MEMORY_SWAP: &[Field] = &[field(
    "swapBehavior",
    Used,
    OneOf(&["NoSwap", "LimitedSwap"]),
    "NoSwap, or LimitedSwap: Burstable containers may swap in proportion to their request",
)
.or("NoSwap")];

const LOG_STREAM: &[Field] = &[
    field(
        "splitStream",
        Kubelet,
        Bool,
        "errors to standard error, the rest to standard output",
    ),
    field(
        "infoBufferSize",
        Kubelet,
        Quantity,
        "buffer of standard output",
    ),
];

const LOGGING: &[Field] = &[
    field("format", Kubelet, Text, "text or json").or("text"),
    field(
        "flushFrequency",
        Kubelet,
        NanosecondsOrDuration,
        "between two flushes",
    )
    .or("5s"),
    field(
        "verbosity",
        Kubelet,
        int(0, u32::MAX as i64),
        "how much is logged",
    )
    .or("0"),
    field(
        "vmodule",
        Kubelet,
        List(&Object(&[
            field("filePattern", Kubelet, Text, "files"),
            field(
                "verbosity",
                Kubelet,
                int(0, u32::MAX as i64),
                "how much they log",
            ),
        ])),
        "verbosity by file",
    ),
    field(
        "options",
        Kubelet,
        Object(&[
            field("text", Kubelet, Object(LOG_STREAM), "of the text format"),
            field("json", Kubelet, Object(LOG_STREAM), "of the json format"),
        ]),
        "of the formats",
    ),
];

const SHUTDOWN: &[Field] = &[
    field("priority", Kubelet, INT32, "least priority"),
    field(
        "shutdownGracePeriodSeconds",
        Kubelet,
        INT64,
        "how long these pods have",
    ),
];

const CRASH_LOOP: &[Field] = &[field(
    "maxContainerRestartPeriod",
    Kubelet,
    Duration,
    "longest pause between restarts, 1s to 300s",
)
.or("300s")
.pointer()];

const RESERVED_MEMORY: &[Field] = &[
    field("numaNode", Later, COUNT, "the node").pointer(),
    field(
        "limits",
        Later,
        QUANTITIES,
        "memory or hugepages-SIZE → quantity",
    ),
];

const TAINT: &[Field] = &[
    field("key", Kubelet, Text, "its key"),
    field("value", Kubelet, Text, "its value"),
    field(
        "effect",
        Kubelet,
        OneOf(&["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        "what it does",
    ),
    field("timeAdded", Kubelet, Text, "when it came"),
];

const TRACING: &[Field] = &[
    field("endpoint", Kubelet, Text, "of the collector").pointer(),
    field(
        "samplingRatePerMillion",
        Kubelet,
        int(0, 1_000_000),
        "how many spans are kept",
    )
    .pointer(),
];

const USER_NAMESPACES: &[Field] =
    &[field("idsPerPod", Kubelet, INT64, "user IDs of each pod").pointer()];
