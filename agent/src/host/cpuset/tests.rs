use super::*;
use crate::host::HostRoot;
use crate::host::cgroup::tests::{fake_host, fake_v2};
use crate::notes;

fn make(dir: &Path, files: &[(&str, &str)]) {
    std::fs::create_dir_all(dir).unwrap();
    for (file, text) in files {
        std::fs::write(dir.join(file), text).unwrap();
    }
}

fn set(list: &str) -> CpuSet {
    CpuSet::parse(list).unwrap()
}

fn path(path: &str) -> CgroupPath {
    CgroupPath::new(path).unwrap()
}

#[test]
fn v2_reads_what_is_written_and_what_is_in_force() {
    let (_dir, host) = fake_v2();
    let dir = host.path("/sys/fs/cgroup/a");
    let files = [
        ("cpuset.cpus", "\n"),
        ("cpuset.cpus.effective", "0-7\n"),
        ("cpuset.mems", "1\n"),
    ];
    make(&dir, &files);
    let cpuset = Cpuset::at(&host.cgroup_mounts().unwrap(), &path("a")).unwrap();
    assert_eq!(cpuset.cpus().unwrap(), CpuSet::EMPTY);
    assert_eq!(cpuset.effective_cpus().unwrap(), set("0-7"));
    assert_eq!(cpuset.mems().unwrap(), NumaMask::of(1));
    assert!(cpuset.set_cpus(set("2-3")).unwrap());
    assert!(!cpuset.set_cpus(set("2,3")).unwrap());
    assert_eq!(
        std::fs::read_to_string(dir.join("cpuset.cpus")).unwrap(),
        "2-3"
    );
    assert!(!cpuset.set_mems(NumaMask::of(1)).unwrap());
    assert!(cpuset.inherit_mems().unwrap() && !cpuset.inherit_mems().unwrap());
    assert!(cpuset.mems().unwrap().is_empty());
}

#[test]
fn what_is_wrong_is_named() {
    let (_dir, host) = fake_v2();
    let dir = host.path("/sys/fs/cgroup/a");
    let cpuset = Cpuset::at(&host.cgroup_mounts().unwrap(), &path("a")).unwrap();
    assert!(cpuset.cpus().unwrap_err().is_vanished());
    make(&dir, &[("cpuset.mems", "64\n")]);
    let error = cpuset.cpus().unwrap_err();
    assert!(
        matches!(error, CpusetError::NotEnabled { .. })
            && error.to_string().contains("a/cpuset.cpus")
    );
    let error = cpuset.set_cpus(set("1")).unwrap_err().to_string();
    assert!(error.contains("+cpuset"), "{error}");
    let error = cpuset.mems().unwrap_err().to_string();
    assert!(error.contains("NUMA node 64 is beyond 63"), "{error}");
    make(&dir, &[("cpuset.cpus", "0-x\n")]);
    let error = cpuset.cpus().unwrap_err().to_string();
    assert!(error.contains("a/cpuset.cpus: \"0-x\""), "{error}");
    let (_dir, host) = fake_host(&[("cgroup", "/cg/memory", "memory")]);
    let error = Cpuset::at(&host.cgroup_mounts().unwrap(), &path("a")).unwrap_err();
    assert!(error.to_string().contains("cpuset is not available"));
}

fn fake_v1() -> (tempfile::TempDir, HostRoot) {
    let (dir, host) = fake_host(&[("cgroup", "/cg/cpuset", "cpuset")]);
    make(
        &host.path("/cg/cpuset"),
        &[("cpuset.cpus", "0-7\n"), ("cpuset.mems", "0-1\n")],
    );
    (dir, host)
}

#[test]
fn v1_cgroups_are_filled_from_above_and_widened_again() {
    let (_dir, host) = fake_v1();
    for (dir, cpus) in [("a", "0-3"), ("a/b", ""), ("a/b/c", "\n")] {
        let dir = host.path("/cg/cpuset").join(dir);
        make(&dir, &[("cpuset.cpus", cpus), ("cpuset.mems", "")]);
    }
    let mounts = host.cgroup_mounts().unwrap();
    let hierarchy = mounts.hierarchy_of(Controller::Cpuset).unwrap();
    fill_from_above(hierarchy, &path("a/b/c")).unwrap();
    let at = |at: &str| Cpuset::at(&mounts, &path(at)).unwrap();
    assert_eq!(at("a/b/c").cpus().unwrap(), set("0-3"));
    assert_eq!(at("a/b/c").mems().unwrap(), NumaMask(0b11));
    widen(hierarchy, &path("a")).unwrap();
    assert_eq!(at("a").cpus().unwrap(), set("0-7"));
    assert_eq!(
        at("a/b").cpus().unwrap(),
        set("0-3"),
        "only the one that was asked for"
    );
}

/// Below `/sys/fs/cgroup/cpuset`, if that is v1 and ours to write.
struct Real(PathBuf);

impl Real {
    fn new(name: &str) -> Option<(Self, CgroupMounts, CgroupPath)> {
        let mounts = HostRoot::live().cgroup_mounts().ok()?;
        let hierarchy = mounts.hierarchy_of(Controller::Cpuset).ok()?;
        let path = path(&format!("plimsoll-test-{name}-{}", std::process::id()));
        let dir = hierarchy.dir(&path);
        if hierarchy.version != Version::V1 || std::fs::create_dir(&dir).is_err() {
            notes::left_out("no v1 cpuset hierarchy that can be written");
            return None;
        }
        Some((Self(dir), mounts, path))
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        for dir in ["a/b", "a", ""] {
            std::fs::remove_dir(self.0.join(dir)).ok();
        }
    }
}

#[test]
fn on_the_real_v1_the_cgroups_below_come_along() {
    let Some((real, mounts, root)) = Real::new("cpuset") else {
        return;
    };
    let hierarchy = mounts.hierarchy_of(Controller::Cpuset).unwrap();
    std::fs::create_dir_all(real.0.join("a/b")).unwrap();
    let (a, b) = (root.join("a").unwrap(), root.join("a/b").unwrap());
    let (above, below) = (
        Cpuset::at(&mounts, &a).unwrap(),
        Cpuset::at(&mounts, &b).unwrap(),
    );
    assert!(below.cpus().unwrap().is_empty());
    fill_from_above(hierarchy, &b).unwrap();
    let all = below.cpus().unwrap();
    assert!(
        !all.is_empty() && below.effective_cpus().unwrap() == all,
        "{all}"
    );
    let Some((first, last)) = all.first().zip(all.iter().last()).filter(|(a, b)| a != b) else {
        return notes::left_out("one CPU");
    };
    // Writing it straight is what the kernel refuses: the cgroup below has more.
    let error = write(above.dir(), CPUS, &CpuSet::of(first).to_string()).unwrap_err();
    assert!(
        error.to_string().contains("a cgroup below it has more"),
        "{error}"
    );
    for to in [CpuSet::of(first), CpuSet::of(last), all] {
        assert!(above.set_cpus(to).unwrap());
        assert_eq!((above.cpus().unwrap(), below.cpus().unwrap()), (to, to));
    }
    let error = below.set_cpus(CpuSet::of(1023)).unwrap_err();
    assert!(matches!(error, CpusetError::Refused { .. }), "{error}");
    assert!(!below.inherit_mems().unwrap());
}

#[test]
fn the_cgroups_below_are_counted_together() {
    let (_dir, host) = fake_v1();
    for dir in ["a", "a/1", "a/1/x", "a/2", "a/2/y"] {
        let dir = host.path("/cg/cpuset").join(dir);
        make(&dir, &[(CPUS, "0-3")]);
    }
    let dir = host.path("/cg/cpuset/a");
    let mut room = 4;
    assert!(shift(&dir, CPUS, set("1"), (CGROUP_DEPTH_MAX, &mut room)).unwrap());
    assert_eq!(room, 0);
    assert_eq!(read(&dir.join("2/y"), CPUS).unwrap(), set("1"));
    let mut room = 3;
    let error = shift(&dir, CPUS, set("2"), (CGROUP_DEPTH_MAX, &mut room)).unwrap_err();
    assert!(matches!(error, CpusetError::TooManyBelow { .. }), "{error}");
}
