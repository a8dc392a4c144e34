use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::AsyncReadExt as _;

use super::*;
use crate::interface::pod_resources as messages;
use crate::tests::stand_in::{Answer, StandIn, sound};

async fn hear(agent: &mut UnixStream) -> FromKubelet {
    let length = usize::try_from(agent.read_u32_le().await.unwrap()).unwrap();
    assert!(length <= FRAMING.bytes_max);
    let mut frame = vec![0; length];
    agent.read_exact(&mut frame).await.unwrap();
    serde_json::from_slice(FRAMING.body(&frame).unwrap()).unwrap()
}

/// A kubelet with these containers in as many pods; each has a CPU.
fn answer(path: &str, pods: u32) -> Answer {
    if path.ends_with("GetAllocatableResources") {
        return sound(&messages::AllocatableResourcesResponse {
            cpu_ids: vec![3, 2, 1],
            ..Default::default()
        });
    }
    let pod = |number: u32| messages::PodResources {
        name: format!("p{number}"),
        namespace: "n".to_owned(),
        containers: vec![messages::ContainerResources {
            name: "app".to_owned(),
            cpu_ids: vec![number.into()],
            ..Default::default()
        }],
    };
    sound(&messages::ListPodResourcesResponse {
        pod_resources: (0..pods).rev().map(pod).collect(),
    })
}

#[tokio::test]
async fn each_change_is_sent_once_and_a_word_comes_all_the_same() {
    let pods = Arc::new(AtomicU32::new(1));
    let of_kubelet = Arc::clone(&pods);
    let kubelet = StandIn::start(move |path, _| answer(path, of_kubelet.load(Ordering::SeqCst)));
    let (mut agent, theirs) = UnixStream::pair().unwrap();
    let socket = kubelet.socket().to_owned();
    let served = tokio::spawn(async move { run(&socket, theirs).await });
    assert_eq!(
        hear(&mut agent).await,
        FromKubelet::Hello { protocol: PROTOCOL }
    );
    let FromKubelet::Resources { resources, .. } = hear(&mut agent).await else {
        panic!("no resources");
    };
    assert_eq!(resources.allocatable.unwrap().cpus, [1, 2, 3]);
    assert_eq!(resources.pods, ["n/p0"]);
    let FromKubelet::Same { .. } = hear(&mut agent).await else {
        panic!("nothing has changed");
    };
    pods.store(2, Ordering::SeqCst);
    let changed = loop {
        match hear(&mut agent).await {
            FromKubelet::Same { .. } => {}
            FromKubelet::Resources { resources, .. } => break resources,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(changed.pods, ["n/p0", "n/p1"]);
    drop(agent);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_the_agent_asks_is_answered_at_once_by_what_the_kubelet_is_asked_after_it() {
    let kubelet = StandIn::start(|path, _| answer(path, 1));
    let (mut agent, theirs) = UnixStream::pair().unwrap();
    let socket = kubelet.socket().to_owned();
    // Of itself it asks but once.
    let every = Duration::from_secs(3600);
    tokio::spawn(async move { run_every(every, &socket, theirs).await });
    hear(&mut agent).await;
    hear(&mut agent).await;
    let mut before_ns = 0;
    for _ in 0..3 {
        let said_at_ns = now_ns();
        crate::tests::agent::say(&mut agent, &ToKubelet::Ask).await;
        let FromKubelet::Same { asked_at_ns } = hear(&mut agent).await else {
            panic!("nothing has changed");
        };
        assert!(asked_at_ns > said_at_ns);
        // However often it is asked.
        assert!(asked_at_ns - before_ns >= ASKED_APART_MS * 1_000_000);
        before_ns = asked_at_ns;
    }
    // What is no question ends it.
    agent.write_all(&[2, 0, 0, 0, b'{', b'}']).await.unwrap();
    while agent.read_u8().await.is_ok() {}
}

#[tokio::test]
async fn a_kubelet_that_is_away_is_said_and_what_does_not_fit_is_not_sent() {
    let (mut agent, theirs) = UnixStream::pair().unwrap();
    tokio::spawn(async move { run(Path::new("/nowhere/x.sock"), theirs).await });
    hear(&mut agent).await;
    for _ in 0..2 {
        let FromKubelet::Failed { why } = hear(&mut agent).await else {
            panic!("an answer without a kubelet");
        };
        assert!(why.contains("is it running"), "{why}");
    }
    let kubelet = StandIn::start(|path, _| answer(path, 20_000));
    let (mut agent, theirs) = UnixStream::pair().unwrap();
    let socket = kubelet.socket().to_owned();
    tokio::spawn(async move { run(&socket, theirs).await });
    hear(&mut agent).await;
    let FromKubelet::Failed { why } = hear(&mut agent).await else {
        panic!("20,000 pods in one frame");
    };
    assert!(why.contains("does not fit"), "{why}");
}
