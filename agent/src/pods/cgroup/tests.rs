use plimsoll_core::kube::cgroup_config::{CgroupConfig, NodeCapacity, QosSettings, tiers};
use plimsoll_core::kube::pod::Pod;

use super::*;
use crate::host::HostRoot;
use crate::host::cgroup::tests::{fake_host, fake_v2};

fn pod(spec: &str) -> Pod {
    serde_json::from_str::<Pod>(&format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#))
        .unwrap()
        .with_defaults()
}

fn pod_config(pod: &Pod) -> CgroupConfig {
    plimsoll_core::kube::cgroup_config::pod_config(
        pod,
        &QosSettings::default(),
        &NodeCapacity::default(),
    )
}

fn container_config(pod: &Pod) -> CgroupConfig {
    let container = &pod.spec.containers[0];
    plimsoll_core::kube::cgroup_config::container_config(
        pod,
        container,
        &QosSettings::default(),
        &NodeCapacity::default(),
    )
}

/// The kernel makes control files with the directory; here the test does.
fn make(host: &HostRoot, dir: &str, files: &[(&str, &str)]) {
    let dir = host.path(dir);
    std::fs::create_dir_all(&dir).unwrap();
    for (file, text) in files {
        std::fs::write(dir.join(file), text).unwrap();
    }
}

fn text(host: &HostRoot, file: &str) -> String {
    std::fs::read_to_string(host.path(file)).unwrap()
}

fn config() -> CgroupConfig {
    let container = r#"{"name":"c","resources":{"limits":{"cpu":"1500m","memory":"1Gi","hugepages-2Mi":"4Mi"},"requests":{"cpu":"1"}}}"#;
    let pod = pod(&format!(r#"{{"containers":[{container}]}}"#));
    CgroupConfig {
        pids_max: Some(64),
        ..pod_config(&pod)
    }
}

#[test]
fn paths_by_class() {
    let root = CgroupPath::new("node").unwrap();
    let one = |resources: &str| {
        pod(&format!(
            r#"{{"containers":[{{"name":"c","resources":{resources}}}]}}"#
        ))
    };
    for (resources, wanted) in [
        ("{}", "/node/kubepods/besteffort/poddefault_p"),
        (
            r#"{"requests":{"memory":"1Mi"}}"#,
            "/node/kubepods/burstable/poddefault_p",
        ),
        (
            r#"{"limits":{"cpu":"1","memory":"1Mi"}}"#,
            "/node/kubepods/poddefault_p",
        ),
    ] {
        assert_eq!(
            pod_path(&root, &one(resources)).unwrap().to_string(),
            wanted
        );
    }
    let mut bad = one("{}");
    bad.metadata.uid = Some(PodUid::from("../../x"));
    assert!(pod_path(&root, &bad).is_err());
}

#[test]
fn limits_on_v2() {
    let (_dir, host) = fake_v2();
    let names = [
        "cpu.weight",
        "cpu.max",
        "memory.max",
        "memory.oom.group",
        "pids.max",
        "hugetlb.2MB.max",
        "hugetlb.1GB.max",
    ];
    make(
        &host,
        "/sys/fs/cgroup/kubepods/podx",
        &names.map(|name| (name, "before")),
    );
    let mounts = host.cgroup_mounts().unwrap();
    let cgroup = CgroupPath::new("kubepods/podx").unwrap();
    assert_eq!(
        apply(&mounts, &cgroup, &config()).unwrap(),
        Vec::<String>::new()
    );
    set_oom_group(&mounts, &cgroup).unwrap();
    let wanted = [
        "100",
        "150000 100000",
        "1073741824",
        "1",
        "64",
        "4194304",
        "0",
    ];
    for (name, wanted) in names.iter().zip(wanted) {
        assert_eq!(
            text(&host, &format!("/sys/fs/cgroup/kubepods/podx/{name}")),
            wanted,
            "{name}"
        );
    }
    // Each control file in turn is missing, and is named together with the pod's field.
    for name in &names[..6] {
        let path = host.path(format!("/sys/fs/cgroup/kubepods/podx/{name}"));
        std::fs::remove_file(&path).unwrap();
        let result = apply(&mounts, &cgroup, &config())
            .map(drop)
            .map_err(|error| error.to_string());
        let result = result
            .and_then(|()| set_oom_group(&mounts, &cgroup).map_err(|error| error.to_string()));
        let error = result.unwrap_err();
        assert!(error.contains(name), "{name}: {error}");
        std::fs::write(&path, "").unwrap();
    }
}

#[test]
fn a_quota_below_the_burst_takes_the_burst_away_first() {
    let (_dir, host) = fake_v2();
    let dir = "/sys/fs/cgroup/kubepods/podx";
    let mounts = host.cgroup_mounts().unwrap();
    let cgroup = CgroupPath::new("kubepods/podx").unwrap();
    for (burst, wanted) in [("150000\n", "150000\n"), ("150001\n", "0")] {
        make(
            &host,
            dir,
            &[
                ("cpu.weight", ""),
                ("cpu.max", "max 100000\n"),
                ("cpu.max.burst", burst),
                ("memory.max", ""),
                ("pids.max", ""),
                ("hugetlb.2MB.max", ""),
                ("hugetlb.1GB.max", ""),
            ],
        );
        apply(&mounts, &cgroup, &config()).unwrap();
        assert_eq!(text(&host, &format!("{dir}/cpu.max.burst")), wanted);
        assert_eq!(text(&host, &format!("{dir}/cpu.max")), "150000 100000");
    }
}

#[test]
fn limits_on_v1() {
    let mount = |name: &'static str| ("cgroup", name, name.rsplit('/').next().unwrap());
    let names = ["cpu", "memory", "pids", "hugetlb"]
        .map(|name| format!("/cg/{name}").leak() as &'static str);
    let (_dir, host) = fake_host(&names.map(mount));
    let files = [
        ("cpu/kubepods/podx", "cpu.shares", "1024"),
        ("cpu/kubepods/podx", "cpu.cfs_period_us", "100000"),
        ("cpu/kubepods/podx", "cpu.cfs_quota_us", "150000"),
        (
            "memory/kubepods/podx",
            "memory.limit_in_bytes",
            "1073741824",
        ),
        ("pids/kubepods/podx", "pids.max", "64"),
        (
            "hugetlb/kubepods/podx",
            "hugetlb.2MB.limit_in_bytes",
            "4194304",
        ),
        (
            "hugetlb/kubepods/podx",
            "hugetlb.2MB.rsvd.limit_in_bytes",
            "4194304",
        ),
    ];
    for (dir, file, _) in files {
        make(&host, &format!("/cg/{dir}"), &[(file, "before")]);
    }
    let cgroup = CgroupPath::new("kubepods/podx").unwrap();
    let mounts = host.cgroup_mounts().unwrap();
    apply(&mounts, &cgroup, &config()).unwrap();
    set_oom_group(&mounts, &cgroup).unwrap();
    for (dir, file, wanted) in files {
        assert_eq!(text(&host, &format!("/cg/{dir}/{file}")), wanted, "{file}");
    }
}

#[test]
fn a_missing_controller_matters_only_when_it_is_asked_for() {
    let (_dir, host) = fake_host(&[
        ("cgroup", "/cg/freezer", "freezer"),
        ("cgroup2", "/cg/unified", "rw"),
    ]);
    make(&host, "/cg/unified", &[("cgroup.controllers", "")]);
    let mounts = host.cgroup_mounts().unwrap();
    let cgroup = CgroupPath::new("kubepods/podx").unwrap();
    let notes = apply(
        &mounts,
        &cgroup,
        &pod_config(&pod(r#"{"containers":[{"name":"c"}]}"#)),
    )
    .unwrap();
    assert_eq!(notes.len(), 2, "cpu and memory: {notes:?}");
    for (limits, field, controller) in [
        (r#"{"cpu":"1"}"#, "cpu", "cpu"),
        (r#"{"memory":"1Mi"}"#, "limits.memory", "memory"),
        (
            r#"{"hugepages-2Mi":"2Mi"}"#,
            "limits.hugepages-2Mi",
            "hugetlb",
        ),
    ] {
        let container =
            format!(r#"{{"containers":[{{"name":"c","resources":{{"limits":{limits}}}}}]}}"#);
        let pod = pod(&container);
        let config = container_config(&pod);
        let error = apply(&mounts, &cgroup, &config).unwrap_err().to_string();
        assert!(
            error.contains(field)
                && error.contains(&format!("controller {controller} is not available")),
            "{error}"
        );
    }
}

#[test]
fn a_page_size_that_the_machine_does_not_have() {
    let (_dir, host) = fake_host(&[("cgroup", "/cg/hugetlb", "hugetlb")]);
    make(
        &host,
        "/cg/hugetlb/kubepods/podx",
        &[("hugetlb.2MB.limit_in_bytes", "0")],
    );
    let config = CgroupConfig {
        huge_pages_max_bytes: [(1 << 30, 1 << 30)].into(),
        ..CgroupConfig::default()
    };
    let error = apply(
        &host.cgroup_mounts().unwrap(),
        &CgroupPath::new("kubepods/podx").unwrap(),
        &config,
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("hugepages-1Gi") && error.to_string().contains("hugetlb.1GB"),
        "{error}"
    );
}

#[test]
fn find_list_and_end() {
    let (_dir, host) = fake_v2();
    let base = "/sys/fs/cgroup/node/kubepods";
    make(
        &host,
        &format!("{base}/podg"),
        &[("cgroup.events", "populated 1\nfrozen 0\n")],
    );
    make(&host, &format!("{base}/burstable/podb/c1"), &[]);
    make(&host, &format!("{base}/burstable/podb/c2"), &[]);
    make(
        &host,
        &format!("{base}/burstable/podb"),
        &[("cgroup.events", "populated 0\nfrozen 0\n")],
    );
    let mounts = host.cgroup_mounts().unwrap();
    let root = CgroupPath::new("node").unwrap();
    let found: Vec<_> = list(&mounts, &root)
        .unwrap()
        .into_iter()
        .map(|(uid, path)| format!("{uid} {path}"))
        .collect();
    assert_eq!(
        found,
        ["b /node/kubepods/burstable/podb", "g /node/kubepods/podg"]
    );
    let path = find(&mounts, &root, &PodUid::from("b")).unwrap();
    assert_eq!(find(&mounts, &root, &PodUid::from("none")), None);
    let names: Vec<_> = containers(&mounts, &path)
        .unwrap()
        .into_iter()
        .map(|container| container.name)
        .collect();
    assert_eq!(names, ["c1", "c2"]);
    assert!(!is_populated(&mounts, &path).unwrap());
    assert!(is_populated(&mounts, &find(&mounts, &root, &PodUid::from("g")).unwrap()).unwrap());
    // A plain directory with a file in it is as unwilling to go as a cgroup with a process.
    assert!(!remove_empty(&mounts, &path).unwrap());
    assert_eq!(
        containers(&mounts, &path).unwrap(),
        [],
        "the empty ones are gone"
    );
    std::fs::remove_file(host.path(format!("{base}/burstable/podb/cgroup.events"))).unwrap();
    assert!(remove_empty(&mounts, &path).unwrap() && remove_empty(&mounts, &path).unwrap());
    assert!(!is_populated(&mounts, &path).unwrap());
    assert!(matches!(
        containers(&mounts, &path).unwrap_err(),
        CgroupError::File(FileError::Vanished { .. })
    ));
}

#[test]
fn populated_on_v1_looks_below() {
    let (_dir, host) = fake_host(&[("cgroup", "/cg/memory", "memory")]);
    make(&host, "/cg/memory/kubepods/podx", &[("cgroup.procs", "")]);
    make(&host, "/cg/memory/kubepods/podx/c", &[("cgroup.procs", "")]);
    make(
        &host,
        "/cg/memory/kubepods/podx/c/inner",
        &[("cgroup.procs", "12\n")],
    );
    let mounts = host.cgroup_mounts().unwrap();
    let cgroup = CgroupPath::new("kubepods/podx").unwrap();
    assert!(is_populated(&mounts, &cgroup).unwrap());
    make(
        &host,
        "/cg/memory/kubepods/podx/c/inner",
        &[("cgroup.procs", "")],
    );
    assert!(!is_populated(&mounts, &cgroup).unwrap());
}

#[test]
fn tiers_have_weights_and_unlimited_huge_pages() {
    let (_dir, host) = fake_v2();
    for tier in ["burstable", "besteffort"] {
        make(
            &host,
            &format!("/sys/fs/cgroup/kubepods/{tier}"),
            &[("cpu.weight", "100"), ("hugetlb.2MB.max", "max")],
        );
    }
    let mounts = host.cgroup_mounts().unwrap();
    let pods = [
        r#"{"requests":{"cpu":"600m"}}"#,
        r#"{"requests":{"cpu":"400m"}}"#,
        "{}",
    ]
    .map(|resources| {
        pod(&format!(
            r#"{{"containers":[{{"name":"c","resources":{resources}}}]}}"#
        ))
    });
    let apply_both = || {
        let tiers = tiers(&pods, &QosSettings::default(), &NodeCapacity::default());
        for (class, config) in [
            (QosClass::Burstable, tiers.burstable),
            (QosClass::BestEffort, tiers.best_effort),
        ] {
            let tier = tier_path(&CgroupPath::default(), class).unwrap();
            apply_tier(&mounts, &tier, &config, &mut directly).unwrap();
        }
    };
    apply_both();
    assert_eq!(
        text(&host, "/sys/fs/cgroup/kubepods/burstable/cpu.weight"),
        "100",
        "1024 shares together"
    );
    assert_eq!(
        text(&host, "/sys/fs/cgroup/kubepods/besteffort/cpu.weight"),
        "1"
    );
    assert_eq!(
        text(&host, "/sys/fs/cgroup/kubepods/burstable/hugetlb.2MB.max"),
        "max"
    );
    std::fs::remove_dir_all(host.path("/sys/fs/cgroup/kubepods/burstable")).unwrap();
    apply_both();
}
