use proptest::prelude::*;
use serde_json::json;

use super::*;

const NIC: &str = "vendor.example/nic";

/// Devices `d0`, `d1`… near to the nodes of each mask.
fn devices(nodes: u64, near: &[u64], preference: Preference) -> Devices {
    let mut inventory = Inventory::default();
    let all = near.iter().enumerate().map(|(at, mask)| Device {
        id: format!("d{at}"),
        numa_nodes: NumaMask(*mask),
        healthy: true,
    });
    inventory.set(NIC, all, preference).unwrap();
    Devices::new(NumaMask(nodes), inventory)
}

/// A pod whose containers `c0`, `c1`… request that many devices; the first `init` of them are init containers.
fn pod(name: &str, init: usize, wanted: &[u64]) -> Pod {
    let containers = wanted.iter().enumerate().map(|(at, count)| {
        json!({"name": format!("c{at}"), "resources": {"limits": {(NIC): count.to_string(), "cpu": "1"}}})
    });
    let mut containers: Vec<_> = containers.collect();
    let app = containers.split_off(init);
    let pod = json!({
        "metadata": {"name": name, "uid": name},
        "spec": {"initContainers": containers, "containers": app},
    });
    serde_json::from_value(pod).unwrap()
}

fn container(pod: &Pod, at: usize) -> Container {
    let name = format!("c{at}");
    pod.all_containers()
        .find(|container| container.name == name)
        .unwrap()
        .clone()
}

fn allocate(
    devices: &mut Devices,
    pod: &Pod,
    at: usize,
    mask: Option<u64>,
) -> Result<Vec<String>, String> {
    let hint = TopologyHint {
        mask: mask.map(NumaMask),
        preferred: false,
    };
    let app = container(pod, at);
    devices
        .allocate(pod, &app, hint)
        .map_err(|error| error.to_string())?;
    let held = devices.held(&pod.uid(), &app.name);
    let ids = held
        .and_then(|held| held.get(NIC))
        .cloned()
        .unwrap_or_default();
    Ok(ids.into_iter().collect())
}

fn listed(hints: &ProviderHints) -> Option<Vec<(u64, bool)>> {
    let list = hints[NIC].as_ref()?.list().unwrap().into_iter();
    Some(
        list.map(|hint| (hint.mask.unwrap().0, hint.preferred))
            .collect(),
    )
}

/// The hints of a container that requests `wanted` devices, beside what other pods hold.
fn hints(devices: &Devices, wanted: u64) -> Option<Vec<(u64, bool)>> {
    let app_pod = pod("own", 0, &[wanted]);
    listed(&devices.hints(&app_pod, &container(&app_pod, 0)))
}

#[test]
fn hints_by_what_is_free_and_what_there_is() {
    type Case<'a> = (&'a [u64], &'a [&'a str], u64, Option<&'a [(u64, bool)]>);
    let cases: [Case; 9] = [
        // No node is known of any: no preference.
        (&[0, 0], &[], 1, None),
        (&[1, 2], &[], 1, Some(&[(1, true), (2, true), (3, false)])),
        (&[1, 2], &[], 2, Some(&[(3, true)])),
        // Too many for the machine: nothing will do.
        (&[1, 2], &[], 3, Some(&[])),
        // One is taken; one node alone would do if it were not.
        (&[1, 2], &["d0"], 1, Some(&[(2, true), (3, false)])),
        (&[1, 1, 2], &["d0"], 2, Some(&[(3, false)])),
        (&[1, 1, 2], &["d0", "d1"], 2, Some(&[])),
        // Near to both nodes: counted once.
        (&[3, 3], &[], 2, Some(&[(1, true), (2, true), (3, false)])),
        // One near to no node is not near to a set, and still there are enough.
        (&[1, 0], &[], 2, Some(&[])),
    ];
    for (near, taken, wanted, expected) in cases {
        let mut devices = devices(3, near, Preference::Any);
        let taken: Ids = taken.iter().map(|id| (*id).to_owned()).collect();
        devices.restore(&"other".into(), "c0", Held::from([(NIC.to_owned(), taken)]));
        assert_eq!(
            hints(&devices, wanted).as_deref(),
            expected,
            "{near:?} {wanted}"
        );
    }
}

#[test]
fn a_container_with_devices_keeps_their_hints() {
    let mut devices = devices(3, &[1, 1, 2, 2], Preference::Any);
    let app_pod = pod("own", 0, &[2]);
    allocate(&mut devices, &app_pod, 0, Some(2)).unwrap();
    let hints = |devices: &Devices, pod: &Pod| listed(&devices.hints(pod, &container(pod, 0)));
    assert_eq!(hints(&devices, &app_pod), Some(vec![(2, true), (3, false)]));
    assert_eq!(
        listed(&devices.pod_hints(&app_pod)),
        Some(vec![(2, true), (3, false)])
    );
    // The request has changed.
    let changed = pod("own", 0, &[1]);
    assert_eq!(hints(&devices, &changed), Some(Vec::new()));
    assert_eq!(
        allocate(&mut devices, &changed, 0, None).unwrap_err(),
        "pod default/own, container c0: it holds 2 of vendor.example/nic and now wants 1: a container's devices cannot change, make \
         a new pod"
    );
}

#[test]
fn what_init_containers_left_must_be_near() {
    let mut devices = devices(3, &[1, 1, 2, 2], Preference::Any);
    let app_pod = pod("own", 1, &[1, 2]);
    assert_eq!(
        allocate(&mut devices, &app_pod, 0, Some(2)).unwrap(),
        ["d2"]
    );
    let hints = listed(&devices.hints(&app_pod, &container(&app_pod, 1)));
    assert_eq!(hints, Some(vec![(2, true), (3, false)]));
    assert_eq!(
        allocate(&mut devices, &app_pod, 1, Some(2)).unwrap(),
        ["d2", "d3"]
    );
    // It is used up.
    let other = pod("other", 0, &[3]);
    assert_eq!(
        allocate(&mut devices, &other, 0, None).unwrap_err(),
        "pod default/other, container c0: 3 of vendor.example/nic are wanted and 2 are free (near to NUMA node: 2 to 0): 1 more would \
         have to be free; held by pod own container c0, pod own container c1"
    );
    devices.remove(&app_pod.uid());
    devices.remove(&app_pod.uid());
    assert_eq!(
        allocate(&mut devices, &other, 0, None).unwrap(),
        ["d0", "d1", "d2"]
    );
}

#[test]
fn devices_are_taken_from_near_to_far() {
    type Case<'a> = (&'a [u64], Preference, Option<u64>, u64, &'a [&'a str]);
    let first = |ids: &[&str]| Preference::Listed(ids.iter().map(|id| (*id).to_owned()).collect());
    let cases: [Case; 10] = [
        (&[0, 2, 1, 1], Preference::Any, None, 2, &["d0", "d1"]),
        (&[0, 2, 1, 1], Preference::Any, Some(1), 2, &["d2", "d3"]),
        // Near to others before near to none.
        (
            &[0, 2, 1, 1],
            Preference::Any,
            Some(1),
            3,
            &["d1", "d2", "d3"],
        ),
        (
            &[0, 2, 1, 1],
            Preference::Any,
            Some(1),
            4,
            &["d0", "d1", "d2", "d3"],
        ),
        // What is preferred does not outweigh what is near, except for what is missing.
        (&[0, 2, 1, 1], first(&["d0", "d3"]), Some(1), 1, &["d3"]),
        (
            &[0, 2, 1, 1],
            first(&["d0", "d3"]),
            Some(1),
            3,
            &["d0", "d2", "d3"],
        ),
        (&[0, 2, 1, 1], first(&["d3", "d1"]), None, 2, &["d1", "d3"]),
        // One that is near to several counts as near.
        (&[4, 6, 4], Preference::Any, Some(2), 1, &["d1"]),
        // All from one node.
        (
            &[1, 2, 4, 2],
            Preference::FewestNodes,
            None,
            2,
            &["d1", "d3"],
        ),
        (
            &[1, 2, 1, 4, 4, 4],
            Preference::FewestNodes,
            Some(5),
            3,
            &["d3", "d4", "d5"],
        ),
    ];
    for (near, preference, mask, wanted, expected) in cases {
        let mut devices = devices(7, near, preference.clone());
        let app_pod = pod("own", 0, &[wanted]);
        let ids = allocate(&mut devices, &app_pod, 0, mask).unwrap();
        assert_eq!(ids, expected, "{near:?} {preference:?} {mask:?} {wanted}");
    }
}

#[test]
fn only_healthy_devices_are_allocated() {
    let device = |id: &str, numa_nodes, healthy| Device {
        id: id.to_owned(),
        numa_nodes,
        healthy,
    };
    let mut inventory = Inventory::default();
    let listed = [
        device("a", NumaMask::of(1), false),
        device("b", NumaMask::EMPTY, true),
    ];
    inventory.set(NIC, listed, Preference::Any).unwrap();
    let mut devices = Devices::new(NumaMask(3), inventory.clone());
    let app_pod = pod("own", 0, &[1]);
    assert_eq!(allocate(&mut devices, &app_pod, 0, Some(2)).unwrap(), ["b"]);
    // Another resource that no device can serve, and one for which no device is left.
    let other = pod("other", 0, &[1]);
    assert_eq!(
        allocate(&mut devices, &other, 0, None).unwrap_err(),
        "pod default/other, container c0: 1 of vendor.example/nic are wanted and 0 are free (near to NUMA node: none): 1 more would \
         have to be free, 1 are not healthy; held by pod own container c0"
    );
    let sick = device("b", NumaMask::EMPTY, false);
    let listed = [device("a", NumaMask::EMPTY, true), sick.clone()];
    inventory.set(NIC, listed, Preference::Any).unwrap();
    devices.inventory = inventory.clone();
    let error = allocate(&mut devices, &app_pod, 0, None).unwrap_err();
    assert!(
        error.ends_with("its devices of vendor.example/nic are no longer healthy: b"),
        "{error}"
    );
    inventory.set(NIC, [sick], Preference::Any).unwrap();
    devices.inventory = inventory;
    let error = allocate(&mut devices, &other, 0, None).unwrap_err();
    assert!(
        error.ends_with("no device of vendor.example/nic is healthy: 1 would have to be"),
        "{error}"
    );
    devices.inventory = Inventory::default();
    let error = allocate(&mut devices, &other, 0, None).unwrap_err();
    assert!(
        error.ends_with(
            "nothing offers vendor.example/nic any more: wait until its device plugin is back"
        ),
        "{error}"
    );
}

#[test]
fn pod_resources_say_what_there_is() {
    let read = |text: &str| -> Vec<AllocatableDevices> { serde_json::from_str(text).unwrap() };
    let listed = read(
        r#"[{"resource_name":"vendor.example/nic","device_ids":["a","b"],"topology":{"nodes":[{"ID":0}]}},
            {"resourceName":"vendor.example/nic","deviceIds":["b"],"topology":{"nodes":[{"ID":1}]}},
            {"resource_name":"vendor.example/fpga","device_ids":["x"]}]"#,
    );
    let inventory = Inventory::from_pod_resources(&listed).unwrap();
    let devices = Devices::new(NumaMask(3), inventory);
    assert_eq!(hints(&devices, 2), Some(vec![(1, true), (3, false)]));
    let high = read(
        r#"[{"resource_name":"vendor.example/nic","device_ids":["a"],"topology":{"nodes":[{"ID":64}]}}]"#,
    );
    assert_eq!(
        Inventory::from_pod_resources(&high)
            .unwrap_err()
            .to_string(),
        "vendor.example/nic, device a: NUMA node 64 is beyond 63, the highest that is supported"
    );
    let twice = |id: &str| Device {
        id: id.to_owned(),
        numa_nodes: NumaMask::EMPTY,
        healthy: true,
    };
    let error = Inventory::default().set(NIC, [twice("a"), twice("a")], Preference::Any);
    assert_eq!(
        error.unwrap_err().to_string(),
        "vendor.example/nic: device a is listed twice: give each device an id of its own"
    );
}

#[test]
fn a_pod_wants_what_its_containers_want_at_once() {
    let devices = devices(3, &[1, 1, 2, 2], Preference::Any);
    // Two and one beside each other, or three before them.
    let app_pod = pod("own", 1, &[3, 2, 1]);
    assert_eq!(listed(&devices.pod_hints(&app_pod)), Some(vec![(3, true)]));
    let small = pod("small", 1, &[1, 1, 1]);
    assert_eq!(
        listed(&devices.pod_hints(&small)),
        Some(vec![(1, true), (2, true), (3, false)])
    );
}

proptest! {
    #[test]
    fn no_device_is_held_twice(
        near in prop::collection::vec(0u64..8, 1..9),
        steps in prop::collection::vec((0usize..4, 0u64..9, any::<bool>()), 1..40),
        preference in prop_oneof![
            Just(Preference::Any),
            Just(Preference::FewestNodes),
            Just(Preference::Listed(vec!["d2".to_owned(), "d0".to_owned(), "none".to_owned()])),
        ],
    ) {
        let mut devices = devices(7, &near, preference);
        let pods: Vec<Pod> = (0..4u64).map(|at| pod(&format!("p{at}"), 1, &[at, 2, at % 2])).collect();
        for (at, mask, removes) in steps {
            let app_pod = &pods[at];
            if removes {
                devices.remove(&app_pod.uid());
                continue;
            }
            for at in 0..3 {
                let mask = (mask > 0).then_some(mask & 7);
                let before_held = devices.held.clone();
                match allocate(&mut devices, app_pod, at, mask) {
                    Ok(ids) => {
                        let wanted = container(app_pod, at).resources.limits[NIC].value();
                        prop_assert_eq!(ids.len() as i64, wanted);
                    }
                    Err(_) => {
                        prop_assert_eq!(&before_held, &devices.held);
                        devices.remove(&app_pod.uid());
                        break;
                    }
                }
            }
            // Within a pod an init container's devices are used again; no two pods share one.
            let mut seen = BTreeMap::new();
            for (pod, containers) in &devices.held {
                for id in containers.values().flat_map(|held| held.values().flatten()) {
                    prop_assert_eq!(seen.entry(id).or_insert(pod), &pod);
                }
                let running = ["c1", "c2"].iter().filter_map(|name| containers.get(*name));
                let running: Vec<&String> = running.flat_map(|held| held.values().flatten()).collect();
                let distinct: BTreeSet<&&String> = running.iter().collect();
                prop_assert_eq!(running.len(), distinct.len());
            }
        }
        for app_pod in &pods {
            devices.remove(&app_pod.uid());
        }
        prop_assert!(devices.held.is_empty());
        prop_assert_eq!(devices.free(NIC, &devices.inventory.resources[NIC]).len(), near.len());
    }
}
