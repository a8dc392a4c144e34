//! The loop of the arbitrator: hears the API server, asks [`Arbiter`] what to do, and does it while it has the Lease.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_core::arbitration::units::quantity_of;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use super::{RunError, discovered, seed, watched};
use crate::api::watch::Heard as Watched;
use crate::api::{Api, Source};
use crate::arbitrate::lease::Election;
use crate::arbitrate::store::{Heard, Kind};
use crate::arbitrate::{Arbiter, Settings as Rules, Target};
use crate::call::Answer;
use crate::clock::Now;
use crate::metrics::{Arbitration, Metrics};
use crate::report::Served;
use crate::serve::{Address, Listener};

/// Objects that were heard and not yet looked at.
const HEARD_MAX: usize = 16;
/// Objects that are taken before the next look at what is due.
const TAKEN_AT_ONCE: usize = 1_000;
/// How long the loop waits where it hears nothing.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the end waits for the Lease to be given back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

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
}

struct Loop {
    api: Api,
    metrics: Arc<Metrics>,
    arbitration: Arbitration,
    began: Instant,
    arbiter: Arbiter,
    election: Election,
    calls: JoinSet<(Target, Answer)>,
    lease: JoinSet<Answer>,
    discoveries: JoinSet<Option<Served>>,
    heard: Receiver<(Kind, Heard)>,
    to_heard: Sender<(Kind, Heard)>,
    seed: u64,
    acted: bool,
}

/// Runs until `stop` completes, and gives the Lease back.
///
/// # Errors
/// [`RunError`]: only what cannot get better by waiting.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), RunError> {
    let listen = settings.listen.clone();
    let mut state = Loop::start(settings).await?;
    if let Some(address) = listen {
        let wrong = |error| RunError::Metrics(address.clone(), error);
        let listener = Listener::open(&address).await.map_err(wrong)?;
        tokio::spawn(listener.serve(state.metrics.clone()));
    }
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            () = state.hear() => {}
            () = &mut stop => break,
        }
        state.act();
    }
    let now = state.now();
    if let Some(call) = state.election.release(now) {
        let _given_back = tokio::time::timeout(RELEASE_TIMEOUT, state.api.call(&call)).await;
    }
    Ok(())
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
        // A pod's name outlives its process: a number makes two of them.
        let identity = &mut settings.rules.identity;
        identity.push_str(&format!("_{seed:016x}"));
        let mut state = Self {
            election: Election::new(&settings.lease_namespace, identity),
            arbiter: Arbiter::new(settings.rules.clone(), now(began), seed),
            api,
            metrics,
            arbitration,
            began,
            calls: JoinSet::new(),
            lease: JoinSet::new(),
            discoveries: JoinSet::new(),
            heard,
            to_heard,
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
    fn watch(&self, kind: Kind, path: &str) {
        let seed = self.seed ^ kind as u64;
        let mut of_kind = watched(
            &self.api,
            kind.resource(),
            path,
            String::new(),
            Arc::default(),
            seed,
        );
        let to_heard = self.to_heard.clone();
        tokio::spawn(async move {
            while let Some(heard) = of_kind.recv().await {
                if to_heard.send((kind, heard_of(heard))).await.is_err() {
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
            Some(ended) = self.lease.join_next(), if !self.lease.is_empty() => {
                if let Ok(answer) = ended {
                    let now = self.now();
                    self.election.answered(&answer, now);
                    if let Some(trouble) = &self.election.trouble {
                        self.metrics.say(&format!("the Lease: {trouble}"));
                    }
                }
            }
            Some(ended) = self.discoveries.join_next(), if !self.discoveries.is_empty() => {
                if let Ok(Some(served)) = ended {
                    let version = if served.has_policy_v1 { "v1" } else { "v1beta1" };
                    self.watch(Kind::Budgets, &format!("/apis/policy/{version}/poddisruptionbudgets"));
                    self.arbiter.eviction_version = served.eviction;
                }
            }
            () = tokio::time::sleep(PAUSE) => {}
        }
    }

    fn take(&mut self, kind: Kind, heard: Heard) {
        if let Heard::Missed(why) = &heard {
            self.metrics.say(why);
        }
        self.arbiter.hear(kind, heard);
    }

    fn answered(&mut self, target: &Target, answer: &Answer) {
        if let Answer::Refused(refusal) = answer
            && !refusal.is_passing()
            && !matches!(refusal.code, 404 | 409)
        {
            let (code, reason, message) = (refusal.code, &refusal.reason, &refusal.message);
            self.metrics
                .say(&format!("{target:?}: {code} {reason} {message}"));
        }
        let now = self.now();
        self.arbiter.answered(target, answer, now);
    }

    /// What is due now.
    fn act(&mut self) {
        let now = self.now();
        if let Some(call) = self.election.next(now) {
            let api = self.api.clone();
            self.lease.spawn(async move { api.call(&call).await });
        }
        let acts = self.election.acts(now);
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
        if self.arbiter.turn(now, self.election.holds()) {
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
            let acts = self.election.acts(now);
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

fn now(began: Instant) -> Now {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    Now {
        mono_ms: ms(began.elapsed()),
        unix_ms: ms(unix.unwrap_or_default()),
    }
}

fn heard_of(heard: Watched) -> Heard {
    match heard {
        Watched::List => Heard::List,
        Watched::Object(object) => Heard::Object(object),
        Watched::Gone(object) => Heard::Gone(object),
        Watched::Listed => Heard::Listed,
        Watched::Word => Heard::Word,
        Watched::TooLarge => Heard::TooLarge,
        Watched::Missed(why) => Heard::Missed(why),
    }
}
