use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncWriteExt as _;

use super::*;
use crate::tests::agent::{self, say};
use crate::tests::stand_in::{Answer, StandIn, node};

async fn hear(agent: &mut UnixStream) -> FromRuntime {
    agent::hear(agent).await
}

#[tokio::test]
async fn questions_are_answered_until_the_agent_ends() {
    let stand_in = StandIn::start(|path, _| node(path));
    let (mut agent, theirs) = UnixStream::pair().unwrap();
    let socket = stand_in.socket().to_owned();
    let served = tokio::spawn(async move { run(&socket, theirs).await });
    assert_eq!(
        hear(&mut agent).await,
        FromRuntime::Hello { protocol: PROTOCOL }
    );
    say(&mut agent, &ToRuntime::List { number: 1 }).await;
    let mut heard = Vec::new();
    while !matches!(heard.last(), Some(FromRuntime::Listed { .. })) {
        heard.push(hear(&mut agent).await);
    }
    assert_eq!(heard.len(), 2 + 3 + 1);
    let removal = Removal::Image("sha256:b".to_owned());
    say(&mut agent, &ToRuntime::Remove { number: 2, removal }).await;
    assert_eq!(hear(&mut agent).await, FromRuntime::Removed { number: 2 });
    drop(agent);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_runtime_that_is_away_is_an_answer_and_it_is_asked_anew() {
    let (mut agent, theirs) = UnixStream::pair().unwrap();
    tokio::spawn(async move { run(Path::new("/nowhere/x.sock"), theirs).await });
    hear(&mut agent).await;
    for number in [1, 2] {
        say(&mut agent, &ToRuntime::List { number }).await;
        let failed = hear(&mut agent).await;
        let FromRuntime::Failed {
            number: of,
            why,
            is_late: false,
        } = failed
        else {
            panic!("an answer without a runtime");
        };
        assert_eq!(of, number);
        assert!(why.contains("is it running"), "{why}");
    }
}

#[tokio::test]
async fn the_end_of_the_agent_ends_an_answer_that_is_under_way() {
    let stand_in = StandIn::start(|_, _| Answer::Hangs);
    let (mut agent, theirs) = UnixStream::pair().unwrap();
    let socket = stand_in.socket().to_owned();
    let served = tokio::spawn(async move { run(&socket, theirs).await });
    hear(&mut agent).await;
    say(&mut agent, &ToRuntime::List { number: 1 }).await;
    drop(agent);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_frame_that_is_too_long_ends_it() {
    let (mut agent, theirs) = UnixStream::pair().unwrap();
    let served = tokio::spawn(async move { run(Path::new("/nowhere/x.sock"), theirs).await });
    hear(&mut agent).await;
    agent.write_u32_le(u32::MAX).await.unwrap();
    assert!(served.await.unwrap().is_err());
}

#[tokio::test]
async fn what_is_known_of_a_runtime_is_kept_when_it_refuses_a_removal() {
    for (code, versions) in [(9, 1), (13, 1), (14, 2)] {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let stand_in = StandIn::start(move |path, _| match path.rsplit('/').next().unwrap() {
            "Version" => {
                count.fetch_add(1, Ordering::Relaxed);
                node(path)
            }
            "RemoveImage" => Answer::Refuses(code),
            _ => node(path),
        });
        let (mut agent, theirs) = UnixStream::pair().unwrap();
        let socket = stand_in.socket().to_owned();
        tokio::spawn(async move { run(&socket, theirs).await });
        hear(&mut agent).await;
        for number in [1, 2] {
            let removal = Removal::Image("sha256:b".to_owned());
            say(&mut agent, &ToRuntime::Remove { number, removal }).await;
            let failed = hear(&mut agent).await;
            assert!(matches!(failed, FromRuntime::Failed { .. }), "{failed:?}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), versions, "code {code}");
    }
}
