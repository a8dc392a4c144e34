use std::fs;
use std::path::Path;
use std::sync::Arc;

use plimsoll_core::kube::pod::Pod;
use serde_json::{Value, json};

use super::*;
use crate::host::cgroup::tests::{fake_host, fake_v2};

const PSI: &str = "some avg10=0.57 avg60=1.00 avg300=0.00 total=15\nfull avg10=0.00 avg60=0.25 avg300=0.00 total=7\n";

fn write(dir: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    for (file, text) in files {
        fs::write(dir.join(file), text).unwrap();
    }
}

/// One pod that asks for memory.
fn state() -> NodeState {
    let json = r#"{"metadata":{"name":"web","uid":"u-1"},"spec":{"containers":[{"name":"app","resources":{"requests":{"memory":"1Mi"}}}]}}"#;
    let pod: Arc<Pod> = Arc::new(serde_json::from_str(json).unwrap());
    let mut engine = plimsoll_core::engine::Engine::new(Default::default());
    let kind = plimsoll_core::model::event::EventKind::PodApplied { pod };
    engine.step(
        &plimsoll_core::model::event::Event { at_ns: 1, kind },
        &mut Vec::new(),
    );
    engine.state().clone()
}

fn pod(host: &HostRoot, state: &NodeState) -> Option<Value> {
    let mounts = host.cgroup_mounts().unwrap();
    let statistics = Statistics::new(host.clone(), mounts, CgroupPath::default());
    let request = statistics.request(state);
    let stats = request.pod(&PodUid::from("u-1"), Wanted::All)?;
    Some(serde_json::to_value(stats).unwrap())
}

/// Without times, which are of now.
fn timeless(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for name in ["time", "startTime"] {
                if let Some(it) = fields.remove(name) {
                    let text = it.as_str().unwrap();
                    assert!(text.starts_with("20") && text.ends_with('Z'), "{text}");
                }
            }
            for it in fields.values_mut() {
                *it = timeless(it.take());
            }
        }
        Value::Array(items) => {
            for it in items {
                *it = timeless(it.take());
            }
        }
        _ => {}
    }
    value
}

#[test]
fn a_pod_on_v2() {
    let (_dir, host) = fake_v2();
    assert_eq!(pod(&host, &state()), None, "no cgroup yet");
    let dir = host.path("/sys/fs/cgroup/kubepods/burstable/podu-1");
    let files = [
        ("memory.current", "5000\n"),
        (
            "memory.stat",
            "anon 1000\nfile 3000\ninactive_file 2000\npgfault 9\npgmajfault 1\n",
        ),
        ("memory.max", "8000\n"),
        ("memory.pressure", PSI),
        ("memory.swap.current", "64\n"),
        ("memory.swap.max", "100\n"),
        ("cpu.stat", "usage_usec 1500\nuser_usec 1\n"),
        ("io.pressure", PSI),
        ("cgroup.procs", ""),
    ];
    write(&dir, &files);
    write(&dir.join("app"), &files[..3]);
    write(&dir.join("app"), &[("cgroup.procs", "7\n8\n")]);
    write(&dir.join("app/nested"), &[("cgroup.procs", "9\n")]);
    let psi = json!({
        "full": {"total": 7000, "avg10": 0.0, "avg60": 0.25, "avg300": 0.0},
        "some": {"total": 15000, "avg10": 0.57, "avg60": 1.0, "avg300": 0.0},
    });
    let memory = json!({
        "availableBytes": 5000, "usageBytes": 5000, "workingSetBytes": 3000, "rssBytes": 1000,
        "pageFaults": 9, "majorPageFaults": 1,
    });
    let mut with_psi = memory.clone();
    with_psi["psi"] = psi.clone();
    assert_eq!(
        timeless(pod(&host, &state()).unwrap()),
        json!({
            "podRef": {"name": "web", "namespace": "default", "uid": "u-1"},
            "containers": [{"name": "app", "memory": memory}],
            "cpu": {"usageCoreNanoSeconds": 1_500_000},
            "memory": with_psi,
            "io": {"psi": psi},
            "process_stats": {"process_count": 3},
            "swap": {"swapAvailableBytes": 36, "swapUsageBytes": 64},
        })
    );
}

#[test]
fn a_pod_on_v1() {
    let (_dir, host) = fake_host(&[
        ("cgroup", "/sys/fs/cgroup/cpu", "rw,cpu,cpuacct"),
        ("cgroup", "/sys/fs/cgroup/memory", "rw,memory"),
    ]);
    let below = |of: &str| {
        let dir = host.path("/sys/fs/cgroup").join(of);
        dir.join("kubepods/burstable/podu-1")
    };
    write(&below("cpu"), &[("cpuacct.usage", "77\n")]);
    write(
        &below("memory"),
        &[
            ("memory.usage_in_bytes", "5000\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            (
                "memory.stat",
                "inactive_file 1\ntotal_inactive_file 6000\ntotal_rss 900\ntotal_pgfault 4\ntotal_pgmajfault 2\ntotal_swap 12\n",
            ),
            ("cgroup.procs", "1\n"),
        ],
    );
    assert_eq!(
        timeless(pod(&host, &state()).unwrap()),
        json!({
            "podRef": {"name": "web", "namespace": "default", "uid": "u-1"},
            "containers": [],
            "cpu": {"usageCoreNanoSeconds": 77},
            "memory": {
                "usageBytes": 5000, "workingSetBytes": 0, "rssBytes": 900, "pageFaults": 4, "majorPageFaults": 2,
            },
            "process_stats": {"process_count": 1},
            "swap": {"swapUsageBytes": 12},
        })
    );
}

#[test]
fn cpu_time_where_cpuacct_is_mounted_apart() {
    let (_dir, host) = fake_host(&[
        ("cgroup", "/sys/fs/cgroup/cpu", "rw,cpu"),
        ("cgroup", "/sys/fs/cgroup/cpuacct", "rw,cpuacct"),
        ("cgroup", "/sys/fs/cgroup/memory", "rw,memory"),
    ]);
    let root = host.path("/sys/fs/cgroup");
    let pod_dir = "kubepods/burstable/podu-1";
    write(
        &root.join("cpuacct").join(pod_dir),
        &[("cpuacct.usage", "77\n")],
    );
    write(&root.join("cpuacct"), &[("cpuacct.usage", "99\n")]);
    write(&root.join("memory").join(pod_dir), &[("cgroup.procs", "")]);
    let state = state();
    let stats = pod(&host, &state).unwrap();
    assert_eq!(stats["cpu"]["usageCoreNanoSeconds"], 77);
    let mounts = host.cgroup_mounts().unwrap();
    let statistics = Statistics::new(host.clone(), mounts, CgroupPath::default());
    let node = statistics.request(&state).node(Wanted::All);
    assert_eq!(node.cpu.unwrap().usage_core_nano_seconds, Some(99));
}

#[test]
fn the_node() {
    let (_dir, host) = fake_v2();
    write(
        &host.procfs(""),
        &[
            (
                "meminfo",
                "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 500 kB\nBuffers: 10 kB\nCached: 300 kB\nSwapCached: 5 kB\n\
                 Active(file): 100 kB\nInactive(file): 200 kB\nAnonPages: 400 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n",
            ),
            ("stat", "cpu 1 2 3\nbtime 951782400\n"),
            ("loadavg", "0.1 0.2 0.3 1/345 678\n"),
        ],
    );
    write(
        &host.procfs("sys/kernel"),
        &[("pid_max", "4194304\n"), ("threads-max", "5000\n")],
    );
    write(&host.procfs("pressure"), &[("io", PSI)]);
    let mount = host.path("/sys/fs/cgroup");
    write(&mount, &[("cpu.stat", "usage_usec 9\n")]);
    write(&mount, &[("memory.stat", "pgfault 70\npgmajfault 7\n")]);
    write(
        &mount.join("kubepods"),
        &[
            ("memory.current", "12\n"),
            ("memory.stat", "inactive_file 2\n"),
        ],
    );
    let mut state = state();
    state.storage = Some(Arc::new(StorageReading {
        nodefs: Some(FileSystemReading {
            at_ns: 1,
            available_bytes: 30,
            capacity_bytes: 100,
            inodes_free: None,
            inodes: None,
        }),
        imagefs: None,
        containerfs: None,
        pods: Vec::new(),
    }));
    let mounts = host.cgroup_mounts().unwrap();
    let statistics = Statistics::new(host.clone(), mounts, CgroupPath::default());
    let node = serde_json::to_value(statistics.request(&state).node(Wanted::All)).unwrap();
    assert_eq!(node["startTime"], "2000-02-29T00:00:00Z");
    let mut node = timeless(node);
    assert!(node["nodeName"].take().is_string());
    assert_eq!(
        node,
        json!({
            "nodeName": null,
            "systemContainers": [{"name": "pods", "memory": {"usageBytes": 12, "workingSetBytes": 10}}],
            "cpu": {"usageCoreNanoSeconds": 9000},
            "memory": {
                "availableBytes": 485 << 10, "usageBytes": 715 << 10, "workingSetBytes": 515 << 10, "rssBytes": 400 << 10,
                "pageFaults": 70, "majorPageFaults": 7,
            },
            "io": {"psi": {
                "full": {"total": 7000, "avg10": 0.0, "avg60": 0.25, "avg300": 0.0},
                "some": {"total": 15000, "avg10": 0.57, "avg60": 1.0, "avg300": 0.0},
            }},
            "fs": {"availableBytes": 30, "capacityBytes": 100, "usedBytes": 70},
            "rlimit": {"maxpid": 5000, "curproc": 345},
            "swap": {"swapAvailableBytes": 20 << 10, "swapUsageBytes": 30 << 10},
        })
    );
}

#[test]
fn a_node_whose_cgroups_count_no_cpu_time() {
    let (_dir, host) = fake_host(&[
        ("cgroup", "/sys/fs/cgroup/cpu", "rw,cpu"),
        ("cgroup", "/sys/fs/cgroup/memory", "rw,memory"),
    ]);
    let mounts = host.cgroup_mounts().unwrap();
    let statistics = Statistics::new(host.clone(), mounts, CgroupPath::default());
    let state = NodeState::default();
    assert_eq!(statistics.request(&state).node(Wanted::All).cpu, None);
    let text = "cpu  10 2 30 1000 500 4 5 77 8 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
    write(&host.procfs(""), &[("stat", text)]);
    let cpu = statistics.request(&state).node(Wanted::All).cpu.unwrap();
    // Ticks of 10 ms, neither idle nor stolen.
    assert_eq!(cpu.usage_core_nano_seconds, Some(510_000_000));
}

#[test]
fn a_pod_that_is_gone_amid_a_request_is_left_out() {
    let (_dir, host) = fake_v2();
    let dir = host.path("/sys/fs/cgroup/kubepods/burstable/podu-1");
    // A cgroup without any file, as one that is being removed.
    write(&dir, &[]);
    let stats = timeless(pod(&host, &state()).unwrap());
    assert_eq!(stats["containers"], json!([]));
    assert!(stats.get("memory").is_none(), "{stats}");
}

const HEADINGS: &str = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n";

fn interfaces(lines: &str) -> String {
    HEADINGS.to_owned() + lines
}

#[test]
fn network_of_node_and_of_pods_with_a_namespace_of_their_own() {
    let (_dir, host) = fake_v2();
    let dir = host.path("/sys/fs/cgroup/kubepods/burstable/podu-1");
    write(&dir, &[("memory.current", "1\n"), ("cgroup.procs", "")]);
    write(&dir.join("app"), &[("cgroup.procs", "")]);
    // Where a container has cgroups of its own.
    write(&dir.join("app/below"), &[("cgroup.procs", "7\n")]);
    let node = interfaces(
        "    lo:  9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n  eth0:1000 2 3 4 5 6 7 8 900 10 11 12 13 14 15 16\n\
         veth12: 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n   wg0: 1 0 0 0 0 0 0 0 2 0 0 0 0 0 0 0\n",
    );
    write(&host.procfs("1/net"), &[("dev", &node)]);
    let state = state();
    let network = |host: &HostRoot| {
        let mounts = host.cgroup_mounts().unwrap();
        let statistics = Statistics::new(host.clone(), mounts, CgroupPath::default());
        let node = statistics.request(&state).node(Wanted::All).network;
        let pod = pod(host, &state).unwrap();
        let node = serde_json::to_value(node).unwrap();
        (timeless(node), timeless(pod["network"].clone()))
    };
    let eth0 =
        json!({"name": "eth0", "rxBytes": 1000, "rxErrors": 3, "txBytes": 900, "txErrors": 11});
    let wg0 = json!({"name": "wg0", "rxBytes": 1, "rxErrors": 0, "txBytes": 2, "txErrors": 0});
    let mut of_node = eth0.clone();
    of_node["interfaces"] = json!([eth0, wg0]);
    // The process has ended meanwhile.
    assert_eq!(network(&host), (of_node.clone(), Value::Null));
    // One file, so one namespace.
    fs::create_dir_all(host.procfs("7/net")).unwrap();
    fs::hard_link(host.procfs("1/net/dev"), host.procfs("7/net/dev")).unwrap();
    assert_eq!(network(&host), (of_node.clone(), Value::Null));
    fs::remove_file(host.procfs("7/net/dev")).unwrap();
    let read = interfaces("net1: 5 0 6 0 0 0 0 0 7 0 8 0 0 0 0 0\n");
    write(&host.procfs("7/net"), &[("dev", &read)]);
    // No eth0: what a kubelet says then.
    let net1 = json!({"name": "net1", "rxBytes": 5, "rxErrors": 6, "txBytes": 7, "txErrors": 8});
    let of_pod = json!({"name": "", "interfaces": [net1]});
    assert_eq!(network(&host), (of_node.clone(), of_pod));
    // Of a file that is not understood nothing is said.
    let odd = interfaces("net1: 5 0 6\n");
    write(&host.procfs("7/net"), &[("dev", &odd)]);
    assert_eq!(network(&host), (of_node.clone(), Value::Null));
    // Nor of one with more interfaces than are read.
    let line = format!("net1: 5 0 6 {}\n", "0 ".repeat(13));
    let most = (network::POD_BYTES_MAX - HEADINGS.len()) / line.len();
    for (lines, is_read) in [(most, true), (most + 1, false)] {
        let many = interfaces(&line.repeat(lines));
        write(&host.procfs("7/net"), &[("dev", &many)]);
        let (node, pod) = network(&host);
        let found = pod["interfaces"].as_array().map(Vec::len);
        assert_eq!((node, found), (of_node.clone(), is_read.then_some(lines)));
    }
}

#[test]
fn who_wants_no_network_has_none_read() {
    let (_dir, host) = fake_v2();
    let dir = host.path("/sys/fs/cgroup/kubepods/burstable/podu-1");
    write(&dir, &[("memory.current", "1\n"), ("cgroup.procs", "7\n")]);
    let eth0 = interfaces("eth0: 5 0 6 0 0 0 0 0 7 0 8 0 0 0 0 0\n");
    write(&host.procfs("1/net"), &[("dev", &eth0)]);
    write(&host.procfs("7/net"), &[("dev", &eth0)]);
    let state = state();
    let mounts = host.cgroup_mounts().unwrap();
    let statistics = Statistics::new(host.clone(), mounts, CgroupPath::default());
    let request = statistics.request(&state);
    let uid = PodUid::from("u-1");
    for (wanted, is_there) in [(Wanted::All, true), (Wanted::AllButNetwork, false)] {
        assert_eq!(request.node(wanted).network.is_some(), is_there);
        let pod = request.pod(&uid, wanted).unwrap();
        assert_eq!(pod.network.is_some(), is_there);
    }
}
