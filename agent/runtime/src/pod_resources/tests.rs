use super::*;
use crate::interface::pod_resources as messages;
use crate::tests::stand_in::{Answer, StandIn, sound};

fn on_node(node: i64) -> Option<TopologyInfo> {
    Some(TopologyInfo {
        nodes: vec![messages::NumaNode { id: node }],
    })
}

fn answer(path: &str) -> Answer {
    match path {
        "/v1.PodResourcesLister/List" => sound(&messages::ListPodResourcesResponse {
            pod_resources: vec![messages::PodResources {
                name: "p".to_owned(),
                namespace: "n".to_owned(),
                containers: vec![
                    messages::ContainerResources {
                        name: "plain".to_owned(),
                        ..Default::default()
                    },
                    messages::ContainerResources {
                        name: "fast".to_owned(),
                        cpu_ids: vec![2, 3],
                        devices: vec![ContainerDevices {
                            resource_name: "example.com/gpu".to_owned(),
                            device_ids: vec!["g0".to_owned()],
                            topology: on_node(1),
                        }],
                        ..Default::default()
                    },
                ],
            }],
        }),
        _ => Answer::Refuses(12),
    }
}

#[tokio::test]
async fn devices_and_exclusive_cpus_are_listed_and_say_who_places() {
    let kubelet = StandIn::start(|path, _| answer(path));
    let resources = list(kubelet.socket()).await.unwrap();
    // A kubelet before 1.23.
    assert_eq!(resources.allocatable, None);
    let [fast] = &resources.given[..] else {
        panic!("{resources:?}");
    };
    assert_eq!(
        (&*fast.container, &fast.cpus[..]),
        ("n/p/fast", &[2, 3][..])
    );
    assert_eq!(fast.devices[0].numa_nodes, [1]);
    assert_eq!(resources.owners(), ["cpuManagerPolicy: static"]);
    let text = crate::show::resources(&resources);
    assert!(text.contains("example.com/gpu x1 @1"), "{text}");
    assert!(
        text.contains("the kubelet places by cpuManagerPolicy: static"),
        "{text}"
    );
}
