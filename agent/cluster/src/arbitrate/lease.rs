//! Which of the arbitrators acts: a Lease (`docs/reference/arbitrator.md`, "In a cluster"). Pure: what is heard and the
//! time go in, the next call comes out.
//!
//! Problem: two that act at once could each evict within a budget and together beyond what one of them would. Approach,
//! as client-go's `leaderelection`: the holder writes every 2 s. Another one takes over when the record has not changed
//! for 15 s by its clock that never jumps; times in the record are never compared.
//!
//! The holder counts from when it *sent* the write that succeeded, and acts for 5 s after that. A call takes 10 s at
//! most, so what it sent last is answered or given up before another can have the Lease.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::{Answer, Call, Content, Verb};
use crate::clock::{Now, rfc3339_us};
use crate::report::body::escaped;

/// Others wait so long after the last change of the record.
const DURATION_MS: u64 = 15_000;
/// The holder writes so often, and others read.
const RETRY_MS: u64 = 2_000;
/// So long after a write was sent its sender acts.
const ACTS_MS: u64 = 5_000;
/// The name of the Lease.
pub const NAME: &str = "plimsoll-arbitrator";

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Record {
    version: String,
    holder: String,
    /// Since when the holder has it, as it says.
    acquired: Option<String>,
    transitions: u64,
    duration_ms: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ApiLease {
    metadata: ApiMeta,
    spec: ApiSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ApiMeta {
    resource_version: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ApiSpec {
    holder_identity: Option<String>,
    lease_transitions: Option<u64>,
    lease_duration_seconds: Option<u64>,
    acquire_time: Option<String>,
}

/// One of those that want the Lease.
#[derive(Debug)]
pub struct Election {
    namespace: String,
    identity: String,
    /// The record, and when it was first seen so.
    seen: Option<(Record, u64)>,
    /// When the write was sent that last succeeded.
    held_ms: Option<u64>,
    next_ms: u64,
    /// When the call that is on its way was sent, and whether it writes.
    sent: Option<(u64, bool)>,
    /// This process has sent a write: a record with its identity, which has a number by chance, is its own.
    has_written: bool,
    /// A write met another version: who wrote it is read first.
    is_contested: bool,
    /// It wants the Lease no more.
    has_ended: bool,
    /// The last answer that was no success, in words.
    pub trouble: Option<String>,
}

impl Election {
    /// Has nothing.
    #[must_use]
    pub fn new(namespace: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            seen: None,
            held_ms: None,
            next_ms: 0,
            sent: None,
            has_written: false,
            is_contested: false,
            has_ended: false,
            trouble: None,
        }
    }

    /// Whether it acts: it has the Lease, and no other can get it while what is sent now is on its way.
    #[must_use]
    pub fn acts(&self, now: Now) -> bool {
        !self.is_contested && self.is_within(now, ACTS_MS)
    }

    /// Whether it had the Lease and no other one can have had it since. It may be late with a write: then it does not
    /// act, and forgets nothing.
    #[must_use]
    pub fn holds(&self, now: Now) -> bool {
        self.is_within(now, DURATION_MS)
    }

    fn is_within(&self, now: Now, ms: u64) -> bool {
        self.held_ms.is_some_and(|held| now.mono_ms < held + ms)
    }

    /// Who has the Lease, as far as is known.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        let (record, _) = self.seen.as_ref()?;
        Some(&record.holder)
    }

    fn path(&self) -> String {
        let namespace = escaped(&self.namespace);
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    }

    /// The next call, if one is due.
    pub fn next(&mut self, now: Now) -> Option<Call> {
        if self.has_ended || self.sent.is_some() || now.mono_ms < self.next_ms {
            return None;
        }
        let (call, writes) = match &self.seen {
            Some((record, _)) if record.version.is_empty() => (self.write(now, None), true),
            Some((record, since)) if self.may_take(record, *since, now) => {
                (self.write(now, Some(record.clone())), true)
            }
            _ => {
                let path = format!("{}/{NAME}", self.path());
                (Call::get("leases", path), false)
            }
        };
        self.sent = Some((now.mono_ms, writes));
        self.has_written |= writes;
        Some(call)
    }

    /// Renews the Lease no more. Returns whether no call of it is on its way.
    pub fn end(&mut self) -> bool {
        self.has_ended = true;
        self.sent.is_none()
    }

    fn may_take(&self, record: &Record, since: u64, now: Now) -> bool {
        if record.holder == self.identity {
            // Not written by this process: it was an earlier one of the same name.
            return self.has_written || now.mono_ms >= since + DURATION_MS;
        }
        let duration = record.duration_ms.clamp(1_000, 4 * DURATION_MS);
        record.holder.is_empty() || now.mono_ms >= since + duration
    }

    fn write(&self, now: Now, record: Option<Record>) -> Call {
        let time = rfc3339_us(now.unix_ms);
        let record_or_none = record.clone().unwrap_or_default();
        let is_new = record_or_none.holder != self.identity;
        let changes = u64::from(record.is_some() && is_new);
        let acquired = record_or_none.acquired.clone().filter(|_| !is_new);
        let body = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": self.namespace, "resourceVersion": record_or_none.version},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": DURATION_MS / 1000,
                "acquireTime": acquired.unwrap_or_else(|| time.clone()),
                "renewTime": time,
                "leaseTransitions": record_or_none.transitions + changes,
            },
        });
        self.send(record.is_some(), body)
    }

    fn send(&self, is_there: bool, mut body: Value) -> Call {
        let (verb, path) = if is_there {
            (Verb::Put, format!("{}/{NAME}", self.path()))
        } else {
            if let Some(metadata) = body["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
            }
            (Verb::Post, self.path())
        };
        Call::write(verb, "leases", &path, Content::Json, &body, false)
    }

    /// Gives the Lease back, so that the other one need not wait. Nothing where it has none.
    pub fn release(&mut self, now: Now) -> Option<Call> {
        self.held_ms.take()?;
        let (record, _) = self.seen.as_ref()?;
        let time = rfc3339_us(now.unix_ms);
        let body = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": self.namespace, "resourceVersion": record.version},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": time, "leaseTransitions": record.transitions},
        });
        Some(self.send(true, body))
    }

    /// What came of the call.
    pub fn answered(&mut self, answer: &Answer, now: Now) {
        let Some((sent_ms, writes)) = self.sent.take() else {
            return;
        };
        // From when it was sent: a server that is slow is asked as often.
        self.next_ms = sent_ms.saturating_add(RETRY_MS).max(now.mono_ms);
        self.trouble = None;
        match answer {
            Answer::Done(body) => match serde_json::from_slice::<ApiLease>(body) {
                Ok(lease) => self.read(lease, sent_ms, writes, now),
                Err(error) => self.trouble = Some(format!("the Lease cannot be read: {error}")),
            },
            // There is none: the next call creates it.
            Answer::Refused(refusal) if refusal.code == 404 && !writes => {
                self.seen = Some((Record::default(), now.mono_ms));
                self.next_ms = now.mono_ms;
            }
            // Another one was faster, or the answer to a write of this one was lost: what is there is read.
            Answer::Refused(refusal) if refusal.code == 409 => {
                self.is_contested = true;
                self.seen = None;
                self.next_ms = now.mono_ms;
            }
            Answer::Refused(_) | Answer::Lost(_) => self.trouble = Some(answer.words()),
        }
    }

    fn read(&mut self, lease: ApiLease, sent_ms: u64, writes: bool, now: Now) {
        let record = Record {
            version: lease.metadata.resource_version,
            holder: lease.spec.holder_identity.unwrap_or_default(),
            acquired: lease.spec.acquire_time,
            transitions: lease.spec.lease_transitions.unwrap_or(0),
            duration_ms: lease
                .spec
                .lease_duration_seconds
                .unwrap_or(0)
                .saturating_mul(1000),
        };
        self.is_contested = false;
        if writes && record.holder == self.identity {
            self.held_ms = Some(sent_ms);
        } else if record.holder != self.identity {
            self.held_ms = None;
        }
        let since = match &self.seen {
            Some((known, since)) if *known == record => *since,
            _ => now.mono_ms,
        };
        self.seen = Some((record, since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Refusal;

    fn at(mono_ms: u64) -> Now {
        Now {
            mono_ms,
            unix_ms: 1_795_341_600_000 + mono_ms,
        }
    }

    /// The API server's one object.
    #[derive(Default)]
    struct Server {
        lease: Option<Value>,
        version: u64,
        is_away: bool,
    }

    impl Server {
        fn answer(&mut self, call: &Call) -> Answer {
            let refused = |code| {
                Answer::Refused(Refusal {
                    code,
                    ..Refusal::default()
                })
            };
            if self.is_away {
                return Answer::Lost("away".into());
            }
            match (call.verb, &self.lease) {
                (Verb::Get, None) => return refused(404),
                (Verb::Get, Some(_)) => {}
                (Verb::Post, Some(_)) => return refused(409),
                (_, known) => {
                    let mut body: Value = serde_json::from_slice(&call.body).unwrap();
                    let version = |it: &Value| it["metadata"]["resourceVersion"].clone();
                    if call.verb == Verb::Put && known.as_ref().map(version) != Some(version(&body))
                    {
                        return refused(409);
                    }
                    self.version += 1;
                    body["metadata"]["resourceVersion"] = json!(self.version.to_string());
                    self.lease = Some(body);
                }
            }
            Answer::Done(self.lease.as_ref().unwrap().to_string().into_bytes())
        }
    }

    fn turn(election: &mut Election, server: &mut Server, now: Now) {
        while let Some(call) = election.next(now) {
            let answer = server.answer(&call);
            election.answered(&answer, now);
        }
    }

    #[test]
    fn one_acts_and_the_other_takes_over_after_the_lease_ends() {
        let mut server = Server::default();
        let (mut one, mut other) = (Election::new("p", "one"), Election::new("p", "other"));
        for ms in (0..60_000).step_by(500) {
            turn(&mut one, &mut server, at(ms));
            turn(&mut other, &mut server, at(ms));
            assert!(one.acts(at(ms)) && !other.acts(at(ms)), "{ms}");
        }
        assert_eq!(other.holder(), Some("one"));
        // The first one is killed.
        let mut taken = 0;
        for ms in (60_000..90_000).step_by(500) {
            turn(&mut other, &mut server, at(ms));
            if !other.acts(at(ms)) {
                taken = ms;
            }
        }
        assert!((72_000..79_000).contains(&taken), "{taken}");
    }

    #[test]
    fn who_cannot_write_stops_long_before_another_may_begin() {
        let mut server = Server::default();
        let (mut one, mut other) = (Election::new("p", "one"), Election::new("p", "other"));
        turn(&mut one, &mut server, at(0));
        turn(&mut other, &mut server, at(0));
        // The first one is cut off; the other one is not.
        let mut away = Server {
            is_away: true,
            ..Server::default()
        };
        let (mut stopped, mut began) = (0, 0);
        for ms in (100..40_000).step_by(100) {
            turn(&mut one, &mut away, at(ms));
            turn(&mut other, &mut server, at(ms));
            assert!(!(one.acts(at(ms)) && other.acts(at(ms))));
            if one.acts(at(ms)) {
                stopped = ms;
            }
            if began == 0 && other.acts(at(ms)) {
                began = ms;
            }
        }
        // A call that was sent last has 10 s to end.
        assert!(
            stopped < 5_000 && began >= stopped + 10_000,
            "{stopped} {began}"
        );
        // It comes back and sees that it has lost it.
        turn(&mut one, &mut server, at(41_000));
        assert!(!one.acts(at(41_000)));
    }

    #[test]
    fn a_clock_that_jumps_and_an_answer_that_is_late_change_nothing() {
        let mut server = Server::default();
        let mut one = Election::new("p", "one");
        turn(&mut one, &mut server, at(0));
        let mut other = Election::new("p", "other");
        for ms in (0..14_000).step_by(1_000) {
            // A day later by the clock on the wall.
            let now = Now {
                unix_ms: at(ms).unix_ms + 86_400_000,
                ..at(ms)
            };
            turn(&mut other, &mut server, now);
            assert!(!other.acts(now));
        }
        // Sent at 2 s, answered at 9 s: it counts from 2 s.
        let call = one.next(at(2_000)).unwrap();
        let answer = server.answer(&call);
        one.answered(&answer, at(9_000));
        assert!(!one.acts(at(9_000)));
    }

    #[test]
    fn a_renewal_whose_answer_is_lost_is_its_own() {
        let mut server = Server::default();
        let mut one = Election::new("p", "one_1f");
        turn(&mut one, &mut server, at(0));
        let acquired = server.lease.as_ref().unwrap()["spec"]["acquireTime"].clone();
        let call = one.next(at(2_000)).unwrap();
        server.answer(&call);
        one.answered(&Answer::Lost("away".into()), at(3_000));
        // The next write meets its own last one.
        turn(&mut one, &mut server, at(4_000));
        assert!(one.acts(at(4_000)));
        let spec = &server.lease.as_ref().unwrap()["spec"];
        assert_eq!(
            (&spec["acquireTime"], &spec["leaseTransitions"]),
            (&acquired, &json!(0))
        );
        assert_ne!(spec["renewTime"], acquired);
    }

    #[test]
    fn who_may_have_lost_it_holds_nothing() {
        let mut server = Server::default();
        let mut one = Election::new("p", "one");
        turn(&mut one, &mut server, at(0));
        assert!(one.holds(at(14_999)) && !one.holds(at(15_000)));
        // While it is not known who wrote last it does not act, and has not lost it yet.
        let call = one.next(at(2_000)).unwrap();
        server.lease.as_mut().unwrap()["metadata"]["resourceVersion"] = json!("9");
        let answer = server.answer(&call);
        one.answered(&answer, at(2_000));
        assert!(!one.acts(at(2_000)) && one.holds(at(2_000)));
    }

    #[test]
    fn who_ends_writes_no_more() {
        let mut server = Server::default();
        let mut one = Election::new("p", "one");
        turn(&mut one, &mut server, at(0));
        let call = one.next(at(2_000)).unwrap();
        assert!(!one.end(), "a renewal is on its way");
        one.answered(&server.answer(&call), at(2_100));
        assert!(one.end());
        assert_eq!(one.next(at(10_000)), None);
        let call = one.release(at(10_000)).unwrap();
        assert!(matches!(server.answer(&call), Answer::Done(_)));
    }

    #[test]
    fn who_ends_gives_it_back_and_a_namesake_waits() {
        let mut server = Server::default();
        let mut one = Election::new("p", "one");
        turn(&mut one, &mut server, at(0));
        let mut namesake = Election::new("p", "one");
        turn(&mut namesake, &mut server, at(100));
        assert!(!namesake.acts(at(100)));
        let call = one.release(at(200)).unwrap();
        server.answer(&call);
        let mut other = Election::new("p", "other");
        turn(&mut other, &mut server, at(300));
        turn(&mut other, &mut server, at(2_300));
        assert!(other.acts(at(2_300)));
    }
}
