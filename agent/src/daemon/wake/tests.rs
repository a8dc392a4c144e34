use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use tokio::io::Interest;

use super::source::{Taken, Watched};
use super::*;

const FAR: Deadlines = Deadlines {
    sample_ns: u64::MAX,
    rescan_ns: u64::MAX,
    lifecycle_rest_ns: None,
    oom_kills_ns: None,
    last_line_kills_ns: None,
    last_line_ns: None,
    oom_scores_ns: None,
    storage_ns: None,
    kubelet_ns: None,
};
type Descriptor = (SourceName, fn(&mut Sources) -> &mut Source);
const DESCRIPTORS: [Descriptor; 8] = [
    (SourceName::CriticalRing, |it| &mut it.records),
    (SourceName::PsiTrigger, |it| &mut it.psi),
    (SourceName::StallTriggers, |it| &mut it.stalls),
    (SourceName::Usage, |it| &mut it.usage),
    (SourceName::PressureLevel, |it| &mut it.pressure_level),
    (SourceName::PodEvents, |it| &mut it.pod_events),
    (SourceName::LifecycleRing, |it| &mut it.lifecycle),
    (SourceName::CgroupWatch, |it| &mut it.cgroups),
];

fn watched(take: fn() -> Result<()>) -> (Watched, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let watched = Watched::new(ours.as_fd(), Interest::READABLE, take).unwrap();
    (watched, theirs)
}

/// It is lost once, in words, and then silent; what else there is goes on.
async fn is_lost_once(mut sources: Sources, name: SourceName, why: &str) {
    let mut stop = StopSignals::catch().unwrap();
    let wake = sources.next(&FAR, &mut stop, || {}).await;
    let Wake::Lost(lost) = wake else {
        panic!("{name:?}: {wake:?}");
    };
    assert_eq!(lost.name, name);
    let text = lost.to_string();
    for part in [name.name(), name.loss(), why, "restart plimsoll"] {
        assert!(!part.is_empty() && text.contains(part), "{part}: {text}");
    }
    sources.without(name);
    let soon = Deadlines {
        rescan_ns: 0,
        ..FAR
    };
    let wake = sources.next(&soon, &mut stop, || {}).await;
    assert!(matches!(wake, Wake::Deadline), "{name:?}: {wake:?}");
    let (works, mut other) = watched(|| Ok(()));
    other.write_all(b"x").unwrap();
    sources.snapshots = None;
    let source = if name == SourceName::CgroupWatch {
        &mut sources.psi
    } else {
        &mut sources.cgroups
    };
    source.watched = Some(works);
    let wake = sources.next(&FAR, &mut stop, || {}).await;
    assert!(
        matches!(wake, Wake::Cgroups | Wake::Sample(_)),
        "{name:?}: {wake:?}"
    );
}

#[tokio::test]
async fn a_descriptor_that_cannot_be_read_is_lost() {
    for (name, of) in DESCRIPTORS {
        let mut sources = Sources::none();
        let (broken, mut other) = watched(|| anyhow::bail!("it is broken"));
        other.write_all(b"x").unwrap();
        of(&mut sources).watched = Some(broken);
        is_lost_once(sources, name, "it is broken").await;
    }
}

#[tokio::test]
async fn a_descriptor_that_was_closed_is_lost() {
    for (name, of) in DESCRIPTORS {
        let mut sources = Sources::none();
        let (closed, other) = watched(|| Ok(()));
        drop(other);
        of(&mut sources).watched = Some(closed);
        is_lost_once(sources, name, "was closed").await;
    }
}

#[tokio::test]
async fn what_is_left_to_do_wakes_the_loop_without_the_descriptor() {
    let mut sources = Sources::none();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    // The second of three parts has no news: the third follows it without a wake.
    let mut left = 3;
    let in_parts = Watched::in_parts(ours.as_fd(), Interest::READABLE, move || {
        left -= 1;
        Ok(Taken {
            is_news: left != 1,
            has_more: left > 0,
        })
    });
    sources.cgroups.watched = Some(in_parts.unwrap());
    theirs.write_all(b"x").unwrap();
    let mut stop = StopSignals::catch().unwrap();
    for _ in 0..2 {
        let wake = sources.next(&FAR, &mut stop, || {}).await;
        assert!(matches!(wake, Wake::Cgroups), "{wake:?}");
    }
    let soon = Deadlines {
        rescan_ns: 0,
        ..FAR
    };
    let wake = sources.next(&soon, &mut stop, || {}).await;
    assert!(matches!(wake, Wake::Deadline), "{wake:?}");
}

#[tokio::test]
async fn a_thread_that_has_ended_is_lost() {
    type Channel = (SourceName, fn(&mut Sources));
    let channels: [Channel; 9] = [
        (SourceName::Manifests, |it| {
            it.manifests = Some(mpsc::channel(1).1);
        }),
        (SourceName::Cluster, |it| {
            it.watch_cluster(mpsc::channel(1).1)
        }),
        (SourceName::Nri, |it| it.watch_nri(mpsc::channel(1).1)),
        (SourceName::Devices, |it| {
            it.watch_devices(mpsc::channel(1).1)
        }),
        (SourceName::Storage, |it| it.watch_disks(mpsc::channel(1).1)),
        (SourceName::Remedies, |it| {
            it.watch_remedies(mpsc::channel(1).1);
        }),
        (SourceName::Placement, |it| {
            it.watch_placement(mpsc::channel(1).1);
        }),
        (SourceName::CpuTime, |it| {
            it.watch_cpu_time(mpsc::channel(1).1);
        }),
        (SourceName::Snapshots, |it| {
            it.give_snapshots_to(mpsc::channel(1).1);
        }),
    ];
    for (name, end) in channels {
        let mut sources = Sources::none();
        end(&mut sources);
        is_lost_once(sources, name, "has ended").await;
    }
}
