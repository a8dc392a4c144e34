use std::fs::{create_dir, create_dir_all, write};
use std::path::Path;

use super::*;
use crate::pods::remove_tree::remove_tree;

/// A tree of this many empty directories in one.
fn wide(dir: &Path, count: usize) {
    create_dir_all(dir).unwrap();
    for index in 0..count {
        create_dir(dir.join(index.to_string())).unwrap();
    }
}

/// The reports of this many jobs, in their order.
fn reports(worker: &CgroupWorker, count: usize) -> Vec<Report> {
    (0..count).map(|_| worker.reports.recv().unwrap()).collect()
}

#[test]
fn a_removal_is_done_in_slices_that_do_not_grow_with_the_tree() {
    // Where they are made in no time, if there is such a place.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap());
    let pod = dir.path().join("pod");
    wide(&pod, 20_000);
    let mut removal = Removal::of(pod.clone());
    let mut before = 0;
    let mut slices = 1;
    while !removal.slice(SLICE) {
        slices += 1;
        assert!(removal.removed - before <= u64::from(SLICE));
        before = removal.removed;
    }
    assert!(slices >= 20_000 / SLICE, "{slices}");
    assert_eq!(removal.removed, 20_001);
    assert!(removal.outcome().unwrap() && !pod.exists());
}

#[test]
fn any_depth_and_what_is_in_use_stays_with_all_above_it() {
    let dir = tempfile::tempdir().unwrap();
    let pod = dir.path().join("pod");
    create_dir_all(pod.join("1/2/3/4/5/6/7/8/9")).unwrap();
    create_dir_all(pod.join("a/b/c/d")).unwrap();
    // Here a file makes a directory busy, as a process does there.
    write(pod.join("a/b/busy"), "").unwrap();
    assert!(!remove_tree(&pod).unwrap());
    assert!(pod.join("a/b/busy").exists());
    assert!(!pod.join("1").exists() && !pod.join("a/b/c").exists());
    std::fs::remove_file(pod.join("a/b/busy")).unwrap();
    assert!(remove_tree(&pod).unwrap());
    assert!(remove_tree(&pod).unwrap(), "gone already");
}

#[test]
fn names_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = tempfile::tempdir().unwrap();
    let pod = dir.path().join("pod");
    create_dir_all(
        pod.join(std::ffi::OsStr::from_bytes(b"\xff\x1b[8m"))
            .join("x"),
    )
    .unwrap();
    assert!(remove_tree(&pod).unwrap());
}

#[test]
fn a_large_pod_does_not_hold_up_a_small_one() {
    let dir = tempfile::tempdir().unwrap();
    let (large, small) = (dir.path().join("large"), dir.path().join("small"));
    wide(&large, 1000);
    wide(&small, 3);
    let worker = CgroupWorker::start().unwrap();
    let uid = PodUid::new;
    worker.remove(&uid("large"), vec![large.clone()]).unwrap();
    worker
        .remove(&uid("small"), vec![dir.path().join("none"), small.clone()])
        .unwrap();
    let done: Vec<_> = reports(&worker, 2)
        .into_iter()
        .map(|report| match report.done {
            Done::Removed {
                directories,
                failure: None,
            } => (report.uid.to_string(), directories),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(done, [("small".to_owned(), 4), ("large".to_owned(), 1001)]);
    assert!(!large.exists() && !small.exists());
    assert_eq!((worker.report(), worker.dropped()), (None, 0));
}

#[test]
fn the_end_finishes_what_is_queued() {
    let dir = tempfile::tempdir().unwrap();
    let pods: Vec<PathBuf> = (0..20)
        .map(|pod| dir.path().join(pod.to_string()))
        .collect();
    let mut worker = CgroupWorker::start().unwrap();
    for pod in &pods {
        wide(pod, 3);
        worker.remove(&PodUid::new("x"), vec![pod.clone()]).unwrap();
    }
    // It may be abandoned on a machine that has stopped; then nothing is promised.
    if worker.finish() {
        assert!(pods.iter().all(|pod| !pod.exists()));
    }
    assert_eq!(
        worker.remove(&PodUid::new("x"), Vec::new()),
        Err(NotTaken::Ended)
    );
}

#[test]
fn each_end_is_reported_or_counted() {
    let dir = tempfile::tempdir().unwrap();
    let worker = CgroupWorker::start().unwrap();
    let sweep = Sweep::of(&dir.path().join("gone"), None);
    let asked = ENDS_MAX as u64 * 4;
    for number in 0..asked {
        worker.end_unreached(&PodUid::new(number.to_string()), &sweep);
    }
    let taken = usize::try_from(asked - worker.dropped()).unwrap();
    assert!(taken >= ENDS_MAX);
    for report in reports(&worker, taken) {
        assert!(
            matches!(&report.done, Done::Ended(Ok(ended)) if ended.is_empty),
            "{report:?}"
        );
    }
}
