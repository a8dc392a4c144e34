//! List and watch of one resource, for ever: bookmarks, 410, resets, back-off.
//!
//! A list is streamed, so that its size does not matter. The first one may be any version that the API server has (a thousand nodes that start together would
//! read etcd otherwise); each later one is at least as new as what was seen, so that nothing goes back in time.

use std::time::Duration;

use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, timeout};

use crate::api::split::{Items, Lines, Piece};
use crate::api::{Api, whole};
use crate::backoff::Backoff;
use crate::call::{Answer, Call};
use crate::heard::Heard;

/// How long a list may take as a whole.
const LIST_TIMEOUT: Duration = Duration::from_secs(120);
/// A list that says nothing for so long has broken off.
const SILENT_LIST: Duration = Duration::from_secs(20);
/// The server sends a bookmark every minute: after this silence it is asked whether it is there.
const SILENT_WATCH: Duration = Duration::from_secs(90);
/// How long the server keeps a watch open, seconds; 290 ± 10.
const WATCH_S: u64 = 280;
const WATCH_SPREAD_S: u64 = 20;
/// A watch that ends sooner without a word is a failure.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// What is watched.
#[derive(Debug, Clone)]
pub struct Watched {
    /// For metrics, and the name of the right.
    pub resource: &'static str,
    /// Path of the collection.
    pub path: String,
    /// `fieldSelector`, escaped; empty for none.
    pub fields: String,
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

/// Why a list or a watch ended.
#[derive(Debug)]
enum End {
    /// The server ended it, as it does after some minutes.
    Closed,
    /// The version is too old, or newer than the server's: list.
    Expired,
    /// Something else.
    Failed(String),
    /// The receiver is gone.
    Stopped,
}

/// Lists and watches until the receiver is gone. `again`: list once more, although nothing was missed.
pub async fn run(
    api: Api,
    watched: Watched,
    heard: Sender<Heard>,
    again: &tokio::sync::Notify,
    seed: u64,
) {
    let mut backoff = Backoff::new(seed);
    let mut version: Option<String> = None;
    let mut from = From::Any;
    loop {
        let end = match &mut version {
            None => match list(&api, &watched, &from, &heard).await {
                Ok(listed) => {
                    backoff.reset();
                    version = Some(listed);
                    continue;
                }
                Err(end) => end,
            },
            Some(version) => {
                let seconds = WATCH_S + backoff_spread(version) % WATCH_SPREAD_S;
                tokio::select! {
                    end = watch(&api, &watched, version, seconds, &heard) => end,
                    () = again.notified() => End::Expired,
                }
            }
        };
        let is_listing = version.is_none();
        match end {
            End::Closed => backoff.reset(),
            End::Stopped => return,
            End::Expired => {
                api.metrics().restarted(watched.resource);
                from = match version.take() {
                    Some(version) => From::NotOlderThan(version),
                    None => From::MostRecent,
                };
                if is_listing {
                    tokio::time::sleep(Duration::from_millis(backoff.wait_ms())).await;
                }
            }
            End::Failed(why) => {
                if heard
                    .send(Heard::Missed(format!("{}: {why}", watched.resource)))
                    .await
                    .is_err()
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(backoff.wait_ms())).await;
            }
        }
    }
}

/// Spread of the watches of many nodes: any number will do.
fn backoff_spread(version: &str) -> u64 {
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
    heard: &Sender<Heard>,
) -> Result<String, End> {
    let call = Call::get(watched.resource, watched.url(&from.parameters()));
    let response = api.send(&call, "LIST").await.map_err(End::Failed)?;
    if !response.status().is_success() {
        return Err(refused(whole(response).await));
    }
    send(heard, Heard::List).await?;
    let mut body = response.into_body();
    let mut items = Items::default();
    let began = Instant::now();
    while let Some(bytes) = next(&mut body, SILENT_LIST).await? {
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
    send(heard, Heard::Listed).await?;
    Ok(rest.metadata.resource_version)
}

fn heard_of(piece: Piece<'_>) -> Heard {
    match piece {
        Piece::Object(object) => Heard::Object(object.to_vec()),
        Piece::TooLarge => Heard::TooLarge,
    }
}

async fn send(heard: &Sender<Heard>, what: Heard) -> Result<(), End> {
    heard.send(what).await.map_err(|_| End::Stopped)
}

/// The next bytes of a body; `None` at its end.
async fn next(body: &mut Body, silence: Duration) -> Result<Option<bytes::Bytes>, End> {
    loop {
        let frame = timeout(silence, body.frame()).await;
        let frame =
            frame.map_err(|_| End::Failed(format!("silent for {} s", silence.as_secs())))?;
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
        Answer::Refused(refusal) => End::Failed(format!(
            "{} {} {}",
            refusal.code, refusal.reason, refusal.message
        )),
        Answer::Lost(why) => End::Failed(why),
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
    seconds: u64,
    heard: &Sender<Heard>,
) -> End {
    let parameters = format!(
        "watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}"
    );
    let call = Call::get(watched.resource, watched.url(&parameters));
    let response = match api.send(&call, "WATCH").await {
        Ok(response) => response,
        Err(why) => return End::Failed(why),
    };
    if !response.status().is_success() {
        return refused(whole(response).await);
    }
    if let Err(end) = send(heard, Heard::Word).await {
        return end;
    }
    let began = Instant::now();
    let mut body = response.into_body();
    let mut lines = Lines::default();
    let mut is_silent = true;
    loop {
        let bytes = tokio::select! {
            bytes = next(&mut body, SILENT_WATCH) => bytes,
            () = heard.closed() => return End::Stopped,
        };
        let bytes = match bytes {
            Ok(Some(bytes)) => bytes,
            Ok(None) if is_silent && began.elapsed() < SHORT_WATCH => {
                return End::Failed("the watch ends at once".to_owned());
            }
            Ok(None) => return End::Closed,
            Err(End::Failed(why)) => {
                // A server without bookmarks is silent where nothing happens.
                if is_there(api, &why).await {
                    continue;
                }
                return End::Failed(why);
            }
            Err(end) => return end,
        };
        is_silent = false;
        let mut found = Vec::new();
        lines.feed(&bytes, |piece| found.push(line(piece, version)));
        for what in found {
            let sent = match what {
                Ok(what) => send(heard, what).await,
                Err(end) => Err(end),
            };
            if let Err(end) = sent {
                return end;
            }
        }
    }
}

/// After a silence: whether the server answers at all. A connection that broke is none that can go on.
async fn is_there(api: &Api, why: &str) -> bool {
    let probe = Call::get("version", "/version".to_owned());
    why.starts_with("silent") && matches!(api.call(&probe).await, Answer::Done(_))
}

fn line(piece: Piece<'_>, version: &mut String) -> Result<Heard, End> {
    let Piece::Object(text) = piece else {
        return Ok(Heard::TooLarge);
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
        "ADDED" | "MODIFIED" => Heard::Object(object.as_bytes().to_vec()),
        "DELETED" => Heard::Gone(object.as_bytes().to_vec()),
        // Bookmarks, and what may come one day.
        _ => Heard::Word,
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
            Ok(Heard::Object(_))
        ));
        assert!(matches!(
            read(r#"{"type":"DELETED","object":{"metadata":{"resourceVersion":"6"}}}"#),
            Ok(Heard::Gone(_))
        ));
        assert!(matches!(
            read(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#),
            Ok(Heard::Word)
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
            Ok(Heard::TooLarge)
        ));
        assert_eq!(version, "9");
    }

    #[test]
    fn what_a_list_asks_for() {
        let watched = Watched {
            resource: "pods",
            path: "/api/v1/pods".into(),
            fields: "spec.nodeName%3Dn".into(),
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
