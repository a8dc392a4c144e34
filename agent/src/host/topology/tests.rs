//! Machines as they are in the field, as their sysfs shows them.

use plimsoll_core::placement::topology::TopologyCounts;

use super::*;

/// Where one CPU of a fake machine is.
#[derive(Clone, Copy, Default)]
struct Place {
    package: i32,
    die: Option<u32>,
    cluster: Option<u32>,
    /// CPUs of the same number are siblings.
    core: u32,
    node: Option<u32>,
    /// CPUs of the same number share the cache, whose id may be shown.
    l3: Option<u32>,
    l3_has_id: bool,
}

/// Writes the files of a machine: what the kernel shows of CPUs that are online, and that a CPU that is offline has a
/// node.
fn sysfs(
    online: &str,
    present: &str,
    place: impl Fn(u32) -> Place,
) -> (tempfile::TempDir, HostRoot) {
    // A large machine has twelve thousand files: in memory, where that can be.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.unwrap();
    let host = HostRoot::new(dir.path());
    let (online, present) = (set(online), set(present));
    let write = |path: String, text: String| write_file(&host, &path, &text);
    let shown = |name: &str, cpus: CpuSet| write(format!("{CPU_DIR}/{name}"), format!("{cpus}\n"));
    shown("online", online);
    shown("present", present);
    let mut siblings = BTreeMap::<u32, CpuSet>::new();
    let mut sharers = BTreeMap::<Option<u32>, CpuSet>::new();
    for cpu in online.iter() {
        siblings.entry(place(cpu).core).or_default().insert(cpu);
        sharers.entry(place(cpu).l3).or_default().insert(cpu);
    }
    let mut nodes = BTreeMap::<u32, CpuSet>::new();
    for cpu in present.iter() {
        let place_of_cpu = place(cpu);
        if let Some(node) = place_of_cpu.node {
            let link = host.sysfs(format!("{CPU_DIR}/cpu{cpu}/node{node}"));
            std::fs::create_dir_all(link).unwrap();
            nodes.entry(node).or_default();
        }
        if !online.contains(cpu) {
            continue;
        }
        if let Some(node) = place_of_cpu.node {
            nodes.entry(node).or_default().insert(cpu);
        }
        let topology = |name: &str, text: String| {
            write(
                format!("{CPU_DIR}/cpu{cpu}/topology/{name}"),
                format!("{text}\n"),
            );
        };
        topology("physical_package_id", place_of_cpu.package.to_string());
        topology(
            "thread_siblings_list",
            siblings[&place_of_cpu.core].to_string(),
        );
        if let Some(die) = place_of_cpu.die {
            topology("die_id", die.to_string());
        }
        if let Some(cluster) = place_of_cpu.cluster {
            topology("cluster_id", cluster.to_string());
        }
        let cache = |index: u32, name: &str, text: String| {
            write(
                format!("{CPU_DIR}/cpu{cpu}/cache/index{index}/{name}"),
                format!("{text}\n"),
            );
        };
        for (index, level) in [(0, 1), (1, 1), (2, 2)] {
            cache(index, "level", level.to_string());
        }
        if let Some(l3) = place_of_cpu.l3 {
            cache(3, "level", "3".into());
            cache(3, "shared_cpu_list", sharers[&place_of_cpu.l3].to_string());
            if place_of_cpu.l3_has_id {
                cache(3, "id", l3.to_string());
            }
        }
    }
    for (node, cpus) in &nodes {
        add_node(&host, *node, *cpus, 64 << 20);
    }
    (dir, host)
}

fn set(list: &str) -> CpuSet {
    CpuSet::parse(list).unwrap()
}

fn write_file(host: &HostRoot, path: &str, text: &str) {
    let path = host.sysfs(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Adds a node at distance 20 of the others, which are as far from each other as they were.
fn add_node(host: &HostRoot, id: u32, cpus: CpuSet, memory_kb: u64) {
    let online = host.sysfs(format!("{NODE_DIR}/online"));
    let before = std::fs::read_to_string(&online).unwrap_or_default();
    let nodes = set(&before) | CpuSet::of(id);
    write_file(host, &format!("{NODE_DIR}/online"), &format!("{nodes}\n"));
    for node in nodes.iter() {
        let row: Vec<&str> = nodes
            .iter()
            .map(|to| if to == node { "10" } else { "20" })
            .collect();
        let row = row.join(" ") + "\n";
        write_file(host, &format!("{NODE_DIR}/node{node}/distance"), &row);
    }
    let file =
        |name: &str, text: String| write_file(host, &format!("{NODE_DIR}/node{id}/{name}"), &text);
    file("cpulist", format!("{cpus}\n"));
    file(
        "meminfo",
        format!("Node {id} MemTotal:       {memory_kb} kB\nNode {id} MemFree:  1 kB\n"),
    );
    file("hugepages/hugepages-2048kB/nr_hugepages", "512\n".into());
    file("hugepages/hugepages-1048576kB/nr_hugepages", "0\n".into());
}

fn counts(machine: &Machine) -> [u32; 5] {
    let TopologyCounts {
        cpus,
        cores,
        sockets,
        numa_nodes,
        uncore_caches,
    } = machine.cpu_topology().unwrap().counts();
    [cpus, cores, sockets, numa_nodes, uncore_caches]
}

#[test]
fn amd_epyc_with_a_split_l3_and_four_nodes_per_socket() {
    // Two of 96 cores: 12 caches of 8 cores, 3 of them a node; the second threads follow all first ones.
    let (_dir, host) = sysfs("0-383", "0-383", |cpu| {
        let core = cpu % 192;
        Place {
            package: i32::try_from(core / 96).unwrap(),
            die: Some(0),
            cluster: Some(core),
            core,
            node: Some(core / 24),
            l3: Some(core / 96 * 16 + core % 96 / 8),
            l3_has_id: true,
        }
    });
    let machine = read_machine(&host).unwrap();
    assert_eq!(counts(&machine), [384, 192, 2, 8, 24]);
    let topology = machine.cpu_topology().unwrap();
    assert_eq!(topology.by_numa()[&4].to_string(), "96-119,288-311");
    assert_eq!(topology.by_uncore()[&16].to_string(), "96-103,288-295");
    assert_eq!(topology.cpu(383).unwrap().core, 191);
    assert_eq!(
        machine.cores()[0].cluster,
        None,
        "a cluster of one core says nothing"
    );
    let node = machine.node(7).unwrap();
    assert_eq!(node.memory_bytes, Some(64 << 30));
    assert_eq!(
        node.hugepages
            .iter()
            .map(|size| size.pages)
            .collect::<Vec<_>>(),
        [512, 0]
    );
    assert_eq!(machine.distance(7, 0), Some(20));
    let written = serde_json::to_string(&machine).unwrap();
    assert_eq!(serde_json::from_str::<Machine>(&written).unwrap(), machine);
    assert_eq!(written.matches("threads").count(), 24, "a row per cache");
}

#[test]
fn intel_with_sub_numa_clusters() {
    let (_dir, host) = sysfs("0-223", "0-223", |cpu| {
        let core = cpu % 112;
        let package = core / 56;
        Place {
            package: i32::try_from(package).unwrap(),
            die: Some(0),
            core,
            node: Some(core / 28),
            l3: Some(package),
            l3_has_id: true,
            ..Place::default()
        }
    });
    let machine = read_machine(&host).unwrap();
    assert_eq!(counts(&machine), [224, 112, 2, 4, 2]);
    assert_eq!(machine.cpu_topology().unwrap().cpu(84).unwrap().uncore, 1);
}

#[test]
fn hybrid_cores_have_one_or_two_threads() {
    let (_dir, host) = sysfs("0-23", "0-23", |cpu| Place {
        die: Some(0),
        cluster: Some(if cpu < 16 {
            cpu / 2 * 8
        } else {
            64 + (cpu - 16) / 4 * 8
        }),
        core: if cpu < 16 { cpu / 2 } else { cpu },
        node: Some(0),
        l3: Some(0),
        l3_has_id: true,
        ..Place::default()
    });
    let machine = read_machine(&host).unwrap();
    assert_eq!(counts(&machine), [24, 16, 1, 1, 1]);
    let clusters: Vec<_> = machine.cores().iter().map(|core| core.cluster).collect();
    assert_eq!(clusters[..8], [None; 8]);
    assert_eq!(clusters[8..], [[Some(64); 4], [Some(72); 4]].concat());
}

#[test]
fn arm_without_die_cache_ids_and_packages() {
    // The core_id of each is 0 on such machines: only the lists of siblings tell.
    let (_dir, host) = sysfs("0-63", "0-63", |cpu| Place {
        package: -1,
        cluster: Some(cpu / 4),
        core: cpu,
        node: Some(cpu / 32),
        l3: Some(900 + cpu / 16),
        ..Place::default()
    });
    let machine = read_machine(&host).unwrap();
    assert_eq!(counts(&machine), [64, 64, 1, 2, 4]);
    let last = machine.cores().last().unwrap();
    assert_eq!(
        (last.socket, last.die, last.cluster, last.l3),
        (Some(0), None, Some(15), Some(3))
    );
}

#[test]
fn cpus_of_unknown_package_share_one_more_package() {
    let (_dir, host) = sysfs("0-3", "0-3", |cpu| Place {
        package: if cpu < 2 { 1 } else { -1 },
        core: cpu,
        node: Some(0),
        ..Place::default()
    });
    let topology = read_machine(&host).unwrap().cpu_topology().unwrap();
    assert_eq!(topology.by_socket()[&2].to_string(), "2-3");
}

#[test]
fn a_machine_of_one_cpu_without_numa() {
    let (_dir, host) = sysfs("0", "0", |_| Place::default());
    std::fs::create_dir_all(host.procfs("")).unwrap();
    std::fs::write(
        host.procfs("meminfo"),
        "MemTotal:   1024 kB\nMemFree: 3 kB\n",
    )
    .unwrap();
    write_file(
        &host,
        &format!("{HUGEPAGES_DIR}/hugepages-64kB/nr_hugepages"),
        "2\n",
    );
    write_file(&host, &format!("{CPU_DIR}/isolated"), "\n");
    let machine = read_machine(&host).unwrap();
    assert_eq!(counts(&machine), [1, 1, 1, 1, 1]);
    let node = machine.node(0).unwrap();
    assert_eq!(node.memory_bytes, Some(1 << 20));
    assert_eq!(
        (node.hugepages[0].page_bytes, node.hugepages[0].pages),
        (64 << 10, 2)
    );
    assert_eq!(node.distances.as_deref(), Some(&[10][..]));
}

#[test]
fn cpus_that_are_offline_are_where_their_node_is() {
    let (_dir, host) = sysfs("0-2,4,6", "0-7", |cpu| Place {
        core: cpu % 4,
        node: Some(cpu % 4 / 2),
        l3: Some(0),
        l3_has_id: true,
        ..Place::default()
    });
    write_file(&host, &format!("{CPU_DIR}/isolated"), "2,6\n");
    let machine = read_machine(&host).unwrap();
    assert_eq!(machine.online().to_string(), "0-2,4,6");
    assert_eq!(machine.offline().to_string(), "3,5,7");
    assert_eq!(machine.isolated().to_string(), "2,6");
    // One thread each, no socket known: cores 3, 5 and 7 cannot be told from threads.
    let offline: Vec<_> = machine
        .cores()
        .iter()
        .filter(|core| core.socket.is_none())
        .collect();
    assert_eq!(offline.len(), 3);
    assert_eq!(offline[0].node, Some(1));
    assert_eq!(counts(&machine), [5, 3, 1, 2, 1]);
}

#[test]
fn nodes_may_have_memory_only_or_cpus_only() {
    let (_dir, host) = sysfs("0-3", "0-3", |cpu| Place {
        core: cpu,
        node: Some(0),
        ..Place::default()
    });
    add_node(&host, 5, CpuSet::EMPTY, 256 << 20);
    std::fs::remove_dir_all(host.sysfs(format!("{NODE_DIR}/node5/hugepages"))).unwrap();
    write_file(
        &host,
        &format!("{NODE_DIR}/node0/meminfo"),
        "Node 0 MemTotal:   0 kB\n",
    );
    let machine = read_machine(&host).unwrap();
    assert_eq!(machine.node(5).unwrap().memory_bytes, Some(256 << 30));
    assert_eq!(machine.node(0).unwrap().memory_bytes, Some(0));
    assert_eq!(machine.node(5).unwrap().hugepages, []);
    assert_eq!(machine.distance(0, 5), Some(20));
    assert_eq!(counts(&machine), [4, 4, 1, 1, 1]);
}

#[test]
fn a_cpu_without_a_node_is_there_and_the_kubelet_does_not_see_it() {
    let (_dir, host) = sysfs("0-3", "0-3", |cpu| Place {
        core: cpu,
        node: (cpu < 3).then_some(0),
        ..Place::default()
    });
    let machine = read_machine(&host).unwrap();
    assert_eq!(machine.online().to_string(), "0-3");
    assert_eq!(machine.cpu_topology().unwrap().all().to_string(), "0-2");
}

#[test]
fn emulated_nodes_share_cpus_and_the_first_has_them() {
    let (_dir, host) = sysfs("0-1", "0-1", |cpu| Place {
        core: cpu,
        node: Some(0),
        ..Place::default()
    });
    add_node(&host, 1, set("0-1"), 1024);
    assert_eq!(counts(&read_machine(&host).unwrap()), [2, 2, 1, 1, 1]);
}

#[test]
fn the_largest_machine_is_read() {
    let (_dir, host) = sysfs("0-1023", "0-1023", |cpu| Place {
        package: i32::try_from(cpu % 512 / 64).unwrap(),
        core: cpu % 512,
        node: Some(cpu % 512 / 8),
        l3: Some(cpu % 512 / 4),
        l3_has_id: true,
        ..Place::default()
    });
    let machine = read_machine(&host).unwrap();
    assert_eq!(counts(&machine), [1024, 512, 8, 64, 128]);
    assert_eq!(machine.distance(63, 0), Some(20));
}

#[test]
fn what_is_wrong_is_named_by_path() {
    let refused = |path: &str, text: Option<&str>| {
        let (dir, host) = sysfs("0-1", "0-1", |cpu| Place {
            core: cpu,
            node: Some(0),
            l3: Some(0),
            l3_has_id: true,
            ..Place::default()
        });
        match text {
            Some(text) => write_file(&host, path, text),
            None => std::fs::remove_file(host.sysfs(path)).unwrap(),
        }
        let message = read_machine(&host).unwrap_err().to_string();
        message.replace(dir.path().to_str().unwrap(), "")
    };
    let cpu = "devices/system/cpu";
    let node = "devices/system/node";
    for (path, text, message) in [
        (
            "cpu/online",
            None,
            "/sys/devices/system/cpu/online: is not there; sysfs and procfs of the host must be mounted at /sys and /proc",
        ),
        (
            "cpu/online",
            Some("0-x"),
            "/sys/devices/system/cpu/online: \"0-x\" in \"0-x\" is neither a CPU number nor a range like 0-3",
        ),
        (
            "cpu/present",
            Some("0-2047"),
            "/sys/devices/system/cpu/present: CPU 2047 is beyond 1023, the highest that is supported",
        ),
        (
            "cpu/cpu1/topology/thread_siblings_list",
            None,
            "/sys/devices/system/cpu/cpu1/topology/thread_siblings_list: is not there; sysfs and procfs of the host must be mounted at /sys and /proc",
        ),
        (
            "cpu/cpu1/topology/physical_package_id",
            Some("two\n"),
            "/sys/devices/system/cpu/cpu1/topology/physical_package_id: expected a whole number, found \"two\"; please report it with the kernel's version",
        ),
        (
            "cpu/cpu1/topology/core_cpus_list",
            Some("0-1\n"),
            "/sys/devices/system/cpu: CPU 0 is in two cores",
        ),
        (
            "node/online",
            Some("zero"),
            "/sys/devices/system/node/online: expected a list of nodes such as 0-1,4, found \"zero\"; please report it with the kernel's version",
        ),
        (
            "node/node0/distance",
            Some("10 20\n"),
            "/sys/devices/system/cpu: NUMA node 0: 2 distances, but there are 1 nodes",
        ),
        (
            "node/node0/meminfo",
            Some("Node 1 MemTotal: 1 kB\n"),
            "/sys/devices/system/node/node0/meminfo: expected a line `Node N MemTotal: NUMBER kB`, found \"Node 1 MemTotal: 1 kB\"; please report it with the kernel's version",
        ),
    ] {
        let path = path.replacen(
            "cpu/",
            &format!("{cpu}/"),
            usize::from(path.starts_with("cpu/")),
        );
        let path = path.replacen(
            "node/",
            &format!("{node}/"),
            usize::from(path.starts_with("node/")),
        );
        assert_eq!(refused(&path, text), message);
    }
}

#[test]
fn this_machine_is_read() {
    let machine = read_machine(&HostRoot::live()).unwrap();
    let online = std::thread::available_parallelism().unwrap().get();
    assert!(machine.online().len() as usize >= online);
    assert!(machine.cpu_topology().is_ok());
}
