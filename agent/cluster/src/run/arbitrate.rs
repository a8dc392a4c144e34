//! The loop of the arbitrator: hears the API server, asks [`Arbiter`] what to do, and does it while it has the Lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_core::arbitration::units::quantity_of;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::webhook::{self, ASKED_MAX, Asked, Keeper};
use super::{RunError, discovered, locked, now, seed, watched};
use crate::api::watch::Relist;
use crate::api::{Api, Source};
use crate::arbitrate::lease::Election;
use crate::arbitrate::review::Verdict;
use crate::arbitrate::review::waiting::Waiting;
use crate::arbitrate::store::Kind;
use crate::arbitrate::{Arbiter, Settings as Rules, Target};
use crate::call::Answer;
use crate::clock::Now;
use crate::metrics::{Arbitration, Metrics};
use crate::report::Served;
use crate::serve::{Address, Listener};
use crate::watch_event::WatchEvent;

/// Objects that were heard and not yet looked at.
const HEARD_MAX: usize = 16;
/// Objects that are taken before the next look at what is due.
const TAKEN_AT_ONCE: usize = 1_000;
/// How long the loop waits where it hears nothing.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the end waits for the Lease to be given back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long it waits for evictions that are on their way: a call ends within 10 s.
const EVICTIONS_TIMEOUT: Duration = Duration::from_secs(12);

/// The options.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where address and credentials come from.
    pub source: Source,
    /// How it decides.
    pub rules: Rules,
    /// Where the Lease is.
    pub lease_namespace: String,
    /// Where metrics are served.
    pub listen: Option<Address>,
    /// The webhook.
    pub webhook: Option<webhook::Settings>,
}

struct Loop {
    api: Api,
    metrics: Arc<Metrics>,
    arbitration: Arbitration,
    began: Instant,
    arbiter: Arbiter,
    lease: Arc<Mutex<Election>>,
    calls: JoinSet<(Target, Answer)>,
    /// By kind: asks for a list, and when it last did.
    lists: BTreeMap<Kind, (Arc<Relist>, Option<Instant>)>,
    discoveries: JoinSet<Served>,
    heard: Receiver<(Kind, WatchEvent)>,
    to_heard: Sender<(Kind, WatchEvent)>,
    asked: Receiver<Asked>,
    to_asked: Sender<Asked>,
    reviews: Waiting<oneshot::Sender<Verdict>>,
    seed: u64,
    acted: bool,
}

/// Runs until `stop` completes, and gives the Lease back.
///
/// # Errors
/// [`RunError`]: only what cannot get better by waiting.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), RunError> {
    let (listen, webhook) = (settings.listen.clone(), settings.webhook.clone());
    let mut state = Loop::start(settings).await?;
    let (lease, api) = (state.lease.clone(), state.api.clone());
    tokio::spawn(keep(lease, api, state.metrics.clone(), state.began));
    if let Some(address) = listen {
        let wrong = |error| RunError::Metrics(address.clone(), error);
        let listener = Listener::open(&address).await.map_err(wrong)?;
        tokio::spawn(listener.serve(state.metrics.clone()));
    }
    if let Some(settings) = webhook {
        let keeper = Keeper {
            api: state.api.clone(),
            lease: state.lease.clone(),
            metrics: state.metrics.clone(),
            began: state.began,
        };
        webhook::start(settings, keeper, state.to_asked.clone()).await?;
    }
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            () = state.hear() => {}
            () = &mut stop => break,
        }
        state.act();
    }
    state.end().await;
    Ok(())
}

/// Keeps the Lease, whatever the loop is busy with: a cycle of a large cluster takes seconds.
async fn keep(lease: Arc<Mutex<Election>>, api: Api, metrics: Arc<Metrics>, began: Instant) {
    loop {
        let call = locked(&lease).next(now(began));
        let Some(call) = call else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let answer = api.call(&call).await;
        let trouble = {
            let mut election = locked(&lease);
            election.answered(&answer, now(began));
            election.trouble.clone()
        };
        if let Some(trouble) = trouble {
            metrics.say(&format!("the Lease: {trouble}"));
        }
    }
}

/// Reads the cluster once, and says what should be. Changes nothing and needs no Lease.
///
/// # Errors
/// [`RunError`], also where an object cannot be listed.
pub async fn once(settings: Settings) -> Result<Value, RunError> {
    let mut state = Loop::start(settings).await?;
    loop {
        state.hear().await;
        let missed = Kind::ALL
            .into_iter()
            .find_map(|kind| state.arbiter.store.watch(kind).missed);
        if let Some(why) = missed {
            return Err(RunError::Once(why));
        }
        let now = state.now();
        if state.arbiter.is_ready() && state.arbiter.turn(now, false) {
            return match &state.arbiter.held_back {
                Some(why) => Err(RunError::Once(why.clone())),
                None => Ok(found(&state.arbiter)),
            };
        }
    }
}

/// Answers reviews. Whoever asked may have gone.
fn tell(verdicts: impl IntoIterator<Item = (oneshot::Sender<Verdict>, Verdict)>) {
    for (reply, verdict) in verdicts {
        let _gone = reply.send(verdict);
    }
}

fn found(arbiter: &Arbiter) -> Value {
    let shown = |amounts: &std::collections::BTreeMap<String, u64>| -> Value {
        let shown =
            |(name, amount): (&String, &u64)| (name.clone(), quantity_of(name, *amount).into());
        Value::Object(amounts.iter().map(shown).collect())
    };
    let name = |uid: &String| {
        let pod = arbiter.store.pods.get(uid);
        pod.map_or_else(
            || uid.clone(),
            |pod| format!("{}/{}", pod.namespace, pod.name),
        )
    };
    let judgement = &arbiter.judgement;
    let consumers = judgement.rows.iter().map(|row| {
        let wrong: Vec<Value> = row
            .wrong
            .iter()
            .map(|(reason, message)| json!({"reason": reason, "message": message}))
            .collect();
        json!({
            "name": row.name, "namespace": row.namespace,
            "deserved": shown(&row.deserved), "used": shown(&row.used), "hard": shown(&row.hard), "reserved": shown(&row.reserved),
            "over": shown(&row.over), "waiting": row.waiting, "blocked": row.blocked, "passedOver": row.passed_over, "wrong": wrong,
        })
    });
    let reclaims = judgement.reclaims.iter().map(|reclaim| {
        let victims: Vec<String> = reclaim.victims.iter().map(name).collect();
        json!({"pod": name(&reclaim.pod), "node": reclaim.node, "evict": victims})
    });
    json!({
        "capacity": shown(&judgement.capacity),
        "consumers": consumers.collect::<Vec<Value>>(),
        "reclaims": reclaims.collect::<Vec<Value>>(),
        "entitledPods": judgement.actions,
    })
}

impl Loop {
    async fn start(mut settings: Settings) -> Result<Self, RunError> {
        let (metrics, arbitration) = Metrics::of_arbitrator();
        let metrics = Arc::new(metrics);
        let api = Api::new(settings.source.clone(), metrics.clone()).await?;
        let seed = seed();
        let began = Instant::now();
        let (to_heard, heard) = channel(HEARD_MAX);
        let (to_asked, asked) = channel(ASKED_MAX);
        // A pod's name outlives its process: a number makes two of them.
        let identity = &mut settings.rules.identity;
        identity.push_str(&format!("_{seed:016x}"));
        let mut state = Self {
            lease: Arc::new(Mutex::new(Election::new(
                &settings.lease_namespace,
                identity,
            ))),
            arbiter: Arbiter::new(settings.rules.clone(), now(began), seed),
            api,
            metrics,
            arbitration,
            began,
            calls: JoinSet::new(),
            lists: BTreeMap::new(),
            discoveries: JoinSet::new(),
            heard,
            to_heard,
            asked,
            to_asked,
            reviews: Waiting::default(),
            seed,
            acted: false,
        };
        let paths = [
            (Kind::Pods, "/api/v1/pods"),
            (Kind::Nodes, "/api/v1/nodes"),
            (Kind::Namespaces, "/api/v1/namespaces"),
            (Kind::Quotas, "/api/v1/resourcequotas"),
            (Kind::Consumers, "/apis/plimsoll.dev/v1alpha1/consumers"),
            (Kind::Allocations, "/apis/plimsoll.dev/v1alpha1/allocations"),
        ];
        for (kind, path) in paths {
            state.watch(kind, path);
        }
        state.discoveries.spawn(discovered(state.api.clone()));
        Ok(state)
    }

    /// All kinds are heard on one channel.
    fn watch(&mut self, kind: Kind, path: &str) {
        let seed = self.seed ^ kind as u64;
        let again: Arc<Relist> = Arc::default();
        self.lists.insert(kind, (again.clone(), None));
        let mut of_kind = watched(
            &self.api,
            kind.resource(),
            path,
            String::new(),
            again.clone(),
            seed,
        );
        let to_heard = self.to_heard.clone();
        tokio::spawn(async move {
            while let Some(heard) = of_kind.recv().await {
                if to_heard.send((kind, heard)).await.is_err() {
                    return;
                }
            }
        });
    }

    fn now(&self) -> Now {
        now(self.began)
    }

    /// Waits for something, and takes it.
    async fn hear(&mut self) {
        tokio::select! {
            Some((kind, heard)) = self.heard.recv() => {
                self.take(kind, heard);
                for _ in 0..TAKEN_AT_ONCE {
                    let Ok((kind, heard)) = self.heard.try_recv() else { break };
                    self.take(kind, heard);
                }
            }
            Some(ended) = self.calls.join_next(), if !self.calls.is_empty() => {
                if let Ok((target, answer)) = ended {
                    self.answered(&target, &answer);
                }
            }
            Some(ended) = self.discoveries.join_next(), if !self.discoveries.is_empty() => {
                if let Ok(served) = ended {
                    let version = if served.has_policy_v1 { "v1" } else { "v1beta1" };
                    self.watch(Kind::Budgets, &format!("/apis/policy/{version}/poddisruptionbudgets"));
                    self.arbiter.eviction_version = served.eviction;
                }
            }
            Some(Asked { question, reply }) = self.asked.recv() => {
                let now = self.now();
                let verdict = self.reviews.ask(&self.arbiter.store, question, reply, now);
                tell(verdict);
            }
            () = tokio::time::sleep(PAUSE) => {}
        }
    }

    fn take(&mut self, kind: Kind, heard: WatchEvent) {
        if let WatchEvent::Missed(why) | WatchEvent::Refused(why) = &heard {
            self.metrics.say(why);
        }
        self.reviews.hear(kind);
        self.arbiter.hear(kind, heard);
    }

    fn answered(&mut self, target: &Target, answer: &Answer) {
        if let Answer::Refused(refusal) = answer
            && !refusal.is_passing()
            && !matches!(refusal.code, 404 | 409)
        {
            self.metrics.say(&format!("{target:?}: {}", answer.words()));
        }
        let now = self.now();
        self.arbiter.answered(target, answer, now);
    }

    /// Asks for lists of kinds of which objects were left out, and would not be now.
    fn list_again(&mut self) {
        for (kind, (again, asked)) in &mut self.lists {
            let Some(every_ms) = self.arbiter.store.wants_list(*kind) else {
                continue;
            };
            let every = Duration::from_millis(every_ms);
            if asked.is_none_or(|asked| asked.elapsed() >= every) {
                *asked = Some(Instant::now());
                again.complete();
            }
        }
    }

    /// Gives the Lease back when no eviction is on its way any more: another process acts at once then.
    async fn end(mut self) {
        let evictions = async {
            while self.arbiter.is_evicting()
                && let Some(ended) = self.calls.join_next().await
            {
                if let Ok((target, answer)) = ended {
                    self.answered(&target, &answer);
                }
            }
            while !locked(&self.lease).end() {
                tokio::time::sleep(PAUSE).await;
            }
        };
        if tokio::time::timeout(EVICTIONS_TIMEOUT, evictions)
            .await
            .is_err()
        {
            self.metrics
                .say("calls are on their way still: the Lease is not given back");
            return;
        }
        let call = locked(&self.lease).release(self.now());
        if let Some(call) = call {
            let _given_back = tokio::time::timeout(RELEASE_TIMEOUT, self.api.call(&call)).await;
        }
    }

    /// What is due now.
    fn act(&mut self) {
        let now = self.now();
        tell(self.reviews.due(&self.arbiter.store, now));
        let (acts, holds) = {
            let election = locked(&self.lease);
            (election.acts(now), election.holds(now))
        };
        self.list_again();
        if acts != self.acted {
            self.acted = acts;
            self.metrics.say(if acts {
                "this process leads"
            } else {
                "this process leads no more"
            });
        }
        let held_back = self.arbiter.held_back.clone();
        let began = Instant::now();
        if self.arbiter.turn(now, holds) {
            let took = began.elapsed().as_micros();
            let now = self.now();
            self.arbiter
                .took(u64::try_from(took).unwrap_or(u64::MAX), now);
            self.arbitration.set(&self.arbiter);
        }
        if let Some(why) = self
            .arbiter
            .held_back
            .as_ref()
            .filter(|why| held_back.as_ref() != Some(*why))
        {
            self.metrics
                .say(&format!("no pod is evicted for now: {why}"));
        }
        self.metrics.set_ready(self.arbiter.is_ready());
        // A cycle can take long: the Lease is looked at once more before anything is sent.
        loop {
            let now = self.now();
            let acts = locked(&self.lease).acts(now);
            let Some((target, call)) = self.arbiter.next(now, acts) else {
                break;
            };
            let api = self.api.clone();
            self.calls
                .spawn(async move { (target, api.call(&call).await) });
        }
        self.arbitration.set_state(&self.arbiter, acts);
    }
}
