use super::*;
use crate::host::cgroup::tests::fake_host;

#[test]
fn both_drivers_name_their_pods() {
    let of = |path: &str| pods_of(Path::new(path));
    let uid = [PodUid::from("1b2c-9a")];
    for path in [
        "/kubepods/pod1b2c-9a/3f00",
        "/kubepods/burstable/pod1b2c-9a",
        "/a/kubepods/besteffort/pod1b2c-9a/x/y",
        "/kubepods.slice/kubepods-pod1b2c_9a.slice",
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod1b2c_9a.slice/cri-containerd-77.scope",
        // From a private cgroup namespace.
        "/../../../kubepods-besteffort.slice/kubepods-besteffort-pod1b2c_9a.slice/cri-containerd-77.scope",
        "/../../kubepods/besteffort/pod1b2c-9a/3f00/container",
    ] {
        assert_eq!(of(path), uid, "{path}");
    }
    for path in [
        "/",
        "/user.slice/pod1",
        "/kubepods/burstable",
        "/kubepods/pod",
        "/kubepods.slice/kubepods-burstable.slice",
        "/other-pod1.slice",
    ] {
        assert_eq!(of(path), [], "{path}");
    }
    let nested = of("/kubepods/poda/c/kubepods/burstable/podb");
    assert_eq!(nested, [PodUid::from("a"), PodUid::from("b")]);
}

#[test]
fn this_process_is_in_the_pod_of_its_cgroup() {
    let dir = tempfile::tempdir().unwrap();
    let host = HostRoot::new(dir.path());
    std::fs::create_dir_all(host.procfs("self")).unwrap();
    let text = "3:memory:/kubepods/burstable/poda/c\n1:name=systemd:/kubepods/burstable/poda/c\n0::/kubepods/poda:b\n";
    std::fs::write(host.procfs("self/cgroup"), text).unwrap();
    let pods = pods_of_this_process(&host).unwrap();
    assert_eq!(pods, [PodUid::from("a"), PodUid::from("a:b")]);
}

const UID: &str = "1b2c9a00-0000-4000-8000-00000000000a";
const STATIC: &str = "0123456789abcdef0123456789abcdef";

fn id(digit: char) -> String {
    std::iter::repeat_n(digit, ID_DIGITS).collect()
}

/// A host with these hierarchies and cgroups, each in the first hierarchy.
fn host(mounts: &[(&str, &str, &str)], cgroups: &[&str]) -> (tempfile::TempDir, CgroupMounts) {
    let (dir, host) = fake_host(mounts);
    for (kind, mount, _) in mounts {
        if *kind == "cgroup2" {
            std::fs::write(host.path(mount).join("cgroup.controllers"), "memory\n").unwrap();
        }
    }
    let first = host.path(mounts[0].1);
    for cgroup in cgroups {
        std::fs::create_dir_all(first.join(cgroup)).unwrap();
    }
    let mounts = host.cgroup_mounts().unwrap();
    (dir, mounts)
}

const V2: &[(&str, &str, &str)] = &[("cgroup2", "/sys/fs/cgroup", "rw")];
const V1: &[(&str, &str, &str)] = &[("cgroup", "/sys/fs/cgroup/memory", "memory")];
const HYBRID: &[(&str, &str, &str)] = &[
    ("cgroup", "/sys/fs/cgroup/memory", "memory"),
    ("cgroup2", "/sys/fs/cgroup/unified", "rw"),
];

/// Scenario 16: drivers, versions, cgroup roots and runtimes.
#[test]
fn each_driver_root_and_version_is_found_and_named_back() {
    let escaped = UID.replace('-', "_");
    let roots = [
        ("", "kubepods".to_owned(), "kubepods.slice".to_owned()),
        (
            "/kubelet",
            "kubelet/kubepods".to_owned(),
            "kubelet.slice/kubelet-kubepods.slice".to_owned(),
        ),
        (
            "/a/b",
            "a/b/kubepods".to_owned(),
            "a.slice/a-b.slice/a-b-kubepods.slice".to_owned(),
        ),
    ];
    for (root, cgroupfs, systemd) in &roots {
        let stem = systemd
            .rsplit('/')
            .next()
            .unwrap()
            .trim_end_matches(".slice");
        let trees = [
            (
                Driver::Cgroupfs,
                cgroupfs,
                [
                    (QosClass::Guaranteed, format!("{cgroupfs}/pod{UID}")),
                    (
                        QosClass::Burstable,
                        format!("{cgroupfs}/burstable/pod{UID}"),
                    ),
                    (
                        QosClass::BestEffort,
                        format!("{cgroupfs}/besteffort/pod{UID}"),
                    ),
                ],
            ),
            (
                Driver::Systemd,
                systemd,
                [
                    (
                        QosClass::Guaranteed,
                        format!("{systemd}/{stem}-pod{escaped}.slice"),
                    ),
                    (
                        QosClass::Burstable,
                        format!(
                            "{systemd}/{stem}-burstable.slice/{stem}-burstable-pod{escaped}.slice"
                        ),
                    ),
                    (
                        QosClass::BestEffort,
                        format!(
                            "{systemd}/{stem}-besteffort.slice/{stem}-besteffort-pod{escaped}.slice"
                        ),
                    ),
                ],
            ),
        ];
        for (driver, kubepods, pods) in &trees {
            for (class, path) in pods {
                for mounts in [V2, V1, HYBRID] {
                    // The root is known, or it is not said.
                    for said in ["", root] {
                        let (_dir, mounts) = host(mounts, &["system.slice/x.service", path]);
                        let tree = KubeletTree::find(&mounts, &CgroupPath::new(said).unwrap());
                        let tree = tree.unwrap_or_else(|error| panic!("{path}: {error}"));
                        assert_eq!(tree.driver(), *driver, "{path}");
                        assert_eq!(tree.kubepods(), &CgroupPath::new(kubepods).unwrap());
                        let uid = PodUid::from(UID);
                        let path = CgroupPath::new(path).unwrap();
                        assert_eq!(tree.pod(*class, &uid).unwrap(), path);
                        let pod = PodCgroup {
                            uid,
                            class: *class,
                            path,
                        };
                        assert_eq!(tree.pods(&mounts).unwrap(), [pod]);
                    }
                }
            }
        }
    }
}

#[test]
fn each_runtime_names_its_containers() {
    let known = id('7');
    for name in [
        known.clone(),
        format!("crio-{known}"),
        format!("cri-containerd-{known}.scope"),
        format!("crio-{known}.scope"),
        format!("docker-{known}.scope"),
    ] {
        assert_eq!(container_id(&name), Some(&*known), "{name}");
    }
    for name in [
        format!("crio-conmon-{known}"),
        format!("crio-conmon-{known}.scope"),
        format!("{known}0"),
        known.replace('7', "G"),
        CRUN_CONTAINER.to_owned(),
        String::new(),
    ] {
        assert_eq!(container_id(&name), None, "{name}");
        assert_eq!(is_monitor(&name), name.contains("conmon"), "{name}");
    }
    assert!(!is_monitor("crio-conmon-7.scope"), "no id");
}

#[test]
fn of_two_trees_the_one_with_pods_counts_and_two_with_pods_are_an_error() {
    let pod = format!("kubepods.slice/kubepods-pod{STATIC}.slice");
    let (_dir, mounts) = host(V2, &["kubepods/burstable", &pod]);
    let tree = KubeletTree::find(&mounts, &CgroupPath::default()).unwrap();
    assert_eq!(tree.driver(), Driver::Systemd);
    assert_eq!(tree.pods(&mounts).unwrap()[0].uid, PodUid::from(STATIC));

    let other = format!("kubelet/kubepods/pod{UID}");
    let (_dir, mounts) = host(V2, &[&pod, &other]);
    let error = KubeletTree::find(&mounts, &CgroupPath::default());
    let error = error.unwrap_err().to_string();
    for name in ["/kubepods.slice", "/kubelet/kubepods", "--cgroup-root"] {
        assert!(error.contains(name), "{name}: {error}");
    }
    let named = KubeletTree::find(&mounts, &CgroupPath::new("kubelet").unwrap()).unwrap();
    assert_eq!(named.driver(), Driver::Cgroupfs);

    // That of a node which is a container of this one's Docker.
    let nested = format!("docker/{}/kubepods/pod{UID}", id('7'));
    let (_dir, mounts) = host(V2, &[&nested]);
    let tree = KubeletTree::find(&mounts, &CgroupPath::default()).unwrap();
    assert_eq!(tree.pods(&mounts).unwrap()[0].uid, PodUid::from(UID));
    let (_dir, mounts) = host(V2, &[&pod, &nested]);
    let tree = KubeletTree::find(&mounts, &CgroupPath::default()).unwrap();
    assert_eq!(tree.driver(), Driver::Systemd);

    let (_dir, mounts) = host(HYBRID, &["system.slice"]);
    let error = KubeletTree::find(&mounts, &CgroupPath::default());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("start the kubelet first"), "{error}");
    assert!(error.contains("/unified"), "{error}");
}

#[test]
fn a_cgroup_root_with_a_dash_has_an_underscore_in_its_slice() {
    let pod = format!("my_root.slice/my_root-kubepods.slice/my_root-kubepods-pod{STATIC}.slice");
    let (_dir, mounts) = host(V2, &[&pod]);
    for root in ["my-root", "my_root.slice"] {
        let tree = KubeletTree::find(&mounts, &CgroupPath::new(root).unwrap()).unwrap();
        assert_eq!(tree.driver(), Driver::Systemd, "{root}");
    }
}

#[test]
fn a_process_in_a_container_is_found_although_its_namespace_hides_the_path() {
    let pod = format!("kubepods/burstable/pod{UID}");
    let containers = [
        format!("{pod}/{}", id('1')),
        format!("{pod}/{}/container", id('2')),
    ];
    let (dir, mounts) = host(V2, &[&containers[0], &containers[1]]);
    let tree = KubeletTree::find(&mounts, &CgroupPath::default()).unwrap();
    for (container, pid) in containers.iter().zip([77, 78]) {
        let procs = dir
            .path()
            .join("sys/fs/cgroup")
            .join(container)
            .join("cgroup.procs");
        std::fs::write(procs, format!("1\n{pid}\n")).unwrap();
        assert_eq!(
            tree.pod_of_process(&mounts, pid).unwrap(),
            Some(PodUid::from(UID))
        );
    }
    assert_eq!(tree.pod_of_process(&mounts, 7).unwrap(), None);
}

#[test]
fn records_below_the_tree_are_told_from_others() {
    let (_dir, mounts) = host(V2, &["kubepods.slice"]);
    let tree = KubeletTree::find(&mounts, &CgroupPath::default()).unwrap();
    assert!(tree.has_below(b"/kubepods.slice/kubepods-podx.slice"));
    for path in [
        &b"/kubepods.slice"[..],
        b"/kubepods.slices/x",
        b"/",
        b"",
        b"/system.slice/x",
    ] {
        assert!(!tree.has_below(path));
    }
}
