use std::os::unix::process::ExitStatusExt as _;
use std::sync::mpsc::channel;

use plimsoll_core::kube::quantity::Quantity;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::*;
use crate::host::cgroup::tests::{fake_host, fake_v2};
use crate::host::file::ControlFile;
use crate::pods::kill::What;

const POD: &str = "/sys/fs/cgroup/kubepods/besteffort/poda";

/// One pod on cgroup v2, which has a cgroup with this in `cgroup.events`.
fn one_pod(populated: &str) -> (tempfile::TempDir, HostRoot, Pods) {
    let (dir, host) = fake_v2();
    make_cgroup(&host, populated);
    let mut pods = Pods::new(
        host.clone(),
        host.cgroup_mounts().unwrap(),
        CgroupPath::default(),
    );
    pods.apply(pod("a")).unwrap();
    (dir, host, pods)
}

fn pod(name: &str) -> Arc<Pod> {
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "c"}]},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// A pod's name and identity are what its author likes: a kubelet's manifest from a directory is checked by nobody
/// else.
#[test]
fn a_pod_is_named_with_its_identity_and_commands_no_terminal() {
    let (_dir, _host, mut pods) = one_pod("0");
    assert_eq!(pods.name_and_uid(&PodUid::from("a")), "default/a (a)");
    assert_eq!(pods.name_and_uid(&PodUid::from("gone\n")), "gone\\n");
    let hostile = serde_json::json!({
        "metadata": {"name": "x\u{1b}[8m", "namespace": "y\n", "uid": "b"},
        "spec": {"containers": [{"name": "c"}]},
    });
    let hostile: Arc<Pod> = Arc::new(serde_json::from_value(hostile).unwrap());
    pods.apply(hostile).unwrap();
    let named = pods.name_and_uid(&PodUid::from("b"));
    assert!(!named.contains(char::is_control), "{named:?}");
    assert!(named.ends_with(" (b)") && named.starts_with('y'), "{named}");
}

fn make_cgroup(host: &HostRoot, populated: &str) {
    make_cgroup_in(&host.path(POD), populated);
}

fn make_cgroup_in(dir: &Path, populated: &str) {
    std::fs::create_dir_all(dir).unwrap();
    for (name, text) in [
        ("cgroup.procs", ""),
        ("cgroup.kill", ""),
        ("memory.current", "1\n"),
        ("memory.stat", "inactive_file 0\nactive_file 0\n"),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    set_populated_in(dir, populated);
}

fn set_populated(host: &HostRoot, populated: &str) {
    set_populated_in(&host.path(POD), populated);
}

fn set_populated_in(dir: &Path, populated: &str) {
    let text = format!("populated {populated}\nfrozen 0\n");
    std::fs::write(dir.join("cgroup.events"), text).unwrap();
}

/// What a look finds, as far as it says anything.
fn look(pods: &mut Pods) -> Option<bool> {
    let change = pods.refresh(&PodUid::new("a")).unwrap();
    change.map(|change| change.running)
}

#[test]
fn a_pod_runs_as_long_as_its_cgroup_is_populated() {
    let (_dir, host, mut pods) = one_pod("1");
    let uid = PodUid::new("a");
    assert_eq!((look(&mut pods), look(&mut pods)), (Some(true), None));
    assert!(!pods.note_emptied(&uid).unwrap());
    set_populated(&host, "0");
    assert!(pods.note_emptied(&uid).unwrap());
    assert_eq!(look(&mut pods), None, "said already");
    set_populated(&host, "1");
    assert_eq!(look(&mut pods), Some(true));
}

#[test]
fn a_stuck_pod_does_not_seem_to_run_anew() {
    let (_dir, host, mut pods) = one_pod("1");
    let uid = PodUid::new("a");
    assert_eq!(look(&mut pods), Some(true));
    pods.kill(&uid).unwrap();
    // The engine gives it up.
    pods.left(&uid).unwrap();
    for _ in 0..5 {
        assert_eq!(look(&mut pods), None);
    }
    // Its processes end after all, and its runtime starts it again.
    set_populated(&host, "0");
    assert_eq!(look(&mut pods), Some(false));
    pods.left(&uid).unwrap();
    set_populated(&host, "1");
    assert_eq!(look(&mut pods), Some(true));
}

#[test]
fn a_stuck_pod_without_a_manifest_is_forgotten_when_it_is_empty() {
    let (_dir, host, mut pods) = one_pod("1");
    let uid = PodUid::new("a");
    look(&mut pods);
    pods.remove(&uid);
    pods.left(&uid).unwrap();
    assert!(pods.contains(&uid) && !pods.is_done(&uid));
    set_populated(&host, "0");
    assert_eq!(look(&mut pods), Some(false));
    assert!(pods.is_done(&uid));
    pods.left(&uid).unwrap();
    assert!(!pods.contains(&uid));
}

#[test]
fn another_cgroup_of_the_same_name_is_a_pod_that_ended_and_one_that_began() {
    let (_dir, host, mut pods) = one_pod("1");
    assert_eq!(look(&mut pods), Some(true));
    // Kept until the new one is there, so that it cannot get the same inode.
    std::fs::rename(host.path(POD), host.path("aside")).unwrap();
    make_cgroup(&host, "1");
    assert_eq!(look(&mut pods), Some(false));
    assert_eq!(look(&mut pods), Some(true));
    assert_eq!(look(&mut pods), None);
}

#[test]
fn what_a_pod_that_has_left_had_is_removed_by_the_thread() {
    let (_dir, host, mut pods) = one_pod("1");
    let uid = PodUid::new("a");
    assert_eq!(look(&mut pods), Some(true));
    set_populated(&host, "0");
    assert!(pods.note_emptied(&uid).unwrap());
    std::fs::remove_dir_all(host.path(POD)).unwrap();
    std::fs::create_dir_all(host.path(POD).join("c/0/1/2/3/4/5/6/7/8")).unwrap();
    pods = pods.with_worker(Some(CgroupWorker::start().unwrap()));
    pods.left(&uid).unwrap();
    while host.path(POD).exists() {
        std::thread::yield_now();
    }
}

#[test]
fn a_round_comes_to_every_pod_and_begins_again() {
    let (_dir, host) = fake_host(&[("cgroup", "/sys/fs/cgroup/memory", "memory")]);
    let mounts = host.cgroup_mounts().unwrap();
    let mut pods = Pods::new(host, mounts, CgroupPath::default());
    assert_eq!(pods.uids_after(None, 3), []);
    for name in ["a", "b", "c", "d", "e"] {
        pods.apply(pod(name)).unwrap();
    }
    let mut last = None;
    let mut turn = |count| {
        let share = pods.uids_after(last.as_ref(), count);
        last = share.last().cloned();
        share.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(turn(2), ["a", "b"]);
    assert_eq!(turn(2), ["c", "d"]);
    assert_eq!(turn(2), ["e", "a"]);
    assert_eq!(turn(9), ["b", "c", "d", "e", "a"]);
}

/// A pod that was seen running, and a thread that writes `cgroup.kill` like this.
fn with_kill_thread(
    write: impl Fn(&ControlFile, What) -> Result<(), FileError> + Send + 'static,
) -> (tempfile::TempDir, HostRoot, Pods) {
    let (dir, host, mut pods) = one_pod("1");
    assert_eq!(look(&mut pods), Some(true));
    let pods = pods.with_kill_thread(Some(KillThread::start_with(write).unwrap()));
    (dir, host, pods)
}

fn written(host: &HostRoot) -> String {
    std::fs::read_to_string(host.path(POD).join("cgroup.kill")).unwrap()
}

/// Stands in for a kernel whose `cgroup_mutex` a tenant holds.
#[test]
fn a_kill_does_not_wait_until_the_kernel_takes_it() {
    let (let_go, held) = channel::<()>();
    let (_dir, host, pods) = with_kill_thread(move |file, what| {
        held.recv().ok();
        file.write(what.text())
    });
    pods.kill(&PodUid::new("a")).unwrap();
    assert!(!pods.are_holds_written());
    assert_eq!(
        (written(&host), pods.kill_writes().count),
        (String::new(), 0)
    );
    drop(let_go);
    while pods.kill_writes().count == 0 {
        std::thread::yield_now();
    }
    let times = pods.kill_writes();
    assert_eq!((written(&host), times.count), ("1".to_owned(), 1));
    assert!(times.max_ns > 0 && times.sum_ns == times.max_ns);
}

/// Nor do the containers' first processes: in a PID namespace all others end with them.
#[test]
fn first_processes_die_before_the_kernel_takes_the_kill() {
    let (let_go, held) = channel::<()>();
    let (_dir, host, mut pods) = with_kill_thread(move |file, what| {
        held.recv().ok();
        file.write(what.text())
    });
    let mut first = std::process::Command::new("sleep")
        .arg("100000")
        .spawn()
        .unwrap();
    let pid = first.id().to_string();
    std::os::unix::fs::symlink(Path::new("/proc").join(&pid), host.procfs(&pid)).unwrap();
    let container = host.path(POD).join("c");
    make_cgroup_in(&container, "1");
    std::fs::write(container.join("cgroup.procs"), format!("{pid}\n")).unwrap();
    assert_eq!(look(&mut pods), None, "it runs already");
    pods.kill(&PodUid::new("a")).unwrap();
    // Comes too late, unless nothing came before.
    rustix::process::kill_process(Pid::from_child(&first), Signal::TERM).unwrap();
    let signal = first.wait().unwrap().signal();
    assert_eq!(signal, Some(Signal::KILL.as_raw()));
    assert_eq!(
        (written(&host), pods.kill_writes().count),
        (String::new(), 0)
    );
    drop(let_go);
}

#[test]
fn a_pods_score_is_that_of_a_containers_first_process() {
    let (_dir, host, mut pods) = with_kill_thread(|file, what| file.write(what.text()));
    let mut first = std::process::Command::new("sleep")
        .arg("100000")
        .spawn()
        .unwrap();
    let pid = first.id().to_string();
    let proc = host.procfs(&pid);
    std::fs::create_dir(&proc).unwrap();
    std::fs::copy(format!("/proc/{pid}/stat"), proc.join("stat")).unwrap();
    std::fs::write(proc.join("oom_score_adj"), "-997\n").unwrap();
    let container = host.path(POD).join("c");
    make_cgroup_in(&container, "1");
    std::fs::write(container.join("cgroup.procs"), format!("{pid}\n")).unwrap();
    look(&mut pods);
    let uid = PodUid::new("a");
    assert!(pods.has_oom_score_adj(&uid, -997) && !pods.has_oom_score_adj(&uid, 1000));
    assert!(!pods.has_oom_score_adj(&PodUid::new("other"), -997));
    first.kill().unwrap();
    first.wait().unwrap();
}

/// Beside others that take all places, and with the thread held up.
#[test]
fn a_kill_that_finds_no_place_is_never_written_by_the_loop() {
    let (let_go, held) = channel::<()>();
    let (_dir, host, mut pods) = with_kill_thread(move |_, _| {
        held.recv().ok();
        Ok(())
    });
    let mut number = 0;
    while pods.work_refused() == 0 {
        let name = format!("b{number}");
        let dir = host.path(POD).with_file_name(format!("pod{name}"));
        make_cgroup_in(&dir, "1");
        pods.apply(pod(&name)).unwrap();
        let uid = PodUid::new(name);
        pods.refresh(&uid).unwrap();
        let killed = pods.kill(&uid);
        // None of its processes is there to be signalled: it is tried again.
        assert_eq!(killed.is_err(), pods.work_refused() > 0, "{killed:?}");
        number += 1;
    }
    let first = pods.kill(&PodUid::new("a"));
    assert!(first.unwrap_err().to_string().contains("cgroup.kill"));
    assert_eq!(written(&host), "");
    drop(let_go);
    while !pods.are_holds_written() {
        std::thread::yield_now();
    }
    pods.kill(&PodUid::new("a")).unwrap();
    while !pods.are_holds_written() {
        std::thread::yield_now();
    }
    assert_eq!(pods.kill_writes().count, number);
}

/// Beside a kubelet a pod decides how many containers it has.
#[test]
fn a_pod_of_many_containers_takes_one_place() {
    let (let_go, held) = channel::<()>();
    let thread = KillThread::start_with(move |file, what| {
        held.recv().ok();
        file.write(what.text())
    });
    let (_dir, host) = fake_v2();
    let dir = host.path("/sys/fs/cgroup/kubepods/podmany");
    make_cgroup_in(&dir, "1");
    for number in 0..200 {
        make_cgroup_in(&dir.join(format!("c{number}")), "1");
    }
    make_cgroup_in(&dir.join("sandbox"), "1");
    let (mounts, path) = (
        host.cgroup_mounts().unwrap(),
        CgroupPath::new("kubepods/podmany"),
    );
    let path = path.unwrap();
    let pod_kill = PodKill::open(&host, &mounts, &path).unwrap();
    let mut pod_kill = pod_kill.beside_kubelet(&mounts, &path).unwrap();
    pod_kill.spare(Some(std::ffi::OsStr::new("sandbox")));
    let thread = thread.unwrap();
    for _ in 0..100 {
        pod_kill.kill_by(&thread).unwrap();
    }
    assert_eq!(thread.refused(), 0);
    let text = |name: &str| std::fs::read_to_string(dir.join(name).join("cgroup.kill")).unwrap();
    assert!((0..200).all(|number| text(&format!("c{number}")).is_empty()));
    drop(let_go);
    while !thread.is_idle() {
        std::thread::yield_now();
    }
    assert!((0..200).all(|number| text(&format!("c{number}")) == "1"));
    assert_eq!((text("sandbox"), text("")), (String::new(), String::new()));
}

#[test]
fn a_pod_that_is_killed_again_waits_once() {
    let (let_go, held) = channel::<()>();
    let (_dir, host, pods) = with_kill_thread(move |file, what| {
        held.recv().ok();
        file.write(what.text())
    });
    for _ in 0..1000 {
        pods.kill(&PodUid::new("a")).unwrap();
    }
    assert_eq!((pods.work_refused(), written(&host)), (0, String::new()));
    drop(let_go);
    while !pods.are_holds_written() {
        std::thread::yield_now();
    }
    // One that was in the thread's hands already, and one that waited.
    assert!(pods.kill_writes().count <= 2, "{:?}", pods.kill_writes());
    assert_eq!(written(&host), "1");
}

#[test]
fn what_the_kernel_does_not_kill_as_a_whole_is_signalled_by_the_thread() {
    let (_dir, host, pods) = with_kill_thread(|file, _| {
        Err(FileError::Unwritable {
            path: Arc::clone(file.path()),
            source: Errno::OPNOTSUPP,
        })
    });
    let mut child = std::process::Command::new("sleep")
        .arg("100000")
        .spawn()
        .unwrap();
    let procs = host.path(POD).join("cgroup.procs");
    std::fs::write(procs, format!("{}\n", child.id())).unwrap();
    pods.kill(&PodUid::new("a")).unwrap();
    let signal = child.wait().unwrap().signal();
    assert_eq!(signal, Some(Signal::KILL.as_raw()));
}

/// Stands in for a kernel that adds up what thousands of cgroups have counted.
#[test]
fn all_of_a_pods_usage_counts_while_its_page_cache_is_slow_to_read() {
    const MIB: u64 = 1 << 20;
    let (let_go, held) = channel::<()>();
    let (_dir, host, mut pods) = one_pod("1");
    let set_cache = |mib: u64| {
        let stat = format!("inactive_file {}\nactive_file 0\n", mib * MIB);
        std::fs::write(host.path(POD).join("memory.stat"), stat).unwrap();
    };
    let usage = format!("{}\n", 100 * MIB);
    std::fs::write(host.path(POD).join("memory.current"), usage).unwrap();
    set_cache(60);
    let thread = StatThread::start_with(0, move |files| {
        held.recv().ok();
        files.read_cache()
    });
    look(&mut pods);
    let mut pods = pods.with_stat_thread(Some(thread.unwrap()));
    let mut sample = Vec::new();
    let began_ns = crate::host::clock::now_ns();
    let mut read = |pods: &mut Pods, now_ns, urgent| {
        pods.read(&mut sample, now_ns, urgent, |_, error| panic!("{error}"));
        let memory = sample[0].clone();
        let cache_mib = memory.inactive_file_bytes / MIB;
        (cache_mib, memory.stat_age_ms, memory)
    };
    // How long it takes is not known before.
    let (cache_mib, age_ms, mut memory) = read(&mut pods, began_ns, true);
    assert_eq!((cache_mib, age_ms), (60, 0));
    set_cache(20);
    let later_ns = began_ns + 70_000_000_000;
    let (cache_mib, age_ms, _) = read(&mut pods, later_ns, false);
    assert_eq!((cache_mib, age_ms), (60, 70_000), "an old figure, as such");
    // A decision hangs on it.
    pods.freshen(&mut memory, later_ns).unwrap();
    assert_eq!((memory.inactive_file_bytes, memory.stat_age_ms), (0, 0));
    assert_eq!(memory.usage_bytes, 100 * MIB);
    assert_eq!(memory.usage_at_stat_bytes, 100 * MIB, "not asked for again");
    drop(let_go);
    loop {
        let now_ns = crate::host::clock::now_ns();
        let (cache_mib, age_ms, mut memory) = read(&mut pods, now_ns, true);
        if cache_mib == 20 && age_ms < 500 {
            pods.freshen(&mut memory, now_ns).unwrap();
            assert_eq!(memory.inactive_file_bytes, 20 * MIB);
            return;
        }
        std::thread::yield_now();
    }
}

/// Where the kernel counts them in the usage. What a pod did not request it may hold instead of memory.
#[test]
fn huge_pages_are_read_with_the_page_cache_as_far_as_they_are_requested() {
    const MIB: u64 = 1 << 20;
    let (_dir, host, mut pods) = one_pod("1");
    let set = |name: &str, text: String| std::fs::write(host.path(POD).join(name), text).unwrap();
    let set_huge = |mib: u64| {
        let stat = format!("inactive_file 0\nactive_file 0\nhugetlb {}\n", mib * MIB);
        set("memory.stat", stat);
    };
    set("memory.current", format!("{}\n", 1100 * MIB));
    set_huge(1024);
    look(&mut pods);
    let now_ns = crate::host::clock::now_ns();
    let read = |pods: &mut Pods, now_ns| {
        let mut sample = Vec::new();
        pods.read(&mut sample, now_ns, false, |_, error| panic!("{error}"));
        sample.remove(0)
    };
    let mut memory = read(&mut pods, now_ns);
    assert_eq!(memory.usage_bytes, 1100 * MIB);
    assert_eq!(memory.working_set_bytes(), 1100 * MIB, "none is requested");
    pods.freshen(&mut memory, now_ns).unwrap();
    assert_eq!(memory.working_set_bytes(), 1100 * MIB);
    let mut with_request = (*pod("a")).clone();
    let requests = &mut with_request.spec.containers[0].resources.requests;
    for (size, amount) in [("hugepages-2Mi", "512Mi"), ("hugepages-1Gi", "1Gi")] {
        requests.insert(size.to_owned(), Quantity::parse(amount).unwrap());
    }
    pods.apply(Arc::new(with_request)).unwrap();
    let mut memory = read(&mut pods, now_ns);
    assert_eq!(memory.usage_bytes, 1100 * MIB);
    assert_eq!(memory.huge_page_bytes, 1024 * MIB);
    assert_eq!(memory.working_set_bytes(), 76 * MIB);
    // It has given them back, and has other memory in their place.
    set_huge(0);
    pods.freshen(&mut memory, now_ns).unwrap();
    assert_eq!(memory.working_set_bytes(), 1100 * MIB);
}

/// Of a pod with more cgroups than are kept not even the first read is the loop's.
#[test]
fn a_pod_of_very_many_cgroups_is_slow_before_it_is_read() {
    let (_dir, host, pods) = one_pod("1");
    for number in 0..crate::pods::kill::CGROUPS_PER_POD_MAX {
        make_cgroup_in(&host.path(POD).join(format!("c{number}")), "0");
    }
    let (_let_go, held) = channel::<()>();
    let thread = StatThread::start_with(u64::MAX, move |files| {
        held.recv_timeout(std::time::Duration::from_millis(300))
            .ok();
        files.read_cache()
    });
    let mut pods = pods.with_stat_thread(Some(thread.unwrap()));
    look(&mut pods);
    let mut sample = Vec::new();
    let now_ns = crate::host::clock::now_ns();
    pods.read(&mut sample, now_ns, true, |_, error| panic!("{error}"));
    assert_eq!(sample[0].stat_age_ms, u32::MAX);
}

#[test]
fn what_a_pod_is_not_charged_for_is_in_its_readings_until_it_is_killed() {
    let (_dir, _host, mut pods) = one_pod("1");
    let uid = PodUid::new("a");
    assert!(pods.running().is_empty());
    assert_eq!(look(&mut pods), Some(true));
    assert_eq!(pods.running().len(), 1);
    let uncharged = |pods: &mut Pods| {
        let mut read = Vec::new();
        pods.read(&mut read, 1, true, |_, error| panic!("{error}"));
        read[0].uncharged_bytes
    };
    let found = [(uid.clone(), 7 << 20), (PodUid::new("gone"), 9 << 20)];
    let began_ns = crate::host::clock::now_ns();
    assert!(pods.set_uncharged(&found, began_ns));
    assert!(!pods.set_uncharged(&found, began_ns), "no news");
    assert_eq!(uncharged(&mut pods), 7 << 20);
    assert!(pods.set_uncharged(&[], began_ns));
    assert!(pods.set_uncharged(&found, began_ns));
    pods.kill(&uid).unwrap();
    assert_eq!(uncharged(&mut pods), 0);
    // What was on its way as it was killed.
    assert!(!pods.set_uncharged(&found, began_ns));
    assert_eq!(uncharged(&mut pods), 0);
    // It lives on.
    assert!(pods.set_uncharged(&found, crate::host::clock::now_ns() + 1));
    assert_eq!(uncharged(&mut pods), 7 << 20);
}
