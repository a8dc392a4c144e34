//! Nodes that no tenant can use.

use super::*;

const TAINT: &str = "node-role.kubernetes.io/control-plane";

/// `a` fills the one node that its pods can use, `b` waits, and beside it is a node of the control plane.
fn beside_a_control_plane() -> World {
    let mut world = World::full(false);
    world.see(
        Kind::Nodes,
        &json!({"metadata": {"name": "cp"}, "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "10", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}}),
    );
    world
}

/// What there is of CPU, and whether pods are evicted.
fn outcome(mut world: World) -> (u64, bool) {
    let calls = world.run(100, true, |_| None);
    let cpu = world.arbiter.judgement.capacity["cpu"];
    (cpu, !evictions(&calls).is_empty())
}

fn tolerant(world: &mut World, namespace: &str, node: Option<&str>) -> Value {
    let mut pod = world.pod_object(namespace, "tolerant", node);
    pod["spec"]["tolerations"] = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": TAINT, "operator": "Exists"},
    ]);
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("0");
    pod
}

#[test]
fn a_node_that_no_tenant_can_use_is_not_shared_out() {
    assert_eq!(outcome(beside_a_control_plane()), (10_000, true));
    // What runs there counts, as on a node that is cordoned.
    let mut world = beside_a_control_plane();
    world.pod("kube-system", "etcd", Some("cp"));
    assert_eq!(outcome(world).0, 11_000);
}

#[test]
fn a_pod_of_a_consumer_that_tolerates_the_taint_opens_the_node() {
    for node in [None, Some("n"), Some("cp")] {
        let mut world = beside_a_control_plane();
        let pod = tolerant(&mut world, "a", node);
        world.see_pod(pod);
        assert_eq!(outcome(world), (20_000, false), "{node:?}");
    }
}

#[test]
fn no_other_pod_does() {
    let daemon_set = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true}]);
    for (namespace, owners) in [("a", daemon_set), ("kube-system", json!([]))] {
        let mut world = beside_a_control_plane();
        let mut pod = tolerant(&mut world, namespace, Some("cp"));
        pod["metadata"]["ownerReferences"] = owners;
        world.see_pod(pod);
        assert_eq!(outcome(world), (10_000, true), "{namespace}");
    }
    // Of two taints one is not enough. That of a node's state closes none.
    let full = json!({"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"});
    let other = json!({"key": "example.com/other", "effect": "NoExecute"});
    for (taints, expected) in [
        (
            json!([{"key": TAINT, "effect": "NoSchedule"}, other]),
            (10_000, true),
        ),
        (json!([full, other]), (10_000, true)),
        (json!([full]), (20_000, false)),
    ] {
        let mut world = beside_a_control_plane();
        let pod = tolerant(&mut world, "a", Some("n"));
        world.see_pod(pod);
        world.see(
            Kind::Nodes,
            &json!({"metadata": {"name": "cp"}, "spec": {"taints": taints},
                "status": {"allocatable": {"cpu": "10", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}}),
        );
        assert_eq!(outcome(world), expected);
    }
}

/// Whoever writes more tolerations than are compared changes nothing.
#[test]
fn beyond_the_work_of_a_cycle_all_nodes_count() {
    let mut world = beside_a_control_plane();
    let mut pod = tolerant(&mut world, "a", Some("n"));
    pod["spec"]["tolerations"] = json!([{"key": "example.com/some", "operator": "Exists"}]);
    world.see_pod(pod);
    let closed = |work| judge::closed_with(&world.arbiter.store, work);
    assert_eq!(closed(100), ["cp"]);
    assert!(closed(1).is_empty());
}
