use super::member::{BATCH, PROCESSES_READ_MAX, PidParser, Processes};
use super::*;
use crate::host::cgroup::cgroup_id;
use crate::host::cgroup::tests::{fake_host, fake_v2};
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command};

fn sleeper() -> Child {
    Command::new("sleep").arg("60").spawn().unwrap()
}

fn list(dir: &Path, children: &[&Child]) {
    std::fs::create_dir_all(dir).unwrap();
    let text: String = children
        .iter()
        .map(|child| format!("{}\n", child.id()))
        .collect();
    std::fs::write(dir.join("cgroup.procs"), text).unwrap();
}

/// A fake v1 host whose procfs is the real one, a pod with container "c", and the container's directory.
fn v1_pod() -> (tempfile::TempDir, HostRoot, CgroupPath, PathBuf) {
    let (dir, host) = fake_host(&[("cgroup", "/sys/fs/cgroup/memory", "memory")]);
    let pod = CgroupPath::new("kubepods/podx").unwrap();
    let pod_dir = host.path("/sys/fs/cgroup/memory/kubepods/podx");
    list(&pod_dir, &[]);
    (dir, host, pod, pod_dir.join("c"))
}

fn link_proc(host: &HostRoot, child: &Child) {
    let target = format!("/proc/{}", child.id());
    std::os::unix::fs::symlink(target, host.procfs(child.id().to_string())).unwrap();
}

fn signal_of(mut child: Child) -> Option<i32> {
    child.wait().unwrap().signal()
}

#[test]
fn sigterm_goes_to_the_first_process_only_and_kill_to_all() {
    let (_dir, host, pod, container) = v1_pod();
    let first = sleeper();
    std::thread::sleep(std::time::Duration::from_millis(30)); // a clock tick, so that the first process is the older one
    let worker = sleeper();
    list(&container, &[&worker, &first]);
    link_proc(&host, &first);
    link_proc(&host, &worker);
    let pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    assert_eq!(
        pod_kill
            .first_processes()
            .map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
            .collect::<Vec<_>>(),
        [first.id()]
    );
    assert!(pod_kill.is_populated().unwrap());
    assert!(!pod_kill.have_first_processes_ended());
    assert_eq!(pod_kill.sigterm().unwrap(), 1);
    assert_eq!(signal_of(first), Some(15));
    assert!(pod_kill.have_first_processes_ended());
    assert_eq!(
        pod_kill.sigterm().unwrap(),
        0,
        "the first process has ended"
    );
    let killed = pod_kill.kill().unwrap();
    assert_eq!(killed.processes, 1);
    assert_eq!(signal_of(worker), Some(9));
    list(&container, &[]);
    assert!(!pod_kill.is_populated().unwrap());
}

#[test]
fn without_a_known_first_process_every_process_gets_sigterm() {
    let (_dir, host, pod, container) = v1_pod();
    list(&container, &[]);
    let mut pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    let (a, b) = (sleeper(), sleeper());
    list(&container, &[&a, &b]);
    assert_eq!(pod_kill.sigterm().unwrap(), 2);
    assert_eq!((signal_of(a), signal_of(b)), (Some(15), Some(15)));
    // A first process that leaves the cgroup is not ours any more, though its pid lives on.
    let moved = sleeper();
    link_proc(&host, &moved);
    list(&container, &[&moved]);
    pod_kill.refresh().unwrap();
    assert_eq!(pod_kill.first_processes().count(), 1);
    list(&container, &[]);
    assert_eq!(pod_kill.sigterm().unwrap(), 0);
    pod_kill.refresh().unwrap();
    assert_eq!(pod_kill.first_processes().count(), 0);
    let mut moved = moved;
    assert!(moved.try_wait().unwrap().is_none(), "still alive");
    assert!(!pod_kill.have_first_processes_ended());
    moved.kill().unwrap();
    moved.wait().unwrap();
    assert!(pod_kill.have_first_processes_ended());
}

#[test]
fn a_container_inside_a_container_is_killed_with_it() {
    let (_dir, host, pod, container) = v1_pod();
    let children: Vec<Child> = (0..7).map(|_| sleeper()).collect();
    let (inner, outer) = children.split_at(3);
    list(&container, &outer.iter().collect::<Vec<_>>());
    list(
        &container.join("inner/most"),
        &inner.iter().collect::<Vec<_>>(),
    );
    list(&container.join("inner"), &[]);
    let pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    let killed = pod_kill.kill().unwrap();
    assert_eq!(killed.processes as usize, children.len());
    assert!((2..=KILL_ROUNDS_MAX).contains(&killed.rounds), "{killed:?}");
    assert!(!killed.leaves_some);
    assert!(
        children
            .into_iter()
            .all(|child| signal_of(child) == Some(9))
    );
}

/// A pod that decides how many processes it has does not decide how long the loop is at its kill.
#[test]
fn more_processes_than_a_batch_are_left_to_the_thread() {
    let (_dir, host, pod, container) = v1_pod();
    let children: Vec<Child> = (0..BATCH + 7).map(|_| sleeper()).collect();
    let spared = sleeper();
    let (many, few) = children.split_at(BATCH + 3);
    list(&container, &many.iter().collect::<Vec<_>>());
    list(&container.join("inner"), &few.iter().collect::<Vec<_>>());
    list(&container.with_file_name("sandbox"), &[&spared]);
    let mounts = host.cgroup_mounts().unwrap();
    let pod_kill = PodKill::open(&host, &mounts, &pod).unwrap();
    let mut pod_kill = pod_kill.beside_kubelet(&mounts, &pod).unwrap();
    pod_kill.spare(Some(OsStr::new("sandbox")));
    let killed = pod_kill.kill().unwrap();
    assert!(killed.leaves_some && killed.rounds == 1, "{killed:?}");
    assert_eq!(killed.processes as usize, BATCH);
    let ended = pod_kill
        .sweep()
        .end(&mut |is_walk_over| !is_walk_over)
        .unwrap();
    assert_eq!(ended.walks, 1);
    assert!(
        children
            .into_iter()
            .all(|child| signal_of(child) == Some(9))
    );
    let mut spared = spared;
    assert!(spared.try_wait().unwrap().is_none(), "it lives on");
    spared.kill().unwrap();
    spared.wait().unwrap();
}

/// To read how old a process is may take as long as the kernel needs to free its memory.
#[test]
fn a_reading_that_is_held_up_holds_up_no_refresh() {
    let (_dir, host, pod, container) = v1_pod();
    let (first, second) = (sleeper(), sleeper());
    list(&container, &[&second, &first]);
    let stat_of = |child: &Child| host.procfs(child.id().to_string()).join("stat");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    for child in [&first, &second] {
        let stat = stat_of(child);
        std::fs::create_dir_all(stat.parent().unwrap()).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, stat, kind, mode, 0).unwrap();
    }
    let ages = Arc::new(Ages::start(host.clone(), Arc::default()).unwrap());
    let mounts = host.cgroup_mounts().unwrap();
    let mut pod_kill = PodKill::open_with(&host, &mounts, &pod, Some(ages)).unwrap();
    for _ in 0..100 {
        pod_kill.refresh().unwrap();
    }
    assert!(pod_kill.is_searched_by_thread() && !pod_kill.is_searched());
    assert_eq!(pod_kill.first_processes().count(), 0);
    for (child, ticks) in [(&second, 8), (&first, 7)] {
        let fields: String = (3..22).map(|field| format!(" {field}")).collect();
        let text = format!("1 (x){fields} {ticks} 0\n");
        std::fs::write(stat_of(child), text).unwrap();
    }
    while pod_kill.is_searched_by_thread() {
        pod_kill.refresh().unwrap();
        std::thread::yield_now();
    }
    assert_eq!(pod_kill.sigterm().unwrap(), 1);
    assert_eq!(signal_of(first), Some(15));
    pod_kill.kill().unwrap();
    assert_eq!(signal_of(second), Some(9));
}

#[test]
fn of_a_process_that_is_alone_nothing_is_read() {
    let (_dir, host, pod, container) = v1_pod();
    let first = sleeper();
    list(&container, &[&first]);
    // It is not in this procfs.
    let pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    assert_eq!(pod_kill.first_processes().count(), 1);
    pod_kill.kill().unwrap();
    assert_eq!(signal_of(first), Some(9));
}

/// The oldest of many processes is found in several looks, wherever it is listed.
#[test]
fn the_first_of_many_processes_is_found_in_portions() {
    let (_dir, host, pod, container) = v1_pod();
    let first = sleeper();
    std::fs::create_dir_all(&container).unwrap();
    let first_pid = i32::try_from(first.id()).unwrap();
    // Processes that ended before they were looked at, and the one that lives, in no order.
    let others = (1..=3 * PROCESSES_READ_MAX as i32).map(|number| first_pid + 1_000_000 - number);
    let listed: String = others
        .chain([first_pid])
        .map(|pid| format!("{pid}\n"))
        .collect();
    std::fs::write(container.join("cgroup.procs"), listed).unwrap();
    link_proc(&host, &first);
    let mut pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    let mut looks = 1;
    while pod_kill.is_searched() {
        assert_eq!(pod_kill.first_processes().count(), 0, "not all were seen");
        pod_kill.refresh().unwrap();
        looks += 1;
    }
    assert_eq!((looks, pod_kill.first_processes().count()), (4, 1));
    assert_eq!(pod_kill.sigterm().unwrap(), 1);
    assert_eq!(signal_of(first), Some(15));
}

#[test]
fn cgroup_kill_is_written_and_its_refusal_falls_back() {
    let (_dir, host) = fake_v2();
    let pod = CgroupPath::new("kubepods/podx").unwrap();
    let pod_dir = host.path("/sys/fs/cgroup/kubepods/podx");
    let child = sleeper();
    list(&pod_dir, &[]);
    list(&pod_dir.join("c"), &[&child]);
    std::fs::write(pod_dir.join("cgroup.kill"), "").unwrap();
    let pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    assert_eq!(
        pod_kill.kill().unwrap(),
        Killed {
            processes: 0,
            rounds: 0,
            leaves_some: false,
        }
    );
    assert_eq!(
        std::fs::read_to_string(pod_dir.join("cgroup.kill")).unwrap(),
        "1"
    );
    std::fs::remove_file(pod_dir.join("cgroup.kill")).unwrap();
    // /dev/full refuses every write.
    std::os::unix::fs::symlink("/dev/full", pod_dir.join("cgroup.kill")).unwrap();
    let pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    let killed = pod_kill.kill().unwrap();
    assert_eq!(killed.processes, 1);
    assert_eq!(signal_of(child), Some(9));
}

#[test]
fn vanished_and_unreadable() {
    let (_dir, host, pod, container) = v1_pod();
    list(&container, &[]);
    let mounts = host.cgroup_mounts().unwrap();
    let mut pod_kill = PodKill::open(&host, &mounts, &pod).unwrap();
    std::fs::write(container.join("cgroup.procs"), "12a\n").unwrap();
    assert!(matches!(
        pod_kill.sigterm().unwrap_err(),
        FileError::Malformed { line: 1, .. }
    ));
    assert!(matches!(
        pod_kill.kill().unwrap_err(),
        FileError::Malformed { line: 1, .. }
    ));
    std::fs::remove_dir_all(container.parent().unwrap()).unwrap();
    assert_eq!(pod_kill.sigterm().unwrap(), 0);
    assert_eq!(pod_kill.kill().unwrap().processes, 0);
    assert!(pod_kill.refresh().unwrap_err().is_vanished());
    assert!(matches!(
        PodKill::open(&host, &mounts, &pod).unwrap_err(),
        CgroupError::File(FileError::Vanished { .. })
    ));
}

#[test]
fn pids_cut_by_a_chunk() {
    let mut pids = Vec::new();
    let mut parser = PidParser::default();
    for chunk in ["1", "2\n3", "4\n0\n", "56"] {
        parser
            .feed(chunk.as_bytes(), &mut |pid| {
                pids.push(pid.as_raw_nonzero().get())
            })
            .unwrap();
    }
    parser.end(&mut |pid| pids.push(pid.as_raw_nonzero().get()));
    assert_eq!(pids, [12, 34, 56]);
    assert_eq!(
        PidParser::default().feed(b"1\n99999999999\n", &mut |_| ()),
        Err(2)
    );
}

#[test]
fn a_restarted_container_is_another_cgroup_of_the_same_name() {
    let (_dir, host, pod, container) = v1_pod();
    let first = sleeper();
    list(&container, &[&first]);
    link_proc(&host, &first);
    let mut pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    let ids = |pod_kill: &PodKill| {
        pod_kill
            .cgroups()
            .map(|cgroup| cgroup.id)
            .collect::<Vec<_>>()
    };
    let before = ids(&pod_kill);
    assert_eq!(before[0], cgroup_id(container.parent().unwrap()).unwrap());
    assert_eq!(before[1], cgroup_id(&container).unwrap());

    // Kept until the new one is there, so that it cannot get the same inode.
    let aside = host.path("aside");
    std::fs::rename(&container, &aside).unwrap();
    let second = sleeper();
    list(&container, &[&second]);
    link_proc(&host, &second);
    pod_kill.refresh().unwrap();
    assert_eq!(ids(&pod_kill)[0], before[0]);
    assert_ne!(ids(&pod_kill)[1], before[1]);
    assert_eq!(pod_kill.kill().unwrap().processes, 1);
    assert_eq!(signal_of(second), Some(9));
    let mut first = first;
    assert!(
        first.try_wait().unwrap().is_none(),
        "not the pod's any more"
    );
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn cgroups_are_read_again_when_one_comes_goes_or_takes_anothers_place() {
    let (_dir, host, pod, container) = v1_pod();
    list(&container, &[]);
    let mut pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    let found = |pod_kill: &mut PodKill| {
        let known = pod_kill.members.is_as_known();
        pod_kill.refresh().unwrap();
        assert!(pod_kill.members.is_as_known());
        (known, pod_kill.cgroups().count())
    };
    let make = |name: &str| {
        let dir = container.join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("cgroup.procs"), "").unwrap();
    };
    assert_eq!(found(&mut pod_kill), (true, 2));
    make("a");
    assert_eq!(found(&mut pod_kill), (false, 3));
    make("a/deeper");
    assert_eq!(found(&mut pod_kill), (false, 4));
    std::fs::remove_dir_all(container.join("a/deeper")).unwrap();
    assert_eq!(found(&mut pod_kill), (false, 3));
    std::fs::rename(container.join("a"), container.join("b")).unwrap();
    assert_eq!(found(&mut pod_kill), (false, 3));
    assert!(
        pod_kill
            .cgroups()
            .any(|cgroup| cgroup.dir == container.join("b"))
    );
    std::fs::write(container.join("a file is no cgroup"), "").unwrap();
    assert_eq!(found(&mut pod_kill), (true, 3));
}

/// Makes directories in one another, each by its name in the one above, until their path has this many bytes. Returns
/// the last.
fn deep_below(dir: &Path, path_bytes: usize) -> std::os::fd::OwnedFd {
    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut deepest = rustix::fs::open(dir, flags, Mode::empty()).unwrap();
    let mut left = path_bytes - dir.as_os_str().len();
    while left > 0 {
        // No name of no bytes at the end.
        let name = match left - 1 {
            name if name <= 200 => name,
            name if name <= 202 => name - 2,
            _ => 200,
        };
        let text = "d".repeat(name);
        mkdirat(&deepest, &*text, Mode::RWXU).unwrap();
        deepest = openat(&deepest, &*text, flags, Mode::empty()).unwrap();
        left -= 1 + name;
    }
    deepest
}

fn write_in(dir: &std::os::fd::OwnedFd, file: &str, text: &str) {
    use rustix::fs::{Mode, OFlags, openat};
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(dir, file, flags, Mode::RUSR | Mode::WUSR).unwrap();
    assert_eq!(
        rustix::io::write(file, text.as_bytes()).unwrap(),
        text.len()
    );
}

/// A container makes cgroups deeper than any path is long: 4,090 bytes are room for no file's name, 5,000 are no path
/// at all.
#[test]
fn a_cgroup_without_a_path_hides_no_pod() {
    for path_bytes in [3839, 3840, 4090, 4094, 5000] {
        let (_dir, host) = fake_host(&[
            ("cgroup", "/sys/fs/cgroup/memory", "memory"),
            ("cgroup", "/sys/fs/cgroup/freezer", "freezer"),
        ]);
        let pod = CgroupPath::new("kubepods/podx").unwrap();
        let (first, hidden) = (sleeper(), sleeper());
        for controller in ["memory", "freezer"] {
            let pod_dir = host.path(format!("/sys/fs/cgroup/{controller}/kubepods/podx"));
            for (dir, children) in [
                (pod_dir.clone(), [].as_slice()),
                (pod_dir.join("c"), &[&first]),
            ] {
                list(&dir, children);
                std::fs::write(dir.join("freezer.state"), "").unwrap();
            }
            let deepest = deep_below(&pod_dir.join("c"), path_bytes);
            write_in(&deepest, "cgroup.procs", &format!("{}\n", hidden.id()));
            write_in(&deepest, "freezer.state", "FROZEN");
        }
        link_proc(&host, &first);
        let mounts = host.cgroup_mounts().unwrap();
        let mut pod_kill = PodKill::open(&host, &mounts, &pod).unwrap();
        assert_eq!(pod_kill.first_processes().count(), 1);
        let is_kept = path_bytes <= CGROUP_PATH_BYTES_MAX;
        assert_eq!(pod_kill.has_more_cgroups(), !is_kept, "{path_bytes}");
        assert!(pod_kill.refresh().unwrap() && pod_kill.is_populated().unwrap());
        let killed = pod_kill.kill().unwrap();
        assert_eq!(killed.processes, 1 + u32::from(is_kept));
        assert_eq!(signal_of(first), Some(9));
        if let Some(sweep) = pod_kill.needed_sweep() {
            let ended = sweep.end(&mut |is_walk_over| !is_walk_over).unwrap();
            assert!(ended.signals >= 1, "{ended:?}");
        }
        assert_eq!(signal_of(hidden), Some(9), "{path_bytes}");
    }
}

/// A fake v1 pod whose container has made this many cgroups; the first of them is `c/0`.
fn pod_with_cgroups(count: usize) -> ([tempfile::TempDir; 2], HostRoot, CgroupPath, PathBuf) {
    let (dir, host) = fake_host(&[("cgroup", "/sys/fs/cgroup/memory", "memory")]);
    let tree = in_memory();
    let mount = host.path("/sys/fs/cgroup/memory");
    std::fs::remove_dir(&mount).unwrap();
    std::os::unix::fs::symlink(tree.path(), &mount).unwrap();
    let container = mount.join("kubepods/podx/c");
    list(container.parent().unwrap(), &[]);
    list(&container, &[]);
    for index in 0..count {
        std::fs::create_dir(container.join(index.to_string())).unwrap();
    }
    let pod = CgroupPath::new("kubepods/podx").unwrap();
    ([dir, tree], host, pod, container)
}

/// A directory where tens of thousands are made in no time, if there is one.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

#[test]
fn reading_stops_at_the_bound_and_is_not_done_again_and_again() {
    let (_dir, host, pod, container) = pod_with_cgroups(20_000);
    let mut pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    assert!(pod_kill.has_more_cgroups());
    let first = pod_kill.members.entries_read();
    let bound = CGROUPS_PER_POD_MAX as u64 + 8;
    assert!(first <= bound, "{first} entries for one look");
    for _ in 0..10 {
        pod_kill.refresh().unwrap();
    }
    assert_eq!(pod_kill.members.entries_read(), first, "nothing has come");
    // The pod goes on making cgroups, which concerns nobody.
    std::fs::create_dir(container.join("another")).unwrap();
    pod_kill.refresh().unwrap();
    assert_eq!(pod_kill.members.entries_read(), first);
    // A runtime restarts the container.
    let aside = host.path("/sys/fs/cgroup/memory").join("aside");
    std::fs::rename(&container, &aside).unwrap();
    list(&container, &[]);
    pod_kill.refresh().unwrap();
    assert!(!pod_kill.has_more_cgroups(), "the new one has none");
    assert_eq!(pod_kill.cgroups().count(), 2);
}

#[test]
fn a_tree_that_has_shrunk_is_read_in_full_before_long() {
    let (_dir, host, pod, container) = pod_with_cgroups(CGROUPS_PER_POD_MAX);
    let mut pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    assert!(pod_kill.has_more_cgroups());
    for index in 10..CGROUPS_PER_POD_MAX {
        std::fs::remove_dir(container.join(index.to_string())).unwrap();
    }
    for _ in 0..16 {
        pod_kill.refresh().unwrap();
    }
    assert!(!pod_kill.has_more_cgroups());
}

#[test]
fn a_v1_pod_with_too_many_cgroups_counts_as_populated_until_all_were_seen_empty() {
    let (_dir, host, pod, container) = pod_with_cgroups(2 * CGROUPS_PER_POD_MAX);
    for index in 0..2 * CGROUPS_PER_POD_MAX {
        std::fs::write(container.join(index.to_string()).join("cgroup.procs"), "").unwrap();
    }
    let mounts = host.cgroup_mounts().unwrap();
    let mut pod_kill = PodKill::open(&host, &mounts, &pod).unwrap();
    assert!(pod_kill.is_populated().unwrap());
    let child = sleeper();
    let hidden = (0..2 * CGROUPS_PER_POD_MAX)
        .map(|index| container.join(index.to_string()))
        .find(|dir| pod_kill.cgroups().all(|known| known.dir != dir));
    let hidden = hidden.unwrap();
    list(&hidden, &[&child]);
    let sweep = pod_kill.needed_sweep().unwrap().clone();
    let mut walks = 0;
    let ended = sweep
        .end(&mut |is_walk_over| {
            if is_walk_over {
                walks += 1;
                list(&hidden, &[]);
            }
            true
        })
        .unwrap();
    assert_eq!((ended.is_empty, ended.walks, ended.signals), (true, 2, 1));
    assert_eq!(walks, 1);
    assert_eq!(signal_of(child), Some(9));
    assert!(!pod_kill.is_populated().unwrap() && !pod_kill.refresh().unwrap());
    // Opened anew, it does not seem to run again.
    let again = PodKill::open(&host, &mounts, &pod).unwrap();
    assert!(again.is_populated().unwrap());
    let again = again.with_sweep_state(Arc::clone(sweep.state()));
    assert!(!again.is_populated().unwrap());
    // It does when a container has a process.
    let child = sleeper();
    list(&container, &[&child]);
    assert!(pod_kill.refresh().unwrap());
    list(&container, &[]);
    assert!(pod_kill.is_populated().unwrap(), "gone, or gone deeper");
    pod_kill.kill().unwrap();
    let mut child = child;
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_cgroup_that_had_a_process_is_asked_first_whether_a_pod_runs() {
    let (_dir, host, pod, container) = v1_pod();
    let pod_dir = container.parent().unwrap().to_owned();
    let others = ["a", "b", "y"].map(|name| pod_dir.join(name));
    for other in &others {
        list(other, &[]);
    }
    list(&container, &[]);
    let procs = |cgroup: &Path| cgroup.join("cgroup.procs");
    std::fs::write(procs(&others[2]), "11\n").unwrap();
    let mut pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    assert!(pod_kill.is_populated().unwrap());
    // No other one is read.
    for unread in [&pod_dir, &container, &others[0], &others[1]] {
        make_unreadable(&procs(unread));
    }
    assert!(pod_kill.is_populated().unwrap());
    // Nor is the pod empty when that one is, or is gone.
    for (read, is_first) in [(&others[0], true), (&others[1], false)] {
        std::fs::remove_dir(procs(read)).unwrap();
        std::fs::write(procs(read), if is_first { "12\n" } else { "" }).unwrap();
    }
    for unread in [&pod_dir, &container] {
        std::fs::remove_dir(procs(unread)).unwrap();
        std::fs::write(procs(unread), "").unwrap();
    }
    std::fs::remove_dir_all(&others[2]).unwrap();
    assert!(pod_kill.is_populated().unwrap(), "it is in another one now");
    pod_kill.refresh().unwrap();
    assert!(pod_kill.is_populated().unwrap());
    std::fs::write(procs(&others[0]), "").unwrap();
    assert!(!pod_kill.is_populated().unwrap());
}

#[test]
fn an_agent_in_the_pod_is_spared() {
    let (_dir, host, pod, container) = v1_pod();
    std::fs::create_dir_all(&container).unwrap();
    std::fs::write(
        container.join("cgroup.procs"),
        format!("{}\n", std::process::id()),
    )
    .unwrap();
    let this = format!("/proc/{}", std::process::id());
    std::os::unix::fs::symlink(this, host.procfs(std::process::id().to_string())).unwrap();
    let pod_kill = PodKill::open(&host, &host.cgroup_mounts().unwrap(), &pod).unwrap();
    assert_eq!(pod_kill.first_processes().count(), 1);
    assert_eq!(pod_kill.sigterm().unwrap(), 0);
    assert_eq!(pod_kill.kill().unwrap().processes, 0);
}

/// A machine of cgroup v1 with a pod, and where `pids.current` of the pod is once a runtime has made it.
fn v1_pod_with_pids() -> (tempfile::TempDir, HostRoot, CgroupPath, PathBuf, PathBuf) {
    let (dir, host) = fake_host(&[
        ("cgroup", "/sys/fs/cgroup/memory", "memory"),
        ("cgroup", "/sys/fs/cgroup/pids", "pids"),
    ]);
    let pod = CgroupPath::new("kubepods/podx").unwrap();
    let memory = host.path("/sys/fs/cgroup/memory/kubepods/podx");
    let pids = host.path("/sys/fs/cgroup/pids/kubepods/podx");
    list(&memory, &[]);
    (dir, host, pod, memory, pids)
}

/// A directory opens, and does not read.
fn make_unreadable(file: &Path) {
    std::fs::remove_file(file).unwrap();
    std::fs::create_dir(file).unwrap();
}

#[test]
fn threads_and_processes_that_are_not_waited_for_count_in_a_single_read() {
    let (_dir, host, pod, memory, pids) = v1_pod_with_pids();
    std::fs::create_dir_all(&pids).unwrap();
    // A process of 1,023 threads, and its parent.
    std::fs::write(pids.join("pids.current"), "1024\n").unwrap();
    for container in ["a", "b"] {
        let container = memory.join(container);
        list(&container, &[]);
        std::fs::write(container.join("cgroup.procs"), "11\n12\n").unwrap();
    }
    let mounts = host.cgroup_mounts().unwrap();
    let pod_kill = PodKill::open(&host, &mounts, &pod).unwrap();
    assert_eq!(pod_kill.count_tasks().unwrap(), 1024);
    // No cgroup.procs is opened for it.
    for container in ["a", "b"] {
        make_unreadable(&memory.join(container).join("cgroup.procs"));
    }
    std::fs::write(pids.join("pids.current"), "4711\n").unwrap();
    assert_eq!(pod_kill.count_tasks().unwrap(), 4711);
}

#[test]
fn a_pods_tasks_count_as_soon_as_its_cgroup_is_there_and_until_then_its_processes() {
    let (_dir, host, pod, memory, pids) = v1_pod_with_pids();
    std::fs::write(memory.join("cgroup.procs"), "11\n12\n").unwrap();
    std::fs::create_dir(memory.join("gone")).unwrap();
    list(&memory.join("a"), &[]);
    std::fs::write(memory.join("a/cgroup.procs"), "0\n").unwrap();
    let mounts = host.cgroup_mounts().unwrap();
    let mut pod_kill = PodKill::open(&host, &mounts, &pod).unwrap();
    std::fs::remove_dir(memory.join("gone")).unwrap();
    assert_eq!(pod_kill.count_tasks().unwrap(), 3);
    std::fs::create_dir_all(&pids).unwrap();
    std::fs::write(pids.join("pids.current"), "40\n").unwrap();
    pod_kill.refresh().unwrap();
    assert_eq!(pod_kill.count_tasks().unwrap(), 40);
}

#[test]
fn a_file_that_lists_anew_is_asked_again_without_being_opened() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cgroup.procs");
    // More than one read can take, and the last is cut in two by its end.
    let many: String = (1000..3000).map(|pid| format!("{pid}\n")).collect();
    std::fs::write(&file, &many).unwrap();
    let opened = std::fs::File::open(dir.path()).unwrap();
    let mut processes = Processes::of(opened.into(), Arc::from(dir.path())).unwrap();
    assert!(!processes.lists_anew, "no file of cgroup v2");
    processes.lists_anew = true;
    let is_listed = |pid| {
        processes
            .is_listed_anew(Pid::from_raw(pid).unwrap())
            .unwrap()
    };
    assert!(is_listed(1000) && is_listed(1819) && is_listed(2999));
    assert!(!is_listed(100) && !is_listed(3000));
    std::fs::write(&file, "77\n78").unwrap();
    assert!(is_listed(77) && is_listed(78) && !is_listed(1000));
    // Only an open file still knows it.
    std::fs::remove_file(&file).unwrap();
    assert!(is_listed(77));
}

/// Without a sandbox (`drop_infra_ctr`), and with the monitors in the pod (`conmon_cgroup = "pod"`): what OpenShift's
/// nodes have.
#[test]
fn crios_monitors_outlive_their_containers() {
    let (_dir, host) = fake_v2();
    let pod = CgroupPath::new("kubepods/podx").unwrap();
    let pod_dir = host.path("/sys/fs/cgroup/kubepods/podx");
    let id = "7".repeat(64);
    let (container, monitor) = (sleeper(), sleeper());
    let dir = |name: String, child: &Child| {
        let dir = pod_dir.join(name);
        list(&dir, &[child]);
        std::fs::write(dir.join("cgroup.kill"), "").unwrap();
        std::fs::write(dir.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        link_proc(&host, child);
        dir
    };
    let container_dir = dir(format!("crio-{id}.scope"), &container);
    let monitor_dir = dir(format!("crio-conmon-{id}.scope"), &monitor);
    list(&pod_dir, &[]);
    std::fs::write(pod_dir.join("cgroup.kill"), "").unwrap();
    std::fs::write(pod_dir.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
    let mounts = host.cgroup_mounts().unwrap();
    let pod_kill = PodKill::open(&host, &mounts, &pod).unwrap();
    let pod_kill = pod_kill.beside_kubelet(&mounts, &pod).unwrap();
    assert_eq!(pod_kill.sigterm().unwrap(), 1);
    assert_eq!(signal_of(container), Some(15));
    pod_kill.kill().unwrap();
    let text = |dir: &Path| std::fs::read_to_string(dir.join("cgroup.kill")).unwrap();
    assert_eq!(text(&container_dir), "1");
    assert_eq!(
        (text(&monitor_dir), text(&pod_dir)),
        (String::new(), String::new())
    );
    assert!(pod_kill.is_populated().unwrap());
    std::fs::write(
        container_dir.join("cgroup.events"),
        "populated 0\nfrozen 0\n",
    )
    .unwrap();
    assert!(
        !pod_kill.is_populated().unwrap(),
        "only the monitor is left"
    );
    let mut monitor = monitor;
    assert!(
        monitor.try_wait().unwrap().is_none(),
        "the monitor was killed"
    );
    monitor.kill().unwrap();
    monitor.wait().unwrap();
}
