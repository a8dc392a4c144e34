use super::*;

fn layout(text: &str) -> Layout {
    let machine: Machine = serde_json::from_str(text).unwrap();
    Layout::of(&machine)
}

/// Indented names.
fn outline(parts: &[Part], depth: usize) -> String {
    let part = |part: &Part| {
        let below = outline(&part.children, depth + 1);
        format!("{}{part}: {}\n{below}", "  ".repeat(depth), part.cpus())
    };
    parts.iter().map(part).collect()
}

#[test]
fn parts_that_are_all_there_is_are_merged() {
    let layout = layout(
        r#"{"version": 1, "cores": [
            {"threads": ["0-1", "8-9"], "socket": 0, "die": 0, "node": 0, "l3": 0},
            {"threads": ["2-3", "10-11"], "socket": 0, "die": 0, "node": 0, "l3": 1},
            {"threads": ["4-7", "12-15"], "socket": 1, "die": 0, "node": 1, "l3": 2}
        ], "nodes": [{"id": 0}, {"id": 1}, {"id": 5}]}"#,
    );
    assert_eq!(
        outline(&layout.parts, 0),
        "socket 0, NUMA node 0: 0-3,8-11\n  L3 0: 0-1,8-9\n  L3 1: 2-3,10-11\nsocket 1, NUMA node 1, L3 2: 4-7,12-15\n"
    );
    assert_eq!(layout.nodes_without_cpus, [5]);
    assert_eq!(
        layout.count(Level::Die),
        0,
        "a die in each socket says nothing"
    );
}

#[test]
fn a_level_with_fewer_parts_is_outside() {
    // One L3 for two nodes; and two sockets in one node.
    let sub_numa = layout(
        r#"{"version": 1, "cores": [
            {"threads": ["0-1"], "socket": 0, "node": 0, "l3": 0}, {"threads": ["2-3"], "socket": 0, "node": 1, "l3": 0},
            {"threads": ["4-5"], "socket": 1, "node": 2, "l3": 1}, {"threads": ["6-7"], "socket": 1, "node": 3, "l3": 1}
        ], "nodes": [{"id": 0}, {"id": 1}, {"id": 2}, {"id": 3}]}"#,
    );
    assert_eq!(
        outline(&sub_numa.parts[..1], 0),
        "socket 0, L3 0: 0-3\n  NUMA node 0: 0-1\n  NUMA node 1: 2-3\n"
    );
    let two_sockets = layout(
        r#"{"version": 1, "cores": [{"threads": ["0-1"], "socket": 0, "node": 0}, {"threads": ["2-3"], "socket": 1, "node": 0}],
            "nodes": [{"id": 0}]}"#,
    );
    assert_eq!(
        outline(&two_sockets.parts, 0),
        "NUMA node 0: 0-3\n  socket 0: 0-1\n  socket 1: 2-3\n"
    );
}

#[test]
fn cpus_that_are_offline_are_as_near_as_is_known() {
    let layout = layout(
        r#"{"version": 1, "offline": "1,3-5", "cores": [
            {"threads": ["0", "1"], "socket": 0, "node": 0}, {"threads": ["2"], "socket": 0}, {"threads": ["3"], "node": 0}
        ], "nodes": [{"id": 0}]}"#,
    );
    assert_eq!(
        outline(&layout.parts, 0),
        "socket 0: 0-2\n  NUMA node 0: 0-1,3\n  no NUMA node: 2\n"
    );
    assert_eq!(layout.offline.to_string(), "4-5");
}
