//! The webhook of the arbitrator: a listener whose reviews the loop answers, and the task that keeps its certificate.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

use super::{RunError, locked, now};
use crate::api::Api;
use crate::arbitrate::lease::Election;
use crate::arbitrate::review::{Question, Verdict};
use crate::arbitrate::webhook::{
    self as objects, Lasts, Pair, SeenConfiguration, SeenSecret, Step,
};
use crate::call::{Answer, Call};
use crate::certificate;
use crate::metrics::Metrics;
use crate::serve::bind;
use crate::serve::peer::{FairPace, Peer};
use crate::serve::webhook::{Slot, serve};

/// Reviews that the loop has not looked at yet.
pub(super) const ASKED_MAX: usize = 16;
/// Reviews in any second, and as many again for peers that ask seldom. Each compares with all Consumers, and anyone who
/// reaches the port can ask.
const REVIEWS_PER_SECOND: usize = 100;
/// The API server waits for three seconds (`timeoutSeconds` in `deploy/`).
const ANSWER_TIMEOUT: Duration = Duration::from_millis(2_500);
/// Secret and configuration are read so often.
const READ_EVERY: Duration = Duration::from_secs(15);
/// Bytes of a file with authorities of clients.
const AUTHORITIES_BYTES_MAX: u64 = 1 << 20;
/// Steps that follow each other at once: make, trust, serve.
const STEPS_MAX: usize = 3;

/// The options.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// What the API server calls it: the name, or the address, in the certificate.
    pub name: String,
    /// Where the Secret is.
    pub namespace: String,
    /// Authorities, as PEM: only who has a certificate of one of them is heard.
    pub client_ca: Option<PathBuf>,
}

impl Settings {
    /// The authorities of clients as they are now; nothing: everybody is heard.
    fn clients(&self) -> Result<Option<String>, String> {
        let Some(path) = &self.client_ca else {
            return Ok(None);
        };
        let text = read(path).map_err(|error| error.to_string());
        let text = text.and_then(|text| certificate::authorities(&text).map(|_| text));
        let text = text.map_err(|why| {
            format!("the authorities of clients in {path:?}: {why}: correct --webhook-client-ca")
        })?;
        Ok(Some(text))
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(AUTHORITIES_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// A review that the loop is to answer. Dropped: there are too many.
pub(super) struct Asked {
    pub(super) question: Question,
    pub(super) reply: oneshot::Sender<Verdict>,
}

/// Opens the port and answers from now on.
///
/// # Errors
/// The port is taken, or the authorities of clients cannot be used.
pub(super) async fn start(
    settings: Settings,
    keeper: Keeper,
    asked: Sender<Asked>,
) -> Result<(), RunError> {
    settings.clients().map_err(RunError::WebhookClients)?;
    let listen = settings.listen;
    let wrong = |error| RunError::Webhook(listen, error);
    let listener = bind(listen).await.map_err(wrong)?;
    let slot = Slot::default();
    let desk = Desk {
        pace: Arc::new(Mutex::new(FairPace::new(REVIEWS_PER_SECOND))),
        began: keeper.began,
        asked,
        metrics: keeper.metrics.clone(),
    };
    let metrics = keeper.metrics.clone();
    let review = move |peer, body| desk.clone().answered(peer, body);
    tokio::spawn(serve(listener, slot.clone(), review, move || {
        metrics.reviewed("crowded");
    }));
    tokio::spawn(keeper.run(settings, slot));
    Ok(())
}

/// Where reviews come in.
#[derive(Clone)]
struct Desk {
    pace: Arc<Mutex<FairPace>>,
    began: Instant,
    asked: Sender<Asked>,
    metrics: Arc<Metrics>,
}

impl Desk {
    /// Whether one more of this peer may be looked at in this second.
    fn admits(&self, peer: Peer) -> bool {
        let now = now(self.began).mono_ms;
        locked(&self.pace).takes(peer, now)
    }

    /// The answer to one review. Every code but 200 is no answer, and the API server goes on without one.
    async fn answered(self, peer: Peer, body: Bytes) -> Result<Vec<u8>, StatusCode> {
        let failed = |why, code| {
            self.metrics.reviewed(why);
            code
        };
        let busy = || failed("busy", StatusCode::SERVICE_UNAVAILABLE);
        // Before it is read: 2 MiB of JSON are work as well.
        if !self.admits(peer) {
            return Err(busy());
        }
        let question = Question::read(&body);
        // While it waits only what was read of it is held.
        drop(body);
        let question = question.map_err(|_| failed("unreadable", StatusCode::BAD_REQUEST))?;
        let (reply, verdict) = oneshot::channel();
        let ask = Asked {
            question: question.clone(),
            reply,
        };
        self.asked.try_send(ask).map_err(|_| busy())?;
        let verdict = tokio::time::timeout(ANSWER_TIMEOUT, verdict).await;
        let verdict = verdict.map_err(|_| failed("late", StatusCode::GATEWAY_TIMEOUT))?;
        let verdict = verdict.map_err(|_| busy())?;
        self.metrics.reviewed(verdict.name());
        Ok(question.answer(&verdict).to_string().into_bytes())
    }
}

/// Keeps the certificate.
pub(super) struct Keeper {
    pub(super) api: Api,
    pub(super) lease: Arc<Mutex<Election>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) began: Instant,
}

impl Keeper {
    async fn run(self, settings: Settings, slot: Slot) {
        let mut served = (Pair::default(), None);
        loop {
            for _ in 0..STEPS_MAX {
                match self.step(&settings, &slot, &mut served).await {
                    Ok(Step::Make | Step::Trust) => continue,
                    Ok(step) => self.metrics.set_webhook(step == Step::Serve),
                    Err(why) => {
                        let text = format!(
                            "the webhook: {why}; a Consumer that is wrong may be taken when it is written"
                        );
                        self.metrics.say(&text);
                        self.metrics.set_webhook(false);
                    }
                }
                break;
            }
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    /// Reads both objects and does the next step. After [`Step::Make`] and [`Step::Trust`] another one follows.
    async fn step(
        &self,
        settings: &Settings,
        slot: &Slot,
        served: &mut (Pair, Option<String>),
    ) -> Result<Step, String> {
        let Settings {
            name, namespace, ..
        } = settings;
        let what = ["the Secret", "the ValidatingWebhookConfiguration"];
        let secret = self.done(SeenSecret::call(namespace), what[0]).await?;
        let secret = secret.unwrap_or_default();
        let secret = SeenSecret::read(&secret).map_err(|why| format!("{}: {why}", what[0]))?;
        let configuration = self.done(SeenConfiguration::call(), what[1]).await?;
        let configuration = SeenConfiguration::read(&configuration.unwrap_or_default());
        let configuration = configuration.map_err(|why| format!("{}: {why}", what[1]))?;
        let now = now(self.began);
        let lasts = certificate::lasts(&secret.pair, name, now.unix_ms);
        let leads = locked(&self.lease).acts(now);
        let step = objects::next(&secret.pair, &configuration.bundle, lasts, leads);
        match step {
            Step::Make => {
                let pair = certificate::make(name, now.unix_ms);
                let mut pair = pair.map_err(|why| {
                    format!("no certificate can be made for {name}: {why}: correct --webhook-name")
                })?;
                // The authority of one that is good for nobody need not be trusted.
                if lasts != Lasts::Not {
                    pair = pair.after(&secret.pair);
                }
                let written = self.done(secret.replace(namespace, &pair), what[0]).await?;
                if written.is_some() {
                    self.metrics.say("the webhook has a new certificate");
                }
            }
            Step::Trust => {
                let call = configuration.trust(&secret.pair.authorities);
                self.done(call, what[1]).await?;
            }
            Step::Serve => {
                let wanted = (secret.pair, settings.clients()?);
                if *served != wanted {
                    slot.set(certificate::served(&wanted.0, wanted.1.as_deref())?);
                    *served = wanted;
                }
            }
            Step::Wait => {}
        }
        Ok(step)
    }

    async fn done(&self, call: Call, what: &str) -> Result<Option<Vec<u8>>, String> {
        done(self.api.call(&call).await, what)
    }
}

/// What the API server answered; nothing: the object has changed since it was read, so that nothing was written, and
/// the next step goes by what is there now.
fn done(answer: Answer, what: &str) -> Result<Option<Vec<u8>>, String> {
    match answer {
        Answer::Done(body) => Ok(Some(body)),
        Answer::Refused(refusal) if refusal.code == 409 => Ok(None),
        Answer::Refused(refusal) => Err(format!(
            "{what}: {} {} {}: install deploy/components/arbitrator as a whole",
            refusal.code, refusal.reason, refusal.message
        )),
        Answer::Lost(why) => Err(format!("{what}: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::channel;

    use super::*;
    use crate::call::Refusal;

    #[tokio::test]
    async fn the_pace_is_asked_before_a_body_is_read() {
        let (asked, _hears) = channel(1);
        let (metrics, _) = Metrics::of_arbitrator();
        let desk = Desk {
            pace: Arc::new(Mutex::new(FairPace::new(1))),
            began: Instant::now(),
            asked,
            metrics: Arc::new(metrics),
        };
        let peer = Peer::of(std::net::IpAddr::from([10, 0, 0, 1]));
        let garbage = || desk.clone().answered(peer, Bytes::from_static(b"{"));
        assert_eq!(garbage().await, Err(StatusCode::BAD_REQUEST));
        // The clock moves on while the test runs: a pace that has just allowed one allows no other within a second of
        // it.
        let again = garbage().await;
        let took = desk.began.elapsed();
        assert!(
            again == Err(StatusCode::SERVICE_UNAVAILABLE) || took >= Duration::from_secs(1),
            "{again:?}"
        );
    }

    #[test]
    fn after_a_conflict_nothing_is_written() {
        let conflict = Answer::Refused(Refusal {
            code: 409,
            ..Refusal::default()
        });
        assert_eq!(done(conflict, "x"), Ok(None));
        assert_eq!(done(Answer::Done(vec![1]), "x"), Ok(Some(vec![1])));
        let refused = Answer::Refused(Refusal {
            code: 403,
            ..Refusal::default()
        });
        assert!(done(refused, "x").is_err());
    }
}
