use super::format::PORTION;
use super::*;
use crate::host::cgroup::tests::{fake_host, fake_v2};
use std::collections::BTreeMap;

type Tree = BTreeMap<PathBuf, Option<String>>;

fn snapshot(dir: &Path) -> Tree {
    let mut tree = Tree::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tree.append(&mut snapshot(&path));
            tree.insert(path, None);
        } else {
            tree.insert(
                path.clone(),
                Some(std::fs::read_to_string(path).unwrap().trim_end().to_owned()),
            );
        }
    }
    tree
}

fn put_back(dir: &Path, tree: &Tree) {
    std::fs::remove_dir_all(dir).unwrap();
    std::fs::create_dir(dir).unwrap();
    for (path, _) in tree.iter().filter(|(_, text)| text.is_none()) {
        std::fs::create_dir_all(path).unwrap();
    }
    for (path, text) in tree {
        if let Some(text) = text {
            std::fs::write(path, text).unwrap();
        }
    }
}

fn v1() -> (tempfile::TempDir, HostRoot, Hierarchy) {
    let (dir, host) = fake_host(&[("cgroup", "/sys/fs/cgroup/memory", "memory")]);
    std::fs::write(host.path("/sys/fs/cgroup/memory/one"), "1\n").unwrap();
    std::fs::write(host.path("/sys/fs/cgroup/memory/two"), "22\n").unwrap();
    let hierarchy = host.cgroup_mounts().unwrap().hierarchies()[0].clone();
    (dir, host, hierarchy)
}

#[test]
fn one_file_is_put_back_and_the_others_stay() {
    let dir = tempfile::tempdir().unwrap();
    let host = HostRoot::new(dir.path());
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    std::fs::write(&one, "1\n").unwrap();
    std::fs::write(&two, "1\n").unwrap();
    let mut ledger = Ledger::open(&host, dir.path().join("ledger")).unwrap();
    for (path, value) in [(&one, "2"), (&two, "2"), (&one, "3")] {
        ledger.write(path, value).unwrap();
    }
    assert_eq!(ledger.restore_file(&one).unwrap().restored(), 2);
    let text = |path| std::fs::read_to_string(path).unwrap().trim().to_owned();
    assert_eq!((text(&one), text(&two)), ("1".to_owned(), "2".to_owned()));
    assert_eq!(ledger.restore_file(&one).unwrap(), Restoration::default());
    assert_eq!(ledger.restore().unwrap().restored(), 1);
    assert_eq!(text(&two), "1");
}

#[test]
fn killed_at_any_point_everything_is_as_before() {
    let (_dir, host, hierarchy) = v1();
    let tree = hierarchy.mount.clone();
    let ledger_path = host.path("/run/plimsoll/knobs.jsonl");
    let mut ledger = Ledger::open(&host, &ledger_path).unwrap();
    let mut snapshots = vec![snapshot(&tree)];
    ledger.write(&tree.join("one"), "100").unwrap();
    snapshots.push(snapshot(&tree));
    ledger
        .create_cgroup(&hierarchy, &CgroupPath::new("a").unwrap(), &[])
        .unwrap();
    snapshots.push(snapshot(&tree));
    ledger
        .create_cgroup(&hierarchy, &CgroupPath::new("a/b").unwrap(), &[])
        .unwrap();
    snapshots.push(snapshot(&tree));
    ledger.write(&tree.join("two"), "7").unwrap();
    snapshots.push(snapshot(&tree));
    ledger.write(&tree.join("one"), "1000").unwrap();
    snapshots.push(snapshot(&tree));
    let text = std::fs::read(&ledger_path).unwrap();
    assert_eq!(
        text.iter().filter(|byte| **byte == b'\n').count(),
        snapshots.len() - 1
    );
    drop(ledger);
    for cut in 0..=text.len() {
        let lines = text[..cut].iter().filter(|byte| **byte == b'\n').count();
        // Killed between a line and its change, or after the change; within a line, the change before it was made.
        let is_at_line_end = text[..cut].ends_with(b"\n");
        for changes in lines - usize::from(is_at_line_end)..=lines {
            put_back(&tree, &snapshots[changes]);
            std::fs::write(&ledger_path, &text[..cut]).unwrap();
            let restoration = Ledger::open(&host, &ledger_path)
                .unwrap()
                .restore()
                .unwrap();
            assert_eq!(
                snapshot(&tree),
                snapshots[0],
                "cut at {cut}, {changes} changes: {restoration:?}"
            );
            assert_eq!(restoration.remarks(), Vec::<String>::new(), "cut at {cut}");
            assert_eq!(std::fs::read(&ledger_path).unwrap(), b"");
        }
    }
}

#[test]
fn somebody_elses_value_is_left_and_said() {
    let (_dir, host, hierarchy) = v1();
    let one = hierarchy.mount.join("one");
    let mut ledger = Ledger::open(&host, host.path("knobs")).unwrap();
    ledger.write(&one, "100").unwrap();
    ledger.write(&hierarchy.mount.join("two"), "33").unwrap();
    ledger.write(&hierarchy.mount.join("two"), "33").unwrap();
    std::fs::write(&one, "5\n").unwrap();
    std::fs::remove_file(hierarchy.mount.join("two")).unwrap();
    let restoration = ledger.restore().unwrap();
    assert_eq!(std::fs::read_to_string(&one).unwrap(), "5\n");
    assert_eq!(
        restoration.changes.len(),
        2,
        "the same value twice is one change"
    );
    assert_eq!(
        restoration.changes[0].outcome,
        UndoOutcome::NothingToDo,
        "the vanished file"
    );
    let [remark] = restoration.remarks().try_into().unwrap();
    assert!(
        remark.contains("/one") && remark.contains("\"100\"") && remark.contains("\"5\""),
        "{remark}"
    );
    assert_eq!(ledger.restore().unwrap(), Restoration::default());
}

#[test]
fn a_busy_cgroup_stays_in_the_ledger() {
    let (_dir, host, hierarchy) = v1();
    let mut ledger = Ledger::open(&host, host.path("knobs")).unwrap();
    ledger
        .create_cgroup(&hierarchy, &CgroupPath::new("a/b").unwrap(), &[])
        .unwrap();
    let process = hierarchy.mount.join("a/b/process");
    std::fs::write(&process, "").unwrap();
    let restoration = ledger.restore().unwrap();
    assert_eq!(
        (restoration.restored(), restoration.remarks().len()),
        (0, 2),
        "{restoration:?}"
    );
    std::fs::remove_file(&process).unwrap();
    // A process that had the file open before the restore still appends to the file that is there now.
    let mut other = Ledger::open(&host, host.path("knobs")).unwrap();
    ledger.restore().unwrap();
    other.write(&hierarchy.mount.join("one"), "9").unwrap();
    assert!(!hierarchy.mount.join("a").exists());
    assert_eq!(ledger.restore().unwrap().restored(), 1);
    assert_eq!(
        std::fs::read_to_string(hierarchy.mount.join("one")).unwrap(),
        "1"
    );
}

#[test]
fn an_unwritable_ledger_changes_nothing() {
    let (_dir, host, hierarchy) = v1();
    let one = hierarchy.mount.join("one");
    std::fs::write(host.path("file"), "").unwrap();
    let error = Ledger::open(&host, host.path("file/knobs")).unwrap_err();
    assert!(
        matches!(error, KnobError::Ledger { .. }) && error.to_string().contains("--state-dir"),
        "{error}"
    );
    // A full disk: the file opens, and every write is cut off.
    let mut ledger = Ledger::open(&host, host.path("full")).unwrap();
    step::tests::fill_disk(true);
    assert!(matches!(
        ledger.write(&one, "100").unwrap_err(),
        KnobError::Ledger { .. }
    ));
    let cgroup = CgroupPath::new("a").unwrap();
    assert!(matches!(
        ledger.create_cgroup(&hierarchy, &cgroup, &[]).unwrap_err(),
        KnobError::Ledger { .. }
    ));
    assert_eq!(std::fs::read_to_string(&one).unwrap(), "1\n");
    assert!(!hierarchy.has(&cgroup));
    assert_eq!(std::fs::read(ledger.path()).unwrap(), b"");
    // There is room again.
    step::tests::fill_disk(false);
    ledger.write(&one, "100").unwrap();
    assert_eq!(ledger.restore().unwrap().restored(), 1);
}

#[test]
fn cgroups_that_others_remove_do_not_fill_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let host = HostRoot::new(dir.path());
    let path = dir.path().join("ledger");
    let kept = dir.path().join("kept");
    std::fs::create_dir(&kept).unwrap();
    let line = |cgroup: &Path| {
        let change = Change::Create {
            cgroup: cgroup.to_owned(),
        };
        let boot_id = String::new();
        serde_json::to_string(&Line { boot_id, change }).unwrap() + "\n"
    };
    let mut text = line(&kept);
    for pod in 0.. {
        text += &line(&dir.path().join(format!("pods/pod{pod}")));
        if text.len() as u64 > LONG_BYTES {
            break;
        }
    }
    std::fs::write(&path, text).unwrap();
    let knob = dir.path().join("knob");
    std::fs::write(&knob, "1\n").unwrap();
    let mut ledger = Ledger::open(&host, &path).unwrap();
    ledger.write(&knob, "2").unwrap();
    let changes = ledger.changes().unwrap();
    let subjects: Vec<&Path> = changes.iter().map(Change::subject).collect();
    assert_eq!(subjects, [&*kept, &*knob]);
}

/// What this thread has read from files so far.
fn bytes_read() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    let read = text.lines().find_map(|line| line.strip_prefix("rchar: "))?;
    read.parse().ok()
}

#[test]
fn a_line_in_a_long_ledger_takes_no_longer() {
    let (_dir, host, hierarchy) = v1();
    let one = hierarchy.mount.join("one");
    let path = host.path("long");
    Ledger::open(&host, &path)
        .unwrap()
        .record_ahead(&one, "100")
        .unwrap();
    let line = std::fs::read_to_string(&path).unwrap();
    // As long as one may be before it is read for what is gone.
    let bytes = usize::try_from(LONG_BYTES).unwrap() - 4 * PORTION;
    let long = line.repeat(bytes / line.len());
    // The last line is torn, in the middle of a portion and longer than one.
    for torn in [
        String::new(),
        "{".repeat(PORTION - 1),
        "{".repeat(3 * PORTION),
    ] {
        std::fs::write(&path, format!("{long}{torn}")).unwrap();
        let mut ledger = Ledger::open(&host, &path).unwrap();
        let before = bytes_read();
        ledger.record_ahead(&one, "100").unwrap();
        let read = before.and_then(|before| Some(bytes_read()? - before));
        assert!(read.is_none_or(|read| read < 64 << 10), "{read:?}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text == format!("{long}{line}"), "{} bytes", text.len());
    }
    std::fs::write(&path, vec![b'\n'; (LEDGER_BYTES_MAX + 1) as usize]).unwrap();
    let error = Ledger::open(&host, &path).unwrap().record_ahead(&one, "2");
    assert!(error.unwrap_err().to_string().contains("not a ledger"));
}

/// Where the process that is to be killed works, and at which of its steps it dies.
const KILLED_IN: &str = "PLIMSOLL_TEST_LEDGER_DIR";
const KILLED_AT: &str = "PLIMSOLL_TEST_LEDGER_STEP";

/// All that an agent does with a ledger: a torn line of the one before, changes of each kind, a fold, a restore of one
/// file, and of all.
fn work_with_ledger(dir: &Path, at_step: u32) {
    let host = HostRoot::new(dir);
    let hierarchy = host.cgroup_mounts().unwrap().hierarchies()[0].clone();
    let (one, two) = (hierarchy.mount.join("one"), hierarchy.mount.join("two"));
    step::tests::end_at(at_step);
    let mut ledger = Ledger::open(&host, host.path("/run/knobs.jsonl")).unwrap();
    ledger.write(&one, "100").unwrap();
    for cgroup in ["a", "a/b"] {
        let cgroup = CgroupPath::new(cgroup).unwrap();
        ledger.create_cgroup(&hierarchy, &cgroup, &[]).unwrap();
    }
    ledger.write(&two, "7").unwrap();
    ledger.appended = FOLD_AFTER - 2;
    ledger.write(&one, "1000").unwrap();
    ledger.write(&one, "10").unwrap(); // folds: one 1 -> 1000 -> 10
    ledger.restore_file(&two).unwrap();
    ledger.write(&two, "8").unwrap();
    ledger.restore().unwrap();
    assert!(step::tests::taken() > 40, "{} steps", step::tests::taken());
}

#[test]
fn killed_at_each_step_and_started_again_everything_is_as_before() {
    if let Some(dir) = std::env::var_os(KILLED_IN) {
        let step = std::env::var(KILLED_AT).unwrap().parse().unwrap();
        return work_with_ledger(Path::new(&dir), step);
    }
    let (dir, host, hierarchy) = v1();
    let tree = &hierarchy.mount;
    let before = snapshot(tree);
    let ledger_path = host.path("/run/knobs.jsonl");
    let mut step = 0;
    loop {
        step += 1;
        put_back(tree, &before);
        std::fs::create_dir_all(host.path("/run")).unwrap();
        std::fs::write(&ledger_path, "{\"bootId").unwrap();
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--test-threads=1"])
            .arg(
                "host::ledger::tests::killed_at_each_step_and_started_again_everything_is_as_before",
            )
            .env(KILLED_IN, dir.path())
            .env(KILLED_AT, step.to_string())
            .output()
            .unwrap();
        let restoration = Ledger::open(&host, &ledger_path)
            .unwrap()
            .restore()
            .unwrap();
        assert_eq!(snapshot(tree), before, "step {step}: {restoration:?}");
        assert_eq!(restoration.remarks(), Vec::<String>::new(), "step {step}");
        if child.status.success() {
            assert_eq!(restoration, Restoration::default(), "it has put back all");
            break;
        }
        let signal = std::os::unix::process::ExitStatusExt::signal(&child.status);
        let text = String::from_utf8_lossy(&child.stdout);
        assert_eq!(signal, Some(libc::SIGABRT), "step {step}: {text}");
    }
    assert!(step > 40, "{step} steps");
}

#[test]
fn a_refused_value_is_an_error_and_nothing_to_restore() {
    let (_dir, host, hierarchy) = v1();
    let mut ledger = Ledger::open(&host, host.path("knobs")).unwrap();
    let error = ledger
        .write(&hierarchy.mount.join("absent"), "1")
        .unwrap_err();
    assert!(
        matches!(error, KnobError::Knob(FileError::Vanished { .. })),
        "{error}"
    );
    assert_eq!(ledger.restore().unwrap(), Restoration::default());
}

#[test]
fn lines_of_another_boot_and_lines_that_are_none() {
    let (_dir, host, hierarchy) = v1();
    let one = hierarchy.mount.join("one");
    std::fs::create_dir_all(host.procfs("sys/kernel/random")).unwrap();
    std::fs::write(host.procfs("sys/kernel/random/boot_id"), "boot-1\n").unwrap();
    let path = host.path("knobs");
    Ledger::open(&host, &path)
        .unwrap()
        .write(&one, "100")
        .unwrap();
    let line = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("rubbish\n{line}")).unwrap();
    std::fs::write(host.procfs("sys/kernel/random/boot_id"), "boot-2\n").unwrap();
    let restoration = Ledger::open(&host, &path).unwrap().restore().unwrap();
    assert_eq!(
        restoration,
        Restoration {
            changes: Vec::new(),
            unreadable_lines: vec![1]
        }
    );
    assert_eq!(std::fs::read_to_string(&one).unwrap(), "100");
    assert!(restoration.remarks()[0].contains("line 1"));
}

#[test]
fn files_of_this_process_are_not_restored_to_a_later_one() {
    let (_dir, host, hierarchy) = v1();
    let one = hierarchy.mount.join("one");
    let pid = std::process::id().to_string();
    std::os::unix::fs::symlink(format!("/proc/{pid}"), host.procfs(&pid)).unwrap();
    let mut ledger = Ledger::open(&host, host.path("knobs")).unwrap();
    ledger.write_of_self(&one, "-999").unwrap();
    assert_eq!(
        ledger.restore().unwrap().restored(),
        1,
        "while the process runs"
    );
    ledger.write_of_self(&one, "-999").unwrap();
    let text = std::fs::read_to_string(ledger.path()).unwrap();
    let other = text.replace("\"startTicks\":", "\"startTicks\":1");
    assert_ne!(text, other);
    std::fs::write(ledger.path(), other).unwrap();
    assert_eq!(
        ledger.restore().unwrap().changes[0].outcome,
        UndoOutcome::NothingToDo
    );
    assert_eq!(std::fs::read_to_string(&one).unwrap(), "-999");
}

#[test]
fn controllers_are_enabled_only_where_they_are_not() {
    let (_dir, host) = fake_v2();
    let hierarchy = host.cgroup_mounts().unwrap().unified().unwrap().clone();
    let control = hierarchy.mount.join("cgroup.subtree_control");
    std::fs::write(&control, "cpu memory\n").unwrap();
    let mut ledger = Ledger::open(&host, host.path("knobs")).unwrap();
    ledger
        .create_cgroup(
            &hierarchy,
            &CgroupPath::new("a").unwrap(),
            &[Controller::Cpu, Controller::Memory],
        )
        .unwrap();
    assert_eq!(std::fs::read_to_string(&control).unwrap(), "cpu memory\n");
    ledger.enable(&hierarchy.mount, Controller::Pids).unwrap();
    assert_eq!(std::fs::read_to_string(&control).unwrap(), "+pids");
    std::fs::write(&control, "cpu memory pids\n").unwrap(); // as the kernel shows it then
    assert_eq!(ledger.restore().unwrap().restored(), 2);
    assert_eq!(std::fs::read_to_string(&control).unwrap(), "-pids");
    assert!(!hierarchy.mount.join("a").exists());
}

/// A runtime may have come to rely on it since.
#[test]
fn a_controller_stays_while_a_cgroup_of_another_program_relies_on_it() {
    for (controller, file, default, limit) in [
        (Controller::Pids, "pids.max", "max", "100"),
        (Controller::Cpuset, "cpuset.cpus", "", "0-1"),
        (Controller::Hugetlb, "hugetlb.2MB.max", "max", "0"),
    ] {
        let (_dir, host) = fake_v2();
        let mount = host
            .cgroup_mounts()
            .unwrap()
            .unified()
            .unwrap()
            .mount
            .clone();
        let control = mount.join("cgroup.subtree_control");
        let theirs = mount.join("system.slice");
        std::fs::create_dir(&theirs).unwrap();
        let mut ledger = Ledger::open(&host, host.path("knobs")).unwrap();
        ledger.enable(&mount, controller).unwrap();
        std::fs::write(&control, controller.name()).unwrap();
        std::fs::write(theirs.join(file), format!("{limit}\n")).unwrap();
        let restoration = ledger.restore().unwrap();
        let [remark] = restoration.remarks().try_into().unwrap();
        assert!(
            remark.contains("system.slice") && remark.contains(file),
            "{remark}"
        );
        assert_eq!(
            std::fs::read_to_string(&control).unwrap(),
            controller.name()
        );
        // It does no more.
        std::fs::write(theirs.join(file), format!("{default}\n")).unwrap();
        assert_eq!(ledger.restore().unwrap().restored(), 1, "{controller}");
    }
}

#[test]
fn a_controller_stays_while_a_cgroup_of_ours_has_processes() {
    let (_dir, host) = fake_v2();
    let hierarchy = host.cgroup_mounts().unwrap().unified().unwrap().clone();
    let control = hierarchy.mount.join("cgroup.subtree_control");
    std::fs::write(&control, "cpu\n").unwrap();
    let mut ledger = Ledger::open(&host, host.path("knobs")).unwrap();
    let cgroup = CgroupPath::new("a").unwrap();
    ledger
        .create_cgroup(&hierarchy, &cgroup, &[Controller::Cpu])
        .unwrap();
    let events = hierarchy.dir(&cgroup).join("cgroup.events");
    std::fs::write(&events, "populated 1\nfrozen 0\n").unwrap();
    // After it was made, as for a container that is placed only later.
    ledger.enable(&hierarchy.mount, Controller::Pids).unwrap();
    std::fs::write(&control, "cpu pids\n").unwrap();
    let restoration = ledger.restore().unwrap();
    assert!(
        restoration
            .changes
            .iter()
            .all(|undone| matches!(undone.outcome, UndoOutcome::Busy(_))),
        "{:?}",
        restoration.changes
    );
    assert_eq!(std::fs::read_to_string(&control).unwrap(), "cpu pids\n");
    // It has ended.
    std::fs::remove_file(&events).unwrap();
    assert_eq!(ledger.restore().unwrap().restored(), 2);
    assert_eq!(std::fs::read_to_string(&control).unwrap(), "-pids");
}
