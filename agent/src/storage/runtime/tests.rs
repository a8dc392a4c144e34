use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use plimsoll_core::model::config::EngineConfig;
use plimsoll_core::model::signal::{Operator, Signal};
use plimsoll_core::model::threshold::{self, ThresholdSettings};
use plimsoll_core::protocol::runtime_link::{
    ContainerState, FRAMING, FromRuntime, LayerUse, PROTOCOL, RuntimeContainer, RuntimeImage,
    ToRuntime,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tokio::sync::mpsc;

use super::connection::{Connection, Failure};
use super::*;
use crate::notes;
use crate::storage::filesystem::KubeletRoot;

const S: u64 = 1_000_000_000;

fn send(stream: &mut UnixStream, message: &FromRuntime) {
    let json = serde_json::to_vec(message).unwrap();
    let length = u32::try_from(json.len()).unwrap();
    // The agent may have gone.
    let _gone = stream.write_all(&[&length.to_le_bytes(), &json[..]].concat());
}

fn hear(stream: &mut UnixStream) -> Option<ToRuntime> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; usize::try_from(u32::from_le_bytes(length)).unwrap()];
    stream.read_exact(&mut frame).ok()?;
    serde_json::from_slice(&frame).ok()
}

/// A runtime whose other end is `serves`; and how often it was started.
fn served_by(serves: impl Fn(UnixStream) + Send + Sync + 'static) -> (Runtime, Arc<Mutex<u32>>) {
    let (serves, starts) = (Arc::new(serves), Arc::new(Mutex::new(0)));
    let counted = Arc::clone(&starts);
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let runtime = Runtime::started_by(Box::new(move || {
        *counted.lock().unwrap() += 1;
        let (stream, theirs) = UnixStream::pair()?;
        let serves = Arc::clone(&serves);
        threads.push(std::thread::spawn(move || serves(theirs)));
        Ok(Connection {
            stream,
            process: None,
        })
    }));
    (runtime, starts)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn an_answer_that_is_none_ends_the_program_and_it_is_not_started_again_at_once() {
    let hello = |stream: &mut UnixStream| send(stream, &FromRuntime::Hello { protocol: PROTOCOL });
    type Serves = Box<dyn Fn(UnixStream) + Send + Sync>;
    let cases: [(&str, Serves); 6] = [
        ("has ended", Box::new(drop)),
        (
            "has ended",
            Box::new(move |mut stream| {
                hello(&mut stream);
                hear(&mut stream);
                // Half a frame.
                let _gone = stream.write_all(&[100, 0, 0, 0, b'{']);
            }),
        ),
        (
            "protocol 9",
            Box::new(|mut stream| send(&mut stream, &FromRuntime::Hello { protocol: 9 })),
        ),
        (
            "announced",
            Box::new(move |mut stream| {
                hello(&mut stream);
                hear(&mut stream);
                let _gone = stream.write_all(&u32::MAX.to_le_bytes());
                hear(&mut stream);
            }),
        ),
        (
            "no frame",
            Box::new(move |mut stream| {
                hello(&mut stream);
                hear(&mut stream);
                // Of another question.
                send(&mut stream, &FromRuntime::Removed { number: 99 });
                hear(&mut stream);
            }),
        ),
        (
            "no frame",
            Box::new(move |mut stream| {
                hello(&mut stream);
                hear(&mut stream);
                let text = vec![b'['; FRAMING.bytes_max];
                let length = u32::try_from(text.len()).unwrap();
                let _gone = stream.write_all(&[&length.to_le_bytes(), &text[..]].concat());
                hear(&mut stream);
            }),
        ),
    ];
    for (expected, serves) in cases {
        let (mut runtime, starts) = served_by(serves);
        let why = runtime.list(soon()).unwrap_err();
        assert!(why.contains(expected), "{expected}: {why}");
        // The reason stands until it is tried again.
        assert_eq!(runtime.list(soon()).unwrap_err(), why);
        assert_eq!(*starts.lock().unwrap(), 1);
    }
}

#[test]
fn one_that_does_not_answer_is_ended_when_its_time_is_over() {
    let (mut runtime, _) = served_by(|mut stream| while hear(&mut stream).is_some() {});
    let until = Instant::now() + Duration::from_millis(50);
    let why = runtime.list(until).unwrap_err();
    assert!(why.contains("not answered in time"), "{why}");
    assert!(Instant::now() >= until);
}

#[test]
fn a_program_that_is_not_there_is_said_with_its_place() {
    let mut runtime = Runtime::new(RuntimeSettings {
        socket: "/nowhere/x.sock".into(),
        program: "/nowhere/plimsoll-runtime".into(),
    });
    let why = runtime.list(soon()).unwrap_err();
    assert!(
        why.starts_with("cannot start /nowhere/plimsoll-runtime: No such file"),
        "{why}"
    );
}

/// How a runtime answers a removal.
#[derive(Clone, Copy, Default)]
struct Removes {
    /// What it does not remove.
    keeps: &'static str,
    /// It answers first, and then it removes: half of it at a time.
    later: bool,
    /// It says that it was not done in time, and does it all the same.
    is_late: bool,
}

/// So long after its answer, longer than [`SETTLE`], and again before the second half.
const LATER: Duration = Duration::from_millis(800);

fn remove_later(file: std::path::PathBuf) {
    std::thread::spawn(move || {
        let half = std::fs::metadata(&file).unwrap().len() / 2;
        std::thread::sleep(LATER);
        let opened = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
        opened.set_len(half).unwrap();
        std::thread::sleep(LATER);
        std::fs::remove_file(file).unwrap();
    });
}

/// A runtime whose images and containers are files of one size in a directory.
fn serve_files(dir: &Path, removes: Removes, mut questions: u32, mut stream: UnixStream) {
    let exists = |name: &str| dir.join(name).exists();
    let image = |id: &str| RuntimeImage {
        id: id.to_owned(),
        names: Vec::new(),
        // A little more than ever comes of it.
        bytes: (2 << 20) + 4096,
        is_pinned: id == "pinned",
        is_mounted: false,
    };
    let container = RuntimeContainer {
        id: "dead".to_owned(),
        name: "app".to_owned(),
        pod: "p".to_owned(),
        namespace: "n".to_owned(),
        pod_uid: "u".to_owned(),
        sandbox: "s".to_owned(),
        is_sandbox_ready: false,
        state: ContainerState::Exited,
        created_unix_ns: 0,
        finished_unix_ns: Some(S),
        images: vec!["used".to_owned()],
        // So that what comes of it is waited for before an image goes, however late.
        writable_layer: Some(LayerUse {
            bytes: Some(2 << 20),
            ..LayerUse::default()
        }),
    };
    send(&mut stream, &FromRuntime::Hello { protocol: PROTOCOL });
    while questions > 0
        && let Some(question) = hear(&mut stream)
    {
        questions -= 1;
        match question {
            ToRuntime::Directories { number } => {
                let directories = RuntimeDirectories {
                    images: dir.to_str().map(str::to_owned),
                    containers: None,
                };
                let listed = FromRuntime::Listed {
                    number,
                    unix_ns: 0,
                    left_out: 0,
                    images_left_out: 0,
                    mounts_unread: 0,
                    directories,
                };
                send(&mut stream, &listed);
            }
            ToRuntime::List { number } => {
                if exists("dead") {
                    let container = Box::new(container.clone());
                    send(&mut stream, &FromRuntime::Container { container });
                }
                let ids = ["pinned", "a", "b", "c", "d"];
                for id in ids.into_iter().filter(|id| exists(id)) {
                    let image = Box::new(image(id));
                    send(&mut stream, &FromRuntime::Image { image });
                }
                let unix_ns = 1_000 * S;
                send(
                    &mut stream,
                    &FromRuntime::Listed {
                        number,
                        unix_ns,
                        left_out: 0,
                        images_left_out: 0,
                        mounts_unread: 0,
                        directories: RuntimeDirectories::default(),
                    },
                );
            }
            ToRuntime::Remove { number, removal } => {
                let (Removal::Container(id) | Removal::Image(id)) = removal;
                let failed = |why: &str, is_late| FromRuntime::Failed {
                    number,
                    why: why.to_owned(),
                    is_late,
                };
                if id == removes.keeps {
                    send(&mut stream, &failed("in use", false));
                } else if removes.is_late {
                    send(&mut stream, &failed("no answer within 20 s", true));
                    remove_later(dir.join(id));
                } else if removes.later {
                    send(&mut stream, &FromRuntime::Removed { number });
                    remove_later(dir.join(id));
                } else {
                    std::fs::remove_file(dir.join(id)).unwrap();
                    send(&mut stream, &FromRuntime::Removed { number });
                }
            }
        }
    }
}

fn targets(available: &str) -> Targets {
    let settings = ThresholdSettings {
        hard: [("imagefs.available".to_owned(), available.to_owned())].into(),
        ..ThresholdSettings::default()
    };
    let thresholds = threshold::parse(&settings).unwrap();
    assert_eq!(
        (thresholds[0].signal, thresholds[0].operator),
        (Signal::ImagefsAvailable, Operator::LessThan)
    );
    Targets::of(&EngineConfig {
        thresholds,
        ..EngineConfig::default()
    })
}

/// Frees until so much is available on a file system of 16 MiB with seven files of 2 MiB; what is left, and what was
/// said.
fn after_freeing(
    available: &str,
    keeps: &'static str,
) -> Option<(Vec<String>, Freed, Option<String>)> {
    let removes = Removes {
        keeps,
        ..Removes::default()
    };
    freed_by(available, removes, u32::MAX)
}

/// The same, and the first program ends after so many questions.
fn freed_by(
    available: &str,
    removes: Removes,
    questions: u32,
) -> Option<(Vec<String>, Freed, Option<String>)> {
    let dir = tempfile::tempdir().unwrap();
    match mount(
        "tmpfs",
        dir.path(),
        "tmpfs",
        MountFlags::empty(),
        c"size=16m",
    ) {
        Err(error @ (Errno::PERM | Errno::ACCESS)) => {
            notes::left_out(format_args!("mount: {error}"));
            return None;
        }
        result => result.unwrap(),
    }
    for name in ["dead", "pinned", "a", "b", "c", "d", "other"] {
        std::fs::write(dir.path().join(name), vec![1; 2 << 20]).unwrap();
    }
    let served = dir.path().to_owned();
    let lives = Mutex::new(vec![u32::MAX, questions]);
    let (runtime, _) = served_by(move |stream| {
        let questions = lives.lock().unwrap().pop().unwrap_or(0);
        serve_files(&served, removes, questions, stream);
    });
    let file_systems = FileSystems {
        nodefs: dir.path().to_owned(),
        imagefs: dir.path().to_owned(),
        containerfs: dir.path().to_owned(),
        root: KubeletRoot::Unused,
    };
    let (events, mut received) = mpsc::channel(4);
    let mut space = RuntimeSpace::with(runtime, file_systems, events);
    if removes.later {
        // It comes, however busy the machine is.
        space.shows_within = Duration::from_secs(60);
    }
    space.look().unwrap();
    space.take(&FreeOrder {
        sources: vec![FreeSource::EndedContainers, FreeSource::UnusedImages],
        targets: targets(available),
        until: soon(),
    });
    drop(space);
    let (mut freed, mut said) = (None, None);
    while let Ok(event) = received.try_recv() {
        match event {
            StorageEvent::Freed { freed: all, .. } => freed = Some(all),
            StorageEvent::Warning(text) => said = Some(text),
            other => panic!("{other:?}"),
        }
    }
    let names = std::fs::read_dir(dir.path()).unwrap();
    let mut left: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    unmount(dir.path(), UnmountFlags::DETACH).unwrap();
    Some((left, freed.unwrap(), said))
}

#[test]
fn where_images_are_is_asked_without_a_list() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().to_owned();
    let (mut runtime, _) =
        served_by(move |stream| serve_files(&served, Removes::default(), 1, stream));
    let directories = runtime.directories(soon()).unwrap();
    assert_eq!(directories.images.as_deref(), dir.path().to_str());
    assert!(runtime.directories(soon()).is_err(), "it has ended");
}

#[test]
fn so_much_is_removed_as_is_needed_and_no_more() {
    // 2 MiB are free.
    let Some((left, freed, said)) = after_freeing("7Mi", "") else {
        return;
    };
    assert_eq!(left, ["c", "d", "other", "pinned"]);
    assert_eq!((freed.containers, freed.images), (1, 2));
    assert_eq!((freed.bytes, said), (6 << 20, None));
    let (left, freed, _) = after_freeing("1Mi", "").unwrap();
    assert_eq!((left.len(), freed), (7, Freed::default()));
    // Not enough is there: what may go goes, and the rest stays.
    let (left, freed, _) = after_freeing("15Mi", "").unwrap();
    assert_eq!(
        (left, freed.images),
        (vec!["other".to_owned(), "pinned".to_owned()], 4)
    );
}

#[test]
fn what_the_runtime_does_not_remove_is_passed_over_and_said() {
    let Some((left, freed, said)) = after_freeing("7Mi", "a") else {
        return;
    };
    assert_eq!(left, ["a", "d", "other", "pinned"]);
    assert_eq!((freed.containers, freed.images), (1, 2));
    assert!(said.unwrap().contains("in use"));
}

#[test]
fn space_that_comes_late_is_waited_for_before_anything_else_goes() {
    // 2 MiB are free: the container and one image are enough, or the container alone, which the runtime has not removed
    // in time.
    let later = |available: &str, is_late: bool| {
        let removes = Removes {
            later: true,
            is_late,
            ..Removes::default()
        };
        freed_by(available, removes, u32::MAX)
    };
    let Some((left, freed, said)) = later("6Mi", false) else {
        return;
    };
    assert_eq!(left, ["b", "c", "d", "other", "pinned"]);
    assert_eq!((freed.bytes, freed.images, said), (4 << 20, 1, None));
    let (left, freed, said) = later("4Mi", true).unwrap();
    assert_eq!(left.len(), 6, "{left:?}");
    assert_eq!((freed.bytes, freed.containers), (2 << 20, 1));
    assert!(said.unwrap().contains("no answer within 20 s"));
}

#[test]
fn a_program_that_ends_once_is_started_again_for_the_same_order() {
    // It is asked for a list; for a list, and to remove the container; for a list, and to remove an image.
    for questions in 1..6 {
        let Some((left, _, said)) = freed_by("7Mi", Removes::default(), questions) else {
            return;
        };
        // What it was removing when it ended is not tried again at once.
        let gone = ["dead", "a", "b", "c"];
        let count = gone
            .iter()
            .filter(|name| !left.contains(&(**name).to_owned()))
            .count();
        assert_eq!((left.len(), count), (4, 3), "{questions}: {left:?}");
        let said = said.is_some_and(|text| text.contains("has ended"));
        assert!(said, "{questions}");
    }
}

#[test]
fn an_order_is_answered_whatever_the_runtime_does() {
    let (runtime, _) = served_by(drop);
    let file_systems = FileSystems {
        nodefs: "/".into(),
        imagefs: "/".into(),
        containerfs: "/".into(),
        root: KubeletRoot::Unused,
    };
    let (events, mut received) = mpsc::channel(4);
    let mut space = RuntimeSpace::with(runtime, file_systems, events);
    for _ in 0..2 {
        space.take(&FreeOrder {
            sources: vec![FreeSource::UnusedImages],
            targets: targets("1000Ti"),
            until: soon(),
        });
    }
    drop(space);
    let mut kinds = Vec::new();
    while let Ok(event) = received.try_recv() {
        kinds.push(match event {
            StorageEvent::Warning(text) => text.contains("plimsoll-runtime has ended"),
            StorageEvent::Freed { freed, .. } => {
                assert_eq!(freed, Freed::default());
                false
            }
            other => panic!("{other:?}"),
        });
    }
    // The reason is said once.
    assert_eq!(kinds, [true, false, false]);
    assert_eq!(String::from(Failure::Refused("x".to_owned())), "x");
}
