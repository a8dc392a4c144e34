use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, open};

use super::*;
use crate::notes;

fn start(parent: &Path, name: &CStr) -> Result<Removal, Errno> {
    let parent = open(parent, OFlags::DIRECTORY, Mode::empty()).unwrap();
    Removal::start(parent.as_fd(), name)
}

fn finish(mut removal: Removal, entries: u32) -> Removed {
    loop {
        if let Some(removed) = removal.advance(entries) {
            return removed;
        }
    }
}

fn make(root: &Path, paths: &[&str]) {
    for path in paths {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, vec![1; 8192]).unwrap();
    }
}

/// Every path below a directory, for comparison.
fn paths(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    found
}

#[test]
fn a_tree_is_removed_and_its_size_returned() {
    for entries in [1, 3, 1_000_000] {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), &["t/a/b/c/f", "t/a/g", "t/h", "beside/f"]);
        std::fs::hard_link(dir.path().join("beside/f"), dir.path().join("t/link")).unwrap();
        symlink(dir.path().join("beside"), dir.path().join("t/out")).unwrap();
        rustix::fs::syncfs(std::fs::File::open(dir.path()).unwrap()).unwrap();
        let removed = finish(start(dir.path(), c"t").unwrap(), entries);
        assert!(removed.is_gone && removed.failed == 0, "{removed:?}");
        // t, a, b, c, f, g, h and the symbolic link; the file with another name stays.
        assert_eq!(removed.inodes, 8);
        assert!(removed.bytes >= 3 * 8192, "{removed:?}");
        let left: Vec<_> = paths(dir.path()).into_iter().collect();
        assert_eq!(
            left,
            [dir.path().join("beside"), dir.path().join("beside/f")]
        );
    }
}

#[test]
fn what_is_no_directory_is_not_started_with() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), &["outside/f", "file"]);
    symlink(dir.path().join("outside"), dir.path().join("link")).unwrap();
    for (name, wanted) in [
        (c"file", Errno::NOTDIR),
        (c"link", Errno::NOTDIR),
        (c"none", Errno::NOENT),
        (c"..", Errno::XDEV),
        (c"outside/../../..", Errno::XDEV),
    ] {
        let error = start(dir.path(), name).unwrap_err();
        // EAGAIN: something on this machine was renamed or mounted while the kernel followed a `..` (openat2(2)). It is
        // not opened either.
        let is_raced = wanted == Errno::XDEV && error == Errno::AGAIN;
        assert!(error == wanted || is_raced, "{name:?}: {error}");
    }
    assert!(dir.path().join("outside/f").exists());
}

/// At every point of a removal, a directory becomes a link to the outside.
#[test]
fn a_directory_swapped_for_a_link_at_any_moment_does_not_lead_outside() {
    for steps in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        make(
            dir.path(),
            &["outside/f", "outside/d/g", "t/a/b/f", "t/a/c/f", "t/d/e/f"],
        );
        let before = paths(&dir.path().join("outside"));
        let mut removal = start(dir.path(), c"t").unwrap();
        for _ in 0..steps {
            removal.advance(1);
        }
        for (index, victim) in ["t/a/b", "t/a", "t/d"].into_iter().enumerate() {
            let victim = dir.path().join(victim);
            let aside = dir.path().join(format!("aside-{index}"));
            if std::fs::rename(&victim, &aside).is_ok() {
                symlink(dir.path().join("outside"), &victim).unwrap();
            }
        }
        let removed = finish(removal, 1);
        assert_eq!(paths(&dir.path().join("outside")), before, "step {steps}");
        assert!(removed.is_gone || removed.failed > 0, "{removed:?}");
    }
}

/// The same with a thread that swaps as fast as it can.
#[test]
fn a_race_of_swaps_does_not_lead_outside() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), &["outside/f", "outside/d/g"]);
    let before = paths(&dir.path().join("outside"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (victim, aside) = (dir.path().join("t/a"), dir.path().join("t/b"));
            while !stop.load(Ordering::Relaxed) {
                // Each of these fails now and then, when the other side was quicker.
                std::fs::create_dir_all(victim.join("d")).ok();
                std::fs::rename(&victim, &aside).ok();
                symlink("../outside", &victim).ok();
                std::fs::remove_file(&victim).ok();
                std::fs::rename(&aside, &victim).ok();
            }
        });
        for _ in 0..300 {
            std::fs::create_dir_all(dir.path().join("t/a/d")).ok();
            if let Ok(removal) = start(dir.path(), c"t") {
                finish(removal, 3);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(paths(&dir.path().join("outside")), before);
}

#[test]
fn a_directory_moved_out_ends_it_and_the_next_removal_does_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let deep = format!("t/{}/f", vec!["d"; 100].join("/"));
    make(dir.path(), &[&deep, "t/z", "elsewhere/f"]);
    let mut removal = start(dir.path(), c"t").unwrap();
    while removal.descent.depth() < 90 {
        assert_eq!(removal.advance(1), None);
    }
    let tenth = dir.path().join("t").join(["d"; 10].join("/"));
    std::fs::rename(tenth, dir.path().join("elsewhere/moved")).unwrap();
    let removed = finish(removal, 1);
    assert!(removed.moved && !removed.is_gone, "{removed:?}");
    assert!(dir.path().join("elsewhere/f").exists());
    assert!(finish(start(dir.path(), c"t").unwrap(), 1000).is_gone);
}

#[test]
fn what_is_made_meanwhile_goes_too_or_is_said() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), &["t/a/f", "t/b/f"]);
    let mut removal = start(dir.path(), c"t").unwrap();
    while removal.descent.depth() < 2 {
        removal.advance(1);
    }
    // Behind the reader's back, in every directory that is left.
    for name in ["t/a", "t/b"] {
        for index in 0..50 {
            std::fs::write(dir.path().join(name).join(format!("late-{index}")), "").ok();
        }
    }
    let removed = finish(removal, 1);
    assert!(removed.is_gone, "{removed:?}");
}

#[test]
fn a_mount_below_is_left_with_what_is_in_it() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), &["t/bind/x", "t/tmpfs/x", "t/f", "elsewhere/f"]);
    let at = |name: &str| dir.path().join(name);
    match mount_bind(at("elsewhere"), at("t/bind")) {
        Err(error @ (Errno::PERM | Errno::ACCESS)) => {
            notes::left_out(format_args!("mount: {error}"));
            return;
        }
        result => result.unwrap(),
    }
    mount("tmpfs", at("t/tmpfs"), "tmpfs", MountFlags::empty(), c"").unwrap();
    std::fs::write(at("t/tmpfs/g"), "x").unwrap();
    let removed = finish(start(dir.path(), c"t").unwrap(), 5);
    let left = (at("elsewhere/f").exists(), at("t/tmpfs/g").exists());
    for name in ["t/tmpfs", "t/bind"] {
        unmount(at(name), UnmountFlags::DETACH).unwrap();
    }
    assert_eq!(left, (true, true));
    // Both mounts, and the directory that holds them.
    assert_eq!((removed.failed, removed.is_gone), (3, false), "{removed:?}");
    assert!(!at("t/f").exists());
}

#[test]
fn a_tree_deeper_than_we_go_is_removed_all_the_same() {
    for entries in [1, 7, 1_000_000] {
        let dir = tempfile::tempdir().unwrap();
        let chain = |levels: usize| vec!["d"; levels].join("/");
        for wide in ["a", "b", "c"] {
            make(dir.path(), &[&format!("t/{}/{wide}/x/y/f", chain(30))]);
        }
        make(
            dir.path(),
            &[&format!("t/{}/f", chain(100)), "t/g", "beside/f"],
        );
        std::fs::create_dir(dir.path().join("t").join(chain(19)).join("empty")).unwrap();
        // The pod has made what the first two would be called.
        make(
            dir.path(),
            &["t/.plimsoll-removal-1", "t/.plimsoll-removal-2/f"],
        );
        let mut removal = start(dir.path(), c"t").unwrap();
        removal.descent.bound_depth(20);
        let removed = finish(removal, entries);
        assert!(removed.is_gone && removed.failed == 0, "{removed:?}");
        // t, 100 of the chain with f, three of a/x/y/f, empty, g, and the pod's three.
        assert_eq!(removed.inodes, 1 + 101 + 12 + 1 + 1 + 3);
        let left: Vec<_> = paths(dir.path()).into_iter().collect();
        assert_eq!(
            left,
            [dir.path().join("beside"), dir.path().join("beside/f")]
        );
    }
}

/// More directories at the bound than names are kept: each removal leaves less.
#[test]
fn a_tree_wide_where_it_is_too_deep_goes_in_a_few_removals() {
    let in_memory = Path::new("/dev/shm");
    let dir = match in_memory.is_dir() {
        true => tempfile::tempdir_in(in_memory),
        false => tempfile::tempdir(),
    }
    .unwrap();
    let deepest = dir.path().join("t/a/b");
    for index in 0..5_000 {
        std::fs::create_dir_all(deepest.join(index.to_string()).join("x")).unwrap();
    }
    let removals = (1..10).find(|_| {
        let mut removal = start(dir.path(), c"t").unwrap();
        removal.descent.bound_depth(3);
        finish(removal, 1_000).is_gone
    });
    assert_eq!(removals, Some(2));
}
