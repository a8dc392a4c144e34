//! Files as they are on real nodes (written anew after public documentation), accepted as they are.

use super::*;
use plimsoll_core::kube::duration;

const KUBEADM: &str = include_str!("../testdata/kubeadm.yaml");
const KIND: &str = include_str!("../testdata/kind.yaml");
const EKS: &str = include_str!("../testdata/eks.json");
const GKE: &str = include_str!("../testdata/gke.yaml");
const AKS: &str = include_str!("../testdata/aks.json");
const OPENSHIFT: &str = include_str!("../testdata/openshift.yaml");
const K3S: &str = include_str!("../testdata/k3s.yaml");
const HARDENED: &str = include_str!("../testdata/hardened.yaml");

/// Each file, and the fields that are set and not acted on.
pub(super) const FILES: [(&str, &[&str]); 8] = [
    (KUBEADM, &["cgroupDriver"]),
    (KIND, &["cgroupDriver", "imageGCHighThresholdPercent"]),
    (
        EKS,
        &["cgroupDriver", "kubeReserved: ephemeral-storage", "maxPods"],
    ),
    (GKE, &["kubeReserved: ephemeral-storage"]),
    (AKS, &["containerLogMaxSize"]),
    (
        OPENSHIFT,
        &[
            "cgroupDriver",
            "containerLogMaxSize",
            "maxPods",
            "systemReserved: ephemeral-storage",
        ],
    ),
    (K3S, &["cgroupDriver"]),
    (HARDENED, &[]),
];

#[test]
fn files_of_real_nodes_are_accepted_and_nothing_passes_in_silence() {
    for (text, expected) in FILES {
        let effective = with_flags(text, &EvictionFlags::default()).unwrap();
        let remarks = effective.remarks();
        let fields: Vec<&str> = remarks.iter().map(|remark| remark.field.as_str()).collect();
        assert_eq!(fields, expected, "{text}");
    }
}

#[test]
fn the_zeros_that_kubeadm_writes_are_the_defaults() {
    assert_eq!(of(KUBEADM).unwrap(), of("").unwrap());
    let k3s = of(K3S).unwrap();
    assert_eq!(k3s.engine.pressure_transition_period_ns, 300_000_000_000);
    assert_eq!(hard(&k3s, "memory.available"), None);
    assert_eq!(
        hard(&k3s, "nodefs.available"),
        hard(
            &of("evictionHard: {nodefs.available: 5%}").unwrap(),
            "nodefs.available"
        )
    );
}

#[test]
fn what_the_files_say_is_in_force() {
    let kind = of(KIND).unwrap();
    assert_eq!(
        thresholds(&kind),
        [("kernelMemory.available", Amount::Absolute(64 << 20))]
    );
    assert_eq!(kind.cgroups.root, "/kubelet");

    let aks = of(AKS).unwrap();
    assert_eq!(hard(&aks, "pid.available"), Some(Amount::Absolute(2000)));
    assert_eq!(reserved_memory_bytes(&aks), 2250 << 20);
    assert_eq!(aks.storage.container_log_max_bytes, 50_000_000);

    let openshift = of(OPENSHIFT).unwrap();
    // `reservedSystemCPUs` replaces what is reserved of cpu.
    assert_eq!(
        openshift.node.reserved_cpus,
        [0, 1, 20, 21].into_iter().collect()
    );
    assert_eq!(openshift.node.system_reserved["cpu"].value(), 4);
    assert_eq!(reserved_memory_bytes(&openshift), 1 << 30);

    let hardened = of(HARDENED).unwrap();
    assert!(hardened.fail_cgroup_v1);
    assert_eq!(hardened.engine.max_pod_grace_period_s, 90);
    let soft: Vec<_> = hardened
        .engine
        .thresholds
        .iter()
        .filter(|threshold| !threshold.is_hard())
        .collect();
    assert_eq!(soft.len(), 5);
    assert!(
        soft.iter()
            .all(|threshold| threshold.grace_ns == duration::parse_ns("1m30s").unwrap() as u64)
    );
    // The merge key of YAML, overridden by the map that it stands in.
    let memory = soft
        .iter()
        .find(|threshold| threshold.signal.row().name == "memory.available")
        .unwrap();
    assert_eq!(memory.value, Amount::Fraction(0.02_f32.to_bits()));
}
