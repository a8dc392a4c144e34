use super::*;
use crate::show::topology::holders::Holder;

const TWO_SOCKETS: &str = r#"{"version": 1, "name": "two sockets, and a node of CXL memory", "offline": "15", "isolated": "7",
    "cores": [
        {"threads": ["0-1", "8-9"], "socket": 0, "die": 0, "node": 0, "l3": 0},
        {"threads": ["2-3", "10-11"], "socket": 0, "die": 0, "node": 0, "l3": 1},
        {"threads": ["4-7", "12-15"], "socket": 1, "die": 0, "node": 1, "l3": 2}
    ],
    "nodes": [
        {"id": 0, "memory": "64Gi", "hugepages": [{"pageSize": "2Mi", "pages": 512}], "distances": [10, 21, 14]},
        {"id": 1, "memory": "64Gi", "hugepages": [{"pageSize": "1Gi", "pages": 4}], "distances": [21, 10, 24]},
        {"id": 2, "memory": "256Gi", "distances": [14, 24, 10]}
    ]}"#;

fn drawn(text: &str, holders: Option<&Holders>, all: bool) -> String {
    let machine: Machine = serde_json::from_str(text).unwrap();
    draw(&machine, holders, all, Style { color: false })
}

/// Sockets of nodes of caches of eight cores of two threads; second threads follow all first ones.
fn large(sockets: u32, nodes: u32, caches: u32) -> String {
    let (cpus, rows) = (sockets * nodes * caches * 8, sockets * nodes * caches);
    let row = |cache: u32| {
        let (first, node) = (cache * 8, cache / caches);
        let (last, socket) = (first + 7, node / nodes);
        let (second, end) = (first + cpus, last + cpus);
        format!(
            r#"{{"threads": ["{first}-{last}", "{second}-{end}"], "socket": {socket}, "node": {node}, "l3": {cache}}}"#
        )
    };
    let node = |id: u32| {
        let row = (0..sockets * nodes).map(|to| {
            if to == id {
                10
            } else {
                12 + (to / nodes).abs_diff(id / nodes) * 20
            }
        });
        let row: Vec<String> = row.map(|value| value.to_string()).collect();
        format!(
            r#"{{"id": {id}, "memory": "96Gi", "distances": [{}]}}"#,
            row.join(",")
        )
    };
    let rows: Vec<String> = (0..rows).map(row).collect();
    let nodes: Vec<String> = (0..sockets * nodes).map(node).collect();
    format!(
        r#"{{"version": 1, "cores": [{}], "nodes": [{}]}}"#,
        rows.join(","),
        nodes.join(",")
    )
}

#[test]
fn a_tree_for_people() {
    assert_eq!(
        drawn(TWO_SOCKETS, None, false),
        "\
two sockets, and a node of CXL memory
2 sockets, 3 NUMA nodes, 3 L3 caches, 8 cores, 15 CPUs, 384Gi of memory
offline: CPUs 15
isolated from the scheduler: CPUs 7

PART                         MEMORY  HUGE PAGES  CORES  CPUS       OFFLINE  SIBLINGS
socket 0, NUMA node 0          64Gi  512 × 2Mi   4 × 2  0-3,8-11
 ├─ L3 0                                         2 × 2  0-1,8-9             0+8 1+9
 └─ L3 1                                         2 × 2  2-3,10-11           2+10 3+11
socket 1, NUMA node 1, L3 2    64Gi  4 × 1Gi     4 × 2  4-7,12-14  15       4+12 … 7+15
NUMA node 2, no CPUs          256Gi

DISTANCES
from \\ to    0    1    2
        0   10   21   14
        1   21   10   24
        2   14   24   10
"
    );
}

#[test]
fn holders_are_shown_where_they_are_and_in_a_list() {
    let set = |list| CpuSet::parse(list).unwrap();
    let holders = Holders {
        exclusive: vec![Holder {
            name: "default/web/app".into(),
            cpus: set("2,10"),
        }],
        reserved: set("0,8"),
        shared: set("0-1,3-6,8-9,11-14"),
    };
    let text = drawn(TWO_SOCKETS, Some(&holders), false);
    for line in [
        "2 × 2  0-1,8-9             0+8 1+9      reserved 0,8, shared pool 1,9\n",
        "2 × 2  2-3,10-11           2+10 3+11    default/web/app 2,10, shared pool 3,11\n",
        "4 × 2  4-7,12-14  15       4+12 … 7+15  shared pool 4-6,12-14\n",
        "
HELD BY          CPUS           NUMA NODES
default/web/app  2,10           0
reserved         0,8            0
shared pool      1,3-6,9,11-14  0-1
",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn a_large_machine_is_folded_unless_all_is_wanted() {
    let text = large(2, 4, 6);
    let folded = drawn(&text, None, false);
    assert!(
        folded.contains(
            "
 └─ NUMA node 3     96Gi  48 × 2      144-191,528-575
    └─ L3s 18-23          each 8 × 2  144-191,528-575  144+528 … 191+575
socket 1                  192 × 2     192-383,576-767
"
        ),
        "{folded}"
    );
    let all = drawn(&text, None, true);
    assert_eq!(all.matches("─ L3 ").count(), 48);
    // A container with CPUs of its own is seen.
    let holders = Holders {
        exclusive: vec![Holder {
            name: "own".into(),
            cpus: CpuSet::of(8),
        }],
        ..Holders::default()
    };
    let held = drawn(&text, Some(&holders), false);
    assert!(
        held.contains("├─ L3 1 ") && held.contains("└─ L3s 2-5 "),
        "{held}"
    );
}

#[test]
fn many_nodes_have_a_line_of_distances_each() {
    let text = drawn(&large(4, 16, 1), None, false);
    for line in [
        "\n └─ NUMA nodes 16-31, L3s 16-31  each 96Gi  each 8 × 2  128-255,640-767   128+640 … 255+767\n",
        "\n  16: 10 to 16, 12 to 17-31, 32 to 0-15,32-47, 52 to 48-63\n",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn siblings_are_named_one_by_one_if_they_do_not_follow_a_rule() {
    let core = |list| Core {
        cpus: CpuSet::parse(list).unwrap(),
        ..Core::default()
    };
    for (cores, text) in [
        (&["0,8", "1,9", "2,10"][..], "0+8 1+9 2+10"),
        (&["0,8", "1,9", "2,10", "3,11"], "0+8 … 3+11"),
        (&["0-1", "2-3", "4-5", "6-7", "8", "9"], "0+1 … 6+7, 8 9"),
        (&["0,9", "1,8", "2,10", "3,11"], "0+9 1+8 2+10 3+11"),
        (&[], ""),
    ] {
        let cores: Vec<Core> = cores.iter().copied().map(core).collect();
        assert_eq!(siblings(&cores), text);
    }
}
