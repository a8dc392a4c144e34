//! List and watch of one resource, for ever: bookmarks, 410, resets, back-off.
//!
//! A list is streamed, so that its size does not matter. The first one may be any version that the API server has (a
//! thousand nodes that start together would read etcd otherwise); each later one is at least as new as what was seen,
//! so that nothing goes back in time. Who wants to know what is gone asks for the most recent one: a cache that lags
//! has not heard of what is new.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, timeout};

use crate::api::split::{Items, Lines, Piece};
use crate::api::{Api, CALL_TIMEOUT, whole};
use crate::backoff::Backoff;
use crate::call::{Answer, Call};
use crate::watch_event::WatchEvent;

/// How long a list may take as a whole.
const LIST_TIMEOUT: Duration = Duration::from_secs(120);
/// A list that says nothing for so long has broken off.
const SILENT_LIST: Duration = Duration::from_secs(20);
/// The server sends a bookmark every minute: a watch that is silent for so long may be one whose connection leads
/// nowhere any more.
pub const SILENT_WATCH: Duration = Duration::from_secs(90);
/// How long the server is to keep a watch open, seconds: half an hour where bookmarks show that it lives, else five
/// minutes.
const WATCH_S: u64 = 1_700;
const WATCH_WITHOUT_BOOKMARKS_S: u64 = 280;
/// So much longer by chance, in parts of it.
const WATCH_SPREAD: u64 = 10;
/// A watch that the server has not ended so long after it was to is ended here.
const OVERDUE: Duration = Duration::from_secs(30);
/// A watch that ends sooner without a word is a failure.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// A watch that lived so long has worked: the next failure is the first.
const STEADY_WATCH: Duration = Duration::from_secs(5);
/// After a watch that the server ends sooner: it is not asked again at once, and not too late either, for nothing is
/// missed.
const SHORT_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Lists that were asked for here are at least so far apart.
const LISTS_APART: Duration = Duration::from_secs(2);

/// What is watched.
#[derive(Debug, Clone)]
pub struct Watched {
    /// For metrics, and the name of the right.
    pub resource: &'static str,
    /// Path of the collection.
    pub path: String,
    /// `fieldSelector`, escaped; empty for none.
    pub fields: String,
    /// After so long without a word a watch is begun anew: [`SILENT_WATCH`].
    pub silence: Duration,
}

impl Watched {
    fn url(&self, parameters: &str) -> String {
        let mut url = format!("{}?{parameters}", self.path);
        if !self.fields.is_empty() {
            url.push_str("&fieldSelector=");
            url.push_str(&self.fields);
        }
        url
    }

    /// How long a list has until its first byte. Servers before 1.33 encode all of it before that: of a whole cluster,
    /// that is a gigabyte.
    const fn head_timeout(&self) -> Duration {
        if self.fields.is_empty() {
            LIST_TIMEOUT
        } else {
            CALL_TIMEOUT
        }
    }
}

/// How new a list has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    Any,
    NotOlderThan(String),
    MostRecent,
}

impl From {
    fn parameters(&self) -> String {
        match self {
            Self::Any => "resourceVersion=0".to_owned(),
            Self::NotOlderThan(version) => {
                format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan")
            }
            Self::MostRecent => String::new(),
        }
    }
}

/// Asks for another list, although nothing was missed.
#[derive(Debug, Default)]
pub struct Relist {
    wanted: Notify,
    is_most_recent: AtomicBool,
}

impl Relist {
    /// A list that is at least as new as what was seen: there may be room for what was left out.
    pub fn complete(&self) {
        self.wanted.notify_one();
    }

    /// A list with everything that is there now. Before Kubernetes 1.31 the API server reads all objects of the kind
    /// for it, also those of other nodes.
    pub fn most_recent(&self) {
        self.is_most_recent.store(true, Ordering::Relaxed);
        self.wanted.notify_one();
    }

    /// Waits for either; whether it is the second.
    async fn wanted(&self) -> bool {
        self.wanted.notified().await;
        self.is_most_recent.swap(false, Ordering::Relaxed)
    }
}

/// Why a list or a watch ended.
#[derive(Debug)]
enum End {
    /// The server ended it, as it does after some minutes.
    Closed,
    /// Nothing was heard for too long: a watch is begun anew from the same version.
    Silent,
    /// The version is too old, or newer than the server's: list.
    Expired,
    /// Another list is wanted here.
    Again {
        /// With everything that is there now.
        is_most_recent: bool,
    },
    /// The server's answer is no.
    Refused(String),
    /// Something else.
    Failed(String),
    /// The receiver is gone.
    Stopped,
}

/// What is known of a server's bookmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bookmarks {
    /// Nothing yet.
    Unknown,
    /// It sends them.
    Sent,
    /// A whole watch was silent for longer than it can be with them, as of a server before 1.21 where nothing happens:
    /// that stays so.
    None,
}

impl Bookmarks {
    const fn watch_s(self) -> u64 {
        match self {
            Self::Sent => WATCH_S,
            Self::Unknown | Self::None => WATCH_WITHOUT_BOOKMARKS_S,
        }
    }
}

/// Lists and watches until the receiver is gone. `again`: list once more, although nothing was missed.
pub async fn run(api: Api, watched: Watched, heard: Sender<WatchEvent>, again: &Relist, seed: u64) {
    let mut backoff = Backoff::new(seed);
    let mut version: Option<String> = None;
    let mut from = From::Any;
    let mut bookmarks = Bookmarks::Unknown;
    let mut listed_at = Instant::now();
    loop {
        let began = Instant::now();
        let is_listing = version.is_none();
        let end = match &mut version {
            None => match list(&api, &watched, &from, &heard).await {
                Ok(listed) => {
                    (version, listed_at) = (Some(listed), began);
                    continue;
                }
                Err(end) => end,
            },
            Some(version) => {
                tokio::select! {
                    end = watch(&api, &watched, version, &mut bookmarks, &heard) => end,
                    is_most_recent = again.wanted() => End::Again { is_most_recent },
                }
            }
        };
        // A list that succeeds says nothing of the watch that is to follow it: that one has to have lived.
        let is_steady = !is_listing && began.elapsed() >= STEADY_WATCH;
        if is_steady {
            backoff.reset();
        }
        let mut wait = || Duration::from_millis(backoff.wait_ms());
        let pause = match end {
            End::Stopped => return,
            End::Closed if is_steady => Duration::ZERO,
            End::Closed => wait().min(SHORT_PAUSE_MAX),
            End::Silent => Duration::ZERO,
            End::Again { is_most_recent } => {
                let known = version.take().filter(|_| !is_most_recent);
                from = known.map_or(From::MostRecent, From::NotOlderThan);
                LISTS_APART.saturating_sub(listed_at.elapsed())
            }
            End::Expired => {
                api.metrics().restarted(watched.resource);
                from = version.take().map_or(From::MostRecent, From::NotOlderThan);
                if is_steady { Duration::ZERO } else { wait() }
            }
            End::Refused(why) => {
                let why = format!("{}: {why}", watched.resource);
                if heard.send(WatchEvent::Refused(why)).await.is_err() {
                    return;
                }
                wait()
            }
            End::Failed(why) => {
                let why = format!("{}: {why}", watched.resource);
                if heard.send(WatchEvent::Missed(why)).await.is_err() {
                    return;
                }
                wait()
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = heard.closed() => return,
        }
    }
}

/// Spread of the watches of many nodes: any number will do.
fn spread(version: &str) -> u64 {
    let sum: u64 = version.bytes().map(u64::from).sum();
    sum ^ u64::from(std::process::id())
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ListMeta {
    #[serde(rename = "resourceVersion")]
    resource_version: String,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    metadata: ListMeta,
}

async fn list(
    api: &Api,
    watched: &Watched,
    from: &From,
    heard: &Sender<WatchEvent>,
) -> Result<String, End> {
    let call = Call::get(watched.resource, watched.url(&from.parameters()));
    let asked = Instant::now();
    let answer = api.send(&call, "LIST", watched.head_timeout()).await;
    let response = answer.map_err(End::Failed)?;
    if !response.status().is_success() {
        return Err(refused(whole(response).await));
    }
    let current_at = (*from == From::MostRecent).then(|| asked.into_std());
    send(heard, WatchEvent::List(current_at)).await?;
    let mut body = response.into_body();
    let mut items = Items::default();
    let began = Instant::now();
    let mut more = async || match next(&mut body, SILENT_LIST).await {
        Err(End::Silent) => Err(silent_for(SILENT_LIST)),
        bytes => bytes,
    };
    while let Some(bytes) = more().await? {
        if began.elapsed() > LIST_TIMEOUT {
            return Err(End::Failed(format!(
                "the list does not end within {} s",
                LIST_TIMEOUT.as_secs()
            )));
        }
        let mut found = Vec::new();
        let fed = items.feed(&bytes, |piece| found.push(heard_of(piece)));
        for object in found {
            send(heard, object).await?;
        }
        fed.map_err(|_| End::Failed("the answer is no list".to_owned()))?;
    }
    let rest: Meta = serde_json::from_slice(items.rest())
        .map_err(|error| End::Failed(format!("the list is not whole: {error}")))?;
    if rest.metadata.resource_version.is_empty() {
        return Err(End::Failed("the list has no resourceVersion".to_owned()));
    }
    send(heard, WatchEvent::Listed).await?;
    Ok(rest.metadata.resource_version)
}

fn heard_of(piece: Piece<'_>) -> WatchEvent {
    match piece {
        Piece::Object(object) => WatchEvent::Object(object.to_vec()),
        Piece::TooLarge => WatchEvent::TooLarge,
    }
}

async fn send(heard: &Sender<WatchEvent>, what: WatchEvent) -> Result<(), End> {
    heard.send(what).await.map_err(|_| End::Stopped)
}

fn silent_for(silence: Duration) -> End {
    End::Failed(format!("silent for {} s", silence.as_secs()))
}

/// The next bytes of a body; `None` at its end. [`End::Silent`]: none came in this time.
async fn next(body: &mut Body, silence: Duration) -> Result<Option<bytes::Bytes>, End> {
    loop {
        let frame = timeout(silence, body.frame()).await;
        let frame = frame.map_err(|_| End::Silent)?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(End::Failed(format!("broke off: {error}"))),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// An answer that is no list and no watch.
fn refused(answer: Answer) -> End {
    match answer {
        // The version is gone, or is not there yet (etcd was restored, or this server lags behind).
        Answer::Refused(refusal)
            if refusal.code == 410
                || refusal.has_cause("ResourceVersionTooLarge")
                || refusal.message.contains("Too large resource version") =>
        {
            End::Expired
        }
        Answer::Refused(refusal) if !refusal.is_passing() => {
            End::Refused(Answer::Refused(refusal).words())
        }
        Answer::Refused(_) | Answer::Lost(_) => End::Failed(answer.words()),
        Answer::Done(_) => End::Closed,
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Watches from `version` on, which moves with what is seen.
async fn watch(
    api: &Api,
    watched: &Watched,
    version: &mut String,
    bookmarks: &mut Bookmarks,
    heard: &Sender<WatchEvent>,
) -> End {
    let seconds = bookmarks.watch_s();
    let seconds = seconds + spread(version) % (seconds / WATCH_SPREAD);
    let parameters = format!(
        "watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}"
    );
    let call = Call::get(watched.resource, watched.url(&parameters));
    let response = match api.send(&call, "WATCH", CALL_TIMEOUT).await {
        Ok(response) => response,
        Err(why) => return End::Failed(why),
    };
    if !response.status().is_success() {
        return refused(whole(response).await);
    }
    if let Err(end) = send(heard, WatchEvent::Word).await {
        return end;
    }
    let began = Instant::now();
    let overdue = Duration::from_secs(seconds) + OVERDUE;
    let mut body = response.into_body();
    let mut lines = Lines::default();
    let mut is_silent = true;
    loop {
        let left = overdue.saturating_sub(began.elapsed());
        if left.is_zero() {
            return End::Silent;
        }
        let silence = watched.silence.min(left);
        let bytes = tokio::select! {
            bytes = next(&mut body, silence) => bytes,
            () = heard.closed() => return End::Stopped,
        };
        let bytes = match bytes {
            Ok(Some(bytes)) => bytes,
            Ok(None) if is_silent && began.elapsed() < SHORT_WATCH => {
                return End::Failed("the watch ends at once".to_owned());
            }
            Ok(None) => return End::Closed,
            // Its end tells within some minutes whether the connection leads anywhere.
            Err(End::Silent) if *bookmarks == Bookmarks::None => continue,
            Err(End::Silent) => {
                // The silence of a connection that leads nowhere, and of a server without bookmarks where nothing
                // happens, are the same.
                if !is_there(api).await {
                    return silent_for(silence);
                }
                return match (*bookmarks, is_silent) {
                    // It sends them each minute: a watch of a version that it does not have yet (etcd was restored from
                    // a backup) is silent until it has. A list says so.
                    (Bookmarks::Sent, true) => {
                        *bookmarks = Bookmarks::Unknown;
                        End::Expired
                    }
                    (Bookmarks::Unknown, true) => {
                        *bookmarks = Bookmarks::None;
                        End::Silent
                    }
                    _ => End::Silent,
                };
            }
            Err(end) => return end,
        };
        is_silent = false;
        let mut found = Vec::new();
        lines.feed(&bytes, |piece| found.push(line(piece, version)));
        for what in found {
            let what = match what {
                Ok(what) => what,
                Err(end) => return end,
            };
            if matches!(what, WatchEvent::Word) && *bookmarks == Bookmarks::Unknown {
                *bookmarks = Bookmarks::Sent;
            }
            if let Err(end) = send(heard, what).await {
                return end;
            }
        }
    }
}

/// After a silence: whether the server answers at all.
async fn is_there(api: &Api) -> bool {
    let probe = Call::get("version", "/version".to_owned());
    matches!(api.call(&probe).await, Answer::Done(_))
}

fn line(piece: Piece<'_>, version: &mut String) -> Result<WatchEvent, End> {
    let Piece::Object(text) = piece else {
        return Ok(WatchEvent::TooLarge);
    };
    let line: Line<'_> = serde_json::from_slice(text)
        .map_err(|error| End::Failed(format!("a line of the watch is no event: {error}")))?;
    let object = line.object.get();
    if line.kind == "ERROR" {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Status {
            code: u16,
            message: String,
        }
        let status: Status = serde_json::from_str(object).unwrap_or_default();
        return Err(match status.code {
            410 => End::Expired,
            code => End::Failed(format!("{code} {}", crate::call::cut(&status.message, 256))),
        });
    }
    let meta: Meta = serde_json::from_str(object)
        .map_err(|error| End::Failed(format!("an object of the watch cannot be read: {error}")))?;
    if !meta.metadata.resource_version.is_empty() {
        *version = meta.metadata.resource_version;
    }
    Ok(match line.kind {
        "ADDED" | "MODIFIED" => WatchEvent::Object(object.as_bytes().to_vec()),
        "DELETED" => WatchEvent::Gone(object.as_bytes().to_vec()),
        // Bookmarks, and what may come one day.
        _ => WatchEvent::Word,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_watch() {
        let mut version = "1".to_owned();
        let mut read = |text: &str| line(Piece::Object(text.as_bytes()), &mut version);
        let object = r#"{"metadata":{"resourceVersion":"5"}}"#;
        assert!(matches!(
            read(&format!(r#"{{"type":"ADDED","object":{object}}}"#)),
            Ok(WatchEvent::Object(_))
        ));
        assert!(matches!(
            read(r#"{"type":"DELETED","object":{"metadata":{"resourceVersion":"6"}}}"#),
            Ok(WatchEvent::Gone(_))
        ));
        assert!(matches!(
            read(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#),
            Ok(WatchEvent::Word)
        ));
        assert!(matches!(
            read(r#"{"type":"ERROR","object":{"code":410}}"#),
            Err(End::Expired)
        ));
        assert!(matches!(
            read(r#"{"type":"ERROR","object":{"code":500}}"#),
            Err(End::Failed(_))
        ));
        assert!(matches!(read("<html>"), Err(End::Failed(_))));
        assert!(matches!(
            line(Piece::TooLarge, &mut version),
            Ok(WatchEvent::TooLarge)
        ));
        assert_eq!(version, "9");
    }

    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc::{Receiver, channel};

    use crate::api::Source;
    use crate::metrics::Metrics;

    const LIST: &str = r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#;

    fn whole_answer(code: u16, body: &str) -> String {
        format!(
            "HTTP/1.1 {code} x\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    /// The head of a watch, which then says nothing.
    fn open_watch() -> String {
        "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned()
    }

    #[derive(Default)]
    struct Asked {
        lists: AtomicUsize,
        watches: AtomicUsize,
    }

    /// An API server that answers lists and watches so, and says its version.
    struct Fake {
        asked: Arc<Asked>,
        heard: Receiver<WatchEvent>,
        _folder: tempfile::TempDir,
    }

    impl Fake {
        async fn start(lists: String, watches: String) -> Self {
            Self::whose_first_watch(watches.clone(), lists, watches).await
        }

        /// The first watch is answered in another way than those that follow.
        async fn whose_first_watch(first: String, lists: String, watches: String) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let asked = Arc::<Asked>::default();
            let counted = asked.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let answers = [first.clone(), watches.clone(), lists.clone()];
                    tokio::spawn(serve(stream, counted.clone(), answers));
                }
            });
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("config");
            let config = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{{name: x, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
                 users: [{{name: x, user: {{}}}}]\ncontexts: [{{name: x, context: {{cluster: x, user: x}}}}]\n"
            );
            std::fs::write(&path, config).unwrap();
            let metrics = Arc::new(Metrics::new());
            let api = Api::new(Source::Kubeconfig(path), metrics).await.unwrap();
            let watched = Watched {
                resource: "pods",
                path: "/api/v1/pods".to_owned(),
                fields: String::new(),
                silence: Duration::from_millis(300),
            };
            let (sender, heard) = channel(1);
            tokio::spawn(async move { run(api, watched, sender, &Relist::default(), 7).await });
            Self {
                asked,
                heard,
                _folder: folder,
            }
        }
    }

    async fn serve(mut stream: TcpStream, asked: Arc<Asked>, [first, watches, lists]: [String; 3]) {
        let mut request = Vec::new();
        while let Ok(byte) = stream.read_u8().await {
            request.push(byte);
            if !request.ends_with(b"\r\n\r\n") {
                continue;
            }
            let text = String::from_utf8(std::mem::take(&mut request)).unwrap();
            let answer = if text.starts_with("GET /version") {
                whole_answer(200, "{}")
            } else if text.contains("watch=1") {
                match asked.watches.fetch_add(1, Ordering::SeqCst) {
                    0 => first.clone(),
                    _ => watches.clone(),
                }
            } else {
                asked.lists.fetch_add(1, Ordering::SeqCst);
                lists.clone()
            };
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    /// As where a load balancer has forgotten a connection: nothing comes, and nothing ends.
    #[tokio::test]
    async fn a_watch_that_leads_nowhere_is_begun_anew() {
        let mut fake = Fake::start(whole_answer(200, LIST), open_watch()).await;
        let mut words = 0;
        while words < 2 {
            match fake.heard.recv().await.unwrap() {
                WatchEvent::Word => words += 1,
                WatchEvent::List(_) | WatchEvent::Listed => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(fake.asked.watches.load(Ordering::SeqCst) >= 2);
        assert_eq!(fake.asked.lists.load(Ordering::SeqCst), 1);
    }

    /// As after etcd was restored from a backup: a watch waits for a version that is far ahead. A connection that falls
    /// silent later leads nowhere, and costs no list.
    #[tokio::test]
    async fn a_watch_that_says_nothing_where_bookmarks_were_sent_is_followed_by_a_list() {
        let line =
            "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"6\"}}}\n";
        let first = format!("{}{:x}\r\n{line}\r\n", open_watch(), line.len());
        for (later, lists) in [(open_watch(), 2), (first.clone(), 1)] {
            let lists_answer = whole_answer(200, LIST);
            let mut fake = Fake::whose_first_watch(first.clone(), lists_answer, later).await;
            let mut words = 0;
            while words < 6 && fake.asked.lists.load(Ordering::SeqCst) < 2 {
                let heard = fake.heard.recv().await.unwrap();
                assert!(!matches!(heard, WatchEvent::Missed(_)), "{heard:?}");
                words += u32::from(matches!(heard, WatchEvent::Word));
            }
            assert_eq!(fake.asked.lists.load(Ordering::SeqCst), lists);
        }
    }

    #[tokio::test]
    async fn a_server_whose_lists_succeed_and_whose_watches_do_not_is_asked_later_each_time() {
        let expired = r#"{"kind":"Status","reason":"Expired","code":410}"#;
        let bookmark =
            "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"6\"}}}\n";
        let answers = [whole_answer(410, expired), whole_answer(200, bookmark)];
        for watches in answers {
            let began = Instant::now();
            let mut fake = Fake::start(whole_answer(200, LIST), watches.clone()).await;
            while fake.asked.watches.load(Ordering::SeqCst) < 4 {
                let heard = fake.heard.recv().await.unwrap();
                assert!(!matches!(heard, WatchEvent::Missed(_)), "{heard:?}");
            }
            // 0.8, 1.6 and 3.2 s.
            assert!(began.elapsed() >= Duration::from_millis(5_600), "{watches}");
        }
    }

    #[tokio::test]
    async fn a_refusal_of_the_server_is_told_from_an_answer_on_the_way_to_it() {
        let status = r#"{"kind":"Status","reason":"Forbidden","code":403}"#;
        let mut fake = Fake::start(whole_answer(403, status), open_watch()).await;
        assert!(matches!(
            fake.heard.recv().await,
            Some(WatchEvent::Refused(_))
        ));
        let mut fake = Fake::start(whole_answer(403, "<html>"), open_watch()).await;
        assert!(matches!(
            fake.heard.recv().await,
            Some(WatchEvent::Missed(_))
        ));
    }

    #[test]
    fn what_a_list_asks_for() {
        let watched = Watched {
            resource: "pods",
            path: "/api/v1/pods".into(),
            fields: "spec.nodeName%3Dn".into(),
            silence: SILENT_WATCH,
        };
        assert_eq!(
            watched.url(&From::Any.parameters()),
            "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3Dn"
        );
        assert!(
            watched
                .url(&From::NotOlderThan("7".into()).parameters())
                .contains("resourceVersion=7&resourceVersionMatch=NotOlderThan&")
        );
    }
}
