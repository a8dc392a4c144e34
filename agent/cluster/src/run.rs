//! The loop: hears the API server and the agent, asks `report` what to do, and does it.

pub mod arbitrate;
pub mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_core::kube::budget::DisruptionBudget;
use plimsoll_core::protocol::cluster_link::{BUDGETS_MAX, ToAgent};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use crate::api::watch::{self, Relist, Watched};
use crate::api::{Api, ApiError, Source, discovery};
use crate::call::{Answer, Call, Content, Verb};
use crate::clock::Now;
use crate::link::{self, Batch, Frame, FromAgent};
use crate::metrics::Metrics;
use crate::pod::{NotTaken, SeenPod};
use crate::report::body::escaped;
use crate::report::node::{SeenNode, removal};
use crate::report::policy::Policy;
use crate::report::topology;
use crate::report::{Reporter, Served, Target};
use crate::serve::{Address, Listener};
use crate::store::{Change, Store};
use crate::watch_event::WatchEvent;

/// A list that an eviction waits for and that has not begun is asked for again.
const LIST_AGAIN: Duration = Duration::from_secs(10);
/// How often pods are listed anew at most while some were left out: evictions of pods that are not known are settled
/// only when all are.
const COMPLETE_EVERY: Duration = Duration::from_secs(300);
/// Objects of a watch that wait to be taken: each may have 10 MiB.
const HEARD_MAX: usize = 1;
/// What is on its way when the program is asked to end is waited for so long before what it may have written is taken
/// off: a pod has 30 s in all.
const ENDING: Duration = Duration::from_secs(10);
/// How often it is tried to take everything off the node.
const TAKEN_OFF_MAX: u32 = 5;
/// How often it is asked what it serves, until it says so.
const DISCOVER_EVERY: Duration = Duration::from_secs(5);
/// While something waits to be told.
const BUSY: Duration = Duration::from_millis(100);
/// While nothing does.
const IDLE: Duration = Duration::from_secs(2);

/// The options.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `metadata.name` of this node.
    pub node: String,
    /// The agent's socket.
    pub socket: PathBuf,
    /// Where address and credentials come from.
    pub source: Source,
    /// What is done with evictions.
    pub policy: Policy,
    /// Whether budgets are watched for the agent.
    pub respect_budgets: bool,
    /// Where metrics are served.
    pub metrics: Option<Address>,
    /// Whether the node is cleaned when the program is asked to end.
    pub clean_up_on_exit: bool,
}

/// Why it ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No client.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The address for metrics.
    #[error("cannot serve metrics at {0:?}: {1}; choose another --metrics")]
    Metrics(Address, std::io::Error),
    /// The address for the webhook.
    #[error("cannot serve the webhook at {0}: {1}; choose another --webhook")]
    Webhook(SocketAddr, std::io::Error),
    /// The authorities of the webhook's clients.
    #[error("{0}")]
    WebhookClients(String),
    /// What `arbitrate --once` needs could not be read.
    #[error(
        "the cluster cannot be judged: {0}; if no answer came, check the address and the certificates in the kubeconfig"
    )]
    Once(String),
    /// The node could not be cleaned.
    #[error(
        "cannot take conditions and taint off node {node}: {why}; it needs `patch` of nodes and nodes/status"
    )]
    CleanUp {
        /// Which node.
        node: String,
        /// Why.
        why: String,
    },
}

/// A budget that the agent was told of.
type Budgets = BTreeMap<(String, String), Frame>;

struct Loop {
    settings: Settings,
    api: Api,
    metrics: Arc<Metrics>,
    began: Instant,
    reporter: Reporter,
    pods: Store,
    agent: Option<Sender<Batch>>,
    budgets: Budgets,
    listed_budgets: Option<Budgets>,
    /// Namespaces whose budgets were looked for.
    budget_namespaces: BTreeSet<Arc<str>>,
    budgets_again: Arc<Relist>,
    pods_again: Arc<Relist>,
    /// When they were last listed anew because some were left out.
    completed: Option<Instant>,
    /// When a list was last asked for because an eviction waits for it.
    listed_for_evictions: Option<Instant>,
    calls: JoinSet<(Target, Answer)>,
    discoveries: JoinSet<Served>,
    was_reachable: bool,
    /// Whether the list of nodes that is being read has this one.
    is_node_listed: bool,
}

/// Runs until `stop` completes, and then cleans the node where that is an option: not before, for what runs writes
/// again what is taken off.
///
/// # Errors
/// [`RunError`]: only what cannot get better by waiting, and a node that could not be cleaned.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), RunError> {
    let metrics = Arc::new(Metrics::new());
    if let Some(address) = &settings.metrics {
        let wrong = |error| RunError::Metrics(address.clone(), error);
        let listener = Listener::open(address).await.map_err(wrong)?;
        tokio::spawn(listener.serve(metrics.clone()));
    }
    let api = Api::new(settings.source.clone(), metrics.clone()).await?;
    let seed = seed();
    let fields = format!("spec.nodeName%3D{}", escaped(&settings.node));
    let pods_again = Arc::<Relist>::default();
    let pods = watched(
        &api,
        "pods",
        "/api/v1/pods",
        fields,
        pods_again.clone(),
        seed,
    );
    let fields = format!("metadata.name%3D{}", escaped(&settings.node));
    let nodes = watched(
        &api,
        "nodes",
        "/api/v1/nodes",
        fields,
        Arc::default(),
        seed ^ 1,
    );
    let (to_loop, agent) = channel(16);
    tokio::spawn(link::run(
        settings.socket.clone(),
        settings.node.clone(),
        to_loop,
        seed ^ 2,
    ));
    let mut state = Loop {
        reporter: Reporter::new(&settings.node, settings.policy, seed ^ 3),
        pods: Store::new(&settings.node, settings.respect_budgets),
        settings,
        api,
        metrics,
        began: Instant::now(),
        agent: None,
        budgets: Budgets::new(),
        listed_budgets: None,
        budget_namespaces: BTreeSet::new(),
        budgets_again: Arc::default(),
        pods_again,
        completed: None,
        listed_for_evictions: None,
        calls: JoinSet::new(),
        discoveries: JoinSet::new(),
        was_reachable: false,
        is_node_listed: false,
    };
    tokio::select! {
        () = state.run(pods, nodes, agent, seed) => {}
        () = stop => {}
    }
    if !state.settings.clean_up_on_exit {
        return Ok(());
    }
    state.end_calls().await;
    take_off(&state.api, &state.settings).await
}

/// The present, for a program that began then.
fn now(began: Instant) -> Now {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    Now {
        mono_ms: ms_of(began.elapsed()),
        unix_ms: ms_of(unix.unwrap_or_default()),
    }
}

fn ms_of(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What the arbitrator's loop and the tasks beside it share: one at a time; what a panic left is as it was.
fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Different for each process, so that those of a cluster do not keep step.
fn seed() -> u64 {
    let unix = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::from(unix.subsec_nanos()) << 32 ^ u64::from(std::process::id())
}

fn watched(
    api: &Api,
    resource: &'static str,
    path: &str,
    fields: String,
    again: Arc<Relist>,
    seed: u64,
) -> Receiver<WatchEvent> {
    let (heard, receiver) = channel(HEARD_MAX);
    let (api, watched) = (
        api.clone(),
        Watched {
            resource,
            path: path.to_owned(),
            fields,
            silence: watch::SILENT_WATCH,
        },
    );
    tokio::spawn(async move { watch::run(api, watched, heard, &again, seed).await });
    receiver
}

impl Loop {
    async fn run(
        &mut self,
        mut pods: Receiver<WatchEvent>,
        mut nodes: Receiver<WatchEvent>,
        mut agent: Receiver<FromAgent>,
        seed: u64,
    ) {
        let mut budgets: Option<Receiver<WatchEvent>> = None;
        loop {
            let is_busy = self.reporter.is_busy(self.now());
            let pause = if is_busy { BUSY } else { IDLE };
            tokio::select! {
                Some(heard) = pods.recv() => self.heard_pod(heard),
                Some(heard) = nodes.recv() => self.heard_node(heard),
                Some(heard) = async { budgets.as_mut()?.recv().await }, if budgets.is_some() => self.heard_budget(heard),
                Some(heard) = agent.recv() => self.heard_agent(heard),
                Some(ended) = self.calls.join_next(), if !self.calls.is_empty() => {
                    if let Ok((target, answer)) = ended {
                        self.answered(&target, &answer);
                    }
                }
                Some(ended) = self.discoveries.join_next(), if !self.discoveries.is_empty() => {
                    if let Ok(served) = ended {
                        if self.settings.respect_budgets && budgets.is_none() {
                            budgets = Some(self.watch_budgets(&served, seed ^ 4));
                        }
                        self.reporter.served(served);
                    }
                }
                () = tokio::time::sleep(pause) => {}
            }
            self.complete_pods();
            self.act();
        }
    }

    /// Waits for the calls that are on their way, and makes no other.
    async fn end_calls(&mut self) {
        let all = async { while self.calls.join_next().await.is_some() {} };
        if tokio::time::timeout(ENDING, all).await.is_err() {
            self.calls.abort_all();
        }
    }

    fn now(&self) -> Now {
        now(self.began)
    }

    fn watch_budgets(&self, served: &Served, seed: u64) -> Receiver<WatchEvent> {
        let version = if served.has_policy_v1 {
            "v1"
        } else {
            "v1beta1"
        };
        let path = format!("/apis/policy/{version}/poddisruptionbudgets");
        watched(
            &self.api,
            "poddisruptionbudgets",
            &path,
            String::new(),
            self.budgets_again.clone(),
            seed,
        )
    }

    /// Calls that can be made now, and what has come up for the agent.
    fn act(&mut self) {
        let now = self.now();
        while let Some((target, call)) = self.reporter.next(&self.pods, now) {
            let api = self.api.clone();
            self.calls
                .spawn(async move { (target, api.call(&call).await) });
        }
        for word in self.reporter.words() {
            self.metrics.say(&word);
        }
        let is_reachable = self.reporter.check_reach(now);
        if is_reachable && !self.was_reachable && self.discoveries.is_empty() {
            // An API server that comes back may be another version.
            let api = self.api.clone();
            self.discoveries.spawn(discovered(api));
        }
        if !is_reachable && self.was_reachable {
            self.metrics
                .say("the API server does not answer; evictions are kept and told later");
        }
        self.was_reachable = is_reachable;
        for frame in self.reporter.outgoing() {
            if let Some(frame) = link::encode(&frame) {
                self.send_to_agent(vec![frame]);
            }
        }
        let pods = self.pods.iter().count();
        self.metrics.set(
            &self.reporter.figures(now),
            pods,
            self.pods.dropped,
            is_reachable,
            self.agent.is_some(),
        );
    }

    fn answered(&mut self, target: &Target, answer: &Answer) {
        if let Answer::Refused(refusal) = answer
            && !refusal.is_passing()
            && !matches!(refusal.code, 404 | 409)
        {
            self.metrics.say(&format!("{target:?}: {}", answer.words()));
        }
        let now = self.now();
        self.reporter.answered(target, answer, &mut self.pods, now);
    }

    /// An agent that does not keep up is let go, and calls for everything again.
    fn send_to_agent(&mut self, batch: Batch) {
        if let Some(agent) = &self.agent
            && agent.try_send(batch).is_err()
        {
            self.agent = None;
        }
    }

    /// Everything, from the beginning.
    fn send_all(&mut self) {
        let now_known = self.reporter.greeting(self.now());
        let mut batch: Batch = now_known.iter().filter_map(link::encode).collect();
        if self.pods.is_listed() {
            batch.extend(link::encode(&ToAgent::List));
            batch.extend(self.pods.iter().map(|pod| pod.frame.clone()));
            batch.extend(self.budgets.values().cloned());
            batch.extend(link::encode(&ToAgent::Listed));
        }
        self.send_to_agent(batch);
    }

    fn missed(&mut self, why: &str) {
        self.metrics.say(why);
        let now = self.now();
        self.reporter.missed(now);
    }

    /// Lists the pods anew where some were left out, seldom: there may be room by now. And where an eviction waits for
    /// it.
    fn complete_pods(&mut self) {
        let is_asked = |at: Instant| at.elapsed() < LIST_AGAIN;
        if self.reporter.wants_list(&self.pods) && !self.listed_for_evictions.is_some_and(is_asked)
        {
            self.listed_for_evictions = Some(Instant::now());
            self.pods_again.most_recent();
        }
        let is_soon = |at: Instant| at.elapsed() < COMPLETE_EVERY;
        let is_due = self.pods.is_listed() && !self.pods.is_complete();
        if is_due && !self.completed.is_some_and(is_soon) {
            self.completed = Some(Instant::now());
            self.pods_again.complete();
        }
    }

    fn heard_pod(&mut self, heard: WatchEvent) {
        let was_listed = self.pods.is_listed();
        match heard {
            WatchEvent::Missed(why) => return self.missed(&why),
            WatchEvent::Refused(why) => self.metrics.say(&why),
            WatchEvent::List(current_at) => {
                self.pods.list();
                let ms = |at: Instant| ms_of(at.saturating_duration_since(self.began));
                self.reporter.list_begins(current_at.map(ms));
            }
            WatchEvent::Object(object) => {
                let Change { displaced, frame } = self.pods.saw(&object);
                let gone = displaced.into_iter().map(|uid| ToAgent::PodGone { uid });
                let gone = gone.filter_map(|frame| link::encode(&frame));
                let batch: Batch = gone.chain(frame).collect();
                if was_listed && !batch.is_empty() {
                    self.send_to_agent(batch);
                }
                self.want_budgets();
            }
            WatchEvent::Gone(object) => {
                if let Some(uid) = SeenPod::uid_of(&object) {
                    self.reporter.pod_gone(&uid);
                    if self.pods.gone(&uid) && was_listed {
                        let frame = link::encode(&ToAgent::PodGone { uid });
                        self.send_to_agent(frame.into_iter().collect());
                    }
                }
            }
            WatchEvent::Listed => {
                let gone = self.pods.listed();
                self.reporter.list_ends();
                if was_listed {
                    let gone = gone.into_iter().map(|uid| ToAgent::PodGone { uid });
                    let batch = gone.filter_map(|frame| link::encode(&frame)).collect();
                    self.send_to_agent(batch);
                } else {
                    self.send_all();
                }
            }
            WatchEvent::TooLarge => self.pods.left_out(NotTaken::TooLarge),
            WatchEvent::Word => {}
        }
        self.reporter.heard();
    }

    fn heard_node(&mut self, heard: WatchEvent) {
        match heard {
            WatchEvent::Missed(why) => return self.missed(&why),
            WatchEvent::Refused(why) => self.metrics.say(&why),
            WatchEvent::List(_) => self.is_node_listed = false,
            WatchEvent::Object(object) => match SeenNode::read(&object) {
                Some(node) if node.name == self.settings.node => {
                    self.is_node_listed = true;
                    let now = self.now();
                    self.reporter.saw_node(node, now);
                }
                Some(_) => self.pods.not_taken(NotTaken::OtherNode),
                None => self.pods.not_taken(NotTaken::Garbage),
            },
            WatchEvent::TooLarge => self.pods.not_taken(NotTaken::TooLarge),
            WatchEvent::Listed if !self.is_node_listed => self.note_no_node(),
            WatchEvent::Gone(_) => self.note_no_node(),
            WatchEvent::Listed | WatchEvent::Word => {}
        }
        self.reporter.heard();
    }

    /// Its pods have no names then either, so that a wrong name is not to go unnoticed.
    fn note_no_node(&mut self) {
        self.reporter.note_no_node();
        self.metrics.say(&format!(
            "the API server has no node {}: its pods have no names here, and nothing is said of it; if it has another name, give that as NODE_NAME or --node",
            self.settings.node
        ));
    }

    /// A pod in a namespace whose budgets were dropped on arrival: they are listed again.
    fn want_budgets(&self) {
        let is_known = |namespace| self.budget_namespaces.contains(namespace);
        if self.settings.respect_budgets && !self.pods.iter().all(|pod| is_known(&pod.namespace)) {
            self.budgets_again.complete();
        }
    }

    fn heard_budget(&mut self, heard: WatchEvent) {
        match heard {
            // Whether the API server answers, the pods and the node say.
            WatchEvent::Missed(why) | WatchEvent::Refused(why) => return self.metrics.say(&why),
            WatchEvent::List(_) => {
                self.listed_budgets = Some(Budgets::new());
                let namespaces = self.pods.iter().map(|pod| pod.namespace.clone());
                self.budget_namespaces = namespaces.collect();
            }
            WatchEvent::Object(object) => self.saw_budget(&object),
            WatchEvent::Gone(object) => {
                if let Ok(budget) = serde_json::from_slice::<DisruptionBudget>(&object) {
                    self.budget_gone(budget_key(&budget));
                }
            }
            WatchEvent::Listed => {
                if let Some(listed) = self.listed_budgets.take() {
                    let gone = self.budgets.keys().filter(|key| !listed.contains_key(*key));
                    let gone: Vec<(String, String)> = gone.cloned().collect();
                    for key in gone {
                        self.budget_gone(key);
                    }
                }
            }
            WatchEvent::TooLarge => self.pods.not_taken(NotTaken::TooLarge),
            WatchEvent::Word => {}
        }
        self.reporter.heard();
    }

    fn saw_budget(&mut self, object: &[u8]) {
        let Ok(mut budget) = serde_json::from_slice::<DisruptionBudget>(object) else {
            return self.pods.not_taken(NotTaken::Garbage);
        };
        let key = budget_key(&budget);
        if !self.pods.has_namespace(&key.0) {
            // What is dropped now is listed when a pod comes there, also where one was before.
            self.budget_namespaces.remove(key.0.as_str());
            return;
        }
        budget.metadata.annotations.clear();
        budget.metadata.labels.clear();
        let Some(frame) = link::encode(&ToAgent::Budget {
            budget: Box::new(budget),
        }) else {
            return self.pods.not_taken(NotTaken::TooLarge);
        };
        if let Some(listed) = &mut self.listed_budgets {
            listed.insert(key.clone(), frame.clone());
        }
        if self.budgets.len() >= BUDGETS_MAX && !self.budgets.contains_key(&key) {
            self.pods.dropped.too_many += 1;
            return;
        }
        let known = self.budgets.insert(key, frame.clone());
        if known.as_ref() != Some(&frame) {
            self.send_to_agent(vec![frame]);
        }
    }

    fn budget_gone(&mut self, key: (String, String)) {
        if self.budgets.remove(&key).is_some() {
            let (namespace, name) = key;
            let gone = ToAgent::BudgetGone { namespace, name };
            self.send_to_agent(link::encode(&gone).into_iter().collect());
        }
    }

    fn heard_agent(&mut self, heard: FromAgent) {
        match heard {
            FromAgent::Connected(agent) => {
                self.metrics.say("the agent is connected");
                self.agent = Some(agent);
                self.send_all();
            }
            FromAgent::Frame(frame) => {
                let now = self.now();
                self.reporter.from_agent(frame, now);
            }
            FromAgent::Lost(why) => {
                self.metrics.say(&why);
                self.agent = None;
                let now = self.now();
                self.reporter.lost_agent(now);
            }
        }
    }
}

fn budget_key(budget: &DisruptionBudget) -> (String, String) {
    let namespace = budget.metadata.namespace.clone().unwrap_or_default();
    (namespace, budget.metadata.name.clone())
}

/// Asks what the API server can do until it says so.
async fn discovered(api: Api) -> Served {
    let mut said = None;
    loop {
        let why = match discovery::discover(&api).await {
            Ok(served) => return served,
            Err(why) => why,
        };
        if said.as_ref() != Some(&why) {
            api.metrics().say(&format!(
                "what the API server serves is not known: {why}; until it is, the Eviction API is not asked; asked again every {} s",
                DISCOVER_EVERY.as_secs()
            ));
            said = Some(why);
        }
        tokio::time::sleep(DISCOVER_EVERY).await;
    }
}

/// Takes Plimsoll's conditions and taint off the node.
///
/// # Errors
/// [`RunError`].
pub async fn clean_up(settings: &Settings) -> Result<(), RunError> {
    let api = Api::new(settings.source.clone(), Arc::new(Metrics::new())).await?;
    take_off(&api, settings).await
}

/// Others write the node at the same time, and an API server may be busy: some tries, each with what was read anew.
async fn take_off(api: &Api, settings: &Settings) -> Result<(), RunError> {
    let mut why = String::new();
    for _ in 0..TAKEN_OFF_MAX {
        // One is not given up for the other.
        let deleted = delete_topology(api, settings).await;
        let removed = remove_from_node(api, settings).await;
        match deleted.and(removed) {
            Ok(()) => return Ok(()),
            Err(error) => why = error,
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let node = settings.node.clone();
    Err(RunError::CleanUp { node, why })
}

async fn remove_from_node(api: &Api, settings: &Settings) -> Result<(), String> {
    let path = format!("/api/v1/nodes/{}", escaped(&settings.node));
    let node = match api.call(&Call::get("nodes", path)).await {
        Answer::Done(node) => SeenNode::read(&node),
        Answer::Refused(refusal) if refusal.is_not_found() => return Ok(()),
        other => return Err(other.words()),
    };
    let node = node.ok_or("the node cannot be read")?;
    let mut removed = Ok(());
    for call in removal(&node, settings.policy.dry_run) {
        let answer = api.call(&call).await;
        if !matches!(answer, Answer::Done(_)) {
            removed = Err(answer.words());
        }
    }
    removed
}

/// Deletes the NodeResourceTopology of this node, if it was written here. Who has no right to read it has not written
/// it.
async fn delete_topology(api: &Api, settings: &Settings) -> Result<(), String> {
    let path = topology::object_path(&settings.node);
    let call = Call::get(topology::RESOURCE, path.clone());
    match api.call(&call).await {
        Answer::Done(object) if topology::is_written_here(&object) => {}
        Answer::Done(_) => return Ok(()),
        // Where the resource is not installed the API server's answer is no Status.
        Answer::Refused(refusal) if matches!(refusal.code, 403 | 404) => return Ok(()),
        other => return Err(other.words()),
    }
    let (dry_run, body) = (settings.policy.dry_run, serde_json::json!({}));
    let call = Call::write(
        Verb::Delete,
        topology::RESOURCE,
        &path,
        Content::Json,
        &body,
        dry_run,
    );
    match api.call(&call).await {
        Answer::Done(_) => Ok(()),
        Answer::Refused(refusal) if refusal.is_not_found() => Ok(()),
        other => Err(other.words()),
    }
}
