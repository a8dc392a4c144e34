use super::*;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::protocol::runtime_link::{ContainerState, LayerUse, RuntimeContainer};

use crate::host::{CgroupPath, HostRoot};
use crate::pods::directories::VolumeDir;
use crate::storage::pod_paths::RuntimeLayers;

/// The machine's user namespace.
const MACHINE: &str = "user:[4026531837]";

/// A machine in a directory: cgroup v2, and what the tests put there.
struct Machine {
    dir: tempfile::TempDir,
    paths: PodPaths,
    mounts: CgroupMounts,
}

impl Machine {
    fn new() -> Self {
        Self::in_dir(tempfile::tempdir().unwrap())
    }

    fn in_dir(dir: tempfile::TempDir) -> Self {
        let host = HostRoot::new(dir.path());
        let write = |path: &str, text: &str| {
            let path = host.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "/proc/self/mounts",
            "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n",
        );
        write("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
        let mounts = host.cgroup_mounts().unwrap();
        Self {
            dir,
            paths: PodPaths {
                host,
                kubelet_dir: PathBuf::from("/var/lib/kubelet"),
                logs_dir: PathBuf::from("/var/log/pods"),
                layer_roots: vec![PathBuf::from("/run/snapshots")],
                runtime_layers: RuntimeLayers::default(),
            },
            mounts,
        }
    }

    fn write(&self, path: &str, bytes: usize) {
        let path = self.paths.host.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, vec![1; bytes]).unwrap();
    }

    fn text(&self, path: &str, text: &str) {
        self.write(path, 0);
        std::fs::write(self.paths.host.path(path), text).unwrap();
    }

    /// A process of the container `cgroup` below the pod's, that started at `ticks`, in that user namespace, with this
    /// as root and its mounts.
    fn process(&self, pid: u32, ticks: u64, user_namespace: &str, root: &str) {
        let zeros = "0 ".repeat(18);
        self.text(
            &format!("/proc/{pid}/stat"),
            &format!("{pid} (a b) S {zeros}{ticks} 0\n"),
        );
        self.text(&format!("/proc/{pid}/ns/x"), "");
        self.write(&format!("/roots/{pid}/f"), 0);
        let proc = |file: &str| self.paths.host.procfs(format!("{pid}/{file}"));
        std::os::unix::fs::symlink(user_namespace, proc("ns/user")).unwrap();
        let place = self.paths.host.path(format!("/roots/{pid}"));
        std::os::unix::fs::symlink(&place, proc("root")).unwrap();
        let device = place.metadata().unwrap().dev();
        let device = format!(
            "{}:{}",
            rustix::fs::major(device),
            rustix::fs::minor(device)
        );
        self.text(
            &format!("/proc/{pid}/mountinfo"),
            &root.replace("DEVICE", &device),
        );
    }

    fn survey(&self, pods: Vec<PodDirs>, entries: u32) -> Vec<PodSurvey> {
        let mut survey = Survey::of(pods.into());
        let mut finished = Vec::new();
        for _ in 0..100_000 {
            if survey.advance(&self.paths, &self.mounts, entries, |pod| {
                finished.push(pod);
            }) {
                return finished;
            }
        }
        panic!("a survey without end");
    }
}

fn pod(json: &str) -> PodDirs {
    let pod: Pod = serde_json::from_str(json).unwrap();
    PodDirs::of(&pod, &CgroupPath::new("kubepods/podu").unwrap()).unwrap()
}

const WEB: &str = r#"{"metadata":{"name":"web","namespace":"shop","uid":"u"},"spec":{
    "containers":[{"name":"app"},{"name":"side"}],"initContainers":[{"name":"init"}],
    "volumes":[{"name":"data","emptyDir":{}},{"name":"shm","emptyDir":{"medium":"Memory"}},{"name":"conf","configMap":{}},
               {"name":"etc","hostPath":{}},{"name":"none","emptyDir":{}}]}}"#;

#[test]
fn a_pods_directories_are_where_the_kubelet_has_them() {
    let machine = Machine::new();
    let volumes = "/var/lib/kubelet/pods/u/volumes";
    machine.write(
        &format!("{volumes}/kubernetes.io~empty-dir/data/f"),
        100_000,
    );
    machine.write(&format!("{volumes}/kubernetes.io~empty-dir/shm/f"), 1);
    machine.write(&format!("{volumes}/kubernetes.io~configmap/conf/key"), 10);
    machine.write("/var/log/pods/shop_web_u/app/0.log", 50_000);
    machine.write("/var/log/pods/shop_web_other/app/0.log", 70_000);
    machine.write("/run/snapshots/75/fs/etc/passwd", 30_000);
    machine.text("/sys/fs/cgroup/kubepods/podu/app/cgroup.procs", "7\n8\n");
    // The first process has ended; the container's root is what the second shows.
    let overlay = "1 0 DEVICE / / rw - overlay overlay rw,lowerdir=/l,upperdir=/run/snapshots/75/fs,workdir=/w\n";
    machine.process(8, 50, MACHINE, overlay);
    // A container in a cgroup of its own below, in the root of the machine.
    machine.text(
        "/sys/fs/cgroup/kubepods/podu/side/inner/cgroup.procs",
        "9\n",
    );
    machine.process(9, 60, MACHINE, "1 0 DEVICE / / rw - ext4 /dev/sda1 rw\n");
    let root = |pid| machine.paths.host.procfs(format!("{pid}/root"));
    std::fs::create_dir_all(machine.paths.host.procfs("1")).unwrap();
    std::os::unix::fs::symlink(root(9), root(1)).unwrap();

    for entries in [1, 3, 1_000_000] {
        let surveyed = machine.survey(vec![pod(WEB)], entries);
        assert_eq!(surveyed.len(), 1);
        let PodSurvey {
            storage,
            directories,
        } = &surveyed[0];
        let names: Vec<_> = storage
            .volumes
            .iter()
            .map(|volume| (volume.name.as_str(), volume.used.inodes))
            .collect();
        // hostPath is not measured, and a volume without a directory is not there.
        assert_eq!(
            names,
            [("data", Some(2)), ("shm", Some(2)), ("conf", Some(2))]
        );
        assert!(storage.volumes[0].used.bytes.unwrap() >= 100_000);
        let [app, side, init] = &storage.containers[..] else {
            panic!("{storage:?}");
        };
        assert_eq!((app.rootfs.inodes, app.logs.inodes), (Some(3), Some(2)));
        assert!(app.rootfs.bytes.unwrap() >= 30_000 && app.logs.bytes.unwrap() >= 50_000);
        for other in [side, init] {
            assert_eq!((other.rootfs, other.logs), Default::default());
        }
        assert_eq!(directories.len(), 5);
        for report in directories {
            assert!(matches!(report.way, MeasuredBy::Walked(_)), "{report:?}");
            assert_eq!(report.shortfall(), None);
        }
    }
}

/// On the node's disk and writable from the pod, though in none of its volumes.
#[test]
fn files_that_the_kubelet_makes_for_a_pod_count() {
    let machine = Machine::new();
    let files = |machine: &Machine| {
        let surveyed = machine.survey(vec![pod(WEB)], 1);
        let said = surveyed[0].directories.iter();
        let said: Vec<_> = said.filter_map(DirectoryReport::shortfall).collect();
        assert!(said.is_empty(), "{said:?}");
        surveyed[0].storage.files
    };
    assert_eq!(files(&machine), Used::default());
    let dir = "/var/lib/kubelet/pods/u";
    machine.write(&format!("{dir}/etc-hosts"), 300_000);
    let hosts = files(&machine);
    assert!(hosts.bytes >= Some(300_000), "{hosts:?}");
    assert_eq!(hosts.inodes, Some(1));
    // Each start of a container has a file of its own.
    machine.write(&format!("{dir}/containers/app/0a1b"), 500_000);
    machine.write(&format!("{dir}/containers/app/2c3d"), 500_000);
    let both = files(&machine);
    assert!(both.bytes >= Some(1_300_000), "{both:?}");
    assert_eq!(both.inodes, Some(5));
}

#[test]
fn a_command_in_the_root_of_the_machine_has_no_layer_of_its_own() {
    let machine = Machine::new();
    let overlay = "1 0 DEVICE / / rw - overlay overlay rw,upperdir=/run/snapshots/1/fs\n";
    machine.write("/run/snapshots/1/fs/f", 1);
    machine.text("/sys/fs/cgroup/kubepods/podu/app/cgroup.procs", "7\n");
    machine.process(7, 50, MACHINE, overlay);
    let layer = |machine: &Machine| {
        let surveyed = machine.survey(vec![pod(WEB)], 100);
        surveyed[0].storage.containers[0].rootfs.inodes
    };
    assert_eq!(layer(&machine), Some(2));
    machine.text("/proc/1/mountinfo", &overlay.replace("DEVICE", "0:5"));
    assert_eq!(layer(&machine), None);
}

#[test]
fn where_a_layer_cannot_be_walked_the_runtimes_figure_counts() {
    let container = |id: &str, made: u64, bytes: u64| RuntimeContainer {
        id: id.to_owned(),
        name: "app".to_owned(),
        pod: "web".to_owned(),
        namespace: "default".to_owned(),
        pod_uid: "u".to_owned(),
        sandbox: "s".to_owned(),
        is_sandbox_ready: true,
        state: ContainerState::Running,
        created_unix_ns: made,
        finished_unix_ns: None,
        images: vec!["x".to_owned()],
        writable_layer: Some(LayerUse {
            bytes: Some(bytes),
            inodes: Some(3),
        }),
    };
    let machine = Machine::new();
    let rootfs = || machine.survey(vec![pod(WEB)], 100)[0].storage.containers[0].rootfs;
    // Without processes that are found here, as beside a kubelet.
    assert_eq!(rootfs(), Used::default());
    // Of two of one name the newer counts, whatever the order.
    let layers = &machine.paths.runtime_layers;
    layers.set(&[container("b", 2, 4096), container("a", 1, 1 << 30)]);
    assert_eq!((rootfs().bytes, rootfs().inodes), (Some(4096), Some(3)));
    // A first process that may mount what it likes.
    machine.text("/sys/fs/cgroup/kubepods/podu/app/cgroup.procs", "7\n");
    let overlay = "1 0 DEVICE / / rw - overlay overlay rw,upperdir=/home/x\n";
    machine.process(7, 50, "user:[4026533000]", overlay);
    assert_eq!(rootfs().bytes, Some(4096));
    layers.set(&[]);
    assert_eq!(rootfs(), Used::default());
}

/// `pthread_exit` of a main thread: the process lives, `/proc/PID/root` leads nowhere and `/proc/PID/mountinfo` cannot
/// be opened.
#[test]
fn a_first_process_whose_main_thread_has_ended_hides_no_layer() {
    let machine = Machine::new();
    machine.write("/run/snapshots/1/fs/f", 1);
    machine.text("/sys/fs/cgroup/kubepods/podu/app/cgroup.procs", "7\n");
    let overlay = "1 0 DEVICE / / rw - overlay overlay rw,upperdir=/run/snapshots/1/fs\n";
    machine.process(7, 50, MACHINE, overlay);
    let proc = |file: &str| machine.paths.host.procfs(format!("7/{file}"));
    let layer = || {
        let surveyed = machine.survey(vec![pod(WEB)], 100);
        let way = surveyed[0].directories.first().map(|report| report.way);
        (surveyed[0].storage.containers[0].rootfs.inodes, way)
    };
    assert!(matches!(layer(), (Some(2), Some(MeasuredBy::Walked(_)))));
    // Of its threads 7 is the main one, and 9 lives.
    for thread in ["7", "9"] {
        std::fs::create_dir_all(proc(&format!("task/{thread}/ns"))).unwrap();
        let link = proc(&format!("task/{thread}/ns/user"));
        std::os::unix::fs::symlink(MACHINE, link).unwrap();
    }
    std::fs::rename(proc("mountinfo"), proc("task/9/mountinfo")).unwrap();
    std::fs::rename(proc("root"), proc("task/9/root")).unwrap();
    assert!(matches!(layer(), (Some(2), Some(MeasuredBy::Walked(_)))));
    // Nobody shows anything.
    std::fs::remove_file(proc("task/9/mountinfo")).unwrap();
    let unknown = MeasuredBy::Unknown(LayerUnknown::NotShown);
    assert_eq!(layer(), (None, Some(unknown)));
    // It is in a user namespace of its own by the word of that thread.
    std::fs::remove_file(proc("task/9/ns/user")).unwrap();
    std::os::unix::fs::symlink("user:[4026533000]", proc("task/9/ns/user")).unwrap();
    let unknown = MeasuredBy::Unknown(LayerUnknown::UserNamespace);
    assert_eq!(layer(), (None, Some(unknown)));
    // It has ended.
    machine.text("/sys/fs/cgroup/kubepods/podu/app/cgroup.procs", "");
    assert_eq!(layer(), (None, None));
}

#[test]
fn what_a_process_mounts_in_a_namespace_of_its_own_is_not_believed() {
    let overlay =
        |upper: &str| format!("1 0 DEVICE / / rw - overlay overlay rw,upperdir={upper}\n");
    let good = overlay("/run/snapshots/1/fs");
    let tmpfs = "1 0 DEVICE / / rw - tmpfs tmpfs rw\n".to_owned();
    let nested = "user:[4026533000]";
    let unknown = |why| Err(MeasuredBy::Unknown(why));
    for (what, first, second, wanted) in [
        ("the runtime's own", (MACHINE, &good), None, Ok(Some(2))),
        (
            "a later process mounts a tmpfs",
            (MACHINE, &good),
            Some((nested, &tmpfs)),
            Ok(Some(2)),
        ),
        (
            "a later process names a directory of its choice",
            (MACHINE, &good),
            Some((nested, &overlay("/home/x"))),
            Ok(Some(2)),
        ),
        (
            "the first process does",
            (nested, &overlay("/home/x")),
            None,
            unknown(LayerUnknown::UserNamespace),
        ),
        (
            "the first process mounts a tmpfs",
            (MACHINE, &tmpfs),
            None,
            unknown(LayerUnknown::NoOverlay),
        ),
        (
            "a privileged one names another directory",
            (MACHINE, &overlay("/home/x")),
            None,
            unknown(LayerUnknown::Elsewhere),
        ),
        (
            "and hides where it leads",
            (MACHINE, &overlay("/run/snapshots/../../home/x")),
            None,
            unknown(LayerUnknown::Elsewhere),
        ),
        (
            "or goes by a link in a layer",
            (MACHINE, &overlay("/run/snapshots/1/fs/link/sub")),
            None,
            Err(MeasuredBy::Failed(Errno::LOOP)),
        ),
        (
            "its root is not what its mounts show",
            (MACHINE, &good.replace("DEVICE", "0:5")),
            None,
            unknown(LayerUnknown::OtherRoot),
        ),
    ] {
        let machine = Machine::new();
        machine.write("/home/x/sub/a", 1);
        machine.write("/run/snapshots/1/fs/f", 1);
        let link = machine.paths.host.path("/run/snapshots/1/fs/link");
        if what.contains("link") {
            std::os::unix::fs::symlink(machine.paths.host.path("/home/x"), link).unwrap();
        }
        // The kernel need not list the first process first, and numbers begin anew.
        let listed = "8\n6\n7\n";
        machine.text("/sys/fs/cgroup/kubepods/podu/app/cgroup.procs", listed);
        machine.process(7, 50, first.0, first.1);
        if let Some((namespace, root)) = second {
            machine.process(8, 51, namespace, root);
            machine.process(6, 52, namespace, root);
        }
        let surveyed = machine.survey(vec![pod(WEB)], 100);
        let rootfs = surveyed[0].storage.containers[0].rootfs;
        let [report] = &surveyed[0].directories[..] else {
            panic!("{what}: {surveyed:?}");
        };
        match wanted {
            Ok(inodes) => assert_eq!(rootfs.inodes, inodes, "{what}"),
            Err(way) => {
                assert_eq!((rootfs, report.way), (Used::default(), way), "{what}");
                let said = report.shortfall().unwrap();
                assert!(said.contains("not counted"), "{what}: {said}");
            }
        }
    }
}

#[test]
fn names_that_would_lead_elsewhere_have_no_directory() {
    let machine = Machine::new();
    machine.write("/var/lib/kubelet/f", 1);
    for uid in ["..", ".", "", "a/b", "a\0b"] {
        let mut web = pod(WEB);
        web.uid = PodUid::from(uid);
        web.containers.clear();
        web.volumes[0].name = "../../../..".to_owned();
        let surveyed = machine.survey(vec![web], 100);
        assert!(surveyed[0].directories.is_empty(), "{uid:?}");
    }
}

#[test]
fn what_is_no_directory_is_said_and_the_rest_is_measured() {
    let machine = Machine::new();
    let volumes = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir";
    machine.write(&format!("{volumes}/data"), 1);
    machine.write(&format!("{volumes}/none/f"), 1);
    let surveyed = machine.survey(vec![pod(WEB)], 100);
    let [data, none] = &surveyed[0].directories[..] else {
        panic!("{surveyed:?}");
    };
    assert_eq!(
        (data.used, data.way),
        (Used::default(), MeasuredBy::Failed(Errno::NOTDIR))
    );
    let shortfall = data.shortfall().unwrap();
    assert!(
        shortfall.contains("kubernetes.io~empty-dir/data: Not a directory"),
        "{shortfall}"
    );
    assert_eq!(none.used.inodes, Some(2));
}

#[test]
fn a_survey_goes_on_where_a_slice_ended() {
    let machine = Machine::new();
    let mut pods = Vec::new();
    for index in 0..20 {
        let mut web = pod(WEB);
        web.uid = PodUid::from(format!("u{index}").as_str());
        for file in 0..=index {
            machine.write(
                &format!(
                    "/var/lib/kubelet/pods/u{index}/volumes/kubernetes.io~empty-dir/data/{file}"
                ),
                1,
            );
        }
        pods.push(web);
    }
    for entries in [1, 2, 10, 1000] {
        let surveyed = machine.survey(pods.clone(), entries);
        let inodes: Vec<_> = surveyed
            .iter()
            .map(|pod| pod.storage.volumes[0].used.inodes.unwrap())
            .collect();
        assert_eq!(inodes, (2..22).collect::<Vec<u64>>(), "{entries}");
    }
    drop(machine.dir);
}

/// The volume `data` of a pod.
fn data(uid: &str) -> String {
    format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/data")
}

fn web(uid: &str) -> PodDirs {
    PodDirs {
        uid: PodUid::from(uid),
        ..pod(WEB)
    }
}

#[test]
fn a_pod_that_makes_directories_ahead_of_the_walk_holds_up_nobody() {
    let machine = Machine::new();
    for uid in ["a", "b"] {
        machine.write(&format!("{}/f", data(uid)), 1);
    }
    let mut deepest = machine.paths.host.path(data("a"));
    let mut survey = Survey::of([web("a"), web("b")].into());
    survey.names_max = 100;
    let mut finished = Vec::new();
    let is_done = (0..1_000).any(|_| {
        // One level a slice, and a level takes two: its name is read, and it is entered.
        deepest.push("d");
        std::fs::create_dir(&deepest).unwrap();
        survey.advance(&machine.paths, &machine.mounts, 1, |pod| {
            finished.push(pod);
        })
    });
    assert!(is_done, "a survey without end");
    let [a, b] = &finished[..] else {
        panic!("{finished:?}");
    };
    let shortfall = a.directories[0].shortfall().unwrap();
    assert!(
        shortfall.contains("the count ended after 100 names"),
        "{shortfall}"
    );
    assert!(a.storage.volumes[0].used.inodes > Some(90), "{a:?}");
    assert_eq!(b.storage.volumes[0].used.inodes, Some(2));
    assert_eq!(b.directories[0].shortfall(), None);
}

#[test]
fn the_directories_of_a_pod_share_a_bound_and_none_is_left_out() {
    let machine = Machine::new();
    let mut many = pod(WEB);
    let names = ["v0", "v1", "v2", "v3", "v4", "v5"];
    let volume = many.volumes[0].clone();
    many.volumes.clear();
    for name in names {
        for file in 0..100 {
            machine.write(&format!("{}/{file}", data("u").replace("data", name)), 1);
        }
        many.volumes.push(VolumeDir {
            name: name.to_owned(),
            ..volume.clone()
        });
    }
    for entries in [1, 1_000_000] {
        let mut survey = Survey::of([many.clone(), many.clone()].into());
        survey.names_max = 80;
        let mut finished = Vec::new();
        let mut advance = || {
            survey.advance(&machine.paths, &machine.mounts, entries, |pod| {
                finished.push(pod);
            })
        };
        assert!((0..10_000).any(|_| advance()), "a survey without end");
        assert_eq!(finished.len(), 2);
        for pod in &finished {
            let counted: Vec<_> = pod
                .storage
                .volumes
                .iter()
                .map(|volume| volume.used.inodes.unwrap())
                .collect();
            assert_eq!(counted, [81, 81, 81, 81, 3, 3], "the next pod starts anew");
        }
    }
}

#[test]
fn a_pod_whose_count_ended_early_says_so() {
    let machine = Machine::new();
    for file in 0..50 {
        machine.write(&format!("{}/{file}", data("u")), 4096);
    }
    for (names_max, is_cut, inodes) in [(1_000, false, 51), (20, true, 21)] {
        let mut survey = Survey::of([pod(WEB)].into());
        survey.names_max = names_max;
        let mut finished = Vec::new();
        assert!(
            survey.advance(&machine.paths, &machine.mounts, 10_000, |pod| {
                finished.push(pod);
            })
        );
        assert_eq!(finished[0].storage.is_cut, is_cut);
        assert_eq!(finished[0].directories[0].used.inodes, Some(inodes));
        assert_eq!(finished[0].directories[0].shortfall().is_some(), is_cut);
    }
}

#[test]
fn a_pod_with_a_tree_that_is_too_deep_has_more_than_is_counted() {
    let machine = Machine::new();
    machine.write(&format!("{}/1/2/3/4/f", data("u")), 1);
    // With the root.
    for (levels, is_cut) in [(5, false), (4, true)] {
        let mut survey = Survey::of([pod(WEB)].into());
        let mut finished = Vec::new();
        let is_done = (0..100).any(|_| {
            if let Some(walk) = &mut survey.walk {
                walk.bound_depth(levels);
            }
            survey.advance(&machine.paths, &machine.mounts, 1, |pod| {
                finished.push(pod);
            })
        });
        assert!(is_done, "a survey without end");
        assert_eq!(finished[0].storage.is_cut, is_cut);
        let shortfall = finished[0].directories[0].shortfall();
        assert_eq!(shortfall.is_some(), is_cut, "{shortfall:?}");
        if let Some(shortfall) = shortfall {
            assert!(shortfall.contains(" 1 too deep"), "{shortfall}");
        }
    }
}

#[test]
fn what_is_moved_while_it_is_counted_is_counted_again_and_thrice_is_no_chance() {
    use crate::storage::walk::tests::deep;
    for (times, walks, is_cut) in [(0, 1, false), (1, 2, false), (2, 3, false), (9, 3, true)] {
        let machine = Machine::new();
        let volume = machine.paths.host.path(data("u"));
        for home in ["0", "1"] {
            std::fs::create_dir_all(volume.join(home)).unwrap();
        }
        deep(&volume.join("0"), 100, "d");
        let mut survey = Survey::of([pod(WEB)].into());
        let mut finished = Vec::new();
        let (mut moved, mut seen, mut begun) = (0, 0, 0);
        let is_done = (0..10_000).any(|_| {
            let names = survey.walk.as_ref().map_or(0, Walk::names);
            begun += u32::from(seen == 0 && names > 0);
            // It is in the 80th level or below: the first ones are not open any more.
            if seen < 170 && names >= 170 && moved < times {
                let at = |home: i32| volume.join((home % 2).to_string()).join("d");
                std::fs::rename(at(moved), at(moved + 1)).unwrap();
                moved += 1;
            }
            seen = names;
            survey.advance(&machine.paths, &machine.mounts, 1, |pod| {
                finished.push(pod);
            })
        });
        assert!(is_done, "a survey without end");
        assert_eq!((begun, finished[0].storage.is_cut), (walks, is_cut));
        let inodes = finished[0].storage.volumes[0].used.inodes.unwrap();
        let shortfall = finished[0].directories[0].shortfall();
        if is_cut {
            assert!(shortfall.unwrap().contains(" 1 moved during the count"));
            // What was moved on in time is counted where it went, too.
            assert!(inodes >= 100, "{inodes}");
        } else {
            assert_eq!((inodes, shortfall), (203, None));
        }
    }
}

/// One pod in the machine's user namespace can put its files into the projects of all.
#[test]
fn quotas_are_believed_only_if_no_pod_can_change_projects() {
    let namespaced = |uid| PodDirs {
        has_user_namespace: true,
        ..web(uid)
    };
    assert!(Survey::of([namespaced("a"), namespaced("b")].into()).believes_quotas);
    assert!(!Survey::of([namespaced("a"), web("b")].into()).believes_quotas);
    let mut survey = Survey::of([namespaced("a")].into());
    survey.doubt_quotas();
    assert!(!survey.believes_quotas);
}

#[test]
fn a_container_whose_processes_are_hidden_below_many_cgroups_has_an_unknown_layer() {
    let machine = Machine::new();
    machine.write("/run/snapshots/1/fs/f", 1);
    let overlay = "1 0 DEVICE / / rw - overlay overlay rw,upperdir=/run/snapshots/1/fs\n";
    machine.process(7, 50, MACHINE, overlay);
    let app = "/sys/fs/cgroup/kubepods/podu/app";
    let populated = |count: u32| {
        let text = format!("populated {count}\nfrozen 0\n");
        machine.text(&format!("{app}/cgroup.events"), &text);
    };
    populated(1);
    let app_dir = machine.paths.host.path(app);
    for index in 0..300 {
        std::fs::create_dir(app_dir.join(index.to_string())).unwrap();
    }
    let layer = || {
        let surveyed = machine.survey(vec![pod(WEB)], 100);
        let report = surveyed[0].directories.first().cloned();
        (surveyed[0].storage.containers[0].rootfs.inodes, report)
    };
    // In the order in which they are searched.
    let cgroups: Vec<PathBuf> = std::fs::read_dir(&app_dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    let procs = |index: usize| cgroups[index].join("cgroup.procs");
    for (index, is_found) in [(0, true), (200, true), (299, false)] {
        std::fs::write(procs(index), "7\n").unwrap();
        let (inodes, report) = layer();
        let report = report.unwrap();
        if is_found {
            assert_eq!((inodes, report.shortfall()), (Some(2), None), "{index}");
        } else {
            let unknown = MeasuredBy::Unknown(LayerUnknown::NoProcessFound);
            assert_eq!((inodes, report.way), (None, unknown));
            let shortfall = report.shortfall().unwrap();
            assert!(shortfall.contains("none was found"), "{shortfall}");
        }
        std::fs::remove_file(procs(index)).unwrap();
    }
    // It has ended, by the kernel's count; without that nobody knows.
    populated(0);
    assert_eq!(layer(), (None, None));
    std::fs::remove_file(app_dir.join("cgroup.events")).unwrap();
    assert!(layer().1.is_some());
}

#[test]
fn a_container_whose_processes_are_hidden_deep_down_has_an_unknown_layer() {
    let machine = Machine::new();
    let overlay = "1 0 DEVICE / / rw - overlay overlay rw,upperdir=/run/snapshots/1/fs\n";
    machine.process(7, 50, MACHINE, overlay);
    let app = "/sys/fs/cgroup/kubepods/podu/app";
    machine.text(&format!("{app}/cgroup.events"), "populated 1\nfrozen 0\n");
    machine.text(&format!("{app}/1/2/3/4/5/cgroup.procs"), "7\n");
    let surveyed = machine.survey(vec![pod(WEB)], 100);
    let ways: Vec<_> = surveyed[0].directories.iter().map(|it| it.way).collect();
    assert_eq!(ways, [MeasuredBy::Unknown(LayerUnknown::NoProcessFound)]);
}

/// Needs a file system with project quotas (in a guest the module `quota_v2`), and `chattr`:
/// `mkfs.ext4 -O quota,project -E quotatype=prjquota IMAGE; mount -o loop,prjquota IMAGE /mnt`, then
/// `PLIMSOLL_QUOTA_DIR=/mnt cargo test -p plimsoll --lib projects -- --ignored`. In a guest: this program, stripped,
/// with `libgcc_s.so.1` and `libm.so.6`, as `--payload` of `cargo xtask vm --bare --package e2fsprogs`, and the disk
/// `/dev/nvme0n1`.
#[test]
#[ignore = "needs a file system with project quotas"]
fn projects_are_asked_where_they_are_exactly_one_directory() {
    use std::io::Write;
    let root = std::env::var("PLIMSOLL_QUOTA_DIR").expect("PLIMSOLL_QUOTA_DIR names a directory");
    let machine = Machine::in_dir(tempfile::tempdir_in(root).unwrap());
    let volumes = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir";
    let path = |name: &str| machine.paths.host.path(format!("{volumes}/{name}"));
    let put_in_project = |path: &Path, project: &str| {
        // Only a directory hands its project down; the kernel refuses the flag for a file.
        let inherits = path.is_dir().then_some("+P");
        let status = std::process::Command::new("chattr")
            .args(inherits)
            .args(["-p", project])
            .arg(path)
            .status();
        assert!(status.unwrap().success(), "{}", path.shown());
    };
    let web = r#"{"metadata":{"name":"web","namespace":"shop","uid":"u"},"spec":{"hostUsers":false,"containers":[{"name":"app"}],
        "volumes":[{"name":"quota","emptyDir":{}},{"name":"none","emptyDir":{}},{"name":"twin-a","emptyDir":{}},
                   {"name":"twin-b","emptyDir":{}},{"name":"part","emptyDir":{}}]}}"#;
    for name in ["quota", "none", "twin-a", "twin-b"] {
        std::fs::create_dir_all(path(name)).unwrap();
    }
    put_in_project(&path("quota"), "7001");
    put_in_project(&path("twin-a"), "7002");
    put_in_project(&path("twin-b"), "7002");
    // Of a project that is larger than the directory.
    put_in_project(&machine.paths.host.path(volumes), "7003");
    std::fs::create_dir(path("part")).unwrap();
    for name in ["quota", "none", "twin-a", "twin-b", "part"] {
        machine.write(&format!("{volumes}/{name}/a/f"), 200_000);
    }
    // Deleted and still open: the quota counts it, no walk can.
    let mut open = std::fs::File::create(path("quota").join("open")).unwrap();
    open.write_all(&vec![1; 1 << 20]).unwrap();
    std::fs::remove_file(path("quota").join("open")).unwrap();
    rustix::fs::syncfs(&open).unwrap();

    let surveyed = machine.survey(vec![pod(web)], 10);
    let found: Vec<_> = surveyed[0]
        .directories
        .iter()
        .map(|report| {
            let Part::Volume(name) = &report.part else {
                panic!("{report:?}");
            };
            let project = match report.way {
                MeasuredBy::Quota { project } => Some(project),
                MeasuredBy::Walked(_) => None,
                MeasuredBy::Failed(error) => panic!("{name}: {error}"),
                MeasuredBy::Unknown(why) => panic!("{name}: {why}"),
                MeasuredBy::Runtime => panic!("{name}: by the runtime"),
                MeasuredBy::Served(kind) => panic!("{name}: {kind}"),
            };
            (name.as_str(), project, report.used.inodes)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("quota", Some(7001), Some(4)),
            ("none", None, Some(3)),
            ("twin-a", None, Some(3)),
            ("twin-b", None, Some(3)),
            ("part", None, Some(3)),
        ]
    );
    let bytes = |index: usize| surveyed[0].directories[index].used.bytes.unwrap();
    assert_eq!(bytes(0), bytes(1) + (1 << 20));
    // A pod in the machine's user namespace gives a file of its own the project of another pod's volume.
    let stranger = PodDirs {
        has_user_namespace: false,
        ..self::web("stranger")
    };
    let file = format!("{}/f", data("stranger"));
    machine.write(&file, 8 << 20);
    put_in_project(&machine.paths.host.path(&file), "7001");
    let surveyed = machine.survey(vec![pod(web), stranger], 10);
    let quota = &surveyed[0].directories[0];
    assert!(matches!(quota.way, MeasuredBy::Walked(_)), "{quota:?}");
    assert!(quota.used.bytes < Some(1 << 20), "{quota:?}");
    // In the machine's user namespace the pod gives its files the project that it likes.
    put_in_project(&path("quota/a/f"), "0");
    let surveyed = machine.survey(vec![pod(&web.replace("\"hostUsers\":false,", ""))], 10);
    let quota = &surveyed[0].directories[0];
    assert!(matches!(quota.way, MeasuredBy::Walked(_)), "{quota:?}");
    assert!(quota.used.bytes >= Some(200_000));
}

/// What a reader of the list of mounts costs who mounts beside it is the kernel's. A survey reads its own list once,
/// however many mounts it meets.
#[test]
fn the_list_of_mounts_is_read_once_for_all_volumes() {
    use rustix::fs::inotify;
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    const VOLUMES: usize = 20;
    struct Mounts(Vec<PathBuf>);
    impl Drop for Mounts {
        fn drop(&mut self) {
            for path in &self.0 {
                unmount(path, UnmountFlags::DETACH).ok();
            }
        }
    }
    let machine = Machine::new();
    let mut mounts = Mounts(Vec::new());
    let names: Vec<String> = (0..VOLUMES).map(|index| format!("v{index}")).collect();
    for name in &names {
        let file = format!("/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/{name}");
        let path = machine.paths.host.path(file);
        std::fs::create_dir_all(&path).unwrap();
        if let Err(error) = mount("none", &path, "tmpfs", MountFlags::empty(), None) {
            return crate::notes::left_out(format_args!("tmpfs: {error}"));
        }
        std::fs::write(path.join("f"), [1; 4096]).unwrap();
        mounts.0.push(path);
    }
    let list = machine.paths.host.procfs("self/mountinfo");
    std::fs::write(&list, std::fs::read("/proc/self/mountinfo").unwrap()).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC);
    let watch = watch.unwrap();
    // With the closing in between, two openings are two events.
    let events = inotify::WatchFlags::OPEN | inotify::WatchFlags::CLOSE_NOWRITE;
    inotify::add_watch(&watch, &list, events).unwrap();
    let volumes: Vec<String> = names
        .iter()
        .map(|name| format!(r#"{{"name":"{name}","emptyDir":{{}}}}"#))
        .collect();
    let pods = vec![pod(&format!(
        r#"{{"metadata":{{"name":"p","namespace":"d","uid":"u1"}},"spec":{{"containers":[{{"name":"c"}}],"volumes":[{}]}}}}"#,
        volumes.join(",")
    ))];
    let surveyed = machine.survey(pods, 100);
    let measured = surveyed[0].storage.volumes.iter();
    assert_eq!(
        measured.filter(|it| it.used.inodes == Some(2)).count(),
        VOLUMES
    );
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&watch, &mut buffer);
    let mut opened = 0;
    while let Ok(event) = reader.next() {
        opened += usize::from(event.events().contains(inotify::ReadFlags::OPEN));
    }
    // Once for the kinds of what is mounted, once for the machine's own root, which has no process 1 here.
    assert!((1..=2).contains(&opened), "{opened} times");
}

#[test]
fn a_volume_of_a_dead_fuse_server_is_said_and_the_rest_is_measured() {
    use crate::storage::walk::tests::{mount_silent_fuse, without_asking};
    use rustix::mount::{UnmountFlags, unmount};
    let machine = Machine::new();
    let volumes = "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir";
    machine.write(&format!("{volumes}/good/f"), 4096);
    let bad = machine.paths.host.path(format!("{volumes}/bad"));
    std::fs::create_dir(&bad).unwrap();
    let Some(server) = mount_silent_fuse(&bad) else {
        return;
    };
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap();
    std::fs::write(machine.paths.host.procfs("self/mountinfo"), mounts).unwrap();
    let pods = vec![pod(
        r#"{"metadata":{"name":"p","namespace":"d","uid":"u1"},"spec":{"containers":[{"name":"c"}],
            "volumes":[{"name":"bad","emptyDir":{}},{"name":"good","emptyDir":{}}]}}"#,
    )];
    let surveyed = without_asking(server, move || (machine.survey(pods, 100), machine));
    unmount(&bad, UnmountFlags::DETACH).unwrap();
    let (surveyed, _machine) = surveyed.expect("the survey waits for the server");
    let directories = &surveyed[0].directories;
    let of = |name: &str| {
        let part = Part::Volume(name.to_owned());
        directories.iter().find(|it| it.part == part).unwrap()
    };
    assert_eq!(
        (of("bad").way, of("bad").used),
        (MeasuredBy::Served("fuse"), Used::default())
    );
    assert!(
        of("bad")
            .shortfall()
            .unwrap()
            .contains("fuse is mounted there")
    );
    assert!(of("good").used.bytes >= Some(4096), "{directories:?}");
}
