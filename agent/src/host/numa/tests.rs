use super::*;
use plimsoll_core::model::page_cache::CACHE_NOISE_BYTES;

use crate::host::cgroup::tests::{fake_host, fake_v2};

const KIB: u64 = 1024;

fn write_node(host: &HostRoot, node: u32, total_kib: u64) {
    write_node_with(host, node, total_kib, 7);
}

fn write_node_with(host: &HostRoot, node: u32, total_kib: u64, inactive_file_kib: u64) {
    let dir = host.sysfs(NODE_DIR).join(format!("node{node}"));
    std::fs::create_dir_all(&dir).unwrap();
    let line = |name: &str, kib: u64| format!("Node {node} {name}: {kib:>14} kB\n");
    let text = line("MemTotal", total_kib)
        + &line("MemFree", 90)
        + &line("Inactive(anon)", 1)
        + &line("Active(file)", 3)
        + &line("Inactive(file)", inactive_file_kib)
        + &line("SwapCached", 4)
        + &line("FilePages", 20)
        + &line("Shmem", 6)
        + &line("AnonPages", 30)
        + &format!("Node {node} HugePages_Total:     0\n");
    std::fs::write(dir.join("meminfo"), text).unwrap();
}

fn write_list(host: &HostRoot, list: &str) {
    std::fs::create_dir_all(host.sysfs(NODE_DIR)).unwrap();
    std::fs::write(host.sysfs(NODE_DIR).join("has_memory"), list).unwrap();
}

fn two_nodes() -> (tempfile::TempDir, HostRoot) {
    let dir = tempfile::tempdir().unwrap();
    let host = HostRoot::new(dir.path());
    write_list(&host, "0-1\n");
    write_node(&host, 0, 1000);
    write_node(&host, 1, 2000);
    (dir, host)
}

fn numbers(read: &[NumaMemory]) -> Vec<u32> {
    read.iter().map(|memory| memory.node).collect()
}

#[test]
fn every_node_with_its_figures() {
    let (_dir, host) = two_nodes();
    let mut read = Vec::new();
    NumaFiles::open(&host).unwrap().read(&mut read).unwrap();
    assert_eq!(numbers(&read), [0, 1]);
    let wanted = NumaMemory {
        node: 1,
        capacity_bytes: 2000 * KIB,
        free_bytes: 90 * KIB,
        anon_bytes: 30 * KIB,
        file_bytes: 20 * KIB,
        inactive_file_bytes: 7 * KIB,
        lazily_freed_bytes: 0,
    };
    assert_eq!(read[1], wanted);
}

#[test]
fn file_pages_beyond_page_cache_are_lazily_freed() {
    let (_dir, host) = two_nodes();
    // Page cache is 20 - 4 - 6 kB, with what the counters may be short of.
    let listed_kib = 10 + (CACHE_NOISE_BYTES >> 10) + 50;
    write_node_with(&host, 1, 1 << 20, listed_kib - 3);
    let mut read = Vec::new();
    NumaFiles::open(&host).unwrap().read(&mut read).unwrap();
    assert_eq!(read[1].lazily_freed_bytes, 50 * KIB);
}

#[test]
fn nodes_come_and_go() {
    let (_dir, host) = two_nodes();
    let mut files = NumaFiles::open(&host).unwrap();
    let mut read = Vec::new();
    write_node(&host, 12, 500);
    write_list(&host, "0-1,12\n");
    files.read(&mut read).unwrap();
    assert_eq!(numbers(&read), [0, 1, 12]);
    // Listed, and its directory is gone before it is opened.
    std::fs::remove_dir_all(host.sysfs(NODE_DIR).join("node1")).unwrap();
    write_list(&host, "1,12\n");
    files.read(&mut read).unwrap();
    assert_eq!((numbers(&read), files.len()), (vec![12], 1));
}

#[test]
fn a_node_without_memory_is_left_out() {
    let (_dir, host) = two_nodes();
    write_node(&host, 0, 0);
    let mut read = Vec::new();
    NumaFiles::open(&host).unwrap().read(&mut read).unwrap();
    assert_eq!(numbers(&read), [1]);
}

#[test]
fn without_numa_and_with_nonsense() {
    let dir = tempfile::tempdir().unwrap();
    let host = HostRoot::new(dir.path());
    assert!(NumaFiles::open(&host).unwrap_err().is_vanished());
    write_list(&host, "all\n");
    let error = NumaFiles::open(&host).unwrap_err();
    assert!(
        error.to_string().contains("a list of node numbers"),
        "{error}"
    );

    let (_dir, host) = two_nodes();
    let mut files = NumaFiles::open(&host).unwrap();
    let meminfo = host.sysfs(NODE_DIR).join("node1/meminfo");
    let text = std::fs::read_to_string(&meminfo).unwrap();
    for (from, to, line) in [("FilePages", "FooPages", 0), ("90 kB", "90 MB", 2)] {
        std::fs::write(&meminfo, text.replace(from, to)).unwrap();
        let error = files.read(&mut Vec::new()).unwrap_err();
        assert!(
            matches!(error, FileError::Malformed { line: at, .. } if at == line),
            "{error}"
        );
        assert!(error.path().ends_with("node1/meminfo"));
    }
}

#[test]
fn lists() {
    for (text, wanted) in [
        ("", Some(vec![])),
        ("0", Some(vec![0])),
        ("0-2,5,7-8", Some(vec![0, 1, 2, 5, 7, 8])),
        ("0-", None),
        ("0,,1", None),
        ("-1", None),
    ] {
        assert_eq!(parse_list(text.as_bytes()), wanted, "{text:?}");
    }
    let bounded = parse_list(b"0-4294967295").unwrap();
    assert_eq!(bounded.len(), NUMA_NODES_MAX);
}

#[test]
fn a_pod_on_v2() {
    let (_dir, host) = fake_v2();
    let pod = CgroupPath::new("kubepods/poda").unwrap();
    let dir = host.path("/sys/fs/cgroup/kubepods/poda");
    std::fs::create_dir_all(&dir).unwrap();
    let stat = "anon N0=1000 N1=2000\nfile N0=10 N1=20\nkernel_stack N0=1 N1=2\npagetables N0=3 N1=4\n\
        inactive_anon N0=900 N1=900\ninactive_file N0=4 N1=5\nslab_reclaimable N0=100 N1=200\nslab_unreclaimable N0=300 N1=400\n\
        shmem N0=1 N1=9\nactive_file N0=6 N1=7\n";
    std::fs::write(dir.join("memory.numa_stat"), stat).unwrap();
    let file = PodNumaFile::open(&host.cgroup_mounts().unwrap(), &pod).unwrap();
    let read = file.read(1).unwrap();
    let wanted = PodNumaMemory {
        anon_bytes: 2000,
        file_bytes: 20,
        inactive_file_bytes: 5,
        // Of 12 on the lists 11 are page cache.
        lazily_freed_bytes: 1,
        kernel_bytes: 606,
    };
    assert_eq!(read, wanted);
    assert_eq!(read.working_set_bytes(), 2622);
    assert_eq!(file.read(7).unwrap(), PodNumaMemory::default());
    std::fs::write(dir.join("memory.numa_stat"), "anon N0=1\nfile N0=x\n").unwrap();
    let error = file.read(0).unwrap_err();
    assert!(
        matches!(error, FileError::Malformed { line: 2, .. }),
        "{error}"
    );
}

#[test]
fn a_pod_on_v1_in_pages() {
    let (_dir, host) = fake_host(&[("cgroup", "/sys/fs/cgroup/memory", "memory")]);
    let pod = CgroupPath::new("kubepods/poda").unwrap();
    let dir = host.path("/sys/fs/cgroup/memory/kubepods/poda");
    std::fs::create_dir_all(&dir).unwrap();
    let stat = "total=9 N0=9 N1=9\nfile=9 N0=9 N1=9\nanon=9 N0=9 N1=9\nunevictable=0 N0=0 N1=0\nhierarchical_total=9 N0=9 N1=9\n\
        hierarchical_file=5 N0=2 N1=3\nhierarchical_anon=11 N0=5 N1=6\nhierarchical_unevictable=0 N0=0 N1=0\n";
    std::fs::write(dir.join("memory.numa_stat"), stat).unwrap();
    let file = PodNumaFile::open(&host.cgroup_mounts().unwrap(), &pod).unwrap();
    let page_bytes = rustix::param::page_size() as u64;
    let wanted = PodNumaMemory {
        anon_bytes: 6 * page_bytes,
        file_bytes: 3 * page_bytes,
        ..PodNumaMemory::default()
    };
    assert_eq!(file.read(1).unwrap(), wanted);
}

#[test]
fn this_machine() {
    let host = HostRoot::live();
    let Ok(mut files) = NumaFiles::open(&host) else {
        assert!(!host.sysfs(NODE_DIR).exists());
        return;
    };
    let mut read = Vec::new();
    files.read(&mut read).unwrap();
    let machine = crate::host::MeminfoFile::open(&host)
        .unwrap()
        .read()
        .unwrap();
    let total: u64 = read.iter().map(|memory| memory.capacity_bytes).sum();
    // Not equal everywhere: where memory was plugged into a virtual machine, a node's total has been seen to lack half
    // of it.
    assert!(0 < total && total <= machine.total, "{read:?}");
}
