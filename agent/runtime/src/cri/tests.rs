use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prost::Message as _;

use super::*;
use crate::tests::stand_in::{Answer, StandIn, container, image, node, sound};

fn pinned(inventory: &Inventory) -> Vec<bool> {
    let images = inventory.images.iter();
    images.map(|image| image.is_pinned).collect()
}

#[tokio::test]
async fn containers_and_images_are_read_with_what_pins_and_names_them() {
    let stand_in = StandIn::start(|path, _| node(path));
    let runtime = Runtime::open(stand_in.socket()).await.unwrap();
    assert_eq!(runtime.version().api, "v1");
    let inventory = runtime.inventory().await.unwrap();
    assert_eq!(inventory.left_out, 0);
    let [running, dead] = &inventory.containers[..] else {
        panic!("{inventory:?}");
    };
    assert_eq!(
        (
            &*running.namespace,
            &*running.pod,
            &*running.name,
            running.state
        ),
        ("default", "web", "app", ContainerState::Running)
    );
    assert!(running.is_sandbox_ready);
    assert_eq!(running.writable_layer.unwrap().bytes, Some(4096));
    assert_eq!(
        (dead.state, dead.finished_unix_ns),
        (ContainerState::Exited, Some(7_000_000_000))
    );
    assert_eq!(pinned(&inventory), [false, false, true]);
}

#[tokio::test]
async fn an_image_that_a_container_has_as_a_volume_is_in_use_and_each_is_asked_once() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let stand_in = StandIn::start(
        move |path, request| match path.rsplit('/').next().unwrap() {
            "ContainerStatus" => {
                count.fetch_add(1, Ordering::Relaxed);
                let request = ContainerStatusRequest::decode(request).unwrap();
                let mount = |image: &str| messages::Mount {
                    image: Some(ImageSpec {
                        image: image.to_owned(),
                        ..ImageSpec::default()
                    }),
                    ..Default::default()
                };
                // The dead one has it too, by name; the first has a directory beside it.
                let mounts = match &*request.container_id {
                    "1" => vec![mount("b"), messages::Mount::default()],
                    _ => vec![mount("app:1")],
                };
                sound(&messages::ContainerStatusResponse {
                    status: Some(messages::ContainerStatus {
                        finished_at: 7_000_000_000,
                        mounts,
                        ..Default::default()
                    }),
                    ..Default::default()
                })
            }
            _ => node(path),
        },
    );
    let runtime = Runtime::open(stand_in.socket()).await.unwrap();
    for _ in 0..3 {
        let inventory = runtime.inventory().await.unwrap();
        let mounted = inventory.images.iter().map(|image| image.is_mounted);
        assert_eq!(mounted.collect::<Vec<_>>(), [true, true, false]);
        let finished = inventory.containers.iter();
        let finished: Vec<_> = finished.map(|one| one.finished_unix_ns).collect();
        assert_eq!(finished, [None, Some(7_000_000_000)]);
        assert_eq!(inventory.mounts_unread, 0);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_container_without_a_status_is_counted() {
    for (answer, unread) in [
        (Answer::Refuses(13), 2),
        (Answer::Nonsense, 2),
        // It has gone since it was listed.
        (Answer::Refuses(5), 0),
    ] {
        let stand_in = StandIn::start(move |path, _| match path.ends_with("/ContainerStatus") {
            true => answer.clone(),
            false => node(path),
        });
        let runtime = Runtime::open(stand_in.socket()).await.unwrap();
        for _ in 0..2 {
            let inventory = runtime.inventory().await.unwrap();
            assert_eq!(inventory.containers.len(), 2);
            assert_eq!(inventory.mounts_unread, unread);
        }
    }
}

/// Its list has these containers, and for those whose number is in `hung` there is no status.
fn many(containers: usize, hung: Arc<Mutex<BTreeSet<usize>>>) -> StandIn {
    StandIn::start(
        move |path, request| match path.rsplit('/').next().unwrap() {
            "ListContainers" => sound(&messages::ListContainersResponse {
                containers: (0..containers)
                    .map(|number| container(&number.to_string(), 1))
                    .collect(),
            }),
            "ContainerStatus" => {
                let request = ContainerStatusRequest::decode(request).unwrap();
                match hung
                    .lock()
                    .unwrap()
                    .contains(&request.container_id.parse().unwrap())
                {
                    true => Answer::Hangs,
                    false => node(path),
                }
            }
            _ => node(path),
        },
    )
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_status_hangs_costs_no_other_one_its_own() {
    let hung = Arc::new(Mutex::new(BTreeSet::from([1])));
    let stand_in = many(4, Arc::clone(&hung));
    let runtime = Runtime::open(stand_in.socket()).await.unwrap();
    let inventory = runtime.inventory().await.unwrap();
    assert_eq!(
        (inventory.containers.len(), inventory.mounts_unread),
        (4, 1)
    );
    hung.lock().unwrap().clear();
    assert_eq!(runtime.inventory().await.unwrap().mounts_unread, 0);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_has_no_time_for_all_statuses_goes_on_in_the_next() {
    let hung = Arc::new(Mutex::new((3..20).collect::<BTreeSet<_>>()));
    let stand_in = many(20, Arc::clone(&hung));
    let runtime = Runtime::open(stand_in.socket()).await.unwrap();
    let began = Instant::now();
    let inventory = runtime.inventory().await.unwrap();
    assert_eq!(
        (inventory.containers.len(), inventory.mounts_unread),
        (20, 17)
    );
    assert!(
        began.elapsed() < STATUSES_WITHIN + 2 * STATUS_WITHIN,
        "{:?}",
        began.elapsed()
    );
    // Those that were read are known, also where all others hang.
    *hung.lock().unwrap() = (0..19).collect();
    let unread = runtime.inventory().await.unwrap().mounts_unread;
    assert_eq!(unread, 17);
    hung.lock().unwrap().clear();
    assert_eq!(runtime.inventory().await.unwrap().mounts_unread, 0);
}

#[tokio::test]
async fn without_an_answer_the_image_of_sandboxes_is_what_it_was_and_no_list_before_there_was_one()
{
    let refuses = Arc::new(AtomicUsize::new(1));
    let now = Arc::clone(&refuses);
    let stand_in = StandIn::start(move |path, _| {
        match path.ends_with("/Status") && now.load(Ordering::Relaxed) == 1 {
            true => Answer::Refuses(14),
            false => node(path),
        }
    });
    let runtime = Runtime::open(stand_in.socket()).await.unwrap();
    let error = runtime.inventory().await.unwrap_err().to_string();
    assert!(error.starts_with("Status: Unavailable"), "{error}");
    for refused in [0, 1] {
        refuses.store(refused, Ordering::Relaxed);
        let inventory = runtime.inventory().await.unwrap();
        assert_eq!(
            pinned(&inventory),
            [false, false, true],
            "refused: {refused}"
        );
    }
}

#[tokio::test]
async fn a_runtime_that_does_not_know_its_configuration_has_no_image_of_sandboxes() {
    let stand_in = StandIn::start(|path, _| match path.ends_with("/Status") {
        true => Answer::Refuses(12),
        false => node(path),
    });
    let runtime = Runtime::open(stand_in.socket()).await.unwrap();
    let inventory = runtime.inventory().await.unwrap();
    assert!(inventory.images.iter().all(|image| !image.is_pinned));
}

#[tokio::test]
async fn a_name_of_the_sandboxes_image_that_the_list_does_not_have_tells_nothing() {
    let stand_in = StandIn::start(|path, _| match path.rsplit('/').next().unwrap() {
        "Status" => {
            let config = r#"{"sandboxImage": "registry.example/pause:3.9@sha256:aa"}"#;
            let info = [("config".to_owned(), config.to_owned())].into();
            sound(&messages::StatusResponse {
                info,
                ..Default::default()
            })
        }
        "ListImages" => sound(&messages::ListImagesResponse {
            images: vec![
                image("a", "registry.example/pause:3.9"),
                image("b", "app:1"),
            ],
        }),
        _ => node(path),
    });
    let runtime = Runtime::open(stand_in.socket()).await.unwrap();
    let inventory = runtime.inventory().await.unwrap();
    assert_eq!(pinned(&inventory), [true, false]);
}

#[tokio::test]
async fn an_older_runtime_is_asked_by_the_older_name() {
    let stand_in = StandIn::start(|path, _| match path.starts_with("/runtime.v1alpha2.") {
        true => node(path),
        false => Answer::Refuses(12),
    });
    let runtime = Runtime::open(stand_in.socket()).await.unwrap();
    assert_eq!(runtime.version().api, "v1alpha2");
    assert_eq!(runtime.inventory().await.unwrap().containers.len(), 2);
}

#[tokio::test]
async fn what_is_wrong_is_said_and_nothing_is_made_of_it() {
    let answers: [(Answer, &str); 4] = [
        (Answer::Refuses(13), "ListContainers: Internal"),
        (Answer::Nonsense, "ListContainers: "),
        (Answer::CutOff, "ListContainers: "),
        (
            Answer::Huge(ANSWER_BYTES_MAX + 1),
            "ListContainers: OutOfRange",
        ),
    ];
    for (answer, expected) in answers {
        let stand_in = StandIn::start(move |path, _| match path.ends_with("/ListContainers") {
            true => answer.clone(),
            false => node(path),
        });
        let runtime = Runtime::open(stand_in.socket()).await.unwrap();
        let error = runtime.inventory().await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let none = Runtime::open(Path::new("/nowhere/x.sock"))
        .await
        .unwrap_err();
    assert!(none.to_string().contains("No such file"), "{none}");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_hangs_is_waited_for_ten_seconds() {
    let stand_in = StandIn::start(|path, _| match path.ends_with("/ListImages") {
        true => Answer::Hangs,
        false => node(path),
    });
    let runtime = Runtime::open(stand_in.socket()).await.unwrap();
    let error = runtime.inventory().await.unwrap_err();
    assert_eq!(
        error,
        CallError::Late {
            call: "ListImages",
            seconds: 10
        }
    );
}

#[tokio::test]
async fn entries_that_cannot_be_read_are_counted() {
    let stand_in = StandIn::start(|path, _| match path.rsplit('/').next().unwrap() {
        "ListContainers" => {
            let mut nameless = container("", 1);
            nameless.id.clear();
            let mut long = container("3", 1);
            long.image_ref = "x".repeat(TEXT_BYTES_MAX + 1);
            sound(&messages::ListContainersResponse {
                containers: vec![nameless, long, container("4", 1)],
            })
        }
        "ListImages" => {
            let named = |id: &str, last: &str| {
                let mut many = image(id, "x");
                many.repo_digests = vec!["y".to_owned(); NAMES_MAX];
                many.repo_digests.push(last.to_owned());
                many
            };
            let mut nameless = image("b", "x");
            nameless.id.clear();
            let images = vec![named("a", "app:1"), named("c", "z"), nameless];
            sound(&messages::ListImagesResponse { images })
        }
        _ => node(path),
    });
    let runtime = Runtime::open(stand_in.socket()).await.unwrap();
    let inventory = runtime.inventory().await.unwrap();
    assert_eq!((inventory.containers.len(), inventory.left_out), (1, 2));
    assert_eq!((inventory.images.len(), inventory.images_left_out), (2, 1));
    // Those with many names are there, and what a container uses by a name that is left out stays.
    let many = inventory.images.iter();
    let many: Vec<_> = many
        .map(|image| (image.names.len(), image.is_pinned))
        .collect();
    assert_eq!(many, [(NAMES_MAX, true), (NAMES_MAX, false)]);
}

#[tokio::test]
async fn only_a_container_that_has_ended_is_removed_and_what_is_gone_is_no_error() {
    let removed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&removed);
    let state = Arc::new(AtomicUsize::new(1));
    let now = Arc::clone(&state);
    let stand_in = StandIn::start(move |path, _| match path.rsplit('/').next().unwrap() {
        "ContainerStatus" => sound(&messages::ContainerStatusResponse {
            status: Some(messages::ContainerStatus {
                state: i32::try_from(now.load(Ordering::Relaxed)).unwrap(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        "RemoveContainer" => {
            count.fetch_add(1, Ordering::Relaxed);
            node(path)
        }
        "RemoveImage" => Answer::Refuses(5),
        _ => node(path),
    });
    let runtime = Runtime::open(stand_in.socket()).await.unwrap();
    let dead = Removal::Container("1".to_owned());
    let error = runtime.remove(&dead).await.unwrap_err().to_string();
    assert!(error.contains("has not ended"), "{error}");
    assert_eq!(removed.load(Ordering::Relaxed), 0);
    state.store(2, Ordering::Relaxed);
    runtime.remove(&dead).await.unwrap();
    assert_eq!(removed.load(Ordering::Relaxed), 1);
    runtime
        .remove(&Removal::Image("gone".to_owned()))
        .await
        .unwrap();
}

#[test]
fn an_image_for_sandboxes_is_known_by_its_name_where_the_runtime_does_not_name_it() {
    for (name, is) in [
        ("registry.example/pause:3.9", true),
        ("pause@sha256:aa", true),
        ("pause", true),
        ("example.com/pause/app:1", false),
        ("example.com:5000/pauser:1", false),
    ] {
        let pinned = |sandbox_image| {
            let none = BTreeSet::new();
            let listed = with_all_names(image("a", name));
            bounded(listed, sandbox_image, &none, &none)
                .unwrap()
                .is_pinned
        };
        assert_eq!(pinned(None), is, "{name}");
        // Anybody can have an image of that name.
        assert!(!pinned(Some("registry.example/sandbox:1")), "{name}");
        assert!(pinned(Some(name)), "{name}");
    }
}
