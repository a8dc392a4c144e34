//! Events of the API (`events.k8s.io/v1`, served since 1.19): one object for what happens once, a series for what
//! repeats.
//!
//! **Problem.** Events are what people read first, and what fills etcd. **Approach.** client-go's rules
//! (`EventSourceObjectSpamFilter`, `tools/events`): 25 new names in a burst, then one in 6 s; a repetition within ten
//! minutes is a count on the same object, written at most once in 6 s. What is beyond is dropped and counted. A refusal
//! that no waiting mends (a namespace that is being deleted, a missing right) drops the Event, too. The name is made of
//! what the Event is about, so that a process that starts again writes no second one.

use std::collections::BTreeMap;

use serde_json::json;

use crate::backoff::{Backoff, Bucket};
use crate::call::{Answer, Call, Content, Verb, cut};
use crate::clock::{Now, rfc3339_us};
use crate::report::body::escaped;

const BURST: u64 = 25;
const EVERY_MS: u64 = 6_000;
/// A repetition after this time is a new Event.
const WINDOW_MS: u64 = 600_000;
/// Events that are remembered.
const REMEMBERED_MAX: usize = 256;
/// Answers that ask for patience, before an Event is dropped.
const TRIES_MAX: u32 = 8;
/// `note` of the API has at most so many bytes.
const NOTE_BYTES_MAX: usize = 1024;

/// Reasons of what is good for the object.
const NORMAL: [&str; 1] = ["RoomMade"];

/// What an Event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Regarding {
    /// `Pod`, `Node` or `Consumer`.
    pub kind: &'static str,
    /// Empty for what is in no namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// Something to be said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// About what.
    pub regarding: Regarding,
    /// One word; the same word about the same object is a repetition.
    pub reason: &'static str,
    /// What was done, one word.
    pub action: &'static str,
    /// The text.
    pub note: String,
    /// A sentence that is kept when the text has to be cut.
    pub ending: &'static str,
    /// When it happened: milliseconds since 1970.
    pub unix_ms: u64,
    /// Annotations of the Event.
    pub annotations: BTreeMap<String, String>,
}

/// Which Event: its object's UID, and its reason.
pub type EventKey = (String, &'static str);

#[derive(Debug)]
struct Entry {
    said: Said,
    name: String,
    count: u64,
    written: u64,
    last_said_unix_ms: u64,
    last_said_ms: u64,
    not_before_ms: u64,
    tries: u32,
    is_in_flight: bool,
    backoff: Backoff,
}

/// All Events of this program.
#[derive(Debug)]
pub struct Events {
    /// Who says it, as a kind of program.
    controller: &'static str,
    /// The node, or the process.
    instance: String,
    remembered_max: usize,
    entries: BTreeMap<EventKey, Entry>,
    bucket: Bucket,
    seed: u64,
    /// How many were not written: too many at once, or refused.
    pub dropped: u64,
}

impl Events {
    /// None so far, about a node and its pods.
    #[must_use]
    pub fn new(node: &str, seed: u64) -> Self {
        Self {
            controller: "plimsoll.dev/agent",
            instance: node.to_owned(),
            remembered_max: REMEMBERED_MAX,
            entries: BTreeMap::new(),
            bucket: Bucket::new(BURST, EVERY_MS),
            seed,
            dropped: 0,
        }
    }

    /// None so far, about a whole cluster: 200 in a burst, then ten a second.
    #[must_use]
    pub fn of_arbitrator(instance: &str, seed: u64) -> Self {
        Self {
            controller: "plimsoll.dev/arbitrator",
            remembered_max: 16 * REMEMBERED_MAX,
            bucket: Bucket::new(200, 100),
            ..Self::new(instance, seed)
        }
    }

    /// Takes note of it.
    pub fn say(&mut self, said: Said, now: Now) {
        let key = (said.regarding.uid.clone(), said.reason);
        self.entries.retain(|_, entry| {
            let is_old = now.mono_ms.saturating_sub(entry.last_said_ms) >= WINDOW_MS;
            !(is_old && entry.written == entry.count && !entry.is_in_flight)
        });
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.count += 1;
            entry.last_said_unix_ms = said.unix_ms;
            entry.last_said_ms = now.mono_ms;
            return;
        }
        if self.entries.len() >= self.remembered_max || !self.bucket.take(now.mono_ms) {
            self.dropped += 1;
            return;
        }
        let entry = Entry {
            name: name_of(&said),
            count: 1,
            written: 0,
            last_said_unix_ms: said.unix_ms,
            last_said_ms: now.mono_ms,
            not_before_ms: 0,
            tries: 0,
            is_in_flight: false,
            backoff: Backoff::new(self.seed ^ now.mono_ms),
            said,
        };
        self.entries.insert(key, entry);
    }

    /// Whether it waits to be written for the first time.
    #[must_use]
    pub fn is_waiting(&self, uid: &str, reason: &'static str) -> bool {
        let entry = self.entries.get(&(uid.to_owned(), reason));
        entry.is_some_and(|entry| entry.written == 0)
    }

    /// Whether anything waits to be written.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries
            .values()
            .all(|entry| entry.written == entry.count)
    }

    /// The next Event that can be written now.
    #[must_use]
    pub fn next(&self, now: Now) -> Option<EventKey> {
        let ready = |entry: &Entry| {
            entry.written < entry.count && !entry.is_in_flight && entry.not_before_ms <= now.mono_ms
        };
        let found = self.entries.iter().find(|(_, entry)| ready(entry));
        found.map(|(key, _)| key.clone())
    }

    /// The call that writes it, which is then on its way.
    pub fn send(&mut self, key: &EventKey, dry_run: bool) -> Option<Call> {
        let entry = self.entries.get_mut(key)?;
        entry.is_in_flight = true;
        let said = &entry.said;
        // 1.20 takes an Event about what is in no namespace there and nowhere else, later versions there too.
        let namespace = match said.regarding.namespace.as_str() {
            "" => "kube-system",
            namespace => namespace,
        };
        let path = format!(
            "/apis/events.k8s.io/v1/namespaces/{}/events",
            escaped(namespace)
        );
        if entry.written > 0 {
            let series = json!({"series": {"count": entry.count, "lastObservedTime": rfc3339_us(entry.last_said_unix_ms)}});
            let path = format!("{path}/{}", escaped(&entry.name));
            return Some(Call::write(
                Verb::Patch,
                "events",
                &path,
                Content::Merge,
                &series,
                dry_run,
            ));
        }
        let mut regarding = json!({
            "kind": said.regarding.kind, "apiVersion": if said.regarding.kind == "Consumer" { "plimsoll.dev/v1alpha1" } else { "v1" }, "name": said.regarding.name, "uid": said.regarding.uid,
        });
        if !said.regarding.namespace.is_empty() {
            regarding["namespace"] = json!(said.regarding.namespace);
        }
        let room = NOTE_BYTES_MAX - said.ending.len() - 1;
        let note = format!("{} {}", cut(&said.note, room), said.ending);
        let body = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": entry.name, "namespace": namespace, "annotations": said.annotations},
            "eventTime": rfc3339_us(said.unix_ms),
            "reportingController": self.controller,
            "reportingInstance": cut(&self.instance, 128),
            "action": said.action,
            "reason": said.reason,
            "type": if NORMAL.contains(&said.reason) { "Normal" } else { "Warning" },
            "note": note.trim_end(),
            "regarding": regarding,
        });
        Some(Call::write(
            Verb::Post,
            "events",
            &path,
            Content::Json,
            &body,
            dry_run,
        ))
    }

    /// What came of it.
    pub fn answered(&mut self, key: &EventKey, answer: &Answer, now: Now) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.is_in_flight = false;
        let is_first = entry.written == 0;
        match answer {
            Answer::Done(_) => {
                // A repetition that came while the first one was on its way is written by the next call.
                entry.written = if is_first { 1 } else { entry.count };
                entry.not_before_ms = now.mono_ms + EVERY_MS;
                entry.tries = 0;
                entry.backoff.reset();
            }
            // An earlier process wrote it.
            Answer::Refused(refusal) if refusal.code == 409 && is_first => entry.written = 1,
            // The API server forgets Events after an hour.
            Answer::Refused(refusal) if refusal.code == 404 && !is_first => {
                entry.written = 0;
                entry.name = format!("{}.{:x}", entry.name, entry.count);
            }
            Answer::Refused(refusal) if refusal.is_passing() && entry.tries < TRIES_MAX => {
                entry.tries += 1;
                let wait_ms = entry.backoff.wait_at_least_ms(refusal.retry_after_ms);
                entry.not_before_ms = now.mono_ms + wait_ms;
            }
            Answer::Refused(_) => {
                entry.written = entry.count;
                self.dropped += 1;
            }
            Answer::Lost(_) => entry.not_before_ms = now.mono_ms + entry.backoff.wait_ms(),
        }
    }
}

/// A name that is the same for the same happening, and no other: object, time, and a sum of UID and reason.
fn name_of(said: &Said) -> String {
    let mut sum: u32 = 0x811c_9dc5;
    for byte in said.regarding.uid.bytes().chain(said.reason.bytes()) {
        sum = (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    // At most 253 bytes, and each part between dots begins and ends with a letter or a digit.
    let object = cut(&said.regarding.name, 200).trim_end_matches(['-', '.']);
    format!("{object}.{:x}{sum:08x}", said.unix_ms)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::call::Refusal;

    fn now(mono_ms: u64) -> Now {
        Now {
            mono_ms,
            unix_ms: 1_795_341_600_000 + mono_ms,
        }
    }

    fn said(uid: &str, at: u64) -> Said {
        Said {
            regarding: Regarding {
                kind: "Pod",
                namespace: "shop".into(),
                name: format!("pod-{uid}"),
                uid: uid.into(),
            },
            reason: "Evicted",
            action: "Evict",
            note: "x".repeat(2_000),
            ending: "The pod is held.",
            unix_ms: now(at).unix_ms,
            annotations: BTreeMap::new(),
        }
    }

    fn body(call: &Call) -> Value {
        serde_json::from_slice(&call.body).unwrap()
    }

    fn refused(code: u16) -> Answer {
        Answer::Refused(Refusal {
            code,
            ..Refusal::default()
        })
    }

    #[test]
    fn room_that_was_made_is_no_warning() {
        for (reason, kind) in [("RoomMade", "Normal"), ("Reclaimed", "Warning")] {
            let mut events = Events::of_arbitrator("one", 1);
            events.say(
                Said {
                    reason,
                    ..said("u1", 0)
                },
                now(0),
            );
            let key = events.next(now(0)).unwrap();
            assert_eq!(body(&events.send(&key, false).unwrap())["type"], kind);
        }
    }

    #[test]
    fn a_repetition_is_a_count_on_the_same_object() {
        let mut events = Events::new("node-1", 1);
        events.say(said("u1", 0), now(0));
        let key = events.next(now(0)).unwrap();
        let post = events.send(&key, false).unwrap();
        assert_eq!(
            (post.verb, post.path.as_str()),
            (
                Verb::Post,
                "/apis/events.k8s.io/v1/namespaces/shop/events?fieldManager=plimsoll"
            )
        );
        let note = body(&post)["note"].as_str().unwrap().to_owned();
        assert!(
            note.len() <= NOTE_BYTES_MAX && note.ends_with("x The pod is held."),
            "{note}"
        );
        assert!(events.next(now(1)).is_none(), "it is on its way");
        // Said again meanwhile, and twice after.
        events.say(said("u1", 1), now(1));
        events.answered(&key, &Answer::Done(Vec::new()), now(2));
        assert!(!events.is_waiting("u1", "Evicted"));
        for at in [3, 4] {
            events.say(said("u1", at), now(at));
        }
        // One write in 6 s.
        assert!(events.next(now(6_001)).is_none());
        let patch = events
            .send(&events.next(now(6_002)).unwrap(), false)
            .unwrap();
        assert_eq!(patch.verb, Verb::Patch);
        assert_eq!(body(&patch)["series"]["count"], 4);
        assert_eq!(
            body(&patch)["series"]["lastObservedTime"],
            "2026-11-22T10:00:00.004000Z"
        );
        assert!(
            patch
                .path
                .contains(body(&post)["metadata"]["name"].as_str().unwrap())
        );
        events.answered(&key, &Answer::Done(Vec::new()), now(6_010));
        assert!(events.is_idle());
        // Ten minutes later it is another Event.
        events.say(said("u2", 0), now(700_000));
        events.say(said("u1", 700_000), now(700_001));
        let second = events.send(&key, false).unwrap();
        assert_eq!(second.verb, Verb::Post);
        assert_ne!(
            body(&second)["metadata"]["name"],
            body(&post)["metadata"]["name"]
        );
    }

    #[test]
    fn a_burst_is_bounded_and_what_is_beyond_is_counted() {
        let mut events = Events::new("node-1", 1);
        for at in 0..100 {
            events.say(said(&format!("u{at}"), at), now(at));
        }
        assert_eq!((events.entries.len(), events.dropped), (25, 75));
        events.say(said("late", 6_100), now(6_100));
        assert!(events.is_waiting("late", "Evicted"));
    }

    #[test]
    fn refusals() {
        // Answers of the first call, whether it waits afterwards, and how many were dropped.
        let cases = [
            (vec![refused(409)], false, 0),
            (vec![refused(403)], false, 1),
            (vec![refused(404)], false, 1),
            (vec![refused(500), Answer::Done(Vec::new())], false, 0),
            (vec![refused(429); 3], true, 0),
            (vec![refused(503); 9], false, 1),
            (vec![Answer::Lost(String::new()); 50], true, 0),
        ];
        for (answers, waits, dropped) in cases {
            let mut events = Events::new("node-1", 1);
            events.say(said("u1", 0), now(0));
            let mut at = 0;
            for answer in &answers {
                at += 100_000;
                let key = events.next(now(at)).unwrap();
                events.send(&key, false).unwrap();
                events.answered(&key, answer, now(at));
            }
            let found = (events.is_waiting("u1", "Evicted"), events.dropped);
            assert_eq!(found, (waits, dropped), "{answers:?}");
        }
    }

    #[test]
    fn an_event_that_the_server_forgot_is_written_anew() {
        let mut events = Events::new("node-1", 1);
        events.say(said("u1", 0), now(0));
        let key = events.next(now(0)).unwrap();
        events.send(&key, false).unwrap();
        events.answered(&key, &Answer::Done(Vec::new()), now(0));
        events.say(said("u1", 1), now(1));
        events.send(&key, false).unwrap();
        events.answered(&key, &refused(404), now(7_000));
        assert_eq!(events.send(&key, false).unwrap().verb, Verb::Post);
    }

    #[test]
    fn names_are_valid_whatever_the_object_is_called() {
        let mut long = said("u1", 0);
        long.regarding.name = format!("{}-.{}", "a".repeat(198), "b".repeat(50));
        let name = name_of(&long);
        assert!(name.len() <= 253 && !name.contains("-."), "{name}");
    }
}
