use std::path::Path;

use super::*;
use crate::pods::directories::{ContainerDirs, PodDirs, VolumeDir, VolumePlugin};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::file_system::ImageFsLayout;

pub(super) struct Machine {
    pub(super) dir: tempfile::TempDir,
    pub(super) settings: StorageSettings,
}

impl Machine {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(std::fs::canonicalize(dir.path()).unwrap());
        let settings = StorageSettings {
            host,
            interval: INTERVAL_MIN,
            cycle: Duration::from_millis(200),
            ..StorageSettings::live(CgroupPath::new("/").unwrap())
        };
        let machine = Self { dir, settings };
        machine.write(
            "proc/self/mounts",
            "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        );
        machine.write("proc/self/mountinfo", "");
        machine.write("sys/fs/cgroup/kubepods/cgroup.events", "populated 0\n");
        for (link, namespace) in [
            ("self/ns/pid", "pid:[4026531836]"),
            ("self/ns/mnt", "mnt:[1]"),
            ("1/ns/mnt", "mnt:[1]"),
        ] {
            let link = machine.dir.path().join("proc").join(link);
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(namespace, link).unwrap();
        }
        machine.write("sys/fs/cgroup/cgroup.controllers", "memory\n");
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(super) fn volume_file(&self, uid: &str, file: &str) {
        let path =
            format!("var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/data/{file}");
        self.write(&path, "0123456789");
    }

    fn spawn(&self) -> (StorageHandle, mpsc::Receiver<StorageEvent>) {
        Storage::spawn(self.settings.clone()).unwrap()
    }
}

pub(super) fn pod(uid: &str) -> PodDirs {
    PodDirs {
        uid: PodUid::from(uid),
        namespace: "default".into(),
        name: "name".into(),
        has_user_namespace: false,
        containers: vec![ContainerDirs {
            name: "app".into(),
            cgroup: CgroupPath::new("/kubepods/app").unwrap(),
        }],
        volumes: vec![VolumeDir {
            name: "data".into(),
            plugin: VolumePlugin::EmptyDir,
        }],
    }
}

/// The first event that `wanted` takes.
fn wait<T>(
    events: &mut mpsc::Receiver<StorageEvent>,
    mut wanted: impl FnMut(StorageEvent) -> Option<T>,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        loop {
            if let Some(found) = wanted(events.recv().await.expect("the threads run")) {
                return found;
            }
        }
    })
}

fn reading(event: StorageEvent) -> Option<Arc<StorageReading>> {
    match event {
        StorageEvent::Reading(reading) | StorageEvent::Ranked(reading) => Some(reading),
        _ => None,
    }
}

fn ranked(event: StorageEvent) -> Option<Arc<StorageReading>> {
    match event {
        StorageEvent::Ranked(reading) => Some(reading),
        _ => None,
    }
}

fn inodes(reading: &StorageReading) -> Vec<(&str, Option<u64>)> {
    reading
        .pods
        .iter()
        .map(|pod| (pod.uid.as_str(), pod.volumes[0].used.inodes))
        .collect()
}

/// The kernel charges the inodes of what is walked to who walks.
#[test]
fn a_walk_does_not_fill_the_agents_own_cgroup() {
    let machine = Machine::new();
    machine.volume_file("a", "1");
    machine.write(&format!("proc/{}/cgroup", std::process::id()), "0::/own\n");
    for (name, text) in [
        ("memory.max", "1000000\n"),
        ("memory.high", "max\n"),
        ("memory.current", "900000\n"),
        ("memory.reclaim", ""),
    ] {
        machine.write(&format!("sys/fs/cgroup/own/{name}"), text);
    }
    let (handle, mut events) = machine.spawn();
    handle.set_pods(vec![pod("a")]).unwrap();
    // The figures of a slice come after what follows it.
    wait(&mut events, |event| {
        (inodes(&*reading(event)?) == [("a", Some(2))]).then_some(())
    });
    let asked = machine.dir.path().join("sys/fs/cgroup/own/memory.reclaim");
    assert_eq!(std::fs::read_to_string(asked).unwrap(), "400000");
}

#[test]
fn readings_come_by_themselves_and_figures_follow_what_pods_write() {
    let machine = Machine::new();
    machine.volume_file("a", "1");
    machine.volume_file("b", "1");
    let (mut handle, mut events) = machine.spawn();
    let first = wait(&mut events, reading);
    assert!(first.pods.is_empty());
    assert_eq!(
        machine.settings.file_systems().layout(),
        ImageFsLayout::Shared
    );
    let nodefs = first.nodefs.unwrap();
    assert!(nodefs.at_ns > 0 && nodefs.capacity_bytes > 0);
    assert_eq!(first.imagefs.unwrap().capacity_bytes, nodefs.capacity_bytes);

    handle.set_pods(vec![pod("b"), pod("a")]).unwrap();
    let both = [("a", Some(2)), ("b", Some(2))];
    wait(&mut events, |event| {
        (inodes(&*reading(event)?) == both).then_some(())
    });
    // Sooner or later the next cycle sees it, without being asked.
    machine.volume_file("a", "2");
    let more = [("a", Some(3)), ("b", Some(2))];
    wait(&mut events, |event| {
        (inodes(&*reading(event)?) == more).then_some(())
    });
    // A pod that has gone has no figures any more.
    handle.set_pods(vec![pod("b")]).unwrap();
    wait(&mut events, |event| {
        (inodes(&*reading(event)?) == [("b", Some(2))]).then_some(())
    });
    // Its threads give way to everything else on a busy machine.
    assert!(handle.stop_by(Instant::now() + Duration::from_secs(600)));
}

#[test]
fn a_ranking_measures_every_pod_again() {
    let mut machine = Machine::new();
    // No cycle ever comes again by itself.
    machine.settings.cycle = Duration::from_secs(100_000);
    let names: Vec<String> = (0..50).map(|index| format!("pod-{index:02}")).collect();
    for name in &names {
        machine.volume_file(name, "1");
    }
    let (handle, mut events) = machine.spawn();
    let pods = || names.iter().map(|name| pod(name)).collect();
    handle.set_pods(pods()).unwrap();
    wait(&mut events, |event| {
        (reading(event)?.pods.len() == names.len()).then_some(())
    });
    for round in 2..5 {
        for name in &names {
            machine.volume_file(name, &round.to_string());
        }
        handle.rank_now().unwrap();
        let reading = wait(&mut events, ranked);
        let wanted: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), Some(round + 1)))
            .collect();
        assert_eq!(inodes(&reading), wanted);
    }
    // A new pod is not made to wait for the next cycle.
    machine.volume_file("new", "1");
    let mut more: Vec<PodDirs> = pods();
    more.push(pod("new"));
    handle.set_pods(more).unwrap();
    wait(&mut events, |event| {
        inodes(&*reading(event)?)
            .contains(&("new", Some(2)))
            .then_some(())
    });
}

#[test]
fn a_ranking_without_pods_is_answered_too() {
    let (handle, mut events) = Machine::new().spawn();
    handle.rank_now().unwrap();
    assert!(wait(&mut events, ranked).pods.is_empty());
}

#[test]
fn freed_bytes_are_reported_and_a_dry_request_frees_nothing() {
    let machine = Machine::new();
    machine.volume_file("ended", "1");
    let file = machine
        .dir
        .path()
        .join("var/lib/kubelet/pods/ended/volumes/kubernetes.io~empty-dir/data/1");
    let (handle, mut events) = machine.spawn();
    for dry in [true, false] {
        handle
            .free(FreeRequest {
                dry,
                ended: [PodUid::from("ended")].into(),
                ..FreeRequest::default()
            })
            .unwrap();
        let (provider, said_dry, freed) = wait(&mut events, |event| match event {
            StorageEvent::Freed {
                provider,
                dry,
                freed,
            } if !freed.more => Some((provider, dry, freed)),
            _ => None,
        });
        assert_eq!((provider, said_dry), ("ended-pods", dry));
        assert_eq!((freed.items, freed.inodes), (1, 2));
        assert_eq!(file.exists(), dry);
    }
}

#[test]
fn every_directory_is_reported_with_the_way_it_was_measured() {
    let machine = Machine::new();
    machine.volume_file("a", "1");
    machine.write(
        "var/log/pods/default_name_a/app",
        "a file in the place of a directory",
    );
    let (handle, mut events) = machine.spawn();
    handle.set_pods(vec![pod("a")]).unwrap();
    let warning = wait(&mut events, |event| match event {
        StorageEvent::Warning(text) => Some(text),
        _ => None,
    });
    assert!(
        warning.ends_with("default_name_a/app: Not a directory (os error 20); not counted"),
        "{warning}"
    );
    handle.report().unwrap();
    let report = wait(&mut events, |event| match event {
        StorageEvent::Report(report) => Some(report),
        _ => None,
    });
    let ways: Vec<_> = report.iter().map(|directory| &directory.way).collect();
    assert!(
        matches!(
            ways[..],
            [
                usage::MeasuredBy::Failed(Errno::NOTDIR),
                usage::MeasuredBy::Walked(_)
            ]
        ),
        "{report:?}"
    );
}

/// Fails as a mistake in ours would.
struct Panics;

impl freeing::FreesDisk for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn free(&mut self, _: &FreeRequest, _: bool, _: u32) -> Result<Freed, freeing::FreeError> {
        panic!("on purpose")
    }
}

#[test]
fn a_panic_ends_one_request_and_the_loop_does_not_wait_for_it() {
    let machine = Machine::new();
    machine.volume_file("a", "1");
    let (handle, mut events) =
        Storage::spawn_with(machine.settings.clone(), vec![Box::new(Panics)]).unwrap();
    handle.free(FreeRequest::default()).unwrap();
    let ended = wait(&mut events, |event| match event {
        StorageEvent::Freed { freed, .. } => Some(freed),
        _ => None,
    });
    assert_eq!(ended, Freed::default());
    let warning = wait(&mut events, |event| match event {
        StorageEvent::Warning(text) => Some(text),
        _ => None,
    });
    assert!(warning.contains("a mistake in plimsoll"), "{warning}");
    handle.set_pods(vec![pod("a")]).unwrap();
    handle.rank_now().unwrap();
    let ranked = wait(&mut events, ranked);
    assert_eq!(inodes(&ranked), [("a", Some(2))], "both threads go on");
}

#[test]
fn a_file_system_that_cannot_be_read_is_said_once() {
    let mut machine = Machine::new();
    machine.settings.image_dir = Some(Path::new("/none").to_owned());
    let (handle, mut events) = machine.spawn();
    let mut warnings = Vec::new();
    let mut readings = 0;
    wait(&mut events, |event| {
        match event {
            StorageEvent::Warning(text) => {
                warnings.push(text.split(':').next().unwrap_or_default().to_owned());
            }
            StorageEvent::Reading(reading) => {
                assert_eq!(reading.imagefs, None);
                assert!(reading.nodefs.is_some());
                readings += 1;
            }
            _ => {}
        }
        (readings == 3).then_some(())
    });
    // Layers are where images are, unless told otherwise.
    assert_eq!(warnings, ["imagefs", "containerfs"]);
    assert_eq!(handle.events_dropped(), 0);
}

#[test]
fn a_loop_that_does_not_listen_loses_readings_and_nothing_else() {
    let machine = Machine::new();
    machine.volume_file("ended", "1");
    let (handle, mut events) = machine.spawn();
    while handle.events_dropped() == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    handle.rank_now().unwrap();
    handle.free(FreeRequest::default()).unwrap();
    std::thread::sleep(INTERVAL_MIN * 3);
    let (mut is_ranked, mut is_freed) = (false, false);
    wait(&mut events, |event| {
        is_ranked |= matches!(event, StorageEvent::Ranked(_));
        is_freed |= matches!(event, StorageEvent::Freed { .. });
        (is_ranked && is_freed).then_some(())
    });
}

#[test]
fn an_interval_is_held_in_its_bounds_and_a_shorter_one_counts_at_once() {
    let mut machine = Machine::new();
    machine.settings.interval = Duration::from_secs(3600);
    let (handle, mut events) = machine.spawn();
    assert_eq!(handle.shared.interval(), INTERVAL_MAX);
    wait(&mut events, reading);
    handle.set_interval(Duration::ZERO);
    assert_eq!(handle.shared.interval(), INTERVAL_MIN);
    wait(&mut events, reading);
    wait(&mut events, reading);
}

#[test]
fn orders_beyond_the_queue_are_refused() {
    let machine = Machine::new();
    let (handle, _events) = machine.spawn();
    // Ended threads take no orders any more, so the queue fills; or it is closed, which is no refusal.
    let (let_go, wait) = std::sync::mpsc::channel::<()>();
    let surveyor = WorkerThread::start("stuck", STACK_BYTES, 1, move |orders, _| {
        wait.recv().ok();
        drop(orders);
    });
    let reader = WorkerThread::start("idle", STACK_BYTES, 0, |queue, _| drop(queue));
    let full = StorageHandle {
        shared: Arc::clone(&handle.shared),
        reader: reader.unwrap(),
        surveyor: surveyor.unwrap(),
        runtime: None,
    };
    assert_eq!(full.rank_now(), Ok(()));
    assert_eq!(full.rank_now(), Err(Busy));
    drop(let_go);
}
