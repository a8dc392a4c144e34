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

fn fast(cpu: i64) -> messages::PodResources {
    messages::PodResources {
        name: "p".to_owned(),
        namespace: "n".to_owned(),
        containers: vec![messages::ContainerResources {
            name: "fast".to_owned(),
            cpu_ids: vec![cpu],
            ..Default::default()
        }],
    }
}

#[tokio::test]
async fn one_pod_is_asked_for_and_where_that_cannot_be_all_are() {
    // What the kubelet does about the question, and which calls follow.
    for (get, calls) in [
        (
            sound(&messages::GetPodResourcesResponse {
                pod_resources: Some(fast(7)),
            }),
            [2, 0],
        ),
        // It knows no such pod, and may know it the next time.
        (Answer::Refuses(2), [2, 2]),
        // Before 1.27.
        (Answer::Refuses(12), [1, 2]),
        (sound(&messages::GetPodResourcesResponse::default()), [2, 2]),
    ] {
        let counts = std::sync::Arc::new(std::sync::Mutex::new([0, 0]));
        let of_kubelet = std::sync::Arc::clone(&counts);
        let kubelet = StandIn::start(move |path, _| {
            let call = path.rsplit('/').next();
            let mut counts = of_kubelet.lock().unwrap();
            counts[0] += u32::from(call == Some("Get"));
            counts[1] += u32::from(call == Some("List"));
            match call {
                Some("Get") => get.clone(),
                _ => answer(path),
            }
        });
        let mut kubelet = Kubelet::open(kubelet.socket()).await.unwrap();
        let known = NodeResources {
            pods: vec!["n/o".to_owned(), "n/p".to_owned()],
            given: vec![
                Given {
                    container: "n/p/fast".to_owned(),
                    cpus: vec![1],
                    ..Given::default()
                },
                Given {
                    container: "n/pp/x".to_owned(),
                    cpus: vec![9],
                    ..Given::default()
                },
            ],
            allocatable: None,
        };
        for _ in 0..2 {
            let now = kubelet.with_pod("n/p", &known).await.unwrap();
            let fast = now.given.iter().find(|given| given.container == "n/p/fast");
            let cpus = &fast.unwrap().cpus[..];
            if calls[1] == 0 {
                assert_eq!((cpus, &now.pods), (&[7][..], &known.pods));
                assert_eq!(now.given.len(), 2, "others have what they had");
            } else {
                assert_eq!(
                    (cpus, &now.pods[..]),
                    (&[2, 3][..], &["n/p".to_owned()][..])
                );
            }
        }
        assert_eq!(*counts.lock().unwrap(), calls);
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
