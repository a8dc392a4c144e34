use plimsoll_core::kube::pod::Pod;

use super::*;
use crate::host::cgroup::tests::{fake_host, fake_v2};
use crate::input::config::{ConfigFile, EvictionFlags};

fn file(host: &HostRoot, path: &str, text: &str) {
    let path = host.path(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn text(host: &HostRoot, path: &str) -> String {
    std::fs::read_to_string(host.path(path)).unwrap()
}

/// A machine of 8 GiB, four CPUs and 1 GiB of huge pages. The kernel makes control files with the directory; here the
/// test does.
fn machine_of(host: &HostRoot, dirs: &[&str], files: &[(&str, &str)]) {
    file(
        host,
        "/proc/meminfo",
        "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\nBuffers: 0 kB\nCached: 0 kB\nAnonPages: 0 kB\n\
         Inactive(file): 0 kB\nActive(file): 0 kB\nSwapTotal: 1024 kB\nSwapFree: 0 kB\n",
    );
    file(host, "/proc/sys/kernel/pid_max", "32768\n");
    file(host, "/proc/sys/kernel/threads-max", "60000\n");
    file(host, "/sys/devices/system/cpu/online", "0-2,5\n");
    file(
        host,
        "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        "512\n",
    );
    for dir in dirs {
        for (name, text) in files {
            file(host, &format!("{dir}/{name}"), text);
        }
    }
}

const V2_FILES: &[(&str, &str)] = &[
    ("cgroup.subtree_control", "cpu io memory pids hugetlb\n"),
    ("cpu.weight", "100\n"),
    ("memory.current", "0\n"),
    ("memory.max", "max\n"),
    ("memory.min", "0\n"),
    ("memory.low", "0\n"),
    ("pids.max", "max\n"),
    ("hugetlb.2MB.max", "max\n"),
];

const TREE: [&str; 3] = [
    "/sys/fs/cgroup/kubepods",
    "/sys/fs/cgroup/kubepods/burstable",
    "/sys/fs/cgroup/kubepods/besteffort",
];

fn v2() -> (tempfile::TempDir, HostRoot) {
    let (dir, host) = fake_v2();
    file(
        &host,
        "/sys/fs/cgroup/cgroup.subtree_control",
        "cpu io memory pids hugetlb\n",
    );
    machine_of(&host, &TREE, V2_FILES);
    (dir, host)
}

fn config(text: &str) -> Config {
    Config::new(
        ConfigFile::parse(text, None).unwrap(),
        &EvictionFlags::default(),
    )
    .unwrap()
}

fn make(host: &HostRoot, text: &str) -> Result<(Kubepods, Vec<Absent>), KubepodsError> {
    let ledger = Ledger::open(host, host.path("run/knobs.jsonl")).unwrap();
    Kubepods::make(
        host,
        &host.cgroup_mounts().unwrap(),
        &CgroupPath::default(),
        &config(text),
        ledger,
    )
}

fn restore(host: &HostRoot) {
    let mut ledger = Ledger::open(host, host.path("run/knobs.jsonl")).unwrap();
    let restoration = ledger.restore().unwrap();
    assert_eq!(restoration.remarks(), Vec::<String>::new());
}

fn pods(host: &HostRoot, specs: &[&str]) -> Pods {
    let mut pods = Pods::new(
        host.clone(),
        host.cgroup_mounts().unwrap(),
        CgroupPath::default(),
    );
    for (at, resources) in specs.iter().enumerate() {
        let pod: Pod = serde_json::from_str(&format!(
            r#"{{"metadata":{{"name":"p{at}"}},"spec":{{"containers":[{{"name":"c","resources":{resources}}}]}}}}"#
        ))
        .unwrap();
        pods.apply(pod.with_defaults().into()).unwrap();
    }
    pods
}

const RESERVED: &str = "kubeReserved: {cpu: 500m, memory: 1Gi, pid: \"768\"}\nsystemReserved: {cpu: 500m, memory: 1Gi}\n\
                        evictionHard: {memory.available: 100Mi}\n";

#[test]
fn kubepods_has_node_allocatable_and_what_it_had_comes_back() {
    let (_dir, host) = v2();
    let (_kubepods, absent) = make(&host, RESERVED).unwrap();
    assert_eq!(absent, []);
    let kubepods = |name: &str| text(&host, &format!("/sys/fs/cgroup/kubepods/{name}"));
    assert_eq!(kubepods("memory.max"), (6u64 << 30).to_string());
    assert_eq!(kubepods("cpu.weight"), "240", "of 3 CPUs");
    assert_eq!(kubepods("pids.max"), "32000");
    assert_eq!(kubepods("hugetlb.2MB.max"), (1u64 << 30).to_string());
    assert_eq!(kubepods("memory.min"), "0\n", "MemoryQoS is off");
    restore(&host);
    for (name, old) in V2_FILES {
        assert_eq!(kubepods(name).trim_end(), old.trim_end(), "{name}");
    }
}

#[test]
fn without_enforcement_kubepods_has_the_whole_node() {
    let (_dir, host) = v2();
    make(
        &host,
        &format!("{RESERVED}enforceNodeAllocatable: [none]\n"),
    )
    .unwrap();
    assert_eq!(
        text(&host, "/sys/fs/cgroup/kubepods/memory.max"),
        (8u64 << 30).to_string()
    );
}

#[test]
fn tiers_follow_the_pods() {
    let (_dir, host) = v2();
    let (mut kubepods, _) = make(
        &host,
        "featureGates: {MemoryQoS: true, QOSReserved: true}\nmemoryReservationPolicy: TieredReservation\n\
         qosReserved: {memory: 50%}\n",
    )
    .unwrap();
    let read = |name: &str| text(&host, &format!("/sys/fs/cgroup/kubepods/{name}"));
    let mut pods = pods(
        &host,
        &[
            r#"{"requests":{"cpu":"1","memory":"2Gi"}}"#,
            r#"{"limits":{"cpu":"1","memory":"1Gi"}}"#,
            "{}",
        ],
    );
    kubepods.follow(&pods).unwrap();
    assert_eq!(read("memory.min"), (3u64 << 30).to_string());
    assert_eq!(read("burstable/memory.low"), (2u64 << 30).to_string());
    assert_eq!(read("burstable/cpu.weight").trim_end(), "100");
    assert_eq!(read("besteffort/cpu.weight"), "1");
    let half_gib = 1u64 << 29;
    assert_eq!(read("burstable/memory.max"), (15 * half_gib).to_string());
    assert_eq!(read("besteffort/memory.max"), (13 * half_gib).to_string());
    pods.remove(&"default_p0".into());
    kubepods.follow(&pods).unwrap();
    assert_eq!(read("burstable/cpu.weight"), "1");
    assert_eq!(read("burstable/memory.low"), "0");
    assert_eq!(read("besteffort/memory.max"), (15 * half_gib).to_string());
    restore(&host);
    assert_eq!(read("burstable/memory.max").trim_end(), "max");
    assert_eq!(read("besteffort/cpu.weight").trim_end(), "100");
}

const USED_BEST_EFFORT: &str = "/sys/fs/cgroup/kubepods/besteffort/memory.current";
const LIMIT_BEST_EFFORT: &str = "/sys/fs/cgroup/kubepods/besteffort/memory.max";

/// The limit of besteffort is held above its value, 1 GiB, by what is used.
fn held(host: &HostRoot) -> (Kubepods, Pods) {
    file(host, USED_BEST_EFFORT, "8000000005\n");
    let settings = "featureGates: {QOSReserved: true}\nqosReserved: {memory: 100%}\n";
    let (mut kubepods, _) = make(host, settings).unwrap();
    let pods = pods(host, &[r#"{"requests":{"memory":"7Gi"}}"#]);
    kubepods.follow(&pods).unwrap();
    (kubepods, pods)
}

#[test]
fn a_limit_is_not_set_below_what_is_used_and_follows_it_down() {
    let (_dir, host) = v2();
    let (mut kubepods, pods) = held(&host);
    let limit = || text(&host, LIMIT_BEST_EFFORT);
    assert_eq!(limit(), "8000000000", "whole pages of what is used");
    file(&host, USED_BEST_EFFORT, "4096\n");
    kubepods.follow(&pods).unwrap();
    assert_eq!(limit(), (1u64 << 30).to_string());
}

#[test]
fn a_limit_that_is_held_is_tried_again_after_an_error_which_is_said_once() {
    let (_dir, host) = v2();
    let (mut kubepods, pods) = held(&host);
    file(&host, USED_BEST_EFFORT, "4096\n");
    // Something that cannot be written.
    let limit = host.path(LIMIT_BEST_EFFORT);
    let before = text(&host, LIMIT_BEST_EFFORT);
    std::fs::remove_file(&limit).unwrap();
    std::fs::create_dir(&limit).unwrap();
    assert!(kubepods.follow(&pods).is_err());
    assert!(kubepods.follow(&pods).is_ok(), "the same again");
    std::fs::remove_dir(&limit).unwrap();
    file(&host, LIMIT_BEST_EFFORT, &before);
    kubepods.follow(&pods).unwrap();
    assert_eq!(text(&host, LIMIT_BEST_EFFORT), (1u64 << 30).to_string());
}

#[test]
fn reservations_are_enforced_on_cgroups_that_exist() {
    let (_dir, host) = v2();
    machine_of(&host, &["/sys/fs/cgroup/kube.slice"], V2_FILES);
    let enforced = |name: &str, cgroup: &str| {
        format!(
            "{RESERVED}cgroupsPerQOS: true\nenforceNodeAllocatable: [pods, {name}]\nkubeReservedCgroup: {cgroup}\n"
        )
    };
    make(&host, &enforced("kube-reserved", "/kube.slice")).unwrap();
    let read = |name: &str| text(&host, &format!("/sys/fs/cgroup/kube.slice/{name}"));
    assert_eq!(read("memory.max"), (1u64 << 30).to_string());
    assert_eq!(
        (read("cpu.weight"), read("pids.max")),
        ("59".to_owned(), "768".to_owned())
    );
    assert_eq!(read("hugetlb.2MB.max").trim_end(), "max");
    restore(&host);
    assert_eq!(read("memory.max").trim_end(), "max");
    make(
        &host,
        &enforced("kube-reserved-compressible", "/kube.slice"),
    )
    .unwrap();
    assert_eq!(
        (read("cpu.weight"), read("memory.max").trim_end().to_owned()),
        ("59".to_owned(), "max".to_owned())
    );
    let error = make(&host, &enforced("kube-reserved", "/other.slice"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("kubeReservedCgroup") && error.contains("/other.slice"),
        "{error}"
    );
    // As in a cgroup whose parent does not pass the controller on.
    std::fs::remove_file(host.sysfs("fs/cgroup/kube.slice/memory.max")).unwrap();
    let error = make(&host, &enforced("kube-reserved", "/kube.slice"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("controller memory") && error.contains("/kube.slice"),
        "{error}"
    );
}

#[test]
fn reserving_more_than_the_machine_has_is_refused() {
    let (_dir, host) = v2();
    let error = make(&host, "kubeReserved: {cpu: \"5\", memory: 9Gi}\n")
        .unwrap_err()
        .to_string();
    assert!(error.contains("cpu") && error.contains("memory"), "{error}");
}

#[test]
fn v1_has_its_own_files_and_what_is_missing_is_said() {
    let (_dir, host) = fake_host(&[
        ("cgroup", "/cg/memory", "memory"),
        ("cgroup", "/cg/cpu", "cpu,cpuacct"),
    ]);
    machine_of(
        &host,
        &[
            "/cg/memory/kubepods",
            "/cg/memory/kubepods/burstable",
            "/cg/memory/kubepods/besteffort",
        ],
        &[
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.usage_in_bytes", "0\n"),
        ],
    );
    machine_of(
        &host,
        &[
            "/cg/cpu/kubepods",
            "/cg/cpu/kubepods/burstable",
            "/cg/cpu/kubepods/besteffort",
        ],
        &[("cpu.shares", "1024\n")],
    );
    let (_kubepods, absent) = make(
        &host,
        &format!("{RESERVED}featureGates: {{MemoryQoS: true}}\n"),
    )
    .unwrap();
    assert_eq!(
        text(&host, "/cg/memory/kubepods/memory.limit_in_bytes"),
        (6u64 << 30).to_string()
    );
    assert_eq!(text(&host, "/cg/cpu/kubepods/cpu.shares"), "3072");
    assert_eq!(text(&host, "/cg/cpu/kubepods/besteffort/cpu.shares"), "2");
    assert_eq!(
        absent,
        [
            Absent::Controller(Controller::Pids),
            Absent::Controller(Controller::Hugetlb),
            Absent::MemoryQos
        ]
    );
}

#[test]
fn cpus_of_a_list_are_counted() {
    assert_eq!(["0", "0-3", "0-1,4,6-7", ""].map(count_cpus), [1, 4, 5, 0]);
}

/// As on a node whose `/run` is full: there is no ledger to write to.
#[test]
fn with_a_closed_ledger_what_is_there_is_used_as_it_is() {
    let (_dir, host) = v2();
    let mounts = host.cgroup_mounts().unwrap();
    let closed = || {
        let why = "no space left".to_owned();
        Ledger::closed(&host, host.path("run/knobs.jsonl"), why).unwrap()
    };
    let root = CgroupPath::default();
    let (_kubepods, absent) =
        Kubepods::make(&host, &mounts, &root, &config(RESERVED), closed()).unwrap();
    let [Absent::NotWritten(why)] = absent.as_slice() else {
        panic!("{absent:?}");
    };
    assert!(why.contains("no space left"), "{why}");
    for (name, old) in V2_FILES {
        let now = text(&host, &format!("/sys/fs/cgroup/kubepods/{name}"));
        assert_eq!(now.trim_end(), old.trim_end(), "{name}");
    }
    assert!(!host.path("run/knobs.jsonl").exists());
    // There is nothing to be used.
    let other = CgroupPath::new("other").unwrap();
    assert!(Kubepods::make(&host, &mounts, &other, &config(RESERVED), closed()).is_err());
}
