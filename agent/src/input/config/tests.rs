mod files;
mod properties;
mod reference;

use super::document::Origin;
use super::schema::{Class, Field, Shape};
use super::*;
use plimsoll_core::kube::cgroup_config::{MemoryReservationPolicy, SwapBehavior};
use plimsoll_core::model::options::{
    Availability, Breaker, CpuBurst, CpuOptions, CpuSuppress, EvictionOptions, Foresight, LastLine,
    NamespaceShare, OomOrder, OveruseRanking, Remedies, Victims,
};
use plimsoll_core::model::threshold::Amount;

fn with_flags(text: &str, flags: &EvictionFlags) -> Result<Effective, ConfigError> {
    Effective::new(
        ConfigFile::parse(text, Some(Path::new("kubelet.yaml")))?,
        flags,
    )
}

fn of(text: &str) -> Result<Config, ConfigError> {
    with_flags(text, &EvictionFlags::default()).map(|effective| effective.config)
}

fn errors(text: &str) -> Vec<String> {
    match of(text) {
        Err(error) => error.to_string().lines().map(str::to_owned).collect(),
        Ok(config) => panic!("{text:?} was accepted: {config:?}"),
    }
}

fn thresholds(config: &Config) -> Vec<(&'static str, Amount)> {
    config
        .engine
        .thresholds
        .iter()
        .map(|threshold| (threshold.signal.row().name, threshold.value))
        .collect()
}

fn hard(config: &Config, signal: &str) -> Option<Amount> {
    thresholds(config)
        .into_iter()
        .find(|(name, _)| *name == signal)
        .map(|(_, amount)| amount)
}

#[test]
fn defaults_are_the_kubelets_and_the_kernels_headroom() {
    let config = of("").unwrap();
    for (signal, percent) in [
        ("nodefs.available", 10.0_f32),
        ("nodefs.inodesFree", 5.0),
        ("imagefs.available", 15.0),
        ("imagefs.inodesFree", 5.0),
    ] {
        let fraction = Amount::Fraction((percent / 100.0).to_bits());
        assert_eq!(hard(&config, signal), Some(fraction), "{signal}");
    }
    for (signal, bytes) in [
        ("kernelMemory.available", 64 << 20),
        ("memory.available", 100 << 20),
        ("allocatableMemory.available", 100 << 20),
    ] {
        assert_eq!(
            hard(&config, signal),
            Some(Amount::Absolute(bytes)),
            "{signal}"
        );
    }
    assert_eq!(config.engine.pressure_transition_period_ns, 300_000_000_000);
    assert!(config.enforces_pods());
    assert_eq!(config.engine.options, EvictionOptions::default());
    assert_eq!(config.cgroups.qos.pod_pids_limit, None);
    assert_eq!(config.cgroups.qos.cpu_period_us, 100_000);
    assert_eq!(config.storage.container_log_max_bytes, 10 << 20);
    assert_eq!(
        config,
        of("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n").unwrap()
    );
}

#[test]
fn each_default_in_the_table_has_the_fields_shape() {
    fn check(fields: &[Field]) {
        for (index, field) in fields.iter().enumerate() {
            let is_kubelets = field.class == Class::Kubelet;
            assert_eq!(field.meaning.is_empty(), is_kubelets, "{}", field.name);
            assert!(
                fields[..index].iter().all(|other| other.name != field.name),
                "{} twice",
                field.name
            );
            if let Shape::Object(inner) = field.shape {
                check(inner);
                assert_eq!(field.default, None, "{}", field.name);
            }
            if field.default.is_some() {
                assert!(schema::default_value(field).is_some(), "{}", field.name);
            }
        }
    }
    check(kubelet::FIELDS);
    let mut text = String::new();
    for field in kubelet::FIELDS {
        if let Some(default) = field.default {
            text += &format!("{}: {default}\n", field.name);
        }
    }
    assert_eq!(of(&text).unwrap(), of("").unwrap());
}

fn reserved_memory_bytes(config: &Config) -> i64 {
    let node = &config.node;
    let both = [&node.kube_reserved, &node.system_reserved];
    let bytes = both.map(|list| list.get("memory").map_or(0, |amount| amount.value()));
    bytes.iter().sum()
}

#[test]
fn fields_of_a_kubelet_configuration_are_taken() {
    let config = of("kind: KubeletConfiguration\n\
         evictionHard:\n  memory.available: 5%\n  kernelMemory.available: 0%\n\
         evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 30s}\n\
         evictionPressureTransitionPeriod: 10s\nkubeReserved: {memory: 500Mi}\nsystemReserved: {memory: 12Mi, cpu: 100m}\n\
         enforceNodeAllocatable: [none]\npodPidsLimit: 4096\nmemorySwap: {swapBehavior: LimitedSwap}\n\
         featureGates: {MemoryQoS: true}\nmemoryReservationPolicy: TieredReservation\n")
    .unwrap();
    assert_eq!(thresholds(&config).len(), 2);
    assert_eq!(reserved_memory_bytes(&config), 512 << 20);
    assert!(!config.enforces_pods());
    assert_eq!(config.cgroups.qos.pod_pids_limit, Some(4096));
    assert!(
        config.cgroups.qos.memory_qos
            && config.cgroups.qos.memory_reservation_policy
                == MemoryReservationPolicy::TieredReservation
            && config.cgroups.qos.swap_behavior == SwapBehavior::LimitedSwap
    );
}

#[test]
fn null_and_gos_zero_are_as_left_out() {
    let config = of("evictionHard:\nevictionPressureTransitionPeriod: 0s\nmaxPods: 0\ncgroupDriver: \"\"\nkubeReserved: null\n\
         podPidsLimit: -5\nimageMinimumGCAge: 0s\nplimsoll:\n")
    .unwrap();
    assert_eq!(config, of("").unwrap());
    // A pointer in Go: zero is a value.
    assert_eq!(of("oomScoreAdj: 0\n").unwrap().oom_score_adj, 0);
}

#[test]
fn quantities_may_be_numbers() {
    let config =
        of("kubeReserved: {memory: 1048576, cpu: 0.5, pid: 1000}\ncontainerLogMaxSize: 1e6\n")
            .unwrap();
    assert_eq!(reserved_memory_bytes(&config), 1 << 20);
    assert_eq!(config.node.kube_reserved["cpu"].milli_value(), 500);
    assert_eq!(config.storage.container_log_max_bytes, 1_000_000);
}

#[test]
fn a_list_of_thresholds_replaces_the_defaults_unless_they_are_merged() {
    let only = of("evictionHard: {kernelMemory.available: 1Gi}\n").unwrap();
    assert_eq!(hard(&only, "memory.available"), None);
    let empty = of("evictionHard: {}\n").unwrap();
    assert_eq!(
        thresholds(&empty),
        [("kernelMemory.available", Amount::Absolute(64 << 20))]
    );
    let merged =
        of("evictionHard: {kernelMemory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n")
            .unwrap();
    assert_eq!(
        hard(&merged, "memory.available"),
        Some(Amount::Absolute(100 << 20))
    );
    assert_eq!(
        hard(&merged, "kernelMemory.available"),
        Some(Amount::Absolute(1 << 30))
    );
    // A flag comes after the merge (`kubeletConfigFlagPrecedence`).
    let flags = EvictionFlags {
        eviction_hard: Some("kernelMemory.available<1Gi".into()),
        ..EvictionFlags::default()
    };
    let flagged = with_flags("mergeDefaultEvictionSettings: true\n", &flags)
        .unwrap()
        .config;
    assert_eq!(hard(&flagged, "memory.available"), None);
}

#[test]
fn a_soft_threshold_that_is_switched_off_needs_no_grace_period() {
    let config = of("evictionSoft: {memory.available: 0%, nodefs.available: 100%}\n").unwrap();
    assert!(
        config
            .engine
            .thresholds
            .iter()
            .all(|threshold| threshold.is_hard())
    );
    assert_eq!(errors("evictionSoft: {memory.available: 0.0%}\n").len(), 1);
}

#[test]
fn what_may_not_be_meant_is_hinted_at() {
    let hints = |text: &str| -> Vec<String> {
        let effective = with_flags(text, &EvictionFlags::default()).unwrap();
        effective
            .hints()
            .into_iter()
            .map(|hint| hint.field)
            .collect()
    };
    assert_eq!(hints(""), [""; 0]);
    let few = "evictionHard:\n  memory.available: 1Gi\n  containerfs.available: 1Gi\n";
    assert_eq!(
        hints(few),
        ["evictionHard", "evictionHard: containerfs.available"]
    );
    assert_eq!(
        hints(&format!("{few}mergeDefaultEvictionSettings: true\n")),
        ["evictionHard: containerfs.available"]
    );
}

#[test]
fn shares_of_namespaces_are_read_and_checked() {
    let shares = |text: &str| of(text).map(|config| config.engine.namespace_shares);
    let share = |namespace: &str, memory_bytes, cpu_milli| NamespaceShare {
        namespace: namespace.into(),
        memory_bytes,
        cpu_milli,
    };
    assert_eq!(shares("").unwrap(), []);
    assert_eq!(
        shares("plimsoll: {namespaceShares: {team-b: {cpu: 1500m}, team-a: {memory: 4Gi, cpu: 2}, c: {}}}\n").unwrap(),
        [
            share("c", None, None),
            share("team-a", Some(4 << 30), Some(2000)),
            share("team-b", None, Some(1500)),
        ]
    );
    for (text, wanted) in [
        (
            "{a: {storage: 1Gi}}",
            "plimsoll.namespaceShares.a.storage: no shares of it: write memory or cpu",
        ),
        (
            "{a: {memory: -1}}",
            "plimsoll.namespaceShares.a.memory: must not be negative",
        ),
        (
            "{a: {memory: lots}}",
            "plimsoll.namespaceShares: a: memory: quantity \"lots\" is malformed",
        ),
        ("{a: 1Gi}", "plimsoll.namespaceShares: a: "),
        (
            "{Team_A: {cpu: 1}}",
            "plimsoll.namespaceShares.Team_A: no namespace has this name: use lower-case letters, digits and '-', at most 63",
        ),
        (
            "{a.b: {cpu: 1}}",
            "plimsoll.namespaceShares.a.b: no namespace",
        ),
        (
            "{a-: {cpu: 1}}",
            "plimsoll.namespaceShares.a-: no namespace",
        ),
    ] {
        let error = shares(&format!("plimsoll: {{namespaceShares: {text}}}\n")).unwrap_err();
        assert!(error.to_string().contains(wanted), "{text}: {error}");
    }
    let many: Vec<String> = (0..65).map(|at| format!("n{at}: {{cpu: 1}}")).collect();
    let error = shares(&format!(
        "plimsoll: {{namespaceShares: {{{}}}}}\n",
        many.join(", ")
    ))
    .unwrap_err();
    assert!(
        error.to_string().contains("at most 64 namespaces"),
        "{error}"
    );
}

#[test]
fn our_options_are_read_and_left_out_parts_are_off() {
    let config = of("kind: PlimsollConfiguration\napiVersion: plimsoll.dev/v1alpha1\nplimsoll:\n\
         \x20 evictionVictims: Targeted\n  memoryAvailability: Reclaimable\n  outOfMemoryForesight: {horizon: 500ms}\n\
         \x20 remedies: {reclaim: 500ms, throttle: 2s}\n  respectDisruptionBudgets: true\n  overuseRanking: AmongEquals\n  oomScoreOrder: Dynamic\n  podOOMGroup: true\n\
         \x20 lastLine: {enabled: true, expiresAfter: 5s}\n")
    .unwrap();
    assert_eq!(
        config.engine.options,
        EvictionOptions {
            victims: Victims::Targeted,
            availability: Availability::Reclaimable,
            foresight: Some(Foresight {
                horizon_ns: 500_000_000
            }),
            remedies: Some(Remedies {
                reclaim_budget_ns: 500_000_000,
                throttle_budget_ns: 2_000_000_000,
                notify_budget_ns: 0,
            }),
            disruption_budgets: true,
            overuse_ranking: OveruseRanking::AmongEquals,
            oom_order: OomOrder::Dynamic,
            pod_oom_group: true,
            last_line: Some(LastLine {
                acknowledge_within_ns: 200_000_000,
                expires_after_ns: 5_000_000_000,
            }),
            breaker: Some(Breaker::default()),
        }
    );
    let breaker = |text: &str| of(text).unwrap().engine.options.breaker;
    assert_eq!(
        breaker("plimsoll: {evictionBreaker: {interval: 0s}}\n"),
        None
    );
    let slower = Breaker {
        interval_ns: 30_000_000_000,
    };
    assert_eq!(
        breaker("plimsoll: {evictionBreaker: {interval: 30s}}\n"),
        Some(slower)
    );
    let off = of("plimsoll: {lastLine: {enabled: false, expiresAfter: 5s}}\n").unwrap();
    assert_eq!(off.engine.options.last_line, None);
    assert_eq!(config.engine.cpu, CpuOptions::default());
    let cpu = of("plimsoll:\n  cpuBurst: {enabled: true, quotaPercent: 150, allowance: 30s}\n  cpuSuppress: {enabled: true, floorMilliCPU: 50}\n")
        .unwrap()
        .engine
        .cpu;
    assert_eq!(
        cpu,
        CpuOptions {
            burst: Some(CpuBurst {
                quota_percent: 150,
                allowance_ns: 30_000_000_000,
                ..CpuBurst::default()
            }),
            suppress: Some(CpuSuppress {
                floor_milli: 50,
                ..CpuSuppress::default()
            }),
        }
    );
    let off = of("plimsoll: {outOfMemoryForesight: {horizon: 0s}, remedies: {}}\n").unwrap();
    assert_eq!(
        (off.engine.options.foresight, off.engine.options.remedies),
        (None, None)
    );
}

#[test]
fn the_example_is_the_defaults_and_more() {
    let example = of(include_str!("../../../../docs/example-config.yaml")).unwrap();
    let defaults = of("").unwrap();
    for (signal, amount) in thresholds(&defaults) {
        assert_eq!(hard(&example, signal), Some(amount), "{signal}");
    }
    assert_eq!(example.engine.options, defaults.engine.options);
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
        eviction_max_pod_grace_period: Some(7),
        ..EvictionFlags::default()
    };
    let file = "evictionHard: {memory.available: 5Gi}\nevictionPressureTransitionPeriod: 9s\n";
    let effective = with_flags(file, &flags).unwrap();
    let config = &effective.config;
    assert_eq!(
        hard(config, "memory.available"),
        Some(Amount::Absolute(1 << 30))
    );
    assert_eq!(config.engine.pressure_transition_period_ns, 1_000_000_000);
    assert_eq!(config.engine.max_pod_grace_period_s, 7);
    let node = effective.root.get("evictionHard").unwrap();
    assert_eq!(node.origin, Origin::Flag("eviction-hard"));

    let stalls = EvictionFlags {
        eviction_hard: Some("memoryPressure.full.avg10>20%".into()),
        ..EvictionFlags::default()
    };
    let effective = with_flags("", &stalls).unwrap();
    assert!(hard(&effective.config, "memoryPressure.full.avg10").is_some());
    let below = EvictionFlags {
        eviction_hard: Some("memoryPressure.full.avg10<20%".into()),
        ..EvictionFlags::default()
    };
    let error = with_flags("", &below).unwrap_err().to_string();
    assert!(error.contains("is not SIGNAL>VALUE"), "{error}");

    let bad = EvictionFlags {
        eviction_hard: Some("memory.available=1Gi".into()),
        eviction_soft: Some("memory.available<1Qi".into()),
        ..EvictionFlags::default()
    };
    assert_eq!(
        with_flags("", &bad).unwrap_err().to_string(),
        "--eviction-hard: \"memory.available=1Gi\" is not SIGNAL<VALUE; write for example 'memory.available<1Gi'\n\
         --eviction-soft: evictionSoft: memory.available: \"1Qi\" is not a quantity such as 100Mi: quantity \"1Qi\" is malformed: write a number and an optional suffix, such as 500m, 1.5Gi or 2e3"
    );
}

#[test]
fn durations_have_limits() {
    let longest = of("plimsoll: {remedies: {throttle: 10s}}\n").unwrap();
    let remedies = longest.engine.options.remedies.unwrap();
    assert_eq!(remedies.throttle_budget_ns, 10_000_000_000);
    let budget = |text: &str| {
        let file = format!("plimsoll: {{cpuSuppress: {{enabled: true, budget: {text}}}}}\n");
        let cpu = of(&file).unwrap().engine.cpu;
        cpu.suppress.unwrap().budget_ns
    };
    assert_eq!(budget("10s"), 10_000_000_000);
    assert_eq!(budget("24h"), 86_400_000_000_000);
    for (option, field, wanted) in [
        (
            "remedies: {throttle: 10s1ms}",
            "remedies.throttle",
            "from 0s to 10s",
        ),
        (
            "remedies: {throttle: -1s}",
            "remedies.throttle",
            "\"-1s\" must not be negative",
        ),
        (
            "cpuSuppress: {enabled: true, budget: 0s}",
            "cpuSuppress.budget",
            "from 10s to 24h",
        ),
        (
            "cpuSuppress: {enabled: true, budget: 24h1ns}",
            "cpuSuppress.budget",
            "from 10s to 24h",
        ),
        (
            "lastLine: {enabled: true, acknowledgeWithin: 1ms}",
            "lastLine.acknowledgeWithin",
            "from 10ms to 1m",
        ),
        (
            "lastLine: {enabled: true, expiresAfter: soon}",
            "lastLine.expiresAfter",
            "invalid duration \"soon\"",
        ),
    ] {
        let found = errors(&format!("plimsoll:\n  {option}\n"));
        let wanted = format!("kubelet.yaml:2: plimsoll.{field}: {wanted}");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&wanted), "{found:?}");
    }
}

#[test]
fn all_errors_are_listed_with_line_field_and_reason() {
    assert_eq!(
        errors(
            "kind: KubeletConfiguration\n\
             evictionHrad: {}\n\
             evictionHard:\n  memory.available: 1Qi\n  memory.avialable: 1Gi\n\
             evictionSoft: {memory.available: 1Gi}\n\
             evictionMinimumReclaim: {memory.available: [1]}\n\
             kubeReserved: {memory: lots, disk: 1Gi, cpu: -1}\n\
             evictionPressureTransitionPeriod: 5d\n\
             evictionMaxPodGracePeriod: 3000000000\n\
             swapBehavior: NoSwap\n\
             plimsoll: {evictionVictims: Some, remedies: {reclam: 1s, throttle: 5}}\n"
        ),
        [
            "kubelet.yaml:2: evictionHrad: there is no such field: did you mean evictionHard?",
            "kubelet.yaml:4: evictionHard: memory.available: \"1Qi\" is not a quantity such as 100Mi: quantity \"1Qi\" is malformed: write a number and an optional suffix, such as 500m, 1.5Gi or 2e3",
            "kubelet.yaml:5: evictionHard: memory.avialable: unsupported eviction signal: did you mean memory.available?",
            "kubelet.yaml:6: evictionSoft: memory.available: it has no entry in evictionSoftGracePeriod: add one, for example \"30s\"",
            "kubelet.yaml:7: evictionMinimumReclaim: memory.available: a list is not what is wanted here: write a quantity such as \"500Mi\", or a percentage such as \"5%\"",
            "kubelet.yaml:8: kubeReserved: memory: quantity \"lots\" is malformed: write a number and an optional suffix, such as 500m, 1.5Gi or 2e3",
            "kubelet.yaml:8: kubeReserved: disk: it cannot be reserved: use cpu, memory, ephemeral-storage or pid",
            "kubelet.yaml:8: kubeReserved: cpu: it must not be negative",
            "kubelet.yaml:9: evictionPressureTransitionPeriod: unknown unit \"d\" in duration \"5d\": use ns, us, ms, s, m or h",
            "kubelet.yaml:10: evictionMaxPodGracePeriod: 3000000000 must be between -2147483648 and 2147483647",
            "kubelet.yaml:11: swapBehavior: there is no such field here: it belongs below memorySwap",
            "kubelet.yaml:12: plimsoll.evictionVictims: \"Some\" is not one of One, Targeted",
            "kubelet.yaml:12: plimsoll.remedies.reclam: there is no such field: did you mean reclaim?",
            "kubelet.yaml:12: plimsoll.remedies.throttle: 5 is a number without a unit: write a duration such as \"30s\" or \"1m30s\"",
        ]
    );
}

/// One wrong file, one exact message.
#[test]
fn a_wrong_value_is_named_with_its_reason() {
    for (text, message) in [
        (
            "text",
            "1: a configuration is a map of fields, and this is a text",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "3: a second document begins here: a configuration file holds one; keep the KubeletConfiguration alone",
        ),
        (
            "maxPods: 1\nmaxPods: 2\n",
            "2: maxPods: it is already set in line 1",
        ),
        (
            "kind: Pod\nspec: {}\n",
            "1: kind: \"Pod\" is not a configuration of the node: use KubeletConfiguration with apiVersion kubelet.config.k8s.io/v1beta1, or PlimsollConfiguration with apiVersion plimsoll.dev/v1alpha1",
        ),
        (
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n",
            "2: kind: \"CredentialProviderConfig\" is not a configuration of the node: use KubeletConfiguration with apiVersion kubelet.config.k8s.io/v1beta1, or PlimsollConfiguration with apiVersion plimsoll.dev/v1alpha1",
        ),
        (
            "apiVersion: kubelet.config.k8s.io/v1alpha1\nkind: KubeletConfiguration\n",
            "1: apiVersion: \"kubelet.config.k8s.io/v1alpha1\" is not a known version of a KubeletConfiguration: use KubeletConfiguration with apiVersion kubelet.config.k8s.io/v1beta1, or PlimsollConfiguration with apiVersion plimsoll.dev/v1alpha1",
        ),
        (
            "max-pods: 10\n",
            "1: max-pods: there is no such field: did you mean maxPods?",
        ),
        (
            "somethingElse: 10\n",
            "1: somethingElse: there is no such field: it is in neither KubeletConfiguration v1beta1 of 1.36 nor PlimsollConfiguration",
        ),
        (
            "maxPods: many\n",
            "1: maxPods: \"many\" is a text: write a whole number of at least 0",
        ),
        (
            "maxPods: 1.5\n",
            "1: maxPods: 1.5 is a number: write a whole number of at least 0",
        ),
        (
            "cpuCFSQuota: 1\n",
            "1: cpuCFSQuota: 1 is a number: write true or false",
        ),
        (
            "cpuCFSQuota: \"true\"\n",
            "1: cpuCFSQuota: \"true\" is a text: write true or false",
        ),
        (
            "oomScoreAdj: -1001\n",
            "1: oomScoreAdj: -1001 must be between -1000 and 1000",
        ),
        (
            "cgroupRoot: 5\n",
            "1: cgroupRoot: 5 is a number, and a text is wanted: quote it",
        ),
        (
            "enforceNodeAllocatable: pods\n",
            "1: enforceNodeAllocatable: \"pods\" is a text: write a list",
        ),
        (
            "memorySwap: {swapBehaviour: NoSwap}\n",
            "1: memorySwap.swapBehaviour: there is no such field: did you mean swapBehavior?",
        ),
        (
            "volumeStatsAggPeriod: -1s\n",
            "1: volumeStatsAggPeriod: \"-1s\" must not be negative",
        ),
        (
            "volumeStatsAggPeriod: 60\n",
            "1: volumeStatsAggPeriod: 60 is a number without a unit: write a duration such as \"30s\" or \"1m30s\"",
        ),
        (
            "evictionHard: {memory.available: }\n",
            "1: evictionHard: memory.available: it has no value: write a quantity such as \"500Mi\", or a percentage such as \"5%\"",
        ),
        (
            "evictionHard: {memoryPressure.some.avg10: 20}\n",
            "1: evictionHard: memoryPressure.some.avg10: \"20\" is no share of time: write a percentage such as 20%",
        ),
        (
            "evictionHard: {memory.available: 101%}\n",
            "1: evictionHard: memory.available: \"101%\" must be between 0% and 100%",
        ),
        (
            "evictionHard: {memory.available: 0}\n",
            "1: evictionHard: memory.available: \"0\" must be more than zero; write 0% to switch the threshold off",
        ),
        (
            "evictionHard: [memory.available]\n",
            "1: evictionHard: a list is not what is wanted here: write a map of names and values",
        ),
        (
            "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 5}\n",
            "2: evictionSoftGracePeriod: memory.available: 5 is a number without a unit: write a duration such as \"30s\" or \"1m30s\"",
        ),
        (
            "evictionSoftGracePeriod: {nope: 5s}\n",
            "1: evictionSoftGracePeriod: nope: unsupported eviction signal: …",
        ),
        (
            "enforceNodeAllocatable: [pods, pods]\n",
            "1: enforceNodeAllocatable: \"pods\" is there twice",
        ),
        (
            "enforceNodeAllocatable: [none, pods]\n",
            "1: enforceNodeAllocatable: \"none\" must stand alone",
        ),
        (
            "enforceNodeAllocatable: [pod]\n",
            "1: enforceNodeAllocatable: \"pod\" is not one of pods, system-reserved, system-reserved-compressible, kube-reserved, kube-reserved-compressible, none",
        ),
        (
            "enforceNodeAllocatable: [system-reserved]\n",
            "1: enforceNodeAllocatable: \"system-reserved\" needs systemReservedCgroup: name the cgroup that is to be limited",
        ),
        (
            "kubeReservedCgroup: /kube\nenforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\n",
            "2: enforceNodeAllocatable: kube-reserved and kube-reserved-compressible exclude each other: keep one",
        ),
        (
            "cgroupsPerQOS: false\n",
            "enforceNodeAllocatable: \"pods\" needs cgroupsPerQOS: true; with false, write [none]",
        ),
        (
            "cgroupDriver: cgroups\n",
            "1: cgroupDriver: \"cgroups\" is not one of cgroupfs, systemd",
        ),
        (
            "cpuCFSQuotaPeriod: 2s\n",
            "1: cpuCFSQuotaPeriod: must be between 1ms and 1s",
        ),
        (
            "cpuCFSQuotaPeriod: 50ms\nfeatureGates: {CustomCPUCFSQuotaPeriod: false}\n",
            "1: cpuCFSQuotaPeriod: a period other than 100ms needs the feature gate CustomCPUCFSQuotaPeriod, which is switched off",
        ),
        (
            "featureGates: {MemoryQoS: yes please}\n",
            "1: featureGates: MemoryQoS: \"yes please\" is a text: write true or false",
        ),
        (
            "memoryThrottlingFactor: 1.1\n",
            "1: memoryThrottlingFactor: 1.1 must be more than 0 and at most 1",
        ),
        (
            "memoryThrottlingFactor: 0\n",
            "1: memoryThrottlingFactor: 0 must be more than 0 and at most 1",
        ),
        (
            "memoryReservationPolicy: TieredReservation\n",
            "1: memoryReservationPolicy: TieredReservation needs the feature gate MemoryQoS: add featureGates: {MemoryQoS: true}",
        ),
        (
            "memorySwap: {swapBehavior: UnlimitedSwap}\n",
            "1: memorySwap.swapBehavior: \"UnlimitedSwap\" is not one of NoSwap, LimitedSwap",
        ),
        (
            "memorySwap: {swapBehavior: NoSwap}\nfeatureGates: {NodeSwap: false}\n",
            "1: memorySwap.swapBehavior: it needs the feature gate NodeSwap, which is switched off",
        ),
        (
            "qosReserved: {cpu: 50%}\n",
            "1: qosReserved: cpu: only memory can be reserved",
        ),
        (
            "qosReserved: {memory: 5.5%}\n",
            "1: qosReserved: memory: \"5.5%\" must be a whole percentage between 0% and 100%",
        ),
        (
            "imageGCHighThresholdPercent: 70\n",
            "imageGCLowThresholdPercent: 80 must be less than imageGCHighThresholdPercent, which is 70",
        ),
        (
            "imageMaximumGCAge: 1m\n",
            "1: imageMaximumGCAge: must be more than imageMinimumGCAge, or 0s for never",
        ),
        (
            "containerLogMaxFiles: 1\n",
            "1: containerLogMaxFiles: 1 must be between 2 and 2147483647",
        ),
        (
            "containerLogMaxSize: 10MiB\n",
            "1: containerLogMaxSize: quantity \"10MiB\" is malformed: write a number and an optional suffix, such as 500m, 1.5Gi or 2e3",
        ),
        (
            "podLogsDir: var/log\n",
            "1: podLogsDir: \"var/log\" must be an absolute path…",
        ),
        (
            "reservedSystemCPUs: 0-x\n",
            "1: reservedSystemCPUs: \"0-x\" in \"0-x\" is neither a CPU number nor a range like 0-3",
        ),
        (
            "reservedSystemCPUs: 3-1\n",
            "1: reservedSystemCPUs: range \"3-1\" in \"3-1\" runs backwards",
        ),
        (
            "reservedSystemCPUs: \"0\"\nkubeReservedCgroup: /kube\n",
            "1: reservedSystemCPUs: it cannot be used together with kubeReservedCgroup: leave one of them out",
        ),
        (
            "cpuManagerPolicy: dynamic\n",
            "1: cpuManagerPolicy: \"dynamic\" is not one of none, static",
        ),
        (
            "cpuManagerPolicyOptions: {full-pcpus: \"true\"}\n",
            "1: cpuManagerPolicyOptions: full-pcpus: there is no such option: use one of full-pcpus-only, …",
        ),
        (
            "cpuManagerPolicyOptions: {full-pcpus-only: true}\n",
            "1: cpuManagerPolicyOptions: full-pcpus-only: true is a boolean, and a text is wanted: quote it",
        ),
        (
            "topologyManagerPolicyOptions: {max-allowable-numa-nodes: \"4\"}\n",
            "1: topologyManagerPolicyOptions: max-allowable-numa-nodes: \"4\" must be a whole number of at least 8",
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 0, cpu: 1}}]\n",
            "1: reservedMemory[0].limits: memory: it must be more than 0",
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 1}}, {numaNode: 0, limits: {memory: 2}}]\n",
            "1: reservedMemory[1].limits: memory: NUMA node 0 has it twice",
        ),
        (
            "plimsoll: {outOfMemoryForesight: {}}\n",
            "1: plimsoll.outOfMemoryForesight: horizon is missing: write for example {horizon: 500ms}, or {horizon: 0s} for off",
        ),
        (
            "plimsoll: {lastLine: {expiresAfter: 5s}}\n",
            "1: plimsoll.lastLine: enabled is missing: write {enabled: true}, or leave lastLine out",
        ),
        (
            "plimsoll: {lastLine: {enabled: true, acknowledgeWithin: 1ms}}\n",
            "1: plimsoll.lastLine.acknowledgeWithin: from 10ms to 1m",
        ),
        (
            "plimsoll: {cpuBurst: {quotaPercent: 150}}\n",
            "1: plimsoll.cpuBurst: enabled is missing: write {enabled: true}, or leave cpuBurst out",
        ),
        (
            "plimsoll: {podOomGroup: true}\n",
            "1: plimsoll.podOomGroup: there is no such field: did you mean podOOMGroup?",
        ),
        (
            "plimsoll: on\n",
            "1: plimsoll: true is a boolean: write a map with evictionVictims, …",
        ),
    ] {
        let first = errors(text).remove(0);
        let wanted = if message.starts_with(|c: char| c.is_ascii_digit()) {
            format!("kubelet.yaml:{message}")
        } else {
            format!("kubelet.yaml: {message}")
        };
        assert!(
            first == wanted
                || (wanted.ends_with('…') && first.starts_with(wanted.trim_end_matches('…'))),
            "{text:?}\n   is: {first}\n want: {wanted}"
        );
    }
}

#[test]
fn what_is_accepted_and_not_acted_on_is_said() {
    let remarks = |text: &str| -> Vec<String> {
        with_flags(text, &EvictionFlags::default())
            .unwrap()
            .remarks()
            .into_iter()
            .map(|remark| remark.field)
            .collect()
    };
    assert_eq!(remarks(""), [""; 0]);
    assert_eq!(
        remarks("maxPods: 110\nport: 5\ncpuManagerPolicy: none\nmemorySwap: {}\n"),
        [""; 0]
    );
    assert_eq!(
        remarks(
            "cgroupDriver: systemd\ncpuManagerPolicy: static\nkubeReserved: {cpu: 1, memory: 1Gi}\nfeatureGates: {PodLevelResources: false, Other: true}\n"
        ),
        ["cgroupDriver", "featureGates: PodLevelResources"]
    );
    assert_eq!(
        remarks(
            "featureGates: {InPlacePodVerticalScalingExclusiveCPUs: true, InPlacePodVerticalScalingExclusiveMemory: false}\n"
        ),
        ["featureGates: InPlacePodVerticalScalingExclusiveCPUs"]
    );
    assert_eq!(
        remarks("plimsoll: {respectDisruptionBudgets: true, evictionVictims: Targeted}\n"),
        Vec::<String>::new()
    );
}
