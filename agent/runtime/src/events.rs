//! Containers that start and end, as the runtime tells of them (`GetContainerEvents`).
//!
//! **Problem.** The API server has a container's id a second after its start, and without that the agent does not know
//! which container a cgroup is. **Approach.** One call, whose answer goes on: each event has the pod and its
//! containers. Containers that run by then are listed once. Only containerd from 2.0 on is asked: it sends each event
//! to every listener. Before, it knows no such call, or has one queue for all, as CRI-O does: what we took the kubelet
//! would not get.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use plimsoll_core::protocol::runtime_link::{FromNri, TEXT_BYTES_MAX};
use tokio::time::Instant;
use tonic::Streaming;

use crate::connection::CallError;
use crate::cri::{Runtime, Version};
use crate::frames::cut;
use crate::interface::cri::{ContainerEventResponse, ContainerEventType};
use crate::outbox::Outbox;
use crate::reconnect::Reconnect;

/// The only runtime that is asked, and from which version on.
const RUNTIME: &str = "containerd";
const MAJOR_MIN: u32 = 2;
/// The first pause after a connection that has ended, and the longest, after so many that ended soon. One that is too
/// old may be upgraded.
const AGAIN: Reconnect = Reconnect::new(Duration::from_secs(1), Duration::from_secs(60));

/// Why the runtime does not tell.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("{} {} is not asked for its events: only {RUNTIME} from {MAJOR_MIN}.0 on sends each to everybody who listens", .0.name, .0.version)]
    TooOld(Version),
    #[error("GetContainerEvents: {0}")]
    Events(String),
    #[error("the runtime has ended the list of its events")]
    Closed,
}

/// Tells of containers, and asks again each time that the answer has ended.
pub(crate) async fn follow(socket: &Path, outbox: &Outbox) -> Infallible {
    let (mut again, mut said) = (AGAIN, None);
    loop {
        let began = Instant::now();
        let ended = match listen(socket, outbox, &mut said).await {
            Err(ended) => ended,
            Ok(never) => match never {},
        };
        let why = cut(&ended.to_string());
        say(outbox, &mut said, Some(why));
        let is_away = matches!(ended, Ended::Call(CallError::Connect { .. }));
        let pause = again.pause(is_away, Some(began.elapsed()));
        tokio::time::sleep(pause).await;
    }
}

/// Said when it is another than before.
fn say(outbox: &Outbox, said: &mut Option<Option<String>>, away: Option<String>) {
    if said.as_ref() != Some(&away) {
        outbox.container(FromNri::Events { away: away.clone() });
        *said = Some(away);
    }
}

async fn listen(
    socket: &Path,
    outbox: &Outbox,
    said: &mut Option<Option<String>>,
) -> Result<Infallible, Ended> {
    let runtime = Runtime::open(socket).await?;
    let version = runtime.version();
    if !is_asked(version) {
        return Err(Ended::TooOld(version.clone()));
    }
    let mut events: Streaming<ContainerEventResponse> = runtime.events().await?;
    say(outbox, said, None);
    // From here on nothing is missed: those that were started before are named now.
    for [pod_uid, name, id] in runtime.running().await? {
        outbox
            .container_in_turn(FromNri::Started { pod_uid, name, id })
            .await;
    }
    loop {
        let event = events.message().await;
        let event = event.map_err(|status| Ended::Events(status.message().to_owned()))?;
        let event = event.ok_or(Ended::Closed)?;
        if let Some(frame) = read(event) {
            outbox.container(frame);
        }
    }
}

fn is_asked(version: &Version) -> bool {
    let number = version.version.trim_start_matches('v');
    let major = number
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    version.name == RUNTIME
        && version.api == "v1"
        && major.is_some_and(|major: u32| major >= MAJOR_MIN)
}

/// `None`: it is about a sandbox, or has no pod or a text that is too long.
fn read(event: ContainerEventResponse) -> Option<FromNri> {
    let pod_uid = event.pod_sandbox_status.clone()?.metadata?.uid;
    let is_short = |text: &str| !text.is_empty() && text.len() <= TEXT_BYTES_MAX;
    match event.container_event_type() {
        _ if !is_short(&pod_uid) => None,
        ContainerEventType::ContainerCreatedEvent | ContainerEventType::ContainerStartedEvent => {
            let id = event.container_id;
            let mut containers = event.containers_statuses.into_iter();
            let name = containers.find(|one| one.id == id)?.metadata?.name;
            (is_short(&id) && is_short(&name)).then_some(FromNri::Started { pod_uid, name, id })
        }
        ContainerEventType::ContainerStoppedEvent => Some(FromNri::Ended { pod_uid }),
        ContainerEventType::ContainerDeletedEvent => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::interface::cri::{
        ContainerMetadata, ContainerStatus, PodSandboxMetadata, PodSandboxStatus, VersionResponse,
    };
    use crate::outbox::FRAMES_MAX;
    use crate::tests::stand_in::{StandIn, node, sound};

    fn version(name: &str, version: &str, api: &'static str) -> Version {
        Version {
            name: name.to_owned(),
            version: version.to_owned(),
            api,
        }
    }

    #[test]
    fn only_a_runtime_that_sends_each_event_to_all_is_asked() {
        for (name, number, api, expected) in [
            ("containerd", "v2.1.9", "v1", true),
            ("containerd", "2.0.0-rc.1", "v1", true),
            ("containerd", "1.7.27", "v1", false),
            ("containerd", "v2.1.9", "v1alpha2", false),
            ("containerd", "unknown", "v1", false),
            ("cri-o", "2.34.0", "v1", false),
        ] {
            assert_eq!(
                is_asked(&version(name, number, api)),
                expected,
                "{name} {number}"
            );
        }
    }

    fn event(kind: ContainerEventType, id: &str, names: &[(&str, &str)]) -> ContainerEventResponse {
        let container = |(id, name): &(&str, &str)| ContainerStatus {
            id: (*id).to_owned(),
            metadata: Some(ContainerMetadata {
                name: (*name).to_owned(),
                attempt: 0,
            }),
            ..ContainerStatus::default()
        };
        ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            pod_sandbox_status: Some(PodSandboxStatus {
                metadata: Some(PodSandboxMetadata {
                    uid: "u".to_owned(),
                    ..PodSandboxMetadata::default()
                }),
                ..PodSandboxStatus::default()
            }),
            containers_statuses: names.iter().map(container).collect(),
            ..ContainerEventResponse::default()
        }
    }

    #[test]
    fn an_event_names_the_container_that_it_is_about() {
        use ContainerEventType as Kind;
        let both = [("1", "side"), ("2", "app")];
        let pod_uid = || "u".to_owned();
        let started = Some(FromNri::Started {
            pod_uid: pod_uid(),
            name: "app".to_owned(),
            id: "2".to_owned(),
        });
        for kind in [Kind::ContainerCreatedEvent, Kind::ContainerStartedEvent] {
            assert_eq!(read(event(kind, "2", &both)), started);
            assert_eq!(read(event(kind, "sandbox", &both)), None);
        }
        let ended = Some(FromNri::Ended { pod_uid: pod_uid() });
        assert_eq!(read(event(Kind::ContainerStoppedEvent, "2", &both)), ended);
        assert_eq!(read(event(Kind::ContainerDeletedEvent, "2", &both)), None);
        assert_eq!(read(ContainerEventResponse::default()), None);
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        let long = event(Kind::ContainerStartedEvent, "2", &[("2", &long)]);
        assert_eq!(read(long), None);
    }

    /// What is told, as a runtime of this version answers once with what it has, and an event.
    async fn told(version: &'static str) -> Vec<FromNri> {
        let runtime = StandIn::start(move |path, _| match path.rsplit('/').next() {
            Some("Version") => sound(&VersionResponse {
                runtime_name: RUNTIME.to_owned(),
                runtime_version: version.to_owned(),
                ..VersionResponse::default()
            }),
            Some("GetContainerEvents") => sound(&event(
                ContainerEventType::ContainerStoppedEvent,
                "2",
                &[("2", "app")],
            )),
            _ => node(path),
        });
        let (containers, mut told) = mpsc::channel(FRAMES_MAX);
        let outbox = Outbox {
            state: watch::channel(None).0,
            containers,
            dropped: Cell::new(0),
        };
        let mut heard = Vec::new();
        let hearing = async {
            loop {
                let frame = told.recv().await.unwrap();
                let is_last = matches!(frame, FromNri::Events { away: Some(_) });
                heard.push(frame);
                if is_last {
                    break;
                }
            }
        };
        tokio::select! {
            never = follow(runtime.socket(), &outbox) => match never {},
            () = hearing => {}
        }
        heard
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_was_away_for_long_is_heard_soon_after_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("runtime.sock");
        let (containers, mut told) = mpsc::channel(FRAMES_MAX);
        let outbox = Outbox {
            state: watch::channel(None).0,
            containers,
            dropped: Cell::new(0),
        };
        let back = async {
            tokio::time::sleep(Duration::from_secs(300)).await;
            let away = told.try_recv().unwrap();
            assert!(matches!(away, FromNri::Events { away: Some(_) }));
            let runtime = tokio::net::UnixListener::bind(&socket).unwrap();
            let listens = Instant::now();
            runtime.accept().await.unwrap();
            let found = listens.elapsed();
            assert!(found <= Duration::from_millis(600), "{found:?}");
        };
        tokio::select! {
            never = follow(&socket, &outbox) => match never {},
            () = back => {}
        }
    }

    #[tokio::test]
    async fn what_runs_is_named_first_and_then_what_happens() {
        let started = |id: &str| FromNri::Started {
            pod_uid: "u".to_owned(),
            name: "app".to_owned(),
            id: id.to_owned(),
        };
        let pod_uid = "u".to_owned();
        let heard = told("v2.1.9").await;
        let (away, heard) = heard.split_last().unwrap();
        let expected = [
            FromNri::Events { away: None },
            started("1"),
            started("2"),
            FromNri::Ended { pod_uid },
        ];
        assert_eq!(heard, expected);
        let FromNri::Events { away: Some(why) } = away else {
            panic!("{away:?}");
        };
        assert!(why.contains("has ended the list"), "{why}");
        let [FromNri::Events { away: Some(why) }] = &told("1.7.27").await[..] else {
            panic!("it is asked");
        };
        assert!(why.contains("containerd 1.7.27 is not asked"), "{why}");
    }
}
