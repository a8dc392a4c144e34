//! The state directory as another user meets it: what it may not open, it cannot lock.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use plimsoll::act::placement::checkpoint::{LOCK_PATIENCE, PlacementLock};
use plimsoll::host::HostRoot;
use plimsoll::host::ledger::{AGENT_LEDGER, Ledger, PODS_LEDGER};
use plimsoll::host::shown::Show as _;
use plimsoll::host::state_lock::{LockError, StateLock};

mod notes;

const NOBODY: u32 = 65534;

/// A shell of nobody.
fn nobody(script: &str, file: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .arg(file)
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .stderr(Stdio::null());
    command
}

fn all_below(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_owned()];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.append(&mut all_below(&path));
        } else {
            all.push(path);
        }
    }
    all
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A directory that everybody can search, and a setting in it.
fn place() -> Option<(tempfile::TempDir, PathBuf, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        notes::left_out("only root can become another user");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o755);
    let knob = dir.path().join("knob");
    fs::write(&knob, "1").unwrap();
    let state = dir.path().join("run/plimsoll");
    Some((dir, state, knob))
}

#[test]
fn another_user_can_lock_nothing_and_the_ledger_goes_on() {
    let Some((dir, state, knob)) = place() else {
        return;
    };
    let host = HostRoot::new(dir.path());
    let _lock = StateLock::acquire(&state).unwrap();
    let mut ledger = Ledger::open(&host, state.join(AGENT_LEDGER))
        .unwrap()
        .without_waiting();
    Ledger::open(&host, state.join(PODS_LEDGER)).unwrap();
    PlacementLock::exclusive(&state, LOCK_PATIENCE).unwrap();
    for round in 2..5 {
        ledger.write(&knob, &round.to_string()).unwrap();
        ledger.restore_file(Path::new("none")).unwrap(); // replaces the file
        let all = all_below(&state);
        assert!(all.len() >= 5, "{all:?}");
        for path in all {
            for how in ["-n -s", "-n -x"] {
                // Opening comes first: without the right to read there is nothing to lock.
                let script = format!("exec 9<\"$1\" && flock {how} 9");
                let status = nobody(&script, &path).status().unwrap();
                assert!(!status.success(), "{} can be locked", path.shown());
            }
        }
    }
    // The shell itself works: what is open to all can be locked.
    let status = nobody("exec 9<\"$1\" && flock -n -s 9", &knob).status();
    assert!(status.unwrap().success());
}

/// Holds what it has locked until it is ended.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A process of this user that locks this file; returns when it has. What asked for the lock has ended then, and its
/// parent holds it.
fn hold_as(uid: u32, file: &Path) -> Holder {
    let script = "exec 9<\"$1\" && flock -s 9 && echo held && read -r _";
    let mut child = nobody(script, file)
        .uid(uid)
        .gid(uid)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 5];
    let out = child.stdout.as_mut().unwrap();
    out.read_exact(&mut said).unwrap();
    Holder(child)
}

/// A lock taken while an earlier version's files were open to all holds up nobody after the upgrade.
#[test]
fn a_lock_from_before_the_repair_is_of_no_use() {
    let Some((dir, state, knob)) = place() else {
        return;
    };
    fs::create_dir_all(&state).unwrap();
    set_mode(&state, 0o755);
    let host = HostRoot::new(dir.path());
    let ledger_path = state.join(AGENT_LEDGER);
    Ledger::open(&host, &ledger_path)
        .unwrap()
        .write(&knob, "2")
        .unwrap();
    fs::write(state.join("agent.lock"), "1\n").unwrap();
    let held: Vec<Holder> = [&ledger_path, &state.join("agent.lock")]
        .into_iter()
        .map(|path| {
            set_mode(path, 0o644);
            hold_as(NOBODY, path)
        })
        .collect();
    let _lock = StateLock::acquire(&state).unwrap();
    let mut ledger = Ledger::open(&host, &ledger_path).unwrap().without_waiting();
    assert_eq!(ledger.restore().unwrap().restored(), 1);
    assert_eq!(fs::read_to_string(&knob).unwrap(), "1");
    drop(held);
}

/// An agent of an earlier version that still runs when the next one is started.
#[test]
fn an_agent_that_runs_keeps_its_lock() {
    let Some((_dir, state, _)) = place() else {
        return;
    };
    fs::create_dir_all(&state).unwrap();
    set_mode(&state, 0o755);
    let lock = state.join("agent.lock");
    fs::write(&lock, "1\n").unwrap();
    set_mode(&lock, 0o644);
    let _agent = hold_as(0, &lock);
    let refused = StateLock::acquire(&state);
    assert!(
        matches!(refused, Err(LockError::Held { .. })),
        "{refused:?}"
    );
    assert_eq!(
        fs::metadata(&lock).unwrap().permissions().mode() & 0o7777,
        0o600
    );
}

/// A journal on a disk that is full for a while.
#[test]
fn a_journal_goes_on_when_its_disk_has_room_again() {
    use plimsoll::record::journal::Journal;
    use plimsoll_core::engine::{Engine, EngineConfig};
    use plimsoll_core::kube::pod_uid::PodUid;
    use plimsoll_core::model::event::{Event, EventKind};

    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(&disk)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        notes::left_out("no tmpfs can be mounted");
        return;
    }
    struct Unmount(PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            Command::new("umount").arg("-l").arg(&self.0).status().ok();
        }
    }
    let _unmount = Unmount(disk.clone());
    let (path, old, filler) = (
        disk.join("journal"),
        disk.join("journal.1"),
        disk.join("filler"),
    );
    let engine = Engine::new(EngineConfig::default());
    let mut at_ns = 0;
    let mut step = |journal: &mut Journal| {
        at_ns += 1;
        let uid = PodUid::from("a");
        let kind = EventKind::PodEmpty { uid };
        journal.record(&Event { at_ns, kind }, &[]);
        journal.next_file_if_full(&engine);
        std::thread::sleep(std::time::Duration::from_millis(1));
        at_ns
    };
    let mut journal = Journal::create(&path, &engine).unwrap();
    let first = step(&mut journal);
    fs::write(&filler, vec![1; 1 << 20]).unwrap_err();
    let error = loop {
        step(&mut journal);
        if let Some(error) = journal.take_error() {
            break error;
        }
    };
    assert!(error.to_string().contains("make room"), "{error}");
    assert!(
        fs::read_to_string(&path).unwrap().ends_with("}\n"),
        "a torn line"
    );
    fs::remove_file(&filler).unwrap();
    let lost_before = journal.lost();
    while !old.exists() {
        step(&mut journal);
    }
    let last = loop {
        // Whether it is in the new file: no step is lost any more.
        let lost = journal.lost();
        let at_ns = step(&mut journal);
        if journal.lost() == lost {
            break at_ns;
        }
    };
    assert!(journal.lost() > lost_before);
    journal.finish().unwrap();
    let new = fs::read_to_string(&path).unwrap();
    assert!(new.starts_with("{\"journal\":"), "{new}");
    assert!(new.contains(&format!("\"at_ns\":{last},")), "{new}");
    let old = fs::read_to_string(&old).unwrap();
    assert!(
        old.contains(&format!("\"at_ns\":{first},")),
        "the evidence stays"
    );

    // A disk that is full when the agent starts does not keep it from starting.
    let path = disk.join("other");
    fs::write(&filler, vec![1; 1 << 20]).unwrap_err();
    let mut journal = Journal::create(&path, &engine).unwrap();
    assert!(journal.take_error().is_some());
    fs::remove_file(&filler).unwrap();
    while !path.exists() {
        step(&mut journal);
    }
}
