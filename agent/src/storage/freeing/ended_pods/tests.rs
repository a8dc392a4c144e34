use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

use super::*;
use crate::host::HostRoot;
use crate::host::shown::Show as _;
use crate::notes;
use crate::storage::freeing::AGE_MIN;
use crate::storage::pod_paths::RuntimeLayers;

/// A machine in a directory.
struct Machine {
    _dir: tempfile::TempDir,
    paths: PodPaths,
    provider: EndedPods,
}

const EMPTY_DIRS: &str = "volumes/kubernetes.io~empty-dir";

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(std::fs::canonicalize(dir.path()).unwrap());
        let paths = PodPaths {
            host: host.clone(),
            kubelet_dir: PathBuf::from("/var/lib/kubelet"),
            logs_dir: PathBuf::from("/var/log/pods"),
            layer_roots: Vec::new(),
            runtime_layers: RuntimeLayers::default(),
        };
        write(
            &host.path("/proc/self/mounts"),
            "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n",
        );
        write(&host.path("/proc/self/mountinfo"), "");
        for (link, namespace) in [
            ("self/ns/pid", MACHINE_PID_NAMESPACE),
            ("self/ns/mnt", "mnt:[1]"),
            ("1/ns/mnt", "mnt:[1]"),
        ] {
            let link = host.procfs(link);
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(namespace, link).unwrap();
        }
        std::fs::create_dir_all(host.path("/sys/fs/cgroup/kubepods")).unwrap();
        write(
            &host.path("/sys/fs/cgroup/cgroup.controllers"),
            "cpu memory pids\n",
        );
        let mounts = host.cgroup_mounts().unwrap();
        let root = CgroupPath::new("/").unwrap();
        Self {
            _dir: dir,
            provider: EndedPods::new(paths.clone(), mounts, root),
            paths,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.paths.host.path(path)
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    fn volume_file(&self, uid: &str, file: &str) -> String {
        let path = format!("/var/lib/kubelet/pods/{uid}/{EMPTY_DIRS}/{file}");
        write(&self.path(&path), "0123456789");
        path
    }

    fn log(&self, uid: &str) -> String {
        let path = format!("/var/log/pods/default_name_{uid}/app/0.log");
        write(&self.path(&path), "line\n");
        path
    }

    fn processes(&self, cgroup: &str, populated: u32) {
        let path = self.path(&format!("/sys/fs/cgroup/{cgroup}/cgroup.events"));
        write(&path, &format!("populated {populated}\nfrozen 0\n"));
    }

    fn free(&mut self, request: &FreeRequest) -> Freed {
        self.free_by(request, 100_000)
    }

    fn free_by(&mut self, request: &FreeRequest, entries: u32) -> Freed {
        let mut all = self.provider.free(request, true, entries).unwrap();
        for _ in 0..100_000 {
            if !all.more {
                return all;
            }
            let next = self.provider.free(request, false, entries).unwrap();
            all.add(next);
        }
        panic!("freeing without end");
    }
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn uids(names: &[&str]) -> BTreeSet<PodUid> {
    names.iter().map(|name| PodUid::from(*name)).collect()
}

fn wet(ended: &[&str]) -> FreeRequest {
    FreeRequest {
        dry: false,
        ended: uids(ended),
        ..FreeRequest::default()
    }
}

fn why(freed: &Freed) -> Vec<KeptBecause> {
    let mut kept: Vec<_> = freed.kept.iter().collect();
    kept.sort_by(|left, right| left.path.cmp(&right.path));
    kept.into_iter().map(|kept| kept.why).collect()
}

#[test]
fn volumes_and_logs_of_ended_pods_go_and_nothing_else() {
    for entries in [1, 2, 5, 100_000] {
        let mut machine = Machine::new();
        let gone = [
            machine.volume_file("ended", "data/deep/er/f"),
            machine.volume_file("ended", "cache/f"),
            machine.log("ended"),
        ];
        let live = [machine.volume_file("live", "data/f"), machine.log("live")];
        // Somebody's data, in the pod's directory.
        let claim = "/var/lib/kubelet/pods/ended/volumes/kubernetes.io~csi/claim/f".to_owned();
        write(&machine.path(&claim), "precious");
        let only_volume = machine.volume_file("whole", "data/f");
        let mut request = wet(&["ended", "whole", "live"]);
        request.live = uids(&["live"]);

        let freed = machine.free_by(&request, entries);
        assert_eq!(freed.items, 4, "{freed:?}");
        assert_eq!(freed.kept, []);
        assert!(freed.bytes >= 4 * 512);
        // data, deep, er, f; cache, f; default_name_ended, app, 0.log; data, f.
        assert_eq!(freed.inodes, 11);
        for path in gone.iter().chain([&only_volume]) {
            assert!(!machine.has(path), "{path}");
        }
        for path in live.iter().chain([&claim]) {
            assert!(machine.has(path), "{path}");
        }
        assert!(!machine.has("/var/lib/kubelet/pods/whole"));
        assert!(!machine.has("/var/log/pods/default_name_ended"));
        assert_eq!(machine.free(&request), Freed::default());
    }
}

#[test]
fn a_dry_request_says_the_same_and_deletes_nothing() {
    let mut machine = Machine::new();
    let paths = [
        machine.volume_file("ended", "data/d/f"),
        machine.volume_file("ended", "cache/f"),
        machine.log("ended"),
    ];
    rustix::fs::syncfs(std::fs::File::open(machine.path("/")).unwrap()).unwrap();
    let mut dry = wet(&["ended"]);
    dry.dry = true;
    let said = machine.free_by(&dry, 2);
    assert!(paths.iter().all(|path| machine.has(path)));
    let done = machine.free(&wet(&["ended"]));
    assert_eq!(
        (said.bytes, said.items, done.items),
        (done.bytes, 3, 3),
        "{said:?}"
    );
    assert!(paths.iter().all(|path| !machine.has(path)));
}

#[test]
fn dry_by_default() {
    assert!(FreeRequest::default().dry);
}

#[test]
fn a_pod_with_processes_keeps_all_whatever_the_cgroup_driver() {
    for cgroup in [
        "kubepods/burstable/podu-1",
        "kubepods/podu-1",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice",
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podu_1.slice",
    ] {
        let mut machine = Machine::new();
        let (volume, log) = (machine.volume_file("u-1", "data/f"), machine.log("u-1"));
        // Another pod's UID starts the same.
        let other = machine.volume_file("u-11", "data/f");
        machine.processes("kubepods/burstable/podu-11", 0);
        machine.processes(cgroup, 1);
        let freed = machine.free(&wet(&["u-1", "u-11"]));
        assert_eq!(why(&freed), [KeptBecause::Processes; 2], "{cgroup}");
        assert!(machine.has(&volume) && machine.has(&log));
        assert!(!machine.has(&other));
        machine.processes(cgroup, 0);
        assert_eq!(machine.free(&wet(&["u-1"])).items, 2, "{cgroup}");
    }
}

#[test]
fn what_cannot_be_known_counts_as_running() {
    let mut machine = Machine::new();
    let volume = machine.volume_file("u", "data/f");
    // An unreadable file: a directory in its place.
    std::fs::create_dir_all(machine.path("/sys/fs/cgroup/kubepods/podu/cgroup.events")).unwrap();
    assert_eq!(
        why(&machine.free(&wet(&["u"]))),
        [KeptBecause::CgroupUnknown]
    );
    assert!(machine.has(&volume));
}

#[test]
fn cgroups_that_a_pod_makes_in_its_own_are_not_looked_through() {
    let mut machine = Machine::new();
    let volume = machine.volume_file("u", "data/f");
    for index in 0..=CGROUPS_MAX {
        let path = format!("/sys/fs/cgroup/kubepods/burstable/podother/{index}");
        std::fs::create_dir_all(machine.path(&path)).unwrap();
    }
    assert_eq!(machine.free(&wet(&["u"])).items, 1);
    assert!(!machine.has(&volume));
}

#[test]
fn without_any_kubepods_pods_are_elsewhere() {
    let mut machine = Machine::new();
    machine.volume_file("u", "data/f");
    std::fs::remove_dir(machine.path("/sys/fs/cgroup/kubepods")).unwrap();
    let freed = machine.free(&wet(&["u"]));
    assert_eq!(why(&freed), [KeptBecause::CgroupUnknown]);
}

#[test]
fn a_pod_that_nobody_has_heard_of_must_be_old() {
    let mut machine = Machine::new();
    let (volume, log) = (machine.volume_file("u", "data/f"), machine.log("u"));
    let mut request = wet(&[]);
    assert_eq!(request.age_min, AGE_MIN);
    assert_eq!(why(&machine.free(&request)), [KeptBecause::Young; 2]);
    request.age_min = Duration::ZERO;
    assert_eq!(machine.free(&request).items, 2);
    assert!(!machine.has(&volume) && !machine.has(&log));
    // A time that lies ahead is no age.
    let file = machine.volume_file("u", "data/f");
    let ahead = SystemTime::now() + Duration::from_secs(3600);
    let open = std::fs::File::open(machine.path(&file)).unwrap();
    open.set_modified(ahead).unwrap();
    assert_eq!(why(&machine.free(&request)), [KeptBecause::Young]);
}

#[test]
fn nothing_is_deleted_where_something_is_mounted() {
    let mut machine = Machine::new();
    let volume = machine.volume_file("u", "data/f");
    let mounted = machine.path(&format!("/var/lib/kubelet/pods/u/{EMPTY_DIRS}/tmpfs"));
    let text = format!("9 1 0:9 / {} rw - tmpfs tmpfs rw\n", mounted.shown());
    write(&machine.path("/proc/self/mountinfo"), &text);
    assert_eq!(why(&machine.free(&wet(&["u"]))), [KeptBecause::Mounted]);
    // Without the list of mounts nothing is certain.
    std::fs::remove_file(machine.path("/proc/self/mountinfo")).unwrap();
    let unreadable = machine.provider.free(&wet(&["u"]), true, 100);
    assert!(matches!(unreadable, Err(FreeError::Mounts)));
    assert!(machine.has(&volume));
}

#[test]
fn links_in_the_place_of_any_directory_lead_nowhere() {
    let outside = "/outside/volumes/kubernetes.io~empty-dir/data/f";
    for place in [
        "/var/lib/kubelet/pods/u",
        "/var/lib/kubelet/pods/u/volumes",
        "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir",
        "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/data",
        "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/data/sub",
        "/var/log/pods/default_name_u",
        "/var/log/pods/default_name_u/app",
    ] {
        let mut machine = Machine::new();
        write(&machine.path(outside), "precious");
        let place = machine.path(place);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        symlink(machine.path("/outside"), &place).unwrap();
        let mut request = wet(&["u"]);
        request.age_min = Duration::ZERO;
        machine.free_by(&request, 1);
        assert!(machine.has(outside), "{}", place.shown());
    }
}

#[test]
fn a_pod_that_is_wanted_again_keeps_what_has_not_gone_yet() {
    let mut machine = Machine::new();
    for uid in ["a", "b", "c"] {
        machine.volume_file(uid, "data/f");
    }
    let mut request = wet(&["a", "b", "c"]);
    let first = machine.provider.free(&request, true, 1).unwrap();
    assert!(first.more);
    request.live = uids(&["a", "b", "c"]);
    let mut rest = first;
    while rest.more {
        let next = machine.provider.free(&request, false, 1).unwrap();
        rest.add(next);
    }
    assert_eq!(rest.items, 1, "only the one whose turn had come");
}

/// A process that has ended with its pod has handed an open directory on.
#[test]
fn a_directory_that_somebody_fills_again_and_again_holds_up_nobody() {
    let mut machine = Machine::new();
    machine.provider.names_max = 100;
    let file = machine.volume_file("a", "data/f");
    let other = machine.volume_file("b", "data/f");
    let mut deepest = machine.path(&file).parent().unwrap().to_owned();
    let request = wet(&["a", "b"]);
    let mut all = machine.provider.free(&request, true, 1).unwrap();
    let mut calls = 0;
    while all.more {
        calls += 1;
        assert!(calls < 1_000, "freeing without end");
        // One level a call, and a level takes two: its name is read, and it is entered.
        deepest.push("d");
        std::fs::create_dir(&deepest).unwrap();
        let next = machine.provider.free(&request, false, 1).unwrap();
        all.add(next);
    }
    assert_eq!(why(&all), [KeptBecause::TooManyNames(100)]);
    assert!(
        all.kept[0]
            .path
            .ends_with("a/volumes/kubernetes.io~empty-dir/data")
    );
    assert!(!machine.has(&other));
    assert_eq!(all.items, 1);
    // Nobody fills it any more: another request does the rest, with a bound above the depth of any tree.
    machine.provider.names_max = NAMES_MAX;
    assert_eq!(machine.free(&request).items, 1);
    assert!(!machine.has("/var/lib/kubelet/pods/a"));
}

#[test]
fn the_trees_of_a_pod_share_a_bound_and_a_dry_request_says_so_too() {
    let mut machine = Machine::new();
    machine.provider.names_max = 15;
    for tree in ["x", "y"] {
        for file in 0..10 {
            machine.volume_file("u", &format!("{tree}/{file}"));
        }
    }
    let mut dry = wet(&["u"]);
    dry.dry = true;
    for request in [dry, wet(&["u"])] {
        for entries in [1, 100_000] {
            if !request.dry && entries > 1 {
                break; // the rest is gone then
            }
            let freed = machine.free_by(&request, entries);
            assert_eq!(why(&freed), [KeptBecause::TooManyNames(15)]);
            assert_eq!(freed.items, 1, "{freed:?}");
        }
    }
    assert_eq!(machine.free(&wet(&["u"])).items, 1);
    assert!(!machine.has("/var/lib/kubelet/pods/u"));
}

#[test]
fn a_machine_without_the_directories_has_nothing_to_free() {
    let mut machine = Machine::new();
    assert_eq!(machine.free(&wet(&["u"])), Freed::default());
}

#[test]
fn whose_logs() {
    for (name, wanted) in [
        ("default_web_default_web", Some("default_web")),
        ("ns_name_8bf6b0ae-4c5a", Some("8bf6b0ae-4c5a")),
        ("ns_name_", None),
        ("lost+found", None),
    ] {
        assert_eq!(uid_of(Kind::Logs, name), wanted.map(PodUid::from), "{name}");
    }
}

/// A process in mount namespaces of its own.
struct Namespace(std::process::Child);

impl Drop for Namespace {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Namespace {
    /// Runs a script in a new mount namespace and waits until it says that it is ready. `None`: not allowed here.
    fn start(propagation: &str, script: &str) -> Option<Self> {
        use std::io::BufRead as _;
        let mut child = std::process::Command::new("unshare")
            .args(["--mount", "--propagation", propagation, "sh", "-ec"])
            .arg(format!("{script}; echo ready; exec sleep 1000000"))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        let out = child.stdout.take()?;
        std::io::BufReader::new(out).read_line(&mut line).ok()?;
        let namespace = Self(child);
        (line == "ready\n").then_some(namespace)
    }

    fn proc(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.0.id()))
    }
}

/// As the agent in a container: the host has mounted a volume that the agent's namespace does not show. To delete the
/// directory would take the volume away from the host.
#[test]
fn a_volume_that_only_the_hosts_namespace_has_mounted_is_not_deleted() {
    let mut machine = Machine::new();
    let volume = machine.volume_file("u", "data/f");
    let directory = machine.path(&volume).parent().unwrap().to_owned();
    let place = directory.to_str().unwrap();
    let script = format!("mount -t tmpfs host {place}; echo precious >{place}/g");
    let (Some(host), Some(agent)) = (
        Namespace::start("private", &script),
        Namespace::start("private", ":"),
    ) else {
        notes::left_out("no mount namespaces here");
        return;
    };
    let proc = |of: &str| machine.paths.host.procfs(of);
    for (of, real) in [("self", agent.proc()), ("1", host.proc())] {
        std::fs::remove_file(proc(of).join("mountinfo")).ok();
        std::fs::remove_file(proc(of).join("ns/mnt")).unwrap();
        symlink(real.join("mountinfo"), proc(of).join("mountinfo")).unwrap();
        let namespace = std::fs::read_link(real.join("ns/mnt")).unwrap();
        symlink(namespace, proc(of).join("ns/mnt")).unwrap();
    }
    let seen = host
        .proc()
        .join("root")
        .join(directory.strip_prefix("/").unwrap())
        .join("g");
    let uid = wet(&["u"]);
    assert_eq!(why(&machine.free(&uid)), [KeptBecause::Mounted]);
    assert!(seen.exists(), "the host still has its volume");
    // Another pod, where the host has mounted nothing yet: it could at any moment, and the agent would not see it.
    let other = machine.volume_file("v", "data/f");
    let freed = machine.free(&wet(&["u", "v"]));
    let both = [KeptBecause::Mounted, KeptBecause::MountsHidden];
    assert_eq!(why(&freed), both);
    assert!(machine.has(&other));
}

#[test]
fn in_a_pid_namespace_of_its_own_the_agent_deletes_nothing() {
    let mut machine = Machine::new();
    machine.volume_file("u", "data/f");
    let link = machine.paths.host.procfs("self/ns/pid");
    std::fs::remove_file(&link).unwrap();
    symlink("pid:[4026532000]", &link).unwrap();
    let freed = machine.free(&wet(&["u"]));
    assert_eq!(why(&freed), [KeptBecause::MountsHidden]);
}
