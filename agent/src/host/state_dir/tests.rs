use super::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use super::super::HostRoot;
use super::super::ledger::Ledger;
use super::super::state_lock::StateLock;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// The mode of each entry.
fn modes(dir: &Path) -> Vec<(String, u32)> {
    let mut modes: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, mode(&entry.path()))
        })
        .collect();
    modes.sort();
    modes
}

#[test]
fn all_that_is_made_is_private_and_stays_so() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("run/plimsoll");
    let host = HostRoot::new(dir.path());
    let knob = dir.path().join("knob");
    fs::write(&knob, "1").unwrap();
    let table = [
        ("agent.lock".to_owned(), 0o600),
        ("knobs.jsonl".to_owned(), 0o600),
    ];
    for start in ["first", "second", "third"] {
        let lock = StateLock::acquire(&state).unwrap();
        let mut ledger = Ledger::open(&host, state.join("knobs.jsonl")).unwrap();
        ledger.restore_file(Path::new("/none of them")).unwrap(); // replaces the file
        ledger.write(&knob, start).unwrap();
        assert_eq!(mode(&state), 0o700, "{start}");
        assert_eq!(modes(&state), table, "{start}");
        drop(lock);
    }
    assert_eq!(mode(&dir.path().join("run")) & 0o022, 0);
}

#[test]
fn an_earlier_versions_directory_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("plimsoll");
    fs::create_dir(&state).unwrap();
    set_mode(&state, 0o755);
    for (name, text) in [
        ("agent.lock", "17\n"),
        ("knobs.jsonl", "{}\n"),
        ("run.journal", "{}\n"),
    ] {
        fs::write(state.join(name), text).unwrap();
        set_mode(&state.join(name), 0o644);
    }
    // A process that could read it has it open, and may lock it for ever.
    let open = File::open(state.join("knobs.jsonl")).unwrap();
    let journal = File::open(state.join("run.journal")).unwrap();
    prepare(&state).unwrap();
    assert_eq!(mode(&state), 0o700);
    assert!(modes(&state).iter().all(|(_, mode)| *mode == 0o600));
    assert!(!is_at(&open, &state.join("knobs.jsonl")).unwrap());
    assert!(
        is_at(&journal, &state.join("run.journal")).unwrap(),
        "it is not locked, so that it may stay"
    );
    assert_eq!(
        fs::read_to_string(state.join("knobs.jsonl")).unwrap(),
        "{}\n"
    );
    // What is right is not touched again.
    let open = File::open(state.join("knobs.jsonl")).unwrap();
    prepare(&state).unwrap();
    assert!(is_at(&open, &state.join("knobs.jsonl")).unwrap());
}

#[test]
fn what_others_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &Path| prepare(path).unwrap_err().to_string();
    let state = dir.path().join("plimsoll");
    fs::create_dir(&state).unwrap();
    for bits in [0o777, 0o720, 0o1777] {
        set_mode(&state, bits);
        let error = refused(&state);
        assert!(
            error.contains("can write") && error.contains("--state-dir"),
            "{error}"
        );
        assert_eq!(mode(&state), bits, "it is left as it is");
    }
    set_mode(&state, 0o700);
    let link = dir.path().join("link");
    symlink(&state, &link).unwrap();
    assert!(refused(&link).contains("not a link"), "{}", refused(&link));
    // Somebody else's place for it, though not the directory itself.
    let above = dir.path().join("open");
    fs::create_dir(&above).unwrap();
    set_mode(&above, 0o777);
    let error = refused(&above.join("plimsoll"));
    assert!(error.contains("/open above it"), "{error}");
    set_mode(&above, 0o1777);
    prepare(&above.join("plimsoll")).unwrap();
}

/// `--state-dir /run`, or any other that the system needs.
#[test]
fn a_directory_that_is_not_plimsolls_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    let system = dir.path().join("run");
    fs::create_dir_all(system.join("lock")).unwrap();
    fs::write(system.join("agent.lock"), "").unwrap();
    set_mode(&system, 0o755);
    let error = prepare(&system).unwrap_err().to_string();
    assert!(error.contains("a directory of its own"), "{error}");
    assert_eq!(mode(&system), 0o755);
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("precious"), "").unwrap();
    set_mode(&other, 0o755);
    assert!(prepare(&other).is_err());
    assert_eq!(mode(&other), 0o755);
}

#[test]
fn a_file_is_not_opened_through_a_link_and_not_made_over_one() {
    let dir = tempfile::tempdir().unwrap();
    let precious = dir.path().join("precious");
    fs::write(&precious, "text").unwrap();
    let link = dir.path().join("knobs.jsonl");
    symlink(&precious, &link).unwrap();
    assert!(open_private(&link).is_err());
    drop(create_new(&link).unwrap());
    assert_eq!(fs::read_to_string(&precious).unwrap(), "text");
    assert_eq!(mode(&link), 0o600);
    rustix::fs::mknodat(
        CWD,
        dir.path().join("fifo"),
        FileType::Fifo,
        Mode::RUSR | Mode::WUSR,
        0,
    )
    .unwrap();
    let error = open_private(&dir.path().join("fifo")).unwrap_err();
    assert!(error.to_string().contains("regular file"), "{error}");
}
