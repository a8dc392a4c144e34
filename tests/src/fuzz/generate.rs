//! Configurations and events as a node could have them.

use std::sync::Arc;

use plimsoll_core::engine::EngineConfig;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::bandwidth::{
    CgroupCpu, CpuKnob, CpuReading, PodCpu, SharedCpus, WaitSource,
};
use plimsoll_core::model::event::{
    Action, Cause, CgroupMemory, Event, EventKind, NodeMemory, Overused, PodMemory, PodsRead,
    RemedyReport, Sample,
};
use plimsoll_core::model::file_system::ImageFsLayout;
use plimsoll_core::model::options::{
    Availability, Breaker, CpuBurst, CpuOptions, CpuSuppress, EvictionOptions, Foresight,
    OveruseRanking, Remedies, Victims,
};
use plimsoll_core::model::reading::{
    ContainerStorage, FileSystemReading, NumaMemory, NumaPods, PodLoad, PodLoads, PodOnNode,
    PodProcesses, PodStorage, PressureReading, ProcessReading, StallReading, StallShares,
    StorageReading, Used, VolumeStorage,
};
use plimsoll_core::model::remedy::Remedy;
use plimsoll_core::model::signal::SIGNALS;
use plimsoll_core::model::swap::{CompressedSwap, PodSwap};
use plimsoll_core::model::threshold::{Amount, Passes, Threshold};
use plimsoll_core::protocol::cluster_link::OverusedNamespace;
use serde_json::json;

use super::Random;

const UIDS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const MI: u64 = 1 << 20;
const CAPACITY: u64 = 1000 * MI;
const MS: u64 = 1_000_000;

pub(super) fn config(random: &mut Random) -> EngineConfig {
    let thresholds = (0..random.below(8)).map(|_| threshold(random)).collect();
    EngineConfig {
        thresholds,
        layout: *random.pick(&[
            ImageFsLayout::Shared,
            ImageFsLayout::Dedicated,
            ImageFsLayout::Split,
        ]),
        local_storage_limits: random.one_in(2),
        pressure_transition_period_ns: random.below(60_000) * MS,
        max_pod_grace_period_s: *random.pick(&[-1, 0, 1, 30, i64::MAX, i64::MIN]),
        options: EvictionOptions {
            victims: *random.pick(&[Victims::One, Victims::Targeted]),
            availability: *random.pick(&[Availability::Kubelet, Availability::Reclaimable]),
            foresight: *random.pick(&[
                None,
                Some(Foresight {
                    horizon_ns: 500 * MS,
                }),
                Some(Foresight {
                    horizon_ns: u64::MAX,
                }),
            ]),
            remedies: random.one_in(2).then(|| Remedies {
                reclaim_budget_ns: *random.pick(&[0, 500 * MS, u64::MAX]),
                throttle_budget_ns: *random.pick(&[0, 2000 * MS, u64::MAX]),
                notify_budget_ns: *random.pick(&[0, 1000 * MS, u64::MAX]),
            }),
            disruption_budgets: random.one_in(2),
            overuse_ranking: *random.pick(&[
                OveruseRanking::Ignore,
                OveruseRanking::AmongEquals,
                OveruseRanking::BeforePriority,
            ]),
            breaker: random.one_in(2).then(|| Breaker {
                interval_ns: *random.pick(&[1, 10_000 * MS, u64::MAX]),
            }),
            ..EvictionOptions::kubelet()
        },
        pod_swap: *random.pick(&[PodSwap::Unlimited, PodSwap::Forbidden, PodSwap::Limited]),
        cpu: CpuOptions {
            burst: random.one_in(2).then(|| CpuBurst {
                burst_percent: *random.pick(&[0, 50, 100]),
                quota_percent: *random.pick(&[100, 200, 1000]),
                allowance_ns: *random.pick(&[0, 60_000 * MS, u64::MAX]),
                node_use_percent: *random.pick(&[0, 80, 100]),
                wait_percent: *random.pick(&[0, 10, 100]),
            }),
            suppress: random.one_in(2).then(|| CpuSuppress {
                wait_percent: *random.pick(&[0, 10, 100]),
                floor_milli: *random.pick(&[0, 100, u64::MAX]),
                budget_ns: *random.pick(&[0, 60_000 * MS, u64::MAX]),
            }),
        },
        namespace_shares: Vec::new(),
        beside_kubelet: random.one_in(4),
        exempt_uids: UIDS
            .iter()
            .filter(|_| random.one_in(12))
            .map(|uid| PodUid::from(*uid))
            .collect(),
    }
}

fn threshold(random: &mut Random) -> Threshold {
    let row = random.pick(&SIGNALS);
    let amount = |random: &mut Random| match random.below(3) {
        0 => Amount::Absolute(random.below(CAPACITY)),
        1 => Amount::Absolute(*random.pick(&[1, u64::MAX, i64::MAX as u64])),
        _ => Amount::Fraction((random.below(100) as f32 / 100.0).to_bits()),
    };
    Threshold {
        signal: row.signal,
        operator: row.operator,
        value: amount(random),
        grace_ns: *random.pick(&[0, 0, MS, 1000 * MS, u64::MAX]),
        min_reclaim: random.one_in(3).then(|| amount(random)),
        passes: *random.pick(&[Passes::All, Passes::All, Passes::First, Passes::Later]),
    }
}

pub(super) fn event(random: &mut Random, now_ns: &mut u64) -> Event {
    *now_ns += *random.pick(&[0, 1, MS, 20 * MS, 100 * MS, 1000 * MS, 31_000 * MS]);
    let kind = match random.below(31) {
        20 => budget(random),
        21 => EventKind::BudgetRemoved {
            budget: Arc::from("default/budget"),
        },
        22 => EventKind::RemedyReported {
            uid: any(random),
            remedy: *random.pick(&Remedy::ALL),
            report: random
                .pick(&[
                    RemedyReport::Reclaimed { bytes: MI },
                    RemedyReport::Reclaimed { bytes: u64::MAX },
                    RemedyReport::Unsupported,
                    RemedyReport::Failed {
                        error: "refused".to_owned(),
                    },
                ])
                .clone(),
        },
        23..26 => EventKind::CpuReading(Arc::new(cpu_reading(random, *now_ns))),
        26 => EventKind::CpuNotWritten {
            uid: any(random),
            container: Arc::from(*random.pick(&["", "c"])),
            knob: *random.pick(&[CpuKnob::Quota, CpuKnob::Burst]),
            error: "refused".to_owned(),
        },
        27 => EventKind::EvictionRefused { uid: any(random) },
        28 => EventKind::PodEndedByKubelet { uid: any(random) },
        30 => EventKind::FirstProcessesEnded { uid: any(random) },
        29 => EventKind::Overused(Arc::new(Overused {
            until_ns: now_ns.saturating_add(random.below(60_000) * MS),
            namespaces: vec![OverusedNamespace {
                namespace: "default".to_owned(),
                excess: *random.pick(&[0, 1, 1000, u16::MAX]),
            }],
        })),
        0..3 => pod(random),
        3..6 => EventKind::PodRunning { uid: any(random) },
        6 => EventKind::PodEmpty { uid: any(random) },
        7 => EventKind::PodRemoved { uid: any(random) },
        8 => EventKind::Outcome {
            uid: any(random),
            action: *random.pick(&[Action::Terminate, Action::Kill]),
            error: "refused".to_owned(),
        },
        9 => EventKind::DiskFreed {
            bytes: random.below(CAPACITY),
            inodes: random.below(1000),
            error: None,
        },
        _ => EventKind::Sample(sample(random, *now_ns)),
    };
    Event {
        at_ns: *now_ns,
        kind,
    }
}

/// Totals as they could be, and as they could not.
fn cpu_reading(random: &mut Random, now_ns: u64) -> CpuReading {
    let total = |random: &mut Random| match random.one_in(20) {
        true => u64::MAX,
        false => random.below(10_000_000),
    };
    let maybe = |random: &mut Random| random.one_in(2).then(|| random.below(1_000_000));
    let present: Vec<&str> = UIDS.into_iter().filter(|_| random.one_in(2)).collect();
    let pods = present.into_iter().map(|uid| PodCpu {
        uid: PodUid::from(uid),
        usage_us: total(random),
        waited_us: random.one_in(2).then(|| total(random)),
        cgroups: ["", "c"]
            .into_iter()
            .map(|container| CgroupCpu {
                container: Arc::from(container),
                period_us: *random.pick(&[0, 1000, 100_000]),
                quota_us: maybe(random),
                configured_quota_us: maybe(random),
                burst_us: maybe(random),
                configured_burst_us: maybe(random),
                periods: total(random),
                throttled: total(random),
                bursts: total(random),
                usage_us: total(random),
            })
            .collect(),
    });
    let pods = pods.collect();
    CpuReading {
        read_ns: now_ns,
        shared: SharedCpus {
            cpus: 4,
            busy_us: total(random),
            total_us: total(random),
        },
        source: random.one_in(2).then_some(WaitSource::Pressure),
        pods,
    }
}

fn any(random: &mut Random) -> PodUid {
    PodUid::from(*random.pick(&UIDS))
}

fn budget(random: &mut Random) -> EventKind {
    let budget = json!({
        "metadata": {"name": "budget", "namespace": "default"},
        "spec": {
            "minAvailable": random.pick(&[json!(null), json!(1), json!(u32::MAX), json!("50%"), json!("x%")]),
            "maxUnavailable": random.pick(&[json!(null), json!(0), json!(2), json!("100%")]),
            "selector": random.pick(&[json!(null), json!({}), json!({"matchLabels": {"app": "a"}})]),
        },
        "status": random.pick(&[json!(null), json!({"disruptionsAllowed": 0}), json!({"disruptionsAllowed": 5})]),
    });
    // Written above, of fields that a budget has.
    let budget = serde_json::from_value(budget).unwrap_or_default();
    EventKind::BudgetApplied {
        budget: Arc::new(budget),
    }
}

fn pod(random: &mut Random) -> EventKind {
    let quantities = ["0", "1", "64Mi", "300Mi", "9Ei", "0.5", "1e20", "100m"];
    let pod = json!({
        "metadata": {"name": "p", "uid": any(random), "labels": {"app": random.pick(&["a", "b"])}},
        "spec": {
            "priority": random.pick(&[0, 0, 0, 5, -5, i32::MAX, 2_000_000_000]),
            "terminationGracePeriodSeconds": random.pick(&[None, Some(0), Some(1), Some(30), Some(-1), Some(i64::MAX)]),
            "containers": [{"name": "c", "resources": {
                "requests": {"memory": random.pick(&quantities), "ephemeral-storage": random.pick(&quantities)},
                "limits": {"ephemeral-storage": random.pick(&quantities)},
            }}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": random.pick(&quantities)}}],
        },
    });
    // Written above, of fields that a pod has.
    let pod = serde_json::from_value(pod).unwrap_or_default();
    EventKind::PodApplied { pod: Arc::new(pod) }
}

fn sample(random: &mut Random, now_ns: u64) -> Sample {
    let crossed_ns = now_ns.saturating_sub(random.below(MS));
    let cause = *random.pick(&[
        Cause::Timer,
        Cause::Timer,
        Cause::Storage,
        Cause::DiskFreed,
        Cause::PressureStall,
        Cause::MemoryEvent,
        Cause::Lifecycle,
        Cause::ChargeThreshold { crossed_ns },
        Cause::KswapdWake { crossed_ns },
        Cause::DirectReclaim { crossed_ns },
    ]);
    let anon_bytes = random.below(CAPACITY);
    let file_bytes = random.below(CAPACITY - anon_bytes + 1);
    let free_bytes = CAPACITY - anon_bytes - file_bytes;
    let inactive_file_bytes = random.below(file_bytes + 1);
    let node = NodeMemory {
        capacity_bytes: CAPACITY,
        anon_bytes,
        file_bytes,
        inactive_file_bytes,
        active_file_bytes: file_bytes - inactive_file_bytes,
        lazily_freed_bytes: lazily_freed(random, file_bytes),
        free_bytes,
        kernel_available_bytes: free_bytes + inactive_file_bytes,
        swap_total_bytes: 100 * MI,
        swap_free_bytes: random.below(100 * MI),
        compressed_swap: match random.one_in(2) {
            true => CompressedSwap::default(),
            false => CompressedSwap {
                free_bytes: random.below(100 * MI),
                stored_bytes: random.below(200 * MI),
                used_bytes: random.below(200 * MI),
            },
        },
    };
    let some = |random: &mut Random| random.one_in(3);
    Sample {
        cause,
        node,
        kubepods: some(random).then(|| CgroupMemory {
            usage_bytes: anon_bytes,
            inactive_file_bytes: random.below(MI),
            usage_at_stat_bytes: anon_bytes,
            active_file_bytes: random.below(MI),
            lazily_freed_bytes: lazily_freed(random, MI),
            limit_bytes: some(random).then_some(CAPACITY),
            swap_bytes: random.below(MI),
        }),
        charged_bytes: some(random).then(|| random.below(CAPACITY)),
        pods: UIDS
            .iter()
            .filter_map(|uid| {
                let usage_bytes = random.below(CAPACITY / 4);
                (!random.one_in(8)).then(|| PodMemory {
                    uid: PodUid::from(*uid),
                    usage_bytes,
                    inactive_file_bytes: random.below(usage_bytes + 1),
                    active_file_bytes: random.below(usage_bytes + 1),
                    lazily_freed_bytes: lazily_freed(random, usage_bytes),
                    huge_page_bytes: 0,
                    usage_at_stat_bytes: usage_bytes,
                    uncharged_bytes: 0,
                    stat_age_ms: 0,
                })
            })
            .collect(),
        pods_read: PodsRead::All,
        storage: some(random).then(|| Arc::new(storage(random, now_ns))),
        processes: some(random).then(|| Arc::new(processes(random, now_ns))),
        pressure: some(random).then(|| pressure(random, now_ns)),
        numa: if some(random) {
            (0..2).map(|node| numa(random, node)).collect()
        } else {
            Vec::new()
        },
        numa_pods: some(random).then(|| Arc::new(numa_pods(random, now_ns))),
        loads: some(random).then(|| Arc::new(loads(random, now_ns))),
    }
}

fn storage(random: &mut Random, at_ns: u64) -> StorageReading {
    let mut file_system = || {
        (!random.one_in(8)).then(|| FileSystemReading {
            at_ns,
            available_bytes: random.below(CAPACITY),
            capacity_bytes: CAPACITY,
            inodes_free: Some(random.below(10_000)),
            inodes: Some(10_000),
        })
    };
    let (nodefs, imagefs, containerfs) = (file_system(), file_system(), file_system());
    let is_cut = random.one_in(16);
    let mut used = || Used {
        bytes: (!random.one_in(8)).then(|| random.below(CAPACITY)),
        inodes: (!random.one_in(8)).then(|| random.below(10_000)),
    };
    let pods = UIDS.iter().map(|uid| PodStorage {
        uid: PodUid::from(*uid),
        containers: vec![ContainerStorage {
            name: "c".to_owned(),
            rootfs: used(),
            logs: used(),
        }],
        volumes: vec![VolumeStorage {
            name: "v".to_owned(),
            used: used(),
        }],
        files: used(),
        is_cut,
    });
    StorageReading {
        nodefs,
        imagefs,
        containerfs,
        pods: pods.collect(),
    }
}

fn processes(random: &mut Random, at_ns: u64) -> ProcessReading {
    ProcessReading {
        at_ns,
        max: 32_768,
        running: random.below(33_000),
        pods: UIDS
            .iter()
            .map(|uid| PodProcesses {
                uid: PodUid::from(*uid),
                processes: random.below(10_000),
            })
            .collect(),
    }
}

fn pressure(random: &mut Random, at_ns: u64) -> PressureReading {
    let mut share = || random.below(10_001) as u16;
    let mut shares = || StallShares {
        avg10: share(),
        avg60: share(),
        avg300: share(),
        total_us: 0,
    };
    let mut stall = || {
        Some(StallReading {
            some: shares(),
            full: shares(),
        })
    };
    PressureReading {
        at_ns,
        memory: stall(),
        io: stall(),
        cpu: stall(),
    }
}

/// Seldom any.
fn lazily_freed(random: &mut Random, most_bytes: u64) -> u64 {
    match random.one_in(4) {
        true => random.below(most_bytes + 1),
        false => 0,
    }
}

fn numa(random: &mut Random, node: u32) -> NumaMemory {
    let anon_bytes = random.below(CAPACITY / 2);
    NumaMemory {
        node,
        capacity_bytes: CAPACITY / 2,
        free_bytes: CAPACITY / 2 - anon_bytes,
        anon_bytes,
        file_bytes: 0,
        inactive_file_bytes: 0,
        lazily_freed_bytes: lazily_freed(random, MI),
    }
}

fn numa_pods(random: &mut Random, at_ns: u64) -> NumaPods {
    let node = u32::from(random.one_in(2));
    let pods = UIDS.iter().map(|uid| PodOnNode {
        uid: PodUid::from(*uid),
        used_bytes: random.below(CAPACITY / 2),
    });
    NumaPods {
        at_ns,
        node,
        pods: pods.collect(),
    }
}

fn loads(random: &mut Random, at_ns: u64) -> PodLoads {
    let mut rate = |below| (!random.one_in(8)).then(|| random.below(below));
    let pods = UIDS.iter().map(|uid| PodLoad {
        uid: PodUid::from(*uid),
        cpu_milli: rate(4000),
        io_bytes_per_s: rate(CAPACITY),
    });
    PodLoads {
        at_ns,
        pods: pods.collect(),
    }
}
