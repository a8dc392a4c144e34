//! Limits of local storage, which evict a pod whatever the node has left.

use std::sync::Arc;

use plimsoll_core::model::config::EngineConfig;
use plimsoll_core::model::decision::{Decision, Limited, Reason};
use plimsoll_core::model::event::{EventKind, Sample};
use plimsoll_core::model::file_system::ImageFsLayout;
use plimsoll_core::model::reading::{
    ContainerStorage, FileSystemReading, PodStorage, StorageReading, Used,
};
use plimsoll_core::model::signal::Signal;
use serde_json::json;

use crate::node::{Node, hard, with_storage};

/// `podEphemeralStorageLimitEviction` and `containerEphemeralStorageLimitEviction` of Kubernetes 1.36.
#[test]
fn a_pod_over_its_limit_of_local_storage_goes() {
    let goes = |layout: ImageFsLayout, limit: &str, layer: u64, logs: u64, files: u64| {
        let mut node = Node::with(EngineConfig {
            layout,
            ..EngineConfig::default()
        });
        let pod = json!({
            "metadata": {"name": "d", "uid": "d"},
            "spec": {"containers": [
                {"name": "c", "resources": {"limits": {"ephemeral-storage": limit}}},
                {"name": "other", "resources": {"limits": {"ephemeral-storage": "0"}}},
            ]},
        });
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        node.step(EventKind::PodApplied { pod });
        node.step(EventKind::PodRunning { uid: "d".into() });
        let used = |bytes| Used {
            bytes: Some(bytes),
            inodes: Some(1),
        };
        let sample = with_storage(PodStorage {
            uid: "d".into(),
            containers: vec![ContainerStorage {
                name: "c".to_owned(),
                rootfs: used(layer),
                logs: used(logs),
            }],
            volumes: Vec::new(),
            files: used(files),
            // What was counted counts, however much more there is.
            is_cut: logs == 24,
        });
        let decisions = node.sample(&[("d", 1, 0, 0)], sample);
        decisions.iter().find_map(|decision| match decision {
            Decision::Evict {
                reason: Reason::LocalStorage(reason),
                ..
            } => Some(reason.limited.clone()),
            _ => None,
        })
    };
    let (shared, dedicated) = (ImageFsLayout::Shared, ImageFsLayout::Dedicated);
    let of_pod = Some(Limited::Pod);
    for layout in [shared, dedicated] {
        assert_eq!(goes(layout, "1Ki", 1000, 24, 0), None);
        // And the files that the kubelet makes for it.
        assert_eq!(goes(layout, "1Ki", 1000, 24, 1), of_pod);
        // Its writable layers count in the sum wherever they are.
        assert_eq!(goes(layout, "1Ki", 1000, 25, 0), of_pod);
        // A limit of nothing is one for a pod, and none for a container.
        assert_eq!(goes(layout, "0", 0, 1, 0), of_pod);
        // As it is, not rounded.
        assert_eq!(goes(layout, "100500m", 0, 101, 0), of_pod);
        assert_eq!(goes(layout, "100500m", 0, 100, 0), None);
    }
}

/// Who has more names than are counted hides nothing by it: when the disk runs short it is the first to go, as a pod
/// without statistics.
#[test]
fn a_pod_whose_count_ended_early_goes_first_for_the_disk() {
    for (is_cut, first) in [(false, "large"), (true, "hider")] {
        let mut node = Node::with(EngineConfig {
            thresholds: vec![hard(Signal::NodefsAvailable, 1 << 30)],
            ..EngineConfig::default()
        });
        for name in ["hider", "large"] {
            node.pod(name, json!({}), json!({"containers": [{"name": "c"}]}));
            node.step(EventKind::PodRunning { uid: name.into() });
        }
        let pods = [("hider", 1, is_cut), ("large", 1 << 30, false)];
        let pods = pods.map(|(name, bytes, is_cut)| PodStorage {
            uid: name.into(),
            containers: vec![ContainerStorage {
                name: "c".to_owned(),
                rootfs: Used {
                    bytes: Some(bytes),
                    inodes: Some(1),
                },
                logs: Used::default(),
            }],
            volumes: Vec::new(),
            files: Used::default(),
            is_cut,
        });
        let reading = StorageReading {
            nodefs: Some(FileSystemReading {
                at_ns: 1,
                available_bytes: 1,
                capacity_bytes: 100 << 30,
                inodes_free: None,
                inodes: None,
            }),
            imagefs: None,
            containerfs: None,
            pods: pods.into(),
        };
        let mut evicted = Vec::new();
        for second in 1..=90 {
            let mut reading = reading.clone();
            if let Some(nodefs) = &mut reading.nodefs {
                nodefs.at_ns = second * 1_000_000_000;
            }
            let sample = Sample {
                storage: Some(Arc::new(reading)),
                ..Sample::default()
            };
            let used = [("hider", 1, 0, 0), ("large", 1, 0, 0)];
            let decisions = node.sample_after(1_000_000_000, &used, sample);
            evicted.extend(decisions.into_iter().filter_map(|decision| match decision {
                Decision::Evict { uid, reason, .. } => Some((uid.to_string(), reason.to_string())),
                _ => None,
            }));
        }
        let (uid, reason) = &evicted[0];
        assert_eq!(uid, first);
        let is_unknown = reason.contains("how much it uses is unknown, priority 0, rank 1 of 2");
        assert_eq!(is_unknown, is_cut, "{reason}");
    }
}
