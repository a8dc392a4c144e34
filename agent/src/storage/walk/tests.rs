use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use rustix::fs::{OFlags, mkdirat, open};

use super::*;
use crate::notes;

fn walk(path: &Path) -> Walked {
    walk_by(path, 1000)
}

fn walk_by(path: &Path, entries: u32) -> Walked {
    let mut walk = Walk::start(path).unwrap();
    loop {
        if let Some(walked) = walk.advance(entries) {
            return walked;
        }
    }
}

/// What `du -x` counts, in the simplest way.
fn model(path: &Path) -> (u64, u64) {
    fn add(path: &Path, device: u64, seen: &mut BTreeSet<u64>, sums: &mut (u64, u64)) {
        let status = std::fs::symlink_metadata(path).unwrap();
        if status.dev() != device || !seen.insert(status.ino()) {
            return;
        }
        sums.0 += status.blocks() * 512;
        sums.1 += 1;
        if status.is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                add(&entry.unwrap().path(), device, seen, sums);
            }
        }
    }
    let device = std::fs::symlink_metadata(path).unwrap().dev();
    let mut sums = (0, 0);
    add(path, device, &mut BTreeSet::new(), &mut sums);
    sums
}

/// A chain of `depth` directories with a file of a block in each, and one in the last.
pub(in crate::storage) fn deep(root: &Path, depth: usize, name: &str) {
    let name = CString::new(name).unwrap();
    let mut dir: OwnedFd = open(root, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&dir, name.as_c_str(), Mode::from_raw_mode(0o700)).unwrap();
        dir = openat(&dir, name.as_c_str(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        // After the directory by name and made later, so that a level has something left when it is entered again.
        let file = openat(
            &dir,
            c"z",
            OFlags::CREATE | OFlags::WRONLY,
            Mode::from_raw_mode(0o600),
        )
        .unwrap();
        rustix::io::write(&file, b"x").unwrap();
    }
}

/// Small and reproducible (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn any_tree_counts_as_du_counts_it_however_small_the_slices() {
    for seed in 1..45 {
        // Most in memory, where block counts stand still; some on disk, where directories take blocks, too.
        let in_memory = Path::new("/dev/shm");
        let dir = if seed > 4 && in_memory.is_dir() {
            tempfile::tempdir_in(in_memory)
        } else {
            tempfile::tempdir()
        }
        .unwrap();
        let mut random = Random(seed * 0x9e37_79b9);
        let mut dirs = vec![dir.path().to_owned()];
        let mut files: Vec<std::path::PathBuf> = Vec::new();
        for index in 0..random.below(120) {
            let parent = dirs[usize::try_from(random.below(dirs.len() as u64)).unwrap()].clone();
            // Not UTF-8, long and short.
            let mut name = vec![0xff; usize::try_from(random.below(40)).unwrap()];
            name.extend(index.to_string().bytes());
            let path = parent.join(OsStr::from_bytes(&name));
            match random.below(6) {
                0 | 1 => {
                    std::fs::create_dir(&path).unwrap();
                    dirs.push(path);
                }
                2 if !files.is_empty() => {
                    let file = usize::try_from(random.below(files.len() as u64)).unwrap();
                    std::fs::hard_link(&files[file], &path).unwrap();
                }
                3 => symlink(&dirs[0], &path).unwrap(),
                4 => drop(
                    std::os::unix::net::UnixListener::bind(&path)
                        .map_err(|_| std::fs::write(&path, "")),
                ),
                _ => {
                    let size = usize::try_from(random.below(20_000)).unwrap();
                    std::fs::write(&path, vec![1; size]).unwrap();
                    files.push(path);
                }
            }
        }
        rustix::fs::syncfs(std::fs::File::open(dir.path()).unwrap()).unwrap(); // delayed allocation changes block counts
        let wanted = model(dir.path());
        for entries in [1, 2, 7, 1_000_000] {
            let walked = walk_by(dir.path(), entries);
            assert_eq!((walked.bytes, walked.inodes), wanted, "seed {seed}");
            assert!(walked.is_complete(), "{walked:?}");
        }
    }
}

#[test]
fn a_tree_deeper_than_paths_and_open_files_is_counted_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (depth, name) = (3_000, "d".repeat(200)); // 600 KiB of path
    deep(dir.path(), depth, &name);
    let walked = walk_by(dir.path(), 10);
    assert_eq!(walked.inodes, 1 + 2 * depth as u64);
    assert!(walked.is_complete(), "{walked:?}");
    remove_deep(dir.path());
}

/// What `std::fs::remove_dir_all` cannot, because it keeps every level open.
fn remove_deep(root: &Path) {
    let parent = open(root, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for entry in std::fs::read_dir(root).unwrap() {
        let name = CString::new(entry.unwrap().file_name().as_bytes()).unwrap();
        let mut removal =
            crate::storage::remove::Removal::start(parent.as_fd(), name.as_c_str()).unwrap();
        while removal.advance(10_000).is_none() {}
        assert!(removal.so_far().is_gone, "{:?}", removal.so_far());
    }
}

#[test]
fn a_wide_tree_is_counted_with_few_names_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    for index in 0..6_000 {
        std::fs::create_dir(dir.path().join(format!("directory-{index}"))).unwrap();
    }
    let mut walk = Walk::start(dir.path()).unwrap();
    let mut most = 0;
    let walked = loop {
        let result = walk.advance(50);
        most = most.max(walk.descent.pending());
        if let Some(walked) = result {
            break walked;
        }
    };
    assert_eq!(walked.inodes, 6_001);
    assert!(most <= 4_097, "{most}");
}

#[test]
fn a_walk_ends_after_so_many_names_also_of_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    std::fs::write(&file, "x").unwrap();
    for index in 0..49 {
        std::fs::hard_link(&file, dir.path().join(index.to_string())).unwrap();
    }
    for (at_most, entries, cut_at) in [
        (10, 1_000, Some(10)),
        (10, 3, Some(10)),
        (0, 3, Some(0)),
        (51, 3, None),
    ] {
        let mut walk = Walk::start(dir.path()).unwrap().at_most(at_most);
        let walked = (0..100).find_map(|_| walk.advance(entries)).unwrap();
        assert_eq!(walked.cut_at, cut_at);
        assert_eq!(walked.is_complete(), cut_at.is_none());
        assert_eq!(walked.inodes, 1 + u64::from(at_most > 0));
        assert_eq!(walk.names(), at_most.min(50));
    }
}

#[test]
fn directories_that_are_moved_away_do_not_lead_the_walk_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
    std::fs::create_dir(&inside).unwrap();
    std::fs::create_dir(&outside).unwrap();
    for index in 0..50 {
        std::fs::write(outside.join(index.to_string()), "secret").unwrap();
    }
    deep(&inside, 100, "d");
    let mut walk = Walk::start(&inside).unwrap();
    while walk.descent.depth() < 90 {
        assert_eq!(walk.advance(1), None);
    }
    // The tenth directory, which is not open any more, goes elsewhere with all below it.
    let from = inside.join(["d"; 10].join("/"));
    std::fs::rename(&from, outside.join("moved")).unwrap();
    let walked = loop {
        if let Some(walked) = walk.advance(1) {
            break walked;
        }
    };
    // Nine levels are reached by nothing that was verified: what was in them stays uncounted, and is said.
    assert_eq!(walked.moved, 1, "{walked:?}");
    assert!(!walked.is_complete());
    assert!(walked.inodes <= 201, "{walked:?}");
}

#[test]
fn vanishing_and_swapped_directories_are_no_errors() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name).join("f"), "x").unwrap();
    }
    let mut walk = Walk::start(dir.path()).unwrap();
    assert_eq!(walk.advance(3), None, "all names are read, none is entered");
    std::fs::remove_dir_all(dir.path().join("a")).unwrap();
    std::fs::remove_dir_all(dir.path().join("b")).unwrap();
    symlink("/", dir.path().join("b")).unwrap();
    let walked = walk.advance(1_000_000).unwrap();
    assert_eq!((walked.inodes, walked.is_complete()), (3, true));
}

#[test]
fn what_may_not_be_read_is_counted_itself_and_said() {
    if rustix::process::geteuid().is_root() {
        notes::left_out("root may read everything");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    let walked = walk(dir.path());
    assert_eq!((walked.inodes, walked.unreadable), (2, 1));
}

#[test]
fn only_a_directory_can_be_walked() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    std::fs::write(&file, "").unwrap();
    symlink(dir.path(), &link).unwrap();
    assert_eq!(Walk::start(&file).unwrap_err(), Errno::NOTDIR);
    assert!(matches!(
        Walk::start(&link).unwrap_err(),
        Errno::NOTDIR | Errno::LOOP
    ));
    assert_eq!(
        Walk::start(&dir.path().join("none")).unwrap_err(),
        Errno::NOENT
    );
}

#[test]
fn mounts_below_are_not_entered_not_even_of_the_same_file_system() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["tree", "tree/tmpfs", "tree/bind", "tree/file", "elsewhere"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::fs::write(at("elsewhere/f"), vec![1; 100_000]).unwrap();
    std::fs::write(at("tree/file/f"), "x").unwrap();
    let tmpfs = at("tree/tmpfs");
    match mount("tmpfs", &tmpfs, "tmpfs", MountFlags::empty(), c"") {
        Err(error @ (Errno::PERM | Errno::ACCESS)) => {
            notes::left_out(format_args!("mount: {error}"));
            return;
        }
        result => result.unwrap(),
    }
    mount_bind(at("elsewhere"), at("tree/bind")).unwrap();
    mount_bind(at("elsewhere/f"), at("tree/file/f")).unwrap();
    std::fs::write(tmpfs.join("f"), vec![1; 100_000]).unwrap();
    let walked = walk(&at("tree"));
    for name in ["tree/tmpfs", "tree/bind", "tree/file/f"] {
        unmount(at(name), UnmountFlags::DETACH).unwrap();
    }
    assert_eq!(
        (walked.inodes, walked.is_complete()),
        (2, true),
        "tree and file"
    );
    assert!(walked.bytes < 100_000);
}

/// A FUSE file system whose server never says a word: what asks it waits until the server's end of it is closed.
pub(in crate::storage) fn mount_silent_fuse(on: &Path) -> Option<OwnedFd> {
    use rustix::mount::{MountFlags, mount};
    let server = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let mounted = server.and_then(|server| {
        let number = std::os::fd::AsRawFd::as_raw_fd(&server);
        let options = format!("fd={number},rootmode=40000,user_id=0,group_id=0");
        let options = CString::new(options).unwrap();
        mount(
            "silent",
            on,
            "fuse",
            MountFlags::empty(),
            options.as_c_str(),
        )
        .map(|()| server)
    });
    mounted
        .inspect_err(|error| notes::left_out(format_args!("FUSE: {error}")))
        .ok()
}

/// What `work` returns, which another thread does; `None` if it does not end, as where it asks `server`, whose end of
/// it is closed then.
pub(in crate::storage) fn without_asking<T: Send + 'static>(
    server: OwnedFd,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, done) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || sender.send(work()));
    // It takes microseconds, or for ever.
    let result = done.recv_timeout(std::time::Duration::from_secs(30));
    drop(server);
    worker.join().unwrap().ok();
    result.ok()
}

#[test]
fn a_dead_fuse_server_is_not_asked() {
    use rustix::mount::{UnmountFlags, unmount};
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["tree", "tree/fuse", "tree/file"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    let Some(server) = mount_silent_fuse(&at("tree/fuse")) else {
        return;
    };
    let tree = at("tree");
    let walked = without_asking(server, move || walk(&tree));
    unmount(at("tree/fuse"), UnmountFlags::DETACH).unwrap();
    let walked = walked.expect("the walk waits for the server");
    assert_eq!((walked.inodes, walked.is_complete()), (2, true));
}

/// Needs a btrfs, and `btrfs`: `mkfs.btrfs IMAGE; mount -o loop IMAGE /mnt`, then
/// `PLIMSOLL_BTRFS_DIR=/mnt cargo test -p plimsoll --lib subvolume -- --ignored`.
#[test]
#[ignore = "needs a btrfs"]
fn a_subvolume_is_counted_and_removed() {
    let root = std::env::var("PLIMSOLL_BTRFS_DIR").expect("PLIMSOLL_BTRFS_DIR names a directory");
    let dir = tempfile::tempdir_in(root).unwrap();
    let tree = dir.path().join("tree");
    let hidden = tree.join("hidden");
    std::fs::create_dir(&tree).unwrap();
    let made = std::process::Command::new("btrfs")
        .args(["subvolume", "create"])
        .arg(&hidden)
        .status();
    assert!(made.unwrap().success());
    std::fs::write(hidden.join("f"), vec![1; 1 << 20]).unwrap();
    for (in_tree, number) in [(&tree, 0), (&hidden, 1)] {
        let file = in_tree.join("link");
        std::fs::write(&file, number.to_string()).unwrap();
        std::fs::hard_link(&file, in_tree.join("again")).unwrap();
    }
    rustix::fs::syncfs(std::fs::File::open(&tree).unwrap()).unwrap();
    let walked = walk(&tree);
    // Both directories, f, and two files with two names each.
    assert_eq!((walked.inodes, walked.is_complete()), (5, true));
    assert!(walked.bytes >= 1 << 20, "{walked:?}");
    remove_deep(dir.path());
    assert!(!tree.exists());
}

/// `cargo test --release -p plimsoll --lib walk_cost -- --ignored --nocapture`
#[test]
#[ignore = "a measurement, for people"]
fn walk_cost() {
    let dir = tempfile::tempdir().unwrap();
    for outer in 0..100 {
        let outer = dir.path().join(outer.to_string());
        std::fs::create_dir(&outer).unwrap();
        for file in 0..1_000 {
            std::fs::write(outer.join(file.to_string()), "x").unwrap();
        }
    }
    for round in 0..4 {
        let start = std::time::Instant::now();
        let mut walk = Walk::start(dir.path()).unwrap();
        let (mut slices, mut longest) = (0_u32, std::time::Duration::ZERO);
        let walked = loop {
            let slice = std::time::Instant::now();
            let result = walk.advance(crate::storage::SLICE_ENTRIES);
            slices += 1;
            longest = longest.max(slice.elapsed());
            if let Some(walked) = result {
                break walked;
            }
        };
        let took = start.elapsed();
        println!(
            "round {round}: {} inodes, {} MiB, {took:?}, {slices} slices, the longest {longest:?}",
            walked.inodes,
            walked.bytes >> 20
        );
    }
}
