//! Limits of local storage, which evict a pod whatever the node has left.

use std::sync::Arc;

use plimsoll_core::model::config::EngineConfig;
use plimsoll_core::model::decision::{Decision, Limited, Reason};
use plimsoll_core::model::event::EventKind;
use plimsoll_core::model::file_system::ImageFsLayout;
use plimsoll_core::model::reading::{ContainerStorage, PodStorage, Used};
use serde_json::json;

use crate::node::{Node, with_storage};

/// `podEphemeralStorageLimitEviction` and `containerEphemeralStorageLimitEviction` of Kubernetes 1.36.
#[test]
fn a_pod_over_its_limit_of_local_storage_goes() {
    let goes = |layout: ImageFsLayout, limit: &str, layer: u64, logs: u64| {
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
        assert_eq!(goes(layout, "1Ki", 1000, 24), None);
        // Its writable layers count in the sum wherever they are.
        assert_eq!(goes(layout, "1Ki", 1000, 25), of_pod);
        // A limit of nothing is one for a pod, and none for a container.
        assert_eq!(goes(layout, "0", 0, 1), of_pod);
        // As it is, not rounded.
        assert_eq!(goes(layout, "100500m", 0, 101), of_pod);
        assert_eq!(goes(layout, "100500m", 0, 100), None);
    }
}
